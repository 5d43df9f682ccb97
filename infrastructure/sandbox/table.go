package sandbox

import (
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/seccomp"
)

// The names of the layers beside Landlock, as receipts have them.
const (
	bySeccomp      = "seccomp"
	byCapabilities = "capabilities, seccomp"
	byAsking       = "seccomp notification"
)

// others lists the properties that the layers beside Landlock guarantee, alone
// or where Landlock cannot. What is not in it is Landlock's.
var others = map[domain.Property]struct {
	mechanism string
	// denied says that the filter guarantees it only where the plan denies unix
	// sockets altogether, because it cannot tell one from the other.
	denied bool
}{
	domain.PropertyDestinations:    {mechanism: byAsking},
	domain.PropertyUDP:             {mechanism: bySeccomp},
	domain.PropertyUnixSockets:     {mechanism: bySeccomp, denied: true},
	domain.PropertyAbstractSockets: {mechanism: bySeccomp, denied: true},
	domain.PropertyOtherSockets:    {mechanism: bySeccomp},
	domain.PropertyOtherProcesses:  {mechanism: bySeccomp},
	// The sets are emptied without a filter too, but a new user namespace has
	// full ones again.
	domain.PropertyPrivileges: {mechanism: byCapabilities},
	domain.PropertyIPC:        {mechanism: bySeccomp},
}

// statuses says what becomes of each property of the plan, given what the
// Landlock layer says and why there is no filter ("" if there is one). Landlock
// is named where it suffices, although the filter refuses the same.
func statuses(plan domain.SandboxPlan, landlock []domain.PropertyStatus, noFilter string) []domain.PropertyStatus {
	out := make([]domain.PropertyStatus, 0, len(landlock))
	for _, s := range landlock {
		other, ok := others[s.Property]
		switch {
		case !ok || s.State == domain.StateEnforced || s.State == domain.StateNotRequested:
		case noFilter != "":
			s.Detail += "; " + noFilter
		case other.denied && plan.UnixSockets() != domain.UnixSocketsDeny:
			s.Detail += "; a seccomp filter can only deny all unix sockets"
		default:
			s = domain.PropertyStatus{Property: s.Property, State: domain.StateEnforced, Mechanism: other.mechanism}
			if other.denied && len(plan.UnixDestinations()) > 0 {
				s.Mechanism = byAsking // unix sockets can be made, and none be connected but by the supervisor
			}
		}
		out = append(out, s)
	}
	return out
}

// openLimits lists what the plan leaves open beside what Landlock does.
func openLimits(plan domain.SandboxPlan) []string {
	open := []string{"run a program that it has made in memory"}
	if plan.UDP() {
		open = append(open, "send to any host by UDP")
	}
	if seccomp.Listens(plan) {
		open = append(open, "listen on a TCP port of the kernel's choice")
	}
	return open
}
