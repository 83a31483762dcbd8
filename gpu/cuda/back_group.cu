/* The gradient through the layers by warpgroups (group.cuh), for sm_90a: what back.cu computes, in tiles of 64 or 128 rows, the same bits.
 *
 * A warpgroup takes its 64 rows head by head: the product of the gradients of a head's outputs with the output layer, where relu let something through, is dhead,
 * and that one's product with the head's hidden layer is added to dh2, which stays in registers until the last head; then dh1. What is multiplied again
 * becomes an operand where it stands, in registers. What relu let through is copied to where a layer's results will lie, panels of 64 columns, whence they go to
 * memory box by box.
 *
 * A stage of the ring is four panels: of 64 rows of the sum 256 columns of weights, or 128 and each warpgroup's gradients of outputs. */
#include <cuda_bf16.h>
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/group.cuh"
#include "gpu/cuda/shared.cuh"
#include "gpu/cuda/tensor_map.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { HEADS = 1 + FH_BRANCH_MAX, TALL = GROUPS * GROUP_ROWS, LOW = GROUP_ROWS };
enum { STAGES = 4, STAGE = 4 * GROUP_UNIT, ALIGN = PTX_OPERAND_EIGHT, GROUP = (HEAD_PANELS + GROUP_PANELS) * GROUP_PANEL };
enum { BYTES = ALIGN + STAGES * STAGE + GROUPS * GROUP + (2 * STAGES + 2 * GROUPS) * 8, MORE = 232, FEWER = 40 };
static_assert(GROUPS * MORE + FEWER <= (GROUPS + 1) * GROUP_EACH, "registers of a block");
static_assert((int)GROUP_UNIT == (int)GROUP_PANEL, "a stage's panels are alike");

/* Maps of (column, row, trial), boxes of a panel; of weights a row is one of the layer's results. */
struct group_args {
	tensor_map out[HEADS], head[HEADS], trunk;       /* weights */
	tensor_map dout[HEADS];                          /* gradients of a head's outputs */
	tensor_map act[HEADS], act_h2, act_h1;           /* what relu let through */
	tensor_map d[HEADS], d_h2, d_h1;
	int rows, height, tiles, trials, heads, stages;  /* height: of a tile; stages: of a tile */
	int panels[HEADS];                               /* of a head's outputs */
};
static_assert(sizeof(struct group_args) <= 8192, "kernel arguments");

/* Which stage: of a tile's heads in turn `panels` with the gradients of outputs and HEAD_PANELS for dh2, then GROUP_PANELS for dh1. */
struct place { int id, head, panel; };
__device__ __forceinline__ void place_next(struct place &p, const struct group_args &x)
{
	p.panel++;
	if (p.panel < (p.head < x.heads ? x.panels[p.head] + HEAD_PANELS : (int)GROUP_PANELS))
		return;
	p.panel = 0;
	if (++p.head > x.heads)
		p.head = 0, p.id += gridDim.x;
}
__device__ __forceinline__ bool of_outputs(const struct place &p, const struct group_args &x) { return p.head < x.heads && p.panel < x.panels[p.head]; }
/* Warpgroups that have rows of the tile. */
__device__ __forceinline__ int groups_of(const struct place &p, const struct group_args &x)
{
	return min(x.height, x.rows - p.id % x.tiles * x.height) > GROUP_ROWS ? 2 : 1;
}

__device__ __forceinline__ void bring_weights(const struct group_ring &r, const struct place &p, const struct group_args &x)
{
	const bool outputs = of_outputs(p, x);
	const tensor_map *map = outputs ? &x.out[p.head] : p.head < x.heads ? &x.head[p.head] : &x.trunk;
	const int row = (outputs || p.head == x.heads ? p.panel : p.panel - x.panels[p.head]) * GROUP_DEEP, units = outputs ? (int)HEAD_PANELS : (int)GROUP_PANELS;

	ptx_barrier_expect(r.full + r.slot * 8, (unsigned)(outputs ? HEAD_PANELS + groups_of(p, x) : (int)GROUP_PANELS) * GROUP_UNIT);
#pragma unroll 1
	for (int u = 0; u < units; u++)
		ptx_box_load3(r.stage + r.slot * STAGE + u * GROUP_UNIT, map, u * GROUP_DEEP, row, p.id / x.tiles, r.full + r.slot * 8);
}
__device__ __forceinline__ void bring_gradients(const struct group_ring &r, const struct place &p, const struct group_args &x)
{
	if (!of_outputs(p, x))
		return;
	const int groups = groups_of(p, x);
#pragma unroll 1
	for (int g = 0; g < groups; g++)
		ptx_box_load3(r.stage + r.slot * STAGE + (HEAD_PANELS + g) * GROUP_UNIT, &x.dout[p.head], p.panel * GROUP_DEEP, p.id % x.tiles * x.height + g * GROUP_ROWS,
		              p.id / x.tiles, r.full + r.slot * 8);
}

/* Everything that comes by the ring, by one thread. The first weights before the launch in front has ended: no launch just before writes them. */
__device__ __forceinline__ void bring(const struct group_args &x, struct group_ring r)
{
	const int all = x.tiles * x.trials;
	struct place p = {(int)blockIdx.x, 0, 0};
	struct group_ring first = r;
	struct place q = p;
#pragma unroll 1
	for (int i = 0; i < (int)STAGES && p.id < all; i++) {
		bring_weights(r, p, x);
		group_ring_next<STAGES>(r);
		place_next(p, x);
	}
	cuda_wait_before();
	cuda_let_next();
#pragma unroll 1
	for (int i = 0; i < (int)STAGES && q.id < all; i++) {
		bring_gradients(first, q, x);
		group_ring_next<STAGES>(first);
		place_next(q, x);
	}
#pragma unroll 1
	while (p.id < all) {
		ptx_barrier_wait(r.free + r.slot * 8, r.phase ^ 1);
		bring_weights(r, p, x);
		bring_gradients(r, p, x);
		group_ring_next<STAGES>(r);
		place_next(p, x);
	}
}

/* 64 columns to where their activations are, which say what relu let through, and as fragments. at: of the warp's first row. */
__device__ __forceinline__ void let_through(unsigned (*a)[4], const float (*acc)[4], ptx_shared at)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const ptx_shared place = group_in_panel(at, i);
		unsigned open[4];

		ptx_ldmatrix4(open, place);
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const __nv_bfloat162 v = __floats2bfloat162_rn(acc[i * 2 + e / 2][e % 2 * 2], acc[i * 2 + e / 2][e % 2 * 2 + 1]);

			a[i][e] = *(const unsigned *)&v & ptx_positive_bf16(open[e]);
		}
		ptx_stmatrix4(place, a[i]);
	}
}

/* A stage that adds to dh2 or dh1, 64 of k. */
template <int FIRST> __device__ __forceinline__ void multiply_wide(struct group_ring &r, float (*acc)[4], unsigned (*a)[4], bool free_before)
{
	const ptx_shared b = r.stage + r.slot * STAGE, before = r.before;

	ptx_barrier_wait(r.full + r.slot * 8, r.phase);
	ptx_group_begin_a<0>(nullptr);
	group_step<16, FIRST, 1>(acc, a, b);
	group_step<16, FIRST, 1>(acc + 16, a, b + 2 * GROUP_UNIT);
	group_ring_next<STAGES>(r);
	if (free_before) {
		ptx_group_wait_before<2>();
		group_ring_free(before);
	}
}

__global__ void __launch_bounds__(GROUP_THREADS, 1) k_back_group(const __grid_constant__ struct group_args x)
{
#ifdef PTX_WARPGROUPS
	PTX_SHARED(char, shared);
	char *const ring = shared + (ALIGN - ptx_shared_at(shared) % ALIGN) % ALIGN, *const groups = ring + STAGES * STAGE;
	const ptx_shared barriers = ptx_shared_at(groups + GROUPS * GROUP), loads = barriers + 2 * STAGES * 8;
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4; /* a warp agrees on them */
	struct group_ring r = {barriers, barriers + STAGES * 8, ptx_shared_at(ring), 0, 0, 0};

	if (threadIdx.x == 0) {
		for (int i = 0; i < 2 * GROUPS; i++)
			ptx_barrier_init(loads + i * 8, 1);
		group_ring_make<STAGES>(r);
	}
	__syncthreads();
	if (group == GROUPS) {
		ptx_registers_fewer<FEWER>();
		if (threadIdx.x == GROUPS * 128) {
			bring(x, r);
		} else {
			cuda_wait_before();
			cuda_let_next();
		}
		return;
	}
	ptx_registers_more<MORE>();
	cuda_wait_before();
	cuda_let_next();
	const ptx_shared head_panels = ptx_shared_at(groups) + group * GROUP, trunk_panels = head_panels + HEAD_PANELS * GROUP_PANEL;
	const ptx_shared head_there = loads + group * 2 * 8, trunk_there = head_there + 8;
	const int own = warp % 4 * 16 * PTX_OPERAND_ROW; /* the warp's first row in a panel */
	const bool asks = threadIdx.x % 128 == 0;
	unsigned head_phase = 0, trunk_phase = 0;
	float acc[32][4], head[16][4];

#pragma unroll 1
	for (int id = blockIdx.x; id < x.tiles * x.trials; id += gridDim.x) {
		const int z = id / x.tiles, row = id % x.tiles * x.height + group * GROUP_ROWS; /* the warpgroup's first */

		if (group * GROUP_ROWS >= min(x.height, x.rows - id % x.tiles * x.height)) {
			group_ring_pass<STAGES>(r, x.stages);
			continue;
		}
		/* By one thread: panels that are free of what was on its way to memory get activations; results that all have left go there. */
		auto load = [&](const tensor_map &map, ptx_shared to, int panels, ptx_shared there) {
			if (asks) {
				ptx_box_wait();
				ptx_barrier_expect(there, panels * GROUP_PANEL);
				for (int c = 0; c < panels; c++)
					ptx_box_load3(to + c * GROUP_PANEL, &map, c * GROUP_DEEP, row, z, there);
			}
		};
		auto leave = [&](const tensor_map &map, ptx_shared from, int panels) {
			ptx_operands_written();
			ptx_group_sync(group);
			if (asks)
				for (int c = 0; c < panels; c++)
					ptx_box_store(from + c * GROUP_PANEL, &map, c * GROUP_DEEP, row, z);
		};

		load(x.act[0], head_panels, HEAD_PANELS, head_there);
		load(x.act_h2, trunk_panels, GROUP_PANELS, trunk_there);
#pragma unroll
		for (int j = 0; j < 32; j++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				acc[j][e] = 0.f;
#pragma unroll 1
		for (int h = 0; h < x.heads; h++) {
			unsigned a[HEAD_PANELS * 4][4];

			ptx_barrier_wait(r.full + r.slot * 8, r.phase);
			ptx_group_begin_a<0>(nullptr);
			group_step<16, 1, 1>(head, r.stage + r.slot * STAGE + (HEAD_PANELS + group) * GROUP_UNIT, r.stage + r.slot * STAGE);
			group_ring_next<STAGES>(r);
#pragma unroll 1
			for (int p = 1; p < x.panels[h]; p++) {
				const ptx_shared before = r.before;

				ptx_barrier_wait(r.full + r.slot * 8, r.phase);
				ptx_group_begin_a<0>(nullptr);
				group_step<16, 0, 1>(head, r.stage + r.slot * STAGE + (HEAD_PANELS + group) * GROUP_UNIT, r.stage + r.slot * STAGE);
				group_ring_next<STAGES>(r);
				ptx_group_wait<1, 16>(head);
				group_ring_free(before);
			}
			ptx_barrier_wait(head_there, head_phase);
			head_phase ^= 1;
			ptx_group_wait<0, 16>(head);
			group_ring_free(r.before);
#pragma unroll
			for (int c = 0; c < (int)HEAD_PANELS; c++)
				let_through(a + c * 4, head + c * 8, head_panels + c * GROUP_PANEL + own);
			leave(x.d[h], head_panels, HEAD_PANELS);
			ptx_group_begin_a<HEAD_PANELS * 4>(a);
			multiply_wide<0>(r, acc, a, false);
			if (h + 1 < x.heads)
				load(x.act[h + 1], head_panels, HEAD_PANELS, head_there);
			multiply_wide<0>(r, acc, a + 4, true);
			ptx_group_wait<0, 32>(acc);
			group_ring_free(r.before);
		}
		unsigned a[GROUP_PANELS * 4][4];

		ptx_barrier_wait(trunk_there, trunk_phase);
		trunk_phase ^= 1;
#pragma unroll
		for (int c = 0; c < (int)GROUP_PANELS; c++)
			let_through(a + c * 4, acc + c * 8, trunk_panels + c * GROUP_PANEL + own);
		leave(x.d_h2, trunk_panels, GROUP_PANELS);
		ptx_group_begin_a<GROUP_PANELS * 4>(a);
		multiply_wide<1>(r, acc, a, false);
		load(x.act_h1, trunk_panels, GROUP_PANELS, trunk_there);
#pragma unroll
		for (int p = 1; p < (int)GROUP_PANELS; p++)
			multiply_wide<0>(r, acc, a + p * 4, true);
		ptx_barrier_wait(trunk_there, trunk_phase);
		trunk_phase ^= 1;
		ptx_group_wait<0, 32>(acc);
		group_ring_free(r.before);
#pragma unroll
		for (int c = 0; c < (int)GROUP_PANELS; c++) {
			unsigned last[4][4];

			let_through(last, acc + c * 8, trunk_panels + c * GROUP_PANEL + own);
		}
		leave(x.d_h1, trunk_panels, GROUP_PANELS);
	}
	if (asks)
		ptx_box_wait();
#endif
}

/* 1: a network like this is taken. Rows of weights are multiples of 16 bytes. */
int fits(const struct dqn_dims *d)
{
	if (d->precision != FH_PRECISION_BF16 || max(d->VH, d->AH) > HEAD_PANELS * GROUP_DEEP || max(d->H1, d->H2) > GROUP_PANELS * GROUP_DEEP)
		return 0;
	for (int l = 1; l < d->layers; l++)
		if (d->layer[l].w % 8 || d->layer[l].in % 8)
			return 0;
	return 1;
}

/* Columns g..g + n of rows of ld elements, the batch's of every trial. */
int map_rows(const struct cuda_exec *c, tensor_map *map, const bf16 *base, size_t trial, int ld, int g, int n)
{
	static const uint32_t box[3] = {GROUP_DEEP, GROUP_ROWS, 1};
	const uint64_t size[3] = {(uint64_t)n, (uint64_t)c->dims.B, (uint64_t)c->dims.P}, stride[2] = {(uint64_t)ld * sizeof(bf16), trial};

	return cuda_tensor_map(map, base + g, 3, size, stride, box);
}
int map_weights(const struct cuda_exec *c, tensor_map *map, const bf16 *weight, int layer)
{
	static const uint32_t box[3] = {GROUP_DEEP, GROUP_DEEP, 1};
	const struct dqn_layer *l = &c->dims.layer[layer];
	const uint64_t size[3] = {(uint64_t)l->in, (uint64_t)l->out, (uint64_t)c->dims.P}, stride[2] = {(uint64_t)l->in * sizeof(bf16), (uint64_t)c->dims.params * sizeof(bf16)};

	return cuda_tensor_map(map, weight + l->w, 3, size, stride, box);
}

/* Maps of all tensors. 0: there are no such maps. */
int describe(struct cuda_exec *c, struct group_args *x)
{
	enum { TO_HEAD, TO_H2, TO_H1, LAYERS };
	struct { const bf16 *weight, *dout, *act[LAYERS]; bf16 *d[LAYERS]; size_t params, dout_trial, act_trial[LAYERS], d_trial[LAYERS]; } t;
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;
	int there = 1;

	back_tensors(c, &t);
	x->heads = 1 + d->D, x->stages = GROUP_PANELS;
	for (int h = 0, g = 0; h < x->heads; h++) {
		const int hidden = DQN_V1 + 2 * h, n = d->layer[hidden + 1].out, columns = cuda_pad16(d->layer[hidden].out);

		x->panels[h] = cuda_tiles(n, GROUP_DEEP);
		x->stages += x->panels[h] + HEAD_PANELS;
		there &= map_weights(c, &x->head[h], t.weight, hidden) & map_weights(c, &x->out[h], t.weight, hidden + 1);
		there &= map_rows(c, &x->dout[h], t.dout, t.dout_trial, s->ldo, s->seg[h], n);
		there &= map_rows(c, &x->act[h], t.act[TO_HEAD], t.act_trial[TO_HEAD], s->ldhead, g, columns);
		there &= map_rows(c, &x->d[h], t.d[TO_HEAD], t.d_trial[TO_HEAD], s->ldhead, g, columns);
		g += columns;
	}
	there &= map_weights(c, &x->trunk, t.weight, DQN_S2);
	there &= map_rows(c, &x->act_h2, t.act[TO_H2], t.act_trial[TO_H2], s->ldh2, 0, cuda_pad16(d->H2));
	there &= map_rows(c, &x->d_h2, t.d[TO_H2], t.d_trial[TO_H2], s->ldh2, 0, cuda_pad16(d->H2));
	there &= map_rows(c, &x->act_h1, t.act[TO_H1], t.act_trial[TO_H1], s->ldh1, 0, cuda_pad16(d->H1));
	there &= map_rows(c, &x->d_h1, t.d[TO_H1], t.d_trial[TO_H1], s->ldh1, 0, cuda_pad16(d->H1));
	return there;
}

/* Rows of a tile: tall ones where they take fewer waves of the machine than tiles of half as many rows take in three fifths of the time. */
int rows_of(const struct cuda_exec *c)
{
	const int asked = cuda_wide_asked() - GROUP_ASKED, machine = c->multiprocessors;

	if (asked == TALL || asked == LOW)
		return asked;
	const int high = cuda_tiles(cuda_tiles(c->dims.B, TALL) * c->dims.P, machine), low = cuda_tiles(cuda_tiles(c->dims.B, LOW) * c->dims.P, machine);

	return 5 * high <= 3 * low ? (int)TALL : (int)LOW;
}

} // namespace

int back_group_takes(struct cuda_exec *c)
{
	return !c->sync && cuda_warpgroups(c) && (size_t)BYTES <= cuda_shared_most(c) && fits(&c->dims);
}

int back_group(struct cuda_exec *c, struct fh_status *st)
{
	struct group_args x = {};

	if (!describe(c, &x))
		return fh_fail(st, FH_DEVICE, "backward: no map of its tensors");
	x.rows = c->dims.B, x.trials = c->dims.P, x.height = rows_of(c), x.tiles = cuda_tiles(x.rows, x.height);
	CUDA_TRY(cuda_allow_shared(c, k_back_group));
	CUDA_TRY(cuda_launch(c, k_back_group, dim3(min(x.tiles * x.trials, c->multiprocessors)), GROUP_THREADS, (size_t)BYTES, x));
	return 0;
}
