/* The default net with batch 128 finds it within 1,000 steps, in 30 seconds on two cores: three seeds of three. */
#include "tests/train/proof.h"

#define SECONDS_MAX 30

int main(void)
{
	int ok = 1;

	for (uint64_t seed = 1; seed <= 3; seed++) {
		struct fh_spec s = proof_spec(seed);
		s.learn.batch = 128;
		proof_steps(&s, 1000);
		ok &= proof_momentum("momentum default", &s, seed, 0.60, 0.75, SECONDS_MAX);
	}
	return !ok;
}
