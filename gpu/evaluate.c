/* A validation episode in slices, its trace, and the scripts it can be compared with.
 *
 * Owns struct evaluation: a reference of the market, the curve and the fills. One thread at a time. Invariant: after k
 * bars equity[0..k], q[0..k) and fill[0..fills) describe exactly those bars, and nothing of a bar beyond the next one
 * has been read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/evaluate.h"
#include "proto/status.h"

#define CLOCK_EVERY 16 /* bars between two looks at the clock */
#define BRANCHES 3
#define EXPOSURES 5    /* action counts of the environment's branches */
#define ORDERS 3
#define URGENCIES 3

struct evaluation {
	struct policy *policy; /* borrowed; NULL: script */
	eval_script script;
	void *ctx;
	struct market *m;
	struct env_config cfg;
	struct env_state state;
	int64_t first, end;    /* bars [first, end) */
	int64_t n, fills;      /* bars done, entries of fill */
	int over;
	double *equity, *q;
	double (*fill)[2];
	struct eval_row *row;  /* NULL without trace */
};

/* ---------------------------------------------------------------- configuration */

void eval_env_config(const struct fh_spec *spec, double reward_scale, struct env_config *out)
{
	memset(out, 0, sizeof(*out)); /* it is stored and compared as bytes: no stray padding */
	out->tick = spec->env.tick;
	out->multiplier = spec->env.multiplier;
	out->half_spread = spec->env.half_spread;
	out->fee = spec->env.fee;
	out->max_position = spec->env.max_position;
	out->lot = spec->env.lot;
	out->initial_cash = spec->env.initial_cash;
	out->reward_scale = reward_scale;
	out->pt = spec->env.pt;
	out->sl = spec->env.sl;
	out->ruin_fraction = spec->env.ruin_fraction;
	out->episode_length = (int32_t)spec->env.episode_length;
	out->horizon = (int32_t)spec->env.horizon;
	out->max_gap = spec->env.max_gap;
	out->roll_on = spec->env.roll_on_symbol_change == FH_ROLL_YES;
}

void eval_hold_config(struct env_config *cfg)
{
	cfg->pt = cfg->sl = 1e12;
	cfg->horizon = INT32_MAX;
}

/* ---------------------------------------------------------------- life */

static int check_policy(struct policy *p, struct fh_status *st)
{
	int actions[FH_BRANCH_MAX] = {0};

	if (policy_state_dim(p) != FH_STATE_DIM)
		return fh_fail(st, FH_INVALID, "the policy has %d inputs, a state has %d numbers", policy_state_dim(p), FH_STATE_DIM);
	if (policy_branches(p, actions) != BRANCHES || actions[0] != EXPOSURES || actions[1] != ORDERS || actions[2] != URGENCIES)
		return fh_fail(st, FH_INVALID, "the policy is not for this environment's actions (5, 3, 3)");
	return 0;
}

int evaluation_new(struct policy *p, eval_script script, void *ctx, struct market *m, const struct env_config *cfg,
		   struct fh_split split, int trace, struct evaluation **out, struct fh_status *st)
{
	int64_t first = split.begin > MARKET_WARMUP ? split.begin : MARKET_WARMUP, n = split.end - first - 1;
	struct evaluation *e;
	int rc = p ? check_policy(p, st) : 0;

	if (rc)
		return rc;
	if (split.begin < 0 || split.end > m->bars || n < 1)
		return fh_fail(st, FH_INVALID, "the split [%lld, %lld) of %lld bars leaves no step after the first %d",
			       (long long)split.begin, (long long)split.end, (long long)m->bars, MARKET_WARMUP);
	e = calloc(1, sizeof(*e));
	if (!e)
		return fh_fail(st, FH_EXHAUSTED, "out of memory");
	*e = (struct evaluation){.policy = p, .script = script, .ctx = ctx, .m = market_ref(m), .cfg = *cfg, .first = first,
				 .end = split.end};
	e->equity = malloc(sizeof(double) * (size_t)(n + 1));
	e->q = malloc(sizeof(double) * (size_t)n);
	e->fill = malloc(sizeof(*e->fill) * (2 * (size_t)n + 2 * (size_t)m->rolls)); /* an order and an exit a bar; untouched pages cost nothing */
	e->row = trace ? malloc(sizeof(*e->row) * (size_t)n) : NULL;
	if (!e->equity || !e->q || !e->fill || (trace && !e->row)) {
		evaluation_free(e);
		return fh_fail(st, FH_EXHAUSTED, "no memory for an evaluation over %lld bars", (long long)n);
	}
	env_start(&e->state, &e->cfg, (int32_t)first);
	e->equity[0] = e->state.equity;
	*out = e;
	return 0;
}

void evaluation_free(struct evaluation *e)
{
	if (!e)
		return;
	market_unref(e->m);
	free(e->equity);
	free(e->q);
	free(e->fill);
	free(e->row);
	free(e);
}

/* ---------------------------------------------------------------- one bar */

static void choose(struct evaluation *e, int32_t action[FH_BRANCH_MAX])
{
	int64_t t = e->state.t;
	float state[FH_STATE_DIM];

	if (!e->policy) {
		e->script(e->ctx, e->m, t, &e->state, action);
		return;
	}
	memcpy(state, e->m->feature + t * FH_MARKET_FEATURES, FH_MARKET_FEATURES * sizeof(float));
	env_features(&e->state, &e->cfg, e->m->close[t], e->m->sigma[t], (int32_t)(e->end - 1 - t), state + FH_MARKET_FEATURES);
	policy_act(e->policy, state, 1, action, NULL);
}

static void record_fill(struct evaluation *e, double quantity, double price)
{
	if (quantity == 0.0)
		return;
	e->fill[e->fills][0] = quantity;
	e->fill[e->fills++][1] = price;
}

static void record_row(struct evaluation *e, const int32_t *action, const struct env_result *r)
{
	const struct env_state *s = &e->state;
	struct eval_row *row = &e->row[e->n];

	*row = (struct eval_row){
		.ts = e->m->ts[s->t], .bar = s->t, .fill = r->fill, .fill_price = r->fill_price,
		.fee = (fabs(r->fill) + fabs(r->exit_fill) + 2.0 * fabs(r->roll)) * e->cfg.fee, .exit = r->exit, .exit_fill = r->exit_fill,
		.exit_price = r->exit_price, .q = s->q, .cash = s->cash, .equity = s->equity, .reward = r->reward,
		.roll = r->roll, .roll_out = r->roll_out, .roll_in = r->roll_in,
	};
	memcpy(row->action, action, sizeof(row->action));
}

static void step(struct evaluation *e)
{
	const struct market *m = e->m;
	int64_t t = e->state.t;
	struct env_bar next = {m->open[t + 1], m->high[t + 1], m->low[t + 1], m->close[t + 1]};
	int32_t action[FH_BRANCH_MAX] = {0};
	struct env_result r;

	choose(e, action);
	env_step_over(&e->state, &e->cfg, action, m->close[t], &next, m->sigma[t], (int32_t)(e->end - 1), 0,
		      env_over(&e->cfg, m->ts[t], m->ts[t + 1], m->rolled && m->rolled[t + 1]), &r);
	record_fill(e, -r.roll, r.roll_out);
	record_fill(e, r.roll, r.roll_in);
	record_fill(e, r.fill, r.fill_price);
	record_fill(e, r.exit_fill, r.exit_price);
	if (e->row)
		record_row(e, action, &r);
	e->q[e->n++] = e->state.q;
	e->equity[e->n] = e->state.equity;
	e->over = r.terminated || r.truncated;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int evaluation_run(struct evaluation *e, int64_t budget_ns)
{
	int64_t start = now_ns();

	for (int k = 1; !e->over; k++) {
		step(e);
		if (k % CLOCK_EVERY == 0 && now_ns() - start >= budget_ns)
			break;
	}
	return e->over;
}

/* ---------------------------------------------------------------- results */

void evaluation_report(const struct evaluation *e, struct eval_report *out)
{
	eval_metrics(e->equity, e->q, e->n, (const double (*)[2])e->fill, e->fills, e->m->ts + e->first, e->end - e->first,
		     &e->cfg, out);
}

const struct eval_row *evaluation_trace(const struct evaluation *e, int64_t *n)
{
	*n = e->row ? e->n : 0;
	return e->row;
}

int64_t evaluation_done_bars(const struct evaluation *e)
{
	return e->n;
}

/* ---------------------------------------------------------------- scripts */

static void full_size(int32_t *action, int exposure)
{
	action[0] = exposure;
	action[1] = ENV_MARKET;
	action[2] = URGENCIES - 1;
}

void eval_buy_and_hold(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	full_size(action, EXPOSURES - 1);
}

void eval_never_trade(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	full_size(action, EXPOSURES / 2);
}

void eval_last_sign(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	double change = t ? m->close[t] - m->close[t - 1] : 0.0;

	full_size(action, EXPOSURES / 2 + (EXPOSURES / 2) * ((change > 0.0) - (change < 0.0)));
}
