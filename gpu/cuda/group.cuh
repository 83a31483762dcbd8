/* Steps of a warpgroup's products, 64 of k. Rows and columns of 64 elements lie along k or, AT and BT, across it. */
#ifndef FH_GPU_CUDA_GROUP_CUH
#define FH_GPU_CUDA_GROUP_CUH

#include "gpu/cuda/wgmma.cuh"

/* FH_GPU_WIDE above this asks for warpgroups of so many rows. */
enum { GROUP_ASKED = 1000 };

namespace {

/* 64 rows or columns of a stage. */
enum { GROUP_DEEP = 64, GROUP_UNIT = 64 * PTX_OPERAND_ROW };

/* A step, a group of its own: NJ x 8 columns of acc, all of which is ALL x 8, from the eight `from` on. a, b: where rows and columns begin.
 * Whole in one branch for each number of columns: what lies between the first and the last of a group makes the assembler wait for each. */
template <int NJ, int ALL, int AT, int BT> __device__ __forceinline__ void group_multiply(float (*acc)[4], int from, ptx_shared a, ptx_shared b)
{
	enum { A_DOWN = AT ? 2 * PTX_OPERAND_EIGHT : 32, B_DOWN = BT ? 2 * PTX_OPERAND_EIGHT : 32 }; /* to the next 16 of k */

	ptx_group_begin<ALL>(acc);
#pragma unroll
	for (int k = 0; k < GROUP_DEEP / 16; k++)
		ptx_group_mma<NJ, AT, BT>(acc + from, ptx_operand_at(a + k * A_DOWN, AT ? (int)GROUP_UNIT : 0), ptx_operand_at(b + k * B_DOWN, BT ? (int)GROUP_UNIT : 0));
	ptx_group_commit();
}
/* As many of MOST parts of EACH x 8 columns as there are. */
template <int EACH, int MOST, int ALL, int AT, int BT> __device__ __forceinline__ void group_multiply_some(float (*acc)[4], int from, ptx_shared a, ptx_shared b, int parts)
{
	if (parts >= MOST)
		group_multiply<EACH * MOST, ALL, AT, BT>(acc, from, a, b);
	else if constexpr (MOST > 1)
		group_multiply_some<EACH, MOST - 1, ALL, AT, BT>(acc, from, a, b, parts);
	else
		ptx_group_commit();
}

} // namespace

#endif
