package cgroup

import (
	"context"
	"errors"
	"slices"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Limit returns an enforcer that has inner do everything but the limits on
// memory, processes and processors, which groups of the hierarchy keep.
func Limit(inner ports.SandboxEnforcer, h *Hierarchy) ports.SandboxEnforcer {
	return &enforcer{inner, h}
}

type enforcer struct {
	inner     ports.SandboxEnforcer
	hierarchy *Hierarchy
}

// Supports implements ports.SandboxEnforcer.
func (e *enforcer) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	return e.judge(plan, e.inner.Supports(plan))
}

// judge puts what the groups do in place of what the inner enforcer says of the
// limits.
func (e *enforcer) judge(plan domain.SandboxPlan, list []domain.PropertyStatus) []domain.PropertyStatus {
	list = slices.Clone(list)
	for i, s := range list {
		if !plan.Requests(s.Property) || s.State == domain.StateEnforced {
			continue
		}
		switch ok, text := e.hierarchy.keeps(s.Property); {
		case ok:
			list[i] = domain.PropertyStatus{Property: s.Property, State: domain.StateEnforced, Mechanism: text}
		case text != "":
			list[i].Detail = text
		}
	}
	return list
}

// Prepare implements ports.SandboxEnforcer.
func (e *enforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	inner, limits := plan, domain.Limits{}
	if plan.IsConfined() {
		statuses := e.Supports(plan)
		if err := domain.CheckStrictness(plan, statuses); err != nil {
			return nil, err
		}
		asked := plan.Limits()
		for _, s := range statuses {
			if ok, _ := e.hierarchy.keeps(s.Property); !ok || s.State != domain.StateEnforced {
				continue
			}
			// The inner enforcer need not do it.
			inner = inner.WithWaivers(s.Property)
			switch s.Property {
			case domain.PropertyMemory:
				limits.MemoryBytes = asked.MemoryBytes
			case domain.PropertyPids:
				limits.Pids = asked.Pids
			case domain.PropertyCPU:
				limits.CPUs = asked.CPUs
			}
		}
	}
	c, err := e.inner.Prepare(ctx, inner, line)
	if err != nil {
		return nil, err
	}
	return &confinement{Confinement: c, enforcer: e, plan: plan, limits: limits}, nil
}

var errNoKillGroup = errors.New("the enforcer has none")

var (
	_ ports.ResourceGrouped = (*confinement)(nil)
	_ ports.KillGroup       = (*confinement)(nil)
	_ ports.Supervised      = (*confinement)(nil)
)

// confinement is the inner enforcer's, with a group. It has every optional
// ability, and of those that the inner one has not, nothing comes.
type confinement struct {
	ports.Confinement
	enforcer *enforcer
	plan     domain.SandboxPlan
	limits   domain.Limits // that the group keeps
}

// ResourceGroup implements ports.ResourceGrouped.
func (c *confinement) ResourceGroup(toKill bool) (ports.ResourceGroup, error) {
	if !toKill && c.limits == (domain.Limits{}) {
		return nil, nil //nolint:nilnil // none is needed, as the port says
	}
	g, err := c.enforcer.hierarchy.make(c.limits)
	if err != nil {
		return nil, err // not a group that is nil
	}
	return g, nil
}

// PrepareKillGroup implements ports.KillGroup.
func (c *confinement) PrepareKillGroup() (bool, error) {
	if group, ok := c.Confinement.(ports.KillGroup); ok {
		return group.PrepareKillGroup()
	}
	return false, nil
}

// EnterKillGroup implements ports.KillGroup.
func (c *confinement) EnterKillGroup() error {
	if group, ok := c.Confinement.(ports.KillGroup); ok {
		return group.EnterKillGroup()
	}
	return &domain.EnforcementError{Step: "kill group", Err: errNoKillGroup}
}

// Supervisor implements ports.Supervised.
func (c *confinement) Supervisor() (ports.Supervisor, error) {
	if s, ok := c.Confinement.(ports.Supervised); ok {
		return s.Supervisor()
	}
	return nil, nil //nolint:nilnil // none is needed, as the port says
}

// Receipt is the inner enforcer's, about the plan as it was asked for.
func (c *confinement) Receipt() domain.Receipt {
	r := c.Confinement.Receipt()
	r.Properties = c.enforcer.judge(c.plan, r.Properties)
	r.PlanDigest = c.plan.Digest()
	if c.limits != (domain.Limits{}) {
		r.Layers = append(r.Layers, "cgroup")
	}
	return r
}
