/* The kernels for AVX-512 (F, DQ, VL, BW). Called only where the CPU has them. */
#include <stddef.h>

#include "gpu/host/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,prefer-vector-width=512")
#endif
#define VEC_BYTES 64
#define KERNELS_NAME "avx512"
#define KERNELS_PRODUCT product
#include "gpu/host/kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC reset_options
#endif

const struct kernels *host_kernels_avx512(void)
{
	int have = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
		   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma");

	return have ? &table : NULL;
}
#else
const struct kernels *host_kernels_avx512(void)
{
	return NULL;
}
#endif
