/* The DQN's side of struct program beside step.c: metric table, start of a job, restore. */
#ifndef FH_GPU_DQN_MODEL_H
#define FH_GPU_DQN_MODEL_H

#include "gpu/backend.h"
#include "gpu/dqn/dqn.h"

extern const struct metric dqn_metric[]; /* ended by a row without a name */

/* Every tensor and view for these dimensions, which tests make without a specification; plan_place() comes next. */
void dqn_plan_tensors(struct plan *p, const struct dqn_dims *d, enum fh_device device);

/* begin.c, restore.c, clock.c: see struct program. */
int dqn_begin(struct exec *x, const struct fh_spec *spec, const struct fh_split *split, const void *weights_from,
	      const void *replay_from, struct fh_status *st);
int dqn_derive(struct exec *x, struct fh_status *st);
int dqn_restore(const struct plan *plan, const struct fh_spec *spec, const struct fh_split *split, void *const *tensor,
		struct fh_status *st);
void dqn_progress(const struct plan *plan, const void *clock, struct progress *out);

#endif
