/* A job's row and state sample on their way to the disk, and those who are told when they are there. */
#include "daemon/jobs_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/crashpoint.h"
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/operations.h"
#include "daemon/queue.h"
#include "daemon/series.h"
#include "daemon/store.h"

void *job_need(void *p)
{
	if (!p)
		abort(); /* the loop has no way on without a few bytes */
	return p;
}

void job_wait(struct job *j, enum job_wish wish, job_done done, void *ctx)
{
	struct job_waiter *w = job_need(calloc(1, sizeof *w)), **end = &j->waiters;

	w->wish = wish;
	w->done = done;
	w->ctx = ctx;
	while (*end)
		end = &(*end)->next;
	*end = w;
}

/* ---------------------------------------------------------------- rows */

/* A transaction on its way to the disk. */
struct change {
	struct jobs *js;
	struct job *job;
	enum job_state state;        /* the state it makes durable */
	struct job_waiter *waiters;
	int first;                   /* of a new job: then j->waiters are told as well */
};

static int wish_came_true(enum job_wish wish, enum job_state s)
{
	switch (wish) {
	case WISH_PAUSE:
		return s == JOB_PAUSED;
	case WISH_STOP:
	case WISH_DISCARD:
		return s == JOB_STOPPED;
	case WISH_CHECKPOINT:
		return 0;
	default:
		return 1;
	}
}

static void tell(struct jobs *js, struct job_waiter *w, struct job *j, enum job_state s, const struct fh_status *st)
{
	struct fh_status other = FH_STATUS_INIT;

	if (!st->code && !wish_came_true(w->wish, s)) {
		fh_fail(&other, FH_CONFLICT, "job %s is %s: it got there before the request took effect", j->name,
			job_state_name(s));
		st = &other;
	}
	if (w->operation)
		operation_finish_checkpoint(js->daemon->operations, w->operation, st->code, j->last_checkpoint, st);
	else if (w->done)
		w->done(w->ctx, j, st);
	free(w);
}

static void on_stored(void *arg, int code, const struct fh_status *st)
{
	static const struct fh_status fine = FH_STATUS_INIT;
	struct change *c = arg;
	struct jobs *js = c->js;
	struct job *j = c->job;
	struct job_waiter *w;
	enum job_state s = c->state;
	int first = c->first;

	j->committing--;
	if (!code) {
		j->shown = s;
	} else if (!first) {
		j->unwritten = 1;
		jobs_retry_begin(js);
	}
	if (code)
		log_status(LOG_ERROR, "a job's row could not be written", st);
	FHD_CRASH_POINT("job-row-durable");
	while ((w = c->waiters)) {
		c->waiters = w->next;
		tell(js, w, j, s, code ? st : &fine);
	}
	free(c);
	while (first && (w = j->waiters)) {
		int last = w->next == NULL;

		j->waiters = w->next;
		tell(js, w, j, s, code ? st : &fine);
		if (last)
			break; /* after_accepted may have taken the job away */
	}
}

static struct store_txn *begin_row(struct jobs *js, struct job *j)
{
	struct store_txn *t = store_begin(js->daemon->store);

	j->committing++;
	j->unwritten = 0;
	job_put_row(t, j);
	return t;
}

static void put_state(struct jobs *js, struct store_txn *t, struct job *j)
{
	series_state_change(js->daemon->series, t, j->id, (Fh__V1__JobState)j->state, j->reason, (uint64_t)j->step,
			    (uint64_t)j->epoch, (uint64_t)j->vector_step);
}

static void commit_row(struct jobs *js, struct job *j, struct store_txn *t, struct job_waiter *waiters, int first)
{
	struct change *c = job_need(malloc(sizeof *c));

	*c = (struct change){js, j, j->state, waiters, first};
	FHD_CRASH_POINT("job-row-before");
	store_commit(js->daemon->store, t, on_stored, c);
}

void job_write(struct jobs *js, struct job *j)
{
	commit_row(js, j, begin_row(js, j), NULL, 0);
}

void job_write_new(struct jobs *js, struct job *j, const char *request_id, int starts, struct job_waiter *waiters)
{
	struct store_txn *t = begin_row(js, j);

	put_state(js, t, j);
	if (request_id && *request_id) {
		struct store_request r = {.request_id = request_id, .call = "start_job", .job = j->id,
					  .time_ns = j->created_ns};

		store_put_request(t, &r);
	}
	if (starts) {
		snprintf(j->reason, sizeof j->reason, "starting");
		job_set_state(js, j, job_transition(j->state, EVENT_START));
		job_put_row(t, j);
		put_state(js, t, j);
	}
	commit_row(js, j, t, waiters, 1);
}

static void on_retry(uv_timer_t *timer)
{
	struct jobs *js = timer->data;

	for (size_t i = 0; i < js->n; i++) {
		struct job *j = js->list[i];
		struct store_txn *t;

		if (!j->unwritten || j->committing)
			continue;
		t = begin_row(js, j);
		put_state(js, t, j);
		commit_row(js, j, t, NULL, 0);
	}
	queue_run(js->daemon->queue);
}

void jobs_retry_begin(struct jobs *js)
{
	if (!uv_is_active((uv_handle_t *)&js->retry) && js->daemon->state != DAEMON_STOPPING)
		uv_timer_start(&js->retry, on_retry, LIMIT_STORE_RETRY_MS, 0);
}

void job_change(struct jobs *js, struct job *j, enum job_event event, struct job_waiter *waiters, const char *reason, ...)
{
	enum job_state to = job_transition(j->state, event);
	struct store_txn *t;
	va_list ap;

	assert(to != JOB_NONE);
	va_start(ap, reason);
	vsnprintf(j->reason, sizeof j->reason, reason, ap);
	va_end(ap);
	log_info("job changes", "job=%" PRIu64 " name=%s from=%s to=%s step=%" PRId64 " reason=%s", j->id, j->name,
		 job_state_name(j->state), job_state_name(to), j->step, log_quote(j->reason));
	job_set_state(js, j, to);
	t = begin_row(js, j);
	put_state(js, t, j);
	commit_row(js, j, t, waiters, 0);
}
