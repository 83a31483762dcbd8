/* fhctl stop, pause, resume, list, show and wait. One thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_ref.h"
#include "client/output.h"
#include "client/show.h"
#include "client/table.h"
#include "client/watch.h"
#include "proto/spec.h"

#define PAGE 500
#define LIMIT_MAX 1000000

/* ---- stop, pause, resume: one call each, the job as it is then */

static int change(struct ctx *c, Fh__V1__Request *req)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	int rc = fh_job_ref_check("JOB", c->argv[0], &st);

	if (rc == 0)
		rc = ctx_call(c, req, 0, &a, &st);
	if (rc)
		return ctx_fail(c, &st);
	if (!output_message(c, &a.reply->job->base))
		job_print_line(a.reply->job->job);
	fh_answer_release(&a);
	return EXIT_DONE;
}

static int run_stop(struct ctx *c)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__StopJobRequest stop = FH__V1__STOP_JOB_REQUEST__INIT;

	stop.job = c->argv[0];
	stop.has_discard = 1;
	stop.discard = opt_flag(c, "discard");
	req.call_case = FH__V1__REQUEST__CALL_STOP_JOB;
	req.stop_job = &stop;
	return change(c, &req);
}

static int run_pause(struct ctx *c)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__PauseJobRequest pause = FH__V1__PAUSE_JOB_REQUEST__INIT;

	pause.job = c->argv[0];
	req.call_case = FH__V1__REQUEST__CALL_PAUSE_JOB;
	req.pause_job = &pause;
	return change(c, &req);
}

static int run_resume(struct ctx *c)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ResumeJobRequest resume = FH__V1__RESUME_JOB_REQUEST__INIT;

	resume.job = c->argv[0];
	req.call_case = FH__V1__REQUEST__CALL_RESUME_JOB;
	req.resume_job = &resume;
	return change(c, &req);
}

/* ---- list */

static const struct { const char *word; Fh__V1__JobState state; } states[] = {
	{"queued", FH__V1__JOB_STATE__QUEUED}, {"running", FH__V1__JOB_STATE__RUNNING}, {"paused", FH__V1__JOB_STATE__PAUSED},
	{"done", FH__V1__JOB_STATE__DONE}, {"failed", FH__V1__JOB_STATE__FAILED}, {"stopped", FH__V1__JOB_STATE__STOPPED},
};
#define STATES (sizeof states / sizeof states[0])

struct filter {
	Fh__V1__JobState state[STATES];
	size_t n_state;
	Fh__V1__Label label;
	char key[FH_NAME_MAX];
	int has_label;
	int64_t after, limit;
};

static int take_state(struct filter *f, const char *word, size_t len, struct fh_status *st)
{
	for (size_t i = 0; i < STATES; i++) {
		if (strlen(states[i].word) != len || strncasecmp(states[i].word, word, len) != 0)
			continue;
		for (size_t k = 0; k < f->n_state; k++)
			if (f->state[k] == states[i].state)
				return 0;
		f->state[f->n_state++] = states[i].state;
		return 0;
	}
	return fh_fail(st, FH_INVALID, "--state %.*s: queued, running, paused, done, failed or stopped", (int)(len < 40 ? len : 40),
		       word);
}

static int take_filter(const struct ctx *c, struct filter *f, struct fh_status *st)
{
	const char *v, *eq;
	int rc = opt_int(c, "after", 0, INT64_MAX, &f->after, st);

	if (rc == 0)
		rc = opt_int(c, "limit", 1, LIMIT_MAX, &f->limit, st);
	for (int i = 0; rc == 0 && (v = opt_nth(c, "state", i)); i++)
		for (size_t n; rc == 0 && *v; v += n + (v[n] == ',')) {
			n = strcspn(v, ",");
			rc = take_state(f, v, n, st);
		}
	v = opt_text(c, "label");
	if (rc || !v)
		return rc;
	eq = strchr(v, '=');
	if (!eq || eq == v || (size_t)(eq - v) >= sizeof f->key)
		return fh_fail(st, FH_INVALID, "--label %.60s: KEY=VALUE is needed", v);
	snprintf(f->key, sizeof f->key, "%.*s", (int)(eq - v), v);
	fh__v1__label__init(&f->label);
	f->label.key = f->key;
	f->label.value = (char *)eq + 1;
	f->has_label = 1;
	return 0;
}

/* Pages of jobs; the answers stay, as the list points into them. */
struct pages {
	struct fh_answer *page;
	int n;
	Fh__V1__ListJobsReply all;
};

static int add_page(struct pages *p, const struct fh_answer *a, struct fh_status *st)
{
	const Fh__V1__ListJobsReply *r = a->reply->jobs;
	struct fh_answer *page = realloc(p->page, (size_t)(p->n + 1) * sizeof *page);
	Fh__V1__Job **job;

	if (page)
		p->page = page;
	job = page ? realloc(p->all.job, (p->all.n_job + r->n_job + 1) * sizeof *job) : NULL;
	if (!job)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %zu jobs", p->all.n_job + r->n_job);
	p->all.job = job;
	for (size_t i = 0; i < r->n_job; i++)
		job[p->all.n_job++] = r->job[i];
	p->all.has_more = r->has_more;
	p->all.more = r->more;
	page[p->n++] = *a;
	return 0;
}

static void pages_release(struct pages *p)
{
	for (int i = 0; i < p->n; i++)
		fh_answer_release(&p->page[i]);
	free(p->page);
	free(p->all.job);
}

static int fetch(struct ctx *c, struct filter *f, struct pages *p, struct fh_status *st)
{
	uint64_t after = (uint64_t)f->after;

	for (;;) {
		Fh__V1__Request req = FH__V1__REQUEST__INIT;
		Fh__V1__ListJobsRequest l = FH__V1__LIST_JOBS_REQUEST__INIT;
		int64_t left = f->limit - (int64_t)p->all.n_job;
		struct fh_answer a;
		int rc;

		l.n_state = f->n_state;
		l.state = f->state;
		l.label = f->has_label ? &f->label : NULL;
		l.has_after = l.has_limit = 1;
		l.after = after;
		l.limit = (uint32_t)(left < PAGE ? left : PAGE);
		req.call_case = FH__V1__REQUEST__CALL_LIST_JOBS;
		req.list_jobs = &l;
		rc = ctx_call(c, &req, 0, &a, st);
		if (rc)
			return rc;
		rc = add_page(p, &a, st);
		if (rc) {
			fh_answer_release(&a);
			return rc;
		}
		if (!a.reply->jobs->more || a.reply->jobs->n_job == 0 || (int64_t)p->all.n_job >= f->limit)
			return 0;
		after = p->all.job[p->all.n_job - 1]->id;
	}
}

static void add_job_row(struct table *t, const Fh__V1__Job *j)
{
	char v[OUT_TEXT];

	table_add(t, "%" PRIu64, j->id);
	table_add(t, "%s", j->name ? j->name : "");
	table_add(t, "%s", text_state(j->state));
	if (j->planned_steps)
		table_add(t, "%d %%", (int)(100.0 * (double)j->step / (double)j->planned_steps)); /* 100 % is said of the end only */
	else
		table_add(t, "-");
	table_add(t, "%" PRIu64, j->step);
	if (j->has_steps_per_second && j->steps_per_second > 0)
		table_add(t, "%.0f", j->steps_per_second);
	else
		table_add(t, "-");
	table_add(t, "%s", j->has_eta_seconds && j->state == FH__V1__JOB_STATE__RUNNING ? text_duration(j->eta_seconds, v) : "-");
	table_add(t, "%s", text_age(j->created_ns, v));
	table_add(t, "%s", j->error && j->error->text ? j->error->text : j->reason ? j->reason : "");
}

/* For programs: plain numbers and times, empty where there is none. */
static void add_job_csv(struct table *t, const Fh__V1__Job *j)
{
	char v[OUT_TEXT];

	table_add(t, "%" PRIu64, j->id);
	table_add(t, "%s", j->name ? j->name : "");
	table_add(t, "%s", text_state(j->state));
	table_add(t, "%" PRIu64, j->step);
	table_add(t, "%" PRIu64, j->planned_steps);
	table_add(t, "%s", j->has_steps_per_second && j->steps_per_second > 0 ? text_real(j->steps_per_second, v) : "");
	table_add(t, "%s", j->has_eta_seconds && j->state == FH__V1__JOB_STATE__RUNNING ? text_real(j->eta_seconds, v) : "");
	table_add(t, "%s", text_time(j->created_ns, v));
	table_add(t, "%s", j->error && j->error->text ? j->error->text : j->reason ? j->reason : "");
}

static int run_list(struct ctx *c)
{
	static const char *const heads[] = {"ID", "NAME", "STATE", "PROGRESS", "STEP", "STEPS/S", "ETA", "CREATED", "REASON", NULL};
	static const char *const csv_heads[] = {"ID", "NAME", "STATE", "STEP", "PLANNED_STEPS", "STEPS_PER_SECOND", "ETA_SECONDS",
						"CREATED", "REASON", NULL};
	struct filter f = {.limit = LIMIT_MAX};
	struct pages p = {.n = 0};
	struct fh_status st = FH_STATUS_INIT;
	struct table t;
	int rc = take_filter(c, &f, &st), code = EXIT_DONE;

	fh__v1__list_jobs_reply__init(&p.all);
	if (rc == 0)
		rc = fetch(c, &f, &p, &st);
	if (rc) {
		code = ctx_fail(c, &st);
	} else if (!output_message(c, &p.all.base)) {
		table_init(&t, c->output == OUT_CSV ? csv_heads : heads, "rllrrrrll");
		for (size_t i = 0; i < p.all.n_job; i++)
			(c->output == OUT_CSV ? add_job_csv : add_job_row)(&t, p.all.job[i]);
		if (c->output == OUT_CSV)
			table_print_csv(&t, stdout);
		else
			table_print(&t, stdout);
		table_release(&t);
		if (p.all.n_job == 0)
			ctx_note(c, f.n_state || f.has_label ? "No job is like that." : "No jobs yet: fhctl start --help says how.");
	}
	pages_release(&p);
	return code;
}

/* ---- show, wait */

static int run_show(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;

	if (job_show(c, c->argv[0], &a, &st))
		return ctx_fail(c, &st);
	if (!output_message(c, &a.reply->job->base))
		show_job(a.reply->job->job, opt_flag(c, "spec"));
	fh_answer_release(&a);
	return EXIT_DONE;
}

static int run_wait(struct ctx *c)
{
	struct watch w = {.rows = WATCH_NO_ROWS, .deadline_ms = c->timeout_given ? c->timeout_ms : 0};
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	int code;

	if (job_show(c, c->argv[0], &a, &st))
		return ctx_fail(c, &st);
	w.since = a.reply->job->job->last_seq;
	code = watch_job(c, &w, a.reply->job->job);
	fh_answer_release(&a);
	return code;
}

static const struct opt stop_opts[] = {
	{"discard", 0, NULL, "without a last checkpoint"},
	{NULL, 0, NULL, NULL},
};
static const struct opt list_opts[] = {
	{"state", 's', "STATE", "only jobs in this state; may be repeated, or a list with commas"},
	{"label", 'l', "KEY=VALUE", "only jobs with this label"},
	{"after", 0, "ID", "only jobs with a higher id"},
	{"limit", 0, "N", "at most N jobs"},
	{NULL, 0, NULL, NULL},
};
static const struct opt show_opts[] = {
	{"spec", 0, NULL, "its complete specification as well"},
	{NULL, 0, NULL, NULL},
};

const struct command cmds_job[] = {
	{"stop", GROUP_JOBS, "JOB", "end a job; what it learned is kept as a checkpoint",
	 "A queued job is stopped at once and never runs. fhctl resume goes on from the checkpoint; who means to go on soon pauses.", stop_opts, 1, 1, OUT_ALL, run_stop},
	{"pause", GROUP_JOBS, "JOB", "hold a job at its next step; its place on the device is free for others", NULL, NULL, 1, 1, OUT_ALL,
	 run_pause},
	{"resume", GROUP_JOBS, "JOB", "let a paused job go on, or a stopped or failed one from its last checkpoint", NULL, NULL, 1, 1, OUT_ALL, run_resume},
	{"list", GROUP_JOBS, "", "jobs with state, progress and why they are where they are",
	 "  fhctl list --state running,queued\n  fhctl list --label team=a -o json", list_opts, 0, 0, OUT_ALL | OUT_CSV, run_list},
	{"show", GROUP_JOBS, "JOB", "everything about one job: state and why, progress, speed, last metrics, memory", NULL, show_opts, 1, 1,
	 OUT_ALL, run_show},
	{"wait", GROUP_JOBS, "JOB", "return when the job has ended, with its outcome as exit code",
	 "0 done, 1 failed or stopped, 9 interrupted and resumable. With --timeout SECONDS: 124 when it has not ended by then.\n"
	 "A daemon that restarts meanwhile is waited for.",
	 NULL, 1, 1, OUT_ALL, run_wait},
	{.name = NULL},
};
