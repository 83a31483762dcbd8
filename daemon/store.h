/* What must survive: jobs, data sets, checkpoints, samples and answered requests, in one SQLite file.
 *
 * Owns the file and one writer thread. The loop builds a transaction (store_begin, store_put_*), hands it over whole
 * (store_commit) and goes on; the callback runs on the loop once the transaction is on the disk (WAL,
 * synchronous=FULL). Transactions are applied in the order of their commits; those that wait together share one sync, each
 * inside its own savepoint, so a refused one does not take its neighbours along. The loop never waits for the disk:
 * start-up reads (store_load_*) are the only calls that touch the file on the caller's thread, and they are refused
 * once the writer runs.
 * Invariant: a callback with code 0 means durable, and every earlier transaction that succeeded is durable as well. */
#ifndef FHD_STORE_H
#define FHD_STORE_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct fh_status;
struct store;
struct store_txn;

#define STORE_SCHEMA 2               /* PRAGMA user_version of files this build writes */
#define STORE_PENDING_MAX 200000     /* transactions handed over and not yet answered */
#define STORE_GROUP_MAX 512          /* transactions that share one sync */
#define STORE_BLOB_MAX (1 << 20)     /* bytes of one blob or text */
#define STORE_REQUESTS_KEPT 20000    /* answered requests remembered for retries */
#define STORE_BUSY_MS 5000           /* another process holds the file */

/* ---------------------------------------------------------------- life (loop thread) */

/* Opens or makes the file, checks it, migrates older schemas. FH_VERSION: the file is from a newer build (both numbers
 * are named). FH_CORRUPT: not a database or it fails its check; the file is left as it is. FH_IO. */
int store_open(const char *path, struct store **out, struct fh_status *st);
/* 1 when store_open made the file. */
int store_fresh(const struct store *s);
/* Starts the writer; callbacks arrive on `loop` from now on. */
int store_start(struct store *s, uv_loop_t *loop, struct fh_status *st);
/* Writes what was handed over, ends the writer and runs the callbacks left. Blocks for that long: shutdown only. */
void store_stop(struct store *s);
/* After store_stop. NULL is fine. The loop needs another turn to close the handle. */
void store_free(struct store *s);

struct store_stats {
	uint64_t transactions, groups; /* answered, syncs */
	uint64_t failed;               /* transactions that were refused or rolled back */
	uint64_t pending;              /* handed over, not yet answered */
	char error[256];               /* of the last failure, "" when none */
};
void store_stats(const struct store *s, struct store_stats *out); /* loop thread */

/* ---------------------------------------------------------------- rows */

/* Times are ns since 1970 UTC. Strings may be NULL (stored as ""). Blobs are opaque here. */
struct store_job {
	uint64_t id;                 /* from 1, never used again */
	const char *name;            /* unique */
	int state;                   /* fh.v1.JobState */
	const char *reason;
	int error_code;              /* positive fh.v1.ErrorCode, 0 none */
	const char *error_field, *error_text;
	const void *spec;            /* packed fh.v1.JobSpec, every key present */
	size_t spec_bytes;
	const void *labels;          /* packed fh.v1.StartJobRequest holding labels only */
	size_t labels_bytes;
	const char *request_id;      /* of the start request */
	uint64_t created_ns, started_ns, ended_ns;
	uint64_t step, planned_steps, epoch, vector_step;
	uint32_t interruptions;
	int64_t queue_order;         /* position among equals, smaller first */
	const char *dataset_hash, *last_checkpoint, *resume_note, *device;
};
struct store_dataset { const char *name; const char *hash; uint64_t created_ns; const void *info; size_t info_bytes; /* packed fh.v1.Dataset */ };
struct store_checkpoint {
	const char *id;
	uint64_t job, step, created_ns, bytes;
	const char *reason, *sha256;
	int pinned;
};
struct store_sample { uint64_t job, seq; int kind; const void *packed; size_t bytes; };
struct store_request { const char *request_id; const char *call; uint64_t job, time_ns; const void *reply; size_t reply_bytes; };

/* ---------------------------------------------------------------- start-up reads (before store_start) */

/* Rows in order of id (name, time, …); strings and blobs live until the callback returns. A callback returns 0 or a
 * negative code, which ends the reading and is returned. */
int store_load_jobs(struct store *s, int (*row)(void *arg, const struct store_job *j), void *arg, struct fh_status *st);
int store_load_datasets(struct store *s, int (*row)(void *arg, const struct store_dataset *d), void *arg, struct fh_status *st);
int store_load_checkpoints(struct store *s, int (*row)(void *arg, const struct store_checkpoint *c), void *arg, struct fh_status *st);
int store_load_requests(struct store *s, int (*row)(void *arg, const struct store_request *r), void *arg, struct fh_status *st);
/* Per job: first and last sequence number kept, and the newest report, validation and other evaluation (packed NULL when none). */
struct store_series { uint64_t job, first_seq, last_seq; struct store_sample report, validation, aside; };
int store_load_series(struct store *s, int (*row)(void *arg, const struct store_series *r), void *arg, struct fh_status *st);

/* ---------------------------------------------------------------- transactions (loop thread) */

/* Never NULL: out of memory ends the process, as everywhere in the loop. */
struct store_txn *store_begin(struct store *s);
void store_put_job(struct store_txn *t, const struct store_job *j);       /* insert or replace the row of j->id */
void store_put_dataset(struct store_txn *t, const struct store_dataset *d);
void store_drop_dataset(struct store_txn *t, const char *name);
void store_put_checkpoint(struct store_txn *t, const struct store_checkpoint *c);
void store_drop_checkpoint(struct store_txn *t, const char *id);
void store_put_sample(struct store_txn *t, const struct store_sample *m);
void store_put_request(struct store_txn *t, const struct store_request *r);
/* Keeps of one job's samples all from seq >= keep_from, of older reports every `stride`-th, none below drop_below. */
void store_thin_samples(struct store_txn *t, uint64_t job, uint64_t keep_from, uint64_t stride, uint64_t drop_below);

/* code 0: durable. Else the reason, and nothing of the transaction is in the file. Loop thread. */
typedef void (*store_done)(void *arg, int code, const struct fh_status *st);
/* Another callback beside the one of store_commit, run before it, in order of registration. */
void store_on_done(struct store_txn *t, store_done done, void *arg);
/* Hands t over; it belongs to the store from here. done may be NULL. Always asynchronous, also on failure. */
void store_commit(struct store *s, struct store_txn *t, store_done done, void *arg);

/* Samples of a job with seq > since, at most `limit`, read by the writer thread after everything committed before. The rows
 * live until the callback returns. `more`: others follow. */
typedef void (*store_samples)(void *arg, int code, const struct store_sample *row, size_t n, int more);
void store_read_samples(struct store *s, uint64_t job, uint64_t since, uint32_t limit, store_samples done, void *arg);

#endif
