/* Which field of a line is what (columns.h).
 *
 * A name is compared in lower case without <>, quotes and spaces around it, blanks and dashes inside read as underscores.
 * The names of a column are in order of preference: where a header has several of one list, the first in the list wins
 * (ts_event before time), so a header never has a meaning by its order. Any thread. */
#include <stdio.h>
#include <string.h>

#include "client/import/columns.h"
#include "client/import/number.h"
#include "proto/status.h"

#define NAME_MAX_ 32 /* longer names are none of ours */
#define FOUND_MAX 200 /* bytes of a header shown in a message */

/* "date" and "time" are treated apart: together they are one time. "" is what pandas writes over its index. */
static const char *const time_names[] = {
	"ts_event", "timestamp", "timestamp_utc", "ts", "open_time", "opentime", "datetime", "date_time", "datetime_utc",
	"time_utc", "gmt_time", "utc_time", "unix", "unix_timestamp", "unixtime", "epoch", "window_start", "bar_time",
	"__index_level_0__", NULL
};
static const char *const open_names[] = {"open", "o", "open_price", NULL};
static const char *const high_names[] = {"high", "h", "high_price", NULL};
static const char *const low_names[] = {"low", "l", "low_price", NULL};
static const char *const close_names[] = {"close", "c", "close_price", "price", NULL};
static const char *const volume_names[] = {"volume", "tickvol", "tick_volume", "vol", "v", NULL};
static const char *const symbol_names[] = {"symbol", "ticker", "instrument_id", "instrument", "contract", NULL};
static const char *const *const names[COLUMNS] = {
	[COLUMN_TIME] = time_names, [COLUMN_OPEN] = open_names, [COLUMN_HIGH] = high_names, [COLUMN_LOW] = low_names,
	[COLUMN_CLOSE] = close_names, [COLUMN_VOLUME] = volume_names, [COLUMN_SYMBOL] = symbol_names
};

const char *column_word(enum column c)
{
	static const char *const word[COLUMNS] = {"time", "time of day", "open", "high", "low", "close", "volume", "symbol"};
	return word[c];
}

static int strip(int c)
{
	return c == ' ' || c == '\t' || c == '<' || c == '>' || c == '"' || c == '\'' || c == '\r';
}

/* 0 when the field is too long to be a name. */
static int plain_name(struct csv_field f, char out[NAME_MAX_])
{
	size_t n = 0;

	while (f.len && strip(*f.p)) {
		f.p++;
		f.len--;
	}
	while (f.len && strip(f.p[f.len - 1]))
		f.len--;
	if (f.len >= NAME_MAX_)
		return 0;
	for (; n < f.len; n++) {
		char c = f.p[n];
		out[n] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c == ' ' || c == '-' ? '_' : c;
	}
	out[n] = '\0';
	return 1;
}

/* The field called `name`: its number, -1 none, -2 twice. */
static int find_name(const struct csv_reader *r, const char *name)
{
	char text[NAME_MAX_];
	int at = -1;

	for (int i = 0; i < r->fields; i++)
		if (plain_name(r->field[i], text) && !strcmp(text, name)) {
			if (at >= 0)
				return -2;
			at = i;
		}
	return at;
}

static int set_column(const struct csv_reader *r, struct columns *c, enum column which, const char *name, struct fh_status *st)
{
	int at = find_name(r, name);

	if (at == -2)
		return fh_fail(st, FH_INVALID, ":%lld: the header has two columns called '%s'; choose with --columns",
			       (long long)r->line, name);
	if (at >= 0) {
		c->at[which] = at;
		csv_show(r->field[at], c->name[which]);
	}
	return 0;
}

/* A number anywhere after the first field, or a first field of digits: the first line is data already. */
static int is_header(const struct csv_reader *r)
{
	double v;

	for (int i = 1; i < r->fields; i++)
		if (number_parse(r->field[i].p, r->field[i].len, '.', &v) == NUMBER_OK ||
		    number_parse(r->field[i].p, r->field[i].len, ',', &v) == NUMBER_OK)
			return 0;
	return !(r->fields && r->field[0].len && r->field[0].p[0] >= '0' && r->field[0].p[0] <= '9');
}

static void show_line(const struct csv_reader *r, char text[FOUND_MAX])
{
	char one[CSV_SHOWN_MAX];
	size_t used = 0;

	text[0] = '\0';
	for (int i = 0; i < r->fields && used + CSV_SHOWN_MAX + 8 < FOUND_MAX; i++)
		used += (size_t)snprintf(text + used, FOUND_MAX - used, "%s%s", i ? ", " : "", csv_show(r->field[i], one));
}

static int find_time(const struct csv_reader *r, struct columns *c, struct fh_status *st)
{
	int rc = 0;

	for (int i = 0; !rc && time_names[i] && c->at[COLUMN_TIME] < 0; i++)
		rc = set_column(r, c, COLUMN_TIME, time_names[i], st);
	if (rc || c->at[COLUMN_TIME] >= 0)
		return rc;
	rc = set_column(r, c, COLUMN_TIME, "date", st);
	if (!rc)
		rc = set_column(r, c, c->at[COLUMN_TIME] >= 0 ? COLUMN_CLOCK : COLUMN_TIME, "time", st);
	if (!rc && c->at[COLUMN_TIME] < 0 && r->fields && r->field[0].len == 0) {
		c->at[COLUMN_TIME] = 0;
		snprintf(c->name[COLUMN_TIME], CSV_SHOWN_MAX, "(first)");
	}
	return rc;
}

static int from_header(const struct csv_reader *r, struct columns *c, struct fh_status *st)
{
	char missing[64] = "", found[FOUND_MAX];
	int rc = find_time(r, c, st);

	for (int k = COLUMN_OPEN; !rc && k < COLUMNS; k++)
		for (int i = 0; !rc && names[k][i] && c->at[k] < 0; i++)
			rc = set_column(r, c, (enum column)k, names[k][i], st);
	if (rc)
		return rc;
	for (int k = COLUMN_TIME; k <= COLUMN_CLOSE; k++)
		if (k != COLUMN_CLOCK && c->at[k] < 0) {
			size_t used = strlen(missing);
			snprintf(missing + used, sizeof missing - used, "%s%s", used ? ", " : "", column_word((enum column)k));
		}
	if (missing[0]) {
		show_line(r, found);
		if (!strcmp(missing, "open, high, low"))
			return fh_fail(st, FH_INVALID, ":%lld: the header has one price and no column for open, high, low (found: %s); --columns "
				       "ts,close makes bars of one price each", (long long)r->line, found);
		return fh_fail(st, FH_INVALID, ":%lld: the header has no column for %s (found: %s); --columns can name them",
			       (long long)r->line, missing, found);
	}
	c->header = 1;
	return 0;
}

static int looks_like_clock(struct csv_field f)
{
	return f.len >= 4 && (memchr(f.p, ':', f.len) != NULL);
}

/* Known shapes without a header: time, o, h, l, c[, v]; date, time of day, o, h, l, c[, v]; the 12 fields of an exchange's
 * kline files, which start like the first. */
static int from_shape(const struct csv_reader *r, struct columns *c, struct fh_status *st)
{
	int pair = r->fields > 2 && looks_like_clock(r->field[1]) && !looks_like_clock(r->field[0]);
	int prices = r->fields - 1 - pair, at = 1 + pair;

	if (prices != 4 && prices != 5 && !(r->fields == 12 && !pair))
		return fh_fail(st, FH_INVALID, ":%lld: %d fields and no header: say what they are with --columns, "
			       "for example --columns ts,open,high,low,close,volume", (long long)r->line, r->fields);
	c->at[COLUMN_TIME] = 0;
	c->at[COLUMN_CLOCK] = pair ? 1 : -1;
	for (int k = COLUMN_OPEN; k <= COLUMN_CLOSE; k++)
		c->at[k] = at++;
	if (prices > 4)
		c->at[COLUMN_VOLUME] = at;
	for (int k = 0; k < COLUMNS; k++)
		snprintf(c->name[k], CSV_SHOWN_MAX, "%s", column_word((enum column)k));
	return 0;
}

static int list_word(const char *word, enum column *out)
{
	if (!strcmp(word, "date") || !strcmp(word, "time")) {
		*out = !strcmp(word, "date") ? COLUMN_TIME : COLUMN_CLOCK;
		return 1;
	}
	for (int k = 0; k < COLUMNS; k++)
		for (int i = 0; names[k] && names[k][i]; i++)
			if (!strcmp(names[k][i], word)) {
				*out = (enum column)k;
				return 1;
			}
	return 0;
}

static int from_list(const char *list, struct columns *c, struct fh_status *st)
{
	const char *p = list;
	int n = 0;

	for (;; n++) {
		size_t len = strcspn(p, ",");
		char word[NAME_MAX_];
		enum column k;
		if (!plain_name((struct csv_field){p, len}, word))
			return fh_fail_field(st, FH_INVALID, "--columns", "'%.*s' is no column name", 40, p);
		if (strcmp(word, "_") && word[0]) { /* "-" reads as "_" here */
			if (!list_word(word, &k))
				return fh_fail_field(st, FH_INVALID, "--columns", "'%s' is no column: ts, date, time, open, high, low, "
						     "close, volume, symbol, or - for a field to skip", word);
			if (c->at[k] >= 0)
				return fh_fail_field(st, FH_INVALID, "--columns", "'%s' is there twice", word);
			c->at[k] = n;
			snprintf(c->name[k], CSV_SHOWN_MAX, "%s", word);
		}
		if (!p[len])
			break;
		p += len + 1;
	}
	if (c->at[COLUMN_TIME] < 0 && c->at[COLUMN_CLOCK] >= 0) { /* "time,open,…": a whole time under that name */
		c->at[COLUMN_TIME] = c->at[COLUMN_CLOCK];
		c->at[COLUMN_CLOCK] = -1;
		snprintf(c->name[COLUMN_TIME], CSV_SHOWN_MAX, "time");
	}
	c->flat = c->at[COLUMN_CLOSE] >= 0 && c->at[COLUMN_OPEN] < 0 && c->at[COLUMN_HIGH] < 0 && c->at[COLUMN_LOW] < 0;
	for (int k = COLUMN_OPEN; k < COLUMN_CLOSE && c->flat; k++) {
		c->at[k] = c->at[COLUMN_CLOSE];
		memcpy(c->name[k], c->name[COLUMN_CLOSE], CSV_SHOWN_MAX);
	}
	for (int k = COLUMN_TIME; k <= COLUMN_CLOSE; k++)
		if (k != COLUMN_CLOCK && c->at[k] < 0)
			return fh_fail_field(st, FH_INVALID, "--columns", "there is no %s in it", column_word((enum column)k));
	c->fields = n + 1;
	return 0;
}

static void none(const struct csv_reader *r, struct columns *c)
{
	memset(c, 0, sizeof *c);
	for (int k = 0; k < COLUMNS; k++)
		c->at[k] = -1;
	c->fields = r->fields;
}

int columns_of_names(const struct csv_reader *r, struct columns *out, struct fh_status *st)
{
	struct columns c;

	none(r, &c);
	int rc = from_header(r, &c, st);
	if (!rc)
		*out = c;
	return rc;
}

int columns_find(const struct csv_reader *r, const char *list, struct columns *out, struct fh_status *st)
{
	struct columns c;
	int rc;

	none(r, &c);
	if (list) {
		rc = from_list(list, &c, st);
		c.header = is_header(r);
	} else {
		rc = is_header(r) ? from_header(r, &c, st) : from_shape(r, &c, st);
	}
	if (!rc)
		*out = c;
	return rc;
}
