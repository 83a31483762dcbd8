#!/usr/bin/env python3
"""The host's training step beside PyTorch doing the same step, in turns in one run, with the same number of threads.

race.py BUILD [--threads 2] [--batch 256 --batch 64] [--rounds 9] [--require 1.5]
Every Python at hand that has PyTorch takes part (this one, /usr/bin/python3, and those named in FHD_BENCH_PYTHON,
separated by colons); the fastest of them counts. Times are medians over rounds. With --require the exit status is 1 when
the ratio of some batch falls short. The floor is the arithmetic of the step at the speed of a large product on this
machine, measured in the same run: the best of those beside each batch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ENV = dict(os.environ, OPENBLAS_NUM_THREADS="1")  # PyTorch's own threads share the products out


def pythons():
    named = [p for p in os.environ.get("FHD_BENCH_PYTHON", "").split(":") if p]
    found = []
    for python in named + [sys.executable, "/usr/bin/python3"]:
        if python in found or not os.path.exists(python):
            continue
        test = subprocess.run([python, "-c", "import torch"], env=ENV, capture_output=True)
        if test.returncode == 0:
            found.append(python)
    return found


class Runner:
    """A program that times one round each time it gets a line."""

    def __init__(self, command):
        self.rounds = []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV)

    def turn(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]} ended early with status {self.process.wait()}")
        self.rounds.append(json.loads(line))

    def us(self):
        return [r["us"] for r in self.rounds]

    def end(self):
        """What the program says after its last round."""
        rest, _ = self.process.communicate("go\n", timeout=120)
        return [json.loads(line) for line in rest.splitlines()]


def spread(us):
    return f"{statistics.median(us):8.0f}  ({min(us):.0f} - {max(us):.0f})"


def race(args, batch, others):
    common = [str(args.threads), str(batch), str(args.rounds)]
    host = Runner([os.path.join(args.build, "tests/bench/host_step"), "-w", "-t", common[0], "-b", common[1], "-r", common[2]])
    torches = [Runner([python, os.path.join(HERE, "torch_cpu.py"), "--wait", "--threads", common[0], "--batch", common[1],
                       "--rounds", common[2]]) for python in others]
    for i in range(args.rounds):
        turns = [host] + torches
        for runner in turns if i % 2 == 0 else turns[::-1]:
            runner.turn()
            time.sleep(0.05)  # threads that spin for a while after their work would slow the next one down
    floor = [r for r in host.end() if r["what"] == "floor"][0]
    for runner in torches:
        runner.end()
    us = statistics.median(host.us())
    print(f"B = {batch}, {args.threads} threads, microseconds a step: median (fastest - slowest of {args.rounds} rounds)")
    print(f"  {'fhd, ' + host.rounds[0]['kernels']:32} {spread(host.us())}")
    for runner in torches:
        print(f"  {runner.rounds[0]['what']:32} {spread(runner.us())}   {statistics.median(runner.us()) / us:.2f} times fhd's")
    stages = {k: statistics.median(r[k] for r in host.rounds) for k in host.rounds[0] if k not in ("what", "kernels", "B", "threads", "us")}
    print("  " + "  ".join(f"{k} {v:.0f}" for k, v in stages.items() if v >= 1) + "\n", flush=True)
    return min((statistics.median(r.us()) / us for r in torches), default=None), us, floor


def print_floors(batches, races):
    rate = max(floor["gflops"] for _, _, floor in races)
    print(f"floor at {rate:.0f} GFLOP/s:")
    for batch, (_, us, floor) in zip(batches, races):
        least = floor["flops"] / rate / 1e3
        print(f"  B = {batch:5} {least:8.0f}  ({floor['flops'] / 1e6:.0f} MFLOP); fhd takes {us / least:.2f} times that")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--require", type=float, default=0.0)
    args = parser.parse_args()
    others = pythons()
    if not others:
        print("no PyTorch found (FHD_BENCH_PYTHON may name a Python that has it): fhd alone")
    batches = args.batch or [256, 128, 64]
    races = [race(args, batch, others) for batch in batches]
    print_floors(batches, races)
    ratios = [ratio for ratio, _, _ in races]
    if args.require and (not others or min(ratios) < args.require):
        print(f"the ratio falls short of {args.require}" if others else "nothing to compare with")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
