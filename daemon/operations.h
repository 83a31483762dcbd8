/* What takes longer than a call: evaluations and checkpoint saves. A client asks again with the operation's id until it is done.
 *
 * Loop thread. Finished operations live OPERATION_KEPT_MS and at most OPERATIONS_MAX exist; the oldest finished ones go
 * first. Operations do not survive the daemon.
 * Invariant: an operation finishes exactly once. */
#ifndef FHD_OPERATIONS_H
#define FHD_OPERATIONS_H

#include <stdint.h>
#include <uv.h>
#include "gpu/spec.h"
#include "gpu/evaluate.h"

struct fh_status;
struct operations;

#define OPERATIONS_MAX 256
#define OPERATION_KEPT_MS 600000
#define OPERATION_WAITERS_MAX 32
#define OPERATION_WAIT_MS_MAX 10000
#define OPERATION_RESULT_BYTES_MAX (1ULL << 30) /* trace rows of all finished operations; oldest go first */

int operations_new(uv_loop_t *loop, struct operations **out, struct fh_status *st);
void operations_stop(struct operations *os); /* answers waiters, closes timers */
void operations_free(struct operations *os);

/* A new operation for a checkpoint save; 0 when OPERATIONS_MAX are unfinished (st is filled). */
uint64_t operation_new_checkpoint(struct operations *os, uint64_t job, struct fh_status *st);
/* code 0: `checkpoint` is its id; else st says why. Unknown operations are ignored (they may have been dropped). */
void operation_finish_checkpoint(struct operations *os, uint64_t operation, int code, const char *checkpoint, const struct fh_status *st);

#endif
