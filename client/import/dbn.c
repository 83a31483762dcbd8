/* DBN files to bars (dbn.h).
 *
 * A file is the metadata and then records, each with its length in its first byte. The metadata says which schema the
 * records have and which instrument a symbol was on which days (a continuous symbol is another contract after a roll).
 * One thread.
 * Invariant: `have` bytes of `block` from `at` on are not looked at yet; no byte outside of them is ever read. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/dbn.h"
#include "client/import/dbn_meta.h"
#include "client/import/source.h"
#include "client/import/timestamp.h"
#include "proto/status.h"

#define BLOCK (1u << 20)
#define HEADER_BYTES 16             /* of a record: length, type, publisher, instrument, time */
#define BAR_BYTES 56                /* the header, four prices, the volume */
#define PRICE_UNDEFINED INT64_MAX
#define VOLUME_UNDEFINED UINT64_MAX
#define TIME_UNDEFINED UINT64_MAX
#define PRICE_UNIT 1e9
#define INSTRUMENTS_MAX 64          /* counted when a file has several */
#define SHOWN_MAX 8

enum { TYPE_OHLCV_OLD = 0x11, TYPE_ERROR = 0x15, TYPE_MAPPING = 0x16, TYPE_SYSTEM = 0x17, TYPE_FIRST = 0x20, TYPE_LAST = 0x24 };

struct instrument { uint32_t id; int64_t bars; };

struct dbn {
	const struct import_options *o;
	struct source *source;
	struct import *out;
	struct dbn_seen *seen;
	struct dbn_meta meta;
	unsigned char *block;
	size_t at, have;
	int eof;
	size_t bar_bytes;        /* of a bar: with the time it was sent at, or without */
	int64_t record;          /* number of the last one, from 1 */
	int type;                /* of the bars, 0: none seen */
	/* what the last record was judged to be, good for its instrument between two times */
	uint32_t known_id;
	int known, known_taken;
	int64_t known_from, known_to;
	int chosen;              /* `group` (or the id alone when NULL) is what is read */
	const struct dbn_mapping *group;
	uint32_t id;
	uint32_t last_id;        /* of the last bar taken */
	int several;             /* nothing was chosen and there are others: only counting goes on */
	struct instrument instrument[INSTRUMENTS_MAX];
	int instruments;
	int64_t uncounted;
};

/* ---- bytes */

static uint32_t u32(const unsigned char *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint64_t u64(const unsigned char *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static int64_t i64(const unsigned char *p)
{
	int64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

/* Until `want` bytes are there (at most BLOCK) or the file ends. */
static int need(struct dbn *d, size_t want, struct fh_status *st)
{
	if (d->have >= want)
		return 0;
	memmove(d->block, d->block + d->at, d->have);
	d->at = 0;
	while (d->have < want && !d->eof) {
		size_t got = 0;
		int rc = source_read(d->source, (char *)d->block + d->have, BLOCK - d->have, &got, st);
		if (rc)
			return rc;
		d->have += got;
		d->eof = got == 0;
	}
	return 0;
}

static int read_meta(struct dbn *d, struct fh_status *st)
{
	int rc = need(d, DBN_PRELUDE, st);

	if (rc)
		return rc;
	if (d->have < DBN_PRELUDE)
		return fh_fail(st, FH_CORRUPT, "the DBN file is cut: %zu bytes are there", d->have);
	size_t bytes, done = 0;
	rc = dbn_prelude(d->block + d->at, &d->meta, &bytes, st);
	if (rc)
		return rc;
	unsigned char *text = malloc(bytes);
	if (!text)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %zu bytes of metadata", bytes);
	d->at += DBN_PRELUDE;
	d->have -= DBN_PRELUDE;
	while (!rc && done < bytes) {
		rc = need(d, 1, st);
		if (!rc && !d->have)
			rc = fh_fail(st, FH_CORRUPT, "the DBN file is cut inside its metadata: %zu of %zu bytes are there", done, bytes);
		size_t n = d->have < bytes - done ? d->have : bytes - done;
		memcpy(text + done, d->block + d->at, rc ? 0 : n);
		d->at += n;
		d->have -= n;
		done += n;
	}
	if (!rc)
		rc = dbn_metadata(text, bytes, &d->meta, st);
	free(text);
	return rc;
}

/* ---- which instrument */

static void count_instrument(struct dbn *d, uint32_t id, int64_t bars)
{
	int i = 0;

	while (i < d->instruments && d->instrument[i].id != id)
		i++;
	if (i == INSTRUMENTS_MAX) {
		d->uncounted += bars;
		return;
	}
	if (i == d->instruments)
		d->instrument[d->instruments++] = (struct instrument){id, 0};
	d->instrument[i].bars += bars;
}

/* What is read: --instrument-id, --symbol, or what the first bar belongs to. */
static int choose(struct dbn *d, uint32_t first, int64_t ts, struct fh_status *st)
{
	d->chosen = 1;
	if (d->o->has_instrument_id) {
		d->id = d->o->instrument_id;
		return 0;
	}
	if (!d->o->symbol) {
		d->id = first;
		d->group = dbn_mapping_of(&d->meta, first, ts);
		return 0;
	}
	d->group = dbn_mapping_find(&d->meta, d->o->symbol);
	if (d->group)
		return 0;
	char list[DBN_SYMBOLS_SHOWN];
	dbn_symbols(&d->meta, list, sizeof list);
	return fh_fail_field(st, FH_NOT_FOUND, "--symbol", "'%.40s' is not in the file's metadata (%s)", d->o->symbol,
			     list[0] ? list : "it names no symbol; --instrument-id chooses by number");
}

/* Sets known_*: is a bar of `id` at `ts` one of those that are read? */
static void judge(struct dbn *d, uint32_t id, int64_t ts)
{
	d->known = 1;
	d->known_id = id;
	d->known_from = INT64_MIN;
	d->known_to = INT64_MAX;
	d->known_taken = d->group ? dbn_mapping_has(d->group, id, ts, &d->known_from, &d->known_to) : id == d->id;
}

static int too_many(const struct dbn *d, struct fh_status *st)
{
	char list[320] = "", name[DBN_SYMBOL_MAX];
	size_t used = 0;

	for (int i = 0; i < d->instruments && i < SHOWN_MAX; i++) {
		const struct instrument *x = &d->instrument[i];
		int named = dbn_name_of(&d->meta, x->id, name);
		used += (size_t)snprintf(list + used, sizeof list - used, "%s%" PRIu32 "%s%.24s%s %" PRId64 " bars", i ? ", " : "", x->id,
					 named ? " (" : "", named ? name : "", named ? ")" : "", x->bars);
	}
	return fh_fail(st, FH_INVALID, "several instruments are in the file: %s%s; choose one with --symbol or --instrument-id", list,
		       d->instruments > SHOWN_MAX || d->uncounted ? ", and more" : "");
}

/* A bar that is read; the contract may be another one than that of the bar before. */
static int note_instrument(struct dbn *d, uint32_t id, struct fh_status *st)
{
	char name[DBN_SYMBOL_MAX], number[16], contract[DBN_SYMBOL_MAX + 12];
	size_t used = strlen(d->seen->symbols);
	int32_t before = d->out->bars.names ? d->out->bars.contract : -1;
	int rc;

	d->last_id = id;
	dbn_contract_of(&d->meta, id, contract);
	rc = bars_contract(&d->out->bars, contract, st);
	if (rc || d->out->bars.contract == before)
		return rc;
	d->seen->symbol_changes += before >= 0;
	snprintf(number, sizeof number, "%" PRIu32, id);
	if (used + 32 < sizeof d->seen->symbols)
		snprintf(d->seen->symbols + used, sizeof d->seen->symbols - used, "%s%.24s", used ? ", " : "",
			 dbn_name_of(&d->meta, id, name) ? name : number);
	return 0;
}

/* ---- one record */

static int bad(struct dbn *d, struct fh_status *st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int bad(struct dbn *d, struct fh_status *st, const char *fmt, ...)
{
	char why[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return fh_fail(st, FH_INVALID, ":%" PRId64 ": %s", d->record, why);
}

static int bar_of(struct dbn *d, const unsigned char *p, struct bar *b, struct fh_status *st)
{
	static const char *const word[] = {"open", "high", "low", "close"};
	double *const value[] = {&b->open, &b->high, &b->low, &b->close};
	double unit = d->o->price_scale > 0 ? d->o->price_scale : 1;
	uint64_t volume = u64(p + 48);

	for (int k = 0; k < 4; k++) {
		int64_t v = i64(p + 16 + 8 * k);
		if (v == PRICE_UNDEFINED)
			return bad(d, st, "%s is undefined: a missing value", word[k]);
		*value[k] = (double)v / PRICE_UNIT / unit;
		if (!isfinite(*value[k]))
			return bad(d, st, "%s is too large for that --price-scale", word[k]);
	}
	if (volume == VOLUME_UNDEFINED)
		return bad(d, st, "volume is undefined: a missing value");
	b->volume = (double)volume;
	return bar_check(&d->out->bars, b, st);
}

/* A record that is no bar: dropped or refused. */
static int refuse(struct dbn *d, const struct fh_status *why, struct fh_status *st)
{
	if (d->o->on_bad_row != BAD_ROW_DROP)
		return fh_fail(st, why->code, "%s", why->text);
	if (!d->out->dropped++)
		snprintf(d->seen->first_drop, sizeof d->seen->first_drop, "record %.400s", why->text + 1); /* begins with ":N" */
	return 0;
}

static int take_bar(struct dbn *d, const unsigned char *p, uint32_t id, int64_t ts, struct fh_status *st)
{
	struct fh_status why = FH_STATUS_INIT;
	struct bar b = {.ts = ts, .line = d->record};

	d->out->rows++;
	if (bar_of(d, p, &b, &why))
		return refuse(d, &why, st);
	int rc = id != d->last_id || !d->out->bars.names ? note_instrument(d, id, st) : 0;
	return rc ? rc : bars_add(&d->out->bars, &b, st);
}

/* Bars like the last one taken, one after the other: same instrument, later, possible, nothing missing. They go to their columns without a
 * look at anything else; whatever is different, or has to be told of, stops it and is taken by take(). */
static int take_run(struct dbn *d, struct fh_status *st)
{
	struct bars *b = &d->out->bars;
	int64_t most = (int64_t)(d->have / d->bar_bytes), n = 0, last = b->newest, rc;
	const unsigned char *p = d->block + d->at;

	if (!b->count || !most || !d->known || !d->known_taken || d->several || b->sort || d->o->price_scale > 0 || d->last_id != d->known_id)
		return 0;
	if ((rc = bars_room(b, most, st)))
		return (int)rc;
	int64_t *ts = b->ts + b->count, to = d->known_to;
	double *open = b->value[0] + b->count, *high = b->value[1] + b->count, *low = b->value[2] + b->count, *close = b->value[3] + b->count;
	double *volume = b->value[4] + b->count;

	for (; n < most; n++, p += d->bar_bytes) {
		int64_t when = i64(p + 8), o = i64(p + 16), h = i64(p + 24), l = i64(p + 32), c = i64(p + 40);
		uint64_t v = u64(p + 48);

		if (4u * p[0] != d->bar_bytes || p[1] != d->type || u32(p + 4) != d->known_id || when <= last || when >= to ||
		    h < (o > c ? o : c) || l > (o < c ? o : c) || h == PRICE_UNDEFINED || v == VOLUME_UNDEFINED)
			break;
		ts[n] = last = when;
		open[n] = (double)o / PRICE_UNIT;
		high[n] = (double)h / PRICE_UNIT;
		low[n] = (double)l / PRICE_UNIT;
		close[n] = (double)c / PRICE_UNIT;
		volume[n] = (double)v;
	}
	d->record += n;
	d->out->rows += n;
	if (n && !d->o->symbol && !d->o->has_instrument_id)
		count_instrument(d, d->known_id, n);
	bars_took(b, n, d->record);
	d->at += (size_t)n * d->bar_bytes;
	d->have -= (size_t)n * d->bar_bytes;
	return 0;
}

static int is_bar(int type)
{
	return (type >= TYPE_FIRST && type <= TYPE_LAST) || type == TYPE_OHLCV_OLD;
}

/* 1: a bar of the file's length, 0: a record to skip. */
static int check_type(struct dbn *d, int type, size_t bytes, struct fh_status *st)
{
	int of_schema = dbn_schema_type(d->meta.schema);

	if (!is_bar(type)) {
		if (of_schema && type != TYPE_ERROR && type != TYPE_MAPPING && type != TYPE_SYSTEM)
			return fh_fail(st, FH_CORRUPT, ":%" PRId64 ": a record of type 0x%02x in a file of %s", d->record, type,
				       dbn_schema_name(d->meta.schema));
		return 0;
	}
	if (bytes != d->bar_bytes)
		return fh_fail(st, FH_CORRUPT, ":%" PRId64 ": a bar of %zu bytes", d->record, bytes);
	if (of_schema && type != of_schema && type != TYPE_OHLCV_OLD)
		return fh_fail(st, FH_CORRUPT, ":%" PRId64 ": a bar of type 0x%02x in a file of %s", d->record, type,
			       dbn_schema_name(d->meta.schema));
	if (d->type && type != d->type)
		return fh_fail(st, FH_INVALID, ":%" PRId64 ": bars of several lengths are in the file (types 0x%02x and 0x%02x)", d->record,
			       d->type, type);
	d->type = type;
	return 1;
}

static int take(struct dbn *d, const unsigned char *p, size_t bytes, struct fh_status *st)
{
	struct fh_status why = FH_STATUS_INIT;
	int type = p[1], rc = 0;

	d->record++;
	if (type != d->type || bytes != d->bar_bytes) {
		rc = check_type(d, type, bytes, st);
		if (rc <= 0)
			return rc;
	}
	uint32_t id = u32(p + 4);
	uint64_t when = u64(p + 8);
	if (when > INT64_MAX) {
		d->out->rows++;
		bad(d, &why, "the time is %s", when == TIME_UNDEFINED ? "undefined: a missing value" : "beyond 2262");
		return refuse(d, &why, st);
	}
	int64_t ts = (int64_t)when;
	if (!d->chosen && (rc = choose(d, id, ts, st)))
		return rc;
	if (!d->known || id != d->known_id || ts < d->known_from || ts >= d->known_to)
		judge(d, id, ts);
	if (d->known_taken && !d->several) {
		if (!d->o->symbol && !d->o->has_instrument_id)
			count_instrument(d, id, 1);
		return take_bar(d, p, id, ts, st);
	}
	if (d->o->symbol || d->o->has_instrument_id) {
		d->seen->others++;
		return 0;
	}
	d->several = 1;
	count_instrument(d, id, 1);
	return 0;
}

/* ---- the whole file */

static int read_records(struct dbn *d, struct fh_status *st)
{
	int rc = 0;

	while (!rc) {
		rc = need(d, HEADER_BYTES, st);
		while (!rc && d->have >= HEADER_BYTES) {
			size_t bytes = 4u * d->block[d->at];
			if (bytes < HEADER_BYTES)
				return fh_fail(st, FH_CORRUPT, ":%" PRId64 ": a record of %zu bytes: the file is damaged", d->record + 1, bytes);
			if (bytes > d->have) {
				rc = need(d, bytes, st);
				if (!rc && bytes > d->have)
					return fh_fail(st, FH_CORRUPT, ":%" PRId64 ": the file is cut inside this record: %zu of %zu bytes are there",
						       d->record + 1, d->have, bytes);
				continue;
			}
			rc = take(d, d->block + d->at, bytes, st);
			d->at += bytes;
			d->have -= bytes;
			if (!rc)
				rc = take_run(d, st);
		}
		if (!rc && d->have < HEADER_BYTES && d->eof) {
			if (d->have)
				return fh_fail(st, FH_CORRUPT, ":%" PRId64 ": the file is cut inside this record: %zu bytes of it are there",
					       d->record + 1, d->have);
			return 0;
		}
		if (!rc && d->o->progress && d->o->progress(d->o->progress_arg, source_bytes_read(d->source), source_bytes(d->source),
							    d->out->bars.count))
			return fh_fail(st, FH_INTERRUPTED, "stopped at record %" PRId64, d->record);
	}
	return rc;
}

/* What only the end of the file can tell. */
static int judge_end(struct dbn *d, struct fh_status *st)
{
	char list[DBN_SYMBOLS_SHOWN];

	if (d->meta.records != DBN_RECORDS_UNKNOWN && d->meta.records > (uint64_t)d->record)
		return fh_fail(st, FH_CORRUPT, "the file is cut: its metadata announces %" PRIu64 " records and %" PRId64 " are there",
			       d->meta.records, d->record);
	if (d->several)
		return too_many(d, st);
	if (d->out->rows)
		return 0;
	if (!d->type)
		return fh_fail(st, FH_INVALID, "the DBN file has no bars (schema %s, %" PRId64 " records)", dbn_schema_name(d->meta.schema),
			       d->record);
	dbn_symbols(&d->meta, list, sizeof list);
	if (d->o->has_instrument_id)
		return fh_fail_field(st, FH_NOT_FOUND, "--instrument-id", "no bar of %" PRIu32 " is in the file (symbols: %s)",
				     d->o->instrument_id, list[0] ? list : "none named");
	return fh_fail_field(st, FH_NOT_FOUND, "--symbol", "no bar of '%.40s' is in the file (symbols: %s)", d->o->symbol, list);
}

int dbn_read(struct source *source, const struct import_options *o, struct import *out, struct dbn_seen *seen, struct fh_status *st)
{
	struct dbn *d = calloc(1, sizeof *d);

	memset(seen, 0, sizeof *seen);
	if (!d || !(d->block = malloc(BLOCK))) {
		free(d);
		return fh_fail(st, FH_EXHAUSTED, "no memory to read the file");
	}
	d->o = o;
	d->source = source;
	d->out = out;
	d->seen = seen;
	int rc = read_meta(d, st);
	d->bar_bytes = BAR_BYTES + (d->meta.ts_out ? 8 : 0);
	if (!rc)
		rc = read_records(d, st);
	if (!rc)
		rc = judge_end(d, st);
	dbn_meta_release(&d->meta);
	free(d->block);
	free(d);
	return rc;
}
