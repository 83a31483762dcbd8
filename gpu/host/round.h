/* Rounding of F32 values to the inputs of a TF32 or BF16 product, to nearest even. NaN stays NaN. Pure functions. */
#ifndef FH_GPU_HOST_ROUND_H
#define FH_GPU_HOST_ROUND_H

#include <stdint.h>
#include <string.h>

#define TF32_DROPPED_BITS 13
#define BF16_DROPPED_BITS 16

static inline float round_bits(float x, int dropped)
{
	uint32_t u;

	if (x != x)
		return x;
	memcpy(&u, &x, sizeof(u));
	u += (1u << (dropped - 1)) - 1 + ((u >> dropped) & 1);
	u &= ~((1u << dropped) - 1);
	memcpy(&x, &u, sizeof(x));
	return x;
}

static inline uint16_t bf16_from(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	if (x != x)
		return (uint16_t)(u >> 16 | 0x40); /* quiet, so that cutting the low half cannot make it infinite */
	u += 0x7FFF + ((u >> 16) & 1);
	return (uint16_t)(u >> 16);
}

static inline float bf16_to(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float x;

	memcpy(&x, &u, sizeof(x));
	return x;
}

static inline void bf16_widen(const uint16_t *h, int64_t n, float *out)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = bf16_to(h[i]);
}

#endif
