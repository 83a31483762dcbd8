/* Learn stages around the network: this step's scalars, the prioritized sample, its transitions, the new priorities and
 * the accumulators. One small serial loop each, on the trainer's worker.
 *
 * Invariant: clock.step counts every training step, clock.applied only those whose update was applied; both move in
 * COUNT alone, so every stage of one step sees the same numbers. */
#include <math.h>
#include <string.h>

#include "gpu/host/round.h"
#include "gpu/host/stages.h"
#include "gpu/host/work.h"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

#define ADAM_BETA1 0.9
#define ADAM_BETA2 0.999

static double fraction_done(const struct dqn_clock *c)
{
	double f = c->planned > 0 ? (double)c->step / (double)c->planned : 1.0;

	return f < 1.0 ? f : 1.0;
}

int host_dqn_advance(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);

		c->lr = c->lr_linear ? c->lr0 + (c->lr_end - c->lr0) * fraction_done(c) : c->lr0;
		c->beta = tree_beta(c->beta0, c->beta_end, c->step, c->planned);
		c->bias1 = 1.0 - pow(ADAM_BETA1, (double)(c->applied + 1));
		c->bias2 = 1.0 - pow(ADAM_BETA2, (double)(c->applied + 1));
		c->skip = 0;
	}
	return 0;
}

/* ---------------------------------------------------------------- sample */

/* (N p/total)^-beta over its batch maximum: the power falls, so the maximum is that of the smallest p, and N and the
 * total cancel. */
static void importance(const struct dqn_dims *d, double beta, const float *tree, const int32_t *index, float *weight)
{
	float smallest = HUGE_VALF;

	for (int j = 0; j < d->B; j++)
		smallest = tree[d->C + index[j]] < smallest ? tree[d->C + index[j]] : smallest;
	for (int j = 0; j < d->B; j++)
		weight[j] = tree[d->C + index[j]] / smallest;
	host_kernels()->power(weight, d->B, (float)-beta);
}

int host_dqn_sample(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		const struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		const float *tree = host_tensor(x, T_TREE, p);
		int32_t *index = host_tensor(x, T_INDEX, p);
		struct philox_words w = {{0, 0, 0, 0}};

		for (int j = 0; j < d->B; j++) {
			if ((j & 3) == 0)
				w = philox_block(c->seed, PHILOX_SAMPLE, (uint64_t)c->step, (uint64_t)j >> 2);
			index[j] = tree_find(tree, d->C, tree_target(tree[1], d->B, j, philox_uniform(w.w[j & 3])));
		}
		importance(d, c->beta, tree, index, host_tensor(x, T_WEIGHT, p));
	}
	return 0;
}

/* ---------------------------------------------------------------- gather */

static void state_row(const void *store, int64_t row, int n, int bf16, float *out)
{
	if (bf16)
		bf16_widen((const uint16_t *)store + row * n, n, out);
	else
		memcpy(out, (const float *)store + row * n, (size_t)n * sizeof(*out));
}

int host_dqn_gather(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	int bf16 = d->precision == FH_PRECISION_BF16;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		const int32_t *index = host_tensor(x, T_INDEX, p);
		const void *store_s = host_tensor(x, T_RP_S, p), *store_s2 = host_tensor(x, T_RP_S2, p);
		const uint8_t *store_a = host_tensor(x, T_RP_A, p);
		const float *store_r = host_tensor(x, T_RP_R, p), *store_g = host_tensor(x, T_RP_G, p);
		float *s = host_tensor(x, T_S, p), *s2 = host_tensor(x, T_S2, p);
		float *r = host_tensor(x, T_R, p), *g = host_tensor(x, T_G, p);
		int32_t *a = host_tensor(x, T_A, p);

		for (int j = 0; j < d->B; j++) {
			int64_t row = index[j];

			state_row(store_s, row, d->SD, bf16, s + (int64_t)j * d->SD);
			state_row(store_s2, row, d->SD, bf16, s2 + (int64_t)j * d->SD);
			for (int b = 0; b < d->D; b++)
				a[j * d->D + b] = store_a[row * d->D + b];
			r[j] = store_r[row];
			g[j] = store_g[row];
		}
	}
	return 0;
}

/* ---------------------------------------------------------------- priorities and counters */

int host_dqn_priority(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		const float *error = host_tensor(x, T_ERROR, p);
		struct host_work w = host_work_at(d, host_tensor(x, T_SCRATCH, p));

		if (c->skip)
			continue;
		for (int j = 0; j < d->B; j++)
			w.priority[j] = tree_priority(error[j], c->alpha); /* in F64: the device's tree has the same leaves */
		c->largest = tree_set_batch(host_tensor(x, T_TREE, p), d->C, host_tensor(x, T_INDEX, p), w.priority, 0.0f,
					    d->B, c->largest, w.tree_node);
	}
	return 0;
}

static double mean(const float *v, int n)
{
	double sum = 0.0;

	for (int i = 0; i < n; i++)
		sum += v[i];
	return sum / n;
}

/* What a step adds to the report; a skipped one has no numbers worth adding. */
static void accumulate(const struct exec *x, int p, const struct dqn_clock *c, double *acc)
{
	const struct dqn_dims *d = x->dims;
	struct host_work w = host_work_at(d, host_tensor(x, T_SCRATCH, p));
	int64_t filled = c->stored < d->C ? c->stored : d->C;

	acc[ACC_LOSS] += c->loss;
	acc[ACC_ERROR] += mean(host_tensor(x, T_ERROR, p), d->B);
	acc[ACC_GRAD_NORM] += c->grad_norm;
	acc[ACC_GRAD_NORM_MAX] = c->grad_norm > acc[ACC_GRAD_NORM_MAX] ? c->grad_norm : acc[ACC_GRAD_NORM_MAX];
	acc[ACC_CLIPPED] += c->grad_scale < 1.0f;
	acc[ACC_Q] += mean(w.taken_q, d->B);
	acc[ACC_EDGE] += mean(w.edge, d->B);
	acc[ACC_WEIGHT] += mean(host_tensor(x, T_WEIGHT, p), d->B);
	acc[ACC_TOTAL_P] += filled ? ((const float *)host_tensor(x, T_TREE, p))[1] / (double)filled : 0.0;
}

int host_dqn_count(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		double *acc = host_tensor(x, T_ACCUM, p);

		acc[ACC_STEPS] += 1.0;
		if (c->skip) {
			acc[ACC_SKIPPED] += 1.0;
			c->skipped++;
			c->skipped_run++;
		} else {
			accumulate(x, p, c, acc);
			c->applied++;
			c->skipped_run = 0;
		}
		c->step++;
		acc[ACC_LR] = c->lr;
		acc[ACC_BETA] = c->beta;
		acc[ACC_STORED] = (double)c->stored;
		acc[ACC_DZ] = (c->v_max - c->v_min) / (d->NA - 1);
		acc[ACC_CAPACITY] = (double)d->C;
	}
	return 0;
}
