/* Blocks and the clusters that they run in, from a launch to its end: shared memory, the order of blocks, what blocks of a cluster
 * store into each other, their barrier, and the launch in front, which a cluster that has begun early waits for.
 *
 * A store into another block lands when all have met that its thread has told of it. Whoever reads it without having waited,
 * overwrites what the other still reads, or ends too early, is found in every order or in some. */
#include "block.h"
#include <emu_ptx.h>

#include <algorithm>
#include <map>
#include <stdlib.h>

static std::map<const void *, bool> lets_next; /* by kernel */

/* ---------------------------------------------------------------- __shared__ variables */

/* Bounds of those of all kernels. */
extern "C" char __start_fh_shared[] __attribute__((weak, visibility("hidden"))), __stop_fh_shared[] __attribute__((weak, visibility("hidden")));
static size_t statics_size(void) { return (size_t)(__stop_fh_shared - __start_fh_shared); }

static struct emu_block *loaded; /* whose lie there */

#ifdef __SANITIZE_ADDRESS__
/* The room between variables is AddressSanitizer's, which watches every access but this one. */
__attribute__((no_sanitize("address"), optimize("no-tree-loop-distribute-patterns"))) static void move(char *to, const char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = from ? from[i] : (char)0xff;
}
#else
static void move(char *to, const char *from, size_t bytes) /* from NULL: poison */
{
	if (from)
		memcpy(to, from, bytes);
	else
		memset(to, 0xff, bytes);
}
#endif

static void put_aside(void)
{
	if (!loaded)
		return;
	loaded->statics.resize(statics_size());
	move(loaded->statics.data(), __start_fh_shared, statics_size());
	loaded = nullptr;
}
static void load(struct emu_block *b)
{
	if (loaded == b)
		return;
	put_aside();
	move(__start_fh_shared, b->statics.empty() ? nullptr : b->statics.data(), statics_size());
	loaded = b;
}

/* ---------------------------------------------------------------- blocks */

void *emu_dynamic_shared(void) { return emu_block_now->shared; }

static struct emu_block *block_new(const struct emu_kernel *k)
{
	struct emu_block *b = new emu_block();

	b->kernel = k;
	b->threads = k->block.x * k->block.y * k->block.z;
	b->warps = (b->threads + EMU_WARP - 1) / EMU_WARP;
	b->pool = emu_pool_take();
	b->thread = emu_pool_threads(b->pool);
	if (k->cluster > 1)
		b->store = new std::vector<struct remote_store>[b->threads];
	if (posix_memalign((void **)&b->shared, 128, k->shared ? k->shared : 1))
		emu_fail("no memory for %zu bytes of shared memory", k->shared);
	return b;
}
static void block_free(struct emu_block *b)
{
	if (loaded == b)
		loaded = nullptr;
	emu_pool_give(b->pool);
	free(b->shared);
	delete[] b->store;
	delete b;
}

/* Everything as before the first thread: shared memory holds nothing that a kernel may count on. */
static void block_start(struct emu_block *b)
{
	const dim3 d = b->kernel->block;

	memset(b->shared, 0xff, b->kernel->shared);
	b->statics.clear();
	if (loaded == b)
		loaded = nullptr;
	b->ended = b->held = b->let = b->arrived = b->warps_ready = 0;
	b->counted = 0;
	for (unsigned i = 0; i < b->threads; i++) {
		struct emu_thread *t = &b->thread[i];
		struct emu_copies *copies = t->copies;

		*t = {};
		t->copies = copies;
		t->index = {i % d.x, i / d.x % d.y, i / d.x / d.y};
		t->flat = i, t->warp = i / EMU_WARP, t->lane = i % EMU_WARP, t->home = &b->warp[t->warp];
		t->sp = emu_fresh_stack(b->pool, i);
	}
	for (unsigned w = 0; w < b->warps; w++) {
		const unsigned n = std::min(b->threads - w * EMU_WARP, (unsigned)EMU_WARP);

		b->warp[w].all = b->warp[w].ready = n == EMU_WARP ? 0xffffffffu : (1u << n) - 1;
		b->warp[w].ended = b->warp[w].apart = 0;
		b->warp[w].first = b->thread + w * EMU_WARP;
		b->warps_ready |= 1u << w;
	}
}

/* ---------------------------------------------------------------- clusters */

static struct emu_cluster *cluster_new(const struct emu_kernel *k)
{
	struct emu_cluster *c = new emu_cluster();

	c->size = k->cluster;
	for (unsigned r = 0; r < c->size; r++) {
		c->block[r] = block_new(k);
		c->block[r]->cluster = c;
		c->block[r]->rank = r;
	}
	return c;
}
static void cluster_free(struct emu_cluster *c)
{
	for (unsigned r = 0; r < c->size; r++)
		block_free(c->block[r]);
	delete c;
}

/* The i-th of the grid. */
static void cluster_start(struct emu_cluster *c, uint64_t i)
{
	const dim3 g = c->block[0]->kernel->grid;
	const unsigned in_x = g.x / c->size;

	c->arrived = c->rounds = 0;
	c->begin_only = false;
	c->told.clear();
	for (unsigned r = 0; r < c->size; r++) {
		c->block[r]->index = {(unsigned)(i % in_x) * c->size + r, (unsigned)(i / in_x % g.y), (unsigned)(i / in_x / g.y)};
		block_start(c->block[r]);
	}
}

/* Until nothing is ready: all blocks have ended, or all that can go on are held at the launch in front. */
static void cluster_run(struct emu_cluster *c)
{
	unsigned ended = 0, held = 0, threads = 0;

	for (;;) {
		struct emu_block *ready[EMU_CLUSTER_MAX];
		unsigned n = 0;

		for (unsigned r = 0; r < c->size; r++)
			if (c->block[r]->warps_ready)
				ready[n++] = c->block[r];
		if (!n)
			break;
		struct emu_block *b = ready[emu_choice(n)];
		load(b);
		emu_block_go(b);
	}
	for (unsigned r = 0; r < c->size; r++)
		ended += c->block[r]->ended, held += c->block[r]->held, threads += c->block[r]->threads;
	if (ended < threads && !(c->begin_only && held))
		emu_fail("the %s cannot go on: %u of %u threads have ended, the others wait for ever", c->size > 1 ? "cluster" : "block", ended, threads);
	emu_block_now = nullptr;
}

unsigned emu_cluster_rank(void) { return emu_block_now->rank; }

void emu_cluster_thread_ends(void)
{
	const struct emu_block *b = emu_block_now;

	if (emu_now->told)
		emu_fail("the thread ends between arriving at the barrier of its cluster and waiting there: others may still store into its block");
	if (b->store && !b->store[emu_now->flat].empty())
		emu_fail("the thread ends with stores into other blocks of the cluster that nobody can wait for");
}

/* ---------------------------------------------------------------- stores into other blocks */

/* An address: that it is one, statics or dynamic shared memory, which block, the byte. */
static const uintptr_t REMOTE = (uintptr_t)1 << 63, STATIC = (uintptr_t)1 << 62;
enum { RANK_BIT = 48 };

uintptr_t emu_remote_at(uintptr_t a, unsigned rank)
{
	const struct emu_block *b = emu_block_now;
	const uintptr_t statics = a - (uintptr_t)__start_fh_shared, dynamic = a - (uintptr_t)b->shared;

	if (rank >= b->cluster->size)
		emu_fail("an address in block %u of a cluster of %u", rank, b->cluster->size);
	if (dynamic > b->kernel->shared && statics >= statics_size())
		emu_fail("an address in another block of what is not in shared memory: %#lx", (unsigned long)a);
	return REMOTE | (uintptr_t)rank << RANK_BIT | (dynamic <= b->kernel->shared ? dynamic : STATIC | statics);
}

/* Where it is at the moment. */
static char *place(const struct emu_cluster *c, uintptr_t a, unsigned bytes)
{
	const uintptr_t rank = a >> RANK_BIT & 255, at = a & (((uintptr_t)1 << RANK_BIT) - 1);

	if (!(a & REMOTE) || rank >= c->size)
		emu_fail("a store of %u bytes into another block at %#lx, which ptx_remote_at() has not made", bytes, (unsigned long)a);
	struct emu_block *b = c->block[rank];
	const size_t size = a & STATIC ? statics_size() : b->kernel->shared;
	if (at + bytes > size)
		emu_fail("a store of %u bytes at byte %lu of the %zu that block %u has", bytes, (unsigned long)at, size, b->rank);
	if (at % bytes)
		emu_fail("a store of %u bytes at byte %lu, which is not a multiple", bytes, (unsigned long)at);
	if (b->ended == b->threads)
		emu_fail("a store into block %u of the cluster, which has ended", b->rank);
	return a & STATIC ? (b == loaded ? __start_fh_shared : b->statics.data()) + at : b->shared + at;
}

void emu_remote_store(uintptr_t a, const void *v, unsigned bytes)
{
	struct emu_block *b = emu_block_now;
	struct remote_store s = {a, bytes, {}};

	if ((a & REMOTE) && (a >> RANK_BIT & 255) == b->rank) {
		move(place(b->cluster, a, bytes), (const char *)v, bytes);
		return;
	}
	if (!emu_now->met)
		emu_fail("a store into another block of the cluster before all have met: it may not have begun");
	memcpy(s.value, v, bytes);
	move(place(b->cluster, a, bytes), nullptr, bytes);
	b->store[emu_now->flat].push_back(s);
}

static void meet(struct emu_cluster *c)
{
	for (const struct remote_store &s : c->told)
		move(place(c, s.to, s.bytes), (const char *)s.value, s.bytes);
	c->told.clear();
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
	t->told = true;
	t->round = c->rounds;
	if (release && b->store) {
		std::vector<struct remote_store> &own = b->store[t->flat];

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

/* ---------------------------------------------------------------- overlap */

void emu_wait_before(int line)
{
	struct emu_thread *t = emu_now;

	t->waited = true;
	if (!emu_block_now->cluster->begin_only)
		return;
	t->held = true;
	t->line = line;
	emu_block_now->held++;
	emu_wait_here();
}

void emu_let_next(int line)
{
	if (emu_block_now->kernel->dependent && !emu_now->waited)
		emu_fail("line %d: lets the next launch begin before it has waited for the one in front", line);
	emu_block_now->let++;
}

bool emu_lets_next(const void *function)
{
	auto at = lets_next.find(function);

	return at != lets_next.end() && at->second;
}

/* ---------------------------------------------------------------- a launch */

static uint64_t clusters_of(const struct emu_kernel *k) { return (uint64_t)k->grid.x / k->cluster * k->grid.y * k->grid.z; }

struct emu_cluster *emu_begin(const struct emu_kernel *k)
{
	struct emu_cluster *c;

	if (!k->dependent || !emu_seed())
		return nullptr;
	c = cluster_new(k);
	c->which = emu_choice((unsigned)std::min<uint64_t>(clusters_of(k), 1u << 30));
	cluster_start(c, c->which);
	c->begin_only = true;
	cluster_run(c);
	return c;
}

static void go_on(struct emu_cluster *c)
{
	c->begin_only = false;
	for (unsigned r = 0; r < c->size; r++) {
		struct emu_block *b = c->block[r];

		for (unsigned i = 0; b->held && i < b->threads; i++)
			if (b->thread[i].held) {
				b->thread[i].held = false;
				b->held--;
				emu_ready(b, b->thread[i].warp, 1u << b->thread[i].lane);
			}
	}
	cluster_run(c);
}

void emu_forget(struct emu_cluster *c)
{
	if (c)
		cluster_free(c);
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

void emu_run(const struct emu_kernel *k, struct emu_cluster *early)
{
	const uint64_t n = clusters_of(k);
	struct emu_cluster *c = cluster_new(k);
	uint64_t stride = 1, first = 0;
	bool lets = true;

	if (emu_seed()) { /* through all of them with a stride that has no divisor in common with their number */
		first = emu_choice((unsigned)n);
		for (stride = n - 1 - emu_choice((unsigned)(n / 2 + 1)); stride > 1 && gcd(stride, n) != 1; stride--)
			;
		stride = stride ? stride : 1;
	}
	for (uint64_t i = 0; i < n; i++) {
		const uint64_t at = (first + i * stride) % n;
		struct emu_cluster *now = early && early->which == at ? early : c;

		if (now == early) {
			go_on(now);
		} else {
			cluster_start(now, at);
			cluster_run(now);
		}
		for (unsigned r = 0; r < now->size; r++)
			lets = lets && now->block[r]->let >= now->block[r]->threads;
	}
	auto known = lets_next.emplace(k->function, lets);
	if (!known.second)
		known.first->second = known.first->second && lets;
	cluster_free(c);
	emu_forget(early);
}
