/* An exec of the host backend for any dimensions, without a specification or a market: the learner's stages run on it
 * one by one. Also the golden files' parameter groups and the tensor names of the network. */
#ifndef FH_TESTS_LEARNER_RIG_H
#define FH_TESTS_LEARNER_RIG_H

#include "golden.h"

#include "gpu/dqn/dqn.h"
#include "gpu/host/stages.h"
#include "gpu/host/threads.h"
#include "gpu/host/work.h"

struct rig {
	struct dqn_dims d;
	struct plan *plan;
	struct exec x;
	struct host_priv priv;
};

struct rig_shape { int SD, H1, H2, VH, AH, NA, A[DQN_BRANCHES], B, P, precision, loss; int64_t C; };

GOLDEN_UNUSED static struct dqn_dims rig_dims(const struct rig_shape *s)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec spec;
	struct dqn_dims d;

	memset(&spec, 0, sizeof(spec));
	spec.run.population = s->P;
	spec.run.precision = s->precision;
	spec.learn.batch = s->B;
	spec.learn.n_step = 1;
	spec.learn.loss = s->loss;
	spec.net.trunk1 = s->H1;
	spec.net.trunk2 = s->H2;
	spec.net.value_hidden = s->VH;
	spec.net.advantage_hidden = s->AH;
	spec.net.atoms = s->NA;
	spec.collect.envs = s->B; /* POLICY takes as many states as a batch has */
	spec.replay.capacity = s->C;
	if (dqn_dims_make(&spec, s->SD, s->A, DQN_BRANCHES, &d, &st))
		fail_msg("%s", st.text);
	return d;
}

/* Elements of one trial and the type of every tensor that the learner touches. */
GOLDEN_UNUSED static int64_t rig_tensor(const struct dqn_dims *d, int t, enum st_dtype *type)
{
	int bf16 = d->precision == FH_PRECISION_BF16;

	*type = ST_F32;
	switch (t) {
	case T_PARAM: case T_TARGET: case T_M: case T_V: case T_GRAD:
		return d->params;
	case T_PARAM_LP: case T_TARGET_LP:
		*type = ST_BF16;
		return bf16 ? d->params : 1;
	case T_CLOCK:
		*type = ST_U8;
		return (int64_t)sizeof(struct dqn_clock);
	case T_ACCUM:
		*type = ST_F64;
		return DQN_ACC_COUNT;
	case T_RP_S: case T_RP_S2:
		*type = bf16 ? ST_BF16 : ST_F32;
		return d->C * d->SD;
	case T_RP_A:
		*type = ST_U8;
		return d->C * d->D;
	case T_RP_R: case T_RP_G:
		return d->C;
	case T_TREE:
		return 2 * d->C;
	case T_OBS:
		return (int64_t)d->N * d->SD;
	case T_ACTION:
		*type = ST_I32;
		return (int64_t)d->N * d->D;
	case T_INDEX:
		*type = ST_I32;
		return d->B;
	case T_A:
		*type = ST_I32;
		return (int64_t)d->B * d->D;
	case T_S: case T_S2:
		return (int64_t)d->B * d->SD;
	case T_WEIGHT: case T_R: case T_G: case T_ERROR: case T_CE:
		return d->B;
	case T_LOGITS: case T_PROJ:
		return (int64_t)d->B * d->D * d->NA;
	case T_SCRATCH:
		*type = ST_U8;
		return (int64_t)dqn_scratch_bytes(d, FH_DEVICE_HOST);
	default:
		return 0;
	}
}

/* A trial of tensor t. */
GOLDEN_UNUSED static void *rig_at(struct rig *r, int t, int trial)
{
	return host_tensor(&r->x, t, trial);
}

GOLDEN_UNUSED static struct dqn_clock *rig_clock(struct rig *r, int trial)
{
	return rig_at(r, T_CLOCK, trial);
}

/* Scratch begins as NaN and odd numbers: what is read before it is written shows. */
GOLDEN_UNUSED static struct rig *rig_new(struct dqn_dims d, int threads)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->plan = calloc(1, sizeof(*r->plan));
	assert_non_null(r->plan);
	r->d = d;
	r->x.plan = r->plan;
	r->x.dims = &r->d;
	r->x.priv = &r->priv;
	r->plan->population = d.P;
	for (int t = 0; t < DQN_TENSORS; t++) {
		enum st_dtype type;
		int64_t n = rig_tensor(&d, t, &type);
		size_t bytes = (size_t)n * st_dtype_size(type) * (size_t)d.P;
		void *p = NULL;

		r->plan->tensor[t].elements = n;
		r->plan->tensor[t].desc.dtype = type;
		if (!bytes)
			continue;
		assert_int_equal(posix_memalign(&p, 256, bytes), 0);
		memset(p, t == T_SCRATCH || t == T_GRAD || t == T_PROJ || t == T_LOGITS ? 0xFF : 0, bytes);
		r->x.tensor[t] = p;
	}
	for (int p = 0; p < d.P; p++) { /* the gradient's padding is zero from the start of a job */
		struct dqn_clock *c = rig_clock(r, p);

		memset(rig_at(r, T_GRAD, p), 0, (size_t)d.params * sizeof(float));
		c->lr0 = c->lr_end = 1e-3;
		c->max_grad_norm = 1.0;
		c->tau = 0.005;
		c->alpha = 0.6;
		c->beta0 = 0.4;
		c->beta_end = 1.0;
		c->planned = 1000;
		c->largest = 1.0f;
		c->v_min = -10.0;
		c->v_max = 10.0;
	}
	assert_int_equal(team_new(threads, &r->priv.team, NULL), 0);
	return r;
}

GOLDEN_UNUSED static void rig_free(struct rig *r)
{
	team_free(r->priv.team);
	for (int t = 0; t < DQN_TENSORS; t++)
		free(r->x.tensor[t]);
	free(r->plan);
	free(r);
}

GOLDEN_UNUSED static void rig_stage(struct rig *r, int stage)
{
	struct fh_status st = FH_STATUS_INIT;

	if (host_dqn_stages()[stage](&r->x, &st))
		fail_msg("stage %d: %s", stage, st.text);
}

/* first … last in the order of enum dqn_stage. */
GOLDEN_UNUSED static void rig_stages(struct rig *r, int first, int last)
{
	for (int s = first; s <= last; s++)
		rig_stage(r, s);
}

/* ---------------------------------------------------------------- names */

/* "s1", "s2", "v1", "v2", "b01", "b02", … of layer i. */
GOLDEN_UNUSED static const char *layer_name(int i, char name[16])
{
	static const char *const trunk[] = {"s1", "s2", "v1", "v2"};

	if (i < DQN_B0)
		snprintf(name, 16, "%s", trunk[i]);
	else
		snprintf(name, 16, "b%d%d", (i - DQN_B0) / 2, 1 + (i - DQN_B0) % 2);
	return name;
}

/* Tensor t (two a layer: weight, bias) of the flat buffer: its golden name behind `group`, offset and length. */
GOLDEN_UNUSED static void tensor_of(const struct dqn_dims *d, int t, const char *group, char name[64], int64_t *at, int64_t *n)
{
	const struct dqn_layer *l = &d->layer[t / 2];
	char layer[16];

	snprintf(name, 64, "%s.%s.%s", group, layer_name(t / 2, layer), t % 2 ? "b" : "w");
	*at = t % 2 ? l->b : l->w;
	*n = t % 2 ? l->out : (int64_t)l->out * l->in;
}

/* Golden group (F32, unpadded) -> flat. */
GOLDEN_UNUSED static void load_group(const struct st_file *f, const struct dqn_dims *d, const char *group, float *flat)
{
	memset(flat, 0, (size_t)d->params * sizeof(*flat));
	for (int t = 0; t < 2 * d->layers; t++) {
		int64_t at, n, have;
		char name[64];
		const float *v;

		tensor_of(d, t, group, name, &at, &n);
		v = golden_f32(f, name, &have);
		assert_int_equal(have, n);
		memcpy(flat + at, v, (size_t)n * sizeof(*v));
	}
}

/* Dimensions out of a golden file's metadata. */
GOLDEN_UNUSED static struct rig_shape golden_shape(const struct st_file *f, int precision, int loss)
{
	struct rig_shape s = {
		.SD = (int)golden_int(f, "SD"), .H1 = (int)golden_int(f, "H1"), .H2 = (int)golden_int(f, "H2"),
		.VH = (int)golden_int(f, "VH"), .AH = (int)golden_int(f, "AH"), .NA = (int)golden_int(f, "NA"),
		.B = (int)golden_int(f, "B"), .P = 1, .precision = precision, .loss = loss, .C = 512,
	};

	if (sscanf(golden_meta(f, "A"), "%d,%d,%d", &s.A[0], &s.A[1], &s.A[2]) != 3)
		fail_msg("A of a golden file is not three numbers");
	return s;
}

#endif
