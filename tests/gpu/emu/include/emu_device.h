/* What device code calls: indices, barriers, what a warp does together, atomics, arithmetic by name. Part of
 * <cuda_runtime.h>.
 *
 * Whatever waits for other threads is a meeting (block.cc): all that are named must come, to the same line. */
#ifndef FH_EMU_DEVICE_H
#define FH_EMU_DEVICE_H

/* ---------------------------------------------------------------- who and where */
struct emu_copies; /* of ptx_copy16() that are under way */
struct emu_thread {
	uint3 index;
	unsigned flat, warp, lane;
	void *sp;            /* of the fiber, while another runs */
	struct emu_warp_state *home;
	const char *what;    /* the block's barrier that it waits at, NULL: none; and where */
	int line;
	bool held, ended, waited; /* held: at the launch before; waited: has come past it */
	bool told, met;      /* has arrived at the cluster's barrier and not waited; has come past it before */
	unsigned round;      /* of the cluster, when it arrived */
	bool unfenced;       /* has made an mbarrier that other blocks cannot see yet */
	const void *at;      /* the mbarrier that it waits at */
	void *fake;          /* AddressSanitizer's */
	struct emu_copies *copies;
};
extern struct emu_thread *emu_now;
#define threadIdx (emu_now->index)
extern uint3 blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* ---------------------------------------------------------------- meetings */
/* Ends the process with the kernel, the block and the thread. */
[[noreturn]] void emu_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void emu_sync(const char *what, int line);
/* The lanes of mask meet; the last one does op for all: arg[lane] is what each of them brought. */
void emu_warp(const char *what, int line, unsigned mask, void *arg, void (*op)(void *const arg[32], unsigned mask));
void *emu_dynamic_shared(void);
void emu_wait_before(int line);
void emu_let_next(int line);

#define __syncthreads() emu_sync("__syncthreads()", __LINE__)
static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) { emu_warp("__syncwarp()", line, mask, nullptr, nullptr); }
static inline void cudaGridDependencySynchronize(int line = __builtin_LINE()) { emu_wait_before(line); }
static inline void cudaTriggerProgrammaticLaunchCompletion(int line = __builtin_LINE()) { emu_let_next(line); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}

struct emu_shuffle { uint64_t value; int from; };
void emu_shuffle_op(void *const arg[32], unsigned mask);
void emu_ballot_op(void *const arg[32], unsigned mask);
template <typename T> static inline T emu_shuffle(const char *what, int line, unsigned mask, T value, int from)
{
	static_assert(sizeof(T) <= 8, "a register or two");
	struct emu_shuffle s = {0, from};
	T got;

	memcpy(&s.value, &value, sizeof value);
	emu_warp(what, line, mask, &s, emu_shuffle_op);
	memcpy(&got, &s.value, sizeof got);
	return got;
}
/* Lanes beyond the segment of `width` give their own value, as in the ISA. */
template <typename T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, int line = __builtin_LINE())
{
	const int lane = (int)emu_now->lane;
	return emu_shuffle("__shfl_sync()", line, mask, v, (lane & ~(width - 1)) + (from & (width - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, int line = __builtin_LINE())
{
	const int lane = (int)emu_now->lane, from = lane ^ x;
	return emu_shuffle("__shfl_xor_sync()", line, mask, v, from < (lane & ~(width - 1)) + width ? from : lane);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, int line = __builtin_LINE())
{
	const int lane = (int)emu_now->lane, from = lane - (int)by;
	return emu_shuffle("__shfl_up_sync()", line, mask, v, from >= (lane & ~(width - 1)) ? from : lane);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, int line = __builtin_LINE())
{
	const int lane = (int)emu_now->lane, from = lane + (int)by;
	return emu_shuffle("__shfl_down_sync()", line, mask, v, from < (lane & ~(width - 1)) + width ? from : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
	struct emu_shuffle s = {predicate != 0, 0};

	emu_warp("__ballot_sync()", line, mask, &s, emu_ballot_op);
	return (unsigned)s.value;
}
static inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) { return __ballot_sync(mask, predicate, line) != 0; }
static inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) { return __ballot_sync(mask, predicate, line) == mask; }
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T v, int line = __builtin_LINE())
{
	unsigned same = 0;

	for (int l = 0; l < 32; l++)
		if (mask >> l & 1)
			same |= __shfl_sync(mask, v, l, 32, line) == v ? 1u << l : 0;
	return same;
}
/* Integer reductions. */
template <typename T, typename F> static inline T emu_reduce(unsigned mask, T v, int line, F join)
{
	T all = v;
	bool first = true;

	for (int l = 0; l < 32; l++)
		if (mask >> l & 1) {
			const T other = __shfl_sync(mask, v, l, 32, line);
			all = first ? other : join(all, other);
			first = false;
		}
	return all;
}
template <typename T> static inline T __reduce_add_sync(unsigned m, T v, int line = __builtin_LINE()) { return emu_reduce(m, v, line, [](T a, T b) { return (T)(a + b); }); }
template <typename T> static inline T __reduce_max_sync(unsigned m, T v, int line = __builtin_LINE()) { return emu_reduce(m, v, line, [](T a, T b) { return a > b ? a : b; }); }
template <typename T> static inline T __reduce_min_sync(unsigned m, T v, int line = __builtin_LINE()) { return emu_reduce(m, v, line, [](T a, T b) { return a < b ? a : b; }); }
int emu_count(int predicate, int line, const char *what); /* over the block, how many */
static inline int __syncthreads_count(int p, int line = __builtin_LINE()) { return emu_count(p, line, "__syncthreads_count()"); }
static inline int __syncthreads_or(int p, int line = __builtin_LINE()) { return emu_count(p, line, "__syncthreads_or()") != 0; }
static inline int __syncthreads_and(int p, int line = __builtin_LINE())
{
	return emu_count(p, line, "__syncthreads_and()") == (int)(blockDim.x * blockDim.y * blockDim.z);
}

/* ---------------------------------------------------------------- memory */
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline T __ldca(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldcv(const T *p) { return *(const volatile T *)p; }
template <typename T> static inline void __stwb(T *p, T v) { *p = v; }
template <typename T> static inline void __stcg(T *p, T v) { *p = v; }
template <typename T> static inline void __stcs(T *p, T v) { *p = v; }
template <typename T> static inline void __stwt(T *p, T v) { *p = v; }
template <typename T> static inline T atomicAdd(T *p, T v) { const T old = *p; *p = (T)(old + v); return old; }
template <typename T> static inline T atomicSub(T *p, T v) { const T old = *p; *p = (T)(old - v); return old; }
template <typename T> static inline T atomicMax(T *p, T v) { const T old = *p; *p = old > v ? old : v; return old; }
template <typename T> static inline T atomicMin(T *p, T v) { const T old = *p; *p = old < v ? old : v; return old; }
template <typename T> static inline T atomicAnd(T *p, T v) { const T old = *p; *p = old & v; return old; }
template <typename T> static inline T atomicOr(T *p, T v) { const T old = *p; *p = old | v; return old; }
template <typename T> static inline T atomicExch(T *p, T v) { const T old = *p; *p = v; return old; }
template <typename T> static inline T atomicCAS(T *p, T if_is, T v) { const T old = *p; *p = old == if_is ? v : old; return old; }
static inline unsigned atomicInc(unsigned *p, unsigned most) { const unsigned old = *p; *p = old >= most ? 0 : old + 1; return old; }

/* ---------------------------------------------------------------- arithmetic */
static inline int min(int a, int b) { return a < b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline long min(long a, long b) { return a < b ? a : b; }
static inline unsigned long min(unsigned long a, unsigned long b) { return a < b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline long max(long a, long b) { return a > b ? a : b; }
static inline unsigned long max(unsigned long a, unsigned long b) { return a > b ? a : b; }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

template <typename To, typename From> static inline To emu_bits(From v)
{
	static_assert(sizeof(To) == sizeof(From), "the same bits");
	To to;

	memcpy(&to, &v, sizeof to);
	return to;
}
static inline int __float_as_int(float v) { return emu_bits<int>(v); }
static inline unsigned __float_as_uint(float v) { return emu_bits<unsigned>(v); }
static inline float __int_as_float(int v) { return emu_bits<float>(v); }
static inline float __uint_as_float(unsigned v) { return emu_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return emu_bits<long long>(v); }
static inline double __longlong_as_double(long long v) { return emu_bits<double>(v); }

/* Rounded once each: these files are compiled with the contraction that the device has, so an opaque step keeps a product
 * out of a sum. */
#define FH_EMU_ROUNDED(name, T, expression) static inline T name(T a, T b) { T r = expression; __asm__("" : "+x"(r)); return r; }
#if !defined(__x86_64__)
#undef FH_EMU_ROUNDED
#define FH_EMU_ROUNDED(name, T, expression) static inline T name(T a, T b) { volatile T r = expression; return r; }
#endif
FH_EMU_ROUNDED(__fadd_rn, float, a + b)
FH_EMU_ROUNDED(__fsub_rn, float, a - b)
FH_EMU_ROUNDED(__fmul_rn, float, a * b)
FH_EMU_ROUNDED(__fdiv_rn, float, a / b)
FH_EMU_ROUNDED(__dadd_rn, double, a + b)
FH_EMU_ROUNDED(__dsub_rn, double, a - b)
FH_EMU_ROUNDED(__dmul_rn, double, a * b)
FH_EMU_ROUNDED(__ddiv_rn, double, a / b)
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.f / a; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
/* Approximations of the device: here as near as F32 gets. */
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf /* the C library has functions of these names */
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __powf powf
static inline float __saturatef(float a) { return a > 0.f ? a < 1.f ? a : 1.f : 0.f; }
static inline float rsqrtf(float a) { return 1.f / sqrtf(a); }
static inline int __float2int_rd(float a) { return (int)floorf(a); }
static inline int __float2int_rn(float a) { return (int)nearbyintf(a); }
static inline int __float2int_rz(float a) { return (int)a; }

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

#endif
