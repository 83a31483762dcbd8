/* The DQN's stages on the host, in the order of gpu/dqn/step.c. Each works on all trials of x and runs on the trainer's
 * thread, which may split its loops over the team (threads.h). */
#ifndef FH_GPU_HOST_STAGES_H
#define FH_GPU_HOST_STAGES_H

#include "gpu/backend.h"

int host_dqn_policy(struct exec *x, struct fh_status *st);
int host_dqn_explore(struct exec *x, struct fh_status *st);
int host_dqn_env(struct exec *x, struct fh_status *st);
int host_dqn_insert(struct exec *x, struct fh_status *st);

int host_dqn_advance(struct exec *x, struct fh_status *st);
int host_dqn_sample(struct exec *x, struct fh_status *st);
int host_dqn_gather(struct exec *x, struct fh_status *st);
int host_dqn_forward(struct exec *x, struct fh_status *st);
int host_dqn_loss(struct exec *x, struct fh_status *st);
int host_dqn_backward(struct exec *x, struct fh_status *st);
int host_dqn_norm(struct exec *x, struct fh_status *st);
int host_dqn_adam(struct exec *x, struct fh_status *st);
int host_dqn_priority(struct exec *x, struct fh_status *st);
int host_dqn_count(struct exec *x, struct fh_status *st);

#endif
