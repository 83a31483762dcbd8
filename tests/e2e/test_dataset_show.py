"""`fhctl dataset show`: everything that is known of a set, as a table and as JSON, against numbers worked out here."""
import datetime as dt
import json

import pytest

import fh

pytestmark = pytest.mark.same_threads
DAY = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)  # a Monday


def session_file(path):
    """Three weeks of minutes, Monday to Friday 14:30 to 21:00, one minute of each Wednesday missing, two bars impossible, one repeated,
    two rows exchanged. Returns the times of the bars."""
    times = [DAY + dt.timedelta(days=d, minutes=m) for d in range(21) if d % 7 < 5 for m in range(14 * 60 + 30, 21 * 60)]
    times = [t for t in times if not (t.weekday() == 2 and t.hour == 16 and t.minute == 40)]
    rows = [f"{t:%Y-%m-%d %H:%M:%S},{100 + i % 7},{101 + i % 7},{99 + i % 7},{100 + i % 7},5\n" for i, t in enumerate(times)]
    rows[50], rows[60] = (r.split(",")[0] + ",10,9,8,9,5\n" for r in (rows[50], rows[60]))
    rows[200], rows[201] = rows[201], rows[200]
    path.write_text("time,open,high,low,close,volume\n" + "".join(rows[:301] + rows[300:]))
    return times


def test_show_says_all_of_it(daemon, folder):
    path = folder / "es.csv"
    times = session_file(path)
    daemon.ctl("dataset", "import", path, "--name", "es", "--sort", "--on-bad-row=repair", "--tick", "0.25")
    got = daemon.ctl("dataset", "show", "es", "-o", "json").json()["dataset"]
    n = len(times)
    assert int(got["bars"]) == n == 15 * 390 - 3
    assert int(got["first_ts"]) == int(times[0].timestamp()) * 10**9 and int(got["last_ts"]) == int(times[-1].timestamp()) * 10**9
    assert int(got["bar_ns"]) == 60 * 10**9
    gaps = {int(g["length_ns"]) // 10**9: int(g["count"]) for g in got["gap"]}
    night, weekend = 17 * 3600 + 31 * 60, 65 * 3600 + 31 * 60
    assert gaps == {night: 12, weekend: 2, 120: 3} and int(got["gaps"]) == 17
    assert [int(g["count"]) for g in got["gap"]] == [12, 3, 2], "most frequent first"
    span = (times[-1] - times[0]).total_seconds()
    assert abs(got["bars_per_year"] - (n - 1) / span * 365.25 * 86400) < 1e-6
    assert int(got["duplicates"]) == 1 and int(got["repaired"]) == 2 and int(got["moved"]) == 1 and int(got["dropped"]) == 0
    hours = [0] * 168
    for t in times:
        hours[t.weekday() * 24 + t.hour] += 1
    assert got["week_hour"] == hours and sum(hours) == n
    assert len(got["hash"]) == 64 and len(got["spark"]) == 64
    assert int(got["memory_host"]) >= n * 212 and n * 204 <= int(got["memory_device"]) <= int(got["memory_host"])
    assert int(got["bytes"]) == (daemon.state / "datasets" / "es.safetensors").stat().st_size
    text = daemon.ctl("dataset", "show", "es").out
    lines = {x.split("  ")[0].strip(): x for x in text.splitlines()}
    assert "2024-01-01T14:30:00Z to 2024-01-19T20:59:00Z" in text and got["hash"] in text
    assert "17: 12 x 17h 31m, 3 x 2m, 2 x 2d 17h 31m" in text
    assert "2 bars widened, 1 row put in order" in text and "1 duplicate, " in text
    assert "on the host" in text and "on a device" in text
    assert "Mon ..............▄███████" not in text and "Mon ..............▄██████..." in text, text
    assert "Sat ........................" in text and "Sun ........................" in text
    assert any(x in text for x in "▁▂▃"), lines


def test_append_adds_up_and_negative_times_have_hours(daemon, folder):
    first, more = folder / "a.csv", folder / "b.csv"
    old = dt.datetime(1969, 12, 29, 23, tzinfo=dt.timezone.utc)  # a Monday
    first.write_text("ts,open,high,low,close\n" + "".join(f"{old + dt.timedelta(hours=i):%Y-%m-%dT%H:%M:%SZ},3,2,1,2\n" for i in range(4)))
    more.write_text("ts,open,high,low,close\n" + "".join(f"{old + dt.timedelta(hours=i):%Y-%m-%dT%H:%M:%SZ},3,2,1,2\n" for i in range(4, 6)))
    daemon.ctl("dataset", "import", first, "--name", "a", "--on-bad-row=repair")
    daemon.ctl("dataset", "append", "a", more, "--on-bad-row=repair")
    got = daemon.ctl("dataset", "show", "a", "-o", "json").json()["dataset"]
    assert int(got["repaired"]) == 6 and int(got["gaps"]) == 0 and not got.get("gap")
    assert [i for i, n in enumerate(got["week_hour"]) if n] == list(range(23, 29))
    listed = json.loads(daemon.ctl("dataset", "list", "-o", "json").out)["dataset"][0]
    assert not listed.get("week_hour"), "lists stay short"
    assert fh.ctl("dataset", "show", "a", url=daemon.url, code=0).out.count("gaps         none") == 1
