/* Forward passes of one chunk of at most PANEL states, shared by the learner, POLICY and host_net. Thread: whichever
 * member runs the chunk; everything written is the chunk's own or the member's temporary. */
#ifndef FH_GPU_HOST_PASS_H
#define FH_GPU_HOST_PASS_H

#include "gpu/host/work.h"

/* What a pass reads, the same for every chunk. */
struct host_pass {
	const struct dqn_dims *d;
	const struct kernels *k;
	const struct host_weights *w;
	struct host_strides s;
	int round;
	float middle, dz;          /* of the atoms: (v_min + v_max)/2 and their distance */
};

struct host_pass host_pass_make(const struct dqn_dims *d, const struct host_weights *w, double v_min, double v_max);

/* Preparing weights after every update: `param` flat F32 -> w. Tasks are independent of each other once the rounding
 * tasks (0 in F32) are done. with_rows: also the transposed copies for product_rows. */
int host_prepare_round_tasks(const struct host_pass *p);
void host_prepare_round(const struct host_pass *p, const float *param, int task);
int host_prepare_tasks(const struct host_pass *p);
void host_prepare(const struct host_pass *p, int with_rows, int task);

/* states [rows, SD] -> t->x, feature-major, rounded; columns past rows are zero. */
void host_states(const struct host_pass *p, const float *states, int rows, struct host_temp *t);
/* Trunk and first head layers of t->x. h1, h2: where they go (row stride h_row), head -> t->hd. */
void host_trunk(const struct host_pass *p, struct host_temp *t, float *h1, float *h2, int64_t h_row);
/* t->hd -> t->q, all actions. logits (may be NULL): [rows, sumA, NA]. */
void host_all_actions(const struct host_pass *p, struct host_temp *t, int rows, float *logits);
/* t->q -> action [rows, D], the lowest index on a tie. */
void host_greedy(const struct dqn_dims *d, const float *q, int rows, int32_t *action);
/* hd_r [PANEL][head_row] -> combined logits of the given actions, out[row*out_row + d*out_branch + i]. */
void host_one_action(const struct host_pass *p, struct host_temp *t, const float *hd_r, const int32_t *action, int rows,
		     float *out, int64_t out_row, int64_t out_branch);
/* rows 0 … rows - 1 of action [rows, D] sorted by branch b's action: list, and end[a] = one behind action a's last. */
void host_group(const struct dqn_dims *d, const int32_t *action, int rows, int b, int32_t *list, int32_t *end);
/* First row of branch b's actions in wc, bc, wc_t and q. */
int host_first_action(const struct dqn_dims *d, int b);

#endif
