"""DBN files: our own small ones, written byte by byte, read by our reader and by databento-dbn, bar for bar; and files that
must be refused with their reason. FHD_REAL_DATA names a folder of real files that are compared in the same way."""
import os
import struct
from pathlib import Path

import databento_dbn
import pytest
import zstandard

import dbn_files as df

CASES = Path(__file__).resolve().parents[1] / "cases"
REAL = os.environ.get("FHD_REAL_DATA")
REAL_FILES = sorted(Path(REAL).rglob("*.dbn*")) if REAL else []


def theirs(raw, ident=None):
    """The bars as databento-dbn has them; prices are its integers divided by 1e9, correctly rounded."""
    decoder = databento_dbn.DBNDecoder(compression=databento_dbn.Compression.NONE)
    decoder.write(raw)
    out = []
    for r in decoder.decode():
        if isinstance(r, databento_dbn.OHLCVMsg) and (ident is None or r.instrument_id == ident):
            out.append((r.ts_event, r.open / 10**9, r.high / 10**9, r.low / 10**9, r.close / 10**9, float(r.volume)))
    return out


def unpacked(path):
    data = Path(path).read_bytes()
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


def frames(raw, cut):
    """The bytes as zstd frames of `cut` bytes each, an empty and a skippable one between them."""
    c = zstandard.ZstdCompressor(level=3)
    parts = [c.compress(raw[i:i + cut]) for i in range(0, len(raw), cut)]
    skippable = struct.pack("<II", 0x184D2A51, 5) + b"hello"
    return (c.compress(b"") + skippable).join(parts)


@pytest.mark.parametrize("name", sorted(df.GOOD))
@pytest.mark.parametrize("form", ["raw", "zstd", "frames", "many"])
def test_same_bars_as_databento(read, tmp_path, name, form):
    raw = df.GOOD[name]
    data = {"raw": raw, "zstd": zstandard.ZstdCompressor().compress(raw), "frames": frames(raw, 4 + len(raw) // 3),
            "many": frames(raw, 61)}[form]
    path = tmp_path / ("x.dbn" if form == "raw" else "x.dbn.zst")
    path.write_bytes(data)
    got, want = read(path), theirs(raw)
    assert got.refused is None
    assert len(want) > 3 and got.bars == want


def test_negative_prices_of_the_case_file(read):
    got, want = read(CASES / "syn_negative.dbn"), theirs((CASES / "syn_negative.dbn").read_bytes())
    assert got.bars == want and len(want) == 8
    assert got.bars[3][0] == 1704186180000000000 and got.bars[3][1] == -37.63 and got.bars[3][5] == 5


def test_reads_packed_in_gzip_too(read, tmp_path):
    import gzip
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(df.GOOD["v2.ohlcv-1m"]))
    assert read(path).bars == theirs(df.GOOD["v2.ohlcv-1m"])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_interleaved_instruments_are_listed_and_chosen(read, tmp_path, version):
    raw = df.interleaved(version)
    path = tmp_path / "two.dbn"
    path.write_bytes(raw)
    text = read(path).refused
    for word in ("118 (ESX4) 20 bars", "4358 (NQX4) 20 bars", "--symbol", "--instrument-id"):
        assert word in text
    for option, ident in (("--symbol=ESX4", 118), ("--symbol=NQX4", 4358), ("--instrument-id=4358", 4358)):
        got = read(path, option)
        assert got.bars == theirs(raw, ident) and len(got.bars) == 20
        assert "rows of other symbols skipped: 20" in got.notes
    assert "ESX4, NQX4" in read(path, "--symbol=CLX4").refused
    assert "ESX4, NQX4" in read(path, "--instrument-id=5").refused


def test_a_continuous_symbol_follows_its_contracts(read, tmp_path):
    path = tmp_path / "c.dbn"
    path.write_bytes(df.GOOD["continuous"])
    got = read(path)
    assert len(got.bars) == 60
    assert any("changes of the symbol" in n for n in got.notes)
    assert read(path, "--symbol=FH.c.0").bars == got.bars
    assert len(read(path, "--instrument-id=11").bars) == 30


def test_a_new_number_is_no_new_contract(read, tmp_path):
    path = tmp_path / "r.dbn"
    path.write_bytes(df.GOOD["renumbered"])
    got = read(path)
    assert len(got.bars) == 60 and not any("changes of the symbol" in n for n in got.notes)


def test_a_symbol_asked_for_by_number_is_found_by_its_name(read, tmp_path):
    n = df.SYMBOL_BYTES[2]
    raw = bytearray(df.metadata(2, 6, [("77", [(20240101, 20250101, 77)])], stype_in=0))
    at = raw.rindex(df.text("77", n))
    raw[at:at + n] = df.text("FHZ4", n)
    path = tmp_path / "n.dbn"
    path.write_bytes(bytes(raw) + b"".join(df.walk(10)))
    assert len(read(path, "--symbol=FHZ4").bars) == 10 and len(read(path).bars) == 10


@pytest.mark.parametrize("ts", [2**63 - 2, 2**63 - 1 - 86400 * 10**9, 2**62])
@pytest.mark.parametrize("options", [[], ["--bar=1h"], ["--bar=1d", "--session=17:00 America/Chicago"], ["--sort"]])
def test_times_that_cannot_be_counted_with_are_refused(read, tmp_path, ts, options):
    """A bar's day, the session after it and gaps between bars are computed in 64 bits of nanoseconds."""
    path = tmp_path / "late.dbn"
    path.write_bytes(df.metadata(2) + df.bar(ts - 120 * 10**9, 1, 2, 1, 2, 5) + df.bar(ts - 60 * 10**9, 1, 2, 1, 2, 5) + df.bar(ts, 1, 2, 1, 2, 5))
    text = read(path, *options).refused
    assert "outside the years 1824 to 2116" in text and (":3: " if ts == 2**62 else ":1: ") in text


def test_undefined_values_are_missing(read, tmp_path):
    path = tmp_path / "u.dbn"
    rows = df.walk(6)
    for i, at in ((1, 16), (2, 40), (4, 48)):
        value = struct.pack("<Q", 2**64 - 1) if at == 48 else struct.pack("<q", df.UNDEFINED)
        rows[i] = rows[i][:at] + value + rows[i][at + 8:]
    path.write_bytes(df.metadata(2) + b"".join(rows))
    assert ":2: open is undefined" in read(path).refused
    got = read(path, "--on-bad-row=drop")
    assert len(got.bars) == 3 and any(n.startswith("bad rows dropped: 3") for n in got.notes)
    assert "undefined" in read(path, "--on-bad-row=repair").refused, "nothing to repair a missing price from"
    path.write_bytes(df.metadata(2) + rows[0][:8] + b"\xff" * 8 + rows[0][16:])
    assert "the time is undefined" in read(path).refused


def test_rules_for_rows_hold_here_too(read, tmp_path):
    path = tmp_path / "r.dbn"
    rows = df.walk(5)
    bad = df.bar(df.START + 5 * 60 * 10**9, 10.0, 9.0, 8.0, 9.0, 1)
    path.write_bytes(df.metadata(2) + b"".join([*rows, bad]))
    assert ":6: an impossible bar" in read(path).refused
    assert read(path, "--on-bad-row=repair").bars[-1][2] == 10.0
    path.write_bytes(df.metadata(2) + b"".join([*rows, rows[4]]))
    assert len(read(path).bars) == 5
    path.write_bytes(df.metadata(2) + b"".join([rows[1], rows[0], *rows[2:]]))
    assert ":2: " in read(path).refused and "out of order" in read(path).refused
    assert read(path, "--sort").bars == theirs(df.metadata(2) + b"".join(rows))
    assert read(path, "--sort", "--price-scale=100").bars[0][1] == rows_open(rows[0]) / 100


def rows_open(rec):
    return struct.unpack_from("<q", rec, 16)[0] / 10**9


GOOD = df.GOOD["v2.ohlcv-1m"]
META = df.metadata(2, 6, [("FHZ4", [(20240101, 20250101, 77)])])


def with_bytes(raw, at, new):
    return raw[:at] + new + raw[at + len(new):]


REFUSED = {
    "cut in its metadata": (GOOD[:90], "cut inside its metadata"),
    "cut in its first bytes": (b"DBN\x02\x64", "cut: 5 bytes"),
    "cut in a record": (GOOD[:-20], ":40: the file is cut inside this record: 36 of 56"),
    "cut in a record's header": (GOOD[:-50], ":40: the file is cut inside this record"),
    "fewer records than announced": (df.metadata(1, 6, records=50) + b"".join(df.walk(49)), "announces 50 records and 49 are there"),
    "no bars": (df.metadata(3, 8), "no bars"),
    "trades": (df.metadata(2, 4) + bytes(48), "its schema is trades"),
    "unknown schema": (df.metadata(2, 99), "unknown (99)"),
    "version 4": (with_bytes(GOOD, 3, b"\x04"), "version 4"),
    "version 0": (with_bytes(GOOD, 3, b"\x00"), "version 0"),
    "huge metadata": (with_bytes(GOOD, 4, b"\xff\xff\xff\x7f"), "bytes of metadata"),
    "symbols without end": (with_bytes(GOOD, 8 + 104, b"\xff\xff\xff\xff"), "do not fit"),
    "a record of no bytes": (META + b"".join(df.walk(3)) + bytes(56), ":4: a record of 0 bytes"),
    "a short bar": (META + b"\x0d" + df.walk(1)[0][1:-4], ":1: a bar of 52 bytes"),
    "another bar length": (META + b"".join(df.walk(2) + df.walk(1, "ohlcv-1h", first=3)), "0x22 in a file of ohlcv-1m"),
    "a trade among bars": (META + b"".join(df.walk(2)) + b"\x0c\x00" + bytes(46), ":3: a record of type 0x00"),
    "a month that is none": (META.replace(struct.pack("<I", 20240101), struct.pack("<I", 20241301)), "is no date"),
    "DBZ": (b"\x50\x2a\x4d\x18" + bytes(40), "DBZ"),
    "zstd cut": (zstandard.ZstdCompressor().compress(GOOD)[:-9], "zstd stream is cut short"),
    "zstd damaged": (frames(GOOD, 700)[:-30] + b"junkjunkjunk" * 4, "zstd"),
    "columns": (GOOD, "for text files", "--columns=ts,open,high,low,close"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_with_its_reason(read, tmp_path, name):
    data, words, *options = REFUSED[name]
    path = tmp_path / "x.dbn"
    path.write_bytes(data)
    got = read(path, *options)
    assert not got.bars and got.refused and words in got.refused
    assert got.refused.isprintable() and (options or str(path) in got.refused)


def test_every_cut_of_a_file_is_refused_or_ends_at_a_bar(read, tmp_path):
    raw = df.one(2, "ohlcv-1m", 3)
    start = len(raw) - 3 * 56
    path = tmp_path / "x.dbn"
    for n in [*range(1, 120, 7), *range(start, len(raw), 5), start + 56, start + 112]:
        path.write_bytes(raw[:n])
        got = read(path)
        whole = n > start and (n - start) % 56 == 0
        assert (got.refused is None) == whole, f"{n} bytes: {got.refused}"
        assert len(got.bars) == ((n - start) // 56 if whole else 0)


@pytest.mark.skipif(not REAL, reason="FHD_REAL_DATA names no folder")
@pytest.mark.parametrize("path", REAL_FILES, ids=[p.name for p in REAL_FILES])
def test_real_files_have_the_bars_that_databento_reads(read, path):
    raw = unpacked(path)
    everything = theirs(raw)
    got = read(path)
    if not everything:
        assert "no bars" in got.refused
    elif got.refused:
        assert "several instruments" in got.refused
        for ident in (118, 4358):
            one = read(path, f"--instrument-id={ident}")
            assert one.bars == theirs(raw, ident) and one.bars
    else:
        assert got.bars == everything
