/* A small net finds the momentum of a synthetic market within 600 learn steps: three seeds of three.
 *
 * One key differs from the specification's defaults beside the net, the batch and the number of steps: the learning rate,
 * 2e-3, because 600 steps of 3e-4 are too few. Measured, share of runs below a threshold and smallest shares of the
 * benchmark (online, target):
 *   every other default        25 of  60     0.00  0.23   (means 0.74, 0.69; seed 3 has 0.60, 0.55)
 *   only eps_steps 200..600    16..26 of 60  -0.03..0.47  0.02..0.21
 *   only warmup 64 or 500      30, 31 of 60
 *   only tau 0.01 or 0.02      23, 18 of 60
 *   only steps_per_collect 2, 4  26, 27 of 60
 *   only v_min, v_max +-5       9 of  60     0.71  0.54
 *   only lr 1e-3                2 of  60     0.63  0.64
 *   only lr 2e-3                0 of 300     0.60  0.72   (means 0.88, 0.91)
 *   only lr 3e-3                6 of 300     0.46  0.72
 *   lr 1e-3 and eps_steps 300   2 of 300     0.50  0.66
 * The float64 reference program, run with the same seed on the same bars, agrees with this trainer in every printed digit
 * for 150 steps at the default rate and ends no higher. */
#include "tests/train/proof.h"

static void prove(uint64_t seed)
{
	struct fh_spec s = proof_spec(seed);

	proof_small_net(&s);
	s.learn.lr = 2e-3;
	proof_steps(&s, 600);
	proof_momentum("momentum small", &s, 0.60, 0.70, INFINITY);
}

PROOF_THREE_SEEDS(prove)
