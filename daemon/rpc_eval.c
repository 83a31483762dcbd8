/* Calls about evaluations and decisions. Loop thread. */
#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/evaluator.h"
#include "daemon/jobs.h"
#include "daemon/need.h"
#include "daemon/operations.h"
#include "daemon/rpc.h"
#include "daemon/rpc_operation.h"
#include "proto/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- which network */

/* What a request says of the network: 0 and NULL where it says nothing. That a policy is one was checked when it was unpacked. */
struct network { const char *job, *checkpoint; Fh__V1__Policy policy; uint32_t trial; };

/* Its own checkpoint, or the job's last one; the network that the job validates, or the other one; one of its trials. */
static int find_policy(struct daemon *d, const struct network *q, struct policy_ref *ref, struct job **owner, struct fh_status *st)
{
	const struct checkpoint *c;

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
	if (q->trial >= (uint64_t)(*owner)->spec.run.population)
		return fh_fail_field(st, FH_INVALID, "trial", "trial is %u, job \"%s\" has trials 0 to %lld", q->trial, (*owner)->name,
				     (long long)(*owner)->spec.run.population - 1);
	ref->which = q->policy == FH__V1__POLICY__ONLINE ? FH_POLICY_ONLINE
		     : q->policy ? FH_POLICY_TARGET : (enum fh_policy)(*owner)->spec.run.validate_policy;
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
		if (!strcmp(name && name[0] ? name : "validation", rpc_split_name[i])) {
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
	kept = need(malloc(sizeof *kept));
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
