/* Prints the meaning of every metric on standard output, as -o asks; for `fhctl metrics --list`. Cannot fail, one thread. */
#ifndef FH_CLIENT_METRIC_LIST_H
#define FH_CLIENT_METRIC_LIST_H

#include "client/cmd.h"

void metric_list(const struct ctx *c);

#endif
