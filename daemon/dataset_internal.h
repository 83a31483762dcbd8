/* What dataset.c (registry, start-up), dataset_cache.c (resident markets), dataset_register.c (registering, dropping),
 * dataset_append.c (bars behind a set) and dataset_upload.c share. Loop thread, except the work functions, which touch their own struct only. */
#ifndef FHD_DATASET_INTERNAL_H
#define FHD_DATASET_INTERNAL_H

#include <limits.h>

#include "daemon/dataset.h"
#include "gpu/synth.h"
#include "proto/status.h"

struct dataset {
	char name[FH_NAME_MAX];
	char hash[65];
	int64_t bars;
	double tick;
	Fh__V1__Dataset *info;     /* unpacked, owned */
	char broken[FH_TEXT_MAX];  /* "" when fine */
	int dropping;              /* its row is being removed: nobody finds it any more */
};

struct delivery {                  /* an answer that has to wait for the loop's next turn */
	struct delivery *next;
	dataset_loaded done;
	void *arg;
	struct market *market;
	int code;
	struct fh_status st;
};

struct resident;
struct registration;

/* A market whose bars are coming in, and what the pool makes of them meanwhile: features, and the file under a temporary name. Counted
 * on the loop; a lock is for the pool: whoever holds it may do that part's work. */
struct growth {
	struct growing *of;
	void (*step)(struct growing *g, int64_t to);
	uv_mutex_t lock;
	uv_work_t work;
	int64_t to, done;             /* bars of the work in flight, and those it is over with */
	int working;
};

enum { GROW_FEATURES, GROW_FILE, GROWTHS };

struct growing {
	int refs;
	struct datasets *ds;
	struct market *market;
	int64_t there;                /* bars that have come */
	struct growth growth[GROWTHS];
	/* under the lock of GROW_FILE */
	struct st_writer *file;       /* NULL: not begun, or it went wrong and the registration writes one */
	int64_t written;
	int no_file;
	char name[FH_NAME_MAX], source[DATASET_SOURCE_BYTES_MAX + 1], hash[65], id[UPLOAD_ID_MAX], path[PATH_MAX];
	uv_work_t end;
};

struct upload {
	struct upload *next;
	struct datasets *ds;
	char id[UPLOAD_ID_MAX];
	struct dataset_origin origin; /* owned copies */
	int64_t bars, next_bar;
	struct market *market;        /* the bars go to their place at once; an append's: NULL, and block */
	struct growing *growing;      /* NULL: its features wait for the commit */
	int64_t *block;               /* 48 bytes a bar, ts first */
	int64_t *ts;
	double *column[5];            /* open high low close volume */
	uv_timer_t idle;
};

struct datasets {
	struct datasets_config cfg;
	char *dir;
	struct dataset **set;      /* in order of name */
	size_t sets, room;
	struct resident *resident;
	uint64_t use_clock, resident_bytes;
	unsigned waiting;
	uv_async_t async;
	struct delivery *delivery, **delivery_end;
	struct registration *registering;
	struct upload *upload;
	unsigned uploads;
	uint64_t upload_bytes; /* bars that came or are made and are not registered yet */
	int growing;           /* uploads whose features are made while they come */
	uint64_t upload_number, started_ns;
	int in_flight;             /* pool work and rows */
	int stopping;
};

/* dataset.c */
struct dataset *dataset_lookup(const struct datasets *ds, const char *name); /* dropping ones as well */
int dataset_missing(const struct datasets *ds, const char *name, const char *field, struct fh_status *st); /* FH_NOT_FOUND */
void dataset_path(const struct datasets *ds, const char *name, char *path, size_t size);
/* Takes `packed` (an fh.v1.Dataset) into the registry, replacing the entry of that name. NULL when it cannot be read. */
struct dataset *dataset_put(struct datasets *ds, const char *name, const char *hash, const void *packed, size_t bytes);
void dataset_remove(struct datasets *ds, struct dataset *d);

/* dataset_info.c: what a list shows of a market, packed. NULL without memory. */
void *dataset_info_make(const struct market *m, const struct dataset_origin *o, uint64_t created_ns, uint64_t bytes, size_t *size);
int origin_copy(struct dataset_origin *to, const struct dataset_origin *from, struct fh_status *st);
void origin_release(struct dataset_origin *o);

/* dataset_cache.c */
int dataset_read(const char *path, double tick, int64_t bars, struct market **out, struct fh_status *st); /* pool */
void cache_start(struct datasets *ds);
void cache_put(struct datasets *ds, const struct dataset *d, struct market *m); /* takes the reference */
void cache_forget(struct datasets *ds, const char *name);
void cache_stop(struct datasets *ds);
void cache_free(struct datasets *ds);

#define BAR_BYTES 48 /* ts, open, high, low, close, volume */

/* dataset_register.c: from bars to a registered set; dataset_append.c has what an append adds to that. */
struct registration {
	struct registration *next;
	struct datasets *ds;
	struct dataset_origin origin;
	struct market *market;     /* of an upload: it is filled; NULL: synth, append make it */
	struct growing *growing;   /* or NULL */
	struct market_bars bars;   /* append: the new ones, one owned block that begins with ts */
	struct synth synth;
	char there[65];            /* hash of the set that has this name, "" when it is free */
	int64_t there_bars;        /* append: how many it has */
	uint64_t bytes;            /* counted in upload_bytes until it ends */
	int started;               /* the pool has it, or had it */
	int write;                 /* the file is to be written */
	int row;                   /* its row is on the way: too late to give it up */
	int aborted;               /* its client gave it up while the pool had it */
	char upload[UPLOAD_ID_MAX];
	uint64_t created_ns;
	char path[PATH_MAX];
	/* of the work */
	uv_work_t work;
	void *info;
	size_t info_bytes;
	int code;
	struct fh_status st;
	dataset_registered done;
	void *arg;
};
int registration_append(struct registration *r); /* pool: r->market is made of the old bars and the new ones */
void registration_inherit(struct registration *r, const struct dataset *d); /* loop: what stays of the old set */
/* Checks of an append that need no bars: FH_NOT_FOUND, FH_CORRUPT, FH_CONFLICT. */
int dataset_may_append(const struct datasets *ds, const struct dataset_origin *o, struct fh_status *st);
/* Bars that came: checked one by one, in `m` (filled to its end; g: what made its features so far, or NULL), or, of an append, a block of
 * 48 bytes a bar that begins with b->ts. All of them are the registration's from here. */
struct arrived { struct market *m; struct growing *g; struct market_bars b; };
void datasets_register(struct datasets *ds, const struct dataset_origin *o, const struct arrived *bars, dataset_registered done, void *arg);
void registrations_stop(struct datasets *ds);
/* The hash that a client gave of the bars now being registered under this name, "" when it gave none; NULL: nobody registers it. */
const char *registering_hash(const struct datasets *ds, const char *name);
/* The registration whose answer goes to `arg`, if there is one, came from an upload, which may still be aborted. */
void registration_of_upload(struct datasets *ds, const void *arg, const char *upload);
int registration_abort(struct datasets *ds, const char *upload); /* 0: there is none that can be */
/* dataset_grow.c: NULL when enough others grow already. */
struct growing *growing_new(struct datasets *ds, const struct upload *u);
void growing_there(struct growing *g, int64_t bars); /* that many have come; NULL is fine */
void growing_unref(struct growing *g); /* NULL is fine */
/* Pool: makes what is missing. growing_file() gives the file its name; 1: there is none, one has to be written. */
int growing_features(struct growing *g, struct fh_status *st);
int growing_file(struct growing *g, struct fh_status *st);
/* dataset_upload.c */
int dataset_check_size(const struct datasets *ds, int64_t bars, int64_t there, struct fh_status *st); /* size limit and quota */
void uploads_stop(struct datasets *ds);

#endif
