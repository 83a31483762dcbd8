/* The kernels for many rows (FH_GPU_WIDE=1, 16 … 128: with blocks of so many rows; 1064, 1128: warpgroups, 1192: with tiles of both) and
 * those for few rows on clusters (8; 432: of four blocks and 32 rows) against those layer by layer (0), bit for bit, over sizes where
 * tiles, units of columns and steps of a sum do not come out even; the vector step for many environments and the learn step against the
 * stages. */
#include "gpu/cuda/scratch.h"
#include "tests/gpu/rig.h"

/* The first is the default network; others are odd in one thing or another, three do not fit into the blocks of many rows. */
static const struct rig_shape shapes[] = {
	{.B = 70, .SD = 48, .H1 = 256, .H2 = 256, .VH = 128, .AH = 128, .NA = 51, .D = 3, .A = {5, 3, 3}, .N = 130},
	{.B = 1, .SD = 6, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 3, .A = {3, 2, 2}, .N = 1},
	{.B = 33, .SD = 200, .H1 = 33, .H2 = 47, .VH = 19, .AH = 21, .NA = 2, .D = 1, .A = {5}, .N = 67},
	{.B = 64, .SD = 48, .H1 = 64, .H2 = 200, .VH = 40, .AH = 104, .NA = 51, .D = 4, .A = {5, 1, 3, 2}, .N = 64, .P = 3},
	{.B = 50, .SD = 48, .H1 = 72, .H2 = 64, .VH = 32, .AH = 32, .NA = 101, .D = 2, .A = {5, 3}, .N = 33},
	{.B = 97, .SD = 7, .H1 = 31, .H2 = 29, .VH = 16, .AH = 16, .NA = 56, .D = 2, .A = {4, 5}, .N = 97, .P = 2},
	{.B = 9, .SD = 48, .H1 = 300, .H2 = 64, .VH = 32, .AH = 32, .NA = 11, .D = 3, .A = {5, 3, 3}, .N = 9},
	{.B = 9, .SD = 48, .H1 = 64, .H2 = 64, .VH = 16, .AH = 16, .NA = 21, .D = 2, .A = {6, 3}, .N = 9},
	{.B = 21, .SD = 270, .H1 = 40, .H2 = 272, .VH = 24, .AH = 17, .NA = 11, .D = 4, .A = {5, 1, 3, 2}, .N = 21, .P = 2},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
/* Which of them are taken: the trunk has at most 256 columns; actions, of at most 5 a branch, have at most 56 atoms. */
static const int fits[SHAPES] = {1, 1, 1, 1, 1, 1, 0, 1, 0}, picks[SHAPES] = {1, 1, 1, 1, 0, 1, 0, 0, 0};
/* Clusters: as the code chooses, then of 1 to 8 blocks with tiles of 16 to 64 rows. A cluster of one or two cannot hold the default
 * network, which then goes another way. */
static const char *const clusters[] = {"8", "116", "232", "264", "416", "432", "464", "816", "832", "864"};
enum { CLUSTERS = sizeof clusters / sizeof clusters[0] };

/* Every block of a cluster gets a share of the second layer: 16 columns at least. */
static int divides(const struct dqn_dims *d, const char *asked) { return atoi(asked) < 100 || atoi(asked) / 100 <= (d->H2 + 15) / 16; }

/* Does the device give a block the shared memory for all of them? The host's side asks no device. */
static int roomy(void)
{
	struct device_info info;
	struct fh_status st = FH_STATUS_INIT;

	if (rig_cuda->info(rig_cuda, &info, &st) != 0)
		fail_msg("%s", st.text);
	return info.compute_major >= 9;
}

static void make(struct rig *r, const struct rig_shape *shape, int precision)
{
	struct rig_shape s = *shape;

	s.C = 256, s.n = 1, s.P = s.P ? s.P : 1, s.precision = precision, s.loss = FH_LOSS_C51;
	rig_make(r, &s);
	rig_fill(r, 31);
}

/* The device's own tensor, whole. */
static unsigned char *scratch_of(struct rig *r)
{
	const size_t bytes = r->plan[1].tensor[T_SCRATCH].bytes;
	unsigned char *p = malloc(bytes);

	assert_non_null(p);
	RIG_OK(r->x[1]->backend->read(r->x[1], T_SCRATCH, 0, p, bytes, &r->st));
	return p;
}

/* FORWARD of a batch, all that it writes filled with NaN before. */
static unsigned char *forward(struct rig *r, const struct cuda_scratch *s, const char *wide)
{
	const struct cuda_array *made[] = {&s->h1, &s->h2, &s->head, &s->out};
	unsigned char *p = scratch_of(r);

	for (int i = 0; i < 4; i++)
		memset(p + made[i]->offset, 0xff, made[i]->stride * (size_t)r->d.P);
	RIG_OK(r->x[1]->backend->write(r->x[1], T_SCRATCH, 0, p, r->plan[1].tensor[T_SCRATCH].bytes, &r->st));
	free(p);
	setenv("FH_GPU_WIDE", wide, 1);
	RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[STAGE_FORWARD], &r->st));
	unsetenv("FH_GPU_WIDE");
	return scratch_of(r);
}

/* The rows that anyone reads: of hidden layers those of s, of outputs all. */
static void same_rows(const struct rig *r, const unsigned char *a, const unsigned char *b, const struct cuda_array *x, size_t row, int rows, const char *name)
{
	for (int p = 0; p < r->d.P; p++)
		for (int i = 0; i < rows; i++) {
			const size_t at = x->offset + (size_t)p * x->stride + (size_t)i * row;

			for (size_t k = 0; k < row; k++)
				if (a[at + k] != b[at + k])
					fail_msg("%s of trial %d, row %d of %d: byte %zu of %zu differs", name, p, i, rows, k, row);
		}
}

static void forward_is_layered(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int i = 0; i < SHAPES; i++) {
		struct rig rig, *r = &rig;
		struct cuda_scratch s;

		make(r, &shapes[i], FH_PRECISION_BF16);
		cuda_scratch_make(&r->d, &s);
		RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[STAGE_ADVANCE], &r->st));
		RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[STAGE_SAMPLE], &r->st));
		RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[STAGE_GATHER], &r->st));
		unsigned char *layered = forward(r, &s, "0");
		const size_t theirs = s.h1.offset + (size_t)(3 * r->d.B - 1) * (size_t)(s.ldh1 * s.low) + 1;
		assert_true(layered[theirs] != 0xff);
		static const char *const asked[] = {"16", "32", "64", "96", "128", "1064", "1128", "1192"};
		enum { ASKED = sizeof asked / sizeof asked[0] };
		for (unsigned k = 0; k < ASKED + CLUSTERS; k++) {
			unsigned char *wide = forward(r, &s, k < ASKED ? asked[k] : clusters[k - ASKED]);

			same_rows(r, layered, wide, &s.h1, (size_t)(s.ldh1 * s.low), r->d.B, "h1");
			same_rows(r, layered, wide, &s.h2, (size_t)(s.ldh2 * s.low), r->d.B, "h2");
			same_rows(r, layered, wide, &s.head, (size_t)(s.ldhead * s.low), r->d.B, "head");
			same_rows(r, layered, wide, &s.out, (size_t)s.ldo * 4, 3 * r->d.B, "out");
			/* hidden rows of s' are nobody's: one launch leaves them out, and so shows that it was taken */
			if (roomy())
				assert_int_equal(wide[theirs] == 0xff, fits[i] || (k >= ASKED && divides(&r->d, clusters[k - ASKED])));
			free(wide);
		}
		free(layered);
		rig_free(r);
	}
}

static void policy(struct rig *r, const char *wide, int32_t *action)
{
	setenv("FH_GPU_WIDE", wide, 1);
	memset(rig_host(r, T_ACTION, 0), 0xff, r->plan[1].tensor[T_ACTION].bytes);
	RIG_OK(r->x[1]->backend->write(r->x[1], T_ACTION, 0, rig_host(r, T_ACTION, 0), 0, &r->st));
	RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[STAGE_POLICY], &r->st));
	RIG_OK(r->x[1]->backend->read(r->x[1], T_ACTION, 0, action, 0, &r->st));
	unsetenv("FH_GPU_WIDE");
}

/* Large random weights: actions then differ from row to row. */
static void policy_inputs(struct rig *r)
{
	uint64_t draw = 5;

	for (int p = 0; p < r->d.P; p++) {
		float *param = rig_host(r, T_PARAM, p);

		((struct dqn_clock *)rig_host(r, T_CLOCK, p))->eps_start = 0.5;
		for (int64_t k = 0; k < r->d.params; k++)
			param[k] *= 3;
		rig_low(r, T_PARAM, T_PARAM_LP, p);
		for (int k = 0; k < r->d.N * r->d.SD; k++)
			((float *)rig_host(r, T_OBS, p))[k] = 6 * rig_uniform(&draw) - 3;
	}
	rig_send(r);
}

/* Of one trial; among enough rows not all are the first one's. */
static void same_actions(const struct rig *r, const int32_t *layered, const int32_t *wide)
{
	int differ = 0;

	for (int k = 0; k < r->d.N * r->d.D; k++) {
		const int b = k % r->d.D;

		if (layered[k] != wide[k])
			fail_msg("environment %d of %d, branch %d: %d layer by layer, %d in one launch", k / r->d.D, r->d.N, b, layered[k], wide[k]);
		assert_in_range(layered[k], 0, r->d.A[b] - 1);
		differ += layered[k] != layered[b];
	}
	assert_true(r->d.N < 60 || differ > 0);
}

/* The policy's outputs of few environments on clusters, and the actions that follow from them, against those layer by layer. */
static void outputs_are_layered(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int i = 0; i < SHAPES; i++) {
		struct rig rig, *r = &rig;
		struct cuda_scratch s;

		make(r, &shapes[i], FH_PRECISION_BF16);
		policy_inputs(r);
		cuda_scratch_make(&r->d, &s);
		const size_t n = r->plan[1].tensor[T_ACTION].bytes / sizeof(int32_t), stride = r->plan[1].tensor[T_ACTION].stride / sizeof(int32_t);
		int32_t *layered = malloc(n * sizeof *layered), *few = malloc(n * sizeof *few);
		policy(r, "0", layered);
		unsigned char *out = scratch_of(r);
		for (unsigned k = 0; k < CLUSTERS; k++) {
			unsigned char *p = scratch_of(r);

			memset(p + s.pout.offset, 0xff, s.pout.stride * (size_t)r->d.P);
			memset(p + s.ph1.offset, 0xff, s.ph1.stride * (size_t)r->d.P);
			RIG_OK(r->x[1]->backend->write(r->x[1], T_SCRATCH, 0, p, r->plan[1].tensor[T_SCRATCH].bytes, &r->st));
			free(p);
			policy(r, clusters[k], few);
			p = scratch_of(r);
			if (roomy()) {
				same_rows(r, out, p, &s.pout, (size_t)s.ldo * 4, r->d.N, "the policy's out");
				if (fits[i] || divides(&r->d, clusters[k]))
					assert_int_equal(p[s.ph1.offset], 0xff); /* layer by layer it would have been written */
			}
			for (int t = 0; t < r->d.P; t++)
				same_actions(r, layered + (size_t)t * stride, few + (size_t)t * stride);
			free(p);
		}
		free(out);
		free(layered);
		free(few);
		rig_free(r);
	}
}

static void policy_is_layered(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int i = 0; i < SHAPES; i++) {
		struct rig rig, *r = &rig;

		make(r, &shapes[i], FH_PRECISION_BF16);
		policy_inputs(r);
		const size_t n = r->plan[1].tensor[T_ACTION].bytes / sizeof(int32_t), stride = r->plan[1].tensor[T_ACTION].stride / sizeof(int32_t);
		int32_t *layered = malloc(n * sizeof *layered), *wide = malloc(n * sizeof *wide);
		policy(r, "0", layered);
		static const char *const asked[] = {"64", "96", "128", "1128", "1192"};
		for (unsigned k = 0; k < sizeof asked / sizeof asked[0]; k++) {
			policy(r, asked[k], wide);
			for (int p = 0; p < r->d.P; p++)
				same_actions(r, layered + (size_t)p * stride, wide + (size_t)p * stride);
		}
		/* a trial that acts at random is left out by the one launch: which shows when it is taken */
		((struct dqn_clock *)rig_host(r, T_CLOCK, 0))->eps_start = ((struct dqn_clock *)rig_host(r, T_CLOCK, 0))->eps_end = 1;
		rig_send(r);
		policy(r, "1", wide);
		if (roomy())
			assert_int_equal(wide[0] == -1, picks[i]);
		if (r->d.P > 1)
			assert_memory_equal(wide + stride, layered + stride, (size_t)(r->d.N * r->d.D) * sizeof *wide);
		free(layered);
		free(wide);
		rig_free(r);
	}
}

/* Vector steps as they are launched for many environments against the stages, everything that lasts. eps: 1 leaves the
 * network out. */
static void steps_are_stages_at(int N, int n, int precision, double eps)
{
	static const struct env_config cfg = {.tick = 0.01, .multiplier = 50, .half_spread = 0.005, .fee = 0.5, .max_position = 4, .lot = 1,
		.initial_cash = 5000, .reward_scale = 3, .pt = 1, .sl = 0.75, .ruin_fraction = 0.5, .episode_length = 40, .horizon = 12};
	const struct rig_shape s = {.B = 8, .SD = FH_STATE_DIM, .H1 = 64, .H2 = 32, .VH = 32, .AH = 32, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 4096,
		.N = N, .n = n, .P = 2, .precision = precision, .loss = FH_LOSS_C51};
	static const struct run steps = {DQN_PHASE_COLLECT, 10};
	struct rig rigs[2], *r;

	for (int i = 0; i < 2; i++) {
		r = &rigs[i];
		setenv("FH_GPU_SYNC", i ? "1" : "0", 1);
		rig_make(r, &s);
		setenv("FH_GPU_SYNC", "0", 1);
		rig_fill(r, 8);
		struct market *m = rig_market(r, 3000, 0.01);
		rig_environments(r, m, &cfg, eps);
		rig_send(r);
		setenv("FH_GPU_WIDE", i ? "0" : "1", 1);
		for (int k = 0; k < 6; k++)
			RIG_OK(r->x[1]->backend->run(r->x[1], &steps, 1, &r->st));
		RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
		unsetenv("FH_GPU_WIDE");
		market_unref(m);
	}
	for (int t = T_RP_S; t <= T_ACTION; t++) {
		r = &rigs[1];
		rig_fetch(r, t);
		r = &rigs[0];
		memcpy(r->x[0]->tensor[t], rigs[1].x[0]->tensor[t], r->plan[0].tensor[t].bytes);
		rig_equal(r, t);
	}
	r = &rigs[1];
	rig_fetch(r, T_ACCUM);
	rig_fetch(r, T_CLOCK);
	assert_true(((struct dqn_clock *)rig_host(r, T_CLOCK, 0))->stored > 0);
	r = &rigs[0];
	memcpy(r->x[0]->tensor[T_ACCUM], rigs[1].x[0]->tensor[T_ACCUM], r->plan[0].tensor[T_ACCUM].bytes);
	memcpy(r->x[0]->tensor[T_CLOCK], rigs[1].x[0]->tensor[T_CLOCK], r->plan[0].tensor[T_CLOCK].bytes);
	rig_within(r, T_ACCUM, 1e-12);
	rig_equal(r, T_CLOCK);
	rig_free(&rigs[0]);
	rig_free(&rigs[1]);
}

static void steps_are_stages(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	steps_are_stages_at(130, 1, FH_PRECISION_BF16, 0.3);
	steps_are_stages_at(67, 3, FH_PRECISION_BF16, 0.3);
	steps_are_stages_at(33, 1, FH_PRECISION_F32, 0.3);
	steps_are_stages_at(129, 2, FH_PRECISION_F32, 1.0);
	steps_are_stages_at(64, 1, FH_PRECISION_BF16, 1.0);
}

/* Learn steps: one launch forward, of blocks or of clusters, against four, everything that lasts. */
static void learning_is_staged(void **state)
{
	static const char *const asked[] = {"1", "8", "432"};
	static const int learnt[] = {T_PARAM, T_TARGET, T_M, T_V, T_GRAD, T_TREE, T_CLOCK, T_INDEX, T_ERROR, T_CE};
	static const struct run steps = {DQN_PHASE_LEARN, 3};
	struct rig rigs[2], *r;

	(void)state;
	if (!rig_cuda)
		skip();
	enum { ASKED = sizeof asked / sizeof asked[0] };
	for (int i = 0; i <= ASKED; i++) {
		r = &rigs[i > 0];
		setenv("FH_GPU_SYNC", i ? "0" : "1", 1);
		make(r, &shapes[3], FH_PRECISION_BF16);
		setenv("FH_GPU_SYNC", "0", 1);
		rig_run_wide(r, i ? asked[i - 1] : "0", &steps, 3);
		if (i == 0)
			continue;
		rig_equal_devices(&rigs[1], &rigs[0], learnt, sizeof learnt / sizeof learnt[0]);
		rig_free(r);
	}
	rig_free(&rigs[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forward_is_layered),
		cmocka_unit_test(outputs_are_layered),
		cmocka_unit_test(policy_is_layered),
		cmocka_unit_test(steps_are_stages),
		cmocka_unit_test(learning_is_staged),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
