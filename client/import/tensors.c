/* Bars of a safetensors file (tensors.h). One thread. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/import/tensors.h"
#include "gpu/safetensors.h"
#include "proto/status.h"

#define PROGRESS_ROWS 1048576 /* power of two */

int tensors_look(const void *p, size_t n)
{
	uint64_t header;

	if (n < 9)
		return 0;
	memcpy(&header, p, sizeof header);
	return header >= 2 && header <= ST_HEADER_MAX && ((const char *)p)[8] == '{';
}

static int check_row(const struct import_options *o, struct import *out, struct bar *b, struct fh_status *st)
{
	static const char *const word[] = {"open", "high", "low", "close", "volume"};
	double *const value[] = {&b->open, &b->high, &b->low, &b->close, &b->volume};

	for (int k = 0; k < 5; k++) {
		if (k < 4 && o->price_scale > 0)
			*value[k] /= o->price_scale;
		if (!isfinite(*value[k]))
			return fh_fail(st, FH_INVALID, ":%lld: %s is no number", (long long)b->line, word[k]);
	}
	return bar_check(&out->bars, b, st);
}

int columnar_row(const struct import_options *o, struct import *out, struct bar *b, char *first_drop, size_t size,
		 struct fh_status *st)
{
	struct fh_status why = FH_STATUS_INIT;

	out->rows++;
	int rc = check_row(o, out, b, &why);
	if (rc && o->on_bad_row == BAD_ROW_DROP) {
		if (!out->dropped++)
			snprintf(first_drop, size, "row %.400s", why.text + 1); /* begins with ":N" */
		return 0;
	}
	return rc ? fh_fail(st, rc, "%s", why.text) : bars_add(&out->bars, b, st);
}

/* The next of the names that stand one a line, for the bars from here on; "" unknown ones. */
static int next_contract(struct bars *b, const char **names, struct fh_status *st)
{
	char name[CONTRACT_NAME_MAX];
	const char *end;

	b->contract++;
	if (!*names)
		return 0;
	end = strchrnul(*names, '\n');
	snprintf(name, sizeof name, "%.*s", (int)(end - *names < CONTRACT_NAME_MAX ? end - *names : CONTRACT_NAME_MAX - 1), *names);
	*names = *end ? end + 1 : end;
	return bars_contract(b, name, st);
}

/* Names are good when there is one for each contract and neighbours differ: the changes are what counts. */
static const char *contract_names(const struct st_file *f, int64_t rolls)
{
	const char *all = st_meta(f, "contracts"), *p = all, *last = NULL;
	size_t last_n = 0;
	int64_t n = 0;

	for (; p; n++) {
		const char *end = strchrnul(p, '\n');
		size_t bytes = (size_t)(end - p);
		if (!bytes || bytes >= CONTRACT_NAME_MAX || (last && last_n == bytes && !memcmp(last, p, bytes)))
			return NULL;
		last = p;
		last_n = bytes;
		p = *end ? end + 1 : NULL;
	}
	return n == rolls + 1 ? all : NULL;
}

static int take_rows(const struct st_file *f, const struct import_options *o, struct import *out, char *first_drop, struct fh_status *st)
{
	static const char *const name[] = {"open", "high", "low", "close", "volume"};
	const struct st_tensor *ts = NULL, *t = NULL, *roll = NULL;
	int64_t next = 0;
	const double *v[5] = {NULL};
	int rc = st_need(f, "ts", ST_I64, -1, NULL, &ts, st);

	if (!rc && ts->rank != 1)
		rc = fh_fail(st, FH_CORRUPT, "tensor ts has %d dimensions and not 1", ts->rank);
	for (int k = 0; !rc && k < 5; k++) {
		if (k == 4 && !st_find(f, name[k]))
			break;
		rc = st_need(f, name[k], ST_F64, 1, ts->dim, &t, st);
		if (!rc)
			v[k] = t->data;
	}
	if (!rc && st_find(f, "roll"))
		rc = st_need(f, "roll", ST_I64, -1, NULL, &roll, st);
	if (!rc && roll && roll->rank != 1)
		rc = fh_fail(st, FH_CORRUPT, "tensor roll has %d dimensions and not 1", roll->rank);
	if (rc)
		return rc;
	const char *volume = st_meta(f, "has_volume"), *names = contract_names(f, roll ? roll->dim[0] : 0);
	if (names)
		rc = next_contract(&out->bars, &names, st);
	out->has_volume = v[4] && !(volume && !strcmp(volume, "0"));
	for (int64_t i = 0; !rc && i < ts->dim[0]; i++) {
		struct bar b = {((const int64_t *)ts->data)[i], i + 1, v[0][i], v[1][i], v[2][i], v[3][i], v[4] ? v[4][i] : 0};
		for (; !rc && roll && next < roll->dim[0] && ((const int64_t *)roll->data)[next] <= i; next++)
			rc = next_contract(&out->bars, &names, st);
		if (!rc)
			rc = columnar_row(o, out, &b, first_drop, TENSORS_DROP_TEXT, st);
		if (!rc && o->progress && !((i + 1) & (PROGRESS_ROWS - 1)) &&
		    o->progress(o->progress_arg, (uint64_t)i, (uint64_t)ts->dim[0], out->bars.count))
			rc = fh_fail(st, FH_INTERRUPTED, "stopped at row %lld", (long long)i);
	}
	if (!rc && !out->rows)
		rc = fh_fail(st, FH_INVALID, "the file has no bars");
	return rc;
}

int tensors_read(const char *path, const struct import_options *o, struct import *out, char first_drop[TENSORS_DROP_TEXT],
		 struct fh_status *st)
{
	struct st_file *f = NULL;
	int rc = st_open(path, &f, st);

	if (!rc)
		rc = take_rows(f, o, out, first_drop, st);
	st_close(f);
	return rc;
}
