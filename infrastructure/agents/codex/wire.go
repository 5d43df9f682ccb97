package codex

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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
	usage    jsontext.Value
	hasItem  bool
	item     wireItem
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

type wireUsage struct {
	Input      int64 `json:"input_tokens"`
	Cached     int64 `json:"cached_input_tokens"`
	CacheWrite int64 `json:"cache_write_input_tokens"`
	Output     int64 `json:"output_tokens"`
	Reasoning  int64 `json:"reasoning_output_tokens"`
}

type wireChange struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

type wireTodo struct {
	Text      string `json:"text"`
	Completed bool   `json:"completed"`
}

type wireError struct {
	Message string `json:"message"`
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

// errNoObject says that a line has a JSON value other than an object.
var errNoObject = errors.New("not an object")

// decoder reads the objects of a line in one pass. It keeps its buffers between
// lines.
type decoder struct {
	dec     *jsontext.Decoder
	buf     bytes.Buffer
	line    []byte
	scratch []byte
}

// maxScratch is how much memory for unquoting is kept between lines.
const maxScratch = 256 << 10

func (d *decoder) reset(line []byte) {
	d.line = line
	// Of a bytes.Buffer the decoder reads in place, so that the values it
	// returns are parts of the line and stay valid.
	d.buf = *bytes.NewBuffer(line)
	if d.dec == nil {
		d.dec = jsontext.NewDecoder(&d.buf, lenient)
	} else {
		d.dec.Reset(&d.buf, lenient)
	}
}

// next reads one object. It returns io.EOF at the end of the line, and any
// other error for what is no JSON object.
func (d *decoder) next(ev *wireEvent) error {
	*ev = wireEvent{}
	switch d.dec.PeekKind() {
	case '{':
	case jsontext.KindInvalid:
		_, err := d.dec.ReadToken()
		return err
	default:
		return errNoObject
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return err
	}
	start := d.dec.InputOffset() - 1
	for d.dec.PeekKind() != '}' {
		name, err := d.name()
		if err != nil {
			return err
		}
		var field *jsontext.Value
		switch string(name) {
		case "type":
			field = &ev.typ
		case "thread_id":
			field = &ev.threadID
		case "message":
			field = &ev.message
		case "error":
			field = &ev.err
		case "usage":
			field = &ev.usage
		case "item":
			if !ev.hasItem && d.dec.PeekKind() == '{' {
				ev.hasItem = true
				if err := d.item(&ev.item); err != nil {
					return err
				}
				continue
			}
		}
		if err := d.value(field); err != nil {
			return err
		}
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return err
	}
	ev.raw = d.line[start:d.dec.InputOffset()]
	return nil
}

func (d *decoder) item(it *wireItem) error {
	if _, err := d.dec.ReadToken(); err != nil {
		return err
	}
	for d.dec.PeekKind() != '}' {
		name, err := d.name()
		if err != nil {
			return err
		}
		if err := d.value(it.field(name)); err != nil {
			return err
		}
	}
	_, err := d.dec.ReadToken()
	return err
}

// field returns where the value of that name goes, nil if it is not needed.
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

// name reads the name of a member. It is valid until the next one is read.
func (d *decoder) name() ([]byte, error) {
	v, err := d.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1], nil
	}
	return d.unquote(v), nil
}

// value reads a value into field, if there is one and it is still empty.
func (d *decoder) value(field *jsontext.Value) error {
	v, err := d.dec.ReadValue()
	if err != nil {
		return err
	}
	if field != nil && *field == nil {
		*field = v
	}
	return nil
}

// unquote returns the text of a JSON string, U+FFFD in place of what is no
// valid UTF-8. It is valid until the next call.
func (d *decoder) unquote(v jsontext.Value) []byte {
	// An error says that something was replaced.
	b, _ := jsontext.AppendUnquote(d.scratch[:0], v)
	if cap(b) <= maxScratch {
		d.scratch = b[:0]
	}
	return b
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
