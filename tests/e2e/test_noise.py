"""A hostile or broken peer gets an error or is dropped; the daemon goes on answering and does not grow."""
import os
import random
import shutil
import socket
import struct
import subprocess

import pynng
import pytest

import fh
from fh import pb

SP_REQ = b"\x00SP\x00\x00\x30\x00\x00"  # what a REQ peer says first


def raw(daemon):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(fh.DEADLINE_S)
    s.connect(str(daemon.root / "fhd.sock"))
    return s


def handshake(daemon):
    s = raw(daemon)
    s.sendall(SP_REQ)
    assert s.recv(8, socket.MSG_WAITALL) == b"\x00SP\x00\x00\x31\x00\x00"
    return s


def frame(payload, size=None):
    return b"\x01" + struct.pack(">Q", len(payload) if size is None else size) + payload


def answers(daemon):
    with daemon.client() as c:
        assert c.call("ping").version
    assert daemon.alive()


def resident(daemon):
    for line in open(f"/proc/{daemon.proc.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_as_requests(daemon, seed):
    rng = random.Random(seed)
    with daemon.client() as c:
        for _ in range(100):
            data = rng.randbytes(rng.choice([0, 1, 2, 7, 64, 1000, 70000]))
            reply = pb.Reply.FromString(c.exchange(data))
            assert reply.HasField("error") and reply.error.code != pb.OK and reply.error.text
    answers(daemon)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_requests(daemon, client, spec, seed):
    """Real requests with bytes changed, cut or doubled: always a reply, never a crash."""
    rng = random.Random(seed)
    templates = [client.request("start_job", pb.StartJobRequest(spec=fh.spec_message(spec()), name="t")),
                 client.request("metrics", pb.MetricsRequest(job="1", since=5, wait_ms=0)),
                 client.request("synth_dataset", pb.SynthDatasetRequest(name="z", kind="walk", bars=300, seed=1)),
                 client.request("upload_chunk", pb.UploadChunkRequest(upload="u", first_bar=0, ts=[1, 2], open=[1, 2], high=[1, 2], low=[1, 2], close=[1, 2], volume=[0, 0])),
                 client.request("act", pb.ActRequest(job="1", rows=1, state=[0.0] * 48)),
                 client.request("get_checkpoint", pb.GetCheckpointRequest(checkpoint="1-5", offset=0, limit=100))]
    for _ in range(150):
        data = bytearray(rng.choice(templates).SerializeToString())
        for _ in range(rng.randrange(1, 6)):
            kind = rng.randrange(4)
            at = rng.randrange(len(data)) if data else 0
            if kind == 0 and data:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            else:
                data += data[at:]
        reply = pb.Reply.FromString(client.exchange(bytes(data)))
        assert reply.HasField("error") or reply.WhichOneof("result")
    answers(daemon)


def test_empty_and_wrong_envelopes(client):
    cases = [b"", pb.Request().SerializeToString(), pb.Request(magic=fh.MAGIC).SerializeToString(),
             pb.Request(magic=1, protocol=1, ping=pb.PingRequest()).SerializeToString(),
             pb.Request(magic=fh.MAGIC, protocol=1, request_id="x").SerializeToString(),
             pb.Request(magic=fh.MAGIC, protocol=1, request_id="../../etc/passwd", ping=pb.PingRequest()).SerializeToString(),
             pb.Request(magic=fh.MAGIC, protocol=1, request_id="a" * 65, ping=pb.PingRequest()).SerializeToString()]
    for data in cases:
        reply = pb.Reply.FromString(client.exchange(data))
        assert reply.HasField("error") and reply.error.text, data


def test_unknown_call_is_told_apart(client):
    data = pb.Request(magic=fh.MAGIC, protocol=1, request_id="u").SerializeToString() + bytes([0xC2, 0x3E, 0x00])  # field 1000
    reply = pb.Reply.FromString(client.exchange(data))
    assert reply.error.code == pb.UNIMPLEMENTED and reply.request_id == "u"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a" * 65, "with space", "ünï", "nul\x00byte", "-o", "x\n", "%s%n"])
def test_bad_names_everywhere(client, spec, name):
    calls = [("show_job", pb.ShowJobRequest(job=name)), ("show_dataset", pb.ShowDatasetRequest(name=name)),
             ("synth_dataset", pb.SynthDatasetRequest(name=name, kind="walk", bars=300, seed=1)),
             ("get_checkpoint", pb.GetCheckpointRequest(checkpoint=name)), ("drop_dataset", pb.DropDatasetRequest(name=name)),
             ("start_job", pb.StartJobRequest(spec=fh.spec_message(spec()), name=name))]
    for call, message in calls:
        if name == "-o" and call in ("synth_dataset", "start_job"):
            continue  # an odd name, but one of the allowed characters
        if name == "" and call == "start_job":
            continue  # absent or empty: the daemon makes one
        with pytest.raises(fh.CallError) as e:
            client.call(call, message)
        assert e.value.code in (pb.INVALID, pb.NOT_FOUND, pb.CORRUPT), (call, e.value)


def test_oversize_message_is_dropped_or_refused(daemon):
    with daemon.client(timeout_s=3) as c:
        try:
            reply = pb.Reply.FromString(c.exchange(b"\x00" * (17 << 20)))
            assert reply.HasField("error")
        except pynng.exceptions.NNGException:
            pass
    answers(daemon)


def test_control_request_over_one_mebibyte_is_refused(client):
    req = client.request("ping", pb.PingRequest(), token="t")
    data = req.SerializeToString() + bytes([0xFA, 0x3F]) + b"\x80\x80\x80\x01" + b"x" * (2 << 20)
    reply = pb.Reply.FromString(client.exchange(data))
    assert reply.HasField("error")


def test_gibibyte_headers_cost_nothing(daemon):
    before = resident(daemon)
    socks = []
    for _ in range(16):
        s = handshake(daemon)
        s.sendall(frame(b"", size=1 << 30))
        socks.append(s)
    answers(daemon)
    for s in socks:
        try:
            assert s.recv(1) == b"", "a frame of 1 GiB is not waited for"
        except ConnectionResetError:
            pass
        s.close()
    assert resident(daemon) - before < 64 << 20
    answers(daemon)


def test_truncated_frames_and_early_close(daemon):
    for payload in (b"", b"\x00", SP_REQ[:3], SP_REQ, SP_REQ + b"\x01", SP_REQ + frame(b"", 100), SP_REQ + frame(b"abc", 100),
                    SP_REQ + frame(b"\x80\x00\x00\x01" + b"\xff" * 20)):
        s = raw(daemon)
        s.sendall(payload)
        s.close()
    answers(daemon)


def test_connect_and_close_many(daemon):
    """What killed the listener of NNG 1.5.2: aborted handshakes."""
    for _ in range(200):
        raw(daemon).close()
    for _ in range(50):
        s = raw(daemon)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.sendall(SP_REQ[:4])
        s.close()
    end_answers(daemon)


def end_answers(daemon):
    """Answers within the self-probe's time: fhctl asks again until its own deadline."""
    result = daemon.ctl("ping", code=None)
    for _ in range(20):
        if result.code == 0:
            return
        result = daemon.ctl("wait", "none", "--timeout", "1", code=None)  # a second of waiting for an answer
        result = daemon.ctl("ping", code=None)
    raise AssertionError(f"no answer after aborted handshakes: {result}\n{daemon.log()[-2000:]}")


def test_half_open_connections(daemon):
    socks = []
    try:
        for _ in range(100):
            socks.append(raw(daemon))
        answers(daemon)
    finally:
        for s in socks:
            s.close()
    answers(daemon)


def test_wrong_protocol_on_the_socket(daemon):
    """An HTTP client, a SUB peer and a PAIR peer."""
    s = raw(daemon)
    s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        s.recv(100)
    except (TimeoutError, ConnectionResetError):
        pass
    s.close()
    with pynng.Pair0(send_timeout=500, recv_timeout=500) as pair:
        pair.dial(daemon.url, block=False)
        with pytest.raises(pynng.exceptions.NNGException):
            pair.send(b"hello")
            pair.recv()
    answers(daemon)


def test_nngcat(daemon, folder):
    nngcat = shutil.which("nngcat")
    assert nngcat, "nngcat is missing (package nng-utils)"
    noise = folder / "noise"
    noise.write_bytes(random.Random(1).randbytes(5000))
    for data in ("--data=hello", "--data=", f"--file={noise}"):
        # --interval bounds the wait: with --count alone, nngcat 1.5 computes a negative time-out once sending took a millisecond
        done = subprocess.run([nngcat, "--req", "--dial", daemon.url, data, "--raw", "--interval=5", "--count=1"], capture_output=True,
                              timeout=fh.DEADLINE_S)
        reply = pb.Reply.FromString(done.stdout)
        assert reply.HasField("error"), done
    answers(daemon)


def test_second_daemon_is_refused_and_harmless(daemon, make_daemon, folder):
    """The same socket, then the same state folder: both refused, the first one goes on."""
    second = fh.Daemon(folder, "fhd")
    second.state = folder / "other-state"
    second.log_path = folder / "second.log"
    second.start(ready=False)
    assert second.wait() != 0
    assert "fhd.sock" in second.log() or "lock" in second.log()
    answers(daemon)
    third = fh.Daemon(folder, "fhd")
    third.url = f"ipc://{folder}/third.sock"
    third.log_path = folder / "third.log"
    third.start(ready=False)
    assert third.wait() != 0, "two daemons on one state folder"
    answers(daemon)


def test_stale_socket_of_a_killed_daemon_is_no_obstacle(make_daemon):
    d = make_daemon()
    d.kill()
    assert (d.root / "fhd.sock").exists()
    d.start()
    answers(d)


def test_socket_is_not_for_everyone(daemon):
    assert os.stat(daemon.root / "fhd.sock").st_mode & 0o777 == 0o660


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "tcp://192.0.2.1:7000", "ws://127.0.0.1:7000", "inproc://x", "abstract://x", "nonsense"])
def test_listeners_that_are_refused(make_daemon, folder, url):
    d = fh.Daemon(folder)
    d.start("--listen", url, ready=False, url=False)
    assert d.wait() != 0
    assert url.split(":")[0] in d.log()


def test_loopback_tcp_works(make_daemon, folder):
    with fh.loopback_port() as port:
        make_daemon("fhd", "--listen", f"tcp://127.0.0.1:{port}")
        with fh.Client(f"tcp://127.0.0.1:{port}") as c:
            assert c.call("ping").version
        assert fh.ctl("--connect", f"tcp://127.0.0.1:{port}", "ping").code == 0


def test_memory_does_not_grow_with_noise(daemon):
    rng = random.Random(5)
    with daemon.client() as c:
        for _ in range(200):
            c.exchange(rng.randbytes(20000))
        before = resident(daemon)
        for _ in range(1500):
            c.exchange(rng.randbytes(20000))
        grown = resident(daemon) - before
    assert grown < (16 << 20) * (8 if fh.SLOWDOWN > 1 else 1), grown
