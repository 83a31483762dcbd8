#!/usr/bin/env python3
"""Whole jobs on the device through the daemon: `daemon.py BUILD [FOLDER]`. Exit 0 when every check holds.

FOLDER holds fhd-cuda.so (default: FHD_LIBDIR, or BUILD). Starts a private fhd with --device cuda, trains on a synthetic market that can be learnt,
and checks what a user would look at: the device and who holds its memory, the end state, the validation metrics, a second job
that re-uses the parked trainer with the same result bit for bit, resume after a pause, a job that does not fit. What the daemon
costs is measured by tests/bench/daemon.py."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import rig  # noqa: E402

SETS = os.environ.get("FH_GPU_SETS", "").split()  # KEY=VALUE for every job: smaller nets where the device is an emulated one
SMALL = ["data.dataset=m", "run.epochs=2", "run.report_every=100", "run.validate_every=300"]
LONGER = [*SMALL, "run.epochs=30", "run.validate_every=3000"]  # long enough to be met in the middle
good = True


def sets(specs):
    return [word for s in [*specs, *SETS] for word in ("--set", s)]


def metrics(sample):
    return {v["name"]: v.get("value", 0.0) for v in sample["value"]}


def expect(what, ok):
    global good
    print(("ok    " if ok else "WRONG ") + what, flush=True)
    good = good and bool(ok)


def train(d, name, *specs):
    began = time.monotonic()
    d.ctl("start", "--name", name, "--wait", "--timeout", "300", *sets(specs), deadline_s=330)
    return d.show(name), time.monotonic() - began


def check_memory(d):
    info, owners = d.info(), d.memory()
    expect(f"device: {info.get('backend')} {info.get('device')}, {info.get('driver')}, compute capability {info.get('compute_capability')}",
           info.get("backend") == "cuda" and info.get("compute_capability"))
    expect("memory by owner adds up: " + ", ".join(f"{k} {v / 1048576:.1f} MiB" for k, v in owners.items()),
           sum(owners.values()) == int(info["memory_total"]))


def check_training(d):
    job, took = train(d, "first", *SMALL)
    value = metrics(job["last_validation"])
    expect(f"first job: {job['state']}, {job.get('step')} steps in {took:.2f} s, {job.get('device')}", job["state"] == "DONE")
    key = next(k for k in value if k.endswith("sharpe"))
    expect(f"validation {key} {value[key]:.2f}", value[key] > 0 or SETS)
    again, took = train(d, "second", *SMALL)
    expect(f"second job of the layout: {took:.2f} s, {d.info().get('trainers_reused')} trainer used again",
           again["state"] == "DONE" and int(d.info().get("trainers_reused", 0)) == 1)
    expect("the same seed gives the same validation, bit for bit", metrics(again["last_validation"]) == value)
    expect("evaluate of the checkpoint", "sharpe" in d.ctl("evaluate", "first").stdout.lower())


def check_pause(d):
    whole, _ = train(d, "whole", *LONGER)
    d.ctl("start", "--name", "halves", *sets(LONGER))
    d.until("halves", lambda j: int(j.get("step", 0)) > 0)
    began = time.monotonic()
    d.ctl("pause", "halves")
    took = time.monotonic() - began
    halves = d.show("halves")
    expect(f"paused at step {halves.get('step')} within {1000 * took:.0f} ms, checkpoint on the disk",
           halves["state"] == "PAUSED" and int(halves["step"]) > 0)
    d.ctl("resume", "halves")
    d.ctl("wait", "halves", "--timeout", "300", deadline_s=330)
    expect("paused and resumed: the same validation as without, bit for bit",
           metrics(d.show("halves")["last_validation"]) == metrics(whole["last_validation"]))


def check_refusal(d):
    """The largest replay buffer that a specification may ask for, as often as it takes to exceed the card."""
    before, jobs = d.memory(), int(d.info()["jobs_total"])
    total = sum(before.values())
    trials = max(1, int(total / (67108864 * 48 * 2)) + 1)
    refused = d.ctl("start", "--name", "large", *sets(SMALL), "--set", "replay.capacity=67108864", "--set", f"run.population={trials}", code=None)
    expect(f"a job that does not fit is refused: {refused.stderr.strip().splitlines()[0] if refused.stderr else refused.returncode}",
           refused.returncode == 5 and "MiB" in refused.stderr)
    after = d.memory()
    expect("and leaves the device as it was", {k: v for k, v in after.items() if k not in ("others", "free")} ==
           {k: v for k, v in before.items() if k not in ("others", "free")} and int(d.info()["jobs_total"]) == jobs)


def main():
    build = os.path.abspath(sys.argv[1])
    library = os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("FHD_LIBDIR", build))
    with rig.Daemon(build, "--device", "cuda", env={"FHD_LIBDIR": library}) as d:
        check_memory(d)
        d.ctl("dataset", "synth", "--kind", "momentum", "--bars", "3000" if SETS else "20000", "--seed", "7", "--name", "m")
        check_training(d)
        check_pause(d)
        check_refusal(d)
        check_memory(d)
        d.proc.terminate()
        code = d.proc.wait(30)
        expect(f"fhd stopped with {code}", code == 0)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
