/* One training step as it is launched: six dependent kernels, and the replay's end of the step beside them.
 *
 *   draw -> forward -> loss -> back -> weights -> adam
 *                          \-> priority -----\-> count
 *
 * draw: schedules, stratified walk down the tree, gather. forward, back: all layers at once (other precisions than BF16, or
 * networks that do not fit: layer by layer). priority: means of the batch, new leaves and the nodes above them, before anyone
 * knows whether the step will be skipped; count: the guard, leaves put back if it is, accumulators, counters. adam finds the
 * norm by itself.
 *
 * The same kernels as the stages or kernels with their bits: FH_GPU_SYNC=1 runs the stages, and tests compare the two. */
#include "gpu/cuda/exec.h"

int cuda_learn(struct cuda_exec *c, struct fh_status *st)
{
	int rc;

	if ((rc = cuda_draw(c, st)) || (rc = cuda_dqn_forward(&c->x, st)) || (rc = cuda_loss(c, 0, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->fork[0], c->stream));
	CUDA_TRY(cudaStreamWaitEvent(c->side, c->fork[0], 0));
	if ((rc = cuda_priority(c, c->side, st)) || (rc = cuda_dqn_backward(&c->x, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->fork[1], c->stream));
	CUDA_TRY(cudaStreamWaitEvent(c->side, c->fork[1], 0));
	if ((rc = cuda_count(c, c->side, 1, st)) || (rc = cuda_dqn_adam(&c->x, st)))
		return rc;
	CUDA_TRY(cudaEventRecord(c->join, c->side));
	CUDA_TRY(cudaStreamWaitEvent(c->stream, c->join, 0));
	return 0;
}
