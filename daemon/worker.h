/* The training threads: one per slot, the only callers of gpu/trainer.h.
 *
 * A worker sleeps on its semaphore until a command comes, runs the job in slices of LIMIT_SLICE_NS and looks for
 * commands between two slices, so stop and pause act within one slice or one learn step, whichever is longer. It
 * never touches a job, the store or a socket: events and samples go up through its rings, one uv_async_send wakes the
 * loop. Functions here: loop thread, except where said. */
#ifndef FHD_WORKER_H
#define FHD_WORKER_H

#include <stdint.h>
#include "daemon/mailbox.h"

struct daemon;
struct workers;

int workers_new(struct daemon *d, int slots, struct workers **out, struct fh_status *st);
/* Index of an idle worker, -1 when none. From reserve until its job has ended (or unreserve) it is not idle. */
int workers_idle(const struct workers *w);
void workers_reserve(struct workers *w, int worker, uint64_t job);
void workers_unreserve(struct workers *w, int worker);
/* By value; a market reference in it passes over. */
void workers_send(struct workers *w, int worker, const struct command *c);
/* One image of this worker's job has reached the disk (or failed): the next may be taken. */
void workers_written(struct workers *w, int worker);
/* Where a running job is: the last state its worker left. */
void workers_state(struct workers *w, int worker, struct trainer_state *out);
/* 1 when every worker with a job moved within its allowance (LIMIT_STALL_S, LIMIT_LONG_PHASE_S for declared long
 * phases); else 0 and the index in *which. */
int workers_alive(struct workers *w, int *which);
uint64_t workers_dropped(struct workers *w);
/* Commands every worker to quit (a running job ends without a checkpoint); 1 when all threads have ended and are
 * joined. Call again after a turn of the loop while it returns 0. */
int workers_quit(struct workers *w);
/* All threads have ended. Call before the sockets and the loop's async handle go. */
void workers_free(struct workers *w);

#endif
