/* Prioritized replay on the device (section 4) and the step's bookkeeping: schedules, stratified sampling with importance
 * weights, gathering, priority update, accumulators.
 *
 * Compiled without contraction: sampled indices equal the host's exactly for the same tree. Duplicates in a batch are
 * resolved by an integer maximum over the rows, which needs no order; every inner node is recomputed as left + right. */
#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

namespace {

enum { BLOCK = 1024 };

__global__ void k_advance(struct dqn_clock *clock)
{
	struct dqn_clock *c = &clock[blockIdx.z];
	const double share = c->planned > 0 ? (double)c->step / (double)c->planned : 1.0;

	c->lr = c->lr_linear ? c->lr0 + (c->lr_end - c->lr0) * (share < 1.0 ? share : 1.0) : c->lr0;
	c->beta = tree_beta(c->beta0, c->beta_end, c->step, c->planned);
	c->bias1 = 1.0 - pow(0.9, (double)(c->applied + 1));
	c->bias2 = 1.0 - pow(0.999, (double)(c->applied + 1));
}

/* One block a trial: B walks down the tree, then the weights over their maximum. */
__global__ void __launch_bounds__(BLOCK) k_sample(const float *tree, const struct dqn_clock *clock, int32_t *index, float *weight,
                                                 double *raw, size_t raw_trial, int B, int64_t C)
{
	__shared__ double top[32];
	const int z = blockIdx.z;
	const struct dqn_clock *c = &clock[z];
	const float *node = tree + (size_t)z * 2 * C;
	const float total = node[1];
	const double filled = (double)(c->stored < C ? c->stored : C);
	double most = 0.0;

	index += (size_t)z * B, weight += (size_t)z * B;
	raw = (double *)((char *)raw + z * raw_trial);
	for (int j = threadIdx.x; j < B; j += BLOCK) {
		const float u = philox_uniform(philox_word(c->seed, PHILOX_SAMPLE, (uint64_t)c->step, (uint64_t)j));
		const int32_t leaf = tree_find(node, C, tree_target(total, B, j, u));
		const double w = pow(filled * (double)node[C + leaf] / (double)total, -c->beta);

		index[j] = leaf;
		raw[j] = w;
		most = fmax(most, w);
	}
	for (int o = 16; o; o >>= 1)
		most = fmax(most, __shfl_xor_sync(0xffffffffu, most, o));
	if ((threadIdx.x & 31) == 0)
		top[threadIdx.x / 32] = most;
	__syncthreads();
	most = top[0];
	for (int k = 1; k < BLOCK / 32; k++)
		most = fmax(most, top[k]);
	for (int j = threadIdx.x; j < B; j += BLOCK)
		weight[j] = (float)(raw[j] / most);
}

struct gather_args {
	const void *rp_s, *rp_s2;
	const uint8_t *rp_a;
	const float *rp_r, *rp_g;
	const int32_t *index;
	float *s, *s2, *R, *G;
	int32_t *a;
	void *x; /* low [2B, ldx] */
	size_t x_trial;
	int ldx;
	struct dqn_dims d;
};

/* One warp a sample. */
template <typename T> __global__ void k_gather(const __grid_constant__ struct gather_args x)
{
	const struct dqn_dims &d = x.d;
	const int j = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z;
	if (j >= d.B)
		return;
	const size_t at = (size_t)z * d.B + j, from = (size_t)z * d.C + x.index[at];
	const T *s = (const T *)x.rp_s + from * d.SD, *s2 = (const T *)x.rp_s2 + from * d.SD;
	T *low = (T *)((char *)x.x + z * x.x_trial);
	for (int k = lane; k < d.SD; k += 32) {
		x.s[at * d.SD + k] = (float)s[k];
		x.s2[at * d.SD + k] = (float)s2[k];
		low[(size_t)j * x.ldx + k] = s[k];
		low[(size_t)(d.B + j) * x.ldx + k] = s2[k];
	}
	if (lane < d.D)
		x.a[at * d.D + lane] = x.rp_a[from * d.D + lane];
	if (lane == 0)
		x.R[at] = x.rp_r[from], x.G[at] = x.rp_g[from];
}

/* One block a trial: the winner of each leaf writes it, then the path to the root is recomputed level by level (several
 * rows may write the same node, all the same value). */
__global__ void __launch_bounds__(BLOCK) k_priority(float *tree, struct dqn_clock *clock, const int32_t *index, const float *error,
                                                   int32_t *winner, size_t winner_trial, int B, int64_t C)
{
	__shared__ float top[32];
	const int z = blockIdx.z;
	struct dqn_clock *c = &clock[z];
	float *node = tree + (size_t)z * 2 * C, most = 0.f;

	if (c->skip)
		return;
	index += (size_t)z * B, error += (size_t)z * B;
	winner = (int32_t *)((char *)winner + z * winner_trial);
	for (int j = threadIdx.x; j < B; j += BLOCK)
		winner[index[j]] = -1;
	__syncthreads();
	for (int j = threadIdx.x; j < B; j += BLOCK)
		atomicMax(&winner[index[j]], j);
	__syncthreads();
	for (int j = threadIdx.x; j < B; j += BLOCK) {
		if (winner[index[j]] != j)
			continue;
		const float p = tree_priority(error[j], c->alpha);
		node[C + index[j]] = p;
		most = fmaxf(most, p);
	}
	for (int64_t shift = 1; (C >> shift) >= 1; shift++) {
		__syncthreads();
		for (int j = threadIdx.x; j < B; j += BLOCK)
			tree_join(node, (C + index[j]) >> shift);
	}
	for (int o = 16; o; o >>= 1)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, o));
	if ((threadIdx.x & 31) == 0)
		top[threadIdx.x / 32] = most;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int k = 0; k < BLOCK / 32; k++)
			most = fmaxf(most, top[k]);
		c->largest = fmaxf(c->largest, most);
	}
}

struct count_args {
	struct dqn_clock *clock;
	double *acc;
	const float *error, *weight, *q, *edge, *tree;
	size_t stat_trial;
	int B, NA;
	int64_t C;
};

/* Accumulators of the step, then the counters. One block a trial; four sums, one warp each. */
__global__ void __launch_bounds__(128) k_count(const __grid_constant__ struct count_args x)
{
	__shared__ double sum[4];
	const int z = blockIdx.z, which = threadIdx.x / 32, lane = threadIdx.x & 31;
	struct dqn_clock *c = &x.clock[z];
	const float *src = which == 0 ? x.error + (size_t)z * x.B : which == 1 ? x.weight + (size_t)z * x.B :
	                   (const float *)((const char *)(which == 2 ? x.q : x.edge) + z * x.stat_trial);
	double s = 0.0;
	for (int j = lane; j < x.B; j += 32)
		s += src[j];
	for (int o = 16; o; o >>= 1)
		s += __shfl_xor_sync(0xffffffffu, s, o);
	if (lane == 0)
		sum[which] = s / x.B;
	__syncthreads();
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
		a[ACC_TOTAL_P] += (double)x.tree[(size_t)z * 2 * x.C + 1] / filled;
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

	k_advance<<<dim3(1, 1, c->dims.P), 1, 0, c->stream>>>(cuda_tensor<struct dqn_clock>(c, T_CLOCK));
	CUDA_LAUNCHED("advance");
	return 0;
}

int cuda_dqn_sample(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	k_sample<<<dim3(1, 1, d->P), BLOCK, 0, c->stream>>>(cuda_tensor<float>(c, T_TREE), cuda_tensor<struct dqn_clock>(c, T_CLOCK),
	                                                   cuda_tensor<int32_t>(c, T_INDEX), cuda_tensor<float>(c, T_WEIGHT),
	                                                   cuda_at<double>(c, &c->s.wraw), c->s.wraw.stride, d->B, d->C);
	CUDA_LAUNCHED("sample");
	return 0;
}

int cuda_dqn_gather(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;
	struct gather_args a = {};

	a.rp_s = c->x.tensor[T_RP_S], a.rp_s2 = c->x.tensor[T_RP_S2];
	a.rp_a = cuda_tensor<uint8_t>(c, T_RP_A);
	a.rp_r = cuda_tensor<float>(c, T_RP_R), a.rp_g = cuda_tensor<float>(c, T_RP_G);
	a.index = cuda_tensor<int32_t>(c, T_INDEX);
	a.s = cuda_tensor<float>(c, T_S), a.s2 = cuda_tensor<float>(c, T_S2);
	a.R = cuda_tensor<float>(c, T_R), a.G = cuda_tensor<float>(c, T_G);
	a.a = cuda_tensor<int32_t>(c, T_A);
	a.x = cuda_at<char>(c, &c->s.x), a.x_trial = c->s.x.stride, a.ldx = c->s.ldx;
	a.d = *d;
	if (d->precision == FH_PRECISION_BF16)
		k_gather<__nv_bfloat16><<<dim3((d->B + 7) / 8, 1, d->P), 256, 0, c->stream>>>(a);
	else
		k_gather<float><<<dim3((d->B + 7) / 8, 1, d->P), 256, 0, c->stream>>>(a);
	CUDA_LAUNCHED("gather");
	return 0;
}

int cuda_dqn_priority(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	k_priority<<<dim3(1, 1, d->P), BLOCK, 0, c->stream>>>(cuda_tensor<float>(c, T_TREE), cuda_tensor<struct dqn_clock>(c, T_CLOCK),
	                                                     cuda_tensor<int32_t>(c, T_INDEX), cuda_tensor<float>(c, T_ERROR),
	                                                     cuda_at<int32_t>(c, &c->s.winner), c->s.winner.stride, d->B, d->C);
	CUDA_LAUNCHED("priority");
	return 0;
}

int cuda_dqn_count(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;
	struct count_args a = {};

	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.acc = cuda_tensor<double>(c, T_ACCUM);
	a.error = cuda_tensor<float>(c, T_ERROR), a.weight = cuda_tensor<float>(c, T_WEIGHT);
	a.q = cuda_at<float>(c, &c->s.q), a.edge = cuda_at<float>(c, &c->s.edge), a.stat_trial = c->s.q.stride;
	a.tree = cuda_tensor<float>(c, T_TREE);
	a.B = d->B, a.NA = d->NA, a.C = d->C;
	k_count<<<dim3(1, 1, d->P), 128, 0, c->stream>>>(a);
	CUDA_LAUNCHED("count");
	return 0;
}
