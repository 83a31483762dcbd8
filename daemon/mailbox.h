/* The rings between the loop and a worker, and what travels in them.
 *
 * One producer, one consumer each. A mutex guards head and tail: it is held for one memcpy, so neither side ever waits
 * for the other's work. commands: loop -> worker, never full by construction (an assertion). samples: worker -> loop;
 * reports of a job alone drop the oldest of a full ring and count it, the others wait for room. events: worker -> loop, never
 * drop: the worker waits for room, which the loop always makes because it never waits for a worker. */
#ifndef FHD_MAILBOX_H
#define FHD_MAILBOX_H

#include <pthread.h>
#include <stdint.h>
#include "daemon/limits.h"
#include "gpu/trainer.h"
#include "proto/status.h"

struct ring {
	pthread_mutex_t lock;
	pthread_cond_t room;
	unsigned char *slot;
	size_t item;               /* bytes of one */
	unsigned capacity, head, count;
	uint64_t dropped;
};
int ring_init(struct ring *r, size_t item, unsigned capacity, struct fh_status *st);
void ring_release(struct ring *r);
/* 1 when it went in, 0 when full. */
int ring_push(struct ring *r, const void *item);
/* Always goes in; drops the oldest and counts it when full. */
void ring_push_over(struct ring *r, const void *item);
/* Waits for room. */
void ring_push_wait(struct ring *r, const void *item);
/* 1 and the oldest item, else 0. */
int ring_pop(struct ring *r, void *item);
uint64_t ring_dropped(struct ring *r);

/* ---- loop -> worker */
enum command_kind {
	COMMAND_RUN,        /* start or continue the job in `run` */
	COMMAND_STOP,       /* end; with a checkpoint unless discard */
	COMMAND_PAUSE,      /* checkpoint, then give the slot back */
	COMMAND_INTERRUPT,  /* the daemon stops: checkpoint, then end; discard: without one */
	COMMAND_CHECKPOINT, /* a checkpoint now, then go on */
	COMMAND_QUIT        /* the thread ends (only sent to an idle worker, or behind an INTERRUPT) */
};
struct command_run { /* everything the worker needs, by value; market is a reference that the worker gives back */
	uint64_t job;
	struct fh_spec spec;       /* resolved */
	struct market *market;
	int resume;                /* 1: continue from `checkpoint` bit for bit; 0: begin */
	char checkpoint[1024];     /* path; "" = none. With resume = 0 it is init.checkpoint's file */
	struct memory_plan memory; /* its plan */
};
struct command {
	enum command_kind kind;
	uint64_t job;
	int discard;
	struct command_run run;    /* COMMAND_RUN */
};

/* ---- worker -> loop; reports may be dropped */
struct mail_sample {
	uint64_t job;
	uint64_t time_ns;          /* CLOCK_REALTIME when the readback was seen */
	struct trainer_sample sample; /* metric[] points to static storage */
};

/* ---- worker -> loop, never dropped */
enum worker_event_kind {
	WORKER_STARTED,            /* trainer_begin/resume is done */
	WORKER_CHECKPOINT,         /* image is a periodic or requested snapshot; the run goes on */
	WORKER_ENDED,              /* the worker is idle again; status says how it ended, image the last snapshot */
	WORKER_QUIT                /* the thread is about to return */
};
enum worker_end { END_NONE, END_DONE, END_STOPPED, END_PAUSED, END_INTERRUPTED, END_FAILED };
struct worker_event {
	enum worker_event_kind kind;
	uint64_t job;
	enum worker_end end;       /* WORKER_ENDED */
	struct trainer_state state;
	struct memory_plan memory; /* WORKER_STARTED: of the live trainer */
	int reused;                /* WORKER_STARTED: a parked trainer was taken */
	int requested;             /* WORKER_CHECKPOINT: answers COMMAND_CHECKPOINT */
	int has_image;
	struct st_image image;     /* owned by whoever holds the event */
	struct fh_status status;   /* code 0 unless END_FAILED or the snapshot failed */
};

#endif
