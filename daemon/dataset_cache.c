/* Markets in memory: loaded once per hash (and tick, where the tick reaches the features), shared by reference, let go when
 * nobody uses them and the bound is passed. See dataset.h. */
#include "daemon/dataset.h"
#include "daemon/dataset_internal.h"
#include "daemon/log.h"
#include "daemon/need.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct waiting { struct waiting *next; dataset_loaded done; void *arg; };

struct resident {
	struct resident *next;
	struct datasets *ds;
	char name[FH_NAME_MAX], hash[65];
	int64_t bars;              /* of the file, the first ones */
	double tick, max_gap;
	struct market *market;     /* NULL while it is read */
	int loading, forgotten;    /* forgotten: dropped while it was read */
	uint64_t bytes, used;      /* used: the clock at its last use */
	struct waiting *waiting;
	uv_work_t work;
	char path[PATH_MAX];
	int code;
	struct fh_status st;
};

static uint64_t market_bytes(const struct market *m)
{
	return (uint64_t)m->bars * (6 * 8 + (FH_MARKET_FEATURES + 1) * 4);
}

/* The tick that this set's features are made with when a job asks for `tick`: another one only where it matters, so that jobs with
 * different ticks share one copy of an ordinary market. */
static double effective_tick(const struct dataset *d, double tick)
{
	if (!(tick > 0) || (d->info->close_min > 0 && d->info->close_min >= fmax(tick, d->tick)))
		return d->tick;
	return tick;
}

static struct resident *resident_find(struct datasets *ds, const char *hash, double tick, double max_gap)
{
	struct resident *r = ds->resident;

	while (r && (r->forgotten || r->tick != tick || r->max_gap != max_gap || strcmp(r->hash, hash)))
		r = r->next;
	return r;
}

static void resident_remove(struct datasets *ds, struct resident *r)
{
	struct resident **p = &ds->resident;

	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	ds->resident_bytes -= r->bytes;
	market_unref(r->market);
	free(r);
}

/* Lets go of unused markets, longest untouched first, until the bound holds or all that is left is in use. */
static void evict(struct datasets *ds)
{
	while (ds->resident_bytes > ds->cfg.cache_bytes) {
		struct resident *oldest = NULL;

		for (struct resident *r = ds->resident; r; r = r->next)
			if (r->market && __atomic_load_n(&r->market->refs, __ATOMIC_ACQUIRE) == 1 && (!oldest || r->used < oldest->used))
				oldest = r;
		if (!oldest)
			return;
		log_info("data set left memory", "dataset=%s bytes=%llu", oldest->name, (unsigned long long)oldest->bytes);
		resident_remove(ds, oldest);
	}
}

/* ---------------------------------------------------------------- answers on the loop's next turn */

static void deliver_all(struct datasets *ds)
{
	struct delivery *d = ds->delivery;

	ds->delivery = NULL;
	ds->delivery_end = &ds->delivery;
	while (d) {
		struct delivery *next = d->next;

		d->done(d->arg, d->code, d->market, &d->st);
		free(d);
		d = next;
	}
}

static void on_async(uv_async_t *h)
{
	deliver_all(h->data);
}

static void deliver(struct datasets *ds, dataset_loaded done, void *arg, struct market *m, int code, const struct fh_status *st)
{
	struct delivery *d = need(calloc(1, sizeof *d));

	*d = (struct delivery){.done = done, .arg = arg, .market = m, .code = code};
	if (st)
		d->st = *st;
	*ds->delivery_end = d;
	ds->delivery_end = &d->next;
	if (ds->stopping)
		deliver_all(ds); /* the loop has no more turns for us */
	else
		uv_async_send(&ds->async);
}

/* ---------------------------------------------------------------- loading */

/* The first `bars` of a file. */
int dataset_read(const char *path, double tick, int64_t bars, struct market **out, struct fh_status *st)
{
	struct market *all = NULL;
	int code = market_load(path, tick, &all, st);

	if (code || all->bars == bars) {
		*out = all;
		return code;
	}
	code = market_prefix(all, bars, out, st);
	market_unref(all);
	return code;
}

static void load_work(uv_work_t *w)
{
	struct resident *r = w->data;

	r->code = dataset_read(r->path, r->tick, r->bars, &r->market, &r->st);
	if (!r->code && strcmp(r->market->hash, r->hash)) {
		market_unref(r->market);
		r->market = NULL;
		r->code = fh_fail(&r->st, FH_CORRUPT, "%s holds other bars than were registered", r->path);
	}
	if (!r->code)
		market_leave_out_gaps(r->market, r->max_gap);
}

static void loaded(uv_work_t *w, int status)
{
	struct resident *r = w->data;
	struct datasets *ds = r->ds;
	struct dataset *d = dataset_lookup(ds, r->name);

	r->loading = 0;
	ds->in_flight--;
	if (r->code) {
		log_status(LOG_WARN, "data set not loaded", &r->st);
		if (d && dataset_bars_of(d, r->hash) && (r->code == FH_CORRUPT || r->code == FH_NOT_FOUND))
			snprintf(d->broken, sizeof d->broken, "%s", r->st.text);
	} else {
		r->bytes = market_bytes(r->market);
		r->used = ++ds->use_clock;
		ds->resident_bytes += r->bytes;
	}
	while (r->waiting) {
		struct waiting *next = r->waiting->next;

		ds->waiting--;
		r->waiting->done(r->waiting->arg, r->code, r->code ? NULL : market_ref(r->market), &r->st);
		free(r->waiting);
		r->waiting = next;
	}
	if (r->code || r->forgotten)
		resident_remove(ds, r);
	evict(ds);
}

static void wait_for(struct resident *r, dataset_loaded done, void *arg)
{
	struct waiting **p = &r->waiting, *w = need(calloc(1, sizeof *w));

	while (*p)
		p = &(*p)->next;
	*p = w;
	w->done = done;
	w->arg = arg;
	r->ds->waiting++;
}

static struct resident *load(struct datasets *ds, const struct dataset *d, const char *hash, double tick, double max_gap)
{
	struct resident *r = need(calloc(1, sizeof *r));

	r->ds = ds;
	r->tick = tick;
	r->max_gap = max_gap;
	r->loading = 1;
	r->work.data = r;
	snprintf(r->name, sizeof r->name, "%s", d->name);
	snprintf(r->hash, sizeof r->hash, "%s", hash);
	r->bars = dataset_bars_of(d, hash);
	dataset_path(ds, d->name, r->path, sizeof r->path);
	r->next = ds->resident;
	ds->resident = r;
	ds->in_flight++;
	uv_queue_work(ds->cfg.loop, &r->work, load_work, loaded);
	return r;
}

static void acquire(struct datasets *ds, const char *name, const char *hash, double tick, double max_gap, dataset_loaded done,
		    void *arg)
{
	struct fh_status st = FH_STATUS_INIT;
	const struct dataset *d = NULL;
	struct resident *r;
	int code;

	if (ds->stopping)
		code = fh_fail(&st, FH_UNAVAILABLE, "the daemon stops");
	else if (ds->waiting >= DATASET_WAITING_MAX)
		code = fh_fail(&st, FH_EXHAUSTED, "%d calls and jobs wait for data sets to be read", DATASET_WAITING_MAX);
	else
		code = datasets_need(ds, name, &d, &st);
	if (!hash || !hash[0])
		hash = code ? "" : d->hash;
	if (!code && !dataset_bars_of(d, hash))
		code = fh_fail_field(&st, FH_CONFLICT, "data.dataset", "data set \"%s\" has other bars now (%.12s) than before (%.12s)", name,
				     d->hash, hash);
	if (code) {
		deliver(ds, done, arg, NULL, code, &st);
		return;
	}
	tick = effective_tick(d, tick);
	r = resident_find(ds, hash, tick, max_gap);
	if (r)
		r->used = ++ds->use_clock;
	if (r && !r->loading)
		deliver(ds, done, arg, market_ref(r->market), 0, NULL);
	else
		wait_for(r ? r : load(ds, d, hash, tick, max_gap), done, arg);
}

void datasets_acquire(struct datasets *ds, const char *name, const char *hash, double tick, dataset_loaded done, void *arg)
{
	acquire(ds, name, hash, tick, 0, done, arg);
}

void datasets_acquire_for(struct datasets *ds, const char *name, const char *hash, const struct fh_spec *spec, dataset_loaded done,
			  void *arg)
{
	double max_gap = spec->env.gap_returns == FH_GAP_RETURNS_YES ? 0 : spec->env.max_gap;

	acquire(ds, name, hash, spec->env.tick, max_gap, done, arg);
}

/* ---------------------------------------------------------------- for the registry */

void cache_put(struct datasets *ds, const struct dataset *d, struct market *m)
{
	struct resident *r;

	if (resident_find(ds, d->hash, m->tick, 0)) {
		market_unref(m);
		return;
	}
	r = need(calloc(1, sizeof *r));
	r->ds = ds;
	r->tick = m->tick;
	r->market = m;
	r->bytes = market_bytes(m);
	r->used = ++ds->use_clock;
	snprintf(r->name, sizeof r->name, "%s", d->name);
	snprintf(r->hash, sizeof r->hash, "%s", d->hash);
	r->next = ds->resident;
	ds->resident = r;
	ds->resident_bytes += r->bytes;
	evict(ds);
}

void cache_forget(struct datasets *ds, const char *name)
{
	for (struct resident *r = ds->resident, *next; r; r = next) {
		next = r->next;
		if (strcmp(r->name, name))
			continue;
		if (r->loading)
			r->forgotten = 1;
		else
			resident_remove(ds, r);
	}
}

void cache_start(struct datasets *ds)
{
	ds->delivery_end = &ds->delivery;
	ds->async.data = ds;
	uv_async_init(ds->cfg.loop, &ds->async, on_async);
}

static void on_closed(uv_handle_t *h)
{
	((struct datasets *)h->data)->in_flight--;
}

void cache_stop(struct datasets *ds)
{
	deliver_all(ds);
	ds->in_flight++;
	uv_close((uv_handle_t *)&ds->async, on_closed);
}

void cache_free(struct datasets *ds)
{
	while (ds->resident)
		resident_remove(ds, ds->resident);
}

void datasets_stats(const struct datasets *ds, struct datasets_stats *out)
{
	memset(out, 0, sizeof *out);
	out->registered = (uint32_t)ds->sets;
	for (size_t i = 0; i < ds->sets; i++)
		out->broken += ds->set[i]->broken[0] != 0;
	for (const struct resident *r = ds->resident; r; r = r->next)
		out->resident += r->market != NULL;
	out->resident_bytes = ds->resident_bytes;
	out->uploads = ds->uploads;
	out->upload_bytes = ds->upload_bytes;
}
