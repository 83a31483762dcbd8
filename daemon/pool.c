/* Trainers and the device's memory; see pool.h. */
#include "daemon/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/daemon.h"
#include "daemon/log.h"
#include "proto/status.h"

struct member {
	struct trainer *trainer;
	uint64_t job;              /* its last one */
	int live;                  /* a worker has it */
	struct memory_plan memory; /* planned */
};

struct pool {
	const struct backend *backend;
	struct device_info info;
	size_t limit;
	int park_max;
	pthread_mutex_t lock;
	pthread_cond_t wake;                  /* of the thread that looks */
	struct member member[LIMIT_TRAINERS]; /* of those without a job [0] was parked first */
	int members;
	size_t coming;                        /* bytes of trainers that are being made */
	struct pool_stats stats;
	struct device_memory device;          /* as last seen */
	uint64_t seen_ns;
	pthread_t looker;
	int looking, ending;
};

static double mib(size_t bytes)
{
	return (double)bytes / 1048576;
}

/* ---------------------------------------------------------------- the device */

static void look(struct pool *p)
{
	struct device_memory now;

	if (p->backend->memory(p->backend, &now, NULL))
		return;
	pthread_mutex_lock(&p->lock);
	p->device = now;
	p->seen_ns = time_mono_ns();
	pthread_mutex_unlock(&p->lock);
}

static void *looker_main(void *arg)
{
	struct pool *p = arg;

	pthread_mutex_lock(&p->lock);
	while (!p->ending) {
		struct timespec until;
		int rc = 0;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += LIMIT_DEVICE_LOOK_S;
		while (!p->ending && rc != ETIMEDOUT)
			rc = pthread_cond_timedwait(&p->wake, &p->lock, &until);
		if (p->ending)
			break;
		pthread_mutex_unlock(&p->lock);
		look(p);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

uint64_t pool_device(struct pool *p, struct device_memory *out)
{
	uint64_t seen;

	pthread_mutex_lock(&p->lock);
	*out = p->device;
	seen = p->seen_ns;
	pthread_mutex_unlock(&p->lock);
	return seen;
}

/* ---------------------------------------------------------------- life */

static int start_looker(struct pool *p, struct fh_status *st)
{
	pthread_condattr_t attr;
	sigset_t block, old;
	int rc;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->wake, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&block);
	pthread_sigmask(SIG_BLOCK, &block, &old);
	rc = pthread_create(&p->looker, NULL, looker_main, p);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return fh_fail(st, FH_EXHAUSTED, "no thread that looks at the device: %s", strerror(rc));
	p->looking = 1;
	return 0;
}

int pool_new(const struct backend *b, size_t limit_bytes, int park_max, struct pool **out, struct fh_status *st)
{
	struct pool *p = calloc(1, sizeof *p);
	int rc;

	if (!p)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the trainer pool");
	p->backend = b;
	p->limit = limit_bytes;
	p->park_max = park_max < LIMIT_PARKED ? park_max : LIMIT_PARKED;
	pthread_mutex_init(&p->lock, NULL);
	rc = b->info(b, &p->info, st);
	if (!rc) {
		look(p);
		rc = start_looker(p, st);
	}
	if (rc) {
		pool_free(p);
		return rc;
	}
	*out = p;
	return 0;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	if (p->looking) {
		pthread_mutex_lock(&p->lock);
		p->ending = 1;
		pthread_cond_signal(&p->wake);
		pthread_mutex_unlock(&p->lock);
		pthread_join(p->looker, NULL);
		pthread_cond_destroy(&p->wake);
	}
	for (int i = 0; i < p->members; i++)
		trainer_free(p->member[i].trainer);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

/* ---------------------------------------------------------------- the list, lock held */

static size_t bytes_of(const struct pool *p, int live)
{
	size_t sum = live ? p->coming : 0;

	for (int i = 0; i < p->members; i++)
		sum += p->member[i].live == live ? p->member[i].memory.total : 0;
	return sum;
}

static struct trainer *take_out(struct pool *p, int i)
{
	struct trainer *t = p->member[i].trainer;

	p->members--;
	memmove(&p->member[i], &p->member[i + 1], (size_t)(p->members - i) * sizeof p->member[0]);
	return t;
}

static int find(const struct pool *p, const struct trainer *t)
{
	int i = 0;

	while (p->member[i].trainer != t)
		i++;
	return i;
}

static int count_parked(const struct pool *p)
{
	int n = 0;

	for (int i = 0; i < p->members; i++)
		n += !p->member[i].live;
	return n;
}

/* The one parked first, out of the list; NULL when none is. */
static struct trainer *take_oldest(struct pool *p)
{
	for (int i = 0; i < p->members; i++)
		if (!p->member[i].live) {
			p->stats.evicted++;
			return take_out(p, i);
		}
	return NULL;
}

static struct trainer *take_fitting(struct pool *p, uint64_t job, const struct fh_spec *spec, const struct memory_plan *m)
{
	for (int i = p->members; i-- > 0;)
		if (!p->member[i].live && trainer_fits(p->member[i].trainer, spec)) {
			p->member[i].live = 1;
			p->member[i].job = job;
			p->member[i].memory = *m;
			p->stats.reused++;
			return p->member[i].trainer;
		}
	return NULL;
}

/* ---------------------------------------------------------------- admission */

static size_t budget(const struct pool *p)
{
	size_t there = p->device.free + bytes_of(p, 0) + bytes_of(p, 1);

	return !p->device.free || there > p->limit ? p->limit : there; /* no number of free bytes: nobody knows */
}

size_t pool_budget(struct pool *p)
{
	size_t bytes;

	pthread_mutex_lock(&p->lock);
	bytes = budget(p);
	pthread_mutex_unlock(&p->lock);
	return bytes;
}

int pool_admits(struct pool *p, const struct memory_plan *m, struct fh_status *st)
{
	size_t there, free_bytes, others;

	if (m->total > p->limit)
		return fh_fail(st, FH_EXHAUSTED, "the job needs %.1f MiB, this daemon gives trainers %.1f MiB (setting memory)", mib(m->total),
			       mib(p->limit));
	pthread_mutex_lock(&p->lock);
	there = budget(p);
	free_bytes = p->device.free;
	others = p->device.others;
	pthread_mutex_unlock(&p->lock);
	if (m->total <= there)
		return 0;
	return fh_fail(st, FH_EXHAUSTED,
		       "the job needs %.1f MiB on %s; %.1f MiB are free, %.1f MiB with what this daemon's own trainers hold (others hold %.1f MiB)",
		       mib(m->total), p->info.name, mib(free_bytes), mib(there), mib(others));
}

/* ---------------------------------------------------------------- taking */

/* 1 when the new trainer does not fit beside what is there. */
static int is_short(struct pool *p, size_t bytes)
{
	int less;

	look(p);
	pthread_mutex_lock(&p->lock);
	less = (p->device.free && p->device.free < bytes) || bytes_of(p, 0) + bytes_of(p, 1) > p->limit;
	pthread_mutex_unlock(&p->lock);
	return less;
}

int pool_evict(struct pool *p)
{
	struct trainer *t;

	pthread_mutex_lock(&p->lock);
	t = take_oldest(p);
	pthread_mutex_unlock(&p->lock);
	trainer_free(t);
	return t != NULL;
}

static int refuse(struct pool *p, size_t bytes, struct fh_status *st)
{
	struct device_memory d;

	pool_device(p, &d);
	return fh_fail(st, FH_EXHAUSTED, "the job needs %zu bytes (%.1f MiB) on %s, %zu are free (%.1f MiB); others hold %.1f MiB", bytes,
		       mib(bytes), p->info.name, d.free, mib(d.free), mib(d.others));
}

/* The driver has the last word: what it refuses although it seemed to fit is tried again with one parked trainer less. */
static int make(struct pool *p, const struct fh_spec *spec, size_t bytes, struct trainer **out, struct fh_status *st)
{
	struct fh_status why;
	int rc;

	while (is_short(p, bytes))
		if (!pool_evict(p))
			break;
	if (is_short(p, bytes) && bytes <= p->limit)
		return refuse(p, bytes, st);
	do {
		why = (struct fh_status)FH_STATUS_INIT;
		rc = trainer_new(p->backend, spec, out, &why);
	} while (rc == FH_EXHAUSTED && pool_evict(p));
	if (rc && st)
		*st = why;
	return rc;
}

int pool_take(struct pool *p, uint64_t job, const struct fh_spec *spec, const struct memory_plan *m, struct trainer **out, int *reused,
	      struct fh_status *st)
{
	struct trainer *t;
	int rc;

	pthread_mutex_lock(&p->lock);
	t = take_fitting(p, job, spec, m);
	if (!t)
		p->coming += m->total;
	pthread_mutex_unlock(&p->lock);
	*reused = t != NULL;
	*out = t;
	if (t)
		return 0;
	rc = make(p, spec, m->total, &t, st);
	pthread_mutex_lock(&p->lock);
	p->coming -= m->total;
	if (!rc) {
		p->member[p->members++] = (struct member){.trainer = t, .job = job, .live = 1, .memory = *m};
		p->stats.made++;
	}
	pthread_mutex_unlock(&p->lock);
	look(p);
	if (!rc)
		*out = t;
	return rc;
}

void pool_park(struct pool *p, struct trainer *t)
{
	struct trainer *evicted = NULL;
	struct member m;
	int i;

	pthread_mutex_lock(&p->lock);
	i = find(p, t);
	m = p->member[i];
	take_out(p, i);
	m.live = 0;
	p->member[p->members++] = m; /* behind the others: parked last */
	if (count_parked(p) > p->park_max)
		evicted = take_oldest(p);
	pthread_mutex_unlock(&p->lock);
	trainer_free(evicted);
	look(p);
}

void pool_drop(struct pool *p, struct trainer *t)
{
	pthread_mutex_lock(&p->lock);
	take_out(p, find(p, t));
	pthread_mutex_unlock(&p->lock);
	trainer_free(t);
	look(p);
}

/* ---------------------------------------------------------------- what there is */

void pool_stats(struct pool *p, struct pool_stats *out)
{
	pthread_mutex_lock(&p->lock);
	*out = p->stats;
	out->parked = (unsigned)count_parked(p);
	out->live = (unsigned)p->members - out->parked;
	out->live_bytes = bytes_of(p, 1);
	out->parked_bytes = bytes_of(p, 0);
	pthread_mutex_unlock(&p->lock);
}

int pool_list(struct pool *p, struct pool_trainer out[LIMIT_TRAINERS])
{
	int n = 0;

	pthread_mutex_lock(&p->lock);
	for (int live = 0; live <= 1; live++)
		for (int i = 0; i < p->members; i++) {
			const struct member *m = &p->member[i];

			if (m->live != live)
				continue;
			out[n] = (struct pool_trainer){.job = m->job, .parked = !live, .planned = m->memory};
			trainer_usage(m->trainer, &out[n++].used);
		}
	pthread_mutex_unlock(&p->lock);
	return n;
}
