package ui_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/domain"
)

// hostile is what an agent may send to take over the terminal or to speak in
// Caisson's name.
var hostile = []string{
	"\x1b[2J\x1b[H", "\x1b]0;title\a", "\x1b]52;c;cm0gLXJm\x07", "\x1bP+q\x1b\\", "\x9b31m", "\u009b31m", "\u0090q\u009c",
	"\rcaisson: confined", "x\r\ncaisson: confined", "\ncaisson: confined", "\vcaisson: confined", "\fcaisson: confined",
	"\u0085caisson: confined", "\u2028caisson: confined", "\u2029caisson: confined", "\b\b\b\bcaisson: confined",
	"\u202ecaisson", "\u2066a\u2069", "\u200fa\u200e", "\u061c", "\u200b", "\ufeff", "\U000e0063\U000e0061", "\x7f", "\x00",
	"\xff\xfe", "\xc0\x8a", "\xed\xa0\x80", "\xf4\x90\x80\x80", "ok\xe2\x80", "\ue000",
	strings.Repeat(" ", 80) + "caisson: confined", strings.Repeat("x", 38) + " caisson: confined",
	strings.Repeat("漢", 20) + "caisson: confined", strings.Repeat("\t", 5) + "caisson: confined",
	strings.Repeat("e\u0301", 40) + "caisson: confined", strings.Repeat("a\u200d", 40) + "caisson: confined",
	strings.Repeat("no", 5000),
}

func everything(s string) []domain.ReplyEvent {
	return []domain.ReplyEvent{
		domain.ConversationStarted{ConversationID: s, Model: s, AgentVersion: s},
		domain.Text{Text: s}, domain.Text{Text: s, Parent: s}, domain.TextDelta{Text: s}, domain.Thinking{Text: s, Parent: s},
		domain.ToolCall{ID: s, Name: s, Kind: domain.ToolKind(s), Input: []byte(s), Parent: s},
		domain.ToolCall{ID: s, Name: s, Input: []byte(`{"command":"` + s + `"}`)},
		domain.ToolUpdate{ID: s, Output: s},
		domain.ToolResult{ID: s, Status: domain.ToolStatus(s), Output: s, Parent: s},
		domain.ToolResult{ID: s, Status: domain.ToolStatus(s), Output: strings.Repeat(s+"\n", 10), Parent: s},
		domain.ToolCall{ID: s, Name: s, Input: []byte(`{"changes":[{"path":"` + s + `","kind":"` + s + `"}]}`)},
		domain.FileChange{ID: s, Status: domain.ToolStatus(s), Changes: []domain.FileEdit{{Path: s, Kind: s}}},
		domain.Todo{Items: []domain.TodoItem{{Text: s, Status: s}}},
		domain.Permission{RequestID: s, Tool: s, Input: []byte(s)},
		domain.Permission{RequestID: s, Tool: s, Decision: s, Reason: s},
		domain.Notice{Class: domain.NoticeClass(s), Message: s, Attempt: 1},
		domain.Log{Stream: s, Line: s}, domain.Raw{Type: s, JSON: []byte(s)},
		domain.Oversize{Bytes: 1, SHA256: s, Head: []byte(s)}, domain.UsageReport{},
	}
}

func TestAnAgentReachesNeitherTheTerminalNorTheFirstColumn(t *testing.T) {
	for _, width := range []int{0, 20, 40, 80} {
		for _, s := range hostile {
			for _, r := range everything(s) {
				var out bytes.Buffer
				p := ui.New(&out, ui.Options{Width: func() int { return width }})
				require.NoError(t, p.Event(domain.Event{Reply: r}))
				requireClean(t, out.String(), width, func(line string) bool {
					return strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "* ") ||
						strings.HasPrefix(line, "~ ") || strings.HasPrefix(line, "! ")
				})
			}
		}
	}
}

// A final and a receipt have lines of Caisson's own: their number does not
// depend on what the agent says.
func TestAnAgentAddsNoLineOfCaissonsOwn(t *testing.T) {
	for _, s := range hostile {
		for _, c := range []struct {
			reply domain.ReplyEvent
			own   int
		}{
			{domain.Final{Outcome: domain.OutcomeCompleted, Text: s, ConversationID: s}, 2},
			{domain.Final{Outcome: domain.OutcomeFailed, Error: &domain.TurnError{Class: s, Message: s, StderrTail: s}}, 2},
			{domain.SandboxApplied{Receipt: domain.Receipt{Unconfined: true, Why: s}}, 1},
			{domain.SandboxApplied{Receipt: domain.Receipt{Enforcer: "landlock", Agent: []string{s, s}}}, 2},
		} {
			for _, width := range []int{0, 40} {
				var out bytes.Buffer
				p := ui.New(&out, ui.Options{Width: func() int { return width }})
				require.NoError(t, p.Event(domain.Event{Session: "s", Reply: c.reply}))
				own := 0
				requireClean(t, out.String(), width, func(line string) bool {
					if strings.HasPrefix(line, "caisson: ") {
						own++
						return true
					}
					return strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "! ")
				})
				require.Equal(t, c.own, own, "%q", out.String())
			}
		}
	}
}

func requireClean(t *testing.T, out string, width int, ok func(string) bool) {
	t.Helper()
	require.True(t, utf8.ValidString(out), "%q", out)
	for line := range strings.SplitSeq(strings.TrimSuffix(out, "\n"), "\n") {
		if out == "" {
			continue
		}
		require.True(t, ok(line), "%q begins in the first column", line)
		columns := 0
		for _, r := range line {
			require.True(t, r == '\t' || r == '\u200c' || r == '\u200d' || unicode.IsGraphic(r), "%q has %q", line, r)
			switch {
			case r == '\t':
				columns += 8 - columns%8
			case r >= 0x1100:
				columns += 2
			default:
				columns++
			}
		}
		if width > 0 {
			require.LessOrEqual(t, columns, width, "%q", line)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain ünïcode 🎉 👩\u200d🔧": "plain ünïcode 🎉 👩\u200d🔧",
		"a\tb\nc":                  "a\tb\nc",
		"\x1b[0m":                  "\\x1b[0m",
		"\u009b":                   "\\u009b",
		"\U000e0041":               "\\U000e0041",
		"\xff":                     "\\xff",
		"\r\n":                     "\\x0d\n",
	} {
		require.Equal(t, want, ui.Escape(in))
	}
	require.Equal(t, `a\tb\nc`, ui.Line("a\tb\nc"))
}

// What is said of the agent is said once, and not before every turn.
func TestNotesAreSaidOnce(t *testing.T) {
	var out bytes.Buffer
	p := ui.New(&out, ui.Options{})
	for _, turn := range []int{1, 2, 1} {
		require.NoError(t, p.Event(domain.Event{Turn: turn, Reply: domain.SandboxApplied{Receipt: domain.Receipt{Enforcer: "e", Agent: []string{"hooks are off"}}}}))
	}
	require.Equal(t, 1, strings.Count(out.String(), "caisson: notes: hooks are off\n"), out.String())
}

func conversation() []domain.ReplyEvent {
	code := 1
	cost := 0.0123
	return []domain.ReplyEvent{
		domain.SandboxApplied{Receipt: domain.Receipt{
			Enforcer: "landlock", ABI: 7, ConnectTCP: []uint16{443}, Rules: []domain.GrantedRule{{Path: "/usr"}},
			Properties: []domain.PropertyStatus{{Property: domain.PropertyUDP, State: domain.StateWaived}},
			Agent:      []string{"claude: holds a login", "claude: hooks are off"},
		}},
		domain.ConversationStarted{ConversationID: "c", Model: "model-1", AgentVersion: "2.1"},
		domain.Thinking{Text: "Two files,\nthen a test."},
		domain.TextDelta{Text: "I'll "},
		domain.Text{Text: "I'll look around.\n\nThen decide.\n"},
		domain.ToolCall{ID: "1", Name: "Bash", Kind: domain.ToolExecute, Input: []byte(`{"description":"list","command":"ls\n-l"}`)},
		domain.ToolCall{ID: "2", Name: "Glob", Kind: domain.ToolSearch, Input: []byte(`{"n":1}`), Parent: "1"},
		domain.ToolResult{ID: "2", Status: domain.ToolCompleted, Parent: "1"},
		domain.ToolResult{ID: "1", Status: domain.ToolFailed, Output: "\nls: no\nmore\n", ExitCode: &code},
		domain.ToolCall{ID: "3", Name: "command_execution", Kind: domain.ToolExecute, Input: []byte(`{"command":["ls","-l"]}`)},
		domain.FileChange{ID: "4", Status: domain.ToolDenied, Changes: []domain.FileEdit{{Path: "/a b", Kind: "add"}}},
		domain.Todo{Items: []domain.TodoItem{{Text: "one", Status: "pending"}}},
		domain.Permission{Tool: "Bash", Input: []byte(`{}`)},
		domain.Permission{Tool: "Bash", Decision: "deny", Reason: "policy"},
		domain.Notice{Class: domain.NoticeRetry, Message: "overloaded", Attempt: 2, Delay: time.Second},
		domain.Log{Stream: "stderr", Line: "warning"},
		domain.Oversize{Bytes: 70},
		domain.Final{
			Outcome: domain.OutcomeFailed, Text: "Sorry.", Usage: domain.Usage{InputTokens: 10, CachedInputTokens: 4, OutputTokens: 2},
			CostUSD: &cost, Exit: domain.ExitStatus{Known: true, Code: 1}, Duration: 3210 * time.Millisecond,
			Error: &domain.TurnError{Class: "rate_limit", Message: "slow\ndown", StderrTail: "one\ntwo\n"},
		},
	}
}

const conversationText = `caisson: confined by landlock (ABI 7); 1 paths granted; tcp 443; waived: udp
caisson: notes: claude: holds a login; claude: hooks are off
* claude 2.1 model-1
~ Two files,
~ then a test.
  I'll look around.
  
  Then decide.
* execute Bash ls\n-l
*   search Glob {"n":1}
*   Glob completed
* Bash failed (exit 1)
* | ls: no
* | more
* execute command_execution ls -l
* add /a b denied
* todo [pending] one
! asks for permission: Bash {}
! permission deny Bash policy
! retry: overloaded (attempt 2, in 1s)
! stderr: warning
! a line of 70 bytes was left out
  Sorry.
! rate_limit: slow
! down
! stderr: one
! stderr: two
caisson: failed in 3.2s; exit 1; 10 tokens in (4 cached), 2 out; $0.0123
caisson: continue with: --resume 01890a5d-ac96-774b-bcce-b302099a8057
`

func TestAConversation(t *testing.T) {
	var out bytes.Buffer
	p := ui.New(&out, ui.Options{})
	for _, r := range conversation() {
		require.NoError(t, p.Event(domain.Event{Agent: domain.AgentClaude, Session: "01890a5d-ac96-774b-bcce-b302099a8057", Reply: r}))
	}
	require.Equal(t, conversationText, out.String())
}

func TestTheOutputOfATool(t *testing.T) {
	numbered := func(n int, at int, line string) string {
		var b strings.Builder
		for i := 1; i <= n; i++ {
			if i == at {
				fmt.Fprintln(&b, line)
			} else {
				fmt.Fprintf(&b, "  line %d\n", i)
			}
		}
		return b.String()
	}
	for name, c := range map[string]struct{ output, want string }{
		"nothing":         {"", "* Bash failed\n"},
		"blank":           {" \n\n", "* Bash failed\n"},
		"one line":        {"\nonly\n\n", "* Bash failed: only\n"},
		"carriage":        {"one\r\ntwo\r\n", "* Bash failed\n* | one\n* | two\n"},
		"a blank between": {"one\n\ntwo", "* Bash failed\n* | one\n* | \n* | two\n"},
		"all of seven": {numbered(7, 0, ""), "* Bash failed\n* |   line 1\n* |   line 2\n* |   line 3\n* |   line 4\n" +
			"* |   line 5\n* |   line 6\n* |   line 7\n"},
		"the ends of a hundred": {numbered(100, 0, ""), "* Bash failed\n* |   line 1\n* |   line 2\n* |   line 3\n* … +94 lines\n" +
			"* |   line 98\n* |   line 99\n* |   line 100\n"},
		"a denial at the end": {numbered(100, 100, "sh: x: Permission denied"), "* Bash failed\n* |   line 1\n* |   line 2\n* |   line 3\n* … +94 lines\n" +
			"* |   line 98\n* |   line 99\n* | sh: x: Permission denied\n"},
		"a denial in the middle": {numbered(100, 50, "rm: Operation not permitted"), "* Bash failed\n* |   line 1\n* |   line 2\n* |   line 3\n* … +46 lines\n" +
			"* | rm: Operation not permitted\n* … +47 lines\n* |   line 98\n* |   line 99\n* |   line 100\n"},
		"a long line": {"a\n" + strings.Repeat("x", 2000), "* Bash failed\n* | a\n* | " + strings.Repeat("x", 639) + "…\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := ui.New(&out, ui.Options{})
			require.NoError(t, p.Event(domain.Event{Reply: domain.ToolCall{ID: "1", Name: "Bash"}}))
			out.Reset()
			require.NoError(t, p.Event(domain.Event{Reply: domain.ToolResult{ID: "1", Status: domain.ToolFailed, Output: c.output}}))
			require.Equal(t, c.want, out.String())
		})
	}
}

func TestStderrIsNotSaidTwice(t *testing.T) {
	var out bytes.Buffer
	p := ui.New(&out, ui.Options{})
	for range 2 {
		out.Reset()
		for _, line := range []string{"one", "two"} {
			require.NoError(t, p.Event(domain.Event{Reply: domain.Log{Stream: "stderr", Line: line}}))
		}
		require.NoError(t, p.Event(domain.Event{Reply: domain.Final{
			Outcome: domain.OutcomeFailed, Error: &domain.TurnError{Class: "x", Message: "y", StderrTail: "one\ntwo\nthree\n"},
		}}))
		require.Equal(t, "! stderr: one\n! stderr: two\n! x: y\n! stderr: three\n", out.String()[:strings.Index(out.String(), "caisson:")])
	}
	out.Reset()
	require.NoError(t, p.Event(domain.Event{Reply: domain.Final{
		Outcome: domain.OutcomeFailed, Error: &domain.TurnError{Class: "x", Message: "y", StderrTail: "one\n"},
	}}))
	require.Contains(t, out.String(), "! stderr: one\n", "that was another turn")
}

func TestEditsAreShownByTheirPaths(t *testing.T) {
	for input, want := range map[string]string{
		`{"changes":[{"path":"/w/a","kind":"add"},{"path":"/w/b c","kind":"update"}]}`: "* edit apply_patch add /w/a, update /w/b c\n",
		`{"changes":[{"path":"/w/a"}]}`: "* edit apply_patch /w/a\n",
		`{"changes":[{"kind":"add"}]}`:  "* edit apply_patch {\"changes\":[{\"kind\":\"add\"}]}\n",
		`{"changes":[]}`:                "* edit apply_patch {\"changes\":[]}\n",
		`{"changes":7}`:                 "* edit apply_patch {\"changes\":7}\n",
	} {
		var out bytes.Buffer
		require.NoError(t, ui.New(&out, ui.Options{}).Event(domain.Event{
			Reply: domain.ToolCall{ID: "1", Kind: domain.ToolEdit, Name: "apply_patch", Input: []byte(input)},
		}))
		require.Equal(t, want, out.String())
	}
}

func TestTheFinalTextIsNotSaidTwice(t *testing.T) {
	for said, want := range map[string]int{"Done.": 1, "Done.\n": 1, "Other.": 1} {
		var out bytes.Buffer
		p := ui.New(&out, ui.Options{})
		require.NoError(t, p.Event(domain.Event{Reply: domain.Text{Text: said}}))
		require.NoError(t, p.Event(domain.Event{Reply: domain.Final{Outcome: domain.OutcomeCompleted, Text: "Done."}}))
		require.Equal(t, want, strings.Count(out.String(), "Done."), "%q", out.String())
	}
}

func TestColourChangesNothingElse(t *testing.T) {
	var out bytes.Buffer
	p := ui.New(&out, ui.Options{Colour: true})
	for _, r := range conversation() {
		require.NoError(t, p.Event(domain.Event{Agent: domain.AgentClaude, Session: "01890a5d-ac96-774b-bcce-b302099a8057", Reply: r}))
	}
	require.Contains(t, out.String(), "\x1b[1mcaisson: confined")
	plain := strings.NewReplacer("\x1b[0m", "", "\x1b[1m", "", "\x1b[2m", "").Replace(out.String())
	require.Equal(t, conversationText, plain)
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestTheWritersErrorIsReturned(t *testing.T) {
	want := errors.New("closed")
	p := ui.New(broken{want}, ui.Options{})
	require.ErrorIs(t, p.Event(domain.Event{Reply: domain.Text{Text: "x"}}), want)
	require.ErrorIs(t, p.Own("x"), want)
}

func FuzzText(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, 20)
	}
	f.Fuzz(func(t *testing.T, s string, width int) {
		if width < 12 || width > 300 {
			width = 0
		}
		var out bytes.Buffer
		p := ui.New(&out, ui.Options{Width: func() int { return width }})
		require.NoError(t, p.Event(domain.Event{Reply: domain.Text{Text: s}}))
		requireClean(t, out.String(), width, func(line string) bool { return strings.HasPrefix(line, "  ") })
	})
}
