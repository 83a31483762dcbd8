/* Parquet files through Arrow's C++ library: in a build with `make ARROW=DIR` only (parquet.cc), else every call says how
 * to get it (parquet_none.c). One thread. */
#ifndef FH_IMPORT_PARQUET_H
#define FH_IMPORT_PARQUET_H

#include "client/import/import.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, or FH_UNIMPLEMENTED with how to build it. */
int parquet_there(struct fh_status *st);
/* Columns by the names that a CSV header may have; times as timestamps of any unit or whole numbers. "Lines" are row numbers from
 * 1. Adds to out->bars, rows, dropped; *first_drop: why the first bad row was dropped. FH_INVALID, FH_CORRUPT, FH_IO. */
#define PARQUET_DROP_TEXT 512
int parquet_read(const char *path, const struct import_options *o, struct import *out, char first_drop[PARQUET_DROP_TEXT],
		 struct fh_status *st);
/* ts as timestamp[ns, UTC], the rest as doubles. The file appears whole or not at all. */
int parquet_write(const char *path, const struct market_bars *b, int has_volume, struct fh_status *st);

#ifdef __cplusplus
}
#endif

#endif
