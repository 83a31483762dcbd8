/* Uploads: bars that are still coming in. See dataset.h. Loop thread.
 *
 * Memory for all announced bars is reserved at the beginning and counted against UPLOAD_BYTES_MAX, so an upload that was begun can
 * also end. An upload that gets nothing for UPLOAD_IDLE_MS is thrown away. Bars are copied once, to where the market has them, and
 * dataset_grow.c makes features and file of those that are there while the next ones come, for REGISTRATIONS_RUNNING uploads at a time. */
#include "daemon/dataset.h"
#include "daemon/dataset_internal.h"
#include "daemon/log.h"
#include "daemon/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void upload_closed(uv_handle_t *h)
{
	struct upload *u = h->data;

	u->ds->in_flight--;
	free(u);
}

/* Takes it out of the list; the bars go with it unless somebody has taken them. */
static void upload_end(struct upload *u)
{
	struct datasets *ds = u->ds;
	struct upload **p = &ds->upload;

	while (*p != u)
		p = &(*p)->next;
	*p = u->next;
	ds->uploads--;
	ds->upload_bytes -= (uint64_t)u->bars * BAR_BYTES;
	growing_unref(u->growing);
	market_unref(u->market);
	free(u->block);
	origin_release(&u->origin);
	ds->in_flight++;
	uv_close((uv_handle_t *)&u->idle, upload_closed);
}

static void upload_idle(uv_timer_t *t)
{
	struct upload *u = t->data;

	log_info("idle upload thrown away", "dataset=%s upload=%s bars=%lld of=%lld", u->origin.name, u->id, (long long)u->next_bar,
		 (long long)u->bars);
	upload_end(u);
}

static struct upload *upload_find(struct datasets *ds, const char *id, struct fh_status *st)
{
	struct upload *u = ds->upload;

	while (u && strcmp(u->id, id ? id : ""))
		u = u->next;
	if (!u)
		fh_fail_field(st, FH_NOT_FOUND, "upload", "there is no open upload \"%.64s\" (idle ones end after %u s)", id ? id : "",
			      ds->cfg.upload_idle_ms / 1000);
	return u;
}

/* What can be said about the name before any bar has come. */
static int check_name(struct datasets *ds, const struct dataset_origin *o, const struct dataset **existed, struct fh_status *st)
{
	struct dataset *d = dataset_lookup(ds, o->name);
	const char *now = o->hash && o->hash[0] ? registering_hash(ds, o->name) : NULL;

	if (now && !strcmp(now, o->hash)) /* the answer to its commit was lost: nothing is sent twice */
		return fh_fail_field(st, FH_UNAVAILABLE, "name", "data set \"%s\" is being registered right now: try again", o->name);
	if (o->append)
		return dataset_may_append(ds, o, st);
	if (!d || d->broken[0])
		return 0;
	if (d->dropping)
		return fh_fail_field(st, FH_CONFLICT, "name", "data set \"%s\" is being dropped", o->name);
	if (o->hash && o->hash[0] && strcmp(o->hash, d->hash))
		return fh_fail_field(st, FH_CONFLICT, "name", "data set \"%s\" holds other bars (hash %.16s, these have %.16s): drop it "
				     "first or take another name", o->name, d->hash, o->hash);
	if (o->hash && o->hash[0])
		*existed = d;
	return 0;
}

/* `bars` more for a set that has `there` already, under the two settings. Bars that are coming in count with what their files will take. */
int dataset_check_size(const struct datasets *ds, int64_t bars, int64_t there, struct fh_status *st)
{
	uint64_t need = (uint64_t)bars * DATASET_FILE_BYTES, taken = ds->upload_bytes / BAR_BYTES * DATASET_FILE_BYTES;

	if (bars > ds->cfg.bars_max - there)
		return fh_fail_field(st, FH_INVALID, "bars", "%lld bars; a data set has up to %lld here (setting dataset_bars)",
				     (long long)(bars + there), (long long)ds->cfg.bars_max);
	for (size_t i = 0; i < ds->sets; i++)
		taken += ds->set[i]->info->bytes;
	if (ds->cfg.quota && need + taken > ds->cfg.quota)
		return fh_fail_field(st, FH_EXHAUSTED, "bars", "%lld bars need %llu bytes and %llu are taken: more than %llu (setting dataset_quota); "
				     "drop a data set", (long long)bars, (unsigned long long)need, (unsigned long long)taken,
				     (unsigned long long)ds->cfg.quota);
	return 0;
}

/* The open upload that a client with these bars goes on with. */
static struct upload *same_upload(const struct datasets *ds, const struct dataset_origin *o, int64_t bars)
{
	double tick = o->tick ? o->tick : DATASET_TICK_DEFAULT;
	struct upload *u = o->hash && o->hash[0] ? ds->upload : NULL;

	while (u && (strcmp(u->origin.name, o->name) || strcmp(u->origin.hash, o->hash) || u->bars != bars || u->origin.tick != tick ||
		     u->origin.append != o->append || strcmp(u->origin.base, o->base ? o->base : "")))
		u = u->next;
	return u;
}

static int check_room(struct datasets *ds, const struct dataset_origin *o, int64_t bars, struct fh_status *st)
{
	const struct dataset *d = o->append ? dataset_lookup(ds, o->name) : NULL;
	int append = o->append;

	if (ds->stopping)
		return fh_fail(st, FH_UNAVAILABLE, "the daemon stops");
	if (bars < (append ? 1 : 2) || bars > DATASET_BARS_MAX)
		return fh_fail_field(st, FH_INVALID, "bars", "%lld bar%s; a data set has 2 to %lld", (long long)bars, bars == 1 ? "" : "s",
				     (long long)DATASET_BARS_MAX);
	if (!append && ds->sets >= DATASETS_MAX)
		return fh_fail(st, FH_EXHAUSTED, "%d data sets are registered, no more are allowed", DATASETS_MAX);
	if (ds->uploads >= UPLOADS_MAX)
		return fh_fail(st, FH_EXHAUSTED, "%d uploads are open already", UPLOADS_MAX);
	if (ds->upload_bytes + (uint64_t)bars * BAR_BYTES > UPLOAD_BYTES_MAX)
		return fh_fail_field(st, FH_EXHAUSTED, "bars", "%lld bars need %lld MiB, open uploads may hold %llu MiB together",
				     (long long)bars, (long long)bars * BAR_BYTES >> 20, (unsigned long long)UPLOAD_BYTES_MAX >> 20);
	return dataset_check_size(ds, bars, d ? d->bars : 0, st);
}

/* Room for the bars. A first part of a set may be longer than the set that it makes with others, so an append's has none of its own. */
static int make_room(struct upload *u, struct fh_status *st)
{
	struct market *m = NULL;
	size_t n = (size_t)u->bars;

	if (u->origin.append) {
		u->ts = u->block = malloc(n * BAR_BYTES);
		if (!u->ts)
			return fh_fail(st, FH_EXHAUSTED, "no memory for %zu bars", n);
		for (size_t i = 0; i < 5; i++)
			u->column[i] = (double *)(void *)(u->ts + n) + i * n;
		return 0;
	}
	if (market_new(u->bars, u->origin.tick, u->origin.roll, (int64_t)u->origin.rolls, &m, st))
		return st->code;
	u->market = m;
	u->ts = m->ts;
	memcpy(u->column, (double *[5]){m->open, m->high, m->low, m->close, m->volume}, sizeof u->column);
	return 0;
}

int upload_begin(struct datasets *ds, const struct dataset_origin *o, int64_t bars, char id[UPLOAD_ID_MAX],
		 const struct dataset **existed, struct fh_status *st)
{
	struct upload *u;
	int code;

	*existed = NULL;
	if ((code = check_name(ds, o, existed, st)) || *existed)
		return code;
	u = same_upload(ds, o, bars);
	if (u) {
		uv_timer_start(&u->idle, upload_idle, ds->cfg.upload_idle_ms, 0);
		snprintf(id, UPLOAD_ID_MAX, "%s", u->id);
		return 0;
	}
	if ((code = check_room(ds, o, bars, st)))
		return code;
	u = need(calloc(1, sizeof *u));
	u->ds = ds;
	u->bars = bars;
	code = origin_copy(&u->origin, o, st);
	if (!code && (code = make_room(u, st)))
		origin_release(&u->origin);
	if (code) {
		free(u);
		return code;
	}
	/* with the daemon's start in it, so that an id of an earlier life names nothing */
	snprintf(u->id, sizeof u->id, "u%llx-%llu", (unsigned long long)(ds->started_ns >> 20),
		 (unsigned long long)++ds->upload_number);
	snprintf(id, UPLOAD_ID_MAX, "%s", u->id);
	if (u->market)
		u->growing = growing_new(ds, u);
	u->next = ds->upload;
	ds->upload = u;
	ds->uploads++;
	ds->upload_bytes += (uint64_t)bars * BAR_BYTES;
	u->idle.data = u;
	uv_timer_init(ds->cfg.loop, &u->idle);
	uv_timer_start(&u->idle, upload_idle, ds->cfg.upload_idle_ms, 0);
	return 0;
}

int64_t upload_next(const struct datasets *ds, const char *id)
{
	const struct upload *u = ds->upload;

	while (u && strcmp(u->id, id))
		u = u->next;
	return u ? u->next_bar : 0;
}

static const double *column(const struct market_bars *b, int i)
{
	const double *c[5] = {b->open, b->high, b->low, b->close, b->volume};

	return c[i];
}

/* A chunk that lies in what was taken: the answer to its first sending was lost. */
static int same_again(const struct upload *u, int64_t first, const struct market_bars *b)
{
	if (memcmp(u->ts + first, b->ts, (size_t)b->bars * 8))
		return 0;
	for (int i = 0; i < 5; i++)
		if (column(b, i) && memcmp(u->column[i] + first, column(b, i), (size_t)b->bars * 8))
			return 0;
	return 1;
}

int upload_chunk(struct datasets *ds, const char *id, int64_t first, const struct market_bars *b, int64_t *next,
		 struct fh_status *st)
{
	struct upload *u = upload_find(ds, id, st);
	int code;

	if (!u)
		return FH_NOT_FOUND;
	if (b->bars < 1 || b->bars > UPLOAD_CHUNK_BARS_MAX)
		return fh_fail_field(st, FH_INVALID, "ts", "%lld bars in a chunk, 1 to %d are allowed", (long long)b->bars,
				     UPLOAD_CHUNK_BARS_MAX);
	if (first < 0 || first > u->next_bar)
		return fh_fail_field(st, FH_CONFLICT, "first_bar", "first_bar is %lld, the upload continues at %lld", (long long)first,
				     (long long)u->next_bar);
	if (b->bars > u->bars - first)
		return fh_fail_field(st, FH_INVALID, "ts", "bars %lld to %lld, but %lld were announced", (long long)first,
				     (long long)(first + b->bars - 1), (long long)u->bars);
	uv_timer_start(&u->idle, upload_idle, ds->cfg.upload_idle_ms, 0);
	if (first < u->next_bar) {
		if (first + b->bars > u->next_bar || !same_again(u, first, b))
			return fh_fail_field(st, FH_CONFLICT, "first_bar", "bars %lld to %lld came already and were different",
					     (long long)first, (long long)(first + b->bars - 1));
		*next = u->next_bar;
		return 0;
	}
	if ((code = dataset_check_bars(b, first, first ? &u->ts[first - 1] : NULL, st)))
		return code;
	memcpy(u->ts + first, b->ts, (size_t)b->bars * 8);
	for (int i = 0; i < 5; i++) {
		if (column(b, i))
			memcpy(u->column[i] + first, column(b, i), (size_t)b->bars * 8);
		else
			memset(u->column[i] + first, 0, (size_t)b->bars * 8);
	}
	*next = u->next_bar = first + b->bars;
	growing_there(u->growing, u->next_bar);
	return 0;
}

void upload_commit(struct datasets *ds, const char *id, dataset_registered done, void *arg)
{
	struct fh_status st = FH_STATUS_INIT;
	struct upload *u = upload_find(ds, id, &st);
	struct arrived a;

	if (u && u->next_bar < u->bars)
		fh_fail_field(&st, FH_CONFLICT, "upload", "%lld of %lld bars have come", (long long)u->next_bar, (long long)u->bars);
	if (!u || st.code) {
		done(arg, st.code, NULL, 0, &st);
		return;
	}
	a = (struct arrived){u->market, u->growing, {u->bars, u->ts, u->column[0], u->column[1], u->column[2], u->column[3], u->column[4]}};
	u->market = NULL; /* the registration owns the bars now */
	u->growing = NULL;
	u->block = NULL;
	datasets_register(ds, &u->origin, &a, done, arg);
	registration_of_upload(ds, arg, u->id);
	upload_end(u);
}

int upload_abort(struct datasets *ds, const char *id, struct fh_status *st)
{
	struct upload *u;

	if (id && registration_abort(ds, id))
		return 0;
	u = upload_find(ds, id, st);
	if (!u)
		return FH_NOT_FOUND;
	upload_end(u);
	return 0;
}

void uploads_stop(struct datasets *ds)
{
	while (ds->upload)
		upload_end(ds->upload);
}
