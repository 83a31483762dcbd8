/* One job as a page: state and why, progress, speed, last metrics, memory. One thread. */
#include "client/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/output.h"
#include "gpu/program.h"
#include "proto/spec.h"
#include "proto/text.h"

#define BAR_CELLS 30
#define LABEL_COLUMN 16
#define VALUES_A_LINE 3

static void line(const char *label, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void line(const char *label, const char *fmt, ...)
{
	char text[1024], clean[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	printf("%-*s%s\n", LABEL_COLUMN, label, text_clean(text, clean, sizeof clean));
}

static void show_state(const Fh__V1__Job *j)
{
	char reason[512];

	printf("%-*s%s%s%s\n", LABEL_COLUMN, "State", text_state_painted(j->state), j->reason && *j->reason ? ": " : "",
	       text_clean(j->reason, reason, sizeof reason));
}

static void show_progress(const Fh__V1__Job *j)
{
	char bar[BAR_CELLS + 1], d[OUT_TEXT];
	double fraction = j->planned_steps ? (double)j->step / (double)j->planned_steps : 0;
	int full = (int)((fraction > 1 ? 1 : fraction) * BAR_CELLS);

	for (int i = 0; i < BAR_CELLS; i++)
		bar[i] = i < full ? '#' : '.';
	bar[BAR_CELLS] = 0;
	line("Progress", "[%s] %d %%", bar, (int)(fraction * 100));
	line("Step", "%" PRIu64 " of %" PRIu64 "  (epoch %" PRIu64 ", environment step %" PRIu64 ")", j->step, j->planned_steps, j->epoch,
	     j->vector_step);
	if (j->phase && *j->phase)
		line("Phase", "%s", j->phase);
	if (j->state == FH__V1__JOB_STATE__RUNNING)
		line("Speed", "%.1f steps/s, ETA %s", j->has_steps_per_second ? j->steps_per_second : 0,
		     text_duration(j->has_eta_seconds ? j->eta_seconds : -1, d));
	else if (j->has_steps_per_second && j->steps_per_second > 0)
		line("Speed", "%.1f steps/s when it ran", j->steps_per_second);
	if (j->state == FH__V1__JOB_STATE__QUEUED && j->position)
		line("Queue", "number %" PRIu32, j->position);
}

static void show_sample(const char *label, const Fh__V1__Sample *s, int64_t trials)
{
	char v[OUT_TEXT], name[48];

	if (!s)
		return;
	if (trials > 1)
		line(label, "step %" PRIu64 "  (trial %" PRIu32 " of 0 to %" PRId64 ")", s->step, s->trial, trials - 1);
	else
		line(label, "step %" PRIu64, s->step);
	for (size_t i = 0; i < s->n_value; i++) {
		int last = i % VALUES_A_LINE == VALUES_A_LINE - 1 || i + 1 == s->n_value;

		printf("%*s%-20s %-*s%s", i % VALUES_A_LINE ? 2 : LABEL_COLUMN + 2, "", text_clean(s->value[i]->name ? s->value[i]->name : "?", name, sizeof name),
		       last ? 0 : 11, text_real(s->value[i]->value, v), last ? "\n" : "");
	}
}

/* What `start -f` says while it happens, for whoever comes later. */
static void show_warnings(const char *model, const Fh__V1__Sample *s)
{
	const struct metric *table = metric_table(model && *model ? model : "dqn");
	char v[OUT_TEXT];

	for (const struct metric *m = s ? table : NULL; m && m->name; m++) {
		double x = sample_value(s, m->name);

		if (isfinite(x) && metric_warns(m, x))
			line("Warning", "%s is %s: %s", m->name, text_real(x, v), m->warning);
	}
}

static void show_memory(const Fh__V1__MemoryUse *m)
{
	char t[7][OUT_TEXT];

	if (!m)
		return;
	line("Memory", "%s: parameters %s, optimizer %s, replay %s, environments %s, scratch %s, market %s", text_bytes(m->total, t[0]),
	     text_bytes(m->parameters, t[1]), text_bytes(m->optimizer, t[2]), text_bytes(m->replay, t[3]),
	     text_bytes(m->environments, t[4]), text_bytes(m->scratch, t[5]), text_bytes(m->market, t[6]));
}

static void show_times(const Fh__V1__Job *j)
{
	char at[OUT_TEXT], age[OUT_TEXT], ran[OUT_TEXT];

	line("Created", "%s  (%s)", text_time(j->created_ns, at), text_age(j->created_ns, age));
	if (j->started_ns)
		line("Started", "%s  (%s)", text_time(j->started_ns, at), text_age(j->started_ns, age));
	if (j->ended_ns && j->started_ns && j->ended_ns >= j->started_ns)
		line("Ended", "%s  (%s, after %s)", text_time(j->ended_ns, at), text_age(j->ended_ns, age),
		     text_duration((double)(j->ended_ns - j->started_ns) * 1e-9, ran));
	else if (j->ended_ns)
		line("Ended", "%s  (%s)", text_time(j->ended_ns, at), text_age(j->ended_ns, age));
	if (j->interruptions)
		line("Interruptions", "%" PRIu32 "%s%s", j->interruptions, j->resume_note && *j->resume_note ? "; not restored: " : "",
		     j->resume_note ? j->resume_note : "");
}

static void show_spec(const Fh__V1__JobSpec *m)
{
	struct fh_spec spec;

	putchar('\n');
	if (fh_spec_from_message(m, &spec, NULL))
		fh_print_yaml(stdout, &m->base, 0, NULL); /* of another version: as it came */
	else
		fh_spec_print(stdout, &spec, NULL);
}

void show_job(const Fh__V1__Job *j, int with_spec)
{
	int64_t trials = j->spec && j->spec->run ? j->spec->run->population : 1;

	line("Job", "%" PRIu64 "  %s", j->id, j->name ? j->name : "");
	show_state(j);
	if (j->error)
		line("Error", "%s%s%s", j->error->field ? j->error->field : "", j->error->field && *j->error->field ? ": " : "",
		     j->error->text ? j->error->text : fh_code_name(-(int)j->error->code));
	show_progress(j);
	if (j->spec && j->spec->data && j->spec->data->dataset)
		line("Data set", "%s%s%.12s", j->spec->data->dataset, j->dataset_hash && *j->dataset_hash ? "  " : "",
		     j->dataset_hash ? j->dataset_hash : "");
	if (j->device && *j->device)
		line("Device", "%s", j->device);
	for (size_t i = 0; i < j->n_label; i++)
		line(i ? "" : "Labels", "%s=%s", j->label[i]->key, j->label[i]->value ? j->label[i]->value : "");
	show_times(j);
	show_sample("Last report", j->last_report, trials);
	show_warnings(j->spec ? j->spec->model : NULL, j->last_report);
	show_sample("Last validation", j->last_validation, trials);
	show_memory(j->memory);
	if (j->last_checkpoint && *j->last_checkpoint)
		line("Checkpoint", "%s", j->last_checkpoint);
	if (with_spec && j->spec)
		show_spec(j->spec);
}
