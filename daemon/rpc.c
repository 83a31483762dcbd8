/* Calls; see rpc.h. The way of a request: rpc_take -> admit (token, unpack) -> dispatch (table, role, state, repeated
 * ids) -> handler -> rpc_reply or rpc_fail -> the sender given to rpc_new. */
#include "daemon/rpc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answers.h"
#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/evaluator.h"
#include "daemon/log.h"
#include "daemon/rpc_admin.h"
#include "daemon/rpc_job.h"
#include "daemon/series.h"
#include "daemon/tokens.h"

#define REPLY_ARENA_BYTES (64u << 20)
#define CALL(x) FH__V1__REQUEST__CALL_##x

static const struct rpc_entry table[] = {
	{CALL(PING), "ping", rpc_ping, ROLE_READ, RPC_STOPPING},
	{CALL(INFO), "info", rpc_info, ROLE_READ, RPC_STOPPING},
	{CALL(START_JOB), "start_job", rpc_start_job, ROLE_SUBMIT, RPC_ONCE},
	{CALL(STOP_JOB), "stop_job", rpc_stop_job, ROLE_SUBMIT, RPC_ONCE},
	{CALL(PAUSE_JOB), "pause_job", rpc_pause_job, ROLE_SUBMIT, RPC_ONCE},
	{CALL(RESUME_JOB), "resume_job", rpc_resume_job, ROLE_SUBMIT, RPC_ONCE},
	{CALL(LIST_JOBS), "list_jobs", rpc_list_jobs, ROLE_READ, RPC_STOPPING},
	{CALL(SHOW_JOB), "show_job", rpc_show_job, ROLE_READ, RPC_STOPPING},
	{CALL(METRICS), "metrics", rpc_metrics, ROLE_READ, RPC_STOPPING},
	{CALL(EVALUATE), "evaluate", rpc_evaluate, ROLE_SUBMIT, RPC_ONCE},
	{CALL(ACT), "act", rpc_act, ROLE_READ, 0},
	{CALL(LIST_CHECKPOINTS), "list_checkpoints", rpc_list_checkpoints, ROLE_READ, RPC_STOPPING},
	{CALL(SAVE_CHECKPOINT), "save_checkpoint", rpc_save_checkpoint, ROLE_SUBMIT, RPC_ONCE},
	{CALL(GET_CHECKPOINT), "get_checkpoint", rpc_get_checkpoint, ROLE_READ, 0},
	{CALL(DROP_CHECKPOINT), "drop_checkpoint", rpc_drop_checkpoint, ROLE_SUBMIT, RPC_ONCE},
	{CALL(LIST_DATASETS), "list_datasets", rpc_list_datasets, ROLE_READ, RPC_STOPPING},
	{CALL(SHOW_DATASET), "show_dataset", rpc_show_dataset, ROLE_READ, RPC_STOPPING},
	{CALL(DROP_DATASET), "drop_dataset", rpc_drop_dataset, ROLE_SUBMIT, RPC_ONCE},
	{CALL(SYNTH_DATASET), "synth_dataset", rpc_synth_dataset, ROLE_SUBMIT, RPC_ONCE},
	{CALL(BEGIN_UPLOAD), "begin_upload", rpc_begin_upload, ROLE_SUBMIT, RPC_ONCE},
	{CALL(UPLOAD_CHUNK), "upload_chunk", rpc_upload_chunk, ROLE_SUBMIT, RPC_ONCE},
	{CALL(COMMIT_UPLOAD), "commit_upload", rpc_commit_upload, ROLE_SUBMIT, RPC_ONCE},
	{CALL(ABORT_UPLOAD), "abort_upload", rpc_abort_upload, ROLE_SUBMIT, RPC_ONCE},
	{CALL(READ_BARS), "read_bars", rpc_read_bars, ROLE_READ, 0},
	{CALL(DRAIN), "drain", rpc_drain, ROLE_ADMIN, RPC_ONCE},
	{CALL(SHUTDOWN), "shutdown", rpc_shutdown, ROLE_ADMIN, RPC_STOPPING},
	{CALL(OPERATION), "operation", rpc_operation, ROLE_READ, 0},
};
#define CALLS (sizeof table / sizeof table[0])

struct rpc {
	struct daemon *daemon;
	rpc_sender send;
	void *send_ctx;
	struct tokens *tokens;
	struct answers *answers;
	struct rpc_call *open;
	unsigned open_calls;
};

/* ---------------------------------------------------------------- life */

int rpc_new(struct daemon *d, rpc_sender send, void *send_ctx, struct rpc **out, struct fh_status *st)
{
	struct rpc *r = calloc(1, sizeof *r);
	int rc;

	if (!r || !(r->answers = answers_new())) {
		free(r);
		return fh_fail(st, FH_EXHAUSTED, "no memory for the call table");
	}
	r->daemon = d;
	r->send = send;
	r->send_ctx = send_ctx;
	rc = tokens_load(d->config.token_file, &r->tokens, st);
	if (rc) {
		answers_free(r->answers);
		free(r);
		return rc;
	}
	*out = r;
	return 0;
}

static void call_free(struct rpc_call *c)
{
	fh_arena_release(&c->arena);
	fh_arena_release(&c->request_arena);
	free(c);
}

void rpc_free(struct rpc *r)
{
	if (!r)
		return;
	while (r->open) {
		struct rpc_call *c = r->open;

		r->open = c->next;
		call_free(c);
	}
	answers_free(r->answers);
	tokens_free(r->tokens);
	free(r);
}

struct daemon *rpc_daemon(const struct rpc_call *c)
{
	return c->rpc->daemon;
}

unsigned rpc_open_calls(const struct rpc *r)
{
	return r->open_calls;
}

void rpc_remember_job(struct rpc *r, const char *request_id, uint64_t job)
{
	answers_remember_job(r->answers, request_id, CALL(START_JOB), job);
}

static void link_open(struct rpc *r, struct rpc_call *c)
{
	c->next = r->open;
	if (r->open)
		r->open->prev = c;
	r->open = c;
	r->open_calls++;
}

static void unlink_open(struct rpc *r, struct rpc_call *c)
{
	*(c->prev ? &c->prev->next : &r->open) = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->next = c->prev = NULL;
	r->open_calls--;
}

/* ---------------------------------------------------------------- memory of a call */

void *rpc_alloc(struct rpc_call *c, size_t size)
{
	void *p = fh_arena_alloc(&c->arena, size);

	if (!p)
		abort(); /* REPLY_ARENA_BYTES is above anything that the limits of a reply let together */
	return p;
}

char *rpc_strdup(struct rpc_call *c, const char *text)
{
	size_t n = text ? strlen(text) : 0;

	return n ? memcpy(rpc_alloc(c, n + 1), text, n + 1) : NULL;
}

static void *arena_alloc(void *data, size_t size)
{
	return fh_arena_alloc(data, size);
}

static void arena_keep(void *data, void *p)
{
	(void)data;
	(void)p; /* goes with the arena */
}

ProtobufCAllocator *rpc_allocator(struct rpc_call *c)
{
	c->allocator = (ProtobufCAllocator){arena_alloc, arena_keep, &c->arena};
	return &c->allocator;
}

/* ---------------------------------------------------------------- replies */

/* An answer that may be different next time is not kept: the client may try again with the same id. */
static int is_final(const Fh__V1__Reply *reply)
{
	return !reply->error || (reply->error->code != FH__V1__ERROR_CODE__UNAVAILABLE &&
				 reply->error->code != FH__V1__ERROR_CODE__EXHAUSTED);
}

static nng_msg *message_of(const void *data, size_t bytes)
{
	nng_msg *msg;

	if (nng_msg_alloc(&msg, 0) || nng_msg_append(msg, data, bytes))
		abort();
	return msg;
}

static void send_and_free(struct rpc *r, struct rpc_call *c, nng_msg *msg)
{
	r->send(r->send_ctx, c->reply_to, msg);
	unlink_open(r, c);
	call_free(c);
}

/* Everybody who sent this request again while it was in work gets the same bytes. */
static void answer_kept(struct rpc *r, struct rpc_call *c, nng_msg *msg, int keep)
{
	struct answer *a = c->answer;
	struct rpc_call *w;

	while ((w = a->waiting)) {
		a->waiting = w->repeat_next;
		send_and_free(r, w, message_of(nng_msg_body(msg), nng_msg_len(msg)));
	}
	if (keep)
		answers_end(r->answers, a, nng_msg_body(msg), nng_msg_len(msg));
	else
		answers_forget(r->answers, a);
}

void rpc_reply(struct rpc_call *c, Fh__V1__Reply *reply)
{
	struct rpc *r = c->rpc;
	struct fh_status st = FH_STATUS_INIT;
	nng_msg *msg;
	size_t bytes;

	reply->has_magic = reply->has_protocol = 1;
	reply->magic = FH_MAGIC;
	reply->protocol = FH_PROTOCOL;
	reply->request_id = c->request_id[0] ? c->request_id : NULL;
	if (fh_pack_size(&reply->base, &bytes, &st)) {
		rpc_fail(c, &st);
		return;
	}
	if (nng_msg_alloc(&msg, bytes))
		abort();
	fh_pack(&reply->base, nng_msg_body(msg));
	if (c->answer)
		answer_kept(r, c, msg, is_final(reply));
	send_and_free(r, c, msg);
}

void rpc_reply_empty(struct rpc_call *c)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__EmptyReply empty = FH__V1__EMPTY_REPLY__INIT;

	reply.result_case = FH__V1__REPLY__RESULT_EMPTY;
	reply.empty = &empty;
	rpc_reply(c, &reply);
}

void rpc_fail(struct rpc_call *c, const struct fh_status *st)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__Error error;

	fh_error_from_status(&error, st);
	reply.error = &error;
	log_debug("call refused", "call=%s code=%s field=%s error=%s", c->entry ? c->entry->name : "none",
		  log_quote(fh_code_name(st->code)), log_quote(st->field), log_quote(st->text));
	rpc_reply(c, &reply);
}

/* ---------------------------------------------------------------- requests */

/* What the peer may by itself, or what its token says, whichever is more. */
static enum rpc_role role_of(const struct rpc *r, int peer_role, const struct fh_peek *peek)
{
	enum rpc_role by_token = ROLE_NONE;

	if (peer_role == RPC_BY_TOKEN && r->daemon->config.roles[0] && tokens_are_open(r->tokens))
		return ROLE_NONE; /* tcp must not be the way around the roles of users */
	if (peer_role == RPC_BY_TOKEN)
		return tokens_role(r->tokens, peek->token, peek->token_len);
	if (peek->token && !tokens_are_open(r->tokens))
		by_token = tokens_role(r->tokens, peek->token, peek->token_len);
	return (int)by_token > peer_role ? by_token : (enum rpc_role)peer_role;
}

/* Token, then the rest of the message. */
static int admit(struct rpc *r, struct rpc_call *c, const void *data, size_t bytes, struct fh_status *st)
{
	struct fh_peek peek;
	Fh__V1__Request *request;
	int rc = fh_peek(data, bytes, &peek, st);

	snprintf(c->request_id, sizeof c->request_id, "%s", peek.request_id);
	if (rc)
		return rc;
	if (peek.magic == FH_MAGIC && peek.protocol == FH_PROTOCOL) {
		c->role = role_of(r, c->peer_role, &peek);
		if (c->role == ROLE_NONE && c->peer_role != RPC_BY_TOKEN)
			return fh_fail_field(st, FH_DENIED, "user", "this user has no role here (setting roles)");
		if (c->role == ROLE_NONE)
			return fh_fail_field(st, FH_DENIED, "token", "%s",
					     peek.token ? "the token is not one of this daemon's" : "this daemon asks for a token");
	}
	rc = fh_request_unpack(data, bytes, &c->request_arena, &request, st);
	c->request = request;
	return rc;
}

static const struct rpc_entry *find_entry(int call)
{
	for (size_t i = 0; i < CALLS; i++)
		if (table[i].call == call)
			return &table[i];
	return NULL;
}

static int may_call(struct rpc *r, struct rpc_call *c, struct fh_status *st)
{
	static const char *const role[] = {"nobody", "read", "submit", "admin"};

	c->entry = find_entry((int)c->request->call_case);
	if (!c->entry)
		return fh_fail(st, FH_UNIMPLEMENTED, "this daemon does not know call %d", (int)c->request->call_case);
	if (c->role < c->entry->role)
		return fh_fail_field(st, FH_DENIED, c->peer_role == RPC_BY_TOKEN ? "token" : "user", "%s needs the role %s, this %s has %s",
				     c->entry->name, role[c->entry->role], c->peer_role == RPC_BY_TOKEN ? "token" : "user", role[c->role]);
	if (r->daemon->state == DAEMON_STOPPING && !(c->entry->flags & RPC_STOPPING))
		return fh_fail(st, FH_UNAVAILABLE, "the daemon is stopping");
	return 0;
}

/* A request id that was here before. 1: taken care of (answered, or waiting for the first one's answer). */
static int repeated(struct rpc *r, struct rpc_call *c, uint64_t hash)
{
	struct answer *a = answers_find(r->answers, c->request_id);
	struct fh_status st = FH_STATUS_INIT;
	struct job *j;

	if (!a)
		return 0;
	if (a->call != c->entry->call || (a->state != ANSWER_JOB && a->hash != hash)) {
		fh_fail_field(&st, FH_CONFLICT, "request_id", "%s was used for another request", c->request_id);
		rpc_fail(c, &st);
		return 1;
	}
	switch (a->state) {
	case ANSWER_BYTES:
		send_and_free(r, c, message_of(a->data, a->bytes));
		return 1;
	case ANSWER_JOB:
		j = jobs_by_id(r->daemon->jobs, a->job);
		if (!j)
			return 0;
		rpc_answer_job(r->daemon, c, j, 0);
		return 1;
	case ANSWER_IN_WORK:
		c->repeat_next = a->waiting;
		a->waiting = c;
		return 1;
	}
	return 0;
}

void rpc_take(struct rpc *r, const void *data, size_t bytes, void *reply_to)
{
	rpc_take_from(r, RPC_BY_TOKEN, data, bytes, reply_to);
}

void rpc_take_from(struct rpc *r, int peer_role, const void *data, size_t bytes, void *reply_to)
{
	struct rpc_call *c = calloc(1, sizeof *c);
	struct fh_status st = FH_STATUS_INIT;

	if (!c)
		abort();
	c->rpc = r;
	c->reply_to = reply_to;
	c->peer_role = peer_role;
	fh_arena_init(&c->arena, REPLY_ARENA_BYTES);
	link_open(r, c);
	if (admit(r, c, data, bytes, &st) || may_call(r, c, &st)) {
		rpc_fail(c, &st);
		return;
	}
	log_debug("call", "call=%s id=%s client=%s", c->entry->name, c->request_id,
		  log_quote(c->request->client ? c->request->client : ""));
	if (c->entry->flags & RPC_ONCE && c->request_id[0]) {
		uint64_t hash = answers_hash(data, bytes);

		if (repeated(r, c, hash))
			return;
		c->answer = answers_begin(r->answers, c->request_id, c->entry->call, hash);
	}
	c->entry->fn(r->daemon, c);
}
