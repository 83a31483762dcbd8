/* Acting for evaluations on the device: rows of any bars' market features, which lie here, and portfolio features, which come
 * from the host, through the parameters of their trials as they were when it was opened; greedy actions back.
 *
 * Thread: the trainer's worker. All of it goes on a stream of its own behind what was enqueued when it was opened. Of up to CUDA_KEPT_TRIALS
 * trials the parameters are copied then, and nothing that a call reads or writes is training's: what is enqueued later runs beside it.
 * Rows and actions pass through page-locked memory of the exec; one call's must be over before the next one's begin, so a call waits for
 * its own end. Trials that follow each other go through the
 * network in the same launches, each with as many places as the one with most rows: what lies in a place that nobody asked for
 * is computed and never looked at. Invariant: a row's actions depend on that row and its trial alone: products sum in an order that
 * the number of rows does not change, and mlp.cu has the same bits. */
#include <cuda_bf16.h>
#include "gpu/cuda/exec.h"
#include "gpu/cuda/mlp.cuh"

namespace {

enum { THREADS = 256 };

/* Rows -> low [places, ld]: market features, portfolio features, zeros in the padding. place NULL: in the order that was asked. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
k_look(const struct cuda_act_rows *row, const int32_t *place, const struct cuda_tape_view *tape, T *dst, int rows, int sd, int ld)
{
	const int i = blockIdx.x * THREADS + threadIdx.x, r = i / ld, k = i % ld, market = sd - FH_PORTFOLIO_FEATURES;

	if (r >= rows)
		return;
	dst[(size_t)(place ? place[r] : r) * ld + k] =
	    (T)(k < market ? tape->feature[(size_t)row->bar[r] * market + k] : k < sd ? row->portfolio[r][k - market] : 0.f);
}

int look(struct cuda_exec *c, int rows, int placed, struct fh_status *st)
{
	const struct cuda_scratch *s = &c->s;
	const dim3 grid(cuda_tiles(rows * s->ldx, THREADS));
	const struct cuda_act_rows *row = cuda_at<struct cuda_act_rows>(c, &s->vrow);
	const int32_t *place = placed ? row->place : NULL;
	const struct cuda_tape_view *tape = cuda_at<struct cuda_tape_view>(c, &s->tape);

	if (c->dims.precision == FH_PRECISION_BF16)
		CUDA_TRY(cuda_launch_plain(c->stream, k_look<__nv_bfloat16>, grid, THREADS, 0, row, place, tape, cuda_at<__nv_bfloat16>(c, &s->vx), rows, c->dims.SD, s->ldx));
	else
		CUDA_TRY(cuda_launch_plain(c->stream, k_look<float>, grid, THREADS, 0, row, place, tape, cuda_at<float>(c, &s->vx), rows, c->dims.SD, s->ldx));
	return 0;
}

/* Trials that go together: `rows` places each, from `place` on. */
struct lane { int trial, trials, rows, place; };

/* As many parts as follow each other trial by trial and leave at least half of the places in use; returns how many. */
int join(const struct act_part *part, int parts, int place, struct lane *out)
{
	int n = 1, most = part[0].rows, sum = part[0].rows;

	for (; n < parts && part[n].trial == part[n - 1].trial + 1; n++) {
		const int now = max(most, part[n].rows);

		if ((n + 1) * now > 2 * (sum + part[n].rows))
			break;
		most = now;
		sum += part[n].rows;
	}
	*out = {part[0].trial, n, most, place};
	return n;
}

/* Who has which place; returns the places. *placed: some are not in the order that was asked, and h_rows says which. */
int arrange(struct cuda_exec *c, const struct act_part *part, int parts, struct lane *lane, int *lanes, int *placed)
{
	int32_t *place = c->h_rows->place;
	int places = 0, rows = 0;

	for (int i = 0, n; i < parts; i += n) {
		struct lane *l = &lane[(*lanes)++];

		n = join(part + i, parts - i, places, l);
		for (int k = 0; k < n; k++)
			for (int r = 0; r < part[i + k].rows; r++)
				place[rows++] = places + k * l->rows + r;
		places += n * l->rows;
	}
	*placed = places != rows;
	return places;
}

/* To the device: what is not in the room that it was offered goes there first. */
int send(struct cuda_exec *c, int rows, int placed, const int32_t *bar, const float *portfolio, struct fh_status *st)
{
	struct cuda_act_rows *h = c->h_rows, *d = cuda_at<struct cuda_act_rows>(c, &c->s.vrow);

	if (bar != h->bar)
		memcpy(h->bar, bar, rows * sizeof *bar);
	if (portfolio != h->portfolio[0])
		memcpy(h->portfolio, portfolio, rows * sizeof h->portfolio[0]);
	CUDA_TRY(cudaMemcpyAsync(d->portfolio, h->portfolio, rows * sizeof h->portfolio[0], cudaMemcpyHostToDevice, c->stream));
	CUDA_TRY(cudaMemcpyAsync(d->bar, h->bar, rows * sizeof *h->bar, cudaMemcpyHostToDevice, c->stream));
	if (placed)
		CUDA_TRY(cudaMemcpyAsync(d->place, h->place, rows * sizeof *h->place, cudaMemcpyHostToDevice, c->stream));
	return 0;
}

/* vx -> vaction. */
int decide(struct cuda_exec *c, const struct lane *l, struct fh_status *st)
{
	const int first = c->act_first + l->trial, D = c->dims.D;
	int32_t *action = cuda_at<int32_t>(c, &c->s.vaction) + (size_t)l->place * D;
	const char *x = cuda_at<char>(c, &c->s.vx) + (size_t)l->place * c->s.ldx * c->s.low;
	const int together = max((int)CUDA_ACT_LAYERS / l->rows, 1); /* trials that go through the layers at once */
	int rc = mlp_rows_greedy(c, c->act_whose, first, l->trials, l->rows, x, action, st);

	if (rc <= 0)
		return rc;
	rc = 0;
	for (int k = 0; !rc && k < l->trials; k += together)
		for (int at = 0; !rc && at < l->rows; at += CUDA_ACT_LAYERS) /* more than once only where a trial goes alone */
			rc = cuda_rows_layers(c, c->act_whose, first + k, min(together, l->trials - k), l->place + k * l->rows + at,
			                      min(l->rows - at, (int)CUDA_ACT_LAYERS), action + (size_t)(k * l->rows + at) * D, st);
	return rc;
}

/* From the places back to the order that was asked; a place is never in front of its row. */
void hand_out(const struct cuda_exec *c, int rows, int placed, int32_t *action)
{
	const int D = c->dims.D;

	if (!placed && action != c->h_action)
		memcpy(action, c->h_action, (size_t)rows * D * sizeof *action);
	for (int r = 0; placed && r < rows; r++)
		memmove(action + (size_t)r * D, c->h_action + (size_t)c->h_rows->place[r] * D, (size_t)D * sizeof *action);
}

/* Everything of a call; waits for its end. */
int enqueue(struct cuda_exec *c, const struct lane *lane, int lanes, int rows, int placed, const int32_t *bar, const float *portfolio, size_t bytes,
            struct fh_status *st)
{
	int rc = send(c, rows, placed, bar, portfolio, st);

	if (!rc)
		rc = look(c, rows, placed, st);
	for (int i = 0; !rc && i < lanes; i++)
		rc = decide(c, &lane[i], st);
	if (rc)
		return rc;
	CUDA_TRY(cudaMemcpyAsync(c->h_action, cuda_at<void>(c, &c->s.vaction), bytes, cudaMemcpyDeviceToHost, c->stream));
	CUDA_TRY(cudaEventRecord(c->acted, c->stream));
	CUDA_TRY(cudaEventSynchronize(c->acted)); /* awake, like cuda_wait_awake() */
	return 0;
}

/* Part of training's stream, in front of whatever changes them next. */
int keep(struct cuda_exec *c, int whose, int first, int trials, struct fh_status *st)
{
	const size_t from = (size_t)first * c->dims.params, n = (size_t)trials * c->dims.params;

	CUDA_TRY(cudaMemcpyAsync(cuda_at<float>(c, &c->s.vparam) + from, cuda_params(c, whose) + from, n * sizeof(float), cudaMemcpyDeviceToDevice, c->stream));
	if (c->dims.precision == FH_PRECISION_BF16)
		CUDA_TRY(cudaMemcpyAsync(cuda_at<__nv_bfloat16>(c, &c->s.vparam_lp) + from, (const __nv_bfloat16 *)cuda_weights(c, whose) + from,
		                         n * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, c->stream));
	return 0;
}

/* FH_GPU_BEHIND=0, for comparison: training waits for evaluations. */
int keeps(const struct cuda_exec *c)
{
	const char *behind = getenv("FH_GPU_BEHIND");

	return c->s.kept && !c->sync && !(behind && !strcmp(behind, "0"));
}

} // namespace

size_t cuda_act_pinned(const struct dqn_dims *d)
{
	return sizeof(struct cuda_act_rows) + (size_t)CUDA_ACT_PLACES * d->D * sizeof(int32_t);
}

int cuda_act_open(struct exec *x, int policy, int first, int *trials, struct act_limits *limits, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);

	if (first < 0 || *trials < 1 || first + *trials > c->dims.P || c->dims.SD <= FH_PORTFOLIO_FEATURES)
		return fh_fail(st, FH_INTERNAL, "trials %d to %d of %d cannot act on %d numbers", first, first + *trials - 1, c->dims.P, c->dims.SD);
	CUDA_TRY(cudaSetDevice(x->backend->device));
	c->act_whose = policy == FH_POLICY_ONLINE ? CUDA_ONLINE : CUDA_TARGET;
	c->act_first = first;
	*trials = min(*trials, (int)CUDA_ACT_TRIALS);
	c->act_trials = *trials;
	if (keeps(c)) {
		const int rc = keep(c, c->act_whose, first, *trials, st);

		if (rc)
			return rc;
		c->act_whose = CUDA_KEPT;
	}
	CUDA_TRY(cudaEventRecord(c->opened, c->stream));
	CUDA_TRY(cudaStreamWaitEvent(c->acting, c->opened, 0));
	/* One launch for all layers takes a whole call in hardly more time than one row. */
	*limits = {CUDA_ACT_ROWS, mlp_takes(c, 1, CUDA_ACT_ROWS, 1) ? CUDA_ACT_ROWS : CUDA_ACT_LAYERS, CUDA_ACT_LEAST, NULL,
	           c->h_rows->bar, c->h_action, c->h_rows->portfolio[0], c->act_whose == CUDA_KEPT};
	return 0;
}

int cuda_act(struct exec *x, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct lane lane[CUDA_ACT_TRIALS];
	const cudaStream_t training = c->stream;
	int rows = 0, lanes = 0, placed = 0, rc;

	for (int i = 0; i < parts; i++) {
		if (part[i].rows < 1 || part[i].trial >= c->act_trials || part[i].trial < (i ? part[i - 1].trial + 1 : 0))
			return fh_fail(st, FH_INTERNAL, "%d rows of trial %d of %d in one call", part[i].rows, part[i].trial, c->act_trials);
		rows += part[i].rows;
	}
	if (rows < 1 || rows > CUDA_ACT_ROWS)
		return fh_fail(st, FH_INTERNAL, "%d rows in one call, at most %d", rows, CUDA_ACT_ROWS);
	CUDA_TRY(cudaSetDevice(x->backend->device));
	const size_t bytes = (size_t)arrange(c, part, parts, lane, &lanes, &placed) * c->dims.D * sizeof *action;
	c->stream = c->acting; /* what launches takes the exec's */
	rc = enqueue(c, lane, lanes, rows, placed, bar, portfolio, bytes, st);
	c->stream = training;
	if (rc)
		return rc;
	hand_out(c, rows, placed, action);
	return 0;
}
