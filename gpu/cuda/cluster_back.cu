/* The gradient through the layers for few rows, BF16, sm_90 and later: a cluster of blocks takes a tile of rows from the gradients of
 * the outputs to those of the first hidden layer. Each block owns a share of every layer's columns and keeps the weights of them in
 * its shared memory, all asked for before the launch in front has ended; what it computes of a layer it sends to the others. So no
 * weight is waited for between layers, and few rows spread over the machine.
 *
 * Columns come in units of 16, which a warp owns whole. Rows and weights lie in shared memory unit by unit: rows of 32 bytes whose
 * halves are swapped in every other four, so that eight rows are read without a conflict. The order of every sum is that of gemm.cu. */
#include "gpu/cuda/back.cuh"
#include "gpu/cuda/copy.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { UNIT = 16, LINE = UNIT * 2, THREADS = 256, WARPS = THREADS / 32, HEADS = 1 + FH_BRANCH_MAX, AHEAD = 4 };
enum { TO_HEAD, TO_H2, TO_H1, LAYERS };

/* A tile's rows: groups of warps below each other, 16 rows each of these MI times. */
template <int GROUPS_, int MI_> struct crew { enum { GROUPS = GROUPS_, MI = MI_, ROWS = GROUPS * MI * 16 }; };

/* A head: where its weights stand, rows and columns of those of its outputs, its columns' first unit, its outputs' column. */
struct head { int w1, w2, out, in, unit, a; };

struct cluster_args {
	const bf16 *weight, *dout;
	const bf16 *act[LAYERS]; /* what relu let through */
	bf16 *d[LAYERS];
	size_t params, dout_trial, act_trial[LAYERS], d_trial[LAYERS]; /* elements; bytes, bytes, bytes */
	int ldo, ld[LAYERS];     /* row lengths; those of the layers, padded, are all their units */
	int s2, h2, h1;          /* weights of the layer between the hidden ones, rows, columns */
	int heads, log_blocks;   /* of the network; blocks of a cluster are a power of two */
	int rows, tiles, trials;
	int even;                /* rows of all weights are at multiples of 16 bytes */
	int wide;                /* units of dout that a block has at most */
	int units;               /* and of all layers together */
	struct head head[HEADS];
};
static_assert(sizeof(struct cluster_args) <= 4096, "kernel arguments");

/* What a unit's product reads: its rows' bytes from the first of the layer's input on, steps of 16 of the sum, where its weights
 * stand in shared memory, and where its columns begin. */
struct task { int a, steps, b, column; };

/* Shared memory, in bytes: gates, where each layer's tasks begin, tasks, dout's part, then the hidden columns of the heads, of h2, then
 * weights. The same in every block. A gate counts what the others send of a layer that the next one reads. */
enum { GATES = LAYERS - 1, GATE_BYTES = 8, FIRST_AT = GATES * GATE_BYTES, TASKS_AT = FIRST_AT + (LAYERS + 1) * 4 };
static_assert(TASKS_AT % 16 == 0, "tasks are read whole");
struct places { int dout, head, h2, weight; };

template <typename Team> __host__ __device__ __forceinline__ struct places places_of(const struct cluster_args &x)
{
	struct places p;

	p.dout = (TASKS_AT + x.units * (int)sizeof(struct task) + 127) / 128 * 128;
	p.head = p.dout + x.wide * Team::ROWS * LINE;
	p.h2 = p.head + x.ld[TO_HEAD] * Team::ROWS * 2;
	p.weight = p.h2 + x.ld[TO_H2] * Team::ROWS * 2;
	return p;
}

/* A block's share of n units: from the first to the one behind the last. */
__host__ __device__ __forceinline__ int share(const struct cluster_args &x, int n, int rank) { return n * rank >> x.log_blocks; }
__host__ __device__ __forceinline__ int steps_of(int n) { return (n + 15) / 16; }

/* Bytes from a unit's start to 16 bytes of it. */
__device__ __forceinline__ int in_unit(int row, int half) { return row * LINE + ((half ^ (row >> 2 & 1)) << 4); }

/* What this block owns, and of dout which columns that takes. */
struct mine {
	int first[LAYERS], count[LAYERS];
	int a, a_units;
};

__host__ __device__ __forceinline__ int head_units(const struct cluster_args &x, int h) { return steps_of(x.head[h].in); }

__host__ __device__ __forceinline__ struct mine mine_of(const struct cluster_args &x, int rank)
{
	struct mine m = {};

	for (int l = 0; l < LAYERS; l++) {
		m.first[l] = share(x, x.ld[l] / UNIT, rank);
		m.count[l] = share(x, x.ld[l] / UNIT, rank + 1) - m.first[l];
	}
	m.a = -1;
	for (int h = 0; h < x.heads; h++) {
		if (x.head[h].unit + head_units(x, h) <= m.first[TO_HEAD] || x.head[h].unit >= m.first[TO_HEAD] + m.count[TO_HEAD])
			continue;
		if (m.a < 0)
			m.a = x.head[h].a;
		m.a_units = (x.head[h].a - m.a) / UNIT + steps_of(x.head[h].out);
	}
	return m;
}

/* Weights of `units` units from column `column` of a layer on, which has rows x columns and as many steps of 16 rows as that takes,
 * zeros behind: to `to` in shared memory, units `apart` from each other. */
struct slice { const bf16 *from; int rows, columns, column, units, to, apart; };

static __device__ __noinline__ void load_slice(char *shared, const struct slice s, int even)
{
	const int chunks = 2 * s.units, shift = min(5, 32 - __clz(chunks - 1)), across = 1 << shift, down = THREADS >> shift;
	const int padded = steps_of(s.rows) * 16, row = threadIdx.x >> shift;

	for (int c = threadIdx.x & (across - 1); c < chunks; c += across) {
		const int there = copy_left(s.columns, s.column + c * 8), rows = there ? s.rows : 0;
		const bf16 *from = s.from + (size_t)row * s.columns + s.column + c * 8;
		const size_t step = (size_t)down * s.columns;
		char *to = shared + s.to + (c >> 1) * s.apart + in_unit(row, c & 1); /* `down` is a multiple of 8: halves stand alike in all its rows */

		if (even) {
			ptx_shared at = ptx_shared_at(to);
#pragma unroll 4
			for (int r = row; r < padded; r += down, from += step, at += down * LINE)
				ptx_copy16_if(at, from, r < rows);
		} else {
#pragma unroll 1
			for (int r = row; r < padded; r += down, from += step, to += down * LINE)
				copy_odd((bf16 *)to, from, r < rows ? there : 0);
		}
	}
}

/* Asks for all weights of this block. */
__device__ __forceinline__ void load_weights(const struct cluster_args &x, const struct mine &m, char *shared, int at, int z)
{
	const bf16 *w = x.weight + z * x.params;
	const int k2 = x.ld[TO_HEAD] * LINE, k1 = x.ld[TO_H2] * LINE; /* bytes of a unit of the layers below the heads */
	int to = at;

#pragma unroll 1
	for (int h = 0; h < x.heads; h++) {
		const struct head &q = x.head[h];
		const int first = max(q.unit, m.first[TO_HEAD]), units = min(q.unit + head_units(x, h), m.first[TO_HEAD] + m.count[TO_HEAD]) - first;

		if (units > 0) {
			load_slice(shared, {w + q.w2, q.out, q.in, (first - q.unit) * UNIT, units, to, steps_of(q.out) * 16 * LINE}, x.even);
			to += units * steps_of(q.out) * 16 * LINE;
		}
	}
	if (m.count[TO_H2])
#pragma unroll 1
		for (int h = 0; h < x.heads; h++)
			load_slice(shared, {w + x.head[h].w1, x.head[h].in, x.h2, m.first[TO_H2] * UNIT, m.count[TO_H2], to + x.head[h].unit * UNIT * LINE, k2}, x.even);
	to += m.count[TO_H2] * k2;
	if (m.count[TO_H1])
		load_slice(shared, {w + x.s2, x.h2, x.h1, m.first[TO_H1] * UNIT, m.count[TO_H1], to, k1}, x.even);
}

/* The tasks of this block, a thread each, and where each layer's begin; at: of the weights. */
template <typename Team> __device__ __forceinline__ void make_tasks(const struct cluster_args &x, const struct mine &m, char *shared, int at)
{
	struct task *const task = (struct task *)(shared + TASKS_AT);
	int *const begin = (int *)(shared + FIRST_AT);
	const int n0 = m.count[TO_HEAD], n1 = n0 + m.count[TO_H2], n2 = n1 + m.count[TO_H1];

	for (int i = threadIdx.x; i < n2; i += THREADS) {
		struct task t = {};
		int to = at, heads_end = at;

#pragma unroll 1
		for (int h = 0; h < x.heads; h++) {
			const struct head &q = x.head[h];
			const int first = max(q.unit, m.first[TO_HEAD]), units = min(q.unit + head_units(x, h), m.first[TO_HEAD] + n0) - first;
			const int bytes = steps_of(q.out) * 16 * LINE, unit = m.first[TO_HEAD] + i;

			if (units <= 0)
				continue;
			if (i < n0 && unit >= first && unit < first + units)
				t = {(q.a - m.a) * Team::ROWS * 2, steps_of(q.out), to + (unit - first) * bytes, unit * UNIT};
			to += units * bytes;
		}
		heads_end = to;
		if (i >= n1)
			t = {0, x.ld[TO_H2] / 16, heads_end + (n1 - n0) * x.ld[TO_HEAD] * LINE + (i - n1) * x.ld[TO_H2] * LINE, (m.first[TO_H1] + i - n1) * UNIT};
		else if (i >= n0)
			t = {0, x.ld[TO_HEAD] / 16, heads_end + (i - n0) * x.ld[TO_HEAD] * LINE, (m.first[TO_H2] + i - n0) * UNIT};
		task[i] = t;
	}
	if (threadIdx.x == 0)
		begin[TO_HEAD] = 0, begin[TO_H2] = n0, begin[TO_H1] = n1, begin[LAYERS] = n2;
}

/* This block's part of the outputs' gradients of a tile, zeros below its last row. */
template <typename Team> __device__ __forceinline__ void load_rows(const struct cluster_args &x, const struct mine &m, char *to, int z, int first)
{
	const bf16 *from = (const bf16 *)((const char *)x.dout + z * x.dout_trial) + (size_t)first * x.ldo + m.a;
	const int valid = x.rows - first, lane = threadIdx.x & 31;

	/* a warp: 8 rows of 2 units, which conflict nowhere */
#pragma unroll 2
	for (int i = threadIdx.x / 32; i < (m.a_units + 1) / 2 * (Team::ROWS / 8); i += WARPS) {
		const int row = i % (Team::ROWS / 8) * 8 + lane / 4, unit = i / (Team::ROWS / 8) * 2 + (lane >> 1 & 1), half = lane & 1;

		if (unit < m.a_units)
			copy_8((bf16 *)(to + unit * Team::ROWS * LINE + in_unit(row, half)), from + (size_t)row * x.ldo + unit * UNIT + half * 8,
			       row < valid ? 8 : 0, x.dout);
	}
}

/* What relu let through of a warp's rows and columns: pairs of columns, asked for before the products that they will mask. */
template <int MI> __device__ __forceinline__ void load_mask(__nv_bfloat162 (&mask)[2 * MI][2], const bf16 *act, int ld, int rows)
{
	const int row = (threadIdx.x & 31) / 4, col = (threadIdx.x & 3) * 2;
#pragma unroll
	for (int i = 0; i < 2 * MI; i++)
#pragma unroll
		for (int j = 0; j < 2; j++)
			mask[i][j] = row + i * 8 < rows ? *(const __nv_bfloat162 *)(act + (row + i * 8) * ld + j * 8 + col) : __floats2bfloat162_rn(0.f, 0.f);
}

/* A unit's product, by 16 of k upwards. a, b: where this lane reads its first fragments of rows and of weights; a_step: from one step's
 * rows to the next's. Fragments are asked for some steps ahead: a warp has little else to do. */
template <int MI> __device__ __forceinline__ void multiply(float (&acc)[MI][2][4], ptx_shared a, unsigned a_step, ptx_shared b, int steps)
{
	unsigned fa[AHEAD][MI][4], fb[AHEAD][4];
	auto ask = [&](int slot) {
#pragma unroll
		for (int i = 0; i < MI; i++)
			ptx_ldmatrix4(fa[slot][i], a + i * 16 * LINE);
		ptx_ldmatrix4t(fb[slot], b);
		a += a_step, b += 16 * LINE;
	};

#pragma unroll
	for (int s = 0; s < AHEAD - 1; s++)
		if (s < steps)
			ask(s);
#pragma unroll 1
	for (int s = 0; s < steps; s += AHEAD)
#pragma unroll
		for (int t = 0; t < AHEAD; t++) {
			if (s + t + AHEAD - 1 < steps)
				ask((t + AHEAD - 1) % AHEAD);
			if (s + t < steps)
#pragma unroll
				for (int j = 0; j < 2; j++)
#pragma unroll
					for (int i = 0; i < MI; i++)
						ptx_mma_bf16(acc[i][j], fa[t][i], fb[t][j * 2], fb[t][j * 2 + 1]);
		}
}

/* The results as pairs of columns, masked: pair[i][j] of row lane / 4 + 8 i, columns 8 j on. */
template <int MI>
__device__ __forceinline__ void mask_pairs(unsigned (&pair)[2 * MI][2], const float (&acc)[MI][2][4], const __nv_bfloat162 (&mask)[2 * MI][2])
{
#pragma unroll
	for (int i = 0; i < 2 * MI; i++)
#pragma unroll
		for (int j = 0; j < 2; j++) {
			const float2 open = __bfloat1622float2(mask[i][j]);
			const __nv_bfloat162 v = __floats2bfloat162_rn(open.x > 0.f ? acc[i / 2][j][i % 2 * 2] : 0.f, open.y > 0.f ? acc[i / 2][j][i % 2 * 2 + 1] : 0.f);

			memcpy(&pair[i][j], &v, sizeof v);
		}
}

/* To every block of the cluster: into this one's rows, at byte `at`, from where each lane takes 16 bytes, so that what is sent lies side by
 * side, to the others', whose gate counts it, and to memory: d is the first of the warp's rows, of which there are `rows`. */
template <int MI>
__device__ __forceinline__ void spread(const unsigned (&pair)[2 * MI][2], char *shared, int at, int gate, unsigned rank, unsigned blocks, bf16 *d, int ld, int rows)
{
	const int lane = threadIdx.x & 31, mine = at + in_unit(lane / 4, 0) + (lane & 3) * 4, line = lane / 2, half = (lane & 1) ^ (line >> 2 & 1);
	const ptx_shared base = ptx_shared_at(shared);
	uint4 v[MI];

#pragma unroll
	for (int i = 0; i < 2 * MI; i++) { /* eight rows below the halves stand alike */
		*(unsigned *)(shared + mine + i * 8 * LINE) = pair[i][0];
		*(unsigned *)(shared + (mine ^ 16) + i * 8 * LINE) = pair[i][1];
	}
	__syncwarp();
#pragma unroll
	for (int i = 0; i < MI; i++)
		v[i] = *(const uint4 *)(shared + at + i * 16 * LINE + lane * 16);
#pragma unroll 1
	for (unsigned b = 1; b < blocks; b++) {
		const ptx_remote to = ptx_remote_at(base, (rank + b) & (blocks - 1));
#pragma unroll
		for (int i = 0; i < MI; i++)
			ptx_remote_async16(to + at + i * 16 * LINE + lane * 16, v[i], to + gate);
	}
#pragma unroll
	for (int i = 0; i < MI; i++)
		if (i * 16 + line < rows)
			__stwb((uint4 *)(d + (i * 16 + line) * ld + half * 8), v[i]); /* by name: nvcc takes assigned vectors apart */
}

/* The last layer's, which no block reads: to memory alone. */
template <int MI> __device__ __forceinline__ void leave(const unsigned (&pair)[2 * MI][2], bf16 *d, int ld, int rows)
{
	const int row = (threadIdx.x & 31) / 4, col = (threadIdx.x & 3) * 2;

#pragma unroll
	for (int i = 0; i < 2 * MI; i++)
#pragma unroll
		for (int j = 0; j < 2; j++)
			if (row + i * 8 < rows)
				*(unsigned *)(d + (row + i * 8) * ld + j * 8 + col) = pair[i][j];
}

/* A tile of a trial. */
struct tile { int z, first, valid; };

/* A warp's part of a layer: which units' tasks are its own, the one that is next, and what relu let through of it. */
template <typename Team> struct part {
	enum { MI = Team::MI };
	int next, end, down; /* tasks in groups of warps; rows of the tile above this warp's */
	struct task task;
	bf16 *d;             /* where its results go in memory */
	__nv_bfloat162 mask[2 * MI][2];
};

/* Reads the next task and asks for its mask, which waits for nothing of this launch. */
template <typename Team> __device__ __forceinline__ void prepare(struct part<Team> &p, const struct cluster_args &x, int layer, const struct tile &tile, const char *shared)
{
	if (p.next >= p.end)
		return;
	p.task = ((const struct task *)(shared + TASKS_AT))[p.next / Team::GROUPS];
	p.down = p.next % Team::GROUPS * Team::MI * 16;
	const size_t at = (size_t)(tile.first + p.down) * x.ld[layer] + p.task.column;
	load_mask<Team::MI>(p.mask, (const bf16 *)((const char *)x.act[layer] + tile.z * x.act_trial[layer]) + at, x.ld[layer], tile.valid - p.down);
	p.d = (bf16 *)((char *)x.d[layer] + tile.z * x.d_trial[layer]) + at;
}

/* The part of a layer whose input stands at byte a of shared memory and whose results go to c in every block (0: nowhere). */
template <typename Team>
__device__ __forceinline__ void go_through(struct part<Team> &p, const struct cluster_args &x, int layer, const struct tile &tile, char *shared, int a, int c,
                                           unsigned rank)
{
	enum { MI = Team::MI };
	const int lane = threadIdx.x & 31, ld = x.ld[layer];

#pragma unroll 1
	for (; p.next < p.end; p.next += WARPS, prepare<Team>(p, x, layer, tile, shared)) {
		float acc[MI][2][4] = {};
		unsigned pair[2 * MI][2];

		multiply<MI>(acc, ptx_shared_at(shared + a + p.task.a + p.down * LINE + in_unit(lane & 15, lane >> 4)), Team::ROWS * LINE,
		             ptx_shared_at(shared + p.task.b + in_unit(lane & 15, lane >> 4)), p.task.steps);
		mask_pairs<MI>(pair, acc, p.mask);
		if (c)
			spread<MI>(pair, shared, c + p.task.column * Team::ROWS * 2 + p.down * LINE, layer * GATE_BYTES, rank, 1u << x.log_blocks, p.d, ld, tile.valid - p.down);
		else
			leave<MI>(pair, p.d, ld, tile.valid - p.down);
	}
}

/* Lets a layer's gate count: bytes of its rows that come from other blocks. */
template <typename Team> __device__ __forceinline__ void expect(const struct cluster_args &x, char *shared, int layer)
{
	const int *const begin = (const int *)(shared + FIRST_AT);

	ptx_barrier_expect(ptx_shared_at(shared) + layer * GATE_BYTES, (x.ld[layer] - (begin[layer + 1] - begin[layer]) * UNIT) * Team::ROWS * (int)sizeof(bf16));
}

/* A cluster takes tiles that follow each other, of one trial and then the next, so that it seldom loads weights again. No block sends rows
 * of the next tile to one that still reads the last: to send a layer it needs what that one sends of the layer before, or of h2. */
template <typename Team> __global__ void __launch_bounds__(THREADS, Team::MI == 1 ? 2 : 1) k_cluster_back(const __grid_constant__ struct cluster_args x)
{
	PTX_SHARED(char, shared);
	const unsigned rank = ptx_cluster_rank(), total = x.tiles * x.trials, clusters = gridDim.x >> x.log_blocks, cluster = blockIdx.x >> x.log_blocks;
	const int from = total * cluster / clusters, end = total * (cluster + 1) / clusters;
	const struct mine m = mine_of(x, rank);
	const struct places p = places_of<Team>(x);
	const ptx_shared gate = ptx_shared_at(shared);
	const int *const begin = (const int *)(shared + FIRST_AT);
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* so that the compiler sees that a warp agrees on it */
	const bool first = threadIdx.x == 0;
	int z = from / x.tiles, tile0 = from - z * x.tiles;

	load_weights(x, m, shared, p.weight, z); /* no launch just before writes them */
	if (first) {
		for (int i = 0; i < GATES; i++)
			ptx_barrier_init(gate + i * GATE_BYTES, 1);
		ptx_barrier_init_fence();
	}
	ptx_cluster_arrive_relaxed();
	make_tasks<Team>(x, m, shared, p.weight);
	__syncthreads();
	cuda_wait_before();
	cuda_let_next();
	load_rows<Team>(x, m, shared + p.dout, z, tile0 * Team::ROWS);
	ptx_copy_commit();
	ptx_cluster_wait(); /* all blocks are there, and their gates */
	if (first)
		expect<Team>(x, shared, TO_HEAD);
#pragma unroll 1
	for (int id = from, parity = 0; id < end; id++, parity ^= 1) {
		const struct tile tile = {z, tile0 * Team::ROWS, x.rows - tile0 * Team::ROWS};

		if (++tile0 == x.tiles)
			z++, tile0 = 0; /* of the next tile */
#pragma unroll 1
		for (int layer = TO_HEAD; layer < LAYERS; layer++) {
			struct part<Team> part = {};

			part.next = begin[layer] * Team::GROUPS + warp, part.end = begin[layer + 1] * Team::GROUPS;
			prepare<Team>(part, x, layer, tile, shared);
			if (layer == TO_HEAD)
				ptx_copy_wait<0>();
			__syncthreads(); /* what this block itself brings is there; what the layer before read is free; all have come past its gate */
			if (first && layer == TO_HEAD)
				expect<Team>(x, shared, TO_H2);
			if (first && layer == TO_H1 && id + 1 < end)
				expect<Team>(x, shared, TO_HEAD);
			if (layer == TO_H2 && id + 1 < end) {
				load_rows<Team>(x, m, shared + p.dout, z, tile0 * Team::ROWS);
				ptx_copy_commit();
			}
			if (layer != TO_HEAD)
				ptx_barrier_wait(gate + (layer - 1) * GATE_BYTES, parity);
			go_through<Team>(part, x, layer, tile, shared, layer == TO_HEAD ? p.dout : layer == TO_H2 ? p.head : p.h2,
			                 layer == TO_HEAD ? p.head : layer == TO_H2 ? p.h2 : 0, rank);
		}
		if (z != tile.z && id + 1 < end) {
			__syncthreads(); /* the weights are free */
			load_weights(x, m, shared, p.weight, z);
			ptx_copy_commit();
		}
	}
}

/* ---------------------------------------------------------------- the choice */

/* Fills what depends on the network alone. 0: not for it. */
int describe(struct cuda_exec *c, struct cluster_args *x)
{
	const struct dqn_dims *d = &c->dims;
	const struct cuda_scratch *s = &c->s;

	*x = {};
	x->even = 1;
	if (d->precision != FH_PRECISION_BF16 || d->params > INT32_MAX)
		return 0;
	x->ldo = s->ldo;
	x->ld[TO_HEAD] = s->ldhead, x->ld[TO_H2] = s->ldh2, x->ld[TO_H1] = s->ldh1;
	x->s2 = (int)d->layer[DQN_S2].w, x->h2 = d->H2, x->h1 = d->H1;
	for (int h = 0, unit = 0; h <= d->D; h++) {
		const struct dqn_layer *hidden = &d->layer[DQN_V1 + 2 * h], *out = hidden + 1;

		x->head[x->heads++] = {(int)hidden->w, (int)out->w, out->out, out->in, unit, s->seg[h]};
		unit += steps_of(out->in);
		if (out->in % 8)
			x->even = 0;
	}
	if (d->H2 % 8 || d->H1 % 8)
		x->even = 0;
	x->rows = d->B, x->trials = d->P;
	return 1;
}

/* For clusters of so many blocks: what the block with most of it needs of shared memory. */
template <typename Team> size_t shared_bytes(struct cluster_args *x, int blocks)
{
	size_t most = 0;

	x->log_blocks = blocks == 4 ? 2 : 3, x->wide = x->units = 0;
	for (int rank = 0; rank < blocks; rank++) {
		const struct mine m = mine_of(*x, rank);

		x->wide = max(x->wide, m.a_units);
		x->units = max(x->units, m.count[TO_HEAD] + m.count[TO_H2] + m.count[TO_H1]);
	}
	for (int rank = 0; rank < blocks; rank++) {
		const struct mine m = mine_of(*x, rank);
		size_t bytes = (size_t)m.count[TO_H2] * x->ld[TO_HEAD] * LINE + (size_t)m.count[TO_H1] * x->ld[TO_H2] * LINE;

		for (int h = 0; h < x->heads; h++) {
			const int first = max(x->head[h].unit, m.first[TO_HEAD]), end = min(x->head[h].unit + head_units(*x, h), m.first[TO_HEAD] + m.count[TO_HEAD]);

			if (end > first)
				bytes += (size_t)(end - first) * steps_of(x->head[h].out) * 16 * LINE;
		}
		most = max(most, bytes);
	}
	return most + places_of<Team>(*x).weight;
}

typedef crew<1, 1> few;
typedef crew<1, 2> some;
typedef crew<2, 2> many;

struct choice { int blocks, rows, cost, each; }; /* each: tiles that a cluster takes */

/* Clusters that are resident at once with a multiprocessor for each block: an H200 of 132 holds 30 of four blocks, 15 of eight. */
int resident(const struct cuda_exec *c, int blocks)
{
	const int n = c->multiprocessors * 10 / 11 / blocks;

	return n ? n : 1;
}

/* About how long they take, in tenths of a microsecond of an H200. Measured there, default network, from the end of the launch in front on:
 * 16 rows 7,790 clocks with four blocks, 7,270 with eight, 32 rows 10,350 and 8,860. Of it 24 clocks a product of a sum; weights come
 * at 60 bytes a clock for each trial but the first. */
template <typename Team> void consider(const struct cuda_exec *c, struct cluster_args *x, int blocks, struct choice *best)
{
	const size_t bytes = shared_bytes<Team>(x, blocks);
	const int tiles = cuda_tiles(x->rows, Team::ROWS) * x->trials, each = cuda_tiles(tiles, resident(c, blocks));
	int out = 0;

	for (int h = 0; h < x->heads; h++)
		out = max(out, x->head[h].out);
	const int sums = 24 * (steps_of(out) + (x->ld[TO_HEAD] + x->ld[TO_H2]) / 16) * cuda_tiles(x->ld[TO_HEAD] / UNIT / blocks * Team::GROUPS, WARPS);
	const int columns = (x->ld[TO_HEAD] + x->ld[TO_H2]) * Team::ROWS / blocks * 5 / 6, loads = min(each, x->trials) - 1;
	const int cost = (each * (3900 + sums + columns) + loads * (int)(bytes / 60)) / 190 + 1;

	if (bytes <= c->shared && (!best->rows || cost < best->cost))
		*best = {blocks, Team::ROWS, cost, each};
}

/* FH_GPU_WIDE: 8 asks for clusters, 100 b + r for those of b blocks and tiles of r rows. */
struct choice choose(const struct cuda_exec *c, struct cluster_args *x)
{
	const int asked = cuda_wide_asked(), blocks = asked / 100, rows = asked % 100;
	struct choice best = {};

	for (int b = 4; b <= 8; b *= 2) {
		if (asked >= 100 && blocks != b)
			continue;
		if (asked < 100 || rows == few::ROWS)
			consider<few>(c, x, b, &best);
		if (asked < 100 || rows == some::ROWS)
			consider<some>(c, x, b, &best);
		if (asked < 100 || rows == many::ROWS)
			consider<many>(c, x, b, &best);
	}
	return best;
}

template <typename Team> cudaError_t launch(struct cuda_exec *c, struct cluster_args *x, int blocks)
{
	const size_t bytes = shared_bytes<Team>(x, blocks);
	const cudaError_t e = cuda_allow_shared(c, k_cluster_back<Team>);

	if (e != cudaSuccess)
		return e;
	x->tiles = cuda_tiles(x->rows, Team::ROWS);
	/* where a block sends nothing others would not wait for it: then a cluster takes one tile */
	const int tiles = x->tiles * x->trials, several = min(x->ld[TO_HEAD], x->ld[TO_H2]) >= blocks * UNIT;
	return cuda_launch_cluster(c, k_cluster_back<Team>, dim3((several ? min(tiles, resident(c, blocks)) : tiles) * blocks), blocks, THREADS, bytes, *x);
}

} // namespace

int cluster_back_takes(struct cuda_exec *c)
{
	const int asked = cuda_wide_asked();
	struct cluster_args x;

	if (c->sync || !c->clusters || (asked >= 0 && asked != 8 && asked < 100) || !describe(c, &x))
		return 0;
	const struct choice best = choose(c, &x);
	return best.rows && (asked > 0 || (best.each == 1 && best.cost * 4 / 3 < back_cost(c))); /* a second tile cost 8 us, measured, of 32 rows */
}

int cluster_back(struct cuda_exec *c, struct fh_status *st)
{
	struct cluster_args x;

	if (!describe(c, &x))
		return fh_fail(st, FH_INTERNAL, "backward: the network does not fit"); /* cluster_back_takes() said otherwise */
	back_tensors(c, &x);
	const struct choice best = choose(c, &x);
	switch (best.rows) {
	case few::ROWS: CUDA_TRY(launch<few>(c, &x, best.blocks)); break;
	case some::ROWS: CUDA_TRY(launch<some>(c, &x, best.blocks)); break;
	default: CUDA_TRY(launch<many>(c, &x, best.blocks));
	}
	return 0;
}
