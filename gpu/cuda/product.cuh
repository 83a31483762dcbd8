/* Groups of products that are large enough for cuBLASLt to be faster than gemm.cu, and which of the two does each.
 *
 * The two have different bits, so the choice is part of what a job computes, and safe only because it never changes on its way:
 * - it belongs to a layout without its trials: a trial alone takes the same products as among others, and for one product cuBLASLt is always
 *   asked for one trial; the algorithm that it names serves all trials, as a batch: each element is one block's sum, in one order;
 * - it is asked for algorithms that share no sum among blocks, and which of those it names first is taken belongs to the choice: library, device and
 *   shape then fix the bits;
 * - it is measured when the first trainer of a layout is made, remembered by the process and in a file (FH_GPU_CHOICES), so the next one with that
 *   seed has the same bits; and it stands in every checkpoint of the job: who resumes one takes what stands there, or refuses.
 * Evaluations and acting ask for any number of rows, so they always go through gemm.cu.
 *
 * Networks that many rows take through mlp.cu and its like (BF16, at most 256 wide) are never asked about, nor are small products: then `products` of
 * the exec is NULL, no library is loaded, and nothing is measured. Of the others few rows may go on clusters: that is ours then.
 *
 * Thread: the trainer's worker; product_choose() and product_keep() between runs. */
#ifndef FH_GPU_CUDA_PRODUCT_CUH
#define FH_GPU_CUDA_PRODUCT_CUH

#include <functional>
#include "gpu/cuda/device.h"
#include "gpu/cuda/gemm.cuh"
#include "gpu/cuda/lt.h"

/* Layers of the forward pass of a learn step and of the policy, the gradient through the heads' outputs, the heads and the trunk, all weights. */
enum { PRODUCT_FORWARD = 0, PRODUCT_POLICY = 4, PRODUCT_BACK = 8, PRODUCT_WEIGHTS = 11, PRODUCT_GROUPS = 12, PRODUCT_NEVER = -1 };

/* What product_launch() does with a group: launches it; asks the library for algorithms; times them. */
enum product_mode { PRODUCT_RUN, PRODUCT_ASK, PRODUCT_TIME };
enum { PRODUCT_CANDIDATES = 3 };

struct products {
	const struct lt *lt;
	enum product_mode mode;
	double least;             /* multiply-adds a trial that a group has at least, or it is not asked about */
	unsigned offered;         /* groups that the library has algorithms for. Bits by the numbers above */
	unsigned warm;            /* groups of which it has loaded everything */
	unsigned taken, first;    /* groups that it does; and as chosen when the exec was made, where a new job begins */
	unsigned char pick[PRODUCT_GROUPS][GEMM_GROUP], first_pick[PRODUCT_GROUPS][GEMM_GROUP]; /* which candidate, likewise */
	unsigned char products[PRODUCT_GROUPS], candidates[PRODUCT_GROUPS][GEMM_GROUP];
	struct lt_algo algo[PRODUCT_GROUPS][GEMM_GROUP][PRODUCT_CANDIDATES];
};

static inline int product_takes(const struct cuda_exec *c, int group)
{
	return c->products && group >= 0 && (c->products->taken >> group & 1);
}
/* One of so many groups from this one on goes through product_launch(), whatever else there is for it: they go layer by layer then. */
static inline int product_asks(const struct cuda_exec *c, int group, int groups)
{
	return c->products && (c->products->mode != PRODUCT_RUN || c->products->taken >> group & ((1u << groups) - 1));
}
/* The group by whoever does it; tile is for gemm_launch(). */
int product_launch(struct cuda_exec *c, struct gemm_group *g, int group, int tile, const char *what, struct fh_status *st);

/* Microseconds that what `run` enqueues takes in a graph, the least of some rounds. product_choose.cu, as all below */
int product_time(struct cuda_exec *c, const std::function<int(struct fh_status *)> &run, double *us, struct fh_status *st);
/* Makes c->products where this layout may want it, and chooses; contents of the arena are lost. product_clear(): when it has been filled. */
int product_choose(struct cuda_exec *c, struct fh_status *st);
int product_clear(struct cuda_exec *c, struct fh_status *st);
/* In words for a checkpoint, "" where nothing is chosen; and back: NULL as it was when the exec was made. Captured graphs must go where *changed. */
void product_text(const struct cuda_exec *c, char *text, size_t size);
int product_keep(struct cuda_exec *c, const char *text, int *changed, struct fh_status *st);

#endif
