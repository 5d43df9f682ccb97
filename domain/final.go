package domain

import "time"

// Usage counts tokens. InputTokens includes the cached ones, OutputTokens
// includes the reasoning ones.
type Usage struct {
	InputTokens       int64
	CachedInputTokens int64
	CacheWriteTokens  int64
	OutputTokens      int64
	ReasoningTokens   int64
}

// Sub returns u − v, field by field: it turns a cumulative report into that of
// one turn. If any field would become negative, the counter was restarted and
// u itself is the difference.
func (u Usage) Sub(v Usage) Usage {
	d := Usage{
		u.InputTokens - v.InputTokens, u.CachedInputTokens - v.CachedInputTokens,
		u.CacheWriteTokens - v.CacheWriteTokens, u.OutputTokens - v.OutputTokens,
		u.ReasoningTokens - v.ReasoningTokens,
	}
	if min(d.InputTokens, d.CachedInputTokens, d.CacheWriteTokens, d.OutputTokens, d.ReasoningTokens) < 0 {
		return u
	}
	return d
}

// Add returns u + v, field by field.
func (u Usage) Add(v Usage) Usage {
	return Usage{
		u.InputTokens + v.InputTokens, u.CachedInputTokens + v.CachedInputTokens,
		u.CacheWriteTokens + v.CacheWriteTokens, u.OutputTokens + v.OutputTokens,
		u.ReasoningTokens + v.ReasoningTokens,
	}
}

// Outcome is how a turn ended.
type Outcome string

// The outcomes.
const (
	OutcomeCompleted     Outcome = "completed"      // the agent said so
	OutcomeFailed        Outcome = "failed"         // the agent reported an error, or a limit ended the turn
	OutcomeDenied        Outcome = "denied"         // a denied permission ended the turn
	OutcomeCancelled     Outcome = "cancelled"      // by the user of Caisson
	OutcomeTimedOut      Outcome = "timed_out"      // wall clock or idle limit
	OutcomeExited        Outcome = "exited"         // the process ended by itself, or was killed, without a final
	OutcomeProtocolError Outcome = "protocol_error" // the stream ended, or was cut, without a final
)

// StopReason says why the model stopped, by the names of the Agent Client
// Protocol.
type StopReason string

// The stop reasons (agentclientprotocol.com, schema "StopReason").
const (
	StopEndTurn         StopReason = "end_turn"
	StopMaxTokens       StopReason = "max_tokens"
	StopMaxTurnRequests StopReason = "max_turn_requests"
	StopRefusal         StopReason = "refusal"
	StopCancelled       StopReason = "cancelled"
)

// StopReasonOf returns the stop reason that an outcome implies when the agent
// gave none; "" if it implies none.
func StopReasonOf(o Outcome) StopReason {
	switch o {
	case OutcomeCompleted:
		return StopEndTurn
	case OutcomeCancelled, OutcomeTimedOut:
		return StopCancelled
	}
	return ""
}

// Classes of a turn's error that Caisson itself gives. Agents add their own,
// such as "rate_limit" or "authentication_failed".
const (
	ErrorClassCancelled    = "cancelled"
	ErrorClassWallClock    = "wall_clock"
	ErrorClassIdle         = "idle"
	ErrorClassOutputLimit  = "output_limit"
	ErrorClassStorage      = "storage"
	ErrorClassInternal     = "internal" // a fault of Caisson's own
	ErrorClassProtocol     = "protocol"
	ErrorClassExit         = "exit"
	ErrorClassOrphaned     = "orphaned"     // Caisson itself ended in the middle of the turn
	ErrorClassConversation = "conversation" // the agent continued another conversation than the one asked for
	ErrorClassTripwire     = "tripwire"     // the turn planted what could run later
	ErrorClassAgent        = "agent"        // reported by the agent, unclassified
)

// TurnError says what went wrong in a turn.
type TurnError struct {
	Class      string
	Message    string
	StderrTail string
	Retryable  bool
}

// Final is the last event of every turn, and the only one of its kind.
type Final struct {
	Outcome        Outcome
	StopReason     StopReason
	Text           string // the agent's last word
	Usage          Usage  // of this turn
	CostUSD        *float64
	ConversationID string
	Exit           ExitStatus
	Error          *TurnError // nil if the outcome is completed
	Duration       time.Duration
	// TotalUsage is the conversation's usage so far, for an agent that reports
	// it cumulatively; nil otherwise. The next turn needs it.
	TotalUsage *Usage
}

// EndCause says what made a turn's process end.
type EndCause uint8

// The causes. The zero value means that the process ended by itself.
const (
	EndNatural EndCause = iota
	EndCancelled
	EndWallClock
	EndIdle
	EndOutputLimit
	EndStorage
	EndInternal    // a fault of Caisson's own
	EndResultGrace // it had given its final, but would not exit
	EndOrphaned    // the orchestrator died; found out afterwards
)

// TurnEnd is what the process machinery knows at the end of a turn.
type TurnEnd struct {
	Cause      EndCause
	Detail     string // of the cause: the limit, the storage error, the reason given for a cancel
	Exit       ExitStatus
	CutLine    bool // the last line of stdout was cut off by the end of the stream
	StderrTail string
	Duration   time.Duration
}

// Conclude makes the final event of a turn from what the agent claimed (nil if
// it gave no final of its own) and from how the process ended. The outcome is,
// in this precedence: cancelled, timed out, ended by a limit, the agent's own
// final, a cut line, an exit by signal or with a code, and a protocol error.
// A bad exit after a good final is kept as a fact in Exit.
func Conclude(claim *Final, end TurnEnd) Final {
	f := Final{}
	if claim != nil {
		f = *claim
	}
	f.Exit, f.Duration = end.Exit, end.Duration
	fail := func(o Outcome, class, message string) {
		f.Outcome, f.StopReason = o, StopReasonOf(o)
		f.Error = &TurnError{Class: class, Message: message}
	}
	switch {
	case end.Cause == EndCancelled:
		fail(OutcomeCancelled, ErrorClassCancelled, orElse(end.Detail, "the turn was cancelled"))
	case end.Cause == EndWallClock:
		fail(OutcomeTimedOut, ErrorClassWallClock, end.Detail)
	case end.Cause == EndIdle:
		fail(OutcomeTimedOut, ErrorClassIdle, end.Detail)
	case end.Cause == EndOutputLimit:
		fail(OutcomeFailed, ErrorClassOutputLimit, end.Detail)
	case end.Cause == EndStorage:
		fail(OutcomeFailed, ErrorClassStorage, end.Detail)
	case end.Cause == EndInternal:
		fail(OutcomeFailed, ErrorClassInternal, end.Detail)
	case end.Cause == EndOrphaned:
		fail(OutcomeExited, ErrorClassOrphaned, orElse(end.Detail, "Caisson itself ended in the middle of the turn"))
	case claim != nil:
		if f.Outcome == OutcomeCompleted {
			f.Error = nil
		} else if f.Error == nil {
			f.Error = &TurnError{Class: ErrorClassAgent, Message: orElse(f.Text, "the agent reported a failure")}
		}
	case end.CutLine:
		fail(OutcomeProtocolError, ErrorClassProtocol, "the agent's output was cut off in the middle of a line")
	case !end.Exit.Success() && end.Exit.Known:
		fail(OutcomeExited, ErrorClassExit, "the agent ended without a final event: "+end.Exit.String())
	default:
		fail(OutcomeProtocolError, ErrorClassProtocol, "the agent's output ended without a final event")
	}
	if f.StopReason == "" {
		f.StopReason = StopReasonOf(f.Outcome)
	}
	if f.Error != nil {
		e := *f.Error
		if e.StderrTail == "" {
			e.StderrTail = end.StderrTail
		}
		f.Error = &e
	}
	return f
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}
