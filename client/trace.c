/* Traces of evaluations (trace.h).
 *
 * Columns: time (UTC), bar, the three indices of the action, fill and price of the order, fee (money of the bar, exit
 * included), exit with its fill and price, position, cash, equity, reward, close, and the constants that the report needs
 * beside the rows: multiplier, max_position, bars_per_year. roll, roll_out, roll_in: contracts carried into another contract and the two
 * prices. The first row has the time of the first bar, no action, and the initial cash as cash and equity. One thread. */
#include <stdlib.h>
#include <string.h>

#include "client/import/csv.h"
#include "client/import/number.h"
#include "client/import/source.h"
#include "client/import/timestamp.h"
#include "client/trace.h"

#define NS_PER_YEAR (365.25 * 86400e9)
#define FIRST_CAP 1024
#define TRACE_ROWS_MAX 50000000

static const char *const exit_word[] = {"none", "stop", "stop_open", "profit", "horizon"};

static double bars_per_year(const Fh__V1__EvaluateReply *e)
{
	double covered = (double)(e->last_ts - e->first_ts);

	return covered > 0 ? (double)(e->end - e->begin - 1) / covered * NS_PER_YEAR : 0;
}

static void constants(FILE *f, const Fh__V1__EvaluateReply *e)
{
	fprintf(f, ",%.17g,%.17g,%.17g\n", e->multiplier, e->max_position, bars_per_year(e));
}

void trace_csv_begin(FILE *f, const Fh__V1__EvaluateReply *e)
{
	char time[TIMESTAMP_TEXT_MAX];

	fputs("time,bar,exposure,order,urgency,fill,price,fee,exit,exit_fill,exit_price,position,cash,equity,reward,close,"
	      "roll,roll_out,roll_in,multiplier,max_position,bars_per_year\n", f);
	fprintf(f, "%s,%lld,,,,0,0,0,none,0,0,0,%.17g,%.17g,0,,0,0,0", timestamp_format(e->first_ts, time), (long long)e->begin,
		e->initial_cash, e->initial_cash);
	constants(f, e);
}

void trace_csv_row(FILE *f, const Fh__V1__EvaluateReply *e, const Fh__V1__TraceRow *r)
{
	char time[TIMESTAMP_TEXT_MAX];
	int known = r->exit >= 0 && r->exit < (int)(sizeof exit_word / sizeof *exit_word);

	fprintf(f, "%s,%lld", timestamp_format(r->ts, time), (long long)r->bar);
	for (size_t i = 0; i < 3; i++)
		fprintf(f, ",%d", i < r->n_action ? r->action[i] : 0);
	fprintf(f, ",%.17g,%.17g,%.17g,%s,%.17g,%.17g,%.17g,%.17g,%.17g,%.17g,%.17g", r->fill, r->fill_price, r->fee,
		known ? exit_word[r->exit] : "unknown", r->exit_fill, r->exit_price, r->position, r->cash, r->equity, r->reward, r->close);
	fprintf(f, ",%.17g,%.17g,%.17g", r->roll, r->roll_out, r->roll_in);
	constants(f, e);
}

/* ---- in memory */

#define ARRAYS 8

static int grow(struct trace *t, struct fh_status *st)
{
	int64_t cap = t->cap ? t->cap * 2 : FIRST_CAP;
	void **const array[ARRAYS] = {(void **)&t->ts, (void **)&t->fill, (void **)&t->fill_price, (void **)&t->exit_fill,
				      (void **)&t->exit_price, (void **)&t->position, (void **)&t->equity, (void **)&t->close};

	if (t->n >= TRACE_ROWS_MAX)
		return fh_fail(st, FH_EXHAUSTED, "the trace has more than %d rows", TRACE_ROWS_MAX);
	for (int i = 0; i < ARRAYS; i++) {
		void *p = realloc(*array[i], (size_t)cap * 8);
		if (!p)
			return fh_fail(st, FH_EXHAUSTED, "no memory for %lld rows of a trace", (long long)cap);
		*array[i] = p;
	}
	t->cap = cap;
	return 0;
}

int trace_add(struct trace *t, const Fh__V1__TraceRow *r, struct fh_status *st)
{
	int rc = t->n == t->cap ? grow(t, st) : 0;

	if (rc)
		return rc;
	t->ts[t->n] = r->ts;
	t->fill[t->n] = r->fill;
	t->fill_price[t->n] = r->fill_price;
	t->exit_fill[t->n] = r->exit_fill;
	t->exit_price[t->n] = r->exit_price;
	t->position[t->n] = r->position;
	t->equity[t->n] = r->equity;
	t->close[t->n] = r->close;
	t->fees += r->fee;
	t->n++;
	return 0;
}

int trace_add_first(struct trace *t, const Fh__V1__EvaluateReply *e, struct fh_status *st)
{
	Fh__V1__TraceRow r = FH__V1__TRACE_ROW__INIT;

	t->multiplier = e->multiplier;
	t->max_position = e->max_position;
	r.ts = e->first_ts;
	r.equity = e->initial_cash;
	r.close = 0.0 / 0.0; /* not known before the first row */
	return trace_add(t, &r, st);
}

void trace_release(struct trace *t)
{
	free(t->ts);
	free(t->fill);
	free(t->fill_price);
	free(t->exit_fill);
	free(t->exit_price);
	free(t->position);
	free(t->equity);
	free(t->close);
	memset(t, 0, sizeof *t);
}

/* ---- from a file */

enum { T_TIME, T_FILL, T_PRICE, T_FEE, T_EXIT_FILL, T_EXIT_PRICE, T_POSITION, T_EQUITY, T_CLOSE, T_MULTIPLIER, T_MAX_POSITION,
       T_COLUMNS };
static const char *const column[T_COLUMNS] = {"time", "fill", "price", "fee", "exit_fill", "exit_price", "position", "equity", "close",
					      "multiplier", "max_position"};

static int find_columns(const struct csv_reader *r, int at[T_COLUMNS], struct fh_status *st)
{
	for (int k = 0; k < T_COLUMNS; k++) {
		at[k] = -1;
		for (int i = 0; i < r->fields; i++)
			if (r->field[i].len == strlen(column[k]) && !memcmp(r->field[i].p, column[k], r->field[i].len))
				at[k] = i;
		if (at[k] < 0)
			return fh_fail(st, FH_INVALID, "the header has no column '%s': is it a trace of `fhctl evaluate --trace`?", column[k]);
	}
	return 0;
}

static int read_row(const struct csv_reader *r, const int at[T_COLUMNS], struct trace *t, struct fh_status *st)
{
	Fh__V1__TraceRow row = FH__V1__TRACE_ROW__INIT;
	double *const value[T_COLUMNS] = {NULL, &row.fill, &row.fill_price, &row.fee, &row.exit_fill, &row.exit_price, &row.position,
					  &row.equity, &row.close,
					  &t->multiplier, &t->max_position};
	struct timestamp ts;

	for (int k = 0; k < T_COLUMNS; k++)
		if (at[k] >= r->fields)
			return fh_fail(st, FH_INVALID, ":%lld: there is no column %d (%s)", (long long)r->line, at[k] + 1, column[k]);
	const struct csv_field *f = &r->field[at[T_TIME]];
	if (timestamp_parse(f->p, f->len, INT64_MIN, &ts))
		return fh_fail(st, FH_INVALID, ":%lld: column %d (time) is no time", (long long)r->line, at[T_TIME] + 1);
	row.ts = ts.ns;
	for (int k = T_FILL; k < T_COLUMNS; k++) {
		f = &r->field[at[k]];
		enum number_result n = number_parse(f->p, f->len, '.', value[k]);
		if (n == NUMBER_EMPTY && k == T_CLOSE)
			*value[k] = 0.0 / 0.0;
		else if (n)
			return fh_fail(st, FH_INVALID, ":%lld: column %d (%s) %s", (long long)r->line, at[k] + 1, column[k],
				       number_result_text(n));
	}
	return trace_add(t, &row, st);
}

static int read_rows(struct csv_reader *r, struct trace *t, struct fh_status *st)
{
	int at[T_COLUMNS];
	int rc = csv_line(r, st);

	if (rc == 0)
		return fh_fail(st, FH_INVALID, "the file is empty");
	if (rc > 0)
		rc = csv_split(r, st);
	if (!rc)
		rc = find_columns(r, at, st);
	while (!rc && (rc = csv_line(r, st)) > 0) {
		rc = csv_split(r, st);
		if (!rc)
			rc = read_row(r, at, t, st);
	}
	if (!rc && t->n < 2)
		rc = fh_fail(st, FH_INVALID, "the trace has fewer than two rows");
	return rc;
}

int trace_read(const char *path, struct trace *out, struct fh_status *st)
{
	struct csv_reader *r = calloc(1, sizeof *r);
	struct source *s = NULL;
	struct trace t;

	if (!r)
		return fh_fail(st, FH_EXHAUSTED, "no memory to read %s", path);
	memset(&t, 0, sizeof t);
	int rc = source_open(path, NULL, &s, st);
	if (!rc)
		rc = csv_open(r, s, st);
	if (!rc)
		rc = read_rows(r, &t, st);
	if (rc) {
		csv_name_file(st, path);
		trace_release(&t);
	} else {
		*out = t;
	}
	csv_close(r);
	free(r);
	source_close(s);
	return rc;
}
