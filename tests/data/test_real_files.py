"""Seventy-five real files of the market and what becomes of each: so many bars, or the reason why not.

Runs when FHD_REAL_DATA names the folder that holds them (they are other people's, so they are not in this tree), and is counted as
skipped otherwise. A row: file, options, what is expected. A number is the count of bars; a text has to be in the refusal; a dict
can say more: `bars`, `first` and `last` (ts in s), `close` of the last bar, `note` (words of a notice)."""
import os
from pathlib import Path

import pytest

REAL = os.environ.get("FHD_REAL_DATA")
FILES = sorted(str(p.relative_to(REAL)) for p in Path(REAL).rglob("*") if p.is_file() and p.name != "README.md") if REAL else []
pytestmark = pytest.mark.skipif(not REAL, reason="FHD_REAL_DATA names no folder")

TWO = "nautilus/futures_ohlcv-1m_2024-07-01T23-40_2024-07-02T00-10.dbn"
ES1 = {"first": 1609160400}
TABLE = [
    ("backtesting.py/BTCUSD.csv", [], {"bars": 156, "first": 1327968000}),
    ("backtesting.py/EURUSD.csv", [], {"bars": 5000, "first": 1492592400, "last": 1518015600}),
    ("backtesting.py/GOOG.csv", [], {"bars": 2148, "first": 1092873600, "last": 1362096000, "open0": 100.0}),
    ("backtrader/2006-01-02-volume-min-001.txt", [], ":2: 8 fields, but the header names 7"),
    ("backtrader/2006-01-02-volume-min-001.txt", ["--columns=date,time,open,high,low,close,volume,-"],
     {"bars": 30889, "first": 1136192460, "last": 1141077600, "open0": 3602.0}),
    ("backtrader/2006-min-005.txt", [], {"bars": 2142, "first": 1136192700, "last": 1138642200, "volume": 0.0}),
    ("backtrader/2006-volume-day-001.txt", [], {"bars": 255, "first": 1136160000, "last": 1167350400}),
    ("backtrader/ticksample.csv", [], ":24: the time 2015-09-23T20:58:22.316Z is that of line 23"),
    ("backtrader/ticksample.csv", ["--on-duplicate=first"], {"bars": 134, "note": "other values: 1, the first was taken"}),
    ("backtrader/yhoo-1996-2015.txt", [], {"bars": 4965, "first": 829267200, "last": 1451520000}),
    ("databento-python/GLBX.MDP3.test_data.ohlcv-1s.dbn.zst", [], {"bars": 4, "first": 1609113600}),
    ("databento-python/GLBX.MDP3.test_data.ohlcv-1m.dbn.zst", [], {"bars": 4, "first": 1609113600, "open0": 3702.75, "volume0": 306.0}),
    ("databento-python/GLBX.MDP3.test_data.ohlcv-1h.dbn.zst", [], {"bars": 4, "first": 1609113600}),
    ("databento-python/GLBX.MDP3.test_data.ohlcv-1d.dbn.zst", [], {"bars": 1, "first": 1609113600}),
    ("datahub/vix-daily.csv", [], ":535: an impossible bar, high 18.57 is below its open 19.24"),
    ("datahub/vix-daily.csv", ["--on-bad-row=drop"], {"bars": 9235 - 47, "note": "bad rows dropped: 47"}),
    ("datahub/vix-daily.csv", ["--on-bad-row=repair"], {"bars": 9235, "note": "widened to hold open and close: 47"}),
    *[(f"dbn/test_data.ohlcv-1d{v}", [], "no bars") for v in (".dbn", ".v1.dbn.zst", ".v2.dbn.zst", ".v3.dbn.zst")],
    *[(f"dbn/test_data.ohlcv-{s}{v}", [], {"bars": 2, "open0": 372025.0, **ES1}) for s in ("1s", "1m", "1h")
      for v in (".dbn", ".v1.dbn.zst", ".v2.dbn.zst", ".v3.dbn.zst")],
    ("dbn/test_data.ohlcv-1m.v2.dbn.zst", ["--price-scale=100"], {"bars": 2, "open0": 3720.25, **ES1}),
    ("dbn/test_data.ohlcv-1m.dbz", [], "DBZ"),
    ("derived/es_front_1m_utc.csv", [], {"bars": 19083, "note": "changes of the symbol (ES201312, ES201403, ES202003): 2"}),
    ("derived/es_front_1m_utc.csv", ["--symbol=ES202003"], {"note": "rows of other symbols skipped"}),
    ("eia/wti-daily.csv", [], "the header has one price and no column for open, high, low"),
    ("eia/wti-daily.csv", ["--columns=ts,close"], {"bars": 10226, "first": 505008000, "low": -36.98, "note": "one price a bar"}),
    ("eia/brent-daily.csv", [], "one price"),
    ("eia/brent-daily.csv", ["--columns=ts,close"], {"bars": 9958, "positive": True}),
    ("freqtrade/UNITTEST_BTC-1m.json", [], {"bars": 13681, "first": 1509836520, "last": 1510700340}),
    ("freqtrade/XRP_USDT_USDT-1h-futures.json.gz", [], {"bars": 100, "first": 1637110800, "last": 1637467200}),
    ("gym-anytrading/FOREX_EURUSD_1H_ASK.csv", [], {"bars": 6225, "first": 1483308000, "last": 1514581200, "volume_max": 1.6e11}),
    ("gym-anytrading/STOCKS_GOOGL.csv", [], {"bars": 2335, "volume_min": 1000.0}),
    ("lean/btcusd_daily/btcusd_trade.zip", [], {"bars": 1318, "low": 0.06}),
    ("lean/spy_daily/spy.zip", ["--price-scale=10000", "--tz=America/New_York"], {"bars": 5849, "first": 883717200, "open0": 97.31}),
    ("nautilus/6EH4.XCME_1min_bars_20240101_20240131.csv.gz", [], {"bars": 29996, "first": 1704150060, "last": 1706745540}),
    ("nautilus/ADABTC-1m-2021-11-27.csv", [], {"bars": 10, "positive": True}),
    ("nautilus/btc-perp-20211231-20220201_1m.csv", [], {"bars": 45031, "first": 1640991660, "last": 1643693460}),
    ("nautilus/gbpusd-m1-bid-2012.csv", [], {"bars": 30117, "note": "no volume column"}),
    *[(TWO + ending, [], "118 (ESU4) 30 bars, 4358 (NQU4) 30 bars") for ending in ("", ".zst")],
    *[(TWO + ending, [option], {"bars": 30, "first": 1719877200, "price": price}) for ending in ("", ".zst")
      for option, price in (("--symbol=ESU4", 5527), ("--instrument-id=118", 5527), ("--symbol=NQU4", 20026))],
    ("nautilus/futures_ohlcv-1m_2026-01-09T20-55_2026-01-09T21-05.dbn.zst", [], {"bars": 10, "first": 1767992100, "last": 1767992640}),
]
# Archives with one file an expiry: bars of every expiry over all archives of the folder.
ARCHIVES = {
    "lean/es_minute": {"201312": 16673, "201403": 5116, "201406": 442, "201409": 6, "201412": 9, "202003": 1425, "202006": 272, "202009": 5},
    "lean/gc_minute": {"201312": 6687},
    "lean/fesx_minute": {"202409": 1322, "202412": 26},
    "lean/btcusd_minute": {"trade": 3887},
    "lean/es_hour": {"201312": 147, "201403": 142},
    "lean/es_daily": {"201312": 61, "201403": 61, "201406": 54, "201409": 10, "201412": 10, "202003": 5, "202006": 1, "202009": 1},
}
FESX = {"20240603": 1153, "20240604": 1125, "20240621": 253}  # where the second half of the day begins again


def members(archive):
    import zipfile
    return zipfile.ZipFile(Path(REAL) / archive).namelist()


def day(archive):
    name = Path(archive).name[:8]
    return [f"--date={name[:4]}-{name[4:6]}-{name[6:]}"] if name.isdigit() else []


def test_the_table_is_complete():
    known = {row[0] for row in TABLE} | {f for f in FILES if str(Path(f).parent) in ARCHIVES}
    assert set(FILES) == known and len(FILES) == 75


@pytest.mark.parametrize("file, options, want", TABLE, ids=lambda v: v if isinstance(v, str) and "/" in v else None)
def test_outcome(read, file, options, want):
    got = read(Path(REAL) / file, *options)
    if isinstance(want, str):
        assert got.refused and want in got.refused and file.split("/")[-1] in got.refused and not got.bars
        return
    assert got.refused is None, got.refused
    b = got.bars
    assert all(x[0] < y[0] for x, y in zip(b, b[1:])) and all(l <= min(o, c) and h >= max(o, c) for _, o, h, l, c, _ in b)
    facts = {"bars": len(b), "first": b[0][0] / 10**9, "last": b[-1][0] / 10**9, "open0": b[0][1], "volume0": b[0][5],
             "low": min(x[3] for x in b), "positive": min(x[3] for x in b) > 0, "volume": max(x[5] for x in b)}
    for key, value in want.items():
        if key == "note":
            assert any(value in n for n in got.notes), got.notes
        elif key == "price":
            assert all(abs(x[4] / value - 1) < 0.02 for x in b)
        elif key == "volume_max":
            assert max(x[5] for x in b) > value
        elif key == "volume_min":
            assert min(x[5] for x in b) > value
        else:
            assert facts[key] == value, key


@pytest.mark.parametrize("folder", sorted(ARCHIVES))
def test_archives_of_expiries(read, folder):
    total = {}
    for archive in (f for f in FILES if str(Path(f).parent) == folder):
        names = members(archive)
        if len(names) > 1:
            assert f"holds {len(names)} files" in read(Path(REAL) / archive, *day(archive)).refused
        for name in names:
            if folder == "lean/fesx_minute" and name.endswith("202406.csv"):
                continue
            got = read(Path(REAL) / archive, f"--member={name}", *day(archive))
            assert got.refused is None, got.refused
            key = name.removesuffix(".csv").split("_")[-1]
            total[key] = total.get(key, 0) + len(got.bars)
            if day(archive):
                assert "--date" in read(Path(REAL) / archive, f"--member={name}").refused
    stated = ARCHIVES[folder]
    assert {k: v for k, v in total.items() if k in stated} == stated
    if folder == "lean/gc_minute":
        assert len(total) == 13 and all(3 <= v <= 417 for k, v in total.items() if k != "201312")
    if folder == "lean/es_hour":
        assert len(total) == 8 and all(1 <= v <= 40 for k, v in total.items() if k not in stated)


@pytest.mark.parametrize("date", sorted(FESX))
def test_a_day_that_is_there_twice(read, date):
    """Scaled by 1.00835 first, then as it was: out of order, and each bar in conflict with its twin."""
    archive = Path(REAL) / f"lean/fesx_minute/{date}_trade.zip"
    options = [f"--date={date[:4]}-{date[4:6]}-{date[6:]}", f"--member={date}_fesx_minute_trade_202406.csv"]
    assert f":{FESX[date]}: " in read(archive, *options).refused and "out of order" in read(archive, *options).refused
    assert "on-duplicate" in read(archive, *options, "--sort").refused
    raw = read(archive, *options, "--sort", "--on-duplicate=last").bars
    scaled = read(archive, *options, "--sort", "--on-duplicate=first").bars
    assert len(raw) == len(scaled) == FESX[date] - 1
    assert all(x[4] == round(x[4]) for x in raw)
    assert all(abs(s[4] / r[4] - 1.00835) < 1e-4 for s, r in zip(scaled, raw))
