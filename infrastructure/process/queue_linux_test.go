package process

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// slowEnforcer holds everybody who prepares until it is opened.
type slowEnforcer struct {
	ports.SandboxEnforcer
	arrived chan struct{}
	gate    chan struct{}
}

func (e slowEnforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	e.arrived <- struct{}{}
	<-e.gate
	return e.SandboxEnforcer.Prepare(ctx, plan, line)
}

// Of very many starts at once only some are under way, since each takes a thread
// and many descriptors; the others wait, and not longer than they want to.
func TestOnlySomeStartsAreUnderWay(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	n := startsAtOnce()
	e := slowEnforcer{sandbox.Default(), make(chan struct{}, 3*n), make(chan struct{})}
	s := NewSpawner(Config{Enforcer: e})
	dir := tempDir(t)
	errs := make([]error, 3*n)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			if i%2 == 0 {
				_, errs[i] = s.Probe(context.Background(), ProbeSpec{Line: shLine("/", testPlan(dir), ":")})
			} else {
				_, errs[i] = s.Run(context.Background(), shLine("/", testPlan(dir), ":"), ports.Stdio{})
			}
		})
	}
	for range n {
		<-e.arrived
	}
	require.Len(t, s.starting, n)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("had enough")
	cancel(why)
	for _, f := range []func() error{
		func() error { _, err := s.Run(ctx, shLine("/", testPlan(dir), ":"), ports.Stdio{}); return err },
		func() error {
			_, err := s.Probe(ctx, ProbeSpec{Line: shLine("/", testPlan(dir), ":")})
			return err
		},
	} {
		err := f()
		var spawn *domain.SpawnError
		require.ErrorAs(t, err, &spawn)
		require.ErrorIs(t, err, why)
	}
	require.Empty(t, e.arrived, "one more has begun")
	close(e.gate)
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Empty(t, s.starting)
}
