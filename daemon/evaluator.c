/* The evaluator as the loop sees it; see evaluator.h. What runs beside the loop is evaluator_thread.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/evaluator_internal.h"
#include "daemon/need.h"
#include "daemon/operations.h"

void tasks_init(struct tasks *l)
{
	l->head = NULL;
	l->tail = &l->head;
	l->n = 0;
}

void tasks_push(struct tasks *l, struct task *t)
{
	t->next = NULL;
	*l->tail = t;
	l->tail = &t->next;
	l->n++;
}

struct task *tasks_pop(struct tasks *l)
{
	struct task *t = l->head;

	if (!t)
		return NULL;
	l->head = t->next;
	if (!l->head)
		l->tail = &l->head;
	l->n--;
	return t;
}

static void result_free(void *p)
{
	struct evaluate_result *r = p;

	if (!r)
		return;
	free(r->window);
	free(r->row);
	free(r->close);
	free(r);
}

static void answer(struct evaluator *e, struct task *t)
{
	if (t->kind == TASK_ACT) {
		t->act_done(t->arg, t->code, t->code ? NULL : &t->act, &t->st);
		free(t->act.action);
		free(t->act.q);
	} else {
		struct evaluate_result *r = t->result;

		if (t->code) {
			result_free(r);
			r = NULL;
		}
		t->op->users--;
		operation_finish(e->ops, t->op, t->code, &t->st, r,
				 r ? sizeof *r + (size_t)r->rows * (sizeof *r->row + sizeof *r->close) + (size_t)r->windows * sizeof *r->window : 0, result_free);
		market_unref(t->market);
		t->done(t->arg);
	}
	free(t);
}

static void answer_all(struct evaluator *e, struct tasks *l)
{
	struct tasks mine;
	struct task *t;

	pthread_mutex_lock(&e->lock);
	mine = *l;
	if (!mine.head)
		mine.tail = &mine.head;
	tasks_init(l);
	pthread_mutex_unlock(&e->lock);
	while ((t = tasks_pop(&mine)))
		answer(e, t);
}

static void on_async(uv_async_t *h)
{
	struct evaluator *e = h->data;

	answer_all(e, &e->finished);
}

static void async_closed(uv_handle_t *h)
{
	free(h);
}

static int submit(struct evaluator *e, struct tasks *l, unsigned most, struct task *t, const char *what, struct fh_status *st)
{
	int code = 0;

	pthread_mutex_lock(&e->lock);
	if (e->ending)
		code = fh_fail(st, FH_UNAVAILABLE, "the daemon stops");
	else if (l->n >= most)
		code = fh_fail(st, FH_EXHAUSTED, "%u %s wait already", most, what);
	else
		tasks_push(l, t);
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	if (code)
		free(t);
	return code;
}

int evaluator_evaluate(struct evaluator *e, struct operation *op, const struct evaluate_ask *ask, struct market *m,
		       void (*done)(void *arg), void *arg, struct fh_status *st)
{
	struct task *t = need(calloc(1, sizeof *t));
	int code;

	t->kind = TASK_EVALUATE;
	t->ask = *ask;
	t->op = op;
	t->market = m;
	t->done = done;
	t->arg = arg;
	op->users++;
	code = submit(e, &e->evaluations, EVALUATOR_QUEUE_MAX, t, "evaluations", st);
	if (code)
		op->users--;
	return code;
}

int evaluator_act(struct evaluator *e, const struct policy_ref *p, const float *states, size_t floats, uint32_t rows,
		  act_done done, void *arg, struct fh_status *st)
{
	struct task *t = need(calloc(1, sizeof *t));

	t->kind = TASK_ACT;
	t->policy = *p;
	t->states = states;
	t->floats = floats;
	t->rows = rows;
	t->act_done = done;
	t->arg = arg;
	return submit(e, &e->acts, ACT_QUEUE_MAX, t, "decisions", st);
}

int evaluator_new(uv_loop_t *loop, struct operations *ops, struct evaluator **out, struct fh_status *st)
{
	struct evaluator *e = need(calloc(1, sizeof *e));
	int rc;

	e->loop = loop;
	e->ops = ops;
	tasks_init(&e->acts);
	tasks_init(&e->evaluations);
	tasks_init(&e->finished);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->work, NULL);
	e->async = need(calloc(1, sizeof *e->async));
	e->async->data = e;
	uv_async_init(loop, e->async, on_async);
	rc = pthread_create(&e->thread, NULL, evaluator_main, e);
	if (rc) {
		e->stopped = 1;
		uv_close((uv_handle_t *)e->async, async_closed);
		evaluator_free(e);
		return fh_fail(st, FH_EXHAUSTED, "evaluator: no thread: %s", strerror(rc));
	}
	*out = e;
	return 0;
}

static void refuse_all(struct evaluator *e, struct tasks *l)
{
	for (struct task *t = l->head; t; t = t->next)
		t->code = fh_fail(&t->st, FH_UNAVAILABLE, "the daemon stops");
	answer_all(e, l);
}

void evaluator_stop(struct evaluator *e)
{
	if (!e || e->stopped)
		return;
	pthread_mutex_lock(&e->lock);
	e->ending = 1;
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	e->stopped = 1;
	answer_all(e, &e->finished);
	refuse_all(e, &e->acts);
	refuse_all(e, &e->evaluations);
	uv_close((uv_handle_t *)e->async, async_closed);
}

void evaluator_free(struct evaluator *e)
{
	if (!e)
		return;
	assert(e->stopped);
	for (int i = 0; i < EVALUATOR_POLICIES; i++)
		policy_free(e->cache[i].policy);
	pthread_cond_destroy(&e->work);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
