/* Sockets: REP for calls, lock files, listeners with a gate in front of them.
 *
 * NNG's threads run the callbacks of the contexts: they push the context on the inbox and uv_async_send, nothing else.
 * The loop drains the inbox and hands every message to rpc_take(). Everything else here: loop thread.
 * Invariant: the lock file of an ipc path is held before the path is touched, so a second daemon never disturbs us. */
#ifndef FHD_NET_H
#define FHD_NET_H

#include <stddef.h>
#include <stdint.h>
#include <nng/nng.h>
#include "proto/status.h"

struct daemon;
struct net;

#define NET_PEER_REQ 0x30 /* SP protocol numbers of who connects */
#define NET_PEER_SUB 0x21

/* Sockets, contexts and the locks of all configured URLs (listen and publish): FH_CONFLICT names the other daemon.
 * Listens when net_listen_all is called. */
int net_new(struct daemon *d, struct net **out, struct fh_status *st);
int net_listen_all(struct net *n, struct fh_status *st);
/* Answers the message that came with `reply_to` and makes its context receive again. Takes data (nng_msg). */
void net_answer(void *net, void *reply_to, nng_msg *msg);
unsigned net_connections(const struct net *n);
uint64_t net_relistens(const struct net *n);
/* In order: net_close_begin stops receiving; when net_sending() is 0 all replies are out; net_free closes contexts,
 * sockets, locks, handles (the loop must turn once more). */
void net_close_begin(struct net *n);
int net_sending(const struct net *n);
void net_free(struct net *n);

/* Listens with a configured `url` on `s`: stale path removed, mode 0660, behind a gate when ipc (gate.h). */
int net_listen(struct net *n, nng_socket s, const char *url, int peer_proto, struct fh_status *st);

#endif
