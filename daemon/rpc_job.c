/* Calls about jobs; see rpc_job.h. Everything that can be wrong with a job is found in start(), before it is accepted. */
#include "daemon/rpc_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/checkpoints.h"
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/pool.h"
#include "daemon/queue.h"
#include "proto/spec.h"

void rpc_answer_job(struct daemon *d, struct rpc_call *c, const struct job *j, int attached)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__JobReply job = FH__V1__JOB_REPLY__INIT;
	Fh__V1__Job wire;

	jobs_to_wire(d->jobs, j, 1, c, &wire);
	wire.has_attached = attached;
	wire.attached = attached;
	job.job = &wire;
	reply.result_case = FH__V1__REPLY__RESULT_JOB;
	reply.job = &job;
	rpc_reply(c, &reply);
}

/* job_done of every command: the call is its context. */
static void answer_done(void *ctx, struct job *j, const struct fh_status *st)
{
	struct rpc_call *c = ctx;

	if (st->code)
		rpc_fail(c, st);
	else
		rpc_answer_job(rpc_daemon(c), c, j, 0);
}

static void answer_attached(void *ctx, struct job *j, const struct fh_status *st)
{
	struct rpc_call *c = ctx;

	if (st->code)
		rpc_fail(c, st);
	else
		rpc_answer_job(rpc_daemon(c), c, j, 1);
}

/* ---------------------------------------------------------------- start */

static const char *device_word(int device)
{
	return device == FH_DEVICE_CUDA ? "cuda" : device == FH_DEVICE_HOST ? "host" : "auto";
}

/* Puts this daemon's device and defaults where the specification says auto. */
static int resolve(struct daemon *d, struct fh_spec *spec, struct fh_status *st)
{
	if (spec->run.device != FH_DEVICE_AUTO && spec->run.device != (int)d->backend->kind)
		return fh_fail_field(st, FH_INVALID, "run.device", "%s: this daemon runs on %s%s%s",
				     device_word(spec->run.device), d->backend->name, d->device_note[0] ? ", " : "",
				     d->device_note);
	spec_resolve(spec, d->backend->kind);
	return spec_check(spec, st);
}

/* The networks of a checkpoint's job and of this one must have the same shape. */
static int check_same_net(const struct fh_spec *from, const struct fh_spec *spec, struct fh_status *st)
{
	const struct spec_key *key;
	int n;

	key = spec_keys(&n);
	for (int i = 0; i < n; i++) {
		char a[FH_NAME_MAX], b[FH_NAME_MAX];

		if (!(key[i].flags & SPEC_SHAPE) || (strncmp(key[i].path, "net.", 4) && strcmp(key[i].path, "model")))
			continue;
		spec_get(from, &key[i], a, sizeof a);
		spec_get(spec, &key[i], b, sizeof b);
		if (strcmp(a, b))
			return fh_fail_field(st, FH_CONFLICT, "init.checkpoint", "checkpoint %s has %s = %s, this job %s",
					     spec->init.checkpoint, key[i].path, a, b);
	}
	return 0;
}

static int check_init(struct daemon *d, const struct fh_spec *spec, struct fh_status *st)
{
	const struct checkpoint *cp;
	struct job *from;

	if (spec->init.from != FH_INIT_CHECKPOINT)
		return 0;
	cp = checkpoints_find(d->checkpoints, spec->init.checkpoint);
	if (!cp || cp->missing)
		return fh_fail_field(st, FH_NOT_FOUND, "init.checkpoint", "there is no checkpoint %s",
				     spec->init.checkpoint);
	from = jobs_by_id(d->jobs, cp->job);
	return from ? check_same_net(&from->spec, spec, st) : 0;
}

static int check_device(struct daemon *d, const struct fh_spec *spec, int64_t bars, struct memory_plan *memory,
			struct fh_status *st)
{
	int rc;

	if (spec->run.slots > queue_slots(d->queue))
		return fh_fail_field(st, FH_INVALID, "run.slots", "%" PRId64 " slots wanted, this daemon has %d",
				     spec->run.slots, queue_slots(d->queue));
	rc = trainer_plan(d->backend, spec, bars, memory, st);
	return rc ? rc : pool_admits(d->pool, memory, st);
}

/* The same name again: the same specification attaches, another one is a conflict. 1: answered or waiting. */
static int attach(struct daemon *d, struct rpc_call *c, const struct fh_spec *spec, const char *name,
		  struct fh_status *st)
{
	struct job *j = name ? jobs_by_name(d->jobs, name) : NULL;
	char differs[300];

	if (!j)
		return 0;
	jobs_spec_differs(&j->spec, spec, differs, sizeof differs);
	if (differs[0])
		return fh_fail_field(st, FH_CONFLICT, "name", "job %s is there already with another specification: %s",
				     name, differs);
	jobs_when_accepted(d->jobs, j, answer_attached, c);
	return 1;
}

static int copy_labels(const Fh__V1__StartJobRequest *q, struct job_label *label, struct fh_status *st)
{
	int rc = fh_labels_check(q->label, q->n_label, st);

	for (size_t i = 0; !rc && i < q->n_label; i++) {
		snprintf(label[i].key, sizeof label[i].key, "%s", q->label[i]->key);
		snprintf(label[i].value, sizeof label[i].value, "%s", q->label[i]->value ? q->label[i]->value : "");
	}
	return rc;
}

static int start(struct daemon *d, struct rpc_call *c, struct fh_status *st)
{
	const Fh__V1__StartJobRequest *q = c->request->start_job;
	const char *name = q->name && q->name[0] ? q->name : NULL;
	struct job_label label[FH_LABELS_MAX];
	const struct dataset *set;
	struct memory_plan memory;
	struct fh_spec spec;
	int rc;

	if ((name && (rc = fh_job_name_check("name", name, st))) || (rc = copy_labels(q, label, st)) ||
	    (rc = fh_spec_from_message(q->spec, &spec, st)) || (rc = resolve(d, &spec, st)))
		return rc;
	rc = attach(d, c, &spec, name, st);
	if (rc)
		return rc < 0 ? rc : 0;
	if (d->draining)
		return fh_fail(st, FH_UNAVAILABLE, "the daemon is draining: it takes no new jobs (fhctl drain --off ends that)");
	if ((rc = datasets_need(d->datasets, spec.data.dataset, &set, st)) || (rc = check_init(d, &spec, st)) ||
	    (rc = check_device(d, &spec, dataset_bars(set), &memory, st)))
		return rc;
	return jobs_add(d->jobs, &spec, name, label, (int)q->n_label, &memory, dataset_hash(set), c->request_id,
			answer_done, c, st);
}

void rpc_start_job(struct daemon *d, struct rpc_call *c)
{
	struct fh_status st = FH_STATUS_INIT;

	if (start(d, c, &st) < 0)
		rpc_fail(c, &st);
}

/* ---------------------------------------------------------------- commands */

void rpc_stop_job(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__StopJobRequest *q = c->request->stop_job;
	struct fh_status st = FH_STATUS_INIT;
	struct job *j;

	if (jobs_lookup(d->jobs, q->job, "job", &j, &st) || jobs_stop(d->jobs, j, q->discard, answer_done, c, &st))
		rpc_fail(c, &st);
}

void rpc_pause_job(struct daemon *d, struct rpc_call *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct job *j;

	if (jobs_lookup(d->jobs, c->request->pause_job->job, "job", &j, &st) ||
	    jobs_pause(d->jobs, j, answer_done, c, &st))
		rpc_fail(c, &st);
}

void rpc_resume_job(struct daemon *d, struct rpc_call *c)
{
	struct fh_status st = FH_STATUS_INIT;
	const struct dataset *set;
	struct job *j;

	if (jobs_lookup(d->jobs, c->request->resume_job->job, "job", &j, &st) ||
	    (job_transition(j->state, EVENT_RESUME) && datasets_need(d->datasets, j->spec.data.dataset, &set, &st)) ||
	    jobs_resume(d->jobs, j, answer_done, c, &st))
		rpc_fail(c, &st);
}

void rpc_show_job(struct daemon *d, struct rpc_call *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct job *j;

	if (jobs_lookup(d->jobs, c->request->show_job->job, "job", &j, &st)) {
		rpc_fail(c, &st);
		return;
	}
	jobs_refresh(d->jobs, j);
	rpc_answer_job(d, c, j, 0);
}

/* ---------------------------------------------------------------- list */

static int state_wanted(const Fh__V1__ListJobsRequest *q, const struct job *j)
{
	for (size_t i = 0; i < q->n_state; i++)
		if ((int)q->state[i] == (int)j->shown)
			return 1;
	return q->n_state == 0;
}

static int label_wanted(const Fh__V1__Label *want, const struct job *j)
{
	if (!want)
		return 1;
	for (int i = 0; i < j->labels; i++)
		if (!strcmp(j->label[i].key, want->key) &&
		    (!want->value || !want->value[0] || !strcmp(j->label[i].value, want->value)))
			return 1;
	return 0;
}

static int check_list(const Fh__V1__ListJobsRequest *q, struct fh_status *st)
{
	if (q->has_limit && (q->limit < 1 || q->limit > LIMIT_LIST))
		return fh_fail_field(st, FH_INVALID, "limit", "%u is not in 1 to %d", q->limit, LIMIT_LIST);
	for (size_t i = 0; i < q->n_state; i++)
		if (q->state[i] == FH__V1__JOB_STATE__JOB_STATE_UNSPECIFIED)
			return fh_fail_field(st, FH_INVALID, "state", "0 is no state of a job");
	return q->label ? fh_name_check("label.key", q->label->key, st) : 0;
}

void rpc_list_jobs(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__ListJobsRequest *q = c->request->list_jobs;
	size_t limit = q->has_limit ? q->limit : LIMIT_LIST_DEFAULT;
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__ListJobsReply list = FH__V1__LIST_JOBS_REPLY__INIT;

	if (check_list(q, &st)) {
		rpc_fail(c, &st);
		return;
	}
	list.job = rpc_alloc(c, limit * sizeof *list.job);
	for (struct job *j = jobs_next(d->jobs, q->after); j; j = jobs_next(d->jobs, j->id)) {
		if (!state_wanted(q, j) || !label_wanted(q->label, j))
			continue;
		if (list.n_job == limit) {
			list.has_more = list.more = 1;
			break;
		}
		list.job[list.n_job] = rpc_alloc(c, sizeof **list.job);
		jobs_to_wire(d->jobs, j, 0, c, list.job[list.n_job++]);
	}
	reply.result_case = FH__V1__REPLY__RESULT_JOBS;
	reply.jobs = &list;
	rpc_reply(c, &reply);
}
