/* Evaluations that training does at its boundaries: the greedy policy over the validation split, and at the end of the
 * job both networks over validation and test. The trials of a population play side by side, as many as there is memory for.
 *
 * Runs in slices on the trainer's worker; the networks answer where they were trained (backend.h, act). Where a device keeps the networks
 * that act, nothing waits for a short evaluation but who needs it finished: training goes on, and pieces of it are played while the device has
 * launches in front of it. Invariant: in a checkpoint position.evaluated counts finished evaluations only, one of each trial, so one taken in the
 * middle of an evaluation starts it again and gets the same numbers, whoever plays beside it; what training has left behind is finished before.
 * What networks said last time at the same bars is kept as guesses for the next time; it changes how long an evaluation takes and no number. */
#include "gpu/trainer_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/eval_metrics.h"
#include "gpu/host/threads.h"
#include "proto/status.h"

#define EVALUATION_BYTES_MAX ((size_t)512 << 20) /* host memory of the trials that play side by side, unless one alone needs more */
#define ROOM_BYTES_MAX ((size_t)32 << 20) /* of memory that is kept from one evaluation to the next */
#define GUESS_BYTES_MAX ((size_t)64 << 20) /* of one split, over all trials; larger ones go without */
#define BEHIND_BARS_MAX 200000 /* of all trials: a pause or a checkpoint waits for its end, which at up to 0.5 us a bar stays within 100 ms */
#define BEHIND_ROWS 4096       /* that it asks for at once: a piece of some 0.4 ms, and what a device has in front of it takes longer */
#define BEHIND_RUNS 2          /* calls of run() in front of its first piece: by then the device has come to where the networks are kept */

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
	t->behind = 0;
	if (t->room.bytes > ROOM_BYTES_MAX)
		eval_room_free(&t->room);
}

void validate_forget(struct trainer *t)
{
	for (int i = 0; i < FH_SPLITS; i++) {
		free(t->guess[i]);
		free(t->seen[i]);
		t->guess[i] = NULL;
		t->seen[i] = NULL;
	}
	eval_room_free(&t->room);
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

/* What the network was asked with at the last evaluation, of a job of one trial. */
static float *seen(struct trainer *t, struct task now)
{
	size_t n = (size_t)(t->split[now.split].end - t->split[now.split].begin) * FH_PORTFOLIO_FEATURES;

	if (t->plan.population > 1 || n * sizeof(float) > GUESS_BYTES_MAX)
		return NULL;
	if (!t->seen[now.split] && (t->seen[now.split] = malloc(n * sizeof(float))))
		for (size_t i = 0; i < n; i++)
			t->seen[now.split][i] = NAN;
	return t->seen[now.split];
}

static int act(void *ctx, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct trainer *t = ctx;

	return t->backend->act(t->x, part, parts, bar, portfolio, action, st);
}

/* How many trials from this one on are asked to play side by side. */
static int side_by_side(const struct trainer *t, struct task now)
{
	size_t one = (size_t)(t->split[now.split].end - t->split[now.split].begin) * EVAL_BAR_BYTES, most = EVALUATION_BYTES_MAX / one;
	int left = t->plan.population - now.trial, episodes = EVAL_EPISODES_MAX / (int)t->spec.run.validate_windows;

	left = left < episodes ? left : episodes;
	return (size_t)left <= most ? left : most ? (int)most : 1;
}

/* Threads for what the device does not do, if the backend lends none; without any the worker does it alone. */
static struct team *team_of(struct trainer *t, int episodes)
{
	struct fh_status none = FH_STATUS_INIT;

	if (!t->team && episodes > 1 && team_new(0, &t->team, &none))
		t->team = NULL;
	return t->team;
}

/* Nothing is left to do at this step but this one evaluation of all trials, it is short, and the device runs ahead of the host. */
static int may_stay_behind(const struct trainer *t, struct task now, const struct act_limits *can, int trials)
{
	int64_t bars = t->split[now.split].end - t->split[now.split].begin, every = t->spec.run.checkpoint_every;

	return can->kept && t->backend->would_wait && trials == t->plan.population && bars * trials <= BEHIND_BARS_MAX && t->at.step != t->planned &&
	       !(every > 0 && t->at.step % every == 0);
}

static int start(struct trainer *t, struct task now, struct fh_status *st)
{
	struct eval_actor actor = {.act = act, .ctx = t};
	struct env_config config;
	int trials = side_by_side(t, now), windows = (int)t->spec.run.validate_windows, behind, rc;

	rc = t->backend->act_open(t->x, now.policy, now.trial, &trials, &actor.can, st);
	if (rc)
		return rc;
	t->task = now;
	t->task_step = t->at.step;
	t->task_vector_step = t->at.vector_step;
	t->evaluating = trials;
	t->runs_since = 0;
	behind = may_stay_behind(t, now, &actor.can, trials);
	if (behind && actor.can.rows > BEHIND_ROWS)
		actor.can.rows = BEHIND_ROWS;
	if (actor.can.few > actor.can.rows)
		actor.can.few = actor.can.rows;
	if (!actor.can.team)
		actor.can.team = team_of(t, trials * windows);
	eval_env_config(&t->spec, t->spec.env.reward_scale, &config);
	struct eval_setup setup = {.actor = &actor, .market = t->market, .config = &config, .split = t->split[now.split], .windows = windows,
					 .trials = trials, .guess = guesses(t, now), .room = &t->room};
	if (setup.guess && t->backend->kind != FH_DEVICE_HOST) /* there a row more is not nearly free */
		setup.seen = seen(t, now);
	rc = evaluation_make(&setup, &t->evaluation, st);
	t->behind = rc == 0 && behind;
	return rc;
}

static void record(struct trainer *t)
{
	struct record *r = readback_push(t);

	r->validation = 1;
	r->step = t->task_step;
	r->vector_step = t->task_vector_step;
	r->epoch = t->task_step / t->spec.run.steps_per_epoch;
	r->split = t->task.split;
	r->policy = t->task.policy;
	r->trial = t->task.trial;
	r->trials = t->evaluating;
	for (int k = 0; k < t->evaluating; k++) {
		struct eval_report report;

		evaluation_trial_report(t->evaluation, k, &report);
		eval_metric_values(&report, r->acc + k * EVAL_METRICS);
	}
}

/* Works on the evaluation in progress; 1 when it is over. */
static int play(struct trainer *t, int64_t budget_ns, struct fh_status *st)
{
	int over = evaluation_run_on(t->evaluation, budget_ns > 0 ? budget_ns : 0, st);

	if (over > 0) {
		record(t);
		validate_abandon(t);
	}
	return over;
}

int validate_settle(struct trainer *t, int64_t budget_ns, struct fh_status *st)
{
	return t->behind ? play(t, budget_ns, st) : 1;
}

int validate_turn(const struct trainer *t)
{
	return t->behind && t->runs_since >= BEHIND_RUNS && t->backend->would_wait(t->x);
}

int validate_run(struct trainer *t, int64_t budget_ns, struct fh_status *st)
{
	int64_t end = monotonic_ns() + budget_ns;
	int count = validate_count(t), over;

	if (count == 0)
		return 1;
	over = validate_settle(t, budget_ns, st);
	while (over > 0 && t->at.evaluated < count) {
		if (!t->evaluation) {
			if (!readback_room(t))
				return 0;
			int rc = start(t, task_at(t), st);
			if (rc)
				return rc;
		}
		if (t->behind) {
			t->at.evaluated = count;
			return 1;
		}
		int64_t left = end - monotonic_ns();
		over = play(t, left, st);
		t->at.evaluated += over > 0 ? t->evaluating : 0;
		if (left <= 0 && over > 0)
			return t->at.evaluated == count;
	}
	return over;
}
