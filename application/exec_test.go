package application_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func program(t *testing.T, mode os.FileMode, parts ...string) string {
	t.Helper()
	file := write(t, "#!/bin/sh\n", parts...)
	require.NoError(t, os.Chmod(file, mode))
	return file
}

func TestExec(t *testing.T) {
	r := newRig(t)
	tool := program(t, 0o755, r.home, "bin", "tool")
	r.env["PATH"] = filepath.Dir(tool)
	r.env["SECRET"] = "x"
	var out bytes.Buffer
	stdio := ports.Stdio{Out: &out}
	var temp string
	want := ports.CommandResult{Exit: domain.ExitStatus{Known: true, Code: 7}}
	r.commands.run = func(_ context.Context, line domain.SpawnLine, got ports.Stdio) (ports.CommandResult, error) {
		require.NoError(t, line.Validate())
		require.Equal(t, tool, line.Path)
		require.Equal(t, []string{"tool", "arg"}, line.Argv)
		require.Equal(t, r.workspace, line.Dir)
		require.Equal(t, stdio, got)
		require.True(t, line.Sandbox.IsConfined())
		require.Equal(t, "exec", line.Sandbox.Preset())
		i := slices.IndexFunc(line.Env, func(s string) bool { return len(s) > 7 && s[:7] == "TMPDIR=" })
		temp = line.Env[i][7:]
		require.DirExists(t, temp)
		require.NoError(t, os.WriteFile(filepath.Join(temp, "left"), nil, 0o400))
		require.NoError(t, os.Chmod(temp, 0o500))
		require.ElementsMatch(t, []string{"PATH=" + filepath.Dir(tool), "HOME=" + r.home, "TMPDIR=" + temp, "LANG=C.UTF-8", "ADDED=1"}, line.Env)
		access := map[string]domain.Access{}
		for _, rule := range line.Sandbox.Rules() {
			access[rule.Path] = rule.Access
		}
		require.Equal(t, domain.AccessReadExec, access[tool], "the command itself")
		require.Equal(t, domain.AccessReadWriteExec, access[temp])
		require.Equal(t, domain.AccessRead, access["/usr/share"])
		require.Equal(t, domain.AccessReadExec, access["/usr"])
		require.Equal(t, domain.AccessReadExec, access[filepath.Dir(tool)], "what is on PATH")
		for _, never := range []string{r.home, r.workspace} {
			require.NotContains(t, access, never)
		}
		return want, nil
	}
	got, err := r.Exec(t.Context(), application.ExecRequest{
		Argv: []string{"tool", "arg"}, Dir: r.workspace, Stdio: stdio,
		Policy: application.Policy{
			Rules: []domain.PathRule{{Path: "/usr/share", Access: domain.AccessRead}},
			Env:   []domain.EnvRule{{Name: "ADDED", Value: "1", Literal: true}},
		},
	})
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NotEmpty(t, temp)
	require.Empty(t, r.left(t))
}

// The place of a command that runs is not one that was left behind.
func TestPruneLeavesARunningCommandItsDirectory(t *testing.T) {
	r := newRig(t)
	r.commands.run = func(ctx context.Context, line domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		removed, err := r.Prune(ctx, application.Retention{MaxCount: 1})
		require.NoError(t, err)
		require.Empty(t, removed)
		i := slices.IndexFunc(line.Env, func(s string) bool { return strings.HasPrefix(s, "TMPDIR=") })
		require.DirExists(t, line.Env[i][len("TMPDIR="):])
		return ports.CommandResult{}, nil
	}
	_, err := r.Exec(t.Context(), application.ExecRequest{Argv: []string{"/bin/true"}, Dir: r.workspace})
	require.NoError(t, err)
	require.Empty(t, r.left(t))
}

func TestExecLeavesNothingWhenItFails(t *testing.T) {
	broken := errors.New("broken")
	for name, change := range map[string]func(*rig, *application.ExecRequest){
		"run": func(r *rig, _ *application.ExecRequest) {
			r.commands.run = func(context.Context, domain.SpawnLine, ports.Stdio) (ports.CommandResult, error) {
				return ports.CommandResult{}, broken
			}
		},
		"directories": func(r *rig, _ *application.ExecRequest) { r.records.dirs = broken },
		"plan": func(_ *rig, q *application.ExecRequest) {
			q.Policy.Rules = []domain.PathRule{{Path: "/no/where", Access: domain.AccessRead}}
		},
		"line":    func(_ *rig, q *application.ExecRequest) { q.Argv = []string{"cat", "a\x00b"} },
		"program": func(_ *rig, q *application.ExecRequest) { q.Argv = []string{"no-such-program"} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			req := application.ExecRequest{Argv: []string{"cat"}, Dir: r.workspace}
			change(r, &req)
			_, err := r.Exec(t.Context(), req)
			require.Error(t, err)
			require.Empty(t, r.left(t))
		})
	}
}

func TestExecFindsTheProgram(t *testing.T) {
	r := newRig(t)
	dir := func(name string) string { return filepath.Join(r.home, name) }
	good := program(t, 0o755, dir("good"), "tool")
	dull := program(t, 0o644, dir("dull"), "tool")
	mkdir(t, dir("dirs"), "tool")
	program(t, 0o755, r.workspace, "rel", "tool")
	require.NoError(t, os.Symlink("good", dir("alias")))
	for name, c := range map[string]struct {
		argv0, path string
		want        string
		err         error
	}{
		"on PATH":                          {"tool", dir("missing") + ":" + dir("good"), good, nil},
		"past one that cannot be executed": {"tool", dir("dull") + ":" + dir("dirs") + ":" + dir("good"), good, nil},
		"as found, not as resolved":        {"tool", dir("alias"), filepath.Join(dir("alias"), "tool"), nil},
		"not in relative entries":          {"tool", "rel::.", "", fs.ErrNotExist},
		"nowhere":                          {"tool", dir("missing"), "", fs.ErrNotExist},
		"without execute permission":       {"tool", dir("dull"), "", fs.ErrPermission},
		"a directory":                      {"tool", dir("dirs"), "", fs.ErrPermission},
		"by its path":                      {good, "", good, nil},
		"by a relative path":               {"rel/tool", "", filepath.Join(r.workspace, "rel", "tool"), nil},
		"by a path with dots":              {"./rel/../rel/tool", "", filepath.Join(r.workspace, "rel", "tool"), nil},
		"a path that is not there":         {dir("missing"), "", "", fs.ErrNotExist},
		"a path that cannot be executed":   {dull, "", "", fs.ErrPermission},
		"the default without a PATH":       {"sh", "", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r.env["PATH"] = c.path
			var got string
			r.commands.run = func(_ context.Context, line domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
				got = line.Path
				return ports.CommandResult{}, nil
			}
			_, err := r.Exec(t.Context(), application.ExecRequest{Argv: []string{c.argv0}, Dir: r.workspace})
			if c.err != nil {
				var spawn *domain.SpawnError
				require.ErrorAs(t, err, &spawn)
				require.ErrorIs(t, err, c.err)
				require.NotErrorIs(t, err, map[error]error{fs.ErrNotExist: fs.ErrPermission, fs.ErrPermission: fs.ErrNotExist}[c.err])
				return
			}
			require.NoError(t, err)
			if c.want != "" {
				require.Equal(t, c.want, got)
			}
			require.True(t, filepath.IsAbs(got))
		})
	}
}

func TestExecBadRequests(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		change func(*application.ExecRequest)
		what   string
	}{
		"no command":       {func(q *application.ExecRequest) { q.Argv = nil }, "command"},
		"an empty command": {func(q *application.ExecRequest) { q.Argv = []string{""} }, "command"},
		"no directory":     {func(q *application.ExecRequest) { q.Dir = "" }, "working directory"},
		"a file":           {func(q *application.ExecRequest) { q.Dir = "/bin/cat" }, "working directory"},
		"an idle limit":    {func(q *application.ExecRequest) { q.Policy.Limits.Idle = 1 }, "idle limit"},
		"off, no reason":   {func(q *application.ExecRequest) { q.Sandbox = application.SandboxOff("") }, "sandbox"},
		"the state": {func(q *application.ExecRequest) {
			q.Policy.Rules = []domain.PathRule{{Path: r.records.Root(), Access: domain.AccessReadWrite}}
		}, "writable path (policy)"},
		"Caisson itself": {func(q *application.ExecRequest) {
			exe, err := os.Executable()
			require.NoError(t, err)
			q.Policy.Rules = []domain.PathRule{{Path: filepath.Dir(exe), Access: domain.AccessReadWrite}}
		}, "writable path (policy)"},
	} {
		t.Run(name, func(t *testing.T) {
			req := application.ExecRequest{Argv: []string{"cat"}, Dir: r.workspace}
			c.change(&req)
			_, err := r.Exec(t.Context(), req)
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, c.what, invalid.What)
			_, err = r.PlanExec(t.Context(), req)
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, c.what, invalid.What)
			require.Empty(t, r.left(t))
		})
	}
}

func TestExecWithoutASandbox(t *testing.T) {
	r := newRig(t)
	var line domain.SpawnLine
	r.commands.run = func(_ context.Context, l domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		line = l
		return ports.CommandResult{}, nil
	}
	_, err := r.Exec(t.Context(), application.ExecRequest{Argv: []string{"cat"}, Dir: "/", Sandbox: application.SandboxOff("a test")})
	require.NoError(t, err)
	require.True(t, line.Sandbox.IsUnconfined())
	require.Equal(t, "a test", line.Sandbox.Why())
	require.Contains(t, line.Env, "HOME="+r.home)
}

func TestExecEndsAtTheWallClockLimit(t *testing.T) {
	r := newRig(t)
	r.commands.run = func(ctx context.Context, _ domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		<-ctx.Done()
		var timeout *domain.TimeoutError
		require.ErrorAs(t, context.Cause(ctx), &timeout)
		require.Equal(t, 10*time.Millisecond, timeout.Limit)
		return ports.CommandResult{Exit: domain.ExitStatus{Known: true, Code: -1, Signal: "SIGTERM"}}, nil
	}
	result, err := r.Exec(t.Context(), application.ExecRequest{
		Argv: []string{"cat"}, Dir: "/", Policy: application.Policy{Limits: domain.Limits{WallClock: 10 * time.Millisecond}},
	})
	require.NoError(t, err)
	require.Equal(t, "SIGTERM", result.Exit.Signal)
}

func TestPlanExecIsThePlanOfExecAndMakesNothing(t *testing.T) {
	r := newRig(t)
	req := application.ExecRequest{Argv: []string{"cat"}, Dir: r.workspace, Policy: application.Policy{ConnectTCP: []uint16{443}}}
	plan, err := r.PlanExec(t.Context(), req)
	require.NoError(t, err)
	require.Empty(t, r.left(t))
	require.Equal(t, []uint16{443}, plan.ConnectTCP())
	var ran domain.SandboxPlan
	r.commands.run = func(_ context.Context, l domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		ran = l.Sandbox
		return ports.CommandResult{}, nil
	}
	_, err = r.Exec(t.Context(), req)
	require.NoError(t, err)
	require.Len(t, ran.Rules(), len(plan.Rules()))
	require.Equal(t, plan.Env()[0], ran.Env()[0])
}

// A command that an embedder runs in another goroutine does not outlive the
// orchestrator.
func TestClosingTheOrchestratorEndsItsCommands(t *testing.T) {
	r := newRig(t)
	started, goOn := make(chan struct{}), make(chan struct{})
	r.commands.run = func(ctx context.Context, _ domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		close(started)
		<-ctx.Done()
		<-goOn
		return ports.CommandResult{}, context.Cause(ctx)
	}
	ran := make(chan error, 1)
	go func() {
		_, err := r.Exec(context.WithoutCancel(t.Context()), application.ExecRequest{Argv: []string{"cat"}, Dir: r.workspace})
		ran <- err
	}()
	<-started
	over, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Close(over), context.DeadlineExceeded, "it waits for the command's end")
	require.NotEmpty(t, r.left(t))
	close(goOn)
	require.NoError(t, r.Close(t.Context()))
	require.Empty(t, r.left(t), "and for the end of its directory")
	require.ErrorIs(t, <-ran, domain.ErrClosed)
	_, err := r.Exec(t.Context(), application.ExecRequest{Argv: []string{"cat"}, Dir: r.workspace})
	require.ErrorIs(t, err, domain.ErrClosed)
}
