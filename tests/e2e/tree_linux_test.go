package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/tests/testkit"
)

// Whoever ends a turn, and however, its daemon is gone when that returns. (What
// kinds of processes there may be in the tree is tested in
// infrastructure/process.)
func TestWhateverEndsATurnTakesItsTree(t *testing.T) {
	ends := map[string]func(t *testing.T, s *stage, session *application.Session, turn *application.Turn, cancel context.CancelFunc){
		"leaving the events": func(t *testing.T, _ *stage, _ *application.Session, turn *application.Turn, _ context.CancelFunc) {
			for e, err := range turn.Events() {
				require.NoError(t, err)
				if _, ok := e.Reply.(domain.Text); ok {
					break
				}
			}
		},
		"panic in the events": func(t *testing.T, _ *stage, _ *application.Session, turn *application.Turn, _ context.CancelFunc) {
			require.Panics(t, func() {
				for e := range turn.Events() {
					if _, ok := e.Reply.(domain.Text); ok {
						panic("the caller's")
					}
				}
			})
		},
		"cancel": func(t *testing.T, _ *stage, _ *application.Session, turn *application.Turn, _ context.CancelFunc) {
			untilText(t, turn, func() { turn.Cancel(nil) })
		},
		"kill": func(t *testing.T, _ *stage, _ *application.Session, turn *application.Turn, _ context.CancelFunc) {
			untilText(t, turn, func() { turn.Kill(errors.New("at once")) })
		},
		"the context": func(t *testing.T, _ *stage, _ *application.Session, turn *application.Turn, cancel context.CancelFunc) {
			untilText(t, turn, cancel)
		},
		"the wall clock": func(t *testing.T, _ *stage, _ *application.Session, turn *application.Turn, _ context.CancelFunc) {
			untilText(t, turn, func() {})
		},
		"closing the session": func(t *testing.T, s *stage, session *application.Session, _ *application.Turn, _ context.CancelFunc) {
			awaitFile(t, filepath.Join(s.workspace, "pid"))
			require.NoError(t, session.Close(t.Context()))
		},
		"closing the orchestrator": func(t *testing.T, s *stage, _ *application.Session, _ *application.Turn, _ context.CancelFunc) {
			awaitFile(t, filepath.Join(s.workspace, "pid"))
			require.NoError(t, s.Close(t.Context()))
		},
	}
	graces := process.Graces{Interrupt: 100 * time.Millisecond, Terminate: 100 * time.Millisecond}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			testkit.RequireLandlock(t, 6)
			testkit.NoLeaks(t)
			s := newStage(t, domain.AgentClaude, composition.WithGraces(graces))
			request := application.OpenRequest{}
			if name == "the wall clock" {
				request.Policy.Limits.WallClock = 2 * time.Second
			}
			session := s.open(t, request)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			turn, err := session.Send(ctx, fakecli.Script("trap", "daemon "+filepath.Join(s.workspace, "pid"), "say up", "hang"))
			require.NoError(t, err)
			end(t, s, session, turn, cancel)
			data, err := os.ReadFile(filepath.Join(s.workspace, "pid"))
			require.NoError(t, err)
			pid, err := strconv.Atoi(string(data))
			require.NoError(t, err)
			require.False(t, testkit.Alive(pid), "the daemon is left")
		})
	}
}

// untilText reads a turn to its final, and does something at its first text.
func untilText(t *testing.T, turn *application.Turn, do func()) {
	t.Helper()
	var last domain.ReplyEvent
	for e, err := range turn.Events() {
		require.NoError(t, err)
		if _, ok := e.Reply.(domain.Text); ok {
			do()
		}
		last = e.Reply
	}
	require.IsType(t, domain.Final{}, last)
}

func awaitFile(t *testing.T, file string) {
	t.Helper()
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(file)
		return err == nil && len(data) > 0
	}, 20*time.Second, 5*time.Millisecond)
}
