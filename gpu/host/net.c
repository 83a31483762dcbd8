/* host_net: one prepared network and one chunk's temporaries, owned by the object. See net.h.
 *
 * Few rows go one by one through products of a weight and a vector, which read each weight once; more rows go through
 * the learner's chunks. */
#include <stdlib.h>
#include <string.h>

#include "gpu/host/net.h"
#include "gpu/host/pass.h"
#include "proto/status.h"

#define SINGLE_ROWS 7 /* up to here one row at a time (10 us each, default network) is faster than a padded chunk (78 us) */

struct host_net {
	struct dqn_dims d;
	struct host_weights w;
	struct host_pass pass;
	struct host_temp t;
	float *param; /* copy of the flat parameters (rounded where the precision asks for it) */
	float *index; /* i - (NA - 1)/2 [NA] */
	void *block[6];
};

/* Aligned floats owned by n; NULL when there is no memory. */
static float *piece(struct host_net *n, int i, int64_t floats)
{
	if (posix_memalign(&n->block[i], 64, (size_t)(floats + PANEL_SLACK) * sizeof(float)))
		return NULL;
	memset(n->block[i], 0, (size_t)(floats + PANEL_SLACK) * sizeof(float));
	return n->block[i];
}

int host_net_new(const struct dqn_dims *d, double v_min, double v_max, struct host_net **out, struct fh_status *st)
{
	struct host_net *n = calloc(1, sizeof(*n));
	float *temp;

	if (!n)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a policy network");
	n->d = *d;
	n->pass = host_pass_make(&n->d, &n->w, v_min, v_max);
	n->param = piece(n, 0, d->params);
	n->w.wc = piece(n, 1, (int64_t)d->sumA * d->NA * d->AH);
	n->w.bc = piece(n, 2, (int64_t)d->sumA * d->NA);
	n->index = piece(n, 3, d->NA);
	temp = piece(n, 4, (int64_t)(n->pass.s.temp_bytes / sizeof(float)));
	if (!n->param || !n->w.wc || !n->w.bc || !n->index || !temp) {
		host_net_free(n);
		return fh_fail(st, FH_EXHAUSTED, "no memory for a policy network of %lld parameters", (long long)d->params);
	}
	for (int i = 0; i < d->NA; i++)
		n->index[i] = (float)i - 0.5f * (float)(d->NA - 1);
	n->t = host_temp_at(&n->d, (char *)temp);
	n->w.flat = n->param;
	n->w.rounded = n->param;
	*out = n;
	return 0;
}

void host_net_free(struct host_net *n)
{
	if (!n)
		return;
	for (size_t i = 0; i < sizeof(n->block) / sizeof(n->block[0]); i++)
		free(n->block[i]);
	free(n);
}

void host_net_set(struct host_net *n, const float *param)
{
	memcpy(n->param, param, (size_t)n->d.params * sizeof(*param));
	for (int i = 0; i < host_prepare_round_tasks(&n->pass); i++)
		host_prepare_round(&n->pass, n->param, i);
	for (int i = 0; i < host_prepare_tasks(&n->pass); i++)
		host_prepare(&n->pass, 0, i);
}

/* ---------------------------------------------------------------- one row */

static void row_layer(const struct host_net *n, int index, const float *x, int hidden, float *y)
{
	const struct dqn_layer *l = &n->d.layer[index];

	n->pass.k->vector_product(n->param + l->w, l->out, l->in, x, n->param + l->b, NULL, hidden,
				  hidden ? n->pass.round : 0, y);
}

/* x [SD] -> q at stride PANEL [sumA], logits [sumA][NA] (or NULL). */
static void single_row(struct host_net *n, const float *x, float *q, float *logits)
{
	const struct dqn_dims *d = &n->d;
	const struct kernels *k = n->pass.k;
	float *state = n->t.row, *h1 = state + d->SD, *h2 = h1 + d->H1, *hd = h2 + d->H2, *v = hd + d->head, *y = v + d->NA, top;

	k->round(x, d->SD, n->pass.round, state);
	row_layer(n, DQN_S1, state, 1, h1);
	row_layer(n, DQN_S2, h1, 1, h2);
	row_layer(n, DQN_V1, h2, 1, hd);
	for (int b = 0; b < d->D; b++)
		row_layer(n, DQN_B0 + 2 * b, h2, 1, hd + d->VH + b * d->AH);
	row_layer(n, DQN_V2, hd, 0, v);
	for (int b = 0, row = 0; b < d->D; b++)
		for (int a = 0; a < d->A[b]; a++, row++) {
			k->vector_product(n->w.wc + (int64_t)row * d->NA * d->AH, d->NA, d->AH, hd + d->VH + b * d->AH,
					  n->w.bc + (int64_t)row * d->NA, v, 0, 0, y);
			k->softmax(y, d->NA, n->t.p, &top);
			q[row * PANEL] = n->pass.middle + n->pass.dz * k->dot(n->t.p, n->index, d->NA);
			if (logits)
				memcpy(logits + (int64_t)row * d->NA, y, (size_t)d->NA * sizeof(*y));
		}
}

/* Q of `rows` states, row j's in column j of t.q. */
static void block_rows(struct host_net *n, const float *x, int rows, float *logits)
{
	host_states(&n->pass, x, rows, &n->t);
	host_trunk(&n->pass, &n->t, n->t.h1, n->t.h2, PANEL);
	host_all_actions(&n->pass, &n->t, rows, logits);
}

void host_net_forward(struct host_net *n, const float *x, int64_t rows, int32_t *action, float *q, float *logits)
{
	const struct dqn_dims *d = &n->d;

	for (int64_t at = 0; at < rows; at += PANEL) {
		int count = rows - at < PANEL ? (int)(rows - at) : PANEL;
		float *l = logits ? logits + at * d->sumA * d->NA : NULL;

		if (count > SINGLE_ROWS)
			block_rows(n, x + at * d->SD, count, l);
		for (int j = 0; count <= SINGLE_ROWS && j < count; j++)
			single_row(n, x + (at + j) * d->SD, n->t.q + j, l ? l + (int64_t)j * d->sumA * d->NA : NULL);
		if (action)
			host_greedy(d, n->t.q, count, action + at * d->D);
		for (int j = 0; q && j < count; j++)
			for (int a = 0; a < d->sumA; a++)
				q[(at + j) * d->sumA + a] = n->t.q[a * PANEL + j];
	}
}
