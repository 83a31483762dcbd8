#!/usr/bin/env python3
"""Layers point one way, references lead somewhere, nothing half-built is left: quiet and 0, or the findings and 1.

  proto/status <- gpu <- the rest of proto <- daemon, client

gpu/ knows no protobuf, no sockets, no database and no event loop; daemon/ and client/ do not know each other; of gpu/ the
others see its own folder's headers, never gpu/dqn, gpu/host or gpu/cuda.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (".c", ".h", ".inc", ".cu", ".cuh", ".cc")

# Of a folder: what it may include of ours.
OURS = {
    "proto/status": r"proto/status\.h",
    "gpu": r"(gpu/.*|proto/status\.h)",
    "proto": r"(proto/.*|gpu/[a-z_]+\.h)",
    "daemon": r"(daemon/.*|proto/.*|gpu/[a-z_]+\.h)",
    "client": r"(client/.*|proto/.*|gpu/[a-z_]+\.h)",
}
# And what it may not include of others.
FOREIGN = {
    "proto/status": r"(uv|sqlite3|nng/.*|sys/.*)(\.h)?",
    "gpu": r"(uv|sqlite3|libfyaml|protobuf-c/.*|nng/.*|sys/socket|netinet/.*|systemd/.*)(\.h)?",
    "proto": r"(uv|sqlite3|nng/.*|sys/socket|netinet/.*|systemd/.*)(\.h)?",
    "daemon": r"(cuda.*|cblas)(\.h)?",
    "client": r"(uv|sqlite3|systemd/.*|cuda.*|cblas)(\.h)?",
}
TOP = {"Makefile", "README.md", "client", "daemon", "gpu", "proto", "systemd", "tests"}
HALF_BUILT = re.compile(r"\b(TODO|FIXME|HACK|not implemented|placeholder|for now\b|future work)")
PATH = re.compile(r"(?<![\w/.$}<-])((?:proto|gpu|daemon|client|tests|systemd)/[\w/.-]*\w\.(?:c|h|cu|cuh|cc|inc|md|py|sh|proto|yaml))\b")
MADE = {"proto/fh.pb-c.h", "systemd/sd-daemon.h"}
BARE = re.compile(r"(?<![\w/.<\"*>-])([a-z][a-z_0-9]+\.(?:c|h|cu|cuh|md))\b")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)

findings = []


def found(path, line, text):
    findings.append(f"{path}:{line}: {text}")


def layer_of(path):
    return "proto/status" if path.startswith("proto/status.") else path.split("/")[0]


def check_includes(path, text):
    layer = layer_of(path)
    if layer not in OURS:
        return
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if m and m[1] == '"' and not re.fullmatch(OURS[layer], m[2]):
            found(path, n, f"{layer} does not include {m[2]}")
        if m and m[1] == "<" and re.fullmatch(FOREIGN[layer], m[2]):
            found(path, n, f"{layer} does not include <{m[2]}>")


def check_words(path, text, names):
    for n, line in enumerate(text.split("\n"), 1):
        if HALF_BUILT.search(line) and path != "tests/lint/layers.py":
            found(path, n, f"half-built: {line.strip()[:100]}")
        for ref in sorted(set(PATH.findall(line))):
            if ref not in MADE and not (ROOT / ref).exists():
                found(path, n, f"there is no {ref}")
    if path.endswith(SOURCE):
        for comment in COMMENT.finditer(text):
            for ref in BARE.findall(comment[0]):
                if ref not in names and "." + ref.split(".")[1] in SOURCE:
                    found(path, text[:comment.start()].count("\n") + 1, f"there is no {ref}")


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split("\n")[:-1] if listed.returncode == 0 else \
        [str(p.relative_to(ROOT)) for d in sorted(TOP) for p in [ROOT / d, *(ROOT / d).rglob("*")] if p.is_file()]
    files = [f for f in files if (ROOT / f).is_file()]
    if len(files) < 100:
        sys.exit("layers: this is not the whole tree")
    names = {Path(f).name for f in files} | {"cblas.h", "fh.pb-c.h"}
    for top in {f.split("/")[0] for f in files} - TOP:
        if not top.startswith("."):
            found(top, 1, "the top level is " + " ".join(sorted(TOP)))
    for f in files:
        if not f.endswith((*SOURCE, ".py", ".sh", ".md", ".proto", ".yaml", ".service", "Makefile")):
            continue
        text = (ROOT / f).read_text(errors="replace")
        check_includes(f, text)
        check_words(f, text, names)
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
