/* Parked trainers: a job that ends leaves its trainer here, and the next job of the same layout takes it, memory,
 * graphs and all. Least recently parked goes first when room is needed.
 *
 * Any worker thread; a mutex guards the list. Trainers are made and freed on worker threads, outside the lock. */
#ifndef FHD_POOL_H
#define FHD_POOL_H

#include <stddef.h>
#include "gpu/trainer.h"

struct pool;

int pool_new(const struct backend *b, size_t limit_bytes, struct pool **out, struct fh_status *st);
void pool_free(struct pool *p); /* all workers have ended; frees what is parked */
/* A parked trainer that fits (the one parked last), *reused = 1; or a new one, after parked ones have made room.
 * Counts it as live until it is parked or dropped. */
int pool_take(struct pool *p, const struct fh_spec *spec, size_t bytes, struct trainer **out, int *reused,
	      struct fh_status *st);
void pool_park(struct pool *p, struct trainer *t, size_t bytes);
void pool_drop(struct pool *p, struct trainer *t, size_t bytes); /* frees it: state unknown after a failure */
void pool_stats(struct pool *p, unsigned *parked, size_t *live_bytes, size_t *parked_bytes);
/* The device as it was when a trainer last came or went. */
void pool_device(struct pool *p, struct device_info *out);
size_t pool_limit(const struct pool *p);

#endif
