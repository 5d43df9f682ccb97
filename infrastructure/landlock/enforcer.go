package landlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Enforcer is the Landlock layer as a [ports.SandboxEnforcer]. Make one with
// [New]. It holds no resources and is safe for concurrent use.
//
// The confinements that it prepares are [ports.KillGroup] as well. Their
// descriptors are closed on exec; Apply and EnterKillGroup fail when they are
// called a second time or after Close.
type Enforcer struct {
	kernel kernel
}

var _ ports.SandboxEnforcer = (*Enforcer)(nil)

// Option changes how [New] makes an enforcer.
type Option func(*Enforcer)

// WithABI makes the enforcer use no rights that came after that ABI, as on an
// older kernel; 0 stands for a kernel without Landlock. An ABI that the kernel
// has not got changes nothing. It is for tests, and for a fleet that must
// behave alike.
func WithABI(abi int) Option {
	return func(e *Enforcer) {
		if abi < e.kernel.abi {
			e.kernel.abi = max(abi, 0)
			e.kernel.note = fmt.Sprintf("rights after ABI %d are switched off", e.kernel.abi)
		}
	}
}

// New returns an enforcer for the running kernel. On a host without Landlock
// it returns one that refuses every plan and says why.
func New(opts ...Option) *Enforcer {
	e := &Enforcer{kernel: detect()}
	for _, o := range opts {
		o(e)
	}
	return e
}

// Supports implements [ports.SandboxEnforcer].
func (e *Enforcer) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	return statuses(plan, e.kernel)
}

// Prepare implements [ports.SandboxEnforcer].
//
// A rule names what its path leads to when Prepare runs, through symbolic
// links; the receipt has the canonical path. An optional rule is skipped if
// nothing is there or the orchestrator cannot reach it. If a link comes or goes
// in the path in the meantime, somebody is at work there, and the plan is
// refused. A rule of which nothing is left to grant, such as directory rights
// on a file, is in the receipt as skipped.
func (e *Enforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if err := plan.Validate(); err != nil {
		return nil, e.failed("prepare", err)
	}
	if !plan.IsConfined() {
		return nil, e.failed("prepare", errors.New("an unconfined plan asks for no sandbox"))
	}
	if err := domain.CheckStrictness(plan, e.Supports(plan)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, e.failed("prepare", context.Cause(ctx))
	}
	return e.prepare(ctx, plan, line)
}

// absent refuses a plan that waives all that Landlock does, on a host without
// it: there would be no sandbox, and only an unconfined plan may have none.
func (e *Enforcer) absent() error {
	return e.failed("prepare", errors.New(e.kernel.note))
}

func (e *Enforcer) failed(step string, err error) *domain.EnforcementError {
	return &domain.EnforcementError{Step: step, ABI: e.kernel.abi, Err: err}
}
