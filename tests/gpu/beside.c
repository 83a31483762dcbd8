/* Several trainers on one device at once: each gives what it gives alone, while others allocate, capture and free beside it. And what is
 * left of trainers: nothing, however many there were; and how long their first steps take to come. */
#include "tests/gpu/rig.h"
#include <pthread.h>
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

enum { JOBS = 3, ROUNDS = 2 };

/* Two layouts, of which one is there twice, once with trials; one market for two of them. */
static struct fh_spec a_spec(int job)
{
	struct fh_spec s = small_spec();

	s.run.device = FH_DEVICE_CUDA;
	s.run.precision = job == 1 ? FH_PRECISION_F32 : FH_PRECISION_BF16;
	s.run.population = job == 2 ? 3 : 1;
	s.run.epochs = RIG_MANY(4, 1);
	s.run.seed = 5 + job;
	s.learn.n_step = job == 1 ? 1 : 3;
	return s;
}

struct work { int job, rc; struct market *m; char hash[65]; struct fh_status st; };

/* No assertions: it may be another thread than the one that reports. */
static void *job_main(void *arg)
{
	struct work *w = arg;
	const struct fh_spec spec = a_spec(w->job);
	struct trainer_state at = {0};
	struct trainer_sample sample;
	struct st_image image;
	struct trainer *t = NULL;

	w->rc = trainer_new(rig_cuda, &spec, &t, &w->st);
	if (!w->rc)
		w->rc = trainer_begin(t, &spec, w->m, NULL, &w->st);
	while (!w->rc && !at.done) {
		w->rc = trainer_run(t, SLICE_NS, &at, &w->st);
		while (!w->rc && (w->rc = trainer_poll(t, &sample, &w->st)) == 1)
			w->rc = 0;
	}
	if (!w->rc && !(w->rc = trainer_snapshot(t, NULL, &image, &w->st))) {
		w->rc = hash_bytes(image.data, image.bytes, w->hash, &w->st);
		st_image_release(&image);
	}
	trainer_free(t);
	return NULL;
}

static struct device_memory memory(void)
{
	struct fh_status st = FH_STATUS_INIT;
	struct device_memory m;

	if (rig_cuda->memory(rig_cuda, &m, &st))
		fail_msg("%s", st.text);
	return m;
}

static void assert_nothing_held(const char *when)
{
	const struct device_memory m = memory();

	if (m.arenas || m.markets || m.graphs || m.pinned)
		fail_msg("%s: arenas %zu, markets %zu, graphs %zu, page-locked %zu bytes", when, m.arenas, m.markets, m.graphs, m.pinned);
}

/* What is free of the device is what was free before any trainer was there: the driver, too, keeps nothing that it had not (gpu/cuda/prime.cu),
 * or no more than `keeps` once. */
static void assert_free_as_idle(const struct device_memory *idle, size_t keeps, const char *when)
{
	const struct device_memory now = memory();

	assert_nothing_held(when);
	printf("free memory %s: %+lld bytes against %zu of the idle device\n", when, (long long)now.free - (long long)idle->free, idle->free);
	assert_in_range(now.free, idle->free - keeps, idle->free);
	assert_int_equal(idle->context, now.context);
}

/* A piece as drivers take them: what they add for themselves when launches of several trainers meet, at most once. The jobs of at_once_as_alone
 * hold three times that each. */
#define DRIVER_PIECE ((size_t)2 << 20)

static void at_once_as_alone(void **state)
{
	const struct device_memory idle = rig_cuda ? memory() : (struct device_memory){0};
	struct market *m[2];
	struct work alone[JOBS], now[JOBS];
	pthread_t thread[JOBS];

	(void)state;
	if (!rig_cuda)
		skip();
	assert_nothing_held("before");
	m[0] = synth_market(SYNTH_MOMENTUM, 2000, 5);
	m[1] = synth_market(SYNTH_WALK, 1500, 6);
	for (int j = 0; j < JOBS; j++) {
		alone[j] = (struct work){.job = j, .m = m[j == 1], .st = FH_STATUS_INIT};
		job_main(&alone[j]);
		if (alone[j].rc)
			fail_msg("job %d: %s", j, alone[j].st.text);
	}
	assert_string_not_equal(alone[0].hash, alone[1].hash);
	for (int round = 0; round < RIG_MANY(4 * ROUNDS, ROUNDS); round++) {
		if (round % 2) /* by the graphs of a crowd, as soon as two meet */
			setenv("FH_GPU_CROWD", "2", 1);
		for (int j = 0; j < JOBS; j++) {
			now[j] = (struct work){.job = j, .m = m[j == 1], .st = FH_STATUS_INIT};
			assert_int_equal(pthread_create(&thread[j], NULL, job_main, &now[j]), 0);
		}
		for (int j = 0; j < JOBS; j++)
			pthread_join(thread[j], NULL);
		for (int j = 0; j < JOBS; j++) {
			if (now[j].rc)
				fail_msg("job %d beside others: %s", j, now[j].st.text);
			assert_string_equal(now[j].hash, alone[j].hash);
		}
		if (round % 2)
			unsetenv("FH_GPU_CROWD");
		assert_nothing_held("after a round");
	}
	market_unref(m[0]);
	market_unref(m[1]);
	assert_free_as_idle(&idle, RIG_MANY(DRIVER_PIECE, 0), "after trainers beside each other");
}

/* ---------------------------------------------------------------- one after another */

static double since_ms(int64_t begin)
{
	return (double)(monotonic_ns() - begin) * 1e-6;
}

/* Up to the first learn step that is seen finished. */
static void first_step(struct trainer *t)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_state at = {0};

	while (!at.first_step_ns && !at.done)
		if (trainer_run(t, 0, &at, &st))
			fail_msg("%s", st.text);
	assert_true(at.first_step_ns != 0);
}

struct times { double make, begin, step; };

static struct times live(const struct fh_spec *spec, struct market *m, struct trainer **keep)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = keep ? *keep : NULL;
	struct times took = {0};
	int64_t at = monotonic_ns();

	if (!t && trainer_new(rig_cuda, spec, &t, &st))
		fail_msg("%s", st.text);
	took.make = since_ms(at);
	at = monotonic_ns();
	if (trainer_begin(t, spec, m, NULL, &st))
		fail_msg("%s", st.text);
	took.begin = since_ms(at);
	at = monotonic_ns();
	first_step(t);
	took.step = since_ms(at);
	if (keep)
		*keep = t;
	else
		trainer_free(t);
	return took;
}

/* Each life leaves what the first one found. */
static void nothing_is_left(void **state)
{
	const struct device_memory idle = rig_cuda ? memory() : (struct device_memory){0};
	struct market *m;

	(void)state;
	if (!rig_cuda)
		skip();
	for (int i = 0; i < RIG_MANY(50, 6); i++) {
		struct fh_spec s = a_spec(i % JOBS);

		s.net.atoms = 11 + 2 * (i % 5);
		m = synth_market(SYNTH_MOMENTUM, 1500 + 100 * (i % 2), 5);
		live(&s, m, NULL);
		market_unref(m);
		assert_nothing_held("after a life");
		if (memory().free != idle.free)
			fail_msg("life %d keeps %lld bytes of the device", i, (long long)idle.free - (long long)memory().free);
	}
	assert_free_as_idle(&idle, 0, "after the last");
}

/* Where the time goes from nothing to a layout's first learn step, and again with its trainer. What is demanded of a card counts the
 * daemon and the client too (tests/bench/daemon.py). */
static void first_steps_come_soon(void **state)
{
	struct fh_spec s;
	struct market *m;
	struct trainer *t = NULL;
	struct times fresh, again;

	(void)state;
	if (!rig_cuda)
		skip();
	if (rig_emulated) {
		s = a_spec(0);
	} else {
		spec_defaults(&s);
		snprintf(s.data.dataset, sizeof s.data.dataset, "synth");
		spec_resolve(&s, FH_DEVICE_CUDA);
	}
	m = synth_market(SYNTH_MOMENTUM, RIG_MANY(20000, 2000), 5);
	fresh = live(&s, m, &t);
	again = live(&s, m, &t);
	printf("a new layout: trainer %.2f ms, job %.2f ms, first step %.2f ms; its next job: %.2f ms, %.2f ms\n", fresh.make, fresh.begin, fresh.step,
	       again.begin, again.step);
	if (!rig_emulated) {
		assert_within(fresh.make + fresh.begin + fresh.step, 1500, "ms to the first step of a new layout");
		assert_within(again.begin + again.step, 15, "ms to the first step of the next job");
	}
	trainer_free(t);
	market_unref(m);
	assert_nothing_held("afterwards");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_left), cmocka_unit_test(at_once_as_alone), cmocka_unit_test(first_steps_come_soon),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
