/* Parquet files to bars and back (parquet.h): the rules for rows here, the library behind arrow_shim.h. One thread. */
#include "client/import/parquet.h"
#include "proto/status.h"

#ifdef FH_ARROW

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/import/arrow_shim.h"
#include "client/import/columns.h"
#include "client/import/tensors.h"
#include "client/import/timestamp.h"

_Static_assert(SHIM_COLUMNS == COLUMNS, "the shim numbers columns as enum column does");

struct parquet {
	const struct import_options *o;
	struct import *out;
	char *first_drop;
	struct parquet_seen *seen;
	int code;                /* of a callback that stopped */
	struct fh_status *st;
};

int parquet_there(struct fh_status *st)
{
	return 0;
}

/* A file's columns are found like those of a CSV header. */
static int columns(void *arg, const char *const *name, int n, int *at)
{
	struct parquet *p = arg;
	struct csv_reader *r = calloc(1, sizeof *r); /* 1,024 fields: too much for a stack */
	struct columns c;

	if (!r)
		return p->code = fh_fail(p->st, FH_EXHAUSTED, "no memory");
	for (r->fields = 0; r->fields < n && r->fields < CSV_FIELDS_MAX; r->fields++)
		r->field[r->fields] = (struct csv_field){name[r->fields], strlen(name[r->fields])};
	r->line = 0;
	p->code = columns_of_names(r, &c, p->st);
	if (!p->code && c.at[COLUMN_CLOCK] >= 0)
		p->code = fh_fail(p->st, FH_INVALID, "date and time are two columns; a Parquet file needs one timestamp");
	if (!p->code && p->o->symbol && c.at[COLUMN_SYMBOL] < 0)
		p->code = fh_fail_field(p->st, FH_INVALID, "--symbol", "the file has no column of symbols");
	if (!p->code) {
		memcpy(at, c.at, sizeof c.at);
		p->out->has_volume = c.at[COLUMN_VOLUME] >= 0;
	}
	free(r);
	return p->code;
}

static int time_of(const struct shim_row *r, int64_t *ns, struct fh_status *st)
{
	char text[24];
	struct timestamp t = {0};
	enum timestamp_result rc = TIMESTAMP_OK;

	if (r->kind == SHIM_MISSING)
		return fh_fail(st, FH_INVALID, ":%lld: the time is missing", (long long)r->row);
	if (r->kind == SHIM_RANGE)
		rc = TIMESTAMP_RANGE;
	else if (r->kind == SHIM_NS)
		t.ns = r->time;
	else if (r->kind == SHIM_TEXT)
		rc = timestamp_parse(r->text, r->text_len, INT64_MIN, &t);
	else
		rc = timestamp_parse(text, (size_t)snprintf(text, sizeof text, "%lld", (long long)r->time), INT64_MIN, &t);
	if (rc)
		return fh_fail(st, FH_INVALID, ":%lld: the time %s", (long long)r->row, timestamp_result_text(rc));
	*ns = t.ns;
	return 0;
}

/* The contract of the rows from here on. */
static int symbol(struct parquet *p, const struct shim_row *r)
{
	struct bars *b = &p->out->bars;
	const char *now = b->names ? b->name[b->contract] : NULL;
	size_t n = r->symbol_len < CONTRACT_NAME_MAX ? r->symbol_len : CONTRACT_NAME_MAX - 1, used = strlen(p->seen->symbols);
	char name[CONTRACT_NAME_MAX];

	if (now && strlen(now) == n && !memcmp(now, r->symbol, n))
		return 0;
	snprintf(name, sizeof name, "%.*s", (int)n, r->symbol);
	p->seen->changes += now != NULL;
	if (used + 32 < sizeof p->seen->symbols)
		snprintf(p->seen->symbols + used, sizeof p->seen->symbols - used, "%s%.24s", used ? ", " : "", name);
	return bars_contract(b, name, p->st);
}

static int row(void *arg, const struct shim_row *r)
{
	struct parquet *p = arg;
	struct fh_status why = FH_STATUS_INIT;
	struct bar b = {0, r->row, r->value[0], r->value[1], r->value[2], r->value[3], r->value[4]};

	if (p->o->symbol && (strlen(p->o->symbol) != r->symbol_len || memcmp(p->o->symbol, r->symbol, r->symbol_len))) {
		p->seen->others++;
		return 0;
	}
	if (r->symbol && (p->code = symbol(p, r)))
		return p->code;
	if (!time_of(r, &b.ts, &why)) {
		p->code = columnar_row(p->o, p->out, &b, p->first_drop, PARQUET_DROP_TEXT, p->st);
		if (p->code == FH_INVALID && p->seen->changes)
			fh_prefix(p->st, "several symbols are in the file (%s), --symbol chooses one", p->seen->symbols);
		return p->code;
	}
	p->out->rows++;
	if (p->o->on_bad_row != BAD_ROW_DROP)
		return p->code = fh_fail(p->st, why.code, "%s", why.text);
	if (!p->out->dropped++)
		snprintf(p->first_drop, PARQUET_DROP_TEXT, "row %.400s", why.text + 1);
	return 0;
}

static int progress(void *arg, int64_t rows, int64_t of)
{
	struct parquet *p = arg;

	if (p->o->progress && p->o->progress(p->o->progress_arg, (uint64_t)rows, (uint64_t)of, p->out->bars.count))
		p->code = fh_fail(p->st, FH_INTERRUPTED, "stopped at row %lld", (long long)rows);
	return p->code;
}

int parquet_read(const char *path, const struct import_options *o, struct import *out, char first_drop[PARQUET_DROP_TEXT],
		 struct parquet_seen *seen, struct fh_status *st)
{
	struct parquet p = {o, out, first_drop, seen, 0, st};
	struct shim_reader r = {columns, row, progress, &p};
	char error[SHIM_ERROR_MAX];

	switch (shim_read(path, &r, error)) {
	case SHIM_OK:
		break;
	case SHIM_STOPPED:
		return p.code;
	case SHIM_ERROR:
		return fh_fail(st, FH_CORRUPT, "%s", error);
	}
	if (out->rows)
		return 0;
	return seen->others ? fh_fail_field(st, FH_NOT_FOUND, "--symbol", "no row has the symbol '%.40s'", o->symbol) :
			 fh_fail(st, FH_INVALID, "the file has no bars");
}

int parquet_write(const char *path, const struct market_bars *b, int has_volume, const struct parquet_symbols *symbol, struct fh_status *st)
{
	const double *const value[4] = {b->open, b->high, b->low, b->close};
	char part[4096], error[SHIM_ERROR_MAX];

	if ((size_t)snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid()) >= sizeof part)
		return fh_fail(st, FH_INVALID, "the path is longer than %zu bytes", sizeof part);
	int rc = 0;
	if (shim_write(part, b->bars, b->ts, value, has_volume ? b->volume : NULL, symbol ? symbol->of : NULL, symbol ? symbol->arg : NULL, error))
		rc = fh_fail(st, FH_IO, "%s: %s", path, error);
	else if (rename(part, path))
		rc = fh_fail(st, FH_IO, "%s: %s", path, strerror(errno));
	if (rc)
		unlink(part);
	return rc;
}

#else

int parquet_there(struct fh_status *st)
{
	return fh_fail(st, FH_UNIMPLEMENTED, "this fhctl was built without Parquet: `pip install pyarrow` and `make ARROW=DIR`, DIR being the "
		       "folder of the installed package; or convert the file to CSV");
}

int parquet_read(const char *path, const struct import_options *o, struct import *out, char first_drop[PARQUET_DROP_TEXT],
		 struct parquet_seen *seen, struct fh_status *st)
{
	return parquet_there(st);
}

int parquet_write(const char *path, const struct market_bars *b, int has_volume, const struct parquet_symbols *symbol, struct fh_status *st)
{
	return parquet_there(st);
}

#endif
