"""Data sets made of data sets: append, merge, export. What comes out is compared with one import of all the bars, bit for bit."""
import random
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fh
import kept
from fh import pb

NS = 10**9
START = 1_704_186_000
KEYS = ("ts", "open", "high", "low", "close", "volume")


def rows(first, n, seed=3):
    """Minute bars of a walk in quarters; the same for the same number whatever the range."""
    r, c, out = random.Random(seed), 5000.0, []
    for i in range(first + n):
        o, c = c, c + r.choice([-0.5, -0.25, 0, 0.25, 0.5])
        out.append((START + 60 * i, o, max(o, c) + 0.25, min(o, c) - 0.25, c, r.randrange(1000)))
    return out[first:]


def write(path, data, volume=True):
    n = 6 if volume else 5
    path.write_text(",".join(KEYS[:n]) + "\n" + "".join(",".join(map(repr, b[:n])) + "\n" for b in data))
    return path


def show(client, name):
    return client.call("show_dataset", pb.ShowDatasetRequest(name=name)).dataset


def bars(client, name):
    n, out = show(client, name).bars, {k: [] for k in KEYS}
    for first in range(0, n, 20000):
        reply = client.call("read_bars", pb.ReadBarsRequest(name=name, first=first, count=20000, stride=1))
        for k in KEYS:
            out[k].append(np.array(getattr(reply, k)))
    return {k: np.concatenate(v) for k, v in out.items()}


def features(daemon, name):
    """Those of the bars that the daemon keeps, with its contracts' changes."""
    return kept.features(daemon.state / "datasets" / f"{name}.safetensors", tick=0.25)


@pytest.fixture
def es(daemon, folder):
    daemon.ctl("dataset", "import", write(folder / "es.csv", rows(0, 1000)), "--name", "es", "--tick", "0.25")
    return "es"


def test_append_is_an_import_of_all(daemon, client, folder, es):
    before = show(client, es)
    daemon.ctl("dataset", "append", es, write(folder / "more.csv", rows(1000, 500)))
    daemon.ctl("dataset", "append", es, write(folder / "one.csv", rows(1500, 1)))
    daemon.ctl("dataset", "import", write(folder / "all.csv", rows(0, 1501)), "--name", "all", "--tick", "0.25")
    a, b = show(client, es), show(client, "all")
    assert a.hash == b.hash != before.hash and a.bars == 1501
    assert [(v.bars, v.hash) for v in a.version][0] == (1000, before.hash) and len(a.version) == 2
    assert np.array_equal(features(daemon, es), features(daemon, "all"))
    assert any("500 bars appended from more.csv" in n for n in a.note) and a.tick == 0.25


@pytest.mark.same_threads
def test_what_the_set_has_is_left_out_and_what_differs_refused(daemon, client, folder, es):
    result = daemon.ctl("dataset", "append", es, write(folder / "over.csv", rows(900, 150)))
    assert "100 bars of the file are in the set already" in result.err
    assert show(client, es).bars == 1050
    changed = rows(1040, 20)
    changed[3] = (*changed[3][:4], changed[3][4] + 0.25, changed[3][5])
    path = write(folder / "changed.csv", [(t, o, max(h, c), l, c, v) for t, o, h, l, c, v in changed])
    result = daemon.ctl("dataset", "append", es, path, code=5)
    assert "differ" in result.err and show(client, es).bars == 1050
    daemon.ctl("dataset", "append", es, path, "--on-duplicate=first")
    assert show(client, es).bars == 1060
    gap = [b for i, b in enumerate(rows(0, 1000)) if i != 500]
    daemon.ctl("dataset", "import", write(folder / "gap.csv", gap), "--name", "gap")
    assert "dataset merge" in daemon.ctl("dataset", "append", "gap", write(folder / "fill.csv", rows(499, 3)), code=5).err
    result = daemon.ctl("dataset", "append", es, folder / "over.csv")
    assert "nothing to append" in result.err
    assert daemon.ctl("dataset", "append", "none", folder / "over.csv", code=3).err


def test_a_job_keeps_the_bars_it_started_with(make_daemon, folder):
    """Paused while bars are appended, resumed, and resumed once more by another daemon: always on its own bars."""
    daemon = make_daemon()
    spec = fh.merge(fh.SMALL, {"data": {"dataset": "es"}})
    with daemon.client() as client:
        daemon.ctl("dataset", "import", write(folder / "es.csv", rows(0, 1200)), "--name", "es", "--tick", "0.25")
        job = client.start(fh.merge(spec, {"run": {"epochs": 1000}}), name="long")
        client.wait_step(job.id, 1)
        client.pause(job.id)
        paused = client.wait_state(job.id, "PAUSED")
        daemon.ctl("dataset", "append", "es", write(folder / "more.csv", rows(1200, 300)))
        assert show(client, "es").hash != paused.dataset_hash
        client.resume(job.id)
        client.wait_step(job.id, paused.step + 50)
        client.pause(job.id)
        again = client.wait_state(job.id, "PAUSED")
        assert again.dataset_hash == paused.dataset_hash
    daemon.stop()
    daemon.start()
    with daemon.client() as client:
        client.resume(job.id)
        client.wait_step(job.id, again.step + 50)
        assert client.show(job.id).dataset_hash == paused.dataset_hash
        client.stop(job.id)
        short = client.start(spec, name="short")
        client.wait_state(short.id, "DONE")
        assert client.show(short.id).dataset_hash == show(client, "es").hash


def test_merge(daemon, client, folder, es):
    daemon.ctl("dataset", "import", write(folder / "b.csv", rows(1200, 300)), "--name", "b", "--tick", "0.01")
    daemon.ctl("dataset", "import", write(folder / "m.csv", rows(950, 260)), "--name", "m", "--tick", "0.25")
    daemon.ctl("dataset", "merge", "all", "b", "es", "m")
    daemon.ctl("dataset", "import", write(folder / "all.csv", rows(0, 1500)), "--name", "once")
    merged = show(client, "all")
    assert merged.hash == show(client, "once").hash and merged.tick == 0.01
    assert any("all the same: 60" in n for n in merged.note) and merged.source == "merged: b es m"
    other = [(t, o + 1, h + 1, l + 1, c + 1, v) for t, o, h, l, c, v in rows(990, 20)]
    daemon.ctl("dataset", "import", write(folder / "o.csv", other), "--name", "o")
    assert "differ" in daemon.ctl("dataset", "merge", "x", "es", "o", code=5).err
    daemon.ctl("dataset", "merge", "first", "es", "o", "--on-duplicate=first")
    daemon.ctl("dataset", "merge", "last", "es", "o", "--on-duplicate=last")
    first, last = bars(client, "first"), bars(client, "last")
    assert len(first["ts"]) == len(last["ts"]) == 1010
    assert first["close"][995] == rows(995, 1)[0][4] and last["close"][995] == rows(995, 1)[0][4] + 1
    assert np.array_equal(first["close"][1000:], last["close"][1000:])


ODD = [(-300, -0.1, 0.30000000000000004, -1 / 3, 1e-9, 0), (0, 5e-324, 1e12, -1e12, 123456789.123456789, 1e18),
       (7, 2.0**-30, 1 / 3, 0.0, 0.1 + 0.2, 2**53 + 2.0), (61, 100, 100, 100, 100, 0.5)]


@pytest.mark.same_threads
@pytest.mark.parametrize("ending", ["csv", "safetensors"])
@pytest.mark.parametrize("volume", [True, False])
def test_export_then_import_gives_the_same_hash(daemon, client, folder, ending, volume):
    data = [(START + t, *rest) for t, *rest in ODD] + [(START + 100 + b[0] - START, *b[1:]) for b in rows(0, 25000)]
    daemon.ctl("dataset", "import", write(folder / "in.csv", data, volume), "--name", "in")
    path = folder / f"out.{ending}"
    result = daemon.ctl("dataset", "export", "in", path)
    assert "25004 bars" in result.err
    daemon.ctl("dataset", "import", path, "--name", "back")
    assert show(client, "back").hash == show(client, "in").hash
    assert show(client, "back").has_volume == show(client, "in").has_volume == volume
    assert sorted(p.name for p in folder.glob("out*")) == [path.name], "no half-written file is left"
    if ending == "csv":
        again = daemon.ctl("dataset", "export", "in", "-").out
        assert again == path.read_text()
        assert daemon.ctl("dataset", "import", "-", "--name", "stdin", input=again).code == 0
        assert show(client, "stdin").hash == show(client, "in").hash
    else:
        file, b = load_file(path), bars(client, "in")
        assert all(np.array_equal(file[k], b[k]) for k in KEYS)


@pytest.mark.same_threads
def test_safetensors_that_are_no_bars_are_refused(daemon, folder):
    path = folder / "x.safetensors"
    ok = {k: np.arange(5, dtype=np.float64) + 1 for k in KEYS[1:]} | {"ts": np.arange(5, dtype=np.int64)}
    for change, words in (({"ts": np.arange(5, dtype=np.float64)}, "ts"), ({"close": np.arange(4, dtype=np.float64)}, "close"),
                          ({"high": np.array([1, 2, np.nan, 4, 5.0])}, ":3: high"), ({"ts": np.array([1, 2, 2, 3, 4])}, ":3"),
                          ({"ts": np.zeros(0, np.int64)} | {k: np.zeros(0) for k in KEYS[1:]}, "no bars")):
        save_file(ok | change, path)
        assert words in daemon.ctl("dataset", "import", path, "--name", "x", code=None).err
    save_file({k: v for k, v in ok.items() if k != "low"}, path)
    assert "low" in daemon.ctl("dataset", "import", path, "--name", "x", code=None).err
    save_file(ok | {"high": np.array([1, 2, np.nan, 4, 5.0])}, path)
    assert "bad rows dropped: 1" in daemon.ctl("dataset", "import", path, "--name", "x", "--on-bad-row=drop").out


@pytest.mark.same_threads
def test_export_refusals(daemon, folder, es):
    assert "the ending" in daemon.ctl("dataset", "export", es, folder / "x.xlsx", code=2).err
    assert daemon.ctl("dataset", "export", "nothing", folder / "x.csv", code=3).err
    assert daemon.ctl("dataset", "export", es, folder / "no" / "x.csv", code=None).err
    assert not list(folder.glob("x*"))


@pytest.mark.same_threads
def test_parquet_where_it_is_built(daemon, client, folder, es):
    """And where it is not, both ways say how to get it."""
    path, foreign = folder / "x.parquet", folder / "y.parquet"
    result = daemon.ctl("dataset", "export", es, path, code=None)
    if result.code:
        foreign.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
        assert "make ARROW=DIR" in result.err and not path.exists()
        assert "make ARROW=DIR" in daemon.ctl("dataset", "import", foreign, "--name", "y", code=None).err
        return
    daemon.ctl("dataset", "import", path, "--name", "back")
    assert show(client, "back").hash == show(client, es).hash
    pq = pytest.importorskip("pyarrow.parquet")
    t, b = pq.read_table(path), bars(client, es)
    assert t["ts"].type.unit == "ns" and all(np.array_equal(t[k].to_numpy(), b[k]) for k in KEYS[1:])
    assert np.array_equal(t["ts"].cast("int64").to_numpy(), b["ts"])


@pytest.mark.same_threads
def test_an_instrument_gives_tick_and_session(daemon, client, folder):
    path = write(folder / "es.csv", rows(0, 3000))
    daemon.ctl("dataset", "import", path, "--name", "a", "--instrument", "es", "--bar", "1d")
    assert show(client, "a").tick == 0.25
    assert [t % (86400 * NS) for t in bars(client, "a")["ts"]] == [23 * 3600 * NS] * 3, "17:00 in Chicago in winter"
    daemon.ctl("dataset", "import", path, "--name", "b", "--instrument", "ES", "--bar", "1d", "--session", "00:00", "--tick", "0.5")
    assert show(client, "b").tick == 0.5 and {t % (86400 * NS) for t in bars(client, "b")["ts"]} == {0}
    assert "there are ES, NQ" in daemon.ctl("dataset", "import", path, "--name", "c", "--instrument", "ESX", code=2).err


@pytest.mark.same_threads
def test_a_job_with_max_gap_never_fills_across_one(daemon, client, folder):
    """Hours of trading with breaks of two hours: the trace of the agent has no fill right after a break, and has some without max_gap."""
    r, data, t, c = random.Random(1), [], 0, 5000.0
    for i in range(3000):
        t += 7200 if i % 60 == 0 else 60
        o = c + (r.choice([0, 1]) if i % 60 == 0 else 0)
        c = o + r.choice([0, 0.25, 0.5, 0.75])  # nothing but up between the breaks: worth being long
        data.append((START + t, o, c + 0.25, o - 0.25, c, 5))
    daemon.ctl("dataset", "import", write(folder / "g.csv", data), "--name", "g", "--tick", "0.25")
    fills = {}
    for name, env in (("gap", {"max_gap": 3600}), ("plain", {}), ("joined", {"max_gap": 3600, "gap_returns": "yes"})):
        spec = fh.merge(fh.SMALL, {"data": {"dataset": "g"}, "run": {"steps_per_epoch": 1500, "validate_every": 1500}, "env": {"tick": 0.25, "horizon": 5, **env}})
        path = folder / f"{name}.yaml"
        path.write_text(fh.yaml_text(spec))
        daemon.ctl("start", path, "--name", name)
        job = client.show(name)
        client.wait_state(job.id, "DONE")
        daemon.ctl("evaluate", name, "--split", "all", "--trace", folder / f"{name}.csv")
        lines = (folder / f"{name}.csv").read_text().splitlines()
        head = lines[0].split(",")
        table = [dict(zip(head, line.split(","))) for line in lines[1:]]
        fills[name] = [int(r["bar"]) for r in table if r["fill"] not in ("", "0", "-0") and float(r["fill"] or 0) != 0]
        assert len(fills[name]) > 50, lines[:4] + lines[-3:]
    assert not [b for b in fills["gap"] + fills["joined"] if b % 60 == 0]
    assert [b for b in fills["plain"] if b % 60 == 0]
    shown = {n: {v.name: v.value for v in client.show(n).last_report.value} for n in fills}
    assert shown["gap"] != shown["joined"], "features with and without the gaps' returns differ"


def contracts(path, n=1200, rolls=(400, 900), step=100.0):
    """One minute bars of three contracts after each other; each stands `step` above the one before, and nothing else happens."""
    with open(path, "w") as f:
        f.write(",".join(KEYS) + ",symbol\n")
        for i in range(n):
            k = sum(i >= r for r in rolls)
            p = 5000 + step * k
            f.write(f"{START + 60 * i},{p},{p + 0.5},{p - 0.5},{p},7,ES{'HMU'[k]}4\n")
    return path


@pytest.mark.same_threads
def test_changes_of_the_contract_are_known_and_kept(daemon, client, folder):
    path = contracts(folder / "r.csv")
    result = daemon.ctl("dataset", "import", path, "--name", "r", "--tick", "0.25")
    assert list(show(client, "r").roll) == [400, 900] and "ESH4, ESM4, ESU4" in result.out
    text = path.read_text().replace(",ESH4", ",A").replace(",ESM4", ",A").replace(",ESU4", ",A")
    (folder / "one.csv").write_text(text)
    daemon.ctl("dataset", "import", folder / "one.csv", "--name", "one")
    assert not show(client, "one").roll and show(client, "one").hash != show(client, "r").hash
    assert not np.array_equal(features(daemon, "one")[:, 40], features(daemon, "r")[:, 40])
    for ending in ("csv", "safetensors"):
        daemon.ctl("dataset", "export", "r", folder / f"out.{ending}")
        daemon.ctl("dataset", "import", folder / f"out.{ending}", "--name", f"b-{ending}")
        assert show(client, f"b-{ending}").hash == show(client, "r").hash and list(show(client, f"b-{ending}").roll) == [400, 900]
    lines = path.read_text().splitlines()
    for name, part in (("p1", lines[1:701]), ("p2", lines[701:])):
        (folder / f"{name}.csv").write_text("\n".join([lines[0], *part]) + "\n")
    daemon.ctl("dataset", "import", folder / "p1.csv", "--name", "app", "--tick", "0.25")
    daemon.ctl("dataset", "import", folder / "p2.csv", "--name", "p2", "--tick", "0.25")
    daemon.ctl("dataset", "append", "app", folder / "p2.csv")
    assert show(client, "app").hash == show(client, "r").hash
    assert np.array_equal(features(daemon, "app"), features(daemon, "r"))
    daemon.ctl("dataset", "import", folder / "p1.csv", "--name", "p1", "--tick", "0.25")
    daemon.ctl("dataset", "merge", "m", "p1", "p2")
    assert show(client, "m").hash == show(client, "r").hash
    daemon.ctl("dataset", "import", path, "--name", "h", "--bar", "1h")
    longer = show(client, "h")
    assert len(longer.roll) == 2 and longer.bars == 21, "20 hours, one of them cut in two by a change"
    b = bars(client, "h")
    assert max(b["high"] - b["low"]) < 2, "no long bar spans two contracts"


@pytest.mark.same_threads
def test_a_contract_that_changes_at_the_seam(daemon, client, folder):
    """Files that end and begin with their contracts: the change between them is known from the names, or from the bar they share."""
    path = contracts(folder / "all.csv")
    head, *lines = path.read_text().splitlines()
    daemon.ctl("dataset", "import", path, "--name", "all", "--tick", "0.25")
    part = {n: folder / f"{n}.csv" for n in ("h", "m", "u", "m1", "u0", "mu")}
    for name, (a, b) in {"h": (0, 400), "m": (400, 900), "u": (900, 1200), "m1": (399, 900), "u0": (850, 1200), "mu": (400, 1200)}.items():
        part[name].write_text("\n".join([head, *lines[a:b]]) + "\n")
    for name, files in (("exact", "hmu"), ("shared", ("h", "m1", "u0")), ("two", ("h", "mu"))):
        daemon.ctl("dataset", "import", part[files[0]], "--name", name, "--tick", "0.25")
        assert list(show(client, name).contract) == ["ESH4"]
        for f in files[1:]:
            daemon.ctl("dataset", "append", name, part[f])
        got = show(client, name)
        assert got.hash == show(client, "all").hash and list(got.roll) == [400, 900], name
        assert list(got.contract) == ["ESH4", "ESM4", "ESU4"] == list(show(client, "all").contract)
    assert "ESH4, ESM4, ESU4" in daemon.ctl("dataset", "show", "two").out
    assert any("from ESH4 to ESM4" in n for n in show(client, "exact").note)
    # the same contract goes on: no change, one name
    daemon.ctl("dataset", "import", part["h"], "--name", "same")
    (folder / "h2.csv").write_text("\n".join([head, *(x.replace("ESM4", "ESH4") for x in lines[400:500])]) + "\n")
    daemon.ctl("dataset", "append", "same", folder / "h2.csv")
    assert not show(client, "same").roll and list(show(client, "same").contract) == ["ESH4"]
    # nothing is known of one side: taken as the same, and said
    (folder / "bare.csv").write_text("\n".join(x.rsplit(",", 1)[0] for x in [head, *lines[400:500]]) + "\n")
    daemon.ctl("dataset", "import", part["h"], "--name", "unknown")
    assert "not known: the file has no symbols" in daemon.ctl("dataset", "append", "unknown", folder / "bare.csv").err
    assert not show(client, "unknown").roll
    # and a merge of the pieces is the same set
    for f in "mu":
        daemon.ctl("dataset", "import", part[f], "--name", f, "--tick", "0.25")
    daemon.ctl("dataset", "import", part["h"], "--name", "h", "--tick", "0.25")
    daemon.ctl("dataset", "merge", "merged", "u", "h", "m")
    assert show(client, "merged").hash == show(client, "all").hash


@pytest.mark.same_threads
def test_the_seam_of_a_continuous_symbol(daemon, client, folder):
    """Two DBN files of ES.c.0, another contract in each: the numbers behind the name tell."""
    sys.path.insert(0, str(fh.ROOT / "tests" / "data"))
    import dbn_files as df

    def day(n, ident, first, stype_in=3, symbol="ES.c.0"):
        path = folder / f"d{n}.dbn"
        path.write_bytes(df.metadata(3, 6, [(symbol, [(20240101, 20250101, ident)])], stype_in=stype_in) + b"".join(df.walk(300, ident=ident, first=first)))
        return path

    daemon.ctl("dataset", "import", day(1, 10, 0), "--name", "es")
    daemon.ctl("dataset", "append", "es", day(2, 10, 300))
    daemon.ctl("dataset", "append", "es", day(3, 11, 600))
    assert list(show(client, "es").roll) == [600] and list(show(client, "es").contract) == ["ES.c.0:10", "ES.c.0:11"]
    daemon.ctl("dataset", "import", day(4, 10, 0, 1, "ESH4"), "--name", "raw")
    daemon.ctl("dataset", "append", "raw", day(5, 77, 300, 1, "ESH4"))
    daemon.ctl("dataset", "append", "raw", day(6, 78, 600, 1, "ESM4"))
    assert list(show(client, "raw").roll) == [600] and list(show(client, "raw").contract) == ["ESH4", "ESM4"]
    assert "different kinds" in daemon.ctl("dataset", "append", "raw", day(7, 10, 900)).err
    assert list(show(client, "raw").roll) == [600]


def test_names_of_contracts_that_do_not_fit_are_refused(client):
    for names, roll, words in ((["A"], [5], "contract"), (["A", "B", "C"], [5], "contract"), (["A" * 64, "B"], [5], "longer")):
        with pytest.raises(fh.CallError) as e:
            client.call("begin_upload", pb.BeginUploadRequest(name="x", bars=10, source="x", roll=roll, contract=names))
        assert words in str(e.value)


@pytest.mark.same_threads
def test_exported_contracts_keep_their_names(daemon, client, folder):
    text = contracts(folder / "r.csv").read_text().replace(",ESH4", ',"ES, H4"').replace(",ESM4", ',"E ""S"" M4"')
    (folder / "odd.csv").write_text(text)
    daemon.ctl("dataset", "import", folder / "odd.csv", "--name", "odd")
    names = ["ES, H4", 'E "S" M4', "ESU4"]
    assert list(show(client, "odd").contract) == names
    for ending in ("csv", "safetensors"):
        daemon.ctl("dataset", "export", "odd", folder / f"o.{ending}")
        daemon.ctl("dataset", "import", folder / f"o.{ending}", "--name", f"o-{ending}")
        back = show(client, f"o-{ending}")
        assert back.hash == show(client, "odd").hash and list(back.contract) == names and list(back.roll) == [400, 900]


@pytest.mark.same_threads
def test_a_position_does_not_earn_the_step_between_two_contracts(daemon, client, folder):
    """Buy and hold over two steps of +100: with rolls it pays for four sides, without it earns the steps."""
    daemon.ctl("dataset", "import", contracts(folder / "r.csv"), "--name", "r", "--tick", "0.25")
    pnl = {}
    for name, env in (("roll", {}), ("step", {"roll_on_symbol_change": "no"})):
        spec = fh.merge(fh.SMALL, {"data": {"dataset": "r"}, "env": {"tick": 0.25, "multiplier": 50, "half_spread": 0.125, "fee": 2, **env}})
        path = folder / f"{name}.yaml"
        path.write_text(fh.yaml_text(spec))
        daemon.ctl("start", path, "--name", name)
        client.wait_state(client.show(name).id, "DONE")
        out = daemon.ctl("evaluate", name, "--split", "all", "-o", "json").json()
        hold = next(r for r in out["report"] if r["name"] == "buy_and_hold")
        pnl[name] = {v["name"]: v["value"] for v in hold["value"]}
    side = 0.125 * 50 + 2
    assert abs(pnl["roll"]["pnl"] - (-5 * side)) < 1e-6
    assert abs(pnl["step"]["pnl"] - (200 * 50 - side)) < 1e-6
    assert pnl["roll"]["trades"] == 5 and pnl["step"]["trades"] == 1
