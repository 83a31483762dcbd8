#!/usr/bin/env python3
"""Ten million one-minute bars from CSV and DBN, beside pandas.read_csv and databento-dbn in the same run.

import.py [--bars N] [--folder DIR] [--daemon]: makes the files when they are missing, runs each reader in a process of its own, in turns,
and prints seconds, seconds of processor and peak memory. --daemon also runs the whole `fhctl dataset import` into a daemon of its own, features
included. Exit status 1 when a promise does not hold: CSV 3 times as fast as pandas and under 12 s, DBN at least as fast as databento-dbn and
under 3 s (both scaled to the number of bars, for the reader and for the whole), memory below 3 times the bars. Seconds are the least of --times runs, on
a machine that does nothing else (two of its cores are used); seconds of processor stand beside them. What memory counts: a bar is 48 bytes (time and five numbers), so
the reader by itself stays under 3 x 48; with its 40 features and sigma it is 212, and client and daemon together, at their peaks, stay under
3 x 212: resident features alone are more than 3 x 48, whatever one does."""
import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
sys.path.insert(0, str(ROOT / "tests" / "data"))
BAR_BYTES = 48
FEATURE_BYTES = 164  # 40 features and sigma, F32

PANDAS = """
import sys, pandas as pd
print(len(pd.read_csv(sys.argv[1], parse_dates=[0])))
"""
DATABENTO = """
import sys, databento_dbn as d
decoder, n = d.DBNDecoder(compression=d.Compression.NONE), 0
with open(sys.argv[1], "rb") as f:
    while block := f.read(1 << 22):
        decoder.write(block)
        n += sum(isinstance(r, d.OHLCVMsg) for r in decoder.decode())
print(n)
"""


def make(folder, n):
    csv, dbn = folder / f"bars-{n}.csv", folder / f"bars-{n}.dbn"
    if csv.exists() and dbn.exists():
        return
    import numpy as np
    import dbn_files as df

    r = np.random.default_rng(1)
    ts = df.START + np.arange(n, dtype="i8") * 60_000_000_000
    c = np.abs(20000 + np.cumsum(r.integers(-2, 3, n))) + 100
    o = np.concatenate([c[:1], c[:-1]])
    h, l = np.maximum(o, c) + r.integers(0, 3, n), np.minimum(o, c) - r.integers(0, 3, n)
    v = r.integers(0, 2000, n)
    record = np.zeros(n, np.dtype([("head", "<u4"), ("id", "<u4"), ("ts", "<i8"), ("price", "<i8", 4), ("volume", "<u8")]))
    record["head"], record["id"], record["ts"], record["volume"] = 14 | 0x21 << 8 | 1 << 16, 77, ts, v
    for k, x in enumerate((o, h, l, c)):
        record["price"][:, k] = x * 250_000_000
    dbn.write_bytes(df.metadata(2, 6, [("FHZ4", [(20240101, 20550101, 77)])]) + record.tobytes())
    with open(csv, "w") as f:
        f.write("ts,open,high,low,close,volume\n")
        for i in range(0, n, 500_000):
            s = slice(i, min(n, i + 500_000))
            when = np.datetime_as_string((ts[s] // 10**9).astype("M8[s]"))
            f.writelines(f"{t.replace('T', ' ')},{a / 4:.2f},{b / 4:.2f},{d / 4:.2f},{e / 4:.2f},{w}\n"
                         for t, a, b, d, e, w in zip(when, o[s], h[s], l[s], c[s], v[s]))


def run(argv, want):
    """(seconds, seconds of processor, peak bytes) of one process whose last line is a count."""
    begin = time.perf_counter()
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    out = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.stdout.close()
    seconds = time.perf_counter() - begin
    if status or int(out.split()[-1]) < want:
        raise SystemExit(f"{argv}: status {status}, {out!r}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def best(argv, want, times):
    runs = [run(argv, want) for _ in range(times)]
    return tuple(min(r[i] for r in runs) for i in range(2)) + (max(r[2] for r in runs),)


def with_daemon(folder, path, name, n):
    """fhctl dataset import into a daemon: seconds, those of processors of both, peak bytes of the client and of the daemon."""
    with tempfile.TemporaryDirectory(dir="/tmp") as state:
        url, notify = f"ipc://{state}/s", f"{state}/n"
        import socket
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ready.bind(notify)
        ready.settimeout(60)
        env = {**os.environ, "NOTIFY_SOCKET": notify, "FHD_URL": url}
        daemon = subprocess.Popen([BUILD / "fhd", "--state-dir", f"{state}/state", "--listen", url, "--device", "host"], env=env,
                                  stderr=subprocess.DEVNULL)
        try:
            while b"READY=1" not in ready.recv(4096):
                pass
            ready.close()  # nobody reads on, and a full queue would hold the daemon
            begin = time.perf_counter()
            client = subprocess.Popen([BUILD / "fhctl", "-q", "dataset", "import", path, "--name", name], env=env, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(client.pid, 0)
            seconds = time.perf_counter() - begin
            if status:
                raise SystemExit(f"import of {path} failed")
            peak = int(next(s for s in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if s.startswith("VmHWM")).split()[1]) * 1024
            ticks = Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
            processor = usage.ru_utime + usage.ru_stime + (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
            return seconds, processor, usage.ru_maxrss * 1024, peak
        finally:
            daemon.terminate()
            daemon.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "fhd-bench-import")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--daemon", action="store_true")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    if a.make:
        make(a.folder, a.bars)
        return 0
    # in a process of its own: the memory of this one would count as that of its children
    subprocess.run([sys.executable, __file__, "--make", "--bars", str(a.bars), "--folder", a.folder], check=True)
    csv, dbn = a.folder / f"bars-{a.bars}.csv", a.folder / f"bars-{a.bars}.dbn"
    tool = BUILD / "tests" / "data" / "bars"
    rows = {}
    for name, argv in (("csv: fhctl's reader", [tool, csv, "--count"]), ("csv: pandas.read_csv", [sys.executable, "-c", PANDAS, csv]),
                       ("dbn: fhctl's reader", [tool, dbn, "--count"]), ("dbn: databento-dbn", [sys.executable, "-c", DATABENTO, dbn])):
        rows[name] = best(argv, a.bars, a.times)
        s, user, peak = rows[name]
        print(f"{name:24} {s:7.2f} s  {user:7.2f} s processor  {peak / 2**20:7.0f} MiB  {peak / (a.bars * BAR_BYTES):5.2f} x the bars", flush=True)
    wholes = []
    if a.daemon:
        for kind, path in (("csv", csv), ("dbn", dbn)):
            runs = [with_daemon(a.folder, path, kind, a.bars) for _ in range(a.times)]
            s, processor, client, daemon = (*(min(r[i] for r in runs) for i in range(2)), *(max(r[i] for r in runs) for i in (2, 3)))
            rows[f"{kind}: whole import"] = (s, processor, 0)
            whole = a.bars * (BAR_BYTES + FEATURE_BYTES)
            wholes.append((client + daemon) / whole)
            print(f"{kind}: whole import         {s:7.2f} s  {processor:7.2f} s processor  client {client / 2**20:.0f} MiB, daemon {daemon / 2**20:.0f} MiB = "
                  f"{(client + daemon) / whole:.2f} x the bars and features", flush=True)
    times = {}
    for kind, other, least in (("csv", "pandas.read_csv", 3), ("dbn", "databento-dbn", 1)):
        theirs, ours = rows[f"{kind}: {other}"], rows[f"{kind}: fhctl's reader"]
        times[other] = theirs[0] / ours[0] / least
        print(f"{kind}: {theirs[0] / ours[0]:.1f} x {other} in seconds, {theirs[1] / ours[1]:.1f} x in processor (promised {least})")
    memory = max(rows[k][2] for k in rows if "fhctl" in k) / (a.bars * BAR_BYTES)
    print(f"{memory:.2f} x the bars in memory (promised 3)")
    limit = {k: 12 if k.startswith("csv") else 3 for k in rows if "fhctl" in k or "whole" in k}
    slow = [k for k, s in limit.items() if rows[k][0] > s * a.bars / 10_000_000]
    for k in slow:
        print(f"{k}: {rows[k][0]:.2f} s, promised {limit[k] * a.bars / 10_000_000:g}")
    return 0 if min(times.values()) >= 1 and memory < 3 and all(w < 3 for w in wholes) and not slow else 1


if __name__ == "__main__":
    sys.exit(main())
