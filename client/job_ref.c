/* Jobs as commands need them; see job_ref.h. */
#include "client/job_ref.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/output.h"

int job_show(struct ctx *c, const char *job, struct fh_answer *out, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ShowJobRequest show = FH__V1__SHOW_JOB_REQUEST__INIT;
	int rc = fh_job_ref_check("JOB", job, st);

	if (rc)
		return rc;
	show.job = (char *)job;
	req.call_case = FH__V1__REQUEST__CALL_SHOW_JOB;
	req.show_job = &show;
	return ctx_call(c, &req, 0, out, st);
}

char *job_handle(const Fh__V1__Job *j, char buf[JOB_LABEL_MAX])
{
	if (j->name && *j->name)
		snprintf(buf, JOB_LABEL_MAX, "%.64s", j->name);
	else
		snprintf(buf, JOB_LABEL_MAX, "%" PRIu64, j->id);
	return buf;
}

char *job_label(const Fh__V1__Job *j, char buf[JOB_LABEL_MAX])
{
	char own[32];

	snprintf(own, sizeof own, "job-%" PRIu64, j->id);
	if (!j->name || !*j->name || !strcmp(j->name, own))
		snprintf(buf, JOB_LABEL_MAX, "%" PRIu64, j->id);
	else
		snprintf(buf, JOB_LABEL_MAX, "%" PRIu64 " (%.64s)", j->id, j->name);
	return buf;
}

int job_is_final(Fh__V1__JobState s)
{
	return s == FH__V1__JOB_STATE__DONE || s == FH__V1__JOB_STATE__FAILED || s == FH__V1__JOB_STATE__STOPPED;
}

int job_exit_code(const Fh__V1__Job *j)
{
	if (j->state == FH__V1__JOB_STATE__DONE)
		return EXIT_DONE;
	if (j->error && j->error->code == FH__V1__ERROR_CODE__INTERRUPTED)
		return EXIT_RESUMABLE;
	return EXIT_JOB;
}

static void print_validation(const Fh__V1__Sample *s)
{
	static const char *const name[] = {"return", "sharpe", "max_drawdown", "trades"};
	char v[OUT_TEXT];
	int n = 0;

	for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
		double x = sample_value(s, name[i]);

		if (x == x)
			printf("%s %s %s", n++ ? "," : "", name[i], text_real(x, v));
	}
}

void job_print_line(const Fh__V1__Job *j)
{
	char label[JOB_LABEL_MAX], text[FH_TEXT_MAX], d[OUT_TEXT];

	printf("job %s %s", job_label(j, label), text_state_painted(j->state));
	if (j->planned_steps)
		printf(" at step %" PRIu64 " of %" PRIu64, j->step, j->planned_steps);
	if (job_is_final(j->state) && j->ended_ns > j->started_ns && j->started_ns)
		printf(", last run %s", text_duration((double)(j->ended_ns - j->started_ns) * 1e-9, d));
	if (j->error && j->error->text)
		printf(": %s", text_clean(j->error->text, text, sizeof text));
	else if (j->reason && *j->reason && j->state != FH__V1__JOB_STATE__DONE)
		printf(": %s", text_clean(j->reason, text, sizeof text));
	if (j->last_validation && job_is_final(j->state)) {
		printf("; %s", j->last_validation->split && *j->last_validation->split ? j->last_validation->split : "validation");
		if (j->spec && j->spec->run && j->spec->run->population > 1)
			printf(" of trial %" PRIu32, j->last_validation->trial);
		print_validation(j->last_validation);
	}
	putchar('\n');
}
