/* n-step transitions against golden/nstep: which are stored, in which order, with which return and discount. */
#include "gpu/dqn/model.h"
#include "gpu/host/collect.h"
#include "gpu/host/stages.h"
#include "tests/unit/training.h"

#define RETURN_TOLERANCE 1e-5 /* relative to the largest of the column, f32 */

/* Feeds rewards and ends; a state says who it is: [0] environment, [1] step it was seen before. */
static void feed(struct exec *x, const float *reward, const int32_t *terminated, const int32_t *truncated, int S)
{
	const struct dqn_dims *d = x->dims;
	struct collect f;

	collect_open(&f, x, 0);
	for (int step = 0; step < S; step++) {
		for (int e = 0; e < d->N; e++) {
			int i = step * d->N + e;
			f.obs[e * d->SD] = (float)e;
			f.obs[e * d->SD + 1] = (float)step;
			collect_queue(&f, e, (double)reward[i], terminated[i] ? TERMINATED : truncated[i] ? TRUNCATED : RUNNING);
		}
		collect_place(&f);
		for (int e = 0; e < d->N; e++) {
			f.obs[e * d->SD + 1] = (float)(step + 1);
			collect_store(&f, e);
		}
		assert_int_equal(host_dqn_insert(x, NULL), 0);
	}
}

static void check_n(const struct st_file *g, int n)
{
	struct fh_spec s = small_spec();
	struct fh_status st = FH_STATUS_INIT;
	struct plan *p = malloc(sizeof(*p));
	struct exec *x = NULL;
	char name[32];
	int64_t rows, S = 40;
	double error_R = 0, error_G = 0, largest = 0;

	s.learn.n_step = n;
	s.collect.envs = golden_int(g, "N");
	s.learn.gamma = golden_real(g, "gamma");
	s.replay.capacity = 256;
	assert_non_null(p);
	assert_int_equal(plan_make(&s, p, &st), 0);
	assert_int_equal(backend_host()->exec_new(backend_host(), p, &x, &st), 0);
	struct dqn_clock *c = host_tensor(x, T_CLOCK, 0);
	dqn_clock_init(&s, (struct fh_split){0, 1000}, 0, c);
	feed(x, golden_f32(g, "reward", NULL), golden_i32(g, "terminated", NULL), golden_i32(g, "truncated", NULL), (int)S);

	snprintf(name, sizeof(name), "n%d.index", n);
	const int32_t *index = golden_i32(g, name, &rows);
	snprintf(name, sizeof(name), "n%d.RG", n);
	const double *RG = golden_f64(g, name, NULL);
	const float *from = host_tensor(x, T_RP_S, 0), *to = host_tensor(x, T_RP_S2, 0), *R = host_tensor(x, T_RP_R, 0),
		    *G = host_tensor(x, T_RP_G, 0), *tree = host_tensor(x, T_TREE, 0);
	rows /= 4;
	assert_int_equal(c->stored, rows);
	assert_int_equal(c->vector_step, S);
	for (int64_t i = 0; i < rows; i++) {
		const int32_t *want = index + 4 * i;
		assert_int_equal((int)from[i * FH_STATE_DIM], want[0]);
		assert_int_equal((int)from[i * FH_STATE_DIM + 1], want[1]);
		assert_int_equal((int)to[i * FH_STATE_DIM], want[0]);
		assert_int_equal((int)to[i * FH_STATE_DIM + 1], want[3] + 1); /* the state after the last step */
		error_R = fmax(error_R, fabs((double)R[i] - RG[2 * i]));
		error_G = fmax(error_G, fabs((double)G[i] - RG[2 * i + 1]));
		largest = fmax(largest, fabs(RG[2 * i]));
		assert_true(tree[s.replay.capacity + i] == 1);
	}
	assert_true(error_R <= RETURN_TOLERANCE * largest && error_G <= RETURN_TOLERANCE);
	assert_true(tree[1] == (float)rows); /* ones add up exactly */
	backend_host()->exec_free(x);
	free(p);
}

static void test_golden(void **state)
{
	struct st_file *g = golden_open("nstep");

	check_n(g, 1);
	check_n(g, 3);
	check_n(g, 5);
	st_close(g);
}

/* A time limit is no termination: with r 1, gamma 0.99 and Q 10 behind it the target is 1 + 0.99 * 10 = 10.9, where ruin
 * gives 1. */
static void test_truncation_still_bootstraps(void **state)
{
	static const float reward[2] = {1, 1};
	static const int32_t terminated[2] = {0, 1}, truncated[2] = {1, 0};
	struct fh_spec s = small_spec();
	struct fh_status st = FH_STATUS_INIT;
	struct plan *p = malloc(sizeof(*p));
	struct exec *x = NULL;

	s.learn.n_step = 3;
	s.collect.envs = 2;
	s.learn.gamma = 0.99;
	assert_non_null(p);
	assert_int_equal(plan_make(&s, p, &st), 0);
	assert_int_equal(backend_host()->exec_new(backend_host(), p, &x, &st), 0);
	dqn_clock_init(&s, (struct fh_split){0, 1000}, 0, host_tensor(x, T_CLOCK, 0));
	feed(x, reward, terminated, truncated, 1);
	const float *R = host_tensor(x, T_RP_R, 0), *G = host_tensor(x, T_RP_G, 0);
	assert_true(fabsf(R[0] + G[0] * 10 - 10.9f) < 1e-6f);
	assert_true(R[1] + G[1] * 10 == 1);
	backend_host()->exec_free(x);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_truncation_still_bootstraps)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
