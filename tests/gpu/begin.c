/* The start of a job on a device: networks that are made there have the bits of those that the host makes, and a trainer that had
 * another job begins as one that had none; and its chunks, many of them at once. */
#include "tests/gpu/rig.h"
#include "gpu/host/round.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

static struct fh_spec a_spec(int precision, int trials, int64_t seed)
{
	struct fh_spec s = small_spec();

	s.run.device = FH_DEVICE_CUDA;
	s.run.precision = precision;
	s.run.population = trials;
	s.run.seed = seed;
	s.net.trunk1 = 37, s.net.trunk2 = 19, s.net.value_hidden = 13, s.net.advantage_hidden = 7; /* padding behind every layer */
	return s;
}

static struct trainer *begun(const struct fh_spec *spec, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = NULL;

	if (trainer_new(rig_cuda, spec, &t, &st) || trainer_begin(t, spec, m, NULL, &st))
		fail_msg("%s", st.text);
	return t;
}

static void assert_tensor(struct trainer *t, int tensor, int trial, const void *expect, size_t bytes, const char *what)
{
	struct fh_status st = FH_STATUS_INIT;
	void *is = malloc(bytes);

	assert_non_null(is);
	if (t->backend->read(t->x, tensor, t->plan.tensor[tensor].stride * (size_t)trial, is, bytes, &st))
		fail_msg("%s", st.text);
	if (memcmp(is, expect, bytes))
		fail_msg("%s of trial %d is not what the host makes", what, trial);
	free(is);
}

static void networks_are_the_hosts(int precision)
{
	const struct fh_spec spec = a_spec(precision, 3, 11);
	struct market *m = synth_market(SYNTH_MOMENTUM, 1500, 5);
	struct trainer *t = begun(&spec, m);
	const struct dqn_dims *d = t->x->dims;
	const size_t n = (size_t)d->params;
	float *flat = malloc(n * sizeof *flat);
	uint16_t *low = malloc(n * sizeof *low);

	assert_non_null(t->backend->initial);
	assert_true(d->params > d->params_unpadded);
	for (int p = 0; p < 3; p++) {
		dqn_init_params(d, 11 + (uint64_t)p, flat);
		for (size_t i = 0; i < n; i++)
			low[i] = bf16_from(flat[i]);
		assert_tensor(t, T_PARAM, p, flat, n * sizeof *flat, "the online network");
		assert_tensor(t, T_TARGET, p, flat, n * sizeof *flat, "the target");
		if (precision == FH_PRECISION_BF16) {
			assert_tensor(t, T_PARAM_LP, p, low, n * sizeof *low, "the rounded online network");
			assert_tensor(t, T_TARGET_LP, p, low, n * sizeof *low, "the rounded target");
		}
	}
	free(flat);
	free(low);
	trainer_free(t);
	market_unref(m);
}

static void networks_of_a_job(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	networks_are_the_hosts(FH_PRECISION_BF16);
	networks_are_the_hosts(FH_PRECISION_F32);
}

static void assert_same_state(struct trainer *a, struct trainer *b)
{
	struct fh_status st = FH_STATUS_INIT;
	struct st_image x, y;

	if (trainer_snapshot(a, NULL, &x, &st) || trainer_snapshot(b, NULL, &y, &st))
		fail_msg("%s", st.text);
	assert_int_equal(x.bytes, y.bytes);
	assert_memory_equal(x.data, y.data, x.bytes);
	st_image_release(&x);
	st_image_release(&y);
}

/* Everything that a checkpoint holds, of a job with more trials than one sending has room for. */
static void a_trainer_begins_anew(void **state)
{
	const struct fh_spec before = a_spec(FH_PRECISION_BF16, RIG_MANY(40, 12), 5);
	struct fh_spec spec = before;
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_state at = {0};
	struct trainer *used, *fresh;
	struct market *m;

	(void)state;
	if (!rig_cuda)
		skip();
	m = synth_market(SYNTH_MOMENTUM, 1500, 5);
	used = begun(&before, m);
	while (at.step < 3)
		if (trainer_run(used, 0, &at, &st))
			fail_msg("%s", st.text);
	spec.run.seed = 77;
	spec.learn.gamma = 0.5;
	if (trainer_begin(used, &spec, m, NULL, &st))
		fail_msg("%s", st.text);
	fresh = begun(&spec, m);
	assert_same_state(used, fresh);
	for (int k = 0; k < 2; k++) {
		struct trainer *t = k ? fresh : used;

		for (at = (struct trainer_state){0}; at.step < 2;)
			if (trainer_run(t, 0, &at, &st))
				fail_msg("%s", st.text);
	}
	assert_same_state(used, fresh);
	trainer_free(used);
	trainer_free(fresh);
	market_unref(m);
}

/* As many chunks as a trainer gives to a device at once are one graph, with the bits of chunks one by one. */
static void many_chunks_are_one_by_one(void **state)
{
	struct fh_spec spec = a_spec(FH_PRECISION_BF16, 2, 9);
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t[2];
	struct market *m;

	(void)state;
	if (!rig_cuda)
		skip();
	spec.run.report_every = spec.run.validate_every = spec.run.checkpoint_every = 0;
	spec.learn.steps_per_collect = 1;
	m = synth_market(SYNTH_MOMENTUM, 1500, 5);
	for (int k = 0; k < 2; k++) {
		struct trainer_state at = {0};

		t[k] = begun(&spec, m);
		while (at.phase == TRAINER_WARMUP)
			if (trainer_run(t[k], 0, &at, &st))
				fail_msg("%s", st.text);
		while (at.step < 20) {
			const int64_t before = at.step;

			while (at.step == before) { /* what may be due at a step takes turns, too */
				t[k]->chunks_at_once = k ? 10 : 1;
				if (trainer_run(t[k], 0, &at, &st))
					fail_msg("%s", st.text);
			}
			assert_int_equal(at.step - before, k ? 10 : 1);
		}
	}
	assert_same_state(t[0], t[1]);
	trainer_free(t[0]);
	trainer_free(t[1]);
	market_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(networks_of_a_job), cmocka_unit_test(a_trainer_begins_anew), cmocka_unit_test(many_chunks_are_one_by_one)};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
