#include "client/cmd.h"

const struct command cmds_dataset[] = {{ .name = NULL }};
