/* The evaluator's service thread: loads policies, decides, plays evaluations in slices; see evaluator.h.
 *
 * Decisions go first, between two slices of the one evaluation that runs. Touches nothing of the loop but the lists and the
 * progress of an operation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/evaluator_internal.h"
#include "daemon/need.h"
#include "daemon/operations.h"

/* ---------------------------------------------------------------- policies */

static int cached_get(struct evaluator *e, const struct policy_ref *ref, struct cached **out, struct fh_status *st)
{
	struct cached *c = NULL, fresh = {.which = ref->which, .trial = ref->trial};
	int code;

	for (int i = 0; i < EVALUATOR_POLICIES; i++) {
		struct cached *k = &e->cache[i];

		if (k->policy && k->which == ref->which && k->trial == ref->trial && !strcmp(k->sha256, ref->sha256)) {
			k->used = ++e->clock;
			*out = k;
			return 0;
		}
		if (!k->pinned && (!c || k->used < c->used))
			c = k;
	}
	code = policy_load(ref->path, ref->which, ref->trial, &fresh.policy, &fresh.spec, fresh.market, st);
	if (code)
		return code;
	policy_free(c->policy);
	snprintf(fresh.sha256, sizeof fresh.sha256, "%s", ref->sha256);
	fresh.used = ++e->clock;
	*c = fresh;
	*out = c;
	return 0;
}

/* ---------------------------------------------------------------- decisions */

static int act(struct evaluator *e, struct task *t)
{
	struct act_result *r = &t->act;
	struct cached *c;
	size_t q = 0;
	int code = cached_get(e, &t->policy, &c, &t->st);

	if (code)
		return code;
	r->state_dim = policy_state_dim(c->policy);
	r->branches = policy_branches(c->policy, r->actions);
	r->rows = (int)(t->rows ? t->rows : t->floats / (size_t)r->state_dim);
	if (t->floats != (size_t)r->rows * (size_t)r->state_dim || !r->rows)
		return fh_fail_field(&t->st, FH_INVALID, "state", "%zu numbers are not %d rows of %d", t->floats, r->rows, r->state_dim);
	if (r->rows > ACT_ROWS_MAX)
		return fh_fail_field(&t->st, FH_INVALID, "rows", "%d states, at most %d are allowed in one call", r->rows, ACT_ROWS_MAX);
	for (int d = 0; d < r->branches; d++)
		q += (size_t)r->actions[d];
	r->action = malloc(((size_t)r->rows * (size_t)r->branches + 1) * sizeof *r->action);
	r->q = malloc(((size_t)r->rows * q + 1) * sizeof *r->q);
	if (!r->action || !r->q)
		return fh_fail(&t->st, FH_EXHAUSTED, "no memory for %d decisions", r->rows);
	policy_act(c->policy, t->states, r->rows, r->action, r->q);
	return 0;
}

/* ---------------------------------------------------------------- evaluations */

/* The request says how many windows, the job's own number has no say over these bars. */
static int splits(const struct task *t, const struct fh_spec *spec, struct fh_split out[FH_SPLITS], struct fh_status *st)
{
	struct fh_spec own = *spec;

	own.run.validate_windows = 1;
	return spec_splits(&own, t->market->bars, out, st);
}

static int find_split(struct task *t, const struct fh_spec *spec)
{
	static const char *const name[] = {"train", "validation", "test"};
	struct fh_split split[FH_SPLITS];
	int code, which = t->ask.split;

	if (which == EVALUATE_ALL) {
		t->split = (struct fh_split){0, t->market->bars};
	} else {
		code = splits(t, spec, split, &t->st);
		if (code)
			return code;
		t->split = split[which];
		if (t->split.end <= t->split.begin)
			return fh_fail_field(&t->st, FH_INVALID, "split", "the job has no %s split (data.%s is 0)", name[which], name[which]);
	}
	if (t->ask.trace && t->split.end - t->split.begin > TRACE_ROWS_MAX)
		return fh_fail_field(&t->st, FH_EXHAUSTED, "trace", "the split has %lld bars, a trace %lld at most",
				     (long long)(t->split.end - t->split.begin), (long long)TRACE_ROWS_MAX);
	return 0;
}

static double reward_scale(struct task *t, const struct fh_spec *spec)
{
	struct fh_split split[FH_SPLITS];

	if (spec->env.reward_scale > 0)
		return spec->env.reward_scale;
	if (splits(t, spec, split, NULL))
		return 1;
	return market_auto_reward_scale(t->market, split[FH_SPLIT_TRAIN], spec);
}

static int next_episode(struct task *t)
{
	static const char *const name[EVALUATE_REPORTS] = {"agent", "buy_and_hold", "never_trade"};
	static const eval_script script[EVALUATE_REPORTS] = {NULL, eval_buy_and_hold, eval_never_trade};
	struct env_config config = t->config;

	t->result->report[t->stage].name = name[t->stage];
	if (script[t->stage] == eval_buy_and_hold)
		eval_hold_config(&config);
	const struct eval_setup setup = {.policy = t->stage ? NULL : t->cached->policy, .script = script[t->stage], .market = t->market,
					 .config = &config, .split = t->split, .windows = t->ask.windows, .trace = !t->stage && t->ask.trace};
	return evaluation_make(&setup, &t->episode, &t->st);
}

static int begin(struct evaluator *e, struct task *t)
{
	struct evaluate_result *r = need(calloc(1, sizeof *r));
	const struct fh_spec *spec;
	int code, actions[FH_BRANCH_MAX];

	t->result = r;
	code = cached_get(e, &t->ask.policy, &t->cached, &t->st);
	if (code)
		return code;
	t->cached->pinned = 1;
	spec = &t->cached->spec;
	if (t->ask.own_data && strcmp(t->market->hash, t->cached->market))
		return fh_fail_field(&t->st, FH_CONFLICT, "dataset", "checkpoint %s was trained on other bars (%.16s) than data set \"%s\" holds "
				     "now (%.16s): name a data set", t->ask.policy.id, t->cached->market, spec->data.dataset,
				     t->market->hash);
	code = find_split(t, spec);
	if (code)
		return code;
	eval_env_config(spec, reward_scale(t, spec), &t->config);
	r->branches = policy_branches(t->cached->policy, actions);
	r->split = t->ask.split;
	r->trial = t->ask.policy.trial;
	r->trials = (int)spec->run.population;
	r->begin = t->split.begin > MARKET_WARMUP ? t->split.begin : MARKET_WARMUP;
	r->end = t->split.end;
	r->first_ts = t->market->ts[r->begin < t->market->bars ? r->begin : t->market->bars - 1];
	r->last_ts = t->market->ts[r->end - 1];
	r->initial_cash = t->config.initial_cash;
	r->multiplier = t->config.multiplier;
	r->max_position = t->config.max_position;
	return next_episode(t);
}

static int keep_trace(struct task *t)
{
	struct evaluate_result *r = t->result;
	const struct eval_row *row = evaluation_trace(t->episode, &r->rows);

	r->row = malloc((size_t)(r->rows ? r->rows : 1) * sizeof *r->row);
	r->close = malloc((size_t)(r->rows ? r->rows : 1) * sizeof *r->close);
	if (!r->row || !r->close)
		return fh_fail(&t->st, FH_EXHAUSTED, "no memory for a trace of %lld rows", (long long)r->rows);
	if (r->rows)
		memcpy(r->row, row, (size_t)r->rows * sizeof *r->row);
	for (int64_t i = 0; i < r->rows; i++)
		r->close[i] = t->market->close[row[i].bar];
	return 0;
}

static int keep_windows(struct task *t)
{
	struct evaluate_result *r = t->result;

	r->window = malloc((size_t)t->ask.windows * sizeof *r->window);
	if (!r->window)
		return fh_fail(&t->st, FH_EXHAUSTED, "no memory for %d windows", t->ask.windows);
	r->windows = t->ask.windows;
	for (int w = 0; w < r->windows; w++) {
		r->window[w].bars = evaluation_window(t->episode, w);
		evaluation_window_report(t->episode, w, &r->window[w].value);
	}
	return 0;
}

/* One slice. 1: goes on, 0: finished, negative: failed. */
static int evaluate_slice(struct evaluator *e, struct task *t)
{
	int wanted = t->ask.benchmarks ? EVALUATE_REPORTS : 1, code;
	double bars;

	if (operation_cancelled(t->op))
		return fh_fail(&t->st, FH_INTERRUPTED, "the evaluation was cancelled");
	if (!t->result) {
		code = begin(e, t);
		return code ? code : 1;
	}
	bars = (double)(t->result->end - t->result->begin);
	if (!evaluation_run(t->episode, EVALUATOR_SLICE_NS)) {
		operation_progress(t->op, (t->stage + (bars > 0 ? fmin(1, (double)evaluation_done_bars(t->episode) / bars) : 0)) / wanted);
		return 1;
	}
	evaluation_report(t->episode, &t->result->report[t->stage].value);
	code = !t->stage && t->ask.trace ? keep_trace(t) : 0;
	if (!code && !t->stage && t->ask.windows > 1)
		code = keep_windows(t);
	evaluation_free(t->episode);
	t->episode = NULL;
	if (code)
		return code;
	t->result->reports = ++t->stage;
	if (t->stage == wanted)
		return 0;
	code = next_episode(t);
	return code ? code : 1;
}

static void release_work(struct task *t)
{
	evaluation_free(t->episode);
	t->episode = NULL;
	if (t->cached)
		t->cached->pinned = 0;
	t->cached = NULL;
}

/* ---------------------------------------------------------------- the service thread */

static void finish(struct evaluator *e, struct task *t)
{
	pthread_mutex_lock(&e->lock);
	tasks_push(&e->finished, t);
	uv_async_send(e->async);
	pthread_mutex_unlock(&e->lock);
}

void *evaluator_main(void *arg)
{
	struct evaluator *e = arg;
	struct task *running = NULL, *t;

	for (;;) {
		pthread_mutex_lock(&e->lock);
		while (!e->ending && !running && !e->acts.head && !e->evaluations.head)
			pthread_cond_wait(&e->work, &e->lock);
		if (e->ending)
			break;
		t = tasks_pop(&e->acts);
		if (!t && !running)
			running = tasks_pop(&e->evaluations);
		pthread_mutex_unlock(&e->lock);
		if (t) {
			t->code = act(e, t);
			finish(e, t);
			continue;
		}
		running->code = evaluate_slice(e, running);
		if (running->code > 0)
			continue;
		release_work(running);
		finish(e, running);
		running = NULL;
	}
	pthread_mutex_unlock(&e->lock);
	if (running) {
		release_work(running);
		running->code = fh_fail(&running->st, FH_UNAVAILABLE, "the daemon stops");
		finish(e, running);
	}
	return NULL;
}
