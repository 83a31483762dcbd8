"""How to call the tool that reads a market data file."""
import subprocess

import pytest

from tools import LIMIT_S, ROOT, TOOL


class Reading:
    """What came of one file: bars (ts, open, high, low, close, volume) or the refusal's text; notices."""

    def __init__(self, path, *options):
        got = subprocess.run([TOOL, str(path), *options], capture_output=True, text=True, timeout=LIMIT_S)
        assert got.returncode in (0, 1), f"{path} {options}: exit status {got.returncode}\n{got.stderr}"
        lines = got.stderr.splitlines()
        self.notes = [s.removeprefix("note: ") for s in lines if s.startswith("note: ")]
        self.refused = "\n".join(s for s in lines if not s.startswith("note: ")) if got.returncode else None
        self.bars = []
        for s in got.stdout.splitlines():
            ts, *rest = s.split(",")
            self.bars.append((int(ts), *map(float, rest)))


@pytest.fixture(scope="session")
def read():
    assert TOOL.exists(), f"{TOOL} is missing: make {TOOL.relative_to(ROOT) if TOOL.is_relative_to(ROOT) else TOOL}"
    return Reading
