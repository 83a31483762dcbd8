/* The portfolio environment of gpu/MATH.md, section 8, one definition for host and device.
 *
 * Pure functions on one environment; F64 for money, position and barriers. No contraction may change a fill, exit or
 * flag: host code is compiled with -ffp-contract=off, device code with --fmad=false for the file that includes this.
 * Only operations that IEEE 754 rounds exactly are used (no library logarithm), so both give the same bits.
 * Order of one step: order, then exits within the same bar, then equity, reward and flags.
 * Expects tick, max_position, multiplier, initial_cash > 0, episode_length and horizon >= 1. */
#ifndef FH_GPU_ENV_H
#define FH_GPU_ENV_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "gpu/hd.h"
#include "gpu/philox.h"

#define ENV_WARMUP 144          /* first bar that may start an episode */
#define ENV_FEATURES 8
#define ENV_FEATURE_MAX 5.0     /* clamp of every feature */
#define ENV_STEPS_OWN (-1)      /* env_features(): steps left of the training episode */

enum env_order { ENV_MARKET, ENV_LIMIT, ENV_IOC };
enum env_exit { ENV_EXIT_NONE, ENV_EXIT_STOP, ENV_EXIT_STOP_OPEN, ENV_EXIT_PROFIT, ENV_EXIT_HORIZON };

struct env_config {
	double tick, multiplier, half_spread, fee, max_position, lot, initial_cash, reward_scale, pt, sl, ruin_fraction;
	int32_t episode_length, horizon;
	double max_gap;  /* seconds; 0: none */
	int32_t roll_on; /* 1: a position is rolled where the contract changes */
};

struct env_state {
	double cash, equity, peak, q, entry, entry_sigma; /* money, money, money, contracts, price, 1 */
	int32_t t, entry_bar, steps;
};

struct env_bar { double open, high, low, close; };

struct env_result { /* of one step */
	double fill, fill_price, exit_fill, exit_price, reward;
	int32_t exit;       /* enum env_exit */
	int32_t terminated, truncated;
	double roll, roll_out, roll_in; /* contracts rolled (signed), price of the old ones' close, of the new ones' opening */
};

/* What lies between two bars: bits of env_step_over(). */
enum { ENV_OVER_GAP = 1, ENV_OVER_ROLL = 2 };

/* ---------------------------------------------------------------- start */

FH_HD void env_start(struct env_state *s, const struct env_config *c, int32_t t)
{
	s->cash = s->equity = s->peak = c->initial_cash;
	s->q = s->entry = s->entry_sigma = 0.0;
	s->t = t;
	s->entry_bar = s->steps = 0;
}

FH_HD int32_t env_first_bar(int32_t begin)
{
	return begin > ENV_WARMUP ? begin : ENV_WARMUP;
}

/* Where environment `env` starts in the split [begin, end) after `vector_step` vector steps (the one that ended the
 * episode included). */
FH_HD int32_t env_start_bar(uint64_t seed, uint32_t env, uint64_t vector_step, int32_t begin, int32_t end)
{
	int32_t lo = env_first_bar(begin);

	return lo + (int32_t)philox_below(philox_word(seed, PHILOX_RESET, vector_step, env), (uint32_t)(end - 1 - lo));
}

/* ---------------------------------------------------------------- what the agent sees of its position */

FH_HD double env_price_unit(double price, double tick)
{
	double a = fabs(price);

	return a > tick ? a : tick;
}

/* Natural logarithm of a positive normal number from exactly rounded operations, within 1e-15: 2 artanh((m-1)/(m+1)). */
FH_HD double env_log(double x)
{
	uint64_t bits;
	int64_t e;
	int k;
	double m, s, s2, sum = 0.0;

	memcpy(&bits, &x, sizeof(bits));
	e = (int64_t)(bits >> 52) - 1023;
	bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
	memcpy(&m, &bits, sizeof(m));
	if (m > 1.4142135623730951) {
		m *= 0.5;
		e++;
	}
	s = (m - 1.0) / (m + 1.0);
	s2 = s * s;
	for (k = 21; k >= 3; k -= 2)
		sum = (sum + 1.0 / k) * s2;
	return (double)e * 0.6931471805599453 + 2.0 * (s + s * sum);
}

/* Profit and stop price of the open position. */
FH_HD void env_barriers(const struct env_state *s, const struct env_config *c, double *profit, double *stop)
{
	double width = s->entry_sigma * sqrt((double)c->horizon) * env_price_unit(s->entry, c->tick);
	double side = s->q > 0.0 ? 1.0 : -1.0;

	*profit = s->entry + side * c->pt * width;
	*stop = s->entry - side * c->sl * width;
}

FH_HD double env_clamp(double x)
{
	return x > ENV_FEATURE_MAX ? ENV_FEATURE_MAX : x < -ENV_FEATURE_MAX ? -ENV_FEATURE_MAX : x;
}

/* The 8 portfolio features at bar s->t, whose close and sigma are given. steps_left: ENV_STEPS_OWN in training, in
 * validation the bars up to the last usable one. */
FH_HD void env_features64(const struct env_state *s, const struct env_config *c, double close, double sigma,
			  int32_t steps_left, double out[ENV_FEATURES])
{
	double equity_floor = 1e-3 * c->initial_cash;
	int32_t left = steps_left < 0 ? c->episode_length - s->steps :
		       steps_left < c->episode_length ? steps_left : c->episode_length;
	int i;

	out[0] = s->q / c->max_position;
	out[1] = out[2] = out[3] = out[4] = 0.0;
	if (s->q != 0.0) {
		double side = s->q > 0.0 ? 1.0 : -1.0, profit, stop;
		double unit = env_price_unit(s->entry, c->tick) * sigma * sqrt((double)c->horizon);

		env_barriers(s, c, &profit, &stop);
		out[1] = (close - s->entry) * side / unit;
		out[2] = (double)(s->t - s->entry_bar) / (double)c->horizon;
		out[3] = (profit - close) * side / unit;
		out[4] = (close - stop) * side / unit;
	}
	out[5] = env_log((s->equity > equity_floor ? s->equity : equity_floor) / c->initial_cash);
	out[6] = (s->peak - s->equity) / s->peak;
	out[7] = (double)left / (double)c->episode_length;
	for (i = 0; i < ENV_FEATURES; i++)
		out[i] = env_clamp(out[i]);
}

FH_HD void env_features(const struct env_state *s, const struct env_config *c, double close, double sigma,
			int32_t steps_left, float out[ENV_FEATURES])
{
	double x[ENV_FEATURES];
	int i;

	env_features64(s, c, close, sigma, steps_left, x);
	for (i = 0; i < ENV_FEATURES; i++)
		out[i] = (float)x[i];
}

/* ---------------------------------------------------------------- orders */

/* Position that exposure index e (0..4 = -1, -1/2, 0, 1/2, 1) asks for, a multiple of the lot, half away from zero. */
FH_HD double env_wanted(int32_t e, const struct env_config *c)
{
	double q = (double)(e - 2) * 0.5 * c->max_position;

	return c->lot > 0.0 ? copysign(floor(fabs(q) / c->lot + 0.5) * c->lot, q) : q;
}

/* Signed quantity of the order for delta = wanted - q at urgency index u (0..2 = 1/4, 1/2, 1). */
FH_HD double env_order_size(double delta, int32_t u, const struct env_config *c)
{
	double fraction = u == 0 ? 0.25 : u == 1 ? 0.5 : 1.0, size = fabs(delta);

	if (c->lot > 0.0) {
		double lots = ceil(fraction * size / c->lot - 1e-9) * c->lot;

		return copysign(lots < size ? lots : size, delta);
	}
	return size <= 1e-3 * c->max_position ? delta : fraction * delta;
}

/* 1 and the price when an order of this type and side fills in the next bar. */
FH_HD int env_fill_price(int32_t order, double side, double close, const struct env_bar *next,
			 const struct env_config *c, double *price)
{
	if (order == ENV_MARKET || (order == ENV_IOC && fabs(next->open - close) <= 4.0 * c->tick)) {
		*price = next->open + side * c->half_spread;
		return 1;
	}
	if (order == ENV_LIMIT && (side > 0.0 ? next->low < close : next->high > close)) {
		if (side > 0.0)
			*price = next->open < close ? next->open : close;
		else
			*price = next->open > close ? next->open : close;
		return 1;
	}
	return 0;
}

FH_HD void env_apply_fill(struct env_state *s, const struct env_config *c, double fill, double price)
{
	s->cash -= fill * price * c->multiplier + fabs(fill) * c->fee;
	s->q += fill;
}

/* Trades `fill` of `delta` and moves entry and barriers with the position. n: the bar of the fill. */
FH_HD void env_trade(struct env_state *s, const struct env_config *c, double wanted, double delta, double fill,
		     double price, double sigma, int32_t n)
{
	double before = s->q;

	env_apply_fill(s, c, fill, price);
	if (fill == delta)
		s->q = wanted;
	if (c->lot > 0.0)
		s->q = rint(s->q / c->lot) * c->lot;
	if (s->q == 0.0)
		return;
	if (before == 0.0 || before * s->q < 0.0) {
		s->entry = price;
		s->entry_bar = n;
		s->entry_sigma = sigma;
	} else if (fabs(s->q) > fabs(before)) {
		s->entry = (fabs(before) * s->entry + fabs(fill) * price) / fabs(s->q);
	}
}

/* Closes the position when the bar touched a barrier or its time is over. The stop wins over the profit barrier. */
FH_HD void env_exits(struct env_state *s, const struct env_config *c, const struct env_bar *next, int32_t n,
		     struct env_result *r)
{
	double side = s->q > 0.0 ? 1.0 : -1.0, profit, stop, price;
	double adverse = side > 0.0 ? next->low : next->high, favour = side > 0.0 ? next->high : next->low;

	env_barriers(s, c, &profit, &stop);
	if (side * (adverse - stop) <= 0.0) {
		int beyond = side * (next->open - stop) <= 0.0;

		price = (beyond ? next->open : stop) - side * c->half_spread;
		r->exit = beyond ? ENV_EXIT_STOP_OPEN : ENV_EXIT_STOP;
	} else if (side * (favour - profit) >= 0.0) {
		price = profit;
		r->exit = ENV_EXIT_PROFIT;
	} else if (n - s->entry_bar >= c->horizon) {
		price = next->close - side * c->half_spread;
		r->exit = ENV_EXIT_HORIZON;
	} else {
		return;
	}
	r->exit_fill = -s->q;
	r->exit_price = price;
	env_apply_fill(s, c, r->exit_fill, price);
}

/* Seconds from one bar to the next. */
FH_HD double env_gap(int64_t from_ts, int64_t to_ts)
{
	return (double)(to_ts - from_ts) / 1e9;
}

/* What counts of what lies between two bars; rolled: the second one is of another contract. */
FH_HD int env_over(const struct env_config *c, int64_t from_ts, int64_t to_ts, int rolled)
{
	return (c->max_gap > 0.0 && env_gap(from_ts, to_ts) > c->max_gap ? ENV_OVER_GAP : 0) | (c->roll_on && rolled ? ENV_OVER_ROLL : 0);
}

/* The same where contracts do not change. */
FH_HD int env_lapses(const struct env_config *c, int64_t from_ts, int64_t to_ts)
{
	return env_over(c, from_ts, to_ts, 0);
}

/* The position leaves the old contract at its last close and enters the new one at its open: it pays twice and never earns the step.
 * Entry and barriers move with the price, age and sigma stay. */
FH_HD void env_roll(struct env_state *s, const struct env_config *c, double close, double open, struct env_result *r)
{
	double side = s->q > 0.0 ? 1.0 : -1.0;

	r->roll = s->q;
	r->roll_out = close - side * c->half_spread;
	r->roll_in = open + side * c->half_spread;
	s->cash += s->q * r->roll_out * c->multiplier - fabs(s->q) * c->fee;
	s->cash -= s->q * r->roll_in * c->multiplier + fabs(s->q) * c->fee;
	s->entry += open - close;
}

/* One step: acts at bar s->t (close, sigma of that bar), executes in the next one, moves to it.
 * action: exposure, order type, urgency. last_bar: the split's last usable bar (end - 1). train: episodes end after
 * episode_length bars. over: env_over() of the two bars. Over a gap the order is not executed, over a roll only a market order
 * is, for others name a price of the old contract; exits are as always. */
FH_HD void env_step_over(struct env_state *s, const struct env_config *c, const int32_t *action, double close,
			 const struct env_bar *next, double sigma, int32_t last_bar, int train, int over, struct env_result *r)
{
	int32_t n = s->t + 1;
	double wanted = env_wanted(action[0], c), delta = wanted - s->q, equity, price;

	r->fill = r->fill_price = r->exit_fill = r->exit_price = r->roll = r->roll_out = r->roll_in = 0.0;
	r->exit = ENV_EXIT_NONE;
	if (over & ENV_OVER_ROLL && s->q != 0.0)
		env_roll(s, c, close, next->open, r);
	if (delta != 0.0 && !(over & ENV_OVER_GAP) && !(over & ENV_OVER_ROLL && action[1] != ENV_MARKET) && env_fill_price(action[1], delta > 0.0 ? 1.0 : -1.0, close, next, c, &price)) {
		r->fill = env_order_size(delta, action[2], c);
		r->fill_price = price;
		env_trade(s, c, wanted, delta, r->fill, price, sigma, n);
	}
	if (s->q != 0.0)
		env_exits(s, c, next, n, r);
	if (s->q == 0.0) {
		s->q = s->entry = s->entry_sigma = 0.0; /* no negative zero */
		s->entry_bar = 0;
	}
	equity = s->cash + s->q * next->close * c->multiplier;
	r->reward = (equity - s->equity) / c->initial_cash * c->reward_scale;
	s->equity = equity;
	s->peak = equity > s->peak ? equity : s->peak;
	s->t = n;
	s->steps++;
	r->terminated = equity <= c->ruin_fraction * c->initial_cash;
	r->truncated = !r->terminated && (n == last_bar || (train && s->steps == c->episode_length));
}

/* The same between two bars that follow each other. */
FH_HD void env_step(struct env_state *s, const struct env_config *c, const int32_t *action, double close,
		    const struct env_bar *next, double sigma, int32_t last_bar, int train, struct env_result *r)
{
	env_step_over(s, c, action, close, next, sigma, last_bar, train, 0, r);
}

#endif
