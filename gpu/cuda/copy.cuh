/* Copies into shared memory that rows of any length allow. */
#ifndef FH_GPU_CUDA_COPY_CUH
#define FH_GPU_CUDA_COPY_CUH

#include <cuda_bf16.h>
#include "gpu/cuda/ptx.cuh"

/* How many of the 8 elements from `at` on lie below n. */
__device__ __forceinline__ int copy_left(int n, int at) { return n - at <= 0 ? 0 : n - at < 8 ? n - at : 8; }

/* 8 elements into shared memory, the first `count` from g, which is at a multiple of 16 bytes, zeros behind. Does not wait (ptx_copy16).
 * any: some address that may be read. */
__device__ __forceinline__ void copy_8(__nv_bfloat16 *to, const __nv_bfloat16 *g, int count, const __nv_bfloat16 *any)
{
	ptx_copy16(ptx_shared_at(to), count ? g : any, 2 * count);
}

/* The same from anywhere, and it is there when this returns. */
[[maybe_unused]] static __device__ __noinline__ void copy_odd(__nv_bfloat16 *to, const __nv_bfloat16 *g, int count)
{
#pragma unroll 1
	for (int e = 0; e < 8; e++)
		to[e] = e < count ? g[e] : (__nv_bfloat16)0.f;
}

#endif
