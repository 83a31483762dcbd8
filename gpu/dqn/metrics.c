/* What a training report of the DQN says: one row per number, made from the accumulators of the reporting window.
 *
 * A new metric is one row here and, when no accumulator has it yet, one in enum dqn_acc with the stage that adds to it.
 * Finishers are pure and never divide by zero: an empty window gives 0. Any thread. */
#include <math.h>

#include "gpu/dqn/dqn.h"
#include "gpu/dqn/model.h"

#define ANY HUGE_VAL
#define REWARD_ATOMS_MIN 0.5 /* measured: below it an agent never learns */
#define EDGE_MASS_MAX 0.05

static double over(double sum, double count)
{
	return count > 0 ? sum / count : 0;
}

/* Steps whose update was applied: the others have no finite loss to add. */
static double updates(const double *a) { return a[ACC_STEPS] - a[ACC_SKIPPED]; }

static double loss(const double *a) { return over(a[ACC_LOSS], updates(a)); }
static double error(const double *a) { return over(a[ACC_ERROR], updates(a)); }
static double grad_norm(const double *a) { return over(a[ACC_GRAD_NORM], updates(a)); }
static double grad_norm_max(const double *a) { return a[ACC_GRAD_NORM_MAX]; }
static double clipped(const double *a) { return over(a[ACC_CLIPPED], updates(a)); }
static double q(const double *a) { return over(a[ACC_Q], updates(a)); }
static double edge(const double *a) { return over(a[ACC_EDGE], updates(a)); }
static double weight(const double *a) { return over(a[ACC_WEIGHT], updates(a)); }
static double priority(const double *a) { return over(a[ACC_TOTAL_P], updates(a)); }
static double skipped(const double *a) { return a[ACC_SKIPPED]; }

static double reward_mean(const double *a) { return over(a[ACC_REWARD], a[ACC_ENV_STEPS]); }
static double reward_std(const double *a)
{
	double mean = reward_mean(a), var = over(a[ACC_REWARD2], a[ACC_ENV_STEPS]) - mean * mean;
	return var > 0 ? sqrt(var) : 0;
}
static double reward_atoms(const double *a) { return over(reward_std(a), a[ACC_DZ]); }
static double episodes(const double *a) { return a[ACC_EPISODES]; }
static double episode_return(const double *a) { return over(a[ACC_EPISODE_RETURN], a[ACC_EPISODES]); }
static double episode_length(const double *a) { return over(a[ACC_EPISODE_STEPS], a[ACC_EPISODES]); }
static double ruin_share(const double *a) { return over(a[ACC_RUINS], a[ACC_EPISODES]); }
static double fills(const double *a) { return over(a[ACC_FILLS], a[ACC_ENV_STEPS]); }
static double exits(const double *a) { return over(a[ACC_EXITS], a[ACC_ENV_STEPS]); }
static double env_steps(const double *a) { return a[ACC_ENV_STEPS]; }
static double lr(const double *a) { return a[ACC_LR]; }
static double beta(const double *a) { return a[ACC_BETA]; }
static double epsilon(const double *a) { return a[ACC_EPS]; }
static double transitions(const double *a) { return a[ACC_STORED]; }
static double filled(const double *a)
{
	return over(a[ACC_STORED] < a[ACC_CAPACITY] ? a[ACC_STORED] : a[ACC_CAPACITY], a[ACC_CAPACITY]);
}

#define ROW(name_, unit_, better_, finish_, help_) \
	.name = name_, .unit = unit_, .better = better_, .finish = finish_, .help = help_

const struct metric dqn_metric[] = {
	{ROW("loss", "1", METRIC_LOWER, loss, "weighted loss, mean over learn steps")},
	{ROW("priority_error", "1", METRIC_LOWER, error, "KL divergence (c51) or |error| (mse), mean over samples")},
	{ROW("grad_norm", "1", METRIC_NEUTRAL, grad_norm, "gradient norm before clipping, mean")},
	{ROW("grad_norm_max", "1", METRIC_NEUTRAL, grad_norm_max, "largest gradient norm before clipping")},
	{ROW("clipped", "ratio", METRIC_NEUTRAL, clipped, "share of learn steps whose gradient was scaled down")},
	{ROW("q", "1", METRIC_NEUTRAL, q, "mean Q of the stored actions under the online network")},
	{ROW("edge_mass", "ratio", METRIC_LOWER, edge, "share of the target distributions on the two edge atoms"),
	 .warning = "returns reach the edge of the support: widen net.v_min and net.v_max",
	 .warn_below = -ANY, .warn_above = EDGE_MASS_MAX},
	{ROW("weight", "1", METRIC_NEUTRAL, weight, "mean importance weight")},
	{ROW("priority", "1", METRIC_NEUTRAL, priority, "mean priority in the replay")},
	{ROW("skipped_steps", "1", METRIC_LOWER, skipped, "learn steps skipped for a gradient that is not finite"),
	 .warning = "gradients are not finite: lower learn.lr",
	 .warn_below = -ANY, .warn_above = 0},
	{ROW("reward_mean", "1", METRIC_HIGHER, reward_mean, "reward per environment step")},
	{ROW("reward_std", "1", METRIC_NEUTRAL, reward_std, "standard deviation of the reward")},
	{ROW("reward_std_per_atom", "1", METRIC_NEUTRAL, reward_atoms, "reward_std over the distance of two atoms"),
	 .warning = "the agent cannot see rewards this far below one atom: raise env.reward_scale (or leave it at auto)",
	 .warn_below = REWARD_ATOMS_MIN, .warn_above = ANY},
	{ROW("episodes", "1", METRIC_NEUTRAL, episodes, "episodes that ended")},
	{ROW("episode_return", "1", METRIC_HIGHER, episode_return, "sum of rewards of the episodes that ended, mean")},
	{ROW("episode_length", "steps", METRIC_NEUTRAL, episode_length, "their length, mean")},
	{ROW("ruin_share", "ratio", METRIC_LOWER, ruin_share, "share of them that ended in ruin")},
	{ROW("fills", "1", METRIC_NEUTRAL, fills, "orders filled per environment step")},
	{ROW("exits", "1", METRIC_NEUTRAL, exits, "barrier and horizon exits per environment step")},
	{ROW("env_steps", "steps", METRIC_NEUTRAL, env_steps, "environment steps in the window")},
	{ROW("lr", "1", METRIC_NEUTRAL, lr, "learning rate of the last step")},
	{ROW("beta", "1", METRIC_NEUTRAL, beta, "importance correction of the last step")},
	{ROW("epsilon", "1", METRIC_NEUTRAL, epsilon, "share of random actions of the last vector step")},
	{ROW("transitions", "1", METRIC_NEUTRAL, transitions, "transitions stored since the start")},
	{ROW("replay_filled", "ratio", METRIC_NEUTRAL, filled, "share of the replay in use")},
	{.name = NULL},
};
_Static_assert(sizeof dqn_metric / sizeof dqn_metric[0] <= METRIC_MAX + 1, "a sample has room for all of them");
