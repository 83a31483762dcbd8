/* The collect phase through its stages: golden exploration and restarts, the epsilon schedule, what is stored and where. */
#include "gpu/dqn/model.h"
#include "gpu/host/stages.h"
#include "gpu/philox.h"
#include "tests/unit/training.h"

/* A trainer's exec without the trainer: planned, on a market, begun. */
struct bench { struct plan *plan; struct exec *x; struct market *m; struct fh_split split[FH_SPLITS]; };

static struct bench bench_open(struct fh_spec *s, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bench b = {.plan = malloc(sizeof(*b.plan)), .m = m};

	assert_non_null(b.plan);
	assert_int_equal(spec_splits(s, m->bars, b.split, &st), 0);
	if (s->env.reward_scale == 0)
		s->env.reward_scale = market_auto_reward_scale(m, b.split[0], s);
	if (plan_make(s, b.plan, &st) || backend_host()->exec_new(backend_host(), b.plan, &b.x, &st) ||
	    backend_host()->exec_market(b.x, m, &st) || dqn_program.begin(b.x, s, b.split, NULL, NULL, &st))
		fail_msg("%s", st.text);
	return b;
}

static void bench_close(struct bench *b)
{
	backend_host()->exec_free(b->x);
	market_unref(b->m);
	free(b->plan);
}

/* Random actions instead of a network's. */
static void collect_once(struct bench *b)
{
	assert_int_equal(host_dqn_explore(b->x, NULL), 0);
	assert_int_equal(host_dqn_env(b->x, NULL), 0);
	assert_int_equal(host_dqn_insert(b->x, NULL), 0);
}

static void test_golden_exploration(void **state)
{
	struct st_file *g = golden_open("philox");
	struct fh_spec s = small_spec();
	int64_t n;
	const int32_t *greedy = golden_i32(g, "explore.greedy", &n), *want = golden_i32(g, "explore.action", NULL);

	s.collect.envs = n / 3;
	s.replay.capacity = 1024;
	s.run.seed = golden_int(g, "seed");
	s.collect.eps_start = s.collect.eps_end = golden_real(g, "eps");
	struct bench b = bench_open(&s, synth_market(SYNTH_WALK, 1500, 1));
	struct dqn_clock *c = host_tensor(b.x, T_CLOCK, 0);
	int32_t *action = host_tensor(b.x, T_ACTION, 0);
	c->vector_step = golden_int(g, "vector_step");
	memcpy(action, greedy, (size_t)n * sizeof(*action));
	assert_int_equal(host_dqn_explore(b.x, NULL), 0);
	assert_memory_equal(action, want, (size_t)n * sizeof(*action));
	bench_close(&b);
	st_close(g);
}

/* Episodes of one bar: every environment restarts in every vector step, at the golden bars after seven of them. */
static void test_golden_restarts(void **state)
{
	struct st_file *g = golden_open("philox");
	struct fh_spec s = small_spec();
	int64_t n;
	const int32_t *want = golden_i32(g, "restart.bar", &n);

	s.collect.envs = n;
	s.replay.capacity = 1024;
	s.learn.n_step = 1;
	s.env.episode_length = 1;
	s.run.seed = golden_int(g, "seed");
	struct market *m = synth_market(SYNTH_WALK, 7000, 1);
	s.data.train = golden_real(g, "restart_end") / (double)m->bars;
	struct bench b = bench_open(&s, m);
	assert_int_equal(b.split[0].end, golden_int(g, "restart_end"));
	for (int i = 0; i < golden_int(g, "vector_step"); i++)
		collect_once(&b);
	assert_memory_equal(host_tensor(b.x, T_ENV_T, 0), want, (size_t)n * sizeof(*want));
	bench_close(&b);
	st_close(g);
}

static void test_epsilon_schedule(void **state)
{
	struct fh_spec s = small_spec();
	s.collect.eps_start = 0.9;
	s.collect.eps_end = 0.1;
	s.collect.eps_steps = 8;
	struct bench b = bench_open(&s, synth_market(SYNTH_WALK, 1500, 1));
	struct dqn_clock *c = host_tensor(b.x, T_CLOCK, 0);

	for (int v = 0; v < 12; v++) {
		double done = v < 8 ? v / 8.0 : 1;
		collect_once(&b);
		assert_true(fabs(c->eps - (0.9 - 0.8 * done)) < 1e-15);
		assert_int_equal(c->vector_step, v + 1);
	}
	bench_close(&b);
}

/* Whatever happens in 400 vector steps with short episodes: a stored transition is k steps of one episode on the tape
 * (k bars between the two looks at it), its R is made of rewards, and the last of an episode bootstraps. */
static void test_transitions_never_span_restarts(void **state)
{
	struct fh_spec s = small_spec();
	s.collect.envs = 6;
	s.learn.n_step = 4;
	s.env.episode_length = 9;
	s.replay.capacity = 4096;
	s.collect.eps_end = 1;
	struct bench b = bench_open(&s, synth_market(SYNTH_WALK, 1500, 3));
	struct dqn_clock *c = host_tensor(b.x, T_CLOCK, 0);
	const float *from = host_tensor(b.x, T_RP_S, 0), *to = host_tensor(b.x, T_RP_S2, 0), *G = host_tensor(b.x, T_RP_G, 0);
	const int32_t *count = host_tensor(b.x, T_PEND_COUNT, 0);
	const float *last = b.m->feature + (b.split[0].end - 1) * FH_MARKET_FEATURES;
	int seen[5] = {0};

	for (int i = 0; i < 400; i++)
		collect_once(&b);
	for (int64_t i = 0; i < c->stored; i++) {
		/* feature 7 of the portfolio: steps left / L, so the difference of two looks counts the steps between them */
		double left = (double)from[i * FH_STATE_DIM + 47], later = (double)to[i * FH_STATE_DIM + 47];
		long k = lround((left - later) * 9);
		assert_true(k >= 1 && k <= 4);
		assert_true(fabs((double)G[i] - pow(0.9, (double)k)) < 1e-6); /* nobody is ruined here: all bootstrap */
		if (k < 4) /* only the end of an episode stores fewer: its length is reached, or the split's last bar */
			assert_true(lround(later * 9) == 0 ||
				    memcmp(to + i * FH_STATE_DIM, last, FH_MARKET_FEATURES * sizeof(*last)) == 0);
		seen[k]++;
	}
	assert_true(seen[3] > 0 && seen[2] >= seen[3] && seen[1] >= seen[2] && seen[4] > seen[1]);
	int64_t pending = 0;
	for (int e = 0; e < 6; e++)
		pending += count[e];
	assert_int_equal(c->stored + pending, 400 * 6); /* nothing is lost, nothing stored twice */
	bench_close(&b);
}

/* A ring of 128 after far more transitions: the newest one lies behind the oldest, and the tree is a tree of ones. */
static void test_ring_wraps(void **state)
{
	struct fh_spec s = small_spec();
	struct fh_spec wide = s;
	wide.replay.capacity = 4096;
	s.learn.n_step = wide.learn.n_step = 3;
	struct bench a = bench_open(&s, synth_market(SYNTH_WALK, 1500, 3));
	struct bench b = bench_open(&wide, synth_market(SYNTH_WALK, 1500, 3));
	struct dqn_clock *c = host_tensor(a.x, T_CLOCK, 0);
	const float *tree = host_tensor(a.x, T_TREE, 0), *R = host_tensor(a.x, T_RP_R, 0), *all = host_tensor(b.x, T_RP_R, 0);

	for (int v = 0; v < 171; v++) {
		collect_once(&a);
		collect_once(&b);
		for (int64_t n = 1; n < 128; n++)
			assert_true(tree[n] == tree[2 * n] + tree[2 * n + 1]);
		assert_true(tree[1] == (float)(c->stored < 128 ? c->stored : 128));
	}
	assert_true(c->stored > 4 * 128);
	for (int64_t i = c->stored - 128; i < c->stored; i++)
		assert_true(R[i % 128] == all[i]);
	bench_close(&a);
	bench_close(&b);
}

/* Threads only share the work: 300 environments on one thread and on three give the same bits. */
static void test_threads_change_nothing(void **state)
{
	struct fh_spec s = small_spec();
	char was[16];
	s.collect.envs = 300;
	s.replay.capacity = 4096;
	s.collect.eps_end = 1;
	snprintf(was, sizeof(was), "%s", getenv("FH_HOST_THREADS") ? getenv("FH_HOST_THREADS") : "");
	setenv("FH_HOST_THREADS", "1", 1);
	struct bench a = bench_open(&s, synth_market(SYNTH_WALK, 1500, 3));
	setenv("FH_HOST_THREADS", "3", 1);
	struct bench b = bench_open(&s, synth_market(SYNTH_WALK, 1500, 3));
	if (was[0])
		setenv("FH_HOST_THREADS", was, 1);
	else
		unsetenv("FH_HOST_THREADS");
	for (int i = 0; i < 60; i++) {
		collect_once(&a);
		collect_once(&b);
	}
	for (int t = 0; t < a.plan->tensors; t++)
		if (a.plan->tensor[t].desc.flags & TENSOR_KEEP)
			assert_memory_equal(a.x->tensor[t], b.x->tensor[t], a.plan->tensor[t].bytes);
	bench_close(&a);
	bench_close(&b);
}

/* The sum of an episode's rewards is the change of its equity. */
static void test_rewards_add_up_to_equity(void **state)
{
	struct fh_spec s = small_spec();
	s.env.fee = 0.01;
	s.env.half_spread = 0.02;
	s.env.episode_length = 1000;
	struct bench b = bench_open(&s, synth_market(SYNTH_MOMENTUM, 3000, 3));
	const double *equity = host_tensor(b.x, T_ENV_EQUITY, 0), *ret = host_tensor(b.x, T_ENV_RETURN, 0);
	const struct env_config *cfg = host_tensor(b.x, T_CONFIG, 0);

	for (int i = 0; i < 200; i++) {
		collect_once(&b);
		for (int e = 0; e < 4; e++)
			assert_within(fabs(ret[e] - (equity[e] - cfg->initial_cash) / cfg->initial_cash * cfg->reward_scale), 1e-6,
				      "sum of rewards");
	}
	bench_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden_exploration), cmocka_unit_test(test_golden_restarts),
		cmocka_unit_test(test_epsilon_schedule), cmocka_unit_test(test_transitions_never_span_restarts),
		cmocka_unit_test(test_ring_wraps), cmocka_unit_test(test_threads_change_nothing),
		cmocka_unit_test(test_rewards_add_up_to_equity),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
