/* From slots to a worker that trains: a job is sent to its worker once its row says "running" and its market is in
 * memory. See jobs.h. */
#include "daemon/jobs_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/checkpoints.h"
#include "daemon/crashpoint.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/queue.h"
#include "daemon/worker.h"

/* A job that has its slots. */
struct start {
	struct jobs *js;
	struct job *job;
	struct market *market;
	struct fh_status st;
	struct fh_status row;        /* what the store said of the row */
	int refused;                 /* the store did not take the row */
	int first;                   /* which was its first one: the job was never there */
	int pending;
};

static void fill_order(struct jobs *js, const struct start *s, struct command_run *run)
{
	struct job *j = s->job;
	const char *checkpoint = NULL;

	run->job = j->id;
	run->spec = j->spec;
	run->market = s->market;
	run->memory = j->memory;
	run->resume = j->last_checkpoint[0] != 0;
	if (run->resume)
		checkpoint = j->last_checkpoint;
	else if (j->spec.init.from == FH_INIT_CHECKPOINT)
		checkpoint = j->spec.init.checkpoint;
	if (checkpoint)
		checkpoints_path(js->daemon->checkpoints, checkpoint, run->checkpoint, sizeof run->checkpoint);
}

/* The disk is full, say: as if it had never been tried, and nothing is tried for a while. */
static void back_to_queue(struct start *s)
{
	struct jobs *js = s->js;
	struct job *j = s->job;

	market_unref(s->market);
	workers_unreserve(js->daemon->workers, j->worker);
	job_release(js, j);
	job_set_state(js, j, JOB_QUEUED);
	j->unwritten = 0;
	snprintf(j->reason, sizeof j->reason, "waiting: its start could not be recorded on the disk");
	js->hold_until_ms = uv_now(&js->daemon->loop) + LIMIT_STORE_RETRY_MS;
	jobs_retry_begin(js);
	queue_add(js->daemon->queue, j);
}

static void never_was(struct start *s)
{
	struct jobs *js = s->js;
	struct job *j = s->job;

	market_unref(s->market);
	workers_unreserve(js->daemon->workers, j->worker);
	job_release(js, j);
	job_forget_new(js, j, &s->row);
	queue_run(js->daemon->queue);
}

static void start_go(struct start *s)
{
	struct jobs *js = s->js;
	struct job *j = s->job;
	int worker = j->worker;

	if (--s->pending)
		return;
	FHD_CRASH_POINT("job-started");
	if (s->refused && s->first) {
		never_was(s);
	} else if (s->refused && !s->st.code && j->wish == WISH_NONE) {
		back_to_queue(s);
	} else if (s->st.code || j->wish != WISH_NONE || js->daemon->state == DAEMON_STOPPING) {
		market_unref(s->market);
		workers_unreserve(js->daemon->workers, worker);
		job_release(js, j);
		job_settle(js, j, s->st.code ? END_FAILED : END_INTERRUPTED, &s->st);
	} else {
		struct command c = {.kind = COMMAND_RUN, .job = j->id};

		fill_order(js, s, &c.run);
		j->sent = 1;
		workers_send(js->daemon->workers, worker, &c);
	}
	free(s);
}

static void on_start_stored(void *ctx, struct job *j, const struct fh_status *st)
{
	struct start *s = ctx;

	(void)j;
	s->row = *st;
	s->refused = st->code != 0;
	start_go(s);
}

static void on_market(void *arg, int code, struct market *m, const struct fh_status *st)
{
	struct start *s = arg;

	if (code)
		s->st = *st;
	else
		s->market = m;
	start_go(s);
}

static int check_start(struct jobs *js, const struct job *j, struct fh_status *st)
{
	const struct backend *b = js->daemon->backend;

	if (j->spec.run.device != (int)b->kind)
		return fh_fail_field(st, FH_UNAVAILABLE, "run.device", "the job was accepted for another device than %s, which is what this daemon runs on",
				     b->name);
	if (!j->last_checkpoint[0] && j->spec.init.from == FH_INIT_CHECKPOINT &&
	    !checkpoints_find(js->daemon->checkpoints, j->spec.init.checkpoint))
		return fh_fail_field(st, FH_NOT_FOUND, "init.checkpoint", "there is no checkpoint %s",
				     j->spec.init.checkpoint);
	return 0;
}

/* The job has its slots: a worker is kept for it, its market comes. It goes when both that and its row are there. */
static struct job_waiter *start_new(struct jobs *js, struct job *j, int first)
{
	struct daemon *d = js->daemon;
	struct start *s = job_need(calloc(1, sizeof *s));
	struct job_waiter *w = job_need(calloc(1, sizeof *w));

	s->js = js;
	s->job = j;
	s->first = first;
	s->pending = 2;
	w->done = on_start_stored;
	w->ctx = s;
	j->worker = workers_idle(d->workers);
	assert(j->worker >= 0);
	workers_reserve(d->workers, j->worker, j->id);
	j->started_ns = time_now_ns();
	j->ended_ns = 0;
	j->phase = TRAINER_WARMUP;
	j->rate_ns = j->first_step_ns = 0;
	j->steps_per_second = 0;
	snprintf(j->device, sizeof j->device, "%s", d->device.name);
	return w;
}

static void fetch_market(struct start *s)
{
	struct job *j = s->job;

	if (check_start(s->js, j, &s->st))
		start_go(s);
	else
		datasets_acquire_for(s->js->daemon->datasets, j->spec.data.dataset, j->dataset_hash, &j->spec, on_market, s);
}

struct job_waiter *jobs_start_new(struct jobs *js, struct job *j)
{
	struct job_waiter *w = start_new(js, j, 1);

	fetch_market(w->ctx); /* the row cannot be there before */
	return w;
}

void jobs_start(struct jobs *js, struct job *j)
{
	struct job_waiter *w = start_new(js, j, 0);
	struct start *s = w->ctx;

	if (j->last_checkpoint[0])
		job_change(js, j, EVENT_START, w, "goes on from step %" PRId64, j->step);
	else
		job_change(js, j, EVENT_START, w, "starting");
	fetch_market(s);
}
