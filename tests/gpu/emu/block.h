/* Between block.cc (threads, and what they wait for) and cluster.cc (blocks, clusters of them, launches).
 *
 * Every block belongs to a cluster, most to one of their own. Blocks of a cluster take turns: one runs until nothing in it can
 * go on, or the seed wants another. Statics lie where the running block expects them and are put aside when another runs. */
#ifndef FH_EMU_BLOCK_H
#define FH_EMU_BLOCK_H

#include "emu.h"

struct meeting { const char *what; int line; unsigned mask, arrived; void *arg[EMU_WARP]; };
struct emu_warp_state {
	unsigned all, ready, ended;   /* lanes */
	unsigned apart;               /* lanes that wait at the cluster's barrier */
	struct emu_thread *first;
	struct meeting whole;         /* of all lanes */
	struct meeting some[EMU_WARP]; /* of some, by the lowest */
};

/* A store into another block that has not landed. */
struct remote_store { uintptr_t to; unsigned bytes; unsigned char value[16]; };

struct emu_block {
	const struct emu_kernel *kernel;
	struct emu_cluster *cluster;
	unsigned rank;
	uint3 index;
	unsigned threads, warps, ended, held, warps_ready;
	unsigned arrived;        /* at the block's barrier */
	const char *barrier_what;
	int barrier_line, counted, counted_last;
	unsigned let;            /* threads that let the next launch begin */
	int pool;
	char *shared;
	std::vector<char> statics; /* its __shared__ variables, while another block runs */
	struct emu_thread *thread; /* [threads] */
	std::vector<struct remote_store> *store; /* [threads], NULL in a cluster of one: since the thread last arrived */
	struct emu_warp_state warp[EMU_WARPS_MAX];
};

struct emu_cluster {
	uint64_t which;          /* of the grid, where it has begun early */
	unsigned size, arrived;  /* blocks; threads at its barrier */
	unsigned rounds;         /* how often all have met there */
	bool begin_only;         /* stop at the launch in front */
	std::vector<struct remote_store> told; /* stores whose threads have arrived since */
	struct emu_block *block[EMU_CLUSTER_MAX];
};

extern struct emu_block *emu_block_now; /* that runs */

/* block.cc */
int emu_pool_take(void);                   /* stacks and threads of a block */
void emu_pool_give(int pool);
struct emu_thread *emu_pool_threads(int pool);
void *emu_fresh_stack(int pool, unsigned i);
void emu_block_go(struct emu_block *b);    /* until nothing in it is ready, or another's turn comes */
void emu_wait_here(void);                  /* the running thread, until it is made ready */
void emu_ready(struct emu_block *b, unsigned warp, unsigned lanes);
void emu_yield(void);                      /* to the other blocks of the cluster; the thread stays ready */

/* cluster.cc: the running thread ends. */
void emu_cluster_thread_ends(void);

#endif
