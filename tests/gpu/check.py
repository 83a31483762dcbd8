#!/usr/bin/env python3
"""make check-gpu: check.py BUILD [PART...]

  build                                      everything, with -Werror (left out with NOBUILD=1: BUILD holds it already)
  golden stages wide back fused products validate begin   tests/gpu: values of the reference, every stage beside the host, fused beside staged,
                                             products through cuBLASLt, what networks say, how they begin
  runs                                       tests/gpu/runs: whole jobs beside the host, resumed, BF16 beside F32, fifty epochs
  proofs                                     tests/train: markets that can be learnt, and one that cannot
  daemon                                     whole jobs through the daemon
  beside cycles                              tests/gpu/beside: several trainers at once; memory after fifty start/stop cycles of the daemon
  memcheck racecheck initcheck               compute-sanitizer over the golden values and over fused steps of both kinds

Default: all. Each program has a limit of seconds, so that one that hangs costs no more; a part that fails stops no other. CHECK_JOBS=N
lets N of them share the card, but for beside and cycles, which look at what is free of it and at the time: they run alone, first.
A line a program, what failed with its output, then "N passed, N failed, N skipped". Logs lie in BUILD/log. FHD_LIBDIR: where
fhd-cuda.so is, by default BUILD. CHECK_SMALL=1 takes sizes for an emulated device."""
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import run  # noqa: E402

SMALL = os.environ.get("CHECK_SMALL") == "1"
SLOWER = 10 if SMALL else 1
PROGRAMS = {"golden": 60, "stages": 120, "wide": 90, "back": 90, "fused": 120, "products": 90, "validate": 90, "begin": 60, "runs": 180, "beside": 90}  # seconds at most
PROOFS = ("momentum_small", "momentum_default", "momentum_costs", "walk")
# Both kinds of kernels for each: few samples and many, trials; few environments and many.
CASES = {"learn": "learn 256 51 32 1 learn 2100 51 32 1 learn 64 11 32 3", "collect": "collect 256 51 32 1 collect 64 51 2100 1"}
SMALL_CASES = {"learn": "learn 8 11 4 1", "collect": "collect 8 11 4 1"}
SMALL_SETS = ("net.trunk1=16 net.trunk2=16 net.value_hidden=8 net.advantage_hidden=8 net.atoms=11 learn.batch=8 learn.warmup=64 collect.envs=4 "
              "replay.capacity=4096 run.steps_per_epoch=20")
SANITIZERS = ("memcheck", "racecheck", "initcheck")
NO_DEVICE = 3  # exit status of gpu_step device


def count_lines(text, code):
    """Of tests/gpu/daemon.py: a line "ok" or "WRONG" a check; one that ended early has failed once more."""
    got = run.Count(sum(line.startswith("ok ") for line in text.splitlines()), sum(line.startswith("WRONG ") for line in text.splitlines()), 0)
    if got.failed == 0 and (code != 0 or got.passed == 0):
        got.failed = 1
    return got


class Check:
    def __init__(self, build):
        self.build = Path(build).resolve()
        self.env = {"FHD_LIBDIR": str(Path(os.environ.get("FHD_LIBDIR", self.build)).resolve()), "FHD_DEVICE": "cuda", "FH_TEST_SLOWDOWN": "1"}

    def step(self, name, argv, count, limit_s, **env):
        return run.Step(f"gpu: {name}", [str(a) for a in argv], count, limit_s * SLOWER, env={**self.env, **env},
                        log=self.build / "log" / f"{name.replace('/', '_').replace(' ', '_')}.txt", length=limit_s)

    def make(self):
        """Programs for this machine's cards; what make was told on its command line is told to this one too."""
        targets = ["all", "gpu-bins", "train-bins", *(self.build / "tests" / "bench" / p for p in ("gpu_step", "epoch"))]
        relative = os.path.relpath(self.build, ROOT)
        targets = [os.path.join(relative, t.relative_to(self.build)) if isinstance(t, Path) else t for t in targets]
        return run.run_step(self.step("build", ["make", "-s", f"-j{run.CORES}", f"BUILD={relative}", "WERROR=-Werror", *targets], run.count_single, 1800))

    def device(self):
        """Why nothing can be checked here, or None. "no device" is a skip, all else a failure: a card whose backend does not load, too."""
        try:
            found = subprocess.run([self.build / "tests" / "bench" / "gpu_step", "device"], capture_output=True, text=True, timeout=60,
                                   env={**os.environ, **self.env}, cwd=ROOT, check=False)
        except OSError as e:
            return f"not built: {e}"
        except subprocess.TimeoutExpired:
            return "the device does not answer within a minute"
        if found.returncode == 0:
            return None
        said = (found.stderr.strip().splitlines() or ["gpu_step says nothing"])[-1].removeprefix("no CUDA device: ")
        if found.returncode != NO_DEVICE or any(Path("/dev").glob("nvidia[0-9]*")):
            return f"the device cannot be used, exit {found.returncode}: {said}"
        return f"no device: {said}"

    def sanitizer(self, tool):
        """Kernels are loaded, and so rewritten by the tool, when they are first launched; those that do nothing (gpu/cuda/prime.cu) are not looked at."""
        head = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--kernel-name-exclude", "kns=k_nothing"]
        programs = {"golden": [self.build / "tests" / "gpu" / "golden"]}
        for kind, cases in (SMALL_CASES if SMALL else CASES).items():
            programs[kind] = [self.build / "tests" / "bench" / "gpu_step", "check", *cases.split()]
        return [self.step(f"{tool} {name}", [*head, *argv], run.count_cmocka if name == "golden" else run.count_single, 120, CUDA_MODULE_LOADING="LAZY")
                for name, argv in programs.items()]

    def steps(self, part):
        if part in PROGRAMS:
            return [self.step(part, [self.build / "tests" / "gpu" / part], run.count_cmocka, PROGRAMS[part])]
        if part == "proofs":
            return [self.step(f"train/{p}", [self.build / "tests" / "train" / p], run.count_cmocka, 120) for p in (PROOFS[:1] if SMALL else PROOFS)]
        if part == "daemon":
            return [self.step(part, [sys.executable, "tests/gpu/daemon.py", self.build], count_lines, 120, FH_GPU_SETS=SMALL_SETS if SMALL else "")]
        if part == "cycles":
            argv = [sys.executable, "tests/bench/daemon.py", self.build, "--device", "cuda", "--only", "cycles,stop,plan"]
            if SMALL:
                argv += ["--small", "--cycles", "9", "--window", "0.3", *(w for s in SMALL_SETS.split() for w in ("--set", s))]
            return [self.step(part, argv, run.count_single, 120)]
        return self.sanitizer(part)


PARTS = [*PROGRAMS, "proofs", "daemon", "cycles", *SANITIZERS]
ALONE = ("beside", "cycles")


def skip(reason, parts):
    run.say(f"skip gpu: {reason}")
    got = run.Count(0, 0, parts)
    got.reasons[reason] = parts
    return got


def check(build, wanted):
    c, total, steps = Check(build), run.Count(), []
    if os.environ.get("NOBUILD") != "1" and "build" in wanted:
        total.add(c.make())
        if total.failed:
            return total
    wanted = [p for p in wanted if p != "build"]
    reason = c.device() if wanted else None
    if reason and not reason.startswith("no device"):
        run.say(f"FAIL gpu: {reason}")
        return run.Count(total.passed, total.failed + 1, 0)
    if reason:
        total.add(skip(reason, len(wanted)))
        return total
    width = int(os.environ.get("CHECK_JOBS") or 1)
    if width > 1:
        for part in [p for p in wanted if p in ALONE]:
            total.add(run.run_pool(c.steps(part), 1))
        wanted = [p for p in wanted if p not in ALONE]
    for part in wanted:
        if part in SANITIZERS and not any(os.access(f"{d}/compute-sanitizer", os.X_OK) for d in os.environ["PATH"].split(":")):
            total.add(skip("compute-sanitizer is not there", 1))
        else:
            steps += c.steps(part)
    if width > 1:
        total.add(run.run_pool(steps, width))
    else:  # in the order of the parts
        for step in steps:
            total.add(run.run_pool([step], 1))
    return total


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    wanted = sys.argv[2:] or ["build", *PARTS]
    for part in wanted:
        if part not in ("build", *PARTS):
            raise SystemExit(f"no part {part}; there are build {' '.join(PARTS)}")
    run.end_with_children()
    began = time.monotonic()
    total = check(sys.argv[1], wanted)
    return run.tell(total, began)


if __name__ == "__main__":
    sys.exit(main())
