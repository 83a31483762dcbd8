/* The fused step in its graph against the stages one by one, bit for bit; the same for two runs, for a trial alone and
 * among others, and for a learning rate that changes from step to step (a scalar frozen into a graph would show). */
#include "tests/gpu/rig.h"

static const struct rig_shape shapes[] = {
	{.B = 256, .SD = 48, .H1 = 256, .H2 = 256, .VH = 128, .AH = 128, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 4096, .N = 4, .n = 1, .P = 1},
	{.B = 64, .SD = 48, .H1 = 64, .H2 = 64, .VH = 32, .AH = 32, .NA = 21, .D = 3, .A = {5, 3, 3}, .C = 1024, .N = 4, .n = 1, .P = 3},
	{.B = 1500, .SD = 48, .H1 = 64, .H2 = 96, .VH = 32, .AH = 48, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 4096, .N = 4, .n = 1, .P = 1},
	{.B = 2100, .SD = 9, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 2, .A = {3, 2}, .C = 1024, .N = 4, .n = 1, .P = 1},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void make(struct rig *r, const struct rig_shape *s, int precision, int staged)
{
	struct rig_shape x = *s;

	x.precision = precision, x.loss = FH_LOSS_C51;
	setenv("FH_GPU_SYNC", staged ? "1" : "0", 1);
	rig_make(r, &x);
	setenv("FH_GPU_SYNC", "0", 1);
	rig_fill(r, 21);
	for (int p = 0; p < s->P; p++) {
		struct dqn_clock *c = rig_host(r, T_CLOCK, p);

		c->lr_linear = 1, c->lr0 = 1e-3, c->lr_end = 1e-5, c->planned = 60, c->step = 0, c->applied = 0;
	}
	rig_send(r);
}

static void learn(struct rig *r, int steps, int at_once)
{
	for (int done = 0; done < steps; done += at_once) {
		const struct run run = {DQN_PHASE_LEARN, at_once};

		RIG_OK(r->x[1]->backend->run(r->x[1], &run, 1, &r->st));
	}
	RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
}

static const int learnt[] = {T_PARAM, T_TARGET, T_M, T_V, T_GRAD, T_TREE, T_CLOCK, T_ACCUM, T_INDEX, T_WEIGHT, T_ERROR, T_CE};

/* Trial p of a against trial q of b. */
static void same_tensors(struct rig *a, int p, struct rig *b, int q, const int *list, unsigned n, const char *what)
{
	for (unsigned i = 0; i < n; i++) {
		struct rig *r = a;
		const struct plan_tensor *t = &a->plan[1].tensor[list[i]];
		unsigned char *x = malloc(t->stride), *y = malloc(t->stride);

		RIG_OK(a->x[1]->backend->read(a->x[1], list[i], (size_t)p * t->stride, x, t->stride, &r->st));
		r = b;
		RIG_OK(b->x[1]->backend->read(b->x[1], list[i], (size_t)q * t->stride, y, t->stride, &r->st));
		if (memcmp(x, y, t->stride) != 0)
			fail_msg("%s: %s differs", what, t->name);
		free(x);
		free(y);
	}
}

static void same(struct rig *a, int p, struct rig *b, int q, const char *what)
{
	same_tensors(a, p, b, q, learnt, sizeof learnt / sizeof learnt[0], what);
}

static void fused_is_staged(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int s = 0; s < SHAPES; s++)
		for (int precision = FH_PRECISION_F32; precision <= FH_PRECISION_BF16; precision++) {
			struct rig a, b;

			/* on the emulator one graph where nothing but the launches is other than in stages */
			const int steps = RIG_MANY(40, precision == FH_PRECISION_BF16 ? 4 : 2);

			make(&a, &shapes[s], precision, 0);
			make(&b, &shapes[s], precision, 1);
			learn(&a, steps, RIG_MANY(5, 2));
			learn(&b, steps, RIG_MANY(5, 2));
			for (int p = 0; p < shapes[s].P; p++)
				same(&a, p, &b, p, "fused and staged");
			rig_free(&a);
			rig_free(&b);
		}
}

/* A graph that was captured while the environment says so, against the stages. */
static void staged_too(const char *name, const char *value, const char *what)
{
	for (int s = 0; s < 2; s++) {
		struct rig a, b;

		make(&a, &shapes[s], FH_PRECISION_BF16, 0);
		make(&b, &shapes[s], FH_PRECISION_BF16, 1);
		setenv(name, value, 1);
		learn(&a, RIG_MANY(40, 4), RIG_MANY(5, 2));
		unsetenv(name);
		learn(&b, RIG_MANY(40, 4), RIG_MANY(5, 2));
		for (int p = 0; p < shapes[s].P; p++)
			same(&a, p, &b, p, what);
		rig_free(&a);
		rig_free(&b);
	}
}

/* The end of the step by a launch of its own, as where the parameters of all trials are more than L2 holds. */
static void ends_first(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	staged_too("FH_GPU_WIDE", "1", "many parameters and staged");
}

/* As beside many other trainers: other kernels, and fewer of them begin early. */
static void in_a_crowd(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	staged_too("FH_GPU_CROWD", "1", "in a crowd and staged");
}

/* Collecting and learning in one graph against the stages one by one, bit for bit, accumulators too: sums over environments are one tree,
 * whether a block steps 8 of them or 128. */
static void chunk_is_staged(void **state)
{
	static const struct env_config cfg = {.tick = 0.01, .multiplier = 50, .half_spread = 0.005, .fee = 0.5, .max_position = 4, .lot = 1,
		.initial_cash = 5000, .reward_scale = 3, .pt = 1, .sl = 0.75, .ruin_fraction = 0.5, .episode_length = 40, .horizon = 12};
	const int sizes[][2] = {{32, 1}, {33, 3}, {RIG_MANY(1500, 700), 1}, {32, 1}};
	enum { SIZES = 4, CROWD = 3 }; /* the last as beside many other trainers */

	(void)state;
	if (!rig_cuda)
		skip();
	for (int k = 0; k < SIZES; k++) {
		struct rig rigs[2], *r;
		struct rig_shape s = shapes[1];

		if (k == CROWD)
			setenv("FH_GPU_CROWD", "1", 1);
		s.N = sizes[k][0], s.n = sizes[k][1], s.C = 8192;
		for (int i = 0; i < 2; i++) {
			static const struct run warm = {DQN_PHASE_COLLECT, 8}, chunk[4] = {{0, 1}, {1, 2}, {0, 1}, {1, 2}};

			r = &rigs[i];
			make(r, &s, FH_PRECISION_BF16, i);
			struct market *m = rig_market(r, 3000, 0.01);
			rig_environments(r, m, &cfg, 0.3);
			rig_send(r);
			RIG_OK(r->x[1]->backend->run(r->x[1], &warm, 1, &r->st));
			for (int n = 0; n < RIG_MANY(20, 3); n++)
				RIG_OK(r->x[1]->backend->run(r->x[1], chunk, 4, &r->st));
			RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
			market_unref(m);
		}
		for (int t = 0; t < DQN_TENSORS; t++) { /* the host's copy of the staged run is the reference */
			r = &rigs[1];
			if (t == T_S || t == T_S2 || t == T_LOGITS || t == T_PROJ || !rig_shared(t)) /* comparisons alone read these */
				continue;
			rig_fetch(r, t);
			r = &rigs[0];
			memcpy(r->x[0]->tensor[t], rigs[1].x[0]->tensor[t], r->plan[0].tensor[t].bytes);
			rig_equal(r, t);
		}
		rig_free(&rigs[0]);
		rig_free(&rigs[1]);
		unsetenv("FH_GPU_CROWD");
	}
}

/* A trial that collects, alone and among so many that others step their environments by other kernels. */
static void collects_alone(void **state)
{
	static const struct env_config cfg = {.tick = 0.01, .multiplier = 50, .half_spread = 0.005, .fee = 0.5, .max_position = 4, .lot = 1,
		.initial_cash = 5000, .reward_scale = 3, .pt = 1, .sl = 0.75, .ruin_fraction = 0.5, .episode_length = 40, .horizon = 12};
	enum { N = 300, P = 7, TRIAL = 5 };
	struct rig rigs[2], *r;
	struct rig_shape s = shapes[1];

	(void)state;
	if (!rig_cuda)
		skip();
	s.N = N, s.C = 4096;
	for (int i = 0; i < 2; i++) {
		static const struct run steps = {DQN_PHASE_COLLECT, 6};

		r = &rigs[i];
		s.P = i ? 1 : P;
		make(r, &s, FH_PRECISION_BF16, 0);
		struct market *m = rig_market(r, 3000, 0.01);
		rig_environments(r, m, &cfg, 0.3);
		if (i == 0)
			rig_send(r);
		for (int t = 0; i == 1 && t < DQN_TENSORS; t++) /* the trial's own start */
			if (rig_shared(t))
				RIG_OK(r->x[1]->backend->write(r->x[1], t, 0, rig_host(&rigs[0], t, TRIAL), r->plan[1].tensor[t].bytes, &r->st));
		RIG_OK(r->x[1]->backend->run(r->x[1], &steps, 1, &r->st));
		RIG_OK(r->x[1]->backend->run(r->x[1], &steps, 1, &r->st));
		RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
		market_unref(m);
	}
	static const int kept[] = {T_ACCUM, T_CLOCK, T_TREE, T_RP_S, T_RP_S2, T_RP_A, T_RP_R, T_RP_G, T_ENV_CASH, T_ENV_RETURN, T_ENV_T, T_OBS, T_ACTION};
	same_tensors(&rigs[1], 0, &rigs[0], TRIAL, kept, sizeof kept / sizeof kept[0], "a trial that collects alone and among others");
	rig_free(&rigs[0]);
	rig_free(&rigs[1]);
}

static void repeats(void **state)
{
	struct rig a, b;

	(void)state;
	if (!rig_cuda)
		skip();
	make(&a, &shapes[0], FH_PRECISION_BF16, 0);
	make(&b, &shapes[0], FH_PRECISION_BF16, 0);
	learn(&a, RIG_MANY(200, 12), RIG_MANY(10, 6));
	learn(&b, RIG_MANY(200, 12), 4);
	same(&a, 0, &b, 0, "two runs");
	rig_free(&a);
	rig_free(&b);
}

/* Trial i of P is the trial alone. */
static void trial_alone(void **state)
{
	struct rig all, one;
	struct rig_shape s = shapes[RIG_MANY(0, 1)];

	(void)state;
	if (!rig_cuda)
		skip();
	const int trials = RIG_MANY(40, 140), steps = RIG_MANY(20, 2), apart = RIG_MANY(13, 69);
	s.P = trials; /* enough that products take other tiles than alone */
	make(&all, &s, FH_PRECISION_BF16, 0);
	learn(&all, steps, RIG_MANY(5, 2));
	for (int p = 0; p < trials; p += apart) {
		struct rig *r = &one;

		s.P = 1;
		make(&one, &s, FH_PRECISION_BF16, 0);
		/* the trial's own start */
		struct rig fill;
		struct rig_shape t = s;
		t.P = trials;
		make(&fill, &t, FH_PRECISION_BF16, 0);
		for (int k = 0; k < DQN_TENSORS; k++)
			if (rig_shared(k))
				RIG_OK(one.x[1]->backend->write(one.x[1], k, 0, rig_host(&fill, k, p), one.plan[1].tensor[k].bytes, &r->st));
		learn(&one, steps, RIG_MANY(5, 2));
		same(&one, 0, &all, p, "a trial alone and among others");
		rig_free(&fill);
		rig_free(&one);
	}
	rig_free(&all);
}

/* A reward that is not finite: the step is skipped, the tree is as before, the next ones as well, and after ten in a row
 * nothing is ever applied again. */
static void skips(const char *wide)
{
	struct rig rig, *r = &rig;
	struct dqn_clock c;

	make(r, &shapes[0], FH_PRECISION_BF16, 0);
	for (int64_t i = 0; i < r->d.C; i++)
		((float *)rig_host(r, T_RP_R, 0))[i] = INFINITY;
	rig_send(r);
	setenv("FH_GPU_WIDE", wide, 1);
	learn(r, 12, 4);
	unsetenv("FH_GPU_WIDE");
	rig_equal(r, T_PARAM);
	rig_equal(r, T_TARGET);
	rig_equal(r, T_TREE);
	RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, 0, &c, sizeof c, &r->st));
	assert_int_equal(c.step, 12);
	assert_int_equal(c.applied, 0);
	assert_int_equal(c.skipped, 12);
	assert_int_equal(c.skipped_run, 12);
	assert_true(c.largest == 2.f);
	rig_free(r);
}

static void fused_skips(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	skips("");
	skips("1"); /* the end of the step by a launch of its own */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fused_is_staged),
		cmocka_unit_test(ends_first),
		cmocka_unit_test(in_a_crowd),
		cmocka_unit_test(chunk_is_staged),
		cmocka_unit_test(collects_alone),
		cmocka_unit_test(repeats),
		cmocka_unit_test(trial_alone),
		cmocka_unit_test(fused_skips),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
