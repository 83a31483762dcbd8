/* Bars of a safetensors file: ts I64 [T], open, high, low, close F64 [T], volume F64 [T] or none. What `dataset export` writes and
 * what the daemon keeps. One thread. */
#ifndef FH_IMPORT_TENSORS_H
#define FH_IMPORT_TENSORS_H

#include <stddef.h>
#include "client/import/import.h"

/* 1: bytes that begin like such a file (at least 9 of them). */
int tensors_look(const void *p, size_t n);
/* Adds to out->bars, rows, dropped, has_volume; "lines" are row numbers from 1. first_drop: why the first bad row was dropped.
 * FH_CORRUPT names the tensor, FH_INVALID a row. */
#define TENSORS_DROP_TEXT 512
int tensors_read(const char *path, const struct import_options *o, struct import *out, char first_drop[TENSORS_DROP_TEXT],
		 struct fh_status *st);
/* One row under the rules for rows: added, dropped and counted, or refused. Shared with other columnar forms. */
int columnar_row(const struct import_options *o, struct import *out, struct bar *b, char *first_drop, size_t size,
		 struct fh_status *st);

#endif
