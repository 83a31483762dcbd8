/* Synthetic markets from Philox draws: see synth.h for what they promise.
 *
 * Owns nothing. Bar t reads block t of three draw steps (return, shape of the bar, volume) of the seed. Exponential
 * and cosine are our own sums of exactly rounded operations: a library's would differ in the last bit from machine to
 * machine, and with it the hash that names the data set. */
#include <math.h>
#include <string.h>

#include "gpu/env.h"
#include "gpu/market.h"
#include "gpu/philox.h"
#include "gpu/synth.h"
#include "proto/status.h"

#define SWITCH_CHANCE (1.0f / 250)
#define PRICE_MIN 1e-9
#define SIGMA_MAX 0.2
#define START_MIN 1e-6
#define START_MAX 1e9
#define VOLUME_TYPICAL 500.0
#define REGIMES 3

enum { DRAW_RETURN, DRAW_SHAPE, DRAW_VOLUME }; /* Philox steps */

static const struct { const char *name; enum synth_kind kind; } kinds[] = {
	{"momentum", SYNTH_MOMENTUM}, {"regime", SYNTH_REGIME}, {"walk", SYNTH_WALK},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

enum synth_kind synth_kind_find(const char *name)
{
	for (size_t i = 0; i < KINDS; i++)
		if (!strcmp(name, kinds[i].name))
			return kinds[i].kind;
	return 0;
}

const char *synth_kind_name(enum synth_kind kind)
{
	for (size_t i = 0; i < KINDS; i++)
		if (kinds[i].kind == kind)
			return kinds[i].name;
	return "?";
}

void synth_init(struct synth *s, enum synth_kind kind, int64_t bars, uint64_t seed)
{
	*s = (struct synth){
		.kind = kind, .bars = bars, .seed = seed, .phi = SYNTH_PHI_DEFAULT, .sigma = SYNTH_SIGMA_DEFAULT,
		.start = SYNTH_START_DEFAULT, .bar_ns = SYNTH_BAR_NS_DEFAULT,
	};
}

static int synth_check(const struct synth *s, struct fh_status *st)
{
	if (s->kind < SYNTH_MOMENTUM || s->kind > SYNTH_WALK)
		return fh_fail_field(st, FH_INVALID, "kind", "no such kind of market: momentum, regime or walk");
	if (s->bars < 2 || s->bars > MARKET_BARS_MAX)
		return fh_fail_field(st, FH_INVALID, "bars", "%lld bars; a market has 2 to %lld", (long long)s->bars,
				     (long long)MARKET_BARS_MAX);
	if (!(s->phi > -1.0 && s->phi < 1.0))
		return fh_fail_field(st, FH_INVALID, "phi", "phi is %g, not between -1 and 1", s->phi);
	if (!(s->sigma > 0.0 && s->sigma <= SIGMA_MAX))
		return fh_fail_field(st, FH_INVALID, "sigma", "sigma is %g, not in (0, %g]", s->sigma, SIGMA_MAX);
	if (!(s->start >= START_MIN && s->start <= START_MAX))
		return fh_fail_field(st, FH_INVALID, "start", "start is %g, not in [%g, %g]", s->start, START_MIN, START_MAX);
	if (s->bar_ns < 1 || s->bar_ns > (INT64_MAX - SYNTH_FIRST_TS) / s->bars)
		return fh_fail_field(st, FH_INVALID, "bar_ns", "bar_ns is %lld; at least 1, and the last bar before 2262",
				     (long long)s->bar_ns);
	return 0;
}

/* ---------------------------------------------------------------- portable functions */

/* e^x for |x| < 40. */
static double exponential(double x)
{
	double k = rint(x * 1.4426950408889634), r = x - k * 0.6931471805599453, sum = 1.0;

	for (int i = 16; i >= 1; i--)
		sum = 1.0 + sum * r / i;
	return ldexp(sum, (int)k);
}

/* cos(2 pi u) for u in [0, 1]. */
static double cosine_turns(double u)
{
	double w = fabs(u - 0.5), sign = -1.0, a, sum = 1.0;

	if (w > 0.25) {
		w = 0.5 - w;
		sign = 1.0;
	}
	a = w * 6.283185307179586;
	for (int i = 26; i >= 2; i -= 2)
		sum = 1.0 - sum * a * a / (double)(i * (i - 1));
	return sign * sum;
}

/* Two words -> a standard normal number. */
static double normal(uint32_t a, uint32_t b)
{
	return sqrt(-2.0 * env_log(philox_uniform(a))) * cosine_turns(philox_uniform(b));
}

/* ---------------------------------------------------------------- bars */

struct path { double last; int regime; };

/* The bar's log return; *bridge gets the standard deviation of its innovation. */
static double next_return(const struct synth *s, struct path *p, int64_t t, double *bridge)
{
	static const double drift[REGIMES] = {0.15, 0.0, -0.15}, deviation[REGIMES] = {0.6, 1.0, 1.5};
	const double scale = 1.1037813793198965; /* sqrt of the mean of drift^2 + deviation^2 */
	struct philox_words w = philox_block(s->seed, PHILOX_SYNTH, DRAW_RETURN, (uint64_t)t);
	double z = normal(w.w[0], w.w[1]);

	switch (s->kind) {
	case SYNTH_MOMENTUM:
		*bridge = s->sigma * sqrt(1.0 - s->phi * s->phi);
		/* the first return has the distribution of all the others */
		p->last = t ? s->phi * p->last + *bridge * z : s->sigma * z;
		return p->last;
	case SYNTH_REGIME:
		if (!t)
			p->regime = (int)philox_below(w.w[3], REGIMES);
		else if (philox_uniform(w.w[2]) < SWITCH_CHANCE)
			p->regime = (p->regime + 1 + (int)philox_below(w.w[3], REGIMES - 1)) % REGIMES;
		*bridge = s->sigma * deviation[p->regime] / scale;
		return s->sigma * drift[p->regime] / scale + *bridge * z;
	default:
		*bridge = s->sigma;
		return s->sigma * z - 0.5 * s->sigma * s->sigma; /* E[e^r] = 1 */
	}
}

/* How far a Brownian bridge from 0 to r gets above 0, from one uniform number. */
static double bridge_top(double r, double deviation, uint32_t word)
{
	return 0.5 * (r + sqrt(r * r - 2.0 * deviation * deviation * env_log(philox_uniform(word))));
}

int synth_bars(const struct synth *s, int64_t *ts, double *open, double *high, double *low, double *close,
	       double *volume, struct fh_status *st)
{
	struct path p = {0.0, 0};
	double price = s->start;
	int rc = synth_check(s, st);

	for (int64_t t = 0; !rc && t < s->bars; t++) {
		struct philox_words shape = philox_block(s->seed, PHILOX_SYNTH, DRAW_SHAPE, (uint64_t)t);
		struct philox_words size = philox_block(s->seed, PHILOX_SYNTH, DRAW_VOLUME, (uint64_t)t);
		double bridge, r = next_return(s, &p, t, &bridge);
		double next = price * exponential(r);

		if (!(next >= PRICE_MIN && next <= MARKET_PRICE_MAX / 1e3))
			return fh_fail_field(st, FH_INVALID, "sigma", "the price reaches %g at bar %lld: fewer bars or a smaller sigma",
					     next, (long long)t);
		ts[t] = SYNTH_FIRST_TS + t * s->bar_ns;
		open[t] = price;
		close[t] = next;
		high[t] = fmax(price * exponential(bridge_top(r, bridge, shape.w[0])), fmax(price, next));
		low[t] = fmin(price * exponential(-bridge_top(-r, bridge, shape.w[1])), fmin(price, next));
		volume[t] = ceil(VOLUME_TYPICAL * (1.0 + fabs(r) / s->sigma) * exponential(0.4 * normal(size.w[0], size.w[1])));
		price = next;
	}
	return rc;
}
