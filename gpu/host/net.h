/* The forward pass alone, for acting and evaluation: private copies of one or several networks of one shape, prepared for the
 * vector unit.
 *
 * Runs on the calling thread, or on a trainer's team where one is lent, and needs no trainer. Precision tf32 and bf16 are
 * emulated by rounding weights, states and activations to nearest even before every product, as the learner does. One
 * thread at a time per object. Invariant: what a row gives depends on that row and its network alone, bit for bit: not on the
 * other rows, their number, or the threads. Evaluations that guess ahead rely on it. */
#ifndef FH_GPU_HOST_NET_H
#define FH_GPU_HOST_NET_H

#include "gpu/act.h"
#include "gpu/dqn/dqn.h"

struct fh_status;
struct host_net;
struct team;

/* team NULL: the caller's thread alone; else it is borrowed for every forward. FH_INVALID: more actions over all branches than the host
 * has columns for. FH_EXHAUSTED. */
int host_net_new(const struct dqn_dims *d, double v_min, double v_max, struct team *team, struct host_net **out, struct fh_status *st);
/* The same with parameters for so many networks. */
int host_nets_new(const struct dqn_dims *d, double v_min, double v_max, int nets, struct team *team, struct host_net **out, struct fh_status *st);
void host_net_free(struct host_net *n); /* NULL is fine */
/* Takes new parameters: flat, padded F32 [d->params], copied. Call it before the first forward. */
void host_net_set(struct host_net *n, const float *param);
void host_nets_set(struct host_net *n, int net, const float *param);
/* x [rows, SD] -> action [rows, D] greedy, lowest index on a tie; q [rows, sumA]; logits [rows, sumA, NA] combined.
 * Each output may be NULL. Any number of rows; one row costs about as much as reading the weights once. */
void host_net_forward(struct host_net *n, const float *x, int64_t rows, int32_t *action, float *q, float *logits);
/* Rows of several networks, those of one behind those of another: part[i].rows of network part[i].trial. x [rows of all parts, SD] ->
 * action [rows of all parts, D] greedy. 1 to HOST_NETS parts. */
#define HOST_NETS 16
void host_nets_act(struct host_net *n, const struct act_part *part, int parts, const float *x, int32_t *action);

#endif
