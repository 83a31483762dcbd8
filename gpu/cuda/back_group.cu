/* The gradient through the layers by warpgroups (wgmma.cuh), for sm_90a: what back.cu computes, in tiles of 64 or 128 rows, the same bits.
 *
 * A block takes its tile head by head: the gradients of the head's outputs come into panels A, their product with the output layer goes to one half of
 * panels B as dhead, and its product with the head's hidden layer is added to dh2, which stays in registers until the last head; then dh2 -> A,
 * dh1 -> B. What relu let through is copied to where a layer's results will lie, which take its place. A panel is 64 columns: ROWS rows of 128
 * bytes, as the instruction wants them. Weights come through one ring of stages (64 of k, 256 columns) that runs on from layer to layer and
 * from tile to tile; the products of two steps may be under way, so a stage is overwritten two steps after it was read. What else is copied
 * joins the group of the next stage. */
#include <cuda_bf16.h>
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/copy.cuh"
#include "gpu/cuda/group.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { UNIT = 64, UNITS = 4, HEAD_UNITS = 2, THREADS = 256, HEADS = 1 + FH_BRANCH_MAX, PRODUCTS = 2 * HEADS + 1 };
enum { TO_HEAD, TO_H2, TO_H1, LAYERS };

/* A block: DOWN warpgroups of 64 rows below each other, ACROSS beside each other that divide the columns, a ring of STAGES. */
template <int DOWN_, int ACROSS_, int STAGES_> struct crew {
	enum { DOWN = DOWN_, ACROSS = ACROSS_, STAGES = STAGES_, AHEAD = STAGES - 2, ROWS = DOWN * 64, TRUNK = UNITS / ACROSS, HEAD = HEAD_UNITS / ACROSS };
	enum { PANEL = ROWS * PTX_OPERAND_ROW, STAGE = UNITS * GROUP_UNIT, ALIGN = PTX_OPERAND_EIGHT, BYTES = ALIGN + STAGES * STAGE + 2 * UNITS * PANEL };
	static_assert(DOWN * ACROSS * 128 == THREADS, "a block's warps");
};

/* Weights of a product: rows of n elements from w on, the sum runs over k of them. */
struct product { int w, k, n; };
/* Columns of a layer's gradient and activations in memory: from g on, n, padded with zeros to g_n. */
struct columns { int g, n, g_n; };

struct group_args {
	const bf16 *weight, *dout;
	const bf16 *act[LAYERS]; /* what relu let through */
	bf16 *d[LAYERS];
	size_t params, dout_trial, act_trial[LAYERS], d_trial[LAYERS]; /* elements; bytes, bytes, bytes */
	int ldo, ld[LAYERS];
	int rows, tiles, trials, heads;
	struct columns out[HEADS], head[HEADS], h2, h1;
	struct product product[PRODUCTS]; /* of each head the output layer, the hidden layer; the trunk's second layer */
};
static_assert(sizeof(struct group_args) <= 4096, "kernel arguments");

/* Where the copies of weights stand: they run ahead of the products. A thread brings 8 columns of every 32nd row of every unit of a stage. */
struct feed {
	int tile, section;
	int left, columns, ld; /* rows of the sum from this thread's first one on; its columns in the first unit and behind; of a row */
	const bf16 *from;
};

__device__ __forceinline__ void feed_section(struct feed &f, const struct group_args &x)
{
	const struct product &q = x.product[f.section];
	const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

	f.left = q.k - row, f.columns = q.n - col, f.ld = q.n;
	f.from = x.weight + f.tile / x.tiles * x.params + q.w + (size_t)row * q.n + col;
}

/* Asks for the next stage, always a group. place: of this thread's first 16 bytes in the stage. */
__device__ __forceinline__ void feed_next(struct feed &f, const struct group_args &x, ptx_shared place)
{
	if (f.tile < x.tiles * x.trials) {
		const bf16 *lower = f.from + 32 * f.ld;
#pragma unroll
		for (int u = 0; u < UNITS; u++)
			if (u * UNIT < f.ld) {
				ptx_copy16_if(place + u * GROUP_UNIT, f.from + u * UNIT, f.columns > u * UNIT && f.left > 0);
				ptx_copy16_if(place + u * GROUP_UNIT + GROUP_UNIT / 2, lower + u * UNIT, f.columns > u * UNIT && f.left > 32);
			}
		f.from = lower + 32 * f.ld;
		f.left -= GROUP_DEEP;
		if (f.left + (int)threadIdx.x / 8 <= 0) {
			if (++f.section == 2 * x.heads + 1)
				f.section = 0, f.tile += gridDim.x;
			if (f.tile < x.tiles * x.trials)
				feed_section(f, x);
		}
	}
	ptx_copy_commit();
}

/* Rows of a tile from memory to panels, columns [g, g + n), zeros behind as far as units reach and below the last row. In the next group. */
template <typename Team> __device__ __forceinline__ void load_rows(char *to, const bf16 *from, int ld, const struct columns &q, int valid)
{
	const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

	from += q.g;
#pragma unroll 1
	for (int u = 0; u * UNIT < q.n; u++)
#pragma unroll 2
		for (int r = row; r < Team::ROWS; r += THREADS / 8) {
			const int left = r < valid ? copy_left(q.n, u * UNIT + col) : 0;

			ptx_copy16(ptx_shared_at(to + u * Team::PANEL + ptx_operand_place(r, col / 8)), left ? from + (size_t)r * ld + u * UNIT + col : from, 2 * left);
		}
}

/* A layer's results from panels to memory, 16 bytes at a time. */
template <typename Team> __device__ __forceinline__ void keep_rows(const char *from, bf16 *to, int ld, const struct columns &q, int valid)
{
	const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

	to += q.g;
#pragma unroll 1
	for (int u = 0; u * UNIT < q.g_n; u++)
		if (u * UNIT + col < q.g_n)
#pragma unroll 4
			for (int r = row; r < valid; r += THREADS / 8)
				*(uint4 *)(to + (size_t)r * ld + u * UNIT + col) = *(const uint4 *)(from + u * Team::PANEL + ptx_operand_place(r, col / 8));
}

/* Results of `units` units to where their activations are, which say what relu let through. to: the warp's first row in the warpgroup's first
 * panel. */
template <typename Team, int MINE> __device__ __forceinline__ void keep(const float (*acc)[4], char *to, int units)
{
	const int lane = threadIdx.x & 31;

	to += lane / 4 * PTX_OPERAND_ROW + (lane & 3) * 4;
#pragma unroll
	for (int i = 0; i < MINE; i++) {
		if (i >= units)
			break;
#pragma unroll
		for (int j = 0; j < 8; j++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				__nv_bfloat162 *p = (__nv_bfloat162 *)(to + i * Team::PANEL + half * PTX_OPERAND_EIGHT + (j ^ lane / 4) * 16);
				const float2 open = __bfloat1622float2(*p);
				const float *v = acc[i * 8 + j] + half * 2;

				*p = __floats2bfloat162_rn(open.x > 0.f ? v[0] : 0.f, open.y > 0.f ? v[1] : 0.f);
			}
	}
}

__device__ __forceinline__ int units_in(const struct columns &q) { return (q.n + UNIT - 1) / UNIT; }

template <typename Team> __global__ void __launch_bounds__(THREADS, 1) k_back_group(const __grid_constant__ struct group_args x)
{
#ifdef PTX_WARPGROUPS
	enum { STAGES = Team::STAGES, AHEAD = Team::AHEAD, TRUNK = Team::TRUNK, HEAD = Team::HEAD, PANEL = Team::PANEL };
	PTX_SHARED(char, shared);
	char *ring = shared + (Team::ALIGN - ptx_shared_at(shared) % Team::ALIGN) % Team::ALIGN, *const pa = ring + STAGES * Team::STAGE, *const pb = pa + UNITS * PANEL;
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4; /* a warp agrees on them */
	const int down = group % Team::DOWN, across = group / Team::DOWN, row = down * 64 + warp % 4 * 16; /* the warp's first */
	const ptx_shared ring_at = ptx_shared_at(ring), place = ring_at + ptx_operand_place(threadIdx.x / 8, threadIdx.x % 8);
	const ptx_shared a_at = ptx_shared_at(pa) + down * 64 * PTX_OPERAND_ROW, b_at = ptx_shared_at(pb) + down * 64 * PTX_OPERAND_ROW;
	struct feed f = {};
	int slot = 0, next = AHEAD; /* stage of the step, of the copies */

	f.tile = blockIdx.x;
	feed_section(f, x);
#pragma unroll 1
	for (int i = 0; i < AHEAD; i++) /* weights: no launch just before writes them */
		feed_next(f, x, place + i * Team::STAGE);
	cuda_wait_before();
	cuda_let_next();
	/* A step: its stage is there for all, and the products of the step before the last are through. all: what else was copied, too. */
	auto begin_step = [&](bool all) {
		if (all)
			ptx_copy_wait<0>();
		else
			ptx_copy_wait<AHEAD - 1>();
		ptx_operands_written();
		__syncthreads();
	};
	auto end_step = [&]() {
		feed_next(f, x, place + next * Team::STAGE);
		next = next + 1 == STAGES ? 0 : next + 1;
		slot = slot + 1 == STAGES ? 0 : slot + 1;
	};
#pragma unroll 1
	for (int id = blockIdx.x; id < x.tiles * x.trials; id += gridDim.x) {
		const int z = id / x.tiles, first = id % x.tiles * Team::ROWS, valid = min((int)Team::ROWS, x.rows - first);
		const bf16 *dout = (const bf16 *)((const char *)x.dout + z * x.dout_trial) + (size_t)first * x.ldo;
		auto act = [&](int layer) { return (const bf16 *)((const char *)x.act[layer] + z * x.act_trial[layer]) + (size_t)first * x.ld[layer]; };
		auto d = [&](int layer) { return (bf16 *)((char *)x.d[layer] + z * x.d_trial[layer]) + (size_t)first * x.ld[layer]; };
		const int trunk2 = min(units_in(x.h2) - across * TRUNK, (int)TRUNK), trunk1 = min(units_in(x.h1) - across * TRUNK, (int)TRUNK); /* a warpgroup's units */
		float acc[TRUNK * 8][4] = {};

		__syncthreads(); /* the panels are free */
		load_rows<Team>(pa, dout, x.ldo, x.out[0], valid);
		load_rows<Team>(pb, act(TO_HEAD), x.ld[TO_HEAD], x.head[0], valid);
		ptx_copy_commit();
#pragma unroll 1
		for (int h = 0; h < x.heads; h++) {
			const int half = h % 2 * HEAD_UNITS * PANEL, units = min(units_in(x.head[h]) - across * HEAD, (int)HEAD);
			float head[HEAD * 8][4] = {};

#pragma unroll 1
			for (int k = 0; k < x.out[h].n; k += GROUP_DEEP) {
				begin_step(k == 0);
				group_multiply_some<8, HEAD, HEAD * 8, 0, 1>(head, 0, a_at + k / UNIT * PANEL, ring_at + slot * Team::STAGE + across * HEAD * GROUP_UNIT, units);
				end_step();
				ptx_group_wait<1, HEAD * 8>(head);
			}
			ptx_group_wait<0, HEAD * 8>(head);
			__syncthreads(); /* A and the other half of B are free */
			if (h + 1 < x.heads) {
				load_rows<Team>(pa, dout, x.ldo, x.out[h + 1], valid);
				load_rows<Team>(pb + HEAD_UNITS * PANEL - half, act(TO_HEAD), x.ld[TO_HEAD], x.head[h + 1], valid);
			} else {
				load_rows<Team>(pa, act(TO_H2), x.ld[TO_H2], x.h2, valid);
			}
			keep<Team, HEAD>(head, pb + half + across * HEAD * PANEL + row * PTX_OPERAND_ROW, units);
#pragma unroll 1
			for (int k = 0; k < x.head[h].n; k += GROUP_DEEP) {
				begin_step(false);
				group_multiply_some<8, TRUNK, TRUNK * 8, 0, 1>(acc, 0, b_at + half + k / UNIT * PANEL, ring_at + slot * Team::STAGE + across * TRUNK * GROUP_UNIT, trunk2);
				end_step();
				if (k == 0)
					keep_rows<Team>(pb + half, d(TO_HEAD), x.ld[TO_HEAD], x.head[h], valid);
				ptx_group_wait<1, TRUNK * 8>(acc);
			}
			ptx_group_wait<0, TRUNK * 8>(acc); /* else the assembler waits for every product: those of the next head have another target */
		}
		ptx_copy_wait<0>();
		__syncthreads(); /* activations of h2 are there, B is free */
		load_rows<Team>(pb, act(TO_H1), x.ld[TO_H1], x.h1, valid);
		keep<Team, TRUNK>(acc, pa + across * TRUNK * PANEL + row * PTX_OPERAND_ROW, trunk2);
#pragma unroll
		for (int j = 0; j < TRUNK * 8; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				acc[j][e] = 0.f;
#pragma unroll 1
		for (int k = 0; k < x.h2.n; k += GROUP_DEEP) {
			begin_step(false);
			group_multiply_some<8, TRUNK, TRUNK * 8, 0, 1>(acc, 0, a_at + k / UNIT * PANEL, ring_at + slot * Team::STAGE + across * TRUNK * GROUP_UNIT, trunk1);
			end_step();
			if (k == 0)
				keep_rows<Team>(pa, d(TO_H2), x.ld[TO_H2], x.h2, valid);
			ptx_group_wait<1, TRUNK * 8>(acc);
		}
		ptx_group_wait<0, TRUNK * 8>(acc);
		ptx_copy_wait<0>();
		__syncthreads(); /* activations of h1 are there */
		keep<Team, TRUNK>(acc, pb + across * TRUNK * PANEL + row * PTX_OPERAND_ROW, trunk1);
		__syncthreads();
		keep_rows<Team>(pb, d(TO_H1), x.ld[TO_H1], x.h1, valid);
	}
#endif
}

typedef crew<2, 1, 3> tall;
typedef crew<1, 2, 5> flat;

/* Fills what depends on the network alone. 0: it does not fit, or its rows are not of 16 bytes each. */
int describe(struct cuda_exec *c, struct group_args *x)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;

	*x = {};
	if (d->precision != FH_PRECISION_BF16 || d->params > INT32_MAX || max(d->VH, d->AH) > HEAD_UNITS * UNIT || max(d->H1, d->H2) > UNITS * UNIT)
		return 0;
	for (int l = 0; l < d->layers; l++)
		if (d->layer[l].w % 8 || (l != DQN_S1 && d->layer[l].in % 8))
			return 0;
	x->heads = 1 + d->D;
	for (int h = 0, g = 0; h < x->heads; h++) {
		const struct dqn_layer *hidden = &d->layer[DQN_V1 + 2 * h], *out = hidden + 1;

		if (out->out > UNITS * UNIT)
			return 0;
		x->out[h] = {s->seg[h], out->out, cuda_pad16(out->out)};
		x->head[h] = {g, hidden->out, cuda_pad16(hidden->out)};
		x->product[2 * h] = {(int)out->w, out->out, out->in};
		x->product[2 * h + 1] = {(int)hidden->w, hidden->out, hidden->in};
		g += cuda_pad16(hidden->out);
	}
	x->h2 = {0, d->H2, cuda_pad16(d->H2)}, x->h1 = {0, d->H1, cuda_pad16(d->H1)};
	x->product[2 * x->heads] = {(int)d->layer[DQN_S2].w, d->layer[DQN_S2].out, d->layer[DQN_S2].in};
	return 1;
}

/* Rows of a tile: tall ones where they take fewer waves of the machine than tiles of half as many rows take in three fifths of the time. */
int rows_of(const struct cuda_exec *c)
{
	const int asked = cuda_wide_asked() - GROUP_ASKED, machine = c->multiprocessors;

	if (asked == tall::ROWS || asked == flat::ROWS)
		return asked;
	const int high = cuda_tiles(cuda_tiles(c->dims.B, tall::ROWS) * c->dims.P, machine), low = cuda_tiles(cuda_tiles(c->dims.B, flat::ROWS) * c->dims.P, machine);

	return 5 * high <= 3 * low ? (int)tall::ROWS : (int)flat::ROWS;
}

template <typename Team> cudaError_t launch(struct cuda_exec *c, struct group_args *x)
{
	const cudaError_t e = cuda_allow_shared(c, k_back_group<Team>);

	if (e != cudaSuccess)
		return e;
	x->tiles = cuda_tiles(x->rows, Team::ROWS);
	return cuda_launch(c, k_back_group<Team>, dim3(min(x->tiles * x->trials, c->multiprocessors)), THREADS, (size_t)Team::BYTES, *x);
}

} // namespace

int back_group_takes(struct cuda_exec *c)
{
	struct group_args x;

	return !c->sync && cuda_warpgroups(c) && max((int)tall::BYTES, (int)flat::BYTES) <= (int)cuda_shared_most(c) && describe(c, &x);
}

int back_group(struct cuda_exec *c, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	struct group_args x;

	if (!describe(c, &x))
		return fh_fail(st, FH_INTERNAL, "backward: the network does not fit"); /* back_group_takes() said otherwise */
	back_tensors(c, &x);
	x.ldo = s->ldo, x.ld[TO_HEAD] = s->ldhead, x.ld[TO_H2] = s->ldh2, x.ld[TO_H1] = s->ldh1;
	x.rows = c->dims.B, x.trials = c->dims.P;
	const cudaError_t e = rows_of(c) == tall::ROWS ? launch<tall>(c, &x) : launch<flat>(c, &x);
	return e == cudaSuccess ? 0 : cuda_fail(st, e, "launch of backward");
}
