package claude_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// oracle is what a stream says, found out in the simplest way there is: every
// line into a map.
type oracle struct {
	texts   []domain.Text
	calls   []call
	results []toolEnd
	ids     []string // of the conversation, from init
	ends    []map[string]any
	noJSON  int // lines that are no JSON object
	ask     int // permission requests
}

type call struct {
	id, name, parent string
	input            any
}

type toolEnd struct {
	id     string
	failed bool
	text   any
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

func (o *oracle) read(line []byte) {
	var event map[string]any
	if json.Unmarshal(line, &event) != nil || event == nil {
		o.noJSON++
		return
	}
	parent := str(event["parent_tool_use_id"])
	message, _ := event["message"].(map[string]any)
	blocks, _ := message["content"].([]any)
	switch event["type"] {
	case "assistant":
		for _, b := range blocks {
			b, _ := b.(map[string]any)
			switch b["type"] {
			case "text":
				o.texts = append(o.texts, domain.Text{Text: str(b["text"]), Parent: parent})
			case "tool_use":
				o.calls = append(o.calls, call{str(b["id"]), str(b["name"]), parent, b["input"]})
			}
		}
	case "user":
		for _, b := range blocks {
			b, _ := b.(map[string]any)
			if b["type"] == "tool_result" {
				o.results = append(o.results, toolEnd{str(b["tool_use_id"]), b["is_error"] == true, b["content"]})
			}
		}
	case "system":
		if id := str(event["session_id"]); event["subtype"] == "init" && !slices.Contains(o.ids, id) {
			o.ids = append(o.ids, id)
		}
	case "control_request":
		if r, _ := event["request"].(map[string]any); r["subtype"] == "can_use_tool" {
			o.ask++
		}
	case "result":
		o.ends = append(o.ends, event)
	}
}

// usage adds up what the results of the stream report.
func (o *oracle) usage() (u domain.Usage) {
	count := func(m map[string]any, k string) int64 { f, _ := m[k].(float64); return int64(f) }
	for _, end := range o.ends {
		if models, ok := end["model_usage_since_last_result"].(map[string]any); ok {
			for _, m := range models {
				m := m.(map[string]any)
				cached, written := count(m, "cacheReadInputTokens"), count(m, "cacheCreationInputTokens")
				u = u.Add(domain.Usage{
					InputTokens: count(m, "inputTokens") + cached + written, CachedInputTokens: cached, CacheWriteTokens: written,
					OutputTokens: count(m, "outputTokens"), ReasoningTokens: count(m, "thinkingTokens"),
				})
			}
			continue
		}
		m := end["usage"].(map[string]any)
		cached, written := count(m, "cache_read_input_tokens"), count(m, "cache_creation_input_tokens")
		u = u.Add(domain.Usage{
			InputTokens: count(m, "input_tokens") + cached + written, CachedInputTokens: cached, CacheWriteTokens: written,
			OutputTokens: count(m, "output_tokens"),
		})
	}
	return u
}

func (o *oracle) outcome(r recording) domain.Outcome {
	turn := r.turn()
	switch {
	case len(o.ends) == 0 && r.exit != 0:
		return domain.OutcomeExited
	case len(o.ends) == 0:
		return domain.OutcomeProtocolError
	case turn.Resume && len(o.ids) > 0 && o.ids[0] != turn.ConversationID:
		return domain.OutcomeFailed
	}
	last := o.ends[len(o.ends)-1]
	denials, _ := last["permission_denials"].([]any)
	switch {
	case last["is_error"] == false && last["subtype"] == "success":
		return domain.OutcomeCompleted
	case last["terminal_reason"] == "aborted_tools" && len(denials) > 0:
		return domain.OutcomeDenied
	}
	return domain.OutcomeFailed
}

func TestRecordings(t *testing.T) {
	outcomes := map[domain.Outcome]int{}
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			var want oracle
			for _, line := range lines(r.stdout) {
				if len(line) > 0 {
					want.read(line)
				}
			}
			got := run(t, r.turn(), r.exitStatus(), lines(r.stdout)...)

			require.Equal(t, want.texts, of[domain.Text](got.events))
			var calls []call
			for _, c := range of[domain.ToolCall](got.events) {
				var input any
				require.NoError(t, json.Unmarshal(c.Input, &input))
				calls = append(calls, call{c.ID, c.Name, c.Parent, input})
				require.NotEmpty(t, c.Kind)
			}
			require.True(t, reflect.DeepEqual(want.calls, calls), "%v\n%v", want.calls, calls)
			results := of[domain.ToolResult](got.events)
			require.Len(t, results, len(want.results))
			for i, w := range want.results {
				require.Equal(t, w.id, results[i].ID)
				require.Equal(t, w.failed, results[i].Status != domain.ToolCompleted)
				if text, ok := w.text.(string); ok {
					require.Equal(t, text, results[i].Output)
				}
			}
			require.Len(t, of[domain.Log](got.events), want.noJSON)
			for _, raw := range of[domain.Raw](got.events) {
				require.Equal(t, "control_request/hook_callback", raw.Type, "everything else that was recorded is known")
			}
			require.Len(t, of[domain.Permission](got.events), 2*want.ask+strings.Count(string(r.stdout), `"subtype":"permission_denied"`))
			require.Len(t, of[domain.UsageReport](got.events), len(want.ends))
			require.Equal(t, len(want.ends) > 0, got.done)
			require.Equal(t, len(want.ends) > 0, got.closed == 1, "stdin is closed once, at the first result")
			require.Equal(t, len(want.ends) > 0, got.claim != nil)

			final := domain.Conclude(got.claim, domain.TurnEnd{Exit: r.exitStatus()})
			require.Equal(t, want.outcome(r), final.Outcome)
			outcomes[final.Outcome]++
			if final.Outcome != domain.OutcomeCompleted {
				require.NotEmpty(t, final.Error.Class)
				require.NotEmpty(t, final.Error.Message)
			}
			if got.claim != nil {
				require.Equal(t, want.usage(), final.Usage)
				last := want.ends[len(want.ends)-1]
				if text, ok := last["result"].(string); ok {
					require.Equal(t, text, final.Text)
				}
				if id := str(last["session_id"]); len(want.ids) > 0 && final.Error == nil {
					require.Equal(t, id, final.ConversationID)
				}
			}
			started := of[domain.ConversationStarted](got.events)
			if final.Error == nil || final.Error.Class != domain.ErrorClassConversation {
				var ids []string
				for _, s := range started {
					ids = append(ids, s.ConversationID)
					require.Equal(t, "2.1.328", s.AgentVersion)
					require.NotEmpty(t, s.Model)
				}
				require.Equal(t, want.ids, ids)
			}
		})
	}
	// The recordings have all of these, or this test proves little.
	for _, o := range []domain.Outcome{
		domain.OutcomeCompleted, domain.OutcomeFailed, domain.OutcomeDenied, domain.OutcomeExited, domain.OutcomeProtocolError,
	} {
		require.Positive(t, outcomes[o], o)
	}
}

// TestRecordedEnds pins the class, the retry advice and the stop reason of
// every recorded failure.
func TestRecordedEnds(t *testing.T) {
	type end struct {
		class     string
		retryable bool
		stop      domain.StopReason
	}
	want := map[string]end{
		"err_400_credit":                      {class: "billing_error"},
		"err_400_invalid":                     {class: "invalid_request"},
		"err_400_prompt_too_long":             {class: "prompt_too_long"},
		"err_401_on_second_request":           {class: "authentication_failed"},
		"err_401_output_json_retries0":        {class: "authentication_failed"},
		"err_401_retries0":                    {class: "authentication_failed"},
		"err_403":                             {class: "authentication_failed"},
		"err_404_model":                       {class: "model_not_found"},
		"err_429_retries1":                    {class: "rate_limit", retryable: true},
		"err_429_unified":                     {class: "rate_limit", retryable: true},
		"err_529_fallback_model":              {class: "overloaded", retryable: true},
		"err_conn_refused":                    {class: "connection", retryable: true},
		"hang_api_timeout_ms":                 {class: "server_error", retryable: true},
		"max_budget":                          {class: "budget_exhausted"},
		"max_tokens_stop":                     {class: "max_output_tokens", stop: domain.StopMaxTokens},
		"max_turns":                           {class: "max_turns", stop: domain.StopMaxTurnRequests},
		"midstream_rst_after_block":           {class: "connection", retryable: true},
		"no_api_key":                          {class: "authentication_failed"},
		"ratelimit_rejected_dummy_oauth":      {class: "rate_limit", retryable: true},
		"root_bypass_startup_results":         {class: "bypass_root"},
		"sess_resume_after_no_persistence":    {class: domain.ErrorClassConversation},
		"sess_resume_fork":                    {class: domain.ErrorClassConversation, stop: domain.StopEndTurn},
		"sess_resume_missing_startup_results": {class: domain.ErrorClassConversation},
		"sigint_midtext":                      {class: "interrupted", stop: domain.StopCancelled},
		"sj_5mb_input_line":                   {class: "prompt_too_long"},
		"sj_perm_deny_interrupt":              {class: "permission_denied", stop: domain.StopCancelled},
		"sj_resume_missing":                   {class: domain.ErrorClassConversation},
	}
	got := map[string]end{}
	for _, r := range recordings(t) {
		p := run(t, r.turn(), r.exitStatus(), lines(r.stdout)...)
		if p.claim != nil && p.claim.Error != nil {
			got[r.name] = end{p.claim.Error.Class, p.claim.Error.Retryable, p.claim.StopReason}
		}
	}
	require.Equal(t, want, got)
}

// TestRecordedDetails checks single facts that the oracle does not know.
func TestRecordedDetails(t *testing.T) {
	parse := func(t *testing.T, name string) parsed {
		for _, r := range recordings(t) {
			if r.name == name {
				return run(t, r.turn(), r.exitStatus(), lines(r.stdout)...)
			}
		}
		t.Fatalf("no recording %s", name)
		return parsed{}
	}
	notices := func(p parsed, class domain.NoticeClass) (texts []string) {
		for _, n := range of[domain.Notice](p.events) {
			if n.Class == class {
				texts = append(texts, n.Message)
			}
		}
		return texts
	}
	t.Run("tool_ok_write_read", func(t *testing.T) {
		changes := of[domain.FileChange](parse(t, "tool_ok_write_read").events)
		require.Len(t, changes, 2)
		require.Equal(t, domain.ToolCompleted, changes[0].Status)
		require.Equal(t, []domain.FileEdit{{Path: "/workspace/hello.txt", Kind: "add"}}, changes[0].Changes)
		require.Equal(t, []domain.FileEdit{{Path: "/workspace/hello.txt", Kind: "update"}}, changes[1].Changes)
	})
	t.Run("big_edit_2mb", func(t *testing.T) {
		changes := of[domain.FileChange](parse(t, "big_edit_2mb").events)
		require.NotEmpty(t, changes)
		require.Equal(t, "update", changes[len(changes)-1].Changes[0].Kind)
	})
	t.Run("image_read", func(t *testing.T) {
		results := of[domain.ToolResult](parse(t, "image_read").events)
		require.Len(t, results, 1)
		require.Regexp(t, `^\[image image/png, \d+ bytes of base64\]$`, results[0].Output)
	})
	t.Run("sj_perm_allow", func(t *testing.T) {
		results := of[domain.ToolResult](parse(t, "sj_perm_allow").events)
		require.Equal(t, domain.ToolFailed, results[0].Status, "the line says that it was permitted")
		require.Equal(t, ptr(7), results[0].ExitCode)
	})
	for _, name := range []string{"tool_denied_default", "tool_denied_rule", "hook_blocks_tool", "sj_perm_deny"} {
		t.Run(name, func(t *testing.T) {
			results := of[domain.ToolResult](parse(t, name).events)
			require.NotEmpty(t, results)
			for _, r := range results {
				require.Equal(t, domain.ToolDenied, r.Status)
				require.Nil(t, r.ExitCode)
			}
		})
	}
	t.Run("sj_interrupt_tool", func(t *testing.T) {
		results := of[domain.ToolResult](parse(t, "sj_interrupt_tool").events)
		require.Equal(t, domain.ToolFailed, results[0].Status, "it was stopped, not denied")
	})
	t.Run("long_tool_progress", func(t *testing.T) {
		p := parse(t, "long_tool_progress")
		id := of[domain.ToolCall](p.events)[0].ID
		updates := of[domain.ToolUpdate](p.events)
		require.Len(t, updates, 3) // started, heartbeat, notification
		for _, u := range updates {
			require.Equal(t, id, u.ID)
			require.Empty(t, u.Parent)
		}
		require.Equal(t, "30s", updates[1].Elapsed.String())
	})
	t.Run("bash_timeout_2s", func(t *testing.T) {
		p := parse(t, "bash_timeout_2s")
		require.Nil(t, of[domain.ToolResult](p.events)[0].ExitCode, "it goes on in the background")
		require.Contains(t, strings.Join(notices(p, domain.NoticeInfo), "\n"), "completed (exit code 0)")
		require.InDelta(t, 0.004272, *p.claim.CostUSD, 1e-9)
	})
	t.Run("subagent_foreground", func(t *testing.T) {
		p := parse(t, "subagent_foreground")
		task := of[domain.ToolCall](p.events)[0]
		require.Equal(t, domain.ToolThink, task.Kind)
		inner := of[domain.ToolCall](p.events)[1]
		require.Equal(t, task.ID, inner.Parent)
		result := of[domain.ToolResult](p.events)[0]
		require.Equal(t, inner.ID, result.ID)
		require.Equal(t, task.ID, result.Parent)
		require.Equal(t, ptr(0), result.ExitCode)
	})
	t.Run("partial", func(t *testing.T) {
		p := parse(t, "partial")
		var deltas, texts string
		for _, d := range of[domain.TextDelta](p.events) {
			deltas += d.Text
		}
		for _, x := range of[domain.Text](p.events) {
			texts += x.Text
		}
		require.NotEmpty(t, deltas)
		require.Equal(t, texts, deltas)
	})
	t.Run("err_429_unified", func(t *testing.T) {
		retries := of[domain.Notice](parse(t, "err_429_unified").events)
		require.Equal(t, domain.NoticeRetry, retries[0].Class)
		require.Equal(t, 1, retries[0].Attempt)
		require.Equal(t, "572ms", retries[0].Delay.String())
		require.Equal(t, "the model's API failed with status 429: rate_limit; retry 1 of 1", retries[0].Message)
	})
	t.Run("ratelimit_rejected_dummy_oauth", func(t *testing.T) {
		require.Equal(t, []string{"rate limit five_hour: rejected, resets at 2026-11-29T21:56:25Z"},
			notices(parse(t, "ratelimit_rejected_dummy_oauth"), domain.NoticeRateLimit))
	})
	t.Run("compact_slash", func(t *testing.T) {
		require.Equal(t, []string{"compacting the conversation", "the conversation was compacted from 353 to 2538 tokens: manual"},
			notices(parse(t, "compact_slash"), domain.NoticeCompaction))
	})
	t.Run("sess_resume", func(t *testing.T) {
		// total_cost_usd is 0.002848: it goes on from the first turn.
		require.InDelta(t, 0.001424, *parse(t, "sess_resume").claim.CostUSD, 1e-9)
	})
	t.Run("sj_two_turns", func(t *testing.T) {
		require.InDelta(t, 0.002848, *parse(t, "sj_two_turns").claim.CostUSD, 1e-9)
	})
	t.Run("slash_clear", func(t *testing.T) {
		p := parse(t, "slash_clear")
		require.Equal(t, domain.OutcomeCompleted, p.claim.Outcome)
		require.Equal(t, "5847fe85-f4bc-4d05-b826-50993ae4fa95", p.claim.ConversationID)
	})
	t.Run("todo_write", func(t *testing.T) {
		require.Equal(t, []domain.Todo{{Items: []domain.TodoItem{{Text: "a", Status: "in_progress"}}}},
			of[domain.Todo](parse(t, "todo_write").events))
	})
	t.Run("sj_hook_callback", func(t *testing.T) {
		require.JSONEq(t, `{"type":"control_response","response":{"subtype":"error",
			"request_id":"cf8abddc-4158-419b-8df1-4bd84d0691dd","error":"Caisson does not answer requests of this kind"}}`,
			parse(t, "sj_hook_callback").write)
	})
	t.Run("hooks_include_events", func(t *testing.T) {
		require.Contains(t, notices(parse(t, "hooks_include_events"), domain.NoticeInfo),
			"hook PreToolUse:Bash: success (exit code 0): hookout")
	})
}
