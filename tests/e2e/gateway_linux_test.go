package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// The real agents complete a turn with one TCP port and no UDP, and neither
// they nor what they start hold the key. The companion, the same turn without
// the gateway, shows that the search would find one.
func realGateway(t *testing.T, b *realBench) {
	for _, direct := range []bool{false, true} {
		answer := make(chan struct{})
		b.model.Clear()
		before := len(b.model.Requests())
		b.model.Enqueue(
			modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell("echo from a tool")}, InputTokens: 300, OutputTokens: 20},
			modelserver.Reply{Text: "Done.", HangUntil: answer, InputTokens: 400, OutputTokens: 30},
		)
		session := b.open(t, b.compose(t), application.OpenRequest{DirectAPI: direct})
		turn, err := session.Send(t.Context(), "Run a tool.")
		require.NoError(t, err)
		type look struct {
			processes int
			holders   []string
			err       error
		}
		looked := make(chan look, 1)
		go func() {
			defer close(answer)
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
			defer cancel()
			_, err := b.model.WaitRequests(ctx, before+2)
			processes, holders := holding(dummyKey)
			looked <- look{processes, holders, err}
		}()
		events, final := b.read(t, turn, 1, 0)
		require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
		require.Equal(t, "Done.", final.Text)
		l := <-looked
		require.NoError(t, l.err)
		require.NotZero(t, l.processes)
		for _, r := range b.model.Requests()[before:] {
			require.Equal(t, dummyKey, b.agent.key(r.Header), "the API gets the real key")
		}
		receipt, plan := realReceipt(t, events), session.Plan()
		notes := strings.Join(receipt.Agent, "\n")
		for _, n := range repliesOf[domain.Notice](events) {
			require.NotEqual(t, domain.NoticeDenial, n.Class, "a plain turn is refused nothing: %s", n.Message)
		}
		reports := gatewayReports(events)
		if direct {
			require.NotEmpty(t, l.holders, "the companion")
			require.Equal(t, []uint16{b.model.Port()}, plan.ConnectTCP())
			require.Contains(t, notes, "holds the credential")
			require.Empty(t, reports)
			require.NoError(t, session.Close(t.Context()))
			continue
		}
		require.Empty(t, l.holders)
		port, ok := plan.ModelGateway()
		require.True(t, ok)
		require.Equal(t, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}, plan.ReachableDestinations(), "one port of one host")
		require.Empty(t, plan.ConnectTCP())
		require.Contains(t, receipt.InState(domain.StateEnforced), domain.PropertyDestinations)
		require.NotEqual(t, b.model.Port(), port)
		require.False(t, plan.UDP())
		require.Contains(t, receipt.InState(domain.StateEnforced), domain.PropertyUDP)
		require.Contains(t, notes, "to "+b.model.URL())
		require.Contains(t, notes, "stays with Caisson")
		require.Equal(t, []domain.UsageReport{{
			Usage: domain.Usage{InputTokens: 700, OutputTokens: 50}, Gateway: &domain.GatewayTraffic{Requests: reports[0].Gateway.Requests},
		}}, reports)
		require.GreaterOrEqual(t, reports[0].Gateway.Requests, int64(2), "the two, and what else the agent asks")
		require.NoError(t, session.Close(t.Context()))
	}
}

// holding returns how many processes there are below this one, and which of
// them have the text in their environment or arguments.
func holding(text string) (processes int, holders []string) {
	for _, pid := range processesBelow(os.Getpid()) {
		processes++
		for _, file := range []string{"environ", "cmdline"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err == nil && bytes.Contains(data, []byte(text)) {
				holders = append(holders, fmt.Sprintf("%s/%s", testkit.Comm(pid), file))
			}
		}
	}
	return processes, holders
}

func gatewayReports(events []domain.Event) []domain.UsageReport {
	var reports []domain.UsageReport
	for _, u := range repliesOf[domain.UsageReport](events) {
		if u.Gateway != nil {
			reports = append(reports, u)
		}
	}
	return reports
}

// With the token of a subscription Claude Code says other things than with a
// key, and the gateway sends that token.
func TestRealClaudeCodeWithASubscription(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	a := realAgents()[0]
	b := newRealBench(t, a, a.program(t))
	delete(b.env, "ANTHROPIC_API_KEY")
	b.env["CLAUDE_CODE_OAUTH_TOKEN"] = dummyKey
	b.model.Enqueue(modelserver.Reply{Text: "Hello."})
	_, final := b.turn(t, b.open(t, b.compose(t), application.OpenRequest{}), "hi")
	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	h := b.model.Requests()[0].Header
	require.Equal(t, "Bearer "+dummyKey, h.Get("Authorization"))
	require.Empty(t, h.Get("X-Api-Key"))
	require.Contains(t, h.Get("Anthropic-Beta"), "oauth")
}

// Without a credential no session opens. One that goes later fails the turn at its
// first request, soon, and with the names of the variables that were looked for.
func TestRealCLIsWithoutACredential(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for i, a := range realAgents() {
		t.Run(string(a.kind), func(t *testing.T) {
			testkit.NoLeaks(t)
			b := newRealBench(t, a, a.program(t))
			variable := []string{"ANTHROPIC", "OPENAI"}[i]
			delete(b.env, variable+"_API_KEY")
			b.env[variable+"_BASE_URL"] = "http://192.0.2.1:9/" // nowhere (RFC 5737)
			c := b.compose(t)
			_, err := c.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: a.kind, AgentBin: b.binary, Workspace: b.workspace})
			require.ErrorContains(t, err, "there is no credential for it")
			b.env[variable+"_API_KEY"] = dummyKey
			session := b.open(t, c, application.OpenRequest{})
			delete(b.env, variable+"_API_KEY")
			turn, err := session.Send(t.Context(), "hi")
			require.NoError(t, err)
			var final domain.Final
			var refused int64
			start := time.Now()
			for e, err := range turn.Events() {
				require.NoError(t, err)
				switch r := e.Reply.(type) {
				case domain.Final:
					final = r
				case domain.UsageReport:
					if r.Gateway != nil {
						refused = r.Gateway.Refused
					}
				default:
				}
			}
			require.Equal(t, domain.OutcomeFailed, final.Outcome)
			require.Contains(t, final.Error.Message, variable+"_API_KEY")
			require.NotZero(t, refused)
			require.Less(t, time.Since(start), 30*time.Second)
			t.Logf("%s after %s and %d requests: %s: %s", final.Outcome, time.Since(start).Round(time.Millisecond), refused, final.Error.Class, final.Error.Message)
		})
	}
}

// The fake agents: the child has the session's token and no key, can reach its
// own gateway and no other one, and not the API itself; a resumed session has
// the same plan, another token, and the old gateway is gone.
func TestTheGatewayOfASession(t *testing.T) {
	key, url := map[domain.AgentKind]string{domain.AgentClaude: "ANTHROPIC_API_KEY", domain.AgentCodex: "OPENAI_API_KEY"},
		map[domain.AgentKind]string{domain.AgentClaude: "ANTHROPIC_BASE_URL", domain.AgentCodex: "OPENAI_BASE_URL"}
	for _, agent := range agents {
		t.Run(string(agent), func(t *testing.T) {
			testkit.RequireLandlock(t, 6)
			testkit.NoLeaks(t)
			model := modelserver.NewMessages(t)
			env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", key[agent]: dummyKey, url[agent]: model.URL()}
			s := newStage(t, agent, composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
			mine, sibling := s.open(t, application.OpenRequest{}), s.open(t, application.OpenRequest{Workspace: s.outside})
			port := func(session *application.Session) uint16 {
				p, ok := session.Plan().ModelGateway()
				require.True(t, ok)
				return p
			}
			// Somebody else listens on the gateway's port, at another address.
			var listen net.ListenConfig
			decoy, err := listen.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.2:%d", port(mine)))
			require.NoError(t, err)
			defer func() { require.NoError(t, decoy.Close()) }()
			require.True(t, dials(t, decoy.Addr().String()), "the companion")
			// Events have no secret's value, so the child tells its digest.
			script := fakecli.Script(`sh printf %s "$`+key[agent]+`" | sha256sum`,
				fmt.Sprintf("connect 127.0.0.1:%d", port(mine)), fmt.Sprintf("connect 127.0.0.1:%d", port(sibling)),
				fmt.Sprintf("connect 127.0.0.1:%d", model.Port()), "connect "+decoy.Addr().String())
			outcome := func(session *application.Session) (token string, statuses []domain.ToolStatus, final domain.Final) {
				for _, v := range session.Plan().GatewayEnv() {
					if v.Name == key[agent] {
						token = v.Value
					}
				}
				digest := fmt.Sprintf("%x  -", sha256.Sum256([]byte(token)))
				told := false
				turn, err := session.Send(t.Context(), script)
				require.NoError(t, err)
				for e, err := range turn.Events() {
					require.NoError(t, err)
					switch r := e.Reply.(type) {
					case domain.ToolResult:
						if !told {
							told = true
							require.Equal(t, digest, strings.TrimSpace(r.Output), "the child has the session's token")
							continue
						}
						statuses = append(statuses, r.Status)
					case domain.Final:
						final = r
					default:
					}
				}
				require.True(t, told)
				return token, statuses, final
			}
			token, statuses, final := outcome(mine)
			require.Equal(t, domain.OutcomeCompleted, final.Outcome)
			require.Equal(t, []domain.ToolStatus{domain.ToolCompleted, domain.ToolFailed, domain.ToolFailed, domain.ToolFailed}, statuses, "its own gateway and nothing else")
			require.NotEmpty(t, token)
			require.NotEqual(t, dummyKey, token)
			other, statuses, _ := outcome(sibling)
			require.Equal(t, []domain.ToolStatus{domain.ToolFailed, domain.ToolCompleted, domain.ToolFailed, domain.ToolFailed}, statuses)
			require.NotEqual(t, token, other)

			ask := func(port uint16, token string) (int, error) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d%s", port, map[domain.AgentKind]string{
					domain.AgentClaude: "/v1/messages/count_tokens", domain.AgentCodex: "/responses",
				}[agent]), strings.NewReader("{}"))
				require.NoError(t, err)
				r.Header.Set("Authorization", "Bearer "+token)
				transport := &http.Transport{DisableKeepAlives: true}
				resp, err := (&http.Client{Transport: transport}).Do(r)
				if err != nil {
					return 0, err
				}
				return resp.StatusCode, resp.Body.Close()
			}
			status, err := ask(port(mine), token)
			require.NoError(t, err)
			require.NotEqual(t, http.StatusUnauthorized, status, "it is the gateway's")
			status, err = ask(port(sibling), token)
			require.NoError(t, err)
			require.Equal(t, http.StatusUnauthorized, status, "and no other one's")

			require.NoError(t, mine.Close(t.Context()))
			_, err = ask(port(mine), token)
			require.Error(t, err, "closed with its session")
			again := s.open(t, application.OpenRequest{Resume: mine.ID()})
			require.Equal(t, mine.Plan().Digest(), again.Plan().Digest())
			fresh, _, final := outcome(again)
			require.Equal(t, domain.OutcomeCompleted, final.Outcome)
			require.NotEqual(t, token, fresh)

			// Neither key nor token is in anything that Caisson keeps.
			require.NoError(t, again.Close(t.Context()))
			for _, record := range globbed(t, s.root, "sessions/*/record.json") {
				for _, secret := range []string{dummyKey, token, fresh} {
					require.NotContains(t, fileText(t, record), secret)
				}
			}
		})
	}
}

// dials reports whether a connection can be made.
func dials(t *testing.T, address string) bool {
	t.Helper()
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", address)
	return err == nil && c.Close() == nil
}

func globbed(t *testing.T, parts ...string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(parts...))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}
