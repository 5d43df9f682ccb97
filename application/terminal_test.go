package application_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

// fakeTerminals starts sessions that nothing runs in.
type fakeTerminals struct {
	mu     sync.Mutex
	fail   error
	closed int
	// The last start.
	line domain.SpawnLine
	size ports.TerminalSize
}

func (f *fakeTerminals) Start(_ context.Context, line domain.SpawnLine, size ports.TerminalSize) (ports.TerminalSession, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line, f.size = line, size
	return &fakeTerminal{of: f}, f.fail
}

type fakeTerminal struct {
	of *fakeTerminals
	io.ReadWriter
}

func (*fakeTerminal) Receipt() domain.Receipt         { return domain.Receipt{Enforcer: "fake"} }
func (*fakeTerminal) Resize(ports.TerminalSize) error { return nil }
func (*fakeTerminal) Cancel(error)                    {}
func (*fakeTerminal) Kill(error)                      {}

func (*fakeTerminal) Wait(context.Context) (ports.TerminalResult, error) {
	return ports.TerminalResult{Exit: domain.ExitStatus{Known: true}}, nil
}

func (f *fakeTerminal) Close(ctx context.Context) error {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.closed++
	return ctx.Err()
}

// interactive is a fake agent that has an interface.
type interactive struct{ portstest.FakeAgent }

func (a interactive) Interactive(turn ports.TurnRequest) (domain.SpawnLine, error) {
	if turn.Model == "none" {
		return domain.SpawnLine{}, errNoModel
	}
	return domain.SpawnLine{Path: a.Program, Argv: []string{a.Program, turn.Model}, Env: []string{"LANG=agent", "STATE=" + turn.Dirs.State}}, nil
}

var errNoModel = errors.New("no such model")

func newTerminalRig(t *testing.T) (*rig, *fakeTerminals) {
	t.Helper()
	terminals := &fakeTerminals{}
	r := newRig(t, func(c *application.Config) {
		c.Terminals = terminals
		c.Agents = append(c.Agents, interactive{portstest.FakeAgent{AgentKind: "drawn", Program: "/bin/cat"}})
	})
	return r, terminals
}

func (r *rig) terminal() application.TerminalRequest {
	return application.TerminalRequest{Workspace: r.workspace, Size: ports.TerminalSize{Rows: 10, Columns: 20}}
}

func TestATerminalHasItsPlanAndPrivateDirectories(t *testing.T) {
	r, terminals := newTerminalRig(t)
	req := r.terminal()
	req.Argv = []string{"sh", "-i"}
	term, err := r.OpenTerminal(t.Context(), req)
	require.NoError(t, err)
	line := terminals.line
	require.NoError(t, line.Validate())
	require.Equal(t, req.Size, terminals.size)
	require.Equal(t, "sh", filepath.Base(line.Path))
	require.Equal(t, []string{"sh", "-i"}, line.Argv)
	require.Equal(t, r.workspace, line.Dir)
	require.Equal(t, "coding", line.Sandbox.Preset())
	require.Equal(t, term.Plan(), line.Sandbox)
	access := map[string]domain.Access{}
	for _, rule := range line.Sandbox.Rules() {
		access[rule.Path] = rule.Access
	}
	require.Equal(t, domain.AccessReadWriteExec, access[r.workspace])
	require.Equal(t, domain.AccessReadFile|domain.AccessWriteFile|domain.AccessIoctlDev, access["/dev/tty"])
	for _, never := range []string{r.home, "/dev", "/dev/pts", "/dev/ptmx"} {
		require.NotContains(t, access, never)
	}
	i := slices.IndexFunc(line.Env, func(s string) bool { return strings.HasPrefix(s, "HOME=") })
	home := strings.TrimPrefix(line.Env[i], "HOME=")
	require.DirExists(t, home)
	require.Equal(t, domain.AccessReadWriteExec, access[home])

	require.NoError(t, term.Close(t.Context()))
	require.NoError(t, term.Close(t.Context()))
	require.Empty(t, r.left(t))
}

func TestATerminalsDefaultIsTheShell(t *testing.T) {
	r, terminals := newTerminalRig(t)
	mine := program(t, 0o755, r.home, "bin", "mysh")
	for shell, want := range map[string]string{"": "/bin/sh", mine: mine, "/nonexistent": "/bin/sh"} {
		r.env["SHELL"] = shell
		term, err := r.OpenTerminal(t.Context(), r.terminal())
		require.NoError(t, err)
		require.Equal(t, want, terminals.line.Path)
		require.Equal(t, []string{want}, terminals.line.Argv)
		require.NoError(t, term.Close(t.Context()))
	}
}

func TestAnAgentsOwnInterface(t *testing.T) {
	r, terminals := newTerminalRig(t)
	req := r.terminal()
	req.Agent, req.Model = "drawn", "best"
	term, err := r.OpenTerminal(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/cat", "best"}, terminals.line.Argv)
	require.Contains(t, terminals.line.Env, "LANG=agent")
	require.NotContains(t, terminals.line.Env, "LANG=C.UTF-8", "of one name there is one value")
	require.Equal(t, "fake", term.Receipt().Enforcer)
	require.NoError(t, term.Close(t.Context()))
	require.Empty(t, r.left(t))
}

func TestBadRequestsForATerminalLeaveNothing(t *testing.T) {
	r, terminals := newTerminalRig(t)
	fault := errors.New("broken on purpose")
	for name, c := range map[string]struct {
		change func(*application.TerminalRequest)
		want   any
	}{
		"agent and command":  {func(q *application.TerminalRequest) { q.Agent, q.Argv = "drawn", []string{"sh"} }, &domain.InvalidError{}},
		"no such agent":      {func(q *application.TerminalRequest) { q.Agent = "other" }, &domain.InvalidError{}},
		"no interface":       {func(q *application.TerminalRequest) { q.Agent = "fake" }, &domain.InvalidError{}},
		"agent's own error":  {func(q *application.TerminalRequest) { q.Agent, q.Model = "drawn", "none" }, errNoModel},
		"idle limit":         {func(q *application.TerminalRequest) { q.Policy.Limits.Idle = time.Second }, &domain.InvalidError{}},
		"no program":         {func(q *application.TerminalRequest) { q.Argv = []string{"nonexistent-command"} }, fs.ErrNotExist},
		"empty program":      {func(q *application.TerminalRequest) { q.Argv = []string{""} }, &domain.InvalidError{}},
		"no workspace":       {func(q *application.TerminalRequest) { q.Workspace = "/nonexistent" }, &domain.InvalidError{}},
		"home as workspace":  {func(q *application.TerminalRequest) { q.Workspace = r.home }, &domain.InvalidError{}},
		"off without reason": {func(q *application.TerminalRequest) { q.Sandbox = application.SandboxOff("") }, &domain.InvalidError{}},
		"start":              {func(*application.TerminalRequest) { terminals.fail = fault }, fault},
	} {
		t.Run(name, func(t *testing.T) {
			req := r.terminal()
			c.change(&req)
			_, err := r.OpenTerminal(t.Context(), req)
			var invalid *domain.InvalidError
			if want, ok := c.want.(error); ok && !errors.As(want, &invalid) {
				require.ErrorIs(t, err, want)
			} else {
				require.ErrorAs(t, err, &invalid)
			}
			require.Empty(t, r.left(t))
		})
	}
	terminals.fail = nil
	bare := newRig(t)
	_, err := bare.OpenTerminal(t.Context(), bare.terminal())
	require.ErrorContains(t, err, "application.Config.Terminals")
}

func TestClosingTheOrchestratorClosesItsTerminals(t *testing.T) {
	r, terminals := newTerminalRig(t)
	_, err := r.OpenTerminal(t.Context(), r.terminal())
	require.NoError(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Close(over), context.Canceled)
	require.NotEmpty(t, r.left(t), "a program that may still run has its directories")
	require.NoError(t, r.Close(t.Context()))
	require.Empty(t, r.left(t))
	require.Positive(t, terminals.closed)
	_, err = r.OpenTerminal(t.Context(), r.terminal())
	require.ErrorIs(t, err, domain.ErrClosed)
}

// What could not be removed is not forgotten.
func TestATerminalThatCannotBeRemovedCanBeClosedAgain(t *testing.T) {
	r, _ := newTerminalRig(t)
	term, err := r.OpenTerminal(t.Context(), r.terminal())
	require.NoError(t, err)
	full := errors.New("it cannot be removed")
	r.records.set(&r.records.remove, full)
	require.ErrorIs(t, term.Close(t.Context()), full)
	require.NotEmpty(t, r.left(t))
	require.ErrorIs(t, r.Close(t.Context()), full, "the orchestrator knows of it still")
	r.records.set(&r.records.remove, nil)
	require.NoError(t, r.Close(t.Context()))
	require.Empty(t, r.left(t))
	require.NoError(t, term.Close(t.Context()))
}
