/* reward_scale = auto (gpu/MATH.md, section 8): a bar at full size has a reward std near 1. Pure, any thread. */
#include <math.h>
#include <string.h>

#include "gpu/market.h"

static double bar_move(const struct market *m, int64_t t, double tick)
{
	double c = fabs(m->close[t]);

	return m->sigma[t] * (c > tick ? c : tick);
}

/* The value of rank k (from 0) among bars [begin, end): positive doubles order like their bits, so eight passes over
 * one byte each find it without memory. */
static double ranked_move(const struct market *m, struct fh_split s, double tick, int64_t k)
{
	uint64_t prefix = 0, bits;
	double x;

	for (int shift = 56; shift >= 0; shift -= 8) {
		int64_t count[256] = {0};
		int digit = 0;

		for (int64_t t = s.begin; t < s.end; t++) {
			x = bar_move(m, t, tick);
			memcpy(&bits, &x, sizeof(bits));
			if (shift == 56 || bits >> (shift + 8) == prefix)
				count[bits >> shift & 255]++;
		}
		while (k >= count[digit])
			k -= count[digit++];
		prefix = prefix << 8 | (uint64_t)digit;
	}
	memcpy(&x, &prefix, sizeof(x));
	return x;
}

double market_auto_reward_scale(const struct market *m, struct fh_split train, const struct fh_spec *spec)
{
	int64_t n = train.end - train.begin;
	double median;

	if (n <= 0)
		return 1.0;
	median = ranked_move(m, train, spec->env.tick, n / 2);
	if (n % 2 == 0)
		median = 0.5 * (median + ranked_move(m, train, spec->env.tick, n / 2 - 1));
	return spec->env.initial_cash / (spec->env.max_position * spec->env.multiplier * median);
}
