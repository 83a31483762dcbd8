/* JSON arrays of arrays, [[ms, o, h, l, c, v], …], handed out as the rows of a csv_reader: no header, the same checks.
 * One thread; shares the reader's block. */
#ifndef FH_IMPORT_JSON_H
#define FH_IMPORT_JSON_H

#include "client/import/csv.h"

struct fh_status;

/* After csv_start(): steps over the opening bracket and reads the first row. 1, 0 (no row), negative.
 * flat: an array of numbers alone, [1, 2, 3], is one row. */
int json_begin(struct csv_reader *r, int flat, struct fh_status *st);
/* The next inner array into r->field, r->line is its number: 1, 0 at the end of the outer one, negative (FH_INVALID). */
int json_row(struct csv_reader *r, struct fh_status *st);

#endif
