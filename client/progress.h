/* A line on stderr that tells how far something is: redrawn on a terminal, one line every few seconds otherwise. */
#ifndef FH_CLIENT_PROGRESS_H
#define FH_CLIENT_PROGRESS_H

#include <stdint.h>

struct progress {
	int tty, quiet, drawn;
	int64_t last_ns;      /* of the last line, CLOCK_MONOTONIC */
	int64_t plain_ns;     /* distance of plain lines */
};

void progress_init(struct progress *p, int quiet);
/* Whether an update without `force` would be drawn now. */
int progress_due(const struct progress *p);
/* fraction 0..1 or negative when unknown; text follows the bar. Redraws at most ten times a second unless `force`. */
void progress_update(struct progress *p, double fraction, int force, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Removes the bar, so that a line can be printed; the next update draws it again. */
void progress_clear(struct progress *p);
void progress_end(struct progress *p); /* leaves the last bar standing and goes to a new line */

#endif
