/* What net.c (contexts) and net_listen.c (listeners) share. */
#ifndef FHD_NET_INTERNAL_H
#define FHD_NET_INTERNAL_H

#include <pthread.h>
#include <uv.h>
#include "daemon/gate.h"
#include "daemon/limits.h"
#include "daemon/net.h"
#include "daemon/roles.h"

#define NET_PATH_MAX 108     /* sun_path */
#define NET_PATH_LONGEST 100 /* PATH.in.s must fit as well */
#define NET_DOORS 3          /* a listener of NNG's for each role */

enum context_state { CONTEXT_IDLE, CONTEXT_RECEIVING, CONTEXT_WORKING, CONTEXT_SENDING };

struct net_context {
	struct net *net;
	nng_ctx ctx;
	nng_aio *aio;
	int open;
	enum context_state state;        /* loop */
	struct net_context *inbox_next;  /* under inbox_lock */
};

/* A listener of NNG's. Behind a gate there is one for each role that peers may have: the pipe that a request came on tells its
 * role. */
struct net_door {
	char inner[NET_PATH_MAX];        /* "" unless ipc */
	nng_listener listener;
	int listening;
	enum rpc_role role;
};

/* One URL: its lock, its doors, and for ipc the gate in front of them. */
struct net_listener {
	struct net *net;
	char url[512];
	char path[NET_PATH_MAX], lock_path[NET_PATH_MAX + 8]; /* "" unless ipc */
	int lock_fd;
	nng_socket socket;
	struct net_door door[NET_DOORS];
	int doors, peer_proto;
	struct gate *gate;
	uint64_t relisten_ms;            /* CLOCK_MONOTONIC of the last time it was brought back */
};

struct net {
	struct daemon *daemon;
	nng_socket rep;
	int rep_open, closing;
	struct net_context context[LIMIT_CONTEXTS];
	pthread_mutex_t inbox_lock;
	struct net_context *inbox;
	uv_async_t async;
	uv_timer_t retry;
	uv_timer_cb on_retry;
	int open_handles;
	uint64_t relistens;
	struct net_listener listener[LIMIT_LISTENERS + 1]; /* and the publisher's */
	int listeners;
	struct roles *roles;             /* NULL: peers are not told apart */
};

/* Checks every configured URL and takes the lock of every ipc path: before anything is touched. */
int net_lock_all(struct net *n, struct fh_status *st);
void net_unlock_all(struct net *n);
/* Of the peer that sent this: RPC_BY_TOKEN where only a token can tell (tcp, or no roles are set), ROLE_NONE when it came on no
 * listener that is known. */
int net_role(const struct net *n, nng_msg *msg);
/* Before and after NNG closes. */
void net_gates_close(struct net *n);
void net_gates_free(struct net *n);

#endif
