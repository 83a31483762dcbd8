/* Which job runs next; see queue.h. A list in order of (priority down, id up). New jobs mostly go to the end of their
 * priority, so insertion looks from the tail. Positions are counted again only after a change. */
#include "daemon/queue.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/pool.h"
#include "daemon/worker.h"

struct queue {
	struct daemon *daemon;
	struct job *first, *last;
	size_t length;
	int slots, slots_used;
	size_t memory_used;      /* planned bytes of the jobs that hold slots */
	int numbered;            /* queue_number of the members is right */
	int running;             /* queue_run is at work: it may be entered again from jobs_start */
};

int queue_new(struct daemon *d, int slots, struct queue **out, struct fh_status *st)
{
	struct queue *q = calloc(1, sizeof *q);

	if (!q)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the queue");
	q->daemon = d;
	q->slots = slots;
	*out = q;
	return 0;
}

void queue_free(struct queue *q)
{
	free(q);
}

static int before(const struct job *a, const struct job *b)
{
	if (a->spec.run.priority != b->spec.run.priority)
		return a->spec.run.priority > b->spec.run.priority;
	return a->id < b->id;
}

void queue_add(struct queue *q, struct job *j)
{
	struct job *after = q->last;

	assert(!j->queued);
	while (after && before(j, after))
		after = after->queue_prev;
	j->queue_prev = after;
	j->queue_next = after ? after->queue_next : q->first;
	*(after ? &after->queue_next : &q->first) = j;
	*(j->queue_next ? &j->queue_next->queue_prev : &q->last) = j;
	j->queued = 1;
	q->length++;
	q->numbered = 0;
}

void queue_remove(struct queue *q, struct job *j)
{
	if (!j->queued)
		return;
	*(j->queue_prev ? &j->queue_prev->queue_next : &q->first) = j->queue_next;
	*(j->queue_next ? &j->queue_next->queue_prev : &q->last) = j->queue_prev;
	j->queue_next = j->queue_prev = NULL;
	j->queued = 0;
	j->queue_number = 0;
	q->length--;
	q->numbered = 0;
}

size_t queue_length(const struct queue *q)
{
	return q->length;
}

unsigned queue_position(struct queue *q, const struct job *j)
{
	unsigned n = 0;

	if (!j->queued)
		return 0;
	if (!q->numbered)
		for (struct job *i = q->first; i; i = i->queue_next)
			i->queue_number = ++n;
	q->numbered = 1;
	return j->queue_number;
}

int queue_slots(const struct queue *q)
{
	return q->slots;
}

int queue_slots_free(const struct queue *q)
{
	return q->slots - q->slots_used;
}

/* A job alone always may start: it was checked when it was accepted, and a device that others have filled since refuses it. */
static int memory_allows(const struct queue *q, const struct job *j)
{
	return q->slots_used == 0 || q->memory_used + j->memory.total <= pool_budget(q->daemon->pool);
}

/* Whether anything may start now at all. */
static int is_open(const struct queue *q)
{
	struct daemon *d = q->daemon;

	return d->state == DAEMON_RUNNING && !d->draining && jobs_disk_keeps_up(d->jobs) && workers_idle(d->workers) >= 0;
}

/* Its slots and its memory, when they are free. */
static int take(struct queue *q, struct job *j)
{
	int need = (int)j->spec.run.slots;

	if (need > queue_slots_free(q))
		need = need > q->slots ? q->slots : need; /* accepted by a daemon with more slots */
	if (need > queue_slots_free(q) || !memory_allows(q, j))
		return 0;
	j->slots = need;
	q->slots_used += need;
	q->memory_used += j->memory.total;
	j->memory_held = j->memory.total;
	return 1;
}

int queue_pass(struct queue *q, struct job *j)
{
	return !q->first && !q->running && is_open(q) && take(q, j);
}

void queue_run(struct queue *q)
{
	struct job *j;

	if (q->running)
		return;
	q->running = 1;
	while ((j = q->first) && is_open(q) && take(q, j)) {
		queue_remove(q, j);
		jobs_start(q->daemon->jobs, j);
	}
	q->running = 0;
}

void queue_release(struct queue *q, struct job *j)
{
	q->slots_used -= j->slots;
	q->memory_used -= j->memory_held;
	j->slots = 0;
	j->memory_held = 0;
	assert(q->slots_used >= 0);
}
