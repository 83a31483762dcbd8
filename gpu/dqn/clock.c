/* The device-resident scalars of a trial: their values at the start of a job, and what the trainer reads from them.
 *
 * Everything before `step` in struct dqn_clock follows from the specification alone; everything from it on is where the
 * job stands. Pure computation, any thread. */
#include "gpu/dqn/dqn.h"

#include <string.h>

#include "gpu/dqn/model.h"
#include "gpu/layout.h"

void dqn_clock_init(const struct fh_spec *spec, struct fh_split train, int trial, struct dqn_clock *out)
{
	memset(out, 0, sizeof *out); /* padding too: clocks are compared and stored as bytes */
	out->seed = (uint64_t)spec->run.seed + (uint64_t)trial;
	out->planned = spec_planned_steps(spec);
	out->warmup = spec->learn.warmup;
	out->eps_steps = spec->collect.eps_steps;
	out->target_period = spec->learn.target_period;
	out->gamma = spec->learn.gamma;
	out->lr0 = spec->learn.lr;
	out->lr_end = spec->learn.lr_end;
	out->lr_linear = spec->learn.lr_schedule == FH_SCHEDULE_LINEAR;
	out->max_grad_norm = spec->learn.max_grad_norm;
	out->weight_decay = spec->learn.weight_decay;
	out->tau = spec->learn.tau;
	out->alpha = spec->replay.alpha;
	out->beta0 = spec->replay.beta;
	out->beta_end = spec->replay.beta_end;
	out->eps_start = spec->collect.eps_start;
	out->eps_end = spec->collect.eps_end;
	out->v_min = spec->net.v_min;
	out->v_max = spec->net.v_max;
	out->train_begin = (int32_t)train.begin;
	out->train_end = (int32_t)train.end;
	out->largest = 1;
	out->grad_scale = 1;
	out->lr = spec->learn.lr;
	out->beta = spec->replay.beta;
	out->eps = spec->collect.eps_start;
}

/* A vector step stores at most n transitions per environment, so this many more are needed for certain. */
void dqn_progress(const struct plan *plan, const void *clock, struct progress *out)
{
	const struct dqn_dims *d = (const struct dqn_dims *)plan->dims;
	struct dqn_clock c;
	int64_t most = (int64_t)d->N * d->n;

	memcpy(&c, clock, sizeof c);
	*out = (struct progress){
		.step = c.step, .vector_step = c.vector_step, .stored = c.stored, .applied = c.applied,
		.warm_left = c.stored >= c.warmup ? 0 : (c.warmup - c.stored + most - 1) / most,
		.diverged = c.skipped_run >= DQN_SKIP_LIMIT,
	};
}
