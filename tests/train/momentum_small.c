/* A small net finds the momentum of a synthetic market within 600 learn steps: three seeds of three. */
#include "tests/train/proof.h"

int main(void)
{
	int ok = 1;

	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct fh_spec s = proof_spec(seed);
		proof_small_net(&s);
		proof_steps(&s, 600);
		ok &= proof_momentum("momentum small", &s, seed, 0.60, 0.70, INFINITY);
	}
	return !ok;
}
