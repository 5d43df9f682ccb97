package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
)

var bigFlag = flag.Int("big", 10, "what part of the big streams is run: 1 is all of them, 10 a tenth")

// A turn may print very much of anything, and its final is right all the same.
// The memory that it takes is bounded by the longest line that is kept, and not by
// how much there is: everything over that line is an event that says so.
func TestBigStreams(t *testing.T) {
	const mega = 1 << 20
	part := *bigFlag
	forEachAgent(t, func(t *testing.T, s *stage) {
		garbage := filepath.Join(s.workspace, "garbage")
		f, err := os.Create(garbage)
		require.NoError(t, err)
		random := rand.New(rand.NewPCG(1, 2))
		block := make([]byte, mega)
		for range 200 / part {
			for i := range block {
				block[i] = byte(random.Uint32())
			}
			_, err = f.Write(block)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		for _, c := range []struct {
			name, script string
			// bound is on the heap, with garbage that is not collected yet.
			bound uint64
			check func(*testing.T, bigSeen)
		}{
			{"tool output", fmt.Sprintf("sh head -c %d /dev/zero | tr '\\0' x", 200*mega/part), 384 * mega, func(t *testing.T, seen bigSeen) {
				if part == 1 {
					require.Greater(t, seen.oversize, int64(200*mega), "a line over the limit is told of, and not kept")
					return
				}
				require.Equal(t, 200*mega/part, seen.output)
			}},
			{"one line", fmt.Sprintf("bytes %d", (64*mega-1024)/part), 512 * mega, func(t *testing.T, seen bigSeen) {
				require.Equal(t, (64*mega-1024)/part, seen.longest)
			}},
			{"small events", fmt.Sprintf("lines %d", 1_000_000/part), 64 * mega, func(t *testing.T, seen bigSeen) {
				require.Equal(t, 1_000_000/part+1, seen.texts)
			}},
			{"random bytes", "rawfile " + garbage, 64 * mega, func(t *testing.T, seen bigSeen) {
				require.Greater(t, seen.logged, 200*mega/part/2)
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				session := s.open(t, application.OpenRequest{})
				debug.FreeOSMemory()
				peak := watchHeap()
				begun := time.Now()
				turn, err := session.Send(t.Context(), fakecli.Script(c.script, "raw ", "say end"))
				require.NoError(t, err)
				var seen bigSeen
				for e, err := range turn.Events() {
					require.NoError(t, err)
					seen.take(t, e)
				}
				heap := peak()
				t.Logf("%d events in %s, at most %.1f MiB of heap", seen.seq, time.Since(begun).Round(time.Millisecond), float64(heap)/mega)
				require.Equal(t, domain.OutcomeCompleted, seen.final.Outcome, "%+v", seen.final.Error)
				require.Equal(t, "end", seen.final.Text)
				require.Less(t, heap, c.bound)
				c.check(t, seen)
				require.NoError(t, session.Close(t.Context()))
				require.NoError(t, s.Orchestrator.RemoveSession(t.Context(), session.ID()))
			})
		}
	})
}

// bigSeen is what was seen of a stream, without keeping any of it.
type bigSeen struct {
	seq            uint64
	texts, longest int
	output, logged int
	oversize       int64
	final          domain.Final
}

func (s *bigSeen) take(t *testing.T, e domain.Event) {
	s.seq++
	require.Equal(t, s.seq, e.Seq)
	require.Empty(t, s.final.Outcome, "an event after the final")
	switch r := e.Reply.(type) {
	case domain.Text:
		s.texts++
		s.longest = max(s.longest, len(r.Text))
	case domain.ToolResult:
		s.output += len(r.Output)
	case domain.Log:
		s.logged += len(r.Line)
	case domain.Oversize:
		s.oversize += r.Bytes
	case domain.Final:
		s.final = r
	default: // of no interest
	}
}

// watchHeap looks at the heap until the result is called, which returns its
// largest size.
func watchHeap() func() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for most := uint64(0); ; {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-tick.C:
			case <-stop:
				peak <- most
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-peak
	}
}
