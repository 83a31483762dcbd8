/* The sum tree on the device (section 4): new transitions, new priorities, and the nodes above both.
 *
 * Duplicates in a batch are resolved by an integer maximum over the rows, which needs no order; every inner node is
 * recomputed as left + right. Compiled without contraction: nodes are the host's for the same leaves. */
#include "gpu/cuda/exec.h"
#include "gpu/cuda/tree.cuh"
#include "gpu/sumtree.h"

namespace {

enum { BLOCK = 1024 };

struct update_args {
	float *tree, *old;
	struct dqn_clock *clock;
	const int32_t *index;
	const float *error;
	int32_t *winner;
	size_t winner_trial, old_trial;
	int B;
	int64_t C;
};

/* Row j claims its leaf; of equal leaves the highest j keeps it: an integer maximum, which needs no order. */
__device__ __forceinline__ void claim(const struct update_args &x, int j)
{
	const int z = blockIdx.z;

	if (j < x.B)
		atomicMax((int32_t *)((char *)x.winner + z * x.winner_trial) + x.index[(size_t)z * x.B + j], j);
	if (j == 0)
		((float *)((char *)x.old + z * x.old_trial))[x.B] = x.clock[z].largest;
}

/* The winner writes its leaf and keeps what was there; other rows keep CUDA_NOT_MINE. The largest priority as an integer
 * maximum too: positive floats are ordered as their bits. */
__device__ __forceinline__ void write_leaf(const struct update_args &x, int j)
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

/* A small batch: everything by one block a trial. Whether the step is skipped is not known yet when this runs beside the
 * backward pass: k_count then puts the old leaves back. */
__global__ void __launch_bounds__(BLOCK) k_priority(const __grid_constant__ struct update_args x)
{
	const int z = blockIdx.z;

	for (int j = threadIdx.x; j < x.B; j += BLOCK)
		claim(x, j);
	__syncthreads();
	for (int j = threadIdx.x; j < x.B; j += BLOCK)
		write_leaf(x, j);
	cuda_join_levels(x.tree + (size_t)z * 2 * x.C, x.C, x.index + (size_t)z * x.B, x.B);
	for (int j = threadIdx.x; j < x.B; j += BLOCK) /* everybody has looked: there are barriers between */
		((int32_t *)((char *)x.winner + z * x.winner_trial))[x.index[(size_t)z * x.B + j]] = -1;
}

/* A large batch: claims, leaves, then the whole tree (cuda_rebuild). */
__global__ void k_claim(const __grid_constant__ struct update_args x)
{
	claim(x, blockIdx.x * blockDim.x + threadIdx.x);
}
__global__ void k_leaves(const __grid_constant__ struct update_args x)
{
	const int j = blockIdx.x * blockDim.x + threadIdx.x;

	if (j < x.B)
		write_leaf(x, j);
}

/* Leaves of a chunk. */
__host__ __device__ inline int64_t chunk_of(int64_t C) { return C < CUDA_CHUNK ? C : (int64_t)CUDA_CHUNK; }

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
	int estat_blocks;
	struct dqn_dims d;
};

__device__ void end_of_collect(const struct rebuild_args &x)
{
	static const int slot[CUDA_ENV_STATS] = {ACC_REWARD, ACC_REWARD2, ACC_EPISODES, ACC_EPISODE_RETURN, ACC_EPISODE_STEPS, ACC_RUINS, ACC_FILLS, ACC_EXITS};
	const int z = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
	struct dqn_clock *c = &x.clock[z];
	double *a = x.acc + (size_t)z * DQN_ACC_COUNT;

	if (warp < CUDA_ENV_STATS) {
		const double *e = (const double *)((const char *)x.estat + z * x.estat_trial);
		double sum = 0.0;

		for (int b = lane; b < x.estat_blocks; b += 32)
			sum += e[(size_t)b * CUDA_ENV_STATS + warp];
		for (int o = 16; o; o >>= 1)
			sum += __shfl_xor_sync(0xffffffffu, sum, o);
		if (lane == 0)
			a[slot[warp]] += sum;
	}
	if (threadIdx.x == 0) {
		a[ACC_ENV_STEPS] += x.d.N;
		a[ACC_EPS] = c->eps;
		c->stored += c->fresh;
		c->fresh = 0;
		c->vector_step++;
	}
}

/* One block a chunk of leaves: its subtree in shared memory, every level written. The block that ends last joins the
 * chunks up to the root. Recomputed from the leaves: exact, whatever the order of blocks. */
__global__ void __launch_bounds__(256) k_rebuild(const __grid_constant__ struct rebuild_args x)
{
	__shared__ float level[2 * CUDA_CHUNK];
	__shared__ unsigned last;
	const int z = blockIdx.z;
	const int64_t C = x.d.C, size = chunk_of(C), chunks = C / size;
	struct dqn_clock *c = &x.clock[z];
	float *node = x.tree + (size_t)z * 2 * C;

	cuda_wait_before();
	cuda_let_next();
	const int64_t lo = x.insert ? c->stored & (C - 1) : 0, n = x.insert ? c->fresh : 0;
	const int64_t touched = x.insert ? (lo % size + n + size - 1) / size : chunks;
	const float largest = c->largest;
	if ((int64_t)blockIdx.x < touched && (int64_t)blockIdx.x < chunks) {
		const int64_t chunk = (lo / size + blockIdx.x) % chunks;

		for (int64_t i = threadIdx.x; i < size; i += 256) {
			const int64_t leaf = chunk * size + i;

			if (x.winner)
				((int32_t *)((char *)x.winner + z * x.winner_trial))[leaf] = -1;
			if (((leaf - lo) & (C - 1)) < n)
				level[size + i] = node[C + leaf] = largest;
			else
				level[size + i] = node[C + leaf];
		}
		for (int64_t width = size / 2; width >= 1; width /= 2) {
			__syncthreads();
			const int64_t base = (C / size + chunk) * width; /* nodes [base, base + width) of the tree */
			for (int64_t i = threadIdx.x; i < width; i += 256)
				node[base + i] = level[width + i] = level[2 * (width + i)] + level[2 * (width + i) + 1];
		}
	}
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0)
		last = atomicAdd((unsigned *)((char *)x.ticket + z * x.ticket_trial), 1u) == gridDim.x - 1;
	__syncthreads();
	if (!last)
		return;
	__threadfence();
	/* from the chunks up: the first levels of a very large tree through memory, the rest in shared memory */
	int64_t top = chunks;
	for (; top > CUDA_CHUNK; top /= 2) {
		for (int64_t i = threadIdx.x; i < top / 2; i += 256)
			node[top / 2 + i] = __ldcg(&node[top + 2 * i]) + __ldcg(&node[top + 2 * i + 1]);
		__threadfence_block();
		__syncthreads();
	}
	for (int64_t i = threadIdx.x; i < top; i += 256)
		level[top + i] = __ldcg(&node[top + i]);
	for (int64_t width = top / 2; width >= 1; width /= 2) {
		__syncthreads();
		for (int64_t i = threadIdx.x; i < width; i += 256)
			node[width + i] = level[width + i] = level[2 * (width + i)] + level[2 * (width + i) + 1];
	}
	if (threadIdx.x == 0)
		*(unsigned *)((char *)x.ticket + z * x.ticket_trial) = 0;
	if (x.insert)
		end_of_collect(x);
}

} // namespace

static struct rebuild_args rebuild_args_of(struct cuda_exec *c, int insert, int estat_blocks)
{
	struct rebuild_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.ticket = cuda_at<unsigned>(c, &c->s.ticket), a.ticket_trial = c->s.ticket.stride;
	if (!insert)
		a.winner = cuda_at<int32_t>(c, &c->s.winner), a.winner_trial = c->s.winner.stride;
	a.insert = insert;
	a.acc = cuda_tensor<double>(c, T_ACCUM);
	a.estat = cuda_at<double>(c, &c->s.estat), a.estat_trial = c->s.estat.stride, a.estat_blocks = estat_blocks;
	a.d = c->dims;
	return a;
}

/* Leaves of the transitions that ENV stored, the nodes above them, accumulators and counters of the vector step. */
int cuda_insert(struct cuda_exec *c, int estat_blocks, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const int64_t size = chunk_of(d->C), chunks = d->C / size, most = ((int64_t)d->N * d->n + size - 1) / size + 1;

	CUDA_TRY(cuda_launch(c, k_rebuild, dim3((unsigned)(most < chunks ? most : chunks), 1, d->P), 256, 0, rebuild_args_of(c, 1, estat_blocks)));
	return 0;
}

/* New priorities; the means of the batch go before them, on the same stream. */
int cuda_priority(struct cuda_exec *c, cudaStream_t stream, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const unsigned blocks = (unsigned)cuda_tiles(d->B, 256);
	struct update_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.index = cuda_tensor<int32_t>(c, T_INDEX), a.error = cuda_tensor<float>(c, T_ERROR);
	a.winner = cuda_at<int32_t>(c, &c->s.winner), a.winner_trial = c->s.winner.stride;
	a.old = cuda_at<float>(c, &c->s.old), a.old_trial = c->s.old.stride;
	a.B = d->B, a.C = d->C;
	const int rc = cuda_sums(c, stream, st);
	if (rc)
		return rc;
	if (d->B <= BLOCK) {
		CUDA_TRY(cuda_launch_plain(stream, k_priority, dim3(1, 1, d->P), BLOCK, 0, a));
		return 0;
	}
	CUDA_TRY(cuda_launch_plain(stream, k_claim, dim3(blocks, 1, d->P), 256, 0, a));
	CUDA_TRY(cuda_launch_plain(stream, k_leaves, dim3(blocks, 1, d->P), 256, 0, a));
	CUDA_TRY(cuda_launch_plain(stream, k_rebuild, dim3((unsigned)(d->C / chunk_of(d->C)), 1, d->P), 256, 0, rebuild_args_of(c, 0, 0)));
	return 0;
}

int cuda_dqn_priority(struct exec *x, struct fh_status *st)
{
	return cuda_priority(cuda_of(x), cuda_of(x)->stream, st);
}
