package escape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// Ended is how a child ended.
type Ended struct {
	// Stdout is all that it wrote.
	Stdout string
	Exit   domain.ExitStatus
}

// Target is what a suite is run against.
type Target struct {
	// Program is the path of a program that calls [Host].
	Program string
	// Plan is the plan of the confined children, as [Stage.Widen] made it.
	Plan domain.SandboxPlan
	// Run runs a command in dir to its end: under the target's plan, or without
	// any sandbox. Its environment is of no matter. When ctx ends, the command is
	// ended. Run is called concurrently.
	Run func(ctx context.Context, confined bool, dir string, argv []string) (Ended, error)
	// Properties says what becomes of the plan's properties. An attempt that gets
	// through although it is about a property that is listed here as waived is
	// reported as waived. Nil takes every property to be enforced.
	Properties []domain.PropertyStatus
}

// Verdict is what is said about an attempt.
type Verdict string

// The verdicts.
const (
	// Held: the companion got through and the confined child was denied.
	Held Verdict = "held"
	// Worked: ordinary work succeeded.
	Worked Verdict = "worked"
	// Leaked: the confined child got through.
	Leaked Verdict = "LEAKED"
	// Broken: ordinary work failed under the sandbox.
	Broken Verdict = "BROKEN"
	// Unclear: the confined child neither got through nor was denied.
	Unclear Verdict = "UNCLEAR"
	// Limit: it got through, as SECURITY.md says that it does.
	Limit Verdict = "stated limit"
	// Granted: it got through because the plan grants it.
	Granted Verdict = "granted by the plan"
	// Waived: it got through, and the plan waives the property that it is about.
	Waived Verdict = "waived by the plan"
	// NotProvable: the companion did not get through here.
	NotProvable Verdict = "not provable here"
)

// Failed reports whether the verdict is about something that does not hold.
func (v Verdict) Failed() bool { return v == Leaked || v == Broken || v == Unclear }

// Result is the outcome of one attempt.
type Result struct {
	Attempt Attempt
	Verdict Verdict
	// Detail is what the kernel answered, or what went wrong.
	Detail string
}

// String is the result as one line.
func (r Result) String() string {
	return strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", r.Attempt.Name, r.Verdict, r.Detail), ": ")
}

// Report is the outcome of a suite.
type Report struct {
	Results []Result
	// Took is how long the suite ran.
	Took time.Duration
}

// Count returns the number of attempts with one of the verdicts.
func (r Report) Count(verdicts ...Verdict) (n int) {
	for _, result := range r.Results {
		if slices.Contains(verdicts, result.Verdict) {
			n++
		}
	}
	return n
}

// Failures returns the results that do not hold.
func (r Report) Failures() (failed []Result) {
	for _, result := range r.Results {
		if result.Verdict.Failed() {
			failed = append(failed, result)
		}
	}
	return failed
}

// ErrNothingProvable is that no attempt got through without a sandbox, so that
// the suite says nothing.
var ErrNothingProvable = errors.New("no attempt gets through here without a sandbox: nothing is proved")

// LeakError names the attempts that do not hold.
type LeakError struct{ Results []Result }

func (e *LeakError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d attempts do not hold:", len(e.Results))
	for _, r := range e.Results {
		b.WriteString("\n" + r.String())
	}
	return b.String()
}

// Err returns nil if everything holds: a *[LeakError] if something does not, and
// [ErrNothingProvable] if nothing was held.
func (r Report) Err() error {
	if failed := r.Failures(); len(failed) > 0 {
		return &LeakError{Results: failed}
	}
	if r.Count(Held) == 0 {
		return ErrNothingProvable
	}
	return nil
}
