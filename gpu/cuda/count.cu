/* The end of a learn step on the device: means of the batch, the guard, accumulators, counters.
 *
 * A step that is skipped leaves the tree as it was. Compiled without contraction, as the other files of the replay are. */
#include "gpu/cuda/norm.cuh"
#include "gpu/cuda/tree.cuh"
#include "gpu/sumtree.h"

namespace {

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
	enum { SUMS = 5, WARPS = CUDA_SUM_THREADS / 32 };
	__shared__ double shared[SUMS][WARPS];
	const int z = blockIdx.z;
	const float *error = x.error + (size_t)z * x.B, *weight = x.weight + (size_t)z * x.B, *ce = x.ce + (size_t)z * x.B;
	const float *q = (const float *)((const char *)x.q + z * x.stat_trial), *edge = (const float *)((const char *)x.edge + z * x.stat_trial);
	double sum[SUMS] = {};

	for (int j = threadIdx.x; j < x.B; j += CUDA_SUM_THREADS) {
		const float w = weight[j];

		sum[0] += error[j], sum[1] += w, sum[2] += q[j], sum[3] += edge[j], sum[4] += (double)w * ce[j];
	}
	/* the order of cuda_block_total(), all five at once */
#pragma unroll
	for (int o = 16; o; o >>= 1)
#pragma unroll
		for (int k = 0; k < SUMS; k++)
			sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], o);
	if (threadIdx.x % 32 == 0)
#pragma unroll
		for (int k = 0; k < SUMS; k++)
			shared[k][threadIdx.x / 32] = sum[k];
	__syncthreads();
	if (threadIdx.x < SUMS) {
		double total = 0.0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			total += shared[threadIdx.x][w];
		((double *)((char *)x.sums + z * x.sums_trial))[threadIdx.x] = total / x.B;
	}
}

struct count_args {
	struct dqn_clock *clock;
	double *acc;
	const double *sums;      /* of k_sums */
	float *tree;
	const int32_t *index;
	const float *old;        /* leaves before the update, see write_leaf() */
	const double *part;      /* NULL: NORM has filled the clock already */
	size_t sums_trial, old_trial, part_trial;
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

	if (x.part)
		guard(c, x, shared);
	if (c->skip) {
		const float *old = (const float *)((const char *)x.old + z * x.old_trial);

		for (int j = threadIdx.x; j < x.B; j += CUDA_SUM_THREADS)
			if (old[j] != CUDA_NOT_MINE)
				node[x.C + index[j]] = old[j];
		cuda_join_levels(node, x.C, index, x.B);
		if (threadIdx.x == 0)
			c->largest = old[x.B];
		__syncthreads();
	}
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

/* T_ERROR, T_WEIGHT, T_CE and the statistics of LOSS, as COUNT wants them. */
int cuda_sums(struct cuda_exec *c, cudaStream_t stream, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct sums_args sums = {cuda_tensor<float>(c, T_ERROR), cuda_tensor<float>(c, T_WEIGHT), cuda_at<float>(c, &c->s.q), cuda_at<float>(c, &c->s.edge),
	                         cuda_tensor<float>(c, T_CE), cuda_at<double>(c, &c->s.sums), c->s.q.stride, c->s.sums.stride, d->B};
	CUDA_TRY(cuda_launch_plain(stream, k_sums, dim3(1, 1, d->P), CUDA_SUM_THREADS, 0, sums));
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
	a.old = cuda_at<float>(c, &c->s.old), a.old_trial = c->s.old.stride;
	a.part = guard ? cuda_at<double>(c, &c->s.part) : nullptr, a.part_trial = c->s.part.stride, a.parts = c->s.parts;
	a.B = d->B, a.NA = d->NA, a.C = d->C;
	CUDA_TRY(cuda_launch_plain(stream, k_count, dim3(1, 1, d->P), CUDA_SUM_THREADS, 0, a));
	return 0;
}

int cuda_dqn_count(struct exec *x, struct fh_status *st)
{
	return cuda_count(cuda_of(x), cuda_of(x)->stream, 0, st);
}
