package application_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/mock/gomock"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portsmock"
	"github.com/caisson-run/caisson/ports/portstest"
)

func TestNewRefuses(t *testing.T) {
	good := application.Config{
		Agents:   []ports.AgentAdapter{portstest.FakeAgent{AgentKind: "a"}},
		Sessions: &portstest.FakeSessionFactory{}, Commands: &fakeRunner{}, Store: portstest.NewMemoryStore(t),
		Host: ports.Host{LookupEnv: os.LookupEnv},
	}
	o, err := application.New(good)
	require.NoError(t, err)
	require.Equal(t, []domain.AgentKind{"a"}, o.Agents())
	for want, change := range map[string]func(*application.Config){
		"session factory":         func(c *application.Config) { c.Sessions = nil },
		"command runner":          func(c *application.Config) { c.Commands = nil },
		"session store":           func(c *application.Config) { c.Store = nil },
		"host environment":        func(c *application.Config) { c.Host.LookupEnv = nil },
		"two adapters":            func(c *application.Config) { c.Agents = append(c.Agents, portstest.FakeAgent{AgentKind: "a"}) },
		"an adapter without a ki": func(c *application.Config) { c.Agents = []ports.AgentAdapter{portstest.FakeAgent{}} },
		"adapter without":         func(c *application.Config) { c.Agents = []ports.AgentAdapter{nil} },
	} {
		cfg := good
		cfg.Agents = slices.Clone(good.Agents)
		change(&cfg)
		_, err := application.New(cfg)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, want)
		require.ErrorContains(t, err, want)
	}
}

func TestResolveAgent(t *testing.T) {
	r := newRig(t)
	install, err := r.ResolveAgent("fake", "")
	require.NoError(t, err)
	require.Equal(t, "/bin/cat", install.Path)
	_, err = r.ResolveAgent("other", "")
	require.ErrorContains(t, err, `agent "other": no such agent; one of fake`)
}

// TestOpenGoesThroughItsStepsInOrder pins the order of what the steps do to the
// outside: nothing is made before the agent is found, nothing is started before
// the plan is complete, and nothing is recorded before the session exists.
func TestOpenGoesThroughItsStepsInOrder(t *testing.T) {
	ctrl := gomock.NewController(t)
	adapter, factory, inner := portsmock.NewAgentAdapter(ctrl), portsmock.NewStructuredSessionFactory(ctrl), portsmock.NewStructuredSession(ctrl)
	records := portsmock.NewSessionStore(ctrl)
	root := realPath(t, t.TempDir())
	workspace := realPath(t, t.TempDir())
	dirs := ports.SessionDirs{State: mkdir(t, root, "s"), Home: mkdir(t, root, "h"), Temp: mkdir(t, root, "t"), Spool: mkdir(t, root, "sp")}
	install := ports.AgentInstall{Path: "/bin/cat", Files: []string{"/bin/cat"}, Version: "7"}
	fragment := ports.PlanFragment{
		Rules:      []domain.PathRule{{Path: "/bin/cat", Access: domain.AccessReadExec, Why: "agent"}},
		ConnectTCP: []uint16{443}, Env: []domain.EnvRule{{Name: "KEY", Secret: true}}, Notes: []string{"a note"},
		Waivers: []domain.Property{domain.PropertyIoctl}, UDP: "its reason",
	}
	adapter.EXPECT().Kind().Return(domain.AgentKind("mock")).AnyTimes()
	records.EXPECT().Root().Return(root).AnyTimes()

	log := portsmock.NewSessionLog(ctrl)
	log.EXPECT().Epoch().Return(uint64(5)).AnyTimes()
	gomock.InOrder(
		adapter.EXPECT().Resolve("hint", gomock.Any()).Return(install, nil),
		records.EXPECT().Open(gomock.Any(), gomock.Any()).Return(log, nil),
		records.EXPECT().Dirs(gomock.Any(), gomock.Any()).Return(dirs, nil),
		adapter.EXPECT().Needs(install, dirs, gomock.Any()).Return(fragment, nil),
		factory.EXPECT().Start(gomock.Any(), gomock.Any(), gomock.Any()).DoAndReturn(
			func(_ context.Context, spec ports.SessionSpec, plan domain.SandboxPlan) (ports.StructuredSession, error) {
				require.Equal(t, ports.SessionSpec{
					ID: spec.ID, Kind: "mock", Install: install, Workspace: workspace, Dirs: dirs, Model: "m",
					Notes: []string{"a note", "mock: UDP is allowed, to any host: its reason"},
				}, spec)
				require.True(t, plan.IsConfined())
				require.Equal(t, []uint16{443, 8080}, plan.ConnectTCP())
				require.True(t, plan.Waives(domain.PropertyIoctl))
				require.True(t, plan.UDP(), "a policy without UDP does not take it back")
				require.Contains(t, plan.Env(), domain.EnvRule{Name: "KEY", Secret: true})
				return inner, nil
			}),
		records.EXPECT().Save(gomock.Any(), gomock.Any()).DoAndReturn(func(_ context.Context, r domain.SessionRecord) error {
			require.Equal(t, domain.AgentKind("mock"), r.Kind)
			require.Equal(t, workspace, r.Workspace)
			require.NotEmpty(t, r.PlanDigest)
			require.Zero(t, r.Turns)
			require.Equal(t, uint64(5), r.Epoch)
			return nil
		}),
		// Closing it unused takes it all back.
		inner.EXPECT().Close(gomock.Any()),
		records.EXPECT().Remove(gomock.Any(), gomock.Any()),
		log.EXPECT().Close(),
	)
	o, err := application.New(application.Config{
		Agents: []ports.AgentAdapter{adapter}, Sessions: factory, Commands: &fakeRunner{}, Store: records,
		Host: ports.Host{LookupEnv: func(string) (string, bool) { return "", false }},
	})
	require.NoError(t, err)
	s, err := o.Open(t.Context(), application.OpenRequest{
		Agent: "mock", AgentBin: "hint", Workspace: workspace, Model: "m", Policy: application.Policy{ConnectTCP: []uint16{8080}},
	})
	require.NoError(t, err)
	require.True(t, domain.IsUUID(string(s.ID())))
	require.Equal(t, byte('7'), s.ID()[14], "version 7")
	require.NoError(t, s.Close(t.Context()))
}

// TestWhatAnotherProcessHasOpenIsRefused: the records are what processes share.
func TestWhatAnotherProcessHasOpenIsRefused(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	play(t, s, "say hello")
	_, err := r.records.MemoryStore.Open(t.Context(), s.ID())
	require.ErrorIs(t, err, domain.ErrBusy, "an open session is locked")
	require.NoError(t, s.Close(t.Context()))

	log, err := r.records.MemoryStore.Open(t.Context(), s.ID())
	require.NoError(t, err, "a closed one is not")
	_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID()})
	var busy *domain.BusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, s.ID(), busy.Session)
	_, err = r.records.Load(t.Context(), s.ID())
	require.NoError(t, err, "the refusal takes nothing from the one that has it open")
	_, err = r.Plan(t.Context(), application.OpenRequest{Resume: s.ID()})
	require.NoError(t, err, "a look is free")

	require.NoError(t, log.Close())
	r.records.set(&r.records.dirs, errors.New("broken"))
	_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID()})
	require.ErrorContains(t, err, "broken")
	r.records.set(&r.records.dirs, nil)
	again := r.resume(t, s.ID())
	require.NoError(t, again.Close(t.Context()), "a failed attempt does not keep it")
}

// TestAFailedOpenLeavesNothing fails each step in turn.
func TestAFailedOpenLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	agent := func(a stepAgent) func(*application.Config) {
		a.FakeAgent = portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat"}
		return func(c *application.Config) { c.Agents = []ports.AgentAdapter{a} }
	}
	for _, c := range []struct {
		name   string
		config func(*application.Config)
		change func(r *rig, req *application.OpenRequest)
	}{
		{"1 validate", nil, func(_ *rig, req *application.OpenRequest) { req.Sandbox = application.SandboxOff("") }},
		{"2 resolve the agent", agent(stepAgent{resolve: broken}), nil},
		{"3 prepare the workspace", nil, func(_ *rig, req *application.OpenRequest) { req.Workspace = "/" }},
		{"5a directories", nil, func(r *rig, _ *application.OpenRequest) { r.records.dirs = broken }},
		{"5c configuration", agent(stepAgent{needs: broken}), nil},
		{"5d plan", nil, func(_ *rig, req *application.OpenRequest) {
			req.Policy.Rules = []domain.PathRule{{Path: "/does/not/exist", Access: domain.AccessRead}}
		}},
		{"6 launch", nil, func(r *rig, _ *application.OpenRequest) {
			r.sessions.Refuse = func(ports.SessionSpec, domain.SandboxPlan) error { return broken }
		}},
		{"7 record", nil, func(r *rig, _ *application.OpenRequest) { r.records.save = broken }},
		{"8 closed meanwhile", nil, func(r *rig, _ *application.OpenRequest) {
			r.sessions.Refuse = func(ports.SessionSpec, domain.SandboxPlan) error { return r.Close(context.Background()) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config []func(*application.Config)
			if c.config != nil {
				config = append(config, c.config)
			}
			r := newRig(t, config...)
			req := r.request()
			if c.change != nil {
				c.change(r, &req)
			}
			s, err := r.Open(t.Context(), req)
			require.Error(t, err)
			require.Nil(t, s)
			require.Empty(t, r.left(t))
			require.Zero(t, r.sessions.Open())
		})
		t.Run(c.name+", on resume", func(t *testing.T) {
			if c.config != nil {
				return // an agent that fails cannot have been opened before
			}
			r := newRig(t)
			s := r.open(t)
			play(t, s, "remember it")
			require.NoError(t, s.Close(t.Context()))
			before := r.left(t)
			req := application.OpenRequest{Resume: s.ID()}
			c.change(r, &req)
			_, err := r.Open(t.Context(), req)
			require.Error(t, err)
			require.Equal(t, before, r.left(t), "what was there before stays")
			require.Zero(t, r.sessions.Open())
			if c.name == "8 closed meanwhile" {
				return
			}
			r.sessions.Refuse, r.records.dirs, r.records.save = nil, nil, nil
			require.Contains(t, textOf(play(t, r.resume(t, s.ID()), "recall")), "it")
		})
	}
	t.Run("a context that ends on the way", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := newRig(t, agent(stepAgent{onNeeds: func() { cancel(broken) }}))
		_, err := r.Open(ctx, r.request())
		require.ErrorIs(t, err, broken)
		require.Empty(t, r.left(t))
		_, err = r.Open(ctx, r.request())
		require.ErrorIs(t, err, broken)
	})
	t.Run("a rollback that fails too is told", func(t *testing.T) {
		r := newRig(t)
		stuck := errors.New("stuck")
		r.records.save, r.records.remove = broken, stuck
		_, err := r.Open(t.Context(), r.request())
		require.ErrorIs(t, err, broken)
		require.ErrorIs(t, err, stuck)
		require.Zero(t, r.sessions.Open())
	})
}

// stepAgent is an agent whose steps may fail.
type stepAgent struct {
	portstest.FakeAgent
	resolve error
	needs   error
	onNeeds func()
}

func (a stepAgent) Resolve(hint string, host ports.Host) (ports.AgentInstall, error) {
	if a.resolve != nil {
		return ports.AgentInstall{}, a.resolve
	}
	return a.FakeAgent.Resolve(hint, host)
}

func (a stepAgent) Needs(i ports.AgentInstall, d ports.SessionDirs, h ports.Host) (ports.PlanFragment, error) {
	if a.onNeeds != nil {
		a.onNeeds()
	}
	if a.needs != nil {
		return ports.PlanFragment{}, a.needs
	}
	return a.FakeAgent.Needs(i, d, h)
}

func TestBadRequests(t *testing.T) {
	r := newRig(t)
	file := write(t, "", r.home, "file")
	inState := mkdir(t, r.records.Root(), "in", "it")
	toHome := filepath.Join(r.workspace, "link")
	require.NoError(t, os.Symlink(r.home, toHome))
	notUTF8 := mkdir(t, r.home, "not\xffutf8")
	for name, c := range map[string]struct {
		change func(*application.OpenRequest)
		what   string
		want   string
	}{
		"unknown agent":           {func(q *application.OpenRequest) { q.Agent = "other" }, "agent", "no such agent; one of fake"},
		"no agent":                {func(q *application.OpenRequest) { q.Agent = "" }, "agent", "no such agent"},
		"no workspace":            {func(q *application.OpenRequest) { q.Workspace = "" }, "workspace", "not an absolute path"},
		"relative workspace":      {func(q *application.OpenRequest) { q.Workspace = "project" }, "workspace", "not an absolute path"},
		"missing workspace":       {func(q *application.OpenRequest) { q.Workspace = filepath.Join(r.home, "no") }, "workspace", "does not exist"},
		"a file for a workspace":  {func(q *application.OpenRequest) { q.Workspace = file }, "workspace", "not a directory"},
		"below a file":            {func(q *application.OpenRequest) { q.Workspace = filepath.Join(file, "x") }, "workspace", "cannot be resolved"},
		"the root":                {func(q *application.OpenRequest) { q.Workspace = "/" }, "workspace", "the root of the file system"},
		"the root by a detour":    {func(q *application.OpenRequest) { q.Workspace = "/usr/.." }, "workspace", "the root of the file system"},
		"home":                    {func(q *application.OpenRequest) { q.Workspace = r.home }, "workspace", "your home directory"},
		"home by a link":          {func(q *application.OpenRequest) { q.Workspace = toHome }, "workspace", "your home directory"},
		"above home":              {func(q *application.OpenRequest) { q.Workspace = filepath.Dir(r.home) }, "workspace", "contains your home directory"},
		"the state":               {func(q *application.OpenRequest) { q.Workspace = r.records.Root() }, "workspace", "contains Caisson's state"},
		"in the state":            {func(q *application.OpenRequest) { q.Workspace = inState }, "workspace", "lies in Caisson's state"},
		"a system directory":      {func(q *application.OpenRequest) { q.Workspace = "/usr" }, "workspace", "system directory /usr"},
		"the temporary directory": {func(q *application.OpenRequest) { q.Workspace = "/var/tmp" }, "workspace", "system directory /var/tmp"},
		"a mount point":           {func(q *application.OpenRequest) { q.Workspace = "/dev/shm" }, "workspace", "system directory /dev/shm"},
		"what is in /var":         {func(q *application.OpenRequest) { q.Workspace = "/var" }, "workspace", "system directory /var"},
		"the kernel's":            {func(q *application.OpenRequest) { q.Workspace = "/proc/sys" }, "workspace", "lies in /proc"},
		"no UTF-8":                {func(q *application.OpenRequest) { q.Workspace = notUTF8 }, "workspace", "not valid UTF-8"},
		"a model like an option":  {func(q *application.OpenRequest) { q.Model = "--evil" }, "model", "not the name of a model"},
		"a model with a newline":  {func(q *application.OpenRequest) { q.Model = "a\nb" }, "model", "not the name of a model"},
		"sandbox off, no reason":  {func(q *application.OpenRequest) { q.Sandbox = application.SandboxOff("") }, "sandbox", "no reason given"},
		"a malformed session id":  {func(q *application.OpenRequest) { q.Resume = "../x" }, "session id", "not a lower-case UUID"},
		"an unknown session":      {func(q *application.OpenRequest) { q.Resume = "01890a5d-ac96-774b-bcce-b302099a8057" }, "session", "no such session"},
		"a relative rule":         {rule(domain.PathRule{Path: "x", Access: domain.AccessRead}), "path rule", "not an absolute"},
		"a rule without access":   {rule(domain.PathRule{Path: "/x"}), "path rule", "no set of access rights"},
		"a missing required path": {rule(domain.PathRule{Path: "/does/not/exist", Access: domain.AccessRead}), "path rule", "does not exist (granted by: policy)"},
		"an unknown waiver":       {func(q *application.OpenRequest) { q.Policy.Waivers = []domain.Property{"x"} }, "property", "no such property"},
		"port 0":                  {func(q *application.OpenRequest) { q.Policy.ConnectTCP = []uint16{0} }, "port", "cannot be connected to"},
		"rules without a sandbox": {func(q *application.OpenRequest) {
			q.Sandbox = application.SandboxOff("a test")
			q.Policy.Rules = []domain.PathRule{{Path: "/usr", Access: domain.AccessRead}}
		}, "plan", "nothing would enforce them"},
		"a memory limit without a sandbox": {func(q *application.OpenRequest) {
			q.Sandbox = application.SandboxOff("a test")
			q.Policy.Limits.MemoryBytes = 1
		}, "limits", "only time can be limited"},
	} {
		t.Run(name, func(t *testing.T) {
			req := r.request()
			c.change(&req)
			before := r.left(t)
			_, err := r.Open(t.Context(), req)
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, c.what, invalid.What)
			require.ErrorContains(t, err, c.want)
			if c.what != "session" { // that one is the records'
				require.NotEmpty(t, invalid.Remedy)
			}
			require.Equal(t, before, r.left(t))
			_, planErr := r.Plan(t.Context(), req)
			require.EqualError(t, planErr, err.Error(), "a preview says the same")
		})
	}
}

func rule(rules ...domain.PathRule) func(*application.OpenRequest) {
	return func(q *application.OpenRequest) { q.Policy.Rules = append(q.Policy.Rules, rules...) }
}

func TestAWorkspaceMayHaveALikelyName(t *testing.T) {
	r := newRig(t)
	// Paths are compared by component: none of these is in the other.
	for _, dir := range []string{r.records.Root() + "x", r.home + "-2"} {
		req := r.request()
		req.Workspace = mkdir(t, dir)
		s, err := r.Open(t.Context(), req)
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
	}
}

func TestResumeMustAgree(t *testing.T) {
	r := newRig(t, func(c *application.Config) {
		c.Agents = append(c.Agents, portstest.FakeAgent{AgentKind: "second", Program: "/bin/cat"})
	})
	req := r.request()
	req.Policy.Rules = []domain.PathRule{{Path: "/usr/share", Access: domain.AccessRead}, {Path: "/usr/lib", Access: domain.AccessRead}}
	s, err := r.Open(t.Context(), req)
	require.NoError(t, err)
	id := s.ID()
	var invalid *domain.InvalidError
	_, err = r.Open(t.Context(), application.OpenRequest{Resume: id, Policy: req.Policy})
	require.ErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "there is nothing to go on with", "it has had no turn yet")
	play(t, s, "say hello")
	_, err = r.Open(t.Context(), application.OpenRequest{Resume: id, Policy: req.Policy})
	require.ErrorIs(t, err, domain.ErrBusy)
	require.NoError(t, s.Close(t.Context()))

	for name, c := range map[string]struct {
		change func(*application.OpenRequest)
		want   string
	}{
		"agent":     {func(q *application.OpenRequest) { q.Agent = "second" }, `is one of "fake"`},
		"workspace": {func(q *application.OpenRequest) { q.Workspace = mkdir(t, r.home, "elsewhere") }, "is one of"},
	} {
		t.Run(name, func(t *testing.T) {
			again := req
			again.Resume = id
			c.change(&again)
			_, err := r.Open(t.Context(), again)
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, name, invalid.What)
			require.ErrorContains(t, err, c.want)
		})
	}
	for name, c := range map[string]struct {
		change         func(*application.OpenRequest)
		added, removed string
	}{
		"a rule less": {func(q *application.OpenRequest) { q.Policy.Rules = q.Policy.Rules[:1] }, "", "read /usr/lib  # policy"},
		"a rule more": {rule(domain.PathRule{Path: "/usr/bin", Access: domain.AccessRead}), "read /usr/bin  # policy", ""},
		"a right more": {
			func(q *application.OpenRequest) { q.Policy.Rules[0].Access = domain.AccessReadExec },
			"read+exec /usr/share  # policy", "read /usr/share  # policy",
		},
		"a port more":   {func(q *application.OpenRequest) { q.Policy.ConnectTCP = []uint16{1} }, "tcp connect 1", ""},
		"a waiver more": {func(q *application.OpenRequest) { q.Policy.Waivers = []domain.Property{domain.PropertyTCP} }, "waive tcp", ""},
		"a name more":   {func(q *application.OpenRequest) { q.Policy.Env = []domain.EnvRule{{Name: "X"}} }, "variable X", ""},
		"no sandbox": {func(q *application.OpenRequest) {
			q.Policy.Rules = nil
			q.Sandbox = application.SandboxOff("a test")
		}, "unconfined", "read /usr/lib  # policy"},
	} {
		t.Run(name, func(t *testing.T) {
			again := req
			again.Resume = id
			again.Policy.Rules = slices.Clone(req.Policy.Rules)
			c.change(&again)
			_, err := r.Open(t.Context(), again)
			var changed *domain.PlanChangedError
			require.ErrorAs(t, err, &changed)
			require.Equal(t, id, changed.Session)
			require.NotEqual(t, changed.Was, changed.Is)
			for want, got := range map[string][]string{c.added: changed.Added, c.removed: changed.Removed} {
				if want == "" {
					require.Empty(t, got)
				} else {
					require.Contains(t, got, want)
				}
			}
			if c.added != "" {
				require.Contains(t, err.Error(), "\n  + "+c.added)
			}
			preview, err := r.Plan(t.Context(), again)
			require.ErrorAs(t, err, &changed)
			require.Equal(t, changed.Is, preview.Plan.Digest())
		})
	}
	t.Run("the same in other words", func(t *testing.T) {
		require.NoError(t, os.Symlink("/usr/share", filepath.Join(r.home, "share")))
		s, err := r.Open(t.Context(), application.OpenRequest{
			Resume: id, Agent: "fake", Workspace: filepath.Join(r.workspace, "..", "project"),
			Policy: application.Policy{Rules: []domain.PathRule{
				{Path: "/usr/lib", Access: domain.AccessRead, Why: "said differently"},
				{Path: filepath.Join(r.home, "share"), Access: domain.AccessRead},
			}, Limits: domain.Limits{WallClock: time.Hour}},
		})
		require.NoError(t, err)
		require.Equal(t, time.Hour, s.Plan().Limits().WallClock)
		require.NoError(t, s.Close(t.Context()))
	})
}

// TestALinkPlantedBetweenTurnsIsRefused: what an agent puts in the place of a
// granted path must not be granted to its next turn.
func TestALinkPlantedBetweenTurnsIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		presence domain.Presence
		plant    func(t *testing.T, path, secret string)
	}{
		"in the place of a directory": {domain.Required, func(t *testing.T, path, secret string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(secret, path))
		}},
		"where there was nothing": {domain.Optional, func(t *testing.T, path, secret string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(secret, path))
		}},
		"above it": {domain.Required, func(t *testing.T, path, secret string) {
			require.NoError(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".away"))
			mkdir(t, secret, filepath.Base(path))
			require.NoError(t, os.Symlink(secret, filepath.Dir(path)))
		}},
		"as a loop": {domain.Required, func(t *testing.T, path, _ string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(path, path))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			secret := mkdir(t, r.home, ".ssh")
			path := mkdir(t, r.workspace, "out", "put")
			req := r.request()
			req.Policy.Rules = []domain.PathRule{{Path: path, Access: domain.AccessReadWrite, Presence: c.presence}}
			if name == "where there was nothing" {
				// An access that the workspace does not give, so that the rule stays.
				req.Policy.Rules[0].Access |= domain.AccessIoctlDev
				require.NoError(t, os.Remove(path))
			}
			s, err := r.Open(t.Context(), req)
			require.NoError(t, err)
			play(t, s, "say hello")
			if name == "where there was nothing" {
				mkdir(t, path)
				play(t, s, "say it is no link")
			}
			c.plant(t, path, secret)
			_, err = s.Send(t.Context(), "say no")
			require.Error(t, err)
			if name != "as a loop" {
				var changed *domain.PlanChangedError
				require.ErrorAs(t, err, &changed)
				require.ErrorContains(t, err, secret)
				require.NotEqual(t, changed.Was, changed.Is)
			}
			require.NoError(t, s.Close(t.Context()))
			_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID(), Policy: req.Policy})
			require.Error(t, err, "nor by a resume")
		})
	}
}

func TestARecordSavedMeanwhileCounts(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	play(t, s, "say hello")
	// The session is read while it is open, and closed with more turns before it
	// is claimed: what was read first is stale.
	late := make(chan struct{})
	var once bool
	r.records.onLoad = func() {
		if !once {
			once = true
			play(t, s, "say more")
			require.NoError(t, s.Close(t.Context()))
			close(late)
		}
	}
	again := r.resume(t, s.ID())
	<-late
	require.Equal(t, 3, play(t, again, "say again")[0].Turn)
}

func TestPlanHasNoSideEffectsAndIsThePlanOfOpen(t *testing.T) {
	r := newRig(t)
	req := r.request()
	req.Policy = application.Policy{
		Rules:      []domain.PathRule{{Path: "/usr/share", Access: domain.AccessRead}, {Path: "/nowhere", Access: domain.AccessRead, Presence: domain.Optional}},
		ConnectTCP: []uint16{443}, BindTCP: []uint16{8000}, UDP: true, UnixSockets: domain.UnixSocketsOwn,
		Env: []domain.EnvRule{{Name: "X", Value: "1", Literal: true}}, Waivers: []domain.Property{domain.PropertyTCP},
		Limits: domain.Limits{Idle: time.Minute},
	}
	preview, err := r.Plan(t.Context(), req)
	require.NoError(t, err)
	require.Empty(t, r.left(t))
	require.Empty(t, r.sessions.Starts())
	require.Equal(t, "/bin/cat", preview.Install.Path)
	require.Equal(t, r.workspace, preview.Workspace)
	require.Equal(t, domain.AgentKind("fake"), preview.Agent)
	require.Contains(t, preview.Dirs.Home, "00000000-0000-0000-0000-000000000000")

	s, err := r.Open(t.Context(), req)
	require.NoError(t, err)
	play(t, s, "say hello")
	require.Equal(t, strings.ReplaceAll(s.Plan().String(), string(s.ID()), "00000000-0000-0000-0000-000000000000"), preview.Plan.String())
	require.Equal(t, s.Plan(), r.sessions.Starts()[0].Sandbox)
	require.NoError(t, s.Close(t.Context()))

	before := r.left(t)
	req.Resume = s.ID()
	preview, err = r.Plan(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, s.Plan(), preview.Plan)
	require.Equal(t, before, r.left(t))
	require.Len(t, r.sessions.Starts(), 1)
}

func TestSandboxOff(t *testing.T) {
	r := newRig(t)
	req := r.request()
	req.Sandbox = application.SandboxOff("trying without")
	req.Policy.Env = []domain.EnvRule{{Name: "X", Value: "1", Literal: true}}
	s, err := r.Open(t.Context(), req)
	require.NoError(t, err)
	plan := s.Plan()
	require.True(t, plan.IsUnconfined())
	require.Equal(t, "trying without", plan.Why())
	env := plan.Environ(func(string) (string, bool) { return "", false })
	require.Contains(t, env, "X=1")
	require.Contains(t, env, "HOME="+r.sessions.Starts()[0].Spec.Dirs.Home, "the environment is that of a confined session")
	receipt := play(t, s, "say hello")[0].Reply.(domain.SandboxApplied).Receipt
	require.True(t, receipt.Unconfined)
	require.Equal(t, "off", req.Sandbox.String())
	require.Equal(t, "required", application.SandboxMode{}.String())
}

func TestWritableGrants(t *testing.T) {
	r := newRig(t)
	caisson := write(t, "", r.home, "bin", "caisson")
	agent := write(t, "", r.home, "agent", "bin", "agent")
	agentDir := mkdir(t, r.home, "agent", "lib")
	other := mkdir(t, r.home, "other")
	require.NoError(t, os.Symlink(r.records.Root(), filepath.Join(r.home, "state")))
	r = &rig{Orchestrator: nil, records: r.records, home: r.home, workspace: r.workspace, env: r.env, sessions: r.sessions}
	o, err := application.New(application.Config{
		Agents:   []ports.AgentAdapter{installedAgent{ports.AgentInstall{Path: agent, Files: []string{agent}, Dirs: []string{agentDir}}}},
		Sessions: r.sessions, Commands: &fakeRunner{}, Store: r.records, Executable: caisson,
		Host: ports.Host{LookupEnv: func(name string) (string, bool) { v, ok := r.env[name]; return v, ok }},
	})
	require.NoError(t, err)
	plan := func(access domain.Access, path string) error {
		_, err := o.Plan(t.Context(), application.OpenRequest{
			Agent: "installed", Workspace: r.workspace,
			Policy: application.Policy{Rules: []domain.PathRule{{Path: path, Access: access, Presence: domain.Optional}}},
		})
		return err
	}
	for path, want := range map[string]string{
		r.records.Root():                                             "write to Caisson's state in " + r.records.Root(),
		filepath.Join(r.home, "state"):                               "write to Caisson's state",
		filepath.Dir(r.records.Root()):                               "write to Caisson's state",
		filepath.Join(r.records.Root(), "x"):                         "write to Caisson's state",
		filepath.Join(r.records.Root(), strings.Repeat("0", 8), "y"): "write to Caisson's state",
		"/":                            "change Caisson's own program",
		caisson:                        "change Caisson's own program (" + caisson + ")",
		filepath.Dir(caisson):          "change Caisson's own program",
		agent:                          "change the program of installed (" + agent + ")",
		filepath.Dir(agent):            "change the program of installed",
		agentDir:                       "change the program of installed (" + agentDir + ")",
		filepath.Join(agentDir, "sub"): "change the program of installed (" + agentDir + ")",
		r.home:                         "change the program of installed",
	} {
		for _, access := range []domain.Access{domain.AccessReadWrite, domain.AccessReadWriteExec, domain.AccessMakeReg, domain.AccessRefer, domain.AccessMakeBlock} {
			err := plan(access, path)
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid, path)
			require.ErrorContains(t, err, want, path)
			why := "policy"
			if path == filepath.Join(r.home, "state") {
				why += " " + path // a link: the path as it was said
			}
			require.Equal(t, "writable path ("+why+")", invalid.What)
			require.NotEmpty(t, invalid.Remedy)
		}
		require.NoError(t, plan(domain.AccessReadExec, path), "reading %s is the user's to grant", path)
	}
	for _, path := range []string{other, r.records.Root() + "x", caisson + "x", agentDir + "x"} {
		require.NoError(t, plan(domain.AccessReadWrite, path), path)
	}
	// The workspace is a writable grant like any other.
	_, err = o.Plan(t.Context(), application.OpenRequest{Agent: "installed", Workspace: filepath.Dir(caisson)})
	require.ErrorContains(t, err, "writable path (workspace)")
	require.ErrorContains(t, err, "change Caisson's own program")
}

type installedAgent struct{ install ports.AgentInstall }

func (a installedAgent) Kind() domain.AgentKind { return "installed" }
func (a installedAgent) Resolve(string, ports.Host) (ports.AgentInstall, error) {
	return a.install, nil
}
func (a installedAgent) Needs(ports.AgentInstall, ports.SessionDirs, ports.Host) (ports.PlanFragment, error) {
	return ports.PlanFragment{}, nil
}
func (a installedAgent) Command(ports.TurnRequest) (domain.SpawnLine, error) {
	return domain.SpawnLine{}, nil
}
func (a installedAgent) NewParser(ports.TurnRequest) ports.Parser { return nil }

func TestTheCodingPlan(t *testing.T) {
	r := newRig(t)
	tools := mkdir(t, r.home, "tools", "bin")
	outside := mkdir(t, r.home, "..", "outside")
	require.NoError(t, os.Symlink(outside, filepath.Join(r.home, "leads-out")))
	require.NoError(t, os.Symlink("tools", filepath.Join(r.home, "alias")))
	file := write(t, "", r.home, "a-file")
	mkdir(t, r.workspace, "bin")
	mkdir(t, r.records.Root(), "bin")
	r.env["PATH"] = strings.Join([]string{
		"/usr/bin", "", ".", "relative/bin", "/bin", "/usr/bin",
		tools, filepath.Join(r.home, "alias", "bin"), filepath.Join(r.home, "missing"), filepath.Join(r.home, "leads-out"),
		r.home, file, filepath.Join(r.workspace, "bin"), filepath.Join(r.records.Root(), "bin"), filepath.Dir(r.workspace) + "/.",
	}, ":")
	s := r.open(t)
	plan := s.Plan()
	require.Equal(t, "coding", plan.Preset())
	granted := map[string]domain.PathRule{}
	for _, rule := range plan.Rules() {
		require.NotContains(t, granted, rule.Path, "twice")
		require.NotEmpty(t, rule.Why)
		granted[rule.Path] = rule
	}
	dirs := r.sessions.Starts()[0].Spec.Dirs
	for _, path := range []string{r.workspace, dirs.State, dirs.Home, dirs.Temp} {
		require.Equal(t, domain.AccessReadWriteExec, granted[path].Access, path)
		require.Equal(t, domain.Required, granted[path].Presence)
	}
	require.Equal(t, domain.AccessReadExec, granted["/usr"].Access)
	require.Equal(t, domain.AccessReadWrite, granted["/dev/null"].Access)
	require.Equal(t, domain.AccessRead, granted["/dev/urandom"].Access)
	require.Equal(t, domain.AccessReadExec, granted[tools].Access)

	writable := []string{r.workspace, dirs.State, dirs.Home, dirs.Temp, "/dev/null", "/dev/zero", "/dev/full"}
	for _, rule := range plan.Rules() {
		if rule.Access&domain.AccessWrite != 0 {
			require.Contains(t, writable, rule.Path)
		}
		if !slices.Contains(writable, rule.Path) {
			require.Equal(t, domain.Optional, rule.Presence)
		}
		for _, never := range []string{
			r.home, filepath.Join(r.home, ".ssh"), outside, dirs.Spool, r.records.Root(), "/root", "/home", "/dev", "/dev/sda", "/dev/tty",
			"/run", "/run/docker.sock", "/var/run/docker.sock", "/var", "/tmp", "/sys/kernel", "/boot", file,
			filepath.Join(r.workspace, "bin"), filepath.Join(r.records.Root(), "bin"), "/dev/shm",
		} {
			require.NotEqual(t, never, rule.Path)
			require.False(t, strings.HasPrefix(never, rule.Path+"/") && rule.Path != r.workspace, "%s is granted by %s", never, rule)
		}
	}
	require.Empty(t, plan.BindTCP())
	require.False(t, plan.UDP())
	require.Equal(t, domain.UnixSocketsDeny, plan.UnixSockets())
	require.Empty(t, plan.Waivers())
	require.Equal(t, domain.Limits{}, plan.Limits())

	r.env["LD_PRELOAD"], r.env["SSH_AUTH_SOCK"], r.env["GIT_DIR"], r.env["NODE_OPTIONS"], r.env["DOCKER_HOST"] = "x", "x", "x", "x", "x"
	r.env["DBUS_SESSION_BUS_ADDRESS"], r.env["ANTHROPIC_API_KEY"], r.env["TERM"] = "x", "x", "xterm"
	env := plan.Environ(func(name string) (string, bool) { v, ok := r.env[name]; return v, ok })
	require.ElementsMatch(t, []string{
		"PATH=" + strings.Join([]string{
			"/usr/bin", "/bin", tools, filepath.Join(r.home, "alias", "bin"), filepath.Join(r.home, "missing"), filepath.Join(r.home, "leads-out"),
			r.home, file, filepath.Join(r.workspace, "bin"), filepath.Join(r.records.Root(), "bin"),
		}, ":"),
		"HOME=" + dirs.Home, "TMPDIR=" + dirs.Temp, "LANG=C.UTF-8", "TERM=xterm",
		"XDG_CONFIG_HOME=" + dirs.Home + "/.config", "XDG_CACHE_HOME=" + dirs.Home + "/.cache",
		"XDG_DATA_HOME=" + dirs.Home + "/.local/share", "XDG_STATE_HOME=" + dirs.Home + "/.local/state",
		"XDG_RUNTIME_DIR=" + dirs.Temp,
	}, env)
}

func TestAPolicyReplacesVariablesOfThePreset(t *testing.T) {
	r := newRig(t)
	r.env["PATH"] = "only/relative"
	req := r.request()
	req.Policy.Env = []domain.EnvRule{{Name: "LANG", Value: "de_DE", Literal: true}, {Name: "EXTRA", Secret: true}}
	r.env["EXTRA"] = "secret"
	preview, err := r.Plan(t.Context(), req)
	require.NoError(t, err)
	env := preview.Plan.Environ(func(name string) (string, bool) { v, ok := r.env[name]; return v, ok })
	require.Contains(t, env, "LANG=de_DE")
	require.NotContains(t, env, "LANG=C.UTF-8")
	require.Contains(t, env, "EXTRA=secret")
	require.Contains(t, env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	require.NotContains(t, preview.Plan.String(), "secret")
}

// A PATH entry in a project is a usual thing (node_modules/.bin). An agent that
// once worked in the project may have put a link in its place.
func TestALinkOnPATHGrantsNothing(t *testing.T) {
	r := newRig(t)
	bin := filepath.Join(r.home, "other", "node_modules", ".bin")
	secret := filepath.Join(r.home, ".ssh")
	mkdir(t, filepath.Dir(bin))
	mkdir(t, secret)
	r.env["PATH"] = bin + ":/usr/bin"
	granted := func() (paths []string) {
		preview, err := r.Plan(t.Context(), application.OpenRequest{Agent: "fake", Workspace: r.workspace})
		require.NoError(t, err)
		for _, rule := range preview.Plan.Rules() {
			if rule.Why == "PATH" {
				paths = append(paths, rule.Path)
			}
		}
		return paths
	}
	mkdir(t, bin)
	require.Equal(t, []string{bin}, granted())
	require.NoError(t, os.Remove(bin))
	require.NoError(t, os.Symlink(secret, bin))
	require.Empty(t, granted())

	// $HOME itself may be a link.
	require.NoError(t, os.Remove(bin))
	mkdir(t, bin)
	link := filepath.Join(t.TempDir(), "home")
	require.NoError(t, os.Symlink(r.home, link))
	r.env["HOME"] = link
	r.env["PATH"] = filepath.Join(link, "other", "node_modules", ".bin")
	require.Equal(t, []string{bin}, granted())
}

// The shims of a version manager are of no use without the rest of it.
func TestAVersionManagerIsGrantedWhole(t *testing.T) {
	r := newRig(t)
	shims := mkdir(t, r.home, ".pyenv", "shims")
	cargo := mkdir(t, r.home, ".cargo", "bin")
	elsewhere := mkdir(t, r.home, "elsewhere", "bin")
	require.NoError(t, os.Symlink(filepath.Dir(elsewhere), filepath.Join(r.home, ".nvm")))
	r.env["PATH"] = strings.Join([]string{shims, cargo, filepath.Join(r.home, ".nvm", "bin"), "/usr/bin"}, ":")
	preview, err := r.Plan(t.Context(), application.OpenRequest{Agent: "fake", Workspace: r.workspace})
	require.NoError(t, err)
	var granted []string
	for _, rule := range preview.Plan.Rules() {
		if rule.Why == "PATH" {
			require.Equal(t, domain.AccessReadExec, rule.Access)
			granted = append(granted, rule.Path)
		}
	}
	// Not all of .cargo, which holds the registry's token.
	require.ElementsMatch(t, []string{filepath.Dir(shims), cargo}, granted)
}
