/* The driver's first times, at the start of the process instead of in the first job: what it makes when somebody asks for it first
 * and keeps for good (queues behind streams, memory behind captured graphs, copies and fills, page-locked memory). So an idle device
 * holds the same before the first job as after many, and the first job does not wait for it.
 *
 * Thread: the one that opens the device, and some of its own that have ended when it goes on. Nothing here is needed: what fails is left, and
 * whoever needs it will say so. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "gpu/cuda/device.h"

namespace {

/* As much as several trainers have at once: graphs of a few steps each, like those of one trainer, then long ones as well. Memory behind graphs
 * is taken 2 MiB at a time, about 5 KB a launch. Half of the launches run beside the others, between a fork and a join as a learn step has them.
 * Then a trainer's share by each of several threads at the same time. */
enum { STREAMS = 16, GRAPHS = 8, NODES = 64, LONG_GRAPHS = 4, LONG_NODES = 512, FORK_EVERY = 8, BYTES = 4 << 20, ARGUMENTS = 2048 };
enum { TRAINERS = 8, TRAINER_STREAMS = 3, TRAINER_GRAPHS = 4 };

struct arguments { char of[ARGUMENTS]; };

__global__ void k_nothing(const __grid_constant__ struct arguments) {}

struct prime {
	int streams;
	cudaStream_t stream[STREAMS];
	cudaEvent_t fork, join;
	cudaGraphExec_t graph[GRAPHS + LONG_GRAPHS];
	void *d, *h, *pageable;
};

#define OR_RETURN(call)                                                                                                 \
	do {                                                                                                            \
		cudaError_t e_ = (call);                                                                                \
		if (e_ != cudaSuccess)                                                                                  \
			return e_;                                                                                      \
	} while (0)

cudaError_t take(struct prime *p)
{
	for (int i = 0; i < p->streams; i++)
		OR_RETURN(cudaStreamCreateWithFlags(&p->stream[i], cudaStreamNonBlocking));
	OR_RETURN(cudaEventCreateWithFlags(&p->fork, cudaEventDisableTiming));
	OR_RETURN(cudaEventCreateWithFlags(&p->join, cudaEventDisableTiming | cudaEventBlockingSync));
	OR_RETURN(cudaMalloc(&p->d, BYTES));
	p->pageable = calloc(1, BYTES);
	return p->pageable ? cudaMallocHost(&p->h, BYTES) : cudaErrorMemoryAllocation;
}

/* From memory that is page-locked and from some that is not, a little and much. */
cudaError_t copy(struct prime *p)
{
	for (int i = 0; i < p->streams; i++) {
		const size_t some = i < TRAINER_STREAMS ? BYTES : ARGUMENTS;

		OR_RETURN(cudaMemsetAsync(p->d, 0, some, p->stream[i]));
		OR_RETURN(cudaMemcpyAsync(p->d, p->h, some, cudaMemcpyHostToDevice, p->stream[i]));
		OR_RETURN(cudaMemcpyAsync(p->h, p->d, some, cudaMemcpyDeviceToHost, p->stream[i]));
		OR_RETURN(cudaMemcpyAsync(p->d, p->pageable, some, cudaMemcpyHostToDevice, p->stream[i]));
		OR_RETURN(cudaMemcpyAsync(p->pageable, p->d, some, cudaMemcpyDeviceToHost, p->stream[i]));
		OR_RETURN(cudaStreamSynchronize(p->stream[i]));
	}
	return cudaSuccess;
}

cudaError_t launches(struct prime *p, int nodes)
{
	const struct arguments none = {};

	for (int i = 0; i < nodes; i++) {
		if (i % FORK_EVERY == 0) {
			OR_RETURN(cudaEventRecord(p->fork, p->stream[0]));
			OR_RETURN(cudaStreamWaitEvent(p->stream[1], p->fork, 0));
		}
		OR_RETURN(cuda_launch_plain(p->stream[i % 2], k_nothing, dim3(1), 32, 0, none));
		if (i % FORK_EVERY == FORK_EVERY - 1) {
			OR_RETURN(cudaEventRecord(p->join, p->stream[1]));
			OR_RETURN(cudaStreamWaitEvent(p->stream[0], p->join, 0));
		}
	}
	return cudaSuccess;
}

cudaError_t capture(struct prime *p, int nodes, cudaGraphExec_t *out)
{
	cudaGraph_t g = NULL;
	cudaError_t e;

	OR_RETURN(cudaStreamBeginCapture(p->stream[0], cudaStreamCaptureModeThreadLocal));
	const cudaError_t launched = launches(p, nodes);
	e = cudaStreamEndCapture(p->stream[0], &g);
	if (launched != cudaSuccess)
		e = launched;
	if (e == cudaSuccess)
		e = cudaGraphInstantiate(out, g, 0);
	if (g)
		cudaGraphDestroy(g);
	return e == cudaSuccess ? cudaGraphUpload(*out, p->stream[0]) : e;
}

/* All of them there at once. */
cudaError_t run_graphs(struct prime *p, int first, int graphs, int nodes)
{
	for (int i = first; i < first + graphs; i++)
		OR_RETURN(capture(p, nodes, &p->graph[i]));
	for (int i = first; i < first + graphs; i++)
		OR_RETURN(cudaGraphLaunch(p->graph[i], p->stream[0]));
	return cudaStreamSynchronize(p->stream[0]);
}

cudaError_t live(struct prime *p, size_t *graph_bytes)
{
	OR_RETURN(take(p));
	OR_RETURN(copy(p));
	const size_t before = cuda_free_now();

	OR_RETURN(run_graphs(p, 0, GRAPHS, NODES));
	*graph_bytes = cuda_cost(before, 0);
	return run_graphs(p, GRAPHS, LONG_GRAPHS, LONG_NODES);
}

void give(struct prime *p)
{
	for (int i = 0; i < GRAPHS + LONG_GRAPHS; i++)
		if (p->graph[i])
			cudaGraphExecDestroy(p->graph[i]);
	if (p->fork)
		cudaEventDestroy(p->fork);
	if (p->join)
		cudaEventDestroy(p->join);
	for (int i = 0; i < p->streams; i++)
		if (p->stream[i])
			cudaStreamDestroy(p->stream[i]);
	if (p->h)
		cudaFreeHost(p->h);
	if (p->d)
		cudaFree(p->d);
	free(p->pageable);
}

cudaError_t live_beside(struct prime *p)
{
	OR_RETURN(take(p));
	OR_RETURN(copy(p));
	OR_RETURN(run_graphs(p, 0, TRAINER_GRAPHS, NODES));
	return copy(p);
}

void *trainer_main(void *device)
{
	struct prime p = {};

	p.streams = TRAINER_STREAMS;
	if (cudaSetDevice(*(const int *)device) == cudaSuccess)
		(void)live_beside(&p);
	give(&p);
	(void)cudaGetLastError();
	return NULL;
}

/* All at once: what one waits for another may need as well. */
void live_together()
{
	pthread_t thread[TRAINERS];
	int device = 0, threads = 0;

	if (cudaGetDevice(&device) != cudaSuccess)
		return;
	while (threads < TRAINERS && pthread_create(&thread[threads], NULL, trainer_main, &device) == 0)
		threads++;
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
}

} // namespace

void cuda_prime(size_t *graph_bytes)
{
	const char *asked = getenv("FH_GPU_PRIME");
	struct prime p = {};

	if (asked && !strcmp(asked, "0")) /* under a profiler, which does not bear several threads that capture graphs */
		return;
	p.streams = STREAMS;
	(void)live(&p, graph_bytes);
	give(&p);
	live_together();
	(void)cudaGetLastError();
}
