#!/usr/bin/env python3
"""make bench: bench.py BUILD [PART...], bench.py --table FILE...

  on a card   learn, collect, trials, crossing, layered   tests/bench/gpu_step: phases by themselves, each in its captured graph
              steps, latency, slots, cycles, plan, reports, polls, stop   tests/bench/daemon.py: the running daemon
              epoch     tests/bench/epoch: an epoch and how much of it is validation
              profile   ncu, where it is: what each launch of a step takes
              torch, jax, jax_collect, jax_population   scripts of the folder BENCH_ANCHORS, the same work as others would write it
  anywhere    host      the learn step on the CPU beside PyTorch, an epoch on the host

Default: all of them. Each is a process of its own with a limit of seconds; one that fails or hangs costs its limit and no other part.
Afterwards the table of figures.py with what was measured, and the same in BUILD/bench/figures.json (and in the file that BENCH_JSON
names), to which every run of the same commit on the same card adds. On a card the table is written into tests/bench/RESULTS.md,
between the two marks there; --table makes it from such files, the later ones first. BENCH_SMALL=1 takes sizes for an emulated
device (FHD_LIBDIR), whose numbers mean nothing and are kept nowhere. FHD_LIBDIR: where fhd-cuda.so is, by default BUILD.
The exit status is 1 when a part failed, when a figure on a card misses what it must hold or is better than can be, and when there is a card
that cannot be used."""
import csv
import datetime
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import figures  # noqa: E402
import rig  # noqa: E402

RESULTS = os.path.join(HERE, "RESULTS.md")
BEGIN, END = "<!-- written by make bench on a card: begin -->", "<!-- end of what make bench writes -->"
NO_DEVICE = 3  # exit status of gpu_step device
SMALL = os.environ.get("BENCH_SMALL") == "1"
PROFILED_UNITS = 10  # of gpu_step run
BEYOND = 2  # times better than its floor no figure is
SMALL_DAEMON = ["--small", "--window", "0.3", "--starts", "3", "--cycles", "9", "--pairs", "1",
                *[w for s in ("net.trunk1=16", "net.trunk2=16", "net.value_hidden=8", "net.advantage_hidden=8", "net.atoms=11", "learn.batch=8",
                              "learn.warmup=64", "collect.envs=4", "replay.capacity=4096") for w in ("--set", s)]]
LINE = re.compile(r"^(.+?)\s+([\d.]+) us\s+\(([\d.]+) to ([\d.]+)\)$", re.M)


def call(argv, limit_s, log, env=None):
    """Output and exit status (None: over its limit), what is left of its group ended."""
    began = time.monotonic()
    with open(log, "a") as out:
        out.write(f"$ {' '.join(argv)}\n")
        out.flush()
        start = out.tell()
        try:
            proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                    env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})})
        except OSError as e:
            out.write(f"{e}\n")
            return f"{e}", 127
        try:
            code = proc.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            try:
                os.killpg(proc.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            proc.wait()
        out.write(f"exit {code}, {time.monotonic() - began:.1f} s\n")
    with open(log, errors="replace") as f:
        f.seek(start)
        return f.read(), code


class Run:
    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.env = {"FHD_LIBDIR": os.path.abspath(os.environ.get("FHD_LIBDIR", build))}
        self.folder = f"{self.build}/bench"
        os.makedirs(self.folder, exist_ok=True)
        self.device = None
        self.part = ""
        self.got = {"figures": {}, "lines": {}, "profiles": {}, "anchors": {}}
        self.why = ""  # a part did not end well

    def program(self, name, *args, limit_s):
        text, code = call([f"{self.build}/tests/bench/{name}", *args], limit_s, f"{self.folder}/{self.part}.txt", self.env)
        self.judge(code, limit_s, text)
        return text

    def judge(self, code, limit_s, text):
        if code is None:
            self.why = f"over its limit of {limit_s} s"
        elif code:
            last = [line for line in text.splitlines() if line.strip() and not line.startswith("exit ")][-1:]
            self.why = f"exit {code}: {last[0][:120] if last else ''}"

    def figure(self, key, value, text):
        self.got["figures"][key] = {"value": value, "text": text, "part": self.part}

    def find_device(self):
        text, code = call([f"{self.build}/tests/bench/gpu_step", "device"], 60, f"{self.folder}/device.txt", self.env)
        if code == 0:
            self.device = text.splitlines()[1] if len(text.splitlines()) > 1 and text.startswith("device:") else text.splitlines()[0]
        elif code != NO_DEVICE or glob.glob("/dev/nvidia[0-9]*"):
            raise SystemExit(f"the device cannot be used, exit {code}: {text.strip()}")
        return self.device


# ---------------------------------------------------------------- parts


def phases(run, part, limit_s):
    text = run.program("gpu_step", part, limit_s=limit_s)
    found = {name: (float(us), f"{us} us ({least} to {most})") for name, us, least, most in LINE.findall(text)}
    run.got["lines"][part] = [f"{name:<48} {shown}" for name, (_, shown) in found.items()]
    if not found and not run.why:
        run.why = "no line of a measurement"
    for n, random, key in ((16384, "", "collect_policy"), (16384, ", random actions", "collect_random")):
        us = found.get(f"collect, N {n}{random}")
        if us:
            run.figure(key, n / us[0], f"{n / us[0]:.1f} M/s, {us[1]} a vector step")
    for p in (8, 32, 128):
        us = found.get(f"learn step, {p} trials, B 256, each trial")
        if us:
            run.figure(f"trials_{p}", 1e3 / us[0], f"{1e3 / us[0]:.1f} k/s, {us[1]} each")


def in_daemon(run, part, limit_s):
    out = f"{run.folder}/{part}.json"
    if os.path.exists(out):
        os.unlink(out)
    argv = [sys.executable, f"{HERE}/daemon.py", run.build, "--device", "cuda", "--only", part, "--json", out, *(SMALL_DAEMON if SMALL else [])]
    text, code = call(argv, limit_s, f"{run.folder}/{part}.txt", run.env)
    try:
        with open(out) as f:
            rows = json.load(f)
    except (OSError, ValueError):
        rows = []
    run.got["lines"][part] = [f"{r['what']:<66} {r['text']}{'' if r['ok'] is None else '  ok' if r['ok'] else '  MISSED'}" for r in rows]
    for r in rows:
        if r["key"]:
            run.figure(r["key"], r["value"], r["text"])
    if code == 1 and rows:
        if any(r["ok"] is False and not r["key"] for r in rows):
            run.why = "what must hold beside the figures does not"
    else:
        run.judge(code, limit_s, text)


def epoch(run, part, limit_s):
    lines = []
    for windows, trials in (("1", "1"), ("8", "1"), ("1", "8")):
        text = run.program("epoch", "-d", "cuda", "-e", "3" if SMALL else "12", "-w", windows, "-p", trials, *(["-s"] if SMALL else []), limit_s=limit_s)
        lines += [line for line in text.splitlines() if line.startswith("{")]
    run.got["lines"][part] = lines


def short_name(kernel):
    """A kernel as the source has it: k_mlp<1,4,0> for what the profiler calls void <unnamed>::k_mlp<<unnamed>::shape<1, 4>, 0>(<unnamed>::mlp_args)."""
    name = re.sub(r"^void |<unnamed>::|\(anonymous namespace\)::|\((?:int|bool|unsigned int)\)", "", kernel)
    name = re.sub(r"\(.*", "", name).replace("__nv_bfloat16", "bf16").replace(" ", "")
    head, _, parameters = name.partition("<")
    return head + (f"<{re.sub('[a-z_]+<([^<>]*)>', chr(92) + '1', parameters)}" if parameters else "")


def profile_one(run, case, limit_s):
    """What each launch of one unit takes, alone on the device. What the driver is made to do at the start (prime.cu) is left out."""
    argv = ["ncu", "--clock-control", "none", "--cache-control", "none", "--metrics", "gpu__time_duration.sum,launch__grid_size",
            "--csv", f"{run.build}/tests/bench/gpu_step", "run", *case.split()]
    text, code = call(argv, limit_s, f"{run.folder}/profile.txt", {**run.env, "FH_GPU_PRIME": "0"})
    run.judge(code, limit_s, text)
    return launches_of(text)


def launches_of(text):
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 2:
        return []
    at = {name: i for i, name in enumerate(rows[0])}
    launches = {}
    for r in rows[1:]:
        launch = launches.setdefault(r[at["ID"]], {"kernel": short_name(r[at["Kernel Name"]])})
        value = float(r[at["Metric Value"]].replace(",", ""))
        if r[at["Metric Name"]].startswith("gpu__time"):
            launch["us"] = round(value * {"n": 1e-3, "u": 1, "m": 1e3}.get(r[at["Metric Unit"]][:1], 1), 3)
        else:
            launch["grid"] = int(value)
    each = list(launches.values())
    return each[-max(1, len(each) // PROFILED_UNITS):]


def by_kernel(launches):
    """One entry a kernel: us in all, how many launches, grids; the most expensive first."""
    each = {}
    for x in launches:
        one = each.setdefault(x["kernel"], {"kernel": x["kernel"], "us": 0, "launches": 0, "grids": []})
        one["us"] += x["us"]
        one["launches"] += 1
        if x.get("grid", 0) not in one["grids"]:
            one["grids"].append(x.get("grid", 0))
    return sorted(each.values(), key=lambda one: -one["us"])


def profile(run, part, limit_s):
    cases = list(dict.fromkeys(f.profile for f in figures.FIGURES if f.profile))
    for case in cases[:1] if SMALL else cases:
        launches = profile_one(run, case, limit_s)
        if launches:
            run.got["profiles"][case] = launches


def anchors(run, part, limit_s):
    script = {"torch": "torch_step", "jax": "jax_step"}.get(part, part)
    argv = [os.environ.get("BENCH_PYTHON", "python3"), f"{os.environ['BENCH_ANCHORS']}/{script}.py"] + (["256"] if script.endswith("_step") else [])
    text, code = call(argv, limit_s, f"{run.folder}/{part}.txt")
    lines = [line for line in text.splitlines() if line.startswith("{")]
    run.got["anchors"][part] = [json.loads(line) for line in lines if line.endswith("}")]
    if code is None and lines:
        run.got["anchors"][part].append({"note": f"ended by its limit of {limit_s} s"})
    else:
        run.judge(code, limit_s, text)


def host(run, part, limit_s):
    race = [sys.executable, f"{HERE}/race.py", run.build, *(["--rounds", "3", "--batch", "64"] if SMALL else [])]
    text, code = call(race, limit_s, f"{run.folder}/{part}.txt")
    run.judge(code, limit_s, text)
    text += run.program("epoch", "-e", "3" if SMALL else "4", *(["-s"] if SMALL else []), limit_s=limit_s)
    run.got["lines"][part] = [line for line in text.splitlines() if line.strip() and not line.startswith(("exit ", "$ "))]


ANCHOR_S = int(os.environ.get("BENCH_ANCHOR_SECONDS", "100"))
PARTS = {  # name: what does it, seconds at most for each of its processes; in this order
    "learn": (phases, 60), "steps": (in_daemon, 90), "collect": (phases, 60), "trials": (phases, 60), "latency": (in_daemon, 60),
    "epoch": (epoch, 60), "slots": (in_daemon, 60), "cycles": (in_daemon, 90), "plan": (in_daemon, 60), "reports": (in_daemon, 60),
    "polls": (in_daemon, 60), "stop": (in_daemon, 60), "profile": (profile, 40), "crossing": (phases, 60), "layered": (phases, 60), "torch": (anchors, ANCHOR_S),
    "jax": (anchors, ANCHOR_S), "jax_collect": (anchors, ANCHOR_S), "jax_population": (anchors, ANCHOR_S), "host": (host, 300),
}


def absent(run, part):
    """Why a part cannot be measured here, or None."""
    if PARTS[part][0] is host:
        return None
    if not run.device:
        return "no device"
    if PARTS[part][0] is anchors and not os.environ.get("BENCH_ANCHORS"):
        return "BENCH_ANCHORS names no folder"
    if PARTS[part][0] is profile and not any(os.access(f"{d}/ncu", os.X_OK) for d in os.environ["PATH"].split(":")):
        return "no ncu"
    return None


# ---------------------------------------------------------------- the table


def cost(got, figure):
    """What takes most of it, as far as it was looked at."""
    if figure.key == "second_job":
        return next((line.split("step", 1)[1].strip() + ": fhctl until accepted, until started, until the step"
                     for line in got["lines"].get("latency", []) if line.strip().startswith("of it")), "")
    launches = got["profiles"].get(figure.profile or "", [])
    if not launches:
        return ""
    total = sum(x["us"] for x in launches)
    most = by_kernel(launches)[:2]
    return ", ".join(f"`{x['kernel']}` {x['us']:.1f}" for x in most) + f" of {total:.1f} us in {len(launches)} launches"


def against_floor(figure, value):
    if not figure.floor or not value:
        return ""
    return f"{figure.floor / value if figure.more else value / figure.floor:.1f} x"


def number(x):
    return "" if x is None else f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def verdict(figure, value):
    return "aim" if figure.aim is not None and figure.holds(value, figure.aim) else "must" if figure.holds(value, figure.must) else "MISSED"


def absurd(got):
    """Figures further beyond their floor than the floor can be wrong: something else was measured."""
    floored = [f for f in figures.FIGURES if f.key in got["figures"] and f.floor]
    return [f.title for f in floored if (got["figures"][f.key]["value"] / f.floor > BEYOND if f.more else f.floor / max(got["figures"][f.key]["value"], 1e-9) > BEYOND)]


def missed(got):
    return [f.title for f in figures.FIGURES if f.key in got["figures"] and verdict(f, got["figures"][f.key]["value"]) == "MISSED"]


def table(got):
    lines = ["| figure | unit | must | aim | measured | holds | floor | of the floor | largest cost |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for f in figures.FIGURES:
        one = got["figures"].get(f.key)
        value = one["value"] if one else None
        lines.append(f"| {f.title} | {f.unit} | {number(f.must)} | {number(f.aim)} | {one['text'] if one else 'not measured'} | "
                     f"{verdict(f, value) if one else ''} | {number(f.floor)} | {against_floor(f, value)} | {cost(got, f)} |")
    return lines


def report(got):
    text = [f"## {got['device']}, commit {got['commit']}, {got['date']}", "", *table(got), "",
            "Floors are reckoned (`tests/bench/figures.py`); costs are single launches under a profiler, one after the other.", ""]
    for part, lines in got["lines"].items():
        text += [f"`{part}`:", "", *["    " + line.rstrip() for line in lines], ""] if lines else []
    for case, launches in got["profiles"].items():
        total = sum(x["us"] for x in launches)
        text += [f"`gpu_step run {case}`, one unit's {len(launches)} launches by kernel, {total:.1f} us alone on the device:", "",
                 *[f"    {x['us']:8.2f} us {100 * x['us'] / total:3.0f} %  {x['launches']:2d} x  {x['kernel']:<24} grid {', '.join(f'{g:,}' for g in x['grids'])}"
                   for x in by_kernel(launches)], ""]
    for part, lines in got["anchors"].items():
        text += [f"`{part}`, in the same run:", "", *["    " + json.dumps(line) for line in lines], ""]
    return text


def write_results(got, path=RESULTS):
    with open(path) as f:
        old = f.read()
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2] if rest else ""
    if not rest:
        before, after = old.rstrip() + "\n\n", "\n"
    with open(path + ".new", "w") as f:
        f.write(before + BEGIN + "\n" + "\n".join(report(got)).rstrip() + "\n" + END + after)
    os.replace(path + ".new", path)


def merged(newer, older):
    """Both, of one commit and card; what `newer` has counts."""
    if not older or (older["commit"], older["device"]) != (newer["commit"], newer["device"]):
        return newer
    return {**newer, **{k: {**older[k], **newer[k]} for k in ("figures", "lines", "profiles", "anchors")}}


def load(path):
    try:
        with open(path) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def keep(run):
    got = {"device": run.device or "no device", "commit": rig.commit(run.build), "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), **run.got}
    path = f"{run.folder}/figures.json"
    got = merged(got, load(path))
    for name in [path, *([os.environ["BENCH_JSON"]] if os.environ.get("BENCH_JSON") else [])]:
        with open(name, "w") as f:
            json.dump(got, f)
    return got


def make_table(files):
    got = None
    for name in files:
        one = load(name)
        if not one:
            raise SystemExit(f"{name}: no figures")
        if got and merged(got, one) is got:
            raise SystemExit(f"{name}: another commit or card than {files[0]}")
        got = merged(got, one) if got else one
    write_results(got)
    print("\n".join(table(got)))


def measure(run, part, count):
    """One part, whatever becomes of it, and its lines."""
    run.part, run.why = part, absent(run, part) or ""
    began = time.monotonic()
    how = "skipped" if run.why else "done"
    if not run.why:
        try:
            open(f"{run.folder}/{part}.txt", "w").close()
            PARTS[part][0](run, part, PARTS[part][1])
        except (Exception, SystemExit) as e:  # of one part; the others are still worth their time
            run.why = f"{type(e).__name__}: {e}"
        how = "failed" if run.why else "done"
    count[how] += 1
    print(f"{how:8} {part:16} {time.monotonic() - began:6.1f} s  {run.why}", flush=True)
    for line in run.got["lines"].get(part, []) + [json.dumps(x) for x in run.got["anchors"].get(part, [])]:
        print("    " + line, flush=True)


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--table":
        make_table(sys.argv[2:])
        return 0
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    run = Run(sys.argv[1])
    wanted = sys.argv[2:] or list(PARTS)
    for part in wanted:
        if part not in PARTS:
            raise SystemExit(f"no part {part}; there are {' '.join(PARTS)}")
    print(f"commit {rig.commit(run.build)}, {run.find_device() or 'no device'}", flush=True)
    real = run.device and not SMALL and "emulated" not in run.device
    count = {"done": 0, "failed": 0, "skipped": 0}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for part in sorted(wanted, key=list(PARTS).index):
            measure(run, part, count)
            if real:
                keep(run)
    except KeyboardInterrupt:  # the program under way has been ended; what was measured before it stands
        count["failed"] += 1
        print(f"interrupted in {run.part}")
    if real:
        write_results(keep(run))
    print("\n".join(table(keep(run) if real else run.got)) if run.device else "no device: nothing of the CUDA backend is measured")
    beyond, wrong = (missed(run.got), absurd(run.got)) if real else ([], [])
    for title in beyond:
        print(f"MISSED: {title}")
    for title in wrong:
        print(f"NOT BELIEVED, better than {BEYOND} times its floor: {title}")
    print(", ".join(f"{n} {how}" for how, n in count.items()) + (f", {len(beyond)} beyond what they must hold" if beyond else ""))
    return 1 if count["failed"] or beyond or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
