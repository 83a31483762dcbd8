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
	for (int j = threadIdx.x < CUDA_SUM_THREADS ? threadIdx.x : B; j < B; j += CUDA_SUM_THREADS) {
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

/* What a lane of the first warp adds to its accumulator, or leaves there: num / den, one division for all of them, or what the norm says. Counters of the clock are
 * taken by the lanes behind. Chosen without branches: twenty of them, one behind the other, were 6 us. */
enum { END_STEP = DQN_ACC_COUNT, END_APPLIED, END_SKIPPED, END_RUN, END_LANES };
static_assert(END_LANES <= 32, "a lane each");
#define END_LAST (1u << ACC_LR | 1u << ACC_BETA | 1u << ACC_STORED | 1u << ACC_DZ | 1u << ACC_CAPACITY)
#define END_ADDS (1u << ACC_LOSS | 1u << ACC_ERROR | 1u << ACC_WEIGHT | 1u << ACC_Q | 1u << ACC_EDGE | 1u << ACC_GRAD_NORM | 1u << ACC_CLIPPED | 1u << ACC_TOTAL_P)
#define END_ALL (END_LAST | END_ADDS | 1u << ACC_STEPS | 1u << ACC_SKIPPED | 1u << ACC_GRAD_NORM_MAX)
/* now: in the accumulator; most, run: the clock's largest norm, skips in a row. */
struct ending { double now, num, den, most; int64_t count, run; };

static __device__ __forceinline__ int64_t *end_counter(struct dqn_clock *c, int lane)
{
	return lane == END_APPLIED ? &c->applied : lane == END_SKIPPED ? &c->skipped : lane == END_RUN ? &c->skipped_run : &c->step;
}

/* Everything but the norm, asked for at once, before anything is divided or stored: a load that waits for another takes a quarter of a microsecond. */
static __device__ __forceinline__ struct ending end_look(const struct cuda_end_args &x, struct dqn_clock *c, int lane)
{
	const int z = blockIdx.z;
	const int64_t C = x.update.C, stored = c->stored;
	const double *mean = (const double *)((const char *)x.sums + z * x.sums_trial), *loss = x.part ? mean + 4 : &c->loss;
	const double *from = lane == ACC_BETA ? &c->beta : lane == ACC_ERROR ? mean : lane == ACC_WEIGHT ? mean + 1 : lane == ACC_Q ? mean + 2 :
	                     lane == ACC_EDGE ? mean + 3 : lane == ACC_LOSS ? loss : &c->lr;
	const double width = c->v_max - c->v_min, total = (double)x.update.tree[(size_t)z * 2 * C + 1];
	struct ending e = {};

	e.num = *from;
	e.most = c->max_grad_norm, e.run = c->skipped_run;
	e.count = *end_counter(c, lane);
	e.now = x.acc[(size_t)z * DQN_ACC_COUNT + min(lane, DQN_ACC_COUNT - 1)];
	e.num = lane == ACC_STEPS || lane == ACC_SKIPPED ? 1.0 : lane == ACC_STORED ? (double)stored : lane == ACC_CAPACITY ? (double)C : lane == ACC_DZ ? width :
	        lane == ACC_TOTAL_P ? total : e.num;
	e.den = lane == ACC_DZ ? (double)(x.NA - 1) : lane == ACC_TOTAL_P ? (double)(stored < C ? stored : C) : 1.0;
	return e;
}

/* own: what the lane adds or leaves. */
static __device__ __forceinline__ void end_leave(const struct ending &e, double own, struct dqn_clock *c, double *acc, int lane, bool skip)
{
	const unsigned mine = lane < 32 ? 1u << lane : 0;
	const bool last = END_LAST & mine, adds = lane == ACC_STEPS || (lane == ACC_SKIPPED ? skip : (END_ADDS & mine) && !skip);
	const double most = skip ? e.now : fmax(e.now, own);

	if (END_ALL & mine)
		acc[lane] = last ? own : lane == ACC_GRAD_NORM_MAX ? most : adds ? e.now + own : e.now;
	if (lane >= END_STEP && lane < END_LANES)
		*end_counter(c, lane) = lane == END_STEP ? e.count + 1 : lane == END_APPLIED ? e.count + !skip : lane == END_SKIPPED ? e.count + skip : skip ? e.count + 1 : 0;
}

/* Guard, leaves back when the step is skipped, accumulators, counters, by a block of CUDA_SUM_THREADS. */
static __device__ __forceinline__ void cuda_end_step(const struct cuda_end_args &x, double *shared)
{
	const int z = blockIdx.z, lane = threadIdx.x;
	struct dqn_clock *c = &x.update.clock[z];
	const struct ending e = end_look(x, c, lane);
	const double square = x.part ? cuda_thread_sum((const double *)((const char *)x.part + z * x.part_trial), x.parts) : 0.0;
	double own = e.num / e.den, norm;
	int skip;

	if (x.part) {
		norm = sqrt(cuda_block_total(square, shared));
		skip = !isfinite(norm) || e.run >= DQN_SKIP_LIMIT;
	} else {
		norm = c->grad_norm, skip = c->skip;
	}
	const float scale = cuda_grad_scale(norm, e.most);
	if (x.part && lane == ACC_LOSS)
		cuda_leave_guard(c, norm, own, skip, scale);
	own = lane == ACC_GRAD_NORM || lane == ACC_GRAD_NORM_MAX ? norm : lane == ACC_CLIPPED ? (double)(scale < 1.f) : own;
	__syncthreads(); /* everybody has read the counters */
	if (skip)
		cuda_put_back(x.update);
	end_leave(e, own, c, x.acc + (size_t)z * DQN_ACC_COUNT, lane, skip);
}

#endif
