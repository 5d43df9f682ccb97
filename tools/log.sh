# Sourced by the tools that run tests for long and keep a log of it in docs/. They
# set work to a directory of their own.

# heading RACE says on what the log was made, with the race detector on or off.
heading() {
	echo
	echo "date          $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	echo "commit        $(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo ' with local changes')"
	echo "kernel        $(uname -sr) $(uname -m), $(nproc) processors"
	echo "Landlock ABI  $(go run -C tools ./abi)"
	echo "Go            $(go env GOVERSION), race detector $1"
}

# prove WHAT TEST COMMAND… runs tests with -test.v, and ends everything, with their
# output, if they fail, if one is skipped, since that proves nothing, or if TEST, an
# expression, is not among those that passed. The output stays in $work/out.
prove() {
	local what=$1 test=$2
	shift 2
	echo "$what" >&2
	if ! "$@" >"$work/out" 2>&1; then
		tail -n 200 "$work/out"
		echo "failed: $what" >&2
		exit 1
	fi
	if grep -E '^ *--- SKIP' "$work/out" || ! grep -qE "^ *--- PASS: $test " "$work/out"; then
		echo "did not run: $what" >&2
		exit 1
	fi
}

# told FILE prints what the tests of that file have logged.
told() { sed -nE "s/^ *$1:[0-9]+: /  /p" "$work/out"; }
