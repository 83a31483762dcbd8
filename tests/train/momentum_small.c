/* A small net finds the momentum of a synthetic market within 600 learn steps: three seeds of three.
 *
 * It learns at 1e-3. Over 30 seeds the smallest shares are then 0.67 (online) and 0.81 (target), at the default net's
 * 3e-4 they are 0.49 and 0.23 (mean 0.79 and 0.71): 600 small steps are too few. The float64 reference program, run with
 * the same seed on the same bars, follows this trainer for 150 steps to all printed digits and ends no higher. */
#include "tests/train/proof.h"

int main(void)
{
	int ok = 1;

	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct fh_spec s = proof_spec(seed);
		proof_small_net(&s);
		s.learn.lr = 1e-3;
		proof_steps(&s, 600);
		ok &= proof_momentum("momentum small", &s, seed, 0.60, 0.70, INFINITY);
	}
	return !ok;
}
