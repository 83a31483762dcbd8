/* The table of jobs: look-ups, the transition table, acceptance, and reading them back at start. See jobs.h. */
#include "daemon/jobs_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/log.h"
#include "daemon/queue.h"
#include "daemon/store.h"
#include "proto/spec.h"

/* ---------------------------------------------------------------- states */

/* Rows: state; columns: event. JOB_NONE (0) is not allowed. A job that stopped or failed can be taken up again from its
 * last checkpoint; jobs_resume checks that there is one. */
static const unsigned char table[JOB_STOPPED + 1][EVENT_COUNT] = {
	[JOB_QUEUED] = {[EVENT_START] = JOB_RUNNING, [EVENT_PAUSE] = JOB_PAUSED, [EVENT_STOP] = JOB_STOPPED,
			[EVENT_FAIL] = JOB_FAILED},
	[JOB_RUNNING] = {[EVENT_PAUSE] = JOB_PAUSED, [EVENT_STOP] = JOB_STOPPED, [EVENT_FINISH] = JOB_DONE,
			 [EVENT_FAIL] = JOB_FAILED, [EVENT_INTERRUPT] = JOB_QUEUED},
	[JOB_PAUSED] = {[EVENT_RESUME] = JOB_QUEUED, [EVENT_STOP] = JOB_STOPPED},
	[JOB_FAILED] = {[EVENT_RESUME] = JOB_QUEUED},
	[JOB_STOPPED] = {[EVENT_RESUME] = JOB_QUEUED},
};

enum job_state job_transition(enum job_state from, enum job_event event)
{
	return (enum job_state)table[from][event];
}

const char *job_state_name(enum job_state s)
{
	static const char *const name[] = {"none", "queued", "running", "paused", "done", "failed", "stopped"};

	return name[s];
}

int job_is_final(enum job_state s)
{
	return s == JOB_DONE || s == JOB_FAILED || s == JOB_STOPPED;
}

void job_set_state(struct jobs *js, struct job *j, enum job_state s)
{
	js->count[j->state]--;
	js->count[s]++;
	j->state = s;
}

void job_fail_with(struct job *j, const struct fh_status *st)
{
	if (!j->error && !(j->error = malloc(sizeof *j->error)))
		return; /* the reason still says it */
	*j->error = *st;
}

/* ---------------------------------------------------------------- look-ups */

static unsigned name_bucket(const char *name)
{
	uint32_t h = 2166136261u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 16777619u;
	return (h ^ h >> 15) & (NAME_BUCKETS - 1);
}

struct job *jobs_by_name(struct jobs *js, const char *name)
{
	struct job *j = js->by_name[name_bucket(name)];

	while (j && strcmp(j->name, name))
		j = j->name_next;
	return j;
}

/* Index of the first job with id > after. */
static size_t above(const struct jobs *js, uint64_t after)
{
	size_t lo = 0, hi = js->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (js->list[mid]->id > after)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

struct job *jobs_next(struct jobs *js, uint64_t after)
{
	size_t i = above(js, after);

	while (i < js->n && !js->list[i]->accepted)
		i++;
	return i < js->n ? js->list[i] : NULL;
}

struct job *jobs_by_id(struct jobs *js, uint64_t id)
{
	size_t i = id ? above(js, id - 1) : js->n;

	return i < js->n && js->list[i]->id == id && js->list[i]->accepted ? js->list[i] : NULL;
}

struct job *jobs_find(struct jobs *js, const char *ref)
{
	struct job *j;
	uint64_t id;

	if (fh_id_parse(ref, &id))
		return jobs_by_id(js, id);
	j = jobs_by_name(js, ref);
	return j && j->accepted ? j : NULL;
}

int jobs_lookup(struct jobs *js, const char *ref, const char *field, struct job **out, struct fh_status *st)
{
	int rc = fh_job_ref_check(field, ref, st);
	struct job *j;

	if (rc)
		return rc;
	j = jobs_find(js, ref);
	if (!j)
		return fh_fail_field(st, FH_NOT_FOUND, field, "there is no job %s", ref);
	*out = j;
	return 0;
}

size_t jobs_count(const struct jobs *js)
{
	return js->n;
}

size_t jobs_count_state(const struct jobs *js, enum job_state s)
{
	return js->count[s];
}

size_t jobs_finishing(const struct jobs *js)
{
	return (size_t)js->finishing;
}

unsigned jobs_using_dataset(struct jobs *js, const char *dataset)
{
	unsigned n = 0;

	for (size_t i = 0; i < js->n; i++)
		n += !job_is_final(js->list[i]->state) && !strcmp(js->list[i]->spec.data.dataset, dataset);
	return n;
}

int jobs_needs_checkpoint(struct jobs *js, const char *checkpoint, char by[FH_NAME_MAX])
{
	for (size_t i = 0; i < js->n; i++) {
		const struct job *j = js->list[i];
		int starts = !j->last_checkpoint[0] && j->spec.init.from == FH_INIT_CHECKPOINT;

		if (job_is_final(j->state))
			continue;
		if (strcmp(j->last_checkpoint, checkpoint) && !(starts && !strcmp(j->spec.init.checkpoint, checkpoint)))
			continue;
		snprintf(by, FH_NAME_MAX, "%s", j->name);
		return 1;
	}
	return 0;
}

void jobs_spec_differs(const struct fh_spec *there, const struct fh_spec *here, char *text, size_t size)
{
	const struct spec_key *key;
	int n, shown = 0;
	size_t at = 0;

	text[0] = 0;
	key = spec_keys(&n);
	for (int i = 0; i < n && at < size; i++) {
		char a[FH_NAME_MAX], b[FH_NAME_MAX];

		spec_get(there, &key[i], a, sizeof a);
		spec_get(here, &key[i], b, sizeof b);
		if (!strcmp(a, b))
			continue;
		if (shown++ == 3) {
			snprintf(text + at, size - at, ", …");
			return;
		}
		at += (size_t)snprintf(text + at, size - at, "%s%s is %s there and %s here", at ? ", " : "", key[i].path,
				       a, b);
	}
}

/* ---------------------------------------------------------------- members */

/* Into list and names; js owns it. */
static struct job *job_insert(struct jobs *js, struct job *j)
{
	unsigned at = name_bucket(j->name);

	if (js->n == js->capacity) {
		size_t capacity = js->capacity ? 2 * js->capacity : 256;
		struct job **list = realloc(js->list, capacity * sizeof *list);

		if (!list)
			return NULL;
		js->list = list;
		js->capacity = capacity;
	}
	assert(!js->n || js->list[js->n - 1]->id < j->id);
	js->list[js->n++] = j;
	j->name_next = js->by_name[at];
	js->by_name[at] = j;
	js->count[j->state]++;
	if (js->next_id <= j->id)
		js->next_id = j->id + 1;
	return j;
}

static void job_free(struct job *j)
{
	while (j->waiters) {
		struct job_waiter *w = j->waiters;

		j->waiters = w->next;
		free(w);
	}
	free(j->error);
	free(j->label);
	free(j);
}

/* Out of both, and freed. */
static void job_remove(struct jobs *js, struct job *j)
{
	struct job **p = &js->by_name[name_bucket(j->name)];
	size_t i = above(js, j->id - 1);

	assert(i < js->n && js->list[i] == j && !j->queued);
	while (*p != j)
		p = &(*p)->name_next;
	*p = j->name_next;
	js->n--;
	memmove(&js->list[i], &js->list[i + 1], (js->n - i) * sizeof *js->list);
	js->count[j->state]--;
	job_free(j);
}

/* "job-N", or "job-N.2", … when somebody has given that name to another job. */
static void name_by_id(struct jobs *js, struct job *j)
{
	snprintf(j->name, sizeof j->name, "job-%" PRIu64, j->id);
	for (int i = 2; jobs_by_name(js, j->name); i++)
		snprintf(j->name, sizeof j->name, "job-%" PRIu64 ".%d", j->id, i);
}

/* The first row is durable, or never will be: then the job is gone once everybody has been told. */
static void on_accepted(void *ctx, struct job *j, const struct fh_status *st)
{
	struct jobs *js = ctx;

	if (st->code)
		return;
	j->accepted = 1;
	log_info("job accepted", "job=%" PRIu64 " name=%s dataset=%s", j->id, j->name, j->spec.data.dataset);
	if (j->state == JOB_QUEUED)
		queue_add(js->daemon->queue, j);
}

void job_forget_new(struct jobs *js, struct job *j, const struct fh_status *st)
{
	log_status(LOG_ERROR, "job not accepted: the store refused it", st);
	job_remove(js, j);
}

static void after_accepted(void *ctx, struct job *j, const struct fh_status *st)
{
	struct jobs *js = ctx;

	if (st->code)
		job_forget_new(js, j, st);
	else
		queue_run(js->daemon->queue);
}

static struct job_waiter *waiter_new(job_done done, void *ctx, struct job_waiter *next)
{
	struct job_waiter *w = calloc(1, sizeof *w);

	if (!w)
		abort(); /* the loop has no way on without a few bytes */
	w->done = done;
	w->ctx = ctx;
	w->next = next;
	return w;
}

int jobs_add(struct jobs *js, const struct fh_spec *resolved, const char *name, const struct job_label *label, int labels,
	     const struct memory_plan *memory, const char *dataset_hash, const char *request_id, job_done done, void *ctx,
	     struct fh_status *st)
{
	struct job *j;
	int starts;

	if (js->n >= LIMIT_JOBS)
		return fh_fail(st, FH_EXHAUSTED, "%d jobs are known, which is the most this daemon keeps", LIMIT_JOBS);
	if (js->count[JOB_QUEUED] >= LIMIT_JOBS_QUEUED)
		return fh_fail(st, FH_EXHAUSTED, "%d jobs are queued, which is the most this daemon takes",
			       LIMIT_JOBS_QUEUED);
	j = calloc(1, sizeof *j);
	if (!j || (labels && !(j->label = malloc((size_t)labels * sizeof *label)))) {
		free(j);
		return fh_fail(st, FH_EXHAUSTED, "no memory for another job");
	}
	if (labels)
		memcpy(j->label, label, (size_t)labels * sizeof *label);
	j->labels = labels;
	j->id = js->next_id;
	j->state = JOB_QUEUED;
	j->worker = -1;
	j->spec = *resolved;
	j->planned = spec_planned_steps(resolved);
	j->memory = *memory;
	j->created_ns = time_now_ns();
	snprintf(j->dataset_hash, sizeof j->dataset_hash, "%s", dataset_hash);
	snprintf(j->reason, sizeof j->reason, "waiting for its turn");
	if (request_id)
		snprintf(j->request_id, sizeof j->request_id, "%s", request_id);
	if (name)
		snprintf(j->name, sizeof j->name, "%s", name);
	else
		name_by_id(js, j);
	if (!job_insert(js, j)) {
		job_free(j);
		return fh_fail(st, FH_EXHAUSTED, "no memory for another job");
	}
	/* In this order: accepted and queued, then the client is told, then the queue runs (or the job goes). Those who
	 * attach meanwhile are in j->waiters, between the last two. With free slots and nobody in front the job starts with
	 * the row that makes it durable: one sync less on its way to the first step. */
	starts = queue_pass(js->daemon->queue, j);
	j->waiters = waiter_new(done, ctx, starts ? jobs_start_new(js, j) : waiter_new(after_accepted, js, NULL));
	job_write_new(js, j, request_id, starts, waiter_new(on_accepted, js, NULL));
	return 0;
}

void jobs_when_accepted(struct jobs *js, struct job *j, job_done done, void *ctx)
{
	static const struct fh_status fine = FH_STATUS_INIT;

	if (j->accepted) {
		done(ctx, j, &fine);
		return;
	}
	/* Behind the first waiter, the one who started it; after_accepted stays last. */
	j->waiters->next = waiter_new(done, ctx, j->waiters->next);
}

/* ---------------------------------------------------------------- life of the table */

int jobs_new(struct daemon *d, struct jobs **out, struct fh_status *st)
{
	struct jobs *js = calloc(1, sizeof *js);

	if (!js)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the job table");
	js->daemon = d;
	js->next_id = 1;
	uv_timer_init(&d->loop, &js->retry);
	js->retry.data = js;
	*out = js;
	return 0;
}

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

void jobs_free(struct jobs *js)
{
	if (!js)
		return;
	for (size_t i = 0; i < js->n; i++)
		job_free(js->list[i]);
	free(js->list);
	js->list = NULL;
	uv_close((uv_handle_t *)&js->retry, on_closed);
}

/* The newest checkpoint that is there: a crash may have come between its row and the job's. */
static void find_checkpoint(struct jobs *js, struct job *j)
{
	const struct checkpoint *c = checkpoints_latest(js->daemon->checkpoints, j->id);

	if (c && !c->missing) {
		snprintf(j->last_checkpoint, sizeof j->last_checkpoint, "%s", c->id);
		if (!job_is_final(j->state))
			j->step = (int64_t)c->step;
		return;
	}
	if (j->last_checkpoint[0] && !job_is_final(j->state))
		snprintf(j->resume_note, sizeof j->resume_note, "checkpoint %s is gone: it begins again at step 0",
			 j->last_checkpoint);
	j->last_checkpoint[0] = 0;
	if (!job_is_final(j->state))
		j->step = j->epoch = j->vector_step = 0;
}

static int load_row(void *arg, const struct store_job *row)
{
	struct jobs *js = arg;
	struct daemon *d = js->daemon;
	const struct dataset *set;
	struct fh_status st = FH_STATUS_INIT;
	struct job *j;
	int rc = job_from_row(row, &j, &st);

	if (rc) {
		log_status(LOG_ERROR, "a stored job cannot be read", &st);
		return rc;
	}
	j->accepted = 1;
	j->shown = j->state;
	set = datasets_find(d->datasets, j->spec.data.dataset);
	if (set && !job_is_final(j->state) &&
	    trainer_plan(d->backend, &j->spec, dataset_bars(set), &j->memory, &st))
		log_status(LOG_WARN, "a stored job does not fit this device", &st);
	find_checkpoint(js, j);
	if (!job_insert(js, j)) {
		job_free(j);
		return FH_EXHAUSTED;
	}
	return 0;
}

int jobs_load(struct jobs *js, struct fh_status *st)
{
	int rc = store_load_jobs(js->daemon->store, load_row, js, st);

	if (rc && st && !st->code)
		fh_fail(st, rc, "the stored jobs cannot be read");
	return rc;
}

/* What was running when the process died. */
static void recover(struct jobs *js, struct job *j)
{
	struct fh_status st = FH_STATUS_INIT;
	int resumes = j->spec.run.on_interrupt == FH_INTERRUPT_RESUME;

	j->interruptions++;
	if (resumes && j->interruptions <= LIMIT_INTERRUPTIONS) {
		job_change(js, j, EVENT_INTERRUPT, NULL, "interrupted: the daemon died under it (%u of at most %d times); goes on from step %" PRId64,
			   j->interruptions, LIMIT_INTERRUPTIONS, j->step);
		queue_add(js->daemon->queue, j);
		return;
	}
	if (resumes)
		fh_fail(&st, FH_INTERRUPTED, "the daemon died under it %u times, at most %d are forgiven", j->interruptions,
			LIMIT_INTERRUPTIONS);
	else
		fh_fail(&st, FH_INTERRUPTED, "the daemon died under it and run.on_interrupt is fail");
	job_fail_with(j, &st);
	j->ended_ns = time_now_ns();
	job_change(js, j, EVENT_FAIL, NULL, "%s", st.text);
}

void jobs_recover(struct jobs *js)
{
	for (size_t i = 0; i < js->n; i++) {
		struct job *j = js->list[i];

		if (j->state == JOB_RUNNING)
			recover(js, j);
		else if (j->state == JOB_QUEUED)
			queue_add(js->daemon->queue, j);
	}
	log_info("jobs read", "known=%zu queued=%zu", js->n, js->count[JOB_QUEUED]);
}
