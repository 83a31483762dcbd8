/* See checkpoints.h. Entries are kept in order of job, then age; an entry that is dropped while somebody reads its file stays in
 * memory, found by nobody, until the last reader has let go. */
#include "daemon/checkpoints_internal.h"
#include "daemon/crashpoint.h"
#include "daemon/log.h"
#include "daemon/need.h"
#include "daemon/store.h"
#include "proto/status.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void checkpoint_file_name(const char *id, char file[FILE_NAME_MAX])
{
	snprintf(file, FILE_NAME_MAX, "%s" FILES_SUFFIX, id);
}

void checkpoints_path(const struct checkpoints *cs, const char *id, char *path, size_t size)
{
	snprintf(path, size, "%s/%s" FILES_SUFFIX, cs->dir, id);
}

/* ---------------------------------------------------------------- the list */

/* Index of the first entry of `job` or behind. */
static size_t lower(const struct checkpoints *cs, uint64_t job)
{
	size_t lo = 0, hi = cs->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (cs->entry[mid]->c.job < job)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Ids begin with the number of their job. */
struct entry *entry_find(const struct checkpoints *cs, const char *id)
{
	uint64_t job = strtoull(id, NULL, 10);

	for (size_t i = lower(cs, job); i < cs->n && cs->entry[i]->c.job == job; i++)
		if (!strcmp(cs->entry[i]->c.id, id))
			return cs->entry[i];
	return NULL;
}

struct entry *entry_add(struct checkpoints *cs, const struct checkpoint *c)
{
	struct entry *e = need(calloc(1, sizeof *e));
	size_t i = lower(cs, c->job + 1); /* behind the job's others: the newest */

	e->c = *c;
	if (cs->n == cs->room) {
		cs->room = cs->room ? cs->room * 2 : 32;
		cs->entry = need(realloc(cs->entry, cs->room * sizeof *cs->entry));
	}
	memmove(&cs->entry[i + 1], &cs->entry[i], (cs->n++ - i) * sizeof *cs->entry);
	cs->entry[i] = e;
	return e;
}

void entry_remove(struct checkpoints *cs, struct entry *e)
{
	size_t i = lower(cs, e->c.job);

	while (cs->entry[i] != e)
		i++;
	memmove(&cs->entry[i], &cs->entry[i + 1], (--cs->n - i) * sizeof *cs->entry);
	free(e);
}

static int visible(const struct entry *e)
{
	return !e->writing && !e->dropping && !e->gone;
}

const struct checkpoint *checkpoints_find(const struct checkpoints *cs, const char *id)
{
	struct entry *e = id ? entry_find(cs, id) : NULL;

	return e && visible(e) ? &e->c : NULL;
}

const struct checkpoint *checkpoints_latest(const struct checkpoints *cs, uint64_t job)
{
	for (size_t i = lower(cs, job + 1); i > 0 && cs->entry[i - 1]->c.job == job; i--)
		if (visible(cs->entry[i - 1]) && !cs->entry[i - 1]->c.missing)
			return &cs->entry[i - 1]->c;
	return NULL;
}

size_t checkpoints_list(const struct checkpoints *cs, uint64_t job, const struct checkpoint **out, size_t max)
{
	size_t n = 0;

	for (size_t i = job ? lower(cs, job) : 0; i < cs->n && (!job || cs->entry[i]->c.job == job); i++) {
		if (!visible(cs->entry[i]))
			continue;
		if (n < max)
			out[n] = &cs->entry[i]->c;
		n++;
	}
	return n;
}

/* ---------------------------------------------------------------- removal: row, then file */

static void remove_file(struct checkpoints *cs, struct entry *e)
{
	char file[FILE_NAME_MAX];

	checkpoint_file_name(e->c.id, file);
	entry_remove(cs, e);
	files_remove(cs->cfg.loop, cs->dir, file);
}

void checkpoints_hold(struct checkpoints *cs, const char *id)
{
	struct entry *e = entry_find(cs, id);

	if (e)
		e->holds++;
}

void checkpoints_release(struct checkpoints *cs, const char *id)
{
	struct entry *e = entry_find(cs, id);

	if (e && e->holds && !--e->holds && e->gone)
		remove_file(cs, e);
}

struct removal { struct checkpoints *cs; size_t n; checkpoint_done done; void *arg; char id[][FH_NAME_MAX]; };

static void rows_removed(void *arg, int code, const struct fh_status *st)
{
	struct removal *r = arg;
	struct checkpoint last = {.id = ""};

	FHD_CRASH_POINT("checkpoint-row-dropped");
	if (code)
		log_status(LOG_WARN, "checkpoints stay", st);
	for (size_t i = 0; i < r->n; i++) {
		struct entry *e = entry_find(r->cs, r->id[i]);

		assert(e); /* it stays until its row has gone */
		e->dropping = 0;
		last = e->c;
		e->gone = !code;
		if (e->gone && !e->holds)
			remove_file(r->cs, e);
	}
	r->cs->in_flight--;
	if (r->done)
		r->done(r->arg, code, &last, st);
	free(r);
}

static void remove_entries(struct checkpoints *cs, struct entry **e, size_t n, checkpoint_done done, void *arg)
{
	struct removal *r = need(calloc(1, sizeof *r + n * FH_NAME_MAX));
	struct store_txn *t = store_begin(cs->cfg.store);

	*r = (struct removal){.cs = cs, .n = n, .done = done, .arg = arg};
	for (size_t i = 0; i < n; i++) {
		e[i]->dropping = 1;
		memcpy(r->id[i], e[i]->c.id, FH_NAME_MAX);
		store_drop_checkpoint(t, e[i]->c.id);
	}
	cs->in_flight++;
	store_commit(cs->cfg.store, t, rows_removed, r);
}

static int needed(struct checkpoints *cs, const char *id, char by[FH_NAME_MAX])
{
	by[0] = 0;
	return cs->cfg.needed && cs->cfg.needed(cs->cfg.arg, id, by);
}

#define PRUNE_MAX 64 /* in one go; the rest with the next checkpoint */
void checkpoints_prune(struct checkpoints *cs, uint64_t job, int64_t keep)
{
	const struct checkpoint *latest = checkpoints_latest(cs, job);
	struct entry *victim[PRUNE_MAX];
	char by[FH_NAME_MAX];
	int64_t unpinned = 0;
	size_t n = 0;

	for (size_t i = lower(cs, job); i < cs->n && cs->entry[i]->c.job == job; i++)
		unpinned += visible(cs->entry[i]) && !cs->entry[i]->c.pinned;
	for (size_t i = lower(cs, job); keep > 0 && i < cs->n && cs->entry[i]->c.job == job && unpinned > keep && n < PRUNE_MAX; i++) {
		struct entry *e = cs->entry[i];

		if (!visible(e) || e->c.pinned || &e->c == latest || needed(cs, e->c.id, by))
			continue;
		victim[n++] = e;
		unpinned--;
	}
	if (n)
		remove_entries(cs, victim, n, NULL, NULL);
}

void checkpoints_drop(struct checkpoints *cs, const char *id, checkpoint_done done, void *arg)
{
	struct entry *e = id ? entry_find(cs, id) : NULL;
	struct fh_status st = FH_STATUS_INIT;
	char by[FH_NAME_MAX];

	if (!e || !visible(e))
		fh_fail_field(&st, FH_NOT_FOUND, "checkpoint", "there is no checkpoint \"%.64s\"", id ? id : "");
	else if (cs->stopping)
		fh_fail(&st, FH_UNAVAILABLE, "the daemon stops");
	else if (needed(cs, id, by))
		fh_fail_field(&st, FH_CONFLICT, "checkpoint", "job \"%s\" would go on from checkpoint %s: stop it first", by, id);
	if (!e || st.code)
		done(arg, st.code, NULL, &st);
	else
		remove_entries(cs, &e, 1, done, arg);
}

/* ---------------------------------------------------------------- life */

int checkpoints_new(const struct checkpoints_config *cfg, struct checkpoints **out, struct fh_status *st)
{
	struct checkpoints *cs;
	int code = files_folder(cfg->dir, st);

	if (code)
		return code;
	cs = need(calloc(1, sizeof *cs));
	cs->cfg = *cfg;
	cs->dir = need(strdup(cfg->dir));
	cs->cfg.dir = cs->dir;
	cs->queue_end = &cs->queue;
	*out = cs;
	return 0;
}

static int load_row(void *arg, const struct store_checkpoint *r)
{
	struct checkpoints *cs = arg;
	struct checkpoint c = {.job = r->job, .step = r->step, .created_ns = r->created_ns, .bytes = r->bytes, .pinned = r->pinned};
	char path[PATH_MAX];
	struct stat s;

	snprintf(c.id, sizeof c.id, "%s", r->id);
	snprintf(c.reason, sizeof c.reason, "%s", r->reason);
	snprintf(c.sha256, sizeof c.sha256, "%s", r->sha256);
	checkpoints_path(cs, c.id, path, sizeof path);
	c.missing = stat(path, &s) || (uint64_t)s.st_size != c.bytes;
	if (c.missing)
		log_warn("checkpoint unusable: its file is gone or has another size", "checkpoint=%s file=%s", c.id, log_quote(path));
	entry_add(cs, &c);
	return 0;
}

static int known(void *arg, const char *name)
{
	return entry_find(arg, name) != NULL;
}

int checkpoints_load(struct checkpoints *cs, struct fh_status *st)
{
	int code = store_load_checkpoints(cs->cfg.store, load_row, cs, st);

	if (!code)
		files_sweep(cs->dir, store_fresh(cs->cfg.store), known, cs);
	return code;
}

void checkpoints_stop(struct checkpoints *cs)
{
	if (cs)
		cs->stopping = 1;
}

int checkpoints_busy(const struct checkpoints *cs)
{
	return cs->in_flight;
}

void checkpoints_free(struct checkpoints *cs)
{
	if (!cs)
		return;
	assert(!cs->in_flight);
	for (size_t i = 0; i < cs->n; i++)
		free(cs->entry[i]);
	free(cs->entry);
	free(cs->dir);
	free(cs);
}
