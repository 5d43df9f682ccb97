#!/usr/bin/env bash
# Runs the soak of tests/soak RUNS times (default 3), one after the other: SESSIONS
# sessions at once (1000) of TURNS turns (10), in an orchestrator that is killed
# CRASHES times (5); as the user who calls it and, if that is root, as uid 65534
# too. The first failure, and any skip, ends it with the output; otherwise
# docs/soak.log tells what was run and what came out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
runs=${RUNS:-3} sessions=${SESSIONS:-1000} turns=${TURNS:-10} crashes=${CRASHES:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tools/log.sh
export CAISSON_REQUIRE_LANDLOCK=1

pkg=tests/soak
test=TestSoakOfSessions
# Without the race detector, because it is measured what a session costs.
go test -c -o "$work/soak.test" ./$pkg

# part WHO RUN COMMAND… runs it once and appends its result to the log.
part() {
	local who=$1 run=$2 load
	shift 2
	load=$(cut -d' ' -f1 /proc/loadavg)
	prove "soak as $who, $run of $runs" "$test" nice "$@" -test.run="^$test\$" -test.v -test.timeout=2h -sessions="$sessions" -turns="$turns" -crashes="$crashes" -alone=200
	{
		echo
		echo "as $who, $run of $runs, load before $load: passed"
		told soak_linux_test.go
	} >>"$work/log"
}

{
	echo "make soak RUNS=$runs SESSIONS=$sessions TURNS=$turns CRASHES=$crashes"
	heading off
} >"$work/log"

for run in $(seq "$runs"); do
	part "uid $(id -u)" "$run" env -C $pkg "$work/soak.test"
	if [ "$(id -u)" -eq 0 ]; then
		part "uid 65534" "$run" tools/as-user.sh "$work/soak.test" $pkg
	fi
done

mkdir -p docs
mv "$work/log" docs/soak.log
cat docs/soak.log
