#!/usr/bin/env bash
# Runs the soak of infrastructure/process with SPAWNS confined spawns (default
# 10000) and as many plain ones from 64 goroutines, on all processors and with
# GOMAXPROCS=1; and that of tests/soak with SESSIONS sessions at once (default
# 1000) of TURNS turns (10), in an orchestrator that is killed CRASHES times (10):
# as the user who calls it and, if that is root, as uid 65534 too. SPAWNS=0 and
# SESSIONS=0 leave one of them out. The first failure, and any skip, ends it with
# the output; otherwise docs/soak.log tells what was run and what came out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
spawns=${SPAWNS:-10000}
sessions=${SESSIONS:-1000} turns=${TURNS:-10} crashes=${CRASHES:-10}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tools/log.sh
export CAISSON_REQUIRE_LANDLOCK=1

pkg=infrastructure/process
go test -race -c -o "$work/process.test" ./$pkg
# Without the race detector, because it is measured what a session costs.
go test -c -o "$work/sessions.test" ./tests/soak

# part WHO PROCS TEST COMMAND… runs one part and appends its result to the log.
part() {
	local who=$1 procs=$2 test=$3
	shift 3
	local flags=(-test.run="^TestSoakOfSpawns\$/^$test\$" -test.v -test.timeout=2h -soak="$spawns")
	prove "soak of spawns as $who: $test" "TestSoakOfSpawns/$test" nice "$@" "${flags[@]}"
	{
		echo
		echo "as $who, ${procs}: passed"
		told soak_linux_test.go
	} >>"$work/log"
}

# sessions WHO COMMAND… does the same with the sessions.
sessions() {
	local who=$1
	shift
	local flags=(-test.run='^TestSoakOfSessions$' -test.v -test.timeout=2h -sessions="$sessions" -turns="$turns" -crashes="$crashes" -alone=200)
	local load
	load=$(cut -d' ' -f1 /proc/loadavg)
	prove "soak of sessions as $who" TestSoakOfSessions nice "$@" "${flags[@]}"
	{
		echo
		echo "as $who, without the race detector, load before $load: passed"
		told soak_linux_test.go
	} >>"$work/log"
}

{
	echo "make soak SPAWNS=$spawns SESSIONS=$sessions TURNS=$turns CRASHES=$crashes"
	heading
} >"$work/log"

if [ "$spawns" -gt 0 ]; then
	part "uid $(id -u)" "all processors" all_processors env -C $pkg "$work/process.test"
	part "uid $(id -u)" "GOMAXPROCS=1" one_processor env -C $pkg GOMAXPROCS=1 "$work/process.test"
	if [ "$(id -u)" -eq 0 ]; then
		part "uid 65534" "all processors" all_processors tools/as-user.sh "$work/process.test" $pkg
		part "uid 65534" "GOMAXPROCS=1" one_processor env GOMAXPROCS=1 tools/as-user.sh "$work/process.test" $pkg
	fi
fi
if [ "$sessions" -gt 0 ]; then
	sessions "uid $(id -u)" env -C tests/soak "$work/sessions.test"
	if [ "$(id -u)" -eq 0 ]; then
		sessions "uid 65534" tools/as-user.sh "$work/sessions.test" tests/soak
	fi
fi

mkdir -p docs
mv "$work/log" docs/soak.log
cat docs/soak.log
