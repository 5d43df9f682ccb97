package domain

import (
	"maps"
	"net/netip"
	"slices"
)

// OriginWorkspace is the key in a policy's Origins of who said what is granted of
// the workspace.
const OriginWorkspace = "workspace"

// Policy is what a user adds to a preset. The zero value adds nothing. A policy
// only widens, but for Workspace: what else a preset grants cannot be taken back
// with it.
type Policy struct {
	// Workspace is what is granted of the directory that the program works in,
	// instead of what the preset grants of it. The empty set leaves it to the
	// preset.
	Workspace Access
	// Rules grant paths. Relative paths are refused. A required path that does
	// not exist is refused at once, and not only when a turn starts.
	Rules []PathRule
	// ConnectTCP and BindTCP are ports that may be connected to and bound.
	ConnectTCP []uint16
	BindTCP    []uint16
	// Destinations are addresses with a port that may be connected to by TCP, each
	// on that host alone.
	Destinations []netip.AddrPort
	// Domains may be connected to by name, through a proxy of the session's that
	// resolves them. Programs are led there by the usual variables of the
	// environment.
	Domains []EgressDomain
	// UnixDestinations are the paths of unix sockets that may be connected to. There
	// must be one when the plan is made.
	UnixDestinations []string
	// UDP allows UDP.
	UDP bool
	// UnixSockets says which unix sockets may be connected to.
	UnixSockets UnixSockets
	// Env lets variables through; a rule replaces the preset's of that name.
	Env []EnvRule
	// Waivers are properties to do without where they cannot be enforced.
	Waivers []Property
	// Limits bound a turn or a command. Without a sandbox only those on time can
	// be kept, and the others are refused.
	Limits Limits
	// Origins says who put there what has no Why of its own; see
	// [SandboxPlan.WithOrigins].
	Origins map[string]string
}

// With returns the policy with another one on top: what there can be many of is
// added, and of what there can be one the other's counts, if it says any.
func (p Policy) With(other Policy) Policy {
	if other.Workspace != 0 {
		p.Workspace = other.Workspace
	}
	p.Rules = slices.Concat(p.Rules, other.Rules)
	p.ConnectTCP = slices.Concat(p.ConnectTCP, other.ConnectTCP)
	p.BindTCP = slices.Concat(p.BindTCP, other.BindTCP)
	p.Destinations = slices.Concat(p.Destinations, other.Destinations)
	p.Domains = slices.Concat(p.Domains, other.Domains)
	p.UnixDestinations = slices.Concat(p.UnixDestinations, other.UnixDestinations)
	p.UDP = p.UDP || other.UDP
	if other.UnixSockets != UnixSocketsDeny {
		p.UnixSockets = other.UnixSockets
	}
	p.Env = slices.Concat(p.Env, other.Env)
	p.Waivers = slices.Concat(p.Waivers, other.Waivers)
	p.Limits = p.Limits.With(other.Limits)
	origins := maps.Clone(p.Origins)
	if origins == nil {
		origins = map[string]string{}
	}
	maps.Copy(origins, other.Origins)
	p.Origins = origins
	return p
}

// WithoutGrants returns the policy without what only a sandbox could keep: what
// is left is the environment and the limits.
func (p Policy) WithoutGrants() Policy {
	return Policy{Env: p.Env, Limits: p.Limits, Origins: p.Origins}
}

// Apply returns the plan with all of the policy but its path rules and what it
// says of the workspace. A variable without a reason gets "policy".
func (p Policy) Apply(plan SandboxPlan) SandboxPlan {
	for _, e := range p.Env {
		if e.Why == "" {
			e.Why = "policy"
		}
		plan = plan.WithEnv(e)
	}
	return plan.
		WithConnectTCP(p.ConnectTCP...).WithBindTCP(p.BindTCP...).WithDestinations(p.Destinations...).
		WithEgressDomains(p.Domains...).
		WithUnixDestinations(p.UnixDestinations...).
		WithUDP(p.UDP || plan.UDP()).WithUnixSockets(p.UnixSockets).
		WithWaivers(p.Waivers...).WithLimits(p.Limits).WithOrigins(p.Origins)
}

// PathRules returns the path rules. One without a reason gets "policy".
func (p Policy) PathRules() []PathRule {
	rs := slices.Clone(p.Rules)
	for i := range rs {
		if rs[i].Why == "" {
			rs[i].Why = "policy"
		}
	}
	return rs
}

// With returns the limits with those that other sets in place of the same ones.
func (l Limits) With(other Limits) Limits {
	if other.MemoryBytes > 0 {
		l.MemoryBytes = other.MemoryBytes
	}
	if other.Pids > 0 {
		l.Pids = other.Pids
	}
	// Not CPUs > 0: what is no limit at all must reach the plan's check.
	if other.CPUs != 0 {
		l.CPUs = other.CPUs
	}
	if other.WallClock != 0 {
		l.WallClock = other.WallClock
	}
	if other.Idle != 0 {
		l.Idle = other.Idle
	}
	return l
}

// TripwireMode says what becomes of a turn that changes files of the workspace from
// which something runs code later, outside of the sandbox: hooks, settings of
// editors and agents, workflows. A sandbox cannot deny that, because they are part
// of what the agent works on. The zero value is TripwiresReport.
type TripwireMode uint8

// The modes.
const (
	// TripwiresReport lists the changes in an event before the final.
	TripwiresReport TripwireMode = iota
	// TripwiresFail does so too, and a completed turn has failed then.
	TripwiresFail
	// TripwiresOff does not look.
	TripwiresOff
)
