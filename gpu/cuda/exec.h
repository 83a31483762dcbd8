/* A trainer's state on a CUDA device, shared by backend.cu (which owns it) and the stages (which launch on its stream).
 *
 * Thread: the trainer's worker only. Pointers are resolved at creation and never change: captured graphs hold them. */
#ifndef FH_GPU_CUDA_EXEC_H
#define FH_GPU_CUDA_EXEC_H

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
extern "C" {
#include "gpu/backend.h"
#include "gpu/dqn/dqn.h"
#include "proto/status.h"
}
#include "gpu/cuda/scratch.h"

/* Turns a CUDA call into a status with the call's name; returns from the enclosing function on failure. */
#define CUDA_TRY(call)                                                                                                  \
	do {                                                                                                            \
		cudaError_t e_ = (call);                                                                                \
		if (e_ != cudaSuccess)                                                                                  \
			return cuda_fail(st, e_, #call);                                                                \
	} while (0)

/* FH_EXHAUSTED for memory, FH_DEVICE_LOST for errors after which the context is beyond repair, else FH_DEVICE. */
int cuda_fail(struct fh_status *st, cudaError_t e, const char *call);

/* Parameters: of training, or those that act_open() kept. */
enum cuda_whose { CUDA_ONLINE, CUDA_TARGET, CUDA_KEPT };

#define CUDA_SLOTS 8
#define CUDA_GRAPHS 64 /* more than the lists of runs that a trainer makes of one schedule, see steps_at_once() in trainer.c, alone and in a crowd */
#define CUDA_RUNS 32
#define CUDA_SENT_BYTES ((size_t)64 << 10)

struct cuda_slot { void *h; size_t bytes; cudaEvent_t done; uint64_t tag; };
struct cuda_graph { struct run run[CUDA_RUNS]; int runs, crowded; cudaGraphExec_t exec; size_t bytes; };

struct cuda_exec {
	struct exec x; /* first: a struct exec * is a struct cuda_exec * */
	struct plan plan; /* x.plan points here */
	struct dqn_dims dims;
	struct cuda_scratch s;
	unsigned char *scratch;
	cudaStream_t stream, side; /* side: what runs beside the backward pass of a fused step */
	cudaEvent_t fork, join;
	struct cuda_graph graph[CUDA_GRAPHS];
	int graphs;
	cudaEvent_t launched[2]; /* run-ahead bound: two launches */
	uint64_t launches;
	int seat;                 /* in cuda_state.ran */
	struct cuda_slot slot[CUDA_SLOTS];
	uint64_t asked, answered; /* slots are used in turn */
	void *h_slots;            /* pinned arena behind the slots, what is sent, and the rows and actions of act() */
	char *h_sent;             /* [CUDA_SENT_BYTES] copies of what cuda_send() was given, `sent` bytes of it on their way */
	size_t sent;
	struct cuda_act_rows *h_rows; /* what is asked */
	int32_t *h_action;        /* [CUDA_ACT_PLACES, D] */
	cudaEvent_t soon;         /* of cuda_wait_awake() */
	cudaStream_t acting;      /* what act() enqueues, beside training */
	cudaEvent_t opened, acted; /* who acts is there; the end of a call */
	int act_whose, act_first, act_trials; /* who acts: enum cuda_whose */
	struct cuda_tape *tape;   /* resident market, shared and counted */
	int sync;                 /* FH_GPU_SYNC=1: stage by stage */
	struct exec_usage used;   /* counts of graphs are atomic: others read them */
	int multiprocessors;
	size_t shared;            /* bytes that a block may have at most */
	int overlap;              /* programmatic dependent launch: sm_90 and later */
	int clusters;             /* blocks may be launched in clusters: sm_90 and later */
	struct products *products; /* large products, and who does which: product.cuh. NULL: none are, all is ours */
	int crowded;              /* while a graph is captured: it will run beside others, so the network goes through kernels that take the fewest
	                           * multiprocessors for the shortest, not through those that end first, and only small launches begin early */
};

static inline struct cuda_exec *cuda_of(struct exec *x) { return (struct cuda_exec *)x; }
template <typename T> static inline T *cuda_at(struct cuda_exec *c, const struct cuda_array *a) { return (T *)(c->scratch + a->offset); }
template <typename T> static inline T *cuda_tensor(struct cuda_exec *c, int t) { return (T *)c->x.tensor[t]; }

/* FH_GPU_WIDE, for tests and benchmarks: which of several kernels with the same bits is taken, where a stage has them.
 *   not set (-1)  whichever should be faster
 *   0             layer by layer; acting, collecting, losses: those for few rows
 *   1             those for many rows
 *   8             clusters, divided as should be fastest
 *   16 to 128     a block takes tiles of so many rows; the products of the weights: tiles of 64, or of 128 above 16
 *   100 b + r     clusters of b blocks (1, 2, 4, 8) for tiles of r rows (16, 32, 64): 416, 864
 *   1000 + r      warpgroups for tiles of r rows
 * What a stage has not, or a size of network forbids, it takes as 1. */
static inline int cuda_wide_asked(void)
{
	const char *wide = getenv("FH_GPU_WIDE");

	return wide && *wide ? atoi(wide) : -1;
}
static inline int cuda_wide(int enough)
{
	return cuda_wide_asked() < 0 ? enough : cuda_wide_asked() > 0;
}

/* In kernels that may overlap with the launch before them. Nothing on devices older than sm_90, where none does. */
__device__ __forceinline__ void cuda_wait_before(void)
{
#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
	cudaGridDependencySynchronize();
#endif
}
__device__ __forceinline__ void cuda_let_next(void)
{
#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
	cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/* Once for each kernel of the process: 1 the first time. device.cu, any thread. */
int cuda_first_launch(const void *kernel);

/* How a multiprocessor divides its L1: for all kernels alike, the most of it shared memory. Where the driver chooses by what a kernel uses,
 * one that wants another division waits until the multiprocessor is empty, and so never begins early nor runs beside another.
 * FH_GPU_CARVEOUT=0, for measurements, leaves it to the driver. A preference: it changes no bit, and may be refused. */
template <typename... Params> static void cuda_divide_alike(void (*kernel)(Params...))
{
	const char *asked = getenv("FH_GPU_CARVEOUT");

	if (!cuda_first_launch((const void *)kernel) || (asked && !strcmp(asked, "0")))
		return;
	if (cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared) != cudaSuccess)
		(void)cudaGetLastError();
}

/* Where and how: `cluster` blocks that are neighbours in x run together (1: each for itself; 8 at most, the grid's x a multiple). */
struct cuda_how { cudaStream_t stream; int overlap, cluster; };

template <typename... Params, typename... Args>
static cudaError_t cuda_launch_how(const struct cuda_how &how, void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared, Args &&...args)
{
	cudaLaunchAttribute attribute[2] = {};
	cudaLaunchConfig_t config = {};
	unsigned n = 0;

	if (how.overlap) {
		attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
		attribute[n++].val.programmaticStreamSerializationAllowed = 1;
	}
	if (how.cluster > 1) {
		attribute[n].id = cudaLaunchAttributeClusterDimension;
		attribute[n].val.clusterDim.x = (unsigned)how.cluster;
		attribute[n].val.clusterDim.y = attribute[n].val.clusterDim.z = 1;
		n++;
	}
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = how.stream;
	config.attrs = attribute;
	config.numAttrs = n;
	cuda_divide_alike(kernel);
	return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

/* 1: a launch of this grid may begin early. In a crowd what waits inside a multiprocessor keeps others out of it, so only few blocks may: those
 * have their multiprocessors in time, which they would else wait for. */
static inline int cuda_early(const struct cuda_exec *c, dim3 grid)
{
	return c->overlap && (!c->crowded || (long)grid.x * grid.y * grid.z <= c->multiprocessors / 4);
}

/* Launch on the exec's stream, allowed to begin before the launch before it is complete (programmatic dependent launch):
 * such a kernel must call cuda_wait_before() before it reads or overwrites what others use, and after that
 * cuda_let_next(). cuda_launch_plain() waits as always. The same for clusters, where cuda_exec.clusters is set. There is no other
 * way: <<<>>> is nvcc's alone. */
template <typename... Params, typename... Args>
static cudaError_t cuda_launch_plain(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared, Args &&...args)
{
	return cuda_launch_how({stream, 0, 1}, kernel, grid, threads, shared, static_cast<Args &&>(args)...);
}
template <typename... Params, typename... Args>
static cudaError_t cuda_launch(struct cuda_exec *c, void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared, Args &&...args)
{
	return cuda_launch_how({c->stream, cuda_early(c, grid), 1}, kernel, grid, threads, shared, static_cast<Args &&>(args)...);
}
template <typename... Params, typename... Args>
static cudaError_t cuda_launch_cluster(struct cuda_exec *c, void (*kernel)(Params...), dim3 grid, int cluster, unsigned threads, size_t shared,
				       Args &&...args)
{
	return cuda_launch_how({c->stream, cuda_early(c, grid), cluster}, kernel, grid, threads, shared, static_cast<Args &&>(args)...);
}
template <typename... Params, typename... Args>
static cudaError_t cuda_launch_cluster_plain(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, int cluster, unsigned threads, size_t shared,
					     Args &&...args)
{
	return cuda_launch_how({stream, 0, cluster}, kernel, grid, threads, shared, static_cast<Args &&>(args)...);
}

/* Stages, by file. */
int cuda_dqn_policy(struct exec *x, struct fh_status *st);   /* forward.cu */
int cuda_dqn_forward(struct exec *x, struct fh_status *st);
int cuda_dqn_loss(struct exec *x, struct fh_status *st);     /* loss.cu */
int cuda_dqn_backward(struct exec *x, struct fh_status *st); /* backward.cu */
int cuda_dqn_norm(struct exec *x, struct fh_status *st);     /* adam.cu */
int cuda_dqn_adam(struct exec *x, struct fh_status *st);
int cuda_dqn_advance(struct exec *x, struct fh_status *st);  /* sample.cu */
int cuda_dqn_sample(struct exec *x, struct fh_status *st);
int cuda_dqn_gather(struct exec *x, struct fh_status *st);
int cuda_dqn_priority(struct exec *x, struct fh_status *st); /* tree.cu */
int cuda_dqn_count(struct exec *x, struct fh_status *st);    /* count.cu */
int cuda_dqn_explore(struct exec *x, struct fh_status *st);  /* collect.cu */
int cuda_dqn_env(struct exec *x, struct fh_status *st);
int cuda_dqn_insert(struct exec *x, struct fh_status *st);

/* Waits for what has been enqueued, awake: for what takes less than falling asleep and being woken (50 us or more). backend.cu */
int cuda_wait_awake(struct cuda_exec *c, struct fh_status *st);
/* Copies a few bytes to the device behind what has been enqueued; `src` may be reused at once, and nobody waits but for room. backend.cu */
int cuda_send(struct cuda_exec *c, void *dst, const void *src, size_t bytes, struct fh_status *st);

/* See initial() in backend.h. begin.cu */
int cuda_begin(struct exec *x, uint64_t seed, struct fh_status *st);

/* Acting for evaluations (backend.h). */
size_t cuda_act_pinned(const struct dqn_dims *d);                                       /* validate.cu */
int cuda_act_open(struct exec *x, int policy, int first, int *trials, struct act_limits *limits, struct fh_status *st);
int cuda_act(struct exec *x, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st);
/* What the parameters of enum cuda_whose are, [P, params]: the masters, and what products take (F32 or BF16). forward.cu */
const float *cuda_params(struct cuda_exec *c, int whose);
const void *cuda_weights(struct cuda_exec *c, int whose);
/* Rows of vx through the networks of the trials from `trial` on, layer by layer: `rows` of each, one trial's behind the other's
 * from x_row on, at most CUDA_ACT_LAYERS in all. Their greedy actions [trials, rows, D]. */
int cuda_rows_layers(struct cuda_exec *c, int whose, int trial, int trials, int x_row, int rows, int32_t *action, struct fh_status *st); /* forward.cu */

/* Parts of the fused steps, by file. */
int cuda_learn(struct cuda_exec *c, struct fh_status *st);                              /* learn.cu */
int cuda_collect(struct cuda_exec *c, struct fh_status *st);                            /* collect.cu */
int cuda_policy_forward(struct cuda_exec *c, struct fh_status *st);                     /* forward.cu */
int cuda_draw(struct cuda_exec *c, struct fh_status *st);                               /* sample.cu */
int cuda_priority(struct cuda_exec *c, cudaStream_t stream, struct fh_status *st);      /* tree.cu */
int cuda_insert(struct cuda_exec *c, int estat_envs, struct fh_status *st); /* CUDA_ENV_FEW or CUDA_ENV_BLOCK: of one entry of estat */
int cuda_sums(struct cuda_exec *c, cudaStream_t stream, struct fh_status *st);          /* count.cu */
int cuda_loss(struct cuda_exec *c, int staged, struct fh_status *st);                   /* loss.cu */
int cuda_adam(struct cuda_exec *c, int ends, struct fh_status *st); /* ends: guard and count are done beside it. adam.cu */

#endif
