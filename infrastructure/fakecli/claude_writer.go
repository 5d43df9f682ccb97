//go:build unix

package fakecli

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
)

// claudeWriter writes Claude Code's stream-json. The members and their order
// are those of the recordings in testdata/claude.
type claudeWriter struct {
	out            *lines
	session, model string
	mode           string // the permission mode
	states         bool   // session_state_changed was asked for
	config         string
	began          time.Time
	serial         int // of ids
	results        int
	streaming      string // the id of the message that deltas belong to
}

func (w *claudeWriter) nextID(prefix string) string {
	w.serial++
	return fmt.Sprintf("%s_%024d", prefix, w.serial)
}

func timestamp() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

func (w *claudeWriter) state(state string) {
	if w.states {
		w.out.emit(object{
			"type", "system", "subtype", "session_state_changed", "state", state,
			"uuid", uuid.NewString(), "session_id", w.session,
		})
	}
}

func (w *claudeWriter) init() {
	cwd, _ := os.Getwd() // "" is as good as any other if there is none
	w.out.emit(object{
		"type", "system", "subtype", "init", "cwd", cwd, "session_id", w.session,
		"tools", strings.Fields("Task Bash Edit Glob Grep NotebookEdit Read Skill TodoWrite WebFetch WebSearch Write"),
		"mcp_servers", list{}, "model", w.model, "permissionMode", w.mode,
		"slash_commands", strings.Fields("clear compact config context init review security-review"),
		"terminal_slash_commands", list{"doctor"}, "apiKeySource", "ANTHROPIC_API_KEY",
		"claude_code_version", claudeVersion, "output_style", "default",
		"agents", strings.Fields("claude Explore general-purpose Plan"), "skills", strings.Fields("verify debug"),
		"plugins", list{object{"name", "cc-plugin-privacy", "path", "builtin", "source", "cc-plugin-privacy@builtin"}},
		"capabilities", strings.Fields("interrupt_receipt_v1 msg_lifecycle_v1"),
		"analytics_disabled", true, "product_feedback_disabled", true, "uuid", uuid.NewString(),
		"memory_paths", object{"auto", filepath.Join(w.config, "projects", "fakecli", "memory") + "/"},
		"original_cwd", cwd, "additional_directories", list{},
		"messaging_socket_path", filepath.Join(os.TempDir(), "cc-socks", fmt.Sprint(os.Getpid())+".sock"),
		"fast_mode_state", "off", "fast_mode_disabled_reason", "sdk_opt_in_required",
		"per_turn_effort_active", true, "ultrathink_available", false, "ultrathink_typed_raises", false,
		"view_mode", "default",
	})
}

// message is the head of an API message.
func (w *claudeWriter) message(id string, content any) object {
	return object{
		"id", id, "type", "message", "role", "assistant", "model", w.model, "content", content,
		"stop_reason", nil, "stop_sequence", nil,
		"usage", object{
			"input_tokens", 11, "cache_creation_input_tokens", 100, "cache_read_input_tokens", 200,
			"output_tokens", 1, "service_tier", "standard",
		},
	}
}

func (w *claudeWriter) assistant(id string, blocks list, extra ...any) {
	w.out.emit(append(object{
		"type", "assistant", "message", append(w.message(id, blocks), "context_management", nil),
		"parent_tool_use_id", nil, "session_id", w.session, "uuid", uuid.NewString(),
		"timestamp", timestamp(), "request_id", fmt.Sprintf("req_fake_%d", w.serial),
	}, extra...))
}

func textBlock(text string) object { return object{"type", "text", "text", text} }

func thinkingBlock(text string) object {
	return object{"type", "thinking", "thinking", text, "signature", "c2ln"}
}

func (w *claudeWriter) text(text string) {
	if w.streaming == "" {
		w.assistant(w.nextID("msg"), list{textBlock(text)})
		return
	}
	// The whole block comes before the end of its stream.
	id := w.streaming
	w.assistant(id, list{textBlock(text)})
	w.streamEvent(id, object{"type", "content_block_stop", "index", 0})
	w.streamEvent(id, object{
		"type", "message_delta", "delta", object{"stop_reason", "end_turn", "stop_sequence", nil},
		"usage", object{"output_tokens", 42},
	})
	w.streamEvent(id, object{"type", "message_stop"})
	w.streaming = ""
}

func (w *claudeWriter) delta(piece string) {
	if w.streaming == "" {
		w.streaming = w.nextID("msg")
		w.streamEvent(w.streaming, object{"type", "message_start", "message", w.message(w.streaming, list{})},
			"ttft_ms", 1, "thinking_display", "updates")
		w.streamEvent(w.streaming, object{"type", "content_block_start", "index", 0, "content_block", textBlock("")})
	}
	w.streamEvent(w.streaming, object{
		"type", "content_block_delta", "index", 0, "delta", object{"type", "text_delta", "text", piece},
	})
}

func (w *claudeWriter) streamEvent(id string, event object, extra ...any) {
	o := object{
		"type", "stream_event", "event", event, "session_id", w.session,
		"parent_tool_use_id", nil, "uuid", uuid.NewString(),
	}
	w.out.emit(append(append(o, extra...), "api_message_id", id))
}

func (w *claudeWriter) thinking(text string) {
	tokens := len(text)/4 + 1
	w.out.emit(object{
		"type", "system", "subtype", "thinking_tokens", "estimated_tokens", tokens, "estimated_tokens_delta", tokens,
		"session_id", w.session, "uuid", uuid.NewString(),
	})
	w.assistant(w.nextID("msg"), list{thinkingBlock(text)}, "thinking_duration_ms", 1, "thinking_display", "updates")
}

func (w *claudeWriter) todo(items []todoItem) {
	var todos list
	for _, i := range items {
		status := "pending"
		if i.done {
			status = "completed"
		}
		todos = append(todos, object{"content", i.text, "status", status, "activeForm", i.text})
	}
	id := w.nextID("toolu")
	w.assistant(w.nextID("msg"), list{object{
		"type", "tool_use", "id", id, "name", "TodoWrite", "input", object{"todos", todos},
	}})
	w.user(list{object{"tool_use_id", id, "type", "tool_result", "content", "Todos have been modified successfully."}},
		"tool_use_result", object{"oldTodos", list{}, "newTodos", todos}, "tool_result_meta", list{accepted(id)})
}

// user writes a line that the CLI itself says in the user's name.
func (w *claudeWriter) user(content list, extra ...any) {
	w.out.emit(append(object{
		"type", "user", "message", object{"role", "user", "content", content},
		"parent_tool_use_id", nil, "session_id", w.session, "uuid", uuid.NewString(), "timestamp", timestamp(),
	}, extra...))
}

func accepted(id string) object {
	return object{"id", id, "permission_decision", object{"decision", "accept", "source", "config", "reason_type", "mode"}}
}

func (w *claudeWriter) toolUse(c *toolCall) object {
	c.id = w.nextID("toolu")
	var name string
	var input object
	switch c.kind {
	case commandTool:
		name, input = "Bash", object{"command", c.command, "description", "Run a command"}
	case writeTool:
		name, input = "Write", object{"file_path", c.path, "content", c.content}
	case readTool:
		name, input = "Read", object{"file_path", c.path}
	}
	return object{"type", "tool_use", "id", c.id, "name", name, "input", input}
}

func (w *claudeWriter) call(c *toolCall) {
	w.assistant(w.nextID("msg"), list{w.toolUse(c)})
}

func (w *claudeWriter) together(thought, text string, calls []*toolCall) {
	blocks := list{thinkingBlock(thought), textBlock(text)}
	for _, c := range calls {
		blocks = append(blocks, w.toolUse(c))
	}
	w.assistant(w.nextID("msg"), blocks)
}

func (w *claudeWriter) result(c *toolCall) {
	block, detail := w.resultBlock(c)
	w.user(list{block}, "tool_use_result", detail, "tool_result_meta", list{accepted(c.id)})
}

func (w *claudeWriter) resultsTogether(calls []*toolCall) {
	var blocks, details, meta list
	for _, c := range calls {
		block, detail := w.resultBlock(c)
		blocks, details, meta = append(blocks, block), append(details, detail), append(meta, accepted(c.id))
	}
	w.user(blocks, "tool_use_result", details, "tool_result_meta", meta)
}

// resultBlock returns the tool_result block and the tool_use_result beside it.
func (w *claudeWriter) resultBlock(c *toolCall) (block object, detail any) {
	output := strings.TrimRight(c.output, "\n")
	failure := c.failure
	if c.kind == commandTool && c.exitCode != 0 {
		failure = strings.TrimRight(fmt.Sprintf("Exit code %d\n%s", c.exitCode, output), "\n")
	}
	if failure != "" {
		return object{"type", "tool_result", "content", failure, "is_error", true, "tool_use_id", c.id}, "Error: " + failure
	}
	block = object{"tool_use_id", c.id, "type", "tool_result"}
	switch c.kind {
	case commandTool:
		return append(block, "content", output, "is_error", false), object{
			"stdout", output, "stderr", "", "interrupted", false, "isImage", false, "noOutputExpected", false,
		}
	case writeTool:
		how, said := "create", "File created successfully at: "+c.path
		if c.existed {
			how, said = "update", "The file "+c.path+" has been updated successfully."
		}
		return append(block, "content", said), object{
			"type", how, "filePath", c.path, "content", c.content,
			"structuredPatch", list{}, "originalFile", nil, "userModified", false,
		}
	default:
		n := strings.Count(c.content, "\n") + 1
		return append(block, "content", numbered(c.content)), object{
			"type", "text",
			"file", object{"filePath", c.path, "content", c.content, "numLines", n, "startLine", 1, "totalLines", n},
		}
	}
}

// rejectedText is what the real one tells the model of a call that was stopped.
const rejectedText = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."

// interrupted says that the user stopped the turn.
func (w *claudeWriter) interrupted(stopped []*toolCall) {
	w.streaming = ""
	for _, c := range stopped {
		w.user(list{object{"type", "tool_result", "content", rejectedText, "is_error", true, "tool_use_id", c.id}},
			"tool_use_result", "User rejected tool use",
			"tool_result_meta", list{object{"id", c.id, "non_execution_kind", "user-rejected"}})
	}
	said := "[Request interrupted by user]"
	if len(stopped) > 0 {
		said = "[Request interrupted by user for tool use]"
	}
	w.user(list{textBlock(said)})
}

// apiErrors are the classes of the "error" member of an assistant line, with
// the HTTP status and the API's own type that they come from.
var apiErrors = map[string]struct {
	status int
	kind   string
}{
	"authentication_failed": {401, "authentication_error"},
	"billing_error":         {400, "billing_error"},
	"rate_limit":            {429, "rate_limit_error"},
	"overloaded":            {529, "overloaded_error"},
	"invalid_request":       {400, "invalid_request_error"},
	"model_not_found":       {404, "not_found_error"},
	"server_error":          {500, "api_error"},
	"unknown":               {400, "invalid_request_error"},
}

// apiError says that the model's API failed, and returns the outcome for it.
func (w *claudeWriter) apiError(class, message string) outcome {
	e, ok := apiErrors[class]
	if !ok {
		e.status, e.kind = 500, "api_error"
	}
	text := fmt.Sprintf("API Error: %d %s", e.status, message)
	w.out.emit(object{
		"type", "assistant", "message", object{
			"diagnostics", nil, "id", uuid.NewString(), "container", nil, "model", "<synthetic>", "role", "assistant",
			"stop_details", nil, "stop_reason", "stop_sequence", "stop_sequence", "", "type", "message",
			"usage", object{
				"output_tokens_details", nil, "input_tokens", 0, "output_tokens", 0,
				"cache_creation_input_tokens", 0, "cache_read_input_tokens", 0,
				"server_tool_use", serverTools, "service_tier", nil, "cache_creation", cacheCreation,
				"inference_geo", nil, "iterations", nil, "speed", nil, "fallback_credit", nil,
			},
			"content", list{textBlock(text)}, "context_management", nil,
		},
		"parent_tool_use_id", nil, "session_id", w.session, "uuid", uuid.NewString(), "timestamp", timestamp(),
		"error", class, "request_id", w.nextID("req"), "is_api_error_message", true,
		"api_error_status", e.status, "api_error_type", e.kind,
	})
	return outcome{
		subtype: "success", isError: true, result: text, stop: "stop_sequence", reason: "api_error",
		status: e.status, kind: e.kind,
	}
}

// outcome is what differs between results.
type outcome struct {
	subtype string
	isError bool
	result  string
	errors  list
	stop    any // the stop reason, nil for none
	reason  string
	status  any // of the API, nil for none
	kind    string
}

func abortOutcome(stopped []*toolCall) outcome {
	o := outcome{subtype: "error_during_execution", isError: true, reason: "aborted_streaming"}
	said := "null"
	if len(stopped) > 0 {
		o.reason, o.stop, said = "aborted_tools", "tool_use", "tool_use"
	}
	o.errors = list{"[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=" + said}
	return o
}

var (
	serverTools   = object{"web_search_requests", 0, "web_fetch_requests", 0}
	cacheCreation = object{"ephemeral_1h_input_tokens", 0, "ephemeral_5m_input_tokens", 0}
)

func usageObject(u usage) object {
	return object{
		"input_tokens", u.Input, "cache_creation_input_tokens", u.CacheWrite, "cache_read_input_tokens", u.CacheRead,
		"output_tokens", u.Output, "output_tokens_details", object{"thinking_tokens", u.Reasoning},
		"server_tool_use", serverTools, "service_tier", "standard", "cache_creation", cacheCreation,
		"inference_geo", "", "iterations", list{}, "speed", "standard", "fallback_credit", nil,
	}
}

// cost is in US dollars, by the prices that the recordings were made with.
func cost(u usage) float64 {
	micro := 4*float64(u.Input) + 5*float64(u.CacheWrite) + 0.2*float64(u.CacheRead) + 20*float64(u.Output)
	return math.Round(micro) / 1e6
}

func (w *claudeWriter) modelUsage(u usage) object {
	if u == (usage{}) {
		return object{}
	}
	return object{w.model, object{
		"inputTokens", u.Input, "outputTokens", u.Output, "cacheReadInputTokens", u.CacheRead,
		"cacheCreationInputTokens", u.CacheWrite, "webSearchRequests", 0, "costUSD", cost(u),
		"contextWindow", 1000000, "maxOutputTokens", 128000, "thinkingTokens", u.Reasoning,
		"cacheCreationEphemeral5mInputTokens", 0, "cacheCreationEphemeral1hInputTokens", 0,
		"canonicalModel", w.model, "provider", "firstParty", "costBasis", "list",
	}}
}

// finish writes the result of a turn. Cost and modelUsage are those of the
// conversation so far, usage that of the turn.
func (w *claudeWriter) finish(t *turn, total usage, o outcome) {
	ms := time.Since(w.began).Milliseconds()
	used := t.usage
	if o.reason == "aborted_streaming" {
		used = usage{} // what was spent shows in the cost and modelUsage alone
	}
	line := object{
		"duration_api_ms", ms, "stop_reason", o.stop, "session_id", w.session, "total_cost_usd", cost(total),
		"usage", usageObject(used), "modelUsage", w.modelUsage(total), "permission_denials", list{},
		"terminal_reason", o.reason, "fast_mode_state", "off", "fast_mode_disabled_reason", "sdk_opt_in_required",
		"subagent_stats", object{
			"spawned", 0, "requested", object{"background", 0, "foreground", 0, "unset", 0},
			"started_in_background", 0, "max_depth", 0, "spawned_by_subagents", 0, "completed", 0, "failed", 0,
			"killed", object{"parent", 0, "user", 0, "system", 0},
			"refused", object{"depth_limit", 0, "concurrency_limit", 0, "budget", 0}, "by_type", object{},
		},
		"safety_stops", 0, "is_error", o.isError, "num_turns", 1 + t.calls, "subtype", o.subtype,
	}
	if o.errors != nil {
		line = append(line, "errors", o.errors)
	} else {
		line = append(line, "api_error_status", o.status)
		if o.kind != "" {
			line = append(line, "api_error_type", o.kind)
		}
		line = append(line, "result", o.result)
		if !o.isError {
			line = append(line, "ttft_ms", 1)
		}
	}
	line = append(line, "type", "result", "duration_ms", ms, "uuid", uuid.NewString())
	if !o.isError {
		line = append(line, "ttft_stream_ms", 1, "time_to_request_ms", 1, "first_content_frame_ms", 1)
	}
	w.out.emit(append(line, "queued_turn_count", 0, "result_index", w.results,
		"model_usage_since_last_result", w.modelUsage(t.usage)))
	w.results++
}

// startupFailure is the result of a run that never began.
func (w *claudeWriter) startupFailure(message string) {
	w.out.emit(object{
		"type", "result", "subtype", "error_during_execution", "duration_ms", 0, "duration_api_ms", 0,
		"is_error", true, "num_turns", 0, "stop_reason", nil, "session_id", w.session, "total_cost_usd", 0,
		"usage", usageObject(usage{}), "modelUsage", object{}, "permission_denials", list{}, "uuid", uuid.NewString(),
		"errors", list{message}, "result_index", 0,
	})
}
