"""A private daemon for benches and device checks, and a client that speaks its wire format with nothing but the standard library.

Used by tests/bench/daemon.py and tests/gpu/daemon.py, which run where no Python package can be installed. Waits have
deadlines; a folder under /tmp and the daemon are gone when the `with` block ends."""
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time

MAGIC, PROTOCOL = 0x46484431, 1
CALL_METRICS = 18


def commit(build):
    """Of the tree, or the one that a folder of built programs was made from (BUILD/commit), or unknown."""
    if os.path.exists(f"{build}/commit"):
        with open(f"{build}/commit") as f:
            return f.read().strip()
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def varint(n):
    out = b""
    while n > 127:
        out += bytes((n & 127 | 128,))
        n >>= 7
    return out + bytes((n,))


def number(field, n):
    return varint(field << 3) + varint(n)


def block(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


class Wire:
    """One REQ connection on an ipc socket: SP greeting, then messages of type, length, request id and a protobuf Request."""

    def __init__(self, path, timeout_s=20):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout_s)
        self.sock.connect(path)
        self.sock.sendall(b"\0SP\0\0\x30\0\0")
        self.take(8)
        self.asked = 0

    def take(self, n):
        data = b""
        while len(data) < n:
            part = self.sock.recv(n - len(data))
            if not part:
                raise ConnectionError("the daemon closed the connection")
            data += part
        return data

    def call(self, field, body):
        self.asked += 1
        request = number(1, MAGIC) + number(2, PROTOCOL) + block(field, body)
        message = struct.pack(">I", 1 << 31 | self.asked) + request
        self.sock.sendall(b"\1" + struct.pack(">Q", len(message)) + message)
        kind, size = struct.unpack(">BQ", self.take(9))
        reply = self.take(size)
        if kind != 1 or struct.unpack(">I", reply[:4])[0] & 0x7FFFFFFF != self.asked:
            raise ConnectionError("an answer to something else")
        return reply[4:]

    def metrics(self, job, since):
        return self.call(CALL_METRICS, block(1, str(job).encode()) + number(2, since))

    def close(self):
        self.sock.close()


class Daemon:
    def __init__(self, build, *args, env=None):
        self.build = os.path.abspath(build)
        self.folder = tempfile.mkdtemp(prefix="fhb", dir="/tmp")
        self.path = f"{self.folder}/s"
        self.env = {"FHD_LIBDIR": self.build, **os.environ, "FHD_URL": f"ipc://{self.path}", **(env or {})}
        self.args = args
        self.proc = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        try:
            if self.proc and self.proc.poll() is None:
                self.proc.terminate()
                self.proc.wait(60)
        finally:
            if self.proc and self.proc.poll() is None:
                self.proc.kill()
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, deadline_s=90):
        log = open(f"{self.folder}/log", "a")
        self.proc = subprocess.Popen([f"{self.build}/fhd", "--state-dir", f"{self.folder}/state", "--listen", f"ipc://{self.path}", *self.args],
                                     env=self.env, stderr=log, stdout=log)
        end = time.monotonic() + deadline_s
        while True:
            try:
                Wire(self.path).close()
                return
            except (ConnectionError, FileNotFoundError):
                if self.proc.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"fhd did not come up:\n{self.log()[-3000:]}")
                time.sleep(0.01)

    def log(self):
        with open(f"{self.folder}/log") as f:
            return f.read()

    def ctl(self, *args, code=0, deadline_s=120):
        p = subprocess.run([f"{self.build}/fhctl", *args], env=self.env, capture_output=True, text=True, timeout=deadline_s)
        if code is not None and p.returncode != code:
            raise SystemExit(f"fhctl {' '.join(args)}: exit {p.returncode}\n{p.stdout}{p.stderr}\n{self.log()[-3000:]}")
        return p

    def json(self, *args):
        out = json.loads(self.ctl(*args, "-o", "json").stdout)
        return out.get(args[0], out.get("job", out))

    def show(self, job):
        return self.json("show", job)

    def info(self):
        return self.json("info")

    def memory(self):
        """Bytes by owner as the daemon last saw them, not older than now."""
        end = time.monotonic() + 10
        asked = time.monotonic()
        while True:
            info = self.info()
            age = int(info.get("memory_age_ms", 0)) / 1000
            if time.monotonic() - age > asked:
                return {m["owner"]: int(m.get("bytes", 0)) for m in info["memory"]}
            if time.monotonic() > end:
                raise SystemExit("the daemon does not look at its device")
            time.sleep(0.05)

    def start_job(self, name, *sets):
        """Starts fhctl as a shell would and waits for it; returns the time (CLOCK_REALTIME, ns) before it was started."""
        argv = [f"{self.build}/fhctl", "start", "-q", "--name", name, *[w for s in sets for w in ("--set", s)]]
        before = time.time_ns()
        pid = os.posix_spawn(argv[0], argv, self.env)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise SystemExit(f"fhctl start {name}: exit {code}\n{self.log()[-3000:]}")
        return before

    def until(self, job, what, deadline_s=120):
        """Looks at the job until what(job) holds; returns it."""
        end = time.monotonic() + deadline_s
        while True:
            shown = self.show(job)
            if what(shown):
                return shown
            if shown["state"] in ("FAILED", "STOPPED") or time.monotonic() > end:
                raise SystemExit(f"job {job} is {shown['state']}: {shown.get('reason')}\n{self.log()[-3000:]}")
            time.sleep(0.002)

    def first_step(self, job):
        return int(self.until(job, lambda j: "first_step_ns" in j)["first_step_ns"])

    def stop_job(self, job):
        self.ctl("stop", "-q", "--discard", job)

    def place(self, job):
        """(step, ns): where the job stood, and when."""
        shown = self.show(job)
        return int(shown.get("step", 0)), int(shown.get("progress_ns", 0))

    def process(self):
        """Resident bytes, open files, threads and CPU seconds of the daemon."""
        with open(f"/proc/{self.proc.pid}/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        with open(f"/proc/{self.proc.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return {"resident": resident, "files": len(os.listdir(f"/proc/{self.proc.pid}/fd")), "threads": int(fields[17]),
                "cpu_s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}

    def cpu_beside_training(self):
        """Seconds of CPU that everything but the workers and their helpers has used."""
        used = 0
        for thread in os.listdir(f"/proc/{self.proc.pid}/task"):
            base = f"/proc/{self.proc.pid}/task/{thread}"
            with open(f"{base}/comm") as name, open(f"{base}/schedstat") as stat:
                used += 0 if name.read().startswith("fhd-worker") else int(stat.read().split()[0])
        return used / 1e9
