/* Weight gradients, dW = dy^T x and db = column sums of dy, BF16: tiles of 128 x 128 where they fill the machine, a quarter of the
 * loads of the small tiles of gemm.cu; by warpgroups where the device has them (weight_group.cu), and few rows by weight_few.cu. The same
 * bits: sums over rows run in the same order, and the sums of squares that the norm is made of are those of tiles of 32 x 32, which a
 * warp owns whole.
 *
 * All tiles of all products, slices and trials are one list, which the blocks go through with one ring of copies that runs on
 * from tile to tile: the next tile is on its way while one leaves. */
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/group.cuh"
#include "gpu/cuda/ptx.cuh"
#include "gpu/cuda/shared.cuh"
#include "gpu/cuda/weight_list.cuh"

namespace {

enum { STAGES = 3, NI = 4 }; /* NI: a warp's columns, in eights */

/* How a tile is cut: warps of MI x 16 rows by 32 columns. Behind the ring lie column sums by class, then whole. */
template <int TILE_> struct shape {
	enum { TILE = TILE_, LD = TILE + 8, STAGE = 2 * BK * LD, THREADS = 2 * TILE, ACROSS = TILE / PART, MI = TILE * ACROSS / (THREADS / 32) / 16 };
	enum { PER_ROW = TILE / 8, DOWN = THREADS / PER_ROW, BYTES = STAGES * STAGE * 2 + (CLASSES + 1) * TILE * 4 };
};

/* Where the copies stand: they run ahead of the products. A thread brings 8 columns of every DOWN-th row of a stage, of both operands:
 * rows of activations and of their gradients are padded, with zeros that a tile may take along (the states' with anything, see
 * leave_squares()). What does not change from step to step of a tile is worked out once. */
struct feed {
	int id;
	int left;             /* rows of the sum from this stage on */
	int a_rows, b_rows;   /* and from this thread's first one on: none where it has no columns */
	int a_down, b_down;   /* elements from one of its rows to the next */
	const bf16 *a, *b;    /* its next 8 columns */
};

template <typename S> __device__ __forceinline__ void feed_tile(struct feed &f, const struct gemm_group &group, int total)
{
	const int row = threadIdx.x / S::PER_ROW, col = threadIdx.x % S::PER_ROW * 8;

	if (f.id >= total)
		return;
	const struct work w = work_of<S>(group, f.id);
	const struct gemm &g = group.g[w.p];
	f.left = w.k_end - w.k;
	f.a_rows = w.m0 + col < g.m ? f.left - row : 0, f.a_down = g.lda * S::DOWN;
	f.b_rows = w.n0 + col < g.n ? f.left - row : 0, f.b_down = g.ldb * S::DOWN;
	f.a = (const bf16 *)((const char *)g.a + w.z * g.a_trial) + g.seg[0].a + (size_t)(w.k + row) * g.lda + w.m0 + col;
	f.b = (const bf16 *)((const char *)g.seg[0].b + w.z * g.b_trial) + (size_t)(w.k + row) * g.ldb + w.n0 + col;
}

/* Asks for the next stage, which comes to `slot`; always a group, so that waits count alike. place: of this thread's first copy in
 * the ring's first stage. */
template <typename S> __device__ __forceinline__ void feed_next(struct feed &f, const struct gemm_group &group, int total, ptx_shared place, int slot)
{
	if (f.id < total) {
		place += slot * S::STAGE * (unsigned)sizeof(bf16);
#pragma unroll
		for (int i = 0; i < BK; i += S::DOWN, f.a += f.a_down)
			ptx_copy16_if(place + i * S::LD * (unsigned)sizeof(bf16), f.a, f.a_rows > i);
#pragma unroll
		for (int i = 0; i < BK; i += S::DOWN, f.b += f.b_down)
			ptx_copy16_if(place + (BK + i) * S::LD * (unsigned)sizeof(bf16), f.b, f.b_rows > i);
		f.left -= BK, f.a_rows -= BK, f.b_rows -= BK;
		if (f.left <= 0) {
			f.id += gridDim.x;
			feed_tile<S>(f, group, total);
		}
	}
	ptx_copy_commit();
}

/* A warp's share of a step, by 16 of k upwards, as in gemm.cu. a, b: where this lane reads its first fragments. */
template <typename S> __device__ __forceinline__ void multiply(float (&acc)[S::MI][NI][4], ptx_shared a, ptx_shared b)
{
#pragma unroll
	for (int k = 0; k < BK; k += 16) {
		unsigned fa[S::MI][4], fb[NI / 2][4];
#pragma unroll
		for (int i = 0; i < S::MI; i++)
			ptx_ldmatrix4t(fa[i], a + (k * S::LD + i * 16) * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < NI / 2; j++)
			ptx_ldmatrix4t(fb[j], b + (k * S::LD + j * 16) * (unsigned)sizeof(bf16));
#pragma unroll
		for (int i = 0; i < S::MI; i++)
#pragma unroll
			for (int j = 0; j < NI; j++)
				ptx_mma_bf16(acc[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
	}
}

/* This thread's two columns and class of a step. */
template <typename S> __device__ __forceinline__ void add_columns(float (&sum)[2], const bf16 *a)
{
	a += threadIdx.x / (S::TILE / 2) * ROWS * S::LD + threadIdx.x % (S::TILE / 2) * 2;
#pragma unroll
	for (int k = 0; k < ROWS; k++) {
		const float2 v = __bfloat1622float2(*(const __nv_bfloat162 *)(a + k * S::LD));

		sum[0] += v.x, sum[1] += v.y;
	}
}

template <typename S> __device__ __forceinline__ void leave_tile(const float (&acc)[S::MI][NI][4], float *c, int ld, int m, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;
	const bool pairs = ld % 2 == 0 && n % 2 == 0 && ((size_t)c & 7) == 0;

#pragma unroll
	for (int i = 0; i < 2 * S::MI; i++) {
		if (row + i * 8 >= m)
			break;
		float *to = c + (size_t)(row + i * 8) * ld + col;
#pragma unroll
		for (int j = 0; j < NI; j++) {
			const float v0 = acc[i / 2][j][i % 2 * 2], v1 = acc[i / 2][j][i % 2 * 2 + 1];

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

/* Sums of squares of the warp's 32 x 32 tiles, in gemm.cu's order: each quarter of 16 x 16 by itself, the first with the
 * bias gradient (bias: of the warp's rows, NULL: other columns' tiles have it). part: of the warp's first tile. m, n: rows and
 * columns that there are; behind the last row stands zero, behind the last column whatever a state's padding made of it. */
template <typename S>
__device__ __forceinline__ void leave_squares(const float (&acc)[S::MI][NI][4], const float *bias, double *part, int tiles_n, int m, int n)
{
	const int lane = threadIdx.x & 31, col = (lane & 3) * 2;

#pragma unroll
	for (int t = 0; t < S::MI / 2; t++) {
		double square[4] = {};

		if (t * PART >= m)
			break;
#pragma unroll
		for (int q = 0; q < 4; q++) {
#pragma unroll
			for (int j = 0; j < 2; j++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					const float v = (q % 2 * 2 + j) * 8 + col + (e & 1) < n ? acc[t * 2 + q / 2][q % 2 * 2 + j][e] : 0.f;

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

template <typename S> __global__ void __launch_bounds__(S::THREADS, 2) k_weight(const __grid_constant__ struct gemm_group group)
{
	PTX_SHARED(char, shared);
	bf16 *ring = (bf16 *)shared;
	float *all = (float *)(ring + STAGES * S::STAGE);
	const int total = tiles_of(&group);
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* so that the compiler sees that a warp agrees on it */
	const int wm = warp / S::ACROSS * (S::MI * 16), wn = warp % S::ACROSS * (NI * 8);
	const int lane = threadIdx.x & 31, a_at = ((lane & 7) + (lane >> 4) * 8) * S::LD + ((lane >> 3) & 1) * 8, b_at = (lane & 15) * S::LD + (lane >> 4) * 8;
	const ptx_shared place = ptx_keep(ptx_shared_at(ring + threadIdx.x / S::PER_ROW * S::LD + threadIdx.x % S::PER_ROW * 8));
	const ptx_shared a_from = ptx_keep(ptx_shared_at(ring + wm + a_at)), b_from = ptx_keep(ptx_shared_at(ring + BK * S::LD + wn + b_at));
	struct feed f = {};
	int slot = 0;

	f.id = blockIdx.x;
	feed_tile<S>(f, group, total);
	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int i = 0; i < STAGES - 1; i++)
		feed_next<S>(f, group, total, place, i);
#pragma unroll 1
	for (int id = blockIdx.x; id < total; id += gridDim.x) {
		const struct work w = work_of<S>(group, id);
		const struct gemm &g = group.g[w.p];
		const bool column = w.n0 == 0, mine = w.m0 + wm < g.m && w.n0 + wn < g.n;
		const size_t slice_offset = w.slice * group.slice_bytes;
		float acc[S::MI][NI][4] = {}, sum[2] = {};

#pragma unroll 1
		for (int k = w.k; k < w.k_end; k += BK) {
			const unsigned stage = slot * S::STAGE * (unsigned)sizeof(bf16);

			ptx_copy_wait<STAGES - 2>();
			__syncthreads(); /* the stage is there for all, and its predecessor is free */
			feed_next<S>(f, group, total, place, slot == 0 ? STAGES - 1 : slot - 1);
			if (column)
				add_columns<S>(sum, ring + slot * S::STAGE);
			if (mine)
				multiply<S>(acc, a_from + stage, b_from + stage);
			slot = slot + 1 == STAGES ? 0 : slot + 1;
		}
		if (column)
			leave_columns<S>(sum, all, (float *)((char *)g.column + w.z * g.column_trial + slice_offset) + w.m0, g.m - w.m0);
		if (!mine)
			continue;
		float *c = (float *)((char *)g.c + w.z * g.c_trial + slice_offset);
		leave_tile<S>(acc, c + (size_t)(w.m0 + wm) * g.ldc + w.n0 + wn, g.ldc, g.m - w.m0 - wm, g.n - w.n0 - wn);
		if (g.part) {
			const int tiles_n = (g.n + PART - 1) / PART;
			double *part = (double *)((char *)g.part + w.z * g.part_trial) + (w.m0 + wm) / PART * tiles_n + (w.n0 + wn) / PART;

			leave_squares<S>(acc, w.n0 + wn == 0 ? all + CLASSES * S::TILE + wm : nullptr, part, tiles_n, g.m - w.m0 - wm, g.n - w.n0 - wn);
		}
	}
}

template <typename S> cudaError_t launch(struct cuda_exec *c, const struct gemm_group *g)
{
	const int most = 2 * c->multiprocessors, tiles = tiles_of(g);
	const cudaError_t e = cuda_allow_shared(c, k_weight<S>);

	return e == cudaSuccess ? cuda_launch(c, k_weight<S>, dim3(tiles < most ? tiles : most), S::THREADS, S::BYTES, *g) : e;
}

typedef shape<128> large;
enum { FEW = 64 }; /* the tile of weight_few.cu */

} // namespace

int weight_takes(struct cuda_exec *c, struct gemm_group *g)
{
	const size_t shared = cuda_shared_most(c);
	const int rows = cuda_wide_asked();

	if (c->dims.precision != FH_PRECISION_BF16 || c->sync || !cuda_wide(1))
		return 0;
	g->trials = c->dims.P;
	count_tiles(g, large::TILE);
	if (large::BYTES <= shared && (rows > 1 ? rows > 16 : tiles_of(g) >= c->multiprocessors))
		return large::TILE;
	return weight_few_takes(c, g) ? FEW : 0;
}

int weight_launch(struct cuda_exec *c, struct gemm_group *g, int tile, struct fh_status *st)
{
	const int asked = cuda_wide_asked();

	if (tile == large::TILE && (asked <= 1 || asked > GROUP_ASKED) && weight_group_takes(c, g))
		return weight_group(c, g, st);
	if (tile == FEW)
		return weight_few(c, g, st);
	CUDA_TRY(launch<large>(c, g));
	return 0;
}
