"""What survives: kill -9 at random instants and at every labelled crash point, SIGTERM, pause; and the same bits after."""
import contextlib
import random
import re
import sqlite3
import threading

import numpy as np
import pynng
import pytest
from safetensors.numpy import load_file

import fh
from fh import pb

# Long enough that a kill meant for its first quarter cannot come after its end, however late it comes.
STEPS = int(20000 / fh.SLOWDOWN)
LONG = {"run": {"steps_per_epoch": STEPS, "validate_every": STEPS // 4, "report_every": 20, "checkpoint_every": 100, "keep_checkpoints": 3}}


def tensors_of(client, job, folder):
    done = client.show(job)
    assert done.state == pb.DONE, done
    return load_file(client.checkpoint_file(done.last_checkpoint, folder / f"{done.name}-{done.id}.st"))


def assert_same_bits(a, b):
    assert set(a) == set(b)
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        assert a[name].tobytes() == b[name].tobytes(), f"{name} differs in {np.sum(a[name] != b[name])} of {a[name].size} values"


@pytest.fixture(scope="module")
def reference():
    """Final tensors and metrics of the uninterrupted run of LONG, made once."""
    folder = fh.short_folder()
    d = fh.Daemon(folder).start(env={"FH_HOST_THREADS": "2"})  # the others may have another number: the bits do not depend on it
    try:
        with d.client() as client:
            client.synth("m")
            job = client.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, LONG), name="ref")
            client.wait_state(job.id, "DONE")
            tensors = tensors_of(client, "ref", folder)
            reports = metric_rows(client, "ref")
    finally:
        d.end()
    yield tensors, reports
    fh.remove(folder)


TIMES = ("per_second", "seconds", "_ns", "time")


def metric_rows(client, job):
    rows = {}
    for s in client.samples(job):
        if s.kind != pb.STATE_CHANGE:
            rows[(s.kind, s.step, s.split)] = tuple((v.name, v.value) for v in s.value if not any(t in v.name for t in TIMES))
    return rows


def start_long(client, name="ref"):
    return client.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, LONG), name=name)


def run_with_kills(d, name, kills):
    """The job when it is done, the daemon having been killed at these steps. A kill on a busy machine may come after the end."""
    with d.client() as c:
        start_long(c, name)
    for step in kills:
        with d.client() as c:
            c.wait_sample(name, lambda s, step=step: s.step >= step or s.state == pb.DONE)
        d.kill()
        d.start()
    with d.client() as c:
        return c.wait_state(name, "DONE", "FAILED")


@pytest.mark.parametrize("seed", range(3))
def test_kill_and_resume_same_bits(make_daemon, folder, reference, seed):
    """Killed up to three times somewhere in the run, restarted each time: parameters, moments, replay, counters equal."""
    rng = random.Random(seed)
    kills = sorted(rng.sample(range(1, 1400), 3))
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
    for name in ("ref", "again", "and-again"):
        done = run_with_kills(d, name, kills)
        assert done.state == pb.DONE and done.resume_note == "", done
        if done.interruptions:
            break
    assert 1 <= done.interruptions <= 3
    with d.client() as c:
        assert_same_bits(tensors_of(c, name, folder), reference[0])
        # The series goes on after a restart: nothing is there twice, everything is the reference's.
        places = [(s.kind, s.step, s.split, s.policy) for s in c.samples(name) if s.kind != pb.STATE_CHANGE]
        assert len(places) == len(set(places))
        rows = metric_rows(c, name)
        assert set(rows) == set(reference[1])
        for key, value in rows.items():
            assert value == reference[1][key], key


def test_fourth_interruption_fails_the_job(make_daemon):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS), name="x")
    for n in range(4):
        with d.client() as c:
            c.wait_sample("x", lambda s: s.kind == pb.REPORT, since=c.show("x").last_seq)
        d.kill()
        d.start()
    with d.client() as c:
        job = c.show("x")
        assert job.state == pb.FAILED and job.reason and job.error.code == pb.INTERRUPTED, job


def test_on_interrupt_fail_is_honoured(make_daemon):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS, {"run": {"on_interrupt": "fail"}}), name="x")
        c.wait_step("x", 20)
    d.kill()
    d.start()
    with d.client() as c:
        assert c.show("x").state == pb.FAILED
        assert d.ctl("wait", "x", code=(1, 9)).code in (1, 9)


def test_sigterm_requeues_and_goes_on(make_daemon, folder, reference):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        start_long(c)
        c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}), name="behind")
        c.wait_step("ref", 200)
    d.stop()
    d.start()
    with d.client() as c:
        assert [j.name for j in c.call("list_jobs").job] == ["ref", "behind"]
        done = c.wait_state("ref", "DONE", "FAILED")
        assert done.state == pb.DONE
        assert_same_bits(tensors_of(c, "ref", folder), reference[0])
        c.wait_state("behind", "DONE")


def test_sigterm_leaves_queue_and_paused_jobs_as_they_were(make_daemon):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        endless = fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS)
        c.start(endless, name="a")
        c.wait_step("a", 20)
        c.pause("a")
        c.start(endless, name="b")
        c.wait_step("b", 20)
        c.start(endless, name="c")
        paused_at = c.show("a").step
    d.stop()
    d.start()
    with d.client() as c:
        assert c.show("a").state == pb.PAUSED and c.show("a").step == paused_at
        c.wait_sample("b", lambda s: s.kind == pb.REPORT, since=c.show("b").last_seq)
        assert c.show("c").state == pb.QUEUED


def test_pause_resume_same_bits(make_daemon, folder, reference):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        start_long(c)
        for step in (1, 333, 900):
            c.wait_sample("ref", lambda s, step=step: s.step >= step or s.state == pb.DONE)
            try:
                c.pause("ref")
            except fh.CallError as e:
                assert e.code == pb.CONFLICT and c.show("ref").state == pb.DONE
                break
            # Another job with other shapes takes the trainer in between.
            other = c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}, "net": {"trunk1": 24}, "run": {"steps_per_epoch": 20}}))
            c.wait_state(other.id, "DONE")
            c.resume("ref")
        c.wait_state("ref", "DONE")
        assert_same_bits(tensors_of(c, "ref", folder), reference[0])


def test_same_seed_twice_other_seed_differs(client, spec, folder):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        client.start(spec(LONG, run={"steps_per_epoch": 300, "seed": seed}), name=name)
    for name in "abc":
        client.wait_state(name, "DONE")
    a, b, c = (tensors_of(client, n, folder) for n in "abc")
    assert_same_bits(a, b)
    assert any(a[n].tobytes() != c[n].tobytes() for n in a if n.endswith("s1.w"))
    rows = [metric_rows(client, n) for n in "abc"]
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize("seed", range(4))
def test_no_accepted_job_is_lost(make_daemon, seed):
    """Four clients start jobs as fast as they can while the daemon is killed; what was acknowledged is there afterwards, once."""
    rng = random.Random(100 + seed)
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
    accepted, attempted, refused, lock = [], [], [], threading.Lock()
    enough = threading.Event()
    kill_after = rng.randrange(5, 60)

    def work(n):
        try:
            with d.mortal_client() as c:
                for i in range(200):
                    name = f"w{n}-{i}"
                    with lock:
                        attempted.append(name)
                    job = c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}, "run": {"steps_per_epoch": 5, "validate_every": 0}}), name=name, request_id=f"r-{name}")
                    with lock:
                        accepted.append((name, job.id))
                        if len(accepted) >= kill_after:
                            enough.set()
        except pynng.exceptions.NNGException:
            pass
        except fh.CallError as e:
            refused.append(e)
            enough.set()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    assert enough.wait(fh.DEADLINE_S)
    d.kill()
    for t in threads:
        t.join(fh.DEADLINE_S)
    assert not refused, refused
    d.start()
    with d.client() as c:
        jobs, after = {}, 0
        while True:
            page = c.call("list_jobs", pb.ListJobsRequest(after=after, limit=1000))
            for j in page.job:
                assert j.name not in jobs
                jobs[j.name] = j.id
                after = j.id
            if not page.more:
                break
        for name, ident in accepted:
            assert jobs.get(name) == ident, f"{name} was accepted as {ident} and is {jobs.get(name)}"
        assert set(jobs) <= set(attempted)
        # A retry of the last request gets the same job, not a second one.
        name, ident = accepted[-1]
        again = c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}, "run": {"steps_per_epoch": 5, "validate_every": 0}}), name=name, request_id=f"r-{name}")
        assert again.id == ident
        for name, ident in accepted:
            c.wait_state(ident, "DONE")
            states = [s.state for s in c.samples(ident) if s.kind == pb.STATE_CHANGE]
            assert states.count(pb.DONE) == 1


def crash_labels():
    labels = set()
    for path in (fh.ROOT / "daemon").glob("*.c"):
        labels |= set(re.findall(r'FHD_CRASH_POINT\("([^"]+)"\)', path.read_text()))
    return sorted(labels)


def some_under_tsan(labels):
    """Every fourth: the daemon's threads are the same at each."""
    return [label if n % 4 == 0 else pytest.param(label, marks=pytest.mark.same_threads) for n, label in enumerate(labels)]


def drive(d, client):
    """Touches everything that writes: data sets, jobs, checkpoints, states. Each step may have happened before."""
    def once(fn, *allowed):
        try:
            return fn()
        except fh.CallError as e:
            if e.code not in allowed:
                raise
        return None

    once(lambda: client.synth("m"), pb.CONFLICT)
    once(lambda: client.synth("gone", bars=300, seed=9), pb.CONFLICT)
    once(lambda: client.call("drop_dataset", pb.DropDatasetRequest(name="gone")), pb.NOT_FOUND)
    client.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, LONG), name="ref")
    once(lambda: client.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, LONG), name="second"))
    once(lambda: client.stop("second"), pb.CONFLICT)
    client.wait_sample("ref", lambda s: s.step >= 150 or s.state in (pb.DONE, pb.FAILED))
    saved = once(lambda: client.call("save_checkpoint", pb.SaveCheckpointRequest(job="ref")), pb.CONFLICT)
    if saved:
        client.operation(saved.operation)
    once(lambda: client.pause("ref"), pb.CONFLICT)
    if client.show("ref").state == pb.PAUSED:  # the daemon ended between pause and resume
        client.resume("ref")
    client.wait_state("ref", "DONE")
    for checkpoint in client.call("list_checkpoints", pb.ListCheckpointsRequest(job="ref")).checkpoint[:-1]:
        once(lambda c=checkpoint: client.call("drop_checkpoint", pb.DropCheckpointRequest(checkpoint=c.id)), pb.NOT_FOUND, pb.CONFLICT)


@pytest.mark.parametrize("label", some_under_tsan(crash_labels()))
def test_crash_point(make_daemon, folder, reference, label):
    """The daemon ends at the label while everything that writes goes on; afterwards the work is finished as if nothing had been."""
    d = make_daemon("fhd-crash", env={"FHD_CRASH_AT": label})
    try:
        with d.mortal_client() as c:
            drive(d, c)
    except pynng.exceptions.NNGException:
        pass
    if d.alive():
        d.proc.terminate()
    assert d.wait() == 99, f"crash point {label} was not reached:\n{d.log()[-3000:]}"
    d.start()
    with d.client() as c:
        drive(d, c)
        assert_same_bits(tensors_of(c, "ref", folder), reference[0])
        assert c.show("second").state in (pb.STOPPED, pb.DONE)
        files = {p.stem for p in (d.state / "checkpoints").iterdir()}
        rows = {x.id for x in c.call("list_checkpoints").checkpoint}
        assert files == rows


def test_crash_points_are_there():
    assert len(crash_labels()) >= 4, "the crash test needs its labels"


def test_damaged_files_are_named_not_loaded(make_daemon):
    """A checkpoint and a data set cut short on disk: refused by name, the daemon stays."""
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        job = c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS))
        c.wait_step(job.id, 300)
        c.pause(job.id)
        checkpoint = c.show(job.id).last_checkpoint
    d.stop()
    for sub in (f"checkpoints/{checkpoint}.safetensors", "datasets/m.safetensors"):
        path = d.state / sub
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    d.start()
    with d.client() as c:
        with pytest.raises(fh.CallError) as e:
            c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}), name="n")
        assert e.value.code in (pb.CORRUPT, pb.NOT_FOUND) and "m" in e.value.text
        c.synth("m2")
        other = c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m2"}}), name="other")
        c.wait_state(other.id, "DONE")


def test_a_damaged_sample_is_left_out(make_daemon):
    """Samples that come from the disk are looked at before they go to a client: one that is no message does not take the others with it."""
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        job = c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}))
        c.wait_state(job.id, "DONE")
        whole = c.samples(job.id)
    d.stop()
    with contextlib.closing(sqlite3.connect(d.state / "fhd.db")) as db:
        assert db.execute("UPDATE samples SET packed = x'0aff' WHERE job = ? AND seq = 3", (job.id,)).rowcount == 1
        db.commit()
    d.start()
    with d.client() as c:
        assert [s.SerializeToString() for s in c.samples(job.id)] == [s.SerializeToString() for s in whole if s.seq != 3]
