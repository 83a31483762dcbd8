/* Batched updates of the priority tree on the host. Plain functions on the caller's arrays, any thread.
 *
 * Invariant: leaves are written before any parent, and a level is finished before the next one up, so each inner node
 * is the sum of its children's final values. */

#include "gpu/sumtree.h"

/* Overwrites node numbers with their parents, leaving out one that equals its predecessor (samples come in ascending
 * order, so most do). Equal parents further apart are joined twice, which is harmless: the sum is the same. */
static int parents_of(int32_t *at, int n)
{
	int kept = 0;

	for (int i = 0; i < n; i++) {
		int32_t up = at[i] >> 1;

		if (!kept || at[kept - 1] != up)
			at[kept++] = up;
	}
	return kept;
}

float tree_set_batch(float *node, int64_t C, const int32_t *leaf, const float *p, float value, int n, float largest,
		     int32_t *work)
{
	for (int j = 0; j < n; j++)
		node[C + leaf[j]] = p ? p[j] : value;
	for (int j = 0; j < n; j++) {
		float now = node[C + leaf[j]]; /* what the last writer left: earlier duplicates do not count */

		largest = now > largest ? now : largest;
		work[j] = (int32_t)(C + leaf[j]);
	}
	while (n && work[0] > 1) {
		n = parents_of(work, n);
		for (int i = 0; i < n; i++)
			tree_join(node, work[i]);
	}
	return largest;
}

void tree_rebuild(float *node, int64_t C)
{
	for (int64_t n = C - 1; n >= 1; n--)
		tree_join(node, n);
}
