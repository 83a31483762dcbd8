/* The validation report of gpu/MATH.md, section 8 from an equity curve and its fills.
 *
 * Pure functions, any thread. Invariant: every number of the report is finite for every input; where a quotient has no
 * meaning it is 0 and a note says so. Sums are compensated, so that another program that sums in another order agrees
 * to far more digits than anyone reads. */
#include <math.h>
#include <string.h>

#include "gpu/evaluate.h"

#define YEAR_NS 31557600000000000.0 /* 365.25 days */
#define DEVIATION_MIN 1e-12
#define FLAT_SHARE 1e-9 /* a sum of fills this small beside the last one is a closed position */

struct sum { double value, lost; };

static void sum_add(struct sum *s, double x)
{
	double t = s->value + x;

	s->lost += fabs(s->value) >= fabs(x) ? s->value - t + x : x - t + s->value;
	s->value = t;
}

static double sum_of(const struct sum *s)
{
	return s->value + s->lost;
}

static double finite_or_zero(double x)
{
	return isfinite(x) ? x : 0.0;
}

/* ---------------------------------------------------------------- returns */

static double bar_return(const double *equity, int64_t i)
{
	return equity[i] != 0.0 ? finite_or_zero(equity[i + 1] / equity[i] - 1.0) : 0.0;
}

/* The bars of all curves after each other; no return leads from one to the next. */
static void report_returns(const struct eval_curve *curve, int curves, struct eval_report *r)
{
	struct sum sum = {0, 0}, square = {0, 0}, down = {0, 0};
	double mean, deviation, downside, root = sqrt(r->bars_per_year);
	int64_t n = r->bars;

	if (n < 2)
		r->notes |= EVAL_NOTE_FEW_BARS;
	if (n < 1)
		return;
	for (int c = 0; c < curves; c++)
		for (int64_t i = 0; i < curve[c].n; i++)
			sum_add(&sum, bar_return(curve[c].equity, i));
	mean = sum_of(&sum) / (double)n;
	for (int c = 0; c < curves; c++)
		for (int64_t i = 0; i < curve[c].n; i++) {
			double x = bar_return(curve[c].equity, i), y = x < 0.0 ? x : 0.0;

			sum_add(&square, (x - mean) * (x - mean));
			sum_add(&down, y * y);
		}
	deviation = n >= 2 ? sqrt(sum_of(&square) / (double)(n - 1)) : 0.0;
	downside = sqrt(sum_of(&down) / (double)n);
	if (deviation >= DEVIATION_MIN)
		r->sharpe = finite_or_zero(mean / deviation * root);
	else if (n >= 2)
		r->notes |= EVAL_NOTE_NO_DEVIATION;
	if (downside >= DEVIATION_MIN)
		r->sortino = finite_or_zero(mean / downside * root);
	else
		r->notes |= EVAL_NOTE_NO_DOWNSIDE;
}

static double largest_drawdown(const double *equity, int64_t n)
{
	double peak = equity[0], worst = 0.0;

	for (int64_t i = 0; i <= n; i++) {
		peak = equity[i] > peak ? equity[i] : peak;
		if (peak > 0.0 && (peak - equity[i]) / peak > worst)
			worst = (peak - equity[i]) / peak;
	}
	return finite_or_zero(worst);
}

/* ---------------------------------------------------------------- fills */

struct position { double q, pnl; int64_t closed, won; };

/* One part of a fill that does not cross zero. */
static void position_fill(struct position *p, double quantity, double price, const struct env_config *cfg)
{
	p->pnl -= quantity * price * cfg->multiplier + fabs(quantity) * cfg->fee;
	p->q += quantity;
	if (fabs(p->q) >= FLAT_SHARE * fabs(quantity))
		return;
	p->q = 0.0; /* the sum of fills may keep a residue; the position itself has none */
	p->closed++;
	p->won += p->pnl > 0.0;
	p->pnl = 0.0;
}

/* Of one episode: it starts flat, and what is open at its end is not closed. */
static void add_fills(const double (*fill)[2], int64_t nf, const struct env_config *cfg, struct position *all, struct sum *traded,
		      double *trades)
{
	struct position p = {0, 0, 0, 0};

	for (int64_t i = 0; i < nf; i++) {
		double x = fill[i][0], price = fill[i][1];

		if (x == 0.0)
			continue;
		*trades += 1.0;
		sum_add(traded, fabs(x * price));
		if (p.q * (p.q + x) < 0.0) {
			double rest = x + p.q;

			position_fill(&p, -p.q, price, cfg);
			position_fill(&p, rest, price, cfg);
		} else {
			position_fill(&p, x, price, cfg);
		}
	}
	all->closed += p.closed;
	all->won += p.won;
}

static void report_fills(const struct eval_curve *curve, int curves, const struct env_config *cfg, struct eval_report *r)
{
	struct position all = {0, 0, 0, 0};
	struct sum traded = {0, 0};

	for (int c = 0; c < curves; c++)
		add_fills(curve[c].fill, curve[c].fills, cfg, &all, &traded, &r->trades);
	r->closed = (double)all.closed;
	r->win_rate = all.closed ? (double)all.won / (double)all.closed : 0.0;
	r->turnover = finite_or_zero(sum_of(&traded) * cfg->multiplier / cfg->initial_cash);
}

/* ---------------------------------------------------------------- report */

static double worst_drawdown(const struct eval_curve *curve, int curves)
{
	double worst = 0.0;

	for (int c = 0; c < curves; c++) {
		double x = largest_drawdown(curve[c].equity, curve[c].n);

		worst = x > worst ? x : worst;
	}
	return worst;
}

static double mean_exposure(const struct eval_curve *curve, int curves, int64_t bars, const struct env_config *cfg)
{
	struct sum held = {0, 0};

	for (int c = 0; c < curves; c++)
		for (int64_t i = 0; i < curve[c].n; i++)
			sum_add(&held, fabs(curve[c].q[i]));
	return bars ? finite_or_zero(sum_of(&held) / (double)bars / cfg->max_position) : 0.0;
}

void eval_metrics_over(const struct eval_curve *curve, int curves, const int64_t *ts, int64_t T, const struct env_config *cfg,
		       struct eval_report *out)
{
	struct sum pnl = {0, 0};
	int64_t span = T > 1 ? ts[T - 1] - ts[0] : 0;

	memset(out, 0, sizeof(*out));
	for (int c = 0; c < curves; c++) {
		const struct eval_curve *k = &curve[c];

		out->bars += k->n;
		sum_add(&pnl, finite_or_zero(k->equity[k->n] - k->equity[0]));
		out->ruined += k->n > 0 && k->equity[k->n] <= cfg->ruin_fraction * cfg->initial_cash;
	}
	out->pnl = sum_of(&pnl);
	out->ret = finite_or_zero(out->pnl / cfg->initial_cash);
	if (span > 0)
		out->bars_per_year = (double)(T - 1) * (YEAR_NS / (double)span);
	else
		out->notes |= EVAL_NOTE_NO_TIME;
	report_returns(curve, curves, out);
	out->max_drawdown = worst_drawdown(curve, curves);
	report_fills(curve, curves, cfg, out);
	out->exposure = mean_exposure(curve, curves, out->bars, cfg);
}

void eval_metrics(const double *equity, const double *q, int64_t n, const double (*fill)[2], int64_t nf,
		  const int64_t *ts, int64_t T, const struct env_config *cfg, struct eval_report *out)
{
	const struct eval_curve curve = {equity, q, n, fill, nf};

	eval_metrics_over(&curve, 1, ts, T, cfg, out);
}
