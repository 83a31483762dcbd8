/* Philox4x32-10 and the draws of gpu/MATH.md, section 9, one definition for host and device.
 *
 * Every draw is a pure function of (seed, stream, step, n): nothing is stored, nothing is consumed, so host and GPU, a
 * first run and a resumed one read the same numbers. Any thread. Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011. */
#ifndef FH_GPU_PHILOX_H
#define FH_GPU_PHILOX_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "gpu/hd.h"

enum philox_stream {
	PHILOX_INIT, PHILOX_SAMPLE, PHILOX_EXPLORE, PHILOX_RESET, PHILOX_TAU, PHILOX_TAU2, PHILOX_SPECTRAL, PHILOX_ROUND,
	PHILOX_SYNTH = 64 /* synthetic markets (synth.c): outside of training, own seed */
};

struct philox_words { uint32_t w[4]; };

FH_HD struct philox_words philox4x32(const uint32_t counter[4], const uint32_t key[2])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = key[0], k1 = key[1];
	struct philox_words out;
	int round;

	for (round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;

		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	out.w[0] = c0;
	out.w[1] = c1;
	out.w[2] = c2;
	out.w[3] = c3;
	return out;
}

/* Draws 4*index .. 4*index + 3 of a stream and step. */
FH_HD struct philox_words philox_block(uint64_t seed, uint32_t stream, uint64_t step, uint64_t index)
{
	uint32_t counter[4], key[2];

	counter[0] = (uint32_t)index;
	counter[1] = (uint32_t)(index >> 32);
	counter[2] = stream;
	counter[3] = (uint32_t)step;
	key[0] = (uint32_t)seed;
	key[1] = (uint32_t)(seed >> 32);
	return philox4x32(counter, key);
}

/* Draw n. */
FH_HD uint32_t philox_word(uint64_t seed, uint32_t stream, uint64_t step, uint64_t n)
{
	return philox_block(seed, stream, step, n >> 2).w[n & 3];
}

/* A uniform number in (0,1); exact: 24 significant bits. */
FH_HD float philox_uniform(uint32_t word)
{
	return (float)(word >> 9) * 0x1p-23f + 0x1p-24f;
}

/* An integer in [0, m). */
FH_HD uint32_t philox_below(uint32_t word, uint32_t m)
{
	return (uint32_t)(((uint64_t)word * m) >> 32);
}

/* Normal number k of a stream and step: draws 2k and 2k + 1. */
FH_HD double philox_normal(uint64_t seed, uint32_t stream, uint64_t step, uint64_t k)
{
	struct philox_words b = philox_block(seed, stream, step, k >> 1);
	int half = (int)(k & 1) * 2;
	double u = philox_uniform(b.w[half]), v = philox_uniform(b.w[half + 1]);

	return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

/* Stochastic rounding of an F32 to a BF16 value (still F32): word >> 16 is added to the bits, the low half is cut. */
FH_HD float philox_round_bf16(float x, uint32_t word)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	bits = (bits + (word >> 16)) & 0xFFFF0000u;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

#endif
