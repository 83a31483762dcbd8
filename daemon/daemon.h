/* What the daemon is made of. One struct daemon per process, in static storage, owned by main; every member belongs to
 * the loop thread unless its header says otherwise. daemon.c makes the members in the order in which they stand here
 * and takes them down in the opposite order; nothing else creates or frees a module. */
#ifndef FHD_DAEMON_H
#define FHD_DAEMON_H

#include <stdint.h>
#include <uv.h>
#include "daemon/clock.h"
#include "daemon/config.h"
#include "gpu/backend.h"
#include "proto/status.h"

enum daemon_state { DAEMON_STARTING, DAEMON_RUNNING, DAEMON_STOPPING };

struct daemon {
	uv_loop_t loop;
	struct config config;
	enum daemon_state state;
	int draining;                    /* no job starts; running ones go on */
	uint64_t started_ns;             /* CLOCK_REALTIME */
	const struct backend *backend;
	struct device_info device;
	char device_note[FH_TEXT_MAX];   /* why cuda was not taken, "" */

	struct store *store;             /* store.h       SQLite, written in the libuv pool */
	struct datasets *datasets;       /* dataset.h     registry and resident markets */
	struct publish *publish;         /* publish.h     PUB socket, NULL without a publish URL */
	struct series *series;           /* series.h      samples per job, waiting MetricsRequests */
	struct checkpoints *checkpoints; /* checkpoints.h files, rows, retention */
	struct jobs *jobs;               /* jobs.h        all jobs, the transition table */
	struct operations *operations;   /* operations.h  what takes longer than a call */
	struct evaluator *evaluator;     /* evaluator.h   evaluations and decisions, on a thread of their own */
	struct pool *pool;               /* pool.h        parked trainers; shared by workers, has its own lock */
	struct workers *workers;         /* worker.h      one thread per slot */
	struct queue *queue;             /* queue.h       order and slots */
	struct rpc *rpc;                 /* rpc.h         dispatch, answers kept for repeated request ids */
	struct net *net;                 /* net.h         NNG sockets; NNG's threads push into its inbox */
	struct http *http;               /* http.h        /metrics, /healthz, NULL without an address */
	struct notify *notify;           /* notify.h      systemd */
	int exit_code;
};

/* Makes everything up to listening sockets; on failure everything made so far is gone again. */
int daemon_start(struct daemon *d, const struct config *c, struct fh_status *st);
/* Runs the loop until a stop has finished; returns the exit code of the process. */
int daemon_run(struct daemon *d);
/* Begins to stop: no new jobs, running ones are checkpointed and requeued (now: requeued from their last checkpoint
 * without a new one). Returns at once; a hard deadline (config.stop_timeout) ends the process if the rest hangs. */
void daemon_stop(struct daemon *d, int now, const char *why);
/* on: no job starts from now on; off: the queue goes on. */
void daemon_drain(struct daemon *d, int on);
/* Store and queue are safe, the device is gone: ends the loop with exit code 70 so that the service manager restarts
 * the process. */
void daemon_device_lost(struct daemon *d);

#define DAEMON_EXIT_DEVICE_LOST 70
#define DAEMON_EXIT_HARD_DEADLINE 71

#endif
