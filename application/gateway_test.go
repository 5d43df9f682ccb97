package application_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

// modelAPI is the API of the rig's agent.
func modelAPI() *ports.ModelAPI {
	return &ports.ModelAPI{
		BaseURL: "https://user:geheim@api.example/v1", Dialect: ports.DialectOpenAI, BaseURLEnv: "FAKE_URL",
		Routes:      []ports.APIRoute{{Method: "POST", Path: "/ask"}},
		Credentials: []ports.APICredential{{Env: "FAKE_TOKEN", Header: "Authorization", Scheme: "Bearer"}, {Env: "FAKE_KEY", Header: "X-Api-Key"}},
		Direct: ports.PlanFragment{
			ConnectTCP: []uint16{443}, UDP: "a name", Env: []domain.EnvRule{{Name: "FAKE_KEY", Secret: true}}, Notes: []string{"direct"},
		},
	}
}

// gatedRig is a rig whose agent can be put behind a gateway.
func gatedRig(t *testing.T, change ...func(*application.Config)) (*rig, *portstest.FakeModelGateway) {
	t.Helper()
	gateways := &portstest.FakeModelGateway{}
	r := newRig(t, append([]func(*application.Config){func(c *application.Config) {
		c.Gateway = gateways
		c.Agents = []ports.AgentAdapter{portstest.FakeAgent{
			AgentKind: "fake", Program: "/bin/cat", Fragment: ports.PlanFragment{ModelAPI: modelAPI(), Notes: []string{"any way"}},
		}}
	}}, change...)...)
	return r, gateways
}

func environ(p domain.SandboxPlan, lookup func(string) (string, bool)) map[string]string {
	env := map[string]string{}
	for _, e := range p.Environ(lookup) {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}

func (r *rig) lookup(name string) (string, bool) {
	v, ok := r.env[name]
	return v, ok
}

func TestAGatewayStandsBetweenTheAgentAndItsAPI(t *testing.T) {
	r, gateways := gatedRig(t)
	r.env["FAKE_KEY"] = "the real key"
	s := r.open(t)
	require.Len(t, gateways.Opened(), 1)
	g := gateways.Opened()[0]
	require.Equal(t, s.ID(), g.Spec.Session)
	require.Equal(t, *modelAPI(), g.Spec.API)

	plan := s.Plan()
	port, ok := plan.ModelGateway()
	require.True(t, ok)
	require.Equal(t, g.Port(), port)
	require.Equal(t, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}, plan.ReachableDestinations(), "and nothing else")
	require.Empty(t, plan.ConnectTCP())
	require.False(t, plan.UDP())
	env := environ(plan, r.lookup)
	require.Equal(t, g.Token(), env["FAKE_KEY"])
	require.Equal(t, g.BaseURL(), env["FAKE_URL"])
	require.NotContains(t, env, "FAKE_TOKEN")
	require.NotContains(t, plan.String(), g.Token())
	require.NotContains(t, plan.String(), "4000")
	require.Contains(t, plan.String(), "model gateway")

	spec := r.sessions.Starts()[0].Spec
	require.Equal(t, g.BaseURL(), spec.Install.BaseURL)
	require.Equal(t, "FAKE_KEY", spec.Install.KeyEnv)
	notes := strings.Join(spec.Notes, "\n")
	require.Contains(t, notes, "https://api.example/v1")
	require.Contains(t, notes, "the credential, FAKE_KEY, stays with Caisson")
	require.Contains(t, notes, "any way")
	require.NotContains(t, notes, "direct")
	require.NotContains(t, notes, "geheim")

	require.False(t, g.Closed())
	require.NoError(t, s.Close(t.Context()))
	require.True(t, g.Closed())
}

// The plan of turn n is the plan of turn 1, although port, token and even the
// kind of credential are others.
func TestTheDigestDoesNotKnowThePortAndTheToken(t *testing.T) {
	r, gateways := gatedRig(t)
	r.env["FAKE_KEY"] = "the real key"
	preview, err := r.Plan(t.Context(), r.request())
	require.NoError(t, err)
	require.Empty(t, gateways.Opened(), "a preview opens nothing")
	_, ok := preview.Plan.ModelGateway()
	require.True(t, ok)

	s := r.open(t)
	play(t, s, "say hello")
	require.NoError(t, s.Close(t.Context()))
	delete(r.env, "FAKE_KEY")
	r.env["FAKE_TOKEN"] = "another"
	again := r.resume(t, s.ID())
	opened := gateways.Opened()
	require.Len(t, opened, 2)
	require.NotEqual(t, opened[0].Port(), opened[1].Port())
	require.Equal(t, s.Plan().Digest(), again.Plan().Digest())
	require.Equal(t, s.Plan().Grants(), again.Plan().Grants())
	require.Equal(t, opened[1].Token(), environ(again.Plan(), r.lookup)["FAKE_TOKEN"])
	require.NoError(t, again.Close(t.Context()))

	_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID(), DirectAPI: true})
	var changed *domain.PlanChangedError
	require.ErrorAs(t, err, &changed)
	require.Contains(t, changed.Removed, "tcp connect model gateway")
	require.Contains(t, changed.Added, "udp allow")
}

func TestWithoutAGateway(t *testing.T) {
	for name, c := range map[string]struct {
		config func(*application.Config)
		change func(*application.OpenRequest)
		note   string
		udp    bool
	}{
		"opted out":    {nil, func(q *application.OpenRequest) { q.DirectAPI = true }, "the model gateway is off", true},
		"no sandbox":   {nil, func(q *application.OpenRequest) { q.Sandbox = application.SandboxOff("a test") }, "the session has no sandbox", false},
		"none is here": {func(c *application.Config) { c.Gateway = nil }, nil, "this orchestrator has no model gateway", true},
		"its own": {func(c *application.Config) {
			c.Agents = []ports.AgentAdapter{portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat", Fragment: ports.PlanFragment{
				OwnCredential: "it logs in by a browser", ConnectTCP: []uint16{443}, UDP: "x", Env: []domain.EnvRule{{Name: "FAKE_KEY", Secret: true}},
			}}}
		}, nil, "it logs in by a browser", true},
	} {
		t.Run(name, func(t *testing.T) {
			r, gateways := gatedRig(t, func(cfg *application.Config) {
				if c.config != nil {
					c.config(cfg)
				}
			})
			r.env["FAKE_KEY"] = "the real key"
			q := r.request()
			if c.change != nil {
				c.change(&q)
			}
			s, err := r.Open(t.Context(), q)
			require.NoError(t, err)
			require.Empty(t, gateways.Opened())
			_, ok := s.Plan().ModelGateway()
			require.False(t, ok)
			require.Equal(t, c.udp, s.Plan().UDP())
			require.Equal(t, "the real key", environ(s.Plan(), r.lookup)["FAKE_KEY"])
			notes := strings.Join(r.sessions.Starts()[0].Spec.Notes, "\n")
			require.Contains(t, notes, "holds the credential")
			require.Contains(t, notes, c.note)
			require.NoError(t, s.Close(t.Context()))

			q.CredentialFiles = map[string]string{"FAKE_KEY": "/nonexistent"}
			_, err = r.Open(t.Context(), q)
			require.ErrorContains(t, err, "only the model gateway reads it")
		})
	}
}

func TestCredentials(t *testing.T) {
	r, gateways := gatedRig(t)
	dir := realPath(t, t.TempDir())
	file := write(t, "from the-file\n", dir, "bad")
	key := write(t, "sk-file\n", dir, "key")
	ask := func(q application.OpenRequest) (func() (ports.Credential, bool, error), string) {
		s, err := r.Open(t.Context(), q)
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
		opened, started := gateways.Opened(), r.sessions.Starts()
		return opened[len(opened)-1].Spec.Credential, strings.Join(started[len(started)-1].Spec.Notes, "\n")
	}

	late, notes := ask(r.request())
	require.Contains(t, notes, "no credential was found (FAKE_TOKEN, FAKE_KEY)")
	_, ok, err := late()
	require.NoError(t, err)
	require.False(t, ok)
	r.env["FAKE_KEY"] = "sk-env"
	c, ok, err := late()
	require.NoError(t, err)
	require.True(t, ok, "it is looked up for every request")
	require.Equal(t, ports.Credential{Header: "X-Api-Key", Secret: "sk-env"}, c)
	r.env["FAKE_TOKEN"] = ""
	c, _, _ = late()
	require.Equal(t, "sk-env", c.Secret, "an empty one is none")
	r.env["FAKE_TOKEN"] = "tk"
	c, _, _ = late()
	require.Equal(t, ports.Credential{Header: "Authorization", Scheme: "Bearer", Secret: "tk"}, c, "by precedence")
	r.env["FAKE_TOKEN"] = "two words"
	_, _, err = late()
	require.ErrorContains(t, err, "FAKE_TOKEN")
	require.NotContains(t, err.Error(), "two words")

	q := r.request()
	q.CredentialFiles = map[string]string{"FAKE_KEY": key}
	late, notes = ask(q)
	require.Contains(t, notes, "FAKE_KEY from a file, stays with Caisson")
	c, ok, err = late()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "sk-file", c.Secret, "a file that was named comes before the environment")
	require.NoError(t, os.WriteFile(key, []byte("sk-new"), 0o600))
	c, _, _ = late()
	require.Equal(t, "sk-new", c.Secret)
	require.NoError(t, os.Remove(key))
	_, _, err = late()
	require.ErrorIs(t, err, os.ErrNotExist)

	inside := write(t, "sk", r.workspace, "key")
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(inside, link))
	for want, files := range map[string]map[string]string{
		"no credential of that name":   {"OTHER": file},
		"white space":                  {"FAKE_KEY": file},
		"cannot be used":               {"FAKE_KEY": filepath.Join(dir, "no")},
		"it is no regular file":        {"FAKE_KEY": dir},
		"it is empty":                  {"FAKE_KEY": write(t, "\n", dir, "empty")},
		"more than":                    {"FAKE_KEY": write(t, strings.Repeat("x", 1<<17), dir, "long")},
		"so the agent could read it":   {"FAKE_KEY": inside},
		"(workspace), so the agent co": {"FAKE_KEY": link},
	} {
		q.CredentialFiles = files
		before := len(gateways.Opened())
		_, err := r.Open(t.Context(), q)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, want)
		require.ErrorContains(t, err, want)
		require.Len(t, gateways.Opened(), before)
	}
}

// A policy cannot hand the agent what the gateway keeps.
func TestThePolicyCannotUndoTheGateway(t *testing.T) {
	r, _ := gatedRig(t)
	for _, name := range []string{"FAKE_KEY", "FAKE_TOKEN", "FAKE_URL"} {
		q := r.request()
		q.Policy.Env = []domain.EnvRule{{Name: name}}
		_, err := r.Open(t.Context(), q)
		require.ErrorContains(t, err, "the model gateway stands between")
		q.DirectAPI = true
		s, err := r.Open(t.Context(), q)
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
	}
}

func TestAGatewayIsClosedWhenALaterStepFails(t *testing.T) {
	broken := errors.New("broken")
	r, gateways := gatedRig(t)
	r.sessions.Refuse = func(ports.SessionSpec, domain.SandboxPlan) error { return broken }
	_, err := r.Open(t.Context(), r.request())
	require.ErrorIs(t, err, broken)
	require.True(t, gateways.Opened()[0].Closed())
	require.Empty(t, r.left(t))

	r, gateways = gatedRig(t)
	gateways.Fail = broken
	_, err = r.Open(t.Context(), r.request())
	require.ErrorIs(t, err, broken)
	require.Empty(t, r.sessions.Starts())
	require.Empty(t, r.left(t))
}

func TestWhatPassedTheGatewayIsToldBeforeTheFinal(t *testing.T) {
	r, gateways := gatedRig(t)
	s := r.open(t)
	g := gateways.Opened()[0]
	told := func(prompt string) (reports []domain.UsageReport, notices []domain.Notice) {
		t.Helper()
		events := play(t, s, prompt)
		require.IsType(t, domain.Final{}, events[len(events)-1].Reply)
		for i, e := range events {
			switch e := e.Reply.(type) {
			case domain.UsageReport:
				require.Equal(t, len(events)-2, i)
				reports = append(reports, e)
			case domain.Notice:
				notices = append(notices, e)
			default:
			}
		}
		return reports, notices
	}
	reports, notices := told("say nothing")
	require.Empty(t, reports, "nothing has passed")
	require.Empty(t, notices)

	g.Pass(domain.GatewayTraffic{Requests: 3, Failed: 1}, domain.Usage{InputTokens: 10, OutputTokens: 4}, "")
	reports, notices = told("say more")
	require.Equal(t, []domain.UsageReport{{
		Usage: domain.Usage{InputTokens: 10, OutputTokens: 4}, Gateway: &domain.GatewayTraffic{Requests: 3, Failed: 1},
	}}, reports)
	require.Empty(t, notices)

	g.Pass(domain.GatewayTraffic{Requests: 1, Refused: 2}, domain.Usage{InputTokens: 1}, `"GET" "/v1/files": no`)
	reports, notices = told("say the last")
	require.Equal(t, []domain.UsageReport{{
		Usage: domain.Usage{InputTokens: 1}, Gateway: &domain.GatewayTraffic{Requests: 1, Refused: 2},
	}}, reports, "of this turn")
	require.Len(t, notices, 1)
	require.Contains(t, notices[0].Message, `2, at last "GET" "/v1/files"`)
	require.NoError(t, s.Close(t.Context()))
}

func TestAnAddressHasNoPassword(t *testing.T) {
	for base, want := range map[string]string{
		"https://user:geheim@api.example/v1": "https://api.example/v1", "https://a:b@c@h": "https://h", "http://h:1/x@y": "http://h:1/x@y",
		"https://h": "https://h", "geheim": "",
	} {
		require.Equal(t, want, ports.ModelAPI{BaseURL: base}.Address())
	}
}

func TestWithoutACredentialNoSessionOpens(t *testing.T) {
	for base, refused := range map[string]bool{
		"https://api.example/v1": true, "http://10.0.0.1": true, "http://localhost.example": true,
		"http://LOCALHOST:80": false, "http://127.0.0.9:80": false, "http://[::1]": false, "https://user:geheim@api.example": false,
	} {
		t.Run(base, func(t *testing.T) {
			api := modelAPI()
			api.BaseURL = base
			agent := portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat", Fragment: ports.PlanFragment{ModelAPI: api}}
			r, gateways := gatedRig(t, func(c *application.Config) { c.Agents = []ports.AgentAdapter{agent} })
			_, err := r.Plan(t.Context(), r.request())
			require.NoError(t, err, "a preview says it in a note")
			s, err := r.Open(t.Context(), r.request())
			if !refused {
				require.NoError(t, err)
				require.NoError(t, s.Close(t.Context()))
				return
			}
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.ErrorContains(t, err, base)
			require.ErrorContains(t, err, "FAKE_TOKEN, FAKE_KEY")
			require.ErrorContains(t, err, "--credential-file")
			require.Empty(t, gateways.Opened())
			stored, err := r.Sessions(t.Context())
			require.NoError(t, err)
			require.Empty(t, stored)

			r.env["FAKE_KEY"] = "there"
			s, err = r.Open(t.Context(), r.request())
			require.NoError(t, err)
			require.NoError(t, s.Close(t.Context()))
			api.NoCredential = true
			r.env["FAKE_KEY"] = ""
			s, err = r.Open(t.Context(), r.request())
			require.NoError(t, err, "the agent goes nowhere")
			require.NoError(t, s.Close(t.Context()))
		})
	}
}
