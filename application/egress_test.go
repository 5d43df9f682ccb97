package application_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

func withEgress(proxies *portstest.FakeEgressProxy) func(*application.Config) {
	return func(c *application.Config) { c.Egress = proxies }
}

func notices(events []domain.Event) []string {
	var list []string
	for _, e := range events {
		if n, ok := e.Reply.(domain.Notice); ok && n.Class == domain.NoticeEgress {
			list = append(list, n.Message)
		}
	}
	return list
}

func TestDomainsAreReachedThroughAProxyOfTheSession(t *testing.T) {
	proxies := &portstest.FakeEgressProxy{}
	r := newRig(t, withEgress(proxies))
	q := r.request()
	q.Policy.Domains = testkit.EgressDomains("*.example.org", "db.internal:5432=10.0.0.0/8")
	q.Policy.Destinations = []netip.AddrPort{netip.MustParseAddrPort("10.9.9.9:1")}
	preview, err := r.Plan(t.Context(), q)
	require.NoError(t, err)
	require.Empty(t, proxies.Opened(), "a preview opens nothing")
	require.Contains(t, preview.Plan.String(), "HTTPS_PROXY", "but shows what there will be")

	s, err := r.Open(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, proxies.Opened(), 1)
	proxy := proxies.Opened()[0]
	require.Equal(t, s.ID(), proxy.Spec.Session)
	require.Equal(t, q.Policy.Domains, proxy.Spec.Domains)
	plan := s.Plan()
	require.Equal(t, preview.Plan.EgressDomains(), plan.EgressDomains())
	require.Equal(t, []netip.AddrPort{
		netip.MustParseAddrPort("10.9.9.9:1"), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), proxy.Port()),
	}, plan.ReachableDestinations(), "the proxy, and what the policy names")
	env := environ(plan, r.lookup)
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"} {
		require.Equal(t, proxy.URL(), env[name], name)
	}
	require.Equal(t, "localhost,127.0.0.1,::1,10.9.9.9", env["NO_PROXY"], "the gateway is not reached through it")
	require.Equal(t, env["NO_PROXY"], env["no_proxy"])
	require.Equal(t, "1", env["NODE_USE_ENV_PROXY"])
	require.NotContains(t, plan.String(), "secret-number")
	notes := strings.Join(r.sessions.Starts()[0].Spec.Notes, "\n")
	require.Contains(t, notes, "through Caisson's egress proxy")
	require.NotContains(t, notes, "cooperative")

	// Decisions are events: each once, and then how often it came again.
	for range 3 {
		proxy.Ask("a.example.org", 443)
		proxy.Ask("evil.test", 443)
	}
	told := notices(play(t, s, "print "+proxy.URL()))
	require.Equal(t, []string{
		"allowed a.example.org:443", "refused evil.test:443: the policy does not allow this domain",
		"2 times more: allowed a.example.org:443", "2 times more: refused evil.test:443: the policy does not allow this domain",
	}, told)
	require.Empty(t, notices(play(t, s, "say hello")), "nothing new, nothing told")
	for i := range 100 {
		proxy.Ask(fmt.Sprintf("host-%d.test", i), 443)
	}
	proxy.Ask("b.example.org", 443)
	told = notices(play(t, s, "say hello"))
	require.Len(t, told, 66, "a flood is bounded")
	require.Equal(t, []string{"allowed b.example.org:443", "36 others refused, of a turn with more than 64 different ones"}, told[64:],
		"and hides nothing of another kind")

	require.False(t, proxy.Closed())
	require.NoError(t, s.Close(t.Context()))
	require.True(t, proxy.Closed())
	require.Contains(t, r.log.String(), "egress proxy closed")
	again := r.resumeWith(t, s.ID(), q.Policy)
	require.Len(t, proxies.Opened(), 2)
	require.Equal(t, plan.Digest(), again.Plan().Digest(), "port and secret are others")
	require.Equal(t, proxies.Opened()[1].URL(), environ(again.Plan(), r.lookup)["HTTPS_PROXY"])
	require.NoError(t, again.Close(t.Context()))
	_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID()})
	var changed *domain.PlanChangedError
	require.ErrorAs(t, err, &changed)
	require.Contains(t, changed.Removed, "domain *.example.org")
}

func (r *rig) resumeWith(t *testing.T, id domain.SessionID, policy application.Policy) *application.Session {
	t.Helper()
	s, err := r.Open(t.Context(), application.OpenRequest{Resume: id, Policy: policy})
	require.NoError(t, err)
	return s
}

func TestDomainsThatAreRefused(t *testing.T) {
	proxies := &portstest.FakeEgressProxy{}
	for name, c := range map[string]struct {
		config func(*application.Config)
		change func(*application.OpenRequest)
		reason string
	}{
		"no proxy": {func(c *application.Config) { c.Egress = nil }, nil, "no egress proxy"},
		"who granted it": {func(c *application.Config) {
			c.Egress = &portstest.FakeEgressProxy{Refuse: &domain.InvalidError{What: "domain", Value: "example.org", Reason: "too wide", Remedy: "less"}}
		}, func(q *application.OpenRequest) {
			q.Policy.Origins = map[string]string{"domain example.org": "the file:3"}
		}, `domain "example.org": too wide (granted by: the file:3); less`},
		"the proxy's check":  {func(c *application.Config) { c.Egress = &portstest.FakeEgressProxy{Refuse: errors.New("too wide")} }, nil, "too wide"},
		"it cannot be open":  {func(c *application.Config) { c.Egress = &portstest.FakeEgressProxy{Fail: errors.New("no port")} }, nil, "no port"},
		"without a sandbox":  {nil, func(q *application.OpenRequest) { q.Sandbox = application.SandboxOff("a test") }, "nothing would enforce them"},
		"a variable of ours": {nil, func(q *application.OpenRequest) { q.Policy.Env = []domain.EnvRule{{Name: "https_proxy"}} }, "leads programs to the egress proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withEgress(proxies), func(cfg *application.Config) {
				if c.config != nil {
					c.config(cfg)
				}
			})
			q := r.request()
			q.Policy.Domains = testkit.EgressDomains("example.org")
			if c.change != nil {
				c.change(&q)
			}
			_, err := r.Open(t.Context(), q)
			require.ErrorContains(t, err, c.reason)
			require.Empty(t, r.left(t))
		})
	}
	require.Empty(t, proxies.Opened())
	// What fails later closes it.
	r := newRig(t, withEgress(proxies))
	q := r.request()
	q.Policy.Domains = testkit.EgressDomains("example.org")
	r.records.set(&r.records.save, errors.New("disk full"))
	_, err := r.Open(t.Context(), q)
	require.ErrorContains(t, err, "disk full")
	require.Len(t, proxies.Opened(), 1)
	require.True(t, proxies.Opened()[0].Closed())
}

// An agent without the gateway whose API is among the domains needs neither its port
// on every host nor DNS; and what leads around the proxy is said.
func TestAnAPIByName(t *testing.T) {
	for policy, direct := range map[string]bool{
		"api.example": false, "api.example:443": false, "*.example.org api.example": false, "api.example:8443": true, "other.example": true,
	} {
		r, _ := gatedRig(t, withEgress(&portstest.FakeEgressProxy{}))
		r.env["FAKE_KEY"] = "the real key"
		q := r.request()
		q.DirectAPI, q.Policy.Domains = true, testkit.EgressDomains(strings.Fields(policy)...)
		s, err := r.Open(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, direct, s.Plan().UDP(), policy)
		require.Equal(t, direct, len(s.Plan().ConnectTCP()) > 0, policy)
		require.Equal(t, "the real key", environ(s.Plan(), r.lookup)["FAKE_KEY"])
		notes := strings.Join(r.sessions.Starts()[0].Spec.Notes, "\n")
		require.Equal(t, direct, strings.Contains(notes, "cooperative for what the plan grants beside it: TCP port 443 on every host, UDP to every host"), notes)
		require.NoError(t, s.Close(t.Context()))
	}
	for base, byName := range map[string]bool{
		"http://api.example": true, "http://api.example:80/x": true, "http://api.example:81": false, "https://API.Example.": true,
		"http://127.0.0.1:80": false, "http://[::1]:80": false, "http://[::1]": false,
	} {
		api := modelAPI()
		api.BaseURL = base
		r := newRig(t, withEgress(&portstest.FakeEgressProxy{}), func(c *application.Config) {
			c.Agents = []ports.AgentAdapter{portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat", Fragment: ports.PlanFragment{ModelAPI: api}}}
		})
		r.env["FAKE_KEY"] = "the real key"
		q := r.request()
		q.DirectAPI, q.Policy.Domains = true, testkit.EgressDomains("api.example")
		q.Policy.Waivers = []domain.Property{domain.PropertyDestinations}
		s, err := r.Open(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, byName, !s.Plan().UDP(), base)
		require.Contains(t, strings.Join(r.sessions.Starts()[0].Spec.Notes, "\n"), "the proxy's port on every host")
		require.NoError(t, s.Close(t.Context()))
	}
}

func TestExecWithDomains(t *testing.T) {
	proxies := &portstest.FakeEgressProxy{}
	r := newRig(t, withEgress(proxies))
	q := application.ExecRequest{Argv: []string{"true"}, Dir: r.workspace, Policy: application.Policy{Domains: testkit.EgressDomains("example.org")}}
	r.commands.run = func(_ context.Context, line domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		proxy := proxies.Opened()[0]
		require.Contains(t, line.Env, "HTTPS_PROXY="+proxy.URL())
		require.Equal(t, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), proxy.Port())}, line.Sandbox.ReachableDestinations())
		require.False(t, proxy.Closed())
		for i := range 70 {
			proxy.Ask(fmt.Sprintf("evil-%d.test", i), 443)
		}
		proxy.Ask("evil-0.test", 443)
		return ports.CommandResult{}, nil
	}
	_, err := r.Exec(t.Context(), q)
	require.NoError(t, err)
	require.True(t, proxies.Opened()[0].Closed())
	require.Contains(t, r.log.String(), `egress proxy: refused evil-0.test:443: the policy does not allow this domain" times=2`)
	require.Contains(t, r.log.String(), "others=6")

	plan, err := r.PlanExec(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, proxies.Opened(), 1)
	require.Equal(t, q.Policy.Domains, plan.EgressDomains())

	failing := newRig(t, withEgress(&portstest.FakeEgressProxy{Fail: errors.New("no port")}))
	_, err = failing.Exec(t.Context(), q)
	require.ErrorContains(t, err, "no port")
	require.Empty(t, failing.left(t))
}

func TestATerminalWithDomains(t *testing.T) {
	proxies, terminals := &portstest.FakeEgressProxy{}, &fakeTerminals{}
	r := newRig(t, withEgress(proxies), func(c *application.Config) { c.Terminals = terminals })
	term, err := r.OpenTerminal(t.Context(), application.TerminalRequest{
		Argv: []string{"true"}, Workspace: r.workspace, Policy: application.Policy{Domains: testkit.EgressDomains("example.org")},
	})
	require.NoError(t, err)
	proxy := proxies.Opened()[0]
	require.Contains(t, terminals.line.Env, "HTTPS_PROXY="+proxy.URL())
	proxy.Ask("evil.test", 443)
	require.NoError(t, term.Close(t.Context()))
	require.True(t, proxy.Closed())
	require.Contains(t, r.log.String(), "refused evil.test:443")
	logged := r.log.String()
	require.NoError(t, term.Close(t.Context()))
	require.Equal(t, logged, r.log.String(), "it is told once")
}
