#!/usr/bin/env bash
# Fuzzes every target for FUZZTIME each, LANES of them at a time with one worker
# each, and writes docs/fuzz.log: what was run, how often, and what came of it.
# What a target finds stays in its package's testdata/fuzz, and is to be committed.
#
#   FUZZTIME=10m LANES=2 tools/fuzz.sh [PACKAGE_DIR…]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fuzztime=${FUZZTIME:-10m} lanes=${LANES:-2} log=docs/fuzz.log
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

dirs=("$@")
if [ ${#dirs[@]} -eq 0 ]; then
	mapfile -t dirs < <(grep -rl --include='*_test.go' --exclude-dir=node_modules '^func Fuzz' . | xargs -r dirname | sort -u)
fi

fuzz() { # DIR TARGET
	local out="$work/$(echo "$1 $2" | tr '/ .' '___')" result=passed
	# To make an input smaller may take a minute each by default, which is most of the
	# time of a short run.
	go test -run '^$' -fuzz "^$2\$" -fuzztime "$fuzztime" -fuzzminimizetime 10x -parallel 1 "$1" >"$out" 2>&1 || result=FAILED
	# The last line of progress has the number of runs and of interesting inputs.
	echo "$1 $2: $result; $(grep '^fuzz: elapsed' "$out" | tail -1 | sed 's/^fuzz: //')" >"$out.result"
	if [ "$result" = FAILED ]; then
		cat "$out" >&2
		touch "$work/failed"
	fi
}
export -f fuzz
export fuzztime work

for dir in "${dirs[@]}"; do
	go test -list '^Fuzz' "$dir" | grep '^Fuzz' | sed "s|^|$dir |"
done | xargs -P "$lanes" -L 1 bash -c 'fuzz "$1" "$2"' fuzz

{
	echo "commit $(git rev-parse --short HEAD), $(go version | cut -d' ' -f3), $(uname -sr), $(date -u +%F)"
	echo "FUZZTIME=$fuzztime LANES=$lanes, one worker each"
	sort "$work"/*.result
} >"$log"
cat "$log"
[ ! -e "$work/failed" ]
