/* One evaluation through the daemon (evaluation.h).
 *
 * The request gives an operation; its result comes in pages of rows, fetched until `more` is off. One thread.
 * Invariant: rows are handed on in order and once, the page that is asked for next begins where the last one ended. */
#include <string.h>

#include "client/evaluation.h"
#include "client/operation.h"

int evaluation_options(const struct ctx *c, struct evaluation_ask *out, struct fh_status *st)
{
	static const char *const split[] = {"validation", "test", "train", "all"};
	const char *policy = opt_text(c, "policy"), *s = opt_text(c, "split");
	int known = !s;

	out->job = c->argc ? c->argv[0] : NULL;
	out->checkpoint = opt_text(c, "checkpoint");
	out->dataset = opt_text(c, "dataset");
	if (!out->job == !out->checkpoint)
		return fh_fail(st, FH_INVALID, out->job ? "a job and --checkpoint exclude each other" : "name a job, or a checkpoint with "
			       "--checkpoint");
	for (size_t i = 0; s && i < sizeof split / sizeof *split; i++)
		known |= !strcmp(s, split[i]);
	if (!known)
		return fh_fail_field(st, FH_INVALID, "--split", "'%.40s' is none of validation, test, train, all", s);
	out->split = s ? s : split[0];
	if (policy && strcmp(policy, "target") && strcmp(policy, "online"))
		return fh_fail_field(st, FH_INVALID, "--policy", "'%.40s' is none of target, online", policy);
	out->policy = !policy ? FH__V1__POLICY__POLICY_UNSPECIFIED
		      : !strcmp(policy, "target") ? FH__V1__POLICY__TARGET : FH__V1__POLICY__ONLINE;
	return opt_int(c, "trial", 0, EVALUATION_TRIAL_MAX, &out->trial, st);
}

static int start(struct ctx *c, const struct evaluation_ask *ask, int trace, struct fh_answer *out, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__EvaluateRequest e = FH__V1__EVALUATE_REQUEST__INIT;

	e.job = (char *)ask->job;
	e.checkpoint = (char *)ask->checkpoint;
	e.split = (char *)ask->split;
	e.dataset = (char *)ask->dataset;
	e.has_policy = ask->policy != FH__V1__POLICY__POLICY_UNSPECIFIED;
	e.policy = ask->policy;
	e.has_trial = ask->trial > 0;
	e.trial = (uint32_t)ask->trial;
	e.has_trace = e.has_benchmarks = 1;
	e.trace = trace;
	e.benchmarks = ask->benchmarks;
	e.has_windows = ask->windows > 1;
	e.windows = (uint32_t)ask->windows;
	req.call_case = FH__V1__REQUEST__CALL_EVALUATE;
	req.evaluate = &e;
	return ctx_call(c, &req, 0, out, st);
}

static int hand_on(const Fh__V1__EvaluateReply *e, evaluation_row row, void *arg, uint64_t *next, struct fh_status *st)
{
	int rc = *next ? 0 : row(arg, e, NULL, st);

	for (size_t i = 0; !rc && i < e->n_row; i++)
		rc = row(arg, e, e->row[i], st);
	*next += e->n_row;
	return rc;
}

static int all_pages(struct ctx *c, const char *operation, const Fh__V1__EvaluateReply *first, evaluation_row row, void *arg,
		     struct fh_status *st)
{
	uint64_t next = 0;
	int rc = hand_on(first, row, arg, &next, st), more = first->more;

	while (!rc && more) {
		struct fh_answer page;
		rc = operation_page(c, operation, next, &page, st);
		if (rc)
			break;
		const Fh__V1__EvaluateReply *e = page.reply->operation->evaluate;
		if (!e || !e->n_row)
			rc = fh_fail(st, FH_CORRUPT, "the trace ends at row %llu although more was promised", (unsigned long long)next);
		else
			rc = hand_on(e, row, arg, &next, st);
		more = e && e->more;
		fh_answer_release(&page);
	}
	return rc;
}

int evaluation_call(struct ctx *c, const struct evaluation_ask *ask, evaluation_row row, void *arg, struct fh_answer *out,
		    struct fh_status *st)
{
	struct fh_answer begun, done;
	int rc = start(c, ask, row != NULL, &begun, st);

	if (rc)
		return rc;
	const char *operation = begun.reply->operation->operation;
	if (!operation) {
		fh_answer_release(&begun);
		return fh_fail(st, FH_CORRUPT, "the daemon's answer names no operation");
	}
	rc = operation_wait(c, operation, "evaluating", &done, st);
	if (!rc && !done.reply->operation->evaluate) {
		fh_answer_release(&done);
		rc = fh_fail(st, FH_CORRUPT, "the operation ended without a result");
	}
	if (!rc && row) {
		rc = all_pages(c, operation, done.reply->operation->evaluate, row, arg, st);
		if (rc)
			fh_answer_release(&done);
	}
	fh_answer_release(&begun);
	if (!rc)
		*out = done;
	return rc;
}
