/* Trainers, and the memory of the device they live in: a job that ends leaves its trainer parked here, and the next job of
 * the same layout takes it, memory, graphs and all. Least recently parked goes first when room is needed.
 *
 * Any thread; a mutex guards the list. Trainers are made and freed on worker threads, outside the lock. The device is asked
 * by workers and by a thread of its own (once a second): whoever wants to know reads what was seen last, so a device that
 * hangs hangs nobody else. Invariant: a trainer in the list is alive. */
#ifndef FHD_POOL_H
#define FHD_POOL_H

#include <stddef.h>
#include "daemon/limits.h"
#include "gpu/trainer.h"

struct pool;

/* limit_bytes: for all trainers together. park_max: trainers kept without a job, at most LIMIT_PARKED. */
int pool_new(const struct backend *b, size_t limit_bytes, int park_max, struct pool **out, struct fh_status *st);
void pool_free(struct pool *p); /* all workers have ended; frees what is parked */

/* May a job with this plan be accepted? Against the limit, and against what is free on the device now together with what
 * the daemon's own trainers hold: those end or are evicted. FH_EXHAUSTED names what was asked and what there is. */
int pool_admits(struct pool *p, const struct memory_plan *m, struct fh_status *st);
/* Bytes that jobs may hold together as things stand. */
size_t pool_budget(struct pool *p);

/* For job `job`: a parked trainer that fits (the one parked last), *reused = 1; or a new one, after as many parked ones as
 * it takes have made room. FH_EXHAUSTED: refused, nothing is held. Worker threads. */
int pool_take(struct pool *p, uint64_t job, const struct fh_spec *spec, const struct memory_plan *m, struct trainer **out, int *reused,
	      struct fh_status *st);
void pool_park(struct pool *p, struct trainer *t);
void pool_drop(struct pool *p, struct trainer *t); /* frees it: state unknown after a failure */
/* The trainer that was parked first goes; 0 when none is parked. */
int pool_evict(struct pool *p);

struct pool_stats { unsigned live, parked; size_t live_bytes, parked_bytes; uint64_t made, reused, evicted; };
void pool_stats(struct pool *p, struct pool_stats *out);
struct pool_trainer { uint64_t job; int parked; struct memory_plan planned; struct exec_usage used; };
/* All of them, parked ones first; returns how many, at most LIMIT_TRAINERS. */
int pool_list(struct pool *p, struct pool_trainer out[LIMIT_TRAINERS]);
/* The device as it was last seen, and when (CLOCK_MONOTONIC, 0: never). */
uint64_t pool_device(struct pool *p, struct device_memory *out);

#endif
