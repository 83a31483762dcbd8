/* The default net with batch 128 finds it within 1,000 steps, in 30 seconds on two cores: three seeds of three. */
#include "tests/train/proof.h"

#define SECONDS_MAX 30

static void prove(uint64_t seed)
{
	struct fh_spec s = proof_spec(seed);

	s.learn.batch = 128;
	proof_steps(&s, 1000);
	proof_momentum("momentum default", &s, 0.60, 0.75, SECONDS_MAX);
}

PROOF_THREE_SEEDS(prove)
