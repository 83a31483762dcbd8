/* Nodes above a batch of leaves: after new priorities (tree.cu) and when a skipped step puts the old ones back (count.cu). */
#ifndef FH_GPU_CUDA_TREE_CUH
#define FH_GPU_CUDA_TREE_CUH

#include "gpu/sumtree.h"

/* In the place of an old leaf: this row of the batch did not write it, a later one of the same leaf did. Leaves are never
 * negative. */
#define CUDA_NOT_MINE -1.f

/* Recomputes every node above the leaves of a batch, level by level, by one block (several rows may write the same
 * node, all the same value). Begins with a barrier. */
static __device__ inline void cuda_join_levels(float *node, int64_t C, const int32_t *index, int B)
{
	for (int64_t shift = 1; (C >> shift) >= 1; shift++) {
		__syncthreads();
		for (int j = threadIdx.x; j < B; j += blockDim.x)
			tree_join(node, (C + index[j]) >> shift);
	}
}

#endif
