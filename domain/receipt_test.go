package domain_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestReceiptString(t *testing.T) {
	status := func(p domain.Property, s domain.PropertyState) domain.PropertyStatus {
		return domain.PropertyStatus{Property: p, State: s}
	}
	for _, c := range []struct {
		receipt domain.Receipt
		want    string
	}{
		{domain.Receipt{}, "no receipt (zero value)"},
		{domain.Receipt{Unconfined: true, Why: "--sandbox off"}, "UNCONFINED: --sandbox off"},
		{domain.Receipt{Unconfined: true, Why: "x\nconfined by landlock\x1b"}, `UNCONFINED: "x\nconfined by landlock\x1b"`},
		{domain.Receipt{Unconfined: true, Enforcer: "landlock", ABI: 7}, "UNCONFINED: "},
		{domain.Receipt{Enforcer: "bubblewrap"}, "confined by bubblewrap; 0 paths granted; tcp none"},
		{domain.Receipt{Enforcer: "x\n\x1b"}, `confined by "x\n\x1b"; 0 paths granted; tcp none`},
		{
			domain.Receipt{
				Enforcer: "landlock", ABI: 7, ConnectTCP: []uint16{443, 8080},
				Rules: []domain.GrantedRule{{Path: "/usr"}, {Path: "/opt", Skipped: "does not exist"}, {Path: "/w"}},
				Properties: []domain.PropertyStatus{
					status(domain.PropertyFilesystem, domain.StateEnforced), status(domain.PropertyUDP, domain.StateWaived),
					status(domain.PropertyIPC, domain.StateWaived), status(domain.PropertyMemory, domain.StateNotRequested),
				},
			},
			"confined by landlock (ABI 7); 2 paths granted; tcp 443 8080; waived: udp, ipc",
		},
		{
			domain.Receipt{Enforcer: "x", Destinations: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("[::1]:80")}},
			"confined by x; 0 paths granted; tcp 127.0.0.1:80 [::1]:80",
		},
		{
			domain.Receipt{Enforcer: "x", ConnectTCP: []uint16{443}, Destinations: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80")}},
			"confined by x; 0 paths granted; tcp 443 127.0.0.1:80",
		},
		{
			domain.Receipt{Enforcer: "bwrap", Probe: domain.Probe{Skipped: "wraps\n"}},
			`confined by bwrap; 0 paths granted; tcp none; not probed: "wraps\n"`,
		},
	} {
		require.Equal(t, c.want, c.receipt.String())
	}
}

func TestInState(t *testing.T) {
	r := domain.Receipt{Properties: []domain.PropertyStatus{
		{Property: domain.PropertyUDP, State: domain.StateWaived},
		{Property: domain.PropertyFilesystem, State: domain.StateEnforced},
		{Property: domain.PropertyTCP, State: domain.StateWaived},
		{Property: domain.PropertyMemory, State: domain.StateNotRequested},
	}}
	require.Equal(t, []domain.Property{domain.PropertyUDP, domain.PropertyTCP}, r.InState(domain.StateWaived), "in the receipt's order")
	require.Equal(t, []domain.Property{domain.PropertyFilesystem}, r.InState(domain.StateEnforced))
	require.Equal(t, []domain.Property{domain.PropertyMemory}, r.InState(domain.StateNotRequested))
	require.Empty(t, r.InState(domain.StateUnenforceable))
	require.Empty(t, domain.Receipt{}.InState(domain.StateEnforced))
}
