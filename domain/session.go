package domain

import (
	"slices"
	"strings"
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
	prompt         string
	outcome        Outcome // of the last turn
	conversationID string
	lineage        []string // earlier conversation ids, oldest first
	state          SessionState
	turns          int
	lastSeq        uint64
	total          Usage // cumulative, as the agent counts
	opened         time.Time
	updated        time.Time
	epoch          uint64
	live           *LiveTurn
}

// SessionRecord is the part of a session that outlives the process: what a
// later resume needs. Values of the environment and secrets are not in it.
type SessionRecord struct {
	ID         SessionID
	Kind       AgentKind
	Workspace  string
	PlanDigest string
	Grants     []string // of the plan, as SandboxPlan.Grants has them; nil if unknown
	// Prompt is the beginning of the first prompt, by which a person knows the
	// session again; "" if unknown.
	Prompt string
	// Outcome is that of the last turn that ended; "" if none did, or unknown.
	Outcome        Outcome
	ConversationID string
	Lineage        []string
	Turns          int
	LastSeq        uint64
	Total          Usage
	Opened         time.Time
	// Updated is when the record last changed; zero if unknown.
	Updated time.Time
	// Epoch is that of the log that the session was last opened with.
	Epoch uint64
	// Live is the turn that is running; nil between turns. In the record of a
	// session that nobody has open it is a turn that its orchestrator left behind.
	Live *LiveTurn
}

// LiveTurn is a turn that runs.
type LiveTurn struct {
	Turn    int
	First   uint64 // the number of its first event
	Process ProcessIdentity
}

// ProcessIdentity tells a process from every other one that this machine ever
// ran: pids are given again. The zero value stands for no process.
type ProcessIdentity struct {
	Pid int
	// Start is when the process started, in clock ticks after the boot (proc(5),
	// field 22 of stat).
	Start uint64
	// Boot identifies the boot (/proc/sys/kernel/random/boot_id).
	Boot string
	// Mark is in the environment of the process and of all that it starts, unless
	// they take it out.
	Mark string
}

// NewAgentSession returns a session that is opening, whose every turn is to run
// under the plan.
func NewAgentSession(id SessionID, kind AgentKind, workspace string, plan SandboxPlan, opened time.Time) *AgentSession {
	return &AgentSession{
		id: id, kind: kind, workspace: workspace, planDigest: plan.Digest(), grants: plan.Grants(),
		state: SessionOpening, opened: opened,
	}
}

// RestoreAgentSession returns the session of a record, opening again. No turn
// of it runs, whatever the record says.
func RestoreAgentSession(r SessionRecord) *AgentSession {
	return &AgentSession{
		id: r.ID, kind: r.Kind, workspace: r.Workspace, planDigest: r.PlanDigest, grants: slices.Clone(r.Grants),
		prompt: r.Prompt, outcome: r.Outcome, conversationID: r.ConversationID, lineage: slices.Clone(r.Lineage), state: SessionOpening,
		turns: r.Turns, lastSeq: r.LastSeq, total: r.Total, opened: r.Opened, updated: r.Updated, epoch: r.Epoch,
	}
}

// Record returns what a later resume needs.
func (s *AgentSession) Record() SessionRecord {
	return SessionRecord{
		ID: s.id, Kind: s.kind, Workspace: s.workspace, PlanDigest: s.planDigest, Grants: slices.Clone(s.grants),
		Prompt: s.prompt, Outcome: s.outcome, ConversationID: s.conversationID, Lineage: slices.Clone(s.lineage),
		Turns: s.turns, LastSeq: s.lastSeq, Total: s.total, Opened: s.opened, Updated: s.updated,
		Epoch: s.epoch, Live: s.live.clone(),
	}
}

func (l *LiveTurn) clone() *LiveTurn {
	if l == nil {
		return nil
	}
	c := *l
	return &c
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

// AbandonTurn takes back a turn that nobody got: its process never started, or
// the session was closed meanwhile, and then stays closed.
func (s *AgentSession) AbandonTurn() error {
	if s.state != SessionClosed {
		if err := s.step("abandon a turn", SessionReady, SessionRunning); err != nil {
			return err
		}
	}
	s.turns--
	s.live = nil
	return nil
}

// TurnStarted takes the process of the turn that runs, before its first event.
func (s *AgentSession) TurnStarted(p ProcessIdentity) {
	s.live = &LiveTurn{Turn: s.turns, First: s.lastSeq + 1, Process: p}
}

// maxPrompt is how many characters of a prompt are kept.
const maxPrompt = 200

// Asked takes the first prompt of the session, without what must not be kept: the
// beginning of its first line that has one. Later ones change nothing.
func (s *AgentSession) Asked(prompt string) {
	if s.prompt != "" {
		return
	}
	line, _, _ := strings.Cut(strings.TrimSpace(prompt), "\n")
	// A character takes four bytes at most, so no more than this has to be looked at.
	beginning := []rune(strings.ToValidUTF8(line[:min(len(line), 4*maxPrompt)], "\ufffd"))
	s.prompt = strings.TrimSpace(string(beginning[:min(len(beginning), maxPrompt)]))
}

// FinishTurn ends the running turn. A session that was closed meanwhile stays
// closed, but takes the usage.
func (s *AgentSession) FinishTurn(f Final) error {
	if s.state != SessionClosed {
		if err := s.step("finish a turn", SessionReady, SessionRunning); err != nil {
			return err
		}
	}
	s.live = nil
	s.outcome = f.Outcome
	s.total = s.total.after(f)
	return nil
}

// after returns the total after a turn that ended so.
func (u Usage) after(f Final) Usage {
	if f.TotalUsage != nil {
		return *f.TotalUsage
	}
	return u.Add(f.Usage)
}

// NextSeq returns the sequence number of the session's next event.
func (s *AgentSession) NextSeq() uint64 { return s.lastSeq + 1 }

// Recorded notes that the event of that number is in the log, so that the number
// is not given again.
func (s *AgentSession) Recorded(seq uint64) { s.lastSeq = max(s.lastSeq, seq) }

// OpenedWith takes the epoch of the log that the session is open with.
func (s *AgentSession) OpenedWith(epoch uint64) { s.epoch = epoch }

// Touched takes the time of a change.
func (s *AgentSession) Touched(now time.Time) { s.updated = now }

// AdoptConversation takes the id that the agent gave its conversation. An id
// that changes is kept in the lineage; "" changes nothing.
func (s *AgentSession) AdoptConversation(id string) {
	s.conversationID, s.lineage = adopt(s.conversationID, s.lineage, id)
}

func adopt(current string, lineage []string, id string) (string, []string) {
	if id == "" || id == current {
		return current, lineage
	}
	if current != "" {
		lineage = append(slices.Clip(lineage), current)
	}
	return id, lineage
}

// Replayed returns the record after an event of the log that it does not know of
// yet: what an orchestrator that died could not write into it any more. An event
// that it knows of changes nothing.
func (r SessionRecord) Replayed(e Event) SessionRecord {
	if e.Seq <= r.LastSeq {
		return r
	}
	r.LastSeq, r.Turns = e.Seq, max(r.Turns, e.Turn)
	if e.Time.After(r.Updated) {
		r.Updated = e.Time
	}
	switch reply := e.Reply.(type) {
	case ConversationStarted:
		// A first one counts at once, a changed one from the end of the turn.
		if r.ConversationID == "" {
			r.ConversationID = reply.ConversationID
		}
	case Final:
		r.Live, r.Outcome = nil, reply.Outcome
		r.Total = r.Total.after(reply)
		if reply.Error == nil || reply.Error.Class != ErrorClassConversation {
			r.ConversationID, r.Lineage = adopt(r.ConversationID, r.Lineage, reply.ConversationID)
		}
	default: // says nothing about the session
	}
	return r
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
