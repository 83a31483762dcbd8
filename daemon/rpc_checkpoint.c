/* Calls about checkpoints: list, save, get, drop. Loop thread. */
#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/operations.h"
#include "daemon/rpc.h"
#include "daemon/rpc_operation.h"
#include "proto/status.h"

#include <string.h>

#define LIST_MAX 2000            /* newest checkpoints in one reply */
#define PAGE_DEFAULT (1u << 20)

void rpc_list_checkpoints(struct daemon *d, struct rpc_call *c)
{
	const char *ref = c->request->list_checkpoints->job;
	Fh__V1__ListCheckpointsReply r = FH__V1__LIST_CHECKPOINTS_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	const struct checkpoint **list;
	struct fh_status st = FH_STATUS_INIT;
	struct job *j = NULL;
	size_t n, skip;

	if (ref && ref[0] && jobs_lookup(d->jobs, ref, "job", &j, &st)) {
		rpc_fail(c, &st);
		return;
	}
	n = checkpoints_list(d->checkpoints, j ? j->id : 0, NULL, 0);
	list = rpc_alloc(c, (n + 1) * sizeof *list);
	checkpoints_list(d->checkpoints, j ? j->id : 0, list, n);
	skip = n > LIST_MAX ? n - LIST_MAX : 0;
	r.checkpoint = rpc_alloc(c, (n + 1) * sizeof *r.checkpoint);
	for (size_t i = skip; i < n; i++) {
		Fh__V1__Checkpoint *one = rpc_alloc(c, sizeof *one);

		checkpoint_to_wire(list[i], one);
		r.checkpoint[r.n_checkpoint++] = one;
	}
	reply.result_case = FH__V1__REPLY__RESULT_CHECKPOINTS;
	reply.checkpoints = &r;
	rpc_reply(c, &reply);
}

void rpc_save_checkpoint(struct daemon *d, struct rpc_call *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct operation *op;
	struct job *j;

	if (jobs_lookup(d->jobs, c->request->save_checkpoint->job, "job", &j, &st) ||
	    !(op = operation_new(d->operations, j->id, &st))) {
		rpc_fail(c, &st);
		return;
	}
	if (jobs_request_checkpoint(d->jobs, j, op->number, &st)) {
		operation_finish(d->operations, op, st.code, &st, NULL, 0, NULL);
		rpc_fail(c, &st);
		return;
	}
	rpc_reply_operation(d, c, op, 0);
}

static void on_read(void *arg, int code, const struct checkpoint *k, const void *data, size_t bytes, const struct fh_status *st)
{
	struct rpc_call *c = arg;
	Fh__V1__GetCheckpointReply r = FH__V1__GET_CHECKPOINT_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__Checkpoint one;

	if (code) {
		rpc_fail(c, st);
		return;
	}
	checkpoint_to_wire(k, &one);
	r.checkpoint = &one;
	r.has_offset = r.has_data = 1;
	r.offset = c->request->get_checkpoint->offset;
	r.data.data = (uint8_t *)data;
	r.data.len = bytes;
	reply.result_case = FH__V1__REPLY__RESULT_CHECKPOINT_DATA;
	reply.checkpoint_data = &r;
	rpc_reply(c, &reply);
}

void rpc_get_checkpoint(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__GetCheckpointRequest *q = c->request->get_checkpoint;
	struct fh_status st = FH_STATUS_INIT;

	if (fh_name_check("checkpoint", q->checkpoint, &st)) {
		rpc_fail(c, &st);
	} else if (q->has_limit && (!q->limit || q->limit > CHECKPOINT_PAGE_MAX)) {
		fh_fail_field(&st, FH_INVALID, "limit", "limit is %u, 1 to %d are allowed", q->limit, CHECKPOINT_PAGE_MAX);
		rpc_fail(c, &st);
	} else {
		checkpoints_read(d->checkpoints, q->checkpoint, q->offset, q->has_limit ? q->limit : PAGE_DEFAULT, on_read, c);
	}
}

static void on_dropped(void *arg, int code, const struct checkpoint *k, const struct fh_status *st)
{
	Fh__V1__CheckpointReply r = FH__V1__CHECKPOINT_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__Checkpoint one;

	if (code) {
		rpc_fail(arg, st);
		return;
	}
	checkpoint_to_wire(k, &one);
	r.checkpoint = &one;
	reply.result_case = FH__V1__REPLY__RESULT_CHECKPOINT;
	reply.checkpoint = &r;
	rpc_reply(arg, &reply);
}

void rpc_drop_checkpoint(struct daemon *d, struct rpc_call *c)
{
	const char *id = c->request->drop_checkpoint->checkpoint;
	struct fh_status st = FH_STATUS_INIT;

	if (fh_name_check("checkpoint", id, &st))
		rpc_fail(c, &st);
	else
		checkpoints_drop(d->checkpoints, id, on_dropped, c);
}
