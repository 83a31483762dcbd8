/* Samples as text: CSV with columns fixed by the model's table of metrics, lines for people. One thread. */
#include "client/watch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/output.h"
#include "gpu/eval_metrics.h"
#include "gpu/program.h"

#define COLUMNS_MAX (METRIC_MAX + EVAL_METRICS)

struct sample_columns {
	const struct metric *metric[COLUMNS_MAX];
	int n;
};

struct sample_columns *sample_columns_new(const char *model)
{
	const struct metric *table = metric_table(model && *model ? model : "dqn");
	struct sample_columns *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	for (const struct metric *m = table; m && m->name && s->n < COLUMNS_MAX; m++)
		s->metric[s->n++] = m;
	for (int i = 0; i < EVAL_METRICS && s->n < COLUMNS_MAX; i++)
		s->metric[s->n++] = eval_metric + i;
	return s;
}

void sample_columns_free(struct sample_columns *s)
{
	free(s);
}

void sample_print_csv_head(const struct sample_columns *s)
{
	fputs("seq,kind,time,job,trial,step,epoch,vector_step,split,policy", stdout);
	for (int i = 0; i < s->n; i++)
		printf(",%s", s->metric[i]->name);
	putchar('\n');
}

const char *sample_policy(const Fh__V1__Sample *m)
{
	if (!m->has_policy)
		return "";
	return m->policy == FH__V1__POLICY__TARGET ? "target" : m->policy == FH__V1__POLICY__ONLINE ? "online" : "";
}

static const char *kind_word(const Fh__V1__Sample *m)
{
	switch (m->kind) {
	case FH__V1__SAMPLE_KIND__REPORT: return "report";
	case FH__V1__SAMPLE_KIND__VALIDATION: return "validation";
	case FH__V1__SAMPLE_KIND__STATE_CHANGE: return "state";
	default: return "sample";
	}
}

void sample_print_csv(const struct sample_columns *s, const Fh__V1__Sample *m)
{
	char t[OUT_TEXT];

	if (m->kind == FH__V1__SAMPLE_KIND__STATE_CHANGE)
		return; /* no numbers */
	printf("%" PRIu64 ",%s,%s,%" PRIu64 ",%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.20s,%s", m->seq, kind_word(m),
	       text_time(m->time_ns, t), m->job, m->trial, m->step, m->epoch, m->vector_step, m->split ? m->split : "", sample_policy(m));
	for (int i = 0; i < s->n; i++) {
		double x = sample_value(m, s->metric[i]->name);

		if (isfinite(x))
			printf(",%.9g", x);
		else
			putchar(',');
	}
	putchar('\n');
}

/* The numbers worth a line, in this order; those that a sample lacks are left out. */
static const char *const report_words[] = {"loss", "q", "reward_mean", "episode_return", "epsilon", "grad_norm"};
static const char *const validation_words[] = {"return", "sharpe", "sortino", "max_drawdown", "trades", "win_rate", "turnover"};

void sample_print_line(const Fh__V1__Sample *m)
{
	int validation = m->kind == FH__V1__SAMPLE_KIND__VALIDATION;
	const char *const *word = validation ? validation_words : report_words;
	size_t words = validation ? sizeof validation_words / sizeof validation_words[0] : sizeof report_words / sizeof report_words[0];
	char text[FH_TEXT_MAX];

	if (m->kind == FH__V1__SAMPLE_KIND__STATE_CHANGE) {
		printf("%-10s  step %-8" PRIu64 "  %s%s%s\n", "state", m->step, text_state(m->state), m->reason && *m->reason ? ": " : "",
		       text_clean(m->reason, text, sizeof text));
		return;
	}
	printf("%-10s  step %-8" PRIu64, validation && m->split && *m->split ? m->split : kind_word(m), m->step);
	if (validation && m->has_policy)
		printf("  %-6s", sample_policy(m));
	if (m->trial)
		printf("  trial %" PRIu32, m->trial);
	for (size_t i = 0; i < words; i++) {
		double x = sample_value(m, word[i]);

		if (x == x)
			printf("  %s %.5g", word[i], x);
	}
	putchar('\n');
}

void sample_warn(const struct ctx *c, const struct sample_columns *s, const Fh__V1__Sample *m, uint64_t *said)
{
	for (int i = 0; i < s->n && i < 64; i++) {
		double x = sample_value(m, s->metric[i]->name);
		char v[OUT_TEXT];

		if (!isfinite(x) || !metric_warns(s->metric[i], x) || *said >> i & 1)
			continue;
		*said |= (uint64_t)1 << i;
		ctx_note(c, "warning: %s is %s at step %" PRIu64 ": %s", s->metric[i]->name, text_real(x, v), m->step,
			 s->metric[i]->warning);
	}
}
