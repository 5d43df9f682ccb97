package claude

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// toolKinds classifies the agent's own tools and the model's server tools;
// everything else, tools of MCP servers above all, is "other". The names are
// those of system/init and of sdk-tools.d.ts in the npm package, with those of
// earlier releases.
var toolKinds = map[string]domain.ToolKind{
	"Bash": domain.ToolExecute, "PowerShell": domain.ToolExecute, "KillShell": domain.ToolExecute,
	"Monitor": domain.ToolExecute, "TaskStop": domain.ToolExecute,
	"code_execution": domain.ToolExecute, "bash_code_execution": domain.ToolExecute,
	"Read": domain.ToolRead, "NotebookRead": domain.ToolRead, "BashOutput": domain.ToolRead,
	"TaskOutput": domain.ToolRead, "ReadMcpResource": domain.ToolRead, "ReadMcpResourceDir": domain.ToolRead,
	"Write": domain.ToolEdit, "Edit": domain.ToolEdit, "MultiEdit": domain.ToolEdit,
	"NotebookEdit": domain.ToolEdit, "text_editor_code_execution": domain.ToolEdit,
	"Glob": domain.ToolSearch, "Grep": domain.ToolSearch, "LS": domain.ToolSearch, "ToolSearch": domain.ToolSearch,
	"WebFetch": domain.ToolFetch, "WebSearch": domain.ToolFetch,
	"web_fetch": domain.ToolFetch, "web_search": domain.ToolFetch,
	"Task": domain.ToolThink, "Agent": domain.ToolThink, "TodoWrite": domain.ToolThink,
	"TaskCreate": domain.ToolThink, "TaskUpdate": domain.ToolThink, "TaskList": domain.ToolThink,
	"TaskGet": domain.ToolThink, "EnterPlanMode": domain.ToolThink, "ExitPlanMode": domain.ToolThink,
}

func toolKind(name string) domain.ToolKind {
	if kind, ok := toolKinds[name]; ok {
		return kind
	}
	return domain.ToolOther
}

// assistant handles a line of the model's. Each holds one finished block of a
// message as the CLI writes them today, but any number is read. A line that
// reports an API failure holds the CLI's own words, from a model "<synthetic>";
// they are text like the model's, as the result's are, which repeats them.
func (p *parser) assistant(e *envelope) {
	parent := e.parent.str()
	if parent == "" {
		// A line without an error means that the API has recovered.
		p.failure = e.failure.str()
	}
	switch {
	case !e.hasMessage || e.tooMany:
		p.unknown(e)
	case e.content.isString():
		p.text(e.content, parent)
	default:
		for i := range e.blocks {
			p.assistantBlock(&e.blocks[i], parent)
		}
	}
}

func (p *parser) text(v value, parent string) {
	text := v.str()
	if parent == "" {
		p.lastText = text
	}
	p.emit(domain.Text{Text: text, Parent: parent})
}

func (p *parser) assistantBlock(b *block, parent string) {
	switch typ := string(b.typ.name()); typ {
	case "text":
		p.text(b.text, parent)
	case "thinking", "redacted_thinking":
		p.emit(domain.Thinking{Text: b.thinking.str(), Parent: parent})
	case "tool_use", "server_tool_use", "mcp_tool_use":
		p.toolCall(b, parent)
	default:
		if strings.HasSuffix(typ, "_tool_result") {
			p.serverToolResult(b, parent)
			return
		}
		p.rawEvent("assistant/"+typ, b.object)
	}
}

func (p *parser) toolCall(b *block, parent string) {
	call := domain.ToolCall{ID: b.id.str(), Name: b.name.str(), Input: b.input.raw(), Parent: parent}
	call.Kind = toolKind(call.Name)
	t := tool{name: call.Name, parent: parent}
	if call.Kind == domain.ToolEdit {
		var file, notebook value
		p.sub.pick(b.input, field{"file_path", &file}, field{"notebook_path", &notebook})
		t.path = file.str()
		if t.path == "" {
			t.path = notebook.str()
		}
	}
	if len(p.tools) < maxCalls && len(call.ID)+len(t.name)+len(t.parent)+len(t.path) <= maxCall {
		p.tools[call.ID] = t
	}
	p.emit(call)
	// The list of a subagent is not the list of the turn.
	if call.Name == "TodoWrite" && parent == "" {
		p.todo(b.input)
	}
}

func (p *parser) todo(input value) {
	var todos value
	p.sub.pick(input, field{"todos", &todos})
	if !todos.isArray() {
		return
	}
	var elements []value
	p.sub.reset(todos)
	p.sub.enter('[')
	for p.sub.more() && len(elements) < maxElements {
		elements = append(elements, p.sub.value())
	}
	list := domain.Todo{Items: make([]domain.TodoItem, 0, len(elements))}
	for _, element := range elements {
		var content, status value
		p.sub.pick(element, field{"content", &content}, field{"status", &status})
		list.Items = append(list.Items, domain.TodoItem{Text: content.str(), Status: status.str()})
	}
	p.emit(list)
}

// serverToolResult handles the result of a tool that the model's own servers
// ran, which comes as a block of the assistant's.
func (p *parser) serverToolResult(b *block, parent string) {
	result := domain.ToolResult{ID: b.toolUseID.str(), Status: domain.ToolCompleted, Parent: parent}
	var code value
	p.sub.pick(b.content, field{"error_code", &code})
	switch {
	case code != nil:
		result.Status, result.Output = domain.ToolFailed, code.str()
	case b.content.isObject():
		result.Output = string(b.content.raw())
	default:
		result.Output = p.output(b.content)
	}
	if b.isError.isTrue() {
		result.Status = domain.ToolFailed
	}
	delete(p.tools, result.ID)
	p.emit(result)
}

// user handles a line in the user's name: the results of tools, in the order
// in which they finished, and texts that the CLI itself puts in.
func (p *parser) user(e *envelope) {
	parent := e.parent.str()
	if !e.hasMessage || e.tooMany {
		p.unknown(e)
		return
	}
	if e.content.isString() {
		p.userText(e.content)
	}
	for i := range e.blocks {
		switch b := &e.blocks[i]; string(b.typ.name()) {
		case "tool_result":
			p.toolResult(e, b, parent)
		case "text":
			p.userText(b.text)
		default:
			p.rawEvent("user/"+b.typ.str(), b.object)
		}
	}
}

func (p *parser) userText(v value) { p.notice(domain.NoticeInfo, v.str()) }

func (p *parser) toolResult(e *envelope, b *block, parent string) {
	result := domain.ToolResult{ID: b.toolUseID.str(), Status: domain.ToolCompleted, Output: p.output(b.content), Parent: parent}
	t := p.tools[result.ID]
	if b.isError.isTrue() {
		result.Status = domain.ToolFailed
		if p.wasDenied(result.ID, e.toolMeta) {
			result.Status = domain.ToolDenied
		}
	}
	if t.name == "Bash" {
		result.ExitCode = exitCode(&result, &e.toolResult)
	}
	delete(p.tools, result.ID)
	delete(p.denied, result.ID)
	p.emit(result)
	if result.Status == domain.ToolCompleted && toolKind(t.name) == domain.ToolEdit {
		p.fileChange(&result, t, &e.toolResult)
	}
}

// wasDenied says whether a failed tool call failed for want of permission. The
// line's own word on the decision counts most: "user-rejected" alone is also
// said of a call that was stopped while it ran.
func (p *parser) wasDenied(id string, meta value) bool {
	if meta.isArray() {
		var decision value
		p.sub.reset(meta)
		p.sub.enter('[')
		for p.sub.more() {
			decision = p.toolDecision(id, decision)
		}
		if decision != nil {
			return string(decision.name()) == "reject"
		}
	}
	_, denied := p.denied[id]
	return denied
}

// toolDecision reads one element of tool_result_meta and returns the decision
// in it if it is about the tool call, and the earlier one otherwise.
func (p *parser) toolDecision(id string, earlier value) value {
	if ok, _ := p.sub.enter('{'); !ok {
		return earlier
	}
	var about, decision value
	for p.sub.more() {
		switch string(p.sub.name()) {
		case "id":
			about = p.sub.value()
		case "permission_decision":
			if ok, _ := p.sub.enter('{'); !ok {
				continue
			}
			for p.sub.more() {
				if name, v := p.sub.name(), p.sub.value(); string(name) == "decision" {
					decision = v
				}
			}
		default:
			p.sub.value()
		}
	}
	if decision == nil || about.str() != id {
		return earlier
	}
	return decision
}

// exitCode returns the exit code of a Bash call: 0 unless it failed, and what
// its output begins with if it did ("Exit code 3\n…"). A command that goes on
// in the background has none yet.
func exitCode(result *domain.ToolResult, t *toolResult) *int {
	code := 0
	if result.Status != domain.ToolCompleted {
		rest, ok := strings.CutPrefix(result.Output, "Exit code ")
		if !ok {
			return nil
		}
		first, _, _ := strings.Cut(rest, "\n")
		n, err := strconv.Atoi(strings.TrimSpace(first))
		if err != nil {
			return nil
		}
		code = n
	} else if t.background != nil || t.interrupted.isTrue() {
		return nil
	}
	return &code
}

// fileChange reports the file that an edit changed. In a subagent's lines
// tool_use_result is missing; then the path is that of the call, and only the
// wording tells a new file.
func (p *parser) fileChange(result *domain.ToolResult, t tool, r *toolResult) {
	edit := domain.FileEdit{Path: r.filePath.str(), Kind: "update"}
	if edit.Path == "" {
		edit.Path = r.notebookPath.str()
	}
	if edit.Path == "" {
		edit.Path = t.path
	}
	if edit.Path == "" {
		return
	}
	if string(r.typ.name()) == "create" || r.typ == nil && strings.HasPrefix(result.Output, "File created successfully") {
		edit.Kind = "add"
	}
	p.emit(domain.FileChange{ID: result.ID, Status: result.Status, Changes: []domain.FileEdit{edit}, Parent: result.Parent})
}

// output flattens the content of a tool's result: a string, or blocks, of
// which the text is taken and everything else is named.
func (p *parser) output(content value) string {
	if !content.isArray() {
		return content.str()
	}
	var b strings.Builder
	p.sub.reset(content)
	p.sub.enter('[')
	for i := 0; p.sub.more(); i++ {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.outputBlock())
	}
	return b.String()
}

func (p *parser) outputBlock() string {
	ok, v := p.sub.enter('{')
	if !ok {
		return v.str()
	}
	var typ, text, title, url, media, data value
	for p.sub.more() {
		switch string(p.sub.name()) {
		case "type":
			typ = p.sub.value()
		case "text":
			text = p.sub.value()
		case "title":
			title = p.sub.value()
		case "url":
			url = p.sub.value()
		case "source":
			if ok, _ := p.sub.enter('{'); !ok {
				continue
			}
			for p.sub.more() {
				switch string(p.sub.name()) {
				case "media_type":
					media = p.sub.value()
				case "data":
					data = p.sub.value()
				default:
					p.sub.value()
				}
			}
		default:
			p.sub.value()
		}
	}
	switch {
	case text.isString():
		return text.str()
	case url.isString():
		return join(title.str(), url.str())
	case data.isString():
		return fmt.Sprintf("[%s %s, %d bytes of base64]", typ.str(), media.str(), len(data)-2)
	}
	return "[" + typ.str() + "]"
}
