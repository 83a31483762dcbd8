/* Dueling combination, softmax and Q of one action by one warp (section 1). Lane l owns atoms l, l + 32, …
 *
 * Sums over atoms go through a butterfly of fixed shape, so every lane ends with the same bits, run after run. */
#ifndef FH_GPU_CUDA_HEAD_CUH
#define FH_GPU_CUDA_HEAD_CUH

#include "gpu/cuda/exec.h"

#define HEAD_ATOMS_MAX 256
#define HEAD_LANE_ATOMS (HEAD_ATOMS_MAX / 32)

struct head_support { float v_min, v_max, dz; }; /* z_i = v_min + i dz */

__device__ __forceinline__ struct head_support head_support_of(const struct dqn_clock *c, int atoms)
{
	return {(float)c->v_min, (float)c->v_max, (float)((c->v_max - c->v_min) / (atoms - 1))};
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
	for (int o = 16; o; o >>= 1)
		x += __shfl_xor_sync(0xffffffffu, x, o);
	return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
	for (int o = 16; o; o >>= 1)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
	return x;
}

/* mean over the branch's actions of Adv[a, i] */
__device__ __forceinline__ float head_mean(const float *adv, int actions, int atoms, int i)
{
	float sum = 0.f;
	for (int a = 0; a < actions; a++)
		sum += adv[a * atoms + i];
	return sum / actions;
}

/* logits[a, .] of this lane's atoms into x; what lies past the last atom is -inf. */
__device__ __forceinline__ void head_logits(const float *v, const float *adv, int actions, int a, int atoms, int lane,
                                            float x[HEAD_LANE_ATOMS])
{
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++) {
		int i = lane + 32 * k;
		x[k] = i < atoms ? v[i] + adv[a * atoms + i] - head_mean(adv, actions, atoms, i) : -INFINITY;
	}
}

/* x <- softmax(x) unnormalised: exp(x - max); returns the sum, *top the max. */
__device__ __forceinline__ float head_exp(float x[HEAD_LANE_ATOMS], float *top)
{
	float m = -INFINITY, sum = 0.f;
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++)
		m = fmaxf(m, x[k]);
	m = warp_max(m);
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++) {
		x[k] = x[k] == -INFINITY ? 0.f : expf(x[k] - m);
		sum += x[k];
	}
	*top = m;
	return warp_sum(sum);
}

/* Q(a) = sum_i z_i p_i */
__device__ __forceinline__ float head_q(const float *v, const float *adv, int actions, int a, int atoms,
                                        struct head_support s, int lane)
{
	float x[HEAD_LANE_ATOMS], top, q = 0.f;

	head_logits(v, adv, actions, a, atoms, lane, x);
	float sum = head_exp(x, &top);
#pragma unroll
	for (int k = 0; k < HEAD_LANE_ATOMS; k++)
		q += x[k] * (s.v_min + (lane + 32 * k) * s.dz);
	return warp_sum(q) / sum;
}

#endif
