/* The pictures of `fhctl plot` (chart.h).
 *
 * Each section takes a strip of the page from `top` on and has a fixed height, so the page is as high as the sum. Bars are
 * spaced evenly: nights and weekends take no room. One thread. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/chart.h"

#define PAGE_WIDTH 980.0
#define LEFT 84.0
#define RIGHT 24.0
#define HEAD_HEIGHT 92.0
#define GAP 34.0          /* above a panel, for its title */
#define FOOT 40.0         /* below a section, for its x labels */
#define MAIN_HEIGHT 270.0
#define SIDE_HEIGHT 92.0
#define LOSS_HEIGHT 170.0
#define MARK_SPACING 5.0  /* pixels between two marks of one kind */
#define MEAN_SHARE 60     /* a dense position's mean runs over this share of the bars */
#define LOG_RATIO 50.0    /* a loss that falls by more than this is drawn in powers of ten */

int training_add(struct training *t, double step, double loss, double q, struct fh_status *st)
{
	if (t->n == t->cap) {
		int64_t cap = t->cap ? t->cap * 2 : 256;
		double **const array[] = {&t->step, &t->loss, &t->q};
		for (int i = 0; i < 3; i++) {
			double *p = realloc(*array[i], (size_t)cap * sizeof *p);
			if (!p)
				return fh_fail(st, FH_EXHAUSTED, "no memory for %lld samples", (long long)cap);
			*array[i] = p;
		}
		t->cap = cap;
	}
	t->step[t->n] = step;
	t->loss[t->n] = loss;
	t->q[t->n++] = q;
	return 0;
}

int training_add_validation(struct training *t, double step, double sharpe, struct fh_status *st)
{
	if (t->validations == t->validations_cap) {
		int64_t cap = t->validations_cap ? t->validations_cap * 2 : 64;
		double **const array[] = {&t->at, &t->sharpe};
		for (int i = 0; i < 2; i++) {
			double *p = realloc(*array[i], (size_t)cap * sizeof *p);
			if (!p)
				return fh_fail(st, FH_EXHAUSTED, "no memory for %lld samples", (long long)cap);
			*array[i] = p;
		}
		t->validations_cap = cap;
	}
	t->at[t->validations] = step;
	t->sharpe[t->validations++] = sharpe;
	return 0;
}

void training_release(struct training *t)
{
	free(t->step);
	free(t->loss);
	free(t->q);
	free(t->at);
	free(t->sharpe);
	memset(t, 0, sizeof *t);
}

static struct panel panel_at(double top, double height, double x0, double x1)
{
	return (struct panel){LEFT, top, PAGE_WIDTH - LEFT - RIGHT, height, x0, x1, 0, 1};
}

static void nothing(struct svg *s, const struct panel *p, const char *why)
{
	svg_text(s, p->x + p->w / 2, p->y + p->h / 2, "sub", "middle", why);
}

/* ---- equity and drawdown */

static double first_close(const struct trace *t, int64_t *at)
{
	for (*at = 0; *at < t->n; (*at)++)
		if (isfinite(t->close[*at]))
			return t->close[*at];
	return NAN;
}

/* What holding max_position from the first close on would have been, before costs. */
static void hold_line(const struct trace *t, double *v)
{
	int64_t at;
	double c0 = first_close(t, &at);

	for (int64_t i = 0; i < t->n; i++)
		v[i] = i < at ? t->equity[0] : t->equity[0] + t->max_position * t->multiplier * (t->close[i] - c0);
}

static void drawdown(const struct trace *t, double *v)
{
	double peak = t->equity[0];

	for (int64_t i = 0; i < t->n; i++) {
		peak = t->equity[i] > peak ? t->equity[i] : peak;
		v[i] = peak > 0 ? (t->equity[i] - peak) / peak : 0;
	}
}

static double draw_equity(struct svg *s, double top, const struct trace *t, double *v)
{
	static const char *const both[] = {"a", "agent", "b", "buy and hold (no costs)", NULL};
	struct panel p = panel_at(top + GAP, MAIN_HEIGHT, 0, (double)(t->n - 1));
	struct panel d = panel_at(p.y + p.h + GAP, SIDE_HEIGHT, p.x0, p.x1);
	int hold = t->multiplier > 0 && t->max_position > 0;

	panel_fit(&p, t->equity, t->n);
	if (hold) {
		hold_line(t, v);
		for (int64_t i = 0; i < t->n; i++)
			panel_include(&p, v[i]);
	}
	panel_pad(&p, 0.05);
	panel_frame(s, &p, "Equity", UNIT_REAL);
	panel_x_times(s, &p, t->ts, t->n, 0);
	if (hold) {
		panel_line(s, &p, NULL, v, t->n, "b");
		panel_legend(s, &p, both);
	}
	panel_line(s, &p, NULL, t->equity, t->n, "a");

	drawdown(t, v);
	panel_fit(&d, v, t->n);
	panel_include(&d, 0);
	d.y0 = d.y0 < -1e-6 ? d.y0 * 1.1 : -0.01;
	panel_frame(s, &d, "Drawdown", UNIT_PERCENT);
	panel_x_times(s, &d, t->ts, t->n, 1);
	panel_area(s, &d, v, t->n, 0, "loss");
	return d.y + d.h + FOOT;
}

/* ---- trades */

enum mark { MARK_BUY, MARK_SELL, MARK_EXIT, MARKS };

static void draw_mark(struct svg *s, const struct panel *p, enum mark m, double x, double y)
{
	double px = panel_px(p, x), py = panel_py(p, y);

	if (!isfinite(px) || !isfinite(py) || py < p->y || py > p->y + p->h)
		return;
	if (m == MARK_EXIT)
		svg_put(s, "<path class=\"exit\" d=\"M%.1f %.1fl6 6m0 -6l-6 6\"/>\n", px - 3, py - 3);
	else if (m == MARK_BUY)
		svg_put(s, "<path class=\"buy\" d=\"M%.1f %.1fl4 7h-8Z\"/>\n", px, py);
	else
		svg_put(s, "<path class=\"sell\" d=\"M%.1f %.1fl4 -7h-8Z\"/>\n", px, py);
}

/* Where orders come faster than a mark is wide, one of a kind stands for its neighbours. */
static int64_t draw_marks(struct svg *s, const struct panel *p, const struct trace *t, int64_t *all)
{
	double last[MARKS] = {-1e9, -1e9, -1e9};
	int64_t drawn = 0;

	*all = 0;
	for (int64_t i = 0; i < t->n; i++) {
		double px = panel_px(p, (double)i);
		enum mark m = t->fill[i] > 0 ? MARK_BUY : MARK_SELL;
		if (t->fill[i] != 0) {
			++*all;
			if (px - last[m] >= MARK_SPACING) {
				draw_mark(s, p, m, (double)i, t->fill_price[i]);
				last[m] = px;
				drawn++;
			}
		}
		if (t->exit_fill[i] != 0) {
			++*all;
			if (px - last[MARK_EXIT] >= MARK_SPACING) {
				draw_mark(s, p, MARK_EXIT, (double)i, t->exit_price[i]);
				last[MARK_EXIT] = px;
				drawn++;
			}
		}
	}
	return drawn;
}

/* A position that changes more often than every third pixel is a smear: its outline is left out and its mean drawn over it. */
static void draw_position(struct svg *s, const struct panel *q, const struct trace *t, double *v)
{
	int64_t changes = 0, width = t->n / MEAN_SHARE < 2 ? 2 : t->n / MEAN_SHARE;
	char title[96];
	double sum = 0;

	for (int64_t i = 1; i < t->n; i++)
		changes += t->position[i] != t->position[i - 1];
	int dense = (double)changes > q->w / 3;
	for (int64_t i = 0; dense && i < t->n; i++) {
		sum += isfinite(t->position[i]) ? t->position[i] : 0;
		if (i >= width)
			sum -= isfinite(t->position[i - width]) ? t->position[i - width] : 0;
		v[i] = sum / (double)(i < width ? i + 1 : width);
	}
	snprintf(title, sizeof title, dense ? "Position, with its mean over %lld bars" : "Position", (long long)width);
	panel_frame(s, q, title, UNIT_REAL);
	panel_x_times(s, q, t->ts, t->n, 1);
	panel_area(s, q, t->position, t->n, 1, dense ? "dense" : "hold");
	if (dense)
		panel_line(s, q, NULL, v, t->n, "a");
}

static double draw_trades(struct svg *s, double top, const struct trace *t, double *v)
{
	static const char *const legend[] = {"buy", "buy", "sell", "sell", "exit", "barrier or horizon", NULL};
	struct panel p = panel_at(top + GAP, MAIN_HEIGHT, 0, (double)(t->n - 1));
	struct panel q = panel_at(p.y + p.h + GAP, SIDE_HEIGHT, p.x0, p.x1);
	int64_t all, drawn;
	char title[96];

	panel_fit(&p, t->close, t->n);
	panel_pad(&p, 0.06);
	size_t before = s->len;
	drawn = draw_marks(s, &p, t, &all); /* counts first: the title names them */
	s->len = before;
	if (drawn < all)
		snprintf(title, sizeof title, "Price, %lld of %lld fills drawn", (long long)drawn, (long long)all);
	else
		snprintf(title, sizeof title, "Price, %lld fills", (long long)all);
	panel_frame(s, &p, title, UNIT_REAL);
	panel_x_times(s, &p, t->ts, t->n, 0);
	panel_legend(s, &p, legend);
	panel_line(s, &p, NULL, t->close, t->n, "thin");
	draw_marks(s, &p, t, &all);

	panel_fit(&q, t->position, t->n);
	panel_include(&q, 0);
	panel_pad(&q, 0.08);
	draw_position(s, &q, t, v);
	return q.y + q.h + FOOT;
}

/* ---- training */

static double draw_series(struct svg *s, double top, double last_step, const double *x, const double *y, int64_t n,
			  const char *title, const char *class, const char *x_title)
{
	struct panel p = panel_at(top + GAP, LOSS_HEIGHT, 0, last_step > 0 ? last_step : 1);

	panel_fit(&p, y, n);
	panel_pad(&p, 0.06);
	panel_frame(s, &p, title, UNIT_REAL);
	panel_x_numbers(s, &p, x_title);
	if (n)
		panel_line(s, &p, x, y, n, class);
	else
		nothing(s, &p, "no samples yet");
	for (int64_t i = 0; n <= 60 && i < n; i++)
		if (panel_py(&p, y[i]) >= p.y && panel_py(&p, y[i]) <= p.y + p.h)
			svg_put(s, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>\n", class, panel_px(&p, x[i]), panel_py(&p, y[i]));
	return p.y + p.h;
}

/* The loss in powers of ten when it falls far enough: log10 is drawn and the title says so. */
static const char *loss_title(const struct training *t, double *v)
{
	double lo = INFINITY, hi = 0;

	for (int64_t i = 0; i < t->n; i++)
		if (isfinite(t->loss[i])) {
			lo = t->loss[i] < lo ? t->loss[i] : lo;
			hi = t->loss[i] > hi ? t->loss[i] : hi;
		}
	int powers = lo > 0 && hi > lo * LOG_RATIO;
	for (int64_t i = 0; i < t->n; i++)
		v[i] = powers ? log10(t->loss[i]) : t->loss[i];
	return powers ? "Loss, log10" : "Loss";
}

static double draw_training(struct svg *s, double top, const struct training *t, double *v)
{
	double last = t->n ? t->step[t->n - 1] : 0;

	if (t->validations && t->at[t->validations - 1] > last)
		last = t->at[t->validations - 1];
	const char *title = loss_title(t, v);
	top = draw_series(s, top, last, t->step, v, t->n, title, "c", NULL);
	top = draw_series(s, top, last, t->step, t->q, t->n, "Q of the actions taken, mean", "a", NULL);
	top = draw_series(s, top, last, t->at, t->sharpe, t->validations, "Sharpe of the validations", "d", "learn step");
	return top + FOOT + 6;
}

static double section_height(unsigned kinds)
{
	double h = HEAD_HEIGHT;

	if (kinds & CHART_EQUITY)
		h += GAP + MAIN_HEIGHT + GAP + SIDE_HEIGHT + FOOT;
	if (kinds & CHART_TRADES)
		h += GAP + MAIN_HEIGHT + GAP + SIDE_HEIGHT + FOOT;
	if (kinds & CHART_LOSS)
		h += 3 * (GAP + LOSS_HEIGHT) + FOOT + 6;
	return h;
}

void chart_draw(struct svg *s, unsigned kinds, const struct caption *caption, const struct trace *trace, const struct training *training)
{
	int64_t n = trace ? trace->n : 0;
	double top = HEAD_HEIGHT - GAP + 12;

	n = training && training->n > n ? training->n : n;
	double *v = malloc((size_t)(n ? n : 1) * sizeof *v);
	svg_begin(s, PAGE_WIDTH, section_height(kinds), caption->title);
	s->failed |= !v;
	svg_text(s, LEFT - 60, 28, "title", "start", caption->title);
	svg_text(s, LEFT - 60, 46, "sub", "start", caption->subtitle);
	svg_text(s, LEFT - 60, 64, "facts", "start", caption->facts);
	if (v && trace && (kinds & CHART_EQUITY))
		top = draw_equity(s, top, trace, v);
	if (v && trace && (kinds & CHART_TRADES))
		top = draw_trades(s, top, trace, v);
	if (v && training && (kinds & CHART_LOSS))
		draw_training(s, top, training, v);
	svg_end(s);
	free(v);
}
