package claude

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// parser turns the stream-json output of one turn's process into events.
//
// Left out, because another event says the same or because they only serve a
// user interface: stream events other than text deltas (the complete block
// follows in an assistant line), answers to control requests and cancelled
// ones, keep_alive, command_lifecycle, and of the system events
// thinking_tokens, task_updated and background_tasks_changed (task_started and
// task_notification frame them), hook_started (hook_response follows),
// ui_invalidate and the status "requesting". What is not known at all becomes
// a [domain.Raw].
type parser struct {
	r   reader // over the line
	sub reader // over a value within it
	env envelope
	out ports.Parsed

	// asked is the conversation to resume, "" for a new one.
	asked        string
	conversation string // as the agent named it and as it was adopted
	model        string
	version      string
	started      bool   // an init was seen
	wasReset     bool   // by /clear: the next id is adopted
	stray        string // another conversation than the one asked for

	tools  map[string]tool     // that run
	denied map[string]struct{} // ids of tool calls that were not permitted

	lastText    string // of the main thread
	failure     string // the code of the main thread's latest API failure
	running     bool   // the agent has reported that it runs
	stdinClosed bool
	interrupted bool // by us; the agent has confirmed it

	total total
	claim *domain.Final
}

// Bounds on what is remembered of tool calls that have no result yet: how many,
// and bytes of each. What is beyond them is passed on, but its result is not
// completed with it. An agent must not fill the memory with what it prints.
const (
	maxCalls = 4096
	maxCall  = 16 << 10
)

// tool is a tool call whose result is still to come.
type tool struct {
	name   string
	parent string
	path   string // of a tool that edits one file
}

func newParser(turn ports.TurnRequest) *parser {
	p := &parser{tools: map[string]tool{}, denied: map[string]struct{}{}}
	if turn.Resume {
		p.asked = turn.ConversationID
	}
	p.total.resumed = turn.Resume
	return p
}

var byteOrderMark = []byte("\uFEFF")

const (
	// maxElements bounds what one line can blow up to: objects on a line,
	// members of an event, blocks of a message, entries of a list.
	maxElements = 4096
	// keepLine and keepElements are the longest line and the most elements
	// after which the buffers are kept for the next line.
	keepLine     = 64 << 10
	keepElements = 128
)

// ParseEvent is part of [ports.Parser]. Its error is always nil.
func (p *parser) ParseEvent(line []byte) (ports.Parsed, error) {
	p.out = ports.Parsed{}
	text := bytes.TrimPrefix(line, byteOrderMark)
	p.r.reset(text)
	for objects := 0; ; objects++ {
		// Several objects on one line are read in turn. From the first thing on
		// that is no JSON object, the rest of the line is no event.
		rest := bytes.TrimSpace(text[p.r.offset():])
		if len(rest) == 0 {
			break
		}
		isObject := rest[0] == '{' && objects < maxElements
		if isObject {
			p.r.envelope(&p.env)
		}
		if !isObject || p.r.err != nil {
			p.emit(domain.Log{Stream: "stdout", Line: strings.ToValidUTF8(string(rest), "\uFFFD")})
			break
		}
		p.event(&p.env)
	}
	p.forget(len(line))
	return p.out, nil
}

// forget lets go of a line: it may be a part of a buffer that others are waiting
// for, while the agent says nothing for an hour.
func (p *parser) forget(size int) {
	if size > keepLine || cap(p.env.blocks)+cap(p.env.rest) > keepElements {
		p.r, p.sub, p.env = reader{}, reader{}, envelope{}
		return
	}
	p.r.reset(nil)
	if p.sub.text != nil {
		p.sub.reset(nil)
	}
	blocks, rest := p.env.blocks, p.env.rest
	clear(blocks[:cap(blocks)])
	clear(rest[:cap(rest)])
	p.env = envelope{blocks: blocks[:0], rest: rest[:0]}
}

const interruptID = "caisson-interrupt"

// Interrupt is part of [ports.Parser].
func (p *parser) Interrupt() []byte {
	return []byte(`{"type":"control_request","request_id":"` + interruptID + `","request":{"subtype":"interrupt"}}` + "\n")
}

// Finish is part of [ports.Parser].
func (p *parser) Finish(domain.ExitStatus) []domain.ReplyEvent {
	if p.claim == nil {
		return nil
	}
	return []domain.ReplyEvent{*p.claim}
}

func (p *parser) emit(e domain.ReplyEvent) { p.out.Events = append(p.out.Events, e) }

func (p *parser) notice(class domain.NoticeClass, message string) {
	p.emit(domain.Notice{Class: class, Message: message})
}

func (p *parser) rawEvent(name string, v value) {
	p.emit(domain.Raw{Type: name, JSON: bytes.Clone(v)})
}

func (p *parser) closeStdin() {
	p.out.CloseStdin = !p.stdinClosed
	p.stdinClosed = true
}

// unknown passes on an event as it is.
func (p *parser) unknown(e *envelope) {
	name := e.typ.str()
	if sub := e.subtype.str(); sub != "" {
		name += "/" + sub
	}
	p.rawEvent(name, e.object)
}

func (p *parser) event(e *envelope) {
	switch string(e.typ.name()) {
	case "assistant":
		p.assistant(e)
	case "user":
		p.user(e)
	case "stream_event":
		if string(e.deltaType.name()) == "text_delta" {
			p.emit(domain.TextDelta{Text: e.deltaText.str(), Parent: e.parent.str()})
		}
	case "system":
		p.system(e)
	case "result":
		p.result(e)
	case "tool_progress":
		p.toolProgress(e)
	case "rate_limit_event":
		p.rateLimit(e)
	case "control_request":
		p.controlRequest(e)
	case "conversation_reset":
		p.wasReset = true
		p.notice(domain.NoticeInfo, "the conversation was reset; a new one begins")
	case "control_response":
		var response, id value
		e.pick(field{"response", &response})
		p.sub.pick(response, field{"request_id", &id})
		p.interrupted = p.interrupted || string(id.name()) == interruptID
	case "control_cancel_request", "keep_alive", "command_lifecycle":
	default:
		p.unknown(e)
	}
}

func (p *parser) system(e *envelope) {
	switch string(e.subtype.name()) {
	case "init":
		p.start(e)
	case "status":
		p.status(e)
	case "api_retry":
		p.apiRetry(e)
	case "permission_denied":
		p.permissionDenied(e)
	case "task_started", "task_progress", "task_notification":
		p.task(e)
	case "hook_response":
		p.hook(e)
	case "compact_boundary":
		p.compacted(e)
	case "informational", "model_refusal_no_fallback":
		var content, level value
		e.pick(field{"content", &content}, field{"level", &level})
		class := domain.NoticeWarning
		if l := string(level.name()); l == "info" || l == "notice" || l == "suggestion" {
			class = domain.NoticeInfo
		}
		p.notice(class, content.str())
	case "session_state_changed":
		p.stateChanged(e)
	case "thinking_tokens", "task_updated", "background_tasks_changed", "hook_started", "ui_invalidate":
	default:
		p.unknown(e)
	}
}

// start handles system/init, which comes at the start of the turn and again
// after a compaction and before every continuation.
func (p *parser) start(e *envelope) {
	var model, version value
	e.pick(field{"model", &model}, field{"claude_code_version", &version})
	started := domain.ConversationStarted{Model: model.str(), AgentVersion: version.str()}
	known := p.started && started.Model == p.model && started.AgentVersion == p.version
	if !p.identify(e.sessionID.str()) && known {
		return
	}
	p.started, p.model, p.version = true, started.Model, started.AgentVersion
	started.ConversationID = p.conversation
	p.emit(started)
}

// identify takes the conversation id of an event and reports whether it was
// adopted anew. An id is only adopted if it can be resumed by it, and, in a
// resumed turn, if it is the one asked for or follows a reset.
func (p *parser) identify(id string) bool {
	switch {
	case id == "" || id == p.conversation:
		return false
	case p.asked != "" && !p.wasReset && !strings.EqualFold(id, p.asked):
		if p.stray == "" {
			p.stray = id
			p.notice(domain.NoticeWarning, fmt.Sprintf("the agent continued conversation %q instead of %q", id, p.asked))
		}
		return false
	case !domain.IsUUID(id):
		p.notice(domain.NoticeWarning, fmt.Sprintf("the agent's conversation id %q is no UUID, so the conversation cannot be resumed", id))
		return false
	}
	p.conversation, p.wasReset = id, false
	if p.asked != "" {
		p.asked = id
	}
	return true
}

func (p *parser) status(e *envelope) {
	var status, result, reason, mode value
	e.pick(field{"status", &status}, field{"compact_result", &result},
		field{"compact_error", &reason}, field{"permissionMode", &mode})
	switch s := string(status.name()); {
	case s == "compacting":
		p.notice(domain.NoticeCompaction, "compacting the conversation")
	case string(result.name()) == "success":
		// compact_boundary says it with numbers.
	case result != nil || reason != nil:
		p.notice(domain.NoticeWarning, join("the compaction failed", reason.str()))
	case mode != nil:
		p.notice(domain.NoticeInfo, "permission mode: "+mode.str())
	case s != "" && s != "requesting":
		p.unknown(e)
	}
}

func (p *parser) apiRetry(e *envelope) {
	var attempt, most, delay, status value
	e.pick(field{"attempt", &attempt}, field{"max_retries", &most},
		field{"retry_delay_ms", &delay}, field{"error_status", &status})
	message := "the model's API failed"
	if n := status.count(); n > 0 {
		message += fmt.Sprintf(" with status %d", n)
	}
	p.emit(domain.Notice{
		Class:   domain.NoticeRetry,
		Message: join(message, e.failure.str()) + fmt.Sprintf("; retry %d of %d", attempt.count(), most.count()),
		Attempt: int(min(attempt.count(), maxAttempt)),
		Delay:   delay.duration(time.Millisecond),
	})
}

// maxAttempt keeps the number of a retry within an int of any size.
const maxAttempt = 1 << 30

func (p *parser) compacted(e *envelope) {
	var meta, trigger, before, after value
	e.pick(field{"compact_metadata", &meta})
	p.sub.pick(meta, field{"trigger", &trigger}, field{"pre_tokens", &before}, field{"post_tokens", &after})
	message := "the conversation was compacted"
	if before != nil && after != nil {
		message += fmt.Sprintf(" from %d to %d tokens", before.count(), after.count())
	}
	p.notice(domain.NoticeCompaction, join(message, trigger.str()))
}

func (p *parser) permissionDenied(e *envelope) {
	var name, id value
	e.pick(field{"tool_name", &name}, field{"tool_use_id", &id})
	p.deny(domain.Permission{ToolID: id.str(), Tool: name.str(), Decision: "deny", Reason: e.message.str()})
}

func (p *parser) deny(decision domain.Permission) {
	if len(p.denied) < maxCalls && len(decision.ToolID) <= maxCall {
		p.denied[decision.ToolID] = struct{}{}
	}
	p.emit(decision)
}

// task handles what the agent says about subagents and long commands. It is an
// update of the tool call that started the task while that runs, and a notice
// about the background afterwards.
func (p *parser) task(e *envelope) {
	var id, task, description, summary, status, usage, elapsed value
	e.pick(field{"tool_use_id", &id}, field{"task_id", &task}, field{"description", &description},
		field{"summary", &summary}, field{"status", &status}, field{"usage", &usage})
	p.sub.pick(usage, field{"duration_ms", &elapsed})
	text := summary.str()
	if text == "" {
		text = description.str()
	}
	if t, ok := p.tools[id.str()]; ok {
		p.emit(domain.ToolUpdate{ID: id.str(), Output: text, Elapsed: elapsed.duration(time.Millisecond), Parent: t.parent})
		return
	}
	state := status.str()
	if state == "" {
		state = strings.TrimPrefix(e.subtype.str(), "task_")
	}
	p.notice(domain.NoticeInfo, join("task "+task.str()+" "+state, text))
}

func (p *parser) hook(e *envelope) {
	var name, outcome, output, stderr, code value
	e.pick(field{"hook_name", &name}, field{"outcome", &outcome}, field{"output", &output},
		field{"stderr", &stderr}, field{"exit_code", &code})
	class := domain.NoticeInfo
	if string(outcome.name()) != "success" {
		class = domain.NoticeWarning
	}
	text := output.str()
	if text == "" {
		text = stderr.str()
	}
	message := fmt.Sprintf("hook %s: %s", name.str(), outcome.str())
	if code != nil {
		message += fmt.Sprintf(" (exit code %d)", code.count())
	}
	p.notice(class, join(message, strings.TrimSpace(text)))
}

// stateChanged closes the agent's stdin when it is idle after running. The
// result has done so already; this is for a result that never came, because
// its line was too long to be passed on, say.
func (p *parser) stateChanged(e *envelope) {
	var state value
	e.pick(field{"state", &state})
	switch string(state.name()) {
	case "running":
		p.running = true
	case "idle":
		if p.running {
			p.closeStdin()
		}
	}
}

// toolProgress handles the heartbeat of a long tool call. Its tool_use_id is
// one of its own, "<id>-heartbeat-<n>", and its parent_tool_use_id that of the
// tool call, not of a subagent.
func (p *parser) toolProgress(e *envelope) {
	var id, elapsed value
	e.pick(field{"tool_use_id", &id}, field{"elapsed_time_seconds", &elapsed})
	update := domain.ToolUpdate{ID: id.str(), Elapsed: elapsed.duration(time.Second), Parent: e.parent.str()}
	if t, ok := p.tools[update.Parent]; ok {
		if _, ok := p.tools[update.ID]; !ok {
			update.ID, update.Parent = update.Parent, t.parent
		}
	}
	p.emit(update)
}

func (p *parser) rateLimit(e *envelope) {
	var info, status, kind, used, resets value
	e.pick(field{"rate_limit_info", &info})
	p.sub.pick(info, field{"status", &status}, field{"rateLimitType", &kind},
		field{"utilization", &used}, field{"resetsAt", &resets})
	message := "rate limit"
	if k := kind.str(); k != "" {
		message += " " + k
	}
	message = join(message, status.str())
	if f, ok := used.float(); ok {
		message += fmt.Sprintf(", %.0f %% used", f*100)
	}
	if n := resets.count(); n > 0 {
		message += ", resets at " + time.Unix(n, 0).UTC().Format(time.RFC3339)
	}
	p.notice(domain.NoticeRateLimit, message)
}

// denial is what the agent is told, and the model reads, when it asks.
const denial = "Denied by Caisson: nobody is there to ask. Do without this, or say what you would need."

// controlRequest answers what the agent asks. Nothing here can decide, so
// everything is refused, at once: an agent that is left without an answer
// waits for ever.
func (p *parser) controlRequest(e *envelope) {
	var id, request, subtype value
	e.pick(field{"request_id", &id}, field{"request", &request})
	p.sub.pick(request, field{"subtype", &subtype})
	if !id.isString() {
		p.unknown(e)
		return
	}
	if string(subtype.name()) != "can_use_tool" {
		p.rawEvent("control_request/"+subtype.str(), e.object)
		p.respond(`{"subtype":"error","request_id":%s,"error":%s}`, id.str(), "Caisson does not answer requests of this kind")
		return
	}
	var name, input, toolID value
	p.sub.pick(request, field{"tool_name", &name}, field{"input", &input}, field{"tool_use_id", &toolID})
	ask := domain.Permission{RequestID: id.str(), ToolID: toolID.str(), Tool: name.str(), Input: input.raw()}
	p.emit(ask)
	p.deny(domain.Permission{RequestID: ask.RequestID, ToolID: ask.ToolID, Tool: ask.Tool, Decision: "deny", Reason: denial})
	p.respond(`{"subtype":"success","request_id":%s,"response":{"behavior":"deny","message":%s}}`, ask.RequestID, denial)
}

// respond writes a control response, unless the agent can no longer read it;
// the format's verbs take the strings quoted.
func (p *parser) respond(format, id, message string) {
	if p.stdinClosed {
		return
	}
	p.out.Write = fmt.Appendf(p.out.Write, `{"type":"control_response","response":`+format+"}\n", appendQuoted(nil, id), appendQuoted(nil, message))
}

// appendQuoted appends s as a JSON string; invalid UTF-8 is replaced.
func appendQuoted(dst []byte, s string) []byte {
	// The error only says that something was replaced.
	dst, _ = jsontext.AppendQuote(dst, s)
	return dst
}

// join appends a detail, if there is one, to a message.
func join(message, detail string) string {
	if detail == "" {
		return message
	}
	return message + ": " + detail
}
