package application

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Turn is a turn that has been started. Its methods are safe for concurrent use.
type Turn struct {
	session *Session
	inner   ports.Turn
	ctx     context.Context // of Send, which governs the turn
	number  int
	start   time.Time

	cancel atomic.Pointer[error] // the cause of the first Cancel
	reader atomic.Int32          // who has the events, see the constants
	// rest has the one event that is left for a reader that comes after the
	// session was closed.
	rest chan domain.Event

	// What the reader has found out so far; it is the only one to use these.
	announced string // the conversation's id as the agent gave it in this turn
	synthetic bool   // the final is not the agent's
	finished  bool
}

// Who has the events of a turn.
const (
	nobody  int32 = iota // yet
	someone              // a reader, or nobody any more
	closing              // Close, which leaves the final for a reader
)

// Number returns the number of the turn in its session, from 1.
func (t *Turn) Number() int { return t.number }

// Events yields the turn's events, numbered without gaps through the whole
// session: the receipt first, and exactly one final, last, whatever became of
// the agent. If the agent's stream has none, the final is made up of what is
// known; if it has several, the first counts, and what comes after it is
// dropped and logged. The final comes when the session is ready for its next
// turn and its record is saved.
//
// The events can be ranged over once; a second time yields
// domain.ErrEventsConsumed. Leaving early cancels the turn and returns when its
// process tree is gone. Of a turn that nobody had begun to read when the session
// was closed, there is only the final. The error is non-nil at most once, after the final, and only for
// failures of Caisson's own, never of the agent.
//
// Numbers go on from the session's record, which is saved at the end of each
// turn: those of a turn during which Caisson itself died are given again.
func (t *Turn) Events() iter.Seq2[domain.Event, error] {
	return func(yield func(domain.Event, error) bool) {
		if !t.reader.CompareAndSwap(nobody, someone) {
			if t.reader.CompareAndSwap(closing, someone) {
				yield(<-t.rest, nil)
				return
			}
			yield(domain.Event{}, domain.ErrEventsConsumed)
			return
		}
		// The turn ends in the books on every way out: the caller may leave, and
		// its code may panic in the middle of the range.
		defer func() {
			if !t.finished {
				t.logIf("the end of a turn that its reader left could not be saved", t.finish(t.makeUp(errLeft, nil)))
			}
		}()
		var final *domain.Final
		var fault error
		left := false
		for reply, err := range t.inner.Events() {
			if err != nil {
				fault = err
				break
			}
			if final != nil {
				t.session.o.log.Error("dropped an event after the turn's final",
					slog.String("session", string(t.session.id)), slog.Int("turn", t.number), slog.String("type", reply.EventType()))
				continue
			}
			switch e := reply.(type) {
			case domain.Final:
				final = &e
				continue
			case domain.ConversationStarted:
				t.learn(e.ConversationID)
			default: // passed on as it is
			}
			if !left && !yield(t.session.stamp(t.number, reply), nil) {
				// What comes still counts: the usage, the conversation's id.
				left = true
				t.Cancel(errLeft)
			}
		}
		if final == nil {
			made := t.makeUp(t.cause(), fault)
			final, t.synthetic = &made, true
		}
		if left {
			t.logIf("the end of a turn that its reader left could not be saved", errors.Join(fault, t.finish(*final)))
			return
		}
		last := t.session.stamp(t.number, *final)
		if err := errors.Join(fault, t.finish(*final)); !yield(last, nil) || err == nil {
			t.logIf("the reader left before it could be told", err)
		} else {
			yield(domain.Event{}, err)
		}
	}
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
		t.logIf("the conversation's id could not be saved yet", t.save())
	}
}

// makeUp makes the final of a turn whose stream had none.
func (t *Turn) makeUp(cause, fault error) domain.Final {
	end := domain.TurnEnd{Duration: t.elapsed()}
	var timeout *domain.TimeoutError
	switch {
	case fault != nil:
		end.Cause, end.Detail = domain.EndInternal, fault.Error()
	case errors.As(cause, &timeout) && timeout.Idle:
		end.Cause, end.Detail = domain.EndIdle, cause.Error()
	case timeout != nil, errors.Is(cause, context.DeadlineExceeded), errors.Is(t.ctx.Err(), context.DeadlineExceeded):
		end.Cause, end.Detail = domain.EndWallClock, cause.Error()
	case cause != nil:
		end.Cause, end.Detail = domain.EndCancelled, cause.Error()
	}
	final := domain.Conclude(nil, end)
	final.ConversationID = t.announced
	return final
}

// finish does the bookkeeping of the turn's end.
func (t *Turn) finish(final domain.Final) error {
	t.finished = true
	err := t.session.finishTurn(final, t.announced)
	return errors.Join(err, t.save(), t.session.settleIfLast(context.WithoutCancel(t.ctx)))
}

// finishUnread ends a turn that nobody reads, once nothing of it runs any more.
func (t *Turn) finishUnread() error {
	final := t.makeUp(errSessionClosed, nil)
	t.synthetic = true
	t.rest <- t.session.stamp(t.number, final)
	return t.finish(final)
}

// save writes the session's record. The end of the turn's context must not stop
// it.
func (t *Turn) save() error { return t.session.save(context.WithoutCancel(t.ctx)) }

func (t *Turn) elapsed() time.Duration { return t.session.o.now().Sub(t.start) }

func (t *Turn) logIf(message string, err error) {
	if err != nil {
		t.session.o.log.Error(message, slog.String("session", string(t.session.id)), slog.Int("turn", t.number), slog.Any("error", err))
	}
}
