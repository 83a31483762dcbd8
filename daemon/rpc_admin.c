/* ping, info, drain, shutdown; see rpc_admin.h. */
#include "daemon/rpc_admin.h"

#include <stdio.h>

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

static void put_owner(Fh__V1__InfoReply *info, struct rpc_call *c, const char *owner, size_t bytes)
{
	Fh__V1__MemoryOwner *o = rpc_alloc(c, sizeof *o);

	fh__v1__memory_owner__init(o);
	o->owner = (char *)owner;
	o->has_bytes = 1;
	o->bytes = bytes;
	info->memory[info->n_memory++] = o;
}

/* The host's driver does not know arenas and markets: there they are what the daemon counts, and part of what is in use. */
static void fill_owners(struct daemon *d, struct rpc_call *c, const struct device_memory *m, Fh__V1__InfoReply *info)
{
	size_t arenas = m->arenas, markets = m->markets, others = m->others;

	if (d->backend->kind == FH_DEVICE_HOST) {
		struct datasets_stats sets;

		datasets_stats(d->datasets, &sets);
		markets = sets.resident_bytes;
		for (size_t i = 0; i < info->n_trainer; i++)
			arenas += info->trainer[i]->device_bytes;
		others = others > arenas + markets ? others - arenas - markets : 0;
	}
	info->memory = rpc_alloc(c, 6 * sizeof *info->memory);
	put_owner(info, c, "context", m->context);
	put_owner(info, c, "trainers", arenas);
	put_owner(info, c, "markets", markets);
	put_owner(info, c, "graphs", m->graphs);
	put_owner(info, c, "others", others);
	put_owner(info, c, "free", m->free);
}

static void fill_trainers(struct daemon *d, struct rpc_call *c, Fh__V1__InfoReply *info)
{
	struct pool_trainer list[LIMIT_TRAINERS];
	int n = pool_list(d->pool, list);

	info->has_graphs = 1;
	info->trainer = rpc_alloc(c, (size_t)n * sizeof *info->trainer + 1);
	for (int i = 0; i < n; i++) {
		Fh__V1__TrainerUse *t = rpc_alloc(c, sizeof *t);

		fh__v1__trainer_use__init(t);
		t->has_job = t->has_parked = t->has_device_bytes = t->has_graph_bytes = t->has_graphs = t->has_pinned_bytes = 1;
		t->job = list[i].job;
		t->parked = list[i].parked;
		t->planned = memory_to_wire(&list[i].planned, c);
		t->device_bytes = list[i].used.arena;
		t->graph_bytes = list[i].used.graph_bytes;
		t->graphs = (uint32_t)list[i].used.graphs;
		t->pinned_bytes = list[i].used.pinned;
		info->graphs += t->graphs;
		info->trainer[info->n_trainer++] = t;
	}
}

static void fill_device(struct daemon *d, struct rpc_call *c, Fh__V1__InfoReply *info)
{
	const struct device_info *now = &d->device;
	struct device_memory memory;
	uint64_t seen = pool_device(d->pool, &memory);
	char capability[32];

	info->backend = (char *)d->backend->name;
	info->device = rpc_strdup(c, now->name);
	info->driver = rpc_strdup(c, now->driver);
	info->device_note = rpc_strdup(c, d->device_note);
	info->has_memory_total = info->has_memory_free = info->has_threads = info->has_pinned_bytes = 1;
	info->memory_total = now->memory_total;
	info->memory_free = memory.free;
	info->pinned_bytes = memory.pinned;
	info->threads = (uint32_t)now->threads;
	info->has_memory_age_ms = seen != 0;
	info->memory_age_ms = seen ? (time_mono_ns() - seen) / 1000000 : 0;
	if (now->compute_major) {
		snprintf(capability, sizeof capability, "%d.%d", now->compute_major, now->compute_minor);
		info->compute_capability = rpc_strdup(c, capability);
	}
	fill_trainers(d, c, info);
	fill_owners(d, c, &memory, info);
}

static void fill_jobs(struct daemon *d, Fh__V1__InfoReply *info)
{
	struct pool_stats pool;
	size_t finishing = jobs_finishing(d->jobs);

	pool_stats(d->pool, &pool);
	info->has_slots = info->has_jobs_queued = info->has_jobs_running = info->has_jobs_total = info->has_jobs_finishing = 1;
	info->slots = (uint32_t)queue_slots(d->queue);
	info->jobs_queued = (uint32_t)jobs_count_state(d->jobs, JOB_QUEUED);
	info->jobs_running = (uint32_t)(jobs_count_state(d->jobs, JOB_RUNNING) - finishing);
	info->jobs_finishing = (uint32_t)finishing;
	info->jobs_total = (uint32_t)jobs_count(d->jobs);
	info->has_trainers_parked = info->has_trainer_bytes = 1;
	info->trainers_parked = pool.parked;
	info->trainer_bytes = pool.live_bytes + pool.parked_bytes;
	info->has_trainers_made = info->has_trainers_reused = info->has_trainers_evicted = 1;
	info->trainers_made = pool.made;
	info->trainers_reused = pool.reused;
	info->trainers_evicted = pool.evicted;
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

void rpc_drain(struct daemon *d, struct rpc_call *c)
{
	daemon_drain(d, !c->request->drain->off);
	rpc_reply_empty(c);
}

/* The reply goes out before the sockets close: net_close_begin waits for sends that are on their way. */
void rpc_shutdown(struct daemon *d, struct rpc_call *c)
{
	int now = c->request->shutdown->now;

	rpc_reply_empty(c);
	daemon_stop(d, now, "a client asked for it");
}
