/* The grouped product kernel; see gemm.cuh. Tensor cores for BF16 (mma m16n8k16) and TF32 (m16n8k8), FMA for F32.
 *
 * One block computes one tile of one product of one trial: tiles of A and B are staged in shared memory in their stored
 * orientation (two stages, cp.async where rows allow 16-byte loads), fragments are read from there, transposed where the
 * operand is stored with k as its rows. The order of the sum over k depends on nothing but the shapes. */
#include <cuda_bf16.h>
#include "gpu/cuda/gemm.cuh"

namespace {

enum { THREADS = 128, BK = 64 };

template <typename T> struct tile_k { enum { PAD = 16 / sizeof(T) }; }; /* 16 bytes keep rows aligned and spread banks */

__device__ __forceinline__ void copy16(void *s, const void *g)
{
	unsigned a = (unsigned)__cvta_generic_to_shared(s);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(a), "l"(g));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

__device__ __forceinline__ float zero_of(float) { return 0.f; }
__device__ __forceinline__ __nv_bfloat16 zero_of(__nv_bfloat16) { return __float2bfloat16(0.f); }

/* Stage `rows` x `cols` (cols contiguous in memory) of a matrix into shared memory with row length `lds`; what lies
 * outside [row_end, col_end) becomes zero. */
template <typename T, int ROWS, int COLS, int LDS>
__device__ __forceinline__ void stage(T *s, const T *g, int ld, int row0, int row_end, int col0, int col_end, bool wide)
{
	enum { V = 16 / sizeof(T), PER_ROW = COLS / V };
	for (int i = threadIdx.x; i < ROWS * PER_ROW; i += THREADS) {
		int r = i / PER_ROW, c = (i % PER_ROW) * V;
		T *to = s + r * LDS + c;
		if (wide && row0 + r < row_end && col0 + c + V <= col_end) {
			copy16(to, g + (size_t)(row0 + r) * ld + col0 + c);
		} else {
#pragma unroll
			for (int v = 0; v < V; v++)
				to[v] = row0 + r < row_end && col0 + c + v < col_end ? g[(size_t)(row0 + r) * ld + col0 + c + v]
				                                                       : zero_of(T());
		}
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

/* The epilogue of two neighbouring columns n, n + 1 of row m (n + 1 may lie outside). */
template <typename T>
__device__ __forceinline__ void finish(const struct gemm &g, char *c, const T *mask, int m, int n, float v0, float v1)
{
	const bool two = n + 1 < g.n;
	if (g.relu)
		v0 = rectify(v0), v1 = rectify(v1);
	if (mask) {
		v0 = (float)mask[(size_t)m * g.ldmask + n] > 0.f ? v0 : 0.f;
		v1 = two && (float)mask[(size_t)m * g.ldmask + n + 1] > 0.f ? v1 : 0.f;
	}
	if (g.c_f32 || sizeof(T) == 4) {
		float *to = (float *)c + (size_t)m * g.ldc + n;
		if (two && ((size_t)to & 7) == 0) {
			*(float2 *)to = make_float2(v0, v1);
		} else {
			to[0] = v0;
			if (two)
				to[1] = v1;
		}
	} else {
		__nv_bfloat16 *to = (__nv_bfloat16 *)c + (size_t)m * g.ldc + n;
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
	enum { STAGES = sizeof(T) == 2 ? 4 : 2 }; /* F32 tiles of 64 must fit into the 99 KB of an sm_86 block */
	enum { PAD = tile_k<T>::PAD };
	enum { A_ROW = BM * (BK + PAD), A_COL = BK * (BM + PAD), A = A_ROW > A_COL ? A_ROW : A_COL };
	enum { B_ROW = BN * (BK + PAD), B_COL = BK * (BN + PAD), B = B_ROW > B_COL ? B_ROW : B_COL };
	enum { BYTES = (A + B) * STAGES * sizeof(T) };
};

/* The column sums of a tile (a bias gradient), and the sum of squares of all that the tile wrote, in a fixed order. */
template <int MI, int NI, int BM>
__device__ void leave_sums(const struct gemm &g, float (*acc)[NI][4], const float *sum, bool column, int index, int m0, int n0,
                           int m, int n, float *shared)
{
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z;
	double square = 0.0, *total = (double *)shared;
	float *rows = shared + 2 * THREADS / 32; /* [4][BM] behind the warps' totals */

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

			((float *)((char *)g.column + z * g.column_trial))[m0 + threadIdx.x] = b;
			square += (double)b * b;
		}
	}
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
__device__ __forceinline__ void tile(const struct gemm &g, int index, T *shared)
{
	typedef ring<T, BM, BN> R;
	enum { STAGES = R::STAGES, LDA = (AT ? BM : BK) + R::PAD, LDB = (BT ? BN : BK) + R::PAD };
	enum { WARPS_N = 2, MI = BM / 2 / 16, NI = BN / WARPS_N / 8 };
	const int m0 = index / g.tiles_n * BM, n0 = index % g.tiles_n * BN, z = blockIdx.z;
	const T *a = (const T *)((const char *)g.a + z * g.a_trial);
	const bool wide_a = (g.lda * sizeof(T)) % 16 == 0 && ((size_t)a & 15) == 0, wide_b0 = (g.ldb * sizeof(T)) % 16 == 0;
	const int warp = threadIdx.x / 32, wm = warp / WARPS_N * (BM / 2), wn = warp % WARPS_N * (BN / WARPS_N);
	T *sa = shared, *sb = shared + R::A * STAGES;
	float acc[MI][NI][4] = {};

	int total = 0;
	for (int i = 0; i < g.segments; i++)
		total += (g.seg[i].k + BK - 1) / BK;
	auto find = [&](int step, int &i, int &k0) {
		i = 0;
		while (step >= (g.seg[i].k + BK - 1) / BK)
			step -= (g.seg[i++].k + BK - 1) / BK;
		k0 = step * BK;
	};
	auto load_a = [&](int step) {
		int i, k0;
		find(step, i, k0);
		const int kend = g.seg[i].k, base = g.seg[i].a;
		T *to = sa + step % STAGES * R::A;
		if (AT)
			stage<T, BK, BM, LDA>(to, a + (size_t)base * g.lda, g.lda, k0, kend, m0, g.m, wide_a);
		else
			stage<T, BM, BK, LDA>(to, a + base, g.lda, m0, g.m, k0, kend, wide_a && base * sizeof(T) % 16 == 0);
	};
	auto load_b = [&](int step) {
		int i, k0;
		find(step, i, k0);
		const int kend = g.seg[i].k;
		const T *b = (const T *)((const char *)g.seg[i].b + z * g.b_trial);
		const bool wide_b = wide_b0 && ((size_t)b & 15) == 0;
		T *to = sb + step % STAGES * R::B;
		if (BT)
			stage<T, BK, BN, LDB>(to, b, g.ldb, k0, kend, n0, g.n, wide_b);
		else
			stage<T, BN, BK, LDB>(to, b, g.ldb, n0, g.n, k0, kend, wide_b);
	};
	if (g.early)
		for (int step = 0; step < STAGES && step < total; step++)
			load_b(step);
	cuda_wait_before();
	cuda_let_next();
	for (int step = 0; step < STAGES; step++) { /* every stage is a group, empty ones included, so that waits count alike */
		if (step < total) {
			if (!g.early)
				load_b(step);
			load_a(step);
		}
		copy_commit();
	}
	const bool column = AT && g.column && n0 == 0;
	float sum[BM / 32] = {};
	for (int step = 0; step < total; step++) {
		copy_wait<STAGES - 1>();
		__syncthreads();
		if (column) { /* warp w adds rows 16w..16w+15 of each step */
			const T *from = sa + step % STAGES * R::A + warp * (BK / 4) * LDA + (threadIdx.x & 31);
#pragma unroll
			for (int k = 0; k < BK / 4; k++)
#pragma unroll
				for (int e = 0; e < BM / 32; e++)
					sum[e] += (float)from[k * LDA + e * 32];
		}
		multiply<MODE, T, AT, BT, MI, NI, LDA, LDB>(acc, sa + step % STAGES * R::A, sb + step % STAGES * R::B, wm, wn);
		if (step + STAGES < total) {
			__syncthreads();
			load_a(step + STAGES);
			load_b(step + STAGES);
		}
		copy_commit();
	}

	const int lane = threadIdx.x & 31, row = lane >> 2, col = (lane & 3) * 2;
	const float *bias = g.bias ? (const float *)((const char *)g.bias + z * g.bias_trial) : nullptr;
	const T *mask = g.mask ? (const T *)((const char *)g.mask + z * g.mask_trial) : nullptr;
	char *c = (char *)g.c + z * g.c_trial;
#pragma unroll
	for (int j = 0; j < NI; j++) {
		const int n = n0 + wn + j * 8 + col;
		const float b0 = bias && n < g.n ? bias[n] : 0.f, b1 = bias && n + 1 < g.n ? bias[n + 1] : 0.f;
#pragma unroll
		for (int i = 0; i < MI; i++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int m = m0 + wm + i * 16 + row + half * 8;
				if (m < g.m && n < g.n)
					finish<T>(g, c, mask, m, n, acc[i][j][half * 2] + b0, acc[i][j][half * 2 + 1] + b1);
			}
	}
	if (AT && g.part)
		leave_sums<MI, NI, BM>(g, acc, sum, column, index, m0, n0, m0 + wm + row, n0 + wn + col, (float *)shared);
}

template <int MODE, typename T, int BM, int BN>
__global__ void __launch_bounds__(THREADS) k_gemm_group(const __grid_constant__ struct gemm_group group)
{
	extern __shared__ __align__(16) char shared[];
	int p = 0;
	while (p + 1 < group.count && (int)blockIdx.x >= group.g[p + 1].first)
		p++;
	const struct gemm &g = group.g[p];
	const int index = blockIdx.x - g.first;
	if (!g.a_t && !g.b_t)
		tile<MODE, T, false, false, BM, BN>(g, index, (T *)shared);
	else if (!g.a_t)
		tile<MODE, T, false, true, BM, BN>(g, index, (T *)shared);
	else
		tile<MODE, T, true, true, BM, BN>(g, index, (T *)shared);
}

template <int MODE, typename T, int BM, int BN>
cudaError_t launch_tiles(struct cuda_exec *c, const struct gemm_group *g, dim3 grid)
{
	enum { BYTES = ring<T, BM, BN>::BYTES };
	static const cudaError_t ready =
		cudaFuncSetAttribute(k_gemm_group<MODE, T, BM, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
	if (ready != cudaSuccess)
		return ready;
	return cuda_launch(c, k_gemm_group<MODE, T, BM, BN>, grid, THREADS, BYTES, *g);
}

int count_tiles(struct gemm_group *g, int bm, int bn)
{
	int tiles = 0;
	for (int i = 0; i < g->count; i++) {
		g->g[i].first = tiles;
		g->g[i].tiles_n = (g->g[i].n + bn - 1) / bn;
		tiles += (g->g[i].m + bm - 1) / bm * g->g[i].tiles_n;
	}
	return tiles;
}

} // namespace

int gemm_launch(struct cuda_exec *c, struct gemm_group *g, int tile, const char *what, struct fh_status *st)
{
	const int P = c->dims.P;
	cudaError_t e;
	int tiles = count_tiles(g, 64, 64);

	/* Large tiles once they alone fill the machine, small ones to spread a small batch over it. */
	if (!tile)
		tile = (long)tiles * P >= 264 ? 64 : 32;
	if (tile == 32)
		tiles = count_tiles(g, 32, 32);
	const dim3 grid(tiles, 1, P);

	if (c->dims.precision == FH_PRECISION_BF16)
		e = tile == 64 ? launch_tiles<GEMM_BF16, __nv_bfloat16, 64, 64>(c, g, grid) : launch_tiles<GEMM_BF16, __nv_bfloat16, 32, 32>(c, g, grid);
	else if (c->dims.precision == FH_PRECISION_TF32)
		e = tile == 64 ? launch_tiles<GEMM_TF32, float, 64, 64>(c, g, grid) : launch_tiles<GEMM_TF32, float, 32, 32>(c, g, grid);
	else
		e = tile == 64 ? launch_tiles<GEMM_F32, float, 64, 64>(c, g, grid) : launch_tiles<GEMM_F32, float, 32, 32>(c, g, grid);
	return e == cudaSuccess ? 0 : cuda_fail(st, e, what);
}
