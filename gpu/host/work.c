/* Where everything lies in a trial's scratch. Pure computation, any thread. */
#include "gpu/host/round.h"
#include "gpu/host/work.h"

#define CARVE_ALIGN 64
#define PAGE 4096

/* Hands out aligned pieces of a block; with base NULL it only counts. */
struct carve { char *base; size_t at; };

static void *carve(struct carve *c, int64_t count, size_t size)
{
	void *p = c->base ? c->base + c->at : NULL;

	c->at += ((size_t)count * size + CARVE_ALIGN - 1) / CARVE_ALIGN * CARVE_ALIGN;
	return p;
}

static float *floats(struct carve *c, int64_t count)
{
	return carve(c, count, sizeof(float));
}

static int64_t up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

/* A row of n floats: whole vectors, an odd number of cache lines. */
static int64_t odd_row(int64_t n)
{
	int64_t row = up(n, 16);

	return (row / 16) % 2 ? row : row + 16;
}

static void lay_out_temp(const struct dqn_dims *d, const struct host_strides *s, struct carve *c, struct host_temp *t)
{
	t->x = floats(c, up(d->SD, 16) * PANEL);
	t->h1 = floats(c, up(d->H1, 16) * PANEL);
	t->h2 = floats(c, up(d->H2, 16) * PANEL);
	t->hd = floats(c, up(d->head, 16) * PANEL);
	t->value = floats(c, (int64_t)d->NA * PANEL);
	t->logit = floats(c, (int64_t)d->NA * PANEL);
	t->hd_r = floats(c, PANEL * s->head_row);
	t->value_r = floats(c, PANEL * s->atom_row);
	t->q = floats(c, (int64_t)d->sumA * PANEL);
	t->p = floats(c, 3 * s->atom_row);
}

/* All strides; the bytes of a member's temporaries follow from them. */
static struct host_strides rows_of(const struct dqn_dims *d)
{
	struct host_strides s = {
		.Bp = (int)up(d->B, PANEL), .chunks = (int)up(d->B, PANEL) / PANEL, .batch_row = odd_row(up(d->B, PANEL)),
		.state_row = odd_row(d->SD), .h1_row = odd_row(d->H1), .h2_row = odd_row(d->H2), .head_row = odd_row(d->head),
		.atom_row = up(d->NA, PANEL), .temp_bytes = 0,
	};

	return s;
}

struct host_strides host_strides(const struct dqn_dims *d)
{
	struct host_strides s = rows_of(d);
	struct carve c = {NULL, 0};
	struct host_temp t;

	lay_out_temp(d, &s, &c, &t);
	s.temp_bytes = (size_t)up((int64_t)c.at, PAGE);
	return s;
}

struct host_temp host_temp_at(const struct dqn_dims *d, char *temp)
{
	struct host_strides s = rows_of(d);
	struct carve c = {temp, 0};
	struct host_temp t;

	lay_out_temp(d, &s, &c, &t);
	return t;
}

static void weights(const struct dqn_dims *d, const struct host_strides *s, struct carve *c, struct host_weights *w)
{
	w->flat = NULL;
	w->rounded = host_round(d) ? floats(c, d->params) : NULL;
	w->wc = floats(c, (int64_t)d->sumA * d->NA * d->AH + PANEL_SLACK);
	w->bc = floats(c, (int64_t)d->sumA * d->NA + PANEL_SLACK);
	w->wc_t = floats(c, (int64_t)d->sumA * d->AH * s->atom_row);
	w->v2_t = floats(c, d->VH * s->atom_row);
}

static void lay_out(const struct dqn_dims *d, struct carve *c, struct host_work *w)
{
	struct host_strides s = host_strides(d);

	weights(d, &s, c, &w->online);
	weights(d, &s, c, &w->target);
	w->x_r = floats(c, s.Bp * s.state_row + PANEL_SLACK);
	w->h1_f = floats(c, up(d->H1, 16) * s.batch_row);
	w->h2_f = floats(c, up(d->H2, 16) * s.batch_row);
	w->h1_r = floats(c, s.Bp * s.h1_row + PANEL_SLACK);
	w->h2_r = floats(c, s.Bp * s.h2_row + PANEL_SLACK);
	w->hd_r = floats(c, s.Bp * s.head_row + PANEL_SLACK);
	w->next = floats(c, s.Bp * d->D * s.atom_row);
	w->g = floats(c, s.Bp * d->D * s.atom_row);
	w->gv = floats(c, s.Bp * s.atom_row);
	w->dh1 = floats(c, d->H1 * s.batch_row);
	w->dh2 = floats(c, d->H2 * s.batch_row);
	w->dhd = floats(c, d->head * s.batch_row);
	w->dhd_r = floats(c, s.Bp * s.head_row);
	w->astar = carve(c, (int64_t)s.Bp * d->D, sizeof(int32_t));
	w->group = carve(c, (int64_t)d->B * d->D, sizeof(int32_t));
	w->group_end = carve(c, d->sumA + d->D, sizeof(int32_t));
	w->priority = floats(c, s.Bp);
	w->taken_q = floats(c, s.Bp);
	w->edge = floats(c, s.Bp);
	w->tree_node = carve(c, d->B, sizeof(int32_t));
	w->norm_part = carve(c, (d->params + NORM_PART - 1) / NORM_PART, sizeof(double));
	w->temp = carve(c, TEAM_THREADS_MAX, s.temp_bytes);
}

size_t host_work_bytes(const struct dqn_dims *d)
{
	struct carve c = {NULL, 0};
	struct host_work w;

	lay_out(d, &c, &w);
	return c.at;
}

struct host_work host_work_at(const struct dqn_dims *d, void *scratch)
{
	struct carve c = {scratch, 0};
	struct host_work w;

	lay_out(d, &c, &w);
	return w;
}

int host_round(const struct dqn_dims *d)
{
	if (d->precision == FH_PRECISION_BF16)
		return BF16_DROPPED_BITS;
	return d->precision == FH_PRECISION_TF32 ? TF32_DROPPED_BITS : 0;
}
