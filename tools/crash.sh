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
export CAISSON_REQUIRE_LANDLOCK=1

pkg=tests/crash
test=TestKilledOrchestratorsLeaveNothingAndLoseNothing
go test -race -c -o "$work/crash.test" ./$pkg

# part WHO COMMAND… runs the test and appends its result to the log.
part() {
	local who=$1
	shift
	echo "as $who" >&2
	if ! "$@" -test.run="^$test\$" -test.v -test.timeout=2h -kills="$kills" >"$work/out" 2>&1; then
		tail -n 200 "$work/out"
		echo "crash: failed as $who" >&2
		exit 1
	fi
	if ! grep -q "^--- PASS: $test " "$work/out" || grep -E '^ *--- SKIP' "$work/out"; then
		echo "crash: did not run as $who" >&2
		exit 1
	fi
	{
		echo
		echo "as $who: passed"
		sed -nE 's/^ *crash_linux_test.go:[0-9]+: /  /p' "$work/out"
	} >>"$work/log"
}

{
	echo "make crash KILLS=$kills"
	echo
	echo "date          $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	echo "commit        $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo ' with local changes')"
	echo "kernel        $(uname -sr) $(uname -m), $(nproc) processors"
	echo "Landlock ABI  $(go run -C tools ./abi)"
	echo "Go            $(go env GOVERSION), race detector on"
} >"$work/log"

part "uid $(id -u)" env -C $pkg "$work/crash.test"
if [ "$(id -u)" -eq 0 ]; then
	part "uid 65534" tools/as-user.sh "$work/crash.test" $pkg
fi

mkdir -p docs
mv "$work/log" docs/crash.log
cat docs/crash.log
