/* Products of warpgroups: see emu_wgmma.h. Layouts are those of the PTX ISA for wgmma with operands swizzled by 128 bytes. */
#include "emu.h"
#include <emu_ptx.h>
#include <emu_wgmma.h>
#include <algorithm>
#include <unordered_map>

/* An instruction under way: what it read, to be compared when it ends: 16 bytes of shared memory at a time, and registers. */
struct piece { const void *at; unsigned short was[8]; };
struct issued {
	float (*d[32])[4];
	int eights;
	unsigned group;
	std::vector<struct piece> read;
	std::vector<std::pair<const unsigned *, unsigned>> registers;
};
/* Sums of one target, row by row of the warp, of all instructions that are under way for it. */
struct sums { int eights; float (*d[32])[4]; std::vector<float> c; };
struct warp_groups {
	unsigned closed = 0, done = 0;
	std::vector<struct issued> issued;
	std::unordered_map<void *, struct sums> sums; /* by the first lane's target */
};
static std::unordered_map<const void *, struct warp_groups> groups; /* by warp */

/* Where the 16 bytes begin in which element (row, k) of an operand is the first: rows of 128 bytes whose 16-byte parts are swizzled by the row in the
 * address. */
static const void *part(const ptx_operand *o, int transposed, int row, int k)
{
	const uintptr_t line = transposed ? o->at + (uintptr_t)(row / 64) * o->apart + (uintptr_t)k * 128 + row % 64 * 2
	                                  : o->at + (uintptr_t)row * 128 + (uintptr_t)k * 2;

	return (const void *)(line ^ (line >> 3 & 0x70));
}

/* to[k][row] of 16 k and so many rows. */
static void take(struct issued *i, const ptx_operand *o, int transposed, int first, int rows, float *to, int ld)
{
	for (int r = 0; r < (transposed ? 16 : rows); r++)
		for (int c = 0; c < (transposed ? rows : 16); c += 8) {
			struct piece p = {transposed ? part(o, 1, first + c, r) : part(o, 0, first + r, c), {}};

			memcpy(p.was, p.at, sizeof p.was);
			i->read.push_back(p);
			for (int e = 0; e < 8; e++)
				to[transposed ? r * ld + c + e : (c + e) * ld + r] = __uint_as_float((unsigned)p.was[e] << 16);
		}
}

void emu_group_mma_op(void *const arg[32], unsigned)
{
	const struct emu_group_mma *x = (const struct emu_group_mma *)arg[0];
	struct warp_groups *g = &groups[emu_now->home];
	const int n = x->eights * 8, first = emu_now->warp % 4 * 16;
	struct issued i = {};
	float a[16][16], b[16][256]; /* by k */

	for (int o = x->r ? 1 : 0; o < 2; o++)
		if (((o ? x->b_t : x->a_t) ? (o ? x->b.at : x->a.at) % 1024 : (o ? x->b.at : x->a.at) % 1024 % 32) || (o ? x->b.at : x->a.at) % 1024 >= 128)
			emu_fail("wgmma: operand %d begins in the middle of its rows", o);
	i.eights = x->eights, i.group = g->closed;
	struct sums *s = &g->sums[x->d];
	if (s->c.empty()) {
		s->eights = x->eights;
		s->c.resize(16 * n);
		for (int l = 0; l < 32; l++) {
			float (*d)[4] = ((const struct emu_group_mma *)arg[l])->d;

			s->d[l] = d;
			for (int j = 0; j < x->eights; j++)
				for (int e = 0; e < 4; e++) {
					s->c[(l / 4 + e / 2 * 8) * n + j * 8 + l % 4 * 2 + e % 2] = d[j][e];
					d[j][e] = NAN;
				}
		}
	}
	if (s->eights != x->eights)
		emu_fail("wgmma: %d columns into a target that takes %d", n, s->eights * 8);
	if (!x->keep)
		std::fill(s->c.begin(), s->c.end(), 0.f);
	memcpy(i.d, s->d, sizeof i.d);
	i.read.reserve((size_t)(16 * 2 + 2 * n));
	if (x->r) { /* lane g * 4 + t: rows g and, every second register, g + 8; two columns from 2 t and, behind two registers, 2 t + 8 on */
		for (int l = 0; l < 32; l++)
			for (int e = 0; e < 4; e++) {
				const unsigned *p = &((const struct emu_group_mma *)arg[l])->r[e], v = *p;
				const int r = l / 4 + e % 2 * 8, k = l % 4 * 2 + e / 2 * 8;

				i.registers.push_back({p, v});
				a[k][r] = __uint_as_float(v << 16), a[k + 1][r] = __uint_as_float(v & 0xffff0000u);
			}
	} else {
		take(&i, &x->a, x->a_t, first, 16, a[0], 16);
	}
	take(&i, &x->b, x->b_t, 0, n, b[0], 256);
	for (int k = 0; k < 16; k++) /* products are exact in F32, so fused or not is the same */
		for (int r = 0; r < 16; r++)
			for (int j = 0; j < n; j++)
				s->c[r * n + j] += a[k][r] * b[k][j];
	g->issued.push_back(std::move(i));
}

void emu_group_commit_op(void *const *, unsigned) { groups[emu_now->home].closed++; }

/* Gives the sums to their lanes. */
static void give(const struct sums *s)
{
	const int n = s->eights * 8;

	for (int l = 0; l < 32; l++)
		for (int j = 0; j < s->eights; j++)
			for (int e = 0; e < 4; e++)
				s->d[l][j][e] = s->c[(l / 4 + e / 2 * 8) * n + j * 8 + l % 4 * 2 + e % 2];
}

void emu_group_wait_op(void *const arg[32], unsigned)
{
	struct warp_groups *g = &groups[emu_now->home];
	const unsigned but = (unsigned)*(const int *)arg[0], done = g->closed > but ? g->closed - but : 0;
	size_t kept = 0;

	for (struct issued &i : g->issued) {
		if (i.group >= done) {
			if (kept != (size_t)(&i - g->issued.data()))
				g->issued[kept] = std::move(i);
			kept++;
			continue;
		}
		for (const struct piece &r : i.read)
			if (memcmp(r.at, r.was, sizeof r.was) != 0)
				emu_fail("wgmma: an operand at %p was written while the instruction ran", r.at);
		for (const auto &r : i.registers)
			if (*r.first != r.second)
				emu_fail("wgmma: an operand at %p was written while the instruction ran", (const void *)r.first);
	}
	g->issued.resize(kept);
	for (auto s = g->sums.begin(); s != g->sums.end();) {
		bool busy = false;

		for (const struct issued &i : g->issued)
			busy |= (void *)i.d[0] == s->first;
		if (busy) {
			++s;
			continue;
		}
		give(&s->second);
		s = g->sums.erase(s);
	}
	if (g->issued.empty() && g->sums.empty())
		g->closed = 0;
}
