/* Acting for evaluations on the host: rows of market and portfolio features through copies of the trials' networks, on the exec's
 * team.
 *
 * Thread: the trainer's worker. Invariant: the copies are as the parameters were at the last act_open(); a stage may overwrite
 * everything else of the exec meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "gpu/host/net.h"
#include "gpu/host/stages.h"
#include "gpu/host/threads.h"
#include "gpu/evaluate.h"
#include "proto/status.h"

_Static_assert(HOST_NETS >= TEAM_THREADS_MAX, "one network a thread");

struct host_act {
	struct host_net *net;
	int nets;
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

static int make(const struct dqn_dims *d, int nets, struct team *team, const struct dqn_clock *c, struct host_act **out, struct fh_status *st)
{
	struct host_act *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return fh_fail(st, FH_EXHAUSTED, "no memory for an acting network");
	a->nets = nets;
	a->rows = POLICY_ROWS * team_threads(team);
	a->v_min = c->v_min;
	a->v_max = c->v_max;
	a->state = malloc((size_t)a->rows * (size_t)d->SD * sizeof(*a->state));
	rc = a->state ? host_nets_new(d, a->v_min, a->v_max, nets, team, &a->net, st) : fh_fail(st, FH_EXHAUSTED, "no memory for %d states", a->rows);
	if (rc) {
		host_dqn_act_free(a);
		return rc;
	}
	*out = a;
	return 0;
}

int host_dqn_act_open(struct exec *x, struct host_act **a, int policy, int first, int *trials, struct act_limits *limits, struct fh_status *st)
{
	const struct dqn_clock *c = host_tensor(x, T_CLOCK, first);
	struct team *team = ((struct host_priv *)x->priv)->team;
	int nets = *trials < team_threads(team) ? *trials : team_threads(team); /* one a thread: more would only push each other out of the caches */

	if (*a && ((*a)->v_min != c->v_min || (*a)->v_max != c->v_max || (*a)->nets < nets)) { /* another job of this layout */
		host_dqn_act_free(*a);
		*a = NULL;
	}
	if (!*a) {
		int rc = make(x->dims, nets, team, c, a, st);

		if (rc)
			return rc;
	}
	for (int i = 0; i < nets; i++)
		host_nets_set((*a)->net, i, host_tensor(x, policy == FH_POLICY_ONLINE ? T_PARAM : T_TARGET, first + i));
	*trials = nets;
	*limits = (struct act_limits){.rows = (*a)->rows, .few = POLICY_FEW * team_threads(team), .least = POLICY_FEW, .team = team, .kept = 1};
	return 0;
}

int host_dqn_act(struct exec *x, struct host_act *a, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio,
		 int32_t *action)
{
	int SD = ((const struct dqn_dims *)x->dims)->SD, market = SD - FH_PORTFOLIO_FEATURES, rows = 0;

	for (int i = 0; i < parts; i++)
		rows += part[i].rows;
	for (int i = 0; i < rows; i++) {
		float *state = a->state + (int64_t)i * SD;

		memcpy(state, x->market.feature + (int64_t)bar[i] * market, (size_t)market * sizeof(*state));
		memcpy(state + market, portfolio + (int64_t)i * FH_PORTFOLIO_FEATURES, FH_PORTFOLIO_FEATURES * sizeof(*state));
	}
	host_nets_act(a->net, part, parts, a->state, action);
	return 0;
}
