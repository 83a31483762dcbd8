/* Shared by the tests of trainer and checkpoints: a small market, a small specification, and a job run to some step. */
#ifndef FH_TESTS_TRAINING_H
#define FH_TESTS_TRAINING_H

#include "gpu/checkpoint.h"
#include "gpu/hash.h"
#include "gpu/trainer.h"
#include "tests/unit/golden.h"
#include "tests/unit/market.h"

#define SLICE_NS 2000000
#define SAMPLES_MAX 512

GOLDEN_UNUSED static struct market *synth_market(enum synth_kind kind, int64_t bars, uint64_t seed)
{
	return test_market(kind, bars, seed, 0.01);
}

/* A job of 60 learn steps on 4 environments that does everything the big ones do. */
GOLDEN_UNUSED static struct fh_spec small_spec(void)
{
	struct fh_spec s;

	spec_defaults(&s);
	snprintf(s.data.dataset, sizeof(s.data.dataset), "synth");
	s.net.trunk1 = s.net.trunk2 = 16;
	s.net.value_hidden = s.net.advantage_hidden = 8;
	s.net.atoms = 11;
	s.learn.batch = 16;
	s.learn.warmup = 50;
	s.learn.n_step = 3;
	s.replay.capacity = 128; /* wraps */
	s.collect.envs = 4;
	s.collect.eps_steps = 40;
	s.env.episode_length = 24;
	s.run.epochs = 4;
	s.run.steps_per_epoch = 15;
	s.run.validate_every = 20;
	s.run.report_every = 7;
	s.run.checkpoint_every = 25;
	spec_resolve(&s, FH_DEVICE_HOST);
	return s;
}

struct samples { struct trainer_sample *s; int n; };

GOLDEN_UNUSED static void samples_take(struct trainer *t, struct samples *to)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_sample s;
	int rc;

	while ((rc = trainer_poll(t, &s, &st)) == 1) {
		if (!to)
			continue;
		if (!to->s)
			to->s = malloc(sizeof(*to->s) * SAMPLES_MAX);
		assert_non_null(to->s);
		assert_true(to->n < SAMPLES_MAX);
		to->s[to->n++] = s;
	}
	assert_int_equal(rc, 0);
}

GOLDEN_UNUSED static double sample_value(const struct trainer_sample *s, const char *name)
{
	for (int i = 0; i < s->values; i++)
		if (strcmp(s->metric[i]->name, name) == 0)
			return s->value[i];
	fail_msg("no metric %s", name);
	return 0;
}

GOLDEN_UNUSED static struct trainer *new_trainer(const struct fh_spec *spec)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = NULL;

	if (trainer_new(backend_host(), spec, &t, &st))
		fail_msg("%s", st.text);
	return t;
}

GOLDEN_UNUSED static struct trainer *begin_job(const struct fh_spec *spec, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = new_trainer(spec);

	if (trainer_begin(t, spec, m, NULL, &st))
		fail_msg("%s", st.text);
	return t;
}

/* Runs in the smallest slices until `calls` trainer_run() have been made or the job is done; returns the calls made. */
GOLDEN_UNUSED static int run_slices(struct trainer *t, int calls, struct samples *samples)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_state s = {0};
	int n = 0;

	trainer_state_get(t, &s);
	while (n < calls && !s.done) {
		if (trainer_run(t, 0, &s, &st))
			fail_msg("%s", st.text);
		samples_take(t, samples);
		n++;
	}
	return n;
}

GOLDEN_UNUSED static void run_to_end(struct trainer *t, struct samples *samples)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_state s = {0};

	while (!s.done) {
		if (trainer_run(t, SLICE_NS, &s, &st))
			fail_msg("%s", st.text);
		samples_take(t, samples);
	}
}

GOLDEN_UNUSED static void snapshot(struct trainer *t, struct st_image *image)
{
	struct fh_status st = FH_STATUS_INIT;

	if (trainer_snapshot(t, NULL, image, &st))
		fail_msg("%s", st.text);
}

/* SHA-256 of the whole state. */
GOLDEN_UNUSED static void state_hash(struct trainer *t, char hex[65])
{
	struct st_image image;

	snapshot(t, &image);
	assert_int_equal(hash_bytes(image.data, image.bytes, hex, NULL), 0);
	st_image_release(&image);
}

GOLDEN_UNUSED static void save_image(const struct st_image *image, const char *path)
{
	struct fh_status st = FH_STATUS_INIT;

	if (st_image_write(image, path, &st))
		fail_msg("%s", st.text);
}

/* A file name of this process in the temporary directory; one static buffer per call site is not needed: copied out. */
GOLDEN_UNUSED static void temp_path(char *out, size_t size, const char *name)
{
	const char *dir = getenv("TMPDIR");

	snprintf(out, size, "%s/fhd-test-%ld-%s", dir ? dir : "/tmp", (long)getpid(), name);
}

/* Every slice of a job is tried as the place of a cut: the bits do not depend on how the program was built, so slower builds, which look for
 * something else, take every third or eighth. */
static inline int cuts_apart(void)
{
	const char *factor = getenv("FH_TEST_SLOWDOWN");

	return !factor || atof(factor) < 4 ? 1 : atof(factor) < 8 ? 3 : 8;
}

#endif
