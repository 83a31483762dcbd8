/* The life of a job: every change of state, the commands of clients, and what workers report. See jobs.h.
 *
 * A running job changes state in three steps: a wish goes to its worker, the worker ends (WORKER_ENDED), and once its
 * last image is on the disk settle() makes the move and tells everybody who waited. */
#include "daemon/jobs_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/checkpoints.h"
#include "daemon/crashpoint.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/log.h"
#include "daemon/operations.h"
#include "daemon/queue.h"
#include "daemon/series.h"
#include "daemon/store.h"
#include "daemon/worker.h"

#define RATE_FIRST_NS 1000000ull   /* the first estimate of steps per second comes at once, … */
#define RATE_EVERY_NS 200000000ull /* … later ones are averaged */

static void *need(void *p)
{
	if (!p)
		abort(); /* the loop has no way on without a few bytes */
	return p;
}

void job_wait(struct job *j, enum job_wish wish, job_done done, void *ctx)
{
	struct job_waiter *w = need(calloc(1, sizeof *w)), **end = &j->waiters;

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
	struct store_event e = {j->id, time_now_ns(), (int)j->state, j->reason};

	store_put_event(t, &e);
	series_state_change(js->daemon->series, t, j->id, (Fh__V1__JobState)j->state, j->reason, (uint64_t)j->step,
			    (uint64_t)j->epoch, (uint64_t)j->vector_step);
}

static void commit_row(struct jobs *js, struct job *j, struct store_txn *t, struct job_waiter *waiters, int first)
{
	struct change *c = need(malloc(sizeof *c));

	*c = (struct change){js, j, j->state, waiters, first};
	FHD_CRASH_POINT("job-row-before");
	store_commit(js->daemon->store, t, on_stored, c);
}

void job_write(struct jobs *js, struct job *j)
{
	commit_row(js, j, begin_row(js, j), NULL, 0);
}

void job_write_new(struct jobs *js, struct job *j, const char *request_id, struct job_waiter *waiters)
{
	struct store_txn *t = begin_row(js, j);

	put_state(js, t, j);
	if (request_id && *request_id) {
		struct store_request r = {.request_id = request_id, .call = "start_job", .job = j->id,
					  .time_ns = j->created_ns};

		store_put_request(t, &r);
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

/* ---------------------------------------------------------------- a job's worker lets go of it */

/* Slots back, rates to zero; the worker itself is idle already or was never told. */
static void release(struct jobs *js, struct job *j)
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
static void settle(struct jobs *js, struct job *j, enum worker_end end, const struct fh_status *st)
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
		settle(js, j, i->end, &i->st);
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
	struct image *i = need(calloc(1, sizeof *i));

	*i = (struct image){js, j, worker, e->kind == WORKER_ENDED ? e->end : END_NONE, e->status,
			    take_checkpoint_waiters(j)};
	if (i->waiters && !strcmp(reason, "periodic"))
		reason = "request";
	j->writing++;
	js->images++;
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
}

void jobs_progress(struct jobs *js, struct job *j, const struct trainer_state *s)
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
		settle(js, j, END_FAILED, &end);
	} else {
		j->wish = WISH_NONE;
		settle(js, j, END_INTERRUPTED, &end);
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
	release(js, j);
	if (e->end == END_FAILED && e->status.code == FH_DEVICE_LOST)
		on_device_lost(js, j, &e->status);
	else if (e->has_image)
		write_image(js, j, worker, e, reason[e->end]);
	else
		settle(js, j, e->end, &e->status);
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

/* ---------------------------------------------------------------- start */

/* A job that has its slots: it is sent to its worker once its row says "running" and its market is in memory. */
struct start {
	struct jobs *js;
	struct job *job;
	struct market *market;
	struct fh_status st;
	int refused;                 /* the store did not take the row */
	int pending;
};

static void fill_order(struct jobs *js, const struct start *s, struct command_run *run)
{
	struct job *j = s->job;
	const char *checkpoint = NULL;

	run->job = j->id;
	run->spec = j->spec;
	run->market = s->market;
	run->memory_total = j->memory.total;
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
	release(js, j);
	job_set_state(js, j, JOB_QUEUED);
	j->unwritten = 0;
	snprintf(j->reason, sizeof j->reason, "waiting: its start could not be recorded on the disk");
	js->hold_until_ms = uv_now(&js->daemon->loop) + LIMIT_STORE_RETRY_MS;
	jobs_retry_begin(js);
	queue_add(js->daemon->queue, j);
}

static void start_go(struct start *s)
{
	struct jobs *js = s->js;
	struct job *j = s->job;
	int worker = j->worker;

	if (--s->pending)
		return;
	FHD_CRASH_POINT("job-started");
	if (s->refused && !s->st.code && j->wish == WISH_NONE) {
		back_to_queue(s);
	} else if (s->st.code || j->wish != WISH_NONE || js->daemon->state == DAEMON_STOPPING) {
		market_unref(s->market);
		workers_unreserve(js->daemon->workers, worker);
		release(js, j);
		settle(js, j, s->st.code ? END_FAILED : END_INTERRUPTED, &s->st);
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

void jobs_start(struct jobs *js, struct job *j)
{
	struct daemon *d = js->daemon;
	struct start *s = need(calloc(1, sizeof *s));
	struct job_waiter *w = need(calloc(1, sizeof *w));

	s->js = js;
	s->job = j;
	s->pending = 2;
	w->done = on_start_stored;
	w->ctx = s;
	j->worker = workers_idle(d->workers);
	assert(j->worker >= 0);
	workers_reserve(d->workers, j->worker, j->id);
	j->started_ns = time_now_ns();
	j->ended_ns = 0;
	j->phase = TRAINER_WARMUP;
	j->rate_ns = 0;
	j->steps_per_second = 0;
	snprintf(j->device, sizeof j->device, "%s", d->device.name);
	if (j->last_checkpoint[0])
		job_change(js, j, EVENT_START, w, "goes on from step %" PRId64, j->step);
	else
		job_change(js, j, EVENT_START, w, "starting");
	if (check_start(js, j, &s->st))
		start_go(s);
	else
		datasets_acquire(d->datasets, j->spec.data.dataset, j->dataset_hash, j->spec.env.tick, on_market, s);
}

/* ---------------------------------------------------------------- what clients ask for */

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
	struct job_waiter *w = need(calloc(1, sizeof *w));

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
