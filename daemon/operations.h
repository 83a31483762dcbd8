/* What takes longer than a call: evaluations and checkpoint saves. A client asks again with the operation's id until it is done.
 *
 * Loop thread, but for `cancelled` and `progress`, which the evaluator's thread reads and writes. Finished operations live
 * OPERATION_KEPT_MS, and the oldest finished ones go when there are OPERATIONS_MAX or their results pass
 * OPERATION_RESULT_BYTES_MAX. Operations do not survive the daemon; their ids never name one of another daemon's life.
 * Invariant: an operation finishes exactly once; its result does not change afterwards. */
#ifndef FHD_OPERATIONS_H
#define FHD_OPERATIONS_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "gpu/spec.h"
#include "proto/status.h"

struct operations;

#define OPERATIONS_MAX 256
#define OPERATION_KEPT_MS 600000
#define OPERATION_WAITERS_MAX 32
#define OPERATION_WAIT_MS_MAX 10000
#define OPERATION_RESULT_BYTES_MAX (512ULL << 20) /* trace rows of all finished operations; oldest go first */
#define OPERATION_ID_MAX 48

struct operation {
	struct operation *next;        /* older ones first */
	uint64_t number;
	char id[OPERATION_ID_MAX];     /* "op-<start of the daemon>-<number>" */
	uint64_t job;
	int done, code;
	struct fh_status status;       /* when code != 0 */
	char checkpoint[FH_NAME_MAX];  /* a save's result */
	void *result;                  /* an evaluation's */
	size_t result_bytes;
	void (*result_free)(void *result);
	uint64_t finished_ms;          /* of the loop's clock */
	int cancelled;                 /* atomic */
	double progress;               /* 0 to 1, atomic */
	unsigned users;                /* the service thread or a held call has a pointer: it may not go */
};

int operations_new(uv_loop_t *loop, struct operations **out, struct fh_status *st);
void operations_stop(struct operations *os); /* answers waiters, closes handles */
void operations_free(struct operations *os);

/* NULL when OPERATIONS_MAX are unfinished (FH_EXHAUSTED). */
struct operation *operation_new(struct operations *os, uint64_t job, struct fh_status *st);
struct operation *operation_find(struct operations *os, const char *id); /* NULL when unknown */
/* Takes the result over. code != 0: st says why, result is NULL. */
void operation_finish(struct operations *os, struct operation *op, int code, const struct fh_status *st, void *result,
		      size_t bytes, void (*result_free)(void *));
/* Calls back when it is done, when wait_ms are over, or at once when too many wait. The operation stays until then. */
typedef void (*operation_waited)(void *arg, struct operation *op);
void operation_wait(struct operations *os, struct operation *op, uint32_t wait_ms, operation_waited done, void *arg);
/* An evaluation ends early; a save goes on. */
void operation_cancel(struct operation *op);
int operation_cancelled(const struct operation *op);       /* any thread */
void operation_progress(struct operation *op, double part); /* any thread */

/* The end of a checkpoint save. code 0: `checkpoint` is its id; else st says why. Unknown numbers are ignored (0: nobody asked). */
void operation_finish_checkpoint(struct operations *os, uint64_t operation, int code, const char *checkpoint,
				 const struct fh_status *st);

#endif
