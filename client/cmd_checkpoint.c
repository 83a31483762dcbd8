#include "client/cmd.h"

const struct command cmds_checkpoint[] = {{ .name = NULL }};
