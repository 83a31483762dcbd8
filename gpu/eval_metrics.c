/* Rows of a validation report (gpu/MATH.md, section 8). The accumulator of a row is its value. Pure, any thread. */
#include "gpu/eval_metrics.h"

enum { PNL, RETURN, SHARPE, SORTINO, DRAWDOWN, TRADES, CLOSED, WIN_RATE, TURNOVER, EXPOSURE, BARS, RUINED, PER_YEAR };

#define VALUE(name, at) static double name(const double *acc) { return acc[at]; }
VALUE(pnl, PNL)
VALUE(ret, RETURN)
VALUE(sharpe, SHARPE)
VALUE(sortino, SORTINO)
VALUE(drawdown, DRAWDOWN)
VALUE(trades, TRADES)
VALUE(closed, CLOSED)
VALUE(win_rate, WIN_RATE)
VALUE(turnover, TURNOVER)
VALUE(exposure, EXPOSURE)
VALUE(bars, BARS)
VALUE(ruined, RUINED)
VALUE(per_year, PER_YEAR)

#define ROW(name_, unit_, better_, finish_, help_) \
	.name = name_, .unit = unit_, .better = better_, .finish = finish_, .help = help_

const struct metric eval_metric[EVAL_METRICS] = {
	[PNL] = {ROW("pnl", "money", METRIC_HIGHER, pnl, "equity at the end less equity at the start")},
	[RETURN] = {ROW("return", "ratio", METRIC_HIGHER, ret, "pnl / initial_cash")},
	[SHARPE] = {ROW("sharpe", "1", METRIC_HIGHER, sharpe, "mean over deviation of bar returns, per year")},
	[SORTINO] = {ROW("sortino", "1", METRIC_HIGHER, sortino, "the same over the downside deviation")},
	[DRAWDOWN] = {ROW("max_drawdown", "ratio", METRIC_LOWER, drawdown, "largest fall of equity below its peak")},
	[TRADES] = {ROW("trades", "1", METRIC_NEUTRAL, trades, "fills that changed the position, exits included")},
	[CLOSED] = {ROW("closed", "1", METRIC_NEUTRAL, closed, "positions closed")},
	[WIN_RATE] = {ROW("win_rate", "ratio", METRIC_HIGHER, win_rate, "share of closed positions that earned money after fees")},
	[TURNOVER] = {ROW("turnover", "ratio", METRIC_NEUTRAL, turnover, "money traded / initial_cash")},
	[EXPOSURE] = {ROW("exposure", "ratio", METRIC_NEUTRAL, exposure, "mean |position| / max_position")},
	[BARS] = {ROW("bars", "1", METRIC_NEUTRAL, bars, "bars traded")},
	[RUINED] = {ROW("ruined", "1", METRIC_LOWER, ruined, "1 when the episode ended in ruin")},
	[PER_YEAR] = {ROW("bars_per_year", "1", METRIC_NEUTRAL, per_year, "counted from the data")},
};

void eval_metric_values(const struct eval_report *r, double acc[EVAL_METRICS])
{
	acc[PNL] = r->pnl;
	acc[RETURN] = r->ret;
	acc[SHARPE] = r->sharpe;
	acc[SORTINO] = r->sortino;
	acc[DRAWDOWN] = r->max_drawdown;
	acc[TRADES] = r->trades;
	acc[CLOSED] = r->closed;
	acc[WIN_RATE] = r->win_rate;
	acc[TURNOVER] = r->turnover;
	acc[EXPOSURE] = r->exposure;
	acc[BARS] = (double)r->bars;
	acc[RUINED] = (double)r->ruined;
	acc[PER_YEAR] = r->bars_per_year;
}
