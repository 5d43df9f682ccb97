// Package testkit holds what the project's own tests share: gates on what the
// host must have, and checks that nothing is left behind. It imports domain and
// ports at most, so every package's tests may use it.
package testkit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// inCI reports whether the environment variable name demands a feature: a test
// that needs it then fails instead of skipping.
func inCI(name string) bool { return os.Getenv(name) == "1" }

// RequireCheckout skips a test that reads what lies beside its package, where the
// package is the copy that an ordinary user tests (tools/as-user.sh). root leads to
// the root of the repository.
func RequireCheckout(tb testing.TB, root string) {
	tb.Helper()
	if _, err := os.Stat(filepath.Join(root, "go.mod")); errors.Is(err, fs.ErrNotExist) {
		tb.Skip("not in the repository, but in a copy of the package (tools/as-user.sh)")
	}
}

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
