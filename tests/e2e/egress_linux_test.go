package e2e

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/egress"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// resolver is all the DNS that there is: names that end in .test are this machine.
type resolver struct {
	mu    sync.Mutex
	asked []string
}

func (r *resolver) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, host)
	if !strings.HasSuffix(host, ".test") {
		return nil, errors.New("no such host")
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func (r *resolver) option() composition.Option {
	return composition.WithEgressProxy(egress.New(egress.WithResolver(r.resolve)))
}

func egressDomains(t *testing.T, texts ...string) []domain.EgressDomain {
	t.Helper()
	var list []domain.EgressDomain
	for _, s := range texts {
		d, err := domain.ParseEgressDomain(s)
		require.NoError(t, err)
		list = append(list, d)
	}
	return list
}

func egressNotices(events []domain.Event) []string {
	var list []string
	for _, n := range repliesOf[domain.Notice](events) {
		if n.Class == domain.NoticeEgress {
			list = append(list, n.Message)
		}
	}
	return list
}

// The real agents reach a model that they know by its name alone: with one port of
// one host, no UDP, and no DNS of their own.
func realEgress(t *testing.T, b *realBench) {
	for name, value := range b.env {
		b.env[name] = strings.ReplaceAll(value, "http://127.0.0.1:", "http://model.test:")
	}
	const command = "curl -sS -m 20 http://elsewhere.test/ 2>&1; curl -sS -m 20 https://elsewhere.test/ 2>&1; echo over"
	b.model.Enqueue(
		modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell(command)}},
		modelserver.Reply{Text: "Done."},
	)
	dns := &resolver{}
	policy := application.Policy{Domains: egressDomains(t, "model.test:"+portOf(b.model.URL())+"=127.0.0.1")}
	session := b.open(t, b.compose(t, dns.option()), application.OpenRequest{DirectAPI: true, Policy: policy})
	plan := session.Plan()
	require.Empty(t, plan.ConnectTCP())
	require.False(t, plan.UDP())
	require.Equal(t, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), plan.EgressPort())}, plan.ReachableDestinations())
	events, final := b.turn(t, session, "Run a tool.")
	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.Equal(t, "Done.", final.Text)
	receipt := realReceipt(t, events)
	for _, property := range []domain.Property{domain.PropertyUDP, domain.PropertyDestinations, domain.PropertyTCP} {
		require.Contains(t, receipt.InState(domain.StateEnforced), property)
	}
	require.Equal(t, policy.Domains, receipt.Domains)
	told := egressNotices(events)
	require.Contains(t, told, "allowed model.test:"+portOf(b.model.URL()))
	require.NotEmpty(t, dns.asked)
	for _, host := range dns.asked {
		require.Equal(t, "model.test", host, "what is refused is not looked up")
	}
	result := repliesOf[domain.ToolResult](events)
	require.Len(t, result, 1)
	require.Contains(t, result[0].Output, "over")
	if b.agent.kind == domain.AgentCodex {
		// Its own filter leaves its tools no sockets at all.
		require.NotContains(t, result[0].Output, "Caisson")
		return
	}
	require.Contains(t, result[0].Output, `Caisson refused a connection to "elsewhere.test" on port 80: the policy does not allow this domain`)
	require.Contains(t, result[0].Output, "CONNECT tunnel failed, response 403")
	require.Contains(t, told, "refused elsewhere.test:80: the policy does not allow this domain")
	require.Contains(t, told, "refused elsewhere.test:443: the policy does not allow this domain")
}

func portOf(url string) string { return url[strings.LastIndexByte(url, ':')+1:] }

var _ = testkit.NoLeaks
