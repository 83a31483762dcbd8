/* The greedy policy over a split (gpu/MATH.md, section 8, "Validation"), the report and the trace; and single decisions.
 *
 * A struct policy is a copy of one network and runs on the host in the precision of the run that made it (bf16 and tf32
 * are emulated by rounding the GEMM inputs). It is independent of any trainer: any one thread may use it. */
#ifndef FH_GPU_EVALUATE_H
#define FH_GPU_EVALUATE_H

#include <stddef.h>
#include <stdint.h>
#include "gpu/act.h"
#include "gpu/env.h"
#include "gpu/market.h"
#include "gpu/spec.h"

struct fh_status;
struct policy;

/* From a checkpoint file: its spec (into *spec when not NULL), market hash (hash[65] when not NULL) and the parameters of one
 * trial (0 when there is no population). FH_INVALID (field "trial"): the job has no such trial. FH_CORRUPT, FH_EXHAUSTED, and whatever
 * opening the file says. */
int policy_load(const char *path, enum fh_policy which, int trial, struct policy **out, struct fh_spec *spec, char *hash,
		struct fh_status *st);
/* From flat F32 parameters in the order of gpu/MATH.md, section 1, padded (copied). state_dim = inputs of the network. */
int policy_new(const struct fh_spec *spec, int state_dim, const float *param, struct policy **out, struct fh_status *st);
void policy_set(struct policy *p, const float *param); /* new parameters, same shape */
void policy_free(struct policy *p);
int policy_state_dim(const struct policy *p);
int policy_branches(const struct policy *p, int actions[FH_BRANCH_MAX]);
#define POLICY_ROWS 32 /* states at once that a policy computes at full speed */
#define POLICY_FEW 6   /* so many take less than twice as long as one */
/* A state's numbers do not depend on the other states, bit for bit. states [n, SD] -> greedy actions [n, D], Q [n, sum A_d] (either may be NULL). Lowest index on a tie. */
void policy_act(struct policy *p, const float *states, int n, int32_t *action, float *q);

/* The report of section 8; of several windows as section 8, "Windows", adds them up. */
struct eval_report {
	double pnl, ret, bars_per_year, sharpe, sortino, max_drawdown, trades, closed, win_rate, turnover, exposure;
	int64_t bars;      /* steps taken */
	int ruined;        /* windows that ended in ruin */
	unsigned notes;    /* EVAL_NOTE_* */
};
enum { EVAL_NOTE_NO_DEVIATION = 1, EVAL_NOTE_FEW_BARS = 2, EVAL_NOTE_NO_TIME = 4, EVAL_NOTE_NO_DOWNSIDE = 8 };

/* One row per bar, for --trace and plots. */
struct eval_row {
	int64_t ts;               /* of bar t+1, where things happened */
	int32_t bar;              /* t+1 */
	int32_t action[FH_BRANCH_MAX];
	double fill, fill_price, fee; /* fee: money of this bar, exit included */
	int32_t exit;             /* enum env_exit */
	double exit_fill, exit_price;
	double q, cash, equity, reward;
	double roll, roll_out, roll_in; /* contracts carried into another contract, and the two prices */
};

/* equity [n+1], q [n], fills (quantity, price) [nf] in order, ts [T] of the episode's bars to the split's end. */
void eval_metrics(const double *equity, const double *q, int64_t n, const double (*fill)[2], int64_t nf,
		  const int64_t *ts, int64_t T, const struct env_config *cfg, struct eval_report *out);
/* Of several episodes in the order of time. */
struct eval_curve { const double *equity, *q; int64_t n; const double (*fill)[2]; int64_t fills; };
void eval_metrics_over(const struct eval_curve *curve, int curves, const int64_t *ts, int64_t T, const struct env_config *cfg,
		       struct eval_report *out);

/* The environment's numbers out of a specification; reward_scale resolved by the caller (market_auto_reward_scale). */
void eval_env_config(const struct fh_spec *spec, double reward_scale, struct env_config *out);
/* Moves barriers and horizon out of reach: for buy-and-hold as an investor means it, bought once and never closed by
 * the environment (which would buy again a bar later and pay twice). */
void eval_hold_config(struct env_config *cfg);

/* Where actions come from. NULL policy: `script` is called instead (benchmarks, tests): fills action[] for bar t. */
typedef void (*eval_script)(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action);

/* Who acts, many rows of several trials at once: row i is the market features of bar[i] and portfolio[i]; its actions go to
 * action[i] [branches]. A row's actions must not depend on the other rows. */
struct eval_actor {
	int (*act)(void *ctx, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio /* [rows, 8] */,
		   int32_t *action, struct fh_status *st);
	void *ctx;
	struct act_limits can;
};

#define EVAL_WINDOWS_MAX 1024
#define EVAL_EPISODES_MAX 4096 /* windows of all trials */
#define EVAL_BAR_BYTES 48      /* what an evaluation keeps of a bar of a trial, without trace and guesses */
#define EVAL_GUESS_SIDES 5
#define EVAL_GUESS_NONE 0xff

/* Memory of an evaluation for the next one, so that it need not come from the system again page by page. The caller's: zero at first,
 * eval_room_free() at last; one evaluation at a time is in it. */
struct eval_room { void *memory; size_t bytes; int64_t first, walked; }; /* and the walk of the last one: so many bars from `first` on */
void eval_room_free(struct eval_room *r);

struct evaluation;
struct eval_setup {
	const struct eval_actor *actor; /* one of the three; copied */
	struct policy *policy;          /* the caller's; it must outlive the evaluation */
	eval_script script;
	void *ctx;                      /* of the script */
	struct market *market;          /* a reference is taken */
	const struct env_config *config;
	struct fh_split split;
	int windows;                    /* episodes side by side, 0 is 1: the split's steps in equal parts */
	int trials;                     /* networks side by side, 0 is 1: each plays all windows. Of one alone each has the same bits */
	int trace;
	uint8_t *guess;                 /* [trials, split.end - split.begin, EVAL_GUESS_SIDES] what the actor said last time, and after this time what it said
					 * now: speeds up, decides nothing. The caller's, full of EVAL_GUESS_NONE at first; NULL: none */
	float *seen;                    /* [trials, split.end - split.begin, 8] what it was asked with, kept and used in the same way; with guess, of one
					 * trial. NaN where it was not asked yet; NULL: none */
	struct eval_room *room;         /* NULL: memory of its own */
};
/* The steps of a split from max(begin, 144) on. FH_INVALID: the split is too short for so many windows, they are too many for so
 * many trials, or the policy is not for this state and these actions. FH_EXHAUSTED. */
int evaluation_make(const struct eval_setup *setup, struct evaluation **out, struct fh_status *st);
/* The same for one episode of a policy, or of a script where it is NULL. */
int evaluation_new(struct policy *p, eval_script script, void *ctx, struct market *m, const struct env_config *cfg,
		   struct fh_split split, int trace, struct evaluation **out, struct fh_status *st);
/* Works for about budget_ns (at least one bar, or one call of the actor that makes better guesses); 1 when all is over, 0 when not, else the code of an actor that failed (*st may be
 * NULL). Which slices it was cut into changes no bit. */
int evaluation_run(struct evaluation *e, int64_t budget_ns);
int evaluation_run_on(struct evaluation *e, int64_t budget_ns, struct fh_status *st);
/* Of the bars so far: all windows, or one; of the first trial, or of each. */
void evaluation_report(const struct evaluation *e, struct eval_report *out);
void evaluation_trial_report(const struct evaluation *e, int trial, struct eval_report *out);
int evaluation_windows(const struct evaluation *e);
void evaluation_window_report(const struct evaluation *e, int window, struct eval_report *out);
/* The bars of a window: its steps lead from begin to end - 1. */
struct fh_split evaluation_window(const struct evaluation *e, int window);
/* The rows ([*n], owned by e) when made with trace, windows after each other; once it is over. Of the first trial, or of each. */
const struct eval_row *evaluation_trace(struct evaluation *e, int64_t *n);
const struct eval_row *evaluation_trial_trace(struct evaluation *e, int trial, int64_t *n);
int64_t evaluation_done_bars(const struct evaluation *e);
/* What it took so far: calls of the actor and rows asked in them (0 for a script). */
void evaluation_effort(const struct evaluation *e, int64_t *calls, int64_t *rows);
void evaluation_free(struct evaluation *e);

/* Scripts shipped for comparison. ctx unused. */
void eval_buy_and_hold(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action);
void eval_never_trade(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action);
void eval_last_sign(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action); /* hold sign(last return), full size, market, aggressive */

#endif
