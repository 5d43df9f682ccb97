package composition

import (
	"context"
	"sync"
	"time"

	"go.uber.org/dig"
	"go.uber.org/fx"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/infrastructure/session"
	"github.com/caisson-run/caisson/infrastructure/terminal"
	"github.com/caisson-run/caisson/ports"
)

// stopTimeout is how long [Caisson.Close] takes at most when its context has no
// deadline: a stop ladder with all its graces fits in several times.
const stopTimeout = time.Minute

// Caisson is a composition that runs.
type Caisson struct {
	// Orchestrator opens sessions and runs commands.
	Orchestrator *application.Orchestrator

	app   *fx.App
	close func(context.Context) error
}

// New composes Caisson and starts it. It starts no process and restricts
// nothing; it makes the state root. Every bad option is named in the error. ctx
// bounds the start alone. The caller closes the handle.
func New(ctx context.Context, opts ...Option) (*Caisson, error) {
	c := &Caisson{}
	c.app = fx.New(Module(opts...), fx.Populate(&c.Orchestrator), fx.NopLogger, fx.StopTimeout(stopTimeout))
	if err := c.app.Err(); err != nil {
		return nil, compositionError(err)
	}
	if err := c.app.Start(ctx); err != nil {
		return nil, compositionError(err)
	}
	var mu sync.Mutex
	closed := false
	c.close = func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if closed {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		// Not by fx alone: with a context that has ended it runs no hook at all.
		if err := c.Orchestrator.Close(ctx); err != nil {
			return err
		}
		err := c.app.Stop(context.WithoutCancel(ctx))
		closed = err == nil
		return err
	}
	return c, nil
}

// compositionError leaves out the graph that fx tells about, and keeps what
// errors.Is and errors.As look for.
func compositionError(err error) error { return dig.RootCause(err) }

// Close closes every session and returns when all their processes are gone, or
// when ctx ends, with its error; then it can be called again. Turns are cancelled
// in any case. Closing twice is no error.
func (c *Caisson) Close(ctx context.Context) error { return c.close(ctx) }

// Agents are the adapters of a composition, one per kind.
type Agents []ports.AgentAdapter

// Module is the composition for a host that runs fx. It provides
// *application.Orchestrator, which it closes when the app stops (give the app
// an fx.StopTimeout that leaves time for it), and the ports that the
// orchestrator is made of: ports.SandboxEnforcer (not after [WithAllowNative]),
// [Agents], ports.ModelGateway, ports.EgressProxy, ports.SessionStore, ports.LoginStore,
// ports.StructuredSessionFactory, ports.TerminalSessionFactory and
// ports.CommandRunner. A decorator of one of these must stand at the root of
// the app: in a module beside this one, and with fx.Replace of a concrete type,
// it has no effect, and fx says nothing.
func Module(opts ...Option) fx.Option {
	s, err := newSettings(opts)
	if err != nil {
		return fx.Error(err)
	}
	provide := []any{
		func() Agents { return s.adapters() },
		func() ports.ModelGateway { return s.gateway },
		func() ports.EgressProxy { return s.egress },
		s.store,
		s.loginStore,
		s.orchestrator,
	}
	if s.native {
		provide = append(provide,
			func(agents Agents) (ports.StructuredSessionFactory, error) { return s.sessions(nil, agents) },
			func() ports.CommandRunner { return s.commands(nil) },
			func() ports.TerminalSessionFactory { return s.terminals(nil) },
		)
	} else {
		provide = append(provide,
			func() ports.SandboxEnforcer {
				if s.enforcer != nil {
					return s.enforcer
				}
				return DefaultEnforcer()
			},
			s.sessions,
			s.commands,
			s.terminals,
		)
	}
	return fx.Module("caisson", fx.Provide(provide...))
}

// sessions makes the factory; without an enforcer one for native turns.
func (s settings) sessions(e ports.SandboxEnforcer, agents Agents) (ports.StructuredSessionFactory, error) {
	opts := []session.Option{session.WithEnviron(s.lookup), session.WithGraces(s.graces)}
	if e != nil {
		opts = append(opts, session.WithSandboxEnforcer(e))
	} else {
		opts = append(opts, session.AllowNative())
	}
	return session.NewFactory(agents, opts...)
}

// commands makes the runner; without an enforcer one for native commands.
func (s settings) commands(e ports.SandboxEnforcer) ports.CommandRunner {
	return process.NewSpawner(process.Config{Enforcer: e, AllowNative: e == nil})
}

// terminals makes the factory for terminals; without an enforcer one for native
// programs.
func (s settings) terminals(e ports.SandboxEnforcer) ports.TerminalSessionFactory {
	return terminal.NewFactory(process.NewSpawner(process.Config{Enforcer: e, AllowNative: e == nil}), s.graces)
}

func (s settings) orchestrator(
	life fx.Lifecycle, agents Agents, sessions ports.StructuredSessionFactory, commands ports.CommandRunner,
	terminals ports.TerminalSessionFactory, store ports.SessionStore, gateway ports.ModelGateway, egress ports.EgressProxy,
	logins ports.LoginStore,
) (*application.Orchestrator, error) {
	o, err := application.New(application.Config{
		Agents: agents, Sessions: sessions, Commands: commands, Terminals: terminals, Store: store,
		Host: ports.Host{LookupEnv: s.lookup}, Gateway: gateway, Egress: egress, Logins: logins, Clock: s.clock, Logger: s.logger,
		Guarded: s.guarded(),
	})
	if err != nil {
		return nil, err
	}
	life.Append(fx.Hook{OnStop: o.Close})
	return o, nil
}
