/* A market data file to bars (import.h).
 *
 * struct pass holds everything of one run: source, reader, columns, zone, result. The first line decides the delimiter and
 * the columns; every further line becomes one bar through pass_row(). One thread.
 * Invariant: `st` of a refused row names the line; the file's name is put in front of it once, in import_file(). */
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/columns.h"
#include "client/import/dbn.h"
#include "client/import/fast.h"
#include "client/import/import.h"
#include "client/import/json.h"
#include "client/import/number.h"
#include "client/import/parquet.h"
#include "client/import/resample.h"
#include "client/import/source.h"
#include "client/import/tensors.h"
#include "client/import/timestamp.h"
#include "proto/status.h"

#define PROGRESS_ROWS 32768   /* power of two */
#define PEEK_BYTES 65536      /* looked at to find the decimal point */
#define SYMBOLS_SHOWN 3
#define FAST_ROWS 65536       /* taken at once, by each of two threads */
#define FAST_LEAST 4096       /* bytes that are worth it */
#define FAST_TWO (256u << 10) /* bytes from which a second thread is worth it */

struct pass {
	const struct import_options *o;
	struct source *source;
	struct csv_reader csv;
	int json;
	struct columns col;
	struct fast fast;
	struct helper *helper;
	struct zone *zone;
	struct resample resample;
	int64_t date;
	char point;
	struct import *out;
	char first_drop[FH_TEXT_MAX];
	char symbol[CSV_SHOWN_MAX];    /* of the last row */
	char symbols[IMPORT_NOTE_SIZE / 2];
	int64_t symbol_changes, other_symbols;
};

static void note(struct pass *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct pass *p, const char *fmt, ...)
{
	va_list ap;

	if (p->out->notes == IMPORT_NOTES_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(p->out->note[p->out->notes++], IMPORT_NOTE_SIZE, fmt, ap);
	va_end(ap);
}

/* ---- one row */

static int refuse(const struct pass *p, enum column k, const char *why, struct fh_status *st)
{
	char text[CSV_SHOWN_MAX];
	struct csv_field f = p->csv.field[p->col.at[k]];

	csv_show(f, text);
	if (!text[0])
		return fh_fail(st, FH_INVALID, ":%lld: column %d (%s) %s", (long long)p->csv.line, p->col.at[k] + 1, p->col.name[k],
			       why);
	return fh_fail(st, FH_INVALID, ":%lld: column %d (%s): '%s' %s", (long long)p->csv.line, p->col.at[k] + 1,
		       p->col.name[k], text, why);
}

static int row_time(struct pass *p, int64_t *ns, struct fh_status *st)
{
	const struct csv_field *f = &p->csv.field[p->col.at[COLUMN_TIME]];
	int clock = p->col.at[COLUMN_CLOCK];
	struct timestamp t;
	enum timestamp_result r;

	if (clock >= 0)
		r = timestamp_parse_pair(f->p, f->len, p->csv.field[clock].p, p->csv.field[clock].len, &t);
	else
		r = timestamp_parse(f->p, f->len, p->date, &t);
	if (r)
		return refuse(p, COLUMN_TIME, timestamp_result_text(r), st);
	if (p->zone && !t.zoned) {
		enum zone_result z = zone_utc(p->zone, t.ns, p->o->fold, &t.ns);
		if (z == ZONE_GAP)
			return refuse(p, COLUMN_TIME, "does not exist there: the clock was put forward over it", st);
		if (z == ZONE_AMBIGUOUS)
			return refuse(p, COLUMN_TIME, "happened twice there; --dst=first|second chooses", st);
	}
	*ns = t.ns;
	return 0;
}

static int row_value(struct pass *p, enum column k, double *v, struct fh_status *st)
{
	const struct csv_field *f = &p->csv.field[p->col.at[k]];
	enum number_result r = number_parse(f->p, f->len, p->point, v);

	return r ? refuse(p, k, number_result_text(r), st) : 0;
}

static int row_bar(struct pass *p, struct bar *b, struct fh_status *st)
{
	double *const value[] = {&b->open, &b->high, &b->low, &b->close, &b->volume};

	if (p->csv.fields != p->col.fields)
		return fh_fail(st, FH_INVALID, ":%lld: %d fields and not %d", (long long)p->csv.line, p->csv.fields, p->col.fields);
	b->line = p->csv.line;
	b->volume = 0;
	int rc = row_time(p, &b->ts, st);
	for (int k = COLUMN_OPEN; !rc && k <= COLUMN_VOLUME; k++)
		if (p->col.at[k] >= 0)
			rc = row_value(p, (enum column)k, value[k - COLUMN_OPEN], st);
	if (rc)
		return rc;
	if (p->o->price_scale > 0) {
		for (int k = 0; k < 4; k++) {
			*value[k] /= p->o->price_scale;
			if (!isfinite(*value[k]))
				return refuse(p, (enum column)(COLUMN_OPEN + k), "is too large for that --price-scale", st);
		}
	}
	return bar_check(&p->out->bars, b, st);
}

/* FNV-1a: the same symbol is the same contract wherever it stands. */
static int32_t contract_number(const char *symbol)
{
	uint32_t h = 2166136261u;

	for (; *symbol; symbol++)
		h = (h ^ (unsigned char)*symbol) * 16777619u;
	return (int32_t)h;
}

/* 1: a row of another symbol. Keeps count of changes for a notice. */
static int other_symbol(struct pass *p)
{
	char text[CSV_SHOWN_MAX];
	int at = p->col.at[COLUMN_SYMBOL];

	if (at < 0 || at >= p->csv.fields)
		return 0;
	csv_show(p->csv.field[at], text);
	if (p->o->symbol && strcmp(text, p->o->symbol)) {
		p->other_symbols++;
		return 1;
	}
	if (!strcmp(text, p->symbol))
		return 0;
	if (p->out->rows)
		p->symbol_changes++;
	p->out->bars.contract = contract_number(text);
	memcpy(p->symbol, text, sizeof text);
	size_t used = strlen(p->symbols);
	if (p->symbol_changes < SYMBOLS_SHOWN)
		snprintf(p->symbols + used, sizeof p->symbols - used, "%s%.32s", used ? ", " : "", text);
	return 0;
}

static int pass_row(struct pass *p, struct fh_status *st)
{
	struct fh_status bad = FH_STATUS_INIT;
	struct bar b;

	if (other_symbol(p))
		return 0;
	p->out->rows++;
	int rc = row_bar(p, &b, &bad);
	if (rc && p->o->on_bad_row == BAD_ROW_DROP) {
		if (!p->out->dropped++)
			snprintf(p->first_drop, sizeof p->first_drop, "line %.400s", bad.text + 1); /* texts of rows begin with ":LINE" */
		return 0;
	}
	if (rc)
		return fh_fail(st, rc, "%s", bad.text);
	rc = bars_add(&p->out->bars, &b, st);
	if (rc == FH_INVALID && p->symbol_changes)
		fh_prefix(st, "several symbols are in the file (%s), --symbol chooses one", p->symbols);
	return rc;
}

/* ---- plain rows, many at a time */

/* The second half of a block, read by a thread of its own into memory of its own. */
struct helper {
	pthread_t thread;
	struct fast fast;
	const char *p, *end;
	struct fast_rows rows;
	int64_t memory[6 * FAST_ROWS];
};

static void *help(void *arg)
{
	struct helper *h = arg;

	h->p = fast_take(&h->fast, h->p, h->end, INT64_MIN, &h->rows);
	return NULL;
}

/* 1: it runs. */
static int start_helper(struct pass *p, const char *from, const char *end)
{
	struct helper *h = p->helper;

	if (!h)
		h = p->helper = malloc(sizeof *h);
	if (!h)
		return 0;
	h->fast = p->fast;
	h->p = from;
	h->end = end;
	h->rows = (struct fast_rows){.ts = h->memory, .room = FAST_ROWS};
	for (int k = 0; k < 5; k++)
		h->rows.value[k] = (double *)(void *)(h->memory + (k + 1) * FAST_ROWS);
	return !pthread_create(&h->thread, NULL, help, h);
}

static void took(struct pass *p, const char *to, int64_t n)
{
	p->csv.begin = (size_t)(to - p->csv.block);
	p->csv.line += n;
	p->out->rows += n;
	bars_took(&p->out->bars, n, p->csv.line);
}

/* What the helper has read stands behind all that was read before it, or it is read again. */
static int64_t take_over(struct pass *p, const char *middle, struct fh_status *st)
{
	struct bars *b = &p->out->bars;
	struct helper *h = p->helper;

	pthread_join(h->thread, NULL);
	int64_t n = h->rows.count;
	if (p->csv.block + p->csv.begin != middle || !n || (b->count && h->rows.ts[0] <= b->newest))
		return 0;
	int rc = bars_room(b, n, st);
	if (rc)
		return rc;
	memcpy(b->ts + b->count, h->rows.ts, (size_t)n * 8);
	for (int k = 0; k < 5; k++)
		memcpy(b->value[k] + b->count, h->rows.value[k], (size_t)n * 8);
	took(p, h->p, n);
	return n;
}

/* The plain rows that stand in the block now, up to the first that is not: how many, or negative. */
static int64_t take_plain(struct pass *p, struct fh_status *st)
{
	struct csv_reader *r = &p->csv;
	struct bars *b = &p->out->bars;
	const char *from = r->block + r->begin, *end, *middle = NULL;
	int rc;

	if (!p->fast.on || r->has_quote || r->has_nul || r->end - r->begin < FAST_LEAST)
		return 0;
	end = memrchr(from, '\n', r->end - r->begin);
	if (!end)
		return 0;
	end++;
	if (end - from >= FAST_TWO)
		middle = memchr(from + (end - from) / 2, '\n', (size_t)(end - from - (end - from) / 2));
	middle = middle ? middle + 1 : NULL;
	rc = bars_room(b, FAST_ROWS, st);
	if (rc)
		return rc;
	int two = middle && middle < end && start_helper(p, middle, end);
	struct fast_rows rows = {.ts = b->ts + b->count, .room = FAST_ROWS};
	for (int k = 0; k < 5; k++)
		rows.value[k] = b->value[k] + b->count;
	const char *to = fast_take(&p->fast, from, two ? middle : end, b->count ? b->newest : INT64_MIN, &rows);
	took(p, to, rows.count);
	int64_t more = two ? take_over(p, middle, st) : 0;
	return more < 0 ? more : rows.count + more;
}

/* Files of another shape, zone or rule are for the careful reader alone. */
static void begin_plain(struct pass *p)
{
	if (p->json || p->zone || p->date != INT64_MIN || p->point != '.' || p->csv.terminator != '\n' || p->o->sort ||
	    p->o->price_scale > 0)
		return;
	fast_init(&p->fast, &p->col, p->csv.delimiter);
}

/* ---- the whole file */

static int next_row(struct pass *p, struct fh_status *st)
{
	if (p->json)
		return json_row(&p->csv, st);
	int rc = csv_line(&p->csv, st);
	if (rc <= 0)
		return rc;
	rc = csv_split(&p->csv, st);
	return rc ? rc : 1;
}

/* With a delimiter other than the comma, prices may have decimal commas: "1,25" does, "1.25" does not, and a file that
 * shows nothing but "1,250" could mean either. */
static int find_point(struct pass *p, struct fh_status *st)
{
	size_t n;
	const char *s = csv_peek(&p->csv, &n), *e;
	int dots = 0, commas = 0, unclear = 0, field = 0;

	if (p->o->point || p->csv.delimiter == ',')
		return 0;
	n = n < PEEK_BYTES ? n : PEEK_BYTES;
	for (e = s + n; s < e; field++) {
		const char *from = s, *comma = NULL;
		int price = 0, digits_only = 1, dot = 0;
		for (int k = COLUMN_OPEN; k <= COLUMN_VOLUME; k++)
			price |= p->col.at[k] == field;
		for (; s < e && *s != p->csv.delimiter && *s != '\n' && *s != '\r'; s++) {
			comma = *s == ',' ? s : comma;
			dot |= *s == '.';
			digits_only &= (*s >= '0' && *s <= '9') || *s == ',' || *s == '.' || *s == '-';
		}
		if (s == e && n == PEEK_BYTES)
			break; /* cut in the middle */
		if (price && digits_only && s > from) {
			dots += dot;
			commas += comma && !dot && s - comma != 4;
			unclear += comma && !dot && s - comma == 4;
		}
		if (s < e && *s != p->csv.delimiter)
			field = -1;
		s++;
	}
	if (!dots && commas)
		p->point = ',';
	else if (!dots && unclear)
		return fh_fail(st, FH_INVALID, "a comma with three digits after it may be a decimal comma or separate thousands; "
			       "say --decimal=comma or --decimal=point");
	return 0;
}

/* The first data line must have as many fields as the header has names: one more shifts every column. */
static int check_width(const struct pass *p, struct fh_status *st)
{
	if (p->csv.fields == p->col.fields)
		return 0;
	if (p->o->columns)
		return fh_fail_field(st, FH_INVALID, "--columns", "it names %d fields and line %lld of the file has %d", p->col.fields,
				     (long long)p->csv.line, p->csv.fields);
	return fh_fail(st, FH_INVALID, ":%lld: %d fields, but the header names %d: the columns cannot be told apart; name all with "
		       "--columns", (long long)p->csv.line, p->csv.fields, p->col.fields);
}

/* First line, columns, first data line; 1: a row is ready, 0: there is none. */
static int pass_begin(struct pass *p, struct fh_status *st)
{
	char first = '\0';
	int rc = csv_start(&p->csv, &first, st);

	if (rc)
		return rc;
	p->json = first == '[';
	rc = p->json ? json_begin(&p->csv, 0, st) : csv_line(&p->csv, st);
	if (rc == 0)
		return fh_fail(st, FH_INVALID, "the file is empty");
	if (rc > 0 && !p->json) {
		p->csv.delimiter = csv_sniff(&p->csv);
		rc = csv_split(&p->csv, st);
	}
	if (rc >= 0)
		rc = columns_find(&p->csv, p->o->columns, &p->col, st);
	if (rc < 0)
		return rc;
	if (p->col.header) {
		rc = next_row(p, st);
		if (rc <= 0)
			return rc;
	}
	rc = check_width(p, st);
	if (!rc && !p->json)
		rc = find_point(p, st);
	begin_plain(p);
	return rc ? rc : 1;
}

static int tell(const struct pass *p, struct fh_status *st)
{
	if (!p->o->progress ||
	    !p->o->progress(p->o->progress_arg, source_bytes_read(p->source), source_bytes(p->source), p->out->bars.count))
		return 0;
	return fh_fail(st, FH_INTERRUPTED, "stopped at line %lld", (long long)p->csv.line);
}

/* All plain rows of the block. */
static int take_block(struct pass *p, struct fh_status *st)
{
	int64_t plain = FAST_LEAST + 1;

	while (plain > FAST_LEAST) {
		plain = take_plain(p, st);
		if (plain < 0)
			return (int)plain;
		int rc = plain ? tell(p, st) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

static int pass_read(struct pass *p, struct fh_status *st)
{
	int rc = pass_begin(p, st);

	while (rc > 0) {
		rc = pass_row(p, st);
		if (!rc && !((p->csv.line + 1) & (PROGRESS_ROWS - 1)))
			rc = tell(p, st);
		if (!rc)
			rc = take_block(p, st);
		if (!rc)
			rc = next_row(p, st);
	}
	return rc;
}

static int pass_end(struct pass *p, struct fh_status *st)
{
	struct import *m = p->out;
	int rc = bars_finish(&m->bars, st);

	if (rc)
		return rc;
	if (!m->bars.count) {
		if (m->dropped)
			return fh_fail(st, FH_INVALID, "no bar is left: all %lld rows were dropped, first %s", (long long)m->rows,
				       p->first_drop);
		if (p->other_symbols)
			return fh_fail(st, FH_INVALID, "no row has the symbol '%s'", p->o->symbol);
		return fh_fail(st, FH_INVALID, "the file has a header and no bars");
	}
	if (!m->has_volume)
		note(p, "no volume column: volume is 0");
	if (p->col.flat)
		note(p, "one price a bar: open, high and low are the close");
	if (m->dropped)
		note(p, "bad rows dropped: %llu, first %.180s", (unsigned long long)m->dropped, p->first_drop);
	if (m->bars.repaired)
		note(p, "bars with high or low widened to hold open and close: %llu", (unsigned long long)m->bars.repaired);
	if (m->bars.repeats)
		note(p, "exact repeats of a bar dropped: %llu", (unsigned long long)m->bars.repeats);
	if (m->bars.conflicts)
		note(p, "rows with the time of another bar and other values: %llu, the %s was taken",
		     (unsigned long long)m->bars.conflicts, p->o->on_duplicate == DUPLICATE_LAST ? "last" : "first");
	if (m->bars.moved)
		note(p, "rows out of order, put in order: %llu", (unsigned long long)m->bars.moved);
	if (p->other_symbols)
		note(p, "rows of other symbols skipped: %lld", (long long)p->other_symbols);
	if (p->symbol_changes)
		note(p, "changes of the symbol (%s%s): %lld; env.roll_on_symbol_change says what a position does there", p->symbols,
		     p->symbol_changes >= SYMBOLS_SHOWN ? ", ..." : "", (long long)p->symbol_changes);
	if (p->point == ',')
		note(p, "decimal commas");
	int64_t before = m->bars.count;
	rc = resample_bars(&p->resample, &m->bars, st);
	if (!rc && p->o->bar)
		note(p, "bars of %.20s made from %lld bars", p->o->bar, (long long)before);
	return rc;
}

enum form { FORM_TEXT, FORM_DBN, FORM_TENSORS, FORM_PARQUET };

/* From the first bytes, never from the name. */
static int find_form(struct pass *p, enum form *form, struct fh_status *st)
{
	const void *first;
	size_t n;
	int rc = source_peek(p->source, &first, &n, st);

	if (rc)
		return rc;
	*form = n >= 4 && !memcmp(first, DBN_MAGIC, 3) ? FORM_DBN : n >= 4 && !memcmp(first, "PAR1", 4) ? FORM_PARQUET :
		tensors_look(first, n) ? FORM_TENSORS : FORM_TEXT;
	return 0;
}

/* Options that say how to read text mean nothing to a file that says it all itself. */
static int refuse_text_options(const struct pass *p, const char *form, struct fh_status *st)
{
	static const struct { const char *option; size_t at; } text_only[] = {
		{"--columns", offsetof(struct import_options, columns)}, {"--tz", offsetof(struct import_options, tz)},
		{"--date", offsetof(struct import_options, date)},
	};

	for (size_t i = 0; i < sizeof text_only / sizeof *text_only; i++)
		if (*(const char *const *)((const char *)p->o + text_only[i].at))
			return fh_fail_field(st, FH_INVALID, text_only[i].option, "it is for text files, and this is a %s file", form);
	return 0;
}

/* Files that are mapped or read from both ends have to be files as they are. */
static int pass_columns(struct pass *p, const char *path, enum form form, struct fh_status *st)
{
	const char *name = form == FORM_PARQUET ? "Parquet" : "safetensors";
	int rc = refuse_text_options(p, name, st);

	if (!rc && p->o->has_instrument_id)
		rc = fh_fail_field(st, FH_INVALID, "--instrument-id", "it is for DBN files, and this is a %s file", name);
	if (!rc && p->o->symbol && form == FORM_TENSORS)
		rc = fh_fail_field(st, FH_INVALID, "--symbol", "there are no symbols in a safetensors file");
	if (!rc && (!strcmp(path, "-") || strcmp(source_kind(p->source), "plain")))
		rc = fh_fail(st, FH_INVALID, "a %s file is read from disk as it is, not packed and not from standard input", name);
	if (rc)
		return rc;
	return form == FORM_PARQUET ? parquet_read(path, p->o, p->out, p->first_drop, &p->other_symbols, st) :
				      tensors_read(path, p->o, p->out, p->first_drop, st);
}

static int pass_dbn(struct pass *p, struct fh_status *st)
{
	struct dbn_seen seen;
	int rc = refuse_text_options(p, "DBN", st);

	if (rc)
		return rc;
	rc = dbn_read(p->source, p->o, p->out, &seen, st);

	memcpy(p->first_drop, seen.first_drop, sizeof p->first_drop);
	snprintf(p->symbols, sizeof p->symbols, "%.*s", (int)sizeof p->symbols - 1, seen.symbols);
	p->symbol_changes = seen.symbol_changes;
	p->other_symbols = seen.others;
	p->out->has_volume = 1;
	return rc;
}

static int pass_text(struct pass *p, struct fh_status *st)
{
	if (p->o->has_instrument_id)
		return fh_fail_field(st, FH_INVALID, "--instrument-id", "it is for DBN files, and this is none; --symbol chooses rows of text");
	int rc = csv_open(&p->csv, p->source, st);

	if (!rc)
		rc = pass_read(p, st);
	p->out->has_volume = p->col.at[COLUMN_VOLUME] >= 0;
	return rc;
}

static int pass_options(struct pass *p, struct fh_status *st)
{
	struct timestamp t;
	const char *d = p->o->date;

	p->date = INT64_MIN;
	p->point = p->o->point ? p->o->point : '.';
	if (d) {
		if (timestamp_parse(d, strlen(d), INT64_MIN, &t) || t.ns % NS_PER_DAY)
			return fh_fail_field(st, FH_INVALID, "--date", "'%.40s' is no date; write YYYY-MM-DD", d);
		p->date = t.ns;
	}
	p->out->bars.on_bad_row = p->o->on_bad_row;
	p->out->bars.on_duplicate = p->o->on_duplicate;
	p->out->bars.sort = p->o->sort;
	int rc = resample_parse(p->o->bar, p->o->session, p->o->tz, &p->resample, st);
	if (rc || !p->o->tz)
		return rc;
	return zone_open(p->o->tz, &p->zone, st);
}

int import_file(const char *path, const struct import_options *o, struct import **out, struct fh_status *st)
{
	static const struct import_options none;
	enum form form = FORM_TEXT;
	struct pass *p = calloc(1, sizeof *p); /* holds 1,024 fields: too much for a stack */

	if (!p || !(p->out = calloc(1, sizeof *p->out))) {
		free(p);
		return fh_fail(st, FH_EXHAUSTED, "no memory to import %s", path);
	}
	p->o = o ? o : &none;
	bars_init(&p->out->bars);
	int rc = pass_options(p, st);
	if (!rc) {
		rc = source_open(path, p->o->member, &p->source, st);
		if (!rc)
			rc = find_form(p, &form, st);
		if (!rc)
			rc = form == FORM_TEXT ? pass_text(p, st) : form == FORM_DBN ? pass_dbn(p, st) : pass_columns(p, path, form, st);
		if (!rc)
			rc = pass_end(p, st);
		if (rc)
			csv_name_file(st, path);
	}
	free(p->helper);
	csv_close(&p->csv);
	source_close(p->source);
	zone_close(p->zone);
	resample_release(&p->resample);
	if (rc)
		import_free(p->out);
	else
		*out = p->out;
	free(p);
	return rc;
}

void import_free(struct import *m)
{
	if (!m)
		return;
	bars_release(&m->bars);
	free(m);
}
