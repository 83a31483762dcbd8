"""The numbers of `evaluate` from its trace, by another program: formulas of design section 8 in numpy, 1e-9 relative."""
import csv
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
    """Columns of the CSV; `meta` are its leading comment lines `# key: value`, if any."""

    def __init__(self, path):
        self.meta, rows = {}, []
        with open(path, newline="") as f:
            lines = f.read().splitlines()
        for line in lines:
            if line.startswith("#"):
                for part in line[1:].split(","):
                    key, _, value = part.replace("=", ":").partition(":")
                    self.meta[key.strip()] = value.strip()
            elif line:
                rows.append(line)
        self.rows = list(csv.DictReader(rows))

    def column(self, name):
        return np.array([float(r[name]) if r[name] != "" else 0.0 for r in self.rows])

    def names(self):
        return list(self.rows[0])


def recompute(fills, q, equity, ts_first, ts_last, bars_total, p):
    """fills: (quantity, price) in order; equity [n+1] from initial cash on; q [n] after each bar."""
    out = {}
    out["pnl"] = equity[-1] - equity[0]
    out["return"] = out["pnl"] / p["initial_cash"]
    r = equity[1:] / equity[:-1] - 1
    covered = ts_last - ts_first
    per_year = (bars_total - 1) / (covered / YEAR_NS) if covered > 0 else 0.0
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
    for fill, price, out, out_price in zip(*(trace.column(c) for c in ("fill", "fill_price", "exit_fill", "exit_price"))):
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
    job = client.start(spec(env=env), name="j")
    client.wait_state(job.id, "DONE")
    path = folder / "trace.csv"
    reply = daemon.ctl("evaluate", "j", "--split", split, "--trace", path, "-o", "json").json()
    report = {m["name"]: float(m["value"]) for m in agent_report(reply)["value"]}
    trace = Trace(path)
    shown = client.show("j").spec.env
    p = {k: getattr(shown, k) for k in ("initial_cash", "multiplier", "max_position", "fee", "half_spread")}
    equity = np.concatenate([[p["initial_cash"]], trace.column("equity")])
    q = trace.column("position")
    fills = fills_of(trace)

    # Cash, fee and equity of every bar follow from its fills.
    cash, position = p["initial_cash"], 0.0
    closes = trace.column("close")
    fees = trace.column("fee")
    for i, row in enumerate(trace.rows):
        for f, price in ((float(row["fill"] or 0), float(row["fill_price"] or 0)), (float(row["exit_fill"] or 0), float(row["exit_price"] or 0))):
            cash -= f * price * p["multiplier"] + abs(f) * p["fee"]
            position += f
        assert close(cash, float(row["cash"]), p["initial_cash"]), (i, row)
        assert abs(position - q[i]) <= 1e-9 * p["max_position"], (i, row)
        assert close(cash + q[i] * closes[i] * p["multiplier"], equity[i + 1], p["initial_cash"]), (i, row)
        assert close(fees[i], p["fee"] * (abs(float(row["fill"] or 0)) + abs(float(row["exit_fill"] or 0)))), (i, row)

    # Rewards add up to the change of equity.
    scale = client_reward_scale(trace, equity, p)
    assert close(trace.column("reward").sum(), (equity[-1] - equity[0]) / p["initial_cash"] * scale, abs(scale) * 1e-3)

    first_ts, last_ts, bars = covered_time(client, shown, split)
    want = recompute(fills, q, equity, first_ts, last_ts, bars, p)
    for key, value in want.items():
        got = report[key if key in report else {"return": "ret"}.get(key, key)]
        assert close(got, value, 1e-6 if key in ("sharpe", "sortino") else 0.0) or abs(got - value) < 1e-12, (key, got, value)
    if name == "plain":
        assert len(fills) > 0, "a policy that never trades proves nothing here"


def agent_report(reply):
    evaluate = reply.get("evaluate", reply)
    return next(r for r in evaluate["report"] if r["name"] == "agent")


def client_reward_scale(trace, equity, p):
    """From the bar with the largest move; every other bar must agree (checked by the sum)."""
    moves = np.diff(equity)
    i = int(np.argmax(np.abs(moves)))
    if moves[i] == 0:
        return 0.0
    scale = trace.column("reward")[i] / moves[i] * p["initial_cash"]
    np.testing.assert_allclose(trace.column("reward"), moves / p["initial_cash"] * scale, rtol=1e-6, atol=1e-9 * abs(scale))
    return scale


def covered_time(client, env, split):
    """First bar of the episode to the split's end, from the data set itself (2000 bars, default fractions and embargo)."""
    total, embargo = 2000, 144
    usable = {"train": 0.70, "validation": 0.15, "test": 0.15}
    begin, bounds = 0, {}
    for key, fraction in usable.items():
        bounds[key] = (begin, fraction)
    reply = client.call("read_bars", pb.ReadBarsRequest(name="m", first=0, count=total, stride=1))
    ts = list(reply.ts)
    operation = client.call("evaluate", pb.EvaluateRequest(job="j", split=split, trace=False))
    done = client.operation(operation.operation).evaluate
    assert embargo == 144
    first = max(done.begin, 144)
    return ts[first], ts[done.end - 1], done.end - first
