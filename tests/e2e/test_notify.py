"""The service manager's socket: told what happens, and never waited for."""
import socket
import time

import fh


def bound(folder):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(folder / "manager"))
    return sock


def until(sock, word, deadline_s=fh.DEADLINE_S):
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        sock.settimeout(max(0.01, end - time.monotonic()))
        lines = sock.recv(4096).split(b"\n")
        if any(line.startswith(word) for line in lines):
            return lines
    raise AssertionError(f"no {word} within {deadline_s} s")


def test_a_manager_that_does_not_read_holds_nothing_up(make_daemon, folder):
    """Its queue is full before the daemon starts: the daemon starts, answers and ends all the same, and says READY once there is room."""
    manager = bound(folder)
    other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.setblocking(False)
    sent = 0
    try:
        while True:
            other.sendto(b"full", str(folder / "manager"))
            sent += 1
    except BlockingIOError:
        pass
    assert sent > 0
    d = make_daemon(start=False)
    d.start(env={"NOTIFY_SOCKET": str(folder / "manager")}, ready=False)
    d.wait_listening()
    with d.client() as c:
        assert c.call("info").state == "running"
    assert b"READY=1" in until(manager, b"READY=1")
    d.stop()
    until(manager, b"STOPPING=1")


def test_ready_status_and_stopping_are_told(make_daemon, folder):
    manager = bound(folder)
    d = make_daemon(start=False)
    d.start(env={"NOTIFY_SOCKET": str(folder / "manager")}, ready=False)
    assert b"READY=1" in until(manager, b"READY=1")
    assert any(b"0 running, 0 queued, 0 known" in line for line in until(manager, b"STATUS="))
    d.stop()
    assert any(b"EXTEND_TIMEOUT_USEC=" in line for line in until(manager, b"STOPPING=1"))
