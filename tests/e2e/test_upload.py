"""An import whose way to the daemon breaks: cut connections, killed clients, a killed daemon, Ctrl-C. The set is registered whole or not at
all, and the same command goes on where it stopped. A proxy of our own stands between fhctl and fhd, counts, and cuts at a given byte."""
import hashlib
import signal
import socket
import threading

import numpy as np
import pytest
from safetensors.numpy import save_file

import fh
from fh import pb

BARS = 270_000  # two whole messages and more than half of a third
BYTES = 48 * BARS
CHUNK = 4_800_000


GREETING = 8  # bytes that each side says first


class Proxy:
    """Forwards both ways. `plan`: for each connection the bytes from the client after which it is cut ("cut"), or nothing more goes on ("hold").
    A connection counts from its first byte after the greeting: on a slow machine one may be given up before it was used."""

    def __init__(self, folder, daemon, plan):
        self.path, self.target, self.plan = str(folder / "proxy.sock"), daemon.url.removeprefix("ipc://"), list(plan)
        self.sent, self.reached, self.lock = [], threading.Event(), threading.Lock()
        self.open = []
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(self.path)
        self.server.listen(8)
        threading.Thread(target=self.accept, daemon=True).start()

    url = property(lambda self: f"ipc://{self.path}")

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                server.connect(self.target)
            except OSError:
                client.close()
                continue
            self.open += [client, server]
            threading.Thread(target=self.upward, args=(client, server), daemon=True).start()
            threading.Thread(target=self.downward, args=(server, client), daemon=True).start()

    def begin(self):
        """A connection that is used: its number and what the plan has for it."""
        with self.lock:
            self.sent.append(GREETING)
            return len(self.sent) - 1, self.plan.pop(0) if self.plan else (None, 0)

    def upward(self, client, server):
        try:
            server.sendall(client.recv(GREETING, socket.MSG_WAITALL))
            data, number, kind, limit = client.recv(65536), None, None, 0
            while data:
                if number is None:
                    number, (kind, limit) = self.begin()
                if kind:
                    data = data[:max(0, limit - self.sent[number])]
                self.sent[number] += len(data)
                server.sendall(data)
                if kind and self.sent[number] >= limit:
                    self.reached.set()
                    if kind == "hold":
                        return
                    break
                data = client.recv(65536)
        except OSError:
            pass
        shut(client, server)

    def downward(self, server, client):
        try:
            while data := server.recv(65536):
                client.sendall(data)
        except OSError:
            pass
        shut(server, client)

    def drop(self):
        shut(*self.open)

    def close(self):
        self.drop()
        for s in self.open:
            s.close()
        self.server.close()


def shut(*sockets):
    for s in sockets:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@pytest.fixture
def proxy(folder):
    made = []

    def make(daemon, *plan):
        made.append(Proxy(folder, daemon, plan))
        return made[-1]

    yield make
    for p in made:
        p.close()


@pytest.fixture(scope="module")
def market_file():
    """A file of bars, of the kind that is read soonest, and the hash of its bars."""
    folder = fh.short_folder()
    r = np.random.default_rng(5)
    ts = 1_704_186_000 + 60 * np.arange(BARS)
    c = 5000 + np.cumsum(r.integers(-2, 3, BARS)) * 0.25
    o = np.concatenate([c[:1], c[:-1]])
    h, low, v = np.maximum(o, c) + 0.25, np.minimum(o, c) - 0.25, r.integers(0, 999, BARS)
    path = folder / "big.safetensors"
    columns = {"ts": ts * 10**9, "open": o, "high": h, "low": low, "close": c, "volume": v.astype("f8")}
    save_file(columns, path)
    digest = hashlib.sha256()
    for column in columns.values():
        digest.update(column.tobytes())
    yield path, digest.hexdigest()
    fh.remove(folder)


def registered(client):
    return {d.name: (d.bars, d.hash) for d in client.call("list_datasets").dataset}


def finish(proc, deadline_s=4 * fh.DEADLINE_S):
    out, err = proc.communicate(timeout=deadline_s)
    return proc.returncode, out + err


def test_a_cut_connection_is_made_anew(daemon, client, proxy, market_file):
    """Cut twice, once in the middle of a chunk and once at its very begin: only what was under way is sent again."""
    path, digest = market_file
    p = proxy(daemon, ("cut", CHUNK + 3_000_000), ("cut", 200), (None, 0))
    fh.ctl("dataset", "import", path, "--name", "m", "--timeout", fh.DEADLINE_S, url=p.url, deadline_s=4 * fh.DEADLINE_S)
    assert registered(client) == {"m": (BARS, digest)}
    assert len(p.sent) == 3 and p.sent[:2] == [CHUNK + 3_000_000, 200], p.sent
    assert BYTES < sum(p.sent) < BYTES + 3_000_000 + 100_000, "the first chunk was not sent twice"


def test_a_killed_client_leaves_nothing_and_the_same_command_goes_on(daemon, client, proxy, market_file):
    path, digest = market_file
    p = proxy(daemon, ("hold", 2 * CHUNK + 2_500_000), (None, 0))
    proc = fh.spawn_ctl("dataset", "import", path, "--name", "m", url=p.url)
    assert p.reached.wait(4 * fh.DEADLINE_S)
    proc.kill()
    proc.communicate()
    p.drop()
    assert registered(client) == {}
    assert all(f.name.endswith(".tmp") for f in (daemon.state / "datasets").iterdir()), "what has come so far has no name yet"
    begun = client.call("begin_upload", pb.BeginUploadRequest(name="m", bars=BARS, hash=digest, source="x", tick=0.01))
    assert begun.next_bar == 2 * CHUNK // 48
    fh.ctl("dataset", "import", path, "--name", "m", url=p.url, deadline_s=4 * fh.DEADLINE_S)
    assert registered(client) == {"m": (BARS, digest)}
    assert p.sent[1] < BYTES - 2 * CHUNK + 100_000, "two chunks were there already"
    assert [f.name for f in (daemon.state / "datasets").iterdir()] == ["m.safetensors"]
    assert daemon.ctl("dataset", "import", path, "--name", "m").err.count("already") == 1


def test_a_killed_daemon_is_waited_for(daemon, proxy, market_file):
    path, digest = market_file
    p = proxy(daemon, ("hold", CHUNK + 2_000_000), (None, 0))
    proc = fh.spawn_ctl("dataset", "import", path, "--name", "m", url=p.url)
    assert p.reached.wait(4 * fh.DEADLINE_S)
    daemon.kill()
    p.drop()
    proc.send_signal(signal.SIGSTOP)  # else it may be done before we have looked
    daemon.start()
    with daemon.client() as client:
        assert registered(client) == {}, "never half a set"
        assert not list((daemon.state / "datasets").iterdir()), "nor half a file"
        proc.send_signal(signal.SIGCONT)
        code, text = finish(proc)
        assert code == 0, text
        assert registered(client) == {"m": (BARS, digest)}


def test_a_daemon_that_dies_before_the_row(make_daemon, market_file):
    """The file is there, the row is not: the file goes at the next start, and the waiting fhctl sends all again."""
    path, digest = market_file
    daemon = make_daemon("fhd-crash", env={"FHD_CRASH_AT": "dataset-after-file"})
    proc = fh.spawn_ctl("dataset", "import", path, "--name", "m", url=daemon.url)
    assert daemon.wait(4 * fh.DEADLINE_S) == 99
    assert proc.poll() is None
    daemon.start()
    code, text = finish(proc)
    assert code == 0, text
    with daemon.client() as client:
        assert registered(client) == {"m": (BARS, digest)}


def test_a_daemon_that_stays_away(daemon, proxy, market_file):
    path, digest = market_file
    p = proxy(daemon, ("hold", CHUNK + 2_000_000), (None, 0))
    proc = fh.spawn_ctl("--timeout", str(3 + fh.SLOWDOWN), "dataset", "import", path, "--name", "m", url=p.url)
    assert p.reached.wait(4 * fh.DEADLINE_S)
    daemon.kill()
    p.drop()
    code, text = finish(proc)
    assert code == 6 and "the same command goes on" in text, text
    daemon.start()
    with daemon.client() as client:
        assert registered(client) == {}
        daemon.ctl("dataset", "import", path, "--name", "m", deadline_s=4 * fh.DEADLINE_S)
        assert registered(client) == {"m": (BARS, digest)}


def test_ctrl_c_leaves_nothing_behind(make_daemon, proxy, market_file, folder):
    """In the middle of a chunk: the daemon is told to forget the upload, and no file is left, here or there."""
    daemon = make_daemon()
    path, digest = market_file
    place = folder / "place"
    place.mkdir()
    p = proxy(daemon, ("hold", CHUNK + 2_000_000), (None, 0))
    proc = fh.spawn_ctl("dataset", "import", path, "--name", "m", url=p.url, env={"TMPDIR": str(place)}, cwd=place)
    assert p.reached.wait(4 * fh.DEADLINE_S)
    proc.send_signal(signal.SIGINT)
    code, text = finish(proc)
    assert code == 130 and "interrupted" in text, text
    with daemon.client() as client:
        assert registered(client) == {}
        up = client.call("begin_upload", pb.BeginUploadRequest(name="m", bars=BARS, hash=digest, source="x", tick=0.01))
        assert up.next_bar == 0, "an upload of the same bars that had been given up"
    daemon.stop()
    assert not list((daemon.state / "datasets").iterdir()) and not list(place.iterdir())


def test_size_limit_and_quota_are_named(make_daemon, folder):
    """A set of 1000 bars is a file of about 49 kB; two fit, and the third only when one is dropped."""
    config = folder / "fhd.yaml"
    config.write_text("dataset_bars: 1000\ndataset_quota: 110000\n")
    daemon = make_daemon("fhd", "--config", str(config))
    lines = [f"{1_704_186_000 + 60 * i},1,2,1,2,5\n" for i in range(1001)]
    small, large = folder / "small.csv", folder / "large.csv"
    small.write_text("ts,open,high,low,close,volume\n" + "".join(lines[:1000]))
    large.write_text("ts,open,high,low,close,volume\n" + "".join(lines))
    text = daemon.ctl("dataset", "import", large, "--name", "x", code=2).err
    assert "1001" in text and "1000" in text and "dataset_bars" in text
    daemon.ctl("dataset", "import", small, "--name", "a")
    daemon.ctl("dataset", "synth", "--bars", "1000", "--name", "b")
    for refused in (("dataset", "import", small, "--name", "c"), ("dataset", "synth", "--bars", "1000", "--name", "c")):
        text = daemon.ctl(*refused, code=5).err
        assert "dataset_quota" in text and "110000" in text and "48000" in text, text
    assert "dataset_bars" in daemon.ctl("dataset", "append", "a", large, code=2).err
    assert daemon.ctl("dataset", "import", small, "--name", "a").code == 0, "what is there may be imported again"
    daemon.ctl("dataset", "drop", "b")
    daemon.ctl("dataset", "import", small, "--name", "c")


def test_two_clients_with_the_same_bars_share_the_work(daemon, client, market_file):
    path, digest = market_file
    procs = [fh.spawn_ctl("dataset", "import", path, "--name", "m", url=daemon.url) for _ in range(2)]
    for proc in procs:
        code, text = finish(proc)
        assert code == 0, text
    assert registered(client) == {"m": (BARS, digest)}


def test_progress_from_the_first_second(daemon, proxy, market_file):
    """Asked for, it is said at once and every second, also into a file; unasked, a log gets nothing of what is soon over."""
    path, _ = market_file
    p = proxy(daemon, ("hold", CHUNK + 100_000), (None, 0))
    proc = fh.spawn_ctl("dataset", "import", path, "--name", "m", "--progress", url=p.url)
    first = proc.stderr.readline()
    assert "0 %" in first and "reading" in first
    assert p.reached.wait(4 * fh.DEADLINE_S)
    p.drop()
    code, text = finish(proc)
    assert code == 0, text
    assert "fhctl" not in daemon.ctl("dataset", "import", path, "--name", "m", "-q").err
