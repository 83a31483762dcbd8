/* Every instruction that kernels name themselves, behind a function: besides wgmma.cuh nothing in gpu/cuda holds inline PTX. Dynamic
 * shared memory is named here too.
 *
 * Compiled by another compiler than nvcc the same names come from <emu_ptx.h> (tests/gpu/emu), which does what the PTX ISA
 * says on a CPU: a function that is added here is added there, or kernels no longer run without a card. */
#ifndef FH_GPU_CUDA_PTX_CUH
#define FH_GPU_CUDA_PTX_CUH

#include <cuda_runtime.h>

#ifdef __CUDACC__

/* T name[]: the launch's dynamic shared memory, at a multiple of 16 bytes. */
#define PTX_SHARED(T, name) extern __shared__ __align__(16) T name[]

typedef unsigned ptx_shared; /* an address in shared memory: bytes may be added */

__device__ __forceinline__ ptx_shared ptx_shared_at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* ---------------------------------------------------------------- copies that do not wait */
/* 16 bytes to shared memory of which the first `valid` come from g, the rest are zeros. A thread's copies since its last
 * commit are a group; ptx_copy_wait<N> waits until all but its N last groups are there, a barrier shows them to others. */
__device__ __forceinline__ void ptx_copy16(ptx_shared s, const void *g, int valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(g), "r"(valid));
}
/* 16 bytes from g, zeros where `in` is 0; fewer instructions than a number of valid bytes. */
__device__ __forceinline__ void ptx_copy16_if(ptx_shared s, const void *g, unsigned in)
{
	asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.u32 p, %2, 0;\n\tcp.async.cg.shared.global [%0], [%1], 16, p;\n\t}" ::"r"(s), "l"(g), "r"(in));
}
__device__ __forceinline__ void ptx_copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void ptx_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

/* ---------------------------------------------------------------- fragments and products of a warp */
/* Four 8 x 8 matrices of 16-bit elements: lane l names row l % 8 of matrix l / 8, and gets of matrix i in r[i] the
 * elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; t: of each matrix transposed. */
__device__ __forceinline__ void ptx_ldmatrix4(unsigned r[4], ptx_shared a)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ void ptx_ldmatrix4t(unsigned r[4], ptx_shared a)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ void ptx_ldmatrix4(unsigned r[4], const void *p) { ptx_ldmatrix4(r, ptx_shared_at(p)); }
__device__ __forceinline__ void ptx_ldmatrix4t(unsigned r[4], const void *p) { ptx_ldmatrix4t(r, ptx_shared_at(p)); }
/* The other way, four such matrices to shared memory (sm_90 and later). */
__device__ __forceinline__ void ptx_stmatrix4(ptx_shared a, const unsigned r[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#endif
}
/* c += a b: a 16 x 16, b 16 x 8. */
__device__ __forceinline__ void ptx_mma_bf16(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* c += a b: a 16 x 8, b 8 x 8. */
__device__ __forceinline__ void ptx_mma_tf32(float c[4], const unsigned a[4], unsigned b0, unsigned b1)
{
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---------------------------------------------------------------- the blocks of a cluster (sm_90 and later) */
/* Elsewhere these compile to nothing: what calls them is launched only where cuda_exec.clusters is set. The blocks of a cluster
 * are resident together. A store into another's shared memory is there for who has come past ptx_cluster_wait() after
 * the one that stored has called ptx_cluster_arrive(); all threads of the cluster call both, in turn. A block must not end before
 * the last store into it is complete, so the last thing that it does is usually to wait. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define PTX_CLUSTER(...)
#else
#define PTX_CLUSTER(...) asm volatile(__VA_ARGS__)
#endif
typedef unsigned ptx_remote; /* an address in the shared memory of a block of the cluster: bytes may be added */

__device__ __forceinline__ unsigned ptx_cluster_rank()
{
	unsigned r = 0;
	PTX_CLUSTER("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
	return r;
}
/* Where block `rank` has what this block has at a. */
__device__ __forceinline__ ptx_remote ptx_remote_at(ptx_shared a, unsigned rank)
{
	ptx_remote r = 0;
	PTX_CLUSTER("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(rank));
	return r;
}
__device__ __forceinline__ void ptx_remote_store16(ptx_remote a, uint4 v)
{
	PTX_CLUSTER("st.shared::cluster.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}
__device__ __forceinline__ void ptx_remote_store8(ptx_remote a, float2 v)
{
	PTX_CLUSTER("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(a), "f"(v.x), "f"(v.y));
}
__device__ __forceinline__ void ptx_remote_store4(ptx_remote a, unsigned v)
{
	PTX_CLUSTER("st.shared::cluster.b32 [%0], %1;" ::"r"(a), "r"(v));
}
__device__ __forceinline__ void ptx_cluster_arrive() { PTX_CLUSTER("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
/* Tells of no store: the block has begun, its mbarriers are there. */
__device__ __forceinline__ void ptx_cluster_arrive_relaxed() { PTX_CLUSTER("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void ptx_cluster_wait() { PTX_CLUSTER("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/* An mbarrier: 8 bytes of shared memory at a multiple of 8 that go from phase to phase. One thread gives it a count, calls
 * ptx_barrier_init_fence(), and all meet before anybody uses it (for other blocks: arrive, relaxed will do, and wait). A phase ends when
 * so many arrivals have come and as many bytes as they expected; the next begins with the same count. ptx_barrier_wait(0)
 * comes past the end of the first phase, (1) of the second, (0) of the third ... What was sent or stored for the phase is there then. */
__device__ __forceinline__ void ptx_barrier_init(ptx_shared bar, unsigned count)
{
	PTX_CLUSTER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void ptx_barrier_init_fence() { PTX_CLUSTER("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void ptx_barrier_arrive(ptx_shared bar)
{
	PTX_CLUSTER("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(bar) : "memory");
}
/* Arrives, and the phase has so many more bytes to wait for; some of them may have come before. */
__device__ __forceinline__ void ptx_barrier_expect(ptx_shared bar, unsigned bytes)
{
	PTX_CLUSTER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/* By every thread that reads. Acquires for the block alone: what it is for lies in the block's own shared memory, and to acquire from
 * the cluster would throw away all of L1. */
__device__ __forceinline__ void ptx_barrier_wait(ptx_shared bar, unsigned parity)
{
	PTX_CLUSTER("{\n\t.reg .pred past;\nagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 past, [%0], %1;\n\t@!past bra again;\n\t}"
	            ::"r"(bar), "r"(parity) : "memory");
}
/* A store into a block of the cluster, also the own, that counts its bytes at an mbarrier of the same block when it is there: no fence, no
 * barrier of all. The block must wait for them before it ends. */
__device__ __forceinline__ void ptx_remote_async4(ptx_remote a, unsigned v, ptx_remote bar)
{
	PTX_CLUSTER("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(a), "r"(v), "r"(bar));
}
__device__ __forceinline__ void ptx_remote_async16(ptx_remote a, uint4 v, ptx_remote bar)
{
	PTX_CLUSTER("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(a), "r"(v.x), "r"(v.y),
	            "r"(v.z), "r"(v.w), "r"(bar));
}

/* ---------------------------------------------------------------- boxes of tensors in memory (sm_90 and later) */
/* A tensor map (tensor_map.cuh) says where a tensor of BF16 lies and how large a box of it is: rows of 64 elements, which come to shared
 * memory as an operand of wgmma.cuh, at a multiple of 1024 bytes. What lies outside of the tensor comes as zeros and is not written.
 *
 * One thread asks; all bytes of the box count at the mbarrier when they are there. c: where the box begins, innermost first. */
__device__ __forceinline__ void ptx_box_load(ptx_shared to, const void *map, int c0, int c1, int c2, int c3, int c4, ptx_shared bar)
{
	PTX_CLUSTER("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5,%6}], [%7];"
	            ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "r"(bar) : "memory");
}
/* The same and the other way of a tensor of three dimensions. What was written to `from` must be fenced (ptx_operands_written()) and met for. The box has been read when
 * the thread comes past ptx_box_wait(), which it does before it ends, and is in memory at the end of the launch. */
__device__ __forceinline__ void ptx_box_load3(ptx_shared to, const void *map, int c0, int c1, int c2, ptx_shared bar)
{
	PTX_CLUSTER("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4}], [%5];"
	            ::"r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(bar) : "memory");
}
__device__ __forceinline__ void ptx_box_store(ptx_shared from, const void *map, int c0, int c1, int c2)
{
	PTX_CLUSTER("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1,%2,%3}], [%4];" ::"l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(from) : "memory");
	PTX_CLUSTER("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void ptx_box_wait() { PTX_CLUSTER("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/* ---------------------------------------------------------------- arithmetic */
/* max(x, 0) and max(y, 0) as BF16, x in the lower half; NaN stays one. */
__device__ __forceinline__ unsigned ptx_relu_bf16(float x, float y)
{
	unsigned r;
	asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
	return r;
}
/* All bits of a half of x where that is more than 0, none elsewhere. */
__device__ __forceinline__ unsigned ptx_positive_bf16(unsigned x)
{
	unsigned r = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
	asm("set.gt.u32.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(0));
#endif
	return r;
}
/* To TF32, nearest, ties away from zero. */
__device__ __forceinline__ unsigned ptx_tf32(float x)
{
	unsigned u;
	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
	return u;
}
/* The larger; NaN when one is. */
__device__ __forceinline__ float ptx_max_nan(float a, float b)
{
	float r;
	asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
	return r;
}
/* 2^x to about 2^-22, subnormals to zero. */
__device__ __forceinline__ float ptx_exp2(float x)
{
	float e;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
	return e;
}
/* log2 x to about 2^-22, 1/x to about 2^-23; subnormals as zero. */
__device__ __forceinline__ float ptx_log2(float x)
{
	float r;
	asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}
__device__ __forceinline__ float ptx_reciprocal(float x)
{
	float r;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}
/* 1/sqrt x to about 2^-23; subnormals as zero. */
__device__ __forceinline__ float ptx_reciprocal_root(float x)
{
	float r;
	asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}
/* Into [0, 1]; NaN gives 0. */
__device__ __forceinline__ float ptx_saturate(float x)
{
	float r;
	asm("cvt.sat.f32.f32 %0, %1;" : "=f"(r) : "f"(x));
	return r;
}
/* x, which stays in a register from here on: the assembler works addresses out again wherever they are wanted, as it cannot what came
 * out of an exchange between lanes. */
__device__ __forceinline__ unsigned ptx_keep(unsigned x) { return __shfl_sync(0xffffffffu, x, threadIdx.x & 31); }
/* x, and what follows from it is worked out where this stands, not once before a loop. */
__device__ __forceinline__ int ptx_again(int x)
{
	int y;
	asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
	return y;
}
/* The largest integer over the warp, in all lanes. */
__device__ __forceinline__ int ptx_warp_max(int x) { return __reduce_max_sync(0xffffffffu, x); }

#else
#include <emu_ptx.h>
#endif

#endif
