package codex_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
)

const (
	idA = "01a2299d-9647-7500-94a9-b204029b6062"
	idB = "01a2299d-d8f1-7561-b68f-1b4bf62119dc"
)

func ptr[T any](v T) *T { return &v }

func lines(ss ...string) [][]byte {
	bb := make([][]byte, len(ss))
	for i, s := range ss {
		bb[i] = []byte(s)
	}
	return bb
}

func TestParser(t *testing.T) {
	const (
		done    = `{"type":"turn.completed","usage":{"input_tokens":10,"cached_input_tokens":4,"cache_write_input_tokens":1,"output_tokens":3,"reasoning_output_tokens":2}}`
		started = `{"type":"thread.started","thread_id":"` + idA + `"}`
	)
	usage := domain.Usage{InputTokens: 10, CachedInputTokens: 4, CacheWriteTokens: 1, OutputTokens: 3, ReasoningTokens: 2}
	completed := func(f domain.Final) *domain.Final {
		f.Outcome, f.StopReason = domain.OutcomeCompleted, domain.StopEndTurn
		f.Usage, f.TotalUsage = usage, &usage
		return &f
	}
	failed := func(class, message string, retryable bool) *domain.Final {
		return &domain.Final{Outcome: domain.OutcomeFailed, Error: &domain.TurnError{Class: class, Message: message, Retryable: retryable}}
	}
	mismatch := func(was string) string {
		return `codex was asked to resume conversation ` + idA + `, but continued "` + was + `"`
	}
	log := func(s string) domain.ReplyEvent { return domain.Log{Stream: "stdout", Line: s} }
	raw := func(typ, s string) domain.ReplyEvent { return domain.Raw{Type: typ, JSON: []byte(s)} }
	shell := func(id, input string) domain.ReplyEvent {
		return domain.ToolCall{ID: id, Name: "shell", Kind: domain.ToolExecute, Input: []byte(input)}
	}
	resume := ports.TurnRequest{Resume: true, ConversationID: idA}

	tests := []struct {
		name  string
		turn  ports.TurnRequest
		lines []string
		want  []domain.ReplyEvent
		claim *domain.Final
	}{
		{
			name:  "the conversation, with what is known of the agent",
			turn:  ports.TurnRequest{Model: "m", Install: ports.AgentInstall{Version: "0.169.0"}},
			lines: []string{started},
			want:  []domain.ReplyEvent{domain.ConversationStarted{ConversationID: idA, Model: "m", AgentVersion: "0.169.0"}},
		},
		{
			name:  "a conversation whose id could not be resumed",
			lines: []string{`{"type":"thread.started","thread_id":"--last"}`, started},
			want:  []domain.ReplyEvent{raw("thread.started", `{"type":"thread.started","thread_id":"--last"}`), domain.ConversationStarted{ConversationID: idA}},
		},
		{
			name:  "a second conversation",
			lines: []string{started, `{"type":"thread.started","thread_id":"` + idB + `"}`, done},
			want: []domain.ReplyEvent{
				domain.ConversationStarted{ConversationID: idA},
				raw("thread.started", `{"type":"thread.started","thread_id":"`+idB+`"}`),
				domain.UsageReport{Usage: usage},
			},
			claim: completed(domain.Final{ConversationID: idA}),
		},
		{
			name:  "the conversation asked for",
			turn:  ports.TurnRequest{Resume: true, ConversationID: strings.ToUpper(idA)},
			lines: []string{started, done},
			want:  []domain.ReplyEvent{domain.ConversationStarted{ConversationID: idA}, domain.UsageReport{Usage: usage}},
			claim: completed(domain.Final{ConversationID: idA}),
		},
		{
			name:  "another conversation than asked, and a good end",
			turn:  resume,
			lines: []string{`{"type":"thread.started","thread_id":"` + idB + `"}`, `{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"hi"}}`, done},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: mismatch(idB)}, domain.Text{Text: "hi"}},
			claim: &domain.Final{Outcome: domain.OutcomeFailed, Text: "hi", Error: &domain.TurnError{Class: domain.ErrorClassConversation, Message: mismatch(idB)}},
		},
		{
			name:  "another conversation than asked, and no end",
			turn:  resume,
			lines: []string{`{"type":"thread.started","thread_id":"` + idB + `"}`},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: mismatch(idB)}},
			claim: failed(domain.ErrorClassConversation, mismatch(idB), false),
		},
		{
			name:  "another conversation than asked, then the right one",
			turn:  resume,
			lines: []string{`{"type":"thread.started","thread_id":"no id"}`, started},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: mismatch("no id")}, raw("thread.started", started)},
			claim: failed(domain.ErrorClassConversation, mismatch("no id"), false),
		},
		{
			name:  "usage is a difference",
			turn:  ports.TurnRequest{UsageBefore: domain.Usage{InputTokens: 7, CachedInputTokens: 4, OutputTokens: 1}},
			lines: []string{done},
			want:  []domain.ReplyEvent{domain.UsageReport{Usage: domain.Usage{InputTokens: 3, CacheWriteTokens: 1, OutputTokens: 2, ReasoningTokens: 2}}},
			claim: &domain.Final{
				Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn, TotalUsage: &usage,
				Usage: domain.Usage{InputTokens: 3, CacheWriteTokens: 1, OutputTokens: 2, ReasoningTokens: 2},
			},
		},
		{
			name:  "usage after the counter was restarted",
			turn:  ports.TurnRequest{UsageBefore: domain.Usage{InputTokens: 5000}},
			lines: []string{done},
			want:  []domain.ReplyEvent{domain.UsageReport{Usage: usage}},
			claim: completed(domain.Final{}),
		},
		{
			name:  "no usage",
			lines: []string{`{"type":"turn.completed"}`},
			claim: &domain.Final{Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn},
		},
		{
			name:  "usage that is none",
			lines: []string{`{"type":"turn.completed","usage":{"input_tokens":-1}}`},
			claim: &domain.Final{Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn},
		},
		{
			name:  "usage beyond counting",
			lines: []string{`{"type":"turn.completed","usage":{"input_tokens":99999999999999999999,"output_tokens":1}}`},
			claim: &domain.Final{Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn},
		},
		{
			name:  "text, thinking and a warning; the last text is the answer",
			lines: []string{`{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"one"}}`, `{"type":"item.completed","item":{"id":"item_1","type":"reasoning","text":"hm"}}`, `{"type":"item.completed","item":{"id":"item_2","type":"agent_message","text":"t\u0077o\n\u2028"}}`, `{"type":"item.completed","item":{"id":"item_3","type":"error","message":"careful"}}`, done},
			want: []domain.ReplyEvent{
				domain.Text{Text: "one"}, domain.Thinking{Text: "hm"}, domain.Text{Text: "two\n\u2028"},
				domain.Notice{Class: domain.NoticeWarning, Message: "careful"}, domain.UsageReport{Usage: usage},
			},
			claim: completed(domain.Final{Text: "two\n\u2028"}),
		},
		{
			name: "a command",
			lines: []string{
				`{"type":"item.started","item":{"id":"item_0","type":"command_execution","command":"ls \"x\"","aggregated_output":"","exit_code":null,"status":"in_progress"}}`,
				`{"type":"item.updated","item":{"id":"item_0","type":"command_execution","command":"ls \"x\"","aggregated_output":"half","exit_code":null,"status":"in_progress"}}`,
				`{"type":"item.completed","item":{"id":"item_0","type":"command_execution","command":"ls \"x\"","aggregated_output":"half\r\nall","exit_code":2,"status":"failed"}}`,
			},
			want: []domain.ReplyEvent{
				shell("item_0", `{"command":"ls \"x\""}`),
				domain.ToolUpdate{ID: "item_0", Output: "half"},
				domain.ToolResult{ID: "item_0", Status: domain.ToolFailed, Output: "half\r\nall", ExitCode: ptr(2)},
			},
		},
		{
			name:  "a declined command that never started",
			lines: []string{`{"type":"item.completed","item":{"id":"item_0","type":"command_execution","command":"rm","aggregated_output":"","exit_code":null,"status":"declined"}}`},
			want:  []domain.ReplyEvent{shell("item_0", `{"command":"rm"}`), domain.ToolResult{ID: "item_0", Status: domain.ToolDenied}},
		},
		{
			name:  "a command that has no end",
			lines: []string{`{"type":"item.started","item":{"id":"item_0","type":"command_execution","command":"sleep"}}`, done},
			want:  []domain.ReplyEvent{shell("item_0", `{"command":"sleep"}`), domain.UsageReport{Usage: usage}},
			claim: completed(domain.Final{}),
		},
		{
			name: "a call is announced once and ends once",
			lines: []string{
				`{"type":"item.started","item":{"id":"i","type":"command_execution","command":"a"}}`,
				`{"type":"item.started","item":{"id":"i","type":"command_execution","command":"b"}}`,
				`{"type":"item.completed","item":{"id":"i","type":"command_execution","command":"a","status":"completed","exit_code":0}}`,
				`{"type":"item.completed","item":{"id":"i","type":"command_execution","command":"c"}}`,
			},
			want: []domain.ReplyEvent{
				shell("i", `{"command":"a"}`),
				raw("item.started", `{"type":"item.started","item":{"id":"i","type":"command_execution","command":"b"}}`),
				domain.ToolResult{ID: "i", Status: domain.ToolCompleted, ExitCode: ptr(0)},
				raw("item.completed", `{"type":"item.completed","item":{"id":"i","type":"command_execution","command":"c"}}`),
			},
		},
		{
			name:  "a status that is not known is no success",
			lines: []string{`{"type":"item.completed","item":{"id":"i","type":"command_execution","command":"a","status":"vanished"}}`},
			want:  []domain.ReplyEvent{shell("i", `{"command":"a"}`), domain.ToolResult{ID: "i", Status: domain.ToolFailed}},
		},
		{
			name: "a patch",
			lines: []string{
				`{"type":"item.started","item":{"id":"item_0","type":"file_change","changes":[{"path":"/w/a","kind":"add"}],"status":"in_progress"}}`,
				`{"type":"item.completed","item":{"id":"item_0","type":"file_change","changes":[{"path":"/w/a","kind":"add"},{"path":"/w/b","kind":"delete"}],"status":"completed"}}`,
			},
			want: []domain.ReplyEvent{
				domain.ToolCall{ID: "item_0", Name: "apply_patch", Kind: domain.ToolEdit, Input: []byte(`{"changes":[{"path":"/w/a","kind":"add"}]}`)},
				domain.FileChange{ID: "item_0", Status: domain.ToolCompleted, Changes: []domain.FileEdit{{Path: "/w/a", Kind: "add"}, {Path: "/w/b", Kind: "delete"}}},
				domain.ToolResult{ID: "item_0", Status: domain.ToolCompleted},
			},
		},
		{
			name: "tools of MCP servers",
			lines: []string{
				`{"type":"item.started","item":{"id":"item_0","type":"mcp_tool_call","server":"s","tool":"echo","arguments":{"x":"hi"},"result":null,"error":null,"status":"in_progress"}}`,
				`{"type":"item.completed","item":{"id":"item_0","type":"mcp_tool_call","server":"s","tool":"echo","arguments":{"x":"hi"},"result":{"content":[{"type":"text","text":"a"},{"type":"image","data":"AA=="},{"type":"text","text":"b"}],"structured_content":{"ok":true}},"error":null,"status":"completed"}}`,
				`{"type":"item.completed","item":{"id":"item_1","type":"mcp_tool_call","server":"s","tool":"die","arguments":null,"result":null,"error":{"message":"closed"},"status":"failed"}}`,
				`{"type":"item.completed","item":{"id":"item_2","type":"mcp_tool_call","server":"s","tool":"t","arguments":[1],"result":{"content":[],"structured_content":{"ok":true}},"error":null,"status":"completed"}}`,
				`{"type":"item.completed","item":{"id":"item_3","type":"mcp_tool_call","server":"s","tool":"t","result":["odd"],"status":"completed"}}`,
			},
			want: []domain.ReplyEvent{
				domain.ToolCall{ID: "item_0", Name: "mcp__s__echo", Kind: domain.ToolOther, Input: []byte(`{"x":"hi"}`)},
				domain.ToolResult{ID: "item_0", Status: domain.ToolCompleted, Output: "a\n" + `{"type":"image","data":"AA=="}` + "\nb"},
				domain.ToolCall{ID: "item_1", Name: "mcp__s__die", Kind: domain.ToolOther},
				domain.ToolResult{ID: "item_1", Status: domain.ToolFailed, Output: "closed"},
				domain.ToolCall{ID: "item_2", Name: "mcp__s__t", Kind: domain.ToolOther, Input: []byte(`[1]`)},
				domain.ToolResult{ID: "item_2", Status: domain.ToolCompleted, Output: `{"ok":true}`},
				domain.ToolCall{ID: "item_3", Name: "mcp__s__t", Kind: domain.ToolOther},
				domain.ToolResult{ID: "item_3", Status: domain.ToolCompleted, Output: `["odd"]`},
			},
		},
		{
			name: "subagents",
			lines: []string{
				`{"type":"item.started","item":{"id":"item_1","type":"collab_tool_call","tool":"spawn_agent","sender_thread_id":"s","receiver_thread_ids":[],"prompt":"do","agents_states":{},"status":"in_progress"}}`,
				`{"type":"item.completed","item":{"id":"item_1","type":"collab_tool_call","tool":"spawn_agent","sender_thread_id":"s","receiver_thread_ids":["r"],"prompt":"do","agents_states":{"r":{"status":"pending_init","message":null}},"status":"completed"}}`,
			},
			want: []domain.ReplyEvent{
				domain.ToolCall{ID: "item_1", Name: "spawn_agent", Kind: domain.ToolOther, Input: []byte(`{"prompt":"do","receiver_thread_ids":[]}`)},
				domain.ToolResult{ID: "item_1", Status: domain.ToolCompleted, Output: `{"r":{"status":"pending_init","message":null}}`},
			},
		},
		{
			name: "a web search, which has two ids",
			lines: []string{
				`{"type":"item.started","item":{"id":"item_0","type":"web_search","id":"ws_1","query":"","action":{"type":"other"}}}`,
				`{"type":"item.completed","item":{"id":"item_0","type":"web_search","id":"ws_1","query":"q","action":{"type":"search","query":"q"}}}`,
			},
			want: []domain.ReplyEvent{
				domain.ToolCall{ID: "item_0", Name: "web_search", Kind: domain.ToolFetch, Input: []byte(`{"query":"","action":{"type":"other"}}`)},
				domain.ToolResult{ID: "item_0", Status: domain.ToolCompleted, Output: `{"query":"q","action":{"type":"search","query":"q"}}`},
			},
		},
		{
			name: "the plan",
			lines: []string{
				`{"type":"item.started","item":{"id":"item_0","type":"todo_list","items":[{"text":"a","completed":false}]}}`,
				`{"type":"item.updated","item":{"id":"item_0","type":"todo_list","items":[{"text":"a","completed":true}]}}`,
				`{"type":"item.completed","item":{"id":"item_0","type":"todo_list","items":[]}}`,
			},
			want: []domain.ReplyEvent{
				domain.Todo{Items: []domain.TodoItem{{Text: "a", Status: "pending"}}},
				domain.Todo{Items: []domain.TodoItem{{Text: "a", Status: "completed"}}},
				domain.Todo{Items: []domain.TodoItem{}},
			},
		},
		{
			name: "retries are told at once and are no failure",
			lines: []string{
				`{"type":"error","message":"Reconnecting... 2/5 (stream disconnected before completion: x)"}`,
				`{"type":"error","message":"Reconnecting... waiting for network (Connection failed: x)"}`,
				`{"type":"error","message":"Reconnecting... 1/5 (rate limit exceeded: Rate limit reached. Please try again in 1.5s.)"}`,
				`{"type":"error","message":"Reconnecting... 1/5 (Please try again in 20ms or so)"}`,
			},
			want: []domain.ReplyEvent{
				domain.Notice{Class: domain.NoticeRetry, Attempt: 2, Message: "Reconnecting... 2/5 (stream disconnected before completion: x)"},
				domain.Notice{Class: domain.NoticeRetry, Message: "Reconnecting... waiting for network (Connection failed: x)"},
				domain.Notice{Class: domain.NoticeRetry, Attempt: 1, Delay: 1500 * time.Millisecond, Message: "Reconnecting... 1/5 (rate limit exceeded: Rate limit reached. Please try again in 1.5s.)"},
				domain.Notice{Class: domain.NoticeRetry, Attempt: 1, Delay: 20 * time.Millisecond, Message: "Reconnecting... 1/5 (Please try again in 20ms or so)"},
			},
		},
		{
			name:  "the last error is the failure, and is not told twice",
			lines: []string{`{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"half"}}`, `{"type":"error","message":"stop"}`, `{"type":"turn.failed","error":{"message":"stop"}}`},
			want:  []domain.ReplyEvent{domain.Text{Text: "half"}},
			claim: &domain.Final{Outcome: domain.OutcomeFailed, Text: "half", Error: &domain.TurnError{Class: "agent", Message: "stop"}},
		},
		{
			name:  "an error that the turn survives",
			lines: []string{`{"type":"error","message":"odd"}`, done},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: "odd"}, domain.UsageReport{Usage: usage}},
			claim: completed(domain.Final{}),
		},
		{
			name:  "an error as the last line is no failure",
			lines: []string{`{"type":"error","message":"odd"}`},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: "odd"}},
		},
		{
			name:  "two errors",
			lines: []string{`{"type":"error","message":"odd"}`, `{"type":"error","message":"stop"}`, `{"type":"turn.failed","error":{"message":"stop"}}`},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: "odd"}},
			claim: failed("agent", "stop", false),
		},
		{
			name:  "another error than the failure",
			lines: []string{`{"type":"error","message":"odd"}`, `{"type":"turn.failed","error":{"message":"stop"}}`},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: "odd"}},
			claim: failed("agent", "stop", false),
		},
		{
			name:  "an error, and other output before the failure",
			lines: []string{`{"type":"error","message":"stop"}`, `panic!`, `{"type":"turn.failed","error":{"message":"stop"}}`},
			want:  []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: "stop"}, log("panic!")},
			claim: failed("agent", "stop", false),
		},
		{
			name:  "a failure without a message takes the error's",
			lines: []string{`{"type":"error","message":"stop"}`, `{"type":"turn.failed"}`},
			claim: failed("agent", "stop", false),
		},
		{
			name:  "a failure without any message",
			lines: []string{`{"type":"turn.failed","error":null}`},
			claim: failed("agent", "codex reported a failure without a message", false),
		},
		{
			name:  "a failure with a plain message",
			lines: []string{`{"type":"turn.failed","error":"Quota exceeded."}`},
			claim: failed("quota", "Quota exceeded.", false),
		},
		{
			name:  "no success after a failure",
			lines: []string{`{"type":"turn.failed","error":{"message":"stop"}}`, done},
			want:  []domain.ReplyEvent{domain.UsageReport{Usage: usage}},
			claim: failed("agent", "stop", false),
		},
		{
			name:  "a failure after a success",
			lines: []string{`{"type":"turn.completed"}`, `{"type":"turn.failed","error":{"message":"stop"}}`},
			claim: failed("agent", "stop", false),
		},
		{
			name: "what is not known is passed on as it is",
			lines: []string{
				`{"type":"turn.paused" , "x":1}`,
				`{"type":"item.completed","item":{"id":"i","type":"hologram"}}`,
				`{"type":"item.exploded","item":{"id":"i","type":"agent_message","text":"x"}}`,
				`{"type":"item.updated","item":{"id":"i","type":"agent_message","text":"x"}}`,
				`{"type":"item.completed"}`,
				`{"type":"item.completed","item":"x"}`,
				`{"type":"item.completed","item":{"type":"command_execution","command":"no id"}}`,
				`{"type":"item.completed","item":{"id":"i","type":"agent_message","text":7}}`,
				`{"type":"item.completed","item":{"id":"i","type":"todo_list","items":"x"}}`,
				`{"type":"error","message":{}}`,
				`{"type":3}`,
				`{}`,
				`{"Type":"turn.completed","TYPE":"turn.completed"}`,
			},
			want: []domain.ReplyEvent{
				raw("turn.paused", `{"type":"turn.paused" , "x":1}`),
				raw("item.completed", `{"type":"item.completed","item":{"id":"i","type":"hologram"}}`),
				raw("item.exploded", `{"type":"item.exploded","item":{"id":"i","type":"agent_message","text":"x"}}`),
				raw("item.updated", `{"type":"item.updated","item":{"id":"i","type":"agent_message","text":"x"}}`),
				raw("item.completed", `{"type":"item.completed"}`),
				raw("item.completed", `{"type":"item.completed","item":"x"}`),
				raw("item.completed", `{"type":"item.completed","item":{"type":"command_execution","command":"no id"}}`),
				raw("item.completed", `{"type":"item.completed","item":{"id":"i","type":"agent_message","text":7}}`),
				raw("item.completed", `{"type":"item.completed","item":{"id":"i","type":"todo_list","items":"x"}}`),
				raw("error", `{"type":"error","message":{}}`),
				raw("", `{"type":3}`),
				raw("", `{}`),
				raw("", `{"Type":"turn.completed","TYPE":"turn.completed"}`),
			},
		},
		{
			name:  "names and values in escapes, the type at the end",
			lines: []string{`{"ite\u006d":{"te\u0078t":"hi","typ\u0065":"agent\u005fmessage"},"\u0074ype":"item\u002ecompleted"}`},
			want:  []domain.ReplyEvent{domain.Text{Text: "hi"}},
		},
		{
			name:  "the first of equal names counts",
			lines: []string{`{"type":"item.completed","type":"turn.completed","item":{"type":"agent_message","text":"a","text":"b"},"item":{"type":"agent_message","text":"c"}}`},
			want:  []domain.ReplyEvent{domain.Text{Text: "a"}},
		},
		{
			name:  "line ends, a byte order mark, white space and empty lines",
			lines: []string{"\xef\xbb\xbf" + `{"type":"turn.started"}` + "\r", "", "\r", " \t", ` {"type":"item.completed","item":{"type":"agent_message","text":"x"}} `},
			want:  []domain.ReplyEvent{domain.Text{Text: "x"}},
		},
		{
			name:  "several objects on a line",
			lines: []string{`{"type":"turn.started"}{"type":"item.completed","item":{"type":"agent_message","text":"x"}} {"type":"turn.completed"}`},
			want:  []domain.ReplyEvent{domain.Text{Text: "x"}},
			claim: &domain.Final{Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn, Text: "x"},
		},
		{
			name:  "objects, and then something else",
			lines: []string{`{"type":"item.completed","item":{"type":"agent_message","text":"x"}} oops {"type":"turn.completed"}`},
			want:  []domain.ReplyEvent{domain.Text{Text: "x"}, log(`oops {"type":"turn.completed"}`)},
		},
		{
			name:  "a line that was cut is no success",
			lines: []string{`{"type":"turn.completed","usage":{"input_tokens":10`},
			want:  []domain.ReplyEvent{log(`{"type":"turn.completed","usage":{"input_tokens":10`)},
		},
		{
			name:  "no objects",
			lines: []string{`[{"type":"turn.completed"}]`, `"turn.completed"`, `42`, `null`, `}`, `{"type":"turn.completed",}`, `{"type" "turn.completed"}`, `{1:2}`},
			want:  []domain.ReplyEvent{log(`[{"type":"turn.completed"}]`), log(`"turn.completed"`), log(`42`), log(`null`), log(`}`), log(`{"type":"turn.completed",}`), log(`{"type" "turn.completed"}`), log(`{1:2}`)},
		},
		{
			name:  "bytes that are no text",
			lines: []string{"a\x00b\xff\xfec", "{\"type\":\"item.completed\",\"item\":{\"type\":\"agent_message\",\"text\":\"a\xffb\\ud800c\"}}", "{\"type\":\"item.completed\",\"item\":{\"id\":\"i\",\"type\":\"command_execution\",\"command\":\"\xff\"}}", "{\"type\":\"x\xff\"}"},
			want: []domain.ReplyEvent{
				log("a\x00b\ufffdc"), domain.Text{Text: "a\ufffdb\ufffdc"},
				shell("i", "{\"command\":\"\ufffd\"}"), domain.ToolResult{ID: "i", Status: domain.ToolCompleted},
				raw("x\ufffd", "{\"type\":\"x\xff\"}"),
			},
		},
		{
			name:  "a NUL in a string is no JSON",
			lines: []string{"{\"type\":\"a\x00b\"}"},
			want:  []domain.ReplyEvent{log("{\"type\":\"a\x00b\"}")},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := run(t, tt.turn, domain.ExitStatus{}, lines(tt.lines...)...)
			require.Equal(t, tt.want, got.events)
			require.Equal(t, tt.claim, got.claim)
		})
	}
}

func TestDone(t *testing.T) {
	p := codex.New().NewParser(ports.TurnRequest{})
	for line, want := range map[string]bool{
		`{"type":"thread.started","thread_id":"` + idA + `"}`:                   false,
		`{"type":"error","message":"x"}`:                                        false,
		`{"type":"turn.failed","error":{"message":"x"}}`:                        true,
		`{"type":"turn.completed"}`:                                             true,
		`{"type":"turn.completed"`:                                              false,
		`{"type":"item.completed","item":{"type":"error","message":"warning"}}`: false,
	} {
		out, err := p.ParseEvent([]byte(line))
		require.NoError(t, err)
		require.Equal(t, want, out.Done, line)
	}
}

func TestFailureClasses(t *testing.T) {
	for message, want := range map[string]string{
		"unexpected status 401 Unauthorized: x, url: y":                            "authentication",
		"unexpected status 402 Payment Required":                                   "invalid_request",
		"unexpected status 429 Too Many Requests: You exceeded your current quota": "quota",
		"unexpected status 502 Bad Gateway":                                        "server_error",
		"exceeded retry limit, last status: 503 Service Unavailable":               "server_error",
		"exceeded retry limit, last status: 429 Too Many Requests":                 "rate_limit",
		"Missing environment variable: `OPENAI_API_KEY`.":                          "authentication",
		`{"error":{"code":"context_length_exceeded"}}`:                             "context_length",
		"Incomplete response returned, reason: content_filter":                     "refusal",
		"stream disconnected before completion: idle timeout waiting for SSE":      "connection",
		"the model said no": "agent",
	} {
		data, err := json.Marshal(map[string]any{"type": "turn.failed", "error": map[string]any{"message": message}})
		require.NoError(t, err)
		got := run(t, ports.TurnRequest{}, domain.ExitStatus{}, data)
		require.Equal(t, want, got.claim.Error.Class, message)
		require.Equal(t, message, got.claim.Error.Message)
	}
}

func TestHugeAndDeepLines(t *testing.T) {
	deep := strings.Repeat("[", 100_000)
	closed := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for name, line := range map[string]string{
		"open":      deep,
		"closed":    closed,
		"as a type": `{"type":` + closed + `}`,
		"in item":   `{"type":"item.completed","item":{"arguments":` + closed + `}}`,
		"objects":   strings.Repeat(`{"a":`, 100_000),
		"unclosed":  `{"type":"turn.completed","x":"` + strings.Repeat("y", 1<<20),
	} {
		got := run(t, ports.TurnRequest{}, domain.ExitStatus{}, []byte(line))
		require.Equal(t, []domain.ReplyEvent{domain.Log{Stream: "stdout", Line: line}}, got.events, name)
		require.Nil(t, got.claim, name)
	}
	// The parser goes on after it.
	got := run(t, ports.TurnRequest{}, domain.ExitStatus{}, []byte(deep), []byte(`{"type":"turn.completed"}`))
	require.NotNil(t, got.claim)

	text := strings.Repeat("\\u0001", 1<<20)
	got = run(t, ports.TurnRequest{}, domain.ExitStatus{}, []byte(`{"type":"item.completed","item":{"type":"agent_message","text":"`+text+`"}}`))
	require.Equal(t, []domain.ReplyEvent{domain.Text{Text: strings.Repeat("\x01", 1<<20)}}, got.events)
}

// FuzzParser: whatever comes, the parser does not fail, loses no valid object,
// pairs calls with results, and hands on nothing that is no text.
func FuzzParser(f *testing.F) {
	for _, r := range recordings(f) {
		if len(r.out) > 0 && len(r.out) < 8<<10 {
			f.Add(r.out, false)
			f.Add(r.out, true)
		}
	}
	for _, s := range []string{
		"{}", "[", `{"type":"item.started","item":{"id":"i","type":"command_execution"}}`, "\xef\xbb\xbf{}\r\n\x00",
		`{"type":"turn.completed","usage":{"input_tokens":1e3}}`, `{"type":"a"}{"type":"b"}`,
		`{"type":"item.completed","item":{"id":"i","type":"mcp_tool_call","result":{"content":[{"type":"text"}]}}}`,
		`{"ty\u0070e":"error","message":"\ud800"}`, strings.Repeat(`{"item":`, 50),
	} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, out []byte, resume bool) {
		text := func(ss ...string) {
			for _, s := range ss {
				require.True(t, utf8.ValidString(s), "%q", s)
			}
		}
		input := func(in []byte) {
			if in != nil {
				require.True(t, json.Valid(in), "%q", in)
				require.True(t, utf8.Valid(in), "%q", in)
			}
		}
		p := codex.New().NewParser(ports.TurnRequest{Resume: resume, ConversationID: idA})
		open := map[string]int{} // 1 announced, 2 ended
		check := func(events []domain.ReplyEvent) (logs int) {
			for _, ev := range events {
				switch ev := ev.(type) {
				case domain.ConversationStarted:
					require.True(t, domain.IsUUID(ev.ConversationID))
					require.True(t, !resume || strings.EqualFold(ev.ConversationID, idA))
				case domain.Text:
					text(ev.Text)
				case domain.Thinking:
					text(ev.Text)
				case domain.ToolCall:
					require.Zero(t, open[ev.ID])
					open[ev.ID] = 1
					text(ev.ID, ev.Name)
					input(ev.Input)
				case domain.ToolUpdate:
					require.Equal(t, 1, open[ev.ID])
					text(ev.Output)
				case domain.ToolResult:
					require.Equal(t, 1, open[ev.ID])
					open[ev.ID] = 2
					text(ev.Output)
				case domain.FileChange:
					require.Equal(t, 1, open[ev.ID])
					for _, c := range ev.Changes {
						text(c.Path, c.Kind)
					}
				case domain.Todo:
					for _, i := range ev.Items {
						text(i.Text)
					}
				case domain.Notice:
					text(ev.Message)
				case domain.UsageReport:
				case domain.Log:
					logs++
					text(ev.Line)
					require.NotEmpty(t, ev.Line)
				case domain.Raw:
					text(ev.Type)
					require.True(t, json.Valid(ev.JSON), "%q", ev.JSON)
				default:
					t.Fatalf("%T is no event of the parser's", ev)
				}
			}
			return logs
		}
		for _, line := range bytes.Split(out, []byte("\n")) {
			own := bytes.Clone(line)
			got, err := p.ParseEvent(own)
			require.NoError(t, err)
			require.Equal(t, line, own, "the line was changed")
			logs := check(got.Events)
			require.LessOrEqual(t, logs, 1)
			// The other decoder's opinion on what one object is. Not all that Unicode
			// calls space is white space in JSON.
			plain := bytes.TrimPrefix(line, []byte("\ufeff"))
			if object := bytes.Trim(plain, " \t\r\n"); len(object) > 0 && object[0] == '{' && json.Valid(object) {
				require.Zero(t, logs, "%q", line)
			} else if trimmed := bytes.TrimSpace(plain); len(trimmed) > 0 && trimmed[len(trimmed)-1] != '}' {
				require.Equal(t, 1, logs, "%q", line)
			}
		}
		rest := p.Finish(domain.ExitStatus{})
		if n := len(rest); n > 0 {
			if final, ok := rest[n-1].(domain.Final); ok {
				rest = rest[:n-1]
				text(final.Text)
				require.Equal(t, final.Outcome == domain.OutcomeCompleted, final.Error == nil)
				if final.Error != nil {
					text(final.Error.Message)
				}
			}
		}
		check(rest)
	})
}
