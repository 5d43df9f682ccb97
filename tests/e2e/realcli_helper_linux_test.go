package e2e

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/clis"
	"github.com/caisson-run/caisson/tests/modelserver"
)

// dummyKey is no key of anybody's.
const dummyKey = "dummy-key-of-a-test"

// realAgent is what differs between the real CLIs for a test.
type realAgent struct {
	kind    domain.AgentKind
	version string // the one that tests/clis pins
	program func(testing.TB) string
	server  func(testing.TB) *modelserver.Server
	// env is the part of the host's environment that is the agent's.
	env func(url string) map[string]string
	// key is the API key that a request of the agent's carries.
	key   func(http.Header) string
	model string

	shellTool, writeTool string // as the events name them
	// shell and write are tool calls as the model makes them.
	shell func(command string) modelserver.ToolCall
	write func(dir, name, line string) modelserver.ToolCall
}

func realAgents() []realAgent {
	return []realAgent{
		{
			kind: domain.AgentClaude, version: "2.1.328", program: clis.Claude, server: modelserver.NewMessages,
			env: func(url string) map[string]string {
				return map[string]string{"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": dummyKey}
			},
			key:       func(h http.Header) string { return h.Get("X-Api-Key") },
			shellTool: "Bash", writeTool: "Write",
			shell: func(command string) modelserver.ToolCall {
				return modelserver.ToolCall{Name: "Bash", Input: map[string]any{"command": command, "description": "a test"}}
			},
			write: func(dir, name, line string) modelserver.ToolCall {
				return modelserver.ToolCall{Name: "Write", Input: map[string]any{
					"file_path": filepath.Join(dir, name), "content": line + "\n",
				}}
			},
		},
		{
			kind: domain.AgentCodex, version: "0.169.0", program: clis.Codex, server: modelserver.NewResponses,
			env: func(url string) map[string]string {
				return map[string]string{"OPENAI_BASE_URL": url + "/v1", "OPENAI_API_KEY": dummyKey}
			},
			key: func(h http.Header) string { return strings.TrimPrefix(h.Get("Authorization"), "Bearer ") },
			// The one bundled model that calls its tools directly.
			model:     "gpt-5.5",
			shellTool: "shell", writeTool: "apply_patch",
			shell: func(command string) modelserver.ToolCall {
				return modelserver.ToolCall{Name: "exec_command", Input: map[string]any{"cmd": command}}
			},
			write: func(_, name, line string) modelserver.ToolCall {
				return modelserver.ToolCall{
					Name: "apply_patch", Input: "*** Begin Patch\n*** Add File: " + name + "\n+" + line + "\n*** End Patch\n",
				}
			},
		},
	}
}

// realBench is a place with a model, where one agent works.
type realBench struct {
	agent     realAgent
	binary    string
	model     *modelserver.Server
	root      string
	workspace string
	env       map[string]string
	// What the session that was opened last can reach by TCP.
	ports        []uint16
	destinations []netip.AddrPort
}

func newRealBench(t *testing.T, a realAgent, program string) *realBench {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	b := &realBench{agent: a, binary: program, model: a.server(t), root: root}
	b.workspace = b.dir(t, "workspace")
	// All that the agent and Caisson know of the host.
	b.env = map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": b.dir(t, "home"), "LANG": "C.UTF-8"}
	maps.Copy(b.env, a.env(b.model.URL()))
	return b
}

// dir makes a directory beside the workspace.
func (b *realBench) dir(t *testing.T, name string) string {
	t.Helper()
	d := filepath.Join(b.root, name)
	require.NoError(t, os.MkdirAll(d, 0o700))
	return d
}

// compose makes an orchestrator on the bench's state.
func (b *realBench) compose(t *testing.T, opts ...composition.Option) *composition.Caisson {
	t.Helper()
	all := []composition.Option{
		composition.WithStateRoot(filepath.Join(b.root, "state")),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := b.env[name]; return v, ok }),
	}
	c, err := composition.New(t.Context(), append(all, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close(context.WithoutCancel(t.Context()))) })
	return c
}

func (b *realBench) open(t *testing.T, c *composition.Caisson, request application.OpenRequest) *application.Session {
	t.Helper()
	request.AgentBin, request.Model = b.binary, b.agent.model
	if request.Resume == "" {
		request.Agent, request.Workspace = b.agent.kind, b.workspace
	}
	request.Policy.Limits.WallClock = time.Minute
	session, err := c.Orchestrator.Open(t.Context(), request)
	require.NoError(t, err)
	b.ports, b.destinations = session.Plan().ConnectTCP(), session.Plan().ReachableDestinations()
	if session.Plan().IsConfined() {
		ways := 1 // to the model
		if !request.DirectAPI && len(request.Policy.Domains) > 0 {
			ways++ // to what is reached by name
		}
		require.Equal(t, ways, len(b.ports)+len(b.destinations), "one port for each way and nothing else")
	}
	return session
}

// turn runs a session's first turn.
func (b *realBench) turn(t *testing.T, s *application.Session, prompt string) ([]domain.Event, domain.Final) {
	t.Helper()
	return b.turnFrom(t, s, prompt, 1, 0)
}

// turnFrom runs a turn whose events follow on number after.
func (b *realBench) turnFrom(t *testing.T, s *application.Session, prompt string, number int, after uint64) ([]domain.Event, domain.Final) {
	t.Helper()
	turn, err := s.Send(t.Context(), prompt)
	require.NoError(t, err)
	return b.read(t, turn, number, after)
}

// read reads a confined turn to its end and checks what holds for every one:
// the receipt first, one final, last, and no gap in the numbers; and nothing of
// the agent's that Caisson does not know.
func (b *realBench) read(t *testing.T, turn *application.Turn, number int, after uint64) ([]domain.Event, domain.Final) {
	t.Helper()
	var events []domain.Event
	for e, err := range turn.Events() {
		require.NoError(t, err)
		events = append(events, e)
	}
	receipt := realReceipt(t, events)
	require.False(t, receipt.Unconfined)
	require.Equal(t, "landlock+seccomp", receipt.Enforcer)
	require.Equal(t, "coding", receipt.Preset)
	require.ElementsMatch(t, b.ports, receipt.ConnectTCP)
	require.ElementsMatch(t, b.destinations, receipt.Destinations)
	for _, u := range repliesOf[domain.UsageReport](events) {
		require.True(t, u.Gateway == nil || u.Gateway.Refused == 0, "the gateway takes all that the agent asks for: %v", repliesOf[domain.Notice](events))
	}
	require.NotEmpty(t, receipt.Agent, "what the adapter has switched off")
	require.Len(t, repliesOf[domain.SandboxApplied](events), 1)
	finals := repliesOf[domain.Final](events)
	require.Len(t, finals, 1)
	require.IsType(t, domain.Final{}, events[len(events)-1].Reply)
	for i, e := range events {
		require.Equal(t, after+uint64(i)+1, e.Seq)
		require.Equal(t, number, e.Turn)
		require.Equal(t, b.agent.kind, e.Agent)
	}
	require.Empty(t, repliesOf[domain.Raw](events))
	for _, l := range repliesOf[domain.Log](events) {
		require.Equal(t, "stderr", l.Stream, l.Line)
	}
	return events, finals[0]
}

// repliesOf picks the replies of one type.
func repliesOf[T domain.ReplyEvent](events []domain.Event) []T {
	var some []T
	for _, e := range events {
		if r, ok := e.Reply.(T); ok {
			some = append(some, r)
		}
	}
	return some
}

func realReceipt(t *testing.T, events []domain.Event) domain.Receipt {
	t.Helper()
	require.NotEmpty(t, events)
	applied, ok := events[0].Reply.(domain.SandboxApplied)
	require.True(t, ok, "the first event is a %T", events[0].Reply)
	return applied.Receipt
}

func fileText(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

func exitCode(t *testing.T, r domain.ToolResult) int {
	t.Helper()
	require.NotNil(t, r.ExitCode)
	return *r.ExitCode
}

// toothless does all that the default enforcer does, except for the restricting.
type toothless struct{ ports.SandboxEnforcer }

func (e toothless) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := e.SandboxEnforcer.Prepare(ctx, plan, line)
	if err != nil {
		return nil, err
	}
	return toothlessConfinement{c}, nil
}

type toothlessConfinement struct{ ports.Confinement }

func (toothlessConfinement) Apply() error { return nil }

// lapsing enforces for the probe at the opening of a session, and then leaves it
// to another enforcer: what no probe can see.
type lapsing struct {
	ports.SandboxEnforcer
	then   ports.SandboxEnforcer
	probed atomic.Bool
}

func (e *lapsing) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if e.probed.CompareAndSwap(false, true) {
		return e.SandboxEnforcer.Prepare(ctx, plan, line)
	}
	return e.then.Prepare(ctx, plan, line)
}

// processesBelow returns the processes below a process, by parent.
func processesBelow(of int) []int {
	parent := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name in parentheses may hold anything (proc_pid_stat(5)).
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		parent[pid], _ = strconv.Atoi(fields[1])
	}
	var below []int
	for next := []int{of}; len(next) > 0; next = next[1:] {
		for pid, p := range parent {
			if p == next[0] && !slices.Contains(below, pid) {
				below, next = append(below, pid), append(next, pid)
			}
		}
	}
	return below
}
