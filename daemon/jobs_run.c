/* What workers report: progress, checkpoints, the end of a job. See jobs.h.
 *
 * A running job changes state in three steps: a wish goes to its worker (jobs_ask.c), the worker ends (WORKER_ENDED),
 * and once its last image is on the disk job_settle() makes the move and tells everybody who waited. */
#include "daemon/jobs_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/checkpoints.h"
#include "daemon/crashpoint.h"
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/operations.h"
#include "daemon/queue.h"
#include "daemon/worker.h"

#define RATE_FIRST_NS 1000000ull   /* the first estimate of steps per second comes at once, … */
#define RATE_EVERY_NS 200000000ull /* … later ones are averaged */

/* ---------------------------------------------------------------- a job's worker lets go of it */

/* Slots back, rates to zero; the worker itself is idle already or was never told. */
void job_release(struct jobs *js, struct job *j)
{
	queue_release(js->daemon->queue, j);
	j->worker = -1;
	j->sent = 0;
	j->steps_per_second = 0;
}

/* Where to in the end; `end` is what the worker did, j->wish what clients asked for meanwhile. */
static enum job_event end_event(const struct job *j, enum worker_end end)
{
	if (end == END_DONE)
		return EVENT_FINISH;
	if (end == END_FAILED)
		return EVENT_FAIL;
	if (end == END_STOPPED || j->wish == WISH_STOP || j->wish == WISH_DISCARD)
		return EVENT_STOP;
	if (end == END_PAUSED || j->wish == WISH_PAUSE)
		return EVENT_PAUSE;
	return EVENT_INTERRUPT;
}

static void end_reason(const struct job *j, enum job_event event, const struct fh_status *st, char *text, size_t size)
{
	static const char *const word[EVENT_COUNT] = {
		[EVENT_FINISH] = "all %s steps done", [EVENT_STOP] = "stopped by request at step %s",
		[EVENT_PAUSE] = "paused at step %s", [EVENT_INTERRUPT] = "interrupted: the daemon stops; goes on from step %s",
	};
	char step[24];
	int n;

	if (event == EVENT_FAIL) {
		snprintf(text, size, "%.*s", LIMIT_REASON - 1, st->text);
		return;
	}
	snprintf(step, sizeof step, "%" PRId64, j->step);
	n = snprintf(text, size, word[event], step);
	if (st->code && n > 0 && (size_t)n < size)
		snprintf(text + n, size - (size_t)n, "; no checkpoint of it: %.*s", LIMIT_REASON / 2, st->text);
}

/* The worker is gone and its image is on the disk (or lost, then st says why). */
void job_settle(struct jobs *js, struct job *j, enum worker_end end, const struct fh_status *st)
{
	enum job_event event = end_event(j, end);
	struct job_waiter *waiters = j->waiters;
	char reason[LIMIT_REASON];

	end_reason(j, event, st, reason, sizeof reason);
	if (event == EVENT_FAIL)
		job_fail_with(j, st);
	if (event == EVENT_FINISH || event == EVENT_FAIL || event == EVENT_STOP)
		j->ended_ns = time_now_ns();
	if (event == EVENT_INTERRUPT && j->step > 0 && !j->last_checkpoint[0])
		j->step = j->epoch = j->vector_step = 0;
	j->waiters = NULL;
	j->wish = WISH_NONE;
	j->wish_sent = 0;
	job_change(js, j, event, waiters, "%s", reason);
	if (event == EVENT_INTERRUPT)
		queue_add(js->daemon->queue, j);
	queue_run(js->daemon->queue);
}

/* ---------------------------------------------------------------- images */

struct image {
	struct jobs *js;
	struct job *job;
	int worker;
	enum worker_end end;           /* END_NONE: the job goes on */
	struct fh_status st;           /* of the end */
	struct job_waiter *waiters;    /* who asked for this checkpoint */
};

static void on_image(void *arg, int code, const struct checkpoint *c, const struct fh_status *st)
{
	static const struct fh_status fine = FH_STATUS_INIT;
	struct image *i = arg;
	struct jobs *js = i->js;
	struct job *j = i->job;
	struct job_waiter *w;

	workers_written(js->daemon->workers, i->worker);
	j->writing--;
	js->images--;
	js->finishing -= i->end != END_NONE;
	FHD_CRASH_POINT("checkpoint-registered");
	if (code) {
		log_status(LOG_ERROR, "a checkpoint could not be written", st);
		if (!i->st.code)
			i->st = *st;
	} else {
		snprintf(j->last_checkpoint, sizeof j->last_checkpoint, "%s", c->id);
		if (i->end == END_NONE)
			job_write(js, j);
	}
	while ((w = i->waiters)) {
		i->waiters = w->next;
		operation_finish_checkpoint(js->daemon->operations, w->operation, code, j->last_checkpoint,
					    code ? st : &fine);
		free(w);
	}
	if (i->end != END_NONE)
		job_settle(js, j, i->end, &i->st);
	free(i);
	queue_run(js->daemon->queue); /* it may have waited for the disk */
}

/* Takes those out of j->waiters who asked for a checkpoint. */
static struct job_waiter *take_checkpoint_waiters(struct job *j)
{
	struct job_waiter *taken = NULL, **p = &j->waiters;

	while (*p) {
		struct job_waiter *w = *p;

		if (w->wish != WISH_CHECKPOINT) {
			p = &w->next;
			continue;
		}
		*p = w->next;
		w->next = taken;
		taken = w;
	}
	return taken;
}

static void write_image(struct jobs *js, struct job *j, int worker, struct worker_event *e, const char *reason)
{
	struct image *i = job_need(calloc(1, sizeof *i));

	*i = (struct image){js, j, worker, e->kind == WORKER_ENDED ? e->end : END_NONE, e->status,
			    take_checkpoint_waiters(j)};
	if (i->waiters && !strcmp(reason, "periodic"))
		reason = "request";
	j->writing++;
	js->images++;
	js->finishing += i->end != END_NONE;
	e->has_image = 0;
	checkpoints_add(js->daemon->checkpoints, j->id, (uint64_t)e->state.step, reason, j->spec.run.keep_checkpoints,
			&e->image, on_image, i);
}

/* ---------------------------------------------------------------- what workers report */

static void take_state(struct job *j, const struct trainer_state *s)
{
	j->phase = s->phase;
	j->step = s->step;
	j->epoch = s->epoch;
	j->vector_step = s->vector_step;
	j->first_step_ns = (uint64_t)s->first_step_ns;
	j->progress_ns = (uint64_t)s->seen_ns;
}

static void jobs_progress(struct jobs *js, struct job *j, const struct trainer_state *s)
{
	uint64_t now = time_mono_ns();
	double rate;

	(void)js;
	if (s->planned == 0)
		return; /* the worker has not come to it yet */
	take_state(j, s);
	if (!j->rate_ns) {
		j->rate_ns = now;
		j->rate_step = s->step;
		return;
	}
	if (now - j->rate_ns < (j->steps_per_second > 0 ? RATE_EVERY_NS : RATE_FIRST_NS) || s->step == j->rate_step)
		return;
	rate = (double)(s->step - j->rate_step) * 1e9 / (double)(now - j->rate_ns);
	j->steps_per_second = j->steps_per_second > 0 ? 0.8 * j->steps_per_second + 0.2 * rate : rate;
	j->rate_ns = now;
	j->rate_step = s->step;
}

void jobs_refresh(struct jobs *js, struct job *j)
{
	struct trainer_state s;

	if (j->state != JOB_RUNNING || !j->sent)
		return;
	workers_state(js->daemon->workers, j->worker, &s);
	jobs_progress(js, j, &s);
}

static void on_started(struct job *j, const struct worker_event *e)
{
	take_state(j, &e->state);
	j->rate_ns = time_mono_ns();
	j->rate_step = j->step;
	j->memory = e->memory;
	snprintf(j->reason, sizeof j->reason, "%s%s", j->last_checkpoint[0] ? "goes on from its checkpoint" : "running",
		 e->reused ? ", on a parked trainer" : "");
	log_info("job runs", "job=%" PRIu64 " name=%s step=%" PRId64 " reused=%d", j->id, j->name, j->step, e->reused);
}

static void on_checkpoint(struct jobs *js, struct job *j, struct worker_event *e)
{
	struct job_waiter *w;

	j->wish_sent &= ~(1 << WISH_CHECKPOINT);
	if (e->has_image) {
		write_image(js, j, j->worker, e, "periodic");
		return;
	}
	log_status(LOG_ERROR, "a snapshot could not be taken", &e->status);
	for (w = take_checkpoint_waiters(j); w;) {
		struct job_waiter *next = w->next;

		operation_finish_checkpoint(js->daemon->operations, w->operation, e->status.code, "", &e->status);
		free(w);
		w = next;
	}
}

/* The device's context is lost: the job's row goes back to the queue and the process ends, see daemon_device_lost(). */
static void on_device_lost(struct jobs *js, struct job *j, const struct fh_status *st)
{
	struct fh_status end = *st;

	log_status(LOG_ERROR, "the device is lost", st);
	j->interruptions++;
	if (j->spec.run.on_interrupt == FH_INTERRUPT_FAIL || j->interruptions > LIMIT_INTERRUPTIONS) {
		job_settle(js, j, END_FAILED, &end);
	} else {
		j->wish = WISH_NONE;
		job_settle(js, j, END_INTERRUPTED, &end);
	}
	daemon_device_lost(js->daemon);
}

static void on_ended(struct jobs *js, struct job *j, struct worker_event *e)
{
	static const char *const reason[] = {
		[END_DONE] = "final", [END_STOPPED] = "stop", [END_PAUSED] = "pause", [END_INTERRUPTED] = "shutdown",
		[END_FAILED] = "failed",
	};
	int worker = j->worker;

	if (e->state.planned)
		take_state(j, &e->state);
	job_release(js, j);
	if (e->end == END_FAILED && e->status.code == FH_DEVICE_LOST)
		on_device_lost(js, j, &e->status);
	else if (e->has_image)
		write_image(js, j, worker, e, reason[e->end]);
	else
		job_settle(js, j, e->end, &e->status);
	queue_run(js->daemon->queue); /* the slots are free, even while the image is being written */
}

void jobs_worker_event(struct jobs *js, struct worker_event *e)
{
	struct job *j = jobs_by_id(js, e->job);

	assert(j && j->state == JOB_RUNNING);
	switch (e->kind) {
	case WORKER_STARTED:
		on_started(j, e);
		break;
	case WORKER_CHECKPOINT:
		on_checkpoint(js, j, e);
		break;
	case WORKER_ENDED:
		on_ended(js, j, e);
		break;
	case WORKER_QUIT:
		break;
	}
}

int jobs_disk_keeps_up(const struct jobs *js)
{
	return js->images < LIMIT_IMAGES && uv_now(&js->daemon->loop) >= js->hold_until_ms;
}

int jobs_idle(const struct jobs *js)
{
	for (size_t i = 0; i < js->n; i++) {
		const struct job *j = js->list[i];

		if (j->state == JOB_RUNNING || j->writing || j->committing)
			return 0;
	}
	return 1;
}
