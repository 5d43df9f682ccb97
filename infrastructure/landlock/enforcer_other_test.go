//go:build !linux

package landlock

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestOtherSystemsRefuseEveryPlan(t *testing.T) {
	e := New(WithABI(newestABI))
	for _, s := range e.Supports(everything()) {
		require.Equal(t, domain.StateUnenforceable, s.State, s.Property)
	}
	var strict *domain.StrictnessError
	_, err := e.Prepare(t.Context(), everything(), domain.SpawnLine{})
	require.ErrorAs(t, err, &strict)
	require.ErrorContains(t, err, runtime.GOOS)

	var failed *domain.EnforcementError
	_, err = e.Prepare(t.Context(), waiveAll(everything()), domain.SpawnLine{})
	require.ErrorAs(t, err, &failed)
	require.ErrorContains(t, err, runtime.GOOS)
}
