/* The kernel of mlp_tile.cuh by warpgroups, for sm_90a: what a block computes in which order is the same list, and so are the bits; the
 * products are wgmma's, which reads both operands from shared memory and leaves the warps free to bring the next weights.
 *
 * A chunk's units have one input, so a warpgroup multiplies its 64 rows with all its columns at once. Hidden columns lie in panels of 64:
 * ROWS rows of 128 bytes, as the instruction wants them (wgmma.cuh). A stage of the ring is 64 of k for 256 columns. Two steps of products
 * may be under way: a step begins when the one before the last is through, so a stage is overwritten two steps after it was read.
 *
 * For actions the last layer is cut into parts of as many actions as a stage holds; all of a branch stay in registers. */
#ifndef FH_GPU_CUDA_MLP_GROUP_CUH
#define FH_GPU_CUDA_MLP_GROUP_CUH

#include "gpu/cuda/mlp_tile.cuh"
#include "gpu/cuda/group.cuh"

namespace {

/* A block: DOWN warpgroups of 64 rows each below each other, ACROSS beside each other that divide a chunk's units, a ring of STAGES. */
template <int DOWN_, int ACROSS_, int STAGES_> struct crew {
	enum { DOWN = DOWN_, ACROSS = ACROSS_, STAGES = STAGES_, AHEAD = STAGES - 2, ROWS = DOWN * 64, MINE = UNITS / ACROSS, NJ = MINE * UNIT / 8 };
	enum { DEEP = 64, PANEL = ROWS * PTX_OPERAND_ROW, STAGE = UNITS * UNIT * PTX_OPERAND_ROW, ALIGN = PTX_OPERAND_EIGHT };
	static_assert(DOWN * ACROSS * 128 == THREADS, "a block's warps");
};

enum { GROUP_THREADS = THREADS }; /* of a block */

/* Actions of a part, rows of a stage that an action's atoms take. */
template <int J> struct part { enum { PER = J ? 8 * J : 8, MOST = UNITS * UNIT / PER < PICKS ? UNITS * UNIT / PER : PICKS }; };
template <int N> struct part_from { enum { FROM = N }; };

/* A tile of the list: all of the first pass, trial by trial, then those of the second, which may have fewer rows. A block goes through every
 * gridDim-th, so tall tiles and low ones spread evenly. */
struct group_tile { int z, pass, first; };
__device__ __forceinline__ struct group_tile group_tile_of(const struct mlp_args &x, int id)
{
	const int all = x.first_tile * x.trials, pass = id >= all, at = pass ? id - all : id, each = pass ? x.tiles - x.first_tile : x.first_tile;

	return {at / each, pass, at % each * x.height[pass]};
}

/* Where the copies of weights stand (see feed in mlp_tile.cuh). A thread brings 8 columns of every 32nd row of a stage. */
template <int J> struct group_feed {
	enum { ROWS = UNITS * UNIT / 32 };
	int tile, section;
	int head, action;    /* with actions, behind the chunks: of which head, the part's first action */
	int left;
	unsigned there, rows; /* bit i: its i-th row is wanted; has weights */
	int row[J ? (int)ROWS : (int)UNITS]; /* without actions: of a unit's first half */
	int half;            /* and from there to the other half */
	const bf16 *w;
};

template <int J> __device__ __forceinline__ void group_feed_section(struct group_feed<J> &f, const struct mlp_args &x)
{
	const int first = threadIdx.x / 8, col = threadIdx.x % 8 * 8;

	f.there = f.rows = 0;
	if (J == 0 || f.section < x.chunks) {
		const struct mlp_chunk &q = x.chunk[f.section];

		f.left = q.k, f.half = 32 * q.k;
#pragma unroll
		for (int u = 0; u < UNITS; u++) {
			const int row = q.unit[u].w + first * q.k + col;

			if constexpr (J > 0)
				f.row[2 * u] = row, f.row[2 * u + 1] = row + f.half;
			else
				f.row[u] = row;
			f.there |= (u < q.units ? 3u : 0u) << 2 * u;
			f.rows |= (first < q.unit[u].n ? 1u : 0u) << 2 * u | (first + 32 < q.unit[u].n ? 2u : 0u) << 2 * u;
		}
		return;
	}
	if constexpr (J > 0) {
		const struct mlp_head &q = x.head[f.head];
		const int actions = min(q.actions - f.action, (int)part<J>::MOST);

		f.left = q.k;
#pragma unroll
		for (int i = 0; i < group_feed<J>::ROWS; i++) {
			const int r = first + i * 32, a = r / part<J>::PER, atom = r % part<J>::PER;

			f.row[i] = q.w + ((f.action + a) * x.atoms + atom) * q.k + col;
			f.there |= (a < actions ? 1u : 0u) << i;
			f.rows |= (a < actions && atom < x.atoms ? 1u : 0u) << i;
		}
	}
}

template <int J> __device__ __forceinline__ void group_feed_tile(struct group_feed<J> &f, const struct mlp_args &x, int id)
{
	f.tile = id;
	if (id >= x.tiles * x.trials)
		return;
	f.section = f.head = f.action = 0;
	const struct group_tile t = group_tile_of(x, id);
	f.w = x.weight[x.pass[t.pass].target] + t.z * x.params;
	group_feed_section<J>(f, x);
}

/* Asks for the next stage, always a group. place: of this thread's first 8 columns in the stage. */
template <int J> __device__ __forceinline__ void group_feed_next(struct group_feed<J> &f, const struct mlp_args &x, ptx_shared place)
{
	if (f.tile < x.tiles * x.trials) {
		const unsigned rows = (int)threadIdx.x % 8 * 8 < f.left ? f.rows : 0;
#pragma unroll
		for (int i = 0; i < group_feed<J>::ROWS; i++) {
			const bf16 *from = f.w + (J ? f.row[J ? i : 0] : f.row[J ? 0 : i / 2] + (i % 2 ? f.half : 0));

			if (f.there & 1u << i)
				ptx_copy16_if(place + i * 32 * PTX_OPERAND_ROW, from, rows & 1u << i);
		}
#pragma unroll
		for (int i = 0; i < (J ? (int)group_feed<J>::ROWS : (int)UNITS); i++)
			f.row[i] += 64;
		f.left -= 64;
		if (f.left <= 0) {
			bool section = true;

			if (J > 0 && f.section == x.chunks) { /* heads: part by part */
				f.action += part<J>::MOST;
				section = f.action >= x.head[f.head].actions;
				if (section)
					f.action = 0, f.head++;
				section = section && f.head > x.branches;
			} else {
				f.section++;
				section = J == 0 && f.section == x.chunks;
			}
			if (section)
				group_feed_tile<J>(f, x, busy_tile(x, f.tile + gridDim.x));
			else
				group_feed_section<J>(f, x);
		}
	}
	ptx_copy_commit();
}

/* The 8 columns q of panel p of row r among the hidden columns. */
template <typename Team> __device__ __forceinline__ char *hidden_at(char *act, int r, int column)
{
	return act + column / UNIT * Team::PANEL + ptx_operand_place(r, column / 8 % 8);
}

/* A hidden layer's columns from the fragments to shared memory, after relu. row: the warp's first; bias: of the warpgroup's columns. */
template <typename Team> __device__ __forceinline__ void group_keep_hidden(const float (*acc)[4], const float *bias, char *act, int row, const struct mlp_unit *u, int units)
{
	const int lane = threadIdx.x & 31;

	bias += (lane & 3) * 2;
#pragma unroll
	for (int i = 0; i < Team::MINE; i++) {
		if (i >= units)
			break;
		char *to = act + u[i].c / UNIT * Team::PANEL + (row + lane / 4) * PTX_OPERAND_ROW + (lane & 3) * 4;
#pragma unroll
		for (int j = 0; j < 8; j++) {
			const float2 b = *(const float2 *)(bias + i * UNIT + j * 8);
			const float *v = acc[i * 8 + j];
			char *p = to + (j ^ lane / 4) * 16;

			*(__nv_bfloat162 *)p = __floats2bfloat162_rn(ptx_max_nan(v[0] + b.x, 0.f), ptx_max_nan(v[1] + b.y, 0.f));
			*(__nv_bfloat162 *)(p + PTX_OPERAND_EIGHT) = __floats2bfloat162_rn(ptx_max_nan(v[2] + b.x, 0.f), ptx_max_nan(v[3] + b.y, 0.f));
		}
	}
}

/* Outputs to memory. to: the warp's first row and the warpgroup's first column there; rows, n: of the warp that are valid. */
template <int NJ> __device__ __forceinline__ void group_write_out(const float (*acc)[4], const float *bias, float *to, int ldo, int rows, int n)
{
	const int lane = threadIdx.x & 31, row = lane / 4, col = (lane & 3) * 2;

	bias += col, to += (size_t)row * ldo + col;
#pragma unroll
	for (int j = 0; j < NJ; j++) {
		if (j * 8 + col >= n)
			break;
		const float2 b = *(const float2 *)(bias + j * 8);

		if (row < rows)
			__stwb((float2 *)(to + j * 8), make_float2(ptx_max_nan(acc[j][0] + b.x, -INFINITY), ptx_max_nan(acc[j][1] + b.y, -INFINITY)));
		if (row + 8 < rows)
			__stwb((float2 *)(to + (size_t)8 * ldo + j * 8), make_float2(ptx_max_nan(acc[j][2] + b.x, -INFINITY), ptx_max_nan(acc[j][3] + b.y, -INFINITY)));
	}
}

/* A chunk's hidden columns of `rows` rows from shared memory to memory, 16 bytes at a time. */
template <typename Team> __device__ __forceinline__ void group_keep_rows(const struct mlp_args &x, const struct mlp_chunk &q, char *act, int z, int first, int rows)
{
	const int ldh = x.ldhidden[q.to], col = threadIdx.x % 8 * 8;
	bf16 *h = (bf16 *)((char *)x.hidden[q.to] + z * x.hidden_trial[q.to]) + (size_t)first * ldh + col;

#pragma unroll 1
	for (int u = 0; u < q.units; u++) {
		if (col >= q.unit[u].g_n)
			continue;
#pragma unroll 4
		for (int r = threadIdx.x / 8; r < rows; r += THREADS / 8)
			*(uint4 *)(h + (size_t)r * ldh + q.unit[u].g) = *(const uint4 *)hidden_at<Team>(act, r, q.unit[u].c + col);
	}
}

template <typename Team, int J> __global__ void __launch_bounds__(THREADS, 1) k_mlp_group(const __grid_constant__ struct mlp_args x)
{
#ifdef PTX_WARPGROUPS
	enum { STAGES = Team::STAGES, AHEAD = Team::AHEAD, NJ = Team::NJ, MINE = Team::MINE };
	PTX_SHARED(char, shared);
	char *ring = shared + (Team::ALIGN - ptx_shared_at(shared) % Team::ALIGN) % Team::ALIGN, *act = ring + STAGES * Team::STAGE;
	float *shared_bias = (float *)(act + (x.ld - 8) / UNIT * Team::PANEL); /* of the chunk or part at work, as its rows lie in a stage */
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x & 31, group = warp / 4; /* a warp agrees on them */
	const int down = group % Team::DOWN, across = group / Team::DOWN, row = down * 64 + warp % 4 * 16; /* the warp's first */
	const ptx_shared act_at = ptx_shared_at(act), ring_at = ptx_shared_at(ring);
	const ptx_shared place = ring_at + ptx_operand_place(threadIdx.x / 8, threadIdx.x % 8);
	struct group_feed<J> f = {};
	int slot = 0, next = AHEAD; /* stage of the step, of the copies */

	if (J) { /* a launch of its own kind: the weights may have been written just before */
		cuda_wait_before();
		cuda_let_next();
	}
	int id = busy_tile(x, blockIdx.x);
	group_feed_tile<J>(f, x, id);
#pragma unroll 1
	for (int i = 0; i < AHEAD; i++)
		group_feed_next<J>(f, x, place + i * Team::STAGE);
	if (!J) {
		cuda_wait_before();
		cuda_let_next();
	}
	/* A step: its stage is there for all, and the products of the step before the last are through. */
	auto begin_step = [&]() {
		ptx_copy_wait<AHEAD - 1>();
		ptx_operands_written();
		__syncthreads();
	};
	auto end_step = [&]() {
		group_feed_next<J>(f, x, place + next * Team::STAGE);
		next = next + 1 == STAGES ? 0 : next + 1;
		slot = slot + 1 == STAGES ? 0 : slot + 1;
	};
#pragma unroll 1
	for (; id < x.tiles * x.trials; id = busy_tile(x, id + gridDim.x)) {
		const struct group_tile t = group_tile_of(x, id);
		const struct mlp_pass &p = x.pass[t.pass];
		const int z = t.z, first = t.first, height = x.height[t.pass], valid = min(height, p.rows - first);
		const bool idle = down * 64 >= valid; /* this warpgroup, of a tile of few rows */
		const float *bias = x.bias[p.target] + z * x.params;

		__syncthreads(); /* the hidden columns are free */
		load_states(x, (x.sd + UNIT - 1) / UNIT * UNIT, height, z, p.x_row + first, valid, [&](int r, int c) { return (bf16 *)hidden_at<Team>(act, r, x.trunk + c); });
		ptx_copy_commit();
		ptx_copy_wait<0>();
#pragma unroll 1
		for (int section = 0; section < x.chunks; section++) {
			const struct mlp_chunk &q = x.chunk[section];
			const struct mlp_unit *u = q.unit + across * MINE;
			const int units = idle ? 0 : min(q.units - across * MINE, (int)MINE); /* the warpgroup's, or none */
			const bool out = !J && q.to == TO_OUT;
			const ptx_shared a = act_at + q.unit[0].a / UNIT * Team::PANEL + down * 64 * PTX_OPERAND_ROW, b = ring_at + across * MINE * UNIT * PTX_OPERAND_ROW;
			float acc[NJ][4] = {};

#pragma unroll 1
			for (int k = 0; k < q.k; k += Team::DEEP) {
				begin_step();
				group_multiply_some<8, MINE, NJ, 0, 0>(acc, 0, a + k / UNIT * Team::PANEL, b + slot * Team::STAGE, units);
				end_step();
				if (k == 0) {
					const struct mlp_unit &mine = q.unit[threadIdx.x / UNIT];
					const int column = threadIdx.x % UNIT;

					shared_bias[threadIdx.x] = column < mine.n ? bias[mine.bias + column] : 0.f;
					if (!J && section && x.chunk[section - 1].to != TO_OUT && p.keep > first)
						group_keep_rows<Team>(x, x.chunk[section - 1], act, z, p.row + first, min(valid, p.keep - first));
				}
				ptx_group_wait<1, NJ>(acc);
			}
			ptx_group_wait<0, NJ>(acc);
			if (!out || q.k <= Team::DEEP)
				__syncthreads(); /* nobody reads any more what is written now, and biases are there */
			if (units <= 0)
				continue;
			if (!out) {
				group_keep_hidden<Team>(acc, shared_bias + across * MINE * UNIT, act, row, u, units);
			} else {
				float *to = (float *)((char *)x.out + z * x.out_trial) + (size_t)(p.row + first + row) * x.ldo + u[0].g;

				group_write_out<NJ>(acc, shared_bias + across * MINE * UNIT, to, x.ldo, valid - row, u[units - 1].g + u[units - 1].g_n - u[0].g);
			}
		}
		if constexpr (J > 0) {
			static_assert(Team::ACROSS == 1, "a warp has all columns of its rows");
			enum { PER = part<J>::PER, MOST = part<J>::MOST };
			const struct head_support s = head_support_of(&x.clock[z], x.atoms);
			/* V of this lane's rows and atoms, where its warp's hidden columns of the value head were: an eight every 256 bytes */
			float *v = (float *)(act + x.head[0].a / UNIT * Team::PANEL + row * PTX_OPERAND_ROW + lane * 8);
			enum { APART = 64, LOWER = J > 4 ? Team::PANEL / 4 : J * APART }; /* floats: to the next eight, to the row 8 below */

#pragma unroll 1
			for (int h = 0; h <= x.branches; h++) {
				const struct mlp_head &q = x.head[h];
				const ptx_shared a = act_at + q.a / UNIT * Team::PANEL + down * 64 * PTX_OPERAND_ROW;
				float acc[PICKS * J][4] = {};

				auto take_part = [&](auto part) {
					enum { FROM = decltype(part)::FROM, LEFT = PICKS - FROM < MOST ? PICKS - FROM : MOST };
					const int actions = min(q.actions - FROM, (int)LEFT);

#pragma unroll 1
					for (int k = 0; k < q.k; k += Team::DEEP) {
						begin_step();
						group_multiply_some<J, LEFT, PICKS * J, 0, 0>(acc, FROM * J, a + k / UNIT * Team::PANEL, ring_at + slot * Team::STAGE, actions);
						end_step();
						if (k == 0)
							for (int i = threadIdx.x; i < LEFT * PER; i += THREADS)
								shared_bias[FROM * PER + i] = i / PER < actions && i % PER < x.atoms ? bias[q.bias + (FROM + i / PER) * x.atoms + i % PER] : 0.f;
						ptx_group_wait<0, PICKS * J>(acc);
					}
				};
				static_assert((int)PICKS <= 2 * (int)MOST, "parts");
				take_part(part_from<0>());
				if constexpr ((int)PICKS > (int)MOST)
					if (q.actions > MOST)
						take_part(part_from<MOST>());
				__syncthreads(); /* biases are there, and nobody reads the value head's columns any more */
				add_bias<J>(acc, shared_bias, q.actions);
				if (h == 0) {
#pragma unroll
					for (int j = 0; j < J; j++) {
						*(float2 *)(v + j * APART) = make_float2(acc[j][0], acc[j][1]);
						*(float2 *)(v + LOWER + j * APART) = make_float2(acc[j][2], acc[j][3]);
					}
					continue;
				}
#pragma unroll 1
				for (int half = 0; half < 2; half++) {
					const int mine = row + half * 8 + lane / 4, best = pick<J, APART>(v + half * LOWER, acc, q.actions, x.atoms, s);

					if ((lane & 3) == 0 && mine < valid)
						((int32_t *)((char *)x.action + z * x.action_trial))[(size_t)(p.row + first + mine) * x.branches + h - 1] = best;
#pragma unroll
					for (int j = 0; j < PICKS * J; j++)
						acc[j][0] = acc[j][2], acc[j][1] = acc[j][3];
				}
			}
		}
	}
#endif
}

} // namespace

#endif
