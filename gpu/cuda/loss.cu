/* Loss and gradient of the network's outputs in one kernel (section 2): double-DQN choice, target distribution and its
 * projection, cross entropy or squared error, priority error, and the gradient through the dueling combination.
 *
 * One block a sample, one warp a branch. Every sum has a fixed order. */
#include <cuda_bf16.h>
#include "gpu/cuda/head.cuh"

namespace {

struct loss_args {
	const float *out;         /* [3B, ldo] */
	void *dout;               /* low [B, ldo] */
	size_t out_trial, dout_trial, stat_trial, raw_trial, top_trial;
	const int32_t *a;         /* [B, D] */
	const float *R, *G;       /* [B] */
	const double *raw, *top;  /* importance weights before normalisation [B], their maxima by block [tops]; NULL: weight has them */
	int tops;
	float *weight, *logits, *proj, *error, *ce, *q, *edge;
	const struct dqn_clock *clock;
	int ldo, seg[1 + FH_BRANCH_MAX];
	struct dqn_dims d;
};

/* m from p (this lane's atoms each): atom j moves to b_j = (clamp(R + G z_j) - v_min)/dz; the part b_j - floor goes up, the
 * rest stays, and all of it when b_j is whole. Through shared memory, gathered per atom in the order of j: no mass is
 * lost, and the order is fixed. */
template <int L>
__device__ __forceinline__ void project(const float (&p)[L], float4 *move, float R, float G, struct head_support s, int atoms, int lane, float (&m)[L])
{
#pragma unroll
	for (int k = 0; k < L; k++) {
		const float z = __fadd_rn(s.v_min, __fmul_rn((float)(lane + 32 * k), s.dz));
		const float tz = fminf(fmaxf(__fadd_rn(R, __fmul_rn(G, z)), s.v_min), s.v_max);
		const float b = fminf(fmaxf(__fdiv_rn(__fsub_rn(tz, s.v_min), s.dz), 0.f), (float)(atoms - 1)), lo = floorf(b), up = b - lo;

		move[lane + 32 * k] = make_float4(lo, p[k] * (1.f - up), p[k] * up, 0.f);
		m[k] = 0.f;
	}
	__syncwarp();
#pragma unroll 4
	for (int j = 0; j < atoms; j++) {
		const float4 b = move[j];
#pragma unroll
		for (int k = 0; k < L; k++) {
			const float i = (float)(lane + 32 * k);

			m[k] += b.x == i ? b.y : b.x + 1.f == i ? b.z : 0.f;
		}
	}
}

/* Importance weight of sample s: over the largest of the batch, which every warp finds alike. */
__device__ __forceinline__ float normalised(const struct loss_args &x, int s, int lane)
{
	const double *top = (const double *)((const char *)x.top + blockIdx.z * x.top_trial);
	double most = 0.0;

	for (int k = lane; k < x.tops; k += 32)
		most = fmax(most, top[k]);
#pragma unroll
	for (int o = 16; o; o >>= 1)
		most = fmax(most, __shfl_xor_sync(0xffffffffu, most, o));
	return (float)(((const double *)((const char *)x.raw + blockIdx.z * x.raw_trial))[s] / most);
}

template <typename T, int AM, int L> __global__ void k_loss(const __grid_constant__ struct loss_args x)
{
	PTX_SHARED(float4, shared);
	const int s = blockIdx.x, z = blockIdx.z, b = threadIdx.x / 32, lane = threadIdx.x & 31;
	const struct dqn_dims &d = x.d;
	const int NA = d.NA, B = d.B, padded = 32 * L, A = d.A[b];
	float4 *move = shared + b * padded;
	float *grad = (float *)(shared + d.D * padded), *stat = grad + d.D * padded;
	const struct head_support zs = head_support_of(&x.clock[z], NA);
	const int first = x.seg[1 + b];

	cuda_wait_before();
	cuda_let_next();
	const float *out = (const float *)((const char *)x.out + z * x.out_trial);
	const float *on = out + (size_t)s * x.ldo, *on2 = out + (size_t)(B + s) * x.ldo, *tg2 = out + (size_t)(2 * B + s) * x.ldo;
	const int a = x.a[((size_t)z * B + s) * d.D + b];
	const float R = x.R[(size_t)z * B + s], G = x.G[(size_t)z * B + s];
	struct head_row<AM, L> next, target, row;
	head_load(next, on2, on2 + first, A, NA, lane);
	head_load(target, tg2, tg2 + first, A, NA, lane);
	head_load(row, on, on + first, A, NA, lane);
	const float w = x.raw ? normalised(x, s, lane) : x.weight[(size_t)z * B + s];
	head_combine(next, A);
	head_combine(target, A);
	head_combine(row, A);

	/* a* by the online network at s' */
	const int best = head_greedy(next, A, NA, zs, lane);

	/* softmax of the target's view of a*, and of what the online network says of (s, a), side by side */
	float logit[L], v[L], u[L], top[2] = {-INFINITY, -INFINITY};
	head_logits(target, best, NA, lane, u);
	head_logits(row, a, NA, lane, logit);
#pragma unroll
	for (int k = 0; k < L; k++)
		top[0] = fmaxf(top[0], u[k]), top[1] = fmaxf(top[1], logit[k]);
	warp_maxima(top);
	float sum[4] = {};
#pragma unroll
	for (int k = 0; k < L; k++) {
		const float value = zs.v_min + (lane + 32 * k) * zs.dz;

		u[k] = head_exp(u[k] - top[0]), v[k] = head_exp(logit[k] - top[1]); /* NaN logits stay NaN, -inf gives 0 */
		sum[0] += u[k], sum[1] += v[k];
		sum[2] += u[k] * value, sum[3] += v[k] * value;
	}
	warp_sums(sum);
	const float over_u = 1.f / sum[0], over_v = 1.f / sum[1], q = sum[3] * over_v;
	/* the clamps of the projection would hide a return that is not finite from the guard: 0, or NaN */
	const float hidden = 0.f * R + 0.f * G;
	const float lse = top[1] + logf(sum[1]) + hidden, scale = w / (B * d.D);
	const size_t at = (((size_t)z * B + s) * d.D + b) * NA;
#pragma unroll
	for (int k = 0; k < L; k++)
		u[k] *= over_u, v[k] *= over_v;
	if (d.loss == FH_LOSS_C51) {
		float m[L], mine[3] = {}; /* ce, entropy, mass on the edge atoms */

		project<L>(u, move, R, G, zs, NA, lane, m);
#pragma unroll
		for (int k = 0; k < L; k++) {
			const int i = lane + 32 * k;
			if (i >= NA)
				continue;
			mine[0] -= m[k] * (logit[k] - lse);
			mine[1] -= m[k] > 0.f ? m[k] * logf(m[k]) : 0.f;
			mine[2] += i == 0 || i == NA - 1 ? m[k] : 0.f;
			grad[b * padded + i] = scale * (v[k] - m[k]) + hidden;
			if (x.proj)
				x.proj[at + i] = m[k], x.logits[at + i] = logit[k];
		}
		warp_sums(mine);
		if (lane == 0)
			stat[b * 4] = mine[0], stat[b * 4 + 1] = mine[0] - mine[1], stat[b * 4 + 3] = mine[2];
	} else {
		const float y = R + G * (sum[2] * over_u), delta = q - y;

#pragma unroll
		for (int k = 0; k < L; k++) {
			const int i = lane + 32 * k;
			if (i >= NA)
				continue;
			grad[b * padded + i] = 2.f * scale * delta * v[k] * (zs.v_min + i * zs.dz - q);
			if (x.proj)
				x.proj[at + i] = i == 0 ? y : 0.f, x.logits[at + i] = logit[k];
		}
		if (lane == 0)
			stat[b * 4] = delta * delta, stat[b * 4 + 1] = fabsf(delta), stat[b * 4 + 3] = y < zs.v_min || y > zs.v_max ? 1.f : 0.f;
	}
	if (lane == 0)
		stat[b * 4 + 2] = q;
	__syncthreads();

	/* through the dueling mean: dV = sum_d g_d, dAdv_d[a'] = g_d (1{a' = a_d} - 1/A_d) */
	T *dout = (T *)((char *)x.dout + z * x.dout_trial) + (size_t)s * x.ldo;
	for (int i = threadIdx.x; i < NA; i += blockDim.x) {
		float dv = 0.f;
		for (int k = 0; k < d.D; k++)
			dv += grad[k * padded + i];
		dout[i] = (T)dv;
	}
	for (int k = 0; k < A; k++)
		for (int i = lane; i < NA; i += 32)
			dout[x.seg[1 + b] + k * NA + i] = (T)(grad[b * padded + i] * ((k == a ? 1.f : 0.f) - 1.f / A));
	if (threadIdx.x == 0) {
		float r[4] = {0.f, 0.f, 0.f, 0.f};
		for (int k = 0; k < d.D; k++)
			for (int e = 0; e < 4; e++)
				r[e] += stat[k * 4 + e];
		if (x.raw)
			x.weight[(size_t)z * B + s] = w;
		x.ce[(size_t)z * B + s] = r[0] / d.D;
		x.error[(size_t)z * B + s] = d.loss == FH_LOSS_C51 ? (r[1] == r[1] ? fmaxf(r[1] / d.D, 0.f) : r[1]) : r[1] / d.D;
		((float *)((char *)x.q + z * x.stat_trial))[s] = r[2] / d.D;
		((float *)((char *)x.edge + z * x.stat_trial))[s] = r[3] / d.D;
	}
}

template <typename T, int A, int L> cudaError_t launch(struct cuda_exec *c, const struct loss_args &a)
{
	const struct dqn_dims *d = &c->dims;
	const size_t shared = (size_t)d->D * 32 * L * (sizeof(float4) + sizeof(float)) + d->D * 4 * sizeof(float);

	return cuda_launch(c, k_loss<T, A, L>, dim3(d->B, 1, d->P), 32 * d->D, shared, a);
}

} // namespace

/* staged: weights come from T_WEIGHT, and T_LOGITS and T_PROJ are written, which only comparisons read. */
int cuda_loss(struct cuda_exec *c, int staged, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct loss_args a = {};

	a.out = cuda_at<float>(c, &c->s.out), a.out_trial = c->s.out.stride;
	a.dout = cuda_at<char>(c, &c->s.dout), a.dout_trial = c->s.dout.stride;
	a.q = cuda_at<float>(c, &c->s.q), a.edge = cuda_at<float>(c, &c->s.edge), a.stat_trial = c->s.q.stride;
	if (!staged)
		a.raw = cuda_at<double>(c, &c->s.wraw);
	a.raw_trial = c->s.wraw.stride;
	a.top = cuda_at<double>(c, &c->s.wtop), a.top_trial = c->s.wtop.stride, a.tops = cuda_tiles(d->B, CUDA_WALK_SAMPLES);
	a.a = cuda_tensor<int32_t>(c, T_A);
	a.R = cuda_tensor<float>(c, T_R), a.G = cuda_tensor<float>(c, T_G), a.weight = cuda_tensor<float>(c, T_WEIGHT);
	if (staged)
		a.logits = cuda_tensor<float>(c, T_LOGITS), a.proj = cuda_tensor<float>(c, T_PROJ);
	a.error = cuda_tensor<float>(c, T_ERROR), a.ce = cuda_tensor<float>(c, T_CE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.ldo = c->s.ldo;
	for (int i = 0; i <= d->D; i++)
		a.seg[i] = c->s.seg[i];
	a.d = *d;
#define LOSS_BF16(A, L) launch<__nv_bfloat16, A, L>(c, a)
#define LOSS_F32(A, L) launch<float, A, L>(c, a)
	const int actions = head_actions(d);
	CUDA_TRY(d->precision == FH_PRECISION_BF16 ? HEAD_DISPATCH(actions, d->NA, LOSS_BF16) : HEAD_DISPATCH(actions, d->NA, LOSS_F32));
	return 0;
}

int cuda_dqn_loss(struct exec *x, struct fh_status *st)
{
	return cuda_loss(cuda_of(x), 1, st);
}
