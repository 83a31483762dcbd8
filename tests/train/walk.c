/* On a market without structure the trained agent earns nothing that chance would not: the z score of its validation
 * return, mean over bars against its standard error, stays small. Five seeds: mean |z| <= 1.5, each |z| <= 3. */
#include "tests/train/proof.h"

#define SEEDS 5
#define STEPS 600
#define Z_MEAN_MAX 1.5
#define Z_MAX 3.0

int main(void)
{
	double sum = 0, most = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct fh_spec s = proof_spec(seed);
		proof_small_net(&s);
		proof_steps(&s, STEPS);
		struct market *m = proof_market(SYNTH_WALK, 20000, seed, s.env.tick);
		struct proof p = proof_train(&s, m);
		double z = p.target.sharpe * sqrt((double)p.target.bars / p.target.bars_per_year);
		printf("walk seed %llu: validation z %.2f, exposure %.2f, %.0f trades, %lld steps in %.1f s\n", (unsigned long long)seed, z,
		       p.target.exposure, p.target.trades, (long long)p.steps, p.seconds);
		fflush(stdout);
		sum += fabs(z);
		most = fmax(most, fabs(z));
		market_unref(m);
	}
	int ok = sum / SEEDS <= Z_MEAN_MAX && most <= Z_MAX;
	printf("walk: mean |z| %.2f (at most %.1f), largest %.2f (at most %.1f): %s\n", sum / SEEDS, Z_MEAN_MAX, most, Z_MAX,
	       ok ? "ok" : "MISSED");
	return !ok;
}
