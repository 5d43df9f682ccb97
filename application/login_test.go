package application_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

// loginAgent is an agent that can hold a login.
type loginAgent struct{ portstest.FakeAgent }

func (loginAgent) LoginFormat() ports.LoginFormat { return ports.LoginFormat{File: "auth.json"} }

func (a loginAgent) LogIn(turn ports.TurnRequest) (domain.SpawnLine, error) { return a.Command(turn) }

func (a loginAgent) Interactive(turn ports.TurnRequest) (domain.SpawnLine, error) {
	return a.Command(turn)
}

// fakeLogins lends one login and may fail at will.
type fakeLogins struct {
	ports.LoginStore // nil: the rest is not called
	mu               sync.Mutex
	calls            []string
	lend, back       error
	ret              ports.LoginReturn
	kept             []ports.LoginID
	lent             ports.LoginID
	unread, broken   error
}

func (f *fakeLogins) Lent(context.Context, ports.SessionDirs) (ports.LoginID, error) {
	f.call("lent")
	return f.lent, f.unread
}

func (f *fakeLogins) List(context.Context) ([]ports.LoginID, error) { return f.kept, nil }

func (f *fakeLogins) call(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
}

func (f *fakeLogins) set(lend, back error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lend, f.back, f.calls = lend, back, nil
}

func (f *fakeLogins) Dir() string { return "/nonexistent/logins" }

func (f *fakeLogins) Login(_ context.Context, id ports.LoginID, _ ports.LoginFormat) (ports.Login, error) {
	return ports.Login{ID: id}, f.broken
}

func (f *fakeLogins) Lend(context.Context, ports.LoginID, ports.LoginFormat, ports.SessionDirs) ([]string, error) {
	f.call("lend")
	return []string{"a secret of the login"}, f.lend
}

func (f *fakeLogins) Return(ctx context.Context, _ ports.LoginFormat, _ ports.SessionDirs) (ports.LoginReturn, error) {
	f.call("return")
	if ctx.Err() != nil {
		return ports.LoginReturn{}, ctx.Err()
	}
	return f.ret, f.back
}

// loginRig is a rig whose agent can hold a login.
func loginRig(t *testing.T, change ...func(*application.Config)) (*rig, *fakeLogins, application.OpenRequest) {
	t.Helper()
	logins := &fakeLogins{}
	api := modelAPI()
	api.BaseURL = "https://api.example/v1"
	name, err := domain.ParseEgressDomain("api.example:443")
	require.NoError(t, err)
	api.ByName = &ports.PlanFragment{Domains: []domain.EgressDomain{name}, Notes: []string{"by name"}}
	r, _ := gatedRig(t, append([]func(*application.Config){func(c *application.Config) {
		c.Logins = logins
		c.Agents = []ports.AgentAdapter{
			loginAgent{portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat", Fragment: ports.PlanFragment{ModelAPI: api}}},
			portstest.FakeAgent{AgentKind: "plain", Program: "/bin/cat"},
		}
	}}, change...)...)
	q := r.request()
	q.Login = application.DefaultLogin
	return r, logins, q
}

func TestALoginIsLentForATurn(t *testing.T) {
	r, logins, q := loginRig(t)
	s, err := r.Open(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, logins.calls, "not before a turn")
	require.True(t, r.sessions.Starts()[0].Spec.Install.OwnLogin)
	require.Contains(t, strings.Join(r.sessions.Starts()[0].Spec.Notes, "\n"), `it holds the login "default"`)

	// However the turn ends.
	ctx, cancel := context.WithCancel(t.Context())
	turn, err := s.Send(ctx, "say hello")
	require.NoError(t, err)
	cancel()
	_, errs := collect(turn)
	require.Empty(t, errs)
	require.Equal(t, []string{"lend", "return"}, logins.calls)
	logins.set(nil, nil)

	logins.ret = ports.LoginReturn{ID: ports.LoginID{Agent: "fake"}, Problem: "it is none"}
	events := play(t, s, "say a secret of the login")
	require.Equal(t, []string{"lend", "return"}, logins.calls)
	var told, said []string
	for _, e := range events {
		if n, ok := e.Reply.(domain.Notice); ok {
			told = append(told, n.Message)
		}
		if text, ok := e.Reply.(domain.Text); ok {
			said = append(said, text.Text)
		}
	}
	require.Equal(t, []string{"[secret of the agent's login]"}, said)
	require.Equal(t, []string{"the login of fake stays as it was: what the agent has left of its copy is not taken: it is none"}, told)

	// A login that cannot be taken back is tried again, at the latest at the end.
	logins.set(nil, errors.New("disk full"))
	events = play(t, s, "say hello")
	require.Contains(t, events[len(events)-2].Reply.(domain.Notice).Message, "disk full")
	require.ErrorContains(t, s.Close(t.Context()), "disk full")
	logins.set(nil, nil)
	require.NoError(t, s.Close(t.Context()))
	require.Equal(t, []string{"return"}, logins.calls)

	// What a dead orchestrator had lent is taken back at the next opening.
	logins.set(nil, nil)
	again, err := r.Open(t.Context(), application.OpenRequest{Resume: s.ID(), Login: application.DefaultLogin})
	require.NoError(t, err)
	require.Equal(t, []string{"return"}, logins.calls)
	require.Contains(t, strings.Join(r.sessions.Starts()[1].Spec.Notes, "\n"), "from a turn that was cut short: the login of fake stays")
	require.NoError(t, again.Close(t.Context()))
}

// Without the login there is no turn, and after a turn that did not start no copy.
func TestATurnThatCannotHaveItsLogin(t *testing.T) {
	r, logins, q := loginRig(t)
	s, err := r.Open(t.Context(), q)
	require.NoError(t, err)
	logins.set(errors.New("no such login"), nil)
	_, err = s.Send(t.Context(), "hi")
	require.ErrorContains(t, err, "no such login")
	require.Equal(t, []string{"lend", "return"}, logins.calls)
	logins.set(nil, nil)
	play(t, s, "say hello")
	require.NoError(t, s.Close(t.Context()))
}

func TestHowAnAgentWithALoginReachesItsAPI(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*application.Config)
		off    bool
		byName bool
	}{
		"through a proxy": {change: withEgress(&portstest.FakeEgressProxy{}), byName: true},
		"without a proxy": {change: func(*application.Config) {}},
		"unconfined":      {change: withEgress(&portstest.FakeEgressProxy{}), off: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, q := loginRig(t, tt.change)
			if tt.off {
				q.Sandbox = application.SandboxOff("a test")
			}
			p, err := r.Plan(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, tt.byName, len(p.Plan.EgressDomains()) == 1)
			_, gated := p.Plan.ModelGateway()
			require.False(t, gated)
			if !tt.off {
				require.Equal(t, !tt.byName, len(p.Plan.ConnectTCP()) == 1)
				require.Equal(t, !tt.byName, p.Plan.UDP())
			}
		})
	}
}

func TestALoginThatThereCannotBe(t *testing.T) {
	r, _, q := loginRig(t)
	q.Agent = "plain"
	_, err := r.Open(t.Context(), q)
	require.ErrorContains(t, err, "knows no login of its own")
	_, err = r.OpenLogin(t.Context(), application.LoginRequest{ID: ports.LoginID{Agent: "plain"}})
	require.ErrorContains(t, err, "knows no login of its own")

	without, _, q := loginRig(t, func(c *application.Config) { c.Logins = nil })
	_, err = without.Open(t.Context(), q)
	require.ErrorContains(t, err, "keeps no logins")
	require.ErrorContains(t, without.ForgetLogin(t.Context(), ports.LoginID{Agent: "fake"}), "keeps no logins")
	kept, err := without.Logins(t.Context())
	require.NoError(t, err)
	require.Empty(t, kept)

	// Where there could be one, a session without any credential is told of it.
	q = r.request()
	_, err = r.Open(t.Context(), q)
	require.ErrorContains(t, err, "there is no credential for it")
	require.ErrorContains(t, err, "caisson login fake")
	require.ErrorContains(t, err, "--credential-file")
	q.DirectAPI = true
	_, err = r.Open(t.Context(), q)
	require.ErrorContains(t, err, "caisson login fake")
	require.NotContains(t, err.Error(), "--credential-file")
	for _, name := range []string{"FAKE_KEY", "A_CLOUDS_PROFILE"} {
		q.Policy.Env = []domain.EnvRule{{Name: name, Value: "made up", Literal: true}}
		s, err := r.Open(t.Context(), q)
		require.NoError(t, err, "the policy may hand it one")
		require.NoError(t, s.Close(t.Context()))
	}
}

// No program may read the logins, nor the copies that other sessions have of them: not
// an agent, not a command, and not a session that was there before the first login.
func TestNoPlanLetsTheLoginsBeRead(t *testing.T) {
	r, logins, _ := loginRig(t)
	r.commands.run = func(context.Context, domain.SpawnLine, ports.Stdio) (ports.CommandResult, error) {
		return ports.CommandResult{}, nil
	}
	for _, path := range []string{r.records.Root(), filepath.Join(r.records.Root(), "sessions"), filepath.Dir(r.records.Root())} {
		mkdir(t, path)
		policy := application.Policy{Rules: []domain.PathRule{{Path: path, Access: domain.AccessRead, Why: "a test"}}}
		q := r.request()
		q.Policy, q.DirectAPI = policy, true
		q.Policy.Env = []domain.EnvRule{{Name: "FAKE_KEY", Value: "made up", Literal: true}}
		before, err := r.Open(t.Context(), q)
		require.NoError(t, err, "there is nothing to read")

		logins.kept = []ports.LoginID{{Agent: "fake"}}
		_, err = before.Send(t.Context(), "hi")
		require.ErrorContains(t, err, "read the logins")
		require.NoError(t, before.Close(t.Context()))
		_, err = r.Open(t.Context(), q)
		require.ErrorContains(t, err, "read the logins")
		_, err = r.Exec(t.Context(), application.ExecRequest{Argv: []string{"/bin/true"}, Dir: r.workspace, Policy: policy})
		require.ErrorContains(t, err, "read the logins")
		_, err = r.Exec(t.Context(), application.ExecRequest{Argv: []string{"/bin/true"}, Dir: r.workspace})
		require.NoError(t, err, "its own directories are no others'")
		logins.kept = nil
	}
}

// What listens for the agent is closed also where its login cannot be taken back.
func TestALoginThatCannotBeTakenBackKeepsNothingOpen(t *testing.T) {
	proxies := &portstest.FakeEgressProxy{}
	r, logins, q := loginRig(t, withEgress(proxies))
	s, err := r.Open(t.Context(), q)
	require.NoError(t, err)
	play(t, s, "say hello")
	logins.set(nil, errors.New("disk full"))
	require.ErrorContains(t, s.Close(t.Context()), "disk full")
	require.True(t, proxies.Opened()[0].Closed())
	logins.set(nil, nil)
	require.NoError(t, s.Close(t.Context()))
}

// A session is removed with its login only if that is of no use: an agent that has
// renewed it has made the one that is kept invalid.
func TestTheLoginOfASessionThatIsRemovedIsKept(t *testing.T) {
	r, logins, q := loginRig(t)
	removed := func() error {
		s, err := r.Open(t.Context(), q)
		require.NoError(t, err)
		play(t, s, "say hello")
		require.NoError(t, s.Close(t.Context()))
		logins.calls = nil
		return r.RemoveSession(t.Context(), s.ID())
	}
	require.NoError(t, removed())
	require.Equal(t, []string{"lent"}, logins.calls, "it has none")

	logins.lent = ports.LoginID{Agent: "fake"}
	require.NoError(t, removed())
	require.Equal(t, []string{"lent", "return"}, logins.calls)
	logins.lent = ports.LoginID{Agent: "plain"}
	require.NoError(t, removed())
	require.Equal(t, []string{"lent"}, logins.calls, "nobody knows its form")
	logins.unread = errors.New("no note")
	require.NoError(t, removed())
	require.Contains(t, r.log.String(), "no note")
	logins.unread, logins.lent = nil, ports.LoginID{Agent: "fake"}

	s, err := r.Open(t.Context(), q)
	require.NoError(t, err)
	play(t, s, "say hello")
	require.NoError(t, s.Close(t.Context()))
	logins.set(nil, errors.New("disk full"))
	require.ErrorContains(t, r.RemoveSession(t.Context(), s.ID()), "disk full")
	logins.set(nil, fs.ErrNotExist)
	require.NoError(t, r.RemoveSession(t.Context(), s.ID()), "there is nothing to take back")
}

// A terminal's directories go when its login is taken back, and not before.
func TestATerminalWhoseLoginCannotBeTakenBack(t *testing.T) {
	r, logins, _ := loginRig(t, func(c *application.Config) { c.Terminals = &fakeTerminals{} })
	term, err := r.OpenTerminal(t.Context(), application.TerminalRequest{Agent: "fake", Workspace: r.workspace, Login: application.DefaultLogin})
	require.NoError(t, err)
	logins.set(nil, errors.New("disk full"))
	logins.lent = ports.LoginID{Agent: "fake"}
	require.ErrorContains(t, term.Close(t.Context()), "disk full")
	require.NotEmpty(t, r.left(t), "the copy may be the only one that is of use")
	logins.set(nil, nil)
	require.NoError(t, term.Close(t.Context()))
	require.Equal(t, "return", logins.calls[0])
	require.Empty(t, r.left(t))
}

// A login that cannot be used is one to make anew; that it could not be read says
// nothing of it.
func TestLoginsThatCannotBeRead(t *testing.T) {
	r, logins, _ := loginRig(t)
	logins.kept = []ports.LoginID{{Agent: "fake"}, {Agent: "unknown"}}
	logins.broken = &domain.InvalidError{What: "file with a login", Reason: "is none"}
	kept, err := r.Logins(t.Context())
	require.NoError(t, err)
	require.Equal(t, []ports.Login{{ID: logins.kept[0]}, {ID: logins.kept[1]}}, kept)
	logins.broken = errors.New("no descriptors")
	_, err = r.Logins(t.Context())
	require.ErrorContains(t, err, "no descriptors")
}
