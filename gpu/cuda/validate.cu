/* Acting for evaluations on the device: rows of any bars' market features, which lie here, and portfolio features, which come
 * from the host, through the parameters as they are; greedy actions back.
 *
 * Thread: the trainer's worker, between two runs. Rows and actions pass through page-locked memory of the exec; one call's
 * must be over before the next one's begin, so a call waits for its own event. Invariant: a row's actions depend on that
 * row alone: products sum in an order that the number of rows does not change, and mlp.cu has the same bits. */
#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"
#include "gpu/cuda/mlp.cuh"

namespace {

enum { THREADS = 256 };

/* row [rows] -> low [rows, ld]: market features, portfolio features, zeros in the padding. */
template <typename T>
__global__ void __launch_bounds__(THREADS) k_look(const struct cuda_act_row *row, const struct cuda_tape_view *tape, T *dst, int rows, int sd, int ld)
{
	const int i = blockIdx.x * THREADS + threadIdx.x, r = i / ld, k = i % ld, market = sd - FH_PORTFOLIO_FEATURES;

	if (r >= rows)
		return;
	dst[i] = (T)(k < market ? tape->feature[(size_t)row[r].bar * market + k] : k < sd ? row[r].portfolio[k - market] : 0.f);
}

int look(struct cuda_exec *c, int rows, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	const dim3 grid(cuda_tiles(rows * s->ldx, THREADS));
	const struct cuda_act_row *row = cuda_at<struct cuda_act_row>(c, &s->vrow);
	const struct cuda_tape_view *tape = cuda_at<struct cuda_tape_view>(c, &s->tape);

	if (c->dims.precision == FH_PRECISION_BF16)
		CUDA_TRY(cuda_launch_plain(c->stream, k_look<__nv_bfloat16>, grid, THREADS, 0, row, tape, cuda_at<__nv_bfloat16>(c, &s->vx), rows, c->dims.SD, s->ldx));
	else
		CUDA_TRY(cuda_launch_plain(c->stream, k_look<float>, grid, THREADS, 0, row, tape, cuda_at<float>(c, &s->vx), rows, c->dims.SD, s->ldx));
	return 0;
}

/* vx -> vaction. */
int decide(struct cuda_exec *c, int rows, struct fh_status *st)
{
	int32_t *action = cuda_at<int32_t>(c, &c->s.vaction);
	int rc = mlp_rows_greedy(c, c->act_target, c->act_trial, rows, cuda_at<void>(c, &c->s.vx), action, st);

	if (rc <= 0)
		return rc;
	rc = 0;
	for (int at = 0; !rc && at < rows; at += CUDA_ACT_LAYERS)
		rc = cuda_rows_layers(c, c->act_target, c->act_trial, at, rows - at < CUDA_ACT_LAYERS ? rows - at : CUDA_ACT_LAYERS,
		                      action + (size_t)at * c->dims.D, st);
	return rc;
}

} // namespace

size_t cuda_act_pinned(const struct dqn_dims *d)
{
	return CUDA_ACT_ROWS * (sizeof(struct cuda_act_row) + (size_t)d->D * sizeof(int32_t));
}

int cuda_act_open(struct exec *x, int policy, int trial, int *rows, int *few, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);

	if (trial < 0 || trial >= c->dims.P || c->dims.SD <= FH_PORTFOLIO_FEATURES)
		return fh_fail(st, FH_INTERNAL, "trial %d of %d cannot act on %d numbers", trial, c->dims.P, c->dims.SD);
	c->act_target = policy != FH_POLICY_ONLINE;
	c->act_trial = trial;
	*rows = CUDA_ACT_ROWS;
	*few = CUDA_ACT_LAYERS;
	return 0;
}

int cuda_act(struct exec *x, int rows, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const size_t bytes = (size_t)rows * c->dims.D * sizeof *action;
	int rc;

	if (rows < 1 || rows > CUDA_ACT_ROWS)
		return fh_fail(st, FH_INTERNAL, "%d rows in one call, at most %d", rows, CUDA_ACT_ROWS);
	CUDA_TRY(cudaSetDevice(x->backend->device));
	for (int i = 0; i < rows; i++) {
		c->h_row[i].bar = bar[i];
		memcpy(c->h_row[i].portfolio, portfolio + (size_t)i * FH_PORTFOLIO_FEATURES, sizeof c->h_row[i].portfolio);
	}
	CUDA_TRY(cudaMemcpyAsync(cuda_at<void>(c, &c->s.vrow), c->h_row, rows * sizeof *c->h_row, cudaMemcpyHostToDevice, c->stream));
	rc = look(c, rows, st);
	if (!rc)
		rc = decide(c, rows, st);
	if (rc)
		return rc;
	CUDA_TRY(cudaMemcpyAsync(c->h_action, cuda_at<void>(c, &c->s.vaction), bytes, cudaMemcpyDeviceToHost, c->stream));
	CUDA_TRY(cudaEventRecord(c->acted, c->stream));
	CUDA_TRY(cudaEventSynchronize(c->acted));
	memcpy(action, c->h_action, bytes);
	return 0;
}
