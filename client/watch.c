/* Following a job; see watch.h.
 *
 * Samples come from fh_follow; between them, once a second, ShowJob says where the job is (queue, warm-up, validation),
 * so that the line moves also when reports are rare. Rows go to stdout, the progress line and notices to stderr. */
#include "client/watch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/job_ref.h"
#include "client/output.h"
#include "client/progress.h"
#include "client/wait.h"
#include "proto/text.h"

#define IDLE_MS 1000      /* without a sample: ask where the job is */
#define SHOW_CALL_MS 3000 /* deadline of that question */

struct watching {
	struct ctx *c;
	const struct watch *w;
	struct fh_follow *f;
	struct progress p;
	struct sample_columns *columns;
	char handle[JOB_LABEL_MAX], label[JOB_LABEL_MAX], id[24];
	/* Where the job is, as far as we know. */
	Fh__V1__JobState state;
	uint64_t step, planned;
	char phase[24];
	uint32_t position;
	double rate, eta, loss, q, reward, sharpe;
	Fh__V1__Policy policy; /* of the job's validations, 0 when it does not say */
	int was_away, started; /* started: it has been seen running */
	int64_t deadline_ns, shown_ns;
	uint64_t warned;
};

static void take_job(struct watching *s, const Fh__V1__Job *j)
{
	s->state = j->state;
	s->started |= j->state == FH__V1__JOB_STATE__RUNNING;
	s->planned = j->planned_steps ? j->planned_steps : s->planned;
	s->step = j->step > s->step || j->state != FH__V1__JOB_STATE__RUNNING ? j->step : s->step;
	s->position = j->position;
	s->rate = j->has_steps_per_second ? j->steps_per_second : NAN;
	s->eta = j->has_eta_seconds ? j->eta_seconds : NAN;
	text_clean(j->phase, s->phase, sizeof s->phase);
	if (j->last_report) {
		s->loss = sample_value(j->last_report, "loss");
		s->q = sample_value(j->last_report, "q");
		s->reward = sample_value(j->last_report, "reward_mean");
	}
	if (j->spec && j->spec->run && j->spec->run->has_validate_policy)
		s->policy = j->spec->run->validate_policy;
	if (j->last_validation)
		s->sharpe = sample_value(j->last_validation, "sharpe");
}

static size_t add_value(char *text, size_t size, size_t at, const char *name, double x)
{
	char v[OUT_TEXT];

	if (!isfinite(x) || at >= size)
		return at;
	snprintf(v, sizeof v, "%.4g", x);
	return at + (size_t)snprintf(text + at, size - at, "  %s %s", name, v);
}

/* Samples tell neither speed nor time left: who reads the line gets them as they are when it is drawn. */
static int line_is_due(const struct watching *s)
{
	return s->p.tty || (s->w->rows != WATCH_NO_ROWS && progress_due(&s->p));
}

static void draw(struct watching *s, int force)
{
	char text[256], d[OUT_TEXT];
	double fraction = s->planned ? (double)s->step / (double)s->planned : -1;
	size_t at;

	if (s->w->rows == WATCH_NO_ROWS && !s->p.tty)
		return;
	if (!s->p.tty && !force && s->planned && s->step >= s->planned)
		return; /* once, when it has ended */
	if (fh_follow_away(s->f)) {
		progress_update(&s->p, fraction, force, "the daemon is away, waiting for it");
		return;
	}
	if (s->state == FH__V1__JOB_STATE__QUEUED) {
		if (s->position)
			progress_update(&s->p, -1, force, "queued, number %" PRIu32 " in the queue", s->position);
		else
			progress_update(&s->p, -1, force, "queued");
		return;
	}
	at = (size_t)snprintf(text, sizeof text, "step %" PRIu64 "/%" PRIu64, s->step, s->planned);
	if (s->state != FH__V1__JOB_STATE__RUNNING)
		at += (size_t)snprintf(text + at, sizeof text - at, "  %s", text_state(s->state));
	else if (s->phase[0] && strcmp(s->phase, "learn") != 0)
		at += (size_t)snprintf(text + at, sizeof text - at, "  %s", s->phase);
	at = add_value(text, sizeof text, at, "loss", s->loss);
	at = add_value(text, sizeof text, at, "q", s->q);
	at = add_value(text, sizeof text, at, "reward", s->reward);
	at = add_value(text, sizeof text, at, "sharpe", s->sharpe);
	if (isfinite(s->rate) && s->rate > 0 && at < sizeof text)
		at += (size_t)snprintf(text + at, sizeof text - at, "  %.0f steps/s", s->rate);
	if (isfinite(s->eta) && s->state == FH__V1__JOB_STATE__RUNNING && at < sizeof text)
		snprintf(text + at, sizeof text - at, "  eta %s", text_duration(s->eta, d));
	progress_update(&s->p, fraction, force, "%s", text);
}

/* Asks the daemon where the job is. Failures are the follower's to notice. */
static void refresh(struct watching *s)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ShowJobRequest show = FH__V1__SHOW_JOB_REQUEST__INIT;
	struct fh_answer a;

	show.job = s->id;
	req.call_case = FH__V1__REQUEST__CALL_SHOW_JOB;
	req.show_job = &show;
	s->shown_ns = wait_now_ns();
	if (ctx_call(s->c, &req, SHOW_CALL_MS, &a, NULL))
		return;
	take_job(s, a.reply->job->job);
	fh_answer_release(&a);
}

static void print_row(struct watching *s, const Fh__V1__Sample *m)
{
	int every = s->w->rows == WATCH_EVERY_SAMPLE;

	if (s->w->rows == WATCH_NO_ROWS || (!every && (m->kind == FH__V1__SAMPLE_KIND__REPORT || s->c->output != OUT_TABLE)))
		return;
	progress_clear(&s->p);
	if (every && s->c->output == OUT_CSV)
		sample_print_csv(s->columns, m);
	else if (every && s->c->output == OUT_JSON)
		fh_print_json(stdout, &m->base, 1, NULL);
	else
		sample_print_line(m);
	fflush(stdout);
}

static void take_sample(struct watching *s, const Fh__V1__Sample *m)
{
	double x;

	if (m->has_step && m->step > s->step)
		s->step = m->step;
	if (m->has_state) {
		s->state = m->state;
		s->started |= m->state == FH__V1__JOB_STATE__RUNNING;
	}
	if (m->kind == FH__V1__SAMPLE_KIND__REPORT) {
		s->state = FH__V1__JOB_STATE__RUNNING;
		s->started = 1;
		s->loss = sample_value(m, "loss");
		s->q = sample_value(m, "q");
		s->reward = sample_value(m, "reward_mean");
		strcpy(s->phase, "learn");
		if (s->w->rows != WATCH_NO_ROWS) {
			progress_clear(&s->p);
			sample_warn(s->c, s->columns, m, &s->warned);
		}
	}
	/* The line shows what the job is judged by, not the test split and not the other network. */
	x = sample_value(m, "sharpe");
	if (m->kind == FH__V1__SAMPLE_KIND__VALIDATION && x == x && (!m->split || !strcmp(m->split, "validation")) &&
	    (!m->has_policy || !s->policy || m->policy == s->policy))
		s->sharpe = x;
	print_row(s, m);
}

/* How to come back, on stderr also with -q: without it the person is lost. */
static void say_again(const struct watching *s)
{
	if (s->w->rows == WATCH_NO_ROWS)
		fprintf(stderr, "Wait for it again with: fhctl wait %s\n", s->handle);
	else
		fprintf(stderr, "Watch it again with: fhctl metrics %s -f --since %" PRIu64 "\n", s->handle, fh_follow_seq(s->f));
}

static int ended_early(struct watching *s, const struct fh_status *st)
{
	/* A job that has run and waits again was interrupted by the daemon's stop: it goes on when fhd is back. */
	int resumable = s->started && s->state == FH__V1__JOB_STATE__QUEUED;

	progress_end(&s->p);
	fprintf(stderr, "fhctl %s: %s; the job was last seen %s at step %" PRIu64 "%s\n", s->c->cmd->name, st->text,
		text_state(s->state), s->step, resumable ? ": it goes on when fhd is back" : "");
	say_again(s);
	return resumable ? EXIT_RESUMABLE : EXIT_STREAM;
}

static int detached(struct watching *s)
{
	progress_end(&s->p);
	fprintf(stderr, "Detached; job %s goes on.\n", s->label);
	say_again(s);
	return exit_code_of_signal();
}

static int out_of_time(struct watching *s)
{
	progress_end(&s->p);
	if (fh_follow_away(s->f)) {
		struct fh_status st = FH_STATUS_INIT;

		fh_fail(&st, FH_UNAVAILABLE, "no daemon answers at %s", fh_client_address(s->c->client));
		return ended_early(s, &st);
	}
	fprintf(stderr, "fhctl %s: the deadline has passed; job %s is %s at step %" PRIu64 "\n", s->c->cmd->name, s->label,
		text_state(s->state), s->step);
	say_again(s);
	return EXIT_DEADLINE;
}

/* The job has ended: how. */
static int finish(struct watching *s)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	int code;

	code = job_show(s->c, s->id, &a, &st);
	if (code) {
		progress_end(&s->p);
		return ctx_fail(s->c, &st);
	}
	take_job(s, a.reply->job->job);
	if (s->state == FH__V1__JOB_STATE__DONE && s->planned)
		s->step = s->planned;
	draw(s, s->w->rows == WATCH_VALIDATIONS || s->p.tty);
	progress_end(&s->p);
	code = job_exit_code(a.reply->job->job);
	if (s->w->rows == WATCH_EVERY_SAMPLE) {
		if (s->c->output == OUT_TABLE)
			job_print_line(a.reply->job->job);
	} else if (!output_message(s->c, &a.reply->job->base)) {
		job_print_line(a.reply->job->job);
	}
	fh_answer_release(&a);
	return code;
}

static void note_absence(struct watching *s)
{
	int away = fh_follow_away(s->f);

	if (away && !s->was_away) {
		progress_clear(&s->p);
		ctx_note(s->c, "the daemon at %s is away; waiting for it", fh_client_address(s->c->client));
	} else if (!away && s->was_away) {
		progress_clear(&s->p);
		ctx_note(s->c, "the daemon is back");
	}
	s->was_away = away;
}

static int watch_loop(struct watching *s)
{
	for (;;) {
		struct fh_status st = FH_STATUS_INIT;
		const Fh__V1__Sample *m;
		int64_t left_ms = IDLE_MS, now;
		int rc;

		if (s->deadline_ns) {
			left_ms = (s->deadline_ns - wait_now_ns() + 999999) / 1000000;
			if (left_ms <= 0)
				return out_of_time(s);
		}
		rc = fh_follow_next(s->f, left_ms < IDLE_MS ? left_ms : IDLE_MS, &m, &st);
		note_absence(s);
		if (rc == FH_INTERRUPTED)
			return detached(s);
		if (rc == FH_UNAVAILABLE || rc == FH_DEADLINE)
			return ended_early(s, &st);
		if (rc < 0) {
			progress_end(&s->p);
			return ctx_fail(s->c, &st);
		}
		if (rc == 1 && s->w->events && tfevents_add(s->w->events, m, &st)) {
			progress_end(&s->p);
			return ctx_fail(s->c, &st);
		}
		if (rc == 1)
			take_sample(s, m);
		else if (fh_follow_done(s->f))
			return finish(s);
		now = wait_now_ns();
		if (!s->was_away && now - s->shown_ns >= (int64_t)IDLE_MS * 1000000 && (rc == 0 || line_is_due(s)))
			refresh(s);
		draw(s, 0);
	}
}

int watch_job(struct ctx *c, const struct watch *w, const Fh__V1__Job *job)
{
	struct watching s = {.c = c, .w = w, .rate = NAN, .eta = NAN, .loss = NAN, .q = NAN, .reward = NAN, .sharpe = NAN};
	struct fh_status st = FH_STATUS_INIT;
	int code;

	progress_init(&s.p, c->quiet);
	if (w->rows == WATCH_EVERY_SAMPLE && !s.p.tty)
		s.p.quiet = 1; /* the rows tell it all */
	job_handle(job, s.handle);
	job_label(job, s.label);
	snprintf(s.id, sizeof s.id, "%" PRIu64, job->id);
	s.deadline_ns = w->deadline_ms ? wait_now_ns() + w->deadline_ms * 1000000 : 0;
	s.columns = sample_columns_new(job->spec ? job->spec->model : NULL);
	if (!s.columns) {
		fh_fail(&st, FH_EXHAUSTED, "no memory to watch a job");
		return ctx_fail(c, &st);
	}
	take_job(&s, job);
	if (w->rows == WATCH_EVERY_SAMPLE && c->output == OUT_CSV)
		sample_print_csv_head(s.columns);
	if (fh_follow_new(c->client, job->id, w->since, w->patience_ms ? w->patience_ms : WATCH_PATIENCE_MS, &s.f, &st)) {
		code = ctx_fail(c, &st);
	} else {
		code = watch_loop(&s);
		fh_follow_free(s.f);
	}
	sample_columns_free(s.columns);
	return code;
}
