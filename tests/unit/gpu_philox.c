/* Philox words, uniforms and every named draw against the golden file; published Random123 answers in it. */
#include "tests/unit/golden.h"

#include "gpu/env.h"
#include "gpu/philox.h"

#define SEED(f) ((uint64_t)golden_int(f, "seed"))

static void published_vectors(void **state)
{
	/* Random123 kat_vectors, philox4x32 10: counter, key -> words */
	static const uint32_t kat[3][10] = {
		{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
	};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct philox_words w = philox4x32(kat[i], kat[i] + 4);

		assert_memory_equal(w.w, kat[i] + 6, sizeof(w.w));
	}
}

static void golden_words_and_uniforms(void **state)
{
	struct st_file *f = golden_open("philox");
	int64_t n;
	const uint32_t *counter = golden_u32(f, "counter", &n), *key = golden_u32(f, "key", NULL);
	const uint32_t *words = golden_u32(f, "words", NULL), *known = golden_u32(f, "known_answer", NULL);
	const float *uniform = golden_f32(f, "uniform", NULL), *edge = golden_f32(f, "edge.uniform", NULL);

	(void)state;
	assert_memory_equal(words, known, 3 * 16);
	for (int64_t i = 0; i < n / 4; i++) {
		struct philox_words w = philox4x32(counter + 4 * i, key + 2 * i);

		assert_memory_equal(w.w, words + 4 * i, 16);
		for (int k = 0; k < 4; k++)
			assert_true(philox_uniform(w.w[k]) == uniform[4 * i + k]);
	}
	for (int i = 0; i < 6; i++) {
		float u = philox_uniform(golden_u32(f, "edge.word", NULL)[i]);

		assert_true(u == edge[i] && u > 0.0f && u < 1.0f);
	}
	st_close(f);
}

static void draws_of_streams(void **state)
{
	struct st_file *f = golden_open("philox");
	uint64_t seed = SEED(f);
	int64_t n;
	const uint32_t *s0 = golden_u32(f, "stream0.step0", &n), *s9 = golden_u32(f, "stream0.step9", NULL);
	const uint32_t *big = golden_u32(f, "big.words", NULL);
	const float *u = golden_f32(f, "sample.U", NULL);

	(void)state;
	for (int64_t i = 0; i < n; i++) {
		assert_int_equal(philox_word(seed, PHILOX_INIT, 0, (uint64_t)i), s0[i]);
		assert_int_equal(philox_word(seed, PHILOX_INIT, 9, (uint64_t)i), s9[i]);
	}
	for (uint64_t i = 0; i < 9; i++)
		assert_int_equal(philox_word(seed, PHILOX_SAMPLE, 3, (1ull << 34) + i), big[i]);
	for (uint64_t i = 0; i < 256; i++)
		assert_true(philox_uniform(philox_word(seed, PHILOX_SAMPLE, 5, i)) == u[i]);
	for (uint64_t i = 0; i < 128; i++) {
		assert_true(philox_uniform(philox_word(seed, PHILOX_TAU, 5, i)) == golden_f32(f, "iqn.tau", NULL)[i]);
		assert_true(philox_uniform(philox_word(seed, PHILOX_TAU2, 5, i)) == golden_f32(f, "iqn.tau2", NULL)[i]);
	}
	st_close(f);
}

static void exploration_and_restarts(void **state)
{
	struct st_file *f = golden_open("philox");
	uint64_t seed = SEED(f), v = (uint64_t)golden_int(f, "vector_step");
	const int32_t *greedy = golden_i32(f, "explore.greedy", NULL), *action = golden_i32(f, "explore.action", NULL);
	const int32_t *bar = golden_i32(f, "restart.bar", NULL);
	double eps = golden_real(f, "eps");
	static const uint32_t A[3] = {5, 3, 3};

	(void)state;
	for (uint32_t env = 0; env < 64; env++) {
		for (uint32_t d = 0; d < 3; d++) {
			uint64_t n = 2 * (uint64_t)(env * 3 + d);
			int32_t a = greedy[env * 3 + d];

			if (philox_uniform(philox_word(seed, PHILOX_EXPLORE, v, n)) < eps)
				a = (int32_t)philox_below(philox_word(seed, PHILOX_EXPLORE, v, n + 1), A[d]);
			assert_int_equal(a, action[env * 3 + d]);
		}
		assert_int_equal(env_start_bar(seed, env, v, (int32_t)golden_int(f, "restart_begin"),
					       (int32_t)golden_int(f, "restart_end")), bar[env]);
	}
	st_close(f);
}

static void normals_and_rounding(void **state)
{
	struct st_file *f = golden_open("philox");
	uint64_t seed = SEED(f);
	int64_t n;
	const double *ref = golden_f64(f, "spectral.normal", &n);
	const float *x = golden_f32(f, "round.x", NULL), *out = golden_f32(f, "round.out", NULL);
	double normal[100];

	(void)state;
	assert_int_equal(n, 100);
	for (uint64_t k = 0; k < 100; k++)
		normal[k] = philox_normal(seed, PHILOX_SPECTRAL, 3, k);
	assert_within(column_error(normal, ref, n, 1, 0), 1e-6, "spectral normals");
	for (uint64_t i = 0; i < 256; i++)
		assert_true(philox_round_bf16(x[i], philox_word(seed, PHILOX_ROUND, 4, i)) == out[i]);
	st_close(f);
}

/* Layers of the small network of the golden file, unpadded: each tensor's size and fan-in. */
static void initial_values(void **state)
{
	static const int layer[10][2] = {{16, 6}, {16, 16}, {8, 16}, {11, 8}, {8, 16}, {33, 8}, {8, 16}, {22, 8}, {8, 16}, {22, 8}};
	struct st_file *f = golden_open("philox");
	int64_t n, at = 0;
	const float *init = golden_f32(f, "init.net", &n);

	(void)state;
	for (int l = 0; l < 10; l++) {
		int64_t count = (int64_t)layer[l][0] * layer[l][1] + layer[l][0];
		float bound = (float)(1.0 / sqrt((double)layer[l][1]));

		for (int64_t end = at + count; at < end; at++) {
			float u = philox_uniform(philox_word(SEED(f), PHILOX_INIT, 0, (uint64_t)at));

			assert_true((2.0f * u - 1.0f) * bound == init[at]);
		}
	}
	assert_int_equal(at, n);
	st_close(f);
}

static void integers_stay_below(void **state)
{
	(void)state;
	assert_int_equal(philox_below(0, 5), 0);
	assert_int_equal(philox_below(0xFFFFFFFFu, 5), 4);
	assert_int_equal(philox_below(0xFFFFFFFFu, 0xFFFFFFFFu), 0xFFFFFFFEu);
	assert_int_equal(philox_below(0xFFFFFFFFu, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_vectors), cmocka_unit_test(golden_words_and_uniforms),
		cmocka_unit_test(draws_of_streams), cmocka_unit_test(exploration_and_restarts),
		cmocka_unit_test(normals_and_rounding), cmocka_unit_test(initial_values),
		cmocka_unit_test(integers_stay_below),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
