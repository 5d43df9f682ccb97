package e2e

import (
	"context"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// The interfaces of the real agent CLIs, driven by keys, under the default
// coding plan: they start, draw, take a prompt, ask the model, run a tool, and
// are gone at the end.
func TestRealInterfaces(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for _, a := range realAgents() {
		t.Run(string(a.kind), func(t *testing.T) {
			program := a.program(t)
			testkit.NoLeaks(t)
			b := newRealBench(t, a, program)
			b.env["TERM"] = "xterm-256color"
			if a.kind == domain.AgentClaude {
				// A key that nobody has approved in /config is not used by it.
				delete(b.env, "ANTHROPIC_API_KEY")
				b.env["ANTHROPIC_AUTH_TOKEN"] = dummyKey
			}
			// Codex asks whether to change the model unless it is the default one,
			// and that one has other tools.
			tools := a.kind == domain.AgentClaude
			if tools {
				b.model.Enqueue(modelserver.Reply{ToolCalls: []modelserver.ToolCall{a.shell("echo made by the shell > shell.txt")}})
			}
			b.model.Enqueue(modelserver.Reply{Text: "XYZZY42.", Repeat: true})
			terminal, err := b.compose(t).Orchestrator.OpenTerminal(t.Context(), application.TerminalRequest{
				Agent: a.kind, AgentBin: program, Workspace: b.workspace, Size: ports.TerminalSize{Rows: 40, Columns: 120},
			})
			require.NoError(t, err)
			receipt := terminal.Receipt()
			require.Equal(t, "landlock+seccomp", receipt.Enforcer)
			require.Equal(t, domain.TreeKeeper, receipt.Tree)
			require.NotEmpty(t, receipt.Agent)

			screen := watchScreen(t, terminal)
			screen.see(map[domain.AgentKind]string{domain.AgentClaude: "bypass permissions on", domain.AgentCodex: "To get started, describe a task"}[a.kind])
			// Interfaces drop what is typed before they listen, and take keys that
			// come in one piece for a paste.
			for _, key := range "What is it now" {
				_, err = io.WriteString(terminal, string(key))
				require.NoError(t, err)
				time.Sleep(30 * time.Millisecond)
			}
			time.Sleep(500 * time.Millisecond)
			_, err = io.WriteString(terminal, "\r")
			require.NoError(t, err)
			screen.see("XYZZY42")
			require.True(t, slices.ContainsFunc(b.model.Requests(), func(r modelserver.Request) bool {
				return r.Has("user", "What is it now")
			}))
			if tools {
				require.Equal(t, "made by the shell\n", fileText(t, filepath.Join(b.workspace, "shell.txt")))
			}

			terminal.Cancel(nil)
			_, err = terminal.Wait(t.Context())
			require.NoError(t, err)
			require.NoError(t, terminal.Close(context.WithoutCancel(t.Context())))
		})
	}
}

// escapes are the sequences with which a program moves the cursor and colours
// what it prints (ECMA-48).
var escapes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|[()#][0-9A-Za-z]|[0-9=>A-Za-z])")

// screen has what a program on a terminal has printed.
type screen struct {
	t       *testing.T
	mu      sync.Mutex
	printed strings.Builder
}

func watchScreen(t *testing.T, from io.Reader) *screen {
	s := &screen{t: t}
	go func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			s.mu.Lock()
			s.printed.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// see waits until the words were drawn. Interfaces draw only what changes, and
// put the cursor where there is a space.
func (s *screen) see(words string) {
	s.t.Helper()
	squeeze := func(text string) string { return strings.Join(strings.Fields(escapes.ReplaceAllString(text, " ")), "") }
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s.mu.Lock()
		printed := squeeze(s.printed.String())
		s.mu.Unlock()
		if strings.Contains(printed, squeeze(words)) {
			return
		}
		require.True(s.t, time.Now().Before(deadline), "%q was not drawn, but %q", words, printed)
	}
}
