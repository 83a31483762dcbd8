/* See evaluator.h. */
#include "daemon/evaluator.h"
#include "daemon/log.h"
#include "daemon/need.h"
#include "daemon/operations.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cached { /* service thread */
	struct policy *policy;
	struct fh_spec spec;
	char sha256[65], market[65];
	enum fh_policy which;
	int trial;
	uint64_t used;
	int pinned;             /* an evaluation runs with it */
};

enum task_kind { TASK_ACT, TASK_EVALUATE };
struct task {
	struct task *next;
	enum task_kind kind;
	int code;
	struct fh_status st;
	/* act */
	struct policy_ref policy;
	const float *states;
	size_t floats;
	uint32_t rows;
	struct act_result act;
	act_done act_done;
	/* evaluate */
	struct evaluate_ask ask;
	struct operation *op;
	struct market *market;
	struct evaluate_result *result;
	void (*done)(void *arg);
	void *arg;
	/* evaluate, service thread */
	struct cached *cached;
	struct env_config config;
	struct fh_split split;
	struct evaluation *episode;
	int stage;              /* reports finished */
};

struct list { struct task *head, **tail; unsigned n; };

struct evaluator {
	uv_loop_t *loop;
	uv_async_t *async;      /* freed by its close callback */
	struct operations *ops;
	pthread_t thread;
	pthread_mutex_t lock;   /* guards the lists and ending */
	pthread_cond_t work;
	struct list acts, evaluations, finished;
	int ending, stopped;
	struct cached cache[EVALUATOR_POLICIES]; /* service thread */
	uint64_t clock;
};

static void list_init(struct list *l)
{
	l->head = NULL;
	l->tail = &l->head;
	l->n = 0;
}

static void list_push(struct list *l, struct task *t)
{
	t->next = NULL;
	*l->tail = t;
	l->tail = &t->next;
	l->n++;
}

static struct task *list_pop(struct list *l)
{
	struct task *t = l->head;

	if (!t)
		return NULL;
	l->head = t->next;
	if (!l->head)
		l->tail = &l->head;
	l->n--;
	return t;
}

/* ---------------------------------------------------------------- policies (service thread) */

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

/* ---------------------------------------------------------------- decisions (service thread) */

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

/* ---------------------------------------------------------------- evaluations (service thread) */

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
	list_push(&e->finished, t);
	uv_async_send(e->async);
	pthread_mutex_unlock(&e->lock);
}

static void *service(void *arg)
{
	struct evaluator *e = arg;
	struct task *running = NULL, *t;

	for (;;) {
		pthread_mutex_lock(&e->lock);
		while (!e->ending && !running && !e->acts.head && !e->evaluations.head)
			pthread_cond_wait(&e->work, &e->lock);
		if (e->ending)
			break;
		t = list_pop(&e->acts);
		if (!t && !running)
			running = list_pop(&e->evaluations);
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

/* ---------------------------------------------------------------- the loop's side */

static void result_free(void *p)
{
	struct evaluate_result *r = p;

	if (!r)
		return;
	free(r->window);
	free(r->row);
	free(r->close);
	free(r);
}

static void answer(struct evaluator *e, struct task *t)
{
	if (t->kind == TASK_ACT) {
		t->act_done(t->arg, t->code, t->code ? NULL : &t->act, &t->st);
		free(t->act.action);
		free(t->act.q);
	} else {
		struct evaluate_result *r = t->result;

		if (t->code) {
			result_free(r);
			r = NULL;
		}
		t->op->users--;
		operation_finish(e->ops, t->op, t->code, &t->st, r,
				 r ? sizeof *r + (size_t)r->rows * (sizeof *r->row + sizeof *r->close) + (size_t)r->windows * sizeof *r->window : 0, result_free);
		market_unref(t->market);
		t->done(t->arg);
	}
	free(t);
}

static void answer_all(struct evaluator *e, struct list *l)
{
	struct list mine;
	struct task *t;

	pthread_mutex_lock(&e->lock);
	mine = *l;
	if (!mine.head)
		mine.tail = &mine.head;
	list_init(l);
	pthread_mutex_unlock(&e->lock);
	while ((t = list_pop(&mine)))
		answer(e, t);
}

static void on_async(uv_async_t *h)
{
	struct evaluator *e = h->data;

	answer_all(e, &e->finished);
}

static void async_closed(uv_handle_t *h)
{
	free(h);
}

static int submit(struct evaluator *e, struct list *l, unsigned most, struct task *t, const char *what, struct fh_status *st)
{
	int code = 0;

	pthread_mutex_lock(&e->lock);
	if (e->ending)
		code = fh_fail(st, FH_UNAVAILABLE, "the daemon stops");
	else if (l->n >= most)
		code = fh_fail(st, FH_EXHAUSTED, "%u %s wait already", most, what);
	else
		list_push(l, t);
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	if (code)
		free(t);
	return code;
}

int evaluator_evaluate(struct evaluator *e, struct operation *op, const struct evaluate_ask *ask, struct market *m,
		       void (*done)(void *arg), void *arg, struct fh_status *st)
{
	struct task *t = need(calloc(1, sizeof *t));
	int code;

	t->kind = TASK_EVALUATE;
	t->ask = *ask;
	t->op = op;
	t->market = m;
	t->done = done;
	t->arg = arg;
	op->users++;
	code = submit(e, &e->evaluations, EVALUATOR_QUEUE_MAX, t, "evaluations", st);
	if (code)
		op->users--;
	return code;
}

int evaluator_act(struct evaluator *e, const struct policy_ref *p, const float *states, size_t floats, uint32_t rows,
		  act_done done, void *arg, struct fh_status *st)
{
	struct task *t = need(calloc(1, sizeof *t));

	t->kind = TASK_ACT;
	t->policy = *p;
	t->states = states;
	t->floats = floats;
	t->rows = rows;
	t->act_done = done;
	t->arg = arg;
	return submit(e, &e->acts, ACT_QUEUE_MAX, t, "decisions", st);
}

int evaluator_new(uv_loop_t *loop, struct operations *ops, struct evaluator **out, struct fh_status *st)
{
	struct evaluator *e = need(calloc(1, sizeof *e));
	int rc;

	e->loop = loop;
	e->ops = ops;
	list_init(&e->acts);
	list_init(&e->evaluations);
	list_init(&e->finished);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->work, NULL);
	e->async = need(calloc(1, sizeof *e->async));
	e->async->data = e;
	uv_async_init(loop, e->async, on_async);
	rc = pthread_create(&e->thread, NULL, service, e);
	if (rc) {
		e->stopped = 1;
		uv_close((uv_handle_t *)e->async, async_closed);
		evaluator_free(e);
		return fh_fail(st, FH_EXHAUSTED, "evaluator: no thread: %s", strerror(rc));
	}
	*out = e;
	return 0;
}

static void refuse_all(struct evaluator *e, struct list *l)
{
	for (struct task *t = l->head; t; t = t->next)
		t->code = fh_fail(&t->st, FH_UNAVAILABLE, "the daemon stops");
	answer_all(e, l);
}

void evaluator_stop(struct evaluator *e)
{
	if (!e || e->stopped)
		return;
	pthread_mutex_lock(&e->lock);
	e->ending = 1;
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
	pthread_join(e->thread, NULL);
	e->stopped = 1;
	answer_all(e, &e->finished);
	refuse_all(e, &e->acts);
	refuse_all(e, &e->evaluations);
	uv_close((uv_handle_t *)e->async, async_closed);
}

void evaluator_free(struct evaluator *e)
{
	if (!e)
		return;
	assert(e->stopped);
	for (int i = 0; i < EVALUATOR_POLICIES; i++)
		policy_free(e->cache[i].policy);
	pthread_cond_destroy(&e->work);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
