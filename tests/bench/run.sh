#!/bin/sh
# make bench: the training step on the CPU, beside PyTorch where there is one. BUILD names the build folder.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
make -s BUILD="$BUILD" "$BUILD/tests/bench/host_step"
exec python3 tests/bench/race.py "$BUILD" "$@"
