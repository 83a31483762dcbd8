/* The n-step queue and the ring of the replay on the host, apart from the environment that feeds them, so that a test can
 * feed rewards and ends of its own. Thread: the trainer's worker or a member of its team, one environment at a time. */
#ifndef FH_GPU_HOST_COLLECT_H
#define FH_GPU_HOST_COLLECT_H

#include "gpu/backend.h"
#include "gpu/dqn/dqn.h"

/* Columns of T_ENV_READY. */
enum { READY_COUNT, READY_FIRST, READY_END, READY_COLUMNS };
enum { RUNNING, TRUNCATED, TERMINATED }; /* READY_END */

/* Everything one trial's environments touch, resolved once per stage. */
struct collect {
	const struct exec *x;
	const struct dqn_dims *d;
	struct dqn_clock *clock;
	const struct env_config *config;
	double *cash, *equity, *peak, *q, *entry, *sigma, *ret, *stat;
	int32_t *t, *entry_bar, *steps, *count, *head, *ready;
	const int32_t *action;
	float *obs, *pend_r, *r, *g;
	char *pend_s, *s, *s2; /* rows of row_bytes: F32, or BF16 in bf16 runs */
	uint8_t *pend_a, *a;
	size_t row_bytes;
};

void collect_open(struct collect *f, const struct exec *x, int trial);
/* The step just taken (state: T_OBS before it, action: T_ACTION) joins the last n of environment e. */
void collect_queue(const struct collect *f, int e, double reward, int end);
/* Gives every environment its places behind clock.stored: by environment, oldest first. Once per vector step. */
void collect_place(const struct collect *f);
/* Writes what is complete to the ring; T_OBS of e holds the state after the step, before any restart. */
void collect_store(const struct collect *f, int e);

#endif
