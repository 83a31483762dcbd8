/* The inside of a trainer, shared by trainer.c (life cycle, schedule), validate.c (evaluations at boundaries), readback.c
 * (samples) and checkpoint.c (save and restore). Thread: the trainer's worker. */
#ifndef FH_GPU_TRAINER_IMPL_H
#define FH_GPU_TRAINER_IMPL_H

#include "gpu/trainer.h"

/* Records wait here until trainer_poll(); trainer_run() stops working while fewer than RECORD_RESERVE are free, so
 * nothing is dropped. A record holds the values of all trials. */
#define RECORD_MAX 64
#define RECORD_RESERVE 16
#define SCALE_OF 6      /* numbers that reward_scale = auto depends on beside the bars and the split, see auto_scale() */
#define INFLIGHT_MAX 16 /* readbacks asked for and not answered; more than any backend has slots */

/* What happens at a step where something is due, in this order. PASSED: nothing (more) to do here. */
enum boundary { BOUNDARY_REPORT, BOUNDARY_EVALUATE, BOUNDARY_CHECKPOINT, BOUNDARY_PASSED };

/* Where a job stands beyond what its tensors say. Stored in checkpoints as int64, field by field. */
struct position {
	int64_t step, vector_step;
	int64_t boundary;    /* enum boundary, of `step` */
	int64_t evaluated;   /* evaluations of this step that are finished */
};

struct task { int split, policy, trial; };

struct record {
	int validation, split, policy;
	int trial, trials;                    /* it holds these: a report all, an evaluation those that played side by side */
	int next;                             /* of them, the next one to hand out */
	int64_t step, vector_step, epoch;
	double *acc;                          /* [trials], of a report accumulators, of an evaluation EVAL_METRICS */
};

enum readback_kind { READBACK_REPORT, READBACK_CLOCK };
struct inflight { enum readback_kind kind; int64_t step, vector_step; };

struct trainer {
	const struct backend *backend;
	struct plan plan;
	struct exec *x;
	int param, target, clock, accum;      /* tensors by role */

	struct fh_spec spec;                  /* of the job, env.reward_scale included */
	struct market *market;
	struct fh_split split[FH_SPLITS];
	struct schedule schedule;
	int begun;                            /* a job has been started; its state is in the tensors */
	struct position at;
	int64_t planned;
	int checkpoint_due;
	int64_t began_at;                     /* learn step at which this run began (a resumed job: not 0) */
	int64_t first_step_ns;                /* see struct trainer_state */
	struct progress progress;             /* of trial 0, as last read */
	int64_t progress_step;                /* step at which the clock was last asked for */
	int diverged;                         /* all trials have */

	/* How much is given to the backend at once, see pace() in trainer.c. */
	int chunks_at_once;
	int64_t steps_at_once;
	int paced, slow;                      /* calls in a row, and long ones among the last */
	uint64_t captures;                    /* of the backend, as last seen */
	int64_t paced_ns;                     /* when the last one returned */
	int interrupted;                      /* something else was done since */

	/* reward_scale = auto as it was last made, and of what: every bar of the training split is looked at for it. */
	struct { char hash[65]; struct fh_split train; double of[SCALE_OF], scale; } scaled;

	struct evaluation *evaluation;        /* in progress, else NULL */
	struct task task;                     /* what it is of */
	int64_t task_step, task_vector_step;  /* where training stood */
	int evaluating;                       /* trials in it */
	int behind;                           /* training has gone on: it is played beside what the device does */
	int runs_since;                       /* calls of run() since it was begun */
	struct team *team;                    /* for evaluations of many episodes, where the backend has none; made at the first */
	uint8_t *guess[FH_SPLITS];            /* [P, bars, EVAL_GUESS_SIDES] what networks said at the last evaluation, or NULL */
	float *seen[FH_SPLITS];               /* [bars, 8] what the one network was asked with, or NULL */
	struct eval_room room;                /* memory of the last evaluation for the next one */

	struct record record[RECORD_MAX];
	uint64_t recorded, handed_out;
	struct inflight inflight[INFLIGHT_MAX];
	uint64_t asked, answered;
};

/* readback.c */
int readback_new(struct trainer *t, struct fh_status *st);
void readback_free(struct trainer *t);
/* Asks for the accumulators of the window that ends here (they are cleared behind the copy). */
int readback_report(struct trainer *t, struct fh_status *st);
/* Asks for the clocks, if a slot is free. */
int readback_clock(struct trainer *t, struct fh_status *st);
/* Takes what has arrived. */
int readback_drain(struct trainer *t, struct fh_status *st);
/* Waits for all of it. */
int readback_settle(struct trainer *t, struct fh_status *st);
/* Forgets everything of the last job. */
int readback_reset(struct trainer *t, struct fh_status *st);
struct record *readback_push(struct trainer *t);
int readback_room(const struct trainer *t);
int64_t trainer_epoch(const struct trainer *t);

/* validate.c */
/* Evaluations that are due at the step where t stands. */
int validate_count(const struct trainer *t);
/* Works for about budget_ns; 1 when all evaluations of this step are finished or may go on behind what is trained next, 0 when not,
 * else a code. */
int validate_run(struct trainer *t, int64_t budget_ns, struct fh_status *st);
/* Works for about budget_ns on the one that training has left behind; 1 when there is none (any more), else as above. */
int validate_settle(struct trainer *t, int64_t budget_ns, struct fh_status *st);
/* 1 when a piece of it is to be done now: the device has enough to do. */
int validate_turn(const struct trainer *t);
void validate_abandon(struct trainer *t);
/* The next evaluations are of another job. */
void validate_forget(struct trainer *t);

/* trainer.c, used by checkpoint.c: makes spec, market and schedule those of a new job and fills fresh tensors. */
struct job_start {
	struct fh_spec spec;
	struct fh_split split[FH_SPLITS];
};
int trainer_prepare(struct trainer *t, const struct fh_spec *spec, const struct market *m, struct job_start *out,
		    struct fh_status *st);
int trainer_install(struct trainer *t, const struct job_start *start, struct market *m, int keep_weights, int keep_replay,
		    const void *weights_from, const void *replay_from, struct fh_status *st);
int trainer_read_progress(struct trainer *t, struct fh_status *st);
/* checkpoint.c: parameters, target and moments of a file (with clocks of its job) as host copies the caller frees. */
int trainer_carry(const struct trainer *t, const char *path, void **clock, int *tensor, void **data, int *tensors,
		  struct fh_status *st);
int64_t monotonic_ns(void);
int64_t wall_ns(void); /* readback.c */

#endif
