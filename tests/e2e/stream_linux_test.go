package e2e

import (
	"runtime"
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
