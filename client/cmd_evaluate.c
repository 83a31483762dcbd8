#include "client/cmd.h"

const struct command cmds_evaluate[] = {{ .name = NULL }};
