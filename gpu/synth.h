/* Synthetic markets with known structure, for tests and first trials. Pure functions of their parameters, the same
 * bits on every machine; any thread.
 *
 * All kinds: bar t + 1 opens at the close of bar t; the first opens at `start`. `sigma` is the standard deviation of a
 * bar's log return over the long run, whatever the kind. Inside a bar the price follows a Brownian bridge from open to
 * close, and high and low are drawn from its exact distribution: a stop, a profit barrier or a limit order is then as
 * good as the price path it stands for, never better.
 *   momentum  r_t = phi r_{t-1} + e_t, e normal with standard deviation sigma sqrt(1 - phi^2)
 *   regime    one of three hidden states, changing with probability 1/250 a bar to one of the other two:
 *             rising and quiet, flat, falling and wild (drift +0.15, 0, -0.15 and deviation 0.6, 1, 1.5 before scaling)
 *   walk      independent returns with no drift: the price is a martingale, so no rule has an expected profit */
#ifndef FH_GPU_SYNTH_H
#define FH_GPU_SYNTH_H

#include <stdint.h>

struct fh_status;

enum synth_kind { SYNTH_MOMENTUM = 1, SYNTH_REGIME, SYNTH_WALK };

#define SYNTH_SIGMA_DEFAULT 1e-3
#define SYNTH_PHI_DEFAULT 0.3
#define SYNTH_START_DEFAULT 100.0
#define SYNTH_BAR_NS_DEFAULT INT64_C(60000000000)
#define SYNTH_FIRST_TS INT64_C(1704067200000000000) /* 2024-01-01T00:00:00Z, time of the first bar */

struct synth {
	enum synth_kind kind;
	int64_t bars;
	uint64_t seed;
	double phi;      /* momentum only; |phi| < 1 */
	double sigma;    /* (0, 0.2] */
	double start;    /* price before the first bar, [1e-6, 1e9] */
	int64_t bar_ns;  /* time from bar to bar, >= 1 */
};

/* "momentum", "regime", "walk" -> kind; 0 when unknown. */
enum synth_kind synth_kind_find(const char *name);
const char *synth_kind_name(enum synth_kind kind);
/* Kind, bars and seed as given, the rest at its default. */
void synth_init(struct synth *s, enum synth_kind kind, int64_t bars, uint64_t seed);
/* Fills arrays [bars] of the caller. FH_INVALID names the parameter at fault (kind, bars, phi, sigma, start, bar_ns);
 * also when the price would leave what a market accepts (sigma, with the bar). */
int synth_bars(const struct synth *s, int64_t *ts, double *open, double *high, double *low, double *close,
	       double *volume, struct fh_status *st);

#endif
