/* Two execs of one DQN, host and CUDA, over dimensions that a specification cannot ask for, and their comparison.
 *
 * The host's tensors are the reference: the rig fills them, sends them to the device, runs a stage on both and compares
 * what the stage says it writes. */
#ifndef FH_TESTS_GPU_RIG_H
#define FH_TESTS_GPU_RIG_H

#include "tests/unit/golden.h"
#include "gpu/backend.h"
#include "gpu/dqn/dqn.h"
#include "gpu/dqn/model.h"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

static const struct backend *rig_cuda; /* opened once; NULL: no device, tests skip */
static int rig_emulated;               /* it is tests/gpu/emu on this CPU, a thousand times slower than a card */

static int rig_slow;                   /* emulated under a sanitizer: ten times slower again, the largest shapes are left out */

/* How many of something: as many as a card does, or as few as still prove the point where a CPU has to do it. */
#define RIG_MANY(on_card, emulated) (rig_emulated ? (emulated) : (on_card))

struct rig {
	struct dqn_dims d;
	struct plan plan[2];
	struct exec *x[2]; /* host, cuda */
	struct fh_status st;
};

#define RIG_OK(call) do { if ((call) != 0) fail_msg("%s: %s", #call, r->st.text); } while (0)

GOLDEN_UNUSED static int rig_open(void **state)
{
	struct fh_status st = FH_STATUS_INIT;

	(void)state;
	setenv("FH_GPU_POISON", "1", 1);
	if (backend_open("cuda", &rig_cuda, NULL, &st) != 0) {
		rig_cuda = NULL;
		fprintf(stderr, "no CUDA device: %s\n", st.text);
		return 0;
	}
	struct device_info info;
	if (rig_cuda->info(rig_cuda, &info, &st) != 0) {
		fprintf(stderr, "%s\n", st.text);
		return -1;
	}
	rig_emulated = strstr(info.name, "emulated") != NULL;
	const char *slowdown = getenv("FH_TEST_SLOWDOWN");
	rig_slow = rig_emulated && slowdown && atoi(slowdown) > 1;
	printf("device: %s%s%s\n", info.name, rig_emulated ? ", fewer steps and trials than on a card" : "",
	       rig_slow ? ", without the largest shapes" : "");
	return 0;
}

struct rig_shape { int B, SD, H1, H2, VH, AH, NA, D, A[FH_BRANCH_MAX], N, n, P; int64_t C; int precision, loss; };

GOLDEN_UNUSED static void rig_make(struct rig *r, const struct rig_shape *s)
{
	struct fh_spec spec;
	static const struct fh_status none = FH_STATUS_INIT;

	memset(r, 0, sizeof *r);
	r->st = none;
	spec_defaults(&spec);
	spec.net.trunk1 = s->H1, spec.net.trunk2 = s->H2, spec.net.value_hidden = s->VH, spec.net.advantage_hidden = s->AH;
	spec.net.atoms = s->NA;
	spec.learn.batch = s->B, spec.learn.n_step = s->n, spec.learn.loss = s->loss;
	spec.replay.capacity = s->C;
	spec.collect.envs = s->N;
	spec.run.population = s->P;
	spec.run.precision = s->precision;
	for (int b = 0; b < 2; b++) {
		struct plan *p = &r->plan[b];

		spec.run.device = b ? FH_DEVICE_CUDA : FH_DEVICE_HOST;
		spec_resolve(&spec, (enum fh_device)spec.run.device);
		spec.run.precision = s->precision;
		RIG_OK(dqn_dims_make(&spec, s->SD, s->A, s->D, &r->d, &r->st));
		memset(p, 0, sizeof *p);
		p->program = &dqn_program;
		p->spec = spec;
		p->population = s->P;
		dqn_plan_tensors(p, &r->d, (enum fh_device)spec.run.device);
		RIG_OK(plan_place(p, &r->st));
		const struct backend *be = b ? rig_cuda : backend_host();
		RIG_OK(be->exec_new(be, p, &r->x[b], &r->st));
	}
}

GOLDEN_UNUSED static void rig_free(struct rig *r)
{
	for (int b = 0; b < 2; b++)
		if (r->x[b])
			r->x[b]->backend->exec_free(r->x[b]);
}

GOLDEN_UNUSED static void *rig_host(struct rig *r, int tensor, int trial)
{
	return exec_at(r->x[0], tensor, trial);
}

/* Tensors that mean the same on both sides. */
GOLDEN_UNUSED static int rig_shared(int tensor)
{
	return tensor != T_SCRATCH && tensor != T_ENV_STAT && tensor != T_ENV_READY;
}

GOLDEN_UNUSED static void rig_send(struct rig *r)
{
	for (int t = 0; t < DQN_TENSORS; t++)
		if (rig_shared(t))
			RIG_OK(r->x[1]->backend->write(r->x[1], t, 0, r->x[0]->tensor[t], r->plan[0].tensor[t].bytes, &r->st));
}

GOLDEN_UNUSED static void rig_stage(struct rig *r, int stage)
{
	for (int b = 0; b < 2; b++)
		RIG_OK(r->x[b]->backend->stage(r->x[b], &dqn_stage_table[stage], &r->st));
}

static double rig_value(const void *p, enum st_dtype t, int64_t i)
{
	switch (t) {
	case ST_F32: return ((const float *)p)[i];
	case ST_F64: return ((const double *)p)[i];
	case ST_I32: return ((const int32_t *)p)[i];
	case ST_U8: return ((const uint8_t *)p)[i];
	case ST_BF16: {
		uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
		float f;

		memcpy(&f, &u, 4);
		return f;
	}
	default: fail_msg("dtype %d", t); return 0;
	}
}

/* ‖device − host‖/‖host‖ over a tensor (‖device‖ itself where the host's is zero); NaN on either side fails. */
GOLDEN_UNUSED static double rig_error(struct rig *r, int tensor)
{
	const struct plan_tensor *t = &r->plan[0].tensor[tensor];
	const int64_t n = t->elements * r->plan[0].population;
	void *dev = malloc(t->bytes);
	double diff = 0, norm = 0;

	assert_non_null(dev);
	RIG_OK(r->x[1]->backend->read(r->x[1], tensor, 0, dev, t->bytes, &r->st));
	for (int64_t i = 0; i < n; i++) {
		double h = rig_value(r->x[0]->tensor[tensor], t->desc.dtype, i), d = rig_value(dev, t->desc.dtype, i);

		if (h != h || d != d) {
			free(dev);
			fail_msg("%s[%lld]: host %g, device %g", t->name, (long long)i, h, d);
		}
		diff += (h - d) * (h - d);
		norm += h * h;
	}
	free(dev);
	return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

GOLDEN_UNUSED static void rig_within(struct rig *r, int tensor, double limit)
{
	double e = rig_error(r, tensor);

	if (e <= limit)
		return;
	const struct plan_tensor *t = &r->plan[0].tensor[tensor];
	void *dev = malloc(t->bytes);
	int64_t worst = 0;
	double most = -1;
	RIG_OK(r->x[1]->backend->read(r->x[1], tensor, 0, dev, t->bytes, &r->st));
	for (int64_t i = 0; i < t->elements * r->plan[0].population; i++) {
		double diff = fabs(rig_value(dev, t->desc.dtype, i) - rig_value(r->x[0]->tensor[tensor], t->desc.dtype, i));

		if (diff > most)
			most = diff, worst = i;
	}
	fail_msg("%s: relative error %.3g, at most %.3g; worst at %lld of trial %lld: host %.17g, device %.17g", t->name, e, limit,
		 (long long)(worst % t->elements), (long long)(worst / t->elements), rig_value(r->x[0]->tensor[tensor], t->desc.dtype, worst),
		 rig_value(dev, t->desc.dtype, worst));
}

/* Bit for bit. */
GOLDEN_UNUSED static void rig_equal(struct rig *r, int tensor)
{
	const struct plan_tensor *t = &r->plan[0].tensor[tensor];
	const size_t size = st_dtype_size(t->desc.dtype);
	unsigned char *dev = malloc(t->bytes);
	const unsigned char *host = r->x[0]->tensor[tensor];
	int64_t wrong = 0, first = -1;

	assert_non_null(dev);
	RIG_OK(r->x[1]->backend->read(r->x[1], tensor, 0, dev, t->bytes, &r->st));
	for (int64_t i = 0; i < t->elements * r->plan[0].population; i++)
		if (memcmp(dev + i * size, host + i * size, size) != 0 && wrong++ == 0)
			first = i;
	if (wrong)
		fail_msg("%s: %lld of %lld elements differ, the first at %lld: host %.17g, device %.17g", t->name, (long long)wrong,
			 (long long)(t->elements * r->plan[0].population), (long long)first,
			 rig_value(host, t->desc.dtype, first), rig_value(dev, t->desc.dtype, first));
	free(dev);
}

/* Takes the device's values into the host's tensor: the next stage then starts from equal inputs. */
GOLDEN_UNUSED static void rig_fetch(struct rig *r, int tensor)
{
	RIG_OK(r->x[1]->backend->read(r->x[1], tensor, 0, r->x[0]->tensor[tensor], r->plan[0].tensor[tensor].bytes, &r->st));
}

/* `count` runs on the device, in one launch each or layer by layer (FH_GPU_WIDE), up to their end. */
GOLDEN_UNUSED static void rig_run_wide(struct rig *r, const char *wide, const struct run *run, int count)
{
	setenv("FH_GPU_WIDE", wide, 1);
	for (int k = 0; k < count; k++)
		RIG_OK(r->x[1]->backend->run(r->x[1], run, 1, &r->st));
	RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
	unsetenv("FH_GPU_WIDE");
}
/* The same bits in these tensors of two devices. */
GOLDEN_UNUSED static void rig_equal_devices(struct rig *a, struct rig *b, const int *tensor, unsigned n)
{
	for (unsigned k = 0; k < n; k++) {
		rig_fetch(b, tensor[k]);
		memcpy(a->x[0]->tensor[tensor[k]], b->x[0]->tensor[tensor[k]], a->plan[0].tensor[tensor[k]].bytes);
		rig_equal(a, tensor[k]);
	}
}

static float rig_uniform(uint64_t *n) { return philox_uniform(philox_word(99, 200, 0, (*n)++)); }
static float rig_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, 4);
	u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
	memcpy(&x, &u, 4);
	return x;
}
static void rig_state(struct rig *r, int tensor, int trial, int64_t i, float v)
{
	if (r->d.precision == FH_PRECISION_BF16) {
		v = rig_bf16(v);
		uint32_t u;

		memcpy(&u, &v, 4);
		((uint16_t *)rig_host(r, tensor, trial))[i] = (uint16_t)(u >> 16);
	} else {
		((float *)rig_host(r, tensor, trial))[i] = v;
	}
}
static void rig_low(struct rig *r, int from, int to, int trial)
{
	const float *p = rig_host(r, from, trial);
	uint16_t *q = rig_host(r, to, trial);

	if (r->d.precision != FH_PRECISION_BF16)
		return;
	for (int64_t i = 0; i < r->d.params; i++) {
		float v = rig_bf16(p[i]);
		uint32_t u;

		memcpy(&u, &v, 4);
		q[i] = (uint16_t)(u >> 16);
	}
}

/* A learner in the middle of a run: parameters, a target that differs, random transitions, a tree with empty leaves. */
GOLDEN_UNUSED static void rig_fill(struct rig *r, uint64_t seed)
{
	const struct dqn_dims *d = &r->d;
	uint64_t n = seed * 1000003u;

	for (int t = 0; t < DQN_TENSORS; t++)
		if (rig_shared(t))
			memset(r->x[0]->tensor[t], 0, r->plan[0].tensor[t].bytes);
	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = rig_host(r, T_CLOCK, p);
		struct fh_split train = {0, 4000};
		float *tree = rig_host(r, T_TREE, p);
		int64_t filled = d->C * 3 / 4;

		dqn_clock_init(&r->plan[0].spec, train, p, c);
		c->seed = seed + (uint64_t)p;
		c->v_min = -3, c->v_max = 2;
		c->stored = d->C + filled; /* the ring has wrapped */
		c->largest = 2.f;
		c->step = 7, c->applied = 5, c->max_grad_norm = 0.1;
		dqn_init_params(d, seed + (uint64_t)p, rig_host(r, T_PARAM, p));
		dqn_init_params(d, seed + 1000 + (uint64_t)p, rig_host(r, T_TARGET, p));
		rig_low(r, T_PARAM, T_PARAM_LP, p);
		rig_low(r, T_TARGET, T_TARGET_LP, p);
		for (int64_t i = 0; i < d->C * d->SD; i++) {
			rig_state(r, T_RP_S, p, i, 4 * rig_uniform(&n) - 2);
			rig_state(r, T_RP_S2, p, i, 4 * rig_uniform(&n) - 2);
		}
		for (int64_t i = 0; i < d->C; i++) {
			for (int b = 0; b < d->D; b++)
				((uint8_t *)rig_host(r, T_RP_A, p))[i * d->D + b] = (uint8_t)(rig_uniform(&n) * d->A[b]);
			((float *)rig_host(r, T_RP_R, p))[i] = 3 * rig_uniform(&n) - 1.5f;
			((float *)rig_host(r, T_RP_G, p))[i] = rig_uniform(&n) < 0.1f ? 0 : 0.97f;
			tree[d->C + i] = rig_uniform(&n) < 0.1f ? 0 : rig_uniform(&n);
		}
		tree_rebuild(tree, d->C);
	}
	rig_send(r);
}

/* A random walk of T bars (close to close up to +-`move`/2), on both execs. Release with market_unref(). */
GOLDEN_UNUSED static struct market *rig_market(struct rig *r, int T, double move)
{
	int64_t *ts = malloc(sizeof *ts * (size_t)T);
	double *x = malloc(sizeof *x * 5 * (size_t)T), *o = x, *h = o + T, *l = h + T, *c = l + T, *v = c + T, price = 100;
	const struct market_bars bars = {T, ts, o, h, l, c, v};
	struct market *m;
	uint64_t draw = 77;

	for (int t = 0; t < T; t++) {
		ts[t] = ((int64_t)t + t / 97 * 2880) * 60000000000; /* minutes, with a weekend now and then */
		o[t] = price;
		price *= 1 + move * ((double)rig_uniform(&draw) - 0.5);
		c[t] = price;
		h[t] = (o[t] > c[t] ? o[t] : c[t]) * (1 + 0.2 * move * (double)rig_uniform(&draw));
		l[t] = (o[t] < c[t] ? o[t] : c[t]) * (1 - 0.2 * move * (double)rig_uniform(&draw));
		v[t] = 1 + 100 * (double)rig_uniform(&draw);
	}
	static const int64_t roll[] = {200, 511, 1400, 2222}; /* contracts change: of account where env_config.roll_on says so */
	RIG_OK(market_build_rolls(&bars, 0.01, roll, T > 2222 ? 4 : 0, &m, &r->st));
	for (int b = 0; b < 2; b++)
		RIG_OK(r->x[b]->backend->exec_market(r->x[b], m, &r->st));
	free(ts);
	free(x);
	return m;
}

/* Environments at the start of their first episodes over the whole market, an empty replay, exploration eps. Host side
 * only: rig_send() follows. */
GOLDEN_UNUSED static void rig_environments(struct rig *r, const struct market *m, const struct env_config *config, double eps)
{
	const struct dqn_dims *d = &r->d;

	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *k = rig_host(r, T_CLOCK, p);
		struct env_config *cfg = rig_host(r, T_CONFIG, p);

		k->train_begin = 0, k->train_end = (int32_t)m->bars, k->stored = 0, k->vector_step = 0;
		k->eps_start = k->eps_end = eps, k->eps_steps = 10;
		*cfg = *config;
		memset(rig_host(r, T_TREE, p), 0, r->plan[0].tensor[T_TREE].stride);
		for (int e = 0; e < d->N; e++) {
			struct env_state start;
			float *obs = (float *)rig_host(r, T_OBS, p) + (size_t)e * FH_STATE_DIM;

			env_start(&start, cfg, env_start_bar(k->seed, (uint32_t)e, 0, 0, (int32_t)m->bars));
			((double *)rig_host(r, T_ENV_CASH, p))[e] = ((double *)rig_host(r, T_ENV_EQUITY, p))[e] =
				((double *)rig_host(r, T_ENV_PEAK, p))[e] = cfg->initial_cash;
			((int32_t *)rig_host(r, T_ENV_T, p))[e] = start.t;
			memcpy(obs, m->feature + (size_t)start.t * FH_MARKET_FEATURES, sizeof(float) * FH_MARKET_FEATURES);
			env_features(&start, cfg, m->close[start.t], 1, ENV_STEPS_OWN, obs + FH_MARKET_FEATURES);
		}
	}
}

#endif
