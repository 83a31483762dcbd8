/* What worker.c (loop) and worker_thread.c (a worker's own thread) share: the three rings, `shown` under its lock, and the atomics
 * beat_ns, phase and images. Everything else belongs to the loop. */
#ifndef FHD_WORKER_INTERNAL_H
#define FHD_WORKER_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <uv.h>

#include "daemon/limits.h"
#include "daemon/mailbox.h"

struct daemon;
struct pool;

enum worker_phase { PHASE_IDLE, PHASE_LONG, PHASE_RUN };

struct worker {
	struct workers *all;
	int index;
	pthread_t thread;
	sem_t wake;
	struct ring commands, samples, events;
	pthread_mutex_t shown_lock;
	struct trainer_state shown;   /* under shown_lock */
	uint64_t beat_ns;             /* atomic: CLOCK_MONOTONIC of the last sign of life */
	int phase;                    /* atomic: enum worker_phase */
	int images;                   /* atomic: snapshots handed up and not yet written */
	/* loop */
	uint64_t job;                 /* 0 = idle */
	int running, quitting, joined;
};

struct workers {
	struct daemon *daemon;
	struct pool *pool;
	uv_async_t async;
	uv_timer_t progress;
	int open_handles;
	int n;
	struct worker worker[LIMIT_SLOTS];
};

/* The thread's function, its argument a struct worker. Ends after a COMMAND_QUIT, with WORKER_QUIT as its last event. */
void *worker_main(void *arg);
/* A sign of life, and how long the next one may take. Any thread. */
void worker_beat(struct worker *w, enum worker_phase phase);

#endif
