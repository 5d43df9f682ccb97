package sandbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// BenchmarkPrepare measures what the composition adds to its Landlock layer on
// the way to a child.
func BenchmarkPrepare(b *testing.B) {
	testkit.RequireLandlock(b, 6)
	plan := domain.NewSandboxPlan("test").WithConnectTCP(443)
	for _, path := range []string{"/usr", "/etc", "/proc", "/dev/null", "/tmp"} {
		plan = plan.WithRules(domain.PathRule{Path: path, Access: domain.AccessReadExec})
	}
	for name, c := range map[string]struct {
		enforcer ports.SandboxEnforcer
		plan     domain.SandboxPlan
	}{
		"landlock": {landlock.New(), plan.WithWaivers(domain.Properties()...)},
		"sandbox":  {sandbox.Default(), plan},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				confinement, err := c.enforcer.Prepare(b.Context(), c.plan, domain.SpawnLine{})
				require.NoError(b, err)
				require.NoError(b, confinement.Close())
			}
		})
	}
}
