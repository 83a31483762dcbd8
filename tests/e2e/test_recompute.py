"""The numbers of `evaluate` from its trace, by another program: formulas of design section 8 in numpy, 1e-9 relative."""
import csv
import datetime
import math

import numpy as np
import pytest

import fh
from fh import pb

YEAR_NS = 365.25 * 86400 * 1e9
TOL = 1e-9


def close(a, b, scale=0.0):
    return abs(a - b) <= TOL * max(abs(a), abs(b), scale) + 1e-300


class Trace:
    """The CSV of --trace. Its first row is the state before the first action: initial cash at the episode's first bar."""

    def __init__(self, path):
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
        self.first, self.rows = rows[0], rows[1:]

    def column(self, name):
        return np.array([float(r[name]) for r in self.rows])


def recompute(fills, q, equity, per_year, p):
    """fills: (quantity, price) in order; equity [n+1] from initial cash on; q [n] after each bar."""
    out = {}
    out["pnl"] = equity[-1] - equity[0]
    out["return"] = out["pnl"] / p["initial_cash"]
    r = equity[1:] / equity[:-1] - 1
    std = np.std(r, ddof=1) if len(r) > 1 else 0.0
    out["sharpe"] = np.mean(r) / std * math.sqrt(per_year) if std >= 1e-12 else 0.0
    down = math.sqrt(np.mean(np.minimum(r, 0.0) ** 2)) if len(r) else 0.0
    out["sortino"] = np.mean(r) / down * math.sqrt(per_year) if down >= 1e-12 else 0.0
    peak = np.maximum.accumulate(equity)
    out["max_drawdown"] = np.max((peak - equity) / peak)
    out["trades"] = len(fills)
    out["turnover"] = sum(abs(f * price) for f, price in fills) * p["multiplier"] / p["initial_cash"]
    out["exposure"] = np.mean(np.abs(q)) / p["max_position"] if len(q) else 0.0
    out["win_rate"] = win_rate(fills, p)
    return out


def win_rate(fills, p):
    """Cash flows of each position from flat to flat; a fill that crosses zero is split between two positions."""
    position, cash, done = 0.0, 0.0, []
    tiny = 1e-9 * p["max_position"]
    for f, price in fills:
        crossing = position * f < 0 and abs(f) > abs(position) + tiny
        parts = [-position, f + position] if crossing else [f]
        for part in parts:
            fee = p["fee"] * abs(part)
            cash += -part * price * p["multiplier"] - fee
            position += part
            if abs(position) <= tiny:
                done.append(cash)
                position, cash = 0.0, 0.0
    return sum(c > 0 for c in done) / len(done) if done else 0.0


def fills_of(trace):
    fills = []
    for fill, price, out, out_price in zip(*(trace.column(c) for c in ("fill", "price", "exit_fill", "exit_price"))):
        if fill:
            fills.append((fill, price))
        if out:
            fills.append((out, out_price))
    return fills


SETTINGS = [
    ("plain", {}),
    ("costs", {"half_spread": 0.005, "fee": 0.3, "multiplier": 50, "max_position": 4}),
    ("fractions", {"lot": 0, "max_position": 2.5, "fee": 0.01, "pt": 1, "sl": 1, "horizon": 20}),
    ("ruin", {"initial_cash": 30, "max_position": 5, "ruin_fraction": 0.95, "half_spread": 0.002}),
]


@pytest.mark.parametrize("name,env", SETTINGS, ids=[s[0] for s in SETTINGS])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_metrics_follow_from_the_trace(daemon, client, spec, folder, name, env, split):
    longer = {"learn": {"lr": 3e-3}, "run": {"steps_per_epoch": 600}} if name == "plain" else {}
    job = client.start(spec(longer, env=env), name="j")
    client.wait_state(job.id, "DONE")
    path = folder / "trace.csv"
    reply = daemon.ctl("evaluate", "j", "--split", split, "--trace", path, "-o", "json").json()
    report = {m["name"]: float(m["value"]) for m in agent_report(reply)["value"]}
    trace = Trace(path)
    shown = client.show("j").spec.env
    p = {k: getattr(shown, k) for k in ("initial_cash", "multiplier", "max_position", "fee")}
    for key in ("multiplier", "max_position"):
        assert float(trace.first[key]) == p[key]
    assert float(trace.first["cash"]) == float(trace.first["equity"]) == p["initial_cash"]
    equity = np.concatenate([[p["initial_cash"]], trace.column("equity")])
    q, fills = trace.column("position"), fills_of(trace)

    check_cash(trace, q, equity, p)
    check_rewards(trace, equity, p)
    begin, end, ts = episode(client, split)
    check_times(trace, begin, ts)
    per_year = (end - begin - 1) / ((ts[end - 1] - ts[begin]) / YEAR_NS)
    assert close(float(trace.first["bars_per_year"]), per_year)
    want = recompute(fills, q, equity, per_year, p)
    for key, value in want.items():
        assert close(report[key], value) or abs(report[key] - value) < 1e-12, (key, report[key], value)
    if name == "plain":
        assert len(fills) > 0, "a policy that never trades proves nothing here"
    if name == "ruin":
        assert equity[-1] <= p["initial_cash"] * shown.ruin_fraction or len(trace.rows) == end - 1 - begin


def check_cash(trace, q, equity, p):
    """Cash, fee, position and equity of every bar follow from its fills."""
    cash, position = p["initial_cash"], 0.0
    for i, row in enumerate(trace.rows):
        v = {k: float(row[k]) for k in ("fill", "price", "exit_fill", "exit_price", "fee", "cash", "close")}
        for f, price in ((v["fill"], v["price"]), (v["exit_fill"], v["exit_price"])):
            cash -= f * price * p["multiplier"] + abs(f) * p["fee"]
            position += f
        assert close(cash, v["cash"], p["initial_cash"]), (i, row)
        assert abs(position - q[i]) <= 1e-9 * p["max_position"], (i, row)
        assert close(v["cash"] + q[i] * v["close"] * p["multiplier"], equity[i + 1], p["initial_cash"]), (i, row)
        assert close(v["fee"], p["fee"] * (abs(v["fill"]) + abs(v["exit_fill"]))), (i, row)
        assert (v["exit_fill"] != 0) == (row["exit"] != "none"), (i, row)


def check_rewards(trace, equity, p):
    """Every reward is the change of equity times one constant, so they add up to the change of equity."""
    reward, moves = trace.column("reward"), np.diff(equity)
    largest = int(np.argmax(np.abs(moves)))
    if moves[largest] == 0:
        assert (reward == 0).all()
        return
    scale = reward[largest] / moves[largest]
    assert scale > 0
    np.testing.assert_allclose(reward, moves * scale, rtol=0, atol=1e-9 * np.abs(reward).max() + 1e-9 * scale * p["initial_cash"])
    assert close(reward.sum(), (equity[-1] - equity[0]) * scale, scale * p["initial_cash"])


def check_times(trace, begin, ts):
    """One row a bar, none left out, with the bar's own time."""
    assert int(trace.first["bar"]) == begin
    for i, row in enumerate([trace.first, *trace.rows]):
        assert int(row["bar"]) == begin + i
        at = datetime.datetime.fromisoformat(row["time"].replace("Z", "+00:00"))
        assert round(at.timestamp()) * 10**9 == ts[begin + i]


def episode(client, split):
    """Begin and end of the episode by the rules of the specification, and all times, from the data set itself."""
    total, embargo, warmup = 2000, 144, 144
    ts = list(client.call("read_bars", pb.ReadBarsRequest(name="m", first=0, count=total, stride=1)).ts)
    assert len(ts) == total
    operation = client.call("evaluate", pb.EvaluateRequest(job="j", split=split))
    reply = client.operation(operation.operation).evaluate
    train_end = round(total * 0.70)
    validation_end = round(total * 0.85)
    want = {"validation": (train_end + embargo, validation_end), "test": (validation_end + embargo, total)}[split]
    assert (reply.begin, reply.end) == (max(want[0], warmup), want[1])
    return reply.begin, reply.end, ts


def agent_report(reply):
    evaluate = reply.get("evaluate", reply)
    return next(r for r in evaluate["report"] if r["name"] == "agent")
