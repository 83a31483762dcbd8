/* What kernels of weight gradients share: the list of tiles of all products, slices and trials, and the bias gradients that tiles of the first
 * columns leave. */
#ifndef FH_GPU_CUDA_WEIGHT_LIST_CUH
#define FH_GPU_CUDA_WEIGHT_LIST_CUH

#include <cuda_bf16.h>
#include "gpu/cuda/gemm.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { BK = 64, PART = 32, CLASSES = 4, ROWS = BK / CLASSES }; /* of the rows of a step that gemm.cu's warps add up apart: 16 in a row each */

/* Of all products, slices and trials. */
__host__ __device__ __forceinline__ int tiles_of(const struct gemm_group *g) { return g->tiles * g->trials * (g->slices > 1 ? g->slices : 1); }

/* A tile of the list. */
struct work { int p, z, slice, m0, n0, k, k_end; };

template <typename S> __device__ __forceinline__ struct work work_of(const struct gemm_group &group, int id)
{
	const int slices = group.slices > 1 ? group.slices : 1, at = id % group.tiles;
	struct work w = {};

	w.z = id / group.tiles / slices;
	w.slice = id / group.tiles % slices;

	while (w.p + 1 < group.count && at >= group.first[w.p + 1])
		w.p++;
	const struct gemm &g = group.g[w.p];
	w.m0 = (at - group.first[w.p]) / g.tiles_n * S::TILE;
	w.n0 = (at - group.first[w.p]) % g.tiles_n * S::TILE;
	w.k = group.slices > 1 ? w.slice * group.slice_k : 0;
	w.k_end = group.slices > 1 ? min(g.seg[0].k, w.k + group.slice_k) : g.seg[0].k;
	return w;
}

/* A bias gradient: the classes' sums, added up. all: shared, [CLASSES][TILE], behind which the whole sums stay. */
template <typename S> __device__ __forceinline__ void leave_columns(const float (&sum)[2], float *all, float *to, int left)
{
	enum { TILE = S::TILE };
	const int m = threadIdx.x;

	all[m / (TILE / 2) * TILE + m % (TILE / 2) * 2] = sum[0];
	all[m / (TILE / 2) * TILE + m % (TILE / 2) * 2 + 1] = sum[1];
	__syncthreads();
	if (m < TILE) {
		const float b = (all[m] + all[TILE + m]) + (all[2 * TILE + m] + all[3 * TILE + m]);

		all[CLASSES * TILE + m] = m < left ? b : 0.f;
		if (m < left)
			to[m] = b;
	}
	__syncthreads();
}

static inline void count_tiles(struct gemm_group *g, int tile)
{
	g->tiles = 0;
	for (int i = 0; i < g->count; i++) {
		g->first[i] = g->tiles;
		g->g[i].tiles_n = cuda_tiles(g->g[i].n, tile);
		g->tiles += cuda_tiles(g->g[i].m, tile) * g->g[i].tiles_n;
	}
}

} // namespace

#endif
