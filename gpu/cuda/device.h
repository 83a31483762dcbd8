/* The CUDA device as the whole process sees it: what it is, who holds its memory, the markets that lie on it.
 *
 * Any thread. Whoever takes or gives back device memory holds `taking` meanwhile: so what one object costs is the difference
 * of two readings of the driver, in its own rounding, and a trainer that does not fit finds the device as it was. */
#ifndef FH_GPU_CUDA_DEVICE_H
#define FH_GPU_CUDA_DEVICE_H

#include <mutex>
#include "gpu/cuda/exec.h"

struct cuda_tape;

enum { CUDA_SEATS = 64 }; /* more than the trainers of a process; one without a seat is never a crowd */

struct cuda_state {
	struct backend b;
	struct device_info info;      /* fixed, but for memory_free: as last seen */
	int multiprocessors, shared, overlap, clusters; /* see struct cuda_exec */
	std::mutex taking;
	std::mutex tape_lock;         /* of tapes; taken before `taking` */
	struct cuda_tape *tapes;
	/* Bytes by owner, atomic: written under `taking`, read by anyone. */
	size_t context, arenas, markets, graphs, pinned;
	int64_t ran[CUDA_SEATS];      /* atomic: when the trainer of a seat last launched a graph, 0: the seat is free */
	size_t graph_typical;         /* captured graphs of one trainer: the most that was seen, a guess before */
	int graphs_seen;              /* under `taking` */
};

static inline struct cuda_state *cuda_state_of(const struct backend *b) { return (struct cuda_state *)b->state; }

/* What an object cost: `asked` bytes were allocated (0: unknown) between a reading of `before` free bytes and now. Other
 * processes may come in between, so an absurd difference is not believed. `taking` is held. */
size_t cuda_cost(size_t before, size_t asked);
size_t cuda_free_now(void);
size_t cuda_rounded(size_t bytes); /* as the driver would */
void cuda_own(size_t *owner, size_t more, size_t less);

/* A seat for a trainer, or -1; `taking` is held. cuda_stand() leaves it. */
int cuda_sit(struct cuda_state *s);
void cuda_stand(struct cuda_state *s, int seat);
/* The trainer of this seat launches now: 1 when so many have done so of late that the device is full with kernels which take few of
 * its multiprocessors each. FH_GPU_CROWD=N, for measurements: from N trainers on, 0: never. */
int cuda_crowded(struct cuda_state *s, int seat);

int cuda_use(const struct backend *b, struct fh_status *st);
/* Makes what the driver makes once (prime.cu). *graph_bytes: what the captured graphs of a trainer take, untouched where that did not show. */
void cuda_prime(size_t *graph_bytes);
int cuda_device_open(struct cuda_state *s, int device, struct fh_status *st);
int cuda_info(const struct backend *b, struct device_info *out, struct fh_status *st);
int cuda_memory(const struct backend *b, struct device_memory *out, struct fh_status *st);
void cuda_price(const struct backend *b, const struct plan *plan, int64_t bars, struct memory_plan *m);

/* Resident markets (tape.cu): shared between trainers by what makes their features, counted. */
size_t cuda_tape_bytes(int64_t bars, int rolled);
void cuda_tape_release(struct cuda_exec *c);
int cuda_exec_market(struct exec *x, const struct market *m, struct fh_status *st);

/* The driver's management library, where there is one (nvml.cu). */
struct cuda_nvml { char driver[40]; size_t free_bytes; };
/* 1 and what it says of the device with this PCI address, 0 when it cannot be asked. */
int cuda_nvml_look(const char *pci, struct cuda_nvml *out);

#endif
