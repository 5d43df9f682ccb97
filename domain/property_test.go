package domain_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestProperties(t *testing.T) {
	require.Equal(t, []domain.Property{
		"filesystem", "truncate", "ioctl", "tcp", "destinations", "udp", "unix-sockets", "abstract-sockets", "other-sockets",
		"signals", "other-processes", "privileges", "ipc", "memory-limit", "pids-limit", "cpu-limit",
	}, domain.Properties())
	domain.Properties()[0] = "changed"
	require.Equal(t, domain.PropertyFilesystem, domain.Properties()[0], "a caller gets a list of its own")
}

func TestParseProperty(t *testing.T) {
	for _, want := range domain.Properties() {
		got, err := domain.ParseProperty(string(want))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, name := range []string{"", "UDP", "udp ", "udp,tcp", "*", "all", "unix_sockets", "udp\x00", hostile} {
		got, err := domain.ParseProperty(name)
		require.Empty(t, got)
		requireInvalid(t, err, "property", name, "no such property", "one of filesystem, truncate, ioctl, tcp, destinations, udp, unix-sockets, "+
			"abstract-sockets, other-sockets, signals, other-processes, privileges, ipc, memory-limit, pids-limit, cpu-limit")
	}
}

// Each property alone: all others are enforced.
func TestCheckStrictness(t *testing.T) {
	const detail = "the kernel has 4, needs 6"
	limited := domain.NewSandboxPlan("p").WithLimits(domain.Limits{MemoryBytes: 1, Pids: 1, CPUs: 1}).
		WithDestinations(netip.MustParseAddrPort("127.0.0.1:1"))
	silent := domain.PropertyState("the enforcer says nothing")
	for _, prop := range domain.Properties() {
		notRequesting := domain.NewSandboxPlan("p").WithUDP(true).WithUnixSockets(domain.UnixSocketsAllow)
		for _, c := range []struct {
			state  domain.PropertyState
			plan   domain.SandboxPlan
			refuse string // the detail, "" for accepted
		}{
			{domain.StateEnforced, limited, ""},
			{domain.StateUnenforceable, limited, detail},
			{domain.StateWaived, limited, detail}, // by whom? not by the plan
			{domain.StateNotRequested, limited, detail},
			{"", limited, detail},
			{"sort of", limited, detail},
			{silent, limited, "the enforcer does not report it"},

			{domain.StateEnforced, limited.WithWaivers(prop), ""},
			{domain.StateUnenforceable, limited.WithWaivers(prop), ""},
			{domain.StateWaived, limited.WithWaivers(prop), ""},
			{silent, limited.WithWaivers(prop), ""},

			{domain.StateUnenforceable, domain.Unconfined("asked for"), ""},
			{silent, domain.Unconfined("asked for"), ""},
		} {
			require.Equal(t, c.refuse, refusal(t, c.plan, prop, c.state, silent), "%s %s", prop, c.state)
		}
		want := ""
		if notRequesting.Requests(prop) {
			want = detail
		}
		require.Equal(t, want, refusal(t, notRequesting, prop, domain.StateUnenforceable, silent), "%s, not requested", prop)
	}
}

// refusal returns the detail of the refusal when prop has that state and all
// others are enforced, "" if there is none.
func refusal(t *testing.T, plan domain.SandboxPlan, prop domain.Property, state, silent domain.PropertyState) string {
	t.Helper()
	var statuses []domain.PropertyStatus
	for _, p := range domain.Properties() {
		switch {
		case p != prop:
			statuses = append(statuses, domain.PropertyStatus{Property: p, State: domain.StateEnforced, Mechanism: "test"})
		case state != silent:
			statuses = append(statuses, domain.PropertyStatus{Property: p, State: state, Detail: "the kernel has 4, needs 6"})
		}
	}
	given := slices.Clone(statuses)
	err := domain.CheckStrictness(plan, statuses)
	require.Equal(t, given, statuses, "the enforcer's statuses are left alone")
	if err == nil {
		return ""
	}
	var strict *domain.StrictnessError
	require.ErrorAs(t, err, &strict)
	require.Len(t, strict.Missing, 1)
	require.Equal(t, prop, strict.Missing[0].Property)
	require.Equal(t, domain.StateUnenforceable, strict.Missing[0].State)
	require.Equal(t, fmt.Sprintf("the sandbox cannot be enforced here:\n  %s: %s (do without it: --waive %s)", prop, strict.Missing[0].Detail, prop), err.Error())
	return strict.Missing[0].Detail
}

func TestAnEnforcerThatSaysNothingEnforcesNothing(t *testing.T) {
	plan := domain.NewSandboxPlan("p").WithLimits(domain.Limits{Pids: 1})
	for name, statuses := range map[string][]domain.PropertyStatus{
		"nil": nil, "empty": {}, "unknown properties": {{Property: "everything", State: domain.StateEnforced}},
	} {
		err := domain.CheckStrictness(plan, statuses)
		var strict *domain.StrictnessError
		require.ErrorAs(t, err, &strict, name)
		var missing []domain.Property
		for _, m := range strict.Missing {
			missing = append(missing, m.Property)
			require.Contains(t, err.Error(), "\n  "+string(m.Property)+": the enforcer does not report it (do without it: --waive "+string(m.Property)+")")
		}
		want := slices.DeleteFunc(domain.Properties(), func(p domain.Property) bool { return !plan.Requests(p) })
		require.Equal(t, want, missing, "in the order of the receipts")
		require.Len(t, want, len(domain.Properties())-3, "memory, cpu and destinations are not asked for")

		// What the error says to do is enough, and no less is.
		require.NoError(t, domain.CheckStrictness(plan.WithWaivers(missing...), statuses))
		for i := range missing {
			err := domain.CheckStrictness(plan.WithWaivers(slices.Delete(slices.Clone(missing), i, i+1)...), statuses)
			require.ErrorAs(t, err, &strict)
			require.Len(t, strict.Missing, 1)
			require.Equal(t, 1, strings.Count(err.Error(), "--waive "))
		}
	}
}

func TestARefusalAlwaysHasAReason(t *testing.T) {
	var statuses []domain.PropertyStatus
	for _, p := range domain.Properties() {
		statuses = append(statuses, domain.PropertyStatus{Property: p, State: domain.StateEnforced})
	}
	statuses[0].State = domain.StateUnenforceable
	require.EqualError(t, domain.CheckStrictness(domain.NewSandboxPlan("p"), statuses),
		"the sandbox cannot be enforced here:\n  filesystem: the enforcer does not say why (do without it: --waive filesystem)")
}

// An enforcer of several layers may report a property more than once. A later
// word does not take back that it is not enforced.
func TestOfContradictingStatusesTheWorseCounts(t *testing.T) {
	good := domain.PropertyStatus{Property: domain.PropertyUDP, State: domain.StateEnforced}
	bad := domain.PropertyStatus{Property: domain.PropertyUDP, State: domain.StateUnenforceable, Detail: "no seccomp"}
	var rest []domain.PropertyStatus
	for _, p := range domain.Properties() {
		if p != domain.PropertyUDP {
			rest = append(rest, domain.PropertyStatus{Property: p, State: domain.StateEnforced})
		}
	}
	for _, order := range [][]domain.PropertyStatus{{good, bad}, {bad, good}, {good, bad, good}} {
		err := domain.CheckStrictness(domain.NewSandboxPlan("p"), append(slices.Clone(rest), order...))
		require.ErrorContains(t, err, "udp: no seccomp")
	}
	require.NoError(t, domain.CheckStrictness(domain.NewSandboxPlan("p"), append(slices.Clone(rest), good, good)))
}
