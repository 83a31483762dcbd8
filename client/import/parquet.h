/* Parquet files through Arrow's C++ library, in a build with `make ARROW=DIR` only; else every call says how to get it.
 * One thread. */
#ifndef FH_IMPORT_PARQUET_H
#define FH_IMPORT_PARQUET_H

#include "client/import/import.h"

/* 0, or FH_UNIMPLEMENTED with how to build it. */
int parquet_there(struct fh_status *st);
/* Columns by the names that a CSV header may have; times as timestamps or dates of any unit, whole numbers or texts, prices as any
 * kind of number. "Lines" are row numbers from 1. Adds to out->bars, rows, dropped, has_volume; first_drop: why the first bad row
 * was dropped; seen: what a column of symbols says. FH_INVALID, FH_CORRUPT, FH_INTERRUPTED. */
#define PARQUET_DROP_TEXT 512
struct parquet_seen { int64_t others, changes; char symbols[IMPORT_NOTE_SIZE / 2]; }; /* rows of others than o->symbol; of the rest */
int parquet_read(const char *path, const struct import_options *o, struct import *out, char first_drop[PARQUET_DROP_TEXT],
		 struct parquet_seen *seen, struct fh_status *st);
/* ts as timestamp[ns, UTC], the rest as doubles; symbol (NULL: no such column): the name of a bar's contract. The file appears whole or
 * not at all. */
struct parquet_symbols { const char *(*of)(const void *arg, int64_t bar); const void *arg; };
int parquet_write(const char *path, const struct market_bars *b, int has_volume, const struct parquet_symbols *symbol, struct fh_status *st);

#endif
