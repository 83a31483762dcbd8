/* See checkpoints.h. Entries are kept in order of job, then age; an entry that is dropped while somebody reads its file stays in
 * memory, found by nobody, until the last reader has let go. */
#include "daemon/checkpoints.h"
#include "daemon/crashpoint.h"
#include "daemon/files.h"
#include "daemon/log.h"
#include "daemon/need.h"
#include "daemon/store.h"
#include "gpu/hash.h"
#include "proto/status.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_NAME_MAX (FH_NAME_MAX + sizeof FILES_SUFFIX)

struct entry {
	struct checkpoint c;
	unsigned holds;
	int writing;               /* its row is not durable yet */
	int dropping, gone;        /* its row is being removed; is removed */
};

struct write {
	struct write *next;
	struct checkpoints *cs;
	struct checkpoint c;
	struct entry *entry;       /* once the file is there */
	int64_t keep;
	struct st_image image;
	char path[PATH_MAX];
	uv_work_t work;
	int code;
	struct fh_status st;
	checkpoint_done done;
	void *arg;
};

struct checkpoints {
	struct checkpoints_config cfg;
	char *dir;
	struct entry **entry;
	size_t n, room;
	struct write *queue, **queue_end; /* the first one is being written */
	unsigned pending;
	int in_flight;             /* writes, reads and rows */
	int stopping;
};

static void file_name(const char *id, char file[FILE_NAME_MAX])
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
static struct entry *entry_find(const struct checkpoints *cs, const char *id)
{
	uint64_t job = strtoull(id, NULL, 10);

	for (size_t i = lower(cs, job); i < cs->n && cs->entry[i]->c.job == job; i++)
		if (!strcmp(cs->entry[i]->c.id, id))
			return cs->entry[i];
	return NULL;
}

static struct entry *entry_add(struct checkpoints *cs, const struct checkpoint *c)
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

static void entry_remove(struct checkpoints *cs, struct entry *e)
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

	file_name(e->c.id, file);
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

/* The oldest unpinned ones of a job beyond `keep`. */
#define PRUNE_MAX 64 /* in one go; the rest with the next checkpoint */
static void prune(struct checkpoints *cs, uint64_t job, int64_t keep)
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

/* ---------------------------------------------------------------- writing */

static void write_work(uv_work_t *w)
{
	struct write *x = w->data;

	if (x->code)
		return;
	x->code = hash_bytes(x->image.data, x->image.bytes, x->c.sha256, &x->st);
	if (!x->code)
		x->code = st_image_write(&x->image, x->path, &x->st);
}

static void next_write(struct checkpoints *cs);

static void write_finish(struct write *x, const struct checkpoint *c)
{
	struct checkpoints *cs = x->cs;

	cs->in_flight--;
	x->done(x->arg, x->code, c, &x->st);
	if (!x->code)
		prune(cs, x->c.job, x->keep);
	free(x);
}

static void row_written(void *arg, int code, const struct fh_status *st)
{
	struct write *x = arg;
	char file[FILE_NAME_MAX];

	if (code) {
		x->code = code;
		x->st = *st;
		file_name(x->c.id, file);
		entry_remove(x->cs, x->entry);
		files_remove(x->cs->cfg.loop, x->cs->dir, file);
		write_finish(x, NULL);
		return;
	}
	x->entry->writing = 0;
	log_info("checkpoint", "job=%llu checkpoint=%s bytes=%llu reason=%s", (unsigned long long)x->c.job, x->c.id,
		 (unsigned long long)x->c.bytes, x->c.reason);
	write_finish(x, &x->entry->c);
}

static void write_done(uv_work_t *w, int status)
{
	struct write *x = w->data;
	struct checkpoints *cs = x->cs;
	struct store_txn *t;

	FHD_CRASH_POINT("checkpoint-after-file");
	st_image_release(&x->image);
	cs->queue = x->next;
	if (!cs->queue)
		cs->queue_end = &cs->queue;
	cs->pending--;
	next_write(cs);
	if (x->code) {
		write_finish(x, NULL);
		return;
	}
	x->entry = entry_add(cs, &x->c);
	x->entry->writing = 1;
	if (cs->cfg.before_row)
		cs->cfg.before_row(cs->cfg.arg);
	t = store_begin(cs->cfg.store);
	store_put_checkpoint(t, &(struct store_checkpoint){x->c.id, x->c.job, x->c.step, x->c.created_ns, x->c.bytes, x->c.reason,
							   x->c.sha256, x->c.pinned});
	store_commit(cs->cfg.store, t, row_written, x);
}

static void next_write(struct checkpoints *cs)
{
	if (cs->queue)
		uv_queue_work(cs->cfg.loop, &cs->queue->work, write_work, write_done);
}

static int id_taken(const struct checkpoints *cs, const char *id)
{
	for (const struct write *w = cs->queue; w; w = w->next)
		if (!strcmp(w->c.id, id))
			return 1;
	return entry_find(cs, id) != NULL;
}

static void make_id(const struct checkpoints *cs, struct checkpoint *c)
{
	int n = snprintf(c->id, sizeof c->id, "%llu-%llu", (unsigned long long)c->job, (unsigned long long)c->step);

	for (int k = 2; id_taken(cs, c->id); k++)
		snprintf(c->id + n, sizeof c->id - (size_t)n, ".%d", k);
}

void checkpoints_add(struct checkpoints *cs, uint64_t job, uint64_t step, const char *reason, int64_t keep,
		     struct st_image *image, checkpoint_done done, void *arg)
{
	struct write *x = need(calloc(1, sizeof *x));
	struct timespec now;
	int idle = !cs->queue;

	clock_gettime(CLOCK_REALTIME, &now);
	*x = (struct write){.cs = cs, .keep = keep, .image = *image, .done = done, .arg = arg};
	memset(image, 0, sizeof *image);
	x->c.job = job;
	x->c.step = step;
	x->c.created_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	x->c.bytes = x->image.bytes;
	snprintf(x->c.reason, sizeof x->c.reason, "%s", reason);
	x->c.pinned = !strcmp(reason, "final") || !strcmp(reason, "request");
	make_id(cs, &x->c);
	checkpoints_path(cs, x->c.id, x->path, sizeof x->path);
	/* refusals take the same way, so that the callback always comes later */
	if (cs->stopping)
		x->code = fh_fail(&x->st, FH_UNAVAILABLE, "the daemon stops");
	else if (cs->pending >= CHECKPOINT_PENDING_MAX)
		x->code = fh_fail(&x->st, FH_EXHAUSTED, "%d checkpoints are waiting for the disk", CHECKPOINT_PENDING_MAX);
	else if (cs->n >= CHECKPOINTS_MAX)
		x->code = fh_fail(&x->st, FH_EXHAUSTED, "%d checkpoints are kept, no more are allowed", CHECKPOINTS_MAX);
	x->work.data = x;
	*cs->queue_end = x;
	cs->queue_end = &x->next;
	cs->pending++;
	cs->in_flight++;
	if (idle)
		next_write(cs);
}

/* ---------------------------------------------------------------- reading a part */

struct read {
	struct checkpoints *cs;
	char id[FH_NAME_MAX], path[PATH_MAX];
	uint64_t offset;
	uint32_t limit;
	unsigned char *data;
	size_t bytes;
	uv_work_t work;
	int code;
	struct fh_status st;
	checkpoint_read_done done;
	void *arg;
};

static void read_work(uv_work_t *w)
{
	struct read *r = w->data;
	int fd = open(r->path, O_RDONLY | O_CLOEXEC);
	ssize_t n = 0;

	if (fd < 0) {
		r->code = fh_fail(&r->st, FH_CORRUPT, "%s: %s", r->path, strerror(errno));
		return;
	}
	r->data = malloc(r->limit ? r->limit : 1);
	if (!r->data)
		r->code = fh_fail(&r->st, FH_EXHAUSTED, "no memory for %u bytes", r->limit);
	while (!r->code && r->bytes < r->limit &&
	       (n = pread(fd, r->data + r->bytes, r->limit - r->bytes, (off_t)(r->offset + r->bytes))) > 0)
		r->bytes += (size_t)n;
	if (n < 0)
		r->code = fh_fail(&r->st, FH_IO, "%s: %s", r->path, strerror(errno));
	close(fd);
}

static void read_finished(uv_work_t *w, int status)
{
	struct read *r = w->data;
	struct entry *e = entry_find(r->cs, r->id);

	assert(e); /* held */
	r->cs->in_flight--;
	r->done(r->arg, r->code, &e->c, r->data, r->bytes, &r->st);
	checkpoints_release(r->cs, r->id);
	free(r->data);
	free(r);
}

void checkpoints_read(struct checkpoints *cs, const char *id, uint64_t offset, uint32_t limit, checkpoint_read_done done, void *arg)
{
	const struct checkpoint *c = checkpoints_find(cs, id);
	struct fh_status st = FH_STATUS_INIT;
	struct read *r;

	if (!c)
		fh_fail_field(&st, FH_NOT_FOUND, "checkpoint", "there is no checkpoint \"%.64s\"", id ? id : "");
	else if (offset > c->bytes)
		fh_fail_field(&st, FH_INVALID, "offset", "offset is %llu, checkpoint %s has %llu bytes", (unsigned long long)offset, id,
			      (unsigned long long)c->bytes);
	else if (cs->stopping)
		fh_fail(&st, FH_UNAVAILABLE, "the daemon stops");
	if (st.code) {
		done(arg, st.code, NULL, NULL, 0, &st);
		return;
	}
	r = need(calloc(1, sizeof *r));
	*r = (struct read){.cs = cs, .offset = offset, .limit = limit, .done = done, .arg = arg};
	snprintf(r->id, sizeof r->id, "%s", id);
	checkpoints_path(cs, id, r->path, sizeof r->path);
	if (r->limit > CHECKPOINT_PAGE_MAX)
		r->limit = CHECKPOINT_PAGE_MAX;
	if (r->limit > c->bytes - offset)
		r->limit = (uint32_t)(c->bytes - offset);
	checkpoints_hold(cs, id);
	cs->in_flight++;
	r->work.data = r;
	uv_queue_work(cs->cfg.loop, &r->work, read_work, read_finished);
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
