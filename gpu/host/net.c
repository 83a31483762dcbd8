/* host_net: prepared networks of one shape and the temporaries they share, owned by the object. See net.h.
 *
 * Rows are cut into units, each computed by one member of the team: blocks of PANEL rows go through the learner's chunks,
 * groups of a few rows through weights packed for that. Both add up every number in the same order and
 * take no library's products, so a row's bits do not show which way it went. */
#include <stdlib.h>
#include <string.h>

#include "gpu/host/net.h"
#include "gpu/host/pass.h"
#include "proto/status.h"

/* What units take, in microseconds of the default network (AVX-512): only their ratio matters. */
#define BLOCK_COST 78
#define FEW_COST 18
#define TEAM_WORK (INT64_C(1) << 20) /* rows times parameters from which waking the team pays (10 us on one thread) */
#define PACKED_MAX (4 + 2 * FH_BRANCH_MAX)
#define NET_PIECES (3 + 2 * PACKED_MAX)
#define MEMBER_PIECES 7

/* A layer for product_few: the order of the parameters but for the advantages, whose dueling mean is taken out. */
struct packed { int n, k; float *w, *bias; };

struct few { float *x, *h1, *h2, *hd, *out, *start; }; /* [FEW_ROWS] rows of … */

/* One network, ready for products. */
struct net {
	struct host_weights w;
	struct host_pass pass;
	struct packed layer[PACKED_MAX];
	float *param;           /* copy of the flat parameters (rounded where the precision asks for it) */
};

struct host_net {
	struct dqn_dims d;
	struct kernels kernels; /* this CPU's, without a library in them */
	struct net *net;
	int nets;
	struct team *team;
	int members;
	struct host_temp t[TEAM_THREADS_MAX];
	struct few few[TEAM_THREADS_MAX];
	int x_row, h1_row, h2_row, hd_row, out_row, hd_at[1 + FH_BRANCH_MAX], out_at[1 + FH_BRANCH_MAX];
	void **block;           /* whatever the pointers above point to */
	int blocks;
};

/* Rows of one network in a call. Units 0 … blocks - 1 are blocks, then come groups of `group` rows. */
struct span {
	const struct net *net;
	int64_t first, rows, blocks;
	int group, units;
};

struct forward {
	struct host_net *n;
	struct span span[HOST_NETS];
	const float *x;
	int32_t *action;
	float *q, *logits;
};

static int panels(int n)
{
	return (n + FEW_PANEL - 1) / FEW_PANEL * FEW_PANEL;
}

/* Aligned zeros owned by n; NULL when there is no memory. */
static float *piece(struct host_net *n, int64_t floats)
{
	size_t bytes = (size_t)(floats + PANEL_SLACK) * sizeof(float);

	if (posix_memalign(&n->block[n->blocks], 64, bytes))
		return NULL;
	return memset(n->block[n->blocks++], 0, bytes);
}

/* ---------------------------------------------------------------- life */

/* Layer i of `layer`: rows of weights and their length. */
static void packed_shape(const struct dqn_dims *d, int i, int *n, int *k)
{
	int branch = (i - DQN_B0) / 2;

	*n = d->layer[i].out;
	*k = d->layer[i].in;
	if (i >= DQN_B0 && (i - DQN_B0) % 2)
		*n = d->A[branch] * d->NA;
}

static int make_net(struct host_net *n, struct net *net, double v_min, double v_max)
{
	const struct dqn_dims *d = &n->d;

	net->param = piece(n, d->params);
	net->w.wc = piece(n, (int64_t)d->sumA * d->NA * d->AH);
	net->w.bc = piece(n, (int64_t)d->sumA * d->NA);
	if (!net->param || !net->w.wc || !net->w.bc)
		return -1;
	for (int i = 0; i < d->layers; i++) {
		struct packed *p = &net->layer[i];

		packed_shape(d, i, &p->n, &p->k);
		p->w = piece(n, (int64_t)panels(p->n) * p->k);
		p->bias = piece(n, panels(p->n));
		if (!p->w || !p->bias)
			return -1;
	}
	net->w.flat = net->w.rounded = net->param;
	net->pass = host_pass_make(&n->d, &net->w, v_min, v_max);
	net->pass.k = &n->kernels;
	return 0;
}

/* Where the numbers of a few rows lie. */
static void make_rows(struct host_net *n)
{
	const struct dqn_dims *d = &n->d;
	int hd = panels(d->VH), out = panels(d->NA);

	for (int b = 0; b < d->D; b++, hd += panels(d->AH)) {
		n->hd_at[1 + b] = hd;
		n->out_at[1 + b] = out;
		out += panels(d->A[b] * d->NA);
	}
	n->x_row = panels(d->SD);
	n->h1_row = panels(d->H1);
	n->h2_row = panels(d->H2);
	n->hd_row = hd;
	n->out_row = out;
}

static int make_member(struct host_net *n, int m)
{
	struct few *f = &n->few[m];
	float *temp = piece(n, (int64_t)(n->net->pass.s.temp_bytes / sizeof(float)));

	f->x = piece(n, (int64_t)FEW_ROWS * n->x_row);
	f->h1 = piece(n, (int64_t)FEW_ROWS * n->h1_row);
	f->h2 = piece(n, (int64_t)FEW_ROWS * n->h2_row);
	f->hd = piece(n, (int64_t)FEW_ROWS * n->hd_row);
	f->out = piece(n, (int64_t)FEW_ROWS * n->out_row);
	f->start = piece(n, (int64_t)FEW_ROWS * n->out_row);
	if (!temp || !f->x || !f->h1 || !f->h2 || !f->hd || !f->out || !f->start)
		return -1;
	n->t[m] = host_temp_at(&n->d, (char *)temp);
	return 0;
}

int host_nets_new(const struct dqn_dims *d, double v_min, double v_max, int nets, struct team *team, struct host_net **out, struct fh_status *st)
{
	struct host_net *n;
	int bad;

	if (d->sumA > PANEL)
		return fh_fail(st, FH_INVALID, "%d actions over all branches, at most %d are possible", d->sumA, PANEL);
	n = calloc(1, sizeof(*n));
	if (!n)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a policy network");
	n->d = *d;
	n->kernels = *host_kernels();
	n->kernels.product = n->kernels.product_own;
	n->team = team;
	n->members = team_threads(team);
	n->nets = nets;
	n->net = calloc((size_t)nets, sizeof(*n->net));
	n->block = calloc((size_t)nets * NET_PIECES + (size_t)n->members * MEMBER_PIECES, sizeof(*n->block));
	make_rows(n);
	bad = !n->net || !n->block;
	for (int i = 0; !bad && i < nets; i++)
		bad = make_net(n, &n->net[i], v_min, v_max);
	for (int m = 0; !bad && m < n->members; m++)
		bad = make_member(n, m);
	if (bad) {
		host_net_free(n);
		return fh_fail(st, FH_EXHAUSTED, "no memory for %d policy networks of %lld parameters", nets, (long long)d->params);
	}
	*out = n;
	return 0;
}

int host_net_new(const struct dqn_dims *d, double v_min, double v_max, struct team *team, struct host_net **out, struct fh_status *st)
{
	return host_nets_new(d, v_min, v_max, 1, team, out, st);
}

void host_net_free(struct host_net *n)
{
	if (!n)
		return;
	for (int i = 0; i < n->blocks; i++)
		free(n->block[i]);
	free(n->block);
	free(n->net);
	free(n);
}

/* ---------------------------------------------------------------- new parameters */

/* Rows [n][k] of weights into panels. */
static void pack(const struct host_net *n, const struct net *net, int i)
{
	const struct packed *p = &net->layer[i];
	const struct dqn_layer *l = &n->d.layer[i];
	int centred = i >= DQN_B0 && (i - DQN_B0) % 2;
	int64_t first = centred ? (int64_t)host_first_action(&n->d, (i - DQN_B0) / 2) * n->d.NA : 0;
	const float *w = centred ? net->w.wc + first * p->k : net->param + l->w, *bias = centred ? net->w.bc + first : net->param + l->b;

	for (int from = 0; from < p->n; from += FEW_PANEL)
		n->kernels.transpose(w + (int64_t)from * p->k, p->k, p->n - from < FEW_PANEL ? p->n - from : FEW_PANEL, p->k,
				     p->w + (int64_t)from * p->k, FEW_PANEL, 0);
	memcpy(p->bias, bias, (size_t)p->n * sizeof(*bias));
}

struct packing { const struct host_net *n; const struct net *net; };

/* A task of the team. */
static void pack_task(void *ctx, int task, int member)
{
	const struct packing *p = ctx;

	(void)member;
	pack(p->n, p->net, task);
}

void host_nets_set(struct host_net *n, int i, const float *param)
{
	struct net *net = &n->net[i];
	struct packing p = {n, net};

	memcpy(net->param, param, (size_t)n->d.params * sizeof(*param));
	for (int task = 0; task < host_prepare_round_tasks(&net->pass); task++)
		host_prepare_round(&net->pass, net->param, task);
	for (int task = 0; task < host_prepare_tasks(&net->pass); task++)
		host_prepare(&net->pass, 0, task);
	team_run(n->team, n->d.layers, pack_task, &p);
}

void host_net_set(struct host_net *n, const float *param)
{
	host_nets_set(n, 0, param);
}

/* ---------------------------------------------------------------- a few rows */

static void few_layer(const struct host_net *n, const struct net *net, int i, int rows, const float *x, int64_t x_row, const float *start, float *y,
		      int64_t y_row, int hidden)
{
	const struct packed *p = &net->layer[i];
	struct product_few g = {
		.m = rows, .n = p->n, .k = p->k, .x = x, .x_row = x_row, .w = p->w, .bias = p->bias, .start = start, .start_row = n->out_row,
		.y = y, .y_row = y_row, .relu = hidden, .round = hidden ? net->pass.round : 0,
	};

	n->kernels.product_few(&g);
}

/* Logits of one row, an action a column, and their expected values into column j of t->q. */
static void few_values(const struct host_net *n, const struct net *net, const float *out, struct host_temp *t, int j)
{
	const struct dqn_dims *d = &n->d;
	float q[PANEL];

	for (int b = 0, first = 0; b < d->D; first += d->A[b++])
		n->kernels.transpose(out + n->out_at[1 + b], d->NA, d->A[b], d->NA, t->logit + first, PANEL, 0);
	n->kernels.expectation(t->logit, PANEL, d->NA, net->pass.middle, net->pass.dz, q);
	for (int a = 0; a < d->sumA; a++)
		t->q[a * PANEL + j] = q[a];
}

/* Q of at most FEW_ROWS states, row j's in column j of t->q. logits (may be NULL): [rows, sumA, NA]. */
static void few_rows(const struct host_net *n, const struct net *net, const float *x, int rows, const struct few *f, struct host_temp *t, float *logits)
{
	const struct dqn_dims *d = &n->d;

	for (int j = 0; j < rows; j++)
		n->kernels.round(x + (int64_t)j * d->SD, d->SD, net->pass.round, f->x + (int64_t)j * n->x_row);
	few_layer(n, net, DQN_S1, rows, f->x, n->x_row, NULL, f->h1, n->h1_row, 1);
	few_layer(n, net, DQN_S2, rows, f->h1, n->h1_row, NULL, f->h2, n->h2_row, 1);
	for (int h = 0; h <= d->D; h++) /* the value head, then the branches */
		few_layer(n, net, DQN_V1 + 2 * h, rows, f->h2, n->h2_row, NULL, f->hd + n->hd_at[h], n->hd_row, 1);
	few_layer(n, net, DQN_V2, rows, f->hd, n->hd_row, NULL, f->out, n->out_row, 0);
	for (int j = 0; j < rows; j++) /* V under every action */
		for (int b = 0; b < d->D; b++)
			for (int a = 0; a < d->A[b]; a++)
				memcpy(f->start + (int64_t)j * n->out_row + n->out_at[1 + b] + a * d->NA, f->out + (int64_t)j * n->out_row,
				       (size_t)d->NA * sizeof(float));
	for (int b = 0; b < d->D; b++)
		few_layer(n, net, DQN_B0 + 2 * b + 1, rows, f->hd + n->hd_at[1 + b], n->hd_row, f->start + n->out_at[1 + b],
			  f->out + n->out_at[1 + b], n->out_row, 0);
	for (int j = 0; j < rows; j++) {
		const float *out = f->out + (int64_t)j * n->out_row;

		few_values(n, net, out, t, j);
		for (int b = 0, first = 0; logits && b < d->D; first += d->A[b++])
			memcpy(logits + ((int64_t)j * d->sumA + first) * d->NA, out + n->out_at[1 + b], (size_t)(d->A[b] * d->NA) * sizeof(float));
	}
}

/* ---------------------------------------------------------------- units */

/* Q of `rows` states, row j's in column j of t->q. */
static void block_rows(const struct net *net, const float *x, int rows, struct host_temp *t, float *logits)
{
	host_states(&net->pass, x, rows, t);
	host_trunk(&net->pass, t, t->h1, t->h2, PANEL);
	host_all_actions(&net->pass, t, rows, logits);
}

static void forward_task(void *ctx, int task, int member)
{
	const struct forward *f = ctx;
	struct host_net *n = f->n;
	const struct dqn_dims *d = &n->d;
	const struct span *s = f->span;
	struct host_temp *t = &n->t[member];

	for (; task >= s->units; s++)
		task -= s->units;
	int block = task < s->blocks;
	int64_t within = block ? (int64_t)task * PANEL : s->blocks * PANEL + (task - s->blocks) * s->group, at = s->first + within;
	int most = block ? PANEL : s->group, rows = s->rows - within < most ? (int)(s->rows - within) : most;
	float *logits = f->logits ? f->logits + at * d->sumA * d->NA : NULL;

	if (block)
		block_rows(s->net, f->x + at * d->SD, rows, t, logits);
	else
		few_rows(n, s->net, f->x + at * d->SD, rows, &n->few[member], t, logits);
	if (f->action)
		host_greedy(d, t->q, rows, f->action + at * d->D);
	for (int j = 0; f->q && j < rows; j++)
		for (int a = 0; a < d->sumA; a++)
			f->q[(at + j) * d->sumA + a] = t->q[a * PANEL + j];
}

/* How long so many members take for so many blocks and the rows that they leave. */
static int64_t cost(int members, int64_t rows, int64_t blocks)
{
	int64_t left = rows > blocks * PANEL ? rows - blocks * PANEL : 0, groups = (left + FEW_ROWS - 1) / FEW_ROWS;

	return (blocks + members - 1) / members * BLOCK_COST + (groups + members - 1) / members * FEW_COST;
}

/* Into whole blocks, blocks padded, or none, as so many members are done first; what is left into groups of equal size. */
static void cut(struct span *s, int members)
{
	const int64_t choice[] = {s->rows / PANEL, (s->rows + PANEL - 1) / PANEL};
	int64_t left, groups;

	for (int i = 0; i < 2; i++)
		if (cost(members, s->rows, choice[i]) < cost(members, s->rows, s->blocks))
			s->blocks = choice[i];
	left = s->rows > s->blocks * PANEL ? s->rows - s->blocks * PANEL : 0;
	groups = (left + FEW_ROWS - 1) / FEW_ROWS;
	s->group = left ? (int)((left + groups - 1) / groups) : FEW_ROWS;
	s->units = (int)(s->blocks + (left + s->group - 1) / s->group);
}

/* Every network has its share of the members. */
static void run(struct forward *f, int spans)
{
	int64_t rows = f->span[spans - 1].first + f->span[spans - 1].rows;
	int shared = rows * f->n->d.params >= TEAM_WORK, members = shared ? f->n->members : 1, units = 0;

	for (int i = 0; i < spans; i++) {
		cut(&f->span[i], members > spans ? members / spans : 1);
		units += f->span[i].units;
	}
	team_run(shared ? f->n->team : NULL, units, forward_task, f);
}

void host_net_forward(struct host_net *n, const float *x, int64_t rows, int32_t *action, float *q, float *logits)
{
	struct forward f = {.n = n, .span = {{.net = n->net, .rows = rows}}, .x = x, .action = action, .q = q, .logits = logits};

	if (rows > 0)
		run(&f, 1);
}

void host_nets_act(struct host_net *n, const struct act_part *part, int parts, const float *x, int32_t *action)
{
	struct forward f = {.n = n, .x = x, .action = action};

	for (int i = 0, at = 0; i < parts; at += part[i++].rows)
		f.span[i] = (struct span){.net = &n->net[part[i].trial], .first = at, .rows = part[i].rows};
	run(&f, parts);
}
