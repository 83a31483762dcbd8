#!/bin/bash
# make gpu-kit KIT=DIR [SM=90 …]: what `make check-gpu` and `make bench` need on a machine with a card and nothing installed, in one
# folder: programs without symbols, the libraries that they are linked with (glibc and what belongs to it excepted, so
# that machine's must not be older), the commit. There, in a copy of the source tree:
#
#     make check-gpu bench NOBUILD=1 BUILD=DIR
#
# Without OpenBLAS, which is as large as all the rest: the built-in products compute what the host computes there. Object files stay
# in DIR.objects, so what changed is what a second call compiles.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:?usage: kit.sh DIR}
objects=$kit.objects
programs="fhd fhctl fhd-cuda.so tests/bench/gpu_step tests/bench/epoch tests/bench/host_step"
for c in tests/gpu/*.c; do programs+=" ${c%.c}"; done
for c in momentum_small momentum_default momentum_costs walk; do programs+=" tests/train/$c"; done

make -s -j"$(nproc)" BUILD="$objects" BLAS_LIBS= LDFLAGS='-Wl,--disable-new-dtags,-rpath,\$$ORIGIN/lib:\$$ORIGIN/../../lib' \
	$(printf "$objects/%s " $programs)
rm -rf "$kit"
mkdir -p "$kit/lib"
for p in $programs; do
	mkdir -p "$kit/$(dirname "$p")"
	strip --strip-all -o "$kit/$p" "$objects/$p"
done
# Whatever the loader finds for them here, but the C library itself and the compilers' own.
for p in $programs; do ldd "$kit/$p"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
	grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so' | while read -r library; do
	[ "$(dirname "$library")" = "$(realpath "$kit")/lib" ] || cp -L "$library" "$kit/lib/"
done
git describe --always --dirty >"$kit/commit" 2>/dev/null || echo unknown >"$kit/commit"
du -sh "$kit" | cut -f1
