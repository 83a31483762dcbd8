/* A time zone of the system's database (TZif files): local times to UTC, right at the changes of daylight saving time.
 * Read only after zone_open(); any thread. */
#ifndef FH_IMPORT_ZONE_H
#define FH_IMPORT_ZONE_H

#include <stdint.h>

struct fh_status;
struct zone;

enum zone_result {
	ZONE_OK = 0,
	ZONE_GAP,       /* the clock jumped over this time */
	ZONE_AMBIGUOUS  /* the clock showed it twice */
};
enum zone_fold { ZONE_REFUSE, ZONE_FIRST, ZONE_SECOND };

/* "Europe/Berlin", "UTC". FH_NOT_FOUND, FH_INVALID (no zone name), FH_CORRUPT, FH_IO. */
int zone_open(const char *name, struct zone **out, struct fh_status *st);
/* local_ns: the wall clock read as if it were UTC. */
enum zone_result zone_utc(const struct zone *z, int64_t local_ns, enum zone_fold fold, int64_t *utc_ns);
void zone_close(struct zone *z); /* NULL is fine */

#endif
