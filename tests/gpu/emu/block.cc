/* A block of threads as fibers, and every way in which they wait for each other.
 *
 * A thread runs until it has to wait; the last one that comes to a meeting does what the meeting is for and goes on, the
 * others are then ready again. When nothing is ready and something waits, the block can never end: that, and threads that
 * meet at different lines, end the process with a list of who waits where. */
#include "emu.h"

#include <algorithm>
#include <map>
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
enum { POOLS = 16, COLOUR = 16 << 10, LAST_CALLS = 16 << 10 }; /* a running block and those that have begun early, two a stream; stacks spread over cache sets */

struct meeting { const char *what; int line; unsigned mask, arrived; void *arg[EMU_WARP]; };
struct emu_warp_state {
	unsigned all, ready, ended; /* lanes */
	struct emu_thread *first;
	struct meeting whole;                /* of all lanes */
	struct meeting some[EMU_WARP];       /* of some, by the lowest */
};

struct emu_block {
	const struct emu_kernel *kernel;
	uint3 index;
	unsigned threads, warps, ended, held, warps_ready;
	bool begin_only;         /* stop at the launch in front */
	unsigned arrived;        /* at the block's barrier */
	const char *barrier_what;
	int barrier_line, counted, counted_last;
	bool lets_next;          /* by every thread so far */
	unsigned let;            /* threads that did */
	int pool;
	char *shared;
	std::vector<char> statics; /* its __shared__ variables, while another block runs */
	void *host_sp, *host_fake;
	const void *host_bottom;
	size_t host_size;
	struct emu_thread *thread; /* [threads] */
	struct emu_warp_state warp[EMU_WARPS_MAX];
};

static struct emu_block *block; /* that runs */
static std::map<const void *, bool> lets_next; /* by kernel */

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
	if (block) {
		show_kernel(block->kernel->function);
		fprintf(stderr, "emu: kernel %s\n", block->kernel->type);
		fprintf(stderr, "emu: grid %u x %u x %u, block (%u, %u, %u) of %u threads, seed %u\n", gridDim.x, gridDim.y, gridDim.z, blockIdx.x,
			blockIdx.y, blockIdx.z, block->threads, emu_seed());
		if (emu_now)
			fprintf(stderr, "emu: thread (%u, %u, %u), warp %u, lane %u\n", emu_now->index.x, emu_now->index.y, emu_now->index.z, emu_now->warp,
				emu_now->lane);
		show_threads(block);
	}
	fflush(stderr);
	abort();
}

/* ---------------------------------------------------------------- fibers */

static char *stacks[POOLS];
static struct emu_thread *threads_of[POOLS]; /* never freed: they keep room for their copies */
static bool pool_taken[POOLS];

static char *stack_of(int pool, unsigned i)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!stacks[pool]) {
		void *p = mmap(nullptr, (size_t)STACK * EMU_THREADS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (p == MAP_FAILED)
			emu_fail("no address space for %d stacks of %d bytes", EMU_THREADS_MAX, STACK);
		stacks[pool] = (char *)p;
		for (int k = 0; k < EMU_THREADS_MAX; k++)
			mprotect(stacks[pool] + (size_t)k * STACK, page, PROT_NONE);
	}
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

static void *fresh_stack(int pool, unsigned i)
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
static void *fresh_stack(int pool, unsigned i)
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

/* From the running fiber (or the host) to another fiber, or back to the host with NULL. */
static void go(struct emu_thread *to)
{
	struct emu_thread *from = emu_now;
	void *sp = to ? to->sp : block->host_sp;

	emu_now = to;
#ifdef __SANITIZE_ADDRESS__
	const bool last = from && from->ended;
	__sanitizer_start_switch_fiber(last ? nullptr : from ? &from->fake : &block->host_fake, to ? stack_of(block->pool, to->flat) : block->host_bottom,
				       to ? stack_size() : block->host_size);
#endif
	swap(from ? &from->sp : &block->host_sp, sp);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(from ? from->fake : block->host_fake, nullptr, nullptr);
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
		if (!block->warps_ready)
			return nullptr;
		w = &block->warp[pick(block->warps_ready)];
	}
	return w->first + pick(w->ready);
}

static void set_ready(unsigned warp, unsigned lanes)
{
	block->warp[warp].ready |= lanes;
	if (block->warp[warp].ready)
		block->warps_ready |= 1u << warp;
}
static void clear_ready(const struct emu_thread *t)
{
	struct emu_warp_state *w = t->home;

	w->ready &= ~(1u << t->lane);
	if (!w->ready)
		block->warps_ready &= ~(1u << t->warp);
}

/* The running thread waits until it is made ready. */
static void wait_here(void)
{
	clear_ready(emu_now);
	go(next_ready());
}

void emu_copies_end(void); /* ptx.cc */

static void thread_main(void)
{
#ifdef __SANITIZE_ADDRESS__
	const void *bottom;
	size_t size;
	/* the host's stack is known from the first switch away from it */
	__sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
	if (!block->host_bottom)
		block->host_bottom = bottom, block->host_size = size;
#endif
	block->kernel->body();
	struct emu_thread *t = emu_now;

	if (block->kernel->dependent && !t->waited)
		emu_fail("the thread ends without having waited for the launch in front of it");
	emu_copies_end();
	t->ended = true;
	block->ended++;
	block->warp[t->warp].ended |= 1u << t->lane;
	wait_here();
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
		wait_here();
		return;
	}
	w->ready = ready;
	switch_to(t, w->first + pick(ready));
}

/* Every thread of the block; returns true in the last one. */
static void block_meets(const char *what, int line)
{
	struct emu_block *b = block;

	if (!b->arrived)
		b->barrier_what = what, b->barrier_line = line;
	else if (b->barrier_line != line || (b->barrier_what != what && strcmp(b->barrier_what, what) != 0))
		emu_fail("%s, line %d: other threads of the block are at %s, line %d", what, line, b->barrier_what, b->barrier_line);
	if (++b->arrived < b->threads) {
		struct emu_thread *t = emu_now;

		t->what = what, t->line = line;
		wait_here();
		t->what = nullptr;
		return;
	}
	b->arrived = 0;
	b->counted_last = b->counted;
	b->counted = 0;
	for (unsigned w = 0; w < b->warps; w++)
		set_ready(w, b->warp[w].all);
}
void emu_sync(const char *what, int line) { block_meets(what, line); }
int emu_count(int predicate, int line, const char *what)
{
	block->counted += predicate != 0;
	block_meets(what, line);
	return block->counted_last;
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

/* ---------------------------------------------------------------- overlap */

void emu_wait_before(int line)
{
	struct emu_thread *t = emu_now;

	t->waited = true;
	if (!block->begin_only)
		return;
	t->held = true;
	t->line = line;
	block->held++;
	wait_here();
}

void emu_let_next(int line)
{
	if (block->kernel->dependent && !emu_now->waited)
		emu_fail("line %d: lets the next launch begin before it has waited for the one in front", line);
	block->let++;
}

bool emu_lets_next(const void *function)
{
	auto at = lets_next.find(function);

	return at != lets_next.end() && at->second;
}

/* ---------------------------------------------------------------- blocks */

/* Bounds of the __shared__ variables of all kernels; absent where AddressSanitizer wants them apart. */
extern "C" char __start_fh_shared[] __attribute__((weak, visibility("hidden"))), __stop_fh_shared[] __attribute__((weak, visibility("hidden")));
static size_t statics_size(void) { return (size_t)(__stop_fh_shared - __start_fh_shared); }

void *emu_dynamic_shared(void) { return block->shared; }

static struct emu_block *block_new(const struct emu_kernel *k, dim3 at)
{
	struct emu_block *b = new emu_block();

	b->kernel = k;
	b->index = {at.x, at.y, at.z};
	b->threads = k->block.x * k->block.y * k->block.z;
	b->warps = (b->threads + EMU_WARP - 1) / EMU_WARP;
	for (b->pool = 0; b->pool < POOLS && pool_taken[b->pool]; b->pool++)
		;
	if (b->pool == POOLS)
		emu_fail("more than %d blocks at once", POOLS);
	pool_taken[b->pool] = true;
	if (posix_memalign((void **)&b->shared, 128, k->shared ? k->shared : 1))
		emu_fail("no memory for %zu bytes of shared memory", k->shared);
	if (!threads_of[b->pool])
		threads_of[b->pool] = new emu_thread[EMU_THREADS_MAX]();
	b->thread = threads_of[b->pool];
	return b;
}
static void block_free(struct emu_block *b)
{
	pool_taken[b->pool] = false;
	free(b->shared);
	delete b;
}

/* Everything as before the first thread: shared memory holds nothing that a kernel may count on. */
static void block_start(struct emu_block *b)
{
	const dim3 d = b->kernel->block;

	memset(b->shared, 0xff, b->kernel->shared);
	if (statics_size())
		memset(__start_fh_shared, 0xff, statics_size());
	b->ended = b->held = b->let = b->arrived = b->warps_ready = 0;
	b->counted = 0;
	for (unsigned i = 0; i < b->threads; i++) {
		struct emu_thread *t = &b->thread[i];
		struct emu_copies *copies = t->copies;

		*t = {};
		t->copies = copies;
		t->index = {i % d.x, i / d.x % d.y, i / d.x / d.y};
		t->flat = i, t->warp = i / EMU_WARP, t->lane = i % EMU_WARP, t->home = &b->warp[t->warp];
		t->sp = fresh_stack(b->pool, i);
	}
	for (unsigned w = 0; w < b->warps; w++) {
		const unsigned n = std::min(b->threads - w * EMU_WARP, (unsigned)EMU_WARP);

		b->warp[w].all = b->warp[w].ready = n == EMU_WARP ? 0xffffffffu : (1u << n) - 1;
		b->warp[w].ended = 0;
		b->warp[w].first = b->thread + w * EMU_WARP;
		b->warps_ready |= 1u << w;
	}
}

/* Until nothing is ready: the block has ended, or all that can go on are held at the launch in front. */
static void block_run(struct emu_block *b)
{
	block = b;
	blockIdx = b->index, blockDim = b->kernel->block, gridDim = b->kernel->grid;
	emu_now = nullptr;
	go(next_ready());
	if (b->ended < b->threads && !(b->begin_only && b->held))
		emu_fail("the block cannot go on: %u of %u threads have ended, the others wait for ever", b->ended, b->threads);
	block = nullptr;
}

static void block_hold(struct emu_block *b) { b->statics.assign(__start_fh_shared, __start_fh_shared + statics_size()); }

static void block_resume(struct emu_block *b)
{
	if (statics_size())
		memcpy(__start_fh_shared, b->statics.data(), statics_size());
	b->begin_only = false;
	block = b;
	for (unsigned i = 0; i < b->threads; i++)
		if (b->thread[i].held) {
			b->thread[i].held = false;
			set_ready(b->thread[i].warp, 1u << b->thread[i].lane);
		}
	b->held = 0;
	block_run(b);
}

static uint64_t blocks_of(const struct emu_kernel *k) { return (uint64_t)k->grid.x * k->grid.y * k->grid.z; }
static dim3 block_at(const struct emu_kernel *k, uint64_t i)
{
	return dim3((unsigned)(i % k->grid.x), (unsigned)(i / k->grid.x % k->grid.y), (unsigned)(i / k->grid.x / k->grid.y));
}

struct emu_block *emu_begin(const struct emu_kernel *k)
{
	const uint64_t n = blocks_of(k);
	struct emu_block *b;

	if (!k->dependent || !emu_seed() || !statics_size())
		return nullptr;
	b = block_new(k, block_at(k, emu_choice((unsigned)std::min<uint64_t>(n, 1u << 30))));
	block_start(b);
	b->begin_only = true;
	block_run(b);
	block_hold(b);
	return b;
}

void emu_forget(struct emu_block *b)
{
	if (b)
		block_free(b);
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

void emu_run(const struct emu_kernel *k, struct emu_block *early)
{
	const uint64_t n = blocks_of(k);
	struct emu_block *b = block_new(k, dim3(0, 0, 0));
	uint64_t stride = 1, first = 0;
	bool lets = true;

	if (emu_seed()) { /* through all of them with a stride that has no divisor in common with their number */
		first = emu_choice((unsigned)n);
		for (stride = n - 1 - emu_choice((unsigned)(n / 2 + 1)); stride > 1 && gcd(stride, n) != 1; stride--)
			;
		stride = stride ? stride : 1;
	}
	for (uint64_t i = 0; i < n; i++) {
		const dim3 at = block_at(k, (first + i * stride) % n);
		struct emu_block *now = b;

		if (early && at.x == early->index.x && at.y == early->index.y && at.z == early->index.z) {
			now = early;
			block_resume(now);
		} else {
			b->index = {at.x, at.y, at.z};
			block_start(b);
			block_run(b);
		}
		lets = lets && now->let >= now->threads;
	}
	auto known = lets_next.emplace(k->function, lets);
	if (!known.second)
		known.first->second = known.first->second && lets;
	block_free(b);
	emu_forget(early);
}
