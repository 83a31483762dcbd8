/* What clients ask of jobs: stop, pause, resume, a checkpoint; and the interrupt when the daemon stops. See jobs.h. */
#include "daemon/jobs_internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/queue.h"
#include "daemon/worker.h"

/* Passes a wish on to the worker that has the job, once per kind, and remembers the strongest. */
static void wish(struct jobs *js, struct job *j, enum job_wish w)
{
	static const enum command_kind kind[] = {
		[WISH_CHECKPOINT] = COMMAND_CHECKPOINT, [WISH_PAUSE] = COMMAND_PAUSE, [WISH_STOP] = COMMAND_STOP,
		[WISH_DISCARD] = COMMAND_STOP, [WISH_INTERRUPT] = COMMAND_INTERRUPT,
	};
	struct command c = {.kind = kind[w], .job = j->id, .discard = w == WISH_DISCARD};

	if (w >= WISH_PAUSE && w <= WISH_DISCARD && w > j->wish)
		j->wish = w;
	if (!j->sent || j->wish_sent & 1 << w)
		return; /* start_go or settle looks at j->wish */
	j->wish_sent |= 1 << w;
	workers_send(js->daemon->workers, j->worker, &c);
}

static int refuse(const struct job *j, struct fh_status *st)
{
	return fh_fail_field(st, FH_CONFLICT, "job", "job %s is %s already", j->name, job_state_name(j->state));
}

/* `w` is told when the change is durable. */
static struct job_waiter *one_waiter(enum job_wish wish_, job_done done, void *ctx)
{
	struct job_waiter *w = job_need(calloc(1, sizeof *w));

	w->wish = wish_;
	w->done = done;
	w->ctx = ctx;
	return w;
}

int jobs_stop(struct jobs *js, struct job *j, int discard, job_done done, void *ctx, struct fh_status *st)
{
	enum job_wish w = discard ? WISH_DISCARD : WISH_STOP;

	if (job_is_final(j->state))
		return refuse(j, st);
	if (j->state == JOB_RUNNING) {
		job_wait(j, w, done, ctx);
		wish(js, j, w);
		return 0;
	}
	queue_remove(js->daemon->queue, j);
	j->ended_ns = time_now_ns();
	if (j->started_ns)
		job_change(js, j, EVENT_STOP, one_waiter(w, done, ctx), "stopped by request while %s at step %" PRId64,
			   j->state == JOB_PAUSED ? "paused" : "queued", j->step);
	else
		job_change(js, j, EVENT_STOP, one_waiter(w, done, ctx), "stopped by request before it ran");
	queue_run(js->daemon->queue);
	return 0;
}

int jobs_pause(struct jobs *js, struct job *j, job_done done, void *ctx, struct fh_status *st)
{
	if (job_transition(j->state, EVENT_PAUSE) == JOB_NONE)
		return refuse(j, st);
	if (j->state == JOB_RUNNING && j->wish >= WISH_STOP)
		return fh_fail_field(st, FH_CONFLICT, "job", "job %s is about to stop", j->name);
	if (j->state == JOB_RUNNING) {
		job_wait(j, WISH_PAUSE, done, ctx);
		wish(js, j, WISH_PAUSE);
		return 0;
	}
	queue_remove(js->daemon->queue, j);
	job_change(js, j, EVENT_PAUSE, one_waiter(WISH_PAUSE, done, ctx), "paused while queued");
	queue_run(js->daemon->queue);
	return 0;
}

int jobs_resume(struct jobs *js, struct job *j, job_done done, void *ctx, struct fh_status *st)
{
	if (j->state == JOB_RUNNING && j->wish != WISH_NONE)
		return fh_fail_field(st, FH_CONFLICT, "job", "job %s is about to %s: resume it then", j->name,
				     j->wish == WISH_PAUSE ? "pause" : "stop");
	if (job_transition(j->state, EVENT_RESUME) == JOB_NONE)
		return refuse(j, st);
	if (j->state != JOB_PAUSED &&
	    (!j->last_checkpoint[0] || !checkpoints_find(js->daemon->checkpoints, j->last_checkpoint)))
		return fh_fail_field(st, FH_CONFLICT, "job", "job %s is %s and left no checkpoint to go on from: start it again under another name",
				     j->name, job_state_name(j->state));
	if (js->count[JOB_QUEUED] >= LIMIT_JOBS_QUEUED)
		return fh_fail(st, FH_EXHAUSTED, "%d jobs are queued, which is the most this daemon takes",
			       LIMIT_JOBS_QUEUED);
	j->interruptions = 0;
	j->ended_ns = 0;
	free(j->error);
	j->error = NULL;
	job_change(js, j, EVENT_RESUME, one_waiter(WISH_NONE, done, ctx), "resumed by request: goes on from step %" PRId64,
		   j->step);
	queue_add(js->daemon->queue, j);
	queue_run(js->daemon->queue);
	return 0;
}

int jobs_request_checkpoint(struct jobs *js, struct job *j, uint64_t operation, struct fh_status *st)
{
	struct job_waiter *w;

	if (j->state != JOB_RUNNING || !j->sent)
		return fh_fail_field(st, FH_CONFLICT, "job", "job %s is %s and not training: %s", j->name,
				     job_state_name(j->state),
				     j->last_checkpoint[0] ? "its last checkpoint is there already" : "there is nothing to save yet");
	job_wait(j, WISH_CHECKPOINT, NULL, NULL);
	for (w = j->waiters; w->next; w = w->next)
		;
	w->operation = operation;
	wish(js, j, WISH_CHECKPOINT);
	return 0;
}

void jobs_interrupt_all(struct jobs *js, int now)
{
	for (size_t i = 0; i < js->n; i++) {
		struct job *j = js->list[i];
		struct command c = {.kind = COMMAND_INTERRUPT, .job = j->id, .discard = now};

		if (j->state != JOB_RUNNING || !j->sent || (j->wish_sent & 1 << WISH_INTERRUPT && !now))
			continue;
		j->wish_sent |= 1 << WISH_INTERRUPT;
		workers_send(js->daemon->workers, j->worker, &c);
	}
}
