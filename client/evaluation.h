/* One evaluation through the daemon, for `evaluate` and `plot`. One thread. */
#ifndef FH_CLIENT_EVALUATION_H
#define FH_CLIENT_EVALUATION_H

#include "client/cmd.h"
#include "client/import/timestamp.h"
#include "client/trace.h"

#define EVALUATION_TRIAL_MAX 1023 /* run.population is at most 1024 */

struct evaluation_ask {
	const char *job, *checkpoint; /* one of them */
	const char *split, *dataset;
	Fh__V1__Policy policy;        /* unspecified: the daemon's choice */
	int64_t trial;                /* of a population */
	int benchmarks;
	int64_t windows;              /* episodes that the split is cut into, 0 or 1: the whole split as one */
};

/* Job or --checkpoint, --split, --policy, --trial, --dataset. FH_INVALID. */
int evaluation_options(const struct ctx *c, struct evaluation_ask *out, struct fh_status *st);

/* Called with r NULL once, before the first row, then with every row of the trace. */
typedef int (*evaluation_row)(void *arg, const Fh__V1__EvaluateReply *e, const Fh__V1__TraceRow *r, struct fh_status *st);
/* Runs it to the end; rows go to `row` (NULL: no trace). *out holds the operation's reply with the reports. */
int evaluation_call(struct ctx *c, const struct evaluation_ask *ask, evaluation_row row, void *arg, struct fh_answer *out,
		    struct fh_status *st);

#endif
