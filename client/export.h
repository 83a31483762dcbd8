/* Bars to a file that `dataset import` reads back to the same bits: CSV, safetensors, Parquet. One thread. */
#ifndef FH_CLIENT_EXPORT_H
#define FH_CLIENT_EXPORT_H

#include "client/fetch.h"

/* By the file's ending: .csv, .safetensors, .parquet; "-" is CSV on standard output. The file appears whole or not at all.
 * FH_INVALID an ending that is none of them, FH_UNIMPLEMENTED Parquet in a build without it, FH_IO. */
int export_check(const char *path, struct fh_status *st);
int export_bars(const struct fetched *f, const char *path, struct fh_status *st);

#endif
