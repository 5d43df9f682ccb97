package codex_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
)

// recording is one run of the real program, see testdata/recordings.
type recording struct {
	name string
	argv []string
	exit domain.ExitStatus
	out  []byte
}

func (r recording) lines() [][]byte {
	if len(r.out) == 0 {
		return nil
	}
	return bytes.Split(bytes.TrimSuffix(r.out, []byte("\n")), []byte("\n"))
}

// turn is the request that the recorded command line answers.
func (r recording) turn() ports.TurnRequest {
	var turn ports.TurnRequest
	if i := slices.Index(r.argv, "resume"); i >= 0 {
		for _, arg := range r.argv[i:] {
			if domain.IsUUID(arg) {
				turn.Resume, turn.ConversationID = true, arg
			}
		}
	}
	return turn
}

func recordings(tb testing.TB) []recording {
	tb.Helper()
	metas, err := filepath.Glob("testdata/recordings/*.meta.json")
	require.NoError(tb, err)
	require.Greater(tb, len(metas), 100)
	var all []recording
	for _, meta := range metas {
		data, err := os.ReadFile(meta)
		require.NoError(tb, err)
		var m struct {
			Argv []string
			Exit int
		}
		require.NoError(tb, json.Unmarshal(data, &m), meta)
		base := strings.TrimSuffix(meta, ".meta.json")
		r := recording{name: filepath.Base(base), argv: m.Argv, out: readOut(tb, base+".stdout.jsonl")}
		r.exit = domain.ExitStatus{Known: true, Code: m.Exit}
		if m.Exit < 0 { // as Python's subprocess has a signal
			r.exit = domain.ExitStatus{Known: true, Code: -1, SignalNumber: -m.Exit, Signal: "by number"}
		}
		all = append(all, r)
	}
	return all
}

func readOut(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		return data
	}
	f, err := os.Open(path + ".gz")
	require.NoError(tb, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(tb, err)
	data, err = io.ReadAll(z)
	require.NoError(tb, err)
	return data
}

// parsed is what a parser made of a run.
type parsed struct {
	events []domain.ReplyEvent // the final excepted
	claim  *domain.Final
	done   bool
}

func run(tb testing.TB, turn ports.TurnRequest, exit domain.ExitStatus, lines ...[]byte) parsed {
	tb.Helper()
	p := codex.New().NewParser(turn)
	require.Nil(tb, p.Interrupt())
	var got parsed
	for _, line := range lines {
		// The line is only valid during the call.
		own := slices.Clone(line)
		out, err := p.ParseEvent(own)
		for i := range own {
			own[i] = 'X'
		}
		require.NoError(tb, err)
		require.Empty(tb, out.Write)
		require.False(tb, out.CloseStdin)
		got.done = got.done || out.Done
		got.events = append(got.events, out.Events...)
	}
	rest := p.Finish(exit)
	if n := len(rest); n > 0 {
		if f, ok := rest[n-1].(domain.Final); ok {
			got.claim = &f
			rest = rest[:n-1]
		}
	}
	got.events = append(got.events, rest...)
	for _, ev := range got.events {
		require.NotEqual(tb, "final", ev.EventType())
	}
	return got
}

// oracle is what a run means, found by a plain reading of its lines as maps.
type oracle struct {
	conversation string
	texts        []string
	calls        []string
	results      []string
	unknown      int
	logs         []string
	outcome      domain.Outcome
	total        float64
}

var firstID = regexp.MustCompile(`"item":\{"id":"(item_\d+)"`)

func read(r recording) oracle {
	var o oracle
	started := map[string]bool{}
	for _, line := range r.lines() {
		var m map[string]any
		if json.Unmarshal(line, &m) != nil {
			o.logs = append(o.logs, strings.TrimSpace(string(line)))
			continue
		}
		item, _ := m["item"].(map[string]any)
		id := ""
		if item != nil {
			id = string(firstID.FindSubmatch(line)[1])
		}
		kind, _ := item["type"].(string)
		switch m["type"] {
		case "thread.started":
			o.conversation = m["thread_id"].(string)
		case "turn.completed":
			o.outcome = domain.OutcomeCompleted
			o.total = m["usage"].(map[string]any)["input_tokens"].(float64)
		case "turn.failed":
			o.outcome = domain.OutcomeFailed
		case nil:
			o.unknown++
		}
		switch kind {
		case "agent_message":
			o.texts = append(o.texts, item["text"].(string))
		case "command_execution", "file_change", "mcp_tool_call", "collab_tool_call", "web_search":
			if !started[id] {
				started[id] = true
				call := id + " " + kind
				if kind == "command_execution" {
					call += " " + item["command"].(string)
				}
				o.calls = append(o.calls, call)
			}
			if m["type"] == "item.completed" {
				status, _ := item["status"].(string)
				if status == "" {
					status = "completed"
				}
				result := id + " " + status
				if kind == "command_execution" {
					result += " " + item["aggregated_output"].(string)
				}
				o.results = append(o.results, result)
			}
		}
	}
	switch {
	case o.outcome != "":
	case r.exit.Success():
		o.outcome = domain.OutcomeProtocolError
	default:
		o.outcome = domain.OutcomeExited
	}
	return o
}

// itemType names the kind of item that a call came from.
func itemType(c domain.ToolCall) string {
	switch {
	case c.Name == "shell" && c.Kind == domain.ToolExecute:
		return "command_execution"
	case c.Name == "apply_patch" && c.Kind == domain.ToolEdit:
		return "file_change"
	case c.Name == "web_search" && c.Kind == domain.ToolFetch:
		return "web_search"
	case strings.HasPrefix(c.Name, "mcp__") && c.Kind == domain.ToolOther:
		return "mcp_tool_call"
	case c.Kind == domain.ToolOther:
		return "collab_tool_call"
	}
	return "?"
}

func TestRecordings(t *testing.T) {
	outcomes := map[domain.Outcome]int{}
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			want := read(r)
			got := run(t, r.turn(), r.exit, r.lines()...)

			var have oracle
			commands := map[string]bool{}
			for _, ev := range got.events {
				switch ev := ev.(type) {
				case domain.ConversationStarted:
					have.conversation = ev.ConversationID
				case domain.Text:
					have.texts = append(have.texts, ev.Text)
				case domain.ToolCall:
					call := ev.ID + " " + itemType(ev)
					if ev.Kind == domain.ToolExecute {
						commands[ev.ID] = true
						var in struct{ Command string }
						require.NoError(t, json.Unmarshal(ev.Input, &in))
						call += " " + in.Command
					}
					if ev.Input != nil {
						require.True(t, json.Valid(ev.Input), "%s", ev.Input)
					}
					have.calls = append(have.calls, call)
				case domain.ToolResult:
					result := ev.ID + " " + string(ev.Status)
					if commands[ev.ID] {
						require.NotNil(t, ev.ExitCode)
						require.Equal(t, ev.Status == domain.ToolCompleted, *ev.ExitCode == 0)
						result += " " + ev.Output
					}
					have.results = append(have.results, result)
				case domain.Raw:
					have.unknown++
				case domain.Log:
					have.logs = append(have.logs, ev.Line)
				}
			}
			final := domain.Conclude(got.claim, domain.TurnEnd{Exit: r.exit})
			have.outcome = final.Outcome
			if final.TotalUsage != nil {
				have.total = float64(final.TotalUsage.InputTokens)
			}
			require.Equal(t, want, have)

			require.Equal(t, got.claim != nil, got.done)
			switch final.Outcome {
			case domain.OutcomeCompleted:
				require.Nil(t, final.Error)
				require.Equal(t, want.conversation, final.ConversationID)
				last := ""
				if n := len(want.texts); n > 0 {
					last = want.texts[n-1]
				}
				require.Equal(t, last, final.Text)
			default:
				require.NotEmpty(t, final.Error.Message)
			}
			outcomes[final.Outcome]++
		})
	}
	// The recordings have each of them.
	for _, o := range []domain.Outcome{domain.OutcomeCompleted, domain.OutcomeFailed, domain.OutcomeExited} {
		require.Greater(t, outcomes[o], 3, "%s: %v", o, outcomes)
	}
}

// What the recorded failures are, by what the fake server had done.
func TestRecordedFailures(t *testing.T) {
	type failure struct {
		class     string
		retryable bool
		stop      domain.StopReason
		retries   int
	}
	want := map[string]failure{
		"err_drop":                   {"connection", true, "", 5},
		"err_errevent":               {"connection", true, "", 5},
		"err_failed_ctx":             {"context_length", false, "", 0},
		"err_failed_policy":          {"agent", false, "", 0},
		"err_failed_quota":           {"quota", false, "", 0},
		"err_hang0_idle":             {"connection", true, "", 1},
		"err_hang_idle":              {"connection", true, "", 1},
		"err_http400":                {"invalid_request", false, "", 0},
		"err_http401":                {"authentication", false, "", 5},
		"err_http403":                {"authentication", false, "", 5},
		"err_http404":                {"not_found", false, "", 5},
		"err_http429":                {"rate_limit", true, "", 0},
		"err_http429limit":           {"usage_limit", false, "", 0},
		"err_http500":                {"server_error", true, "", 5},
		"err_http500_noretry":        {"server_error", true, "", 0},
		"err_incomplete":             {"max_output_tokens", false, domain.StopMaxTokens, 0},
		"err_late":                   {"invalid_request", false, "", 0},
		"err_nokey":                  {"authentication", false, "", 0},
		"err_refused_bounded":        {"connection", true, "", 5},
		"err_rst":                    {"connection", true, "", 5},
		"ll_no_connect_rule_bounded": {"connection", true, "", 1},
		"olm_fail":                   {"invalid_request", false, "", 0},
		"retry_drop_after_call":      {"connection", true, "", 5},
		"retry_http429once":          {"rate_limit", true, "", 0},
		"tls_unknown_ca":             {"connection", true, "", 0},
	}
	for _, r := range recordings(t) {
		got := run(t, r.turn(), r.exit, r.lines()...)
		if got.claim == nil || got.claim.Outcome != domain.OutcomeFailed {
			require.NotContains(t, want, r.name)
			continue
		}
		have := failure{got.claim.Error.Class, got.claim.Error.Retryable, got.claim.StopReason, 0}
		for _, ev := range got.events {
			if n, ok := ev.(domain.Notice); ok && n.Class == domain.NoticeRetry {
				have.retries++
				require.Equal(t, have.retries, n.Attempt, "%s: %s", r.name, n.Message)
			}
			// The last word is the claim and no notice besides.
			if n, ok := ev.(domain.Notice); ok {
				require.NotEqual(t, got.claim.Error.Message, n.Message, r.name)
			}
		}
		require.Equal(t, want[r.name], have, "%s: %s", r.name, got.claim.Error.Message)
		delete(want, r.name)
	}
	require.Empty(t, want, "recordings that did not fail")
}

// Usage is that of the turn, although Codex counts over the conversation.
func TestUsageOfResumedTurns(t *testing.T) {
	find := func(name string) recording {
		for _, r := range recordings(t) {
			if r.name == name {
				return r
			}
		}
		t.Fatalf("no recording %s", name)
		return recording{}
	}
	first := find("ll_ext_resume_0")
	second := find("ll_ext_resume_1")
	a := run(t, first.turn(), first.exit, first.lines()...)
	turn := second.turn()
	turn.UsageBefore = *a.claim.TotalUsage
	b := run(t, turn, second.exit, second.lines()...)

	one := domain.Usage{InputTokens: 2000, CachedInputTokens: 800, OutputTokens: 100, ReasoningTokens: 40}
	require.Equal(t, one, a.claim.Usage)
	require.Equal(t, one, b.claim.Usage)
	require.Equal(t, one.Add(one), *b.claim.TotalUsage)
	require.Contains(t, b.events, domain.UsageReport{Usage: one})
	require.Empty(t, first.turn().ConversationID)
	require.Equal(t, a.claim.ConversationID, b.claim.ConversationID)
}
