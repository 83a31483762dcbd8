/* The numbers of a validation report as metrics: what every trading model puts at the end of its metric table. */
#ifndef FH_GPU_EVAL_METRICS_H
#define FH_GPU_EVAL_METRICS_H

#include "gpu/evaluate.h"
#include "gpu/program.h"

#define EVAL_METRICS 13
extern const struct metric eval_metric[EVAL_METRICS];
/* The accumulators that their finishers read. */
void eval_metric_values(const struct eval_report *r, double acc[EVAL_METRICS]);

#endif
