package domain_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestParseDestination(t *testing.T) {
	for text, want := range map[string][]string{
		"127.0.0.1:80":         {"127.0.0.1:80"},
		"[::1]:65535":          {"[::1]:65535"},
		"[::ffff:10.0.0.1]:80": {"10.0.0.1:80"},
		"localhost:1":          {"127.0.0.1:1", "[::1]:1"},
	} {
		got, err := domain.ParseDestination(text)
		require.NoError(t, err, text)
		var addresses []netip.AddrPort
		for _, w := range want {
			addresses = append(addresses, netip.MustParseAddrPort(w))
		}
		require.Equal(t, addresses, got, text)
		require.NoError(t, domain.NewSandboxPlan("p").WithDestinations(got...).Validate(), text)
	}
	for _, text := range []string{
		"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:080", "localhost", "localhost:0", "localhost:http",
		"0.0.0.0:80", "[::]:80", "[fe80::1]:80", "[fe80::1%eth0]:80", "[fd00::1%eth0]:80", "224.0.0.1:80", "[ff02::1]:80", "::1:80",
	} {
		got, err := domain.ParseDestination(text)
		require.Empty(t, got, text)
		requireInvalid(t, err, "destination", text, "not the address of one host, with a port", "for example 127.0.0.1:8080")
	}
}
