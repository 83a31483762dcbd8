"""What is demanded of a card, figure by figure: the bound it must hold, what it aims at, and the floor under it.

Floors are reckoned from the default network (48-256-256, heads 128, 51 atoms) and from what was measured of one H200 by itself: the
numbers below. No version runs faster than that without another algorithm: a step's launches follow each other, and so do layers within
them, each waiting for what the one before sends. Used by daemon.py, which measures within the running daemon, and bench.py, which prints
and keeps the table."""

RATE = 788e12      # FLOP/s, a large BF16 product on random data
BYTES = 4.1e12     # bytes/s, device memory, read and written
LAUNCH = 0.5e-6    # s: a launch that depends on the one in front of it, in a row of empty ones that let the next begin
CLOCK = 1.98e9     # 1/s, of a multiprocessor
LOAD = 280 / CLOCK # from L2
EXCHANGE = 850 / CLOCK  # what a block computes reaches the others of its cluster
PRODUCT = 24 / CLOCK    # one of a chain of mma, 16 of k
STEP, LEARN_LAUNCHES, LEARN_EXCHANGES, LEARN_CHAIN = 16, 6, 3 + 2, (48 + 256 + 256 + 128) + (64 + 4 * 128 + 256) + 64
COLLECT_LAUNCHES, COLLECT_EXCHANGES, COLLECT_CHAIN = 3, 3, 48 + 256 + 256 + 128
COLLECT_MANY_LAUNCHES = 3

WEIGHTS = 48 * 256 + 256 * 256 + 4 * 256 * 128 + 128 * 51 * 12
PARAMS = WEIGHTS + 256 + 256 + 4 * 128 + 51 * 12
OUTPUTS = 51 * 12
ADAM_BYTES = PARAMS * (4 * 5 + 4 * 4 + 2 * 2)  # gradient, parameter, moments, target read; all but the gradient and two copies in BF16 written
TRANSITION_BYTES = 2 * 2 * 48 + 8 + 3 + 8  # states in BF16, reward and discount, actions, leaf and node
ENV_BYTES = 2 * (4 * 48 + 6 * 8 + 3 * 4 + 8) + 40 * 4  # observation, state and return read and written; market features read


def learn_flops(batch):
    return batch * 2 * WEIGHTS * (3 + 2)  # three forward passes, gradients of weights and (but for the first layer) of inputs


def dependent_s(launches, exchanges, chain):
    return launches * (LAUNCH + LOAD) + exchanges * EXCHANGE + chain / STEP * PRODUCT


LEARN_S = dependent_s(LEARN_LAUNCHES, LEARN_EXCHANGES, LEARN_CHAIN)
COLLECT_S = dependent_s(COLLECT_LAUNCHES, COLLECT_EXCHANGES, COLLECT_CHAIN)


def learn_s(batch):
    outputs = 3 * batch * OUTPUTS * 4 * 2 + batch * OUTPUTS * 2 * 2  # logits written and read, their gradient in BF16 likewise
    return max(LEARN_S, learn_flops(batch) / RATE + outputs / BYTES + ADAM_BYTES / BYTES)


def trials_s(trials):
    return max(LEARN_S / trials, learn_flops(256) / RATE + ADAM_BYTES / BYTES)


def collect_s(envs, policy):
    work = envs * (TRANSITION_BYTES + ENV_BYTES) / BYTES
    return dependent_s(COLLECT_MANY_LAUNCHES, 0, COLLECT_CHAIN if policy else 0) + work + (envs * 2 * WEIGHTS / RATE if policy else 0)


EPOCH_S = 300 * (learn_s(256) + COLLECT_S) + 20000 * 50e-9 + 10 * 15e-6  # a bar is 50 ns of one core, ten calls at least


class Figure:
    def __init__(self, key, title, unit, must, aim, floor=None, more=False, profile=None):
        self.key, self.title, self.unit, self.must, self.aim = key, title, unit, must, aim
        self.floor, self.more, self.profile = floor, more, profile

    def bound(self):
        if self.must is None:
            return ""
        aim = "" if self.aim is None else f" (aim {self.aim:g})"
        return f"{'>=' if self.more else '<='} {self.must:g} {self.unit}{aim}"

    def holds(self, value, bound):
        return bound is None or (value >= bound if self.more else value <= bound)


FIGURES = [
    Figure("step_256", "learn step, defaults, B 256, in the running daemon, reports every 100 steps", "us", 60, 25, learn_s(256) * 1e6, profile="learn 256 51 32 1"),
    Figure("step_8192", "the same, B 8,192", "us", 250, 120, learn_s(8192) * 1e6, profile="learn 8192 51 32 1"),
    Figure("step_64_11", "the same, B 64, 11 atoms", "us", 45, 20, LEARN_S * 1e6, profile="learn 64 11 32 1"),
    Figure("collect_policy", "collection, policy in the loop, transitions stored, N 16,384", "M/s", 120, 300, 16384 / collect_s(16384, True) / 1e6, True, "collect 256 51 16384 1"),
    Figure("collect_random", "the same, random actions", "M/s", 600, 2000, 16384 / collect_s(16384, False) / 1e6, True),
    Figure("epoch", "epoch: 300 learn steps B 256, collection, validation of 20,000 bars, in the daemon", "ms", 60, 20, EPOCH_S * 1e3, profile="collect 256 51 32 1"),
    Figure("second_job", "fhctl start to first finished learn step, layout that was here, median", "ms", 15, 5, 3.7),
    Figure("first_job", "the same, a new layout", "ms", 1500, 500),
    Figure("reports", "cost of reports every 100 steps", "%", 1, None, 0),
    Figure("polls", "cost of one client polling metrics at 1 kHz", "%", 1, None, 0),
    Figure("cycles", "device memory after 50 start/stop cycles, against the first idle reading", "bytes", 0, None, 0),
    Figure("slots", "8 jobs in 8 slots against one alone, learn steps/s", "times", 3, 6, 8, True),
    *[Figure(f"trials_{p}", f"{p} trials of one population, B 256 each", "k/s", must, aim, 1e-3 / trials_s(p), True, f"learn 256 51 32 {p}")
      for p, must, aim in ((8, 40, 150), (32, 80, 250), (128, 120, 300))],
    Figure("stop", "stop, until fhctl is back", "ms", 100, None),
    Figure("plan", "driver's memory of a job against its plan", "% off", 3, None, 0),
    Figure("cores", "processor of the daemon while one job runs", "cores", 0.9, None, 0),
]
BY_KEY = {f.key: f for f in FIGURES}
