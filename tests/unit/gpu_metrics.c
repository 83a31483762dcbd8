/* The validation report against the golden curves, evaluation episodes against the golden ones, reports that stay
 * finite, and the scripts. */
#include "gpu/dqn/dqn.h"
#include "gpu/evaluate.h"
#include "tests/unit/bars.h"
#include "tests/unit/market.h"

#define METRICS 11

static void report_values(const struct eval_report *r, double out[METRICS])
{
	const double v[METRICS] = {
		r->pnl, r->ret, r->bars_per_year, r->sharpe, r->sortino, r->max_drawdown, r->trades, r->closed, r->win_rate,
		r->turnover, r->exposure,
	};

	memcpy(out, v, sizeof(v));
}

static void check_report(const struct eval_report *r, const double *ref, const char *what)
{
	static const char *const name[METRICS] = {
		"pnl", "ret", "bars_per_year", "sharpe", "sortino", "max_drawdown", "trades", "closed", "win_rate", "turnover", "exposure",
	};
	double v[METRICS];
	char text[64];

	report_values(r, v);
	for (int k = 0; k < METRICS; k++) {
		snprintf(text, sizeof(text), "%s %s", what, name[k]);
		assert_within(fabs(v[k] - ref[k]), 1e-11 * fabs(ref[k]), text);
	}
}

static void check_finite(const struct eval_report *r)
{
	double v[METRICS];

	report_values(r, v);
	for (int k = 0; k < METRICS; k++)
		assert_true(isfinite(v[k]));
}

/* Settings of env.safetensors and metrics.safetensors. */
static void config_read(const struct st_file *f, struct env_config *c)
{
	*c = (struct env_config){
		.tick = golden_real(f, "tick"), .multiplier = golden_real(f, "multiplier"), .half_spread = golden_real(f, "half_spread"),
		.fee = golden_real(f, "fee"), .max_position = golden_real(f, "max_position"), .lot = golden_real(f, "lot"),
		.initial_cash = golden_real(f, "initial_cash"), .reward_scale = golden_real(f, "reward_scale"), .pt = golden_real(f, "pt"),
		.sl = golden_real(f, "sl"), .ruin_fraction = golden_real(f, "ruin_fraction"),
		.episode_length = (int32_t)golden_int(f, "episode_length"), .horizon = (int32_t)golden_int(f, "horizon"),
	};
}

/* ---------------------------------------------------------------- golden curves */

static void golden_curves(void **state)
{
	static const char *const curve[] = {"walk", "constant", "first_bar", "ruin", "doubling", "rising", "one_step"};
	static const unsigned notes[] = {
		0, EVAL_NOTE_NO_DEVIATION | EVAL_NOTE_NO_DOWNSIDE, 0, 0, EVAL_NOTE_NO_DEVIATION | EVAL_NOTE_NO_DOWNSIDE,
		EVAL_NOTE_NO_DOWNSIDE, EVAL_NOTE_FEW_BARS | EVAL_NOTE_NO_DOWNSIDE,
	};
	struct st_file *f = golden_open("metrics");
	struct env_config cfg;

	(void)state;
	assert_string_equal(golden_meta(f, "order"),
			    "pnl,ret,bars_per_year,sharpe,sortino,max_drawdown,trades,closed,win_rate,turnover,exposure");
	config_read(f, &cfg);
	for (size_t k = 0; k < sizeof(curve) / sizeof(curve[0]); k++) {
		struct eval_report r;
		char name[64];
		int64_t n, nq, nf, T;
		double *equity, *q, *fills;
		const int64_t *ts;

		snprintf(name, sizeof(name), "%s.equity", curve[k]);
		equity = golden_double(f, name, &n);
		snprintf(name, sizeof(name), "%s.q", curve[k]);
		q = golden_double(f, name, &nq);
		snprintf(name, sizeof(name), "%s.fills", curve[k]);
		fills = golden_double(f, name, &nf);
		snprintf(name, sizeof(name), "%s.ts", curve[k]);
		ts = golden_i64(f, name, &T);
		snprintf(name, sizeof(name), "%s.metrics", curve[k]);
		assert_int_equal(n, nq + 1);
		eval_metrics(equity, q, nq, (const double (*)[2])(void *)fills, nf / 2, ts, T, &cfg, &r);
		check_report(&r, golden_f64(f, name, NULL), curve[k]);
		assert_int_equal(r.bars, nq);
		assert_int_equal(r.notes, notes[k]);
		assert_int_equal(r.ruined, !strcmp(curve[k], "ruin"));
		free(equity);
		free(q);
		free(fills);
	}
	st_close(f);
}

/* ---------------------------------------------------------------- golden episodes */

struct replay { const int32_t *action; int64_t first; const double *obs; const struct env_config *cfg; int64_t end, seen; double *out; };

/* Plays the golden actions and keeps what a policy would have seen. */
static void replay_script(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	struct replay *r = ctx;

	memcpy(action, r->action + 3 * (t - r->first), 3 * sizeof(*action));
	env_features64(s, r->cfg, m->close[t], m->sigma[t], (int32_t)(r->end - 1 - t), r->out + ENV_FEATURES * r->seen++);
}

static const struct eval_row *run_golden(const char *name, struct st_file *f, struct bars *b, struct env_config *cfg, struct replay *re,
					 struct evaluation **e, int64_t *rows, int64_t budget)
{
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = NULL;
	struct fh_split split = {golden_int(f, "val_begin"), golden_int(f, "val_end")};
	char key[64];

	config_read(f, cfg);
	snprintf(key, sizeof(key), "%s_initial_cash", name);
	cfg->initial_cash = golden_real(f, key);
	bars_golden(b, f, "");
	assert_int_equal(market_build(&b->view, cfg->tick, &m, &st), 0);
	snprintf(key, sizeof(key), "%s.action", name);
	*re = (struct replay){golden_i32(f, key, NULL), split.begin, NULL, cfg, split.end, 0, malloc(sizeof(double) * 8 * 1100)};
	assert_int_equal(evaluation_new(NULL, replay_script, re, m, cfg, split, 1, e, &st), 0);
	market_unref(m); /* the evaluation holds its own reference */
	while (!evaluation_run(*e, budget))
		;
	return evaluation_trace(*e, rows);
}

static const double *column_of(const struct st_file *f, const char *name, const char *column)
{
	char key[64];

	snprintf(key, sizeof(key), "%s.%s", name, column);
	return golden_f64(f, key, NULL);
}

static void check_episode(const char *name)
{
	struct st_file *f = golden_open("env");
	struct evaluation *e = NULL;
	struct eval_report report;
	struct env_config cfg;
	struct replay re;
	struct bars b;
	char key[64];
	int64_t n, golden_n, fills = 0;
	const struct eval_row *row = run_golden(name, f, &b, &cfg, &re, &e, &n, 1000000);
	const double *fill = column_of(f, name, "fills");
	const int32_t *bar, *exit;

	snprintf(key, sizeof(key), "%s.bar", name);
	bar = golden_i32(f, key, &golden_n);
	snprintf(key, sizeof(key), "%s.exit", name);
	exit = golden_i32(f, key, NULL);
	assert_int_equal(n, golden_n);
	assert_int_equal(evaluation_done_bars(e), golden_n);
	for (int64_t i = 0; i < n; i++) {
		assert_int_equal(row[i].bar, bar[i] + 1);
		assert_true(row[i].ts == b.ts[bar[i] + 1]);
		assert_int_equal(row[i].exit, exit[i]);
		assert_memory_equal(row[i].action, re.action + 3 * i, 3 * sizeof(int32_t));
		assert_true(row[i].fill == column_of(f, name, "fill")[i]);
		assert_true(row[i].exit_fill == column_of(f, name, "exit_fill")[i]);
		assert_true(row[i].q == column_of(f, name, "q")[i]);
		assert_true(row[i].cash == column_of(f, name, "cash")[i]);
		assert_true(row[i].equity == column_of(f, name, "equity")[i]);
		if (row[i].fill != 0.0) {
			assert_true(row[i].fill == fill[2 * fills] && row[i].fill_price == fill[2 * fills + 1]);
			fills++;
		}
		if (row[i].exit_fill != 0.0) {
			assert_true(row[i].exit_fill == fill[2 * fills] && row[i].exit_price == fill[2 * fills + 1]);
			fills++;
		}
	}
	for (int k = 0; k < ENV_FEATURES; k++)
		assert_within(column_error(re.out, column_of(f, name, "obs"), n, ENV_FEATURES, k), 1e-13, "validation obs");
	evaluation_report(e, &report);
	check_report(&report, column_of(f, name, "metrics"), name);
	assert_int_equal(report.ruined, !strcmp(name, "val_ruin"));
	free(re.out);
	evaluation_free(e);
	bars_free(&b);
	st_close(f);
}

static void golden_episode_to_the_end(void **state)
{
	(void)state;
	check_episode("val");
}

static void golden_episode_into_ruin(void **state)
{
	(void)state;
	check_episode("val_ruin");
}

static void slices_change_no_bit(void **state)
{
	struct st_file *f = golden_open("env");
	struct evaluation *e[2] = {NULL, NULL};
	struct eval_report report[2];
	int64_t n[2];

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct env_config cfg;
		struct replay re;
		struct bars b;

		run_golden("val", f, &b, &cfg, &re, &e[k], &n[k], k ? 0 : INT64_C(1) << 60);
		evaluation_report(e[k], &report[k]);
		free(re.out);
		bars_free(&b);
	}
	assert_int_equal(n[0], n[1]);
	for (int64_t i = 0; i < n[0]; i++) {
		const struct eval_row *x = evaluation_trace(e[0], &n[0]) + i, *y = evaluation_trace(e[1], &n[1]) + i;

		assert_true(x->cash == y->cash && x->equity == y->equity && x->reward == y->reward && x->fee == y->fee);
	}
	assert_true(report[0].sharpe == report[1].sharpe && report[0].pnl == report[1].pnl);
	evaluation_free(e[0]);
	evaluation_free(e[1]);
	st_close(f);
}

/* ---------------------------------------------------------------- odd curves */

static const struct env_config plain = {
	.tick = 0.01, .multiplier = 1, .max_position = 1, .lot = 1, .initial_cash = 100, .reward_scale = 1, .pt = 2, .sl = 2,
	.ruin_fraction = 0.5, .episode_length = 256, .horizon = 60,
};

static void drawdown_counts_the_first_bar(void **state)
{
	struct eval_report r;
	struct bars b;
	const double q[4] = {1, 1, 1, 1};

	(void)state;
	bars_csv(&b, "mdd_first_bar");
	assert_int_equal(b.view.bars, 5);
	eval_metrics(b.close, q, 4, NULL, 0, b.ts, 5, &plain, &r);
	assert_within(fabs(r.max_drawdown - 0.25), 1e-15, "drawdown");
	assert_true(r.pnl == -20.0 && r.exposure == 1.0);
	assert_within(fabs(r.bars_per_year - 365.25), 1e-9, "daily bars a year");
	bars_free(&b);
}

static void reports_are_always_finite(void **state)
{
	static const double odd[] = {0.0, -0.0, 100.0, -100.0, 1e308, -1e308, 5e-324, 1e-300, 50.0};
	static const int64_t same_time[2] = {5, 5};
	const double one[1] = {100.0};
	struct eval_report r;

	(void)state;
	eval_metrics(one, NULL, 0, NULL, 0, same_time, 1, &plain, &r);
	check_finite(&r);
	assert_int_equal(r.notes, EVAL_NOTE_FEW_BARS | EVAL_NOTE_NO_TIME);
	for (uint32_t k = 0; k < 2000; k++) {
		double equity[9], q[8], fill[8][2];
		int64_t ts[9], n = 1 + k % 8;

		for (uint32_t i = 0; i < 9; i++) {
			struct philox_words w = philox_block(k, PHILOX_SYNTH, 7, i);

			equity[i] = i ? odd[w.w[0] % 9] : 100.0;
			ts[i] = k % 3 ? (int64_t)i * 60000000000 : 7;
			if (i < 8) {
				q[i] = (double)(w.w[1] % 3) - 1.0;
				fill[i][0] = (double)(w.w[2] % 5) - 2.0;
				fill[i][1] = odd[w.w[3] % 9];
			}
		}
		eval_metrics(equity, q, n, (const double (*)[2])fill, n, ts, n + 1, &plain, &r);
		check_finite(&r);
		assert_int_equal((r.notes & EVAL_NOTE_NO_TIME) != 0, k % 3 == 0);
	}
}

static void positions_are_split_at_crossings(void **state)
{
	static const double fill[3][2] = {{2, 10}, {-3, 11}, {1, 11}};
	static const double equity[2] = {100, 100}, q[1] = {0};
	static const int64_t ts[2] = {0, 60000000000};
	struct env_config c = plain;
	struct eval_report r;

	(void)state;
	c.fee = 0.5; /* long 2 from 10 to 11 earns 2 less 2 of fees: no win; short 1 from 11 to 11 loses 1 */
	eval_metrics(equity, q, 1, fill, 3, ts, 2, &c, &r);
	assert_true(r.closed == 2.0 && r.win_rate == 0.0 && r.trades == 3.0);
	assert_true(r.turnover == (20.0 + 33.0 + 11.0) / 100.0);
	c.fee = 0.25;
	eval_metrics(equity, q, 1, fill, 3, ts, 2, &c, &r);
	assert_true(r.win_rate == 0.5);
}

/* ---------------------------------------------------------------- scripts */

static struct eval_report run_script(eval_script script, struct market *m, const struct env_config *cfg, struct fh_split split)
{
	struct fh_status st = FH_STATUS_INIT;
	struct evaluation *e = NULL;
	struct eval_report r;

	assert_int_equal(evaluation_new(NULL, script, NULL, m, cfg, split, 0, &e, &st), 0);
	while (!evaluation_run(e, 1000000))
		;
	evaluation_report(e, &r);
	evaluation_free(e);
	return r;
}

static void scripts_do_what_they_are_named_for(void **state)
{
	struct market *m = test_market(SYNTH_MOMENTUM, 6000, 3, 0.01);
	struct fh_split split = {1000, 6000};
	struct env_config cfg = plain, hold;
	struct eval_report r;

	(void)state;
	cfg.initial_cash = 100000;
	cfg.half_spread = 0.005;
	cfg.fee = 0.01;
	r = run_script(eval_never_trade, m, &cfg, split);
	assert_true(r.pnl == 0.0 && r.trades == 0.0 && r.exposure == 0.0 && r.turnover == 0.0 && r.sharpe == 0.0);
	assert_int_equal(r.notes, EVAL_NOTE_NO_DEVIATION | EVAL_NOTE_NO_DOWNSIDE);
	hold = cfg;
	eval_hold_config(&hold);
	r = run_script(eval_buy_and_hold, m, &hold, split);
	assert_true(r.trades == 1.0 && r.closed == 0.0 && r.exposure == 1.0);
	assert_within(fabs(r.pnl - (m->close[5999] - m->open[1001] - cfg.half_spread - cfg.fee)), 1e-7, "buy and hold pays once");
	r = run_script(eval_buy_and_hold, m, &cfg, split);
	assert_true(r.trades > 100.0); /* the same with barriers is closed and bought again */
	cfg.half_spread = cfg.fee = 0.0;
	r = run_script(eval_last_sign, m, &cfg, split);
	assert_true(r.sharpe > 50.0); /* momentum is what it trades */
	market_unref(m);
}

static void splits_without_a_step_are_refused(void **state)
{
	struct market *m = test_market(SYNTH_WALK, 200, 1, 0.01);
	static const struct fh_split bad[] = {{0, 145}, {199, 200}, {-1, 200}, {0, 201}, {150, 100}};
	struct fh_status st;
	struct evaluation *e = NULL;

	(void)state;
	for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		assert_int_equal(evaluation_new(NULL, eval_never_trade, NULL, m, &plain, bad[k], 0, &e, &st), FH_INVALID);
		assert_null(e);
	}
	assert_int_equal(evaluation_new(NULL, eval_never_trade, NULL, m, &plain, (struct fh_split){0, 146}, 1, &e, &st), 0);
	assert_int_equal(evaluation_run(e, 0), 1);
	assert_int_equal(evaluation_done_bars(e), 1);
	evaluation_free(e);
	market_unref(m);
}

/* ---------------------------------------------------------------- a network decides */

/* The default network with its initial values, which already tells states apart. */
static struct policy *fresh_policy(int state_dim, uint64_t seed)
{
	static const int actions[DQN_BRANCHES] = {DQN_EXPOSURES, DQN_ORDERS, DQN_URGENCIES};
	struct fh_status st = FH_STATUS_INIT;
	struct policy *p = NULL;
	struct fh_spec spec;
	struct dqn_dims d;
	float *flat;

	spec_defaults(&spec);
	spec_resolve(&spec, FH_DEVICE_HOST);
	assert_int_equal(dqn_dims_make(&spec, state_dim, actions, DQN_BRANCHES, &d, &st), 0);
	flat = calloc((size_t)d.params, sizeof(float));
	assert_non_null(flat);
	dqn_init_params(&d, seed, flat);
	assert_int_equal(policy_new(&spec, state_dim, flat, &p, &st), 0);
	free(flat);
	return p;
}

static void an_episode_follows_its_policy(void **state)
{
	struct fh_split split = {500, 1500};
	struct market *m = test_market(SYNTH_MOMENTUM, 1600, 5, 0.01);
	struct policy *p = fresh_policy(FH_STATE_DIM, 4), *narrow;
	struct env_config cfg = plain;
	struct evaluation *e = NULL;
	struct env_state s;
	struct fh_status st;
	const struct eval_row *row;
	int64_t n, kinds = 0;

	(void)state;
	cfg.initial_cash = 10000;
	assert_int_equal(evaluation_new(p, NULL, NULL, m, &cfg, split, 1, &e, &st), 0);
	while (!evaluation_run(e, 1000000))
		;
	row = evaluation_trace(e, &n);
	assert_int_equal(n, 999);
	env_start(&s, &cfg, 500);
	for (int64_t i = 0; i < n; i++) { /* the state it must have seen, the action that belongs to it, the same money */
		struct env_bar next = {m->open[s.t + 1], m->high[s.t + 1], m->low[s.t + 1], m->close[s.t + 1]};
		float see[FH_STATE_DIM];
		int32_t action[FH_BRANCH_MAX] = {0};
		struct env_result r;

		memcpy(see, m->feature + (int64_t)s.t * FH_MARKET_FEATURES, sizeof(float) * FH_MARKET_FEATURES);
		env_features(&s, &cfg, m->close[s.t], m->sigma[s.t], 1499 - s.t, see + FH_MARKET_FEATURES);
		policy_act(p, see, 1, action, NULL);
		assert_memory_equal(action, row[i].action, sizeof(action));
		env_step(&s, &cfg, action, m->close[s.t], &next, m->sigma[s.t], 1499, 0, &r);
		assert_true(row[i].cash == s.cash && row[i].equity == s.equity && row[i].reward == r.reward);
		kinds += i && memcmp(row[i].action, row[i - 1].action, sizeof(action));
	}
	assert_true(kinds > 3); /* it did decide */
	evaluation_free(e);
	e = NULL;
	narrow = fresh_policy(FH_STATE_DIM - 1, 4);
	assert_int_equal(evaluation_new(narrow, NULL, NULL, m, &cfg, split, 1, &e, &st), FH_INVALID);
	assert_null(e);
	policy_free(narrow);
	policy_free(p);
	market_unref(m);
}

static void equal_pasts_of_two_files_give_equal_decisions(void **state)
{
	static const char *const name[2] = {"future_a", "future_b"};
	struct policy *p = fresh_policy(FH_STATE_DIM, 9);
	int32_t action[2][80 * DQN_BRANCHES];
	float q[2][80 * 11];

	(void)state;
	for (int k = 0; k < 2; k++) {
		static float see[80 * FH_STATE_DIM];
		struct fh_status st = FH_STATUS_INIT;
		struct market *m = NULL;
		struct env_state s;
		struct bars b;

		bars_csv(&b, name[k]);
		assert_int_equal(market_build(&b.view, 0.25, &m, &st), 0);
		env_start(&s, &plain, 0);
		for (int64_t t = 0; t < 80; t++) {
			memcpy(see + t * FH_STATE_DIM, m->feature + t * FH_MARKET_FEATURES, sizeof(float) * FH_MARKET_FEATURES);
			env_features(&s, &plain, m->close[t], m->sigma[t], ENV_STEPS_OWN, see + t * FH_STATE_DIM + FH_MARKET_FEATURES);
		}
		policy_act(p, see, 80, action[k], q[k]);
		market_unref(m);
		bars_free(&b);
	}
	assert_memory_equal(action[0], action[1], 60 * DQN_BRANCHES * sizeof(int32_t));
	assert_memory_equal(q[0], q[1], 60 * 11 * sizeof(float));
	assert_memory_not_equal(q[0], q[1], sizeof(q[0]));
	policy_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_curves), cmocka_unit_test(golden_episode_to_the_end), cmocka_unit_test(golden_episode_into_ruin),
		cmocka_unit_test(slices_change_no_bit), cmocka_unit_test(drawdown_counts_the_first_bar),
		cmocka_unit_test(reports_are_always_finite), cmocka_unit_test(positions_are_split_at_crossings),
		cmocka_unit_test(scripts_do_what_they_are_named_for), cmocka_unit_test(splits_without_a_step_are_refused),
		cmocka_unit_test(an_episode_follows_its_policy), cmocka_unit_test(equal_pasts_of_two_files_give_equal_decisions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
