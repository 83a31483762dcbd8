#!/usr/bin/env python3
"""What the running daemon costs: daemon.py BUILD [--device host|cuda] [--only PART,...] [--starts 50] [--cycles 50] [--json FILE]

One private daemon, one table: time from `fhctl start` to the first finished learn step (new layout, and again), how fast stop
acts, what reports every 100 steps and a client that polls at 1 kHz cost, whether memory is what it was after many jobs, whether
the plan says what the driver says, and what several slots do together. Ratios are medians over pairs measured in turns. On a
card all of it takes some minutes. Bounds are those of figures.py. The exit status is 1 when a figure misses its bound
for a card (--device cuda); on the host the table is for looking at. --small is for an emulated device: it shows that all of it
runs, bounds of time are not looked at.
Sleeps here are windows that are measured, or let a job come to its pace before one begins; nothing is taken for done because time passed."""
import argparse
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import figures  # noqa: E402
import rig  # noqa: E402

ENDLESS = ["data.dataset=m", "run.epochs=1000", "run.steps_per_epoch=1000000", "run.validate_every=0", "run.checkpoint_every=0"]
QUIET = [*ENDLESS, "run.report_every=0"]
REPORTS = [*ENDLESS, "run.report_every=100"]
MS = 1e6
POLLS_HZ_LEAST = 950
REPLY_METRICS, METRICS_LAST_SEQ = 14, 2  # numbers of proto/fh.proto
rows = []
small = False


def row(what, measured, key=None, value=None, judged=True):
    """A line; with a key of figures.py also its bound and, if judged, whether `value` holds it."""
    figure = figures.BY_KEY.get(key)
    must = figure.bound() if figure else ""
    ok = figure.holds(value, figure.must) if figure and judged and not small else None
    rows.append({"what": what, "text": measured, "key": key, "value": value, "ok": ok})
    mark = "" if ok is None else "  ok" if ok else "  MISSED"
    print(f"  {what:66} {measured:34} {must:>24}{mark}", flush=True)


def also(what, measured, ok):
    """A line that has no figure in the table and yet must hold."""
    rows.append({"what": what, "text": measured, "key": None, "value": None, "ok": ok})
    print(f"  {what:66} {measured:34} {'':>24}{'  ok' if ok else '  MISSED'}", flush=True)


def spread(values, unit=""):
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f} to {max(values):.2f})"


def rate(d, job, seconds):
    """Learn steps per second over a window, or from one report to the next where that takes longer."""
    s0, t0 = d.place(job)
    time.sleep(seconds)
    s1, t1 = d.place(job)
    end = time.monotonic() + 20
    while t1 == t0:
        if time.monotonic() > end:
            raise SystemExit(f"job {job} stands at step {s0} for 20 s")
        time.sleep(0.05)
        s1, t1 = d.place(job)
    return (s1 - s0) / ((t1 - t0) / 1e9)


def latency(d, args):
    parts = []

    def once(name, *sets):
        before = d.start_job(name, *QUIET, *sets)
        shown = d.until(name, lambda j: "first_step_ns" in j)
        at = [before, *[int(shown[k]) for k in ("created_ns", "started_ns", "first_step_ns")]]
        parts.append([(b - a) / MS for a, b in zip(at, at[1:])])
        d.stop_job(name)
        return (at[-1] - before) / MS

    new = [once(f"new-{atoms}", f"net.atoms={atoms}") for atoms in (31, 33, 35)]
    row("start to first learn step, a new layout", spread(new, " ms"), "first_job", statistics.median(new))
    once("again")
    parts.clear()
    again = [once(f"again-{i}") for i in range(args.starts)]
    row(f"the same, a layout that was here, median of {args.starts}", spread(again, " ms"), "second_job", statistics.median(again))
    row("  of it: fhctl to accepted / to started / to the step", " / ".join(f"{statistics.median(p[i] for p in parts):.2f}" for i in range(3)) + " ms")
    info = d.info()
    row("  trainers made / reused / evicted", " / ".join(str(info.get(f"trainers_{k}", 0)) for k in ("made", "reused", "evicted")))


def steps(d, args):
    """The training itself, as it runs inside the daemon: a learn step alone (one collection in 64 learn steps) at three sizes, with a
    collection each, and a whole epoch of 300 learn steps with a validation of 20,000 bars."""
    d.ctl("dataset", "synth", "--kind", "momentum", "--bars", "9000" if small else "134297", "--name", "long")  # validation 15 %, embargo 144
    alone, full = ["learn.steps_per_collect=64"], [] if small else ["replay.capacity=131072"]
    large = [] if small else ["learn.batch=8192", "learn.warmup=16384"]
    tiny = [] if small else ["learn.batch=64", "net.atoms=11"]
    epoch = ["data.dataset=long", "run.epochs=100000", "run.steps_per_epoch=300", "run.validate_every=300"]
    on_card = args.device == "cuda"
    for what, sets, unit, per, key in (
            ("learn step, reports every 100 steps", [*alone, *full], "us", 1e6, "step_256"),
            ("the same, B 8192", [*alone, *full, *large], "us", 1e6, "step_8192"),
            ("the same, B 64, 11 atoms", [*alone, *full, *tiny], "us", 1e6, "step_64_11"),
            ("learn step with a collection of 32 environments", full, "us", 1e6, None),
            ("epoch: 300 learn steps, collections, validation", [*full, *epoch], "ms", 300 * 1e3, "epoch"),
            ("the same, validation in 8 windows", [*full, *epoch, "run.validate_windows=8"], "ms", 300 * 1e3, None)):
        name = f"steps-{len(rows)}"
        d.start_job(name, *REPORTS, *sets)
        d.first_step(name)
        time.sleep(0.3)
        took = [per / rate(d, name, args.window) for _ in range(3)]
        row(what, spread(took, f" {unit}"), key, statistics.median(took), on_card)
        d.stop_job(name)


def stopping(d, args):
    """From the request to the durable answer, as the command sees it; and what a worker uses that only waits."""
    took = []
    for i in range(9):
        d.start_job(f"stop-{i}", *REPORTS)
        d.first_step(f"stop-{i}")
        before = time.monotonic_ns()
        d.stop_job(f"stop-{i}")
        took.append((time.monotonic_ns() - before) / MS)
    row("stop, until fhctl is back", spread(took, " ms"), "stop", statistics.median(took))
    d.start_job("busy", *REPORTS)
    d.first_step("busy")
    before, wall = d.process()["cpu_s"], time.monotonic()
    time.sleep(1.5)
    used = (d.process()["cpu_s"] - before) / (time.monotonic() - wall)
    row("CPU of the daemon while one job runs", f"{used:.2f} cores", "cores", used, args.device == "cuda")
    d.stop_job("busy")


def reports(d, args):
    ratios, cpu_us = [], []
    for i in range(args.pairs):
        pair, cpu = {}, {}
        for kind, spec in ((0, QUIET), (1, REPORTS)) if i % 2 else ((1, REPORTS), (0, QUIET)):
            name = f"report-{i}-{kind}"
            d.start_job(name, *spec)
            d.first_step(name)
            time.sleep(0.2)
            before = d.cpu_beside_training()
            pair[kind] = rate(d, name, args.window)
            cpu[kind] = d.cpu_beside_training() - before
            d.stop_job(name)
        ratios.append(100 * (1 - pair[1] / pair[0]))
        cpu_us.append(1e6 * (cpu[1] - cpu[0]) / (pair[1] / 100 * args.window))
    row("cost of reports every 100 steps", spread(ratios, " %"), "reports", statistics.median(ratios))
    row("  CPU of a report beside the training thread", spread(cpu_us, " us"))


def fields(data):
    """The fields of a protobuf message: (number, value), bytes where it has a length."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        value = varint()  # of all that is asked for, a number or the length of what follows
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        yield tag >> 3, value


def last_seq(reply):
    """Of a Reply with a MetricsReply: the newest number of the series."""
    return dict(fields(dict(fields(reply))[REPLY_METRICS]))[METRICS_LAST_SEQ]


def polls(d, args):
    """A client that follows a job: it asks for what is newer than the newest that it has, a thousand times a second."""
    stop, pause = threading.Event(), threading.Event()
    polled, samples = [0], [0]

    def client():
        wire, since, at = rig.Wire(d.path), 0, time.monotonic()
        while not stop.is_set():
            at = max(at + 0.001, time.monotonic() - 0.01)
            time.sleep(max(0, at - time.monotonic()))
            if not pause.is_set():
                newest = last_seq(wire.metrics("polled", since))
                polled[0] += 1
                samples[0] += newest - since
                since = newest
        wire.close()

    d.start_job("polled", *REPORTS)
    d.first_step("polled")
    pause.set()
    thread = threading.Thread(target=client)
    thread.start()
    ratios, cpu_us, polling_s = [], [], 0.0
    for i in range(2 * args.pairs):
        pair, cpu, count = {}, {}, {}
        for on in (0, 1) if i % 2 else (1, 0):
            (pause.clear if on else pause.set)()
            done, began, before = polled[0], time.monotonic(), d.cpu_beside_training()
            pair[on] = rate(d, "polled", args.window / 2)
            cpu[on], count[on] = d.cpu_beside_training() - before, polled[0] - done
            if on:
                polling_s += time.monotonic() - began
        ratios.append(100 * (1 - pair[1] / pair[0]))
        cpu_us.append(1e6 * (cpu[1] - cpu[0]) / max(count[1], 1))
    stop.set()
    thread.join()
    hertz = polled[0] / max(polling_s, 1e-9)
    row(f"cost of a client polling at {hertz:.0f} Hz", spread(ratios, " %"), "polls", statistics.median(ratios))
    row("  CPU of a poll beside the training thread", spread(cpu_us, " us"))
    if args.device == "cuda" and not small:
        also("  it polls at 1 kHz and gets what it asks for", f"{hertz:.0f} Hz, {samples[0]} samples", hertz > POLLS_HZ_LEAST and samples[0] > 0)
    d.stop_job("polled")


def cycles(d, args):
    """Half of the jobs find their trainer parked; the others walk through one layout more than may be parked, so that each of
    them evicts one and makes one. After every round the same trainers are parked as after the first."""
    ring = [[], *[[f"net.atoms={atoms}"] for atoms in range(11, 19)]]
    count = [0]

    def once(sets):
        count[0] += 1
        name = f"cycle-{count[0]}"
        d.start_job(name, *QUIET, *sets)
        d.first_step(name)
        d.stop_job(name)

    def round_():
        for sets in ring:
            once(sets)

    def idle():
        """Connections of commands that have ended go a moment later: the least of some readings."""
        held = d.memory()
        readings = []
        for _ in range(10):
            readings.append(d.process())
            time.sleep(0.02)
        return {**held, **{k: min(r[k] for r in readings) for k in readings[0]}}

    round_()
    round_()
    first, began = idle(), count[0]
    while count[0] - began < args.cycles:
        round_()
        for _ in ring:
            once(ring[-1])
    last = idle()
    device = {k: last[k] - first[k] for k in ("context", "trainers", "markets", "graphs")}
    what = f"after {count[0] - began} start/stop cycles, against the first idle reading"
    if args.device == "cuda":
        row(f"device memory {what}", f"{last['free'] - first['free']:+d} bytes free", "cycles", abs(last["free"] - first["free"]))
        also("  of them the daemon's own", " ".join(f"{k} {v:+d}" for k, v in device.items()), all(v == 0 for v in device.values()))
    grown = (last["resident"] - first["resident"]) / 1048576
    also("resident memory, files, threads" + (f" {what}" if args.device == "host" else ""),
        f"{grown:+.1f} MiB, {last['files'] - first['files']:+d}, {last['threads'] - first['threads']:+d}",
        grown < 8 and last["files"] == first["files"] and last["threads"] == first["threads"])


def settled(d):
    """Who holds the device's memory once three looks a tenth of a second apart agree on what is the daemon's: graphs are captured as
    they are needed."""
    looks, end = [], time.monotonic() + 20
    while len(looks) < 3 or any(own != looks[-1] for own in looks[-3:]):
        if time.monotonic() > end:
            raise SystemExit(f"the memory of a running job does not come to rest: {looks[-3:]}")
        time.sleep(0.1)
        held = d.memory()
        looks.append({k: v for k, v in held.items() if k not in ("free", "others")})
    return held


def plan(d, args):
    """The plan that `start` prints against the driver's own number, for a layout that was never here."""
    before = d.memory()
    d.ctl("start", "-q", "--name", "plan", *[w for s in [*QUIET, "net.atoms=61", f"replay.capacity={262144 if small else 1048576}"] for w in ("--set", s)])
    d.first_step("plan")
    after = settled(d)
    trainer = [t for t in d.info()["trainer"] if not t.get("parked")][0]
    planned = int(trainer["planned"]["total"])
    took = before["free"] - after["free"] + (int(trainer["planned"]["market"]) if after["markets"] == before["markets"] else 0)
    off = 100 * (took / planned - 1)
    row("driver's memory of a job against its plan", f"{took / 1048576:.1f} of {planned / 1048576:.1f} MiB ({off:+.1f} %)", "plan", abs(off), args.device == "cuda")
    print("    " + "  ".join(f"{k} {v / 1048576:.1f} MiB" for k, v in after.items()))
    d.stop_job("plan")


def slots(build, args):
    n = 2 if small else 8 if args.device == "cuda" else max(2, os.cpu_count() or 2)
    with rig.Daemon(build, "--device", args.device, "--slots", str(n), *args.fhd) as d:
        d.ctl("dataset", "synth", "--kind", "momentum", "--bars", "20000", "--name", "m")
        d.start_job("alone", *REPORTS)
        d.first_step("alone")
        time.sleep(0.3)
        alone = rate(d, "alone", args.window)
        for i in range(1, n):
            d.start_job(f"beside-{i}", *REPORTS, f"run.seed={i + 1}")
        names = ["alone", *[f"beside-{i}" for i in range(1, n)]]
        for name in names:
            d.first_step(name)
        time.sleep(0.3)
        first = {name: d.place(name) for name in names}
        time.sleep(args.window)
        total = 0
        for name in names:
            s, t = d.place(name)
            total += (s - first[name][0]) / ((t - first[name][1]) / 1e9) if t > first[name][1] else 0
        row(f"{n} jobs in {n} slots against one alone", f"{total:.0f} / {alone:.0f} steps/s = {total / alone:.2f}", "slots", total / alone,
            args.device == "cuda")


PARTS = {"latency": latency, "steps": steps, "stop": stopping, "reports": reports, "polls": polls, "cycles": cycles, "plan": plan}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build")
    parser.add_argument("--device", default="host", choices=("host", "cuda"))
    parser.add_argument("--only", default=",".join([*PARTS, "slots"]))
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--window", type=float, default=1.0, help="s, one measurement of a rate")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for every job, over the defaults (small nets, say)")
    parser.add_argument("--json", help="a file for the lines")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--fhd", action="append", default=[], help="a further option of the daemon, like --fhd=--threads=1")
    args = parser.parse_args()
    global small
    small = args.small
    for spec in (ENDLESS, QUIET, REPORTS):
        spec += args.set
    only = args.only.split(",")
    began = time.monotonic()
    with rig.Daemon(args.build, "--device", args.device, *args.fhd) as d:
        info = d.info()
        print(f"fhd {info['version']} on {info['device']} ({info.get('driver')}), commit {rig.commit(args.build)}")
        d.ctl("dataset", "synth", "--kind", "momentum", "--bars", "20000", "--name", "m")
        for part in PARTS:
            if part in only:
                PARTS[part](d, args)
    if "slots" in only:
        slots(args.build, args)
    missed = [r for r in rows if r["ok"] is False]
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f)
    print(f"{len(rows)} figures, {len(missed)} missed, {time.monotonic() - began:.0f} s")
    return 1 if missed and args.device == "cuda" else 0


if __name__ == "__main__":
    sys.exit(main())
