package domain_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// hostile is what an agent or a file system may put into a name.
const hostile = "/w/\x1b[31m\nfake: line\xff\u202e"

// requireOneLine fails if s could disturb a terminal or imitate another line.
func requireOneLine(t testing.TB, s string) {
	t.Helper()
	require.True(t, utf8.ValidString(s), "%q", s)
	for _, r := range s {
		require.False(t, r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e, "%q in %q", r, s)
	}
}

// requireInvalid fails if err is not, or does not contain, the InvalidError
// with these fields, or if its text lacks one of them.
func requireInvalid(t testing.TB, err error, what, value, reason, remedy string) {
	t.Helper()
	var all []error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	} else {
		all = []error{err}
	}
	var texts []string
	for _, e := range all {
		var invalid *domain.InvalidError
		require.ErrorAs(t, e, &invalid)
		require.NotEmpty(t, invalid.What)
		require.NotEmpty(t, invalid.Reason, "%s", e)
		require.NotEmpty(t, invalid.Remedy, "%s", e)
		requireOneLine(t, e.Error())
		text := e.Error()
		require.True(t, strings.HasPrefix(text, invalid.What+` "`), text)
		require.Contains(t, text, ": "+invalid.Reason)
		require.True(t, strings.HasSuffix(text, "; "+invalid.Remedy), text)
		if invalid.What == what && invalid.Value == value && strings.Contains(invalid.Reason, reason) && strings.Contains(invalid.Remedy, remedy) {
			return
		}
		texts = append(texts, text)
	}
	require.Fail(t, "no such error", "want %s %q: %s; %s\ngot %s", what, value, reason, remedy, strings.Join(texts, "\n    "))
}

const sameAgain = "resume it with the same policy and flags, and with the agent's program (an upgrade may have moved it), " +
	"the address of its API, the directories of PATH and the workspace where they were; or open a new session"

func TestErrorTexts(t *testing.T) {
	cause := fs.ErrPermission
	for _, c := range []struct {
		err  error
		want string
	}{
		{&domain.InvalidError{What: "workspace", Value: "/w", Reason: "not a directory"}, `workspace "/w": not a directory`},
		{&domain.InvalidError{What: "workspace", Value: "/w", Reason: "not readable", Remedy: "chmod it", Err: cause}, `workspace "/w": not readable: permission denied; chmod it`},
		{&domain.InvalidError{What: "path", Value: hostile, Reason: "bad"}, `path "/w/\x1b[31m\nfake: line\xff\u202e": bad`},
		{&domain.InvalidError{What: "prompt", Value: strings.Repeat("x", 120), Reason: "bad"}, `prompt "` + strings.Repeat("x", 120) + `": bad`},
		{&domain.InvalidError{What: "prompt", Value: strings.Repeat("x", 121), Reason: "bad"}, `prompt "` + strings.Repeat("x", 120) + `"… (121 bytes): bad`},
		{&domain.InvalidError{What: "prompt", Value: strings.Repeat("x", 119) + "é", Reason: "bad"}, `prompt "` + strings.Repeat("x", 119) + `\xc3"… (121 bytes): bad`},

		{&domain.StrictnessError{Missing: []domain.PropertyStatus{{Property: domain.PropertyUDP, Detail: "Landlock ABI 7, needs 10"}, {Property: domain.PropertyIPC, Detail: "no seccomp"}}},
			"the sandbox cannot be enforced here:" +
				"\n  udp: Landlock ABI 7, needs 10 (do without it: --waive udp)" +
				"\n  ipc: no seccomp (do without it: --waive ipc)"},

		{&domain.EnforcementError{Step: "apply"}, "sandbox: apply"},
		{&domain.EnforcementError{Step: "apply", Err: cause}, "sandbox: apply: permission denied"},
		{&domain.EnforcementError{Step: "open", Path: hostile, Access: domain.AccessRead, ABI: 7, Remedy: "make it", Err: cause},
			`sandbox: open "/w/\x1b[31m\nfake: line\xff\u202e" (read) [Landlock ABI 7]: permission denied; make it`},

		{&domain.AgentNotFoundError{Kind: domain.AgentClaude, Reason: "not on PATH", Remedy: "install it"}, `agent "claude": not on PATH; install it`},
		{&domain.AgentNotFoundError{Kind: "x\n", Path: hostile, Reason: "not executable", Err: cause},
			`agent "x\n" at "/w/\x1b[31m\nfake: line\xff\u202e": not executable: permission denied`},

		{&domain.SpawnError{Step: "start", Argv0: "/bin/x"}, `spawn "/bin/x": start`},
		{&domain.SpawnError{Step: "start", Argv0: hostile, Remedy: "look", Err: cause}, `spawn "/w/\x1b[31m\nfake: line\xff\u202e": start: permission denied; look`},

		{&domain.PlanChangedError{Session: someID, Was: strings.Repeat("a", 64), Is: strings.Repeat("b", 64), Workspace: "/w"},
			"session " + someID + " was opened under another sandbox plan (digest aaaaaaaaaaaa, now bbbbbbbbbbbb): " + sameAgain},
		{&domain.PlanChangedError{Session: someID, Added: []string{"read /a  # policy", hostile}, Removed: []string{"tcp connect 443"}},
			"session " + someID + " was opened under another sandbox plan (digest , now ):" +
				"\n  + read /a  # policy" + `
  "+ /w/\x1b[31m\nfake: line\xff\u202e"` + "\n  - tcp connect 443\n" + sameAgain},
		{&domain.PlanChangedError{Session: someID, Removed: slices.Repeat([]string{"x"}, 15)},
			"session " + someID + " was opened under another sandbox plan (digest , now ):" +
				strings.Repeat("\n  - x", 12) + "\n  … and 3 more\n" + sameAgain},

		{&domain.BusyError{Session: someID}, "session " + someID + " is in use, in this process or in another one: wait for its turn to end, or end the Caisson that runs it"},

		{&domain.TransitionError{Session: someID, From: domain.SessionRunning, Step: "start a turn"}, "session " + someID + ": cannot start a turn while running"},

		{&domain.TimeoutError{Idle: true, Limit: 90 * time.Second}, "no output for 1m30s (idle limit)"},
		{&domain.TimeoutError{Limit: time.Hour}, "still running after 1h0m0s (wall-clock limit)"},

		{&domain.NoFinalError{Synthetic: domain.Final{Outcome: domain.OutcomeExited}}, "the turn ended without a final event (outcome exited)"},
	} {
		require.Equal(t, c.want, c.err.Error())
	}
}

func TestErrorsKeepTheirCause(t *testing.T) {
	cause := &fs.PathError{Op: "open", Path: "/w", Err: fs.ErrPermission}
	for _, err := range []error{
		&domain.InvalidError{Err: cause},
		&domain.EnforcementError{Err: cause},
		&domain.AgentNotFoundError{Err: cause},
		&domain.SpawnError{Err: cause},
	} {
		wrapped := fmt.Errorf("more: %w", err)
		require.ErrorIs(t, wrapped, fs.ErrPermission)
		var got *fs.PathError
		require.ErrorAs(t, wrapped, &got)
		require.Same(t, cause, got)
	}
	for _, err := range []error{&domain.InvalidError{}, &domain.EnforcementError{}, &domain.AgentNotFoundError{}, &domain.SpawnError{}} {
		require.NoError(t, errors.Unwrap(err))
	}
}

func TestTransitionErrorMatchesTheSentinelOfItsState(t *testing.T) {
	for _, state := range sessionStates {
		err := fmt.Errorf("send: %w", &domain.TransitionError{From: state, Step: "start a turn"})
		require.Equal(t, state == domain.SessionRunning, errors.Is(err, domain.ErrTurnInProgress), state)
		require.Equal(t, state == domain.SessionClosed, errors.Is(err, domain.ErrClosed), state)
		require.NotErrorIs(t, err, domain.ErrNoSandbox)
	}
}

func TestBusyErrorMatchesItsSentinel(t *testing.T) {
	err := fmt.Errorf("open: %w", &domain.BusyError{Session: someID})
	require.ErrorIs(t, err, domain.ErrBusy)
	require.NotErrorIs(t, err, domain.ErrTurnInProgress)
}

func TestSentinelsSayWhatToDo(t *testing.T) {
	require.Contains(t, domain.ErrNoSandbox.Error(), "domain.Unconfined")
	sentinels := []error{domain.ErrNoSandbox, domain.ErrNoEnforcer, domain.ErrTurnInProgress, domain.ErrClosed, domain.ErrBusy, domain.ErrEventsConsumed}
	for i, a := range sentinels {
		require.NotEmpty(t, a.Error())
		for j, b := range sentinels {
			require.Equal(t, i == j, errors.Is(a, b))
		}
	}
}
