//go:build linux

package fakecli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// inner is an adapter of which only some methods are used.
type inner struct{ ports.AgentAdapter }

func (inner) Kind() domain.AgentKind { return domain.AgentCodex }

func (inner) Command(turn ports.TurnRequest) (domain.SpawnLine, error) {
	return domain.SpawnLine{Path: turn.Install.Path, Argv: turn.Install.Args}, nil
}

func TestAdapterResolvesToTheFake(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	program := filepath.Join(dir, "host")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(program, link))

	a := fakecli.NewAdapter(inner{}, link)
	install, err := a.Resolve("ignored", ports.Host{})
	require.NoError(t, err)
	require.Equal(t, program, install.Path)
	require.Equal(t, []string{"__fakecli", "codex"}, install.Args)
	require.Equal(t, []string{program}, install.Files)

	require.Equal(t, domain.AgentCodex, a.Kind())
	line, err := a.Command(ports.TurnRequest{Install: install})
	require.NoError(t, err)
	require.Equal(t, domain.SpawnLine{Path: program, Argv: install.Args}, line, "all else is the inner adapter's")

	_, err = fakecli.NewAdapter(inner{}, filepath.Join(dir, "missing")).Resolve("", ports.Host{})
	var notFound *domain.AgentNotFoundError
	require.ErrorAs(t, err, &notFound)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestReplay(t *testing.T) {
	testkit.NoLeaks(t)
	every := make([]byte, 0, 1<<17)
	for i := range cap(every) {
		every = append(every, byte(i))
	}
	for _, c := range []struct {
		name           string
		stdout, stderr []byte
		exit           int
		signal         string
		want           int
	}{
		{"every byte", every, []byte("some\x00noise"), 3, "", 3},
		{"nothing", nil, nil, 0, "", 0},
		{"a signal", []byte("cut"), nil, 0, "TERM", -15},
		{"SIGKILL", []byte("cut\n"), nil, 0, "KILL", -9},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, err := fakecli.WriteReplay(t.TempDir(), c.stdout, c.stderr, c.exit, c.signal)
			require.NoError(t, err)
			for _, closed := range []bool{false, true} {
				pr := startCommand(t, newPlace(t), path, "--some", "flags")
				pr.write("a prompt\nand more of it")
				if closed {
					pr.eof()
				}
				var got []byte
				for line, ok := pr.next(); ok; line, ok = pr.next() {
					got = append(got, line...)
				}
				require.Equal(t, c.want, pr.wait(), "an open stdin does not keep it")
				require.True(t, bytes.Equal(c.stdout, got))
				require.Equal(t, string(c.stderr), pr.stderr.String())
			}
		})
	}
}

func TestReplayOfARecording(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "claude", "sj_session_state_events.jsonl"))
	require.NoError(t, err)
	path, err := fakecli.WriteReplay(t.TempDir(), data, nil, 0, "")
	require.NoError(t, err)
	pr := startCommand(t, newPlace(t), path)
	require.Equal(t, []string{"answer one", "answer two"}, said(pr.prompt("x").rest()))
	require.Zero(t, pr.wait())
}
