/* Sockets; see net.h. Contexts here, listeners in net_listen.c, their front doors in gate.c. */
#include "daemon/net_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <nng/protocol/reqrep0/rep.h>

#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/rpc.h"
#include "proto/wire.h"

#define SEND_TIMEOUT_MS 10000 /* a client that does not take its reply */
#define RETRY_MS 100          /* after a receive that failed for want of memory or files */

static int nng_status(int rv, const char *what, struct fh_status *st)
{
	return fh_fail(st, rv == NNG_ENOMEM ? FH_EXHAUSTED : FH_UNAVAILABLE, "%s: %s", what, nng_strerror(rv));
}

/* ---------------------------------------------------------------- contexts */

/* NNG's thread: into the inbox, wake the loop. */
static void on_aio(void *arg)
{
	struct net_context *c = arg;
	struct net *n = c->net;

	pthread_mutex_lock(&n->inbox_lock);
	c->inbox_next = n->inbox;
	n->inbox = c;
	pthread_mutex_unlock(&n->inbox_lock);
	uv_async_send(&n->async);
}

static void receive(struct net_context *c)
{
	if (c->net->closing) {
		c->state = CONTEXT_IDLE;
		return;
	}
	c->state = CONTEXT_RECEIVING;
	nng_aio_set_timeout(c->aio, NNG_DURATION_INFINITE);
	nng_ctx_recv(c->ctx, c->aio);
}

static void finished(struct net_context *c)
{
	int rv = nng_aio_result(c->aio);
	nng_msg *msg;

	if (c->state == CONTEXT_SENDING) {
		if (rv)
			nng_msg_free(nng_aio_get_msg(c->aio)); /* the client is gone: its reply is too */
		receive(c);
		return;
	}
	assert(c->state == CONTEXT_RECEIVING);
	if (rv) {
		if (!c->net->closing && rv != NNG_ECLOSED && rv != NNG_ECANCELED)
			log_warn("a receive failed", "error=%s", log_quote(nng_strerror(rv)));
		c->state = CONTEXT_IDLE;
		if (!c->net->closing)
			uv_timer_start(&c->net->retry, c->net->on_retry, RETRY_MS, 0);
		return;
	}
	msg = nng_aio_get_msg(c->aio);
	nng_aio_set_msg(c->aio, NULL);
	c->state = CONTEXT_WORKING;
	rpc_take_from(c->net->daemon->rpc, net_role(c->net, msg), nng_msg_body(msg), nng_msg_len(msg), c);
	nng_msg_free(msg);
}

/* Loop: sends coalesce, so take the whole list; NNG pushes in front, requests are served in order of arrival. */
static void on_async(uv_async_t *async)
{
	struct net *n = async->data;
	struct net_context *list, *ordered = NULL;

	pthread_mutex_lock(&n->inbox_lock);
	list = n->inbox;
	n->inbox = NULL;
	pthread_mutex_unlock(&n->inbox_lock);
	while (list) {
		struct net_context *c = list;

		list = c->inbox_next;
		c->inbox_next = ordered;
		ordered = c;
	}
	while (ordered) {
		struct net_context *c = ordered;

		ordered = c->inbox_next;
		finished(c);
	}
}

static void on_retry(uv_timer_t *timer)
{
	struct net *n = timer->data;

	for (int i = 0; i < LIMIT_CONTEXTS; i++)
		if (n->context[i].state == CONTEXT_IDLE && !n->closing)
			receive(&n->context[i]);
}

void net_answer(void *net, void *reply_to, nng_msg *msg)
{
	struct net_context *c = reply_to;

	(void)net;
	assert(c->state == CONTEXT_WORKING);
	c->state = CONTEXT_SENDING;
	nng_aio_set_msg(c->aio, msg);
	nng_aio_set_timeout(c->aio, SEND_TIMEOUT_MS);
	nng_ctx_send(c->ctx, c->aio);
}

/* ---------------------------------------------------------------- connections */

/* In static storage: NNG may still report pipes that go while its socket is already closed. */
static unsigned connections;

/* NNG's thread. */
static void on_pipe(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	(void)arg;
	if (ev == NNG_PIPE_EV_ADD_PRE && __atomic_load_n(&connections, __ATOMIC_RELAXED) >= LIMIT_CONNECTIONS)
		nng_pipe_close(p);
	else if (ev == NNG_PIPE_EV_ADD_POST)
		__atomic_add_fetch(&connections, 1, __ATOMIC_RELAXED);
	else if (ev == NNG_PIPE_EV_REM_POST)
		__atomic_sub_fetch(&connections, 1, __ATOMIC_RELAXED);
}

unsigned net_connections(const struct net *n)
{
	(void)n;
	return __atomic_load_n(&connections, __ATOMIC_RELAXED);
}

uint64_t net_relistens(const struct net *n)
{
	return n->relistens;
}

/* ---------------------------------------------------------------- life */

static int open_contexts(struct net *n, struct fh_status *st)
{
	int rv;

	for (int i = 0; i < LIMIT_CONTEXTS; i++) {
		struct net_context *c = &n->context[i];

		c->net = n;
		rv = nng_ctx_open(&c->ctx, n->rep);
		if (rv)
			return nng_status(rv, "a reply context", st);
		c->open = 1;
		rv = nng_aio_alloc(&c->aio, on_aio, c);
		if (rv)
			return nng_status(rv, "a reply context", st);
	}
	return 0;
}

static int open_rep(struct net *n, struct fh_status *st)
{
	int rv = nng_rep0_open(&n->rep);

	if (rv)
		return nng_status(rv, "reply socket", st);
	n->rep_open = 1;
	rv = nng_socket_set_size(n->rep, NNG_OPT_RECVMAXSZ, FH_WIRE_DATA_MAX);
	if (!rv)
		rv = nng_pipe_notify(n->rep, NNG_PIPE_EV_ADD_PRE, on_pipe, NULL);
	if (!rv)
		rv = nng_pipe_notify(n->rep, NNG_PIPE_EV_ADD_POST, on_pipe, NULL);
	if (!rv)
		rv = nng_pipe_notify(n->rep, NNG_PIPE_EV_REM_POST, on_pipe, NULL);
	return rv ? nng_status(rv, "reply socket", st) : open_contexts(n, st);
}

int net_new(struct daemon *d, struct net **out, struct fh_status *st)
{
	struct net *n = calloc(1, sizeof *n);
	int rc;

	if (!n)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the sockets");
	n->daemon = d;
	n->on_retry = on_retry;
	pthread_mutex_init(&n->inbox_lock, NULL);
	n->async.data = n->retry.data = n;
	if (uv_async_init(&d->loop, &n->async, on_async)) {
		free(n);
		return fh_fail(st, FH_EXHAUSTED, "the event loop takes no more handles");
	}
	uv_timer_init(&d->loop, &n->retry);
	n->open_handles = 2;
	rc = roles_parse(d->config.roles, &n->roles, st);
	if (!rc)
		rc = net_lock_all(n, st);
	if (!rc)
		rc = open_rep(n, st);
	if (rc) {
		net_close_begin(n);
		net_free(n);
		return rc;
	}
	*out = n;
	return 0;
}

int net_listen_all(struct net *n, struct fh_status *st)
{
	const struct config *c = &n->daemon->config;
	int rc;

	for (int i = 0; i < LIMIT_LISTENERS && c->listen[i][0]; i++) {
		rc = net_listen(n, n->rep, c->listen[i], NET_PEER_REQ, st);
		if (rc)
			return rc;
	}
	for (int i = 0; i < LIMIT_CONTEXTS; i++)
		receive(&n->context[i]);
	return 0;
}

int net_sending(const struct net *n)
{
	for (int i = 0; i < LIMIT_CONTEXTS; i++)
		if (n->context[i].state == CONTEXT_SENDING)
			return 1;
	return 0;
}

void net_close_begin(struct net *n)
{
	if (n->closing)
		return;
	n->closing = 1;
	uv_timer_stop(&n->retry);
	net_gates_close(n);
	for (int i = 0; i < LIMIT_CONTEXTS; i++)
		if (n->context[i].state == CONTEXT_RECEIVING)
			nng_aio_cancel(n->context[i].aio);
}

static void on_closed(uv_handle_t *h)
{
	struct net *n = h->data;

	if (--n->open_handles)
		return;
	pthread_mutex_destroy(&n->inbox_lock);
	free(n);
}

/* The order that does not hang or crash NNG 1.5.2: stop aios, contexts, socket, then free aios; after that nobody can
 * call uv_async_send any more, so the handles may close. */
void net_free(struct net *n)
{
	if (!n)
		return;
	assert(n->closing);
	for (int i = 0; i < LIMIT_CONTEXTS; i++)
		if (n->context[i].aio)
			nng_aio_stop(n->context[i].aio);
	for (int i = 0; i < LIMIT_CONTEXTS; i++)
		if (n->context[i].open)
			nng_ctx_close(n->context[i].ctx);
	if (n->rep_open)
		nng_close(n->rep);
	for (int i = 0; i < LIMIT_CONTEXTS; i++) {
		struct net_context *c = &n->context[i];
		int rv;

		if (!c->aio)
			continue;
		rv = nng_aio_result(c->aio);
		if ((c->state == CONTEXT_SENDING && rv) || (c->state == CONTEXT_RECEIVING && !rv && nng_aio_get_msg(c->aio)))
			nng_msg_free(nng_aio_get_msg(c->aio));
		nng_aio_free(c->aio);
	}
	net_gates_free(n); /* what NNG has written still goes out, and nobody is let in any more */
	roles_free(n->roles);
	n->roles = NULL;
	net_unlock_all(n);
	uv_close((uv_handle_t *)&n->async, on_closed);
	uv_close((uv_handle_t *)&n->retry, on_closed);
}
