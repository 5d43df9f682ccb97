package domain

import (
	"slices"
	"time"
)

// SessionState is where a session is in its life.
type SessionState string

// The states: opening → ready ⇄ running; any → closed.
const (
	SessionOpening SessionState = "opening"
	SessionReady   SessionState = "ready"
	SessionRunning SessionState = "running"
	SessionClosed  SessionState = "closed"
)

// AgentSession is one conversation with one agent in one workspace, with its
// legal transitions. It is not safe for concurrent use: its owner locks.
type AgentSession struct {
	id             SessionID
	kind           AgentKind
	workspace      string
	planDigest     string
	grants         []string
	conversationID string
	lineage        []string // earlier conversation ids, oldest first
	state          SessionState
	turns          int
	lastSeq        uint64
	total          Usage // cumulative, as the agent counts
	opened         time.Time
}

// SessionRecord is the part of a session that outlives the process: what a
// later resume needs. Values of the environment and secrets are not in it.
type SessionRecord struct {
	ID             SessionID
	Kind           AgentKind
	Workspace      string
	PlanDigest     string
	Grants         []string // of the plan, as SandboxPlan.Grants has them; nil if unknown
	ConversationID string
	Lineage        []string
	Turns          int
	LastSeq        uint64
	Total          Usage
	Opened         time.Time
}

// NewAgentSession returns a session that is opening, whose every turn is to run
// under the plan.
func NewAgentSession(id SessionID, kind AgentKind, workspace string, plan SandboxPlan, opened time.Time) *AgentSession {
	return &AgentSession{
		id: id, kind: kind, workspace: workspace, planDigest: plan.Digest(), grants: plan.Grants(),
		state: SessionOpening, opened: opened,
	}
}

// RestoreAgentSession returns the session of a record, opening again.
func RestoreAgentSession(r SessionRecord) *AgentSession {
	return &AgentSession{
		id: r.ID, kind: r.Kind, workspace: r.Workspace, planDigest: r.PlanDigest, grants: slices.Clone(r.Grants),
		conversationID: r.ConversationID, lineage: slices.Clone(r.Lineage), state: SessionOpening,
		turns: r.Turns, lastSeq: r.LastSeq, total: r.Total, opened: r.Opened,
	}
}

// Record returns what a later resume needs.
func (s *AgentSession) Record() SessionRecord {
	return SessionRecord{
		ID: s.id, Kind: s.kind, Workspace: s.workspace, PlanDigest: s.planDigest, Grants: slices.Clone(s.grants),
		ConversationID: s.conversationID, Lineage: slices.Clone(s.lineage),
		Turns: s.turns, LastSeq: s.lastSeq, Total: s.total, Opened: s.opened,
	}
}

// ID returns Caisson's id.
func (s *AgentSession) ID() SessionID { return s.id }

// Kind returns the agent.
func (s *AgentSession) Kind() AgentKind { return s.kind }

// Workspace returns the canonical path of the workspace.
func (s *AgentSession) Workspace() string { return s.workspace }

// State returns the state.
func (s *AgentSession) State() SessionState { return s.state }

// ConversationID returns the agent's own id, "" before the agent gave one.
func (s *AgentSession) ConversationID() string { return s.conversationID }

// Turns returns how many turns were started.
func (s *AgentSession) Turns() int { return s.turns }

// Ready ends the opening.
func (s *AgentSession) Ready() error {
	return s.step("become ready", SessionReady, SessionOpening)
}

// StartTurn begins the next turn and returns its number, from 1.
func (s *AgentSession) StartTurn() (int, error) {
	if err := s.step("start a turn", SessionRunning, SessionReady); err != nil {
		return 0, err
	}
	s.turns++
	return s.turns, nil
}

// AbandonTurn takes back a turn whose process never started.
func (s *AgentSession) AbandonTurn() error {
	if err := s.step("abandon a turn", SessionReady, SessionRunning); err != nil {
		return err
	}
	s.turns--
	return nil
}

// FinishTurn ends the running turn. A session that was closed meanwhile stays
// closed, but takes the usage.
func (s *AgentSession) FinishTurn(f Final) error {
	if s.state != SessionClosed {
		if err := s.step("finish a turn", SessionReady, SessionRunning); err != nil {
			return err
		}
	}
	if f.TotalUsage != nil {
		s.total = *f.TotalUsage
	} else {
		s.total = s.total.Add(f.Usage)
	}
	return nil
}

// NextSeq returns the sequence number of the session's next event.
func (s *AgentSession) NextSeq() uint64 {
	s.lastSeq++
	return s.lastSeq
}

// AdoptConversation takes the id that the agent gave its conversation. An id
// that changes is kept in the lineage; "" changes nothing.
func (s *AgentSession) AdoptConversation(id string) {
	if id == "" || id == s.conversationID {
		return
	}
	if s.conversationID != "" {
		s.lineage = append(s.lineage, s.conversationID)
	}
	s.conversationID = id
}

// Close ends the session, from any state; closing twice is no error.
func (s *AgentSession) Close() { s.state = SessionClosed }

func (s *AgentSession) step(name string, to SessionState, from SessionState) error {
	if s.state != from {
		return &TransitionError{Session: s.id, From: s.state, Step: name}
	}
	s.state = to
	return nil
}
