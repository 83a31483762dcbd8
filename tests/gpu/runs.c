/* Whole jobs on the device: 500 learn steps beside the host's, the same bits again and across a checkpoint, BF16 beside F32 on a
 * market that can be learnt, fifty epochs in which every number stays finite. */
#include "tests/gpu/rig.h"
#include "gpu/trainer_impl.h"
#include "tests/unit/training.h"

enum { BARS = 20000, SEEDS = 5, TRIALS = 8 };
#define STEPS RIG_MANY(500, 100)

struct job { struct trainer *t; struct samples said; };

static const struct backend *device_or_host(int device) { return device ? rig_cuda : backend_host(); }

static struct job begin(int device, const struct fh_spec *spec, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec s = *spec;
	struct job j = {0};

	s.run.device = FH_DEVICE_AUTO;
	spec_resolve(&s, device_or_host(device)->kind);
	if (trainer_new(device_or_host(device), &s, &j.t, &st) || trainer_begin(j.t, &s, m, NULL, &st))
		fail_msg("%s", st.text);
	return j;
}

static struct job run(int device, const struct fh_spec *spec, struct market *m)
{
	struct job j = begin(device, spec, m);

	run_to_end(j.t, &j.said);
	return j;
}

static void end(struct job *j)
{
	trainer_free(j->t);
	free(j->said.s);
}

/* The defaults of a card, or a net that a CPU can emulate. */
static struct fh_spec a_spec(uint64_t seed)
{
	struct fh_spec s;

	spec_defaults(&s);
	snprintf(s.data.dataset, sizeof s.data.dataset, "synth");
	s.run.seed = (int64_t)seed;
	s.run.checkpoint_every = 0;
	s.learn.batch = RIG_MANY(256, 24);
	s.replay.capacity = RIG_MANY(131072, 4096);
	if (rig_emulated) {
		s.net.trunk1 = s.net.trunk2 = 32;
		s.net.value_hidden = s.net.advantage_hidden = 16;
		s.net.atoms = 11;
		s.collect.envs = 8;
		s.learn.warmup = 400;
	}
	return s;
}

static void *tensor_of(struct job *j, int tensor)
{
	struct fh_status st = FH_STATUS_INIT;
	const struct plan_tensor *p = &j->t->plan.tensor[tensor];
	void *data = malloc(p->bytes);

	assert_non_null(data);
	if (j->t->backend->read(j->t->x, tensor, 0, data, p->bytes, &st))
		fail_msg("%s", st.text);
	return data;
}

/* ‖device − host‖ over ‖host − start‖: what the runs differ by, measured by how far they went. */
static double distance(struct job *host, struct job *device, const float *start, int tensor)
{
	float *h = tensor_of(host, tensor), *d = tensor_of(device, tensor);
	int64_t n = host->t->plan.tensor[tensor].elements;
	double diff = 0, way = 0;

	for (int64_t i = 0; i < n; i++) {
		diff += ((double)d[i] - h[i]) * ((double)d[i] - h[i]);
		way += ((double)h[i] - start[i]) * ((double)h[i] - start[i]);
	}
	free(h);
	free(d);
	assert_true(way > 0 && diff == diff);
	return sqrt(diff / way);
}

static void same_tensor(struct job *a, struct job *b, int tensor)
{
	const struct plan_tensor *p = &a->t->plan.tensor[tensor];
	void *x = tensor_of(a, tensor), *y = tensor_of(b, tensor);
	int same = p->bytes == b->t->plan.tensor[tensor].bytes && memcmp(x, y, p->bytes) == 0;

	free(x);
	free(y);
	if (!same)
		fail_msg("%s differs between host and device", p->name);
}

/* ---------------------------------------------------------------- 500 steps beside the host */

/* The job again from parameters that are off by about a rounding. */
static struct job run_off(const struct fh_spec *spec, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	struct job j = begin(0, spec, m);
	float *p = tensor_of(&j, T_PARAM);
	uint64_t draw = 1;

	for (int64_t i = 0; i < j.t->plan.tensor[T_PARAM].elements; i++)
		p[i] *= 1 + 1e-6f * (rig_uniform(&draw) - 0.5f);
	if (j.t->backend->write(j.t->x, T_PARAM, 0, p, 0, &st))
		fail_msg("%s", st.text);
	free(p);
	run_to_end(j.t, &j.said);
	return j;
}

/* Random actions and equal priorities: what is drawn, done and stored does not hang on the network, so both see the same batches
 * bit for bit, and only rounding is left between them. Training makes much of it (a greedy choice of two that are alike falls the
 * other way: 1e-2 of a small batch's way at once), so the measure is what becomes of the host's own run when it starts with a
 * rounding more: 8e-4 of the way after 50 steps of the default network, 0.2 after 500. */
static void same_batches(int steps)
{
	static const int equal[] = {T_INDEX, T_RP_S, T_RP_A, T_RP_R, T_RP_G, T_RP_S2, T_TREE, T_ENV_CASH, T_ENV_EQUITY, T_ENV_Q, T_ENV_T, T_OBS};
	static const int moved[] = {T_PARAM, T_TARGET};
	struct fh_spec s = a_spec(3);

	s.run.precision = FH_PRECISION_F32;
	s.replay.alpha = 0;
	s.collect.eps_start = s.collect.eps_end = 1;
	s.run.epochs = 1;
	s.run.steps_per_epoch = s.run.report_every = steps;
	s.run.validate_every = 0;
	struct market *m = synth_market(SYNTH_MOMENTUM, 4000, 3);
	struct job first = begin(0, &s, m), host = run(0, &s, m), off = run_off(&s, m), device = run(1, &s, m);

	for (unsigned i = 0; i < sizeof equal / sizeof equal[0]; i++)
		same_tensor(&host, &device, equal[i]);
	for (unsigned i = 0; i < sizeof moved / sizeof moved[0]; i++) {
		float *start = tensor_of(&first, moved[i]);
		double differs = distance(&host, &device, start, moved[i]), rounding = distance(&host, &off, start, moved[i]);

		printf("%d steps on the same batches: %s differs by %.2e of its way, by %.2e for a rounding at the start\n", steps,
		       host.t->plan.tensor[moved[i]].name, differs, rounding);
		assert_within(differs, 4 * rounding + 2e-2, "way of the parameters");
		free(start);
	}
	end(&first);
	end(&host);
	end(&off);
	end(&device);
	market_unref(m);
}

static void same_batches_for_500_steps(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	same_batches(STEPS / 10);
	same_batches(STEPS);
}

static double mean_of(const struct samples *all, const char *name)
{
	double sum = 0;
	int n = 0;

	for (int i = 0; i < all->n; i++)
		if (!all->s[i].validation)
			sum += sample_value(&all->s[i], name), n++;
	assert_true(n > 0);
	return sum / n;
}

static void close_to(double now, double reference, double share, const char *what, const char *among)
{
	printf("  %-16s %12.6g, %12.6g %s (%+.2f %%)\n", what, now, reference, among, 100 * (now / reference - 1));
	assert_within(fabs(now - reference) / fabs(reference), share, what);
}

/* As a user runs it: a draw or a greedy action at the edge of a rounding goes the other way now and then, so what is compared are
 * the reports. A host's run that starts with a rounding more differs from the host's by up to 0.7 % in the losses, 2 % in the
 * gradient norm, 1.4 % in fills, and by 0.008 in Q, which is near zero yet: its measure is the size of a reward. */
static void a_job_of_500_steps(void **state)
{
	static const struct { const char *name; double share; } compared[] = {
		{"loss", 0.03}, {"priority_error", 0.03}, {"grad_norm", 0.05}, {"reward_std", 0.03}, {"fills", 0.05},
	};

	(void)state;
	if (!rig_cuda)
		skip();
	struct fh_spec s = a_spec(4);
	s.run.precision = FH_PRECISION_F32;
	s.run.epochs = 1;
	s.run.steps_per_epoch = STEPS;
	s.run.validate_every = 0;
	struct market *m = synth_market(SYNTH_MOMENTUM, 4000, 4);
	struct job host = run(0, &s, m), device = run(1, &s, m);

	printf("a job of %d steps, means of its reports:\n", STEPS);
	for (unsigned i = 0; i < sizeof compared / sizeof compared[0]; i++)
		close_to(mean_of(&device.said, compared[i].name), mean_of(&host.said, compared[i].name), compared[i].share,
			 compared[i].name, "on the host");
	const double q = mean_of(&device.said, "q"), host_q = mean_of(&host.said, "q");
	printf("  q                %12.6g, %12.6g on the host\n", q, host_q);
	assert_within(fabs(q - host_q) / mean_of(&host.said, "reward_std"), 0.03, "mean Q, in rewards");
	assert_int_equal(device.said.n, host.said.n);
	end(&host);
	end(&device);
	market_unref(m);
}

/* ---------------------------------------------------------------- the same bits */

static struct fh_spec a_short_job(int which)
{
	struct fh_spec s = small_spec();

	s.run.precision = which == 1 ? FH_PRECISION_F32 : FH_PRECISION_BF16;
	if (which == 1) {
		s.learn.n_step = 1;
		s.learn.steps_per_collect = 4;
		s.learn.lr_schedule = FH_SCHEDULE_LINEAR;
	}
	if (which == 2)
		s.run.population = RIG_MANY(3, 2);
	return s;
}

static int by_place(const void *a, const void *b)
{
	const struct trainer_sample *x = a, *y = b;
	const int64_t of[][2] = {{x->step, y->step}, {x->validation, y->validation}, {x->split, y->split}, {x->policy, y->policy}, {x->trial, y->trial}};

	for (unsigned i = 0; i < sizeof of / sizeof of[0]; i++)
		if (of[i][0] != of[i][1])
			return of[i][0] < of[i][1] ? -1 : 1;
	return 0;
}

/* What the jobs said of themselves: the same samples with the same bits. A report may come behind the evaluation of its step:
 * nobody waits for it. */
static void same_words(struct samples *a, struct samples *b)
{
	assert_int_equal(a->n, b->n);
	qsort(a->s, (size_t)a->n, sizeof *a->s, by_place);
	qsort(b->s, (size_t)b->n, sizeof *b->s, by_place);
	for (int i = 0; i < a->n; i++) {
		const struct trainer_sample *x = &a->s[i], *y = &b->s[i];

		assert_true(x->validation == y->validation && x->split == y->split && x->policy == y->policy && x->trial == y->trial && x->step == y->step &&
			    x->vector_step == y->vector_step && x->values == y->values);
		for (int k = 0; k < x->values; k++)
			if (x->metric[k] != y->metric[k] || memcmp(&x->value[k], &y->value[k], sizeof x->value[k]) != 0)
				fail_msg("%s at step %lld: %.17g and %.17g", x->metric[k]->name, (long long)x->step, x->value[k], y->value[k]);
	}
}

static void check_cut(const struct fh_spec *s, struct market *m, int calls, const char *end_hash, struct samples *whole)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec resolved;
	struct st_image image;
	char path[256], hash[65], was[65], is[65];
	struct job a = begin(1, s, m), b = {0};

	resolved = a.t->plan.spec;
	run_slices(a.t, calls, &a.said);
	temp_path(path, sizeof path, "runs");
	snapshot(a.t, &image);
	samples_take(a.t, &a.said); /* what was asked for in front of it is there now */
	save_image(&image, path);
	st_image_release(&image);
	state_hash(a.t, was);
	if (trainer_new(rig_cuda, &resolved, &b.t, &st) || trainer_resume(b.t, &resolved, m, path, &st))
		fail_msg("%s", st.text);
	unlink(path);
	state_hash(b.t, is);
	assert_string_equal(was, is);
	run_to_end(b.t, &a.said);
	state_hash(b.t, hash);
	assert_string_equal(hash, end_hash);
	same_words(&a.said, whole);
	end(&a);
	end(&b);
}

/* Cut in warm-up, between reports, within evaluations, at the end: where it is cut leaves no trace. */
static void resumed_bit_for_bit(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	struct market *m = synth_market(SYNTH_MOMENTUM, RIG_MANY(2000, 1200), 5);
	for (int which = RIG_MANY(0, 2); which < 3; which++) {
		struct fh_spec s = a_short_job(which);
		struct job whole = run(1, &s, m), again = run(1, &s, m);
		char hash[65], other[65];

		state_hash(whole.t, hash);
		state_hash(again.t, other);
		assert_string_equal(hash, other);
		same_words(&again.said, &whole.said);
		end(&again);
		again = begin(1, &s, m);
		int slices = run_slices(again.t, 1 << 30, NULL);
		state_hash(again.t, other);
		assert_string_equal(hash, other); /* nor does how much is asked for at once */
		for (int calls = 1; calls < slices; calls += slices / RIG_MANY(20, 2) + 1)
			check_cut(&s, m, calls, hash, &whole.said);
		check_cut(&s, m, slices, hash, &whole.said);
		end(&again);
		end(&whole);
	}
	market_unref(m);
}

/* A job whose evaluations go on behind training, however the device keeps up with it, says what one says that waits for them; `behind`: steps
 * that were learnt meanwhile, over all of them. */
static void behind_is_waiting(void **state)
{
	static const struct { int trials, windows; } of[] = {{1, 1}, {1, 3}, {2, 1}};

	(void)state;
	if (!rig_cuda)
		skip();
	struct market *m = synth_market(SYNTH_MOMENTUM, RIG_MANY(20000, 1200), 5);
	for (int i = RIG_MANY(0, 1); i < 3; i++) {
		struct fh_spec s = small_spec();
		struct fh_status st = FH_STATUS_INIT;
		struct trainer_state at = {0};
		int64_t behind = 0;
		char hash[65], other[65];

		s.run.precision = FH_PRECISION_BF16;
		s.run.population = of[i].trials;
		s.run.validate_windows = of[i].windows;
		s.run.steps_per_epoch = RIG_MANY(1000, 15);
		s.run.validate_every = RIG_MANY(300, 10);
		s.run.report_every = RIG_MANY(100, 7);
		s.run.checkpoint_every = RIG_MANY(1250, 25);
		setenv("FH_GPU_BEHIND", "0", 1);
		struct job waits = run(1, &s, m);
		unsetenv("FH_GPU_BEHIND");
		struct job goes_on = begin(1, &s, m);
		while (!at.done) {
			const int64_t before = at.step;

			if (trainer_run(goes_on.t, 0, &at, &st))
				fail_msg("%s", st.text);
			samples_take(goes_on.t, &goes_on.said);
			behind += goes_on.t->behind && goes_on.t->task_step < at.step ? at.step - before : 0;
			assert_false(at.checkpoint_due && goes_on.t->behind);
			if (at.checkpoint_due)
				goes_on.t->checkpoint_due = 0; /* as if a snapshot had been taken */
		}
		printf("%d trials in %d windows: %lld of %lld steps were learnt while an evaluation went on\n", of[i].trials, of[i].windows, (long long)behind,
		       (long long)at.step);
		assert_true(behind > 0);
		same_words(&goes_on.said, &waits.said);
		state_hash(waits.t, hash);
		state_hash(goes_on.t, other);
		assert_string_equal(hash, other);
		end(&waits);
		end(&goes_on);
	}
	market_unref(m);
}

/* ---------------------------------------------------------------- precision */

struct learnt { double sharpe, q, norm, norm_max; };

/* Of each trial the largest report, their mean. */
static double mean_largest(const struct samples *all, const char *name, int trials)
{
	double sum = 0;

	for (int p = 0; p < trials; p++) {
		double most = -INFINITY;

		for (int i = 0; i < all->n; i++)
			if (!all->s[i].validation && all->s[i].trial == p)
				most = fmax(most, sample_value(&all->s[i], name));
		sum += most;
	}
	return sum / trials;
}

static struct learnt learn(uint64_t seed, int precision)
{
	struct fh_spec s = a_spec(seed);
	struct learnt l = {0};
	int found = 0;

	s.run.precision = precision;
	s.run.population = RIG_MANY(TRIALS, 1);
	s.run.validate_every = 0; /* at the end */
	if (rig_emulated) {
		s.run.epochs = 1;
		s.run.steps_per_epoch = 24;
		s.run.report_every = 8;
	}
	struct market *m = synth_market(SYNTH_MOMENTUM, RIG_MANY(BARS, 1500), seed);
	struct job j = run(1, &s, m);

	l.q = mean_of(&j.said, "q");
	l.norm = mean_of(&j.said, "grad_norm");
	l.norm_max = mean_largest(&j.said, "grad_norm_max", (int)s.run.population);
	for (int i = 0; i < j.said.n; i++)
		if (j.said.s[i].validation && j.said.s[i].split == FH_SPLIT_VALIDATION && j.said.s[i].policy == s.run.validate_policy)
			l.sharpe += sample_value(&j.said.s[i], "sharpe"), found++;
	assert_int_equal(found, s.run.population);
	l.sharpe /= found;
	end(&j);
	market_unref(m);
	return l;
}

/* Sharpe ratio at the end within 5 %, mean Q within 10 %, norm of the gradients, mean and largest, within 20 %. Five markets with a
 * seed each, and trials of further seeds on each: one run's Sharpe ratio is off by a twelfth of itself for no other reason than its
 * seed, so of five runs alone the means differ by 5 % one time in three. */
static void bf16_learns_what_f32_learns(void **state)
{
	struct learnt sum[2] = {{0}};

	(void)state;
	if (!rig_cuda)
		skip();
	for (int k = 0; k < RIG_MANY(SEEDS, 2); k++)
		for (int low = 0; low < 2; low++) {
			const int seed = 1 + k * TRIALS;
			const struct learnt l = learn((uint64_t)seed, low ? FH_PRECISION_BF16 : FH_PRECISION_F32);

			printf("  seed %d, %s: Sharpe %.2f, Q %.4f, gradient norm %.4f, largest %.4f\n", seed, low ? "bf16" : "f32 ", l.sharpe, l.q,
			       l.norm, l.norm_max);
			sum[low].sharpe += l.sharpe, sum[low].q += l.q, sum[low].norm += l.norm, sum[low].norm_max += l.norm_max;
		}
	if (!rig_emulated) /* in so few steps nothing is learnt */
		close_to(sum[1].sharpe, sum[0].sharpe, 0.05, "Sharpe", "in f32");
	close_to(sum[1].q, sum[0].q, 0.10, "mean Q", "in f32");
	close_to(sum[1].norm, sum[0].norm, 0.20, "gradient norm", "in f32");
	close_to(sum[1].norm_max, sum[0].norm_max, 0.20, "largest norm", "in f32");
}

static void finite_for_50_epochs(void **state)
{
	(void)state;
	if (!rig_cuda)
		skip();
	struct fh_spec s = a_spec(1);
	s.run.precision = FH_PRECISION_BF16;
	s.run.epochs = RIG_MANY(50, 5);
	s.run.steps_per_epoch = RIG_MANY(300, 10);
	s.run.validate_every = s.run.steps_per_epoch * 5;
	s.run.report_every = s.run.steps_per_epoch;
	struct market *m = synth_market(SYNTH_MOMENTUM, RIG_MANY(BARS, 1200), 1);
	struct job j = run(1, &s, m);
	int reports = 0;

	for (int i = 0; i < j.said.n; i++) {
		for (int k = 0; k < j.said.s[i].values; k++)
			if (!isfinite(j.said.s[i].value[k]))
				fail_msg("%s is %g at step %lld", j.said.s[i].metric[k]->name, j.said.s[i].value[k], (long long)j.said.s[i].step);
		if (j.said.s[i].validation)
			continue;
		assert_true(sample_value(&j.said.s[i], "skipped_steps") == 0);
		reports++;
	}
	assert_int_equal(reports, s.run.epochs);
	float *param = tensor_of(&j, T_PARAM);
	for (int64_t i = 0; i < j.t->plan.tensor[T_PARAM].elements; i++)
		assert_true(isfinite(param[i]));
	free(param);
	end(&j);
	market_unref(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_batches_for_500_steps),
		cmocka_unit_test(a_job_of_500_steps),
		cmocka_unit_test(resumed_bit_for_bit),
		cmocka_unit_test(behind_is_waiting),
		cmocka_unit_test(bf16_learns_what_f32_learns),
		cmocka_unit_test(finite_for_50_epochs),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
