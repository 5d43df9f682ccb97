package portstest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// FakeSessionFactory is a ports.StructuredSessionFactory whose agent is a
// function: no process is started and nothing is confined, whatever the
// receipts say. Its conversations last as long as it does, so that a session
// can be resumed. The zero value is ready to use, and plays [PlayPrompt]. It is
// safe for concurrent use.
type FakeSessionFactory struct {
	// Play is the agent; nil is PlayPrompt. It must return when ctx ends.
	Play func(ctx context.Context, turn FakeTurn) FakeEnd
	// Refuse, if not nil, may make Start fail.
	Refuse func(spec ports.SessionSpec, sandbox domain.SandboxPlan) error
	// RefuseTurn, if not nil, may make Send fail.
	RefuseTurn func(p ports.Prompt) error
	// Process is the identity that the turns give. The zero value is right for an
	// agent that is a function.
	Process domain.ProcessIdentity
	// Leftover, if not nil, is called by EndLeftover.
	Leftover func(left domain.ProcessIdentity) error

	mu            sync.Mutex
	conversations map[string][]string // the prompts of each
	started       []FakeStart
	open          int
}

var _ ports.StructuredSessionFactory = (*FakeSessionFactory)(nil)

// FakeStart is one call of Start.
type FakeStart struct {
	Spec    ports.SessionSpec
	Sandbox domain.SandboxPlan
}

// FakeTurn is one turn, for the function that plays the agent.
type FakeTurn struct {
	Spec    ports.SessionSpec
	Sandbox domain.SandboxPlan
	Prompt  string
	// History has the conversation's earlier prompts.
	History []string
	// Emit adds an event to the turn's stream. It never blocks.
	Emit func(domain.ReplyEvent)
}

// FakeEnd is how an agent's turn ended.
type FakeEnd struct {
	// Claim is the agent's own final, nil if it gave none.
	Claim *domain.Final
	// Exit is the exit of its process; the zero value stands for exit 0.
	Exit domain.ExitStatus
	// NoFinal ends the stream without a final event.
	NoFinal bool
	// Err is a failure of Caisson's own, the last that the stream yields.
	Err error
}

// FakePrompts are the prompts that [PlayPrompt] understands.
func FakePrompts() SessionPrompts {
	return SessionPrompts{
		Say:      func(text string) string { return "say " + text },
		Tool:     "tool",
		Hang:     "hang",
		Remember: func(word string) string { return "remember " + word },
		Recall:   "recall",
		Fail:     "fail",
		Crash:    "crash",
	}
}

// PlayPrompt is an agent that does what its prompt says: one of [FakePrompts].
// Anything else it repeats.
func PlayPrompt(ctx context.Context, turn FakeTurn) FakeEnd {
	say := func(text string) FakeEnd {
		turn.Emit(domain.Text{Text: text})
		return FakeEnd{Claim: &domain.Final{
			Outcome: domain.OutcomeCompleted, Text: text, Usage: domain.Usage{InputTokens: 10, OutputTokens: 1},
		}}
	}
	verb, rest, _ := strings.Cut(turn.Prompt, " ")
	switch verb {
	case "say":
		return say(rest)
	case "tool":
		turn.Emit(domain.ToolCall{ID: "tool-1", Name: "Bash", Kind: domain.ToolExecute, Input: []byte(`{"command":"true"}`)})
		turn.Emit(domain.ToolUpdate{ID: "tool-1", Output: "…"})
		turn.Emit(domain.ToolResult{ID: "tool-1", Status: domain.ToolCompleted, Output: "done"})
		return say("used a tool")
	case "hang":
		turn.Emit(domain.Text{Text: "hanging"})
		<-ctx.Done()
		return FakeEnd{Exit: domain.ExitStatus{Known: true, Code: -1, Signal: "SIGTERM", SignalNumber: 15}}
	case "remember":
		return say("noted")
	case "recall":
		return say("earlier: " + strings.Join(turn.History, "; "))
	case "fail":
		return FakeEnd{Claim: &domain.Final{
			Outcome: domain.OutcomeFailed,
			Error:   &domain.TurnError{Class: "overloaded", Message: "the model is overloaded", Retryable: true},
		}}
	case "crash":
		return FakeEnd{Exit: domain.ExitStatus{Known: true, Code: 3}}
	}
	return say(turn.Prompt)
}

// Starts returns every call of Start that succeeded.
func (f *FakeSessionFactory) Starts() []FakeStart {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.started)
}

// Open returns how many sessions are not closed.
func (f *FakeSessionFactory) Open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open
}

// Start implements ports.StructuredSessionFactory.
func (f *FakeSessionFactory) Start(ctx context.Context, spec ports.SessionSpec, sandbox domain.SandboxPlan) (ports.StructuredSession, error) {
	if err := errors.Join(ctx.Err(), sandbox.Validate()); err != nil {
		return nil, err
	}
	if f.Refuse != nil {
		if err := f.Refuse(spec, sandbox); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conversations == nil {
		f.conversations = map[string][]string{}
	}
	if _, ok := f.conversations[spec.ConversationID]; spec.ConversationID != "" && !ok {
		return nil, fmt.Errorf("no conversation %s", spec.ConversationID)
	}
	f.started = append(f.started, FakeStart{Spec: spec, Sandbox: sandbox})
	f.open++
	return &fakeSession{factory: f, spec: spec, sandbox: sandbox, conversation: spec.ConversationID}, nil
}

// EndLeftover implements ports.StructuredSessionFactory. Nothing is ever left of
// a function.
func (f *FakeSessionFactory) EndLeftover(_ context.Context, left domain.ProcessIdentity) error {
	if f.Leftover == nil {
		return nil
	}
	return f.Leftover(left)
}

// recall returns the conversation's prompts so far and adds one.
func (f *FakeSessionFactory) recall(conversation, prompt string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	history := f.conversations[conversation]
	f.conversations[conversation] = append(slices.Clone(history), prompt)
	return history
}

type fakeSession struct {
	factory *FakeSessionFactory
	spec    ports.SessionSpec
	sandbox domain.SandboxPlan

	mu           sync.Mutex
	conversation string
	current      *fakeStream
	closed       bool
}

// Send implements ports.StructuredSession.
func (s *fakeSession) Send(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, domain.ErrClosed
	case s.current != nil:
		return nil, domain.ErrTurnInProgress
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	if f := s.factory.RefuseTurn; f != nil {
		if err := f(p); err != nil {
			return nil, err
		}
	}
	if s.conversation == "" {
		s.conversation = uuid.NewString()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t := &fakeStream{session: s, cancel: cancel, done: make(chan struct{}), more: make(chan struct{}, 1)}
	s.current = t
	history := s.factory.recall(s.conversation, p.Text)
	go t.run(ctx, FakeTurn{
		Spec: s.spec, Sandbox: s.sandbox, Prompt: p.Text, History: history, Emit: t.emit,
	}, s.conversation)
	return t, nil
}

// ConversationID implements ports.StructuredSession.
func (s *fakeSession) ConversationID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conversation
}

// Close implements ports.StructuredSession.
func (s *fakeSession) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.factory.mu.Lock()
		s.factory.open--
		s.factory.mu.Unlock()
	}
	t := s.current
	s.mu.Unlock()
	if t == nil {
		return nil
	}
	t.cancel(domain.ErrClosed)
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *fakeSession) finished(t *fakeStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == t {
		s.current = nil
	}
}

// fakeStream is a turn of a fakeSession. The agent runs ahead of the reader.
type fakeStream struct {
	session *fakeSession
	cancel  context.CancelCauseFunc
	taken   atomic.Bool
	done    chan struct{} // closed when the agent is gone and err is set
	more    chan struct{} // has a token when there may be new events

	mu     sync.Mutex
	events []domain.ReplyEvent
	err    error
}

// run is the agent's side.
func (t *fakeStream) run(ctx context.Context, turn FakeTurn, conversation string) {
	defer close(t.done)
	defer t.cancel(nil)
	start := time.Now()
	t.emit(domain.SandboxApplied{Receipt: fakeReceipt(turn.Spec, turn.Sandbox)})
	t.emit(domain.ConversationStarted{ConversationID: conversation, Model: turn.Spec.Model, AgentVersion: turn.Spec.Install.Version})
	play := t.session.factory.Play
	if play == nil {
		play = PlayPrompt
	}
	end := play(ctx, turn)
	t.err = end.Err
	if end.NoFinal {
		return
	}
	if end.Exit == (domain.ExitStatus{}) {
		end.Exit.Known = true
	}
	how := domain.TurnEnd{Exit: end.Exit, Duration: time.Since(start)}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		how.Cause, how.Detail = domain.EndWallClock, cause.Error()
	case cause != nil:
		how.Cause, how.Detail = domain.EndCancelled, cause.Error()
	case end.Err != nil:
		how.Cause, how.Detail = domain.EndInternal, end.Err.Error()
	}
	final := domain.Conclude(end.Claim, how)
	if final.ConversationID == "" {
		final.ConversationID = conversation
	}
	t.emit(final)
}

func (t *fakeStream) emit(e domain.ReplyEvent) {
	t.mu.Lock()
	t.events = append(t.events, e)
	t.mu.Unlock()
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// take returns what was emitted since the last call.
func (t *fakeStream) take() []domain.ReplyEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	events := t.events
	t.events = nil
	return events
}

// Cancel implements ports.Turn.
func (t *fakeStream) Cancel(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	t.cancel(cause)
}

// Process implements ports.Turn.
func (t *fakeStream) Process() domain.ProcessIdentity { return t.session.factory.Process }

// Kill implements ports.Turn. What the fake runs has no graces.
func (t *fakeStream) Kill(cause error) { t.Cancel(cause) }

// Events implements ports.Turn.
func (t *fakeStream) Events() iter.Seq2[domain.ReplyEvent, error] {
	return func(yield func(domain.ReplyEvent, error) bool) {
		if !t.taken.CompareAndSwap(false, true) {
			yield(nil, domain.ErrEventsConsumed)
			return
		}
		defer t.session.finished(t)
		defer func() {
			t.cancel(errors.New("the reader left"))
			<-t.done
		}()
		for over := false; !over; {
			select {
			case <-t.more:
			case <-t.done:
				over = true
			}
			for _, e := range t.take() {
				if !yield(e, nil) {
					return
				}
			}
		}
		if t.err != nil {
			yield(nil, t.err)
		}
	}
}

// fakeReceipt claims that the plan is enforced.
func fakeReceipt(spec ports.SessionSpec, plan domain.SandboxPlan) domain.Receipt {
	r := domain.Receipt{Unconfined: plan.IsUnconfined(), Why: plan.Why(), Agent: spec.Notes, PlanDigest: plan.Digest(), Tree: domain.TreeNone}
	if r.Unconfined {
		return r
	}
	r.Domains = plan.EgressNames()
	r.Preset, r.Enforcer, r.ConnectTCP, r.Destinations, r.BindTCP = plan.Preset(), "fake", plan.ConnectTCP(), plan.ReachableDestinations(), plan.BindTCP()
	for _, p := range domain.Properties() {
		status := domain.PropertyStatus{Property: p, State: domain.StateNotRequested}
		if plan.Requests(p) {
			status.State, status.Mechanism = domain.StateEnforced, "the fake's word"
		}
		r.Properties = append(r.Properties, status)
	}
	for _, rule := range plan.Rules() {
		r.Rules = append(r.Rules, domain.GrantedRule{Path: rule.Path, Canonical: rule.Path, Access: rule.Access, Why: rule.Why})
	}
	return r
}
