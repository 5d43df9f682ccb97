package e2e

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/session"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// BenchmarkEvents runs a turn of many small events: what the session gives out
// without a store, what the application gives out of its log, and how long a turn
// takes that nobody reads.
func BenchmarkEvents(b *testing.B) {
	const events = 20_000
	prompt := fakecli.Script("lines " + strconv.Itoa(events))
	report := func(b *testing.B) {
		b.Helper()
		b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	}
	fake := fakecli.NewAdapter(claude.New(), testkit.FakeProgram())
	env := func(name string) (string, bool) {
		v, ok := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}[name]
		return v, ok
	}
	b.Run("without a store", func(b *testing.B) {
		b.ReportAllocs()
		factory, err := session.NewFactory([]ports.AgentAdapter{fake}, session.WithEnviron(env))
		require.NoError(b, err)
		install, err := fake.Resolve("", ports.Host{LookupEnv: env})
		require.NoError(b, err)
		dir := b.TempDir()
		s, err := factory.Start(b.Context(), ports.SessionSpec{
			ID: "01890a5d-ac96-774b-bcce-b302099a8057", Kind: domain.AgentClaude, Install: install, Workspace: dir,
			Dirs: ports.SessionDirs{State: dir, Home: dir, Temp: dir, Spool: dir},
		}, domain.Unconfined("a benchmark").WithEnv(domain.EnvRule{Name: "CLAUDE_CONFIG_DIR", Value: dir, Literal: true}))
		require.NoError(b, err)
		for b.Loop() {
			turn, err := s.Send(b.Context(), ports.Prompt{Text: prompt})
			require.NoError(b, err)
			n := 0
			for _, err := range turn.Events() {
				require.NoError(b, err)
				n++
			}
			require.Greater(b, n, events)
		}
		report(b)
		require.NoError(b, s.Close(b.Context()))
	})
	for name, read := range map[string]bool{"with the store": true, "with nobody reading": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c, err := composition.New(b.Context(), composition.WithStateRoot(filepath.Join(b.TempDir(), "state")),
				composition.WithAgentAdapter(fake), composition.WithEnviron(env), composition.WithAllowNative())
			require.NoError(b, err)
			s, err := c.Orchestrator.Open(b.Context(), application.OpenRequest{Agent: domain.AgentClaude, Workspace: b.TempDir()})
			require.NoError(b, err)
			for b.Loop() {
				turn, err := s.Send(b.Context(), prompt)
				require.NoError(b, err)
				if !read {
					for {
						info, err := c.Orchestrator.Session(b.Context(), s.ID())
						require.NoError(b, err)
						if info.Live == nil {
							break
						}
						time.Sleep(time.Millisecond)
					}
					continue
				}
				n := 0
				for _, err := range turn.Events() {
					require.NoError(b, err)
					n++
				}
				require.Greater(b, n, events)
			}
			report(b)
			require.NoError(b, c.Close(b.Context()))
		})
	}
}

// BenchmarkCancel measures from the kill of a confined turn with runaways to its
// final, before which its tree is gone and its log is on disk.
func BenchmarkCancel(b *testing.B) {
	testkit.RequireLandlock(b, 6)
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
	c, err := composition.New(b.Context(), composition.WithStateRoot(filepath.Join(b.TempDir(), "state")),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), testkit.FakeProgram())),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
	require.NoError(b, err)
	s, err := c.Orchestrator.Open(b.Context(), application.OpenRequest{Agent: domain.AgentClaude, Workspace: b.TempDir()})
	require.NoError(b, err)
	prompt := fakecli.Script("fork 3", "sh setsid env -i /bin/sleep 1000 >/dev/null 2>&1 & echo started", "say now", "hang")
	var took time.Duration
	for b.Loop() {
		turn, err := s.Send(b.Context(), prompt)
		require.NoError(b, err)
		var begun time.Time
		for e, err := range turn.Events() {
			require.NoError(b, err)
			if text, ok := e.Reply.(domain.Text); ok && text.Text == "now" {
				begun = time.Now()
				turn.Kill(nil)
			}
		}
		require.False(b, begun.IsZero())
		took += time.Since(begun)
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms/kill")
	require.NoError(b, c.Close(b.Context()))
}
