package composition_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"go.uber.org/mock/gomock"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portsmock"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) {
	fakecli.Host()
	testkit.DefaultSignals()
	os.Exit(m.Run())
}

// fake returns an adapter whose program is this test binary.
func fake(t *testing.T, inner ports.AgentAdapter) ports.AgentAdapter {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	return fakecli.NewAdapter(inner, program)
}

// base are the options that keep a test to itself.
func base(t *testing.T) []composition.Option {
	t.Helper()
	return []composition.Option{
		composition.WithStateRoot(filepath.Join(t.TempDir(), "state")), composition.WithAgentAdapter(fake(t, claude.New())),
	}
}

func compose(t *testing.T, opts ...composition.Option) *composition.Caisson {
	t.Helper()
	c, err := composition.New(t.Context(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.WithoutCancel(t.Context()))) })
	return c
}

// play runs one script as a turn and returns its events.
func play(t *testing.T, o *application.Orchestrator, request application.OpenRequest, script ...string) ([]domain.Event, error) {
	t.Helper()
	if request.Agent == "" {
		request.Agent = domain.AgentClaude
	}
	if request.Workspace == "" {
		request.Workspace = t.TempDir()
	}
	session, err := o.Open(t.Context(), request)
	if err != nil {
		return nil, err
	}
	turn, err := session.Send(t.Context(), fakecli.Script(script...))
	if err != nil {
		return nil, errors.Join(err, session.Close(t.Context()))
	}
	var events []domain.Event
	for e, err := range turn.Events() {
		require.NoError(t, err)
		events = append(events, e)
	}
	require.NoError(t, session.Close(t.Context()))
	return events, nil
}

func receipt(t *testing.T, events []domain.Event) domain.Receipt {
	t.Helper()
	require.NotEmpty(t, events)
	applied, ok := events[0].Reply.(domain.SandboxApplied)
	require.True(t, ok, "the first event is %T", events[0].Reply)
	return applied.Receipt
}

func final(t *testing.T, events []domain.Event) domain.Final {
	t.Helper()
	require.NotEmpty(t, events)
	f, ok := events[len(events)-1].Reply.(domain.Final)
	require.True(t, ok, "the last event is %T", events[len(events)-1].Reply)
	return f
}

func TestTheDefaultConfines(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	outside := filepath.Join(t.TempDir(), "file")
	events, err := play(t, compose(t, base(t)...).Orchestrator, application.OpenRequest{}, "write "+outside+" x", "say hello")
	require.NoError(t, err)
	require.False(t, receipt(t, events).Unconfined)
	require.Equal(t, "landlock+seccomp", receipt(t, events).Enforcer)
	require.NoFileExists(t, outside)
	require.Equal(t, domain.OutcomeCompleted, final(t, events).Outcome)
	require.Equal(t, "hello", final(t, events).Text)
}

func TestWithSandboxEnforcer(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	mine := portstest.NewRecordingEnforcer(composition.DefaultEnforcer())
	o := compose(t, append(base(t), composition.WithSandboxEnforcer(mine))...).Orchestrator
	events, err := play(t, o, application.OpenRequest{}, "say hello")
	require.NoError(t, err)
	prepared := mine.Preparations()
	require.Len(t, prepared, 2, "the probe at the opening and a turn go through it")
	for _, p := range prepared {
		require.Equal(t, receipt(t, events).PlanDigest, p.Plan.Digest())
		require.Equal(t, 1, p.Applied)
	}
	require.Equal(t, "probed: 4 of 4 held", receipt(t, events).Probe.String())

	_, err = o.Exec(t.Context(), application.ExecRequest{Argv: []string{"/bin/true"}, Dir: "/"})
	require.NoError(t, err)
	require.Len(t, mine.Preparations(), 3, "a command goes through it, which is not probed")
}

func TestWithAllowNative(t *testing.T) {
	testkit.NoLeaks(t)
	outside := filepath.Join(t.TempDir(), "file")
	o := compose(t, append(base(t), composition.WithAllowNative())...).Orchestrator
	events, err := play(t, o, application.OpenRequest{}, "write "+outside+" x")
	require.NoError(t, err)
	require.True(t, receipt(t, events).Unconfined)
	require.Empty(t, receipt(t, events).Probe)
	require.FileExists(t, outside)

	result, err := o.Exec(t.Context(), application.ExecRequest{Argv: []string{"/bin/true"}, Dir: "/"})
	require.NoError(t, err)
	require.True(t, result.Receipt.Unconfined)
}

func TestWithStateRoot(t *testing.T) {
	root := filepath.Join(t.TempDir(), "deep", "state")
	o := compose(t, append(base(t), composition.WithStateRoot(root), composition.WithAllowNative())...).Orchestrator
	events, err := play(t, o, application.OpenRequest{}, "say hello")
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(root, "sessions", string(events[0].Session)))
}

func TestWithoutStateRootItIsInTheEnvironmentsHome(t *testing.T) {
	home := t.TempDir()
	o := compose(t, composition.WithAgentAdapter(fake(t, claude.New())), composition.WithAllowNative(),
		composition.WithEnviron(func(name string) (string, bool) {
			if name == "HOME" {
				return home, true
			}
			return "", false
		})).Orchestrator
	_, err := play(t, o, application.OpenRequest{}, "say hello")
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(home, ".local", "state", "caisson", "sessions"))
}

// renamed is an adapter under another kind.
type renamed struct {
	ports.AgentAdapter
	kind domain.AgentKind
}

func (r renamed) Kind() domain.AgentKind { return r.kind }

func TestWithAgentAdapter(t *testing.T) {
	testkit.NoLeaks(t)
	o := compose(t, append(base(t), composition.WithAllowNative(),
		composition.WithAgentAdapter(renamed{fake(t, claude.New()), "novelty"}))...).Orchestrator
	for _, kind := range []domain.AgentKind{domain.AgentClaude, "novelty"} {
		events, err := play(t, o, application.OpenRequest{Agent: kind}, "say hello")
		require.NoError(t, err, "%s is replaced, or added", kind)
		require.Equal(t, kind, events[0].Agent)
		require.Equal(t, "hello", final(t, events).Text)
	}
	_, err := play(t, o, application.OpenRequest{Agent: "other"}, "say hello")
	var invalid *domain.InvalidError
	require.ErrorAs(t, err, &invalid)
}

func TestWithEnviron(t *testing.T) {
	lookup := func(name string) (string, bool) {
		switch name {
		case "HOME":
			return "/nonexistent", true
		case "PATH":
			return "/usr/bin:/bin", true
		case "LANG":
			return "xx_YY.UTF-8", true
		}
		return "", false
	}
	o := compose(t, append(base(t), composition.WithAllowNative(), composition.WithEnviron(lookup))...).Orchestrator
	t.Setenv("LANG", "C")
	events, err := play(t, o, application.OpenRequest{}, "env LANG")
	require.NoError(t, err)
	require.Equal(t, "LANG=xx_YY.UTF-8", final(t, events).Text)
}

func TestWithModelGateway(t *testing.T) {
	gateways := &portstest.FakeModelGateway{}
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "ANTHROPIC_API_KEY": "the real one"}
	o := compose(t, append(base(t), composition.WithAllowNative(), composition.WithModelGateway(gateways),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))...).Orchestrator
	events, err := play(t, o, application.OpenRequest{}, "env ANTHROPIC_API_KEY", "env ANTHROPIC_BASE_URL")
	require.NoError(t, err)
	require.Len(t, gateways.Opened(), 1)
	g := gateways.Opened()[0]
	var texts []string
	for _, e := range events {
		if text, ok := e.Reply.(domain.Text); ok {
			texts = append(texts, text.Text)
		}
	}
	require.Equal(t, []string{"ANTHROPIC_API_KEY=" + g.Token(), "ANTHROPIC_BASE_URL=" + g.BaseURL()}, texts)
	require.True(t, g.Closed())
}

func TestWithEgressProxy(t *testing.T) {
	proxies := &portstest.FakeEgressProxy{}
	o := compose(t, append(base(t), composition.WithAllowNative(), composition.WithEgressProxy(proxies))...).Orchestrator
	d, err := domain.ParseEgressDomain("example.org")
	require.NoError(t, err)
	events, err := play(t, o, application.OpenRequest{Policy: application.Policy{Domains: []domain.EgressDomain{d}}}, "env NO_PROXY")
	require.NoError(t, err)
	require.Len(t, proxies.Opened(), 1)
	require.Equal(t, "NO_PROXY=localhost,127.0.0.1,::1", final(t, events).Text)
	require.True(t, proxies.Opened()[0].Closed())
}

func TestWithLoginStore(t *testing.T) {
	logins := portsmock.NewLoginStore(gomock.NewController(t))
	logins.EXPECT().List(gomock.Any()).Return([]ports.LoginID{{Agent: "other", Name: "mine"}}, nil)
	o := compose(t, append(base(t), composition.WithAllowNative(), composition.WithLoginStore(logins))...).Orchestrator
	kept, err := o.Logins(t.Context())
	require.NoError(t, err)
	require.Equal(t, []ports.Login{{ID: ports.LoginID{Agent: "other", Name: "mine"}}}, kept)
}

func TestWithClock(t *testing.T) {
	now := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	o := compose(t, append(base(t), composition.WithAllowNative(), composition.WithClock(func() time.Time { return now }))...).Orchestrator
	events, err := play(t, o, application.OpenRequest{}, "say hello")
	require.NoError(t, err)
	for _, e := range events {
		require.Equal(t, now, e.Time)
	}
}

func TestWithGraces(t *testing.T) {
	testkit.NoLeaks(t)
	short := 20 * time.Millisecond
	o := compose(t, append(base(t), composition.WithAllowNative(),
		composition.WithGraces(process.Graces{Interrupt: short, Terminate: short}))...).Orchestrator
	session, err := o.Open(t.Context(), application.OpenRequest{Agent: domain.AgentClaude, Workspace: t.TempDir()})
	require.NoError(t, err)
	turn, err := session.Send(t.Context(), fakecli.Script("trap", "say Working.", "hang"))
	require.NoError(t, err)
	var cancelled time.Time
	for e, err := range turn.Events() {
		require.NoError(t, err)
		if _, ok := e.Reply.(domain.Text); ok {
			cancelled = time.Now()
			turn.Cancel(errors.New("enough"))
		}
	}
	require.False(t, cancelled.IsZero())
	require.Less(t, time.Since(cancelled), 4*time.Second, "the default is 5 s for an agent that ignores everything")
	require.NoError(t, session.Close(t.Context()))
}

func TestABadOptionIsRefused(t *testing.T) {
	for name, opt := range map[string]composition.Option{
		"option":                   nil,
		"sandbox enforcer":         composition.WithSandboxEnforcer(nil),
		"state root":               composition.WithStateRoot(""),
		"agent adapter":            composition.WithAgentAdapter(nil),
		"kind is empty":            composition.WithAgentAdapter(renamed{claude.New(), ""}),
		"logger":                   composition.WithLogger(nil),
		"environment":              composition.WithEnviron(nil),
		"clock":                    composition.WithClock(nil),
		"model gateway":            composition.WithModelGateway(nil),
		"egress proxy":             composition.WithEgressProxy(nil),
		"login store":              composition.WithLoginStore(nil),
		"graces":                   composition.WithGraces(process.Graces{Drain: -1}),
		"state directory":          composition.WithStateRoot("relative/dir"),
		"WithAllowNative, not bot": composition.WithAllowNative(),
	} {
		opts := append(base(t), composition.WithSandboxEnforcer(composition.DefaultEnforcer()), opt)
		if name == "state root" || name == "state directory" {
			opts = append(opts[:1:1], opt)
		}
		_, err := composition.New(t.Context(), opts...)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, name)
		require.ErrorContains(t, err, name)
		require.Less(t, len(err.Error()), 300, "the graph is no business of the user's: %s", err)
		require.NotContains(t, err.Error(), "dig", "%s", err)
	}
}

func TestEveryBadOptionIsNamed(t *testing.T) {
	_, err := composition.New(t.Context(), composition.WithClock(nil), composition.WithLogger(nil))
	require.ErrorContains(t, err, "clock")
	require.ErrorContains(t, err, "logger")
}

func TestAnErrorOfAConstructorKeepsItsType(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := composition.New(t.Context(), composition.WithStateRoot(filepath.Join(file, "state")))
	var path *os.PathError
	require.ErrorAs(t, err, &path, "%v", err)
	require.True(t, strings.HasPrefix(err.Error(), "state directory "), "%s", err)
	require.Less(t, len(err.Error()), 400, "%s", err)
}

func TestClose(t *testing.T) {
	testkit.NoLeaks(t)
	c, err := composition.New(t.Context(), append(base(t), composition.WithAllowNative())...)
	require.NoError(t, err)
	session, err := c.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: domain.AgentClaude, Workspace: t.TempDir()})
	require.NoError(t, err)
	_, err = session.Send(t.Context(), fakecli.Script("hang"))
	require.NoError(t, err)
	require.NotEmpty(t, testkit.Children(), "the turn runs")
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, testkit.Children(), "Close ends it")
	require.NoError(t, c.Close(t.Context()), "closing twice is no error")
	_, err = c.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: domain.AgentClaude, Workspace: t.TempDir()})
	require.ErrorIs(t, err, domain.ErrClosed)
}

func TestACancelledContextStartsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := composition.New(ctx, base(t)...)
	require.ErrorIs(t, err, context.Canceled)
}

// A host that runs fx swaps an adapter at its root, and the orchestrator gets
// it.
func TestModuleInAHostsApp(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	mine := portstest.NewRecordingEnforcer(composition.DefaultEnforcer())
	var o *application.Orchestrator
	app := fx.New(fx.NopLogger, composition.Module(base(t)...), fx.Populate(&o),
		fx.Decorate(func(ports.SandboxEnforcer) ports.SandboxEnforcer { return mine }))
	require.NoError(t, app.Err())
	require.NoError(t, app.Start(t.Context()))
	_, err := play(t, o, application.OpenRequest{}, "say hello")
	require.NoError(t, err)
	require.Len(t, mine.Preparations(), 2)
	require.NoError(t, app.Stop(t.Context()))
	_, err = play(t, o, application.OpenRequest{}, "say hello")
	require.ErrorIs(t, err, domain.ErrClosed, "the app's end closes it")
}

func TestModuleReportsABadOption(t *testing.T) {
	require.ErrorContains(t, fx.New(fx.NopLogger, composition.Module(composition.WithClock(nil))).Err(), "clock")
}

func TestWithLogger(t *testing.T) {
	var log bytes.Buffer
	root := filepath.Join(t.TempDir(), "state")
	o := compose(t, append(base(t), composition.WithAllowNative(), composition.WithStateRoot(root),
		composition.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...).Orchestrator
	session, err := o.Open(t.Context(), application.OpenRequest{Agent: domain.AgentClaude, Workspace: t.TempDir()})
	require.NoError(t, err)

	require.Contains(t, log.String(), string(session.ID()))

	// Without a record of it no turn is started.
	record := filepath.Join(root, "sessions", string(session.ID()), "record.json")
	require.NoError(t, os.Remove(record))
	require.NoError(t, os.MkdirAll(filepath.Join(record, "in the way"), 0o700))
	_, err = session.Send(t.Context(), fakecli.Script("say hello"))
	require.ErrorContains(t, err, "record.json")

	require.NoError(t, os.RemoveAll(record))
	require.NoError(t, session.Close(t.Context()))
}
