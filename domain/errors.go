package domain

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Sentinels. Match them with errors.Is.
var (
	// ErrNoSandbox: a zero SandboxPlan came where a plan is needed. Say
	// Unconfined if that is meant.
	ErrNoSandbox = errors.New("no sandbox plan: pass a plan, or domain.Unconfined to run without")
	// ErrNoEnforcer: a plan, but nothing that could enforce it.
	ErrNoEnforcer = errors.New("a sandbox plan, but no sandbox enforcer")
	// ErrTurnInProgress: a session runs one turn at a time.
	ErrTurnInProgress = errors.New("a turn is in progress")
	// ErrClosed: the session or orchestrator is closed.
	ErrClosed = errors.New("closed")
	// ErrBusy: somebody else has the session open.
	ErrBusy = errors.New("in use")
	// ErrEventsConsumed: Events was called a second time.
	ErrEventsConsumed = errors.New("the events of a turn can be read once")
)

// InvalidError is a bad input: what, which value, why, and what to do.
type InvalidError struct {
	What   string // "workspace", "session id", …
	Value  string
	Reason string
	Remedy string
	Err    error // what the system said, if it did
}

func (e *InvalidError) Error() string {
	s := fmt.Sprintf("%s %s: %s", e.What, quote(e.Value), e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return withRemedy(s, e.Remedy)
}

func (e *InvalidError) Unwrap() error { return e.Err }

// StrictnessError refuses a spawn because the host cannot enforce what the
// plan asks for.
type StrictnessError struct {
	Missing []PropertyStatus
}

func (e *StrictnessError) Error() string {
	var b strings.Builder
	b.WriteString("the sandbox cannot be enforced here:")
	for _, m := range e.Missing {
		fmt.Fprintf(&b, "\n  %s: %s (do without it: --waive %s)", m.Property, m.Detail, m.Property)
	}
	return b.String()
}

// EnforcementError is a failure to prepare or apply a confinement. No child
// exists.
type EnforcementError struct {
	Step   string // "prepare", "apply", "kill group", …
	Path   string // the path of the rule at fault, if one is
	Access Access
	ABI    int
	Remedy string
	Err    error
}

func (e *EnforcementError) Error() string {
	s := "sandbox: " + e.Step
	if e.Path != "" {
		s += " " + quote(e.Path)
	}
	if e.Access != 0 {
		s += " (" + e.Access.String() + ")"
	}
	if e.ABI > 0 {
		s += fmt.Sprintf(" [Landlock ABI %d]", e.ABI)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return withRemedy(s, e.Remedy)
}

func (e *EnforcementError) Unwrap() error { return e.Err }

// AgentNotFoundError: the agent's CLI cannot be found or used.
type AgentNotFoundError struct {
	Kind   AgentKind
	Path   string // what was looked at, "" if PATH was searched
	Reason string
	Remedy string
	Err    error
}

func (e *AgentNotFoundError) Error() string {
	s := "agent " + quote(string(e.Kind))
	if e.Path != "" {
		s += " at " + quote(e.Path)
	}
	s += ": " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return withRemedy(s, e.Remedy)
}

func (e *AgentNotFoundError) Unwrap() error { return e.Err }

// SpawnError: the child could not be started. No child exists.
type SpawnError struct {
	Step   string // "stdio", "start", "resume", …
	Argv0  string
	Remedy string
	Err    error
}

func (e *SpawnError) Error() string {
	s := "spawn " + quote(e.Argv0) + ": " + e.Step
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return withRemedy(s, e.Remedy)
}

func (e *SpawnError) Unwrap() error { return e.Err }

// PlanChangedError refuses a resumed turn whose plan is not the plan of the
// session's first turn.
type PlanChangedError struct {
	Session   SessionID
	Was, Is   string // digests
	Workspace string
	// Added and Removed are lines of SandboxPlan.Grants that the plan has now and
	// had not, and the other way round. Both are nil if the session's record does
	// not know them.
	Added, Removed []string
}

// maxChanges is how many lines of a changed plan an error shows.
const maxChanges = 12

func (e *PlanChangedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "session %s was opened under another sandbox plan (digest %.12s, now %.12s):", e.Session, e.Was, e.Is)
	lines := make([]string, 0, len(e.Added)+len(e.Removed))
	for _, l := range e.Added {
		lines = append(lines, "+ "+l)
	}
	for _, l := range e.Removed {
		lines = append(lines, "- "+l)
	}
	for _, l := range lines[:min(len(lines), maxChanges)] {
		b.WriteString("\n  " + printable(l))
	}
	if more := len(lines) - maxChanges; more > 0 {
		fmt.Fprintf(&b, "\n  … and %d more", more)
	}
	separator := " "
	if len(lines) > 0 {
		separator = "\n"
	}
	b.WriteString(separator + "resume it with the same policy and flags, and with the agent's program (an upgrade may have moved it), " +
		"the address of its API, the directories of PATH and the workspace where they were; or open a new session")
	return b.String()
}

// BusyError refuses to open a session that somebody else has open: two ends of
// one conversation would fork it. It matches [ErrBusy].
type BusyError struct {
	Session SessionID
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("session %s is in use, in this process or in another one: wait for its turn to end, or end the Caisson that runs it", e.Session)
}

// Is makes it match its sentinel.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// TransitionError is a step that a session's state does not allow.
type TransitionError struct {
	Session SessionID
	From    SessionState
	Step    string
}

func (e *TransitionError) Error() string {
	return fmt.Sprintf("session %s: cannot %s while %s", e.Session, e.Step, e.From)
}

// Is makes the two states that callers ask for match their sentinels.
func (e *TransitionError) Is(target error) bool {
	switch target {
	case ErrTurnInProgress:
		return e.From == SessionRunning
	case ErrClosed:
		return e.From == SessionClosed
	}
	return false
}

// TimeoutError is the cause of a turn that ran out of time.
type TimeoutError struct {
	Idle  bool // the idle limit, otherwise the wall clock
	Limit time.Duration
}

func (e *TimeoutError) Error() string {
	if e.Idle {
		return fmt.Sprintf("no output for %s (idle limit)", e.Limit)
	}
	return fmt.Sprintf("still running after %s (wall-clock limit)", e.Limit)
}

// NoFinalError: the agent's stream ended without a final event. Synthetic is
// the final that the application made instead.
type NoFinalError struct {
	Synthetic Final
}

func (e *NoFinalError) Error() string {
	return fmt.Sprintf("the turn ended without a final event (outcome %s)", e.Synthetic.Outcome)
}

func withRemedy(s, remedy string) string {
	if remedy == "" {
		return s
	}
	return s + "; " + remedy
}
