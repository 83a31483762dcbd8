#!/bin/sh
# make bench: the training step on the CPU beside PyTorch where there is one, then, where there is a device, the phases of
# the CUDA backend and what the running daemon costs there (by itself: tests/bench/daemon.py, three minutes at most). BUILD
# names the build folder. BENCH_ANCHORS=DIR: a folder with torch_step.py and jax_step.py, the same step as others would write
# it, raced on the same card in the same run. BENCH=cpu or BENCH=gpu does one half.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
BENCH=${BENCH:-all}
printf 'commit %s, %s\n' "$(git describe --always --dirty 2>/dev/null || echo unknown)" "$(date -u +%Y-%m-%d)"
if [ "$BENCH" != gpu ]; then
	make -s BUILD="$BUILD" "$BUILD/tests/bench/host_step" "$BUILD/tests/bench/epoch"
	python3 tests/bench/race.py "$BUILD" "$@"
	"$BUILD/tests/bench/epoch" -e 4
fi
[ "$BENCH" = cpu ] && exit 0
if ! nvidia-smi -L >/dev/null 2>&1; then
	echo "no device: the CUDA backend is not measured"
	exit 0
fi
make -s BUILD="$BUILD" cuda "$BUILD/tests/bench/gpu_step" "$BUILD/tests/bench/epoch"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
FHD_LIBDIR=$BUILD "$BUILD/tests/bench/gpu_step"
for windows in 1 8; do
	FHD_LIBDIR=$BUILD "$BUILD/tests/bench/epoch" -d cuda -e 12 -w $windows
done
FHD_LIBDIR=$BUILD python3 tests/bench/daemon.py "$BUILD" --device cuda || echo "some figures of the daemon fall short"
if [ -n "${BENCH_ANCHORS:-}" ]; then
	for step in jax_step torch_step; do
		timeout "${BENCH_ANCHOR_SECONDS:-300}" python3 "$BENCH_ANCHORS/$step.py" 256 || echo "$step.py did not end in time"
	done
fi
