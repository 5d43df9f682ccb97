package ports

import (
	"context"
	"iter"

	"github.com/caisson-run/caisson/domain"
)

// SessionSpec is all that a session is opened with, besides its plan.
type SessionSpec struct {
	ID        domain.SessionID
	Kind      domain.AgentKind
	Install   AgentInstall
	Workspace string // canonical
	Dirs      SessionDirs
	Model     string
	// ConversationID is the conversation to resume, "" for a new one.
	ConversationID string
	// UsageBefore is the conversation's usage so far.
	UsageBefore domain.Usage
	// Notes are repeated in every receipt.
	Notes []string
}

// StructuredSessionFactory opens structured sessions. It is safe for
// concurrent use.
type StructuredSessionFactory interface {
	// Start opens a session whose every turn runs under the sandbox. It starts
	// no process, but tries the sandbox where that can be done without one: a
	// sandbox that does not hold gives a *domain.ProbeError. A zero plan gives domain.ErrNoSandbox; a plan without an
	// enforcer domain.ErrNoEnforcer, unless the factory was told to allow native
	// turns; a plan that the host cannot enforce a *domain.StrictnessError; an
	// agent that it has no adapter for a *domain.InvalidError.
	Start(ctx context.Context, spec SessionSpec, sandbox domain.SandboxPlan) (StructuredSession, error)
	// EndLeftover ends what is still alive of a turn whose orchestrator died, and
	// returns when it is gone, or with an error. Nothing else is touched, whoever
	// has the pid by now. An identity of a mark alone is that of a turn whose
	// orchestrator died while it was starting. The zero identity, and one of an
	// earlier boot, is gone.
	EndLeftover(ctx context.Context, left domain.ProcessIdentity) error
}

// StructuredSession is one conversation. Its methods are safe for concurrent
// use.
type StructuredSession interface {
	// Send starts one turn. ctx governs the whole turn: when it ends, the turn
	// is cancelled. A second Send while a turn runs gets
	// domain.ErrTurnInProgress, one after Close domain.ErrClosed. An error
	// means that no process was left behind.
	Send(ctx context.Context, p Prompt) (Turn, error)
	// ConversationID is the agent's own id, "" before it gave one.
	ConversationID() string
	// Close cancels a running turn and returns when its process tree is gone,
	// or when ctx ends, with its error. Closing twice is no error.
	Close(ctx context.Context) error
}

// Turn is a running turn.
type Turn interface {
	// Events yields the turn's events: the receipt first, a final last if the
	// implementation can tell it. It can be ranged over once; a second time
	// yields domain.ErrEventsConsumed. Leaving early cancels the turn, and
	// returns when the process tree is gone. The error is non-nil at most once,
	// last, and only for failures of Caisson's own, never of the agent.
	Events() iter.Seq2[domain.ReplyEvent, error]
	// Process identifies the turn's process, so that what is left of it can be
	// found after a death of the orchestrator. It is zero if there is no process
	// of this machine behind the turn.
	Process() domain.ProcessIdentity
	// Cancel ends the turn: it asks the agent to stop, and makes it stop if it
	// does not. It returns at once; the events end with the turn. Cancelling a
	// turn that is over does nothing.
	Cancel(cause error)
	// Kill ends the turn without asking, also one that is being cancelled: the
	// graces are not waited for. It returns at once; the events end with the turn.
	Kill(cause error)
}
