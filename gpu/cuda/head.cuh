/* Dueling combination, softmax and Q of a branch by one warp (section 1). Lane l owns atoms l, l + 32, …, L of them.
 *
 * Everything a branch needs is loaded at once and kept in registers. Sums over atoms go through a butterfly of fixed
 * shape, so every lane ends with the same bits, run after run. Multiplications that meet an addition say whether they
 * fuse: this is compiled with contraction and without, and a greedy action must not depend on which. */
#ifndef FH_GPU_CUDA_HEAD_CUH
#define FH_GPU_CUDA_HEAD_CUH

#include "gpu/cuda/exec.h"
#include "gpu/cuda/ptx.cuh"

#define HEAD_ACTIONS_MAX 8 /* of one branch */

struct head_support { float v_min, v_max, dz; }; /* z_i = v_min + i dz */

__device__ __forceinline__ struct head_support head_support_of(const struct dqn_clock *c, int atoms)
{
	return {(float)c->v_min, (float)c->v_max, (float)((c->v_max - c->v_min) / (atoms - 1))};
}

/* z_i */
__device__ __forceinline__ float head_value(struct head_support s, int i) { return fmaf((float)i, s.dz, s.v_min); }

/* The sums of n numbers over the warp, step by step side by side: n chains hide each other's latency. */
template <int N> __device__ __forceinline__ void warp_sums(float (&x)[N])
{
#pragma unroll
	for (int o = 16; o; o >>= 1)
#pragma unroll
		for (int k = 0; k < N; k++)
			x[k] += __shfl_xor_sync(0xffffffffu, x[k], o);
}

/* One branch of one row, dueling-combined: v = V - mean_a Adv, adv[a] raw. logits[a] = v + adv[a]. A: at least the
 * branch's actions; those past its own hold zeros. */
template <int A, int L> struct head_row { float v[L], adv[A][L]; };

/* v [NA], adv [actions, NA]. Lanes past the last atom hold zeros. */
template <int A, int L>
__device__ __forceinline__ void head_load(struct head_row<A, L> &r, const float *v, const float *adv, int actions, int atoms, int lane)
{
#pragma unroll
	for (int k = 0; k < L; k++) {
		const int i = lane + 32 * k;

		r.v[k] = i < atoms ? v[i] : 0.f;
#pragma unroll
		for (int a = 0; a < A; a++)
			r.adv[a][k] = i < atoms && a < actions ? adv[a * atoms + i] : 0.f;
	}
}
template <int A, int L> __device__ __forceinline__ void head_combine(struct head_row<A, L> &r, int actions)
{
	const float share = 1.f / actions;
#pragma unroll
	for (int k = 0; k < L; k++) {
		float sum = 0.f;
#pragma unroll
		for (int a = 0; a < A; a++)
			sum += r.adv[a][k];
		r.v[k] = fmaf(-sum, share, r.v[k]);
	}
}

/* e^(x - top) as head_exp(x, head_shift(top)). What rounding does to the shift is the same for every x, so it divides out of
 * a softmax; the rest is right to about 2^-21 where it is large enough to count. */
__device__ __forceinline__ float head_shift(float top) { return __fmul_rn(top, -1.44269504f); }
__device__ __forceinline__ float head_exp(float x, float shift) { return ptx_exp2(fmaf(x, 1.44269504f, shift)); }

/* The largest over W lanes side by side: of 32 by one instruction, on integers of the same order. */
template <int W> __device__ __forceinline__ float head_maximum(float x)
{
	if constexpr (W == 32) {
		const int i = __float_as_int(x), most = ptx_warp_max(i ^ (i >> 31 & 0x7fffffff));

		return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
	} else {
#pragma unroll
		for (int o = W / 2; o; o >>= 1)
			x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
		return x;
	}
}

/* argmax_a Q(a), Q(a) = sum_i z_i softmax_i, the lowest index on a tie. All actions side by side. */
template <int A, int L>
__device__ __forceinline__ int head_greedy(const struct head_row<A, L> &r, int actions, int atoms, struct head_support s, int lane)
{
	float x[A][L], sum[2 * A];
#pragma unroll
	for (int a = 0; a < A; a++) {
		float top = -INFINITY;
#pragma unroll
		for (int k = 0; k < L; k++) {
			x[a][k] = lane + 32 * k < atoms ? r.v[k] + r.adv[a][k] : -INFINITY;
			top = fmaxf(top, x[a][k]);
		}
		const float shift = head_shift(head_maximum<32>(top));
		sum[a] = sum[A + a] = 0.f;
#pragma unroll
		for (int k = 0; k < L; k++) {
			const float e = head_exp(x[a][k], shift);

			sum[a] += e;
			sum[A + a] = fmaf(e, head_value(s, lane + 32 * k), sum[A + a]);
		}
	}
	warp_sums(sum);
	int best = 0;
	float best_q = sum[A] / sum[0];
#pragma unroll
	for (int a = 1; a < A; a++) {
		const float q = sum[A + a] / sum[a];

		if (a < actions && q > best_q)
			best = a, best_q = q;
	}
	return best;
}

/* f(A, L): actions a branch has at most, atoms a lane owns. */
static_assert(DQN_CUDA_ATOMS_MAX <= 8 * 32, "lanes of a warp own all atoms");
#define HEAD_DISPATCH_ATOMS(a, atoms, f) \
	((atoms) <= 32 ? f(a, 1) : (atoms) <= 64 ? f(a, 2) : (atoms) <= 128 ? f(a, 4) : f(a, 8))
#define HEAD_DISPATCH(actions, atoms, f) \
	((actions) <= 5 ? HEAD_DISPATCH_ATOMS(5, atoms, f) : HEAD_DISPATCH_ATOMS(HEAD_ACTIONS_MAX, atoms, f))

static inline int head_actions(const struct dqn_dims *d)
{
	int most = 0;

	for (int b = 0; b < d->D; b++)
		most = d->A[b] > most ? d->A[b] : most;
	return most;
}

#endif
