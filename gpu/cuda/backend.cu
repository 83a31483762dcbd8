/* The CUDA backend: device, arenas, resident markets, captured graphs, deferred readback. Built as fhd-cuda.so and
 * loaded when a device is there; the main binary knows only struct backend.
 *
 * Thread: one trainer's exec by one worker at a time; resident markets are shared under a lock. Invariant: nothing is
 * allocated, freed or synchronized between the launch of a graph and its end; every number that changes from step to
 * step or job to job lies in device memory, so a graph captured once serves every job of its layout. */
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gpu/cuda/exec.h"

struct cuda_tape {
	char hash[65];
	int64_t bars;
	double tick, max_gap; /* the features were made with these */
	struct cuda_tape_view view;
	void *arena;
	int refs;
	struct cuda_tape *next;
};

struct cuda_state {
	struct backend b;
	std::mutex lock;          /* of tapes */
	struct cuda_tape *tapes;
};

static const stage_fn stages[DQN_STAGES] = {
	cuda_dqn_policy, cuda_dqn_explore, cuda_dqn_env, cuda_dqn_insert, cuda_dqn_advance, cuda_dqn_sample, cuda_dqn_gather,
	cuda_dqn_forward, cuda_dqn_loss, cuda_dqn_backward, cuda_dqn_norm, cuda_dqn_adam, cuda_dqn_priority, cuda_dqn_count,
};
static_assert(STAGE_POLICY == 0 && STAGE_INSERT == 3 && STAGE_ADVANCE == 4 && STAGE_COUNT == 13 && DQN_STAGES == 14,
              "the table above is in the order of enum dqn_stage");

/* ---------------------------------------------------------------- errors */

int cuda_fail(struct fh_status *st, cudaError_t e, const char *call)
{
	int code = FH_DEVICE;

	switch (e) {
	case cudaErrorMemoryAllocation:
		code = FH_EXHAUSTED;
		break;
	case cudaErrorIllegalAddress: case cudaErrorIllegalInstruction: case cudaErrorMisalignedAddress:
	case cudaErrorInvalidAddressSpace: case cudaErrorInvalidPc: case cudaErrorHardwareStackError:
	case cudaErrorLaunchFailure: case cudaErrorLaunchTimeout: case cudaErrorECCUncorrectable: case cudaErrorAssert:
	case cudaErrorNvlinkUncorrectable: case cudaErrorContextIsDestroyed:
		code = FH_DEVICE_LOST; /* every later call of this process would fail as well */
		break;
	default:
		break;
	}
	(void)cudaGetLastError();
	return fh_fail(st, code, "%.120s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

static int use_device(const struct backend *b, struct fh_status *st)
{
	CUDA_TRY(cudaSetDevice(b->device));
	return 0;
}

/* ---------------------------------------------------------------- device */

static int cuda_info(const struct backend *b, struct device_info *out, struct fh_status *st)
{
	cudaDeviceProp prop;
	struct device_info info = {};
	int driver = 0, rc = use_device(b, st);

	if (rc)
		return rc;
	CUDA_TRY(cudaGetDeviceProperties(&prop, b->device));
	CUDA_TRY(cudaDriverGetVersion(&driver));
	CUDA_TRY(cudaMemGetInfo(&info.memory_free, &info.memory_total));
	snprintf(info.name, sizeof info.name, "%.100s", prop.name);
	snprintf(info.driver, sizeof info.driver, "CUDA %d.%d", driver / 1000, driver % 1000 / 10);
	info.compute_major = prop.major;
	info.compute_minor = prop.minor;
	*out = info;
	return 0;
}

/* ---------------------------------------------------------------- exec */

static void cuda_exec_free(struct exec *x);

static int exec_memory(struct cuda_exec *c, const struct plan *plan, struct fh_status *st)
{
	size_t slot = 0, free_bytes = 0, total = 0;
	cudaError_t e;

	CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
	e = cudaMalloc(&c->x.arena, plan->arena_bytes);
	if (e != cudaSuccess) {
		(void)cudaGetLastError();
		c->x.arena = NULL;
		if (e == cudaErrorMemoryAllocation)
			return fh_fail(st, FH_EXHAUSTED, "the job needs %zu bytes of device memory, %zu are free", plan->arena_bytes, free_bytes);
		return cuda_fail(st, e, "cudaMalloc");
	}
	for (int i = 0; i < plan->tensors; i++) {
		const struct plan_tensor *t = &plan->tensor[i];

		c->x.tensor[i] = (char *)c->x.arena + t->offset;
		if ((t->desc.role == ROLE_CLOCK || t->desc.role == ROLE_ACCUM) && t->bytes > slot)
			slot = t->bytes;
	}
	/* FH_GPU_POISON: every byte that no stage has written is a NaN, for tests */
	CUDA_TRY(cudaMemsetAsync(c->x.arena, getenv("FH_GPU_POISON") ? 0xff : 0, plan->arena_bytes, c->stream));
	c->scratch = (unsigned char *)c->x.tensor[T_SCRATCH];
	CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, &c->s.winner), 0xff, c->s.winner.stride * c->dims.P, c->stream));
	CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, &c->s.ticket), 0, c->s.ticket.stride * c->dims.P, c->stream));
	CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, &c->s.slice), 0, c->s.slice.stride * c->dims.P, c->stream)); /* its padding */
	slot = (slot + 255) / 256 * 256;
	CUDA_TRY(cudaMallocHost(&c->h_slots, slot * CUDA_SLOTS));
	for (int i = 0; i < CUDA_SLOTS; i++) {
		c->slot[i].h = (char *)c->h_slots + i * slot;
		c->slot[i].bytes = slot;
		CUDA_TRY(cudaEventCreateWithFlags(&c->slot[i].done, cudaEventDisableTiming));
	}
	for (int i = 0; i < 2; i++) {
		CUDA_TRY(cudaEventCreateWithFlags(&c->launched[i], cudaEventDisableTiming | cudaEventBlockingSync));
		CUDA_TRY(cudaEventCreateWithFlags(&c->fork[i], cudaEventDisableTiming));
	}
	CUDA_TRY(cudaEventCreateWithFlags(&c->join, cudaEventDisableTiming));
	CUDA_TRY(cudaStreamCreateWithFlags(&c->side, cudaStreamNonBlocking));
	return 0;
}

static int cuda_exec_new(const struct backend *b, const struct plan *plan, struct exec **out, struct fh_status *st)
{
	struct cuda_exec *c;
	const char *sync = getenv("FH_GPU_SYNC");
	int rc = use_device(b, st);

	if (rc)
		return rc;
	c = (struct cuda_exec *)calloc(1, sizeof *c);
	if (!c)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for a trainer");
	c->x.backend = b;
	c->plan = *plan;
	c->x.plan = &c->plan;
	c->x.dims = c->plan.dims;
	memcpy(&c->dims, plan->dims, sizeof c->dims);
	cuda_scratch_make(&c->dims, &c->s);
	c->sync = sync && *sync && strcmp(sync, "0") != 0;
	int major = 0, shared = 0;
	if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, b->device) == cudaSuccess)
		c->overlap = major >= 9;
	if (cudaDeviceGetAttribute(&c->multiprocessors, cudaDevAttrMultiProcessorCount, b->device) != cudaSuccess)
		c->multiprocessors = 1;
	if (cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, b->device) == cudaSuccess)
		c->wide = shared >= 120 << 10;
	cudaError_t e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
	rc = e == cudaSuccess ? exec_memory(c, plan, st) : cuda_fail(st, e, "cudaStreamCreateWithFlags");
	if (rc) {
		cuda_exec_free(&c->x);
		return rc;
	}
	*out = &c->x;
	return 0;
}

static void tape_release(struct cuda_exec *c)
{
	struct cuda_state *s = (struct cuda_state *)c->x.backend->state;

	if (!c->tape)
		return;
	std::lock_guard<std::mutex> hold(s->lock);
	if (--c->tape->refs == 0) {
		struct cuda_tape **at = &s->tapes;

		while (*at != c->tape)
			at = &(*at)->next;
		*at = c->tape->next;
		cudaFree(c->tape->arena);
		free(c->tape);
	}
	c->tape = NULL;
}

static void cuda_exec_free(struct exec *x)
{
	struct cuda_exec *c = cuda_of(x);

	if (!x)
		return;
	cudaSetDevice(x->backend->device);
	if (c->stream)
		cudaStreamSynchronize(c->stream);
	for (int i = 0; i < c->graphs; i++)
		cudaGraphExecDestroy(c->graph[i].exec);
	tape_release(c);
	for (int i = 0; i < CUDA_SLOTS; i++)
		if (c->slot[i].done)
			cudaEventDestroy(c->slot[i].done);
	for (int i = 0; i < 2; i++) {
		if (c->launched[i])
			cudaEventDestroy(c->launched[i]);
		if (c->fork[i])
			cudaEventDestroy(c->fork[i]);
	}
	if (c->join)
		cudaEventDestroy(c->join);
	if (c->side)
		cudaStreamDestroy(c->side);
	cudaFreeHost(c->h_slots);
	cudaFree(x->arena);
	if (c->stream)
		cudaStreamDestroy(c->stream);
	free(c);
}

/* ---------------------------------------------------------------- the resident market */

static int tape_upload(const struct market *m, cudaStream_t stream, struct cuda_tape **out, struct fh_status *st)
{
	const size_t T = (size_t)m->bars, column = (T * 8 + 255) / 256 * 256, features = (T * FH_MARKET_FEATURES * 4 + 255) / 256 * 256;
	const size_t sigma = (T * 4 + 255) / 256 * 256, rolled = m->rolled ? (T + 255) / 256 * 256 : 0;
	const size_t bytes = 5 * column + features + sigma + rolled;
	size_t free_bytes = 0, total = 0;
	char *d = NULL;
	struct cuda_tape *t = (struct cuda_tape *)calloc(1, sizeof *t);

	if (!t)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for a market");
	cudaMemGetInfo(&free_bytes, &total);
	cudaError_t e = cudaMalloc(&d, bytes);
	const void *src[8] = {m->open, m->high, m->low, m->close, m->ts, m->feature, m->sigma, m->rolled};
	const size_t at[8] = {0, column, 2 * column, 3 * column, 4 * column, 5 * column, 5 * column + features, 5 * column + features + sigma};
	const size_t size[8] = {T * 8, T * 8, T * 8, T * 8, T * 8, T * FH_MARKET_FEATURES * 4, T * 4, T};
	for (int i = 0; i < (m->rolled ? 8 : 7) && e == cudaSuccess; i++)
		e = cudaMemcpyAsync(d + at[i], src[i], size[i], cudaMemcpyHostToDevice, stream);
	if (e == cudaSuccess)
		e = cudaStreamSynchronize(stream);
	if (e != cudaSuccess) {
		cudaFree(d);
		free(t);
		if (e == cudaErrorMemoryAllocation) {
			(void)cudaGetLastError();
			return fh_fail(st, FH_EXHAUSTED, "the market needs %zu bytes of device memory, %zu are free", bytes, free_bytes);
		}
		return cuda_fail(st, e, "upload of the market");
	}
	t->arena = d;
	t->bars = m->bars;
	t->tick = m->tick;
	t->max_gap = m->max_gap;
	memcpy(t->hash, m->hash, sizeof t->hash);
	t->view = {(const double *)(d + at[0]), (const double *)(d + at[1]), (const double *)(d + at[2]), (const double *)(d + at[3]),
	           (const float *)(d + at[5]), (const float *)(d + at[6]), (const int64_t *)(d + at[4]),
	           m->rolled ? (const uint8_t *)(d + at[7]) : nullptr};
	*out = t;
	return 0;
}

static int cuda_exec_market(struct exec *x, const struct market *m, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct cuda_state *s = (struct cuda_state *)x->backend->state;
	struct cuda_tape *t;
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	tape_release(c);
	{
		std::lock_guard<std::mutex> hold(s->lock);
		for (t = s->tapes; t; t = t->next)
			if (t->bars == m->bars && t->tick == m->tick && t->max_gap == m->max_gap && !memcmp(t->hash, m->hash, sizeof t->hash))
				break;
		if (!t) {
			rc = tape_upload(m, c->stream, &t, st);
			if (rc)
				return rc;
			t->next = s->tapes;
			s->tapes = t;
		}
		t->refs++;
	}
	c->tape = t;
	x->market_host = m;
	x->market = {t->bars, t->view.open, t->view.high, t->view.low, t->view.close, t->view.feature, t->view.sigma};
	CUDA_TRY(cudaMemcpyAsync(cuda_at<struct cuda_tape_view>(c, &c->s.tape), &t->view, sizeof t->view, cudaMemcpyHostToDevice, c->stream));
	CUDA_TRY(cudaStreamSynchronize(c->stream));
	return 0;
}

/* ---------------------------------------------------------------- copies */

static size_t whole(const struct exec *x, int tensor, size_t offset, size_t bytes)
{
	return bytes ? bytes : x->plan->tensor[tensor].bytes - offset;
}

static int cuda_write(struct exec *x, int tensor, size_t offset, const void *src, size_t bytes, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	CUDA_TRY(cudaMemcpyAsync((char *)x->tensor[tensor] + offset, src, whole(x, tensor, offset, bytes), cudaMemcpyHostToDevice, c->stream));
	CUDA_TRY(cudaStreamSynchronize(c->stream));
	return 0;
}

static int cuda_read(struct exec *x, int tensor, size_t offset, void *dst, size_t bytes, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	CUDA_TRY(cudaMemcpyAsync(dst, (const char *)x->tensor[tensor] + offset, whole(x, tensor, offset, bytes), cudaMemcpyDeviceToHost, c->stream));
	CUDA_TRY(cudaStreamSynchronize(c->stream));
	return 0;
}

static int cuda_zero(struct exec *x, int tensor, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	CUDA_TRY(cudaMemsetAsync(x->tensor[tensor], 0, x->plan->tensor[tensor].bytes, c->stream));
	return 0;
}

static int cuda_finish(struct exec *x, struct fh_status *st)
{
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	CUDA_TRY(cudaStreamSynchronize(cuda_of(x)->stream));
	return 0;
}

/* ---------------------------------------------------------------- running */

static int cuda_stage(struct exec *x, const struct stage *stage, struct fh_status *st)
{
	int rc = use_device(x->backend, st);

	if (!rc)
		rc = stages[stage->id](x, st);
	if (rc)
		return rc;
	cudaError_t e = cudaStreamSynchronize(cuda_of(x)->stream);
	return e == cudaSuccess ? 0 : cuda_fail(st, e, stage->name);
}

static int enqueue_phase(struct cuda_exec *c, int phase, struct fh_status *st)
{
	const struct phase *p = &c->plan.program->phase[phase];

	if (!c->sync && phase == DQN_PHASE_LEARN)
		return cuda_learn(c, st);
	if (!c->sync && phase == DQN_PHASE_COLLECT)
		return cuda_collect(c, st);
	for (int s = 0; s < p->stages; s++) {
		int rc = c->sync ? cuda_stage(&c->x, &p->stage[s], st) : stages[p->stage[s].id](&c->x, st);

		if (rc)
			return rc;
	}
	return 0;
}

static int enqueue(struct cuda_exec *c, const struct run *run, int runs, struct fh_status *st)
{
	for (int i = 0; i < runs; i++)
		for (int k = 0; k < run[i].count; k++) {
			int rc = enqueue_phase(c, run[i].phase, st);

			if (rc)
				return rc;
		}
	return 0;
}

static int capture(struct cuda_exec *c, const struct run *run, int runs, cudaGraphExec_t *out, struct fh_status *st)
{
	cudaGraph_t g = NULL;
	cudaGraphExec_t exec = NULL;
	int rc;

	CUDA_TRY(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
	rc = enqueue(c, run, runs, st);
	cudaError_t e = cudaStreamEndCapture(c->stream, &g);
	if (!rc && e != cudaSuccess)
		rc = cuda_fail(st, e, "cudaStreamEndCapture");
	if (!rc) {
		e = cudaGraphInstantiate(&exec, g, 0);
		if (e == cudaSuccess)
			e = cudaGraphUpload(exec, c->stream);
		if (e != cudaSuccess)
			rc = cuda_fail(st, e, "cudaGraphInstantiate");
	}
	if (g)
		cudaGraphDestroy(g);
	if (rc && exec)
		cudaGraphExecDestroy(exec);
	if (!rc)
		*out = exec;
	return rc;
}

/* The captured graph of this list of runs, made at its first use. */
static int graph_of(struct cuda_exec *c, const struct run *run, int runs, cudaGraphExec_t *out, struct fh_status *st)
{
	struct cuda_graph *g;

	for (int i = 0; i < c->graphs; i++)
		if (c->graph[i].runs == runs && !memcmp(c->graph[i].run, run, sizeof *run * (size_t)runs)) {
			*out = c->graph[i].exec;
			return 0;
		}
	if (c->graphs == CUDA_GRAPHS) { /* the oldest goes; the stream may still run it */
		CUDA_TRY(cudaStreamSynchronize(c->stream));
		cudaGraphExecDestroy(c->graph[0].exec);
		memmove(c->graph, c->graph + 1, sizeof c->graph[0] * (CUDA_GRAPHS - 1));
		c->graphs--;
	}
	g = &c->graph[c->graphs];
	int rc = capture(c, run, runs, &g->exec, st);
	if (rc)
		return rc;
	memcpy(g->run, run, sizeof *run * (size_t)runs);
	g->runs = runs;
	c->graphs++;
	*out = g->exec;
	return 0;
}

static int cuda_run(struct exec *x, const struct run *run, int runs, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	cudaGraphExec_t g = NULL;
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	if (c->sync)
		return enqueue(c, run, runs, st);
	if (runs > CUDA_RUNS)
		return fh_fail(st, FH_INTERNAL, "%d runs in one chunk, at most %d", runs, CUDA_RUNS);
	rc = graph_of(c, run, runs, &g, st);
	if (rc)
		return rc;
	if (c->launches >= 2)
		CUDA_TRY(cudaEventSynchronize(c->launched[c->launches & 1]));
	CUDA_TRY(cudaGraphLaunch(g, c->stream));
	CUDA_TRY(cudaEventRecord(c->launched[c->launches & 1], c->stream));
	c->launches++;
	return 0;
}

/* ---------------------------------------------------------------- deferred readback */

static int cuda_readback_request(struct exec *x, int tensor, int clear, uint64_t tag, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const size_t bytes = x->plan->tensor[tensor].bytes;
	struct cuda_slot *s = &c->slot[c->asked % CUDA_SLOTS];
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	/* one slot stays out: the one that the last poll handed out may still be read */
	if (c->asked - c->answered >= CUDA_SLOTS - 1)
		return fh_fail(st, FH_EXHAUSTED, "all %d readback slots are in flight", CUDA_SLOTS - 1);
	if (bytes > s->bytes)
		return fh_fail(st, FH_INTERNAL, "tensor %s does not fit a readback slot", x->plan->tensor[tensor].name);
	CUDA_TRY(cudaMemcpyAsync(s->h, x->tensor[tensor], bytes, cudaMemcpyDeviceToHost, c->stream));
	if (clear)
		CUDA_TRY(cudaMemsetAsync(x->tensor[tensor], 0, bytes, c->stream));
	CUDA_TRY(cudaEventRecord(s->done, c->stream));
	s->tag = tag;
	c->asked++;
	return 0;
}

static int cuda_readback_poll(struct exec *x, const void **data, uint64_t *tag, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	struct cuda_slot *s = &c->slot[c->answered % CUDA_SLOTS];
	int rc = use_device(x->backend, st);

	if (rc)
		return rc;
	if (c->answered < c->asked) {
		cudaError_t e = cudaEventQuery(s->done);

		if (e == cudaErrorNotReady) {
			(void)cudaGetLastError();
			return 0;
		}
		if (e != cudaSuccess)
			return cuda_fail(st, e, "cudaEventQuery");
		*data = s->h;
		*tag = s->tag;
		c->answered++;
		return 1;
	}
	return 0;
}

/* ---------------------------------------------------------------- entry */

extern "C" __attribute__((visibility("default"))) int fhd_backend_cuda(int abi, int device, const struct backend **out,
                                                                      struct fh_status *st)
{
	int devices = 0;
	struct cuda_state *s;
	struct backend *b;

	if (abi != BACKEND_ABI)
		return fh_fail(st, FH_VERSION, "fhd-cuda.so has backend version %d, fhd needs %d", BACKEND_ABI, abi);
	cudaError_t e = cudaGetDeviceCount(&devices);
	if (e != cudaSuccess || devices == 0) {
		(void)cudaGetLastError();
		return fh_fail(st, FH_UNAVAILABLE, "no CUDA device: %s", e == cudaSuccess ? "the driver lists none" : cudaGetErrorString(e));
	}
	if (device < 0 || device >= devices)
		return fh_fail(st, FH_UNAVAILABLE, "no CUDA device %d, there are %d", device, devices);
	CUDA_TRY(cudaSetDevice(device));
	CUDA_TRY(cudaFree(NULL)); /* makes the context now, not in the first job */
	s = new (std::nothrow) cuda_state();
	if (!s)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for the CUDA backend");
	b = &s->b;
	b->name = "cuda";
	b->kind = FH_DEVICE_CUDA;
	b->abi = BACKEND_ABI;
	b->device = device;
	b->state = s;
	b->info = cuda_info;
	b->exec_new = cuda_exec_new;
	b->exec_free = cuda_exec_free;
	b->exec_market = cuda_exec_market;
	b->write = cuda_write;
	b->read = cuda_read;
	b->zero = cuda_zero;
	b->run = cuda_run;
	b->stage = cuda_stage;
	b->readback_request = cuda_readback_request;
	b->readback_poll = cuda_readback_poll;
	b->finish = cuda_finish;
	*out = b;
	return 0;
}
