/* Learn stages around the network: this step's scalars, the prioritized sample, its transitions, the new priorities and
 * the accumulators. Small loops on the trainer's worker; only the copying of transitions is shared out.
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

#define WALKS 16 /* samples that go down the tree side by side, so that their loads overlap */

static void walk(const struct dqn_dims *d, const struct dqn_clock *c, const float *tree, int first, int32_t *index)
{
	double x[WALKS];
	int64_t node[WALKS];
	int n = d->B - first < WALKS ? d->B - first : WALKS;

	for (int j = 0; j < n; j += 4) {
		struct philox_words w = philox_block(c->seed, PHILOX_SAMPLE, (uint64_t)c->step, (uint64_t)(first + j) / 4);

		for (int i = 0; i < 4 && j + i < n; i++) {
			x[j + i] = tree_target(tree[1], d->B, first + j + i, philox_uniform(w.w[i]));
			node[j + i] = 1;
		}
	}
	for (int64_t level = 1; level < d->C; level *= 2)
		for (int j = 0; j < n; j++)
			node[j] = tree_step(tree, node[j], &x[j]);
	for (int j = 0; j < n; j++)
		index[first + j] = (int32_t)(node[j] - d->C);
}

int host_dqn_sample(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		const struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		const float *tree = host_tensor(x, T_TREE, p);
		int32_t *index = host_tensor(x, T_INDEX, p);

		for (int j = 0; j < d->B; j += WALKS)
			walk(d, c, tree, j, index);
		importance(d, c->beta, tree, index, host_tensor(x, T_WEIGHT, p));
	}
	return 0;
}

/* ---------------------------------------------------------------- gather */

#define GATHER_ROWS 32 /* transitions of one task */

struct gather {
	const struct dqn_dims *d;
	const int32_t *index;
	const void *s, *s2;        /* the replay's */
	const uint8_t *a;
	const float *r, *g;
	float *to_s, *to_s2, *to_r, *to_g;
	int32_t *to_a;
	int bf16;
};

static void state_row(const void *store, int64_t row, int n, int bf16, float *out)
{
	if (bf16)
		bf16_widen((const uint16_t *)store + row * n, n, out);
	else
		memcpy(out, (const float *)store + row * n, (size_t)n * sizeof(*out));
}

static void gather_task(void *ctx, int task, int member)
{
	const struct gather *t = ctx;
	const struct dqn_dims *d = t->d;
	int end = (task + 1) * GATHER_ROWS < d->B ? (task + 1) * GATHER_ROWS : d->B;

	(void)member;
	for (int j = task * GATHER_ROWS; j < end; j++) {
		int64_t row = t->index[j];

		state_row(t->s, row, d->SD, t->bf16, t->to_s + (int64_t)j * d->SD);
		state_row(t->s2, row, d->SD, t->bf16, t->to_s2 + (int64_t)j * d->SD);
		for (int b = 0; b < d->D; b++)
			t->to_a[j * d->D + b] = t->a[row * d->D + b];
		t->to_r[j] = t->r[row];
		t->to_g[j] = t->g[row];
	}
}

int host_dqn_gather(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		struct gather t = {
			.d = d, .index = host_tensor(x, T_INDEX, p), .s = host_tensor(x, T_RP_S, p), .s2 = host_tensor(x, T_RP_S2, p),
			.a = host_tensor(x, T_RP_A, p), .r = host_tensor(x, T_RP_R, p), .g = host_tensor(x, T_RP_G, p),
			.to_s = host_tensor(x, T_S, p), .to_s2 = host_tensor(x, T_S2, p), .to_r = host_tensor(x, T_R, p),
			.to_g = host_tensor(x, T_G, p), .to_a = host_tensor(x, T_A, p),
			.bf16 = d->precision == FH_PRECISION_BF16,
		};

		team_run(((struct host_priv *)x->priv)->team, (d->B + GATHER_ROWS - 1) / GATHER_ROWS, gather_task, &t);
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
