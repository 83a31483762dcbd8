/* What the files of dataset commands share: the options of reading a file, printing a data set. One thread. */
#ifndef FH_CLIENT_DATASET_ARGS_H
#define FH_CLIENT_DATASET_ARGS_H

#include "client/cmd.h"
#include "client/import/import.h"
#include "client/progress.h"

/* Rows of a struct opt table; dataset_import_options() reads them. */
#define DATASET_IMPORT_OPTS \
	{"columns", 0, "LIST", "what the fields are: ts,open,high,low,close,volume; - skips one"}, \
	{"tz", 0, "ZONE", "zone of times without an offset, like Europe/Berlin (default UTC)"}, \
	{"dst", 0, "WHICH", "an hour that the clock shows twice: refuse (default), first or second"}, \
	{"date", 0, "DATE", "day of a file whose times are milliseconds of a day"}, \
	{"price-scale", 0, "X", "divide prices by X (10000 for files in hundredths of a cent)"}, \
	{"decimal", 0, "WHICH", "decimal point: auto, point or comma"}, \
	{"symbol", 0, "NAME", "only rows with this symbol"}, \
	{"instrument-id", 0, "N", "DBN: only records of this instrument"}, \
	{"bar", 0, "LENGTH", "make longer bars: 5m, 1h, 1d (one a session)"}, \
	{"session", 0, "WHEN", "where a session begins, like \"17:00 America/Chicago\" (default: midnight)"}, \
	{"instrument", 0, "NAME", "ES, CL, fx, ...: its tick, and its session for --bar, where not given"}, \
	{"member", 0, "FILE", "file inside a zip archive"}, \
	{"on-bad-row", 0, "WHAT", "refuse (default), drop, or repair (widens high and low)"}, \
	{"on-duplicate", 0, "WHAT", "same time, other bar: refuse (default), first or last"}, \
	{"sort", 0, NULL, "put bars that are out of order in order"}, \
	{"progress", 0, NULL, "say every second how far it is, also where stderr is no terminal"}

int dataset_import_options(const struct ctx *c, struct import_options *o, struct fh_status *st);
/* The progress line of a command with those options, shown at once where it can be seen (or --progress). */
void dataset_progress(const struct ctx *c, struct progress *bar);
/* import_options.progress with a struct progress as its argument. */
int dataset_import_progress(void *arg, uint64_t read, uint64_t bytes, int64_t bars);
/* One of a few words (NULL at the end), its number in *out; absent: *out stays. FH_INVALID names the option. */
int dataset_word(const struct ctx *c, const char *name, const char *const *word, int *out, struct fh_status *st);
#define DATASET_SOURCE_SIZE 256
/* Where bars come from, as the set keeps it: the file's name without its folders, and the member. */
void dataset_source(const char *path, const struct import_options *o, char source[DATASET_SOURCE_SIZE]);
/* The end of a command that made or changed a set: takes the progress line away, prints the set of the answer (released) or the failure. */
int dataset_end(struct ctx *c, struct progress *bar, int rc, struct fh_answer *a, const struct fh_status *st);

#endif
