/* Every stage of the learner on the device against the host, over sizes that are odd on purpose. Scratch on the device is
 * poisoned with NaN, so a stage that reads what nothing wrote is seen. */
#include <math.h>
#include "gpu/cuda/scratch.h"
#include "tests/gpu/rig.h"

struct limits { double forward, gradient, whole, param; };

/* The host emulates each precision by rounding the inputs of its products, so the two are twins up to the order of
 * sums; in bf16 a value at the edge of a rounding may go either way, and ReLUs open and close. */
static struct limits limits_of(int precision)
{
	if (precision == FH_PRECISION_F32)
		return (struct limits){1e-5, 1e-4, 1e-4, 1e-5};
	if (precision == FH_PRECISION_TF32)
		return (struct limits){2e-3, 1.5e-2, 1.5e-2, 1e-3};
	return (struct limits){2e-2, 5e-2, 5e-2, 5e-3};
}

static void learn_once(struct rig *r, struct limits l)
{
	rig_stage(r, STAGE_ADVANCE);
	rig_stage(r, STAGE_SAMPLE);
	rig_equal(r, T_INDEX);
	rig_within(r, T_WEIGHT, 1e-6);
	rig_fetch(r, T_WEIGHT);
	rig_stage(r, STAGE_GATHER);
	rig_equal(r, T_S);
	rig_equal(r, T_S2);
	rig_equal(r, T_A);
	rig_equal(r, T_R);
	rig_equal(r, T_G);
	rig_stage(r, STAGE_FORWARD);
	rig_stage(r, STAGE_LOSS);
	rig_within(r, T_LOGITS, l.forward);
	rig_stage(r, STAGE_BACKWARD);
	rig_stage(r, STAGE_NORM);
	if (r->d.precision == FH_PRECISION_F32) { /* elsewhere a near tie may change a* of a row */
		rig_within(r, T_PROJ, 1e-4);
		rig_within(r, T_CE, 1e-4);
		rig_within(r, T_ERROR, 1e-3);
		rig_within(r, T_GRAD, l.gradient);
	}
	rig_fetch(r, T_GRAD);
	rig_fetch(r, T_ERROR);
	rig_fetch(r, T_CE);
	rig_fetch(r, T_CLOCK);
	rig_stage(r, STAGE_ADAM);
	rig_within(r, T_PARAM, 1e-6);
	rig_within(r, T_TARGET, 1e-6);
	rig_within(r, T_M, 1e-6);
	rig_within(r, T_V, 1e-6);
	rig_stage(r, STAGE_PRIORITY);
	rig_equal(r, T_TREE);
	rig_stage(r, STAGE_COUNT);
	rig_within(r, T_ACCUM, 1e-4);
	rig_fetch(r, T_PARAM);
	rig_fetch(r, T_TARGET);
	rig_fetch(r, T_M);
	rig_fetch(r, T_V);
	if (r->d.precision == FH_PRECISION_BF16) {
		rig_fetch(r, T_PARAM_LP);
		rig_fetch(r, T_TARGET_LP);
	}
	rig_fetch(r, T_CLOCK);
	rig_fetch(r, T_ACCUM);
}

static void learn_at(const struct rig_shape *s)
{
	struct rig rig, *r = &rig;

	rig_make(r, s);
	rig_fill(r, 5);
	for (int step = 0; step < 3; step++)
		learn_once(r, limits_of(s->precision));
	rig_free(r);
}

static void sweep(int precision)
{
	static const struct rig_shape shape[] = {
		{.B = 256, .SD = 48, .H1 = 256, .H2 = 256, .VH = 128, .AH = 128, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 4096},
		{.B = 1, .SD = 6, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 3, .A = {3, 2, 2}, .C = 64},
		{.B = 3, .SD = 200, .H1 = 33, .H2 = 47, .VH = 19, .AH = 21, .NA = 2, .D = 1, .A = {5}, .C = 256},
		{.B = 64, .SD = 48, .H1 = 64, .H2 = 64, .VH = 32, .AH = 32, .NA = 101, .D = 2, .A = {5, 3}, .C = 1024},
		{.B = 1000, .SD = 48, .H1 = 100, .H2 = 60, .VH = 40, .AH = 24, .NA = 51, .D = 4, .A = {5, 3, 3, 2}, .C = 2048},
		{.B = 64, .SD = 7, .H1 = 31, .H2 = 29, .VH = 8, .AH = 16, .NA = 21, .D = 3, .A = {5, 1, 3}, .C = 128, .P = 3},
		{.B = 700, .SD = 9, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 2, .A = {3, 2}, .C = 2048, .P = 3},
		{.B = 90, .SD = 5, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 1, .A = {3}, .C = 65536},
	};

	if (!rig_cuda)
		skip();
	for (unsigned i = rig_slow; i < sizeof shape / sizeof shape[0]; i++)
		for (int loss = FH_LOSS_C51; loss <= FH_LOSS_MSE; loss++) {
			struct rig_shape s = shape[i];

			s.N = 4, s.n = 1, s.P = s.P ? s.P : 1, s.precision = precision, s.loss = loss;
			learn_at(&s);
		}
}

static void learn_f32(void **state) { (void)state; sweep(FH_PRECISION_F32); }
static void learn_tf32(void **state) { (void)state; sweep(FH_PRECISION_TF32); }
static void learn_bf16(void **state) { (void)state; sweep(FH_PRECISION_BF16); }

/* New priorities of leaves in any order, many of them named several times: of equal leaves the last row counts. */
static void priorities_at(int B, int64_t C, int ascending)
{
	const struct rig_shape s = {.B = B, .SD = 6, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 1, .A = {3}, .C = C, .N = 4, .n = 1, .P = 2,
		.precision = FH_PRECISION_F32, .loss = FH_LOSS_C51};
	struct rig rig, *r = &rig;
	struct dqn_clock clock[2];
	uint64_t draw = 31;

	rig_make(r, &s);
	rig_fill(r, 12);
	for (int p = 0; p < s.P; p++)
		for (int j = 0; j < B; j++) {
			int32_t *index = rig_host(r, T_INDEX, p);

			index[j] = ascending ? (int32_t)(j * C / (3 * B)) : (int32_t)(rig_uniform(&draw) * (float)C);
			((float *)rig_host(r, T_ERROR, p))[j] = rig_uniform(&draw) * 40;
		}
	rig_send(r);
	rig_stage(r, STAGE_PRIORITY);
	rig_equal(r, T_TREE);
	for (int p = 0; p < s.P; p++) {
		struct dqn_clock *host = rig_host(r, T_CLOCK, p);

		RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, (size_t)p * r->plan[1].tensor[T_CLOCK].stride, &clock[p], sizeof *clock, &r->st));
		assert_true(clock[p].largest == host->largest && host->largest > 2.f);
	}
	rig_free(r);
}

static void priorities_in_any_order(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	priorities_at(1, 64, 1);
	priorities_at(300, 128, 0);
	priorities_at(300, 128, 1);
	priorities_at(1024, 1 << 17, 0);
	priorities_at(257, 1 << 17, 1);
	priorities_at(1100, 4096, 0);
}

/* A gradient that is not finite leaves parameters, moments, target, tree and t as they were. */
static void skips_on_nan(void **state)
{
	const struct rig_shape s = {.B = 64, .SD = 48, .H1 = 64, .H2 = 64, .VH = 32, .AH = 32, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 1024,
		.N = 4, .n = 1, .P = 1, .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51};
	struct rig rig, *r = &rig;

	(void)state;
	if (!rig_cuda)
		skip();
	rig_make(r, &s);
	rig_fill(r, 6);
	struct dqn_clock before = *(struct dqn_clock *)rig_host(r, T_CLOCK, 0), after;
	for (int64_t i = 0; i < r->d.C; i++)
		((float *)rig_host(r, T_RP_R, 0))[i] = NAN;
	rig_send(r);
	for (int stage = STAGE_ADVANCE; stage <= STAGE_COUNT; stage++)
		RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[stage], &r->st));
	rig_equal(r, T_PARAM);
	rig_equal(r, T_TARGET);
	rig_equal(r, T_M);
	rig_equal(r, T_V);
	rig_equal(r, T_TREE);
	RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, 0, &after, sizeof after, &r->st));
	assert_int_equal(after.step, before.step + 1);
	assert_int_equal(after.applied, before.applied);
	assert_int_equal(after.skipped, before.skipped + 1);
	assert_int_equal(after.skipped_run, before.skipped_run + 1);
	rig_free(r);
}

/* Environments, n-step transitions, ring and tree are the host's bit for bit, actions given by exploration alone. */
static void collect_at(int N, int n, int precision, int64_t C)
{
	const struct rig_shape s = {.B = 8, .SD = FH_STATE_DIM, .H1 = 32, .H2 = 32, .VH = 16, .AH = 16, .NA = 11, .D = 3, .A = {5, 3, 3}, .C = C,
		.N = N, .n = n, .P = 2, .precision = precision, .loss = FH_LOSS_C51};
	const struct env_config cfg = {.tick = 0.01, .multiplier = 50, .half_spread = 0.005, .fee = 0.5, .max_position = 4, .lot = 1,
		.initial_cash = 5000, .reward_scale = 3, .pt = 1, .sl = 0.75, .ruin_fraction = 0.5, .episode_length = 40, .horizon = 12};
	struct rig rig, *r = &rig;

	rig_make(r, &s);
	rig_fill(r, 3);
	struct market *m = rig_market(r, 3000, 0.01);
	rig_environments(r, m, &cfg, 1);
	((struct env_config *)rig_host(r, T_CONFIG, 1))->lot = 0;
	((struct env_config *)rig_host(r, T_CONFIG, 1))->max_gap = 3600;
	((struct env_config *)rig_host(r, T_CONFIG, 1))->roll_on = 1;
	rig_send(r);
	for (int step = 0; step < 120; step++) {
		rig_stage(r, STAGE_EXPLORE);
		rig_equal(r, T_ACTION);
		rig_stage(r, STAGE_ENV);
		rig_stage(r, STAGE_INSERT);
	}
	for (int t = T_RP_S; t <= T_PEND_HEAD; t++)
		rig_equal(r, t);
	rig_within(r, T_ACCUM, 1e-12);
	for (int p = 0; p < s.P; p++) {
		struct dqn_clock k;

		RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, (size_t)p * sizeof k, &k, sizeof k, &r->st));
		assert_memory_equal(&k, rig_host(r, T_CLOCK, p), sizeof k);
		assert_true(k.stored > 0);
	}
	rig_free(r);
	market_unref(m);
}

static void collect_equals_host(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	collect_at(1, 1, FH_PRECISION_F32, 64);
	collect_at(3, 3, FH_PRECISION_F32, 64);
	collect_at(32, 1, FH_PRECISION_BF16, 4096);
	collect_at(130, 5, FH_PRECISION_F32, 8192);
	collect_at(rig_slow ? 300 : 1000, 3, FH_PRECISION_BF16, 8192);
}

/* The greedy action, one row an environment. */
static void policy_equals_host(void **state)
{
	const struct rig_shape s = {.B = 8, .SD = 48, .H1 = 64, .H2 = 48, .VH = 16, .AH = 24, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 256,
		.N = 333, .n = 1, .P = 2, .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51};
	struct rig rig, *r = &rig;
	uint64_t draw = 5;

	(void)state;
	if (!rig_cuda)
		skip();
	rig_make(r, &s);
	rig_fill(r, 9);
	for (int p = 0; p < s.P; p++)
		for (int i = 0; i < s.N * s.SD; i++)
			((float *)rig_host(r, T_OBS, p))[i] = 6 * rig_uniform(&draw) - 3;
	rig_send(r);
	rig_stage(r, STAGE_POLICY);
	rig_equal(r, T_ACTION);
	rig_free(r);
}

/* A float of any size that counts: zeros of both signs, those that are not normal, up to 2^60. */
static float any_size(uint64_t *draw)
{
	const uint32_t kind = (uint32_t)(8 * rig_uniform(draw)), sign = rig_uniform(draw) < 0.5f, fraction = (uint32_t)(rig_uniform(draw) * 8388607.f);
	const uint32_t exponent = kind == 0 ? 0 : kind == 1 ? 1 + (uint32_t)(40 * rig_uniform(draw)) : 40 + (uint32_t)(147 * rig_uniform(draw));
	const uint32_t bits = sign << 31 | exponent << 23 | (kind == 0 && rig_uniform(draw) < 0.7f ? 0 : fraction);
	float x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

static void same_float(const char *name, int64_t i, float want, float got)
{
	if (memcmp(&want, &got, sizeof want) && !(isnan(want) && isnan(got)))
		fail_msg("%s of parameter %lld is %a, by IEEE %a", name, (long long)i, got, want);
}

/* The optimizer rounds as IEEE says, whatever the moments are. */
static void adam_rounds(void **state)
{
	const struct rig_shape s = {.B = 8, .SD = 48, .H1 = 64, .H2 = 48, .VH = 16, .AH = 24, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 256,
		.N = 4, .n = 1, .P = 1, .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51};
	struct rig rig, *r = &rig;
	struct cuda_scratch scratch;
	struct cuda_step step;
	uint64_t draw = 77;

	(void)state;
	if (!rig_cuda)
		skip();
	rig_make(r, &s);
	rig_fill(r, 5);
	float *p = rig_host(r, T_PARAM, 0), *m = rig_host(r, T_M, 0), *v = rig_host(r, T_V, 0), *g = rig_host(r, T_GRAD, 0);
	for (int64_t i = 0; i < r->d.params; i++) {
		m[i] = any_size(&draw), v[i] = fabsf(any_size(&draw)), g[i] = i % 3 ? 0.f : any_size(&draw);
		if (i % 64 < 32) /* as they are in a run: four neighbours at once */
			m[i] = rig_uniform(&draw) < 0.1f ? 0.f : copysignf(1e-5f * rig_uniform(&draw), m[i]), v[i] = i % 5 ? 1e-7f * rig_uniform(&draw) : 0.f, g[i] = 0.f;
	}
	cuda_scratch_make(&r->d, &scratch);
	rig_send(r);
	rig_stage(r, STAGE_ADVANCE);
	RIG_OK(r->x[1]->backend->read(r->x[1], T_SCRATCH, scratch.step.offset, &step, sizeof step, &r->st));
	double *none = calloc((size_t)scratch.parts, sizeof *none);
	RIG_OK(r->x[1]->backend->write(r->x[1], T_SCRATCH, scratch.part.offset, none, (size_t)scratch.parts * sizeof *none, &r->st));
	free(none);
	RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[STAGE_ADAM], &r->st));
	float *got[3];
	for (int k = 0; k < 3; k++) {
		const int tensor[] = {T_PARAM, T_M, T_V};

		got[k] = malloc((size_t)r->d.params * sizeof(float));
		RIG_OK(r->x[1]->backend->read(r->x[1], tensor[k], 0, got[k], (size_t)r->d.params * sizeof(float), &r->st));
	}
	for (int64_t i = 0; i < r->d.params; i++) {
		const float mean = fmaf(m[i], 0.9f, g[i] * 0.1f), square = fmaf(g[i], g[i] * 0.001f, v[i] * 0.999f);
		const float by = step.lr * (mean * step.scale1) / (sqrtf(square * step.scale2) + 1e-8f);

		same_float("the mean", i, mean, got[1][i]);
		same_float("the square", i, square, got[2][i]);
		same_float("the value", i, p[i] - fmaf(step.decay, p[i], by), got[0][i]);
	}
	for (int k = 0; k < 3; k++)
		free(got[k]);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(learn_f32),
		cmocka_unit_test(learn_tf32),
		cmocka_unit_test(learn_bf16),
		cmocka_unit_test(priorities_in_any_order),
		cmocka_unit_test(skips_on_nan),
		cmocka_unit_test(adam_rounds),
		cmocka_unit_test(policy_equals_host),
		cmocka_unit_test(collect_equals_host),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
