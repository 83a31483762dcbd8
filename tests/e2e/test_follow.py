"""Following, detaching, losing the daemon: what the person at the terminal is told, and the exit code."""
import os
import pty
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

import fh
from fh import pb

ARGS = fh.set_args(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}))
ENDLESS = fh.set_args(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS))


def test_follow_to_the_end(daemon, market):
    result = daemon.ctl("start", *ARGS, "--name", "f", "-f", code=0)
    text = (result.out + result.err).lower()
    assert "loss" in text and "done" in text


def test_metrics_follow_prints_every_sample_once(daemon, client, market):
    daemon.ctl("start", *ARGS, "--name", "f")
    result = daemon.ctl("metrics", "f", "-f", "-o", "csv", code=0)
    lines = result.out.splitlines()
    seq = lines[0].split(",").index("seq")
    seen = [int(line.split(",")[seq]) for line in lines[1:]]
    want = [s.seq for s in client.samples("f") if s.kind != pb.STATE_CHANGE]
    assert [n for n in seen if n in want] == want and len(seen) == len(set(seen))


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_detaches_and_says_how_to_come_back(daemon, client, market, number, code):
    proc = fh.spawn_ctl("start", *ENDLESS, "--name", "long", "-f", url=daemon.url)
    wait_named(client, "long")
    client.wait_step("long", 40)
    proc.send_signal(number)
    out, err = proc.communicate(timeout=fh.DEADLINE_S)
    assert proc.returncode == code, (out, err)
    assert "fhctl" in err and "long" in err, "it says how to attach again"
    assert client.show("long").state == pb.RUNNING, "the job goes on"


def test_lines_of_a_log_tell_the_speed(daemon, market):
    """Samples that come without a pause leave room for the question how fast the job is: each line has it as it is then."""
    proc = fh.spawn_ctl("start", *ENDLESS, "--name", "log", "-f", url=daemon.url)
    lines, end = [], time.monotonic() + fh.DEADLINE_S
    while time.monotonic() < end and not any("steps/s" in line for line in lines):
        if select.select([proc.stderr], [], [], 0.5)[0]:
            lines.append(proc.stderr.readline())
    proc.send_signal(signal.SIGINT)
    proc.communicate(timeout=fh.DEADLINE_S)
    assert any("steps/s" in line for line in lines), lines


def wait_named(client, name):
    end = time.monotonic() + fh.DEADLINE_S
    while time.monotonic() < end:
        try:
            return client.show(name)
        except fh.CallError as e:
            assert e.code == pb.NOT_FOUND
    raise AssertionError(f"{name} was not started")


def test_progress_on_a_terminal(daemon, market):
    """On a terminal the bar is redrawn in place and the screen is left clean."""
    leader, follower = pty.openpty()
    proc = subprocess.Popen([str(fh.BUILD / "fhctl"), "start", *ARGS, "--name", "tty", "-f"], stdin=subprocess.DEVNULL, stdout=follower,
                            stderr=follower, env={**fh.clean_env(), "FHD_URL": daemon.url, "TERM": "xterm"}, preexec_fn=fh.die_with_parent)
    os.close(follower)
    data, end = b"", time.monotonic() + fh.DEADLINE_S
    while time.monotonic() < end:
        if select.select([leader], [], [], 0.5)[0]:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            data += piece
    os.close(leader)
    assert proc.wait(fh.DEADLINE_S) == 0, data
    assert b"\r" in data and b"%" in data and b"done" in data.lower()


def test_unreachable_is_six_and_fast(folder):
    for url in (f"ipc://{folder}/nobody/fhd.sock", "tcp://127.0.0.1:1"):
        result = fh.within(3 * fh.SLOWDOWN, lambda url=url: fh.ctl("list", url=url, code=6))
        assert url in result.err, result


def test_bad_url_is_usage():
    for url in ("http://x", "ipc://", "ipc://" + "x" * 300, "nonsense"):
        fh.ctl("ping", "--connect", url, code=2)


def test_option_beats_environment(daemon, folder):
    assert daemon.ctl("--connect", f"ipc://{folder}/none.sock", "ping", code=6).code == 6
    assert fh.ctl("--connect", daemon.url, "ping", url=f"ipc://{folder}/none.sock", code=0).code == 0


def fake_daemon(folder, answer, n=1):
    """A REP socket of another make: answer(request bytes) -> bytes or None (never answers)."""
    import pynng

    url = f"ipc://{folder}/fake.sock"
    sock = pynng.Rep0(recv_timeout=int(1000 * fh.DEADLINE_S))
    sock.listen(url)
    seen = []

    def serve():
        try:
            for _ in range(n):
                data = sock.recv()
                seen.append(data)
                reply = answer(data)
                if reply is None:
                    return
                sock.send(reply)
        except pynng.exceptions.NNGException:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return url, sock, thread, seen


def test_version_mismatch_is_seven(folder):
    def answer(data):
        req = pb.Request.FromString(data)
        reply = pb.Reply(magic=fh.MAGIC, protocol=2, request_id=req.request_id)
        reply.error.code = pb.VERSION_MISMATCH
        reply.error.text = "this daemon speaks protocol 2"
        return reply.SerializeToString()

    url, sock, thread, _ = fake_daemon(folder, answer, n=5)
    result = fh.ctl("list", url=url, code=7)
    assert "2" in result.err and "1" in result.err
    sock.close()


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40, b"hello", pb.Reply(magic=fh.MAGIC, protocol=1, request_id="another").SerializeToString()])
def test_damaged_replies_do_not_crash(folder, garbage):
    url, sock, thread, _ = fake_daemon(folder, lambda data: garbage, n=20)
    result = fh.ctl("list", "--timeout", "2", url=url, code=None)
    assert result.code not in (0,) and result.code >= 0 and result.err, result
    sock.close()


def test_change_whose_daemon_dies_is_255(folder):
    """Between taking the request and answering it: known at once, whatever the deadline."""
    url, sock, thread, seen = fake_daemon(folder, lambda data: sock.close())
    result = fh.ctl("stop", "1", "--timeout", "1000", url=url, code=255)
    assert result.err
    assert pb.Request.FromString(seen[0]).WhichOneof("call") == "stop_job"


def unanswered(folder, *args):
    """fhctl against a daemon that takes the request and never answers. A busy machine may need more than a second to send it."""
    for timeout in (1, 8, 8 * fh.SLOWDOWN):
        url, sock, thread, seen = fake_daemon(folder, lambda data: None)
        begin = time.monotonic()
        result = fh.ctl(*args, "--timeout", timeout, url=url, code=None)
        took = time.monotonic() - begin
        sock.close()
        thread.join(fh.DEADLINE_S)
        if seen:
            break
    return pb.Request.FromString(seen[0]).WhichOneof("call"), result, took - timeout


def test_change_without_an_answer_is_255(folder):
    call, result, _ = unanswered(folder, "stop", "1")
    assert call == "stop_job" and result.code == 255 and result.err, result


def test_read_without_an_answer_is_124(folder):
    over = []
    for _ in range(5):
        call, result, late = unanswered(folder, "list")
        assert call == "list_jobs" and result.code == 124, result
        over.append(late)
        if late < 4 * fh.SLOWDOWN:
            break
    assert min(over) < 4 * fh.SLOWDOWN, f"seconds past the deadline: {over}"


def test_daemon_dies_while_following(make_daemon):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        proc = fh.spawn_ctl("start", *ENDLESS, "--name", "long", "-f", "--timeout", str(1 + 2 * fh.SLOWDOWN), url=d.url)
        wait_named(c, "long")
        c.wait_step("long", 40)
    d.kill()
    out, err = proc.communicate(timeout=2 * fh.DEADLINE_S)
    assert proc.returncode == 8, (proc.returncode, out, err)
    assert "long" in err and "fhctl" in err


def test_following_rides_out_a_restart(make_daemon):
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        steps = int(20000 / fh.SLOWDOWN)
        args = fh.set_args(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, {"run": {"steps_per_epoch": steps, "validate_every": 0, "checkpoint_every": 200}}))
        proc = fh.spawn_ctl("start", *args, "--name", "long", "-f", url=d.url)
        wait_named(c, "long")
        c.wait_step("long", 400)
    d.kill()
    d.start()
    out, err = proc.communicate(timeout=2 * fh.DEADLINE_S)
    assert proc.returncode == 0, (proc.returncode, out[-2000:], err[-2000:])


def test_daemon_stops_while_waiting(make_daemon):
    """SIGTERM with a job running: whoever waits learns that it can go on later (9), that the stream ended (8), that its time is
    over (124), or, when it had not asked yet, that nobody is there (6)."""
    d = make_daemon()
    with d.client() as c:
        c.synth("m")
        c.start(fh.merge(fh.SMALL, {"data": {"dataset": "m"}}, fh.ENDLESS), name="long")
        c.wait_step("long", 40)
    proc = fh.spawn_ctl("wait", "long", "--timeout", "5", url=d.url)
    with d.client() as c:
        c.call("ping")
    d.stop()
    out, err = proc.communicate(timeout=2 * fh.DEADLINE_S)
    assert proc.returncode in (6, 8, 9, 124) and err, (proc.returncode, out, err)


def test_silent_listener_does_not_hang(folder):
    """Something accepts the connection and never speaks."""
    path = folder / "mute.sock"
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(str(path))
    s.listen(8)
    fh.within(8 * fh.SLOWDOWN, lambda: fh.ctl("list", "--timeout", "1", url=f"ipc://{path}", code=(6, 124)))
    s.close()
