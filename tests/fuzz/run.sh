#!/usr/bin/env bash
# libFuzzer with AddressSanitizer and UBSan on everything that reads foreign bytes: FUZZ_SECONDS each, corpus kept in
# build/fuzz/corpus. With "build" as the only target nothing runs.
#
# A finding ends the run. It stays as build/fuzz/<target>-crash-… (timeout-…, oom-…, leak-…), and the output has all that it
# takes to have it again elsewhere: the report, and the input, made shorter where libFuzzer can, as gzip in base64. An input
# that took too long or too much only while other programs ran, and does not when it is given alone, is no finding.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${FUZZ_SECONDS:-60}
build=build/fuzz
targets=${*:-request jobfile safetensors csv json dbn}
limits="-rss_limit_mb=2048 -timeout=10"
shorter_s=20      # for making a finding shorter
most_base64=24000 # characters of it in the output
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitizers/lsan-fuzz.supp:print_suppressions=0
flags="-g1 -O1 -fno-omit-frame-pointer"
# Only what reads foreign bytes, and what that needs.
make -s -j"$(nproc)" BUILD=$build CC=clang OPT=-O1 CFLAGS=-g1 SAN=address,undefined,fuzzer-no-link client_src="$(echo client/import/*.c)" \
	gpu_src="$(echo gpu/spec*.c gpu/dqn/spec*.c gpu/safetensors*.c gpu/instruments.c) proto/status.c" $build/libfhgpu.a $build/libfhproto.a $build/libfhclient.a
[ "$targets" != build ] || exit 0
python=${VENV:-.venv}/bin/python

# Of a program's end what can be said without its output.
explain() {
	case $1 in
	70) echo "it was over the limit of time: $limits" ;;
	71) echo "it was over the limit of memory: $limits" ;;
	77 | 1) echo "it was a sanitizer, a leak or an abort()" ;;
	137) echo "it was SIGKILL from outside: this machine's memory, or somebody" ;;
	*) [ "$1" -le 128 ] || echo "it was signal $(($1 - 128))" ;;
	esac
}

# The file of a finding that libFuzzer could make shorter in a little time, else the one given.
shorter() {
	local small=$build/$1-shorter
	rm -f "$small"
	timeout $((shorter_s + 15)) $build/"$1" -minimize_crash=1 -max_total_time=$shorter_s $limits -exact_artifact_path="$small" "$2" >/dev/null 2>&1 || true
	if [ -s "$small" ] && ! $build/"$1" $limits "$small" >/dev/null 2>&1; then echo "$small"; else echo "$2"; fi
}

# report TARGET EXIT ARTIFACT: what was found, at most 25 lines.
report() {
	local t=$1 code=$2 found=$3 text
	python3 tests/report.py --lines 18 $build/"$t".log
	echo "fuzz: exit $code of $t; $(explain "$code")"
	[ -n "$found" ] || return 0
	case $found in *-crash-* | *-leak-*) found=$(shorter "$t" "$found") ;; esac
	text=$(gzip -9n <"$found" | base64 -w0)
	echo "fuzz: the input is $found, $(stat -c %s "$found") bytes; as a file: base64 -d <<< TEXT | gunzip > input; again: $build/$t input"
	if [ ${#text} -le $most_base64 ]; then echo "input: $text"; else echo "fuzz: too long to be printed: ${#text} characters"; fi
}

# run TARGET SECONDS [ARGUMENT...]: libFuzzer's exit status; what it saved is $found.
run() {
	local t=$1 for=$2 code=0
	shift 2
	touch $build/"$t".begin
	# shellcheck disable=SC2086
	$build/"$t" -max_total_time="$for" -max_len=16384 $limits -artifact_prefix=$build/"$t"- -print_final_stats=1 "$@" >$build/"$t".log 2>&1 || code=$?
	found=$(find $build -maxdepth 1 -newer $build/"$t".begin \( -name "$t-crash-*" -o -name "$t-leak-*" -o -name "$t-timeout-*" -o -name "$t-oom-*" \) | head -n 1)
	return $code
}

for t in $targets; do
	corpus=$build/corpus/$t
	mkdir -p "$corpus"
	"$python" tests/fuzz/seeds.py "$t" "$corpus"
	# shellcheck disable=SC2086
	clang -std=gnu11 $flags -D_GNU_SOURCE -I. -I$build -fsanitize=address,undefined,fuzzer -fno-sanitize-recover=all \
		-o $build/$t tests/fuzz/$t.c $build/libfhclient.a $build/libfhproto.a $build/libfhgpu.a \
		-lnng -lprotobuf-c -lfyaml -lzstd -lz -lopenblas -lcrypto -lm -lpthread -ldl
	begin=$SECONDS executed=0
	while left=$((seconds - SECONDS + begin)) && [ $left -gt 0 ]; do
		code=0
		run "$t" $left "$corpus" || code=$?
		executed=$((executed + $(sed -n 's/^stat::number_of_executed_units: *//p' $build/"$t".log | grep . || echo 0)))
		case $found in
		*-timeout-* | *-oom-*)
			# shellcheck disable=SC2086
			if $build/"$t" $limits "$found" >/dev/null 2>&1; then
				echo "$t: $(basename "$found") is within $limits when it is run alone: no finding"
				code=0
			fi
			;;
		esac
		if [ $code != 0 ]; then
			report "$t" $code "$found"
			exit 1
		fi
	done
	echo "$t: executed $executed"
done
