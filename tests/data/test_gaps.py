"""Features over gaps and changes of the contract, against the definition in gpu/MATH.md, section 7, as gaps.py has it; and the golden file that the C tests
read is what gaps.py makes."""
import subprocess

import pytest

import gaps
from gaps import TICK, bars, expected
from tools import FEATURES, LIMIT_S


def measured(tmp_path, data, max_gap, rolls=()):
    path, symbol = tmp_path / "b.csv", 0
    with open(path, "w") as f:
        f.write("ts,open,high,low,close,volume,symbol\n")
        for i, b in enumerate(data):
            symbol += i in rolls
            f.write(",".join(map(repr, b)) + f",ES{symbol % 3}\n")
    got = subprocess.run([FEATURES, path, str(TICK), str(max_gap)], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return [[float(x) for x in line.split(",")] for line in got.stdout.splitlines()]


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


def test_the_golden_file_is_what_the_definition_gives():
    np = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors")
    tensors, meta = gaps.golden()
    with safetensors.safe_open(gaps.GOLDEN, "np") as f:
        assert f.metadata() == meta and set(f.keys()) == set(tensors)
        for k, v in tensors.items():
            have, want = f.get_tensor(k), np.array(v, gaps.kind(k))
            assert have.shape == want.shape and have.dtype == want.dtype, k
            if have.dtype.kind == "i":
                assert np.array_equal(have, want), k
            else:
                top = np.abs(want).max(axis=0)
                assert (np.abs(have - want) <= (1e-6 if have.dtype.itemsize == 4 else 1e-11) * np.maximum(top, 1e-30)).all(), k


def test_the_golden_rollouts_meet_what_they_are_for():
    """Rolls of both sides, with and without an order; lapsed orders; exits of every kind."""
    tensors, _ = gaps.golden()
    seen = {}
    for name in gaps.ROLLOUTS:
        col = {k: [r[i] for r in tensors[f"{name}.real"]] for i, k in enumerate(gaps.COLUMNS)}
        seen[name] = {"long": sum(x > 0 for x in col["roll"]), "short": sum(x < 0 for x in col["roll"]),
                      "rolled and filled": sum(a != 0 and b != 0 for a, b in zip(col["roll"], col["fill"])),
                      "exits": {f[0] for f in tensors[f"{name}.flag"]}, "fills": sum(x != 0 for x in col["fill"])}
    assert seen["both"]["long"] and seen["both"]["short"] and seen["rolls"]["long"] and seen["rolls"]["short"], seen
    assert any(s["rolled and filled"] for s in seen.values()), seen
    assert set.union(*(s["exits"] for s in seen.values())) == set(range(5)), seen
    assert not seen["gaps"]["long"] and not seen["gaps"]["short"] and all(s["fills"] > 50 for s in seen.values()), seen
