/* Gradient norm and guard, then the optimizer (section 6): Adam on F32 masters, target network and the BF16 copies that
 * the products read, all in one pass over the parameters. In the fused step one block a trial ends the step beside it. */
#include <cuda_bf16.h>
#include "gpu/cuda/count.cuh"
#include "gpu/cuda/ptx.cuh"
#include "gpu/sumtree.h"

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

/* A block takes so many parameters at a time; so many blocks a multiprocessor are enough: each has 20 KB of loads under way, and 4 TB/s
 * want 15 KB a multiprocessor. */
enum { ADAM_CHUNK = 4 * CUDA_SUM_THREADS, ADAM_BLOCKS = 4 };

struct adam_args {
	float *param, *target, *m, *v;
	const float *grad;
	__nv_bfloat16 *param_lp, *target_lp; /* NULL unless bf16 */
	const struct cuda_step *step;
	const struct dqn_clock *clock;
	const double *part;
	size_t step_trial, part_trial;
	int parts;
	int64_t params;
	int ends;                /* the first block of a trial ends the step, the others are Adam's */
	struct cuda_end_args end;
};

/* Four parameters of each buffer. STREAM: they will not be there any more when the next step wants them, so not by way of L1. All buffers alike: where
 * the gradient was to stay in L2 and the others to go first a pass took 370 us instead of 361.
 * Vectors are taken apart by name and put together where they are stored: elsewise the compiler stores numbers one by one, a quarter of
 * each sector at a time. */
struct four { float p[4], t[4], m[4], v[4], g[4]; };
template <bool STREAM> __device__ __forceinline__ void load4(float (&to)[4], const float *from)
{
	const float4 v = STREAM ? __ldcg((const float4 *)from) : *(const float4 *)from;

	to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
template <bool STREAM> __device__ __forceinline__ void store4(float *to, const float (&v)[4])
{
	if (STREAM)
		__stcg((float4 *)to, make_float4(v[0], v[1], v[2], v[3]));
	else
		__stwb((float4 *)to, make_float4(v[0], v[1], v[2], v[3]));
}
__device__ __forceinline__ void narrow4(__nv_bfloat16 *to, const float (&v)[4])
{
	const __nv_bfloat162 lo = __floats2bfloat162_rn(v[0], v[1]), hi = __floats2bfloat162_rn(v[2], v[3]);

	__stwb((uint2 *)to, make_uint2(*(const unsigned *)&lo, *(const unsigned *)&hi));
}

template <bool STREAM> __device__ __forceinline__ void load_own(struct four &x, const struct adam_args &a, int64_t at)
{
	load4<STREAM>(x.p, a.param + at), load4<STREAM>(x.t, a.target + at);
	load4<STREAM>(x.m, a.m + at), load4<STREAM>(x.v, a.v + at);
}

/* lr mean / (sqrtf(square) + 1e-8f) of four, rounded as by IEEE. nvcc makes a branch of every root and every division, one behind the other, and calls
 * a function for zeros, which dead units have everywhere; here the four go side by side, zeros included, as long as nothing is near the ends
 * of the range: root and quotient to the last bit but one, the remainder of either exactly, and what it adds. */
__device__ __forceinline__ bool usual(float mean, float square)
{
	const unsigned m = __float_as_uint(fabsf(mean)), s = __float_as_uint(square); /* 2^-90 to 2^60; 2^-90 to 2^40 */

	return (mean == 0.f || m - 0x12800000u < 0x5d800000u - 0x12800000u) && (square == 0.f || s - 0x12800000u < 0x53800000u - 0x12800000u);
}
__device__ __forceinline__ void divide(float (&step)[4], const float (&mean)[4], const float (&square)[4])
{
	if (usual(mean[0], square[0]) && usual(mean[1], square[1]) && usual(mean[2], square[2]) && usual(mean[3], square[3])) {
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float over = ptx_reciprocal_root(square[k]), near = __fmul_rn(square[k], over);
			const float root = square[k] == 0.f ? 0.f : fmaf(fmaf(-near, near, square[k]), __fmul_rn(over, 0.5f), near), by = root + 1e-8f;
			const float first = ptx_reciprocal(by), inverse = fmaf(first, fmaf(-by, first, 1.f), first), quotient = __fmul_rn(mean[k], inverse);

			step[k] = mean[k] == 0.f ? mean[k] : fmaf(inverse, fmaf(-by, quotient, mean[k]), quotient);
		}
		return;
	}
#pragma unroll
	for (int k = 0; k < 4; k++)
		step[k] = mean[k] / (sqrtf(square[k]) + 1e-8f);
}

/* What fuses is said: both kernels below, and whatever comes, must have the same bits. */
__device__ __forceinline__ void update(struct four &x, const struct cuda_step &s, float scale)
{
	float mean[4], square[4], step[4];

#pragma unroll
	for (int k = 0; k < 4; k++) {
		const float g = __fmul_rn(x.g[k], scale);

		x.m[k] = fmaf(x.m[k], 0.9f, __fmul_rn(g, 0.1f));
		x.v[k] = fmaf(g, __fmul_rn(g, 0.001f), __fmul_rn(x.v[k], 0.999f));
		mean[k] = __fmul_rn(s.lr, __fmul_rn(x.m[k], s.scale1));
		square[k] = __fmul_rn(x.v[k], s.scale2);
	}
	divide(step, mean, square);
#pragma unroll
	for (int k = 0; k < 4; k++) {
		x.p[k] = x.p[k] - fmaf(s.decay, x.p[k], step[k]);
		if (!s.hard)
			x.t[k] = fmaf(s.tau, x.p[k] - x.t[k], x.t[k]);
		else if (s.copy)
			x.t[k] = x.p[k];
	}
}

template <bool STREAM> __device__ __forceinline__ void store_all(const struct four &x, const struct adam_args &a, int64_t at)
{
	store4<STREAM>(a.param + at, x.p), store4<STREAM>(a.target + at, x.t);
	store4<STREAM>(a.m + at, x.m), store4<STREAM>(a.v + at, x.v);
	if (a.param_lp) {
		narrow4(a.param_lp + at, x.p);
		narrow4(a.target_lp + at, x.t);
	}
}

/* Each block goes through every so manieth thousand of a trial's parameters, four a thread, and finds the norm by itself before: it
 * needs no launch of its own, and nobody waits for another block. */
__global__ void __launch_bounds__(CUDA_SUM_THREADS, ADAM_BLOCKS) k_adam(const __grid_constant__ struct adam_args x)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];

	if (x.ends && blockIdx.x == 0) {
		cuda_wait_before();
		cuda_let_next();
		cuda_end_step(x.end, shared);
		return;
	}
	const int z = blockIdx.z, block = blockIdx.x - x.ends, blocks = gridDim.x - x.ends;
	const int64_t end = (z + 1) * x.params;
	int64_t at = z * x.params + ((int64_t)block * CUDA_SUM_THREADS + threadIdx.x) * 4;
	const struct cuda_step s = *(const struct cuda_step *)((const char *)x.step + z * x.step_trial);
	struct four now = {};

	if (at < end) /* not written by the backward pass: ask for them before it is complete */
		load_own<false>(now, x, at);
	cuda_wait_before();
	cuda_let_next();
	if (at < end)
		load4<false>(now.g, x.grad + at);
	const float scale = cuda_block_scale((const double *)((const char *)x.part + z * x.part_trial), x.parts, s.max_grad_norm, shared);
	if (s.stuck || isnan(scale))
		return;
#pragma unroll 1
	while (at < end) {
		update(now, s, scale);
		store_all<false>(now, x, at);
		at += (int64_t)blocks * ADAM_CHUNK;
		if (at < end) {
			load_own<false>(now, x, at);
			load4<false>(now.g, x.grad + at);
		}
	}
}

/* More parameters than L2 holds: the end of the step first, a block a trial, which leaves the scale in the clock; then a thousand
 * parameters a block. Blocks that come and go reach what copies reach (4.1 TB/s of an H200), those that go through many thousands each 3.5. */
__global__ void __launch_bounds__(CUDA_SUM_THREADS) k_end(const __grid_constant__ struct cuda_end_args x)
{
	__shared__ double shared[CUDA_SUM_THREADS / 32];

	cuda_wait_before();
	cuda_let_next();
	cuda_end_step(x, shared);
}
__global__ void __launch_bounds__(CUDA_SUM_THREADS, ADAM_BLOCKS) k_adam_many(const __grid_constant__ struct adam_args x)
{
	const int z = blockIdx.z;
	const int64_t at = z * x.params + ((int64_t)blockIdx.x * CUDA_SUM_THREADS + threadIdx.x) * 4;
	const bool live = at < (z + 1) * x.params;
	const struct cuda_step s = *(const struct cuda_step *)((const char *)x.step + z * x.step_trial);
	struct four now = {};

	if (live) /* all complete: k_end lets this begin when the gradient is */
		load_own<true>(now, x, at), load4<true>(now.g, x.grad + at);
	cuda_wait_before();
	const struct dqn_clock *c = &x.clock[z];
	if (!live || c->skip)
		return;
	update(now, s, c->grad_scale);
	store_all<true>(now, x, at);
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

static int adam_chunks(const struct cuda_exec *c) { return (int)((c->dims.params + ADAM_CHUNK - 1) / ADAM_CHUNK); }

/* Blocks of a trial: all that the device holds at once, if there are so many, and each as many rounds. More trials than that: 16 rounds, so
 * that those who come late do not leave the device half empty. */
static int adam_blocks(const struct cuda_exec *c)
{
	const int chunks = adam_chunks(c), room = ADAM_BLOCKS * c->multiprocessors / c->dims.P;

	return cuda_tiles(chunks, room ? cuda_tiles(chunks, room) : 16);
}

static struct adam_args adam_args_of(struct cuda_exec *c)
{
	const bool low = c->dims.precision == FH_PRECISION_BF16;
	struct adam_args a = {};

	a.param = cuda_tensor<float>(c, T_PARAM), a.target = cuda_tensor<float>(c, T_TARGET);
	a.m = cuda_tensor<float>(c, T_M), a.v = cuda_tensor<float>(c, T_V), a.grad = cuda_tensor<float>(c, T_GRAD);
	a.param_lp = low ? cuda_tensor<__nv_bfloat16>(c, T_PARAM_LP) : nullptr;
	a.target_lp = low ? cuda_tensor<__nv_bfloat16>(c, T_TARGET_LP) : nullptr;
	a.step = cuda_at<struct cuda_step>(c, &c->s.step), a.step_trial = c->s.step.stride;
	a.clock = cuda_tensor<struct dqn_clock>(c, T_CLOCK);
	a.part = cuda_at<double>(c, &c->s.part), a.part_trial = c->s.part.stride, a.parts = c->s.parts;
	a.params = c->dims.params;
	a.end = cuda_end_args_of(c);
	return a;
}

int cuda_adam(struct cuda_exec *c, int ends, struct fh_status *st)
{
	const struct dqn_dims *d = &c->dims;
	struct adam_args a = adam_args_of(c);
	int cache = 0;

	CUDA_TRY(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, c->x.backend->device));
	/* parameters, target, moments, gradient and two copies of half the size */
	if (ends && cuda_wide(d->P * d->params * 24 > cache)) {
		CUDA_TRY(cuda_launch(c, k_end, dim3(1, 1, d->P), CUDA_SUM_THREADS, 0, a.end));
		CUDA_TRY(cuda_launch(c, k_adam_many, dim3(adam_chunks(c), 1, d->P), CUDA_SUM_THREADS, 0, a));
		return 0;
	}
	a.ends = ends;
	CUDA_TRY(cuda_launch(c, k_adam, dim3(adam_blocks(c) + ends, 1, d->P), CUDA_SUM_THREADS, 0, a));
	return 0;
}

int cuda_dqn_adam(struct exec *x, struct fh_status *st)
{
	return cuda_adam(cuda_of(x), 0, st);
}
