/* A block of threads as fibers, and every way in which they wait for each other.
 *
 * A thread runs until it has to wait; the last one that comes to a meeting does what the meeting is for and goes on, the
 * others are then ready again. When nothing is ready in a whole cluster and something waits, it can never end: that, and threads
 * that meet at different lines, end the process with a list of who waits where. */
#include "block.h"

#include <algorithm>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <dlfcn.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

struct emu_thread *emu_now;
uint3 blockIdx;
dim3 blockDim, gridDim;

#ifdef __SANITIZE_ADDRESS__
enum { STACK = 512 << 10 };
#else
enum { STACK = 256 << 10 };
#endif
/* Running blocks and those that have begun early, two clusters a stream; stacks spread over cache sets. */
enum { POOLS = 64, COLOUR = 16 << 10, LAST_CALLS = 16 << 10 };
enum { TURNS = 4 }; /* at one in so many barriers of a block another of its cluster runs */

struct emu_block *emu_block_now;

/* ---------------------------------------------------------------- order */

unsigned emu_seed(void)
{
	static const unsigned seed = getenv("FH_EMU_SEED") ? (unsigned)strtoul(getenv("FH_EMU_SEED"), nullptr, 10) : 0;

	return seed;
}

unsigned emu_choice(unsigned n)
{
	static uint64_t state = emu_seed();

	if (!emu_seed() || n < 2)
		return 0;
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)((state >> 33) % n);
}

/* ---------------------------------------------------------------- messages */

/* Where it waits for lanes of its warp. */
static const struct meeting *meeting_of(const struct emu_thread *t)
{
	const struct emu_warp_state *w = t->home;

	if (w->whole.arrived >> t->lane & 1)
		return &w->whole;
	for (const struct meeting &m : w->some)
		if (m.arrived >> t->lane & 1)
			return &m;
	return nullptr;
}

static const char *state_of(const struct emu_thread *t, char *text, size_t size)
{
	if (t->ended)
		snprintf(text, size, "has ended");
	else if (t->held)
		snprintf(text, size, "waits for the launch in front at line %d", t->line);
	else if (const struct meeting *m = meeting_of(t))
		snprintf(text, size, "waits at %s, line %d, lanes %08x", m->what, m->line, m->mask);
	else if (t->what)
		snprintf(text, size, "waits at %s, line %d", t->what, t->line);
	else
		snprintf(text, size, "runs");
	return text;
}

/* Who waits where, threads of the same state together. */
static void show_threads(const struct emu_block *b)
{
	char text[160], next[160];

	emu_exchange_show(b);
	for (unsigned from = 0, to; from < b->threads; from = to) {
		state_of(&b->thread[from], text, sizeof text);
		for (to = from + 1; to < b->threads && !strcmp(text, state_of(&b->thread[to], next, sizeof next)); to++)
			;
		fprintf(stderr, "emu:   threads %u to %u: %s\n", from, to - 1, text);
	}
}

/* The kernel's name from debug information, where a tool that reads it is at hand. */
static void show_kernel(const void *function)
{
	char command[512], name[512];
	Dl_info info;
	FILE *p;

	if (!dladdr(function, &info) || !info.dli_fname)
		return;
	snprintf(command, sizeof command, "addr2line -f -C -e '%s' %#zx 2>/dev/null", info.dli_fname, (size_t)((const char *)function - (const char *)info.dli_fbase));
	p = popen(command, "r");
	if (p && fgets(name, sizeof name, p))
		fprintf(stderr, "emu: in %s", name);
	if (p)
		pclose(p);
}

[[noreturn]] void emu_fail(const char *format, ...)
{
	va_list list;

	fprintf(stderr, "emu: ");
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, "\n");
	if (emu_block_now) {
		show_kernel(emu_block_now->kernel->function);
		fprintf(stderr, "emu: kernel %s\n", emu_block_now->kernel->type);
		fprintf(stderr, "emu: grid %u x %u x %u, block (%u, %u, %u) of %u threads, seed %u\n", gridDim.x, gridDim.y, gridDim.z, blockIdx.x,
			blockIdx.y, blockIdx.z, emu_block_now->threads, emu_seed());
		if (emu_now)
			fprintf(stderr, "emu: thread (%u, %u, %u), warp %u, lane %u\n", emu_now->index.x, emu_now->index.y, emu_now->index.z, emu_now->warp,
				emu_now->lane);
		show_threads(emu_block_now);
		for (unsigned i = 0; i < emu_block_now->cluster->size; i++)
			if (const struct emu_block *b = emu_block_now->cluster->block[i]; b != emu_block_now) {
				fprintf(stderr, "emu: block (%u, %u, %u) of the same cluster:\n", b->index.x, b->index.y, b->index.z);
				show_threads(b);
			}
	}
	fflush(stderr);
	abort();
}

/* ---------------------------------------------------------------- fibers */

static char *stacks[POOLS];
static unsigned guarded[POOLS]; /* how many of them have a page that nobody may touch */
static struct emu_thread *threads_of[POOLS]; /* never freed: they keep room for their copies */
static bool pool_taken[POOLS];

int emu_pool_take(void)
{
	int pool = 0;

	while (pool < POOLS && pool_taken[pool])
		pool++;
	if (pool == POOLS)
		emu_fail("more than %d blocks at once", POOLS);
	pool_taken[pool] = true;
	return pool;
}
void emu_pool_give(int pool) { pool_taken[pool] = false; }
struct emu_thread *emu_pool_threads(int pool)
{
	if (!threads_of[pool])
		threads_of[pool] = new emu_thread[EMU_THREADS_MAX]();
	return threads_of[pool];
}

static char *stack_of(int pool, unsigned i)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!stacks[pool]) {
		void *p = mmap(nullptr, (size_t)STACK * EMU_THREADS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (p == MAP_FAILED)
			emu_fail("no address space for %d stacks of %d bytes", EMU_THREADS_MAX, STACK);
		stacks[pool] = (char *)p;
	}
	for (; guarded[pool] <= i; guarded[pool]++)
		mprotect(stacks[pool] + (size_t)guarded[pool] * STACK, page, PROT_NONE);
	return stacks[pool] + (size_t)i * STACK + page;
}
static size_t stack_size(void) { return STACK - (size_t)sysconf(_SC_PAGESIZE); }

static void thread_main(void);

#ifdef __x86_64__
/* Saves what a call must keep, and the stack pointer in *from; goes on where `to` was saved. */
extern "C" void emu_swap(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n.hidden emu_swap\n.globl emu_swap\n.type emu_swap,@function\nemu_swap:\n"
	"\tpushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n"
	"\tmovq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n"
	"\tpopq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret\n.size emu_swap,.-emu_swap\n");

void *emu_fresh_stack(int pool, unsigned i)
{
	char *top = stack_of(pool, i) + stack_size() - (size_t)i * 1088 % COLOUR / 64 * 64;
	void **sp = (void **)(((uintptr_t)top & ~(uintptr_t)15) - 8);

#ifdef __SANITIZE_ADDRESS__
	/* a fiber that ended never returned from its last calls, whose frames lie close to the top */
	__asan_unpoison_memory_region(stack_of(pool, i) + stack_size() - COLOUR - LAST_CALLS, COLOUR + LAST_CALLS);
#endif
	*sp = nullptr; /* where thread_main would return to: it never does */
	*--sp = (void *)thread_main;
	for (int k = 0; k < 6; k++)
		*--sp = nullptr;
	return sp;
}
static void swap(void **from, void *to) { emu_swap(from, to); }
#else
static std::vector<ucontext_t *> contexts;
void *emu_fresh_stack(int pool, unsigned i)
{
	ucontext_t *c = new ucontext_t();

	contexts.push_back(c);
	getcontext(c);
	c->uc_stack.ss_sp = stack_of(pool, i);
	c->uc_stack.ss_size = stack_size();
	makecontext(c, thread_main, 0);
	return c;
}
static void swap(void **from, void *to)
{
	ucontext_t here;

	*from = &here;
	swapcontext(&here, (ucontext_t *)to);
}
#endif

/* Where the host is while fibers run. */
static void *host_sp;
#ifdef __SANITIZE_ADDRESS__
static void *host_fake;
static const void *host_bottom;
static size_t host_size;
static bool from_host;

/* On the stack of a fiber that goes on: the first switch away from the host tells where its stack is. */
static void arrived(void *fake)
{
	const void *bottom;
	size_t size;

	__sanitizer_finish_switch_fiber(fake, &bottom, &size);
	if (from_host)
		host_bottom = bottom, host_size = size;
	from_host = false;
}
#endif

/* From the running fiber (or the host) to another fiber of the same block, or back to the host with NULL. */
static void go(struct emu_thread *to)
{
	struct emu_thread *from = emu_now;
	void *sp = to ? to->sp : host_sp;

	emu_now = to;
#ifdef __SANITIZE_ADDRESS__
	const bool last = from && from->ended;
	from_host = !from;
	__sanitizer_start_switch_fiber(last ? nullptr : from ? &from->fake : &host_fake, to ? stack_of(emu_block_now->pool, to->flat) : host_bottom,
				       to ? stack_size() : host_size);
#endif
	swap(from ? &from->sp : &host_sp, sp);
#ifdef __SANITIZE_ADDRESS__
	if (from)
		arrived(from->fake);
	else
		__sanitizer_finish_switch_fiber(host_fake, nullptr, nullptr);
#endif
}

/* From one thread of the block to another: what a warp's operation does most. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
static inline __attribute__((always_inline)) void switch_to(struct emu_thread *from, struct emu_thread *to)
{
	emu_now = to;
	emu_swap(&from->sp, to->sp);
}
#else
static inline void switch_to(struct emu_thread *, struct emu_thread *to) { go(to); }
#endif

/* The next thread that can run, by the seed's direction; NULL: none. */
static const bool down = emu_seed() & 1;
static inline unsigned pick(unsigned ready)
{
	return down ? 31 - (unsigned)__builtin_clz(ready) : (unsigned)__builtin_ctz(ready);
}
static struct emu_thread *next_ready(void)
{
	const struct emu_warp_state *w = emu_now ? emu_now->home : nullptr;

	if (!w || !w->ready) {
		if (!emu_block_now->warps_ready)
			return nullptr;
		w = &emu_block_now->warp[pick(emu_block_now->warps_ready)];
	}
	return w->first + pick(w->ready);
}

void emu_ready(struct emu_block *b, unsigned warp, unsigned lanes)
{
	b->warp[warp].ready |= lanes;
	if (b->warp[warp].ready)
		b->warps_ready |= 1u << warp;
}
static void clear_ready(const struct emu_thread *t)
{
	struct emu_warp_state *w = t->home;

	w->ready &= ~(1u << t->lane);
	if (!w->ready)
		emu_block_now->warps_ready &= ~(1u << t->warp);
}

void emu_wait_here(void)
{
	clear_ready(emu_now);
	go(next_ready());
}
void emu_yield(void) { go(nullptr); }

void emu_block_go(struct emu_block *b)
{
	emu_block_now = b;
	blockIdx = b->index, blockDim = b->kernel->block, gridDim = b->kernel->grid;
	emu_now = nullptr;
	go(next_ready());
}

void emu_copies_end(void); /* ptx.cc */

static void thread_main(void)
{
#ifdef __SANITIZE_ADDRESS__
	arrived(nullptr);
#endif
	emu_block_now->kernel->body();
	struct emu_thread *t = emu_now;

	if (emu_block_now->kernel->dependent && !t->waited)
		emu_fail("the thread ends without having waited for the launch in front of it");
	emu_copies_end();
	t->ended = true;
	emu_block_now->ended++;
	emu_exchange_ends();
	emu_block_now->warp[t->warp].ended |= 1u << t->lane;
	emu_wait_here();
	emu_fail("a thread that has ended runs");
}

/* ---------------------------------------------------------------- meetings */

void emu_warp(const char *what, int line, unsigned mask, void *arg, void (*op)(void *const arg[32], unsigned mask))
{
	struct emu_thread *t = emu_now;
	struct emu_warp_state *w = t->home;

	if (__builtin_expect(!(mask >> t->lane & 1), 0))
		emu_fail("%s, line %d: the lane is not in its own mask %08x", what, line, mask);
	mask &= w->all; /* a whole warp's mask in a block that ends within it */
	struct meeting *m = mask == w->all ? &w->whole : &w->some[__builtin_ctz(mask)];
	if (!m->arrived)
		m->what = what, m->line = line, m->mask = mask;
	else if (m->mask != mask || m->line != line || (m->what != what && strcmp(m->what, what) != 0))
		emu_fail("%s, line %d, lanes %08x: other lanes of the warp are at %s, line %d, lanes %08x", what, line, mask, m->what, m->line, m->mask);
	m->arg[t->lane] = arg;
	m->arrived |= 1u << t->lane;
	if (m->arrived == mask) {
		if (op)
			op(m->arg, mask);
		m->arrived = 0;
		w->ready |= mask; /* this lane is, so the warp is */
		return;
	}
	const unsigned ready = w->ready & ~(1u << t->lane);
	if (!ready) {
		emu_wait_here();
		return;
	}
	w->ready = ready;
	switch_to(t, w->first + pick(ready));
}

/* Every thread of the block; returns true in the last one. */
static void block_meets(const char *what, int line)
{
	struct emu_block *b = emu_block_now;

	if (!b->arrived)
		b->barrier_what = what, b->barrier_line = line;
	else if (b->barrier_line != line || (b->barrier_what != what && strcmp(b->barrier_what, what) != 0))
		emu_fail("%s, line %d: other threads of the block are at %s, line %d", what, line, b->barrier_what, b->barrier_line);
	if (++b->arrived < b->threads) {
		struct emu_thread *t = emu_now;

		t->what = what, t->line = line;
		emu_wait_here();
		t->what = nullptr;
		return;
	}
	b->arrived = 0;
	b->counted_last = b->counted;
	b->counted = 0;
	for (unsigned w = 0; w < b->warps; w++)
		emu_ready(b, w, b->warp[w].all);
	if (b->cluster->size > 1 && emu_choice(TURNS) == 1)
		emu_yield();
}
void emu_sync(const char *what, int line) { block_meets(what, line); }
void emu_group_sync(int which, int line)
{
	struct emu_block *b = emu_block_now;
	struct emu_thread *t = emu_now;

	if (which < 0 || which >= EMU_WARPS_MAX / 4)
		emu_fail("line %d: no barrier %d of a warpgroup", line, which);
	auto &g = b->group[which];
	if (!g.owner)
		g.owner = t->warp / 4 + 1;
	if (g.who.empty())
		g.line = line;
	if (g.line != line || g.owner != t->warp / 4 + 1)
		emu_fail("ptx_group_sync(%d), line %d: others are there at line %d, of warpgroup %u", which, line, g.line, g.owner - 1);
	if (g.who.size() + 1 < 128) {
		g.who.push_back(t);
		t->what = "ptx_group_sync()", t->line = line;
		emu_wait_here();
		t->what = nullptr;
		return;
	}
	for (struct emu_thread *w : g.who)
		emu_ready(b, w->warp, 1u << w->lane);
	g.who.clear();
}
int emu_count(int predicate, int line, const char *what)
{
	emu_block_now->counted += predicate != 0;
	block_meets(what, line);
	return emu_block_now->counted_last;
}

void emu_shuffle_op(void *const arg[32], unsigned mask)
{
	uint64_t value[32] = {};

	for (int l = 0; l < 32; l++)
		if (mask >> l & 1)
			value[l] = ((struct emu_shuffle *)arg[l])->value;
	for (int l = 0; l < 32; l++)
		if (mask >> l & 1) {
			struct emu_shuffle *s = (struct emu_shuffle *)arg[l];

			if (s->from < 0 || s->from > 31 || !(mask >> s->from & 1))
				emu_fail("lane %d reads lane %d, which is not in the mask %08x", l, s->from, mask);
			s->value = value[s->from];
		}
}

void emu_ballot_op(void *const arg[32], unsigned mask)
{
	uint64_t all = 0;

	for (int l = 0; l < 32; l++)
		if (mask >> l & 1)
			all |= ((struct emu_shuffle *)arg[l])->value << l;
	for (int l = 0; l < 32; l++)
		if (mask >> l & 1)
			((struct emu_shuffle *)arg[l])->value = all;
}
