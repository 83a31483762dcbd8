/* A worker's own thread: takes commands, runs one job at a time through a trainer, sends up samples and events.
 *
 * Touches no registry and nothing of the loop but what worker_internal.h names. Invariant: every COMMAND_RUN is answered by
 * exactly one WORKER_ENDED, and the market's reference that came with it is given back before. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/crashpoint.h"
#include "daemon/daemon.h"
#include "daemon/pool.h"
#include "daemon/worker_internal.h"

/* A job on its way through run_job(). */
struct job_run {
	struct worker *w;
	const struct command_run *order;
	struct trainer *trainer;
	struct trainer_state state;
	struct worker_event end;   /* what WORKER_ENDED will say */
	int requested;             /* COMMAND_CHECKPOINT not yet served */
	int quit;
};

void worker_beat(struct worker *w, enum worker_phase phase)
{
	__atomic_store_n(&w->phase, (int)phase, __ATOMIC_RELAXED);
	__atomic_store_n(&w->beat_ns, time_mono_ns(), __ATOMIC_RELEASE);
}

static void wake_loop(struct worker *w)
{
	uv_async_send(&w->all->async);
}

static void send_event(struct worker *w, struct worker_event *e)
{
	ring_push_wait(&w->events, e);
	wake_loop(w);
}

static void show_state(struct job_run *r)
{
	pthread_mutex_lock(&r->w->shown_lock);
	r->w->shown = r->state;
	pthread_mutex_unlock(&r->w->shown_lock);
}

/* A job's reports may be dropped, the newest counts. Evaluations may not, and those of a population come by hundreds at once, as
 * do its reports: they wait for room, which the loop, awake by then, makes. */
static void send_samples(struct job_run *r)
{
	struct mail_sample m;
	struct fh_status st = FH_STATUS_INIT;

	memset(&m, 0, sizeof m);
	m.job = r->order->job;
	while (trainer_poll(r->trainer, &m.sample, &st) == 1) {
		m.time_ns = time_now_ns();
		if (m.sample.validation || r->order->spec.run.population > 1)
			ring_push_wait(&r->w->samples, &m);
		else
			ring_push_over(&r->w->samples, &m);
		wake_loop(r->w);
	}
}

static int begin(struct job_run *r, int reused, struct fh_status *st)
{
	const struct command_run *o = r->order;

	if (o->resume)
		return trainer_resume(r->trainer, &o->spec, o->market, o->checkpoint, st);
	if (o->spec.init.from == FH_INIT_WARM && !reused)
		return fh_fail_field(st, FH_CONFLICT, "init.from",
				     "warm: no trainer of this layout is parked, so there are no parameters to go on from");
	return trainer_begin(r->trainer, &o->spec, o->market, o->checkpoint[0] ? o->checkpoint : NULL, st);
}

/* Takes a trainer and puts the job into it. On failure there is no trainer. What does not fit beside parked trainers (a
 * market, say) is tried again without them. */
static int prepare(struct job_run *r, int *reused, struct fh_status *st)
{
	const struct command_run *o = r->order;
	struct pool *pool = r->w->all->pool;
	struct fh_status why;
	int rc = pool_take(pool, o->job, &o->spec, &o->memory, &r->trainer, reused, st);

	if (rc)
		return rc;
	do {
		why = (struct fh_status)FH_STATUS_INIT;
		rc = begin(r, *reused, &why);
	} while (rc == FH_EXHAUSTED && pool_evict(pool));
	if (rc) {
		*st = why;
		pool_drop(pool, r->trainer);
		r->trainer = NULL;
		return rc;
	}
	trainer_state_get(r->trainer, &r->state);
	show_state(r);
	return 0;
}

static void send_started(struct job_run *r, int reused)
{
	struct worker_event e = {.kind = WORKER_STARTED, .job = r->order->job, .state = r->state, .reused = reused};

	trainer_memory(r->trainer, &e.memory);
	send_event(r->w, &e);
}

/* A snapshot while the job goes on. */
static void send_checkpoint(struct job_run *r)
{
	struct worker_event e = {.kind = WORKER_CHECKPOINT, .job = r->order->job, .state = r->state};

	worker_beat(r->w, PHASE_LONG);
	e.requested = r->requested;
	r->requested = 0;
	if (!trainer_snapshot(r->trainer, NULL, &e.image, &e.status)) {
		e.has_image = 1;
		__atomic_add_fetch(&r->w->images, 1, __ATOMIC_RELAXED);
	}
	FHD_CRASH_POINT("worker-snapshot");
	send_samples(r); /* those in front of the checkpoint: nobody makes them again */
	send_event(r->w, &e);
	worker_beat(r->w, PHASE_RUN);
}

/* How the job ends: with a snapshot when one is wanted and can be had. */
static void finish(struct job_run *r, enum worker_end how, int snapshot)
{
	r->end.end = how;
	if (!snapshot)
		return;
	worker_beat(r->w, PHASE_LONG);
	if (!trainer_snapshot(r->trainer, NULL, &r->end.image, &r->end.status)) {
		r->end.has_image = 1;
		__atomic_add_fetch(&r->w->images, 1, __ATOMIC_RELAXED);
	}
	send_samples(r);
}

/* Commands for this job; 1 when it has to end. */
static int obey(struct job_run *r)
{
	struct command c;

	while (ring_pop(&r->w->commands, &c)) {
		if (c.kind == COMMAND_QUIT) {
			r->quit = 1;
			finish(r, END_INTERRUPTED, 0);
			return 1;
		}
		if (c.job != r->order->job)
			continue; /* meant for a job that had ended by itself */
		switch (c.kind) {
		case COMMAND_STOP:
			finish(r, END_STOPPED, !c.discard);
			return 1;
		case COMMAND_PAUSE:
			finish(r, END_PAUSED, 1);
			return 1;
		case COMMAND_INTERRUPT:
			finish(r, END_INTERRUPTED, !c.discard);
			return 1;
		case COMMAND_CHECKPOINT:
			r->requested = 1;
			break;
		default:
			assert(!"a running worker gets no other job");
		}
	}
	return 0;
}

static void train(struct job_run *r)
{
	for (;;) {
		int rc;

		worker_beat(r->w, PHASE_RUN);
		rc = trainer_run(r->trainer, LIMIT_SLICE_NS, &r->state, &r->end.status);
		show_state(r);
		send_samples(r);
		if (rc) {
			r->end.end = END_FAILED;
			return;
		}
		if (r->state.done) {
			finish(r, END_DONE, 1);
			return;
		}
		if (obey(r))
			return;
		if ((r->state.checkpoint_due || r->requested) &&
		    __atomic_load_n(&r->w->images, __ATOMIC_RELAXED) < LIMIT_SNAPSHOTS)
			send_checkpoint(r);
	}
}

/* Gives the trainer back: parked when its state is sound. A lost device is left alone, the process ends anyway. */
static void give_back(struct job_run *r)
{
	struct pool *pool = r->w->all->pool;

	if (!r->trainer || r->end.status.code == FH_DEVICE_LOST)
		return;
	if (r->end.end == END_FAILED)
		pool_drop(pool, r->trainer);
	else
		pool_park(pool, r->trainer);
}

/* 1 when the thread has to end afterwards. */
static int run_job(struct worker *w, const struct command_run *order)
{
	struct job_run r = {.w = w, .order = order};
	int reused = 0;

	r.end.kind = WORKER_ENDED;
	r.end.job = order->job;
	worker_beat(w, PHASE_LONG);
	if (prepare(&r, &reused, &r.end.status)) {
		r.end.end = END_FAILED;
	} else {
		send_started(&r, reused);
		train(&r);
	}
	r.end.state = r.state;
	give_back(&r);
	market_unref(order->market);
	worker_beat(w, PHASE_IDLE);
	send_event(w, &r.end);
	return r.quit;
}

void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct worker_event quit = {.kind = WORKER_QUIT};
	char name[16];

	snprintf(name, sizeof name, "fhd-worker-%d", w->index);
	pthread_setname_np(pthread_self(), name); /* the threads of its trainers inherit it */
	for (;;) {
		struct command c;

		while (sem_wait(&w->wake) && errno == EINTR)
			;
		if (!ring_pop(&w->commands, &c))
			continue; /* taken while a job ran */
		if (c.kind == COMMAND_QUIT)
			break;
		if (c.kind == COMMAND_RUN && run_job(w, &c.run))
			break;
	}
	send_event(w, &quit);
	return NULL;
}
