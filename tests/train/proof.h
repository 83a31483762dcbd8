/* Shared by the learning proofs: synthetic and real markets, one training run, the benchmark paying the same costs.
 *
 * One test and one printed line per seed. The last evaluation counts, never the best one. FHD_DEVICE=cuda trains on a
 * GPU, FHD_PROOF_PRECISION=f32|tf32|bf16 in that precision, FHD_PROOF_VERBOSE prints every sample. FHD_PROOF_ROUNDINGS=N runs each seed of a
 * momentum proof N times, the learning rate off by a millionth more each time: after some hundred steps that is another run. */
#ifndef FH_TRAIN_PROOF_H
#define FH_TRAIN_PROOF_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "gpu/trainer.h"
#include "proto/status.h"
#include "tests/unit/market.h"

#define PROOF_UNUSED __attribute__((unused))
#define PROOF_SLICE_NS 100000000

struct proof {
	struct eval_report online, target, test_online, test_target; /* at the end; only what the samples carry */
	double seconds;
	int64_t steps;
};

PROOF_UNUSED static void must(int rc, const struct fh_status *st)
{
	if (rc)
		fail_msg("%s%s%s", st->field, st->field[0] ? ": " : "", st->text);
}

/* What the test runner allows this build in time, as a factor. */
PROOF_UNUSED static double slowdown(void)
{
	const char *factor = getenv("FH_TEST_SLOWDOWN");

	return factor && atof(factor) > 1 ? atof(factor) : 1;
}

PROOF_UNUSED static double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The specification's defaults; the caller changes fields, then trains. */
PROOF_UNUSED static struct fh_spec proof_spec(uint64_t seed)
{
	struct fh_status st = FH_STATUS_INIT;
	const char *precision = getenv("FHD_PROOF_PRECISION");
	struct fh_spec s;

	spec_defaults(&s);
	snprintf(s.data.dataset, sizeof(s.data.dataset), "proof");
	s.run.seed = (int64_t)seed;
	if (precision)
		must(spec_set(&s, spec_key_find("run.precision"), precision, &st), &st);
	return s;
}

/* Trunk 64-64, heads 32, 21 atoms, B 64. */
PROOF_UNUSED static void proof_small_net(struct fh_spec *s)
{
	s->net.trunk1 = s->net.trunk2 = 64;
	s->net.value_hidden = s->net.advantage_hidden = 32;
	s->net.atoms = 21;
	s->learn.batch = 64;
}

PROOF_UNUSED static void proof_steps(struct fh_spec *s, int64_t steps)
{
	s->run.epochs = 1;
	s->run.steps_per_epoch = steps;
}

PROOF_UNUSED static double proof_value(const struct trainer_sample *s, const char *name)
{
	for (int i = 0; i < s->values; i++)
		if (strcmp(s->metric[i]->name, name) == 0)
			return s->value[i];
	fail_msg("no metric %s", name);
	return 0;
}

PROOF_UNUSED static void proof_take(struct trainer *t, struct proof *out)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trainer_sample s;
	int verbose = getenv("FHD_PROOF_VERBOSE") != NULL, rc;

	while ((rc = trainer_poll(t, &s, &st)) == 1) {
		if (verbose) {
			printf("  step %lld%s%s", (long long)s.step, s.validation ? s.split == FH_SPLIT_TEST ? " test" : " validation" : "",
			       s.validation ? s.policy == FH_POLICY_ONLINE ? " online" : " target" : "");
			for (int i = 0; i < s.values; i++)
				printf(" %s=%.4g", s.metric[i]->name, s.value[i]);
			printf("\n");
		}
		if (!s.validation)
			continue;
		struct eval_report *r = s.split == FH_SPLIT_TEST ? (s.policy == FH_POLICY_ONLINE ? &out->test_online : &out->test_target) :
			(s.policy == FH_POLICY_ONLINE ? &out->online : &out->target);
		r->sharpe = proof_value(&s, "sharpe");
		r->ret = proof_value(&s, "return");
		r->trades = proof_value(&s, "trades");
		r->bars_per_year = proof_value(&s, "bars_per_year");
		r->exposure = proof_value(&s, "exposure");
		r->bars = (int64_t)proof_value(&s, "bars");
	}
	must(rc, &st);
}

/* Trains a job to its end. */
PROOF_UNUSED static struct proof proof_train(const struct fh_spec *spec, struct market *m)
{
	struct fh_status st = FH_STATUS_INIT;
	const struct backend *b;
	const char *device = getenv("FHD_DEVICE");
	struct trainer *t = NULL;
	struct trainer_state state = {0};
	struct proof out;
	struct fh_spec s = *spec;
	double start = seconds_now();

	memset(&out, 0, sizeof(out));
	must(backend_open(device ? device : "host", &b, NULL, &st), &st);
	spec_resolve(&s, b->kind);
	must(trainer_new(b, &s, &t, &st), &st);
	must(trainer_begin(t, &s, m, NULL, &st), &st);
	while (!state.done) {
		must(trainer_run(t, PROOF_SLICE_NS, &state, &st), &st);
		proof_take(t, &out);
	}
	trainer_free(t);
	out.steps = state.step;
	out.seconds = seconds_now() - start;
	return out;
}

/* A script over one split through the same environment; hold: barriers and horizon out of reach. */
PROOF_UNUSED static struct eval_report proof_script(const struct fh_spec *spec, struct market *m, int split, eval_script script,
						    int hold)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_split splits[FH_SPLITS];
	struct env_config config;
	struct evaluation *e = NULL;
	struct eval_report r;

	must(spec_splits(spec, m->bars, splits, &st), &st);
	eval_env_config(spec, 1, &config);
	if (hold)
		eval_hold_config(&config);
	must(evaluation_new(NULL, script, NULL, m, &config, splits[split], 0, &e, &st), &st);
	while (!evaluation_run(e, PROOF_SLICE_NS))
		;
	evaluation_report(e, &r);
	evaluation_free(e);
	return r;
}

/* One run of it: whether it holds. */
PROOF_UNUSED static int proof_momentum_once(const char *what, const struct fh_spec *spec, struct market *m, double online_min, double target_min,
					    double seconds_max)
{
	struct eval_report best = proof_script(spec, m, FH_SPLIT_VALIDATION, eval_last_sign, 0);
	struct proof p = proof_train(spec, m);
	double online = p.online.sharpe / best.sharpe, target = p.target.sharpe / best.sharpe;

	printf("%s seed %lld: online %.3f target %.3f of the benchmark's Sharpe %.1f (needed %.2f %.2f), test target %.1f, "
	       "%lld steps in %.1f s\n",
	       what, (long long)spec->run.seed, online, target, best.sharpe, online_min, target_min, p.test_target.sharpe,
	       (long long)p.steps, p.seconds);
	fflush(stdout);
	assert_true(best.sharpe > 0);
	return online >= online_min && target >= target_min && p.seconds <= seconds_max * slowdown();
}

/* A momentum proof of one seed: the market's and the job's. */
PROOF_UNUSED static void proof_momentum(const char *what, const struct fh_spec *spec, double online_min, double target_min,
					double seconds_max)
{
	struct market *m = test_market(SYNTH_MOMENTUM, 20000, (uint64_t)spec->run.seed, spec->env.tick);
	const char *asked = getenv("FHD_PROOF_ROUNDINGS");
	int roundings = asked && atoi(asked) > 1 ? atoi(asked) : 1, held = 0;

	for (int k = 0; k < roundings; k++) {
		struct fh_spec s = *spec;

		s.learn.lr *= 1 + 1e-6 * k;
		held += proof_momentum_once(what, &s, m, online_min, target_min, seconds_max);
	}
	market_unref(m);
	if (roundings > 1)
		printf("%s seed %lld: %d of %d hold\n", what, (long long)spec->run.seed, held, roundings);
	assert_int_equal(held, roundings);
}

#define PROOF_THREE_SEEDS(prove) \
	static void seed_1(void **state) { prove(1); } \
	static void seed_2(void **state) { prove(2); } \
	static void seed_3(void **state) { prove(3); } \
	int main(void) \
	{ \
		const struct CMUnitTest tests[] = {cmocka_unit_test(seed_1), cmocka_unit_test(seed_2), cmocka_unit_test(seed_3)}; \
		return cmocka_run_group_tests(tests, NULL, NULL); \
	}

#endif
