/* What evaluator.c (loop) and evaluator_thread.c (the service thread) share: lists of tasks under one lock. A task belongs to the
 * thread while it is out of its list and not in `finished`. */
#ifndef FHD_EVALUATOR_INTERNAL_H
#define FHD_EVALUATOR_INTERNAL_H

#include <pthread.h>
#include <uv.h>

#include "daemon/evaluator.h"

struct cached { /* service thread */
	struct policy *policy;
	struct fh_spec spec;
	char sha256[65], market[65];
	enum fh_policy which;
	int trial;
	uint64_t used;
	int pinned;             /* an evaluation runs with it */
};

enum task_kind { TASK_ACT, TASK_EVALUATE };
struct task {
	struct task *next;
	enum task_kind kind;
	int code;
	struct fh_status st;
	/* act */
	struct policy_ref policy;
	const float *states;
	size_t floats;
	uint32_t rows;
	struct act_result act;
	act_done act_done;
	/* evaluate */
	struct evaluate_ask ask;
	struct operation *op;
	struct market *market;
	struct evaluate_result *result;
	void (*done)(void *arg);
	void *arg;
	/* evaluate, service thread */
	struct cached *cached;
	struct env_config config;
	struct fh_split split;
	struct evaluation *episode;
	int stage;              /* reports finished */
};

struct tasks { struct task *head, **tail; unsigned n; };

struct evaluator {
	uv_loop_t *loop;
	uv_async_t *async;      /* freed by its close callback */
	struct operations *ops;
	pthread_t thread;
	pthread_mutex_t lock;   /* guards the lists and ending */
	pthread_cond_t work;
	struct tasks acts, evaluations, finished;
	int ending, stopped;
	struct cached cache[EVALUATOR_POLICIES]; /* service thread */
	uint64_t clock;
};

void tasks_init(struct tasks *l);
void tasks_push(struct tasks *l, struct task *t);
struct task *tasks_pop(struct tasks *l); /* NULL when there is none */

/* The thread's function, its argument the evaluator. Ends when `ending` is set; what it had in hand is in `finished` then. */
void *evaluator_main(void *arg);

#endif
