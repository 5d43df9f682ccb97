package claude_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/ports"
)

// FuzzParse feeds a stream of lines to a parser, and holds what comes out
// against what must hold for any stream, and, for its first line, against the
// oracle of the recordings.
func FuzzParse(f *testing.F) {
	// One short line of every kind; long ones only keep the fuzzer busy with
	// making them shorter.
	seen := map[string]bool{}
	for _, r := range recordings(f) {
		for _, line := range lines(r.stdout) {
			var kind struct{ Type, Subtype string }
			if json.Unmarshal(line, &kind) != nil || len(line) > 1<<10 || seen[kind.Type+kind.Subtype+r.name[:2]] {
				continue
			}
			seen[kind.Type+kind.Subtype+r.name[:2]] = true
			f.Add(line, false)
		}
	}
	for _, s := range []string{
		initA + okB, denyMe + "\n" + okA, "\uFEFF{}\r\n[[[[", "{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"\xff\\ud800\"}]}}",
		assistant(`{"type":"text","type":"tool_use","id":"1","name":"TodoWrite","input":{"todos":[{"content":1},[]]}}`),
		`{"type":"system","subtype":"compact_boundary","compact_metadata":[]}`, `{"type":"conversation_reset"}` + initB + initA,
	} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, stream []byte, resume bool) {
		p := claude.New().NewParser(ports.TurnRequest{ConversationID: conversationA, Resume: resume})
		all := bytes.Split(stream, []byte("\n"))
		var closed int
		var done bool
		for i, line := range all {
			out, err := p.ParseEvent(bytes.Clone(line))
			require.NoError(t, err)
			for _, e := range out.Events {
				checkEvent(t, e)
			}
			for _, w := range strings.SplitAfter(string(out.Write), "\n") {
				require.True(t, w == "" || strings.HasSuffix(w, "}\n") && json.Valid([]byte(w)), "%q", w)
			}
			if out.CloseStdin {
				closed++
			}
			done = done || out.Done
			if i == 0 {
				checkOracle(t, line, out.Events)
			}
		}
		require.LessOrEqual(t, closed, 1)
		end := p.Finish(domain.ExitStatus{Known: true})
		require.Equal(t, done, len(end) == 1)
		for _, e := range end {
			claim := e.(domain.Final)
			require.True(t, claim.ConversationID == "" || domain.IsUUID(claim.ConversationID))
			require.Equal(t, claim.Outcome == domain.OutcomeCompleted, claim.Error == nil)
			u := claim.Usage
			require.GreaterOrEqual(t, min(u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.CacheWriteTokens, u.ReasoningTokens), int64(0))
		}
	})
}

func checkEvent(t *testing.T, e domain.ReplyEvent) {
	t.Helper()
	valid := func(texts ...string) {
		for _, s := range texts {
			require.True(t, utf8.ValidString(s), "%#v", e)
		}
	}
	switch e := e.(type) {
	case domain.Final:
		t.Fatal("a final before the end")
	case domain.ConversationStarted:
		require.True(t, e.ConversationID == "" || domain.IsUUID(e.ConversationID))
		valid(e.Model, e.AgentVersion)
	case domain.Text:
		valid(e.Text, e.Parent)
	case domain.TextDelta:
		valid(e.Text, e.Parent)
	case domain.Thinking:
		valid(e.Text, e.Parent)
	case domain.ToolCall:
		require.True(t, e.Input == nil || json.Valid(e.Input) && utf8.Valid(e.Input), "%q", e.Input)
		valid(e.ID, e.Name, e.Parent)
	case domain.ToolUpdate:
		require.False(t, e.Elapsed < 0)
		valid(e.ID, e.Output, e.Parent)
	case domain.ToolResult:
		valid(e.ID, e.Output, e.Parent)
	case domain.FileChange:
		require.NotEmpty(t, e.Changes)
		valid(e.Changes[0].Path)
	case domain.Permission:
		require.True(t, e.Input == nil || json.Valid(e.Input))
		valid(e.RequestID, e.Tool, e.ToolID, e.Reason)
	case domain.Notice:
		require.False(t, e.Delay < 0)
		valid(e.Message)
	case domain.Raw:
		require.True(t, json.Valid(e.JSON), "%q", e.JSON)
	case domain.Log:
		valid(e.Line)
		require.NotEmpty(t, e.Line)
	}
}

// checkOracle compares a line that is one JSON object with what encoding/json
// makes of it.
func checkOracle(t *testing.T, line []byte, events []domain.ReplyEvent) {
	t.Helper()
	// Lines with more in them than is read are passed on raw.
	if !json.Valid(line) || bytes.Count(line, []byte("{")) > 4000 {
		return
	}
	var want oracle
	want.read(line)
	if want.noJSON > 0 {
		return
	}
	var object map[string]any
	require.NoError(t, json.Unmarshal(line, &object))
	if message, _ := object["message"].(map[string]any); message != nil {
		if _, ok := message["content"].(string); ok {
			return
		}
	}
	require.Equal(t, want.texts, of[domain.Text](events))
	calls := of[domain.ToolCall](events)
	require.LessOrEqual(t, len(want.calls), len(calls), "server tools are calls, too")
	require.Empty(t, of[domain.Log](events))
}
