/* One run of an import, shared by import.c (which makes and ends it), text.c (rows of text and JSON) and plain.c (plain rows,
 * many at a time). One thread; plain.c has a second one for half of a block. */
#ifndef FH_IMPORT_PASS_H
#define FH_IMPORT_PASS_H

#include <stdint.h>
#include "client/import/columns.h"
#include "client/import/fast.h"
#include "client/import/import.h"
#include "client/import/resample.h"
#include "proto/status.h"

struct zone;

#define SYMBOLS_SHOWN 3

struct pass {
	const struct import_options *o;
	struct source *source;
	struct csv_reader csv;
	int json;
	struct columns col;
	struct fast fast;
	struct helper *helper;         /* plain.c, as is how many rows it took the last time */
	int64_t plain_run;
	struct zone *zone;
	struct resample resample;
	int64_t date;
	char point;
	struct import *out;
	char first_drop[FH_TEXT_MAX];
	char symbol[CSV_SHOWN_MAX];    /* of the last row */
	char symbols[IMPORT_NOTE_SIZE / 2];
	int64_t symbol_changes, other_symbols;
};

/* The callback of the options; FH_INTERRUPTED when it says so. */
int pass_tell(const struct pass *p, struct fh_status *st);

/* text.c: the whole of p->source as lines or JSON. The text of a refused row begins with ":LINE". */
int pass_text(struct pass *p, struct fh_status *st);

/* plain.c: whether this file has plain rows, asked once p->col is known. */
void plain_init(struct pass *p);
/* Takes all plain rows of the block that p->csv has now. */
int plain_block(struct pass *p, struct fh_status *st);
void plain_release(struct pass *p);

#endif
