/* Promises of gpu/trainer.h about evaluations that go on behind training, on a device that seems to run ahead: what they say, snapshots, what
 * becomes of one that is left. */
#include "gpu/host/net.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

static struct market *the_market(void)
{
	return synth_market(SYNTH_MOMENTUM, 2000, 5);
}

/* A device that runs ahead: every so many questions it has enough to do. */
static struct { int every, asked, fail_at, acts; } ahead;

static int ahead_would_wait(const struct exec *x)
{
	(void)x;
	return ahead.every && ++ahead.asked % ahead.every == 0;
}

static int ahead_act(struct exec *x, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	if (++ahead.acts == ahead.fail_at)
		return fh_fail(st, FH_DEVICE, "the device does not act");
	return backend_host()->act(x, part, parts, bar, portfolio, action, st);
}

static struct backend ahead_device(int every)
{
	struct backend device = *backend_host();

	memset(&ahead, 0, sizeof ahead);
	ahead.every = every;
	device.would_wait = ahead_would_wait;
	device.act = ahead_act;
	return device;
}

static struct trainer *begin_on(const struct backend *b, const struct fh_spec *s, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t;

	if (trainer_new(b, s, &t, &st) || trainer_begin(t, s, m, NULL, &st))
		fail_msg("%s", st.text);
	return t;
}

static int same_place(const struct trainer_sample *a, const struct trainer_sample *b)
{
	return a->validation == b->validation && a->step == b->step && a->vector_step == b->vector_step && a->epoch == b->epoch && a->split == b->split &&
	       a->policy == b->policy && a->trial == b->trial;
}

/* The same samples in any order, the evaluations in theirs. */
static void same_samples(const struct samples *want, const struct samples *got)
{
	const struct trainer_sample *last = NULL;

	assert_int_equal(want->n, got->n);
	for (int i = 0; i < got->n; i++) {
		const struct trainer_sample *g = got->s + i;
		int k = 0;

		while (k < want->n && !same_place(want->s + k, g))
			k++;
		assert_true(k < want->n);
		assert_int_equal(want->s[k].values, g->values);
		assert_memory_equal(want->s[k].value, g->value, sizeof(double) * (size_t)g->values);
		if (!g->validation)
			continue;
		assert_true(!last || last->step < g->step || (last->step == g->step && !same_place(last, g)));
		last = g;
	}
}

/* On the host as many trials act at once as there are threads. */
static struct fh_spec behind_spec(int trials, int windows)
{
	struct fh_spec s = small_spec();

	setenv("FH_HOST_THREADS", "3", 1);
	s.run.population = trials;
	s.run.validate_windows = windows;
	return s;
}

/* Whenever the device lets it play: what is said is what a job says that waits, and a checkpoint never falls due in front of it. */
static void test_evaluations_behind_training_say_the_same(void **state)
{
	static const struct { int trials, windows, every; } of[] = {{1, 1, 0}, {1, 1, 1}, {1, 1, 2}, {1, 4, 3}, {3, 1, 1}, {3, 2, 2}};
	struct market *m = the_market();

	for (unsigned i = 0; i < sizeof of / sizeof *of; i++) {
		struct fh_spec s = behind_spec(of[i].trials, of[i].windows);
		struct backend device = ahead_device(of[i].every);
		struct fh_status st = FH_STATUS_INIT;
		struct samples want = {NULL, 0}, got = {NULL, 0};
		struct trainer_state now = {0};
		char was[65], is[65];
		int behind = 0;

		struct trainer *t = begin_job(&s, m); /* the host does not run ahead */
		run_to_end(t, &want);
		state_hash(t, was);
		trainer_free(t);
		t = begin_on(&device, &s, m);
		while (!now.done) {
			assert_int_equal(trainer_run(t, 0, &now, &st), 0);
			samples_take(t, &got);
			behind += t->behind && now.step > t->task_step;
			assert_false(now.checkpoint_due && t->behind);
			if (now.checkpoint_due)
				t->checkpoint_due = 0; /* as if a snapshot had been taken */
		}
		assert_true(behind > 0 && !t->behind);
		same_samples(&want, &got);
		state_hash(t, is);
		assert_string_equal(was, is);
		trainer_free(t);
		free(want.s);
		free(got.s);
	}
	unsetenv("FH_HOST_THREADS");
	market_unref(m);
}

/* A snapshot at any time: the evaluation that training has left behind is said before, and not again by who goes on. */
static void test_a_snapshot_finishes_what_was_left_behind(void **state)
{
	struct fh_spec s = behind_spec(2, 1);
	struct backend device = ahead_device(3);
	struct market *m = the_market();
	struct samples want = {NULL, 0};
	char path[256], was[65], is[65];
	struct trainer *t = begin_on(&device, &s, m);
	int calls = run_slices(t, 1 << 30, &want), settled = 0;

	state_hash(t, was);
	trainer_free(t);
	temp_path(path, sizeof path, "behind");
	for (int cut = 1; cut < calls; cut += cuts_apart()) {
		struct fh_status st = FH_STATUS_INIT;
		struct samples got = {NULL, 0};
		struct st_image image;
		struct trainer *u;

		ahead.asked = 0;
		t = begin_on(&device, &s, m);
		run_slices(t, cut, &got);
		settled += t->behind;
		snapshot(t, &image);
		assert_false(t->behind);
		samples_take(t, &got);
		save_image(&image, path);
		st_image_release(&image);
		if (trainer_new(&device, &s, &u, &st) || trainer_resume(u, &s, m, path, &st))
			fail_msg("%s", st.text);
		run_to_end(u, &got);
		same_samples(&want, &got);
		state_hash(u, is);
		assert_string_equal(was, is);
		trainer_free(u);
		trainer_free(t);
		free(got.s);
	}
	assert_true(settled > (cuts_apart() > 1 ? 0 : 3));
	unsetenv("FH_HOST_THREADS");
	unlink(path);
	free(want.s);
	market_unref(m);
}

/* Runs until training has left an evaluation behind. */
static void run_past_an_evaluation(struct trainer *t, struct samples *got)
{
	struct trainer_state now = {0};
	struct fh_status st = FH_STATUS_INIT;

	while (!(t->behind && now.step > t->task_step)) {
		assert_int_equal(trainer_run(t, 0, &now, &st), 0);
		samples_take(t, got);
		assert_false(now.done);
		assert_int_not_equal(now.phase, t->behind ? TRAINER_VALIDATE : TRAINER_DONE);
	}
}

/* The next job begins without it; who cannot act fails the job; a job that diverges says it first; a long one is waited for. */
static void test_what_becomes_of_an_evaluation_left_behind(void **state)
{
	struct fh_spec s = behind_spec(1, 1);
	struct backend device = ahead_device(0);
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = the_market();
	struct samples want = {NULL, 0}, got = {NULL, 0};
	struct trainer_state now = {0};
	struct trainer *t = begin_on(&device, &s, m);
	int rc = 0;

	run_to_end(t, &want);
	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	run_past_an_evaluation(t, NULL);
	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	assert_false(t->behind);
	run_to_end(t, &got);
	same_samples(&want, &got);

	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	run_past_an_evaluation(t, NULL);
	ahead.fail_at = ahead.acts + 1;
	while (rc == 0 && !now.done)
		rc = trainer_run(t, 0, &now, &st);
	assert_int_equal(rc, FH_DEVICE);
	assert_string_equal(st.text, "the device does not act");
	ahead.fail_at = 0;

	got.n = 0;
	s.run.steps_per_epoch = 100;
	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	run_past_an_evaluation(t, &got);
	((float *)t->x->tensor[T_PARAM])[0] = NAN;
	for (rc = 0; rc == 0; samples_take(t, &got))
		rc = trainer_run(t, 0, &now, &st);
	assert_int_equal(rc, FH_DIVERGED);
	assert_false(t->behind);
	int said = 0;
	for (int i = 0; i < got.n; i++)
		said += got.s[i].validation && got.s[i].step == t->spec.run.validate_every;
	assert_int_equal(said, 1);
	unsetenv("FH_HOST_THREADS");
	trainer_free(t);
	free(want.s);
	free(got.s);
	market_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evaluations_behind_training_say_the_same), cmocka_unit_test(test_a_snapshot_finishes_what_was_left_behind),
		cmocka_unit_test(test_what_becomes_of_an_evaluation_left_behind),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
