/* Listeners: URL rules, lock files, stale paths, and the self-probe that brings a dead ipc listener back. Loop thread.
 *
 * NNG 1.5.2 stops accepting on an ipc listener for good after one peer went away in the middle of its handshake. So
 * every LIMIT_PROBE_EVERY ms a plain connection is made to each ipc path and the SP handshake exchanged; who does not
 * answer within LIMIT_PROBE_TIMEOUT is closed and listens again. Clients' sockets connect again by themselves. */
#include "daemon/net_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/lockfile.h"
#include "daemon/log.h"

#define SOCKET_MODE 0660
#define HELLO_BYTES 8

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
	if (strlen(path) >= NET_PATH_MAX - 1)
		return fh_fail_field(st, FH_INVALID, "listen", "%s: the path has %zu characters, sockets take %d at most", url,
				     strlen(path), NET_PATH_MAX - 2);
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

		if (l->lock_fd >= 0 && l->listening)
			unlink(l->path); /* NNG does so as well; a listener that died has left it */
		lockfile_release(l->lock_path, l->lock_fd);
	}
	n->listeners = 0;
}

/* ---------------------------------------------------------------- listen */

/* The lock is ours, so a socket at the path is left over from a process that died. */
static int remove_stale(const struct net_listener *l, struct fh_status *st)
{
	struct stat sb;

	if (lstat(l->path, &sb))
		return 0;
	if (!S_ISSOCK(sb.st_mode))
		return fh_fail_field(st, FH_CONFLICT, "listen", "%s is there and no socket", l->path);
	if (unlink(l->path))
		return fh_fail_field(st, FH_IO, "listen", "stale socket %s: %s", l->path, strerror(errno));
	return 0;
}

static int listen_now(struct net_listener *l, struct fh_status *st)
{
	int rv = nng_listener_create(&l->listener, l->socket, l->url);

	if (!rv && l->path[0])
		rv = nng_listener_set_int(l->listener, NNG_OPT_IPC_PERMISSIONS, SOCKET_MODE);
	if (!rv)
		rv = nng_listener_start(l->listener, 0);
	if (rv)
		return fh_fail_field(st, FH_UNAVAILABLE, "listen", "%s: %s", l->url, nng_strerror(rv));
	l->listening = 1;
	return 0;
}

static void on_probe_timer(uv_timer_t *timer);

int net_listen(struct net *n, nng_socket s, const char *url, int peer_proto, struct fh_status *st)
{
	struct net_listener *l = NULL;
	int rc = 0;

	for (int i = 0; i < n->listeners && !l; i++)
		if (!strcmp(n->listener[i].url, url))
			l = &n->listener[i];
	if (!l)
		return fh_fail_field(st, FH_INTERNAL, "listen", "%s was not in the configuration", url);
	l->socket = s;
	l->peer_proto = peer_proto;
	if (l->path[0])
		rc = remove_stale(l, st);
	if (!rc)
		rc = listen_now(l, st);
	if (!rc && !uv_is_active((uv_handle_t *)&n->probe))
		uv_timer_start(&n->probe, on_probe_timer, LIMIT_PROBE_EVERY, LIMIT_PROBE_EVERY);
	return rc;
}

static void relisten(struct net *n, struct net_listener *l)
{
	struct fh_status st = FH_STATUS_INIT;

	n->relistens++;
	if (l->listening)
		nng_listener_close(l->listener);
	l->listening = 0;
	if (remove_stale(l, &st) || listen_now(l, &st))
		log_status(LOG_ERROR, "listening again failed; will be tried again", &st);
	else
		log_warn("listener was dead and listens again", "url=%s relistens=%llu", l->url,
			 (unsigned long long)n->relistens);
}

/* ---------------------------------------------------------------- self-probe */

struct net_probe {
	struct net *net;
	struct net_listener *listener; /* NULL once the outcome is known */
	uv_pipe_t pipe;
	uv_timer_t timeout;
	uv_connect_t connect;
	uv_write_t write;
	unsigned char hello[HELLO_BYTES], answer[HELLO_BYTES];
	size_t received;
	int open_handles;
};

static void on_probe_closed(uv_handle_t *h)
{
	struct net_probe *p = h->data;

	if (--p->open_handles == 0)
		free(p);
}

static void probe_end(struct net_probe *p, int alive)
{
	struct net_listener *l = p->listener;

	if (!l)
		return;
	p->listener = NULL;
	l->probe = NULL;
	uv_close((uv_handle_t *)&p->pipe, on_probe_closed);
	uv_close((uv_handle_t *)&p->timeout, on_probe_closed);
	if (!alive && !p->net->closing)
		relisten(p->net, l);
}

static void on_probe_timeout(uv_timer_t *t)
{
	probe_end(t->data, 0);
}

static void on_probe_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct net_probe *p = h->data;

	(void)suggested;
	*buf = uv_buf_init((char *)p->answer + p->received, (unsigned)(HELLO_BYTES - p->received));
}

static void on_probe_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct net_probe *p = s->data;

	(void)buf;
	if (n < 0) {
		probe_end(p, 0);
		return;
	}
	p->received += (size_t)n;
	if (p->received == HELLO_BYTES)
		probe_end(p, !memcmp(p->answer, "\0SP\0", 4));
}

static void on_probe_written(uv_write_t *w, int status)
{
	struct net_probe *p = w->data;

	if (status < 0 && status != UV_ECANCELED)
		probe_end(p, 0);
}

static void on_probe_connect(uv_connect_t *c, int status)
{
	struct net_probe *p = c->data;
	uv_buf_t buf = uv_buf_init((char *)p->hello, HELLO_BYTES);

	if (!p->listener)
		return;
	if (status < 0 || uv_read_start((uv_stream_t *)&p->pipe, on_probe_alloc, on_probe_read) ||
	    uv_write(&p->write, (uv_stream_t *)&p->pipe, &buf, 1, on_probe_written))
		probe_end(p, 0);
}

static void probe_start(struct net *n, struct net_listener *l)
{
	struct net_probe *p = calloc(1, sizeof *p);

	if (!p)
		return; /* the next one may have better luck */
	p->net = n;
	p->listener = l;
	memcpy(p->hello, "\0SP\0", 4);
	p->hello[4] = (unsigned char)(l->peer_proto >> 8);
	p->hello[5] = (unsigned char)l->peer_proto;
	uv_pipe_init(&n->daemon->loop, &p->pipe, 0);
	uv_timer_init(&n->daemon->loop, &p->timeout);
	p->open_handles = 2;
	p->pipe.data = p->timeout.data = p->connect.data = p->write.data = p;
	l->probe = p;
	uv_timer_start(&p->timeout, on_probe_timeout, LIMIT_PROBE_TIMEOUT, 0);
	uv_pipe_connect(&p->connect, &p->pipe, l->path, on_probe_connect);
}

static void on_probe_timer(uv_timer_t *timer)
{
	struct net *n = timer->data;

	for (int i = 0; i < n->listeners; i++) {
		struct net_listener *l = &n->listener[i];

		if (!l->path[0] || l->probe || !l->peer_proto)
			continue;
		if (l->listening)
			probe_start(n, l);
		else
			relisten(n, l);
	}
}

void net_probe_stop(struct net *n)
{
	uv_timer_stop(&n->probe);
	for (int i = 0; i < n->listeners; i++)
		if (n->listener[i].probe)
			probe_end(n->listener[i].probe, 1);
}
