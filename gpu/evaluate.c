/* Episodes over a split in slices, their trace, and the scripts they can be compared with.
 *
 * Owns struct evaluation: a reference of the market, curves and fills of every window, and what lies between a window and
 * who acts (episode.h). One thread at a time. Invariant: after k bars of a window equity[0..k], q[0..k) and fill[0..fills)
 * describe exactly those bars; nothing of a bar beyond the next one has gone into them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/episode.h"
#include "proto/status.h"

#define CLOCK_EVERY 16      /* bars of a script between two looks at the clock */

struct evaluation {
	struct eval_actor actor; /* act NULL: script */
	struct policy *policy;   /* borrowed, the actor's when one was given; NULL: another actor, or script */
	eval_script script;
	void *ctx;
	struct market *m;
	struct episode_world world;
	int64_t first, end;      /* bars [first, end) */
	struct episode *episode;
	int windows, over, turn; /* windows that are over; the one that looks ahead first next time */
	int64_t calls, asked;
	/* one call's rows; windows in `part` share them */
	struct look *look;
	int32_t *bar, *action;
	float *portfolio, *state;
	struct part { int window, rows; } *part;
	/* behind the episodes */
	double *equity, *q, (*fill)[2];
	struct eval_row *row;    /* NULL without trace */
	uint8_t *guess;          /* NULL: the caller's */
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
	if (policy_branches(p, actions) != EPISODE_BRANCHES || actions[0] != EPISODE_EXPOSURES || actions[1] != EPISODE_ORDERS ||
	    actions[2] != EPISODE_URGENCIES)
		return fh_fail(st, FH_INVALID, "the policy is not for this environment's actions (5, 3, 3)");
	return 0;
}

/* A policy as an actor. */
static int act_policy(void *ctx, int rows, const int32_t *bar, const float *portfolio, int32_t *action, struct fh_status *st)
{
	struct evaluation *e = ctx;

	(void)st;
	for (int i = 0; i < rows; i++) {
		float *state = e->state + (int64_t)i * FH_STATE_DIM;

		memcpy(state, e->m->feature + (int64_t)bar[i] * FH_MARKET_FEATURES, FH_MARKET_FEATURES * sizeof(float));
		memcpy(state + FH_MARKET_FEATURES, portfolio + (int64_t)i * FH_PORTFOLIO_FEATURES, FH_PORTFOLIO_FEATURES * sizeof(float));
	}
	policy_act(e->policy, e->state, rows, action, NULL);
	return 0;
}

static int allocate(struct evaluation *e, int64_t n, int trace, int own_guess)
{
	size_t rows = (size_t)e->actor.rows, bars = (size_t)n, windows = (size_t)e->windows;

	e->episode = calloc(windows, sizeof(*e->episode));
	e->part = malloc(windows * sizeof(*e->part));
	e->equity = malloc((bars + windows) * sizeof(*e->equity));
	e->q = malloc(bars * sizeof(*e->q));
	e->fill = malloc((2 * bars + 2 * (size_t)e->m->rolls) * sizeof(*e->fill)); /* untouched pages cost nothing */
	if (!e->episode || !e->part || !e->equity || !e->q || !e->fill)
		return -1;
	if (trace && !(e->row = malloc(bars * sizeof(*e->row))))
		return -1;
	if (!e->actor.act)
		return 0;
	e->look = malloc(rows * sizeof(*e->look));
	e->bar = malloc(rows * sizeof(*e->bar));
	e->action = malloc(rows * EPISODE_BRANCHES * sizeof(*e->action));
	e->portfolio = malloc(rows * FH_PORTFOLIO_FEATURES * sizeof(*e->portfolio));
	if (e->policy)
		e->state = malloc(rows * FH_STATE_DIM * sizeof(*e->state));
	if (own_guess && (e->guess = malloc(EVAL_GUESS_SIDES * bars)))
		memset(e->guess, EVAL_GUESS_NONE, EVAL_GUESS_SIDES * bars);
	return !e->look || !e->bar || !e->action || !e->portfolio || (e->policy && !e->state) || (own_guess && !e->guess) ? -1 : 0;
}

/* The split's steps in equal parts: a window ends at the bar where the next one begins, so no step is left out. */
static void open_windows(struct evaluation *e, int64_t n, uint8_t *guess)
{
	double (*fill)[2] = e->fill;
	int64_t from = 0;

	for (int w = 0; w < e->windows; w++) {
		int64_t to = n * (w + 1) / e->windows;
		struct episode *p = &e->episode[w];

		p->equity = e->equity + from + w;
		p->q = e->q + from;
		p->row = e->row ? e->row + from : NULL;
		p->guess = guess ? guess + EVAL_GUESS_SIDES * from : NULL;
		p->fill = fill;
		fill += 2 * (to - from);
		for (int64_t t = e->first + from + 1; e->m->rolled && t <= e->first + to; t++)
			fill += e->m->rolled[t] ? 2 : 0;
		episode_start(p, &e->world, e->first + from, e->first + to);
		from = to;
	}
}

int evaluation_make(const struct eval_setup *s, struct evaluation **out, struct fh_status *st)
{
	int64_t first = s->split.begin > MARKET_WARMUP ? s->split.begin : MARKET_WARMUP, n = s->split.end - first - 1;
	int windows = s->windows ? s->windows : 1, rc = s->policy ? check_policy(s->policy, st) : 0;
	struct evaluation *e;

	if (rc)
		return rc;
	if (s->split.begin < 0 || s->split.end > s->market->bars || n < 1)
		return fh_fail(st, FH_INVALID, "the split [%lld, %lld) of %lld bars leaves no step after the first %d",
			       (long long)s->split.begin, (long long)s->split.end, (long long)s->market->bars, MARKET_WARMUP);
	if (windows < 1 || windows > EVAL_WINDOWS_MAX || windows > n)
		return fh_fail_field(st, FH_INVALID, "windows", "%d windows over %lld steps: 1 to %d are possible, none shorter than a step",
				     windows, (long long)n, EVAL_WINDOWS_MAX);
	e = calloc(1, sizeof(*e));
	if (!e)
		return fh_fail(st, FH_EXHAUSTED, "out of memory");
	*e = (struct evaluation){.policy = s->policy, .script = s->script, .ctx = s->ctx, .m = market_ref(s->market),
				 .world = {s->market, *s->config}, .first = first, .end = s->split.end, .windows = windows};
	if (s->actor)
		e->actor = *s->actor;
	else if (s->policy)
		e->actor = (struct eval_actor){act_policy, e, POLICY_ROWS, POLICY_FEW};
	if (allocate(e, n, s->trace, !s->guess)) {
		evaluation_free(e);
		return fh_fail(st, FH_EXHAUSTED, "no memory for an evaluation over %lld bars", (long long)n);
	}
	open_windows(e, n, s->guess ? s->guess : e->guess);
	*out = e;
	return 0;
}

int evaluation_new(struct policy *p, eval_script script, void *ctx, struct market *m, const struct env_config *cfg,
		   struct fh_split split, int trace, struct evaluation **out, struct fh_status *st)
{
	const struct eval_setup s = {.policy = p, .script = script, .ctx = ctx, .market = m, .config = cfg, .split = split, .trace = trace};

	return evaluation_make(&s, out, st);
}

void evaluation_free(struct evaluation *e)
{
	if (!e)
		return;
	market_unref(e->m);
	free(e->episode);
	free(e->part);
	free(e->look);
	free(e->bar);
	free(e->action);
	free(e->portfolio);
	free(e->state);
	free(e->equity);
	free(e->q);
	free(e->fill);
	free(e->row);
	free(e->guess);
	free(e);
}

/* ---------------------------------------------------------------- working */

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How far a window looks ahead: as far as a call goes while guesses hold for longer than that, else no further than what
 * comes nearly free. What lies between never pays: rows behind a wrong guess are asked in vain. */
static int ahead(const struct evaluation *e, const struct episode *p)
{
	int64_t run = p->held > p->run ? p->held : p->run;

	return run >= 2 * e->actor.rows ? e->actor.rows : e->actor.few;
}

/* Rows of every window that looks ahead, one after another as far as a call goes. Each may have its share of a call, so that
 * all of them move on; returns the rows. */
static int look_ahead(struct evaluation *e, int *parts)
{
	int alive = e->windows - e->over, share = e->actor.rows / alive > 1 ? e->actor.rows / alive : 1, rows = 0, w = e->turn;

	*parts = 0;
	for (int i = 0; i < e->windows && rows < e->actor.rows; i++, w = (w + 1) % e->windows) {
		struct episode *p = &e->episode[w];
		int want = ahead(e, p);

		if (p->over)
			continue;
		want = want < share ? want : share;
		want = want < e->actor.rows - rows ? want : e->actor.rows - rows;
		e->part[*parts] = (struct part){w, episode_look(p, &e->world, want, e->look + rows, e->bar + rows,
								e->portfolio + (int64_t)rows * FH_PORTFOLIO_FEATURES)};
		rows += e->part[(*parts)++].rows;
	}
	e->turn = w;
	return rows;
}

/* One call of the actor and what follows from it. */
static int act(struct evaluation *e, struct fh_status *st)
{
	int parts, rows = look_ahead(e, &parts), at = 0, rc;

	rc = e->actor.act(e->actor.ctx, rows, e->bar, e->portfolio, e->action, st);
	if (rc)
		return rc;
	e->calls++;
	e->asked += rows;
	for (int i = 0; i < parts; at += e->part[i++].rows) {
		struct episode *p = &e->episode[e->part[i].window];

		episode_take(p, &e->world, e->look + at, e->part[i].rows, e->action + (int64_t)at * EPISODE_BRANCHES);
		e->over += p->over;
	}
	return 0;
}

/* One bar of the first window that is not over. */
static void follow_script(struct evaluation *e)
{
	struct episode *p = &e->episode[e->turn];
	int32_t action[FH_BRANCH_MAX] = {0};

	e->script(e->ctx, e->m, p->state.t, &p->state, action);
	episode_step(p, &e->world, action);
	e->over += p->over;
	e->turn += p->over;
}

int evaluation_run_on(struct evaluation *e, int64_t budget_ns, struct fh_status *st)
{
	int64_t start = now_ns();

	for (int k = 1; e->over < e->windows; k++) {
		int rc = 0;

		if (e->actor.act)
			rc = act(e, st);
		else
			follow_script(e);
		if (rc)
			return rc;
		if ((e->actor.act || k % CLOCK_EVERY == 0) && now_ns() - start >= budget_ns)
			break;
	}
	return e->over == e->windows;
}

int evaluation_run(struct evaluation *e, int64_t budget_ns)
{
	return evaluation_run_on(e, budget_ns, NULL);
}

/* ---------------------------------------------------------------- results */

static struct eval_curve curve_of(const struct episode *p)
{
	return (struct eval_curve){p->equity, p->q, p->n, (const double (*)[2])p->fill, p->fills};
}

void evaluation_report(const struct evaluation *e, struct eval_report *out)
{
	struct eval_curve curve[EVAL_WINDOWS_MAX];

	for (int w = 0; w < e->windows; w++)
		curve[w] = curve_of(&e->episode[w]);
	eval_metrics_over(curve, e->windows, e->m->ts + e->first, e->end - e->first, &e->world.cfg, out);
}

int evaluation_windows(const struct evaluation *e)
{
	return e->windows;
}

struct fh_split evaluation_window(const struct evaluation *e, int window)
{
	return (struct fh_split){e->episode[window].first, e->episode[window].last + 1};
}

void evaluation_window_report(const struct evaluation *e, int window, struct eval_report *out)
{
	const struct episode *p = &e->episode[window];
	struct eval_curve curve = curve_of(p);

	eval_metrics_over(&curve, 1, e->m->ts + p->first, p->last + 1 - p->first, &e->world.cfg, out);
}

const struct eval_row *evaluation_trace(struct evaluation *e, int64_t *n)
{
	*n = 0;
	if (!e->row || (e->windows > 1 && e->over < e->windows))
		return e->row;
	for (int w = 0; w < e->windows; w++) { /* a window that ended in ruin leaves a gap behind it */
		struct episode *p = &e->episode[w];

		if (p->row != e->row + *n)
			memmove(e->row + *n, p->row, (size_t)p->n * sizeof(*p->row));
		p->row = e->row + *n;
		*n += p->n;
	}
	return e->row;
}

int64_t evaluation_done_bars(const struct evaluation *e)
{
	int64_t n = 0;

	for (int w = 0; w < e->windows; w++)
		n += e->episode[w].n;
	return n;
}

void evaluation_effort(const struct evaluation *e, int64_t *calls, int64_t *rows)
{
	*calls = e->calls;
	*rows = e->asked;
}

/* ---------------------------------------------------------------- scripts */

static void full_size(int32_t *action, int exposure)
{
	action[0] = exposure;
	action[1] = ENV_MARKET;
	action[2] = EPISODE_URGENCIES - 1;
}

void eval_buy_and_hold(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	full_size(action, EPISODE_EXPOSURES - 1);
}

void eval_never_trade(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	full_size(action, EPISODE_EXPOSURES / 2);
}

void eval_last_sign(void *ctx, const struct market *m, int64_t t, const struct env_state *s, int32_t *action)
{
	double change = t ? m->close[t] - m->close[t - 1] : 0.0;

	full_size(action, EPISODE_EXPOSURES / 2 + (EPISODE_EXPOSURES / 2) * ((change > 0.0) - (change < 0.0)));
}
