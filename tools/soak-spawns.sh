#!/usr/bin/env bash
# Runs the soak of infrastructure/process: SPAWNS confined spawns (default 10000)
# and as many plain ones from 64 goroutines, on all processors and with
# GOMAXPROCS=1, as the user who calls it and, if that is root, as uid 65534 too.
# The first failure, and any skip, ends it with the output; otherwise
# docs/soak-spawns.log tells what was run and what came out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
spawns=${SPAWNS:-10000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tools/log.sh
export CAISSON_REQUIRE_LANDLOCK=1

pkg=infrastructure/process
go test -race -c -o "$work/process.test" ./$pkg

# part WHO PROCS TEST COMMAND… runs one part and appends its result to the log.
part() {
	local who=$1 procs=$2 test=$3
	shift 3
	prove "soak of spawns as $who, $procs" "TestSoakOfSpawns/$test" nice "$@" -test.run="^TestSoakOfSpawns\$/^$test\$" -test.v -test.timeout=2h -soak="$spawns"
	{
		echo
		echo "as $who, $procs: passed"
		told soak_linux_test.go
	} >>"$work/log"
}

{
	echo "make soak-spawns SPAWNS=$spawns"
	heading on
} >"$work/log"

part "uid $(id -u)" "all processors" all_processors env -C $pkg "$work/process.test"
part "uid $(id -u)" "GOMAXPROCS=1" one_processor env -C $pkg GOMAXPROCS=1 "$work/process.test"
if [ "$(id -u)" -eq 0 ]; then
	part "uid 65534" "all processors" all_processors tools/as-user.sh "$work/process.test" $pkg
	part "uid 65534" "GOMAXPROCS=1" one_processor env GOMAXPROCS=1 tools/as-user.sh "$work/process.test" $pkg
fi

mkdir -p docs
mv "$work/log" docs/soak-spawns.log
cat docs/soak-spawns.log
