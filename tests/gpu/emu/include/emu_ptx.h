/* gpu/cuda/ptx.cuh on a CPU: each function does what the PTX ISA says of its instruction.
 *
 * Copies land at the last moment that their waits allow, and poison what they will write from the first: a missing wait
 * or barrier shows as NaN. Products are summed in the order of k in F32, which is one of the orders a tensor core may
 * take: equal inputs give equal bits, row by row, but not the bits of a card. */
#ifndef FH_EMU_PTX_H
#define FH_EMU_PTX_H

#define PTX_SHARED(T, name) T *const name = (T *)emu_dynamic_shared()

typedef uintptr_t ptx_shared;
static inline ptx_shared ptx_shared_at(const void *p) { return (uintptr_t)p; }

void emu_copy16(void *to, const void *from, int valid);
void emu_copy_commit(void);
void emu_copy_wait(int but);
static inline void ptx_copy16(ptx_shared s, const void *g, int valid) { emu_copy16((void *)s, g, valid); }
static inline void ptx_copy16_if(ptx_shared s, const void *g, unsigned in) { ptx_copy16(s, g, in ? 16 : 0); }
static inline void ptx_copy_commit() { emu_copy_commit(); }
template <int N> static inline void ptx_copy_wait() { emu_copy_wait(N); }

struct emu_ldmatrix { const void *row; unsigned *r; };
void emu_ldmatrix4_op(void *const arg[32], unsigned mask);
void emu_ldmatrix4t_op(void *const arg[32], unsigned mask);
static inline void ptx_ldmatrix4(unsigned r[4], const void *p, int line = __builtin_LINE())
{
	struct emu_ldmatrix a = {p, r};

	emu_warp("ldmatrix", line, 0xffffffffu, &a, emu_ldmatrix4_op);
}
static inline void ptx_ldmatrix4(unsigned r[4], ptx_shared s, int line = __builtin_LINE()) { ptx_ldmatrix4(r, (const void *)s, line); }
static inline void ptx_ldmatrix4t(unsigned r[4], const void *p, int line = __builtin_LINE())
{
	struct emu_ldmatrix a = {p, r};

	emu_warp("ldmatrix.trans", line, 0xffffffffu, &a, emu_ldmatrix4t_op);
}
static inline void ptx_ldmatrix4t(unsigned r[4], ptx_shared s, int line = __builtin_LINE()) { ptx_ldmatrix4t(r, (const void *)s, line); }

struct emu_mma { float *c; const unsigned *a; unsigned b[2]; };
void emu_mma_bf16_op(void *const arg[32], unsigned mask);
void emu_mma_tf32_op(void *const arg[32], unsigned mask);
static inline void ptx_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1, int line = __builtin_LINE())
{
	struct emu_mma x = {c, a, {b0, b1}};

	emu_warp("mma.m16n8k16", line, 0xffffffffu, &x, emu_mma_bf16_op);
}
static inline void ptx_mma_tf32(float c[4], const unsigned a[4], unsigned b0, unsigned b1, int line = __builtin_LINE())
{
	struct emu_mma x = {c, a, {b0, b1}};

	emu_warp("mma.m16n8k8", line, 0xffffffffu, &x, emu_mma_tf32_op);
}

/* Clusters: an address names the block and the bytes of its shared memory, so it stays right while blocks take turns. A store spoils
 * its target at once and lands when all have arrived that the one who stored has told of it; in the own block it lands at once. */
typedef uintptr_t ptx_remote;
unsigned emu_cluster_rank(void);
uintptr_t emu_remote_at(uintptr_t a, unsigned rank);
void emu_remote_store(uintptr_t a, const void *v, unsigned bytes);
void emu_cluster_arrive(int line, bool release);
void emu_cluster_wait(int line);
static inline unsigned ptx_cluster_rank() { return emu_cluster_rank(); }
static inline ptx_remote ptx_remote_at(ptx_shared a, unsigned rank) { return emu_remote_at(a, rank); }
static inline void ptx_remote_store16(ptx_remote a, uint4 v) { emu_remote_store(a, &v, 16); }
static inline void ptx_remote_store8(ptx_remote a, float2 v) { emu_remote_store(a, &v, 8); }
static inline void ptx_remote_store4(ptx_remote a, unsigned v) { emu_remote_store(a, &v, 4); }
static inline void ptx_cluster_arrive(int line = __builtin_LINE()) { emu_cluster_arrive(line, true); }
static inline void ptx_cluster_arrive_relaxed(int line = __builtin_LINE()) { emu_cluster_arrive(line, false); }
static inline void ptx_cluster_wait(int line = __builtin_LINE()) { emu_cluster_wait(line); }

/* mbarriers: what was sent counts at once and lands when the phase ends. */
void emu_barrier_init(uintptr_t bar, unsigned count, int line);
void emu_barrier_init_fence(void);
void emu_barrier_arrive(uintptr_t bar, unsigned bytes, int line);
void emu_barrier_wait(uintptr_t bar, unsigned parity, int line);
void emu_remote_async(uintptr_t a, const void *v, unsigned bytes, uintptr_t bar, int line);
static inline void ptx_barrier_init(ptx_shared bar, unsigned count, int line = __builtin_LINE()) { emu_barrier_init(bar, count, line); }
static inline void ptx_barrier_init_fence() { emu_barrier_init_fence(); }
static inline void ptx_barrier_arrive(ptx_shared bar, int line = __builtin_LINE()) { emu_barrier_arrive(bar, 0, line); }
static inline void ptx_barrier_expect(ptx_shared bar, unsigned bytes, int line = __builtin_LINE()) { emu_barrier_arrive(bar, bytes, line); }
static inline void ptx_barrier_wait(ptx_shared bar, unsigned parity, int line = __builtin_LINE()) { emu_barrier_wait(bar, parity, line); }
static inline void ptx_remote_async4(ptx_remote a, unsigned v, ptx_remote bar, int line = __builtin_LINE()) { emu_remote_async(a, &v, 4, bar, line); }
static inline void ptx_remote_async16(ptx_remote a, uint4 v, ptx_remote bar, int line = __builtin_LINE()) { emu_remote_async(a, &v, 16, bar, line); }

static inline unsigned ptx_tf32(float x)
{
	const unsigned u = __float_as_uint(x);

	return x != x ? 0x7fffffffu : (u & 0x7f800000u) == 0x7f800000u ? u : (u + 0x1000u) & 0xffffe000u;
}
static inline float ptx_max_nan(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }
/* The approximations: as near as F32 gets, subnormals to zero. */
static inline float emu_ftz(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }
static inline float ptx_exp2(float x) { return emu_ftz(exp2f(emu_ftz(x))); }
static inline float ptx_log2(float x) { return log2f(emu_ftz(x)); }
static inline float ptx_reciprocal(float x) { return emu_ftz(1.f / emu_ftz(x)); }
static inline float ptx_saturate(float x) { return x > 0.f ? x < 1.f ? x : 1.f : 0.f; }
static inline ptx_shared ptx_keep(ptx_shared x) { return x; }
void emu_max_op(void *const arg[32], unsigned mask);
static inline int ptx_warp_max(int x, int line = __builtin_LINE())
{
	emu_warp("redux.max", line, 0xffffffffu, &x, emu_max_op);
	return x;
}

#endif
