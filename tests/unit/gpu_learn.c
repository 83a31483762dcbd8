/* The learn step against golden steps: losses, gradients, clipping, moments, parameters and target after one and five
 * updates, in every precision; and what must hold of it whatever the machine: same bits for any number of threads and
 * for a trial alone or among others. */
#include "learner_rig.h"

/* Limits of gpu/MATH.md, section 10. */
struct limits { double forward, grad, whole, param, move; };
static const struct limits f32_limits = {1e-5, 1e-4, 1e-4, 1e-4, 1e-3};
static const struct limits tf32_small = {2e-3, 5e-3, 5e-3, HUGE_VAL, HUGE_VAL};
static const struct limits bf16_small = {2e-2, 5e-2, 5e-2, HUGE_VAL, HUGE_VAL};
static const struct limits tf32_full = {2e-3, 1e-1, 1.5e-2, HUGE_VAL, HUGE_VAL};
static const struct limits bf16_full = {2e-2, 2e-1, 5e-2, HUGE_VAL, HUGE_VAL};

static const char *batch_name(int i, const char *what)
{
	static char name[64];

	snprintf(name, sizeof(name), "batch%d.%s", i, what);
	return name;
}

static void load_batch(struct rig *r, const struct st_file *f, int i)
{
	const struct dqn_dims *d = &r->d;
	size_t states = (size_t)d->B * d->SD * sizeof(float);

	memcpy(rig_at(r, T_S, 0), golden_f32(f, batch_name(i, "s"), NULL), states);
	memcpy(rig_at(r, T_S2, 0), golden_f32(f, batch_name(i, "s2"), NULL), states);
	memcpy(rig_at(r, T_A, 0), golden_i32(f, batch_name(i, "a"), NULL), (size_t)d->B * d->D * sizeof(int32_t));
	memcpy(rig_at(r, T_R, 0), golden_f32(f, batch_name(i, "R"), NULL), (size_t)d->B * sizeof(float));
	memcpy(rig_at(r, T_G, 0), golden_f32(f, batch_name(i, "G"), NULL), (size_t)d->B * sizeof(float));
	memcpy(rig_at(r, T_WEIGHT, 0), golden_f32(f, batch_name(i, "w"), NULL), (size_t)d->B * sizeof(float));
}

static struct rig *golden_rig(const struct st_file *f, int precision, int threads)
{
	struct rig_shape s = golden_shape(f, precision, FH_LOSS_C51);
	struct rig *r = rig_new(rig_dims(&s), threads);
	struct dqn_clock *c = rig_clock(r, 0);

	load_group(f, &r->d, "param", rig_at(r, T_PARAM, 0));
	load_group(f, &r->d, "target", rig_at(r, T_TARGET, 0));
	c->lr0 = golden_real(f, "lr");
	c->max_grad_norm = golden_real(f, "max_grad_norm");
	c->tau = golden_real(f, "tau");
	c->v_min = golden_real(f, "v_min");
	c->v_max = golden_real(f, "v_max");
	return r;
}

static void within_f64(const float *out, const struct st_file *f, const char *name, double limit)
{
	int64_t n;
	double *ref = golden_double(f, name, &n);

	assert_within(relative_error_f32(out, ref, n), limit, name);
	free(ref);
}

/* Losses of batch i. */
static void check_losses(struct rig *r, const struct st_file *f, int i, const struct limits *lim)
{
	const struct dqn_dims *d = &r->d;
	const int32_t *astar = golden_i32(f, batch_name(i, "astar"), NULL);
	struct host_work w = host_work_at(d, rig_at(r, T_SCRATCH, 0));
	double loss = golden_f64(f, batch_name(i, "loss"), NULL)[0], norm = golden_f64(f, batch_name(i, "norm"), NULL)[0];

	assert_within(fabs(rig_clock(r, 0)->loss - loss) / loss, lim->forward, "loss");
	assert_within(fabs(rig_clock(r, 0)->grad_norm - norm) / norm, lim->grad, "norm");
	within_f64(rig_at(r, T_CE, 0), f, batch_name(i, "ce"), lim->forward);
	within_f64(rig_at(r, T_ERROR, 0), f, batch_name(i, "kl"), lim->forward);
	for (int j = 0; j < d->B * d->D; j++)
		assert_int_equal(w.astar[j], astar[j]);
}

/* Gradient per tensor and as a whole. `scaled`: group holds it after clipping. */
static void check_gradient(struct rig *r, const struct st_file *f, const char *group, double scale, const struct limits *lim)
{
	const float *grad = rig_at(r, T_GRAD, 0);
	double diff = 0.0, size = 0.0;

	for (int t = 0; t < 2 * r->d.layers; t++) {
		int64_t at, n;
		char name[64];
		double *ref, *out;

		tensor_of(&r->d, t, group, name, &at, &n);
		ref = golden_double(f, name, NULL);
		out = malloc((size_t)n * sizeof(*out));
		assert_non_null(out);
		for (int64_t i = 0; i < n; i++) {
			out[i] = grad[at + i] * scale;
			diff += (out[i] - ref[i]) * (out[i] - ref[i]);
			size += ref[i] * ref[i];
		}
		assert_within(relative_error(out, ref, n), lim->grad, name);
		free(out);
		free(ref);
	}
	assert_within(sqrt(diff / size), lim->whole, "the whole gradient");
}

/* A tensor of `what` against the golden one, which holds all entries or those at pick.*, then with the norm beside it. */
static void check_tensor(struct rig *r, const struct st_file *f, int t, int after, const char *what, int tensor, const float *before,
			 double limit, double move)
{
	char group[64], name[64], key[64], pick_name[64];
	const float *out = rig_at(r, tensor, 0);
	double *ref, diff = 0.0, size = 0.0, moved = 0.0, want_moved = 0.0;
	const int32_t *pick = NULL;
	int64_t at, n, have;

	snprintf(group, sizeof(group), "after%d.%s", after, what);
	tensor_of(&r->d, t, group, name, &at, &n);
	tensor_of(&r->d, t, "pick", pick_name, &at, &n);
	ref = golden_double(f, name, &have);
	if (have != n)
		pick = golden_i32(f, pick_name, NULL);
	for (int64_t i = 0; i < have; i++) {
		int64_t p = at + (pick ? pick[i] : i);

		diff += (out[p] - ref[i]) * (out[p] - ref[i]);
		size += ref[i] * ref[i];
		if (before) {
			double want = ref[i] - before[p], got = (double)out[p] - before[p];

			moved += (got - want) * (got - want);
			want_moved += want * want;
		}
	}
	assert_within(sqrt(diff / size), limit, name);
	if (before && want_moved > 0.0)
		assert_within(sqrt(moved / want_moved), move, name);
	snprintf(group, sizeof(group), "after%d.%.16s_norm", after, what);
	tensor_of(&r->d, t, group, key, &at, &n);
	if (pick) {
		double norm = 0.0, want = golden_f64(f, key, NULL)[0];

		for (int64_t i = 0; i < n; i++)
			norm += (double)out[at + i] * out[at + i];
		assert_within(fabs(sqrt(norm) - want) / want, limit, key);
	}
	free(ref);
}

static void check_after(struct rig *r, const struct st_file *f, int after, const float *param0, const float *target0)
{
	for (int t = 0; t < 2 * r->d.layers; t++) {
		check_tensor(r, f, t, after, "param", T_PARAM, param0, 1e-4, 1e-3);
		check_tensor(r, f, t, after, "target", T_TARGET, target0, 1e-4, 1e-3);
		check_tensor(r, f, t, after, "m", T_M, NULL, 1e-3, 0);
		check_tensor(r, f, t, after, "v", T_V, NULL, 1e-3, 0);
	}
}

static void learn_batch(struct rig *r, const struct st_file *f, int i)
{
	rig_stage(r, STAGE_ADVANCE);
	load_batch(r, f, i);
	rig_stages(r, STAGE_FORWARD, STAGE_ADAM);
}

static float *copy(const float *v, int64_t n)
{
	float *c = malloc((size_t)n * sizeof(*c));

	assert_non_null(c);
	memcpy(c, v, (size_t)n * sizeof(*c));
	return c;
}

static void five_steps(const char *file, const struct limits *lim, int precision)
{
	struct st_file *f = golden_open(file);
	struct rig *r = golden_rig(f, precision, 2);
	float *param0 = copy(rig_at(r, T_PARAM, 0), r->d.params), *target0 = copy(rig_at(r, T_TARGET, 0), r->d.params);
	int exact = precision == FH_PRECISION_F32;

	learn_batch(r, f, 0);
	check_losses(r, f, 0, lim);
	check_gradient(r, f, "grad", 1.0, lim);
	if (exact && st_find(f, "clipped.s1.w"))
		check_gradient(r, f, "clipped", rig_clock(r, 0)->grad_scale, lim);
	if (exact)
		check_after(r, f, 1, param0, target0);
	rig_stage(r, STAGE_COUNT);
	for (int i = 1; i < 5; i++) {
		learn_batch(r, f, i);
		if (exact)
			check_losses(r, f, i, lim);
		rig_stage(r, STAGE_COUNT);
	}
	if (exact)
		check_after(r, f, 5, param0, target0);
	assert_int_equal(rig_clock(r, 0)->applied, 5);
	free(param0);
	free(target0);
	rig_free(r);
	st_close(f);
}

static void small_net_f32(void **state) { (void)state; five_steps("step_small", &f32_limits, FH_PRECISION_F32); }
static void small_net_tf32(void **state) { (void)state; five_steps("step_small", &tf32_small, FH_PRECISION_TF32); }
static void small_net_bf16(void **state) { (void)state; five_steps("step_small", &bf16_small, FH_PRECISION_BF16); }
static void default_net_f32(void **state) { (void)state; five_steps("step_full", &f32_limits, FH_PRECISION_F32); }
static void default_net_tf32(void **state) { (void)state; five_steps("step_full", &tf32_full, FH_PRECISION_TF32); }
static void default_net_bf16(void **state) { (void)state; five_steps("step_full", &bf16_full, FH_PRECISION_BF16); }

/* T_LOGITS and T_PROJ of batch 0 against the full tensors of the golden file. */
static void taken_logits_and_targets(void **state)
{
	struct st_file *f = golden_open("step_small");
	struct rig *r = golden_rig(f, FH_PRECISION_F32, 1);
	const struct dqn_dims *d = &r->d;
	double diff = 0.0, size = 0.0;
	const int32_t *a;

	(void)state;
	learn_batch(r, f, 0);
	a = rig_at(r, T_A, 0);
	for (int b = 0; b < d->D; b++) {
		char name[32];
		const double *want;

		snprintf(name, sizeof(name), "logits%d", b);
		want = golden_f64(f, name, NULL);
		for (int j = 0; j < d->B; j++)
			for (int i = 0; i < d->NA; i++) {
				double ref = want[((int64_t)j * d->A[b] + a[j * d->D + b]) * d->NA + i];
				double out = ((float *)rig_at(r, T_LOGITS, 0))[((int64_t)j * d->D + b) * d->NA + i];

				diff += (out - ref) * (out - ref);
				size += ref * ref;
			}
	}
	assert_within(sqrt(diff / size), 1e-5, "logits of taken actions");
	within_f64(rig_at(r, T_PROJ, 0), f, "batch0.m", 1e-5);
	for (int j = 0; j < d->B * d->D; j++) {
		double sum = 0.0;

		for (int i = 0; i < d->NA; i++)
			sum += ((float *)rig_at(r, T_PROJ, 0))[(int64_t)j * d->NA + i];
		assert_within(fabs(sum - 1.0), 1e-6, "mass of a target");
	}
	rig_free(r);
	st_close(f);
}

static void mse_step(void **state)
{
	struct st_file *f = golden_open("mse");
	struct rig_shape s = golden_shape(f, FH_PRECISION_F32, FH_LOSS_MSE);
	struct rig *r = rig_new(rig_dims(&s), 2);
	const struct dqn_dims *d = &r->d;
	struct dqn_clock *c = rig_clock(r, 0);
	size_t states = (size_t)d->B * d->SD * sizeof(float), row = (size_t)d->B * sizeof(float);
	const int32_t *astar = golden_i32(f, "astar", NULL);
	const double *y = golden_f64(f, "y", NULL);
	double loss = golden_f64(f, "loss", NULL)[0], norm = golden_f64(f, "norm", NULL)[0];

	(void)state;
	load_group(f, d, "param", rig_at(r, T_PARAM, 0));
	load_group(f, d, "target", rig_at(r, T_TARGET, 0));
	c->v_min = golden_real(f, "v_min");
	c->v_max = golden_real(f, "v_max");
	rig_stage(r, STAGE_ADVANCE);
	memcpy(rig_at(r, T_S, 0), golden_f32(f, "s", NULL), states);
	memcpy(rig_at(r, T_S2, 0), golden_f32(f, "s2", NULL), states);
	memcpy(rig_at(r, T_A, 0), golden_i32(f, "a", NULL), (size_t)d->B * d->D * sizeof(int32_t));
	memcpy(rig_at(r, T_R, 0), golden_f32(f, "R", NULL), row);
	memcpy(rig_at(r, T_G, 0), golden_f32(f, "G", NULL), row);
	memcpy(rig_at(r, T_WEIGHT, 0), golden_f32(f, "w", NULL), row);
	rig_stages(r, STAGE_FORWARD, STAGE_NORM);
	assert_within(fabs(c->loss - loss) / loss, 1e-5, "loss");
	assert_within(fabs(c->grad_norm - norm) / norm, 1e-4, "norm");
	within_f64(rig_at(r, T_ERROR, 0), f, "ce", 1e-5);
	for (int j = 0; j < d->B * d->D; j++) {
		assert_int_equal(host_work_at(d, rig_at(r, T_SCRATCH, 0)).astar[j], astar[j]);
		assert_within(fabs(((float *)rig_at(r, T_PROJ, 0))[(int64_t)j * d->NA] - y[j]), 1e-5, "y");
	}
	check_gradient(r, f, "grad", 1.0, &f32_limits);
	rig_free(r);
	st_close(f);
}

/* ---------------------------------------------------------------- same bits */

static const struct rig_shape odd_shape = { /* nothing in it is a multiple of a vector or a chunk */
	.SD = 11, .H1 = 37, .H2 = 29, .VH = 21, .AH = 19, .NA = 13, .A = {5, 3, 2}, .B = 75, .P = 1,
	.precision = FH_PRECISION_F32, .loss = FH_LOSS_C51, .C = 256,
};

/* Replay and network of one trial out of its seed. */
static void fill_trial(struct rig *r, int p, uint64_t seed)
{
	const struct dqn_dims *d = &r->d;
	struct dqn_clock *c = rig_clock(r, p);
	float *tree = rig_at(r, T_TREE, p), *s = rig_at(r, T_RP_S, p), *s2 = rig_at(r, T_RP_S2, p);
	uint32_t x = (uint32_t)seed * 2654435761u + 1;

	dqn_init_params(d, seed, rig_at(r, T_PARAM, p));
	dqn_init_params(d, seed + 1, rig_at(r, T_TARGET, p));
	c->seed = seed;
	c->stored = d->C;
#define NEXT() ((x = x * 1664525u + 1013904223u) >> 8)
	for (int64_t i = 0; i < d->C; i++) {
		for (int k = 0; k < d->SD && d->precision != FH_PRECISION_BF16; k++) {
			s[i * d->SD + k] = (float)(NEXT() % 2001) / 1000.0f - 1.0f;
			s2[i * d->SD + k] = (float)(NEXT() % 2001) / 1000.0f - 1.0f;
		}
		for (int k = 0; k < d->SD && d->precision == FH_PRECISION_BF16; k++) {
			((uint16_t *)s)[i * d->SD + k] = (uint16_t)(0x3F00 + NEXT() % 256);
			((uint16_t *)s2)[i * d->SD + k] = (uint16_t)(0xBF00 + NEXT() % 256);
		}
		for (int b = 0; b < d->D; b++)
			((uint8_t *)rig_at(r, T_RP_A, p))[i * d->D + b] = (uint8_t)(NEXT() % (uint32_t)d->A[b]);
		((float *)rig_at(r, T_RP_R, p))[i] = (float)(NEXT() % 401) / 100.0f - 2.0f;
		((float *)rig_at(r, T_RP_G, p))[i] = NEXT() % 6 ? 0.9f : 0.0f;
		tree[d->C + i] = 1.0f;
	}
#undef NEXT
	for (int64_t n = d->C - 1; n >= 1; n--)
		tree[n] = tree[2 * n] + tree[2 * n + 1];
}

static void learn(struct rig *r, int steps)
{
	for (int i = 0; i < steps; i++)
		rig_stages(r, STAGE_ADVANCE, STAGE_COUNT);
}

/* Everything that outlives a step, of trial p of a and trial q of b. */
static void assert_same_state(struct rig *a, int p, struct rig *b, int q)
{
	static const int kept[] = {T_PARAM, T_TARGET, T_M, T_V, T_TREE, T_ACCUM, T_INDEX, T_ERROR, T_PROJ, T_CLOCK};

	for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		const struct plan_tensor *t = &a->plan->tensor[kept[i]];

		if (memcmp(rig_at(a, kept[i], p), rig_at(b, kept[i], q), (size_t)t->elements * st_dtype_size(t->desc.dtype)))
			fail_msg("tensor %d differs", kept[i]);
	}
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
	static const int precision[] = {FH_PRECISION_F32, FH_PRECISION_BF16};

	(void)state;
	for (int i = 0; i < 2; i++)
		for (int loss = FH_LOSS_C51; loss <= FH_LOSS_MSE; loss++) {
			struct rig_shape s = odd_shape;
			struct rig *one;

			s.precision = precision[i];
			s.loss = loss;
			one = rig_new(rig_dims(&s), 1);
			fill_trial(one, 0, 7);
			learn(one, 6);
			assert_int_equal(rig_clock(one, 0)->applied, 6);
			for (int threads = 2; threads <= 3; threads++) {
				struct rig *more = rig_new(rig_dims(&s), threads);

				fill_trial(more, 0, 7);
				learn(more, 6);
				assert_same_state(one, 0, more, 0);
				rig_free(more);
			}
			rig_free(one);
		}
}

static void trials_side_by_side_equal_trials_alone(void **state)
{
	struct rig_shape s = odd_shape;
	struct rig *both;

	(void)state;
	s.P = 2;
	both = rig_new(rig_dims(&s), 2);
	fill_trial(both, 0, 7);
	fill_trial(both, 1, 8);
	learn(both, 5);
	s.P = 1;
	for (int p = 0; p < 2; p++) {
		struct rig *alone = rig_new(rig_dims(&s), 2);

		fill_trial(alone, 0, 7 + (uint64_t)p);
		learn(alone, 5);
		assert_same_state(alone, 0, both, p);
		rig_free(alone);
	}
	assert_memory_not_equal(rig_at(both, T_PARAM, 0), rig_at(both, T_PARAM, 1), 256);
	rig_free(both);
}

/* Huge but finite logits must not make NaN out of 0 * inf: the step is applied and everything stays finite. */
static void huge_logits_stay_finite(void **state)
{
	(void)state;
	for (int sign = -1; sign <= 1; sign += 2) {
		struct rig_shape s = odd_shape;
		struct rig *r = rig_new(rig_dims(&s), 1);
		float *param;

		fill_trial(r, 0, 3);
		param = rig_at(r, T_PARAM, 0);
		for (int i = 0; i < s.NA; i++)
			param[r->d.layer[DQN_V2].b + i] = (float)sign * (i % 3 == 0 ? 1e30f : i % 3 == 1 ? -3e37f : 0.0f);
		memcpy(rig_at(r, T_TARGET, 0), param, (size_t)r->d.params * sizeof(float));
		learn(r, 1);
		assert_int_equal(rig_clock(r, 0)->skip, 0);
		assert_true(isfinite(rig_clock(r, 0)->loss));
		for (int64_t i = 0; i < r->d.params; i++)
			assert_true(isfinite(param[i]));
		for (int j = 0; j < s.B; j++)
			assert_true(isfinite(((float *)rig_at(r, T_ERROR, 0))[j]));
		assert_true(isfinite(((float *)rig_at(r, T_TREE, 0))[1]));
		rig_free(r);
	}
}

/* A NaN in a state makes the norm NaN: nothing moves, it is counted, and after the limit every step is skipped. */
static void broken_batches_change_nothing(void **state)
{
	struct rig *r = rig_new(rig_dims(&odd_shape), 2);
	struct dqn_clock *c = rig_clock(r, 0);
	float *param, *target, *tree;
	double *acc = rig_at(r, T_ACCUM, 0);

	(void)state;
	fill_trial(r, 0, 9);
	learn(r, 2);
	param = copy(rig_at(r, T_PARAM, 0), r->d.params);
	target = copy(rig_at(r, T_TARGET, 0), r->d.params);
	tree = copy(rig_at(r, T_TREE, 0), 2 * r->d.C);
	for (int64_t i = 0; i < r->d.C; i++)
		((float *)rig_at(r, T_RP_S, 0))[i * r->d.SD] = NAN;
	learn(r, DQN_SKIP_LIMIT);
	assert_int_equal(c->step, 2 + DQN_SKIP_LIMIT);
	assert_int_equal(c->applied, 2);
	assert_int_equal(c->skipped, DQN_SKIP_LIMIT);
	assert_int_equal(c->skipped_run, DQN_SKIP_LIMIT);
	assert_true(acc[ACC_SKIPPED] == DQN_SKIP_LIMIT && isfinite(acc[ACC_LOSS]) && isfinite(acc[ACC_GRAD_NORM]));
	fill_trial(r, 0, 9); /* sane data again, but the run has ended */
	memcpy(rig_at(r, T_PARAM, 0), param, (size_t)r->d.params * sizeof(float));
	memcpy(rig_at(r, T_TARGET, 0), target, (size_t)r->d.params * sizeof(float));
	memcpy(rig_at(r, T_TREE, 0), tree, (size_t)r->d.C * 2 * sizeof(float));
	learn(r, 1);
	assert_int_equal(c->skipped, DQN_SKIP_LIMIT + 1);
	assert_memory_equal(param, rig_at(r, T_PARAM, 0), (size_t)r->d.params * sizeof(float));
	assert_memory_equal(target, rig_at(r, T_TARGET, 0), (size_t)r->d.params * sizeof(float));
	assert_memory_equal(tree, rig_at(r, T_TREE, 0), (size_t)r->d.C * 2 * sizeof(float));
	free(param);
	free(target);
	free(tree);
	rig_free(r);
}

/* Clamped into the support, a return or discount that is no number would look like an edge atom. */
static void broken_rewards_are_noticed(void **state)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY};

	(void)state;
	for (int loss = FH_LOSS_C51; loss <= FH_LOSS_MSE; loss++)
		for (int i = 0; i < 6; i++) {
			struct rig_shape s = odd_shape;
			struct rig *r;

			s.loss = loss;
			r = rig_new(rig_dims(&s), 2);
			fill_trial(r, 0, 9);
			rig_stages(r, STAGE_ADVANCE, STAGE_GATHER);
			((float *)rig_at(r, i < 3 ? T_R : T_G, 0))[70] = odd[i % 3];
			rig_stages(r, STAGE_FORWARD, STAGE_COUNT);
			assert_int_equal(rig_clock(r, 0)->skipped, 1);
			rig_free(r);
		}
}

/* One sample, two atoms, layers of one unit, branches with nothing to choose from; and a batch just past a chunk. */
static void the_smallest_shapes_learn(void **state)
{
	static const struct rig_shape shapes[] = {
		{.SD = 1, .H1 = 1, .H2 = 1, .VH = 1, .AH = 1, .NA = 2, .A = {1, 1, 1}, .B = 1, .P = 1, .C = 1},
		{.SD = 3, .H1 = 2, .H2 = 3, .VH = 4, .AH = 5, .NA = 3, .A = {2, 1, 7}, .B = PANEL + 1, .P = 1, .C = 64},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int loss = FH_LOSS_C51; loss <= FH_LOSS_MSE; loss++) {
			struct rig_shape s = shapes[i];
			struct rig *r;
			float *before;

			s.loss = loss;
			s.precision = FH_PRECISION_F32;
			r = rig_new(rig_dims(&s), 3);
			fill_trial(r, 0, 11);
			before = copy(rig_at(r, T_PARAM, 0), r->d.params);
			learn(r, 3);
			assert_int_equal(rig_clock(r, 0)->applied, 3);
			assert_true(isfinite(rig_clock(r, 0)->loss) && rig_clock(r, 0)->grad_norm > 0.0);
			assert_memory_not_equal(before, rig_at(r, T_PARAM, 0), (size_t)r->d.params * sizeof(float));
			for (int t = 0; t + 1 < 2 * r->d.layers; t++) { /* the padding behind each tensor is still zero */
				char name[64];
				int64_t at, n, next, m;

				tensor_of(&r->d, t, "x", name, &at, &n);
				tensor_of(&r->d, t + 1, "x", name, &next, &m);
				for (int64_t k = at + n; k < next; k++)
					assert_true(((float *)rig_at(r, T_PARAM, 0))[k] == 0.0f);
			}
			free(before);
			rig_free(r);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_net_f32),
		cmocka_unit_test(small_net_tf32),
		cmocka_unit_test(small_net_bf16),
		cmocka_unit_test(default_net_f32),
		cmocka_unit_test(default_net_tf32),
		cmocka_unit_test(default_net_bf16),
		cmocka_unit_test(taken_logits_and_targets),
		cmocka_unit_test(mse_step),
		cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
		cmocka_unit_test(trials_side_by_side_equal_trials_alone),
		cmocka_unit_test(huge_logits_stay_finite),
		cmocka_unit_test(broken_batches_change_nothing),
		cmocka_unit_test(broken_rewards_are_noticed),
		cmocka_unit_test(the_smallest_shapes_learn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
