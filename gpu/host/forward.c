/* POLICY and FORWARD: chunks of states through the online network, and next states through both.
 *
 * Each chunk is one task. FORWARD leaves behind what the loss needs (T_LOGITS of s, astar and the target's logits of
 * s') and what the weights' gradients need (states and activations of s, row-major and feature-major). */
#include <string.h>

#include "gpu/host/pass.h"
#include "gpu/host/stages.h"

struct forward {
	struct exec *x;
	const struct dqn_dims *d;
	const struct dqn_clock *c;
	struct host_work w;
	struct host_pass online, target;
	int nets, with_rows; /* of the preparing tasks */
	int trial;
};

static void round_task(void *ctx, int task, int member)
{
	struct forward *f = ctx;
	int tasks = host_prepare_round_tasks(&f->online), net = task / tasks;

	(void)member;
	host_prepare_round(net ? &f->target : &f->online, host_tensor(f->x, net ? T_TARGET : T_PARAM, f->trial), task % tasks);
}

static void prepare_task(void *ctx, int task, int member)
{
	struct forward *f = ctx;
	int tasks = host_prepare_tasks(&f->online);

	(void)member;
	host_prepare(task / tasks ? &f->target : &f->online, f->with_rows, task % tasks);
}

/* nets 1: the online network alone, without the copies that only FORWARD uses. */
static void prepare(struct forward *f, struct exec *x, int trial, int nets)
{
	struct team *team = ((struct host_priv *)x->priv)->team;

	f->x = x;
	f->d = x->dims;
	f->trial = trial;
	f->c = host_tensor(x, T_CLOCK, trial);
	f->w = host_work_at(f->d, host_tensor(x, T_SCRATCH, trial));
	f->w.online.flat = f->w.online.rounded ? f->w.online.rounded : host_tensor(x, T_PARAM, trial);
	f->w.target.flat = f->w.target.rounded ? f->w.target.rounded : host_tensor(x, T_TARGET, trial);
	f->online = host_pass_make(f->d, &f->w.online, f->c->v_min, f->c->v_max);
	f->target = host_pass_make(f->d, &f->w.target, f->c->v_min, f->c->v_max);
	f->nets = nets;
	f->with_rows = nets > 1;
	if (f->online.round)
		team_run(team, nets * host_prepare_round_tasks(&f->online), round_task, f);
	team_run(team, nets * host_prepare_tasks(&f->online), prepare_task, f);
}

static struct host_temp temp_of(const struct forward *f, int member)
{
	return host_temp_at(f->d, f->w.temp + (size_t)member * f->online.s.temp_bytes);
}

static int chunk_rows(int total, int chunk)
{
	return total - chunk * PANEL < PANEL ? total - chunk * PANEL : PANEL;
}

/* ---------------------------------------------------------------- policy */

static void policy_task(void *ctx, int chunk, int member)
{
	struct forward *f = ctx;
	const struct dqn_dims *d = f->d;
	struct host_temp t = temp_of(f, member);
	int rows = chunk_rows(d->N, chunk), first = chunk * PANEL;

	host_states(&f->online, (const float *)host_tensor(f->x, T_OBS, f->trial) + (int64_t)first * d->SD, rows, &t);
	host_trunk(&f->online, &t, t.h1, t.h2, PANEL);
	host_all_actions(&f->online, &t, rows, NULL);
	host_greedy(d, t.q, rows, (int32_t *)host_tensor(f->x, T_ACTION, f->trial) + (int64_t)first * d->D);
}

int host_dqn_policy(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	struct forward f;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		prepare(&f, x, p, 1);
		team_run(((struct host_priv *)x->priv)->team, (d->N + PANEL - 1) / PANEL, policy_task, &f);
	}
	return 0;
}

/* ---------------------------------------------------------------- forward */

/* s' : greedy actions of the online network, then the target's logits there. */
static void next_states(struct forward *f, struct host_temp *t, int first, int rows)
{
	const struct dqn_dims *d = f->d;
	const struct host_strides *s = &f->online.s;
	int32_t *astar = f->w.astar + (int64_t)first * d->D;

	host_states(&f->online, (const float *)host_tensor(f->x, T_S2, f->trial) + (int64_t)first * d->SD, rows, t);
	host_trunk(&f->online, t, t->h1, t->h2, PANEL);
	host_all_actions(&f->online, t, rows, NULL);
	host_greedy(d, t->q, rows, astar);
	host_trunk(&f->target, t, t->h1, t->h2, PANEL);
	f->target.k->transpose(t->hd, PANEL, d->head, PANEL, t->hd_r, s->head_row, 0);
	host_one_action(&f->target, t, t->hd_r, astar, rows, f->w.next + (int64_t)first * d->D * s->atom_row,
			d->D * s->atom_row, s->atom_row);
}

static void states(struct forward *f, struct host_temp *t, int first, int rows)
{
	const struct dqn_dims *d = f->d;
	const struct host_strides *s = &f->online.s;
	const struct kernels *k = f->online.k;
	float *h1 = f->w.h1_f + first, *h2 = f->w.h2_f + first, *hd_r = f->w.hd_r + first * s->head_row;

	host_states(&f->online, (const float *)host_tensor(f->x, T_S, f->trial) + (int64_t)first * d->SD, rows, t);
	k->transpose(t->x, PANEL, d->SD, PANEL, f->w.x_r + first * s->state_row, s->state_row, 0);
	host_trunk(&f->online, t, h1, h2, s->batch_row);
	k->transpose(h1, s->batch_row, d->H1, PANEL, f->w.h1_r + first * s->h1_row, s->h1_row, 0);
	k->transpose(h2, s->batch_row, d->H2, PANEL, f->w.h2_r + first * s->h2_row, s->h2_row, 0);
	k->transpose(t->hd, PANEL, d->head, PANEL, hd_r, s->head_row, 0);
	host_one_action(&f->online, t, hd_r, (const int32_t *)host_tensor(f->x, T_A, f->trial) + (int64_t)first * d->D, rows,
			(float *)host_tensor(f->x, T_LOGITS, f->trial) + (int64_t)first * d->D * d->NA,
			(int64_t)d->D * d->NA, d->NA);
}

static void forward_task(void *ctx, int chunk, int member)
{
	struct forward *f = ctx;
	struct host_temp t = temp_of(f, member);
	int first = chunk * PANEL, rows = chunk_rows(f->d->B, chunk);

	next_states(f, &t, first, rows);
	states(f, &t, first, rows);
}

int host_dqn_forward(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	struct forward f;

	(void)st;
	for (int p = 0; p < d->P; p++) {
		prepare(&f, x, p, 2);
		team_run(((struct host_priv *)x->priv)->team, f.online.s.chunks, forward_task, &f);
	}
	return 0;
}
