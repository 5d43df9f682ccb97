package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/policyfile"
)

// The exit codes of every command but exec.
const (
	exitOK        = 0
	exitFailed    = 1 // the agent failed, was denied, or exited; or Caisson failed
	exitUsage     = 2
	exitRefused   = 3 // the sandbox cannot be enforced
	exitNoAgent   = 4 // the agent cannot be started, or its session is in use
	exitProtocol  = 5
	exitTimedOut  = 124
	exitCancelled = 130
)

// The exit codes of exec beside those of the command itself, as env(1),
// nice(1) and timeout(1) have them.
const (
	exitExecFailed    = 125 // Caisson failed or refused
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalBase    = 128
)

// outcomeCode is the exit code for a turn that ended.
func outcomeCode(o domain.Outcome) int {
	switch o {
	case domain.OutcomeCompleted:
		return exitOK
	case domain.OutcomeProtocolError:
		return exitProtocol
	case domain.OutcomeTimedOut:
		return exitTimedOut
	case domain.OutcomeCancelled:
		return exitCancelled
	}
	return exitFailed
}

// usageError is a fault in the arguments.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// coded gives an error an exit code of its own.
type coded struct {
	error
	code int
}

func (e coded) Unwrap() error { return e.error }

// quiet is an error about which nothing more is to be said.
type quiet struct{ code int }

func (quiet) Error() string { return "" }

// interrupted is why a run is cancelled when a signal comes.
type interrupted struct{ signal string }

func (e interrupted) Error() string { return "stopped by a signal: " + e.signal }

// exitCode returns the exit code for an error. What cobra itself complains
// about comes without a type of ours, and is a fault in the arguments; the
// errors of what a command does are marked by [failure].
func exitCode(err error) int {
	var (
		code      coded
		silent    quiet
		usage     usageError
		did       failure
		invalid   *domain.InvalidError
		strict    *domain.StrictnessError
		enforce   *domain.EnforcementError
		probe     *domain.ProbeError
		changed   *domain.PlanChangedError
		noAgent   *domain.AgentNotFoundError
		spawn     *domain.SpawnError
		interrupt interrupted
		policy    *policyfile.Error
		untrusted *policyfile.ChangedError
	)
	switch {
	case errors.As(err, &code):
		return code.code
	case errors.As(err, &silent):
		return silent.code
	case errors.As(err, &interrupt), errors.Is(err, context.Canceled):
		return exitCancelled
	case errors.As(err, &strict), errors.As(err, &enforce), errors.As(err, &probe), errors.As(err, &changed), errors.As(err, &untrusted), errors.Is(err, domain.ErrNoEnforcer):
		return exitRefused
	case errors.As(err, &noAgent), errors.As(err, &spawn), errors.Is(err, domain.ErrBusy):
		return exitNoAgent
	case errors.As(err, &usage), errors.As(err, &invalid), errors.As(err, &policy), !errors.As(err, &did):
		return exitUsage
	}
	return exitFailed
}

// noWaiver leaves the flag out of a refusal's remedies that the command does not
// have.
func noWaiver(err error, command string) error {
	strict := (*domain.StrictnessError)(nil)
	if !errors.As(err, &strict) {
		return err
	}
	return unwaivable{strict, command}
}

type unwaivable struct {
	*domain.StrictnessError
	command string
}

func (e unwaivable) Error() string {
	s := "the sandbox cannot be enforced here:"
	for _, m := range e.Missing {
		s += fmt.Sprintf("\n  %s: %s", m.Property, m.Detail)
	}
	return s + "\n" + e.command + " waives nothing; run, exec and shell do without what --waive names"
}

func (e unwaivable) Unwrap() error { return e.StrictnessError }

// failure marks an error of what a command does, as against its arguments.
type failure struct{ error }

func (e failure) Unwrap() error { return e.error }
