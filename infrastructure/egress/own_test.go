package egress

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// By default the host's interfaces are asked.
func TestOwnAddresses(t *testing.T) {
	own, err := ownAddresses()
	require.NoError(t, err)
	require.Contains(t, own, netip.MustParseAddr("127.0.0.1"))
	for _, at := range own {
		require.False(t, at.Is4In6(), at)
	}
}
