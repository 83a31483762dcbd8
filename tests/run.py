#!/usr/bin/env python3
"""Runs the checks and counts them: tests/run.py [STAGE...]

Stages, in the order of `make check`:
  gcc    builds with -Werror, runs the C suites and the CUDA backend on its emulator, the learning proofs alone, the end-to-end suite
  clang  builds everything with clang and -Werror
  arrow  builds with Parquet (make ARROW=), reads and writes such files; one skip where the Python package pyarrow is not
  asan   AddressSanitizer and UndefinedBehaviorSanitizer: C suites, the end-to-end suite
  tsan   ThreadSanitizer: the same without what has one thread (the readers of tests/data, the C suites in ONE_THREAD) and without
         the end-to-end tests marked same_threads, whose threads do nothing that they do not do in others
  lint   layers (who may include whom), cppcheck and clang-tidy, quiet or failed
  fuzz   libFuzzer on everything that reads foreign bytes: a minute for market data files, less for the small formats
and, on their own only:
  emu    AddressSanitizer and UndefinedBehaviorSanitizer over the CUDA stages on the emulator and the daemon on it: minutes, so not in make check
A card is checked by tests/gpu/check.py, which uses what is below.

What is about time (the learning proofs, the end-to-end suite without sanitizers) runs while nothing else wants the cores: what it
leaves of them builds the other variants. Then all the rest shares them, the longest first.

The last line is "N passed, N failed, N skipped". Counting is honest: a program that crashes, hangs past its limit, leaves a
process behind or stops before its last test has failed, and so has each test it did not reach; a skip is a skip, and the
reasons are listed. A build and a lint run count as one check each. Each line ends with the seconds and, behind the +, the
seconds of processor time. Of whatever failed is shown what says so (report.py), at once and again at the end; everything else stays in build/<stage>/log/.
"""
import argparse
import collections
import ctypes
import functools
import heapq
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import xml.etree.ElementTree as ET
from pathlib import Path

from report import plain_env, report

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / os.environ.get("VENV", ".venv") / "bin" / "python")
CORES = len(os.sched_getaffinity(0))

STAGES = ("gcc", "clang", "arrow", "asan", "tsan", "lint", "fuzz")
FUZZ_SECONDS = {"request": 20, "jobfile": 20, "safetensors": 20, "csv": 60, "json": 60, "dbn": 60}
ALONE = ("emu",)
BUILD_ARGS = {
    "gcc": ["CC=gcc"],
    "clang": ["CC=clang", "OPT=-O0", "CFLAGS=", "EMU_OPT=-O0"],  # for its warnings, which optimisation does not change
    "arrow": ["CC=gcc", "OPT=-O0", "CFLAGS=-g1"],
    "asan": ["CC=gcc", "OPT=-O1", "CFLAGS=-g1", "EMU_OPT=-O1", "SAN=address,undefined"],  # -g1 is enough for lines in reports
    "tsan": ["CC=gcc", "OPT=-O2", "CFLAGS=-g1", "SAN=thread"],
}
SUPPRESSIONS = ROOT / "tests" / "sanitizers"
SAN_ENV = {
    "gcc": {},
    "arrow": {},
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=66:strict_string_checks=1:detect_stack_use_after_return=1",
        "LSAN_OPTIONS": f"suppressions={SUPPRESSIONS}/lsan.supp:print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "tsan": {
        "TSAN_OPTIONS": f"suppressions={SUPPRESSIONS}/tsan.supp:halt_on_error=0:exitcode=66:atexit_sleep_ms=0:second_deadlock_stack=1:history_size=4",
    },
}
# C suites that never have a second thread, so that ThreadSanitizer has nothing to see in them. The gcc stage runs them with a library
# that ends whoever starts one.
ONE_THREAD = set("""client_number client_options client_plot client_tfevents client_timestamp daemon_config daemon_gate daemon_queue daemon_roles
    gpu_env gpu_gap gpu_kernels gpu_layout gpu_market gpu_metrics gpu_philox gpu_safetensors gpu_spec gpu_sumtree gpu_synth
    proto_instrument proto_spec proto_text proto_wire""".split())
SLOWDOWN = {"gcc": 1, "arrow": 1, "asan": 4, "tsan": 8}  # of deadlines under a sanitizer

print_lock = threading.Lock()


def say(text):
    with print_lock:
        print(text, flush=True)


class Count:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped
        self.reasons = collections.Counter()  # of skips

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons += other.reasons

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
    got.reasons.update(f"{name}: skipped by the test program, see its log" for name, how in last.items() if how == "skipped")
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
                got.reasons.update(x.get("message", "").removeprefix("Skipped: ") for x in s.iter("skipped"))
        except (OSError, ET.ParseError):
            return Count(0, 1, 0)
        if code not in (0, 1) or (code == 1 and got.failed == 0) or got.passed + got.failed + got.skipped == 0:
            got.failed += 1
        return got

    return count


@functools.cache
def leftovers():
    """What a command is put behind to get what no other process wants of the cores, where a process may ask for that, or next to nothing
    else. Each step has a session of its own, and with it an automatic group of the kernel's, which must be told as well."""
    told = ["sh", "-c", '{ echo 19 > /proc/self/autogroup; } 2> /dev/null; exec "$@"', "sh"]
    try:
        idle = subprocess.run(["chrt", "-i", "0", "true"], capture_output=True).returncode == 0
    except OSError:
        idle = False
    return [*told, *(["chrt", "-i", "0"] if idle else ["nice", "-n", "19"])]


class Step:
    """One command with its way to count. `length`: about how many seconds it takes alone, for the order in a pool. `idle`: it gets what
    no other process wants of the cores."""

    def __init__(self, name, argv, count, limit_s, env=None, log=None, length=1, idle=False):
        self.name, self.argv, self.count, self.limit_s = name, [*leftovers(), *argv] if idle else argv, count, limit_s
        self.env, self.log, self.length = env or {}, log, length


GRACE_S = 5  # for processes of a step that are just ending
running = set()
running_lock = threading.Lock()
failures = []  # what failed steps said, to be said again at the end


def wait_for(pid, limit_s):
    """Exit status, seconds of processor time of it and all it waited for, and whether it ran over its limit."""
    fd = os.pidfd_open(pid)
    over = not select.select([fd], [], [], limit_s)[0]
    os.close(fd)
    if over:
        kill_group(pid)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, over


def reap_group(group):
    """What a step left of its process group becomes our child when its parent ends (main() asks for that): waits a little, then
    ends it. Says whether there was something to end."""
    end = time.monotonic() + GRACE_S
    while True:
        try:
            pid, _ = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0 and time.monotonic() > end:
            break
        if pid == 0:
            time.sleep(0.02)  # the harness itself may: a group has no event for its end
    kill_group(group)
    try:
        while True:
            os.waitpid(-group, 0)
    except ChildProcessError:
        return True


def run_step(step):
    """Runs one command in a process group of its own; returns its Count."""
    step.log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with open(step.log, "wb") as out:
        proc = subprocess.Popen(step.argv, cwd=ROOT, env={**plain_env(), **step.env}, stdin=subprocess.DEVNULL,
                                stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        with running_lock:
            running.add(proc.pid)
        try:
            code, cpu, over = wait_for(proc.pid, step.limit_s)
            proc.returncode = code
            left = reap_group(proc.pid)
        finally:
            with running_lock:
                running.discard(proc.pid)
    text = step.log.read_text(errors="replace")
    got = step.count(text, code)
    if over or left:
        got.failed = max(1, got.failed)
    took = time.monotonic() - start
    mark = "ok  " if got.failed == 0 else "FAIL"
    note = f", over its limit of {step.limit_s:.0f} s" if over else ", left processes running" if left else f", exit {code}" if got.failed else ""
    say(f"{mark} {step.name:<34} {got} ({took:.1f} s + {cpu:.1f} s{note})")
    if got.failed:
        shown = "\n".join("     | " + line for line in report(text)) + f"\n     | all of it: {os.path.relpath(step.log, ROOT)}"
        say(shown)
        failures.append(f"FAIL {step.name}{note}\n{shown}")
    return got


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def attempt(work):
    """What it gives; where it raises (a fault of this file, or a program that is not there), a failed check."""
    try:
        return work()
    except Exception:
        failures.append(f"FAIL tests/run.py\n{traceback.format_exc()}")
        return Count(0, 1, 0), ()


class Pool:
    """Runs what it is given, the longest first, `width` at once. A piece of work is a Step, or a function that gives a Count and more work."""

    def __init__(self, width):
        self.total, self.queue, self.busy, self.number = Count(), [], 0, 0
        self.change = threading.Condition()
        self.threads = [threading.Thread(target=self._work) for _ in range(width)]

    def add(self, work, length=None):
        with self.change:
            self.number += 1  # what is equally long runs in the order in which it came
            heapq.heappush(self.queue, (-(length or work.length), self.number, work))
            self.change.notify()

    def _work(self):
        while True:
            with self.change:
                while not self.queue and self.busy:
                    self.change.wait()
                if not self.queue:
                    self.change.notify_all()
                    return
                work = heapq.heappop(self.queue)[2]
                self.busy += 1
            got, more = attempt(lambda: (run_step(work), ()) if isinstance(work, Step) else work())
            for step in more:
                self.add(step)
            with self.change:
                self.busy -= 1
                self.total.add(got)
                self.change.notify_all()

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        return self.total


def run_pool(steps, width):
    pool = Pool(width)
    for step in steps:
        pool.add(step)
    return pool.run()


building = collections.defaultdict(threading.Lock)  # by folder: asan and emu have one


def build(stage, targets, *more, idle=False):
    folder = ROOT / "build" / ("check" if stage == "gcc" else stage)
    argv = ["make", "-s", f"-j{CORES}", f"BUILD={folder.relative_to(ROOT)}", "WERROR=-Werror", *BUILD_ARGS[stage], *more, *targets]
    if os.environ.get("CCACHE_DIR") or os.environ.get("FHD_CCACHE"):
        argv = [a.replace("CC=", "CC=ccache ") if a.startswith("CC=") else a for a in argv]
    with building[folder]:
        return folder, run_step(Step(f"{stage}: build", argv, count_single, 1800, log=folder / "log" / "build.txt", idle=idle))


LENGTHS = {"gpu_behind": 10, "gpu_checkpoint": 8, "gpu_trainer": 3, "gpu_ahead": 5, "client_follow": 8, "daemon_http": 5, "daemon_series": 4, "client_source": 3, "daemon_jobs": 3, "gpu_learn": 3}


def c_sources(stage, kind):
    return [source for source in sorted((ROOT / "tests" / kind).glob("*.c")) if stage != "tsan" or source.stem not in ONE_THREAD]


def c_steps(stage, folder, kind, limit_s):
    steps = []
    for source in c_sources(stage, kind):
        program = folder / "tests" / kind / source.stem
        watched = stage == "gcc" and source.stem in ONE_THREAD
        alone = {"LD_PRELOAD": str(folder / "tests" / "one_thread.so"), "OPENBLAS_NUM_THREADS": "1"} if watched else {}
        steps.append(Step(f"{stage}: {kind}/{source.stem}", [str(program)], count_cmocka, limit_s * SLOWDOWN[stage],
                          env={**SAN_ENV[stage], "FH_TEST_SLOWDOWN": str(SLOWDOWN[stage]), **alone},
                          log=folder / "log" / f"{kind}_{source.stem}.txt", length=LENGTHS.get(source.stem, 1)))
    return steps


# The CUDA backend on the emulator (tests/gpu/emu), as other devices than the one that it is by default.
EMULATED = {
    "golden": [{}, {"FH_EMU_SM": "86", "FH_EMU_SEED": "4"}, {"FH_GPU_PRODUCTS": "lt"}],
    "wide": [{"FH_EMU_MULTIPROCESSORS": "3"}],
}
EMULATED_ASAN = ("stages",)  # ten times as slow there: the program with the odd sizes, without the largest
# a fake stack for each of a million fibers takes longer than all that they do
NO_FAKE_STACKS = "detect_leaks=1:abort_on_error=0:exitcode=66:strict_string_checks=1:detect_stack_use_after_return=0"


def emulated_steps(stage, folder, programs=None):
    steps = []
    for source in sorted((ROOT / "tests" / "gpu").glob("*.c")):
        if programs and source.stem not in programs:
            continue
        for number, more in enumerate(EMULATED.get(source.stem, [{}])):
            device = {"FH_EMU_SM": "90", "FH_EMU_SEED": "3", **more}
            env = {**SAN_ENV[stage], "FH_TEST_SLOWDOWN": str(SLOWDOWN[stage]), "FHD_LIBDIR": str(folder / "emu"), **device}
            if stage == "asan":
                env["ASAN_OPTIONS"] = NO_FAKE_STACKS
            steps.append(Step(f"{stage}: gpu/{source.stem} (emulated sm_{device['FH_EMU_SM']})", [str(folder / "tests" / "gpu" / source.stem)],
                              count_cmocka, 600 * SLOWDOWN[stage], env=env, log=folder / "log" / f"emu_{source.stem}_{number}.txt", length=60 if source.stem == "fused" else 20))
    if not programs:
        steps.append(Step(f"{stage}: gpu/emu/faults", [str(folder / "emu" / "faults")], count_single, 120, log=folder / "log" / "emu_faults.txt"))
    return steps


HANGS_S = 200  # says where a test is that has taken so long; it goes on
MARKS = {"asan": "not plain_only", "tsan": "not plain_only and not same_threads", "arrow": "not plain_only"}
# Small networks on two threads spin more than they compute, and how the threads of a team share their work is a subject of the C suites.
# The run that others are compared with (tests/e2e/test_durable.py) has two.
ONE_COMPUTES = {"asan": {"FH_HOST_THREADS": "1"}, "tsan": {"FH_HOST_THREADS": "1"}}


def pytest_step(stage, folder, suite, limit_s, length, *more):
    name = Path(suite).stem
    xml = folder / "log" / f"{name}.xml"
    xml.unlink(missing_ok=True)
    argv = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", "--durations=15", f"--junitxml={xml}",
            "-o", f"faulthandler_timeout={HANGS_S * SLOWDOWN[stage]}",
            "-o", "junit_family=xunit2", *(["-m", MARKS[stage]] if stage in MARKS else []), *more, suite]
    env = {**SAN_ENV[stage], **ONE_COMPUTES.get(stage, {}), "FHD_BUILD": str(folder), "FHD_SLOWDOWN": str(SLOWDOWN[stage]), "PYTHONDONTWRITEBYTECODE": "1"}
    return Step(f"{stage}: {name}", argv, count_pytest(xml), limit_s, env=env, log=folder / "log" / f"{name}.txt", length=length)


def lint_steps():
    return [Step(f"lint: {tool}", ["tests/lint/lint.sh", tool], count_single, 1200, log=ROOT / "build" / "lint" / "log" / f"{tool}.txt", length=length)
            for tool, length in (("layers", 1), ("cppcheck", 10), ("clang-tidy", 70))]


def fuzz_steps(idle=False):
    """The libraries are built at once; each target's program when its turn comes."""
    log = ROOT / "build" / "fuzz" / "log"
    total = run_step(Step("fuzz: build", ["tests/fuzz/run.sh", "build"], count_single, 1800, log=log / "build.txt", idle=idle))
    if total.failed:
        return total, []
    return total, [Step(f"fuzz: {target}", ["tests/fuzz/run.sh", target], count_single, seconds + 300,
                        env={"FUZZ_SECONDS": str(seconds)}, log=log / f"{target}.txt", length=seconds) for target, seconds in FUZZ_SECONDS.items()]


NO_PARQUET = "--ignore=tests/data/test_parquet.py"  # it has a stage of its own, with a build that can


def arrow_steps(idle=False):
    found = sorted(Path(PYTHON).parent.parent.glob("lib/python3*/site-packages/pyarrow/include/arrow"))
    if not found:
        skip = Count(0, 0, 1)
        skip.reasons["Parquet: the Python package pyarrow is not there"] = 1
        return skip, []
    folder = ROOT / "build" / "arrow"
    made = [f"{folder.relative_to(ROOT)}/{x}" for x in ("py/fh_pb2.py", "tests/data/bars")]
    folder, total = build("arrow", ["host", *made], f"ARROW={found[0].parent.parent}", idle=idle)
    suites = ("tests/data/test_parquet.py", "tests/e2e/test_datasets.py")
    return total, [] if total.failed else [pytest_step("arrow", folder, x, 600, 10, "-k", "arquet") for x in suites]


def run_gcc():
    folder, total = build("gcc", ["host", "unit-bins", "train-bins", "e2e-bins", "gpu-emu", "gpu-bins", "build/check/tests/one_thread.so"])
    if total.failed:
        return total
    total.add(run_pool(c_steps("gcc", folder, "unit", 120) + emulated_steps("gcc", folder), CORES))
    total.add(run_pool(c_steps("gcc", folder, "train", 600), 1))
    total.add(run_pool([pytest_step("gcc", folder, "tests/e2e", 900, 100), pytest_step("gcc", folder, "tests/data", 900, 20, NO_PARQUET)], 2))
    return total


def clang_steps(idle=False):
    return build("clang", ["host", "unit-bins", "train-bins", "e2e-bins", "gpu-emu"], idle=idle)[1], []


def sanitizer_steps(stage, idle=False):
    units = [f"build/{stage}/tests/unit/{source.stem}" for source in c_sources(stage, "unit")]
    folder, total = build(stage, ["host", "e2e-bins", *units], idle=idle)
    if total.failed:
        return total, []
    steps = c_steps(stage, folder, "unit", 120) + [pytest_step(stage, folder, "tests/e2e", 1800, 150)]
    if stage == "asan":
        steps.append(pytest_step(stage, folder, "tests/data", 900, 60, NO_PARQUET))
    return total, steps


def emulator_steps(idle=False):
    folder, total = build("asan", ["host", "e2e-bins", "gpu-emu", "gpu-bins"], idle=idle)
    if total.failed:
        return total, []
    return total, [*emulated_steps("asan", folder, EMULATED_ASAN), pytest_step("asan", folder, "tests/e2e/test_device.py", 1800, 300)]


# Of each stage that others may run beside: what builds it and says what is to be run then. The longest first.
VARIANTS = {
    "tsan": functools.partial(sanitizer_steps, "tsan"),
    "asan": functools.partial(sanitizer_steps, "asan"),
    "fuzz": fuzz_steps,
    "emu": emulator_steps,
    "clang": clang_steps,
    "arrow": arrow_steps,
}


def build_beside(variants, pool, over):
    """Builds until the other stage is over; what it had no time for stays in `variants`."""
    while variants and not over.is_set():
        stage = next(iter(variants))
        make = variants.pop(stage)
        got, steps = attempt(lambda: make(idle=True))
        pool.total.add(got)
        for step in steps:
            pool.add(step)


def run_stages(stages):
    """gcc while nothing else wants the cores, but variants are built from what they leave; then the rest at once: suites wait a
    lot, so one more than there are cores."""
    pool, over = Pool(CORES + 1), threading.Event()
    variants = {stage: make for stage, make in VARIANTS.items() if stage in stages}
    if "gcc" in stages:
        beside = threading.Thread(target=build_beside, args=(variants, pool, over))
        beside.start()
        got = run_gcc()
        over.set()
        beside.join()
        pool.total.add(got)
    for number, make in enumerate(variants.values()):
        pool.add(make, 10000 - number)
    for step in lint_steps() if "lint" in stages else ():
        pool.add(step)
    return pool.run()


PR_SET_CHILD_SUBREAPER = 36


def end_with_children():
    """A signal ends every step as well; what a step leaves running becomes ours to end."""
    def interrupted(number, frame):
        with running_lock:
            for pid in running:
                kill_group(pid)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tell(total, start):
    """The last lines, and the exit status."""
    for reason, n in sorted(total.reasons.items()):
        say(f"skipped {n}: {reason}")
    if failures:
        say("\n".join(["what failed, again:", *failures]))
    say(f"{time.monotonic() - start:.0f} s")
    say(str(total))
    return 1 if total.failed or total.passed + total.skipped == 0 else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stage", nargs="*", metavar="STAGE", help=f"{' '.join(STAGES)} (default: all of these), or {' '.join(ALONE)}")
    args = parser.parse_args()
    for stage in args.stage:
        if stage not in STAGES + ALONE:
            parser.error(f"no stage {stage}; there are {' '.join(STAGES + ALONE)}")

    end_with_children()
    start = time.monotonic()
    total = run_stages(args.stage or STAGES)
    return tell(total, start)


if __name__ == "__main__":
    sys.exit(main())
