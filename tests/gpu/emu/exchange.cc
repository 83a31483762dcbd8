/* What blocks of a cluster do with each other: addresses in each other's shared memory, stores, the cluster's barrier, mbarriers.
 *
 * A store spoils its target at once and lands at the last moment: a plain one when all have met that its thread has told of it, one
 * that counts at an mbarrier when the phase ends; when it counts is chance, if there is a seed. So whoever reads without having
 * waited, overwrites what the other still reads, or ends too early, is found in every order or in some. */
#include "block.h"
#include <emu_ptx.h>

#include <algorithm>
#include <map>
#include <stdio.h>

unsigned emu_cluster_rank(void) { return emu_block_now->rank; }

/* ---------------------------------------------------------------- addresses */

/* That it is one, statics or dynamic shared memory, which block, the byte. */
static const uintptr_t REMOTE = (uintptr_t)1 << 63, STATIC = (uintptr_t)1 << 62;
enum { RANK_BIT = 48 };
static unsigned rank_of(uintptr_t a) { return a >> RANK_BIT & 255; }
static uintptr_t byte_of(uintptr_t a) { return a & (((uintptr_t)1 << RANK_BIT) - 1); }

uintptr_t emu_remote_at(uintptr_t a, unsigned rank)
{
	const struct emu_block *b = emu_block_now;
	const uintptr_t statics = a - emu_statics(), dynamic = a - (uintptr_t)b->shared;

	if (rank >= b->cluster->size)
		emu_fail("an address in block %u of a cluster of %u", rank, b->cluster->size);
	if (dynamic > b->kernel->shared && statics >= emu_statics_size())
		emu_fail("an address in another block of what is not in shared memory: %#lx", (unsigned long)a);
	return REMOTE | (uintptr_t)rank << RANK_BIT | (dynamic <= b->kernel->shared ? dynamic : STATIC | statics);
}

static struct emu_block *block_of(uintptr_t a)
{
	const struct emu_cluster *c = emu_block_now->cluster;

	if (!(a & REMOTE) || rank_of(a) >= c->size)
		emu_fail("a store into another block at %#lx, which ptx_remote_at() has not made", (unsigned long)a);
	return c->block[rank_of(a)];
}

/* Where it is at the moment. */
static char *place(uintptr_t a, unsigned bytes)
{
	struct emu_block *b = block_of(a);
	const size_t size = a & STATIC ? emu_statics_size() : b->kernel->shared;

	if (byte_of(a) + bytes > size)
		emu_fail("a store of %u bytes at byte %lu of the %zu that block %u has", bytes, (unsigned long)byte_of(a), size, b->rank);
	if (byte_of(a) % bytes)
		emu_fail("a store of %u bytes at byte %lu, which is not a multiple", bytes, (unsigned long)byte_of(a));
	if (b->ended == b->threads)
		emu_fail("a store into block %u of the cluster, which has ended", b->rank);
	return (a & STATIC ? emu_statics_of(b) : b->shared) + byte_of(a);
}

/* What is about to be stored, its target spoilt. */
static struct emu_store sent(uintptr_t a, const void *v, unsigned bytes)
{
	struct emu_store s = {a, bytes, {}, 0, 0};

	if (block_of(a) != emu_block_now && !emu_now->met)
		emu_fail("a store into another block of the cluster before all have met: it may not have begun");
	memcpy(s.value, v, bytes);
	emu_move(place(a, bytes), nullptr, bytes);
	return s;
}
static void land(std::vector<struct emu_store> &all)
{
	for (const struct emu_store &s : all)
		emu_move(place(s.to, s.bytes), (const char *)s.value, s.bytes);
	all.clear();
}

/* ---------------------------------------------------------------- the cluster's barrier */

void emu_remote_store(uintptr_t a, const void *v, unsigned bytes)
{
	struct emu_block *b = emu_block_now;

	if (block_of(a) == b)
		emu_move(place(a, bytes), (const char *)v, bytes);
	else
		b->store[emu_now->flat].push_back(sent(a, v, bytes));
}

static void meet(struct emu_cluster *c)
{
	land(c->told);
	c->arrived = 0;
	c->rounds++;
	for (unsigned r = 0; r < c->size; r++)
		for (unsigned w = 0; w < c->block[r]->warps; w++) {
			emu_ready(c->block[r], w, c->block[r]->warp[w].apart);
			c->block[r]->warp[w].apart = 0;
		}
}

void emu_cluster_arrive(int line, bool release)
{
	struct emu_block *b = emu_block_now;
	struct emu_cluster *c = b->cluster;
	struct emu_thread *t = emu_now;

	emu_warp(release ? "ptx_cluster_arrive()" : "ptx_cluster_arrive_relaxed()", line, 0xffffffffu, nullptr, nullptr);
	if (t->told)
		emu_fail("line %d: arrives at the barrier of its cluster again without having waited", line);
	if (t->unfenced)
		emu_fail("line %d: tells the cluster of an mbarrier without ptx_barrier_init_fence()", line);
	t->told = true;
	t->round = c->rounds;
	if (release && b->store) {
		std::vector<struct emu_store> &own = b->store[t->flat];

		c->told.insert(c->told.end(), own.begin(), own.end());
		own.clear();
	}
	if (++c->arrived == c->size * b->threads)
		meet(c);
}

void emu_cluster_wait(int line)
{
	struct emu_thread *t = emu_now;

	emu_warp("ptx_cluster_wait()", line, 0xffffffffu, nullptr, nullptr);
	if (!t->told)
		emu_fail("line %d: waits at the barrier of its cluster without having arrived", line);
	if (t->round == emu_block_now->cluster->rounds) {
		t->what = "ptx_cluster_wait()", t->line = line;
		t->home->apart |= 1u << t->lane;
		emu_wait_here();
		t->what = nullptr;
	}
	t->told = false;
	t->met = true;
}

/* ---------------------------------------------------------------- mbarriers */

/* Where others may go on, somebody may be slow. */
enum { DOZES = 8 };
static void doze(void)
{
	struct emu_block *b = emu_block_now;

	if (emu_choice(DOZES) != 1)
		return;
	b->cluster->dozing[b->rank].push_back(emu_now);
	emu_wait_here();
}
bool emu_exchange_wake(struct emu_cluster *c)
{
	bool any = false;

	for (unsigned r = 0; r < c->size; r++) {
		for (const struct emu_thread *t : c->dozing[r])
			emu_ready(c->block[r], t->warp, 1u << t->lane), any = true;
		c->dozing[r].clear();
	}
	return any;
}

static const uint64_t MARK = 0x6d62617272696572; /* lies where one is */

static struct emu_mbarrier *barrier_at(struct emu_block *b, uintptr_t bar, int line)
{
	auto at = b->barrier.find(byte_of(bar) | (bar & STATIC));
	uint64_t mark;

	if (at == b->barrier.end())
		emu_fail("line %d: no mbarrier at byte %lu of block %u", line, (unsigned long)byte_of(bar), b->rank);
	emu_move((char *)&mark, place(bar, sizeof mark), sizeof mark);
	if (mark != MARK)
		emu_fail("line %d: something has overwritten the mbarrier at byte %lu of block %u", line, (unsigned long)byte_of(bar), b->rank);
	return &at->second;
}
static struct emu_mbarrier *own_barrier(uintptr_t bar, int line)
{
	return barrier_at(emu_block_now, emu_remote_at(bar, emu_block_now->rank), line);
}

void emu_barrier_init(uintptr_t bar, unsigned count, int line)
{
	const uintptr_t at = emu_remote_at(bar, emu_block_now->rank);
	struct emu_mbarrier *m = &emu_block_now->barrier[byte_of(at) | (at & STATIC)];

	if (!count)
		emu_fail("line %d: an mbarrier of no arrivals", line);
	if (!m->sent.empty())
		emu_fail("line %d: makes an mbarrier anew while bytes are on their way to it", line);
	*m = {};
	m->count = m->pending = count;
	emu_move(place(at, sizeof MARK), (const char *)&MARK, sizeof MARK);
	emu_now->unfenced = emu_block_now->cluster->size > 1;
}
void emu_barrier_init_fence(void) { emu_now->unfenced = false; }

/* The phase has ended, if it has: who waits looks again. */
static void barrier_look(struct emu_block *b, struct emu_mbarrier *m, int line)
{
	if (m->pending)
		return;
	if (m->missing < 0)
		emu_fail("line %d: %ld bytes more have come to an mbarrier of block %u than it expects in this phase", line, -m->missing, b->rank);
	if (m->missing)
		return;
	land(m->sent);
	m->phase++;
	m->pending = m->count;
	for (unsigned i = 0; i < b->threads; i++)
		if (b->thread[i].at == m) {
			b->thread[i].at = nullptr;
			emu_ready(b, b->thread[i].warp, 1u << b->thread[i].lane);
		}
}

void emu_barrier_arrive(uintptr_t bar, unsigned bytes, int line)
{
	struct emu_mbarrier *m = own_barrier(bar, line);

	if (!m->pending)
		emu_fail("line %d: arrives at an mbarrier at which all have arrived", line);
	m->pending--;
	m->missing += bytes;
	barrier_look(emu_block_now, m, line);
	doze();
}

void emu_barrier_wait(uintptr_t bar, unsigned parity, int line)
{
	struct emu_mbarrier *m = own_barrier(bar, line);
	struct emu_thread *t = emu_now;

	while ((m->phase & 1) == parity) {
		t->what = "ptx_barrier_wait()", t->line = line;
		t->at = m;
		emu_wait_here();
		t->what = nullptr;
	}
	m->waited = m->phase;
}

static void count(const struct emu_store &s)
{
	struct emu_block *b = block_of(s.to);
	struct emu_mbarrier *m = barrier_at(b, s.bar, s.line);

	m->sent.push_back(s);
	m->missing -= s.bytes;
	m->with_bytes = m->phase + 1;
	barrier_look(b, m, s.line);
}

void emu_remote_async(uintptr_t a, const void *v, unsigned bytes, uintptr_t bar, int line)
{
	struct emu_block *b = block_of(a);

	if (block_of(bar) != b)
		emu_fail("line %d: a store into block %u that counts at an mbarrier of block %u", line, b->rank, block_of(bar)->rank);
	struct emu_store on_its_way = sent(a, v, bytes);
	on_its_way.bar = bar, on_its_way.line = line;
	barrier_at(b, bar, line);
	if (emu_seed())
		b->cluster->under_way.push_back(on_its_way);
	else
		count(on_its_way);
	doze();
}

/* ---------------------------------------------------------------- boxes */

enum { BOX_ROW = 128, BOX_ALIGN = 1024 };

int emu_tensor_map_make(struct emu_tensor_map *map, const void *base, int n, const uint64_t *size, const uint64_t *stride, const uint32_t *box)
{
	*map = {(const char *)base, n, {}, {}, {}};
	if (n < 3 || n > 5 || (uintptr_t)base % 16 || box[0] * 2 != BOX_ROW)
		return 0;
	for (int i = 0; i < n; i++) {
		map->size[i] = size[i], map->box[i] = box[i];
		if (i + 1 < n)
			map->stride[i] = stride[i];
		if (!size[i] || size[i] >> 32 || !box[i] || box[i] > 256 || (i + 1 < n && (!stride[i] || stride[i] % 16 || stride[i] >> 40)))
			return 0;
	}
	return 1;
}

/* Row r of a box that begins at c; NULL: outside. left: how many of its elements are inside. */
static const char *row_of(const struct emu_tensor_map *map, const int *c, unsigned r, unsigned *left)
{
	const char *p = map->base;

	for (int i = 1; i < map->n; i++) {
		const long at = (long)c[i] + r % map->box[i];

		r /= map->box[i];
		if (at < 0 || at >= (long)map->size[i])
			return nullptr;
		p += (uint64_t)at * map->stride[i - 1];
	}
	if (c[0] < 0 || c[0] >= (long)map->size[0])
		return nullptr;
	*left = (unsigned)std::min<uint64_t>(map->box[0], map->size[0] - (uint64_t)c[0]);
	return p + (size_t)c[0] * 2;
}
static unsigned rows_of(const struct emu_tensor_map *map)
{
	unsigned rows = 1;

	for (int i = 1; i < map->n; i++)
		rows *= map->box[i];
	return rows;
}
/* The 16 bytes q of a row of shared memory are where others are that the row's address says. */
static void swizzle(unsigned char *to, const unsigned char *from, uintptr_t at)
{
	for (unsigned q = 0; q < BOX_ROW / 16; q++)
		memcpy(to + (q ^ (at / BOX_ROW & 7)) * 16, from + q * 16, 16);
}

void emu_box_load(uintptr_t to, const struct emu_tensor_map *map, const int *c, uintptr_t bar, int line)
{
	const unsigned rank = emu_block_now->rank;

	if (to % BOX_ALIGN || (uintptr_t)map % 64)
		emu_fail("line %d: a box to %#lx, by a map at %p", line, (unsigned long)to, (const void *)map);
	barrier_at(emu_block_now, emu_remote_at(bar, rank), line);
	for (unsigned r = 0; r < rows_of(map); r++) {
		unsigned left = 0;
		unsigned char row[BOX_ROW] = {}, place[BOX_ROW];
		const char *from = row_of(map, c, r, &left);

		if (from)
			memcpy(row, from, left * 2);
		swizzle(place, row, to + r * BOX_ROW);
		struct emu_store s = sent(emu_remote_at(to + r * BOX_ROW, rank), place, BOX_ROW);
		s.bar = emu_remote_at(bar, rank), s.line = line;
		emu_block_now->cluster->under_way.push_back(s); /* in the natural order too it counts when nobody can go on */
	}
	doze();
}

struct box { uintptr_t from; struct emu_tensor_map map; int c[3], line; std::vector<unsigned char> bytes; };
static std::map<const struct emu_thread *, std::vector<struct box>> going;

void emu_box_store(uintptr_t from, const struct emu_tensor_map *map, const int *c, int line)
{
	if (from % BOX_ALIGN || (uintptr_t)map % 64 || map->n != 3)
		emu_fail("line %d: a box from %#lx, by a map at %p", line, (unsigned long)from, (const void *)map);
	struct box b = {from, *map, {c[0], c[1], c[2]}, line, {}};

	b.bytes.resize((size_t)rows_of(map) * BOX_ROW);
	emu_move((char *)b.bytes.data(), (const char *)from, b.bytes.size());
	going[emu_now].push_back(std::move(b));
}

void emu_box_wait(void)
{
	auto at = going.find(emu_now);

	if (at == going.end())
		return;
	for (const struct box &b : at->second)
		for (unsigned r = 0; r < rows_of(&b.map); r++) {
			const unsigned char *now = (const unsigned char *)b.from + r * BOX_ROW;
			unsigned char row[BOX_ROW];
			unsigned left = 0;

			if (memcmp(now, b.bytes.data() + r * BOX_ROW, BOX_ROW) != 0)
				emu_fail("line %d: row %u of a box was written while it was on its way to memory", b.line, r);
			swizzle(row, now, b.from + r * BOX_ROW);
			if (char *to = const_cast<char *>(row_of(&b.map, b.c, r, &left)))
				memcpy(to, row, left * 2);
		}
	going.erase(at);
}

bool emu_exchange_deliver(struct emu_cluster *c, bool some)
{
	std::vector<struct emu_store> &u = c->under_way;

	if (u.empty())
		return false;
	for (unsigned n = some ? emu_choice((unsigned)u.size() + 1) : 1; n; n--) {
		std::swap(u[emu_choice((unsigned)u.size())], u.back());
		const struct emu_store s = u.back();

		u.pop_back();
		count(s);
	}
	return true;
}

/* ---------------------------------------------------------------- the end */

void emu_exchange_ends(void)
{
	const struct emu_block *b = emu_block_now;

	if (going.count(emu_now))
		emu_fail("the thread ends with boxes on their way to memory");

	if (emu_now->told)
		emu_fail("the thread ends between arriving at the barrier of its cluster and waiting there: others may still store into its block");
	if (b->store && !b->store[emu_now->flat].empty())
		emu_fail("the thread ends with stores into other blocks of the cluster that nobody can wait for");
	if (b->ended < b->threads)
		return;
	for (const auto &at : b->barrier)
		if (at.second.with_bytes > at.second.waited)
			emu_fail("the block ends, and nobody in it has waited for what was sent to the mbarrier at byte %lu", (unsigned long)byte_of(at.first));
	for (const struct emu_store &s : b->cluster->under_way)
		if (block_of(s.to) == b)
			emu_fail("the block ends, and nobody in it has waited for what is on its way to the mbarrier at byte %lu", (unsigned long)byte_of(s.bar));
}

void emu_exchange_show(const struct emu_block *b)
{
	for (const auto &at : b->barrier)
		fprintf(stderr, "emu:   mbarrier at byte %lu%s: %u phases have ended, %u of %u arrivals and %ld bytes are missing\n",
			(unsigned long)byte_of(at.first), at.first & STATIC ? " of __shared__" : "", at.second.phase, at.second.pending, at.second.count,
			at.second.missing);
}
