#!/usr/bin/env bash
# The whole product once, in about two minutes: build, real bars, a training run that can be watched, its evaluation
# beside two benchmarks, a picture. Everything lives in a temporary folder that is gone afterwards, the daemon too;
# what stays is build/ and equity.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build}
out=${DEMO_SVG:-equity.svg}
steps=${DEMO_STEPS:-3000}
began=$SECONDS

title() { printf '\n== %s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }
show() { printf '$ fhctl %s\n' "$*"; "$build/fhctl" "$@"; }

tmp=$(mktemp -d /tmp/fhdemo.XXXXXX)
daemon=
cleanup() {
	local code=$?
	trap - EXIT INT TERM HUP
	if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
		kill "$daemon" 2>/dev/null
		# The daemon ends by itself within seconds; after ten it is ended.
		timeout 10 tail --pid="$daemon" -f /dev/null 2>/dev/null || kill -KILL "$daemon" 2>/dev/null
		wait "$daemon" 2>/dev/null || :
	fi
	rm -rf "$tmp"
	exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# ---------------------------------------------------------------- build
title "Building"
target=host
if nvidia-smi -L >/dev/null 2>&1; then
	target=all
fi
make -s -j"$(nproc)" BUILD="$build" "$target"
printf '%s and %s are built (%d s)\n' "$build/fhd" "$build/fhctl" $((SECONDS - began))

# ---------------------------------------------------------------- data
title "Real bars: EURUSD, hourly, 2017"
csv=$build/data/EURUSD_1H.csv
if [ -s "$csv" ]; then
	echo "there already: $csv"
elif tests/demo_data.sh "$csv"; then
	echo "out of the PyPI package gym-anytrading (MIT licence): $csv"
else
	csv=
	echo "No package index answers: the built-in synthetic market has to do (AR(1) returns, 20,000 one-minute bars)."
fi

# ---------------------------------------------------------------- daemon
title "A private daemon"
export FHD_URL=ipc://$tmp/fhd.sock
# It gets a SIGTERM should this script die without its traps.
setpriv --pdeathsig TERM "$build/fhd" --state-dir "$tmp/state" --listen "$FHD_URL" 2>"$tmp/fhd.log" &
daemon=$!
until "$build/fhctl" ping -q >/dev/null 2>&1; do
	kill -0 "$daemon" 2>/dev/null || { cat "$tmp/fhd.log" >&2; die "fhd did not start"; }
	[ $((SECONDS - began)) -lt 600 ] || die "fhd does not answer"
	sleep 0.1
done
show info

# ---------------------------------------------------------------- import, train, results
title "A market that has something to learn: synthetic, each return leans on the one before"
show dataset synth --name leaning --kind momentum --bars 20000 --seed 1
show start client/examples/momentum.yaml --name first --set data.dataset=leaning --set run.epochs=5 --set run.steps_per_epoch=300 -f
show evaluate first --split test
picture=first

if [ -n "$csv" ]; then
	title "Real bars, with the costs of a broker (Ctrl-C would detach; the job goes on)"
	show dataset import "$csv" --name eurusd --tick 0.00001
	show start client/examples/eurusd-hourly.yaml --name demo --set run.epochs=$((steps / 300)) --set run.steps_per_epoch=300 -f
	title "The last target network, greedy, on bars it has not seen"
	show evaluate demo --split validation
	show evaluate demo --split test
	picture=demo
fi
show plot "$picture" "$out" --split test
title "Done"
show shutdown
timeout 60 tail --pid="$daemon" -f /dev/null || die "fhd does not stop"
wait "$daemon" || die "fhd ended with $?"
daemon=
printf '%s shows equity, drawdown, trades, loss and Q. %d s in all; nothing is left running.\n' "$out" $((SECONDS - began))
echo "Your own bars next: README.md, \"Your own CSV\"."
