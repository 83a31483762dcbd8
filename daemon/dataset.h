/* The registry of market files, the cache of loaded ones, and uploads.
 *
 * Loop thread; files, features and hashes are made on the libuv pool. A data set is <dir>/NAME.safetensors and its row; the row is
 * written after the file is durable, and removed before the file is. At start-up files without a row and temporary files are
 * removed, and rows whose file is missing or unreadable are kept, reported and unusable until imported again.
 * Invariant: what is registered was checked bar by bar here, whatever the client said about it. */
#ifndef FHD_DATASET_H
#define FHD_DATASET_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "gpu/market.h"
#include "gpu/spec.h"
#include "proto/fh.pb-c.h"

struct fh_status;
struct store;
struct datasets;
struct dataset;
struct daemon;
struct rpc_call;

#define DATASETS_MAX 2000               /* registered; a list of all of them fits into one reply */
#define DATASET_BARS_MAX INT64_C(20000000) /* of one data set: 38 years of minutes */
#define DATASET_CACHE_BYTES (4ULL << 30) /* resident and unused by anyone beyond that are let go, longest untouched first */
#define DATASET_NOTES_MAX 64
#define DATASET_NOTE_BYTES_MAX 512
#define DATASET_SOURCE_BYTES_MAX 256
#define DATASET_CONTRACT_BYTES_MAX 63
#define DATASET_TICK_DEFAULT 0.01
#define DATASET_GAPS_MAX 8              /* different gap lengths shown */
#define DATASET_SPARK 64
#define DATASET_WEEK_HOURS 168
#define DATASET_VERSIONS_MAX 256        /* earlier states of an appended set that jobs may go on with; the oldest are forgotten */
#define DATASET_WAITING_MAX 1024        /* calls and jobs waiting for one file to be read */
#define REGISTRATIONS_MAX 16            /* waiting or in work */
#define REGISTRATIONS_RUNNING 2         /* threads of the pool that may make features and files at once; as many for uploads */
#define UPLOADS_MAX 8                   /* open at once */
#define UPLOAD_BYTES_MAX (2ULL << 30)   /* of open uploads and of bars being registered, together */
#define UPLOAD_CHUNK_BARS_MAX 250000
#define UPLOAD_IDLE_MS 120000           /* without a chunk: thrown away */
#define DATASET_FILE_BYTES 48           /* a bar in a file: time, five numbers */
#define READ_BARS_MAX 20000             /* in one reply */

struct datasets_config {
	uv_loop_t *loop;
	struct store *store;
	const char *dir;          /* <state>/datasets, made when missing */
	uint64_t cache_bytes;     /* 0: DATASET_CACHE_BYTES */
	uint32_t upload_idle_ms;  /* 0: UPLOAD_IDLE_MS */
	int64_t bars_max;         /* of one set, setting dataset_bars; 0: DATASET_BARS_MAX */
	uint64_t quota;           /* bytes of all files, setting dataset_quota; 0: no bound */
	unsigned (*jobs_using)(void *arg, const char *name); /* live jobs: queued, running, paused */
	void *arg;
};
int datasets_new(const struct datasets_config *cfg, struct datasets **out, struct fh_status *st);
/* Rows from the store, files checked, orphans removed; before store_start. */
int datasets_load(struct datasets *ds, struct fh_status *st);
/* Refuses new work, throws uploads away, answers held calls. Pool work in flight still finishes on the loop. */
void datasets_stop(struct datasets *ds);
void datasets_free(struct datasets *ds); /* when datasets_busy() is 0 */
int datasets_busy(const struct datasets *ds);

/* ---------------------------------------------------------------- look-ups */
const struct dataset *datasets_find(const struct datasets *ds, const char *name); /* NULL when not registered */
const char *dataset_name(const struct dataset *d);
const char *dataset_hash(const struct dataset *d);
/* How many of its bars have this hash: all of them, or those before an append; 0: none. */
int64_t dataset_bars_of(const struct dataset *d, const char *hash);
int64_t dataset_bars(const struct dataset *d);
/* FH_NOT_FOUND (naming data.dataset and near matches), FH_CORRUPT when its file is gone or bad. */
int datasets_need(const struct datasets *ds, const char *name, const struct dataset **out, struct fh_status *st);
struct datasets_stats { uint32_t registered, broken; uint64_t resident_bytes; uint32_t resident, uploads; uint64_t upload_bytes; };
void datasets_stats(const struct datasets *ds, struct datasets_stats *out);

/* Loads (or finds resident) the set with features for `tick`. The callback, always later on the loop, gets a reference of its own
 * (market_unref, any thread) on code 0. `hash` non-NULL: that state of the set, which may have had bars appended since; FH_CONFLICT
 * when it never had this hash. */
typedef void (*dataset_loaded)(void *arg, int code, struct market *m, const struct fh_status *st);
void datasets_acquire(struct datasets *ds, const char *name, const char *hash, double tick, dataset_loaded done, void *arg);
/* The same with the features that a job's specification asks for: its tick, and gaps left out. */
void datasets_acquire_for(struct datasets *ds, const char *name, const char *hash, const struct fh_spec *spec, dataset_loaded done,
			  void *arg);

/* What is known of it beside the bars: complete but for `jobs`. Owned by d. */
const Fh__V1__Dataset *dataset_info(const struct dataset *d);
/* NULL when it is fine, else why it cannot be used. */
const char *dataset_broken(const struct dataset *d);
/* In order of name; NULL at the end. */
const struct dataset *datasets_at(const struct datasets *ds, size_t i);

/* ---------------------------------------------------------------- registering and dropping */

struct dataset_version { int64_t bars; char hash[65]; };
struct dataset_origin { /* texts are copied */
	const char *name;           /* checked by fh_name_check() */
	const char *source;
	const char *hash;           /* what the client computed, NULL or "": not given */
	double tick;                /* 0: DATASET_TICK_DEFAULT */
	int has_volume;
	uint64_t duplicates, dropped, repaired, moved;
	const char *const *note;
	size_t notes;
	const int64_t *roll;        /* first bars of another contract, counted from the first new bar; append: that one may be one */
	size_t rolls;
	const char *const *contract; /* their names: of bar 0's, and of one for each roll after it; "" unknown; or none */
	size_t contracts;
	int append;                 /* behind the bars of the registered set; `hash` is that of the new bars */
	const char *base;           /* append: the registered set's hash as the client knows it, NULL or "": any */
	const struct dataset_version *version; /* made here, not the client's */
	size_t versions;
};
/* code 0: registered and durable, or the same bars were there already (existed). FH_CONFLICT: other bars under this
 * name, or somebody is registering it right now. FH_CORRUPT: the bars do not have origin->hash. */
typedef void (*dataset_registered)(void *arg, int code, const struct dataset *d, int existed, const struct fh_status *st);
struct synth;
void datasets_synth(struct datasets *ds, const struct dataset_origin *o, const struct synth *s, dataset_registered done, void *arg);
/* FH_NOT_FOUND; FH_CONFLICT while a live job uses it. d is NULL in the callback: it is gone. */
void datasets_drop(struct datasets *ds, const char *name, dataset_registered done, void *arg);

/* Uploads: bars come in order, in chunks, each checked when it comes. `existed`: the same bars are registered already, no
 * upload was opened. An open upload of the same bars (hash) under the same name is found again, so that a client whose connection
 * broke goes on at upload_next(). FH_CONFLICT other bars have this name; FH_EXHAUSTED too many uploads or bytes, the quota;
 * FH_UNAVAILABLE these bars are being registered right now. */
#define UPLOAD_ID_MAX 40
int upload_begin(struct datasets *ds, const struct dataset_origin *o, int64_t bars, char id[UPLOAD_ID_MAX],
		 const struct dataset **existed, struct fh_status *st);
int64_t upload_next(const struct datasets *ds, const char *id); /* first bar still missing; 0 without such an upload */
/* b->volume NULL: zeros. A chunk that was taken before and is the same is fine. *next: the first bar still missing. */
int upload_chunk(struct datasets *ds, const char *id, int64_t first, const struct market_bars *b, int64_t *next,
		 struct fh_status *st);
/* Ends the upload in any case but FH_CONFLICT (bars are missing). Until its row is on the way an upload_abort() still undoes it:
 * FH_INTERRUPTED. */
void upload_commit(struct datasets *ds, const char *id, dataset_registered done, void *arg);
int upload_abort(struct datasets *ds, const char *id, struct fh_status *st);
/* What every bar must fulfil: time after the one before, |time| below MARKET_TS_MAX, finite numbers in the market's
 * bounds, high >= open, close, low; low <= open, close; volume >= 0. FH_INVALID with field "high[17]", `base` added. */
int dataset_check_bars(const struct market_bars *b, int64_t base, const int64_t *before, struct fh_status *st);

/* Call handlers (rpc_data.c). */
void rpc_list_datasets(struct daemon *d, struct rpc_call *c);
void rpc_show_dataset(struct daemon *d, struct rpc_call *c);
void rpc_drop_dataset(struct daemon *d, struct rpc_call *c);
void rpc_synth_dataset(struct daemon *d, struct rpc_call *c);
void rpc_begin_upload(struct daemon *d, struct rpc_call *c);
void rpc_upload_chunk(struct daemon *d, struct rpc_call *c);
void rpc_commit_upload(struct daemon *d, struct rpc_call *c);
void rpc_abort_upload(struct daemon *d, struct rpc_call *c);
void rpc_read_bars(struct daemon *d, struct rpc_call *c);

#endif
