/* Market features (gpu/MATH.md, section 7): bars in, 40 numbers and sigma per bar out.
 *
 * Owns its working state for the length of one call, or of one run; any thread. Invariant: row t is a function of bars 0..t alone and
 * computed by the same operations in the same order however many bars follow and wherever calls end, so a prefix gives the same bits
 * as the whole and appending bars changes no old row. No running sum is ever subtracted from, so nothing drifts: averages are
 * contracting recursions from bar 0, extremes and sums of windows come from prefixes and suffixes of blocks.
 * Time is O(1) per bar, memory O(1) beside the output. The loops are in features_chunk.inc. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/env.h"
#include "gpu/features.h"
#include "gpu/market.h"

#define F FH_MARKET_FEATURES
#define ALIGN 64
#define TWO_PI 6.283185307179586

static feature_rows best_rows(void)
{
	const char *forced = getenv("FH_HOST_KERNELS"); /* as for the learner's */
	feature_rows wide = features_rows_avx512(), medium = features_rows_avx2();

	if (forced && !strcmp(forced, "base"))
		return features_rows_base;
	if (wide && !(forced && !strcmp(forced, "avx2")))
		return wide;
	return medium ? medium : features_rows_base;
}

static void work_start(struct feature_work *w, const struct market_bars *b, double tick, const struct market_steps *steps)
{
	static const int window[EXTREMES] = {14, 55, FEATURE_WINDOW};

	memset(w, 0, sizeof(*w));
	w->b = *b;
	w->tick = tick;
	w->steps = *steps;
	for (int k = 0; k < EXTREMES; k++) {
		w->extreme[k].n = window[k];
		for (int i = 0; i <= FEATURE_WINDOW; i++)
			w->extreme[k].tail[0][i] = w->extreme[k].tail[1][i] = -INFINITY;
	}
	w->volume_long.n = w->returns.n = FEATURE_WINDOW;
	w->volume_short.n = FEATURE_SHORT;
	for (int d = 0; d < 7; d++) {
		w->week[d][0] = sin(TWO_PI * d / 7.0);
		w->week[d][1] = cos(TWO_PI * d / 7.0);
	}
	for (int i = 0; i < FEATURE_CLOCKS; i++)
		w->clock[i].ns = -1;
}

static void shift(double *series, int n)
{
	memmove(series, series + n, FEATURE_WINDOW * sizeof(double));
}

static void store64(const struct feature_work *w, double *feature, double *sigma)
{
	for (int i = 0; i < w->n; i++) {
		for (int k = 0; k < F; k++)
			feature[(w->t0 + i) * F + k] = w->col[k][i];
		sigma[w->t0 + i] = w->sigma[i];
	}
}

typedef float four __attribute__((vector_size(16), aligned(4)));

/* Columns to rows, four by four. */
static void store32(const struct feature_work *w, float *feature, float *sigma)
{
	float col[F][FEATURE_CHUNK];
	float *row = feature + w->t0 * F;
	int i = 0;

	_Static_assert(F % 4 == 0, "four columns at a time");
	for (int k = 0; k < F; k++)
		for (i = 0; i < w->n; i++)
			col[k][i] = (float)w->col[k][i];
	for (i = 0; i + 4 <= w->n; i += 4, row += 4 * F)
		for (int k = 0; k < F; k += 4) {
			four a, b, c, d;

			memcpy(&a, &col[k][i], sizeof(a));
			memcpy(&b, &col[k + 1][i], sizeof(b));
			memcpy(&c, &col[k + 2][i], sizeof(c));
			memcpy(&d, &col[k + 3][i], sizeof(d));
			four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), AB = __builtin_shufflevector(a, b, 2, 6, 3, 7);
			four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);

			*(four *)(row + k) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
			*(four *)(row + F + k) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
			*(four *)(row + 2 * F + k) = __builtin_shufflevector(AB, CD, 0, 1, 4, 5);
			*(four *)(row + 3 * F + k) = __builtin_shufflevector(AB, CD, 2, 3, 6, 7);
		}
	for (; i < w->n; i++, row += F)
		for (int k = 0; k < F; k++)
			row[k] = col[k][i];
	for (i = 0; i < w->n; i++)
		sigma[w->t0 + i] = (float)w->sigma[i];
}

/* Rows from where w stands up to bar `to`. */
static void work_to(struct feature_work *w, int64_t to, double *f64, double *s64, float *f32, float *s32)
{
	feature_rows rows = best_rows();

	for (; w->t0 < to; w->t0 += w->n) {
		w->n = to - w->t0 < FEATURE_CHUNK ? (int)(to - w->t0) : FEATURE_CHUNK;
		rows(w);
		if (f64)
			store64(w, f64, s64);
		else
			store32(w, f32, s32);
		shift(w->r1, w->n);
		shift(w->volume, w->n);
		shift(w->level, w->n);
	}
}

static void features(const struct market_bars *b, double tick, const struct market_steps *steps, double *f64, double *s64, float *f32, float *s32)
{
	struct feature_work w;

	work_start(&w, b, tick, steps);
	work_to(&w, b->bars, f64, s64, f32, s32);
}

static const struct market_steps no_steps;

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

/* ---------------------------------------------------------------- bars that are still coming */

struct feature_work *market_features_begin(const struct market_bars *b, double tick, const struct market_steps *s)
{
	struct feature_work *w = aligned_alloc(ALIGN, (sizeof(*w) + ALIGN - 1) / ALIGN * ALIGN);

	if (w)
		work_start(w, b, tick, s);
	return w;
}

void market_features_to(struct feature_work *w, int64_t bars, float *feature, float *sigma)
{
	work_to(w, bars, NULL, NULL, feature, sigma);
}

void market_features_end(struct feature_work *w)
{
	free(w);
}
