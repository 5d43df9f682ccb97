package terminal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// The invariants of turns (tests/e2e), as far as a terminal has them. That a
// time-out leaves nothing is in TestNothingIsLeftOfASession and
// TestASessionEndsWithItsTime; a terminal has no conversation to resume.

// 1 and 2: the same program prints the same with and without the sandbox, but
// for what the sandbox denies.
func TestParityAndItsNegativeCompanion(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	outside := filepath.Join(workDir(t), "outside")
	script := `stty -echo; echo a; stty size; read -r line; echo "got $line"; ls; (echo x > ` + outside + `) 2> /dev/null && echo written; exit 3`
	out := map[string]string{}
	for _, name := range []string{"confined", "native"} {
		testkit.NoLeaks(t)
		dir := workDir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		s := start(t, shell(dir, plans(dir)[name], "/bin/sh", "-c", script))
		s.see("24 80\r\n")
		s.typ("typed\n")
		result, printed := s.end()
		require.Equal(t, 3, result.Exit.Code)
		out[name] = printed
	}
	require.Equal(t, "got typed\nfile\n", out["confined"])
	require.Equal(t, out["confined"]+"written\n", out["native"])
}

// broken is an enforcer that fails at a step.
type broken struct {
	ports.SandboxEnforcer
	prepare, apply error
	// good is how often it works before: the probe at the opening is the first.
	good *atomic.Int32
}

func (e broken) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if e.good.Add(-1) >= 0 {
		return e.SandboxEnforcer.Prepare(ctx, plan, line)
	}
	if e.prepare != nil {
		return nil, e.prepare
	}
	c, err := e.SandboxEnforcer.Prepare(ctx, plan, line)
	return brokenConfinement{c, e.apply}, err
}

type brokenConfinement struct {
	ports.Confinement
	apply error
}

func (c brokenConfinement) Apply() error { return c.apply }

// 3: an enforcer that fails means that no child ever existed.
func TestFailClosed(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	fault := errors.New("broken on purpose")
	try := func(t *testing.T, e broken, good int32) error {
		testkit.NoLeaks(t)
		e.SandboxEnforcer, e.good = sandbox.Default(), new(atomic.Int32)
		e.good.Store(good)
		dir := workDir(t)
		f := NewFactory(process.NewSpawner(process.Config{Enforcer: e}), quick)
		_, err := f.Start(t.Context(), shell(dir, confined(dir), "/bin/sh", "-c", "echo > ran"), ports.TerminalSize{})
		require.NoFileExists(t, filepath.Join(dir, "ran"))
		return err
	}
	for name, e := range map[string]broken{"prepare": {prepare: fault}, "apply": {apply: fault}} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, try(t, e, 1), fault) })
		t.Run("the probe's "+name, func(t *testing.T) { require.ErrorIs(t, try(t, e, 0), fault) })
	}
	t.Run("nothing is restricted", func(t *testing.T) {
		var probe *domain.ProbeError
		require.ErrorAs(t, try(t, broken{}, 0), &probe)
	})
	t.Run("a rule that cannot be granted", func(t *testing.T) {
		testkit.NoLeaks(t)
		dir := workDir(t)
		plan := confined(dir).WithRules(domain.PathRule{Path: filepath.Join(dir, "nothing"), Access: domain.AccessRead})
		_, err := newFactory().Start(t.Context(), shell(dir, plan, "/bin/true"), ports.TerminalSize{})
		var refused *domain.EnforcementError
		require.ErrorAs(t, err, &refused)
	})
}

// 4: unconfined is native, without any restriction; and it says so.
func TestUnconfinedIsNative(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	dir := workDir(t)
	for name, restricted := range map[string]string{"confined": "1", "native": "0"} {
		s := start(t, shell(dir, plans(dir)[name], "/bin/sh", "-c", "grep -h NoNewPrivs /proc/$$/status"))
		_, out := s.end()
		own, err := os.ReadFile("/proc/self/status")
		require.NoError(t, err)
		if strings.Contains(string(own), "NoNewPrivs:\t1") {
			t.Skip("the test itself was started without new privileges")
		}
		require.Equal(t, "NoNewPrivs:\t"+restricted+"\n", out)
		require.Equal(t, name == "native", s.Receipt().Unconfined)
		require.Equal(t, name == "native", s.Receipt().Probe.String() == "", "a confinement is tried at the opening")
	}
}

// 5: what restricts one session restricts neither the host nor the next one.
func TestASessionRestrictsNothingElse(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	first, second := workDir(t), workDir(t)
	try := "(echo x > " + first + "/made) 2> /dev/null && echo first; (echo x > " + second + "/made) 2> /dev/null && echo second; exit 0"
	for range 3 {
		_, out := start(t, shell(first, confined(first), "/bin/sh", "-c", try)).end()
		require.Equal(t, "first\n", out)
		_, out = start(t, shell(second, confined(second), "/bin/sh", "-c", try)).end()
		require.Equal(t, "second\n", out)
		require.NoError(t, os.WriteFile(filepath.Join(workDir(t), "host"), nil, 0o600))
	}
}
