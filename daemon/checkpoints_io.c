/* Checkpoints to the disk and back, on libuv's pool: images one after the other, file, then row; parts of files as they are asked
 * for. Loop thread but for write_work and read_work. */
#include "daemon/checkpoints_internal.h"
#include "daemon/clock.h"
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
		checkpoints_prune(cs, x->c.job, x->keep);
	free(x);
}

static void row_written(void *arg, int code, const struct fh_status *st)
{
	struct write *x = arg;
	char file[FILE_NAME_MAX];

	if (code) {
		x->code = code;
		x->st = *st;
		checkpoint_file_name(x->c.id, file);
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
	int idle = !cs->queue;

	*x = (struct write){.cs = cs, .keep = keep, .image = *image, .done = done, .arg = arg};
	memset(image, 0, sizeof *image);
	x->c.job = job;
	x->c.step = step;
	x->c.created_ns = time_now_ns();
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
	if (!c || st.code) {
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
