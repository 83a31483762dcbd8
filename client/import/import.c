/* A market data file to bars (import.h): which kind of file it is, what the options mean for that kind, and the notes on what
 * was found. struct pass (pass.h) holds everything of one run. Thread: the caller. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/dbn.h"
#include "client/import/parquet.h"
#include "client/import/pass.h"
#include "client/import/source.h"
#include "client/import/tensors.h"
#include "client/import/timestamp.h"
#include "client/import/zone.h"

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

int pass_tell(const struct pass *p, struct fh_status *st)
{
	if (!p->o->progress ||
	    !p->o->progress(p->o->progress_arg, source_bytes_read(p->source), source_bytes(p->source), p->out->bars.count))
		return 0;
	return fh_fail(st, FH_INTERRUPTED, "stopped at line %lld", (long long)p->csv.line);
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
	if (form == FORM_TENSORS)
		return tensors_read(path, p->o, p->out, p->first_drop, st);

	struct parquet_seen seen = {0};
	rc = parquet_read(path, p->o, p->out, p->first_drop, &seen, st);
	p->other_symbols = seen.others;
	p->symbol_changes = seen.changes;
	memcpy(p->symbols, seen.symbols, sizeof p->symbols);
	return rc;
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
	plain_release(p);
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
