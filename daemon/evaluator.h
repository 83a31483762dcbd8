/* Evaluations and single decisions, on one service thread beside the training workers.
 *
 * The loop hands requests over through a bounded queue; the service thread loads policies (a small cache, keyed by checkpoint and
 * network), runs episodes in slices and answers `act`. Decisions go before evaluations: between two slices the thread looks for them, so a
 * strategy that calls the daemon live waits one slice at most.
 * Invariant: the thread touches no registry; it gets paths and market references and gives back results by uv_async. */
#ifndef FHD_EVALUATOR_H
#define FHD_EVALUATOR_H

#include <stdint.h>
#include <uv.h>

struct fh_status;
struct evaluator;
struct operations;
struct daemon;
struct rpc_call;

#define EVALUATOR_QUEUE_MAX 64          /* evaluations waiting */
#define ACT_QUEUE_MAX 256               /* decisions waiting */
#define ACT_ROWS_MAX 4096               /* states in one request */
#define EVALUATOR_POLICIES 8            /* loaded policies kept */
#define EVALUATOR_SLICE_NS 5000000      /* of an episode between two looks at the queue */
#define TRACE_PAGE_ROWS 5000

int evaluator_new(uv_loop_t *loop, struct operations *ops, struct evaluator **out, struct fh_status *st);
/* Ends the thread (the slice it is in finishes); held calls are answered UNAVAILABLE. */
void evaluator_stop(struct evaluator *e);
void evaluator_free(struct evaluator *e);

/* Call handlers (rpc_eval.c). */
void rpc_evaluate(struct daemon *d, struct rpc_call *c);
void rpc_act(struct daemon *d, struct rpc_call *c);
void rpc_operation(struct daemon *d, struct rpc_call *c);

#endif
