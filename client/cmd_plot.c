#include "client/cmd.h"

const struct command cmds_plot[] = {{ .name = NULL }};
