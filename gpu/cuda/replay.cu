/* Prioritized replay on the device (section 4) and the step's bookkeeping: schedules, stratified sampling with importance
 * weights, gathering, priority update, accumulators.
 *
 * Compiled without contraction: sampled indices equal the host's exactly for the same tree. Duplicates in a batch are
 * resolved by an integer maximum over the rows, which needs no order; every inner node is recomputed as left + right. */
#include <cuda_bf16.h>
#include "gpu/cuda/norm.cuh"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

namespace {

enum { BLOCK = 1024 };

/* Schedules of this step, and the numbers that the optimizer will want. */
__device__ void advance(struct dqn_clock *c, struct cuda_step *step)
{
	const double share = c->planned > 0 ? (double)c->step / (double)c->planned : 1.0;

	c->lr = c->lr_linear ? c->lr0 + (c->lr_end - c->lr0) * (share < 1.0 ? share : 1.0) : c->lr0;
	c->beta = tree_beta(c->beta0, c->beta_end, c->step, c->planned);
	c->bias1 = 1.0 - pow(0.9, (double)(c->applied + 1));
	c->bias2 = 1.0 - pow(0.999, (double)(c->applied + 1));
	step->lr = (float)c->lr;
	step->decay = (float)(c->lr * c->weight_decay);
	step->tau = (float)c->tau;
	step->scale1 = (float)(1.0 / c->bias1);
	step->scale2 = (float)(1.0 / c->bias2);
	step->stuck = c->skipped_run >= DQN_SKIP_LIMIT;
	step->hard = c->target_period > 0;
	step->copy = c->target_period > 0 && (c->applied + 1) % c->target_period == 0;
	step->max_grad_norm = c->max_grad_norm;
}

__global__ void k_advance(struct dqn_clock *clock, struct cuda_step *step, size_t step_trial)
{
	advance(&clock[blockIdx.z], (struct cuda_step *)((char *)step + blockIdx.z * step_trial));
}

/* tree_find() by one warp: five levels at a time are loaded at once, so a tree of 2^17 leaves costs four waits, not
 * seventeen. The same comparisons on the same numbers: the same leaf. All lanes hold x and get the leaf. */
__device__ int32_t find_by_warp(const float *node, int64_t C, double x, int lane)
{
	int64_t n = 1;

	while (n < C) {
		int levels = 5;
		while ((n << levels) >= 2 * C)
			levels--; /* leaves are nodes [C, 2C) */
		/* heap positions below n, as if n were 1: lane l holds l (2..31) and 32 + l */
		const int depth = 31 - __clz(lane | 1);
		float upper = 0.f, lower = 0.f;
		if (lane >= 2 && depth <= levels)
			upper = node[(n << depth) + (lane - (1 << depth))];
		if (levels == 5)
			lower = node[(n << 5) + lane];
		int h = 1;
		for (int k = 0; k < levels; k++) {
			const float left_u = __shfl_sync(0xffffffffu, upper, (2 * h) & 31), right_u = __shfl_sync(0xffffffffu, upper, (2 * h + 1) & 31);
			const float left_l = __shfl_sync(0xffffffffu, lower, (2 * h) & 31), right_l = __shfl_sync(0xffffffffu, lower, (2 * h + 1) & 31);
			const double left = 2 * h < 32 ? left_u : left_l, right = 2 * h < 32 ? right_u : right_l;

			if (x < left || right == 0.0) {
				h = 2 * h;
			} else {
				x = x - left;
				h = 2 * h + 1;
			}
		}
		n = (n << levels) + (h - (1 << levels));
	}
	return (int32_t)(n - C);
}

struct walk_args {
	const float *tree;
	struct dqn_clock *clock;
	struct cuda_step *step;  /* NULL: ADVANCE is a launch of its own */
	int32_t *index;
	double *raw, *top;
	size_t step_trial, raw_trial, top_trial;
	int gather;              /* the transitions follow in the same launch */
	/* the replay and the batch */
	const void *rp_s, *rp_s2;
	const uint8_t *rp_a;
	const float *rp_r, *rp_g;
	float *s, *s2, *R, *G;   /* s, s2 NULL: not wanted (only comparisons read them) */
	int32_t *a;
	void *x; /* low [2B, ldx] */
	size_t x_trial;
	int ldx;
	struct dqn_dims d;
};

template <typename T> __device__ void gather(const struct walk_args &x, int j, int32_t leaf, int lane)
{
	const struct dqn_dims &d = x.d;
	const int z = blockIdx.z;
	const size_t at = (size_t)z * d.B + j, from = (size_t)z * d.C + leaf;
	const T *s = (const T *)x.rp_s + from * d.SD, *s2 = (const T *)x.rp_s2 + from * d.SD;
	T *low = (T *)((char *)x.x + z * x.x_trial), *to = low + (size_t)j * x.ldx, *to2 = low + (size_t)(d.B + j) * x.ldx;

	for (int k = lane; k < d.SD; k += 32) {
		const T v = s[k], v2 = s2[k];

		to[k] = v;
		to2[k] = v2;
		if (x.s)
			x.s[at * d.SD + k] = (float)v, x.s2[at * d.SD + k] = (float)v2;
	}
	if (lane < d.D)
		x.a[at * d.D + lane] = x.rp_a[from * d.D + lane];
	if (lane == 0)
		x.R[at] = x.rp_r[from], x.G[at] = x.rp_g[from];
}

/* One warp a sample: the walk down the tree, the weight before normalisation, the transition. Each block leaves its
 * largest weight; whoever wants weights divides by the largest of those. */
template <typename T> __global__ void __launch_bounds__(32 * CUDA_WALK_SAMPLES) k_walk(const __grid_constant__ struct walk_args x)
{
	__shared__ double most[CUDA_WALK_SAMPLES];
	const struct dqn_dims &d = x.d;
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z, j = blockIdx.x * CUDA_WALK_SAMPLES + warp;
	struct dqn_clock *c = &x.clock[z];
	const float *node = x.tree + (size_t)z * 2 * d.C;

	if (blockIdx.x == gridDim.x - 1 && x.step) { /* one block more than samples need */
		if (threadIdx.x == 0)
			advance(c, (struct cuda_step *)((char *)x.step + z * x.step_trial));
		return;
	}
	if (lane == 0)
		most[warp] = 0.0;
	if (j < d.B) {
		const float total = node[1], u = philox_uniform(philox_word(c->seed, PHILOX_SAMPLE, (uint64_t)c->step, (uint64_t)j));
		const int32_t leaf = find_by_warp(node, d.C, tree_target(total, d.B, j, u), lane);
		if (lane == 0) {
			const double filled = (double)(c->stored < d.C ? c->stored : d.C), beta = tree_beta(c->beta0, c->beta_end, c->step, c->planned);

			x.index[(size_t)z * d.B + j] = leaf;
			most[warp] = (double)powf((float)(filled * (double)node[d.C + leaf] / (double)total), (float)-beta);
			((double *)((char *)x.raw + z * x.raw_trial))[j] = most[warp];
		}
		if (x.gather)
			gather<T>(x, j, leaf, lane);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		double top = 0.0;

		for (int k = 0; k < CUDA_WALK_SAMPLES; k++)
			top = fmax(top, most[k]);
		((double *)((char *)x.top + z * x.top_trial))[blockIdx.x] = top;
	}
}

/* T_WEIGHT for the stage by itself. */
__global__ void k_weights(const double *raw, const double *top, size_t raw_trial, size_t top_trial, int tops, float *weight, int B)
{
	const int j = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.z;
	const double *t = (const double *)((const char *)top + z * top_trial);
	double most = 0.0;

	if (j >= B)
		return;
	for (int k = 0; k < tops; k++)
		most = fmax(most, t[k]);
	weight[(size_t)z * B + j] = (float)(((const double *)((const char *)raw + z * raw_trial))[j] / most);
}

/* One warp a sample: the stage by itself. */
template <typename T> __global__ void k_gather(const __grid_constant__ struct walk_args x)
{
	const int j = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;

	if (j < x.d.B)
		gather<T>(x, j, x.index[(size_t)blockIdx.z * x.d.B + j], threadIdx.x & 31);
}

/* Recomputes every node above the leaves of a batch, level by level, by one block (several rows may write the same
 * node, all the same value). Begins with a barrier. */
__device__ void join_levels(float *node, int64_t C, const int32_t *index, int B)
{
	for (int64_t shift = 1; (C >> shift) >= 1; shift++) {
		__syncthreads();
		for (int j = threadIdx.x; j < B; j += blockDim.x)
			tree_join(node, (C + index[j]) >> shift);
	}
}

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

/* The winner writes its leaf and keeps what was there. The largest priority as an integer maximum too: positive floats
 * are ordered as their bits. */
__device__ __forceinline__ void write_leaf(const struct update_args &x, int j)
{
	const int z = blockIdx.z;
	const int32_t leaf = x.index[(size_t)z * x.B + j];
	float *node = x.tree + (size_t)z * 2 * x.C;

	if (((const int32_t *)((const char *)x.winner + z * x.winner_trial))[leaf] != j)
		return;
	const float p = tree_priority(x.error[(size_t)z * x.B + j], x.clock[z].alpha);
	((float *)((char *)x.old + z * x.old_trial))[j] = node[x.C + leaf];
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
	join_levels(x.tree + (size_t)z * 2 * x.C, x.C, x.index + (size_t)z * x.B, x.B);
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

struct rebuild_args {
	float *tree;
	struct dqn_clock *clock;
	unsigned *ticket;
	size_t ticket_trial;
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
	const int64_t C = x.d.C, size = C < CUDA_CHUNK ? C : CUDA_CHUNK, chunks = C / size;
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

struct sums_args {
	const float *error, *weight, *q, *edge, *ce;
	double *sums;
	size_t stat_trial, sums_trial;
	int B;
};

/* What the end of the step wants of the batch: means of the priority error, weight, Q and edge mass, and the loss. Runs
 * beside the backward pass. */
__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_sums(const __grid_constant__ struct sums_args x)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];
	const int z = blockIdx.z;
	const float *error = x.error + (size_t)z * x.B, *weight = x.weight + (size_t)z * x.B, *ce = x.ce + (size_t)z * x.B;
	const float *q = (const float *)((const char *)x.q + z * x.stat_trial), *edge = (const float *)((const char *)x.edge + z * x.stat_trial);
	double sum[5] = {};

	for (int j = threadIdx.x; j < x.B; j += CUDA_SUM_THREADS) {
		const float w = weight[j];

		sum[0] += error[j], sum[1] += w, sum[2] += q[j], sum[3] += edge[j], sum[4] += (double)w * ce[j];
	}
	for (int k = 0; k < 5; k++) {
		const double total = cuda_block_total(sum[k], shared) / x.B;

		if (threadIdx.x == 0)
			((double *)((char *)x.sums + z * x.sums_trial))[k] = total;
	}
}

struct count_args {
	struct dqn_clock *clock;
	double *acc;
	const double *sums;      /* of k_sums */
	float *tree;
	const int32_t *index;
	int32_t *winner;
	const float *old;
	const double *part;      /* NULL: NORM has filled the clock already */
	size_t sums_trial, winner_trial, old_trial, part_trial;
	int B, NA, parts;
	int64_t C;
};

/* The norm and the loss into the clock, by the warps of one block; the same order of sums as k_norm. */
__device__ void guard(struct dqn_clock *c, const struct count_args &x, double *shared)
{
	const int z = blockIdx.z;
	const double norm = sqrt(cuda_block_sum((const double *)((const char *)x.part + z * x.part_trial), x.parts, shared));

	if (threadIdx.x == 0)
		cuda_guard(c, norm, ((const double *)((const char *)x.sums + z * x.sums_trial))[4]);
	__syncthreads();
}

/* The end of a step: guard, leaves back when it is skipped, accumulators, counters. One block a trial. */
__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_count(const __grid_constant__ struct count_args x)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];
	const int z = blockIdx.z;
	struct dqn_clock *c = &x.clock[z];
	float *node = x.tree + (size_t)z * 2 * x.C;
	const int32_t *index = x.index + (size_t)z * x.B;
	int32_t *winner = (int32_t *)((char *)x.winner + z * x.winner_trial);

	if (x.part)
		guard(c, x, shared);
	if (c->skip) {
		const float *old = (const float *)((const char *)x.old + z * x.old_trial);

		for (int j = threadIdx.x; j < x.B; j += CUDA_SUM_THREADS)
			if (winner[index[j]] == j)
				node[x.C + index[j]] = old[j];
		join_levels(node, x.C, index, x.B);
		if (threadIdx.x == 0)
			c->largest = old[x.B];
		__syncthreads();
	}
	for (int j = threadIdx.x; j < x.B; j += CUDA_SUM_THREADS)
		winner[index[j]] = -1;
	const double *sum = (const double *)((const char *)x.sums + z * x.sums_trial);
	if (threadIdx.x)
		return;
	double *a = x.acc + (size_t)z * DQN_ACC_COUNT;
	const double filled = (double)(c->stored < x.C ? c->stored : x.C);
	a[ACC_STEPS] += 1.0;
	if (c->skip) {
		a[ACC_SKIPPED] += 1.0;
		c->skipped++;
		c->skipped_run++;
	} else {
		a[ACC_LOSS] += c->loss;
		a[ACC_ERROR] += sum[0];
		a[ACC_WEIGHT] += sum[1];
		a[ACC_Q] += sum[2];
		a[ACC_EDGE] += sum[3];
		a[ACC_GRAD_NORM] += c->grad_norm;
		a[ACC_GRAD_NORM_MAX] = fmax(a[ACC_GRAD_NORM_MAX], c->grad_norm);
		a[ACC_CLIPPED] += c->grad_scale < 1.f;
		a[ACC_TOTAL_P] += (double)node[1] / filled;
		c->applied++;
		c->skipped_run = 0;
	}
	a[ACC_LR] = c->lr;
	a[ACC_BETA] = c->beta;
	a[ACC_STORED] = (double)c->stored;
	a[ACC_DZ] = (c->v_max - c->v_min) / (x.NA - 1);
	a[ACC_CAPACITY] = (double)x.C;
	c->step++;
}

} // namespace

int cuda_dqn_advance(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);

	k_advance<<<dim3(1, 1, c->dims.P), 1, 0, c->stream>>>(cuda_tensor<struct dqn_clock>(c, T_CLOCK), cuda_at<struct cuda_step>(c, &c->s.step),
	                                                     c->s.step.stride);
	CUDA_LAUNCHED("advance");
	return 0;
}

static struct walk_args walk_args_of(struct cuda_exec *c)
{
	struct walk_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.index = cuda_tensor<int32_t>(c, T_INDEX);
	a.raw = cuda_at<double>(c, &c->s.wraw), a.raw_trial = c->s.wraw.stride;
	a.top = cuda_at<double>(c, &c->s.wtop), a.top_trial = c->s.wtop.stride;
	a.rp_s = c->x.tensor[T_RP_S], a.rp_s2 = c->x.tensor[T_RP_S2];
	a.rp_a = cuda_tensor<uint8_t>(c, T_RP_A);
	a.rp_r = cuda_tensor<float>(c, T_RP_R), a.rp_g = cuda_tensor<float>(c, T_RP_G);
	a.R = cuda_tensor<float>(c, T_R), a.G = cuda_tensor<float>(c, T_G);
	a.a = cuda_tensor<int32_t>(c, T_A);
	a.x = cuda_at<char>(c, &c->s.x), a.x_trial = c->s.x.stride, a.ldx = c->s.ldx;
	a.d = c->dims;
	return a;
}

static void walk_launch(struct cuda_exec *c, const struct walk_args &a)
{
	const dim3 grid(cuda_tiles(c->dims.B, CUDA_WALK_SAMPLES) + (a.step ? 1 : 0), 1, c->dims.P);

	if (c->dims.precision == FH_PRECISION_BF16)
		k_walk<__nv_bfloat16><<<grid, 32 * CUDA_WALK_SAMPLES, 0, c->stream>>>(a);
	else
		k_walk<float><<<grid, 32 * CUDA_WALK_SAMPLES, 0, c->stream>>>(a);
}

int cuda_dqn_sample(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	walk_launch(c, walk_args_of(c));
	CUDA_LAUNCHED("walk");
	k_weights<<<dim3(cuda_tiles(d->B, 128), 1, d->P), 128, 0, c->stream>>>(cuda_at<double>(c, &c->s.wraw), cuda_at<double>(c, &c->s.wtop),
	                                                                      c->s.wraw.stride, c->s.wtop.stride, cuda_tiles(d->B, CUDA_WALK_SAMPLES),
	                                                                      cuda_tensor<float>(c, T_WEIGHT), d->B);
	CUDA_LAUNCHED("weights");
	return 0;
}

int cuda_dqn_gather(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct walk_args a = walk_args_of(c);
	const dim3 grid(cuda_tiles(c->dims.B, 8), 1, c->dims.P);

	a.s = cuda_tensor<float>(c, T_S), a.s2 = cuda_tensor<float>(c, T_S2);
	if (c->dims.precision == FH_PRECISION_BF16)
		k_gather<__nv_bfloat16><<<grid, 256, 0, c->stream>>>(a);
	else
		k_gather<float><<<grid, 256, 0, c->stream>>>(a);
	CUDA_LAUNCHED("gather");
	return 0;
}

/* ADVANCE, SAMPLE and GATHER in one launch. */
int cuda_draw(struct cuda_exec *c, struct fh_status *st)
{
	struct walk_args a = walk_args_of(c);

	a.step = cuda_at<struct cuda_step>(c, &c->s.step), a.step_trial = c->s.step.stride;
	a.gather = 1;
	walk_launch(c, a);
	CUDA_LAUNCHED("draw");
	return 0;
}

static struct rebuild_args rebuild_args_of(struct cuda_exec *c, int insert, int estat_blocks)
{
	struct rebuild_args a = {};

	a.tree = cuda_tensor<float>(c, T_TREE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.ticket = cuda_at<unsigned>(c, &c->s.ticket), a.ticket_trial = c->s.ticket.stride;
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
	const int64_t size = d->C < CUDA_CHUNK ? d->C : CUDA_CHUNK, chunks = d->C / size, most = ((int64_t)d->N * d->n + size - 1) / size + 1;

	CUDA_TRY(cuda_launch(c, k_rebuild, dim3((unsigned)(most < chunks ? most : chunks), 1, d->P), 256, 0, rebuild_args_of(c, 1, estat_blocks)));
	return 0;
}

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
	struct sums_args sums = {cuda_tensor<float>(c, T_ERROR), cuda_tensor<float>(c, T_WEIGHT), cuda_at<float>(c, &c->s.q), cuda_at<float>(c, &c->s.edge),
	                         cuda_tensor<float>(c, T_CE), cuda_at<double>(c, &c->s.sums), c->s.q.stride, c->s.sums.stride, d->B};
	k_sums<<<dim3(1, 1, d->P), CUDA_SUM_THREADS, 0, stream>>>(sums);
	CUDA_LAUNCHED("batch sums");
	if (d->B <= BLOCK) {
		k_priority<<<dim3(1, 1, d->P), BLOCK, 0, stream>>>(a);
		CUDA_LAUNCHED("priority");
		return 0;
	}
	k_claim<<<dim3(blocks, 1, d->P), 256, 0, stream>>>(a);
	CUDA_LAUNCHED("claims");
	k_leaves<<<dim3(blocks, 1, d->P), 256, 0, stream>>>(a);
	CUDA_LAUNCHED("leaves");
	k_rebuild<<<dim3((unsigned)(d->C / (d->C < CUDA_CHUNK ? d->C : CUDA_CHUNK)), 1, d->P), 256, 0, stream>>>(rebuild_args_of(c, 0, 0));
	CUDA_LAUNCHED("tree");
	return 0;
}

/* guard: NORM is part of it, for a step whose optimizer finds the norm by itself. */
int cuda_count(struct cuda_exec *c, cudaStream_t stream, int guard, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct count_args a = {};

	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.acc = cuda_tensor<double>(c, T_ACCUM);
	a.sums = cuda_at<double>(c, &c->s.sums), a.sums_trial = c->s.sums.stride;
	a.tree = cuda_tensor<float>(c, T_TREE);
	a.index = cuda_tensor<int32_t>(c, T_INDEX);
	a.winner = cuda_at<int32_t>(c, &c->s.winner), a.winner_trial = c->s.winner.stride;
	a.old = cuda_at<float>(c, &c->s.old), a.old_trial = c->s.old.stride;
	a.part = guard ? cuda_at<double>(c, &c->s.part) : nullptr, a.part_trial = c->s.part.stride, a.parts = c->s.parts;
	a.B = d->B, a.NA = d->NA, a.C = d->C;
	k_count<<<dim3(1, 1, d->P), CUDA_SUM_THREADS, 0, stream>>>(a);
	CUDA_LAUNCHED("count");
	return 0;
}

int cuda_dqn_priority(struct exec *x, struct fh_status *st)
{
	return cuda_priority(cuda_of(x), cuda_of(x)->stream, st);
}

int cuda_dqn_count(struct exec *x, struct fh_status *st)
{
	return cuda_count(cuda_of(x), cuda_of(x)->stream, 0, st);
}
