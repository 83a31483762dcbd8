"""Small DBN files of our own, written byte by byte from the format's description, one function a field.

Used by test_dbn.py: `FILES` maps a file name to (bytes, what the reader must say).
"""
import struct

UNDEFINED = 2**63 - 1
SCHEMA = {"ohlcv-1s": (5, 0x20), "ohlcv-1m": (6, 0x21), "ohlcv-1h": (7, 0x22), "ohlcv-1d": (8, 0x23)}
STEP = {"ohlcv-1s": 1, "ohlcv-1m": 60, "ohlcv-1h": 3600, "ohlcv-1d": 86400}
START = 1_704_186_000_000_000_000  # 2024-01-02 09:00 UTC
SYMBOL_BYTES = {1: 22, 2: 71, 3: 71}


def text(s, n):
    return s.encode().ljust(n, b"\0")


def metadata(version=1, schema=6, mappings=(), symbols=None, records=None, ts_out=0, stype_in=1):
    n = SYMBOL_BYTES[version]
    body = text("TEST.SYN", 16) + struct.pack("<HQQQ", schema, START, START + 86400 * 10**9, 0)
    if version == 1:
        body += struct.pack("<Q", 2**64 - 1 if records is None else records)
    body += struct.pack("<BBB", stype_in, 0, ts_out)
    if version > 1:
        body += struct.pack("<H", n)
    body = body.ljust(100, b"\0") + struct.pack("<I", 0)
    names = [m[0] for m in mappings] if symbols is None else symbols
    body += struct.pack("<I", len(names)) + b"".join(text(s, n) for s in names)
    body += struct.pack("<II", 0, 0) + struct.pack("<I", len(mappings))
    for symbol, intervals in mappings:
        body += text(symbol, n) + struct.pack("<I", len(intervals))
        for first, last, ident in intervals:
            body += struct.pack("<II", first, last) + text(str(ident), n)
    if version == 3:
        body += bytes(-len(body) % 8)
    return b"DBN" + bytes([version]) + struct.pack("<I", len(body)) + body


def bar(ts, o, h, l, c, v, ident=77, rtype=0x21, sent=None):
    units = [x if isinstance(x, int) else round(x * 10**9) for x in (o, h, l, c)]
    rec = struct.pack("<BBHIQqqqqQ", 14 if sent is None else 16, rtype, 1, ident, ts, *units, v)
    return rec + (b"" if sent is None else struct.pack("<Q", sent))


def walk(n, schema="ohlcv-1m", ident=77, start=5000.0, first=0, **more):
    """Bars whose closes move by quarters in a fixed pattern."""
    out, c = [], start
    for i in range(n):
        o, c = c, c + 0.25 * ((i * 7 + ident) % 5 - 2)
        out.append(bar(START + (first + i) * STEP[schema] * 10**9, o, max(o, c) + 0.25, min(o, c) - 0.5, c, 10 + i, ident,
                       SCHEMA[schema][1], **more))
    return out


def one(version, schema, n=40):
    return metadata(version, SCHEMA[schema][0], [("FHZ4", [(20240101, 20250101, 77)])]) + b"".join(walk(n, schema))


def interleaved(version=1):
    a, b = walk(20, ident=118, start=5500.0), walk(20, ident=4358, start=20000.0)
    maps = [("ESX4", [(20240101, 20250101, 118)]), ("NQX4", [(20240101, 20250101, 4358)])]
    return metadata(version, 6, maps) + b"".join(x for pair in zip(a, b) for x in pair)


def continuous(version=2):
    """One continuous symbol that is instrument 10 on the first day and 11 from the next on."""
    maps = [("FH.c.0", [(20240102, 20240103, 10), (20240103, 20240110, 11)])]
    return metadata(version, 6, maps, stype_in=3) + b"".join(walk(30, ident=10) + walk(30, ident=11, start=5040.0, first=24 * 60))


def renumbered(version=3):
    """One instrument by its own name that has another number every day."""
    maps = [("FHZ4", [(20240102, 20240103, 10), (20240103, 20240110, 11)])]
    return metadata(version, 6, maps) + b"".join(walk(30, ident=10) + walk(30, ident=11, first=24 * 60))


def edge_values():
    """Prices at and below zero, below 1e-6, above 2**53 units; volume beyond 2**31 and 2**53."""
    rows = [(0, 1, -1, 0, 2**40), (-37_630_000_000, -37_000_000_000, -40_320_000_000, -37_630_000_000, 2**31 + 1),
            (285, 291, 283, 290, 3), (9_007_199_254_740_993_001, 9_007_199_254_740_995_003, 9_007_199_254_740_993_001,
                                      9_007_199_254_740_994_999, 2**53 + 1)]
    return metadata(2, 6, [("FHZ4", [(20240101, 20250101, 77)])]) + b"".join(
        bar(START + i * 60 * 10**9, *r) for i, r in enumerate(rows))


GOOD = {f"v{v}.{s}": one(v, s) for v in (1, 2, 3) for s in SCHEMA}
GOOD["edge"] = edge_values()
GOOD["counted"] = metadata(1, 6, [("FHZ4", [(20240101, 20250101, 77)])], records=12) + b"".join(walk(12))
GOOD["ts_out"] = metadata(3, 6, [("FHZ4", [(20240101, 20250101, 77)])], ts_out=1) + b"".join(walk(25, sent=START))
GOOD["nameless"] = metadata(3, 6) + b"".join(walk(25))
GOOD["continuous"] = continuous()
GOOD["renumbered"] = renumbered()
