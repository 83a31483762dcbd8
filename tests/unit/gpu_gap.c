/* Promises of env.max_gap and env.roll_on_symbol_change: an order never fills across a longer gap, whatever its type, and what is held bears the gap; at 0 and without such gaps
 * every bit is as it was; features of a market can leave gaps out and no other market changes with it. */
#include "tests/unit/bars.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "gpu/env.h"
#include "gpu/evaluate.h"
#include "gpu/market.h"
#include "proto/status.h"

#define SECOND INT64_C(1000000000)
#define N 600
#define HOUR 3600.0

static struct env_config config(double max_gap)
{
	return (struct env_config){.tick = 0.25, .multiplier = 50, .half_spread = 0.125, .fee = 2, .max_position = 2, .lot = 1,
				   .initial_cash = 1e6, .reward_scale = 1, .pt = 2, .sl = 2, .ruin_fraction = 0.5, .episode_length = 100000,
				   .horizon = 40, .max_gap = max_gap};
}

static void a_gap_is_longer_than_the_bound(void **state)
{
	struct env_config c = config(HOUR), off = config(0);

	assert_false(env_over(&c, 0, 3600 * SECOND, 0));
	assert_true(env_over(&c, 0, 3600 * SECOND + 1000, 1) == ENV_OVER_GAP);
	assert_false(env_over(&off, 0, INT64_MAX / 2, 1));
	assert_true(env_over(&c, -INT64_MAX / 4, INT64_MAX / 4, 0));
}

static void orders_lapse_and_exits_do_not(void **state)
{
	struct env_config c = config(HOUR);
	const struct env_bar next = {100, 103, 97, 101}, crash = {80, 81, 79, 80};

	for (int order = ENV_MARKET; order <= ENV_IOC; order++) {
		const int32_t buy[3] = {4, order, 2}, sell[3] = {0, order, 2};
		struct env_state s, t;
		struct env_result r;

		env_start(&s, &c, 200);
		t = s;
		env_step_over(&s, &c, buy, 100, &next, 0.01, 1000, 1, 1, &r);
		assert_true(r.fill == 0 && r.exit == ENV_EXIT_NONE && s.q == 0 && s.cash == 1e6 && s.equity == 1e6 && r.reward == 0);
		env_step_over(&t, &c, buy, 100, &next, 0.01, 1000, 1, 0, &r);
		assert_true(r.fill == 2);
		assert_int_equal(s.t, t.t);
		/* long 2 over a gap that opens far below the stop: the sell order lapses, the stop does its work at the open */
		env_step_over(&t, &c, sell, 101, &crash, 0.01, 1000, 1, 1, &r);
		assert_true(r.fill == 0 && r.exit == ENV_EXIT_STOP_OPEN && r.exit_fill == -2 && r.exit_price == 80 - 0.125 && t.q == 0);
	}
}

static void env_step_is_a_step_without_a_gap(void **state)
{
	struct env_config a = config(0), b = config(1);
	struct env_state s, t;
	struct env_result x, y;

	memset(&s, 0, sizeof s); /* compared with its padding */
	memset(&t, 0, sizeof t);
	env_start(&s, &a, 200);
	env_start(&t, &b, 200);
	for (int i = 0; i < 3000; i++) {
		const int32_t action[3] = {i * 7 % 5, i * 5 % 3, i % 3};
		double o = 100 + sin(i * 0.7), c = 100 + sin(i * 0.7 + 1);
		const struct env_bar bar = {o, fmax(o, c) + 0.5, fmin(o, c) - 0.5, c};
		memset(&x, 0, sizeof x);
		memset(&y, 0, sizeof y);
		env_step(&s, &a, action, o, &bar, 0.002, 1 << 30, 1, &x);
		env_step_over(&t, &b, action, o, &bar, 0.002, 1 << 30, 1, 0, &y);
		assert_memory_equal(&s, &t, sizeof s);
		assert_memory_equal(&x, &y, sizeof x);
	}
}

/* Long or short across a change of the contract: what it costs, that the step earns nothing, and that barriers come along. */
static void a_position_is_rolled(void **state)
{
	struct env_config c = config(0);
	const struct env_bar first = {100, 100.5, 99.5, 100}, next = {140, 140.5, 139.5, 140}; /* the new contract stands 40 higher */

	c.roll_on = 1;
	for (int side = -1; side <= 1; side += 2) {
		const int32_t hold[3] = {side > 0 ? 4 : 0, ENV_MARKET, 2}, flat[3] = {2, ENV_MARKET, 2};
		struct env_state s, was;
		struct env_result r;
		double profit, stop, profit_was, stop_was;

		env_start(&s, &c, 200);
		env_step_over(&s, &c, hold, 100, &first, 0.01, 1000, 1, 0, &r);
		was = s;
		env_barriers(&s, &c, &profit_was, &stop_was);
		env_step_over(&s, &c, hold, 100, &next, 0.01, 1000, 1, ENV_OVER_ROLL, &r);
		assert_true(r.roll == 2 * side && r.roll_out == 100 - side * 0.125 && r.roll_in == 140 + side * 0.125);
		assert_true(r.fill == 0 && r.exit == ENV_EXIT_NONE && s.q == 2 * side);
		assert_true(fabs(s.equity - (was.equity - 2 * 2 * (0.125 * 50 + 2))) < 1e-9);
		env_barriers(&s, &c, &profit, &stop);
		assert_true(s.entry == was.entry + 40 && s.entry_bar == was.entry_bar && s.entry_sigma == was.entry_sigma);
		/* the same numbers without roll_on: the step is earned or lost */
		struct env_config off = c;
		struct env_state t = was;
		off.roll_on = 0;
		assert_int_equal(env_over(&off, 0, SECOND, 1), 0);
		env_step_over(&t, &off, hold, 100, &next, 0.01, 1000, 1, env_over(&off, 0, SECOND, 1), &r);
		assert_true(r.roll == 0 && fabs(t.equity - was.equity) > 500);
		/* closing with a market order in the same bar happens in the new contract */
		t = was;
		env_step_over(&t, &c, flat, 100, &next, 0.01, 1000, 1, ENV_OVER_ROLL, &r);
		assert_true(r.fill == -2 * side && r.fill_price == 140 - side * 0.125 && t.q == 0);
		assert_true(fabs(t.cash - (was.equity - 2 * 2 * (0.125 * 50 + 2) - 2 * (0.125 * 50 + 2))) < 1e-9);
		for (int order = ENV_LIMIT; order <= ENV_IOC; order++) {
			const int32_t other[3] = {2, order, 2};
			t = was;
			env_step_over(&t, &c, other, 100, &first, 0.01, 1000, 1, ENV_OVER_ROLL, &r);
			assert_true(r.fill == 0 && r.roll == 2 * side);
			t = was;
			env_step_over(&t, &c, hold, 100, &next, 0.01, 1000, 1, ENV_OVER_ROLL | ENV_OVER_GAP, &r);
			assert_true(r.fill == 0 && r.roll == 2 * side);
		}
	}
	struct env_state s;
	struct env_result r;
	const int32_t flat[3] = {2, ENV_MARKET, 2};
	env_start(&s, &c, 200);
	env_step_over(&s, &c, flat, 100, &next, 0.01, 1000, 1, ENV_OVER_ROLL, &r);
	assert_true(r.roll == 0 && s.cash == 1e6); /* nothing held, nothing rolled, nothing paid */
}

static void hold_long(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	action[0] = 4;
	action[1] = ENV_MARKET;
	action[2] = 2;
}

/* Two flat contracts at 100 and 140, a third at 90: holding through both rolls costs what the orders cost. */
static void a_market_with_rolls(void **state)
{
	const int64_t rolls[2] = {250, 400}, bad[][2] = {{0, 5}, {5, 5}, {5, N}, {9, 3}};
	struct fh_status st = FH_STATUS_INIT;
	struct env_config c = config(0);
	struct fh_split split = {0, N};
	struct market *m, *plain, *back, *part;
	struct evaluation *e;
	struct eval_report report;
	struct bars b;
	char path[] = "/tmp/fh-rolls-XXXXXX";

	bars_alloc(&b, N);
	for (int i = 0; i < N; i++) {
		b.ts[i] = (1704186000 + 60 * i) * SECOND;
		b.open[i] = b.high[i] = b.low[i] = b.close[i] = i < 250 ? 100 : i < 400 ? 140 : 90;
		b.volume[i] = 1;
	}
	assert_int_equal(market_build_rolls(&b.view, 0.25, rolls, 2, &m, &st), 0);
	assert_int_equal(market_build(&b.view, 0.25, &plain, &st), 0);
	assert_string_not_equal(m->hash, plain->hash);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(market_build_rolls(&b.view, 0.25, bad[i], 2, &back, &st), FH_INVALID);
	for (int64_t t = 1; t < N; t++) /* nothing ever moved */
		assert_true(m->feature[t * FH_MARKET_FEATURES] == 0 && m->sigma[t] == 1e-8f);
	assert_true(fabsf(plain->feature[250 * FH_MARKET_FEATURES]) > 4);

	close(mkstemp(path));
	assert_int_equal(market_save(m, path, NULL, &st), 0);
	assert_int_equal(market_load(path, 0.25, &back, &st), 0);
	assert_int_equal(back->rolls, 2);
	assert_string_equal(back->hash, m->hash);
	assert_memory_equal(back->rolled, m->rolled, N);
	assert_memory_equal(back->feature, m->feature, N * FH_MARKET_FEATURES * sizeof(float));
	assert_int_equal(market_prefix(back, 400, &part, &st), 0);
	assert_int_equal(part->rolls, 1);
	unlink(path);

	c.roll_on = 1;
	eval_hold_config(&c);
	for (int with = 0; with < 2; with++) {
		assert_int_equal(evaluation_new(NULL, hold_long, NULL, with ? m : plain, &c, split, 1, &e, &st), 0);
		while (!evaluation_run(e, INT64_C(1) << 40))
			;
		evaluation_report(e, &report);
		/* one purchase, then two rolls of two sides each; without rolls the steps of +40 and -50 are earned and lost */
		double side_cost = 2 * (0.125 * 50 + 2), want = with ? -side_cost * 5 : -side_cost + 2 * 50 * (40 - 50);
		assert_true(fabs(report.pnl - want) < 1e-6);
		assert_true(report.trades == (with ? 5 : 1));
		evaluation_free(e);
	}
	market_unref(m);
	market_unref(plain);
	market_unref(back);
	market_unref(part);
	bars_free(&b);
}

/* A walk of minutes with a gap of two hours and a jump every 50 bars. */
static struct market *market(double max_gap)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bars b;
	struct market *m;

	bars_alloc(&b, N);
	for (int i = 0; i < N; i++) {
		int gap = i && i % 50 == 0;
		b.ts[i] = (i ? b.ts[i - 1] : 1704186000 * SECOND) + (gap ? 7200 : 60) * SECOND;
		b.open[i] = i ? b.close[i - 1] + (gap ? (i % 100 ? 20 : -20) : 0) : 1000;
		b.close[i] = b.open[i] + 0.25 * ((i * 37 % 11) - 5);
		b.high[i] = fmax(b.open[i], b.close[i]) + 0.5;
		b.low[i] = fmin(b.open[i], b.close[i]) - 0.5;
		b.volume[i] = i % 13;
	}
	if (market_build(&b.view, 0.25, &m, &st))
		fail_msg("%s", st.text);
	market_leave_out_gaps(m, max_gap);
	bars_free(&b);
	return m;
}

static void always_trading(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	action[0] = t % 2 ? 4 : 0;
	action[1] = (int32_t)(t / 2 % 3);
	action[2] = 2;
}

/* Fills in bars after a gap, and in all. */
static void count(double max_gap, int *over, int *all)
{
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = market(0);
	struct env_config c = config(max_gap);
	struct evaluation *e;
	struct fh_split split = {0, N};
	const struct eval_row *row;
	int64_t rows;

	assert_int_equal(evaluation_new(NULL, always_trading, NULL, m, &c, split, 1, &e, &st), 0);
	while (!evaluation_run(e, INT64_C(1) << 40))
		;
	row = evaluation_trace(e, &rows);
	*over = *all = 0;
	for (int64_t i = 0; i < rows; i++) {
		*all += row[i].fill != 0;
		*over += row[i].fill != 0 && row[i].bar % 50 == 0;
	}
	evaluation_free(e);
	market_unref(m);
}

static void an_evaluation_never_fills_across_a_long_gap(void **state)
{
	int over, all, over_off, all_off;

	count(HOUR, &over, &all);
	count(0, &over_off, &all_off);
	assert_int_equal(over, 0);
	assert_true(over_off >= 3);
	assert_true(all >= all_off - over_off - 20 && all > 100);
	count(7200, &over, &all); /* a gap of exactly that is none */
	assert_int_equal(over, over_off);
	assert_int_equal(all, all_off);
}

static void features_leave_gaps_out_where_asked(void **state)
{
	struct market *plain = market(0), *out = market(HOUR), *none = market(1e9), *back = market(HOUR), *first;

	assert_memory_equal(plain->feature, none->feature, N * FH_MARKET_FEATURES * sizeof(float));
	assert_memory_equal(plain->sigma, none->sigma, N * sizeof(float));
	assert_memory_equal(plain->feature, out->feature, 50 * FH_MARKET_FEATURES * sizeof(float));
	assert_string_equal(plain->hash, out->hash);
	for (int t = 50; t < N; t += 50) {
		assert_true(fabsf(plain->feature[t * FH_MARKET_FEATURES]) > 2);
		assert_true(fabsf(out->feature[t * FH_MARKET_FEATURES]) < 3);
		assert_true(out->sigma[t] < plain->sigma[t] * 0.9f);
	}
	market_leave_out_gaps(back, 0);
	assert_memory_equal(plain->feature, back->feature, N * FH_MARKET_FEATURES * sizeof(float));
	assert_int_equal(market_prefix(out, 333, &first, NULL), 0);
	assert_memory_equal(first->feature, out->feature, 333 * FH_MARKET_FEATURES * sizeof(float));
	assert_true(first->max_gap == HOUR);
	market_unref(plain);
	market_unref(out);
	market_unref(none);
	market_unref(back);
	market_unref(first);
}

/* ---------------------------------------------------------------- golden values (tests/data/gaps.py) */

static void golden_features(void **state)
{
	static const struct { const char *name; int gaps, rolls; } kind[] = {{"plain", 0, 0}, {"gaps", 1, 0}, {"rolls", 0, 1}, {"both", 1, 1}};
	struct st_file *f = golden_open("gaps");
	int64_t n, rolls;
	const int64_t *roll = golden_i64(f, "roll", &rolls);
	struct bars b;

	bars_golden(&b, f, "");
	n = b.view.bars;
	for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
		double *out = malloc((size_t)n * (FH_MARKET_FEATURES + 1) * 8), *sigma = out + n * FH_MARKET_FEATURES;
		struct market_steps s = {kind[i].gaps ? golden_real(f, "max_gap") : 0, kind[i].rolls ? roll : NULL, kind[i].rolls ? rolls : 0};
		char name[32], what[64];

		market_features_steps64(&b.view, golden_real(f, "tick"), &s, out, sigma);
		snprintf(name, sizeof name, "%s.feature", kind[i].name);
		for (int c = 0; c < FH_MARKET_FEATURES; c++) {
			snprintf(what, sizeof what, "%s, column %d", kind[i].name, c);
			assert_within(column_error(out, golden_f64(f, name, NULL), n, FH_MARKET_FEATURES, c), 1e-9, what);
		}
		snprintf(name, sizeof name, "%s.sigma", kind[i].name);
		assert_within(column_error(sigma, golden_f64(f, name, NULL), n, 1, 0), 1e-12, name);
		free(out);
	}
	bars_free(&b);
	st_close(f);
}

static double golden_setting(const struct st_file *f, const char *name, const char *key)
{
	char full[64];

	snprintf(full, sizeof full, "%s.%s", name, key);
	return golden_real(f, full);
}

static struct env_config golden_config(const struct st_file *f, const char *n)
{
	return (struct env_config){
		.tick = golden_setting(f, n, "tick"), .multiplier = golden_setting(f, n, "multiplier"), .half_spread = golden_setting(f, n, "half_spread"),
		.fee = golden_setting(f, n, "fee"), .max_position = golden_setting(f, n, "max_position"), .lot = golden_setting(f, n, "lot"),
		.initial_cash = golden_setting(f, n, "initial_cash"), .reward_scale = golden_setting(f, n, "reward_scale"),
		.pt = golden_setting(f, n, "pt"), .sl = golden_setting(f, n, "sl"), .ruin_fraction = golden_setting(f, n, "ruin_fraction"),
		.episode_length = (int32_t)golden_setting(f, n, "episode_length"), .horizon = (int32_t)golden_setting(f, n, "horizon"),
		.max_gap = golden_setting(f, n, "max_gap"), .roll_on = (int32_t)golden_setting(f, n, "roll_on"),
	};
}

enum { GOLDEN_REALS = 12, GOLDEN_FLAGS = 3 };

static const void *of(const struct st_file *f, const char *name, const char *what, enum st_dtype dtype, int64_t *n)
{
	char full[64];

	snprintf(full, sizeof full, "%s.%s", name, what);
	return golden_data(f, full, dtype, n);
}

/* One episode over rolls and gaps: prices, money and portfolio features in F64, flags exactly. */
static void golden_rollout(const struct st_file *f, const struct bars *b, const char *name)
{
	struct env_config c = golden_config(f, name);
	int64_t n, rolls;
	const int64_t *roll = golden_i64(f, "roll", &rolls);
	const float *sigma = of(f, name, "sigma32", ST_F32, NULL);
	const int32_t *action = of(f, name, "action", ST_I32, &n), *flag = of(f, name, "flag", ST_I32, NULL);
	const double *real = of(f, name, "real", ST_F64, NULL), *portfolio = of(f, name, "portfolio", ST_F64, NULL);
	int32_t last = (int32_t)b->view.bars - 1;
	double *out = malloc((size_t)(n /= 3) * (GOLDEN_REALS + ENV_FEATURES) * 8), *seen = out + n * GOLDEN_REALS;
	struct env_state s;
	char what[64];

	assert_string_equal(golden_meta(f, "columns"), "roll,roll_out,roll_in,fill,fill_price,exit_fill,exit_price,cash,q,entry,equity,reward");
	assert_string_equal(golden_meta(f, "flags"), "exit,terminated,truncated");
	env_start(&s, &c, (int32_t)golden_int(f, "begin"));
	for (int64_t i = 0; i < n; i++) {
		int64_t t = s.t, at = t + 1;
		struct env_bar next = {b->open[at], b->high[at], b->low[at], b->close[at]};
		struct env_result r;
		int rolled = 0;

		for (int64_t k = 0; k < rolls; k++)
			rolled |= roll[k] == at;
		env_step_over(&s, &c, action + 3 * i, b->close[t], &next, sigma[t], last, 0, env_over(&c, b->ts[t], b->ts[at], rolled), &r);
		memcpy(out + i * GOLDEN_REALS, (double[GOLDEN_REALS]){r.roll, r.roll_out, r.roll_in, r.fill, r.fill_price, r.exit_fill, r.exit_price,
		       s.cash, s.q, s.entry, s.equity, r.reward}, GOLDEN_REALS * 8);
		env_features64(&s, &c, b->close[s.t], sigma[s.t], last - s.t, seen + i * ENV_FEATURES);
		if (flag[3 * i] != r.exit || flag[3 * i + 1] != r.terminated || flag[3 * i + 2] != r.truncated)
			fail_msg("%s, step %d: flags %d %d %d, not %d %d %d", name, (int)i, r.exit, r.terminated, r.truncated, flag[3 * i],
				 flag[3 * i + 1], flag[3 * i + 2]);
	}
	assert_int_equal(s.t, last);
	for (int k = 0; k < GOLDEN_REALS; k++) {
		snprintf(what, sizeof what, "%s, column %d", name, k);
		assert_within(column_error(out, real, n, GOLDEN_REALS, k), 1e-9, what);
	}
	for (int k = 0; k < ENV_FEATURES; k++) {
		snprintf(what, sizeof what, "%s, portfolio %d", name, k);
		assert_within(column_error(seen, portfolio, n, ENV_FEATURES, k), 1e-8, what);
	}
	free(out);
}

static void golden_rollouts(void **state)
{
	struct st_file *f = golden_open("gaps");
	struct bars b;

	bars_golden(&b, f, "");
	golden_rollout(f, &b, "both");
	golden_rollout(f, &b, "rolls");
	golden_rollout(f, &b, "gaps");
	bars_free(&b);
	st_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_gap_is_longer_than_the_bound), cmocka_unit_test(orders_lapse_and_exits_do_not),
		cmocka_unit_test(env_step_is_a_step_without_a_gap), cmocka_unit_test(an_evaluation_never_fills_across_a_long_gap),
		cmocka_unit_test(features_leave_gaps_out_where_asked), cmocka_unit_test(a_position_is_rolled),
		cmocka_unit_test(a_market_with_rolls), cmocka_unit_test(golden_features), cmocka_unit_test(golden_rollouts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
