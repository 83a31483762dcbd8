/* The loops of features.c for AVX-512 (F, DQ, VL, BW). Called only where the CPU has it. Pure, any thread. */
#include <math.h>
#include <string.h>

#include "gpu/env.h"
#include "gpu/features.h"

#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,prefer-vector-width=512")
#endif
#include "gpu/features_chunk.inc"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC reset_options
#endif

feature_rows features_rows_avx512(void)
{
	int have = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
		   __builtin_cpu_supports("avx512bw");

	return have ? rows : NULL;
}
#else
feature_rows features_rows_avx512(void)
{
	return NULL;
}
#endif
