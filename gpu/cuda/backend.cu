/* The CUDA backend: arenas, captured graphs, deferred readback. Built as fhd-cuda.so and loaded when a device is there; the
 * main binary knows only struct backend. What is shared between trainers is in device.cu and tape.cu.
 *
 * Thread: one trainer's exec by one worker at a time; Invariant: nothing is
 * allocated, freed or synchronized between the launch of a graph and its end; every number that changes from step to
 * step or job to job lies in device memory, so a graph captured once serves every job of its layout. */
#include <new>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "gpu/cuda/device.h"
#include "gpu/cuda/product.cuh"

#define AWAKE_BYTES ((size_t)4 << 20) /* a copy of less is waited for awake */
#define AWAKE_NS 500000               /* so long the end of everything is waited for awake, then asleep */

static const stage_fn stages[DQN_STAGES] = {
	cuda_dqn_policy, cuda_dqn_explore, cuda_dqn_env, cuda_dqn_insert, cuda_dqn_advance, cuda_dqn_sample, cuda_dqn_gather,
	cuda_dqn_forward, cuda_dqn_loss, cuda_dqn_backward, cuda_dqn_norm, cuda_dqn_adam, cuda_dqn_priority, cuda_dqn_count,
};
static_assert(STAGE_POLICY == 0 && STAGE_INSERT == 3 && STAGE_ADVANCE == 4 && STAGE_COUNT == 13 && DQN_STAGES == 14,
              "the table above is in the order of enum dqn_stage");

/* ---------------------------------------------------------------- exec */

static void cuda_exec_free(struct exec *x);

/* The arena, or a refusal that says what there is. `taking` is held. */
static int take_arena(struct cuda_exec *c, const struct plan *plan, struct fh_status *st)
{
	size_t free_bytes = 0, total = 0;
	cudaError_t e;

	CUDA_TRY(cudaMemGetInfo(&free_bytes, &total));
	e = cudaMalloc(&c->x.arena, plan->arena_bytes);
	if (e == cudaSuccess)
		return 0;
	c->x.arena = NULL;
	if (e != cudaErrorMemoryAllocation)
		return cuda_fail(st, e, "cudaMalloc");
	(void)cudaGetLastError();
	return fh_fail(st, FH_EXHAUSTED, "the job needs %zu bytes of device memory (%.1f MiB), %zu are free (%.1f of %.1f MiB)", plan->arena_bytes,
	               (double)plan->arena_bytes / 1048576, free_bytes, (double)free_bytes / 1048576, (double)total / 1048576);
}

static int fill_arena(struct cuda_exec *c, const struct plan *plan, struct fh_status *st)
{
	for (int i = 0; i < plan->tensors; i++)
		c->x.tensor[i] = (char *)c->x.arena + plan->tensor[i].offset;
	/* FH_GPU_POISON: every byte that no stage has written is a NaN, for tests */
	CUDA_TRY(cudaMemsetAsync(c->x.arena, getenv("FH_GPU_POISON") ? 0xff : 0, plan->arena_bytes, c->stream));
	c->scratch = (unsigned char *)c->x.tensor[T_SCRATCH];
	CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, &c->s.winner), 0xff, c->s.winner.stride * c->dims.P, c->stream));
	CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, &c->s.ticket), 0, c->s.ticket.stride * c->dims.P, c->stream));
	CUDA_TRY(cudaMemsetAsync(cuda_at<void>(c, &c->s.slice), 0, c->s.slice.stride * c->dims.P, c->stream)); /* its padding */
	return 0;
}

/* Page-locked slots for what is read back: clocks and accumulators. */
static int take_slots(struct cuda_exec *c, const struct plan *plan, struct fh_status *st)
{
	size_t slot = 0;

	for (int i = 0; i < plan->tensors; i++) {
		const struct plan_tensor *t = &plan->tensor[i];

		if ((t->desc.role == ROLE_CLOCK || t->desc.role == ROLE_ACCUM) && t->bytes > slot)
			slot = t->bytes;
	}
	slot = (slot + 255) / 256 * 256;
	c->used.pinned = slot * CUDA_SLOTS + CUDA_SENT_BYTES + cuda_act_pinned(&c->dims);
	CUDA_TRY(cudaMallocHost(&c->h_slots, c->used.pinned));
	c->h_sent = (char *)c->h_slots + slot * CUDA_SLOTS;
	c->h_rows = (struct cuda_act_rows *)(c->h_sent + CUDA_SENT_BYTES);
	c->h_action = (int32_t *)(c->h_rows + 1);
	CUDA_TRY(cudaEventCreateWithFlags(&c->soon, cudaEventDisableTiming));
	for (int i = 0; i < CUDA_SLOTS; i++) {
		c->slot[i].h = (char *)c->h_slots + i * slot;
		c->slot[i].bytes = slot;
		CUDA_TRY(cudaEventCreateWithFlags(&c->slot[i].done, cudaEventDisableTiming));
	}
	return 0;
}

static int take_streams(struct cuda_exec *c, struct fh_status *st)
{
	CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
	CUDA_TRY(cudaStreamCreateWithFlags(&c->side, cudaStreamNonBlocking));
	CUDA_TRY(cudaStreamCreateWithFlags(&c->acting, cudaStreamNonBlocking));
	for (int i = 0; i < 2; i++)
		CUDA_TRY(cudaEventCreateWithFlags(&c->launched[i], cudaEventDisableTiming | cudaEventBlockingSync));
	CUDA_TRY(cudaEventCreateWithFlags(&c->fork, cudaEventDisableTiming));
	CUDA_TRY(cudaEventCreateWithFlags(&c->join, cudaEventDisableTiming));
	CUDA_TRY(cudaEventCreateWithFlags(&c->opened, cudaEventDisableTiming));
	CUDA_TRY(cudaEventCreateWithFlags(&c->acted, cudaEventDisableTiming));
	return 0;
}

/* Everything of one trainer, as one change of the device's memory. */
static int exec_memory(struct cuda_exec *c, const struct plan *plan, struct fh_status *st)
{
	struct cuda_state *s = cuda_state_of(c->x.backend);
	std::lock_guard<std::mutex> hold(s->taking);
	size_t before = cuda_free_now();
	int rc = take_arena(c, plan, st);

	c->seat = cuda_sit(s);
	if (rc == 0)
		rc = take_streams(c, st);
	if (rc == 0)
		rc = take_slots(c, plan, st);
	if (rc == 0)
		rc = fill_arena(c, plan, st);
	c->used.arena = c->x.arena ? cuda_cost(before, plan->arena_bytes) : 0;
	cuda_own(&s->arenas, c->used.arena, 0);
	cuda_own(&s->pinned, c->used.pinned, 0);
	return rc;
}

static int cuda_exec_new(const struct backend *b, const struct plan *plan, struct exec **out, struct fh_status *st)
{
	struct cuda_exec *c;
	const char *sync = getenv("FH_GPU_SYNC");
	int rc = cuda_use(b, st);

	if (rc)
		return rc;
	c = (struct cuda_exec *)calloc(1, sizeof *c);
	if (!c)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for a trainer");
	c->seat = -1;
	c->x.backend = b;
	c->plan = *plan;
	c->x.plan = &c->plan;
	c->x.dims = c->plan.dims;
	memcpy(&c->dims, plan->dims, sizeof c->dims);
	cuda_scratch_make(&c->dims, &c->s);
	c->sync = sync && *sync && strcmp(sync, "0") != 0;
	c->overlap = cuda_state_of(b)->overlap;
	c->clusters = cuda_state_of(b)->clusters;
	c->multiprocessors = cuda_state_of(b)->multiprocessors;
	c->shared = (size_t)cuda_state_of(b)->shared;
	rc = exec_memory(c, plan, st);
	if (rc == 0)
		rc = product_choose(c, st);
	if (rc == 0 && c->products && (rc = fill_arena(c, plan, st)) == 0)
		rc = product_clear(c, st);
	if (rc) {
		cuda_exec_free(&c->x);
		return rc;
	}
	*out = &c->x;
	return 0;
}

/* Errors are of no interest here: after a lost device everything fails and goes with the process. */
static void give_back(struct cuda_exec *c)
{
	struct cuda_state *s = cuda_state_of(c->x.backend);
	std::lock_guard<std::mutex> hold(s->taking);

	cuda_stand(s, c->seat);
	for (int i = 0; i < c->graphs; i++)
		cudaGraphExecDestroy(c->graph[i].exec);
	for (int i = 0; i < CUDA_SLOTS; i++)
		if (c->slot[i].done)
			cudaEventDestroy(c->slot[i].done);
	for (int i = 0; i < 2; i++)
		if (c->launched[i])
			cudaEventDestroy(c->launched[i]);
	for (cudaEvent_t e : {c->fork, c->join, c->soon, c->opened, c->acted})
		if (e)
			cudaEventDestroy(e);
	for (cudaStream_t s : {c->side, c->acting})
		if (s)
			cudaStreamDestroy(s);
	if (c->h_slots)
		cudaFreeHost(c->h_slots);
	if (c->x.arena)
		cudaFree(c->x.arena);
	if (c->stream)
		cudaStreamDestroy(c->stream);
	(void)cudaGetLastError();
	cuda_own(&s->arenas, 0, c->used.arena);
	cuda_own(&s->graphs, 0, c->used.graph_bytes);
	cuda_own(&s->pinned, 0, c->used.pinned);
}

static void cuda_exec_free(struct exec *x)
{
	struct cuda_exec *c = cuda_of(x);

	if (!x)
		return;
	cudaSetDevice(x->backend->device);
	if (c->stream)
		cudaStreamSynchronize(c->stream);
	cuda_tape_release(c);
	give_back(c);
	free(c->products);
	free(c);
}

static void cuda_usage(const struct exec *x, struct exec_usage *out)
{
	const struct exec_usage *u = &((const struct cuda_exec *)x)->used;

	out->arena = u->arena; /* these two never change */
	out->pinned = u->pinned;
	out->graph_bytes = __atomic_load_n(&u->graph_bytes, __ATOMIC_RELAXED);
	out->graphs = __atomic_load_n(&u->graphs, __ATOMIC_RELAXED);
	out->captures = __atomic_load_n(&u->captures, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------- copies */

static size_t whole(const struct exec *x, int tensor, size_t offset, size_t bytes)
{
	return bytes ? bytes : x->plan->tensor[tensor].bytes - offset;
}

int cuda_wait_awake(struct cuda_exec *c, struct fh_status *st)
{
	CUDA_TRY(cudaEventRecord(c->soon, c->stream));
	CUDA_TRY(cudaEventSynchronize(c->soon)); /* without cudaEventBlockingSync it asks until it is there */
	c->sent = 0;
	return 0;
}

int cuda_send(struct cuda_exec *c, void *dst, const void *src, size_t bytes, struct fh_status *st)
{
	int rc = c->sent + bytes > CUDA_SENT_BYTES ? cuda_wait_awake(c, st) : 0;

	if (rc)
		return rc;
	memcpy(c->h_sent + c->sent, src, bytes);
	CUDA_TRY(cudaMemcpyAsync(dst, c->h_sent + c->sent, bytes, cudaMemcpyHostToDevice, c->stream));
	c->sent += (bytes + 15) / 16 * 16;
	return 0;
}

/* The start of a job has a dozen of small ones for every trial: they are sent, and what is large is waited for. */
static int wait_copied(struct cuda_exec *c, size_t bytes, struct fh_status *st)
{
	if (bytes <= AWAKE_BYTES)
		return cuda_wait_awake(c, st);
	CUDA_TRY(cudaStreamSynchronize(c->stream));
	return 0;
}

static int cuda_write(struct exec *x, int tensor, size_t offset, const void *src, size_t bytes, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	char *dst = (char *)x->tensor[tensor] + offset;
	int rc = cuda_use(x->backend, st);

	if (rc)
		return rc;
	bytes = whole(x, tensor, offset, bytes);
	if (bytes <= CUDA_SENT_BYTES)
		return cuda_send(c, dst, src, bytes, st);
	CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream));
	return wait_copied(c, bytes, st);
}

static int cuda_read(struct exec *x, int tensor, size_t offset, void *dst, size_t bytes, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int rc = cuda_use(x->backend, st);

	if (rc)
		return rc;
	bytes = whole(x, tensor, offset, bytes);
	CUDA_TRY(cudaMemcpyAsync(dst, (const char *)x->tensor[tensor] + offset, bytes, cudaMemcpyDeviceToHost, c->stream));
	return wait_copied(c, bytes, st);
}

static int cuda_zero(struct exec *x, int tensor, int tensors, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int rc = cuda_use(x->backend, st);

	if (rc)
		return rc;
	CUDA_TRY(cudaMemsetAsync(x->tensor[tensor], 0, plan_span(x->plan, tensor, tensors), c->stream));
	return 0;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What takes less than falling asleep and being woken is waited for awake. */
static int cuda_finish(struct exec *x, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int rc = cuda_use(x->backend, st);
	cudaError_t e;

	if (rc)
		return rc;
	CUDA_TRY(cudaEventRecord(c->soon, c->stream));
	const int64_t until = now_ns() + AWAKE_NS;
	do
		e = cudaEventQuery(c->soon);
	while (e == cudaErrorNotReady && now_ns() < until);
	if (e == cudaErrorNotReady) {
		(void)cudaGetLastError();
		e = cudaStreamSynchronize(c->stream);
	}
	if (e != cudaSuccess)
		return cuda_fail(st, e, "the end of what was enqueued");
	c->sent = 0;
	return 0;
}

/* ---------------------------------------------------------------- running */

static int cuda_stage(struct exec *x, const struct stage *stage, struct fh_status *st)
{
	int rc = cuda_use(x->backend, st);

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
	if (!rc && (e = cudaGraphInstantiate(&exec, g, 0)) != cudaSuccess)
		rc = cuda_fail(st, e, "cudaGraphInstantiate");
	if (!rc && (e = cudaGraphUpload(exec, c->stream)) != cudaSuccess)
		rc = cuda_fail(st, e, "cudaGraphUpload");
	if (g)
		cudaGraphDestroy(g);
	if (rc && exec)
		cudaGraphExecDestroy(exec);
	if (!rc)
		*out = exec;
	return rc;
}

static void count_graphs(struct cuda_exec *c, size_t more, size_t less)
{
	struct cuda_state *s = cuda_state_of(c->x.backend);

	cuda_own(&s->graphs, more, less);
	cuda_own(&c->used.graph_bytes, more, less);
	__atomic_store_n(&c->used.graphs, c->graphs, __ATOMIC_RELAXED);
	if (!less && (!s->graphs_seen || c->used.graph_bytes > s->graph_typical))
		__atomic_store_n(&s->graph_typical, c->used.graph_bytes, __ATOMIC_RELAXED);
	s->graphs_seen = 1;
}

/* The oldest goes; the stream may still run it. */
static int forget_graph(struct cuda_exec *c, struct fh_status *st)
{
	size_t bytes = c->graph[0].bytes;

	CUDA_TRY(cudaStreamSynchronize(c->stream));
	cudaGraphExecDestroy(c->graph[0].exec);
	c->graphs--;
	memmove(c->graph, c->graph + 1, sizeof c->graph[0] * (size_t)c->graphs);
	count_graphs(c, 0, bytes);
	return 0;
}

static int forget_all(struct cuda_exec *c, struct fh_status *st)
{
	std::lock_guard<std::mutex> hold(cuda_state_of(c->x.backend)->taking);
	int rc = 0;

	while (c->graphs && !rc)
		rc = forget_graph(c, st);
	return rc;
}

/* In a crowd multiprocessors are what is short, and the bits are the same: a learn step of 256 samples takes 96 of them for 10 us and 64
 * for 9 by clusters, 12 for 27 by warpgroups and 16 for 21 by warps (H200). */
static int capture_as(struct cuda_exec *c, const struct run *run, int runs, int crowded, cudaGraphExec_t *out, struct fh_status *st)
{
	c->crowded = crowded;
	const int rc = capture(c, run, runs, out, st);
	c->crowded = 0;
	return rc;
}

/* The captured graph of this list of runs, made at its first use. */
static int graph_of(struct cuda_exec *c, const struct run *run, int runs, int crowded, cudaGraphExec_t *out, struct fh_status *st)
{
	struct cuda_graph *g;
	size_t before;
	int rc = 0;

	for (int i = 0; i < c->graphs; i++)
		if (c->graph[i].runs == runs && c->graph[i].crowded == crowded && !memcmp(c->graph[i].run, run, sizeof *run * (size_t)runs)) {
			*out = c->graph[i].exec;
			return 0;
		}
	std::lock_guard<std::mutex> hold(cuda_state_of(c->x.backend)->taking);
	if (c->graphs == CUDA_GRAPHS)
		rc = forget_graph(c, st);
	if (rc)
		return rc;
	before = cuda_free_now();
	g = &c->graph[c->graphs];
	rc = capture_as(c, run, runs, crowded, &g->exec, st);
	if (rc)
		return rc;
	g->crowded = crowded;
	g->bytes = cuda_cost(before, 0);
	memcpy(g->run, run, sizeof *run * (size_t)runs);
	g->runs = runs;
	c->graphs++;
	__atomic_add_fetch(&c->used.captures, 1, __ATOMIC_RELAXED);
	count_graphs(c, g->bytes, 0);
	*out = g->exec;
	return 0;
}

static int cuda_run(struct exec *x, const struct run *run, int runs, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	cudaGraphExec_t g = NULL;
	int rc = cuda_use(x->backend, st);

	if (rc)
		return rc;
	if (c->sync)
		return enqueue(c, run, runs, st);
	if (runs > CUDA_RUNS)
		return fh_fail(st, FH_INTERNAL, "%d runs in one chunk, at most %d", runs, CUDA_RUNS);
	rc = graph_of(c, run, runs, c->clusters && cuda_crowded(cuda_state_of(x->backend), c->seat), &g, st);
	if (rc)
		return rc;
	if (c->launches >= 2)
		CUDA_TRY(cudaEventSynchronize(c->launched[c->launches & 1]));
	CUDA_TRY(cudaGraphLaunch(g, c->stream));
	CUDA_TRY(cudaEventRecord(c->launched[c->launches & 1], c->stream));
	c->launches++;
	return 0;
}

static void cuda_products(const struct exec *x, char *text, size_t size)
{
	product_text((const struct cuda_exec *)x, text, size);
}

static int cuda_keep_products(struct exec *x, const char *text, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	int changed, rc = cuda_use(x->backend, st);

	if (rc == 0)
		rc = product_keep(c, text, &changed, st);
	return rc || !changed ? rc : forget_all(c, st);
}

static int cuda_would_wait(const struct exec *x)
{
	const struct cuda_exec *c = (const struct cuda_exec *)x;

	if (c->launches < 2 || cudaEventQuery(c->launched[c->launches & 1]) != cudaErrorNotReady)
		return 0; /* any other error is one of run() */
	(void)cudaGetLastError();
	return 1;
}

/* ---------------------------------------------------------------- deferred readback */

static int cuda_readback_request(struct exec *x, int tensor, int clear, uint64_t tag, struct fh_status *st)
{
	struct cuda_exec *c = cuda_of(x);
	const size_t bytes = x->plan->tensor[tensor].bytes;
	struct cuda_slot *s = &c->slot[c->asked % CUDA_SLOTS];
	int rc = cuda_use(x->backend, st);

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
	int rc = cuda_use(x->backend, st);

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
	s = new (std::nothrow) cuda_state();
	if (!s)
		return fh_fail(st, FH_EXHAUSTED, "out of host memory for the CUDA backend");
	int rc = cuda_device_open(s, device, st);
	if (rc) {
		delete s;
		return rc;
	}
	b = &s->b;
	b->name = "cuda";
	b->kind = FH_DEVICE_CUDA;
	b->abi = BACKEND_ABI;
	b->device = device;
	b->state = s;
	b->info = cuda_info;
	b->memory = cuda_memory;
	b->price = cuda_price;
	b->exec_new = cuda_exec_new;
	b->exec_free = cuda_exec_free;
	b->usage = cuda_usage;
	b->exec_market = cuda_exec_market;
	b->write = cuda_write;
	b->read = cuda_read;
	b->zero = cuda_zero;
	b->initial = cuda_begin;
	b->run = cuda_run;
	b->would_wait = cuda_would_wait;
	b->stage = cuda_stage;
	b->readback_request = cuda_readback_request;
	b->readback_poll = cuda_readback_poll;
	b->finish = cuda_finish;
	b->act_open = cuda_act_open;
	b->act = cuda_act;
	b->products = cuda_products;
	b->keep_products = cuda_keep_products;
	*out = b;
	return 0;
}
