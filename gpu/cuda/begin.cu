/* The first values of a job's networks, where they are needed: what gpu/dqn/init.c computes, a draw a value, for all trials at once.
 *
 * Runs on the trainer's thread between jobs, on its stream. Invariant: the bits are dqn_init_params()' and their rounding the
 * host's (tests/gpu/begin.c); padding is not written, it is zero since the tensors were cleared. */
#include <cuda_bf16.h>
#include <math.h>
#include "gpu/cuda/device.h"
#include "gpu/philox.h"

#define INIT_GROUP_NET 0 /* as in gpu/dqn/init.c */

namespace {

enum { THREADS = 256, DRAWS = 4 /* of a block of the generator */, PIECES = 2 * DQN_LAYER_MAX };

/* Weights or biases of a layer: values of one scale that follow each other. */
struct piece { int64_t draw, at; float scale; };

struct begin_args {
	struct piece piece[PIECES];
	int pieces;
	int64_t draws;
	uint64_t seed; /* of trial 0 */
	char *param, *target, *low, *target_low;
	size_t stride, low_stride; /* bytes from trial to trial */
	int rounded;               /* there are BF16 copies */
};

__global__ void __launch_bounds__(THREADS) k_begin(const __grid_constant__ struct begin_args x)
{
	const int64_t block = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	const size_t to = blockIdx.y * x.stride, to_low = blockIdx.y * x.low_stride;
	int p = 0;

	if (block * DRAWS >= x.draws)
		return;
	const struct philox_words words = philox_block(x.seed + blockIdx.y, PHILOX_INIT, INIT_GROUP_NET, (uint64_t)block);
	for (int k = 0; k < DRAWS; k++) {
		const int64_t draw = block * DRAWS + k;

		if (draw >= x.draws)
			break;
		while (p + 1 < x.pieces && draw >= x.piece[p + 1].draw)
			p++;
		const int64_t at = x.piece[p].at + draw - x.piece[p].draw;
		const float value = __fmul_rn(__fsub_rn(__fmul_rn(2.0f, philox_uniform(words.w[k])), 1.0f), x.piece[p].scale);

		((float *)(x.param + to))[at] = value;
		((float *)(x.target + to))[at] = value;
		if (x.rounded) {
			((__nv_bfloat16 *)(x.low + to_low))[at] = __float2bfloat16_rn(value);
			((__nv_bfloat16 *)(x.target_low + to_low))[at] = __float2bfloat16_rn(value);
		}
	}
}

/* In the order of the draws. */
void add(struct begin_args *x, int64_t values, int64_t at, int fan_in)
{
	x->piece[x->pieces++] = {x->draws, at, (float)(1.0 / sqrt((double)fan_in))};
	x->draws += values;
}

} // namespace

int cuda_begin(struct exec *x, uint64_t seed, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;
	struct begin_args args = {};
	const int rc = cuda_use(x->backend, st);

	if (rc)
		return rc;
	args.seed = seed;
	args.param = cuda_tensor<char>(c, T_PARAM);
	args.target = cuda_tensor<char>(c, T_TARGET);
	args.low = cuda_tensor<char>(c, T_PARAM_LP);
	args.target_low = cuda_tensor<char>(c, T_TARGET_LP);
	args.stride = c->plan.tensor[T_PARAM].stride;
	args.low_stride = c->plan.tensor[T_PARAM_LP].stride;
	args.rounded = d->precision == FH_PRECISION_BF16;
	for (int i = 0; i < d->layers; i++) {
		const struct dqn_layer *l = &d->layer[i];

		add(&args, (int64_t)l->out * l->in, l->w, l->in);
		add(&args, l->out, l->b, l->in);
	}
	const unsigned blocks = (unsigned)((args.draws + DRAWS * THREADS - 1) / (DRAWS * THREADS));

	CUDA_TRY(cuda_launch_plain(c->stream, k_begin, dim3(blocks, d->P), THREADS, 0, args));
	return 0;
}
