#!/usr/bin/env bash
# Runs a compiled test binary as an ordinary user (uid 65534): root is spared
# checks that the sandbox relies on, so a test that passes as root says little
# about everybody else.
#
#   tools/as-user.sh BINARY PACKAGE_DIR [TEST FLAGS…]
#
# The binary runs in a private copy of the package's directory, with a private
# HOME and TMPDIR, since that user can neither read a checkout below /root nor
# write anywhere. It has no agent CLIs there, so tests that want them are
# skipped; they ran as root. It is called in the root of the checkout, and every
# test of the package must know the flag -fakehost of tests/testkit.
set -euo pipefail

if [ "$(id -u)" -ne 0 ]; then
	echo "as-user.sh: needs root to become another user" >&2
	exit 2
fi
command -v setpriv >/dev/null || {
	echo "as-user.sh: setpriv is missing (Debian: apt-get install util-linux)" >&2
	exit 2
}

binary=$1 package=$2
shift 2

home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
chmod 755 "$home"
mkdir "$home/home" "$home/tmp"
cp -r "$package" "$home/package"
cp "$binary" "$home/package/package.test"
# That user may have no Go to build the fake agent with.
go build -o "$home/fakehost" ./tests/fakehost
chown -R 65534:65534 "$home"

cd "$home/package"
env -i PATH="$PATH" HOME="$home/home" TMPDIR="$home/tmp" LANG=C.UTF-8 USER=nobody \
	CAISSON_REQUIRE_LANDLOCK="${CAISSON_REQUIRE_LANDLOCK:-}" ${GOMAXPROCS:+GOMAXPROCS="$GOMAXPROCS"} \
	setpriv --reuid=65534 --regid=65534 --clear-groups \
	./package.test -fakehost="$home/fakehost" "$@"
