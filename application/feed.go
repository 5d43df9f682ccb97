package application

import (
	"sync"

	"github.com/caisson-run/caisson/domain"
)

const (
	// feedEvents and feedBytes bound the events of a turn that wait in memory for
	// its reader. A reader that falls further behind reads them from the log.
	feedEvents = 32
	feedBytes  = 16 << 10
)

// feed hands a turn's events from the flow that records them to the one that
// reads them. It never makes the first one wait: what does not fit is dropped,
// since the log has it. The final does not go through it.
type feed struct {
	mu     sync.Mutex
	recent []domain.Event // without gaps, up to the last one
	bytes  int            // roughly
	last   uint64         // the number of the last one that was put in
	over   bool
	more   chan struct{} // has a token when something changed
}

func newFeed() *feed { return &feed{more: make(chan struct{}, 1)} }

// put adds an event that is in the log.
func (f *feed) put(e domain.Event) {
	f.mu.Lock()
	f.last = e.Seq
	if size := payload(e.Reply); size <= feedBytes {
		f.recent = append(f.recent, e)
		f.bytes += size
	} else {
		f.recent, f.bytes = nil, 0 // those before it are in the log too
	}
	for len(f.recent) > feedEvents || f.bytes > feedBytes {
		f.bytes -= payload(f.recent[0].Reply)
		f.recent[0] = domain.Event{}
		f.recent = f.recent[1:]
	}
	f.mu.Unlock()
	f.wake()
}

// finish says that nothing is put in any more.
func (f *feed) finish() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
	f.wake()
}

func (f *feed) wake() {
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// await returns when there is something to read from a number on: that event
// itself, or the number of the last one, up to which the log has them; 0 if there
// are none and will be none. There is one caller.
func (f *feed) await(seq uint64) (e domain.Event, here bool, upTo uint64) {
	for {
		f.mu.Lock()
		for len(f.recent) > 0 && f.recent[0].Seq < seq {
			f.bytes -= payload(f.recent[0].Reply)
			f.recent[0] = domain.Event{}
			f.recent = f.recent[1:]
		}
		switch {
		case len(f.recent) > 0 && f.recent[0].Seq == seq:
			e, here = f.recent[0], true
		case seq <= f.last:
			upTo = f.last
		}
		over := f.over
		f.mu.Unlock()
		if here || upTo > 0 || over {
			return e, here, upTo
		}
		<-f.more
	}
}

// payload is roughly the size of an event in memory: of those of its parts that
// can be large.
func payload(r domain.ReplyEvent) int {
	const rest = 256
	switch r := r.(type) {
	case domain.Text:
		return rest + len(r.Text)
	case domain.TextDelta:
		return rest + len(r.Text)
	case domain.Thinking:
		return rest + len(r.Text)
	case domain.ToolCall:
		return rest + len(r.Input)
	case domain.ToolUpdate:
		return rest + len(r.Output)
	case domain.ToolResult:
		return rest + len(r.Output)
	case domain.FileChange:
		return rest + rest*len(r.Changes)
	case domain.Todo:
		return rest + rest*len(r.Items)
	case domain.Permission:
		return rest + len(r.Input) + len(r.Reason)
	case domain.Tripwires:
		return rest + rest*len(r.Changes)
	case domain.Notice:
		return rest + len(r.Message)
	case domain.Log:
		return rest + len(r.Line)
	case domain.Raw:
		return rest + len(r.JSON)
	case domain.Oversize:
		return rest + len(r.Head)
	case domain.Final:
		return rest + len(r.Text)
	case domain.SandboxApplied:
		return rest + rest*len(r.Receipt.Rules)
	case domain.ConversationStarted, domain.UsageReport:
		return rest
	}
	return rest
}
