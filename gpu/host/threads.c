/* The thread team: one shared counter of tasks a round, members that spin and then sleep.
 *
 * The caller publishes a round (function, context, tasks) and raises `round`; every member claims tasks until none is
 * left and counts itself out; the caller returns when all members are out. Invariant: the round's fields change only
 * while every member is out, so no lock guards them. A member's share begins at its own part of the range and goes on
 * into the others' parts, so equal rounds touch the same data on the same core while nothing disturbs it. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/host/threads.h"
#include "proto/status.h"

#define SPIN_ROUNDS 4000 /* pauses before a waiting member blocks: some tens of microseconds */
#define CACHE_LINE 64

struct share { /* one member's part of the tasks */
	_Alignas(CACHE_LINE) atomic_int next;
	int end;
};

struct team {
	int threads;
	int started;
	team_fn fn;
	void *ctx;
	struct share share[TEAM_THREADS_MAX];
	_Alignas(CACHE_LINE) atomic_uint round; /* each new value starts a round */
	_Alignas(CACHE_LINE) atomic_int busy;   /* members (without the caller) not yet out of the round */
	_Alignas(CACHE_LINE) atomic_int sleepers;
	atomic_int stop;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread[TEAM_THREADS_MAX];
	struct member { struct team *team; int index; } member[TEAM_THREADS_MAX];
};

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static void work(struct team *t, int self)
{
	for (int i = 0; i < t->threads; i++) {
		struct share *s = &t->share[(self + i) % t->threads];

		while (atomic_load_explicit(&s->next, memory_order_relaxed) < s->end) {
			int task = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);

			if (task < s->end)
				t->fn(t->ctx, task, self);
		}
	}
}

/* Returns the new round number, or 0 when the team stops. */
static unsigned wait_round(struct team *t, unsigned seen)
{
	unsigned now;

	for (int i = 0; i < SPIN_ROUNDS; i++) {
		now = atomic_load_explicit(&t->round, memory_order_acquire);
		if (now != seen)
			return atomic_load(&t->stop) ? 0 : now;
		pause_cpu();
	}
	pthread_mutex_lock(&t->lock);
	atomic_fetch_add(&t->sleepers, 1);
	while ((now = atomic_load(&t->round)) == seen)
		pthread_cond_wait(&t->wake, &t->lock);
	atomic_fetch_sub(&t->sleepers, 1);
	pthread_mutex_unlock(&t->lock);
	return atomic_load(&t->stop) ? 0 : now;
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct team *t = m->team;
	unsigned seen = 1;

	while ((seen = wait_round(t, seen)) != 0) {
		work(t, m->index);
		atomic_fetch_sub_explicit(&t->busy, 1, memory_order_release);
	}
	return NULL;
}

/* Starts a round; 0 never becomes a round number because it means stop. */
static void raise_round(struct team *t)
{
	unsigned next = atomic_load_explicit(&t->round, memory_order_relaxed) + 1;

	atomic_store(&t->round, next ? next : 1);
	if (atomic_load(&t->sleepers)) {
		pthread_mutex_lock(&t->lock);
		pthread_cond_broadcast(&t->wake);
		pthread_mutex_unlock(&t->lock);
	}
}

void team_run(struct team *t, int tasks, team_fn fn, void *ctx)
{
	int members;

	if (!t || t->started == 0 || tasks < 2) {
		for (int i = 0; i < tasks; i++)
			fn(ctx, i, 0);
		return;
	}
	members = t->threads;
	t->fn = fn;
	t->ctx = ctx;
	for (int i = 0; i < members; i++) {
		atomic_store_explicit(&t->share[i].next, (int)((long)tasks * i / members), memory_order_relaxed);
		t->share[i].end = (int)((long)tasks * (i + 1) / members);
	}
	atomic_store_explicit(&t->busy, members - 1, memory_order_relaxed);
	raise_round(t);
	work(t, 0);
	for (int i = 0; atomic_load_explicit(&t->busy, memory_order_acquire); i++) {
		if (i < SPIN_ROUNDS)
			pause_cpu();
		else
			sched_yield(); /* a member lost its CPU in the middle of a task */
	}
}

int team_default_threads(void)
{
	const char *text = getenv("FH_HOST_THREADS");
	long n = text ? strtol(text, NULL, 10) : 0;
	cpu_set_t set;

	if (n < 1 && sched_getaffinity(0, sizeof(set), &set) == 0)
		n = CPU_COUNT(&set);
	if (n < 1)
		n = sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : n > TEAM_THREADS_MAX ? TEAM_THREADS_MAX : (int)n;
}

int team_threads(const struct team *t)
{
	return t ? t->threads : 1;
}

int team_new(int threads, struct team **out, struct fh_status *st)
{
	struct team *t = NULL;

	if (threads < 1)
		threads = team_default_threads();
	if (threads > TEAM_THREADS_MAX)
		threads = TEAM_THREADS_MAX;
	if (posix_memalign((void **)&t, CACHE_LINE, sizeof(*t)))
		return fh_fail(st, FH_EXHAUSTED, "no memory for a team of %d threads", threads);
	memset(t, 0, sizeof(*t));
	t->threads = threads;
	atomic_store(&t->round, 1);
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->wake, NULL);
	for (int i = 1; i < threads; i++) {
		int err;

		t->member[i] = (struct member){t, i};
		err = pthread_create(&t->thread[i], NULL, member_main, &t->member[i]);
		if (err) {
			t->threads = i;
			team_free(t);
			return fh_fail(st, FH_EXHAUSTED, "thread %d of %d does not start: %s", i + 1, threads, strerror(err));
		}
		t->started++;
	}
	*out = t;
	return 0;
}

void team_free(struct team *t)
{
	if (!t)
		return;
	atomic_store(&t->stop, 1);
	raise_round(t);
	for (int i = 1; i <= t->started; i++)
		pthread_join(t->thread[i], NULL);
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	free(t);
}
