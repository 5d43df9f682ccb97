#!/usr/bin/env bash
# Runs tests/crash with KILLS orchestrators (default 200) that are killed at
# random moments: as the user who calls it and, if that is root, as uid 65534
# too. The first failure, and any skip, ends it with the output; otherwise
# docs/crash.log tells what was run and what came out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
kills=${KILLS:-200}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tools/log.sh
export CAISSON_REQUIRE_LANDLOCK=1

pkg=tests/crash
test=TestKilledOrchestratorsLeaveNothingAndLoseNothing
go test -race -c -o "$work/crash.test" ./$pkg

# part WHO COMMAND… runs the test and appends its result to the log.
part() {
	local who=$1
	shift
	prove "crash as $who" "$test" "$@" -test.run="^$test\$" -test.v -test.timeout=2h -kills="$kills"
	{
		echo
		echo "as $who: passed"
		told crash_linux_test.go
	} >>"$work/log"
}

{
	echo "make crash KILLS=$kills"
	heading on
} >"$work/log"

part "uid $(id -u)" env -C $pkg "$work/crash.test"
if [ "$(id -u)" -eq 0 ]; then
	part "uid 65534" tools/as-user.sh "$work/crash.test" $pkg
fi

mkdir -p docs
mv "$work/log" docs/crash.log
cat docs/crash.log
