package composition_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// `defer c.Close(ctx)` runs after the context was cancelled, as often as not.
func TestCloseWithAnEndedContext(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	c, err := composition.New(t.Context(),
		composition.WithStateRoot(filepath.Join(t.TempDir(), "state")),
		composition.WithAgentAdapter(fakecli.NewAdapter(codex.New(), exe)))
	require.NoError(t, err)
	session, err := c.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: "codex", Workspace: t.TempDir()})
	require.NoError(t, err)
	_, err = session.Send(context.Background(), fakecli.Script("hang"))
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Close(ended), context.Canceled)
	require.NoError(t, c.Close(t.Context()))
	require.Empty(t, testkit.Children())
	require.NoError(t, c.Close(t.Context()))
}
