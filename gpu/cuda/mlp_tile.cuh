/* The kernel of mlp.cu, which alone includes this: a block takes a tile of rows from the states to the outputs, or
 * down to the greedy actions. Activations stay in shared memory, weights come from L2 through one ring of copies that runs
 * on from layer to layer and from tile to tile.
 *
 * A layer is computed in chunks of four units of 64 columns; a unit is two warps' (each half of the rows, or all of few rows and half of
 * the columns). The units of all heads are one list, so a chunk may hold columns of several heads, each with its own input.
 * The hidden rows of a tile are one array of `ld` columns: x, h1, h2 lie at its end, one in the place of the other (the
 * results of a chunk are in registers before they are written), heads from its start on; their last chunk takes h2's place.
 *
 * For actions the last layer is different: a warp takes 16 rows and all columns of a branch, every action's atoms from a
 * multiple of 8 on, so that V, all advantages and the softmax of a row lie in the four lanes that share it. */
#ifndef FH_GPU_CUDA_MLP_TILE_CUH
#define FH_GPU_CUDA_MLP_TILE_CUH

#include <cuda_bf16.h>
#include "gpu/cuda/copy.cuh"
#include "gpu/cuda/head.cuh"
#include "gpu/cuda/mlp.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { BK = 32, UNIT = 64, UNITS = 4, CHUNKS = 16, THREADS = 256, PICKS = 5 };
enum { TO_H1, TO_H2, TO_HEAD, TO_OUT };

struct mlp_unit {
	int w, bias, n;  /* first row of its weights and bias in the flat parameters; columns, at most UNIT */
	int a, c;        /* column of its input among the hidden ones, and (hidden layers) of its results */
	int g, g_n;      /* where its results go in a row in memory, and how many: zeros behind n */
};
struct mlp_chunk { int k, units, to; struct mlp_unit unit[UNITS]; };
struct mlp_head { int k, w, bias, a, actions; }; /* V, then the branches: for actions */

struct mlp_args {
	const bf16 *x;           /* low [.., ldx], or: */
	const float *obs;        /* F32 [.., SD] */
	size_t x_trial;          /* bytes, as all of these */
	int ldx, sd;
	const bf16 *weight[2];   /* online, target: flat, of the first trial */
	const float *bias[2];
	size_t params;           /* elements from trial to trial */
	bf16 *hidden[3];         /* h1, h2, head */
	size_t hidden_trial[3], out_trial, action_trial;
	int ldhidden[3], ldo;
	float *out;
	int32_t *action;
	const struct dqn_clock *clock;
	int random;              /* 1: trials that act at random are left out */
	int trunk, ld;           /* first column of x, h1, h2; row length in shared memory */
	int tiles, trials, passes, first_tile; /* of a trial; first_tile: of the second pass */
	struct mlp_pass pass[2];
	int branches, atoms, chunks;
	struct mlp_head head[1 + FH_BRANCH_MAX];
	struct mlp_chunk chunk[CHUNKS];
};
static_assert(sizeof(struct mlp_args) <= 4096, "kernel arguments");

/* A block: ROWS rows, a warp's share of them MI x 16 by NJ x 8 columns, a ring of STAGES. */
template <int M, int N> struct shape {
	enum { MI = M, NJ = N, WARPS_N = UNITS * UNIT / (NJ * 8), ROWS = THREADS / 32 / WARPS_N * MI * 16, STAGES = 4 };
	static_assert((STAGES & (STAGES - 1)) == 0, "slots are counted with a mask");
};

/* Rows of a stage of the ring: four units, or the padded atoms of PICKS actions (in pairs of 8). */
template <int J> struct stage { enum { ROWS = J ? (PICKS * J + 1) / 2 * 16 : 0, MOST = ROWS > UNITS * UNIT ? ROWS : UNITS * UNIT, SIZE = MOST * BK }; };

/* Where 8 columns, the q-th, of a row of a stage are. Four rows of 64 bytes that follow each other in twos keep their columns in
 * another order, so that neither a copy of whole rows nor eight rows of one column meet in a bank; rows 8 apart have the same
 * order, and for the next 16 columns it is this place ^ 16. */
__device__ __forceinline__ int in_stage(int row, int q) { return row * BK + (q ^ (row >> 1 & 3)) * 8; }

__device__ __forceinline__ int at_random(const struct dqn_clock *c) /* epsilon is 1, whatever rounding does */
{
	return c->eps_start >= 1.0 && (c->eps_end >= 1.0 || (c->vector_step == 0 && c->eps_steps > 0));
}

/* The first tile from `id` on that has work. */
template <typename Args> __device__ __forceinline__ int busy_tile(const Args &x, int id)
{
	while (x.random && id < x.tiles * x.trials && at_random(&x.clock[id / x.tiles]))
		id += gridDim.x;
	return id;
}

/* Where the copies of weights stand: they run ahead of the products. A thread brings 8 columns of every 64th row of a stage, zeros
 * where there are no weights; what does not change from step to step of a section (a chunk or, for actions, a head) is
 * worked out once. */
template <int J> struct feed {
	enum { ROWS = J ? 5 : 4 };
	int tile, section;
	int left;            /* columns of the section from this stage on */
	unsigned rows;       /* bit i: its i-th row has weights */
	int places;          /* rows of the stage that are read, with actions; else all are */
	int row[ROWS];       /* where its 8 columns of them are, in elements from w */
	const bf16 *w;
};
__device__ __forceinline__ int feed_column() { return threadIdx.x % 4 * 8; }

template <int J> __device__ __forceinline__ void feed_section(struct feed<J> &f, const struct mlp_args &x)
{
	const int first = threadIdx.x / 4;

	f.rows = 0;
	if (J == 0 || f.section < x.chunks) {
		const struct mlp_chunk &q = x.chunk[f.section];

		f.left = q.k, f.places = UNITS * UNIT;
#pragma unroll
		for (int u = 0; u < UNITS; u++) { /* units that are not there have no columns */
			f.row[u] = q.unit[u].w + first * q.k + feed_column();
			f.rows |= (first < q.unit[u].n ? 1u : 0u) << u;
		}
		return;
	}
	enum { PER = J ? 8 * J : 8 };
	const struct mlp_head &q = x.head[f.section - x.chunks];

	f.left = q.k, f.places = (q.actions * PER + 15) / 16 * 16;
#pragma unroll
	for (int i = 0; i < feed<J>::ROWS; i++) {
		const int r = first + i * THREADS / 4, a = r / PER, atom = r % PER;

		f.row[i] = q.w + (a * x.atoms + atom) * q.k + feed_column();
		f.rows |= (a < q.actions && atom < x.atoms ? 1u : 0u) << i;
	}
}

template <int J> __device__ __forceinline__ void feed_tile(struct feed<J> &f, const struct mlp_args &x, int id)
{
	f.tile = id;
	if (id >= x.tiles * x.trials)
		return;
	f.section = 0;
	f.w = x.weight[x.pass[id % x.tiles >= x.first_tile].target] + id / x.tiles * x.params;
	feed_section<J>(f, x);
}

/* Asks for the next stage, which comes to `slot`; always a group, so that waits count alike. place: of this thread's first 8 columns in
 * the ring's first stage. */
template <int J> __device__ __forceinline__ void feed_next(struct feed<J> &f, const struct mlp_args &x, bf16 *ring, ptx_shared place, int slot)
{
	enum { FIRST = THREADS / 4 * BK };

	if (f.tile < x.tiles * x.trials) {
		if (f.left % 8 == 0) {
			const ptx_shared s = place + slot * stage<J>::SIZE * (unsigned)sizeof(bf16);
			const unsigned rows = feed_column() < f.left ? f.rows : 0;
#pragma unroll
			for (int i = 0; i < feed<J>::ROWS; i++)
				if (J == 0 || (int)threadIdx.x / 4 + i * THREADS / 4 < f.places)
					ptx_copy16_if(s + i * FIRST * (int)sizeof(bf16), f.w + f.row[i], rows & 1u << i);
		} else {
			bf16 *to = ring + slot * stage<J>::SIZE + in_stage(threadIdx.x / 4, threadIdx.x % 4);
#pragma unroll 1
			for (int i = 0; i < feed<J>::ROWS; i++)
				if (J == 0 || (int)threadIdx.x / 4 + i * THREADS / 4 < f.places) {
					int row = f.row[0];
#pragma unroll
					for (int u = 1; u < feed<J>::ROWS; u++)
						row = i == u ? f.row[u] : row;
					copy_odd(to + i * FIRST, f.w + row, f.rows & 1u << i ? copy_left(f.left, feed_column()) : 0);
				}
		}
#pragma unroll
		for (int i = 0; i < feed<J>::ROWS; i++)
			f.row[i] += BK;
		f.left -= BK;
		if (f.left <= 0) {
			if (++f.section == x.chunks + (J ? 1 + x.branches : 0))
				feed_tile<J>(f, x, busy_tile(x, f.tile + gridDim.x));
			else
				feed_section<J>(f, x);
		}
	}
	ptx_copy_commit();
}

/* States of a tile, zeros from a state's end to `columns` and below the last row. at(row, column): where 8 of them go. */
template <typename At> __device__ __forceinline__ void load_states(const struct mlp_args &x, int columns, int rows, int z, int first, int valid, At at)
{
	const int row = threadIdx.x / 4;

#pragma unroll 1
	for (int col = threadIdx.x % 4 * 8; col < columns; col += 32)
#pragma unroll 1
		for (int r = row; r < rows; r += THREADS / 4) {
			bf16 *to = at(r, col);
			const int left = r < valid ? copy_left(x.sd, col) : 0;

			if (x.x) {
				const bf16 *s = (const bf16 *)((const char *)x.x + z * x.x_trial);

				ptx_copy16(ptx_shared_at(to), s + (size_t)(first + r) * x.ldx + (left ? col : 0), 2 * left);
				continue;
			}
			const float *s = (const float *)((const char *)x.obs + z * x.x_trial) + (size_t)(first + r) * x.sd + col;
			__align__(16) __nv_bfloat162 v[4];
#pragma unroll
			for (int e = 0; e < 4; e++) {
				float2 y = {0.f, 0.f};

				if (x.sd % 2 == 0 && 2 * e + 1 < left)
					y = *(const float2 *)(s + 2 * e);
				else
					y.x = 2 * e < left ? s[2 * e] : 0.f, y.y = 2 * e + 1 < left ? s[2 * e + 1] : 0.f;
				v[e] = __floats2bfloat162_rn(y.x, y.y);
			}
			*(uint4 *)to = *(const uint4 *)v;
		}
}

/* An address that a register is worth. With actions there is none to spare. */
template <int J> __device__ __forceinline__ ptx_shared keep(ptx_shared x) { return J ? x : ptx_keep(x); }

/* Where a lane reads the fragments of a step, in bytes. Worked out before the loops: the products of a step are few, and what stands
 * between a barrier and the first of them all warps wait for. */
struct reader {
	ptx_shared rows, weights; /* a section's first step; the ring's first stage */
	unsigned down;            /* from 16 rows to the next 16 */
	int other;                /* from the first 16 of k to the other 16, in a stage */
};
template <int J> __device__ __forceinline__ struct reader reader_of(const bf16 *rows, int ld, const bf16 *stage)
{
	const int lane = threadIdx.x & 31, at = in_stage((lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);

	return {keep<J>(ptx_shared_at(rows + (lane & 15) * ld + (lane >> 4) * 8)), keep<J>(ptx_shared_at(stage + at)), 16u * ld * (unsigned)sizeof(bf16),
	        ((at ^ 16) - at) * (int)sizeof(bf16)};
}
/* At its step from column k of a section on, with its weights in `slot`. */
template <int J> __device__ __forceinline__ struct reader reader_at(struct reader r, int k, int slot)
{
	return {r.rows + k * (unsigned)sizeof(bf16), r.weights + slot * stage<J>::SIZE * (unsigned)sizeof(bf16), r.down, r.other};
}

/* A warp's share of a step. The order of gemm.cu: by 16 of k, upwards. */
template <int MI, int NJ> __device__ __forceinline__ void multiply(float (&acc)[MI][NJ][4], const struct reader &r)
{
#pragma unroll
	for (int k = 0; k < BK; k += 16) {
		unsigned fa[MI][4], fb[NJ / 2][4];
#pragma unroll
		for (int i = 0; i < MI; i++)
			ptx_ldmatrix4(fa[i], r.rows + i * r.down + k * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < NJ / 2; j++)
			ptx_ldmatrix4(fb[j], r.weights + (k ? r.other : 0) + j * 16 * BK * (unsigned)sizeof(bf16));
#pragma unroll
		for (int j = 0; j < NJ; j++)
#pragma unroll
			for (int i = 0; i < MI; i++)
				ptx_mma_bf16(acc[i][j], fa[i], fb[j / 2][(j & 1) * 2], fb[j / 2][(j & 1) * 2 + 1]);
	}
}

/* Biases of a lane's columns. */
template <int NJ> __device__ __forceinline__ void load_bias(float (&b)[NJ][2], const float *bias)
{
	bias += (threadIdx.x & 3) * 2;
#pragma unroll
	for (int j = 0; j < NJ; j++) {
		const float2 v = *(const float2 *)(bias + j * 8);

		b[j][0] = v.x, b[j][1] = v.y;
	}
}

/* A hidden layer's columns from the fragments to shared memory, after relu. */
template <int MI, int NJ> __device__ __forceinline__ void keep_hidden(const float (&acc)[MI][NJ][4], const float (&b)[NJ][2], bf16 *to, int ld)
{
	const int lane = threadIdx.x & 31;

	to += (size_t)(lane / 4) * ld + (lane & 3) * 2;
#pragma unroll
	for (int i = 0; i < MI; i++)
#pragma unroll
		for (int half = 0; half < 2; half++)
#pragma unroll
			for (int j = 0; j < NJ; j++)
				*(__nv_bfloat162 *)(to + (i * 16 + half * 8) * ld + j * 8) = __floats2bfloat162_rn(
					ptx_max_nan(acc[i][j][half * 2] + b[j][0], 0.f), ptx_max_nan(acc[i][j][half * 2 + 1] + b[j][1], 0.f));
}

/* Outputs to memory. to: the warp's first column in its first row; rows, n: of the warp that are valid. */
template <int MI, int NJ> __device__ __forceinline__ void write_out(const float (&acc)[MI][NJ][4], const float (&b)[NJ][2], float *to, int ldo, int rows, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;
#pragma unroll
	for (int i = 0; i < 2 * MI; i++) {
		if (row + i * 8 >= rows)
			break;
		float *p = to + (size_t)(row + i * 8) * ldo + col;
#pragma unroll
		for (int j = 0; j < NJ; j++)
			if (j * 8 + col < n)
				__stwb((float2 *)(p + j * 8), make_float2(ptx_max_nan(acc[i / 2][j][i % 2 * 2] + b[j][0], -INFINITY),
				                                          ptx_max_nan(acc[i / 2][j][i % 2 * 2 + 1] + b[j][1], -INFINITY)));
	}
}

/* A chunk's hidden columns of `rows` rows from shared memory to memory, 16 bytes at a time. */
__device__ __forceinline__ void keep_rows(const struct mlp_args &x, const struct mlp_chunk &q, const bf16 *act, int z, int first, int rows)
{
	const int ldh = x.ldhidden[q.to], col = threadIdx.x % 8 * 8;
	bf16 *h = (bf16 *)((char *)x.hidden[q.to] + z * x.hidden_trial[q.to]) + (size_t)first * ldh + col;

	act += col;
#pragma unroll 1
	for (int u = 0; u < q.units; u++) {
		if (col >= q.unit[u].g_n)
			continue;
#pragma unroll 4
		for (int r = threadIdx.x / 8; r < rows; r += THREADS / 8)
			*(uint4 *)(h + (size_t)r * ldh + q.unit[u].g) = *(const uint4 *)(act + (size_t)r * x.ld + q.unit[u].c);
	}
}

/* A warp's share of a step of the last layer, for actions: 16 rows by all columns of a head of so many actions. Weights are read one
 * pair of eights ahead. */
template <int J> __device__ __forceinline__ void multiply_all(float (&acc)[PICKS * J][4], const struct reader &r, int actions)
{
	enum { MOST = PICKS * J, PAIRS = (MOST + 1) / 2 };
	ptx_shared b = r.weights;
#pragma unroll
	for (int k = 0; k < BK; k += 16, b += r.other) {
		unsigned fa[4], fb[2][4];

		ptx_ldmatrix4(fa, r.rows + k * (unsigned)sizeof(bf16));
		ptx_ldmatrix4(fb[0], b);
#pragma unroll
		for (int action = 0; action < PICKS; action++)
			if (action < actions) /* the pairs that its eights begin */
#pragma unroll
				for (int j = (action * J + 1) / 2; j < ((action + 1) * J + 1) / 2; j++) {
					if (j + 1 < PAIRS)
						ptx_ldmatrix4(fb[(j + 1) & 1], b + (j + 1) * 16 * BK * (unsigned)sizeof(bf16));
					ptx_mma_bf16(acc[2 * j], fa, fb[j & 1][0], fb[j & 1][1]);
					if (2 * j + 1 < MOST)
						ptx_mma_bf16(acc[2 * j + 1], fa, fb[j & 1][2], fb[j & 1][3]);
				}
	}
}

template <int J> __device__ __forceinline__ void add_bias(float (*acc)[4], const float *bias, int actions)
{
	bias += (threadIdx.x & 3) * 2;
#pragma unroll
	for (int a = 0; a < PICKS; a++) {
		if (a >= actions)
			break;
#pragma unroll
		for (int j = 0; j < J; j++) {
			const float2 b = *(const float2 *)(bias + (a * J + j) * 8);
#pragma unroll
			for (int e = 0; e < 4; e++)
				acc[a * J + j][e] += e & 1 ? b.y : b.x;
		}
	}
}

/* Greedy action of a branch for the row whose numbers the four lanes of a quad hold in v and the first two of adv: of eight
 * atoms 8 j .. this lane has 2 t and 2 t + 1; v points at the first of them, APART floats on are those of the next eight. The sums are added up as head_greedy() does, where lane l of a warp has
 * atoms l and l + 32 and halves meet at distance 16, 8, 4, 2, 1: those are j + 4, then j + 2, j + 1, lane t + 2, t + 1,
 * the two atoms of a lane. */
template <int J, int APART>
__device__ __forceinline__ int pick(const float *v, const float (*adv)[4], int actions, int atoms, struct head_support s)
{
	/* No number of atoms has that bit, which the compiler cannot know: else it works out what follows from t alone before the
	 * loop over the branches, and runs out of registers. */
	const int t = (threadIdx.x & 3) * 2 + (atoms & 0x8000);
	const float share = 1.f / actions;
	float base[J][2], best_q = 0.f; /* V less the mean; -inf behind the last atom, which the exponent makes 0 */
	int best = 0;

#pragma unroll
	for (int j = 0; j < J; j++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			float sum = 0.f;
#pragma unroll
			for (int a = 0; a < PICKS; a++)
				if (a < actions)
					sum += adv[a * J + j][c];
			base[j][c] = j * 8 + t + c < atoms ? fmaf(-sum, share, v[j * APART + c]) : -INFINITY;
		}
#pragma unroll
	for (int a = 0; a < PICKS; a++) {
		if (a >= actions)
			break;
		float top = -INFINITY, sum[2][4] = {}, z[2][4] = {};
#pragma unroll
		for (int j = 0; j < J; j++)
#pragma unroll
			for (int c = 0; c < 2; c++)
				top = fmaxf(top, base[j][c] + adv[a * J + j][c]);
		const float shift = head_shift(head_maximum<4>(top));
#pragma unroll
		for (int j = 0; j < J; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				const float e = head_exp(base[j][c] + adv[a * J + j][c], shift);

				sum[c][j & 3] += e;
				z[c][j & 3] = fmaf(e, head_value(s, j * 8 + t + c), z[c][j & 3]);
			}
		float both[2][2]; /* by atom of the lane: sum, sum of z */
#pragma unroll
		for (int c = 0; c < 2; c++) {
			both[c][0] = (sum[c][0] + sum[c][2]) + (sum[c][1] + sum[c][3]);
			both[c][1] = (z[c][0] + z[c][2]) + (z[c][1] + z[c][3]);
		}
#pragma unroll
		for (int o = 2; o; o >>= 1)
#pragma unroll
			for (int c = 0; c < 2; c++)
#pragma unroll
				for (int k = 0; k < 2; k++)
					both[c][k] += __shfl_xor_sync(0xffffffffu, both[c][k], o);
		const float q = (both[0][1] + both[1][1]) / (both[0][0] + both[1][0]);
		if (a == 0 || q > best_q)
			best = a, best_q = q;
	}
	return best;
}

/* Shape: of a block; J: eights of atoms that an action's columns are apart, for actions, 0: outputs. */
template <typename Shape, int J> __global__ void __launch_bounds__(THREADS, 1) k_mlp(const __grid_constant__ struct mlp_args x)
{
	enum { MI = Shape::MI, NJ = Shape::NJ, ROWS = Shape::ROWS, STAGES = Shape::STAGES, SIZE = stage<J>::SIZE };
	PTX_SHARED(char, shared);
	bf16 *ring = (bf16 *)shared, *act = ring + STAGES * SIZE;
	float *shared_bias = (float *)(act + ROWS * x.ld); /* of the chunk or head at work, as its rows lie in a stage */
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, wm = warp / Shape::WARPS_N * MI * 16, wn = warp % Shape::WARPS_N * NJ * 8;
	const ptx_shared place = keep<J>(ptx_shared_at(ring + in_stage(threadIdx.x / 4, threadIdx.x % 4)));
	struct feed<J> f = {};
	int slot = 0;

	if (J) { /* a launch of its own kind: the weights may have been written just before */
		cuda_wait_before();
		cuda_let_next();
	}
	int id = busy_tile(x, blockIdx.x);
	feed_tile<J>(f, x, id);
#pragma unroll 1
	for (int i = 0; i < STAGES - 1; i++)
		feed_next<J>(f, x, ring, place, i);
	if (!J) {
		cuda_wait_before();
		cuda_let_next();
	}
	/* A step: the stage is there for all, and the place of the one before is free. Of the two warps on a scheduler one asks
	 * for more weights before its products, the other behind: so one of them always multiplies. */
	const bool ahead = warp < 4;
	const int column = threadIdx.x % UNIT;
	auto begin_step = [&]() {
		ptx_copy_wait<STAGES - 2>();
		__syncthreads();
		if (ahead)
			feed_next<J>(f, x, ring, place, (slot - 1) & (STAGES - 1));
	};
	auto end_step = [&]() {
		if (!ahead)
			feed_next<J>(f, x, ring, place, (slot - 1) & (STAGES - 1));
		slot = (slot + 1) & (STAGES - 1);
	};
#pragma unroll 1
	for (; id < x.tiles * x.trials; id = busy_tile(x, id + gridDim.x)) {
		const int z = id / x.tiles, at = id % x.tiles;
		const struct mlp_pass &p = x.pass[at >= x.first_tile];
		const int first = (at - (at >= x.first_tile ? x.first_tile : 0)) * ROWS, valid = min(ROWS, p.rows - first);
		const float *bias = x.bias[p.target] + z * x.params;
		const struct reader layers = reader_of<J>(act + wm * x.ld, x.ld, ring + wn * BK);

		__syncthreads(); /* the hidden columns are free */
		load_states(x, (x.sd + BK - 1) / BK * BK, ROWS, z, p.x_row + first, valid, [&](int r, int c) { return act + (size_t)r * x.ld + x.trunk + c; });
		ptx_copy_commit();
		ptx_copy_wait<0>();
#pragma unroll 1
		for (int section = 0; section < x.chunks; section++) {
			const struct mlp_chunk &q = x.chunk[section];
			const struct mlp_unit &u = q.unit[wn / UNIT];
			const bool mine = wn / UNIT < q.units, out = !J && q.to == TO_OUT;
			struct reader r = layers;
			float acc[MI][NJ][4] = {}, b[NJ][2];

			r.rows = keep<J>(r.rows + u.a * (unsigned)sizeof(bf16));
#pragma unroll 1
			for (int k = 0; k < q.k; k += BK) {
				begin_step();
				if (!J && k == 0 && section && x.chunk[section - 1].to != TO_OUT && p.keep > first)
					keep_rows(x, x.chunk[section - 1], act, z, p.row + first, min(valid, p.keep - first));
				float mine_bias = 0.f;
				if (k == 0 && column < q.unit[threadIdx.x / UNIT].n)
					mine_bias = bias[q.unit[threadIdx.x / UNIT].bias + column];
				if (mine)
					multiply<MI, NJ>(acc, reader_at<J>(r, k, slot));
				if (k == 0)
					shared_bias[threadIdx.x] = mine_bias;
				end_step();
			}
			if (!out || q.k <= BK)
				__syncthreads(); /* nobody reads any more what is written now, and biases are there */
			if (mine)
				load_bias<NJ>(b, shared_bias + wn);
			if (!out) {
				if (mine)
					keep_hidden<MI, NJ>(acc, b, act + wm * x.ld + u.c + wn % UNIT, x.ld);
			} else if (mine) {
				float *to = (float *)((char *)x.out + z * x.out_trial) + (size_t)(p.row + first + wm) * x.ldo + u.g + wn % UNIT;

				write_out<MI, NJ>(acc, b, to, x.ldo, valid - wm, u.g_n - wn % UNIT);
			}
		}
		if constexpr (J > 0) {
			const struct head_support s = head_support_of(&x.clock[z], x.atoms);
			const struct reader heads = reader_of<J>(act + warp * 16 * x.ld, x.ld, ring);
			const bool mine = warp * 16 < ROWS;
			/* V of this lane's rows and atoms, where the value head's hidden columns were */
			float *v = (float *)(act + (warp * 16 + lane / 4) * x.ld + x.head[0].a) + (lane & 3) * 2;

#pragma unroll 1
			for (int h = 0; h <= x.branches; h++) {
				const struct mlp_head &q = x.head[h];
				float acc[PICKS * J][4] = {};

#pragma unroll 1
				for (int k = 0; k < q.k; k += BK) {
					begin_step();
					float mine_bias[2] = {};
#pragma unroll
					for (int i = 0; i < 2; i++) {
						const int at = threadIdx.x + i * THREADS, action = at / (8 * J), atom = at % (8 * J);

						if (k == 0 && action < q.actions && atom < x.atoms)
							mine_bias[i] = bias[q.bias + action * x.atoms + atom];
					}
					if (mine)
						multiply_all<J>(acc, reader_at<J>(heads, q.a + k, slot), q.actions);
					if (k == 0) {
						shared_bias[threadIdx.x] = mine_bias[0];
						if (threadIdx.x + THREADS < PICKS * J * 8)
							shared_bias[threadIdx.x + THREADS] = mine_bias[1];
					}
					end_step();
				}
				if (q.k <= BK)
					__syncthreads(); /* biases are there */
				if (!mine)
					continue;
				add_bias<J>(acc, shared_bias, q.actions);
				if (h == 0) {
					__syncwarp();
#pragma unroll
					for (int j = 0; j < J; j++) {
						*(float2 *)(v + j * 8) = make_float2(acc[j][0], acc[j][1]);
						*(float2 *)(v + j * 8 + 4 * x.ld) = make_float2(acc[j][2], acc[j][3]); /* 8 rows down */
					}
					continue;
				}
#pragma unroll 1
				for (int half = 0; half < 2; half++) { /* not unrolled: code that runs once is slow, and two at a time run out of registers */
					const int row = warp * 16 + half * 8 + lane / 4, best = pick<J, 8>(v + half * 4 * x.ld, acc, q.actions, x.atoms, s);

					if ((lane & 3) == 0 && row < valid)
						((int32_t *)((char *)x.action + z * x.action_trial))[(size_t)(p.row + first + row) * x.branches + h - 1] = best;
#pragma unroll
					for (int j = 0; j < PICKS * J; j++)
						acc[j][0] = acc[j][2], acc[j][1] = acc[j][3];
				}
			}
		}
	}
}

} // namespace

#endif
