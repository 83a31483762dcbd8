"""A client that is not ours: pynng and protobuf classes generated from fh.proto, nothing else."""
import threading

import pynng
import pytest

import fh
from fh import pb


def subscribe(client, job_id):
    url = client.call("info").publish_url
    assert url, "the daemon names no publisher"
    sub = pynng.Sub0(recv_timeout=int(1000 * fh.DEADLINE_S), recv_buffer_size=1024)
    sub.subscribe(f"job/{job_id}/".encode())
    sub.dial(url, block=True)
    return sub


def receive(sub, job_id):
    data = sub.recv()
    topic = f"job/{job_id}/".encode()
    assert data.startswith(topic)
    return pb.Event.FromString(data[len(topic):]).sample


def test_start_poll_follow_stop(client, spec):
    job = client.start(spec(fh.ENDLESS), name="foreign")
    assert job.id > 0 and job.name == "foreign" and job.state in (pb.QUEUED, pb.RUNNING)
    with subscribe(client, job.id) as sub:
        first = receive(sub, job.id)
        polled = client.wait_step(job.id, 40)
        assert polled.job == job.id and polled.value
        # What the publisher sends is what polling gives, by number.
        seen = {first.seq: first}
        while max(seen) < polled.seq + 3:
            sample = receive(sub, job.id)
            seen[sample.seq] = sample
        series = {s.seq: s for s in client.samples(job.id)}
        for seq, sample in seen.items():
            assert series[seq] == sample
        stopped = client.stop(job.id)
        assert stopped.state == pb.STOPPED
        while True:
            sample = receive(sub, job.id)
            if sample.kind == pb.STATE_CHANGE and sample.state == pb.STOPPED:
                break


def test_series_numbers_have_no_gap(client, spec):
    job = client.start(spec())
    client.wait_state(job.id, "DONE")
    series = client.samples(job.id)
    assert [s.seq for s in series] == list(range(1, len(series) + 1))
    kinds = {s.kind for s in series}
    assert kinds == {pb.REPORT, pb.VALIDATION, pb.STATE_CHANGE}
    assert [s.step for s in series if s.kind == pb.REPORT] == sorted(s.step for s in series if s.kind == pb.REPORT)
    states = [s.state for s in series if s.kind == pb.STATE_CHANGE]
    assert states[-1] == pb.DONE and pb.RUNNING in states


def test_job_is_complete(client, spec):
    job = client.start(spec(), labels=[("desk", "fx"), ("who", "me")])
    done = client.wait_state(job.id, "DONE")
    assert {(x.key, x.value) for x in done.label} == {("desk", "fx"), ("who", "me")}
    assert done.step == done.planned_steps == 200
    assert done.memory.total > 0 and done.memory.replay > 0
    assert done.spec.learn.lr == pytest.approx(3e-4) and done.spec.learn.batch == 16 and done.spec.model == "dqn"
    for field in pb.JobSpec.DESCRIPTOR.fields:
        if field.message_type:
            part = getattr(done.spec, field.name)
            missing = [f.name for f in field.message_type.fields if not part.HasField(f.name)]
            assert missing in ([], ["checkpoint"]), f"{field.name}: {missing}"
    assert done.last_checkpoint and done.dataset_hash
    assert done.last_report.step <= 200 and done.last_validation.split in ("validation", "test")


def test_same_request_id_gets_the_same_job(client, spec):
    first = client.start(spec(), request_id="retry-1")
    again = client.start(spec(), request_id="retry-1")
    assert again.id == first.id
    other = client.start(spec(), request_id="retry-2")
    assert other.id != first.id


def test_many_clients_at_once(daemon, client, market):
    """32 clients, each with 20 calls in flight one after the other: every reply belongs to its request."""
    errors = []

    def work(n):
        try:
            with daemon.client() as c:
                for i in range(20):
                    if (n + i) % 2:
                        assert c.call("ping").version
                    else:
                        assert c.call("show_dataset", pb.ShowDatasetRequest(name=market)).dataset.name == market
        except Exception as e:  # noqa: BLE001  reported below
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(fh.DEADLINE_S)
        assert not t.is_alive()
    assert not errors, errors


def test_long_poll_holds_and_answers(client, daemon, spec):
    """A poll that waits does not keep other calls from being answered, and comes back when there is news."""
    job = client.start(spec(fh.ENDLESS))
    client.wait_step(job.id, 20)
    client.pause(job.id)
    last = client.show(job.id).last_seq
    got = []

    def wait():
        with daemon.client() as c:
            got.append(c.metrics(job.id, since=last, wait_ms=10000))  # as long as a poll may wait

    for _ in range(5):  # on a busy machine ten seconds may be over before twenty calls
        got.clear()
        t = threading.Thread(target=wait)
        t.start()
        for _ in range(20):
            client.call("ping")
        if not got:
            break
        t.join(fh.DEADLINE_S)
    assert not got, "twenty calls were answered only after the poll"
    client.resume(job.id)
    t.join(fh.DEADLINE_S)
    if not got[0].sample:  # it was over before the job went on
        wait()
    assert not t.is_alive() and got[-1].sample[0].seq == last + 1


def test_wrong_version_is_told(daemon):
    with daemon.client() as c:
        req = c.request("ping", pb.PingRequest())
        req.protocol = 99
        reply = pb.Reply.FromString(c.exchange(req.SerializeToString()))
        assert reply.error.code == pb.VERSION_MISMATCH
        assert "99" in reply.error.text and "1" in reply.error.text
        assert reply.request_id == req.request_id


def test_publisher_speaks_for_one_job_only(client, spec):
    quiet = client.start(spec(fh.ENDLESS), name="one")
    client.wait_step(quiet.id, 20)
    client.pause(quiet.id)
    other = client.start(spec(), name="two")
    with subscribe(client, other.id) as sub:
        while True:
            sample = receive(sub, other.id)
            assert sample.job == other.id
            if sample.kind == pb.STATE_CHANGE and sample.state == pb.DONE:
                break
