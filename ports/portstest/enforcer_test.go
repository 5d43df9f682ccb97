package portstest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func TestRecordingEnforcerTellsWhatReachedIt(t *testing.T) {
	plan := domain.NewSandboxPlan("seen")
	line := domain.SpawnLine{Path: "/bin/true", Sandbox: plan}
	broken := errors.New("broken")

	r := NewRecordingEnforcer(DenyingEnforcer{ApplyErr: broken})
	require.Empty(t, r.Preparations())
	require.Equal(t, DenyingEnforcer{}.Supports(plan), r.Supports(plan))
	c, err := r.Prepare(t.Context(), plan, line)
	require.NoError(t, err)
	require.Equal(t, line, c.SpawnLine())
	require.Equal(t, []domain.SandboxPlan{plan}, r.Unclosed())
	require.Equal(t, broken, c.Apply())
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.Empty(t, r.Unclosed())
	require.Equal(t, []Preparation{{Plan: plan, Line: line, Applied: 1, Closed: 2}}, r.Preparations())
	_, isGroup := c.(ports.KillGroup)
	require.False(t, isGroup, "an ability that the inner confinement has not got")

	r = NewRecordingEnforcer(DenyingEnforcer{PrepareErr: broken})
	c, err = r.Prepare(t.Context(), plan, line)
	require.Equal(t, broken, err)
	require.Nil(t, c)
	require.Empty(t, r.Unclosed(), "what was never prepared need not be closed")
	require.Equal(t, []Preparation{{Plan: plan, Line: line, Err: broken}}, r.Preparations())
}

func TestDenyingEnforcerEnforcesNothing(t *testing.T) {
	plan := domain.NewSandboxPlan("denied")
	require.NoError(t, domain.CheckStrictness(plan, DenyingEnforcer{}.Supports(plan)), "it must fail later than that")
	c, err := DenyingEnforcer{}.Prepare(t.Context(), plan, domain.SpawnLine{})
	require.NoError(t, err)
	require.Error(t, c.Apply())
	require.Equal(t, plan.Digest(), c.Receipt().PlanDigest)
}
