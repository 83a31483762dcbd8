/* The host learner's scratch (T_SCRATCH): one trial's activations, gradients of activations, prepared weights, and a
 * temporary area for each member of the team. Nothing in it outlives a step but what FORWARD leaves for BACKWARD.
 *
 * A batch is cut into chunks of PANEL samples; a chunk is computed by one thread from its states to the gradients of
 * its activations. Activations lie feature-major ([feature][sample], `_f`: a sample is a vector lane) where they are
 * multiplied by a weight, and row-major ([sample][feature], `_r`) where a weight's gradient is summed over samples.
 * Row strides are kept off powers of two, so that a column does not fall into one cache set. */
#ifndef FH_GPU_HOST_WORK_H
#define FH_GPU_HOST_WORK_H

#include <stddef.h>
#include "gpu/dqn/dqn.h"
#include "gpu/host/kernels.h"
#include "gpu/host/threads.h"

/* One network as the products read it. flat: the parameters, rounded to the precision (the master itself in F32).
 * The rest belongs to the second advantage layers: the dueling mean over actions is taken out of weights and bias, so
 * logits = V + hd*wc' + bc. `_t` are transposed to [in][atom_row], for products whose rows are samples. */
struct host_weights {
	const float *flat;
	float *rounded;                /* where flat is copied to when it must be rounded, else NULL */
	float *wc;                     /* [sumA*NA][AH] */
	float *bc;                     /* [sumA*NA] */
	float *wc_t;                   /* [sumA][AH][atom_row] */
	float *v2_t;                   /* [VH][atom_row] */
};

/* One member's temporaries of one chunk. Feature-major rows are PANEL long. */
struct host_temp {
	float *x, *h1, *h2, *hd;       /* [SD] [H1] [H2] [head] rows of PANEL */
	float *value;                  /* [NA] rows of PANEL: V */
	float *logit;                  /* [NA] rows of PANEL: one action's logits */
	float *hd_r;                   /* [PANEL][head_row] */
	float *value_r;                /* [PANEL][atom_row] */
	float *q;                      /* [sumA][PANEL] */
	float *p;                      /* [atom_row] x 3 */
};

struct host_work {
	struct host_weights online, target;
	float *x_r;                    /* [Bp][state_row] */
	float *h1_f, *h2_f;            /* [H1] [H2] rows of batch_row */
	float *h1_r, *h2_r, *hd_r;     /* [Bp] rows of h1_row, h2_row, head_row */
	float *next;                   /* [Bp][D][atom_row] logits of s' under the target at a* */
	float *g;                      /* [Bp][D][atom_row] gradient of the taken actions' logits */
	float *gv;                     /* [Bp][atom_row] of V: the sum of g over branches */
	float *dh1, *dh2, *dhd;        /* [H1] [H2] [head] rows of batch_row */
	float *dhd_r;                  /* [Bp][head_row] */
	int32_t *astar;                /* [Bp][D] greedy next actions */
	int32_t *group;                /* [D][B] samples by action taken; group_end[d*A_MAX + a] */
	int32_t *group_end;            /* [sumA + D]: per branch, offsets 0 … B */
	float *priority, *taken_q, *edge; /* [B] */
	int32_t *tree_node;            /* [B] */
	double *norm_part;             /* [norm parts] */
	char *temp;                    /* TEAM_THREADS_MAX x temp_bytes */
};

/* Strides in floats. */
struct host_strides {
	int Bp, chunks;
	int64_t batch_row, state_row, h1_row, h2_row, head_row, atom_row;
	size_t temp_bytes;
};

#define NORM_PART 8192 /* elements of one partial sum of the gradient norm */

struct host_strides host_strides(const struct dqn_dims *d);
size_t host_work_bytes(const struct dqn_dims *d);
/* Pointers into one trial's scratch. */
struct host_work host_work_at(const struct dqn_dims *d, void *scratch);
struct host_temp host_temp_at(const struct dqn_dims *d, char *temp);
/* Bits to round away for the precision of d. */
int host_round(const struct dqn_dims *d);

#endif
