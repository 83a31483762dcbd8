/* The host's functions for the stages of the DQN, by id. */
#include "gpu/host/stages.h"

static const stage_fn stages[DQN_STAGES] = {
	[STAGE_POLICY] = host_dqn_policy,
	[STAGE_EXPLORE] = host_dqn_explore,
	[STAGE_ENV] = host_dqn_env,
	[STAGE_INSERT] = host_dqn_insert,
	[STAGE_ADVANCE] = host_dqn_advance,
	[STAGE_SAMPLE] = host_dqn_sample,
	[STAGE_GATHER] = host_dqn_gather,
	[STAGE_FORWARD] = host_dqn_forward,
	[STAGE_LOSS] = host_dqn_loss,
	[STAGE_BACKWARD] = host_dqn_backward,
	[STAGE_NORM] = host_dqn_norm,
	[STAGE_ADAM] = host_dqn_adam,
	[STAGE_PRIORITY] = host_dqn_priority,
	[STAGE_COUNT] = host_dqn_count,
};

const stage_fn *host_dqn_stages(void)
{
	return stages;
}
