/* Evaluations and single decisions, on one service thread beside the training workers.
 *
 * The loop hands requests over through bounded queues; the service thread loads policies (a small cache, keyed by the
 * checkpoint's hash, the network and the trial), runs episodes in slices and acts. Decisions go first: between two slices the thread
 * looks for them, so a strategy that calls the daemon live waits for one slice at most.
 * Invariant: the thread touches no registry; it gets paths and market references, and its results come back by uv_async. */
#ifndef FHD_EVALUATOR_H
#define FHD_EVALUATOR_H

#include <limits.h>
#include <stdint.h>
#include <uv.h>
#include "gpu/evaluate.h"
#include "proto/status.h"

struct evaluator;
struct operations;
struct operation;
struct daemon;
struct rpc_call;

#define EVALUATOR_QUEUE_MAX 64            /* evaluations waiting */
#define ACT_QUEUE_MAX 256                 /* decisions waiting */
#define ACT_ROWS_MAX 4096                 /* states in one request */
#define EVALUATOR_POLICIES 8              /* loaded policies kept */
#define EVALUATOR_SLICE_NS 5000000        /* of an episode, between two looks at the decisions */
#define TRACE_ROWS_MAX INT64_C(2000000)   /* 240 MB of memory; a longer split is evaluated without trace */
#define TRACE_PAGE_ROWS 5000

int evaluator_new(uv_loop_t *loop, struct operations *ops, struct evaluator **out, struct fh_status *st);
/* Ends the thread (the slice it is in finishes); what waits is answered with FH_UNAVAILABLE. */
void evaluator_stop(struct evaluator *e);
void evaluator_free(struct evaluator *e);

struct policy_ref { /* which network */
	char path[PATH_MAX]; /* of the checkpoint file; it must stay until the call back */
	char id[FH_NAME_MAX];
	char sha256[65];
	enum fh_policy which;
	int trial;              /* 0 .. run.population - 1 */
};

enum { EVALUATE_ALL = FH_SPLITS }; /* beside FH_SPLIT_*: every bar */
struct evaluate_ask {
	struct policy_ref policy;
	int split;            /* FH_SPLIT_* or EVALUATE_ALL */
	int trace, benchmarks;
	int windows;          /* episodes that the split is cut into */
	int own_data;         /* the market must be the one of the checkpoint */
};

#define EVALUATE_REPORTS 3
struct evaluate_window { struct fh_split bars; struct eval_report value; };
struct evaluate_result {
	int reports;
	struct { const char *name; struct eval_report value; } report[EVALUATE_REPORTS];
	struct evaluate_window *window; /* [windows], the agent's; none when there is one alone */
	int windows;
	int branches;
	int64_t rows;
	struct eval_row *row; /* [rows], with trace */
	double *close;        /* [rows]: close of the row's bar */
	int64_t begin, end, first_ts, last_ts; /* first bar of the episode, one past the split's last; their times */
	double initial_cash, multiplier, max_position;
	int split;
	int trial, trials;      /* which of how many played; trials 1: no population */
};

/* Runs it and finishes `op` with a struct evaluate_result; takes the reference of m. `done` runs on the loop after that,
 * also on failure: the checkpoint's file may go. FH_EXHAUSTED, nothing taken: the queue is full. */
int evaluator_evaluate(struct evaluator *e, struct operation *op, const struct evaluate_ask *ask, struct market *m,
		       void (*done)(void *arg), void *arg, struct fh_status *st);

struct act_result { int rows, branches, state_dim, actions[FH_BRANCH_MAX]; int32_t *action; float *q; };
/* states [rows, state_dim] stay the caller's until the call back; rows 0: as many as `floats` makes. The result lives until the
 * call back returns. Never called back before this returns. FH_EXHAUSTED: the queue is full, no call back. */
typedef void (*act_done)(void *arg, int code, const struct act_result *r, const struct fh_status *st);
int evaluator_act(struct evaluator *e, const struct policy_ref *p, const float *states, size_t floats, uint32_t rows,
		  act_done done, void *arg, struct fh_status *st);

/* Call handlers (rpc_eval.c, rpc_operation.c). */
void rpc_evaluate(struct daemon *d, struct rpc_call *c);
void rpc_act(struct daemon *d, struct rpc_call *c);
void rpc_operation(struct daemon *d, struct rpc_call *c);

#endif
