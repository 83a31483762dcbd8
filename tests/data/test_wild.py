"""What files of the wild look like, one spelling a row: the bars are the same however they are written, or the refusal says what is wrong."""
import gzip
import io
import json
import zipfile

import pytest
import zstandard

T0 = 1_704_186_000  # 2024-01-02 09:00:00 UTC
WANT = [((T0 + 60 * i) * 10**9, 1.25, 1.5 + i, 1.125, 1.5, 1000.5) for i in range(3)]


def stamp(i, form):
    import datetime as dt
    t = dt.datetime.fromtimestamp(T0 + 60 * i, dt.timezone.utc)
    return t.strftime(form)


def table(form, delimiter=",", header="ts,open,high,low,close,volume", comma=False, tail=""):
    number = (lambda x: f"{x:g}".replace(".", ",")) if comma else (lambda x: f"{x:g}")
    rows = [delimiter.join([form(i) if callable(form) else stamp(i, form), *(number(x) for x in b[1:])]) + tail for i, b in enumerate(WANT)]
    return "\n".join(([header.replace(",", delimiter)] if header else []) + rows) + "\n"


ISO = "%Y-%m-%d %H:%M:%S"
SPELLINGS = {
    "comma": (table(ISO), []),
    "semicolon": (table(ISO, ";"), []),
    "tab": (table(ISO, "\t"), []),
    "bar": (table(ISO, "|"), []),
    "decimal comma": (table(ISO, ";", comma=True), []),
    "decimal comma asked for": (table(ISO, "\t", comma=True), ["--decimal=comma"]),
    "no header": (table(ISO, header=None), []),
    "columns": (table(ISO, header=None), ["--columns=ts,open,high,low,close,volume"]),
    "first header cell empty": (table(ISO, header=",Open,High,Low,Close,Volume"), []),
    "twelve fields": (table(lambda i: str((T0 + 60 * i) * 1000), header=None, tail=",1704186059999,9,9,9,9,0"), []),
    "compact": (table("%Y%m%d %H:%M"), []),
    "compact with seconds": (table("%Y%m%d %H:%M:%S"), []),
    "compact, one number": (table("%Y%m%d%H%M%S"), []),
    "two columns": (table("%Y%m%d,%H:%M", header="Date,Time,Open,High,Low,Close,Volume"), []),
    "two columns without header": (table("%d.%m.%Y,%H:%M:%S", header=None), []),
    "microseconds": (table("%Y-%m-%d %H:%M:%S.%f"), []),
    "microseconds with offset": (table("%Y-%m-%dT%H:%M:%S.%f+00:00"), []),
    "epoch s": (table(lambda i: str(T0 + 60 * i)), []),
    "epoch ms": (table(lambda i: str((T0 + 60 * i) * 10**3)), []),
    "epoch us": (table(lambda i: str((T0 + 60 * i) * 10**6)), []),
    "epoch ns": (table(lambda i: str((T0 + 60 * i) * 10**9)), []),
    "the unit changes": (table(lambda i: str((T0 + 60 * i) * 10 ** (3, 6, 9)[i])), []),
    "ms of a day": (table(lambda i: str((9 * 3600 + 60 * i) * 1000), header=None), ["--date=2024-01-02"]),
    "Berlin": (table(lambda i: f"2024-01-02 10:0{i}"), ["--tz=Europe/Berlin"]),
    "New York": (table(lambda i: f"2024-01-02 04:0{i}"), ["--tz=America/New_York"]),
    "JSON": (json.dumps([[b[0] // 10**6, *b[1:]] for b in WANT]), []),
    "CRLF and mark": ("\ufeff" + table(ISO).replace("\n", "\r\n"), []),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_of_the_same_bars(read, tmp_path, name):
    text, options = SPELLINGS[name]
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8", newline="")
    got = read(path, *options)
    assert got.refused is None and got.bars == WANT, (got.refused, got.bars)


def zipped(names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, text in names.items():
            z.writestr(name, text)
    return out.getvalue()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lambda b: zipped({"only.csv": b}),
                                  lambda b: gzip.compress(b[:40]) + gzip.compress(b[40:]),
                                  lambda b: zstandard.compress(b[:40]) + zstandard.compress(b[40:])])
def test_packed(read, tmp_path, pack):
    for text in (SPELLINGS["comma"][0], SPELLINGS["JSON"][0]):
        path = tmp_path / "packed"  # found from the bytes, not from the name
        path.write_bytes(pack(text.encode()))
        assert read(path).bars == WANT


def test_members_of_an_archive(read, tmp_path):
    day, options = SPELLINGS["ms of a day"]
    path = tmp_path / "20240102_trade.zip"
    path.write_bytes(zipped({"a_201403.csv": day, "b_201406.csv": day.replace("1000.5", "7")}))
    refused = read(path, *options).refused
    assert "2 files" in refused and "--member" in refused and "a_201403.csv" in refused
    assert read(path, *options, "--member=a_201403.csv").bars == WANT
    assert read(path, *options, "--member=b_201406.csv").bars[2][5] == 7
    assert "b_201406.csv" in read(path, *options, "--member=c.csv").refused
    assert "--date" in read(path, "--member=a_201403.csv").refused


H = "ts,open,high,low,close,volume\n"
GOOD = "2024-01-02,1,2,1,2,5\n"
REFUSED = {
    "fewer names than fields": ("ts,open,high,low,close\n2024-01-02,1,2,1,2,5\n", [], [":2: 6 fields", "names 5"]),
    "more names than fields": (H + "2024-01-02,1,2,1,2\n", [], [":2: 5 fields", "names 6"]),
    "thousands": (H + GOOD + '2024-01-03,"1,000.5",2000,1,2,5\n', [], [":3:", "separators"]),
    "thousands with ;": (H.replace(",", ";") + "2024-01-02;1,000.5;2,000.5;1,000.5;1,000.5;5\n", [], [":2:", "separators"]),
    "decimal or thousands": (H.replace(",", ";") + "2024-01-02;1,250;1,500;1,125;1,500;1000\n", [], ["--decimal"]),
    "put forward": (H + "2024-03-31 02:30,1,2,1,2,5\n", ["--tz=Europe/Berlin"], [":2:", "put forward"]),
    "twice": (H + "2024-10-27 02:30,1,2,1,2,5\n", ["--tz=Europe/Berlin"], [":2:", "--dst=first|second"]),
    "order": (H + "2024-01-03,1,2,1,2,5\n" + GOOD, [], [":3:", "line 2", "--sort"]),
    "conflict": (H + GOOD + "2024-01-02,1,2,1,2,6\n", [], [":3:", "line 2", "--on-duplicate"]),
    "impossible": (H + "2024-01-02,1,0.5,0.5,0.5,5\n", [], [":2:", "high 0.5", "--on-bad-row=drop|repair"]),
    "not repairable": (H + GOOD + "2024-01-03,1,nan,1,1,5\n", ["--on-bad-row=repair"], [":3:", "column 3"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_where_and_why(read, tmp_path, name):
    text, options, words = REFUSED[name]
    path = tmp_path / "x.csv"
    path.write_text(text)
    got = read(path, *options)
    assert got.refused and all(w in got.refused for w in words) and not got.bars, got.refused


def test_a_folder_is_no_file(read, tmp_path):
    assert "it is a folder" in read(tmp_path).refused


def test_what_is_told_of_a_dropped_bar_names_no_way_out(read, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(H + "2024-01-01,1,2,1,2,5\n2024-01-02,1,0.5,0.5,0.5,5\n")
    notes = " ".join(read(path, "--on-bad-row=drop").notes)
    assert "bad rows dropped: 1" in notes and "high 0.5" in notes and "--on-bad-row" not in notes


def test_clock_changes(read, tmp_path):
    """Half hours of local time over both changes of the year: each of them right, the doubled ones as asked."""
    path = tmp_path / "x.csv"
    path.write_text(H + "".join(f"2024-03-31 {t},1,2,1,2,5\n" for t in ("01:30", "03:00", "03:30")))
    utc = [t // 10**9 for t, *_ in read(path, "--tz=Europe/Berlin").bars]
    assert utc == [1711845000, 1711846800, 1711848600], "02:00 to 03:00 is no time at all: half an hour each"
    for which, at in (("first", 1729989000), ("second", 1729992600)):
        path.write_text(H + "".join(f"2024-10-27 {t},1,2,1,2,5\n" for t in ("01:30", "02:30", "03:30")))
        bars = read(path, "--tz=Europe/Berlin", f"--dst={which}").bars
        assert [t // 10**9 for t, *_ in bars] == [1729985400, at, 1729996200]
    path.write_text(H + "".join(f"2024-10-27T02:30:00{z},1,2,1,2,5\n" for z in ("+02:00", "+01:00")))
    assert [t // 10**9 for t, *_ in read(path, "--tz=Europe/Berlin").bars] == [1729989000, 1729992600], "an offset needs no choice"


def test_order_duplicates_and_repairs_are_counted(read, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(H + "2024-01-03,1,2,1,2,5\n" + GOOD + GOOD + "2024-01-03,1,2,1,2,6\n2024-01-04,3,2,1.5,1,5\n2024-01-05,0,0,-2,-1,3000000000.25\n")
    got = read(path, "--sort", "--on-duplicate=last", "--on-bad-row=repair")
    assert [b[1:] for b in got.bars] == [(1, 2, 1, 2, 5), (1, 2, 1, 2, 6), (3, 3, 1, 1, 5), (0, 0, -2, -1, 3000000000.25)]
    text = "\n".join(got.notes)
    for words in ("widened to hold open and close: 1", "exact repeats of a bar dropped: 1", "the last was taken", "put in order"):
        assert words in text, text
    got = read(path, "--sort", "--on-duplicate=first", "--on-bad-row=drop")
    assert [b[5] for b in got.bars] == [5, 5, 3000000000.25] and "bad rows dropped: 1, first line 6" in "\n".join(got.notes)


def test_price_scale(read, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("19980102 00:00,973100,975300,965300,973600,2150000\n")
    assert read(path, "--price-scale=10000").bars == [(883699200 * 10**9, 97.31, 97.53, 96.53, 97.36, 2150000)]
