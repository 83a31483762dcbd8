/* systemd; see notify.h. */
#include "daemon/notify.h"

#include <stdlib.h>
#include <systemd/sd-daemon.h>
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
};

/* The loop is alive, or this would not run; the workers are asked. */
static void on_watchdog(uv_timer_t *t)
{
	struct notify *n = t->data;
	int which = -1;

	if (workers_alive(n->daemon->workers, &which)) {
		sd_notify(0, "WATCHDOG=1");
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

	sd_notifyf(0, "STATUS=%s: %zu running, %zu queued, %zu known", n->daemon->draining ? "draining" : "running",
		   jobs_count_state(js, JOB_RUNNING) - jobs_finishing(js), jobs_count_state(js, JOB_QUEUED), jobs_count(js));
}

int notify_new(struct daemon *d, struct notify **out, struct fh_status *st)
{
	struct notify *n = calloc(1, sizeof *n);
	uint64_t usec = 0;

	if (!n)
		return fh_fail(st, FH_EXHAUSTED, "no memory for notifications");
	n->daemon = d;
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
	sd_notify(0, "READY=1");
	if (getenv("NOTIFY_SOCKET"))
		uv_timer_start(&n->status, on_status, 0, STATUS_EVERY_MS);
}

void notify_stopping(struct notify *n, const char *why)
{
	uv_timer_stop(&n->status);
	sd_notifyf(0, "STOPPING=1\nSTATUS=stopping: %s\nEXTEND_TIMEOUT_USEC=%llu", why,
		   (unsigned long long)n->daemon->config.stop_timeout * 1000000ull);
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
	uv_close((uv_handle_t *)&n->watchdog, on_closed);
	uv_close((uv_handle_t *)&n->status, on_closed);
}
