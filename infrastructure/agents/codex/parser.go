package codex

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// parser turns the lines of one `codex exec --json` into events. A Codex
// process runs exactly one turn, and numbers its items from item_0.
type parser struct {
	asked asked
	dec   decoder
	calls map[uint64]callState // by the hashes of the ids

	conversation string // as the agent named it, "" before
	// mismatch says that the agent continued another conversation than asked.
	mismatch string
	// held is a top-level error that may turn out to be the turn's last word:
	// then turn.failed with the same message follows at once.
	held  string
	holds bool
	last  string // the latest agent message
	final *domain.Final
}

// asked is what the parser needs of the request; it need not hold on to the
// prompt.
type asked struct {
	conversation string
	resume       bool
	model        string
	version      string
	usageBefore  domain.Usage
}

// phase is what an event says about its item.
type phase uint8

const (
	itemStarted phase = iota
	itemUpdated
	itemCompleted
)

type callState uint8

const (
	callOpen callState = iota + 1
	callClosed
)

// maxCalls bounds the calls of one turn that are told apart; later ones are
// passed on as they are. An agent must not fill the memory with what it prints.
const maxCalls = 1 << 18

var idSeed = maphash.MakeSeed()

// NewParser returns a parser for the output of that one turn.
func (*Adapter) NewParser(turn ports.TurnRequest) ports.Parser {
	return &parser{asked: asked{
		conversation: turn.ConversationID, resume: turn.Resume,
		model: turn.Model, version: turn.Install.Version, usageBefore: turn.UsageBefore,
	}}
}

// Interrupt returns nil: exec has no protocol for it and takes SIGINT.
func (*parser) Interrupt() []byte { return nil }

var (
	bom     = []byte("\xef\xbb\xbf")
	badRune = []byte(string(utf8.RuneError))
)

// ParseEvent takes one line, which may hold no object, one, or several.
func (p *parser) ParseEvent(line []byte) (ports.Parsed, error) {
	line = bytes.TrimSuffix(bytes.TrimPrefix(line, bom), []byte("\r"))
	var out ports.Parsed
	p.dec.reset(line)
	read := 0
	for p.dec.more() {
		var ev wireEvent
		if !p.dec.next(&ev) {
			p.flush(&out.Events)
			rest := bytes.TrimSpace(line[read:])
			add(&out, domain.Log{Stream: "stdout", Line: string(bytes.ToValidUTF8(rest, badRune))})
			break
		}
		read = p.dec.offset()
		p.event(&ev, &out)
	}
	// The line may be a part of a buffer that others are waiting for, while the
	// agent says nothing for an hour.
	p.dec.reset(nil)
	return out, nil
}

// Finish gives what was held back, and the agent's own final if it gave one.
func (p *parser) Finish(domain.ExitStatus) []domain.ReplyEvent {
	var events []domain.ReplyEvent
	p.flush(&events)
	if p.mismatch != "" {
		// Nothing that was done there is what was asked for, however it ended.
		f := domain.Final{Text: p.last}
		if p.final != nil {
			f = *p.final
		}
		f.Outcome, f.StopReason = domain.OutcomeFailed, ""
		f.Error = &domain.TurnError{Class: domain.ErrorClassConversation, Message: p.mismatch}
		p.final = &f
	}
	if p.final != nil {
		p.final.ConversationID = p.conversation
		events = append(events, *p.final)
	}
	return events
}

func (p *parser) event(ev *wireEvent, out *ports.Parsed) {
	typ := p.dec.word(ev.typ)
	if string(typ) == "turn.failed" {
		p.failed(ev, out)
		return
	}
	p.flush(&out.Events)
	known := false
	switch string(typ) {
	case "thread.started":
		known = p.threadStarted(ev, out)
	case "turn.started":
		known = true
	case "turn.completed":
		known = true
		p.completed(ev, out)
	case "error":
		known = p.topError(ev, out)
	case "item.started":
		known = p.item(itemStarted, &ev.item, out)
	case "item.updated":
		known = p.item(itemUpdated, &ev.item, out)
	case "item.completed":
		known = p.item(itemCompleted, &ev.item, out)
	}
	if !known {
		add(out, domain.Raw{Type: p.dec.orEmpty(ev.typ), JSON: bytes.Clone(ev.raw)})
	}
}

func add(out *ports.Parsed, ev domain.ReplyEvent) { out.Events = append(out.Events, ev) }

// threadStarted takes the first conversation id. An id is used on a later
// command line, so it has to be one.
func (p *parser) threadStarted(ev *wireEvent, out *ports.Parsed) bool {
	id, _ := p.dec.text(ev.threadID)
	asked := p.asked.conversation
	if p.conversation != "" || p.mismatch != "" {
		return false
	}
	if p.asked.resume && !strings.EqualFold(id, asked) {
		// The wrong id is not announced as the session's: a session that
		// adopted it would go on in the wrong conversation.
		p.mismatch = fmt.Sprintf("codex was asked to resume conversation %s, but continued %q", asked, id)
		add(out, domain.Notice{Class: domain.NoticeWarning, Message: p.mismatch})
		return true
	}
	if !domain.IsUUID(id) {
		return false
	}
	p.conversation = id
	add(out, domain.ConversationStarted{
		ConversationID: id, Model: p.asked.model, AgentVersion: p.asked.version,
	})
	return true
}

func (p *parser) completed(ev *wireEvent, out *ports.Parsed) {
	out.Done = true
	f := domain.Final{Outcome: domain.OutcomeCompleted, StopReason: domain.StopEndTurn, Text: p.last}
	// What another conversation has used says nothing about this one.
	if total, ok := ev.usage.total(); ok && p.mismatch == "" {
		// Codex counts over the whole conversation, resumed turns included.
		f.TotalUsage = &total
		f.Usage = total.Sub(p.asked.usageBefore)
		add(out, domain.UsageReport{Usage: f.Usage})
	}
	// A failure stands: a second end, which Codex never sends, makes no success
	// of it.
	if p.final == nil || p.final.Outcome == domain.OutcomeCompleted {
		p.final = &f
	}
}

func (p *parser) failed(ev *wireEvent, out *ports.Parsed) {
	out.Done = true
	message := p.errorMessage(ev.err)
	if message == "" {
		message = p.held
	}
	if p.holds && p.held == message {
		p.held, p.holds = "", false
	}
	p.flush(&out.Events)
	if message == "" {
		message = "codex reported a failure without a message"
	}
	e, stop := classify(message)
	p.final = &domain.Final{Outcome: domain.OutcomeFailed, StopReason: stop, Text: p.last, Error: &e}
}

// errorMessage reads {"message": …}, or a plain string.
func (p *parser) errorMessage(v jsontext.Value) string {
	if len(v) > 0 && v[0] == '{' {
		return p.dec.message(v)
	}
	return p.dec.orEmpty(v)
}

func (p *parser) topError(ev *wireEvent, out *ports.Parsed) bool {
	message, ok := p.dec.text(ev.message)
	if !ok {
		return false
	}
	if n, ok := retryNotice(message); ok {
		add(out, n)
		return true
	}
	p.held, p.holds = message, true
	return true
}

// flush gives out an error that was held back and was not the last word.
func (p *parser) flush(events *[]domain.ReplyEvent) {
	if p.holds {
		*events = append(*events, domain.Notice{Class: domain.NoticeWarning, Message: p.held})
		p.held, p.holds = "", false
	}
}

// item reports whether it knew the item in that phase. An item that is missing
// has no type, and so is not known.
func (p *parser) item(ph phase, it *wireItem, out *ports.Parsed) bool {
	typ := p.dec.word(it.typ)
	switch string(typ) {
	case "agent_message":
		text, ok := p.dec.text(it.text)
		if ph != itemCompleted || !ok {
			return false
		}
		p.last = text
		add(out, domain.Text{Text: text})
		return true
	case "reasoning":
		text, ok := p.dec.text(it.text)
		if ph != itemCompleted || !ok {
			return false
		}
		add(out, domain.Thinking{Text: text})
		return true
	case "error":
		message, ok := p.dec.text(it.message)
		if ph != itemCompleted || !ok {
			return false
		}
		add(out, domain.Notice{Class: domain.NoticeWarning, Message: message})
		return true
	case "todo_list":
		var todos []wireTodo
		if !decode(it.todos, &todos) {
			return false
		}
		// Codex shows only done or not done.
		items := make([]domain.TodoItem, len(todos))
		for i, t := range todos {
			items[i] = domain.TodoItem{Text: t.Text, Status: "pending"}
			if t.Completed {
				items[i].Status = "completed"
			}
		}
		add(out, domain.Todo{Items: items})
		return true
	case "command_execution", "file_change", "mcp_tool_call", "collab_tool_call", "web_search":
		return p.tool(ph, typ, it, out)
	}
	return false
}

// tool announces a call once, and its end once.
func (p *parser) tool(ph phase, typ []byte, it *wireItem, out *ports.Parsed) bool {
	id, ok := p.dec.text(it.id)
	key := maphash.String(idSeed, id)
	state := p.calls[key]
	if !ok || id == "" || state == callClosed || state == callOpen && ph == itemStarted || state == 0 && len(p.calls) >= maxCalls {
		return false
	}
	if p.calls == nil {
		p.calls = map[uint64]callState{}
	}
	if state == 0 {
		add(out, p.toolCall(id, typ, it))
		p.calls[key] = callOpen
	}
	switch ph {
	case itemUpdated:
		add(out, domain.ToolUpdate{ID: id, Output: p.dec.orEmpty(it.output)})
	case itemCompleted:
		p.calls[key] = callClosed
		p.toolEnd(id, typ, it, out)
	}
	return true
}

func (p *parser) toolCall(id string, typ []byte, it *wireItem) domain.ToolCall {
	call := domain.ToolCall{ID: id, Kind: domain.ToolOther}
	switch string(typ) {
	case "command_execution":
		call.Name, call.Kind = "shell", domain.ToolExecute
		call.Input = object(member{"command", it.command})
	case "file_change":
		call.Name, call.Kind = "apply_patch", domain.ToolEdit
		call.Input = object(member{"changes", it.changes})
	case "mcp_tool_call":
		// As the model sees the tool.
		call.Name = "mcp__" + p.dec.orEmpty(it.server) + "__" + p.dec.orEmpty(it.tool)
		call.Input = valid(it.arguments)
	case "collab_tool_call":
		call.Name = p.dec.orEmpty(it.tool)
		call.Input = object(member{"prompt", it.prompt}, member{"receiver_thread_ids", it.receivers})
	case "web_search":
		// What is searched for is only known at the end.
		call.Name, call.Kind = "web_search", domain.ToolFetch
		call.Input = object(member{"query", it.query}, member{"action", it.action})
	}
	return call
}

func (p *parser) toolEnd(id string, typ []byte, it *wireItem, out *ports.Parsed) {
	res := domain.ToolResult{ID: id, Status: status(p.dec.word(it.status))}
	switch string(typ) {
	case "command_execution":
		res.Output = p.dec.orEmpty(it.output)
		if code, err := strconv.Atoi(string(it.exitCode)); err == nil {
			res.ExitCode = &code
		}
	case "file_change":
		var changes []wireChange
		decode(it.changes, &changes)
		edits := make([]domain.FileEdit, len(changes))
		for i, c := range changes {
			edits[i] = domain.FileEdit(c)
		}
		add(out, domain.FileChange{ID: id, Status: res.Status, Changes: edits})
	case "mcp_tool_call":
		res.Output = p.mcpOutput(it)
	case "collab_tool_call":
		res.Output = string(valid(it.agents))
	case "web_search":
		// It has no status and no result, but here says what was looked for.
		res.Output = string(object(member{"query", it.query}, member{"action", it.action}))
	}
	add(out, res)
}

// mcpOutput is the error, or the content: texts as they are, what is no text as
// JSON.
func (p *parser) mcpOutput(it *wireItem) string {
	if m := p.errorMessage(it.err); m != "" {
		return m
	}
	var r wireMCPResult
	if !decode(it.result, &r) {
		return string(valid(it.result))
	}
	var parts []string
	for _, c := range r.Content {
		var content wireMCPContent
		if decode(c, &content) && content.Type == "text" {
			parts = append(parts, content.Text)
		} else {
			parts = append(parts, string(valid(c)))
		}
	}
	if len(parts) == 0 {
		return string(valid(r.Structured))
	}
	return strings.Join(parts, "\n")
}

// status reads how a tool call ended. A web search has none; a status that is
// not known is no success.
func status(s []byte) domain.ToolStatus {
	switch string(s) {
	case "completed", "":
		return domain.ToolCompleted
	case "declined":
		return domain.ToolDenied
	}
	return domain.ToolFailed
}

// member is one member of a JSON object.
type member struct {
	name  string
	value jsontext.Value
}

// object makes a JSON object of the members that have a value, nil if none has.
func object(members ...member) []byte {
	size := 1
	for _, m := range members {
		size += len(`,"":`) + len(m.name) + len(m.value)
	}
	b := make([]byte, 0, size)
	for _, m := range members {
		if isNull(m.value) {
			continue
		}
		b = append(b, ',', '"')
		b = append(b, m.name...)
		b = append(b, '"', ':')
		b = append(b, m.value...)
	}
	if len(b) == 0 {
		return nil
	}
	b[0] = '{'
	if b = append(b, '}'); !utf8.Valid(b) {
		return bytes.ToValidUTF8(b, badRune)
	}
	return b
}

func isNull(v jsontext.Value) bool { return len(v) == 0 || v[0] == 'n' }

// valid returns a copy of a JSON value as valid UTF-8, nil for null.
func valid(v []byte) []byte {
	if isNull(v) {
		return nil
	}
	return bytes.ToValidUTF8(v, badRune)
}
