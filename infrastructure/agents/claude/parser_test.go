package claude_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/ports"
)

const (
	initA  = `{"type":"system","subtype":"init","session_id":"` + conversationA + `","model":"m","claude_code_version":"2.1.328"}`
	initB  = `{"type":"system","subtype":"init","session_id":"` + conversationB + `","model":"m","claude_code_version":"2.1.328"}`
	okA    = `{"type":"result","subtype":"success","is_error":false,"result":"fine","stop_reason":"end_turn","session_id":"` + conversationA + `","total_cost_usd":0.5,"usage":{"input_tokens":1,"cache_read_input_tokens":2,"cache_creation_input_tokens":4,"output_tokens":8,"output_tokens_details":{"thinking_tokens":3}}}`
	okB    = `{"type":"result","subtype":"success","is_error":false,"result":"fine","session_id":"` + conversationB + `"}`
	bash   = `{"type":"assistant","message":{"content":[{"type":"tool_use","id":"b1","name":"Bash","input":{"command":"ls"}}]}}`
	denyMe = `{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"b1"}}`
)

// assistant and user wrap content blocks.
func assistant(blocks string) string {
	return `{"type":"assistant","message":{"role":"assistant","content":[` + blocks + `]},"parent_tool_use_id":null}`
}

func user(blocks string) string {
	return `{"type":"user","message":{"role":"user","content":[` + blocks + `]},"parent_tool_use_id":null}`
}

func TestBlocks(t *testing.T) {
	t.Run("several on one line, in order", func(t *testing.T) {
		p := events(t, assistant(`{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"a\nb\u00e9\u2028"},
			{"type":"tool_use","id":"t1","name":"Grep","input":{"pattern":"x"}},{"type":"redacted_thinking","data":"zz"},{"type":"text","text":"c"}`))
		require.Equal(t, []domain.ReplyEvent{
			domain.Thinking{Text: "hm"},
			domain.Text{Text: "a\nb\u00e9\u2028"},
			domain.ToolCall{ID: "t1", Name: "Grep", Kind: domain.ToolSearch, Input: []byte(`{"pattern":"x"}`)},
			domain.Thinking{},
			domain.Text{Text: "c"},
		}, p.events)
	})
	t.Run("the type comes last", func(t *testing.T) {
		p := events(t, `{"message":{"content":[{"text":"x","type":"text"}],"role":"assistant"},"parent_tool_use_id":"t9","type":"assistant"}`)
		require.Equal(t, domain.Text{Text: "x", Parent: "t9"}, only[domain.Text](t, p))
	})
	t.Run("content that is a string", func(t *testing.T) {
		require.Equal(t, "x", only[domain.Text](t, events(t, `{"type":"assistant","message":{"content":"x"}}`)).Text)
	})
	t.Run("an unknown block is passed on", func(t *testing.T) {
		raw := only[domain.Raw](t, events(t, assistant(`{"type":"hologram","x":[1, 2]}`)))
		require.Equal(t, domain.Raw{Type: "assistant/hologram", JSON: []byte(`{"type":"hologram","x":[1, 2]}`)}, raw)
		raw = only[domain.Raw](t, events(t, user(`17`)))
		require.Equal(t, domain.Raw{Type: "user/", JSON: []byte(`17`)}, raw)
	})
	t.Run("no message", func(t *testing.T) {
		for _, typ := range []string{"assistant", "user"} {
			line := `{"type":"` + typ + `","message":"odd"}`
			require.Equal(t, domain.Raw{Type: typ, JSON: []byte(line)}, only[domain.Raw](t, events(t, line)))
		}
	})
	t.Run("an API failure is text, too", func(t *testing.T) {
		p := events(t, `{"type":"assistant","error":"rate_limit","is_api_error_message":true,"message":{"model":"<synthetic>","content":[{"type":"text","text":"API Error"}]}}`)
		require.Equal(t, domain.Text{Text: "API Error"}, only[domain.Text](t, p))
	})
	t.Run("server tools", func(t *testing.T) {
		p := events(t, assistant(`{"type":"server_tool_use","id":"s1","name":"web_search","input":{"query":"q"}},
			{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"type":"web_search_result","title":"T","url":"https://t","encrypted_content":"e"}]},
			{"type":"web_search_tool_result","tool_use_id":"s2","content":{"type":"web_search_tool_result_error","error_code":"max_uses_exceeded"}}`))
		require.Equal(t, domain.ToolFetch, p.events[0].(domain.ToolCall).Kind)
		require.Equal(t, domain.ToolResult{ID: "s1", Status: domain.ToolCompleted, Output: "T: https://t"}, p.events[1])
		require.Equal(t, domain.ToolResult{ID: "s2", Status: domain.ToolFailed, Output: "max_uses_exceeded"}, p.events[2])
	})
	t.Run("stream events: text deltas alone", func(t *testing.T) {
		p := events(t,
			`{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"ab"}},"parent_tool_use_id":"t"}`,
			`{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}}`,
			`{"type":"stream_event","event":{"type":"message_start","message":{}}}`, `{"type":"stream_event","event":7}`)
		require.Equal(t, domain.TextDelta{Text: "ab", Parent: "t"}, only[domain.TextDelta](t, p))
	})
}

func TestToolKinds(t *testing.T) {
	for name, kind := range map[string]domain.ToolKind{
		"Bash": "execute", "Read": "read", "Write": "edit", "Edit": "edit", "MultiEdit": "edit", "NotebookEdit": "edit",
		"Glob": "search", "Grep": "search", "WebFetch": "fetch", "WebSearch": "fetch", "Task": "think", "Agent": "think",
		"mcp__github__Read": "other", "read": "other", "": "other", "Skill": "other",
	} {
		p := events(t, assistant(`{"type":"tool_use","id":"x","name":"`+name+`","input":{}}`))
		require.Equal(t, kind, only[domain.ToolCall](t, p).Kind, name)
	}
}

func TestToolResults(t *testing.T) {
	two := assistant(`{"type":"tool_use","id":"b1","name":"Bash","input":{}},{"type":"tool_use","id":"r1","name":"Read","input":{}}`)
	t.Run("out of order, each with its own", func(t *testing.T) {
		p := events(t, two, user(`{"type":"tool_result","tool_use_id":"r1","content":"file"}`),
			user(`{"is_error":false,"content":"out","type":"tool_result","tool_use_id":"b1"}`))
		require.Equal(t, []domain.ToolResult{
			{ID: "r1", Status: domain.ToolCompleted, Output: "file"},
			{ID: "b1", Status: domain.ToolCompleted, Output: "out", ExitCode: ptr(0)},
		}, of[domain.ToolResult](p.events))
	})
	t.Run("several on one line", func(t *testing.T) {
		p := events(t, two, user(`{"type":"tool_result","tool_use_id":"r1"},{"type":"tool_result","tool_use_id":"b1","is_error":true,"content":"Exit code 3\ntwo"}`))
		results := of[domain.ToolResult](p.events)
		require.Equal(t, domain.ToolResult{ID: "r1", Status: domain.ToolCompleted}, results[0])
		require.Equal(t, domain.ToolResult{ID: "b1", Status: domain.ToolFailed, Output: "Exit code 3\ntwo", ExitCode: ptr(3)}, results[1])
	})
	t.Run("exit codes", func(t *testing.T) {
		for content, code := range map[string]*int{
			"Exit code 143\nCommand timed out": ptr(143), "Exit code 1": ptr(1), "Exit code x": nil,
			"Exit code 99999999999999999999": nil, "No such tool": nil, "": nil, "Exit code ": nil,
		} {
			data, err := json.Marshal(content)
			require.NoError(t, err)
			p := events(t, bash, user(`{"type":"tool_result","tool_use_id":"b1","is_error":true,"content":`+string(data)+`}`))
			require.Equal(t, code, of[domain.ToolResult](p.events)[0].ExitCode, "%q", content)
		}
	})
	t.Run("blocks", func(t *testing.T) {
		p := events(t, user(`{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"a"},
			{"type":"image","source":{"type":"base64","data":"AAAA","media_type":"image/png"}},{"type":"tool_reference"},"s",5]}`))
		require.Equal(t, "a\n[image image/png, 4 bytes of base64]\n[tool_reference]\ns\n", only[domain.ToolResult](t, p).Output)
	})
	denied := func(meta string) domain.ToolStatus {
		line := strings.Replace(user(`{"type":"tool_result","tool_use_id":"b1","is_error":true,"content":"no"}`), `"type":"user"`, `"tool_result_meta":`+meta+`,"type":"user"`, 1)
		return of[domain.ToolResult](events(t, bash, line).events)[0].Status
	}
	t.Run("denied, by the line's own word", func(t *testing.T) {
		require.Equal(t, domain.ToolDenied, denied(`[{"id":"z"},{"id":"b1","permission_decision":{"source":"hook","decision":"reject"}}]`))
		require.Equal(t, domain.ToolFailed, denied(`[{"id":"b1","permission_decision":{"decision":"accept"}}]`))
		require.Equal(t, domain.ToolFailed, denied(`[{"id":"other","permission_decision":{"decision":"reject"}}]`))
		require.Equal(t, domain.ToolFailed, denied(`[{"id":"b1","non_execution_kind":"user-rejected"}, 3, {"permission_decision":4}]`))
		require.Equal(t, domain.ToolFailed, denied(`"odd"`))
	})
	t.Run("denied, as announced before", func(t *testing.T) {
		p := events(t, bash, `{"type":"system","subtype":"permission_denied","tool_name":"Bash","tool_use_id":"b1","message":"not granted"}`,
			user(`{"type":"tool_result","tool_use_id":"b1","is_error":true,"content":"not granted"}`))
		require.Equal(t, domain.Permission{ToolID: "b1", Tool: "Bash", Decision: "deny", Reason: "not granted"}, p.events[1])
		require.Equal(t, domain.ToolDenied, p.events[2].(domain.ToolResult).Status)
	})
}

func TestFileChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		tool, input, rest string
		want              []domain.FileEdit
	}{
		"new file":      {"Write", `{"file_path":"/w/a"}`, `"tool_use_result":{"type":"create","filePath":"/w/b"}`, []domain.FileEdit{{Path: "/w/b", Kind: "add"}}},
		"overwritten":   {"Write", `{"file_path":"/w/a"}`, `"tool_use_result":{"type":"update","filePath":"/w/a"}`, []domain.FileEdit{{Path: "/w/a", Kind: "update"}}},
		"edit":          {"Edit", `{"file_path":"/w/a"}`, `"tool_use_result":{"filePath":"/w/a"}`, []domain.FileEdit{{Path: "/w/a", Kind: "update"}}},
		"notebook":      {"NotebookEdit", `{"notebook_path":"/w/n"}`, `"tool_use_result":{"notebook_path":"/w/n"}`, []domain.FileEdit{{Path: "/w/n", Kind: "update"}}},
		"of a subagent": {"Write", `{"file_path":"/w/a"}`, `"parent_tool_use_id":"t"`, []domain.FileEdit{{Path: "/w/a", Kind: "update"}}},
		"no path":       {"Write", `{}`, `"tool_use_result":"?"`, nil},
		"not an edit":   {"Read", `{"file_path":"/w/a"}`, `"tool_use_result":{"filePath":"/w/a"}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			call := assistant(`{"type":"tool_use","id":"e","name":"` + tc.tool + `","input":` + tc.input + `}`)
			p := events(t, call, `{"type":"user",`+tc.rest+`,"message":{"content":[{"type":"tool_result","tool_use_id":"e","content":"ok"}]}}`)
			var got []domain.FileEdit
			for _, c := range of[domain.FileChange](p.events) {
				require.Equal(t, "e", c.ID)
				got = append(got, c.Changes...)
			}
			require.Equal(t, tc.want, got)
			p = events(t, call, `{"type":"user",`+tc.rest+`,"message":{"content":[{"type":"tool_result","is_error":true,"tool_use_id":"e","content":"no"}]}}`)
			require.Empty(t, of[domain.FileChange](p.events), "a failed edit changes nothing")
		})
	}
	t.Run("a subagent's new file", func(t *testing.T) {
		p := events(t, assistant(`{"type":"tool_use","id":"e","name":"Write","input":{"file_path":"/w/a"}}`),
			user(`{"type":"tool_result","tool_use_id":"e","content":"File created successfully at: /w/a"}`))
		require.Equal(t, "add", of[domain.FileChange](p.events)[0].Changes[0].Kind)
	})
}

func TestTodo(t *testing.T) {
	list := `{"type":"tool_use","id":"t","name":"TodoWrite","input":{"todos":[{"content":"a","status":"completed"},{"status":"pending","content":"b","activeForm":"b-ing"}]}}`
	p := events(t, assistant(list))
	require.Len(t, p.events, 2)
	require.Equal(t, domain.Todo{Items: []domain.TodoItem{{Text: "a", Status: "completed"}, {Text: "b", Status: "pending"}}}, p.events[1])

	only[domain.ToolCall](t, events(t, assistant(`{"type":"tool_use","id":"t","name":"TodoWrite","input":{"todos":"none"}}`)))
	only[domain.ToolCall](t, events(t, strings.Replace(assistant(list), `"parent_tool_use_id":null`, `"parent_tool_use_id":"sub"`, 1)))
}

func TestNotices(t *testing.T) {
	for line, want := range map[string]domain.Notice{
		`{"type":"system","subtype":"api_retry","attempt":2,"max_retries":10,"retry_delay_ms":1500,"error_status":529,"error":"overloaded"}`: {
			Class: "retry", Message: "the model's API failed with status 529: overloaded; retry 2 of 10", Attempt: 2, Delay: 1500 * time.Millisecond},
		`{"type":"system","subtype":"compact_boundary","compact_metadata":{"trigger":"auto","pre_tokens":9,"post_tokens":3}}`: {
			Class: "compaction", Message: "the conversation was compacted from 9 to 3 tokens: auto"},
		`{"type":"system","subtype":"compact_boundary"}`:                                                                {Class: "compaction", Message: "the conversation was compacted"},
		`{"type":"system","subtype":"status","status":"compacting"}`:                                                    {Class: "compaction", Message: "compacting the conversation"},
		`{"type":"system","subtype":"status","status":null,"compact_result":"failed","compact_error":"too_few"}`:        {Class: "warning", Message: "the compaction failed: too_few"},
		`{"type":"system","subtype":"status","status":null,"permissionMode":"plan"}`:                                    {Class: "info", Message: "permission mode: plan"},
		`{"type":"system","subtype":"informational","content":"hey","level":"info"}`:                                    {Class: "info", Message: "hey"},
		`{"type":"system","subtype":"informational","content":"hey","level":"warning"}`:                                 {Class: "warning", Message: "hey"},
		`{"type":"system","subtype":"model_refusal_no_fallback","content":"refused"}`:                                   {Class: "warning", Message: "refused"},
		`{"type":"system","subtype":"hook_response","hook_name":"Stop","outcome":"error","stderr":"e\n","exit_code":2}`: {Class: "warning", Message: "hook Stop: error (exit code 2): e"},
		`{"type":"rate_limit_event","rate_limit_info":{"status":"allowed_warning","rateLimitType":"five_hour","utilization":0.915,"resetsAt":1795989385}}`: {
			Class: "rate_limit", Message: "rate limit five_hour: allowed_warning, 92 % used, resets at 2026-11-29T21:56:25Z"},
		`{"type":"conversation_reset","new_conversation_id":"x"}`:                                                  {Class: "info", Message: "the conversation was reset; a new one begins"},
		`{"type":"user","message":{"content":"<local-command-stdout>x</local-command-stdout>"}}`:                   {Class: "info", Message: "<local-command-stdout>x</local-command-stdout>"},
		user(`{"type":"text","text":"[Request interrupted by user]"}`):                                             {Class: "info", Message: "[Request interrupted by user]"},
		`{"type":"system","subtype":"task_notification","task_id":"k","tool_use_id":"gone","status":"failed"}`:     {Class: "info", Message: "task k failed"},
		`{"type":"system","subtype":"task_started","task_id":"k","tool_use_id":"gone","description":"slow thing"}`: {Class: "info", Message: "task k started: slow thing"},
	} {
		require.Equal(t, want, only[domain.Notice](t, events(t, line)), line)
	}
	t.Run("an absurd delay does not wrap around", func(t *testing.T) {
		n := only[domain.Notice](t, events(t, `{"type":"system","subtype":"api_retry","attempt":1e300,"retry_delay_ms":1e300}`))
		require.Positive(t, n.Delay)
		require.Positive(t, n.Attempt)
	})
}

func TestLeftOut(t *testing.T) {
	for _, line := range []string{
		`{"type":"keep_alive"}`, `{"type":"control_cancel_request","request_id":"x"}`, `{"type":"command_lifecycle"}`,
		`{"type":"control_response","response":{"subtype":"success","request_id":"x"}}`,
		`{"type":"system","subtype":"thinking_tokens"}`, `{"type":"system","subtype":"task_updated"}`,
		`{"type":"system","subtype":"background_tasks_changed","tasks":[]}`, `{"type":"system","subtype":"hook_started"}`,
		`{"type":"system","subtype":"ui_invalidate","event":"ui.render"}`, `{"type":"system","subtype":"status","status":"requesting"}`,
		`{"type":"system","subtype":"status","status":null,"compact_result":"success"}`,
		`{"type":"system","subtype":"session_state_changed","state":"running"}`, ``, `   `, "\r",
	} {
		p := events(t, line)
		require.Empty(t, p.events, line)
		require.Empty(t, p.write, line)
		require.Zero(t, p.closed, line)
	}
}

func TestUnknownIsRaw(t *testing.T) {
	for line, name := range map[string]string{
		`{"type":"prompt_suggestion","text":"x"}`:             "prompt_suggestion",
		`{"type":"system","subtype":"session_writes_lost"}`:   "system/session_writes_lost",
		`{"type":"system","subtype":"status","status":"odd"}`: "system/status",
		`{"type":"system"}`: "system",
		`{"type":"ASSISTANT","message":{"content":"x"}}`: "ASSISTANT",
		`{"Type":"result","subtype":"success"}`:          "/success",
		`{"type":5}`:                                     "",
		`{}`:                                             "",
		`{ "type" : "x" , "n" : 1.50 }`:                  "x",
		`{"type":"control_request","request":{"subtype":"x"}}`:  "control_request",
		`{"type":"control_request","request_id":7,"request":1}`: "control_request",
	} {
		require.Equal(t, domain.Raw{Type: name, JSON: []byte(line)}, only[domain.Raw](t, events(t, line)), line)
	}
	require.Equal(t, "{\"a\":\"\xff\"}", string(only[domain.Raw](t, events(t, "{\"a\":\"\xff\"}")).JSON), "verbatim")
}

func TestHostileLines(t *testing.T) {
	text := assistant(`{"type":"text","text":"x"}`)
	one := []domain.ReplyEvent{domain.Text{Text: "x"}}
	logged := func(line string) []domain.ReplyEvent {
		return []domain.ReplyEvent{domain.Log{Stream: "stdout", Line: line}}
	}
	deep := strings.Repeat("[", 100_000)
	for name, tc := range map[string]struct {
		line string
		want []domain.ReplyEvent
	}{
		"CRLF":                     {text + "\r", one},
		"byte order mark":          {"\uFEFF" + text, one},
		"space around":             {" \t" + text + "  ", one},
		"several objects":          {text + text + " " + text, []domain.ReplyEvent{one[0], one[0], one[0]}},
		"text behind an object":    {text + " and so on", append(one[:1:1], logged("and so on")...)},
		"cut":                      {text[:len(text)-5], logged(text[:len(text)-5])},
		"cut second object":        {text + `{"type":"ass`, append(one[:1:1], logged(`{"type":"ass`)...)},
		"no JSON":                  {"Warning: no stdin", logged("Warning: no stdin")},
		"not an object":            {"[1,2]", logged("[1,2]")},
		"NUL":                      {"\x00{}\x00", logged("\x00{}\x00")},
		"NUL in a string":          {"{\"type\":\"\x00\"}", logged("{\"type\":\"\x00\"}")},
		"invalid UTF-8, no JSON":   {"a\xff\xfeb", logged("a\uFFFDb")},
		"invalid UTF-8 in a text":  {assistant("{\"type\":\"text\",\"text\":\"a\xffb\\n\"}"), []domain.ReplyEvent{domain.Text{Text: "a\uFFFDb\n"}}},
		"a lone surrogate":         {assistant(`{"type":"text","text":"a\ud800b"}`), []domain.ReplyEvent{domain.Text{Text: "a\uFFFDb"}}},
		"an escaped type":          {strings.Replace(text, `"assistant"`, `"assist\u0061nt"`, 1), one},
		"an escaped name":          {strings.Replace(text, `"message"`, `"mess\u0061ge"`, 1), one},
		"deep":                     {deep, logged(deep)},
		"deep within an object":    {`{"a":` + deep, logged(`{"a":` + deep)},
		"deep within a known":      {`{"message":` + deep, logged(`{"message":` + deep)},
		"duplicate types":          {strings.Replace(text, `"type":"assistant"`, `"type":"user","type":"assistant"`, 1), one},
		"duplicate messages":       {strings.Replace(text, `"message"`, `"message":{"content":[{"type":"text","text":"y"}]},"message"`, 1), one},
		"duplicate contents":       {strings.Replace(text, `"content"`, `"content":[{"type":"text","text":"y"}],"content"`, 1), one},
		"a name without a value":   {`{"type"}`, logged(`{"type"}`)},
		"a name that is no string": {`{1:2}`, logged(`{1:2}`)},
		"the wrong end":            {`{"type":"x"]`, logged(`{"type":"x"]`)},
	} {
		t.Run(name, func(t *testing.T) {
			p := events(t, tc.line, text)
			require.Equal(t, append(tc.want[:len(tc.want):len(tc.want)], one[0]), p.events, "and the next line is as ever")
		})
	}
	t.Run("input with invalid UTF-8 is still JSON", func(t *testing.T) {
		c := only[domain.ToolCall](t, events(t, assistant("{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"Bash\",\"input\":{\"command\":\"\xff\"}}")))
		require.Equal(t, `{"command":"`+"\uFFFD"+`"}`, string(c.Input))
	})
	t.Run("a line does not blow up", func(t *testing.T) {
		p := events(t, strings.Repeat(`{}`, 100_000))
		require.Less(t, len(p.events), 5_000)
		last, ok := p.events[len(p.events)-1].(domain.Log)
		require.True(t, ok)
		require.Equal(t, 2*100_000, 2*(len(p.events)-1)+len(last.Line), "nothing is lost")

		line := assistant(strings.TrimSuffix(strings.Repeat(`{"type":"text","text":""},`, 100_000), ","))
		require.Equal(t, line, string(only[domain.Raw](t, events(t, line)).JSON))
	})
	t.Run("fields of unexpected kinds cost themselves alone", func(t *testing.T) {
		p := events(t, initA, `{"type":"result","subtype":"success","is_error":false,"result":"r","session_id":"`+conversationA+`","usage":[],"total_cost_usd":"free","stop_reason":{},"permission_denials":7,"errors":true}`)
		require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
		require.Equal(t, "r", p.claim.Text)
		require.Nil(t, p.claim.CostUSD)
		require.Zero(t, p.claim.Usage)
	})
}

func TestProgress(t *testing.T) {
	sub := `{"type":"assistant","parent_tool_use_id":"p","message":{"content":[{"type":"tool_use","id":"b1","name":"Bash","input":{}}]}}`
	t.Run("heartbeat", func(t *testing.T) {
		p := events(t, sub, `{"type":"tool_progress","tool_use_id":"b1-heartbeat-0","parent_tool_use_id":"b1","elapsed_time_seconds":30}`)
		require.Equal(t, domain.ToolUpdate{ID: "b1", Elapsed: 30 * time.Second, Parent: "p"}, p.events[1])
	})
	t.Run("of a known tool", func(t *testing.T) {
		p := events(t, bash, sub, `{"type":"tool_progress","tool_use_id":"b1","parent_tool_use_id":"p","elapsed_time_seconds":1}`)
		require.Equal(t, domain.ToolUpdate{ID: "b1", Elapsed: time.Second, Parent: "p"}, p.events[2])
	})
	t.Run("task", func(t *testing.T) {
		p := events(t, sub, `{"type":"system","subtype":"task_progress","tool_use_id":"b1","description":"Running","usage":{"duration_ms":240}}`,
			user(`{"type":"tool_result","tool_use_id":"b1","content":""}`),
			`{"type":"system","subtype":"task_notification","task_id":"k","tool_use_id":"b1","status":"completed","summary":"done"}`)
		require.Equal(t, domain.ToolUpdate{ID: "b1", Output: "Running", Elapsed: 240 * time.Millisecond, Parent: "p"}, p.events[1])
		require.Equal(t, domain.Notice{Class: domain.NoticeInfo, Message: "task k completed: done"}, p.events[3], "a call that ended gets no update")
	})
}

func TestPermissionRequest(t *testing.T) {
	p := events(t, initA, bash, denyMe, user(`{"type":"tool_result","tool_use_id":"b1","is_error":true,"content":"no"}`), okA)
	asks := of[domain.Permission](p.events)
	require.Equal(t, domain.Permission{RequestID: "r1", ToolID: "b1", Tool: "Bash", Input: []byte(`{"command":"ls"}`)}, asks[0])
	require.Equal(t, "deny", asks[1].Decision)
	require.Equal(t, "r1", asks[1].RequestID)
	require.Equal(t, domain.ToolDenied, of[domain.ToolResult](p.events)[0].Status)
	require.True(t, strings.HasSuffix(p.write, "}\n"))
	var answer struct {
		Type     string
		Response struct {
			Subtype   string
			RequestID string `json:"request_id"`
			Response  map[string]string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(p.write), &answer))
	require.Equal(t, "control_response", answer.Type)
	require.Equal(t, "success", answer.Response.Subtype)
	require.Equal(t, "r1", answer.Response.RequestID)
	require.Equal(t, "deny", answer.Response.Response["behavior"])
	require.Contains(t, answer.Response.Response["message"], "Caisson")
	require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome, "a denial after which the agent went on ends nothing")

	t.Run("an id cannot break out of the answer", func(t *testing.T) {
		p := events(t, strings.Replace(denyMe, `"r1"`, `"x\"}}\n{\"type\":\"user\"\u0000"`, 1))
		require.Equal(t, 1, strings.Count(p.write, "\n"))
		require.True(t, json.Valid([]byte(p.write)), p.write)
	})
	t.Run("two on one line", func(t *testing.T) {
		require.Equal(t, 2, strings.Count(events(t, denyMe+denyMe).write, "\n"))
	})
	t.Run("nothing is written to a closed stdin", func(t *testing.T) {
		require.Empty(t, events(t, okA, denyMe).write)
	})
	t.Run("another kind of request", func(t *testing.T) {
		line := `{"type":"control_request","request_id":"m","request":{"subtype":"mcp_message"}}`
		p := events(t, line)
		require.Equal(t, domain.Raw{Type: "control_request/mcp_message", JSON: []byte(line)}, only[domain.Raw](t, p))
		require.JSONEq(t, `{"type":"control_response","response":{"subtype":"error","request_id":"m","error":"Caisson does not answer requests of this kind"}}`, p.write)
	})
}

func TestDeniedOutcome(t *testing.T) {
	aborted := func(denials string) string {
		return `{"type":"result","subtype":"error_during_execution","is_error":true,"terminal_reason":"aborted_tools","errors":["[diag]"],"permission_denials":` + denials + `,"session_id":"` + conversationA + `"}`
	}
	interrupted := `{"type":"control_response","response":{"subtype":"success","request_id":"caisson-interrupt","response":{}}}`
	claim := events(t, initA, aborted(`[{"tool_name":"Bash"}]`)).claim
	require.Equal(t, domain.OutcomeDenied, claim.Outcome)
	require.Equal(t, "permission_denied", claim.Error.Class)
	require.Contains(t, claim.Error.Message, "Bash")

	for name, lines := range map[string][]string{
		"nothing was denied": {aborted(`[]`)},
		"we interrupted":     {interrupted, aborted(`[{"tool_name":"Bash"}]`)},
		"odd denials":        {aborted(`[7]`)},
	} {
		claim := events(t, append([]string{initA}, lines...)...).claim
		require.Equal(t, domain.OutcomeFailed, claim.Outcome, name)
		require.Equal(t, "interrupted", claim.Error.Class, name)
		require.Equal(t, "the turn was interrupted: [diag]", claim.Error.Message, name)
		require.Equal(t, domain.StopCancelled, claim.StopReason, name)
	}
}

func TestResult(t *testing.T) {
	t.Run("completed", func(t *testing.T) {
		p := events(t, initA, okA)
		require.Equal(t, &domain.Final{
			Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn, Text: "fine", ConversationID: conversationA,
			Usage:   domain.Usage{InputTokens: 7, CachedInputTokens: 2, CacheWriteTokens: 4, OutputTokens: 8, ReasoningTokens: 3},
			CostUSD: ptr(0.5),
		}, p.claim)
		require.True(t, p.done)
		require.Equal(t, 1, p.closed)
		require.Equal(t, domain.UsageReport{Usage: p.claim.Usage}, p.events[1])
	})
	t.Run("none", func(t *testing.T) {
		p := events(t, initA, bash)
		require.Nil(t, p.claim)
		require.False(t, p.done)
	})
	t.Run("several: the last decides, usage adds up, stdin is closed once", func(t *testing.T) {
		models := func(n, cost string) string {
			return `"model_usage_since_last_result":{"m":{"inputTokens":` + n + `,"costUSD":` + cost + `},"n":{"outputTokens":1,"cacheReadInputTokens":5,"cacheCreationInputTokens":6,"thinkingTokens":1,"costUSD":0.25}}`
		}
		p := events(t, initA,
			`{"type":"result","subtype":"success","is_error":true,"result":"bad",`+models("10", "1")+`,"total_cost_usd":1.25,"usage":{"input_tokens":99}}`,
			`{"type":"result","subtype":"success","is_error":false,"result":"good",`+models("20", "2")+`,"total_cost_usd":3.5,"session_id":"`+conversationA+`"}`)
		require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
		require.Nil(t, p.claim.Error)
		require.Equal(t, "good", p.claim.Text)
		require.Equal(t, domain.Usage{InputTokens: 30 + 2*11, CachedInputTokens: 10, CacheWriteTokens: 12, OutputTokens: 2, ReasoningTokens: 2}, p.claim.Usage)
		require.InDelta(t, 3.5, *p.claim.CostUSD, 1e-9)
		require.Equal(t, 1, p.closed)
		require.Len(t, of[domain.UsageReport](p.events), 2)
	})
	t.Run("several, in a release without model_usage_since_last_result", func(t *testing.T) {
		p := events(t, initA, okA, strings.Replace(okA, `:0.5`, `:0.75`, 1))
		require.EqualValues(t, 14, p.claim.Usage.InputTokens)
		require.InDelta(t, 0.75, *p.claim.CostUSD, 1e-9, "cumulative for the process")
		p = resumed(t, conversationA, initA, okA)
		require.Nil(t, p.claim.CostUSD, "it includes the earlier turns")
	})
	t.Run("a bad result after a good one", func(t *testing.T) {
		p := events(t, initA, okA, `{"type":"result","subtype":"error_max_turns","is_error":true,"terminal_reason":"max_turns","errors":["too many"]}`)
		require.Equal(t, domain.OutcomeFailed, p.claim.Outcome)
		require.Equal(t, "too many", p.claim.Error.Message)
	})
	t.Run("is_error beats success, and an unknown subtype is no success", func(t *testing.T) {
		for _, line := range []string{
			`{"type":"result","subtype":"success","is_error":true,"result":"x"}`,
			`{"type":"result","subtype":"error_of_the_future","is_error":false,"errors":["x"]}`,
			`{"type":"result","errors":["x"]}`,
		} {
			claim := events(t, line).claim
			require.Equal(t, domain.OutcomeFailed, claim.Outcome, line)
			require.Equal(t, &domain.TurnError{Class: domain.ErrorClassAgent, Message: "x"}, claim.Error, line)
		}
	})
	t.Run("the last word without a result text is the assistant's", func(t *testing.T) {
		p := events(t, assistant(`{"type":"text","text":"one"}`), assistant(`{"type":"text","text":"two"}`),
			`{"type":"assistant","parent_tool_use_id":"s","message":{"content":[{"type":"text","text":"sub"}]}}`,
			`{"type":"result","subtype":"error_max_turns","is_error":true,"errors":["e"]}`)
		require.Equal(t, "two", p.claim.Text)
	})
	t.Run("classes from the status", func(t *testing.T) {
		for status, want := range map[int]domain.TurnError{
			400: {Class: "invalid_request"}, 401: {Class: "authentication_failed"}, 403: {Class: "authentication_failed"},
			404: {Class: "model_not_found"}, 413: {Class: "invalid_request"}, 429: {Class: "rate_limit", Retryable: true},
			500: {Class: "server_error", Retryable: true}, 529: {Class: "overloaded", Retryable: true}, 0: {Class: "agent"},
		} {
			claim := events(t, fmt.Sprintf(`{"type":"result","subtype":"success","is_error":true,"result":"m","api_error_status":%d}`, status)).claim
			want.Message = "m"
			require.Equal(t, &want, claim.Error, status)
		}
	})
	t.Run("a failure from which the agent recovered says nothing about the next", func(t *testing.T) {
		failed := `{"type":"assistant","error":"rate_limit","is_api_error_message":true,"message":{"content":[]}}`
		bad := `{"type":"result","subtype":"success","is_error":true,"result":"m"}`
		require.Equal(t, "rate_limit", events(t, failed, bad).claim.Error.Class)
		require.Equal(t, "agent", events(t, failed, assistant(`{"type":"text","text":"x"}`), bad).claim.Error.Class)
		require.Equal(t, "agent", events(t, failed, bad, bad).claim.Error.Class)
	})
	t.Run("refusal", func(t *testing.T) {
		claim := events(t, `{"type":"result","subtype":"success","is_error":true,"result":"m","stop_reason":"refusal"}`).claim
		require.Equal(t, "refusal", claim.Error.Class)
		require.Equal(t, domain.StopRefusal, claim.StopReason)
	})
	t.Run("absurd numbers do not wrap around", func(t *testing.T) {
		claim := events(t, `{"type":"result","subtype":"success","is_error":false,"result":"","usage":{"input_tokens":1e300,"output_tokens":-5,"cache_read_input_tokens":99999999999999999999999}}`).claim
		require.Positive(t, claim.Usage.InputTokens)
		require.Zero(t, claim.Usage.OutputTokens)
	})
}

func TestConversation(t *testing.T) {
	t.Run("announced once", func(t *testing.T) {
		p := events(t, initA, initA, okA)
		require.Equal(t, []domain.ConversationStarted{{ConversationID: conversationA, Model: "m", AgentVersion: "2.1.328"}},
			of[domain.ConversationStarted](p.events))
	})
	t.Run("another model is news", func(t *testing.T) {
		p := events(t, initA, strings.Replace(initA, `"m"`, `"n"`, 1))
		require.Len(t, of[domain.ConversationStarted](p.events), 2)
	})
	t.Run("resumed as asked", func(t *testing.T) {
		p := resumed(t, conversationA, initA, okA)
		require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
		require.Equal(t, conversationA, p.claim.ConversationID)
	})
	t.Run("another one than asked for", func(t *testing.T) {
		for name, lines := range map[string][]string{
			"in init and result": {initB, okB}, "in the result alone": {initA, okB}, "without init": {okB},
			"in init alone": {initB, okA}, "no UUID": {strings.Replace(initA, conversationA, "../../x", 1), okA},
		} {
			p := resumed(t, conversationA, lines...)
			require.Equal(t, domain.OutcomeFailed, p.claim.Outcome, name)
			require.Equal(t, domain.ErrorClassConversation, p.claim.Error.Class, name)
			require.False(t, p.claim.Error.Retryable, name)
			require.Equal(t, conversationA, p.claim.ConversationID, name+": the session keeps its own")
			for _, s := range of[domain.ConversationStarted](p.events) {
				require.NotEqual(t, conversationB, s.ConversationID, name)
			}
			require.Len(t, of[domain.Notice](p.events), 1, name)
		}
	})
	t.Run("after a reset the new one is adopted", func(t *testing.T) {
		reset := `{"type":"conversation_reset","new_conversation_id":"0","session_id":"` + conversationA + `"}`
		for _, lines := range [][]string{{reset, initB, okB}, {initA, reset, initB, okB}, {initA, reset, okB}} {
			p := resumed(t, conversationA, lines...)
			require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
			require.Equal(t, conversationB, p.claim.ConversationID)
			started := of[domain.ConversationStarted](p.events)
			require.Equal(t, conversationB, started[len(started)-1].ConversationID)
		}
		p := resumed(t, conversationA, reset, initB, initA, okA)
		require.Equal(t, domain.OutcomeFailed, p.claim.Outcome, "one reset allows one change")
	})
	t.Run("a new one takes the agent's id", func(t *testing.T) {
		p := events(t, initB, okB)
		require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
		require.Equal(t, conversationB, p.claim.ConversationID)
	})
	t.Run("an id that is no UUID is never adopted", func(t *testing.T) {
		p := events(t, strings.Replace(initA, conversationA, "--help", 1), strings.Replace(okA, conversationA, "--help", 1))
		require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
		require.Empty(t, p.claim.ConversationID)
		require.Empty(t, of[domain.ConversationStarted](p.events)[0].ConversationID)
	})
	t.Run("a failed start leaves nothing to resume", func(t *testing.T) {
		fail := `{"type":"result","subtype":"error_during_execution","is_error":true,"session_id":"` + conversationB + `","errors":["e"],"startup_failure_reason":"bypass_root"}`
		p := events(t, fail)
		require.Empty(t, p.claim.ConversationID)
		require.Empty(t, of[domain.ConversationStarted](p.events))
		require.Equal(t, "bypass_root", p.claim.Error.Class)
	})
}

func TestIdleClosesStdin(t *testing.T) {
	state := func(s string) string {
		return `{"type":"system","subtype":"session_state_changed","state":"` + s + `"}`
	}
	p := events(t, state("running"), initA, state("idle"))
	require.Equal(t, 1, p.closed, "a turn whose result never came still ends")
	require.False(t, p.done)
	require.Zero(t, events(t, state("idle")).closed, "before the turn has begun")
	require.Equal(t, 1, events(t, state("running"), initA, okA, state("idle")).closed)
}

func TestInterrupt(t *testing.T) {
	p := claude.New().NewParser(ports.TurnRequest{ConversationID: conversationA})
	require.Equal(t, "{\"type\":\"control_request\",\"request_id\":\"caisson-interrupt\",\"request\":{\"subtype\":\"interrupt\"}}\n", string(p.Interrupt()))
}
