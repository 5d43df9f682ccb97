package portstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// SessionHarness is what [AssertAgentSessionContract] needs to know about an
// implementation of ports.StructuredSession.
type SessionHarness struct {
	// Open opens a session of a new conversation. The kit closes it.
	Open func(tb testing.TB) ports.StructuredSession
	// Reopen opens a session on the conversation of an earlier one that is
	// closed, as after a restart. Nil leaves that case out.
	Reopen func(tb testing.TB, earlier ports.StructuredSession) ports.StructuredSession
	// Prompts make the agent do what the kit wants to see.
	Prompts SessionPrompts
	// Features say what the implementation promises beyond the contract.
	Features SessionFeatures
	// Patience bounds every wait; zero is 30 seconds.
	Patience time.Duration
}

// SessionPrompts are prompts by what they make the agent do.
type SessionPrompts struct {
	// Say: one text event that contains the text, and a good end.
	Say func(text string) string
	// Tool: at least one tool call that ends well, and a good end.
	Tool string
	// Hang: at least one text event, and then nothing for ever.
	Hang string
	// Remember: a good end.
	Remember func(word string) string
	// Recall: a text event that contains the word of the turn before.
	Recall string
	// Fail: the agent reports an error and ends.
	Fail string
	// Crash: the agent's process ends by itself without a final.
	Crash string
}

// SessionFeatures say what holds for an implementation.
type SessionFeatures struct {
	// GivesFinal: every turn's stream ends with a final. Without it the kit
	// only demands that there is at most one, and that it is last.
	GivesFinal bool
	// Confined: the receipts say so. Without it they must say unconfined.
	Confined bool
	// Resumes: a turn remembers the turns before it.
	Resumes bool
}

// AssertAgentSessionContract checks that an implementation of
// ports.StructuredSession can take the place of any other: with the same
// prompts, a caller sees the same behaviour.
func AssertAgentSessionContract(t *testing.T, h SessionHarness) {
	t.Helper()
	runCases(t, sessionContract, h)
}

var sessionContract = []contractCase[SessionHarness]{
	{
		"receipt first", "the first event of a turn is its receipt, and there is one: a reader knows what confines the agent before it reads what the agent says",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			for range 2 {
				events := h.turn(tb, s, h.Prompts.Say("hello"))
				require.NotEmpty(tb, events)
				applied, ok := events[0].(domain.SandboxApplied)
				require.True(tb, ok, "the first event is %T", events[0])
				require.Len(tb, only[domain.SandboxApplied](events), 1)
				if h.Features.Confined {
					require.False(tb, applied.Receipt.Unconfined)
					require.NotEmpty(tb, applied.Receipt.Enforcer)
					require.NotEmpty(tb, applied.Receipt.Properties)
					require.NotEmpty(tb, applied.Receipt.PlanDigest)
					require.Empty(tb, applied.Receipt.InState(domain.StateUnenforceable), "no child may run under a receipt that admits a gap")
				} else {
					require.True(tb, applied.Receipt.Unconfined)
					require.NotEmpty(tb, applied.Receipt.Why)
				}
			}
		},
	},
	{
		"one final, last", "a stream has at most one final, and nothing comes after it: a reader may stop there",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			for _, prompt := range []string{h.Prompts.Say("hello"), h.Prompts.Tool, h.Prompts.Fail, h.Prompts.Crash, h.Prompts.Say("again")} {
				h.turn(tb, s, prompt)
			}
		},
	},
	{
		"text", "what the agent says arrives, in order and whole, and a good turn is completed",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			for _, text := range []string{"plain words", "höher, 更高 \U0001F680", strings.Repeat("long ", 4000) + "end"} {
				events := h.turn(tb, s, h.Prompts.Say(text))
				require.Contains(tb, textOf(events), text)
				if final, ok := finalOf(events); ok {
					require.Equal(tb, domain.OutcomeCompleted, final.Outcome)
					require.Nil(tb, final.Error)
					require.Contains(tb, final.Text, text)
				}
			}
		},
	},
	{
		"the conversation is announced", "every turn says which conversation it is of, and the session says the same: resume depends on it",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			require.Empty(tb, s.ConversationID(), "the agent has not given an id yet")
			events := h.turn(tb, s, h.Prompts.Say("hello"))
			started := only[domain.ConversationStarted](events)
			require.NotEmpty(tb, started)
			require.NotEmpty(tb, started[0].ConversationID)
			require.Equal(tb, started[0].ConversationID, s.ConversationID())
			if final, ok := finalOf(events); ok {
				require.Equal(tb, s.ConversationID(), final.ConversationID)
			}
		},
	},
	{
		"tools", "every tool call has an id of its own within the turn, and in a good turn exactly one result, after it",
		func(tb testing.TB, h SessionHarness) {
			calls, results := map[string]bool{}, map[string]bool{}
			for _, e := range h.turn(tb, h.open(tb), h.Prompts.Tool) {
				switch e := e.(type) {
				case domain.ToolCall:
					require.NotEmpty(tb, e.ID)
					require.NotEmpty(tb, e.Name)
					require.False(tb, calls[e.ID], "two calls with id %q", e.ID)
					calls[e.ID] = true
				case domain.ToolUpdate:
					require.True(tb, calls[e.ID] && !results[e.ID], "an update of %q, which is not running", e.ID)
				case domain.ToolResult:
					require.True(tb, calls[e.ID], "a result of %q, which was not called", e.ID)
					require.False(tb, results[e.ID], "two results of %q", e.ID)
					require.Equal(tb, domain.ToolCompleted, e.Status)
					results[e.ID] = true
				default: // of no concern here
				}
			}
			require.NotEmpty(tb, calls)
			require.Equal(tb, calls, results)
		},
	},
	{
		"one turn at a time", "a second Send while a turn runs is refused with ErrTurnInProgress and disturbs nothing",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			turn := h.send(tb, s, h.Prompts.Hang)
			_, err := s.Send(tb.Context(), ports.Prompt{Text: h.Prompts.Say("too early")})
			require.ErrorIs(tb, err, domain.ErrTurnInProgress)
			turn.Cancel(errKit)
			h.read(tb, turn)
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("in time"))), "in time")
		},
	},
	{
		"many at once", "of several Sends at the same time one gets the turn",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			const n = 8
			turns, errs := make([]ports.Turn, n), make([]error, n)
			h.within(tb, "all Sends return", func() {
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { turns[i], errs[i] = s.Send(tb.Context(), ports.Prompt{Text: h.Prompts.Hang}) })
				}
				wg.Wait()
			})
			got := 0
			for i := range n {
				if errs[i] == nil {
					got++
					turns[i].Cancel(errKit)
					h.read(tb, turns[i])
				} else {
					require.ErrorIs(tb, errs[i], domain.ErrTurnInProgress)
				}
			}
			require.Equal(tb, 1, got)
		},
	},
	{
		"events once", "a second reading of the events yields ErrEventsConsumed and nothing else",
		func(tb testing.TB, h SessionHarness) {
			turn := h.send(tb, h.open(tb), h.Prompts.Say("hello"))
			h.read(tb, turn)
			events, errs := h.collect(tb, turn)
			require.Empty(tb, events)
			require.Len(tb, errs, 1)
			require.ErrorIs(tb, errs[0], domain.ErrEventsConsumed)
		},
	},
	{
		"a late reader misses nothing", "the turn goes on without a reader, and a reader that comes late gets all of it",
		func(tb testing.TB, h SessionHarness) {
			turn := h.send(tb, h.open(tb), h.Prompts.Say("said before anybody listened"))
			time.Sleep(300 * time.Millisecond)
			require.Contains(tb, textOf(h.read(tb, turn)), "said before anybody listened")
		},
	},
	{
		"leaving early", "leaving the events cancels the turn and returns when it is gone; the session goes on",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			turn := h.send(tb, s, h.Prompts.Hang)
			h.within(tb, "leaving the events returns", func() {
				for range turn.Events() {
					break
				}
			})
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"cancel", "Cancel, from anywhere, ends a turn as cancelled, whose events so far are kept; the session goes on",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			turn := h.send(tb, s, h.Prompts.Hang)
			var events []domain.ReplyEvent
			var errs []error
			h.within(tb, "a cancelled turn ends", func() {
				for e, err := range turn.Events() {
					if err != nil {
						errs = append(errs, err)
						continue
					}
					events = append(events, e)
					if _, ok := e.(domain.Text); ok {
						go turn.Cancel(errKit)
					}
				}
			})
			require.Empty(tb, errs)
			require.NotEmpty(tb, textOf(events))
			h.cancelled(tb, events)
			turn.Cancel(errKit) // of a turn that is over: nothing
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"cancel before reading", "a turn can be cancelled before anybody reads it",
		func(tb testing.TB, h SessionHarness) {
			turn := h.send(tb, h.open(tb), h.Prompts.Hang)
			turn.Cancel(errKit)
			turn.Cancel(nil)
			h.cancelled(tb, h.read(tb, turn))
		},
	},
	{
		"kill", "Kill ends a turn as cancelled, also one that is being cancelled, and the session goes on",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			// An agent that is killed before it has kept its conversation cannot go on
			// with it.
			h.turn(tb, s, h.Prompts.Say("first"))
			for _, cancelled := range []bool{false, true} {
				turn := h.send(tb, s, h.Prompts.Hang)
				if cancelled {
					turn.Cancel(errKit)
				}
				turn.Kill(errKit)
				turn.Kill(nil)
				h.cancelled(tb, h.read(tb, turn))
				turn.Kill(errKit) // of a turn that is over: nothing
			}
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"the context governs the turn", "when the context of Send ends, the turn is cancelled",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			ctx, cancel := context.WithCancelCause(tb.Context())
			defer cancel(nil)
			turn, err := s.Send(ctx, ports.Prompt{Text: h.Prompts.Hang})
			require.NoError(tb, err)
			cancel(errKit)
			h.cancelled(tb, h.read(tb, turn))
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"a deadline ends the turn", "when the context's deadline passes, the turn ends",
		func(tb testing.TB, h SessionHarness) {
			ctx, cancel := context.WithTimeout(tb.Context(), 500*time.Millisecond)
			defer cancel()
			turn, err := h.open(tb).Send(ctx, ports.Prompt{Text: h.Prompts.Hang})
			require.NoError(tb, err)
			events := h.read(tb, turn)
			if final, ok := finalOf(events); ok {
				require.Contains(tb, []domain.Outcome{domain.OutcomeCancelled, domain.OutcomeTimedOut}, final.Outcome)
			}
		},
	},
	{
		"a context that is over", "Send under a context that has ended starts nothing that stays: it fails, or the turn ends at once; the session goes on",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			ctx, cancel := context.WithCancel(tb.Context())
			cancel()
			if turn, err := s.Send(ctx, ports.Prompt{Text: h.Prompts.Hang}); err == nil {
				h.cancelled(tb, h.read(tb, turn))
			}
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"the conversation is kept", "a second turn is of the same conversation, and the agent remembers the first",
		func(tb testing.TB, h SessionHarness) {
			if !h.Features.Resumes {
				return
			}
			s := h.open(tb)
			h.turn(tb, s, h.Prompts.Remember("xylophone"))
			id := s.ConversationID()
			events := h.turn(tb, s, h.Prompts.Recall)
			require.Contains(tb, textOf(events), "xylophone")
			require.Equal(tb, id, s.ConversationID())
			for _, e := range only[domain.ConversationStarted](events) {
				require.Equal(tb, id, e.ConversationID)
			}
		},
	},
	{
		"conversations are apart", "another session is another conversation, and knows nothing of the first",
		func(tb testing.TB, h SessionHarness) {
			a, b := h.open(tb), h.open(tb)
			h.turn(tb, a, h.Prompts.Remember("xylophone"))
			require.NotContains(tb, textOf(h.turn(tb, b, h.Prompts.Recall)), "xylophone")
			require.NotEqual(tb, a.ConversationID(), b.ConversationID())
		},
	},
	{
		"a conversation outlives its session", "a session that is opened on an earlier conversation has its id and its memory",
		func(tb testing.TB, h SessionHarness) {
			if h.Reopen == nil {
				return
			}
			first := h.open(tb)
			h.turn(tb, first, h.Prompts.Remember("xylophone"))
			require.NoError(tb, first.Close(tb.Context()))
			second := h.Reopen(tb, first)
			h.closeLater(tb, second)
			events := h.turn(tb, second, h.Prompts.Recall)
			require.Contains(tb, textOf(events), "xylophone")
			require.Equal(tb, first.ConversationID(), second.ConversationID())
		},
	},
	{
		"a failure of the agent is an outcome", "an error that the agent reports is an outcome, never an error of the iterator; the session goes on",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			if final, ok := finalOf(h.turn(tb, s, h.Prompts.Fail)); ok {
				require.Equal(tb, domain.OutcomeFailed, final.Outcome)
				require.NotNil(tb, final.Error)
				require.NotEmpty(tb, final.Error.Class)
				require.NotEmpty(tb, final.Error.Message)
			}
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"a crash of the agent is an outcome", "a process that ends without a final is an outcome, never success and never an error of the iterator; the session goes on",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			if final, ok := finalOf(h.turn(tb, s, h.Prompts.Crash)); ok {
				require.Contains(tb, []domain.Outcome{domain.OutcomeExited, domain.OutcomeProtocolError}, final.Outcome)
				require.NotNil(tb, final.Error)
			}
			require.Contains(tb, textOf(h.turn(tb, s, h.Prompts.Say("still here"))), "still here")
		},
	},
	{
		"close", "closing ends the session for good; closing twice, or from several sides, is no error",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			h.turn(tb, s, h.Prompts.Say("hello"))
			errs := make([]error, 4)
			h.within(tb, "Close returns", func() {
				var wg sync.WaitGroup
				for i := range errs {
					wg.Go(func() { errs[i] = s.Close(tb.Context()) })
				}
				wg.Wait()
			})
			require.NoError(tb, errors.Join(errs...))
			require.NoError(tb, s.Close(tb.Context()))
			_, err := s.Send(tb.Context(), ports.Prompt{Text: h.Prompts.Say("too late")})
			require.ErrorIs(tb, err, domain.ErrClosed)
		},
	},
	{
		"close before the first turn", "a session that never ran a turn can be closed",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			require.NoError(tb, s.Close(tb.Context()))
			_, err := s.Send(tb.Context(), ports.Prompt{Text: h.Prompts.Say("too late")})
			require.ErrorIs(tb, err, domain.ErrClosed)
		},
	},
	{
		"close during a turn", "closing cancels the running turn, and its reader gets to the end",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			turn := h.send(tb, s, h.Prompts.Hang)
			closed := make(chan error, 1)
			var events []domain.ReplyEvent
			var errs []error
			h.within(tb, "the reader of a closed session's turn ends", func() {
				for e, err := range turn.Events() {
					if err != nil {
						errs = append(errs, err)
						continue
					}
					events = append(events, e)
					if _, ok := e.(domain.Text); ok {
						go func() { closed <- s.Close(tb.Context()) }()
					}
				}
			})
			require.Empty(tb, errs)
			h.within(tb, "Close returns", func() { errs = append(errs, <-closed) })
			require.NoError(tb, errs[0])
			h.cancelled(tb, events)
		},
	},
	{
		"close with nobody reading", "closing ends a turn that nobody reads, and a late reader is not left hanging",
		func(tb testing.TB, h SessionHarness) {
			s := h.open(tb)
			turn := h.send(tb, s, h.Prompts.Hang)
			var err error
			h.within(tb, "Close returns", func() { err = s.Close(tb.Context()) })
			require.NoError(tb, err)
			_, errs := h.collect(tb, turn)
			for _, err := range errs {
				require.ErrorIs(tb, err, domain.ErrEventsConsumed)
			}
		},
	},
}

// errKit is why the kit cancels.
var errKit = errors.New("the kit has seen enough")

func (h SessionHarness) patience() time.Duration {
	if h.Patience == 0 {
		return 30 * time.Second
	}
	return h.Patience
}

func (h SessionHarness) open(tb testing.TB) ports.StructuredSession {
	tb.Helper()
	s := h.Open(tb)
	h.closeLater(tb, s)
	return s
}

func (h SessionHarness) closeLater(tb testing.TB, s ports.StructuredSession) {
	tb.Cleanup(func() {
		// The test's own context is over by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), h.patience())
		defer cancel()
		if err := s.Close(ctx); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
}

func (h SessionHarness) send(tb testing.TB, s ports.StructuredSession, prompt string) ports.Turn {
	tb.Helper()
	turn, err := s.Send(tb.Context(), ports.Prompt{Text: prompt})
	require.NoError(tb, err)
	return turn
}

// turn runs one turn to its end.
func (h SessionHarness) turn(tb testing.TB, s ports.StructuredSession, prompt string) []domain.ReplyEvent {
	tb.Helper()
	return h.read(tb, h.send(tb, s, prompt))
}

// read reads a turn to its end and checks what holds for every turn.
func (h SessionHarness) read(tb testing.TB, turn ports.Turn) []domain.ReplyEvent {
	tb.Helper()
	events, errs := h.collect(tb, turn)
	require.Empty(tb, errs)
	for i, e := range events {
		require.NotNil(tb, e, "event %d", i)
	}
	finals := only[domain.Final](events)
	require.LessOrEqual(tb, len(finals), 1, "several finals")
	if len(finals) == 1 {
		require.IsType(tb, domain.Final{}, events[len(events)-1], "something comes after the final")
		require.NotEmpty(tb, finals[0].Outcome)
	}
	if h.Features.GivesFinal {
		require.Len(tb, finals, 1)
	}
	return events
}

// collect reads whatever a turn yields.
func (h SessionHarness) collect(tb testing.TB, turn ports.Turn) (events []domain.ReplyEvent, errs []error) {
	tb.Helper()
	h.within(tb, "the turn ends", func() {
		for e, err := range turn.Events() {
			if err != nil {
				errs = append(errs, err)
			} else {
				events = append(events, e)
			}
		}
	})
	return events, errs
}

func (h SessionHarness) cancelled(tb testing.TB, events []domain.ReplyEvent) {
	tb.Helper()
	if final, ok := finalOf(events); ok {
		require.Equal(tb, domain.OutcomeCancelled, final.Outcome, "%+v", final.Error)
		require.NotNil(tb, final.Error)
	}
}

// within runs f and fails the test if it takes longer than the patience.
func (h SessionHarness) within(tb testing.TB, what string, f func()) {
	tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(h.patience()):
		require.FailNow(tb, fmt.Sprintf("not within %s: %s", h.patience(), what))
	}
}

// only returns the events of one type.
func only[E domain.ReplyEvent](events []domain.ReplyEvent) []E {
	var found []E
	for _, e := range events {
		if e, ok := e.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

func finalOf(events []domain.ReplyEvent) (domain.Final, bool) {
	finals := only[domain.Final](events)
	if len(finals) == 0 {
		return domain.Final{}, false
	}
	return finals[0], true
}

// textOf joins the text events.
func textOf(events []domain.ReplyEvent) string {
	var b strings.Builder
	for _, e := range only[domain.Text](events) {
		b.WriteString(e.Text)
	}
	return b.String()
}
