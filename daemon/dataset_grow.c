/* What the pool makes of an upload's bars while the next ones come: their features, and the file that they will be in. See dataset.h.
 *
 * The loop says how many bars there are; each part has at most one turn of the pool at a time, for what came since its last one. The
 * registration makes what is missing and takes the file over. Invariant: a file has a temporary name until the registration has compared
 * the hash of all bars with the one in it; whatever ends before that takes the file away. */
#include "daemon/dataset.h"
#include "daemon/dataset_internal.h"
#include "daemon/need.h"
#include "gpu/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROW_BARS 4096 /* fewer new ones are not worth a turn of the pool, nor a short set a file before its end */

/* ---------------------------------------------------------------- pool, under the part's lock */

static void grow_features(struct growing *g, int64_t to)
{
	market_grow(g->market, to, NULL); /* without memory for it the registration tries again, and says so */
}

static void grow_file(struct growing *g, int64_t to)
{
	const char *const meta[] = {"name", g->name, "source", g->source, NULL};

	if (g->no_file || to <= g->written)
		return;
	if (!g->file && market_file_begin(g->market, g->hash, g->path, g->id, meta, &g->file, NULL)) {
		g->file = NULL;
		g->no_file = 1;
		return;
	}
	if (market_file_put(g->market, g->file, g->written, to, NULL)) {
		st_writer_abandon(g->file);
		g->file = NULL;
		g->no_file = 1;
		return;
	}
	g->written = to;
}

static void part_work(uv_work_t *w)
{
	struct growth *p = w->data;

	uv_mutex_lock(&p->lock);
	p->step(p->of, p->to);
	uv_mutex_unlock(&p->lock);
}

int growing_features(struct growing *g, struct fh_status *st)
{
	struct growth *p = &g->growth[GROW_FEATURES];
	int code;

	uv_mutex_lock(&p->lock);
	code = market_grow(g->market, g->market->bars, st);
	uv_mutex_unlock(&p->lock);
	return code;
}

int growing_file(struct growing *g, struct fh_status *st)
{
	struct growth *p = &g->growth[GROW_FILE];
	int code = 1;

	uv_mutex_lock(&p->lock);
	if (g->file) {
		code = market_file_put(g->market, g->file, g->written, g->market->bars, st);
		if (code)
			st_writer_abandon(g->file);
		else
			code = st_writer_end(g->file, st);
	}
	g->file = NULL;
	g->no_file = 1;
	uv_mutex_unlock(&p->lock);
	return code;
}

/* ---------------------------------------------------------------- loop */

static void grow(struct growth *p);

static void part_done(uv_work_t *w, int status)
{
	struct growth *p = w->data;
	struct growing *g = p->of;

	p->working = 0;
	p->done = p->to;
	g->ds->in_flight--;
	if (g->refs > 1)
		grow(p);
	growing_unref(g);
}

static void grow(struct growth *p)
{
	struct growing *g = p->of;

	if (p->working || g->there - p->done < GROW_BARS)
		return;
	p->to = g->there;
	p->working = 1;
	g->refs++;
	g->ds->in_flight++;
	uv_queue_work(g->ds->cfg.loop, &p->work, part_work, part_done);
}

void growing_there(struct growing *g, int64_t bars)
{
	if (!g)
		return;
	g->there = bars;
	grow(&g->growth[GROW_FEATURES]);
	if (g->hash[0]) /* the file has it in its header */
		grow(&g->growth[GROW_FILE]);
}

struct growing *growing_new(struct datasets *ds, const struct upload *u)
{
	static void (*const step[GROWTHS])(struct growing *g, int64_t to) = {grow_features, grow_file};
	struct growing *g;

	if (ds->growing >= REGISTRATIONS_RUNNING)
		return NULL;
	g = need(calloc(1, sizeof *g));
	g->refs = 1;
	g->ds = ds;
	g->market = market_ref(u->market);
	for (int i = 0; i < GROWTHS; i++) {
		g->growth[i].of = g;
		g->growth[i].step = step[i];
		g->growth[i].work.data = &g->growth[i];
		uv_mutex_init(&g->growth[i].lock);
	}
	snprintf(g->name, sizeof g->name, "%s", u->origin.name);
	snprintf(g->source, sizeof g->source, "%s", u->origin.source);
	snprintf(g->hash, sizeof g->hash, "%s", u->origin.hash);
	snprintf(g->id, sizeof g->id, "%s", u->id);
	dataset_path(ds, g->name, g->path, sizeof g->path);
	ds->growing++;
	return g;
}

static void free_growing(struct growing *g)
{
	for (int i = 0; i < GROWTHS; i++)
		uv_mutex_destroy(&g->growth[i].lock);
	market_unref(g->market);
	g->ds->growing--;
	free(g);
}

static void end_work(uv_work_t *w)
{
	struct growing *g = w->data;

	st_writer_abandon(g->file);
}

static void end_done(uv_work_t *w, int status)
{
	struct growing *g = w->data;

	g->ds->in_flight--;
	free_growing(g);
}

void growing_unref(struct growing *g)
{
	if (!g || --g->refs)
		return;
	if (!g->file) {
		free_growing(g);
		return;
	}
	g->end.data = g;
	g->ds->in_flight++;
	uv_queue_work(g->ds->cfg.loop, &g->end, end_work, end_done);
}
