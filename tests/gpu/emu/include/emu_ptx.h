/* gpu/cuda/ptx.cuh on a CPU: each function does what the PTX ISA says of its instruction.
 *
 * Copies land at the last moment that their waits allow, and poison what they will write from the first: a missing wait
 * or barrier shows as NaN. Products are summed in the order of k in F32, which is one of the orders a tensor core may
 * take: equal inputs give equal bits, row by row, but not the bits of a card. */
#ifndef FH_EMU_PTX_H
#define FH_EMU_PTX_H

#include <cuda_bf16.h>

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

void emu_stmatrix4_op(void *const arg[32], unsigned mask);
static inline void ptx_stmatrix4(ptx_shared s, const unsigned r[4], int line = __builtin_LINE())
{
	struct emu_ldmatrix a = {(const void *)s, const_cast<unsigned *>(r)};

	emu_warp("stmatrix", line, 0xffffffffu, &a, emu_stmatrix4_op);
}

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

/* Boxes: one that comes is read at once, and is stored at an mbarrier as what is sent to it; one that goes is read when it is asked for and
 * must be the same when it is waited for, and is in memory then. */
struct alignas(64) emu_tensor_map { const char *base; int n; uint64_t size[5], stride[4]; uint32_t box[5]; };
int emu_tensor_map_make(struct emu_tensor_map *map, const void *base, int n, const uint64_t *size, const uint64_t *stride, const uint32_t *box);
void emu_box_load(uintptr_t to, const struct emu_tensor_map *map, const int *c, uintptr_t bar, int line);
void emu_box_store(uintptr_t from, const struct emu_tensor_map *map, const int *c, int line);
void emu_box_wait(void);
static inline void ptx_box_load(ptx_shared to, const void *map, int c0, int c1, int c2, int c3, int c4, ptx_shared bar, int line = __builtin_LINE())
{
	const int c[] = {c0, c1, c2, c3, c4};

	emu_box_load(to, (const struct emu_tensor_map *)map, c, bar, line);
}
static inline void ptx_box_load3(ptx_shared to, const void *map, int c0, int c1, int c2, ptx_shared bar, int line = __builtin_LINE())
{
	const int c[] = {c0, c1, c2};

	emu_box_load(to, (const struct emu_tensor_map *)map, c, bar, line);
}
static inline void ptx_box_store(ptx_shared from, const void *map, int c0, int c1, int c2, int line = __builtin_LINE())
{
	const int c[] = {c0, c1, c2};

	emu_box_store(from, (const struct emu_tensor_map *)map, c, line);
}
static inline void ptx_box_wait() { emu_box_wait(); }

static inline unsigned ptx_tf32(float x)
{
	const unsigned u = __float_as_uint(x);

	return x != x ? 0x7fffffffu : (u & 0x7f800000u) == 0x7f800000u ? u : (u + 0x1000u) & 0xffffe000u;
}
static inline float ptx_max_nan(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }
static inline unsigned ptx_relu_bf16(float x, float y)
{
	const __nv_bfloat162 v = __floats2bfloat162_rn(ptx_max_nan(x, 0.f), ptx_max_nan(y, 0.f));
	unsigned u;

	memcpy(&u, &v, sizeof u);
	return u;
}
static inline unsigned ptx_positive_bf16(unsigned x)
{
	return (__uint_as_float(x << 16) > 0.f ? 0xffffu : 0u) | (__uint_as_float(x & 0xffff0000u) > 0.f ? 0xffff0000u : 0u);
}
/* The approximations: as near as F32 gets, subnormals to zero. */
static inline float emu_ftz(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }
static inline float ptx_exp2(float x) { return emu_ftz(exp2f(emu_ftz(x))); }
static inline float ptx_log2(float x) { return log2f(emu_ftz(x)); }
static inline float ptx_reciprocal(float x) { return emu_ftz(1.f / emu_ftz(x)); }
static inline float ptx_reciprocal_root(float x) { return emu_ftz(1.f / sqrtf(emu_ftz(x))); }
static inline float ptx_saturate(float x) { return x > 0.f ? x < 1.f ? x : 1.f : 0.f; }
static inline int ptx_again(int x) { return x; }
static inline ptx_shared ptx_keep(ptx_shared x) { return x; }
void emu_max_op(void *const arg[32], unsigned mask);
static inline int ptx_warp_max(int x, int line = __builtin_LINE())
{
	emu_warp("redux.max", line, 0xffffffffu, &x, emu_max_op);
	return x;
}

#endif
