package application_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports/portstest"
)

// dead leaves a session behind as an orchestrator does that dies in the middle of
// its second turn: after that many events of it, with a record that was saved at
// the turn's start, or with the conversation's id, or not any more.
func dead(t *testing.T, r *rig, events []domain.ReplyEvent) (domain.SessionID, domain.ProcessIdentity) {
	t.Helper()
	s := r.open(t)
	play(t, s, "say first")
	require.NoError(t, s.Close(t.Context()))
	record, err := r.records.Load(t.Context(), s.ID())
	require.NoError(t, err)
	process := domain.ProcessIdentity{Pid: 4711, Start: 5, Boot: "boot", Mark: "mark"}
	record.Live = &domain.LiveTurn{Turn: 2, First: record.LastSeq + 1, Process: process}
	record.Turns = 2
	require.NoError(t, r.records.MemoryStore.Save(t.Context(), record))
	log, err := r.records.MemoryStore.Open(t.Context(), s.ID())
	require.NoError(t, err)
	for _, e := range events {
		require.NoError(t, log.Append(t.Context(), domain.Event{
			Seq: log.LastSeq() + 1, Session: s.ID(), Turn: 2, Time: time.Now().UTC(), Agent: "fake", Reply: e,
		}))
	}
	require.NoError(t, log.Close())
	return s.ID(), process
}

func TestADeadOrchestratorsTurnIsSettled(t *testing.T) {
	started := []domain.ReplyEvent{domain.SandboxApplied{}, domain.ConversationStarted{}, domain.UsageReport{Usage: domain.Usage{InputTokens: 5}}, domain.Text{Text: "half"}}
	ended := append(slices.Clone(started), domain.Final{Outcome: domain.OutcomeCompleted, Usage: domain.Usage{InputTokens: 9}})
	ways := map[string]func(*testing.T, *rig, domain.SessionID){
		"by resuming": func(t *testing.T, r *rig, id domain.SessionID) {
			require.NoError(t, r.resume(t, id).Close(t.Context()))
		},
		"by listing": func(t *testing.T, r *rig, id domain.SessionID) {
			infos, err := r.Sessions(t.Context())
			require.NoError(t, err)
			require.Len(t, infos, 1)
			require.Equal(t, id, infos[0].ID)
			require.False(t, infos[0].Running)
			require.Nil(t, infos[0].Live)
		},
		"by following": func(t *testing.T, r *rig, id domain.SessionID) {
			n := 0
			for _, err := range r.Replay(t.Context(), id, 1, true) {
				require.NoError(t, err)
				n++
			}
			require.Len(t, replay(t, r, id), n)
		},
	}
	for name, c := range map[string]struct {
		events    []domain.ReplyEvent
		synthetic bool
		usage     int64
	}{
		"before its first event": {nil, true, 0},
		"after its receipt":      {started[:1], true, 0},
		"in the middle":          {started, true, 5},
		"after its final":        {ended, false, 9},
	} {
		for way, settle := range ways {
			t.Run(name+" "+way, func(t *testing.T) {
				r := newRig(t)
				id, process := dead(t, r, c.events)
				before, err := r.records.Load(t.Context(), id)
				require.NoError(t, err)
				var ended []domain.ProcessIdentity
				r.sessions.Leftover = func(left domain.ProcessIdentity) error { ended = append(ended, left); return nil }

				settle(t, r, id)
				require.Equal(t, []domain.ProcessIdentity{process}, ended)
				events := replay(t, r, id)
				checkLog(t, events)
				require.Equal(t, 1, finals(events, 2))
				final := finalOf(t, events)
				if c.synthetic {
					require.Equal(t, domain.OutcomeExited, final.Outcome)
					require.Equal(t, domain.ErrorClassOrphaned, final.Error.Class)
				} else {
					require.Equal(t, domain.OutcomeCompleted, final.Outcome)
				}
				after, err := r.records.Load(t.Context(), id)
				require.NoError(t, err)
				require.Nil(t, after.Live)
				require.Equal(t, 2, after.Turns)
				require.Equal(t, events[len(events)-1].Seq, after.LastSeq)
				require.Equal(t, c.usage, after.Total.InputTokens-before.Total.InputTokens)

				settle(t, r, id)
				require.Len(t, ended, 1, "once")
				require.Equal(t, events, replay(t, r, id))
				back := play(t, r.resume(t, id), "say back")
				require.Equal(t, 3, back[0].Turn)
				require.Equal(t, after.LastSeq+1, back[0].Seq)
			})
		}
	}
}

// What is left of the old turn must not run beside the next one.
func TestALeftoverThatStaysKeepsTheSessionFromBeingResumed(t *testing.T) {
	r := newRig(t)
	id, _ := dead(t, r, nil)
	stays := errors.New("it does not die")
	r.sessions.Leftover = func(domain.ProcessIdentity) error { return stays }
	_, err := r.Open(t.Context(), application.OpenRequest{Resume: id})
	require.ErrorIs(t, err, stays)
	infos, err := r.Sessions(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, infos[0].Unsettled, stays)
	require.ErrorIs(t, r.RemoveSession(t.Context(), id), stays)
	r.sessions.Leftover = nil
	play(t, r.resume(t, id), "say back")
}

// Where a turn cannot be settled, what there is can be read all the same.
func TestReadingGoesWhereNothingCanBeWritten(t *testing.T) {
	full := errors.New("no space left on device")
	for name, c := range map[string]func(*rig){
		"opening the log": func(r *rig) { r.records.set(&r.records.open, full) },
		"the final":       func(r *rig) { r.records.set(&r.records.final, full) },
		"the record":      func(r *rig) { r.records.set(&r.records.save, full) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id, _ := dead(t, r, []domain.ReplyEvent{domain.SandboxApplied{}, domain.Text{Text: "half"}})
			before := len(replay(t, r, id))
			whole := r.open(t)
			play(t, whole, "say whole")
			require.NoError(t, whole.Close(t.Context()))
			c(r)
			infos, err := r.Sessions(t.Context())
			require.NoError(t, err)
			require.Len(t, infos, 2)
			info, err := r.Session(t.Context(), id)
			require.NoError(t, err)
			require.ErrorIs(t, info.Unsettled, full)
			require.Equal(t, 2, info.Unsettled.Turn)
			require.NotNil(t, info.Live, "as it was found")
			require.False(t, info.Running)
			for _, follow := range []bool{false, true} {
				n, errs := 0, []error(nil)
				for _, err := range r.Replay(t.Context(), id, 1, follow) {
					if err != nil {
						errs = append(errs, err)
					} else {
						n++
					}
				}
				require.GreaterOrEqual(t, n, before)
				require.Len(t, errs, 1)
				require.ErrorAs(t, errs[0], new(*application.UnsettledError))
				require.ErrorContains(t, errs[0], "turn 2 of session "+string(id))
			}
			_, err = r.Open(t.Context(), application.OpenRequest{Resume: id})
			require.ErrorIs(t, err, full, "to go on with it takes more")

			for _, field := range []*error{&r.records.open, &r.records.final, &r.records.save} {
				r.records.set(field, nil)
			}
			info, err = r.Session(t.Context(), id)
			require.NoError(t, err)
			require.Nil(t, info.Unsettled)
			require.Nil(t, info.Live)
			checkLog(t, replay(t, r, id))
		})
	}
}

func TestTheLiveTurnIsRecordedAndForgottenAtItsEnd(t *testing.T) {
	r := newRig(t)
	r.sessions.Process = domain.ProcessIdentity{Pid: 9, Start: 8, Boot: "b", Mark: "m"}
	s := r.open(t)
	turn, err := s.Send(t.Context(), "hang")
	require.NoError(t, err)
	for e := range turn.Events() {
		if _, ok := e.Reply.(domain.Text); ok {
			infos, err := r.Sessions(t.Context())
			require.NoError(t, err)
			require.True(t, infos[0].Running)
			require.Equal(t, &domain.LiveTurn{Turn: 1, First: 1, Process: r.sessions.Process}, infos[0].Live)
			require.ErrorIs(t, r.RemoveSession(t.Context(), s.ID()), domain.ErrBusy)
			turn.Cancel(nil)
		}
	}
	info, err := r.Session(t.Context(), s.ID())
	require.NoError(t, err)
	require.False(t, info.Running)
	require.Nil(t, info.Live)
	require.NotZero(t, info.Updated)
}

// A turn that nobody reads runs to its end and is recorded, with its usage.
func TestATurnThatNobodyReadsIsRecorded(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	turn, err := s.Send(t.Context(), "say hello")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return finals(replay(t, r, s.ID()), 1) == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.Close(t.Context()))
	info, err := r.Session(t.Context(), s.ID())
	require.NoError(t, err)
	require.Equal(t, domain.Usage{InputTokens: 10, OutputTokens: 1}, info.Total)
	require.NotEmpty(t, info.ConversationID)
	events, errs := collect(turn)
	require.Empty(t, errs)
	require.Equal(t, replay(t, r, s.ID()), events, "who comes late has missed nothing")
}

// A reader that stalls costs no memory and loses nothing.
func TestAReaderThatStallsReadsFromTheLog(t *testing.T) {
	r := newRig(t)
	const n = 2000
	r.sessions.Play = func(_ context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
		for i := range n {
			turn.Emit(domain.Text{Text: fmt.Sprintf("%d %s", i, strings.Repeat("x", i%3000))})
		}
		return portstest.FakeEnd{Claim: &domain.Final{Outcome: domain.OutcomeCompleted, Text: "done"}}
	}
	s := r.open(t)
	turn, err := s.Send(t.Context(), "flood")
	require.NoError(t, err)
	var events []domain.Event
	for e, err := range turn.Events() {
		require.NoError(t, err)
		if len(events) == 3 {
			require.Eventually(t, func() bool { return finals(replay(t, r, s.ID()), 1) == 1 }, 10*time.Second, time.Millisecond)
		}
		events = append(events, e)
	}
	checkTurn(t, events)
	require.Len(t, events, n+3)
	require.Equal(t, replay(t, r, s.ID()), events)
}

func TestFollow(t *testing.T) {
	r := newRig(t)
	more := make(chan string)
	r.sessions.Play = func(_ context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
		for text := range more {
			turn.Emit(domain.Text{Text: text})
		}
		return portstest.FakeEnd{Claim: &domain.Final{Outcome: domain.OutcomeCompleted}}
	}
	s := r.open(t)
	_, err := s.Send(t.Context(), "whatever")
	require.NoError(t, err)
	more <- "one"
	require.Eventually(t, func() bool { return len(replay(t, r, s.ID())) == 3 }, 10*time.Second, time.Millisecond)
	var events []domain.Event
	for e, err := range r.Replay(t.Context(), s.ID(), 3, true) {
		require.NoError(t, err)
		if text, ok := e.Reply.(domain.Text); ok {
			switch text.Text {
			case "one":
				go func() {
					time.Sleep(600 * time.Millisecond) // longer than it takes to ask whether the turn runs
					more <- "two"
				}()
			case "two":
				close(more)
			}
		}
		events = append(events, e)
	}
	require.Equal(t, replay(t, r, s.ID())[2:], events)
	require.Equal(t, "onetwo", textOf(events))
	finalOf(t, events)

	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	var last error
	for _, err := range r.Replay(ctx, s.ID(), 1, true) {
		last = err
	}
	require.ErrorIs(t, last, why)
	for _, err := range r.Replay(t.Context(), "01890a5d-ac96-774b-bcce-b302099a8057", 1, false) {
		require.ErrorContains(t, err, "no such session")
	}
}

func TestFindSession(t *testing.T) {
	r := newRig(t)
	other := mkdir(t, r.home, "other")
	ids := []domain.SessionID{"01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ffff-774b-bcce-b302099a8057", "02890a5d-ac96-774b-bcce-b302099a8057"}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err := r.FindSession(t.Context(), "last", "")
	require.ErrorContains(t, err, "no session is stored")
	for i, id := range ids {
		record := domain.SessionRecord{ID: id, Kind: "fake", Workspace: r.workspace, Opened: now, Updated: now.Add(time.Duration(i) * time.Hour)}
		if i == 2 {
			record.Workspace = other
		}
		require.NoError(t, r.records.MemoryStore.Save(t.Context(), record))
	}
	find := func(ref, workspace string) (domain.SessionID, error) {
		return r.FindSession(t.Context(), ref, workspace)
	}
	for _, c := range []struct {
		ref, workspace string
		want           domain.SessionID
	}{
		{"last", "", ids[2]}, {"last", r.workspace, ids[1]}, {"last", other, ids[2]},
		{string(ids[0]), "", ids[0]}, {"0289", "", ids[2]}, {"01890a5d-f", "", ids[1]},
		{"03890a5d-ac96-774b-bcce-b302099a8057", "", "03890a5d-ac96-774b-bcce-b302099a8057"},
	} {
		got, err := find(c.ref, c.workspace)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for ref, reason := range map[string]string{
		"0189": "2 sessions begin so", "0389": "no such session", "01": "nor the beginning", "../..": "nor the beginning",
		"0189%": "nor the beginning", "": "nor the beginning", "LAST": "nor the beginning",
	} {
		_, err := find(ref, "")
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, ref)
		require.ErrorContains(t, err, reason, ref)
	}
	_, err = find("0189", "")
	for _, id := range ids[:2] {
		require.ErrorContains(t, err, string(id), "those that it could be are named")
	}
	// The place of a command that runs is no session.
	log, err := r.records.MemoryStore.Open(t.Context(), "02890a5d-bbbb-774b-bcce-b302099a8057")
	require.NoError(t, err)
	got, err := find("0289", "")
	require.NoError(t, err)
	require.Equal(t, ids[2], got)
	require.NoError(t, log.Close())
	_, err = find("last", "/nowhere")
	require.ErrorContains(t, err, `"/nowhere"`)
}

func TestSessionsAreListedByUse(t *testing.T) {
	r := newRig(t)
	var ids []domain.SessionID
	for range 3 {
		s := r.open(t)
		play(t, s, "say x")
		require.NoError(t, s.Close(t.Context()))
		ids = append(ids, s.ID())
	}
	again := r.resume(t, ids[0])
	play(t, again, "say y")
	require.NoError(t, again.Close(t.Context()))
	_, err := r.records.MemoryStore.Dirs(t.Context(), "01890a5d-ac96-774b-bcce-b302099a8057")
	require.NoError(t, err)
	infos, err := r.Sessions(t.Context())
	require.NoError(t, err)
	var got []domain.SessionID
	for _, i := range infos {
		got = append(got, i.ID)
	}
	require.Equal(t, []domain.SessionID{ids[0], ids[2], ids[1]}, got, "a place without a record is no session")
}

func TestRemoveSession(t *testing.T) {
	r := newRig(t)
	s := r.open(t)
	play(t, s, "say x")
	require.ErrorIs(t, r.RemoveSession(t.Context(), s.ID()), domain.ErrBusy)
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, r.RemoveSession(t.Context(), s.ID()))
	require.Empty(t, r.left(t))
	require.Empty(t, replay(t, r, s.ID()))
	require.ErrorContains(t, r.RemoveSession(t.Context(), s.ID()), "no such session")
	_, err := r.Session(t.Context(), s.ID())
	require.ErrorContains(t, err, "no such session")
}

func TestPrune(t *testing.T) {
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	id := func(n int) domain.SessionID {
		return domain.SessionID(fmt.Sprintf("0189%04d-ac96-774b-bcce-b302099a8057", n))
	}
	setUp := func(t *testing.T) *rig {
		r := newRig(t, func(c *application.Config) { c.Clock = func() time.Time { return now } })
		for n := range 5 { // the higher, the older
			require.NoError(t, r.records.MemoryStore.Save(t.Context(), domain.SessionRecord{ID: id(n), Kind: "fake", Opened: now.Add(-day * time.Duration(n*10))}))
			_, err := r.records.MemoryStore.Dirs(t.Context(), id(n))
			require.NoError(t, err)
		}
		_, err := r.records.MemoryStore.Dirs(t.Context(), id(9)) // never completely opened
		require.NoError(t, err)
		return r
	}
	for name, c := range map[string]struct {
		keep application.Retention
		want []int
	}{
		"nothing is old":   {application.Retention{MaxAge: 99 * day}, []int{9}},
		"by age":           {application.Retention{MaxAge: 25 * day}, []int{3, 4, 9}},
		"by count":         {application.Retention{MaxCount: 4}, []int{4, 9}},
		"by both":          {application.Retention{MaxAge: 35 * day, MaxCount: 2}, []int{2, 3, 4, 9}},
		"the zero keeps":   {application.Retention{}, []int{9}},
		"everything is so": {application.Retention{MaxAge: time.Nanosecond}, []int{1, 2, 3, 4, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			r := setUp(t)
			removed, err := r.Prune(t.Context(), c.keep)
			require.NoError(t, err)
			var want []domain.SessionID
			for _, n := range c.want {
				want = append(want, id(n))
			}
			require.Equal(t, want, removed)
			left, err := r.records.List(t.Context())
			require.NoError(t, err)
			require.Len(t, left, 6-len(want))
			for _, n := range c.want {
				dirs, err := r.records.Paths(id(n))
				require.NoError(t, err)
				_, err = os.Stat(dirs.State)
				require.ErrorIs(t, err, os.ErrNotExist)
			}
		})
	}
	t.Run("what is open stays", func(t *testing.T) {
		r := setUp(t)
		log, err := r.records.MemoryStore.Open(t.Context(), id(4))
		require.NoError(t, err)
		removed, err := r.Prune(t.Context(), application.Retention{MaxAge: 35 * day})
		require.NoError(t, err)
		require.Equal(t, []domain.SessionID{id(9)}, removed)
		require.NoError(t, log.Close())
	})
	t.Run("what cannot be removed is said", func(t *testing.T) {
		r := setUp(t)
		stuck := errors.New("stuck")
		r.records.set(&r.records.remove, stuck)
		removed, err := r.Prune(t.Context(), application.Retention{MaxAge: 35 * day})
		require.ErrorIs(t, err, stuck)
		require.Empty(t, removed)
		r.records.set(&r.records.remove, nil)
	})
}
