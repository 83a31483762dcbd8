/* The bars of a registered data set, from the daemon. One thread. */
#ifndef FH_CLIENT_FETCH_H
#define FH_CLIENT_FETCH_H

#include "client/cmd.h"
#include "client/import/bars.h"
#include "client/progress.h"

struct fetched {
	char name[FH_NAME_MAX], hash[65];
	int64_t bars, last_ts;     /* of the whole set */
	double tick;
	int has_volume;
	int64_t *roll, rolls;      /* first bars of another contract, of the whole set; owned */
	struct bars part;          /* those that were asked for; its names are those of all contracts in order, or none */
};

/* What the daemon says of it, no bars. */
int fetch_info(struct ctx *c, const char *name, struct fetched *f, struct fh_status *st);
/* All bars, checked against the set's hash. FH_CONFLICT: it changed meanwhile. FH_INTERRUPTED. */
int fetch_bars(struct ctx *c, const char *name, struct progress *bar, struct fetched *f, struct fh_status *st);
/* The bars from the time `from` on only (after fetch_info()). */
int fetch_tail(struct ctx *c, struct fetched *f, int64_t from, struct fh_status *st);
void fetch_release(struct fetched *f);

#endif
