/* NORM and ADAM: the gradient's size and scale, then moments, parameters, target and their BF16 copies in one pass.
 *
 * The buffer is cut into parts of NORM_PART elements whatever the number of threads. Invariant: a step whose norm is not
 * finite changes nothing but clock.skip; once DQN_SKIP_LIMIT steps in a row were skipped every later one is. */
#include <math.h>

#include "gpu/host/round.h"
#include "gpu/host/stages.h"
#include "gpu/host/work.h"

struct update {
	const struct dqn_dims *d;
	const struct kernels *k;
	struct adam_step step;
	double *part;
	float *param, *target, *m, *v;
	const float *grad;
	uint16_t *param_lp, *target_lp; /* NULL unless bf16 */
};

static int parts(const struct dqn_dims *d)
{
	return (int)((d->params + NORM_PART - 1) / NORM_PART);
}

static int64_t part_length(const struct dqn_dims *d, int part)
{
	int64_t left = d->params - (int64_t)part * NORM_PART;

	return left < NORM_PART ? left : NORM_PART;
}

static void norm_task(void *ctx, int task, int member)
{
	const struct update *u = ctx;

	(void)member;
	u->part[task] = u->k->sum_squares(u->grad + (int64_t)task * NORM_PART, part_length(u->d, task));
}

int host_dqn_norm(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		struct update u = {
			.d = d, .k = host_kernels(), .grad = host_tensor(x, T_GRAD, p),
			.part = host_work_at(d, host_tensor(x, T_SCRATCH, p)).norm_part,
		};
		double sum = 0.0;

		team_run(((struct host_priv *)x->priv)->team, parts(d), norm_task, &u);
		for (int i = 0; i < parts(d); i++)
			sum += u.part[i];
		c->grad_norm = sqrt(sum);
		c->grad_scale = c->grad_norm > c->max_grad_norm ? (float)(c->max_grad_norm / c->grad_norm) : 1.0f;
		c->skip = !isfinite(c->grad_norm) || c->skipped_run >= DQN_SKIP_LIMIT;
	}
	return 0;
}

static void low_precision(const float *from, int64_t n, uint16_t *to)
{
	for (int64_t i = 0; i < n; i++)
		to[i] = bf16_from(from[i]);
}

static void adam_task(void *ctx, int task, int member)
{
	const struct update *u = ctx;
	int64_t at = (int64_t)task * NORM_PART, n = part_length(u->d, task);

	(void)member;
	u->k->adam(&u->step, n, u->param + at, u->target + at, u->m + at, u->v + at, u->grad + at);
	if (u->param_lp) {
		low_precision(u->param + at, n, u->param_lp + at);
		low_precision(u->target + at, n, u->target_lp + at);
	}
}

/* How far the target moves: tau, or all the way at every target_period-th applied update and not at all between. */
static float target_rate(const struct dqn_clock *c)
{
	if (c->target_period <= 0)
		return (float)c->tau;
	return (c->applied + 1) % c->target_period == 0 ? 1.0f : 0.0f;
}

int host_dqn_adam(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		const struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		int bf16 = d->precision == FH_PRECISION_BF16;
		struct update u = {
			.d = d, .k = host_kernels(), .grad = host_tensor(x, T_GRAD, p),
			.param = host_tensor(x, T_PARAM, p), .target = host_tensor(x, T_TARGET, p),
			.m = host_tensor(x, T_M, p), .v = host_tensor(x, T_V, p),
			.param_lp = bf16 ? host_tensor(x, T_PARAM_LP, p) : NULL,
			.target_lp = bf16 ? host_tensor(x, T_TARGET_LP, p) : NULL,
			.step = {
				.grad_scale = c->grad_scale, .lr = (float)c->lr, .inv_bias1 = (float)(1.0 / c->bias1),
				.inv_bias2 = (float)(1.0 / c->bias2), .weight_decay = (float)c->weight_decay,
				.tau = target_rate(c),
			},
		};

		if (!c->skip)
			team_run(((struct host_priv *)x->priv)->team, parts(d), adam_task, &u);
	}
	return 0;
}
