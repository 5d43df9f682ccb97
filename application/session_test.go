package application_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

func TestATurnIsNumberedAndEndsWithItsFinal(t *testing.T) {
	at := time.Date(2026, 5, 6, 7, 8, 9, 10, time.FixedZone("somewhere", 3600))
	r := newRig(t, func(c *application.Config) { c.Clock = func() time.Time { return at } })
	s := r.open(t)
	var last uint64
	for turn := 1; turn <= 3; turn++ {
		events := play(t, s, "say hello")
		require.Equal(t, last+1, events[0].Seq)
		last = events[len(events)-1].Seq
		require.IsType(t, domain.SandboxApplied{}, events[0].Reply)
		require.Equal(t, "hello", textOf(events))
		for _, e := range events {
			require.Equal(t, s.ID(), e.Session)
			require.Equal(t, turn, e.Turn)
			require.Equal(t, domain.AgentKind("fake"), e.Agent)
			require.True(t, at.Equal(e.Time))
		}
		require.Equal(t, domain.OutcomeCompleted, finalOf(t, events).Outcome)
	}
}

func TestNumbersAndUsageGoOnAfterAResume(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	id := s.ID()
	first := play(t, s, "remember xylophone")
	require.NoError(t, s.Close(t.Context()))

	s = r.resume(t, id)
	require.Equal(t, r.workspace, s.Workspace())
	require.Equal(t, domain.AgentKind("fake"), s.Agent())
	second := play(t, s, "recall")
	require.Contains(t, textOf(second), "xylophone")
	require.Equal(t, first[len(first)-1].Seq+1, second[0].Seq)
	require.Equal(t, 2, second[0].Turn)

	starts := r.sessions.Starts()
	require.Empty(t, starts[0].Spec.ConversationID)
	require.Equal(t, s.ConversationID(), starts[1].Spec.ConversationID)
	require.Equal(t, finalOf(t, first).Usage, starts[1].Spec.UsageBefore)
	require.Equal(t, starts[0].Sandbox.Digest(), starts[1].Sandbox.Digest())
	record, err := r.records.Load(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, second[len(second)-1].Seq, record.LastSeq)
	require.Equal(t, 2, record.Turns)
	require.Equal(t, finalOf(t, first).Usage.Add(finalOf(t, second).Usage), record.Total)
}

func TestTheTotalOfACumulativeAgentReplacesTheSum(t *testing.T) {
	r := newRig(t)
	total := domain.Usage{InputTokens: 700}
	r.sessions.Play = func(_ context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
		return portstest.FakeEnd{Claim: &domain.Final{Outcome: domain.OutcomeCompleted, Usage: domain.Usage{InputTokens: 7}, TotalUsage: &total}}
	}
	s := r.open(t)
	play(t, s, "a")
	play(t, s, "b")
	record, _ := r.records.lastSave()
	require.Equal(t, total, record.Total)
}

// ending makes the fake agent end in a certain way, after it has said something.
func ending(end portstest.FakeEnd, more ...domain.ReplyEvent) func(context.Context, portstest.FakeTurn) portstest.FakeEnd {
	return func(_ context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
		turn.Emit(domain.Text{Text: "said"})
		for _, e := range more {
			turn.Emit(e)
		}
		return end
	}
}

func TestAStreamWithoutAFinalGetsOne(t *testing.T) {
	r := newRig(t)
	r.sessions.Play = ending(portstest.FakeEnd{NoFinal: true})
	s := r.open(t)
	events := play(t, s, "go")
	require.Equal(t, "said", textOf(events))
	final := finalOf(t, events)
	require.Equal(t, domain.OutcomeProtocolError, final.Outcome)
	require.NotNil(t, final.Error)
	require.Equal(t, s.ConversationID(), final.ConversationID)
	require.NotEmpty(t, final.ConversationID)

	final, err := s.SendBlocking(t.Context(), "again")
	var missing *domain.NoFinalError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, domain.OutcomeProtocolError, missing.Synthetic.Outcome)
	require.Equal(t, final, missing.Synthetic)
	require.Equal(t, domain.OutcomeProtocolError, final.Outcome)
}

// lateContext ends by its deadline between the next look at it and the one after.
type lateContext struct {
	context.Context
	looks atomic.Int32 // that are left; 0 for many
}

func (c *lateContext) Err() error {
	if c.looks.Load() > 0 && c.looks.Add(-1) == 0 {
		c.looks.Store(1) // from now on
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

func TestADeadlineThatComesWhileTheTurnEnds(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	ctx := &lateContext{Context: parent}
	r := newRig(t)
	r.sessions.Play = func(context.Context, portstest.FakeTurn) portstest.FakeEnd {
		ctx.looks.Store(2)
		return portstest.FakeEnd{NoFinal: true}
	}
	turn, err := r.open(t).Send(ctx, "anything")
	require.NoError(t, err)
	var last domain.Event
	for e, err := range turn.Events() {
		require.NoError(t, err)
		last = e
	}
	require.Equal(t, domain.OutcomeProtocolError, last.Reply.(domain.Final).Outcome)
}

func TestTheFirstOfSeveralFinalsCounts(t *testing.T) {
	r := newRig(t)
	r.sessions.Play = ending(
		portstest.FakeEnd{Claim: &domain.Final{Outcome: domain.OutcomeFailed, Text: "second"}},
		domain.Final{Outcome: domain.OutcomeCompleted, Text: "first"}, domain.Text{Text: "too late"},
	)
	events := play(t, r.open(t), "go")
	require.Equal(t, "first", finalOf(t, events).Text)
	require.Equal(t, "said", textOf(events))
	require.Equal(t, 2, strings.Count(r.log.String(), "dropped an event after the turn's final"), r.log)
}

func TestAFaultOfCaissonsOwnComesAfterTheFinal(t *testing.T) {
	broken := errors.New("the spool is full")
	for name, end := range map[string]portstest.FakeEnd{
		"with a final":    {Err: broken},
		"without a final": {Err: broken, NoFinal: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.sessions.Play = ending(end)
			s := r.open(t)
			turn, err := s.Send(t.Context(), "go")
			require.NoError(t, err)
			var order []string
			for e, err := range turn.Events() {
				if err != nil {
					require.ErrorIs(t, err, broken)
					require.Zero(t, e)
					order = append(order, "error")
					continue
				}
				order = append(order, e.Reply.EventType())
				if f, ok := e.Reply.(domain.Final); ok {
					require.Equal(t, domain.OutcomeFailed, f.Outcome)
					require.Equal(t, domain.ErrorClassInternal, f.Error.Class)
				}
			}
			require.Equal(t, []string{"sandbox", "session", "text", "final", "error"}, order)
			final, err := s.SendBlocking(t.Context(), "again")
			require.ErrorIs(t, err, broken)
			require.Equal(t, domain.OutcomeFailed, final.Outcome)
		})
	}
}

func TestLeavingEarlyCancelsAndTheSessionGoesOn(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	turn, err := s.Send(t.Context(), "hang")
	require.NoError(t, err)
	for range turn.Events() {
		break
	}
	events := play(t, s, "say next")
	require.Equal(t, 2, events[0].Turn)
	var before []domain.Event
	for e, err := range r.records.Replay(t.Context(), s.ID(), 1) {
		require.NoError(t, err)
		if e.Turn == 1 {
			before = append(before, e)
		}
	}
	checkTurn(t, before)
	require.Equal(t, domain.OutcomeCancelled, finalOf(t, before).Outcome)
	require.Equal(t, before[len(before)-1].Seq+1, events[0].Seq)
}

func TestLeavingAtTheConversationKeepsIt(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	turn, err := s.Send(t.Context(), "hang")
	require.NoError(t, err)
	for e := range turn.Events() {
		if _, ok := e.Reply.(domain.ConversationStarted); ok {
			record, err := r.records.Load(t.Context(), s.ID())
			require.NoError(t, err)
			require.NotEmpty(t, record.ConversationID, "saved as soon as it is known")
			require.Equal(t, s.ConversationID(), record.ConversationID)
			break
		}
	}
	require.NoError(t, s.Close(t.Context()))
	play(t, r.resume(t, s.ID()), "say back")
}

func TestAPanicOfTheReaderEndsTheTurn(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	turn, err := s.Send(t.Context(), "hang")
	require.NoError(t, err)
	require.PanicsWithValue(t, "ouch", func() {
		for range turn.Events() {
			panic("ouch")
		}
	})
	require.Equal(t, "next", textOf(play(t, s, "say next")))
}

func TestCancel(t *testing.T) {
	why := errors.New("enough")
	// Long enough for a slow machine to start the turn before it.
	deadline := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	}
	for name, c := range map[string]struct {
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		cancel  error
		outcome domain.Outcome
		message string
	}{
		"by Cancel":           {nil, why, domain.OutcomeCancelled, "enough"},
		"by a deadline":       {deadline, nil, domain.OutcomeTimedOut, "deadline"},
		"by a wall clock":     {timeout(&domain.TimeoutError{Limit: time.Second}), nil, domain.OutcomeTimedOut, "wall-clock"},
		"by an idle limit":    {timeout(&domain.TimeoutError{Limit: time.Second, Idle: true}), nil, domain.OutcomeTimedOut, "idle"},
		"by a cancelled call": {timeout(why), nil, domain.OutcomeCancelled, "enough"},
	} {
		for _, gives := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, final %t", name, gives), func(t *testing.T) {
				r := newRig(t)
				r.sessions.Play = func(ctx context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
					end := portstest.PlayPrompt(ctx, turn)
					end.NoFinal = !gives && turn.Prompt == "hang"
					return end
				}
				s := r.open(t)
				ctx := t.Context()
				if c.ctx != nil {
					var cancel context.CancelFunc
					ctx, cancel = c.ctx(ctx)
					defer cancel()
				}
				turn, err := s.Send(ctx, "hang")
				require.NoError(t, err)
				if c.cancel != nil {
					go turn.Cancel(c.cancel)
				}
				if end, ok := ctx.Value(endKey{}).(func()); ok {
					end()
				}
				events, errs := collect(turn)
				require.Empty(t, errs)
				checkTurn(t, events)
				final := finalOf(t, events)
				if gives && strings.HasPrefix(name, "by a wall") || gives && strings.HasPrefix(name, "by an idle") {
					require.Equal(t, domain.OutcomeCancelled, final.Outcome, "the fake knows no limits")
				} else {
					require.Equal(t, c.outcome, final.Outcome)
				}
				require.Contains(t, final.Error.Message, c.message)
				turn.Cancel(nil)
				record, _ := r.records.lastSave()
				require.Equal(t, final.ConversationID, record.ConversationID, "the ended context must not stop the bookkeeping")
				require.Equal(t, "next", textOf(play(t, s, "say next")))
			})
		}
	}
}

// timeout makes a context that its test ends with the cause, once the turn has
// started.
func timeout(cause error) func(context.Context) (context.Context, context.CancelFunc) {
	return func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(ctx)
		return context.WithValue(ctx, endKey{}, func() { cancel(cause) }), func() { cancel(nil) }
	}
}

type endKey struct{}

func TestOneTurnAtATime(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	turn, err := s.Send(t.Context(), "hang")
	require.NoError(t, err)
	_, err = s.Send(t.Context(), "say no")
	require.ErrorIs(t, err, domain.ErrTurnInProgress)
	_, err = s.SendBlocking(t.Context(), "say no")
	require.ErrorIs(t, err, domain.ErrTurnInProgress)
	turn.Cancel(nil)
	events, _ := collect(turn)
	require.Equal(t, domain.OutcomeCancelled, finalOf(t, events).Outcome)
	again, errs := collect(turn)
	require.Empty(t, again)
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], domain.ErrEventsConsumed)
	require.Equal(t, 2, play(t, s, "say yes")[0].Turn)
}

func TestPrompts(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	for _, prompt := range []string{"", " \t\r\n", strings.Repeat("x", application.MaxPrompt+1)} {
		_, err := s.Send(t.Context(), prompt)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "prompt", invalid.What)
		require.Less(t, len(err.Error()), 1000)
	}
	require.Equal(t, 1, play(t, s, "say "+strings.Repeat("x", application.MaxPrompt-4))[0].Turn)
}

func TestATurnThatCannotStartIsTakenBack(t *testing.T) {
	r := newRig(t)
	no := &domain.SpawnError{Step: "start", Err: errors.New("no")}
	r.sessions.RefuseTurn = func(p ports.Prompt) error {
		if p.Text == "refuse" {
			return no
		}
		return nil
	}
	s := r.open(t)
	_, err := s.Send(t.Context(), "refuse")
	require.ErrorIs(t, err, no)
	require.Equal(t, 1, play(t, s, "say yes")[0].Turn)
}

func TestAnotherConversationThanAskedForIsNotAdopted(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	play(t, s, "say hello")
	mine := s.ConversationID()
	r.sessions.Play = ending(portstest.FakeEnd{Claim: &domain.Final{
		Outcome: domain.OutcomeFailed, ConversationID: "other", Error: &domain.TurnError{Class: domain.ErrorClassConversation, Message: "another one"},
	}}, domain.ConversationStarted{ConversationID: "other"})
	play(t, s, "go")
	require.Equal(t, mine, s.ConversationID())

	// An agent that changes the id by itself and says so is followed.
	r.sessions.Play = ending(portstest.FakeEnd{Claim: &domain.Final{Outcome: domain.OutcomeCompleted, ConversationID: "next"}},
		domain.ConversationStarted{ConversationID: "next"})
	play(t, s, "go")
	require.Equal(t, "next", s.ConversationID())
	record, _ := r.records.lastSave()
	require.Equal(t, []string{mine}, record.Lineage)
}

func TestARecordThatCannotBeSavedIsAnErrorAfterTheFinal(t *testing.T) {
	r := newRig(t)
	full := errors.New("no space left on device")
	r.sessions.Play = func(ctx context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
		require.Eventually(t, func() bool {
			events := replay(t, r, turn.Spec.ID)
			return len(events) >= 2 && events[len(events)-2].Turn == len(turn.History)+1
		}, 10*time.Second, time.Millisecond, "the turn's start is recorded, and the conversation's id")
		end := portstest.PlayPrompt(ctx, turn)
		r.records.set(&r.records.save, full)
		return end
	}
	s := r.open(t)
	begin := func() *application.Turn {
		r.records.set(&r.records.save, nil)
		turn, err := s.Send(t.Context(), "say hello")
		require.NoError(t, err)
		return turn
	}
	events, errs := collect(begin())
	checkTurn(t, events)
	require.Equal(t, domain.OutcomeCompleted, finalOf(t, events).Outcome)
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], full)

	// A reader that leaves cannot be told.
	for range begin().Events() {
		break
	}
	require.Contains(t, r.log.String(), "a fault of a turn that its reader left")
	for e := range begin().Events() {
		if _, ok := e.Reply.(domain.Final); ok {
			break
		}
	}
	require.Contains(t, r.log.String(), "the reader left before it could be told")

	require.ErrorIs(t, s.Close(t.Context()), full)
	r.records.set(&r.records.save, nil)
	require.NoError(t, s.Close(t.Context()), "Close can be tried again")
	r.sessions.Play = nil
	play(t, r.resume(t, s.ID()), "say back")
}

// A turn that cannot be recorded is ended, and says why: an agent must not go on
// with nobody to find out.
func TestAFullStoreEndsTheTurn(t *testing.T) {
	full := errors.New("no space left on device")
	for name, c := range map[string]struct {
		fail func(*hookedRecords) *error
		n    int // events in the log, without the final
	}{
		"for ordinary events": {func(h *hookedRecords) *error { return &h.append }, 2},
		"for all events":      {func(h *hookedRecords) *error { return &h.final }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.open(t)
			r.sessions.Play = func(ctx context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
				if turn.Prompt != "flood" {
					return portstest.PlayPrompt(ctx, turn)
				}
				require.Eventually(t, func() bool { return len(replay(t, r, s.ID())) == c.n }, 10*time.Second, time.Millisecond)
				r.records.set(c.fail(r.records), full)
				for n := 0; ctx.Err() == nil; n++ {
					turn.Emit(domain.Text{Text: fmt.Sprint(n)})
					time.Sleep(time.Millisecond)
				}
				usage := domain.Usage{InputTokens: 7}
				return portstest.FakeEnd{Claim: &domain.Final{Outcome: domain.OutcomeCompleted, Text: "a long text", Usage: usage}}
			}
			turn, err := s.Send(t.Context(), "flood")
			require.NoError(t, err)
			events, errs := collect(turn)
			checkTurn(t, events)
			require.Len(t, events, c.n+1)
			final := finalOf(t, events)
			require.Equal(t, domain.OutcomeFailed, final.Outcome)
			require.Equal(t, domain.ErrorClassStorage, final.Error.Class)
			require.Contains(t, final.Error.Message, "no space left")
			require.Equal(t, int64(7), final.Usage.InputTokens, "the tokens are spent")
			if name != "for ordinary events" {
				require.Len(t, errs, 1)
				require.ErrorIs(t, errs[0], full)
			}
			if name == "for all events" {
				_, err = s.SendBlocking(t.Context(), "say no")
				require.ErrorIs(t, err, full, "the earlier turn comes first")
			}
			r.records.set(c.fail(r.records), nil)
			require.NoError(t, s.Close(t.Context()))
			again := r.resume(t, s.ID())
			back := play(t, again, "say back")
			require.Equal(t, events[len(events)-1].Seq+1, back[0].Seq)
			require.Equal(t, 1, finals(replay(t, r, s.ID()), 1), "there is one final of it in the log")
			checkLog(t, replay(t, r, s.ID()))
		})
	}
}

// Without a record of it no turn is started: nobody would find it if we died.
func TestATurnThatCannotBeRecordedIsNotStarted(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	full := errors.New("no space left on device")
	r.records.set(&r.records.save, full)
	_, err := s.Send(t.Context(), "say no")
	require.ErrorIs(t, err, full)
	r.records.set(&r.records.save, nil)
	r.sessions.RefuseTurn = func(p ports.Prompt) error {
		record, err := r.records.Load(t.Context(), s.ID())
		require.NoError(t, err)
		require.Equal(t, &domain.LiveTurn{Turn: 1, First: 1, Process: domain.ProcessIdentity{Mark: p.Mark}}, record.Live)
		require.NotEmpty(t, p.Mark)
		return full
	}
	_, err = s.Send(t.Context(), "say no")
	require.ErrorIs(t, err, full)
	record, err := r.records.Load(t.Context(), s.ID())
	require.NoError(t, err)
	require.Nil(t, record.Live, "nothing runs")
	require.Zero(t, record.Turns)
	r.sessions.RefuseTurn = nil
	require.Equal(t, 1, play(t, s, "say yes")[0].Turn)
}

func TestCloseEndsTheSession(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	play(t, s, "say hello")
	_, before := r.records.lastSave()
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
	_, after := r.records.lastSave()
	require.Equal(t, before+1, after)
	_, err := s.Send(t.Context(), "say no")
	require.ErrorIs(t, err, domain.ErrClosed)
	require.Zero(t, r.sessions.Open())
}

func TestCloseDuringATurn(t *testing.T) {
	t.Run("from inside its range", func(t *testing.T) {
		r := newRig(t)
		s := r.open(t)
		turn, err := s.Send(t.Context(), "hang")
		require.NoError(t, err)
		var events []domain.Event
		for e, err := range turn.Events() {
			require.NoError(t, err)
			events = append(events, e)
			require.NoError(t, s.Close(t.Context()))
		}
		checkTurn(t, events)
		require.Equal(t, replay(t, r, s.ID()), events)
		back := play(t, r.resume(t, s.ID()), "say back")
		require.Equal(t, events[len(events)-1].Seq+1, back[0].Seq)
		require.Equal(t, domain.OutcomeCancelled, finalOf(t, events).Outcome)
	})
	t.Run("with nobody reading", func(t *testing.T) {
		r := newRig(t)
		s := r.open(t)
		turn, err := s.Send(t.Context(), "hang")
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
		require.NotEmpty(t, s.ConversationID())
		back := play(t, r.resume(t, s.ID()), "say back")

		// The late reader is told all that happened, and does not disturb the
		// session that goes on.
		events, errs := collect(turn)
		require.Empty(t, errs)
		checkTurn(t, events)
		require.Equal(t, "hanging", textOf(events))
		require.Equal(t, back[0].Seq-1, events[len(events)-1].Seq)
		final := finalOf(t, events)
		require.Equal(t, domain.OutcomeCancelled, final.Outcome)
		require.Contains(t, final.Error.Message, "the session was closed")
		_, errs = collect(turn)
		require.ErrorIs(t, errs[0], domain.ErrEventsConsumed)
	})
	t.Run("when the context ends first", func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.sessions.Play = func(context.Context, portstest.FakeTurn) portstest.FakeEnd {
			<-release
			return portstest.FakeEnd{}
		}
		s := r.open(t)
		_, err := s.Send(t.Context(), "stubborn")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, s.Close(ctx), context.DeadlineExceeded)
		_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID()})
		require.ErrorIs(t, err, domain.ErrBusy, "its process may still run")
		close(release)
		require.NoError(t, s.Close(t.Context()))
	})
}

// What nobody got is no turn: a resume does not find one to settle.
func TestCloseWhileATurnIsStarting(t *testing.T) {
	r := newRig(t)
	var s *application.Session
	closed := make(chan error, 1)
	refused := errors.New("refused")
	refuse := func(ports.Prompt) error {
		go func() { closed <- s.Close(t.Context()) }()
		for { // until it has begun
			if _, err := s.Send(t.Context(), "say no"); !errors.Is(err, domain.ErrTurnInProgress) {
				return refused
			}
		}
	}
	r.sessions.RefuseTurn = refuse
	s = r.open(t)
	_, err := s.Send(t.Context(), "say hello")
	require.ErrorIs(t, err, refused)
	require.NoError(t, <-closed)
	require.Empty(t, r.left(t), "a session that never ran a turn")

	r.sessions.RefuseTurn = nil
	s = r.open(t)
	play(t, s, "say hello")
	r.sessions.RefuseTurn = refuse
	_, err = s.Send(t.Context(), "say again")
	require.ErrorIs(t, err, refused)
	require.NoError(t, <-closed)
	record, err := r.records.Load(t.Context(), s.ID())
	require.NoError(t, err)
	require.Equal(t, 1, record.Turns)
	require.Nil(t, record.Live)
}

func TestASessionWithoutATurnLeavesNothing(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	require.NotEmpty(t, r.left(t))
	require.NoError(t, s.Close(t.Context()))
	require.Empty(t, r.left(t))
	_, err := r.Open(t.Context(), application.OpenRequest{Resume: s.ID()})
	require.ErrorContains(t, err, "no such session")

	// One that was resumed and not used stays.
	s = r.open(t)
	play(t, s, "say hello")
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, r.resume(t, s.ID()).Close(t.Context()))
	play(t, r.resume(t, s.ID()), "say back")
}

func TestForget(t *testing.T) {
	r := newRig(t, func(c *application.Config) { c.Forget = true })
	s := r.open(t)
	play(t, s, "remember it")
	require.Contains(t, textOf(play(t, s, "recall")), "it")
	_, saves := r.records.lastSave()
	require.Zero(t, saves)
	turn, err := s.Send(t.Context(), "hang")
	require.NoError(t, err)
	for e, err := range turn.Events() {
		require.NoError(t, err)
		if e.Reply.EventType() == "text" {
			require.NoError(t, s.Close(t.Context()))
		}
	}
	require.Empty(t, r.left(t))
	_, err = r.Open(t.Context(), application.OpenRequest{Resume: s.ID()})
	require.ErrorContains(t, err, "keeps no sessions")
}

func TestCloseOfTheOrchestrator(t *testing.T) {
	r := newRig(t)
	var reading sync.WaitGroup
	finals := make(chan domain.Final, 5)
	for range 5 {
		s := r.open(t)
		turn, err := s.Send(t.Context(), "hang")
		require.NoError(t, err)
		// Some readers come before Close, and some after it.
		reading.Go(func() {
			events, _ := collect(turn)
			finals <- events[len(events)-1].Reply.(domain.Final)
		})
	}
	require.NoError(t, r.Close(t.Context()))
	reading.Wait()
	close(finals)
	n := 0
	for f := range finals {
		n++
		require.Equal(t, domain.OutcomeCancelled, f.Outcome)
	}
	require.Equal(t, 5, n)
	require.Zero(t, r.sessions.Open())
	require.NoError(t, r.Close(t.Context()))
	_, err := r.Open(t.Context(), r.request())
	require.ErrorIs(t, err, domain.ErrClosed)
	_, err = r.Plan(t.Context(), r.request())
	require.ErrorIs(t, err, domain.ErrClosed)
	_, err = r.Exec(t.Context(), application.ExecRequest{Argv: []string{"true"}, Dir: "/"})
	require.ErrorIs(t, err, domain.ErrClosed)
}

// TestEverythingAtOnce is for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	r := newRig(t)
	var all sync.WaitGroup
	var turns atomic.Int32
	for range 6 {
		s := r.open(t)
		for reader := range 3 {
			all.Go(func() {
				for j := range 10 {
					hang := (reader+j)%3 == 0
					turn, err := s.Send(t.Context(), map[bool]string{true: "hang", false: "say hello"}[hang])
					if errors.Is(err, domain.ErrTurnInProgress) || errors.Is(err, domain.ErrClosed) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					turns.Add(1)
					if hang {
						all.Go(func() { turn.Cancel(nil) })
					}
					events, errs := collect(turn)
					if len(errs) > 0 || len(events) == 0 {
						t.Error(errs)
						continue
					}
					if _, ok := events[len(events)-1].Reply.(domain.Final); !ok {
						t.Error("no final")
					}
					_, _, _ = s.ConversationID(), s.Workspace(), s.Plan()
				}
			})
		}
		all.Go(func() {
			time.Sleep(5 * time.Millisecond)
			all.Go(func() { _ = s.Close(t.Context()) })
			_ = s.Close(t.Context())
		})
	}
	all.Wait()
	require.Positive(t, turns.Load())
	require.Zero(t, r.sessions.Open())
}

// The file is written while the turn runs.
func TestATurnTellsWhatItPlanted(t *testing.T) {
	for _, mode := range []application.TripwireMode{application.TripwiresReport, application.TripwiresFail, application.TripwiresOff} {
		r := newRig(t)
		request := r.request()
		request.Tripwires = mode
		s, err := r.Open(t.Context(), request)
		require.NoError(t, err)
		plain := play(t, s, "say hello")
		require.Equal(t, domain.OutcomeCompleted, finalOf(t, plain).Outcome)

		turn, err := s.Send(t.Context(), "hang")
		require.NoError(t, err)
		var events []domain.Event
		for e, err := range turn.Events() {
			require.NoError(t, err)
			if len(events) == 0 {
				require.NoError(t, os.WriteFile(filepath.Join(r.workspace, ".envrc"), []byte("evil"), 0o600))
				turn.Cancel(nil)
			}
			events = append(events, e)
		}
		last := events[len(events)-2].Reply
		planted := domain.Tripwires{Changes: []domain.Planted{{Path: ".envrc", Kind: "add", Runs: "direnv runs it when a shell enters the directory"}}}
		if mode == application.TripwiresOff {
			require.NotEqual(t, planted, last)
		} else {
			require.Equal(t, planted, last, "right before the final")
		}
		require.Equal(t, domain.OutcomeCancelled, finalOf(t, events).Outcome, "what ended a turn otherwise stays the reason")
		require.NoError(t, os.Remove(filepath.Join(r.workspace, ".envrc")))
	}
}
