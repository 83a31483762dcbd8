/* Promises of gpu/spec.h: every default passes its own range, text survives a round trip, rules name field and values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "gpu/spec.h"
#include "proto/status.h"

static struct fh_spec valid(void)
{
	struct fh_spec s;
	spec_defaults(&s);
	snprintf(s.data.dataset, sizeof s.data.dataset, "EURUSD");
	return s;
}

static int set(struct fh_spec *s, const char *path, const char *text, struct fh_status *st)
{
	const struct spec_key *k = spec_key_find(path);
	assert_non_null(k);
	return spec_set(s, k, text, st);
}

static void test_defaults(void **state)
{
	struct fh_spec s = valid();
	struct fh_status st = FH_STATUS_INIT;
	int n;
	const struct spec_key *key = spec_keys(&n);

	assert_int_equal(spec_check(&s, &st), 0);
	assert_true(n > 50);
	for (int i = 0; i < n; i++) {
		assert_true(key[i].help && *key[i].help);
		assert_ptr_equal(spec_key_find(key[i].path), key + i); /* no path twice */
	}
	assert_null(spec_key_find("learn.lrr"));
	assert_string_equal(s.model, "dqn");
	assert_true(s.learn.batch == 0 && s.replay.capacity == 0 && s.env.reward_scale == 0);
	assert_true(s.learn.lr == 3e-4 && s.learn.gamma == 0.9 && s.learn.warmup == 2000);
	assert_int_equal(spec_planned_steps(&s), 3000);
	struct fh_spec host = s, cuda = s;
	spec_resolve(&host, FH_DEVICE_HOST);
	spec_resolve(&cuda, FH_DEVICE_CUDA);
	assert_true(host.learn.batch == 128 && host.replay.capacity == 32768 && host.run.precision == FH_PRECISION_F32);
	assert_true(cuda.learn.batch == 256 && cuda.replay.capacity == 131072 && cuda.run.precision == FH_PRECISION_BF16);
	assert_true(host.run.device == FH_DEVICE_HOST && cuda.run.device == FH_DEVICE_CUDA);
	assert_true(host.env.reward_scale == 0); /* needs the market */
	assert_int_equal(spec_check(&cuda, &st), 0);
}

static void test_text_round_trip(void **state)
{
	static const double reals[] = {0.1, 3e-4, 1.0 / 3, 123456.789, 1e-9, 0.30000000000000004};
	struct fh_spec s = valid(), back;
	char text[128], again[128];
	int n;
	const struct spec_key *key = spec_keys(&n);

	memset(&back, 0, sizeof back);
	for (int i = 0; i < n; i++) {
		spec_get(&s, key + i, text, sizeof text);
		assert_int_equal(spec_set(&back, key + i, text, NULL), 0);
	}
	assert_memory_equal(&s, &back, sizeof s);
	for (unsigned i = 0; i < sizeof reals / sizeof reals[0]; i++) {
		s.learn.gamma = reals[i];
		spec_get(&s, spec_key_find("learn.gamma"), text, sizeof text);
		assert_true(strtod(text, NULL) == reals[i]);
	}
	s.learn.gamma = 0.1;
	spec_get(&s, spec_key_find("learn.gamma"), text, sizeof text);
	assert_string_equal(text, "0.1");
	s.env.multiplier = 50;
	spec_get(&s, spec_key_find("env.multiplier"), text, sizeof text);
	assert_string_equal(text, "50"); /* not 5e+01 */
	s.env.multiplier = 2.5e-7;
	spec_get(&s, spec_key_find("env.multiplier"), text, sizeof text);
	assert_string_equal(text, "2.5e-07");
	s.run.seed = INT64_MIN;
	spec_get(&s, spec_key_find("run.seed"), text, sizeof text);
	assert_int_equal(set(&s, "run.seed", text, NULL), 0);
	assert_true(s.run.seed == INT64_MIN);
	assert_int_equal(set(&s, "replay.capacity", "auto", NULL), 0);
	spec_get(&s, spec_key_find("replay.capacity"), again, sizeof again);
	assert_string_equal(again, "auto");
	assert_int_equal(set(&s, "run.epochs", "1e3", NULL), 0);
	assert_true(s.run.epochs == 1000);
}

static void test_refusals_name_the_key(void **state)
{
	static const char *const bad[][2] = {
		{"learn.lr", "0"}, {"learn.lr", "2"}, {"learn.lr", "nan"}, {"learn.lr", "inf"}, {"learn.lr", "1e-3x"},
		{"learn.lr", ""}, {"learn.lr", " 1e-3"}, {"learn.n_step", "0"}, {"learn.n_step", "1.5"}, {"learn.n_step", "auto"},
		{"replay.capacity", "1000"}, {"replay.capacity", "8"}, {"learn.loss", "C51"}, {"learn.loss", "huber"},
		{"run.seed", "9223372036854775808"}, {"run.priority", "101"}, {"data.dataset", "a/b"}, {"data.dataset", "a b"},
		{"data.train", "0"}, {"env.tick", "0"}, {"net.atoms", "1"}, {"collect.eps_end", "1.01"}, {"env.lot", "-1"},
		{"data.dataset", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
	};
	for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct fh_spec s = valid(), before = s;
		struct fh_status st = FH_STATUS_INIT;
		assert_int_equal(set(&s, bad[i][0], bad[i][1], &st), FH_INVALID);
		assert_string_equal(st.field, bad[i][0]);
		assert_non_null(strstr(st.text, bad[i][0]));
		assert_memory_equal(&s, &before, sizeof s);
	}
	/* The same values written past the table are found by the check. */
	struct fh_spec s = valid();
	struct fh_status st = FH_STATUS_INIT;
	s.learn.loss = 7;
	assert_int_equal(spec_check(&s, &st), FH_INVALID);
	assert_string_equal(st.field, "learn.loss");
	s = valid();
	s.replay.capacity = 3000;
	assert_int_equal(spec_check(&s, &st), FH_INVALID);
	assert_string_equal(st.field, "replay.capacity");
	s = valid();
	memset(s.data.dataset, 'a', sizeof s.data.dataset);
	assert_int_equal(spec_check(&s, &st), FH_INVALID);
	assert_string_equal(st.field, "data.dataset");
}

static void rule(const char *a, const char *av, const char *b, const char *bv, const char *field)
{
	struct fh_spec s = valid();
	struct fh_status st = FH_STATUS_INIT;
	assert_int_equal(set(&s, a, av, NULL), 0);
	if (b)
		assert_int_equal(set(&s, b, bv, NULL), 0);
	assert_int_equal(spec_check(&s, &st), FH_INVALID);
	assert_string_equal(st.field, field);
	assert_non_null(strstr(st.text, av));
	if (b)
		assert_non_null(strstr(st.text, bv));
}

static void test_rules_between_keys(void **state)
{
	rule("net.v_min", "10", NULL, NULL, "net.v_min");
	rule("net.v_min", "3", "net.v_max", "2", "net.v_min");
	rule("learn.warmup", "5000", "replay.capacity", "4096", "learn.warmup");
	rule("learn.batch", "512", "learn.warmup", "400", "learn.batch");
	rule("collect.envs", "4096", "replay.capacity", "2048", "collect.envs");
	rule("data.train", "0.9", "data.test", "0.2", "data.train");
	rule("env.lot", "2", "env.max_position", "1.5", "env.lot");
	rule("env.ruin_fraction", "1", NULL, NULL, "env.ruin_fraction");
	rule("init.from", "checkpoint", NULL, NULL, "init.checkpoint");
	rule("init.checkpoint", "c7", NULL, NULL, "init.checkpoint");
	rule("model", "ppo", NULL, NULL, "model");
	rule("net.atoms", "257", "run.device", "cuda", "net.atoms");
	struct fh_spec s = valid();
	struct fh_status st = FH_STATUS_INIT;
	s.data.dataset[0] = 0;
	assert_int_equal(spec_check(&s, &st), FH_INVALID);
	assert_string_equal(st.field, "data.dataset");
}

static void test_splits(void **state)
{
	struct fh_spec s = valid();
	struct fh_split p[FH_SPLITS];
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(spec_splits(&s, 20000, p, &st), 0);
	assert_true(p[0].begin == 0 && p[0].end == 14000);
	assert_true(p[1].begin == 14144 && p[1].end == 17000);
	assert_true(p[2].begin == 17144 && p[2].end == 20000);
	s.data.validation = 0;
	assert_int_equal(spec_splits(&s, 20000, p, &st), 0);
	assert_true(p[1].begin == p[1].end && p[2].begin == 14144 && p[2].end == 17000);
	/* 146 bars of training are the fewest: one bar to start at, one to trade in. */
	s.data.train = 1;
	s.data.test = 0;
	assert_int_equal(spec_splits(&s, 146, p, &st), 0);
	assert_int_equal(spec_splits(&s, 145, p, &st), FH_INVALID);
	assert_string_equal(st.field, "data.train");
	s = valid();
	assert_int_equal(spec_splits(&s, 900, p, &st), FH_INVALID);
	assert_string_equal(st.field, "data.validation");
	assert_non_null(strstr(st.text, "144"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults), cmocka_unit_test(test_text_round_trip),
		cmocka_unit_test(test_refusals_name_the_key), cmocka_unit_test(test_rules_between_keys),
		cmocka_unit_test(test_splits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
