/* The training threads; see worker.h. The upper half runs on a worker's thread, the lower half on the loop. What both
 * touch: the three rings, `shown` under its lock, and the atomics beat_ns, phase and images. */
#include "daemon/worker.h"

#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/crashpoint.h"
#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/log.h"
#include "daemon/pool.h"
#include "daemon/series.h"

#define PROGRESS_EVERY_MS 250

enum worker_phase { PHASE_IDLE, PHASE_LONG, PHASE_RUN };

struct worker {
	struct workers *all;
	int index;
	pthread_t thread;
	sem_t wake;
	struct ring commands, samples, events;
	pthread_mutex_t shown_lock;
	struct trainer_state shown;   /* under shown_lock */
	uint64_t beat_ns;             /* atomic: CLOCK_MONOTONIC of the last sign of life */
	int phase;                    /* atomic: enum worker_phase */
	int images;                   /* atomic: snapshots handed up and not yet written */
	/* loop */
	uint64_t job;                 /* 0 = idle */
	int running, quitting, joined;
};

struct workers {
	struct daemon *daemon;
	struct pool *pool;
	uv_async_t async;
	uv_timer_t progress;
	int open_handles;
	int n;
	struct worker worker[LIMIT_SLOTS];
};

/* ---------------------------------------------------------------- worker thread */

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

static void beat(struct worker *w, enum worker_phase phase)
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

static void send_samples(struct job_run *r)
{
	struct mail_sample m;
	struct fh_status st = FH_STATUS_INIT;
	int n = 0;

	memset(&m, 0, sizeof m);
	m.job = r->order->job;
	while (trainer_poll(r->trainer, &m.sample, &st) == 1) {
		m.time_ns = time_now_ns();
		ring_push_over(&r->w->samples, &m);
		n++;
	}
	if (n)
		wake_loop(r->w);
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

	beat(r->w, PHASE_LONG);
	e.requested = r->requested;
	r->requested = 0;
	if (!trainer_snapshot(r->trainer, NULL, &e.image, &e.status)) {
		e.has_image = 1;
		__atomic_add_fetch(&r->w->images, 1, __ATOMIC_RELAXED);
	}
	FHD_CRASH_POINT("worker-snapshot");
	send_samples(r); /* those in front of the checkpoint: nobody makes them again */
	send_event(r->w, &e);
	beat(r->w, PHASE_RUN);
}

/* How the job ends: with a snapshot when one is wanted and can be had. */
static void finish(struct job_run *r, enum worker_end how, int snapshot)
{
	r->end.end = how;
	if (!snapshot)
		return;
	beat(r->w, PHASE_LONG);
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

		beat(r->w, PHASE_RUN);
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
	beat(w, PHASE_LONG);
	if (prepare(&r, &reused, &r.end.status)) {
		r.end.end = END_FAILED;
	} else {
		send_started(&r, reused);
		train(&r);
	}
	r.end.state = r.state;
	give_back(&r);
	market_unref(order->market);
	beat(w, PHASE_IDLE);
	send_event(w, &r.end);
	return r.quit;
}

static void *worker_main(void *arg)
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

/* ---------------------------------------------------------------- loop */

static Fh__V1__MetricValue *sample_values(const struct trainer_sample *s, Fh__V1__MetricValue *value,
					  Fh__V1__MetricValue **list)
{
	for (int i = 0; i < s->values; i++) {
		fh__v1__metric_value__init(&value[i]);
		value[i].name = (char *)s->metric[i]->name;
		value[i].has_value = 1;
		value[i].value = s->value[i];
		list[i] = &value[i];
	}
	return value;
}

static void deliver_sample(struct daemon *d, const struct mail_sample *m)
{
	static const char *const split_name[FH_SPLITS] = {"train", "validation", "test"};
	Fh__V1__MetricValue value[METRIC_MAX], *list[METRIC_MAX];
	Fh__V1__Sample s = FH__V1__SAMPLE__INIT;
	const struct job *j = jobs_by_id(d->jobs, m->job);

	sample_values(&m->sample, value, list);
	s.has_kind = s.has_time_ns = s.has_step = s.has_epoch = s.has_vector_step = s.has_trial = s.has_job = 1;
	s.kind = m->sample.validation ? FH__V1__SAMPLE_KIND__VALIDATION : FH__V1__SAMPLE_KIND__REPORT;
	s.job = m->job;
	s.time_ns = m->time_ns;
	s.step = (uint64_t)m->sample.step;
	s.epoch = (uint64_t)m->sample.epoch;
	s.vector_step = (uint64_t)m->sample.vector_step;
	s.trial = (uint32_t)m->sample.trial;
	s.n_value = (size_t)m->sample.values;
	s.value = list;
	if (m->sample.validation) {
		s.split = (char *)split_name[m->sample.split];
		s.has_policy = 1;
		s.policy = (Fh__V1__Policy)m->sample.policy;
	}
	if (m->sample.validation && j && m->sample.policy != j->spec.run.validate_policy)
		series_append_aside(d->series, m->job, &s);
	else
		series_append(d->series, m->job, &s);
}

/* Events are taken out first, then samples, then the events are handled: a sample that was sent before an event is
 * never handled after it. */
static void drain(struct worker *w)
{
	static struct worker_event events[LIMIT_EVENTS]; /* loop thread only */
	struct daemon *d = w->all->daemon;
	struct mail_sample m;
	int n = 0;

	while (n < LIMIT_EVENTS && ring_pop(&w->events, &events[n]))
		n++;
	while (ring_pop(&w->samples, &m))
		deliver_sample(d, &m);
	for (int i = 0; i < n; i++) {
		if (events[i].kind == WORKER_QUIT) {
			pthread_join(w->thread, NULL);
			w->joined = 1;
			continue;
		}
		if (events[i].kind == WORKER_ENDED)
			w->job = 0;
		jobs_worker_event(d->jobs, &events[i]);
	}
}

static void on_async(uv_async_t *async)
{
	struct workers *all = async->data;

	for (int i = 0; i < all->n; i++)
		if (all->worker[i].running && !all->worker[i].joined)
			drain(&all->worker[i]);
}

static void on_progress(uv_timer_t *timer)
{
	struct workers *all = timer->data;

	for (int i = 0; i < all->n; i++) {
		struct worker *w = &all->worker[i];
		struct job *j = w->job ? jobs_by_id(all->daemon->jobs, w->job) : NULL;

		if (j)
			jobs_refresh(all->daemon->jobs, j);
	}
}

static int worker_start(struct workers *all, int i, struct fh_status *st)
{
	struct worker *w = &all->worker[i];
	sigset_t block, old;
	int rc;

	w->all = all;
	w->index = i;
	if ((rc = ring_init(&w->commands, sizeof(struct command), LIMIT_COMMANDS, st)) ||
	    (rc = ring_init(&w->samples, sizeof(struct mail_sample), LIMIT_SAMPLES, st)) ||
	    (rc = ring_init(&w->events, sizeof(struct worker_event), LIMIT_EVENTS, st)))
		return rc;
	sem_init(&w->wake, 0, 0);
	pthread_mutex_init(&w->shown_lock, NULL);
	sigfillset(&block);
	pthread_sigmask(SIG_BLOCK, &block, &old);
	rc = pthread_create(&w->thread, NULL, worker_main, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return fh_fail(st, FH_EXHAUSTED, "cannot start worker thread %d: %s", i, strerror(rc));
	w->running = 1;
	return 0;
}

int workers_new(struct daemon *d, int slots, struct workers **out, struct fh_status *st)
{
	struct workers *all = calloc(1, sizeof *all);
	int rc = 0;

	assert(slots >= 1 && slots <= LIMIT_SLOTS);
	if (!all)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the workers");
	all->daemon = d;
	all->pool = d->pool;
	all->n = slots;
	all->async.data = all->progress.data = all;
	if (uv_async_init(&d->loop, &all->async, on_async) || uv_timer_init(&d->loop, &all->progress)) {
		free(all);
		return fh_fail(st, FH_EXHAUSTED, "the event loop takes no more handles");
	}
	all->open_handles = 2;
	uv_timer_start(&all->progress, on_progress, PROGRESS_EVERY_MS, PROGRESS_EVERY_MS);
	for (int i = 0; i < slots && !rc; i++)
		rc = worker_start(all, i, st);
	if (rc) {
		while (!workers_quit(all))
			uv_run(&d->loop, UV_RUN_ONCE);
		workers_free(all);
		return rc;
	}
	*out = all;
	return 0;
}

int workers_idle(const struct workers *all)
{
	for (int i = 0; i < all->n; i++)
		if (!all->worker[i].job && !all->worker[i].quitting)
			return i;
	return -1;
}

void workers_reserve(struct workers *all, int worker, uint64_t job)
{
	assert(all->worker[worker].job == 0);
	all->worker[worker].job = job;
}

void workers_unreserve(struct workers *all, int worker)
{
	all->worker[worker].job = 0;
}

void workers_send(struct workers *all, int worker, const struct command *c)
{
	struct worker *w = &all->worker[worker];
	int fits;

	if (c->kind == COMMAND_RUN) {
		beat(w, PHASE_LONG);
		pthread_mutex_lock(&w->shown_lock);
		memset(&w->shown, 0, sizeof w->shown);
		pthread_mutex_unlock(&w->shown_lock);
	}
	fits = ring_push(&w->commands, c);
	assert(fits); /* a job gets at most one command of each kind, see jobs.c */
	(void)fits;
	sem_post(&w->wake);
}

void workers_written(struct workers *all, int worker)
{
	__atomic_sub_fetch(&all->worker[worker].images, 1, __ATOMIC_RELAXED);
}

void workers_state(struct workers *all, int worker, struct trainer_state *out)
{
	struct worker *w = &all->worker[worker];

	pthread_mutex_lock(&w->shown_lock);
	*out = w->shown;
	pthread_mutex_unlock(&w->shown_lock);
}

int workers_alive(struct workers *all, int *which)
{
	uint64_t now = time_mono_ns();

	for (int i = 0; i < all->n; i++) {
		struct worker *w = &all->worker[i];
		uint64_t last = __atomic_load_n(&w->beat_ns, __ATOMIC_ACQUIRE);
		int phase = __atomic_load_n(&w->phase, __ATOMIC_RELAXED);
		uint64_t allowed_s = phase == PHASE_RUN ? LIMIT_STALL_S : LIMIT_LONG_PHASE_S;

		if (!w->running || phase == PHASE_IDLE || now < last)
			continue;
		if (now - last > allowed_s * 1000000000ull) {
			*which = i;
			return 0;
		}
	}
	return 1;
}

uint64_t workers_dropped(struct workers *all)
{
	uint64_t n = 0;

	for (int i = 0; i < all->n; i++)
		n += ring_dropped(&all->worker[i].samples);
	return n;
}

int workers_quit(struct workers *all)
{
	struct command quit = {.kind = COMMAND_QUIT};
	int left = 0;

	for (int i = 0; i < all->n; i++) {
		struct worker *w = &all->worker[i];

		if (!w->running || w->joined)
			continue;
		left++;
		if (!w->quitting)
			workers_send(all, i, &quit);
		w->quitting = 1;
	}
	return left == 0;
}

static void on_closed(uv_handle_t *h)
{
	struct workers *all = h->data;

	if (--all->open_handles == 0)
		free(all);
}

void workers_free(struct workers *all)
{
	if (!all)
		return;
	for (int i = 0; i < all->n; i++) {
		struct worker *w = &all->worker[i];

		assert(!w->running || w->joined);
		ring_release(&w->commands);
		ring_release(&w->samples);
		ring_release(&w->events);
		if (w->running) {
			sem_destroy(&w->wake);
			pthread_mutex_destroy(&w->shown_lock);
		}
	}
	uv_close((uv_handle_t *)&all->async, on_closed);
	uv_close((uv_handle_t *)&all->progress, on_closed);
}
