/* Dynamic shared memory beyond the 48 KB that every kernel may have.
 *
 * Thread: any trainer's worker. How much a kernel may have is one number of the process, while trainers of different networks launch
 * the same kernels at the same time. So it is always the most that the device gives a block, never what one launch needs:
 * a launch takes what it asks for, and nobody takes anything away from a launch that is on its way elsewhere. */
#ifndef FH_GPU_CUDA_SHARED_CUH
#define FH_GPU_CUDA_SHARED_CUH

#include "gpu/cuda/exec.h"

static inline size_t cuda_shared_most(const struct cuda_exec *c) { return c->shared; }

/* For kernels whose shared memory is dynamic alone. */
template <typename... Params> static inline cudaError_t cuda_allow_shared(const struct cuda_exec *c, void (*kernel)(Params...))
{
	return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)cuda_shared_most(c));
}

#endif
