/* Evaluations that training does at its boundaries: the greedy policy over the validation split, and at the end of the
 * job both networks over validation and test.
 *
 * Runs in slices on the trainer's worker; the network answers where it was trained (backend.h, act). Invariant:
 * position.evaluated counts finished evaluations only, so a checkpoint taken in the middle of one starts it again and gets
 * the same numbers. What networks said last time at the same bars is kept as guesses for the next time; it changes how
 * long an evaluation takes and no number. */
#include "gpu/trainer_impl.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/eval_metrics.h"
#include "proto/status.h"

#define GUESS_BYTES_MAX ((size_t)64 << 20) /* of one split, over all trials; larger ones go without */

struct task { int split, policy, trial; };

static int wanted(const struct trainer *t, int split)
{
	return t->split[split].end > t->split[split].begin;
}

static int due(const struct trainer *t)
{
	int64_t every = t->spec.run.validate_every;

	return t->at.step == t->planned || (every > 0 && t->at.step % every == 0);
}

/* The list of this step's evaluations without the trials; returns how many. */
static int tasks(const struct trainer *t, struct task list[4])
{
	int n = 0, last = t->at.step == t->planned;

	if (!due(t))
		return 0;
	for (int split = FH_SPLIT_VALIDATION; split <= (last ? FH_SPLIT_TEST : FH_SPLIT_VALIDATION); split++)
		for (int policy = FH_POLICY_TARGET; policy <= FH_POLICY_ONLINE; policy++)
			if (wanted(t, split) && (last || policy == t->spec.run.validate_policy))
				list[n++] = (struct task){split, policy, 0};
	return n;
}

int validate_count(const struct trainer *t)
{
	struct task list[4];

	return tasks(t, list) * t->plan.population;
}

static struct task task_at(const struct trainer *t)
{
	struct task list[4], now;

	tasks(t, list);
	now = list[t->at.evaluated / t->plan.population];
	now.trial = (int)(t->at.evaluated % t->plan.population);
	return now;
}

void validate_abandon(struct trainer *t)
{
	evaluation_free(t->evaluation);
	t->evaluation = NULL;
}

void validate_forget(struct trainer *t)
{
	for (int i = 0; i < FH_SPLITS; i++) {
		free(t->guess[i]);
		t->guess[i] = NULL;
	}
}

/* Where the guesses of a trial lie; NULL: it goes without. */
static uint8_t *guesses(struct trainer *t, struct task now)
{
	size_t one = (size_t)(t->split[now.split].end - t->split[now.split].begin) * EVAL_GUESS_SIDES, all = one * (size_t)t->plan.population;

	if (all > GUESS_BYTES_MAX)
		return NULL;
	if (!t->guess[now.split] && (t->guess[now.split] = malloc(all)))
		memset(t->guess[now.split], EVAL_GUESS_NONE, all);
	return t->guess[now.split] ? t->guess[now.split] + one * (size_t)now.trial : NULL;
}

static int act(void *ctx, int rows, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct trainer *t = ctx;

	return t->backend->act(t->x, rows, bar, portfolio, action, st);
}

static int start(struct trainer *t, struct task now, struct fh_status *st)
{
	struct eval_actor actor = {.act = act, .ctx = t};
	struct env_config config;
	int rc = t->backend->act_open(t->x, now.policy, now.trial, &actor.rows, &actor.few, st);

	if (rc)
		return rc;
	eval_env_config(&t->spec, t->spec.env.reward_scale, &config);
	const struct eval_setup setup = {.actor = &actor, .market = t->market, .config = &config, .split = t->split[now.split],
					 .windows = (int)t->spec.run.validate_windows, .guess = guesses(t, now)};
	return evaluation_make(&setup, &t->evaluation, st);
}

static void record(struct trainer *t, struct task now)
{
	struct eval_report report;
	struct record *r = readback_push(t);

	evaluation_report(t->evaluation, &report);
	r->validation = 1;
	r->split = now.split;
	r->policy = now.policy;
	r->trial = now.trial;
	eval_metric_values(&report, r->acc);
}

int validate_run(struct trainer *t, int64_t budget_ns, struct fh_status *st)
{
	int64_t end = monotonic_ns() + budget_ns;

	while (t->at.evaluated < validate_count(t)) {
		struct task now = task_at(t);
		int64_t left = end - monotonic_ns();
		if (!t->evaluation) {
			if (!readback_room(t))
				return 0;
			int rc = start(t, now, st);
			if (rc)
				return rc;
		}
		int over = evaluation_run_on(t->evaluation, left > 0 ? left : 0, st);
		if (over <= 0)
			return over;
		record(t, now);
		validate_abandon(t);
		t->at.evaluated++;
		if (left <= 0)
			return t->at.evaluated == validate_count(t);
	}
	return 1;
}
