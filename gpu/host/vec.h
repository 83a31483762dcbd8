/* The vector unit behind one set of names, so that every kernel is written once and compiled per instruction set.
 *
 * Included by kernels.inc only, after VEC_BYTES (64, 32 or 16) and the target options are set. vf holds VL floats, vi VL
 * ints. Comparisons give a vi of -1 and 0. Sums over lanes have a fixed order. */
#include <stdint.h>
#include <string.h>

#define VL (VEC_BYTES / 4)
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(VEC_BYTES), may_alias));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES), may_alias));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES), may_alias)); /* where NaN and infinity may wrap around */
typedef float vf_any __attribute__((vector_size(VEC_BYTES), may_alias, aligned(4)));

INLINE vf v_load(const float *p) { return *(const vf_any *)p; }
INLINE void v_store(float *p, vf x) { *(vf_any *)p = x; }

#if VEC_BYTES == 64
INLINE vf v_set(float x) { return (vf)_mm512_set1_ps(x); }
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vf v_sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
INLINE vf v_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); } /* b when either is NaN */
INLINE vf v_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE __mmask16 v_tail(int n) { return (__mmask16)(n >= VL ? 0xFFFF : n > 0 ? (1u << n) - 1 : 0); }
INLINE vf v_load_n(const float *p, int n) { return (vf)_mm512_maskz_loadu_ps(v_tail(n), p); }
INLINE void v_store_n(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, v_tail(n), (__m512)x); }
INLINE float v_sum(vf x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float v_top(vf x) { return _mm512_reduce_max_ps((__m512)x); }
#elif VEC_BYTES == 32
INLINE vf v_set(float x) { return (vf)_mm256_set1_ps(x); }
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf v_sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
INLINE vf v_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf v_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE __m256i v_tail(int n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf v_load_n(const float *p, int n) { return (vf)_mm256_maskload_ps(p, v_tail(n)); }
INLINE void v_store_n(float *p, vf x, int n) { _mm256_maskstore_ps(p, v_tail(n), (__m256)x); }
#else
INLINE vf v_set(float x) { return (vf){x, x, x, x}; }
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf v_sqrt(vf a) { return (vf){__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]), __builtin_sqrtf(a[3])}; }
INLINE vf v_max(vf a, vf b) { vi m = a > b; return (vf)((m & (vi)a) | (~m & (vi)b)); }
INLINE vf v_min(vf a, vf b) { vi m = a < b; return (vf)((m & (vi)a) | (~m & (vi)b)); }
INLINE vf v_load_n(const float *p, int n)
{
	float t[VL] = {0};

	memcpy(t, p, (size_t)(n > VL ? VL : n > 0 ? n : 0) * sizeof(*t));
	return v_load(t);
}
INLINE void v_store_n(float *p, vf x, int n)
{
	float t[VL];

	v_store(t, x);
	memcpy(p, t, (size_t)(n > VL ? VL : n > 0 ? n : 0) * sizeof(*t));
}
#endif

#if VEC_BYTES != 64
INLINE float v_sum(vf x)
{
	float t[VL];

	v_store(t, x);
	for (int w = VL / 2; w; w /= 2)
		for (int i = 0; i < w; i++)
			t[i] += t[i + w];
	return t[0];
}

INLINE float v_top(vf x)
{
	float t[VL], top;

	v_store(t, x);
	top = t[0];
	for (int i = 1; i < VL; i++)
		top = t[i] > top ? t[i] : top;
	return top;
}
#endif

INLINE vi v_seti(int32_t x)
{
	return (vi){0} + x;
}

/* 0, 1, 2, … */
INLINE vi lanes(void)
{
#if VL == 16
	return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif VL == 8
	return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
	return (vi){0, 1, 2, 3};
#endif
}

INLINE vf v_float(vi x)
{
	return __builtin_convertvector(x, vf);
}

/* m ? a : b, by lane. */
INLINE vf v_pick(vi m, vf a, vf b)
{
	return (vf)((m & (vi)a) | (~m & (vi)b));
}

/* Rounded to the inputs of a TF32 (13) or BF16 (16) product, as round.h; 0 leaves x. NaN stays NaN. */
INLINE vf v_round(vf x, int dropped)
{
	vu u = (vu)x;

	if (!dropped)
		return x;
	u += ((u >> dropped) & 1) + ((1u << (dropped - 1)) - 1);
	u &= ~((1u << dropped) - 1);
	return v_pick(x == x, (vf)u, x);
}

/* e^x for x <= 88; 0 below -87.3, NaN for NaN. Two-part reduction by ln 2, then the series to r^7/7!: |r| <= 0.347, so
 * the rest is below 6e-9. */
INLINE vf v_exp(vf x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	vf t = v_fma(x, v_set(1.442695041f), v_set(magic)), n = t - magic, r, y;
	vu scale = ((vu)t - (vu)v_set(magic)) << 23;

	r = v_fma(n, v_set(-0.693359375f), x); /* 355/512, nine bits: n times it is exact */
	r = v_fma(n, v_set(2.12194440e-4f), r);
	y = v_fma(r, v_set(1.0f / 5040.0f), v_set(1.0f / 720.0f));
	y = v_fma(y, r, v_set(1.0f / 120.0f));
	y = v_fma(y, r, v_set(1.0f / 24.0f));
	y = v_fma(y, r, v_set(1.0f / 6.0f));
	y = v_fma(y, r, v_set(0.5f));
	y = v_fma(y, r, v_set(1.0f));
	y = v_fma(y, r, v_set(1.0f));
	return v_pick(x < v_set(-87.3f), v_set(0.0f), (vf)((vu)y + scale));
}

/* ln x for normal x > 0: x = m 2^e, m in [0.707, 1.414), ln m = 2 atanh((m - 1)/(m + 1)); the rest is below 3e-9. */
INLINE vf v_log(vf x)
{
	vu u = (vu)x;
	vi e = (vi)(u - 0x3F3504F3u) >> 23; /* arithmetic: e has a sign */
	vf m = (vf)(u - ((vu)e << 23)), s = (m - 1.0f) / (m + 1.0f), q = s * s, y;

	y = v_fma(q, v_set(2.0f / 9.0f), v_set(2.0f / 7.0f));
	y = v_fma(y, q, v_set(2.0f / 5.0f));
	y = v_fma(y, q, v_set(2.0f / 3.0f));
	y = v_fma(y * q, s, s + s);
	return v_fma(v_float(e), v_set(0.693147181f), y);
}
