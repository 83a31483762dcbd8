/* The priority tree against golden: nodes and sampled leaves exactly, weights, priorities with duplicates in a batch,
 * the largest priority, the beta schedule; and the invariant after thousands of updates. */
#include "learner_rig.h"

#include "gpu/philox.h"
#include "gpu/sumtree.h"

static void assert_sums_hold(const float *node, int64_t C)
{
	for (int64_t n = 1; n < C; n++)
		assert_true(node[n] == node[2 * n] + node[2 * n + 1]);
}

/* A rig whose tree is `node`, for the stages SAMPLE and PRIORITY. */
static struct rig *tree_rig(const float *node, int64_t C, int B, int filled, uint64_t seed)
{
	struct rig_shape s = {.SD = 2, .H1 = 2, .H2 = 2, .VH = 2, .AH = 2, .NA = 2, .A = {2, 2, 2}, .B = B, .P = 1,
			      .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51, .C = C};
	struct rig *r = rig_new(rig_dims(&s), 1);

	memcpy(rig_at(r, T_TREE, 0), node, (size_t)C * 2 * sizeof(*node));
	rig_clock(r, 0)->seed = seed;
	rig_clock(r, 0)->stored = filled;
	return r;
}

static void nodes_and_sampled_leaves_are_exact(void **state)
{
	static const char *const cases[] = {"a", "b", "sparse", "one"};
	static const double betas[] = {0.4, 0.7, 1.0};
	struct st_file *f = golden_open("sumtree");
	uint64_t seed = (uint64_t)golden_int(f, "seed");

	(void)state;
	for (int i = 0; i < 4; i++) {
		char name[32];
		int64_t C, picks;
		const float *leaf, *node;
		const int32_t *index;
		const double *weight;
		float *tree;
		struct rig *r;
		int B, filled;

		snprintf(name, sizeof(name), "%s.leaf", cases[i]);
		leaf = golden_f32(f, name, &C);
		snprintf(name, sizeof(name), "%s.node", cases[i]);
		node = golden_f32(f, name, NULL);
		snprintf(name, sizeof(name), "%s.index", cases[i]);
		index = golden_i32(f, name, &picks);
		snprintf(name, sizeof(name), "%s.weight", cases[i]);
		weight = golden_f64(f, name, NULL);
		snprintf(name, sizeof(name), "%s.filled", cases[i]);
		filled = golden_i32(f, name, NULL)[0];
		B = (int)picks / 8;
		tree = calloc((size_t)C * 2, sizeof(*tree));
		assert_non_null(tree);
		memcpy(tree + C, leaf, (size_t)C * sizeof(*leaf));
		tree_rebuild(tree, C);
		assert_memory_equal(tree + 1, node + 1, (size_t)(2 * C - 1) * sizeof(*node));
		r = tree_rig(tree, C, B, filled, seed);
		for (int step = 0; step < 8; step++) {
			rig_clock(r, 0)->step = step;
			rig_stage(r, STAGE_SAMPLE);
			assert_memory_equal(rig_at(r, T_INDEX, 0), index + step * B, (size_t)B * sizeof(*index));
		}
		for (int b = 0; b < 3; b++) {
			rig_clock(r, 0)->step = 0;
			rig_clock(r, 0)->beta = betas[b];
			rig_stage(r, STAGE_SAMPLE);
			for (int j = 0; j < B; j++)
				assert_within(fabs(((float *)rig_at(r, T_WEIGHT, 0))[j] / weight[b * B + j] - 1.0), 1e-5, "weight");
		}
		rig_free(r);
		free(tree);
	}
	st_close(f);
}

/* Leaves with these values are set in the golden run's order, then the tree is compared node by node. */
static void a_run_with_duplicates_is_exact(void **state)
{
	struct st_file *f = golden_open("sumtree");
	float tree[128] = {0}, largest = 1.0f;
	int32_t leaf[64], work[64];

	(void)state;
	for (int i = 0; i < 64; i++)
		leaf[i] = i;
	largest = tree_set_batch(tree, 64, leaf, NULL, largest, 40, largest, work);
	assert_memory_equal(tree + 1, golden_f32(f, "run.node0", NULL) + 1, 127 * sizeof(float));
	for (int k = 0; k < 3; k++) {
		char name[32];
		int64_t n;
		const int32_t *index;
		const float *p;

		snprintf(name, sizeof(name), "run.index%d", k);
		index = golden_i32(f, name, &n);
		snprintf(name, sizeof(name), "run.p32_%d", k);
		p = golden_f32(f, name, NULL);
		largest = tree_set_batch(tree, 64, index, p, 0.0f, (int)n, largest, work);
		snprintf(name, sizeof(name), "run.node%d", k + 1);
		assert_memory_equal(tree + 1, golden_f32(f, name, NULL) + 1, 127 * sizeof(float));
		snprintf(name, sizeof(name), "run.largest%d", k);
		assert_true(largest == golden_f32(f, name, NULL)[0]);
	}
	for (int i = 0; i < 26; i++)
		leaf[i] = (40 + i) % 64;
	largest = tree_set_batch(tree, 64, leaf, NULL, largest, 26, largest, work);
	assert_memory_equal(tree + 1, golden_f32(f, "run.node4", NULL) + 1, 127 * sizeof(float));
	st_close(f);
}

static void priorities_of_errors(void **state)
{
	struct st_file *f = golden_open("sumtree");
	struct rig *r = tree_rig(golden_f32(f, "run.node0", NULL), 64, 24, 40, 1);

	(void)state;
	for (int k = 0; k < 3; k++) {
		char name[32];
		const int32_t *index;
		const double *p;
		const float *tree = rig_at(r, T_TREE, 0);
		int64_t n;

		snprintf(name, sizeof(name), "run.index%d", k);
		index = golden_i32(f, name, &n);
		memcpy(rig_at(r, T_INDEX, 0), index, (size_t)n * sizeof(*index));
		snprintf(name, sizeof(name), "run.ce%d", k);
		memcpy(rig_at(r, T_ERROR, 0), golden_f32(f, name, NULL), (size_t)n * sizeof(float));
		snprintf(name, sizeof(name), "run.p%d", k);
		p = golden_f64(f, name, NULL);
		rig_stage(r, STAGE_PRIORITY);
		for (int j = 0; j < n; j++) {
			int last = j;

			for (int i = j + 1; i < n; i++)
				last = index[i] == index[j] ? i : last;
			assert_within(fabs(tree[64 + index[j]] / p[last] - 1.0), 1e-5, "priority");
		}
		snprintf(name, sizeof(name), "run.largest%d", k);
		assert_within(fabs(rig_clock(r, 0)->largest / golden_f32(f, name, NULL)[0] - 1.0), 1e-5, "largest");
		assert_sums_hold(tree, 64);
	}
	rig_free(r);
	st_close(f);
}

static void beta_follows_its_schedule(void **state)
{
	static const int64_t step[] = {0, 1, 500, 999, 1000, 5000};
	struct st_file *f = golden_open("sumtree");
	const double *beta = golden_f64(f, "beta", NULL);

	(void)state;
	for (int i = 0; i < 6; i++)
		assert_within(fabs(tree_beta(0.4, 1.0, step[i], 1000) - beta[i]), 1e-15, "beta");
	st_close(f);
}

static void the_tree_never_drifts(void **state)
{
	enum { C = 4096, B = 64 };
	static float tree[2 * C];
	int32_t leaf[B], work[B];
	float p[B], largest = 1.0f;
	uint32_t x = 1;

	(void)state;
	for (int round = 0; round < 3000; round++) {
		for (int j = 0; j < B; j++) {
			x = x * 1664525u + 1013904223u;
			leaf[j] = (int32_t)(x >> 8) % C;
			p[j] = (float)(x >> 8) * (round % 2 ? 1e-7f : 1e-3f);
		}
		largest = tree_set_batch(tree, C, leaf, p, 0.0f, B, largest, work);
	}
	assert_sums_hold(tree, C);
	for (int j = 0; j < 10000; j++) { /* no empty leaf is ever taken */
		x = x * 1664525u + 1013904223u;
		assert_true(tree[C + tree_find(tree, C, (double)(x >> 8) * 0x1p-24 * tree[1])] > 0.0f);
	}
	assert_true(tree[C + tree_find(tree, C, (double)tree[1])] > 0.0f); /* x on the far edge */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_and_sampled_leaves_are_exact), cmocka_unit_test(a_run_with_duplicates_is_exact),
		cmocka_unit_test(priorities_of_errors), cmocka_unit_test(beta_follows_its_schedule),
		cmocka_unit_test(the_tree_never_drifts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
