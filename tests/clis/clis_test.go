package clis

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLockPinsWhatIsDocumented: the documentation and the recordings speak of
// these two versions, so neither file may drift from them or from the other.
func TestLockPinsWhatIsDocumented(t *testing.T) {
	want := map[string]string{"@anthropic-ai/claude-code": "2.1.328", "@openai/codex": "0.169.0"}

	var manifest struct{ Dependencies map[string]string }
	readJSON(t, "package.json", &manifest)
	require.Equal(t, want, manifest.Dependencies)

	var lock struct {
		Packages map[string]struct {
			Version   string
			Integrity string
			Resolved  string
		}
	}
	readJSON(t, "package-lock.json", &lock)
	for name, version := range want {
		require.Equal(t, version, lock.Packages["node_modules/"+name].Version, name)
	}
	for name, p := range lock.Packages {
		require.Empty(t, p.Resolved, "%s names a registry's host, which another machine may not reach", name)
		if name != "" {
			require.True(t, strings.HasPrefix(p.Integrity, "sha512-"), "%s has no digest", name)
		}
	}
}

// TestInstalledProgramsAreNative: what the tests drive is the program itself,
// not the launcher that npm puts in front of it, and of the pinned version.
func TestInstalledProgramsAreNative(t *testing.T) {
	for _, program := range []struct {
		path, metadata, version string
	}{
		{Claude(t), filepath.Join("node_modules", "@anthropic-ai", "claude-code", "package.json"), "2.1.328"},
		{Codex(t), filepath.Join("node_modules", "@openai", "codex", "package.json"), "0.169.0"},
	} {
		info, err := os.Stat(program.path)
		require.NoError(t, err)
		require.True(t, info.Mode().IsRegular(), program.path)
		require.NotZero(t, info.Mode()&0o111, "%s is not executable", program.path)

		f, err := os.Open(program.path)
		require.NoError(t, err)
		magic := make([]byte, 4)
		_, err = io.ReadFull(f, magic)
		require.NoError(t, f.Close())
		require.NoError(t, err)
		require.True(t, bytes.Equal(magic, []byte("\x7fELF")), "%s is no ELF file", program.path)

		var metadata struct{ Version string }
		readJSON(t, program.metadata, &metadata)
		require.Equal(t, program.version, metadata.Version, program.metadata)
	}
}

func TestPathsPerPlatform(t *testing.T) {
	for _, where := range []func(string, string) (string, error){claudePath, codexPath} {
		seen := map[string]bool{}
		for _, arch := range []string{"amd64", "arm64"} {
			p, err := where("linux", arch)
			require.NoError(t, err)
			require.False(t, seen[p], "one path for two processors: %s", p)
			seen[p] = true
		}
		_, err := where("darwin", "arm64")
		require.ErrorContains(t, err, "darwin/arm64")
		_, err = where("linux", "riscv64")
		require.ErrorContains(t, err, "linux/riscv64")
	}
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, into), path)
}
