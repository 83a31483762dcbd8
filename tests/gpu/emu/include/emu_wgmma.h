/* gpu/cuda/wgmma.cuh on a CPU: a warp at a time, each its 16 rows of the product. Operands are read when the instruction is issued and
 * must be the same when its group is waited for; until then its target is NaN. */
#ifndef FH_EMU_WGMMA_H
#define FH_EMU_WGMMA_H

typedef struct { uintptr_t at; unsigned apart; } ptx_operand;
static inline ptx_operand ptx_operand_at(ptx_shared at, unsigned apart = 0) { return {at, apart}; }
static inline void ptx_operands_written() {}

struct emu_group_mma { float (*d)[4]; ptx_operand a, b; int eights, a_t, b_t; };
void emu_group_mma_op(void *const arg[32], unsigned mask);
void emu_group_commit_op(void *const arg[32], unsigned mask);
void emu_group_wait_op(void *const arg[32], unsigned mask);

template <int NJ> static inline void ptx_group_begin(float (*d)[4]) {}
template <int NJ, int AT = 0, int BT = 0> static inline void ptx_group_mma(float (*d)[4], ptx_operand a, ptx_operand b, int line = __builtin_LINE())
{
	struct emu_group_mma x = {d, a, b, NJ, AT, BT};

	emu_warp("wgmma", line, 0xffffffffu, &x, emu_group_mma_op);
}
static inline void ptx_group_commit(int line = __builtin_LINE()) { emu_warp("wgmma.commit_group", line, 0xffffffffu, nullptr, emu_group_commit_op); }
template <int N, int NJ> static inline void ptx_group_wait(float (*d)[4], int line = __builtin_LINE())
{
	int but = N;

	emu_warp("wgmma.wait_group", line, 0xffffffffu, &but, emu_group_wait_op);
}

#endif
