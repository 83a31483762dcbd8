"""Files through `fhctl dataset import`: the small inputs that broke other people's tools, and one's own CSV."""
import gzip
import json
import re

import numpy as np
import pytest

import fh
import kept
from fh import pb

SAME = ("bom_crlf.csv", "plain_lf.csv", "no_final_newline.csv", "blank_lines_cr_tail.csv")


def bars(client, name):
    n = client.call("show_dataset", pb.ShowDatasetRequest(name=name)).dataset.bars
    reply = client.call("read_bars", pb.ReadBarsRequest(name=name, first=0, count=n, stride=1))
    return {k: np.array(getattr(reply, k)) for k in ("ts", "open", "high", "low", "close", "volume")}


def test_four_spellings_of_the_same_bars(daemon, client):
    hashes = []
    for i, name in enumerate(SAME):
        daemon.ctl("dataset", "import", fh.CASES / name, "--name", f"d{i}")
        shown = client.call("show_dataset", pb.ShowDatasetRequest(name=f"d{i}")).dataset
        assert shown.bars == 6, name
        hashes.append(shown.hash)
    assert len(set(hashes)) == 1


@pytest.mark.same_threads
def test_klines_with_and_without_header(daemon, client):
    for i, name in enumerate(("klines_header.csv", "klines_no_header.csv")):
        daemon.ctl("dataset", "import", fh.CASES / name, "--name", f"k{i}")
        b = bars(client, f"k{i}")
        assert len(b["ts"]) == 3 and b["ts"][0] == 1704186000000 * 10**6 and b["close"][0] == 42010.50
    assert client.call("show_dataset", pb.ShowDatasetRequest(name="k0")).dataset.hash == client.call("show_dataset", pb.ShowDatasetRequest(name="k1")).dataset.hash


@pytest.mark.same_threads
def test_bad_rows_are_refused_whole_or_dropped_and_counted(daemon, client):
    result = daemon.ctl("dataset", "import", fh.CASES / "nan_rows.csv", "--name", "n", code=2)
    assert re.search(r"nan_rows\.csv:3", result.err) and re.search(r"open|column", result.err), result
    assert not client.call("list_datasets").dataset
    result = daemon.ctl("dataset", "import", fh.CASES / "nan_rows.csv", "--name", "n", "--on-bad-row=drop")
    shown = client.call("show_dataset", pb.ShowDatasetRequest(name="n")).dataset
    assert shown.bars == 4 and shown.dropped == 3 and "3" in result.out + result.err
    assert all(np.isfinite(v).all() for v in bars(client, "n").values())


@pytest.mark.same_threads
def test_one_time_has_one_bar(daemon, client):
    text = (fh.CASES / "dup_ts.csv").read_text().splitlines()
    result = daemon.ctl("dataset", "import", fh.CASES / "dup_ts.csv", "--name", "d", code=2)
    assert len(re.findall(r"\d+", result.err)) >= 2 and "dup_ts.csv" in result.err
    assert not client.call("list_datasets").dataset
    kept = {}
    for which in ("first", "last"):
        daemon.ctl("dataset", "import", fh.CASES / "dup_ts.csv", "--name", which, f"--on-duplicate={which}")
        b = bars(client, which)
        assert (np.diff(b["ts"]) > 0).all() and len(b["ts"]) < len(text) - 1
        kept[which] = b
    assert not np.array_equal(kept["first"]["close"], kept["last"]["close"])


@pytest.mark.same_threads
def test_exact_repeat_is_dropped_with_a_notice(daemon, client, folder):
    lines = (fh.CASES / "plain_lf.csv").read_text().splitlines()
    path = folder / "repeat.csv"
    path.write_text("\n".join(lines + [lines[-1]]) + "\n")
    result = daemon.ctl("dataset", "import", path, "--name", "r")
    shown = client.call("show_dataset", pb.ShowDatasetRequest(name="r")).dataset
    assert shown.bars == 6 and shown.duplicates == 1
    assert re.search(r"repeat|duplicate|twice|same", (result.out + result.err).lower()), result


@pytest.mark.same_threads
@pytest.mark.parametrize("name", ["negative_price.csv", "zero_price.csv", "zero_volume.csv", "flat_fee.csv"])
def test_odd_prices_and_volumes_are_fine(daemon, client, name):
    daemon.ctl("dataset", "import", fh.CASES / name, "--name", "x")
    assert np.isfinite(kept.features(daemon.state / "datasets" / "x.safetensors")).all()


@pytest.mark.same_threads
def test_statistics_never_see_the_future(daemon, client):
    for x in "ab":
        daemon.ctl("dataset", "import", fh.CASES / f"future_{x}.csv", "--name", x)
    a, b = (bars(client, x)["close"] for x in "ab")
    assert (a[:60] == b[:60]).all() and (a[60:] != b[60:]).any()
    a, b = (kept.features(daemon.state / "datasets" / f"{x}.safetensors") for x in "ab")
    assert a[:60].tobytes() == b[:60].tobytes()
    assert a[60:].tobytes() != b[60:].tobytes()


TIMES = {
    "iso": ("timestamp", "2024-01-02T09:0{}:00Z"),
    "iso_offset": ("timestamp", "2024-01-02T10:0{}:00+01:00"),
    "iso_space": ("time", "2024-01-02 09:0{}:00"),
    "day_first": ("Time", "02.01.2024 09:0{}:00.000"),
    "epoch_s": ("ts_event", "170418600{}"),
}


@pytest.mark.same_threads
@pytest.mark.parametrize("kind", TIMES)
def test_time_spellings(daemon, client, folder, kind):
    column, pattern = TIMES[kind]
    path = folder / "t.csv"
    path.write_text(f"{column},Close,LOW,high,Open,extra\n" + "".join(f"{pattern.format(i)},1.5,1,2,1.25,zz\n" for i in range(3)))
    result = daemon.ctl("dataset", "import", path, "--name", "t")
    b = bars(client, "t")
    step = 1 if kind == "epoch_s" else 60
    assert list(b["ts"]) == [(1704186000 + step * i) * 10**9 for i in range(3)]
    assert list(b["open"]) == [1.25] * 3 and list(b["volume"]) == [0] * 3
    assert "volume" in (result.out + result.err).lower(), "no volume column: 0 with a notice"


@pytest.mark.same_threads
def test_date_and_time_columns(daemon, client, folder):
    path = folder / "t.csv"
    path.write_text("Date,Time,Open,High,Low,Close,Volume\n" + "".join(f"2024-01-02,09:0{i}:00,1,2,0.5,1,{i}\n" for i in range(3)))
    daemon.ctl("dataset", "import", path, "--name", "t")
    assert list(bars(client, "t")["ts"]) == [(1704186000 + 60 * i) * 10**9 for i in range(3)]


BAD = {
    "no_close": ("timestamp,open,high,low\n2024-01-02,1,1,1\n", "close"),
    "text_price": ("timestamp,open,high,low,close\n2024-01-02,1,1,1,1\n2024-01-03,1,x,1,1\n", "3"),
    "high_below_low": ("timestamp,open,high,low,close\n2024-01-02,1,0.5,1,1\n", "2"),
    "short_row": ("timestamp,open,high,low,close\n2024-01-02,1,1,1,1\n2024-01-03,1,1\n", "3"),
    "back_in_time": ("timestamp,open,high,low,close\n2024-01-03,1,1,1,1\n2024-01-02,1,1,1,1\n", "3"),
    "bad_time": ("timestamp,open,high,low,close\n2024-13-02,1,1,1,1\n", "2"),
    "empty": ("", "bad.csv"),
    "header_only": ("timestamp,open,high,low,close\n", "bad.csv"),
    "binary": ("\x00\x01\x02\x03" * 100, "bad.csv"),
    "negative_volume": ("timestamp,open,high,low,close,volume\n2024-01-02,1,1,1,1,-1\n2024-01-03,1,1,1,1,1\n", "volume"),
}


@pytest.mark.same_threads
@pytest.mark.parametrize("kind", BAD)
def test_bad_files_name_the_place_and_register_nothing(daemon, client, folder, kind):
    text, word = BAD[kind]
    path = folder / "bad.csv"
    path.write_text(text)
    result = daemon.ctl("dataset", "import", path, "--name", "b", code=2)
    assert "bad.csv" in result.err and word in result.err, result
    assert not client.call("list_datasets").dataset
    assert not list((daemon.state / "datasets").iterdir())


def test_missing_file_and_taken_name(daemon, client, folder):
    assert "gone.csv" in daemon.ctl("dataset", "import", folder / "gone.csv", "--name", "x", code=(2, 3)).err
    daemon.ctl("dataset", "import", fh.CASES / "plain_lf.csv", "--name", "x")
    again = daemon.ctl("dataset", "import", fh.CASES / "plain_lf.csv", "--name", "x")
    assert "x" in again.out + again.err
    daemon.ctl("dataset", "import", fh.CASES / "flat_fee.csv", "--name", "x", code=5)
    daemon.ctl("dataset", "drop", "x")
    daemon.ctl("dataset", "show", "x", code=3)


@pytest.mark.same_threads
def test_compressed_file(daemon, client, folder):
    path = folder / "p.csv.gz"
    path.write_bytes(gzip.compress((fh.CASES / "plain_lf.csv").read_bytes()))
    daemon.ctl("dataset", "import", path, "--name", "z")
    assert client.call("show_dataset", pb.ShowDatasetRequest(name="z")).dataset.bars == 6


def test_show_and_list(daemon, client):
    daemon.ctl("dataset", "synth", "--kind", "walk", "--bars", "500", "--seed", "1", "--name", "s")
    out = daemon.ctl("dataset", "show", "s").out
    assert "500" in out
    rows = json.loads(daemon.ctl("dataset", "list", "-o", "json").out)["dataset"]
    assert rows[0]["name"] == "s" and rows[0]["bars"] == "500"
    for kind in ("momentum", "regime", "walk"):
        daemon.ctl("dataset", "synth", "--kind", kind, "--bars", "300", "--seed", "1", "--name", f"s-{kind}")
    daemon.ctl("dataset", "synth", "--kind", "momentom", "--bars", "300", "--seed", "1", "--name", "q", code=2)


def test_interrupted_upload_leaves_nothing(daemon, client):
    up = client.call("begin_upload", pb.BeginUploadRequest(name="half", bars=1000, hash="0" * 64, source="x", tick=0.01))
    client.call("upload_chunk", pb.UploadChunkRequest(upload=up.upload, first_bar=0, ts=[1, 2], open=[1, 1], high=[1, 1], low=[1, 1], close=[1, 1], volume=[0, 0]))
    with pytest.raises(fh.CallError):
        client.call("commit_upload", pb.CommitUploadRequest(upload=up.upload))
    try:
        client.call("abort_upload", pb.AbortUploadRequest(upload=up.upload))
    except fh.CallError as e:
        assert e.code == pb.NOT_FOUND
    assert not client.call("list_datasets").dataset


def test_the_daemon_checks_bars_itself(client):
    """A client that lies: NaN, high below low, time going back, a wrong hash."""
    good = {"ts": [10**9, 2 * 10**9], "open": [1.0, 1.0], "high": [1.0, 1.0], "low": [1.0, 1.0], "close": [1.0, 1.0], "volume": [0.0, 0.0]}
    for column, values in (("close", [1.0, float("nan")]), ("high", [0.5, 1.0]), ("ts", [2, 1]), ("volume", [0.0, -1.0])):
        with pytest.raises(fh.CallError) as e:
            upload(client, {**good, column: values}, "0" * 64)
        assert e.value.code in (pb.INVALID, pb.CORRUPT), (column, e.value)
    with pytest.raises(fh.CallError) as e:
        upload(client, good, "0" * 64)
    assert e.value.code in (pb.CORRUPT, pb.INVALID)
    assert not client.call("list_datasets").dataset


def upload(client, columns, digest):
    up = client.call("begin_upload", pb.BeginUploadRequest(name="lie", bars=2, hash=digest, source="x", tick=0.01))
    try:
        client.call("upload_chunk", pb.UploadChunkRequest(upload=up.upload, first_bar=0, **columns))
        return client.call("commit_upload", pb.CommitUploadRequest(upload=up.upload))
    except fh.CallError:
        try:
            client.call("abort_upload", pb.AbortUploadRequest(upload=up.upload))
        except fh.CallError:
            pass
        raise
