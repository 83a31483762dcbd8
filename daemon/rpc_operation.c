/* The call that asks how far an operation is, and its results on the wire. Loop thread. */
#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/evaluator.h"
#include "daemon/operations.h"
#include "daemon/rpc.h"
#include "daemon/rpc_operation.h"
#include "gpu/eval_metrics.h"
#include "proto/status.h"

const char *const rpc_split_name[EVALUATE_ALL + 1] = {"train", "validation", "test", "all"};

/* ---------------------------------------------------------------- results on the wire */

void checkpoint_to_wire(const struct checkpoint *c, Fh__V1__Checkpoint *out)
{
	fh__v1__checkpoint__init(out);
	out->id = (char *)c->id;
	out->has_job = out->has_step = out->has_created_ns = out->has_bytes = out->has_pinned = 1;
	out->job = c->job;
	out->step = c->step;
	out->created_ns = c->created_ns;
	out->bytes = c->bytes;
	out->pinned = c->pinned;
	out->reason = (char *)c->reason;
	out->sha256 = (char *)c->sha256;
}

static void add_notes(struct rpc_call *c, unsigned notes, Fh__V1__EvaluationReport *r)
{
	static const struct { unsigned bit; const char *text; } note[] = {
		{EVAL_NOTE_NO_DEVIATION, "returns have no deviation: Sharpe is given as 0"},
		{EVAL_NOTE_FEW_BARS, "fewer than two bars: Sharpe is given as 0"},
		{EVAL_NOTE_NO_TIME, "the bars cover no time: Sharpe and Sortino are given as 0"},
		{EVAL_NOTE_NO_DOWNSIDE, "no bar lost money: Sortino is given as 0"},
	};

	r->note = rpc_alloc(c, sizeof note / sizeof *note * sizeof *r->note);
	for (size_t i = 0; i < sizeof note / sizeof *note; i++)
		if (notes & note[i].bit)
			r->note[r->n_note++] = (char *)note[i].text;
}

static Fh__V1__EvaluationReport *report_to_wire(struct rpc_call *c, const char *name, const struct eval_report *value)
{
	Fh__V1__EvaluationReport *r = rpc_alloc(c, sizeof *r);
	Fh__V1__MetricValue *v = rpc_alloc(c, EVAL_METRICS * sizeof *v);
	double acc[EVAL_METRICS];

	fh__v1__evaluation_report__init(r);
	r->name = (char *)name;
	r->value = rpc_alloc(c, EVAL_METRICS * sizeof *r->value);
	eval_metric_values(value, acc);
	for (int i = 0; i < EVAL_METRICS; i++) {
		fh__v1__metric_value__init(&v[i]);
		v[i].name = (char *)eval_metric[i].name;
		v[i].has_value = 1;
		v[i].value = eval_metric[i].finish(acc);
		r->value[r->n_value++] = &v[i];
	}
	add_notes(c, value->notes, r);
	return r;
}

static void row_to_wire(const struct evaluate_result *r, int64_t i, Fh__V1__TraceRow *w)
{
	struct eval_row *e = &r->row[i];

	fh__v1__trace_row__init(w);
	w->has_ts = w->has_bar = w->has_fill = w->has_fill_price = w->has_fee = w->has_exit = w->has_exit_fill = 1;
	w->has_exit_price = w->has_position = w->has_cash = w->has_equity = w->has_reward = w->has_close = 1;
	w->ts = e->ts;
	w->bar = e->bar;
	w->n_action = (size_t)r->branches;
	w->action = e->action;
	w->fill = e->fill;
	w->fill_price = e->fill_price;
	w->fee = e->fee;
	w->exit = e->exit;
	w->exit_fill = e->exit_fill;
	w->exit_price = e->exit_price;
	w->position = e->q;
	w->cash = e->cash;
	w->equity = e->equity;
	w->reward = e->reward;
	w->close = r->close[i];
	w->has_roll = w->has_roll_out = w->has_roll_in = e->roll != 0;
	w->roll = e->roll;
	w->roll_out = e->roll_out;
	w->roll_in = e->roll_in;
}

static Fh__V1__EvaluateReply *result_to_wire(struct rpc_call *c, const struct evaluate_result *r, uint64_t first)
{
	Fh__V1__EvaluateReply *e = rpc_alloc(c, sizeof *e);
	int64_t from = first < (uint64_t)r->rows ? (int64_t)first : r->rows, n = r->rows - from;
	Fh__V1__TraceRow *row;

	fh__v1__evaluate_reply__init(e);
	e->report = rpc_alloc(c, EVALUATE_REPORTS * sizeof *e->report);
	for (int i = 0; i < r->reports; i++)
		e->report[e->n_report++] = report_to_wire(c, r->report[i].name, &r->report[i].value);
	e->window = rpc_alloc(c, (size_t)(r->windows + 1) * sizeof *e->window);
	for (int i = 0; !first && i < r->windows; i++) {
		Fh__V1__EvaluationReport *w = e->window[e->n_window++] = report_to_wire(c, "window", &r->window[i].value);

		w->has_begin = w->has_end = 1;
		w->begin = r->window[i].bars.begin;
		w->end = r->window[i].bars.end;
	}
	if (n > TRACE_PAGE_ROWS)
		n = TRACE_PAGE_ROWS;
	row = rpc_alloc(c, (size_t)(n + 1) * sizeof *row);
	e->row = rpc_alloc(c, (size_t)(n + 1) * sizeof *e->row);
	for (int64_t i = 0; i < n; i++) {
		row_to_wire(r, from + i, &row[i]);
		e->row[e->n_row++] = &row[i];
	}
	e->has_more = e->has_begin = e->has_end = e->has_first_ts = e->has_last_ts = 1;
	e->has_initial_cash = e->has_multiplier = e->has_max_position = 1;
	e->more = from + n < r->rows;
	e->has_trial = e->has_trials = r->trials > 1;
	e->trial = (uint32_t)r->trial;
	e->trials = (uint32_t)r->trials;
	e->split = (char *)rpc_split_name[r->split];
	e->begin = r->begin;
	e->end = r->end;
	e->first_ts = r->first_ts;
	e->last_ts = r->last_ts;
	e->initial_cash = r->initial_cash;
	e->multiplier = r->multiplier;
	e->max_position = r->max_position;
	return e;
}

static Fh__V1__CheckpointReply *saved_to_wire(struct daemon *d, struct rpc_call *c, const char *id)
{
	const struct checkpoint *k = checkpoints_find(d->checkpoints, id);
	Fh__V1__CheckpointReply *r = rpc_alloc(c, sizeof *r);

	fh__v1__checkpoint_reply__init(r);
	r->checkpoint = rpc_alloc(c, sizeof *r->checkpoint);
	fh__v1__checkpoint__init(r->checkpoint);
	if (k)
		checkpoint_to_wire(k, r->checkpoint);
	else /* dropped meanwhile */
		r->checkpoint->id = rpc_strdup(c, id);
	return r;
}

void rpc_reply_operation(struct daemon *d, struct rpc_call *c, struct operation *op, uint64_t row)
{
	Fh__V1__OperationReply r = FH__V1__OPERATION_REPLY__INIT;
	Fh__V1__Error error = FH__V1__ERROR__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;

	r.operation = op->id;
	r.has_done = r.has_progress = 1;
	r.done = op->done;
	__atomic_load(&op->progress, &r.progress, __ATOMIC_RELAXED);
	if (op->done && op->code) {
		fh_error_from_status(&error, &op->status);
		r.error = &error;
	} else if (op->done && op->result) {
		r.evaluate = result_to_wire(c, op->result, row);
	} else if (op->done) {
		r.checkpoint = saved_to_wire(d, c, op->checkpoint);
	}
	reply.result_case = FH__V1__REPLY__RESULT_OPERATION;
	reply.operation = &r;
	rpc_reply(c, &reply);
}

/* ---------------------------------------------------------------- the call */

struct asking { struct daemon *d; struct rpc_call *call; };

static void on_waited(void *arg, struct operation *op)
{
	struct asking *x = arg;

	rpc_reply_operation(x->d, x->call, op, x->call->request->operation->row);
}

void rpc_operation(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__OperationRequest *q = c->request->operation;
	struct operation *op = operation_find(d->operations, q->operation);
	struct asking *x = rpc_alloc(c, sizeof *x);
	struct fh_status st = FH_STATUS_INIT;

	if (!op)
		fh_fail_field(&st, FH_NOT_FOUND, "operation", "there is no operation \"%.64s\" (finished ones are kept for %d s)",
			      q->operation ? q->operation : "", OPERATION_KEPT_MS / 1000);
	else if (q->has_wait_ms && q->wait_ms > OPERATION_WAIT_MS_MAX)
		fh_fail_field(&st, FH_INVALID, "wait_ms", "wait_ms is %u, at most %d is allowed", q->wait_ms, OPERATION_WAIT_MS_MAX);
	if (st.code) {
		rpc_fail(c, &st);
		return;
	}
	if (q->has_cancel && q->cancel)
		operation_cancel(op);
	*x = (struct asking){d, c};
	operation_wait(d->operations, op, q->wait_ms, on_waited, x);
}
