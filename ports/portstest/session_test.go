package portstest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func fakeHarness(wrap func(ports.StructuredSession) ports.StructuredSession) SessionHarness {
	var factory FakeSessionFactory
	plan := domain.NewSandboxPlan("kit")
	open := func(tb testing.TB, conversation string) ports.StructuredSession {
		s, err := factory.Start(tb.Context(), ports.SessionSpec{ID: idA, Kind: "fake", ConversationID: conversation}, plan)
		require.NoError(tb, err)
		return wrap(s)
	}
	return SessionHarness{
		Open: func(tb testing.TB) ports.StructuredSession { return open(tb, "") },
		Reopen: func(tb testing.TB, earlier ports.StructuredSession) ports.StructuredSession {
			return open(tb, earlier.ConversationID())
		},
		Prompts:  FakePrompts(),
		Features: SessionFeatures{GivesFinal: true, Confined: true, Resumes: true},
	}
}

func TestFakeSessionsKeepTheContract(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	AssertAgentSessionContract(t, fakeHarness(func(s ports.StructuredSession) ports.StructuredSession { return s }))
}

func TestFakeSessionsWithoutASandboxOrAFinalKeepTheContract(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	factory := FakeSessionFactory{Play: func(ctx context.Context, turn FakeTurn) FakeEnd {
		end := PlayPrompt(ctx, turn)
		end.NoFinal = true
		return end
	}}
	AssertAgentSessionContract(t, SessionHarness{
		Open: func(tb testing.TB) ports.StructuredSession {
			s, err := factory.Start(tb.Context(), ports.SessionSpec{ID: idA, Kind: "fake"}, domain.Unconfined("a test"))
			require.NoError(tb, err)
			return s
		},
		Prompts:  FakePrompts(),
		Features: SessionFeatures{Resumes: true},
	})
}

func TestFakeFactoryRefuses(t *testing.T) {
	_, err := new(FakeSessionFactory).Start(t.Context(), ports.SessionSpec{}, domain.SandboxPlan{})
	require.ErrorIs(t, err, domain.ErrNoSandbox)
	no := errors.New("no")
	_, err = (&FakeSessionFactory{Refuse: func(ports.SessionSpec, domain.SandboxPlan) error { return no }}).
		Start(t.Context(), ports.SessionSpec{}, domain.Unconfined("a test"))
	require.ErrorIs(t, err, no)
	_, err = new(FakeSessionFactory).Start(t.Context(), ports.SessionSpec{ConversationID: "unknown"}, domain.Unconfined("a test"))
	require.ErrorContains(t, err, "no conversation unknown")
}

// stream is what a turn yields.
type stream = iter.Seq2[domain.ReplyEvent, error]

// faulty is a session that breaks its contract in one way.
type faulty struct {
	ports.StructuredSession
	send  func(ctx context.Context, p ports.Prompt) (ports.Turn, error)
	close func(ctx context.Context) error
	id    func() string
	turn  func(ports.Turn) ports.Turn
}

func (f faulty) Send(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
	send := f.StructuredSession.Send
	if f.send != nil {
		send = f.send
	}
	turn, err := send(ctx, p)
	if err == nil && f.turn != nil {
		turn = f.turn(turn)
	}
	return turn, err
}

func (f faulty) ConversationID() string {
	if f.id != nil {
		return f.id()
	}
	return f.StructuredSession.ConversationID()
}

func (f faulty) Close(ctx context.Context) error {
	if f.close != nil {
		return f.close(ctx)
	}
	return f.StructuredSession.Close(ctx)
}

type faultyTurn struct {
	ports.Turn
	events func(stream) stream
	cancel func(error)
	kill   func(error)
}

func (f faultyTurn) Events() stream {
	if f.events != nil {
		return f.events(f.Turn.Events())
	}
	return f.Turn.Events()
}

func (f faultyTurn) Cancel(cause error) {
	if f.cancel != nil {
		f.cancel(cause)
		return
	}
	f.Turn.Cancel(cause)
}

func (f faultyTurn) Kill(cause error) {
	if f.kill != nil {
		f.kill(cause)
		return
	}
	f.Turn.Kill(cause)
}

// edits breaks the events of every turn: f gives what to yield in an event's
// place.
func edits(f func(domain.ReplyEvent) []domain.ReplyEvent) func(ports.StructuredSession) ports.StructuredSession {
	return streams(func(in stream) stream {
		return func(yield func(domain.ReplyEvent, error) bool) {
			for e, err := range in {
				out := []domain.ReplyEvent{e}
				if err == nil {
					out = f(e)
				}
				for _, e := range out {
					if !yield(e, err) {
						return
					}
				}
			}
		}
	})
}

func streams(f func(stream) stream) func(ports.StructuredSession) ports.StructuredSession {
	return turns(func(t ports.Turn) ports.Turn { return faultyTurn{Turn: t, events: f} })
}

func turns(f func(ports.Turn) ports.Turn) func(ports.StructuredSession) ports.StructuredSession {
	return func(s ports.StructuredSession) ports.StructuredSession {
		return faulty{StructuredSession: s, turn: f}
	}
}

// replacing replaces the events of one type.
func replacing[E domain.ReplyEvent](f func(E) []domain.ReplyEvent) func(ports.StructuredSession) ports.StructuredSession {
	return edits(func(e domain.ReplyEvent) []domain.ReplyEvent {
		if e, ok := e.(E); ok {
			return f(e)
		}
		return []domain.ReplyEvent{e}
	})
}

func changing[E domain.ReplyEvent](f func(*E)) func(ports.StructuredSession) ports.StructuredSession {
	return replacing(func(e E) []domain.ReplyEvent {
		f(&e)
		return []domain.ReplyEvent{e}
	})
}

func dropping[E domain.ReplyEvent]() func(ports.StructuredSession) ports.StructuredSession {
	return replacing(func(E) []domain.ReplyEvent { return nil })
}

// TestTheKitFindsFaults is the kit's own test: every case fails for an
// implementation that breaks what the case is about.
func TestTheKitFindsFaults(t *testing.T) {
	fault := func(name string, wrap func(ports.StructuredSession) ports.StructuredSession, cases ...string) faultCase {
		return faultCase{name, wrap, cases}
	}
	faults := []faultCase{
		fault("no receipt", dropping[domain.SandboxApplied](), "receipt first"),
		fault("two receipts", replacing(func(e domain.SandboxApplied) []domain.ReplyEvent { return []domain.ReplyEvent{e, e} }), "receipt first"),
		fault("something before the receipt", replacing(func(e domain.SandboxApplied) []domain.ReplyEvent {
			return []domain.ReplyEvent{domain.Log{}, e}
		}), "receipt first"),
		fault("an unconfined turn", changing(func(e *domain.SandboxApplied) { e.Receipt.Unconfined = true }), "receipt first"),
		fault("a receipt with a gap", changing(func(e *domain.SandboxApplied) {
			e.Receipt.Properties = append(e.Receipt.Properties, domain.PropertyStatus{State: domain.StateUnenforceable})
		}), "receipt first"),
		fault("no final", dropping[domain.Final](), "one final, last"),
		fault("two finals", replacing(func(e domain.Final) []domain.ReplyEvent { return []domain.ReplyEvent{e, e} }), "one final, last"),
		fault("an event after the final", replacing(func(e domain.Final) []domain.ReplyEvent { return []domain.ReplyEvent{e, domain.Log{}} }), "one final, last"),
		fault("a nil event", replacing(func(e domain.Final) []domain.ReplyEvent { return []domain.ReplyEvent{nil, e} }), "one final, last"),
		fault("an outcome left out", changing(func(e *domain.Final) { e.Outcome = "" }), "one final, last"),
		fault("text lost", dropping[domain.Text](), "text"),
		fault("text in bytes", changing(func(e *domain.Text) { e.Text = fmt.Sprintf("%x", e.Text) }), "text", "the conversation is kept", "a conversation outlives its session"),
		fault("text cut", changing(func(e *domain.Text) { e.Text = e.Text[:min(len(e.Text), 1000)] }), "text"),
		fault("a good turn failed", changing(func(e *domain.Final) { e.Outcome = domain.OutcomeFailed }), "text"),
		fault("the conversation not announced", dropping[domain.ConversationStarted](), "the conversation is announced"),
		fault("another conversation announced", changing(func(e *domain.ConversationStarted) { e.ConversationID = "other" }), "the conversation is announced", "the conversation is kept"),
		fault("no conversation id", func(s ports.StructuredSession) ports.StructuredSession {
			return faulty{StructuredSession: s, id: func() string { return "" }}
		}, "the conversation is announced"),
		fault("a result without a call", dropping[domain.ToolCall](), "tools"),
		fault("a call without a result", dropping[domain.ToolResult](), "tools"),
		fault("a call twice", replacing(func(e domain.ToolCall) []domain.ReplyEvent { return []domain.ReplyEvent{e, e} }), "tools"),
		fault("a result twice", replacing(func(e domain.ToolResult) []domain.ReplyEvent { return []domain.ReplyEvent{e, e} }), "tools"),
		fault("a result before its call", replacing(func(e domain.ToolCall) []domain.ReplyEvent {
			return []domain.ReplyEvent{domain.ToolResult{ID: e.ID, Status: domain.ToolCompleted}, e}
		}), "tools"),
		fault("two turns at a time", twoTurns, "one turn at a time", "many at once"),
		fault("events twice", replayEvents, "events once"),
		fault("events only for the quick", func(s ports.StructuredSession) ports.StructuredSession {
			sent := time.Now()
			return faulty{StructuredSession: s, turn: func(t ports.Turn) ports.Turn {
				sent = time.Now()
				return faultyTurn{Turn: t, events: func(in stream) stream {
					return func(yield func(domain.ReplyEvent, error) bool) {
						late := time.Since(sent) > 200*time.Millisecond
						for e, err := range in {
							if _, ok := e.(domain.Text); ok && late {
								continue
							}
							if !yield(e, err) {
								return
							}
						}
					}
				}}
			}}
		}, "a late reader misses nothing"),
		fault("leaving waits for the agent", streams(func(in stream) stream {
			return func(yield func(domain.ReplyEvent, error) bool) {
				left := false
				for e, err := range in {
					left = left || !yield(e, err)
				}
			}
		}), "leaving early"),
		fault("kill ignored", turns(func(t ports.Turn) ports.Turn { return faultyTurn{Turn: t, kill: func(error) {}} }), "kill"),
		fault("cancel ignored", turns(func(t ports.Turn) ports.Turn { return faultyTurn{Turn: t, cancel: func(error) {}} }), "cancel", "cancel before reading", "one turn at a time"),
		fault("cancelled turns failed", changing(func(e *domain.Final) {
			if e.Outcome == domain.OutcomeCancelled {
				e.Outcome = domain.OutcomeFailed
			}
		}), "cancel", "cancel before reading", "the context governs the turn", "close during a turn"),
		fault("cancel is an error", streams(func(in stream) stream {
			return func(yield func(domain.ReplyEvent, error) bool) {
				for e, err := range in {
					if f, ok := e.(domain.Final); ok && f.Outcome == domain.OutcomeCancelled {
						err = context.Canceled
					}
					if !yield(e, err) {
						return
					}
				}
			}
		}), "cancel", "close during a turn"),
		fault("the context ignored", func(s ports.StructuredSession) ports.StructuredSession {
			return faulty{StructuredSession: s, send: func(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
				return s.Send(context.WithoutCancel(ctx), p)
			}}
		}, "the context governs the turn", "a deadline ends the turn", "a context that is over"),
		fault("a deadline counts as success", changing(func(e *domain.Final) {
			if e.Outcome == domain.OutcomeTimedOut {
				e.Outcome = domain.OutcomeCompleted
			}
		}), "a deadline ends the turn"),
		fault("nothing is remembered", forgetful, "the conversation is kept", "a conversation outlives its session"),
		fault("everything is remembered", gossip(), "conversations are apart"),
		fault("a failure is an error", failureIsError, "a failure of the agent is an outcome"),
		fault("a failure is success", changing(func(e *domain.Final) {
			if e.Outcome == domain.OutcomeFailed {
				e.Outcome = domain.OutcomeCompleted
			}
		}), "a failure of the agent is an outcome"),
		fault("a crash is success", changing(func(e *domain.Final) {
			if e.Outcome == domain.OutcomeExited {
				e.Outcome = domain.OutcomeCompleted
			}
		}), "a crash of the agent is an outcome"),
		fault("a crash ends the session", func(s ports.StructuredSession) ports.StructuredSession {
			return faulty{StructuredSession: s, turn: func(t ports.Turn) ports.Turn {
				return faultyTurn{Turn: t, events: func(in stream) stream {
					return func(yield func(domain.ReplyEvent, error) bool) {
						for e, err := range in {
							if f, ok := e.(domain.Final); ok && f.Outcome == domain.OutcomeExited {
								defer s.Close(context.Background())
							}
							if !yield(e, err) {
								return
							}
						}
					}
				}}
			}}
		}, "a crash of the agent is an outcome"),
		fault("close twice is an error", func(s ports.StructuredSession) ports.StructuredSession {
			var once sync.Once
			return faulty{StructuredSession: s, close: func(ctx context.Context) error {
				err := errors.New("closed already")
				once.Do(func() { err = s.Close(ctx) })
				return err
			}}
		}, "close", "close before the first turn"),
		fault("close does nothing", func(s ports.StructuredSession) ports.StructuredSession {
			return faulty{StructuredSession: s, close: func(context.Context) error { return nil }}
		}, "close", "close before the first turn", "close during a turn", "close with nobody reading"),
		fault("close waits for the agent", func(s ports.StructuredSession) ports.StructuredSession {
			over := make(chan struct{})
			close(over)
			return faulty{StructuredSession: s, send: func(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
				t, err := s.Send(ctx, p)
				if err == nil {
					over = t.(*fakeStream).done
				}
				return t, err
			}, close: func(ctx context.Context) error {
				select {
				case <-over:
					return s.Close(ctx)
				case <-ctx.Done():
					return errors.Join(ctx.Err(), s.Close(context.WithoutCancel(ctx)))
				}
			}}
		}, "close during a turn", "close with nobody reading"),
	}
	var found sync.Map
	t.Run("faults", func(t *testing.T) {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				h := fakeHarness(f.wrap)
				h.Patience = time.Second
				require.NotEmpty(t, f.cases)
				for _, name := range f.cases {
					i := slices.IndexFunc(sessionContract, func(c contractCase[SessionHarness]) bool { return c.name == name })
					require.GreaterOrEqual(t, i, 0, "no case %q", name)
					require.True(t, fails(t, func(tb testing.TB) { sessionContract[i].check(tb, h) }), "the case %q accepts it", name)
					found.Store(name, true)
				}
			})
		}
	})
	for _, c := range sessionContract {
		_, ok := found.Load(c.name)
		require.True(t, ok, "no fault is found by the case %q", c.name)
		require.NotEmpty(t, c.explanation)
	}
}

type faultCase struct {
	name  string
	wrap  func(ports.StructuredSession) ports.StructuredSession
	cases []string
}

// twoTurns opens a second conversation behind the caller's back.
func twoTurns(s ports.StructuredSession) ports.StructuredSession {
	return faulty{StructuredSession: s, send: func(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
		t, err := s.Send(ctx, p)
		if errors.Is(err, domain.ErrTurnInProgress) {
			other, startErr := s.(*fakeSession).factory.Start(ctx, ports.SessionSpec{ID: idB, Kind: "fake"}, domain.Unconfined("a test"))
			if startErr != nil {
				return nil, startErr
			}
			return other.Send(ctx, p)
		}
		return t, err
	}}
}

// replayEvents gives the events again to a second reader.
func replayEvents(s ports.StructuredSession) ports.StructuredSession {
	return turns(func(t ports.Turn) ports.Turn {
		var seen []domain.ReplyEvent
		return faultyTurn{Turn: t, events: func(in stream) stream {
			return func(yield func(domain.ReplyEvent, error) bool) {
				if seen != nil {
					for _, e := range seen {
						yield(e, nil)
					}
					return
				}
				for e, err := range in {
					seen = append(seen, e)
					if !yield(e, err) {
						return
					}
				}
			}
		}}
	})(s)
}

// forgetful starts a new conversation for every turn.
func forgetful(s ports.StructuredSession) ports.StructuredSession {
	inner := s.(*fakeSession)
	return faulty{StructuredSession: s, send: func(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
		inner.mu.Lock()
		inner.conversation = ""
		inner.mu.Unlock()
		return s.Send(ctx, p)
	}}
}

// gossip has one memory for all sessions.
func gossip() func(ports.StructuredSession) ports.StructuredSession {
	var mu sync.Mutex
	var said string
	return func(s ports.StructuredSession) ports.StructuredSession {
		return faulty{StructuredSession: s, send: func(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
			mu.Lock()
			defer mu.Unlock()
			said += p.Text + "; "
			if p.Text == FakePrompts().Recall {
				p.Text = "say " + said
			}
			return s.Send(ctx, p)
		}}
	}
}

func failureIsError(s ports.StructuredSession) ports.StructuredSession {
	return streams(func(in stream) stream {
		return func(yield func(domain.ReplyEvent, error) bool) {
			for e, err := range in {
				if f, ok := e.(domain.Final); ok && f.Outcome == domain.OutcomeFailed {
					err = errors.New(f.Error.Message)
				}
				if !yield(e, err) {
					return
				}
			}
		}
	})(s)
}

// fails runs a case against a stand-in for a test and reports whether the case
// fails it.
func fails(t *testing.T, check func(testing.TB)) bool {
	r := &recordingTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.cleanup()
		check(r)
	}()
	<-done
	return r.Failed()
}

// recordingTB takes a case's failures in place of the test.
type recordingTB struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

func (r *recordingTB) Helper() {}

func (r *recordingTB) Errorf(string, ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recordingTB) FailNow() {
	r.Errorf("")
	runtime.Goexit()
}

func (r *recordingTB) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recordingTB) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recordingTB) cleanup() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
}
