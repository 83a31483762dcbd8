/* Resident markets: the bars, features and volatility of a data set on the device, uploaded once and shared between trainers
 * while any of them has a job on it, or is parked after one.
 *
 * Thread: a trainer's worker; the list is guarded by tape_lock, which is held through an upload so that two jobs that start
 * at once share one. Invariant: a tape never changes once it is in the list. */
#include <stdlib.h>
#include <string.h>
#include "gpu/cuda/device.h"

struct cuda_tape {
	char hash[65];
	int64_t bars;
	double tick, max_gap; /* the features were made with these */
	struct cuda_tape_view view;
	void *arena;
	size_t cost;          /* as the driver counts it */
	int refs;
	struct cuda_tape *next;
};

enum { OPEN, HIGH, LOW, CLOSE, TS, FEATURE, SIGMA, ROLLED, COLUMNS };

static size_t column_bytes(int column, size_t bars)
{
	switch (column) {
	case FEATURE:
		return bars * FH_MARKET_FEATURES * sizeof(float);
	case SIGMA:
		return bars * sizeof(float);
	case ROLLED:
		return bars;
	default:
		return bars * 8;
	}
}

/* Offsets of the columns, each on a boundary of its own; returns the sum. */
static size_t place(int64_t bars, int rolled, size_t at[COLUMNS])
{
	size_t sum = 0;

	for (int i = 0; i < (rolled ? COLUMNS : ROLLED); i++) {
		at[i] = sum;
		sum += (column_bytes(i, (size_t)bars) + 255) / 256 * 256;
	}
	return sum;
}

size_t cuda_tape_bytes(int64_t bars, int rolled)
{
	size_t at[COLUMNS];

	return place(bars, rolled, at);
}

static int copy_columns(const struct market *m, char *d, const size_t at[COLUMNS], cudaStream_t stream, struct fh_status *st)
{
	const void *from[COLUMNS] = {m->open, m->high, m->low, m->close, m->ts, m->feature, m->sigma, m->rolled};

	for (int i = 0; i < (m->rolled ? COLUMNS : ROLLED); i++)
		CUDA_TRY(cudaMemcpyAsync(d + at[i], from[i], column_bytes(i, (size_t)m->bars), cudaMemcpyHostToDevice, stream));
	CUDA_TRY(cudaStreamSynchronize(stream));
	return 0;
}

static int allocate(struct cuda_state *s, size_t bytes, char **out, size_t *cost, struct fh_status *st)
{
	std::lock_guard<std::mutex> hold(s->taking);
	size_t before = cuda_free_now();
	cudaError_t e = cudaMalloc(out, bytes);

	if (e == cudaErrorMemoryAllocation) {
		(void)cudaGetLastError();
		return fh_fail(st, FH_EXHAUSTED, "the market needs %zu bytes of device memory, %zu are free", bytes, before);
	}
	if (e != cudaSuccess)
		return cuda_fail(st, e, "cudaMalloc");
	*cost = cuda_cost(before, bytes);
	cuda_own(&s->markets, *cost, 0);
	return 0;
}

static void tape_free(struct cuda_state *s, struct cuda_tape *t)
{
	std::lock_guard<std::mutex> hold(s->taking);

	if (t->arena) {
		cudaFree(t->arena);
		cuda_own(&s->markets, 0, t->cost);
	}
	free(t);
}

static int tape_upload(struct cuda_state *s, const struct market *m, cudaStream_t stream, struct cuda_tape **out, struct fh_status *st)
{
	struct cuda_tape *t = (struct cuda_tape *)calloc(1, sizeof *t);
	size_t at[COLUMNS] = {};
	char *d = NULL;
	int rc;

	if (!t)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for a market");
	rc = allocate(s, place(m->bars, m->rolled != NULL, at), &d, &t->cost, st);
	t->arena = rc ? NULL : d;
	if (rc == 0)
		rc = copy_columns(m, d, at, stream, st);
	if (rc) {
		tape_free(s, t);
		return rc;
	}
	t->bars = m->bars;
	t->tick = m->tick;
	t->max_gap = m->max_gap;
	memcpy(t->hash, m->hash, sizeof t->hash);
	t->view = {(const double *)(d + at[OPEN]), (const double *)(d + at[HIGH]), (const double *)(d + at[LOW]),
	           (const double *)(d + at[CLOSE]), (const float *)(d + at[FEATURE]), (const float *)(d + at[SIGMA]),
	           (const int64_t *)(d + at[TS]), m->rolled ? (const uint8_t *)(d + at[ROLLED]) : NULL};
	*out = t;
	return 0;
}

/* Takes a reference; uploads what is not there. */
static int tape_get(struct cuda_state *s, const struct market *m, cudaStream_t stream, struct cuda_tape **out, struct fh_status *st)
{
	std::lock_guard<std::mutex> hold(s->tape_lock);
	struct cuda_tape *t = s->tapes;
	int rc = 0;

	while (t && !(t->bars == m->bars && t->tick == m->tick && t->max_gap == m->max_gap && !memcmp(t->hash, m->hash, sizeof t->hash)))
		t = t->next;
	if (!t) {
		rc = tape_upload(s, m, stream, &t, st);
		if (rc)
			return rc;
		t->next = s->tapes;
		s->tapes = t;
	}
	t->refs++;
	*out = t;
	return 0;
}

static void tape_put(struct cuda_state *s, struct cuda_tape *t)
{
	std::lock_guard<std::mutex> hold(s->tape_lock);
	struct cuda_tape **at = &s->tapes;

	if (--t->refs)
		return;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	tape_free(s, t);
}

void cuda_tape_release(struct cuda_exec *c)
{
	if (c->tape)
		tape_put(cuda_state_of(c->x.backend), c->tape);
	c->tape = NULL;
}

/* The new one before the old one goes: the next job on the same bars uploads nothing. Where both do not fit side by side,
 * the old one goes first. */
int cuda_exec_market(struct exec *x, const struct market *m, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct cuda_state *s = cuda_state_of(x->backend);
	struct fh_status full = FH_STATUS_INIT;
	struct cuda_tape *t = NULL;
	int rc = cuda_use(x->backend, st);

	if (rc)
		return rc;
	rc = tape_get(s, m, c->stream, &t, &full);
	if (rc == FH_EXHAUSTED && c->tape) {
		cuda_tape_release(c);
		rc = tape_get(s, m, c->stream, &t, &full);
	}
	if (rc) {
		if (st)
			*st = full;
		return rc;
	}
	cuda_tape_release(c);
	c->tape = t;
	x->market_host = m;
	x->market = {t->bars, t->view.open, t->view.high, t->view.low, t->view.close, t->view.feature, t->view.sigma};
	return cuda_send(c, cuda_at<struct cuda_tape_view>(c, &c->s.tape), &t->view, sizeof t->view, st);
}
