#!/usr/bin/env bash
# tests/lint/lint.sh layers|cppcheck|clang-tidy: quiet and 0, or the findings and 1. The last two need the generated protobuf
# header, which is made in build/lint.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "${1:-}" != layers ] || exec python3 tests/lint/layers.py
build=build/lint
make -s BUILD=$build $build/proto/fh.pb-c.h
cores=$(nproc)
mapfile -t sources < <(git ls-files '*.c' ':!tests' 2>/dev/null)
[ "${#sources[@]}" -gt 0 ] || mapfile -t sources < <(find proto gpu daemon client -name '*.c' | sort)

case ${1:-} in
cppcheck)
	cppcheck --quiet -j "$cores" --std=c11 --platform=unix64 --enable=warning,performance,portability \
		--inline-suppr --suppressions-list=tests/lint/cppcheck.txt --error-exitcode=1 \
		-D_GNU_SOURCE -D__GNUC__=12 -D__x86_64__ -I. "${sources[@]}"
	;;
clang-tidy)
	# Paths that the analyzer follows through one function at most. Its own bound is 225,000, which takes three times as long and
	# found nothing more in code with faults put in.
	paths=40000
	printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$cores" sh -c '
		clang-tidy --quiet --config-file=tests/lint/clang-tidy.yaml --warnings-as-errors="*" "$0" -- \
			-std=gnu11 -D_GNU_SOURCE -I. -I'$build' -Wall -Wextra -Wno-unused-parameter -Xclang -analyzer-config -Xclang max-nodes='$paths' 2>'$build'/tidy.$$ || { cat '$build'/tidy.$$ >&2; exit 1; }'
	rm -f $build/tidy.*
	;;
*) echo "usage: tests/lint/lint.sh layers|cppcheck|clang-tidy" >&2; exit 2 ;;
esac
