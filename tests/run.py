#!/usr/bin/env python3
"""Runs the checks and counts them: tests/run.py [--time-scale X] [STAGE...]

Stages, in the order of `make check`:
  gcc    builds with -Werror, runs the C suites two at a time, the learning proofs alone, the end-to-end suite
  clang  builds everything with clang and -Werror
  asan   AddressSanitizer and UndefinedBehaviorSanitizer: C suites and the end-to-end suite
  tsan   ThreadSanitizer: the same but the readers of tests/data, which have one thread; beside asan when both are asked for
  lint   layers (who may include whom), cppcheck and clang-tidy, quiet or failed
  fuzz   libFuzzer on everything that reads foreign bytes: a minute for market data files, less for the small formats
and, on its own only:
  gpu    the CUDA backend beside the host and the golden values; one skip where there is no device

The last line is "N passed, N failed, N skipped". Counting is honest: a program that crashes, hangs past its limit or
stops before its last test has failed, and so has each test it did not reach; a skip is a skip. A build and a lint run
count as one check each. The output of whatever failed is shown; everything else stays in build/<stage>/log/.
"""
import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / os.environ.get("VENV", ".venv") / "bin" / "python")
CORES = os.cpu_count() or 2
SHOWN_LINES = 60  # of a failed step's output

STAGES = ("gcc", "clang", "asan", "tsan", "lint", "fuzz")
FUZZ_SECONDS = {"request": 20, "jobfile": 20, "safetensors": 20, "csv": 60, "json": 60, "dbn": 60}
ALONE = ("gpu",)
BUILD_ARGS = {
    "gcc": ["CC=gcc"],
    "clang": ["CC=clang"],
    "asan": ["CC=gcc", "OPT=-O2", "SAN=address,undefined"],
    "tsan": ["CC=gcc", "OPT=-O2", "SAN=thread"],
    "gpu": ["CC=gcc"],
}
SUPPRESSIONS = ROOT / "tests" / "sanitizers"
SAN_ENV = {
    "gcc": {},
    "gpu": {},
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=66:strict_string_checks=1:detect_stack_use_after_return=1",
        "LSAN_OPTIONS": f"suppressions={SUPPRESSIONS}/lsan.supp:print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "tsan": {
        "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS}/tsan.supp:halt_on_error=0:exitcode=66:atexit_sleep_ms=0:second_deadlock_stack=1:history_size=4",
    },
}
SLOWDOWN = {"gcc": 1, "gpu": 1, "asan": 4, "tsan": 8}  # of deadlines under a sanitizer

print_lock = threading.Lock()


def say(text):
    with print_lock:
        print(text, flush=True)


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count_cmocka(text, code):
    """Every announced test is passed, skipped or failed; one that was not reached has failed."""
    announced = sum(int(n) for n in re.findall(r"^\[=+\].*Running (\d+) test", text, re.M))
    last = {}
    running = None
    for line in text.splitlines():
        m = re.match(r".*\[ RUN      \] (\S+)", line)
        if m:
            running = m.group(1)
            last[running] = "failed"
            continue
        m = re.match(r".*\[  ( {5}OK|FAILED |SKIPPED) ?\] (\S+)", line)
        if m and m.group(2) == running:
            last[running] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[m.group(1).strip()]
            running = None
    got = Count(*(sum(v == k for v in last.values()) for k in ("passed", "failed", "skipped")))
    got.failed += max(0, announced - len(last))
    if code != 0 and got.failed == 0:
        got.failed = 1
    if announced == 0 and code == 0:
        got.failed += 1  # a test program that ran no test has proved nothing
    return got


def count_single(text, code):
    return Count(1, 0, 0) if code == 0 else Count(0, 1, 0)


def count_pytest(xml):
    def count(text, code):
        try:
            suites = ET.parse(xml).getroot().iter("testsuite")
            got = Count()
            for s in suites:
                n, f, e, k = (int(s.get(a, "0")) for a in ("tests", "failures", "errors", "skipped"))
                got.add(Count(max(0, n - f - e - k), f + e, k))
        except (OSError, ET.ParseError):
            return Count(0, 1, 0)
        if code not in (0, 1) or (code == 1 and got.failed == 0) or got.passed + got.failed + got.skipped == 0:
            got.failed += 1
        return got

    return count


class Step:
    def __init__(self, name, argv, count, limit_s, env=None, log=None):
        self.name, self.argv, self.count, self.limit_s = name, argv, count, limit_s
        self.env, self.log = env or {}, log


running = set()
running_lock = threading.Lock()


def run_step(step):
    """Runs one command in a process group of its own; returns its Count."""
    step.log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    timed_out = False
    with open(step.log, "wb") as out:
        proc = subprocess.Popen(step.argv, cwd=ROOT, env={**os.environ, **step.env}, stdin=subprocess.DEVNULL,
                                stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        with running_lock:
            running.add(proc.pid)
        try:
            code = proc.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            kill_group(proc.pid)
            code = proc.wait()
        finally:
            with running_lock:
                running.discard(proc.pid)
    text = step.log.read_text(errors="replace")
    got = step.count(text, code)
    if timed_out:
        got.failed = max(1, got.failed)
    took = time.monotonic() - start
    mark = "ok  " if got.failed == 0 else "FAIL"
    note = f", over its limit of {step.limit_s:.0f} s" if timed_out else f", exit {code}" if got.failed else ""
    say(f"{mark} {step.name:<34} {got} ({took:.1f} s{note})")
    if got.failed:
        lines = text.splitlines()
        shown = lines if len(lines) <= SHOWN_LINES else ["…"] + lines[-SHOWN_LINES:]
        say("\n".join("     | " + line for line in shown))
    return got


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_pool(steps, width):
    total = Count()
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        for got in pool.map(run_step, steps):
            total.add(got)
    return total


def build(stage, targets):
    folder = ROOT / "build" / ("check" if stage == "gcc" else stage)
    argv = ["make", "-s", f"-j{CORES}", f"BUILD={folder.relative_to(ROOT)}", "WERROR=-Werror", *BUILD_ARGS[stage], *targets]
    if os.environ.get("CCACHE_DIR") or os.environ.get("FHD_CCACHE"):
        argv = [a.replace("CC=", "CC=ccache ") if a.startswith("CC=") else a for a in argv]
    return folder, run_step(Step(f"{stage}: build", argv, count_single, 900, log=folder / "log" / "build.txt"))


def c_steps(stage, folder, kind, limit_s):
    steps = []
    for source in sorted((ROOT / "tests" / kind).glob("*.c")):
        program = folder / "tests" / kind / source.stem
        steps.append(Step(f"{stage}: {kind}/{source.stem}", [str(program)], count_cmocka, limit_s * SLOWDOWN[stage],
                          env={**SAN_ENV[stage], "FH_TEST_SLOWDOWN": str(SLOWDOWN[stage])},
                          log=folder / "log" / f"{kind}_{source.stem}.txt"))
    return steps


def e2e_step(stage, folder, limit_s):
    xml = folder / "log" / "e2e.xml"
    xml.unlink(missing_ok=True)
    argv = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", "--durations=15", f"--junitxml={xml}",
            "-o", "junit_family=xunit2", *(["-m", "not plain_only"] if stage != "gcc" else []), "tests/e2e", *(["tests/data"] if stage != "tsan" else [])]
    env = {**SAN_ENV[stage], "FHD_BUILD": str(folder), "FHD_SLOWDOWN": str(SLOWDOWN[stage]), "PYTHONDONTWRITEBYTECODE": "1"}
    return Step(f"{stage}: e2e", argv, count_pytest(xml), limit_s, env=env, log=folder / "log" / "e2e.txt")


def no_device():
    """Why the CUDA backend cannot be checked here, or None."""
    if not list((ROOT / "gpu" / "cuda").glob("*.cu")) or not list((ROOT / "tests" / "gpu").glob("*.c")):
        return "this tree has no CUDA backend"
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "no device: nvidia-smi does not answer"
    return None if found.returncode == 0 and "GPU" in found.stdout else "no device: nvidia-smi lists none"


def run_gpu():
    total = Count()
    reason = no_device()
    if reason:
        say(f"skip gpu: {reason}")
        return Count(0, 0, 1)
    folder, got = build("gpu", ["all", "gpu-bins", "train-bins"])
    total.add(got)
    if got.failed:
        return total
    env = {"FHD_LIBDIR": str(folder), "FHD_DEVICE": "cuda"}
    steps = c_steps("gpu", folder, "gpu", 600)
    for source in ("momentum_small", "momentum_default", "momentum_costs", "walk"):
        steps.append(Step(f"gpu: train/{source}", [str(folder / "tests" / "train" / source)], count_cmocka, 600,
                          log=folder / "log" / f"train_{source}.txt"))
    steps.append(Step("gpu: daemon", ["python3", "tests/gpu/daemon.py", str(folder)], count_single, 300, log=folder / "log" / "daemon.txt"))
    for tool in ("memcheck", "racecheck", "initcheck"):
        argv = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", str(folder / "tests" / "gpu" / "golden")]
        steps.append(Step(f"gpu: {tool}", argv, count_single, 600, log=folder / "log" / f"{tool}.txt"))
    for step in steps:
        step.env = {**step.env, **env}
    total.add(run_pool(steps, 1))
    return total


def run_lint():
    total = Count()
    for tool in ("layers", "cppcheck", "clang-tidy"):
        total.add(run_step(Step(f"lint: {tool}", ["tests/lint/lint.sh", tool], count_single, 1200,
                                log=ROOT / "build" / "lint" / "log" / f"{tool}.txt")))
    return total


def run_fuzz():
    log = ROOT / "build" / "fuzz" / "log"
    total = run_step(Step("fuzz: build", ["tests/fuzz/run.sh", "build"], count_single, 900, log=log / "build.txt"))
    if total.failed:
        return total
    total.add(run_pool([Step(f"fuzz: {target}", ["tests/fuzz/run.sh", target], count_single, seconds + 300,
                             env={"FUZZ_SECONDS": str(seconds)}, log=log / f"{target}.txt")
                        for target, seconds in sorted(FUZZ_SECONDS.items(), key=lambda t: -t[1])], 2))
    return total


def run_gcc():
    folder, total = build("gcc", ["host", "unit-bins", "train-bins", "e2e-bins"])
    if total.failed:
        return total
    total.add(run_pool(c_steps("gcc", folder, "unit", 120), 2))
    total.add(run_pool(c_steps("gcc", folder, "train", 600), 1))
    total.add(run_step(e2e_step("gcc", folder, 900)))
    return total


def run_sanitizers(stages):
    """Nothing here is about time, so two suites share the cores."""
    total, units, suites = Count(), [], []
    for stage in stages:
        folder, got = build(stage, ["host", "unit-bins", "e2e-bins"])
        total.add(got)
        if not got.failed:
            units += c_steps(stage, folder, "unit", 120)
            suites.append(e2e_step(stage, folder, 1800))
    total.add(run_pool(units, 2))
    total.add(run_pool(suites, 2))
    return total


def run_stages(stages):
    total = Count()
    sanitizers = [s for s in stages if s in ("asan", "tsan")]
    for stage in stages:
        if stage == "gpu":
            total.add(run_gpu())
        elif stage == "lint":
            total.add(run_lint())
        elif stage == "fuzz":
            total.add(run_fuzz())
        elif stage == "gcc":
            total.add(run_gcc())
        elif stage == "clang":
            total.add(build("clang", ["host", "unit-bins", "train-bins", "e2e-bins"])[1])
        elif stage == sanitizers[0]:
            total.add(run_sanitizers(sanitizers))
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stage", nargs="*", metavar="STAGE", help="gcc clang asan tsan lint fuzz (default: all of these), or gpu")
    args = parser.parse_args()
    for stage in args.stage:
        if stage not in STAGES + ALONE:
            parser.error(f"no stage {stage}; there are {' '.join(STAGES + ALONE)}")

    def interrupted(number, frame):
        with running_lock:
            for pid in running:
                kill_group(pid)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    start = time.monotonic()
    total = run_stages(args.stage or STAGES)
    say(f"{time.monotonic() - start:.0f} s")
    say(str(total))
    return 1 if total.failed or total.passed + total.skipped == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
