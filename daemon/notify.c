/* systemd; see notify.h. */
#include "daemon/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/log.h"
#include "daemon/worker.h"

#define STATUS_EVERY_MS 5000

struct notify {
	struct daemon *daemon;
	uv_timer_t watchdog, status;
	int open_handles, watched, stalled;
	int fd;                  /* -1: nobody wants to know */
	struct sockaddr_un to;
	socklen_t to_bytes;
	int unready;             /* READY=1 has not been taken yet */
};

/* ---------------------------------------------------------------- the socket */

/* $NOTIFY_SOCKET: a path, or @ and an abstract name. sd_notify() would wait for room in a socket that nobody reads, and the
 * loop with it. */
static void open_socket(struct notify *n)
{
	const char *path = getenv("NOTIFY_SOCKET");
	size_t length = path ? strlen(path) : 0;

	n->fd = -1;
	if ((length < 2 || (path[0] != '/' && path[0] != '@')) || length >= sizeof n->to.sun_path)
		return;
	n->to.sun_family = AF_UNIX;
	memcpy(n->to.sun_path, path, length);
	if (path[0] == '@')
		n->to.sun_path[0] = 0;
	n->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + (path[0] == '/'));
	n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* 1 when it was taken (or nobody is there who would); 0 when the socket is full: the text is lost. */
static int tell(struct notify *n, const char *text)
{
	if (n->fd < 0)
		return 1;
	return sendto(n->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&n->to, n->to_bytes) >= 0 || errno != EAGAIN;
}

/* ---------------------------------------------------------------- what is told */

/* The loop is alive, or this would not run; the workers are asked. */
static void on_watchdog(uv_timer_t *t)
{
	struct notify *n = t->data;
	int which = -1;

	if (workers_alive(n->daemon->workers, &which)) {
		tell(n, "WATCHDOG=1");
		n->stalled = 0;
		return;
	}
	if (!n->stalled++)
		log_error("a worker makes no progress; the watchdog is left alone", "worker=%d", which);
}

static void on_status(uv_timer_t *t)
{
	struct notify *n = t->data;
	struct jobs *js = n->daemon->jobs;
	char text[160];

	snprintf(text, sizeof text, "%sSTATUS=%s: %zu running, %zu queued, %zu known", n->unready ? "READY=1\n" : "",
		 n->daemon->draining ? "draining" : "running", jobs_count_state(js, JOB_RUNNING) - jobs_finishing(js),
		 jobs_count_state(js, JOB_QUEUED), jobs_count(js));
	if (tell(n, text))
		n->unready = 0;
}

int notify_new(struct daemon *d, struct notify **out, struct fh_status *st)
{
	struct notify *n = calloc(1, sizeof *n);
	uint64_t usec = 0;

	if (!n)
		return fh_fail(st, FH_EXHAUSTED, "no memory for notifications");
	n->daemon = d;
	open_socket(n);
	n->watchdog.data = n->status.data = n;
	uv_timer_init(&d->loop, &n->watchdog);
	uv_timer_init(&d->loop, &n->status);
	n->open_handles = 2;
	n->watched = sd_watchdog_enabled(0, &usec) > 0;
	if (n->watched)
		uv_timer_start(&n->watchdog, on_watchdog, 0, usec / 2000);
	*out = n;
	return 0;
}

void notify_ready(struct notify *n)
{
	n->unready = !tell(n, "READY=1");
	if (n->fd >= 0)
		uv_timer_start(&n->status, on_status, 0, STATUS_EVERY_MS);
}

void notify_stopping(struct notify *n, const char *why)
{
	char text[200];

	uv_timer_stop(&n->status);
	snprintf(text, sizeof text, "STOPPING=1\nSTATUS=stopping: %.100s\nEXTEND_TIMEOUT_USEC=%llu", why,
		 (unsigned long long)n->daemon->config.stop_timeout * 1000000ull);
	tell(n, text);
}

static void on_closed(uv_handle_t *h)
{
	struct notify *n = h->data;

	if (--n->open_handles == 0)
		free(n);
}

void notify_free(struct notify *n)
{
	if (!n)
		return;
	if (n->fd >= 0)
		close(n->fd);
	uv_close((uv_handle_t *)&n->watchdog, on_closed);
	uv_close((uv_handle_t *)&n->status, on_closed);
}
