/* One network of a run as a thing that acts: for validation, evaluation and single decisions.
 *
 * Owns a host network in the precision of the run. One thread at a time per policy. */
#include "gpu/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/checkpoint.h"
#include "gpu/dqn/dqn.h"
#include "gpu/host/net.h"
#include "proto/status.h"

struct policy {
	struct dqn_dims dims;
	struct host_net *net;
};

int policy_new(const struct fh_spec *spec, int state_dim, const float *param, struct policy **out, struct fh_status *st)
{
	static const int actions[DQN_BRANCHES] = {DQN_EXPOSURES, DQN_ORDERS, DQN_URGENCIES};
	struct policy *p = calloc(1, sizeof *p);
	int rc;

	if (!p)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a policy");
	rc = dqn_dims_make(spec, state_dim, actions, DQN_BRANCHES, &p->dims, st);
	if (rc == 0)
		rc = host_net_new(&p->dims, spec->net.v_min, spec->net.v_max, NULL, &p->net, st);
	if (rc) {
		free(p);
		return rc;
	}
	host_net_set(p->net, param);
	*out = p;
	return 0;
}

void policy_set(struct policy *p, const float *param)
{
	host_net_set(p->net, param);
}

void policy_free(struct policy *p)
{
	if (!p)
		return;
	host_net_free(p->net);
	free(p);
}

int policy_state_dim(const struct policy *p)
{
	return p->dims.SD;
}

int policy_branches(const struct policy *p, int actions[FH_BRANCH_MAX])
{
	memcpy(actions, p->dims.A, sizeof p->dims.A);
	return p->dims.D;
}

void policy_act(struct policy *p, const float *states, int n, int32_t *action, float *q)
{
	host_net_forward(p->net, states, n, action, q, NULL);
}

/* ---------------------------------------------------------------- from a checkpoint */

static int load(const struct st_file *f, const struct plan *plan, enum fh_policy which, int trial, struct policy **out, struct fh_status *st)
{
	const struct plan_tensor *t = plan->tensor + (which == FH_POLICY_ONLINE ? T_PARAM : T_TARGET);
	float *flat, *own;
	int rc;

	if (trial < 0 || trial >= plan->spec.run.population)
		return fh_fail_field(st, FH_INVALID, "trial", "trial is %d, the job has trials 0 to %lld", trial,
				     (long long)plan->spec.run.population - 1);
	flat = malloc(t->bytes);
	if (!flat)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a network of %zu bytes", t->bytes);
	rc = checkpoint_read(f, plan, which == FH_POLICY_ONLINE ? T_PARAM : T_TARGET, flat, st);
	own = flat + (size_t)trial * (size_t)t->elements;
	for (int64_t i = 0; rc == 0 && i < t->elements; i++)
		if (!isfinite(own[i]))
			rc = fh_fail(st, FH_CORRUPT, "checkpoint: a parameter is not finite");
	if (rc == 0)
		rc = policy_new(&plan->spec, FH_STATE_DIM, own, out, st);
	free(flat);
	return rc;
}

int policy_load(const char *path, enum fh_policy which, int trial, struct policy **out, struct fh_spec *spec, char *hash,
		struct fh_status *st)
{
	struct plan *plan = malloc(sizeof *plan);
	struct st_file *f = NULL;
	struct fh_spec made;
	const char *market = NULL;
	int rc = plan ? checkpoint_open(path, &f, &made, st) : fh_fail(st, FH_EXHAUSTED, "no memory for a plan");

	if (rc == 0)
		rc = plan_make(&made, plan, st);
	if (rc == 0) {
		market = st_meta(f, "market");
		if (!market || strlen(market) != 64)
			rc = fh_fail(st, FH_CORRUPT, "checkpoint: its metadata has no market hash");
	}
	if (rc == 0)
		rc = load(f, plan, which, trial, out, st);
	if (rc == 0 && spec)
		*spec = made;
	if (rc == 0 && hash)
		memcpy(hash, market, 65);
	st_close(f);
	free(plan);
	return rc;
}
