package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/maphash"
	"iter"
	"strings"
	"sync/atomic"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
)

// errLeft is why a turn is cancelled whose events nobody wants any more.
var errLeft = errors.New("the reader of the turn's events left")

// Turn implements ports.Turn. A turn is in progress until its events have been
// read to their end, or its session is closed.
type Turn struct {
	session *Session
	run     *process.Run
	parser  ports.Parser
	taken   atomic.Bool
}

// Cancel implements ports.Turn.
func (t *Turn) Cancel(cause error) { t.run.Cancel(cause) }

// Process implements ports.Turn.
func (t *Turn) Process() domain.ProcessIdentity { return t.run.Process() }

// Kill implements ports.Turn.
func (t *Turn) Kill(cause error) { t.run.Kill(cause) }

// Events implements ports.Turn. Everything happens in the caller's own flow:
// the output waits in the spool for as long as the caller takes.
func (t *Turn) Events() iter.Seq2[domain.ReplyEvent, error] {
	return func(yield func(domain.ReplyEvent, error) bool) {
		if !t.taken.CompareAndSwap(false, true) {
			yield(nil, domain.ErrEventsConsumed)
			return
		}
		over := false
		defer func() {
			if over {
				return
			}
			// The caller's code panicked in the middle of the range, or ended its
			// goroutine.
			t.run.Cancel(errLeft)
			end, _ := t.run.Wait()
			t.session.finished(domain.Conclude(nil, end))
			_ = t.run.Close()
		}()
		r := reading{turn: t, yield: yield, open: map[uint64]bool{}, told: map[domain.Refusal]uint64{}}
		receipt := t.run.Receipt()
		receipt.Probe = t.session.probe
		receipt.Agent = append(receipt.Agent, t.session.spec.Notes...)
		r.give(domain.SandboxApplied{Receipt: receipt})
		err := t.run.Lines(r.line)
		if err != nil {
			t.run.Cancel(err)
		}
		end, fault := t.run.Wait()
		r.refusals(true)
		if err != nil {
			end.Cause, end.Detail = domain.EndInternal, err.Error()
		}
		end.CutLine = r.cut
		for _, e := range t.parser.Finish(end.Exit) {
			r.event(e)
		}
		final := domain.Conclude(r.claim, end)
		if final.ConversationID == "" {
			final.ConversationID = t.session.ConversationID()
		}
		err = errors.Join(err, fault, t.run.Close())
		t.session.finished(final)
		over = true
		r.give(final)
		if err != nil && !r.left {
			yield(nil, err)
		}
	}
}

// releaseUnread frees a turn that is over and whose events nobody has begun to
// read. It does nothing if somebody has.
func (t *Turn) releaseUnread() error {
	if !t.taken.CompareAndSwap(false, true) {
		return nil
	}
	end, fault := t.run.Wait()
	t.session.finished(domain.Conclude(nil, end))
	return errors.Join(fault, t.run.Close())
}

// maxOpenCalls bounds the tool calls that are counted as in flight. What an
// agent prints must not fill the orchestrator's memory.
const maxOpenCalls = 4096

var idSeed = maphash.MakeSeed()

// reading is the state of one pass over a turn's events.
type reading struct {
	turn  *Turn
	yield func(domain.ReplyEvent, error) bool
	left  bool            // the caller has left
	claim *domain.Final   // what the agent said last about its end
	open  map[uint64]bool // tool calls in flight, by the hashes of their ids
	cut   bool            // stdout ended in the middle of a line
	// told are the refusals that were told of, without their counts, each with the
	// count that was told.
	told map[domain.Refusal]uint64
}

// refusals tells of what was refused since the last time. Of what was told of once,
// only the last count is told again.
func (r *reading) refusals(last bool) {
	for _, refusal := range r.turn.run.Refused() {
		what := refusal
		what.Count = 0
		if told, ok := r.told[what]; ok && (!last || told == refusal.Count) {
			continue
		}
		r.told[what] = refusal.Count
		r.give(domain.Notice{Class: domain.NoticeDenial, Message: refusal.String(), Refused: refusal})
	}
}

// give hands an event to the caller, unless it has left. Leaving cancels the
// turn; its output is still parsed, so that ids and usage are not lost.
func (r *reading) give(e domain.ReplyEvent) {
	if !r.left && !r.yield(e, nil) {
		r.left = true
		r.turn.run.Cancel(errLeft)
	}
}

// line takes one line of output.
func (r *reading) line(l process.Line) error {
	r.refusals(false) // what a program was refused comes before what it says of that
	switch {
	case l.Oversize != nil && l.Stderr:
		r.give(domain.Log{Stream: "stderr", Line: strings.ToValidUTF8(string(l.Oversize.Head), "\uFFFD")})
		return nil
	case l.Oversize != nil:
		r.cut = r.cut || l.Partial
		r.give(*l.Oversize)
		return nil
	case l.Stderr:
		r.give(domain.Log{Stream: "stderr", Line: strings.ToValidUTF8(string(l.Text), "\uFFFD")})
		return nil
	}
	if l.Partial && isCut(l.Text) {
		r.cut = true
	}
	parsed, err := r.turn.parser.ParseEvent(l.Text)
	if err != nil {
		return err
	}
	for _, e := range parsed.Events {
		r.event(e)
	}
	if len(parsed.Write) > 0 {
		r.turn.run.Write(parsed.Write)
	}
	if parsed.CloseStdin {
		r.turn.run.CloseStdin()
	}
	if parsed.Done {
		r.turn.run.ResultGiven()
	}
	return nil
}

// event takes one event of the parser's.
func (r *reading) event(e domain.ReplyEvent) {
	switch e := e.(type) {
	case domain.Final:
		// The turn's final is made of the last claim, at the very end.
		r.claim = &e
		return
	case domain.ConversationStarted:
		r.turn.session.adopt(e.ConversationID)
	case domain.ToolCall:
		if len(r.open) < maxOpenCalls {
			r.open[maphash.String(idSeed, e.ID)] = true
		}
		r.turn.run.ToolsInFlight(len(r.open))
	case domain.ToolResult:
		delete(r.open, maphash.String(idSeed, e.ID))
		r.turn.run.ToolsInFlight(len(r.open))
	default: // passed on as it is
	}
	r.give(e)
}

// isCut reports whether a last line without a newline is the beginning of a
// JSON value and not the whole of one.
func isCut(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) > 0 && (text[0] == '{' || text[0] == '[') && !json.Valid(text)
}
