/* What the loss (loss.cu, which alone includes this) does with one branch of a sample, whose rows lie in shared memory: the choice of a*,
 * both softmaxes, the target distribution's projection, cross entropy or squared error.
 *
 * W lanes of a warp take a sample; lane q of them owns atoms q, q + W, …, S of them. Every sum goes through the same tree (`sums`)
 * whatever W is, and no product is contracted into one (__fmul_rn), so W changes no bit. */
#ifndef FH_GPU_CUDA_LOSS_CUH
#define FH_GPU_CUDA_LOSS_CUH

#include "gpu/cuda/head.cuh"

namespace {

enum { LOSS_STATS = 4 };                     /* cross entropy, priority error, mean Q, mass on the edge atoms */
enum { V_MIN, V_MAX, DZ, OVER_DZ, NUMBERS }; /* the support, found by one thread of a block: it takes divisions in F64 */

/* sum[n] over the W lanes of a row, in all of them: atoms 32 apart first, then 16, 8, 4, 2, 1 apart, wherever they lie. */
template <int W, int S, int N> __device__ __forceinline__ void sums(const float (&x)[N][S], float (&sum)[N])
{
	enum { R = 32 / W };
#pragma unroll
	for (int n = 0; n < N; n++) {
		float y[R];
#pragma unroll
		for (int r = 0; r < R; r++) {
			y[r] = r < S ? x[n][r < S ? r : 0] : 0.f;
#pragma unroll
			for (int k = r + R; k < S; k += R)
				y[r] += x[n][k];
		}
#pragma unroll
		for (int h = R / 2; h; h /= 2)
#pragma unroll
			for (int r = 0; r < h; r++)
				y[r] += y[r + h];
		sum[n] = y[0];
	}
#pragma unroll
	for (int o = W / 2; o; o >>= 1)
#pragma unroll
		for (int n = 0; n < N; n++)
			sum[n] += __shfl_xor_sync(0xffffffffu, sum[n], o);
}

template <int W, int S> __device__ __forceinline__ float maximum(const float (&x)[S])
{
	float top = x[0];
#pragma unroll
	for (int k = 1; k < S; k++)
		top = fmaxf(top, x[k]);
	return head_maximum<W>(top);
}

/* v[k] = V - mean_a Adv of this lane's atoms; -inf past the last. */
template <int W, int S>
__device__ __forceinline__ void combine(const float *row, int first, int A, int NA, float share, int q, float (&v)[S])
{
	enum { U = W == 32 ? 5 : 1 }; /* actions side by side where latency counts */
	const float *adv = row + first + q;
	float sum[S] = {};

#pragma unroll 1
	for (int a = 0; a < A; a += U)
#pragma unroll
		for (int u = 0; u < U; u++, adv += NA)
#pragma unroll
			for (int k = 0; k < S; k++)
				sum[k] += a + u < A ? adv[W * k] : 0.f;
#pragma unroll
	for (int k = 0; k < S; k++)
		v[k] = q + W * k < NA ? fmaf(-sum[k], share, row[q + W * k]) : -INFINITY;
}

/* The number of the lane's atom k. */
template <int W> __device__ __forceinline__ float atom(int q, int k) { return (float)q + (float)(W * k); }

/* Q of one action, in atoms: sum_i i softmax_i. */
template <int W, int S> __device__ __forceinline__ float value_of(const float (&x)[S], int q)
{
	const float shift = head_shift(maximum<W, S>(x));
	float e[2][S], sum[2];

#pragma unroll
	for (int k = 0; k < S; k++)
		e[0][k] = head_exp(x[k], shift), e[1][k] = __fmul_rn(e[0][k], atom<W>(q, k));
	sums<W, S, 2>(e, sum);
	return sum[1] * ptx_reciprocal(sum[0]);
}

/* The lanes with `o` go on with b, the others with a, each with what its partner o lanes away had of the same. */
__device__ __forceinline__ float fold(float a, float b, int o)
{
	const bool up = threadIdx.x & o;

	return (up ? b : a) + __shfl_xor_sync(0xffffffffu, up ? a : b, o);
}

/* The same of five actions at once, by 32 lanes: their ten sums go through the tree of `sums`, halving the lanes of each as they
 * go, 12 exchanges where 50 were. This lane's is of action `u`. */
template <int S> __device__ __forceinline__ float value_of_five(const float (&x)[5][S], int lane, int &u)
{
	float shift[5], v[5];

#pragma unroll
	for (int a = 0; a < 5; a++)
		shift[a] = head_shift(maximum<32, S>(x[a]));
#pragma unroll
	for (int a = 0; a < 5; a++) {
		float sum = 0.f, weighted = 0.f;
#pragma unroll
		for (int k = 0; k < S; k++) {
			const float e = head_exp(x[a][k], shift[a]);

			sum = k ? sum + e : e;
			weighted = k ? weighted + __fmul_rn(e, atom<32>(lane, k)) : __fmul_rn(e, atom<32>(lane, k));
		}
		v[a] = fold(sum, weighted, 16);
	}
	const float four = fold(fold(v[0], v[1], 8), fold(v[2], v[3], 8), 4), last = fold(v[4], v[4], 8);
	float r = fold(four, fold(last, last, 4), 2);
	r = fold(r, r, 1);
	const float other = __shfl_xor_sync(0xffffffffu, r, 16);
	u = lane & 2 ? 4 : (lane & 4) / 2 + (lane & 8) / 8;
	return lane & 16 ? r * ptx_reciprocal(other) : other * ptx_reciprocal(r);
}

/* argmax_a Q(a), the lowest index on a tie. */
template <int W, int S> __device__ __forceinline__ int greedy(const float *row, int first, const float (&v)[S], int A, int NA, int q)
{
	enum { U = W == 32 ? 5 : 1 };
	int best = 0;
	float best_q = 0.f;

#pragma unroll 1
	for (int a = 0; a < A; a += U) {
		float x[U][S], value;
		int which = a;
#pragma unroll
		for (int u = 0; u < U; u++) {
			const float *adv = row + first + min(a + u, A - 1) * NA + q; /* past the last: again, and not the lowest */
#pragma unroll
			for (int k = 0; k < S; k++)
				x[u][k] = v[k] + adv[W * k];
		}
		if constexpr (W == 32) {
			int u;
			const float mine = value_of_five<S>(x, q, u);

			value = head_maximum<32>(mine);
			which = min(a - ptx_warp_max(__float_as_int(mine) == __float_as_int(value) ? -u : -4), A - 1);
		} else {
			value = value_of<W, S>(x[0], q);
		}
		if (a == 0 || value > best_q)
			best = which, best_q = value;
	}
	return best;
}

/* The target distribution's projection. Atom j moves to b_j = b_0 + G j (in atoms; clamped to the support), and leaves 1 - |b_j - i|
 * of its mass on either atom i beside: nothing is lost, since b_j - i is exact. b_j grows with j, so an atom inside gathers
 * from the few j that land within 1 of it, in ascending order; the atoms at both ends, where clamped mass piles up, are
 * sums over all (`ends`).
 *
 * pair: for j = -8 … W S + 3 (b_j, p_j), with (b_0, all mass) at -8, which stands for every atom when G = 0, and zeros up to -1
 * and from NA on: 4 candidates from -8, or from anywhere in [-4, NA], are there. */
struct shift { float g, b0; };

__device__ __forceinline__ float place(struct shift t, float j) { return fmaf(t.g, j, t.b0); }

template <int W, int S>
__device__ __forceinline__ void ends(struct shift t, const float (&p)[S], int NA, int q, float (&low)[S], float (&high)[S])
{
#pragma unroll
	for (int k = 0; k < S; k++) {
		const float b = place(t, atom<W>(q, k));

		low[k] = __fmul_rn(p[k], ptx_saturate(1.f - b));
		high[k] = __fmul_rn(p[k], ptx_saturate(b - (float)(NA - 2)));
	}
}

template <int W, int S>
__device__ __forceinline__ void leave_pairs(float2 *pair, struct shift t, const float (&p)[S], float all, int q)
{
	if (q < 8)
		pair[q - 8] = q ? make_float2(0.f, 0.f) : make_float2(t.b0, all);
#pragma unroll
	for (int k = 0; k < S; k++)
		pair[q + W * k] = make_float2(place(t, atom<W>(q, k)), p[k]);
	if (q < 4)
		pair[W * S + q] = make_float2(0.f, 0.f);
}

/* What atom i gathers from candidate c. */
__device__ __forceinline__ float gathered(float2 c, float i, float sum) { return fmaf(c.y, ptx_saturate(1.f - fabsf(c.x - i)), sum); }

template <int W, int S> __device__ __forceinline__ void gather(const float2 *pair, struct shift t, int NA, int q, float (&m)[S])
{
	const float over = ptx_reciprocal(t.g), from = (-1.f - t.b0) * over;
	const int most = (int)fminf(fmaf(2.f, over, 3.f), (float)(NA + 4)); /* candidates an atom may have; one to spare at either side */
	int j[S];

#pragma unroll
	for (int k = 0; k < S; k++) { /* the last j with b_j <= i - 1 */
		j[k] = __float2int_rd(fminf(fmaxf(fmaf(atom<W>(q, k), over, from), -4.f), (float)NA));
		j[k] = t.g > 0.f ? j[k] : -8;
		m[k] = 0.f;
	}
	if (!__any_sync(0xffffffffu, t.g > 0.f && t.g < 0.7f)) { /* 2/G < 3 */
#pragma unroll
		for (int k = 0; k < S; k++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				m[k] = gathered(pair[j[k] + c], atom<W>(q, k), m[k]);
		return;
	}
#pragma unroll 1
	for (int c = 0; c < (t.g > 0.f ? most : 4); c++)
#pragma unroll
		for (int k = 0; k < S; k++)
			m[k] = gathered(pair[min(j[k] + c, NA)], atom<W>(q, k), m[k]);
}

/* One branch of a row: what it says of the target and of the taken action. */
template <int S> struct view {
	float logit[S], v[S]; /* of (s, a), online; softmax */
	float u[S];           /* softmax of (s', a*), target */
	float lse, q, next;   /* log of the sum behind v; expectations of v and u in atoms */
	float all, low, high; /* mass of u: all of it, and what the end atoms get of it */
};

template <int W, int S>
__device__ __forceinline__ void look(struct view<S> &w, const float *online, const float *target, int first, int A, int NA, float share,
                                     int a, int best, struct shift t, int q)
{
	float e[6][S], sum[6];

	combine<W, S>(target, first, A, NA, share, q, w.u);
	combine<W, S>(online, first, A, NA, share, q, w.logit);
#pragma unroll
	for (int k = 0; k < S; k++) {
		w.u[k] += target[first + best * NA + q + W * k];
		w.logit[k] += online[first + a * NA + q + W * k];
	}
	const float shift_u = head_shift(maximum<W, S>(w.u)), shift_v = head_shift(maximum<W, S>(w.logit));
#pragma unroll
	for (int k = 0; k < S; k++) {
		const float i = atom<W>(q, k);

		e[0][k] = head_exp(w.u[k], shift_u), e[1][k] = head_exp(w.logit[k], shift_v); /* NaN logits stay NaN, -inf gives 0 */
		e[2][k] = __fmul_rn(e[0][k], i), e[3][k] = __fmul_rn(e[1][k], i);
	}
	float lows[S], highs[S];
	ends<W, S>(t, e[0], NA, q, lows, highs);
#pragma unroll
	for (int k = 0; k < S; k++)
		e[4][k] = lows[k], e[5][k] = highs[k];
	sums<W, S, 6>(e, sum);
	const float over_u = ptx_reciprocal(sum[0]), over_v = ptx_reciprocal(sum[1]);
#pragma unroll
	for (int k = 0; k < S; k++)
		w.u[k] = __fmul_rn(e[0][k], over_u), w.v[k] = __fmul_rn(e[1][k], over_v);
	w.lse = __fmul_rn(ptx_log2(sum[1]) - shift_v, 0.693147181f);
	w.next = __fmul_rn(sum[2], over_u), w.q = __fmul_rn(sum[3], over_v);
	w.all = __fmul_rn(sum[0], over_u), w.low = __fmul_rn(sum[4], over_u), w.high = __fmul_rn(sum[5], over_u);
}

/* Cross entropy with the projected distribution m; the gradient of the logits before the sample's scale. */
template <int W, int S>
__device__ __forceinline__ void cross_entropy(const struct view<S> &w, float2 *pair, struct shift t, float lse, int NA, int q, float (&m)[S],
                                              float (&grad)[S], float (&stat)[LOSS_STATS])
{
	float e[2][S], sum[2];

	__syncwarp(); /* the pairs may lie where the warp has read */
	leave_pairs<W, S>(pair, t, w.u, w.all, q);
	__syncwarp();
	gather<W, S>(pair, t, NA, q, m);
#pragma unroll
	for (int k = 0; k < S; k++) {
		const int i = q + W * k;

		m[k] = i == 0 ? w.low : i < NA - 1 ? m[k] : i == NA - 1 ? w.high : 0.f;
		e[0][k] = i < NA ? __fmul_rn(m[k], lse - w.logit[k]) : 0.f;
		e[1][k] = __fmul_rn(m[k], ptx_log2(fmaxf(m[k], 1e-37f))); /* 0 ln 0 = 0 */
		grad[k] = w.v[k] - m[k];
	}
	sums<W, S, 2>(e, sum);
	stat[0] = sum[0];
	stat[1] = fmaf(sum[1], 0.693147181f, sum[0]);
	stat[3] = w.low + w.high;
}

/* Squared error of the expectations; m[0] is the target's. */
template <int W, int S>
__device__ __forceinline__ void squared_error(const struct view<S> &w, const float *number, float R, float G, int q, float (&m)[S], float (&grad)[S],
                                              float (&stat)[LOSS_STATS])
{
	const float y = fmaf(G, fmaf(w.next, number[DZ], number[V_MIN]), R), delta = fmaf(w.q, number[DZ], number[V_MIN]) - y;

#pragma unroll
	for (int k = 0; k < S; k++) {
		grad[k] = 2.f * delta * w.v[k] * ((atom<W>(q, k) - w.q) * number[DZ]);
		m[k] = q + W * k == 0 ? y : 0.f;
	}
	stat[0] = delta * delta;
	stat[1] = fabsf(delta);
	stat[3] = y < number[V_MIN] || y > number[V_MAX] ? 1.f : 0.f;
}

} // namespace

#endif
