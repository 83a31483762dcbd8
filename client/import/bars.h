/* Bars as they come out of a reader: order, duplicates, impossible bars. One thread owns a struct bars. */
#ifndef FH_IMPORT_BARS_H
#define FH_IMPORT_BARS_H

#include <stdint.h>
#include "gpu/market.h"

struct fh_status;

#define BARS_MAX INT64_C(50000000) /* the daemon takes no more either */
#define CONTRACTS_MAX 8192         /* different ones in one file */
#define CONTRACT_NAME_MAX 64

enum on_bad_row { BAD_ROW_REFUSE, BAD_ROW_DROP, BAD_ROW_REPAIR };
enum on_duplicate { DUPLICATE_REFUSE, DUPLICATE_FIRST, DUPLICATE_LAST };

struct bar { int64_t ts, line; double open, high, low, close, volume; };

struct bars {
	enum on_bad_row on_bad_row;
	enum on_duplicate on_duplicate;
	int sort;
	int64_t count, cap;
	int64_t *ts, *line;      /* line: only with sort */
	double *value[5];        /* open, high, low, close, volume */
	int32_t contract;        /* of the bars that are added from now on: a place in `name` where there are names, else any number */
	int32_t *contract_of;    /* of each bar; NULL: all of one */
	int32_t first_contract;  /* private to bars.c */
	char (*name)[CONTRACT_NAME_MAX]; /* of contracts; NULL: they have none */
	int32_t names, names_cap;
	int seam;                /* the first bar is of another contract than the bars that these go behind */
	int64_t first_line, last_line, newest;
	uint64_t repeats, conflicts, repaired, moved; /* exact repeats dropped, conflicting ones resolved, bars widened, out of order */
};

void bars_init(struct bars *b);
/* high >= max(open, close), low <= min(open, close), volume >= 0; widens with BAD_ROW_REPAIR. FH_INVALID names the line. */
int bar_check(struct bars *b, struct bar *bar, struct fh_status *st);
/* FH_INVALID: before the last one (without sort), the same time with other values. FH_EXHAUSTED. */
int bars_add(struct bars *b, const struct bar *bar, struct fh_status *st);
/* Room for `n` more bars: they may be written to ts[count…) and value[…][count…) and counted by bars_took(), in order of time and
 * checked already, of the contract of the last one; not with sort. FH_EXHAUSTED. */
int bars_room(struct bars *b, int64_t n, struct fh_status *st);
void bars_took(struct bars *b, int64_t n, int64_t last_line);
/* Sorts and resolves duplicates where asked. After it `ts` is strictly increasing, and the difference of any two of them, and a few days more,
 * stay in 64 bits. FH_INVALID names the line of a time outside the years 1824 to 2116. */
int bars_finish(struct bars *b, struct fh_status *st);
struct market_bars bars_view(const struct bars *b);
/* The bars that are added from now on are of the contract with this name. FH_INVALID: too many, FH_EXHAUSTED. */
int bars_contract(struct bars *b, const char *name, struct fh_status *st);
/* The name of a bar's contract, "" when it has none. */
const char *bars_contract_name(const struct bars *b, int64_t bar);
/* First bars of another contract than the bar before: *roll is an array for the caller to free, NULL when there are none. FH_EXHAUSTED. */
int bars_rolls(const struct bars *b, int64_t **roll, int64_t *rolls, struct fh_status *st);
void bars_release(struct bars *b);

#endif
