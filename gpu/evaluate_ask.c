/* Asking who acts on behalf of an evaluation: who looks how far ahead, what is asked in a call, and what follows from the answers; see
 * evaluate_impl.h.
 *
 * One thread at a time; between two calls of the actor its team works on episodes side by side. Invariant: what is asked, primed and
 * mended here makes guesses; bars are done by episode_take() alone. */
#include <math.h>
#include <string.h>

#include "gpu/evaluate_impl.h"
#include "gpu/host/threads.h"

#define TEAM_ROWS 256       /* rows ahead from which waking the team pays: about 50 ns each */
#define MEND_CALLS 3        /* each leaves a fifth of what is wrong */
#define MEND_SHARE 2        /* of the rows are mended at most */

/* How far an episode looks ahead: its share of a call while guesses hold for longer than that, else no further than what
 * comes nearly free. What lies between never pays: rows behind a wrong guess are asked in vain. */
static int ahead(const struct evaluation *e, const struct episode *p, int share)
{
	const struct act_limits *can = &e->actor.can;
	int64_t run = p->held > p->run ? p->held : p->run;
	int few = can->few / (e->trials - e->trials_over);

	few = few > can->least ? few : can->least;
	return run >= 2 * share || few > share ? share : few;
}

/* Who looks how far, so that all of them move on, as many as a call has rows for. Returns the rows. */
static int share_out(struct evaluation *e)
{
	int most = e->actor.can.rows, alive = e->episodes - e->over, share = most / alive > 1 ? most / alive : 1, rows = 0, i = 0, k = e->turn;

	for (; i < e->episodes && rows < most; i++, k = (k + 1) % e->episodes) {
		struct episode *p = &e->episode[k];
		int64_t left = p->last - p->state.t;

		p->ahead = p->over ? 0 : ahead(e, p, share);
		p->ahead = p->ahead < left ? p->ahead : (int)left;
		p->ahead = p->ahead < most - rows ? p->ahead : most - rows;
		rows += p->ahead;
	}
	e->turn = k;
	for (; i < e->episodes; i++, k = (k + 1) % e->episodes)
		e->episode[k].ahead = 0;
	return rows;
}

/* Their places in the call, trial after trial. */
static void place(struct evaluation *e)
{
	int at = 0;

	e->places = 0;
	for (int k = 0; k < e->episodes; at += e->episode[k++].ahead)
		if (e->episode[k].ahead)
			e->place[e->places++] = (struct place){.episode = k, .at = at, .rows = e->episode[k].ahead};
}

/* Where what is looked at lies, and the answers to it that are mended. */
static struct look *look_of(const struct evaluation *e, const struct place *l)
{
	return e->look + (e->whole ? l->taken : l->at);
}

static int32_t *said_of(const struct evaluation *e, const struct place *l)
{
	return e->said + (e->whole ? l->taken : l->at) * EPISODE_BRANCHES;
}

static void look_task(void *ctx, int task, int member)
{
	struct evaluation *e = ctx;
	struct place *l = &e->place[task];

	(void)member;
	l->taken = e->episode[l->episode].n;
	l->rows = episode_look(&e->episode[l->episode], &e->world, l->rows, look_of(e, l), e->bar + l->at,
			       e->portfolio + (int64_t)l->at * FH_PORTFOLIO_FEATURES);
}

static void take_task(void *ctx, int task, int member)
{
	struct evaluation *e = ctx;
	const struct place *l = &e->place[task];

	(void)member;
	episode_take(&e->episode[l->episode], &e->world, look_of(e, l), l->rows, e->portfolio + (int64_t)l->at * FH_PORTFOLIO_FEATURES,
		     e->action + (int64_t)l->at * EPISODE_BRANCHES);
}

/* Closes the gaps that episodes leave which end sooner than they might, and counts what each trial asks. Returns the rows. */
static int close_up(struct evaluation *e, int *parts)
{
	int to = 0, trial = -1;

	*parts = 0;
	for (int i = 0; i < e->places; i++) {
		struct place *l = &e->place[i];

		if (l->at != to) {
			memmove(e->look + to, e->look + l->at, (size_t)l->rows * sizeof(*e->look));
			memmove(e->bar + to, e->bar + l->at, (size_t)l->rows * sizeof(*e->bar));
			memmove(e->portfolio + (int64_t)to * FH_PORTFOLIO_FEATURES, e->portfolio + (int64_t)l->at * FH_PORTFOLIO_FEATURES,
				(size_t)l->rows * FH_PORTFOLIO_FEATURES * sizeof(*e->portfolio));
			l->at = to;
		}
		to += l->rows;
		if (l->episode / e->windows != trial)
			e->part[(*parts)++] = (struct act_part){trial = l->episode / e->windows, 0};
		e->part[*parts - 1].rows += l->rows;
	}
	return to;
}

int evaluation_count_over(struct evaluation *e, int k)
{
	if (!e->episode[k].over)
		return 0;
	e->over++;
	e->trials_over += --e->alive[k / e->windows] == 0;
	return 1;
}

/* Asks what the network says now where it was asked last time: most of that is what it will say where it will be asked, and no environment
 * has to run for it. Where nothing is left of that, the walk of the last evaluation is mended, before any bar is looked at. */
static int prime(struct evaluation *e, struct fh_status *st)
{
	const int64_t n = e->end - e->first - 1;
	const float *seen = e->seen + e->primed * FH_PORTFOLIO_FEATURES;
	struct act_part now = {0, 0};
	int rc;

	for (; now.rows < e->actor.can.rows && e->primed + now.rows < n; now.rows++) {
		const float *from = seen + (int64_t)now.rows * FH_PORTFOLIO_FEATURES;

		if (isnan(*from))
			break;
		e->bar[now.rows] = (int32_t)(e->first + e->primed + now.rows);
	}
	if (!now.rows) {
		e->seen = NULL;
		e->walking = MEND_CALLS;
		return 0;
	}
	memcpy(e->portfolio, seen, (size_t)now.rows * FH_PORTFOLIO_FEATURES * sizeof(*seen));
	rc = e->actor.act(e->actor.ctx, &now, 1, e->bar, e->portfolio, e->action, st);
	if (rc)
		return rc;
	episode_prime(e->guesses + e->primed * EVAL_GUESS_SIDES, now.rows, e->portfolio, e->action);
	if (e->whole)
		memcpy(e->said + e->primed * EPISODE_BRANCHES, e->action, (size_t)now.rows * EPISODE_BRANCHES * sizeof(*e->said));
	e->calls++;
	e->asked += now.rows;
	e->primed += now.rows;
	return 0;
}

/* One call for the walk of the last evaluation, over which the network has just been asked. */
static int mend_walk(struct evaluation *e, struct fh_status *st)
{
	const int rows = (int)(e->primed < e->walked ? e->primed : e->walked);
	struct act_part part = {0, episode_mend(e->episode, &e->world, e->look, 0, 0, rows, e->said, e->actor.can.rows, e->where, e->bar, e->portfolio)};
	int rc = part.rows ? e->actor.act(e->actor.ctx, &part, 1, e->bar, e->portfolio, e->action, st) : 0;

	e->walking = part.rows ? e->walking - 1 : 0;
	if (rc || !part.rows)
		return rc;
	episode_mended(e->episode, e->look, 0, part.rows, e->where, e->action, e->said);
	e->calls++;
	e->asked += part.rows;
	return 0;
}

static void mend_task(void *ctx, int task, int member)
{
	struct evaluation *e = ctx;
	struct place *l = &e->place[task];
	const struct episode *p = &e->episode[l->episode];

	(void)member;
	l->mended = p->over ? 0 : episode_mend(p, &e->world, look_of(e, l), (int)(p->n - l->taken), 1, l->rows, said_of(e, l),
					       l->rows / MEND_SHARE, e->where + l->at, e->bar + l->at,
					       e->portfolio + (int64_t)l->at * FH_PORTFOLIO_FEATURES);
}

static void mended_task(void *ctx, int task, int member)
{
	struct evaluation *e = ctx;
	const struct place *l = &e->place[task];

	(void)member;
	episode_mended(&e->episode[l->episode], look_of(e, l), l->taken, l->mended, e->where + l->at,
		       e->action + (int64_t)l->mended_at * EPISODE_BRANCHES, said_of(e, l));
}

/* What is to be asked again of all places, one behind another; returns the rows. `where` stays, for its answers go back there. */
static int gather_mended(struct evaluation *e, int *parts)
{
	int to = 0, trial = -1;

	*parts = 0;
	for (int i = 0; i < e->places; to += e->place[i++].mended) {
		struct place *l = &e->place[i];

		l->mended_at = to;
		if (!l->mended)
			continue;
		memmove(e->bar + to, e->bar + l->at, (size_t)l->mended * sizeof(*e->bar));
		memmove(e->portfolio + (int64_t)to * FH_PORTFOLIO_FEATURES, e->portfolio + (int64_t)l->at * FH_PORTFOLIO_FEATURES,
			(size_t)l->mended * FH_PORTFOLIO_FEATURES * sizeof(*e->portfolio));
		if (l->episode / e->windows != trial)
			e->part[(*parts)++] = (struct act_part){trial = l->episode / e->windows, 0};
		e->part[*parts - 1].rows += l->mended;
	}
	return to;
}

/* The guesses of a long look that went astray are mended where they are wrong before all of it is looked at again: a few rows for each.
 * The room of the call is free by then, but for its answers. */
static void mend_next(struct evaluation *e, int rows)
{
	int behind = rows;

	for (int i = 0; i < e->places; i++) {
		const struct episode *p = &e->episode[e->place[i].episode];

		behind -= p->over ? e->place[i].rows : (int)(p->n - e->place[i].taken);
	}
	if (!e->said || behind < MEND_ROWS)
		return;
	memcpy(e->whole ? said_of(e, e->place) : e->said, e->action, (size_t)rows * EPISODE_BRANCHES * sizeof(*e->said));
	e->mending = MEND_CALLS;
}

static int mend(struct evaluation *e, struct fh_status *st)
{
	int parts, again, rc;

	team_run(e->actor.can.team, e->places, mend_task, e);
	again = gather_mended(e, &parts);
	rc = again ? e->actor.act(e->actor.ctx, e->part, parts, e->bar, e->portfolio, e->action, st) : 0;
	e->mending = again ? e->mending - 1 : 0;
	if (rc || !again)
		return rc;
	team_run(e->actor.can.team, e->places, mended_task, e);
	e->calls++;
	e->asked += again;
	return 0;
}

/* Looks ahead, asks, and takes what is certain. */
static int ask(struct evaluation *e, struct fh_status *st)
{
	int rows = share_out(e), parts, rc;
	struct team *team = rows >= TEAM_ROWS ? e->actor.can.team : NULL;

	place(e);
	team_run(team, e->places, look_task, e);
	rows = close_up(e, &parts);
	rc = e->actor.act(e->actor.ctx, e->part, parts, e->bar, e->portfolio, e->action, st);
	if (rc)
		return rc;
	e->calls++;
	e->asked += rows;
	team_run(team, e->places, take_task, e);
	mend_next(e, rows);
	for (int i = 0; i < e->places; i++)
		evaluation_count_over(e, e->place[i].episode);
	if (e->whole && e->room && e->over) {
		e->room->first = e->first;
		e->room->walked = e->walked > e->episode->n ? e->walked : e->episode->n;
	}
	return 0;
}

int evaluation_ask(struct evaluation *e, struct fh_status *st)
{
	return e->seen ? prime(e, st) : e->walking ? mend_walk(e, st) : e->mending ? mend(e, st) : ask(e, st);
}
