/* Which job runs next: priority (higher first), then id. And the slots: a job holds run.slots of them while it runs.
 *
 * Thread: loop. The first job in order that does not fit (slots or memory) holds back those behind it, so a large job
 * cannot be overtaken for ever. */
#ifndef FHD_QUEUE_H
#define FHD_QUEUE_H

#include <stddef.h>
#include "proto/status.h"

struct daemon;
struct job;
struct queue;

int queue_new(struct daemon *d, int slots, struct queue **out, struct fh_status *st);
void queue_free(struct queue *q);
/* Puts a queued job into its place; the caller calls queue_run. */
void queue_add(struct queue *q, struct job *j);
void queue_remove(struct queue *q, struct job *j); /* fine when it is not in */
size_t queue_length(const struct queue *q);
unsigned queue_position(struct queue *q, const struct job *j); /* 1 = next, 0 = not in */
int queue_slots(const struct queue *q);
int queue_slots_free(const struct queue *q);
/* Starts what can start (jobs_start); called when something was added, a slot came free, drain was switched off. */
void queue_run(struct queue *q);
/* A new job that nobody waits in front of takes its slots at once, if they are free and anything may start: 1, and the caller starts it
 * (jobs_start_new). 0: it goes through the queue. */
int queue_pass(struct queue *q, struct job *j);
/* A job gives its slots back. */
void queue_release(struct queue *q, struct job *j);

#endif
