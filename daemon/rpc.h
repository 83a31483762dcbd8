/* Calls: from the bytes of a request to the bytes of its reply.
 *
 * Thread: loop. A handler gets a struct call and must answer it exactly once, now or later, with rpc_reply() or
 * rpc_fail(); both free the call. A handler that returns a negative code has not answered: rpc answers with `st`.
 * A handler that returns 0 has answered or keeps the call (deferred). What hangs on a call (request, call_alloc memory)
 * lives until it is answered.
 *
 * Untrusted bytes: size, magic, version and token are checked on the raw message, then protobuf-c unpacks the rest with
 * a capped allocator, then handlers check every enum, id and number themselves. */
#ifndef FHD_RPC_H
#define FHD_RPC_H

#include <stddef.h>
#include "proto/fh.pb-c.h"
#include "proto/status.h"

struct daemon;
struct rpc;

enum rpc_role { ROLE_NONE, ROLE_READ, ROLE_SUBMIT, ROLE_ADMIN };

struct call {
	struct daemon *daemon;
	const Fh__V1__Request *request; /* magic, version and token have been checked; the one call field is set */
	enum rpc_role role;
	/* the rest is rpc.c's */
	const struct rpc_entry *entry;
	struct answer *answer;          /* of a request id whose answer is kept */
	struct call_block *blocks;
	void *reply_to;                 /* net.c's context */
	struct call *next, *prev;       /* open calls */
	int waiting;                    /* counted against LIMIT_WAITS */
};

typedef int (*rpc_handler)(struct call *c, struct fh_status *st);

/* One row per call. Tables end with {0}. */
struct rpc_entry {
	int call_case;            /* FH__V1__REQUEST__CALL_… */
	const char *name;         /* for logs */
	rpc_handler fn;
	enum rpc_role role;       /* least role that may call it */
	unsigned flags;
};
enum {
	RPC_ONCE = 1,             /* changes something: a repeated request id gets the first answer again */
	RPC_BULK = 2,             /* request may be LIMIT_REQUEST_BYTES, not LIMIT_CONTROL_BYTES */
	RPC_STOPPING = 4          /* also answered while the daemon stops */
};
extern const struct rpc_entry rpc_job_calls[], rpc_admin_calls[];                          /* area daemon */
extern const struct rpc_entry rpc_data_calls[], rpc_metrics_calls[], rpc_eval_calls[], rpc_checkpoint_calls[]; /* dstore */

int rpc_new(struct daemon *d, struct rpc **out, struct fh_status *st);
void rpc_free(struct rpc *r);

/* Zeroed memory that lives as long as the call; never NULL (the process aborts when the machine has none). */
void *call_alloc(struct call *c, size_t size);
char *call_strdup(struct call *c, const char *text);
char *call_printf(struct call *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Answers: fills magic, protocol and request id of `reply` (made with FH__V1__REPLY__INIT), packs it and frees the
 * call. A reply above LIMIT_REPLY_BYTES becomes an EXHAUSTED error. */
void rpc_reply(struct call *c, Fh__V1__Reply *reply);
void rpc_fail(struct call *c, const struct fh_status *st);
/* Before a handler keeps a call for an event that may be far away (wait_ms): 1 when it may, 0 when LIMIT_WAITS calls
 * wait already; then answer at once with what is there. */
int rpc_may_wait(struct call *c);
/* Calls that are not answered yet. */
unsigned rpc_open_calls(const struct rpc *r);

/* net.c -> rpc: a message of `bytes` that came in on `reply_to`; rpc answers it with net_answer() exactly
 * once. The bytes are borrowed for the time of the call only. */
void rpc_take(struct rpc *r, const void *data, size_t bytes, void *reply_to);
/* At start: request ids of accepted jobs that the store remembers, so that a repeated StartJob finds its job. */
void rpc_remember_job(struct rpc *r, const char *request_id, uint64_t job);

/* Name and id rules shared by handlers: [A-Za-z0-9._-]{1,64}. FH_INVALID naming `field`. `text` NULL = missing. */
int rpc_check_name(const char *text, const char *field, struct fh_status *st);
/* Sets reply->error from st. `e` is the caller's storage, alive until packed; texts point into st. */
void rpc_error_from_status(Fh__V1__Error *e, const struct fh_status *st);

#endif
