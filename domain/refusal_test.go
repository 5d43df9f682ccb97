package domain

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefusalsSayWhatWasRefused(t *testing.T) {
	for _, c := range []struct {
		refusal           Refusal
		destination, text string
	}{
		{Refusal{}, "", "nothing was refused"},
		{Refusal{Count: 3}, "", "the sandbox refused connections to other destinations (3 times)"},
		{Refusal{NetworkTCP, "192.0.2.1:443", 1}, "tcp:192.0.2.1:443", "the sandbox refused a connection to tcp:192.0.2.1:443"},
		{Refusal{NetworkUDP, "", 2}, "udp", "the sandbox refused a socket for udp (2 times)"},
		{Refusal{NetworkUnix, "/run/a\nb", 1}, "unix:/run/a\nb", `the sandbox refused a connection to "unix:/run/a\nb"`},
	} {
		require.Equal(t, c.destination, c.refusal.Destination())
		require.Equal(t, c.text, c.refusal.String())
	}
}
