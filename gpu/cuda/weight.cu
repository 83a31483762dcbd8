/* Weight gradients of many rows, dW = dy^T x and db = column sums of dy, BF16: tiles of 128 x 128, a quarter of the loads of the
 * small tiles of gemm.cu, and the same bits: sums over rows run in the same order, and the sums of squares that the norm is
 * made of are those of tiles of 32 x 32, of which a warp owns two.
 *
 * All tiles of all products, slices and trials are one list, which the blocks go through with one ring of copies that runs on
 * from tile to tile: the next tile is on its way while one leaves. */
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/copy.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { TILE = 128, BK = 64, LD = TILE + 8, STAGES = 3, STAGE = 2 * BK * LD, THREADS = 256, PART = 32 };
enum { CLASSES = 4, ROWS = BK / CLASSES };          /* of the rows of a step that gemm.cu's warps add up apart: 16 in a row each */
enum { MI = 4, NI = 4 };                            /* a warp's 64 x 32 of the tile in fragments of 16 x 8 */
enum { SUMS = CLASSES * TILE + TILE };              /* floats behind the ring: column sums by class, then whole */
enum { BYTES = STAGES * STAGE * (int)sizeof(bf16) + SUMS * (int)sizeof(float) };

/* Of all products, slices and trials. */
__host__ __device__ __forceinline__ int tiles_of(const struct gemm_group *g) { return g->tiles * g->trials * (g->slices > 1 ? g->slices : 1); }

/* A tile of the list. */
struct work { int p, z, slice, m0, n0, k, k_end; };

__device__ __forceinline__ struct work work_of(const struct gemm_group &group, int id)
{
	const int slices = group.slices > 1 ? group.slices : 1, at = id % group.tiles;
	struct work w = {};

	w.z = id / group.tiles / slices;
	w.slice = id / group.tiles % slices;

	while (w.p + 1 < group.count && at >= group.first[w.p + 1])
		w.p++;
	const struct gemm &g = group.g[w.p];
	w.m0 = (at - group.first[w.p]) / g.tiles_n * TILE;
	w.n0 = (at - group.first[w.p]) % g.tiles_n * TILE;
	w.k = group.slices > 1 ? w.slice * group.slice_k : 0;
	w.k_end = group.slices > 1 ? min(g.seg[0].k, w.k + group.slice_k) : g.seg[0].k;
	return w;
}

/* One operand's part of a stage: BK rows from row k on, TILE columns from `col0` on. */
__device__ __forceinline__ void bring(bf16 *to, const bf16 *from, int ld, int k, int k_end, int col0, int cols)
{
	const int row = threadIdx.x / 16, col = threadIdx.x % 16 * 8, left = copy_left(cols, col0 + col);

	from += (size_t)(k + row) * ld + col0 + col;
	to += row * LD + col;
#pragma unroll
	for (int i = 0; i < BK; i += THREADS / 16) {
		const bool in = left && k + row + i < k_end;

		ptx_copy16(ptx_shared_at(to + i * LD), in ? from + (size_t)i * ld : from - (size_t)(k + row) * ld - col0 - col, in ? 2 * left : 0);
	}
}

/* Where the copies stand: they run ahead of the products. */
struct feed { int id; struct work w; };

/* Asks for the next stage; always a group, so that waits count alike. */
__device__ __forceinline__ void feed_next(struct feed &f, const struct gemm_group &group, int total, bf16 *to)
{
	if (f.id < total) {
		const struct gemm &g = group.g[f.w.p];

		bring(to, (const bf16 *)((const char *)g.a + f.w.z * g.a_trial) + g.seg[0].a, g.lda, f.w.k, f.w.k_end, f.w.m0, g.m);
		bring(to + BK * LD, (const bf16 *)((const char *)g.seg[0].b + f.w.z * g.b_trial), g.ldb, f.w.k, f.w.k_end, f.w.n0, g.n);
		f.w.k += BK;
		if (f.w.k >= f.w.k_end) {
			f.id += gridDim.x;
			if (f.id < total)
				f.w = work_of(group, f.id);
		}
	}
	ptx_copy_commit();
}

/* A warp's share of a step, by 16 of k upwards, as in gemm.cu. a, b: its first row (column) of the stage. */
__device__ __forceinline__ void multiply(float (&acc)[MI][NI][4], const bf16 *a, const bf16 *b)
{
	const int lane = threadIdx.x & 31;

	a += ((lane & 7) + (lane >> 4) * 8) * LD + ((lane >> 3) & 1) * 8;
	b += (lane & 15) * LD + (lane >> 4) * 8;
#pragma unroll
	for (int k = 0; k < BK; k += 16) {
		unsigned fa[MI][4], fb[NI / 2][4];
#pragma unroll
		for (int i = 0; i < MI; i++)
			ptx_ldmatrix4t(fa[i], a + k * LD + i * 16);
#pragma unroll
		for (int j = 0; j < NI / 2; j++)
			ptx_ldmatrix4t(fb[j], b + k * LD + j * 16);
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int j = 0; j < NI; j++)
				ptx_mma_bf16(acc[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
	}
}

/* This thread's two columns and class of a step. */
__device__ __forceinline__ void add_columns(float (&sum)[2], const bf16 *a)
{
	a += threadIdx.x / (TILE / 2) * ROWS * LD + threadIdx.x % (TILE / 2) * 2;
#pragma unroll
	for (int k = 0; k < ROWS; k++) {
		const float2 v = __bfloat1622float2(*(const __nv_bfloat162 *)(a + k * LD));

		sum[0] += v.x, sum[1] += v.y;
	}
}

/* A bias gradient: the classes' sums, added up. all: shared, [CLASSES][TILE] behind which the whole sums stay. */
__device__ __forceinline__ void leave_columns(const float (&sum)[2], float *all, float *to, int left)
{
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

__device__ __forceinline__ void leave_tile(const float (&acc)[MI][NI][4], float *c, int ld, int m, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;
	const bool pairs = ld % 2 == 0 && n % 2 == 0 && ((size_t)c & 7) == 0;

#pragma unroll
	for (int i = 0; i < 2 * MI; i++) {
		if (row + i * 8 >= m)
			break;
		float *to = c + (size_t)(row + i * 8) * ld + col;
#pragma unroll
		for (int j = 0; j < NI; j++) {
			const float v0 = acc[i / 2][j][i % 2 * 2], v1 = acc[i / 2][j][i % 2 * 2 + 1];

			if (pairs) {
				if (j * 8 + col < n)
					*(float2 *)(to + j * 8) = make_float2(v0, v1);
			} else {
				if (j * 8 + col < n)
					to[j * 8] = v0;
				if (j * 8 + col + 1 < n)
					to[j * 8 + 1] = v1;
			}
		}
	}
}

/* Sums of squares of the warp's 32 x 32 tiles, in gemm.cu's order: each quarter of 16 x 16 by itself, the first with the
 * bias gradient (bias: of the warp's rows, NULL: other columns' tiles have it). part: of the warp's first tile. */
__device__ __forceinline__ void leave_squares(const float (&acc)[MI][NI][4], const float *bias, double *part, int tiles_n, int m)
{
	const int lane = threadIdx.x & 31;

#pragma unroll
	for (int t = 0; t < MI / 2; t++) {
		double square[4] = {};

		if (t * PART >= m)
			break;
#pragma unroll
		for (int q = 0; q < 4; q++) {
#pragma unroll
			for (int j = 0; j < 2; j++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					const float v = acc[t * 2 + q / 2][q % 2 * 2 + j][e]; /* zero beyond the last row and column */

					square[q] += (double)v * v;
				}
			if (q == 0 && bias)
				square[0] += (double)bias[t * PART + lane] * bias[t * PART + lane];
		}
#pragma unroll
		for (int o = 16; o; o >>= 1)
#pragma unroll
			for (int q = 0; q < 4; q++)
				square[q] += __shfl_xor_sync(0xffffffffu, square[q], o);
		if (lane == 0)
			part[t * tiles_n] = (square[0] + square[1]) + (square[2] + square[3]);
	}
}

__global__ void __launch_bounds__(THREADS, 2) k_weight(const __grid_constant__ struct gemm_group group)
{
	PTX_SHARED(char, shared);
	bf16 *ring = (bf16 *)shared;
	float *all = (float *)(ring + STAGES * STAGE);
	const int total = tiles_of(&group);
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* so that the compiler sees that a warp agrees on it */
	const int wm = warp / 4 * (MI * 16), wn = warp % 4 * (NI * 8);
	struct feed f = {(int)blockIdx.x, work_of(group, blockIdx.x)};
	int slot = 0;

	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int i = 0; i < STAGES - 1; i++)
		feed_next(f, group, total, ring + i * STAGE);
#pragma unroll 1
	for (int id = blockIdx.x; id < total; id += gridDim.x) {
		const struct work w = work_of(group, id);
		const struct gemm &g = group.g[w.p];
		const bool column = w.n0 == 0, mine = w.m0 + wm < g.m && w.n0 + wn < g.n;
		const size_t slice_offset = w.slice * group.slice_bytes;
		float acc[MI][NI][4] = {}, sum[2] = {};

#pragma unroll 1
		for (int k = w.k; k < w.k_end; k += BK) {
			const bf16 *a = ring + slot * STAGE;

			ptx_copy_wait<STAGES - 2>();
			__syncthreads(); /* the stage is there for all, and its predecessor is free */
			feed_next(f, group, total, ring + (slot + STAGES - 1) % STAGES * STAGE);
			if (column)
				add_columns(sum, a);
			if (mine)
				multiply(acc, a + wm, a + BK * LD + wn);
			slot = slot + 1 == STAGES ? 0 : slot + 1;
		}
		if (column)
			leave_columns(sum, all, (float *)((char *)g.column + w.z * g.column_trial + slice_offset) + w.m0, g.m - w.m0);
		if (!mine)
			continue;
		float *c = (float *)((char *)g.c + w.z * g.c_trial + slice_offset);
		leave_tile(acc, c + (size_t)(w.m0 + wm) * g.ldc + w.n0 + wn, g.ldc, g.m - w.m0 - wm, g.n - w.n0 - wn);
		if (g.part) {
			const int tiles_n = (g.n + PART - 1) / PART;
			double *part = (double *)((char *)g.part + w.z * g.part_trial) + (w.m0 + wm) / PART * tiles_n + (w.n0 + wn) / PART;

			leave_squares(acc, w.n0 + wn == 0 ? all + CLASSES * TILE + wm : nullptr, part, tiles_n, g.m - w.m0 - wm);
		}
	}
}

} // namespace

int weight_takes(struct cuda_exec *c, struct gemm_group *g)
{
	int shared = 0;

	g->tiles = 0;
	for (int i = 0; i < g->count; i++) {
		g->first[i] = g->tiles;
		g->g[i].tiles_n = cuda_tiles(g->g[i].n, TILE);
		g->tiles += cuda_tiles(g->g[i].m, TILE) * g->g[i].tiles_n;
	}
	g->trials = c->dims.P;
	if (c->dims.precision != FH_PRECISION_BF16 || !back_wide(c, tiles_of(g) >= c->multiprocessors))
		return 0;
	return cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->x.backend->device) == cudaSuccess && BYTES <= shared;
}

int weight_launch(struct cuda_exec *c, struct gemm_group *g, struct fh_status *st)
{
	const int most = 2 * c->multiprocessors, tiles = tiles_of(g);

	CUDA_TRY(cudaFuncSetAttribute(k_weight, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
	CUDA_TRY(cuda_launch(c, k_weight, dim3(tiles < most ? tiles : most), THREADS, BYTES, *g));
	return 0;
}
