package e2e

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
)

// A reader that stalls while its agent prints a lot of everything loses nothing,
// keeps the agent from nothing, and costs no memory: what it has not read is in
// the log.
func TestAStalledReaderAndAFlood(t *testing.T) {
	const lines, long = 30_000, 20 << 20
	forEachAgent(t, func(t *testing.T, s *stage) {
		session := s.open(t, application.OpenRequest{})
		turn, err := session.Send(t.Context(), fakecli.Script("lines 30000", "bytes 20971520", "say end"))
		require.NoError(t, err)
		var events []domain.Event
		texts, size := 0, 0
		for e, err := range turn.Events() {
			require.NoError(t, err)
			if len(events) == 0 {
				// Until the agent is long done.
				require.Eventually(t, func() bool {
					info, err := s.Orchestrator.Session(t.Context(), session.ID())
					return err == nil && !info.Running
				}, 2*time.Minute, 20*time.Millisecond)
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				require.Less(t, m.HeapAlloc, uint64(long), "what nobody has read is in memory")
			}
			if text, ok := e.Reply.(domain.Text); ok {
				texts++
				size = max(size, len(text.Text))
			}
			e.Reply = nil
			events = append(events, e)
		}
		require.Equal(t, lines+2, texts)
		require.Equal(t, long, size)
		for i, e := range events {
			require.Equal(t, uint64(i+1), e.Seq)
		}
		require.NoError(t, session.Close(t.Context()))
	})
}

// A full disk ends the turn and says so; nothing that was recorded is lost, the
// turn has its final in the log, and with room again the conversation goes on.
func TestAFullDiskEndsTheTurn(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		if err := syscall.Mount("tmpfs", s.root, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
			t.Skipf("only root can make a small file system: %v", err)
		}
		defer func() { require.NoError(t, syscall.Unmount(s.root, syscall.MNT_DETACH)) }()
		session := s.open(t, application.OpenRequest{})
		s.run(t, session, "say before")
		final, err := session.SendBlocking(t.Context(), fakecli.Script("lines 60000", "say end"))
		require.NoError(t, err)
		require.Equal(t, domain.OutcomeFailed, final.Outcome)
		require.Equal(t, domain.ErrorClassStorage, final.Error.Class)
		require.Contains(t, final.Error.Message, "no space left on device")
		require.NoError(t, syscall.Mount("tmpfs", s.root, "tmpfs", syscall.MS_REMOUNT, "size=64m,mode=0700"))
		require.NoError(t, session.Close(t.Context()))

		session = s.open(t, application.OpenRequest{Resume: session.ID()})
		s.run(t, session, "recall")
		require.NoError(t, session.Close(t.Context()))
		finals, next := 0, uint64(1)
		for e, err := range s.Orchestrator.Replay(t.Context(), session.ID(), 1, false) {
			require.NoError(t, err)
			require.Equal(t, next, e.Seq)
			next++
			if _, ok := e.Reply.(domain.Final); ok {
				finals++
			}
		}
		require.Equal(t, 3, finals)
	})
}
