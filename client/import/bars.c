/* Bars as they come out of a reader (bars.h).
 *
 * Without sort a bar is compared with the one before it only, so a file is judged while it is read. With sort all bars are
 * kept with their line numbers, put in order of time and then line, and judged at the end. One thread.
 * Invariant: without sort, ts[0..count) is strictly increasing at all times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/bars.h"
#include "client/import/timestamp.h"
#include "proto/status.h"

#define FIRST_CAP 4096
#define VALUES 5

void bars_init(struct bars *b)
{
	memset(b, 0, sizeof *b);
}

void bars_release(struct bars *b)
{
	free(b->ts);
	free(b->line);
	free(b->contract_of);
	free(b->name);
	for (int i = 0; i < VALUES; i++)
		free(b->value[i]);
	memset(b, 0, sizeof *b);
}

static int resize(void **p, int64_t count)
{
	void *q = realloc(*p, (size_t)count * sizeof(int64_t));
	if (q)
		*p = q;
	return q ? 0 : -1;
}

/* Every array has 8-byte entries. */
static int grow(struct bars *b, struct fh_status *st)
{
	int64_t cap = b->cap ? b->cap * 2 : FIRST_CAP;

	if (b->count >= BARS_MAX)
		return fh_fail(st, FH_EXHAUSTED, "the file has more than %lld bars", (long long)BARS_MAX);
	int bad = resize((void **)&b->ts, cap);
	if (b->sort)
		bad |= resize((void **)&b->line, cap);
	for (int i = 0; i < VALUES; i++)
		bad |= resize((void **)&b->value[i], cap);
	if (b->contract_of) {
		int32_t *more = realloc(b->contract_of, (size_t)cap * sizeof *more);
		bad |= more ? 0 : -1;
		b->contract_of = more ? more : b->contract_of;
	}
	if (bad)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %lld bars", (long long)cap);
	b->cap = cap;
	return 0;
}

/* Behind a refusal; a bar that is dropped is told of without it. */
static const char *way_out(const struct bars *b)
{
	return b->on_bad_row == BAD_ROW_REFUSE ? "; --on-bad-row=drop|repair goes on without it or widens it" : "";
}

int bar_check(struct bars *b, struct bar *bar, struct fh_status *st)
{
	double top = bar->open > bar->close ? bar->open : bar->close;
	double bottom = bar->open < bar->close ? bar->open : bar->close;

	if (bar->volume < 0)
		return fh_fail(st, FH_INVALID, ":%lld: volume %.10g is below 0", (long long)bar->line, bar->volume);
	if (bar->high >= top && bar->low <= bottom)
		return 0;
	if (b->on_bad_row == BAD_ROW_REPAIR) {
		bar->high = bar->high > top ? bar->high : top;
		bar->low = bar->low < bottom ? bar->low : bottom;
		b->repaired++;
		return 0;
	}
	if (bar->high < top)
		return fh_fail(st, FH_INVALID, ":%lld: an impossible bar, high %.10g is below its %s %.10g%s", (long long)bar->line,
			       bar->high, bar->open > bar->close ? "open" : "close", top, way_out(b));
	return fh_fail(st, FH_INVALID, ":%lld: an impossible bar, low %.10g is above its %s %.10g%s", (long long)bar->line,
		       bar->low, bar->open < bar->close ? "open" : "close", bottom, way_out(b));
}

static void put(struct bars *b, int64_t i, const struct bar *bar)
{
	b->ts[i] = bar->ts;
	b->value[0][i] = bar->open;
	b->value[1][i] = bar->high;
	b->value[2][i] = bar->low;
	b->value[3][i] = bar->close;
	b->value[4][i] = bar->volume;
}

static int same(const struct bars *b, int64_t i, const struct bar *bar)
{
	return b->value[0][i] == bar->open && b->value[1][i] == bar->high && b->value[2][i] == bar->low &&
	       b->value[3][i] == bar->close && b->value[4][i] == bar->volume;
}

/* `bar` has the time of bar i, which stands in `line`. */
static int duplicate(struct bars *b, int64_t i, int64_t line, const struct bar *bar, struct fh_status *st)
{
	char at[TIMESTAMP_TEXT_MAX];

	if (same(b, i, bar)) {
		b->repeats++;
		return 0;
	}
	if (b->on_duplicate == DUPLICATE_REFUSE)
		return fh_fail(st, FH_INVALID, ":%lld: the time %s is that of line %lld, with another bar; "
			       "--on-duplicate=first|last chooses", (long long)bar->line, timestamp_format(bar->ts, at),
			       (long long)line);
	b->conflicts++;
	if (b->on_duplicate == DUPLICATE_LAST)
		put(b, i, bar);
	return 0;
}

/* The array of contracts is made when there is a second one. */
static int set_contract(struct bars *b, int64_t i, struct fh_status *st)
{
	if (!b->contract_of && i && b->contract == b->first_contract)
		return 0;
	if (!i)
		b->first_contract = b->contract;
	if (!b->contract_of && i) {
		b->contract_of = malloc((size_t)b->cap * sizeof *b->contract_of);
		if (!b->contract_of)
			return fh_fail(st, FH_EXHAUSTED, "no memory for %lld bars", (long long)b->cap);
		for (int64_t k = 0; k < i; k++)
			b->contract_of[k] = b->first_contract;
	}
	if (b->contract_of)
		b->contract_of[i] = b->contract;
	return 0;
}

int bars_contract(struct bars *b, const char *name, struct fh_status *st)
{
	for (int32_t i = b->names - 1; i >= 0; i--)
		if (!strncmp(b->name[i], name, CONTRACT_NAME_MAX - 1)) {
			b->contract = i;
			return 0;
		}
	if (b->names == CONTRACTS_MAX)
		return fh_fail(st, FH_INVALID, "more than %d different symbols are in the file: choose one with --symbol", CONTRACTS_MAX);
	if (b->names == b->names_cap) {
		int32_t cap = b->names_cap ? b->names_cap * 2 : 4;
		void *more = realloc(b->name, (size_t)cap * sizeof *b->name);
		if (!more)
			return fh_fail(st, FH_EXHAUSTED, "no memory for %d symbols", cap);
		b->name = more;
		b->names_cap = cap;
	}
	snprintf(b->name[b->names], CONTRACT_NAME_MAX, "%s", name);
	b->contract = b->names++;
	return 0;
}

const char *bars_contract_name(const struct bars *b, int64_t bar)
{
	int32_t k = b->contract_of ? b->contract_of[bar] : b->first_contract;

	return k >= 0 && k < b->names ? b->name[k] : "";
}

int bars_rolls(const struct bars *b, int64_t **roll, int64_t *rolls, struct fh_status *st)
{
	int64_t n = b->seam && b->count;

	*roll = NULL;
	*rolls = 0;
	for (int64_t i = 1; b->contract_of && i < b->count; i++)
		n += b->contract_of[i] != b->contract_of[i - 1];
	if (!n)
		return 0;
	if (n > MARKET_ROLLS_MAX)
		return fh_fail(st, FH_INVALID, "%lld changes of the contract; up to %d are taken: choose one contract with --symbol", (long long)n,
			       MARKET_ROLLS_MAX);
	*roll = malloc((size_t)n * sizeof **roll);
	if (!*roll)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %lld changes of the contract", (long long)n);
	if (b->seam)
		(*roll)[(*rolls)++] = 0;
	for (int64_t i = 1; b->contract_of && i < b->count; i++)
		if (b->contract_of[i] != b->contract_of[i - 1])
			(*roll)[(*rolls)++] = i;
	return 0;
}

int bars_add(struct bars *b, const struct bar *bar, struct fh_status *st)
{
	char t0[TIMESTAMP_TEXT_MAX], t1[TIMESTAMP_TEXT_MAX];

	if (b->count && bar->ts <= b->newest) {
		int64_t i = b->count - 1;
		if (!b->sort && bar->ts < b->ts[i])
			return fh_fail(st, FH_INVALID, ":%lld: %s is before line %lld, %s: out of order; --sort puts the bars in "
				       "order", (long long)bar->line, timestamp_format(bar->ts, t0), (long long)b->last_line,
				       timestamp_format(b->ts[i], t1));
		if (!b->sort) {
			int rc = duplicate(b, i, b->last_line, bar, st);
			if (rc || b->on_duplicate != DUPLICATE_LAST)
				return rc;
			b->last_line = bar->line;
			return set_contract(b, i, st); /* the bar that counts says whose it is */
		}
		b->moved += bar->ts < b->newest;
	}
	if (b->count == b->cap) {
		int rc = grow(b, st);
		if (rc)
			return rc;
	}
	put(b, b->count, bar);
	int rc = set_contract(b, b->count, st);
	if (rc)
		return rc;
	if (b->sort)
		b->line[b->count] = bar->line;
	b->first_line = b->count ? b->first_line : bar->line;
	b->last_line = bar->line;
	b->newest = b->count && b->newest > bar->ts ? b->newest : bar->ts;
	b->count++;
	return 0;
}

int bars_room(struct bars *b, int64_t n, struct fh_status *st)
{
	int rc = 0;

	while (!rc && b->cap - b->count < n)
		rc = grow(b, st);
	return rc;
}

void bars_took(struct bars *b, int64_t n, int64_t last_line)
{
	for (int64_t i = 0; b->contract_of && i < n; i++)
		b->contract_of[b->count + i] = b->contract;
	if (!n)
		return;
	b->first_line = b->count ? b->first_line : last_line - n + 1;
	b->count += n;
	b->last_line = last_line;
	b->newest = b->ts[b->count - 1];
}

struct key { int64_t ts, at; };

static int by_time(const void *x, const void *y)
{
	const struct key *a = x, *c = y;
	if (a->ts != c->ts)
		return a->ts < c->ts ? -1 : 1;
	return a->at < c->at ? -1 : a->at > c->at;
}

static void permute(void *array, const struct key *key, int64_t n, int64_t *scratch)
{
	int64_t *v = array; /* doubles move as 64-bit words */

	for (int64_t i = 0; i < n; i++)
		memcpy(&scratch[i], (char *)v + key[i].at * 8, 8);
	memcpy(v, scratch, (size_t)n * 8);
}

static int sort_bars(struct bars *b, struct fh_status *st)
{
	struct key *key = malloc((size_t)b->count * sizeof *key);
	int64_t *scratch = malloc((size_t)b->count * sizeof *scratch);

	if (!key || !scratch) {
		free(key);
		free(scratch);
		return fh_fail(st, FH_EXHAUSTED, "no memory to sort %lld bars", (long long)b->count);
	}
	for (int64_t i = 0; i < b->count; i++)
		key[i] = (struct key){b->ts[i], i};
	qsort(key, (size_t)b->count, sizeof *key, by_time);
	permute(b->ts, key, b->count, scratch);
	permute(b->line, key, b->count, scratch);
	for (int i = 0; i < VALUES; i++)
		permute(b->value[i], key, b->count, scratch);
	for (int64_t i = 0; b->contract_of && i < b->count; i++)
		scratch[i] = b->contract_of[key[i].at];
	for (int64_t i = 0; b->contract_of && i < b->count; i++)
		b->contract_of[i] = (int32_t)scratch[i];
	free(key);
	free(scratch);
	return 0;
}

static struct bar get(const struct bars *b, int64_t i)
{
	return (struct bar){b->ts[i], b->line[i], b->value[0][i], b->value[1][i], b->value[2][i], b->value[3][i], b->value[4][i]};
}

/* The first and the last of all, which are in order: what the daemon takes, and what can be subtracted from each other. */
static int check_range(const struct bars *b, struct fh_status *st)
{
	const int64_t end[] = {0, b->count - 1}, line[] = {b->sort ? b->line[0] : b->first_line, b->sort ? b->line[b->count - 1] : b->last_line};
	char text[TIMESTAMP_TEXT_MAX];

	for (int i = 0; i < 2; i++)
		if (b->ts[end[i]] <= -MARKET_TS_MAX || b->ts[end[i]] >= MARKET_TS_MAX)
			return fh_fail(st, FH_INVALID, ":%lld: the time %s is outside the years 1824 to 2116", (long long)line[i],
				       timestamp_format(b->ts[end[i]], text));
	return 0;
}

/* Bars that were kept with their lines: in order, one of each time. */
static int finish_sorted(struct bars *b, struct fh_status *st)
{
	int64_t kept = 0;

	if (b->moved) {
		int rc = sort_bars(b, st);
		if (rc)
			return rc;
	}
	for (int64_t i = 0; i < b->count; i++) {
		struct bar bar = get(b, i);
		if (kept && bar.ts == b->ts[kept - 1]) {
			int rc = duplicate(b, kept - 1, b->line[kept - 1], &bar, st);
			if (rc)
				return rc;
			if (b->contract_of && b->on_duplicate == DUPLICATE_LAST)
				b->contract_of[kept - 1] = b->contract_of[i];
			continue;
		}
		put(b, kept, &bar);
		if (b->contract_of)
			b->contract_of[kept] = b->contract_of[i];
		b->line[kept++] = bar.line;
	}
	b->count = kept;
	return 0;
}

int bars_finish(struct bars *b, struct fh_status *st)
{
	int rc = b->sort && b->count ? finish_sorted(b, st) : 0;

	return rc || !b->count ? rc : check_range(b, st);
}

struct market_bars bars_view(const struct bars *b)
{
	return (struct market_bars){b->count, b->ts, b->value[0], b->value[1], b->value[2], b->value[3], b->value[4]};
}
