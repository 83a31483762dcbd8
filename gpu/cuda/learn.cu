/* One training step as it is launched: six dependent kernels, each of which may begin before the one in front of it has ended.
 *
 *   draw -> forward -> loss -> back -> weights -> adam and the end of the step
 *
 * draw: schedules, stratified walk down the tree, gather. forward, back: all layers at once (other precisions than BF16, or
 * networks that do not fit: layer by layer). adam finds the norm by itself; one block of its launch takes the means of the batch, new
 * leaves and the nodes above them before anyone knows whether the step will be skipped, then the guard, leaves put back if it is,
 * accumulators, counters. Where the parameters of all trials are more than L2 holds that is a launch of its own in front of adam (adam.cu).
 *
 * A large batch has too many leaves for one block: they and the count go beside, on a second stream.
 *
 *   draw -> forward -> loss -> back -> weights -> adam
 *                          \-> priority -----\-> count
 *
 * The same kernels as the stages or kernels with their bits: FH_GPU_SYNC=1 runs the stages, and tests compare the two. */
#include "gpu/cuda/count.cuh"

/* From behind the loss on. */
static int learn_large(struct cuda_exec *c, struct fh_status *st)
{
	int rc;

	CUDA_TRY(cudaEventRecord(c->fork[0], c->stream));
	CUDA_TRY(cudaStreamWaitEvent(c->side, c->fork[0], 0));
	if ((rc = cuda_priority(c, c->side, st)) || (rc = cuda_dqn_backward(&c->x, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->fork[1], c->stream));
	CUDA_TRY(cudaStreamWaitEvent(c->side, c->fork[1], 0));
	if ((rc = cuda_count(c, c->side, 1, st)) || (rc = cuda_adam(c, 0, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->join, c->side));
	CUDA_TRY(cudaStreamWaitEvent(c->stream, c->join, 0));
	return 0;
}

int cuda_learn(struct cuda_exec *c, struct fh_status *st)
{
	int rc;

	if ((rc = cuda_draw(c, st)) || (rc = cuda_dqn_forward(&c->x, st)) || (rc = cuda_loss(c, 0, st)))
		return rc;
	if (c->dims.B > CUDA_FEW_ROWS)
		return learn_large(c, st);
	rc = cuda_dqn_backward(&c->x, st);
	return rc ? rc : cuda_adam(c, 1, st);
}
