/* LOSS: per sample the target distribution, the loss, the priority error and the gradient of the taken actions' logits.
 *
 * One task a chunk, samples one after another. Targets are constants for the gradient; the dueling mean is not applied
 * here: g is the gradient of the combined logits, BACKWARD knows how they were combined. */
#include <math.h>

#include "gpu/host/pass.h"
#include "gpu/host/stages.h"
#include "gpu/projection.h"

struct loss {
	const struct dqn_dims *d;
	const struct kernels *k;
	struct dqn_clock *c;
	struct host_work w;
	struct host_strides s;
	struct projection support;
	int round;
	float middle; /* of the support */
	const float *weight, *ret, *discount, *logits;
	float *proj, *error, *ce;
};

/* What one sample adds up over its branches. */
struct sample { float ce, error, q, edge; };

/* Expected value of p [NA]. index: i - (NA - 1)/2, so that small values do not cancel. */
static float expected(const struct loss *l, const float *p, const float *index)
{
	return l->middle + l->support.dz * l->k->dot(p, index, l->d->NA);
}

/* One branch of one sample under c51: p gets softmax(y), m the target; g = p - m. */
static void branch_c51(const struct loss *l, int row, const float *y, const float *next, float *m, const struct host_temp *t,
		       float *g, struct sample *sum)
{
	int NA = l->d->NA;
	float *p = t->p, *index = p + l->s.atom_row, *star = index + l->s.atom_row, top, lse, cross;

	l->k->softmax(next, NA, star, &top);
	projection_apply(&l->support, star, 1, l->ret[row], l->discount[row], m, 1);
	lse = l->k->softmax(y, NA, p, &top);
	cross = l->k->cross(m, y, top + lse, NA);
	sum->ce -= cross;
	sum->error += l->k->entropy(m, NA) - cross; /* KL of this branch */
	sum->q += expected(l, p, index);
	sum->edge += m[0] + m[NA - 1];
	for (int i = 0; i < NA; i++)
		g[i] = p[i] - m[i];
}

static void branch_mse(const struct loss *l, int row, const float *y, const float *next, float *m, const struct host_temp *t,
		       float *g, struct sample *sum)
{
	int NA = l->d->NA;
	float *p = t->p, *index = p + l->s.atom_row, *star = index + l->s.atom_row, top, q, want, delta;

	l->k->softmax(next, NA, star, &top);
	want = l->ret[row] + l->discount[row] * expected(l, star, index);
	l->k->softmax(y, NA, p, &top);
	q = expected(l, p, index);
	delta = q - want;
	for (int i = 0; i < NA; i++)
		m[i] = 0.0f;
	m[0] = want;
	sum->ce += delta * delta;
	sum->error += fabsf(delta);
	sum->q += q;
	sum->edge += want < l->support.v_min || want > l->support.v_max;
	for (int i = 0; i < NA; i++)
		g[i] = 2.0f * delta * p[i] * (projection_atom(&l->support, i) - q);
}

static void sample_loss(const struct loss *l, int row, const struct host_temp *t)
{
	const struct dqn_dims *d = l->d;
	float scale = l->weight[row] / ((float)d->B * (float)d->D), share = 1.0f / (float)d->D;
	float *g = l->w.g + (int64_t)row * d->D * l->s.atom_row, *gv = l->w.gv + row * l->s.atom_row;
	/* 0, or NaN when return or discount is not finite: the projection's clamps would hide that, and train on an edge */
	float broken = 0.0f * l->ret[row] + 0.0f * l->discount[row];
	struct sample sum = {broken, 0, 0, 0};

	for (int i = 0; i < d->NA; i++)
		gv[i] = 0.0f;
	for (int b = 0; b < d->D; b++, g += l->s.atom_row) {
		int64_t at = ((int64_t)row * d->D + b) * d->NA;
		const float *next = l->w.next + ((int64_t)row * d->D + b) * l->s.atom_row;

		if (d->loss == FH_LOSS_MSE)
			branch_mse(l, row, l->logits + at, next, l->proj + at, t, g, &sum);
		else
			branch_c51(l, row, l->logits + at, next, l->proj + at, t, g, &sum);
		for (int i = 0; i < d->NA; i++) {
			g[i] = (g[i] + broken) * scale;
			gv[i] += g[i];
		}
		if (l->round)
			l->k->round(g, d->NA, l->round, g);
	}
	if (l->round)
		l->k->round(gv, d->NA, l->round, gv);
	l->ce[row] = sum.ce * share;
	l->error[row] = sum.error > 0.0f ? sum.error * share : 0.0f;
	l->w.taken_q[row] = sum.q * share;
	l->w.edge[row] = sum.edge * share;
}

static void loss_task(void *ctx, int chunk, int member)
{
	const struct loss *l = ctx;
	struct host_temp t = host_temp_at(l->d, l->w.temp + (size_t)member * l->s.temp_bytes);
	int end = (chunk + 1) * PANEL < l->d->B ? (chunk + 1) * PANEL : l->d->B;

	for (int i = 0; i < l->d->NA; i++)
		t.p[l->s.atom_row + i] = (float)i - 0.5f * (float)(l->d->NA - 1);
	for (int row = chunk * PANEL; row < end; row++)
		sample_loss(l, row, &t);
}

int host_dqn_loss(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		struct loss l = {
			.d = d, .k = host_kernels(), .c = c, .w = host_work_at(d, host_tensor(x, T_SCRATCH, p)),
			.s = host_strides(d), .support = projection_make(d->NA, c->v_min, c->v_max), .round = host_round(d),
			.middle = (float)(0.5 * (c->v_min + c->v_max)),
			.weight = host_tensor(x, T_WEIGHT, p), .ret = host_tensor(x, T_R, p),
			.discount = host_tensor(x, T_G, p), .logits = host_tensor(x, T_LOGITS, p),
			.proj = host_tensor(x, T_PROJ, p), .error = host_tensor(x, T_ERROR, p), .ce = host_tensor(x, T_CE, p),
		};
		double sum = 0.0;

		team_run(((struct host_priv *)x->priv)->team, l.s.chunks, loss_task, &l);
		for (int i = 0; i < d->B; i++)
			sum += (double)l.weight[i] * (double)l.ce[i];
		c->loss = sum / d->B;
	}
	return 0;
}
