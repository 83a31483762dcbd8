/* All jobs the daemon knows, and the one table that says which change of state is allowed.
 *
 * Thread: loop, all of it. Owned by struct daemon. A job lives until the process ends; pointers to jobs stay valid.
 * Invariant: a job's row in the store is written at every change of state, and whoever asked for the change is answered
 * after that write. */
#ifndef FHD_JOBS_H
#define FHD_JOBS_H

#include <stddef.h>
#include <stdint.h>
#include "daemon/limits.h"
#include "daemon/mailbox.h"
#include "gpu/layout.h"
#include "gpu/spec.h"
#include "gpu/trainer.h"
#include "proto/fh.pb-c.h"
#include "proto/status.h"
#include "proto/wire.h"

struct daemon;
struct rpc_call;
struct jobs;

enum job_state { JOB_NONE, JOB_QUEUED, JOB_RUNNING, JOB_PAUSED, JOB_DONE, JOB_FAILED, JOB_STOPPED }; /* as on the wire */
enum job_event {
	EVENT_START,      /* the queue gave it slots */
	EVENT_PAUSE, EVENT_RESUME, EVENT_STOP,
	EVENT_FINISH, EVENT_FAIL,
	EVENT_INTERRUPT,  /* the daemon stops or died under it */
	EVENT_COUNT
};

struct job_label { char key[FH_NAME_MAX]; char value[FH_LABEL_VALUE_MAX + 1]; };

/* What a command that waits for the worker is answered with. */
enum job_wish { WISH_NONE, WISH_CHECKPOINT, WISH_PAUSE, WISH_STOP, WISH_DISCARD, WISH_INTERRUPT };

struct job {
	/* durable: the row of store.h */
	uint64_t id;
	char name[FH_NAME_MAX];
	enum job_state state;
	char reason[LIMIT_REASON];
	struct fh_status *error;      /* of a failed job, else NULL */
	struct fh_spec spec;          /* resolved, complete */
	struct job_label *label;
	int labels;
	uint64_t created_ns, started_ns, ended_ns;
	int64_t step, planned, vector_step, epoch;
	unsigned interruptions;
	struct memory_plan memory;    /* planned, of the live trainer while it runs */
	char dataset_hash[65];
	char device[128];
	char last_checkpoint[FH_NAME_MAX]; /* id, "" = none */
	char resume_note[LIMIT_REASON];
	char request_id[LIMIT_REQUEST_ID + 1];

	/* of this process */
	int accepted;                 /* its first row is durable */
	enum job_state shown;         /* the state that is durable: what clients are told */
	enum trainer_phase phase;
	uint64_t first_step_ns;       /* CLOCK_REALTIME at which this run's first learn step was finished, 0 before */
	uint64_t progress_ns;         /* CLOCK_REALTIME at which step was seen, 0 when this process has not run it */
	double steps_per_second;      /* moving average while it runs, else 0 */
	int worker;                   /* index of the worker that has it, -1 */
	int sent;                     /* the worker has been told to run it */
	int slots;                    /* slots it holds, 0 when not running */
	size_t memory_held;           /* bytes it is counted with while it holds slots */
	enum job_wish wish;           /* strongest request on its way to the worker */
	int wish_sent;                /* bit per enum job_wish */
	struct job_waiter *waiters;   /* who is told when a wish has come true */
	int writing;                  /* checkpoint images on their way to disk */
	int committing;               /* rows on their way to disk */
	int unwritten;                /* its last row could not be written */
	struct job *queue_next, *queue_prev;
	int queued;                   /* in the queue's list */
	unsigned queue_number;        /* its position as last counted */
	uint64_t rate_ns;             /* steps_per_second: time and step of the last look */
	int64_t rate_step;
	struct job *name_next;        /* names that hash alike */
};

int jobs_new(struct daemon *d, struct jobs **out, struct fh_status *st);
/* Reads every job (before store_start, after checkpoints_load). */
int jobs_load(struct jobs *js, struct fh_status *st);
/* After store_start: what was running when the last process ended is requeued (at most LIMIT_INTERRUPTIONS times,
 * on_interrupt = resume) or failed; what was queued is queued. */
void jobs_recover(struct jobs *js);
void jobs_free(struct jobs *js);

/* NULL when there is none. `ref` is an id in decimal or a name; a name of digits only is refused at start, so the two
 * never collide. */
struct job *jobs_find(struct jobs *js, const char *ref);
struct job *jobs_by_id(struct jobs *js, uint64_t id);
/* By exact name, also a job whose first row is still on its way to the disk (see jobs_when_accepted). */
struct job *jobs_by_name(struct jobs *js, const char *name);
/* The same, with FH_INVALID/FH_NOT_FOUND naming `field` and the text. */
int jobs_lookup(struct jobs *js, const char *ref, const char *field, struct job **out, struct fh_status *st);
/* In order of id: the first job with id > after, NULL at the end. */
struct job *jobs_next(struct jobs *js, uint64_t after);
size_t jobs_count(const struct jobs *js);
size_t jobs_count_state(const struct jobs *js, enum job_state s);
/* Of those in state running: the worker has let go of them and their last checkpoint or row is on its way to the disk. */
size_t jobs_finishing(const struct jobs *js);
/* Live (queued, running, paused) jobs that name this data set. Linear. */
unsigned jobs_using_dataset(struct jobs *js, const char *dataset);
/* 1 when a live job would resume or start from this checkpoint; its name goes to `by`. Linear. */
int jobs_needs_checkpoint(struct jobs *js, const char *checkpoint, char by[FH_NAME_MAX]);

const char *job_state_name(enum job_state s);
/* The new state, JOB_NONE when the table does not allow it. */
enum job_state job_transition(enum job_state from, enum job_event event);
int job_is_final(enum job_state s); /* done, failed, stopped */

/* st->code 0: it happened and is durable. */
typedef void (*job_done)(void *ctx, struct job *j, const struct fh_status *st);
/* Accepts a job: everything has been checked. Gives it an id; it is queued once it is durable, then done is called.
 * On failure (of the store) the job is gone after the callback. FH_EXHAUSTED at a limit, done is not called then. */
int jobs_add(struct jobs *js, const struct fh_spec *resolved, const char *name /* NULL: job-N */,
	     const struct job_label *label, int labels, const struct memory_plan *memory, const char *dataset_hash,
	     const char *request_id, job_done done, void *ctx, struct fh_status *st);
/* done when job j is durable: at once, or when its first row is (a client attaches to a job that is being accepted). */
void jobs_when_accepted(struct jobs *js, struct job *j, job_done done, void *ctx);
/* "" when equal, else "learn.lr is 0.0003 there and 0.001 here" (first three differences). */
void jobs_spec_differs(const struct fh_spec *there, const struct fh_spec *here, char *text, size_t size);

/* Requests of clients. They return at once; done is called when the change is durable (and, for a running job, when
 * its worker has let go of it). FH_CONFLICT when the state does not allow it; done is not called then. */
int jobs_stop(struct jobs *js, struct job *j, int discard, job_done done, void *ctx, struct fh_status *st);
int jobs_pause(struct jobs *js, struct job *j, job_done done, void *ctx, struct fh_status *st);
int jobs_resume(struct jobs *js, struct job *j, job_done done, void *ctx, struct fh_status *st);
/* A checkpoint of a running job at its next boundary; operation_finish_checkpoint() follows when it is registered. A job
 * that does not run: FH_CONFLICT (it has its last checkpoint). */
int jobs_request_checkpoint(struct jobs *js, struct job *j, uint64_t operation, struct fh_status *st);

/* queue.c -> jobs: slots have been reserved. */
void jobs_start(struct jobs *js, struct job *j);
/* worker.c -> jobs, on the loop: takes ownership of event->image. */
void jobs_worker_event(struct jobs *js, struct worker_event *event);
/* The newest state of a running job, a few times a second; and when somebody asks. */
void jobs_refresh(struct jobs *js, struct job *j);
/* The daemon stops: every running job gets an INTERRUPT. */
void jobs_interrupt_all(struct jobs *js, int now);
/* 1 while the disk takes rows and keeps up with the checkpoints of jobs that end: else the queue waits. */
int jobs_disk_keeps_up(const struct jobs *js);
/* 1 when no job runs or is being written. */
int jobs_idle(const struct jobs *js);

/* Memory by role; from the call. */
Fh__V1__MemoryUse *memory_to_wire(const struct memory_plan *m, struct rpc_call *c);
/* The wire form. full: with the last samples (series.c fills them) and queue position. Memory from the call. */
void jobs_to_wire(struct jobs *js, const struct job *j, int full, struct rpc_call *c, Fh__V1__Job *out);

#endif
