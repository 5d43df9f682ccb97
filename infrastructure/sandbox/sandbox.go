// Package sandbox composes the layers of the default enforcer, in the order in
// which they are applied: no_new_privs and empty capability sets (package
// privileges), the Landlock domain of the plan (package landlock), the filter
// of system calls (package seccomp). Each closes what the ones before it cannot;
// [statuses] says which of them guarantees which property of a plan.
//
// A composition asks for the enforcer here, on every system, and not for a
// layer by name.
//
// It may import domain, ports and the packages of the layers.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/infrastructure/privileges"
	"github.com/caisson-run/caisson/infrastructure/seccomp"
	"github.com/caisson-run/caisson/ports"
)

// name is what receipts call the enforcer.
const name = "landlock+seccomp"

// Enforcer is the default enforcer. Make one with [New]. It holds no resources
// and is safe for concurrent use.
type Enforcer struct {
	landlock *landlock.Enforcer
	filter   string // why there is no seccomp filter, "" if there is one
	// off are the layers that are left out, see [NewWithout].
	off []Layer
}

var _ ports.SandboxEnforcer = (*Enforcer)(nil)

// Default returns the enforcer for the running host. It is never nil and never
// one that enforces nothing: where the host has no Landlock, it refuses every
// plan and says why. It holds no resources and is safe for concurrent use.
func Default() ports.SandboxEnforcer { return New() }

// Option changes how [New] makes an enforcer. All there are today concern its
// Landlock layer.
type Option = landlock.Option

// WithABI is [landlock.WithABI].
func WithABI(abi int) Option { return landlock.WithABI(abi) }

// New returns the enforcer for the running host.
func New(opts ...Option) *Enforcer {
	return &Enforcer{landlock: landlock.New(opts...), filter: seccomp.Missing()}
}

// Layer is one of the layers, as [NewWithout] takes it.
type Layer string

// The layers.
const (
	Landlock Layer = "landlock"
	Seccomp  Layer = "seccomp"
	// Privileges are the capability sets. no_new_privs stays: without it the
	// kernel takes neither of the other two from an ordinary user.
	Privileges Layer = "privileges"
)

// Layers returns every layer.
func Layers() []Layer { return []Layer{Landlock, Seccomp, Privileges} }

// NewWithout returns an enforcer that leaves layers out, and says so: what they
// guarantee is then unenforceable, so that a plan is refused unless it waives
// it. It is for showing what each layer is there for, and confines nothing that
// matters.
func NewWithout(off []Layer, opts ...Option) *Enforcer {
	e := New(opts...)
	e.off = slices.Clone(off)
	if e.lacks(Seccomp) && e.filter == "" {
		e.filter = "the seccomp layer is left out"
	}
	return e
}

func (e *Enforcer) lacks(l Layer) bool { return slices.Contains(e.off, l) }

// Supports implements [ports.SandboxEnforcer].
func (e *Enforcer) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	base := e.landlock
	if e.lacks(Landlock) {
		base = landlock.New(landlock.WithABI(0))
	}
	list := statuses(plan, base.Supports(plan), e.filter)
	for i, s := range list {
		if s.Property == domain.PropertyPrivileges && s.State == domain.StateEnforced && e.lacks(Privileges) {
			list[i] = domain.PropertyStatus{Property: s.Property, State: domain.StateUnenforceable, Detail: "the privileges layer is left out"}
			if plan.Waives(s.Property) {
				list[i].State = domain.StateWaived
			}
		}
	}
	return list
}

// Prepare implements [ports.SandboxEnforcer]. It refuses what [landlock.Enforcer]
// refuses, but for the properties that the other layers guarantee.
func (e *Enforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if err := plan.Validate(); err != nil {
		return nil, failed("prepare", err)
	}
	var properties []domain.PropertyStatus
	inner := plan
	if plan.IsConfined() { // the Landlock layer refuses any other
		properties = e.Supports(plan)
		if err := domain.CheckStrictness(plan, properties); err != nil {
			return nil, err
		}
		// It need not do what another layer does. A waiver takes nothing from
		// what it can do.
		guaranteed := make([]domain.Property, 0, len(properties))
		for _, s := range properties {
			if s.State == domain.StateEnforced {
				guaranteed = append(guaranteed, s.Property)
			}
			if s.Property == domain.PropertyDestinations && s.State == domain.StateEnforced {
				// Landlock grants nothing for them: the supervisor connects.
				inner = inner.WithoutDestinations()
			}
		}
		if e.lacks(Landlock) {
			guaranteed = domain.Properties() // the plan waives what it does not
		}
		inner = inner.WithWaivers(guaranteed...)
	}
	restriction, err := e.landlock.Prepare(ctx, inner, line)
	if err != nil {
		return nil, err
	}
	c := &confinement{Confinement: restriction, plan: plan, properties: properties, listener: -1, off: e.off}
	if e.filter == "" {
		if c.filter, err = seccomp.For(plan); err != nil {
			return nil, failed("prepare", errors.Join(err, c.Close()))
		}
		for _, path := range plan.UnixDestinations() {
			socket, err := seccomp.OpenSocket(path)
			if err != nil {
				failure := &domain.EnforcementError{
					Step: "prepare", Err: fmt.Errorf("open the unix socket that the plan grants: %w", errors.Join(err, c.Close())),
					Remedy: "start what listens there, or name the socket itself if there is a symbolic link in its path by now",
				}
				return nil, failure
			}
			c.sockets = append(c.sockets, socket)
		}
	}
	if group, ok := restriction.(ports.KillGroup); ok {
		return &confinementInGroup{c, group}, nil
	}
	return c, nil
}

func failed(step string, err error) error {
	return &domain.EnforcementError{Step: step, Err: err}
}

// confinement is the Landlock layer's, with the other layers around it.
type confinement struct {
	ports.Confinement
	plan       domain.SandboxPlan
	properties []domain.PropertyStatus
	filter     *seccomp.Filter   // nil if there can be none, which the plan waives
	listener   int               // where the filter asks, −1 if it does not, or when it is the supervisor's
	sockets    []*seccomp.Socket // the plan's, until they are the supervisor's
	off        []Layer           // those that are left out
}

// confinementInGroup is one whose Landlock layer has kill groups, which concern
// that layer alone.
type confinementInGroup struct {
	*confinement
	ports.KillGroup
}

// Apply applies the layers. The filter comes last: the layers before it need
// calls that no child needs.
func (c *confinement) Apply() error {
	drop := privileges.Drop
	if slices.Contains(c.off, Privileges) {
		drop = privileges.ForgoNew
	}
	if err := drop(); err != nil {
		return failed("apply", err)
	}
	if !slices.Contains(c.off, Landlock) {
		if err := c.Confinement.Apply(); err != nil {
			return err
		}
	}
	if c.filter == nil {
		return nil
	}
	var err error
	if c.listener, err = c.filter.Load(); err != nil {
		return failed("apply", err)
	}
	return nil
}

// Supervisor implements [ports.Supervised].
func (c *confinement) Supervisor() (ports.Supervisor, error) {
	if c.listener < 0 {
		return nil, nil //nolint:nilnil // none is needed, as the port says
	}
	listener := c.listener
	c.listener = -1
	grants := seccomp.Grants{Destinations: c.plan.ReachableDestinations(), Sockets: c.sockets, All: seccomp.AnswersAll(c.plan)}
	if c.enforces(domain.PropertyTCP) {
		granted := c.plan.ConnectTCP() // not c: a supervisor lives as long as its turn
		grants.Denied = func(port uint16) bool { return !slices.Contains(granted, port) }
	}
	s, err := seccomp.NewSupervisor(listener, grants)
	if err != nil {
		return nil, failed("supervise", err)
	}
	c.sockets = nil
	return s, nil
}

func (c *confinement) enforces(p domain.Property) bool {
	return slices.ContainsFunc(c.properties, func(s domain.PropertyStatus) bool {
		return s.Property == p && s.State == domain.StateEnforced
	})
}

// Close frees a listener that nobody has taken too.
func (c *confinement) Close() error {
	err := c.Confinement.Close()
	for _, socket := range c.sockets {
		err = errors.Join(err, socket.Close())
	}
	if c.listener >= 0 {
		err = errors.Join(err, seccomp.CloseListener(c.listener))
		c.listener = -1
	}
	return err
}

// Receipt is the Landlock layer's, about the plan as it was asked for.
func (c *confinement) Receipt() domain.Receipt {
	r := c.Confinement.Receipt()
	r.Enforcer = name
	r.Layers = []string{"no_new_privs"}
	if !slices.Contains(c.off, Privileges) {
		r.Layers = append(r.Layers, "capabilities")
	}
	if slices.Contains(c.off, Landlock) {
		r.ABI, r.Rules = 0, nil
	} else {
		r.Layers = append(r.Layers, "landlock")
	}
	if c.filter != nil {
		r.Layers = append(r.Layers, "seccomp")
	}
	r.Properties = slices.Clone(c.properties)
	r.Open = append(r.Open, openLimits(c.plan)...)
	r.Destinations, r.Domains = c.plan.ReachableDestinations(), c.plan.EgressNames()
	if c.filter != nil {
		r.UnixDestinations = c.plan.UnixDestinations()
	}
	r.PlanDigest = c.plan.Digest()
	return r
}
