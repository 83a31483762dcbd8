/* Waiting for long operations (operation.h).
 *
 * The daemon holds each question for WAIT_MS at most, so a signal or the deadline is noticed soon and nothing is asked in a
 * tight loop. One thread. Invariant: when this gives up, the daemon has been told to give up too. */
#include <time.h>

#include "client/operation.h"
#include "client/progress.h"
#include "proto/wire.h"

#define WAIT_MS 500

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int ask(struct ctx *c, const char *operation, uint32_t wait_ms, uint64_t row, int cancel, struct fh_answer *out,
	       struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__OperationRequest o = FH__V1__OPERATION_REQUEST__INIT;

	o.operation = (char *)operation;
	o.has_wait_ms = 1;
	o.wait_ms = wait_ms;
	o.has_row = 1;
	o.row = row;
	o.has_cancel = cancel;
	o.cancel = cancel;
	req.call_case = FH__V1__REQUEST__CALL_OPERATION;
	req.operation = &o;
	return ctx_call(c, &req, wait_ms ? wait_ms + FH_CALL_TIMEOUT_MS : 0, out, st);
}

static void cancel(struct ctx *c, const char *operation)
{
	struct fh_status ignored = FH_STATUS_INIT;
	struct fh_answer a;
	int seen = signal_seen;

	signal_seen = 0; /* this last call is allowed to finish */
	if (!ask(c, operation, 0, 0, 1, &a, &ignored))
		fh_answer_release(&a);
	signal_seen = seen;
}

int operation_wait(struct ctx *c, const char *operation, const char *what, struct fh_answer *out, struct fh_status *st)
{
	struct progress bar;
	int64_t end = c->timeout_given ? now_ms() + c->timeout_ms : INT64_MAX;
	int rc;

	progress_init(&bar, c->quiet);
	for (;;) {
		int64_t left = end - now_ms();
		if (left <= 0) {
			rc = fh_fail(st, FH_DEADLINE, "%s took longer than the %lld ms given", what, (long long)c->timeout_ms);
			break;
		}
		rc = ask(c, operation, (uint32_t)(left < WAIT_MS ? left : WAIT_MS), 0, 0, out, st);
		if (rc)
			break;
		const Fh__V1__OperationReply *r = out->reply->operation;
		progress_update(&bar, r->progress, 0, "%s", what);
		if (r->done) {
			progress_clear(&bar);
			if (!r->error)
				return 0;
			rc = fh_error_to_status(r->error, st);
			fh_answer_release(out);
			return rc;
		}
		fh_answer_release(out);
		if (signal_seen) {
			rc = fh_fail(st, FH_INTERRUPTED, "%s was cancelled", what);
			break;
		}
	}
	progress_clear(&bar);
	cancel(c, operation);
	return rc;
}

int operation_page(struct ctx *c, const char *operation, uint64_t row, struct fh_answer *out, struct fh_status *st)
{
	int rc = ask(c, operation, 0, row, 0, out, st);

	if (!rc && out->reply->operation->error) {
		rc = fh_error_to_status(out->reply->operation->error, st);
		fh_answer_release(out);
	}
	return rc;
}
