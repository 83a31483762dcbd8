/* fhctl plot: the equity, trades and learning of a job, or a trace file, as SVG. One thread. */
#include <stdio.h>
#include <string.h>

#include "client/chart.h"
#include "client/evaluation.h"
#include "client/output.h"

#define PAGE_SAMPLES 5000

struct picture {
	unsigned kinds;
	struct trace trace;
	struct training training;
	int64_t trial;         /* of a population: the one that is drawn */
	Fh__V1__Policy policy; /* of the validations drawn: the first one's; the last step evaluates the other network too */
	struct caption caption;
};

static int kinds_of(const struct ctx *c, unsigned *out, struct fh_status *st)
{
	static const struct { const char *word; unsigned kinds; } known[] = {
		{"equity", CHART_EQUITY}, {"trades", CHART_TRADES}, {"loss", CHART_LOSS}, {"all", CHART_EQUITY | CHART_TRADES | CHART_LOSS}
	};
	const char *kind = opt_text(c, "kind");

	*out = CHART_EQUITY | CHART_TRADES | CHART_LOSS;
	for (size_t i = 0; kind && i < sizeof known / sizeof *known; i++)
		if (!strcmp(kind, known[i].word)) {
			*out = known[i].kinds;
			return 0;
		}
	return kind ? fh_fail_field(st, FH_INVALID, "--kind", "'%.40s' is none of equity, trades, loss, all", kind) : 0;
}

/* ---- the data */

static int add_row(void *arg, const Fh__V1__EvaluateReply *e, const Fh__V1__TraceRow *r, struct fh_status *st)
{
	struct trace *t = arg;

	return r ? trace_add(t, r, st) : trace_add_first(t, e, st);
}

/* The numbers under the title: the agent's, as `fhctl evaluate` gives them. */
static void report_facts(struct picture *p, const Fh__V1__EvaluateReply *e)
{
	static const struct { const char *name, *form; double scale; } fact[] = {
		{"return", "return %.3g %%", 100}, {"sharpe", "Sharpe %.3g", 1}, {"max_drawdown", "max drawdown %.3g %%", 100},
		{"trades", "%.0f trades", 1}, {"win_rate", "win rate %.0f %%", 100}, {"exposure", "exposure %.0f %%", 100},
	};
	const Fh__V1__EvaluationReport *r = e->n_report ? e->report[0] : NULL;
	size_t used = 0, size = sizeof p->caption.facts;

	for (size_t k = 0; r && k < sizeof fact / sizeof *fact; k++)
		for (size_t i = 0; i < r->n_value; i++)
			if (r->value[i]->name && !strcmp(r->value[i]->name, fact[k].name) && used < size) {
				char one[64];
				snprintf(one, sizeof one, fact[k].form, r->value[i]->value * fact[k].scale);
				used += (size_t)snprintf(p->caption.facts + used, size - used, "%s%s", used ? "  ·  " : "", one);
			}
	if (used && used < size && p->trace.fees > 0)
		snprintf(p->caption.facts + used, size - used, "  ·  fees %.5g", p->trace.fees);
}

/* A trace has no report: what its equity alone tells. */
static void trace_facts(struct picture *p)
{
	const struct trace *t = &p->trace;
	double peak = t->equity[0], drawdown = 0;
	long long fills = 0;
	int used;

	for (int64_t i = 0; i < t->n; i++) {
		peak = t->equity[i] > peak ? t->equity[i] : peak;
		drawdown = peak > 0 && (peak - t->equity[i]) / peak > drawdown ? (peak - t->equity[i]) / peak : drawdown;
		fills += (t->fill[i] != 0) + (t->exit_fill[i] != 0);
	}
	used = snprintf(p->caption.facts, sizeof p->caption.facts, "return %.3g %%  ·  max drawdown %.3g %%  ·  %lld trades",
			(t->equity[t->n - 1] / t->equity[0] - 1) * 100, drawdown * 100, fills);
	if (t->fees > 0)
		snprintf(p->caption.facts + used, sizeof p->caption.facts - (size_t)used, "  ·  fees %.5g", t->fees);
}

static int ask_daemon(struct ctx *c, struct picture *p, struct fh_status *st)
{
	struct evaluation_ask ask = {.benchmarks = 0};
	struct fh_answer a;
	char t0[TIMESTAMP_TEXT_MAX], t1[TIMESTAMP_TEXT_MAX], trial[24] = "";
	int rc = evaluation_options(c, &ask, st);

	if (!rc)
		rc = evaluation_call(c, &ask, add_row, &p->trace, &a, st);
	if (rc)
		return rc;
	const Fh__V1__EvaluateReply *e = a.reply->operation->evaluate;
	if (e->has_trials)
		snprintf(trial, sizeof trial, " of trial %u", e->trial);
	snprintf(p->caption.subtitle, sizeof p->caption.subtitle, "greedy policy%s on the %s split, %.16s to %.16s", trial,
		 e->split ? e->split : ask.split, timestamp_format(e->first_ts, t0), timestamp_format(e->last_ts, t1));
	snprintf(p->caption.title, sizeof p->caption.title, "%s%.64s", ask.job ? "" : "checkpoint ", ask.job ? ask.job : ask.checkpoint);
	report_facts(p, e);
	fh_answer_release(&a);
	return p->trace.n < 2 ? fh_fail(st, FH_INVALID, "the split has no bar to play") : 0;
}

static int read_file(struct picture *p, const char *path, struct fh_status *st)
{
	const char *base = strrchr(path, '/');
	char t0[TIMESTAMP_TEXT_MAX], t1[TIMESTAMP_TEXT_MAX];
	int rc = trace_read(path, &p->trace, st);

	if (rc == FH_NOT_FOUND)
		st->code = FH_INVALID; /* a file of the person's, not an object of the daemon's */
	if (rc)
		return rc;
	snprintf(p->caption.title, sizeof p->caption.title, "%.200s", base ? base + 1 : path);
	snprintf(p->caption.subtitle, sizeof p->caption.subtitle, "%lld bars, %.16s to %.16s", (long long)p->trace.n - 1,
		 timestamp_format(p->trace.ts[0], t0), timestamp_format(p->trace.ts[p->trace.n - 1], t1));
	trace_facts(p);
	return 0;
}

static int add_samples(struct picture *p, const Fh__V1__MetricsReply *r, struct fh_status *st)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < r->n_sample; i++) {
		const Fh__V1__Sample *s = r->sample[i];
		double step = (double)s->step;
		if (s->trial != p->trial)
			continue;
		if (s->kind == FH__V1__SAMPLE_KIND__REPORT)
			rc = training_add(&p->training, step, sample_value(s, "loss"), sample_value(s, "q"), st);
		if (s->kind != FH__V1__SAMPLE_KIND__VALIDATION || (s->split && strcmp(s->split, "validation")))
			continue;
		if (!p->training.validations)
			p->policy = s->policy;
		if (s->policy == p->policy)
			rc = training_add_validation(&p->training, step, sample_value(s, "sharpe"), st);
	}
	return rc;
}

static int ask_series(struct ctx *c, struct picture *p, const char *job, struct fh_status *st)
{
	uint64_t since = 0;
	int more = 1, rc = 0;

	while (!rc && more) {
		Fh__V1__Request req = FH__V1__REQUEST__INIT;
		Fh__V1__MetricsRequest m = FH__V1__METRICS_REQUEST__INIT;
		struct fh_answer a;
		m.job = (char *)job;
		m.has_since = m.has_limit = 1;
		m.since = since;
		m.limit = PAGE_SAMPLES;
		req.call_case = FH__V1__REQUEST__CALL_METRICS;
		req.metrics = &m;
		rc = ctx_call(c, &req, 0, &a, st);
		if (rc)
			return rc;
		const Fh__V1__MetricsReply *r = a.reply->metrics;
		rc = add_samples(p, r, st);
		more = r->more && r->n_sample;
		since = r->n_sample ? r->sample[r->n_sample - 1]->seq : since;
		fh_answer_release(&a);
	}
	return rc;
}

static int collect(struct ctx *c, struct picture *p, struct fh_status *st)
{
	const char *file = opt_text(c, "trace"), *job = c->argc ? c->argv[0] : NULL;
	int rc = kinds_of(c, &p->kinds, st);

	if (!rc)
		rc = opt_int(c, "trial", 0, EVALUATION_TRIAL_MAX, &p->trial, st);
	if (rc)
		return rc;
	if (file && job)
		return fh_fail(st, FH_INVALID, "a job and --trace exclude each other");
	if (!job && (p->kinds & CHART_LOSS)) {
		if (p->kinds == CHART_LOSS)
			return fh_fail(st, FH_INVALID, "loss and Q are a job's: name one");
		p->kinds &= ~(unsigned)CHART_LOSS; /* "all" of what there is */
	}
	if (p->kinds & (CHART_EQUITY | CHART_TRADES))
		rc = file ? read_file(p, file, st) : ask_daemon(c, p, st);
	if (!rc && (p->kinds & CHART_LOSS))
		rc = ask_series(c, p, job, st);
	if (!rc && p->kinds == CHART_LOSS) {
		snprintf(p->caption.title, sizeof p->caption.title, "%.64s", job);
		snprintf(p->caption.subtitle, sizeof p->caption.subtitle, "learning, %lld reports", (long long)p->training.n);
	}
	return rc;
}

/* --out, or the operand after the job (the only one when there is no job), or KIND.svg. Takes that operand away. */
static const char *output_path(struct ctx *c, char made[64])
{
	const char *out = opt_text(c, "out"), *kind = opt_text(c, "kind");
	int jobs = !opt_text(c, "trace") && !opt_text(c, "checkpoint");

	if (!out && c->argc == jobs + 1)
		out = c->argv[--c->argc];
	snprintf(made, 64, "%.40s.svg", kind ? kind : "equity");
	return out ? out : made;
}

static int run_plot(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct picture p;
	struct svg s;
	char made[64];
	const char *out = output_path(c, made);

	memset(&p, 0, sizeof p);
	int rc = collect(c, &p, &st);
	if (!rc && c->argc > 1)
		rc = fh_fail(&st, FH_INVALID, "'%.60s' is one operand too many", c->argv[1]);
	if (!rc) {
		chart_draw(&s, p.kinds, &p.caption, &p.trace, &p.training);
		rc = svg_save(&s, out, &st);
		svg_release(&s);
	}
	trace_release(&p.trace);
	training_release(&p.training);
	if (rc)
		return ctx_fail(c, &st);
	if (strcmp(out, "-"))
		ctx_note(c, "%s written", out);
	return EXIT_DONE;
}

static const struct opt plot_opts[] = {
	{"kind", 'k', "KIND", "equity (with drawdown), trades, loss, or all (default)"},
	{"out", 0, "FILE", "where to write it (default: equity.svg or KIND.svg; - for standard output)"},
	{"trace", 't', "FILE", "draw a trace of `fhctl evaluate --trace` instead of asking the daemon"},
	{"checkpoint", 0, "ID", "this checkpoint instead of a job's last"},
	{"split", 's', "NAME", "validation (default), test, train or all"},
	{"policy", 0, "NAME", "target or online network (default: the job's run.validate_policy)"},
	{"trial", 0, "N", "of a population (default 0)"},
	{"dataset", 0, "NAME", "bars of another data set"},
	{NULL, 0, NULL, NULL}
};

const struct command cmds_plot[] = {
	{"plot", GROUP_RESULTS, "[JOB] [FILE]", "draw equity, trades, loss and Q as SVG",
	 "  fhctl plot first first.svg\n"
	 "  fhctl plot --trace test.csv --kind trades --out trades.svg\n",
	 plot_opts, 0, 2, OUT_TABLE, run_plot},
	{.name = NULL}
};
