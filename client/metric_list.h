/* The meaning of every metric, as -o asks; for `fhctl metrics --list`. */
#ifndef FH_CLIENT_METRIC_LIST_H
#define FH_CLIENT_METRIC_LIST_H

#include "client/cmd.h"

void metric_list(const struct ctx *c);

#endif
