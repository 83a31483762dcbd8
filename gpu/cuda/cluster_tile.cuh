/* The kernel of cluster_forward.cu, which alone includes this: a cluster of blocks takes a tile of rows from the states to the outputs, BF16.
 *
 * The columns of every layer are cut into strips of 16, and these are shared out among the blocks of a cluster. A strip is one warp's,
 * for all rows of the tile: so no weight is wanted by two warps of a cluster, and each warp brings its own into shared memory, those of
 * all layers at the very beginning. What a warp computes of a hidden layer it sends to the blocks that go on with it; a block knows by one
 * mbarrier a layer when all of it has come. Nobody waits for a whole block or cluster between layers.
 *
 * In shared memory a strip is a piece by itself: 16 columns of 16 rows (of a tile; of a step of weights, where a strip's outputs are the
 * rows) are 512 bytes, two units of 16 bytes a row. A strip of one layer is a step of the sum in the next. */
#ifndef FH_GPU_CUDA_CLUSTER_TILE_CUH
#define FH_GPU_CUDA_CLUSTER_TILE_CUH

#include <cuda_bf16.h>
#include "gpu/cuda/cluster_forward.cuh"
#include "gpu/cuda/copy.cuh"

namespace {

typedef __nv_bfloat16 bf16;

enum { STRIP = 16, PIECE = STRIP * STRIP * (int)sizeof(bf16), BIAS = STRIP * (int)sizeof(float), STEPS = 16, BRING = 4, WARPS = 8, THREADS = 32 * WARPS };
enum { L_H1, L_H2, L_HEAD, L_OUT, LAYERS, HIDDEN = L_OUT, PARTS = 1 + FH_BRANCH_MAX, CLUSTER_MOST = 8 };

/* A matrix of a layer: the trunk's has one, heads and outputs one each of V and the branches. Its strips are numbered from `first` on
 * behind each other; its input begins at step a. The blocks from..to of a cluster go on with what comes out. */
struct part { int first, w, bias, n, k, steps, a, from, to; };
/* begin, count: the strips of each block; come: those that others send it; each: the most that one has; slot: bytes
 * of a strip's weights; turn: the first warp to have a strip; the others: bytes in shared memory. */
struct layer {
	int strips, each, parts, slot, weights, bias, in, out, turn, begin[CLUSTER_MOST], count[CLUSTER_MOST], come[CLUSTER_MOST];
	struct part part[PARTS];
};

/* A strip at work: who goes on with it; its bias (bytes) and weights, and where this lane reads its first fragment of rows. */
struct task { int strip, steps, from, to, bias; ptx_shared weights, rows; };

struct cluster_args {
	const bf16 *x;           /* low [.., ldx], or: */
	const float *obs;        /* F32 [.., SD] */
	size_t x_trial;          /* bytes, as all of these */
	int ldx, sd;
	const bf16 *weight[2];   /* online, target: flat, of the first trial */
	const float *bias[2];
	size_t params;           /* elements from trial to trial */
	bf16 *hidden[HIDDEN];    /* h1, h2, head */
	size_t hidden_trial[HIDDEN], out_trial;
	int ldhidden[HIDDEN], ldo;
	float *out;
	int size, tiles, first_tile; /* blocks of a cluster; tiles of a trial, the second pass's from first_tile on */
	int whole;               /* a head and its outputs are one block's, which keeps no others */
	struct mlp_pass pass[2];
	struct layer layer[LAYERS];
	int barriers, shared;    /* bytes in shared memory; of it in all */
};
static_assert(sizeof(struct cluster_args) <= 4096, "kernel arguments");

/* ---------------------------------------------------------------- pieces */
/* Where a half row is in a piece, in bytes: eight rows of one half, and two halves of rows that follow each other, meet in no bank. */
__device__ __forceinline__ unsigned in_piece(int row, int half) { return (unsigned)(row * 2 + (half ^ (row >> 2 & 1))) * 16; }
/* Pieces of weights are copied by lanes that have four of them in turn: each of the four has its units in another order. */
__device__ __forceinline__ unsigned turned(unsigned at, int step) { return at ^ (unsigned)(step & 3) << 5; }

__device__ __forceinline__ int part_of(const struct layer &l, int strip)
{
	int q = 0;

	while (q + 1 < l.parts && strip >= l.part[q + 1].first)
		q++;
	return q;
}

/* ---------------------------------------------------------------- what comes in */
/* The weights of a strip, n outputs of k, zeros behind and to whole fours of steps. Eight lanes bring 64 columns of a row, four steps. Addresses
 * stay in registers of their own and differ by constants: a copy may read its registers long after it was issued, and whoever
 * writes them waits for that. */
__device__ __forceinline__ void bring_strip(const bf16 *from, int n, int k, ptx_shared to)
{
	const int lane = threadIdx.x & 31, unit = lane & 7, first = lane >> 3;

#pragma unroll 1
	for (int col = 0; col < k; col += BRING * 64, to += BRING * 4 * PIECE) {
		const bf16 *row[4];
		ptx_shared at[4];

#pragma unroll
		for (int r = 0; r < 4; r++) {
			row[r] = from + (first + r * 4) * k + unit * 8 + col;
			at[r] = to + unit / 2 * PIECE + turned(in_piece(first + r * 4, unit & 1), unit / 2);
		}
#pragma unroll
		for (int c = 0; c < BRING; c++) {
			if (col + c * 64 >= k)
				break;
#pragma unroll
			for (int r = 0; r < 4; r++)
				ptx_copy16_if(at[r] + c * 4 * PIECE, row[r] + c * 64, first + r * 4 < n && col + c * 64 + unit * 8 < k);
		}
	}
}
/* The same where rows are at no multiple of 16 bytes; all of it is there at once. */
static __device__ __noinline__ void bring_odd_strip(const bf16 *from, int n, int k, char *to)
{
	const int lane = threadIdx.x & 31, unit = lane & 7;

#pragma unroll 1
	for (int col = unit * 8; col < k + unit * 8; col += 64)
#pragma unroll 1
		for (int row = lane >> 3; row < STRIP; row += 4)
			copy_odd((bf16 *)(to + col / STRIP * PIECE + turned(in_piece(row, unit & 1), col / STRIP)), from + row * k + col, row < n ? copy_left(k, col) : 0);
}

/* The weights and biases of this warp's strips of a layer. Copies that do not wait. */
__device__ __forceinline__ void bring(const struct layer &l, int rank, int warp, char *shared, const bf16 *weight, const float *bias)
{
	const int lane = threadIdx.x & 31, mine = l.count[rank];

#pragma unroll 1
	for (int i = (warp - l.turn) & (WARPS - 1); i < mine; i += WARPS) {
		const int strip = l.begin[rank] + i;
		const struct part &p = l.part[part_of(l, strip)];
		const int first = (strip - p.first) * STRIP, n = min((int)STRIP, p.n - first), k = p.k;
		const bf16 *from = weight + p.w + (size_t)first * k;
		char *to = shared + l.weights + i * l.slot;

		if (k % 8)
			bring_odd_strip(from, n, k, to);
		else
			bring_strip(from, n, k, ptx_shared_at(to));
		if (lane < 4) {
			const int left = max(0, min(4, n - lane * 4));

			ptx_copy16(ptx_shared_at(shared + l.bias + i * BIAS + lane * 16), left ? bias + p.bias + first + lane * 4 : bias, left * (int)sizeof(float));
		}
	}
	ptx_copy_commit();
}

/* Waits for this warp's copies of layer l. */
__device__ __forceinline__ void wait_for(int l)
{
	if (l == L_H1)
		ptx_copy_wait<LAYERS - 1 - L_H1>();
	else if (l == L_H2)
		ptx_copy_wait<LAYERS - 1 - L_H2>();
	else if (l == L_HEAD)
		ptx_copy_wait<LAYERS - 1 - L_HEAD>();
	else
		ptx_copy_wait<LAYERS - 1 - L_OUT>();
	__syncwarp();
}

/* Elements col.. of a row of states, `left` of them, zeros behind. */
__device__ __forceinline__ uint4 state_unit(const struct cluster_args &x, int z, int row, int col, int left)
{
	__align__(16) bf16 v[8];

	if (x.x) {
		const bf16 *s = (const bf16 *)((const char *)x.x + z * x.x_trial) + (size_t)row * x.ldx + col;

		if (left == 8)
			return *(const uint4 *)s;
#pragma unroll
		for (int e = 0; e < 8; e++)
			v[e] = e < left ? s[e] : (bf16)0.f;
		return *(const uint4 *)v;
	}
	const float *s = (const float *)((const char *)x.obs + z * x.x_trial) + (size_t)row * x.sd + col;

#pragma unroll
	for (int e = 0; e < 8; e += 2) {
		float2 y = {0.f, 0.f};

		if (x.sd % 2 == 0 && e + 1 < left)
			y = *(const float2 *)(s + e);
		else
			y.x = e < left ? s[e] : 0.f, y.y = e + 1 < left ? s[e + 1] : 0.f;
		v[e] = __float2bfloat16_rn(y.x), v[e + 1] = __float2bfloat16_rn(y.y);
	}
	return *(const uint4 *)v;
}

/* A tile's states, zeros to whole steps and below the last row. */
template <int MI> __device__ __forceinline__ void bring_states(const struct cluster_args &x, char *to, int z, int first, int valid)
{
	enum { UNITS = MI * PIECE / 16 };

#pragma unroll 1
	for (int i = threadIdx.x; i < x.layer[L_H1].part[0].steps * UNITS; i += THREADS) {
		const int row = i % UNITS / 2, col = i / UNITS * STRIP + ((i & 1) ^ (row >> 2 & 1)) * 8, left = row < valid ? copy_left(x.sd, col) : 0;

		*(uint4 *)(to + i * 16) = left ? state_unit(x, z, first + row, col, left) : make_uint4(0, 0, 0, 0);
	}
}

/* ---------------------------------------------------------------- products */
/* The fragments of up to STEPS steps of a strip's weights. */
__device__ __forceinline__ void load_weights(unsigned (&b)[STEPS][4], ptx_shared piece, int steps)
{
	const int lane = threadIdx.x & 31;
	const unsigned at = in_piece((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
	ptx_shared from[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		from[i] = piece + turned(at, i);
#pragma unroll
	for (int i = 0; i < STEPS; i++)
		if (i < steps)
			ptx_ldmatrix4(b[i], from[i & 3] + i * PIECE);
}

/* acc += rows b, in the order of gemm.cu: by 16 of k, upwards. rows: this lane's first fragment. Those of a step are read AHEAD steps
 * before their products: a warp alone on its scheduler has nothing else to do while it waits for them. */
template <int MI> __device__ __forceinline__ void multiply(float (&acc)[MI][2][4], ptx_shared rows, const unsigned (&b)[STEPS][4], int steps)
{
	enum { AHEAD = MI < 4 ? 3 : 2, KEPT = AHEAD + 1 };
	unsigned a[KEPT][MI][4];

#pragma unroll
	for (int k = 0; k < AHEAD; k++)
		if (k < steps)
#pragma unroll
			for (int i = 0; i < MI; i++)
				ptx_ldmatrix4(a[k][i], rows + (k * MI + i) * PIECE);
#pragma unroll
	for (int k = 0; k < STEPS; k++) {
		if (k >= steps)
			break;
		if (k + AHEAD < STEPS && k + AHEAD < steps)
#pragma unroll
			for (int i = 0; i < MI; i++)
				ptx_ldmatrix4(a[(k + AHEAD) % KEPT][i], rows + ((k + AHEAD) * MI + i) * PIECE);
#pragma unroll
		for (int j = 0; j < 2; j++)
#pragma unroll
			for (int i = 0; i < MI; i++)
				ptx_mma_bf16(acc[i][j], a[k % KEPT][i], b[k][j * 2], b[k][j * 2 + 1]);
	}
}

/* ---------------------------------------------------------------- what goes out */
/* A strip of a hidden layer, after relu: into its place in this block, from where each lane takes 16 bytes, so that what is sent lies side by side:
 * to the blocks that go on with it, which count bytes, and to memory for the backward pass: `rows` of it, memory: its first row and column
 * there. It is read before this block counts it as there: h1 may be written over as soon as all of it is. */
template <int MI>
__device__ __forceinline__ void send_strip(const float (&acc)[MI][2][4], const float *bias, const struct task &t, int size, int rank, char *to, ptx_shared bar,
                                           bf16 *memory, int ld, int rows)
{
	const int lane = threadIdx.x & 31, row = lane / 2, half = (lane & 1) ^ (row >> 2 & 1);
	uint4 v[MI];

#pragma unroll
	for (int j = 0; j < 2; j++) {
		const float2 b = *(const float2 *)(bias + j * 8 + (lane & 3) * 2);
		char *const at = to + in_piece(lane / 4, j) + (lane & 3) * 4, *const below = to + in_piece(8 + lane / 4, j) + (lane & 3) * 4;
#pragma unroll
		for (int i = 0; i < 2 * MI; i++)
			*(__nv_bfloat162 *)((i & 1 ? below : at) + i / 2 * PIECE) =
				__floats2bfloat162_rn(ptx_max_nan(acc[i / 2][j][i % 2 * 2] + b.x, 0.f), ptx_max_nan(acc[i / 2][j][i % 2 * 2 + 1] + b.y, 0.f));
	}
	__syncwarp();
#pragma unroll
	for (int i = 0; i < MI; i++)
		v[i] = *(const uint4 *)(to + i * PIECE + lane * 16);
#pragma unroll 1
	for (int d = 1; d < size; d++) { /* each begins with another */
		const int other = (rank + d) & (size - 1);

		if (other < t.from || other > t.to)
			continue;
		const ptx_remote its = ptx_remote_at(ptx_shared_at(to), other) + lane * 16, its_bar = ptx_remote_at(bar, other);
#pragma unroll
		for (int i = 0; i < MI; i++)
			ptx_remote_async16(its + i * PIECE, v[i], its_bar);
	}
	ptx_barrier_arrive(bar); /* every lane for what it wrote and read */
#pragma unroll
	for (int i = 0; i < MI; i++)
		if (i * STRIP + row < rows)
			*(uint4 *)(memory + (size_t)(i * STRIP + row) * ld + half * 8) = v[i];
}

/* A strip of outputs to memory. to: its first column in the tile's first row. */
template <int MI> __device__ __forceinline__ void write_strip(const float (&acc)[MI][2][4], const float *bias, float *to, int ldo, int rows)
{
	const int lane = threadIdx.x & 31;

	const float2 b0 = *(const float2 *)(bias + (lane & 3) * 2), b1 = *(const float2 *)(bias + 8 + (lane & 3) * 2);

	to += (size_t)(lane / 4) * ldo + (lane & 3) * 2;
#pragma unroll
	for (int i = 0; i < 2 * MI; i++, to += 8 * ldo)
		if (i * 8 + lane / 4 < rows) {
			const float *a = &acc[i / 2][0][i % 2 * 2], *b = &acc[i / 2][1][i % 2 * 2];

			__stwb((float2 *)to, make_float2(ptx_max_nan(a[0] + b0.x, -INFINITY), ptx_max_nan(a[1] + b0.y, -INFINITY)));
			__stwb((float2 *)(to + 8), make_float2(ptx_max_nan(b[0] + b1.x, -INFINITY), ptx_max_nan(b[1] + b1.y, -INFINITY)));
		}
}

/* ---------------------------------------------------------------- the kernel */
/* What the mbarriers count: this block's own strips, and the bytes that others send, which one more arrival announces. */
template <int MI> __device__ __forceinline__ void open_barriers(const struct cluster_args &x, int rank, ptx_shared bar)
{
#pragma unroll
	for (int i = 0; i < HIDDEN; i++) {
		ptx_barrier_init(bar + i * 8, 1 + 32 * x.layer[i].count[rank]);
		ptx_barrier_expect(bar + i * 8, x.layer[i].come[rank] * MI * PIECE);
	}
	ptx_barrier_init_fence();
}

/* The at-th strip of this block in a layer. Worked out before what it waits for is there. away: heads that this block does not have. */
template <int MI> __device__ __forceinline__ struct task task_of(const struct layer &l, int rank, int at, int away, char *shared)
{
	const int lane = threadIdx.x & 31, strip = l.begin[rank] + at;
	const struct part &q = l.part[part_of(l, strip)];

	return {strip, q.steps, q.from, q.to, l.bias + at * BIAS, ptx_shared_at(shared + l.weights + at * l.slot),
	        ptx_shared_at(shared + l.in + (q.a - away) * MI * PIECE) + in_piece(lane & 15, lane >> 4)};
}

/* MI: sixteens of rows of a tile. */
template <int MI> __global__ void __launch_bounds__(THREADS, 1) k_cluster(const __grid_constant__ struct cluster_args x)
{
	PTX_SHARED(char, shared);
	const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), rank = (int)ptx_cluster_rank();
	const int z = blockIdx.z, tile = blockIdx.x / x.size;
	const struct mlp_pass &p = x.pass[tile >= x.first_tile];
	const int first = (tile - (tile >= x.first_tile ? x.first_tile : 0)) * MI * STRIP, valid = min(MI * (int)STRIP, p.rows - first);
	const int away = x.whole ? x.layer[L_HEAD].begin[rank] : 0; /* heads that this block does not have, in strips */
	const ptx_shared bar = ptx_shared_at(shared + x.barriers);

#pragma unroll 1
	for (int i = 0; i < LAYERS; i++)
		bring(x.layer[i], rank, warp, shared, x.weight[p.target] + z * x.params, x.bias[p.target] + z * x.params);
	if (threadIdx.x == 0)
		open_barriers<MI>(x, rank, bar);
	__syncwarp();
	ptx_cluster_arrive_relaxed(); /* from here on others may send */
#pragma unroll 1
	for (int i = 0; i < LAYERS; i++) {
		const struct layer &l = x.layer[i];
		const int mine = l.count[rank];
		int at = (warp - l.turn) & (WARPS - 1);
		unsigned b[STEPS][4];

		const int missing = i == L_OUT ? away : 0;
		struct task t = {};

		if (at < mine) {
			t = task_of<MI>(l, rank, at, missing, shared);
			wait_for(i);
			load_weights(b, t.weights, t.steps);
		}
		if (i == L_H1) {
			cuda_wait_before();
			cuda_let_next();
			bring_states<MI>(x, shared + l.in, z, p.x_row + first, valid);
			__syncthreads();
			ptx_cluster_wait();
		} else { /* all of it is here: what this block has of it, and what others sent */
			ptx_barrier_wait(bar + (i - 1) * 8, 0);
		}
		float acc[MI][2][4] = {};
		int k = 0;
#pragma unroll 1
		while (at < mine) {
			const struct task done = t;

			multiply<MI>(acc, t.rows + k * MI * PIECE, b, t.steps - k);
			k += STEPS;
			if (k >= t.steps) {
				k = 0, at += WARPS;
				if (at < mine)
					t = task_of<MI>(l, rank, at, missing, shared);
			}
			if (at < mine)
				load_weights(b, t.weights + k * PIECE, t.steps - k);
			if (k)
				continue; /* the strip goes on */
			const float *bias = (const float *)(shared + done.bias);
			const int column = done.strip * STRIP;

			if (i == L_OUT) {
				write_strip<MI>(acc, bias, (float *)((char *)x.out + z * x.out_trial) + (size_t)(p.row + first) * x.ldo + column, x.ldo, valid);
			} else {
				char *to = shared + l.out + (done.strip - (i == L_HEAD ? away : 0)) * MI * PIECE;

				send_strip<MI>(acc, bias, done, x.size, rank, to, bar + i * 8,
				               (bf16 *)((char *)x.hidden[i] + z * x.hidden_trial[i]) + (size_t)(p.row + first) * x.ldhidden[i] + column, x.ldhidden[i],
				               min(valid, p.keep - first));
			}
#pragma unroll
			for (int e = 0; e < MI * 8; e++)
				acc[e / 8][e / 4 % 2][e % 4] = 0.f;
		}
	}
}

} // namespace

#endif
