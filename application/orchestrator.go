package application

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Config is what an [Orchestrator] is made of. Agents may be empty, and
// Terminals, Gateway, Egress, Logins, Clock, Logger, Executable and Forget have a
// useful zero value; everything else is required.
type Config struct {
	// Agents are the adapters, at most one of a kind.
	Agents   []ports.AgentAdapter
	Sessions ports.StructuredSessionFactory
	Commands ports.CommandRunner
	Store    ports.SessionStore
	Host     ports.Host
	// Terminals starts terminal sessions; nil refuses them.
	Terminals ports.TerminalSessionFactory
	// Gateway opens the gateways to the agents' model APIs; nil lets the agents
	// reach them by themselves, with their own credentials.
	Gateway ports.ModelGateway
	// Egress opens the proxies to the hosts that policies allow by name; nil refuses
	// such policies.
	Egress ports.EgressProxy
	// Logins keeps the agents' own logins; nil keeps none, and refuses a session
	// that wants one.
	Logins ports.LoginStore
	// Clock gives the time of events; nil is time.Now.
	Clock func() time.Time
	// Logger gets what goes wrong where nobody can be told by an error; nil
	// drops it.
	Logger *slog.Logger
	// Executable is the path of Caisson's own program, which no plan may let an
	// agent write; "" is os.Executable.
	Executable string
	// Guarded are absolute paths that, like the state, no plan may let be written,
	// because later policies come from them.
	Guarded []string
	// Forget keeps nothing of a session: it is not recorded, cannot be resumed,
	// and its directories are removed when it is closed.
	Forget bool
}

// Orchestrator opens sessions and runs commands. It is safe for concurrent use.
type Orchestrator struct {
	agents     map[domain.AgentKind]ports.AgentAdapter
	factory    ports.StructuredSessionFactory
	commands   ports.CommandRunner
	screens    ports.TerminalSessionFactory
	store      ports.SessionStore
	host       ports.Host
	gateway    ports.ModelGateway // nil for none
	egress     ports.EgressProxy  // nil for none
	logins     ports.LoginStore   // nil for none
	clock      func() time.Time
	log        *slog.Logger
	executable string
	guarded    []string
	forget     bool

	mu        sync.Mutex
	sessions  map[domain.SessionID]*Session
	terminals map[*Terminal]bool
	running   map[*execution]bool
	closed    bool
}

// New returns an orchestrator. A part that is missing, or two adapters of one
// kind, give a *domain.InvalidError.
func New(cfg Config) (*Orchestrator, error) {
	for what, missing := range map[string]bool{
		"session factory": cfg.Sessions == nil, "command runner": cfg.Commands == nil,
		"session store": cfg.Store == nil, "host environment": cfg.Host.LookupEnv == nil,
	} {
		if missing {
			return nil, &domain.InvalidError{What: what, Reason: "missing", Remedy: "set it in application.Config"}
		}
	}
	o := &Orchestrator{
		agents:  make(map[domain.AgentKind]ports.AgentAdapter, len(cfg.Agents)),
		factory: cfg.Sessions, commands: cfg.Commands, store: cfg.Store, host: cfg.Host, screens: cfg.Terminals, gateway: cfg.Gateway, egress: cfg.Egress, logins: cfg.Logins,
		clock: cfg.Clock, log: cfg.Logger, executable: cfg.Executable, forget: cfg.Forget, guarded: slices.Clone(cfg.Guarded),
		sessions: map[domain.SessionID]*Session{}, terminals: map[*Terminal]bool{}, running: map[*execution]bool{},
	}
	for _, a := range cfg.Agents {
		if a == nil || a.Kind() == "" {
			return nil, &domain.InvalidError{What: "agent", Reason: "an adapter without a kind", Remedy: "give it a name"}
		}
		if _, ok := o.agents[a.Kind()]; ok {
			return nil, &domain.InvalidError{What: "agent", Value: string(a.Kind()), Reason: "two adapters of this kind", Remedy: "keep one"}
		}
		o.agents[a.Kind()] = a
	}
	if o.clock == nil {
		o.clock = time.Now
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	if o.executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find Caisson's own program: %w", err)
		}
		o.executable = path
	}
	return o, nil
}

// StateRoot returns the directory of the stored sessions.
func (o *Orchestrator) StateRoot() string { return o.store.Root() }

// Agents returns the kinds of the agents that there are adapters for, sorted.
func (o *Orchestrator) Agents() []domain.AgentKind {
	kinds := make([]domain.AgentKind, 0, len(o.agents))
	for k := range o.agents {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	return kinds
}

// ResolveAgent finds an agent's program as [Orchestrator.Open] would: from the
// hint, a path, or on PATH. It reads files and runs nothing. An agent that is
// not there gives a *domain.AgentNotFoundError, one without an adapter a
// *domain.InvalidError.
func (o *Orchestrator) ResolveAgent(kind domain.AgentKind, hint string) (ports.AgentInstall, error) {
	a, err := o.adapter(kind)
	if err != nil {
		return ports.AgentInstall{}, err
	}
	return a.Resolve(hint, o.host)
}

func (o *Orchestrator) adapter(kind domain.AgentKind) (ports.AgentAdapter, error) {
	if a, ok := o.agents[kind]; ok {
		return a, nil
	}
	names := make([]string, 0, len(o.agents))
	for _, k := range o.Agents() {
		names = append(names, string(k))
	}
	return nil, &domain.InvalidError{
		What: "agent", Value: string(kind), Reason: "no such agent", Remedy: "one of " + strings.Join(names, ", "),
	}
}

// Open opens a session: a new one, or an earlier one to go on with. No process
// runs until the first turn. After an error nothing is left of the attempt.
//
// A session that is open already, in this process or in another one, is refused
// with a *domain.BusyError, because two ends of one conversation would fork it.
// After Close there is domain.ErrClosed.
func (o *Orchestrator) Open(ctx context.Context, req OpenRequest) (*Session, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	l := &launch{o: o, req: req}
	session, err := l.run(ctx)
	if err != nil {
		return nil, errors.Join(err, l.undo.run(context.WithoutCancel(ctx)))
	}
	o.log.Info("session opened", slog.String("session", string(session.id)), slog.String("agent", string(session.Agent())),
		slog.Bool("resumed", req.Resume != ""))
	return session, nil
}

// Preview is what [Orchestrator.Open] would do.
type Preview struct {
	Plan domain.SandboxPlan
	// Notes are the lines that the receipts of the session would repeat.
	Notes     []string
	Agent     domain.AgentKind
	Install   ports.AgentInstall
	Workspace string
	// Dirs are the session's private directories. Those of a new session do not
	// exist, and stand under the id 00000000-0000-0000-0000-000000000000.
	Dirs ports.SessionDirs
}

// Plan returns what Open would do, by the same steps, and changes nothing. A
// session whose plan is no longer that of its first turn gives a
// *domain.PlanChangedError together with the plan as it is now.
func (o *Orchestrator) Plan(ctx context.Context, req OpenRequest) (Preview, error) {
	if err := o.check(ctx); err != nil {
		return Preview{}, err
	}
	l := &launch{o: o, req: req, preview: true}
	err := l.prepare(ctx)
	var changed *domain.PlanChangedError
	if err != nil && !errors.As(err, &changed) {
		return Preview{}, err
	}
	return Preview{
		Plan: l.plan, Notes: l.notes, Agent: l.req.Agent, Install: l.install, Workspace: l.workspace, Dirs: l.dirs,
	}, err
}

// Close closes every open session and terminal, ends every command that Exec runs,
// and closes the orchestrator for new ones. It returns when their process trees are gone, or when ctx ends, with its error;
// then it can be called again. Closing twice is no error.
func (o *Orchestrator) Close(ctx context.Context) error {
	o.mu.Lock()
	o.closed = true
	open := make([]interface{ Close(context.Context) error }, 0, len(o.sessions)+len(o.terminals)+len(o.running))
	for _, s := range o.sessions {
		open = append(open, s)
	}
	for t := range o.terminals {
		open = append(open, t)
	}
	for x := range o.running {
		open = append(open, x)
	}
	o.mu.Unlock()
	errs := make([]error, len(open))
	var all sync.WaitGroup
	for i, s := range open {
		all.Go(func() { errs[i] = s.Close(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

var errOrchestratorClosed = fmt.Errorf("orchestrator: %w", domain.ErrClosed)

func (o *Orchestrator) check(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errOrchestratorClosed
	}
	return context.Cause(ctx)
}

// register makes an open session known, so that Close finds it.
func (o *Orchestrator) register(s *Session) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errOrchestratorClosed
	}
	o.sessions[s.ID()] = s
	return nil
}

// release takes back register.
func (o *Orchestrator) release(id domain.SessionID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.sessions, id)
}

// now is the time of an event: UTC, without the monotonic reading.
func (o *Orchestrator) now() time.Time { return o.clock().UTC().Round(0) }

func newSessionID() (domain.SessionID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make a session id: %w", err)
	}
	return domain.SessionID(id.String()), nil
}

// undoStack holds what takes back the steps done so far.
type undoStack []func(context.Context) error

func (u *undoStack) push(f func(context.Context) error) { *u = append(*u, f) }

// run takes the steps back, the last one first, each of them whatever became of
// the others. Those that failed stay, to be tried again.
func (u *undoStack) run(ctx context.Context) error {
	var errs []error
	var left undoStack
	for _, f := range slices.Backward(*u) {
		if err := f(ctx); err != nil {
			errs, left = append(errs, err), append(left, f)
		}
	}
	slices.Reverse(left)
	*u = left
	return errors.Join(errs...)
}
