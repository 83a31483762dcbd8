/* Evaluations that training does at its boundaries: the greedy policy over the validation split, and at the end of the
 * job both networks over validation and test.
 *
 * Runs on the host with a copy of the network, in slices, on the trainer's worker. Invariant: position.evaluated counts
 * finished evaluations only, so a checkpoint taken in the middle of one starts it again and gets the same numbers. */
#include "gpu/trainer_impl.h"

#include "gpu/eval_metrics.h"
#include "proto/status.h"

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

static int start(struct trainer *t, struct task now, struct fh_status *st)
{
	int tensor = now.policy == FH_POLICY_ONLINE ? t->param : t->target;
	size_t bytes = t->plan.tensor[tensor].stride;
	struct env_config config;
	int rc = t->backend->read(t->x, tensor, bytes * (size_t)now.trial, t->weights, bytes, st);

	if (rc)
		return rc;
	if (t->policy)
		policy_set(t->policy, t->weights);
	else
		rc = policy_new(&t->spec, FH_STATE_DIM, t->weights, &t->policy, st);
	if (rc)
		return rc;
	eval_env_config(&t->spec, t->spec.env.reward_scale, &config);
	return evaluation_new(t->policy, NULL, NULL, t->market, &config, t->split[now.split], 0, &t->evaluation, st);
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
		if (!evaluation_run(t->evaluation, left > 0 ? left : 0))
			return 0;
		record(t, now);
		validate_abandon(t);
		t->at.evaluated++;
		if (left <= 0)
			return t->at.evaluated == validate_count(t);
	}
	return 1;
}
