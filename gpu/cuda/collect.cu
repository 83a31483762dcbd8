/* One vector environment step on the device (section 8): exploration, the environments, n-step transitions into the
 * replay ring (section 4) and their leaves in the tree.
 *
 * Compiled without contraction: fills, exits and flags equal the host's exactly. The order of storage is fixed: by
 * vector step, then environment, then oldest first. */
#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"
#include "gpu/env.h"
#include "gpu/philox.h"

namespace {

enum { WARPS = 4, INSERT_THREADS = 1024 };

__global__ void k_explore(int32_t *action, struct dqn_clock *clock, const __grid_constant__ struct dqn_dims d)
{
	const int i = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.z, b = i % d.D;
	struct dqn_clock *c = &clock[z];
	const double share = (double)c->vector_step / (double)c->eps_steps;
	const double eps = c->eps_start + (c->eps_end - c->eps_start) * (share < 1.0 ? share : 1.0);
	if (i == 0)
		c->eps = eps;
	if (i >= d.N * d.D)
		return;
	/* draws 2i and 2i + 1 lie in one block of four words */
	const struct philox_words w = philox_block(c->seed, PHILOX_EXPLORE, (uint64_t)c->vector_step, (uint64_t)i >> 1);
	const int half = (i & 1) * 2;
	if ((double)philox_uniform(w.w[half]) < eps)
		action[(size_t)z * d.N * d.D + i] = (int32_t)philox_below(w.w[half + 1], (uint32_t)d.A[b]);
}

struct env_args {
	double *cash, *equity, *peak, *q, *entry, *sigma, *ret;
	int32_t *t, *entry_bar, *steps;
	const struct env_config *config;
	const struct dqn_clock *clock;
	const int32_t *action;
	uint8_t *pend_a;
	float *pend_r;
	int32_t *pend_count, *pend_head;
	const struct cuda_tape_view *tape;
	int32_t *count, *next_t, *done;
	float *next;
	double *estat;
	size_t count_trial, next_trial, estat_trial;
	struct dqn_dims d;
};

/* One thread an environment: the step itself, the pending reward, and what its transitions need to be stored. */
__global__ void __launch_bounds__(CUDA_ENV_BLOCK) k_env(const __grid_constant__ struct env_args x)
{
	__shared__ double stat[CUDA_ENV_STATS][CUDA_ENV_BLOCK];
	const struct dqn_dims &d = x.d;
	const int e = blockIdx.x * CUDA_ENV_BLOCK + threadIdx.x, z = blockIdx.z;
	double mine[CUDA_ENV_STATS] = {};

	if (e < d.N) {
		const size_t i = (size_t)z * d.N + e;
		const struct env_config cfg = x.config[z];
		const struct dqn_clock *c = &x.clock[z];
		const struct cuda_tape_view tape = *x.tape;
		struct env_state s = {x.cash[i], x.equity[i], x.peak[i], x.q[i], x.entry[i], x.sigma[i], x.t[i], x.entry_bar[i], x.steps[i]};
		struct env_result r;
		const int t = s.t, slot = x.pend_head[i];
		const struct env_bar bar = {tape.open[t + 1], tape.high[t + 1], tape.low[t + 1], tape.close[t + 1]};
		int32_t action[FH_BRANCH_MAX] = {};

		for (int b = 0; b < d.D; b++) {
			action[b] = x.action[i * d.D + b];
			x.pend_a[(i * d.n + slot) * d.D + b] = (uint8_t)action[b];
		}
		env_step(&s, &cfg, action, tape.close[t], &bar, (double)tape.sigma[t], c->train_end - 1, 1, &r);
		x.pend_r[i * d.n + slot] = (float)r.reward;
		x.pend_head[i] = slot + 1 == d.n ? 0 : slot + 1;
		const int pending = x.pend_count[i] + 1, over = r.terminated || r.truncated;
		const int ready = over ? pending : pending == d.n ? 1 : 0;
		x.pend_count[i] = pending - ready;
		((int32_t *)((char *)x.count + z * x.count_trial))[e] = ready;
		((int32_t *)((char *)x.next_t + z * x.count_trial))[e] = s.t;
		((int32_t *)((char *)x.done + z * x.count_trial))[e] = r.terminated ? 2 : r.truncated ? 1 : 0;
		env_features(&s, &cfg, bar.close, (double)tape.sigma[s.t], ENV_STEPS_OWN,
		             (float *)((char *)x.next + z * x.next_trial) + e * FH_PORTFOLIO_FEATURES);

		const double total = x.ret[i] + r.reward;
		mine[0] = r.reward, mine[1] = r.reward * r.reward;
		if (over)
			mine[2] = 1.0, mine[3] = total, mine[4] = s.steps, mine[5] = r.terminated;
		mine[6] = r.fill != 0.0, mine[7] = r.exit != ENV_EXIT_NONE;
		x.ret[i] = over ? 0.0 : total;
		if (over)
			env_start(&s, &cfg, env_start_bar(c->seed, (uint32_t)e, (uint64_t)c->vector_step + 1, c->train_begin, c->train_end));
		x.cash[i] = s.cash, x.equity[i] = s.equity, x.peak[i] = s.peak, x.q[i] = s.q, x.entry[i] = s.entry, x.sigma[i] = s.entry_sigma;
		x.t[i] = s.t, x.entry_bar[i] = s.entry_bar, x.steps[i] = s.steps;
	}
	for (int k = 0; k < CUDA_ENV_STATS; k++)
		stat[k][threadIdx.x] = mine[k];
	__syncthreads();
	if (threadIdx.x < CUDA_ENV_STATS) {
		double sum = 0.0;
		for (int k = 0; k < CUDA_ENV_BLOCK; k++)
			sum += stat[threadIdx.x][k];
		((double *)((char *)x.estat + z * x.estat_trial))[blockIdx.x * CUDA_ENV_STATS + threadIdx.x] = sum;
	}
}

/* Exclusive prefix sum of count over the environments; one block a trial. */
__global__ void __launch_bounds__(INSERT_THREADS) k_place(const int32_t *count, int32_t *first, size_t trial,
                                                         struct dqn_clock *clock, int N)
{
	__shared__ int32_t warp_sum[32];
	const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, z = blockIdx.z;
	count = (const int32_t *)((const char *)count + z * trial);
	first = (int32_t *)((char *)first + z * trial);
	int32_t carry = 0;
	for (int base = 0; base < N; base += INSERT_THREADS) {
		const int e = base + threadIdx.x;
		int32_t v = e < N ? count[e] : 0, sum = v;
		for (int o = 1; o < 32; o <<= 1) {
			int32_t up = __shfl_up_sync(0xffffffffu, sum, o);
			sum += lane >= o ? up : 0;
		}
		if (lane == 31)
			warp_sum[warp] = sum;
		__syncthreads();
		int32_t before = carry, all = carry;
		for (int k = 0; k < 32; k++) {
			before += k < warp ? warp_sum[k] : 0;
			all += warp_sum[k];
		}
		if (e < N)
			first[e] = before + sum - v;
		carry = all;
		__syncthreads();
	}
	if (threadIdx.x == 0)
		clock[z].fresh = carry;
}

struct store_args {
	float *obs;
	void *pend_s, *rp_s, *rp_s2; /* low */
	const uint8_t *pend_a;
	uint8_t *rp_a;
	const float *pend_r, *next;
	float *rp_r, *rp_g;
	const int32_t *pend_count, *pend_head, *count, *first, *next_t, *done, *t;
	size_t count_trial, next_trial;
	const struct dqn_clock *clock;
	const struct env_config *config;
	const struct cuda_tape_view *tape;
	struct dqn_dims d;
};

/* One warp an environment: the current state into the pending ring, finished transitions into the replay, the next
 * observation. Rows are market features [40] then portfolio features [8]. */
template <typename T> __global__ void __launch_bounds__(32 * WARPS) k_store(const __grid_constant__ struct store_args x)
{
	const struct dqn_dims &d = x.d;
	const int e = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z, M = d.SD - FH_PORTFOLIO_FEATURES;
	if (e >= d.N)
		return;
	const size_t i = (size_t)z * d.N + e;
	const struct dqn_clock *c = &x.clock[z];
	const int32_t ready = ((const int32_t *)((const char *)x.count + z * x.count_trial))[e];
	const int32_t next_t = ((const int32_t *)((const char *)x.next_t + z * x.count_trial))[e];
	const int32_t done = ((const int32_t *)((const char *)x.done + z * x.count_trial))[e];
	const float *next = (const float *)((const char *)x.next + z * x.next_trial) + e * FH_PORTFOLIO_FEATURES;
	const struct cuda_tape_view view = *x.tape;
	const float *tape = view.feature + (size_t)next_t * M;
	float *obs = x.obs + i * d.SD;
	const int head = x.pend_head[i], newest = head == 0 ? d.n - 1 : head - 1; /* the slot of this step */
	T *pend = (T *)x.pend_s + i * d.n * d.SD;

	for (int k = lane; k < d.SD; k += 32)
		pend[newest * d.SD + k] = (T)obs[k];
	__syncwarp();
	const int held = x.pend_count[i] + ready; /* pending steps, this one included */
	const int64_t base = c->stored + ((const int32_t *)((const char *)x.first + z * x.count_trial))[e];
	for (int j = 0; j < ready; j++) {
		const int64_t leaf = (base + j) & (d.C - 1);
		const int slot = (head - held + j + 2 * d.n) % d.n, steps = held - j; /* rewards in R */
		T *s = (T *)x.rp_s + ((size_t)z * d.C + leaf) * d.SD, *s2 = (T *)x.rp_s2 + ((size_t)z * d.C + leaf) * d.SD;

		for (int k = lane; k < d.SD; k += 32) {
			s[k] = pend[slot * d.SD + k];
			s2[k] = (T)(k < M ? tape[k] : next[k - M]);
		}
		if (lane < d.D)
			x.rp_a[((size_t)z * d.C + leaf) * d.D + lane] = x.pend_a[(i * d.n + slot) * d.D + lane];
		if (lane == 0) {
			double R = 0.0, g = 1.0;
			for (int k = 0; k < steps; k++) {
				R += g * (double)x.pend_r[i * d.n + (slot + k) % d.n];
				g *= c->gamma;
			}
			x.rp_r[(size_t)z * d.C + leaf] = (float)R;
			x.rp_g[(size_t)z * d.C + leaf] = done == 2 ? 0.f : (float)g;
		}
	}
	if (!done) {
		for (int k = lane; k < d.SD; k += 32)
			obs[k] = k < M ? tape[k] : next[k - M];
	} else { /* a fresh start: flat, at the bar that k_env drew */
		const int32_t t = x.t[i];
		const struct env_config cfg = x.config[z];
		struct env_state s;
		float fresh[FH_PORTFOLIO_FEATURES];

		env_start(&s, &cfg, t);
		env_features(&s, &cfg, view.close[t], 1.0, ENV_STEPS_OWN, fresh);
		for (int k = lane; k < M; k += 32)
			obs[k] = view.feature[(size_t)t * M + k];
		if (lane < FH_PORTFOLIO_FEATURES)
			obs[M + lane] = fresh[lane];
	}
}

/* Leaves [stored, stored + total) take the largest priority; every node above them is recomputed, level by level. Then the
 * counters move on. One block a trial. */
__global__ void __launch_bounds__(INSERT_THREADS) k_insert(float *tree, struct dqn_clock *clock, double *acc,
                                                          const double *estat, size_t estat_trial,
                                                          const __grid_constant__ struct dqn_dims d)
{
	const int z = blockIdx.z;
	struct dqn_clock *c = &clock[z];
	const int64_t C = d.C, stored = c->stored, n = c->fresh;
	const int64_t lo = stored & (C - 1);
	const float largest = c->largest;
	float *node = tree + (size_t)z * 2 * C;

	for (int64_t i = threadIdx.x; i < n; i += INSERT_THREADS)
		node[C + ((lo + i) & (C - 1))] = largest;
	__syncthreads();
	/* the ring may wrap: a range at the end and one at the start */
	const int64_t end1 = lo + n < C ? lo + n : C, end2 = lo + n - end1;
	for (int64_t width = C / 2, shift = 1; n > 0 && width >= 1; width /= 2, shift++) {
		const int64_t a1 = lo >> shift, b1 = (end1 - 1) >> shift, b2 = end2 > 0 ? (end2 - 1) >> shift : -1;
		const int64_t n1 = b1 - a1 + 1, n2 = b2 + 1;
		for (int64_t i = threadIdx.x; i < n1 + n2; i += INSERT_THREADS) {
			const int64_t k = width + (i < n1 ? a1 + i : i - n1);
			node[k] = node[2 * k] + node[2 * k + 1];
		}
		__syncthreads();
	}
	if (threadIdx.x < CUDA_ENV_STATS) {
		static const int slot[CUDA_ENV_STATS] = {ACC_REWARD, ACC_REWARD2, ACC_EPISODES, ACC_EPISODE_RETURN, ACC_EPISODE_STEPS, ACC_RUINS, ACC_FILLS, ACC_EXITS};
		const double *e = (const double *)((const char *)estat + z * estat_trial);
		double sum = 0.0;
		for (int b = 0; b < (d.N + CUDA_ENV_BLOCK - 1) / CUDA_ENV_BLOCK; b++)
			sum += e[b * CUDA_ENV_STATS + threadIdx.x];
		acc[(size_t)z * DQN_ACC_COUNT + slot[threadIdx.x]] += sum;
	}
	if (threadIdx.x == 0) {
		double *a = acc + (size_t)z * DQN_ACC_COUNT;

		a[ACC_ENV_STEPS] += d.N;
		a[ACC_EPS] = c->eps;
		c->stored = stored + n;
		c->fresh = 0;
		c->vector_step++;
	}
}

} // namespace

int cuda_dqn_explore(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	k_explore<<<dim3((d->N * d->D + 127) / 128, 1, d->P), 128, 0, c->stream>>>(cuda_tensor<int32_t>(c, T_ACTION),
	                                                                          cuda_tensor<struct dqn_clock>(c, T_CLOCK), *d);
	CUDA_LAUNCHED("explore");
	return 0;
}

static void env_launch(struct cuda_exec *c)
{
	const struct dqn_dims *d = &c->dims;
	struct env_args a = {};

	a.cash = cuda_tensor<double>(c, T_ENV_CASH), a.equity = cuda_tensor<double>(c, T_ENV_EQUITY), a.peak = cuda_tensor<double>(c, T_ENV_PEAK);
	a.q = cuda_tensor<double>(c, T_ENV_Q), a.entry = cuda_tensor<double>(c, T_ENV_ENTRY), a.sigma = cuda_tensor<double>(c, T_ENV_SIGMA);
	a.ret = cuda_tensor<double>(c, T_ENV_RETURN);
	a.t = cuda_tensor<int32_t>(c, T_ENV_T), a.entry_bar = cuda_tensor<int32_t>(c, T_ENV_ENTRY_BAR), a.steps = cuda_tensor<int32_t>(c, T_ENV_STEPS);
	a.config = cuda_tensor<struct env_config>(c, T_CONFIG);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.action = cuda_tensor<int32_t>(c, T_ACTION);
	a.pend_a = cuda_tensor<uint8_t>(c, T_PEND_A), a.pend_r = cuda_tensor<float>(c, T_PEND_R);
	a.pend_count = cuda_tensor<int32_t>(c, T_PEND_COUNT), a.pend_head = cuda_tensor<int32_t>(c, T_PEND_HEAD);
	a.tape = cuda_at<struct cuda_tape_view>(c, &c->s.tape);
	a.count = cuda_at<int32_t>(c, &c->s.count), a.next_t = cuda_at<int32_t>(c, &c->s.next_t), a.done = cuda_at<int32_t>(c, &c->s.done);
	a.count_trial = c->s.count.stride;
	a.next = cuda_at<float>(c, &c->s.next), a.next_trial = c->s.next.stride;
	a.estat = cuda_at<double>(c, &c->s.estat), a.estat_trial = c->s.estat.stride;
	a.d = *d;
	k_env<<<dim3((d->N + CUDA_ENV_BLOCK - 1) / CUDA_ENV_BLOCK, 1, d->P), CUDA_ENV_BLOCK, 0, c->stream>>>(a);
}

static void store_launch(struct cuda_exec *c)
{
	const struct dqn_dims *d = &c->dims;
	const dim3 grid((d->N + WARPS - 1) / WARPS, 1, d->P);
	struct store_args a = {};

	a.obs = cuda_tensor<float>(c, T_OBS);
	a.pend_s = c->x.tensor[T_PEND_S], a.rp_s = c->x.tensor[T_RP_S], a.rp_s2 = c->x.tensor[T_RP_S2];
	a.pend_a = cuda_tensor<uint8_t>(c, T_PEND_A), a.rp_a = cuda_tensor<uint8_t>(c, T_RP_A);
	a.pend_r = cuda_tensor<float>(c, T_PEND_R), a.rp_r = cuda_tensor<float>(c, T_RP_R), a.rp_g = cuda_tensor<float>(c, T_RP_G);
	a.next = cuda_at<float>(c, &c->s.next), a.next_trial = c->s.next.stride;
	a.tape = cuda_at<struct cuda_tape_view>(c, &c->s.tape);
	a.pend_count = cuda_tensor<int32_t>(c, T_PEND_COUNT), a.pend_head = cuda_tensor<int32_t>(c, T_PEND_HEAD);
	a.count = cuda_at<int32_t>(c, &c->s.count), a.first = cuda_at<int32_t>(c, &c->s.first);
	a.next_t = cuda_at<int32_t>(c, &c->s.next_t), a.done = cuda_at<int32_t>(c, &c->s.done);
	a.t = cuda_tensor<int32_t>(c, T_ENV_T);
	a.count_trial = c->s.count.stride;
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.config = cuda_tensor<struct env_config>(c, T_CONFIG);
	a.d = *d;
	if (d->precision == FH_PRECISION_BF16)
		k_store<__nv_bfloat16><<<grid, 32 * WARPS, 0, c->stream>>>(a);
	else
		k_store<float><<<grid, 32 * WARPS, 0, c->stream>>>(a);
}

int cuda_dqn_env(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	env_launch(c);
	CUDA_LAUNCHED("environments");
	k_place<<<dim3(1, 1, d->P), INSERT_THREADS, 0, c->stream>>>(cuda_at<int32_t>(c, &c->s.count), cuda_at<int32_t>(c, &c->s.first),
	                                                           c->s.count.stride,
	                                                           cuda_tensor<struct dqn_clock>(c, T_CLOCK), d->N);
	CUDA_LAUNCHED("placing");
	store_launch(c);
	CUDA_LAUNCHED("storing");
	return 0;
}

int cuda_dqn_insert(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	k_insert<<<dim3(1, 1, d->P), INSERT_THREADS, 0, c->stream>>>(cuda_tensor<float>(c, T_TREE), cuda_tensor<struct dqn_clock>(c, T_CLOCK),
	                                                            cuda_tensor<double>(c, T_ACCUM), cuda_at<double>(c, &c->s.estat), c->s.estat.stride, *d);
	CUDA_LAUNCHED("insert");
	return 0;
}
