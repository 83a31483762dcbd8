/* The registry of checkpoint files: <dir>/ID.safetensors, ID = "<job>-<step>", with ".2", ".3", … when that is taken (a job
 * that was saved twice at the same step).
 *
 * Loop thread; hashing and writing happen one file at a time on the libuv pool. Order: the file is durable, then its row, then older files
 * are removed (row first, file after), so a row always has its file and a crash leaves at most a file without a row, which the
 * next start removes.
 * Invariant: the newest checkpoint of a job is never removed by retention. */
#ifndef FHD_CHECKPOINTS_H
#define FHD_CHECKPOINTS_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "gpu/safetensors.h"
#include "gpu/spec.h"

struct fh_status;
struct store;
struct checkpoints;
struct daemon;
struct rpc_call;

#define CHECKPOINTS_MAX 100000
#define CHECKPOINT_PENDING_MAX 64        /* images waiting to be written: LIMIT_IMAGES and two a slot, with room */
#define CHECKPOINT_PAGE_MAX (4 << 20)    /* bytes of one GetCheckpoint reply */
#define CHECKPOINT_REASON_MAX 16

struct checkpoint {
	char id[FH_NAME_MAX];
	uint64_t job, step, created_ns, bytes;
	char reason[CHECKPOINT_REASON_MAX]; /* periodic, final, stop, pause, shutdown, request */
	char sha256[65];
	int pinned;                         /* final ones and those saved on request: retention leaves them */
	int missing;                        /* its file was not there at start-up */
};

struct checkpoints_config {
	uv_loop_t *loop;
	struct store *store;
	const char *dir;             /* <state>/checkpoints, made when missing */
	/* 1 when a live job would resume or start from `id`; its name goes to `by` (FH_NAME_MAX). */
	int (*needed)(void *arg, const char *id, char *by);
	/* Called before a checkpoint's row is handed to the store: what it would make a resumed job never say again (samples in
	 * front of it) must be handed over before. May be NULL. */
	void (*before_row)(void *arg);
	void *arg;
};
int checkpoints_new(const struct checkpoints_config *cfg, struct checkpoints **out, struct fh_status *st);
int checkpoints_load(struct checkpoints *cs, struct fh_status *st); /* before store_start */
void checkpoints_stop(struct checkpoints *cs);  /* refuses new ones; those in flight finish on the loop */
int checkpoints_busy(const struct checkpoints *cs); /* files or rows in flight */
void checkpoints_free(struct checkpoints *cs);

/* NULL when there is none. Pointers are good until the loop's next callback. */
const struct checkpoint *checkpoints_find(const struct checkpoints *cs, const char *id);
const struct checkpoint *checkpoints_latest(const struct checkpoints *cs, uint64_t job);
/* Those of a job (0: all) in order of job, age; returns how many, fills at most max. */
size_t checkpoints_list(const struct checkpoints *cs, uint64_t job, const struct checkpoint **out, size_t max);
void checkpoints_path(const struct checkpoints *cs, const char *id, char *path, size_t size);

/* Takes the image over (also on failure), writes file and row, calls back, then removes the job's oldest unpinned ones beyond
 * `keep` (0: none) that no live job needs: what the callback hands to the store (the job's row with its new last checkpoint) is
 * durable before an older checkpoint goes. The callback comes later on the loop: code 0 and the checkpoint when file and row are
 * durable. FH_EXHAUSTED when CHECKPOINT_PENDING_MAX wait, FH_IO. */
typedef void (*checkpoint_done)(void *arg, int code, const struct checkpoint *c, const struct fh_status *st);
void checkpoints_add(struct checkpoints *cs, uint64_t job, uint64_t step, const char *reason, int64_t keep,
		     struct st_image *image, checkpoint_done done, void *arg);
/* Bytes [offset, offset + limit) of the file, read on the pool; the file is held meanwhile. FH_NOT_FOUND, FH_INVALID when the offset
 * lies behind the end, FH_CORRUPT when the file is gone. */
typedef void (*checkpoint_read_done)(void *arg, int code, const struct checkpoint *c, const void *data, size_t bytes,
				     const struct fh_status *st);
void checkpoints_read(struct checkpoints *cs, const char *id, uint64_t offset, uint32_t limit, checkpoint_read_done done, void *arg);
/* A file that is being read stays until released, though its row may go. */
void checkpoints_hold(struct checkpoints *cs, const char *id);
void checkpoints_release(struct checkpoints *cs, const char *id);
/* FH_NOT_FOUND, FH_CONFLICT when a live job needs it (named). Row, then file. */
void checkpoints_drop(struct checkpoints *cs, const char *id, checkpoint_done done, void *arg);

/* Call handlers (rpc_checkpoint.c). */
void rpc_list_checkpoints(struct daemon *d, struct rpc_call *c);
void rpc_save_checkpoint(struct daemon *d, struct rpc_call *c);
void rpc_get_checkpoint(struct daemon *d, struct rpc_call *c);
void rpc_drop_checkpoint(struct daemon *d, struct rpc_call *c);

#endif
