/* Sockets: REP for calls, lock files, listeners that are watched and brought back.
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

/* Sockets, contexts and locks; listens when net_listen_all is called. */
int net_new(struct daemon *d, struct net **out, struct fh_status *st);
int net_listen_all(struct net *n, struct fh_status *st);
/* Answers the message that came with `reply_to` and makes its context receive again. Takes data (nng_msg). */
void net_answer(struct net *n, void *reply_to, nng_msg *msg);
unsigned net_connections(const struct net *n);
uint64_t net_relistens(const struct net *n);
/* In order: net_close_begin stops receiving and all aios; net_free closes contexts, sockets, locks, handles. */
void net_close_begin(struct net *n);
void net_free(struct net *n);

/* For publish.c: listens with `url` on any socket: lock file, stale path removed, mode 0660, loopback rule, watched
 * by the self-probe (`proto` is the SP number that a peer of this socket says: REQ 0x30, SUB 0x21). */
int net_listen(struct net *n, nng_socket s, const char *url, int peer_proto, struct fh_status *st);

#endif
