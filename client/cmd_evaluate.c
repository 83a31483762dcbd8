/* fhctl evaluate and act. One thread.
 *
 * evaluate: the daemon runs the greedy policy over a split as an operation; this waits, writes the trace page by page into
 * a temporary file that gets its name when it is whole, and prints the report. act: states in, greedy actions and Q out. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/evaluation.h"
#include "client/import/csv.h"
#include "client/import/json.h"
#include "client/import/number.h"
#include "client/import/source.h"
#include "client/output.h"
#include "client/table.h"

#define REPORTS_MAX 8
#define PATH_SIZE 4096
#define ACT_ROWS_MAX 4096    /* the daemon takes no more in one call */
#define ACT_FLOATS_MAX (3 << 20)
#define BRANCHES_MAX 4
#define WINDOWS_MAX 1024     /* the daemon cuts a split in no more */

/* ---- the report */

/* How a metric is shown; names that are not here are shown as they come. */
static const struct metric { const char *name, *shown; enum { REAL, PERCENT, COUNT, MONEY, FLAG } as; } metric[] = {
	{"pnl", "profit (money)", MONEY}, {"return", "return", PERCENT}, {"ret", "return", PERCENT}, {"sharpe", "Sharpe", REAL}, {"sortino", "Sortino", REAL},
	{"max_drawdown", "max drawdown", PERCENT}, {"trades", "trades", COUNT}, {"closed", "closed positions", COUNT},
	{"win_rate", "win rate", PERCENT}, {"turnover", "turnover", REAL}, {"exposure", "exposure", PERCENT},
	{"bars", "bars", COUNT}, {"bars_per_year", "bars a year", COUNT}, {"ruined", "ruined", FLAG}
};
#define METRICS ((int)(sizeof metric / sizeof *metric))

static int find_metric(const char *name)
{
	for (int i = 0; i < METRICS; i++)
		if (!strcmp(metric[i].name, name))
			return i;
	return -1;
}

static void add_value(struct table *t, const char *name, double v)
{
	char text[OUT_TEXT];
	int i = find_metric(name);

	switch (i < 0 ? REAL : metric[i].as) {
	case PERCENT: table_add(t, v != 0 && fabs(v) < 0.01 ? "%.4f %%" : "%.2f %%", v * 100); break;
	case COUNT: table_add(t, "%.0f", v); break;
	case MONEY: table_add(t, "%.2f", v); break;
	case FLAG: table_add(t, "%s", v != 0 ? "yes" : "no"); break;
	default: table_add(t, "%s", text_real(v, text)); break;
	}
}

static const Fh__V1__MetricValue *value_of(const Fh__V1__EvaluationReport *r, const char *name)
{
	for (size_t i = 0; i < r->n_value; i++)
		if (r->value[i]->name && !strcmp(r->value[i]->name, name))
			return r->value[i];
	return NULL;
}

static const char *report_name(const Fh__V1__EvaluationReport *r)
{
	const char *n = r->name ? r->name : "agent";

	return !strcmp(n, "buy_and_hold") ? "BUY AND HOLD" : !strcmp(n, "never_trade") ? "NEVER TRADE" : !strcmp(n, "agent") ? "AGENT" : n;
}

static void print_reports(const Fh__V1__EvaluateReply *e)
{
	const char *heads[REPORTS_MAX + 2] = {"METRIC"};
	size_t n = e->n_report < REPORTS_MAX ? e->n_report : REPORTS_MAX;
	struct table t;

	if (!n)
		return;
	for (size_t k = 0; k < n; k++)
		heads[k + 1] = report_name(e->report[k]);
	heads[n + 1] = NULL;
	table_init(&t, heads, "lrrrrrrrr");
	for (size_t i = 0; i < e->report[0]->n_value; i++) {
		const char *name = e->report[0]->value[i]->name;
		int m = name ? find_metric(name) : -1;
		if (!name)
			continue;
		table_add(&t, "%s", m < 0 ? name : metric[m].shown);
		for (size_t k = 0; k < n; k++) {
			const Fh__V1__MetricValue *v = value_of(e->report[k], name);
			if (v)
				add_value(&t, name, v->value);
			else
				table_add(&t, "-");
		}
	}
	table_print(&t, stdout);
	table_release(&t);
	for (size_t k = 0; k < n; k++)
		for (size_t i = 0; i < e->report[k]->n_note; i++)
			printf("%s: %s\n", report_name(e->report[k]), e->report[k]->note[i]);
}

/* A line per window: is it good everywhere, or once? */
static void print_windows(const Fh__V1__EvaluateReply *e)
{
	static const char *const shown[] = {"return", "sharpe", "max_drawdown", "trades", "win_rate", "exposure", "ruined"};
	const char *heads[] = {"WINDOW", "FIRST BAR", "LAST BAR", "RETURN", "SHARPE", "MAX DRAWDOWN", "TRADES", "WIN RATE", "EXPOSURE", "RUINED", NULL};
	struct table t;

	table_init(&t, heads, "rrrrrrrrrr");
	for (size_t w = 0; w < e->n_window; w++) {
		const Fh__V1__EvaluationReport *r = e->window[w];
		table_add(&t, "%zu", w + 1);
		table_add(&t, "%lld", (long long)r->begin);
		table_add(&t, "%lld", (long long)r->end - 1);
		for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
			const Fh__V1__MetricValue *v = value_of(r, shown[i]);
			if (v)
				add_value(&t, shown[i], v->value);
			else
				table_add(&t, "-");
		}
	}
	putchar('\n');
	table_print(&t, stdout);
	table_release(&t);
}

/* ---- the trace file */

struct trace_file { FILE *f; const char *path; char part[PATH_SIZE]; };

static int trace_row(void *arg, const Fh__V1__EvaluateReply *e, const Fh__V1__TraceRow *r, struct fh_status *st)
{
	struct trace_file *t = arg;

	if (!r)
		trace_csv_begin(t->f, e);
	else
		trace_csv_row(t->f, e, r);
	return ferror(t->f) ? fh_fail(st, FH_IO, "writing %s: %s", t->path, strerror(errno)) : 0;
}

static int trace_file_open(struct trace_file *t, const char *path, struct fh_status *st)
{
	t->path = path;
	if (!strcmp(path, "-")) {
		t->f = stdout;
		return 0;
	}
	int rc = output_place_check(path, "--trace", st);
	if (rc)
		return rc;
	if ((size_t)snprintf(t->part, sizeof t->part, "%s.part-%ld", path, (long)getpid()) >= sizeof t->part)
		return fh_fail_field(st, FH_INVALID, "--trace", "the path is too long");
	t->f = fopen(t->part, "w");
	return t->f ? 0 : fh_fail_field(st, FH_IO, "--trace", "%s: %s", path, strerror(errno));
}

/* Gives the whole file its name, or removes what there is of it. */
static int trace_file_close(struct trace_file *t, int rc, struct fh_status *st)
{
	if (t->f == stdout)
		return rc;
	int bad = fclose(t->f) != 0;
	if (!rc && (bad || rename(t->part, t->path)))
		rc = fh_fail(st, FH_IO, "writing %s: %s", t->path, strerror(errno));
	if (rc)
		unlink(t->part);
	return rc;
}

static int run_evaluate(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct trace_file t = {.f = NULL};
	struct evaluation_ask ask = {.benchmarks = !opt_flag(c, "no-benchmarks")};
	const char *trace = opt_text(c, "trace");
	struct fh_answer a;
	int rc = evaluation_options(c, &ask, &st);

	if (!rc)
		rc = opt_int(c, "windows", 1, WINDOWS_MAX, &ask.windows, &st);
	if (!rc && trace)
		rc = trace_file_open(&t, trace, &st);
	if (rc)
		return ctx_fail(c, &st);
	rc = evaluation_call(c, &ask, trace ? trace_row : NULL, &t, &a, &st);
	if (trace)
		rc = trace_file_close(&t, rc, &st);
	if (rc)
		return ctx_fail(c, &st);
	Fh__V1__EvaluateReply *e = a.reply->operation->evaluate;
	e->n_row = 0; /* they are in the file */
	if (t.f != stdout && !output_message(c, &e->base)) {
		char t0[TIMESTAMP_TEXT_MAX], t1[TIMESTAMP_TEXT_MAX];
		printf("%s split, bars %lld to %lld, %.16s to %.16s", e->split ? e->split : ask.split, (long long)e->begin,
		       (long long)e->end - 1, timestamp_format(e->first_ts, t0), timestamp_format(e->last_ts, t1));
		if (e->has_trials)
			printf(", trial %u of 0 to %u", e->trial, e->trials - 1);
		putchar('\n');
		print_reports(e);
		if (e->n_window > 1)
			print_windows(e);
	}
	if (trace && t.f != stdout)
		ctx_note(c, "trace written to %s", trace);
	fh_answer_release(&a);
	return EXIT_DONE;
}

/* ---- act */

struct states { float *v; size_t n, cap; int rows, width; };

static int add_state(struct states *s, const struct csv_reader *r, struct fh_status *st)
{
	if (s->rows == 0)
		s->width = r->fields;
	if (r->fields != s->width)
		return fh_fail(st, FH_INVALID, ":%lld: this line has %d fields and the first has %d", (long long)r->line, r->fields, s->width);
	if (s->rows == ACT_ROWS_MAX || s->n + (size_t)r->fields > ACT_FLOATS_MAX)
		return fh_fail(st, FH_EXHAUSTED, ":%lld: more than %d states at once; send them in parts", (long long)r->line, s->rows);
	if (s->n + (size_t)r->fields > s->cap) {
		size_t cap = (s->n + (size_t)r->fields) * 2;
		float *v = realloc(s->v, cap * sizeof *v);
		if (!v)
			return fh_fail(st, FH_EXHAUSTED, "no memory for %d states", s->rows);
		s->v = v;
		s->cap = cap;
	}
	for (int i = 0; i < r->fields; i++) {
		double v;
		enum number_result n = number_parse(r->field[i].p, r->field[i].len, '.', &v);
		if (n || fabs(v) > 3.4e38)
			return fh_fail(st, FH_INVALID, ":%lld: field %d %s", (long long)r->line, i + 1,
				       n ? number_result_text(n) : "is too large");
		s->v[s->n++] = (float)v;
	}
	s->rows++;
	return 0;
}

/* A line without any number is a header. */
static int no_numbers(const struct csv_reader *r)
{
	double v;

	for (int i = 0; i < r->fields; i++)
		if (!number_parse(r->field[i].p, r->field[i].len, '.', &v))
			return 0;
	return 1;
}

static int read_states(struct csv_reader *r, struct states *s, struct fh_status *st)
{
	char first = '\0';
	int rc = csv_start(r, &first, st), json = first == '[';

	if (rc)
		return rc;
	for (rc = json ? json_begin(r, 1, st) : csv_line(r, st); rc > 0; rc = json ? json_row(r, st) : csv_line(r, st)) {
		if (!json && (rc = csv_split(r, st)))
			return rc;
		if (!json && s->rows == 0 && r->line == 1 && no_numbers(r))
			continue;
		rc = add_state(s, r, st);
		if (rc)
			return rc;
	}
	return rc ? rc : s->rows ? 0 : fh_fail(st, FH_INVALID, "there is no state in it");
}

static int load_states(const char *path, struct states *s, struct fh_status *st)
{
	struct csv_reader *r = calloc(1, sizeof *r);
	struct source *src = NULL;

	if (!r)
		return fh_fail(st, FH_EXHAUSTED, "no memory to read %s", path);
	int rc = source_open(path, NULL, &src, st);
	if (!rc)
		rc = csv_open(r, src, st);
	if (!rc)
		rc = read_states(r, s, st);
	if (rc)
		csv_name_file(st, path);
	csv_close(r);
	free(r);
	source_close(src);
	return rc;
}

/* What the indices of the environment's three branches mean: for people; CSV and JSON have the indices. */
static const char *action_word(const Fh__V1__ActReply *r, size_t branch, int32_t index)
{
	static const char *const word[3][5] = {{"-1", "-0.5", "0", "0.5", "1"}, {"market", "limit", "ioc"}, {"0.25", "0.5", "1"}};
	static const uint32_t size[3] = {5, 3, 3};

	if (branch >= 3 || r->n_actions != 3 || r->actions[branch] != size[branch] || index < 0 || (uint32_t)index >= size[branch])
		return NULL;
	return word[branch][index];
}

static void print_actions(struct ctx *c, const Fh__V1__ActReply *r, int rows)
{
	static char name[BRANCHES_MAX * 16][24];
	const char *heads[TABLE_COLUMNS_MAX + 1];
	char align[TABLE_COLUMNS_MAX + 1];
	static const char *const branch[] = {"exposure", "order", "urgency"};
	size_t d = r->n_actions, q = 0, n = 0;
	struct table t;

	heads[n++] = "row";
	for (size_t k = 0; k < d && k < BRANCHES_MAX; k++) {
		snprintf(name[n], sizeof name[n], "%s", k < 3 ? branch[k] : "action");
		heads[n] = name[n];
		n++;
	}
	for (size_t k = 0; k < d && k < BRANCHES_MAX; k++)
		for (uint32_t a = 0; a < r->actions[k] && n < TABLE_COLUMNS_MAX && n < sizeof name / sizeof *name; a++, q++) {
			const char *word = c->output == OUT_CSV ? NULL : action_word(r, k, (int32_t)a);
			if (word)
				snprintf(name[n], sizeof name[n], "q(%s)", word);
			else
				snprintf(name[n], sizeof name[n], "q_%s_%u", k < 3 ? branch[k] : "action", a);
			heads[n] = name[n];
			n++;
		}
	heads[n] = NULL;
	memset(align, 'r', n);
	align[n] = '\0';
	table_init(&t, heads, align);
	for (size_t i = 0; i < (size_t)rows && (i + 1) * d <= r->n_action && (i + 1) * q <= r->n_q; i++) {
		table_add(&t, "%zu", i);
		for (size_t k = 0; k < d; k++) {
			const char *word = c->output == OUT_CSV ? NULL : action_word(r, k, r->action[i * d + k]);
			if (word)
				table_add(&t, "%s", word);
			else
				table_add(&t, "%d", r->action[i * d + k]);
		}
		for (size_t k = 0; k < q; k++)
			table_add(&t, c->output == OUT_CSV ? "%.9g" : "%.4f", (double)r->q[i * q + k]);
	}
	if (c->output == OUT_CSV)
		table_print_csv(&t, stdout);
	else
		table_print(&t, stdout);
	table_release(&t);
}

static int run_act(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ActRequest act = FH__V1__ACT_REQUEST__INIT;
	struct evaluation_ask ask = {.split = NULL};
	struct states s = {.v = NULL};
	struct fh_answer a;
	const char *file = opt_text(c, "states");
	int rc = evaluation_options(c, &ask, &st);

	if (!rc) {
		rc = load_states(file ? file : "-", &s, &st);
		if (rc == FH_NOT_FOUND)
			st.code = FH_INVALID; /* a file of the person's, not an object of the daemon's */
	}
	if (!rc) {
		act.job = (char *)ask.job;
		act.checkpoint = (char *)ask.checkpoint;
		act.has_policy = ask.policy != FH__V1__POLICY__POLICY_UNSPECIFIED;
		act.policy = ask.policy;
		act.has_trial = ask.trial > 0;
		act.trial = (uint32_t)ask.trial;
		act.n_state = s.n;
		act.state = s.v;
		act.has_rows = 1;
		act.rows = (uint32_t)s.rows;
		req.call_case = FH__V1__REQUEST__CALL_ACT;
		req.act = &act;
		rc = ctx_call(c, &req, 0, &a, &st);
	}
	free(s.v);
	if (rc)
		return ctx_fail(c, &st);
	if (!output_message(c, &a.reply->act->base))
		print_actions(c, a.reply->act, s.rows);
	fh_answer_release(&a);
	return EXIT_DONE;
}

/* ---- the tables */

static const struct opt evaluate_opts[] = {
	{"checkpoint", 0, "ID", "this checkpoint instead of a job's last"},
	{"split", 's', "NAME", "validation (default), test, train or all"},
	{"policy", 0, "NAME", "target or online network (default: the job's run.validate_policy)"},
	{"trial", 0, "N", "of a population (default 0)"},
	{"dataset", 0, "NAME", "bars of another data set"},
	{"trace", 't', "FILE", "write a row per bar as CSV (- for standard output)"},
	{"windows", 0, "K", "play the split as K equal episodes side by side, each with a line of its own"},
	{"no-benchmarks", 0, NULL, "leave out buy-and-hold and never-trade"},
	{NULL, 0, NULL, NULL}
};
static const struct opt act_opts[] = {
	{"checkpoint", 0, "ID", "this checkpoint instead of a job's last"},
	{"policy", 0, "NAME", "target or online network (default: the job's run.validate_policy)"},
	{"trial", 0, "N", "of a population (default 0)"},
	{"states", 's', "FILE", "CSV lines or JSON [[...], ...] of states (default: standard input)"},
	{NULL, 0, NULL, NULL}
};

const struct command cmds_evaluate[] = {
	{"evaluate", GROUP_RESULTS, "[JOB]", "run the greedy policy over a split and print its metrics",
	 "The split is played as one episode (or as --windows says), beside buy-and-hold and never-trade under the same costs. The trace has time,\n"
	 "action, fill, price, fee, position, cash, equity, reward and exit of every bar with all digits.\n\n"
	 "  fhctl evaluate first --split test --trace test.csv\n",
	 evaluate_opts, 0, 1, OUT_ALL, run_evaluate},
	{"act", GROUP_RESULTS, "[JOB]", "greedy actions and Q values for states",
	 "A state is one line (or inner JSON array) of numbers: the market features, then the portfolio features (gpu/MATH.md, sections\n"
	 "7 and 8). An action is the wanted exposure, the order and the share of the change that is sent now; -o csv and json give them as\n"
	 "indices into -1 -0.5 0 0.5 1, market limit ioc, and 0.25 0.5 1.\n\n"
	 "  fhctl act first --states now.json -o json\n",
	 act_opts, 0, 1, OUT_ALL | OUT_CSV, run_act},
	{.name = NULL}
};
