/* From the environments into the replay ring (section 4): the state of this step into the pending ring, finished transitions
 * into the replay, the next observation. Rows are market features, then portfolio features.
 *
 * Part of collect.cu, which alone includes this. Invariant: an environment's rows are written by one warp, or by
 * threads of which each keeps to its parts of every row; only a restart in k_env, behind a barrier, writes over others' parts. */
#ifndef FH_GPU_CUDA_STORE_CUH
#define FH_GPU_CUDA_STORE_CUH

#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"
#include "gpu/env.h"

namespace {

enum { WARPS = 8, PART = 8, PARTS = FH_STATE_DIM / PART };

struct collect_args {
	const float *out;         /* [N, ldo] of the policy's forward */
	size_t out_trial;
	int ldo, seg[1 + FH_BRANCH_MAX];
	int explores, stores;     /* the launch that steps draws the actions first (k_env), and stores transitions (n = 1) */
	int32_t *action;
	struct dqn_clock *clock;
	const struct env_config *config;
	const struct cuda_tape_view *tape;
	/* environments */
	double *cash, *equity, *peak, *q, *entry, *sigma, *ret;
	int32_t *t, *entry_bar, *steps;
	float *obs;
	/* pending steps */
	void *pend_s; /* low */
	uint8_t *pend_a;
	float *pend_r;
	int32_t *pend_count, *pend_head;
	/* replay */
	void *rp_s, *rp_s2; /* low */
	uint8_t *rp_a;
	float *rp_r, *rp_g;
	/* from ENV to the storing of this step */
	int32_t *count, *first, *next_t, *done;
	float *next;
	double *estat;
	size_t count_trial, next_trial, estat_trial;
	struct dqn_dims d;
};

template <typename X> __device__ __forceinline__ X *at(X *p, size_t trial) { return (X *)((char *)p + blockIdx.z * trial); }

/* Actions, return and discount of a transition: pending steps from `slot` on, `steps` of them, into entry `to`. */
__device__ __forceinline__ void store_numbers(const struct collect_args &x, size_t i, size_t to, int slot, int steps, int done)
{
	const struct dqn_dims &d = x.d;
	const double gamma = x.clock[blockIdx.z].gamma;
	double R = 0.0, g = 1.0;
	uint8_t action[FH_BRANCH_MAX];

#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++) /* all before the first is stored: bytes may alias anything */
		action[b] = b < d.D ? x.pend_a[(i * d.n + slot) * d.D + b] : 0;
	for (int k = 0; k < steps; k++) {
		R += g * (double)x.pend_r[i * d.n + (slot + k) % d.n];
		g *= gamma;
	}
#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++)
		if (b < d.D)
			x.rp_a[to * d.D + b] = action[b];
	x.rp_r[to] = (float)R;
	x.rp_g[to] = done == 2 ? 0.f : (float)g;
}

/* What environment e sees first after a restart at bar t: flat. By one warp. */
__device__ __forceinline__ void observe_start_by_warp(const struct collect_args &x, int e, int t, int lane)
{
	const int z = blockIdx.z, M = x.d.SD - FH_PORTFOLIO_FEATURES;
	const struct env_config cfg = x.config[z];
	const struct cuda_tape_view view = *x.tape;
	float *obs = x.obs + ((size_t)z * x.d.N + e) * x.d.SD, fresh[FH_PORTFOLIO_FEATURES];
	struct env_state s;

	env_start(&s, &cfg, t);
	env_features(&s, &cfg, view.close[t], 1.0, ENV_STEPS_OWN, fresh);
	for (int k = lane; k < M; k += 32)
		obs[k] = view.feature[(size_t)t * M + k];
#pragma unroll
	for (int k = 0; k < FH_PORTFOLIO_FEATURES; k++)
		if (lane == k)
			obs[M + k] = fresh[k];
}

/* By one warp: the current state of environment e into the pending ring, its `ready` finished transitions into the
 * replay from place `first` on, the next observation. Rows are market features [40] then portfolio features [8]. */
template <typename T>
__device__ void store_environment(const struct collect_args &x, int e, int first, int lane)
{
	const struct dqn_dims &d = x.d;
	const int z = blockIdx.z, M = d.SD - FH_PORTFOLIO_FEATURES;
	const size_t i = (size_t)z * d.N + e;
	const struct dqn_clock *c = &x.clock[z];
	const struct cuda_tape_view view = *x.tape;
	const int32_t ready = at(x.count, x.count_trial)[e], done = at(x.done, x.count_trial)[e];
	const float *next = at(x.next, x.next_trial) + e * FH_PORTFOLIO_FEATURES, *tape = view.feature + (size_t)at(x.next_t, x.count_trial)[e] * M;
	float *obs = x.obs + i * d.SD;
	const int head = x.pend_head[i], newest = head == 0 ? d.n - 1 : head - 1; /* the slot of this step */
	T *pend = (T *)x.pend_s + i * d.n * d.SD;

	for (int k = lane; k < d.SD; k += 32)
		pend[newest * d.SD + k] = (T)obs[k];
	__syncwarp();
	const int held = x.pend_count[i] + ready; /* pending steps, this one included */
	for (int j = 0; j < ready; j++) {
		const int64_t leaf = (c->stored + first + j) & (d.C - 1);
		const int slot = (head - held + j + 2 * d.n) % d.n, steps = held - j; /* rewards in R */
		T *s = (T *)x.rp_s + ((size_t)z * d.C + leaf) * d.SD, *s2 = (T *)x.rp_s2 + ((size_t)z * d.C + leaf) * d.SD;

		for (int k = lane; k < d.SD; k += 32) {
			s[k] = pend[slot * d.SD + k];
			s2[k] = (T)(k < M ? tape[k] : next[k - M]);
		}
		if (lane == 0)
			store_numbers(x, i, (size_t)z * d.C + leaf, slot, steps, done);
	}
	if (!done) {
		for (int k = lane; k < d.SD; k += 32)
			obs[k] = k < M ? tape[k] : next[k - M];
	} else {
		observe_start_by_warp(x, e, x.t[i], lane);
	}
}

/* With n = 1 and rows of at most KEPT: what the storing needs but the outcome, asked for by a warp before it acts. */
enum { KEPT = 64 };
struct kept { float before[2], after[2]; };
__device__ __forceinline__ void keep_rows(struct kept &k, const struct collect_args &x, const float *feature, int e, int t, int lane)
{
	const int SD = x.d.SD, M = SD - FH_PORTFOLIO_FEATURES;
	const float *obs = x.obs + ((size_t)blockIdx.z * x.d.N + e) * SD;

	feature += (size_t)(t + 1) * M;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int col = lane + 32 * h;

		k.before[h] = col < SD ? obs[col] : 0.f;
		k.after[h] = col < M ? feature[col] : 0.f;
	}
}

/* Return, discount and actions of a transition of one step. */
__device__ __forceinline__ void store_result(const struct collect_args &x, size_t leaf, float gamma, const int32_t action[FH_BRANCH_MAX], float reward, int done)
{
	x.rp_r[leaf] = (float)(0.0 + (double)reward);
	x.rp_g[leaf] = done == 2 ? 0.f : gamma;
#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++)
		if (b < x.d.D)
			x.rp_a[leaf * x.d.D + b] = (uint8_t)action[b];
}

/* store_environment() of them. next: the portfolio's features afterwards. done, again: how it ended, where it starts again. */
template <typename T>
__device__ __forceinline__ void store_kept(const struct collect_args &x, int e, size_t leaf, const struct kept &k, const float *next, int done, int again,
                                           int lane)
{
	const int SD = x.d.SD, M = SD - FH_PORTFOLIO_FEATURES;
	const size_t i = (size_t)blockIdx.z * x.d.N + e;

#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int col = lane + 32 * h;
		const float after = col < M ? k.after[h] : next[min(col - M, FH_PORTFOLIO_FEATURES - 1)];

		if (col >= SD)
			break;
		((T *)x.pend_s)[i * SD + col] = (T)k.before[h];
		((T *)x.rp_s)[leaf * SD + col] = (T)k.before[h];
		((T *)x.rp_s2)[leaf * SD + col] = (T)after;
		if (!done)
			x.obs[i * SD + col] = after;
	}
	if (done)
		observe_start_by_warp(x, e, again, lane);
}

/* PART elements of a row, in as few accesses as there can be. */
struct part { float v[PART]; };
__device__ __forceinline__ struct part load_part(const float *p)
{
	struct part r;
#pragma unroll
	for (int k = 0; k < PART; k += 4) {
		const float4 f = *(const float4 *)(p + k);

		r.v[k] = f.x, r.v[k + 1] = f.y, r.v[k + 2] = f.z, r.v[k + 3] = f.w;
	}
	return r;
}
__device__ __forceinline__ void store_part_of(float *p, const struct part &r)
{
#pragma unroll
	for (int k = 0; k < PART; k += 4)
		__stwb((float4 *)(p + k), make_float4(r.v[k], r.v[k + 1], r.v[k + 2], r.v[k + 3])); /* by name: nvcc may take assigned vectors apart */
}
__device__ __forceinline__ void store_part_of(__nv_bfloat16 *p, const struct part &r)
{
	__align__(16) __nv_bfloat162 pair[PART / 2];
#pragma unroll
	for (int k = 0; k < PART / 2; k++)
		pair[k] = __floats2bfloat162_rn(r.v[2 * k], r.v[2 * k + 1]);
	__stwb((uint4 *)p, *(const uint4 *)pair);
}
template <typename T> __device__ __forceinline__ void copy_part(T *to, const T *from)
{
#pragma unroll
	for (int k = 0; k < PART * (int)sizeof(T) / 16; k++)
		((uint4 *)to)[k] = ((const uint4 *)from)[k];
}

/* store_environment() by PARTS threads, part q of every row by one of them: 16 bytes at a time, and neighbours in memory by
 * neighbouring threads. Rows are FH_STATE_DIM long; the last part is the portfolio's. A part of a pending state is read by
 * none but the thread that writes it. */
template <typename T> __device__ __forceinline__ void store_part(const struct collect_args &x, int e, int first, int q)
{
	enum { SD = FH_STATE_DIM, M = FH_MARKET_FEATURES };
	static_assert(M % PART == 0 && FH_PORTFOLIO_FEATURES == PART, "the parts of a row");
	const struct dqn_dims &d = x.d;
	const int z = blockIdx.z;
	const size_t i = (size_t)z * d.N + e;
	const struct dqn_clock *c = &x.clock[z];
	const int32_t ready = at(x.count, x.count_trial)[e], done = at(x.done, x.count_trial)[e], t = at(x.next_t, x.count_trial)[e];
	const int head = x.pend_head[i], newest = head == 0 ? d.n - 1 : head - 1;
	const float *feature = x.tape->feature, *next = at(x.next, x.next_trial) + e * FH_PORTFOLIO_FEATURES;
	float *obs = x.obs + i * SD + q * PART;
	T *pend = (T *)x.pend_s + i * d.n * SD + q * PART;
	const struct part before = load_part(obs), after = load_part(q * PART < M ? feature + (size_t)t * M + q * PART : next);
	const int held = x.pend_count[i] + ready;

	store_part_of(pend + newest * SD, before);
	for (int j = 0; j < ready; j++) {
		const int64_t leaf = (c->stored + first + j) & (d.C - 1);
		const int slot = (head - held + j + 2 * d.n) % d.n;
		T *s = (T *)x.rp_s + ((size_t)z * d.C + leaf) * SD + q * PART;

		if (slot == newest)
			store_part_of(s, before);
		else
			copy_part(s, pend + slot * SD);
		store_part_of((T *)x.rp_s2 + ((size_t)z * d.C + leaf) * SD + q * PART, after);
		if (q == 0)
			store_numbers(x, i, (size_t)z * d.C + leaf, slot, held - j, done);
	}
	if (!done) {
		store_part_of(obs, after);
	} else if (q * PART < M) {
		store_part_of(obs, load_part(feature + (size_t)x.t[i] * M + q * PART));
	} else {
		const struct env_config cfg = x.config[z];
		struct env_state s;
		struct part fresh;

		env_start(&s, &cfg, x.t[i]);
		env_features(&s, &cfg, x.tape->close[x.t[i]], 1.0, ENV_STEPS_OWN, fresh.v);
		store_part_of(obs, fresh);
	}
}

/* With n = 1 every environment stores one transition a step, in its own order, and nothing of it but the portfolio's part depends on
 * what is done: these copy the market's parts of a block's environments while others step them. bar: where each stands.
 * All that a full block has for a thread at once: a wait for memory, then stores. */
template <typename T, int THREADS>
__device__ __forceinline__ void store_market(const struct collect_args &x, const float *feature, int64_t stored, int first, const int32_t *bar, int thread)
{
	enum { SD = FH_STATE_DIM, M = FH_MARKET_FEATURES, MARKET = M / PART, EACH = CUDA_ENV_BLOCK * MARKET / THREADS };
	static_assert(EACH * THREADS == CUDA_ENV_BLOCK * MARKET, "as many parts a thread");
	const int items = min(x.d.N - first, (int)CUDA_ENV_BLOCK) * MARKET;
	const int64_t mask = x.d.C - 1;
	const size_t env = (size_t)blockIdx.z * x.d.N + first, ring = (size_t)blockIdx.z * x.d.C;
	struct part before[EACH], after[EACH];

#pragma unroll
	for (int k = 0; k < EACH; k++) {
		const int at = min(thread + k * THREADS, items - 1), e = at / MARKET, col = at % MARKET * PART;

		before[k] = load_part(x.obs + (env + e) * SD + col);
		after[k] = load_part(feature + (size_t)(bar[e] + 1) * M + col);
	}
#pragma unroll
	for (int k = 0; k < EACH; k++) {
		const int at = thread + k * THREADS, e = at / MARKET, col = at % MARKET * PART;
		const size_t leaf = ring + (size_t)((stored + first + e) & mask);

		if (at >= items)
			break;
		store_part_of((T *)x.pend_s + (env + e) * SD + col, before[k]);
		store_part_of((T *)x.rp_s + leaf * SD + col, before[k]);
		store_part_of((T *)x.rp_s2 + leaf * SD + col, after[k]);
		store_part_of(x.obs + (env + e) * SD + col, after[k]);
	}
}

/* The rest of environment e's transition, by the thread that stepped it. before: the portfolio's part of its observation. */
template <typename T>
__device__ __forceinline__ void store_own(const struct collect_args &x, int e, size_t leaf, float gamma, const int32_t action[FH_BRANCH_MAX],
                                          const struct part &before, const struct part &next, float reward, int done)
{
	enum { SD = FH_STATE_DIM, M = FH_MARKET_FEATURES };
	const size_t i = (size_t)blockIdx.z * x.d.N + e;

	store_part_of((T *)x.pend_s + i * SD + M, before);
	store_part_of((T *)x.rp_s + leaf * SD + M, before);
	store_part_of((T *)x.rp_s2 + leaf * SD + M, next);
	store_result(x, leaf, gamma, action, reward, done);
}

/* The same as observe_start_by_warp(), by one thread. */
__device__ __forceinline__ void observe_start(const struct collect_args &x, int e, int t)
{
	enum { SD = FH_STATE_DIM, M = FH_MARKET_FEATURES };
	const struct env_config cfg = x.config[blockIdx.z];
	float *obs = x.obs + ((size_t)blockIdx.z * x.d.N + e) * SD;
	const float *feature = x.tape->feature + (size_t)t * M;
	struct env_state s;
	struct part fresh;

	for (int col = 0; col < M; col += PART)
		store_part_of(obs + col, load_part(feature + col));
	env_start(&s, &cfg, t);
	env_features(&s, &cfg, x.tape->close[t], 1.0, ENV_STEPS_OWN, fresh.v);
	store_part_of(obs + M, fresh);
}

template <typename T> __global__ void __launch_bounds__(32 * WARPS, 2) k_store(const __grid_constant__ struct collect_args x)
{
	const int e = blockIdx.x * WARPS + threadIdx.x / 32;

	if (e < x.d.N)
		store_environment<T>(x, e, x.d.n == 1 ? e : at(x.first, x.count_trial)[e], threadIdx.x & 31);
}

/* The same by parts, where n-step transitions had to be placed first. */
template <typename T> __global__ void __launch_bounds__(32 * WARPS) k_store_parts(const __grid_constant__ struct collect_args x)
{
	const int i = blockIdx.x * 32 * WARPS + threadIdx.x, e = i / PARTS;

	cuda_wait_before();
	cuda_let_next();
	if (e < x.d.N)
		store_part<T>(x, e, at(x.first, x.count_trial)[e], i % PARTS);
}

} // namespace

#endif
