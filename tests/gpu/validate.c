/* Acting for evaluations on the device: a row's actions are the same bits among any rows; they are the host's but for
 * near-ties; and an evaluation that looks ahead on the device is the device's own walk bar by bar, bit for bit. */
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

static void open_both(struct rig *r, int policy, int trial)
{
	int rows, few;

	for (int b = 0; b < 2; b++) {
		RIG_OK(r->x[b]->backend->act_open(r->x[b], policy, trial, &rows, &few, &r->st));
		assert_true(few >= 1 && few <= rows);
	}
	assert_true(rows >= ROWS); /* of the device, the last one asked */
}

static void act(struct rig *r, int b, int rows, const int32_t *bar, const float *portfolio, int32_t *action)
{
	int most = b ? rows : 7, n; /* the host takes fewer at once */

	for (int at = 0; at < rows; at += n) {
		n = rows - at < most ? rows - at : most;
		RIG_OK(r->x[b]->backend->act(r->x[b], n, bar + at, portfolio + at * FH_PORTFOLIO_FEATURES, action + at * r->d.D, &r->st));
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

/* ---------------------------------------------------------------- evaluations */

static int act_on(void *ctx, int rows, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct exec *x = ctx;

	return x->backend->act(x, rows, bar, portfolio, action, st);
}

static double share_least(int precision)
{
	return precision == FH_PRECISION_F32 ? 0.99 : precision == FH_PRECISION_TF32 ? 0.95 : 0.9;
}

struct played { struct eval_report report; struct eval_row *row; int64_t rows, calls, asked; };

static struct played play(struct rig *r, int b, struct market *m, int rows, int few, int windows)
{
	const struct eval_actor actor = {act_on, r->x[b], rows, few};
	struct env_config config;
	struct evaluation *e = NULL;
	struct played p;
	const struct eval_row *row;

	eval_env_config(&r->plan[0].spec, 1.0, &config);
	config.initial_cash = 2000;
	const struct eval_setup s = {.actor = &actor, .market = m, .config = &config, .split = {700, BARS}, .windows = windows, .trace = 1};
	RIG_OK(evaluation_make(&s, &e, &r->st));
	while (!evaluation_run_on(e, 1000000, &r->st))
		;
	assert_int_equal(evaluation_run_on(e, 0, &r->st), 1);
	evaluation_report(e, &p.report);
	evaluation_effort(e, &p.calls, &p.asked);
	row = evaluation_trace(e, &p.rows);
	p.row = malloc(sizeof *row * (size_t)p.rows);
	assert_non_null(p.row);
	memcpy(p.row, row, sizeof *row * (size_t)p.rows);
	evaluation_free(e);
	return p;
}

/* Bars where the host's evaluation of the same network did the same; a near-tie that falls the other way changes the position
 * and with it what follows, for a while. */
static double share_of_the_host(struct rig *r, struct market *m, const struct played *device, int windows)
{
	struct played host;
	int64_t same = 0;
	int rows, few;

	RIG_OK(r->x[0]->backend->act_open(r->x[0], FH_POLICY_TARGET, 0, &rows, &few, &r->st));
	host = play(r, 0, m, rows, few, windows);
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
			struct played slow, fast;
			int rows, few;

			RIG_OK(r->x[1]->backend->act_open(r->x[1], FH_POLICY_TARGET, 0, &rows, &few, &r->st));
			slow = play(r, 1, m, 1, 1, windows);
			fast = play(r, 1, m, rows, few, windows);
			assert_int_equal(slow.calls, slow.rows);
			assert_true(2 * fast.calls < slow.calls);
			assert_memory_equal(&slow.report, &fast.report, sizeof slow.report);
			assert_int_equal(slow.rows, fast.rows);
			for (int64_t i = 0; i < slow.rows; i++) {
				const struct eval_row *a = &slow.row[i], *b = &fast.row[i];

				assert_memory_equal(a->action, b->action, sizeof a->action);
				assert_true(a->bar == b->bar && a->fill == b->fill && a->fill_price == b->fill_price && a->exit == b->exit &&
					    a->q == b->q && a->cash == b->cash && a->equity == b->equity && a->reward == b->reward);
			}
			double share = share_of_the_host(r, m, &slow, windows);
			if (share < share_least(precision))
				fail_msg("precision %d, %d windows: %.4f of the host's actions", precision, windows, share);
			free(slow.row);
			free(fast.row);
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
		const struct eval_actor actor = {act_on, t->x, 1, 1};
		const struct eval_setup s = {.actor = &actor, .market = m, .config = &config, .split = t->split[sample->split]};
		struct evaluation *e = NULL;
		struct eval_report r;
		int rows, few;

		if (!sample->validation || sample->step != t->planned)
			continue;
		if (rig_cuda->act_open(t->x, sample->policy, sample->trial, &rows, &few, &st) || evaluation_make(&s, &e, &st))
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
		cmocka_unit_test(a_job_says_what_its_networks_do),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
