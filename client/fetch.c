/* The bars of a registered data set (fetch.h).
 *
 * Pages of ReadBars; the hash over all of them is that of the set, so what arrives is what the daemon has or nothing. One
 * thread. Invariant: after a failure the caller still may call fetch_release(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fetch.h"
#include "client/upload.h"

#define PAGE 20000 /* bars in one reply: what the daemon gives at most */

/* Contract k of the set is place k, so names may come again. */
static int add_name(struct bars *b, const char *name, struct fh_status *st)
{
	void *more = realloc(b->name, ((size_t)b->names + 1) * sizeof *b->name);

	if (!more)
		return fh_fail(st, FH_EXHAUSTED, "no memory");
	b->name = more;
	snprintf(b->name[b->names], CONTRACT_NAME_MAX, "%s", name);
	b->names_cap = ++b->names;
	return 0;
}

int fetch_info(struct ctx *c, const char *name, struct fetched *f, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ShowDatasetRequest s = FH__V1__SHOW_DATASET_REQUEST__INIT;
	struct fh_answer a;

	memset(f, 0, sizeof *f);
	bars_init(&f->part);
	s.name = (char *)name;
	req.call_case = FH__V1__REQUEST__CALL_SHOW_DATASET;
	req.show_dataset = &s;
	int rc = ctx_call(c, &req, 0, &a, st);
	if (rc)
		return rc;
	const Fh__V1__Dataset *d = a.reply->dataset->dataset;
	if (!d || !d->name || !d->hash)
		rc = fh_fail(st, FH_INTERNAL, "the daemon's answer about data set %.64s says nothing", name);
	if (!rc) {
		snprintf(f->name, sizeof f->name, "%s", d->name);
		snprintf(f->hash, sizeof f->hash, "%s", d->hash);
		f->bars = d->bars;
		f->last_ts = d->last_ts;
		f->tick = d->tick;
		f->has_volume = d->has_volume;
		f->rolls = (int64_t)d->n_roll;
		f->roll = d->n_roll ? malloc(d->n_roll * sizeof *f->roll) : NULL;
		if (d->n_roll && !f->roll)
			rc = fh_fail(st, FH_EXHAUSTED, "no memory");
		else if (d->n_roll)
			memcpy(f->roll, d->roll, d->n_roll * sizeof *f->roll);
		for (size_t i = 0; !rc && d->n_contract == d->n_roll + 1 && i < d->n_contract; i++)
			rc = add_name(&f->part, d->contract[i], st);
		f->part.contract = 0;
	}
	fh_answer_release(&a);
	return rc;
}

static int read_page(struct ctx *c, const struct fetched *f, int64_t first, int64_t n, struct fh_answer *a, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ReadBarsRequest r = FH__V1__READ_BARS_REQUEST__INIT;

	r.name = (char *)f->name;
	r.has_first = r.has_count = 1;
	r.first = first;
	r.count = n;
	req.call_case = FH__V1__REQUEST__CALL_READ_BARS;
	req.read_bars = &r;
	int rc = ctx_call(c, &req, 0, a, st);
	if (rc)
		return rc;
	const Fh__V1__ReadBarsReply *b = a->reply->bars;
	if (b->n_ts == (size_t)n && b->n_open == b->n_ts && b->n_high == b->n_ts && b->n_low == b->n_ts && b->n_close == b->n_ts &&
	    b->n_volume == b->n_ts && b->bars == f->bars)
		return 0;
	fh_answer_release(a);
	return fh_fail(st, FH_CONFLICT, "data set %s changed while it was read", f->name);
}

static int add_page(struct fetched *f, const Fh__V1__ReadBarsReply *b, int64_t first, int64_t from, struct fh_status *st)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < b->n_ts; i++) {
		struct bar x = {b->ts[i], first + (int64_t)i, b->open[i], b->high[i], b->low[i], b->close[i], b->volume[i]};
		while (f->part.contract < f->rolls && f->roll[f->part.contract] <= x.line)
			f->part.contract++;
		if (x.ts >= from)
			rc = bars_add(&f->part, &x, st);
	}
	return rc;
}

static int read_from(struct ctx *c, struct fetched *f, int64_t first, int64_t from, struct progress *bar, struct fh_status *st)
{
	struct fh_answer a;
	int rc = 0;

	for (; !rc && first < f->bars; first += PAGE) {
		if (signal_seen)
			return fh_fail(st, FH_INTERRUPTED, "stopped while reading data set %s", f->name);
		if (bar)
			progress_update(bar, (double)first / (double)f->bars, 0, "reading %s, %lld of %lld bars", f->name, (long long)first,
					(long long)f->bars);
		rc = read_page(c, f, first, f->bars - first < PAGE ? f->bars - first : PAGE, &a, st);
		if (rc)
			return rc;
		rc = add_page(f, a.reply->bars, first, from, st);
		fh_answer_release(&a);
	}
	return rc;
}

int fetch_bars(struct ctx *c, const char *name, struct progress *bar, struct fetched *f, struct fh_status *st)
{
	char hash[65];
	int rc = fetch_info(c, name, f, st);

	if (!rc)
		rc = read_from(c, f, 0, INT64_MIN, bar, st);
	struct market_bars b = bars_view(&f->part);
	if (!rc)
		rc = bars_hash(&b, f->roll, f->rolls, hash, st);
	if (!rc && strcmp(hash, f->hash))
		rc = fh_fail(st, FH_CONFLICT, "data set %s changed while it was read", f->name);
	return rc;
}

/* Pages from the end backwards until one begins before `from`, then forward once. */
int fetch_tail(struct ctx *c, struct fetched *f, int64_t from, struct fh_status *st)
{
	int64_t first = f->bars;
	struct fh_answer a;

	do {
		first = first > PAGE ? first - PAGE : 0;
		int rc = read_page(c, f, first, 1, &a, st);
		if (rc)
			return rc;
		int64_t ts = a.reply->bars->ts[0];
		fh_answer_release(&a);
		if (ts < from)
			break;
	} while (first);
	return read_from(c, f, first, from, NULL, st);
}

void fetch_release(struct fetched *f)
{
	bars_release(&f->part);
	free(f->roll);
	f->roll = NULL;
}
