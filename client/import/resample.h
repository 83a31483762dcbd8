/* Bars to longer bars, aligned with the trading session. One thread owns the bars.
 *
 * A session begins every day at one time of one place's clock (24 hours apart but for changes of daylight saving time).
 * Long bars are counted from its begin and end with it: `1h` from 09:30 is 09:30, 10:30, … and 1d is the whole session. A long
 * bar has the open of its first, the close of its last, the extremes and the summed volume of its bars and is stamped with the time it
 * begins; one without bars is left out. A change of the contract ends a long bar, and the next one begins with the first bar of the new
 * contract. */
#ifndef FH_IMPORT_RESAMPLE_H
#define FH_IMPORT_RESAMPLE_H

#include "client/import/bars.h"
#include "client/import/zone.h"

struct resample {
	int64_t bar_ns;       /* 0: nothing to do; a day: one bar a session */
	int64_t start_ns;     /* of the session, from midnight */
	struct zone *zone;    /* of that clock, owned; NULL: UTC */
};

/* `bar`: "30s", "5m", "1h", "1d". `session`: "17:00", "17:00 America/Chicago", NULL: midnight; without a zone there, `tz`, NULL:
 * UTC. FH_INVALID names --bar or --session; what zone_open() says. */
int resample_parse(const char *bar, const char *session, const char *tz, struct resample *out, struct fh_status *st);
/* In place. FH_INVALID: the bars are not shorter than those asked for. */
int resample_bars(const struct resample *r, struct bars *b, struct fh_status *st);
void resample_release(struct resample *r);

#endif
