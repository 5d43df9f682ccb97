package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/ports/portstest/escape"
	"github.com/caisson-run/caisson/tests/testkit"
)

func newEscapeStage(t *testing.T) *escape.Stage {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	s, err := escape.NewStage(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// target runs the suite's children with the spawner alone, under a plan that
// waives whatever the enforcer does not do.
func target(s *escape.Stage, config process.Config) escape.Target {
	return targetUnder(s.Plan(testkit.FakeProgram()).WithWaivers(domain.Properties()...), config)
}

// targetUnder is target under another plan of the stage's.
func targetUnder(plan domain.SandboxPlan, config process.Config) escape.Target {
	program := testkit.FakeProgram()
	spawner := process.NewSpawner(config)
	return escape.Target{Program: program, Plan: plan, Run: func(ctx context.Context, confined bool, dir string, argv []string) (escape.Ended, error) {
		line := domain.SpawnLine{Path: argv[0], Argv: argv, Dir: dir, Env: []string{"PATH=/usr/bin:/bin"}, Sandbox: plan}
		if !confined {
			line.Sandbox = domain.Unconfined("the companion of an attempt")
		}
		var out bytes.Buffer
		result, err := spawner.Run(ctx, line, ports.Stdio{Out: &out})
		return escape.Ended{Stdout: out.String(), Exit: result.Exit}, err
	}}
}

func with(list []escape.Attempt, keep func(escape.Attempt) bool) []escape.Attempt {
	return slices.DeleteFunc(slices.Clone(list), func(a escape.Attempt) bool { return !keep(a) })
}

// The whole suite under the default enforcer, as "caisson verify" runs it.
func TestNothingEscapes(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	recording := portstest.NewRecordingEnforcer(sandbox.Default())
	s := newEscapeStage(t)
	report, err := s.Run(t.Context(), target(s, process.Config{Enforcer: recording}), escape.Attempts())
	require.NoError(t, err)
	for _, r := range report.Results {
		if r.Verdict == escape.NotProvable {
			t.Log(r)
		}
	}
	require.NoError(t, report.Err())
	least := 200
	if os.Geteuid() != 0 {
		least = 150 // many calls are refused to an ordinary user in any case
	}
	require.GreaterOrEqual(t, report.Count(escape.Held), least)
	require.Equal(t, len(with(escape.Attempts(), func(a escape.Attempt) bool { return a.Works })), report.Count(escape.Worked))
	require.GreaterOrEqual(t, len(recording.Preparations()), least, "the confined children went through the enforcer")
}

// A plan that names a unix socket lets unix sockets be made, and what goes by them or
// past them is stopped all the same.
func TestNothingEscapesBesideAUnixDestination(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	s := newEscapeStage(t)
	plan := s.Plan(testkit.FakeProgram()).WithUnixDestinations(s.UnixDestination())
	to := targetUnder(plan, process.Config{Enforcer: sandbox.Default()})
	network := []escape.Class{escape.ClassNetwork, escape.ClassUnixSockets, escape.ClassWork, escape.ClassKernel}
	list := with(escape.Attempts(), func(a escape.Attempt) bool { return slices.Contains(network, a.Class) })
	report, err := s.Run(t.Context(), to, append(list, escape.UnixDestinationAttempts()...))
	require.NoError(t, err)
	for _, r := range report.Results {
		if r.Verdict == escape.NotProvable {
			t.Log(r)
		}
	}
	require.NoError(t, report.Err())
	require.GreaterOrEqual(t, report.Count(escape.Held), 40)
	works := func(a escape.Attempt) bool { return a.Works }
	require.Len(t, with(escape.UnixDestinationAttempts(), works), 2)
	require.Equal(t, len(with(list, works))+2, report.Count(escape.Worked))
}

// Each layer alone stops its own list, and something of that list gets through
// the others: no layer is there for nothing, and none hides behind another.
func TestEachLayerAlone(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for _, layer := range sandbox.Layers() {
		list := with(escape.Attempts(), func(a escape.Attempt) bool { return slices.Contains(a.Alone, escape.Layer(layer)) })
		require.NotEmpty(t, list)
		t.Run(string(layer)+" alone", func(t *testing.T) {
			s := newEscapeStage(t)
			others := slices.DeleteFunc(sandbox.Layers(), func(l sandbox.Layer) bool { return l == layer })
			report, err := s.Run(t.Context(), target(s, process.Config{Enforcer: sandbox.NewWithout(others)}), list)
			require.NoError(t, err)
			for _, r := range report.Results {
				if r.Verdict == escape.NotProvable {
					t.Log(r)
				}
			}
			require.NoError(t, report.Err())
			t.Log(report.Count(escape.Held), "held of", len(list))
		})
		t.Run("all but "+string(layer), func(t *testing.T) {
			if layer == sandbox.Privileges && os.Geteuid() != 0 {
				t.Skip("an ordinary user has no capabilities to lose; no_new_privs stays")
			}
			s := newEscapeStage(t)
			only := with(list, func(a escape.Attempt) bool { return len(a.Alone) == 1 })
			report, err := s.Run(t.Context(), target(s, process.Config{Enforcer: sandbox.NewWithout([]sandbox.Layer{layer})}), only[:min(len(only), 40)])
			require.NoError(t, err)
			var leaks *escape.LeakError
			require.ErrorAs(t, report.Err(), &leaks)
			for _, r := range leaks.Results {
				require.Contains(t, report.Err().Error(), r.Attempt.Name)
			}
			t.Log(report.Count(escape.Leaked), "leaked of", len(report.Results))
		})
	}
	t.Run("all but the spawner", func(t *testing.T) {
		s := newEscapeStage(t)
		list := with(escape.Attempts(), func(a escape.Attempt) bool { return slices.Contains(a.Alone, escape.Spawner) })
		report, err := s.Run(t.Context(), target(s, process.Config{Enforcer: sandbox.Default(), KeepInheritedFDs: true}), list)
		require.NoError(t, err)
		require.Positive(t, report.Count(escape.Leaked), "an inherited descriptor is a hole")
	})
}

// An enforcer that lets nothing run proves nothing, and one that does nothing is
// found out.
func TestTheSuiteFindsWhatIsNoSandbox(t *testing.T) {
	testkit.NoLeaks(t)
	list := with(escape.Attempts(), func(a escape.Attempt) bool {
		return slices.Contains([]string{"read-file", "write-file", "tcp-connect", "unix-stream", "kill", "write-read-run"}, a.Name)
	})
	require.Len(t, list, 6)
	t.Run("denying", func(t *testing.T) {
		broken := errors.New("the enforcer is broken")
		s := newEscapeStage(t)
		_, err := s.Run(t.Context(), target(s, process.Config{Enforcer: portstest.DenyingEnforcer{ApplyErr: broken}}), list)
		require.ErrorIs(t, err, broken)
	})
	t.Run("doing nothing", func(t *testing.T) {
		s := newEscapeStage(t)
		nothing := target(s, process.Config{})
		inner := nothing.Run
		nothing.Run = func(ctx context.Context, _ bool, dir string, argv []string) (escape.Ended, error) {
			return inner(ctx, false, dir, argv)
		}
		report, err := s.Run(t.Context(), nothing, list)
		require.NoError(t, err)
		require.Equal(t, 5, report.Count(escape.Leaked))
		require.Equal(t, 1, report.Count(escape.Worked))
	})
	t.Run("denying everything to the child", func(t *testing.T) {
		s := newEscapeStage(t)
		mute := target(s, process.Config{})
		inner := mute.Run
		mute.Run = func(ctx context.Context, confined bool, dir string, argv []string) (escape.Ended, error) {
			if confined && !slices.Contains(argv, "victim") {
				return escape.Ended{Exit: domain.ExitStatus{Known: true, Code: 127}}, nil
			}
			return inner(ctx, false, dir, argv)
		}
		report, err := s.Run(t.Context(), mute, list)
		require.NoError(t, err)
		require.Equal(t, 5, report.Count(escape.Unclear), "no answer is no denial")
		require.Equal(t, 1, report.Count(escape.Broken))
	})
	t.Run("a plan that grants it", func(t *testing.T) {
		s := newEscapeStage(t)
		wide := target(s, process.Config{Enforcer: sandbox.Default()})
		require.NotContains(t, wide.Plan.ConnectTCP(), uint16(0))
		wide.Plan = wide.Plan.WithRules(append(wide.Plan.Rules(), domain.PathRule{Path: filepath.Dir(s.Workspace()), Access: domain.AccessReadWrite})...)
		spawner := process.NewSpawner(process.Config{Enforcer: sandbox.Default()})
		inner := wide.Run
		wide.Run = func(ctx context.Context, confined bool, dir string, argv []string) (escape.Ended, error) {
			if !confined {
				return inner(ctx, false, dir, argv)
			}
			var out bytes.Buffer
			line := domain.SpawnLine{Path: argv[0], Argv: argv, Dir: dir, Env: []string{"PATH=/usr/bin:/bin"}, Sandbox: wide.Plan}
			result, err := spawner.Run(ctx, line, ports.Stdio{Out: &out})
			return escape.Ended{Stdout: out.String(), Exit: result.Exit}, err
		}
		report, err := s.Run(t.Context(), wide, list)
		require.NoError(t, err)
		require.NoError(t, report.Err())
		require.Equal(t, 2, report.Count(escape.Granted), "reading and writing there are granted")
	})
}

// Two sessions side by side, each of which tries what only the other may.
func TestSessionsSideBySideKeepTheirOwnPlans(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		grants := [2]string{filepath.Join(s.outside, "a"), filepath.Join(s.outside, "b")}
		var sessions [2]*application.Session
		for i, dir := range grants {
			require.NoError(t, os.Mkdir(dir, 0o700))
			sessions[i] = s.open(t, application.OpenRequest{Policy: application.Policy{Rules: []domain.PathRule{{Path: dir, Access: domain.AccessReadWrite}}}})
		}
		var results [2][]domain.Event
		done := make(chan error, 2)
		for i, session := range sessions {
			go func() {
				turn, err := session.Send(t.Context(), fakecli.Script("sh echo x > "+filepath.Join(grants[i], "mine"), "sh echo x > "+filepath.Join(grants[1-i], "theirs"), "sh kill -0 1"))
				if err != nil {
					done <- err
					return
				}
				for e, err := range turn.Events() {
					if err != nil {
						done <- err
						return
					}
					results[i] = append(results[i], e)
				}
				done <- nil
			}()
		}
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		for i, dir := range grants {
			require.FileExists(t, filepath.Join(dir, "mine"), "what its own plan grants")
			require.NoFileExists(t, filepath.Join(dir, "theirs"), "what the other's plan grants")
			tools := resultsOf(results[i])
			require.Len(t, tools, 3)
			require.Equal(t, domain.ToolCompleted, tools[0].Status)
			require.Equal(t, domain.ToolFailed, tools[1].Status)
			require.Equal(t, domain.ToolFailed, tools[2].Status)
		}
	})
}
