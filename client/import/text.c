/* Rows of a text file or of a JSON array to bars, one at a time (pass.h).
 *
 * The first line decides the delimiter and the columns; every further line becomes one bar through pass_row(), but for what
 * plain_block() takes in between. Thread: the caller of import_file().
 * Invariant: the status of a refused row names the line; the file's name is put in front of it once, in import_file(). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/import/json.h"
#include "client/import/number.h"
#include "client/import/pass.h"
#include "client/import/timestamp.h"
#include "client/import/zone.h"

#define PROGRESS_ROWS 32768   /* power of two */
#define PEEK_BYTES 65536      /* looked at to find the decimal point */

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

/* 1: a row of another symbol. Keeps count of changes for a notice. */
static int other_symbol(struct pass *p, struct fh_status *st)
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
	int rc = bars_contract(&p->out->bars, text, st);
	if (rc)
		return rc;
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

	int rc = other_symbol(p, st);
	if (rc)
		return rc > 0 ? 0 : rc;
	p->out->rows++;
	rc = row_bar(p, &b, &bad);
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
	plain_init(p);
	return rc ? rc : 1;
}

static int pass_read(struct pass *p, struct fh_status *st)
{
	int rc = pass_begin(p, st);

	while (rc > 0) {
		rc = pass_row(p, st);
		if (!rc && !((p->csv.line + 1) & (PROGRESS_ROWS - 1)))
			rc = pass_tell(p, st);
		if (!rc)
			rc = plain_block(p, st);
		if (!rc)
			rc = next_row(p, st);
	}
	return rc;
}

int pass_text(struct pass *p, struct fh_status *st)
{
	if (p->o->has_instrument_id)
		return fh_fail_field(st, FH_INVALID, "--instrument-id", "it is for DBN files, and this is none; --symbol chooses rows of text");
	int rc = csv_open(&p->csv, p->source, st);

	if (!rc)
		rc = pass_read(p, st);
	p->out->has_volume = p->col.at[COLUMN_VOLUME] >= 0;
	return rc;
}
