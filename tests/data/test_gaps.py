"""Features over gaps and changes of the contract, against the definition in gpu/MATH.md, section 7, written out slowly here: every window summed afresh, every
average from bar 0."""
import math
import random
import subprocess

import pytest

from tools import FEATURES, LIMIT_S

NS = 10**9
TICK = 0.25


def bars(n, seed, gaps, start=100.0, jump=30.0):
    """Minute bars; before each bar of `gaps` (number: seconds) time and price jump."""
    r, out, t, c = random.Random(seed), [], 1_704_186_000, start
    for i in range(n):
        t += gaps.get(i, 60)
        o = c + (r.choice([-1, 1]) * jump if i in gaps else r.choice([0, 0, 0.25]))
        c = o + r.choice([-0.5, -0.25, 0, 0.25, 0.5])
        out.append((t, o, max(o, c) + r.choice([0, 0.25]), min(o, c) - r.choice([0, 0.25]), c, r.randrange(50)))
    return out


def measured(tmp_path, data, max_gap, rolls=()):
    path, symbol = tmp_path / "b.csv", 0
    with open(path, "w") as f:
        f.write("ts,open,high,low,close,volume,symbol\n")
        for i, b in enumerate(data):
            symbol += i in rolls
            f.write(",".join(map(repr, b)) + f",ES{symbol % 3}\n")
    got = subprocess.run([FEATURES, path, str(TICK), str(max_gap)], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return [[float(x) for x in line.split(",")] for line in got.stdout.splitlines()]


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


CASES = {"none": {}, "one": {300: 7200}, "many": {50: 3700, 51: 3700, 200: 90000, 340: 172800, 341: 61, 420: 3601, 480: 3600}}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("max_gap", [0, 3600])
@pytest.mark.parametrize("start", [100.0, 5000.0, 3.0])
def test_features_are_those_of_the_definition(tmp_path, case, max_gap, start):
    data = bars(520, 11, CASES[case], start)
    got, want = measured(tmp_path, data, max_gap), expected(data, max_gap)
    for k in range(41):
        a, b = [r[k] for r in got], [r[k] for r in want]
        top = max(map(abs, b)) or 1.0
        worst = max(abs(x - y) for x, y in zip(a, b)) / top
        assert worst < 1e-5, f"column {k}: {worst}"


@pytest.mark.parametrize("max_gap", [0, 3600])
def test_steps_between_contracts_are_left_out(tmp_path, max_gap):
    """Some at a gap, some without, two in a row."""
    rolls = {60, 61, 300, 340, 450}
    data = bars(520, 12, {300: 7200, 400: 7200, **{i: 60 for i in rolls - {300}}}, 800.0)
    got, want = measured(tmp_path, data, max_gap, rolls), expected(data, max_gap, rolls)
    for k in range(41):
        a, b = [r[k] for r in got], [r[k] for r in want]
        assert max(abs(x - y) for x, y in zip(a, b)) < 1e-5 * (max(map(abs, b)) or 1.0), f"column {k}"
    assert measured(tmp_path, data, max_gap) != got


def test_without_long_gaps_nothing_changes(tmp_path):
    data = bars(400, 4, {100: 3600, 200: 120})
    assert measured(tmp_path, data, 0) == measured(tmp_path, data, 3600) == measured(tmp_path, data, 1e9)
    assert measured(tmp_path, data, 0) != measured(tmp_path, data, 3599)


def test_the_past_does_not_know_the_gap(tmp_path):
    data = bars(400, 4, {350: 7200})
    assert measured(tmp_path, data, 3600)[:350] == measured(tmp_path, data, 0)[:350] == measured(tmp_path, data[:350], 3600)


def test_a_jump_over_a_gap_is_no_move(tmp_path):
    """At a high price level a jump of 30 that is left out leaves the features of the series without it, and one that is kept does not."""
    calm, wild = bars(500, 5, {300: 7200}, 1e6, 0.0), bars(500, 5, {300: 7200}, 1e6, 500.0)
    left_out, without, kept = measured(tmp_path, wild, 3600), measured(tmp_path, calm, 3600), measured(tmp_path, wild, 0)
    worst = max(abs(x - y) for a, b in zip(left_out, without) for x, y in zip(a, b))
    assert worst < 5e-3
    assert max(abs(x - y) for a, b in zip(kept, without) for x, y in zip(a, b)) > 1
