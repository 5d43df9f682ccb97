package lookup_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
)

func TestWhyUDP(t *testing.T) {
	for _, host := range []string{"localhost", "LOCALHOST", "127.0.0.1", "::1", "192.0.2.7", "2001:db8::1", "fe80::1%eth0"} {
		require.Empty(t, lookup.WhyUDP(host), host)
	}
	for _, host := range []string{"api.example.com", "gateway", "localhost.example.com", "127.0.0.1.example.com", "300.1.2.3"} {
		require.Contains(t, lookup.WhyUDP(host), host)
	}
}
