"""What tests/run.py prints of a failed step contains what failed, whatever came before and after it."""
import subprocess
import sys

import pytest

import fh

sys.path.insert(0, str(fh.ROOT / "tests"))
import report  # noqa: E402

pytestmark = pytest.mark.plain_only

PROGRESS = "".join(f"#{n}\tREDUCE cov: 1{n} ft: 2 corp: 3/4b lim: 5 exec/s: 6 rss: 7Mb L: 8/9 MS: 1 EraseBytes-\n\tNEW_FUNC[1/1]: 0x55 in f {fh.ROOT}/gpu/f.c:1\n"
                   for n in range(500))
INSIDE = "".join(f"    #{n} 0x7f{n:02} in inside_{n} (/lib/libx.so.1+0x{n})\n" for n in range(2, 40))
OVERFLOW = f"""=================================================================
==99==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602 at pc 0x56 bp 0x7f sp 0x7e
WRITE of size 1 at 0x602 thread T0
    #0 0x56 in __interceptor_memcpy (build/fuzz/json+0x1)
    #1 0x57 in read_bars {fh.ROOT}/client/import/json.c:77:5
{INSIDE}SUMMARY: AddressSanitizer: heap-buffer-overflow {fh.ROOT}/client/import/json.c:77:5 in read_bars
Shadow bytes around the buggy address:
  0x0c047fff8000: fa fa 00 00 fa fa 00 00
=>0x0c047fff80c0: fa fa[fa]fa
  Heap left redzone:       fa
"""
RACE = f"""WARNING: ThreadSanitizer: data race (pid=7)
  Read of size 4 at 0x7b by main thread:
    #0 dial {fh.ROOT}/client/fhclient.c:254 (fhctl+0x16444)
{INSIDE}  Previous write of size 4 at 0x7b by thread T1:
    #0 dial_thread {fh.ROOT}/client/fhclient.c:194 (fhctl+0x150b7)
SUMMARY: ThreadSanitizer: data race client/fhclient.c:254 in dial
"""


def told(text, *words):
    lines = report.report(text)
    assert len(lines) <= report.LINES, lines
    for word in words:
        assert any(word in line for line in lines), (word, lines)
    return lines


def test_a_finding_of_the_fuzzer():
    lines = told(PROGRESS + OVERFLOW + "fuzz: exit 77 of json\ninput: " + "A" * 9000, "heap-buffer-overflow on", "#1 read_bars client/import/json.c:77:5",
                 "SUMMARY", "exit 77", "A" * 9000)
    assert not [x for x in lines if "REDUCE" in x or "NEW_FUNC" in x or "inside" in x or "0x0c04" in x]
    told(PROGRESS + "==99== ERROR: libFuzzer: timeout after 11 seconds\n" + INSIDE + "SUMMARY: libFuzzer: timeout\n", "timeout after 11")
    assert told(PROGRESS)[0].startswith("nothing but progress") and told("")[0] == "no output"


@pytest.mark.parametrize("ci", (False, True))  # pytest cuts nothing short where this variable is set
def test_a_failed_assertion_of_pytest(folder, ci):
    (folder / "test_x.py").write_text("import pytest\n@pytest.mark.parametrize('n', range(300))\ndef test_fine(n):\n    pass\n"
                                      "def test_bad():\n    text = '''" + RACE + "'''\n    assert 'Sanitizer' not in text, 'fhctl list\\n' + text\n"
                                      "def test_other():\n    assert 6 * 7 == 43\n")
    env = {name: value for name, value in report.plain_env().items() if name not in ("CI", "BUILD_NUMBER")} | ({"CI": "true"} if ci else {})
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "--durations=15", folder / "test_x.py"],
                          capture_output=True, text=True, timeout=fh.DEADLINE_S, env=env)
    lines = told(done.stdout, "test_bad", "fhctl list", "ThreadSanitizer: data race", "#0 dial client/fhclient.c:254", "Previous write",
                 "dial_thread client/fhclient.c:194", "test_other", "43")
    assert not [x for x in lines if "inside" in x or "slowest" in x]


def test_reports_that_repeat_leave_room_for_others():
    other = RACE.replace("dial", "hang_up").replace("254", "300")
    told("[ RUN      ] a\n" + RACE * 30 + other + "[  FAILED  ] a\n", "#0 dial client/fhclient.c:254", "fhclient.c:300 in hang_up", "FAILED")


def test_c_tests_compilers_and_linters():
    told("[ RUN      ] a\n[       OK ] a\n" * 200 + "[ RUN      ] b\n[  ERROR   ] --- 1 != 2\n[   LINE   ] --- tests/unit/client_csv.c:5: error: Failure!\n"
         "[  FAILED  ] b\n" + "[ RUN      ] c\n[       OK ] c\n" * 200, "1 != 2", "tests/unit/client_csv.c:5", "FAILED  ] b")
    told("[ RUN      ] a\n[       OK ] a\n" * 200 + "[ RUN      ] hangs\nsome words\n", "did not end: hangs")
    told("a note\n" * 100 + "daemon/main.c:5:1: error: unknown type name 'foo'\n" + "make: *** [Makefile:80: build/x.o] Error 1\n" + "later\n" * 100,
         "daemon/main.c:5:1", "Makefile:80")
    told("1 warning generated.\n" * 300 + "gpu/spec.c:9:2: warning: leak of memory [clang-analyzer-unix.Malloc]\n" + "        free(x);\n        ^\n"
         + "1 warning generated.\n" * 300, "gpu/spec.c:9:2")
    told("/usr/bin/ld: x.o: in function `f':\nx.c:5: undefined reference to `g'\n", "undefined reference to `g'")
    told("nothing that is known\n" * 300 + "the last word", "the last word")
