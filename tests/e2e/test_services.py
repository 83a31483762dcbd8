"""Data sets, series, evaluations, decisions and checkpoints as a foreign client meets them."""
import hashlib
import random
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import fh
from fh import pb


def refused(code, f, *a, **kw):
    with pytest.raises(fh.CallError) as e:
        f(*a, **kw)
    assert e.value.code == getattr(pb, code), e.value
    return e.value


def bars(n, seed=1):
    rng = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 1e-3, n)))
    open_ = np.r_[100.0, close[:-1]]
    return {"ts": 1_700_000_000_000_000_000 + np.arange(n) * 3_600_000_000_000, "open": open_, "high": np.maximum(open_, close) + 0.01,
            "low": np.minimum(open_, close) - 0.01, "close": close, "volume": np.ones(n)}


def hash_of(b):
    return hashlib.sha256(b"".join(b[k].astype("<i8" if k == "ts" else "<f8").tobytes() for k in ("ts", "open", "high", "low", "close", "volume"))).hexdigest()


def upload(c, name, b, chunk=2000, **more):
    n = len(b["ts"])
    more.setdefault("hash", hash_of(b))
    begun = c.call("begin_upload", pb.BeginUploadRequest(name=name, bars=n, has_volume=True, **more))
    if begun.HasField("dataset"):
        return begun
    for i in range(0, n, chunk):
        part = {k: v[i:i + chunk] for k, v in b.items()}
        done = c.call("upload_chunk", pb.UploadChunkRequest(upload=begun.upload, first_bar=i, **part))
        assert done.next_bar == min(n, i + chunk)
    return c.call("commit_upload", pb.CommitUploadRequest(upload=begun.upload))


def evaluate(c, **ask):
    op = c.call("evaluate", pb.EvaluateRequest(**ask)).operation
    done = c.operation(op)
    rows = list(done.evaluate.row)
    more = done.evaluate.more
    while more:
        page = c.call("operation", pb.OperationRequest(operation=op, row=len(rows))).evaluate
        assert page.row, "a page without rows although there are more"
        rows += page.row
        more = page.more
    return done.evaluate, rows


def values(report):
    return {v.name: v.value for v in report.value}


def test_upload_by_hand(client):
    b = bars(5000)
    done = upload(client, "hourly", b, source="by hand", note=["a notice"])
    d = done.dataset.dataset
    assert (d.hash, d.bars, d.source, list(d.note)) == (hash_of(b), 5000, "by hand", ["a notice"])
    assert abs(d.bars_per_year - 8766) < 1e-9 and not d.gap and len(d.spark) == 64
    again = upload(client, "hourly", b)
    assert again.dataset.existed and not again.upload
    refused("CONFLICT", upload, client, "hourly", bars(5000, seed=2))
    refused("CORRUPT", upload, client, "other", b, hash="0" * 64)
    assert [x.name for x in client.call("list_datasets").dataset] == ["hourly"]
    got = client.call("read_bars", pb.ReadBarsRequest(name="hourly", first=10, count=5, stride=100))
    assert list(got.close) == list(b["close"][10:510:100]) and got.bars == 5000
    assert not client.call("read_bars", pb.ReadBarsRequest(name="hourly", first=5000)).ts
    for wrong in ({"first": -1}, {"count": 0}, {"count": 10 ** 9}, {"stride": 0}, {"stride": -5}):
        refused("INVALID", client.call, "read_bars", pb.ReadBarsRequest(name="hourly", **wrong))
    assert "hourly" in refused("NOT_FOUND", client.call, "show_dataset", pb.ShowDatasetRequest(name="hourl")).text
    client.call("drop_dataset", pb.DropDatasetRequest(name="hourly"))
    refused("NOT_FOUND", client.call, "drop_dataset", pb.DropDatasetRequest(name="hourly"))


def test_uneven_and_endless_uploads_change_nothing(client):
    b = bars(100)
    up = client.call("begin_upload", pb.BeginUploadRequest(name="x", bars=100)).upload
    short = {**b, "low": b["low"][:-1]}
    assert refused("INVALID", client.call, "upload_chunk", pb.UploadChunkRequest(upload=up, first_bar=0, **short)).field == "ts"
    refused("INVALID", client.call, "upload_chunk", pb.UploadChunkRequest(upload=up, first_bar=0))
    refused("CONFLICT", client.call, "upload_chunk", pb.UploadChunkRequest(upload=up, first_bar=7, **b))
    refused("CONFLICT", client.call, "commit_upload", pb.CommitUploadRequest(upload=up))
    begun = 1
    while True:  # nobody may hold more than the bound
        try:
            client.call("begin_upload", pb.BeginUploadRequest(name="x", bars=100))
            begun += 1
        except fh.CallError as e:
            assert e.code == pb.EXHAUSTED
            break
        assert begun < 100
    assert not client.call("list_datasets").dataset
    client.call("abort_upload", pb.AbortUploadRequest(upload=up))
    client.call("begin_upload", pb.BeginUploadRequest(name="x", bars=100))


@pytest.mark.parametrize("wrong", [{"kind": "x"}, {"bars": 1}, {"bars": 1 << 40}, {"sigma": -1.0}, {"phi": 2.0}, {"start": -3.0}, {"bar_ns": -1},
                                   {"bar_ns": 1 << 60}, {"sigma": float("nan")}, {"phi": float("inf")}])
def test_synth_refuses_by_name(client, wrong):
    error = refused("INVALID", client.synth, "n", **wrong)
    assert error.field == next(iter(wrong))
    assert not client.call("list_datasets").dataset


def test_evaluation_is_the_last_validation(client, spec):
    client.start(spec(), name="a")
    shown = client.wait_state("a", "DONE")
    client.wait_sample("a", lambda s: s.state == pb.DONE)
    samples = [s for s in client.samples("a") if s.kind == pb.VALIDATION and s.step == shown.planned_steps]
    assert {(s.split, s.policy) for s in samples} == {(a, b) for a in ("validation", "test") for b in (pb.TARGET, pb.ONLINE)}
    for sample in samples:
        result, rows = evaluate(client, job="a", split=sample.split, policy=sample.policy, trace=True)
        trained, now = {v.name: v.value for v in sample.value}, values(result.report[0])
        assert all(trained[k] == now[k] for k in ("pnl", "sharpe", "trades", "max_drawdown")), (sample.split, trained, now)
        assert len(rows) == now["bars"] and len(result.report) == 1
    last = client.show("a").last_validation
    assert (last.split, last.policy) == ("validation", pb.TARGET)


def test_pages_and_benchmarks(client, spec):
    client.synth("long", bars=12000)
    client.start(spec({"data": {"dataset": "long"}}), name="a")
    client.wait_state("a", "DONE")
    result, rows = evaluate(client, job="a", split="all", trace=True, benchmarks=True)
    assert [r.bar for r in rows] == list(range(145, 12000))
    assert [r.name for r in result.report] == ["agent", "buy_and_hold", "never_trade"]
    assert values(result.report[2])["pnl"] == 0 and values(result.report[1])["trades"] == 1
    refused("INVALID", evaluate, client, job="a", split="nope")
    refused("INVALID", evaluate, client)
    assert refused("INVALID", evaluate, client, job="a", policy=pb.POLICY_UNSPECIFIED).field == "evaluate.policy"
    refused("NOT_FOUND", evaluate, client, job="nobody")
    refused("NOT_FOUND", evaluate, client, checkpoint="9-9")
    assert refused("NOT_FOUND", evaluate, client, job="a", dataset="nothing").field == "dataset"
    other, _ = evaluate(client, job="a", dataset="m", split="all")
    assert (other.begin, other.end) == (144, 2000)
    refused("NOT_FOUND", client.call, "operation", pb.OperationRequest(operation="op-1-1"))


def test_windows_are_evaluated_side_by_side(client, spec):
    client.start(spec(run={"validate_windows": 4}), name="a")
    shown = client.wait_state("a", "DONE")
    client.wait_sample("a", lambda s: s.state == pb.DONE)
    result, rows = evaluate(client, job="a", split="validation", trace=True, benchmarks=True, windows=4)
    whole, parts = values(result.report[0]), [values(w) for w in result.window]
    assert len(parts) == 4 and [r.name for r in result.report] == ["agent", "buy_and_hold", "never_trade"]
    assert [(w.begin, w.end) for w in result.window][0][0] == result.begin and result.window[-1].end == result.end
    assert all(a.end == b.begin + 1 for a, b in zip(result.window, result.window[1:]))
    for name in ("bars", "trades", "closed", "ruined"):
        assert whole[name] == sum(p[name] for p in parts), name
    for name in ("pnl", "return", "turnover"):
        assert whole[name] == pytest.approx(sum(p[name] for p in parts), rel=1e-9), name
    assert whole["max_drawdown"] == max(p["max_drawdown"] for p in parts)
    assert [r.bar for r in rows] == list(range(result.begin + 1, result.end))
    assert values(result.report[1])["trades"] == 4  # bought once in every window
    trained = {v.name: v.value for s in client.samples("a") if s.kind == pb.VALIDATION and s.step == shown.planned_steps
               and (s.split, s.policy) == ("validation", pb.TARGET) for v in s.value}
    assert all(trained[k] == whole[k] for k in ("pnl", "sharpe", "trades", "max_drawdown"))
    plain, _ = evaluate(client, job="a", split="validation")
    assert not plain.window and values(plain.report[0])["bars"] == whole["bars"]
    assert refused("INVALID", evaluate, client, job="a", windows=1025).field == "windows"
    assert refused("INVALID", evaluate, client, job="a", split="test", windows=1000).field == "windows"
    assert refused("INVALID", client.start, spec(run={"validate_windows": 1000}), name="b").field == "run.validate_windows"
    client.start(spec(run={"validate_windows": 100}), name="c")
    client.wait_state("c", "DONE")
    client.synth("short", bars=1500)  # its splits have fewer steps than the job's windows, which do not matter here
    short, _ = evaluate(client, job="c", dataset="short", split="test")
    assert not short.window and values(short.report[0])["bars"] == short.end - 1 - short.begin


def test_decisions_while_training_and_evaluating(client, spec):
    client.synth("long", bars=60000)
    client.start(spec(fh.ENDLESS, {"data": {"dataset": "long"}}), name="a")
    client.wait_step("a", 40)
    refused("NOT_FOUND", client.call, "act", pb.ActRequest(job="a", state=[0.0] * 48, rows=1))
    saved = client.operation(client.call("save_checkpoint", pb.SaveCheckpointRequest(job="a")).operation).checkpoint.checkpoint
    assert saved.reason == "request" and saved.pinned
    refused("CONFLICT", client.call, "drop_dataset", pb.DropDatasetRequest(name="long"))
    refused("CONFLICT", client.call, "drop_checkpoint", pb.DropCheckpointRequest(checkpoint=saved.id))
    running = client.call("evaluate", pb.EvaluateRequest(job="a", split="all")).operation
    states = np.random.default_rng(0).normal(size=(3, 48)).astype("f4")
    first = client.call("act", pb.ActRequest(job="a", state=states.ravel(), rows=3))
    assert first.state_dim == 48 and list(first.actions) == [5, 3, 3] and len(first.action) == 9 and len(first.q) == 33
    q = np.array(first.q).reshape(3, 11)
    assert [int(np.argmax(q[0, :5])), int(np.argmax(q[0, 5:8])), int(np.argmax(q[0, 8:]))] == list(first.action[:3])
    for row in range(3):
        one = client.call("act", pb.ActRequest(job="a", state=states[row], rows=1))
        assert list(one.action) == list(first.action[3 * row:3 * row + 3])
    for wrong in (states.ravel()[:-1], [float("nan")] * 48, [], [0.0] * (48 * 4097)):
        refused("INVALID", client.call, "act", pb.ActRequest(job="a", state=wrong))
    client.call("operation", pb.OperationRequest(operation=running, cancel=True))
    try:
        client.operation(running)
    except fh.CallError as e:
        assert e.code == pb.INTERRUPTED
    client.stop("a")
    client.call("drop_checkpoint", pb.DropCheckpointRequest(checkpoint=saved.id))


def test_no_sample_that_was_seen_is_lost(make_daemon):
    """kill -9 while samples flow: every number that a poll returned is there afterwards, with the same content."""
    d = make_daemon()
    seen = {}
    with d.client() as c:
        c.synth("m")
        c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS, {"run": {"report_every": 1, "checkpoint_every": 100}}), name="x")
        c.wait_step("x", 50)
    rng = random.Random(5)
    for _ in range(3):
        with d.client() as c:
            end = time.monotonic() + 0.3 + 0.5 * rng.random()
            while time.monotonic() < end:
                for s in c.metrics("x", max(seen, default=0), wait_ms=100, limit=5000).sample:
                    assert s.seq not in seen
                    seen[s.seq] = s.SerializeToString()
        d.kill()
        d.start()
        with d.client() as c:
            kept = {s.seq: s.SerializeToString() for s in c.samples("x")}
        newest = max(kept)
        assert newest >= max(seen)
        assert all(k in kept for k in range(max(1, newest - 8000), newest + 1)), "numbers are missing among the newest"
        assert all(kept[k] == v for k, v in seen.items() if k in kept)


def test_http_pages(make_daemon, folder):
    with fh.loopback_port() as port:
        http_pages(make_daemon, folder, port)


def http_pages(make_daemon, folder, port):
    (folder / "fhd.yaml").write_text(f"http: 127.0.0.1:{port}\n")
    d = make_daemon("fhd", "--config", str(folder / "fhd.yaml"))

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=fh.DEADLINE_S) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    with d.client() as c:
        c.synth("m")
        c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS), name="x")
        c.wait_step("x", 40)
        code, text = get("/metrics")
        assert code == 200 and text.endswith("\n")
        family, numbers = set(), {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                name = line.split()[2]
                assert name not in family, f"{name} is announced twice"
                family.add(name)
            elif not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                assert key.split("{")[0] == name, f"{key} stands among {name}"
                numbers[key] = float(value)
        assert numbers['fhd_jobs{state="running"}'] == 1 and numbers["fhd_datasets"] == 1
        assert numbers['fhd_job_steps{job="1"}'] >= 40 and numbers['fhd_job_metric{job="1",metric="loss"}'] > 0
        assert numbers["fhd_samples_total"] > 0 and numbers["fhd_store_failed_total"] == 0
        assert get("/healthz") == (200, "ok\n") and get("/readyz") == (200, "ok\n")
        c.call("drain", pb.DrainRequest())
        assert get("/readyz") == (503, "draining\n") and get("/healthz")[0] == 200
        assert get("/../etc/passwd")[0] == 404
    d.stop()
