/* Which field of a line is what: from a header's names, from a list the person gave, or from a known shape without header.
 * Pure data, any thread. */
#ifndef FH_IMPORT_COLUMNS_H
#define FH_IMPORT_COLUMNS_H

#include <stdint.h>
#include "client/import/csv.h"

struct fh_status;

/* COLUMN_CLOCK: the time of day beside a date in COLUMN_TIME. */
enum column { COLUMN_TIME, COLUMN_CLOCK, COLUMN_OPEN, COLUMN_HIGH, COLUMN_LOW, COLUMN_CLOSE, COLUMN_VOLUME, COLUMN_SYMBOL, COLUMNS };

struct columns {
	int at[COLUMNS];                     /* field number from 0, -1: none */
	int fields;                          /* of every line */
	int header;                          /* the first line was one */
	int flat;                            /* one price a row: open, high and low are the close */
	char name[COLUMNS][CSV_SHOWN_MAX];   /* as the file calls it, for messages */
};

/* From the file's first line (split). `list` ("ts,open,high,low,close,volume"; "-" or "_" skips a field) overrules a
 * header; only a list may leave open, high and low out ("ts,close"). FH_INVALID names what is missing, given twice or unknown. */
int columns_find(const struct csv_reader *r, const char *list, struct columns *out, struct fh_status *st);
/* From names alone, which are a header whatever they look like (r: fields as columns_find() has them). */
int columns_of_names(const struct csv_reader *r, struct columns *out, struct fh_status *st);
/* "open", "time", … */
const char *column_word(enum column c);

#endif
