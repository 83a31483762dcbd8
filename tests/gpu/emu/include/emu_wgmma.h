/* gpu/cuda/wgmma.cuh on a CPU: a warp at a time, each its 16 rows of the product. Operands are read when the instruction is issued and
 * must be the same when its group is waited for; until then its target is NaN. */
#ifndef FH_EMU_WGMMA_H
#define FH_EMU_WGMMA_H

typedef struct { uintptr_t at; unsigned apart; } ptx_operand;
static inline ptx_operand ptx_operand_at(ptx_shared at, unsigned apart = 0) { return {at, apart}; }
static inline void ptx_operands_written() {}

struct emu_group_mma { float (*d)[4]; ptx_operand a, b; const unsigned *r; int eights, a_t, b_t, keep; }; /* r: a in registers */
void emu_group_mma_op(void *const arg[32], unsigned mask);
void emu_group_commit_op(void *const arg[32], unsigned mask);
void emu_group_wait_op(void *const arg[32], unsigned mask);

template <int NJ> static inline void ptx_group_begin(float (*d)[4]) {}
template <int N> static inline void ptx_group_begin_a(unsigned (*a)[4]) {}
template <int NJ, int AT = 0, int BT = 0, int KEEP = 1> static inline void ptx_group_mma(float (*d)[4], ptx_operand a, ptx_operand b, int line = __builtin_LINE())
{
	struct emu_group_mma x = {d, a, b, nullptr, NJ, AT, BT, KEEP};

	emu_warp("wgmma", line, 0xffffffffu, &x, emu_group_mma_op);
}
template <int NJ, int BT = 0, int KEEP = 1> static inline void ptx_group_mma_a(float (*d)[4], const unsigned a[4], ptx_operand b, int line = __builtin_LINE())
{
	struct emu_group_mma x = {d, {}, b, a, NJ, 0, BT, KEEP};

	emu_warp("wgmma", line, 0xffffffffu, &x, emu_group_mma_op);
}
void emu_group_sync(int which, int line);
static inline void ptx_group_sync(int which, int line = __builtin_LINE()) { emu_group_sync(which, line); }
template <int MOST> static inline void ptx_registers_more() {}
template <int MOST> static inline void ptx_registers_fewer() {}
static inline void ptx_group_commit(int line = __builtin_LINE()) { emu_warp("wgmma.commit_group", line, 0xffffffffu, nullptr, emu_group_commit_op); }
template <int N, int NJ> static inline void ptx_group_wait(float (*d)[4], int line = __builtin_LINE())
{
	int but = N;

	emu_warp("wgmma.wait_group", line, 0xffffffffu, &but, emu_group_wait_op);
}
template <int N = 1> static inline void ptx_group_wait_before(int line = __builtin_LINE())
{
	int but = N;

	emu_warp("wgmma.wait_group", line, 0xffffffffu, &but, emu_group_wait_op);
}

#endif
