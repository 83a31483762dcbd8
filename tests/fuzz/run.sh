#!/usr/bin/env bash
# libFuzzer with AddressSanitizer and UBSan on everything that reads foreign bytes: FUZZ_SECONDS each, corpus kept in
# build/fuzz/corpus. A finding stays as build/fuzz/<target>-crash-… and ends the run. With "build" as the only target
# nothing runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${FUZZ_SECONDS:-60}
build=build/fuzz
targets=${*:-request jobfile safetensors csv json dbn}
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitizers/lsan-fuzz.supp:print_suppressions=0
flags="-g -O1 -fno-omit-frame-pointer"
make -s -j"$(nproc)" BUILD=$build CC=clang OPT=-O1 SAN=address,undefined,fuzzer-no-link \
	$build/libfhgpu.a $build/libfhproto.a $build/libfhclient.a
[ "$targets" != build ] || exit 0
python=${VENV:-.venv}/bin/python
for t in $targets; do
	corpus=$build/corpus/$t
	mkdir -p "$corpus"
	"$python" tests/fuzz/seeds.py "$t" "$corpus"
	# shellcheck disable=SC2086
	clang -std=gnu11 $flags -D_GNU_SOURCE -I. -I$build -fsanitize=address,undefined,fuzzer -fno-sanitize-recover=all \
		-o $build/$t tests/fuzz/$t.c $build/libfhclient.a $build/libfhproto.a $build/libfhgpu.a \
		-lnng -lprotobuf-c -lfyaml -lzstd -lz -lopenblas -lcrypto -lm -lpthread -ldl
	printf '%s: ' "$t"
	if ! $build/$t -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=2048 -timeout=10 -artifact_prefix=$build/$t- \
		-print_final_stats=1 "$corpus" >$build/$t.log 2>&1; then
		tail -n 40 $build/$t.log
		echo "fuzz: $t found something: $build/$t-*" >&2
		exit 1
	fi
	sed -n 's/^stat::number_of_executed_units: */executed /p' $build/$t.log
done
