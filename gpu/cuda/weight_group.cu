/* Weight gradients by warpgroups (wgmma.cuh), for sm_90a: the list, the tiles of 128 x 128 and the bits of weight.cu. A warpgroup has 64 rows of a
 * tile, a warp 16 of them and all columns: half of a tile of 32 x 32, so two warps add up what the norm is made of.
 *
 * Both operands lie across the sum: a stage of the ring is 64 rows of activations and of gradients, two panels of 64 columns of each. The products
 * of two steps may be under way, so a stage is overwritten two steps after it was read. Two blocks a multiprocessor: one multiplies while
 * the other's tile leaves. */
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/group.cuh"
#include "gpu/cuda/shared.cuh"
#include "gpu/cuda/weight_list.cuh"

namespace {

struct shape {
	enum { TILE = 128, THREADS = 256, STAGES = 3, AHEAD = STAGES - 2, PANELS = TILE / 64, STAGE = 2 * PANELS * GROUP_UNIT, NJ = TILE / 8, PARTS = TILE / PART };
	enum { ALIGN = PTX_OPERAND_EIGHT, BYTES = ALIGN + STAGES * STAGE + (CLASSES + 1) * TILE * 4 + THREADS / 32 * PARTS * 8 };
};

/* Where the copies stand: they run ahead of the products. A thread brings 8 columns of every 32nd row of every panel. */
struct feed {
	int id;
	int left;           /* rows of the sum from this thread's first one on */
	int a_left, b_left; /* columns from its first ones on */
	int lda, ldb;
	const bf16 *a, *b;
};

__device__ __forceinline__ void feed_tile(struct feed &f, const struct gemm_group &group, int total)
{
	const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

	if (f.id >= total)
		return;
	const struct work w = work_of<shape>(group, f.id);
	const struct gemm &g = group.g[w.p];
	f.left = w.k_end - w.k - row;
	f.a_left = g.m - w.m0 - col, f.b_left = g.n - w.n0 - col, f.lda = g.lda, f.ldb = g.ldb;
	f.a = (const bf16 *)((const char *)g.a + w.z * g.a_trial) + g.seg[0].a + (size_t)(w.k + row) * g.lda + w.m0 + col;
	f.b = (const bf16 *)((const char *)g.seg[0].b + w.z * g.b_trial) + (size_t)(w.k + row) * g.ldb + w.n0 + col;
}

/* Asks for the next stage, always a group. place: of this thread's first 16 bytes in the stage. */
__device__ __forceinline__ void feed_next(struct feed &f, const struct gemm_group &group, int total, ptx_shared place)
{
	if (f.id < total) {
#pragma unroll
		for (int i = 0; i < 2; i++) { /* halves of the rows */
			const bool there = f.left > i * 32;
#pragma unroll
			for (int p = 0; p < shape::PANELS; p++) {
				ptx_copy16_if(place + p * GROUP_UNIT + i * (GROUP_UNIT / 2), f.a + p * 64, there && f.a_left > p * 64);
				ptx_copy16_if(place + (shape::PANELS + p) * GROUP_UNIT + i * (GROUP_UNIT / 2), f.b + p * 64, there && f.b_left > p * 64);
			}
			f.a += 32 * f.lda, f.b += 32 * f.ldb;
		}
		f.left -= BK;
		if (f.left + (int)threadIdx.x / 8 <= 0) {
			f.id += gridDim.x;
			feed_tile(f, group, total);
		}
	}
	ptx_copy_commit();
}

/* This thread's two columns and class of a step. */
__device__ __forceinline__ void add_columns(float (&sum)[2], const char *stage)
{
	const int col = threadIdx.x % (shape::TILE / 2) * 2, row = threadIdx.x / (shape::TILE / 2) * ROWS;

	stage += col / 64 * GROUP_UNIT + row * PTX_OPERAND_ROW + col % 8 * 2;
#pragma unroll
	for (int k = 0; k < ROWS; k++) { /* classes begin at a multiple of 8 */
		const float2 v = __bfloat1622float2(*(const __nv_bfloat162 *)(stage + ptx_operand_place(k, col / 8 % 8)));

		sum[0] += v.x, sum[1] += v.y;
	}
}

/* A warp's 16 rows to memory. m, n: rows and columns that there are. */
__device__ __forceinline__ void leave_rows(const float (&acc)[shape::NJ][4], float *c, int ld, int m, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;
	const bool pairs = ld % 2 == 0 && n % 2 == 0 && ((size_t)c & 7) == 0;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		if (row + half * 8 >= m)
			break;
		float *to = c + (size_t)(row + half * 8) * ld + col;
#pragma unroll
		for (int j = 0; j < shape::NJ; j++) {
			const float v0 = acc[j][half * 2], v1 = acc[j][half * 2 + 1];

			if (pairs) {
				if (j * 8 + col < n)
					__stwb((float2 *)(to + j * 8), make_float2(v0, v1)); /* by name: nvcc may take assigned vectors apart */
			} else {
				if (j * 8 + col < n)
					to[j * 8] = v0;
				if (j * 8 + col + 1 < n)
					to[j * 8 + 1] = v1;
			}
		}
	}
}

/* Sums of squares of a warp's halves of tiles of 32 x 32, in gemm.cu's order: two quarters of 16 x 16 each by itself, the first with the bias
 * gradient of the tile's 32 rows (NULL: not the tile's upper half, or other columns' tiles have it). pair: [PARTS] of the warp. */
__device__ __forceinline__ void square_halves(const float (&acc)[shape::NJ][4], const float *bias, double *pair, int n)
{
	const int lane = threadIdx.x & 31, col = (lane & 3) * 2;

#pragma unroll
	for (int t = 0; t < shape::PARTS; t++) {
		double square[2] = {};

		if (t * PART >= n)
			break;
#pragma unroll
		for (int q = 0; q < 2; q++)
#pragma unroll
			for (int j = 0; j < 2; j++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					const int at = t * 4 + q * 2 + j;
					const float v = at * 8 + col + (e & 1) < n ? acc[at][e] : 0.f;

					square[q] += (double)v * v;
				}
		if (t == 0 && bias)
			square[0] += (double)bias[lane] * bias[lane];
#pragma unroll
		for (int o = 16; o; o >>= 1)
#pragma unroll
			for (int q = 0; q < 2; q++)
				square[q] += __shfl_xor_sync(0xffffffffu, square[q], o);
		if (lane == 0)
			pair[t] = square[0] + square[1];
	}
}

__global__ void __launch_bounds__(shape::THREADS, 2) k_weight_group(const __grid_constant__ struct gemm_group group)
{
#ifdef PTX_WARPGROUPS
	enum { STAGES = shape::STAGES, STAGE = shape::STAGE, TILE = shape::TILE, PARTS = shape::PARTS };
	PTX_SHARED(char, shared);
	char *const ring = shared + (shape::ALIGN - ptx_shared_at(shared) % shape::ALIGN) % shape::ALIGN;
	float *const all = (float *)(ring + STAGES * STAGE); /* column sums by class, then whole */
	double *const pairs = (double *)(all + (CLASSES + 1) * TILE);
	const int total = tiles_of(&group);
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), wm = warp * 16; /* a warp agrees on them; its first row */
	const ptx_shared ring_at = ptx_shared_at(ring), place = ring_at + ptx_operand_place(threadIdx.x / 8, threadIdx.x % 8);
	struct feed f = {};
	int slot = 0, next = shape::AHEAD; /* stage of the step, of the copies */

	f.id = blockIdx.x;
	feed_tile(f, group, total);
	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int i = 0; i < shape::AHEAD; i++)
		feed_next(f, group, total, place + i * STAGE);
#pragma unroll 1
	for (int id = blockIdx.x; id < total; id += gridDim.x) {
		const struct work w = work_of<shape>(group, id);
		const struct gemm &g = group.g[w.p];
		const int m = g.m - w.m0, n = g.n - w.n0, units = wm / 64 * 64 < m ? (n + 63) / 64 : 0; /* of this warpgroup, all of m, n */
		const bool column = w.n0 == 0;
		const size_t slice_offset = w.slice * group.slice_bytes;
		float acc[shape::NJ][4] = {}, sum[2] = {};

#pragma unroll 1
		for (int k = w.k; k < w.k_end; k += BK) {
			ptx_copy_wait<shape::AHEAD - 1>();
			ptx_operands_written();
			__syncthreads(); /* the stage is there for all, and the products of the step before the last are through */
			group_multiply_some<8, shape::PANELS, shape::NJ, 1, 1>(acc, 0, ring_at + slot * STAGE + wm / 64 * GROUP_UNIT, ring_at + slot * STAGE + shape::PANELS * GROUP_UNIT, units);
			feed_next(f, group, total, place + next * STAGE);
			if (column)
				add_columns(sum, ring + slot * STAGE);
			next = next + 1 == STAGES ? 0 : next + 1;
			slot = slot + 1 == STAGES ? 0 : slot + 1;
			ptx_group_wait<1, shape::NJ>(acc);
		}
		ptx_group_wait<0, shape::NJ>(acc);
		if (column)
			leave_columns<shape>(sum, all, (float *)((char *)g.column + w.z * g.column_trial + slice_offset) + w.m0, m);
		if (wm < m) {
			float *c = (float *)((char *)g.c + w.z * g.c_trial + slice_offset);

			leave_rows(acc, c + (size_t)(w.m0 + wm) * g.ldc + w.n0, g.ldc, m - wm, n);
		}
		if (!g.part)
			continue;
		square_halves(acc, column && wm % PART == 0 ? all + CLASSES * TILE + wm : nullptr, pairs + warp * PARTS, n);
		__syncthreads();
		const int t = threadIdx.x; /* of PARTS x PARTS tiles */

		if (t < PARTS * PARTS && t / PARTS * PART < m && t % PARTS * PART < n) {
			const int tiles_n = (g.n + PART - 1) / PART;
			double *part = (double *)((char *)g.part + w.z * g.part_trial) + (w.m0 / PART + t / PARTS) * tiles_n + w.n0 / PART + t % PARTS;

			*part = pairs[t / PARTS * 2 * PARTS + t % PARTS] + pairs[(t / PARTS * 2 + 1) * PARTS + t % PARTS];
		}
	}
#endif
}

} // namespace

int weight_group_takes(struct cuda_exec *c, struct gemm_group *g)
{
	if (!cuda_warpgroups(c) || (size_t)shape::BYTES > cuda_shared_most(c))
		return 0;
	count_tiles(g, shape::TILE);
	return 1;
}

int weight_group(struct cuda_exec *c, struct gemm_group *g, struct fh_status *st)
{
	const int most = 2 * c->multiprocessors, tiles = tiles_of(g);

	CUDA_TRY(cuda_allow_shared(c, k_weight_group));
	CUDA_TRY(cuda_launch(c, k_weight_group, dim3(tiles < most ? tiles : most), shape::THREADS, (size_t)shape::BYTES, *g));
	return 0;
}
