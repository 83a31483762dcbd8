/* Steps of a warpgroup's products, 64 of k. Rows and columns of 64 elements lie along k or, AT and BT, across it.
 *
 * What the kernels through all layers share (mlp_group.cuh, back_group.cu): a block has two warpgroups of 64 rows each and one warp that brings
 * weights. The warpgroups go their own way: while one adds, narrows and leaves results the other multiplies. All read one ring of stages, which one
 * thread fills box by box (tensor_map.cuh) as they become free. */
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
/* A step of the kernels through all layers. a: in registers, or where the rows begin in shared memory. FIRST: nothing is there yet. */
template <int NJ, int FIRST, int BT> __device__ __forceinline__ void group_step(float (*acc)[4], unsigned (*a)[4], ptx_shared b)
{
	enum { B_DOWN = BT ? 2 * PTX_OPERAND_EIGHT : 32, APART = BT ? (int)GROUP_UNIT : 0 };

	ptx_group_mma_a<NJ, BT, !FIRST>(acc, a[0], ptx_operand_at(b, APART));
#pragma unroll
	for (int k = 1; k < GROUP_DEEP / 16; k++)
		ptx_group_mma_a<NJ, BT>(acc, a[k], ptx_operand_at(b + k * B_DOWN, APART));
	ptx_group_commit();
}
template <int NJ, int FIRST, int BT> __device__ __forceinline__ void group_step(float (*acc)[4], ptx_shared a, ptx_shared b)
{
	enum { B_DOWN = BT ? 2 * PTX_OPERAND_EIGHT : 32, APART = BT ? (int)GROUP_UNIT : 0 };

	ptx_group_mma<NJ, 0, BT, !FIRST>(acc, ptx_operand_at(a), ptx_operand_at(b, APART));
#pragma unroll
	for (int k = 1; k < GROUP_DEEP / 16; k++)
		ptx_group_mma<NJ, 0, BT>(acc, ptx_operand_at(a + k * 32), ptx_operand_at(b + k * B_DOWN, APART));
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

/* ---------------------------------------------------------------- the kernels through all layers */

/* GROUP_HALF: columns of an instruction, two of which are the most that a target has. Panels: 64 columns of a warpgroup's rows, as an operand. */
enum { GROUP_ROWS = 64, GROUPS = 2, GROUP_HALF = 128, GROUP_PANELS = 4, HEAD_PANELS = 2, GROUP_PANEL = GROUP_ROWS * PTX_OPERAND_ROW };
/* Of the last warpgroup one thread brings; registers are taken away from all of it. A block has GROUP_EACH a thread to divide among them: who wants
 * more than are left waits for ever. */
enum { GROUP_THREADS = (GROUPS + 1) * 128, GROUP_EACH = 65536 / GROUP_THREADS / 8 * 8 };

/* A ring's barriers and where a thread stands in it. A stage is full when its bytes are there, free when every warp says so. */
struct group_ring {
	ptx_shared full, free, stage; /* of the first */
	int slot;
	unsigned phase;
	ptx_shared before;            /* where the stage before is told to be free */
};
template <int STAGES> __device__ __forceinline__ void group_ring_next(struct group_ring &r)
{
	r.before = r.free + r.slot * 8;
	r.slot++;
	if (r.slot == STAGES)
		r.slot = 0, r.phase ^= 1;
}
/* By one thread, before all meet. */
template <int STAGES> __device__ __forceinline__ void group_ring_make(const struct group_ring &r)
{
	for (int i = 0; i < STAGES; i++) {
		ptx_barrier_init(r.full + i * 8, 1);
		ptx_barrier_init(r.free + i * 8, GROUPS * 4);
	}
	ptx_barrier_init_fence();
}
/* By a warp: the products that read a stage are through. */
__device__ __forceinline__ void group_ring_free(ptx_shared which)
{
	if ((threadIdx.x & 31) == 0)
		ptx_barrier_arrive(which);
}
/* By a warpgroup that has nothing to do in a tile: lets its stages pass. */
template <int STAGES> __device__ __forceinline__ void group_ring_pass(struct group_ring &r, int stages)
{
#pragma unroll 1
	for (int i = 0; i < stages; i++) {
		ptx_barrier_wait(r.full + r.slot * 8, r.phase);
		group_ring_next<STAGES>(r);
		__syncwarp();
		group_ring_free(r.before);
	}
}

/* Fragments of 64 columns to a panel and back. at: of the warp's first row. */
__device__ __forceinline__ ptx_shared group_in_panel(ptx_shared at, int i)
{
	const int lane = threadIdx.x & 31;

	return at + (lane & 15) * PTX_OPERAND_ROW + ((i * 2 + lane / 16) ^ (lane & 7)) * 16;
}
__device__ __forceinline__ void group_to_panel(ptx_shared at, const unsigned (*a)[4])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		ptx_stmatrix4(group_in_panel(at, i), a[i]);
}

} // namespace

#endif
