// Package testkit holds what the project's own tests share: gates on what the
// host must have, and checks that nothing is left behind. It imports nothing
// of the project, so every package's tests may use it.
package testkit

import (
	"os"
	"testing"
)

// inCI reports whether the environment variable name demands a feature: a test
// that needs it then fails instead of skipping.
func inCI(name string) bool { return os.Getenv(name) == "1" }

// RequireCLIs skips the test, or fails it under CAISSON_REQUIRE_CLIS=1, when
// the reason is not empty.
func RequireCLIs(tb testing.TB, reason string) {
	tb.Helper()
	if reason == "" {
		return
	}
	if inCI("CAISSON_REQUIRE_CLIS") {
		tb.Fatalf("CAISSON_REQUIRE_CLIS=1, but %s", reason)
	}
	tb.Skipf("real CLIs: %s", reason)
}
