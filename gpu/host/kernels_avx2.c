/* The kernels for AVX2 with FMA. Called only where the CPU has them. */
#include <stddef.h>

#include "gpu/host/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define VEC_BYTES 32
#define KERNELS_NAME "avx2"
#define KERNELS_PRODUCT product
#include "gpu/host/kernels.inc"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC reset_options
#endif

const struct kernels *host_kernels_avx2(void)
{
	int have = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");

	return have ? &table : NULL;
}
#else
const struct kernels *host_kernels_avx2(void)
{
	return NULL;
}
#endif
