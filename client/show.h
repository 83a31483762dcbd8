/* One job as a page for people. */
#ifndef FH_CLIENT_SHOW_H
#define FH_CLIENT_SHOW_H

#include "proto/fh.pb-c.h"

void show_job(const Fh__V1__Job *j, int with_spec);

#endif
