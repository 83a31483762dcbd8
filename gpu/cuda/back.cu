/* The gradient through the layers in one launch: a block takes a tile of rows from the gradients of the outputs to those of
 * the first hidden layer, which stay in shared memory on the way; weights come from L2 through one ring of copies that runs on
 * from layer to layer and from tile to tile.
 *
 * A layer is computed in chunks of four units of 64 columns; a unit is two warps', one above the other or side by side. Two
 * arrays of rows take turns: dout -> (dhead) -> dh2 in the place of dout -> dh1 in the place of dhead. What a chunk leaves is
 * copied to memory, for the weight gradients, while the next one runs. */
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/copy.cuh"
#include "gpu/cuda/group.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { UNIT = 64, UNITS = 4, LDB = UNITS * UNIT + 8, THREADS = 256, CHUNKS = 10, STEP_MOST = 64 };
enum { TO_HEAD, TO_H2, TO_H1, LAYERS };
/* Rows of all trials: below, one block's ring of weights waits longer than three launches, which spread over the machine; from how many
 * on warpgroups take them. */
enum { ENOUGH = 512, GROUP_ENOUGH = 1024, CROWD_ENOUGH = 128, CROWD_GROUP_ENOUGH = 512 }; /* the last two: beside other trainers, where few multiprocessors count */

/* How a block divides its tile: warps below each other, 16 rows each of these MI times; rows of weights in a stage of the ring. Fewer
 * rows a tile spread a small batch over the machine. */
template <int DOWN_, int MI_, int BK_, int STAGES_> struct crew {
	enum { DOWN = DOWN_, MI = MI_, BK = BK_, STAGES = STAGES_, ROWS = DOWN * MI * 16, ACROSS = THREADS / 32 / DOWN };
	enum { COLS = UNITS * UNIT / ACROSS, NJ = COLS / 8, STAGE = BK * LDB };
};

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
	int even;                /* rows of all weights are at multiples of 16 bytes */
	struct back_chunk chunk[CHUNKS];
};
static_assert(sizeof(struct back_args) <= 4096, "kernel arguments");

/* Where the copies of weights stand: they run ahead of the products. Of the segment: left, rows from this stage on. Of each unit: this
 * thread's next 16 bytes, rows from there on (none where it has no columns), its columns, elements from one of its rows to the next. */
struct feed {
	int tile, section, segment, left;
	const bf16 *from[UNITS];
	int rows[UNITS], columns[UNITS], down[UNITS];
};
enum { DOWN = THREADS / 8 };

__device__ __forceinline__ void feed_segment(struct feed &f, const struct back_args &x)
{
	const struct back_chunk &q = x.chunk[f.section];
	const struct back_segment &s = q.seg[f.segment];
	const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

	f.left = s.k;
#pragma unroll
	for (int u = 0; u < UNITS; u++) {
		const struct back_unit &v = q.unit[u];

		f.down[u] = v.ld * DOWN;
		f.from[u] = x.weight + f.tile / x.tiles * x.params + s.w + v.w + (size_t)row * v.ld + col;
		f.columns[u] = copy_left(v.n, col);
		f.rows[u] = u < q.units && f.columns[u] ? min(s.k, v.k) - row : 0;
	}
}

/* Asks for the next stage, which comes to `slot`; always a group, so that waits count alike. place: of this thread's first 16 bytes
 * in the ring's first stage. */
template <typename Team> __device__ __forceinline__ void feed_next(struct feed &f, const struct back_args &x, bf16 *ring, ptx_shared place, int slot)
{
	if (f.tile < x.tiles * x.trials) {
		const ptx_shared s = place + slot * Team::STAGE * (unsigned)sizeof(bf16);
		bf16 *to = ring + slot * Team::STAGE + threadIdx.x / 8 * LDB + threadIdx.x % 8 * 8;

		if (x.even) {
#pragma unroll
			for (int u = 0; u < UNITS; u++)
#pragma unroll
				for (int r = 0; r < Team::BK; r += DOWN, f.from[u] += f.down[u])
					ptx_copy16_if(s + (r * LDB + u * UNIT) * (unsigned)sizeof(bf16), f.from[u], f.rows[u] > r);
		} else {
#pragma unroll
			for (int u = 0; u < UNITS; u++)
#pragma unroll
				for (int r = 0; r < Team::BK; r += DOWN, f.from[u] += f.down[u])
					copy_odd(to + r * LDB + u * UNIT, f.from[u], f.rows[u] > r ? f.columns[u] : 0);
		}
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			f.rows[u] -= Team::BK;
		f.left -= Team::BK;
		if (f.left <= 0) {
			if (++f.segment == x.chunk[f.section].segments) {
				f.segment = 0;
				if (++f.section == x.chunks)
					f.section = 0, f.tile += gridDim.x;
			}
			if (f.tile < x.tiles * x.trials)
				feed_segment(f, x);
		}
	}
	ptx_copy_commit();
}

/* The gradients of the outputs of a tile, zeros below its last row and as far as steps reach. */
template <typename Team> __device__ __forceinline__ void load_rows(const struct back_args &x, bf16 *to, int z, int first, int valid)
{
	const bf16 *from = (const bf16 *)((const char *)x.dout + z * x.dout_trial) + (size_t)first * x.ldo;

#pragma unroll 1
	for (int r = threadIdx.x / 32; r < Team::ROWS; r += THREADS / 32)
#pragma unroll 1
		for (int col = (threadIdx.x & 31) * 8; col < x.ldo + STEP_MOST; col += 256)
			copy_8(to + r * x.row[0] + col, from + (size_t)r * x.ldo + col, r < valid ? copy_left(x.ldo, col) : 0, x.dout);
}

/* A warp's share of a step; a, b: where this lane reads its first fragments of rows and of weights; down: bytes from 16 rows to the next.
 * The order of gemm.cu: by 16 of k, upwards. */
template <typename Team>
__device__ __forceinline__ void multiply(float (&acc)[Team::MI][Team::NJ][4], ptx_shared a, unsigned down, ptx_shared b)
{
#pragma unroll
	for (int k = 0; k < Team::BK; k += 16) {
		unsigned fa[Team::MI][4], fb[Team::NJ / 2][4];
#pragma unroll
		for (int i = 0; i < Team::MI; i++)
			ptx_ldmatrix4(fa[i], a + i * down + k * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < Team::NJ / 2; j++)
			ptx_ldmatrix4t(fb[j], b + (k * LDB + j * 16) * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < Team::NJ; j++)
#pragma unroll
			for (int i = 0; i < Team::MI; i++)
				ptx_mma_bf16(acc[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
	}
}

/* What relu let through of a warp's rows and columns: pairs of columns, asked for before the products that they will mask. */
template <typename Team>
__device__ __forceinline__ void load_mask(__nv_bfloat162 (&mask)[2 * Team::MI][Team::NJ], const bf16 *act, int ld, int rows, int n)
{
	const int row = (threadIdx.x & 31) / 4, col = (threadIdx.x & 3) * 2;
#pragma unroll
	for (int i = 0; i < 2 * Team::MI; i++)
#pragma unroll
		for (int j = 0; j < Team::NJ; j++)
			mask[i][j] = row + i * 8 < rows && j * 8 + col < n ? *(const __nv_bfloat162 *)(act + (size_t)(row + i * 8) * ld + j * 8 + col)
			                                                   : __floats2bfloat162_rn(0.f, 0.f);
}

template <typename Team>
__device__ __forceinline__ void keep(const float (&acc)[Team::MI][Team::NJ][4], const __nv_bfloat162 (&mask)[2 * Team::MI][Team::NJ], bf16 *to, int ld)
{
	const int lane = threadIdx.x & 31;

	to += lane / 4 * ld + (lane & 3) * 2;
#pragma unroll
	for (int i = 0; i < 2 * Team::MI; i++)
#pragma unroll
		for (int j = 0; j < Team::NJ; j++) {
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

template <typename Team> __global__ void __launch_bounds__(THREADS, 1) k_back(const __grid_constant__ struct back_args x)
{
	enum { STAGES = Team::STAGES, STAGE = Team::STAGE };
	PTX_SHARED(char, shared);
	bf16 *ring = (bf16 *)shared, *const array0 = ring + STAGES * STAGE, *const array1 = array0 + Team::ROWS * x.row[0];
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* so that the compiler sees that a warp agrees on it */
	const int wm = warp / Team::ACROSS * Team::MI * 16, wn = warp % Team::ACROSS * Team::COLS, unit = wn / UNIT, in_unit = wn % UNIT;
	const int lane = threadIdx.x & 31;
	const ptx_shared place = ptx_keep(ptx_shared_at(ring + threadIdx.x / 8 * LDB + threadIdx.x % 8 * 8));
	const ptx_shared b_from = ptx_keep(ptx_shared_at(ring + (lane & 15) * LDB + (lane >> 4) * 8 + wn));
	struct feed f = {};
	int slot = 0;

	f.tile = blockIdx.x;
	feed_segment(f, x);
#pragma unroll 1
	for (int i = 0; i < STAGES - 1; i++) /* weights: no launch just before writes them */
		feed_next<Team>(f, x, ring, place, i);
	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int id = blockIdx.x; id < x.tiles * x.trials; id += gridDim.x) {
		const int z = id / x.tiles, first = id % x.tiles * Team::ROWS, valid = min((int)Team::ROWS, x.rows - first);

		load_rows<Team>(x, array0, z, first, valid);
		ptx_copy_commit();
		ptx_copy_wait<0>();
#pragma unroll 1
		for (int section = 0; section < x.chunks; section++) {
			const struct back_chunk &q = x.chunk[section];
			const struct back_unit &u = q.unit[unit];
			const bool mine = unit < q.units, back = q.to == TO_H2; /* from array 1 to array 0 */
			const int lda = x.row[back], ldc = x.row[!back];
			const bf16 *rows = (back ? array1 : array0) + (wm + (lane & 15)) * lda + (lane >> 4) * 8 + u.a;
			float acc[Team::MI][Team::NJ][4] = {};
			__nv_bfloat162 mask[2 * Team::MI][Team::NJ];

			if (mine)
				load_mask<Team>(mask, (const bf16 *)((const char *)x.act[q.to] + z * x.act_trial[q.to]) + (size_t)(first + wm) * x.ld[q.to] +
				                u.g + in_unit, x.ld[q.to], valid - wm, u.g_n - in_unit);
#pragma unroll 1
			for (int s = 0; s < q.segments; s++) {
				const int steps = q.seg[s].k;
				const ptx_shared a = ptx_keep(ptx_shared_at(rows + q.seg[s].a));
#pragma unroll 1
				for (int k = 0; k < steps; k += Team::BK) {
					ptx_copy_wait<STAGES - 2>();
					__syncthreads(); /* the stage is there for all, and its predecessor is free */
					feed_next<Team>(f, x, ring, place, slot == 0 ? STAGES - 1 : slot - 1);
					if (s == 0 && k == 0 && section)
						keep_rows(x, x.chunk[section - 1], x.chunk[section - 1].to == TO_H2 ? array0 : array1, z, first, valid);
					if (mine && k < u.k)
						multiply<Team>(acc, a + k * (unsigned)sizeof(bf16), 16u * lda * (unsigned)sizeof(bf16), b_from + slot * STAGE * (unsigned)sizeof(bf16));
					slot = slot + 1 == STAGES ? 0 : slot + 1;
				}
			}
			if (mine)
				keep<Team>(acc, mask, (back ? array0 : array1) + wm * ldc + u.c + in_unit, ldc);
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
		if (l->in % 8)
			x->even = 0;
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
	x->even = 1;
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
	x->row[0] = max(s->ldo + STEP_MOST, units_of(d->H2) * UNIT) + 8;
	x->row[1] = max(heads, units_of(d->H1) * UNIT) + 8;
	return 1;
}

template <typename Team> size_t shared_bytes(const struct back_args *x)
{
	return ((size_t)Team::STAGES * Team::STAGE + (size_t)Team::ROWS * (x->row[0] + x->row[1])) * sizeof(bf16);
}

typedef crew<1, 1, 64, 3> few;
typedef crew<2, 1, 64, 3> some;
typedef crew<2, 2, 32, 4> many;
typedef crew<2, 2, 32, 3> many_tight;

struct choice { int rows, cost; };

/* About how long tiles like these take, in tenths of a microsecond of an H200, where tiles of 16 rows took 21.5 us and of 64 rows 39,
 * one a multiprocessor. Bits do not depend on it. */
template <typename Team> void consider(const struct cuda_exec *c, const struct back_args *x, size_t shared, struct choice *best)
{
	const int tiles = cuda_tiles(c->dims.B, Team::ROWS) * c->dims.P, waves = cuda_tiles(tiles, c->multiprocessors);
	const int cost = waves * (150 + Team::ROWS * 36 / 10);

	if (shared_bytes<Team>(x) <= shared && (!best->rows || cost < best->cost))
		*best = {Team::ROWS, cost};
}

struct choice choose(const struct cuda_exec *c, const struct back_args *x, size_t shared)
{
	struct choice best = {};

	consider<few>(c, x, shared, &best);
	consider<some>(c, x, shared, &best);
	consider<many_tight>(c, x, shared, &best);
	return best;
}

/* Rows of a tile, 0: none fits. */
int rows_of(const struct cuda_exec *c, const struct back_args *x, size_t *shared)
{
	*shared = cuda_shared_most(c);
	const struct choice best = choose(c, x, *shared);
	const int rows = cuda_wide_asked();
	const size_t bytes = rows == few::ROWS ? shared_bytes<few>(x) : rows == some::ROWS ? shared_bytes<some>(x) : shared_bytes<many_tight>(x);
	if (rows != few::ROWS && rows != some::ROWS && rows != many::ROWS)
		return best.rows;
	return bytes <= *shared ? rows : best.rows;
}

template <typename Team> cudaError_t launch(struct cuda_exec *c, struct back_args *x)
{
	const cudaError_t e = cuda_allow_shared(c, k_back<Team>);

	if (e != cudaSuccess)
		return e;
	x->tiles = cuda_tiles(x->rows, Team::ROWS);
	return cuda_launch(c, k_back<Team>, dim3(min(x->tiles * x->trials, c->multiprocessors)), THREADS, shared_bytes<Team>(x), *x);
}

} // namespace

/* Warpgroups: of so many rows whoever has not asked for tiles of other crews. */
static int group_takes(struct cuda_exec *c)
{
	const int asked = cuda_wide_asked();

	return (asked < 0 || asked == 1 || asked > GROUP_ASKED) && cuda_wide(c->dims.B * c->dims.P >= (c->crowded ? CROWD_GROUP_ENOUGH : GROUP_ENOUGH)) &&
	       back_group_takes(c);
}

int back_takes(struct cuda_exec *c)
{
	struct back_args x;
	size_t shared;

	return group_takes(c) || (!c->sync && cuda_wide(c->dims.B * c->dims.P >= (c->crowded ? CROWD_ENOUGH : ENOUGH)) && describe(c, &x) && rows_of(c, &x, &shared) > 0);
}

int back_cost(struct cuda_exec *c)
{
	const int layers = 60 + c->dims.B * c->dims.P / 16; /* of 256 rows 14 us, of which weight gradients apart would take half */
	struct back_args x;

	if (group_takes(c))
		return 120 * cuda_tiles(cuda_tiles(c->dims.B, 64) * c->dims.P, c->multiprocessors);
	if (!back_takes(c) || !describe(c, &x))
		return layers;
	return choose(c, &x, cuda_shared_most(c)).cost;
}

int back_layers(struct cuda_exec *c, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	struct back_args x;
	size_t shared;

	if (group_takes(c))
		return back_group(c, st);
	if (!describe(c, &x))
		return fh_fail(st, FH_INTERNAL, "backward: the network does not fit"); /* back_takes() said otherwise */
	back_tensors(c, &x);
	x.ldo = s->ldo, x.ld[TO_HEAD] = s->ldhead, x.ld[TO_H2] = s->ldh2, x.ld[TO_H1] = s->ldh1;
	x.rows = c->dims.B, x.trials = c->dims.P;
	switch (rows_of(c, &x, &shared)) {
	case few::ROWS: CUDA_TRY(launch<few>(c, &x)); break;
	case some::ROWS: CUDA_TRY(launch<some>(c, &x)); break;
	default: CUDA_TRY(shared_bytes<many>(&x) <= shared ? launch<many>(c, &x) : launch<many_tight>(c, &x));
	}
	return 0;
}
