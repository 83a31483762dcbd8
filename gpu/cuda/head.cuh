/* Dueling combination, softmax and Q of a branch by one warp (section 1). Lane l owns atoms l, l + 32, …, L of them.
 *
 * Everything a branch needs is loaded at once and kept in registers. Sums over atoms go through a butterfly of fixed
 * shape, so every lane ends with the same bits, run after run. */
#ifndef FH_GPU_CUDA_HEAD_CUH
#define FH_GPU_CUDA_HEAD_CUH

#include "gpu/cuda/exec.h"

#define HEAD_ATOMS_MAX 256
#define HEAD_ACTIONS_MAX 8 /* of one branch, in registers */

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

/* One branch of one row, dueling-combined: v = V - mean_a Adv, adv[a] raw. logits[a] = v + adv[a]. */
template <int L> struct head_row {
	float v[L], adv[HEAD_ACTIONS_MAX][L];
};

/* v [NA], adv [A, NA]. Lanes past the last atom hold zeros. */
template <int L>
__device__ __forceinline__ void head_load(struct head_row<L> &r, const float *v, const float *adv, int actions, int atoms, int lane)
{
#pragma unroll
	for (int k = 0; k < L; k++) {
		const int i = lane + 32 * k;
		const bool in = i < atoms;
		float sum = 0.f;

		r.v[k] = in ? v[i] : 0.f;
#pragma unroll
		for (int a = 0; a < HEAD_ACTIONS_MAX; a++)
			r.adv[a][k] = in && a < actions ? adv[a * atoms + i] : 0.f;
#pragma unroll
		for (int a = 0; a < HEAD_ACTIONS_MAX; a++)
			sum += r.adv[a][k];
		r.v[k] -= sum / actions;
	}
}

/* Logits of action a (a run-time index: selected without leaving registers); -inf past the last atom. */
template <int L>
__device__ __forceinline__ void head_logits(const struct head_row<L> &r, int a, int atoms, int lane, float x[L])
{
#pragma unroll
	for (int k = 0; k < L; k++) {
		float y = r.adv[0][k];
#pragma unroll
		for (int b = 1; b < HEAD_ACTIONS_MAX; b++)
			y = a == b ? r.adv[b][k] : y;
		x[k] = lane + 32 * k < atoms ? r.v[k] + y : -INFINITY;
	}
}

/* x <- exp(x - max); returns the sum, *top the max. A NaN among the logits gives a NaN sum. */
template <int L> __device__ __forceinline__ float head_exp(float x[L], float *top)
{
	float m = x[0], sum = 0.f;
#pragma unroll
	for (int k = 1; k < L; k++)
		m = fmaxf(m, x[k]);
	m = warp_max(m);
#pragma unroll
	for (int k = 0; k < L; k++) {
		x[k] = expf(x[k] - m);
		sum += x[k];
	}
	*top = m;
	return warp_sum(sum);
}

/* Q(a) = sum_i z_i p_i */
template <int L>
__device__ __forceinline__ float head_q(const struct head_row<L> &r, int a, int atoms, struct head_support s, int lane)
{
	float x[L], top, q = 0.f;

	head_logits(r, a, atoms, lane, x);
	const float sum = head_exp<L>(x, &top);
#pragma unroll
	for (int k = 0; k < L; k++)
		q += x[k] * (s.v_min + (lane + 32 * k) * s.dz);
	return warp_sum(q) / sum;
}

/* argmax_a Q(a), the lowest index on a tie. */
template <int L>
__device__ __forceinline__ int head_greedy(const struct head_row<L> &r, int actions, int atoms, struct head_support s, int lane)
{
	int best = 0;
	float best_q = 0.f;
#pragma unroll
	for (int a = 0; a < HEAD_ACTIONS_MAX; a++) {
		if (a >= actions)
			break;
		const float q = head_q(r, a, atoms, s, lane);

		if (a == 0 || q > best_q)
			best = a, best_q = q;
	}
	return best;
}

/* Calls f<L>(…) for the number of atoms a lane owns. */
#define HEAD_DISPATCH(atoms, call)                                                                                       \
	((atoms) <= 32 ? call(1) : (atoms) <= 64 ? call(2) : (atoms) <= 128 ? call(4) : call(8))

#endif
