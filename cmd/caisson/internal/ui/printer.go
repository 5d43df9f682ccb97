package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// The first columns. No two begin with the same character.
const (
	ownMark    = "caisson: "
	textMark   = "  "
	toolMark   = "* "
	thinkMark  = "~ "
	noticeMark = "! "
)

const (
	shortInput   = 160 // characters of a tool's input
	outputEnds   = 3   // lines of a tool's output, at each of its ends
	stderrLines  = 10  // of a failed turn
	subagentStep = "  "
	outputMark   = "| " // after toolMark: what a tool says is not what Caisson says of it
)

// Options say what the output can do. The zero value is for a pipe.
type Options struct {
	// Width returns the terminal's present width in columns; nil, or a result
	// of 0 or less, for no terminal.
	Width func() int
	// Colour allows colours.
	Colour bool
}

// Printer prints events. It is not safe for concurrent use.
type Printer struct {
	w    io.Writer
	opt  Options
	buf  bytes.Buffer
	said string            // the last text that was printed
	tool map[string]string // names of the running tools, by id
	errs []string          // the last lines of stderr that were printed
	// noted is the last line of notes that was printed.
	noted string
}

// New returns a printer on w.
func New(w io.Writer, opt Options) *Printer {
	if opt.Width == nil {
		opt.Width = func() int { return 0 }
	}
	return &Printer{w: w, opt: opt, tool: map[string]string{}}
}

// Own prints a line of Caisson's own. It is escaped whole, so that no argument
// can end the line.
func (p *Printer) Own(format string, args ...any) error {
	p.own(format, args...)
	return p.flush()
}

// Event prints one event, with one write. The error is the writer's.
func (p *Printer) Event(e domain.Event) error {
	switch r := e.Reply.(type) {
	case domain.SandboxApplied:
		p.own("%s", r.Receipt.String())
		// They are the same for every turn of a session, and long.
		if notes := strings.Join(r.Receipt.Agent, "; "); e.Turn <= 1 && notes != p.noted {
			p.own("notes: %s", notes)
			p.noted = notes
		}
	case domain.ConversationStarted:
		p.put(toolMark, strings.Join(filled(string(e.Agent), r.AgentVersion, r.Model), " "))
	case domain.Text:
		p.said = r.Text
		p.block(textMark+nested(r.Parent), r.Text)
	case domain.TextDelta, domain.UsageReport, domain.ToolUpdate:
		// Told again, and whole, by a later event.
	case domain.Raw:
		// What Caisson does not know, a person cannot use; --output json has it.
	case domain.Thinking:
		p.block(thinkMark+nested(r.Parent), r.Text)
	case domain.ToolCall:
		p.tool[r.ID] = r.Name
		p.put(toolMark+nested(r.Parent), strings.Join(filled(string(r.Kind), r.Name, short(r.Input)), " "))
	case domain.ToolResult:
		p.result(r)
	case domain.FileChange:
		for _, c := range r.Changes {
			p.put(toolMark+nested(r.Parent), strings.Join(filled(c.Kind, c.Path, notCompleted(r.Status)), " "))
		}
	case domain.Todo:
		for _, i := range r.Items {
			p.put(toolMark, "todo ["+i.Status+"] "+i.Text)
		}
	case domain.Permission:
		what := "asks for permission: " + r.Tool + " " + short(r.Input)
		if r.Decision != "" {
			what = strings.Join(filled("permission", r.Decision, r.Tool, r.Reason), " ")
		}
		p.put(noticeMark, what)
	case domain.Notice:
		s := string(r.Class) + ": " + r.Message
		if r.Attempt > 0 {
			s += fmt.Sprintf(" (attempt %d, in %s)", r.Attempt, r.Delay)
		}
		p.put(noticeMark, s)
	case domain.Tripwires:
		for _, c := range r.Changes {
			p.own("look before you go on: %s %s: %s", map[string]string{"add": "made", "update": "changed", "delete": "removed"}[c.Kind], c.Path, c.Runs)
		}
	case domain.Log:
		if r.Stream == "stderr" {
			p.errs = append(p.errs, r.Line)
			p.errs = p.errs[max(0, len(p.errs)-stderrLines):]
		}
		p.put(noticeMark, r.Stream+": "+r.Line)
	case domain.Oversize:
		p.put(noticeMark, fmt.Sprintf("a line of %d bytes was left out", r.Bytes))
	case domain.Final:
		p.final(e.Session, r)
	}
	return p.flush()
}

func (p *Printer) result(r domain.ToolResult) {
	parts := filled(p.tool[r.ID], string(r.Status))
	delete(p.tool, r.ID)
	if r.ExitCode != nil {
		parts = append(parts, fmt.Sprintf("(exit %d)", *r.ExitCode))
	}
	mark, s := toolMark+nested(r.Parent), strings.Join(parts, " ")
	text := strings.TrimRight(strings.TrimLeft(strings.ReplaceAll(r.Output, "\r\n", "\n"), "\n"), " \t\n")
	lines := strings.Split(text, "\n")
	if len(lines) == 1 {
		if text != "" {
			s += ": " + text
		}
		p.put(mark, s)
		return
	}
	p.put(mark, s)
	hidden := 0
	for i, show := range excerpt(lines) {
		if !show {
			hidden++
			continue
		}
		p.gap(mark, hidden)
		hidden = 0
		p.put(mark+outputMark, lines[i])
	}
}

// gap says that lines of a tool's output are left out.
func (p *Printer) gap(mark string, lines int) {
	if lines > 0 {
		p.put(mark, fmt.Sprintf("… +%d lines", lines))
	}
}

// excerpt says which lines of a tool's output to show: both ends, for errors
// come last, and the first one that tells of a denial, for that is what a
// sandbox is asked about.
func excerpt(lines []string) []bool {
	show := make([]bool, len(lines))
	denied := false
	for i, line := range lines {
		// One line less is not worth the line that says so.
		show[i] = i < outputEnds || i >= len(lines)-outputEnds || len(lines) == 2*outputEnds+1
		if !denied && tellsOfDenial(line) {
			denied, show[i] = true, true
		}
	}
	return show
}

// tellsOfDenial looks for the texts of EACCES and EPERM.
func tellsOfDenial(line string) bool {
	line = strings.ToLower(line)
	return strings.Contains(line, "permission denied") || strings.Contains(line, "operation not permitted")
}

func (p *Printer) final(id domain.SessionID, f domain.Final) {
	if t := strings.TrimSpace(f.Text); t != "" && t != strings.TrimSpace(p.said) && (f.Error == nil || f.Error.Message != f.Text) {
		p.block(textMark, f.Text)
	}
	if f.Error != nil {
		p.block(noticeMark, strings.Join(filled(f.Error.Class, f.Error.Message), ": "))
		tail := strings.Split(strings.TrimSpace(f.Error.StderrTail), "\n")
		for _, line := range tail[max(0, len(tail)-stderrLines):] {
			// What was told when it came is not told again.
			if line != "" && !slices.Contains(p.errs, line) {
				p.put(noticeMark, "stderr: "+line)
			}
		}
	}
	p.errs = nil
	u := f.Usage
	parts := []string{string(f.Outcome), "exit status unknown"}
	if f.Duration > 0 { // otherwise nobody was there to take the time
		parts[0] += fmt.Sprintf(" in %s", round(f.Duration))
	}
	if f.Exit.Known {
		parts[1] = f.Exit.String()
	}
	if u != (domain.Usage{}) {
		parts = append(parts, fmt.Sprintf("%d tokens in (%d cached), %d out", u.InputTokens, u.CachedInputTokens, u.OutputTokens))
	}
	if f.CostUSD != nil {
		parts = append(parts, fmt.Sprintf("$%.4f", *f.CostUSD))
	}
	p.own("%s", strings.Join(parts, "; "))
	if id != "" {
		p.own("continue with: --resume %s", id)
	}
}

func (p *Printer) own(format string, args ...any) {
	on, off := "", ""
	if p.opt.Colour {
		on, off = "\x1b[1m", "\x1b[0m"
	}
	// What follows on further lines must not look like a line of its own.
	for i, piece := range wrap(ownMark+Line(fmt.Sprintf(format, args...)), p.opt.Width()-len(textMark)) {
		if i > 0 {
			p.buf.WriteString(textMark)
		}
		p.buf.WriteString(on + piece + off + "\n")
	}
}

// put prints one line of the agent's.
func (p *Printer) put(mark, s string) { p.lines(mark, Cut(Line(s), 4*shortInput)) }

// block prints a text of the agent's, all its lines marked.
func (p *Printer) block(mark, s string) {
	for line := range strings.SplitSeq(strings.TrimRight(Escape(s), "\n"), "\n") {
		p.lines(mark, line)
	}
}

func (p *Printer) lines(mark, line string) {
	on, off := "", ""
	if p.opt.Colour && mark[:2] != textMark {
		on, off = "\x1b[2m", "\x1b[0m"
	}
	for _, piece := range wrap(line, p.opt.Width()-len(mark)) {
		p.buf.WriteString(on + mark + piece + off + "\n")
	}
}

func (p *Printer) flush() error {
	_, err := p.w.Write(p.buf.Bytes())
	p.buf.Reset()
	return err
}

func nested(parent string) string {
	if parent == "" {
		return ""
	}
	return subagentStep
}

func notCompleted(s domain.ToolStatus) string {
	if s == domain.ToolCompleted {
		return ""
	}
	return string(s)
}

// telling are the fields of a tool's input that say most, best first.
var telling = []string{"command", "cmd", "file_path", "path", "pattern", "query", "url", "description", "prompt"}

// short shows a tool's input in a few words.
func short(input []byte) string {
	var fields map[string]any
	if json.Unmarshal(input, &fields) == nil {
		for _, name := range telling {
			switch v := fields[name].(type) {
			case string:
				return Cut(v, shortInput)
			case []any:
				return Cut(strings.TrimSpace(fmt.Sprintln(v...)), shortInput)
			}
		}
		if edits := edits(fields["changes"]); edits != "" {
			return Cut(edits, shortInput)
		}
	}
	return Cut(string(input), shortInput)
}

// edits shows a list of edits of files, as Codex has them: kinds and paths.
func edits(changes any) string {
	list, _ := changes.([]any)
	var parts []string
	for _, c := range list {
		edit, _ := c.(map[string]any)
		path, _ := edit["path"].(string)
		kind, _ := edit["kind"].(string)
		if path == "" {
			return ""
		}
		parts = append(parts, strings.Join(filled(kind, path), " "))
	}
	return strings.Join(parts, ", ")
}

func filled(parts ...string) []string {
	var f []string
	for _, s := range parts {
		if s != "" {
			f = append(f, s)
		}
	}
	return f
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
