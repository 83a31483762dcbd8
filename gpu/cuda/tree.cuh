/* Nodes above leaves (section 4), by one block: of a chunk of neighbours, of a batch's leaves, and new priorities of a small batch.
 *
 * For tree.cu, and for those who end a learn step (count.cuh). Every inner node is left + right, whoever works it out; a node that several
 * write gets the same value from all. */
#ifndef FH_GPU_CUDA_TREE_CUH
#define FH_GPU_CUDA_TREE_CUH

#include "gpu/cuda/exec.h"
#include "gpu/cuda/ptx.cuh"
#include "gpu/sumtree.h"

/* In the place of an old leaf: this row of the batch did not write it, a later one of the same leaf did. Leaves are never
 * negative. */
#define CUDA_NOT_MINE -1.f

enum { JOIN_THREADS = CUDA_CHUNK / 4, JOIN_WARPS = JOIN_THREADS / 32 };
static_assert((int)JOIN_THREADS == CUDA_SUM_THREADS && JOIN_WARPS == 8, "four nodes a thread, three levels above the warps'");

/* New priorities: of a batch of at most CUDA_FEW_ROWS by one block, else in three launches. */
enum { CUDA_FEW_ROWS = 1024 };
struct cuda_update_args {
	float *tree, *old;
	struct dqn_clock *clock;
	const int32_t *index;
	const float *error;
	int32_t *winner;
	size_t winner_trial, old_trial;
	int B;
	int64_t C;
};

static inline struct cuda_update_args cuda_update_args_of(struct cuda_exec *c)
{
	struct cuda_update_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.index = cuda_tensor<int32_t>(c, T_INDEX), a.error = cuda_tensor<float>(c, T_ERROR);
	a.winner = cuda_at<int32_t>(c, &c->s.winner), a.winner_trial = c->s.winner.stride;
	a.old = cuda_at<float>(c, &c->s.old), a.old_trial = c->s.old.stride;
	a.B = c->dims.B, a.C = c->dims.C;
	return a;
}

/* The nodes above `size` neighbours, a power of two of at most CUDA_CHUNK that begins at node `first`, by one block of JOIN_THREADS or more: every
 * level goes into the tree. v: this thread's four of them. Two levels by the thread, five by its warp, three by the first warp: one barrier. A sum
 * of two is the same from either side. warps: one a warp of the block. */
static __device__ __forceinline__ void join_up(float *node, int first, int size, float4 v, float *warps)
{
	const int i = threadIdx.x, lane = i & 31;
	const float left = v.x + v.y, right = v.z + v.w;
	float up = left + right;

	if (4 * i + 2 < size)
		__stwb((float2 *)(node + first / 2 + 2 * i), make_float2(left, right));
	else if (4 * i < size && size > 1)
		node[first / 2 + 2 * i] = left;
	if (4 * i + 2 < size)
		node[first / 4 + i] = up;
#pragma unroll
	for (int k = 0; k < 5; k++) {
		up += __shfl_xor_sync(0xffffffffu, up, 1 << k);
		if (lane % (2 << k) == 0 && i >> (k + 1) < size >> (k + 3))
			node[(first >> (k + 3)) + (i >> (k + 1))] = up;
	}
	if (lane == 0)
		warps[i / 32] = up;
	__syncthreads();
	if (i >= 32)
		return;
	up = warps[lane % JOIN_WARPS];
#pragma unroll
	for (int k = 0; k < 3; k++) {
		up += __shfl_xor_sync(0xffffffffu, up, 1 << k);
		if (lane < JOIN_WARPS && lane % (2 << k) == 0 && lane >> (k + 1) < size >> (k + 8))
			node[(first >> (k + 8)) + (lane >> (k + 1))] = up;
	}
}

/* What join_up() wants of `size` nodes from `from` on. */
static __device__ __forceinline__ float4 join_four(const float *from, int size)
{
	const int own = 4 * threadIdx.x;
	float4 v = {};

	if (own + 2 < size)
		v = __ldcg((const float4 *)(from + own));
	else if (own < size)
		v.x = __ldcg(from + own), v.y = __ldcg(from + own + 1);
	return v;
}

struct few_room { int32_t leaf[CUDA_FEW_ROWS]; float p[CUDA_FEW_ROWS], warps[32]; };

/* Whether no later row has the leaf of row j. ordered: leaves ascend, as drawn ones do. */
static __device__ __forceinline__ bool few_wins(const int32_t *leaf, int B, int j, bool ordered)
{
	if (ordered)
		return j + 1 == B || leaf[j + 1] != leaf[j];
	for (int i = j + 1; i < B; i++)
		if (leaf[i] == leaf[j])
			return false;
	return true;
}

/* Priorities of the batch into s.p, the leaves' old ones into x.old. Threads behind CUDA_SUM_THREADS have the first rows: those before have the
 * means meanwhile. Nothing is written to the tree, and nobody waits. */
static __device__ __forceinline__ void few_look(const struct cuda_update_args &x, struct few_room &s)
{
	const int z = blockIdx.z, B = x.B, threads = blockDim.x, i = threadIdx.x;
	const int first = i < CUDA_SUM_THREADS ? threads - CUDA_SUM_THREADS + i : i - CUDA_SUM_THREADS;
	const float *node = x.tree + (size_t)z * 2 * x.C + x.C, *error = x.error + (size_t)z * B;
	const int32_t *index = x.index + (size_t)z * B;
	float *old = (float *)((char *)x.old + z * x.old_trial);
	const double alpha = x.clock[z].alpha;

	if (first == 0)
		old[B] = x.clock[z].largest;
#pragma unroll 1
	for (int j = first; j < B; j += threads) {
		const int32_t leaf = index[j];
		const float e = error[j], was = node[leaf];

		s.leaf[j] = leaf;
		s.p[j] = tree_priority(e, alpha);
		old[j] = was;
	}
}

/* Five levels up from nodes that lie `done` levels above the leaves: eight lanes a row take the 32 nodes below its ancestor, and leave the five
 * on its way. */
static __device__ __forceinline__ void few_climb(float *node, int C, const int32_t *leaf, int B, int done)
{
	enum { LANES = 8, AT_ONCE = 4 };
	const int lane = threadIdx.x % LANES, groups = blockDim.x / LANES;

#pragma unroll 1
	for (int base = 0; base < B; base += AT_ONCE * groups) {
		const int row = base + threadIdx.x / LANES;
		float4 v[AT_ONCE];
		int at[AT_ONCE];

#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			at[k] = (C + leaf[min(row + k * groups, B - 1)]) >> done;
			v[k] = __ldcg((const float4 *)(node + (at[k] & ~31)) + lane);
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			const float left = v[k].x + v[k].y, right = v[k].z + v[k].w, two = left + right;
			const float three = two + __shfl_xor_sync(0xffffffffu, two, 1), four = three + __shfl_xor_sync(0xffffffffu, three, 2);
			const float five = four + __shfl_xor_sync(0xffffffffu, four, 4);

			if (lane != (at[k] & 31) / 4)
				continue;
			node[at[k] >> 1] = at[k] & 2 ? right : left;
			node[at[k] >> 2] = two, node[at[k] >> 3] = three, node[at[k] >> 4] = four, node[at[k] >> 5] = five;
		}
	}
}

/* New priorities of a small batch, by one block a trial behind few_look() and a barrier: leaves, the largest of them, the nodes above. Whether the
 * step is skipped is not known yet when this runs before the gradient is there: cuda_put_back() then puts the old leaves back. */
static __device__ __forceinline__ void cuda_priority_few(const struct cuda_update_args &x, struct few_room &s)
{
	const int z = blockIdx.z, B = x.B, C = (int)x.C;
	float *node = x.tree + (size_t)z * 2 * C, *old = (float *)((char *)x.old + z * x.old_trial);
	bool ordered = true; /* leaves ascend */
	int most = 0, depth = 31 - __clz(C);

	for (int j = threadIdx.x; j + 1 < B; j += blockDim.x)
		ordered = ordered && s.leaf[j] <= s.leaf[j + 1];
	ordered = __syncthreads_and(ordered);
	for (int j = threadIdx.x; j < B; j += blockDim.x) {
		const float p = s.p[j];

		if (!few_wins(s.leaf, B, j, ordered)) {
			old[j] = CUDA_NOT_MINE;
			continue;
		}
		node[C + s.leaf[j]] = p;
		if (p == p) /* positive floats are ordered as their bits */
			most = max(most, __float_as_int(p));
	}
	most = ptx_warp_max(most);
	if (threadIdx.x % 32 == 0 && most)
		atomicMax((int *)&x.clock[z].largest, most);
	for (; 1 << depth > CUDA_CHUNK; depth -= 5) {
		__syncthreads();
		few_climb(node, C, s.leaf, B, 31 - __clz(C) - depth);
	}
	__syncthreads();
	join_up(node, 1 << depth, 1 << depth, join_four(node + (1 << depth), 1 << depth), s.warps);
}

/* The leaves as they were before a step that is skipped, level by level up from them, and the largest priority. By one block of
 * CUDA_SUM_THREADS. */
static __device__ __forceinline__ void cuda_put_back(const struct cuda_update_args &x)
{
	const int z = blockIdx.z, B = x.B;
	float *node = x.tree + (size_t)z * 2 * x.C;
	const float *old = (const float *)((const char *)x.old + z * x.old_trial);
	const int32_t *index = x.index + (size_t)z * B;

	__syncthreads();
	for (int j = threadIdx.x; j < B; j += CUDA_SUM_THREADS)
		if (old[j] != CUDA_NOT_MINE)
			node[x.C + index[j]] = old[j];
	for (int64_t shift = 1; (x.C >> shift) >= 1; shift++) {
		__syncthreads();
		for (int j = threadIdx.x; j < B; j += CUDA_SUM_THREADS)
			tree_join(node, (x.C + index[j]) >> shift);
	}
	if (threadIdx.x == 0)
		x.clock[z].largest = old[B];
	__syncthreads();
}

#endif
