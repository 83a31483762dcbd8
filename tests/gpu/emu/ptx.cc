/* Copies that do not wait, fragments, products: see emu_ptx.h. Layouts of fragments are those of the PTX ISA for ldmatrix
 * (m8n8) and mma (m16n8k16 BF16, m16n8k8 TF32). */
#include "emu.h"
#include <emu_ptx.h>
#include <algorithm>

/* ---------------------------------------------------------------- copies */

enum { UNDER_WAY = 1024, GROUPS = 256 }; /* of one thread; both start again when all have landed */
struct copy { void *to; const void *from; int valid; };
struct emu_copies {
	unsigned copies, groups, done; /* done: groups that have landed */
	unsigned end[GROUPS];          /* where each closed group ends in copy */
	struct copy copy[UNDER_WAY];
};

static inline struct emu_copies *copies(void)
{
	if (!emu_now->copies)
		emu_now->copies = new emu_copies();
	return emu_now->copies;
}
/* Moves what has not landed to the front. */
static void tidy(struct emu_copies *c)
{
	const unsigned first = c->done ? c->end[c->done - 1] : 0;

	memmove(c->copy, c->copy + first, (c->copies - first) * sizeof c->copy[0]);
	for (unsigned g = c->done; g < c->groups; g++)
		c->end[g - c->done] = c->end[g] - first;
	c->copies -= first, c->groups -= c->done, c->done = 0;
}

void emu_copy16(void *to, const void *from, int valid)
{
	if ((uintptr_t)to % 16 || (uintptr_t)from % 16)
		emu_fail("a copy of 16 bytes from %p to %p: not at a multiple of 16", from, to);
	if (valid < 0 || valid > 16)
		emu_fail("a copy of 16 bytes of which %d are valid", valid);
	memset(to, 0xff, 16);
	struct emu_copies *c = copies();
	if (c->copies == UNDER_WAY)
		tidy(c);
	if (c->copies == UNDER_WAY)
		emu_fail("more than %d copies of a thread under way", UNDER_WAY);
	c->copy[c->copies++] = {to, from, valid};
}

void emu_copy_commit(void)
{
	struct emu_copies *c = copies();

	if (c->groups == GROUPS)
		tidy(c);
	if (c->groups == GROUPS)
		emu_fail("more than %d groups of copies of a thread under way", GROUPS);
	c->end[c->groups++] = c->copies;
}

void emu_copy_wait(int but)
{
	struct emu_copies *c = copies();

	for (; c->groups - c->done > (unsigned)but; c->done++)
		for (unsigned i = c->done ? c->end[c->done - 1] : 0; i < c->end[c->done]; i++) {
			const struct copy *k = &c->copy[i];

			if (k->valid == 16) {
				memcpy(k->to, k->from, 16);
			} else {
				memset(k->to, 0, 16);
				memcpy(k->to, k->from, (size_t)k->valid);
			}
		}
	if (c->done == c->groups && (c->done ? c->end[c->done - 1] : 0) == c->copies)
		c->copies = c->groups = c->done = 0;
}

void emu_copies_end(void)
{
	struct emu_copies *c = emu_now->copies;

	if (!c)
		return;
	if ((c->done ? c->end[c->done - 1] : 0) != c->copies)
		emu_fail("the thread ends with copies under way that it has not waited for");
	c->copies = c->groups = c->done = 0;
}

void emu_max_op(void *const arg[32], unsigned)
{
	int most = *(const int *)arg[0];

	for (int l = 1; l < 32; l++)
		most = std::max(most, *(const int *)arg[l]);
	for (int l = 0; l < 32; l++)
		*(int *)arg[l] = most;
}

/* ---------------------------------------------------------------- ldmatrix */

template <bool TRANSPOSED> static inline void ldmatrix(void *const arg[32], int matrices)
{
	unsigned short m[4][8][8];

	for (int l = 0; l < 8 * matrices; l++) {
		const void *row = ((const struct emu_ldmatrix *)arg[l])->row;

		if ((uintptr_t)row % 16)
			emu_fail("ldmatrix: the row of lane %d at %p is not at a multiple of 16", l, row);
		memcpy(m[l / 8][l % 8], row, 16);
	}
	for (int l = 0; l < 32; l++)
		for (int i = 0; i < matrices; i++) {
			const int g = l / 4, t = 2 * (l % 4);
			const unsigned lo = TRANSPOSED ? m[i][t][g] : m[i][g][t], hi = TRANSPOSED ? m[i][t + 1][g] : m[i][g][t + 1];

			((const struct emu_ldmatrix *)arg[l])->r[i] = lo | hi << 16;
		}
}
void emu_ldmatrix4_op(void *const arg[32], unsigned) { ldmatrix<false>(arg, 4); }
void emu_ldmatrix4t_op(void *const arg[32], unsigned) { ldmatrix<true>(arg, 4); }

void emu_stmatrix4_op(void *const arg[32], unsigned)
{
	for (int i = 0; i < 4; i++)
		for (int r = 0; r < 8; r++) {
			unsigned *row = (unsigned *)(uintptr_t)((const struct emu_ldmatrix *)arg[i * 8 + r])->row;

			if ((uintptr_t)row % 16)
				emu_fail("stmatrix: the row of lane %d at %p is not at a multiple of 16", i * 8 + r, (void *)row);
			for (int t = 0; t < 4; t++)
				row[t] = ((const struct emu_ldmatrix *)arg[r * 4 + t])->r[i];
		}
}

/* ---------------------------------------------------------------- mma */

/* c[16][8] += a[16][K] b[K][8], k by k: the products are exact in F32, so fused or not is the same. */
template <int K> static inline void multiply(float c[16][8], const float a[16][K], const float b[K][8])
{
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < K; k++)
			for (int j = 0; j < 8; j++)
				c[i][j] += a[i][k] * b[k][j];
}
static inline void take_c(void *const arg[32], float c[16][8])
{
	for (int l = 0; l < 32; l++) {
		const float *from = ((const struct emu_mma *)arg[l])->c;
		const int g = l / 4, t = 2 * (l % 4);

		c[g][t] = from[0], c[g][t + 1] = from[1], c[g + 8][t] = from[2], c[g + 8][t + 1] = from[3];
	}
}
static inline void give_c(void *const arg[32], const float c[16][8])
{
	for (int l = 0; l < 32; l++) {
		float *to = ((const struct emu_mma *)arg[l])->c;
		const int g = l / 4, t = 2 * (l % 4);

		to[0] = c[g][t], to[1] = c[g][t + 1], to[2] = c[g + 8][t], to[3] = c[g + 8][t + 1];
	}
}

void emu_mma_bf16_op(void *const arg[32], unsigned)
{
	float a[16][16], b[16][8], c[16][8];

	for (int l = 0; l < 32; l++) {
		const struct emu_mma *x = (const struct emu_mma *)arg[l];
		const int g = l / 4, t = 2 * (l % 4);

		for (int r = 0; r < 4; r++) { /* rows g, g + 8; then the same of columns 8 on */
			float *to = &a[g + r % 2 * 8][t + r / 2 * 8];

			to[0] = __uint_as_float(x->a[r] << 16), to[1] = __uint_as_float(x->a[r] & 0xffff0000u);
		}
		for (int r = 0; r < 2; r++) {
			b[t + r * 8][g] = __uint_as_float(x->b[r] << 16);
			b[t + r * 8 + 1][g] = __uint_as_float(x->b[r] & 0xffff0000u);
		}
	}
	take_c(arg, c);
	multiply<16>(c, a, b);
	give_c(arg, c);
}

void emu_mma_tf32_op(void *const arg[32], unsigned)
{
	float a[16][8], b[8][8], c[16][8];

	for (int l = 0; l < 32; l++) {
		const struct emu_mma *x = (const struct emu_mma *)arg[l];
		const int g = l / 4, t = l % 4;

		for (int r = 0; r < 4; r++) /* the unit does not look at the last 13 bits */
			a[g + r % 2 * 8][t + r / 2 * 4] = __uint_as_float(x->a[r] & 0xffffe000u);
		for (int r = 0; r < 2; r++)
			b[t + r * 4][g] = __uint_as_float(x->b[r] & 0xffffe000u);
	}
	take_c(arg, c);
	multiply<8>(c, a, b);
	give_c(arg, c);
}
