/* Looks at a checkpoint's tensors before they reach a trainer: a file may be damaged or made by someone else, and its
 * indices would be used without another look. Pure functions on host copies, any thread. */
#include "gpu/dqn/dqn.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "gpu/dqn/model.h"
#include "gpu/host/round.h"
#include "gpu/layout.h"
#include "proto/status.h"

#define COUNTER_MAX ((int64_t)1 << 53) /* far beyond any run; keeps later sums from wrapping */

/* What the checks of one trial share. */
struct look {
	const struct plan *plan;
	const struct dqn_dims *d;
	void *const *tensor;
	int trial;
	struct fh_split train;
	int32_t episode_length;
};

static const void *at(const struct look *k, int tensor)
{
	return (const char *)k->tensor[tensor] + k->plan->tensor[tensor].stride * (size_t)k->trial;
}

static int bad(const struct look *k, int tensor, int64_t i, double value, const char *why, struct fh_status *st)
{
	return fh_fail(st, FH_CORRUPT, "checkpoint: %s[%lld] of trial %d is %g: %s", k->plan->tensor[tensor].name, (long long)i,
		       k->trial, value, why);
}

static double element(enum st_dtype type, const void *data, int64_t i)
{
	switch (type) {
	case ST_F64: return ((const double *)data)[i];
	case ST_F32: return (double)((const float *)data)[i];
	case ST_BF16: return (double)bf16_to(((const uint16_t *)data)[i]);
	case ST_I32: return (double)((const int32_t *)data)[i];
	default: return (double)((const uint8_t *)data)[i];
	}
}

static int all_finite(const struct look *k, int tensor, struct fh_status *st)
{
	const struct plan_tensor *t = k->plan->tensor + tensor;
	const void *data = at(k, tensor);

	for (int64_t i = 0; i < t->elements; i++)
		if (!isfinite(element(t->desc.dtype, data, i)))
			return bad(k, tensor, i, element(t->desc.dtype, data, i), "not finite", st);
	return 0;
}

/* lo <= every element <= hi. */
static int all_within(const struct look *k, int tensor, double lo, double hi, struct fh_status *st)
{
	const struct plan_tensor *t = k->plan->tensor + tensor;
	const void *data = at(k, tensor);

	for (int64_t i = 0; i < t->elements; i++) {
		double v = element(t->desc.dtype, data, i);
		if (!(v >= lo && v <= hi))
			return bad(k, tensor, i, v, "out of range", st);
	}
	return 0;
}

/* The actions of branch b are below A_b. */
static int all_actions(const struct look *k, int tensor, struct fh_status *st)
{
	const uint8_t *a = at(k, tensor);

	for (int64_t i = 0; i < k->plan->tensor[tensor].elements; i++)
		if (a[i] >= k->d->A[i % k->d->D])
			return bad(k, tensor, i, a[i], "no such action", st);
	return 0;
}

static int look_clock(const struct look *k, const struct dqn_clock *fresh, struct fh_status *st)
{
	struct dqn_clock c;

	memcpy(&c, at(k, T_CLOCK), sizeof c);
	if (memcmp(&c, fresh, offsetof(struct dqn_clock, step)) != 0)
		return fh_fail(st, FH_CORRUPT, "checkpoint: the clock of trial %d does not belong to its specification", k->trial);
	if (c.step < 0 || c.step > c.planned)
		return fh_fail(st, FH_CORRUPT, "checkpoint: trial %d stands at step %lld of %lld", k->trial, (long long)c.step,
			       (long long)c.planned);
	if (c.applied < 0 || c.applied > COUNTER_MAX || c.vector_step < 0 || c.vector_step > COUNTER_MAX || c.stored < 0 ||
	    c.stored > COUNTER_MAX || c.fresh != 0 || c.skipped < 0 || c.skipped > c.step || c.skipped_run < 0 ||
	    c.skipped_run > c.skipped)
		return fh_fail(st, FH_CORRUPT, "checkpoint: a counter of trial %d is out of range", k->trial);
	if (!isfinite(c.largest) || c.largest < 0)
		return fh_fail(st, FH_CORRUPT, "checkpoint: the largest priority of trial %d is %g", k->trial, (double)c.largest);
	return 0;
}

/* Every inner node is the sum of its children and only stored transitions have a priority. */
static int look_tree(const struct look *k, struct fh_status *st)
{
	const float *node = at(k, T_TREE);
	struct dqn_clock c;
	int64_t C = k->d->C;

	memcpy(&c, at(k, T_CLOCK), sizeof c);
	for (int64_t i = 0; i < C; i++) {
		float p = node[C + i];
		if (!isfinite(p) || p < 0 || (i >= c.stored && p != 0))
			return bad(k, T_TREE, C + i, (double)p, "no priority of a stored transition", st);
	}
	for (int64_t i = 1; i < C; i++)
		if (node[i] != node[2 * i] + node[2 * i + 1])
			return bad(k, T_TREE, i, (double)node[i], "not the sum of its children", st);
	return 0;
}

static int look_environments(const struct look *k, struct fh_status *st)
{
	static const int money[] = {T_ENV_CASH, T_ENV_EQUITY, T_ENV_PEAK, T_ENV_Q, T_ENV_ENTRY, T_ENV_SIGMA, T_ENV_RETURN, T_OBS};
	const int32_t *t = at(k, T_ENV_T), *entry = at(k, T_ENV_ENTRY_BAR);
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < sizeof money / sizeof money[0]; i++)
		rc = all_finite(k, money[i], st);
	if (rc == 0)
		rc = all_within(k, T_ENV_T, env_first_bar((int32_t)k->train.begin), (double)k->train.end - 2, st);
	if (rc == 0)
		rc = all_within(k, T_ENV_STEPS, 0, k->episode_length - 1, st);
	for (int e = 0; rc == 0 && e < k->d->N; e++)
		if (entry[e] < 0 || entry[e] > t[e])
			rc = bad(k, T_ENV_ENTRY_BAR, e, entry[e], "after the bar the environment stands at", st);
	return rc;
}

static int look_transitions(const struct look *k, struct fh_status *st)
{
	static const int finite[] = {T_RP_S, T_RP_S2, T_RP_R, T_RP_G, T_PEND_S, T_PEND_R};
	int rc = 0;

	for (unsigned i = 0; rc == 0 && i < sizeof finite / sizeof finite[0]; i++)
		rc = all_finite(k, finite[i], st);
	if (rc == 0)
		rc = all_actions(k, T_RP_A, st);
	if (rc == 0)
		rc = all_actions(k, T_PEND_A, st);
	if (rc == 0)
		rc = all_within(k, T_PEND_COUNT, 0, k->d->n - 1, st);
	if (rc == 0)
		rc = all_within(k, T_PEND_HEAD, 0, k->d->n - 1, st);
	return rc;
}

static int look_trial(const struct look *k, const struct fh_spec *spec, struct fh_status *st)
{
	static const int weights[] = {T_PARAM, T_TARGET, T_M, T_V};
	struct dqn_clock fresh;
	int rc;

	dqn_clock_init(spec, k->train, k->trial, &fresh);
	rc = look_clock(k, &fresh, st);
	for (unsigned i = 0; rc == 0 && i < sizeof weights / sizeof weights[0]; i++)
		rc = all_finite(k, weights[i], st);
	if (rc == 0)
		rc = look_environments(k, st);
	if (rc == 0)
		rc = look_transitions(k, st);
	return rc ? rc : look_tree(k, st);
}

int dqn_restore(const struct plan *plan, const struct fh_spec *spec, const struct fh_split *split, void *const *tensor,
		struct fh_status *st)
{
	struct look k = {.plan = plan, .d = (const struct dqn_dims *)plan->dims, .tensor = tensor,
			 .train = split[FH_SPLIT_TRAIN], .episode_length = (int32_t)spec->env.episode_length};
	int rc = 0;

	for (k.trial = 0; rc == 0 && k.trial < k.d->P; k.trial++)
		rc = look_trial(&k, spec, st);
	return rc;
}
