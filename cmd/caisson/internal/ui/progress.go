package ui

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// Progress keeps one line at the end of a terminal up to date: for how long the
// turn has been running, which tool runs, how many tokens were used. It is safe
// for concurrent use.
type Progress struct {
	w     io.Writer
	width func() int
	now   func() time.Time
	start time.Time

	mu     sync.Mutex
	tools  []tool // that run, in the order of their starts
	tokens int64
	shown  bool
	over   bool

	stop chan struct{}
	done chan struct{}
}

type tool struct{ id, name string }

// maxTools bounds the tools that are remembered as running.
const maxTools = 64

// NewProgress shows the line on w, a terminal of that width, until Stop is
// called, once.
func NewProgress(w io.Writer, width func() int) *Progress {
	p := &Progress{w: w, width: width, now: time.Now, start: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.mu.Lock()
				p.show()
				p.mu.Unlock()
			case <-p.stop:
				return
			}
		}
	}()
	return p
}

// Event takes note of an event, and runs write, which may write to the same
// terminal, while the line is out of its way.
func (p *Progress) Event(e domain.Event, write func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r := e.Reply.(type) {
	case domain.ToolCall:
		if len(p.tools) < maxTools {
			p.tools = append(p.tools, tool{r.ID, r.Name})
		}
	case domain.ToolResult:
		p.tools = without(p.tools, r.ID)
	case domain.UsageReport:
		p.tokens = r.Usage.InputTokens + r.Usage.OutputTokens
	case domain.Final:
		p.over = true
	default: // changes nothing
	}
	p.hide()
	err := write()
	p.show()
	return err
}

func without(tools []tool, id string) []tool {
	rest := tools[:0]
	for _, t := range tools {
		if t.id != id {
			rest = append(rest, t)
		}
	}
	return rest
}

// Stop takes the line away for good.
func (p *Progress) Stop() {
	close(p.stop)
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hide()
}

// hide and show write to a terminal that may be gone, which is not for them to
// say.
func (p *Progress) hide() {
	if p.shown {
		_, _ = io.WriteString(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *Progress) show() {
	if p.over {
		return
	}
	_, _ = io.WriteString(p.w, "\r\x1b[K"+p.line())
	p.shown = true
}

// line fits on one line of the terminal, so that it can be taken back.
func (p *Progress) line() string {
	parts := []string{p.now().Sub(p.start).Truncate(time.Second).String()}
	if n := len(p.tools); n > 0 {
		name := Cut(Line(p.tools[n-1].name), 40)
		if n > 1 {
			name += fmt.Sprintf(" and %d more", n-1)
		}
		parts = append(parts, name)
	}
	if p.tokens > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens", p.tokens))
	}
	return Fit(ownMark+strings.Join(parts, ", "), max(p.width(), 20))
}
