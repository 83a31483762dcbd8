/* See episode.h. One thread at a time per episode; nothing here allocates. */
#include <math.h>
#include <string.h>

#include "gpu/episode.h"

void episode_start(struct episode *e, const struct episode_world *w, int64_t first, int64_t last)
{
	e->first = first;
	e->last = last;
	e->action[0] = EPISODE_EXPOSURES / 2;
	env_start(&e->state, &w->cfg, (int32_t)first);
	e->equity[0] = e->state.equity;
}

/* ---------------------------------------------------------------- one bar */

static void world_step(const struct episode_world *w, struct env_state *s, int64_t last, const int32_t *action, struct env_result *r)
{
	const struct market *m = w->m;
	int64_t t = s->t;
	struct env_bar next = {m->open[t + 1], m->high[t + 1], m->low[t + 1], m->close[t + 1]};

	env_step_over(s, &w->cfg, action, m->close[t], &next, m->sigma[t], (int32_t)last, 0,
		      env_over(&w->cfg, m->ts[t], m->ts[t + 1], m->rolled && m->rolled[t + 1]), r);
}

static void record_fill(struct episode *e, double quantity, double price)
{
	if (quantity == 0.0)
		return;
	e->fill[e->fills][0] = quantity;
	e->fill[e->fills++][1] = price;
}

static void record_row(struct episode *e, const struct episode_world *w, const struct env_result *r)
{
	const struct env_state *s = &e->state;
	struct eval_row *row = &e->row[e->n];

	*row = (struct eval_row){
		.ts = w->m->ts[s->t], .bar = s->t, .fill = r->fill, .fill_price = r->fill_price,
		.fee = (fabs(r->fill) + fabs(r->exit_fill) + 2.0 * fabs(r->roll)) * w->cfg.fee, .exit = r->exit, .exit_fill = r->exit_fill,
		.exit_price = r->exit_price, .q = s->q, .cash = s->cash, .equity = s->equity, .reward = r->reward,
		.roll = r->roll, .roll_out = r->roll_out, .roll_in = r->roll_in,
	};
	memcpy(row->action, e->action, sizeof(row->action));
}

/* e->state is already the one after the bar. */
static void record(struct episode *e, const struct episode_world *w, const int32_t *action, const struct env_result *r)
{
	memcpy(e->action, action, EPISODE_BRANCHES * sizeof(*action));
	record_fill(e, -r->roll, r->roll_out);
	record_fill(e, r->roll, r->roll_in);
	record_fill(e, r->fill, r->fill_price);
	record_fill(e, r->exit_fill, r->exit_price);
	if (e->row)
		record_row(e, w, r);
	e->q[e->n++] = e->state.q;
	e->equity[e->n] = e->state.equity;
	e->over = r->terminated || r->truncated;
}

void episode_step(struct episode *e, const struct episode_world *w, const int32_t *action)
{
	struct env_result r;

	world_step(w, &e->state, e->last, action, &r);
	record(e, w, action, &r);
}

/* ---------------------------------------------------------------- looking ahead */

static uint8_t guess_of(const int32_t *action)
{
	return (uint8_t)((action[0] * EPISODE_ORDERS + action[1]) * EPISODE_URGENCIES + action[2]);
}

/* Which of a bar's guesses, for a share of the largest position: what a network says of a bar hangs on the position more than on
 * anything else it is told of itself. */
static int side_of(double share)
{
	const int flat = EVAL_GUESS_SIDES / 2;
	double x = flat + 0.5 + flat * share;

	return x >= 0.0 && x < EVAL_GUESS_SIDES ? (int)x : x < 0.0 ? 0 : EVAL_GUESS_SIDES - 1;
}

/* Of the position as it is, else of the nearest one that anything is known of; nothing known: the action before goes on. */
static void guess_action(const uint8_t *guess, int side, const int32_t *before, int32_t *out)
{
	int g = EVAL_GUESS_NONE;

	for (int away = 0; away < EVAL_GUESS_SIDES && g == EVAL_GUESS_NONE; away++) {
		if (side + away < EVAL_GUESS_SIDES)
			g = guess[side + away];
		if (side - away >= 0 && g == EVAL_GUESS_NONE)
			g = guess[side - away];
	}
	memcpy(out, before, EPISODE_BRANCHES * sizeof(*out));
	if (g >= EPISODE_EXPOSURES * EPISODE_ORDERS * EPISODE_URGENCIES)
		return;
	out[2] = g % EPISODE_URGENCIES;
	out[1] = g / EPISODE_URGENCIES % EPISODE_ORDERS;
	out[0] = g / (EPISODE_URGENCIES * EPISODE_ORDERS);
}

int episode_look(const struct episode *e, const struct episode_world *w, int rows, struct look *look, int32_t *bar, float *portfolio)
{
	const struct market *m = w->m;
	struct env_state s = e->state;
	const int32_t *before = e->action;

	for (int i = 0; i < rows; i++) {
		struct look *l = &look[i];

		bar[i] = s.t;
		env_features(&s, &w->cfg, m->close[s.t], m->sigma[s.t], (int32_t)(e->last - s.t), portfolio + (int64_t)i * FH_PORTFOLIO_FEATURES);
		l->side = side_of(s.q / w->cfg.max_position);
		guess_action(e->guess + (e->n + i) * EVAL_GUESS_SIDES, l->side, before, l->action);
		before = l->action;
		world_step(w, &s, e->last, l->action, &l->result);
		l->after = s;
		if (l->result.terminated || l->result.truncated)
			return i + 1;
	}
	return rows;
}

/* Bit for bit where bits can differ: none of these is NaN, and zeros have one sign. */
static int same_state(const struct env_state *a, const struct env_state *b)
{
	return a->cash == b->cash && a->equity == b->equity && a->peak == b->peak && a->q == b->q && a->entry == b->entry &&
	       a->entry_sigma == b->entry_sigma && a->t == b->t && a->entry_bar == b->entry_bar && a->steps == b->steps;
}

/* All that lasts of a state but money. */
static int same_position(const struct env_state *a, const struct env_state *b)
{
	return a->q == b->q && a->entry == b->entry && a->entry_sigma == b->entry_sigma && a->entry_bar == b->entry_bar;
}

int episode_mend(const struct episode *e, const struct episode_world *w, struct look *look, int from, int astray, int rows, const int32_t *action,
		 int most, int *where, int32_t *bar, float *portfolio)
{
	const struct market *m = w->m;
	const uint8_t *guess = e->guess + (e->n - from) * EVAL_GUESS_SIDES;
	struct env_state s = e->state;
	int n = 0;

	for (int i = from; i < rows; i++) {
		struct look *l = &look[i];
		const int32_t *a = action + i * EPISODE_BRANCHES;
		struct env_state before = l->after;

		if (!astray && memcmp(a, l->action, EPISODE_BRANCHES * sizeof(*a)) == 0)
			continue;
		if (!astray) {
			if (i > from)
				s = look[i - 1].after;
			memcpy(l->action, a, EPISODE_BRANCHES * sizeof(*a));
		} else {
			int32_t was[EPISODE_BRANCHES];

			if (n == most)
				break;
			memcpy(was, l->action, sizeof(was));
			where[n] = i;
			bar[n] = s.t;
			env_features(&s, &w->cfg, m->close[s.t], m->sigma[s.t], (int32_t)(e->last - s.t), portfolio + (int64_t)n * FH_PORTFOLIO_FEATURES);
			l->side = side_of(s.q / w->cfg.max_position);
			guess_action(guess + (int64_t)i * EVAL_GUESS_SIDES, l->side, was, l->action);
			n++;
		}
		world_step(w, &s, e->last, l->action, &l->result);
		l->after = s;
		if (l->result.terminated || l->result.truncated)
			break;
		astray = !same_position(&s, &before);
	}
	return n;
}

void episode_mended(struct episode *e, const struct look *look, int64_t taken, int n, const int *where, const int32_t *said, int32_t *action)
{
	for (int k = 0; k < n; k++) {
		const int i = where[k];

		memcpy(action + i * EPISODE_BRANCHES, said + k * EPISODE_BRANCHES, EPISODE_BRANCHES * sizeof(*said));
		e->guess[(taken + i) * EVAL_GUESS_SIDES + look[i].side] = guess_of(said + k * EPISODE_BRANCHES);
	}
}

void episode_prime(uint8_t *guess, int rows, const float *portfolio, const int32_t *action)
{
	for (int i = 0; i < rows; i++)
		guess[i * EVAL_GUESS_SIDES + side_of(portfolio[(int64_t)i * FH_PORTFOLIO_FEATURES])] = guess_of(action + i * EPISODE_BRANCHES);
}

void episode_take(struct episode *e, const struct episode_world *w, struct look *look, int rows, const float *portfolio, const int32_t *action)
{
	int64_t from = e->n;
	int done = 0, right = 1;

	for (int i = 0; i < rows; i++)
		e->guess[(from + i) * EVAL_GUESS_SIDES + look[i].side] = guess_of(action + i * EPISODE_BRANCHES);
	for (; done < rows && right; done++) {
		const int32_t *a = action + done * EPISODE_BRANCHES;

		if (memcmp(a, look[done].action, EPISODE_BRANCHES * sizeof(*a)) == 0) {
			e->state = look[done].after;
			record(e, w, a, &look[done].result);
			continue;
		}
		episode_step(e, w, a);
		right = same_state(&e->state, &look[done].after);
		memcpy(look[done].action, a, EPISODE_BRANCHES * sizeof(*a));
		look[done].after = e->state;
	}
	if (e->seen)
		memcpy(e->seen + from * FH_PORTFOLIO_FEATURES, portfolio, (size_t)done * FH_PORTFOLIO_FEATURES * sizeof(*portfolio));
	e->held += done;
	if (!right) {
		e->run += (e->held - e->run) / 4;
		e->held = 0;
	}
}
