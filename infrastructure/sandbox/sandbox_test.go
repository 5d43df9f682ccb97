package sandbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
)

// On a host that cannot enforce it is the refusal that counts, and on one that
// can, the receipt; so there is something to check on every system.
func TestDefaultEnforcesOrRefuses(t *testing.T) {
	e := sandbox.Default()
	plan := domain.NewSandboxPlan("test").WithWaivers(domain.Properties()...)
	var filesystem domain.PropertyStatus
	for _, s := range e.Supports(plan) {
		if s.Property == domain.PropertyFilesystem {
			filesystem = s
		}
	}
	c, err := e.Prepare(t.Context(), plan, domain.SpawnLine{})
	if filesystem.State != domain.StateEnforced {
		var failed *domain.EnforcementError
		require.ErrorAs(t, err, &failed)
		require.ErrorContains(t, err, filesystem.Detail)
		require.Nil(t, c)
		return
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.Contains(t, c.Receipt().Layers, "landlock")
	require.Contains(t, c.Receipt().InState(domain.StateEnforced), domain.PropertyFilesystem)
	require.Equal(t, plan.Digest(), c.Receipt().PlanDigest, "that of the plan as it was asked for")
	require.Empty(t, c.Receipt().InState(domain.StateUnenforceable))
}

func TestDefaultRefusesWhatNoLayerCanDo(t *testing.T) {
	plan := domain.NewSandboxPlan("test").WithLimits(domain.Limits{MemoryBytes: 1 << 30})
	c, err := sandbox.Default().Prepare(t.Context(), plan, domain.SpawnLine{})
	var strict *domain.StrictnessError
	require.ErrorAs(t, err, &strict)
	require.ErrorContains(t, err, "--waive memory-limit")
	require.Nil(t, c)
}
