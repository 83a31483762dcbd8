/* fhctl start and spec: a specification from file, --set and defaults, checked here with the daemon's own code before
 * anything is sent. One thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cmd.h"
#include "client/job_ref.h"
#include "client/output.h"
#include "client/watch.h"
#include "proto/spec.h"
#include "proto/text.h"

#define FILE_ARENA_MAX (4u << 20)
#define SPEC_ARENA_MAX (1u << 20)

/* ---- the specification */

static int read_file(const char *path, struct fh_job_file *j, struct fh_status *st)
{
	struct fh_arena a;
	char *text;
	size_t len;
	int rc;

	fh_arena_init(&a, FILE_ARENA_MAX);
	rc = fh_file_read(path, &a, &text, &len, st);
	if (rc == 0)
		rc = fh_job_file_parse(text, len, strcmp(path, "-") ? path : "standard input", j, st);
	fh_arena_release(&a);
	return rc;
}

static int take_label(struct fh_job_file *j, const char *pair, struct fh_status *st)
{
	char key[FH_NAME_MAX];
	const char *eq = strchr(pair, '=');

	if (!eq || eq == pair || (size_t)(eq - pair) >= sizeof key)
		return fh_fail(st, FH_INVALID, "--label %.60s: KEY=VALUE is needed, for example team=a", pair);
	memcpy(key, pair, (size_t)(eq - pair));
	key[eq - pair] = 0;
	return fh_job_file_label(j, key, eq + 1, st);
}

/* File, then --instrument, then --set, then --name and --label. Ranges of single keys are checked, the rules between keys are not. */
static int gather(const struct ctx *c, struct fh_job_file *j, struct fh_status *st)
{
	const char *v;
	int rc = 0;

	fh_job_file_init(j);
	if (c->argc)
		rc = read_file(c->argv[0], j, st);
	v = opt_text(c, "instrument");
	if (rc == 0 && v)
		rc = fh_job_file_instrument(j, v, st);
	for (int i = 0; rc == 0 && (v = opt_nth(c, "set", i)); i++)
		rc = fh_spec_set_pair(&j->spec, v, st);
	for (int i = 0; rc == 0 && (v = opt_nth(c, "label", i)); i++)
		rc = take_label(j, v, st);
	v = opt_text(c, "name");
	if (rc == 0 && v) {
		rc = fh_job_name_check("--name", v, st);
		if (rc == 0)
			snprintf(j->name, sizeof j->name, "%s", v);
	}
	return rc;
}

/* ---- start */

static int send_start(struct ctx *c, struct fh_job_file *j, struct fh_answer *out, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__StartJobRequest start = FH__V1__START_JOB_REQUEST__INIT;
	Fh__V1__Label label[FH_LABELS_MAX], *labels[FH_LABELS_MAX];
	struct fh_arena a;
	int rc;

	for (int i = 0; i < j->labels; i++) {
		fh__v1__label__init(&label[i]);
		label[i].key = j->label[i].key;
		label[i].value = j->label[i].value;
		labels[i] = &label[i];
	}
	start.n_label = (size_t)j->labels;
	start.label = labels;
	start.name = j->name[0] ? j->name : NULL;
	req.call_case = FH__V1__REQUEST__CALL_START_JOB;
	req.start_job = &start;
	fh_arena_init(&a, SPEC_ARENA_MAX);
	rc = fh_spec_to_message(&j->spec, &a, &start.spec, st);
	if (rc == 0)
		rc = ctx_call(c, &req, 0, out, st);
	fh_arena_release(&a);
	return rc;
}

/* A name that is taken by a job which is over: whoever wanted it to run again learns how. */
static void say_how_again(const struct ctx *c, const Fh__V1__Job *j)
{
	char handle[JOB_LABEL_MAX];

	if (j->state == FH__V1__JOB_STATE__DONE)
		ctx_note(c, "It is over; to run it again give it another --name.");
	else if (j->last_checkpoint && *j->last_checkpoint)
		ctx_note(c, "It is over; fhctl resume %s goes on from its last checkpoint, another --name starts afresh.", job_handle(j, handle));
	else
		ctx_note(c, "It is over; another --name starts afresh.");
}

static void say_started(const struct ctx *c, const Fh__V1__Job *j)
{
	char label[JOB_LABEL_MAX], handle[JOB_LABEL_MAX];

	job_label(j, label);
	if (j->attached)
		ctx_note(c, "attached to job %s, which is %s: it has the same name and specification", label, text_state(j->state));
	if (!c->quiet && c->output == OUT_TABLE && !opt_flag(c, "wait") && !opt_flag(c, "follow")) {
		job_print_line(j);
		if (job_is_final(j->state))
			say_how_again(c, j);
		else
			ctx_note(c, "Follow it with: fhctl metrics %s -f", job_handle(j, handle));
	} else if (!j->attached) {
		ctx_note(c, "job %s is %s", label, text_state(j->state));
	}
}

static int run_start(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_job_file j;
	struct fh_answer a;
	struct watch w = {.rows = opt_flag(c, "follow") ? WATCH_VALIDATIONS : WATCH_NO_ROWS};
	int rc = gather(c, &j, &st), code = EXIT_DONE;

	if (rc == 0)
		rc = spec_check(&j.spec, &st);
	if (rc == 0)
		rc = send_start(c, &j, &a, &st);
	if (rc) {
		code = ctx_fail(c, &st);
		if (rc == FH_UNKNOWN && j.name[0])
			ctx_note(c, "Starting '%s' again is safe: it attaches to the job if it is there.", j.name);
		return code;
	}
	say_started(c, a.reply->job->job);
	if (opt_flag(c, "follow") || opt_flag(c, "wait")) {
		if (c->timeout_given && opt_flag(c, "follow"))
			w.patience_ms = c->timeout_ms;
		else if (c->timeout_given)
			w.deadline_ms = c->timeout_ms;
		code = watch_job(c, &w, a.reply->job->job);
	} else {
		output_message(c, &a.reply->job->base);
	}
	fh_answer_release(&a);
	return code;
}

/* ---- spec */

/* A job file's own name and labels, behind its sections. */
static void print_name_and_labels(const struct fh_job_file *j)
{
	if (j->name[0]) {
		printf("\nname: ");
		fh_print_yaml_word(stdout, j->name, 1);
		printf("\n");
	}
	for (int i = 0; i < j->labels; i++) {
		printf("%s  ", i ? "" : "\nlabels:\n");
		fh_print_yaml_word(stdout, j->label[i].key, 1);
		printf(": ");
		fh_print_yaml_word(stdout, j->label[i].value, 1);
		printf("\n");
	}
}

static int run_spec(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__JobSpec *m;
	struct fh_job_file j;
	struct fh_arena a;
	int rc = gather(c, &j, &st);

	/* Of a whole specification the rules between keys are checked as well; the bare default lacks its data set. */
	if (rc == 0 && j.spec.data.dataset[0])
		rc = spec_check(&j.spec, &st);
	if (rc)
		return ctx_fail(c, &st);
	if (c->output == OUT_TABLE) {
		rc = fh_spec_print(stdout, &j.spec, &st);
		print_name_and_labels(&j);
		return rc ? ctx_fail(c, &st) : EXIT_DONE;
	}
	fh_arena_init(&a, SPEC_ARENA_MAX);
	rc = fh_spec_to_message(&j.spec, &a, &m, &st);
	if (rc == 0)
		output_message(c, &m->base);
	fh_arena_release(&a);
	return rc ? ctx_fail(c, &st) : EXIT_DONE;
}

#define INSTRUMENT {"instrument", 0, "NAME", "tick, multiplier, costs and lot of ES, CL, fx, ..., over the file; --set goes over it"}

static const struct opt start_opts[] = {
	{"set", 0, "KEY=VALUE", "one key of the specification, over the file; may be repeated"},
	INSTRUMENT,
	{"name", 'n', "NAME", "your own name for the job"},
	{"label", 'l', "KEY=VALUE", "a label, for fhctl list --label; may be repeated"},
	{"wait", 'w', NULL, "return when the job has ended, with its outcome as exit code"},
	{"follow", 'f', NULL, "the same, with progress and metrics"},
	{NULL, 0, NULL, NULL},
};
static const struct opt spec_opts[] = {
	{"set", 0, "KEY=VALUE", "one key of the specification, over the file; may be repeated"},
	INSTRUMENT,
	{NULL, 0, NULL, NULL},
};

const struct command cmds_start[] = {
	{"start", GROUP_JOBS, "[SPEC]", "start a job, or attach to the one of the same name and specification",
	 "SPEC is a job file in YAML or JSON, - for standard input; without it every key has its default.\n"
	 "fhctl spec prints all keys with what they mean.\n"
	 "\n"
	 "  fhctl start job.yaml -f\n"
	 "  fhctl start --set data.dataset=eurusd --set run.epochs=20 --name trial-1\n"
	 "\n"
	 "With --wait, --timeout is the time for all of it (exit code 124 when it passes, the job goes on). With -f there is\n"
	 "no such limit: --timeout is then how long a daemon that went away is waited for (60 s unless given).\n"
	 "Ctrl-C while waiting or following detaches; the job goes on.",
	 start_opts, 0, 1, OUT_ALL, run_start},
	{"spec", GROUP_JOBS, "[SPEC]", "print the commented default specification, or SPEC made complete",
	 "What it prints is a job file. Needs no daemon.\n"
	 "\n"
	 "  fhctl spec > job.yaml\n"
	 "  fhctl spec job.yaml --set learn.lr=1e-3",
	 spec_opts, 0, 1, OUT_ALL, run_spec},
	{.name = NULL},
};
