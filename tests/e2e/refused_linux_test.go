package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// A program of the agent's that is refused a connection says so itself, and the
// session tells where it wanted to go and what would allow it: once, and how often
// in the end, whatever the program prints.
func TestARefusedConnectionIsAnEvent(t *testing.T) {
	for _, agent := range agents {
		t.Run(string(agent), func(t *testing.T) {
			testkit.RequireLandlock(t, 6)
			testkit.NoLeaks(t)
			var reached atomic.Int64
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.2:0")
			require.NoError(t, err)
			elsewhere := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })}}
			elsewhere.Start()
			defer elsewhere.Close()
			address := l.Addr().String()
			loud, silent := "curl -sSv http://"+address+"/", "curl -s http://"+address+"/"
			commands := []string{"sh " + loud, "sh " + silent, "sh " + silent, "sh curl -sS http://host.example/"}
			if _, err := exec.LookPath("curl"); err != nil {
				t.Log("there is no curl: only that it connects is tried")
				commands = []string{"connect " + address, "connect " + address, "connect " + address}
				require.True(t, dials(t, address), "the companion")
			} else {
				require.NoError(t, exec.CommandContext(t.Context(), "curl", "-sSf", "http://"+address+"/").Run(), "the companion")
				require.EqualValues(t, 1, reached.Load())
			}
			model := modelserver.NewMessages(t)
			env := map[string]string{
				"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "ANTHROPIC_API_KEY": dummyKey, "OPENAI_API_KEY": dummyKey,
				"ANTHROPIC_BASE_URL": model.URL(), "OPENAI_BASE_URL": model.URL(),
			}
			s := newStage(t, agent, composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
			session := s.open(t, application.OpenRequest{})
			turn, err := session.Send(t.Context(), fakecli.Script(commands...))
			require.NoError(t, err)
			var replies []domain.ReplyEvent
			for e, err := range turn.Events() {
				require.NoError(t, err)
				replies = append(replies, e.Reply)
			}
			var results []domain.ToolResult
			var denials []domain.Notice
			firstDenial, firstResult := -1, -1
			for i, r := range replies {
				switch r := r.(type) {
				case domain.ToolResult:
					if results = append(results, r); firstResult < 0 {
						firstResult = i
					}
				case domain.Notice:
					if r.Class == domain.NoticeDenial {
						if denials = append(denials, r); firstDenial < 0 {
							firstDenial = i
						}
					}
				default:
				}
			}
			require.Len(t, results, len(commands))
			for _, r := range results {
				require.Equal(t, domain.ToolFailed, r.Status)
			}
			require.Less(t, firstDenial, firstResult, "it is told when the program fails, and not later")
			var told []string
			for _, d := range denials {
				told = append(told, fmt.Sprintf("%s %d", d.Refused.Destination(), d.Refused.Count))
				t.Log(d.Message)
			}
			if len(commands) == 3 {
				require.Equal(t, []string{"tcp:" + address + " 1", "tcp:" + address + " 3"}, told)
			} else {
				require.Contains(t, results[0].Output, "Permission denied", "curl's own words")
				require.Contains(t, results[3].Output, "Could not resolve host: host.example")
				require.Equal(t, []string{"tcp:" + address + " 1", "udp"}, []string{told[0], strings.Fields(told[1])[0]})
				require.Contains(t, told, "tcp:"+address+" 3")
				require.LessOrEqual(t, len(told), 4)
				require.Contains(t, denials[1].Message, "the plan denies UDP")
				require.EqualValues(t, 1, reached.Load(), "the companion's")
			}
			require.Contains(t, denials[0].Message, "the sandbox refused a connection to tcp:"+address+": the plan denies to connect")
			require.Contains(t, denials[0].Message, "to allow it, grant TCP to "+address)
		})
	}
}

// A unix socket that is named is reached by the agent's programs, and the one beside
// it is not, which is told.
func TestAUnixDestinationOfASession(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is missing; the escape kit makes the same attempts without it")
	}
	for _, agent := range agents {
		t.Run(string(agent), func(t *testing.T) {
			testkit.NoLeaks(t)
			dir, err := os.MkdirTemp("", "u") //nolint:usetesting // a path of a socket is short
			require.NoError(t, err)
			defer func() { require.NoError(t, os.RemoveAll(dir)) }()
			dir, err = filepath.EvalSymlinks(dir)
			require.NoError(t, err)
			for _, name := range []string{"granted", "other"} {
				l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, name))
				require.NoError(t, err)
				server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from "+name) })}}
				server.Start()
				defer server.Close()
			}
			ask := func(name string) string {
				return "curl -sSv --unix-socket " + filepath.Join(dir, name) + " http://host/"
			}
			out, err := exec.CommandContext(t.Context(), "sh", "-c", ask("other")).CombinedOutput()
			require.NoError(t, err, "the companion")
			require.Contains(t, string(out), "from other")
			s := newStage(t, agent)
			session := s.open(t, application.OpenRequest{Policy: application.Policy{UnixDestinations: []string{filepath.Join(dir, "granted")}}})
			require.Equal(t, []string{filepath.Join(dir, "granted")}, session.Plan().UnixDestinations())
			for range 2 { // every turn opens it anew
				turn, err := session.Send(t.Context(), fakecli.Script("sh "+ask("granted"), "sh "+ask("other")))
				require.NoError(t, err)
				var results []domain.ToolResult
				var denials []domain.Notice
				for e, err := range turn.Events() {
					require.NoError(t, err)
					switch r := e.Reply.(type) {
					case domain.SandboxApplied:
						require.Equal(t, session.Plan().UnixDestinations(), r.Receipt.UnixDestinations)
						require.Contains(t, r.Receipt.InState(domain.StateEnforced), domain.PropertyUnixSockets)
					case domain.ToolResult:
						results = append(results, r)
					case domain.Notice:
						denials = append(denials, r)
					default:
					}
				}
				require.Len(t, results, 2)
				require.Equal(t, domain.ToolCompleted, results[0].Status)
				require.Contains(t, results[0].Output, "from granted")
				require.Equal(t, domain.ToolFailed, results[1].Status)
				require.NotContains(t, results[1].Output, "from other")
				require.Len(t, denials, 1)
				require.Equal(t, "unix:"+filepath.Join(dir, "other"), denials[0].Refused.Destination())
				require.Contains(t, denials[0].Message, "to allow it, grant the unix socket "+filepath.Join(dir, "other"))
			}
		})
	}
}
