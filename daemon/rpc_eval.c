/* Calls about evaluations, decisions and operations. Loop thread. */
#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/evaluator.h"
#include "daemon/jobs.h"
#include "daemon/operations.h"
#include "daemon/rpc.h"
#include "daemon/rpc_eval.h"
#include "gpu/eval_metrics.h"
#include "proto/status.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const split_name[] = {"train", "validation", "test", "all"};

/* ---------------------------------------------------------------- which network */

/* What a request says of the network: 0 and NULL where it says nothing. */
struct network { const char *job, *checkpoint; Fh__V1__Policy policy; uint32_t trial; };

/* Its own checkpoint, or the job's last one; the network that the job validates, or the other one; one of its trials. */
static int find_policy(struct daemon *d, const struct network *q, struct policy_ref *ref, struct job **owner, struct fh_status *st)
{
	const struct checkpoint *c;
	int policy = (int)q->policy;

	if (q->checkpoint && q->checkpoint[0]) {
		if (fh_name_check("checkpoint", q->checkpoint, st))
			return st->code;
		c = checkpoints_find(d->checkpoints, q->checkpoint);
		if (!c)
			return fh_fail_field(st, FH_NOT_FOUND, "checkpoint", "there is no checkpoint \"%s\"", q->checkpoint);
		*owner = jobs_by_id(d->jobs, c->job);
	} else {
		if (jobs_lookup(d->jobs, q->job, "job", owner, st))
			return st->code;
		c = checkpoints_latest(d->checkpoints, (*owner)->id);
		if (!c)
			return fh_fail_field(st, FH_NOT_FOUND, "job", "job \"%s\" has no checkpoint%s", (*owner)->name,
					     job_is_final((*owner)->state) ? ", and it is over" : " yet");
	}
	if (!*owner)
		return fh_fail_field(st, FH_NOT_FOUND, "checkpoint", "the job of checkpoint %s is not known", c->id);
	if (c->missing)
		return fh_fail_field(st, FH_CORRUPT, "checkpoint", "the file of checkpoint %s is gone", c->id);
	if (policy && policy != FH__V1__POLICY__TARGET && policy != FH__V1__POLICY__ONLINE)
		return fh_fail_field(st, FH_INVALID, "policy", "policy %d is none of target, online", policy);
	if (q->trial >= (uint64_t)(*owner)->spec.run.population)
		return fh_fail_field(st, FH_INVALID, "trial", "trial is %u, job \"%s\" has trials 0 to %lld", q->trial, (*owner)->name,
				     (long long)(*owner)->spec.run.population - 1);
	ref->which = policy == FH__V1__POLICY__ONLINE ? FH_POLICY_ONLINE
		     : policy ? FH_POLICY_TARGET : (enum fh_policy)(*owner)->spec.run.validate_policy;
	ref->trial = (int)q->trial;
	snprintf(ref->id, sizeof ref->id, "%s", c->id);
	snprintf(ref->sha256, sizeof ref->sha256, "%s", c->sha256);
	checkpoints_path(d->checkpoints, c->id, ref->path, sizeof ref->path);
	return 0;
}

/* ---------------------------------------------------------------- evaluate */

struct evaluating { /* from the request to the end of the operation */
	struct daemon *d;
	struct operation *op;
	struct evaluate_ask ask;
};

static void evaluating_done(void *arg)
{
	struct evaluating *x = arg;

	checkpoints_release(x->d->checkpoints, x->ask.policy.id);
	free(x);
}

static void evaluating_failed(struct evaluating *x, const struct fh_status *st)
{
	operation_finish(x->d->operations, x->op, st->code, st, NULL, 0, NULL);
	evaluating_done(x);
}

static void on_market(void *arg, int code, struct market *m, const struct fh_status *st)
{
	struct evaluating *x = arg;
	struct fh_status refused = FH_STATUS_INIT;

	x->op->users--;
	if (code) {
		evaluating_failed(x, st);
	} else if (evaluator_evaluate(x->d->evaluator, x->op, &x->ask, m, evaluating_done, x, &refused)) {
		market_unref(m);
		evaluating_failed(x, &refused);
	}
}

static int find_split(const char *name, int *split, struct fh_status *st)
{
	for (int i = 0; i <= EVALUATE_ALL; i++)
		if (!strcmp(name && name[0] ? name : "validation", split_name[i])) {
			*split = i;
			return 0;
		}
	return fh_fail_field(st, FH_INVALID, "split", "split \"%.64s\" is none of train, validation, test, all", name);
}

void rpc_evaluate(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__EvaluateRequest *q = c->request->evaluate;
	const char *other = q->dataset && q->dataset[0] ? q->dataset : NULL;
	const struct network network = {q->job, q->checkpoint, q->has_policy ? q->policy : 0, q->trial};
	struct fh_status st = FH_STATUS_INIT;
	struct evaluating *x = rpc_alloc(c, sizeof *x), *kept;
	const struct dataset *set;
	struct job *j = NULL;

	x->d = d;
	x->ask.trace = q->has_trace && q->trace;
	x->ask.benchmarks = q->has_benchmarks && q->benchmarks;
	x->ask.own_data = !other;
	x->ask.windows = q->has_windows ? (int)q->windows : 1;
	if (q->has_windows && (!q->windows || q->windows > EVAL_WINDOWS_MAX)) {
		fh_fail_field(&st, FH_INVALID, "windows", "windows is %u, 1 to %d are allowed", q->windows, EVAL_WINDOWS_MAX);
		rpc_fail(c, &st);
		return;
	}
	if ((other && fh_name_check("dataset", other, &st)) || find_split(q->split, &x->ask.split, &st) ||
	    find_policy(d, &network, &x->ask.policy, &j, &st) ||
	    datasets_need(d->datasets, other ? other : j->spec.data.dataset, &set, &st) ||
	    !(x->op = operation_new(d->operations, j->id, &st))) {
		if (other && !strcmp(st.field, "data.dataset"))
			snprintf(st.field, sizeof st.field, "dataset");
		rpc_fail(c, &st);
		return;
	}
	kept = malloc(sizeof *kept);
	assert(kept);
	*kept = *x;
	checkpoints_hold(d->checkpoints, kept->ask.policy.id);
	kept->op->users++;
	/* the bars that the job knows, should others have been appended since */
	const char *hash = !other && dataset_bars_of(set, j->dataset_hash) ? j->dataset_hash : NULL;
	datasets_acquire_for(d->datasets, other ? other : j->spec.data.dataset, hash, &j->spec, on_market, kept);
	rpc_reply_operation(d, c, kept->op, 0);
}

/* ---------------------------------------------------------------- act */

struct acting { struct daemon *d; struct rpc_call *call; struct policy_ref policy; };

static void on_act(void *arg, int code, const struct act_result *r, const struct fh_status *st)
{
	struct acting *x = arg;
	Fh__V1__ActReply a = FH__V1__ACT_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	uint32_t actions[FH_BRANCH_MAX];

	checkpoints_release(x->d->checkpoints, x->policy.id);
	if (code) {
		rpc_fail(x->call, st);
		return;
	}
	for (int i = 0; i < r->branches; i++) {
		actions[i] = (uint32_t)r->actions[i];
		a.n_q += (size_t)r->rows * actions[i];
	}
	a.n_action = (size_t)r->rows * (size_t)r->branches;
	a.action = r->action;
	a.q = r->q;
	a.n_actions = (size_t)r->branches;
	a.actions = actions;
	a.has_state_dim = 1;
	a.state_dim = (uint32_t)r->state_dim;
	reply.result_case = FH__V1__REPLY__RESULT_ACT;
	reply.act = &a;
	rpc_reply(x->call, &reply);
}

void rpc_act(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__ActRequest *q = c->request->act;
	const struct network network = {q->job, q->checkpoint, q->has_policy ? q->policy : 0, q->trial};
	struct acting *x = rpc_alloc(c, sizeof *x);
	struct fh_status st = FH_STATUS_INIT;
	struct job *j;

	x->d = d;
	x->call = c;
	if (!q->n_state)
		fh_fail_field(&st, FH_INVALID, "state", "there is no state in the request");
	else if (q->has_rows && (!q->rows || q->rows > ACT_ROWS_MAX))
		fh_fail_field(&st, FH_INVALID, "rows", "rows is %u, 1 to %d are allowed", q->rows, ACT_ROWS_MAX);
	for (size_t i = 0; !st.code && i < q->n_state; i++)
		if (!isfinite(q->state[i]))
			fh_fail_field(&st, FH_INVALID, "state", "state[%zu] is not a finite number", i);
	if (st.code || find_policy(d, &network, &x->policy, &j, &st)) {
		rpc_fail(c, &st);
		return;
	}
	checkpoints_hold(d->checkpoints, x->policy.id);
	if (evaluator_act(d->evaluator, &x->policy, q->state, q->n_state, q->has_rows ? q->rows : 0, on_act, x, &st)) {
		checkpoints_release(d->checkpoints, x->policy.id);
		rpc_fail(c, &st);
	}
}

/* ---------------------------------------------------------------- operations */

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
	e->split = (char *)split_name[r->split];
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
