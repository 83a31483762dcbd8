/* Sums that several kernels must find alike, bit for bit: the gradient's norm from its tiles, the loss of a batch, and what
 * follows from them. All run in a block of CUDA_SUM_THREADS, every thread calls and gets the sum. */
#ifndef FH_GPU_CUDA_NORM_CUH
#define FH_GPU_CUDA_NORM_CUH

#include "gpu/cuda/exec.h"

/* Each thread's s, summed over the block in a fixed order. shared: one double a warp at least. */
__device__ __forceinline__ double cuda_block_total(double s, double *shared)
{
#pragma unroll
	for (int o = 16; o; o >>= 1)
		s += __shfl_xor_sync(0xffffffffu, s, o);
	__syncthreads();
	if ((threadIdx.x & 31) == 0)
		shared[threadIdx.x / 32] = s;
	__syncthreads();
	s = 0.0;
#pragma unroll
	for (int k = 0; k < CUDA_SUM_THREADS / 32; k++)
		s += shared[k];
	return s;
}

__device__ __forceinline__ double cuda_block_sum(const double *x, int n, double *shared)
{
	double s = 0.0;

	for (int i = threadIdx.x; i < n; i += CUDA_SUM_THREADS)
		s += x[i];
	return cuda_block_total(s, shared);
}

/* sum of w ce */
__device__ __forceinline__ double cuda_batch_loss(const float *ce, const float *w, int B, double *shared)
{
	double s = 0.0;

	for (int i = threadIdx.x; i < B; i += CUDA_SUM_THREADS)
		s += (double)w[i] * ce[i];
	return cuda_block_total(s, shared);
}

/* Section 6: what the norm means for this step. One thread. */
__device__ __forceinline__ float cuda_grad_scale(double norm, double max_grad_norm)
{
	return norm > max_grad_norm ? (float)(max_grad_norm / norm) : 1.f;
}
__device__ __forceinline__ void cuda_guard(struct dqn_clock *c, double norm, double loss)
{
	c->loss = loss;
	c->grad_norm = norm;
	c->skip = !isfinite(norm) || c->skipped_run >= DQN_SKIP_LIMIT;
	c->grad_scale = cuda_grad_scale(norm, c->max_grad_norm);
}

#endif
