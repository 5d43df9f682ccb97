package application

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Turn is a turn that has been started. Its methods are safe for concurrent use.
//
// A turn records itself: what the agent says goes into the session's log as fast
// as it comes, whether anybody reads it or not, and whoever reads it reads what
// the log has. So a reader that stalls costs nothing and loses nothing.
type Turn struct {
	session *Session
	inner   ports.Turn
	ctx     context.Context // of Send, which governs the turn
	number  int
	start   time.Time
	first   uint64 // the number of its first event
	before  trips  // what the tripwires looked like; nil if nobody looks at them

	cancel atomic.Pointer[error] // the cause of the first Cancel
	taken  atomic.Bool           // somebody has its events
	feed   *feed
	redact *redactor
	// recording is ctx without its end, which must not stop the bookkeeping.
	recording context.Context
	begun     chan struct{} // closed when the agent's events are being taken
	done      chan struct{} // closed when the turn is over; then the rest stands

	announced string // the conversation's id as the agent gave it in this turn
	synthetic bool   // the final is not the agent's
	final     domain.Event
	err       error // of Caisson's own
}

// Number returns the number of the turn in its session, from 1.
func (t *Turn) Number() int { return t.number }

// Events yields the turn's events, numbered without gaps through the whole
// session: the receipt first, and exactly one final, last, whatever became of
// the agent. If the agent's stream has none, the final is made up of what is
// known; if it has several, the first counts, and what comes after it is
// dropped and logged. Every event is in the session's log before it is yielded,
// and the final when the session is ready for its next turn and its record is
// saved.
//
// The events can be ranged over once; a second time yields
// domain.ErrEventsConsumed. Leaving early cancels the turn and returns when its
// process tree is gone; what came is in the log all the same. Of a turn that
// nobody had begun to read when a session that is kept nowhere was closed, there
// is only the final. The error is non-nil at most once, after the final, and only
// for failures of Caisson's own, never of the agent.
//
// An event that a slow reader gets from the log has what its encoding carries:
// times in whole milliseconds, for example.
func (t *Turn) Events() iter.Seq2[domain.Event, error] {
	return func(yield func(domain.Event, error) bool) {
		if !t.taken.CompareAndSwap(false, true) {
			yield(domain.Event{}, domain.ErrEventsConsumed)
			return
		}
		t.session.reading(1)
		over := false
		// The caller may leave, and its code may panic in the middle of the range.
		defer func() {
			if !over {
				t.Cancel(errLeft)
				<-t.done
				t.logIf("a fault of a turn that its reader left", t.err)
			}
			t.session.reading(-1)
			t.logIf("the session could not be settled", t.session.settleIfLast(t.recording))
		}()
		fault, left := t.read(func(e domain.Event) bool { return yield(e, nil) })
		if left {
			return
		}
		<-t.done
		if !yield(t.final, nil) {
			over = true
			t.logIf("the reader left before it could be told", errors.Join(t.err, fault))
			return
		}
		over = true
		if err := errors.Join(t.err, fault); err != nil {
			yield(domain.Event{}, err)
		}
	}
}

// read gives all events but the final to the function, until it returns false.
func (t *Turn) read(give func(domain.Event) bool) (fault error, left bool) {
	for next := t.first; ; {
		e, here, upTo := t.feed.await(next)
		if here {
			if !give(e) {
				return nil, true
			}
			next++
			continue
		}
		if upTo == 0 {
			return nil, false
		}
		for e, err := range t.session.o.store.Replay(t.recording, t.session.id, next) {
			if err != nil {
				return fmt.Errorf("read the turn's events from the log: %w", err), false
			}
			if e.Seq > upTo {
				break
			}
			if !give(e) {
				return nil, true
			}
			next = e.Seq + 1
		}
		if next <= upTo {
			if t.session.o.forget {
				return nil, false // it was closed, and with that its log removed
			}
			return fmt.Errorf("event %d of session %s is not in its log any more", next, t.session.id), false
		}
	}
}

// record takes the agent's events as they come and puts them into the log, until
// the turn is over. It is the turn's own flow.
func (t *Turn) record() {
	defer close(t.done)
	defer t.feed.finish()
	begin := sync.OnceFunc(func() { close(t.begun) })
	defer begin()
	var claim *domain.Final
	var fault error
	// Before anything else, so that what is left of the turn can be found if we
	// die.
	stored := t.session.started(t.recording, t.inner.Process())
	if stored != nil {
		t.inner.Cancel(stored)
	}
	keep := func(reply domain.ReplyEvent) {
		if stored != nil {
			return // what comes still counts: the usage, the conversation's id
		}
		e, err := t.session.append(t.recording, t.number, t.redact.event(reply))
		if err != nil {
			stored = err
			t.inner.Cancel(err)
			return
		}
		t.feed.put(e)
	}
	denied := denials{plan: t.session.plan, workspace: t.session.Workspace(), said: map[string]bool{}}
	for reply, err := range t.inner.Events() {
		begin()
		if err != nil {
			fault = err
			break
		}
		if claim != nil {
			t.session.o.log.Error("dropped an event after the turn's final",
				slog.String("session", string(t.session.id)), slog.Int("turn", t.number), slog.String("type", reply.EventType()))
			continue
		}
		switch e := reply.(type) {
		case domain.Final:
			claim = &e
			continue
		case domain.ConversationStarted:
			t.learn(e.ConversationID)
		case domain.Notice:
			reply = denied.explained(e)
		default: // recorded as it is
		}
		keep(reply)
		for _, note := range denied.notes(printed(reply)) {
			keep(note)
		}
		for _, note := range t.session.journal.news() {
			keep(note)
		}
	}
	for _, reply := range slices.Concat(t.session.journal.sum(), t.session.metered(), t.session.loginReturned(t.recording)) {
		keep(reply)
	}
	planted := t.planted()
	if len(planted) > 0 {
		keep(domain.Tripwires{Changes: planted})
	}
	t.finish(claim, planted, fault, stored)
}

// finish ends the turn in the log, in the session's state and in its record.
func (t *Turn) finish(claim *domain.Final, planted []domain.Planted, fault, stored error) {
	if claim == nil {
		made := t.makeUp(t.cause(), fault)
		claim, t.synthetic = &made, true
	}
	final := *claim
	if len(planted) > 0 && t.session.tripwires == TripwiresFail && final.Outcome == domain.OutcomeCompleted {
		final.Outcome = domain.OutcomeFailed
		final.Error = &domain.TurnError{Class: domain.ErrorClassTripwire, Message: tripped(planted)}
	}
	if stored != nil {
		// The agent did what it did, but nobody can read up on it.
		final = domain.Conclude(claim, domain.TurnEnd{
			Cause: domain.EndStorage, Detail: stored.Error(), Exit: final.Exit, Duration: final.Duration,
		})
	}
	for _, id := range []string{t.announced, t.session.structured.ConversationID()} {
		if final.ConversationID == "" {
			final.ConversationID = id
		}
	}
	if clean, ok := t.redact.event(final).(domain.Final); ok {
		final = clean
	}
	event, err := t.session.finishTurn(t.recording, t.number, final)
	t.session.o.log.Info("turn ended", slog.String("session", string(t.session.id)), slog.Int("turn", t.number),
		slog.String("outcome", string(final.Outcome)), slog.Duration("took", t.elapsed()), slog.Uint64("events", event.Seq-t.first+1))
	t.final = event
	t.err = errors.Join(fault, err)
}

// printed is what an event has of a tool's output, or of the agent's own.
func printed(r domain.ReplyEvent) string {
	switch r := r.(type) {
	case domain.ToolResult:
		return r.Output
	case domain.Log:
		return r.Line
	default:
		return ""
	}
}

// planted says what the turn has changed that could run something later, once
// nothing of it runs any more.
func (t *Turn) planted() []domain.Planted {
	if t.before == nil {
		return nil
	}
	now, err := lookAtTripwires(t.session.Workspace())
	if err != nil {
		// Whoever wants to be told must not take silence for safety.
		return []domain.Planted{{Path: ".", Kind: "update", Runs: "the workspace could not be looked at: " + err.Error()}}
	}
	return now.since(t.before)
}

// Why a turn ends when nobody has asked for it.
var (
	errLeft          = errors.New("the reader of the turn's events left")
	errSessionClosed = errors.New("the session was closed")
)

// Cancel ends the turn: it asks the agent to stop, and makes it stop if it does
// not. It returns at once; the events end with the turn. Cancelling a turn that
// is over does nothing. A nil cause is context.Canceled.
func (t *Turn) Cancel(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	t.cancel.CompareAndSwap(nil, &cause)
	t.inner.Cancel(cause)
}

// Kill ends the turn without asking the agent first, also one that is being
// cancelled already. It returns at once; the events end with the turn, soon, and
// with its final. A nil cause is context.Canceled.
func (t *Turn) Kill(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	t.cancel.CompareAndSwap(nil, &cause)
	t.inner.Kill(cause)
}

// cause is why the turn was made to end, nil if it was not.
func (t *Turn) cause() error {
	if cause := t.cancel.Load(); cause != nil {
		return *cause
	}
	return context.Cause(t.ctx)
}

// learn takes the conversation's id from the agent. The first one is saved at
// once, so that a turn that is cut short can be resumed; a changed one counts
// from the end of the turn.
func (t *Turn) learn(id string) {
	t.announced = id
	if t.session.adoptFirst(id) {
		t.logIf("the conversation's id could not be saved yet", t.session.save(t.recording))
	}
}

// makeUp makes the final of a turn whose stream had none.
func (t *Turn) makeUp(cause, fault error) domain.Final {
	end := domain.TurnEnd{Duration: t.elapsed()}
	var timeout *domain.TimeoutError
	switch {
	case fault != nil:
		end.Cause, end.Detail = domain.EndInternal, fault.Error()
	case cause == nil: // it ended by itself, even if the context has ended since
	case errors.As(cause, &timeout) && timeout.Idle:
		end.Cause, end.Detail = domain.EndIdle, cause.Error()
	case timeout != nil, errors.Is(cause, context.DeadlineExceeded), errors.Is(t.ctx.Err(), context.DeadlineExceeded):
		end.Cause, end.Detail = domain.EndWallClock, cause.Error()
	default:
		end.Cause, end.Detail = domain.EndCancelled, cause.Error()
	}
	return domain.Conclude(nil, end)
}

func (t *Turn) elapsed() time.Duration { return t.session.o.now().Sub(t.start) }

func (t *Turn) logIf(message string, err error) {
	if err != nil {
		t.session.o.log.Error(message, slog.String("session", string(t.session.id)), slog.Int("turn", t.number), slog.Any("error", err))
	}
}
