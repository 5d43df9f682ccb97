package ports

import (
	"context"

	"github.com/caisson-run/caisson/domain"
)

// SandboxEnforcer turns a plan into a confinement. It is safe for concurrent
// use.
type SandboxEnforcer interface {
	// Supports says, per property of domain.Properties, whether it would be
	// enforced under the plan on this host, by which mechanism, or why not.
	// It restricts nothing and starts nothing.
	Supports(plan domain.SandboxPlan) []domain.PropertyStatus
	// Prepare does all that can fail before a thread is restricted: it resolves
	// the rules, opens them, and assembles what Apply will hand to the kernel.
	// It refuses a plan that domain.CheckStrictness refuses with a
	// *domain.StrictnessError and anything else with a *domain.EnforcementError.
	// Nothing is restricted yet. The caller closes the confinement, also one
	// that it never applied. Prepare is called once per spawn.
	Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (Confinement, error)
}

// Confinement is a prepared restriction for one child.
type Confinement interface {
	// SpawnLine returns the line to spawn: the one given to Prepare, or one
	// rewritten by an enforcer that wraps the command in another program.
	SpawnLine() domain.SpawnLine
	// Apply restricts the caller's flow of execution and all that is started
	// from it. It is called at most once, in the flow that starts the child
	// right afterwards and then ends for good. It only makes system calls on
	// prepared data: it opens nothing and starts nothing. After an error
	// nothing is spawned. A no-op for an enforcer that wraps the command.
	Apply() error
	// Receipt says what is enforced once Apply has returned nil.
	Receipt() domain.Receipt
	// Close frees what Prepare took. Closing twice is no error. It does not
	// lift the restriction from anything.
	Close() error
}

// KillGroup is an optional ability of a Confinement: an outer domain that
// restricts nothing but signals to the outside, so that a keeper started in it
// can end everything below with one kill(-1) and nothing else.
type KillGroup interface {
	// PrepareKillGroup makes ready what EnterKillGroup hands to the kernel. It is
	// called at most once, by whoever wants a kill group, before EnterKillGroup.
	// It returns false if the host cannot have one (no signal scope).
	PrepareKillGroup() (bool, error)
	// EnterKillGroup puts the caller's flow of execution into the outer domain.
	// It is called at most once, after PrepareKillGroup returned true and before
	// Apply, under the same rules as Apply.
	EnterKillGroup() error
}

// Supervised is an optional ability of a Confinement: its Apply leaves system
// calls of the confined tree to be answered from outside of it.
type Supervised interface {
	// Supervisor returns what answers them, nil if the plan leaves none, or if
	// Apply failed. It is called at most once, after Apply and before Close. The
	// caller closes the supervisor, also one that never ran; closing the
	// confinement does not.
	Supervisor() (Supervisor, error)
}

// Supervisor answers system calls of one confined tree. While it does not, they
// wait; once it is closed, they fail. It is safe for concurrent use.
type Supervisor interface {
	// Run answers until nothing of the tree is left, ctx ends, or Close. It is
	// called at most once. An error means that the calls fail from now on.
	Run(ctx context.Context) error
	// Refused lists what the tree was refused so far, as far as the supervisor sees
	// it: each destination once, in the order of the first time. The list is bounded;
	// what goes beyond is counted in a last element without a network. It does not
	// wait for Run, and may be called after Close.
	Refused() []domain.Refusal
	// Close ends Run and everything that it was doing. Closing twice is no error.
	Close() error
}

// ResourceGrouped is an optional ability of a Confinement: a group for the
// confined tree, which the kernel accounts, limits and kills as one.
type ResourceGrouped interface {
	// ResourceGroup makes the group, empty and with the plan's limits. It returns
	// nil if the plan has no limits on memory, processes and processors, unless
	// toKill says that a group is wanted to end the tree with. It is called at
	// most once, after Prepare. The caller closes the group; closing the
	// confinement does not.
	ResourceGroup(toKill bool) (ResourceGroup, error)
}

// ResourceGroup is a group of processes. It is used by one goroutine at a time.
type ResourceGroup interface {
	// Add moves a process into the group. What it starts from then on is born
	// there.
	Add(pid int) error
	// Kill kills every member, and those that members start meanwhile. It returns
	// the members that are not gone by then.
	Kill() (left []int, err error)
	// Close removes the group, which has no members any more.
	Close() error
}
