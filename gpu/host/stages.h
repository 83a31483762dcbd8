/* The DQN's stages on the host: one function per id of enum dqn_stage, each looping over the P trials of the exec.
 *
 * Thread: the trainer's worker; a stage spreads its loops over the exec's team and returns when they are done.
 * exec->priv of a host exec points to a struct that begins with struct host_priv. */
#ifndef FH_GPU_HOST_STAGES_H
#define FH_GPU_HOST_STAGES_H

#include "gpu/backend.h"
#include "gpu/dqn/dqn.h"

struct team;
struct host_priv { struct team *team; /* NULL: one thread */ };

/* Indexed by stage id, DQN_STAGES entries. Static storage. */
const stage_fn *host_dqn_stages(void);

/* collect.c */
int host_dqn_explore(struct exec *x, struct fh_status *st);
int host_dqn_env(struct exec *x, struct fh_status *st);
int host_dqn_insert(struct exec *x, struct fh_status *st);
/* forward.c */
int host_dqn_policy(struct exec *x, struct fh_status *st);
int host_dqn_forward(struct exec *x, struct fh_status *st);
/* replay.c */
int host_dqn_advance(struct exec *x, struct fh_status *st);
int host_dqn_sample(struct exec *x, struct fh_status *st);
int host_dqn_gather(struct exec *x, struct fh_status *st);
int host_dqn_priority(struct exec *x, struct fh_status *st);
int host_dqn_count(struct exec *x, struct fh_status *st);
/* loss.c backward.c adam.c */
int host_dqn_loss(struct exec *x, struct fh_status *st);
int host_dqn_backward(struct exec *x, struct fh_status *st);
int host_dqn_norm(struct exec *x, struct fh_status *st);
int host_dqn_adam(struct exec *x, struct fh_status *st);

/* act.c: networks of an exec made ready to act for evaluations (backend.h); freed with the exec. *a is NULL at first. */
struct host_act;
int host_dqn_act_open(struct exec *x, struct host_act **a, int policy, int first, int *trials, struct act_limits *limits, struct fh_status *st);
int host_dqn_act(struct exec *x, struct host_act *a, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio,
		 int32_t *action);
void host_dqn_act_free(struct host_act *a); /* NULL is fine */

/* Start of trial p of a tensor: tensors have the trial axis in front. */
static inline void *host_tensor(const struct exec *x, int tensor, int p)
{
	const struct plan_tensor *t = &x->plan->tensor[tensor];

	return (char *)x->tensor[tensor] + (size_t)p * (size_t)t->elements * st_dtype_size(t->desc.dtype);
}

#endif
