package e2e

import (
	"testing"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) {
	fakecli.Host() // where the fake cannot be built, the test binary is it
	testkit.MainWithFake(m)
}
