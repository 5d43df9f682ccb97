package portstest

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// anEvent is an event of that number; no two numbers give the same one.
func anEvent(id domain.SessionID, seq uint64) domain.Event {
	e := domain.Event{
		Seq: seq, Session: id, Turn: int(1 + seq/10), Agent: domain.AgentClaude,
		Time: time.Date(2026, 5, 6, 7, 8, 9, int(seq%1e9), time.UTC),
	}
	switch seq % 6 {
	case 0:
		e.Reply = domain.Text{Text: fmt.Sprintf("line %d\nand a second one, é, \x1b, \"quoted\" \\ </script>", seq), Parent: "p"}
	case 1:
		e.Reply = domain.ConversationStarted{ConversationID: "c", Model: "m", AgentVersion: "1"}
	case 2:
		e.Reply = domain.ToolCall{ID: "t", Name: "Bash", Kind: domain.ToolExecute, Input: []byte(`{"command":"}\\n{\"epoch\":1,\"event\":"}`)}
	case 3:
		e.Reply = domain.Raw{Type: "novel", JSON: []byte(`{"seq":1,"type":"text"}`)}
	case 4:
		e.Reply = domain.Log{Stream: "stdout", Line: `{"caisson_log":9}`}
	case 5:
		e.Reply = domain.Final{
			Outcome: domain.OutcomeFailed, StopReason: domain.StopRefusal, Text: "t", Usage: domain.Usage{InputTokens: int64(seq)},
			Exit: domain.ExitStatus{Known: true, Code: 3}, Error: &domain.TurnError{Class: "c", Message: "m", StderrTail: "s"},
			ConversationID: "c", Duration: 5 * time.Millisecond, TotalUsage: &domain.Usage{OutputTokens: 3},
		}
	}
	return e
}

func fill(tb testing.TB, log ports.SessionLog, id domain.SessionID, to uint64) {
	tb.Helper()
	for seq := log.LastSeq() + 1; seq <= to; seq++ {
		require.NoError(tb, log.Append(tb.Context(), anEvent(id, seq)))
		require.Equal(tb, seq, log.LastSeq())
	}
}

// drain reads a replay to its end.
func drain(events iter.Seq2[domain.Event, error]) (all []domain.Event, errs []error) {
	for e, err := range events {
		if err != nil {
			errs = append(errs, err)
		} else {
			all = append(all, e)
		}
	}
	return all, errs
}

func replayed(tb testing.TB, s ports.SessionStore, id domain.SessionID, from uint64) []domain.Event {
	tb.Helper()
	events, errs := drain(s.Replay(tb.Context(), id, from))
	require.Empty(tb, errs)
	return events
}

// requireEvents checks that these are the events from a number to another one.
func requireEvents(tb testing.TB, id domain.SessionID, from, to uint64, got []domain.Event) {
	tb.Helper()
	require.Len(tb, got, int(to+1-from))
	for i, e := range got {
		require.Equal(tb, anEvent(id, from+uint64(i)), e)
	}
}

var logContract = []contractCase[func(testing.TB) ports.SessionStore]{
	{
		"replay", "Replay yields every event once, in order, from any number on, whether the session is open or not",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			require.Empty(tb, replayed(tb, s, idA, 0), "an empty log")
			const n = 300
			fill(tb, log, idA, n)
			check := func() {
				for _, from := range []uint64{0, 1, 2, 3, 149, 150, 299, 300} {
					requireEvents(tb, idA, max(1, from), n, replayed(tb, s, idA, from))
				}
				require.Empty(tb, replayed(tb, s, idA, n+1))
				require.Empty(tb, replayed(tb, s, idA, 1<<63))
			}
			check()
			require.NoError(tb, log.Sync(tb.Context()))
			require.NoError(tb, log.Close())
			check()
			require.Empty(tb, replayed(tb, s, idB, 1), "of another session")
		},
	},
	{
		"leaving a replay", "a reader may leave whenever it likes, and a context that has ended ends it with its cause",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			fill(tb, log, idA, 20)
			n := 0
			for _, err := range s.Replay(tb.Context(), idA, 1) {
				require.NoError(tb, err)
				if n++; n == 3 {
					break
				}
			}
			ctx, cancel := context.WithCancel(tb.Context())
			cancel()
			events, errs := drain(s.Replay(ctx, idA, 1))
			require.Empty(tb, events)
			require.Len(tb, errs, 1)
			require.ErrorIs(tb, errs[0], context.Canceled)
			require.NoError(tb, log.Close())
		},
	},
	{
		"numbers", "a number is given once: only the next one can be appended, and one that was refused stays free",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			var invalid *domain.InvalidError
			require.Zero(tb, log.LastSeq())
			require.ErrorAs(tb, log.Append(tb.Context(), anEvent(idA, 2)), &invalid)
			require.ErrorAs(tb, log.Append(tb.Context(), anEvent(idA, 0)), &invalid)
			require.ErrorAs(tb, log.Append(tb.Context(), anEvent(idB, 1)), &invalid, "an event of another session")
			fill(tb, log, idA, 3)
			for _, seq := range []uint64{1, 3, 5} {
				require.ErrorAs(tb, log.Append(tb.Context(), anEvent(idA, seq)), &invalid)
			}
			require.Equal(tb, uint64(3), log.LastSeq())
			require.NoError(tb, log.Close())
			requireEvents(tb, idA, 1, 3, replayed(tb, s, idA, 1))
		},
	},
	{
		"numbers go on", "the next opening goes on behind what the log has, and behind what the record has taken",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			fill(tb, log, idA, 4)
			require.NoError(tb, log.Close())
			record := aRecord(idA)
			record.LastSeq = 2
			require.NoError(tb, s.Save(tb.Context(), record))
			log = openLog(tb, s, idA)
			require.Equal(tb, uint64(4), log.LastSeq(), "the log is ahead of the record")
			fill(tb, log, idA, 6)
			require.NoError(tb, log.Close())
			requireEvents(tb, idA, 1, 6, replayed(tb, s, idA, 1))
			record.LastSeq = 50
			require.NoError(tb, s.Save(tb.Context(), record))
			log = openLog(tb, s, idA)
			require.Equal(tb, uint64(50), log.LastSeq(), "the record is ahead of the log")
			fill(tb, log, idA, 52)
			require.NoError(tb, log.Close())
			requireEvents(tb, idA, 51, 52, replayed(tb, s, idA, 7))
		},
	},
	{
		"epochs rise", "an opening has a higher epoch than every one before it that left a trace",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			first := log.Epoch()
			require.NotZero(tb, first)
			fill(tb, log, idA, 1)
			require.NoError(tb, log.Close())
			log = openLog(tb, s, idA)
			second := log.Epoch()
			require.Greater(tb, second, first, "the first one appended something")
			record := aRecord(idA)
			record.Epoch = second
			require.NoError(tb, s.Save(tb.Context(), record))
			require.NoError(tb, log.Close())
			log = openLog(tb, s, idA)
			require.Greater(tb, log.Epoch(), second, "the second one was saved")
			require.NoError(tb, log.Close())
		},
	},
	{
		"a closed log", "nothing can be appended to a log that was closed: somebody else may have the session open",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			fill(tb, log, idA, 1)
			require.NoError(tb, log.Close())
			require.ErrorIs(tb, log.Append(tb.Context(), anEvent(idA, 2)), domain.ErrClosed)
			require.ErrorIs(tb, log.Sync(tb.Context()), domain.ErrClosed)
			require.NoError(tb, log.Close())
			requireEvents(tb, idA, 1, 1, replayed(tb, s, idA, 1))
		},
	},
	{
		"reading what is written", "a reader of an open session never sees half of an event, a gap, or an event twice",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			const n = 400
			failures := make(chan error, 4)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for next := uint64(1); next <= n; {
						for e, err := range s.Replay(tb.Context(), idA, next) {
							if err == nil && e.Seq != next {
								err = fmt.Errorf("event %d in place of %d", e.Seq, next)
							}
							if err != nil {
								failures <- err
								return
							}
							next++
						}
					}
				})
			}
			wg.Go(func() {
				for seq := uint64(1); seq <= n; seq++ {
					e := anEvent(idA, seq)
					if seq%50 == 0 {
						e.Reply = domain.Text{Text: strings.Repeat("long ", 50_000)}
					}
					if err := log.Append(tb.Context(), e); err != nil {
						failures <- err
						return
					}
				}
			})
			wg.Wait()
			close(failures)
			for err := range failures {
				require.NoError(tb, err)
			}
			require.NoError(tb, log.Close())
		},
	},
	{
		"long events", "an event of many megabytes comes back, and those around it are found",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			log := openLog(tb, s, idA)
			fill(tb, log, idA, 30)
			long := anEvent(idA, 31)
			long.Reply = domain.ToolResult{ID: "t", Status: domain.ToolCompleted, Output: strings.Repeat("0123456789\n", 1<<20)}
			require.NoError(tb, log.Append(tb.Context(), long))
			fill(tb, log, idA, 60)
			require.NoError(tb, log.Close())
			for _, from := range []uint64{30, 31, 32, 60} {
				got := replayed(tb, s, idA, from)
				require.Len(tb, got, int(61-from))
				require.Equal(tb, from, got[0].Seq)
			}
			require.Equal(tb, long, replayed(tb, s, idA, 31)[0])
		},
	},
	{
		"list", "List has every session that was opened or saved and not removed, sorted",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			s := open(tb)
			ids, err := s.List(tb.Context())
			require.NoError(tb, err)
			require.Empty(tb, ids)
			require.NoError(tb, s.Save(tb.Context(), aRecord(idB)))
			log := openLog(tb, s, idA)
			ids, err = s.List(tb.Context())
			require.NoError(tb, err)
			require.Equal(tb, []domain.SessionID{idA, idB}, ids)
			require.NoError(tb, s.Remove(tb.Context(), idA))
			require.NoError(tb, log.Close())
			ids, err = s.List(tb.Context())
			require.NoError(tb, err)
			require.Equal(tb, []domain.SessionID{idB}, ids)
		},
	},
}
