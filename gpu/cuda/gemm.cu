/* The grouped product kernel; see gemm.cuh. Tensor cores for BF16 (mma m16n8k16) and TF32 (m16n8k8), FMA for F32.
 *
 * One block computes one tile of one product of one trial: tiles of A and B are staged in shared memory in their stored
 * orientation (two stages, cp.async where rows allow 16-byte loads), fragments are read from there, transposed where the
 * operand is stored with k as its rows. The order of the sum over k depends on nothing but the shapes. */
#include <cuda_bf16.h>
#include "gpu/cuda/gemm.cuh"

namespace {

enum { BK = 64 };

/* Warps of a block over a tile: 2 x 2 up to 64 x 64, 2 x 4 beyond. */
template <int BN> struct team { enum { M = 2, N = BN > 64 ? 4 : 2, THREADS = 32 * M * N }; };

template <typename T> struct tile_k { enum { PAD = 16 / sizeof(T) }; }; /* 16 bytes keep rows aligned and spread banks */

/* 16 bytes to shared memory of which the first `valid` come from g, the rest are zeros. */
__device__ __forceinline__ void copy16(void *s, const void *g, int valid)
{
	unsigned a = (unsigned)__cvta_generic_to_shared(s);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(a), "l"(g), "r"(valid));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

/* One operand as a block sees it: `rows` x `cols` from (row0, col) of a matrix whose rows lie ld apart. */
template <typename T> struct operand { const T *p; int ld; bool wide; };

/* ROWS x COLS (columns contiguous in memory) into shared memory with row length LDS; what lies outside [row_end,
 * col_end) becomes zero. Rows that start on 16-byte boundaries are asked for 16 bytes at a time. */
template <typename T, int ROWS, int COLS, int LDS, int THREADS>
__device__ __forceinline__ void stage(T *s, operand<T> g, int row0, int row_end, int col0, int col_end)
{
	enum { V = 16 / sizeof(T), PER_ROW = COLS / V, STEPS = (ROWS * PER_ROW + THREADS - 1) / THREADS };
	if (g.wide) {
#pragma unroll
		for (int i = 0; i < STEPS; i++) {
			const int at = threadIdx.x + i * THREADS, r = at / PER_ROW, c = at % PER_ROW * V;
			if (ROWS * PER_ROW % THREADS && at >= ROWS * PER_ROW)
				break;
			const int left = (col_end - col0 - c) * (int)sizeof(T);
			const bool in = row0 + r < row_end && left > 0;
			copy16(s + r * LDS + c, in ? g.p + (size_t)(row0 + r) * g.ld + col0 + c : g.p, in ? min(left, 16) : 0);
		}
		return;
	}
#pragma unroll 1
	for (int at = threadIdx.x; at < ROWS * COLS; at += THREADS) {
		const int r = at / COLS, c = at % COLS;
		s[r * LDS + c] = row0 + r < row_end && col0 + c < col_end ? g.p[(size_t)(row0 + r) * g.ld + col0 + c] : (T)0.f;
	}
}

__device__ __forceinline__ void ldmatrix4(unsigned r[4], const void *p)
{
	unsigned a = (unsigned)__cvta_generic_to_shared(p);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ void ldmatrix4t(unsigned r[4], const void *p)
{
	unsigned a = (unsigned)__cvta_generic_to_shared(p);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ void mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_tf32(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned to_tf32(float x)
{
	unsigned u;
	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
	return u;
}

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
					ldmatrix4t(a[i], sa + (k + (lane & 7) + (lane >> 4) * 8) * LDA + m + ((lane >> 3) & 1) * 8);
				else
					ldmatrix4(a[i], sa + (m + (lane & 15)) * LDA + k + (lane >> 4) * 8);
			}
#pragma unroll
			for (int j = 0; j < NI / 2; j++) {
				int n = wn + j * 16;
				if (BT)
					ldmatrix4t(b[j], sb + (k + (lane & 15)) * LDB + n + (lane >> 4) * 8);
				else
					ldmatrix4(b[j], sb + (n + (lane & 7) + (lane >> 4) * 8) * LDB + k + ((lane >> 3) & 1) * 8);
			}
#pragma unroll
			for (int i = 0; i < MI; i++)
#pragma unroll
				for (int j = 0; j < NI; j++)
					mma_bf16(acc[i][j], a[i], b[j / 2][(j & 1) * 2], b[j / 2][(j & 1) * 2 + 1]);
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
					a[i][0] = to_tf32(A(m, k + t)), a[i][1] = to_tf32(A(m + 8, k + t));
					a[i][2] = to_tf32(A(m, k + t + 4)), a[i][3] = to_tf32(A(m + 8, k + t + 4));
				}
#pragma unroll
				for (int j = 0; j < NI; j++) {
					int n = wn + j * 8 + g;
					b[j][0] = to_tf32(B(n, k + t)), b[j][1] = to_tf32(B(n, k + t + 4));
				}
#pragma unroll
				for (int i = 0; i < MI; i++)
#pragma unroll
					for (int j = 0; j < NI; j++)
						mma_tf32(acc[i][j], a[i], b[j][0], b[j][1]);
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

__device__ __forceinline__ float rectify(float v) { return v > 0.f ? v : (v == v ? 0.f : v); } /* NaN stays visible to the guard */

/* What a tile's results go through, in registers: fetched from the launch's description once. */
template <typename T> struct epilogue {
	char *c;
	const T *mask;
	const float *bias;
	int m, n, ldc, ldmask;
	bool relu, f32;
};

/* Two neighbouring columns n, n + 1 of row m (n + 1 may lie outside). */
template <typename T> __device__ __forceinline__ void finish(const epilogue<T> &e, int m, int n, float v0, float v1)
{
	const bool two = n + 1 < e.n;
	const size_t at = (size_t)m * e.ldc + n;

	if (e.relu)
		v0 = rectify(v0), v1 = rectify(v1);
	if (e.mask) {
		const T *mask = e.mask + (size_t)m * e.ldmask + n;
		v0 = (float)mask[0] > 0.f ? v0 : 0.f;
		v1 = two && (float)mask[1] > 0.f ? v1 : 0.f;
	}
	if (e.f32) {
		float *to = (float *)e.c + at;
		if (two && ((size_t)to & 7) == 0) {
			*(float2 *)to = make_float2(v0, v1);
		} else {
			to[0] = v0;
			if (two)
				to[1] = v1;
		}
	} else {
		__nv_bfloat16 *to = (__nv_bfloat16 *)e.c + at;
		if (two && ((size_t)to & 3) == 0) {
			*(__nv_bfloat162 *)to = __floats2bfloat162_rn(v0, v1);
		} else {
			to[0] = __float2bfloat16(v0);
			if (two)
				to[1] = __float2bfloat16(v1);
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
__device__ void leave_sums(const struct gemm &g, float (*acc)[NI][4], const float *sum, bool column, int index, size_t slice_offset, int m0, int m, int n,
                           float *shared)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z;
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
__device__ __forceinline__ void tile(const struct gemm &g, int index, int slice_k, size_t slice_offset, T *shared)
{
	typedef ring<T, BM, BN> R;
	enum { STAGES = R::STAGES, LDA = (AT ? BM : BK) + R::PAD, LDB = (BT ? BN : BK) + R::PAD };
	enum { WARPS_N = team<BN>::N, THREADS = team<BN>::THREADS, MI = BM / team<BN>::M / 16, NI = BN / WARPS_N / 8 };
	const int m0 = index / g.tiles_n * BM, n0 = index % g.tiles_n * BN, z = blockIdx.z, gm = g.m, gn = g.n, segments = g.segments;
	const int warp = threadIdx.x / 32, wm = warp / WARPS_N * (BM / team<BN>::M), wn = warp % WARPS_N * (BN / WARPS_N);
	const bool early = g.early;
	const size_t b_trial = z * g.b_trial;
	operand<T> a = {(const T *)((const char *)g.a + z * g.a_trial), g.lda, false}, b = {nullptr, g.ldb, false};
	a.wide = a.ld * sizeof(T) % 16 == 0 && ((size_t)a.p & 15) == 0;
	const bool wide_b = b.ld * sizeof(T) % 16 == 0;
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
	/* The segment that a step lies in: most products have one, so it is looked for only when a step leaves it. Both
	 * operands of a step are asked for one after the other or, early, all of B first. */
	struct where { int seg, first, k, a; const T *b; };
	auto enter = [&](int seg, int first) -> where { return {seg, first, g.seg[seg].k, g.seg[seg].a, (const T *)((const char *)g.seg[seg].b + b_trial)}; };
	auto reach = [&](where &w, int step) {
		while (step - w.first >= (w.k + BK - 1) / BK)
			w = enter(w.seg + 1, w.first + (w.k + BK - 1) / BK);
	};
	auto load_a = [&](where &w, int step) {
		reach(w, step + step0);
		const int k0 = (step + step0 - w.first) * BK;
		operand<T> from = a;
		T *to = sa + step % STAGES * R::A;
		if (AT) {
			from.p += (size_t)w.a * a.ld;
			stage<T, BK, BM, LDA, THREADS>(to, from, k0, w.k, m0, gm);
		} else {
			from.p += w.a;
			from.wide = a.wide && w.a * sizeof(T) % 16 == 0;
			stage<T, BM, BK, LDA, THREADS>(to, from, m0, gm, k0, w.k);
		}
	};
	auto load_b = [&](where &w, int step) {
		reach(w, step + step0);
		const int k0 = (step + step0 - w.first) * BK;
		const operand<T> from = {w.b, b.ld, wide_b && ((size_t)w.b & 15) == 0};
		T *to = sb + step % STAGES * R::B;
		if (BT)
			stage<T, BK, BN, LDB, THREADS>(to, from, k0, w.k, n0, gn);
		else
			stage<T, BN, BK, LDB, THREADS>(to, from, n0, gn, k0, w.k);
	};
	where wa = enter(0, 0), wb = wa;
	if (early)
		for (int step = 0; step < STAGES && step < total; step++)
			load_b(wb, step);
	cuda_wait_before();
	cuda_let_next();
	for (int step = 0; step < STAGES; step++) { /* every stage is a group, empty ones included, so that waits count alike */
		if (step < total) {
			if (!early)
				load_b(wb, step);
			load_a(wa, step);
		}
		copy_commit();
	}
	const bool column = AT && g.column && n0 == 0;
	float sum[BM / 32] = {};
	for (int step = 0; step < total; step++) {
		const int at = step % STAGES;

		copy_wait<STAGES - 1>();
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
			load_a(wa, step + STAGES);
			load_b(wb, step + STAGES);
		}
		copy_commit();
	}

	const int row = m0 + wm + (threadIdx.x & 31) / 4, col = n0 + wn + (threadIdx.x & 3) * 2;
	const epilogue<T> e = {(char *)g.c + z * g.c_trial + slice_offset, g.mask ? (const T *)((const char *)g.mask + z * g.mask_trial) : nullptr,
	                       g.bias ? (const float *)((const char *)g.bias + z * g.bias_trial) : nullptr, gm, gn, g.ldc, g.ldmask,
	                       g.relu != 0, g.c_f32 || sizeof(T) == 4};
#pragma unroll
	for (int j = 0; j < NI; j++) {
		const int n = col + j * 8;
		const float b0 = e.bias && n < gn ? e.bias[n] : 0.f, b1 = e.bias && n + 1 < gn ? e.bias[n + 1] : 0.f;
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				if (row + i * 16 + half * 8 < gm && n < gn)
					finish(e, row + i * 16 + half * 8, n, acc[i][j][half * 2] + b0, acc[i][j][half * 2 + 1] + b1);
	}
	if (AT && g.column)
		leave_sums<MI, NI, BM>(g, acc, sum, column, index, slice_offset, m0, row, col, (float *)shared);
}

template <int MODE, typename T, int BM, int BN>
__global__ void __launch_bounds__(team<BN>::THREADS) k_gemm_group(const __grid_constant__ struct gemm_group group)
{
	extern __shared__ __align__(16) char shared[];
	int p = 0;
	while (p + 1 < group.count && (int)blockIdx.x >= group.first[p + 1])
		p++;
	const struct gemm &g = group.g[p];
	const int index = blockIdx.x - group.first[p];
	const size_t slice_offset = blockIdx.y * group.slice_bytes;
	if (!g.a_t && !g.b_t)
		tile<MODE, T, false, false, BM, BN>(g, index, group.slice_k, slice_offset, (T *)shared);
	else if (!g.a_t)
		tile<MODE, T, false, true, BM, BN>(g, index, group.slice_k, slice_offset, (T *)shared);
	else if constexpr (BN <= 64)
		tile<MODE, T, true, true, BM, BN>(g, index, group.slice_k, slice_offset, (T *)shared);
}

template <int MODE, typename T, int BM, int BN>
cudaError_t launch_tiles(struct cuda_exec *c, const struct gemm_group *g, dim3 grid)
{
	enum { BYTES = ring<T, BM, BN>::BYTES };
	static const cudaError_t ready =
		cudaFuncSetAttribute(k_gemm_group<MODE, T, BM, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
	if (ready != cudaSuccess)
		return ready;
	return cuda_launch(c, k_gemm_group<MODE, T, BM, BN>, grid, team<BN>::THREADS, BYTES, *g);
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
cudaError_t launch_mode(struct cuda_exec *c, const struct gemm_group *g, int tile, dim3 grid)
{
	if constexpr (MODE == GEMM_BF16)
		if (tile == 128)
			return launch_tiles<MODE, T, 128, 128>(c, g, grid);
	return tile == 32 ? launch_tiles<MODE, T, 32, 32>(c, g, grid) : launch_tiles<MODE, T, 64, 64>(c, g, grid);
}

} // namespace

int gemm_launch(struct cuda_exec *c, struct gemm_group *g, int tile, const char *what, struct fh_status *st)
{
	const int P = c->dims.P, slices = g->slices > 1 ? g->slices : 1;
	cudaError_t e;

	/* Large tiles once they alone fill the machine, small ones to spread a small batch over it. */
	if (!tile)
		tile = c->dims.precision == FH_PRECISION_BF16 && c->wide && (long)count_tiles(g, 128) * P >= 264 ? 128 :
		       (long)count_tiles(g, 64) * P >= 264 ? 64 : 32;
	const dim3 grid(count_tiles(g, tile), slices, P);

	if (c->dims.precision == FH_PRECISION_BF16)
		e = launch_mode<GEMM_BF16, __nv_bfloat16>(c, g, tile, grid);
	else if (c->dims.precision == FH_PRECISION_TF32)
		e = launch_mode<GEMM_TF32, float>(c, g, tile, grid);
	else
		e = launch_mode<GEMM_F32, float>(c, g, tile, grid);
	return e == cudaSuccess ? 0 : cuda_fail(st, e, what);
}
