"""The numbers of `evaluate` from its trace, by another program: metrics, cash and fees from the fills, and the fills themselves from the
actions and the bars. The formulas of section 8 (and sigma's of 7) of gpu/MATH.md in Python, 1e-9 relative."""
import csv
import datetime
import math

import numpy as np
import pytest

import fh
from fh import pb

YEAR_NS = 365.25 * 86400 * 1e9
TOL = 1e-9
pytestmark = pytest.mark.same_threads


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
    ("barriers", {"pt": 0.7, "sl": 0.9, "horizon": 2, "lot": 0, "half_spread": 0.001, "fee": 0.001}),
    ("ruin", {"initial_cash": 30, "max_position": 5, "ruin_fraction": 0.95, "half_spread": 0.002}),
]


@pytest.mark.parametrize("name,env", SETTINGS, ids=[s[0] for s in SETTINGS])
def test_metrics_follow_from_the_trace(daemon, client, spec, folder, name, env):
    longer = {"learn": {"lr": 3e-3}, "run": {"steps_per_epoch": 2000, "validate_every": 0}}  # until the policy trades
    job = client.start(spec(longer, env=env), name="j")
    client.wait_state(job.id, "DONE")
    for split in ("validation", "test"):
        check_split(daemon, client, folder / f"{split}.csv", name, split)


def check_split(daemon, client, path, name, split):
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
    begin, end, bars = episode(client, split)
    ts = list(bars.ts)
    check_times(trace, begin, ts)
    exits = check_fills(trace, begin, bars, shown)
    if name == "barriers":
        assert exits.get("stop") and exits.get("profit"), f"barriers were to be seen at work: {exits}"
    per_year = (end - begin - 1) / ((ts[end - 1] - ts[begin]) / YEAR_NS)
    assert close(float(trace.first["bars_per_year"]), per_year)
    want = recompute(fills, q, equity, per_year, p)
    for key, value in want.items():
        assert close(report[key], value) or abs(report[key] - value) < 1e-12, (key, report[key], value)
    if name != "ruin":
        assert len(fills) > 10, "a policy that never trades proves nothing here"
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


def sigma(close, half_life=60):
    """Section 7: the exponentially weighted root mean square of the one-bar log returns, floored, stored as F32."""
    out, num, den = [1e-8], 0.0, 0.0
    decay = 2 ** (-1 / half_life)
    for last, now in zip(close, close[1:]):
        num, den = num * decay + math.log(now / last) ** 2, den * decay + 1
        out.append(max(math.sqrt(num / den), 1e-8))
    return np.array(out, dtype=np.float32).astype(float)


def order_of(action, q, env):
    """The signed quantity that an action sends, of section 8's rules of size."""
    exposure, urgency = (-1, -0.5, 0, 0.5, 1)[action[0]], (0.25, 0.5, 1)[action[2]]
    target = exposure * env.max_position
    if env.lot > 0:
        target = math.copysign(math.floor(abs(target) / env.lot + 0.5), target) * env.lot
    delta = target - q
    if delta == 0:
        return 0.0
    if env.lot > 0:
        size = min(math.ceil(urgency * abs(delta) / env.lot - 1e-9) * env.lot, abs(delta))
    else:
        size = abs(delta) if abs(delta) <= 1e-3 * env.max_position else urgency * abs(delta)
    return math.copysign(size, delta)


def fill_of(kind, order, t, bars, env):
    """Price at which an order decided at bar t fills in bar t + 1, None where it does not."""
    o, side, limit = bars.open[t + 1], math.copysign(1, order), bars.close[t]
    if kind == 1:
        through = bars.low[t + 1] < limit if side > 0 else bars.high[t + 1] > limit
        return (min(limit, o) if side > 0 else max(limit, o)) if through else None
    if kind == 2 and abs(o - limit) > 4 * env.tick:
        return None
    return o + side * env.half_spread


def exit_of(position, entry, t, bars, env):
    """What section 8 closes in bar t: (word, price) or None. entry: price, bar and sigma of the position."""
    price, bar, sig = entry
    side, width = math.copysign(1, position), sig * math.sqrt(env.horizon) * max(abs(price), env.tick)
    stop, profit, o, c = price - side * env.sl * width, price + side * env.pt * width, bars.open[t], bars.close[t]
    low, high = bars.low[t], bars.high[t]
    if low <= stop if side > 0 else high >= stop:
        beyond = o <= stop if side > 0 else o >= stop
        return ("stop_open", o - side * env.half_spread) if beyond else ("stop", stop - side * env.half_spread)
    if high >= profit if side > 0 else low <= profit:
        return "profit", profit
    return ("horizon", c - side * env.half_spread) if t - bar >= env.horizon else None


def check_fills(trace, begin, bars, env):
    """Every fill, price and exit of the trace from its actions and the bars alone. Returns the exits seen, by kind."""
    sig, q, entry, seen = sigma(list(bars.close)), 0.0, None, {}
    for i, row in enumerate(trace.rows):
        t = begin + i
        order = order_of([int(row[k]) for k in ("exposure", "order", "urgency")], q, env)
        price = fill_of(int(row["order"]), order, t, bars, env) if order else None
        fill = order if price is not None else 0.0
        assert close(float(row["fill"]), fill, 1e-9 * env.max_position), (i, row, fill)
        if fill:
            assert close(float(row["price"]), price), (i, row, price)
            new = q + fill
            if abs(q) < 1e-9 * env.max_position or new * q < 0:
                entry = (price, t + 1, sig[t])
            elif abs(new) > abs(q):
                entry = ((abs(q) * entry[0] + abs(fill) * price) / (abs(q) + abs(fill)), *entry[1:])
            q = new
        if abs(q) < 1e-9 * env.max_position:
            q = 0.0
        done = exit_of(q, entry, t + 1, bars, env) if q else None
        assert row["exit"] == (done[0] if done else "none"), (i, row, done)
        if done:
            assert close(float(row["exit_fill"]), -q, 1e-9 * env.max_position), (i, row, q)
            assert abs(float(row["exit_price"]) - done[1]) <= 1e-7 * abs(done[1]), (i, row, done)
            seen[done[0]] = seen.get(done[0], 0) + 1
            q = 0.0
        assert close(float(row["position"]), q, 1e-9 * env.max_position), (i, row, q)
        q = float(row["position"])  # rounding of fractions does not add up
    return seen


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
    bars = client.call("read_bars", pb.ReadBarsRequest(name="m", first=0, count=total, stride=1))
    assert len(bars.ts) == total
    operation = client.call("evaluate", pb.EvaluateRequest(job="j", split=split))
    reply = client.operation(operation.operation).evaluate
    train_end = round(total * 0.70)
    validation_end = round(total * 0.85)
    want = {"validation": (train_end + embargo, validation_end), "test": (validation_end + embargo, total)}[split]
    assert (reply.begin, reply.end) == (max(want[0], warmup), want[1])
    return reply.begin, reply.end, bars


def agent_report(reply):
    evaluate = reply.get("evaluate", reply)
    return next(r for r in evaluate["report"] if r["name"] == "agent")
