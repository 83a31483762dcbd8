/* Databento Binary Encoding, versions 1 to 3, schemas ohlcv-1s, 1m, 1h, 1d (and eod): bars out of a source.
 *
 * Prices are whole numbers of 1e-9 there and become the nearest doubles. One pass, one block of memory beside the bars.
 * One thread. */
#ifndef FH_IMPORT_DBN_H
#define FH_IMPORT_DBN_H

#include "client/import/import.h"
#include "proto/status.h"

struct source;

#define DBN_MAGIC "DBN" /* first bytes; the fourth is the version */
#define DBN_SYMBOLS_SHOWN 160

struct dbn_seen { /* beside the bars, for notices */
	char first_drop[FH_TEXT_MAX];       /* why the first bad record was dropped, begins with its number */
	char symbols[DBN_SYMBOLS_SHOWN];    /* of the records taken, in their order */
	int64_t symbol_changes, others;     /* others: records of instruments that were not asked for */
};

/* Reads to the end of the source into out->bars, rows, dropped. "Lines" are record numbers, from 1.
 * FH_INVALID: no bars in it, another schema or version, several instruments and none chosen (lists them), an undefined
 * price or an impossible bar (BAD_ROW_REFUSE), no such symbol. FH_CORRUPT: metadata or a record that cannot be, a cut
 * file. FH_INTERRUPTED. */
int dbn_read(struct source *source, const struct import_options *o, struct import *out, struct dbn_seen *seen,
	     struct fh_status *st);

#endif
