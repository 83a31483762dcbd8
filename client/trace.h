/* The trace of an evaluation as CSV: one row per bar, enough to recompute every number of the report, and back.
 * One thread. */
#ifndef FH_CLIENT_TRACE_H
#define FH_CLIENT_TRACE_H

#include <stdint.h>
#include <stdio.h>
#include "proto/fh.pb-c.h"
#include "proto/status.h"

/* A trace in memory, row 0 being the state before the first action (equity = initial cash). Owned arrays [n]. */
struct trace {
	int64_t n;
	int64_t *ts;
	double *fill, *fill_price, *exit_fill, *exit_price, *position, *equity, *close;
	int64_t cap;
	double multiplier, max_position; /* 0: not known */
	double fees; /* paid in all rows, money */
};

/* The header and the first row. Reals have 17 significant digits. */
void trace_csv_begin(FILE *f, const Fh__V1__EvaluateReply *e);
void trace_csv_row(FILE *f, const Fh__V1__EvaluateReply *e, const Fh__V1__TraceRow *r);
/* Reads such a file. FH_NOT_FOUND, FH_IO, FH_INVALID (column missing, no number), FH_EXHAUSTED. */
int trace_read(const char *path, struct trace *out, struct fh_status *st);
/* Row 0 and the rows of pages, one after the other. FH_EXHAUSTED. */
int trace_add_first(struct trace *t, const Fh__V1__EvaluateReply *e, struct fh_status *st);
int trace_add(struct trace *t, const Fh__V1__TraceRow *r, struct fh_status *st);
void trace_release(struct trace *t);

#endif
