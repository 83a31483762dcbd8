/* A synthetic market for tests: the caller owns the reference. */
#ifndef FH_TESTS_MARKET_H
#define FH_TESTS_MARKET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "gpu/market.h"
#include "gpu/synth.h"
#include "proto/status.h"

static inline struct market *test_market(enum synth_kind kind, int64_t bars, uint64_t seed, double tick)
{
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = NULL;
	struct synth s;
	int64_t *ts = malloc((size_t)bars * 8);
	double *v = malloc((size_t)bars * 5 * 8);

	assert_true(ts && v);
	synth_init(&s, kind, bars, seed);
	struct market_bars view = {bars, ts, v, v + bars, v + 2 * bars, v + 3 * bars, v + 4 * bars};
	if (synth_bars(&s, ts, v, v + bars, v + 2 * bars, v + 3 * bars, v + 4 * bars, &st) || market_build(&view, tick, &m, &st))
		fail_msg("%s", st.text);
	free(ts);
	free(v);
	return m;
}

#endif
