/* The portfolio environment of design section 8, one definition for host and device.
 *
 * Pure functions on one environment; F64 for money, position and barriers. No contraction may change a fill, exit or
 * flag: host code is compiled with -ffp-contract=off, device code with --fmad=false for the file that includes this. */
#ifndef FH_GPU_ENV_H
#define FH_GPU_ENV_H

#include <stdint.h>
#include "gpu/hd.h"

enum env_order { ENV_MARKET, ENV_LIMIT, ENV_IOC };
enum env_exit { ENV_EXIT_NONE, ENV_EXIT_STOP, ENV_EXIT_STOP_OPEN, ENV_EXIT_PROFIT, ENV_EXIT_HORIZON };

struct env_config {
	double tick, multiplier, half_spread, fee, max_position, lot, initial_cash, reward_scale, pt, sl, ruin_fraction;
	int32_t episode_length, horizon;
};

struct env_state {
	double cash, equity, peak, q, entry, entry_sigma; /* money, money, money, contracts, price, 1 */
	int32_t t, entry_bar, steps;
};

struct env_bar { double open, high, low, close; };

struct env_result { /* of one step */
	double fill, fill_price, exit_fill, exit_price, reward;
	int32_t exit;       /* enum env_exit */
	int32_t terminated, truncated;
};

#endif
