/* See operations.h. */
#include "daemon/operations.h"
#include "daemon/clock.h"
#include "daemon/need.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_MS 30000

struct op_waiter {
	struct op_waiter *next;
	struct operations *os;
	struct operation *op;
	operation_waited done;
	void *arg;
	uv_timer_t timer;              /* closing it frees the waiter, perhaps after os is gone */
};

struct operations {
	uv_loop_t *loop;
	struct operation *first, **last;
	struct op_waiter *waiter;
	unsigned count, waiters;
	uint64_t number, started, result_bytes;
	uv_timer_t *sweep;             /* freed by its own close callback */
	int stopping;
};

static void op_remove(struct operations *os, struct operation *op)
{
	struct operation **p = &os->first;

	while (*p != op)
		p = &(*p)->next;
	*p = op->next;
	if (!op->next)
		os->last = p;
	os->count--;
	os->result_bytes -= op->result_bytes;
	if (op->result)
		op->result_free(op->result);
	free(op);
}

/* Lets go of finished ones that are too old, too many or too large together. `room`: how many places must be free;
 * number `keep` stays. */
static void shed(struct operations *os, unsigned room, uint64_t keep)
{
	uint64_t now = uv_now(os->loop);

	for (struct operation *op = os->first, *next; op; op = next) {
		next = op->next;
		if (!op->done || op->users || op->number == keep)
			continue;
		if (now - op->finished_ms >= OPERATION_KEPT_MS || os->count + room > OPERATIONS_MAX ||
		    os->result_bytes > OPERATION_RESULT_BYTES_MAX)
			op_remove(os, op);
	}
}

static void on_sweep(uv_timer_t *t)
{
	shed(t->data, 0, 0);
}

int operations_new(uv_loop_t *loop, struct operations **out, struct fh_status *st)
{
	struct operations *os = calloc(1, sizeof *os);

	if (!os)
		return fh_fail(st, FH_EXHAUSTED, "no memory for operations");
	os->loop = loop;
	os->last = &os->first;
	os->started = time_now_ns() / 1000000;
	os->sweep = need(calloc(1, sizeof *os->sweep));
	os->sweep->data = os;
	uv_timer_init(loop, os->sweep);
	uv_timer_start(os->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
	uv_unref((uv_handle_t *)os->sweep);
	*out = os;
	return 0;
}

struct operation *operation_new(struct operations *os, uint64_t job, struct fh_status *st)
{
	struct operation *op;

	if (os->stopping) {
		fh_fail(st, FH_UNAVAILABLE, "the daemon stops");
		return NULL;
	}
	shed(os, 1, 0);
	if (os->count >= OPERATIONS_MAX) {
		fh_fail(st, FH_EXHAUSTED, "%d evaluations and saves are under way, no more are allowed", OPERATIONS_MAX);
		return NULL;
	}
	op = need(calloc(1, sizeof *op));
	op->number = ++os->number;
	op->job = job;
	snprintf(op->id, sizeof op->id, "op-%llx-%llu", (unsigned long long)os->started, (unsigned long long)op->number);
	*os->last = op;
	os->last = &op->next;
	os->count++;
	return op;
}

struct operation *operation_find(struct operations *os, const char *id)
{
	struct operation *op = os->first;

	while (op && strcmp(op->id, id ? id : ""))
		op = op->next;
	return op;
}

/* ---------------------------------------------------------------- waiting */

static void waiter_closed(uv_handle_t *h)
{
	free(h->data);
}

static void waiter_answer(struct op_waiter *w)
{
	struct op_waiter **p = &w->os->waiter;

	while (*p != w)
		p = &(*p)->next;
	*p = w->next;
	w->os->waiters--;
	w->op->users--;
	w->done(w->arg, w->op);
	uv_close((uv_handle_t *)&w->timer, waiter_closed);
}

static void on_timeout(uv_timer_t *t)
{
	waiter_answer(t->data);
}

void operation_wait(struct operations *os, struct operation *op, uint32_t wait_ms, operation_waited done, void *arg)
{
	struct op_waiter *w;

	if (op->done || !wait_ms || os->stopping || os->waiters >= OPERATION_WAITERS_MAX) {
		done(arg, op);
		return;
	}
	w = need(calloc(1, sizeof *w));
	*w = (struct op_waiter){.next = os->waiter, .os = os, .op = op, .done = done, .arg = arg};
	os->waiter = w;
	os->waiters++;
	op->users++;
	w->timer.data = w;
	uv_timer_init(os->loop, &w->timer);
	uv_update_time(w->timer.loop); /* the loop's own time may lag, and the wait would be short by that */
	uv_timer_start(&w->timer, on_timeout, wait_ms < OPERATION_WAIT_MS_MAX ? wait_ms : OPERATION_WAIT_MS_MAX, 0);
}

/* ---------------------------------------------------------------- finishing */

void operation_finish(struct operations *os, struct operation *op, int code, const struct fh_status *st, void *result,
		      size_t bytes, void (*result_free)(void *))
{
	assert(!op->done);
	op->done = 1;
	op->code = code;
	if (code)
		op->status = *st;
	else
		operation_progress(op, 1);
	op->result = result;
	op->result_bytes = bytes;
	op->result_free = result_free;
	op->finished_ms = uv_now(os->loop);
	os->result_bytes += bytes;
	for (struct op_waiter *w = os->waiter, *next; w; w = next) {
		next = w->next;
		if (w->op == op)
			waiter_answer(w);
	}
	shed(os, 0, op->number); /* older ones make room, this one stays for its client */
}

void operation_cancel(struct operation *op)
{
	__atomic_store_n(&op->cancelled, 1, __ATOMIC_RELAXED);
}

int operation_cancelled(const struct operation *op)
{
	return __atomic_load_n(&op->cancelled, __ATOMIC_RELAXED);
}

void operation_progress(struct operation *op, double part)
{
	__atomic_store(&op->progress, &part, __ATOMIC_RELAXED);
}

void operation_finish_checkpoint(struct operations *os, uint64_t operation, int code, const char *checkpoint,
				 const struct fh_status *st)
{
	struct operation *op = os->first;

	while (op && op->number != operation)
		op = op->next;
	if (!op || op->done)
		return;
	snprintf(op->checkpoint, sizeof op->checkpoint, "%s", code ? "" : checkpoint);
	operation_finish(os, op, code, st, NULL, 0, NULL);
}

/* ---------------------------------------------------------------- end */

static void sweep_closed(uv_handle_t *h)
{
	free(h);
}

void operations_stop(struct operations *os)
{
	if (!os || os->stopping)
		return;
	os->stopping = 1;
	while (os->waiter)
		waiter_answer(os->waiter);
	uv_close((uv_handle_t *)os->sweep, sweep_closed);
}

void operations_free(struct operations *os)
{
	if (!os)
		return;
	assert(os->stopping);
	while (os->first)
		op_remove(os, os->first);
	free(os);
}
