/* Between block.cc (threads, and what they wait for), cluster.cc (blocks, clusters of them, launches) and exchange.cc (what blocks
 * of a cluster do with each other).
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
struct emu_store { uintptr_t to; unsigned bytes; unsigned char value[128]; uintptr_t bar; int line; }; /* bar: the mbarrier that it counts at */

/* An mbarrier in shared memory, where only a mark lies that nobody may overwrite. */
struct emu_mbarrier {
	unsigned count, pending; /* arrivals of a phase; that are still to come */
	long missing;            /* bytes that are expected and have not come; below 0: more have come than are expected yet */
	unsigned phase;          /* how many have ended */
	unsigned waited;         /* how many ends somebody has waited for */
	unsigned with_bytes;     /* the last phase that bytes came in, counted from 1 */
	std::vector<struct emu_store> sent; /* in this phase: they land at its end */
};

struct emu_block {
	const struct emu_kernel *kernel;
	struct emu_cluster *cluster;
	unsigned rank;
	uint3 index;
	unsigned threads, warps, ended, held, warps_ready;
	unsigned arrived;        /* at the block's barrier */
	const char *barrier_what;
	int barrier_line, counted, counted_last;
	struct { int line; unsigned owner; std::vector<struct emu_thread *> who; } group[EMU_WARPS_MAX / 4]; /* at the barriers of its warpgroups; whose it is, counted from 1 */
	unsigned let;            /* threads that let the next launch begin */
	int pool;
	char *shared;
	std::vector<char> statics; /* its __shared__ variables, while another block runs */
	struct emu_thread *thread; /* [threads] */
	std::vector<struct emu_store> *store; /* [threads], NULL in a cluster of one: since the thread last arrived */
	std::map<uintptr_t, struct emu_mbarrier> barrier; /* by address */
	struct emu_warp_state warp[EMU_WARPS_MAX];
};

struct emu_cluster {
	uint64_t which;          /* of the grid, where it has begun early */
	unsigned size, arrived;  /* blocks; threads at its barrier */
	unsigned rounds;         /* how often all have met there */
	bool begin_only;         /* stop at the launch in front */
	std::vector<struct emu_store> told; /* stores whose threads have arrived since */
	std::vector<struct emu_thread *> dozing[EMU_CLUSTER_MAX]; /* by block: they could go on, others do first */
	std::vector<struct emu_store> under_way; /* stores that have not counted at their mbarriers */
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

/* cluster.cc: shared memory. */
void emu_move(char *to, const char *from, size_t bytes); /* AddressSanitizer does not look; from NULL: poison */
uintptr_t emu_statics(void);               /* where __shared__ variables lie for who runs, and how many bytes they are */
size_t emu_statics_size(void);
char *emu_statics_of(struct emu_block *b); /* where that block's lie now */

/* exchange.cc */
void emu_exchange_ends(void);              /* the running thread ends, of its block t->ended says so already */
bool emu_exchange_deliver(struct emu_cluster *c, bool some); /* of the stores under way, or one of them; false: there was none */
bool emu_exchange_wake(struct emu_cluster *c); /* those that doze; false: nobody does */
void emu_exchange_show(const struct emu_block *b);

#endif
