"""What the end-to-end tests need: a private daemon, fhctl, and a client of our own that shares no code with fhctl.

Nothing here sleeps until it works: the daemon says READY on a notify socket, samples are waited for by long poll, and
every wait has a deadline that fails the test. What must be fast is held against a Stopwatch, which leaves out what the
processes waited for a core. Folders are short because a socket path holds 107 characters.
"""
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pynng

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FHD_BUILD", ROOT / "build")).resolve()
SLOWDOWN = float(os.environ.get("FHD_SLOWDOWN", "1"))
CASES = ROOT / "tests" / "cases"
DEADLINE_S = 30 * SLOWDOWN

sys.path.insert(0, str(BUILD / "py"))
import fh_pb2 as pb  # noqa: E402  generated from proto/fh.proto

MAGIC = 0x46484431
PROTOCOL = 1

# A job that takes a fraction of a second a hundred steps, and uses every part of the learner.
SMALL = {
    "net": {"trunk1": 16, "trunk2": 16, "value_hidden": 8, "advantage_hidden": 8, "atoms": 11},
    "learn": {"batch": 16, "warmup": 64},
    "replay": {"capacity": 1024},
    "collect": {"envs": 4, "eps_steps": 100},
    "run": {"epochs": 1, "steps_per_epoch": 200, "validate_every": 100, "report_every": 20, "checkpoint_every": 0, "seed": 7, "device": "host"},
}
ENDLESS = {"run": {"epochs": 1000, "steps_per_epoch": 1000000, "validate_every": 0, "report_every": 20}}


class CallError(Exception):
    def __init__(self, error):
        super().__init__(f"{pb.ErrorCode.Name(error.code)} {error.field}: {error.text}")
        self.code, self.field, self.text = error.code, error.field, error.text


def merge(*parts):
    out = {}
    for part in parts:
        for key, value in (part or {}).items():
            out[key] = merge(out.get(key), value) if isinstance(value, dict) else value
    return out


ENUMS = {"loss": "Loss", "precision": "Precision", "device": "Device", "from": "InitFrom", "replay": "Carry",
         "lr_schedule": "Schedule", "validate_policy": "Policy", "on_interrupt": "OnInterrupt"}


def spec_message(tree):
    """{'learn': {'lr': 1e-3}} as a JobSpec."""
    spec = pb.JobSpec()
    for section, keys in tree.items():
        if not isinstance(keys, dict):
            setattr(spec, section, keys)
            continue
        part = getattr(spec, section)
        for key, value in keys.items():
            if isinstance(value, str) and key in ENUMS:
                name = value.upper() if value != "auto" else f"{ENUMS[key].upper()}_AUTO"
                value = getattr(pb, name)
            setattr(part, key, value)
    return spec


class Client:
    """One REQ socket; every call has a deadline."""

    def __init__(self, url, timeout_s=None):
        self.url = url
        self.timeout_ms = int(1000 * (timeout_s or 20 * SLOWDOWN))
        self.sock = pynng.Req0(recv_timeout=self.timeout_ms, send_timeout=self.timeout_ms, resend_time=-1)
        self.sock.dial(url, block=True)

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def exchange(self, data):
        self.sock.send(data)
        return self.sock.recv()

    def request(self, call, message, request_id=None, **extra):
        req = pb.Request(magic=MAGIC, protocol=PROTOCOL, request_id=request_id or uuid.uuid4().hex, client="e2e", **extra)
        getattr(req, call).CopyFrom(message)
        return req

    def call(self, call, message=None, request_id=None, **extra):
        req = self.request(call, message if message is not None else empty(call), request_id, **extra)
        reply = pb.Reply.FromString(self.exchange(req.SerializeToString()))
        assert reply.magic == MAGIC and reply.protocol == PROTOCOL
        assert reply.request_id == req.request_id
        if reply.HasField("error"):
            raise CallError(reply.error)
        return getattr(reply, reply.WhichOneof("result"))

    # ---- the calls that most tests use
    def synth(self, name, bars=2000, seed=1, kind="momentum", **more):
        return self.call("synth_dataset", pb.SynthDatasetRequest(name=name, kind=kind, bars=bars, seed=seed, **more)).dataset

    def start(self, tree, name=None, request_id=None, labels=()):
        req = pb.StartJobRequest(spec=spec_message(tree))
        if name:
            req.name = name
        for key, value in labels:
            req.label.add(key=key, value=value)
        return self.call("start_job", req, request_id).job

    def show(self, job):
        return self.call("show_job", pb.ShowJobRequest(job=str(job))).job

    def stop(self, job, discard=False):
        return self.call("stop_job", pb.StopJobRequest(job=str(job), discard=discard)).job

    def pause(self, job):
        return self.call("pause_job", pb.PauseJobRequest(job=str(job))).job

    def resume(self, job):
        return self.call("resume_job", pb.ResumeJobRequest(job=str(job))).job

    def metrics(self, job, since=0, wait_ms=0, limit=1000):
        return self.call("metrics", pb.MetricsRequest(job=str(job), since=since, wait_ms=wait_ms, limit=limit))

    def samples(self, job):
        """The whole series as it is now."""
        out, since = [], 0
        while True:
            page = self.metrics(job, since)
            out += page.sample
            if not page.more:
                return out
            since = out[-1].seq

    def wait_sample(self, job, predicate, since=0, deadline_s=DEADLINE_S):
        """Long-polls until a sample fulfils the predicate; returns it."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            page = self.metrics(job, since, wait_ms=1000)
            for sample in page.sample:
                if predicate(sample):
                    return sample
                since = sample.seq
        raise AssertionError(f"job {job}: no such sample within {deadline_s} s; it is {self.show(job)}")

    def wait_state(self, job, *states, deadline_s=DEADLINE_S):
        """Returns the job once its state is one of those named."""
        wanted = {getattr(pb, s) for s in states}
        end = time.monotonic() + deadline_s
        since = 0
        while time.monotonic() < end:
            shown = self.show(job)
            if shown.state in wanted:
                return shown
            page = self.metrics(job, max(since, shown.last_seq), wait_ms=1000)
            for sample in page.sample:
                since = max(since, sample.seq)
        raise AssertionError(f"job {job} did not become {states} within {deadline_s} s: {self.show(job)}")

    def wait_step(self, job, step, deadline_s=DEADLINE_S):
        return self.wait_sample(job, lambda s: s.kind == pb.REPORT and s.step >= step, deadline_s=deadline_s)

    def operation(self, operation, deadline_s=DEADLINE_S):
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            reply = self.call("operation", pb.OperationRequest(operation=operation, wait_ms=1000))
            if reply.done:
                if reply.HasField("error") and reply.error.code:
                    raise CallError(reply.error)
                return reply
        raise AssertionError(f"operation {operation} is not done within {deadline_s} s")

    def checkpoint_file(self, checkpoint, path):
        """Downloads a checkpoint piece by piece."""
        data = bytearray()
        while True:
            part = self.call("get_checkpoint", pb.GetCheckpointRequest(checkpoint=checkpoint, offset=len(data), limit=1 << 20))
            data += part.data
            if len(data) >= part.checkpoint.bytes:
                break
            assert part.data, "the daemon sent an empty piece before the end"
        Path(path).write_bytes(data)
        return path


class Stopwatch:
    """Seconds less those that the threads of these processes, this one among them, were ready and had no core: on a busy machine what
    the programs took, on an idle one simply the time. Where the kernel does not count that, the time."""

    def __init__(self, *pids):
        self.pids = (os.getpid(), *pids)
        self.waited_before, self.begin_ns = self._waited_ns(), time.time_ns()

    def _waited_ns(self):
        total = 0
        for pid in self.pids:
            for counters in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    total += int(counters.read_text().split()[1])
                except (OSError, IndexError):
                    pass  # a thread that has ended meanwhile
        return total

    def seconds(self, until_ns=None):
        """Up to now, or to a time stamp of the daemon's."""
        return ((until_ns or time.time_ns()) - self.begin_ns - max(0, self._waited_ns() - self.waited_before)) / 1e9


def within(limit_s, attempt, tries=5):
    """Tries until one try takes less than limit_s, and returns what it returned. A busy machine slows some tries; what hangs hangs in each."""
    took = []
    for _ in range(tries):
        begin = time.monotonic()
        result = attempt()
        took.append(time.monotonic() - begin)
        if took[-1] < limit_s:
            return result
    raise AssertionError(f"never within {limit_s} s: {took}")


@contextlib.contextmanager
def loopback_port():
    """A port of 127.0.0.1 that a daemon may listen on: held without listening, so that nobody else is given it meanwhile."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield s.getsockname()[1]


def empty(call):
    field = pb.Request.DESCRIPTOR.fields_by_name[call]
    return getattr(pb, field.message_type.name)()


def die_with_parent():
    """In a child before exec: a test run that is killed leaves no daemon behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Daemon:
    """One fhd in a folder of its own. start() returns when the daemon has said READY=1."""

    def __init__(self, root, program="fhd"):
        self.root = Path(root)
        self.state = self.root / "state"
        self.program = BUILD / program
        self.url = f"ipc://{self.root}/fhd.sock"
        self.log_path = self.root / "fhd.log"
        self.proc = None

    def start(self, *args, env=None, ready=True, url=True):
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = self.root / "notify"
        path.unlink(missing_ok=True)
        notify.bind(str(path))
        notify.settimeout(0.2)
        argv = [str(self.program), "--state-dir", str(self.state), *(["--listen", self.url] if url else []), "--device", "host", *args]
        environ = {**clean_env(), "NOTIFY_SOCKET": str(path), "HOME": str(self.root), "XDG_RUNTIME_DIR": str(self.root), **(env or {})}
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, cwd=self.root,
                                         preexec_fn=die_with_parent)
        if ready:
            self._wait_ready(notify)
        notify.close()
        return self

    def _wait_ready(self, notify):
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            try:
                if b"READY=1" in notify.recv(4096).split(b"\n"):
                    return
            except TimeoutError:
                if self.proc.poll() is not None:
                    raise AssertionError(f"fhd ended with {self.proc.returncode} before it was ready:\n{self.log()}") from None
        raise AssertionError(f"fhd is not ready after {DEADLINE_S} s:\n{self.log()}")

    def wait_listening(self):
        """For a daemon that cannot say READY: until its socket takes a connection."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end and self.proc.poll() is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                try:
                    return s.connect(self.url.removeprefix("ipc://"))
                except (FileNotFoundError, ConnectionRefusedError):
                    time.sleep(0.01)  # nothing tells of a socket's listen()
        raise AssertionError(f"fhd does not listen within {DEADLINE_S} s:\n{self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def client(self, **kw):
        return Client(self.url, **kw)

    def mortal_client(self):
        """A client whose call ends with an NNGException as soon as the daemon has died, and not at its deadline."""
        c = self.client()

        def watch(process):
            select.select([process], [], [])
            os.close(process)
            c.close()

        threading.Thread(target=watch, args=(os.pidfd_open(self.proc.pid),), daemon=True).start()
        return c

    def proc_folder(self):
        return Path("/proc") / str(self.proc.pid)

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def wait(self, deadline_s=DEADLINE_S):
        return self.proc.wait(deadline_s)

    def stop(self, deadline_s=DEADLINE_S):
        """SIGTERM; the exit code must be 0."""
        self.proc.terminate()
        code = self.wait(deadline_s)
        assert code == 0, f"fhd ended with {code} after SIGTERM:\n{self.log()[-4000:]}"

    def end(self):
        """For fixtures: whatever happened, the process is gone afterwards and had not crashed by itself."""
        if self.proc is None:
            return
        crashed = self.proc.poll() is not None and self.proc.returncode not in (0, -signal.SIGKILL, 99)
        if self.alive():
            self.proc.terminate()
            try:
                code = self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"fhd does not end after SIGTERM:\n{self.log()[-4000:]}") from None
            crashed = code != 0
        log = self.log()
        assert not crashed, f"fhd ended with {self.proc.returncode}:\n{log[-6000:]}"
        for mark in ("ERROR: AddressSanitizer", "runtime error:", "WARNING: ThreadSanitizer", "ERROR: LeakSanitizer"):
            assert mark not in log, f"the sanitizer spoke:\n{log[-8000:]}"

    def ctl(self, *args, **kw):
        return ctl(*args, url=self.url, **kw)


def clean_env():
    """The caller's environment without what would change how fhd and fhctl behave."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("FHD_", "XDG_")) and k not in ("NOTIFY_SOCKET",)}
    return keep


class Result:
    def __init__(self, argv, code, out, err):
        self.argv, self.code, self.out, self.err = argv, code, out, err

    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"{' '.join(self.argv)}\n-> exit {self.code}\n{self.out}{self.err}"


def spawn_ctl(*args, url=None, env=None, **kw):
    argv = [str(BUILD / "fhctl"), *map(str, args)]
    environ = {**clean_env(), **({"FHD_URL": url} if url else {}), **(env or {})}
    return subprocess.Popen(argv, stdin=kw.pop("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
                            preexec_fn=die_with_parent, **kw)


def ctl(*args, url=None, code=0, deadline_s=None, input=None, **kw):
    """Runs fhctl, checks its exit code (None: any), returns Result."""
    proc = spawn_ctl(*args, url=url, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL, **kw)
    try:
        out, err = proc.communicate(input, timeout=deadline_s or DEADLINE_S)
    except subprocess.TimeoutExpired:
        proc.kill()
        out, err = proc.communicate()
        raise AssertionError(f"fhctl {' '.join(map(str, args))} did not end within {deadline_s or DEADLINE_S} s\n{out}{err}") from None
    result = Result(["fhctl", *map(str, args)], proc.returncode, out, err)
    assert "Sanitizer" not in err, result
    if code is not None:
        allowed = code if isinstance(code, tuple) else (code,)
        assert result.code in allowed, result
    return result


def set_args(tree, prefix=""):
    """A specification tree as --set options."""
    out = []
    for key, value in tree.items():
        if isinstance(value, dict):
            out += set_args(value, f"{prefix}{key}.")
        else:
            out += ["--set", f"{prefix}{key}={value}"]
    return out


def yaml_text(tree, indent=""):
    out = ""
    for key, value in tree.items():
        if isinstance(value, dict):
            out += f"{indent}{key}:\n{yaml_text(value, indent + '  ')}"
        else:
            out += f"{indent}{key}: {value}\n"
    return out


def short_folder():
    return Path(tempfile.mkdtemp(prefix="fh", dir="/tmp"))


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
