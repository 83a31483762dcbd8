/* Gradient norm and guard, then the optimizer (section 6): Adam on F32 masters, target network and the BF16 copies that
 * the products read, all in one pass over the parameters. */
#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"

namespace {

enum { NORM_THREADS = 256, ADAM_THREADS = 256 };

/* Sum of x[0..n) in a fixed order, the same in every block of NORM_THREADS that asks; all threads get it. */
__device__ double block_sum(const double *x, int n, double *shared)
{
	double s = 0.0;

	for (int i = threadIdx.x; i < n; i += NORM_THREADS)
		s += x[i];
#pragma unroll
	for (int o = 16; o; o >>= 1)
		s += __shfl_xor_sync(0xffffffffu, s, o);
	if ((threadIdx.x & 31) == 0)
		shared[threadIdx.x / 32] = s;
	__syncthreads();
	s = 0.0;
	for (int k = 0; k < NORM_THREADS / 32; k++)
		s += shared[k];
	__syncthreads();
	return s;
}

/* Norm, scale, the decision to skip, and the loss of the batch. One block a trial. */
__global__ void __launch_bounds__(NORM_THREADS) k_norm(const double *part, size_t part_trial, int parts, const float *ce, const float *w,
                                                      int B, struct dqn_clock *clock)
{
	__shared__ double shared[NORM_THREADS / 32], loss[NORM_THREADS];
	struct dqn_clock *c = &clock[blockIdx.z];

	cuda_wait_before();
	ce += (size_t)blockIdx.z * B, w += (size_t)blockIdx.z * B;
	double s = 0.0;
	for (int i = threadIdx.x; i < B; i += NORM_THREADS)
		s += (double)w[i] * ce[i];
	loss[threadIdx.x] = s;
	__syncthreads();
	for (int o = NORM_THREADS / 2; o; o >>= 1) {
		if (threadIdx.x < o)
			loss[threadIdx.x] += loss[threadIdx.x + o];
		__syncthreads();
	}
	const double norm = sqrt(block_sum((const double *)((const char *)part + blockIdx.z * part_trial), parts, shared));
	if (threadIdx.x == 0) {
		c->loss = loss[0] / B;
		c->grad_norm = norm;
		c->skip = !isfinite(norm) || c->skipped_run >= DQN_SKIP_LIMIT;
		c->grad_scale = norm > c->max_grad_norm ? (float)(c->max_grad_norm / norm) : 1.f;
	}
	cuda_let_next();
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
	const struct dqn_clock *clock;
	int64_t params;
};

__global__ void k_adam(const __grid_constant__ struct adam_args x)
{
	const struct dqn_clock *c = &x.clock[blockIdx.z];
	if (c->skip)
		return;
	const int64_t i = (int64_t)blockIdx.x * ADAM_THREADS + threadIdx.x, at = blockIdx.z * x.params + i * 4;
	if (i * 4 >= x.params)
		return;
	const float scale = c->grad_scale, lr = (float)c->lr, decay = (float)(c->lr * c->weight_decay), tau = (float)c->tau;
	const float c1 = (float)(1.0 / c->bias1), c2 = (float)(1.0 / c->bias2);
	const bool hard = c->target_period > 0, copy = hard && (c->applied + 1) % c->target_period == 0;
	float4 p4 = *(float4 *)(x.param + at), t4 = *(float4 *)(x.target + at), m4 = *(float4 *)(x.m + at), v4 = *(float4 *)(x.v + at);
	const float4 g4 = *(const float4 *)(x.grad + at);
	float *p = &p4.x, *t = &t4.x, *m = &m4.x, *v = &v4.x;
	const float *g = &g4.x;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const float gk = g[k] * scale;
		m[k] = 0.9f * m[k] + 0.1f * gk;
		v[k] = 0.999f * v[k] + 0.001f * gk * gk;
		p[k] -= lr * (m[k] * c1) / (sqrtf(v[k] * c2) + 1e-8f) + decay * p[k];
		if (!hard)
			t[k] += tau * (p[k] - t[k]);
		else if (copy)
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

	CUDA_TRY(cuda_launch(c, k_norm, dim3(1, 1, d->P), NORM_THREADS, 0, cuda_at<double>(c, &c->s.part), c->s.part.stride, c->s.parts,
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
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.params = d->params;
	k_adam<<<dim3((unsigned)((d->params / 4 + ADAM_THREADS - 1) / ADAM_THREADS), 1, d->P), ADAM_THREADS, 0, c->stream>>>(a);
	CUDA_LAUNCHED("adam");
	return 0;
}
