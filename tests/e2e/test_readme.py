"""The pages for people say what is true: the blocks of README.md run as they stand, and what it names exists."""
import contextlib
import os
import re
import signal
import subprocess

import pytest

import fh

README = (fh.ROOT / "README.md").read_text()
CLIENT = (fh.ROOT / "client" / "README.md").read_text() + (fh.ROOT / "client" / "DATA.md").read_text()
PAGES = ["README.md", "client/README.md", "client/DATA.md", "daemon/README.md", "gpu/README.md", "gpu/cuda/README.md", "gpu/MATH.md", "gpu/INSTRUMENTS.md"]
OTHERS = {"--now", "--python_out"}  # options of other programs


def section(title):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.M | re.S).group(1)


def blocks(text):
    """The indented blocks, one text each."""
    return ["\n".join(line[4:] for line in b.splitlines()) for b in re.findall(r"(?:^    \S.*\n)+", text, re.M)]


def commands():
    text = fh.ctl("help").out
    return re.findall(r"^  ((?:dataset |checkpoint )?[a-z]+)  +\S", text[:text.index("Options of every command")], re.M)


@pytest.mark.plain_only
def test_own_csv_in_five_commands(folder):
    daemon, five = blocks(section("Your own CSV in five commands"))
    assert len(five.splitlines()) == 5
    assert "&&" not in daemon + five and "export" not in five  # each line works when pasted alone
    os.symlink(fh.BUILD, folder / "build")
    bars = ["timestamp,open,high,low,close,volume"]
    for i in range(2000):
        a, b = 4000 + i % 97 * 0.25, 4000 + (i + 1) % 97 * 0.25
        bars.append(f"2024-01-{2 + i // 1440:02}T{i // 60 % 24:02}:{i % 60:02}:00Z,{a},{max(a, b) + 0.25},{min(a, b) - 0.25},{b},{100 + i % 7}")
    (folder / "bars.csv").write_text("\n".join(bars) + "\n")
    script = f"set -e\n{daemon}\ntrap 'kill $!' EXIT\n{five}\nbuild/fhctl shutdown\ntrap - EXIT\nwait\n"
    script = script.replace("/tmp/fhd", f"{folder}/fhd").replace("-f\n", "-f --set run.epochs=1 --set run.steps_per_epoch=50\n", 1)
    shell = subprocess.Popen(["bash", "-c", script], cwd=folder, env=fh.clean_env() | {"HOME": str(folder)}, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = shell.communicate(timeout=3 * fh.DEADLINE_S)
        assert shell.returncode == 0, (out, err)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()
    assert "Sharpe" in out and "BUY AND HOLD" in out
    assert (folder / "trace.csv").read_text().startswith("time,bar,") and "<svg" in (folder / "first.svg").read_text()


@pytest.mark.plain_only
def test_every_command_and_every_exit_code_is_named():
    table = section("Commands")
    for command in commands():
        group, name = command.split() if " " in command else ("", command)
        assert re.search(rf"^\| .*\b{group} ?(.*`, `)?{name}\b.* \|", table, re.M), command
    codes = re.search(r"Exit codes: (.*)", fh.ctl("help").out, re.S).group(1)
    for code in re.findall(r"\b\d+\b", codes):
        assert re.search(rf"^\| (\d+, )?{code}(, \d+)? \|", table, re.M), code


@pytest.mark.plain_only
def test_what_is_named_exists():
    known = subprocess.run([fh.BUILD / "fhd", "--help"], capture_output=True, text=True).stdout + fh.ctl("help").out
    known += "".join(fh.ctl(*c.split(), "--help").out for c in commands())
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z_-]*[a-z]", README + CLIENT)) - OTHERS:
        assert re.search(rf"{option}\b(?!-)", known), f"no program has {option}"
    keys = {key for key in re.findall(r"^\s*#?\s*([a-z_]+):", fh.ctl("spec").out, re.M)}
    for group, names in re.findall(r"`(data|env|learn|net|run|init|explore)\.([a-z_]+(?:`, `[a-z_]+|, [a-z_]+)*)", README):
        for name in re.split(r"\W+", names):
            assert name in keys, f"{group}.{name}"
    settings = subprocess.run([fh.BUILD / "fhd", "--print-config"], capture_output=True, text=True).stdout
    for setting in ("http", "token_file", "roles", "insecure_tcp", "log_level"):
        assert setting in README and re.search(rf"^#? ?{setting}:", settings, re.M), setting


@pytest.mark.plain_only
@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_of_pages_exist(page):
    path = fh.ROOT / page
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), target
    for target in re.findall(r"`((?:client|daemon|gpu|proto|systemd|tests)/[\w./-]*[\w/])`", text):
        assert any((base / target).exists() for base in (fh.ROOT, path.parent)), target


@pytest.mark.plain_only
@pytest.mark.parametrize("folder_name", ["client", "client/import"])
def test_every_source_file_is_in_its_page(folder_name):
    page = (fh.ROOT / folder_name.split("/")[0] / "README.md").read_text().replace("`import/", "`")
    named = [re.escape(name).replace(r"\*", ".*") for name in re.findall(r"`([\w*/]+\.(?:c|cc|h|inc))`", page)]
    for path in sorted((fh.ROOT / folder_name).glob("*.c")):
        assert any(re.fullmatch(n, path.name) for n in named), f"{path.name} is not in the page"
