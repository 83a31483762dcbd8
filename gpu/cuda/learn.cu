/* One training step as it is launched: six dependent kernels, each of which may begin before the one in front of it has ended, and the new
 * priorities beside the backward pass.
 *
 *   draw -> forward -> loss -> back -> weights -> adam and the end of the step
 *                          \-> priority -----/
 *
 * draw: schedules, stratified walk down the tree, gather. forward, back: all layers at once (other precisions than BF16, or
 * networks that do not fit: layer by layer). priority: means of the batch, new leaves and the nodes above them, before anyone
 * knows whether the step will be skipped. adam finds the norm by itself; one block of its launch has the guard, puts leaves back if the step is
 * skipped, accumulators, counters. Where the parameters of all trials are more than L2 holds that is a launch of its own in front of adam.
 *
 * The same kernels as the stages or kernels with their bits: FH_GPU_SYNC=1 runs the stages, and tests compare the two. */
#include "gpu/cuda/exec.h"

int cuda_learn(struct cuda_exec *c, struct fh_status *st)
{
	int rc;

	if ((rc = cuda_draw(c, st)) || (rc = cuda_dqn_forward(&c->x, st)) || (rc = cuda_loss(c, 0, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->fork, c->stream));
	CUDA_TRY(cudaStreamWaitEvent(c->side, c->fork, 0));
	if ((rc = cuda_priority(c, c->side, st)) || (rc = cuda_dqn_backward(&c->x, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->join, c->side));
	CUDA_TRY(cudaStreamWaitEvent(c->stream, c->join, 0));
	return cuda_adam(c, 1, st);
}
