package examples_test

import (
	"bytes"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/tests/testkit"
)

func TestEmbed(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	program := filepath.Join(t.TempDir(), "embed")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "embed", "-o", program, ".")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	tmp := t.TempDir()
	run := exec.CommandContext(t.Context(), program)
	run.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err = run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "1 sandbox {confined by landlock+seccomp (ABI 6)", "the enforcer is the example's own")
	require.Contains(t, string(out), "You said: Hello, agent.", "the turn is streamed")
	require.Contains(t, string(out), "1 turns before; the last prompt: Hello, agent.", "the second session continues the first")
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestEmbedIsShort(t *testing.T) {
	source, err := os.ReadFile("embed/main.go")
	require.NoError(t, err)
	formatted, err := format.Source(source)
	require.NoError(t, err)
	require.True(t, bytes.Equal(source, formatted), "gofmt")
	require.Less(t, strings.Count(string(source), "\n"), 40, "embedding is a matter of a few lines")
}
