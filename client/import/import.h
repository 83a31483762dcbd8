/* A market data file to bars: the one call of the client's commands.
 *
 * One pass over the file; memory is the bars themselves and one block. The file is taken whole or not at all: a refusal
 * names line and column and what to do about it. One thread; the result is the caller's. */
#ifndef FH_IMPORT_IMPORT_H
#define FH_IMPORT_IMPORT_H

#include <stdint.h>
#include "client/import/bars.h"
#include "client/import/zone.h"
#include "gpu/market.h"

struct fh_status;

#define IMPORT_NOTES_MAX 16
#define IMPORT_NOTE_SIZE 256

struct import_options {
	const char *columns;         /* "ts,open,high,low,close,volume", NULL: the header decides */
	const char *tz;              /* zone of times without an offset, NULL: UTC */
	enum zone_fold fold;         /* hours that the clock showed twice */
	const char *date;            /* day of times that are milliseconds of a day, "YYYY-MM-DD" */
	const char *member;          /* file inside a zip archive */
	const char *symbol;          /* only rows of this one */
	int has_instrument_id;       /* DBN: only records of this instrument */
	uint32_t instrument_id;
	const char *bar;             /* made longer: "5m", "1h", "1d", NULL: as they are */
	const char *session;         /* where those begin: "17:00 America/Chicago", NULL: midnight of tz */
	double price_scale;          /* prices are divided by it; 0: 1 */
	char point;                  /* '.', ',' or 0: found out */
	enum on_bad_row on_bad_row;
	enum on_duplicate on_duplicate;
	int sort;
	/* Called now and then; bytes 0 when unknown. Non-zero stops the import with FH_INTERRUPTED. */
	int (*progress)(void *arg, uint64_t read, uint64_t bytes, int64_t bars);
	void *progress_arg;
};

struct import {
	struct bars bars;
	int64_t rows;             /* data lines read, those of other symbols not counted */
	uint64_t dropped;         /* bad rows */
	int has_volume;
	int notes;
	char note[IMPORT_NOTES_MAX][IMPORT_NOTE_SIZE];
};

/* FH_INVALID, FH_NOT_FOUND, FH_IO, FH_CORRUPT, FH_EXHAUSTED, FH_INTERRUPTED. path "-": standard input. */
int import_file(const char *path, const struct import_options *o, struct import **out, struct fh_status *st);
void import_free(struct import *m); /* NULL is fine */

#endif
