package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

var sessionStates = []domain.SessionState{domain.SessionOpening, domain.SessionReady, domain.SessionRunning, domain.SessionClosed}

var opened = time.Date(2026, 7, 1, 12, 0, 0, 1, time.UTC)

// sessionIn returns a session in that state, with one turn behind it.
func sessionIn(t *testing.T, state domain.SessionState) *domain.AgentSession {
	t.Helper()
	s := domain.RestoreAgentSession(domain.SessionRecord{ID: someID, Kind: domain.AgentClaude, Turns: 1, Total: domain.Usage{InputTokens: 1}})
	switch state {
	case domain.SessionReady:
		require.NoError(t, s.Ready())
	case domain.SessionRunning:
		require.NoError(t, s.Ready())
		_, err := s.StartTurn()
		require.NoError(t, err)
	case domain.SessionClosed:
		s.Close()
	}
	require.Equal(t, state, s.State())
	return s
}

func TestANewSession(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentCodex, "/w", fullPlan(), opened)
	require.Equal(t, domain.SessionID(someID), s.ID())
	require.Equal(t, domain.AgentCodex, s.Kind())
	require.Equal(t, "/w", s.Workspace())
	require.Equal(t, domain.SessionOpening, s.State())
	require.Empty(t, s.ConversationID())
	require.Zero(t, s.Turns())
	require.Equal(t, domain.SessionRecord{ID: someID, Kind: domain.AgentCodex, Workspace: "/w", PlanDigest: fullPlan().Digest(), Grants: fullPlan().Grants(), Opened: opened}, s.Record())
}

// Every step in every state: where it leads, or how it is refused.
func TestTransitions(t *testing.T) {
	const opening, ready, running, closed = domain.SessionOpening, domain.SessionReady, domain.SessionRunning, domain.SessionClosed
	steps := map[string]struct {
		do   func(*domain.AgentSession) error
		name string                                      // in the error
		to   map[domain.SessionState]domain.SessionState // the legal ones
	}{
		"Ready": {(*domain.AgentSession).Ready, "become ready", map[domain.SessionState]domain.SessionState{opening: ready}},
		"StartTurn": {func(s *domain.AgentSession) error {
			before := s.Turns()
			number, err := s.StartTurn()
			if err != nil {
				require.Zero(t, number)
			} else {
				require.Equal(t, before+1, number)
			}
			return err
		}, "start a turn", map[domain.SessionState]domain.SessionState{ready: running}},
		"AbandonTurn": {(*domain.AgentSession).AbandonTurn, "abandon a turn", map[domain.SessionState]domain.SessionState{running: ready, closed: closed}},
		"FinishTurn": {
			func(s *domain.AgentSession) error {
				return s.FinishTurn(domain.Final{Usage: domain.Usage{InputTokens: 5}})
			},
			"finish a turn", map[domain.SessionState]domain.SessionState{running: ready, closed: closed},
		},
		"Close": {
			func(s *domain.AgentSession) error { s.Close(); return nil }, "",
			map[domain.SessionState]domain.SessionState{opening: closed, ready: closed, running: closed, closed: closed},
		},
	}
	for name, step := range steps {
		for _, from := range sessionStates {
			t.Run(name+" while "+string(from), func(t *testing.T) {
				s := sessionIn(t, from)
				before := s.Record()
				err := step.do(s)
				if to, ok := step.to[from]; ok {
					require.NoError(t, err)
					require.Equal(t, to, s.State())
					return
				}
				var refused *domain.TransitionError
				require.ErrorAs(t, err, &refused)
				require.Equal(t, domain.TransitionError{Session: someID, From: from, Step: step.name}, *refused)
				require.EqualError(t, err, "session "+someID+": cannot "+step.name+" while "+string(from))
				require.Equal(t, from == running, errors.Is(err, domain.ErrTurnInProgress))
				require.Equal(t, from == closed, errors.Is(err, domain.ErrClosed))
				require.Equal(t, from, s.State())
				require.Equal(t, before, s.Record(), "a refused step changes nothing")
			})
		}
	}
}

func TestTurnsAreNumberedFromOne(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
	require.NoError(t, s.Ready())
	for want := 1; want <= 3; want++ {
		number, err := s.StartTurn()
		require.NoError(t, err)
		require.Equal(t, want, number)
		require.NoError(t, s.AbandonTurn())
		require.Equal(t, want-1, s.Turns())
		number, err = s.StartTurn()
		require.NoError(t, err)
		require.Equal(t, want, number, "an abandoned turn leaves no gap")
		require.NoError(t, s.FinishTurn(domain.Final{}))
	}
	require.Equal(t, 3, s.Turns())
}

func TestSequenceNumbersHaveNoGaps(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
	want := uint64(0)
	next := func() {
		want++
		require.Equal(t, want, s.NextSeq())
		require.Equal(t, want, s.NextSeq(), "until it is recorded")
		require.Equal(t, want-1, s.Record().LastSeq)
		s.Recorded(want)
		require.Equal(t, want, s.Record().LastSeq)
		s.Recorded(1)
		require.Equal(t, want, s.Record().LastSeq, "what is taken stays taken")
	}
	next()
	require.NoError(t, s.Ready())
	next()
	_, err := s.StartTurn()
	require.NoError(t, err)
	next()
	require.NoError(t, s.AbandonTurn())
	next()
	require.Error(t, s.Ready())
	next()
	s = domain.RestoreAgentSession(s.Record())
	next()
	s.Close()
	next()
	require.Equal(t, uint64(7), want)
}

func TestUsageOfASession(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
	require.NoError(t, s.Ready())
	turn := func(f domain.Final) {
		_, err := s.StartTurn()
		require.NoError(t, err)
		require.NoError(t, s.FinishTurn(f))
	}
	turn(domain.Final{Usage: domain.Usage{InputTokens: 3, OutputTokens: 1}})
	turn(domain.Final{Usage: domain.Usage{InputTokens: 4}})
	require.Equal(t, domain.Usage{InputTokens: 7, OutputTokens: 1}, s.Record().Total, "added up")
	total := domain.Usage{InputTokens: 50}
	turn(domain.Final{Usage: domain.Usage{InputTokens: 43}, TotalUsage: &total})
	total.InputTokens = 999
	require.Equal(t, domain.Usage{InputTokens: 50}, s.Record().Total, "a cumulative report is the total, and is copied")

	_, err := s.StartTurn()
	require.NoError(t, err)
	s.Close()
	require.NoError(t, s.FinishTurn(domain.Final{Usage: domain.Usage{InputTokens: 2}}))
	require.Equal(t, domain.SessionClosed, s.State(), "stays closed")
	require.Equal(t, domain.Usage{InputTokens: 52}, s.Record().Total, "but the tokens are spent")
}

func TestALiveTurnIsInTheRecord(t *testing.T) {
	process := domain.ProcessIdentity{Pid: 7, Start: 8, Boot: "b", Mark: "m"}
	begin := func() *domain.AgentSession {
		s := domain.RestoreAgentSession(domain.SessionRecord{ID: someID, Turns: 2, LastSeq: 5})
		require.NoError(t, s.Ready())
		_, err := s.StartTurn()
		require.NoError(t, err)
		s.TurnStarted(process)
		require.Equal(t, &domain.LiveTurn{Turn: 3, First: 6, Process: process}, s.Record().Live)
		return s
	}
	s := begin()
	s.Record().Live.Turn = 99
	require.Equal(t, 3, s.Record().Live.Turn, "a record is a copy")
	require.NoError(t, s.FinishTurn(domain.Final{}))
	require.Nil(t, s.Record().Live)
	s = begin()
	require.NoError(t, s.AbandonTurn())
	require.Nil(t, s.Record().Live)
	s = begin()
	require.Nil(t, domain.RestoreAgentSession(s.Record()).Record().Live, "nothing runs in a session that was just opened")
}

func TestTheEpochAndTheTimeOfAChangeAreRecorded(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
	s.OpenedWith(9)
	s.Touched(opened)
	require.Equal(t, uint64(9), s.Record().Epoch)
	require.Equal(t, opened, s.Record().Updated)
	again := domain.RestoreAgentSession(s.Record()).Record()
	require.Equal(t, uint64(9), again.Epoch)
	require.Equal(t, opened, again.Updated)
}

// What the log says is what the session itself would have recorded.
func TestARecordCatchesUpWithTheLog(t *testing.T) {
	base := domain.SessionRecord{
		ID: someID, Turns: 1, LastSeq: 4, Total: domain.Usage{InputTokens: 10}, Updated: opened,
		Live: &domain.LiveTurn{Turn: 2},
	}
	later := opened.Add(time.Minute)
	replay := func(r domain.SessionRecord, replies ...domain.ReplyEvent) domain.SessionRecord {
		for _, reply := range replies {
			r = r.Replayed(domain.Event{Seq: r.LastSeq + 1, Turn: 2, Time: later, Reply: reply})
		}
		return r
	}
	require.Equal(t, base, base.Replayed(domain.Event{Seq: 4, Turn: 9, Time: later, Reply: domain.Final{Usage: domain.Usage{InputTokens: 1}}}), "known already")

	r := replay(base, domain.Text{Text: "x"})
	require.Equal(t, uint64(5), r.LastSeq)
	require.Equal(t, 2, r.Turns)
	require.Equal(t, later, r.Updated)
	require.NotNil(t, r.Live)
	require.Empty(t, r.ConversationID)
	early := base.Replayed(domain.Event{Seq: 5, Turn: 1, Time: opened.Add(-time.Hour), Reply: domain.Text{}})
	require.Equal(t, opened, early.Updated, "a clock that was put back")

	r = replay(r, domain.ConversationStarted{ConversationID: "a"})
	require.Equal(t, "a", r.ConversationID, "the first id counts at once")
	r = replay(r, domain.ConversationStarted{ConversationID: "b"})
	require.Equal(t, "a", r.ConversationID, "a changed one from the end of the turn")

	total := domain.Usage{InputTokens: 70}
	for name, c := range map[string]struct {
		final   domain.Final
		id      string
		lineage []string
		total   int64
	}{
		"changed":      {domain.Final{ConversationID: "b", Usage: domain.Usage{InputTokens: 5}}, "b", []string{"a"}, 15},
		"the same":     {domain.Final{ConversationID: "a"}, "a", nil, 10},
		"none":         {domain.Final{}, "a", nil, 10},
		"cumulative":   {domain.Final{Usage: domain.Usage{InputTokens: 5}, TotalUsage: &total}, "a", nil, 70},
		"another one":  {domain.Final{ConversationID: "b", Error: &domain.TurnError{Class: domain.ErrorClassConversation}}, "a", nil, 10},
		"another fail": {domain.Final{ConversationID: "b", Error: &domain.TurnError{Class: "x"}}, "b", []string{"a"}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			got := replay(r, c.final)
			require.Nil(t, got.Live)
			require.Equal(t, c.id, got.ConversationID)
			require.Equal(t, c.lineage, got.Lineage)
			require.Equal(t, c.total, got.Total.InputTokens)
		})
	}
}

func TestLineage(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
	for _, step := range []struct {
		adopt, now string
		lineage    []string
	}{
		{"", "", nil},
		{"a", "a", nil},
		{"a", "a", nil},
		{"", "a", nil},
		{"b", "b", []string{"a"}},
		{"b", "b", []string{"a"}},
		{"c", "c", []string{"a", "b"}},
		{"a", "a", []string{"a", "b", "c"}}, // back again: oldest first, all kept
	} {
		s.AdoptConversation(step.adopt)
		require.Equal(t, step.now, s.ConversationID())
		require.Equal(t, step.lineage, s.Record().Lineage)
	}
}

func TestARecordRestoresTheSession(t *testing.T) {
	record := domain.SessionRecord{
		ID: someID, Kind: domain.AgentCodex, Workspace: "/w", PlanDigest: "digest", ConversationID: "c",
		Lineage: []string{"a", "b"}, Turns: 4, LastSeq: 17, Total: domain.Usage{InputTokens: 1, ReasoningTokens: 2}, Opened: opened,
	}
	s := domain.RestoreAgentSession(record)
	require.Equal(t, record, s.Record())
	require.Equal(t, domain.SessionOpening, s.State())
	require.Equal(t, record, domain.RestoreAgentSession(s.Record()).Record())
	require.NoError(t, s.Ready())
	number, err := s.StartTurn()
	require.NoError(t, err)
	require.Equal(t, 5, number)
	require.Equal(t, uint64(18), s.NextSeq())
}

func TestARecordSharesNothingWithItsSessions(t *testing.T) {
	lineage := append(make([]string, 0, 8), "a", "b")
	record := domain.SessionRecord{ID: someID, ConversationID: "c", Lineage: lineage}
	one, two := domain.RestoreAgentSession(record), domain.RestoreAgentSession(record)
	one.AdoptConversation("one")
	one.AdoptConversation("one more")
	two.AdoptConversation("two")
	two.AdoptConversation("two more")
	require.Equal(t, []string{"a", "b", "c", "one"}, one.Record().Lineage)
	require.Equal(t, []string{"a", "b", "c", "two"}, two.Record().Lineage)
	require.Empty(t, lineage[:3][2], "nothing was written behind the record's own")
	lineage[0] = "changed"
	require.Equal(t, "a", one.Record().Lineage[0])

	given := one.Record()
	given.Lineage[0] = "changed"
	_ = append(given.Lineage[:1], "changed")
	require.Equal(t, []string{"a", "b", "c", "one"}, one.Record().Lineage)
}

func TestASessionKeepsTheBeginningOfItsFirstPrompt(t *testing.T) {
	for prompt, want := range map[string]string{
		"fix it":                          "fix it",
		"\n \t fix it \r\nand that":       "fix it",
		"bad \xff bytes":                  "bad \ufffd bytes",
		strings.Repeat("é", 500):          strings.Repeat("é", 200),
		strings.Repeat("\U0001f600", 999): strings.Repeat("\U0001f600", 200),
	} {
		s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
		require.Empty(t, s.Record().Prompt)
		s.Asked(prompt)
		s.Asked("later")
		require.Equal(t, want, s.Record().Prompt)
		require.Equal(t, want, domain.RestoreAgentSession(s.Record()).Record().Prompt)
	}
}

func TestASessionKeepsTheOutcomeOfItsLastTurn(t *testing.T) {
	s := domain.NewAgentSession(someID, domain.AgentClaude, "/w", fullPlan(), opened)
	require.NoError(t, s.Ready())
	require.Empty(t, s.Record().Outcome)
	for _, want := range []domain.Outcome{domain.OutcomeCompleted, domain.OutcomeFailed} {
		_, err := s.StartTurn()
		require.NoError(t, err)
		require.NoError(t, s.FinishTurn(domain.Final{Outcome: want}))
		require.Equal(t, want, s.Record().Outcome)
		require.Equal(t, want, domain.RestoreAgentSession(s.Record()).Record().Outcome)
	}
	r := s.Record().Replayed(domain.Event{Seq: 9, Turn: 3, Reply: domain.Final{Outcome: domain.OutcomeExited}})
	require.Equal(t, domain.OutcomeExited, r.Outcome, "the log knows more")
}
