/* The samples of every job: numbered 1, 2, 3, … per job, also across restarts of the daemon.
 *
 * Loop thread. A sample is visible (polled, published, counted in last_seq) once it is durable, so that a number that
 * anyone saw is never given to another sample. The newest SERIES_TAIL of a job stay in memory within SERIES_BYTES_MAX over all
 * jobs; older ones are read from the store. On disk the newest SERIES_KEPT_FULL are all there; of older reports every
 * SERIES_STRIDE-th is; validations and state changes stay; nothing older than SERIES_KEPT_MAX numbers is kept.
 * Invariant: visible samples of a job have increasing seq, and a poller's `since` never skips one that is still kept. */
#ifndef FHD_SERIES_H
#define FHD_SERIES_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "proto/fh.pb-c.h"

struct fh_status;
struct store;
struct store_txn;
struct publish;
struct series;
struct daemon;
struct rpc_call;

#define SERIES_TAIL 1024              /* samples of one job in memory */
#define SERIES_BYTES_MAX (64 << 20)   /* of all tails together; tails of jobs longest untouched go first */
#define SERIES_KEPT_FULL 8192         /* newest on disk, all of them */
#define SERIES_STRIDE 16
#define SERIES_KEPT_MAX 262144        /* sequence numbers back from the newest */
#define SERIES_WAITERS_MAX 64         /* long polls held; one more is answered at once */
#define SERIES_WAIT_MS_MAX 10000
#define SERIES_LIMIT_DEFAULT 1000
#define SERIES_LIMIT_MAX 10000
#define SERIES_REPLY_BYTES_MAX (768 << 10) /* packed samples in one reply, below the message limit */
#define SERIES_BATCH_MAX 256          /* samples of one transaction */
#define SERIES_PENDING_MAX 65536      /* samples handed over and not yet durable; reports beyond that are dropped and counted */

int series_new(uv_loop_t *loop, struct store *store, struct publish *publish, struct series **out, struct fh_status *st);
/* Last numbers and newest samples from the store, before store_start. */
int series_load(struct series *s, struct fh_status *st);
/* Answers held polls, stops timers. The handles close on the next turn of the loop. */
void series_stop(struct series *s);
void series_free(struct series *s);

/* A report or validation. seq is assigned here (m->seq is ignored and overwritten); m is packed at once and not kept. Returns the number,
 * 0 when it was dropped (SERIES_PENDING_MAX), or is there already: a job that goes on from a checkpoint makes those behind it again. */
uint64_t series_append(struct series *s, uint64_t job, Fh__V1__Sample *m);
/* The same, but never the answer of series_newest: evaluations of the network that is not run.validate_policy. */
uint64_t series_append_aside(struct series *s, uint64_t job, Fh__V1__Sample *m);
/* Hands what was appended to the store: what is committed after this call is durable after those samples. */
void series_flush(struct series *s);
/* A state change, made durable with the caller's transaction, which must be committed (in the same callback): later samples of
 * the job become visible after it. Never dropped. */
uint64_t series_state_change(struct series *s, struct store_txn *t, uint64_t job, Fh__V1__JobState state,
			     const char *reason, uint64_t step, uint64_t epoch, uint64_t vector_step);
/* Visible numbers; 0 when the job has none. */
uint64_t series_last_seq(const struct series *s, uint64_t job);
uint64_t series_first_seq(const struct series *s, uint64_t job);
/* The newest visible report (validation = 0) or evaluation of the validation split (1), unpacked for the caller (fh__v1__sample__free_unpacked), or NULL. */
Fh__V1__Sample *series_newest(const struct series *s, uint64_t job, int validation);

struct series_stats { uint64_t appended, dropped, repeated, undurable, bytes, waiters; };
void series_stats(const struct series *s, struct series_stats *out);

/* Packed rows (seq > since) for a poll: runs `done` now when the tail covers it, else after the store has answered. */
struct series_page {
	size_t n;
	const struct series_row *row; /* good until the callback returns */
	int more, from_disk;
	uint64_t first_seq, last_seq;
	Fh__V1__JobState state;       /* of the newest visible state change since the daemon started, else UNSPECIFIED */
};
struct series_row { uint64_t seq; const void *packed; size_t bytes; };
typedef void (*series_done)(void *arg, int code, const struct series_page *page);
/* Holds the answer up to wait_ms until a sample with seq > since is visible. */
void series_poll(struct series *s, uint64_t job, uint64_t since, uint32_t limit, uint32_t wait_ms, series_done done, void *arg);

/* Call handler (rpc_metrics.c). */
void rpc_metrics(struct daemon *d, struct rpc_call *c);

#endif
