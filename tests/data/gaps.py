"""The definitions of gaps and rolls in gpu/MATH.md (sections 7 and 8), written out slowly: every window summed afresh, every average from bar 0,
the environment as the text says it. Plain Python, nothing of the product.

`python tests/data/gaps.py` writes tests/golden/gaps.safetensors: markets with gaps and changes of the contract, their features, and rollouts over them.
tests/unit/gpu_gap.c reads that file, test_gaps.py makes its values anew."""
import math
import random
from pathlib import Path

NS = 10**9
TICK = 0.25
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "gaps.safetensors"


def bars(n, seed, gaps, start=100.0, jump=30.0):
    """Minute bars; before each bar of `gaps` (number: seconds) time and price jump."""
    r, out, t, c = random.Random(seed), [], 1_704_186_000, start
    for i in range(n):
        t += gaps.get(i, 60)
        o = c + (r.choice([-1, 1]) * jump if i in gaps else r.choice([0, 0, 0.25]))
        c = o + r.choice([-0.5, -0.25, 0, 0.25, 0.5])
        out.append((t, o, max(o, c) + r.choice([0, 0.25]), min(o, c) - r.choice([0, 0.25]), c, r.randrange(50)))
    return out


def clamp(x):
    return max(-5.0, min(5.0, x))


def mean(x):
    return math.fsum(x) / len(x)


def std(x):
    m = mean(x)
    return math.sqrt(math.fsum((v - m) ** 2 for v in x) / len(x))


def expected(data, max_gap, rolls=()):
    ts, o, h, l, c, v = map(list, zip(*data))
    T, A = len(ts), [0.0]
    for t in range(1, T):
        A.append(A[-1] + (o[t] - c[t - 1] if t in rolls or (max_gap > 0 and ts[t] - ts[t - 1] > max_gap) else 0.0))
    C, H, L = ([x - a for x, a in zip(s, A)] for s in (c, h, l))

    def ret(t, k):
        if t < k:
            return 0.0
        p = c[t - k] + (A[t] - A[t - k])
        return math.log(c[t] / p) if p > 0 and c[t] > 0 else (c[t] - p) / max(abs(p), TICK)

    r1 = [ret(t, 1) for t in range(T)]

    def sigma(t, half):
        if t == 0:
            return 1e-8
        w = [2.0 ** (-(t - i) / half) for i in range(1, t + 1)]
        return max(math.sqrt(math.fsum(a * r1[i + 1] ** 2 for i, a in enumerate(w)) / math.fsum(w)), 1e-8)

    def ema(x, span):
        e = x[0]
        out = [e]
        for y in x[1:]:
            e += 2 / (span + 1) * (y - e)
            out.append(e)
        return out

    emas = {n: ema(C, n) for n in (8, 21, 55, 144, 12, 26)}
    s60 = [sigma(t, 60) for t in range(T)]
    scale = [max(abs(c[t]), TICK) * s60[t] for t in range(T)]
    macd = [clamp((emas[12][t] - emas[26][t]) / scale[t]) for t in range(T)]
    signal = ema(macd, 9)
    logv = [math.log(1 + x) for x in v]

    def z(t, n):
        w = logv[max(0, t - n + 1):t + 1]
        return (logv[t] - mean(w)) / std(w) if std(w) >= 1e-6 else 0.0

    z144 = [clamp(z(t, 144)) for t in range(T)]
    signed = ema([((r > 0) - (r < 0)) * x for r, x in zip(r1, z144)], 21)
    rsi = {}
    for n in (7, 14, 28):
        g = s = 0.0
        rsi[n] = [0.0]
        for t in range(1, T):
            d = c[t] - (c[t - 1] + (A[t] - A[t - 1]))
            g += (max(d, 0) - g) / min(t, n)
            s += (max(-d, 0) - s) / min(t, n)
            rsi[n].append((g - s) / (g + s) if g + s > 0 else 0.0)
    rows = []
    for t in range(T):
        f = [ret(t, k) / (s60[t] * math.sqrt(k)) for k in (1, 2, 3, 5, 8, 13, 21, 34, 55)]
        f.append(math.log(s60[t] / sigma(t, 600)))
        f += [(h[t] - l[t]) / scale[t], (c[t] - o[t]) / scale[t], (2 * c[t] - h[t] - l[t]) / (h[t] - l[t]) if h[t] > l[t] else 0.0]
        f += [(C[t] - emas[n][t]) / (scale[t] * math.sqrt(n)) for n in (8, 21, 55, 144)]
        f += [macd[t], signal[t], macd[t] - signal[t]]
        f += [rsi[n][t] for n in (7, 14, 28)]
        for n in (14, 55, 144):
            hi, lo = max(H[max(0, t - n + 1):t + 1]), min(L[max(0, t - n + 1):t + 1])
            f.append(2 * (C[t] - lo) / (hi - lo) - 1 if hi > lo else 0.0)
        f += [sigma(t, 8) / s60[t] - 1, s60[t] / sigma(t, 240) - 1, z144[t], z(t, 21), signed[t]]
        w = r1[max(1, t - 143):t + 1]
        if len(w) < 3 or std(w) < 1e-8:
            f += [0.0, 0.0]
        else:
            y = [x - mean(w) for x in w]
            f += [math.fsum(a * b for a, b in zip(y, y[1:])) / math.fsum(a * a for a in y), mean([a ** 3 for a in y]) / std(w) ** 3]
        w = r1[max(1, t - 20):t + 1]
        f.append(2 * (sum(x < 0 for x in w) / len(w) - 0.5) if w else 0.0)
        f += [(C[t] - hi) / (scale[t] * 12), (C[t] - lo) / (scale[t] * 12)]
        day, week = 2 * math.pi * (ts[t] % 86400) / 86400, 2 * math.pi * ((ts[t] // 86400 + 3) % 7) / 7
        f += [math.sin(day), math.cos(day), math.sin(week), math.cos(week)]
        rows.append([*map(clamp, f), s60[t]])
    return rows


# ---------------------------------------------------------------- the environment, section 8

MARKET, LIMIT, IOC = range(3)
NONE, STOP, STOP_OPEN, PROFIT, HORIZON = range(5)
COLUMNS = ("roll", "roll_out", "roll_in", "fill", "fill_price", "exit_fill", "exit_price", "cash", "q", "entry", "equity", "reward")
FLAGS = ("exit", "terminated", "truncated")


def half_away(x):
    return math.copysign(math.floor(abs(x) + 0.5), x)


def order_size(delta, urgency, lot, most):
    f = (0.25, 0.5, 1.0)[urgency]
    if lot:
        return math.copysign(min(math.ceil(f * abs(delta) / lot - 1e-9) * lot, abs(delta)), delta)
    return delta if abs(delta) <= 1e-3 * most else f * delta


def fill_price(order, delta, close, bar, cfg):
    o, h, l, _ = bar
    if order == MARKET or (order == IOC and abs(o - close) <= 4 * cfg["tick"]):
        return o + math.copysign(cfg["half_spread"], delta)
    if order == LIMIT and delta > 0 and l < close:
        return min(close, o)
    if order == LIMIT and delta < 0 and h > close:
        return max(close, o)
    return None


def rollout(data, sigma, rolls, actions, begin, cfg):
    """From bar `begin` to the last one as one episode without a restart; for each step COLUMNS, the 8 portfolio features after it, FLAGS. The
    least distance of a decision from its threshold comes with it, relative to the price."""
    ts, o, h, l, c, _ = map(list, zip(*data))
    root, initial, mult = math.sqrt(cfg["horizon"]), cfg["initial_cash"], cfg["multiplier"]
    cash = equity = peak = initial
    q = entry = entry_sigma = 0.0
    entry_bar = 0
    last = len(data) - 1
    out, margin = [], 1.0
    for t in range(begin, last):
        n, a = t + 1, actions[t - begin]
        rolled = cfg["roll_on"] and n in rolls
        lapses = cfg["max_gap"] > 0 and (ts[n] - ts[t]) > cfg["max_gap"]
        row = dict.fromkeys(COLUMNS, 0.0) | dict.fromkeys(FLAGS, 0)
        want = (a[0] - 2) * 0.5 * cfg["max_position"]
        if cfg["lot"]:
            want = half_away(want / cfg["lot"]) * cfg["lot"]
        delta = want - q
        if rolled and q:
            out_price, in_price = c[t] - math.copysign(cfg["half_spread"], q), o[n] + math.copysign(cfg["half_spread"], q)
            row |= {"roll": q, "roll_out": out_price, "roll_in": in_price}
            cash += q * (out_price - in_price) * mult - 2 * abs(q) * cfg["fee"]
            entry += o[n] - c[t]
        if delta and not lapses and not (rolled and a[1] != MARKET):
            price = fill_price(a[1], delta, c[t], (o[n], h[n], l[n], c[n]), cfg)
            if price is not None:
                fill, before = order_size(delta, a[2], cfg["lot"], cfg["max_position"]), q
                cash -= fill * price * mult + abs(fill) * cfg["fee"]
                q = want if fill == delta else q + fill
                if cfg["lot"]:
                    q = round(q / cfg["lot"]) * cfg["lot"]
                row |= {"fill": fill, "fill_price": price}
                if q and (before == 0 or before * q < 0):
                    entry, entry_bar, entry_sigma = price, n, sigma[t]
                elif abs(q) > abs(before):
                    entry = (abs(before) * entry + abs(fill) * price) / abs(q)
        if q:
            side = math.copysign(1, q)
            unit = entry_sigma * root * max(abs(entry), cfg["tick"])
            stop, profit = entry - side * cfg["sl"] * unit, entry + side * cfg["pt"] * unit
            worst, best = (l[n], h[n]) if side > 0 else (h[n], l[n])
            margin = min([margin] + [abs(x - y) / abs(y) for x, y in ((worst, stop), (best, profit), (o[n], stop))])
            price = None
            if side * (worst - stop) <= 0:
                beyond = side * (o[n] - stop) <= 0
                price, row["exit"] = (o[n] if beyond else stop) - side * cfg["half_spread"], STOP_OPEN if beyond else STOP
            elif side * (best - profit) >= 0:
                price, row["exit"] = profit, PROFIT
            elif n - entry_bar >= cfg["horizon"]:
                price, row["exit"] = c[n] - side * cfg["half_spread"], HORIZON
            if price is not None:
                row |= {"exit_fill": -q, "exit_price": price}
                cash += q * price * mult - abs(q) * cfg["fee"]
                q = 0.0
        if not q:
            q = entry = entry_sigma = 0.0
            entry_bar = 0
        now = cash + q * c[n] * mult
        row |= {"cash": cash, "q": q, "entry": entry, "equity": now, "reward": (now - equity) / initial * cfg["reward_scale"]}
        equity, peak = now, max(peak, now)
        row["terminated"] = int(equity <= cfg["ruin_fraction"] * initial)
        row["truncated"] = int(not row["terminated"] and n == last)
        out.append((row, portfolio(q, entry, entry_bar, entry_sigma, equity, peak, n, c[n], sigma[n], last, cfg)))
        if row["terminated"]:
            break
    return out, margin


def portfolio(q, entry, entry_bar, entry_sigma, equity, peak, t, close, sigma, last, cfg):
    f, initial, root = [q / cfg["max_position"], 0, 0, 0, 0], cfg["initial_cash"], math.sqrt(cfg["horizon"])
    if q:
        side, w = math.copysign(1, q), max(abs(entry), cfg["tick"]) * sigma * root
        unit = entry_sigma * root * max(abs(entry), cfg["tick"])
        stop, profit = entry - side * cfg["sl"] * unit, entry + side * cfg["pt"] * unit
        f[1:] = [(close - entry) * side / w, (t - entry_bar) / cfg["horizon"], (profit - close) * side / w, (close - stop) * side / w]
    f += [math.log(max(equity, 1e-3 * initial) / initial), (peak - equity) / peak, min(last - t, cfg["episode_length"]) / cfg["episode_length"]]
    return [clamp(x) for x in f]


# ---------------------------------------------------------------- the golden file

BEGIN = 144
BASE = {"tick": TICK, "multiplier": 50.0, "half_spread": 0.125, "fee": 2.0, "max_position": 4.0, "initial_cash": 1e6, "reward_scale": 10.0,
        "pt": 0.75, "sl": 0.5, "ruin_fraction": 0.5, "episode_length": 300, "horizon": 8}
GAPS = {50: 3700, 51: 3700, 200: 90000, 300: 7200, 340: 172800, 341: 61, 420: 3601, 480: 3600, 555: 7200}
ROLLS = (60, 61, 200, 310, 340, 450, 451, 600)
ROLLOUTS = {
    "both": {"lot": 1.0, "max_gap": 3600.0, "roll_on": 1},
    "rolls": {"lot": 0.0, "max_gap": 0.0, "roll_on": 1},
    "gaps": {"lot": 0.5, "max_gap": 3600.0, "roll_on": 0},
}


def f32(x):
    import struct
    return struct.unpack("f", struct.pack("f", x))[0]


def golden():
    """(tensors as lists, metadata): all that the file holds."""
    data = bars(700, 12, GAPS | {i: 60 for i in ROLLS if i not in GAPS}, 800.0, 8.0)
    tensors = {k: list(v) for k, v in zip(("ts", "open", "high", "low", "close", "volume"), zip(*data))}
    tensors["ts"] = [t * NS for t in tensors["ts"]]
    tensors["roll"] = list(ROLLS)
    meta = {"tick": repr(TICK), "max_gap": "3600", "begin": str(BEGIN), "columns": ",".join(COLUMNS), "flags": ",".join(FLAGS)}
    for name, gap, rolls in (("plain", 0, ()), ("gaps", 3600, ()), ("rolls", 0, ROLLS), ("both", 3600, ROLLS)):
        rows = expected(data, gap, rolls)
        tensors[f"{name}.feature"], tensors[f"{name}.sigma"] = [r[:40] for r in rows], [r[40] for r in rows]
    for i, (name, change) in enumerate(ROLLOUTS.items()):
        cfg, r = BASE | change, random.Random(100 + i)
        sigma = [f32(s) for s in tensors[f"{name}.sigma"]]
        actions, now = [], [2, 0, 2]
        for _ in range(len(data)):
            if r.random() < 0.2:
                now = [r.randrange(5), r.choice([MARKET, MARKET, LIMIT, IOC]), r.randrange(3)]
            actions.append(now)
        steps, margin = rollout(data, sigma, ROLLS, actions, BEGIN, cfg)
        assert margin > 1e-9, f"{name}: a decision hangs on rounding ({margin})"
        tensors |= {f"{name}.sigma32": sigma, f"{name}.action": actions[:len(steps)], f"{name}.real": [[s[k] for k in COLUMNS] for s, _ in steps],
                    f"{name}.portfolio": [f for _, f in steps], f"{name}.flag": [[s[k] for k in FLAGS] for s, _ in steps]}
        meta |= {f"{name}.{k}": repr(v) for k, v in cfg.items()}
    return tensors, meta


def kind(name):
    return "i8" if name in ("ts", "roll") else "f4" if name.endswith("sigma32") else "i4" if name.endswith(("action", "flag")) else "f8"


def main():
    import numpy as np
    from safetensors.numpy import save_file

    tensors, meta = golden()
    save_file({k: np.array(v, kind(k)) for k, v in tensors.items()}, GOLDEN, meta)
    print(GOLDEN)


if __name__ == "__main__":
    main()
