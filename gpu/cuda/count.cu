/* The end of a learn step by launches of its own: means of the batch; the guard, accumulators, counters (count.cuh). A step that is skipped
 * leaves the tree as it was.
 *
 * Compiled without contraction, as the other files of the replay are. */
#include "gpu/cuda/count.cuh"
#include "gpu/sumtree.h"

namespace {

__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_sums(const __grid_constant__ struct cuda_end_args x)
{
	__shared__ double shared[CUDA_MEANS][CUDA_SUM_THREADS / 32];

	cuda_means(x, shared);
}

__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_count(const __grid_constant__ struct cuda_end_args x)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];

	cuda_end_step(x, shared);
}

} // namespace

/* T_ERROR, T_WEIGHT, T_CE and the statistics of LOSS, as COUNT wants them. */
int cuda_sums(struct cuda_exec *c, cudaStream_t stream, struct fh_status *st)
{
	CUDA_TRY(cuda_launch_plain(stream, k_sums, dim3(1, 1, c->dims.P), CUDA_SUM_THREADS, 0, cuda_end_args_of(c)));
	return 0;
}

int cuda_dqn_count(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct cuda_end_args a = cuda_end_args_of(c);

	a.part = nullptr;
	CUDA_TRY(cuda_launch_plain(c->stream, k_count, dim3(1, 1, c->dims.P), CUDA_SUM_THREADS, 0, a));
	return 0;
}
