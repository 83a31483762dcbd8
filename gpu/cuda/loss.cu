/* Loss and gradient of the network's outputs in one kernel (section 2): double-DQN choice, target distribution and its
 * projection, cross entropy or squared error, priority error, and the gradient through the dueling combination.
 *
 * One block a sample, one warp a branch. Every sum has a fixed order. */
#include <cuda_bf16.h>
#include "gpu/cuda/head.cuh"

namespace {

struct loss_args {
	const float *out;         /* [3B, outs] */
	void *dout;               /* low [B, ldo] */
	size_t out_trial, dout_trial, stat_trial;
	const int32_t *a;         /* [B, D] */
	const float *R, *G, *w;   /* [B] */
	float *logits, *proj, *error, *ce, *q, *edge;
	const struct dqn_clock *clock;
	int ldo, seg[1 + FH_BRANCH_MAX];
	struct dqn_dims d;
};

/* m (shared, [NA]) from p (shared, [NA]): atom j moves to b_j = (clamp(R + G z_j) - v_min)/dz; the part b_j - floor goes
 * up, the rest stays, and all of it when b_j is whole. Gathered per atom in the order of j: no mass is lost. */
__device__ void project(const float *p, float *m, float *b, float R, float G, struct head_support s, int atoms, int lane)
{
	for (int j = lane; j < atoms; j += 32) {
		float tz = fminf(fmaxf(__fadd_rn(R, __fmul_rn(G, __fadd_rn(s.v_min, __fmul_rn((float)j, s.dz)))), s.v_min), s.v_max);
		b[j] = fminf(fmaxf(__fdiv_rn(__fsub_rn(tz, s.v_min), s.dz), 0.f), (float)(atoms - 1));
	}
	__syncwarp();
	for (int i = lane; i < atoms; i += 32) {
		float sum = 0.f;
		for (int j = 0; j < atoms; j++) {
			float lo = floorf(b[j]), up = b[j] - lo;
			if ((int)lo == i)
				sum += p[j] * (1.f - up);
			if (min((int)lo + 1, atoms - 1) == i && up > 0.f)
				sum += p[j] * up;
		}
		m[i] = sum;
	}
	__syncwarp();
}

template <typename T> __global__ void k_loss(const __grid_constant__ struct loss_args x)
{
	extern __shared__ float shared[];
	const int s = blockIdx.x, z = blockIdx.z, b = threadIdx.x / 32, lane = threadIdx.x & 31;
	const struct dqn_dims &d = x.d;
	const int NA = d.NA, B = d.B;
	float *grad = shared, *p = grad + d.D * NA + b * 3 * NA, *m = p + NA, *pos = m + NA, *stat = shared + d.D * 4 * NA;
	const float *out = (const float *)((const char *)x.out + z * x.out_trial);
	const struct head_support zs = head_support_of(&x.clock[z], NA);
	int first = NA;
	for (int k = 0; k < b; k++)
		first += d.A[k] * NA;
	const float *on = out + (size_t)s * d.outs, *on2 = out + (size_t)(B + s) * d.outs, *tg2 = out + (size_t)(2 * B + s) * d.outs;
	const int A = d.A[b], a = x.a[((size_t)z * B + s) * d.D + b];
	const float R = x.R[(size_t)z * B + s], G = x.G[(size_t)z * B + s], w = x.w[(size_t)z * B + s];
	float v[HEAD_LANE_ATOMS], top;

	/* a* by the online network at s', p* by the target's */
	int best = 0;
	float best_q = 0.f;
	for (int k = 0; k < A; k++) {
		float q = head_q(on2, on2 + first, A, k, NA, zs, lane);
		if (k == 0 || q > best_q)
			best = k, best_q = q;
	}
	head_logits(tg2, tg2 + first, A, best, NA, lane, v);
	float sum = head_exp(v, &top), q_target = 0.f, edge = 0.f;
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++) {
		int i = lane + 32 * k;
		if (i < NA)
			p[i] = v[k] / sum;
		q_target += v[k] / sum * (zs.v_min + i * zs.dz);
	}
	__syncwarp();

	/* what the online network says of (s, a) */
	float logit[HEAD_LANE_ATOMS];
	float *taken = x.logits + (((size_t)z * B + s) * d.D + b) * NA;
	head_logits(on, on + first, A, a, NA, lane, logit);
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++) {
		v[k] = logit[k];
		if (lane + 32 * k < NA)
			taken[lane + 32 * k] = v[k];
	}
	sum = head_exp(v, &top);
	const float lse = top + logf(sum), scale = w / (B * d.D);
	float q = 0.f, ce = 0.f, entropy = 0.f;
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++)
		q += v[k] / sum * (zs.v_min + (lane + 32 * k) * zs.dz);
	q = warp_sum(q);
	float *proj = x.proj + (((size_t)z * B + s) * d.D + b) * NA;
	if (d.loss == FH_LOSS_C51) {
		project(p, m, pos, R, G, zs, NA, lane);
#pragma unroll
		for (int k = 0; k < HEAD_LANE_ATOMS; k++) {
			int i = lane + 32 * k;
			if (i >= NA)
				continue;
			ce -= m[i] * (logit[k] - lse);
			entropy -= m[i] > 0.f ? m[i] * logf(m[i]) : 0.f;
			grad[b * NA + i] = scale * (v[k] / sum - m[i]);
			proj[i] = m[i];
		}
		ce = warp_sum(ce), entropy = warp_sum(entropy);
		edge = m[0] + m[NA - 1];
		if (lane == 0)
			stat[b * 4] = ce, stat[b * 4 + 1] = ce - entropy;
	} else {
		const float y = R + G * warp_sum(q_target), delta = q - y;
#pragma unroll
		for (int k = 0; k < HEAD_LANE_ATOMS; k++) {
			int i = lane + 32 * k;
			if (i >= NA)
				continue;
			grad[b * NA + i] = 2.f * scale * delta * (v[k] / sum) * (zs.v_min + i * zs.dz - q);
			proj[i] = i == 0 ? y : 0.f;
		}
		if (lane == 0)
			stat[b * 4] = delta * delta, stat[b * 4 + 1] = fabsf(delta);
	}
	if (lane == 0)
		stat[b * 4 + 2] = q, stat[b * 4 + 3] = edge;
	__syncthreads();

	/* through the dueling mean: dV = sum_d g_d, dAdv_d[a'] = g_d (1{a' = a_d} - 1/A_d) */
	T *dout = (T *)((char *)x.dout + z * x.dout_trial) + (size_t)s * x.ldo;
	for (int i = threadIdx.x; i < NA; i += blockDim.x) {
		float dv = 0.f;
		for (int k = 0; k < d.D; k++)
			dv += grad[k * NA + i];
		dout[i] = (T)dv;
	}
	for (int k = 0; k < A; k++)
		for (int i = lane; i < NA; i += 32)
			dout[x.seg[1 + b] + k * NA + i] = (T)(grad[b * NA + i] * ((k == a ? 1.f : 0.f) - 1.f / A));
	if (threadIdx.x == 0) {
		float r[4] = {0.f, 0.f, 0.f, 0.f};
		for (int k = 0; k < d.D; k++)
			for (int e = 0; e < 4; e++)
				r[e] += stat[k * 4 + e];
		x.ce[(size_t)z * B + s] = r[0] / d.D;
		x.error[(size_t)z * B + s] = d.loss == FH_LOSS_C51 ? (r[1] == r[1] ? fmaxf(r[1] / d.D, 0.f) : r[1]) : r[1] / d.D;
		((float *)((char *)x.q + z * x.stat_trial))[s] = r[2] / d.D;
		((float *)((char *)x.edge + z * x.stat_trial))[s] = r[3] / d.D;
	}
}

} // namespace

int cuda_dqn_loss(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;
	struct loss_args a = {};
	const size_t shared = ((size_t)d->D * 4 * d->NA + d->D * 4) * sizeof(float);

	a.out = cuda_at<float>(c, &c->s.out), a.out_trial = c->s.out.stride;
	a.dout = cuda_at<char>(c, &c->s.dout), a.dout_trial = c->s.dout.stride;
	a.q = cuda_at<float>(c, &c->s.q), a.edge = cuda_at<float>(c, &c->s.edge), a.stat_trial = c->s.q.stride;
	a.a = cuda_tensor<int32_t>(c, T_A);
	a.R = cuda_tensor<float>(c, T_R), a.G = cuda_tensor<float>(c, T_G), a.w = cuda_tensor<float>(c, T_WEIGHT);
	a.logits = cuda_tensor<float>(c, T_LOGITS), a.proj = cuda_tensor<float>(c, T_PROJ);
	a.error = cuda_tensor<float>(c, T_ERROR), a.ce = cuda_tensor<float>(c, T_CE);
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.ldo = c->s.ldo;
	for (int i = 0; i <= d->D; i++)
		a.seg[i] = c->s.seg[i];
	a.d = *d;
	if (d->precision == FH_PRECISION_BF16)
		k_loss<__nv_bfloat16><<<dim3(d->B, 1, d->P), 32 * d->D, shared, c->stream>>>(a);
	else
		k_loss<float><<<dim3(d->B, 1, d->P), 32 * d->D, shared, c->stream>>>(a);
	CUDA_LAUNCHED("loss");
	return 0;
}
