package testkit

import (
	"testing"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// RequireLandlock skips the test, or fails it under CAISSON_REQUIRE_LANDLOCK=1,
// when the kernel has no Landlock of at least that ABI. It returns the ABI.
func RequireLandlock(tb testing.TB, abi int) int {
	tb.Helper()
	got, err := ll.LandlockGetABIVersion()
	if err == nil && got >= abi {
		return got
	}
	if inCI("CAISSON_REQUIRE_LANDLOCK") {
		tb.Fatalf("CAISSON_REQUIRE_LANDLOCK=1, but Landlock ABI is %d (%v), want %d", got, err, abi)
	}
	tb.Skipf("Landlock ABI is %d (%v), want %d", got, err, abi)
	return 0
}
