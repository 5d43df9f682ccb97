package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestByteSize(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "1": 1, "2K": 2 << 10, "512M": 512 << 20, "4g": 4 << 30, "1T": 1 << 40} {
		var b byteSize
		require.NoError(t, b.Set(text), text)
		require.Equal(t, byteSize(want), b, text)
	}
	for _, text := range []string{"", "M", "x", "-1", "1.5G", "1P", "1 M", "99999999T", "18446744073709551616", "MM"} {
		var b byteSize
		require.Error(t, b.Set(text), text)
	}
}
