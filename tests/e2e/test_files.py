"""Checkpoints and data sets open with the outside world's own reader, the `safetensors` package."""
import hashlib
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import fh
import kept
from fh import pb

pytestmark = pytest.mark.same_threads

# Network of section 1 at the sizes of fh.SMALL: name -> shape.
def expected_parameters(sd=48, h1=16, h2=16, vh=8, ah=8, atoms=11, actions=(5, 3, 3)):
    shapes = {"s1.w": (h1, sd), "s1.b": (h1,), "s2.w": (h2, h1), "s2.b": (h2,), "v1.w": (vh, h2), "v1.b": (vh,),
              "v2.w": (atoms, vh), "v2.b": (atoms,)}
    for d, a in enumerate(actions):
        shapes |= {f"b{d}1.w": (ah, h2), f"b{d}1.b": (ah,), f"b{d}2.w": (a * atoms, ah), f"b{d}2.b": (a * atoms,)}
    return shapes


def find_parameters(tensors, prefix):
    """Maps section 1's names to the file's tensors, whatever group prefix the file gives them."""
    return {name: tensors[f"{prefix}{name}"] for name in expected_parameters()}


def test_checkpoint_opens(daemon, client, spec, folder):
    job = client.start(spec(), name="j")
    done = client.wait_state(job.id, "DONE")
    path = folder / "c.safetensors"
    daemon.ctl("checkpoint", "get", done.last_checkpoint, path)
    listed = client.call("list_checkpoints", pb.ListCheckpointsRequest(job="j")).checkpoint[-1]
    assert listed.id == done.last_checkpoint and listed.reason == "final" and listed.step == 200
    assert path.stat().st_size == listed.bytes
    assert hashlib.sha256(path.read_bytes()).hexdigest() == listed.sha256
    tensors = load_file(path)
    for name, t in tensors.items():
        if t.dtype.kind == "f":
            assert np.isfinite(t).all(), name
    prefixes = {n[: -len("s1.w")] for n in tensors if n.endswith("s1.w")}
    assert len(prefixes) >= 2, f"online and target network, and moments, are expected: {sorted(tensors)}"
    for prefix in prefixes:
        for name, shape in expected_parameters().items():
            t = tensors[prefix + name]
            assert t.shape[-len(shape):] == shape and t.size == np.prod(shape), (prefix + name, t.shape)
    with safe_open(path, "numpy") as f:
        meta = f.metadata()
    assert meta and any(done.dataset_hash in v for v in meta.values())


def test_online_and_target_differ_and_moved(daemon, client, spec, folder):
    early = client.start(spec(run={"steps_per_epoch": 1, "validate_every": 0}), name="early")
    late = client.start(spec(), name="late")
    files = []
    for j in (early, late):
        done = client.wait_state(j.id, "DONE")
        files.append(load_file(client.checkpoint_file(done.last_checkpoint, folder / f"{j.id}.st")))
    weights = [n for n in files[0] if n.endswith("s1.w")]
    moved = [n for n in weights if not np.array_equal(files[0][n], files[1][n])]
    assert len(moved) == len(weights), "two hundred steps change every copy of the first layer"


def test_dataset_file_opens(daemon, client, market):
    listed = client.call("show_dataset", pb.ShowDatasetRequest(name=market)).dataset
    paths = list((daemon.state / "datasets").glob(f"{market}*"))
    assert [p.name for p in paths] == ["m.safetensors"]
    t = load_file(paths[0])
    n = listed.bars
    assert t["ts"].dtype == np.int64 and t["ts"].shape == (n,) and (np.diff(t["ts"]) > 0).all()
    for name in ("open", "high", "low", "close", "volume"):
        assert t[name].dtype == np.float64 and t[name].shape == (n,) and np.isfinite(t[name]).all()
    assert (t["high"] >= np.maximum(t["open"], t["close"])).all() and (t["low"] <= np.minimum(t["open"], t["close"])).all()
    f = kept.features(paths[0])
    assert f.shape == (n, 41) and np.isfinite(f).all() and np.abs(f[:, :40]).max() <= 5 and (f[:, 40] > 0).all()
    digest = hashlib.sha256()
    for name in ("ts", "open", "high", "low", "close", "volume"):
        digest.update(t[name].astype("<i8" if name == "ts" else "<f8").tobytes())
    assert digest.hexdigest() == listed.hash


def test_momentum_market_is_what_it_says(client):
    """AR(1) returns with the given phi; each bar opens at the previous close."""
    client.synth("am", bars=20000, seed=3, kind="momentum", phi=0.3)
    bars = client.call("read_bars", pb.ReadBarsRequest(name="am", first=0, count=20000, stride=1))
    close, open_ = np.array(bars.close), np.array(bars.open)
    if len(close) < 20000:
        more = client.call("read_bars", pb.ReadBarsRequest(name="am", first=len(close), count=20000 - len(close), stride=1))
        close, open_ = np.concatenate([close, more.close]), np.concatenate([open_, more.open])
    assert (open_[1:] == close[:-1]).all()
    r = np.diff(np.log(close))
    phi = np.corrcoef(r[1:], r[:-1])[0, 1]
    assert abs(phi - 0.3) < 4 / np.sqrt(20000)


def test_json_of_every_reply_is_versioned(daemon, client, spec):
    job = client.start(spec(), name="j")
    client.wait_state(job.id, "DONE")
    for args in (["list"], ["show", "j"], ["info"], ["dataset", "list"], ["dataset", "show", "m"], ["checkpoint", "list"], ["metrics", "j"], ["version"], ["ping"]):
        tree = json.loads(daemon.ctl(*args, "-o", "json").out)
        assert tree["schema_version"] == 1, args
