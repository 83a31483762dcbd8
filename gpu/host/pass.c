/* One chunk through the network: states to Q values of all actions, or to the logits of one action a branch.
 *
 * Invariant: a state's numbers do not depend on the other states of its chunk. */
#include <string.h>

#include "gpu/host/pass.h"

#define PREPARE_ATOMS 16 /* atoms of one preparing task */

struct host_pass host_pass_make(const struct dqn_dims *d, const struct host_weights *w, double v_min, double v_max)
{
	struct host_pass p;

	p.d = d;
	p.k = host_kernels();
	p.w = w;
	p.s = host_strides(d);
	p.round = host_round(d);
	p.middle = (float)(0.5 * (v_min + v_max));
	p.dz = (float)((v_max - v_min) / (d->NA - 1));
	return p;
}

int host_first_action(const struct dqn_dims *d, int b)
{
	int first = 0;

	for (int i = 0; i < b; i++)
		first += d->A[i];
	return first;
}

/* ---------------------------------------------------------------- weights */

int host_prepare_round_tasks(const struct host_pass *p)
{
	return p->round ? (int)((p->d->params + NORM_PART - 1) / NORM_PART) : 0;
}

void host_prepare_round(const struct host_pass *p, const float *param, int task)
{
	int64_t at = (int64_t)task * NORM_PART, n = p->d->params - at < NORM_PART ? p->d->params - at : NORM_PART;

	p->k->round(param + at, n, p->round, p->w->rounded + at);
}

/* Atoms `from` … of one branch's weights [A*NA][AH] and bias, less their mean over actions. */
static void center(const struct host_pass *p, int b, int from, int to)
{
	const struct dqn_dims *d = p->d;
	const struct dqn_layer *l = &d->layer[DQN_B0 + 2 * b + 1];
	int64_t AH = d->AH, first = (int64_t)host_first_action(d, b) * d->NA + from;

	p->k->center(p->w->flat + l->w + from * AH, d->NA * AH, d->A[b], (to - from) * AH, p->w->wc + first * AH);
	p->k->center(p->w->flat + l->b + from, d->NA, d->A[b], to - from, p->w->bc + first);
}

static int atom_blocks(const struct dqn_dims *d)
{
	return (d->NA + PREPARE_ATOMS - 1) / PREPARE_ATOMS;
}

int host_prepare_tasks(const struct host_pass *p)
{
	return atom_blocks(p->d) * p->d->D + 1;
}

void host_prepare(const struct host_pass *p, int with_rows, int task)
{
	const struct dqn_dims *d = p->d;
	int blocks = atom_blocks(d), b = task / blocks, from = task % blocks * PREPARE_ATOMS;
	int to = from + PREPARE_ATOMS < d->NA ? from + PREPARE_ATOMS : d->NA;

	if (b == d->D) {
		if (with_rows)
			p->k->transpose(p->w->flat + d->layer[DQN_V2].w, d->VH, d->NA, d->VH, p->w->v2_t, p->s.atom_row, 0);
		return;
	}
	center(p, b, from, to);
	for (int a = 0; with_rows && a < d->A[b]; a++) {
		int64_t row = host_first_action(d, b) + a;

		p->k->transpose(p->w->wc + (row * d->NA + from) * d->AH, d->AH, to - from, d->AH,
				p->w->wc_t + row * d->AH * p->s.atom_row + from, p->s.atom_row, 0);
	}
}

/* ---------------------------------------------------------------- trunk and heads */

void host_states(const struct host_pass *p, const float *states, int rows, struct host_temp *t)
{
	int SD = p->d->SD;

	p->k->transpose(states, SD, rows, SD, t->x, PANEL, 0);
	for (int i = 0; i < SD; i++)
		for (int j = rows; j < PANEL; j++)
			t->x[i * PANEL + j] = 0.0f;
	if (p->round)
		p->k->round(t->x, (int64_t)SD * PANEL, p->round, t->x);
}

/* out = relu(W in + b), feature-major. */
static void layer(const struct host_pass *p, int index, const float *in, int64_t in_row, float *out, int64_t out_row)
{
	const struct dqn_layer *l = &p->d->layer[index];
	struct product g = {
		.m = l->out, .n = PANEL, .k = l->in,
		.a = p->w->flat + l->w, .a_row = l->in, .a_col = 1,
		.b = in, .b_row = in_row, .c = out, .c_row = out_row,
		.bias = p->w->flat + l->b, .relu = 1, .round = p->round,
	};

	p->k->product(&g);
}

void host_trunk(const struct host_pass *p, struct host_temp *t, float *h1, float *h2, int64_t h_row)
{
	const struct dqn_dims *d = p->d;

	layer(p, DQN_S1, t->x, PANEL, h1, h_row);
	layer(p, DQN_S2, h1, h_row, h2, h_row);
	layer(p, DQN_V1, h2, h_row, t->hd, PANEL);
	for (int b = 0; b < d->D; b++)
		layer(p, DQN_B0 + 2 * b, h2, h_row, t->hd + (int64_t)(d->VH + b * d->AH) * PANEL, PANEL);
}

static void value(const struct host_pass *p, struct host_temp *t)
{
	const struct dqn_layer *l = &p->d->layer[DQN_V2];
	struct product g = {
		.m = l->out, .n = PANEL, .k = l->in,
		.a = p->w->flat + l->w, .a_row = l->in, .a_col = 1,
		.b = t->hd, .b_row = PANEL, .c = t->value, .c_row = PANEL, .bias = p->w->flat + l->b,
	};

	p->k->product(&g);
}

void host_all_actions(const struct host_pass *p, struct host_temp *t, int rows, float *logits)
{
	const struct dqn_dims *d = p->d;
	int row = 0;

	value(p, t);
	for (int b = 0; b < d->D; b++)
		for (int a = 0; a < d->A[b]; a++, row++) {
			struct product g = {
				.m = d->NA, .n = PANEL, .k = d->AH,
				.a = p->w->wc + (int64_t)row * d->NA * d->AH, .a_row = d->AH, .a_col = 1,
				.b = t->hd + (int64_t)(d->VH + b * d->AH) * PANEL, .b_row = PANEL,
				.c = t->logit, .c_row = PANEL, .start = t->value, .start_row = PANEL,
				.bias = p->w->bc + (int64_t)row * d->NA,
			};

			p->k->product(&g);
			p->k->expectation(t->logit, PANEL, d->NA, p->middle, p->dz, t->q + (int64_t)row * PANEL);
			if (logits)
				p->k->transpose(t->logit, PANEL, d->NA, rows, logits + (int64_t)row * d->NA,
						(int64_t)d->sumA * d->NA, 0);
		}
}

void host_greedy(const struct dqn_dims *d, const float *q, int rows, int32_t *action)
{
	for (int b = 0, first = 0; b < d->D; first += d->A[b++])
		for (int j = 0; j < rows; j++) {
			int best = 0;

			for (int a = 1; a < d->A[b]; a++)
				if (q[(first + a) * PANEL + j] > q[(first + best) * PANEL + j])
					best = a;
			action[j * d->D + b] = best;
		}
}

/* ---------------------------------------------------------------- one action a branch */

void host_group(const struct dqn_dims *d, const int32_t *action, int rows, int b, int32_t *list, int32_t *end)
{
	int at = 0;

	for (int a = 0; a < d->A[b]; a++) {
		for (int j = 0; j < rows; j++)
			if (action[j * d->D + b] == a)
				list[at++] = j;
		end[a] = at;
	}
}

void host_one_action(const struct host_pass *p, struct host_temp *t, const float *hd_r, const int32_t *action, int rows,
		     float *out, int64_t out_row, int64_t out_branch)
{
	const struct dqn_dims *d = p->d;
	int32_t list[PANEL], end[PANEL];
	struct product_rows v = {
		.m = rows, .n = d->NA, .k = d->VH, .row = list, .a = hd_r, .a_row = p->s.head_row,
		.b = p->w->v2_t, .b_row = p->s.atom_row, .c = t->value_r, .c_row = p->s.atom_row,
		.bias = p->w->flat + d->layer[DQN_V2].b,
	};

	for (int j = 0; j < rows; j++)
		list[j] = j;
	p->k->product_rows(&v);
	for (int b = 0, row = 0; b < d->D; b++) {
		host_group(d, action, rows, b, list, end);
		for (int a = 0, from = 0; a < d->A[b]; from = end[a++], row++) {
			struct product_rows g = {
				.m = end[a] - from, .n = d->NA, .k = d->AH, .row = list + from,
				.a = hd_r + d->VH + (int64_t)b * d->AH, .a_row = p->s.head_row,
				.b = p->w->wc_t + (int64_t)row * d->AH * p->s.atom_row, .b_row = p->s.atom_row,
				.c = out + b * out_branch, .c_row = out_row,
				.start = t->value_r, .start_row = p->s.atom_row,
				.bias = p->w->bc + (int64_t)row * d->NA,
			};

			p->k->product_rows(&g);
		}
	}
}
