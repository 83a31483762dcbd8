/* Blocks and the clusters that they run in, from a launch to its end: shared memory, the order of blocks, and the launch in front,
 * which a cluster that has begun early waits for.
 *
 * A launch's clusters run one after another; of those that have begun early each has blocks, stacks and memory of its own. */
#include "block.h"

#include <algorithm>
#include <map>
#include <stdlib.h>

enum { WAKES = 4 }; /* after a block's turn those that doze wake, one time in so many */

static std::map<const void *, bool> lets_next; /* by kernel */

/* ---------------------------------------------------------------- __shared__ variables */

/* Bounds of those of all kernels. */
extern "C" char __start_fh_shared[] __attribute__((weak, visibility("hidden"))), __stop_fh_shared[] __attribute__((weak, visibility("hidden")));
static size_t statics_size(void) { return (size_t)(__stop_fh_shared - __start_fh_shared); }

static struct emu_block *loaded; /* whose lie there */

#ifdef __SANITIZE_ADDRESS__
/* The room between variables is AddressSanitizer's, which watches every access but this one. */
__attribute__((no_sanitize("address"), optimize("no-tree-loop-distribute-patterns"))) void emu_move(char *to, const char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = from ? from[i] : (char)0xff;
}
#else
void emu_move(char *to, const char *from, size_t bytes)
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
	emu_move(loaded->statics.data(), __start_fh_shared, statics_size());
	loaded = nullptr;
}
static void load(struct emu_block *b)
{
	if (loaded == b)
		return;
	put_aside();
	emu_move(__start_fh_shared, b->statics.empty() ? nullptr : b->statics.data(), statics_size());
	loaded = b;
}

uintptr_t emu_statics(void) { return (uintptr_t)__start_fh_shared; }
size_t emu_statics_size(void) { return statics_size(); }
char *emu_statics_of(struct emu_block *b) { return b == loaded ? __start_fh_shared : b->statics.data(); }

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
		b->store = new std::vector<struct emu_store>[b->threads];
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
	b->barrier.clear();
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
	c->under_way.clear();
	for (auto &d : c->dozing)
		d.clear();
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
		if (!n) {
			const bool wake = emu_choice(2);

			if ((wake && emu_exchange_wake(c)) || emu_exchange_deliver(c, false) || emu_exchange_wake(c))
				continue;
			break;
		}
		struct emu_block *b = ready[emu_choice(n)];
		load(b);
		emu_block_go(b);
		emu_exchange_deliver(c, true);
		if (emu_choice(WAKES) == 1)
			emu_exchange_wake(c);
	}
	for (unsigned r = 0; r < c->size; r++)
		ended += c->block[r]->ended, held += c->block[r]->held, threads += c->block[r]->threads;
	if (ended < threads && !(c->begin_only && held))
		emu_fail("the %s cannot go on: %u of %u threads have ended, the others wait for ever", c->size > 1 ? "cluster" : "block", ended, threads);
	emu_block_now = nullptr;
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
