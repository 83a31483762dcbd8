/* Looking ahead changes no bit: whatever was guessed, however far ahead, in whatever slices, whoever plays beside it, an evaluation
 * is the walk bar by bar. And windows: what they cover, that each is an episode of its own, and how their reports add up. */
#include "tests/unit/training.h"

#include <string.h>
#include "gpu/dqn/dqn.h"
#include "gpu/host/threads.h"
#include "gpu/trainer_impl.h"

#define BARS 1500
static const struct fh_split split = {300, BARS - 3};

struct setup { struct fh_spec spec; struct dqn_dims d; float *param; struct policy *policy; struct env_config config; };

static void setup_make(struct setup *s, int wide)
{
	static const int actions[] = {DQN_EXPOSURES, DQN_ORDERS, DQN_URGENCIES};
	struct fh_status st = FH_STATUS_INIT;

	spec_defaults(&s->spec);
	if (!wide) {
		s->spec.net.trunk1 = 24;
		s->spec.net.trunk2 = 40;
		s->spec.net.value_hidden = s->spec.net.advantage_hidden = 16;
		s->spec.net.atoms = 21;
	}
	spec_resolve(&s->spec, FH_DEVICE_HOST);
	assert_int_equal(dqn_dims_make(&s->spec, FH_STATE_DIM, actions, DQN_BRANCHES, &s->d, &st), 0);
	s->param = calloc((size_t)s->d.params, sizeof(*s->param));
	assert_non_null(s->param);
	assert_int_equal(policy_new(&s->spec, FH_STATE_DIM, s->param, &s->policy, &st), 0);
	eval_env_config(&s->spec, 1.0, &s->config);
	s->config.initial_cash = 2000;
}

static void setup_free(struct setup *s)
{
	policy_free(s->policy);
	free(s->param);
}

/* Weights `scale` times as large as at the start of a job: the larger, the wilder what the network makes of its position. */
static void random_network(struct setup *s, uint64_t seed, float scale)
{
	dqn_init_params(&s->d, seed, s->param);
	for (int64_t i = 0; i < s->d.params; i++)
		s->param[i] *= scale;
	policy_set(s->policy, s->param);
}

#define NETWORKS 5
struct asked { struct policy *policy[NETWORKS]; const struct market *m; int64_t rows, most; float *state; };

static int ask_policies(void *ctx, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action,
			struct fh_status *st)
{
	struct asked *a = ctx;
	int rows = 0;

	for (int k = 0, from = 0; k < parts; from += part[k++].rows) {
		assert_true(part[k].rows >= 1 && part[k].trial >= 0 && part[k].trial < NETWORKS && (k == 0 || part[k].trial > part[k - 1].trial));
		rows += part[k].rows;
		assert_true(rows <= a->most);
		for (int i = from; i < rows; i++) {
			float *x = a->state + (int64_t)i * FH_STATE_DIM;

			memcpy(x, a->m->feature + (int64_t)bar[i] * FH_MARKET_FEATURES, FH_MARKET_FEATURES * sizeof(*x));
			memcpy(x + FH_MARKET_FEATURES, portfolio + (int64_t)i * FH_PORTFOLIO_FEATURES, FH_PORTFOLIO_FEATURES * sizeof(*x));
		}
		policy_act(a->policy[part[k].trial], a->state + (int64_t)from * FH_STATE_DIM, part[k].rows, action + (int64_t)from * DQN_BRANCHES, NULL);
	}
	a->rows += rows;
	return 0;
}

struct outcome { struct eval_report report; struct eval_row *row; int64_t rows, asked; };

static void outcome_free(struct outcome *o)
{
	free(o->row);
}

static struct eval_room room; /* of one evaluation after the other, whatever each needs */

static struct outcome play_seen(const struct setup *s, struct market *m, int rows, int few, int windows, uint8_t *guess, float *seen,
				int64_t budget_ns)
{
	struct asked asked = {{s->policy}, m, 0, rows, malloc(sizeof(float) * FH_STATE_DIM * (size_t)rows)};
	const struct eval_actor actor = {ask_policies, &asked, {.rows = rows, .few = few, .least = few}};
	const struct eval_setup e = {.actor = &actor, .market = m, .config = &s->config, .split = split, .windows = windows, .trace = 1,
				     .guess = guess, .seen = seen, .room = &room};
	struct evaluation *run = NULL;
	struct fh_status st = FH_STATUS_INIT;
	struct outcome o = {.rows = 0};
	const struct eval_row *row;
	int64_t calls, all;
	int rc;

	assert_non_null(asked.state);
	if (evaluation_make(&e, &run, &st))
		fail_msg("%s", st.text);
	while (!(rc = evaluation_run_on(run, budget_ns, &st)))
		;
	assert_int_equal(rc, 1);
	evaluation_report(run, &o.report);
	row = evaluation_trace(run, &o.rows);
	o.row = malloc(sizeof(*row) * (size_t)(o.rows + 1));
	assert_non_null(o.row);
	memcpy(o.row, row, sizeof(*row) * (size_t)o.rows);
	evaluation_effort(run, &calls, &all);
	o.asked = asked.rows;
	assert_int_equal(all, asked.rows);
	assert_true(calls <= all && o.rows == evaluation_done_bars(run));
	evaluation_free(run);
	free(asked.state);
	return o;
}

static struct outcome play(const struct setup *s, struct market *m, int rows, int few, int windows, uint8_t *guess, int64_t budget_ns)
{
	return play_seen(s, m, rows, few, windows, guess, NULL, budget_ns);
}

/* Rows have padding, so field by field where it matters: all of it is copied from these. */
static void assert_same(const struct outcome *a, const struct outcome *b)
{
	assert_memory_equal(&a->report, &b->report, sizeof(a->report));
	assert_int_equal(a->rows, b->rows);
	for (int64_t i = 0; i < a->rows; i++) {
		const struct eval_row *x = &a->row[i], *y = &b->row[i];

		assert_memory_equal(x->action, y->action, sizeof(x->action));
		assert_true(x->ts == y->ts && x->bar == y->bar && x->fill == y->fill && x->fill_price == y->fill_price && x->fee == y->fee &&
			    x->exit == y->exit && x->exit_fill == y->exit_fill && x->exit_price == y->exit_price && x->q == y->q &&
			    x->cash == y->cash && x->equity == y->equity && x->reward == y->reward && x->roll == y->roll);
	}
}

static int64_t far_asked, far_rows; /* of the longest reach below, from guesses that are none or wrong */

/* Against the walk bar by bar: every reach, guesses that are none, wrong in every way, or right, and slices. */
static void check_network(const struct setup *s, struct market *m, int windows)
{
	static const int reach[][2] = {{2, 1}, {7, 3}, {32, 6}, {64, 64}, {700, 100}, {4096, 2048}};
	static uint8_t guess[BARS * EVAL_GUESS_SIDES];
	struct outcome want = play(s, m, 1, 1, windows, NULL, INT64_MAX), got;

	assert_int_equal(want.asked, want.rows);
	for (unsigned i = 0; i < sizeof(reach) / sizeof(*reach); i++) {
		for (int k = 0; k < BARS * EVAL_GUESS_SIDES; k++)
			guess[k] = i % 2 ? EVAL_GUESS_NONE : (uint8_t)philox_below(philox_word(7, 0, i, (uint64_t)k), 256);
		for (int again = 0; again < 2; again++) {
			got = play(s, m, reach[i][0], reach[i][1], windows, guess, again ? INT64_MAX : 0);
			assert_same(&want, &got);
			if (again && windows == 1) /* everything was known */
				assert_int_equal(got.asked, got.rows);
			if (!again && reach[i][0] > BARS) {
				far_asked += got.asked;
				far_rows += got.rows;
			}
			outcome_free(&got);
		}
		got = play(s, m, reach[i][0], reach[i][1], windows, NULL, 20000);
		assert_same(&want, &got);
		outcome_free(&got);
	}
	outcome_free(&want);
}

static void random_networks(void **state)
{
	struct market *m = test_market(SYNTH_MOMENTUM, BARS, 5, 0.01), *walk = test_market(SYNTH_WALK, BARS, 6, 0.01);
	struct setup s;

	(void)state;
	setup_make(&s, 0);
	for (int k = 0; k < 12; k++) {
		random_network(&s, (uint64_t)k, k % 4 == 0 ? 1.0f : k % 4 == 1 ? 3.0f : k % 4 == 2 ? 8.0f : 0.0f); /* 0: all ties */
		s.config.lot = k % 3 ? 1.0 : 0.0;
		s.config.max_position = k % 2 ? 1.0 : 8.0;
		s.config.half_spread = 0.002 * k;
		s.config.fee = 0.001 * k;
		s.config.pt = s.config.sl = k % 5 ? 2.0 : 0.3;
		s.config.max_gap = k % 4 == 3 ? 59.0 : 0.0;
		check_network(&s, k % 2 ? walk : m, 1);
		if (k % 3 == 0)
			check_network(&s, k % 2 ? walk : m, 7);
	}
	setup_free(&s);
	setup_make(&s, 1);
	random_network(&s, 3, 2.0f);
	check_network(&s, m, 1);
	assert_true(far_asked < 5 * far_rows); /* 4.3 rows a bar; 5.7 when all that lies behind a wrong guess is looked at for every mending */
	setup_free(&s);
	market_unref(walk);
	market_unref(m);
}

static void ruin_ends_it_where_it_ends_bar_by_bar(void **state)
{
	struct market *m = test_market(SYNTH_WALK, BARS, 9, 0.01);
	struct setup s;
	struct outcome o;

	(void)state;
	setup_make(&s, 0);
	s.config.initial_cash = 40; /* a contract of 100: a few fees ruin it */
	s.config.fee = 0.5;
	random_network(&s, 2, 8.0f);
	o = play(&s, m, 64, 6, 1, NULL, INT64_MAX);
	assert_int_equal(o.report.ruined, 1);
	assert_true(o.rows < 500);
	outcome_free(&o);
	check_network(&s, m, 1);
	o = play(&s, m, 64, 6, 5, NULL, INT64_MAX); /* five ruins leave gaps that the trace does not have */
	assert_int_equal(o.report.ruined, 5);
	assert_true(o.rows == o.report.bars && o.rows < 1000);
	for (int64_t i = 1; i < o.rows; i++)
		assert_true(o.row[i].bar > o.row[i - 1].bar);
	outcome_free(&o);
	check_network(&s, m, 5);
	setup_free(&s);
	market_unref(m);
}

/* Networks as they train, with the guesses of the one before; and that those save most of the work. */
static void trained_networks(void **state)
{
	static uint8_t guess[BARS * EVAL_GUESS_SIDES];
	struct market *m = test_market(SYNTH_MOMENTUM, BARS, 5, 0.01);
	struct fh_spec spec = small_spec();
	struct trainer *t = begin_job(&spec, m);
	struct setup s = {.spec = spec};
	struct outcome want, got;
	int stops = 0;

	(void)state;
	memset(guess, EVAL_GUESS_NONE, sizeof(guess));
	for (; run_slices(t, 25, NULL) == 25; stops++) {
		const float *param = t->x->tensor[T_TARGET];
		struct fh_status st = FH_STATUS_INIT;

		if (!s.policy) {
			assert_int_equal(policy_new(&spec, FH_STATE_DIM, param, &s.policy, &st), 0);
			eval_env_config(&spec, 1.0, &s.config);
		}
		policy_set(s.policy, param);
		want = play(&s, m, 1, 1, 1, NULL, INT64_MAX);
		got = play(&s, m, 32, 6, 1, guess, INT64_MAX);
		assert_same(&want, &got);
		outcome_free(&got);
		got = play(&s, m, 32, 6, 1, guess, INT64_MAX);
		assert_same(&want, &got);
		assert_int_equal(got.asked, got.rows);
		outcome_free(&got);
		outcome_free(&want);
	}
	assert_true(stops >= 3);
	policy_free(s.policy);
	trainer_free(t);
	market_unref(m);
}

/* What was seen last time, with a network that has learned since, or none of it, or half of it, or what nobody saw: it saves, and decides
 * nothing. Where it is the truth only what a bar's answer changes is asked again. */
/* Returns how often it ended in ruin. */
static int check_seen(const struct setup *given, struct market *m, int reach)
{
	static uint8_t guess[BARS * EVAL_GUESS_SIDES];
	static float seen[BARS * FH_PORTFOLIO_FEATURES];
	struct setup s = *given;
	int ruined = 0;

	memset(guess, EVAL_GUESS_NONE, sizeof(guess));
	for (int k = 0; k < BARS * FH_PORTFOLIO_FEATURES; k++)
		seen[k] = NAN;
	for (int round = 0; round < 8; round++) {
		const int windows = round == 3 ? 3 : 1;

		random_network(&s, 40 + (uint64_t)round / 2, 1.0f);
		for (int64_t i = 0; round % 2 == 1 && round < 7 && i < s.d.params; i++) /* a little of what the round before had */
			s.param[i] *= 1.0f + 0.02f * (float)(i % 3);
		policy_set(s.policy, s.param);
		struct outcome want = play(&s, m, 1, 1, windows, NULL, INT64_MAX), got;

		got = play_seen(&s, m, reach, reach, windows, guess, seen, round % 2 ? 0 : INT64_MAX);
		assert_same(&want, &got);
		if (round == 0)
			assert_true(isnan(seen[0]) == 0);
		ruined += want.report.ruined > 0;
		if (round == 7 && !ruined) /* asked where it was asked before, and then once again */
			assert_int_equal(got.asked, 2 * got.rows);
		outcome_free(&want);
		outcome_free(&got);
		for (int k = 0; round == 1 && k < BARS * FH_PORTFOLIO_FEATURES; k++)
			seen[k] = k < 300 * FH_PORTFOLIO_FEATURES ? (float)(k % 23) - 11.0f : NAN;
	}
	return ruined;
}

static void seen_before(void **state)
{
	struct market *m = test_market(SYNTH_MOMENTUM, BARS, 5, 0.01);
	struct setup s;

	(void)state;
	setup_make(&s, 0);
	assert_int_equal(check_seen(&s, m, 700), 0);  /* some calls for all bars */
	assert_int_equal(check_seen(&s, m, 1050), 0); /* and rows so cheap that the walk of the last one is mended first */
	assert_int_equal(check_seen(&s, m, 4000), 0);
	s.config.initial_cash = 40;
	s.config.fee = 3;
	assert_true(check_seen(&s, m, 4000) > 0);
	setup_free(&s);
	market_unref(m);
}

/* ---------------------------------------------------------------- trials */

/* Each of the networks by itself, bar by bar. */
static void play_alone(const struct setup *s, struct market *m, int windows, struct outcome want[NETWORKS])
{
	for (int k = 0; k < NETWORKS; k++)
		want[k] = play(&s[k], m, 1, 1, windows, NULL, INT64_MAX);
}

/* All of them side by side, from the same guesses again. */
static void check_side_by_side(const struct setup *s, struct market *m, int windows, struct act_limits can, int64_t budget_ns,
			       const struct outcome want[NETWORKS])
{
	static uint8_t guess[NETWORKS * BARS * EVAL_GUESS_SIDES];
	struct asked asked = {.m = m, .most = can.rows, .state = malloc(sizeof(float) * FH_STATE_DIM * (size_t)can.rows)};
	const struct eval_actor actor = {ask_policies, &asked, can};
	const struct eval_setup e = {.actor = &actor, .market = m, .config = &s->config, .split = split, .windows = windows, .trials = NETWORKS,
				     .trace = 1, .guess = guess};
	struct fh_status st = FH_STATUS_INIT;

	assert_non_null(asked.state);
	memset(guess, EVAL_GUESS_NONE, sizeof(guess));
	for (int k = 0; k < NETWORKS; k++)
		asked.policy[k] = s[k].policy;
	for (int again = 0; again < 2; again++) {
		struct evaluation *run = NULL;
		int64_t before = asked.rows, done = 0;

		if (evaluation_make(&e, &run, &st))
			fail_msg("%s", st.text);
		while (!evaluation_run_on(run, budget_ns, &st))
			;
		for (int k = 0; k < NETWORKS; k++) {
			struct outcome got = {.rows = 0};
			const struct eval_row *row = evaluation_trial_trace(run, k, &got.rows);

			got.row = malloc(sizeof(*row) * (size_t)(got.rows + 1));
			assert_non_null(got.row);
			memcpy(got.row, row, sizeof(*row) * (size_t)got.rows);
			evaluation_trial_report(run, k, &got.report);
			assert_same(&want[k], &got);
			done += got.rows;
			outcome_free(&got);
		}
		assert_int_equal(done, evaluation_done_bars(run));
		if (again && windows == 1) /* a trial's guesses are its own: everything was known */
			assert_int_equal(asked.rows - before, done);
		evaluation_free(run);
	}
	free(asked.state);
}

static void trials_side_by_side(void **state)
{
	static const struct act_limits can[] = {{.rows = 3, .few = 1, .least = 1}, {.rows = 32, .few = 6, .least = 6}, {.rows = 64, .few = 12, .least = 6},
						 {.rows = 700, .few = 100, .least = 10}, {.rows = 8192, .few = 2048, .least = 64}};
	struct market *m = test_market(SYNTH_WALK, BARS, 9, 0.01);
	struct fh_status st = FH_STATUS_INIT;
	struct team *team = NULL;
	struct setup s[NETWORKS];

	(void)state;
	assert_int_equal(team_new(3, &team, &st), 0);
	for (int k = 0; k < NETWORKS; k++) {
		setup_make(&s[k], 0);
		random_network(&s[k], (uint64_t)k + 20, k ? 2.0f * (float)k : 0.0f);
		s[k].config.initial_cash = 60; /* the wild ones are ruined before the end */
		s[k].config.fee = 0.2;
	}
	for (int windows = 1; windows <= 4; windows += 3) {
		struct outcome want[NETWORKS];
		int ruined = 0, whole = 0;

		play_alone(s, m, windows, want);
		for (int k = 0; k < NETWORKS; k++) {
			ruined += want[k].report.ruined > 0;
			whole += want[k].report.ruined == 0;
		}
		assert_true(ruined >= 1 && whole >= 1);
		for (unsigned i = 0; i < sizeof(can) / sizeof(*can); i++) {
			struct act_limits with = can[i];

			with.team = i % 2 ? team : NULL;
			check_side_by_side(s, m, windows, with, i % 3 ? INT64_MAX : 0, want);
			with.team = i % 2 ? NULL : team;
			check_side_by_side(s, m, windows, with, 20000, want);
		}
		for (int k = 0; k < NETWORKS; k++)
			outcome_free(&want[k]);
	}
	for (int k = 0; k < NETWORKS; k++)
		setup_free(&s[k]);
	team_free(team);
	market_unref(m);
}

/* ---------------------------------------------------------------- windows */

static struct evaluation *over(eval_script script, struct market *m, const struct env_config *config, struct fh_split bars, int windows)
{
	const struct eval_setup e = {.script = script, .market = m, .config = config, .split = bars, .windows = windows, .trace = 1};
	struct evaluation *run = NULL;
	struct fh_status st = FH_STATUS_INIT;

	if (evaluation_make(&e, &run, &st))
		fail_msg("%s", st.text);
	while (!evaluation_run(run, 10000))
		;
	return run;
}

static void windows_are_episodes_of_their_own(void **state)
{
	struct market *m = test_market(SYNTH_MOMENTUM, BARS, 5, 0.01);
	struct setup s;
	struct eval_report all, one, alone;
	int64_t n;

	(void)state;
	setup_make(&s, 0);
	s.config.fee = 0.01;
	for (int windows = 1; windows <= 9; windows += 4) {
		struct evaluation *e = over(eval_last_sign, m, &s.config, split, windows);
		double pnl = 0, worst = 0, trades = 0, closed = 0, won = 0, turnover = 0, exposure = 0;
		int64_t bars = 0, at = split.begin;

		assert_int_equal(evaluation_windows(e), windows);
		for (int w = 0; w < windows; w++) {
			struct fh_split part = evaluation_window(e, w);
			struct evaluation *lone = over(eval_last_sign, m, &s.config, part, 1);

			assert_int_equal(part.begin, at); /* begins at the bar where the one before ended: every step is someone's */
			assert_true(llabs((part.end - 1 - part.begin) - (split.end - 1 - split.begin) / windows) <= 1);
			at = part.end - 1;
			evaluation_window_report(e, w, &one);
			evaluation_report(lone, &alone);
			assert_memory_equal(&one, &alone, sizeof(one));
			evaluation_free(lone);
			pnl += one.pnl, trades += one.trades, closed += one.closed, won += one.win_rate * one.closed, turnover += one.turnover;
			exposure += one.exposure * (double)one.bars, bars += one.bars;
			worst = one.max_drawdown > worst ? one.max_drawdown : worst;
		}
		assert_int_equal(at, split.end - 1);
		evaluation_report(e, &all);
		assert_int_equal(all.bars, split.end - 1 - split.begin);
		assert_int_equal(all.bars, bars);
		assert_within(fabs(all.pnl - pnl), 1e-9 * (1 + fabs(pnl)), "pnl");
		assert_within(fabs(all.ret - pnl / s.config.initial_cash), 1e-12, "return");
		assert_true(all.max_drawdown == worst && all.trades == trades && all.closed == closed);
		assert_within(fabs(all.win_rate - won / closed), 1e-12, "win rate");
		assert_within(fabs(all.turnover - turnover), 1e-9 * turnover, "turnover");
		assert_within(fabs(all.exposure - exposure / (double)bars), 1e-12, "exposure");
		evaluation_trace(e, &n);
		assert_int_equal(n, bars);
		evaluation_free(e);
	}
	setup_free(&s);
	market_unref(m);
}

/* Sharpe of all windows: mean and deviation of all their returns, none of which leads from a window to the next. */
static void returns_of_windows_are_one_list(void **state)
{
	struct market *m = test_market(SYNTH_MOMENTUM, BARS, 5, 0.01);
	struct setup s;
	struct eval_report all;
	struct evaluation *e;
	const struct eval_row *row;
	double *r, mean = 0, square = 0;
	int64_t n, k = 0;

	(void)state;
	setup_make(&s, 0);
	e = over(eval_last_sign, m, &s.config, split, 6);
	row = evaluation_trace(e, &n);
	r = malloc(sizeof(*r) * (size_t)n);
	assert_non_null(r);
	for (int w = 0; w < 6; w++) {
		struct fh_split part = evaluation_window(e, w);
		double before = s.config.initial_cash;

		for (int64_t t = part.begin + 1; t < part.end; t++, k++) {
			assert_int_equal(row[k].bar, t);
			r[k] = row[k].equity / before - 1;
			before = row[k].equity;
			mean += r[k];
		}
	}
	assert_int_equal(k, n);
	mean /= (double)n;
	for (k = 0; k < n; k++)
		square += (r[k] - mean) * (r[k] - mean);
	evaluation_report(e, &all);
	assert_within(fabs(all.sharpe / (mean / sqrt(square / (double)(n - 1)) * sqrt(all.bars_per_year)) - 1), 1e-9, "Sharpe");
	free(r);
	evaluation_free(e);
	setup_free(&s);
	market_unref(m);
}

static void too_many_windows_are_refused(void **state)
{
	struct market *m = test_market(SYNTH_WALK, 400, 5, 0.01);
	struct env_config c;
	struct fh_spec spec = small_spec();
	struct fh_split bars = {144, 155}, parts[FH_SPLITS];
	struct evaluation *e = NULL;
	struct fh_status st = FH_STATUS_INIT;
	struct eval_setup s = {.script = eval_never_trade, .market = m, .config = &c, .split = bars};

	(void)state;
	eval_env_config(&spec, 1.0, &c);
	s.windows = 11; /* of ten steps */
	assert_int_equal(evaluation_make(&s, &e, &st), FH_INVALID);
	assert_string_equal(st.field, "windows");
	s.windows = EVAL_WINDOWS_MAX + 1;
	assert_int_equal(evaluation_make(&s, &e, &st), FH_INVALID);
	s.windows = 10;
	assert_int_equal(evaluation_make(&s, &e, &st), 0);
	evaluation_free(e);
	s.trials = 2; /* there is one script */
	assert_int_equal(evaluation_make(&s, &e, &st), FH_INVALID);
	spec.run.validate_windows = 1000;
	assert_int_equal(spec_splits(&spec, 4000, parts, &st), FH_INVALID);
	assert_string_equal(st.field, "run.validate_windows");
	spec.run.validate_windows = 100;
	assert_int_equal(spec_splits(&spec, 4000, parts, &st), 0);
	market_unref(m);
}

static int give_room_back(void **state)
{
	(void)state;
	eval_room_free(&room);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_networks), cmocka_unit_test(ruin_ends_it_where_it_ends_bar_by_bar),
		cmocka_unit_test(trained_networks), cmocka_unit_test(seen_before), cmocka_unit_test(trials_side_by_side), cmocka_unit_test(windows_are_episodes_of_their_own),
		cmocka_unit_test(returns_of_windows_are_one_list), cmocka_unit_test(too_many_windows_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, give_room_back);
}
