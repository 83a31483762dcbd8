/* Where stages run. The host backend is built in; the CUDA backend is a shared object (fhd-cuda.so) that is loaded
 * when a device is there, so the same binary runs on a machine without CUDA.
 *
 * Thread: one trainer's exec is used by one thread at a time (its worker). Backends themselves are shared. */
#ifndef FH_GPU_BACKEND_H
#define FH_GPU_BACKEND_H

#include <stddef.h>
#include "gpu/act.h"
#include "gpu/layout.h"
#include "gpu/market.h"

struct fh_status;
struct exec;

typedef int (*stage_fn)(struct exec *x, struct fh_status *st);

struct device_info {
	char name[128], driver[64];
	size_t memory_total, memory_free; /* bytes, of the device (host: physical memory) */
	int compute_major, compute_minor; /* 0 on the host */
	int threads;                      /* host: threads a trainer uses */
};

/* Who holds the memory of a device, in bytes as its driver counts them: free + context + arenas + markets + graphs +
 * others = total. */
struct device_memory {
	size_t total, free;
	size_t context;                   /* driver state and code of this process; 0 where it cannot be told from others */
	size_t arenas, markets, graphs;   /* of this process, all trainers together */
	size_t others;                    /* everything else: other processes, the operating system */
	size_t pinned;                    /* page-locked memory of the host, no part of the sum */
};

/* What one trainer really holds. */
struct exec_usage {
	size_t arena, graph_bytes, pinned;
	int graphs;
	uint64_t captures; /* graphs captured so far, those that are gone included */
};

/* What one trainer owns on a backend. `tensor` pointers are resolved once, at creation, and never change: captured
 * graphs hold them. The backend extends it with private state behind `priv`. */
struct exec {
	const struct backend *backend;
	const struct plan *plan;
	const void *dims;                /* plan->dims, for stages */
	void *arena;                     /* device memory, plan->arena_bytes */
	void *tensor[PLAN_TENSOR_MAX];   /* into arena */
	struct {                         /* the market tape as the stages see it: device pointers */
		int64_t bars;
		const double *open, *high, *low, *close;
		const float *feature, *sigma;
	} market;
	const struct market *market_host; /* the referenced market behind it */
	void *priv;
};

/* Tensor `t` of one trial. */
static inline void *exec_at(const struct exec *x, int t, int trial)
{
	return (char *)x->tensor[t] + (size_t)trial * x->plan->tensor[t].stride;
}

struct backend {
	const char *name;      /* "host", "cuda" */
	enum fh_device kind;
	int abi;               /* BACKEND_ABI, checked at load */
	int device;
	void *state;
	int (*info)(const struct backend *b, struct device_info *out, struct fh_status *st);
	/* As it is now. Any thread, but a device that hangs may hold whoever asks. */
	int (*memory)(const struct backend *b, struct device_memory *out, struct fh_status *st);
	/* Puts what this backend takes in truth into a plan that plan_memory() made: its form of the market, rounding of its
	 * driver, captured graphs as far as they are known. NULL: the plan is the truth. */
	void (*price)(const struct backend *b, const struct plan *plan, int64_t bars, struct memory_plan *m);
	/* Allocates arena and private state. FH_EXHAUSTED names what was asked and what was free and leaves the device
	 * as it was. */
	int (*exec_new)(const struct backend *b, const struct plan *plan, struct exec **out, struct fh_status *st);
	void (*exec_free)(struct exec *x);
	void (*usage)(const struct exec *x, struct exec_usage *out); /* any thread, while x lives */
	/* Makes `m` the tape of x (uploads it once per hash and device; resident and shared between trainers). */
	int (*exec_market)(struct exec *x, const struct market *m, struct fh_status *st);
	/* Ordered copies between a tensor and host memory; both return when the host buffer may be reused. Not used
	 * inside a step. bytes = whole tensor when 0. */
	int (*write)(struct exec *x, int tensor, size_t offset, const void *src, size_t bytes, struct fh_status *st);
	int (*read)(struct exec *x, int tensor, size_t offset, void *dst, size_t bytes, struct fh_status *st);
	/* So many tensors from `tensor` on, as they lie behind each other. */
	int (*zero)(struct exec *x, int tensor, int tensors, struct fh_status *st);
	/* Makes the first parameters and targets of all trials and their low-precision copies where they lie, trial p with seed + p: the
	 * bits that the program's begin() would write. The tensors are zero by then. NULL: begin() writes them. */
	int (*initial)(struct exec *x, uint64_t seed, struct fh_status *st);
	/* Enqueues runs (phase × count) in order. The host runs them before returning; CUDA launches a captured graph,
	 * bounding run-ahead to two launches. */
	int (*run)(struct exec *x, const struct run *run, int runs, struct fh_status *st);
	/* 1 when run() would wait for work that it was given earlier, so that whoever has something else to do may do it meanwhile. NULL: run()
	 * returns when all is done. */
	int (*would_wait)(const struct exec *x);
	/* One stage by itself, then synchronized: tests and FH_GPU_SYNC=1. */
	int (*stage)(struct exec *x, const struct stage *stage, struct fh_status *st);
	/* Deferred readback. request copies a tensor's bytes to a free slot behind the enqueued work and zeroes the
	 * tensor after the copy when `clear`; returns FH_EXHAUSTED when all slots are in flight (try again later).
	 * poll hands out the oldest finished slot: 1 and *data (valid until the next poll), 0 when none has finished. */
	int (*readback_request)(struct exec *x, int tensor, int clear, uint64_t tag, struct fh_status *st);
	int (*readback_poll)(struct exec *x, const void **data, uint64_t *tag, struct fh_status *st);
	/* Waits until everything enqueued is done (before snapshots). */
	int (*finish)(struct exec *x, struct fh_status *st);
	/* Acting for evaluations, with the precision of training. act_open: from now on the networks `policy` (enum fh_policy) of
	 * *trials trials from `first` on answer, as their parameters are now, behind all that is enqueued; where limits->kept is 0 no run() may come
	 * before the last act() that belongs to them. It may open fewer, at least one, and says so in *trials. act: row i is the market features of bar[i] with
	 * portfolio[i], trials count from `first`; action [rows, branches] greedy, the lowest index on a tie. Returns when they are
	 * there. A row's actions depend on nothing but its trial and the row. */
	int (*act_open)(struct exec *x, int policy, int first, int *trials, struct act_limits *limits, struct fh_status *st);
	int (*act)(struct exec *x, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action,
		   struct fh_status *st);
	/* How products are computed, where a trainer chooses between ways that have other bits by what is faster: part of what a job is, so checkpoints
	 * hold it. products: in words, "" where there is nothing to choose. keep_products: a job begins (NULL: as the trainer chose), or goes on with
	 * what its checkpoint says; FH_CONFLICT where that cannot be, and nothing has changed. Both NULL: there is never anything to choose. */
	void (*products)(const struct exec *x, char *text, size_t size);
	int (*keep_products)(struct exec *x, const char *text, struct fh_status *st);
};
#define BACKEND_ABI 6
/* What fhd-cuda.so exports. FH_UNAVAILABLE with the reason when there is no usable device. */
#define BACKEND_ENTRY "fhd_backend_cuda"
typedef int (*backend_entry)(int abi, int device, const struct backend **out, struct fh_status *st);

const struct backend *backend_host(void);
/* Opens "auto", "host", "cuda" or "cuda:N". auto = cuda when the shared object loads and a device answers, else host;
 * `note` (>= FH_TEXT_MAX bytes, may be NULL) then says why cuda was not taken. */
int backend_open(const char *device, const struct backend **out, char *note, struct fh_status *st);
/* Settings of the CUDA driver that it reads from the environment when it is loaded. backend_open() makes them for a CUDA device too; who has
 * threads by then makes them before the first. */
void backend_environment(void);
/* The stage table of a program on the host, indexed by stage id. */
const stage_fn *host_stages(const struct program *p);

#endif
