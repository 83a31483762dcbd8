/* The sum tree on the device (section 4): new transitions, new priorities, and the nodes above both.
 *
 * Duplicates in a batch are resolved by an integer maximum over the rows, which needs no order; every inner node is
 * recomputed as left + right. Compiled without contraction: nodes are the host's for the same leaves. */
#include "gpu/cuda/count.cuh"
#include "gpu/sumtree.h"

namespace {

/* Row j claims its leaf; of equal leaves the highest j keeps it: an integer maximum, which needs no order. */
__device__ __forceinline__ void claim(const struct cuda_update_args &x, int j)
{
	const int z = blockIdx.z;

	if (j < x.B)
		atomicMax((int32_t *)((char *)x.winner + z * x.winner_trial) + x.index[(size_t)z * x.B + j], j);
	if (j == 0)
		((float *)((char *)x.old + z * x.old_trial))[x.B] = x.clock[z].largest;
}

/* The winner writes its leaf and keeps what was there; other rows keep CUDA_NOT_MINE. The largest priority as an integer
 * maximum too: positive floats are ordered as their bits. */
__device__ __forceinline__ void write_leaf(const struct cuda_update_args &x, int j)
{
	const int z = blockIdx.z;
	const int32_t leaf = x.index[(size_t)z * x.B + j];
	float *node = x.tree + (size_t)z * 2 * x.C, *old = (float *)((char *)x.old + z * x.old_trial) + j;

	if (((const int32_t *)((const char *)x.winner + z * x.winner_trial))[leaf] != j) {
		*old = CUDA_NOT_MINE;
		return;
	}
	const float p = tree_priority(x.error[(size_t)z * x.B + j], x.clock[z].alpha);
	*old = node[x.C + leaf];
	node[x.C + leaf] = p;
	if (p == p)
		atomicMax((int *)&x.clock[z].largest, __float_as_int(p));
}

/* A small batch: its means and everything else by one block a trial. */
__global__ void __launch_bounds__(CUDA_FEW_ROWS) k_priority(const __grid_constant__ struct cuda_end_args x)
{
	__shared__ struct few_room room;
	__shared__ double means[CUDA_MEANS][CUDA_SUM_THREADS / 32];

	few_look(x.update, room);
	cuda_means(x, means); /* all have met */
	cuda_priority_few(x.update, room);
}

/* A large batch: claims, leaves, then the whole tree (cuda_rebuild). */
__global__ void k_claim(const __grid_constant__ struct cuda_update_args x)
{
	claim(x, blockIdx.x * blockDim.x + threadIdx.x);
}
__global__ void k_leaves(const __grid_constant__ struct cuda_update_args x)
{
	const int j = blockIdx.x * blockDim.x + threadIdx.x;

	if (j < x.B)
		write_leaf(x, j);
}

/* Leaves of a chunk, a power of two as C is. */
__host__ __device__ inline int chunk_of(int64_t C) { return C < CUDA_CHUNK ? (int)C : (int)CUDA_CHUNK; }

struct rebuild_args {
	float *tree;
	struct dqn_clock *clock;
	unsigned *ticket;
	size_t ticket_trial;
	int32_t *winner;         /* with new priorities: forgotten again */
	size_t winner_trial;
	int insert;              /* 1: the leaves of this vector step's transitions first, accumulators and counters last */
	double *acc;
	const double *estat;
	size_t estat_trial;
	int estat_blocks, estat_envs; /* sums over so many environments each: CUDA_ENV_FEW or CUDA_ENV_BLOCK */
	int N, C, log_chunk;     /* no division by numbers that are powers of two */
};
static_assert(ACC_EXITS - ACC_REWARD + 1 == CUDA_ENV_STATS, "the accumulators of a vector step are neighbours");

static_assert((int)JOIN_WARPS == CUDA_ENV_STATS, "a warp a sum over environments");

/* What the environments of a vector step add to the accumulators, a warp each: always a binary tree over CUDA_ENV_BLOCK of them, whoever
 * began it, so a trial's sums are the same alone and among many. */
__device__ __forceinline__ void add_environments(const struct rebuild_args &x)
{
	const int z = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
	const double *e = (const double *)((const char *)x.estat + z * x.estat_trial) + warp;
	double sum = 0.0;

	if (x.estat_envs == CUDA_ENV_BLOCK) {
		for (int b = lane; b < x.estat_blocks; b += 32)
			sum += e[(size_t)b * CUDA_ENV_STATS];
	} else { /* two blocks a round, 16 lanes each */
		static_assert(CUDA_ENV_BLOCK == 16 * CUDA_ENV_FEW, "lanes of a block");
#pragma unroll 2
		for (int at = 0; at < x.estat_blocks; at += 32) {
			double v = at + lane < x.estat_blocks ? e[(size_t)(at + lane) * CUDA_ENV_STATS] : 0.0;
#pragma unroll
			for (int o = 1; o < 16; o *= 2)
				v += __shfl_xor_sync(0xffffffffu, v, o);
			const double even = __shfl_sync(0xffffffffu, v, 0), odd = __shfl_sync(0xffffffffu, v, 16);

			sum += lane == at / 16 % 32 ? even : lane == (at / 16 + 1) % 32 ? odd : 0.0;
		}
	}
#pragma unroll
	for (int o = 16; o; o >>= 1)
		sum += __shfl_xor_sync(0xffffffffu, sum, o);
	double *acc = x.acc + (size_t)z * DQN_ACC_COUNT;
	if (lane == 0)
		acc[ACC_REWARD + warp] += sum;
	if (threadIdx.x == 32)
		acc[ACC_ENV_STEPS] += x.N;
	if (threadIdx.x == 64)
		acc[ACC_EPS] = x.clock[z].eps;
}

/* The leaves of one chunk from `first` on and the nodes above them up to its root. Leaves of this vector step, n from lo on, get `largest`. */
__device__ __forceinline__ void rebuild_chunk(const struct rebuild_args &x, float *node, int first, int lo, int n, float largest, float *warps)
{
	const int C = x.C, size = 1 << x.log_chunk, own = 4 * threadIdx.x, leaf = first + own;
	float4 v = {};

	if (own < size) { /* chunks are at least 16 leaves */
		v = *(const float4 *)(node + C + leaf);
		if (x.winner)
			__stwb((int4 *)((int32_t *)((char *)x.winner + blockIdx.z * x.winner_trial) + leaf), make_int4(-1, -1, -1, -1));
		float *p = &v.x;
		bool fresh = false;
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (((leaf + k - lo) & (C - 1)) < n)
				p[k] = largest, fresh = true;
		if (fresh)
			__stwb((float4 *)(node + C + leaf), v);
	}
	join_up(node, C + first, size, v, warps);
}

/* Whether this block is the last of `blocks` to come here, which then sees what the others wrote. The fence is one thread's, for all of its block. */
__device__ __forceinline__ bool last_block(const struct rebuild_args &x, unsigned blocks, unsigned *last)
{
	__syncthreads();
	if (blocks == 1)
		return true;
	if (threadIdx.x == 0) {
		__threadfence();
		*last = atomicAdd((unsigned *)((char *)x.ticket + blockIdx.z * x.ticket_trial), 1u) == blocks - 1;
		__threadfence();
	}
	__syncthreads();
	return *last;
}

/* A block a chunk of leaves (where there are two at most: one), up to the chunk's root; the block that ends last goes on from there. Recomputed
 * from the leaves: exact, whatever the order of blocks. One block more adds up what the environments did: it waits for nobody. */
__global__ void __launch_bounds__(JOIN_THREADS) k_rebuild(const __grid_constant__ struct rebuild_args x)
{
	__shared__ float warps[JOIN_WARPS];
	__shared__ unsigned last;
	const int z = blockIdx.z, C = x.C, size = 1 << x.log_chunk, chunks = C >> x.log_chunk, blocks = gridDim.x - x.insert;
	struct dqn_clock *c = &x.clock[z];
	float *node = x.tree + (size_t)z * 2 * C;

	cuda_wait_before();
	cuda_let_next();
	if ((int)blockIdx.x == blocks) {
		add_environments(x);
		return;
	}
	const int64_t stored = c->stored, step = c->vector_step;
	const int lo = x.insert ? (int)(stored & (C - 1)) : 0, n = x.insert ? (int)c->fresh : 0;
	const int touched = min(x.insert ? ((lo & (size - 1)) + n + size - 1) >> x.log_chunk : chunks, chunks);
	const float largest = c->largest;
	for (int k = blockIdx.x; k < touched; k += blocks) {
		if (k != (int)blockIdx.x)
			__syncthreads(); /* warps[] */
		rebuild_chunk(x, node, (((lo >> x.log_chunk) + k) & (chunks - 1)) * size, lo, n, largest, warps);
	}
	if (!last_block(x, blocks, &last))
		return;
	for (int width = chunks; width > 1; width /= CUDA_CHUNK) /* above a very large tree's chunks are chunks */
		for (int first = width; first < 2 * width; first += CUDA_CHUNK) {
			const int most = min(width, (int)CUDA_CHUNK);

			__syncthreads(); /* what other threads left, in memory and in warps[] */
			join_up(node, first, most, join_four(node + first, most), warps);
		}
	if (threadIdx.x)
		return;
	if (blocks > 1)
		*(unsigned *)((char *)x.ticket + z * x.ticket_trial) = 0;
	if (x.insert)
		c->stored = stored + n, c->fresh = 0, c->vector_step = step + 1;
}

} // namespace

/* estat_envs: 0 after new priorities. */
static struct rebuild_args rebuild_args_of(struct cuda_exec *c, int estat_envs)
{
	struct rebuild_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.ticket = cuda_at<unsigned>(c, &c->s.ticket), a.ticket_trial = c->s.ticket.stride;
	if (!estat_envs)
		a.winner = cuda_at<int32_t>(c, &c->s.winner), a.winner_trial = c->s.winner.stride;
	a.insert = estat_envs > 0;
	a.acc = cuda_tensor<double>(c, T_ACCUM);
	a.estat = cuda_at<double>(c, &c->s.estat), a.estat_trial = c->s.estat.stride;
	a.estat_envs = estat_envs, a.estat_blocks = estat_envs ? cuda_tiles(c->dims.N, estat_envs) : 0;
	a.N = c->dims.N, a.C = (int)c->dims.C;
	while (1 << a.log_chunk < chunk_of(a.C))
		a.log_chunk++;
	return a;
}

/* Leaves of the transitions that ENV stored, the nodes above them, accumulators and counters of the vector step. */
int cuda_insert(struct cuda_exec *c, int estat_envs, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const int64_t size = chunk_of(d->C), chunks = d->C / size, most = ((int64_t)d->N * d->n + size - 1) / size + 1;
	const int64_t blocks = most <= 2 ? 1 : most < chunks ? most : chunks;

	CUDA_TRY(cuda_launch(c, k_rebuild, dim3((unsigned)blocks + 1, 1, d->P), JOIN_THREADS, 0, rebuild_args_of(c, estat_envs)));
	return 0;
}

/* Means of the batch and new priorities. */
int cuda_priority(struct cuda_exec *c, cudaStream_t stream, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const unsigned blocks = (unsigned)cuda_tiles(d->B, 256);
	const struct cuda_update_args a = cuda_update_args_of(c);

	if (d->B <= CUDA_FEW_ROWS) { /* a thread a row, and where that leaves room others for the means */
		const int threads = d->B <= CUDA_FEW_ROWS - CUDA_SUM_THREADS ? (d->B + 31) / 32 * 32 + CUDA_SUM_THREADS : (int)CUDA_FEW_ROWS;

		CUDA_TRY(cuda_launch_plain(stream, k_priority, dim3(1, 1, d->P), (unsigned)threads, 0, cuda_end_args_of(c)));
		return 0;
	}
	const int rc = cuda_sums(c, stream, st);
	if (rc)
		return rc;
	CUDA_TRY(cuda_launch_plain(stream, k_claim, dim3(blocks, 1, d->P), 256, 0, a));
	CUDA_TRY(cuda_launch_plain(stream, k_leaves, dim3(blocks, 1, d->P), 256, 0, a));
	CUDA_TRY(cuda_launch_plain(stream, k_rebuild, dim3((unsigned)(d->C / chunk_of(d->C)), 1, d->P), JOIN_THREADS, 0, rebuild_args_of(c, 0)));
	return 0;
}

int cuda_dqn_priority(struct exec *x, struct fh_status *st)
{
	return cuda_priority(cuda_of(x), cuda_of(x)->stream, st);
}
