/* The data set in memory and on disk: bars, features, sigma, hash.
 *
 * Owns struct market: one allocation, written before it is finished, read only after. The reference count is the only thing that
 * changes then. Features are made here and never read: computing them takes half the time of reading them, and a file is a quarter
 * of what it would be. Invariant: prices are finite and bounded, time increases, features lie in [-5, 5] and sigma is
 * positive, whether built from bars or loaded from a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/hash.h"
#include "gpu/market.h"
#include "gpu/safetensors.h"
#include "proto/status.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "data sets and hashes are little-endian in memory and on disk"
#endif

#define F FH_MARKET_FEATURES
#define ARENA_ALIGN 64
#define META_PAIRS_MAX 64 /* of the caller, in market_save */

/* ---------------------------------------------------------------- memory */

static size_t aligned(size_t bytes)
{
	return (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static int market_alloc(int64_t bars, struct market **out, struct fh_status *st)
{
	size_t column = aligned((size_t)bars * 8), feature = aligned((size_t)bars * F * sizeof(float));
	size_t sigma = aligned((size_t)bars * sizeof(float)), bytes = 6 * column + feature + sigma;
	struct market *m = calloc(1, sizeof(*m));
	char *at = m ? aligned_alloc(ARENA_ALIGN, bytes) : NULL;

	if (!at) {
		free(m);
		return fh_fail(st, FH_EXHAUSTED, "no memory for a market of %lld bars (%zu bytes)", (long long)bars, bytes);
	}
	m->arena = at;
	m->bars = bars;
	m->refs = 1;
	m->ts = (int64_t *)(void *)at;
	m->open = (double *)(void *)(at += column);
	m->high = (double *)(void *)(at += column);
	m->low = (double *)(void *)(at += column);
	m->close = (double *)(void *)(at += column);
	m->volume = (double *)(void *)(at += column);
	m->feature = (float *)(void *)(at += column);
	m->sigma = (float *)(void *)(at + feature);
	*out = m;
	return 0;
}

struct market *market_ref(struct market *m)
{
	__atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
	return m;
}

void market_unref(struct market *m)
{
	if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL))
		return;
	market_features_end(m->making);
	free(m->arena);
	free(m->roll);
	free(m->rolled);
	free(m);
}

/* ---------------------------------------------------------------- checks */

static int check_number(double x, double lo, double hi, const char *what, int64_t t, int code, struct fh_status *st)
{
	if (x >= lo && x <= hi)
		return 0;
	return fh_fail_field(st, code, what, "bar %lld: %s is %g, not in [%g, %g]", (long long)t, what, x, lo, hi);
}

static int in_range(const double *x, int64_t n, double lo, double hi)
{
	int64_t good = 0;

	for (int64_t t = 0; t < n; t++)
		good += (x[t] >= lo) & (x[t] <= hi);
	return good == n;
}

static int in_time(int64_t ts)
{
	return ts > -MARKET_TS_MAX && ts < MARKET_TS_MAX;
}

/* Whether all is well, many at a time: who has to say what is not looks again. */
static int bars_good(const struct market_bars *b)
{
	int64_t late = 1;

	for (int64_t t = 1; t < b->bars; t++)
		late += b->ts[t] > b->ts[t - 1];
	return late == b->bars && in_time(b->ts[0]) && in_time(b->ts[b->bars - 1]) && in_range(b->open, b->bars, -MARKET_PRICE_MAX, MARKET_PRICE_MAX) &&
	       in_range(b->high, b->bars, -MARKET_PRICE_MAX, MARKET_PRICE_MAX) && in_range(b->low, b->bars, -MARKET_PRICE_MAX, MARKET_PRICE_MAX) &&
	       in_range(b->close, b->bars, -MARKET_PRICE_MAX, MARKET_PRICE_MAX) && in_range(b->volume, b->bars, 0.0, MARKET_VOLUME_MAX);
}

/* code: FH_INVALID for a caller's bars, FH_CORRUPT for a file's. */
static int check_bars(const struct market_bars *b, int code, struct fh_status *st)
{
	int rc = 0;

	if (bars_good(b))
		return 0;
	for (int64_t t = 0; !rc && t < b->bars; t++) {
		rc = check_number(b->open[t], -MARKET_PRICE_MAX, MARKET_PRICE_MAX, "open", t, code, st);
		if (!rc)
			rc = check_number(b->high[t], -MARKET_PRICE_MAX, MARKET_PRICE_MAX, "high", t, code, st);
		if (!rc)
			rc = check_number(b->low[t], -MARKET_PRICE_MAX, MARKET_PRICE_MAX, "low", t, code, st);
		if (!rc)
			rc = check_number(b->close[t], -MARKET_PRICE_MAX, MARKET_PRICE_MAX, "close", t, code, st);
		if (!rc)
			rc = check_number(b->volume[t], 0.0, MARKET_VOLUME_MAX, "volume", t, code, st);
		if (!rc && !in_time(b->ts[t]))
			rc = fh_fail_field(st, code, "ts", "bar %lld: its time %lld ns is beyond the years 1824 to 2116", (long long)t, (long long)b->ts[t]);
		if (!rc && t && b->ts[t] <= b->ts[t - 1])
			rc = fh_fail_field(st, code, "ts", "bar %lld: its time is not after that of the bar before", (long long)t);
	}
	return rc;
}

int market_hash(const struct market_bars *b, const int64_t *roll, int64_t rolls, char hex[HASH_HEX_SIZE], struct fh_status *st)
{
	const void *column[6] = {b->ts, b->open, b->high, b->low, b->close, b->volume};
	struct hash *h = NULL;
	int rc = hash_new(&h, st);

	if (rc)
		return rc;
	for (int i = 0; i < 6; i++)
		hash_add(h, column[i], (size_t)b->bars * 8);
	if (rolls)
		hash_add(h, roll, (size_t)rolls * 8);
	hash_finish(h, hex);
	return hex[0] ? 0 : fh_fail(st, FH_INTERNAL, "SHA-256 failed");
}

static int check_rolls(const int64_t *roll, int64_t rolls, int64_t bars, int code, struct fh_status *st)
{
	if (rolls < 0 || rolls > MARKET_ROLLS_MAX)
		return fh_fail_field(st, code, "roll", "%lld changes of the contract; up to %d are taken", (long long)rolls, MARKET_ROLLS_MAX);
	for (int64_t i = 0; i < rolls; i++)
		if (roll[i] < 1 || roll[i] >= bars || (i && roll[i] <= roll[i - 1]))
			return fh_fail_field(st, code, "roll", "the contract changes at bar %lld, which is no bar after the one before",
					     (long long)roll[i]);
	return 0;
}

static int set_rolls(struct market *m, const int64_t *roll, int64_t rolls, struct fh_status *st)
{
	if (!rolls)
		return 0;
	m->roll = malloc((size_t)rolls * sizeof(*m->roll));
	m->rolled = calloc((size_t)m->bars, 1);
	if (!m->roll || !m->rolled)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a market of %lld bars", (long long)m->bars);
	memcpy(m->roll, roll, (size_t)rolls * sizeof(*m->roll));
	m->rolls = rolls;
	for (int64_t i = 0; i < rolls; i++)
		m->rolled[roll[i]] = 1;
	return 0;
}

static struct market_bars view(const struct market *m)
{
	return (struct market_bars){m->bars, m->ts, m->open, m->high, m->low, m->close, m->volume};
}

static void make_features(struct market *m)
{
	struct market_bars b = view(m);
	struct market_steps s = {m->max_gap, m->roll, m->rolls};

	market_features_steps(&b, m->tick, &s, m->feature, m->sigma);
}

/* ---------------------------------------------------------------- build */

static int check_size(int64_t bars, double tick, int code, struct fh_status *st)
{
	if (bars < 2 || bars > MARKET_BARS_MAX)
		return fh_fail_field(st, code, "bars", "%lld bars; a market has 2 to %lld", (long long)bars, (long long)MARKET_BARS_MAX);
	if (!(tick >= MARKET_TICK_MIN && tick <= MARKET_PRICE_MAX))
		return fh_fail_field(st, FH_INVALID, "env.tick", "tick is %g, not in [%g, %g]", tick, MARKET_TICK_MIN, MARKET_PRICE_MAX);
	return 0;
}

int market_new(int64_t bars, double tick, const int64_t *roll, int64_t rolls, struct market **out, struct fh_status *st)
{
	struct market *m = NULL;
	int rc = check_size(bars, tick, FH_INVALID, st);

	if (!rc)
		rc = check_rolls(roll, rolls, bars, FH_INVALID, st);
	if (!rc)
		rc = market_alloc(bars, &m, st);
	if (!rc)
		rc = set_rolls(m, roll, rolls, st);
	if (rc) {
		market_unref(m);
		return rc;
	}
	m->tick = tick;
	*out = m;
	return 0;
}

int market_grow(struct market *m, int64_t bars, struct fh_status *st)
{
	struct market_bars b = view(m);
	struct market_steps s = {0.0, m->roll, m->rolls};

	if (bars <= m->made)
		return 0;
	if (!m->making)
		m->making = market_features_begin(&b, m->tick, &s);
	if (!m->making)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the features of %lld bars", (long long)m->bars);
	market_features_to(m->making, bars, m->feature, m->sigma);
	m->made = bars;
	if (m->made < m->bars)
		return 0;
	market_features_end(m->making);
	m->making = NULL;
	return 0;
}

static int seal(struct market *m, int code, struct fh_status *st)
{
	struct market_bars b = view(m);
	int rc = check_bars(&b, code, st);

	return rc ? rc : market_hash(&b, m->roll, m->rolls, m->hash, st);
}

int market_seal(struct market *m, struct fh_status *st)
{
	return seal(m, FH_INVALID, st);
}

int market_finish(struct market *m, struct fh_status *st)
{
	int rc = market_seal(m, st);

	return rc ? rc : market_grow(m, m->bars, st);
}

static void fill(struct market *m, const struct market_bars *b)
{
	size_t bytes = (size_t)m->bars * 8;

	memcpy(m->ts, b->ts, bytes);
	memcpy(m->open, b->open, bytes);
	memcpy(m->high, b->high, bytes);
	memcpy(m->low, b->low, bytes);
	memcpy(m->close, b->close, bytes);
	memcpy(m->volume, b->volume, bytes);
}

int market_build_rolls(const struct market_bars *b, double tick, const int64_t *roll, int64_t rolls, struct market **out,
		       struct fh_status *st)
{
	struct market *m = NULL;
	int rc = market_new(b->bars, tick, roll, rolls, &m, st);

	if (rc)
		return rc;
	fill(m, b);
	rc = market_finish(m, st);
	if (rc)
		market_unref(m);
	else
		*out = m;
	return rc;
}

int market_build(const struct market_bars *b, double tick, struct market **out, struct fh_status *st)
{
	return market_build_rolls(b, tick, NULL, 0, out, st);
}

void market_leave_out_gaps(struct market *m, double max_gap)
{
	if (m->max_gap == max_gap)
		return;
	m->max_gap = max_gap;
	make_features(m);
}

int market_prefix(const struct market *m, int64_t bars, struct market **out, struct fh_status *st)
{
	struct market_bars b = {bars, m->ts, m->open, m->high, m->low, m->close, m->volume};
	struct market *p = NULL;
	int64_t rolls = 0;
	int rc;

	if (bars < 2 || bars > m->bars)
		return fh_fail_field(st, FH_INVALID, "bars", "%lld bars of a market that has %lld", (long long)bars, (long long)m->bars);
	while (rolls < m->rolls && m->roll[rolls] < bars)
		rolls++;
	rc = market_new(bars, m->tick, m->roll, rolls, &p, st);
	if (rc)
		return rc;
	fill(p, &b);
	rc = market_hash(&b, m->roll, rolls, p->hash, st);
	if (rc) {
		market_unref(p);
		return rc;
	}
	p->max_gap = m->max_gap;
	memcpy(p->feature, m->feature, (size_t)bars * F * sizeof(float));
	memcpy(p->sigma, m->sigma, (size_t)bars * sizeof(float));
	p->made = bars;
	*out = p;
	return 0;
}

/* ---------------------------------------------------------------- file */

static struct st_tensor column(const char *name, enum st_dtype dtype, const void *data, int64_t rows)
{
	struct st_tensor t = {.dtype = dtype, .rank = 1, .dim = {rows}, .data = data};

	snprintf(t.name, sizeof(t.name), "%s", name);
	t.bytes = (size_t)rows * st_dtype_size(dtype);
	return t;
}

#define COLUMNS 6

static int file_tensors(const struct market *m, struct st_tensor t[COLUMNS + 1])
{
	t[0] = column("ts", ST_I64, m->ts, m->bars);
	t[1] = column("open", ST_F64, m->open, m->bars);
	t[2] = column("high", ST_F64, m->high, m->bars);
	t[3] = column("low", ST_F64, m->low, m->bars);
	t[4] = column("close", ST_F64, m->close, m->bars);
	t[5] = column("volume", ST_F64, m->volume, m->bars);
	t[6] = column("roll", ST_I64, m->roll, m->rolls);
	return m->rolls ? COLUMNS + 1 : COLUMNS;
}

int market_file_begin(const struct market *m, const char *hash, const char *path, const char *key, const char *const *meta,
		      struct st_writer **out, struct fh_status *st)
{
	struct st_tensor t[COLUMNS + 1];
	const char *all[2 * META_PAIRS_MAX + 7] = {"format", "fhd-dataset"};
	char tick[40];
	int n = 2, tensors = file_tensors(m, t), rc;

	snprintf(tick, sizeof(tick), "%.17g", m->tick);
	all[n++] = "tick";
	all[n++] = tick;
	all[n++] = "hash";
	all[n++] = hash;
	for (int i = 0; meta && meta[i] && meta[i + 1]; i += 2) {
		if (i >= 2 * META_PAIRS_MAX)
			return fh_fail(st, FH_INVALID, "more than %d metadata entries", META_PAIRS_MAX);
		all[n++] = meta[i];
		all[n++] = meta[i + 1];
	}
	all[n] = NULL;
	rc = st_writer_begin(t, tensors, all, path, key, out, st);
	if (rc || !m->rolls)
		return rc;
	rc = st_writer_put(*out, COLUMNS, 0, m->roll, (size_t)m->rolls * sizeof(*m->roll), st);
	if (rc)
		st_writer_abandon(*out);
	return rc;
}

int market_file_put(const struct market *m, struct st_writer *w, int64_t from, int64_t to, struct fh_status *st)
{
	struct st_tensor t[COLUMNS + 1];
	size_t at = (size_t)from * 8, bytes = (size_t)(to - from) * 8;
	int rc = 0;

	file_tensors(m, t);
	for (int i = 0; !rc && i < COLUMNS; i++)
		rc = st_writer_put(w, i, at, (const char *)t[i].data + at, bytes, st);
	return rc;
}

int market_save(const struct market *m, const char *path, const char *const *meta, struct fh_status *st)
{
	struct st_writer *w = NULL;
	int rc = market_file_begin(m, m->hash, path, NULL, meta, &w, st);

	if (rc)
		return rc;
	rc = market_file_put(m, w, 0, m->bars, st);
	if (!rc)
		return st_writer_end(w, st);
	st_writer_abandon(w);
	return rc;
}

static int file_bars(const struct st_file *f, struct market_bars *b, struct fh_status *st)
{
	static const char *const name[5] = {"open", "high", "low", "close", "volume"};
	const double **column[5] = {&b->open, &b->high, &b->low, &b->close, &b->volume};
	const struct st_tensor *t = NULL;
	int rc = st_need(f, "ts", ST_I64, -1, NULL, &t, st);

	if (!rc && t->rank != 1)
		rc = fh_fail(st, FH_CORRUPT, "tensor ts has %d dimensions, not 1", t->rank);
	if (rc)
		return rc;
	b->bars = t->dim[0];
	b->ts = t->data;
	for (int i = 0; !rc && i < 5; i++) {
		rc = st_need(f, name[i], ST_F64, 1, &b->bars, &t, st);
		if (!rc)
			*column[i] = t->data;
	}
	return rc;
}

static int file_rolls(const struct st_file *f, int64_t bars, const int64_t **roll, int64_t *rolls, struct fh_status *st)
{
	const struct st_tensor *t = NULL;
	int rc;

	if (!st_find(f, "roll"))
		return 0;
	rc = st_need(f, "roll", ST_I64, -1, NULL, &t, st);
	if (!rc && t->rank != 1)
		rc = fh_fail(st, FH_CORRUPT, "tensor roll has %d dimensions, not 1", t->rank);
	if (rc)
		return rc;
	*roll = t->data;
	*rolls = t->dim[0];
	return check_rolls(*roll, *rolls, bars, FH_CORRUPT, st);
}

static int load_file(const struct st_file *f, double tick, struct market **out, struct fh_status *st)
{
	const char *hash = st_meta(f, "hash");
	struct market_bars b;
	struct market *m = NULL;
	const int64_t *roll = NULL;
	int64_t rolls = 0;
	int rc = file_bars(f, &b, st);

	if (!rc)
		rc = check_size(b.bars, tick, FH_CORRUPT, st);
	if (!rc)
		rc = file_rolls(f, b.bars, &roll, &rolls, st);
	if (!rc)
		rc = market_new(b.bars, tick, roll, rolls, &m, st);
	if (rc)
		return rc;
	fill(m, &b);
	rc = seal(m, FH_CORRUPT, st);
	if (!rc && (!hash || strcmp(hash, m->hash)))
		rc = fh_fail(st, FH_CORRUPT, "the bars do not match the hash in the file");
	if (rc) {
		market_unref(m);
		return rc;
	}
	make_features(m);
	m->made = m->bars;
	*out = m;
	return 0;
}

int market_load(const char *path, double tick, struct market **out, struct fh_status *st)
{
	struct st_file *f = NULL;
	int rc = st_open(path, &f, st);

	if (rc)
		return rc;
	rc = load_file(f, tick, out, st);
	st_close(f);
	if (rc && st)
		fh_prefix(st, "%s", path);
	return rc;
}
