/* On a market without structure the trained agent earns nothing that chance would not: the z score of its validation
 * return, mean over bars against its standard error, stays small. Five seeds: mean |z| <= 1.5, each |z| <= 3. */
#include "tests/train/proof.h"

#define SEEDS 5
#define STEPS 600
#define Z_MEAN_MAX 1.5
#define Z_MAX 3.0

static double z_of(uint64_t seed)
{
	struct fh_spec s = proof_spec(seed);
	struct market *m;
	struct proof p;
	double z;

	proof_small_net(&s);
	proof_steps(&s, STEPS);
	m = test_market(SYNTH_WALK, 20000, seed, s.env.tick);
	p = proof_train(&s, m);
	z = p.target.sharpe * sqrt((double)p.target.bars / p.target.bars_per_year);
	printf("walk seed %llu: validation z %.2f, exposure %.2f, %.0f trades, %lld steps in %.1f s\n", (unsigned long long)seed, z,
	       p.target.exposure, p.target.trades, (long long)p.steps, p.seconds);
	fflush(stdout);
	market_unref(m);
	assert_true(isfinite(z) && p.target.trades > 0);
	return z;
}

static void test_chance_explains_the_return(void **state)
{
	double sum = 0, most = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		double z = fabs(z_of(seed));
		sum += z;
		most = fmax(most, z);
	}
	printf("walk: mean |z| %.2f (at most %.1f), largest %.2f (at most %.1f)\n", sum / SEEDS, Z_MEAN_MAX, most, Z_MAX);
	assert_true(sum / SEEDS <= Z_MEAN_MAX);
	assert_true(most <= Z_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_chance_explains_the_return)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
