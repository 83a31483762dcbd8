/* With half a spread of 0.005 and a fee the default net trades about as well as the benchmark that pays the same: three
 * seeds of three. */
#include "tests/train/proof.h"

static void prove(uint64_t seed)
{
	struct fh_spec s = proof_spec(seed);

	s.learn.batch = 64;
	s.env.half_spread = 0.005;
	s.env.fee = 0.005;
	proof_steps(&s, 1500);
	proof_momentum("momentum costs", &s, -INFINITY, 0.90, INFINITY);
}

PROOF_THREE_SEEDS(prove)
