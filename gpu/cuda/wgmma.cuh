/* Products of a warpgroup (four warps that begin at a multiple of four), sm_90a: both operands lie in shared memory, the instruction runs
 * beside its threads. What ptx.cuh is for other instructions; the twins are in <emu_wgmma.h> (tests/gpu/emu).
 *
 * An operand is rows of 128 bytes, eight of them after each other, at a multiple of 1024; of row r the 16 bytes q are at place
 * q ^ r % 8 (ptx_operand_place()). A row is 64 of k for one row or column of the product; transposed it is 64 rows or columns for one k,
 * and the next 64 of them begin `apart` bytes behind. A chain of these over k gives the bits of a chain of ptx_mma_bf16(). */
#ifndef FH_GPU_CUDA_WGMMA_CUH
#define FH_GPU_CUDA_WGMMA_CUH

#include "gpu/cuda/exec.h"
#include "gpu/cuda/ptx.cuh"

enum { PTX_OPERAND_ROW = 128, PTX_OPERAND_EIGHT = 1024 };

/* Bytes from an operand's start to 16 bytes, the q-th of row r. */
__device__ __forceinline__ unsigned ptx_operand_place(int r, int q) { return r * PTX_OPERAND_ROW + (q ^ (r & 7)) * 16; }

#ifdef __CUDACC__
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PTX_WARPGROUPS 1
#else
#pragma nv_diag_suppress 177 /* functions that nothing calls: kernels by warpgroups are empty here */
#endif

/* What was written to shared memory, by whatever but the instructions below, comes before what they read behind the next barrier. */
__device__ __forceinline__ void ptx_operands_written()
{
#ifdef PTX_WARPGROUPS
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

typedef unsigned long long ptx_operand;
/* The operand from shared memory `at` on, 16 of k: those begin 32 bytes apart, transposed 2 * PTX_OPERAND_EIGHT. */
__device__ __forceinline__ ptx_operand ptx_operand_at(ptx_shared at, unsigned apart = 0)
{
	return (ptx_operand)1 << 62 | (ptx_operand)(PTX_OPERAND_EIGHT / 16) << 32 | (ptx_operand)(apart / 16) << 16 | (at & 0x3ffff) / 16;
}

#define PTX_D1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define PTX_D4(j) PTX_D1(j), PTX_D1(j + 1), PTX_D1(j + 2), PTX_D1(j + 3)
#define PTX_D7(j) PTX_D4(j), PTX_D1(j + 4), PTX_D1(j + 5), PTX_D1(j + 6)
#define PTX_D8(j) PTX_D4(j), PTX_D4(j + 4)
#define PTX_D12(j) PTX_D8(j), PTX_D4(j + 8)
#define PTX_D14(j) PTX_D7(j), PTX_D7(j + 7)
#define PTX_D16(j) PTX_D8(j), PTX_D8(j + 8)
#define PTX_D20(j) PTX_D16(j), PTX_D4(j + 16)
#define PTX_D21(j) PTX_D14(j), PTX_D7(j + 14)
#define PTX_D24(j) PTX_D16(j), PTX_D8(j + 16)
#define PTX_D28(j) PTX_D14(j), PTX_D14(j + 14)
#define PTX_D32(j) PTX_D16(j), PTX_D16(j + 16)
#define PTX_D35(j) PTX_D28(j), PTX_D7(j + 28)
#define PTX_R4 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PTX_R7 PTX_R4 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27"
#define PTX_R8 PTX_R7 ",%28,%29,%30,%31"
#define PTX_R12 PTX_R8 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PTX_R14 PTX_R12 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PTX_R16 PTX_R14 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define PTX_R20 PTX_R16 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define PTX_R21 PTX_R20 ",%80,%81,%82,%83"
#define PTX_R24 PTX_R21 ",%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define PTX_R28 PTX_R24 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define PTX_R32 PTX_R28 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define PTX_GROUP_MMA(eights, n, a_at, b_at, a_t_at, b_t_at, keep_at)                                                                                   \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" PTX_R##eights "}, %" a_at ", %" b_at ", %" keep_at ", 1, 1, %" a_t_at      \
	             ", %" b_t_at ";" : PTX_D##eights(0) : "l"(a), "l"(b), "n"(AT), "n"(BT), "n"(KEEP))
#define PTX_GROUP_MMA_A(eights, n, a0_at, a1_at, a2_at, a3_at, b_at, keep_at, b_t_at)                                                                   \
	asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" PTX_R##eights "}, {%" a0_at ", %" a1_at ", %" a2_at ", %" a3_at "}, %" b_at \
	             ", %" keep_at ", 1, 1, %" b_t_at ";" : PTX_D##eights(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(KEEP), "n"(BT))
/* A statement about all of d. */
#define PTX_GROUP_CASE(eights, what) if constexpr (NJ == eights) asm volatile(what : PTX_D##eights(0)::"memory")
#define PTX_GROUP_REGISTERS(what)          \
	do {                               \
		PTX_GROUP_CASE(4, what);   \
		PTX_GROUP_CASE(7, what);   \
		PTX_GROUP_CASE(8, what);   \
		PTX_GROUP_CASE(12, what);  \
		PTX_GROUP_CASE(14, what);  \
		PTX_GROUP_CASE(16, what);  \
		PTX_GROUP_CASE(20, what);  \
		PTX_GROUP_CASE(21, what);  \
		PTX_GROUP_CASE(24, what);  \
		PTX_GROUP_CASE(28, what);  \
		PTX_GROUP_CASE(32, what);  \
		PTX_GROUP_CASE(35, what);  \
	} while (0)

/* d may be the target of what follows: it was written by the thread itself. */
template <int NJ> __device__ __forceinline__ void ptx_group_begin(float (*d)[4])
{
#ifdef PTX_WARPGROUPS
	PTX_GROUP_REGISTERS("wgmma.fence.sync.aligned;");
#endif
}
/* The same where targets are new (KEEP 0) and other operands are in registers, N fragments. */
template <int N> __device__ __forceinline__ void ptx_group_begin_a(unsigned (*a)[4])
{
#ifdef PTX_WARPGROUPS
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/* d += a b, 64 rows by NJ x 8 columns, 16 of k. d is the fragment of ptx_mma_bf16(): warp w of the group has rows 16 w on. AT, BT: transposed.
 * KEEP 0: d = a b, whatever was there. Nothing may touch d, nor write to a or b, until ptx_group_wait(). */
template <int NJ, int AT = 0, int BT = 0, int KEEP = 1> __device__ __forceinline__ void ptx_group_mma(float (*d)[4], ptx_operand a, ptx_operand b)
{
#ifdef PTX_WARPGROUPS
	if constexpr (NJ == 4)
		PTX_GROUP_MMA(4, "32", "16", "17", "18", "19", "20");
	if constexpr (NJ == 7)
		PTX_GROUP_MMA(7, "56", "28", "29", "30", "31", "32");
	if constexpr (NJ == 8)
		PTX_GROUP_MMA(8, "64", "32", "33", "34", "35", "36");
	if constexpr (NJ == 12)
		PTX_GROUP_MMA(12, "96", "48", "49", "50", "51", "52");
	if constexpr (NJ == 14)
		PTX_GROUP_MMA(14, "112", "56", "57", "58", "59", "60");
	if constexpr (NJ == 16)
		PTX_GROUP_MMA(16, "128", "64", "65", "66", "67", "68");
	if constexpr (NJ == 20)
		PTX_GROUP_MMA(20, "160", "80", "81", "82", "83", "84");
	if constexpr (NJ == 21)
		PTX_GROUP_MMA(21, "168", "84", "85", "86", "87", "88");
	if constexpr (NJ == 24)
		PTX_GROUP_MMA(24, "192", "96", "97", "98", "99", "100");
	if constexpr (NJ == 28)
		PTX_GROUP_MMA(28, "224", "112", "113", "114", "115", "116");
	if constexpr (NJ == 32)
		PTX_GROUP_MMA(32, "256", "128", "129", "130", "131", "132");
#endif
	static_assert(NJ == 4 || NJ == 7 || NJ == 8 || NJ == 12 || NJ == 14 || NJ == 16 || NJ == 20 || NJ == 21 || NJ == 24 || NJ == 28 || NJ == 32, "columns");
}
/* The same with a in registers: the fragment of ptx_mma_bf16() of the warp's 16 rows, which is what two eights of a target are as BF16. */
template <int NJ, int BT = 0, int KEEP = 1> __device__ __forceinline__ void ptx_group_mma_a(float (*d)[4], const unsigned a[4], ptx_operand b)
{
#ifdef PTX_WARPGROUPS
	if constexpr (NJ == 4)
		PTX_GROUP_MMA_A(4, "32", "16", "17", "18", "19", "20", "21", "22");
	if constexpr (NJ == 7)
		PTX_GROUP_MMA_A(7, "56", "28", "29", "30", "31", "32", "33", "34");
	if constexpr (NJ == 8)
		PTX_GROUP_MMA_A(8, "64", "32", "33", "34", "35", "36", "37", "38");
	if constexpr (NJ == 12)
		PTX_GROUP_MMA_A(12, "96", "48", "49", "50", "51", "52", "53", "54");
	if constexpr (NJ == 14)
		PTX_GROUP_MMA_A(14, "112", "56", "57", "58", "59", "60", "61", "62");
	if constexpr (NJ == 16)
		PTX_GROUP_MMA_A(16, "128", "64", "65", "66", "67", "68", "69", "70");
#endif
	static_assert(NJ == 4 || NJ == 7 || NJ == 8 || NJ == 12 || NJ == 14 || NJ == 16, "columns");
}
/* The products since the last of these are a group; ptx_group_wait<N> waits for all but the N last groups. */
__device__ __forceinline__ void ptx_group_commit()
{
#ifdef PTX_WARPGROUPS
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* The same: nothing of the targets may be touched yet, but what the groups read. */
template <int N = 1> __device__ __forceinline__ void ptx_group_wait_before()
{
#ifdef PTX_WARPGROUPS
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
template <int N, int NJ> __device__ __forceinline__ void ptx_group_wait(float (*d)[4])
{
	static_assert(N == 0 || N == 1, "groups under way");
#ifdef PTX_WARPGROUPS
	if constexpr (N == 0)
		PTX_GROUP_REGISTERS("wgmma.wait_group.sync.aligned 0;");
	else
		PTX_GROUP_REGISTERS("wgmma.wait_group.sync.aligned 1;");
#endif
}

/* A warpgroup has MOST registers a thread from here on, all of its warps: more than the block began with, or fewer. */
template <int MOST> __device__ __forceinline__ void ptx_registers_more()
{
#ifdef PTX_WARPGROUPS
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MOST));
#endif
}
template <int MOST> __device__ __forceinline__ void ptx_registers_fewer()
{
#ifdef PTX_WARPGROUPS
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(MOST));
#endif
}
/* The threads of a warpgroup meet; which: a number of its own, from 0 on. */
__device__ __forceinline__ void ptx_group_sync(int which) { asm volatile("bar.sync %0, 128;" ::"r"(which + 1) : "memory"); }

#else
#define PTX_WARPGROUPS 1
#include <emu_wgmma.h>
#endif

/* Does the device have them, and this program code for it? Of all capabilities 9.0 alone does. */
static inline int cuda_warpgroups(const struct cuda_exec *c)
{
#if !defined(__CUDACC__) || defined(FH_SM90A)
	int major = 0, minor = 0;

	return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->x.backend->device) == cudaSuccess &&
	       cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->x.backend->device) == cudaSuccess && major == 9 && minor == 0;
#else
	return 0;
#endif
}

#endif
