/* What /metrics, /healthz and /readyz say of the daemon. Loop thread; every number is one that the loop has at hand.
 *
 * Series per job exist for running jobs only, so their number is bounded by the slots. */
#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/http.h"
#include "daemon/jobs.h"
#include "daemon/net.h"
#include "daemon/pool.h"
#include "daemon/publish.h"
#include "daemon/rpc.h"
#include "daemon/series.h"
#include "daemon/store.h"
#include "daemon/worker.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct page { char *text; size_t used, size; };

static void put(struct page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct page *p, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(p->text + p->used, p->size - p->used, fmt, ap);
	va_end(ap);
	if (n > 0 && (size_t)n < p->size - p->used)
		p->used += (size_t)n; /* a line that does not fit is left out whole */
	else
		p->text[p->used] = 0;
}

static void head(struct page *p, const char *name, const char *type, const char *help)
{
	put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct page *p, const char *name, const char *help, double value)
{
	head(p, name, "gauge", help);
	put(p, "%s %.17g\n", name, value);
}

static void counter(struct page *p, const char *name, const char *help, uint64_t value)
{
	head(p, name, "counter", help);
	put(p, "%s %llu\n", name, (unsigned long long)value);
}

static void put_jobs(struct page *p, struct daemon *d)
{
	head(p, "fhd_jobs", "gauge", "Jobs by state.");
	for (int s = JOB_QUEUED; s <= JOB_STOPPED; s++)
		put(p, "fhd_jobs{state=\"%s\"} %zu\n", job_state_name((enum job_state)s), jobs_count_state(d->jobs, (enum job_state)s));
}

struct running { const struct job *job; Fh__V1__Sample *report; };

/* A family of numbers stands together, job after job. */
static void put_running(struct page *p, const struct running *r, int n)
{
	head(p, "fhd_job_steps", "gauge", "Learn steps that a running job has done.");
	for (int i = 0; i < n; i++)
		put(p, "fhd_job_steps{job=\"%llu\"} %lld\n", (unsigned long long)r[i].job->id, (long long)r[i].job->step);
	head(p, "fhd_job_planned_steps", "gauge", "Learn steps that it will do.");
	for (int i = 0; i < n; i++)
		put(p, "fhd_job_planned_steps{job=\"%llu\"} %lld\n", (unsigned long long)r[i].job->id, (long long)r[i].job->planned);
	head(p, "fhd_job_steps_per_second", "gauge", "Learn steps a second, moving average.");
	for (int i = 0; i < n; i++)
		put(p, "fhd_job_steps_per_second{job=\"%llu\"} %.6g\n", (unsigned long long)r[i].job->id, r[i].job->steps_per_second);
	head(p, "fhd_job_report_age_seconds", "gauge", "Time since its last report.");
	for (int i = 0; i < n; i++)
		if (r[i].report)
			put(p, "fhd_job_report_age_seconds{job=\"%llu\"} %.3f\n", (unsigned long long)r[i].job->id,
			    1e-9 * (double)(int64_t)(time_now_ns() - r[i].report->time_ns));
	head(p, "fhd_job_metric", "gauge", "Values of its last report, under their names in the series.");
	for (int i = 0; i < n; i++)
		for (size_t k = 0; r[i].report && k < r[i].report->n_value; k++)
			if (isfinite(r[i].report->value[k]->value))
				put(p, "fhd_job_metric{job=\"%llu\",metric=\"%s\"} %.9g\n", (unsigned long long)r[i].job->id,
				    r[i].report->value[k]->name, r[i].report->value[k]->value);
}

static void put_running_jobs(struct page *p, struct daemon *d)
{
	struct running r[LIMIT_SLOTS];
	int n = 0;

	for (struct job *j = jobs_next(d->jobs, 0); j && n < LIMIT_SLOTS; j = jobs_next(d->jobs, j->id))
		if (j->state == JOB_RUNNING) {
			jobs_refresh(d->jobs, j);
			r[n++] = (struct running){j, series_newest(d->series, j->id, 0)};
		}
	put_running(p, r, n);
	for (int i = 0; i < n; i++)
		if (r[i].report)
			fh__v1__sample__free_unpacked(r[i].report, NULL);
}

static void put_store(struct page *p, struct daemon *d)
{
	struct series_stats series;
	struct publish_stats published;
	struct store_stats store;

	store_stats(d->store, &store);
	series_stats(d->series, &series);
	publish_stats(d->publish, &published);
	counter(p, "fhd_store_transactions_total", "Transactions answered.", store.transactions);
	counter(p, "fhd_store_syncs_total", "Groups of transactions written.", store.groups);
	counter(p, "fhd_store_failed_total", "Transactions refused or rolled back.", store.failed);
	gauge(p, "fhd_store_pending", "Transactions handed over and not answered.", (double)store.pending);
	counter(p, "fhd_samples_total", "Samples numbered since the start.", series.appended);
	counter(p, "fhd_samples_dropped_total", "Reports dropped because too many waited for the disk.", series.dropped);
	counter(p, "fhd_samples_undurable_total", "Samples shown though the disk refused them.", series.undurable);
	gauge(p, "fhd_series_bytes", "Samples in memory.", (double)series.bytes);
	gauge(p, "fhd_polls_waiting", "Metrics calls held for the next sample.", (double)series.waiters);
	counter(p, "fhd_published_total", "Messages handed to the PUB socket.", published.sent);
	counter(p, "fhd_publish_failed_total", "Messages that it refused.", published.failed);
}

static void put_data(struct page *p, struct daemon *d)
{
	struct datasets_stats sets;

	datasets_stats(d->datasets, &sets);
	gauge(p, "fhd_datasets", "Registered data sets.", sets.registered);
	gauge(p, "fhd_datasets_broken", "Of them with a lost or damaged file.", sets.broken);
	gauge(p, "fhd_dataset_resident_bytes", "Markets in host memory.", (double)sets.resident_bytes);
	gauge(p, "fhd_uploads_open", "Uploads that are coming in.", sets.uploads);
	gauge(p, "fhd_checkpoints", "Registered checkpoints.", (double)checkpoints_list(d->checkpoints, 0, NULL, 0));
}

static void put_process(struct page *p, struct daemon *d)
{
	unsigned long pages = 0;
	struct pool_stats pool;
	struct device_memory memory;
	FILE *f = fopen("/proc/self/statm", "r");

	if (f) {
		if (fscanf(f, "%*u %lu", &pages) != 1)
			pages = 0;
		fclose(f);
	}
	pool_stats(d->pool, &pool);
	pool_device(d->pool, &memory);
	gauge(p, "fhd_trainers_parked", "Trainers kept for the next job of their layout.", pool.parked);
	gauge(p, "fhd_trainer_bytes", "Memory of live and parked trainers.", (double)(pool.live_bytes + pool.parked_bytes));
	counter(p, "fhd_trainers_made_total", "Trainers made.", pool.made);
	counter(p, "fhd_trainers_reused_total", "Jobs that found a parked trainer of their layout.", pool.reused);
	gauge(p, "fhd_device_memory_free_bytes", "Free memory of the device when it was last asked.", (double)memory.free);
	gauge(p, "fhd_connections", "Open connections.", net_connections(d->net));
	gauge(p, "fhd_calls_open", "Calls not answered yet.", rpc_open_calls(d->rpc));
	counter(p, "fhd_relistens_total", "Listeners that died and were brought back.", net_relistens(d->net));
	counter(p, "fhd_worker_samples_dropped_total", "Readbacks that a full ring dropped.", workers_dropped(d->workers));
	gauge(p, "process_resident_memory_bytes", "Resident memory.", (double)pages * (double)sysconf(_SC_PAGESIZE));
	gauge(p, "process_start_time_seconds", "Start of the process, since 1970.", 1e-9 * (double)d->started_ns);
}

static size_t metrics(void *arg, char *text, size_t size)
{
	struct daemon *d = arg;
	struct page p = {text, 0, size};

	text[0] = 0;
	head(&p, "fhd_build_info", "gauge", "Version and backend.");
	put(&p, "fhd_build_info{version=\"%s\",backend=\"%s\"} 1\n", FH_VERSION_TEXT, d->backend->name);
	gauge(&p, "fhd_draining", "1 while no job starts.", d->draining);
	put_jobs(&p, d);
	put_running_jobs(&p, d);
	put_store(&p, d);
	put_data(&p, d);
	put_process(&p, d);
	return p.used;
}

static int healthy(void *arg, char *why, size_t size)
{
	struct daemon *d = arg;
	int which = 0;

	if (workers_alive(d->workers, &which))
		return 1;
	snprintf(why, size, "worker %d has not moved", which);
	return 0;
}

static int ready(void *arg, char *why, size_t size)
{
	struct daemon *d = arg;

	if (d->state != DAEMON_RUNNING || d->draining) {
		snprintf(why, size, "%s", d->draining ? "draining" : "stopping");
		return 0;
	}
	return healthy(arg, why, size);
}

int http_open(struct daemon *d, const char *address, int anywhere, struct http **out, struct fh_status *st)
{
	struct http_source source = {metrics, healthy, ready, d};

	return http_listen(&d->loop, address, anywhere, &source, out, st);
}
