"""Parquet in a build with ARROW=: what pyarrow wrote is read, what we write pyarrow reads; without it the refusal says how to get it.
The module pyarrow and such a build are optional: tests that need them are counted as skipped."""
import datetime as dt
import math
import random

import pytest

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

NS = 10**9
START = 1_704_186_000


@pytest.fixture(scope="session")
def built(read, tmp_path_factory):
    """Is Parquet in this build?"""
    path = tmp_path_factory.mktemp("p") / "x.parquet"
    pq.write_table(pa.table({"ts": pa.array([1, 2], pa.timestamp("s")), **{k: [1.0, 2.0] for k in ("open", "high", "low", "close")}}), path)
    got = read(path)
    if got.refused:
        assert "make ARROW=DIR" in got.refused and "pyarrow" in got.refused
        pytest.skip("this build has no Parquet (make ARROW=DIR)")


def bars(n, seed=2):
    r, c, out = random.Random(seed), 100.0, []
    for i in range(n):
        o, c = c, c + r.choice([-0.5, 0, 0.5, 1 / 3])
        out.append(((START + 60 * i) * NS, o, max(o, c) + 0.25, min(o, c) - 0.1, c, float(r.randrange(10**9))))
    return out


def table(data, ts=None, names=("ts", "open", "high", "low", "close", "volume"), **change):
    cols = dict(zip(names, zip(*data)))
    cols[names[0]] = ts if ts is not None else pa.array(list(cols[names[0]]), pa.timestamp("ns", "UTC"))
    return pa.table({k: change.get(k, v) for k, v in cols.items() if change.get(k, v) is not None})


DATA = bars(3000)
STAMPS = [b[0] for b in DATA]
TIMES = {
    "ns": pa.array(STAMPS, pa.timestamp("ns")), "us": pa.array([s // 1000 for s in STAMPS], pa.timestamp("us", "UTC")),
    "ms": pa.array([s // 10**6 for s in STAMPS], pa.timestamp("ms")), "s as ms": pa.array([s // 10**9 for s in STAMPS], pa.timestamp("s")),
    "epoch ms": pa.array([s // 10**6 for s in STAMPS], pa.int64()), "epoch s": pa.array([s // 10**9 for s in STAMPS], pa.int32()),
    "text": pa.array([dt.datetime.fromtimestamp(s // NS, dt.timezone.utc).isoformat() for s in STAMPS]),
}


@pytest.mark.parametrize("kind", sorted(TIMES))
def test_times_of_every_kind(built, read, tmp_path, kind):
    path = tmp_path / "x.parquet"
    pq.write_table(table(DATA, ts=TIMES[kind]), path, row_group_size=700)
    got = read(path)
    assert got.refused is None and got.bars == DATA


def test_daily_dates(built, read, tmp_path):
    days = [((19000 + i) * 86400 * NS, *b[1:]) for i, b in enumerate(bars(50))]
    path = tmp_path / "d.parquet"
    pq.write_table(table(days, ts=pa.array([d[0] // (86400 * NS) for d in days], pa.date32()), names=("Date", "Open", "High", "Low", "Close", "Volume")), path)
    assert read(path).bars == days


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip"])
def test_numbers_of_every_kind(built, read, tmp_path, codec):
    data = [(t, *(round(x * 4) / 4 for x in (o, h, l, c)), v) for t, o, h, l, c, v in DATA]
    f32 = pa.array([b[4] for b in data], pa.float32())
    i64 = pa.array([int(b[5]) for b in data], pa.int64())
    import decimal
    dec = pa.array([decimal.Decimal(str(b[1])).quantize(decimal.Decimal("0.01")) for b in data], pa.decimal128(12, 2))
    path = tmp_path / "x.parquet"
    pq.write_table(table(data, close=f32, volume=i64, open=dec), path, compression=codec)
    assert read(path).bars == [(t, o, h, l, c, v) for t, o, h, l, c, v in data]


def test_a_table_that_pandas_wrote(built, read, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame([b[1:] for b in DATA], columns=["Open", "High", "Low", "Close", "Volume"],
                         index=pd.to_datetime(STAMPS, utc=True))
    path = tmp_path / "x.parquet"
    frame.to_parquet(path)
    assert read(path).bars == DATA


def test_symbols_missing_values_and_no_volume(built, read, tmp_path):
    path = tmp_path / "x.parquet"
    two = [b for pair in zip(DATA[:100], DATA[:100]) for b in pair]
    symbol = pa.array(["A", "B"] * 100).dictionary_encode()
    pq.write_table(table(two).append_column("symbol", symbol), path)
    assert read(path, "--symbol=B").bars == DATA[:100]
    assert "rows of other symbols skipped: 100" in read(path, "--symbol=B").notes
    assert "has the symbol 'C'" in read(path, "--symbol=C").refused
    two[1] = (*two[1][:5], two[1][5] + 1)
    pq.write_table(table(two).append_column("symbol", symbol), path)
    assert "several symbols are in the file (A, B)" in read(path).refused
    after = pa.array(["A"] * 60 + ["B"] * 40)  # one contract after the other
    pq.write_table(table(DATA[:100]).append_column("contract", after), path)
    got = read(path)
    assert got.bars == DATA[:100] and any(n.startswith("changes of the symbol (A, B): 1") for n in got.notes)
    assert read(path, "--symbol=B").bars == DATA[60:100]
    pq.write_table(table(DATA[:9], close=pa.array([None if i in (2, 5) else b[4] for i, b in enumerate(DATA[:9])])), path)
    assert ":3: close is no number" in read(path).refused
    got = read(path, "--on-bad-row=drop")
    assert len(got.bars) == 7 and any(n.startswith("bad rows dropped: 2, first row 3") for n in got.notes)
    pq.write_table(table([b[:5] for b in DATA[:9]], names=("ts", "open", "high", "low", "close")), path)
    assert "no volume column: volume is 0" in read(path).notes


def test_refused_with_its_reason(built, read, tmp_path):
    path = tmp_path / "x.parquet"
    good = table(DATA[:50])
    for t, words in ((good.drop(["high", "low"]), "no column for high, low"), (table(DATA[:50], open=pa.array(["x"] * 50)), "and not numbers"),
                     (table(DATA[:50], ts=pa.array([True] * 50)), "and not times"), (good.slice(0, 0), "no bars"),
                     (pa.concat_tables([good, good]), "out of order"), (table(DATA[:5], ts=pa.array([2**60] * 5, pa.timestamp("us"))), "outside"),
                     (table(DATA[:50], ts=pa.array([None] * 50, pa.timestamp("s"))), ":1: the time is missing"),
                     (good.append_column("x", pa.array([{"a": 1, "b": 2}] * 50)), "nested")):
        pq.write_table(t, path)
        got = read(path)
        assert got.refused and words in got.refused, got.refused
    pq.write_table(good, path)
    raw = path.read_bytes()
    for cut in (20, len(raw) // 2, len(raw) - 3):
        path.write_bytes(raw[:cut])
        assert "damaged" in read(path).refused
    r = random.Random(5)
    for _ in range(300):
        bad = bytearray(raw)
        for _ in range(r.randrange(1, 6)):
            bad[r.randrange(4, len(raw))] = r.randrange(256)
        path.write_bytes(bad)
        got = read(path)  # never a crash, and what is taken is sound
        assert got.refused or all(math.isfinite(x) for b in got.bars for x in b)
