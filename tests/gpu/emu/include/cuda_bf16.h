/* BF16 as CUDA's header of this name has it, as far as kernels use it: to nearest even, NaN as the canonical one. */
#ifndef FH_EMU_CUDA_BF16_H
#define FH_EMU_CUDA_BF16_H

#include <cuda_runtime.h>

static inline unsigned short emu_bf16_of(float f)
{
	const unsigned u = emu_bits<unsigned>(f);

	return f != f ? 0x7fff : (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline float emu_bf16_value(unsigned short bits) { return emu_bits<float>((unsigned)bits << 16); }

struct __nv_bfloat16 {
	unsigned short bits;
	__nv_bfloat16() = default;
	__nv_bfloat16(float f) : bits(emu_bf16_of(f)) {}
	explicit __nv_bfloat16(double d) : bits(emu_bf16_of((float)d)) {}
	operator float() const { return emu_bf16_value(bits); }
};
struct __align__(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
static_assert(sizeof(__nv_bfloat16) == 2 && sizeof(__nv_bfloat162) == 4, "stored as on the device");

static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline float __bfloat162float(__nv_bfloat16 v) { return (float)v; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
static inline __nv_bfloat162 __float2bfloat162_rn(float v) { return {__nv_bfloat16(v), __nv_bfloat16(v)}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2((float)v.x, (float)v.y); }
static inline float __low2float(__nv_bfloat162 v) { return (float)v.x; }
static inline float __high2float(__nv_bfloat162 v) { return (float)v.y; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { __nv_bfloat16 v; v.bits = u; return v; }

#endif
