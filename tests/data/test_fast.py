"""Files of many plain rows with something else among them: the rows that are read many at a time and those read one by one give the
same bars, line numbers and refusals. The same rows with a quoted field in the file take the careful way only, so they are the
reference."""
import datetime as dt
import random
import zlib

import pytest

NS = 10**9
START = 1_704_186_000


def rows(n, seed, form):
    r, c, out = random.Random(seed), 100.0, []
    places = r.choice([0, 1, 2, 5, 9])
    for i in range(n):
        o, c = c, round(max(c + r.choice([-1, -0.25, 0, 0.37, 1e-5]), -5), places)
        h, l = round(max(o, c) + abs(r.gauss(0, 1)), places), round(min(o, c) - abs(r.gauss(0, 1)), places)
        h, l = max(h, o, c), min(l, o, c)
        t = START + 60 * i
        d = dt.datetime.fromtimestamp(t, dt.timezone.utc)
        text = {"iso": d.strftime("%Y-%m-%d %H:%M:%S"), "isoz": d.strftime("%Y-%m-%dT%H:%M:%SZ"), "s": str(t), "ms": str(t * 1000),
                "us": str(t * 10**6), "ns": str(t * NS), "slash": d.strftime("%Y/%m/%d %H:%M"), "mixed": str(t * r.choice([1, 1000, 10**6, NS]))}[form]
        out.append(",".join([text, *(f"{x:.{places}f}" if r.random() < 0.9 else repr(x) for x in (o, h, l, c)),
                             r.choice(["0", "17", "123456789", "12.5", "1e3", "98765432109876.5", "12345678901234567890"])]))
    return out


HEADER = "ts,open,high,low,close,volume"


def both(read, tmp_path, lines, *options, end="\n"):
    plain, careful = tmp_path / "plain.csv", tmp_path / "careful.csv"
    plain.write_text(end.join([HEADER, *lines]) + end)
    # one quoted field sends the whole block, and these files are smaller than one, the careful way
    first = lines[0].split(",")
    quoted = [HEADER] + [",".join([f'"{first[0]}"', *first[1:]]), *lines[1:]]
    careful.write_text(end.join(quoted) + end)
    a, b = read(plain, *options), read(careful, *options)
    assert (a.refused or "").replace("plain.csv", "") == (b.refused or "").replace("careful.csv", "")
    assert a.bars == b.bars and a.notes == b.notes
    return a


@pytest.mark.parametrize("form", ["iso", "isoz", "s", "ms", "us", "ns", "slash", "mixed"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_same_bars(read, tmp_path, form, end):
    got = both(read, tmp_path, rows(30000, zlib.crc32(f"{form}{end}".encode()) & 0xffff, form), end=end)
    assert len(got.bars) == 30000 and got.bars[-1][0] == (START + 60 * 29999) * NS


BAD = ["", "   ", "2024-13-01 00:00:00,1,2,1,2,3", "1.5,2,3", "2024-01-02 09:00:00,1,2,1,2,3", "2030-01-01 00:00:00,5,4,3,4,1",
       "2030-01-01 00:00:00,1,2,1,,3", "2030-01-01 00:00:00,1,2,1,nan,3", "2030-01-01 25:00:00,1,2,1,2,3", "2030-01-01 00:00:00,1,2,1,2,-3",
       "2030-01-01 00:00:00,1,2,1,2,3,4", "2030-01-01 00:00:00,1.2.3,2,1,2,3", "2030-02-30 00:00:00,1,2,1,2,3", "2030-01-01 00:00:00;1;2;1;2;3",
       "2030-01-01 00:00:00,-,2,1,2,3", "2030-01-01 00:00:00,1,2,1,2,", "x", "2030-01-01 00:00:60,1,2,1,2,3", "-5,1,2,1,2,3"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at", [1, 6500])
def test_one_line_that_is_not_plain(read, tmp_path, bad, at):
    lines = rows(9000, 7, "iso")
    lines.insert(at, bad)
    got = both(read, tmp_path, lines)
    assert (got.refused is None) == (not bad.strip())
    if got.refused:
        assert f":{at + 2}: " in got.refused
    both(read, tmp_path, lines, "--on-bad-row=drop", "--on-duplicate=first")
    both(read, tmp_path, lines, "--on-bad-row=repair")


def test_times_that_repeat_or_go_back(read, tmp_path):
    lines = rows(40000, 9, "s")
    again = lines[:25000] + [lines[24999]] + lines[25000:]
    assert both(read, tmp_path, again).notes == ["exact repeats of a bar dropped: 1"]
    back = lines[:20001] + [lines[100]] + lines[20001:]
    assert ":20003: " in both(read, tmp_path, back).refused
    assert len(both(read, tmp_path, back, "--sort").bars) == 40000
    changed = lines[19999].rsplit(",", 1)[0] + ",424242"
    twice = lines[:20000] + [changed] + lines[20000:]
    assert "that of line 20001" in both(read, tmp_path, twice).refused
    for which in ("first", "last"):
        got = both(read, tmp_path, twice, f"--on-duplicate={which}")
        assert (got.bars[19999][5] == 424242) == (which == "last")
