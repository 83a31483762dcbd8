/* The whole network in one launch, for many rows (mlp.cu). Every bit is that of the products layer by layer (gemm.cu) and of
 * head.cuh: who takes which is a question of speed alone. */
#ifndef FH_GPU_CUDA_MLP_CUH
#define FH_GPU_CUDA_MLP_CUH

#include "gpu/cuda/exec.h"

/* Rows of one set of parameters: x_row.. of the states -> row.. of the hidden layers and outputs. The first `keep` rows
 * leave their hidden layers too, for the backward pass. */
struct mlp_pass { int row, rows, x_row, keep, target; };

/* 1: so many rows of each of so many trials are taken here, which needs BF16 and a shape that fits. greedy: down to actions, not
 * outputs. Never where stages run one by one (FH_GPU_SYNC=1): those are what the fused step is held against. */
int mlp_takes(struct cuda_exec *c, int trials, int rows, int greedy);

/* The passes of FORWARD, from x into h1, h2, head and out. */
int mlp_forward(struct cuda_exec *c, const struct mlp_pass *pass, int passes, struct fh_status *st);
/* T_OBS through the online network into pout. */
int mlp_outputs(struct cuda_exec *c, struct fh_status *st);
/* T_OBS through the online network to the greedy actions in T_ACTION. Trials that draw every action at random this step
 * (epsilon 1) are left out: EXPLORE overwrites what they would get. */
int mlp_policy(struct cuda_exec *c, struct fh_status *st);
/* Greedy actions [trials, rows, D] of states (low [trials, rows, ldx]) by the parameters (enum cuda_whose) of the trials from
 * `trial` on. 1: not taken. */
int mlp_rows_greedy(struct cuda_exec *c, int whose, int trial, int trials, int rows, const void *x, int32_t *action, struct fh_status *st);

#endif
