/* The environment against the golden rollouts, its money identities on random actions and markets, no look-ahead, and
 * small inputs that broke other people's tools. */
#include "gpu/env.h"
#include "tests/unit/bars.h"

/* ---------------------------------------------------------------- golden rollouts */

struct rollout { /* a golden rollout under test */
	struct st_file *f;
	const char *prefix;
	struct bars bars;
	const float *sigma;
	struct env_config cfg;
	uint64_t seed;
	int32_t begin, end;
	int64_t S, N;
};

static double setting(const struct rollout *r, const char *name)
{
	char key[64];
	size_t n = strlen(r->prefix);

	snprintf(key, sizeof(key), "%.*s%s%s", n ? (int)n - 1 : 0, r->prefix, n ? "_" : "", name);
	return golden_real(r->f, key);
}

static void config_read(const struct rollout *r, struct env_config *c)
{
	*c = (struct env_config){
		.tick = setting(r, "tick"), .multiplier = setting(r, "multiplier"), .half_spread = setting(r, "half_spread"),
		.fee = setting(r, "fee"), .max_position = setting(r, "max_position"), .lot = setting(r, "lot"),
		.initial_cash = setting(r, "initial_cash"), .reward_scale = setting(r, "reward_scale"), .pt = setting(r, "pt"),
		.sl = setting(r, "sl"), .ruin_fraction = setting(r, "ruin_fraction"),
		.episode_length = (int32_t)setting(r, "episode_length"), .horizon = (int32_t)setting(r, "horizon"),
	};
}

static void rollout_open(struct rollout *r, const char *prefix)
{
	const char *bars = strcmp(prefix, "neg.") ? "" : prefix; /* lot. and dec. run on the first bars */
	char seed[32];
	char name[64];

	memset(r, 0, sizeof(*r));
	r->f = golden_open("env");
	r->prefix = prefix;
	bars_golden(&r->bars, r->f, bars);
	snprintf(name, sizeof(name), "%ssigma", bars);
	r->sigma = golden_f32(r->f, name, NULL);
	config_read(r, &r->cfg);
	snprintf(seed, sizeof(seed), "%.*s%sseed", *prefix ? (int)strlen(prefix) - 1 : 0, prefix, *prefix ? "_" : "");
	r->seed = (uint64_t)golden_int(r->f, seed);
	r->begin = (int32_t)setting(r, "train_begin");
	r->end = (int32_t)setting(r, "train_end");
	r->S = (int64_t)setting(r, "S");
	r->N = (int64_t)setting(r, "N");
}

static void rollout_close(struct rollout *r)
{
	bars_free(&r->bars);
	st_close(r->f);
}

static const double *expect_f64(const struct rollout *r, const char *name)
{
	char full[64];

	snprintf(full, sizeof(full), "%s%s", r->prefix, name);
	return golden_f64(r->f, full, NULL);
}

static const int32_t *expect_i32(const struct rollout *r, const char *name)
{
	char full[64];

	snprintf(full, sizeof(full), "%s%s", r->prefix, name);
	return golden_i32(r->f, full, NULL);
}

static struct env_bar bar_at(const struct bars *b, int64_t t)
{
	return (struct env_bar){b->open[t], b->high[t], b->low[t], b->close[t]};
}

static void features_at(const struct rollout *r, const struct env_state *s, int32_t left, double out[ENV_FEATURES])
{
	env_features64(s, &r->cfg, r->bars.close[s->t], r->sigma[s->t], left, out);
}

enum { FILL, FILL_PRICE, EXIT_FILL, EXIT_PRICE, REWARD, Q, CASH, EQUITY, ENTRY, PROFIT, STOP, REALS };
static const char *const real_name[REALS] = {
	"fill", "fill_price", "exit_fill", "exit_price", "reward", "q", "cash", "equity", "entry", "profit", "stop",
};
enum { BAR, EXIT, TERMINATED, TRUNCATED, ENTRY_BAR, INTS };
static const char *const int_name[INTS] = {"bar", "exit", "terminated", "truncated", "entry_bar"};

/* One golden step of one environment, its columns into real[] and integer[]. */
static void golden_step(const struct rollout *r, struct env_state *s, const int32_t *action, double real[REALS], int32_t integer[INTS])
{
	struct env_bar next = bar_at(&r->bars, s->t + 1);
	struct env_result e;

	integer[BAR] = s->t;
	env_step(s, &r->cfg, action, r->bars.close[s->t], &next, r->sigma[s->t], r->end - 1, 1, &e);
	real[FILL] = e.fill;
	real[FILL_PRICE] = e.fill_price;
	real[EXIT_FILL] = e.exit_fill;
	real[EXIT_PRICE] = e.exit_price;
	real[REWARD] = e.reward;
	real[Q] = s->q;
	real[CASH] = s->cash;
	real[EQUITY] = s->equity;
	real[ENTRY] = s->entry;
	real[PROFIT] = real[STOP] = 0.0;
	if (s->q != 0.0)
		env_barriers(s, &r->cfg, &real[PROFIT], &real[STOP]);
	integer[EXIT] = e.exit;
	integer[TERMINATED] = e.terminated;
	integer[TRUNCATED] = e.truncated;
	integer[ENTRY_BAR] = s->entry_bar;
}

static void check_rollout(const char *prefix)
{
	struct rollout r;
	struct env_state *s;
	double *out[REALS], *obs, *next_obs;
	const int32_t *action, *expected[INTS];
	char what[64];
	int64_t n;

	rollout_open(&r, prefix);
	n = r.S * r.N;
	s = malloc(sizeof(*s) * (size_t)r.N);
	obs = malloc(sizeof(double) * (size_t)(n + r.N) * ENV_FEATURES);
	next_obs = malloc(sizeof(double) * (size_t)n * ENV_FEATURES);
	action = expect_i32(&r, "action");
	for (int k = 0; k < REALS; k++)
		out[k] = malloc(sizeof(double) * (size_t)n);
	for (int k = 0; k < INTS; k++)
		expected[k] = expect_i32(&r, int_name[k]);
	for (int64_t i = 0; i < r.N; i++) {
		env_start(&s[i], &r.cfg, env_start_bar(r.seed, (uint32_t)i, 0, r.begin, r.end));
		features_at(&r, &s[i], ENV_STEPS_OWN, obs + i * ENV_FEATURES);
	}
	for (int64_t at = 0; at < n; at++) {
		int64_t i = at % r.N, step = at / r.N;
		double real[REALS];
		int32_t integer[INTS];

		golden_step(&r, &s[i], action + at * 3, real, integer);
		for (int k = 0; k < REALS; k++)
			out[k][at] = real[k];
		for (int k = 0; k < INTS; k++)
			if (integer[k] != expected[k][at])
				fail_msg("%s%s: step %d env %d is %d, not %d", prefix, int_name[k], (int)step, (int)i, integer[k], expected[k][at]);
		features_at(&r, &s[i], ENV_STEPS_OWN, next_obs + at * ENV_FEATURES);
		if (integer[TERMINATED] || integer[TRUNCATED])
			env_start(&s[i], &r.cfg, env_start_bar(r.seed, (uint32_t)i, (uint64_t)step + 1, r.begin, r.end));
		features_at(&r, &s[i], ENV_STEPS_OWN, obs + (at + r.N) * ENV_FEATURES);
	}
	for (int k = 0; k < REALS; k++) { /* the same operations in the same order: the same bits */
		const double *ref = expect_f64(&r, real_name[k]);

		for (int64_t i = 0; i < n; i++)
			if (out[k][i] != ref[i])
				fail_msg("%s%s: entry %d is %.17g, not %.17g", prefix, real_name[k], (int)i, out[k][i], ref[i]);
		free(out[k]);
	}
	for (int k = 0; k < ENV_FEATURES; k++) {
		snprintf(what, sizeof(what), "%sobs %d", prefix, k);
		assert_within(column_error(obs, expect_f64(&r, "obs"), n + r.N, ENV_FEATURES, k), 1e-13, what);
		assert_within(column_error(next_obs, expect_f64(&r, "next_obs"), n, ENV_FEATURES, k), 1e-13, what);
	}
	for (int64_t i = 0; i < r.N; i++)
		assert_int_equal(s[i].t, expect_i32(&r, "bar_end")[i]);
	free(obs);
	free(next_obs);
	free(s);
	rollout_close(&r);
}

static void golden_rollout(void **state)
{
	(void)state;
	check_rollout("");
}

static void golden_rollout_around_zero(void **state)
{
	(void)state;
	check_rollout("neg.");
}

static void golden_rollout_whole_contracts(void **state)
{
	(void)state;
	check_rollout("lot.");
}

static void golden_rollout_decimal_lot(void **state)
{
	(void)state;
	check_rollout("dec.");
}

static void golden_portfolio_edges(void **state)
{
	struct rollout r;
	const double *ref;
	double out[10 * ENV_FEATURES];

	(void)state;
	rollout_open(&r, "");
	ref = expect_f64(&r, "edge.features");
	for (int i = 0; i < 10; i++) {
		struct env_state s = {
			.equity = golden_f32(r.f, "edge.equity", NULL)[i], .peak = golden_f32(r.f, "edge.peak", NULL)[i],
			.q = golden_f32(r.f, "edge.q", NULL)[i], .entry = golden_f32(r.f, "edge.entry", NULL)[i],
			.entry_sigma = golden_f32(r.f, "edge.entry_sigma", NULL)[i], .t = expect_i32(&r, "edge.t")[i],
			.entry_bar = expect_i32(&r, "edge.entry_bar")[i], .steps = expect_i32(&r, "edge.steps")[i],
		};
		float f32[ENV_FEATURES];

		features_at(&r, &s, ENV_STEPS_OWN, out + i * ENV_FEATURES);
		env_features(&s, &r.cfg, r.bars.close[s.t], r.sigma[s.t], ENV_STEPS_OWN, f32);
		for (int k = 0; k < ENV_FEATURES; k++)
			assert_true(f32[k] == (float)out[i * ENV_FEATURES + k]);
	}
	for (int k = 0; k < ENV_FEATURES; k++)
		assert_within(column_error(out, ref, 10, ENV_FEATURES, k), 1e-13, "edge features");
	rollout_close(&r);
}

/* ---------------------------------------------------------------- the logarithm */

static void logarithm_is_accurate(void **state)
{
	(void)state;
	assert_true(env_log(1.0) == 0.0);
	for (uint32_t i = 0; i < 20000; i++) {
		struct philox_words w = philox_block(5, PHILOX_SYNTH, 2, i);
		double u = philox_uniform(w.w[0]), x = i % 2 ? 1.0 + (u - 0.5) * 0.01 : exp((u - 0.5) * 600.0), ref = log(x);

		assert_within(fabs(env_log(x) - ref), 2e-15 * fabs(ref), "log");
	}
}

/* ---------------------------------------------------------------- random actions */

#define RANDOM_BARS 4000

/* A wild market: jumps, gaps, prices of either sign. */
static void random_bars(struct bars *b, uint64_t seed, double base, double volatility)
{
	double c = base;

	bars_alloc(b, RANDOM_BARS);
	for (uint32_t t = 0; t < RANDOM_BARS; t++) {
		double z = philox_normal(seed, PHILOX_SYNTH, 3, t), gap = philox_normal(seed, PHILOX_SYNTH, 4, t);
		double wide = fabs(philox_normal(seed, PHILOX_SYNTH, 5, t)) * volatility;

		b->ts[t] = (int64_t)t * 60000000000;
		b->open[t] = c + 0.2 * gap * volatility;
		b->close[t] = c = b->open[t] + z * volatility;
		b->high[t] = fmax(b->open[t], c) + wide;
		b->low[t] = fmin(b->open[t], c) - wide;
		b->volume[t] = 1.0;
	}
}

struct ledger { double cash, q, fees; }; /* independent bookkeeping from fills */

static void ledger_fill(struct ledger *l, double quantity, double price, const struct env_config *c)
{
	l->cash -= quantity * price * c->multiplier;
	l->fees += fabs(quantity) * c->fee;
	l->q += quantity;
}

static void check_step(const struct env_config *c, const struct env_state *before, const struct env_state *s,
		       const struct env_result *r, const struct env_bar *next, const struct ledger *l)
{
	double size = 1e-9 * (fabs(l->cash) + fabs(l->q * next->close * c->multiplier) + c->initial_cash);

	assert_true(isfinite(s->cash) && isfinite(s->equity) && isfinite(r->reward));
	assert_within(fabs(s->cash - (l->cash - l->fees)), size, "cash against the ledger");
	assert_within(fabs(s->q - l->q), 1e-9 * c->max_position, "position against the ledger");
	assert_within(fabs(s->equity - (l->cash - l->fees + l->q * next->close * c->multiplier)), size, "equity against the ledger");
	assert_within(fabs(s->q), c->max_position + (c->lot > 0 ? c->lot / 2 : 0) + 1e-12, "position within its bound");
	assert_true(s->peak >= s->equity && s->peak >= c->initial_cash);
	assert_true((r->exit != 0) == (r->exit_fill != 0.0));
	if (r->exit)
		assert_true(s->q == 0.0 && s->entry == 0.0 && s->entry_bar == 0 && s->entry_sigma == 0.0);
	if (c->lot > 0.0)
		assert_true(s->q == rint(s->q / c->lot) * c->lot);
	if (r->fill != 0.0) {
		assert_true(r->fill_price >= next->low - c->half_spread && r->fill_price <= next->high + c->half_spread);
		if (before->q == 0.0)
			assert_true(r->exit || s->entry_bar == s->t);
	}
	assert_true(!(r->terminated && r->truncated));
	assert_int_equal(r->terminated, s->equity <= c->ruin_fraction * c->initial_cash);
}

static void random_stream(const struct bars *b, const struct env_config *c, const float *sigma, uint64_t seed, int *ruins, int *exits)
{
	struct env_state s;
	struct ledger l = {c->initial_cash, 0.0, 0.0};
	double rewards = 0.0;

	env_start(&s, c, 144);
	for (uint32_t k = 0; s.t < RANDOM_BARS - 1; k++) {
		struct philox_words w = philox_block(seed, PHILOX_SYNTH, 6, k);
		int32_t action[3] = {(int32_t)philox_below(w.w[0], 5), (int32_t)philox_below(w.w[1], 3), (int32_t)philox_below(w.w[2], 3)};
		struct env_bar next = bar_at(b, s.t + 1);
		struct env_state before = s;
		struct env_result r;

		env_step(&s, c, action, b->close[s.t], &next, sigma[s.t], RANDOM_BARS - 1, 1, &r);
		ledger_fill(&l, r.fill, r.fill_price, c);
		ledger_fill(&l, r.exit_fill, r.exit_price, c);
		check_step(c, &before, &s, &r, &next, &l);
		rewards += r.reward;
		*exits += r.exit != 0;
		if (!r.terminated && !r.truncated)
			continue;
		/* the rewards of an episode are its change of equity */
		assert_within(fabs(rewards - (s.equity - c->initial_cash) / c->initial_cash * c->reward_scale),
			      1e-9 * c->reward_scale * (1.0 + fabs(s.equity) / c->initial_cash), "sum of rewards");
		*ruins += r.terminated;
		rewards = 0.0;
		l = (struct ledger){c->initial_cash, 0.0, 0.0};
		env_start(&s, c, s.t);
	}
}

static void money_adds_up_on_random_actions(void **state)
{
	static const double lots[] = {0.0, 1.0, 0.1, 0.3, 7.0};
	int ruins = 0, exits = 0;

	(void)state;
	for (uint64_t k = 0; k < 20; k++) {
		struct fh_status st = FH_STATUS_INIT;
		struct bars b;
		struct market *m = NULL;
		struct env_config c = {
			.tick = 0.25, .multiplier = k % 2 ? 50.0 : 1.0, .half_spread = 0.05 * (double)(k % 3), .fee = 0.5 * (double)(k % 4),
			.max_position = k % 5 == 2 ? 0.3 : 4.0, .lot = lots[k % 5], .initial_cash = k % 4 ? 20000.0 : 900.0, .reward_scale = 30.0,
			.pt = 1.0, .sl = 0.5, .ruin_fraction = 0.5, .episode_length = 256, .horizon = 30,
		};

		random_bars(&b, 100 + k, k % 3 ? 5000.0 : 0.0, 2.0);
		assert_int_equal(market_build(&b.view, c.tick, &m, &st), 0);
		random_stream(&b, &c, m->sigma, 1000 + k, &ruins, &exits);
		market_unref(m);
		bars_free(&b);
	}
	assert_true(ruins > 10 && exits > 1000); /* both happened often enough to mean something */
}

/* ---------------------------------------------------------------- no look-ahead */

#define TRAIL 17
struct trail { double v[TRAIL]; float obs[ENV_FEATURES]; }; /* no padding: compared as bytes */

static void trail_put(struct trail *out, const struct env_state *s, const struct env_result *r)
{
	const double v[TRAIL] = {
		s->cash, s->equity, s->peak, s->q, s->entry, s->entry_sigma, s->t, s->entry_bar, s->steps, r->fill, r->fill_price,
		r->exit_fill, r->exit_price, r->reward, r->exit, r->terminated, r->truncated,
	};

	memcpy(out->v, v, sizeof(v));
}

static void record_trail(const struct rollout *r, const struct bars *b, int64_t steps, struct trail *out)
{
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = NULL;
	struct env_state s;
	const int32_t *action = expect_i32(r, "action");

	assert_int_equal(market_build(&b->view, r->cfg.tick, &m, &st), 0);
	env_start(&s, &r->cfg, 144);
	for (int64_t k = 0; k < steps; k++) {
		struct env_bar next = bar_at(b, s.t + 1);
		struct env_result result;

		env_features(&s, &r->cfg, m->close[s.t], m->sigma[s.t], ENV_STEPS_OWN, out[k].obs);
		env_step(&s, &r->cfg, action + 3 * k, m->close[s.t], &next, m->sigma[s.t], (int32_t)b->view.bars - 1, 0, &result);
		trail_put(&out[k], &s, &result);
	}
	market_unref(m);
}

static void shuffled_future_changes_no_past_step(void **state)
{
	static const int64_t cut[] = {146, 200, 333, 600};
	struct trail *whole = calloc(1000, sizeof(*whole)), *other = calloc(1000, sizeof(*other));
	struct rollout r;
	struct bars b;

	(void)state;
	rollout_open(&r, "");
	record_trail(&r, &r.bars, 1000, whole);
	for (size_t k = 0; k < sizeof(cut) / sizeof(cut[0]); k++) {
		size_t same = (size_t)(cut[k] - 144 - 1); /* steps whose next bar lies before the cut */

		bars_copy(&b, &r.bars);
		bars_shuffle_after(&b, cut[k], 17 + k);
		record_trail(&r, &b, 1000, other);
		assert_memory_equal(whole, other, same * sizeof(*whole));
		assert_memory_not_equal(whole, other, 1000 * sizeof(*whole));
		bars_free(&b);
	}
	free(whole);
	free(other);
	rollout_close(&r);
}

static void equal_pasts_of_two_files_give_equal_steps(void **state)
{
	static const char *const name[2] = {"future_a", "future_b"};
	static struct trail trail[2][79];
	struct env_config c = {
		.tick = 0.25, .multiplier = 50, .half_spread = 0.125, .fee = 1, .max_position = 2, .lot = 1, .initial_cash = 10000,
		.reward_scale = 1, .pt = 2, .sl = 2, .ruin_fraction = 0.5, .episode_length = 256, .horizon = 20,
	};

	(void)state;
	for (int k = 0; k < 2; k++) {
		struct fh_status st = FH_STATUS_INIT;
		struct market *m = NULL;
		struct env_state s;
		struct bars b;

		bars_csv(&b, name[k]);
		assert_int_equal(market_build(&b.view, c.tick, &m, &st), 0);
		env_start(&s, &c, 0);
		for (uint32_t t = 0; t < 79; t++) {
			struct philox_words w = philox_block(1, PHILOX_SYNTH, 6, t);
			int32_t action[3] = {(int32_t)(w.w[0] % 5), (int32_t)(w.w[1] % 3), (int32_t)(w.w[2] % 3)};
			struct env_bar next = bar_at(&b, t + 1);
			struct env_result result;

			env_features(&s, &c, m->close[t], m->sigma[t], ENV_STEPS_OWN, trail[k][t].obs);
			env_step(&s, &c, action, m->close[t], &next, m->sigma[t], 79, 0, &result);
			trail_put(&trail[k][t], &s, &result);
		}
		market_unref(m);
		bars_free(&b);
	}
	assert_memory_equal(trail[0], trail[1], 59 * sizeof(trail[0][0])); /* bars 0..59 are equal */
	assert_memory_not_equal(trail[0], trail[1], sizeof(trail[0]));
}

/* ---------------------------------------------------------------- inputs that broke others */

static const struct env_config plain = { /* barriers out of reach */
	.tick = 0.01, .multiplier = 1000, .max_position = 1, .lot = 1, .initial_cash = 1e6, .reward_scale = 1, .pt = 1e9, .sl = 1e9,
	.ruin_fraction = 0, .episode_length = 1000, .horizon = 1000,
};

static const int32_t hold_long[3] = {4, ENV_MARKET, 2}, hold_short[3] = {0, ENV_MARKET, 2}, go_flat[3] = {2, ENV_MARKET, 2};

static void negative_settlement_loses_what_it_should(void **state)
{
	struct bars b;

	(void)state;
	bars_csv(&b, "negative_price");
	for (int side = -1; side <= 1; side += 2) {
		struct env_state s;
		struct env_result r;
		struct env_bar settle = bar_at(&b, 2), after = bar_at(&b, 3);
		double start;
		float obs[ENV_FEATURES];

		env_start(&s, &plain, 1);
		env_trade(&s, &plain, side, side, side, 18.27, 0.01, 1); /* one contract at the close of 2020-04-17 */
		start = s.cash + s.q * 18.27 * 1000;
		env_step(&s, &plain, side > 0 ? hold_long : hold_short, 18.27, &settle, 0.01, 100, 1, &r);
		assert_true(r.fill == 0.0 && r.exit == 0);
		assert_within(fabs(s.equity - start - side * -55900.0), 1e-6, "settlement at -37.63");
		env_features(&s, &plain, -37.63, 0.01, ENV_STEPS_OWN, obs);
		for (int k = 0; k < ENV_FEATURES; k++)
			assert_true(fabsf(obs[k]) <= 5.0f);
		start = s.equity;
		env_step(&s, &plain, side > 0 ? hold_long : hold_short, -37.63, &after, 0.01, 100, 1, &r);
		assert_within(fabs(s.equity - start - side * 47640.0), 1e-6, "back to 10.01");
	}
	bars_free(&b);
}

static void prices_at_zero_keep_the_state_finite(void **state)
{
	static const char *const name[] = {"zero_price", "zero_volume", "negative_price"};

	(void)state;
	for (size_t k = 0; k < 3; k++) {
		struct fh_status st = FH_STATUS_INIT;
		struct env_config c = plain;
		struct market *m = NULL;
		struct env_state s;
		struct bars b;

		c.pt = c.sl = 1.0;
		c.initial_cash = 100;
		bars_csv(&b, name[k]);
		assert_int_equal(market_build(&b.view, c.tick, &m, &st), 0);
		env_start(&s, &c, 0);
		for (int32_t t = 0; t + 1 < m->bars; t++) {
			struct env_bar next = bar_at(&b, t + 1);
			struct env_result r;
			float obs[ENV_FEATURES];

			env_step(&s, &c, t % 2 ? hold_short : hold_long, m->close[t], &next, m->sigma[t], 100, 1, &r);
			env_features(&s, &c, m->close[s.t], m->sigma[s.t], ENV_STEPS_OWN, obs);
			assert_true(isfinite(s.equity) && isfinite(r.reward));
			for (int i = 0; i < ENV_FEATURES; i++)
				assert_true(fabsf(obs[i]) <= 5.0f);
		}
		market_unref(m);
		bars_free(&b);
	}
}

/* PnL of `trips` round trips on the flat price at this fee. */
static double flat_price_pnl(const struct bars *b, double fee, int trips)
{
	struct env_config c = plain;
	struct env_state s;

	c.fee = fee;
	env_start(&s, &c, 0);
	for (int32_t t = 0; t + 1 < b->view.bars; t++) {
		struct env_bar next = bar_at(b, t + 1);
		struct env_result r;

		env_step(&s, &c, t % 2 == 0 && t / 2 < trips ? hold_long : go_flat, b->close[t], &next, 1e-8, 100, 1, &r);
	}
	assert_true(s.q == 0.0);
	return s.equity - c.initial_cash;
}

static void fees_are_paid_not_received(void **state)
{
	struct bars b;

	(void)state;
	bars_csv(&b, "flat_fee");
	assert_true(flat_price_pnl(&b, 2.5, 0) == 0.0);
	assert_true(flat_price_pnl(&b, 0.0, 3) == 0.0);
	assert_true(flat_price_pnl(&b, 2.5, 1) == -5.0);
	assert_true(flat_price_pnl(&b, 2.5, 3) == -15.0);
	assert_true(flat_price_pnl(&b, 4.0, 3) < flat_price_pnl(&b, 2.5, 3));
	bars_free(&b);
}

/* ---------------------------------------------------------------- single rules */

static void limit_orders_need_a_trade_through(void **state)
{
	struct env_config c = plain;
	double price = 0.0;

	(void)state;
	c.half_spread = 0.5;
	assert_int_equal(env_fill_price(ENV_LIMIT, 1.0, 10.0, &(struct env_bar){11, 12, 10, 11}, &c, &price), 0);   /* touched only */
	assert_int_equal(env_fill_price(ENV_LIMIT, -1.0, 10.0, &(struct env_bar){9, 10, 8, 9}, &c, &price), 0);
	assert_int_equal(env_fill_price(ENV_LIMIT, 1.0, 10.0, &(struct env_bar){11, 12, 9, 11}, &c, &price), 1);
	assert_true(price == 10.0);
	assert_int_equal(env_fill_price(ENV_LIMIT, 1.0, 10.0, &(struct env_bar){9, 12, 9, 11}, &c, &price), 1);
	assert_true(price == 9.0); /* opened better */
	assert_int_equal(env_fill_price(ENV_LIMIT, -1.0, 10.0, &(struct env_bar){11, 12, 9, 11}, &c, &price), 1);
	assert_true(price == 11.0);
	assert_int_equal(env_fill_price(ENV_IOC, 1.0, 10.0, &(struct env_bar){10.0625, 12, 9, 11}, &c, &price), 0); /* beyond 4 ticks of 0.01 */
	assert_int_equal(env_fill_price(ENV_IOC, -1.0, 10.0, &(struct env_bar){10.03125, 12, 9, 11}, &c, &price), 1);
	assert_true(price == 10.03125 - 0.5);
	assert_int_equal(env_fill_price(ENV_MARKET, 1.0, 10.0, &(struct env_bar){20, 21, 9, 11}, &c, &price), 1);
	assert_true(price == 20.5);
}

static void lots_leave_no_residue(void **state)
{
	struct env_config c = plain;
	struct env_state s;
	struct env_bar bar = {1, 1, 1, 1};

	(void)state;
	c.max_position = 0.3;
	c.lot = 0.1;
	c.multiplier = 1;
	c.episode_length = 100000;
	env_start(&s, &c, 0);
	for (uint32_t k = 0; k < 5000; k++) {
		struct philox_words w = philox_block(9, PHILOX_SYNTH, 6, k);
		int32_t action[3] = {(int32_t)(w.w[0] % 5), ENV_MARKET, (int32_t)(w.w[1] % 3)};
		struct env_result r;

		env_step(&s, &c, action, 1.0, &bar, 1e-8, 1 << 30, 1, &r);
		assert_true(s.q == rint(s.q / 0.1) * 0.1);
		assert_true(s.q == 0.0 || fabs(s.q) > 0.09);
		assert_true(r.fill == 0.0 || fabs(r.fill) > 0.09);
		if (action[2] == 2)
			assert_true(s.q == env_wanted(action[0], &c));
	}
	assert_true(env_wanted(3, &c) == copysign(floor(0.15 / 0.1 + 0.5) * 0.1, 1.0));
	c.lot = 1.0;
	c.max_position = 5.0;
	assert_true(env_wanted(3, &c) == 3.0 && env_wanted(1, &c) == -3.0); /* 2.5: half away from zero */
	assert_true(env_order_size(3.0, 0, &c) == 1.0 && env_order_size(-5.0, 1, &c) == -3.0 && env_order_size(-1.0, 0, &c) == -1.0);
	c.lot = 0.0;
	assert_true(env_order_size(3.0, 0, &c) == 0.75 && env_order_size(0.004, 0, &c) == 0.004);
}

static void a_stop_wins_over_the_profit_barrier(void **state)
{
	struct env_config c = plain;
	struct env_bar wide = {100, 120, 80, 100}, below = {80, 81, 79, 80};
	struct env_result r;
	struct env_state s;

	(void)state;
	c.pt = c.sl = 1.0;
	c.horizon = 100;
	c.half_spread = 0.25;
	env_start(&s, &c, 0);
	env_step(&s, &c, hold_long, 100, &wide, 0.01, 1000, 1, &r); /* width 0.01 * 10 * 100.25 = 10.025, opened in this bar */
	assert_int_equal(r.exit, ENV_EXIT_STOP);
	assert_within(fabs(r.exit_price - (100.25 - 10.025 - 0.25)), 1e-9, "stop price");
	assert_true(s.q == 0.0 && r.exit_fill == -1.0);
	env_start(&s, &c, 0);
	env_trade(&s, &c, 1, 1, 1, 100.25, 0.01, 0);
	env_step(&s, &c, hold_long, 100, &below, 0.01, 1000, 1, &r);
	assert_int_equal(r.exit, ENV_EXIT_STOP_OPEN);
	assert_true(r.exit_price == 79.75);
}

static void starts_stay_inside_the_split(void **state)
{
	int low = 0, high = 0;

	(void)state;
	for (uint32_t k = 0; k < 4000; k++) {
		int32_t t = env_start_bar(1, k % 64, k / 64, 0, 150);

		assert_true(t >= 144 && t <= 148);
		low += t == 144;
		high += t == 148;
	}
	assert_true(low > 600 && high > 600);
	assert_int_equal(env_start_bar(1, 0, 0, 0, 146), 144);
	assert_int_equal(env_start_bar(1, 0, 0, 500, 502), 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_rollout), cmocka_unit_test(golden_rollout_around_zero),
		cmocka_unit_test(golden_rollout_whole_contracts), cmocka_unit_test(golden_rollout_decimal_lot),
		cmocka_unit_test(golden_portfolio_edges), cmocka_unit_test(logarithm_is_accurate),
		cmocka_unit_test(money_adds_up_on_random_actions), cmocka_unit_test(shuffled_future_changes_no_past_step),
		cmocka_unit_test(equal_pasts_of_two_files_give_equal_steps), cmocka_unit_test(negative_settlement_loses_what_it_should),
		cmocka_unit_test(prices_at_zero_keep_the_state_finite), cmocka_unit_test(fees_are_paid_not_received),
		cmocka_unit_test(limit_orders_need_a_trade_through), cmocka_unit_test(lots_leave_no_residue),
		cmocka_unit_test(a_stop_wins_over_the_profit_barrier), cmocka_unit_test(starts_stay_inside_the_split),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
