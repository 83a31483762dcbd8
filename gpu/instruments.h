/* Presets of well-known instruments: what `instrument: ES` in a job file and `--instrument ES` of an import stand for.
 * Pure data, any thread.
 *
 * Where the numbers come from (looked at in 2026; a contract's own page at its exchange is what counts):
 * - tick, multiplier and trading hours of ES, NQ, RTY, YM, CL, GC, SI, ZN, ZB, 6E, 6J, BTC: the contract specifications of CME Group,
 *   https://www.cmegroup.com/markets/ (one page a product, "Contract Specs"). CME Globex trades from 17:00 to 16:00 Chicago time, Sunday to
 *   Friday: the session of a day begins at 17:00 on the evening before.
 * - FESX: https://www.eurex.com/ex-en/markets/idx/stx/euro-stoxx-50-derivatives, FDAX: https://www.eurex.com/ex-en/markets/idx/dax
 *   (10 and 25 EUR a point, both in whole points), trading 01:10 to 22:00 Frankfurt time.
 * - fee: money for one contract and one side, all in: the exchange's and clearing fee for non-members
 *   (https://www.cmegroup.com/company/clearing-fees.html, https://www.eurex.com/ex-en/rules-regs/price-list) plus 0.87 (1.00 EUR) for
 *   a broker, as a small private customer pays. Yours is on your statements: set env.fee.
 * - half_spread: half a tick, as in the front month in the main hours, where one tick between bid and ask is usual; BTC has a wider
 *   one. At night, in back months and around news it is more: set env.half_spread.
 * - fx, equity and crypto are styles, not contracts: prices of about 1, 100 and 60,000, one unit of the base asset a lot (fx: one
 *   standard lot of 100,000). fee is money a unit: crypto's 30 is 5 basis points of 60,000; scale it with the price. */
#ifndef FH_GPU_INSTRUMENTS_H
#define FH_GPU_INSTRUMENTS_H

#include "gpu/spec.h"

struct instrument {
	const char *name, *what, *currency;
	double tick, multiplier;   /* price, money per point and contract */
	double half_spread, fee;   /* price, money per contract and side */
	double lot;                /* smallest quantity */
	const char *session;       /* begin of the session: --session of an import */
};

/* NULL: there is none. Letter case counts as little as it does in `es`. */
const struct instrument *instrument_find(const char *name);
const struct instrument *instrument_at(int i); /* NULL at the end */
/* The near match of an unknown name, and the list: "ES, NQ, …". */
void instrument_names(char *list, size_t size);
/* env.tick, multiplier, half_spread, fee and lot of it. */
void instrument_apply(const struct instrument *i, struct fh_spec *spec);

#endif
