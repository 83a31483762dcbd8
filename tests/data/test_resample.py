"""--bar and --session against a slow reading of their definition: sessions by the clock of a place, bars counted from their begin."""
import datetime as dt
import random
from zoneinfo import ZoneInfo

import pytest

NS = 10**9
UTC = dt.timezone.utc
LENGTH = {"5m": 300, "15m": 900, "1h": 3600, "4h": 14400, "1d": 86400}


def expected(bars, bar, start="00:00", zone="UTC"):
    """The session of a bar is the last one whose local begin is not after it."""
    hour, minute = map(int, start.split(":"))
    place, groups = ZoneInfo(zone), {}

    def begin(day):
        local = dt.datetime(day.year, day.month, day.day, hour, minute, tzinfo=place)
        back = local.astimezone(UTC).astimezone(place)
        if (back.hour, back.minute) != (hour, minute):
            local += dt.timedelta(hours=1)
        return int(local.astimezone(UTC).timestamp()) * NS

    for ts, o, h, l, c, v in bars:
        day = dt.datetime.fromtimestamp(ts // NS, place).date()
        first = begin(day)
        if first > ts:
            first = begin(day - dt.timedelta(days=1))
        n = 0 if bar == "1d" else (ts - first) // (LENGTH[bar] * NS)
        groups.setdefault(first + n * LENGTH[bar] * NS, []).append((o, h, l, c, v))
    return [(ts, g[0][0], max(x[1] for x in g), min(x[2] for x in g), g[-1][3], float(sum(x[4] for x in g)))
            for ts, g in groups.items()]


def minutes(first, n, keep=1.0, seed=1):
    """Minute bars with quarter prices, some of them missing."""
    r, c, out = random.Random(seed), 5000.0, []
    for i in range(n):
        o, c = c, c + r.choice([-0.5, -0.25, 0, 0.25, 0.5])
        if r.random() < keep:
            out.append((first + i * 60 * NS, o, max(o, c) + 0.25, min(o, c) - 0.25, c, float(r.randrange(100))))
    return out


def write(path, bars):
    rows = (dt.datetime.fromtimestamp(b[0] // NS, UTC).isoformat() + "," + ",".join(map(repr, b[1:])) for b in bars)
    path.write_text("ts,open,high,low,close,volume\n" + "\n".join(rows) + "\n")


def stamp(*when):
    return int(dt.datetime(*when, tzinfo=UTC).timestamp()) * NS


@pytest.mark.parametrize("bar", sorted(LENGTH))
@pytest.mark.parametrize("session", [None, "17:00 America/Chicago", "09:30 America/New_York", "02:30 Europe/Berlin", "22:00"])
@pytest.mark.parametrize("first", [stamp(2024, 3, 7, 3, 7), stamp(2024, 10, 31, 23, 59), stamp(1969, 12, 30, 5)])
def test_bars_of_a_session(read, tmp_path, bar, session, first):
    bars = minutes(first, 6 * 1440, keep=0.8)
    path = tmp_path / "m.csv"
    write(path, bars)
    start, zone = (session + " UTC").split()[:2] if session else ("00:00", "UTC")
    got = read(path, f"--bar={bar}", *([f"--session={session}"] if session else []))
    assert got.refused is None
    assert got.bars == expected(bars, bar, start, zone)
    assert len(got.bars) < len(bars) / 3
    assert f"bars of {bar} made from {len(bars)} bars" in got.notes


def test_the_zone_of_the_times_is_the_sessions_too(read, tmp_path):
    path = tmp_path / "m.csv"
    rows = ["2024-03-29 %02d:%02d,1,2,0.5,1.5,3" % (i // 60, i % 60) for i in range(0, 1440, 10)]
    path.write_text("ts,open,high,low,close,volume\n" + "\n".join(rows))
    got = read(path, "--tz=Europe/Berlin", "--bar=1d", "--session=08:00")
    assert [b[0] for b in got.bars] == [stamp(2024, 3, 28, 7), stamp(2024, 3, 29, 7)]
    assert [b[5] for b in got.bars] == [3.0 * 48, 3.0 * 96]


def test_bars_that_fit_stay_as_they_are(read, tmp_path):
    bars = minutes(stamp(2024, 1, 1), 500)
    path = tmp_path / "m.csv"
    write(path, bars)
    assert read(path, "--bar=1m").bars == bars


@pytest.mark.parametrize("options, words", [
    (["--bar=5x"], "--bar"), (["--bar=0m"], "--bar"), (["--bar=2d"], "--bar"), (["--bar=-5m"], "--bar"), (["--bar=5"], "--bar"),
    (["--bar=1h", "--session=25:00"], "--session"), (["--session=17:00"], "--session"),
    (["--bar=1h", "--session=17:00 Mars/Olympus"], "Mars/Olympus"), (["--bar=30s"], "cannot make bars of 30s"),
])
def test_refused(read, tmp_path, options, words):
    path = tmp_path / "m.csv"
    write(path, minutes(stamp(2024, 1, 1), 50))
    assert words in read(path, *options).refused
