/* Episodes over a split in slices, their trace, and the scripts they can be compared with.
 *
 * Owns struct evaluation: a reference of the market, curves and fills of every window of every trial, and what lies between
 * these episodes and who acts (evaluate_ask.c). One thread at a time. Invariant: after k bars of an episode equity[0..k], q[0..k)
 * and fill[0..fills) describe exactly those bars; nothing of a bar beyond the next one, and nothing of another episode, has gone into
 * them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/evaluate_impl.h"
#include "proto/status.h"

#define CLOCK_EVERY 16      /* bars of a script between two looks at the clock */
#define PIECE_ALIGN 64
#define WHOLE_BARS_MAX 65536 /* of an evaluation whose walk is kept, some 200 bytes a bar */

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
static int act_policy(void *ctx, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action,
		      struct fh_status *st)
{
	struct evaluation *e = ctx;
	int rows = part->rows; /* of the one trial */

	(void)parts;
	(void)st;
	for (int i = 0; i < rows; i++) {
		float *state = e->state + (int64_t)i * FH_STATE_DIM;

		memcpy(state, e->m->feature + (int64_t)bar[i] * FH_MARKET_FEATURES, FH_MARKET_FEATURES * sizeof(float));
		memcpy(state + FH_MARKET_FEATURES, portfolio + (int64_t)i * FH_PORTFOLIO_FEATURES, FH_PORTFOLIO_FEATURES * sizeof(float));
	}
	policy_act(e->policy, e->state, rows, action, NULL);
	return 0;
}

static void *carve(char *memory, size_t *at, size_t bytes)
{
	size_t here = *at;

	*at += (bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
	return memory ? memory + here : NULL;
}

/* Gives everything its place; returns the bytes. memory NULL: counts them. */
static size_t lay_out(struct evaluation *e, char *memory, int64_t n, int trace, int own_guess)
{
	size_t rows = (size_t)e->actor.can.rows, bars = (size_t)n * (size_t)e->trials, episodes = (size_t)e->episodes, at = 0;
	size_t looks = e->whole ? (size_t)n : rows;

	if (e->actor.act)
		e->look = carve(memory, &at, looks * sizeof(*e->look)); /* first: where the next evaluation finds it */
	e->episode = carve(memory, &at, episodes * sizeof(*e->episode));
	e->place = carve(memory, &at, episodes * sizeof(*e->place));
	e->part = carve(memory, &at, (size_t)e->trials * sizeof(*e->part));
	e->alive = carve(memory, &at, (size_t)e->trials * sizeof(*e->alive));
	e->equity = carve(memory, &at, (bars + episodes) * sizeof(*e->equity));
	e->q = carve(memory, &at, bars * sizeof(*e->q));
	e->row = trace ? carve(memory, &at, bars * sizeof(*e->row)) : NULL;
	e->guess = own_guess ? carve(memory, &at, EVAL_GUESS_SIDES * bars) : NULL;
	if (e->actor.act) {
		const struct act_limits *can = &e->actor.can;

		e->bar = can->bar ? can->bar : carve(memory, &at, rows * sizeof(*e->bar));
		e->action = can->action ? can->action : carve(memory, &at, rows * EPISODE_BRANCHES * sizeof(*e->action));
		e->portfolio = can->portfolio ? can->portfolio : carve(memory, &at, rows * FH_PORTFOLIO_FEATURES * sizeof(*e->portfolio));
		e->said = e->where = NULL;
		if (can->few >= MEND_ROWS) { /* rows are nearly free */
			e->said = carve(memory, &at, looks * EPISODE_BRANCHES * sizeof(*e->said));
			e->where = carve(memory, &at, rows * sizeof(*e->where));
		}
		e->state = e->policy ? carve(memory, &at, rows * FH_STATE_DIM * sizeof(*e->state)) : NULL;
	}
	e->fill = carve(memory, &at, (2 * bars + 2 * (size_t)e->m->rolls * (size_t)e->trials) * sizeof(*e->fill)); /* untouched pages cost nothing */
	return at;
}

static int allocate(struct evaluation *e, int64_t n, int trace, int own_guess, struct eval_room *room)
{
	size_t bytes = lay_out(e, NULL, n, trace, own_guess);
	char *memory = room && room->bytes >= bytes ? room->memory : NULL;

	if (!memory) {
		if (room)
			eval_room_free(room);
		if (!(memory = malloc(bytes)))
			return -1;
		if (room)
			*room = (struct eval_room){memory, bytes, 0, 0};
	}
	if (room) {
		e->walked = e->whole && room->first == e->first ? room->walked : 0;
		room->walked = 0;
	}
	e->own = room ? NULL : memory;
	lay_out(e, memory, n, trace, own_guess);
	memset(e->episode, 0, (size_t)e->episodes * sizeof(*e->episode));
	if (own_guess)
		memset(e->guess, EVAL_GUESS_NONE, EVAL_GUESS_SIDES * (size_t)n * (size_t)e->trials);
	return 0;
}

void eval_room_free(struct eval_room *r)
{
	free(r->memory);
	*r = (struct eval_room){NULL, 0, 0, 0};
}

/* The split's n steps in equal parts: a window ends at the bar where the next one begins, so no step is left out. guess_bars: from
 * trial to trial. */
static void open_windows(struct evaluation *e, int64_t n, uint8_t *guess, float *seen, int64_t guess_bars)
{
	double (*fill)[2] = e->fill;

	for (int k = 0; k < e->episodes; k++) {
		int trial = k / e->windows, w = k % e->windows;
		int64_t from = n * w / e->windows, to = n * (w + 1) / e->windows, at = n * trial + from;
		struct episode *p = &e->episode[k];

		p->equity = e->equity + at + k;
		p->q = e->q + at;
		p->row = e->row ? e->row + at : NULL;
		p->guess = guess ? guess + EVAL_GUESS_SIDES * (guess_bars * trial + from) : NULL;
		p->seen = seen ? seen + FH_PORTFOLIO_FEATURES * (guess_bars * trial + from) : NULL;
		p->fill = fill;
		fill += 2 * (to - from);
		for (int64_t t = e->first + from + 1; e->m->rolled && t <= e->first + to; t++)
			fill += e->m->rolled[t] ? 2 : 0;
		episode_start(p, &e->world, e->first + from, e->first + to);
		e->alive[trial] = e->windows;
	}
}

static int check_setup(const struct eval_setup *s, int64_t n, int windows, int trials, struct fh_status *st)
{
	int rc = s->policy ? check_policy(s->policy, st) : 0;

	if (rc)
		return rc;
	if (s->split.begin < 0 || s->split.end > s->market->bars || n < 1)
		return fh_fail(st, FH_INVALID, "the split [%lld, %lld) of %lld bars leaves no step after the first %d",
			       (long long)s->split.begin, (long long)s->split.end, (long long)s->market->bars, MARKET_WARMUP);
	if (windows < 1 || windows > EVAL_WINDOWS_MAX || windows > n)
		return fh_fail_field(st, FH_INVALID, "windows", "%d windows over %lld steps: 1 to %d are possible, none shorter than a step",
				     windows, (long long)n, EVAL_WINDOWS_MAX);
	if (trials < 1 || trials > EVAL_EPISODES_MAX / windows || (trials > 1 && !s->actor))
		return fh_fail(st, FH_INVALID, "%d trials of %d windows: one for a policy or a script, else at most %d episodes in all", trials,
			       windows, EVAL_EPISODES_MAX);
	return 0;
}

int evaluation_make(const struct eval_setup *s, struct evaluation **out, struct fh_status *st)
{
	int64_t first = s->split.begin > MARKET_WARMUP ? s->split.begin : MARKET_WARMUP, n = s->split.end - first - 1;
	int windows = s->windows ? s->windows : 1, trials = s->trials ? s->trials : 1, rc = check_setup(s, n, windows, trials, st);
	struct evaluation *e;

	if (rc)
		return rc;
	e = calloc(1, sizeof(*e));
	if (!e)
		return fh_fail(st, FH_EXHAUSTED, "out of memory");
	*e = (struct evaluation){.policy = s->policy, .script = s->script, .ctx = s->ctx, .m = market_ref(s->market), .world = {s->market, *s->config},
				 .first = first, .end = s->split.end, .windows = windows, .trials = trials, .episodes = windows * trials};
	if (s->actor)
		e->actor = *s->actor;
	else if (s->policy)
		e->actor = (struct eval_actor){act_policy, e, {.rows = POLICY_ROWS, .few = POLICY_FEW, .least = POLICY_FEW}};
	e->room = s->room;
	e->whole = e->episodes == 1 && e->actor.act && e->actor.can.few >= MEND_ROWS && n <= WHOLE_BARS_MAX;
	if (allocate(e, n, s->trace, e->actor.act && !s->guess, s->room)) {
		evaluation_free(e);
		return fh_fail(st, FH_EXHAUSTED, "no memory for an evaluation of %d trials over %lld bars", trials, (long long)n);
	}
	open_windows(e, n, s->guess ? s->guess : e->guess, s->seen, s->guess ? s->split.end - s->split.begin : n);
	e->seen = trials == 1 && e->actor.act ? s->seen : NULL;
	e->guesses = s->guess;
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
	free(e->own);
	free(e);
}

/* ---------------------------------------------------------------- working */

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One bar of the first window that is not over. */
static void follow_script(struct evaluation *e)
{
	struct episode *p = &e->episode[e->turn];
	int32_t action[FH_BRANCH_MAX] = {0};

	e->script(e->ctx, e->m, p->state.t, &p->state, action);
	episode_step(p, &e->world, action);
	e->turn += evaluation_count_over(e, e->turn);
}

int evaluation_run_on(struct evaluation *e, int64_t budget_ns, struct fh_status *st)
{
	int64_t start = now_ns();

	for (int k = 1; e->over < e->episodes; k++) {
		int rc = 0;

		if (e->actor.act)
			rc = evaluation_ask(e, st);
		else
			follow_script(e);
		if (rc)
			return rc;
		if ((e->actor.act || k % CLOCK_EVERY == 0) && now_ns() - start >= budget_ns)
			break;
	}
	return e->over == e->episodes;
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

void evaluation_trial_report(const struct evaluation *e, int trial, struct eval_report *out)
{
	struct eval_curve curve[EVAL_WINDOWS_MAX];

	for (int w = 0; w < e->windows; w++)
		curve[w] = curve_of(&e->episode[trial * e->windows + w]);
	eval_metrics_over(curve, e->windows, e->m->ts + e->first, e->end - e->first, &e->world.cfg, out);
}

void evaluation_report(const struct evaluation *e, struct eval_report *out)
{
	evaluation_trial_report(e, 0, out);
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

const struct eval_row *evaluation_trial_trace(struct evaluation *e, int trial, int64_t *n)
{
	struct episode *first = &e->episode[trial * e->windows];

	*n = 0;
	if (!e->row || (e->windows > 1 && e->alive[trial]))
		return first->row;
	for (int w = 0; w < e->windows; w++) { /* a window that ended in ruin leaves a gap behind it */
		struct episode *p = first + w;

		if (p->row != first->row + *n)
			memmove(first->row + *n, p->row, (size_t)p->n * sizeof(*p->row));
		p->row = first->row + *n;
		*n += p->n;
	}
	return first->row;
}

const struct eval_row *evaluation_trace(struct evaluation *e, int64_t *n)
{
	return evaluation_trial_trace(e, 0, n);
}

int64_t evaluation_done_bars(const struct evaluation *e)
{
	int64_t n = 0;

	for (int k = 0; k < e->episodes; k++)
		n += e->episode[k].n;
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
