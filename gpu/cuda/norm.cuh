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

__device__ __forceinline__ double cuda_thread_sum(const double *x, int n)
{
	double s = 0.0;

#pragma unroll 2
	for (int i = threadIdx.x; i < n; i += CUDA_SUM_THREADS)
		s += x[i];
	return s;
}
__device__ __forceinline__ double cuda_block_sum(const double *x, int n, double *shared) { return cuda_block_total(cuda_thread_sum(x, n), shared); }

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
/* The same of the norm of all parts, NaN where that is not finite; every thread gets it. A multiprocessor does little in F64, so one warp adds up
 * what the warps have, as cuda_block_total() does, and finds root and quotient for all. */
__device__ __forceinline__ float cuda_block_scale(const double *part, int parts, double max_grad_norm, double *shared)
{
	float *const scale = (float *)shared;
	double s = cuda_thread_sum(part, parts);

#pragma unroll
	for (int o = 16; o; o >>= 1)
		s += __shfl_xor_sync(0xffffffffu, s, o);
	if ((threadIdx.x & 31) == 0)
		shared[threadIdx.x / 32] = s;
	__syncthreads();
	if (threadIdx.x < 32) {
		s = 0.0;
#pragma unroll
		for (int k = 0; k < CUDA_SUM_THREADS / 32; k++)
			s += shared[k];
		const double norm = sqrt(s);

		__syncwarp(); /* all have read */
		if (threadIdx.x == 0)
			*scale = isfinite(norm) ? cuda_grad_scale(norm, max_grad_norm) : NAN;
	}
	__syncthreads();
	return *scale;
}
__device__ __forceinline__ void cuda_leave_guard(struct dqn_clock *c, double norm, double loss, int skip, float scale)
{
	c->loss = loss;
	c->grad_norm = norm;
	c->skip = skip;
	c->grad_scale = scale;
}
__device__ __forceinline__ void cuda_guard(struct dqn_clock *c, double norm, double loss)
{
	cuda_leave_guard(c, norm, loss, !isfinite(norm) || c->skipped_run >= DQN_SKIP_LIMIT, cuda_grad_scale(norm, c->max_grad_norm));
}

#endif
