/* fhctl checkpoint list | save | get | drop. One thread.
 *
 * get: chunks go to a temporary file beside the target; it gets the target's name when its SHA-256 is the one the daemon
 * named, so a file under that name is always whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/operation.h"
#include "client/output.h"
#include "client/progress.h"
#include "client/table.h"
#include "gpu/hash.h"
#include "gpu/spec.h"

#define PATH_SIZE 4096
#define CHUNK_BYTES (4u << 20)

static void add_rows(struct table *t, Fh__V1__Checkpoint *const *cp, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char a[OUT_TEXT], b[OUT_TEXT];
		table_add(t, "%s", cp[i]->id ? cp[i]->id : "");
		table_add(t, "%llu", (unsigned long long)cp[i]->job);
		table_add(t, "%llu", (unsigned long long)cp[i]->step);
		table_add(t, "%s", text_time(cp[i]->created_ns, a));
		table_add(t, "%s", text_bytes(cp[i]->bytes, b));
		table_add(t, "%s%s", cp[i]->reason ? cp[i]->reason : "", cp[i]->pinned ? ", pinned" : "");
	}
}

static void print_checkpoints(Fh__V1__Checkpoint *const *cp, size_t n)
{
	static const char *const heads[] = {"ID", "JOB", "STEP", "CREATED", "SIZE", "WHY", NULL};
	struct table t;

	table_init(&t, heads, "lrrlrl");
	add_rows(&t, cp, n);
	table_print(&t, stdout);
	table_release(&t);
}

static int run_list(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ListCheckpointsRequest l = FH__V1__LIST_CHECKPOINTS_REQUEST__INIT;
	struct fh_answer a;

	l.job = c->argc ? c->argv[0] : NULL;
	req.call_case = FH__V1__REQUEST__CALL_LIST_CHECKPOINTS;
	req.list_checkpoints = &l;
	if (ctx_call(c, &req, 0, &a, &st))
		return ctx_fail(c, &st);
	const Fh__V1__ListCheckpointsReply *r = a.reply->checkpoints;
	if (!output_message(c, &r->base)) {
		if (r->n_checkpoint)
			print_checkpoints(r->checkpoint, r->n_checkpoint);
		else
			ctx_note(c, "no checkpoints");
	}
	fh_answer_release(&a);
	return EXIT_DONE;
}

static int run_save(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__SaveCheckpointRequest s = FH__V1__SAVE_CHECKPOINT_REQUEST__INIT;
	struct fh_answer begun, done;

	s.job = c->argv[0];
	req.call_case = FH__V1__REQUEST__CALL_SAVE_CHECKPOINT;
	req.save_checkpoint = &s;
	int rc = ctx_call(c, &req, 0, &begun, &st);
	if (rc)
		return ctx_fail(c, &st);
	const char *operation = begun.reply->operation->operation;
	if (!operation) {
		fh_answer_release(&begun);
		fh_fail(&st, FH_CORRUPT, "the daemon's answer names no operation");
		return ctx_fail(c, &st);
	}
	rc = operation_wait(c, operation, "saving", &done, &st);
	fh_answer_release(&begun);
	if (rc)
		return ctx_fail(c, &st);
	Fh__V1__CheckpointReply *r = done.reply->operation->checkpoint;
	if (r && r->checkpoint && !output_message(c, &r->base))
		print_checkpoints(&r->checkpoint, 1);
	fh_answer_release(&done);
	return EXIT_DONE;
}

/* ---- get */

struct download {
	int fd;
	const char *path;
	char part[PATH_SIZE], sha256[HASH_HEX_SIZE];
	struct hash *hash;
	uint64_t bytes, total;
};

static int write_all(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = write(fd, p, n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return -1;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

static int get_chunk(struct ctx *c, const char *id, struct download *d, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__GetCheckpointRequest g = FH__V1__GET_CHECKPOINT_REQUEST__INIT;
	struct fh_answer a;

	g.checkpoint = (char *)id;
	g.has_offset = g.has_limit = 1;
	g.offset = d->bytes;
	g.limit = CHUNK_BYTES;
	req.call_case = FH__V1__REQUEST__CALL_GET_CHECKPOINT;
	req.get_checkpoint = &g;
	int rc = ctx_call(c, &req, 0, &a, st);
	if (rc)
		return rc;
	const Fh__V1__GetCheckpointReply *r = a.reply->checkpoint_data;
	if (!r->checkpoint || !r->checkpoint->sha256 || r->offset != d->bytes)
		rc = fh_fail(st, FH_CORRUPT, "the daemon sent another part than asked for");
	else if (!r->data.len && d->bytes < r->checkpoint->bytes)
		rc = fh_fail(st, FH_CORRUPT, "the daemon's file ends at byte %llu of %llu", (unsigned long long)d->bytes,
			     (unsigned long long)r->checkpoint->bytes);
	else if (write_all(d->fd, r->data.data, r->data.len))
		rc = fh_fail(st, FH_IO, "writing %s: %s", d->part, strerror(errno));
	if (!rc) {
		hash_add(d->hash, r->data.data, r->data.len);
		d->bytes += r->data.len;
		d->total = r->checkpoint->bytes;
		snprintf(d->sha256, sizeof d->sha256, "%s", r->checkpoint->sha256);
	}
	fh_answer_release(&a);
	return rc;
}

static int get_all(struct ctx *c, const char *id, struct download *d, struct fh_status *st)
{
	struct progress bar;
	char hex[HASH_HEX_SIZE], a[OUT_TEXT];
	int rc;

	progress_init(&bar, c->quiet);
	do {
		rc = get_chunk(c, id, d, st);
		if (!rc && signal_seen)
			rc = fh_fail(st, FH_INTERRUPTED, "stopped");
		if (!rc)
			progress_update(&bar, d->total ? (double)d->bytes / (double)d->total : 1, 0, "%s", text_bytes(d->bytes, a));
	} while (!rc && d->bytes < d->total);
	progress_clear(&bar);
	if (rc)
		return rc;
	hash_finish(d->hash, hex);
	d->hash = NULL;
	if (strcmp(hex, d->sha256))
		return fh_fail(st, FH_CORRUPT, "checkpoint %s arrived damaged: SHA-256 %.16s… and not %.16s…", id, hex, d->sha256);
	if (fsync(d->fd))
		return fh_fail(st, FH_IO, "writing %s: %s", d->part, strerror(errno));
	return 0;
}

static int run_get(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct download d = {.fd = -1};
	char made[FH_NAME_MAX + 16];
	const char *id = c->argv[0];

	d.path = opt_text(c, "out");
	if (!d.path && c->argc > 1)
		d.path = c->argv[1];
	if (!d.path) {
		snprintf(made, sizeof made, "%.64s.safetensors", id);
		d.path = made;
	}
	if (strchr(id, '/')) {
		fh_fail(&st, FH_INVALID, "'%.40s' is no checkpoint id", id);
		return ctx_fail(c, &st);
	}
	if (!strcmp(d.path, "-")) {
		fh_fail_field(&st, FH_INVALID, "FILE", "a checkpoint goes to a file, not to standard output: its hash is checked before it has a name");
		return ctx_fail(c, &st);
	}
	if (output_place_check(d.path, "FILE", &st))
		return ctx_fail(c, &st);
	if ((size_t)snprintf(d.part, sizeof d.part, "%s.part-%ld", d.path, (long)getpid()) >= sizeof d.part) {
		fh_fail_field(&st, FH_INVALID, "--out", "the path is too long");
		return ctx_fail(c, &st);
	}
	int rc = hash_new(&d.hash, &st);
	if (!rc) {
		d.fd = open(d.part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (d.fd < 0)
			rc = fh_fail_field(&st, FH_IO, "--out", "%s: %s", d.path, strerror(errno));
	}
	if (!rc)
		rc = get_all(c, id, &d, &st);
	if (d.fd >= 0 && close(d.fd) && !rc)
		rc = fh_fail(&st, FH_IO, "writing %s: %s", d.part, strerror(errno));
	if (!rc && rename(d.part, d.path))
		rc = fh_fail_field(&st, FH_IO, "--out", "%s: %s", d.path, strerror(errno));
	if (rc && d.fd >= 0)
		unlink(d.part);
	hash_free(d.hash);
	if (rc)
		return ctx_fail(c, &st);
	char a[OUT_TEXT];
	ctx_note(c, "%s, %s, SHA-256 %s", d.path, text_bytes(d.bytes, a), d.sha256);
	return EXIT_DONE;
}

static int run_drop(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;

	for (int i = 0; i < c->argc; i++) {
		Fh__V1__Request req = FH__V1__REQUEST__INIT;
		Fh__V1__DropCheckpointRequest d = FH__V1__DROP_CHECKPOINT_REQUEST__INIT;
		struct fh_answer a;
		d.checkpoint = c->argv[i];
		req.call_case = FH__V1__REQUEST__CALL_DROP_CHECKPOINT;
		req.drop_checkpoint = &d;
		if (ctx_call(c, &req, 0, &a, &st))
			return ctx_fail(c, &st);
		fh_answer_release(&a);
		ctx_note(c, "checkpoint %s dropped", c->argv[i]);
	}
	return EXIT_DONE;
}

static const struct opt get_opts[] = {
	{"out", 0, "FILE", "where to write it (default: ID.safetensors)"},
	{NULL, 0, NULL, NULL}
};

const struct command cmds_checkpoint[] = {
	{"checkpoint list", GROUP_RESULTS, "[JOB]", "checkpoints of a job, or all", NULL, NULL, 0, 1, OUT_ALL, run_list},
	{"checkpoint save", GROUP_RESULTS, "JOB", "have a running job write one now", NULL, NULL, 1, 1, OUT_ALL, run_save},
	{"checkpoint get", GROUP_RESULTS, "ID [FILE]", "download one as a safetensors file",
	 "The file holds parameters, target, moments, replay and counters; its SHA-256 is checked before it gets its name.\n\n"
	 "  fhctl checkpoint get 3-600 best.safetensors\n",
	 get_opts, 1, 2, OUT_TABLE, run_get},
	{"checkpoint drop", GROUP_RESULTS, "ID...", "remove checkpoints that no job needs", NULL, NULL, 1, 64, OUT_TABLE, run_drop},
	{.name = NULL}
};
