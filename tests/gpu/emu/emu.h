/* Inside the emulator: one kernel's launch, its blocks, and the order in which work is done.
 *
 * A thread of a block is a fiber; clusters of blocks run one after another on the host thread that needs their result, under one
 * lock (stream.cc), so no two fibers ever run at once. FH_EMU_SEED picks among the orders that CUDA allows: of blocks, of
 * threads between barriers, of independent launches. */
#ifndef FH_EMU_H
#define FH_EMU_H

#include <cuda_runtime.h>
#include <memory>
#include <string>
#include <vector>

enum { EMU_WARP = 32, EMU_THREADS_MAX = 1024, EMU_WARPS_MAX = EMU_THREADS_MAX / EMU_WARP };
enum { EMU_CLUSTER_MAX = 8 }; /* blocks: what every device that has clusters takes */

struct emu_kernel {
	const void *function;
	const char *type;            /* its signature, for messages */
	std::function<void()> body;  /* one thread */
	dim3 grid, block;
	unsigned cluster;            /* so many blocks that are neighbours in x run together */
	size_t shared;               /* dynamic, bytes */
	bool dependent;              /* may begin before the launch in front of it is complete */
};

/* Blocks that have come to where they wait for the launch in front (cluster.cc). */
struct emu_cluster;

/* Runs every block; `early`, which emu_begin() has begun, goes on in its turn. */
void emu_run(const struct emu_kernel *k, struct emu_cluster *early);
/* Runs one cluster of a dependent kernel up to that place, before the launch in front of it runs: what it reads until then
 * must not depend on that launch, and it may write nothing. NULL: nothing to begin. */
struct emu_cluster *emu_begin(const struct emu_kernel *k);
void emu_forget(struct emu_cluster *c); /* begun, but never to go on */
/* Has every launch of this kernel let the next one begin early? Only then may one. */
bool emu_lets_next(const void *function);

/* A number in [0, n) from the seed and a running count; 0 for ever with seed 0. */
unsigned emu_choice(unsigned n);
unsigned emu_seed(void);

/* Properties that FH_EMU_SM chooses. */
struct emu_device { int sm, multiprocessors; size_t shared_optin, shared_total, memory; };
const struct emu_device *emu_device(void);
size_t emu_allowed_shared(const void *function); /* dynamic shared memory that the kernel was allowed */

#endif
