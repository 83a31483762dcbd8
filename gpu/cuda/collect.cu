/* One vector environment step on the device (section 8): exploration, the environments, n-step transitions into the
 * replay ring (section 4). Their leaves follow in tree.cu (cuda_insert).
 *
 * Compiled without contraction: fills, exits and flags equal the host's exactly. The order of storage is fixed: by
 * vector step, then environment, then oldest first. */
#include "gpu/cuda/head.cuh"
#include "gpu/cuda/mlp.cuh"
#include "gpu/cuda/store.cuh"
#include "gpu/env.h"
#include "gpu/philox.h"

namespace {

enum { PLACE_THREADS = 1024, ENV_THREADS = 2 * CUDA_ENV_BLOCK };
static_assert((int)WARPS == CUDA_ENV_FEW, "a block of few leaves one sum of its environments");

/* What a vector step reads of the clock: asked for at once, before anything is waited for or stored. */
struct now { uint64_t seed; int64_t vector_step, stored, eps_steps; double gamma, eps_start, eps_end; int32_t train_begin, train_end; };
__device__ __forceinline__ struct now now_of(const struct dqn_clock *c)
{
	return {c->seed, c->vector_step, c->stored, c->eps_steps, c->gamma, c->eps_start, c->eps_end, c->train_begin, c->train_end};
}

/* epsilon of this vector step; the environment's branches take their draws 2i and 2i + 1, i = e D + b, which lie in one
 * block of four words. */
__device__ __forceinline__ double epsilon(const struct now &c)
{
	const double share = (double)c.vector_step / (double)c.eps_steps;

	return c.eps_start + (c.eps_end - c.eps_start) * (share < 1.0 ? share : 1.0);
}
__device__ __forceinline__ int32_t explored(const struct now &c, double eps, int i, int32_t greedy, int actions)
{
	const struct philox_words w = philox_block(c.seed, PHILOX_EXPLORE, (uint64_t)c.vector_step, (uint64_t)i >> 1);
	const uint32_t draw = i & 1 ? w.w[2] : w.w[0], which = i & 1 ? w.w[3] : w.w[1];

	return (double)philox_uniform(draw) < eps ? (int32_t)philox_below(which, (uint32_t)actions) : greedy;
}

/* All branches of environment e by one thread: their draws lie in two blocks of words at most. */
static_assert(FH_BRANCH_MAX <= 4, "an even number of branches, or three");
__device__ __forceinline__ void explore_all(const struct now &c, double eps, int e, const struct dqn_dims &d, int32_t action[FH_BRANCH_MAX])
{
	const int i = e * d.D, odd = i & 1;
	struct philox_words w[2] = {philox_block(c.seed, PHILOX_EXPLORE, (uint64_t)c.vector_step, (uint64_t)i >> 1)};

	if (odd + d.D > 2)
		w[1] = philox_block(c.seed, PHILOX_EXPLORE, (uint64_t)c.vector_step, ((uint64_t)i >> 1) + 1);
#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++) {
		const int next = b < 3 ? b + 1 : b; /* the fourth of four is never odd */
		const uint32_t draw = odd ? w[next / 2].w[next % 2 * 2] : w[b / 2].w[b % 2 * 2];
		const uint32_t which = odd ? w[next / 2].w[next % 2 * 2 + 1] : w[b / 2].w[b % 2 * 2 + 1];

		if (b < d.D && (double)philox_uniform(draw) < eps)
			action[b] = (int32_t)philox_below(which, (uint32_t)d.A[b]);
	}
}

__global__ void k_explore(const __grid_constant__ struct collect_args x)
{
	const struct dqn_dims &d = x.d;
	const int i = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.z;
	const struct now now = now_of(&x.clock[z]);
	const double eps = epsilon(now);

	if (i == 0)
		x.clock[z].eps = eps;
	if (i < d.N * d.D)
		x.action[(size_t)z * d.N * d.D + i] = explored(now, eps, i, x.action[(size_t)z * d.N * d.D + i], d.A[i % d.D]);
}

/* All that the step of environment e reads but its action: asked for at once, before anything is waited for or stored. */
struct view {
	struct env_config cfg;
	struct env_state s;
	struct env_bar bar;       /* the next one */
	double close, ret;
	float sigma, sigma_next;  /* not widened: that would wait for them */
	int32_t slot, pending, between;
};
__device__ __forceinline__ void look(struct view &v, const struct collect_args &x, const struct cuda_tape_view &tape, const struct env_config &cfg, int e, int t)
{
	const size_t i = (size_t)blockIdx.z * x.d.N + e;

	v.bar = {tape.open[t + 1], tape.high[t + 1], tape.low[t + 1], tape.close[t + 1]};
	v.close = tape.close[t], v.sigma = tape.sigma[t], v.sigma_next = tape.sigma[t + 1];
	v.s = {x.cash[i], x.equity[i], x.peak[i], x.q[i], x.entry[i], x.sigma[i], t, x.entry_bar[i], x.steps[i]};
	v.ret = x.ret[i];
	v.slot = x.pend_head[i], v.pending = x.pend_count[i] + 1;
	v.cfg = cfg;
	v.between = v.cfg.max_gap > 0.0 || v.cfg.roll_on ? env_over(&v.cfg, tape.ts[t], tape.ts[t + 1], tape.rolled && tape.rolled[t + 1]) : 0;
}

/* What the storing of its transitions needs. done: 0 goes on, 1 truncated, 2 terminated. */
struct outcome { struct part next; float reward; int32_t ready, done, bar, again; };

/* The step of environment e by one thread: the environment itself and its pending reward. mine: what it adds to the accumulators. */
__device__ __forceinline__ void step_environment(const struct collect_args &x, const struct now &now, int e, struct view &v, const int32_t action[FH_BRANCH_MAX],
                                                 double mine[CUDA_ENV_STATS], struct outcome &o)
{
	const struct dqn_dims &d = x.d;
	const size_t i = (size_t)blockIdx.z * d.N + e;
	struct env_state &s = v.s;
	struct env_result r;

	env_step_over(&s, &v.cfg, action, v.close, &v.bar, (double)v.sigma, now.train_end - 1, 1, v.between, &r);
	const int over = r.terminated || r.truncated;
	o.ready = over ? v.pending : v.pending == d.n ? 1 : 0;
	o.done = r.terminated ? 2 : r.truncated ? 1 : 0;
	o.reward = (float)r.reward, o.bar = s.t;
	env_features(&s, &v.cfg, v.bar.close, (double)v.sigma_next, ENV_STEPS_OWN, o.next.v);

	const double total = v.ret + r.reward;
	mine[0] = r.reward, mine[1] = r.reward * r.reward;
	if (over)
		mine[2] = 1.0, mine[3] = total, mine[4] = s.steps, mine[5] = r.terminated;
	mine[6] = r.fill != 0.0, mine[7] = r.exit != ENV_EXIT_NONE;
	if (over)
		env_start(&s, &v.cfg, env_start_bar(now.seed, (uint32_t)e, (uint64_t)now.vector_step + 1, now.train_begin, now.train_end));
	o.again = s.t;
#pragma unroll
	for (int b = 0; b < FH_BRANCH_MAX; b++)
		if (b < d.D)
			x.pend_a[(i * d.n + v.slot) * d.D + b] = (uint8_t)action[b];
	x.pend_r[i * d.n + v.slot] = o.reward;
	x.pend_head[i] = v.slot + 1 == d.n ? 0 : v.slot + 1;
	x.pend_count[i] = v.pending - o.ready;
	x.ret[i] = over ? 0.0 : total;
	x.cash[i] = s.cash, x.equity[i] = s.equity, x.peak[i] = s.peak, x.q[i] = s.q, x.entry[i] = s.entry, x.sigma[i] = s.entry_sigma;
	x.t[i] = s.t, x.entry_bar[i] = s.entry_bar, x.steps[i] = s.steps;
}

/* For those who store them: another launch, or the rest of a warp. */
__device__ __forceinline__ void hand_over(const struct collect_args &x, int e, const struct outcome &o)
{
	at(x.count, x.count_trial)[e] = o.ready;
	at(x.next_t, x.count_trial)[e] = o.bar;
	at(x.done, x.count_trial)[e] = o.done;
	store_part_of(at(x.next, x.next_trial) + e * FH_PORTFOLIO_FEATURES, o.next);
}

/* Exclusive prefix sum of count over the environments; one block a trial. */
__global__ void __launch_bounds__(PLACE_THREADS) k_place(const __grid_constant__ struct collect_args x)
{
	__shared__ int32_t warp_sum[32];
	const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, N = x.d.N;
	const int32_t *count = at(x.count, x.count_trial);
	int32_t *first = at(x.first, x.count_trial), carry = 0;

	for (int base = 0; base < N; base += PLACE_THREADS) {
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
		x.clock[blockIdx.z].fresh = carry;
}

/* Sums of a warp's environments, as a binary tree (add_environments() in tree.cu goes on with it): halves of the eight numbers are exchanged
 * for the partner's halves, so 9 exchanges do what 40 would. The first eight lanes have one sum each, of stat_of(lane). */
__device__ __forceinline__ int stat_of(int lane) { return (lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1); }
__device__ __forceinline__ double sum_warp(const double mine[CUDA_ENV_STATS])
{
	const int lane = threadIdx.x & 31;
	double v[CUDA_ENV_STATS];

	static_assert(CUDA_ENV_STATS == 8, "three halvings");
#pragma unroll
	for (int k = 0; k < CUDA_ENV_STATS; k++)
		v[k] = mine[k];
#pragma unroll
	for (int step = 0; step < 3; step++) {
		const int o = 1 << step, half = 4 >> step;
#pragma unroll
		for (int k = 0; k < half; k++) {
			const double give = lane & o ? v[k] : v[half + k], keep = lane & o ? v[half + k] : v[k];

			v[k] = keep + __shfl_xor_sync(0xffffffffu, give, o);
		}
	}
	v[0] += __shfl_xor_sync(0xffffffffu, v[0], 8);
	return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 16);
}

/* The first CUDA_ENV_BLOCK threads of a block step an environment each. Where each environment stores one transition, the others copy
 * meanwhile what does not depend on it. */
template <typename T> __global__ void __launch_bounds__(ENV_THREADS, 2) k_env(const __grid_constant__ struct collect_args x)
{
	__shared__ double stat[CUDA_ENV_BLOCK / 32][CUDA_ENV_STATS];
	__shared__ int32_t bar[CUDA_ENV_BLOCK];
	const struct dqn_dims &d = x.d;
	const int first = blockIdx.x * CUDA_ENV_BLOCK, e = first + threadIdx.x, z = blockIdx.z;
	const bool steps = threadIdx.x < CUDA_ENV_BLOCK && e < d.N;
	struct dqn_clock *c = &x.clock[z];
	int again = -1;

	cuda_wait_before();
	cuda_let_next();
	const struct now now = now_of(c);
	const struct cuda_tape_view tape = *x.tape;
	const struct env_config cfg = x.config[z];
	if (steps)
		bar[threadIdx.x] = x.t[(size_t)z * d.N + e];
	__syncthreads();
	if (threadIdx.x < CUDA_ENV_BLOCK) {
		double mine[CUDA_ENV_STATS] = {};

		if (steps) {
			const size_t i = (size_t)z * d.N + e;
			int32_t action[FH_BRANCH_MAX] = {};
			struct part before = {};
			struct outcome o;
			struct view v;

			look(v, x, tape, cfg, e, bar[threadIdx.x]);
#pragma unroll
			for (int b = 0; b < FH_BRANCH_MAX; b++)
				action[b] = b < d.D ? x.action[i * d.D + b] : 0;
			if (x.stores)
				before = load_part(x.obs + i * FH_STATE_DIM + FH_MARKET_FEATURES);
			const double eps = epsilon(now);
			if (x.explores)
				explore_all(now, eps, e, d, action);
			step_environment(x, now, e, v, action, mine, o);
			if (x.stores) {
				store_own<T>(x, e, (size_t)z * d.C + (size_t)((now.stored + e) & (d.C - 1)), (float)now.gamma, action, before, o.next, o.reward, o.done);
				if (o.done)
					again = o.again;
				else
					store_part_of(x.obs + i * FH_STATE_DIM + FH_MARKET_FEATURES, o.next);
			} else {
				hand_over(x, e, o);
			}
#pragma unroll
			for (int b = 0; b < FH_BRANCH_MAX; b++)
				if (b < d.D && x.explores)
					x.action[i * d.D + b] = action[b];
			if (e == 0 && x.explores)
				c->eps = eps;
			if (e == 0 && d.n == 1) /* each stores exactly one */
				c->fresh = d.N;
		}
		const double sum = sum_warp(mine);
		if (threadIdx.x % 32 < CUDA_ENV_STATS)
			stat[threadIdx.x / 32][stat_of(threadIdx.x)] = sum;
	} else if (x.stores) {
		store_market<T, ENV_THREADS - CUDA_ENV_BLOCK>(x, tape.feature, now.stored, first, bar, threadIdx.x - CUDA_ENV_BLOCK);
	}
	__syncthreads();
	if (again >= 0) /* over what was copied for it */
		observe_start(x, e, again);
	if (threadIdx.x >= CUDA_ENV_BLOCK && threadIdx.x < CUDA_ENV_BLOCK + CUDA_ENV_STATS) {
		const int k = threadIdx.x - CUDA_ENV_BLOCK;

		static_assert(CUDA_ENV_BLOCK == 4 * 32, "the tree above the warps");
		at(x.estat, x.estat_trial)[blockIdx.x * CUDA_ENV_STATS + k] = (stat[0][k] + stat[1][k]) + (stat[2][k] + stat[3][k]);
	}
}

/* Greedy action, exploration, environment, and with n = 1 (where every environment stores exactly one transition) the
 * storing as well: one warp an environment, one launch. What does not hang on the action is asked for before the network's outputs. */
template <typename T, int A, int L> __global__ void __launch_bounds__(32 * WARPS, 1) k_act(const __grid_constant__ struct collect_args x)
{
	__shared__ double stat[WARPS][CUDA_ENV_STATS];
	__shared__ float next[WARPS][FH_PORTFOLIO_FEATURES];
	const struct dqn_dims &d = x.d;
	const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, z = blockIdx.z, e = blockIdx.x * WARPS + warp;
	const size_t i = (size_t)z * d.N + e;
	struct dqn_clock *c = &x.clock[z];
	double mine[CUDA_ENV_STATS] = {};

	cuda_wait_before();
	cuda_let_next();
	if (e < d.N) {
		const int t = x.t[i];
		const struct now now = now_of(c);
		const struct cuda_tape_view tape = *x.tape;
		const struct env_config cfg = x.config[z];
		const float *v = at(x.out, x.out_trial) + (size_t)e * x.ldo;
		struct head_row<A, L> row;
		struct outcome o = {};
		struct kept rows = {};
		struct view before;
		int greedy = 0;

		head_load(row, v, v + x.seg[1], d.A[0], d.NA, lane);
		if (lane == 0)
			look(before, x, tape, cfg, e, t);
		if (x.stores)
			keep_rows(rows, x, tape.feature, e, t, lane);
		const struct head_support zs = head_support_of(c, d.NA);
#pragma unroll 1
		for (int b = 0; b < d.D; b++) {
			enum { AHEAD = A * L <= 20 }; /* else there are no registers for another */
			const int after = min(b + AHEAD, d.D - 1);
			struct head_row<A, L> next_row;

			if (AHEAD) /* on its way meanwhile */
				head_load(next_row, v, v + x.seg[1 + after], d.A[after], d.NA, lane);
			else if (b)
				head_load(row, v, v + x.seg[1 + b], d.A[b], d.NA, lane);
			head_combine(row, d.A[b]);
			const int best = head_greedy(row, d.A[b], d.NA, zs, lane);
			if (lane == b) /* lanes draw side by side below */
				greedy = best;
			if (AHEAD)
				row = next_row;
		}
		const double eps = epsilon(now);
		const size_t leaf = (size_t)z * d.C + (size_t)((now.stored + e) & (d.C - 1)); /* with n = 1 */
		if (lane < d.D)
			x.action[i * d.D + lane] = greedy = explored(now, eps, e * d.D + lane, greedy, d.A[lane]);
		int32_t action[FH_BRANCH_MAX];
#pragma unroll
		for (int b = 0; b < FH_BRANCH_MAX; b++)
			action[b] = __shfl_sync(0xffffffffu, greedy, b);
		if (lane == 0) {
			step_environment(x, now, e, before, action, mine, o);
			if (x.stores) {
				store_result(x, leaf, (float)now.gamma, action, o.reward, o.done);
#pragma unroll
				for (int k = 0; k < FH_PORTFOLIO_FEATURES; k++)
					next[warp][k] = o.next.v[k];
			} else {
				hand_over(x, e, o);
			}
			if (e == 0) {
				c->eps = eps;
				if (d.n == 1)
					c->fresh = d.N;
			}
		}
		const int done = __shfl_sync(0xffffffffu, o.done, 0), again = __shfl_sync(0xffffffffu, o.again, 0);
		__syncwarp();
		if (x.stores)
			store_kept<T>(x, e, leaf, rows, next[warp], done, again, lane);
	}
	if (lane < CUDA_ENV_STATS)
		stat[warp][lane] = 0.0;
	__syncwarp();
	if (lane == 0)
		for (int k = 0; k < CUDA_ENV_STATS; k++)
			stat[warp][k] = mine[k];
	__syncthreads();
	if (threadIdx.x < CUDA_ENV_STATS) {
		const int k = threadIdx.x;

		static_assert(WARPS == 8, "the tree of k_env");
		at(x.estat, x.estat_trial)[blockIdx.x * CUDA_ENV_STATS + k] = ((stat[0][k] + stat[1][k]) + (stat[2][k] + stat[3][k])) +
		                                                              ((stat[4][k] + stat[5][k]) + (stat[6][k] + stat[7][k]));
	}
}

struct collect_args collect_args_of(struct cuda_exec *c)
{
	struct collect_args a = {};

	a.out = cuda_at<float>(c, &c->s.pout), a.out_trial = c->s.pout.stride;
	a.ldo = c->s.ldo;
	for (int i = 0; i <= c->dims.D; i++)
		a.seg[i] = c->s.seg[i];
	a.action = cuda_tensor<int32_t>(c, T_ACTION);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.config = cuda_tensor<struct env_config>(c, T_CONFIG);
	a.tape = cuda_at<struct cuda_tape_view>(c, &c->s.tape);
	a.cash = cuda_tensor<double>(c, T_ENV_CASH), a.equity = cuda_tensor<double>(c, T_ENV_EQUITY), a.peak = cuda_tensor<double>(c, T_ENV_PEAK);
	a.q = cuda_tensor<double>(c, T_ENV_Q), a.entry = cuda_tensor<double>(c, T_ENV_ENTRY), a.sigma = cuda_tensor<double>(c, T_ENV_SIGMA);
	a.ret = cuda_tensor<double>(c, T_ENV_RETURN);
	a.t = cuda_tensor<int32_t>(c, T_ENV_T), a.entry_bar = cuda_tensor<int32_t>(c, T_ENV_ENTRY_BAR), a.steps = cuda_tensor<int32_t>(c, T_ENV_STEPS);
	a.obs = cuda_tensor<float>(c, T_OBS);
	a.pend_s = c->x.tensor[T_PEND_S];
	a.pend_a = cuda_tensor<uint8_t>(c, T_PEND_A), a.pend_r = cuda_tensor<float>(c, T_PEND_R);
	a.pend_count = cuda_tensor<int32_t>(c, T_PEND_COUNT), a.pend_head = cuda_tensor<int32_t>(c, T_PEND_HEAD);
	a.rp_s = c->x.tensor[T_RP_S], a.rp_s2 = c->x.tensor[T_RP_S2];
	a.rp_a = cuda_tensor<uint8_t>(c, T_RP_A), a.rp_r = cuda_tensor<float>(c, T_RP_R), a.rp_g = cuda_tensor<float>(c, T_RP_G);
	a.count = cuda_at<int32_t>(c, &c->s.count), a.first = cuda_at<int32_t>(c, &c->s.first);
	a.next_t = cuda_at<int32_t>(c, &c->s.next_t), a.done = cuda_at<int32_t>(c, &c->s.done);
	a.count_trial = c->s.count.stride;
	a.next = cuda_at<float>(c, &c->s.next), a.next_trial = c->s.next.stride;
	a.estat = cuda_at<double>(c, &c->s.estat), a.estat_trial = c->s.estat.stride;
	a.d = c->dims;
	return a;
}

int place_and_store(struct cuda_exec *c, const struct collect_args &a, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const dim3 grid(cuda_tiles(d->N, WARPS), 1, d->P);

	if (d->n > 1)
		CUDA_TRY(cuda_launch_plain(c->stream, k_place, dim3(1, 1, d->P), PLACE_THREADS, 0, a));
	if (d->precision == FH_PRECISION_BF16)
		CUDA_TRY(cuda_launch_plain(c->stream, k_store<__nv_bfloat16>, grid, 32 * WARPS, 0, a));
	else
		CUDA_TRY(cuda_launch_plain(c->stream, k_store<float>, grid, 32 * WARPS, 0, a));
	return 0;
}

} // namespace

int cuda_dqn_explore(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	CUDA_TRY(cuda_launch_plain(c->stream, k_explore, dim3(cuda_tiles(d->N * d->D, 128), 1, d->P), 128, 0, collect_args_of(c)));
	return 0;
}

static int launch_env(struct cuda_exec *c, const struct collect_args &a, struct fh_status *st)
{
	const dim3 grid(cuda_tiles(c->dims.N, CUDA_ENV_BLOCK), 1, c->dims.P);

	if (c->dims.precision == FH_PRECISION_BF16)
		CUDA_TRY(cuda_launch(c, k_env<__nv_bfloat16>, grid, ENV_THREADS, 0, a));
	else
		CUDA_TRY(cuda_launch(c, k_env<float>, grid, ENV_THREADS, 0, a));
	return 0;
}

int cuda_dqn_env(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct collect_args a = collect_args_of(c);
	const int rc = launch_env(c, a, st);

	return rc ? rc : place_and_store(c, a, st);
}

int cuda_dqn_insert(struct exec *x, struct fh_status *st)
{
	return cuda_insert(cuda_of(x), CUDA_ENV_BLOCK, st);
}

/* Many environments: the greedy actions, one launch for exploring, stepping and storing with a thread an environment (their
 * F64 work then fills the lanes), the tree. */
static int collect_many(struct cuda_exec *c, struct collect_args &a, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	const dim3 grid(cuda_tiles(d->N * PARTS, 32 * WARPS), 1, d->P);
	int rc = cuda_dqn_policy(&c->x, st);

	a.explores = 1;
	a.stores = d->n == 1; /* each stores one, in its own order */
	if (!rc)
		rc = launch_env(c, a, st);
	if (rc)
		return rc;
	if (!a.stores) {
		CUDA_TRY(cuda_launch_plain(c->stream, k_place, dim3(1, 1, d->P), PLACE_THREADS, 0, a));
		if (d->precision == FH_PRECISION_BF16)
			CUDA_TRY(cuda_launch(c, k_store_parts<__nv_bfloat16>, grid, 32 * WARPS, 0, a));
		else
			CUDA_TRY(cuda_launch(c, k_store_parts<float>, grid, 32 * WARPS, 0, a));
	}
	return cuda_insert(c, CUDA_ENV_BLOCK, st);
}

/* A vector step as it is launched. Few environments: the policy's four layers, one kernel for all of acting with a warp an
 * environment, the tree. */
int cuda_collect(struct cuda_exec *c, struct fh_status *st)
{
	enum { MANY = 2048 };
	const struct dqn_dims *d = &c->dims;
	struct collect_args a = collect_args_of(c);
	const dim3 grid(cuda_tiles(d->N, WARPS), 1, d->P);
	const int actions = head_actions(d);

	if (d->SD == FH_STATE_DIM && cuda_wide((long)d->N * d->P >= MANY))
		return collect_many(c, a, st);
	int rc = cuda_policy_forward(c, st);
	if (rc)
		return rc;
	a.stores = d->n == 1 && d->SD <= KEPT;
#define ACT_BF16(A, L) cuda_launch(c, k_act<__nv_bfloat16, A, L>, grid, 32 * WARPS, 0, a)
#define ACT_F32(A, L) cuda_launch(c, k_act<float, A, L>, grid, 32 * WARPS, 0, a)
	CUDA_TRY(d->precision == FH_PRECISION_BF16 ? HEAD_DISPATCH(actions, d->NA, ACT_BF16) : HEAD_DISPATCH(actions, d->NA, ACT_F32));
	if (!a.stores)
		rc = place_and_store(c, a, st);
	return rc ? rc : cuda_insert(c, CUDA_ENV_FEW, st);
}
