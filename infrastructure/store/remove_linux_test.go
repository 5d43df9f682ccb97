package store

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tests/testkit"
)

// An agent can nest directories deeper than the process has descriptors. The
// removal takes few of them, and of a directory that cannot be read too.
func TestWhatIsDeepIsRemoved(t *testing.T) {
	dir := t.TempDir()
	top, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer top.Close()
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	at, err := os.OpenRoot(dir)
	require.NoError(t, err)
	for i := range 10 * maxOpen {
		require.NoError(t, at.Mkdir("d", 0o700))
		next, err := at.OpenRoot("d")
		require.NoError(t, err)
		require.NoError(t, at.Symlink(outside, "link"))
		require.NoError(t, at.WriteFile("file", nil, 0))
		if i == 3*maxOpen {
			for n := range batch + 10 {
				require.NoError(t, at.Mkdir(strconv.Itoa(n), 0))
			}
		}
		if i%5 == 1 {
			require.NoError(t, at.Chmod(".", 0o500))
		}
		require.NoError(t, at.Close())
		at = next
	}
	require.NoError(t, at.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stays"), nil, 0o600))
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	scarce := unix.Rlimit{Cur: uint64(slices.Max(slices.Collect(maps.Keys(testkit.OpenFDs()))) + maxOpen + 10), Max: limit.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &scarce))
	err = removeTree(top, "d")
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	require.Equal(t, []string{"file", "link", "stays"}, left)
	require.FileExists(t, outside)
	require.NoError(t, removeTree(top, "d"), "it is gone already")
}
