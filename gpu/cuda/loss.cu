/* Loss and gradient of the network's outputs in one kernel (section 2): double-DQN choice, target distribution and its
 * projection, cross entropy or squared error, priority error, and the gradient through the dueling combination.
 *
 * A warp takes one branch of 32/W samples, W lanes each; a block has a warp for each branch, and one more that finds the weights
 * meanwhile. 32 lanes a sample spread a small batch over the machine, 8 lanes a sample spend a fifth of the instructions on
 * sums; both give the same bits (loss.cuh). */
#include <cuda_bf16.h>
#include "gpu/cuda/loss.cuh"
#include "gpu/cuda/shared.cuh"

namespace {

enum { LOSS_MANY = 2048 }; /* rows of all trials from which on 8 lanes a sample fill the machine */

struct loss_args {
	const float *out;         /* [3B, ldo] */
	void *dout;               /* low [B, ldo], padding included */
	size_t out_trial, dout_trial, raw_trial, top_trial;
	const int32_t *a;         /* [B, D] */
	const float *R, *G;       /* [B] */
	const double *raw, *top;  /* importance weights before normalisation [B], their maxima by block [tops]; NULL: weight has them */
	int tops;
	float *weight, *logits, *proj, *stat[LOSS_STATS]; /* stat: [B] each */
	size_t stat_trial[LOSS_STATS]; /* bytes */
	const struct dqn_clock *clock;
	int inside;               /* the pairs of the projection lie where the warp's outputs of s' were */
	int B, D, NA, c51, ldo, seg[2 + FH_BRANCH_MAX], A[FH_BRANCH_MAX];
	float share[FH_BRANCH_MAX], over_d, over_bd; /* 1/A_d, 1/D, 1/(B D) */
};

/* Shared memory of a block, in floats. Rows are padded so that a lane's S atoms may be read past the last action's, and skewed so
 * that the samples of a warp meet different banks. */
template <int W, int S> struct room {
	enum { G = 32 / W, SKEW = W % 32, PAIRS = (8 + W * S + 4 + 7) / 16 * 16 + 8 };
	/* Floats behind a branch that its lanes read along with its last action, and do not use. */
	static __host__ __device__ int along(int NA) { return (W * S - NA + 3) / 4 * 4; }
	int row, pairs, grad, stat, weight, floats;
	__host__ __device__ room(int ldo, int D, int NA, int inside)
	{
		row = (ldo + W * S - NA - SKEW + 31) / 32 * 32 + SKEW;
		pairs = 3 * G * row;
		grad = pairs + (inside ? 0 : 2 * D * G * PAIRS);
		stat = grad + D * G * W * S;
		weight = stat + D * G * LOSS_STATS;
		floats = weight + G + NUMBERS;
	}
};

/* The three rows of each of the block's samples: s and s' online, s' target. Zeros behind each. */
template <int W, int S> __device__ __forceinline__ void bring(const struct loss_args &x, const struct room<W, S> &p, float *shared)
{
	enum { G = 32 / W, AT_ONCE = 5 };
	const float *out = (const float *)((const char *)x.out + blockIdx.z * x.out_trial);
	const int own = (threadIdx.x & 31) * 4;

#pragma unroll 1
	for (int r = threadIdx.x / 32; r < 3 * G; r += x.D + 1) {
		const float *from = out + (size_t)(r / G * x.B + min((int)blockIdx.x * G + r % G, x.B - 1)) * x.ldo;
		float *row = shared + r * p.row;
		const ptx_shared to = ptx_shared_at(row);

#pragma unroll 1
		for (int c = own; c < x.ldo; c += AT_ONCE * 128)
#pragma unroll
			for (int k = 0; k < AT_ONCE; k++)
				if (c + k * 128 < x.ldo)
					ptx_copy16_if(to + 4 * c + 512 * k, from + c + 128 * k, 1);
#pragma unroll 1
		for (int c = x.ldo + own; c < p.row; c += 128)
			*(float4 *)(row + c) = make_float4(0.f, 0.f, 0.f, 0.f);
	}
	ptx_copy_commit();
}

/* The largest weight of the batch, by one warp. Positive doubles are in the order of their bits. */
__device__ __forceinline__ double largest_weight(const struct loss_args &x, int lane)
{
	const double *top = (const double *)((const char *)x.top + blockIdx.z * x.top_trial);
	long long most = 0;

#pragma unroll 4
	for (int k = lane; k < x.tops; k += 32) {
		const long long one = __double_as_longlong(top[k]);

		most = one > most ? one : most;
	}
	const int high = ptx_warp_max((int)(most >> 32)), low = high == (int)(most >> 32) ? (int)most : 0;
	const int low_most = ptx_warp_max(low ^ INT32_MIN) ^ INT32_MIN; /* the low half has no sign */

	return __longlong_as_double((long long)high << 32 | (unsigned)low_most);
}

/* Importance weights of the block's samples, a lane each: over the largest of the batch. */
template <int W> __device__ __forceinline__ void leave_weights(const struct loss_args &x, float *weight, int lane)
{
	const int s = blockIdx.x * (32 / W) + lane;
	float *to = x.weight + (size_t)blockIdx.z * x.B + s;
	const double *raw = (const double *)((const char *)x.raw + blockIdx.z * x.raw_trial);
	const bool mine = lane < 32 / W && s < x.B;

	if (!x.raw) {
		if (mine)
			weight[lane] = *to;
		return;
	}
	const double own = mine ? raw[s] : 0.0, most = largest_weight(x, lane);
	if (mine)
		*to = weight[lane] = (float)(own / most);
}

/* Through the dueling mean: dAdv[a'] = g (1{a' = a} - 1/A) of this warp's branch, into a row of gradients; zeros behind. First as if no action
 * had been taken, several side by side where latency counts. */
template <typename T, int W, int S>
__device__ __forceinline__ void spread(const struct loss_args &x, const float (&g)[S], T *row, int branch, int a, int q)
{
	enum { U = W == 32 ? 5 : 1 };
	const int NA = x.NA, A = x.A[branch], first = x.seg[1 + branch], end = x.seg[2 + branch];
	const float share = x.share[branch];
	T *to = row + first + q, other[S];

#pragma unroll
	for (int k = 0; k < S; k++)
		other[k] = (T)(g[k] * -share);
#pragma unroll 1
	for (int b = 0; b < A; b += U)
#pragma unroll
		for (int u = 0; u < U; u++, to += NA)
#pragma unroll
			for (int k = 0; k < S; k++)
				if (q + W * k < NA && b + u < A)
					to[W * k] = other[k];
	to = row + first + a * NA + q;
#pragma unroll
	for (int k = 0; k < S; k++)
		if (q + W * k < NA)
			to[W * k] = (T)(g[k] * (1.f - share));
#pragma unroll 1
	for (int c = first + A * NA + q; c < end; c += W)
		row[c] = (T)0.f;
}

/* dV = sum_d g_d. grad: this sample's first, `stride` from branch to branch. */
template <typename T, int W, int S>
__device__ __forceinline__ void gather_value(const struct loss_args &x, const float *grad, int stride, float scale, float hidden, T *row, int q)
{
#pragma unroll
	for (int k = 0; k < S; k++) {
		float dv = 0.f;

#pragma unroll 1
		for (int b = 0; b < x.D; b++)
			dv += fmaf(scale, grad[b * stride + q + W * k], hidden);
		if (q + W * k < x.seg[1])
			row[q + W * k] = (T)(q + W * k < x.NA ? dv : 0.f);
	}
	if (W * S + q < x.seg[1])
		row[W * S + q] = (T)0.f;
}

/* What the branches of each sample say, averaged: 4 numbers a sample, a lane each. */
template <int W> __device__ __forceinline__ void leave_stats(const struct loss_args &x, const float *stat, int lane)
{
	enum { G = 32 / W };
	const int e = lane % LOSS_STATS, s = blockIdx.x * G + lane / LOSS_STATS;
	float sum = 0.f;

	if (lane >= G * LOSS_STATS || s >= x.B)
		return;
#pragma unroll 1
	for (int b = 0; b < x.D; b++)
		sum += stat[b * G * LOSS_STATS + lane];
	sum *= x.over_d;
	((float *)((char *)x.stat[e] + blockIdx.z * x.stat_trial[e]))[s] = e == 1 ? ptx_max_nan(sum, 0.f) : sum;
}

/* A branch of the warp's samples, down to the gradient of its logits before the sample's scale, which stays here and in shared memory,
 * where the sums for the statistics go too. */
template <int W, int S>
__device__ __forceinline__ void branch_loss(const struct loss_args &x, const struct room<W, S> &p, float *shared, int b, int a, float R, float discount,
                                            float hidden, bool live, size_t at, float (&grad)[S])
{
	enum { G = 32 / W };
	const int q = threadIdx.x % W, g = threadIdx.x % 32 / W, NA = x.NA, first = x.seg[1 + b];
	const float *number = shared + p.weight + G, *online = shared + g * p.row, *next = online + G * p.row, *target = next + G * p.row;
	const struct shift t = {discount, (fmaf(discount, number[V_MIN], R) - number[V_MIN]) * number[OVER_DZ]};
	float *left = shared + p.grad + (b * G + g) * W * S + q, *stat = shared + p.stat + (b * G + g) * LOSS_STATS;
	/* behind what the warp of the branch in front may still read */
	float *pairs = x.inside ? shared + (G + g) * p.row + first + room<W, S>::along(NA) : shared + p.pairs + 2 * (b * G + g) * room<W, S>::PAIRS;
	struct view<S> w;
	float m[S], mine[LOSS_STATS];

	combine<W, S>(next, first, x.A[b], NA, x.share[b], q, m);
	const int best = greedy<W, S>(next, first, m, x.A[b], NA, q);
	look<W, S>(w, online, target, first, x.A[b], NA, x.share[b], a, best, t, q);
	if (x.c51)
		cross_entropy<W, S>(w, (float2 *)pairs + 8, t, w.lse + hidden, NA, q, m, grad, mine);
	else
		squared_error<W, S>(w, number, R, discount, q, m, grad, mine);
	mine[2] = fmaf(w.q, number[DZ], number[V_MIN]);
#pragma unroll
	for (int k = 0; k < S; k++)
		left[W * k] = grad[k];
	if (q == 0)
#pragma unroll
		for (int e = 0; e < LOSS_STATS; e++)
			stat[e] = mine[e];
	if (x.proj && live) {
#pragma unroll
		for (int k = 0; k < S; k++)
			if (q + W * k < NA)
				x.proj[(at * x.D + b) * NA + q + W * k] = m[k], x.logits[(at * x.D + b) * NA + q + W * k] = w.logit[k];
	}
}

template <typename T, int W, int S> __global__ void __launch_bounds__(32 * (FH_BRANCH_MAX + 1)) k_loss(const __grid_constant__ struct loss_args x)
{
	enum { G = 32 / W };
	PTX_SHARED(float4, shared4);
	float *shared = (float *)shared4;
	const struct room<W, S> p(x.ldo, x.D, x.NA, x.inside);
	const int b = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x & 31; /* b: so that the compiler sees that a warp agrees on it */
	const int q = lane % W, g = lane / W;
	const bool branch = b < x.D; /* or the warp for weights, V, statistics */
	float *number = shared + p.weight + G, *weight = shared + p.weight;

	if (threadIdx.x == 0) {
		const struct head_support zs = head_support_of(&x.clock[blockIdx.z], x.NA);

		number[V_MIN] = zs.v_min, number[V_MAX] = zs.v_max, number[DZ] = zs.dz, number[OVER_DZ] = 1.f / zs.dz;
	}
	cuda_wait_before();
	cuda_let_next();
	bring<W, S>(x, p, shared);
	const bool live = (int)blockIdx.x * G + g < x.B;
	const size_t at = (size_t)blockIdx.z * x.B + (live ? blockIdx.x * G + g : x.B - 1);
	/* the sample's action, R and G: one load of a lane each */
	const void *from = q == 0 ? (const void *)(x.a + at * x.D + (branch ? b : 0)) : q == 1 ? x.R + at : x.G + at;
	const int own = *(const int *)from;
	ptx_copy_wait<0>();
	__syncthreads();
	const int a = __shfl_sync(0xffffffffu, own, 0, W);
	const float R = __int_as_float(__shfl_sync(0xffffffffu, own, 1, W)), discount = __int_as_float(__shfl_sync(0xffffffffu, own, 2, W));
	/* the clamps of the projection would hide a return that is not finite from the guard: 0, or NaN */
	const float hidden = 0.f * R + 0.f * discount;
	float grad[S];

	if (branch)
		branch_loss<W, S>(x, p, shared, b, a, R, discount, hidden, live, at, grad);
	else
		leave_weights<W>(x, weight, lane);
	__syncthreads();

	/* the rows of s' are not needed any more: the gradients of the outputs take their place, then leave as whole rows */
	T *row = (T *)(shared + (G + g) * p.row);
	const float scale = weight[g] * x.over_bd;
	if (branch) {
#pragma unroll
		for (int k = 0; k < S; k++)
			grad[k] = fmaf(scale, grad[k], hidden);
		spread<T, W, S>(x, grad, row, b, a, q);
	} else {
		gather_value<T, W, S>(x, shared + p.grad + g * W * S, G * W * S, scale, hidden, row, q);
		leave_stats<W>(x, shared + p.stat, lane);
	}
	__syncthreads();
	char *dout = (char *)x.dout + blockIdx.z * x.dout_trial;
#pragma unroll 1
	for (int r = b; r < G && (int)blockIdx.x * G + r < x.B; r += x.D + 1)
#pragma unroll 1
		for (int c = lane * 16; c < x.ldo * (int)sizeof(T); c += 512)
			*(float4 *)(dout + (size_t)(blockIdx.x * G + r) * x.ldo * sizeof(T) + c) = *(const float4 *)((char *)(shared + (G + r) * p.row) + c);
}

template <typename T, int W, int S> cudaError_t launch(struct cuda_exec *c, struct loss_args a)
{
	a.inside = 1;
	for (int b = 0; b < a.D; b++)
		a.inside &= a.seg[2 + b] - a.seg[1 + b] >= room<W, S>::along(a.NA) + 2 * room<W, S>::PAIRS;
	const struct room<W, S> p(a.ldo, a.D, a.NA, a.inside);
	const cudaError_t e = cuda_allow_shared(c, k_loss<T, W, S>); /* from about 250 atoms on */

	return e == cudaSuccess ? cuda_launch(c, k_loss<T, W, S>, dim3(cuda_tiles(a.B, 32 / W), 1, c->dims.P), 32 * (a.D + 1), p.floats * sizeof(float), a) : e;
}

/* 8 lanes a sample for many rows, as long as a block's shared memory is what every device gives. */
template <typename T> cudaError_t choose(struct cuda_exec *c, const struct loss_args &a)
{
	const bool many = !c->sync && cuda_wide((long)a.B * c->dims.P >= LOSS_MANY) && a.NA <= 64 && room<8, 8>(a.ldo, a.D, a.NA, 0).floats * sizeof(float) <= 48 << 10;

	if (many)
		return a.NA <= 32 ? launch<T, 8, 4>(c, a) : a.NA <= 56 ? launch<T, 8, 7>(c, a) : launch<T, 8, 8>(c, a);
	return a.NA <= 32 ? launch<T, 32, 1>(c, a) : a.NA <= 64 ? launch<T, 32, 2>(c, a) : a.NA <= 128 ? launch<T, 32, 4>(c, a) : launch<T, 32, 8>(c, a);
}

} // namespace

/* staged: weights come from T_WEIGHT, and T_LOGITS and T_PROJ are written, which only comparisons read. */
int cuda_loss(struct cuda_exec *c, int staged, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct loss_args a = {};

	a.out = cuda_at<float>(c, &c->s.out), a.out_trial = c->s.out.stride;
	a.dout = cuda_at<char>(c, &c->s.dout), a.dout_trial = c->s.dout.stride;
	if (!staged)
		a.raw = cuda_at<double>(c, &c->s.wraw);
	a.raw_trial = c->s.wraw.stride;
	a.top = cuda_at<double>(c, &c->s.wtop), a.top_trial = c->s.wtop.stride, a.tops = cuda_tiles(d->B, CUDA_WALK_SAMPLES);
	a.a = cuda_tensor<int32_t>(c, T_A);
	a.R = cuda_tensor<float>(c, T_R), a.G = cuda_tensor<float>(c, T_G), a.weight = cuda_tensor<float>(c, T_WEIGHT);
	if (staged)
		a.logits = cuda_tensor<float>(c, T_LOGITS), a.proj = cuda_tensor<float>(c, T_PROJ);
	a.stat[0] = cuda_tensor<float>(c, T_CE), a.stat[1] = cuda_tensor<float>(c, T_ERROR);
	a.stat[2] = cuda_at<float>(c, &c->s.q), a.stat[3] = cuda_at<float>(c, &c->s.edge);
	a.stat_trial[0] = a.stat_trial[1] = (size_t)d->B * 4, a.stat_trial[2] = c->s.q.stride, a.stat_trial[3] = c->s.edge.stride;
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.B = d->B, a.D = d->D, a.NA = d->NA, a.c51 = d->loss == FH_LOSS_C51, a.ldo = c->s.ldo;
	a.over_d = 1.f / d->D, a.over_bd = 1.f / ((float)d->B * d->D);
	for (int i = 0; i <= d->D; i++)
		a.seg[i] = c->s.seg[i];
	a.seg[1 + d->D] = c->s.ldo;
	for (int b = 0; b < d->D; b++)
		a.A[b] = d->A[b], a.share[b] = 1.f / d->A[b];
	CUDA_TRY(d->precision == FH_PRECISION_BF16 ? choose<__nv_bfloat16>(c, a) : choose<float>(c, a));
	return 0;
}

int cuda_dqn_loss(struct exec *x, struct fh_status *st)
{
	return cuda_loss(cuda_of(x), 1, st);
}
