#!/usr/bin/env bash
# Installs what is missing, and only that: tests/deps.sh run | test
#
#   run   what building and `make demo` need (compiler, libraries, a bare Python environment in .venv)
#   test  the same, and what `make check` needs on top (linters, clang, cmocka, nngcat, Python packages, the demo's bars)
#
# Debian 12, Ubuntu 24.04 and their like, as root or with sudo. FHD_NO_INSTALL=1 only says what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-run}
venv=${VENV:-.venv}

run_packages="gcc libc6-dev make pkg-config protobuf-c-compiler protobuf-compiler libprotobuf-c-dev libnng-dev libuv1-dev
	libsqlite3-dev libfyaml-dev libzstd-dev zlib1g-dev libsystemd-dev libssl-dev libopenblas-dev python3 python3-venv ca-certificates"
test_packages="g++ clang libclang-rt-dev clang-tidy cppcheck libcmocka-dev nng-utils systemd git"

die() { printf 'deps: %s\n' "$*" >&2; exit 1; }

case $what in
run) packages=$run_packages ;;
test) packages="$run_packages $test_packages" ;;
*) die "usage: tests/deps.sh run|test" ;;
esac

# A package counts as there when dpkg has it installed, itself or (virtual names) through one that provides it.
missing_packages() {
	local p
	for p in $packages; do
		[ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s ' "$p"
	done
}

install_packages() {
	local missing as_root=()
	missing=$(missing_packages)
	[ -n "$missing" ] || return 0
	if [ "${FHD_NO_INSTALL:-}" = 1 ]; then
		die "missing packages: $missing"
	fi
	if [ "$(id -u)" != 0 ]; then
		if ! command -v sudo >/dev/null 2>&1; then
			die "these packages are missing and this user is neither root nor has sudo: $missing
deps: ask someone who may: apt-get install $missing"
		fi
		# Without a terminal there is nobody to type a password: fail at once instead of waiting for one.
		if [ ! -t 0 ] && ! sudo -n true 2>/dev/null; then
			die "sudo wants a password and there is no terminal to ask on; missing: $missing
deps: ask someone who may: apt-get install $missing"
		fi
		as_root=(sudo)
	fi
	printf 'deps: installing %s\n' "$missing" >&2
	local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
	local log
	log=$(mktemp)
	# shellcheck disable=SC2086
	if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends $missing; } >"$log" 2>&1 </dev/null; then
		tail -n 25 "$log" >&2
		rm -f "$log"
		die "apt-get could not install: $missing"
	fi
	rm -f "$log"
}

# The system's own python3 where it can make environments, else the first one in PATH that can.
find_python() {
	local p
	for p in /usr/bin/python3 python3; do
		if "$p" -c 'import venv, ensurepip' 2>/dev/null; then
			printf '%s' "$p"
			return 0
		fi
	done
	die "no python3 with the venv module (package python3-venv)"
}

make_venv() {
	[ -x "$venv/bin/pip" ] && "$venv/bin/python" -c pass 2>/dev/null && return 0
	rm -rf "$venv"
	"$(find_python)" -m venv "$venv" || die "could not make the Python environment $venv"
}

# The stamp is the requirements file that was installed last.
install_python() {
	cmp -s tests/requirements.txt "$venv/requirements.installed" && return 0
	printf 'deps: installing Python packages into %s\n' "$venv" >&2
	"$venv/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt >&2 ||
		die "pip could not install the packages of tests/requirements.txt"
	cp tests/requirements.txt "$venv/requirements.installed"
}

if command -v dpkg-query >/dev/null 2>&1; then
	install_packages
else
	printf 'deps: not a Debian-like system; install the counterparts of: %s\n' "${packages//[[:space:]]/ }" >&2
fi
make_venv
if [ "$what" = test ]; then
	install_python
	# Parquet is optional, and so are its tests: counted as skipped where the package cannot be had.
	"$venv/bin/python" -c 'import pyarrow' 2>/dev/null ||
		timeout 180 "$venv/bin/pip" install -q --disable-pip-version-check --only-binary=:all: --retries 1 'pyarrow>=14' >/dev/null 2>&1 ||
		printf 'deps: pyarrow cannot be had here: no tests of Parquet\n' >&2
	# One of the learning proofs uses them; without them it is counted as skipped.
	tests/demo_data.sh build/data/EURUSD_1H.csv || printf 'deps: no package index answers: no real bars for the learning proofs\n' >&2
fi
