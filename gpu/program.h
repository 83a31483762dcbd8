/* What a model brings to the trainer: its tensors, its phases as lists of stages, its schedule and its metrics.
 *
 * trainer, layout, readback and checkpoint are loops over what a program registers here; nothing in them knows a model.
 * The DQN (gpu/dqn/) is the first program. A program describes, it never allocates: layout.c plans one arena from the
 * tensor records, backends run the stages. Every tensor that is not DATA has the trial axis P (spec.run.population)
 * in front, and every stage loops over it (host) or has it as a grid dimension (CUDA). */
#ifndef FH_GPU_PROGRAM_H
#define FH_GPU_PROGRAM_H

#include <stdint.h>
#include "gpu/safetensors.h"
#include "gpu/spec.h"

struct fh_status;
struct exec;

enum tensor_role { ROLE_PARAM, ROLE_GRAD, ROLE_MOMENT, ROLE_TARGET, ROLE_STATE, ROLE_CLOCK, ROLE_ACCUM, ROLE_SCRATCH };
enum {
	TENSOR_KEEP = 1,   /* goes into checkpoints */
	TENSOR_FRESH = 2,  /* zeroed when a job starts fresh (before the program's init fills it) */
	TENSOR_REPLAY = 4, /* kept from job to job when init.replay = keep */
	TENSOR_HOST = 8    /* scratch that only the host backend needs */
};
#define TENSOR_RANK_MAX 5

struct tensor_desc {
	const char *name;     /* checkpoint name, "adam.m" */
	enum st_dtype dtype;
	int rank;             /* without the trial axis */
	int64_t dim[TENSOR_RANK_MAX];
	enum tensor_role role;
	unsigned flags;
};

/* A named part of a flat buffer, so that a checkpoint stores "param.s1.w" [H1,SD] and not one long vector. */
struct tensor_view {
	int tensor;           /* index of the flat tensor */
	const char *name;     /* "s1.w" */
	int rank;
	int64_t dim[2];
	int64_t offset;       /* elements from the start of a trial's buffer */
};

/* A stage is one operation that both backends implement under the same id. reads/writes: tensor indices, -1 ends;
 * they drive the stage-by-stage comparison of the backends and FH_GPU_SYNC=1. */
struct stage { const char *name; int id; const short *reads, *writes; };
struct phase { const char *name; const struct stage *stage; int stages; };
/* A chunk is a short list of runs, repeated: DQN = {collect, 1}, {learn, steps_per_collect}. */
struct run { int phase, count; };

enum metric_better { METRIC_NEUTRAL, METRIC_HIGHER, METRIC_LOWER };
/* One row per reported number. `finish` is pure: accumulators of the reporting window -> value. */
struct metric {
	const char *name, *unit; /* "loss", "1"; units: 1, money, steps, s, bytes, ratio */
	enum metric_better better;
	double (*finish)(const double *acc);
	const char *help;
	/* What a person should be told when the value leaves [warn_below, warn_above]; NULL: nothing. */
	const char *warning;
	double warn_below, warn_above;
};
static inline int metric_warns(const struct metric *m, double value)
{
	return m->warning && (value < m->warn_below || value > m->warn_above);
}
#define METRIC_MAX 64

struct plan; /* layout.h */

/* The schedule: `warm` is repeated until the program says it is warm, then `chunk` is repeated. The last run of a chunk
 * is the learning one: its count is in learn steps, and a boundary (report, validation, end) may cut it in two. */
#define CHUNK_RUN_MAX 4
struct schedule { struct run warm; struct run chunk[CHUNK_RUN_MAX]; int runs; };

/* Where a trial stands, read from its clock. */
struct progress {
	int64_t step, vector_step, stored, applied;
	int64_t warm_left;   /* runs of `warm` that are certainly still needed, 0 when warm */
	int diverged;        /* too many skipped steps in a row */
};

struct program {
	const char *name;
	/* Registers tensors and views for a resolved spec and fixes the program's dimensions. Allocates nothing on a
	 * device; FH_INVALID/FH_EXHAUSTED. */
	int (*plan)(const struct fh_spec *spec, int state_dim, struct plan *plan, struct fh_status *st);
	void (*schedule)(const struct fh_spec *spec, struct schedule *out);
	/* Fills the tensors of a new job through the backend (all TENSOR_FRESH ones are zero by then). spec is complete,
	 * env.reward_scale included. weights_from: clocks [P] of the job whose parameters, target and moments are already in
	 * place, NULL = initial values by seed, with what derive would make of them. replay_from: the same for a replay that
	 * is kept. */
	int (*begin)(struct exec *x, const struct fh_spec *spec, const struct fh_split *split, const void *weights_from,
		     const void *replay_from, struct fh_status *st);
	/* Looks at a checkpoint before it is loaded: tensor[i] is a host copy of tensor i (all trials), NULL where it is
	 * not kept; clocks are brought up to date in place. Indices and counters must be in range: FH_CORRUPT. */
	int (*restore)(const struct plan *plan, const struct fh_spec *spec, const struct fh_split *split, void *const *tensor,
		       struct fh_status *st);
	/* Makes what is computed from kept tensors and not kept itself (low-precision copies). */
	int (*derive)(struct exec *x, struct fh_status *st);
	void (*progress)(const struct plan *plan, const void *clock, struct progress *out);
	const struct phase *phase;
	int phases;
	const struct metric *metric; /* of training reports, at most METRIC_MAX; a row without a name ends them */
	int accumulators; /* F64 per trial */
};

const struct program *program_find(const char *name); /* NULL when unknown */
/* Its metric table alone (ends with a NULL name), without linking the program: metric_table.c. NULL when unknown. */
const struct metric *metric_table(const char *model);

#endif
