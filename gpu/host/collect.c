/* One step of all environments on the host: exploration, the environment itself, n-step transitions, the replay ring.
 *
 * Each stage loops over the trials. ENV runs in three passes: every environment steps and queues (independent, so the
 * team shares them), one thread gives each its places in the ring in the order of gpu/MATH.md, section 4 (by environment,
 * oldest first), then every environment stores, restarts if it ended and looks at its next bar. Sums are taken in the
 * order of the environments, so any number of threads gives the same bits.
 * Invariant: no transition spans a restart; clock.stored counts only what INSERT has given a priority. */
#include <assert.h>
#include <string.h>

#include "gpu/host/collect.h"
#include "gpu/host/round.h"
#include "gpu/host/stages.h"
#include "gpu/host/threads.h"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

#define ENVS_PER_TASK 128 /* a step takes about 0.2 us: fewer do not pay for waking a thread */

enum { STAT_REWARD, STAT_REWARD2, STAT_EPISODES, STAT_RETURN, STAT_STEPS, STAT_RUINS, STAT_FILLS, STAT_EXITS };

/* ---------------------------------------------------------------- explore */

int host_dqn_explore(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		int32_t *action = host_tensor(x, T_ACTION, p);
		double done = (double)c->vector_step / (double)c->eps_steps;

		c->eps = c->eps_start + (c->eps_end - c->eps_start) * (done < 1 ? done : 1);
		for (int i = 0; i < d->N * d->D; i++) {
			uint64_t n = 2 * (uint64_t)i; /* even: coin and action lie in one block */
			struct philox_words w = philox_block(c->seed, PHILOX_EXPLORE, (uint64_t)c->vector_step, n >> 2);

			if ((double)philox_uniform(w.w[n & 3]) < c->eps)
				action[i] = (int32_t)philox_below(w.w[(n & 3) + 1], (uint32_t)d->A[i % d->D]);
		}
	}
	return 0;
}

/* ---------------------------------------------------------------- environments */

void collect_open(struct collect *f, const struct exec *x, int p)
{
	*f = (struct collect){
		.x = x, .d = x->dims, .clock = host_tensor(x, T_CLOCK, p), .config = host_tensor(x, T_CONFIG, p),
		.cash = host_tensor(x, T_ENV_CASH, p), .equity = host_tensor(x, T_ENV_EQUITY, p),
		.peak = host_tensor(x, T_ENV_PEAK, p), .q = host_tensor(x, T_ENV_Q, p), .entry = host_tensor(x, T_ENV_ENTRY, p),
		.sigma = host_tensor(x, T_ENV_SIGMA, p), .ret = host_tensor(x, T_ENV_RETURN, p),
		.stat = host_tensor(x, T_ENV_STAT, p), .t = host_tensor(x, T_ENV_T, p),
		.entry_bar = host_tensor(x, T_ENV_ENTRY_BAR, p), .steps = host_tensor(x, T_ENV_STEPS, p),
		.count = host_tensor(x, T_PEND_COUNT, p), .head = host_tensor(x, T_PEND_HEAD, p),
		.ready = host_tensor(x, T_ENV_READY, p), .action = host_tensor(x, T_ACTION, p), .obs = host_tensor(x, T_OBS, p),
		.pend_r = host_tensor(x, T_PEND_R, p), .r = host_tensor(x, T_RP_R, p), .g = host_tensor(x, T_RP_G, p),
		.pend_s = host_tensor(x, T_PEND_S, p), .s = host_tensor(x, T_RP_S, p), .s2 = host_tensor(x, T_RP_S2, p),
		.pend_a = host_tensor(x, T_PEND_A, p), .a = host_tensor(x, T_RP_A, p),
	};
	f->row_bytes = (size_t)f->d->SD * st_dtype_size(x->plan->tensor[T_RP_S].desc.dtype);
}

static struct env_state load(const struct collect *f, int e)
{
	return (struct env_state){f->cash[e], f->equity[e], f->peak[e], f->q[e], f->entry[e], f->sigma[e],
				  f->t[e], f->entry_bar[e], f->steps[e]};
}

static void store(const struct collect *f, int e, const struct env_state *s)
{
	f->cash[e] = s->cash;
	f->equity[e] = s->equity;
	f->peak[e] = s->peak;
	f->q[e] = s->q;
	f->entry[e] = s->entry;
	f->sigma[e] = s->entry_sigma;
	f->t[e] = s->t;
	f->entry_bar[e] = s->entry_bar;
	f->steps[e] = s->steps;
}

/* A state as the replay keeps it. */
static void put_state(const struct collect *f, char *row, const float *obs)
{
	if (f->row_bytes == (size_t)f->d->SD * sizeof *obs) {
		memcpy(row, obs, f->row_bytes);
		return;
	}
	for (int i = 0; i < f->d->SD; i++) {
		uint16_t low = bf16_from(obs[i]);
		memcpy(row + 2 * i, &low, sizeof low);
	}
}

static void look(const struct collect *f, const struct env_state *s, float *obs)
{
	const float *feature = f->x->market.feature + (size_t)s->t * FH_MARKET_FEATURES;

	memcpy(obs, feature, FH_MARKET_FEATURES * sizeof *obs);
	env_features(s, f->config, f->x->market.close[s->t], (double)f->x->market.sigma[s->t], ENV_STEPS_OWN,
		     obs + FH_MARKET_FEATURES);
}

void collect_queue(const struct collect *f, int e, double reward, int end)
{
	const struct dqn_dims *d = f->d;
	size_t slot = (size_t)e * (size_t)d->n + (size_t)f->head[e];

	put_state(f, f->pend_s + slot * f->row_bytes, f->obs + (size_t)e * (size_t)d->SD);
	for (int b = 0; b < d->D; b++)
		f->pend_a[slot * (size_t)d->D + (size_t)b] = (uint8_t)f->action[e * d->D + b];
	f->pend_r[slot] = (float)reward;
	f->head[e] = (f->head[e] + 1) % d->n;
	f->count[e]++;
	f->ready[e * READY_COLUMNS + READY_END] = end;
	f->ready[e * READY_COLUMNS + READY_COUNT] = end != RUNNING ? f->count[e] : f->count[e] == d->n;
}

static void step_one(const struct collect *f, int e)
{
	struct env_state s = load(f, e);
	struct env_result r;
	double *stat = f->stat + (size_t)e * DQN_ENV_STATS;
	int32_t t = s.t, end;
	struct env_bar next = {f->x->market.open[t + 1], f->x->market.high[t + 1], f->x->market.low[t + 1],
			       f->x->market.close[t + 1]};
	const struct market *m = f->x->market_host;

	env_step_over(&s, f->config, f->action + e * f->d->D, f->x->market.close[t], &next, (double)f->x->market.sigma[t],
		      f->clock->train_end - 1, 1, env_over(f->config, m->ts[t], m->ts[t + 1], m->rolled && m->rolled[t + 1]), &r);
	store(f, e, &s);
	f->ret[e] += r.reward;
	end = r.terminated ? TERMINATED : r.truncated ? TRUNCATED : RUNNING;
	collect_queue(f, e, r.reward, end);
	stat[STAT_REWARD] = r.reward;
	stat[STAT_REWARD2] = r.reward * r.reward;
	stat[STAT_EPISODES] = end != RUNNING;
	stat[STAT_RETURN] = end != RUNNING ? f->ret[e] : 0;
	stat[STAT_STEPS] = end != RUNNING ? s.steps : 0;
	stat[STAT_RUINS] = r.terminated;
	stat[STAT_FILLS] = r.fill != 0;
	stat[STAT_EXITS] = r.exit != ENV_EXIT_NONE;
}

/* The oldest queued step of e becomes the transition at `place` of the ring: R over the k rewards that follow it. */
static void store_one(const struct collect *f, int e, int64_t place, const char *next)
{
	const struct dqn_dims *d = f->d;
	int k = f->count[e], n = d->n, oldest = (f->head[e] - k + n) % n, terminated;
	size_t slot = (size_t)e * (size_t)n + (size_t)oldest, to = (size_t)(place & (d->C - 1));
	double R = 0, discount = 1;

	for (int i = 0; i < k; i++) {
		R += discount * (double)f->pend_r[(size_t)e * (size_t)n + (size_t)((oldest + i) % n)];
		discount *= f->clock->gamma;
	}
	terminated = f->ready[(size_t)e * READY_COLUMNS + READY_END] == TERMINATED;
	memcpy(f->s + to * f->row_bytes, f->pend_s + slot * f->row_bytes, f->row_bytes);
	memcpy(f->s2 + to * f->row_bytes, next, f->row_bytes);
	memcpy(f->a + to * (size_t)d->D, f->pend_a + slot * (size_t)d->D, (size_t)d->D);
	f->r[to] = (float)R;
	f->g[to] = terminated ? 0 : (float)discount;
	f->count[e]--;
}

void collect_store(const struct collect *f, int e)
{
	const int32_t *ready = f->ready + (size_t)e * READY_COLUMNS;
	char next[FH_STATE_DIM * sizeof(float)];

	put_state(f, next, f->obs + (size_t)e * (size_t)f->d->SD);
	for (int i = 0; i < ready[READY_COUNT]; i++)
		store_one(f, e, f->clock->stored + ready[READY_FIRST] + i, next);
}

static void finish_one(const struct collect *f, int e)
{
	const struct dqn_dims *d = f->d;
	const int32_t *ready = f->ready + (size_t)e * READY_COLUMNS;
	float *obs = f->obs + (size_t)e * (size_t)d->SD;
	struct env_state s = load(f, e);

	look(f, &s, obs); /* the state after the step, before any restart */
	collect_store(f, e);
	if (ready[READY_END] == RUNNING)
		return;
	env_start(&s, f->config,
		  env_start_bar(f->clock->seed, (uint32_t)e, (uint64_t)f->clock->vector_step + 1, f->clock->train_begin,
				f->clock->train_end));
	store(f, e, &s);
	f->ret[e] = 0;
	look(f, &s, obs);
}

static void tasks_of(const struct collect *f, int task, void (*one)(const struct collect *, int))
{
	int from = task * ENVS_PER_TASK, to = from + ENVS_PER_TASK < f->d->N ? from + ENVS_PER_TASK : f->d->N;

	for (int e = from; e < to; e++)
		one(f, e);
}
static void step_task(void *f, int task, int member) { tasks_of(f, task, step_one); }
static void finish_task(void *f, int task, int member) { tasks_of(f, task, finish_one); }

void collect_place(const struct collect *f)
{
	int64_t fresh = 0;

	for (int e = 0; e < f->d->N; e++) {
		int32_t *ready = f->ready + (size_t)e * READY_COLUMNS;

		ready[READY_FIRST] = (int32_t)fresh;
		fresh += ready[READY_COUNT];
	}
	f->clock->fresh = fresh;
}

/* The sums of the reporting window, in the order of the environments. */
static void add_up(const struct collect *f, double *acc)
{
	for (int e = 0; e < f->d->N; e++)
		for (int i = 0; i < DQN_ENV_STATS; i++)
			acc[ACC_REWARD + i] += f->stat[(size_t)e * DQN_ENV_STATS + i];
	acc[ACC_ENV_STEPS] += f->d->N;
	acc[ACC_EPS] = f->clock->eps;
}

int host_dqn_env(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	struct team *team = ((struct host_priv *)x->priv)->team;
	int tasks = (d->N + ENVS_PER_TASK - 1) / ENVS_PER_TASK;

	assert(d->SD == FH_STATE_DIM);
	for (int p = 0; p < d->P; p++) {
		struct collect f;

		collect_open(&f, x, p);
		team_run(team, tasks, step_task, &f);
		collect_place(&f);
		add_up(&f, host_tensor(x, T_ACCUM, p));
		team_run(team, tasks, finish_task, &f);
	}
	return 0;
}

/* ---------------------------------------------------------------- insert */

/* All inner nodes above the leaves [from, to]. */
static void climb(float *node, int64_t from, int64_t to)
{
	while (from > 1) {
		from >>= 1;
		to >>= 1;
		for (int64_t n = from; n <= to; n++)
			tree_join(node, n);
	}
}

/* New transitions are at most the whole ring (a rule of the specification): one stretch, or two where it wraps. The
 * second climb recomputes the nodes both stretches share, after all leaves are written. */
int host_dqn_insert(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;

	for (int p = 0; p < d->P; p++) {
		struct dqn_clock *c = host_tensor(x, T_CLOCK, p);
		float *node = host_tensor(x, T_TREE, p);
		int64_t first = c->stored & (d->C - 1), end = first + c->fresh;
		int64_t tail = end > d->C ? end - d->C : 0; /* so many at the start of the ring */

		for (int64_t i = 0; i < c->fresh; i++)
			node[d->C + ((first + i) & (d->C - 1))] = c->largest;
		if (c->fresh > 0)
			climb(node, d->C + first, d->C + end - tail - 1);
		if (tail > 0)
			climb(node, d->C, d->C + tail - 1);
		c->stored += c->fresh;
		c->fresh = 0;
		c->vector_step++;
	}
	return 0;
}
