/* The training threads as the loop sees them; see worker.h. What runs on them is worker_thread.c. */
#include "daemon/worker.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/series.h"
#include "daemon/worker_internal.h"

#define PROGRESS_EVERY_MS 250

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
		worker_beat(w, PHASE_LONG);
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
