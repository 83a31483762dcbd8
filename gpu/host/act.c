/* Acting for evaluations on the host: rows of market and portfolio features through a copy of one network, on the exec's team.
 *
 * Thread: the trainer's worker. Invariant: the copy is as the parameters were at the last act_open(); a stage may overwrite
 * everything else of the exec meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "gpu/host/net.h"
#include "gpu/host/stages.h"
#include "gpu/host/threads.h"
#include "gpu/evaluate.h"
#include "proto/status.h"

struct host_act {
	struct host_net *net;
	double v_min, v_max; /* net was made with these */
	float *state;        /* [rows, SD] */
	int rows;
};

void host_dqn_act_free(struct host_act *a)
{
	if (!a)
		return;
	host_net_free(a->net);
	free(a->state);
	free(a);
}

static int make(const struct dqn_dims *d, struct team *team, const struct dqn_clock *c, struct host_act **out, struct fh_status *st)
{
	struct host_act *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return fh_fail(st, FH_EXHAUSTED, "no memory for an acting network");
	a->rows = POLICY_ROWS * team_threads(team);
	a->v_min = c->v_min;
	a->v_max = c->v_max;
	a->state = malloc((size_t)a->rows * (size_t)d->SD * sizeof(*a->state));
	rc = a->state ? host_net_new(d, a->v_min, a->v_max, team, &a->net, st) : fh_fail(st, FH_EXHAUSTED, "no memory for %d states", a->rows);
	if (rc) {
		host_dqn_act_free(a);
		return rc;
	}
	*out = a;
	return 0;
}

int host_dqn_act_open(struct exec *x, struct host_act **a, int policy, int trial, int *rows, int *few, struct fh_status *st)
{
	const struct dqn_clock *c = host_tensor(x, T_CLOCK, trial);
	struct team *team = ((struct host_priv *)x->priv)->team;

	if (*a && ((*a)->v_min != c->v_min || (*a)->v_max != c->v_max)) { /* another job of this layout */
		host_dqn_act_free(*a);
		*a = NULL;
	}
	if (!*a) {
		int rc = make(x->dims, team, c, a, st);

		if (rc)
			return rc;
	}
	host_net_set((*a)->net, host_tensor(x, policy == FH_POLICY_ONLINE ? T_PARAM : T_TARGET, trial));
	*rows = (*a)->rows;
	*few = POLICY_FEW * team_threads(team);
	return 0;
}

int host_dqn_act(struct exec *x, struct host_act *a, int rows, const int32_t *bar, const float *portfolio, int32_t *action)
{
	int SD = ((const struct dqn_dims *)x->dims)->SD, market = SD - FH_PORTFOLIO_FEATURES;

	for (int i = 0; i < rows; i++) {
		float *state = a->state + (int64_t)i * SD;

		memcpy(state, x->market.feature + (int64_t)bar[i] * market, (size_t)market * sizeof(*state));
		memcpy(state + market, portfolio + (int64_t)i * FH_PORTFOLIO_FEATURES, FH_PORTFOLIO_FEATURES * sizeof(*state));
	}
	host_net_forward(a->net, a->state, rows, action, NULL, NULL);
	return 0;
}
