/* Weight gradients of few rows, BF16: a block a tile of 64 x 64, which asks for up to 256 rows of both operands at once and is told by
 * the host what it is. The bits of weight.cu: sums over rows run in the same order, and the sums of squares are those of tiles of
 * 32 x 32, each of four quarters.
 *
 * What was there before the launch in front began is asked for before that has ended: the layers' inputs, and the gradients of the
 * outputs, whose weights are summed up meanwhile. */
#include <cuda_bf16.h>
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/ptx.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { TILE = 64, PART = 32, BK = 64, STAGES = 4, LD = TILE + 8, THREADS = 256, WARPS = THREADS / 32 };
enum { STAGE = 2 * BK * LD, PER_ROW = TILE / 8, DOWN = THREADS / PER_ROW, NI = 4 }; /* NI: a warp's columns, in eights */
enum { CLASSES = 4, ROWS = BK / CLASSES };   /* of the rows of a step that gemm.cu's warps add up apart: 16 in a row each */
enum { PRODUCTS = DQN_LAYER_MAX, TILES = 1024, PRODUCT_BITS = 4, PLACE_BITS = 6 };
static_assert(PRODUCTS <= 1 << PRODUCT_BITS && PRODUCT_BITS + 2 * PLACE_BITS <= 16, "a tile is told in 16 bits");

/* dW [m, n] = a^T b, db [m] = column sums of a; early: a was there before the launch in front. */
struct few_product {
	const bf16 *a, *b;
	float *c, *column;
	double *part;                /* NULL: none */
	size_t a_trial, b_trial;     /* bytes */
	int lda, ldb, ldc, m, n, early;
};

struct few_args {
	struct few_product product[PRODUCTS];
	size_t c_trial, part_trial, slice_bytes;
	int rows, slice_k;
	unsigned short tile[TILES];  /* its product, and its place: down, then across */
};
static_assert(sizeof(struct few_args) <= 4096, "kernel arguments");

/* Behind the ring: column sums by class, then whole; squares of the warps. */
struct few_sums { float class_sum[CLASSES][TILE], whole[TILE]; double square[WARPS]; };
enum { BYTES = STAGES * STAGE * 2 + (int)sizeof(struct few_sums) };

/* Where a thread's copies stand: 8 columns of every DOWN-th row of an operand. rows: from the next stage's first on. */
struct feed { const bf16 *from; int down, rows; };

__device__ __forceinline__ void feed_next(struct feed &f, ptx_shared to)
{
#pragma unroll
	for (int i = 0; i < BK; i += DOWN, f.from += f.down)
		ptx_copy16_if(to + i * LD * (unsigned)sizeof(bf16), f.from, f.rows > i);
	f.rows -= BK;
}

/* A warp's 16 x 32 of a step, by 16 of k upwards. a, b: where this lane reads its first fragments. */
__device__ __forceinline__ void multiply(float (&acc)[NI][4], ptx_shared a, ptx_shared b)
{
#pragma unroll
	for (int k = 0; k < BK; k += 16) {
		unsigned fa[4], fb[NI / 2][4];

		ptx_ldmatrix4t(fa, a + k * LD * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < NI / 2; j++)
			ptx_ldmatrix4t(fb[j], b + (k * LD + j * 16) * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < NI; j++)
			ptx_mma_bf16(acc[j], fa, fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
	}
}

/* A bias gradient: this thread's class of one column, added up with the others'. left: columns that there are. */
__device__ __forceinline__ void leave_columns(float sum, struct few_sums *s, float *to, int left)
{
	s->class_sum[threadIdx.x / TILE][threadIdx.x % TILE] = sum;
	__syncthreads();
	const int m = threadIdx.x;
	if (m < TILE) {
		const float b = (s->class_sum[0][m] + s->class_sum[1][m]) + (s->class_sum[2][m] + s->class_sum[3][m]);

		s->whole[m] = m < left ? b : 0.f;
		if (m < left)
			to[m] = b;
	}
	__syncthreads();
}

/* A warp's sums to memory; m, n: rows and columns that there are. */
__device__ __forceinline__ void leave_tile(const float (&acc)[NI][4], float *c, int ld, int m, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;
	const bool pairs = ld % 2 == 0 && n % 2 == 0; /* tiles of even rows begin at multiples of 8 bytes */

#pragma unroll
	for (int i = 0; i < 2; i++) {
		float *to = c + (size_t)(row + i * 8) * ld + col;
#pragma unroll
		for (int j = 0; j < NI; j++) {
			const float v0 = acc[j][i * 2], v1 = acc[j][i * 2 + 1];
			const bool in = row + i * 8 < m && j * 8 + col < n;

			if (pairs && in)
				__stwb((float2 *)(to + j * 8), make_float2(v0, v1)); /* by name: nvcc may take assigned vectors apart */
			if (!pairs && in)
				to[j * 8] = v0;
			if (!pairs && in && j * 8 + col + 1 < n)
				to[j * 8 + 1] = v1;
		}
	}
}

/* The sum of squares of a warp's two quarters of 16 x 16; bias: the first one's rows have their bias gradients too. Behind the last row
 * stands zero, behind the last column whatever a state's padding made of it. */
__device__ __forceinline__ double squares(const float (&acc)[NI][4], const float *bias, int n)
{
	const int lane = threadIdx.x & 31, col = (lane & 3) * 2;
	double square[2] = {};

#pragma unroll
	for (int q = 0; q < 2; q++)
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const float v = (q * 2 + j) * 8 + col + (e & 1) < n ? acc[q * 2 + j][e] : 0.f;

				square[q] += (double)v * v;
			}
	if (bias)
		square[0] += (double)bias[lane] * bias[lane];
#pragma unroll
	for (int o = 16; o; o >>= 1)
#pragma unroll
		for (int q = 0; q < 2; q++)
			square[q] += __shfl_xor_sync(0xffffffffu, square[q], o);
	return square[0] + square[1];
}

/* Warps in pairs: each pair has a tile of 32 x 32, the second warp its lower half. */
__global__ void __launch_bounds__(THREADS, 2) k_weight_few(const __grid_constant__ struct few_args x)
{
	PTX_SHARED(char, shared);
	bf16 *const ring = (bf16 *)shared;
	struct few_sums *const sums = (struct few_sums *)(ring + STAGES * STAGE);
	const unsigned told = x.tile[blockIdx.x];
	const struct few_product &g = x.product[told & ((1 << PRODUCT_BITS) - 1)];
	const int m0 = (told >> PRODUCT_BITS & ((1 << PLACE_BITS) - 1)) * TILE, n0 = (told >> (PRODUCT_BITS + PLACE_BITS)) * TILE, z = blockIdx.z;
	const int k0 = blockIdx.y * x.slice_k, rows = min(x.rows - k0, x.slice_k), steps = (rows + BK - 1) / BK;
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x & 31; /* so that the compiler sees that a warp agrees on it */
	const int wm = warp / 4 * PART + warp % 2 * 16, wn = warp / 2 % 2 * PART;
	const int row = threadIdx.x / PER_ROW, col = threadIdx.x % PER_ROW * 8;
	const ptx_shared place = ptx_shared_at(ring + row * LD + col);
	const ptx_shared a_from = ptx_shared_at(ring + wm + ((lane & 7) + (lane >> 4) * 8) * LD + ((lane >> 3) & 1) * 8);
	const ptx_shared b_from = ptx_shared_at(ring + BK * LD + wn + (lane & 15) * LD + (lane >> 4) * 8);
	struct feed a = {(const bf16 *)((const char *)g.a + z * g.a_trial) + (size_t)(k0 + row) * g.lda + m0 + col, g.lda * DOWN, m0 + col < g.m ? rows - row : 0};
	struct feed b = {(const bf16 *)((const char *)g.b + z * g.b_trial) + (size_t)(k0 + row) * g.ldb + n0 + col, g.ldb * DOWN, n0 + col < g.n ? rows - row : 0};
	const bool column = n0 == 0;
	float acc[NI][4] = {}, sum = 0.f;

#pragma unroll 1
	for (int s = 0; s < STAGES && s < steps; s++)
		feed_next(b, place + (s * STAGE + BK * LD) * (unsigned)sizeof(bf16));
	if (!g.early) {
		cuda_wait_before();
		cuda_let_next();
	}
#pragma unroll 1
	for (int s = 0; s < STAGES; s++) { /* every stage is a group, empty ones included, so that waits count alike */
		if (s < steps)
			feed_next(a, place + s * STAGE * (unsigned)sizeof(bf16));
		ptx_copy_commit();
	}
#pragma unroll 1
	for (int s = 0; s < steps; s++) {
		const int slot = s % STAGES;
		const unsigned stage = slot * STAGE * (unsigned)sizeof(bf16);

		ptx_copy_wait<STAGES - 1>();
		__syncthreads();
		if (column) {
			const bf16 *from = ring + slot * STAGE + threadIdx.x / TILE * ROWS * LD + threadIdx.x % TILE;
#pragma unroll
			for (int k = 0; k < ROWS; k++)
				sum += (float)from[k * LD];
		}
		multiply(acc, a_from + stage, b_from + stage);
		if (s + STAGES < steps) {
			__syncthreads();
			feed_next(a, place + stage);
			feed_next(b, place + stage + BK * LD * (unsigned)sizeof(bf16));
		}
		ptx_copy_commit();
	}
	if (g.early) {
		cuda_wait_before();
		cuda_let_next();
	}
	const size_t to = z * x.c_trial + blockIdx.y * x.slice_bytes;
	if (column)
		leave_columns(sum, sums, (float *)((char *)g.column + to) + m0, g.m - m0);
	leave_tile(acc, (float *)((char *)g.c + to) + (size_t)(m0 + wm) * g.ldc + n0 + wn, g.ldc, g.m - m0 - wm, g.n - n0 - wn);
	if (!g.part)
		return;
	const double square = squares(acc, column && wm % PART == 0 && wn == 0 ? sums->whole + wm : nullptr, g.n - n0 - wn);
	if (lane == 0)
		sums->square[warp] = square;
	__syncthreads();
	const int pair = threadIdx.x, down = m0 + pair / 2 * PART, across = n0 + pair % 2 * PART;
	if (pair < WARPS / 2 && down < g.m && across < g.n) {
		double *part = (double *)((char *)g.part + z * x.part_trial);

		part[down / PART * ((g.n + PART - 1) / PART) + across / PART] = sums->square[2 * pair] + sums->square[2 * pair + 1];
	}
}

/* The tiles of the group, those first that need not wait. 0: more than can be told. */
int tell(struct few_args *x, const struct gemm_group *g)
{
	int tiles = 0;

	for (int early = 1; early >= 0; early--)
		for (int p = 0; p < g->count; p++) {
			const int down = cuda_tiles(g->g[p].m, TILE), across = cuda_tiles(g->g[p].n, TILE);

			if (g->g[p].a_early != early)
				continue;
			if (down > 1 << PLACE_BITS || across > 1 << PLACE_BITS || tiles + down * across > TILES)
				return 0;
			for (int i = 0; i < down * across; i++)
				x->tile[tiles++] = (unsigned short)(p | i / across << PRODUCT_BITS | i % across << (PRODUCT_BITS + PLACE_BITS));
		}
	return tiles;
}

} // namespace

int weight_few_takes(struct cuda_exec *c, const struct gemm_group *g)
{
	struct few_args x;

	return g->count <= PRODUCTS && (size_t)BYTES <= cuda_shared_most(c) && tell(&x, g) > 0;
}

int weight_few(struct cuda_exec *c, const struct gemm_group *g, struct fh_status *st)
{
	const int slices = g->slices > 1 ? g->slices : 1;
	struct few_args x = {};
	const int tiles = tell(&x, g);

	for (int p = 0; p < g->count; p++) {
		const struct gemm *q = &g->g[p];

		x.product[p] = {(const bf16 *)q->a + q->seg[0].a, (const bf16 *)q->seg[0].b, (float *)q->c, q->column, q->part, q->a_trial, q->b_trial,
		                q->lda, q->ldb, q->ldc, q->m, q->n, q->a_early};
		x.c_trial = q->c_trial, x.part_trial = q->part_trial;
	}
	x.rows = g->g[0].seg[0].k, x.slice_k = slices > 1 ? g->slice_k : x.rows, x.slice_bytes = g->slice_bytes;
	CUDA_TRY(cuda_allow_shared(c, k_weight_few));
	CUDA_TRY(cuda_launch(c, k_weight_few, dim3(tiles, slices, c->dims.P), THREADS, BYTES, x));
	return 0;
}
