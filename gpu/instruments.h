/* Presets of well-known instruments: what `instrument: ES` in a job file, `--instrument ES` of start, spec and the imports stand for,
 * and what `fhctl instruments` prints. Pure data, any thread.
 *
 * Every number, its source, and how the estimates among them (fee, half_spread) were made: INSTRUMENTS.md beside. */
#ifndef FH_GPU_INSTRUMENTS_H
#define FH_GPU_INSTRUMENTS_H

#include "gpu/spec.h"

struct instrument {
	const char *name, *what, *currency;
	double tick, multiplier;   /* price, money per point and contract */
	double half_spread, fee;   /* price, money per contract and side */
	double lot;                /* smallest quantity */
	const char *session;       /* begin of the session: --session of an import */
	const char *hours;         /* when it trades, for people: holidays are not in it */
};

/* NULL: there is none. Letter case counts as little as it does in `es`. */
const struct instrument *instrument_find(const char *name);
const struct instrument *instrument_at(int i); /* NULL at the end */
/* "ES, NQ, …", for the refusal of an unknown name. */
void instrument_names(char *list, size_t size);
/* env.tick, multiplier, half_spread, fee and lot of it. */
void instrument_apply(const struct instrument *i, struct fh_spec *spec);

#endif
