/* The grouped product kernel; see gemm.cuh. Tensor cores for BF16 (mma m16n8k16) and TF32 (m16n8k8), FMA for F32.
 *
 * One block computes one tile of one product of one trial: tiles of A and B are staged in shared memory in their stored
 * orientation (two stages, cp.async where rows allow 16-byte loads), fragments are read from there, transposed where the
 * operand is stored with k as its rows. The order of the sum over k depends on nothing but the shapes. */
#include <cuda_bf16.h>
#include "gpu/cuda/gemm.cuh"
#include "gpu/cuda/ptx.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

enum { BK = 64 };

/* Warps of a block over a tile: 2 x 2 up to 64 x 64, 2 x 4 beyond. */
template <int BN> struct crew { enum { M = 2, N = BN > 64 ? 4 : 2, THREADS = 32 * M * N }; };

template <typename T> struct tile_k { enum { PAD = 16 / sizeof(T) }; }; /* 16 bytes keep rows aligned and spread banks */

/* How a thread brings its share of an operand's tiles into shared memory: ROWS x COLS (columns contiguous in memory) with
 * row length LDS there. Everything that does not change from step to step is worked out once: the code of a step is a
 * few instructions, which matters more than anything else for kernels that run only microseconds. */
template <typename T, int ROWS, int COLS, int LDS, int THREADS> struct loader {
	enum { V = 16 / sizeof(T), PER_ROW = COLS / V, STEPS = (ROWS * PER_ROW + THREADS - 1) / THREADS, DOWN = THREADS / PER_ROW };
	static_assert(THREADS % PER_ROW == 0 && ROWS % DOWN == 0, "a thread keeps its column");
	const T *p;
	int ld, row, col;
	bool wide;

	__device__ __forceinline__ void init(const T *base, int stride)
	{
		p = base;
		ld = stride;
		row = threadIdx.x / PER_ROW;
		col = threadIdx.x % PER_ROW * V;
		wide = stride * sizeof(T) % 16 == 0 && ((size_t)base & 15) == 0;
	}
	/* Rows [row0, ..) below row_end, columns [col0, ..) below col_end; zeros elsewhere. */
	__device__ __forceinline__ void load(T *to, int row0, int row_end, int col0, int col_end) const
	{
		if (wide) {
			const int left = (col_end - col0 - col) * (int)sizeof(T), bytes = left <= 0 ? 0 : left < 16 ? left : 16;
			const T *from = p + (size_t)(row0 + row) * ld + col0 + col;
			const ptx_shared s = ptx_shared_at(to + row * LDS + col);
#pragma unroll
			for (int i = 0; i < STEPS; i++) {
				const bool in = row0 + row + i * DOWN < row_end && bytes;
				ptx_copy16(s + i * DOWN * LDS * (int)sizeof(T), in ? from + (size_t)i * DOWN * ld : p, in ? bytes : 0);
			}
			return;
		}
#pragma unroll 1
		for (int at = threadIdx.x; at < ROWS * COLS; at += THREADS) {
			const int r = at / COLS, c = at % COLS;
			to[r * LDS + c] = row0 + r < row_end && col0 + c < col_end ? p[(size_t)(row0 + r) * ld + col0 + c] : (T)0.f;
		}
	}
};

/* One warp's share of a BK step: WM x WN of the tile, at (wm, wn) in it. acc[i][j] is an m16n8 fragment. */
template <int MODE, typename T, bool AT, bool BT, int MI, int NI, int LDA, int LDB>
__device__ __forceinline__ void multiply(float (*acc)[NI][4], const T *sa, const T *sb, int wm, int wn)
{
	const int lane = threadIdx.x & 31;
	if constexpr (MODE == GEMM_BF16) {
#pragma unroll
		for (int k = 0; k < BK; k += 16) {
			unsigned a[MI][4], b[NI / 2][4];
#pragma unroll
			for (int i = 0; i < MI; i++) {
				int m = wm + i * 16;
				if (AT)
					ptx_ldmatrix4t(a[i], sa + (k + (lane & 7) + (lane >> 4) * 8) * LDA + m + ((lane >> 3) & 1) * 8);
				else
					ptx_ldmatrix4(a[i], sa + (m + (lane & 15)) * LDA + k + (lane >> 4) * 8);
			}
#pragma unroll
			for (int j = 0; j < NI / 2; j++) {
				int n = wn + j * 16;
				if (BT)
					ptx_ldmatrix4t(b[j], sb + (k + (lane & 15)) * LDB + n + (lane >> 4) * 8);
				else
					ptx_ldmatrix4(b[j], sb + (n + (lane & 7) + (lane >> 4) * 8) * LDB + k + ((lane >> 3) & 1) * 8);
			}
#pragma unroll
			for (int i = 0; i < MI; i++)
#pragma unroll
				for (int j = 0; j < NI; j++)
					ptx_mma_bf16(acc[i][j], a[i], b[j / 2][(j & 1) * 2], b[j / 2][(j & 1) * 2 + 1]);
		}
	} else {
		auto A = [&](int m, int k) { return (float)(AT ? sa[k * LDA + m] : sa[m * LDA + k]); };
		auto B = [&](int n, int k) { return (float)(BT ? sb[k * LDB + n] : sb[n * LDB + k]); };
		const int g = lane >> 2, t = lane & 3;
		if constexpr (MODE == GEMM_TF32) {
#pragma unroll
			for (int k = 0; k < BK; k += 8) {
				unsigned a[MI][4], b[NI][2];
#pragma unroll
				for (int i = 0; i < MI; i++) {
					int m = wm + i * 16 + g;
					a[i][0] = ptx_tf32(A(m, k + t)), a[i][1] = ptx_tf32(A(m + 8, k + t));
					a[i][2] = ptx_tf32(A(m, k + t + 4)), a[i][3] = ptx_tf32(A(m + 8, k + t + 4));
				}
#pragma unroll
				for (int j = 0; j < NI; j++) {
					int n = wn + j * 8 + g;
					b[j][0] = ptx_tf32(B(n, k + t)), b[j][1] = ptx_tf32(B(n, k + t + 4));
				}
#pragma unroll
				for (int i = 0; i < MI; i++)
#pragma unroll
					for (int j = 0; j < NI; j++)
						ptx_mma_tf32(acc[i][j], a[i], b[j][0], b[j][1]);
			}
		} else {
#pragma unroll 4
			for (int k = 0; k < BK; k++) {
				float a[MI][2], b[NI][2];
#pragma unroll
				for (int i = 0; i < MI; i++)
					a[i][0] = A(wm + i * 16 + g, k), a[i][1] = A(wm + i * 16 + g + 8, k);
#pragma unroll
				for (int j = 0; j < NI; j++)
					b[j][0] = B(wn + j * 8 + 2 * t, k), b[j][1] = B(wn + j * 8 + 2 * t + 1, k);
#pragma unroll
				for (int i = 0; i < MI; i++)
#pragma unroll
					for (int j = 0; j < NI; j++) {
						acc[i][j][0] = fmaf(a[i][0], b[j][0], acc[i][j][0]);
						acc[i][j][1] = fmaf(a[i][0], b[j][1], acc[i][j][1]);
						acc[i][j][2] = fmaf(a[i][1], b[j][0], acc[i][j][2]);
						acc[i][j][3] = fmaf(a[i][1], b[j][1], acc[i][j][3]);
					}
			}
		}
	}
}

__device__ __forceinline__ void store2(float *p, float a, float b) { *(float2 *)p = make_float2(a, b); }
__device__ __forceinline__ void store2(__nv_bfloat16 *p, float a, float b) { *(__nv_bfloat162 *)p = __floats2bfloat162_rn(a, b); }
__device__ __forceinline__ float2 load2(const float *p) { return *(const float2 *)p; }
__device__ __forceinline__ float2 load2(const __nv_bfloat16 *p) { return __bfloat1622float2(*(const __nv_bfloat162 *)p); }
__device__ __forceinline__ void store1(float *p, float v) { *p = v; }
__device__ __forceinline__ void store1(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }

/* The tile's results from the fragments to memory: bias and lower bound are in, C is where column `col` of row `row`
 * goes. Columns come in pairs where rows allow it. MASK: kept where mask > 0. */
template <bool MASK, int MI, int NI, typename C, typename T>
__device__ __forceinline__ void store_tile(float (*acc)[NI][4], C *c, const T *mask, int ldc, int ldmask, int row, int col, int m, int n, bool pairs)
{
#pragma unroll
	for (int i = 0; i < 2 * MI; i++) {
		const int r = row + i * 8;
		if (r >= m)
			break;
		C *to = c + (size_t)r * ldc + col;
		const T *keep = MASK ? mask + (size_t)r * ldmask + col : nullptr;
#pragma unroll
		for (int j = 0; j < NI; j++) {
			float v0 = acc[i / 2][j][i % 2 * 2], v1 = acc[i / 2][j][i % 2 * 2 + 1];
			if (pairs) {
				if (col + j * 8 < n) {
					if (MASK) {
						const float2 k = load2(keep + j * 8);
						v0 = k.x > 0.f ? v0 : 0.f, v1 = k.y > 0.f ? v1 : 0.f;
					}
					store2(to + j * 8, v0, v1);
				}
			} else {
				if (col + j * 8 < n)
					store1(to + j * 8, MASK && !((float)keep[j * 8] > 0.f) ? 0.f : v0);
				if (col + j * 8 + 1 < n)
					store1(to + j * 8 + 1, MASK && !((float)keep[j * 8 + 1] > 0.f) ? 0.f : v1);
			}
		}
	}
}

/* Shared memory of one stage of the ring, in elements: the larger of both orientations of each operand. */
template <typename T, int BM, int BN> struct ring {
	enum { STAGES = sizeof(T) == 4 ? 2 : BN > 64 ? 3 : 4 }; /* F32 tiles of 64 must fit into the 99 KB of an sm_86 block */
	enum { PAD = tile_k<T>::PAD };
	enum { A_ROW = BM * (BK + PAD), A_COL = BK * (BM + PAD), A = A_ROW > A_COL ? A_ROW : A_COL };
	enum { B_ROW = BN * (BK + PAD), B_COL = BK * (BN + PAD), B = B_ROW > B_COL ? B_ROW : B_COL };
	enum { BYTES = (A + B) * STAGES * sizeof(T) };
};

/* The column sums of a tile (a bias gradient), and the sum of squares of all that the tile wrote, in a fixed order. */
template <int MI, int NI, int BM>
__device__ void leave_sums(const struct gemm &g, float (*acc)[NI][4], const float *sum, bool column, int index, int z, size_t slice_offset, int m0, int m, int n,
                           float *shared)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
	double square = 0.0, *total = (double *)shared;
	float *rows = shared + 8; /* [4][BM] behind the four warps' totals */

#pragma unroll
	for (int i = 0; i < MI; i++)
#pragma unroll
		for (int j = 0; j < NI; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				if (m + i * 16 + (e >> 1) * 8 < g.m && n + j * 8 + (e & 1) < g.n)
					square += (double)acc[i][j][e] * acc[i][j][e];
	__syncthreads(); /* the ring is free now */
	if (column) {
#pragma unroll
		for (int e = 0; e < BM / 32; e++)
			rows[warp * BM + e * 32 + lane] = sum[e];
		__syncthreads();
		if (threadIdx.x < BM && m0 + (int)threadIdx.x < g.m) {
			const float b = (rows[threadIdx.x] + rows[BM + threadIdx.x]) + (rows[2 * BM + threadIdx.x] + rows[3 * BM + threadIdx.x]);

			((float *)((char *)g.column + z * g.column_trial + slice_offset))[m0 + threadIdx.x] = b;
			square += (double)b * b;
		}
	}
	if (!g.part)
		return;
#pragma unroll
	for (int o = 16; o; o >>= 1)
		square += __shfl_xor_sync(0xffffffffu, square, o);
	if (lane == 0)
		total[warp] = square;
	__syncthreads();
	if (threadIdx.x == 0)
		((double *)((char *)g.part + z * g.part_trial))[index] = (total[0] + total[1]) + (total[2] + total[3]);
}

/* One tile of one product. A ring of STAGES steps of BK is in flight, so a sum of up to STAGES * BK elements is asked for
 * as a whole before the first product waits. With `early`, B (weights, which the launch before does not write) is asked
 * for before that launch is known to be complete. */
template <int MODE, typename T, bool AT, bool BT, int BM, int BN>
__device__ __forceinline__ void tile(const struct gemm &g, int index, int z, int slice_k, size_t slice_offset, T *shared)
{
	typedef ring<T, BM, BN> R;
	enum { STAGES = R::STAGES, LDA = (AT ? BM : BK) + R::PAD, LDB = (BT ? BN : BK) + R::PAD };
	enum { WARPS_N = crew<BN>::N, THREADS = crew<BN>::THREADS, MI = BM / crew<BN>::M / 16, NI = BN / WARPS_N / 8 };
	const int m0 = index / g.tiles_n * BM, n0 = index % g.tiles_n * BN, gm = g.m, gn = g.n, segments = g.segments;
	const int warp = threadIdx.x / 32, wm = warp / WARPS_N * (BM / crew<BN>::M), wn = warp % WARPS_N * (BN / WARPS_N);
	const bool early = g.early;
	const size_t b_trial = z * g.b_trial;
	loader<T, AT ? BK : BM, AT ? BM : BK, LDA, THREADS> a;
	loader<T, BT ? BK : BN, BT ? BN : BK, LDB, THREADS> b;
	const T *const a_base = (const T *)((const char *)g.a + z * g.a_trial);
	T *sa = shared, *sb = shared + R::A * STAGES;
	float acc[MI][NI][4] = {};

	/* this plane's part of the sum: steps [step0, step0 + total) */
	int total = 0, step0 = 0;
	for (int i = 0; i < segments; i++)
		total += (g.seg[i].k + BK - 1) / BK;
	if (slice_k) {
		step0 = blockIdx.y * (slice_k / BK);
		total = min(total - step0, slice_k / BK);
	}
	/* Each operand walks through the segments of the sum: seg, the first step of it, its length. */
	int seg_a = -1, seg_b = -1, first_a = 0, first_b = 0, steps_a = 0, steps_b = 0, k_a = 0, k_b = 0;
	auto load_a = [&](int step) {
		while (step - first_a >= steps_a) {
			first_a += steps_a;
			seg_a++;
			k_a = g.seg[seg_a].k;
			steps_a = (k_a + BK - 1) / BK;
			a.init(a_base + (size_t)g.seg[seg_a].a * (AT ? g.lda : 1), g.lda);
		}
		T *to = sa + (step - step0) % STAGES * R::A;
		if (AT)
			a.load(to, (step - first_a) * BK, k_a, m0, gm);
		else
			a.load(to, m0, gm, (step - first_a) * BK, k_a);
	};
	auto load_b = [&](int step) {
		while (step - first_b >= steps_b) {
			first_b += steps_b;
			seg_b++;
			k_b = g.seg[seg_b].k;
			steps_b = (k_b + BK - 1) / BK;
			b.init((const T *)((const char *)g.seg[seg_b].b + b_trial), g.ldb);
		}
		T *to = sb + (step - step0) % STAGES * R::B;
		if (BT)
			b.load(to, (step - first_b) * BK, k_b, n0, gn);
		else
			b.load(to, n0, gn, (step - first_b) * BK, k_b);
	};
	if (early)
#pragma unroll 1
		for (int step = 0; step < STAGES && step < total; step++)
			load_b(step0 + step);
	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int step = 0; step < STAGES; step++) { /* every stage is a group, empty ones included, so that waits count alike */
		if (step < total) {
			if (!early)
				load_b(step0 + step);
			load_a(step0 + step);
		}
		ptx_copy_commit();
	}
	const bool column = AT && g.column && n0 == 0;
	float sum[BM / 32] = {};
#pragma unroll 1
	for (int step = 0; step < total; step++) {
		const int at = step % STAGES;

		ptx_copy_wait<STAGES - 1>();
		__syncthreads();
		if (column) { /* warp w adds rows 16w..16w+15 of each step */
			const T *from = sa + at * R::A + warp * (BK / 4) * LDA + (threadIdx.x & 31);
#pragma unroll
			for (int k = 0; k < BK / 4; k++)
#pragma unroll
				for (int e = 0; e < BM / 32; e++)
					sum[e] += (float)from[k * LDA + e * 32];
		}
		multiply<MODE, T, AT, BT, MI, NI, LDA, LDB>(acc, sa + at * R::A, sb + at * R::B, wm, wn);
		if (step + STAGES < total) {
			__syncthreads();
			load_a(step0 + step + STAGES);
			load_b(step0 + step + STAGES);
		}
		ptx_copy_commit();
	}

	const int row = m0 + wm + (threadIdx.x & 31) / 4, col = n0 + wn + (threadIdx.x & 3) * 2;
	const float *bias = g.bias ? (const float *)((const char *)g.bias + z * g.bias_trial) : nullptr;
	const float lo = g.relu ? 0.f : -INFINITY;
	if (bias) {
#pragma unroll
		for (int j = 0; j < NI; j++) {
			const int n = col + j * 8;
			const float b0 = n < gn ? bias[n] : 0.f, b1 = n + 1 < gn ? bias[n + 1] : 0.f;
#pragma unroll
			for (int i = 0; i < MI; i++)
#pragma unroll
				for (int k = 0; k < 4; k++)
					acc[i][j][k] = ptx_max_nan(acc[i][j][k] + (k & 1 ? b1 : b0), lo); /* NaN stays: visible to the guard */
		}
	}
	char *c = (char *)g.c + z * g.c_trial + slice_offset;
	/* store_n: columns that may be written, zeros behind n: then pairs need no care at the end */
	const int ldc = g.ldc, store_n = g.store_n > gn ? g.store_n : gn;
	const bool f32 = g.c_f32 || sizeof(T) == 4, pairs = store_n % 2 == 0 && ldc % 2 == 0 && ((size_t)c & (f32 ? 7 : 3)) == 0;
	if (g.mask)
		store_tile<true, MI, NI>(acc, (T *)c, (const T *)((const char *)g.mask + z * g.mask_trial), ldc, g.ldmask, row, col, gm, store_n,
		                         pairs && g.ldmask % 2 == 0);
	else if (f32)
		store_tile<false, MI, NI>(acc, (float *)c, (const T *)nullptr, ldc, 0, row, col, gm, store_n, pairs);
	else
		store_tile<false, MI, NI>(acc, (T *)c, (const T *)nullptr, ldc, 0, row, col, gm, store_n, pairs);
	if (AT && g.column)
		leave_sums<MI, NI, BM>(g, acc, sum, column, index, z, slice_offset, m0, row, col, (float *)shared);
}

template <int MODE, typename T, int BM, int BN>
__global__ void __launch_bounds__(crew<BN>::THREADS, BN > 64 ? 2 : 1) k_gemm_group(const __grid_constant__ struct gemm_group group)
{
	PTX_SHARED(char, shared);
	/* Blocks go from tile to tile: code and descriptions stay warm, and the tiles of all trials are one list. */
#pragma unroll 1
	for (int id = blockIdx.x; id < group.tiles * group.trials; id += gridDim.x) {
		const int z = id / group.tiles, at = id % group.tiles;
		int p = 0;
		while (p + 1 < group.count && at >= group.first[p + 1])
			p++;
		const struct gemm &g = group.g[p];
		const int index = at - group.first[p];
		const size_t slice_offset = blockIdx.y * group.slice_bytes;
		if (id != (int)blockIdx.x)
			__syncthreads(); /* the ring of the tile before is free */
		if (!g.a_t && !g.b_t)
			tile<MODE, T, false, false, BM, BN>(g, index, z, group.slice_k, slice_offset, (T *)shared);
		else if (!g.a_t)
			tile<MODE, T, false, true, BM, BN>(g, index, z, group.slice_k, slice_offset, (T *)shared);
		else if constexpr (BN <= 64)
			tile<MODE, T, true, true, BM, BN>(g, index, z, group.slice_k, slice_offset, (T *)shared);
	}
}

template <int MODE, typename T, int BM, int BN>
int launch_tiles(struct cuda_exec *c, const struct gemm_group *g, int slices, const char *what, struct fh_status *st)
{
	enum { BYTES = ring<T, BM, BN>::BYTES };
	int resident = 0;

	CUDA_TRY(cuda_allow_shared(c, k_gemm_group<MODE, T, BM, BN>));
	CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, k_gemm_group<MODE, T, BM, BN>, crew<BN>::THREADS, BYTES));
	const int tiles = g->tiles * g->trials, most = max(resident, 1) * c->multiprocessors;
	const dim3 grid(tiles * slices > most ? (most + slices - 1) / slices : tiles, slices);
	const cudaError_t e = cuda_launch(c, k_gemm_group<MODE, T, BM, BN>, grid, crew<BN>::THREADS, BYTES, *g);

	return e == cudaSuccess ? 0 : cuda_fail(st, e, what);
}

int count_tiles(struct gemm_group *g, int tile)
{
	int tiles = 0;

	for (int i = 0; i < g->count; i++) {
		g->first[i] = tiles;
		g->g[i].tiles_n = cuda_tiles(g->g[i].n, tile);
		tiles += cuda_tiles(g->g[i].m, tile) * g->g[i].tiles_n;
	}
	return tiles;
}

template <int MODE, typename T>
int launch_mode(struct cuda_exec *c, const struct gemm_group *g, int tile, int slices, const char *what, struct fh_status *st)
{
	if constexpr (MODE == GEMM_BF16)
		if (tile == 128)
			return launch_tiles<MODE, T, 128, 128>(c, g, slices, what, st);
	return tile == 32 ? launch_tiles<MODE, T, 32, 32>(c, g, slices, what, st) : launch_tiles<MODE, T, 64, 64>(c, g, slices, what, st);
}

} // namespace

int gemm_launch(struct cuda_exec *c, struct gemm_group *g, int tile, const char *what, struct fh_status *st)
{
	const int P = g->trials ? g->trials : c->dims.P, slices = g->slices > 1 ? g->slices : 1;
	const bool large = c->dims.precision == FH_PRECISION_BF16 && ring<__nv_bfloat16, 128, 128>::BYTES <= cuda_shared_most(c);

	/* Large tiles once they alone fill the machine, small ones to spread a small batch over it. */
	if (!tile)
		tile = large && (long)count_tiles(g, 128) * P >= 264 ? 128 : (long)count_tiles(g, 64) * P >= 264 ? 64 : 32;
	g->tiles = count_tiles(g, tile);
	g->trials = P;

	if (c->dims.precision == FH_PRECISION_BF16)
		return launch_mode<GEMM_BF16, __nv_bfloat16>(c, g, tile, slices, what, st);
	if (c->dims.precision == FH_PRECISION_TF32)
		return launch_mode<GEMM_TF32, float>(c, g, tile, slices, what, st);
	return launch_mode<GEMM_F32, float>(c, g, tile, slices, what, st);
}
