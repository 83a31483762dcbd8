/* Calls: from the bytes of a request to the bytes of its reply.
 *
 * Thread: loop. A handler gets a struct rpc_call and answers it exactly once, now or later, with rpc_reply() or
 * rpc_fail(); both free the call. What hangs on a call (request, arena) lives until then.
 *
 * Untrusted bytes: size, magic, version and token are checked on the raw message, then protobuf-c unpacks it into a
 * capped arena (proto/wire.h), then handlers check every id and number. */
#ifndef FHD_RPC_H
#define FHD_RPC_H

#include <stddef.h>
#include <stdint.h>
#include <nng/nng.h>
#include "daemon/limits.h"
#include "proto/fh.pb-c.h"
#include "proto/status.h"
#include "proto/wire.h"

struct daemon;
struct rpc;

enum rpc_role { ROLE_NONE, ROLE_READ, ROLE_SUBMIT, ROLE_ADMIN };

struct rpc_call {
	const Fh__V1__Request *request; /* magic, version and token have been checked; exactly one call is set */
	enum rpc_role role;
	int peer_role;                  /* or RPC_BY_TOKEN */
	struct fh_arena arena;          /* memory for the reply, gone when the call is answered */
	/* the rest is rpc.c's */
	struct rpc *rpc;
	struct fh_arena request_arena;
	const struct rpc_entry *entry;
	struct answer *answer;          /* of a request id whose answer is kept, else NULL */
	void *reply_to;                 /* net.c's context */
	struct rpc_call *next, *prev;   /* open calls */
	struct rpc_call *repeat_next;   /* answer->waiting */
	char request_id[LIMIT_REQUEST_ID + 1];
	ProtobufCAllocator allocator;
};

typedef void (*rpc_handler)(struct daemon *d, struct rpc_call *c);

/* One row of the table in rpc.c per call. */
struct rpc_entry {
	int call;                 /* FH__V1__REQUEST__CALL_… */
	const char *name;         /* for logs */
	rpc_handler fn;
	enum rpc_role role;       /* least role that may call it */
	unsigned flags;
};
enum {
	RPC_ONCE = 1,             /* changes something: a repeated request id gets the first answer again */
	RPC_STOPPING = 2          /* also answered while the daemon stops */
};

/* Sends a reply: msg passes over. net_answer in the daemon, a test's own elsewhere. */
typedef void (*rpc_sender)(void *ctx, void *reply_to, nng_msg *msg);
int rpc_new(struct daemon *d, rpc_sender send, void *send_ctx, struct rpc **out, struct fh_status *st);
void rpc_free(struct rpc *r);

/* Zeroed memory that lives as long as the call; never NULL (the process ends when the machine has none). */
void *rpc_alloc(struct rpc_call *c, size_t size);
char *rpc_strdup(struct rpc_call *c, const char *text); /* NULL for "" and NULL: the field stays absent */
/* protobuf-c's view of that memory, valid until the call is answered. */
ProtobufCAllocator *rpc_allocator(struct rpc_call *c);

/* Answers: fills magic, protocol and request id of `reply`, packs it and frees the call. A reply that is too large
 * becomes an EXHAUSTED error. */
void rpc_reply(struct rpc_call *c, Fh__V1__Reply *reply);
void rpc_reply_empty(struct rpc_call *c); /* done, and nothing to say */
void rpc_fail(struct rpc_call *c, const struct fh_status *st);
struct daemon *rpc_daemon(const struct rpc_call *c);
/* Calls that are not answered yet. */
unsigned rpc_open_calls(const struct rpc *r);

/* net.c -> rpc: a message of `bytes` that came in on `reply_to`; rpc answers it with net_answer() exactly
 * once. The bytes are borrowed for the time of the call only. */
void rpc_take(struct rpc *r, const void *data, size_t bytes, void *reply_to);
/* The same for a peer that has a role of its own (a token may give it a higher one); RPC_BY_TOKEN: the token alone decides. */
#define RPC_BY_TOKEN (-1)
void rpc_take_from(struct rpc *r, int peer_role, const void *data, size_t bytes, void *reply_to);
/* At start: request ids of accepted jobs that the store remembers, so that a repeated StartJob finds its job. */
void rpc_remember_job(struct rpc *r, const char *request_id, uint64_t job);

#endif
