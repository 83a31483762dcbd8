#!/usr/bin/env python3
"""A whole job on the device through the daemon: `daemon.py BUILD`. Exit 0 when every check holds.

Starts a private fhd with --device cuda, trains on a synthetic market that can be learnt, and checks what a user would
look at: the device, the end state, the validation metrics, a second job that re-uses the parked trainer with the same
result bit for bit, resume after a pause, and device memory after the daemon has worked."""
import json
import os
import subprocess
import sys
import tempfile
import time

build = os.path.abspath(sys.argv[1])
tmp = tempfile.mkdtemp(prefix="fhgpu")
url = f"ipc://{tmp}/fhd.sock"
env = {**os.environ, "FHD_LIBDIR": build}
small = ["--set", "data.dataset=m", "--set", "run.epochs=2", "--set", "run.report_every=100", "--set", "run.validate_every=300"]
longer = [*small, "--set", "run.epochs=30", "--set", "run.validate_every=3000"]  # long enough to be met in the middle


def ctl(*args, check=True):
    p = subprocess.run([f"{build}/fhctl", "--connect", url, *args], env=env, capture_output=True, text=True, timeout=90)
    if check and p.returncode != 0:
        raise SystemExit(f"fhctl {' '.join(args)}: exit {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout


def show(job):
    out = json.loads(ctl("show", job, "-o", "json"))
    return out.get("job", out)


def metrics(sample):
    return {v["name"]: v.get("value", 0.0) for v in sample["value"]}


def expect(what, ok):
    print(("ok    " if ok else "WRONG ") + what, flush=True)
    return bool(ok)


daemon = subprocess.Popen([f"{build}/fhd", "--state-dir", f"{tmp}/state", "--listen", url, "--device", "cuda"], env=env)
good = True
try:
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{tmp}/fhd.sock"):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("fhd did not come up")
        time.sleep(0.05)
    info = json.loads(ctl("info", "-o", "json"))
    info = info.get("info", info)
    good &= expect(f"device: {info.get('backend')} {info.get('device')}", info.get("backend") == "cuda")
    free = int(info["memory_free"])
    ctl("dataset", "synth", "--kind", "momentum", "--bars", "20000", "--seed", "7", "--name", "m")
    began = time.monotonic()
    ctl("start", "--name", "first", "--wait", "--timeout", "60", *small)
    took = time.monotonic() - began
    job = show("first")
    sharpe = metrics(job["last_validation"])
    good &= expect(f"first job: {job['state']}, {job.get('step')} steps in {took:.2f} s, {job.get('device')}", job["state"] == "DONE")
    key = next(k for k in sharpe if k.endswith("sharpe"))
    good &= expect(f"validation {key} {sharpe[key]:.2f}", sharpe[key] > 0)
    began = time.monotonic()
    ctl("start", "--name", "second", "--wait", "--timeout", "60", *small)
    again = show("second")
    good &= expect(f"second job of the layout: {time.monotonic() - began:.2f} s", again["state"] == "DONE")
    good &= expect("the same seed gives the same validation, bit for bit", metrics(again["last_validation"]) == sharpe)
    ctl("start", "--name", "whole", "--wait", "--timeout", "60", *longer)
    ctl("start", "--name", "halves", *longer)
    deadline = time.monotonic() + 30
    while int(show("halves").get("step", 0)) == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    ctl("pause", "halves")
    halves = show("halves")
    good &= expect(f"paused at step {halves.get('step')}", halves["state"] == "PAUSED" and int(halves["step"]) > 0)
    ctl("resume", "halves")
    ctl("wait", "halves", "--timeout", "60")
    good &= expect("paused and resumed: the same validation as without, bit for bit",
                   metrics(show("halves")["last_validation"]) == metrics(show("whole")["last_validation"]))
    text = ctl("evaluate", "first")
    good &= expect("evaluate of the checkpoint", "sharpe" in text.lower())
    info = json.loads(ctl("info", "-o", "json"))
    info = info.get("info", info)
    print(f"      device memory: {(free - int(info['memory_free'])) >> 20} MiB more in use, {info.get('trainers_parked')} trainers parked")
finally:
    daemon.terminate()
    code = daemon.wait(30)
good &= expect(f"fhd stopped with {code}", code == 0)
sys.exit(0 if good else 1)
