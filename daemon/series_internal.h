/* What series.c (numbers and their durability), series_track.c (the ring of one job) and series_poll.c (answers to polls) share.
 *
 * Loop thread. A track is the series of one job: a ring of packed samples that covers the numbers first_held … assigned without a
 * hole; those above `visible` are on their way to the disk. */
#ifndef FHD_SERIES_INTERNAL_H
#define FHD_SERIES_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "daemon/series.h"

/* Where in its job a report or an evaluation was made; in the order in which a job makes them. */
struct place { uint64_t step; int split; int policy; uint32_t trial; };

struct item { void *packed; size_t bytes; int kind, state, durable; };

struct track {
	uint64_t job;
	uint64_t assigned, visible;  /* newest number given, newest number seen by anyone */
	uint64_t first_kept;         /* oldest on disk */
	uint64_t first_held;         /* number of the ring's first item; assigned + 1 when the ring is empty */
	struct item *ring;           /* [room], a power of two */
	size_t head, held, room;
	struct item report, validation; /* copies of the newest visible ones */
	struct place reported, evaluated; /* of the newest of each kind, all splits and networks */
	int state;                   /* of the newest visible state change, 0 before the first */
	struct track *older, *newer; /* by last use, of tracks with items */
	struct waiter *waiters;      /* series_poll.c */
};

struct series {
	uv_loop_t *loop;
	struct store *store;
	struct publish *publish;
	struct track **track;        /* by job id */
	size_t tracks;
	struct track *oldest, *newest;
	struct batch *open;          /* series.c; collects while another is being written */
	int in_flight;
	uint64_t pending;            /* samples given a number and not yet visible */
	int stopping;
	struct series_stats stats;
};

/* The track of a job, NULL when it has none; the second makes it. */
struct track *track_find(const struct series *s, uint64_t job);
struct track *track_get(struct series *s, uint64_t job);
/* One that the ring holds. */
struct item *track_item(const struct track *t, uint64_t seq);
void track_push(struct series *s, struct track *t, struct item i);
/* Lets go of the ring's first `n` items; they are visible, so the disk has them. */
void track_forget(struct series *s, struct track *t, size_t n);
/* Bounds of one tail and of all together. What is not visible yet always stays. */
void track_trim(struct series *s, struct track *t);

/* Answers the held polls that ask for less than what is visible now, or all of them. */
void series_answer(struct track *t, int all);

#endif
