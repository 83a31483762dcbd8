/* Imported bars to the daemon: begin, chunks, commit; whole or not at all. One thread. */
#ifndef FH_CLIENT_UPLOAD_H
#define FH_CLIENT_UPLOAD_H

#include "client/cmd.h"
#include "client/import/import.h"
#include "client/progress.h"

#define UPLOAD_CHUNK_BARS 100000 /* 4.8 MB on the wire */

/* Registers the bars of `m` as `name`; `source` says where they come from, tick 0: the daemon's default. On success *out
 * holds the reply, whose upload->dataset is the registered set. On a refusal or a signal the upload is thrown away; a lost
 * connection is made anew, and when that fails for a minute the same call goes on with the upload later. */
int upload_bars(struct ctx *c, const struct import *m, const char *name, const char *source, double tick,
		struct progress *bar, struct fh_answer *out, struct fh_status *st);
/* The same, behind the bars of the registered set `name`, which has the hash `base` now. */
int upload_append(struct ctx *c, const struct import *m, const char *name, const char *base, const char *source,
		  struct progress *bar, struct fh_answer *out, struct fh_status *st);
/* The same number that the daemon computes: SHA-256 of ts, open, high, low, close, volume. */
int bars_hash(const struct market_bars *b, const int64_t *roll, int64_t rolls, char hex[65], struct fh_status *st);

#endif
