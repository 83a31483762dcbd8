/* Market features (gpu/MATH.md, section 7): bars in, 40 numbers and sigma per bar out.
 *
 * Owns its working state for the length of one call; any thread. Invariant: row t is a function of bars 0..t alone and
 * computed by the same operations in the same order however many bars follow, so a prefix gives the same bits as the
 * whole and appending bars changes no old row. No running sum is ever subtracted from, so nothing drifts: averages are
 * contracting recursions from bar 0, windows are summed afresh, extremes come from per-block prefixes and suffixes.
 * Time is O(1) per bar, memory O(1) beside the output. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/env.h"
#include "gpu/market.h"

#define F FH_MARKET_FEATURES
#define CHUNK 256           /* bars worked on at once */
#define WINDOW 144          /* longest window */
#define SHORT 21            /* the short one of volume and of the share of falling bars */
#define LANES 8             /* partial sums of a window, added up in fixed order */
#define SIGMA_FLOOR 1e-8
#define VOLUME_STD_MIN 1e-6
#define RETURN_STD_MIN 1e-8
#define DAY_NS INT64_C(86400000000000)
#define TWO_PI 6.283185307179586

/* Running maximum over the last n values: the maximum of the current block of n so far, joined with the maxima of the
 * tails of the block before it (van Herk). */
struct extreme { int n, at; double now, block[WINDOW], tail[WINDOW + 1]; };

enum { S60, S600, S8, S240, SIGMAS };

struct work {
	const struct market_bars *b;
	double tick;
	struct market_steps steps;
	int64_t next_roll;          /* place in steps.roll of the first one not passed */
	int64_t t0;                 /* first bar of the chunk */
	int n;                      /* its bars */
	/* recursions, as they stand after the last bar seen */
	double sigma_num[SIGMAS], sigma_den[SIGMAS], ema[6], macd_signal, signed_volume, gain[3], loss[3];
	struct extreme high[3], low[3]; /* of 14, 55, 144 bars; low holds the negated lows */
	/* series with the WINDOW values before the chunk in front */
	double r1[WINDOW + CHUNK], volume[WINDOW + CHUNK]; /* returns, log(1 + v) */
	double level[WINDOW + CHUNK]; /* sum of the price steps left out up to the bar: 0 without any */
	double unit[CHUNK];         /* max(|c|, tick) */
	double sigma[CHUNK];
	double top[CHUNK], bottom[CHUNK]; /* of 144 bars */
	double row[CHUNK][F];
};

static double larger(double a, double b)
{
	return a > b ? a : b;
}

static double clamp(double x)
{
	return x > 5.0 ? 5.0 : x < -5.0 ? -5.0 : x;
}

static double bar_return(double from, double to, double tick)
{
	return from > 0.0 && to > 0.0 ? env_log(to / from) : (to - from) / larger(fabs(from), tick);
}

/* ---------------------------------------------------------------- returns and volatility */

/* What the price moved before bar t without trading, when that is to be left out. Asked once for every t in order. */
static double price_step(struct work *w, int64_t t)
{
	const struct market_bars *b = w->b;
	const struct market_steps *s = &w->steps;
	int roll = w->next_roll < s->rolls && s->roll[w->next_roll] == t;

	w->next_roll += roll;
	if (!roll && (!t || !(s->max_gap > 0.0 && env_gap(b->ts[t - 1], b->ts[t]) > s->max_gap)))
		return 0.0;
	return b->open[t] - b->close[t - 1];
}

static void chunk_series(struct work *w)
{
	const double *c = w->b->close + w->t0, *v = w->b->volume + w->t0;

	memmove(w->r1, w->r1 + CHUNK, WINDOW * sizeof(double));
	memmove(w->volume, w->volume + CHUNK, WINDOW * sizeof(double));
	memmove(w->level, w->level + CHUNK, WINDOW * sizeof(double));
	for (int i = 0; i < w->n; i++) {
		double *level = &w->level[WINDOW + i];

		*level = level[-1] + price_step(w, w->t0 + i);
		w->r1[WINDOW + i] = w->t0 + i ? bar_return(c[i - 1] + (level[0] - level[-1]), c[i], w->tick) : 0.0;
		w->volume[WINDOW + i] = env_log(1.0 + v[i]);
		w->unit[i] = larger(fabs(c[i]), w->tick);
	}
}

/* 9, 26, 27 and sigma: exponentially weighted means of squared returns with half-lives of 60, 600, 8 and 240 bars. */
static void chunk_sigma(struct work *w)
{
	static const double decay[SIGMAS] = { /* 2^(-1/H) */
		0x1.fa1e827a1b38cp-1, 0x1.ff68aac83f92dp-1, 0x1.d5818dcfba487p-1, 0x1.fe85fecec6fd7p-1,
	};

	for (int i = 0; i < w->n; i++) {
		double r = w->r1[WINDOW + i], s[SIGMAS];

		for (int k = 0; k < SIGMAS; k++) {
			if (w->t0 + i) {
				w->sigma_num[k] = decay[k] * w->sigma_num[k] + r * r;
				w->sigma_den[k] = decay[k] * w->sigma_den[k] + 1.0;
			}
			s[k] = w->t0 + i ? larger(sqrt(w->sigma_num[k] / w->sigma_den[k]), SIGMA_FLOOR) : SIGMA_FLOOR;
		}
		w->sigma[i] = s[S60];
		w->row[i][9] = env_log(s[S60] / s[S600]);
		w->row[i][26] = s[S8] / s[S60] - 1.0;
		w->row[i][27] = s[S60] / s[S240] - 1.0;
	}
}

/* 0..8 */
static void chunk_returns(struct work *w)
{
	static const int lag[9] = {1, 2, 3, 5, 8, 13, 21, 34, 55};
	const double *c = w->b->close;

	for (int k = 0; k < 9; k++) {
		double root = sqrt((double)lag[k]);

		for (int i = 0; i < w->n; i++) {
			int64_t t = w->t0 + i;
			const double *level = w->level + WINDOW + i;
			double r = t < lag[k] ? 0.0 : bar_return(c[t - lag[k]] + (level[0] - level[-lag[k]]), c[t], w->tick);

			w->row[i][k] = r / (w->sigma[i] * root);
		}
	}
}

/* ---------------------------------------------------------------- the bar, averages, oscillators */

/* 10..12 */
static void chunk_bar(struct work *w)
{
	const struct market_bars *b = w->b;

	for (int i = 0; i < w->n; i++) {
		double o = b->open[w->t0 + i], h = b->high[w->t0 + i], l = b->low[w->t0 + i], c = b->close[w->t0 + i];
		double scale = w->unit[i] * w->sigma[i];

		w->row[i][10] = (h - l) / scale;
		w->row[i][11] = (c - o) / scale;
		w->row[i][12] = h != l ? (2.0 * c - h - l) / (h - l) : 0.0;
	}
}

static void average(double *ema, double x, int span, int64_t t)
{
	*ema = t ? *ema + 2.0 / (span + 1) * (x - *ema) : x;
}

/* 13..19 */
static void chunk_averages(struct work *w)
{
	static const int span[6] = {8, 21, 55, 144, 12, 26};

	for (int i = 0; i < w->n; i++) {
		int64_t t = w->t0 + i;
		double c = w->b->close[t] - w->level[WINDOW + i], scale = w->unit[i] * w->sigma[i], *row = w->row[i];

		for (int k = 0; k < 6; k++)
			average(&w->ema[k], c, span[k], t);
		for (int k = 0; k < 4; k++)
			row[13 + k] = (c - w->ema[k]) / (scale * sqrt((double)span[k]));
		row[17] = clamp((w->ema[4] - w->ema[5]) / scale);
		average(&w->macd_signal, row[17], 9, t);
		row[18] = w->macd_signal;
		row[19] = row[17] - row[18];
	}
}

/* 20..22: Wilder's averages of rises and falls. */
static void chunk_rsi(struct work *w)
{
	static const int span[3] = {7, 14, 28};
	const double *c = w->b->close;

	for (int i = 0; i < w->n; i++) {
		int64_t t = w->t0 + i;
		const double *level = w->level + WINDOW + i;
		double d = t ? c[t] - (c[t - 1] + (level[0] - level[-1])) : 0.0;

		for (int k = 0; k < 3; k++) {
			double m = t < span[k] ? (double)larger((double)t, 1.0) : span[k], sum;

			w->gain[k] += (larger(d, 0.0) - w->gain[k]) / m;
			w->loss[k] += (larger(-d, 0.0) - w->loss[k]) / m;
			sum = w->gain[k] + w->loss[k];
			w->row[i][20 + k] = sum > 0.0 ? (w->gain[k] - w->loss[k]) / sum : 0.0;
		}
	}
}

static double extreme_next(struct extreme *e, double x)
{
	double out;

	e->now = e->at ? larger(e->now, x) : x;
	e->block[e->at] = x;
	out = larger(e->now, e->tail[e->at + 1]);
	if (++e->at == e->n) {
		double m = -INFINITY;

		for (int i = e->n - 1; i >= 0; i--)
			e->tail[i] = m = larger(m, e->block[i]);
		e->at = 0;
	}
	return out;
}

/* 23..25, 34, 35: where the close stands between the extremes of the last bars. */
static void chunk_extremes(struct work *w)
{
	const struct market_bars *b = w->b;

	for (int i = 0; i < w->n; i++) {
		int64_t t = w->t0 + i;
		double level = w->level[WINDOW + i], c = b->close[t] - level, scale = w->unit[i] * w->sigma[i] * 12.0, hi = 0.0, lo = 0.0;

		for (int k = 0; k < 3; k++) {
			hi = extreme_next(&w->high[k], b->high[t] - level);
			lo = -extreme_next(&w->low[k], -(b->low[t] - level));
			w->row[i][23 + k] = hi != lo ? 2.0 * (c - lo) / (hi - lo) - 1.0 : 0.0;
		}
		w->row[i][34] = (c - hi) / scale;
		w->row[i][35] = (c - lo) / scale;
	}
}

/* ---------------------------------------------------------------- windows summed afresh */

static double lanes_sum(const double lane[LANES])
{
	return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static double window_mean(const double *x, int n)
{
	double lane[LANES] = {0.0};
	int i, k;

	for (i = 0; i + LANES <= n; i += LANES)
		for (k = 0; k < LANES; k++)
			lane[k] += x[i + k];
	for (k = 0; i < n; i++, k++)
		lane[k] += x[i];
	return lanes_sum(lane) / n;
}

static double window_square(const double *x, int n, double mean)
{
	double lane[LANES] = {0.0};
	int i, k;

	for (i = 0; i + LANES <= n; i += LANES)
		for (k = 0; k < LANES; k++)
			lane[k] += (x[i + k] - mean) * (x[i + k] - mean);
	for (k = 0; i < n; i++, k++)
		lane[k] += (x[i] - mean) * (x[i] - mean);
	return lanes_sum(lane);
}

/* Sums of y_i^3 and y_i y_{i-1}. */
static void window_cube_lag(const double *x, int n, double mean, double *cube, double *lag)
{
	double a[LANES] = {0.0}, b[LANES] = {0.0};
	int i, k;

	a[0] = (x[0] - mean) * (x[0] - mean) * (x[0] - mean);
	for (i = 1; i + LANES <= n; i += LANES)
		for (k = 0; k < LANES; k++) {
			double y = x[i + k] - mean, p = x[i + k - 1] - mean;

			a[k] += y * y * y;
			b[k] += y * p;
		}
	for (k = 0; i < n; i++, k++) {
		double y = x[i] - mean, p = x[i - 1] - mean;

		a[k] += y * y * y;
		b[k] += y * p;
	}
	*cube = lanes_sum(a);
	*lag = lanes_sum(b);
}

static double volume_z(const double *last, int n)
{
	const double *x = last - (n - 1);
	double mean = window_mean(x, n), std = sqrt(window_square(x, n, mean) / n);

	return std >= VOLUME_STD_MIN ? (*last - mean) / std : 0.0;
}

static int window_length(int64_t available, int longest)
{
	return available < longest ? (int)available : longest;
}

/* 28..30 */
static void chunk_volume(struct work *w)
{
	for (int i = 0; i < w->n; i++) {
		int64_t t = w->t0 + i;
		double r = w->r1[WINDOW + i], sign = (r > 0.0) - (r < 0.0);

		w->row[i][28] = clamp(volume_z(w->volume + WINDOW + i, window_length(t + 1, WINDOW)));
		w->row[i][29] = volume_z(w->volume + WINDOW + i, window_length(t + 1, SHORT));
		average(&w->signed_volume, sign * w->row[i][28], SHORT, t);
		w->row[i][30] = w->signed_volume;
	}
}

/* 31..33: the shape of the last returns, which begin at bar 1. */
static void chunk_moments(struct work *w)
{
	for (int i = 0; i < w->n; i++) {
		int n = window_length(w->t0 + i, WINDOW), m = window_length(w->t0 + i, SHORT), falls = 0;
		const double *last = w->r1 + WINDOW + i, *x = last - (n - 1);
		double *row = w->row[i], mean, square, std, cube, lag;

		row[31] = row[32] = row[33] = 0.0;
		for (int k = 0; k < m; k++)
			falls += last[-k] < 0.0;
		if (m)
			row[33] = 2.0 * ((double)falls / m - 0.5);
		if (n < 3)
			continue;
		mean = window_mean(x, n);
		square = window_square(x, n, mean);
		std = sqrt(square / n);
		if (std < RETURN_STD_MIN)
			continue;
		window_cube_lag(x, n, mean, &cube, &lag);
		row[31] = lag / square;
		row[32] = cube / n / (std * std * std);
	}
}

/* ---------------------------------------------------------------- clock */

/* 36..39 */
static void chunk_clock(struct work *w, const double week[7][2])
{
	for (int i = 0; i < w->n; i++) {
		int64_t ts = w->b->ts[w->t0 + i], day = ts / DAY_NS - (ts % DAY_NS < 0), ns = ts - day * DAY_NS;
		double angle = TWO_PI * ((double)ns / (double)DAY_NS);
		int weekday = (int)(((day + 3) % 7 + 7) % 7); /* 1970-01-01 was a Thursday */

		w->row[i][36] = sin(angle);
		w->row[i][37] = cos(angle);
		w->row[i][38] = week[weekday][0];
		w->row[i][39] = week[weekday][1];
	}
}

/* ---------------------------------------------------------------- all of it */

static void work_start(struct work *w, const struct market_bars *b, double tick, const struct market_steps *steps)
{
	static const int window[3] = {14, 55, WINDOW};

	memset(w, 0, sizeof(*w));
	w->b = b;
	w->tick = tick;
	w->steps = *steps;
	for (int k = 0; k < 3; k++) {
		w->high[k].n = w->low[k].n = window[k];
		for (int i = 0; i <= WINDOW; i++)
			w->high[k].tail[i] = w->low[k].tail[i] = -INFINITY;
	}
}

static void chunk_store(const struct work *w, double *f64, double *s64, float *f32, float *s32)
{
	for (int i = 0; i < w->n; i++) {
		int64_t t = w->t0 + i;

		for (int k = 0; k < F; k++) {
			double x = clamp(w->row[i][k]);

			if (f64)
				f64[t * F + k] = x;
			else
				f32[t * F + k] = (float)x;
		}
		if (s64)
			s64[t] = w->sigma[i];
		else
			s32[t] = (float)w->sigma[i];
	}
}

static void features(const struct market_bars *b, double tick, const struct market_steps *steps, double *f64, double *s64, float *f32, float *s32)
{
	struct work w;
	double week[7][2];

	for (int d = 0; d < 7; d++) {
		week[d][0] = sin(TWO_PI * d / 7.0);
		week[d][1] = cos(TWO_PI * d / 7.0);
	}
	work_start(&w, b, tick, steps);
	for (; w.t0 < b->bars; w.t0 += CHUNK) {
		w.n = b->bars - w.t0 < CHUNK ? (int)(b->bars - w.t0) : CHUNK;
		chunk_series(&w);
		chunk_sigma(&w);
		chunk_returns(&w);
		chunk_bar(&w);
		chunk_averages(&w);
		chunk_rsi(&w);
		chunk_extremes(&w);
		chunk_volume(&w);
		chunk_moments(&w);
		chunk_clock(&w, week);
		chunk_store(&w, f64, s64, f32, s32);
	}
}

static const struct market_steps no_steps;

void market_features(const struct market_bars *b, double tick, float *feature, float *sigma)
{
	features(b, tick, &no_steps, NULL, NULL, feature, sigma);
}

void market_features64(const struct market_bars *b, double tick, double *feature, double *sigma)
{
	features(b, tick, &no_steps, feature, sigma, NULL, NULL);
}

void market_features_steps(const struct market_bars *b, double tick, const struct market_steps *s, float *feature, float *sigma)
{
	features(b, tick, s, NULL, NULL, feature, sigma);
}

void market_features_steps64(const struct market_bars *b, double tick, const struct market_steps *s, double *feature, double *sigma)
{
	features(b, tick, s, feature, sigma, NULL, NULL);
}
