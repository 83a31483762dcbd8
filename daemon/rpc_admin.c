/* ping, info, drain, shutdown; see rpc_admin.h. */
#include "daemon/rpc_admin.h"

#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/jobs.h"
#include "daemon/net.h"
#include "daemon/pool.h"
#include "daemon/publish.h"
#include "daemon/queue.h"
#include "daemon/series.h"
#include "daemon/worker.h"

void rpc_ping(struct daemon *d, struct rpc_call *c)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__PingReply ping = FH__V1__PING_REPLY__INIT;

	ping.version = FH_VERSION_TEXT;
	ping.has_time_ns = 1;
	ping.time_ns = time_now_ns();
	reply.result_case = FH__V1__REPLY__RESULT_PING;
	reply.ping = &ping;
	rpc_reply(c, &reply);
}

static void fill_device(struct daemon *d, struct rpc_call *c, Fh__V1__InfoReply *info)
{
	struct device_info now;

	pool_device(d->pool, &now);
	info->backend = (char *)d->backend->name;
	info->device = rpc_strdup(c, now.name);
	info->driver = rpc_strdup(c, now.driver);
	info->device_note = rpc_strdup(c, d->device_note);
	info->has_memory_total = info->has_memory_free = info->has_threads = 1;
	info->memory_total = now.memory_total;
	info->memory_free = now.memory_free;
	info->threads = (uint32_t)now.threads;
}

static void fill_jobs(struct daemon *d, Fh__V1__InfoReply *info)
{
	size_t live, parked_bytes;
	unsigned parked;

	pool_stats(d->pool, &parked, &live, &parked_bytes);
	info->has_slots = info->has_jobs_queued = info->has_jobs_running = info->has_jobs_total = 1;
	info->slots = (uint32_t)queue_slots(d->queue);
	info->jobs_queued = (uint32_t)jobs_count_state(d->jobs, JOB_QUEUED);
	info->jobs_running = (uint32_t)jobs_count_state(d->jobs, JOB_RUNNING);
	info->jobs_total = (uint32_t)jobs_count(d->jobs);
	info->has_trainers_parked = info->has_trainer_bytes = 1;
	info->trainers_parked = parked;
	info->trainer_bytes = live + parked_bytes;
}

static void fill_data(struct daemon *d, Fh__V1__InfoReply *info)
{
	struct datasets_stats sets;
	struct series_stats series;

	datasets_stats(d->datasets, &sets);
	series_stats(d->series, &series);
	info->has_datasets = info->has_dataset_bytes = info->has_samples_dropped = 1;
	info->datasets = sets.registered;
	info->dataset_bytes = sets.resident_bytes;
	info->samples_dropped = series.dropped + workers_dropped(d->workers);
}

void rpc_info(struct daemon *d, struct rpc_call *c)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__InfoReply info = FH__V1__INFO_REPLY__INIT;

	info.version = FH_VERSION_TEXT;
	info.has_protocol = info.has_started_ns = info.has_connections = info.has_relistens = 1;
	info.protocol = FH_PROTOCOL;
	info.started_ns = d->started_ns;
	info.state = d->state == DAEMON_STOPPING ? "stopping" : d->draining ? "draining" : "running";
	info.connections = net_connections(d->net);
	info.relistens = net_relistens(d->net);
	info.state_dir = d->config.state_dir;
	info.publish_url = d->publish ? (char *)publish_url(d->publish) : NULL;
	fill_device(d, c, &info);
	fill_jobs(d, &info);
	fill_data(d, &info);
	reply.result_case = FH__V1__REPLY__RESULT_INFO;
	reply.info = &info;
	rpc_reply(c, &reply);
}

static void answer_empty(struct rpc_call *c)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__EmptyReply empty = FH__V1__EMPTY_REPLY__INIT;

	reply.result_case = FH__V1__REPLY__RESULT_EMPTY;
	reply.empty = &empty;
	rpc_reply(c, &reply);
}

void rpc_drain(struct daemon *d, struct rpc_call *c)
{
	daemon_drain(d, !c->request->drain->off);
	answer_empty(c);
}

/* The reply goes out before the sockets close: net_close_begin waits for sends that are on their way. */
void rpc_shutdown(struct daemon *d, struct rpc_call *c)
{
	int now = c->request->shutdown->now;

	answer_empty(c);
	daemon_stop(d, now, "a client asked for it");
}
