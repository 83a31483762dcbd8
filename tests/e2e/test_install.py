"""`make install` into an empty root: what lands there, that a C program builds against it, and that the unit is hardened."""
import re
import shutil
import subprocess

import pytest

import fh

EXPOSURE_MAX = 1.0  # of systemd-analyze security, ipc only


@pytest.fixture(scope="module")
def installed():
    root = fh.short_folder()
    done = subprocess.run(["make", "-s", "install", f"BUILD={fh.BUILD.relative_to(fh.ROOT)}", f"DESTDIR={root}", "PREFIX=/usr"], cwd=fh.ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    yield root
    fh.remove(root)


@pytest.mark.plain_only
def test_everything_is_there(installed):
    for path in ("usr/bin/fhd", "usr/bin/fhctl", "usr/lib/libfhclient.a", "usr/include/fh/client/fhclient.h", "usr/include/fh/proto/fh.pb-c.h",
                 "usr/share/fh/fh.proto", "usr/share/doc/fhd/README.md", "usr/lib/pkgconfig/fhclient.pc", "usr/lib/systemd/system/fhd.service", "usr/lib/sysusers.d/fhd.conf",
                 "usr/lib/tmpfiles.d/fhd.conf", "etc/fhd/fhd.yaml"):
        assert (installed / path).is_file(), path
    unit = (installed / "usr/lib/systemd/system/fhd.service").read_text()
    assert "ExecStart=/usr/bin/fhd " in unit and "/usr/local" not in unit
    assert subprocess.run([installed / "usr/bin/fhctl", "version"], capture_output=True).returncode in (0, 6)


@pytest.mark.plain_only
def test_a_c_program_builds_and_calls(installed, daemon, folder):
    source = folder / "ping.c"
    source.write_text('''
#include <stdio.h>
#include "client/fhclient.h"
int main(int argc, char **argv)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_client *c;
	struct fh_answer a;
	Fh__V1__PingRequest ping = FH__V1__PING_REQUEST__INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;

	req.call_case = FH__V1__REQUEST__CALL_PING;
	req.ping = &ping;
	if (argc != 2 || fh_client_new(argv[1], "example 1.0", &c, &st) || fh_client_call(c, &req, 5000, &a, &st)) {
		fprintf(stderr, "%s\\n", st.text);
		return 1;
	}
	puts(a.reply->ping->version);
	fh_answer_release(&a);
	fh_client_free(c);
	return 0;
}
''')
    pc = (installed / "usr/lib/pkgconfig/fhclient.pc").read_text()
    cflags = re.search(r"^Cflags: (.*)$", pc, re.M).group(1).replace("${includedir}", f"{installed}/usr/include").split()
    libs = re.search(r"^Libs: (.*)$", pc, re.M).group(1).replace("${libdir}", f"{installed}/usr/lib").split()
    done = subprocess.run(["gcc", "-o", folder / "ping", source, *cflags, *libs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([folder / "ping", daemon.url], capture_output=True, text=True, timeout=fh.DEADLINE_S)
    assert done.returncode == 0 and done.stdout.strip() == "0.1.0", done


@pytest.mark.plain_only
def test_default_configuration_is_the_programs_own(folder):
    done = subprocess.run([fh.BUILD / "fhd", "--print-config"], capture_output=True, text=True, timeout=fh.DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (fh.ROOT / "systemd" / "fhd.yaml").read_text()


@pytest.mark.plain_only
@pytest.mark.parametrize("option,start", [("--version", "fhd 0.1.0\n"), ("--help", "Usage: fhd "), ("-h", "Usage: fhd ")])
def test_daemon_tells_what_it_is(option, start):
    done = subprocess.run([fh.BUILD / "fhd", option], capture_output=True, text=True, timeout=fh.DEADLINE_S)
    assert done.returncode == 0 and done.stdout.startswith(start), done


@pytest.mark.plain_only
def test_unit_is_hardened():
    tool = shutil.which("systemd-analyze")
    assert tool, "systemd-analyze is missing (package systemd)"
    done = subprocess.run([tool, "security", "--offline=true", "--no-pager", fh.ROOT / "systemd" / "fhd.service"], capture_output=True, text=True)
    exposure = float(re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout).group(1))
    assert exposure <= EXPOSURE_MAX, done.stdout
