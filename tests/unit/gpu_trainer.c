/* Promises of gpu/trainer.h: warm-up, schedule, reports and evaluations at their steps, determinism, populations,
 * neighbours, starts from what the last job left. */
#include "gpu/dqn/dqn.h"
#include "gpu/host/net.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

static struct market *the_market(void)
{
	return synth_market(SYNTH_MOMENTUM, 2000, 5);
}

static void test_warm_up_and_schedule(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct trainer *t;
	struct trainer_state now;
	struct fh_status st = FH_STATUS_INIT;
	int64_t warm = 0, before = -1;

	s.learn.n_step = 1; /* every vector step stores one transition per environment: 50 need 13 vector steps */
	s.learn.steps_per_collect = 4;
	t = begin_job(&s, m);
	trainer_state_get(t, &now);
	assert_true(now.phase == TRAINER_WARMUP && now.step == 0 && now.vector_step == 0 && now.planned == 60);
	while (!now.done) {
		assert_int_equal(trainer_run(t, 0, &now, &st), 0);
		samples_take(t, NULL);
		if (now.step == 0)
			warm = now.vector_step;
		else
			assert_int_equal(now.vector_step, warm + (now.step + 3) / 4); /* one collect before each four */
		assert_true(now.step >= before);
		before = now.step;
		assert_int_equal(now.transitions, now.vector_step * 4);
	}
	assert_int_equal(warm, 13);
	assert_true(now.phase == TRAINER_DONE && now.step == 60 && now.epoch == 4);
	assert_int_equal(trainer_run(t, SLICE_NS, &now, &st), 0); /* done stays done */
	assert_int_equal(now.step, 60);
	trainer_free(t);
	market_unref(m);
}

/* A device as the trainer sees one: lists of runs are counted as if each were captured, work is done by the host. */
static struct { struct run list[256][32]; int runs[256], lists, longest; } seen;

static int seen_run(struct exec *x, const struct run *run, int runs, struct fh_status *st)
{
	int steps = 0, i = 0;

	for (int k = 0; k < runs; k++)
		steps += run[k].phase == DQN_PHASE_LEARN ? run[k].count : 0;
	seen.longest = steps > seen.longest ? steps : seen.longest;
	while (i < seen.lists && (seen.runs[i] != runs || memcmp(seen.list[i], run, sizeof *run * (size_t)runs) != 0))
		i++;
	assert_true(i < 256 && runs <= 32);
	if (i == seen.lists) {
		memcpy(seen.list[i], run, sizeof *run * (size_t)runs);
		seen.runs[seen.lists++] = runs;
	}
	return backend_host()->run(x, run, runs, st);
}

static void seen_usage(const struct exec *x, struct exec_usage *out)
{
	backend_host()->usage(x, out);
	out->captures = (uint64_t)seen.lists;
}

/* Whatever the distance between two boundaries: few different lists, several chunks at once where nothing is due, and the
 * samples of the host's schedule, which goes step by step. */
static void test_a_device_gets_few_lists_and_the_same_results(void **state)
{
	static const int per_collect[] = {1, 3, 64, 200};
	struct market *m = the_market();

	for (int i = 0; i < 4; i++) {
		struct fh_spec s = small_spec();
		struct samples want = {NULL, 0}, got = {NULL, 0};
		struct backend device = *backend_host();
		struct fh_status st = FH_STATUS_INIT;
		struct trainer *t;

		memset(&seen, 0, sizeof seen);
		device.kind = FH_DEVICE_CUDA;
		device.run = seen_run;
		device.usage = seen_usage;
		s.learn.steps_per_collect = per_collect[i];
		s.run.epochs = 2;
		s.run.steps_per_epoch = 331;
		s.run.report_every = 37;
		s.run.validate_every = 0;
		s.run.checkpoint_every = 0;
		t = begin_job(&s, m);
		run_to_end(t, &want);
		trainer_free(t);
		s.run.device = FH_DEVICE_CUDA;
		if (trainer_new(&device, &s, &t, &st) || trainer_begin(t, &s, m, NULL, &st))
			fail_msg("%s", st.text);
		run_to_end(t, &got);
		assert_int_equal(got.n, want.n);
		assert_true(got.n >= 18);
		for (int k = 0; k < got.n; k++) {
			assert_true(got.s[k].step == want.s[k].step && got.s[k].vector_step == want.s[k].vector_step);
			assert_memory_equal(got.s[k].value, want.s[k].value, sizeof(double) * (size_t)got.s[k].values);
		}
		assert_true(seen.lists <= 20);
		/* 37 is the next report; a slow machine does not come to several chunks at once */
		assert_true(seen.longest <= (per_collect[i] == 1 ? 10 : per_collect[i] == 3 ? 30 : 32));
		trainer_free(t);
		free(want.s);
		free(got.s);
	}
	market_unref(m);
}

/* With n = 3 the first two vector steps store nothing: the end of the warm-up is found in the clock. */
static void test_warm_up_with_n_steps(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct trainer *t = begin_job(&s, m);
	struct trainer_state now = {0};
	struct fh_status st = FH_STATUS_INIT;
	int64_t stored = 0;

	while (now.step == 0) {
		stored = now.transitions;
		assert_int_equal(trainer_run(t, 0, &now, &st), 0);
	}
	assert_true(stored >= 50 && stored < 50 + 3 * 4);
	trainer_free(t);
	market_unref(m);
}

static void test_samples_come_at_their_steps(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct trainer *t = begin_job(&s, m);
	struct samples got = {0};
	int reports = 0, validations = 0, tests = 0;
	double learn_steps = 0;

	run_to_end(t, &got);
	for (int i = 0; i < got.n; i++) {
		const struct trainer_sample *x = got.s + i;
		if (!x->validation) {
			reports++;
			assert_true(x->step == reports * 7 || (x->step == 60 && reports == 9));
			assert_int_equal(x->epoch, x->step / 15);
			assert_true(sample_value(x, "loss") > 0 && isfinite(sample_value(x, "loss")));
			assert_true(sample_value(x, "reward_std") > 0 && sample_value(x, "env_steps") > 0);
			learn_steps += sample_value(x, "skipped_steps");
			continue;
		}
		int last = x->step == 60;
		assert_true(x->step % 20 == 0);
		assert_int_equal(sample_value(x, "bars"), x->split == FH_SPLIT_TEST ? 155 : 155);
		assert_true(last || (x->split == FH_SPLIT_VALIDATION && x->policy == FH_POLICY_TARGET));
		validations += x->split == FH_SPLIT_VALIDATION;
		tests += x->split == FH_SPLIT_TEST;
	}
	assert_true(reports == 9 && validations == 2 + 2 && tests == 2 && learn_steps == 0);
	free(got.s);
	trainer_free(t);
	market_unref(m);
}

static void test_checkpoints_are_due_at_their_steps(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct trainer *t = begin_job(&s, m);
	struct trainer_state now = {0};
	struct fh_status st = FH_STATUS_INIT;
	struct st_image image;
	int64_t due[8];
	int n = 0;

	while (!now.done) {
		assert_int_equal(trainer_run(t, 1000000000, &now, &st), 0); /* returns early for a checkpoint */
		samples_take(t, NULL);
		if (!now.checkpoint_due)
			continue;
		assert_true(n < 8);
		due[n++] = now.step;
		snapshot(t, &image);
		st_image_release(&image);
		trainer_state_get(t, &now);
		assert_false(now.checkpoint_due);
	}
	assert_true(n == 3 && due[0] == 25 && due[1] == 50 && due[2] == 60);
	trainer_free(t);
	market_unref(m);
}

static void test_same_seed_same_bits(void **state)
{
	struct fh_spec s = small_spec(), other = s;
	struct market *m = the_market();
	struct samples a = {0}, b = {0};
	char x[65], y[65], z[65];
	struct trainer *t = begin_job(&s, m);

	run_to_end(t, &a);
	state_hash(t, x);
	trainer_free(t);
	t = begin_job(&s, m);
	while (run_slices(t, 1, &b))
		; /* other slices, the same numbers */
	state_hash(t, y);
	trainer_free(t);
	assert_string_equal(x, y);
	assert_int_equal(a.n, b.n);
	assert_memory_equal(a.s, b.s, sizeof(*a.s) * (size_t)a.n);
	other.run.seed++;
	t = begin_job(&other, m);
	run_to_end(t, NULL);
	state_hash(t, z);
	trainer_free(t);
	assert_string_not_equal(x, z);
	free(a.s);
	free(b.s);
	market_unref(m);
}

/* A parked trainer leaves nothing to the next job: a job after another one gives the bits of a first job. */
static void test_a_reused_trainer_is_as_good_as_new(void **state)
{
	struct fh_spec s = small_spec(), other = s;
	struct market *m = the_market(), *m2 = synth_market(SYNTH_REGIME, 2500, 9);
	struct fh_status st = FH_STATUS_INIT;
	struct samples a = {0}, b = {0};
	char x[65], y[65];
	struct trainer *t = begin_job(&s, m);

	run_to_end(t, &a);
	state_hash(t, x);
	other.run.seed = 77;
	other.learn.lr = 1e-2;
	other.net.v_min = -20;
	assert_true(trainer_fits(t, &other));
	assert_int_equal(trainer_begin(t, &other, m2, NULL, &st), 0);
	run_slices(t, 40, NULL); /* left in the middle */
	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	run_to_end(t, &b);
	state_hash(t, y);
	assert_string_equal(x, y);
	assert_int_equal(a.n, b.n);
	assert_memory_equal(a.s, b.s, sizeof(*a.s) * (size_t)a.n);
	other.net.atoms = 13;
	assert_false(trainer_fits(t, &other));
	assert_int_equal(trainer_begin(t, &other, m, NULL, &st), FH_INVALID);
	trainer_free(t);
	market_unref(m);
	market_unref(m2);
	free(a.s);
	free(b.s);
}

/* It is made of the bars, the split and the environment: whichever of them another job changes, it is that job's own. */
static void test_the_scale_of_rewards_is_each_jobs_own(void **state)
{
	struct fh_spec spec = small_spec();
	struct market *m[2] = {synth_market(SYNTH_MOMENTUM, 1200, 5), synth_market(SYNTH_WALK, 1200, 6)};
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = new_trainer(&spec);
	double last = 0;

	(void)state;
	for (int job = 0; job < 10; job++) {
		struct fh_split split[FH_SPLITS];
		struct market *on = m[job >= 4 && job < 6];

		if (job == 2)
			spec.data.train = 0.5;
		if (job == 6)
			spec.env.multiplier = 3;
		if (job == 8)
			spec.env.reward_scale = 1234;
		assert_int_equal(trainer_begin(t, &spec, on, NULL, &st), 0);
		assert_int_equal(spec_splits(&spec, on->bars, split, &st), 0);
		assert_true(t->spec.env.reward_scale == (job < 8 ? market_auto_reward_scale(on, split[FH_SPLIT_TRAIN], &spec) : 1234));
		assert_true((t->spec.env.reward_scale == last) == (job % 2 == 1)); /* every other job is the one before once more */
		last = t->spec.env.reward_scale;
	}
	trainer_free(t);
	market_unref(m[0]);
	market_unref(m[1]);
}

static void test_a_neighbour_changes_nothing(void **state)
{
	struct fh_spec s = small_spec(), other = s;
	struct market *m = the_market();
	char x[65], y[65];
	struct trainer *t = begin_job(&s, m), *neighbour;

	run_to_end(t, NULL);
	state_hash(t, x);
	trainer_free(t);
	other.run.seed = 3;
	other.collect.envs = 7;
	t = begin_job(&s, m);
	neighbour = begin_job(&other, m);
	while (run_slices(t, 1, NULL))
		run_slices(neighbour, 2, NULL);
	state_hash(t, y);
	assert_string_equal(x, y);
	trainer_free(neighbour);
	trainer_free(t);
	market_unref(m);
}

/* Scratch that is read before it is written would show: it is filled with 0xA5 instead of zeros. */
static void test_scratch_is_written_before_it_is_read(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	char x[65], y[65];
	struct trainer *t = begin_job(&s, m);

	run_to_end(t, NULL);
	state_hash(t, x);
	trainer_free(t);
	setenv("FHD_POISON", "1", 1);
	t = begin_job(&s, m);
	unsetenv("FHD_POISON");
	run_to_end(t, NULL);
	state_hash(t, y);
	trainer_free(t);
	assert_string_equal(x, y);
	market_unref(m);
}

/* Trial p of P has the bits of a job of its own with seed + p. */
static void check_population(const struct fh_spec *spec)
{
	struct fh_spec s = *spec, one = *spec;
	struct market *m = the_market();
	struct samples all = {0};
	struct trainer *t;

	s.run.population = 3;
	t = begin_job(&s, m);
	run_to_end(t, &all);
	for (int p = 0; p < 3; p++) {
		struct samples alone = {0};
		int next = 0;
		one.run.seed = s.run.seed + p;
		struct trainer *u = begin_job(&one, m);
		run_to_end(u, &alone);
		for (int i = 0; i < t->plan.tensors; i++) {
			const struct plan_tensor *d = t->plan.tensor + i;
			if (d->desc.flags & TENSOR_KEEP)
				assert_memory_equal(exec_at(t->x, i, p), u->x->tensor[i], d->stride);
		}
		for (int i = 0; i < all.n; i++)
			if (all.s[i].trial == p) {
				assert_true(next < alone.n);
				assert_memory_equal(all.s[i].value, alone.s[next].value, sizeof(all.s[i].value));
				next++;
			}
		assert_int_equal(next, alone.n);
		free(alone.s);
		trainer_free(u);
	}
	trainer_free(t);
	free(all.s);
	market_unref(m);
}

static void test_a_trial_is_as_good_as_alone(void **state)
{
	struct fh_spec s = small_spec();

	check_population(&s);
	s.learn.loss = FH_LOSS_MSE;
	s.run.precision = FH_PRECISION_BF16;
	check_population(&s);
}

/* A job's last evaluations are what the networks in its tensors do over the splits, trial by trial, in so many windows. */
static void check_last_evaluations(int trials, int windows)
{
	static const char *const name[] = {"pnl", "sharpe", "max_drawdown", "trades", "turnover", "exposure", "bars"};
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct samples all = {0};
	struct fh_status st = FH_STATUS_INIT;
	struct env_config config;
	struct trainer *t;
	int seen = 0, next = 0;

	s.run.population = trials;
	s.run.validate_windows = windows;
	t = begin_job(&s, m);
	run_to_end(t, &all);
	eval_env_config(&t->spec, t->spec.env.reward_scale, &config);
	for (int i = 0; i < all.n; i++) {
		const struct trainer_sample *sample = all.s + i;
		struct policy *p = NULL;
		struct evaluation *e = NULL;
		struct eval_report r;

		if (!sample->validation || sample->step != t->planned)
			continue;
		assert_int_equal(sample->trial, next); /* one after another, as if they had played so */
		next = (next + 1) % trials;
		assert_int_equal(policy_new(&t->spec, FH_STATE_DIM, exec_at(t->x, sample->policy == FH_POLICY_ONLINE ? T_PARAM : T_TARGET, sample->trial),
					    &p, &st), 0);
		const struct eval_setup setup = {.policy = p, .market = m, .config = &config, .split = t->split[sample->split], .windows = windows};
		assert_int_equal(evaluation_make(&setup, &e, &st), 0);
		while (!evaluation_run(e, SLICE_NS))
			;
		evaluation_report(e, &r);
		const double want[] = {r.pnl, r.sharpe, r.max_drawdown, r.trades, r.turnover, r.exposure, (double)r.bars};
		for (unsigned k = 0; k < sizeof(name) / sizeof(*name); k++)
			assert_true(sample_value(sample, name[k]) == want[k]);
		evaluation_free(e);
		policy_free(p);
		seen++;
	}
	assert_int_equal(seen, 4 * trials); /* two networks, two splits */
	free(all.s);
	trainer_free(t);
	market_unref(m);
}

static void test_the_last_evaluations_are_the_networks_own(void **state)
{
	check_last_evaluations(2, 1);
	check_last_evaluations(2, 5);
	check_last_evaluations(HOST_NETS + 3, 2); /* more trials than play side by side on the host */
}

/* ---------------------------------------------------------------- starts from what is there */

static void test_warm_start_keeps_the_weights(void **state)
{
	struct fh_spec s = small_spec(), warm = s;
	struct market *m = the_market(), *m2 = synth_market(SYNTH_REGIME, 2500, 9);
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = new_trainer(&s);

	warm.init.from = FH_INIT_WARM;
	assert_int_equal(trainer_begin(t, &warm, m, NULL, &st), FH_CONFLICT); /* nothing there yet */
	assert_string_equal(st.field, "init.from");
	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	run_to_end(t, NULL);
	size_t bytes = t->plan.tensor[T_PARAM].bytes;
	float *param = malloc(bytes), *target = malloc(bytes), *v = malloc(bytes);
	assert_true(param && target && v);
	memcpy(param, t->x->tensor[T_PARAM], bytes);
	memcpy(target, t->x->tensor[T_TARGET], bytes);
	memcpy(v, t->x->tensor[T_V], bytes);
	warm.run.seed = 99;
	assert_int_equal(trainer_begin(t, &warm, m2, NULL, &st), 0); /* another market is fine */
	const struct dqn_clock *c = t->x->tensor[T_CLOCK];
	assert_memory_equal(param, t->x->tensor[T_PARAM], bytes);
	assert_memory_equal(target, t->x->tensor[T_TARGET], bytes);
	assert_memory_equal(v, t->x->tensor[T_V], bytes);
	assert_true(c->applied == 60 && c->step == 0 && c->stored == 0 && c->vector_step == 0);
	run_to_end(t, NULL);
	assert_int_equal(c->applied, 120);
	free(param);
	free(target);
	free(v);
	trainer_free(t);
	market_unref(m);
	market_unref(m2);
}

static void test_keep_replay_keeps_it_on_the_same_bars_only(void **state)
{
	struct fh_spec s = small_spec(), keep = s;
	struct market *m = the_market(), *m2 = synth_market(SYNTH_REGIME, 2500, 9);
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t = new_trainer(&s);

	keep.init.replay = FH_CARRY_KEEP;
	assert_int_equal(trainer_begin(t, &keep, m, NULL, &st), FH_CONFLICT);
	assert_int_equal(trainer_begin(t, &s, m, NULL, &st), 0);
	run_to_end(t, NULL);
	size_t bytes = t->plan.tensor[T_TREE].bytes;
	float *tree = malloc(bytes);
	assert_non_null(tree);
	memcpy(tree, t->x->tensor[T_TREE], bytes);
	const struct dqn_clock *c = t->x->tensor[T_CLOCK];
	int64_t stored = c->stored;
	float largest = c->largest;
	assert_int_equal(trainer_begin(t, &keep, m2, NULL, &st), FH_CONFLICT);
	assert_string_equal(st.field, "init.replay");
	keep.env.fee = 1;
	assert_int_equal(trainer_begin(t, &keep, m, NULL, &st), FH_CONFLICT);
	assert_non_null(strstr(st.text, "env.fee"));
	keep.env.fee = 0;
	assert_memory_equal(tree, t->x->tensor[T_TREE], bytes); /* a refusal touches nothing */
	assert_int_equal(trainer_begin(t, &keep, m, NULL, &st), 0);
	assert_memory_equal(tree, t->x->tensor[T_TREE], bytes);
	assert_true(c->stored == stored && c->largest == largest && c->applied == 0);
	struct trainer_state now;
	trainer_state_get(t, &now);
	assert_int_equal(now.phase, TRAINER_LEARN); /* no warm-up needed */
	run_to_end(t, NULL);
	free(tree);
	trainer_free(t);
	market_unref(m);
	market_unref(m2);
}

/* A parameter that is no number spoils every gradient: ten skipped steps in a row end the job with a clear message. */
static void test_divergence_fails_the_job(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_state now = {0};
	int rc = 0;

	s.run.steps_per_epoch = 100;
	struct trainer *t = begin_job(&s, m);
	float *param = t->x->tensor[T_PARAM];
	while (now.step < 5)
		assert_int_equal(trainer_run(t, 0, &now, &st), 0);
	param[0] = NAN; /* as a broken kernel or bad memory would */
	while (rc == 0 && !now.done) {
		rc = trainer_run(t, SLICE_NS, &now, &st);
		samples_take(t, NULL);
	}
	assert_int_equal(rc, FH_DIVERGED);
	assert_non_null(strstr(st.text, "finite"));
	trainer_free(t);
	market_unref(m);
}

static void test_nobody_polls(void **state)
{
	struct fh_spec s = small_spec();
	struct market *m = the_market();
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_state now = {0}, last = {0};
	struct samples got = {0};

	s.run.report_every = 1;
	struct trainer *t = begin_job(&s, m);
	for (int i = 0; i < 2000; i++) {
		last = now;
		assert_int_equal(trainer_run(t, SLICE_NS, &now, &st), 0);
	}
	assert_false(now.done); /* it waits for someone to take the samples */
	assert_int_equal(last.step, now.step);
	samples_take(t, &got);
	run_to_end(t, &got);
	int reports = 0;
	for (int i = 0; i < got.n; i++)
		reports += !got.s[i].validation;
	assert_int_equal(reports, 60); /* none is lost */
	free(got.s);
	trainer_free(t);
	market_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_warm_up_and_schedule), cmocka_unit_test(test_a_device_gets_few_lists_and_the_same_results),
		cmocka_unit_test(test_warm_up_with_n_steps),
		cmocka_unit_test(test_samples_come_at_their_steps), cmocka_unit_test(test_checkpoints_are_due_at_their_steps),
		cmocka_unit_test(test_same_seed_same_bits), cmocka_unit_test(test_a_reused_trainer_is_as_good_as_new),
		cmocka_unit_test(test_the_scale_of_rewards_is_each_jobs_own), cmocka_unit_test(test_a_neighbour_changes_nothing), cmocka_unit_test(test_scratch_is_written_before_it_is_read),
		cmocka_unit_test(test_a_trial_is_as_good_as_alone), cmocka_unit_test(test_the_last_evaluations_are_the_networks_own), cmocka_unit_test(test_warm_start_keeps_the_weights),
		cmocka_unit_test(test_keep_replay_keeps_it_on_the_same_bars_only), cmocka_unit_test(test_divergence_fails_the_job),
		cmocka_unit_test(test_nobody_polls),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
