"""The daemon on a CUDA device: memory by owner, admission, what it does when calls of the driver fail. The device is the emulator of
tests/gpu/emu, whose memory, neighbours and faults a test chooses; on a card tests/gpu/daemon.py asks the same questions."""
import os
import time

import pynng
import pytest

import fh
from fh import pb

LIBRARY = fh.BUILD / "emu" / "fhd-cuda.so"
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the emulated device is not built here (make gpu-emu; under sanitizers: make check-emu)")

MIB = 1 << 20
MEMORY = 256 * MIB
OPENING_LAUNCHES = 12 + 8 * 4  # of graphs, before a job has any: gpu/cuda/prime.cu
OUT_OF_MEMORY, BAD_CONFIGURATION, ILLEGAL_ADDRESS, LAUNCH_FAILED = 2, 9, 700, 719
SMALL = fh.merge(fh.SMALL, {"learn": {"batch": 8, "warmup": 16}, "run": {"device": "cuda", "precision": "f32", "steps_per_epoch": 24,
                                                                         "report_every": 4, "validate_every": 12}})
ENDLESS = {"run": {"epochs": 1000, "steps_per_epoch": 1000000, "validate_every": 0, "report_every": 4}}
LARGE = {"replay": {"capacity": 131072}}  # about 50 MiB
CHECKPOINTS = {"run": {"checkpoint_every": 8, "keep_checkpoints": 3}}


class Card:
    """A daemon on the emulated device, and the two files through which a test changes that device while it is in use."""

    def __init__(self, make_daemon, folder, *args):
        self.others, self.faults = folder / "others", folder / "faults"
        self.env = {"FHD_LIBDIR": str(LIBRARY.parent), "FH_EMU_MEMORY": str(MEMORY), "FH_EMU_MULTIPROCESSORS": "4",
                    "FH_EMU_OTHERS": str(self.others), "FH_EMU_FAULT_FILE": str(self.faults)}
        if "ASAN_OPTIONS" in os.environ:  # a fake stack for each of the emulator's fibers takes longer than all that they do
            # and without them what OpenSSL keeps for a thread is found only by its full stack (lsan.supp).
            self.env["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"] + ":detect_stack_use_after_return=0:fast_unwind_on_malloc=0"
        self.args = ("--device", "cuda", *args)
        self.daemon = make_daemon(start=False)
        self.start()

    def start(self):
        self.daemon.start(*self.args, env=self.env)

    def fault(self, *what):
        """call, which one from now on, error, sticky?"""
        ready = self.faults.with_suffix(".new")
        ready.write_text(":".join(map(str, what)) + "\n")
        ready.rename(self.faults)

    def others_hold(self, size):
        ready = self.others.with_suffix(".new")
        ready.write_text(str(size))
        ready.rename(self.others)

    def client(self):
        return self.daemon.client(timeout_s=60 * fh.SLOWDOWN)


@pytest.fixture
def card(make_daemon, folder):
    return Card(make_daemon, folder)


def owners(client):
    """Bytes by owner as the daemon saw them last, and all of info."""
    info = client.call("info")
    return {m.owner: m.bytes for m in info.memory}, info


def looked_again(client):
    """The daemon has looked at its device after now."""
    before = client.call("info").memory_age_ms
    while True:
        time.sleep(0.02)
        age = client.call("info").memory_age_ms
        if age < before:
            return
        before = age


def market(client):
    client.synth("m", bars=2000)


def spec(*parts):
    return fh.merge(SMALL, {"data": {"dataset": "m"}}, *parts)


def run(client, name, *parts):
    client.start(spec(*parts), name=name)
    return client.wait_state(name, "DONE", deadline_s=4 * fh.DEADLINE_S)


def start_endless(client, name, *parts):
    client.start(spec(ENDLESS, *parts), name=name)
    client.wait_step(name, 4, deadline_s=4 * fh.DEADLINE_S)


def last_validation(job):
    return [(v.name, v.value) for v in job.last_validation.value]


def test_info_says_who_holds_the_memory(card):
    with card.client() as c:
        market(c)
        looked_again(c)
        idle, info = owners(c)
        assert (info.backend, info.compute_capability, info.memory_total) == ("cuda", "9.0", MEMORY)
        assert sum(idle.values()) == MEMORY and idle["trainers"] == idle["markets"] == 0 and not info.trainer
        start_endless(c, "a")
        looked_again(c)
        busy, info = owners(c)
        live = info.trainer[0]
        assert sum(busy.values()) == MEMORY
        assert busy["trainers"] == live.device_bytes >= live.planned.parameters + live.planned.replay + live.planned.scratch
        assert busy["markets"] >= 2000 * 204
        # what the driver takes for streams and graphs it has taken before the first job, which so holds what its plan says
        assert busy["others"] == idle["others"] >= 2 * MIB
        assert abs(busy["trainers"] + busy["graphs"] - (live.planned.total - live.planned.market)) < MIB, (busy, live.planned)
        assert not live.parked and live.graphs == info.graphs > 0 and live.pinned_bytes == info.pinned_bytes > 0
        c.stop("a", discard=True)
        looked_again(c)
        parked, info = owners(c)
        assert parked["trainers"] == busy["trainers"] and info.trainers_parked == 1 and info.trainer[0].parked
        card.others_hold(30 * MIB)
        looked_again(c)
        later, info = owners(c)
        assert later["others"] == idle["others"] + 30 * MIB and later["free"] == parked["free"] - 30 * MIB
        text = card.daemon.ctl("info").out
        for word in ("compute capability 9.0", "trainers", f"others {later['others'] / MIB:.1f} MiB", "graph", "parked", "replay", "page-locked"):
            assert word in text, (word, text)


def test_the_plan_is_what_the_driver_says(card):
    with card.client() as c:
        market(c)
        run(c, "any")  # what captured graphs take has been seen
        looked_again(c)
        before, _ = owners(c)
        planned = c.start(spec(ENDLESS, LARGE), name="large").memory
        c.wait_step("large", 4, deadline_s=4 * fh.DEADLINE_S)
        looked_again(c)
        after, _ = owners(c)
        took = before["free"] - after["free"] + planned.market  # the market was there already
        assert planned.total > 40 * MIB
        assert abs(took / planned.total - 1) < 0.03, (took, planned)


def test_memory_after_many_jobs_is_what_it_was(make_daemon, folder):
    """Jobs that find their trainer and jobs that evict one, round after round: the same device memory, files and threads."""
    card = Card(make_daemon, folder, "--park", "2")
    with card.client() as c:
        market(c)

        def round_():
            for atoms in (11, 13, 15, 15):
                c.start(spec(ENDLESS, {"net": {"atoms": atoms}}), name=f"j{c.call('info').jobs_total}")
                name = f"j{c.call('info').jobs_total - 1}"
                c.wait_step(name, 4, deadline_s=4 * fh.DEADLINE_S)
                c.stop(name, discard=True)

        def reading():
            looked_again(c)
            held, info = owners(c)
            held.pop("others")
            return held, info.pinned_bytes, info.trainers_parked, len(list((card.daemon.proc_folder() / "fd").iterdir()))

        round_()
        first = reading()
        for _ in range(2):
            round_()
        assert reading() == first
        info = c.call("info")
        assert info.trainers_made == 9 and info.trainers_reused == 3 and info.trainers_evicted == 7 and info.trainers_parked == 2


def test_a_full_card_refuses_and_stays_as_it_was(card):
    with card.client() as c:
        market(c)
        run(c, "before")
        card.others_hold(MEMORY - 20 * MIB)
        looked_again(c)
        held, _ = owners(c)
        jobs = c.call("info").jobs_total
        with pytest.raises(fh.CallError) as refused:
            c.start(spec(LARGE), name="large")
        assert refused.value.code == pb.EXHAUSTED
        assert "MiB are free" in refused.value.text and "the job needs 5" in refused.value.text, refused.value.text
        assert c.call("info").jobs_total == jobs
        assert card.daemon.ctl("start", "--name", "large", *fh.set_args(spec(LARGE)), code=5).err.count("needs") == 1
        looked_again(c)
        assert owners(c)[0] == held
        card.others_hold(0)
        looked_again(c)
        assert run(c, "large", LARGE, {"run": {"steps_per_epoch": 4}}).state == pb.DONE


def test_others_take_the_card_between_acceptance_and_start(make_daemon, folder):
    """The worker asks the device again: the job fails with what it needed and what there was, and the next one runs."""
    card = Card(make_daemon, folder)
    with card.client() as c:
        market(c)
        start_endless(c, "first")
        queued = c.start(spec(LARGE), name="large")
        assert queued.state == pb.QUEUED
        looked_again(c)
        held, _ = owners(c)
        card.others_hold(MEMORY - 20 * MIB)
        c.stop("first", discard=True)
        failed = c.wait_state("large", "FAILED")
        assert failed.error.code == pb.EXHAUSTED and "bytes" in failed.error.text and "are free" in failed.error.text
        card.others_hold(0)
        looked_again(c)
        now, _ = owners(c)
        assert now["trainers"] <= held["trainers"]
        assert run(c, "small").state == pb.DONE


def test_parked_trainers_go_before_anybody_is_refused(card):
    with card.client() as c:
        market(c)
        for atoms in (11, 13, 15):
            run(c, f"p{atoms}", LARGE, {"net": {"atoms": atoms}, "run": {"steps_per_epoch": 4, "validate_every": 0}})
        looked_again(c)
        held, info = owners(c)
        assert info.trainers_parked == 3
        card.others_hold(held["free"] - 10 * MIB)
        looked_again(c)
        done = run(c, "p17", LARGE, {"net": {"atoms": 17}, "run": {"steps_per_epoch": 4, "validate_every": 0}})
        assert done.state == pb.DONE and c.call("info").trainers_evicted >= 1


CALLS = ("cudaGraphLaunch", "cudaEventRecord", "cudaStreamBeginCapture", "cudaGraphInstantiate", "cudaMemcpyAsync", "cudaMemsetAsync",
         "cudaStreamSynchronize", "cudaLaunchKernelExC", "cudaMallocHost", "cudaStreamCreateWithFlags", "cudaMemGetInfo")


def test_a_call_that_fails_ends_one_job_with_its_name(make_daemon, folder):
    """Each leaves the device as it was, and the next job runs."""
    card = Card(make_daemon, folder, "--park", "0")
    short = {"run": {"steps_per_epoch": 4, "validate_every": 0}}
    with card.client() as c:
        market(c)
        run(c, "first", short)
        held, _ = owners(c)
        for call in CALLS:
            if call == "cudaMemGetInfo":  # asked once a second by another thread as well: that look is missed, or a job fails
                card.fault(call, 1, BAD_CONFIGURATION)
                looked_again(c)
                continue
            card.fault(call, 1, BAD_CONFIGURATION)
            c.start(spec(short), name=f"unlucky-{call}")
            failed = c.wait_state(f"unlucky-{call}", "FAILED", "DONE", deadline_s=4 * fh.DEADLINE_S)
            assert failed.state == pb.FAILED and failed.error.code == pb.DEVICE_ERROR, failed
            assert call in failed.error.text or (call == "cudaLaunchKernelExC" and "cuda_launch" in failed.error.text), failed.error.text
            assert "cudaErrorInvalidConfiguration" in failed.error.text
            now, info = owners(c)
            assert (now["trainers"], now["graphs"], now["markets"], info.pinned_bytes) == (held["trainers"], held["graphs"], held["markets"], 0), call
        assert run(c, "last", short).state == pb.DONE


def test_an_allocation_that_fails_is_a_refusal(card):
    with card.client() as c:
        market(c)
        card.fault("cudaMalloc", 1, OUT_OF_MEMORY)
        c.start(spec(), name="unlucky")
        failed = c.wait_state("unlucky", "FAILED", "DONE", deadline_s=4 * fh.DEADLINE_S)
        assert failed.state == pb.FAILED and failed.error.code == pb.EXHAUSTED
        assert "the job needs" in failed.error.text and "are free" in failed.error.text
        assert run(c, "next").state == pb.DONE


def break_jobs(card, call, error):
    """Starts two jobs with checkpoints and loses the device under them; returns the suffix of their names. A fault on a busy machine
    may come after their end: then it meets the next two at their beginning."""
    for attempt in range(3):
        names = [f"broken-{seed}-{attempt}" for seed in (1, 2)]
        with card.client() as c:
            for seed, name in enumerate(names, 1):
                c.start(spec(CHECKPOINTS, {"run": {"seed": seed}}), name=name)
            if attempt == 0:
                c.start(spec({"run": {"seed": 2}}), name="queued")
                c.wait_sample(names[0], lambda s: s.kind == pb.REPORT and s.step >= 8, deadline_s=4 * fh.DEADLINE_S)
                card.fault(call, 1, error, "sticky")
        over = False
        while card.daemon.alive() and not over:
            try:
                with card.daemon.client(timeout_s=2 * fh.SLOWDOWN) as c:
                    over = all(c.show(name).state == pb.DONE for name in names)
            except pynng.NNGException:  # it is just dying
                pass
            time.sleep(0.05)
        if not card.daemon.alive():
            return attempt
    raise AssertionError("the fault met nobody")


@pytest.mark.parametrize("call, error", [("cudaGraphLaunch", ILLEGAL_ADDRESS), ("kernel", LAUNCH_FAILED)])
def test_a_lost_device_ends_the_process_and_the_jobs_go_on(make_daemon, folder, call, error):
    card = Card(make_daemon, folder, "--slots", "2")
    with card.client() as c:
        market(c)
        expected = {seed: last_validation(run(c, f"whole-{seed}", {"run": {"seed": seed}})) for seed in (1, 2)}
    attempt = break_jobs(card, call, error)
    assert card.daemon.wait() == 70
    log = card.daemon.log()
    assert "the device is lost" in log and ("cudaErrorIllegalAddress" in log or "cudaErrorLaunchFailure" in log)
    card.start()
    with card.client() as c:
        names = [f"broken-{seed}-{attempt}" for seed in (1, 2)]
        for seed, name in enumerate(names, 1):
            done = c.wait_state(name, "DONE", "FAILED", deadline_s=6 * fh.DEADLINE_S)
            assert done.state == pb.DONE and done.resume_note == "" and done.interruptions <= 1, done
            assert last_validation(done) == expected[seed]
        assert any(c.show(name).interruptions == 1 for name in names)
        assert last_validation(c.wait_state("queued", "DONE", deadline_s=4 * fh.DEADLINE_S)) == expected[2]
        for name in [*names, "queued"]:
            places = [(s.kind, s.step, s.split, s.policy, s.trial) for s in c.samples(name) if s.kind != pb.STATE_CHANGE]
            assert len(set(places)) == len(places), "a sample is there twice"


def test_a_device_lost_at_every_start_fails_the_job_in_the_end(make_daemon, folder):
    """A job that kills its device each time does not do so for ever."""
    card = Card(make_daemon, folder)
    card.daemon.stop()
    card.env["FH_EMU_FAULT"] = f"cudaGraphLaunch:{OPENING_LAUNCHES + 2}:{ILLEGAL_ADDRESS}:sticky"
    card.start()
    with card.client() as c:
        market(c)
        c.start(spec(), name="poison")
    for _ in range(4):
        assert card.daemon.wait() == 70
        card.start()
    with card.client() as c:
        failed = c.show("poison")
        assert failed.state == pb.FAILED and failed.error.code == pb.DEVICE_LOST and failed.interruptions == 4
        assert "cudaGraphLaunch" in failed.error.text


def test_pause_and_stop_wait_for_no_more_than_what_the_device_has_been_given(card):
    with card.client() as c:
        market(c)
        start_endless(c, "a")
        paused = c.pause("a")
        assert paused.state == pb.PAUSED and paused.step > 0
        assert c.resume("a").state in (pb.QUEUED, pb.RUNNING)
        c.wait_sample("a", lambda s: s.kind == pb.REPORT and s.step > paused.step, deadline_s=4 * fh.DEADLINE_S)
        stopped = c.stop("a")
        assert stopped.state == pb.STOPPED and stopped.last_checkpoint


def test_slots_share_the_device(make_daemon, folder):
    """Two jobs at once, each with the result that it has alone."""
    card = Card(make_daemon, folder, "--slots", "2")
    with card.client() as c:
        market(c)
        alone = {seed: last_validation(run(c, f"alone-{seed}", {"run": {"seed": seed}})) for seed in (1, 2)}
        for seed in (1, 2):
            c.start(spec({"run": {"seed": seed}}), name=f"beside-{seed}")
        for seed in (1, 2):
            assert last_validation(c.wait_state(f"beside-{seed}", "DONE", deadline_s=4 * fh.DEADLINE_S)) == alone[seed]


def test_the_time_of_the_first_learn_step(card):
    with card.client() as c:
        market(c)
        done = run(c, "a")
        assert done.created_ns <= done.started_ns < done.first_step_ns < done.ended_ns
