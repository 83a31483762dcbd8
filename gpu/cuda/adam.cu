/* Gradient norm and guard, then the optimizer (section 6): Adam on F32 masters, target network and the BF16 copies that
 * the products read, all in one pass over the parameters. */
#include <cuda_bf16.h>
#include "gpu/cuda/norm.cuh"

namespace {

__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_norm(const double *part, size_t part_trial, int parts, const float *ce, const float *w,
                                                          int B, struct dqn_clock *clock)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];
	const int z = blockIdx.z;

	cuda_wait_before();
	const double norm = sqrt(cuda_block_sum((const double *)((const char *)part + z * part_trial), parts, shared));
	const double loss = cuda_batch_loss(ce + (size_t)z * B, w + (size_t)z * B, B, shared);
	if (threadIdx.x == 0)
		cuda_guard(&clock[z], norm, loss / B);
}

__device__ __forceinline__ void store4(__nv_bfloat16 *p, float4 v)
{
	__nv_bfloat162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
	uint2 u = {*(unsigned *)&lo, *(unsigned *)&hi};
	*(uint2 *)p = u;
}

struct adam_args {
	float *param, *target, *m, *v;
	const float *grad;
	__nv_bfloat16 *param_lp, *target_lp; /* NULL unless bf16 */
	const struct cuda_step *step;
	const double *part;
	size_t step_trial, part_trial;
	int parts;
	int64_t params;
};

/* Four parameters a thread. Every block finds the norm by itself: it needs no launch of its own. */
__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_adam(const __grid_constant__ struct adam_args x)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];
	const int z = blockIdx.z;
	const int64_t i = ((int64_t)blockIdx.x * CUDA_SUM_THREADS + threadIdx.x) * 4, at = z * x.params + i;
	const bool in = i < x.params;
	const struct cuda_step s = *(const struct cuda_step *)((const char *)x.step + z * x.step_trial);
	float4 p4 = {}, t4 = {}, m4 = {}, v4 = {}, g4 = {};

	if (in) { /* not written by the backward pass: ask for them before it is complete */
		p4 = *(const float4 *)(x.param + at), t4 = *(const float4 *)(x.target + at);
		m4 = *(const float4 *)(x.m + at), v4 = *(const float4 *)(x.v + at);
	}
	cuda_wait_before();
	if (in)
		g4 = *(const float4 *)(x.grad + at);
	const double norm = sqrt(cuda_block_sum((const double *)((const char *)x.part + z * x.part_trial), x.parts, shared));
	if (s.stuck || !isfinite(norm) || !in)
		return;
	const float scale = cuda_grad_scale(norm, s.max_grad_norm);
	float *p = &p4.x, *t = &t4.x, *m = &m4.x, *v = &v4.x;
	const float *g = &g4.x;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const float gk = g[k] * scale;
		m[k] = 0.9f * m[k] + 0.1f * gk;
		v[k] = 0.999f * v[k] + 0.001f * gk * gk;
		p[k] -= s.lr * (m[k] * s.scale1) / (sqrtf(v[k] * s.scale2) + 1e-8f) + s.decay * p[k];
		if (!s.hard)
			t[k] += s.tau * (p[k] - t[k]);
		else if (s.copy)
			t[k] = p[k];
	}
	*(float4 *)(x.param + at) = p4;
	*(float4 *)(x.target + at) = t4;
	*(float4 *)(x.m + at) = m4;
	*(float4 *)(x.v + at) = v4;
	if (x.param_lp) {
		store4(x.param_lp + at, p4);
		store4(x.target_lp + at, t4);
	}
}

} // namespace

int cuda_dqn_norm(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;

	CUDA_TRY(cuda_launch(c, k_norm, dim3(1, 1, d->P), CUDA_SUM_THREADS, 0, cuda_at<double>(c, &c->s.part), c->s.part.stride, c->s.parts,
	                     cuda_tensor<float>(c, T_CE), cuda_tensor<float>(c, T_WEIGHT), d->B, cuda_tensor<struct dqn_clock>(c, T_CLOCK)));
	return 0;
}

int cuda_dqn_adam(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const struct dqn_dims *d = &c->dims;
	const bool low = d->precision == FH_PRECISION_BF16;
	struct adam_args a = {};

	a.param = cuda_tensor<float>(c, T_PARAM), a.target = cuda_tensor<float>(c, T_TARGET);
	a.m = cuda_tensor<float>(c, T_M), a.v = cuda_tensor<float>(c, T_V), a.grad = cuda_tensor<float>(c, T_GRAD);
	a.param_lp = low ? cuda_tensor<__nv_bfloat16>(c, T_PARAM_LP) : nullptr;
	a.target_lp = low ? cuda_tensor<__nv_bfloat16>(c, T_TARGET_LP) : nullptr;
	a.step = cuda_at<struct cuda_step>(c, &c->s.step), a.step_trial = c->s.step.stride;
	a.part = cuda_at<double>(c, &c->s.part), a.part_trial = c->s.part.stride, a.parts = c->s.parts;
	a.params = d->params;
	CUDA_TRY(cuda_launch(c, k_adam, dim3((unsigned)((d->params / 4 + CUDA_SUM_THREADS - 1) / CUDA_SUM_THREADS), 1, d->P), CUDA_SUM_THREADS,
	                     0, a));
	return 0;
}
