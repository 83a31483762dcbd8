/* The pictures of `fhctl plot`: equity with its drawdown, trades on the price, loss and Q over the steps. One thread. */
#ifndef FH_CLIENT_CHART_H
#define FH_CLIENT_CHART_H

#include "client/svg.h"
#include "client/trace.h"

enum { CHART_EQUITY = 1, CHART_TRADES = 2, CHART_LOSS = 4 };

/* A job's series: reports (step, loss, q) and validations (step, sharpe). Owned arrays; NaN where a sample has no value. */
struct training {
	int64_t n, cap, validations, validations_cap;
	double *step, *loss, *q;
	double *at, *sharpe;
};
/* FH_EXHAUSTED. */
int training_add(struct training *t, double step, double loss, double q, struct fh_status *st);
int training_add_validation(struct training *t, double step, double sharpe, struct fh_status *st);
void training_release(struct training *t);

/* What stands above them: what it is, of what, and the numbers that matter. Empty lines are left empty. */
struct caption { char title[256], subtitle[256], facts[256]; };

/* The asked pictures below each other. `trace` may be NULL without equity and trades, `training` without loss. A picture
 * without data says so. */
void chart_draw(struct svg *s, unsigned kinds, const struct caption *caption, const struct trace *trace, const struct training *training);

#endif
