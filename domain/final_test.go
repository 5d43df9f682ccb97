package domain_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestUsageIsCountedFieldByField(t *testing.T) {
	u := domain.Usage{InputTokens: 100, CachedInputTokens: 80, CacheWriteTokens: 10, OutputTokens: 50, ReasoningTokens: 20}
	v := domain.Usage{InputTokens: 60, CachedInputTokens: 50, CacheWriteTokens: 10, OutputTokens: 30, ReasoningTokens: 5}
	require.Equal(t, domain.Usage{InputTokens: 40, CachedInputTokens: 30, OutputTokens: 20, ReasoningTokens: 15}, u.Sub(v))
	require.Equal(t, domain.Usage{InputTokens: 160, CachedInputTokens: 130, CacheWriteTokens: 20, OutputTokens: 80, ReasoningTokens: 25}, u.Add(v))
	require.Equal(t, u, u.Sub(v).Add(v))
	require.Equal(t, u, u.Sub(domain.Usage{}))
	require.Zero(t, u.Sub(u))
}

// One field that went back shows that the agent counts anew, so that none of
// the fields may be subtracted.
func TestARestartedCounterIsTheDifference(t *testing.T) {
	before := domain.Usage{InputTokens: 10, CachedInputTokens: 10, CacheWriteTokens: 10, OutputTokens: 10, ReasoningTokens: 10}
	fields := reflect.TypeFor[domain.Usage]().NumField()
	require.Equal(t, 5, fields)
	for i := range fields {
		now := domain.Usage{InputTokens: 30, CachedInputTokens: 30, CacheWriteTokens: 30, OutputTokens: 30, ReasoningTokens: 30}
		reflect.ValueOf(&now).Elem().Field(i).SetInt(9)
		require.Equal(t, now, now.Sub(before), "field %d", i)
	}
}

func TestStopReasonOf(t *testing.T) {
	for outcome, want := range map[domain.Outcome]domain.StopReason{
		domain.OutcomeCompleted: domain.StopEndTurn, domain.OutcomeCancelled: domain.StopCancelled, domain.OutcomeTimedOut: domain.StopCancelled,
		domain.OutcomeFailed: "", domain.OutcomeDenied: "", domain.OutcomeExited: "", domain.OutcomeProtocolError: "", "": "",
	} {
		require.Equal(t, want, domain.StopReasonOf(outcome), outcome)
	}
}

// claims are the finals that an agent can give, by name.
func claims() map[string]*domain.Final {
	cost, total := 0.25, domain.Usage{InputTokens: 9}
	claim := func(outcome domain.Outcome, stop domain.StopReason, text string, err *domain.TurnError) *domain.Final {
		return &domain.Final{
			Outcome: outcome, StopReason: stop, Text: text, Error: err,
			Usage: domain.Usage{InputTokens: 3}, CostUSD: &cost, TotalUsage: &total, ConversationID: "conv",
			Exit: domain.ExitStatus{Known: true, Code: 99}, Duration: time.Hour, // no claim of the agent's
		}
	}
	return map[string]*domain.Final{
		"none":                  nil,
		"completed":             claim(domain.OutcomeCompleted, "", "done", nil),
		"completed, max tokens": claim(domain.OutcomeCompleted, domain.StopMaxTokens, "done", nil),
		"completed, error":      claim(domain.OutcomeCompleted, "", "done", &domain.TurnError{Class: "stale", Message: "of an earlier try"}),
		"failed":                claim(domain.OutcomeFailed, "", "sorry", nil),
		"failed, no text":       claim(domain.OutcomeFailed, "", "", nil),
		"failed, error":         claim(domain.OutcomeFailed, domain.StopRefusal, "sorry", &domain.TurnError{Class: "rate_limit", Message: "slow down", Retryable: true}),
		"failed, own stderr":    claim(domain.OutcomeFailed, "", "sorry", &domain.TurnError{Class: "x", Message: "y", StderrTail: "its own"}),
		"denied":                claim(domain.OutcomeDenied, "", "no", &domain.TurnError{Class: "permission", Message: "denied"}),
	}
}

var (
	exits = map[string]domain.ExitStatus{
		"unknown": {}, "exit 0": {Known: true}, "exit 3": {Known: true, Code: 3},
		"SIGKILL": {Known: true, Code: -1, Signal: "SIGKILL", SignalNumber: 9},
	}
	causes = []domain.EndCause{
		domain.EndNatural, domain.EndCancelled, domain.EndWallClock, domain.EndIdle,
		domain.EndOutputLimit, domain.EndStorage, domain.EndInternal, domain.EndResultGrace,
		domain.EndOrphaned,
	}
)

// verdict is the part of a final that Conclude decides.
type verdict struct {
	outcome domain.Outcome
	stop    domain.StopReason
	err     *domain.TurnError
}

func refused(o domain.Outcome, stop domain.StopReason, class, message string) verdict {
	return verdict{o, stop, &domain.TurnError{Class: class, Message: message, StderrTail: "tail"}}
}

// The precedence of the design: what Caisson did to the turn, then what the
// agent said, then what can be seen of the end.
var (
	byCause = map[domain.EndCause]verdict{
		domain.EndCancelled:   refused("cancelled", "cancelled", "cancelled", "detail"),
		domain.EndWallClock:   refused("timed_out", "cancelled", "wall_clock", "detail"),
		domain.EndIdle:        refused("timed_out", "cancelled", "idle", "detail"),
		domain.EndOutputLimit: refused("failed", "", "output_limit", "detail"),
		domain.EndStorage:     refused("failed", "", "storage", "detail"),
		domain.EndInternal:    refused("failed", "", "internal", "detail"),
		domain.EndOrphaned:    refused("exited", "", "orphaned", "detail"),
	}
	byClaim = map[string]verdict{
		"completed":             {outcome: "completed", stop: "end_turn"},
		"completed, max tokens": {outcome: "completed", stop: "max_tokens"},
		"completed, error":      {outcome: "completed", stop: "end_turn"},
		"failed":                refused("failed", "", "agent", "sorry"),
		"failed, no text":       refused("failed", "", "agent", "the agent reported a failure"),
		"failed, error":         {"failed", "refusal", &domain.TurnError{Class: "rate_limit", Message: "slow down", Retryable: true, StderrTail: "tail"}},
		"failed, own stderr":    {"failed", "", &domain.TurnError{Class: "x", Message: "y", StderrTail: "its own"}},
		"denied":                refused("denied", "", "permission", "denied"),
	}
	cutOff = refused("protocol_error", "", "protocol", "the agent's output was cut off in the middle of a line")
	byExit = map[string]verdict{
		"unknown": refused("protocol_error", "", "protocol", "the agent's output ended without a final event"),
		"exit 0":  refused("protocol_error", "", "protocol", "the agent's output ended without a final event"),
		"exit 3":  refused("exited", "", "exit", "the agent ended without a final event: exit 3"),
		"SIGKILL": refused("exited", "", "exit", "the agent ended without a final event: SIGKILL"),
	}
)

func TestConclude(t *testing.T) {
	require.Len(t, byClaim, len(claims())-1)
	checked := 0
	for _, cause := range causes {
		for claimName, claim := range claims() {
			for _, cut := range []bool{false, true} {
				for exitName, exit := range exits {
					name := fmt.Sprintf("cause %d, claim %s, cut %t, %s", cause, claimName, cut, exitName)
					want, ok := byCause[cause]
					if !ok {
						want, ok = byClaim[claimName]
					}
					if !ok && cut {
						want, ok = cutOff, true
					}
					if !ok {
						want = byExit[exitName]
					}
					end := domain.TurnEnd{Cause: cause, Detail: "detail", Exit: exit, CutLine: cut, StderrTail: "tail", Duration: time.Minute}
					got := domain.Conclude(claim, end)
					require.Equal(t, want, verdict{got.Outcome, got.StopReason, got.Error}, name)
					require.Equal(t, exit, got.Exit, "%s: a fact, whatever the agent said", name)
					require.Equal(t, time.Minute, got.Duration, name)
					if claim == nil {
						require.Equal(t, domain.Final{Outcome: got.Outcome, StopReason: got.StopReason, Error: got.Error, Exit: exit, Duration: time.Minute}, got, name)
					} else {
						require.Equal(t, claims()[claimName], claim, "%s: the claim is left alone", name)
						require.Equal(t,
							[]any{claim.Text, claim.Usage, claim.CostUSD, claim.ConversationID, claim.TotalUsage},
							[]any{got.Text, got.Usage, got.CostUSD, got.ConversationID, got.TotalUsage}, "%s: what the turn brought is kept", name)
					}
					require.Equal(t, got.Outcome == domain.OutcomeCompleted, got.Error == nil, name)
					checked++
				}
			}
		}
	}
	require.Equal(t, 9*9*2*4, checked)
}

func TestConcludeGivesAnErrorOfItsOwn(t *testing.T) {
	claim := claims()["failed, error"]
	theirs := claim.Error
	got := domain.Conclude(claim, domain.TurnEnd{StderrTail: "tail", Exit: exits["exit 0"]})
	require.NotSame(t, theirs, got.Error)
	require.Empty(t, theirs.StderrTail)
	got.Error.Message = "changed"
	require.Equal(t, "slow down", theirs.Message)
}

func TestConcludeWithoutDetailOrStderr(t *testing.T) {
	got := domain.Conclude(nil, domain.TurnEnd{Cause: domain.EndCancelled})
	require.Equal(t, &domain.TurnError{Class: "cancelled", Message: "the turn was cancelled"}, got.Error)
	got = domain.Conclude(nil, domain.TurnEnd{})
	require.Equal(t, domain.Final{
		Outcome: domain.OutcomeProtocolError,
		Error:   &domain.TurnError{Class: "protocol", Message: "the agent's output ended without a final event"},
	}, got)
}
