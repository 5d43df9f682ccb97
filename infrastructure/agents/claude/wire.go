package claude

// envelope holds what one event line says. The lines that come often have fields
// of their own, down to where they nest; the members of the others wait in rest.
// The names are those of the CLI's stream-json output. Values point into the
// line.
type envelope struct {
	object       value // the whole event
	typ, subtype value
	sessionID    value
	parent       value // parent_tool_use_id
	failure      value // error: a code, on an assistant line that reports an API failure
	toolResult   toolResult
	toolMeta     value   // tool_result_meta
	hasMessage   bool    // and it is an object
	message      value   // if it is none
	content      value   // of the message
	blocks       []block // of the content
	tooMany      bool    // more blocks than are read
	eventType    value   // stream_event: event.type
	deltaType    value   // stream_event: event.delta.type
	deltaText    value   // stream_event: event.delta.text
	rest         []member
}

// member is a member of an object.
type member struct {
	name  []byte
	value value
}

// pick looks for members in the rest.
func (e *envelope) pick(fields ...field) {
	for _, m := range e.rest {
		for _, f := range fields {
			if string(m.name) == f.name {
				*f.to = m.value
				break
			}
		}
	}
}

// block is one block of a message's content.
type block struct {
	object    value
	typ       value
	text      value
	thinking  value
	id        value
	name      value
	input     value
	toolUseID value
	content   value
	isError   value
}

// toolResult is the part of tool_use_result that is looked at. The whole holds
// both versions of an edited file, so it is not kept.
type toolResult struct {
	typ          value // of Write: "create" or "update"
	filePath     value // of Write and Edit
	notebookPath value // of NotebookEdit
	background   value // of Bash: the task that it was moved to
	interrupted  value // of Bash
}

// envelope reads the next object of the text into e.
func (r *reader) envelope(e *envelope) {
	*e = envelope{blocks: e.blocks[:0], rest: e.rest[:0]}
	r.enter('{')
	start := r.offset() - 1
	for r.more() {
		switch name := r.name(); string(name) {
		case "type":
			e.typ = r.value()
		case "subtype":
			e.subtype = r.value()
		case "session_id":
			e.sessionID = r.value()
		case "parent_tool_use_id":
			e.parent = r.value()
		case "error":
			e.failure = r.value()
		case "tool_result_meta":
			e.toolMeta = r.value()
		case "tool_use_result":
			r.toolResult(&e.toolResult)
		case "message":
			r.message(e)
		case "event":
			r.streamEvent(e)
		default:
			if v := r.value(); len(e.rest) < maxElements {
				e.rest = append(e.rest, member{name, v})
			}
		}
	}
	e.object = r.since(start)
}

func (r *reader) message(e *envelope) {
	e.content, e.blocks, e.tooMany = nil, e.blocks[:0], false // of an earlier duplicate
	if e.hasMessage, e.message = r.enter('{'); !e.hasMessage {
		return
	}
	for r.more() {
		if string(r.name()) == "content" {
			r.content(e)
		} else {
			r.value()
		}
	}
}

func (r *reader) content(e *envelope) {
	e.blocks, e.tooMany = e.blocks[:0], false
	var ok bool
	if ok, e.content = r.enter('['); !ok {
		return
	}
	start := r.offset() - 1
	for r.more() {
		if len(e.blocks) == maxElements {
			e.tooMany = true
			r.value()
			continue
		}
		e.blocks = append(e.blocks, block{})
		r.block(&e.blocks[len(e.blocks)-1])
	}
	e.content = r.since(start)
}

func (r *reader) block(b *block) {
	ok, v := r.enter('{')
	if !ok {
		b.object = v
		return
	}
	start := r.offset() - 1
	for r.more() {
		switch string(r.name()) {
		case "type":
			b.typ = r.value()
		case "text":
			b.text = r.value()
		case "thinking":
			b.thinking = r.value()
		case "id":
			b.id = r.value()
		case "name":
			b.name = r.value()
		case "input":
			b.input = r.value()
		case "tool_use_id":
			b.toolUseID = r.value()
		case "content":
			b.content = r.value()
		case "is_error":
			b.isError = r.value()
		default:
			r.value()
		}
	}
	b.object = r.since(start)
}

func (r *reader) toolResult(t *toolResult) {
	*t = toolResult{}
	if ok, _ := r.enter('{'); !ok {
		return
	}
	for r.more() {
		switch string(r.name()) {
		case "type":
			t.typ = r.value()
		case "filePath":
			t.filePath = r.value()
		case "notebook_path":
			t.notebookPath = r.value()
		case "backgroundTaskId":
			t.background = r.value()
		case "interrupted":
			t.interrupted = r.value()
		default:
			r.value()
		}
	}
}

func (r *reader) streamEvent(e *envelope) {
	e.eventType, e.deltaType, e.deltaText = nil, nil, nil
	if ok, _ := r.enter('{'); !ok {
		return
	}
	for r.more() {
		switch string(r.name()) {
		case "type":
			e.eventType = r.value()
		case "delta":
			e.deltaType, e.deltaText = nil, nil
			if ok, _ := r.enter('{'); !ok {
				continue
			}
			for r.more() {
				switch string(r.name()) {
				case "type":
					e.deltaType = r.value()
				case "text":
					e.deltaText = r.value()
				default:
					r.value()
				}
			}
		default:
			r.value()
		}
	}
}
