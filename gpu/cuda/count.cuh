/* The end of a learn step as one block does it: means of the batch (beside the backward pass, tree.cu); the norm's guard into the clock, leaves
 * put back when the step is skipped, accumulators, counters, for the stage (count.cu) and for the block that Adam's launch has for it (adam.cu).
 *
 * Compiled without contraction, as the other files of the replay are. */
#ifndef FH_GPU_CUDA_COUNT_CUH
#define FH_GPU_CUDA_COUNT_CUH

#include "gpu/cuda/norm.cuh"
#include "gpu/cuda/tree.cuh"
#include "gpu/sumtree.h"

enum { CUDA_MEANS = 5 }; /* priority error, weight, Q, edge mass, loss */

struct cuda_end_args {
	struct cuda_update_args update;
	const float *weight, *q, *edge, *ce;
	double *sums;            /* [CUDA_MEANS] */
	double *acc;
	const double *part;      /* NULL: NORM has filled the clock already */
	size_t stat_trial, sums_trial, part_trial;
	int NA, parts;
};

static inline struct cuda_end_args cuda_end_args_of(struct cuda_exec *c)
{
	struct cuda_end_args a = {};

	a.update = cuda_update_args_of(c);
	a.weight = cuda_tensor<float>(c, T_WEIGHT), a.ce = cuda_tensor<float>(c, T_CE);
	a.q = cuda_at<float>(c, &c->s.q), a.edge = cuda_at<float>(c, &c->s.edge), a.stat_trial = c->s.q.stride;
	a.sums = cuda_at<double>(c, &c->s.sums), a.sums_trial = c->s.sums.stride;
	a.acc = cuda_tensor<double>(c, T_ACCUM);
	a.part = cuda_at<double>(c, &c->s.part), a.part_trial = c->s.part.stride, a.parts = c->s.parts;
	a.NA = c->dims.NA;
	return a;
}

/* Means of the batch, in the order of cuda_block_total(), all at once, by the block's first CUDA_SUM_THREADS. */
static __device__ __forceinline__ void cuda_means(const struct cuda_end_args &x, double (*shared)[CUDA_SUM_THREADS / 32])
{
	enum { WARPS = CUDA_SUM_THREADS / 32 };
	const int z = blockIdx.z, B = x.update.B;
	const float *error = x.update.error + (size_t)z * B, *weight = x.weight + (size_t)z * B, *ce = x.ce + (size_t)z * B;
	const float *q = (const float *)((const char *)x.q + z * x.stat_trial), *edge = (const float *)((const char *)x.edge + z * x.stat_trial);
	double sum[CUDA_MEANS] = {};

#pragma unroll 4
	for (int j = threadIdx.x; j < B && threadIdx.x < CUDA_SUM_THREADS; j += CUDA_SUM_THREADS) {
		const float w = weight[j];

		sum[0] += error[j], sum[1] += w, sum[2] += q[j], sum[3] += edge[j], sum[4] += (double)w * ce[j];
	}
#pragma unroll
	for (int o = 16; o; o >>= 1)
#pragma unroll
		for (int k = 0; k < CUDA_MEANS; k++)
			sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], o);
	if (threadIdx.x % 32 == 0 && threadIdx.x < CUDA_SUM_THREADS)
#pragma unroll
		for (int k = 0; k < CUDA_MEANS; k++)
			shared[k][threadIdx.x / 32] = sum[k];
	__syncthreads();
	if (threadIdx.x < CUDA_MEANS) {
		double total = 0.0;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			total += shared[threadIdx.x][w];
		((double *)((char *)x.sums + z * x.sums_trial))[threadIdx.x] = total / B;
	}
}

/* What a lane of the first warp adds to its accumulator, or leaves there: num / den, one division for all of them. Counters of the clock are
 * taken by the lanes behind. All is asked for together. */
enum { END_COUNTERS = 4 };
static_assert((int)DQN_ACC_COUNT + END_COUNTERS <= 32, "a lane each");
struct ending { double now, own; int64_t *counter; int64_t count; };

static __device__ __forceinline__ struct ending end_look(const struct cuda_end_args &x, struct dqn_clock *c, int lane)
{
	const int z = blockIdx.z;
	const double *mean = (const double *)((const char *)x.sums + z * x.sums_trial), *from = NULL;
	const int64_t C = x.update.C;
	struct ending e = {};
	double num = 1.0, den = 1.0;

	switch (lane) {
	case ACC_LR: from = &c->lr; break;
	case ACC_BETA: from = &c->beta; break;
	case ACC_ERROR: from = mean; break;
	case ACC_WEIGHT: from = mean + 1; break;
	case ACC_Q: from = mean + 2; break;
	case ACC_EDGE: from = mean + 3; break;
	case ACC_LOSS: from = x.part ? mean + 4 : &c->loss; break;
	case ACC_STORED: num = (double)c->stored; break;
	case ACC_CAPACITY: num = (double)C; break;
	case ACC_DZ: num = c->v_max - c->v_min, den = x.NA - 1; break;
	case ACC_TOTAL_P: num = (double)x.update.tree[(size_t)z * 2 * C + 1], den = (double)(c->stored < C ? c->stored : C); break;
	case DQN_ACC_COUNT: e.counter = &c->step; break;
	case DQN_ACC_COUNT + 1: e.counter = &c->applied; break;
	case DQN_ACC_COUNT + 2: e.counter = &c->skipped; break;
	case DQN_ACC_COUNT + 3: e.counter = &c->skipped_run; break;
	}
	if (lane < DQN_ACC_COUNT)
		e.now = x.acc[(size_t)z * DQN_ACC_COUNT + lane];
	if (from)
		num = *from;
	if (e.counter)
		e.count = *e.counter;
	e.own = num / den;
	return e;
}

static __device__ __forceinline__ void end_leave(const struct ending &e, double *acc, int lane, bool skip)
{
	switch (lane) {
	case ACC_LR: case ACC_BETA: case ACC_STORED: case ACC_DZ: case ACC_CAPACITY: acc[lane] = e.own; return; /* the last values */
	case ACC_STEPS: acc[lane] = e.now + 1.0; return;
	case ACC_SKIPPED: acc[lane] = e.now + skip; return;
	case ACC_GRAD_NORM_MAX: acc[lane] = skip ? e.now : fmax(e.now, e.own); return;
	case ACC_LOSS: case ACC_ERROR: case ACC_WEIGHT: case ACC_Q: case ACC_EDGE: case ACC_GRAD_NORM: case ACC_CLIPPED: case ACC_TOTAL_P:
		acc[lane] = skip ? e.now : e.now + e.own;
		return;
	case DQN_ACC_COUNT: *e.counter = e.count + 1; return;
	case DQN_ACC_COUNT + 1: *e.counter = e.count + !skip; return;
	case DQN_ACC_COUNT + 2: *e.counter = e.count + skip; return;
	case DQN_ACC_COUNT + 3: *e.counter = skip ? e.count + 1 : 0; return;
	}
}

/* Guard, leaves back when the step is skipped, accumulators, counters, by a block of CUDA_SUM_THREADS. */
static __device__ __forceinline__ void cuda_end_step(const struct cuda_end_args &x, double *shared)
{
	const int z = blockIdx.z, lane = threadIdx.x;
	struct dqn_clock *c = &x.update.clock[z];
	struct ending e = end_look(x, c, lane);
	double norm;
	int skip;

	if (x.part) {
		norm = sqrt(cuda_block_sum((const double *)((const char *)x.part + z * x.part_trial), x.parts, shared));
		skip = !isfinite(norm) || c->skipped_run >= DQN_SKIP_LIMIT;
		if (lane == ACC_LOSS)
			cuda_guard(c, norm, e.own);
	} else {
		norm = c->grad_norm, skip = c->skip;
	}
	if (lane == ACC_GRAD_NORM || lane == ACC_GRAD_NORM_MAX)
		e.own = norm;
	if (lane == ACC_CLIPPED)
		e.own = cuda_grad_scale(norm, c->max_grad_norm) < 1.f;
	__syncthreads(); /* everybody has read skipped_run */
	if (skip)
		cuda_put_back(x.update);
	end_leave(e, x.acc + (size_t)z * DQN_ACC_COUNT, lane, skip);
}

#endif
