package codex

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/domain"
)

// wireEvent is one object of the stream, its values still as they stood in the
// line. Of a name that comes twice the first value counts: Codex writes "id"
// twice into web searches, and the first one is the item's.
type wireEvent struct {
	raw      []byte // the whole object
	typ      jsontext.Value
	threadID jsontext.Value
	message  jsontext.Value
	err      jsontext.Value
	hasItem  bool
	item     wireItem
	hasUsage bool
	usage    wireUsage
}

// wireItem has the fields of every kind of item.
type wireItem struct {
	id, typ, status jsontext.Value
	text, message   jsontext.Value // agent_message, reasoning; error

	command, output, exitCode jsontext.Value // command_execution

	changes, todos jsontext.Value // file_change; todo_list

	server, tool, arguments, result, err jsontext.Value // mcp_tool_call

	prompt, receivers, agents jsontext.Value // collab_tool_call, with tool

	query, action jsontext.Value // web_search
}

// wireUsage has the token counts of a conversation.
type wireUsage struct {
	input, cached, cacheWrite, output, reasoning jsontext.Value
}

type wireChange struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

type wireTodo struct {
	Text      string `json:"text"`
	Completed bool   `json:"completed"`
}

type wireMCPResult struct {
	Content    []jsontext.Value `json:"content"`
	Structured jsontext.Value   `json:"structured_content"`
}

type wireMCPContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// lenient takes what Codex and hostile tools really produce. Names are
// case-sensitive by default.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// decode reads a nested value into a struct, and reports whether it fits.
func decode(v jsontext.Value, into any) bool {
	return v != nil && json.Unmarshal(v, into, lenient) == nil
}

// decoder reads the objects of a line in one pass. It keeps its buffer between
// lines.
type decoder struct {
	scan    scanner
	scratch []byte
}

// maxScratch is how much memory for unquoting is kept between lines.
const maxScratch = 256 << 10

func (d *decoder) reset(line []byte) { d.scan = scanner{text: line} }

// offset is how far the line is read.
func (d *decoder) offset() int { return d.scan.pos }

// more reports whether anything but white space is left of the line.
func (d *decoder) more() bool { return len(bytes.TrimSpace(d.scan.text[d.scan.pos:])) > 0 }

// next reads one object into an empty event, and reports whether there is one.
func (d *decoder) next(ev *wireEvent) bool {
	if d.scan.peek() != '{' {
		return false
	}
	start := d.scan.pos
	d.object(scopeEvent, ev)
	if d.scan.failed {
		return false
	}
	ev.raw = d.scan.text[start:d.scan.pos]
	return true
}

// object reads an object, and keeps those of its values that matter.
func (d *decoder) object(in scope, ev *wireEvent) {
	d.scan.enter()
	for n := 0; d.scan.more(n, '}'); n++ {
		name := d.name()
		if in == scopeEvent {
			if inner := ev.enter(name); inner != scopeEvent && d.scan.peek() == '{' {
				d.object(inner, ev)
				continue
			}
		}
		field := ev.field(in, name)
		if v := d.scan.value(); field != nil && *field == nil {
			*field = v
		}
	}
}

// name reads the name of a member. It is valid until the next one is read.
func (d *decoder) name() []byte {
	quoted := d.scan.name()
	switch {
	case d.scan.failed:
		return nil
	case d.scan.escaped:
		return d.unquote(quoted)
	}
	return quoted[1 : len(quoted)-1]
}

// message returns the text of the member "message" of an object that was read
// before, "" if one of that name is neither text nor null. Of several the last
// counts.
func (d *decoder) message(object jsontext.Value) (message string) {
	of := decoder{scan: scanner{text: object}}
	of.scan.enter()
	for n := 0; of.scan.more(n, '}'); n++ {
		isMessage := string(of.name()) == "message"
		v := of.scan.value()
		if !isMessage {
			continue
		}
		var ok bool
		if message, ok = d.text(v); !ok && !isNull(v) {
			return ""
		}
	}
	return message
}

// scope says which object's members are being read.
type scope uint8

const (
	scopeEvent scope = iota
	scopeItem
	scopeUsage
)

// enter returns the scope that a member of the event opens. The first "item"
// counts, like the first of every name.
func (ev *wireEvent) enter(name []byte) scope {
	switch {
	case string(name) == "item" && !ev.hasItem:
		ev.hasItem = true
		return scopeItem
	case string(name) == "usage" && !ev.hasUsage:
		ev.hasUsage = true
		return scopeUsage
	}
	return scopeEvent
}

// field returns where the value of that name goes, nil if it is not needed.
func (ev *wireEvent) field(in scope, name []byte) *jsontext.Value {
	switch in {
	case scopeItem:
		return ev.item.field(name)
	case scopeUsage:
		return ev.usage.field(name)
	}
	switch string(name) {
	case "type":
		return &ev.typ
	case "thread_id":
		return &ev.threadID
	case "message":
		return &ev.message
	case "error":
		return &ev.err
	}
	return nil
}

func (u *wireUsage) field(name []byte) *jsontext.Value {
	switch string(name) {
	case "input_tokens":
		return &u.input
	case "cached_input_tokens":
		return &u.cached
	case "cache_write_input_tokens":
		return &u.cacheWrite
	case "output_tokens":
		return &u.output
	case "reasoning_output_tokens":
		return &u.reasoning
	}
	return nil
}

// total returns the counts, and whether there are any and all are counts.
func (u *wireUsage) total() (t domain.Usage, ok bool) {
	for _, f := range []struct {
		from jsontext.Value
		to   *int64
	}{
		{u.input, &t.InputTokens}, {u.cached, &t.CachedInputTokens}, {u.cacheWrite, &t.CacheWriteTokens},
		{u.output, &t.OutputTokens}, {u.reasoning, &t.ReasoningTokens},
	} {
		if isNull(f.from) {
			continue
		}
		n, err := strconv.ParseInt(string(f.from), 10, 64)
		if err != nil || n < 0 {
			return domain.Usage{}, false
		}
		*f.to, ok = n, true
	}
	return t, ok
}

func (it *wireItem) field(name []byte) *jsontext.Value {
	switch string(name) {
	case "id":
		return &it.id
	case "type":
		return &it.typ
	case "status":
		return &it.status
	case "text":
		return &it.text
	case "message":
		return &it.message
	case "command":
		return &it.command
	case "aggregated_output":
		return &it.output
	case "exit_code":
		return &it.exitCode
	case "changes":
		return &it.changes
	case "items":
		return &it.todos
	case "server":
		return &it.server
	case "tool":
		return &it.tool
	case "arguments":
		return &it.arguments
	case "result":
		return &it.result
	case "error":
		return &it.err
	case "prompt":
		return &it.prompt
	case "receiver_thread_ids":
		return &it.receivers
	case "agents_states":
		return &it.agents
	case "query":
		return &it.query
	case "action":
		return &it.action
	}
	return nil
}

// unquote returns the text of a JSON string, U+FFFD in place of what is no
// valid UTF-8. It is valid until the next call.
func (d *decoder) unquote(v jsontext.Value) []byte {
	b := appendUnquoted(d.scratch[:0], v)
	if cap(b) <= maxScratch {
		d.scratch = b[:0]
	}
	return b
}

// word returns the bytes of a JSON string that is compared with known ones; nil
// if it is no string.
func (d *decoder) word(v jsontext.Value) []byte {
	if len(v) < 2 || v[0] != '"' {
		return nil
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	return bytes.Clone(d.unquote(v))
}

// text returns the text of a JSON string, and whether it is one.
func (d *decoder) text(v jsontext.Value) (string, bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner), true
	}
	return string(d.unquote(v)), true
}

// orEmpty is text without the question whether there is one.
func (d *decoder) orEmpty(v jsontext.Value) string {
	s, _ := d.text(v)
	return s
}
