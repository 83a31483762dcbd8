/* Presets of well-known instruments (instruments.h). Pure data, any thread. INSTRUMENTS.md has the source of every number; the test
 * of this file compares the two. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "gpu/instruments.h"

#define CHICAGO "17:00 America/Chicago", "Sunday to Friday 17:00-16:00 America/Chicago"
/* 01:10 in winter and 02:10 in summer on Frankfurt's clock: one time of UTC all year. */
#define FRANKFURT "00:10 UTC", "Monday to Friday 01:10 (summer 02:10)-22:00 Europe/Berlin"
#define CONTINUOUS "17:00 America/Chicago", "all week but a weekend pause; until 2026-05-29 Sunday to Friday 17:00-16:00 America/Chicago"

static const struct instrument table[] = {
	/* name, what, currency, tick, multiplier, half_spread, fee, lot, session, hours */
	{"ES", "E-mini S&P 500, CME", "USD", 0.25, 50, 0.125, 2.25, 1, CHICAGO},
	{"NQ", "E-mini Nasdaq-100, CME", "USD", 0.25, 20, 0.375, 2.25, 1, CHICAGO},
	{"RTY", "E-mini Russell 2000, CME", "USD", 0.1, 50, 0.1, 2.25, 1, CHICAGO},
	{"YM", "E-mini Dow, CBOT", "USD", 1, 5, 1, 2.25, 1, CHICAGO},
	{"CL", "WTI crude oil, NYMEX, 1,000 barrels", "USD", 0.01, 1000, 0.01, 2.37, 1, CHICAGO},
	{"GC", "gold, COMEX, 100 ounces", "USD", 0.1, 100, 0.05, 2.47, 1, CHICAGO},
	{"SI", "silver, COMEX, 5,000 ounces", "USD", 0.005, 5000, 0.005, 2.47, 1, CHICAGO},
	{"ZN", "10-year Treasury note, CBOT, half 32nds", "USD", 0.015625, 1000, 0.0078125, 1.67, 1, CHICAGO},
	{"ZB", "Treasury bond, CBOT, 32nds", "USD", 0.03125, 1000, 0.015625, 1.74, 1, CHICAGO},
	{"6E", "Euro FX, CME, 125,000 EUR", "USD", 0.00005, 125000, 0.000025, 2.47, 1, CHICAGO},
	{"6J", "Japanese yen, CME, 12,500,000 JPY", "USD", 0.0000005, 12500000, 0.00000025, 2.47, 1, CHICAGO},
	{"FESX", "Euro Stoxx 50, Eurex", "EUR", 1, 10, 0.5, 1.25, 1, FRANKFURT},
	{"FDAX", "DAX, Eurex", "EUR", 1, 25, 1.5, 2.05, 1, FRANKFURT},
	{"BTC", "bitcoin, CME, 5 coins", "USD", 5, 5, 10, 6.87, 1, CONTINUOUS},
	{"fx", "spot currencies, lots of 100,000", "quote", 0.00001, 100000, 0.00001, 3.5, 0.01, "17:00 America/New_York",
	 "Sunday 17:00 to Friday 17:00 America/New_York"},
	{"equity", "US shares", "USD", 0.01, 1, 0.005, 0.005, 1, "09:30 America/New_York", "Monday to Friday 09:30-16:00 America/New_York"},
	{"crypto", "spot coins near 60,000", "USD", 0.01, 1, 9, 60, 0, "00:00 UTC", "all week"},
};
#define INSTRUMENTS ((int)(sizeof table / sizeof *table))

const struct instrument *instrument_at(int i)
{
	return i >= 0 && i < INSTRUMENTS ? &table[i] : NULL;
}

const struct instrument *instrument_find(const char *name)
{
	for (int i = 0; i < INSTRUMENTS; i++)
		if (!strcasecmp(table[i].name, name))
			return &table[i];
	return NULL;
}

void instrument_names(char *list, size_t size)
{
	size_t used = 0;

	list[0] = '\0';
	for (int i = 0; i < INSTRUMENTS && used < size; i++)
		used += (size_t)snprintf(list + used, size - used, "%s%s", i ? ", " : "", table[i].name);
}

void instrument_apply(const struct instrument *i, struct fh_spec *spec)
{
	spec->env.tick = i->tick;
	spec->env.multiplier = i->multiplier;
	spec->env.half_spread = i->half_spread;
	spec->env.fee = i->fee;
	spec->env.lot = i->lot;
}
