/* Listeners: URL rules, lock files, stale paths, and bringing a dead NNG listener back. Loop thread.
 *
 * An ipc URL is two sockets: the gate on the public path (gate.h says why) and NNG on PATH.in, for this user only. */
#include "daemon/net_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/lockfile.h"
#include "daemon/log.h"

#define PUBLIC_MODE 0660
#define INNER_MODE 0600
#define RELISTEN_EVERY_MS 1000 /* several connections may find the same listener dead */

/* ---------------------------------------------------------------- URLs and locks */

static int is_loopback(const char *url)
{
	const char *host = strstr(url, "://") + 3;

	return !strncmp(host, "127.", 4) || !strncmp(host, "[::1]", 5) || !strncmp(host, "localhost:", 10);
}

static int check_path(const char *url, struct net_listener *l, struct fh_status *st)
{
	const char *path = url + strlen("ipc://");

	if (*path != '/')
		return fh_fail_field(st, FH_INVALID, "listen", "%s: the path must be absolute", url);
	if (strlen(path) > NET_PATH_LONGEST)
		return fh_fail_field(st, FH_INVALID, "listen", "%s: the path has %zu characters, at most %d can be taken", url,
				     strlen(path), NET_PATH_LONGEST);
	snprintf(l->path, sizeof l->path, "%s", path);
	snprintf(l->lock_path, sizeof l->lock_path, "%s.lock", path);
	return 0;
}

static int check_url(const struct config *c, const char *url, struct net_listener *l, struct fh_status *st)
{
	if (!strncmp(url, "ipc://", 6))
		return check_path(url, l, st);
	if (strncmp(url, "tcp://", 6))
		return fh_fail_field(st, FH_INVALID, "listen", "%s: expected ipc:///path or tcp://127.0.0.1:port", url);
	if (!is_loopback(url) && !c->insecure_tcp)
		return fh_fail_field(st, FH_DENIED, "listen", "%s is not loopback, and plain tcp tells everybody everything: --insecure-tcp allows it",
				     url);
	return 0;
}

static int add_listener(struct net *n, const char *url, struct fh_status *st)
{
	struct net_listener *l = &n->listener[n->listeners];
	char what[600];
	int rc;

	*l = (struct net_listener){.lock_fd = -1};
	snprintf(l->url, sizeof l->url, "%s", url);
	rc = check_url(&n->daemon->config, url, l, st);
	if (rc)
		return rc;
	n->listeners++;
	if (!l->path[0])
		return 0;
	snprintf(what, sizeof what, "the socket %s", l->path);
	return lockfile_take(l->lock_path, what, &l->lock_fd, st);
}

int net_lock_all(struct net *n, struct fh_status *st)
{
	const struct config *c = &n->daemon->config;
	int rc = 0;

	for (int i = 0; !rc && i < LIMIT_LISTENERS && c->listen[i][0]; i++)
		rc = add_listener(n, c->listen[i], st);
	if (!rc && c->publish[0])
		rc = add_listener(n, c->publish, st);
	return rc;
}

void net_unlock_all(struct net *n)
{
	for (int i = 0; i < n->listeners; i++) {
		struct net_listener *l = &n->listener[i];

		for (int k = 0; k < l->doors; k++)
			if (l->lock_fd >= 0 && l->door[k].listening)
				unlink(l->door[k].inner); /* NNG does so as well, unless its listener had died */
		lockfile_release(l->lock_path, l->lock_fd);
	}
	n->listeners = 0;
}

/* ---------------------------------------------------------------- listen */

/* The lock is ours, so a socket at the path is left over from a process that died. */
static int remove_stale(const char *path, struct fh_status *st)
{
	struct stat sb;

	if (lstat(path, &sb))
		return 0;
	if (!S_ISSOCK(sb.st_mode))
		return fh_fail_field(st, FH_CONFLICT, "listen", "%s is there and no socket", path);
	if (unlink(path))
		return fh_fail_field(st, FH_IO, "listen", "stale socket %s: %s", path, strerror(errno));
	return 0;
}

static int open_door(struct net_listener *l, struct net_door *d, struct fh_status *st)
{
	char url[NET_PATH_MAX + 8];
	int rc, rv;

	if (l->path[0]) {
		snprintf(url, sizeof url, "ipc://%s", d->inner);
		if ((rc = remove_stale(d->inner, st)))
			return rc;
	}
	rv = nng_listener_create(&d->listener, l->socket, l->path[0] ? url : l->url);
	if (!rv && l->path[0])
		rv = nng_listener_set_int(d->listener, NNG_OPT_IPC_PERMISSIONS, INNER_MODE);
	if (!rv)
		rv = nng_listener_start(d->listener, 0);
	if (rv)
		return fh_fail_field(st, FH_UNAVAILABLE, "listen", "%s: %s", l->url, nng_strerror(rv));
	d->listening = 1;
	return 0;
}

static int listen_nng(struct net_listener *l, struct fh_status *st)
{
	int rc = 0;

	for (int k = 0; !rc && k < l->doors; k++)
		rc = open_door(l, &l->door[k], st);
	return rc;
}

/* One door, or one for each role when requests of peers are told apart. */
static void make_doors(struct net_listener *l)
{
	static const char *const suffix[NET_DOORS] = {".in", ".in.s", ".in.r"};
	static const enum rpc_role role[NET_DOORS] = {ROLE_ADMIN, ROLE_SUBMIT, ROLE_READ};
	int doors = l->net->roles && l->path[0] && l->peer_proto == NET_PEER_REQ ? NET_DOORS : 1;

	for (int k = 0; k < doors; k++) {
		l->door[k].role = role[k];
		if (l->path[0])
			snprintf(l->door[k].inner, sizeof l->door[k].inner, "%.*s%s", NET_PATH_LONGEST, l->path, suffix[k]);
	}
	l->doors = doors;
}

int net_role(const struct net *n, nng_msg *msg)
{
	int id = n->roles ? nng_listener_id(nng_pipe_listener(nng_msg_get_pipe(msg))) : 0;

	if (!n->roles)
		return RPC_BY_TOKEN;
	for (int i = 0; i < n->listeners; i++)
		for (int k = 0; k < n->listener[i].doors; k++) {
			const struct net_door *d = &n->listener[i].door[k];

			if (d->listening && nng_listener_id(d->listener) == id)
				return n->listener[i].path[0] ? (int)d->role : RPC_BY_TOKEN;
		}
	return ROLE_NONE;
}

/* The gate could not get through: NNG's listener is dead. Its connections go with it; clients connect again. */
static void on_dead(void *ctx)
{
	struct net_listener *l = ctx;
	struct net *n = l->net;
	struct fh_status st = FH_STATUS_INIT;
	uint64_t now = time_mono_ns() / 1000000;

	if (n->closing || now - l->relisten_ms < RELISTEN_EVERY_MS)
		return;
	l->relisten_ms = now;
	n->relistens++;
	for (int k = 0; k < l->doors; k++) {
		if (l->door[k].listening)
			nng_listener_close(l->door[k].listener);
		l->door[k].listening = 0;
	}
	if (listen_nng(l, &st))
		log_status(LOG_ERROR, "listening again failed; the next connection tries again", &st);
	else
		log_warn("listener was dead and listens again", "url=%s relistens=%llu", l->url,
			 (unsigned long long)n->relistens);
}

/* The door of a peer's role; who may follow anything may follow everything. */
static const char *door_of_peer(void *ctx, int fd)
{
	struct net_listener *l = ctx;
	enum rpc_role role = roles_of_peer(l->net->roles, fd);

	if (role == ROLE_NONE)
		return NULL;
	for (int k = 0; k < l->doors; k++)
		if (l->doors == 1 || l->door[k].role == role)
			return l->door[k].inner;
	return NULL;
}

static int open_gate(struct net_listener *l, struct fh_status *st)
{
	struct gate_config c = {.loop = &l->net->daemon->loop, .path = l->path, .inner = l->door[0].inner,
				.peer_proto = l->peer_proto, .mode = PUBLIC_MODE, .dead = on_dead, .ctx = l};
	int rc = remove_stale(l->path, st);

	if (l->net->roles)
		c.door = door_of_peer;
	return rc ? rc : gate_new(&c, &l->gate, st);
}

int net_listen(struct net *n, nng_socket s, const char *url, int peer_proto, struct fh_status *st)
{
	struct net_listener *l = NULL;
	int rc;

	for (int i = 0; i < n->listeners && !l; i++)
		if (!strcmp(n->listener[i].url, url))
			l = &n->listener[i];
	if (!l)
		return fh_fail_field(st, FH_INTERNAL, "listen", "%s was not in the configuration", url);
	l->net = n;
	l->socket = s;
	l->peer_proto = peer_proto;
	make_doors(l);
	rc = listen_nng(l, st);
	if (!rc && l->path[0])
		rc = open_gate(l, st);
	return rc;
}

void net_gates_close(struct net *n)
{
	for (int i = 0; i < n->listeners; i++)
		if (n->listener[i].gate)
			gate_close_begin(n->listener[i].gate);
}

void net_gates_free(struct net *n)
{
	for (int i = 0; i < n->listeners; i++) {
		gate_free(n->listener[i].gate);
		n->listener[i].gate = NULL;
	}
}
