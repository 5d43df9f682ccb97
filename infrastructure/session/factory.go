package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
)

// Factory implements ports.StructuredSessionFactory.
type Factory struct {
	adapters map[domain.AgentKind]ports.AgentAdapter
	enforcer ports.SandboxEnforcer
	native   bool
	fds      bool
	lookup   func(string) (string, bool)
	graces   process.Graces
	output   int64
	line     int
	spawner  *process.Spawner
}

// Option configures a Factory.
type Option interface{ apply(*Factory) }

type option func(*Factory)

func (o option) apply(f *Factory) { o(f) }

// WithSandboxEnforcer sets what enforces the plans. Without one, a session
// with a plan is refused with domain.ErrNoEnforcer.
func WithSandboxEnforcer(e ports.SandboxEnforcer) Option {
	return option(func(f *Factory) { f.enforcer = e })
}

// AllowNative runs turns with a plan natively while there is no enforcer; their
// receipts say unconfined.
func AllowNative() Option { return option(func(f *Factory) { f.native = true }) }

// KeepInheritedFDs leaves the host's inheritable descriptors open to confined
// children; the receipts say so.
func KeepInheritedFDs() Option { return option(func(f *Factory) { f.fds = true }) }

// WithEnviron sets where the values of the plan's environment variables come
// from when a turn is started. Without it every variable counts as unset.
func WithEnviron(lookup func(name string) (string, bool)) Option {
	return option(func(f *Factory) { f.lookup = lookup })
}

// WithGraces sets the waits of the stop ladder.
func WithGraces(g process.Graces) Option { return option(func(f *Factory) { f.graces = g }) }

// WithOutputLimit sets how many bytes a turn may write. Zero means the default
// of package process.
func WithOutputLimit(bytes int64) Option { return option(func(f *Factory) { f.output = bytes }) }

// WithLineLimit sets the longest line that is given to a parser, in bytes. Zero
// means the default of package process.
func WithLineLimit(bytes int) Option { return option(func(f *Factory) { f.line = bytes }) }

// NewFactory returns a factory for the agents of the adapters. Two adapters of
// one kind are an error.
func NewFactory(adapters []ports.AgentAdapter, opts ...Option) (*Factory, error) {
	f := &Factory{
		adapters: make(map[domain.AgentKind]ports.AgentAdapter, len(adapters)),
		lookup:   func(string) (string, bool) { return "", false },
	}
	for _, a := range adapters {
		if _, ok := f.adapters[a.Kind()]; ok {
			return nil, &domain.InvalidError{What: "agent", Value: string(a.Kind()), Reason: "two adapters of this kind", Remedy: "keep one"}
		}
		f.adapters[a.Kind()] = a
	}
	for _, o := range opts {
		o.apply(f)
	}
	f.spawner = process.NewSpawner(process.Config{Enforcer: f.enforcer, AllowNative: f.native, KeepInheritedFDs: f.fds})
	return f, nil
}

// Start implements ports.StructuredSessionFactory.
func (f *Factory) Start(ctx context.Context, spec ports.SessionSpec, sandbox domain.SandboxPlan) (ports.StructuredSession, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := sandbox.Validate(); err != nil {
		return nil, err
	}
	adapter, ok := f.adapters[spec.Kind]
	if !ok {
		return nil, &domain.InvalidError{What: "agent", Value: string(spec.Kind), Reason: "no adapter for it", Remedy: "one of " + f.kinds()}
	}
	confined := false
	if sandbox.IsConfined() {
		switch {
		case f.enforcer != nil:
			if err := domain.CheckStrictness(sandbox, f.enforcer.Supports(sandbox)); err != nil {
				return nil, err
			}
			confined = true
		case !f.native:
			return nil, domain.ErrNoEnforcer
		}
	}
	if spec.ConversationID != "" && !domain.IsUUID(spec.ConversationID) {
		return nil, &domain.InvalidError{What: "conversation id", Value: spec.ConversationID, Reason: "not a UUID", Remedy: "open a new session"}
	}
	// Nothing of the agent's has run yet: a confinement that does not hold is
	// found before there is anything to hold.
	probe, err := f.spawner.Probe(ctx, process.ProbeSpec{
		Line: domain.SpawnLine{
			Path: spec.Install.Path, Argv: []string{spec.Install.Path}, Dir: spec.Workspace, Sandbox: sandbox,
		},
		Granted: spec.Dirs.Temp, Denied: spec.Dirs.Spool,
	})
	if err != nil {
		return nil, err
	}
	return &Session{
		factory: f, adapter: adapter, spec: spec, sandbox: sandbox, confined: confined, probe: probe,
		conversation: spec.ConversationID, known: spec.ConversationID != "", usage: spec.UsageBefore,
	}, nil
}

// EndLeftover implements ports.StructuredSessionFactory.
func (f *Factory) EndLeftover(ctx context.Context, left domain.ProcessIdentity) error {
	return f.spawner.EndLeftover(ctx, left)
}

func (f *Factory) kinds() string {
	var names []string
	for k := range f.adapters {
		names = append(names, string(k))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Session implements ports.StructuredSession: one process run per turn.
type Session struct {
	factory  *Factory
	adapter  ports.AgentAdapter
	spec     ports.SessionSpec
	sandbox  domain.SandboxPlan
	confined bool
	probe    domain.Probe

	mu           sync.Mutex
	conversation string
	known        bool // the agent itself has given the conversation id
	usage        domain.Usage
	current      *Turn         // nil between turns
	starting     chan struct{} // closed when a turn's start is over; nil otherwise
	closed       bool
}

// ConversationID implements ports.StructuredSession.
func (s *Session) ConversationID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		return ""
	}
	return s.conversation
}

// Send implements ports.StructuredSession.
func (s *Session) Send(ctx context.Context, p ports.Prompt) (ports.Turn, error) {
	request, err := s.begin(p)
	if err != nil {
		return nil, err
	}
	turn, err := s.launch(ctx, request)
	s.mu.Lock()
	closed := s.closed
	if err == nil {
		s.current = turn
	}
	s.mu.Unlock()
	if err == nil && closed {
		// Close came meanwhile, and may have given up waiting.
		turn.Cancel(domain.ErrClosed)
		err = errors.Join(fmt.Errorf("session %s: %w", s.spec.ID, domain.ErrClosed), turn.releaseUnread())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.starting)
	s.starting = nil
	if err != nil {
		return nil, err
	}
	return turn, nil
}

// begin takes the session's one place for a turn.
func (s *Session) begin(p ports.Prompt) (ports.TurnRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ports.TurnRequest{}, fmt.Errorf("session %s: %w", s.spec.ID, domain.ErrClosed)
	case s.current != nil || s.starting != nil:
		return ports.TurnRequest{}, fmt.Errorf("session %s: %w", s.spec.ID, domain.ErrTurnInProgress)
	}
	s.starting = make(chan struct{})
	if !s.known {
		// A turn that never gave its id may have used up the one it was asked to
		// use, so every attempt gets a fresh one.
		s.conversation = uuid.NewString()
	}
	return ports.TurnRequest{
		Prompt: p, Install: s.spec.Install, Dirs: s.spec.Dirs, Workspace: s.spec.Workspace,
		Model: s.spec.Model, ConversationID: s.conversation, Resume: s.known,
		Confined: s.confined, UsageBefore: s.usage,
	}, nil
}

// launch starts the turn's process under the session's plan.
func (s *Session) launch(ctx context.Context, request ports.TurnRequest) (*Turn, error) {
	line, err := s.adapter.Command(request)
	if err != nil {
		return nil, err
	}
	line.Env = domain.MergeEnv(s.sandbox.Environ(s.factory.lookup), line.Env)
	line.Sandbox = s.sandbox
	parser := s.adapter.NewParser(request)
	run, err := s.factory.spawner.StartTurn(ctx, process.TurnSpec{
		Line: line, SpoolDir: s.spec.Dirs.Spool, Mark: request.Prompt.Mark, Interrupt: parser.Interrupt(),
		OutputLimit: s.factory.output, LineLimit: s.factory.line, Graces: s.factory.graces,
	})
	if err != nil {
		return nil, err
	}
	return &Turn{session: s, run: run, parser: parser}, nil
}

// adopt takes the conversation id that the agent gave.
func (s *Session) adopt(id string) {
	if id == "" || !domain.IsUUID(id) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conversation, s.known = id, true
}

// finished takes a turn's end.
func (s *Session) finished(f domain.Final) {
	s.adopt(f.ConversationID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.TotalUsage != nil {
		s.usage = *f.TotalUsage
	}
	s.current = nil
}

// Close implements ports.StructuredSession.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	starting := s.starting
	s.mu.Unlock()
	if starting != nil {
		select {
		case <-starting:
		case <-ctx.Done():
			return fmt.Errorf("close session %s: %w", s.spec.ID, context.Cause(ctx))
		}
	}
	s.mu.Lock()
	turn := s.current
	s.mu.Unlock()
	if turn == nil {
		return nil
	}
	turn.Cancel(domain.ErrClosed)
	select {
	case <-turn.run.Ended():
	case <-ctx.Done():
		return fmt.Errorf("close session %s: %w", s.spec.ID, context.Cause(ctx))
	}
	return turn.releaseUnread()
}
