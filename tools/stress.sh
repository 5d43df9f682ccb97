#!/usr/bin/env bash
# Runs the seven invariants of tests/e2e COUNT times (default 50) under the race
# detector: as the user who calls it and, if that is root, as uid 65534 too. The
# test binary is compiled once. The first failure, and any skip, ends it with
# that run's output; otherwise docs/stress.log tells what was run and what came
# out.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
count=${COUNT:-50}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tools/log.sh

flags=(-test.run='^TestInvariant' -test.count="$count" -test.failfast -test.v -test.timeout=3h)
export CAISSON_REQUIRE_LANDLOCK=1

go test -race -c -o "$work/e2e.test" ./tests/e2e

# log WHO COMMAND… runs the command and appends its result to the log.
log() {
	local who=$1 start=$SECONDS
	shift
	prove "$count runs of the seven invariants as $who" "TestInvariant1[A-Za-z]*" "$@"
	{
		echo
		echo "as $who: passed in $((SECONDS - start)) s"
	} >>"$work/log"
	for n in 1 2 3 4 5 6 7; do
		local name passes
		name=$(grep -oE "^--- PASS: TestInvariant$n[A-Za-z]*" "$work/out" | sort -u | sed 's/.* //')
		passes=$(grep -cE "^--- PASS: TestInvariant$n[A-Za-z]* " "$work/out" || true)
		if [ "$(wc -w <<<"$name")" -ne 1 ] || [ "$passes" -ne "$count" ]; then
			echo "stress: invariant $n passed $passes times of $count as $who (tests: ${name:-none})" >&2
			exit 1
		fi
		printf '  %-44s %s of %s\n' "$name" "$passes" "$count" >>"$work/log"
	done
}

{
	echo "make stress COUNT=$count"
	heading on
	echo "command       e2e.test ${flags[*]}"
} >"$work/log"

# Here and not in a copy, so that the tests find what lies beside them.
log "uid $(id -u)" env -C tests/e2e "$work/e2e.test" "${flags[@]}"
if [ "$(id -u)" -eq 0 ]; then
	log "uid 65534" tools/as-user.sh "$work/e2e.test" tests/e2e "${flags[@]}"
fi

mkdir -p docs
mv "$work/log" docs/stress.log
cat docs/stress.log
