/* The modules wired together, and the order in which they start and stop. See daemon.h.
 *
 * Stopping is a walk through enum stop_phase, one step whenever the loop has turned and the step's condition holds:
 * nothing here waits, except for a thread that a module has already told to end and for the store's last sync. */
#include "daemon/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/checkpoints.h"
#include "daemon/dataset.h"
#include "daemon/evaluator.h"
#include "daemon/http.h"
#include "daemon/jobs.h"
#include "daemon/lockfile.h"
#include "daemon/log.h"
#include "daemon/net.h"
#include "daemon/notify.h"
#include "daemon/operations.h"
#include "daemon/pool.h"
#include "daemon/publish.h"
#include "daemon/queue.h"
#include "daemon/rpc.h"
#include "daemon/series.h"
#include "daemon/store.h"
#include "daemon/worker.h"

enum stop_phase { STOP_JOBS, STOP_WORKERS, STOP_SERVICES, STOP_REPLIES, STOP_FILES, STOP_DONE };

/* The parts of stopping and starting that no other module needs to see. One daemon per process. */
static struct {
	char lock_path[CONFIG_TEXT_MAX + 8];
	int lock_fd;
	uv_signal_t sigterm, sigint, sighup;
	uv_check_t check;            /* active while stopping: looks at the phase after every turn of the loop */
	uv_idle_t kick;              /* makes the loop turn once without an event */
	enum stop_phase phase;
	int signals_open, services_stopped;
	pthread_t deadline;
	int deadline_running, deadline_off;
	pthread_mutex_t deadline_lock;
	pthread_cond_t deadline_cond;
} own = {.lock_fd = -1, .deadline_lock = PTHREAD_MUTEX_INITIALIZER, .deadline_cond = PTHREAD_COND_INITIALIZER};

/* ---------------------------------------------------------------- start */

static int make_dirs(const char *path, struct fh_status *st)
{
	char part[CONFIG_TEXT_MAX];

	snprintf(part, sizeof part, "%s", path);
	for (char *p = part + 1;; p++) {
		char ch = *p;

		if (ch && ch != '/')
			continue;
		*p = 0;
		if (mkdir(part, 0750) && errno != EEXIST)
			return fh_fail_field(st, errno == EACCES ? FH_DENIED : FH_IO, "state_dir", "%s: %s", part, strerror(errno));
		if (!ch)
			return 0;
		*p = ch;
	}
}

/* The default socket's directory when it is not there yet (/run/fhd as root, for one). */
static void make_runtime_dir(const struct config *c)
{
	char dir[CONFIG_TEXT_MAX], *slash;

	if (strncmp(c->listen[0], "ipc:///", 7))
		return;
	snprintf(dir, sizeof dir, "%s", c->listen[0] + 6);
	slash = strrchr(dir, '/');
	*slash = 0;
	if (*dir && mkdir(dir, 0750) && errno != EEXIST)
		log_warn("the socket's directory cannot be made", "path=%s error=%s", dir, log_quote(strerror(errno)));
}

static int lock_state_dir(struct daemon *d, struct fh_status *st)
{
	char what[CONFIG_TEXT_MAX + 32];
	int rc = make_dirs(d->config.state_dir, st);

	if (rc)
		return rc;
	snprintf(own.lock_path, sizeof own.lock_path, "%s/lock", d->config.state_dir);
	snprintf(what, sizeof what, "the state directory %s", d->config.state_dir);
	return lockfile_take(own.lock_path, what, &own.lock_fd, st);
}

static void raise_file_limit(void)
{
	struct rlimit r;

	if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < 4096) {
		r.rlim_cur = r.rlim_max < 4096 ? r.rlim_max : 4096;
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

/* Threads of the host backend: the setting is shared by the slots. Before any thread is started. */
static void set_threads(const struct config *c)
{
	long n = c->threads ? (long)c->threads : sysconf(_SC_NPROCESSORS_ONLN);
	char text[32];

	if (!c->threads && c->slots == 1)
		return;
	n /= c->slots;
	snprintf(text, sizeof text, "%ld", n < 1 ? 1 : n);
	setenv("FH_HOST_THREADS", text, 1);
}

/* Where the device remembers which products it computes how (gpu/cuda/product.cuh). Before any thread is started. */
static void set_choices(const struct config *c)
{
	char path[CONFIG_TEXT_MAX + 16];

	snprintf(path, sizeof path, "%s/products", c->state_dir);
	setenv("FH_GPU_CHOICES", path, 0);
}

static int open_device(struct daemon *d, struct fh_status *st)
{
	size_t limit = (size_t)d->config.memory;
	int rc = backend_open(d->config.device, &d->backend, d->device_note, st);

	if (rc || (rc = d->backend->info(d->backend, &d->device, st)))
		return rc;
	if (!limit)
		limit = d->device.memory_total / 5 * 4;
	log_info("device", "backend=%s name=%s memory=%zu threads=%d note=%s", d->backend->name, log_quote(d->device.name),
		 d->device.memory_total, d->device.threads, log_quote(d->device_note));
	return pool_new(d->backend, limit, (int)d->config.park, &d->pool, st);
}

static int open_store(struct daemon *d, struct fh_status *st)
{
	char path[CONFIG_TEXT_MAX + 16];

	snprintf(path, sizeof path, "%s/fhd.db", d->config.state_dir);
	return store_open(path, &d->store, st);
}

static unsigned jobs_using(void *arg, const char *name)
{
	struct daemon *d = arg;

	return jobs_using_dataset(d->jobs, name);
}

static int checkpoint_needed(void *arg, const char *id, char *by)
{
	struct daemon *d = arg;

	return jobs_needs_checkpoint(d->jobs, id, by);
}

/* A job that goes on from a checkpoint does not repeat the samples in front of it: they go to the disk first. */
static void checkpoint_row_next(void *arg)
{
	struct daemon *d = arg;

	series_flush(d->series);
}

static int open_datasets(struct daemon *d, struct fh_status *st)
{
	char dir[CONFIG_TEXT_MAX + 16];
	struct datasets_config c = {.loop = &d->loop, .store = d->store, .dir = dir, .bars_max = d->config.dataset_bars,
				    .quota = (uint64_t)d->config.dataset_quota, .upload_idle_ms = (uint32_t)d->config.upload_idle * 1000,
				    .jobs_using = jobs_using, .arg = d};

	snprintf(dir, sizeof dir, "%s/datasets", d->config.state_dir);
	return datasets_new(&c, &d->datasets, st);
}

static int open_checkpoints(struct daemon *d, struct fh_status *st)
{
	char dir[CONFIG_TEXT_MAX + 16];
	struct checkpoints_config c = {.loop = &d->loop, .store = d->store, .dir = dir, .needed = checkpoint_needed,
				      .before_row = checkpoint_row_next, .arg = d};

	snprintf(dir, sizeof dir, "%s/checkpoints", d->config.state_dir);
	return checkpoints_new(&c, &d->checkpoints, st);
}

static int remember_request(void *arg, const struct store_request *q)
{
	struct daemon *d = arg;

	if (q->job)
		rpc_remember_job(d->rpc, q->request_id, q->job);
	return 0;
}

/* Everything in the order of struct daemon; the first that fails ends it. */
static int make_modules(struct daemon *d, struct fh_status *st)
{
	int slots = (int)d->config.slots, rc;

	if ((rc = lock_state_dir(d, st)) || (rc = net_new(d, &d->net, st)) || (rc = open_device(d, st)) ||
	    (rc = open_store(d, st)) || (rc = open_datasets(d, st)))
		return rc;
	if (d->config.publish[0] && (rc = publish_open(d->config.publish, &d->publish, st)))
		return rc;
	if ((rc = series_new(&d->loop, d->store, d->publish, &d->series, st)) || (rc = open_checkpoints(d, st)) ||
	    (rc = jobs_new(d, &d->jobs, st)) || (rc = operations_new(&d->loop, &d->operations, st)) ||
	    (rc = evaluator_new(&d->loop, d->operations, &d->evaluator, st)) ||
	    (rc = workers_new(d, slots, &d->workers, st)) || (rc = queue_new(d, slots, &d->queue, st)) ||
	    (rc = rpc_new(d, net_answer, d->net, &d->rpc, st)))
		return rc;
	return notify_new(d, &d->notify, st);
}

static int load_state(struct daemon *d, struct fh_status *st)
{
	int rc;

	if ((rc = datasets_load(d->datasets, st)) || (rc = series_load(d->series, st)) ||
	    (rc = checkpoints_load(d->checkpoints, st)) || (rc = jobs_load(d->jobs, st)) ||
	    (rc = store_load_requests(d->store, remember_request, d, st)) || (rc = store_start(d->store, &d->loop, st)))
		return rc;
	jobs_recover(d->jobs);
	while (!jobs_idle(d->jobs)) /* what became of interrupted jobs is on the disk before anybody can ask */
		uv_run(&d->loop, UV_RUN_ONCE);
	return 0;
}

static int listen_everywhere(struct daemon *d, struct fh_status *st)
{
	int rc = d->publish ? net_listen(d->net, publish_socket(d->publish), d->config.publish, NET_PEER_SUB, st) : 0;

	if (!rc)
		rc = net_listen_all(d->net, st);
	if (!rc && d->config.http[0])
		rc = http_open(d, d->config.http, (int)d->config.insecure_tcp, &d->http, st);
	return rc;
}

static void on_signal(uv_signal_t *s, int signum)
{
	struct daemon *d = s->data;

	if (signum == SIGHUP) {
		log_info("SIGHUP is ignored: settings are read at start", "%s", "");
		return;
	}
	daemon_stop(d, d->state == DAEMON_STOPPING, signum == SIGTERM ? "SIGTERM" : "SIGINT");
}

static void watch_signals(struct daemon *d)
{
	uv_signal_t *s[] = {&own.sigterm, &own.sigint, &own.sighup};
	static const int number[] = {SIGTERM, SIGINT, SIGHUP};

	for (int i = 0; i < 3; i++) {
		uv_signal_init(&d->loop, s[i]);
		s[i]->data = d;
		uv_signal_start(s[i], on_signal, number[i]);
	}
	uv_check_init(&d->loop, &own.check);
	uv_idle_init(&d->loop, &own.kick);
	own.check.data = own.kick.data = d;
	own.signals_open = 1;
}

static void take_down(struct daemon *d);

int daemon_start(struct daemon *d, const struct config *c, struct fh_status *st)
{
	int rc;

	memset(d, 0, sizeof *d);
	own.phase = STOP_JOBS;
	own.services_stopped = own.deadline_off = 0;
	d->config = *c;
	d->started_ns = time_now_ns();
	signal(SIGPIPE, SIG_IGN);
	raise_file_limit();
	set_threads(c);
	backend_environment();
	set_choices(c);
	make_runtime_dir(c);
	if (uv_loop_init(&d->loop))
		return fh_fail(st, FH_EXHAUSTED, "no event loop");
	watch_signals(d);
	rc = make_modules(d, st);
	if (!rc)
		rc = load_state(d, st);
	if (!rc)
		rc = listen_everywhere(d, st);
	if (rc) {
		d->state = DAEMON_STOPPING;
		take_down(d);
		return rc;
	}
	if (d->state == DAEMON_STARTING) /* a signal may have come already */
		d->state = DAEMON_RUNNING;
	log_info("ready", "version=%s listen=%s state_dir=%s slots=%d", FH_VERSION_TEXT, d->config.listen[0],
		 d->config.state_dir, (int)d->config.slots);
	notify_ready(d->notify);
	queue_run(d->queue);
	return 0;
}

/* ---------------------------------------------------------------- stop */

/* A thread of its own: whatever hangs (a device, a socket, a disk), the process ends when the time is over. */
static void *deadline_main(void *arg)
{
	const struct timespec *until = arg;
	int rc = 0;

	pthread_mutex_lock(&own.deadline_lock);
	while (!own.deadline_off && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&own.deadline_cond, &own.deadline_lock, until);
	if (!own.deadline_off) {
		log_error("stopping took too long; the process ends as it is", "phase=%d", (int)own.phase);
		_exit(DAEMON_EXIT_HARD_DEADLINE);
	}
	pthread_mutex_unlock(&own.deadline_lock);
	return NULL;
}

static void deadline_begin(int64_t seconds)
{
	static struct timespec until;
	sigset_t block, old;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += seconds;
	sigfillset(&block);
	pthread_sigmask(SIG_BLOCK, &block, &old);
	own.deadline_running = !pthread_create(&own.deadline, NULL, deadline_main, &until);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void deadline_end(void)
{
	if (!own.deadline_running)
		return;
	pthread_mutex_lock(&own.deadline_lock);
	own.deadline_off = 1;
	pthread_cond_signal(&own.deadline_cond);
	pthread_mutex_unlock(&own.deadline_lock);
	pthread_join(own.deadline, NULL);
	own.deadline_running = 0;
}

/* Answers who waits, refuses new work; what is in flight on the libuv pool still comes back. */
static void stop_services(struct daemon *d)
{
	if (own.services_stopped)
		return;
	own.services_stopped = 1;
	http_close(d->http);
	d->http = NULL;
	if (d->evaluator)
		evaluator_stop(d->evaluator);
	if (d->operations)
		operations_stop(d->operations);
	if (d->series)
		series_stop(d->series);
	if (d->datasets)
		datasets_stop(d->datasets);
	if (d->checkpoints)
		checkpoints_stop(d->checkpoints);
	if (d->net)
		net_close_begin(d->net);
}

static int files_busy(const struct daemon *d)
{
	return (d->datasets && datasets_busy(d->datasets)) || (d->checkpoints && checkpoints_busy(d->checkpoints));
}

/* 1 when the phase is over. */
static int phase_over(struct daemon *d)
{
	switch (own.phase) {
	case STOP_JOBS:
		return jobs_idle(d->jobs);
	case STOP_WORKERS:
		return workers_quit(d->workers);
	case STOP_SERVICES:
		stop_services(d);
		return 1;
	case STOP_REPLIES:
		return !net_sending(d->net);
	case STOP_FILES:
		return !files_busy(d);
	case STOP_DONE:
		break;
	}
	return 0;
}

static void on_check(uv_check_t *check)
{
	struct daemon *d = check->data;

	uv_idle_stop(&own.kick);
	while (own.phase < STOP_DONE && phase_over(d))
		own.phase++;
	if (own.phase == STOP_DONE)
		uv_stop(&d->loop);
}

static void on_kick(uv_idle_t *idle)
{
	uv_idle_stop(idle);
}

void daemon_stop(struct daemon *d, int now, const char *why)
{
	if (d->state != DAEMON_STOPPING) {
		log_info("stopping", "why=%s now=%d", log_quote(why), now);
		d->state = DAEMON_STOPPING;
		deadline_begin(d->config.stop_timeout);
		notify_stopping(d->notify, why);
		uv_check_start(&own.check, on_check);
	} else if (!now) {
		return;
	}
	jobs_interrupt_all(d->jobs, now);
	uv_idle_start(&own.kick, on_kick);
}

void daemon_drain(struct daemon *d, int on)
{
	d->draining = on;
	log_info("drain", "on=%d", on);
	queue_run(d->queue);
}

void daemon_device_lost(struct daemon *d)
{
	d->exit_code = DAEMON_EXIT_DEVICE_LOST;
	daemon_stop(d, 1, "the device is lost");
}

static void close_walk(uv_handle_t *h, void *arg)
{
	(void)arg;
	if (!uv_is_closing(h))
		log_error("a handle is still open at the end", "type=%s", uv_handle_type_name(h->type));
}

static void close_own_handles(void)
{
	if (!own.signals_open)
		return;
	uv_close((uv_handle_t *)&own.sigterm, NULL);
	uv_close((uv_handle_t *)&own.sigint, NULL);
	uv_close((uv_handle_t *)&own.sighup, NULL);
	uv_close((uv_handle_t *)&own.check, NULL);
	uv_close((uv_handle_t *)&own.kick, NULL);
	own.signals_open = 0;
}

/* Opposite order of make_modules; every part may be missing (a start that failed). */
static void take_down(struct daemon *d)
{
	while (d->workers && !workers_quit(d->workers))
		uv_run(&d->loop, UV_RUN_ONCE);
	stop_services(d);
	while (files_busy(d))
		uv_run(&d->loop, UV_RUN_ONCE);
	if (d->store)
		store_stop(d->store);
	notify_free(d->notify);
	publish_close(d->publish);
	if (d->net)
		net_free(d->net);
	rpc_free(d->rpc);
	queue_free(d->queue);
	workers_free(d->workers);
	if (!d->exit_code)
		pool_free(d->pool); /* after a lost device nothing of it is touched */
	if (d->evaluator)
		evaluator_free(d->evaluator);
	if (d->operations)
		operations_free(d->operations);
	jobs_free(d->jobs);
	if (d->checkpoints)
		checkpoints_free(d->checkpoints);
	if (d->series)
		series_free(d->series);
	if (d->datasets)
		datasets_free(d->datasets);
	close_own_handles();
	uv_run(&d->loop, UV_RUN_DEFAULT);
	store_free(d->store);
	if (uv_loop_close(&d->loop))
		uv_walk(&d->loop, close_walk, NULL);
	lockfile_release(own.lock_path, own.lock_fd);
	own.lock_fd = -1;
}

int daemon_run(struct daemon *d)
{
	uv_run(&d->loop, UV_RUN_DEFAULT);
	take_down(d);
	deadline_end();
	log_info("stopped", "code=%d", d->exit_code);
	return d->exit_code;
}
