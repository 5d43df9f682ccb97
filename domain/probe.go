package domain

import (
	"fmt"
	"strings"
)

// ProbeAttempt names one thing that is tried under a confinement before a
// session is opened with it.
type ProbeAttempt string

// The attempts, in the order in which they are made.
const (
	ProbeGrantedWrite  ProbeAttempt = "granted write"
	ProbeDeniedRead    ProbeAttempt = "denied read"
	ProbeDeniedWrite   ProbeAttempt = "denied write"
	ProbeDeniedConnect ProbeAttempt = "denied connect"
)

// ProbeAttempts returns every attempt, in order.
func ProbeAttempts() []ProbeAttempt {
	return []ProbeAttempt{ProbeGrantedWrite, ProbeDeniedRead, ProbeDeniedWrite, ProbeDeniedConnect}
}

// ProbeResult says what became of an attempt. There is none for an attempt that
// went wrong: such a session does not open.
type ProbeResult string

// The results.
const (
	// ProbeHeld: the kernel did what the plan says.
	ProbeHeld ProbeResult = "held"
	// ProbeNotAsked: the plan denies nothing of the kind, or the attempt would
	// not have succeeded without a sandbox either.
	ProbeNotAsked ProbeResult = "not asked"
)

// ProbeCheck is one attempt and what became of it.
type ProbeCheck struct {
	Attempt ProbeAttempt
	// Target is the path or the address that was tried, "" if none was.
	Target string
	Result ProbeResult
	// Detail is the kernel's answer to what it denied, or why it was not asked.
	Detail string
}

// Probe says how a confinement was tried when its session was opened. The zero
// value says that it was not, as for a single command.
type Probe struct {
	// Skipped says why nothing was tried, "" otherwise.
	Skipped string
	// Checks has every attempt once, in order, unless nothing was tried.
	Checks []ProbeCheck
}

// String is how a receipt's line ends; "" for the zero value.
func (p Probe) String() string {
	if p.Skipped != "" {
		return "not probed: " + printable(p.Skipped)
	}
	var held int
	var not []string
	for _, c := range p.Checks {
		if c.Result == ProbeHeld {
			held++
		} else {
			not = append(not, printable(string(c.Attempt))+" not asked")
		}
	}
	if len(p.Checks) == 0 {
		return ""
	}
	return strings.Join(append([]string{fmt.Sprintf("probed: %d of %d held", held, len(p.Checks))}, not...), ", ")
}

// ProbeError refuses to open a session, because its confinement was tried and
// did not do what the plan says. No child exists.
type ProbeError struct {
	Attempt ProbeAttempt
	// Target is the path or the address that was tried.
	Target   string
	Enforcer string
	ABI      int // of Landlock, 0 if not used
	Remedy   string
	// Err is the kernel's answer; nil if it let through what it had to deny.
	Err error
}

func (e *ProbeError) Error() string {
	s := fmt.Sprintf("the sandbox was tried and does not hold: %s of %s ", printable(string(e.Attempt)), quote(e.Target))
	switch {
	case e.Err == nil:
		s += "succeeded"
	case e.Attempt == ProbeGrantedWrite:
		s += "failed: " + e.Err.Error()
	default:
		s += "proves nothing: " + e.Err.Error()
	}
	s += " [" + printable(e.Enforcer)
	if e.ABI > 0 {
		s += fmt.Sprintf(", Landlock ABI %d", e.ABI)
	}
	return withRemedy(s+"]", e.Remedy)
}

func (e *ProbeError) Unwrap() error { return e.Err }
