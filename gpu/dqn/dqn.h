/* The branching dueling C51 DQN as a program: its dimensions, tensors, stages and device-resident scalars.
 *
 * Everything both backends must agree on is here. Symbols as in gpu/README.md: B batch, SD state size, H1/H2 trunk,
 * VH/AH head sizes, NA atoms, D branches with A_d actions, C replay capacity, N environments, n n-step, P trials.
 * All arrays are row-major, weights [out, in]. The leading trial axis P is implied in every shape below. */
#ifndef FH_GPU_DQN_H
#define FH_GPU_DQN_H

#include <stdint.h>
#include "gpu/env.h"
#include "gpu/program.h"

#define DQN_BRANCHES 3
#define DQN_EXPOSURES 5
#define DQN_ORDERS 3
#define DQN_URGENCIES 3
#define DQN_CUDA_ATOMS_MAX 256 /* of a distribution on a GPU: a warp holds one in registers, eight numbers a lane */
#define DQN_SKIP_LIMIT 10  /* skipped steps in a row that fail the job */
#define DQN_LAYER_MAX (4 + 2 * FH_BRANCH_MAX)

/* Layers in flat order: 0 s1, 1 s2, 2 v1, 3 v2, then b{d}1, b{d}2 for each branch. */
enum { DQN_S1, DQN_S2, DQN_V1, DQN_V2, DQN_B0 };
struct dqn_layer { int out, in; int64_t w, b; /* element offsets in the flat buffer, multiples of 64 */ };

struct dqn_dims {
	int P, B, SD, H1, H2, VH, AH, NA, D, A[FH_BRANCH_MAX], sumA, N, n;
	int64_t C;
	int layers;
	struct dqn_layer layer[DQN_LAYER_MAX];
	int64_t params;        /* padded flat length */
	int64_t params_unpadded;
	int head;              /* VH + D*AH: width of the concatenated first head layers */
	int outs;              /* NA*(1 + sumA): V, then Adv_0, Adv_1, …: width of the raw network output */
	int precision, loss;   /* enum fh_precision (resolved), enum fh_loss */
};

enum dqn_tensor {
	/* learner */
	T_PARAM,      /* F32 [params] master parameters */
	T_TARGET,     /* F32 [params] */
	T_M, T_V,     /* F32 [params] Adam moments */
	T_GRAD,       /* F32 [params] */
	T_PARAM_LP,   /* BF16 [params] as the GEMMs read them (bf16 runs, else 1 element) */
	T_TARGET_LP,  /* BF16 [params] */
	T_CLOCK,      /* U8 [sizeof(struct dqn_clock)] */
	T_CONFIG,     /* U8 [sizeof(struct env_config)] the environment's parameters, reward_scale resolved */
	T_ACCUM,      /* F64 [DQN_ACC_COUNT] since the last report */
	/* replay */
	T_RP_S, T_RP_S2, /* F32 or BF16 [C, SD] */
	T_RP_A,       /* U8 [C, D] */
	T_RP_R, T_RP_G,  /* F32 [C] */
	T_TREE,       /* F32 [2C] heap order, node 1 the root, leaf i at C + i */
	/* environments, one entry per environment (SoA of struct env_state) */
	T_ENV_CASH, T_ENV_EQUITY, T_ENV_PEAK, T_ENV_Q, T_ENV_ENTRY, T_ENV_SIGMA, /* F64 [N] */
	T_ENV_T, T_ENV_ENTRY_BAR, T_ENV_STEPS, /* I32 [N] */
	T_ENV_RETURN, /* F64 [N] sum of rewards of the running episode (metric) */
	T_OBS,        /* F32 [N, SD] what each environment's agent sees now */
	/* n-step: a ring of the last n steps of each environment */
	T_PEND_S,     /* F32 or BF16 [N, n, SD] */
	T_PEND_A,     /* U8 [N, n, D] */
	T_PEND_R,     /* F32 [N, n] */
	T_PEND_COUNT, /* I32 [N] pending steps; slot of the oldest is (head - count) mod n */
	T_PEND_HEAD,  /* I32 [N] next slot to write */
	/* one collect step */
	T_ACTION,     /* I32 [N, D] greedy, then explored */
	T_ENV_STAT,   /* F64 [N, DQN_ENV_STATS] what the step of each environment adds to T_ACCUM (host) */
	T_ENV_READY,  /* I32 [N, 3] transitions it stores, place of the first behind clock.stored, how it ended (host) */
	/* one learn step */
	T_INDEX,      /* I32 [B] sampled leaves */
	T_WEIGHT,     /* F32 [B] importance weights */
	T_S, T_S2,    /* F32 [B, SD] (already rounded to BF16 values in bf16 runs) */
	T_A,          /* I32 [B, D] */
	T_R, T_G,     /* F32 [B] */
	T_LOGITS,     /* F32 [B, D, NA] dueling-combined logits of s, online, of the taken actions (the loss needs no others) */
	T_PROJ,       /* F32 [B, D, NA] target distributions m (c51), or y in entry 0 of each row (mse) */
	T_ERROR,      /* F32 [B] priority error e_s */
	T_CE,         /* F32 [B] ce_s (c51) or mean squared delta (mse) */
	T_SCRATCH,    /* U8, the backend's own; host and CUDA size it differently through dqn_scratch_bytes */
	DQN_TENSORS
};

/* Scalars that change from step to step or job to job. Lives in device memory (T_CLOCK), advanced by the stage
 * `advance`; never passed by value into a captured graph. */
struct dqn_clock {
	/* the job's numbers */
	uint64_t seed;
	int64_t planned, warmup, eps_steps, target_period;
	double gamma, lr0, lr_end, max_grad_norm, weight_decay, tau, alpha, beta0, beta_end, eps_start, eps_end;
	double v_min, v_max;
	int32_t lr_linear;
	int32_t train_begin, train_end;  /* training split [begin, end) */
	int32_t pad0;
	/* where it stands */
	int64_t step;          /* s: training steps done, skipped ones included */
	int64_t applied;       /* t: updates applied */
	int64_t vector_step;   /* v: vector environment steps done */
	int64_t stored;        /* transitions stored since the start; head = stored mod C, filled = min(stored, C) */
	int64_t fresh;         /* transitions that ENV of this vector step put behind `stored`; INSERT adds them to it */
	/* Skipped steps in all, and in a row. From DQN_SKIP_LIMIT on the run never ends: every later step is skipped too
	 * and the trainer, which reads this clock late, fails the job. */
	int64_t skipped, skipped_run;
	float largest;         /* largest p written to the tree */
	float grad_scale;      /* min(1, max_grad_norm/norm) of this step */
	/* this step's, written by ADVANCE (eps: by EXPLORE) */
	double lr, beta, eps, bias1, bias2; /* bias: 1 - beta^t for the update about to be applied */
	double grad_norm, loss;
	int32_t skip;          /* this step's update is skipped */
	int32_t pad1;
};

/* T_ACCUM: sums over the reporting window. */
enum dqn_acc {
	ACC_STEPS, ACC_LOSS, ACC_ERROR, ACC_GRAD_NORM, ACC_GRAD_NORM_MAX, ACC_CLIPPED, ACC_Q, ACC_EDGE, ACC_WEIGHT,
	ACC_SKIPPED, ACC_TOTAL_P, /* per learn step */
	ACC_ENV_STEPS, ACC_REWARD, ACC_REWARD2, ACC_EPISODES, ACC_EPISODE_RETURN, ACC_EPISODE_STEPS, ACC_RUINS,
	ACC_FILLS, ACC_EXITS, /* per vector step */
	ACC_LR, ACC_BETA, ACC_EPS, ACC_STORED, ACC_DZ, ACC_CAPACITY, /* last values */
	DQN_ACC_COUNT
};

/* The stages, in the order of step.c. */
enum dqn_stage {
	/* collect: one vector environment step */
	STAGE_POLICY,   /* T_OBS -> T_ACTION greedy (online network) */
	STAGE_EXPLORE,  /* T_ACTION: epsilon per branch, Philox stream 2 */
	STAGE_ENV,      /* step every environment, queue and store n-step transitions, restart, T_OBS of the next bar */
	STAGE_INSERT,   /* leaves of the stored transitions get clock.largest; parents recomputed; v + 1 */
	/* learn: one training step */
	STAGE_ADVANCE,  /* lr, beta, bias corrections of this step */
	STAGE_SAMPLE,   /* T_INDEX, T_WEIGHT */
	STAGE_GATHER,   /* T_S T_A T_R T_G T_S2 */
	STAGE_FORWARD,  /* s and s' online, s' target */
	STAGE_LOSS,     /* T_PROJ T_CE T_ERROR, gradient of the logits, loss */
	STAGE_BACKWARD, /* T_GRAD */
	STAGE_NORM,     /* norm, scale, skip */
	STAGE_ADAM,     /* Adam, target, low-precision copies */
	STAGE_PRIORITY, /* leaves, parents, largest */
	STAGE_COUNT,    /* accumulators; step + 1 */
	DQN_STAGES
};
/* Columns of T_ENV_STAT, in the order of ACC_REWARD … ACC_EXITS. */
enum { DQN_ENV_STATS = ACC_EXITS - ACC_REWARD + 1 };
enum { DQN_PHASE_COLLECT, DQN_PHASE_LEARN, DQN_PHASES };

extern const struct program dqn_program;
/* Fixed action list sizes of the trading environment: {5, 3, 3}. */
int dqn_dims_make(const struct fh_spec *spec, int state_dim, const int *actions, int branches, struct dqn_dims *out,
		  struct fh_status *st);
size_t dqn_scratch_bytes(const struct dqn_dims *d, enum fh_device device);
/* Initial values of section 1 into a flat padded buffer [params]. Exact. */
void dqn_init_params(const struct dqn_dims *d, uint64_t seed, float *flat);
/* The clock of trial `trial` (its seed is run.seed + trial) at the start of a job; padding is zero. */
void dqn_clock_init(const struct fh_spec *spec, struct fh_split train, int trial, struct dqn_clock *out);
/* Stage descriptions by id, and both phases' stage lists: step.c. */
extern const struct stage dqn_stage_table[DQN_STAGES];

#endif
