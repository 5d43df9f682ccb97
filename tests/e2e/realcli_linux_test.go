package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// The real agent CLIs, each under the default coding plan and the default
// enforcer, with a model on the loopback interface.
func TestRealCLIs(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for _, a := range realAgents() {
		t.Run(string(a.kind), func(t *testing.T) {
			program := a.program(t)
			for _, c := range []struct {
				name string
				test func(*testing.T, *realBench)
			}{
				{"text", realText},
				{"tools", realTools},
				{"write outside", realWriteOutside},
				{"resume", realResume},
				{"API error", realAPIError},
				{"cancel", realCancel},
				{"gateway", realGateway},
				{"egress", realEgress},
				{"gateway and egress", realGatewayAndEgress},
			} {
				t.Run(c.name, func(t *testing.T) {
					testkit.NoLeaks(t)
					c.test(t, newRealBench(t, a, program))
				})
			}
		})
	}
}

func realText(t *testing.T, b *realBench) {
	b.model.Enqueue(modelserver.Reply{Text: "The answer is 42.", InputTokens: 700, OutputTokens: 9})
	session := b.open(t, b.compose(t), application.OpenRequest{})
	events, final := b.turn(t, session, "What is the answer?")

	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.Equal(t, domain.StopEndTurn, final.StopReason)
	require.Equal(t, "The answer is 42.", final.Text)
	require.Equal(t, []domain.Text{{Text: "The answer is 42."}}, repliesOf[domain.Text](events))
	require.Equal(t, domain.ExitStatus{Known: true}, final.Exit)
	require.Equal(t, domain.Usage{InputTokens: 700, OutputTokens: 9}, final.Usage)

	started := repliesOf[domain.ConversationStarted](events)
	require.Len(t, started, 1)
	require.Equal(t, started[0].ConversationID, final.ConversationID)
	require.Equal(t, final.ConversationID, session.ConversationID())
	require.Equal(t, b.agent.version, started[0].AgentVersion)

	requests := b.model.Requests()
	require.Len(t, requests, 1)
	require.True(t, requests[0].Has("user", "What is the answer?"), "%v", requests[0].Conversation)
	require.Equal(t, dummyKey, b.agent.key(requests[0].Header))
}

// A turn with two commands, one of which fails, and a file from the agent's own
// tool for writing.
func realTools(t *testing.T, b *realBench) {
	const command = "echo made by the shell > shell.txt; cat shell.txt"
	b.model.Enqueue(
		modelserver.Reply{Text: "First the shell.", ToolCalls: []modelserver.ToolCall{b.agent.shell(command)}},
		modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell("echo went wrong; exit 3")}},
		modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.write(b.workspace, "tool.txt", "made by the tool")}},
		modelserver.Reply{Text: "All done."},
	)
	session := b.open(t, b.compose(t), application.OpenRequest{})
	events, final := b.turn(t, session, "Make two files.")

	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.Equal(t, "All done.", final.Text)
	require.Equal(t, []domain.Text{{Text: "First the shell."}, {Text: "All done."}}, repliesOf[domain.Text](events))
	require.Equal(t, "made by the shell\n", fileText(t, filepath.Join(b.workspace, "shell.txt")))
	require.Equal(t, "made by the tool\n", fileText(t, filepath.Join(b.workspace, "tool.txt")))

	calls, results := repliesOf[domain.ToolCall](events), repliesOf[domain.ToolResult](events)
	require.Len(t, calls, 3)
	require.Len(t, results, 3)
	for i := range calls {
		require.NotEmpty(t, calls[i].ID)
		require.Equal(t, calls[i].ID, results[i].ID)
	}
	require.Equal(t, b.agent.shellTool, calls[0].Name)
	require.Equal(t, domain.ToolExecute, calls[0].Kind)
	require.Contains(t, string(calls[0].Input), command)
	require.Equal(t, domain.ToolCompleted, results[0].Status)
	require.Equal(t, "made by the shell", strings.TrimSpace(results[0].Output))
	require.Equal(t, 0, exitCode(t, results[0]))

	require.Equal(t, domain.ToolFailed, results[1].Status)
	require.Contains(t, results[1].Output, "went wrong")
	require.Equal(t, 3, exitCode(t, results[1]))

	require.Equal(t, b.agent.writeTool, calls[2].Name)
	require.Equal(t, domain.ToolEdit, calls[2].Kind)
	require.Equal(t, domain.ToolCompleted, results[2].Status)
	changes := repliesOf[domain.FileChange](events)
	require.Len(t, changes, 1)
	require.Equal(t, calls[2].ID, changes[0].ID)
	require.Equal(t, []domain.FileEdit{{Path: filepath.Join(b.workspace, "tool.txt"), Kind: "add"}}, changes[0].Changes)

	requests := b.model.Requests()
	require.Len(t, requests, 4)
	require.True(t, requests[1].Has("tool", "made by the shell"), "%v", requests[1].Conversation)
}

// The kernel denies a write outside of the workspace, and the model reads it.
// Companions show that it was the kernel: without it the same turn writes, and
// so it does where the policy grants the place.
//
// The command ends well in spite of the denial: of one that fails at once with
// the words "Permission denied" Codex reports no item.
func realWriteOutside(t *testing.T, b *realBench) {
	place := b.dir(t, "outside")
	file := filepath.Join(place, "planted.txt")
	attempt := func(t *testing.T, request application.OpenRequest, opts ...composition.Option) ([]domain.Event, string) {
		t.Helper()
		before := len(b.model.Requests())
		b.model.Clear()
		b.model.Enqueue(
			modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell("echo planted > " + file + " || echo it was refused")}},
			modelserver.Reply{Text: "I tried."},
		)
		events, final := b.turn(t, b.open(t, b.compose(t, opts...), request), "Write outside.")
		require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
		require.Equal(t, "I tried.", final.Text)
		requests := b.model.Requests()[before:]
		require.Len(t, requests, 2)
		last := requests[1].Conversation[len(requests[1].Conversation)-1]
		require.Equal(t, "tool", last.Role)
		return events, last.Text
	}

	events, told := attempt(t, application.OpenRequest{})
	require.NoFileExists(t, file)
	require.Contains(t, told, "Permission denied")
	require.Contains(t, told, "it was refused")
	results := repliesOf[domain.ToolResult](events)
	require.Len(t, results, 1)
	require.Contains(t, results[0].Output, "Permission denied")
	require.Empty(t, repliesOf[domain.Permission](events), "nobody but the kernel was asked")

	_, told = attempt(t, application.OpenRequest{}, composition.WithSandboxEnforcer(&lapsing{
		SandboxEnforcer: composition.DefaultEnforcer(), then: toothless{composition.DefaultEnforcer()},
	}))
	require.Equal(t, "planted\n", fileText(t, file), "the same turn, without the kernel's part")
	require.NotContains(t, told, "refused")
	require.NoError(t, os.Remove(file))

	_, told = attempt(t, application.OpenRequest{Policy: application.Policy{
		Rules: []domain.PathRule{{Path: place, Access: domain.AccessReadWrite}},
	}})
	require.Equal(t, "planted\n", fileText(t, file), "the same turn, with a grant")
	require.NotContains(t, told, "refused")
}

// A second orchestrator on the same state goes on with the conversation.
func realResume(t *testing.T, b *realBench) {
	b.model.Enqueue(modelserver.Reply{Text: "I will keep the word pomegranate in mind."})
	first := b.compose(t)
	session := b.open(t, first, application.OpenRequest{})
	events, final := b.turn(t, session, "The word is pomegranate.")
	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.NoError(t, first.Close(t.Context()))

	b.model.Enqueue(modelserver.Reply{Text: "It was pomegranate."})
	second := b.open(t, b.compose(t), application.OpenRequest{Resume: session.ID()})
	more, again := b.turnFrom(t, second, "What was the word?", 2, uint64(len(events)))
	require.Equal(t, domain.OutcomeCompleted, again.Outcome, "%+v", again.Error)
	require.Equal(t, "It was pomegranate.", again.Text)
	require.Equal(t, final.ConversationID, again.ConversationID)
	require.Equal(t, session.Plan().Digest(), second.Plan().Digest())
	require.Equal(t, realReceipt(t, events).PlanDigest, realReceipt(t, more).PlanDigest)
	require.Equal(t, final.Usage, again.Usage, "each turn's own, although they share a conversation")

	requests := b.model.Requests()
	require.Len(t, requests, 2)
	require.False(t, requests[0].Has("user", "What was the word?"))
	for role, text := range map[string]string{
		"user": "The word is pomegranate.", "assistant": "I will keep the word pomegranate in mind.",
	} {
		require.True(t, requests[1].Has(role, text), "%s %q in %v", role, text, requests[1].Conversation)
	}
	require.True(t, requests[1].Has("user", "What was the word?"))
}

func realAPIError(t *testing.T, b *realBench) {
	b.model.Enqueue(modelserver.Reply{
		Status: 400, ErrorType: "invalid_request_error", ErrorMessage: "the model did not like that", Repeat: true,
	})
	_, final := b.turn(t, b.open(t, b.compose(t), application.OpenRequest{}), "hi")
	require.Equal(t, domain.OutcomeFailed, final.Outcome)
	require.Equal(t, "invalid_request", final.Error.Class)
	require.Contains(t, final.Error.Message, "the model did not like that")
	require.False(t, final.Error.Retryable)
	require.Equal(t, domain.ExitStatus{Known: true, Code: 1}, final.Exit)
}

// A turn is cancelled while the model is silent. Nothing is left of it, not
// even a daemon that a tool has started, and the session goes on.
func realCancel(t *testing.T, b *realBench) {
	const daemon = `setsid sh -c 'echo $$ > daemon.tmp; mv daemon.tmp daemon.pid; exec sleep 300' </dev/null >/dev/null 2>&1 &
until [ -s daemon.pid ]; do sleep 0.05; done`
	b.model.Enqueue(
		modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell(daemon)}},
		modelserver.Reply{HangUntil: make(chan struct{}), Repeat: true},
	)
	session := b.open(t, b.compose(t), application.OpenRequest{})
	turn, err := session.Send(t.Context(), "Start a daemon.")
	require.NoError(t, err)

	type cancelled struct {
		tree []int
		at   time.Time
		err  error
	}
	done := make(chan cancelled, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := b.model.WaitRequests(ctx, 2)
		c := cancelled{tree: processesBelow(os.Getpid()), at: time.Now(), err: err}
		turn.Cancel(errors.New("the test has seen enough"))
		done <- c
	}()
	events, final := b.read(t, turn, 1, 0)
	ended := time.Now()
	c := <-done
	require.NoError(t, c.err)

	require.Equal(t, domain.OutcomeCancelled, final.Outcome)
	require.Equal(t, domain.StopCancelled, final.StopReason)
	require.Equal(t, domain.ErrorClassCancelled, final.Error.Class)
	require.Contains(t, final.Error.Message, "the test has seen enough")
	require.Less(t, ended.Sub(c.at), 5500*time.Millisecond, "3 s for an interrupt and 2 s for SIGTERM")

	pid, err := strconv.Atoi(strings.TrimSpace(fileText(t, filepath.Join(b.workspace, "daemon.pid"))))
	require.NoError(t, err)
	require.NotEmpty(t, c.tree)
	for _, p := range append(c.tree, pid) {
		require.False(t, testkit.Alive(p), "%d (%s) of %v is left", p, testkit.Comm(p), c.tree)
	}

	b.model.Clear()
	b.model.Enqueue(modelserver.Reply{Text: "Here I am again."})
	_, final = b.turnFrom(t, session, "Are you there?", 2, uint64(len(events)))
	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.Equal(t, "Here I am again.", final.Text)
	requests := b.model.Requests()
	require.True(t, requests[len(requests)-1].Has("user", "Start a daemon."), "the conversation goes on")
}

// A turn without a sandbox says so, and Claude Code's own permissions are what
// is left.
func TestRealClaudeCodeUnconfined(t *testing.T) {
	testkit.NoLeaks(t)
	a := realAgents()[0]
	b := newRealBench(t, a, a.program(t))
	file := filepath.Join(b.dir(t, "outside"), "planted.txt")
	b.model.Enqueue(
		modelserver.Reply{ToolCalls: []modelserver.ToolCall{a.shell(fmt.Sprintf("echo planted > %s", file))}},
		modelserver.Reply{Text: "I tried."},
	)
	session := b.open(t, b.compose(t), application.OpenRequest{Sandbox: application.SandboxOff("a test")})
	turn, err := session.Send(t.Context(), "Write outside.")
	require.NoError(t, err)
	var events []domain.Event
	for e, err := range turn.Events() {
		require.NoError(t, err)
		events = append(events, e)
	}
	require.True(t, realReceipt(t, events).Unconfined)
	require.Equal(t, "a test", realReceipt(t, events).Why)
	asked := repliesOf[domain.Permission](events)
	require.Len(t, asked, 2, "a request, and its denial")
	require.Equal(t, "deny", asked[1].Decision)
	require.Equal(t, domain.ToolDenied, repliesOf[domain.ToolResult](events)[0].Status)
	require.NoFileExists(t, file)
}
