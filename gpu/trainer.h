/* The only door to training: make a trainer, give it a job, let it run in slices, read its samples, save and load.
 *
 * Knows no model (program.h does) and no device (backend.h does). One trainer belongs to one worker thread; trainer_plan
 * and the snapshot functions marked so may be used on any thread. A trainer outlives jobs: the pool parks it and the
 * next job of the same layout re-uses its memory and graphs. */
#ifndef FH_GPU_TRAINER_H
#define FH_GPU_TRAINER_H

#include <stdint.h>
#include "gpu/backend.h"
#include "gpu/evaluate.h"

struct trainer;

/* Any thread. Everything that can be known before a job is accepted: rules, splits, memory against the device. */
int trainer_plan(const struct backend *b, const struct fh_spec *spec /* resolved */, int64_t bars,
		 struct memory_plan *out, struct fh_status *st);

int trainer_new(const struct backend *b, const struct fh_spec *spec /* resolved */, struct trainer **out,
		struct fh_status *st);
void trainer_free(struct trainer *t); /* NULL is fine */
/* 1 when `t` can run a job with this spec as it stands. */
int trainer_fits(const struct trainer *t, const struct fh_spec *spec);

/* Starts a job: scalars, market, initial values. init.from = warm keeps parameters, target, moments of the last job;
 * init.replay = keep keeps the replay (and its tree) if the market's hash is the same, else FH_CONFLICT.
 * checkpoint != NULL: parameters, target and moments come from that file (init.from = checkpoint). */
int trainer_begin(struct trainer *t, const struct fh_spec *spec, struct market *m, const char *checkpoint,
		  struct fh_status *st);
/* Continues an interrupted job from its checkpoint bit for bit: everything with TENSOR_KEEP, counters included.
 * FH_CORRUPT/FH_CONFLICT when file, spec or market do not match. */
int trainer_resume(struct trainer *t, const struct fh_spec *spec, struct market *m, const char *checkpoint,
		   struct fh_status *st);

enum trainer_phase { TRAINER_WARMUP, TRAINER_LEARN, TRAINER_VALIDATE, TRAINER_DONE };
struct trainer_state {
	enum trainer_phase phase;
	int64_t step, planned;        /* learn steps */
	int64_t vector_step, epoch;   /* vector environment steps; epoch = step / steps_per_epoch */
	int64_t transitions;          /* stored so far */
	int checkpoint_due;           /* cleared by trainer_snapshot */
	int64_t first_step_ns;        /* CLOCK_REALTIME when this run's first learn step was seen finished, 0 before */
	int64_t seen_ns;              /* CLOCK_REALTIME of all this */
	int done;
};
/* Works for about budget_ns (at least one vector step or one slice of validation), then returns at a boundary from
 * which a checkpoint resumes bit for bit; earlier when a checkpoint falls due. Does nothing while about 48 reports and
 * evaluations wait for trainer_poll(), so that none is lost. FH_DIVERGED after ten skipped steps in a row; FH_DEVICE_LOST. */
int trainer_run(struct trainer *t, int64_t budget_ns, struct trainer_state *out, struct fh_status *st);
void trainer_state_get(const struct trainer *t, struct trainer_state *out);

struct trainer_sample {
	int validation;               /* 0: training report, 1: validation */
	int split;                    /* validation: FH_SPLIT_* */
	int policy;                   /* validation: enum fh_policy */
	int trial;
	int64_t step, vector_step, epoch;
	int values;
	const struct metric *metric[METRIC_MAX]; /* static storage */
	double value[METRIC_MAX];
};
/* 1 and a sample when a readback has finished, else 0. Never waits. A report and an evaluation give one sample per trial. Reports come in the order
 * of their steps, and so do evaluations; an evaluation may come behind reports of later steps. */
int trainer_poll(struct trainer *t, struct trainer_sample *out, struct fh_status *st);

/* The whole state as a safetensors image, taken at the boundary where trainer_run stopped. First finishes an evaluation that training has left behind
 * (up to about 0.1 s); its samples are there afterwards. meta: k, v, …, NULL, added
 * to the trainer's own (spec, step, market hash, format version). The image may be written by any thread. */
int trainer_snapshot(struct trainer *t, const char *const *meta, struct st_image *out, struct fh_status *st);
/* Memory by owner of a live trainer. */
void trainer_memory(const struct trainer *t, struct memory_plan *out);
/* What it really holds, as the driver counts it. Any thread, while t lives. */
void trainer_usage(const struct trainer *t, struct exec_usage *out);

#endif
