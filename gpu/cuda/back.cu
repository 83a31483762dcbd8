/* The gradient through the layers in one launch, for many rows: a block takes a tile of rows from the gradients of the outputs
 * to those of the first hidden layer, which stay in shared memory on the way; weights come from L2 through one ring of copies
 * that runs on from layer to layer and from tile to tile.
 *
 * A layer is computed in chunks of four units of 64 columns; a unit is a column of two warps (32 rows x 64 columns each). Two
 * arrays of rows take turns: dout -> (dhead) -> dh2 in the place of dout -> dh1 in the place of dhead. What a chunk leaves is
 * copied to memory, for the weight gradients, while the next one runs. */
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/copy.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { BK = 32, UNIT = 64, UNITS = 4, LDB = UNITS * UNIT + 8, STAGE = BK * LDB, ROWS = 64, THREADS = 256, CHUNKS = 10 };
enum { TO_HEAD, TO_H2, TO_H1, LAYERS };

/* A unit's product: rows [w, w + k) of weights `ld` apart, n columns; its input begins at column a, its results go to column c of
 * the other array and to g of a row in memory, g_n of them (zeros behind n). A segment of the sum adds to w and a, and has
 * as many steps as the longest of its units needs. */
struct back_unit { int w, ld, k, n, a, c, g, g_n; };
struct back_segment { int w, k, a; };
struct back_chunk { int to, units, segments; struct back_segment seg[GEMM_SEGMENTS]; struct back_unit unit[UNITS]; };

struct back_args {
	const bf16 *weight, *dout;
	const bf16 *act[LAYERS]; /* what relu let through */
	bf16 *d[LAYERS];
	size_t params, dout_trial, act_trial[LAYERS], d_trial[LAYERS]; /* elements; bytes, bytes, bytes */
	int ldo, ld[LAYERS];
	int row[2];              /* row lengths of the two arrays in shared memory */
	int rows, tiles, trials, chunks;
	struct back_chunk chunk[CHUNKS];
};
static_assert(sizeof(struct back_args) <= 4096, "kernel arguments");

/* Where the copies of weights stand: they run ahead of the products. */
struct feed { int tile, section, segment, k; };

/* Asks for the next stage; always a group, so that waits count alike. */
__device__ __forceinline__ void feed_next(struct feed &f, const struct back_args &x, bf16 *to)
{
	if (f.tile < x.tiles * x.trials) {
		const struct back_chunk &q = x.chunk[f.section];
		const struct back_segment &s = q.seg[f.segment];
		const bf16 *w = x.weight + f.tile / x.tiles * x.params;
		const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

#pragma unroll
		for (int u = 0; u < UNITS; u++)
			if (u < q.units) {
				const struct back_unit &v = q.unit[u];
				const bool in = f.k + row < min(s.k, v.k);

				copy_8(to + row * LDB + u * UNIT + col, w + s.w + v.w + (size_t)(f.k + row) * v.ld + col, in ? copy_left(v.n, col) : 0,
				       v.ld % 8 == 0, w);
			}
		f.k += BK;
		if (f.k >= s.k) {
			f.k = 0;
			if (++f.segment == q.segments) {
				f.segment = 0;
				if (++f.section == x.chunks)
					f.section = 0, f.tile += gridDim.x;
			}
		}
	}
	ptx_copy_commit();
}

/* The gradients of the outputs of a tile, zeros below its last row and up to a multiple of BK. */
__device__ __forceinline__ void load_rows(const struct back_args &x, bf16 *to, int z, int first, int valid)
{
	const bf16 *from = (const bf16 *)((const char *)x.dout + z * x.dout_trial) + (size_t)first * x.ldo;

#pragma unroll 1
	for (int r = threadIdx.x / 32; r < ROWS; r += THREADS / 32)
#pragma unroll 1
		for (int col = (threadIdx.x & 31) * 8; col < x.ldo + BK; col += 256)
			copy_8(to + r * x.row[0] + col, from + (size_t)r * x.ldo + col, r < valid ? copy_left(x.ldo, col) : 0, true, x.dout);
}

/* A warp's share of a step: 32 rows by 64 columns; a: its rows, b: its columns' weights. The order of gemm.cu: by 16 of k, upwards. */
__device__ __forceinline__ void multiply(float (&acc)[2][8][4], const bf16 *a, int ld, const bf16 *b)
{
	const int lane = threadIdx.x & 31;

	a += (lane & 15) * ld + (lane >> 4) * 8;
	b += (lane & 15) * LDB + (lane >> 4) * 8;
#pragma unroll
	for (int k = 0; k < BK; k += 16) {
		unsigned fa[2][4], fb[4][4];
#pragma unroll
		for (int i = 0; i < 2; i++)
			ptx_ldmatrix4(fa[i], a + i * 16 * ld + k);
#pragma unroll
		for (int j = 0; j < 4; j++)
			ptx_ldmatrix4t(fb[j], b + k * LDB + j * 16);
#pragma unroll
		for (int j = 0; j < 8; j++)
#pragma unroll
			for (int i = 0; i < 2; i++)
				ptx_mma_bf16(acc[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
	}
}

/* What relu let through of a warp's rows of a unit: pairs of columns, asked for before the products that they will mask. */
__device__ __forceinline__ void load_mask(__nv_bfloat162 (&mask)[4][8], const bf16 *act, int ld, int rows, int n)
{
	const int row = (threadIdx.x & 31) / 4, col = (threadIdx.x & 3) * 2;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 8; j++)
			mask[i][j] = row + i * 8 < rows && j * 8 + col < n ? *(const __nv_bfloat162 *)(act + (size_t)(row + i * 8) * ld + j * 8 + col)
			                                                   : __floats2bfloat162_rn(0.f, 0.f);
}

__device__ __forceinline__ void keep(const float (&acc)[2][8][4], const __nv_bfloat162 (&mask)[4][8], bf16 *to, int ld)
{
	const int lane = threadIdx.x & 31;

	to += lane / 4 * ld + (lane & 3) * 2;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 8; j++) {
			const float2 open = __bfloat1622float2(mask[i][j]);

			*(__nv_bfloat162 *)(to + i * 8 * ld + j * 8) = __floats2bfloat162_rn(open.x > 0.f ? acc[i / 2][j][i % 2 * 2] : 0.f,
			                                                                    open.y > 0.f ? acc[i / 2][j][i % 2 * 2 + 1] : 0.f);
		}
}

/* A chunk's results from shared memory to memory, 16 bytes at a time. */
__device__ __forceinline__ void keep_rows(const struct back_args &x, const struct back_chunk &q, const bf16 *from, int z, int first, int valid)
{
	const int ld = x.ld[q.to], lds = x.row[q.to != TO_H2], col = threadIdx.x % 8 * 8;
	bf16 *d = (bf16 *)((char *)x.d[q.to] + z * x.d_trial[q.to]) + (size_t)first * ld + col;

#pragma unroll 1
	for (int u = 0; u < q.units; u++)
		if (col < q.unit[u].g_n)
#pragma unroll 2
			for (int r = threadIdx.x / 8; r < valid; r += THREADS / 8)
				*(uint4 *)(d + (size_t)r * ld + q.unit[u].g) = *(const uint4 *)(from + r * lds + q.unit[u].c + col);
}

template <int STAGES> __global__ void __launch_bounds__(THREADS, 1) k_back(const __grid_constant__ struct back_args x)
{
	PTX_SHARED(char, shared);
	bf16 *ring = (bf16 *)shared, *const array0 = ring + STAGES * STAGE, *const array1 = array0 + ROWS * x.row[0];
	const int warp = threadIdx.x / 32, wm = warp / UNITS * 32, wn = warp % UNITS;
	struct feed f = {(int)blockIdx.x, 0, 0, 0};
	int slot = 0;

#pragma unroll 1
	for (int i = 0; i < STAGES - 1; i++) /* weights: no launch just before writes them */
		feed_next(f, x, ring + i * STAGE);
	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int id = blockIdx.x; id < x.tiles * x.trials; id += gridDim.x) {
		const int z = id / x.tiles, first = id % x.tiles * ROWS, valid = min((int)ROWS, x.rows - first);

		load_rows(x, array0, z, first, valid);
		ptx_copy_commit();
		ptx_copy_wait<0>();
#pragma unroll 1
		for (int section = 0; section < x.chunks; section++) {
			const struct back_chunk &q = x.chunk[section];
			const struct back_unit &u = q.unit[wn];
			const bool mine = wn < q.units, back = q.to == TO_H2; /* from array 1 to array 0 */
			const int lda = x.row[back], ldc = x.row[!back];
			const bf16 *a = (back ? array1 : array0) + wm * lda + u.a;
			float acc[2][8][4] = {};
			__nv_bfloat162 mask[4][8];

			if (mine)
				load_mask(mask, (const bf16 *)((const char *)x.act[q.to] + z * x.act_trial[q.to]) + (size_t)(first + wm) * x.ld[q.to] + u.g,
				          x.ld[q.to], valid - wm, u.g_n);
#pragma unroll 1
			for (int s = 0; s < q.segments; s++)
#pragma unroll 1
				for (int k = 0; k < q.seg[s].k; k += BK) {
					ptx_copy_wait<STAGES - 2>();
					__syncthreads(); /* the stage is there for all, and its predecessor is free */
					feed_next(f, x, ring + (slot + STAGES - 1) % STAGES * STAGE);
					if (s == 0 && k == 0 && section)
						keep_rows(x, x.chunk[section - 1], x.chunk[section - 1].to == TO_H2 ? array0 : array1, z, first, valid);
					if (mine && k < u.k)
						multiply(acc, a + q.seg[s].a + k, lda, ring + slot * STAGE + wn * UNIT);
					slot = slot + 1 == STAGES ? 0 : slot + 1;
				}
			if (mine)
				keep(acc, mask, (back ? array0 : array1) + wm * ldc + u.c, ldc);
		}
		__syncthreads();
		keep_rows(x, x.chunk[x.chunks - 1], array1, z, first, valid);
	}
}

/* ---------------------------------------------------------------- the list of products */

int units_of(int n) { return cuda_tiles(n, UNIT); }

/* The gradient of `layer`'s input, in units, behind those that the last chunk holds already. with: 1 if other layers may share the
 * chunk. c, g: where its columns begin. 0: too many. */
int add_layer(struct back_args *x, const struct dqn_dims *d, int layer, int to, int a, int c, int g)
{
	const struct dqn_layer *l = &d->layer[layer];

	for (int i = 0; i < units_of(l->in); i++) {
		struct back_chunk *q = x->chunks ? &x->chunk[x->chunks - 1] : NULL;

		if (!q || q->to != to || q->units == UNITS) {
			if (x->chunks == CHUNKS)
				return 0;
			q = &x->chunk[x->chunks++];
			*q = {};
			q->to = to, q->segments = 1;
		}
		const int at = i * UNIT, n = l->in - at, padded = cuda_pad16(l->in) - at;
		q->unit[q->units++] = {(int)l->w + at, l->in, l->out, n < UNIT ? n : UNIT, a, c + at, g + at, padded < UNIT ? padded : UNIT};
		q->seg[0].k = max(q->seg[0].k, l->out);
	}
	return 1;
}

/* dh2 is the sum over all heads: k runs through their weights. */
void through_heads(struct back_args *x, const struct dqn_dims *d)
{
	for (int i = 0; i < x->chunks; i++) {
		struct back_chunk *q = &x->chunk[i];

		if (q->to != TO_H2)
			continue;
		q->segments = 0;
		for (int h = 0, a = 0; h <= d->D; h++) {
			const struct dqn_layer *l = &d->layer[DQN_V1 + 2 * h];

			q->seg[q->segments++] = {(int)(l->w - d->layer[DQN_V1].w), l->out, a};
			a += units_of(l->out) * UNIT;
		}
		for (int u = 0; u < q->units; u++)
			q->unit[u].k = INT32_MAX; /* the segments say it */
	}
}

/* Fills what depends on the network alone. 0: it does not fit. */
int describe(struct cuda_exec *c, struct back_args *x)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	int heads = 0;

	*x = {};
	if (d->precision != FH_PRECISION_BF16 || d->params > INT32_MAX)
		return 0;
	for (int h = 0, g = 0; h <= d->D; h++) {
		const int n = h ? d->AH : d->VH;

		if (!add_layer(x, d, DQN_V1 + 2 * h + 1, TO_HEAD, s->seg[h], heads, g))
			return 0;
		heads += units_of(n) * UNIT, g += cuda_pad16(n);
	}
	if (!add_layer(x, d, DQN_V1, TO_H2, 0, 0, 0) || !add_layer(x, d, DQN_S2, TO_H1, 0, 0, 0))
		return 0;
	through_heads(x, d);
	x->row[0] = max(s->ldo + BK, units_of(d->H2) * UNIT) + 8;
	x->row[1] = max(heads, units_of(d->H1) * UNIT) + 8;
	return 1;
}

size_t shared_bytes(const struct back_args *x, int stages) { return ((size_t)stages * STAGE + (size_t)ROWS * (x->row[0] + x->row[1])) * sizeof(bf16); }

/* Stages of the ring that fit beside the rows, 0: not even the fewest. */
int stages_of(struct cuda_exec *c, const struct back_args *x)
{
	int shared = 0;

	if (cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->x.backend->device) != cudaSuccess)
		return 0;
	return shared_bytes(x, 4) <= (size_t)shared ? 4 : shared_bytes(x, 3) <= (size_t)shared ? 3 : 0;
}

template <int STAGES> cudaError_t launch(struct cuda_exec *c, const struct back_args *x)
{
	const int tiles = x->tiles * x->trials;
	const size_t bytes = shared_bytes(x, STAGES);
	const cudaError_t e = cudaFuncSetAttribute(k_back<STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

	if (e != cudaSuccess)
		return e;
	return cuda_launch(c, k_back<STAGES>, dim3(tiles < c->multiprocessors ? tiles : c->multiprocessors), THREADS, bytes, *x);
}

} // namespace

int back_takes(struct cuda_exec *c)
{
	struct back_args x;

	/* Below 32 rows a multiprocessor most of them would be idle, or each would read all weights for a few rows. */
	return back_wide(c, (long)c->dims.B * c->dims.P >= 32L * c->multiprocessors) && describe(c, &x) && stages_of(c, &x) > 0;
}

int back_layers(struct cuda_exec *c, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	const struct cuda_array *act[LAYERS] = {&s->head, &s->h2, &s->h1}, *to[LAYERS] = {&s->dhead, &s->dh2, &s->dh1};
	const int ld[LAYERS] = {s->ldhead, s->ldh2, s->ldh1};
	struct back_args x;

	if (!describe(c, &x))
		return fh_fail(st, FH_INTERNAL, "backward: the network does not fit"); /* back_takes() said otherwise */
	x.weight = cuda_tensor<bf16>(c, T_PARAM_LP), x.params = (size_t)d->params;
	x.dout = cuda_at<bf16>(c, &s->dout), x.dout_trial = s->dout.stride, x.ldo = s->ldo;
	for (int i = 0; i < LAYERS; i++) {
		x.act[i] = cuda_at<bf16>(c, act[i]), x.act_trial[i] = act[i]->stride;
		x.d[i] = cuda_at<bf16>(c, to[i]), x.d_trial[i] = to[i]->stride;
		x.ld[i] = ld[i];
	}
	x.rows = d->B, x.tiles = cuda_tiles(d->B, ROWS), x.trials = d->P;
	CUDA_TRY(stages_of(c, &x) == 4 ? launch<4>(c, &x) : launch<3>(c, &x));
	return 0;
}
