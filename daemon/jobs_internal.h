/* What the files of jobs.h share: jobs.c the table, jobs_ask.c clients, jobs_start.c and jobs_run.c workers,
 * jobs_store.c rows, jobs_wire.c forms. Loop thread. */
#ifndef FHD_JOBS_INTERNAL_H
#define FHD_JOBS_INTERNAL_H

#include <uv.h>
#include "daemon/jobs.h"

struct store_txn;

#define NAME_BUCKETS 16384 /* power of two */

struct jobs {
	struct daemon *daemon;
	struct job **list;            /* in order of id */
	size_t n, capacity;
	struct job *by_name[NAME_BUCKETS];
	uint64_t next_id;
	size_t count[JOB_STOPPED + 1];
	int images;                   /* checkpoint images on their way to disk */
	int finishing;                /* of them the last ones of their jobs */
	uv_timer_t retry;             /* rows that could not be written */
	uint64_t hold_until_ms;       /* no job starts before: the store has refused a start */
};

/* Whoever waits for a wish to come true, or for a row to be durable. */
struct job_waiter {
	struct job_waiter *next;
	enum job_wish wish;           /* WISH_NONE: told whatever the new state is */
	job_done done;
	void *ctx;
	uint64_t operation;           /* WISH_CHECKPOINT: of operations.h, done is NULL */
};
void *job_need(void *p); /* p; the process ends when there is no memory for a few bytes */
void job_wait(struct job *j, enum job_wish wish, job_done done, void *ctx);

/* Moves j along the table (the move must be allowed), writes row and state sample in one transaction and tells
 * `waiters` when it is durable. request_id: of a job that is being accepted. */
void job_change(struct jobs *js, struct job *j, enum job_event event, struct job_waiter *waiters, const char *reason, ...)
	__attribute__((format(printf, 5, 6)));
/* Writes the row as it stands, without a change of state. */
void job_write(struct jobs *js, struct job *j);
/* The same transaction for a job that is new; the caller commits by calling it once. starts: it has its slots, so the same transaction
 * says that it runs. */
void job_write_new(struct jobs *js, struct job *j, const char *request_id, int starts, struct job_waiter *waiters);

/* Rows that could not be written are tried again; jobs that could not be started, too. */
void jobs_retry_begin(struct jobs *js);
void job_set_state(struct jobs *js, struct job *j, enum job_state s);
void job_fail_with(struct job *j, const struct fh_status *st);

/* jobs_start.c: starts a new job that has its slots, before its first row is written. Returns who must be told of that row last; nothing
 * else may happen to the job before it is durable. */
struct job_waiter *jobs_start_new(struct jobs *js, struct job *j);
/* jobs.c: a job whose first row the store has refused, and that nobody holds any more, is gone. */
void job_forget_new(struct jobs *js, struct job *j, const struct fh_status *st);

/* jobs_run.c: slots back, rates to zero; then the move that `end` and the wishes of clients ask for. */
void job_release(struct jobs *js, struct job *j);
void job_settle(struct jobs *js, struct job *j, enum worker_end end, const struct fh_status *st);

/* jobs_wire.c */
struct store_job;
void job_put_row(struct store_txn *t, const struct job *j);
int job_from_row(const struct store_job *row, struct job **out, struct fh_status *st);

#endif
