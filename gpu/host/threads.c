/* The thread team: members that claim tasks from shared counters, spin for a while and then sleep.
 *
 * The caller publishes a round (function, context, a counter for each member's share of the tasks) and raises `round`;
 * members claim tasks until none is left. The caller returns when every task is done, whoever did it: a member that the
 * system has not woken yet, or has taken off its CPU between two tasks, holds nobody up. Invariant: a counter carries
 * its round's number, so a member that comes late cannot claim anything of a later round; and a round is only followed
 * by the next one when all its tasks are claimed and done. A member begins with its own share and goes on into the
 * others', so equal rounds touch the same data on the same core while nothing disturbs it. */
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
	_Alignas(CACHE_LINE) atomic_ullong next; /* round number << 32 | next task */
	atomic_uint end;
};

struct team {
	int threads;
	int started;
	_Atomic(team_fn) fn;
	_Atomic(void *) ctx;
	struct share share[TEAM_THREADS_MAX];
	_Alignas(CACHE_LINE) atomic_uint round; /* each new value starts a round */
	_Alignas(CACHE_LINE) atomic_int done;   /* tasks of the round */
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

/* The next task of a share in this round, or -1. `end` is read after `next`, and written after it: whoever sees the end
 * of a later round fails to move a counter that it read before. */
static int claim(struct share *s, unsigned round)
{
	unsigned long long at = atomic_load_explicit(&s->next, memory_order_acquire);

	while (at >> 32 == round && (unsigned)at < atomic_load_explicit(&s->end, memory_order_acquire))
		if (atomic_compare_exchange_weak_explicit(&s->next, &at, at + 1, memory_order_acq_rel, memory_order_acquire))
			return (int)(unsigned)at;
	return -1;
}

static void work(struct team *t, int self, unsigned round)
{
	for (int i = 0; i < t->threads; i++) {
		struct share *s = &t->share[(self + i) % t->threads];
		int task;

		while ((task = claim(s, round)) >= 0) {
			team_fn fn = atomic_load_explicit(&t->fn, memory_order_relaxed);

			fn(atomic_load_explicit(&t->ctx, memory_order_relaxed), task, self);
			atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
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

	while ((seen = wait_round(t, seen)) != 0)
		work(t, m->index, seen);
	return NULL;
}

/* 0 never becomes a round number because it means stop. */
static unsigned next_round(const struct team *t)
{
	unsigned next = atomic_load_explicit(&t->round, memory_order_relaxed) + 1;

	return next ? next : 1;
}

static void raise_round(struct team *t, unsigned round)
{
	atomic_store(&t->round, round);
	if (atomic_load(&t->sleepers)) {
		pthread_mutex_lock(&t->lock);
		pthread_cond_broadcast(&t->wake);
		pthread_mutex_unlock(&t->lock);
	}
}

void team_run(struct team *t, int tasks, team_fn fn, void *ctx)
{
	unsigned round;

	if (!t || t->started == 0 || tasks < 2) {
		for (int i = 0; i < tasks; i++)
			fn(ctx, i, 0);
		return;
	}
	round = next_round(t);
	atomic_store_explicit(&t->done, 0, memory_order_relaxed);
	atomic_store_explicit(&t->fn, fn, memory_order_relaxed);
	atomic_store_explicit(&t->ctx, ctx, memory_order_relaxed);
	for (int i = 0; i < t->threads; i++) {
		unsigned first = (unsigned)((long)tasks * i / t->threads);

		atomic_store_explicit(&t->share[i].next, (unsigned long long)round << 32 | first, memory_order_relaxed);
		atomic_store_explicit(&t->share[i].end, (unsigned)((long)tasks * (i + 1) / t->threads), memory_order_release);
	}
	raise_round(t, round);
	work(t, 0, round);
	for (int i = 0; atomic_load_explicit(&t->done, memory_order_acquire) != tasks; i++) {
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
	raise_round(t, next_round(t));
	for (int i = 1; i <= t->started; i++)
		pthread_join(t->thread[i], NULL);
	pthread_cond_destroy(&t->wake);
	pthread_mutex_destroy(&t->lock);
	free(t);
}
