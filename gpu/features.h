/* The working state of features.c and the loops over one chunk of bars, which are compiled once for each kind of processor
 * (features_chunk.inc). Private to gpu/features*.c. One thread at a time; nothing here allocates.
 *
 * Invariant: what is kept between chunks depends on bars that were seen alone, and blocks begin at fixed bars, so rows do not depend on
 * where chunks begin or end. */
#ifndef FH_GPU_FEATURES_H
#define FH_GPU_FEATURES_H

#include "gpu/market.h"

#define FEATURE_CHUNK 128   /* bars worked on at once: all columns together stay in the second cache */
#define FEATURE_WINDOW 144  /* longest window */
#define FEATURE_SHORT 21    /* the short one of volume and of the share of falling bars */
#define FEATURE_CLOCKS 1447 /* times of day remembered: prime and above 1440, so that minutes never meet */

/* Running maxima over the last n values of two series at once: the maximum of the current block of n so far, joined with the
 * maxima of the tails of the block before it (van Herk). */
struct feature_extreme { int n, at; double now[2], block[2][FEATURE_WINDOW], tail[2][FEATURE_WINDOW + 1]; };

/* Sums over the last n values z = x - pivot, in the same way: of the current block so far, and of the tails of the block before it.
 * The pivot is the first value of the current block, so it lies in every window, and nothing cancels. */
enum { SUM_1, SUM_2, SUM_3, SUM_LAG, SUMS };
struct feature_window { int n, at, before; double pivot, now[SUMS], tail[SUMS][FEATURE_WINDOW + 1]; };

struct feature_clock { int64_t ns; double sin, cos; };

enum { S60, S600, S8, S240, SIGMAS };
enum { EMAS = 6, RSIS = 8 /* three rises, one unused, three falls, one unused */, EXTREMES = 3 };

struct feature_work {
	struct market_bars b;       /* b.bars: how many there are by now */
	double tick;
	struct market_steps steps;
	int64_t next_roll;          /* place in steps.roll of the first one not passed */
	int64_t t0;                 /* first bar of the chunk */
	int n;                      /* its bars */
	/* recursions, as they stand after the last bar seen */
	double sigma_num[SIGMAS], sigma_den[SIGMAS], ema[EMAS], macd_signal, signed_volume, rsi[RSIS];
	int falls;
	struct feature_extreme extreme[EXTREMES]; /* of 14, 55, 144 bars: highs, and negated lows */
	struct feature_window volume_long, volume_short, returns;
	/* series with the FEATURE_WINDOW values before the chunk in front */
	double r1[FEATURE_WINDOW + FEATURE_CHUNK], volume[FEATURE_WINDOW + FEATURE_CHUNK]; /* returns, log(1 + v) */
	double level[FEATURE_WINDOW + FEATURE_CHUNK]; /* sum of the price steps left out up to the bar: 0 without any */
	double c[FEATURE_CHUNK];    /* closes less level */
	double unit[FEATURE_CHUNK]; /* max(|c|, tick) */
	double sigma[FEATURE_CHUNK], scale[FEATURE_CHUNK]; /* scale: unit * sigma */
	double col[FH_MARKET_FEATURES][FEATURE_CHUNK];
	double week[7][2];
	struct feature_clock clock[FEATURE_CLOCKS];
};

/* Rows t0..t0+n into col and sigma, for each kind of processor; the same bits from all of them. NULL: not in this build or CPU. */
typedef void (*feature_rows)(struct feature_work *w);
void features_rows_base(struct feature_work *w);
feature_rows features_rows_avx2(void);
feature_rows features_rows_avx512(void);

#endif
