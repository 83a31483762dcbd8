/* From bars to a registered data set, and back. See dataset.h.
 *
 * One registration is one struct: the pool makes what is missing of bars (synth), checks, features, hash and file; then the loop writes
 * the row; then the set can be found. Between start and end its name is taken, so that two clients never write one file. */
#include "daemon/dataset.h"
#include "daemon/dataset_internal.h"
#include "daemon/clock.h"
#include "daemon/crashpoint.h"
#include "daemon/files.h"
#include "daemon/log.h"
#include "daemon/need.h"
#include "daemon/store.h"
#include "gpu/synth.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- checks of single bars */

static int bad(struct fh_status *st, const char *column, int64_t bar, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int bad(struct fh_status *st, const char *column, int64_t bar, const char *fmt, ...)
{
	char field[FH_FIELD_MAX], text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	snprintf(field, sizeof field, "%s[%lld]", column, (long long)bar);
	return fh_fail_field(st, FH_INVALID, field, "bar %lld: %s", (long long)bar, text);
}

static int check_prices(const struct market_bars *b, int64_t i, int64_t bar, struct fh_status *st)
{
	static const char *const name[4] = {"open", "high", "low", "close"};
	double p[4] = {b->open[i], b->high[i], b->low[i], b->close[i]}, volume = b->volume ? b->volume[i] : 0;

	for (int k = 0; k < 4; k++)
		if (!(fabs(p[k]) <= MARKET_PRICE_MAX))
			return bad(st, name[k], bar, "%s is %g, not a number within +-%g", name[k], p[k], MARKET_PRICE_MAX);
	if (!(volume >= 0 && volume <= MARKET_VOLUME_MAX))
		return bad(st, "volume", bar, "volume is %g, not in [0, %g]", volume, MARKET_VOLUME_MAX);
	if (p[1] < fmax(p[0], p[3]))
		return bad(st, "high", bar, "high %.12g is below open %.12g or close %.12g", p[1], p[0], p[3]);
	if (p[2] > fmin(p[0], p[3]))
		return bad(st, "low", bar, "low %.12g is above open %.12g or close %.12g", p[2], p[0], p[3]);
	return 0;
}

int dataset_check_bars(const struct market_bars *b, int64_t base, const int64_t *before, struct fh_status *st)
{
	for (int64_t i = 0; i < b->bars; i++) {
		int code;

		if (b->ts[i] <= -MARKET_TS_MAX || b->ts[i] >= MARKET_TS_MAX)
			return bad(st, "ts", base + i, "time %lld ns is beyond the years 1824 to 2116", (long long)b->ts[i]);
		if (i ? b->ts[i] <= b->ts[i - 1] : before && b->ts[0] <= *before)
			return bad(st, "ts", base + i, "its time %lld ns is not after that of the bar before", (long long)b->ts[i]);
		if ((code = check_prices(b, i, base + i, st)))
			return code;
	}
	return 0;
}

/* ---------------------------------------------------------------- the work (pool) */

static struct market_bars view(const struct market *m)
{
	return (struct market_bars){m->bars, m->ts, m->open, m->high, m->low, m->close, m->volume};
}

static int make_bars(struct registration *r)
{
	int code = market_new(r->synth.bars, r->origin.tick, NULL, 0, &r->market, &r->st);
	struct market *m = r->market;
	struct market_bars b;

	if (!code)
		code = synth_bars(&r->synth, m->ts, m->open, m->high, m->low, m->close, m->volume, &r->st);
	if (code)
		return code;
	b = view(m);
	return dataset_check_bars(&b, 0, NULL, &r->st);
}

static int compare(struct registration *r)
{
	const char *given = r->origin.hash;

	if (r->origin.append)
		return 0;

	if (given[0] && strcmp(given, r->market->hash))
		return fh_fail_field(&r->st, FH_CORRUPT, "hash", "the bars that came have the hash %.16s, the client's had %.16s",
				     r->market->hash, given);
	if (r->there[0] && strcmp(r->there, r->market->hash))
		return fh_fail_field(&r->st, FH_CONFLICT, "name", "data set \"%s\" holds other bars (hash %.16s, these have %.16s): "
				     "drop it first or take another name", r->origin.name, r->there, r->market->hash);
	return 0;
}

static int save(struct registration *r)
{
	const char *meta[] = {"name", r->origin.name, "source", r->origin.source, NULL};
	struct stat s;
	int code = r->growing ? growing_file(r->growing, &r->st) : 1;

	if (code > 0)
		code = market_save(r->market, r->path, meta, &r->st);
	if (code)
		return code;
	if (stat(r->path, &s))
		return fh_fail(&r->st, FH_IO, "%s vanished", r->path);
	r->info = dataset_info_make(r->market, &r->origin, r->created_ns, (uint64_t)s.st_size, &r->info_bytes);
	return r->info ? 0 : fh_fail(&r->st, FH_EXHAUSTED, "no memory for data set %s", r->origin.name);
}

/* What an upload brought was checked when it came, and is here. */
static int assemble(struct registration *r)
{
	if (r->market)
		return 0;
	return r->bars.bars ? registration_append(r) : make_bars(r);
}

static void register_work(uv_work_t *w)
{
	struct registration *r = w->data;

	r->code = assemble(r);
	free((int64_t *)r->bars.ts);
	r->bars.ts = NULL;
	if (!r->code)
		r->code = market_seal(r->market, &r->st);
	if (!r->code)
		r->code = compare(r);
	if (!r->code)
		r->code = r->growing ? growing_features(r->growing, &r->st) : market_grow(r->market, r->market->bars, &r->st);
	if (!r->code && r->write)
		r->code = save(r);
}

/* ---------------------------------------------------------------- the rest (loop) */

static int registering(const struct datasets *ds, const char *name)
{
	for (struct registration *r = ds->registering; r; r = r->next)
		if (!strcmp(r->origin.name, name))
			return 1;
	return 0;
}

const char *registering_hash(const struct datasets *ds, const char *name)
{
	for (const struct registration *r = ds->registering; r; r = r->next)
		if (!strcmp(r->origin.name, name))
			return r->origin.hash;
	return NULL;
}

void registration_of_upload(struct datasets *ds, const void *arg, const char *upload)
{
	for (struct registration *r = ds->registering; r; r = r->next)
		if (r->arg == arg)
			snprintf(r->upload, sizeof r->upload, "%s", upload);
}

int registration_abort(struct datasets *ds, const char *upload)
{
	for (struct registration *r = ds->registering; r; r = r->next)
		if (r->upload[0] && !strcmp(r->upload, upload) && !r->row) {
			r->aborted = 1;
			return 1;
		}
	return 0;
}

static void register_done(uv_work_t *w, int status);

/* Hands what waits to the pool, a few at a time: the pool's other threads stay free for checkpoints and loads. */
static void run_next(struct datasets *ds)
{
	int running = 0;

	for (struct registration *r = ds->registering; r; r = r->next)
		running += r->started;
	for (struct registration *r = ds->registering; r && running < REGISTRATIONS_RUNNING; r = r->next) {
		if (r->started)
			continue;
		r->started = 1;
		running++;
		uv_queue_work(ds->cfg.loop, &r->work, register_work, register_done);
	}
}

static void finish(struct registration *r, const struct dataset *d, int existed)
{
	struct registration **p = &r->ds->registering;
	struct datasets *ds = r->ds;

	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	ds->in_flight--;
	ds->upload_bytes -= r->bytes;
	run_next(ds);
	if (r->code)
		log_status(LOG_INFO, "data set refused", &r->st);
	else if (!existed)
		log_info("data set registered", "dataset=%s bars=%lld hash=%.16s", d->name, (long long)d->bars, d->hash);
	r->done(r->arg, r->code, r->code ? NULL : d, existed, &r->st);
	market_unref(r->market);
	growing_unref(r->growing);
	free(r->info);
	origin_release(&r->origin);
	free(r);
}

/* The file of a set that is not registered after all. After an append it stays: the registered bars are its beginning. */
static void forget_file(const struct registration *r)
{
	char file[FH_NAME_MAX + 16];

	if (r->there[0])
		return;
	snprintf(file, sizeof file, "%s.safetensors", r->origin.name);
	files_remove(r->ds->cfg.loop, r->ds->dir, file);
}

static void row_written(void *arg, int code, const struct fh_status *st)
{
	struct registration *r = arg;
	struct dataset *d = NULL;

	if (!code && !(d = dataset_put(r->ds, r->origin.name, r->market->hash, r->info, r->info_bytes)))
		code = fh_fail(&r->st, FH_INTERNAL, "data set %s cannot be read back", r->origin.name);
	else if (code)
		r->st = *st;
	r->code = code;
	if (d) {
		cache_put(r->ds, d, r->market);
		r->market = NULL;
	} else {
		forget_file(r);
	}
	finish(r, d, 0);
}

static void register_done(uv_work_t *w, int status)
{
	struct registration *r = w->data;
	struct store_txn *t;

	FHD_CRASH_POINT("dataset-after-file");
	if (!r->code && r->aborted && r->write) {
		r->code = fh_fail(&r->st, FH_INTERRUPTED, "the upload of data set \"%s\" was given up", r->origin.name);
		forget_file(r);
	}
	if (r->code || !r->write) {
		finish(r, dataset_lookup(r->ds, r->origin.name), !r->code);
		return;
	}
	r->row = 1;
	t = store_begin(r->ds->cfg.store);
	store_put_dataset(t, &(struct store_dataset){r->origin.name, r->market->hash, r->created_ns, r->info, r->info_bytes});
	store_commit(r->ds->cfg.store, t, row_written, r);
}

/* The checks that need no bars. `bytes`: what the registration holds until it ends, 0 when it is counted already. */
static int may_register(struct datasets *ds, const struct dataset_origin *o, uint64_t bytes, struct dataset **there,
			struct fh_status *st)
{
	int open = 0;

	for (const struct registration *r = ds->registering; r; r = r->next)
		open++;
	*there = dataset_lookup(ds, o->name);
	if (ds->stopping)
		return fh_fail(st, FH_UNAVAILABLE, "the daemon stops");
	if (registering(ds, o->name))
		return fh_fail_field(st, FH_CONFLICT, "name", "data set \"%s\" is being registered by somebody else", o->name);
	if (open >= REGISTRATIONS_MAX)
		return fh_fail(st, FH_EXHAUSTED, "%d data sets are being registered, try again", REGISTRATIONS_MAX);
	if (ds->upload_bytes + bytes > UPLOAD_BYTES_MAX)
		return fh_fail_field(st, FH_EXHAUSTED, "bars", "this needs %llu MiB, bars that are not registered yet may hold %llu MiB "
				     "together", (unsigned long long)bytes >> 20, (unsigned long long)UPLOAD_BYTES_MAX >> 20);
	if (*there && (*there)->dropping)
		return fh_fail_field(st, FH_CONFLICT, "name", "data set \"%s\" is being dropped", o->name);
	if (bytes && !*there && dataset_check_size(ds, (int64_t)(bytes / BAR_BYTES), 0, st))
		return st ? st->code : FH_EXHAUSTED;
	if (o->append)
		return dataset_may_append(ds, o, st);
	if (!*there && ds->sets >= DATASETS_MAX)
		return fh_fail(st, FH_EXHAUSTED, "%d data sets are registered, no more are allowed", DATASETS_MAX);
	return 0;
}

/* Either bars that came (a, owned from here) or those that s describes. */
static void start(struct datasets *ds, const struct dataset_origin *o, int64_t bars, const struct arrived *a, const struct synth *s,
		  dataset_registered done, void *arg)
{
	struct fh_status st = FH_STATUS_INIT;
	struct registration *r = need(calloc(1, sizeof *r));
	uint64_t bytes = (uint64_t)bars * BAR_BYTES;
	struct registration **end = &ds->registering;
	struct dataset *there;
	int code = may_register(ds, o, s ? bytes : 0 /* an upload's are counted */, &there, &st);

	if (!code)
		code = origin_copy(&r->origin, o, &st);
	if (code) {
		if (a) {
			growing_unref(a->g);
			market_unref(a->m);
			free(a->m ? NULL : (int64_t *)a->b.ts);
		}
		free(r);
		done(arg, code, NULL, 0, &st);
		return;
	}
	r->ds = ds;
	r->created_ns = time_now_ns();
	if (s)
		r->synth = *s;
	if (a) {
		r->market = a->m;
		r->growing = a->g;
		if (!a->m)
			r->bars = a->b;
	}
	if (o->append)
		registration_inherit(r, there);
	r->write = !there || there->broken[0] || o->append; /* a set whose file was lost is written again from the same bars */
	snprintf(r->there, sizeof r->there, "%s", there ? there->hash : "");
	dataset_path(ds, o->name, r->path, sizeof r->path);
	r->done = done;
	r->arg = arg;
	r->bytes = bytes;
	r->work.data = r;
	while (*end)
		end = &(*end)->next;
	*end = r;
	ds->in_flight++;
	ds->upload_bytes += bytes;
	run_next(ds);
}

/* Those that have not begun never will. */
void registrations_stop(struct datasets *ds)
{
	for (struct registration *r = ds->registering, *next; r; r = next) {
		next = r->next;
		if (r->started)
			continue;
		r->started = 1; /* finish() must not begin it */
		r->code = fh_fail(&r->st, FH_UNAVAILABLE, "the daemon stops");
		free((int64_t *)r->bars.ts);
		finish(r, NULL, 0);
	}
}

void datasets_register(struct datasets *ds, const struct dataset_origin *o, const struct arrived *bars, dataset_registered done, void *arg)
{
	start(ds, o, bars->b.bars, bars, NULL, done, arg);
}

void datasets_synth(struct datasets *ds, const struct dataset_origin *o, const struct synth *s, dataset_registered done, void *arg)
{
	start(ds, o, s->bars, NULL, s, done, arg);
}

/* ---------------------------------------------------------------- dropping */

struct drop { struct datasets *ds; struct dataset *d; dataset_registered done; void *arg; };

static void row_dropped(void *arg, int code, const struct fh_status *st)
{
	struct drop *x = arg;
	char file[FH_NAME_MAX + 16];

	x->d->dropping = 0;
	x->ds->in_flight--;
	if (!code) {
		FHD_CRASH_POINT("dataset-row-dropped");
		log_info("data set dropped", "dataset=%s", x->d->name);
		snprintf(file, sizeof file, "%s.safetensors", x->d->name);
		cache_forget(x->ds, x->d->name);
		dataset_remove(x->ds, x->d);
		files_remove(x->ds->cfg.loop, x->ds->dir, file);
	}
	x->done(x->arg, code, NULL, 0, st);
	free(x);
}

void datasets_drop(struct datasets *ds, const char *name, dataset_registered done, void *arg)
{
	struct dataset *d = dataset_lookup(ds, name);
	unsigned users = d && ds->cfg.jobs_using ? ds->cfg.jobs_using(ds->cfg.arg, name) : 0;
	struct fh_status st = FH_STATUS_INIT;
	struct store_txn *t;
	struct drop *x;
	int code = 0;

	if (!d || d->dropping)
		code = dataset_missing(ds, name, "name", &st);
	else if (users)
		code = fh_fail_field(&st, FH_CONFLICT, "name", "data set \"%s\" is used by %u live job%s", name, users, users == 1 ? "" : "s");
	else if (registering(ds, name))
		code = fh_fail_field(&st, FH_CONFLICT, "name", "data set \"%s\" is being registered right now", name);
	if (!d || code) {
		done(arg, code, NULL, 0, &st);
		return;
	}
	x = need(calloc(1, sizeof *x));
	*x = (struct drop){ds, d, done, arg};
	d->dropping = 1;
	ds->in_flight++;
	t = store_begin(ds->cfg.store);
	store_drop_dataset(t, name);
	store_commit(ds->cfg.store, t, row_dropped, x);
}
