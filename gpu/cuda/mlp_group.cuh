/* The network over many rows by warpgroups, for sm_90a: the same sums in the same order as mlp_tile.cuh, and so the same bits; the
 * products are wgmma's.
 *
 * A block is what group.cuh says. A stage of the ring is 64 of k for 128 rows of a layer's weights.
 *
 * A layer's results become the next one's operand where they stand, in registers: two eights of a target are a fragment of the other operand. Only h2,
 * which all heads read, lies in shared memory, in panels of 64 columns: 64 rows of 128 bytes, as the instruction wants them (wgmma.cuh).
 * Hidden columns that the backward pass wants go to memory box by box from such panels.
 *
 * For actions a stage is as many actions as 128 columns hold, each by itself from a multiple of 8 on; all of a branch stay in registers. None are left
 * for operands then, all of which lie in panels. */
#ifndef FH_GPU_CUDA_MLP_GROUP_CUH
#define FH_GPU_CUDA_MLP_GROUP_CUH

#include "gpu/cuda/group.cuh"
#include "gpu/cuda/mlp_tile.cuh"
#include "gpu/cuda/tensor_map.cuh"

namespace {

enum { GROUP_HEADS = 1 + FH_BRANCH_MAX };

/* Every layer is computed as if it were as large as it may be: boxes outside of it are zeros. All but outputs, which are many; states are of one
 * panel. */
struct group_layer { int k, n, bias; };

/* Layers are in the order of dqn_dims: two of the trunk, then of each head its hidden one and its outputs. */
struct mlp_group_args {
	tensor_map weight[DQN_LAYER_MAX]; /* boxes of a stage of (k, row, 1, trial, network) or, a head's outputs for actions, (k, atom, action, trial, network) */
	tensor_map keep[2 + GROUP_HEADS]; /* h1, h2, hidden columns of each head, boxes of a panel of (column, row, trial) */
	struct group_layer layer[DQN_LAYER_MAX];
	const bf16 *x;           /* low [.., ldx], or: */
	const float *obs;        /* F32 [.., SD] */
	size_t x_trial;          /* bytes, as all of these */
	int ldx;
	const float *bias[2];    /* online, target: flat, of the first trial */
	size_t params;           /* elements from trial to trial */
	float *out;
	size_t out_trial, action_trial;
	int ldo, seg[GROUP_HEADS];
	int32_t *action;
	const struct dqn_clock *clock;
	int random;              /* 1: trials that act at random are left out */
	int tiles, trials, passes, first_tile; /* of a trial; first_tile: of the second pass */
	int height[2];           /* rows of a pass's tiles, at most 128 */
	struct mlp_pass pass[2];
	int branches, atoms, actions[FH_BRANCH_MAX];
	int stages;              /* of a tile */
};
static_assert(sizeof(struct mlp_group_args) <= 4096, "kernel arguments");

/* Columns that an action's atoms take, and actions of a stage. */
template <int J> struct part { enum { PER = J ? 8 * J : 8, MOST = GROUP_HALF / PER }; };

/* What a block holds. J: eights of atoms, for actions; 0: outputs. */
template <int J> struct group_shape {
	enum { STAGES = J ? 6 : 7, STAGE = GROUP_HALF * PTX_OPERAND_ROW, PANEL = GROUP_PANEL, ALIGN = PTX_OPERAND_EIGHT };
	/* of a warpgroup: h1, then h2; a head's columns, and V of its rows; biases of two chunks */
	enum { HIDDEN = GROUP_PANELS * PANEL, OTHER = HEAD_PANELS * PANEL + (J ? GROUP_ROWS * 8 * J * 4 : 0), BIAS = J > 6 ? PICKS * 8 * J : 2 * GROUP_HALF };
	enum { GROUP = HIDDEN + OTHER, BYTES = ALIGN + STAGES * STAGE + GROUPS * (GROUP + 2 * BIAS * 4) + 2 * STAGES * 8 };
	enum { MORE = J ? 240 : 232, FEWER = J ? 24 : 40 }; /* registers of a thread that multiplies, that brings */
	static_assert(GROUPS * MORE + FEWER <= (GROUPS + 1) * GROUP_EACH, "registers of a block");
	static_assert(GROUP % ALIGN == 0, "panels begin at a multiple of 1024");
};

/* A tile of the list: all of the first pass, trial by trial, then those of the second, which may have fewer rows. A block goes through every
 * gridDim-th, so tall tiles and low ones spread evenly. */
struct group_tile { int z, pass, first; };
__device__ __forceinline__ struct group_tile group_tile_of(const struct mlp_group_args &x, int id)
{
	const int all = x.first_tile * x.trials, pass = id >= all, at = pass ? id - all : id, each = pass ? x.tiles - x.first_tile : x.first_tile;

	return {at / each, pass, at % each * x.height[pass]};
}

/* ---------------------------------------------------------------- weights */

/* Everything that the warpgroups multiply with, in their order, by one thread. */
template <int J> __device__ __forceinline__ void group_bring(const struct mlp_group_args &x, struct group_ring r)
{
	enum { STAGES = group_shape<J>::STAGES, STAGE = group_shape<J>::STAGE, PER = part<J>::PER, MOST = part<J>::MOST };
	int brought = 0;

	auto box = [&](const tensor_map &map, int bytes, int k, int row, int action, int z, int network) {
		if (!J && brought++ == STAGES) { /* weights: no launch just before writes them */
			cuda_wait_before();
			cuda_let_next();
		}
		ptx_barrier_wait(r.free + r.slot * 8, r.phase ^ 1);
		ptx_barrier_expect(r.full + r.slot * 8, (unsigned)bytes);
		ptx_box_load(r.stage + r.slot * STAGE, &map, k, row, action, z, network, r.full + r.slot * 8);
		group_ring_next<STAGES>(r);
	};
#pragma unroll 1
	for (int id = busy_tile(x, blockIdx.x); id < x.tiles * x.trials; id = busy_tile(x, id + gridDim.x)) {
		const struct group_tile t = group_tile_of(x, id);
		const int z = t.z, network = x.pass[t.pass].target;

#pragma unroll 1
		for (int l = 0; l < 2 + 2 * (1 + x.branches); l++) {
			const struct group_layer &q = x.layer[l];
			const bool head = l > 1 && l % 2 == 0, outputs = l > 1 && !head;
			const int panels = outputs ? (int)HEAD_PANELS : l == 0 ? 1 : (int)GROUP_PANELS;

			if (J > 0 && outputs) {
				const int actions = l == 3 ? 1 : x.actions[(l - 5) / 2];
#pragma unroll 1
				for (int p = 0; p < panels; p++)
#pragma unroll 1
					for (int a = 0; a < actions; a += MOST)
						box(x.weight[l], PER * MOST * PTX_OPERAND_ROW, p * GROUP_DEEP, 0, a, z, network);
				continue;
			}
			const int columns = head ? (int)GROUP_HALF : l < 2 ? 2 * GROUP_HALF : q.n;
#pragma unroll 1
			for (int n = 0; n < columns; n += 2 * GROUP_HALF)
#pragma unroll 1
				for (int p = 0; p < panels; p++)
#pragma unroll 1
					for (int half = 0; half < 2 * GROUP_HALF && n + half < columns; half += GROUP_HALF)
						box(x.weight[l], STAGE, p * GROUP_DEEP, n + half, 0, z, network);
		}
	}
	if (!J && brought <= STAGES) {
		cuda_wait_before();
		cuda_let_next();
	}
}

/* ---------------------------------------------------------------- products */

template <int PANELS> __device__ __forceinline__ void group_begin(unsigned (*a)[4]) { ptx_group_begin_a<PANELS * 4>(a); }
template <int PANELS> __device__ __forceinline__ void group_begin(ptx_shared) { ptx_group_begin_a<0>(nullptr); }
__device__ __forceinline__ unsigned (*group_panel(unsigned (*a)[4], int p))[4] { return a + p * 4; }
__device__ __forceinline__ ptx_shared group_panel(ptx_shared a, int p) { return a + p * GROUP_PANEL; }

/* The stages of 64 of k. AT: the first eight of a stage; STEP: eights of a stage. */
template <int STAGES, int NJ, int STEP, int FIRST, int AT, typename A> __device__ __forceinline__ void group_steps(struct group_ring &r, float (*acc)[4], A a)
{
	const ptx_shared before = r.before;

	ptx_barrier_wait(r.full + r.slot * 8, r.phase);
	if (!FIRST || AT)
		ptx_group_begin_a<0>(nullptr);
	group_step<(NJ - AT < STEP ? NJ - AT : STEP), FIRST, 0>(acc + AT, a, r.stage + r.slot * (GROUP_HALF * PTX_OPERAND_ROW));
	group_ring_next<STAGES>(r);
	if (!FIRST || AT) {
		ptx_group_wait_before();
		group_ring_free(before);
	}
	if constexpr (AT + STEP < NJ)
		group_steps<STAGES, NJ, STEP, FIRST, AT + STEP>(r, acc, a);
}

/* A sum over PANELS x 64 of k for NJ eights. a: the other operand, in registers or where its rows begin in shared memory. Behind the last
 * products but one `done` is called. Nothing here depends on a number that the assembler does not know: where paths meet while products run it would
 * wait for them. */
template <int STAGES, int PANELS, int NJ, int STEP, typename A, typename Done>
__device__ __forceinline__ void group_chunk(struct group_ring &r, float (*acc)[4], A a, Done done)
{
	group_begin<PANELS>(a);
	group_steps<STAGES, NJ, STEP, 1, 0>(r, acc, a);
#pragma unroll
	for (int p = 1; p < PANELS; p++)
		group_steps<STAGES, NJ, STEP, 0, 0>(r, acc, group_panel(a, p));
	done();
	ptx_group_wait<0, NJ>(acc);
	group_ring_free(r.before);
}

/* Whole actions: as many as there are. */
template <int STAGES, int J, int ACTIONS, typename Done> __device__ __forceinline__ void group_actions(struct group_ring &r, float (*acc)[4], ptx_shared a, int actions, Done done)
{
	if constexpr (ACTIONS > 1) {
		if (actions < ACTIONS) {
			group_actions<STAGES, J, ACTIONS - 1>(r, acc, a, actions, done);
			return;
		}
	}
	group_chunk<STAGES, HEAD_PANELS, ACTIONS * J, part<J>::MOST * J>(r, acc, a, done);
}

/* Outputs: at least n columns, at most two stages. */
template <int STAGES, typename Done> __device__ __forceinline__ void group_outputs(struct group_ring &r, float (*acc)[4], unsigned (*a)[4], int n, Done done)
{
	enum { STEP = GROUP_HALF / 8 };

	if (n <= 32)
		group_chunk<STAGES, HEAD_PANELS, 4, STEP>(r, acc, a, done);
	else if (n <= 64)
		group_chunk<STAGES, HEAD_PANELS, 8, STEP>(r, acc, a, done);
	else if (n <= 128)
		group_chunk<STAGES, HEAD_PANELS, 16, STEP>(r, acc, a, done);
	else if (n <= 160)
		group_chunk<STAGES, HEAD_PANELS, 20, STEP>(r, acc, a, done);
	else if (n <= 192)
		group_chunk<STAGES, HEAD_PANELS, 24, STEP>(r, acc, a, done);
	else
		group_chunk<STAGES, HEAD_PANELS, 32, STEP>(r, acc, a, done);
}

/* ---------------------------------------------------------------- what lies between them */

/* Rows of states as fragments, zeros behind a state's end and below the last row. first: the warp's first row; valid: how many of its rows are. */
__device__ __forceinline__ void group_load(const struct mlp_group_args &x, unsigned (*a)[4], int z, int first, int valid)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2, sd = x.layer[0].k;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const int r = row + e % 2 * 8, c = i * 16 + e / 2 * 8 + col;
			const bool there = r < valid && c < sd;

			a[i][e] = 0;
			if (x.x) {
				if (there)
					a[i][e] = *(const unsigned *)((const bf16 *)((const char *)x.x + z * x.x_trial) + (size_t)(first + r) * x.ldx + c);
			} else if (there) {
				const float2 y = *(const float2 *)((const float *)((const char *)x.obs + z * x.x_trial) + (size_t)(first + r) * sd + c);
				const __nv_bfloat162 low = __floats2bfloat162_rn(y.x, y.y);

				a[i][e] = *(const unsigned *)&low;
			}
		}
}

/* 64 columns of a hidden layer, after relu, as fragments. */
__device__ __forceinline__ void group_relu(unsigned (*a)[4], const float (*acc)[4], const float *bias)
{
	bias += (threadIdx.x & 3) * 2;
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const float2 b = *(const float2 *)(bias + i * 16 + e * 8);
			const float *v = acc[i * 2 + e];

			a[i][e * 2] = ptx_relu_bf16(v[0] + b.x, v[1] + b.y);
			a[i][e * 2 + 1] = ptx_relu_bf16(v[2] + b.x, v[3] + b.y);
		}
}

/* Outputs to memory, of one chunk. to: the warp's first row and the chunk's first column there; rows, n: that are valid. */
__device__ __forceinline__ void group_write_out(const float (*acc)[4], const float *bias, float *to, int ldo, int rows, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;
	const bool upper = row < rows, lower = row + 8 < rows;
	float *const up = to + (size_t)row * ldo + col, *const low = up + (size_t)8 * ldo;

	bias += col;
#pragma unroll
	for (int j = 0; j < 32; j++) {
		if (j * 8 >= n)
			break;
		const float2 b = *(const float2 *)(bias + j * 8);

		if (upper)
			__stwb((float2 *)(up + j * 8), make_float2(ptx_max_nan(acc[j][0] + b.x, -INFINITY), ptx_max_nan(acc[j][1] + b.y, -INFINITY)));
		if (lower)
			__stwb((float2 *)(low + j * 8), make_float2(ptx_max_nan(acc[j][2] + b.x, -INFINITY), ptx_max_nan(acc[j][3] + b.y, -INFINITY)));
	}
}

/* Biases of a chunk come by way of two registers, which a warpgroup asks for before the products and leaves behind them. */
template <int MOST> struct group_bias { float v[(MOST + 127) / 128]; };
template <int MOST, typename At> __device__ __forceinline__ struct group_bias<MOST> group_bias_load(int thread, At at)
{
	struct group_bias<MOST> b;
#pragma unroll
	for (int i = 0; i < (MOST + 127) / 128; i++)
		b.v[i] = at(thread + i * 128);
	return b;
}
template <int MOST> __device__ __forceinline__ void group_bias_keep(int thread, float *to, const struct group_bias<MOST> &b)
{
#pragma unroll
	for (int i = 0; i < (MOST + 127) / 128; i++)
		if (thread + i * 128 < MOST)
			to[thread + i * 128] = b.v[i];
}

template <int J> __global__ void __launch_bounds__(GROUP_THREADS, 1) k_mlp_group(const __grid_constant__ struct mlp_group_args x)
{
#ifdef PTX_WARPGROUPS
	typedef group_shape<J> shape;
	enum { STAGES = shape::STAGES, STAGE = shape::STAGE, PANEL = shape::PANEL, BIAS = shape::BIAS, PER = part<J>::PER };
	PTX_SHARED(char, shared);
	char *const ring = shared + (shape::ALIGN - ptx_shared_at(shared) % shape::ALIGN) % shape::ALIGN, *const groups = ring + STAGES * STAGE;
	float *const biases = (float *)(groups + GROUPS * shape::GROUP);
	const ptx_shared barriers = ptx_shared_at(biases + GROUPS * 2 * BIAS);
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), group = warp / 4; /* a warp agrees on them */
	struct group_ring r = {barriers, barriers + STAGES * 8, ptx_shared_at(ring), 0, 0, 0};

	if (threadIdx.x == 0)
		group_ring_make<STAGES>(r);
	if (J) { /* a launch of its own kind: the weights may have been written just before */
		cuda_wait_before();
		cuda_let_next();
	}
	__syncthreads();
	if (group == GROUPS) {
		ptx_registers_fewer<shape::FEWER>();
		if (threadIdx.x == GROUPS * 128) {
			group_bring<J>(x, r);
		} else if (!J) {
			cuda_wait_before();
			cuda_let_next();
		}
		return;
	}
	ptx_registers_more<shape::MORE>();
	if (!J) {
		cuda_wait_before();
		cuda_let_next();
	}
	const ptx_shared panels = ptx_shared_at(groups + group * shape::GROUP), other = panels + shape::HIDDEN;
	const int row = group * GROUP_ROWS + warp % 4 * 16, own = warp % 4 * 16 * PTX_OPERAND_ROW; /* the warp's first in a tile, in a panel */
	const bool asks = threadIdx.x % 128 == 0;
	float *bias_now = biases + group * 2 * BIAS, *bias_next = bias_now + BIAS;
	/* The target of all products: the assembler keeps one that begins anew, as all do, from loop to loop all the same. */
	float acc[32][4];

#pragma unroll 1
	for (int id = busy_tile(x, blockIdx.x); id < x.tiles * x.trials; id = busy_tile(x, id + gridDim.x)) {
		const struct group_tile t = group_tile_of(x, id);
		const struct mlp_pass &p = x.pass[t.pass];
		const int z = t.z, first = t.first, valid = min(x.height[t.pass], p.rows - first) - row; /* of the warp's rows and those behind */
		const float *bias = x.bias[p.target] + z * x.params;

		if (group * GROUP_ROWS >= valid + row) {
			group_ring_pass<STAGES>(r, x.stages);
			continue;
		}
		const bool kept = !J && p.keep > first + group * GROUP_ROWS;
		/* Panels that are ready for all go to memory. */
		auto keep = [&](const tensor_map &map, ptx_shared from, int columns) {
			if (asks)
				for (int c = 0; c < columns; c += GROUP_DEEP)
					ptx_box_store(from + c / GROUP_DEEP * PANEL, &map, c, p.row + first + group * GROUP_ROWS, z);
		};
		/* Of a layer's columns from n0 on. */
		auto biases_of = [&](const struct group_layer &q, int n0) {
			return group_bias_load<2 * GROUP_HALF>(threadIdx.x % 128, [&](int i) { return n0 + i < q.n ? bias[q.bias + n0 + i] : 0.f; });
		};
		/* They are there, and nobody reads those of the chunk before the last. */
		auto turn = [&]() {
			float *const now = bias_now;

			ptx_group_sync(group);
			bias_now = bias_next, bias_next = now;
			return (const float *)now;
		};

		unsigned h1[GROUP_PANELS * 4][4];
		{
			const auto b = biases_of(x.layer[0], 0);
			unsigned states[4][4];

			group_load(x, states, z, p.x_row + first + row, valid);
			group_chunk<STAGES, 1, 32, 16>(r, acc, states, [&]() { group_bias_keep<2 * GROUP_HALF>(threadIdx.x % 128, bias_now, b); });
			if (!J && asks)
				ptx_box_wait(); /* what the panels held is on its way */
			const float *now = turn();
#pragma unroll
			for (int c = 0; c < (int)GROUP_PANELS; c++) {
				group_relu(h1 + c * 4, acc + c * 8, now + c * GROUP_DEEP);
				if (J > 0)
					group_to_panel(panels + c * PANEL + own, h1 + c * 4);
			}
			if (J > 0 || kept) {
#pragma unroll
				for (int c = 0; !J && c < (int)GROUP_PANELS; c++)
					group_to_panel(panels + c * PANEL + own, h1 + c * 4);
				ptx_operands_written();
				ptx_group_sync(group);
				if (kept)
					keep(x.keep[0], panels, x.layer[0].n);
			}
		}
		{
			const auto b = biases_of(x.layer[1], 0);
			const auto done = [&]() { group_bias_keep<2 * GROUP_HALF>(threadIdx.x % 128, bias_now, b); };

			if constexpr (J > 0) /* from shared memory, as all operands: what picks actions leaves no registers for them */
				group_chunk<STAGES, GROUP_PANELS, 32, 16>(r, acc, panels, done);
			else
				group_chunk<STAGES, GROUP_PANELS, 32, 16>(r, acc, h1, done);
			if (kept && asks)
				ptx_box_wait();
			const float *now = turn();
#pragma unroll
			for (int c = 0; c < (int)GROUP_PANELS; c++) {
				unsigned h2[4][4];

				group_relu(h2, acc + c * 8, now + c * GROUP_DEEP);
				group_to_panel(panels + c * PANEL + own, h2);
			}
			ptx_operands_written();
			ptx_group_sync(group);
			if (kept)
				keep(x.keep[1], panels, x.layer[1].n);
		}
#pragma unroll 1
		for (int h = 0; h <= x.branches; h++) {
			const struct group_layer &q = x.layer[2 + 2 * h], &o = x.layer[3 + 2 * h];
			unsigned a[HEAD_PANELS * 4][4];
			{
				const auto b = biases_of(q, 0);

				group_chunk<STAGES, GROUP_PANELS, 16, 16>(r, acc, panels, [&]() { group_bias_keep<2 * GROUP_HALF>(threadIdx.x % 128, bias_now, b); });
				if (kept && asks)
					ptx_box_wait();
				const float *now = turn();
#pragma unroll
				for (int c = 0; c < (int)HEAD_PANELS; c++) {
					group_relu(a + c * 4, acc + c * 8, now + c * GROUP_DEEP);
					if (J > 0)
						group_to_panel(other + c * PANEL + own, a + c * 4);
				}
			}
			if (J > 0 || kept) {
#pragma unroll
				for (int c = 0; !J && c < (int)HEAD_PANELS; c++)
					group_to_panel(other + c * PANEL + own, a + c * 4);
				ptx_operands_written();
				ptx_group_sync(group);
				if (kept)
					keep(x.keep[2 + h], other, q.n);
			}
			if constexpr (J == 0) {
#pragma unroll 1
				for (int n = 0; n < o.n; n += 2 * GROUP_HALF) {
					const auto ob = biases_of(o, n);
					float *to = (float *)((char *)x.out + z * x.out_trial) + (size_t)(p.row + first + row) * x.ldo + x.seg[h] + n;

					group_outputs<STAGES>(r, acc, a, o.n - n, [&]() { group_bias_keep<2 * GROUP_HALF>(threadIdx.x % 128, bias_now, ob); });
					group_write_out(acc, turn(), to, x.ldo, valid, (o.n + 15) / 16 * 16 - n);
				}
			} else {
				enum { APART = 2 * 2 * 128, LOWER = 2 * 128 }; /* floats: V of the next eight, of the row 8 below */
				const int thread = ptx_again(threadIdx.x) % 128; /* else all that follows from it is worked out before the loops, where no register is left */
				float *const v = (float *)(groups + group * shape::GROUP + shape::HIDDEN + HEAD_PANELS * PANEL) + thread * 2; /* of this lane's rows and atoms */
				const int actions = h ? x.actions[h - 1] : 1;
				const auto ob = group_bias_load<PICKS * PER>(thread, [&](int i) { return i / PER < actions && i % PER < x.atoms ? bias[o.bias + i / PER * x.atoms + i % PER] : 0.f; });
				float out[PICKS * J][4] = {};

				group_actions<STAGES, J, PICKS>(r, out, other, actions, [&]() { group_bias_keep<PICKS * PER>(thread, bias_now, ob); });
				add_bias<J>(out, turn(), actions);
				if (h == 0) {
#pragma unroll
					for (int j = 0; j < J; j++) {
						*(float2 *)(v + j * APART) = make_float2(out[j][0], out[j][1]);
						*(float2 *)(v + LOWER + j * APART) = make_float2(out[j][2], out[j][3]);
					}
					continue;
				}
				const struct head_support s = head_support_of(&x.clock[z], x.atoms);
#pragma unroll 1
				for (int half = 0; half < 2; half++) {
					const int mine = half * 8 + thread % 32 / 4, best = pick<J, APART>(v + half * LOWER, out, actions, x.atoms, s);

					if ((thread & 3) == 0 && mine < valid)
						((int32_t *)((char *)x.action + z * x.action_trial))[(size_t)(p.row + first + row + mine) * x.branches + h - 1] = best;
#pragma unroll
					for (int j = 0; j < PICKS * J; j++)
						out[j][0] = out[j][2], out[j][1] = out[j][3];
				}
			}
		}
	}
	if (!J && asks)
		ptx_box_wait();
#endif
}

} // namespace

#endif
