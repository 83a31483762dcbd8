/* The priority tree of gpu/MATH.md, section 4: one definition for host and device.
 *
 * F32 nodes in heap order: node 1 is the root, leaf i of C (a power of two) is node C + i, node 0 is unused. Invariant
 * between calls: every inner node is the F32 sum of its left and right child; nothing is ever added to a node. */
#ifndef FH_GPU_SUMTREE_H
#define FH_GPU_SUMTREE_H

#include <math.h>
#include <stdint.h>
#include "gpu/hd.h"

#define TREE_PRIORITY_FLOOR 1e-6 /* added to an error before the power */

/* One level down from inner node n: the child whose prefix interval holds *x, which becomes relative to it. */
FH_HD int64_t tree_step(const float *node, int64_t n, double *x)
{
	double left = (double)node[2 * n], right = (double)node[2 * n + 1];
	int go_right = (*x >= left) & (right != 0.0); /* no branch: it would be mispredicted every other time */

	*x -= (double)go_right * left; /* exact */
	return 2 * n + go_right;
}

/* The leaf whose prefix interval holds x, in [0, C). Never an empty leaf of a tree whose total is positive. */
FH_HD int32_t tree_find(const float *node, int64_t C, double x)
{
	int64_t n = 1;

	while (n < C)
		n = tree_step(node, n, &x);
	return (int32_t)(n - C);
}

/* Where sample j of B looks: stratum j of the total, u in (0,1). */
FH_HD double tree_target(float total, int B, int j, float u)
{
	return ((double)j + (double)u) * ((double)total / (double)B);
}

/* What the tree stores for an error e >= 0. */
FH_HD float tree_priority(float error, double alpha)
{
	return (float)pow((double)error + TREE_PRIORITY_FLOOR, alpha);
}

/* Recomputes inner node n from its children. */
FH_HD void tree_join(float *node, int64_t n)
{
	node[n] = node[2 * n] + node[2 * n + 1];
}

/* beta of training step s. */
FH_HD double tree_beta(double beta0, double beta_end, int64_t step, int64_t planned)
{
	double f = planned > 0 ? (double)step / (double)planned : 1.0;

	return beta0 + (beta_end - beta0) * (f < 1.0 ? f : 1.0);
}

#ifndef __CUDACC__
/* gpu/host/tree.c. leaf[j] gets p[j] (p NULL: every one gets `value`); of equal leaves the highest j wins and the others
 * leave no trace. Then every inner node above them is recomputed, level by level. Returns the largest value written, or
 * `largest` if that is more. work: n int32_t. n may be 0. */
float tree_set_batch(float *node, int64_t C, const int32_t *leaf, const float *p, float value, int n, float largest,
		     int32_t *work);
/* All inner nodes from the leaves. */
void tree_rebuild(float *node, int64_t C);
#endif

#endif
