/* fhctl metrics: the samples of a job, so far or as they come, printed or into an event file. One thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/job_ref.h"
#include "client/metric_list.h"
#include "client/output.h"
#include "client/table.h"
#include "client/tfevents.h"
#include "client/watch.h"

#define PAGE 1000
#define DOCUMENT_MAX 10000 /* samples of one JSON or YAML document unless --limit says otherwise */
#define LIMIT_MAX 10000000

struct listing {
	struct ctx *c;
	struct sample_columns *columns;
	struct table table;
	int trials;             /* several: each row names its own */
	uint64_t since, left;   /* left: samples that may still be printed */
	struct tfevents *events; /* they go there and are not printed, or NULL */
	/* All pages in one message, for JSON and YAML. */
	struct fh_answer *page;
	int pages;
	Fh__V1__MetricsReply all;
};

/* The first column is a population's alone. */
static const char *const heads[] = {"TRIAL", "SEQ", "KIND", "POLICY", "STEP", "LOSS", "Q", "REWARD", "EPSILON", "RETURN", "SHARPE", "DRAWDOWN", NULL};
static const char *const values[] = {"loss", "q", "reward_mean", "epsilon", "return", "sharpe", "max_drawdown", NULL};

static void add_row(struct table *t, int trials, const Fh__V1__Sample *s)
{
	char v[OUT_TEXT];

	if (s->kind == FH__V1__SAMPLE_KIND__STATE_CHANGE)
		return;
	if (trials)
		table_add(t, "%" PRIu32, s->trial);
	table_add(t, "%" PRIu64, s->seq);
	table_add(t, "%s", s->kind == FH__V1__SAMPLE_KIND__REPORT ? "report" : s->split && *s->split ? s->split : "validation");
	table_add(t, "%s", *sample_policy(s) ? sample_policy(s) : "-");
	table_add(t, "%" PRIu64, s->step);
	for (int i = 0; values[i]; i++)
		table_add(t, "%s", text_real(sample_value(s, values[i]), v));
}

static int keep_page(struct listing *l, const struct fh_answer *a, struct fh_status *st)
{
	const Fh__V1__MetricsReply *m = a->reply->metrics;
	struct fh_answer *page = realloc(l->page, (size_t)(l->pages + 1) * sizeof *page);
	Fh__V1__Sample **sample;

	if (page)
		l->page = page;
	sample = page ? realloc(l->all.sample, (l->all.n_sample + m->n_sample + 1) * sizeof *sample) : NULL;
	if (!sample)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %zu samples", l->all.n_sample + m->n_sample);
	l->all.sample = sample;
	for (size_t i = 0; i < m->n_sample; i++)
		sample[l->all.n_sample++] = m->sample[i];
	l->all.has_last_seq = l->all.has_first_seq = l->all.has_more = l->all.has_state = 1;
	l->all.last_seq = m->last_seq;
	l->all.first_seq = m->first_seq;
	l->all.more = m->more;
	l->all.state = m->state;
	page[l->pages++] = *a;
	return 0;
}

/* Takes a page over: prints or keeps it. */
static int take_page(struct listing *l, struct fh_answer *a, struct fh_status *st)
{
	const Fh__V1__MetricsReply *m = a->reply->metrics;

	for (size_t i = 0; i < m->n_sample; i++) {
		int rc = l->events ? tfevents_add(l->events, m->sample[i], st) : 0;
		if (rc)
			return rc;
		if (l->events)
			continue;
		if (l->c->output == OUT_CSV)
			sample_print_csv(l->columns, m->sample[i]);
		else if (l->c->output == OUT_TABLE)
			add_row(&l->table, l->trials, m->sample[i]);
	}
	if (!l->events && (l->c->output == OUT_JSON || l->c->output == OUT_YAML))
		return keep_page(l, a, st);
	fh_answer_release(a);
	return 0;
}

static int list_pages(struct listing *l, char *job, struct fh_status *st)
{
	for (;;) {
		Fh__V1__Request req = FH__V1__REQUEST__INIT;
		Fh__V1__MetricsRequest m = FH__V1__METRICS_REQUEST__INIT;
		struct fh_answer a;
		size_t n;
		int more, rc;

		m.job = job;
		m.has_since = m.has_limit = 1;
		m.since = l->since;
		m.limit = (uint32_t)(l->left < PAGE ? l->left : PAGE);
		req.call_case = FH__V1__REQUEST__CALL_METRICS;
		req.metrics = &m;
		rc = ctx_call(l->c, &req, 0, &a, st);
		if (rc)
			return rc;
		n = a.reply->metrics->n_sample;
		more = a.reply->metrics->more && n > 0;
		if (n)
			l->since = a.reply->metrics->sample[n - 1]->seq;
		l->left -= n < l->left ? n : l->left;
		rc = take_page(l, &a, st);
		if (rc) {
			fh_answer_release(&a);
			return rc;
		}
		if (!more || !l->left)
			return 0;
	}
}

static int list_samples(struct ctx *c, const Fh__V1__Job *job, uint64_t since, uint64_t limit, struct tfevents *events, struct fh_status *st)
{
	struct listing l = {.c = c, .since = since, .left = limit, .events = events, .columns = sample_columns_new(job->spec ? job->spec->model : NULL)};
	char id[24];
	int rc;

	fh__v1__metrics_reply__init(&l.all);
	l.trials = job->spec && job->spec->run && job->spec->run->population > 1;
	table_init(&l.table, heads + !l.trials, &"rrllrrrrrrrr"[!l.trials]);
	snprintf(id, sizeof id, "%" PRIu64, job->id);
	if (c->output == OUT_CSV && l.columns && !events)
		sample_print_csv_head(l.columns);
	rc = l.columns ? list_pages(&l, id, st) : fh_fail(st, FH_EXHAUSTED, "no memory for the samples");
	if (rc == 0 && !events && !output_message(c, &l.all.base) && c->output == OUT_TABLE)
		table_print(&l.table, stdout);
	for (int i = 0; i < l.pages; i++)
		fh_answer_release(&l.page[i]);
	free(l.page);
	free(l.all.sample);
	table_release(&l.table);
	sample_columns_free(l.columns);
	return rc;
}

/* Says what there is now, also after a signal: the file is whole up to the last sample that came. */
static int close_events(struct ctx *c, struct tfevents *events, int code)
{
	struct fh_status st = FH_STATUS_INIT;
	int64_t n = tfevents_scalars(events);
	char path[4096];

	snprintf(path, sizeof path, "%s", tfevents_path(events));
	if (tfevents_close(events, &st) && code == EXIT_DONE)
		return ctx_fail(c, &st);
	ctx_note(c, "%s has %" PRId64 " values; tensorboard --logdir shows them", path, n);
	return code;
}

static int run_metrics(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct watch w = {.rows = WATCH_EVERY_SAMPLE};
	const char *dir = opt_text(c, "tensorboard");
	struct fh_answer a;
	int64_t since = 0, limit = c->output == OUT_JSON || c->output == OUT_YAML ? DOCUMENT_MAX : LIMIT_MAX;
	int rc = opt_int(c, "since", 0, INT64_MAX, &since, &st), code = EXIT_DONE;

	if (rc == 0 && opt_flag(c, "list")) {
		metric_list(c);
		return EXIT_DONE;
	}
	if (rc == 0 && !c->argc)
		rc = fh_fail(&st, FH_INVALID, "JOB is missing (or --list: what the metrics mean)");
	if (rc == 0)
		rc = opt_int(c, "limit", 1, LIMIT_MAX, &limit, &st);
	if (rc == 0 && opt_flag(c, "follow") && c->output == OUT_YAML)
		rc = fh_fail(&st, FH_INVALID, "-f prints table, csv or json");
	if (rc == 0 && opt_flag(c, "follow") && opt_text(c, "limit"))
		rc = fh_fail(&st, FH_INVALID, "--limit and -f do not go together");
	if (rc == 0 && dir && (since || c->output != OUT_TABLE))
		rc = fh_fail_field(&st, FH_INVALID, "--tensorboard", "the file gets all samples: it goes without --since and -o");
	if (rc == 0)
		rc = job_show(c, c->argv[0], &a, &st);
	if (rc)
		return ctx_fail(c, &st);
	rc = dir ? tfevents_open(dir, a.reply->job->job, &w.events, &st) : 0;
	if (rc) {
		fh_answer_release(&a);
		return ctx_fail(c, &st);
	}
	if (opt_flag(c, "follow")) {
		w.rows = dir ? WATCH_VALIDATIONS : WATCH_EVERY_SAMPLE;
		w.since = (uint64_t)since;
		w.patience_ms = c->timeout_given ? c->timeout_ms : 0;
		code = watch_job(c, &w, a.reply->job->job);
	} else {
		rc = list_samples(c, a.reply->job->job, (uint64_t)since, (uint64_t)limit, w.events, &st);
		code = rc ? ctx_fail(c, &st) : EXIT_DONE;
	}
	fh_answer_release(&a);
	return dir ? close_events(c, w.events, code) : code;
}

static const struct opt metrics_opts[] = {
	{"follow", 'f', NULL, "print samples as they come, until the job ends"},
	{"since", 0, "N", "only samples with a sequence number above N"},
	{"limit", 0, "N", "at most N samples"},
	{"tensorboard", 0, "DIR", "write DIR/JOB/events.out.tfevents.… instead of printing; with -f as they come"},
	{"list", 0, NULL, "print instead what every metric means; needs no job and no daemon"},
	{NULL, 0, NULL, NULL},
};

const struct command cmds_metrics[] = {
	{"metrics", GROUP_JOBS, "[JOB]", "print the reports and validations of a job",
	 "  fhctl metrics trial-1 -f\n"
	 "  fhctl metrics trial-1 -o csv > trial-1.csv\n"
	 "  fhctl metrics trial-1 -f --tensorboard runs      (and: tensorboard --logdir runs)\n"
	 "\n"
	 "CSV has one column per metric; empty where a sample does not have it. With -f, json is one document per sample and\n"
	 "--timeout is how long a daemon that went away is waited for (60 s unless given).\n"
	 "Ctrl-C detaches (exit code 130); the line it prints goes on where it stopped, by --since.",
	 metrics_opts, 0, 1, OUT_ALL | OUT_CSV, run_metrics},
	{.name = NULL},
};
