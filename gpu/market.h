/* Market bars and the features that the agent sees: gpu/MATH.md, section 7.
 *
 * A struct market is read only after market_build()/market_finish()/market_load(); any number of threads may share it (reference
 * counted). Arrays are contiguous host memory; the CUDA backend keeps its own resident copy keyed by `hash`. */
#ifndef FH_GPU_MARKET_H
#define FH_GPU_MARKET_H

#include <stdint.h>
#include "gpu/spec.h"

#define MARKET_WARMUP 144
#define MARKET_BARS_MAX (INT64_C(1) << 28)  /* bar numbers are I32 in the environments */
#define MARKET_PRICE_MAX 1e12               /* |price|: keeps every intermediate finite */
#define MARKET_VOLUME_MAX 1e18
#define MARKET_TS_MAX (INT64_C(1) << 62)    /* |ts| is below it, the years 1824 to 2116: the difference of two times stays in 64 bits */
#define MARKET_ROLLS_MAX 4096               /* contracts after each other in one market */
#define MARKET_TICK_MIN 1e-12               /* the same: the least denominator of a return */

struct market_bars { /* SoA view, borrowed */
	int64_t bars;
	const int64_t *ts; /* ns since 1970-01-01 UTC, strictly increasing */
	const double *open, *high, *low, *close, *volume;
};

struct market {
	int64_t bars;          /* T */
	int64_t *ts;           /* [T] ns UTC */
	double *open, *high, *low, *close, *volume; /* [T] */
	float *feature;        /* [T, 40], clamped to [-5, 5] */
	float *sigma;          /* [T] sigma(t), half-life 60 */
	double tick;           /* the tick the features were made with */
	double max_gap;        /* seconds; gaps that they leave out are longer; 0: none */
	char hash[65];         /* SHA-256 of ts, o, h, l, c, v (little-endian, that order), hex */
	int64_t *roll;         /* [rolls] first bars of another contract, ascending; NULL: none */
	int64_t rolls;
	uint8_t *rolled;       /* [T] 1 for those bars; NULL: none */
	int refs;              /* atomic; market_ref/market_unref */
	int64_t made;          /* bars whose features are there: all, once it is finished */
	struct feature_work *making; /* of market_grow(); NULL when all are there */
	void *arena;           /* one allocation behind all arrays */
};

/* Features and sigma of every bar. feature [T,40], sigma [T]. Work is O(T): windows come from blocks that begin at fixed bars,
 * so that a suffix appended later gives the same bits. Never reads a bar after t for row t. The forms in double are for tests
 * against golden/; the others are F64 inside and F32 out. */
void market_features64(const struct market_bars *b, double tick, double *feature, double *sigma);
/* Where the price jumps without anybody trading at the jump: gaps of more than max_gap seconds (0: none), and the first bars of another
 * contract (ascending, from 1 on). gpu/MATH.md, section 7, "Gaps and rolls". */
struct market_steps { double max_gap; const int64_t *roll; int64_t rolls; };
/* The same, leaving those steps out. */
void market_features_steps(const struct market_bars *b, double tick, const struct market_steps *s, float *feature, float *sigma);
void market_features_steps64(const struct market_bars *b, double tick, const struct market_steps *s, double *feature, double *sigma);
/* The same bit by bit, for bars that are still coming: b's columns stay where they are and are read up to `bars` at most; rows from where the
 * last call ended up to there are written. Where calls end changes nothing. NULL without memory. One thread at a time. */
struct feature_work;
struct feature_work *market_features_begin(const struct market_bars *b, double tick, const struct market_steps *s);
void market_features_to(struct feature_work *w, int64_t bars, float *feature, float *sigma);
void market_features_end(struct feature_work *w); /* NULL is fine */
/* Makes the features of a market that nobody else has a reference of those with max_gap. 0: as it was built. */
void market_leave_out_gaps(struct market *m, double max_gap);
/* Copies the bars, computes features and hash. FH_EXHAUSTED, FH_INVALID (fewer than 2 bars, time not increasing, a
 * number that is not finite or beyond the bounds above, negative volume, tick out of range): names the bar. */
int market_build(const struct market_bars *b, double tick, struct market **out, struct fh_status *st);
/* The same with changes of the contract; features leave their price steps out, and the hash covers them. */
int market_build_rolls(const struct market_bars *b, double tick, const int64_t *roll, int64_t rolls, struct market **out,
		       struct fh_status *st);
/* The same without a copy, for bars that come one after the other: market_new() makes room for all of them, the caller fills the columns,
 * market_grow() makes the features of the first `bars` (filled in by then), market_seal() checks all bars and makes the hash, and
 * market_finish() is both. What a bar is worth is checked only there: until then features may be made of anything. market_grow() is for one
 * thread at a time, beside others that fill later bars or seal full columns. */
int market_new(int64_t bars, double tick, const int64_t *roll, int64_t rolls, struct market **out, struct fh_status *st);
int market_grow(struct market *m, int64_t bars, struct fh_status *st); /* FH_EXHAUSTED */
int market_seal(struct market *m, struct fh_status *st); /* as market_build() */
int market_finish(struct market *m, struct fh_status *st);
/* A data set file: safetensors with ts I64, open high low close volume F64 [T], roll I64 [R] where contracts change; metadata holds tick,
 * hash and the registry's notes. No features: they are made when it is loaded. Written to a temporary name, synced, renamed. */
int market_save(const struct market *m, const char *path, const char *const *meta /* k, v, k, v, NULL */, struct fh_status *st);
/* The same for a market that is not full yet, as PATH.KEY.tmp until st_writer_end(): the hash is what it is going to be. */
struct st_writer;
int market_file_begin(const struct market *m, const char *hash, const char *path, const char *key, const char *const *meta,
		      struct st_writer **out, struct fh_status *st);
int market_file_put(const struct market *m, struct st_writer *w, int64_t from, int64_t to, struct fh_status *st); /* bars from..to-1 */
/* Verifies sizes, order and hash: FH_CORRUPT names what is wrong. Features are made for `tick`; tensors that are not named above (an earlier
 * release stored features) are left alone. */
int market_load(const char *path, double tick, struct market **out, struct fh_status *st);
/* The first `bars` bars as a market of their own, with the features they have: no feature looks ahead. FH_EXHAUSTED, FH_INVALID. */
int market_prefix(const struct market *m, int64_t bars, struct market **out, struct fh_status *st);
/* Hash of bars (and rolls, where there are some) as struct market has it. */
int market_hash(const struct market_bars *b, const int64_t *roll, int64_t rolls, char hex[65], struct fh_status *st);
struct market *market_ref(struct market *m);
void market_unref(struct market *m); /* NULL is fine; frees at zero */
/* reward_scale = auto (section 8): initial_cash/(max_position*multiplier*median over the split of sigma*max(|c|,tick)). */
double market_auto_reward_scale(const struct market *m, struct fh_split train, const struct fh_spec *spec);

#endif
