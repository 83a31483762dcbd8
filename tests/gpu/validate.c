/* Acting for evaluations on the device: a row's actions are the same bits among any rows of any trials; they are the host's but for
 * near-ties; and an evaluation that looks ahead on the device, alone or beside others, is the device's own walk bar by bar, bit for
 * bit. */
#include "tests/gpu/rig.h"
#include "gpu/host/net.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

enum { BARS = 1200, ROWS = 2500 };

static const struct rig_shape shapes[] = {
	{.B = 16, .SD = 48, .H1 = 64, .H2 = 48, .VH = 32, .AH = 32, .NA = 21, .D = 3, .A = {5, 3, 3}, .C = 256, .N = 4, .n = 1, .P = 1},
	{.B = 16, .SD = 48, .H1 = 37, .H2 = 53, .VH = 17, .AH = 29, .NA = 51, .D = 3, .A = {5, 3, 3}, .C = 256, .N = 4, .n = 1, .P = 3},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* What a choice may lose of the best Q (support -3 to 2) and still be the same choice after rounding. */
static double slack(int precision)
{
	return precision == FH_PRECISION_F32 ? 2e-5 : precision == FH_PRECISION_TF32 ? 1e-2 : 5e-2;
}

static struct market *make(struct rig *r, int shape, int precision)
{
	struct rig_shape s = shapes[shape];

	s.precision = precision, s.loss = FH_LOSS_C51;
	rig_make(r, &s);
	rig_fill(r, 31 + (uint64_t)shape);
	return rig_market(r, BARS, 0.01);
}

static struct act_limits open_some(struct rig *r, int b, int policy, int first, int trials)
{
	struct act_limits can;
	int opened = trials;

	RIG_OK(r->x[b]->backend->act_open(r->x[b], policy, first, &opened, &can, &r->st));
	assert_int_equal(opened, trials);
	assert_true(can.least >= 1 && can.least <= can.few && can.few <= can.rows);
	return can;
}

static void open_both(struct rig *r, int policy, int trial)
{
	open_some(r, 0, policy, trial, 1);
	assert_true(open_some(r, 1, policy, trial, 1).rows >= ROWS);
}

static void act(struct rig *r, int b, int rows, const int32_t *bar, const float *portfolio, int32_t *action)
{
	int most = b ? rows : 7, n; /* the host takes fewer at once */

	for (int at = 0; at < rows; at += n) {
		n = rows - at < most ? rows - at : most;
		const struct act_part part = {0, n};
		RIG_OK(r->x[b]->backend->act(r->x[b], &part, 1, bar + at, portfolio + at * FH_PORTFOLIO_FEATURES, action + at * r->d.D, &r->st));
	}
}

static void any_bars(int32_t *bar, float *portfolio, int rows)
{
	uint64_t draw = 5;

	for (int i = 0; i < rows; i++) {
		bar[i] = (int32_t)(rig_uniform(&draw) * BARS);
		for (int k = 0; k < FH_PORTFOLIO_FEATURES; k++)
			portfolio[i * FH_PORTFOLIO_FEATURES + k] = 4 * rig_uniform(&draw) - 2;
	}
}

/* Q of the host's network at the device's choice against the best. */
static void check_choices(struct rig *r, const struct market *m, int policy, int trial, const int32_t *bar, const float *portfolio,
			  const int32_t *action, int rows)
{
	const struct dqn_clock *c = rig_host(r, T_CLOCK, trial);
	struct host_net *net = NULL;
	float *x = malloc(sizeof *x * FH_STATE_DIM * (size_t)rows), *q = malloc(sizeof *q * (size_t)r->d.sumA * (size_t)rows);

	assert_true(x && q);
	RIG_OK(host_net_new(&r->d, c->v_min, c->v_max, NULL, &net, &r->st));
	host_net_set(net, rig_host(r, policy == FH_POLICY_ONLINE ? T_PARAM : T_TARGET, trial));
	for (int i = 0; i < rows; i++) {
		memcpy(x + i * FH_STATE_DIM, m->feature + (size_t)bar[i] * FH_MARKET_FEATURES, sizeof *x * FH_MARKET_FEATURES);
		memcpy(x + i * FH_STATE_DIM + FH_MARKET_FEATURES, portfolio + i * FH_PORTFOLIO_FEATURES, sizeof *x * FH_PORTFOLIO_FEATURES);
	}
	host_net_forward(net, x, rows, NULL, q, NULL);
	for (int i = 0; i < rows; i++)
		for (int b = 0, first = 0; b < r->d.D; first += r->d.A[b++]) {
			const float *row = q + i * r->d.sumA + first;
			float best = row[0];

			for (int a = 1; a < r->d.A[b]; a++)
				best = row[a] > best ? row[a] : best;
			assert_in_range(action[i * r->d.D + b], 0, r->d.A[b] - 1);
			assert_within(best - row[action[i * r->d.D + b]], slack(r->d.precision), "Q of the device's choice");
		}
	host_net_free(net);
	free(x);
	free(q);
}

static void rows_depend_on_no_other(void **state)
{
	static int32_t bar[ROWS], all[ROWS * 3], some[ROWS * 3], other[60 * 3], before[ROWS * 3];
	static float portfolio[ROWS * FH_PORTFOLIO_FEATURES];

	(void)state;
	if (!rig_cuda)
		skip();
	any_bars(bar, portfolio, ROWS);
	for (int s = 0; s < SHAPES; s++)
		for (int precision = FH_PRECISION_F32; precision <= FH_PRECISION_BF16; precision++) {
			struct rig rig, *r = &rig;
			struct market *m = make(r, s, precision);
			const int count = r->d.P > 1 ? ROWS / 10 : ROWS; /* more than the layers take at once */

			for (int trial = 0; trial < r->d.P; trial++)
				for (int policy = FH_POLICY_TARGET; policy <= FH_POLICY_ONLINE; policy++) {
					open_both(r, policy, trial);
					act(r, 1, count, bar, portfolio, all);
					check_choices(r, m, policy, trial, bar, portfolio, all, count);
					for (int at = 0, n = 1; at < count; at += n, n = n * 3 + 1) {
						int rows = count - at < n ? count - at : n;

						act(r, 1, rows, bar + at, portfolio + at * FH_PORTFOLIO_FEATURES, some + at * 3);
					}
					assert_memory_equal(all, some, sizeof *all * (size_t)count * 3);
					act(r, 0, 60, bar, portfolio, other);
					check_choices(r, m, policy, trial, bar, portfolio, other, 60);
					if (policy == FH_POLICY_ONLINE) /* it is another network than the target's */
						assert_memory_not_equal(all, before, sizeof *all * (size_t)count * 3);
					memcpy(before, all, sizeof all);
				}
			market_unref(m);
			rig_free(r);
		}
}

/* Rows of all trials in one call, few and many, in every mixture of sizes, are what each trial says alone. */
static void trials_depend_on_no_other(void **state)
{
	static const int mix[][5] = {{1, 1, 1, 1, 1}, {40, 64, 64, 33, 64}, {3, 200, 1, 0, 7}, {0, 0, 5, 0, 90}, {0, 520, 500, 480, 510}, {700, 0, 0, 20, 0}};
	static int32_t bar[ROWS], alone[ROWS * 3], together[ROWS * 3];
	static float portfolio[ROWS * FH_PORTFOLIO_FEATURES];
	struct rig_shape shape = shapes[0];

	(void)state;
	if (!rig_cuda)
		skip();
	any_bars(bar, portfolio, ROWS);
	shape.P = 6, shape.loss = FH_LOSS_C51;
	for (int precision = FH_PRECISION_F32; precision <= FH_PRECISION_BF16; precision++)
		for (int wide = 0; wide <= (precision == FH_PRECISION_BF16); wide++) {
			struct rig rig, *r = &rig;
			struct market *m;

			shape.precision = precision;
			rig_make(r, &shape);
			rig_fill(r, 77);
			m = rig_market(r, BARS, 0.01);
			setenv("FH_GPU_WIDE", wide ? "1" : "0", 1);
			for (unsigned i = 0; i < sizeof mix / sizeof *mix; i++) {
				struct act_part part[5];
				int parts = 0, at = 0;

				for (int k = 0; k < 5; at += mix[i][k++]) { /* trials 1 to 5 */
					if (!mix[i][k])
						continue;
					part[parts++] = (struct act_part){k, mix[i][k]};
					open_some(r, 1, FH_POLICY_ONLINE, 1 + k, 1);
					act(r, 1, mix[i][k], bar + at, portfolio + at * FH_PORTFOLIO_FEATURES, alone + at * 3);
				}
				open_some(r, 1, FH_POLICY_ONLINE, 1, 5);
				memset(together, 0xff, sizeof together);
				RIG_OK(r->x[1]->backend->act(r->x[1], part, parts, bar, portfolio, together, &r->st));
				assert_memory_equal(alone, together, sizeof *alone * 3 * (size_t)at);
			}
			const struct act_part wrong[] = {{2, 3}, {2, 3}};
			assert_int_equal(r->x[1]->backend->act(r->x[1], wrong, 2, bar, portfolio, together, &r->st), FH_INTERNAL);
			unsetenv("FH_GPU_WIDE");
			market_unref(m);
			rig_free(r);
		}
}

/* More trials than a call has places for: as many as it has are open, and one row of each is what that trial says alone. */
static void many_trials_go_in_parts(void **state)
{
	enum { TRIALS = 131, OPEN = 128 };
	static int32_t bar[ROWS], together[OPEN * 3], alone[3];
	static float portfolio[ROWS * FH_PORTFOLIO_FEATURES];
	struct rig_shape shape = {.B = 16, .SD = 48, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 3, .A = {5, 3, 3}, .C = 64, .N = 4, .n = 1,
				  .P = TRIALS, .precision = FH_PRECISION_BF16, .loss = FH_LOSS_C51};
	struct act_part part[OPEN];
	struct act_limits can;
	struct market *m;
	struct rig rig, *r = &rig;
	int trials = TRIALS - 1, differ = 0;

	(void)state;
	if (!rig_cuda)
		skip();
	any_bars(bar, portfolio, ROWS);
	rig_make(r, &shape);
	rig_fill(r, 3);
	m = rig_market(r, BARS, 0.01);
	RIG_OK(r->x[1]->backend->act_open(r->x[1], FH_POLICY_TARGET, 1, &trials, &can, &r->st));
	assert_int_equal(trials, OPEN);
	assert_true(can.rows >= OPEN * can.least);
	assert_false(can.kept); /* of so many none is */
	for (int k = 0; k < OPEN; k++)
		part[k] = (struct act_part){k, 1};
	RIG_OK(r->x[1]->backend->act(r->x[1], part, OPEN, bar, portfolio, together, &r->st));
	for (int k = 0; k < OPEN; k += 9) {
		open_some(r, 1, FH_POLICY_TARGET, 1 + k, 1);
		act(r, 1, 1, bar + k, portfolio + k * FH_PORTFOLIO_FEATURES, alone);
		assert_memory_equal(alone, together + 3 * k, sizeof alone);
		differ += memcmp(alone, together, sizeof alone) != 0;
	}
	assert_true(differ > 0);
	trials = 2;
	assert_int_equal(r->x[1]->backend->act_open(r->x[1], FH_POLICY_TARGET, TRIALS - 1, &trials, &can, &r->st), FH_INTERNAL);
	market_unref(m);
	rig_free(r);
}

/* What was opened answers as it did then, while learn steps change everything that training has. */
static void who_acts_is_kept_while_training_goes_on(void **state)
{
	static const struct run steps = {DQN_PHASE_LEARN, 2};
	static int32_t bar[ROWS], before[ROWS * 3], meanwhile[ROWS * 3], after[ROWS * 3];
	static float portfolio[ROWS * FH_PORTFOLIO_FEATURES];
	const int rows = RIG_MANY(ROWS, 300);

	(void)state;
	if (!rig_cuda)
		skip();
	any_bars(bar, portfolio, rows);
	for (int precision = FH_PRECISION_F32; precision <= FH_PRECISION_BF16; precision++)
		for (int policy = FH_POLICY_TARGET; policy <= FH_POLICY_ONLINE; policy++)
			for (int wide = 0; wide <= (precision == FH_PRECISION_BF16); wide++) {
				struct rig rig, *r = &rig;
				struct market *m = make(r, 1, precision);
				const int trial = r->d.P - 1;

				for (int p = 0; p < r->d.P; p++) {
					struct dqn_clock *c = rig_host(r, T_CLOCK, p);

					c->lr0 = 1e-2, c->tau = 0.5, c->step = c->applied = 0;
				}
				rig_send(r);
				setenv("FH_GPU_WIDE", wide ? "1" : "0", 1);
				assert_true(open_some(r, 1, policy, trial, 1).kept);
				act(r, 1, rows, bar, portfolio, before);
				for (int i = 0; i < 5; i++) {
					RIG_OK(r->x[1]->backend->run(r->x[1], &steps, 1, &r->st));
					memset(meanwhile, 0xff, sizeof meanwhile);
					act(r, 1, rows, bar, portfolio, meanwhile);
					assert_memory_equal(before, meanwhile, sizeof *before * 3 * (size_t)rows);
				}
				RIG_OK(r->x[1]->backend->run(r->x[1], &steps, 1, &r->st));
				assert_true(open_some(r, 1, policy, trial, 1).kept); /* behind the steps */
				RIG_OK(r->x[1]->backend->run(r->x[1], &steps, 1, &r->st));
				act(r, 1, rows, bar, portfolio, after);
				RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
				act(r, 1, rows, bar, portfolio, meanwhile);
				assert_memory_equal(after, meanwhile, sizeof *after * 3 * (size_t)rows);
				assert_memory_not_equal(before, after, sizeof *before * 3 * (size_t)rows);
				setenv("FH_GPU_BEHIND", "0", 1);
				assert_false(open_some(r, 1, policy, trial, 1).kept);
				unsetenv("FH_GPU_BEHIND");
				unsetenv("FH_GPU_WIDE");
				market_unref(m);
				rig_free(r);
			}
}

/* ---------------------------------------------------------------- evaluations */

static int act_on(void *ctx, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct exec *x = ctx;

	return x->backend->act(x, part, parts, bar, portfolio, action, st);
}

static double share_least(int precision)
{
	return precision == FH_PRECISION_F32 ? 0.99 : precision == FH_PRECISION_TF32 ? 0.95 : 0.9;
}

struct played { struct eval_report report; struct eval_row *row; int64_t rows, calls, asked; };

static const struct act_limits bar_by_bar = {.rows = 1, .few = 1, .least = 1};

static void play_trials(struct rig *r, int b, struct market *m, struct act_limits can, int trials, int windows, struct played *p)
{
	const struct eval_actor actor = {act_on, r->x[b], can};
	struct env_config config;
	struct evaluation *e = NULL;

	eval_env_config(&r->plan[0].spec, 1.0, &config);
	config.initial_cash = 2000;
	const struct eval_setup s = {.actor = &actor, .market = m, .config = &config, .split = {700, BARS}, .windows = windows, .trials = trials, .trace = 1};
	RIG_OK(evaluation_make(&s, &e, &r->st));
	while (!evaluation_run_on(e, 1000000, &r->st))
		;
	assert_int_equal(evaluation_run_on(e, 0, &r->st), 1);
	for (int k = 0; k < trials; k++) {
		const struct eval_row *row = evaluation_trial_trace(e, k, &p[k].rows);

		evaluation_trial_report(e, k, &p[k].report);
		evaluation_effort(e, &p[k].calls, &p[k].asked);
		p[k].row = malloc(sizeof *row * (size_t)p[k].rows);
		assert_non_null(p[k].row);
		memcpy(p[k].row, row, sizeof *row * (size_t)p[k].rows);
	}
	evaluation_free(e);
}

static struct played play(struct rig *r, int b, struct market *m, struct act_limits can, int windows)
{
	struct played p;

	play_trials(r, b, m, can, 1, windows, &p);
	return p;
}

static void assert_same_play(const struct played *a, const struct played *b)
{
	assert_memory_equal(&a->report, &b->report, sizeof a->report);
	assert_int_equal(a->rows, b->rows);
	for (int64_t i = 0; i < a->rows; i++) {
		const struct eval_row *x = &a->row[i], *y = &b->row[i];

		assert_memory_equal(x->action, y->action, sizeof x->action);
		assert_true(x->bar == y->bar && x->fill == y->fill && x->fill_price == y->fill_price && x->exit == y->exit && x->q == y->q &&
			    x->cash == y->cash && x->equity == y->equity && x->reward == y->reward);
	}
}

/* Bars where the host's evaluation of the same network did the same; a near-tie that falls the other way changes the position
 * and with it what follows, for a while. */
static double share_of_the_host(struct rig *r, struct market *m, const struct played *device, int windows)
{
	struct played host;
	int64_t same = 0;

	host = play(r, 0, m, open_some(r, 0, FH_POLICY_TARGET, 0, 1), windows);
	assert_int_equal(host.rows, device->rows);
	for (int64_t i = 0; i < host.rows; i++)
		same += memcmp(host.row[i].action, device->row[i].action, sizeof host.row[i].action) == 0;
	free(host.row);
	return (double)same / (double)device->rows;
}

static void ahead_is_bar_by_bar(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	for (int precision = FH_PRECISION_F32; precision <= FH_PRECISION_BF16; precision++)
		for (int windows = 1; windows <= 4; windows += 3) {
			struct rig rig, *r = &rig;
			struct market *m = make(r, 0, precision);
			const struct act_limits can = open_some(r, 1, FH_POLICY_TARGET, 0, 1);
			struct played slow = play(r, 1, m, bar_by_bar, windows), fast = play(r, 1, m, can, windows);

			assert_int_equal(slow.calls, slow.rows);
			assert_true(2 * fast.calls < slow.calls);
			assert_same_play(&slow, &fast);
			double share = share_of_the_host(r, m, &slow, windows);
			if (share < share_least(precision))
				fail_msg("precision %d, %d windows: %.4f of the host's actions", precision, windows, share);
			free(slow.row);
			free(fast.row);
			market_unref(m);
			rig_free(r);
		}
}

/* Trials side by side, in so many windows each, against each of them alone and bar by bar. */
static void trials_are_as_alone(void **state)
{
	struct rig_shape shape = shapes[0];

	(void)state;
	if (!rig_cuda)
		skip();
	shape.P = 4, shape.precision = FH_PRECISION_BF16, shape.loss = FH_LOSS_C51;
	for (int windows = 1; windows <= 3; windows += 2) {
		struct rig rig, *r = &rig;
		struct played alone, together[3];
		struct market *m;
		int differ = 0;

		rig_make(r, &shape);
		rig_fill(r, 45);
		m = rig_market(r, BARS, 0.01);
		play_trials(r, 1, m, open_some(r, 1, FH_POLICY_TARGET, 1, 3), 3, windows, together);
		for (int k = 0; k < 3; k++) {
			open_some(r, 1, FH_POLICY_TARGET, 1 + k, 1);
			alone = play(r, 1, m, bar_by_bar, windows);
			assert_same_play(&alone, &together[k]);
			differ += k && memcmp(&together[k].report, &together[0].report, sizeof alone.report) != 0;
			free(alone.row);
		}
		assert_int_equal(differ, 2);
		for (int k = 0; k < 3; k++)
			free(together[k].row);
		market_unref(m);
		rig_free(r);
	}
}

/* A job's last evaluations are what the networks in its tensors do bar by bar, trial by trial. */
static void a_job_says_what_its_networks_do(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec spec = small_spec();
	struct trainer_state at = {0};
	struct samples all = {0};
	struct env_config config;
	struct trainer *t = NULL;
	struct market *m;
	int seen = 0;

	(void)state;
	if (!rig_cuda)
		skip();
	spec.run.device = FH_DEVICE_CUDA;
	spec.run.precision = FH_PRECISION_BF16;
	spec.run.population = 2;
	spec.run.epochs = 1;
	m = synth_market(SYNTH_MOMENTUM, 2000, 5);
	if (trainer_new(rig_cuda, &spec, &t, &st) || trainer_begin(t, &spec, m, NULL, &st))
		fail_msg("%s", st.text);
	while (!at.done) {
		if (trainer_run(t, SLICE_NS, &at, &st))
			fail_msg("%s", st.text);
		samples_take(t, &all);
	}
	samples_take(t, &all);
	eval_env_config(&t->spec, t->spec.env.reward_scale, &config);
	for (int i = 0; i < all.n; i++) {
		const struct trainer_sample *sample = all.s + i;
		const struct eval_actor actor = {act_on, t->x, bar_by_bar};
		struct act_limits can;
		const struct eval_setup s = {.actor = &actor, .market = m, .config = &config, .split = t->split[sample->split]};
		struct evaluation *e = NULL;
		struct eval_report r;
		int one = 1;

		if (!sample->validation || sample->step != t->planned)
			continue;
		if (rig_cuda->act_open(t->x, sample->policy, sample->trial, &one, &can, &st) || evaluation_make(&s, &e, &st))
			fail_msg("%s", st.text);
		while (!evaluation_run_on(e, SLICE_NS, &st))
			;
		evaluation_report(e, &r);
		assert_true(sample_value(sample, "pnl") == r.pnl && sample_value(sample, "sharpe") == r.sharpe &&
			    sample_value(sample, "trades") == r.trades && sample_value(sample, "bars") == (double)r.bars);
		evaluation_free(e);
		seen++;
	}
	assert_int_equal(seen, 8); /* two trials, two networks, two splits */
	free(all.s);
	trainer_free(t);
	market_unref(m);
}

/* The fused network and the layers: the same bits, so an evaluation may take either from call to call. */
static void one_launch_and_layers_agree(void **state)
{
	static int32_t bar[ROWS], layers[ROWS * 3], fused[ROWS * 3];
	static float portfolio[ROWS * FH_PORTFOLIO_FEATURES];

	(void)state;
	if (!rig_cuda)
		skip();
	any_bars(bar, portfolio, ROWS);
	for (int s = 0; s < SHAPES; s++) {
		struct rig rig, *r = &rig;
		struct market *m = make(r, s, FH_PRECISION_BF16);

		open_both(r, FH_POLICY_TARGET, r->d.P - 1);
		setenv("FH_GPU_WIDE", "0", 1);
		act(r, 1, ROWS, bar, portfolio, layers);
		setenv("FH_GPU_WIDE", "1", 1);
		act(r, 1, ROWS, bar, portfolio, fused);
		unsetenv("FH_GPU_WIDE");
		assert_memory_equal(layers, fused, sizeof layers);
		market_unref(m);
		rig_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_depend_on_no_other), cmocka_unit_test(ahead_is_bar_by_bar), cmocka_unit_test(one_launch_and_layers_agree),
		cmocka_unit_test(trials_depend_on_no_other), cmocka_unit_test(many_trials_go_in_parts),
		cmocka_unit_test(who_acts_is_kept_while_training_goes_on),
		cmocka_unit_test(trials_are_as_alone), cmocka_unit_test(a_job_says_what_its_networks_do),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
