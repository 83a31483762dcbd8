/* BACKWARD: from the gradient of the taken actions' logits to T_GRAD.
 *
 * First each chunk takes its samples' gradients down to the activations, then each task sums one panel of one weight
 * over the batch, in order of samples. With logits_a = V + hd*(W_a - mean W)', the gradient g of action a's logits
 * reaches hd through the centered weights, and W_a' as (1{a' = a} - 1/A) g hd': the products run over one action's
 * samples only and the mean over actions is taken from their results. */
#include <string.h>

#include "gpu/host/pass.h"
#include "gpu/host/stages.h"

struct backward {
	const struct dqn_dims *d;
	const struct kernels *k;
	struct host_work w;
	struct host_strides s;
	int round;
	const float *flat; /* weights as the products read them */
	const int32_t *action;
	float *grad;
};

static int panels(int n)
{
	return (n + PANEL - 1) / PANEL;
}

/* ---------------------------------------------------------------- down to the activations */

static void head_hidden(const struct backward *p, int first, int rows)
{
	const struct dqn_dims *d = p->d;
	const float *hd = p->w.hd_r + first * p->s.head_row;
	float *dhd = p->w.dhd_r + first * p->s.head_row;
	int32_t list[PANEL], end[PANEL];
	struct product_rows v = {
		.m = rows, .n = d->VH, .k = d->NA, .row = list,
		.a = p->w.gv + first * p->s.atom_row, .a_row = p->s.atom_row,
		.b = p->flat + d->layer[DQN_V2].w, .b_row = d->VH, .c = dhd, .c_row = p->s.head_row,
		.gate = hd, .gate_row = p->s.head_row, .round = p->round,
	};

	for (int j = 0; j < rows; j++)
		list[j] = j;
	p->k->product_rows(&v);
	for (int b = 0, row = 0; b < d->D; b++) {
		int at = d->VH + b * d->AH;

		host_group(d, p->action + (int64_t)first * d->D, rows, b, list, end);
		for (int a = 0, from = 0; a < d->A[b]; from = end[a++], row++) {
			struct product_rows g = {
				.m = end[a] - from, .n = d->AH, .k = d->NA, .row = list + from,
				.a = p->w.g + ((int64_t)first * d->D + b) * p->s.atom_row, .a_row = d->D * p->s.atom_row,
				.b = p->w.online.wc + (int64_t)row * d->NA * d->AH, .b_row = d->AH,
				.c = dhd + at, .c_row = p->s.head_row,
				.gate = hd + at, .gate_row = p->s.head_row, .round = p->round,
			};

			p->k->product_rows(&g);
		}
	}
	for (int j = rows; j < PANEL; j++)
		memset(dhd + j * p->s.head_row, 0, (size_t)d->head * sizeof(*dhd));
}

/* in = W' out, added to what is there when `add`; the last one is gated by the activation h. */
static void layer_back(const struct backward *p, int index, const float *out, float *in, int add, const float *h)
{
	const struct dqn_layer *l = &p->d->layer[index];
	struct product g = {
		.m = l->in, .n = PANEL, .k = l->out, .a = p->flat + l->w, .a_row = 1, .a_col = l->in,
		.b = out, .b_row = p->s.batch_row, .c = in, .c_row = p->s.batch_row,
		.start = add ? in : NULL, .start_row = p->s.batch_row,
		.gate = h, .gate_row = p->s.batch_row, .round = h ? p->round : 0,
	};

	p->k->product(&g);
}

static void chunk_task(void *ctx, int chunk, int member)
{
	const struct backward *p = ctx;
	const struct dqn_dims *d = p->d;
	int first = chunk * PANEL, rows = d->B - first < PANEL ? d->B - first : PANEL;
	float *dhd = p->w.dhd + first, *dh2 = p->w.dh2 + first, *dh1 = p->w.dh1 + first;

	(void)member;
	head_hidden(p, first, rows);
	p->k->transpose(p->w.dhd_r + first * p->s.head_row, p->s.head_row, PANEL, d->head, dhd, p->s.batch_row, 0);
	layer_back(p, DQN_V1, dhd, dh2, 0, NULL);
	for (int b = 0; b < d->D; b++)
		layer_back(p, DQN_B0 + 2 * b, dhd + (d->VH + b * d->AH) * p->s.batch_row, dh2, 1,
			   b == d->D - 1 ? p->w.h2_f + first : NULL);
	layer_back(p, DQN_S2, dh2, dh1, 0, p->w.h1_f + first);
}

/* ---------------------------------------------------------------- gradients of weights */

/* One panel of columns of a layer whose output gradients are feature-major: dy [out][batch_row], x [B][x_row]. */
static void weight_panel(const struct backward *p, int index, const float *dy, const float *x, int64_t x_row, int panel)
{
	const struct dqn_layer *l = &p->d->layer[index];
	int col = panel * PANEL;
	struct product g = {
		.m = l->out, .n = l->in - col < PANEL ? l->in - col : PANEL, .k = p->d->B,
		.a = dy, .a_row = p->s.batch_row, .a_col = 1, .b = x + col, .b_row = x_row,
		.c = p->grad + l->w + col, .c_row = l->in,
	};

	p->k->product(&g);
	for (int i = 0; panel == 0 && i < l->out; i++)
		p->grad[l->b + i] = p->k->sum(dy + i * p->s.batch_row, p->d->B);
}

static void value_panel(const struct backward *p, int panel)
{
	const struct dqn_dims *d = p->d;
	const struct dqn_layer *l = &d->layer[DQN_V2];
	int col = panel * PANEL;
	struct product g = {
		.m = d->NA, .n = d->VH - col < PANEL ? d->VH - col : PANEL, .k = d->B,
		.a = p->w.gv, .a_row = 1, .a_col = p->s.atom_row, .b = p->w.hd_r + col, .b_row = p->s.head_row,
		.c = p->grad + l->w + col, .c_row = d->VH,
	};
	float *bias = p->grad + l->b;

	p->k->product(&g);
	if (panel)
		return;
	memset(bias, 0, (size_t)d->NA * sizeof(*bias));
	for (int j = 0; j < d->B; j++)
		for (int i = 0; i < d->NA; i++)
			bias[i] += p->w.gv[j * p->s.atom_row + i];
}

static void advantage_bias(const struct backward *p, int b, const int32_t *list, const int32_t *end)
{
	const struct dqn_dims *d = p->d;
	float *bias = p->grad + d->layer[DQN_B0 + 2 * b + 1].b;

	memset(bias, 0, (size_t)d->A[b] * d->NA * sizeof(*bias));
	for (int a = 0, at = 0; a < d->A[b]; a++)
		for (; at < end[a]; at++) {
			const float *g = p->w.g + ((int64_t)list[at] * d->D + b) * p->s.atom_row;

			for (int i = 0; i < d->NA; i++)
				bias[a * d->NA + i] += g[i];
		}
	p->k->center(bias, d->NA, d->A[b], d->NA, bias);
}

static void advantage_panel(const struct backward *p, int b, int panel)
{
	const struct dqn_dims *d = p->d;
	const struct dqn_layer *l = &d->layer[DQN_B0 + 2 * b + 1];
	const int32_t *list = p->w.group + (int64_t)b * d->B, *end = p->w.group_end + host_first_action(d, b);
	int col = panel * PANEL, n = d->AH - col < PANEL ? d->AH - col : PANEL;

	for (int a = 0, from = 0; a < d->A[b]; from = end[a++]) {
		struct product g = {
			.m = d->NA, .n = n, .k = end[a] - from, .pick = list + from,
			.a = p->w.g + b * p->s.atom_row, .a_row = 1, .a_col = d->D * p->s.atom_row,
			.b = p->w.hd_r + d->VH + (int64_t)b * d->AH + col, .b_row = p->s.head_row,
			.c = p->grad + l->w + (int64_t)a * d->NA * d->AH + col, .c_row = d->AH,
		};

		p->k->product(&g);
	}
	for (int i = 0; i < d->NA; i++) { /* the mean over actions */
		float *row = p->grad + l->w + (int64_t)i * d->AH + col;

		p->k->center(row, (int64_t)d->NA * d->AH, d->A[b], n, row);
	}
	if (!panel)
		advantage_bias(p, b, list, end);
}

/* Tasks in this order: s2, the first head layers, s1, the second head layers; big ones first. */
static int weight_tasks(const struct dqn_dims *d)
{
	return panels(d->H1) + (1 + d->D) * panels(d->H2) + panels(d->SD) + panels(d->VH) + d->D * panels(d->AH);
}

static void weight_task(void *ctx, int task, int member)
{
	const struct backward *p = ctx;
	const struct dqn_dims *d = p->d;
	const struct host_strides *s = &p->s;
	int heads = (1 + d->D) * panels(d->H2);

	(void)member;
	if (task < panels(d->H1)) {
		weight_panel(p, DQN_S2, p->w.dh2, p->w.h1_r, s->h1_row, task);
		return;
	}
	task -= panels(d->H1);
	if (task < heads) {
		int head = task / panels(d->H2), at = head ? d->VH + (head - 1) * d->AH : 0;

		weight_panel(p, head ? DQN_B0 + 2 * (head - 1) : DQN_V1, p->w.dhd + at * s->batch_row, p->w.h2_r, s->h2_row,
			     task % panels(d->H2));
		return;
	}
	task -= heads;
	if (task < panels(d->SD)) {
		weight_panel(p, DQN_S1, p->w.dh1, p->w.x_r, s->state_row, task);
		return;
	}
	task -= panels(d->SD);
	if (task < panels(d->VH))
		value_panel(p, task);
	else
		advantage_panel(p, (task - panels(d->VH)) / panels(d->AH), (task - panels(d->VH)) % panels(d->AH));
}

int host_dqn_backward(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	struct team *team = ((struct host_priv *)x->priv)->team;

	(void)st;
	for (int t = 0; t < d->P; t++) {
		struct backward p = {
			.d = d, .k = host_kernels(), .w = host_work_at(d, host_tensor(x, T_SCRATCH, t)),
			.s = host_strides(d), .round = host_round(d), .action = host_tensor(x, T_A, t),
			.grad = host_tensor(x, T_GRAD, t),
		};

		p.flat = p.w.online.rounded ? p.w.online.rounded : host_tensor(x, T_PARAM, t);
		for (int b = 0; b < d->D; b++)
			host_group(d, p.action, d->B, b, p.w.group + (int64_t)b * d->B,
				   p.w.group_end + host_first_action(d, b));
		team_run(team, p.s.chunks, chunk_task, &p);
		team_run(team, weight_tasks(d), weight_task, &p);
	}
	return 0;
}
