/* Samples: accumulators copied out behind the work that made them, finished into metric values when they are polled.
 *
 * Thread: the trainer's worker. Invariant: readbacks come back in the order they were asked for, so `inflight` is a
 * plain ring; a record is never dropped because trainer_run() stops while there is no room. */
#include "gpu/trainer_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/eval_metrics.h"
#include "proto/status.h"

int64_t trainer_epoch(const struct trainer *t)
{
	return t->at.step / t->spec.run.steps_per_epoch;
}

int readback_new(struct trainer *t, struct fh_status *st)
{
	int one = t->plan.program->accumulators > EVAL_METRICS ? t->plan.program->accumulators : EVAL_METRICS;
	size_t n = (size_t)t->plan.population * (size_t)one;
	double *all = malloc(n * RECORD_MAX * sizeof *all);
	if (!all)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %d samples", RECORD_MAX);
	for (int i = 0; i < RECORD_MAX; i++)
		t->record[i].acc = all + n * (size_t)i;
	return 0;
}

void readback_free(struct trainer *t)
{
	free(t->record[0].acc);
}

int readback_room(const struct trainer *t)
{
	return t->recorded - t->handed_out + RECORD_RESERVE <= RECORD_MAX;
}

struct record *readback_push(struct trainer *t)
{
	struct record *r = t->record + t->recorded % RECORD_MAX;
	double *acc = r->acc;

	assert(t->recorded - t->handed_out < RECORD_MAX);
	t->recorded++;
	*r = (struct record){.trials = t->plan.population, .step = t->at.step, .vector_step = t->at.vector_step, .epoch = trainer_epoch(t), .acc = acc};
	return r;
}

/* ---------------------------------------------------------------- asking */

static int request(struct trainer *t, enum readback_kind kind, int tensor, int clear, struct fh_status *st)
{
	int rc = t->asked - t->answered == INFLIGHT_MAX ?
		fh_fail(st, FH_EXHAUSTED, "%d readbacks are in flight", INFLIGHT_MAX) :
		t->backend->readback_request(t->x, tensor, clear, (uint64_t)kind, st);

	if (rc)
		return rc;
	t->inflight[t->asked++ % INFLIGHT_MAX] = (struct inflight){kind, t->at.step, t->at.vector_step};
	return 0;
}

/* A report is never skipped: when all slots are in flight, their work is waited for. */
int readback_report(struct trainer *t, struct fh_status *st)
{
	struct fh_status full = FH_STATUS_INIT;
	int rc = request(t, READBACK_REPORT, t->accum, 1, &full);

	if (rc == FH_EXHAUSTED) {
		rc = readback_settle(t, st);
		return rc ? rc : request(t, READBACK_REPORT, t->accum, 1, st);
	}
	if (rc && st)
		*st = full;
	return rc;
}

int readback_clock(struct trainer *t, struct fh_status *st)
{
	struct fh_status full = FH_STATUS_INIT;
	int rc = request(t, READBACK_CLOCK, t->clock, 0, &full);

	t->progress_step = t->at.step;
	if (rc == FH_EXHAUSTED)
		return 0;
	if (rc && st)
		*st = full;
	return rc;
}

/* ---------------------------------------------------------------- taking */

int64_t wall_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void take_clock(struct trainer *t, const struct inflight *from, const void *data)
{
	size_t stride = t->plan.tensor[t->clock].stride;
	int diverged = 0;

	for (int p = 0; p < t->plan.population; p++) {
		struct progress now;
		t->plan.program->progress(&t->plan, (const char *)data + stride * (size_t)p, &now);
		diverged += now.diverged;
		if (p == 0) {
			/* Vector steps enqueued since are no longer needed; that all are done is only known behind the last of them. */
			int64_t since = t->at.vector_step - from->vector_step;

			if (since && now.warm_left)
				now.warm_left = now.warm_left > since ? now.warm_left - since : 0;
			t->progress = now;
		}
	}
	t->diverged = diverged == t->plan.population;
	if (!t->first_step_ns && from->step > t->began_at)
		t->first_step_ns = wall_ns();
}

static void take_report(struct trainer *t, const struct inflight *from, const void *data)
{
	struct record *r = readback_push(t);

	r->step = from->step;
	r->vector_step = from->vector_step;
	r->epoch = from->step / t->spec.run.steps_per_epoch;
	memcpy(r->acc, data, t->plan.tensor[t->accum].bytes);
}

int readback_drain(struct trainer *t, struct fh_status *st)
{
	const void *data;
	uint64_t tag;
	int rc;

	while ((rc = t->backend->readback_poll(t->x, &data, &tag, st)) == 1) {
		const struct inflight *from = t->inflight + t->answered++ % INFLIGHT_MAX;
		assert(t->answered <= t->asked && tag == (uint64_t)from->kind);
		if (from->kind == READBACK_REPORT)
			take_report(t, from, data);
		else
			take_clock(t, from, data);
	}
	return rc;
}

int readback_settle(struct trainer *t, struct fh_status *st)
{
	int rc = t->backend->finish(t->x, st);

	return rc ? rc : readback_drain(t, st);
}

int readback_reset(struct trainer *t, struct fh_status *st)
{
	const void *data;
	uint64_t tag;
	int rc = t->backend->finish(t->x, st);

	while (rc == 0 && (rc = t->backend->readback_poll(t->x, &data, &tag, st)) == 1)
		rc = 0;
	t->asked = t->answered = 0;
	t->recorded = t->handed_out = 0;
	return rc;
}

/* ---------------------------------------------------------------- handing out */

static void finish_value(const struct metric *m, const double *acc, struct trainer_sample *out)
{
	assert(out->values < METRIC_MAX);
	out->metric[out->values] = m;
	out->value[out->values++] = m->finish(acc);
}

/* A record becomes one sample per trial. */
int trainer_poll(struct trainer *t, struct trainer_sample *out, struct fh_status *st)
{
	const struct program *program = t->plan.program;
	int rc = readback_drain(t, st);

	if (rc < 0)
		return rc;
	if (t->recorded == t->handed_out)
		return 0;
	struct record *r = t->record + t->handed_out % RECORD_MAX;
	memset(out, 0, sizeof *out);
	out->validation = r->validation;
	out->split = r->split;
	out->policy = r->policy;
	out->step = r->step;
	out->vector_step = r->vector_step;
	out->epoch = r->epoch;
	out->trial = r->trial + r->next;
	if (r->validation)
		for (int i = 0; i < EVAL_METRICS; i++)
			finish_value(eval_metric + i, r->acc + r->next * EVAL_METRICS, out);
	else
		for (const struct metric *m = program->metric; m->name; m++)
			finish_value(m, r->acc + (size_t)r->next * (size_t)program->accumulators, out);
	if (++r->next == r->trials)
		t->handed_out++;
	return 1;
}
