package composition

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/cgroup"
	"github.com/caisson-run/caisson/infrastructure/egress"
	"github.com/caisson-run/caisson/infrastructure/gateway"
	"github.com/caisson-run/caisson/infrastructure/policyfile"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/infrastructure/store"
	"github.com/caisson-run/caisson/ports"
)

// Option changes one thing of the default composition.
type Option interface{ apply(*settings) error }

type option func(*settings) error

func (o option) apply(s *settings) error { return o(s) }

// settings is what the options change; its zero value is not usable, see
// newSettings.
type settings struct {
	enforcer  ports.SandboxEnforcer // nil for the default
	native    bool
	stateRoot string // "" for the default
	agents    map[domain.AgentKind]ports.AgentAdapter
	logger    *slog.Logger
	lookup    func(name string) (string, bool)
	clock     func() time.Time
	graces    process.Graces
	gateway   ports.ModelGateway
	egress    ports.EgressProxy
	logins    ports.LoginStore // nil for the default
}

func newSettings(opts []Option) (settings, error) {
	s := settings{
		agents:  map[domain.AgentKind]ports.AgentAdapter{},
		logger:  slog.New(slog.DiscardHandler),
		lookup:  os.LookupEnv,
		clock:   time.Now,
		gateway: gateway.New(),
		egress:  egress.New(),
	}
	for _, a := range []ports.AgentAdapter{claude.New(), codex.New()} {
		s.agents[a.Kind()] = a
	}
	var errs []error
	for _, o := range opts {
		if o == nil {
			errs = append(errs, refuse("option", "nil", "leave it out"))
			continue
		}
		errs = append(errs, o.apply(&s))
	}
	if s.native && s.enforcer != nil {
		errs = append(errs, refuse("composition", "both a sandbox enforcer and native turns", "pass WithSandboxEnforcer or WithAllowNative, not both"))
	}
	return s, errors.Join(errs...)
}

func refuse(what, reason, remedy string) error {
	return &domain.InvalidError{What: what, Reason: reason, Remedy: remedy}
}

// DefaultEnforcer returns the enforcer that a composition has without
// [WithSandboxEnforcer]: the strongest that Caisson knows for this system. On a
// system where nothing can be enforced it is one that refuses every plan. Limits
// on memory, processes and processors are kept where a control group is
// delegated to this process.
func DefaultEnforcer() ports.SandboxEnforcer {
	enforcer := sandbox.Default()
	if groups, err := cgroup.Find(); err == nil {
		return cgroup.Limit(enforcer, groups)
	}
	// Without one the enforcer itself says that the limits cannot be kept.
	return enforcer
}

// WithSandboxEnforcer replaces the default enforcer. Nil is refused by [New]:
// a missing sandbox is never an accident.
func WithSandboxEnforcer(e ports.SandboxEnforcer) Option {
	return option(func(s *settings) error {
		if e == nil {
			return refuse("sandbox enforcer", "nil", "leave the option out for the default, or say WithAllowNative to run without")
		}
		s.enforcer = e
		return nil
	})
}

// WithAllowNative composes without an enforcer: turns with a plan run natively,
// and their receipts say unconfined. It contradicts [WithSandboxEnforcer].
func WithAllowNative() Option {
	return option(func(s *settings) error {
		s.native = true
		return nil
	})
}

// WithStateRoot keeps the records and the private directories of sessions below
// dir, an absolute path, instead of $XDG_STATE_HOME/caisson. It is made if it
// is missing.
func WithStateRoot(dir string) Option {
	return option(func(s *settings) error {
		if dir == "" {
			return refuse("state root", "empty", "pass an absolute path, or leave the option out for the default")
		}
		s.stateRoot = dir
		return nil
	})
}

// WithAgentAdapter adds an adapter, in place of the one of the same kind if
// there is one.
func WithAgentAdapter(a ports.AgentAdapter) Option {
	return option(func(s *settings) error {
		if a == nil {
			return refuse("agent adapter", "nil", "leave the option out")
		}
		if a.Kind() == "" {
			return refuse("agent adapter", "its kind is empty", "name the agent")
		}
		s.agents[a.Kind()] = a
		return nil
	})
}

// WithModelGateway replaces what opens the gateways between agents and their
// model APIs. To do without, a session says so ([application.OpenRequest],
// DirectAPI).
func WithModelGateway(g ports.ModelGateway) Option {
	return option(func(s *settings) error {
		if g == nil {
			return refuse("model gateway", "nil", "leave the option out, or open sessions with DirectAPI")
		}
		s.gateway = g
		return nil
	})
}

// WithEgressProxy replaces what opens the proxies to the hosts that policies allow by
// name, for example to resolve names in another way ([egress.WithResolver]).
func WithEgressProxy(e ports.EgressProxy) Option {
	return option(func(s *settings) error {
		if e == nil {
			return refuse("egress proxy", "nil", "leave the option out")
		}
		s.egress = e
		return nil
	})
}

// WithLogger logs what happens inside; by default nothing is logged.
func WithLogger(l *slog.Logger) Option {
	return option(func(s *settings) error {
		if l == nil {
			return refuse("logger", "nil", "leave the option out")
		}
		s.logger = l
		return nil
	})
}

// WithEnviron replaces the process's own environment: where variables of a plan
// take their values from, where agents are searched (PATH), and where the state
// is (XDG_STATE_HOME, HOME). lookup is called from many goroutines.
func WithEnviron(lookup func(name string) (string, bool)) Option {
	return option(func(s *settings) error {
		if lookup == nil {
			return refuse("environment", "nil", "leave the option out for the process's own")
		}
		s.lookup = lookup
		return nil
	})
}

// WithClock replaces the clock that dates events and records. It does not
// govern timeouts. now is called from many goroutines.
func WithClock(now func() time.Time) Option {
	return option(func(s *settings) error {
		if now == nil {
			return refuse("clock", "nil", "leave the option out")
		}
		s.clock = now
		return nil
	})
}

// WithLoginStore replaces where the agents' own logins are kept, which is beside the
// sessions.
func WithLoginStore(l ports.LoginStore) Option {
	return option(func(s *settings) error {
		if l == nil {
			return refuse("login store", "nil", "leave the option out for the default")
		}
		s.logins = l
		return nil
	})
}

// WithGraces replaces the waits of the stop ladder and of the end of a turn. A
// field that is zero keeps its default.
func WithGraces(g process.Graces) Option {
	return option(func(s *settings) error {
		if min(g.Interrupt, g.Terminate, g.Result, g.Drain) < 0 {
			return refuse("graces", "a negative time", "zero means the default")
		}
		s.graces = g
		return nil
	})
}

// adapters returns the adapters, ordered by kind.
func (s settings) adapters() []ports.AgentAdapter {
	var list []ports.AgentAdapter
	for _, kind := range slices.Sorted(maps.Keys(s.agents)) {
		list = append(list, s.agents[kind])
	}
	return list
}

// guarded is where policies come from.
func (s settings) guarded() []string {
	if dir := policyfile.ConfigDir(s.lookup); dir != "" {
		return []string{dir}
	}
	return nil
}

func (s settings) store() (ports.SessionStore, error) {
	root := s.stateRoot
	if root == "" {
		var err error
		if root, err = store.DefaultRoot(s.lookup); err != nil {
			return nil, err
		}
	}
	return store.New(root)
}

// loginStore returns where logins are kept: beside the sessions, by default.
func (s settings) loginStore(sessions ports.SessionStore) (ports.LoginStore, error) {
	if s.logins != nil {
		return s.logins, nil
	}
	return store.NewLogins(sessions.Root())
}
