/* Plain rows of delimited text, many at a time: the ordinary rows of big files. What is not quite ordinary is left to the careful
 * reader (csv.h, import.c), which means the same by every row that both can read. Pure functions, any thread. */
#ifndef FH_IMPORT_FAST_H
#define FH_IMPORT_FAST_H

#include <stddef.h>
#include <stdint.h>
#include "client/import/columns.h"

#define FAST_FIELDS_MAX 16
#define FAST_SPARE 32 /* bytes behind the text that may be looked at */

struct fast {
	int on;
	int fields;
	int role[FAST_FIELDS_MAX]; /* of each field: 0 time, 1..5 open high low close volume, -1 skipped */
	char delimiter;
	/* the day of the row before: its text and its begin */
	char day_text[10];
	int64_t day_ns;
};

struct fast_rows { int64_t *ts; double *value[5]; int64_t room, count; }; /* value: open high low close volume */

/* Can files of this shape be read so? Sets f->on. */
void fast_init(struct fast *f, const struct columns *c, char delimiter);
/* Rows from p on, each ended by a line feed before `end`, into out->… [count, room), until the first one that is not plain, not after
 * `last` (the time of the row before), or not a possible bar. Returns the byte after the last one taken. */
const char *fast_take(struct fast *f, const char *p, const char *end, int64_t last, struct fast_rows *out);

#endif
