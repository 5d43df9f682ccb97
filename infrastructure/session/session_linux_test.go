package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) {
	fakecli.Host() // where the fake cannot be built, the test binary is it
	testkit.MainWithFake(m)
}

// place is where a session of a test lives.
type place struct {
	workspace string
	dirs      ports.SessionDirs
}

func newPlace(tb testing.TB) place {
	root, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)
	dir := func(name string) string {
		d := filepath.Join(root, name)
		require.NoError(tb, os.MkdirAll(d, 0o700))
		return d
	}
	return place{dir("workspace"), ports.SessionDirs{State: dir("agent"), Home: dir("home"), Temp: dir("tmp"), Spool: dir("spool")}}
}

// plan is a plan as an application computes it, with only what a test needs.
func (p place) plan() domain.SandboxPlan {
	plan := domain.NewSandboxPlan("test")
	for _, path := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"} {
		plan = plan.WithRules(domain.PathRule{Path: path, Access: domain.AccessReadExec, Presence: domain.Optional})
	}
	for _, path := range []string{p.workspace, p.dirs.State, p.dirs.Home, p.dirs.Temp} {
		plan = plan.WithRules(domain.PathRule{Path: path, Access: domain.AccessReadWriteExec})
	}
	return plan.
		WithRules(domain.PathRule{Path: "/dev/null", Access: domain.AccessReadWrite.ForFile()}, domain.PathRule{Path: testkit.FakeProgram(), Access: domain.AccessReadExec}).
		WithEnv(p.env()...)
}

func (p place) env() []domain.EnvRule {
	return []domain.EnvRule{
		{Name: "PATH", Value: "/usr/bin:/bin", Literal: true},
		{Name: "HOME", Value: p.dirs.Home, Literal: true},
		{Name: "TMPDIR", Value: p.dirs.Temp, Literal: true},
	}
}

var quick = process.Graces{Interrupt: 2 * time.Second, Terminate: time.Second}

// factories are the ways to run, each with the sandbox that a session gets.
func factories(t *testing.T) map[string]struct {
	options  []Option
	sandbox  func(place) domain.SandboxPlan
	confined bool
} {
	testkit.RequireLandlock(t, 6)
	type mode = struct {
		options  []Option
		sandbox  func(place) domain.SandboxPlan
		confined bool
	}
	return map[string]mode{
		"confined": {[]Option{WithSandboxEnforcer(sandbox.Default())}, place.plan, true},
		"unconfined": {[]Option{WithSandboxEnforcer(sandbox.Default())}, func(p place) domain.SandboxPlan {
			return domain.Unconfined("a test").WithEnv(p.env()...)
		}, false},
		"native": {[]Option{AllowNative()}, place.plan, false},
	}
}

func adapters(t testing.TB) map[domain.AgentKind]ports.AgentAdapter {
	exe := testkit.FakeProgram()
	return map[domain.AgentKind]ports.AgentAdapter{
		domain.AgentClaude: fakecli.NewAdapter(claude.New(), exe),
		domain.AgentCodex:  fakecli.NewAdapter(codex.New(), exe),
	}
}

func specOf(tb testing.TB, a ports.AgentAdapter, p place) ports.SessionSpec {
	install, err := a.Resolve("", ports.Host{LookupEnv: func(string) (string, bool) { return "", false }})
	require.NoError(tb, err)
	return ports.SessionSpec{
		ID: domain.SessionID(uuid.NewString()), Kind: a.Kind(), Install: install, Workspace: p.workspace, Dirs: p.dirs,
	}
}

func prompts() portstest.SessionPrompts {
	return portstest.SessionPrompts{
		Say:      func(text string) string { return fakecli.Script("say " + text) },
		Tool:     fakecli.Script("sh echo from the tool", "say done"),
		Hang:     fakecli.Script("say waiting", "hang"),
		Remember: func(word string) string { return fakecli.Script("say the word is " + word) },
		Recall:   fakecli.Script("recall"),
		Fail:     fakecli.Script("error overloaded_error try later"),
		Crash:    fakecli.Script("say bye", "kill SEGV"),
	}
}

// The Liskov harness: one behaviour, whatever the agent and the sandbox.
func TestSessionsKeepTheContract(t *testing.T) {
	for kind, a := range adapters(t) {
		for name, mode := range factories(t) {
			t.Run(fmt.Sprintf("%s/%s", kind, name), func(t *testing.T) {
				testkit.NoLeaks(t)
				f, err := NewFactory([]ports.AgentAdapter{a}, append(mode.options, WithGraces(quick))...)
				require.NoError(t, err)
				places := map[ports.StructuredSession]place{}
				open := func(tb testing.TB, p place, conversation string) ports.StructuredSession {
					spec := specOf(tb, a, p)
					spec.ConversationID = conversation
					s, err := f.Start(tb.Context(), spec, mode.sandbox(p))
					require.NoError(tb, err)
					places[s] = p
					return s
				}
				portstest.AssertAgentSessionContract(t, portstest.SessionHarness{
					Open: func(tb testing.TB) ports.StructuredSession { return open(tb, newPlace(tb), "") },
					Reopen: func(tb testing.TB, earlier ports.StructuredSession) ports.StructuredSession {
						return open(tb, places[earlier], earlier.ConversationID())
					},
					Prompts:  prompts(),
					Features: portstest.SessionFeatures{GivesFinal: true, Confined: mode.confined, Resumes: true},
				})
			})
		}
	}
}

func TestStartRefuses(t *testing.T) {
	p := newPlace(t)
	a := adapters(t)[domain.AgentClaude]
	all := []ports.AgentAdapter{a}
	spec := specOf(t, a, p)
	start := func(adapters []ports.AgentAdapter, change func(*ports.SessionSpec), plan domain.SandboxPlan, opts ...Option) error {
		f, err := NewFactory(adapters, opts...)
		require.NoError(t, err)
		spec := spec
		if change != nil {
			change(&spec)
		}
		s, err := f.Start(t.Context(), spec, plan)
		require.Nil(t, s)
		return err
	}
	var invalid *domain.InvalidError
	var strict *domain.StrictnessError
	require.ErrorIs(t, start(all, nil, domain.SandboxPlan{}, AllowNative()), domain.ErrNoSandbox)
	require.ErrorIs(t, start(all, nil, p.plan()), domain.ErrNoEnforcer)
	require.ErrorAs(t, start(nil, nil, p.plan()), &invalid)
	require.Contains(t, invalid.Error(), `"claude"`)
	require.ErrorAs(t, start(all, func(s *ports.SessionSpec) { s.ConversationID = "--help" }, domain.Unconfined("test")), &invalid)
	require.Contains(t, invalid.Error(), "--help")
	require.ErrorAs(t, start(all, nil, domain.NewSandboxPlan("strict").WithLimits(domain.Limits{Pids: 1}), WithSandboxEnforcer(sandbox.Default())), &strict)
	require.Contains(t, strict.Error(), "--waive pids-limit")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := NewFactory(all)
	require.NoError(t, err)
	_, err = f.Start(ctx, spec, domain.Unconfined("test"))
	require.ErrorIs(t, err, context.Canceled)
	_, err = NewFactory([]ports.AgentAdapter{a, a})
	require.ErrorAs(t, err, &invalid)
}

// The environment of the child is what the plan lists and what the agent's
// adapter adds, nothing else; values are looked up when the turn starts.
func TestEnvironment(t *testing.T) {
	testkit.NoLeaks(t)
	t.Setenv("CAISSON_TEST_STRAY", "must not pass")
	p := newPlace(t)
	a := adapters(t)[domain.AgentClaude]
	value := "first"
	f, err := NewFactory([]ports.AgentAdapter{a}, WithEnviron(func(name string) (string, bool) {
		return value, name == "SECRET"
	}))
	require.NoError(t, err)
	plan := domain.Unconfined("test").WithEnv(p.env()...).WithEnv(
		domain.EnvRule{Name: "SECRET", Secret: true}, domain.EnvRule{Name: "ABSENT"})
	s, err := f.Start(t.Context(), specOf(t, a, p), plan)
	require.NoError(t, err)
	ask := func() (texts []string) {
		turn, err := s.Send(t.Context(), ports.Prompt{Text: fakecli.Script("env SECRET", "env ABSENT", "env CAISSON_TEST_STRAY", "env HOME")})
		require.NoError(t, err)
		for e, err := range turn.Events() {
			require.NoError(t, err)
			if text, ok := e.(domain.Text); ok {
				texts = append(texts, text.Text)
			}
		}
		return texts
	}
	require.Equal(t, []string{"SECRET=first", "ABSENT unset", "CAISSON_TEST_STRAY unset", "HOME=" + p.dirs.Home}, ask())
	value = "second"
	require.Equal(t, "SECRET=second", ask()[0])
	require.NoError(t, s.Close(t.Context()))
}

// inert is an enforcer that restricts nothing.
type inert struct{ ports.SandboxEnforcer }

func (e inert) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := e.SandboxEnforcer.Prepare(ctx, plan, line)
	if err != nil {
		return nil, err
	}
	return inertConfinement{c}, nil
}

type inertConfinement struct{ ports.Confinement }

func (inertConfinement) Apply() error { return nil }

// A session opens only if its confinement holds, and its receipts say how that
// was tried.
func TestTheConfinementIsTriedAtTheOpening(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	p := newPlace(t)
	a := adapters(t)[domain.AgentCodex]
	f, err := NewFactory([]ports.AgentAdapter{a}, WithSandboxEnforcer(inert{sandbox.Default()}))
	require.NoError(t, err)
	s, err := f.Start(t.Context(), specOf(t, a, p), p.plan())
	require.Nil(t, s)
	var probe *domain.ProbeError
	require.ErrorAs(t, err, &probe)
	require.Equal(t, domain.ProbeDeniedRead, probe.Attempt)
	require.Equal(t, p.dirs.Spool, filepath.Dir(probe.Target))

	f, err = NewFactory([]ports.AgentAdapter{a}, WithSandboxEnforcer(sandbox.Default()), WithGraces(quick))
	require.NoError(t, err)
	s, err = f.Start(t.Context(), specOf(t, a, p), p.plan())
	require.NoError(t, err)
	for range 2 {
		turn, err := s.Send(t.Context(), ports.Prompt{Text: fakecli.Script("say x")})
		require.NoError(t, err)
		for e, err := range turn.Events() {
			require.NoError(t, err)
			if applied, ok := e.(domain.SandboxApplied); ok {
				require.Equal(t, "probed: 4 of 4 held", applied.Receipt.Probe.String())
				require.Equal(t, p.dirs.Temp, filepath.Dir(applied.Receipt.Probe.Checks[0].Target))
			}
		}
	}
	require.NoError(t, s.Close(t.Context()))
	for _, dir := range []string{p.dirs.Temp, p.dirs.Spool} {
		left, err := filepath.Glob(filepath.Join(dir, ".caisson-probe-*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// A parser of ours that fails ends the turn with an error of ours.
func TestParserFault(t *testing.T) {
	testkit.NoLeaks(t)
	p := newPlace(t)
	a := faultyAdapter{adapters(t)[domain.AgentClaude]}
	f, err := NewFactory([]ports.AgentAdapter{a}, WithGraces(quick))
	require.NoError(t, err)
	s, err := f.Start(t.Context(), specOf(t, a, p), domain.Unconfined("test").WithEnv(p.env()...))
	require.NoError(t, err)
	turn, err := s.Send(t.Context(), ports.Prompt{Text: fakecli.Script("say x", "hang")})
	require.NoError(t, err)
	var last domain.ReplyEvent
	var failure error
	for e, err := range turn.Events() {
		if err != nil {
			failure = err
			continue
		}
		require.NoError(t, failure, "the error must be last")
		last = e
	}
	require.ErrorIs(t, failure, errFault)
	final, ok := last.(domain.Final)
	require.True(t, ok)
	require.Equal(t, domain.OutcomeFailed, final.Outcome)
	require.Equal(t, domain.ErrorClassInternal, final.Error.Class)
	require.NoError(t, s.Close(t.Context()))
}

var errFault = errors.New("a fault of the parser")

type faultyAdapter struct{ ports.AgentAdapter }

func (a faultyAdapter) NewParser(r ports.TurnRequest) ports.Parser {
	return faultyParser{a.AgentAdapter.NewParser(r)}
}

type faultyParser struct{ ports.Parser }

func (faultyParser) ParseEvent([]byte) (ports.Parsed, error) { return ports.Parsed{}, errFault }

// A reader that panics leaves a session that can go on.
func TestAPanicOfTheReader(t *testing.T) {
	testkit.NoLeaks(t)
	p := newPlace(t)
	a := adapters(t)[domain.AgentClaude]
	f, err := NewFactory([]ports.AgentAdapter{a}, WithGraces(quick))
	require.NoError(t, err)
	s, err := f.Start(t.Context(), specOf(t, a, p), domain.Unconfined("test").WithEnv(p.env()...))
	require.NoError(t, err)
	turn, err := s.Send(t.Context(), ports.Prompt{Text: fakecli.Script("say x", "hang")})
	require.NoError(t, err)
	require.PanicsWithValue(t, "boom", func() {
		for e := range turn.Events() {
			if _, ok := e.(domain.Text); ok {
				panic("boom")
			}
		}
	})
	turn, err = s.Send(t.Context(), ports.Prompt{Text: fakecli.Script("say y")})
	require.NoError(t, err)
	for _, err := range turn.Events() {
		require.NoError(t, err)
	}
	require.NoError(t, s.Close(t.Context()))
}

// slowEnforcer takes its time to prepare.
type slowEnforcer struct{ ports.SandboxEnforcer }

func (e slowEnforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	time.Sleep(300 * time.Millisecond)
	return e.SandboxEnforcer.Prepare(ctx, plan, line)
}

// A Close that gives up waiting for a start must not leave the turn running.
func TestCloseDuringTheStart(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	p := newPlace(t)
	a := adapters(t)[domain.AgentClaude]
	f, err := NewFactory([]ports.AgentAdapter{a}, WithGraces(quick), WithSandboxEnforcer(slowEnforcer{sandbox.Default()}))
	require.NoError(t, err)
	s, err := f.Start(t.Context(), specOf(t, a, p), p.plan())
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		_, err := s.Send(context.Background(), ports.Prompt{Text: fakecli.Script("hang")})
		sent <- err
	}()
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Close(ctx), context.Canceled)
	require.ErrorIs(t, <-sent, domain.ErrClosed)
	require.Empty(t, testkit.Children())
	require.NoError(t, s.Close(t.Context()))
}

// Closing while nobody reads the turn must not wait for a reader.
func TestCloseWithAnUnreadTurn(t *testing.T) {
	testkit.NoLeaks(t)
	p := newPlace(t)
	a := adapters(t)[domain.AgentCodex]
	f, err := NewFactory([]ports.AgentAdapter{a}, WithGraces(quick))
	require.NoError(t, err)
	s, err := f.Start(t.Context(), specOf(t, a, p), domain.Unconfined("test").WithEnv(p.env()...))
	require.NoError(t, err)
	turn, err := s.Send(t.Context(), ports.Prompt{Text: fakecli.Script("hang")})
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
	for _, err := range turn.Events() {
		require.ErrorIs(t, err, domain.ErrEventsConsumed)
	}
}

// What the recordings call cut: a line that ends with the stream.
func TestCutLines(t *testing.T) {
	for text, cut := range map[string]bool{
		`{"type":"resu`: true, ` [1,`: true, `{}`: false, ` {"a":1} `: false, `words`: false, ``: false, `   `: false,
	} {
		require.Equal(t, cut, isCut([]byte(text)), "%q", text)
	}
}
