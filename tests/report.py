#!/usr/bin/env python3
"""What of a failed step's output says what failed, in a few lines: tests/report.py [--lines N] [LOG]; standard input without LOG.

A log of a test run, a compiler, a linter, a sanitizer or libFuzzer is mostly noise: progress, stacks inside libraries,
durations. Kept are, the important first until the lines are used up and then in the order of the log: what was said to be
wrong, where in our code, and what stands beside. tests/run.py prints this of every step that failed; what it was made from
stays in the log.
"""
import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES = 25  # of a report
WIDTH = 220  # of one of its lines; what was given to be copied whole is longer
FRAMES = 8  # of ours, of one stack
FIRST, OTHERS = 14, 3  # lines of the first finding, and of each other one, before what is left is given out
WHOLE = "input: "  # begins such a line
UNFINISHED = "did not end: "
# With these the tools print what nobody here reads: colours, other options, other lines.
OTHERWISE = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "PYTEST_ADDOPTS", "COLUMNS", "LINES", "CMOCKA_MESSAGE_OUTPUT", "CMOCKA_XML_FILE", "GREP_OPTIONS")

NOISE = re.compile("|".join((
    r"\s*File \".*/site-packages/",
    r"#\d+\s+(INITED|NEW|REDUCE|RELOAD|READ|DONE|pulse)\b", r"\s*NEW_(FUNC|PC)\[", r"INFO: ", r"stat::", r"Running: ",
    r"###### .*ecommended dictionary", r"\".*\" # Uses: \d+$", r"0x[0-9a-f,]+[,x0-9a-f]*$", r"Done \d+ runs",
    r"[.sxFE]+( *\[ *\d+%\])?$", r"\d+\.\d+s (call|setup|teardown) ", r"=+ slowest \d+ durations", r"\(\d+ durations < ", r"=+ FAILURES =+$",
    r"\[ RUN      \]", r"\[       OK \]", r"\[  (PASSED|SKIPPED) ", r"\[=+\]", r"\[-+\]",
    r"make(\[\d+\])?: (Entering|Leaving|\*\*\* Waiting|Nothing)", r"\d+ (warnings?|errors?) generated", r"Suppressed \d+ warnings", r"Use -header-filter",
    r"\s*\|?\s*[\^~]+\s*$", r"=+$", r"\s*$", r"cc1\w*: all warnings being", r"HINT: |NOTE: |\s+#\d+ 0x[0-9a-f]+ in (__sanitizer|__interceptor)",
    r"\s*0x[0-9a-f]+: ([0-9a-f]{2}[ \[\]]*)+", r"(=>|  )0x[0-9a-f]+:", r"Shadow byte", r"  (Addressable|Partially addressable|Heap left|Freed heap|Stack \w+|Global \w+|"
    r"Poisoned by|Container|Array cookie|Intra object|ASan internal|Left alloca|Right alloca|Shadow gap)\b.*:")))

# What says that something is wrong, the plainest first; a line's rank is that of the first that it matches.
WRONG = [re.compile(x) for x in (
    rf"{WHOLE}|{UNFINISHED}|Timeout \(|fuzz: |ERROR: |WARNING: ThreadSanitizer|.*runtime error: |SUMMARY: |\s+Location is |FATAL|"
    r"_{3,} .* _{3,}$|.*(assertion|Assertion) .*failed|\*\*\* |.*(Killed|Segmentation fault|core dumped|encountered a fatal error)|deps: ",
    r"E   |.*\[  FAILED  \]|.*\[   LINE   \]|.*\[  ERROR   \]|\[ {2,}ERROR|.*: (fatal )?error: |.*: undefined reference|.*multiple definition|"
    r"[\w./-]+:\d+: (there is no|half-built|.* does not include)|make(\[\d+\])?: \*\*\*|.*Error: ",
    r".*: warning: |Traceback|[\w./-]+\.py:\d+: in |\s*File \"|FAILED |ERROR |>\s",
    r"\s+(Write|Read|Previous|Atomic|Mutex|As if|Thread|Cycle) .*|(READ|WRITE) of size|.*is located|(freed|allocated|previously allocated) by|Direct leak|Indirect leak",
)]
OUR_FRAME, CONTEXT, FOREIGN = len(WRONG), len(WRONG) + 1, len(WRONG) + 2
BEGINS = re.compile(r"_{3,} .* _{3,}$|(E   )?\s*(==\d+==\s*ERROR: |WARNING: ThreadSanitizer|\S+: runtime error: )|.*\[  ERROR   \]|FAILED |=+ short test")
DAEMON_LOG = re.compile(r"(E   )?ts=\S+ level=(info|debug)")
FRAME = re.compile(r"\s*#(\d+) (?:0x[0-9a-f]+ )?(?:in )?(.*)")
OURS = re.compile(r"(?:^|[ /])((?:client|daemon|gpu|proto|tests)/[\w/.-]+:\d+(?::\d+)?)")


def shorten(line):
    """A frame loses its address and the folder of the tree; a long line its end."""
    front = "E   " if line.startswith("E   ") else ""
    frame = FRAME.fullmatch(line[len(front):])
    if frame:
        where = OURS.search(line)
        name = frame[2].split(" ")[0] if where else frame[2]
        line = f"{front}    #{frame[1]} {name} {where[1] if where else ''}".rstrip()
    line = line.replace(f"{ROOT}/", "")
    return line if len(line) <= WIDTH or line.startswith(WHOLE) else line[:WIDTH] + "…"


def ranks(lines):
    """Of each line how much it says: 0 the most."""
    out, ours, fresh = [], 0, False
    for line in lines:
        if re.match(r"_{3,} .* _{3,}$", line):
            fresh = True  # of each test its name and the first that it said
        elif fresh and line.startswith("E   "):
            fresh = False
            out.append(0)
            continue
        bare = line[4:] if line.startswith("E   ") else line  # a program's report inside an assertion of ours
        frame = FRAME.fullmatch(bare)
        if frame:
            ours = 0 if frame[1] == "0" else ours
            mine = bool(OURS.search(bare))
            ours += mine
            out.append(OUR_FRAME if (mine and ours <= FRAMES) or frame[1] == "0" else FOREIGN)
            continue
        if DAEMON_LOG.match(line):
            out.append(CONTEXT)
            continue
        found = [n for n, r in enumerate(WRONG) if r.match(bare)] or [n for n, r in enumerate(WRONG) if r.match(line)]
        out.append(found[0] if found else CONTEXT)
    return out


def after_progress(lines):
    """Of libFuzzer's output what follows its last line of progress."""
    last = max((n for n, line in enumerate(lines) if re.match(r"#\d+\s+[A-Za-z]+\s+(cov|ft|exec/s|corp|.*rss):", line)), default=-1)
    return lines[last + 1:]


def name_unfinished(lines):
    """The last C test that began and never ended stays, by name."""
    begun = [n for n, line in enumerate(lines) if line.startswith("[ RUN      ]")]
    last = begun[-1] if begun else -1
    if begun and not any(re.match(r"\[( {7}OK|  FAILED|  SKIPPED)", line) for line in lines[last:]):
        lines[last] = f"{UNFINISHED}{lines[last].split(']')[1].strip()}"
    return lines


def plain_env():
    """The caller's variables without those."""
    return {name: value for name, value in os.environ.items() if name not in OTHERWISE}


def said_once(lines):
    """Without what pytest says again: an assertion's text in its explanation and, where the variable CI is set, in its summary, both whole."""
    out, said, summary = [], set(), False
    for line in lines:
        if re.match(r"_{3,} .* _{3,}$", line):
            said, summary = set(), False
        summary = summary or bool(re.match(r"=+ short test summary", line))
        bare = line[4:].strip() if line.startswith("E   ") else ""
        again = bare in said or (summary and not re.match(r"=|FAILED |ERROR |\d+ (failed|passed|skipped|error)", line))
        if bare:
            said.add(bare)
        if not again:
            out.append(line)
    return out


def blocks(lines):
    """One finding each, as lists of line numbers; the same finding twice is one."""
    out = [[]]
    for n, line in enumerate(lines):
        if BEGINS.match(line):
            out.append([])
        out[-1].append(n)
    seen, kept = set(), []
    for block in out:
        said = [lines[n] for n in block if "SUMMARY: " in lines[n]] or [lines[n] for n in block[:1]]
        what = re.sub(r"0x[0-9a-f]+|==\d+==|pid=\d+|\bin \d+\.\d+s", "", said[0]) if block else ""
        if block and what not in seen:
            seen.add(what)
            kept.append(block)
    return kept


def report(text, limit=LINES):
    """At most `limit` lines: much of the first finding, of each other one its name, and what else there is room for."""
    lines = name_unfinished([line.rstrip() for line in after_progress(text.splitlines())])
    lines = said_once([line for line in lines if not NOISE.match(line)])
    if not lines:
        return ["no output" if not text.strip() else f"nothing but progress, which ended with: {shorten(text.splitlines()[-1])}"]
    got = ranks(lines)
    if min(got) >= OUR_FRAME:  # nothing that is known: the end
        return [shorten(line) for line in lines[-limit:]]
    queues = [sorted((n for n in block if got[n] != FOREIGN), key=lambda n: (got[n], n)) for block in blocks(lines)]
    queues = [q for q in queues if q and got[q[0]] < OUR_FRAME]
    kept = []
    for turn, share in enumerate((FIRST, OTHERS, limit)):
        for q in queues[:1] if turn == 0 else queues:
            n = max(0, min(share, limit - len(kept)))
            kept += q[:n]
            del q[:n]
    return [shorten(lines[n]) for n in sorted(kept)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("log", nargs="?")
    parser.add_argument("--lines", type=int, default=LINES)
    args = parser.parse_args()
    print("\n".join(report(Path(args.log).read_text(errors="replace") if args.log else sys.stdin.read(), args.lines)))
