//go:build !linux || !(amd64 || arm64)

package escape

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/caisson-run/caisson/domain"
)

// child is an attempt's side. There is none on this system.
type child struct{}

// Stage is the host's side of a suite. There is none on this system.
type Stage struct{}

func unsupported() error {
	return fmt.Errorf("there is no escape suite for %s on %s", runtime.GOOS, runtime.GOARCH)
}

// NewStage fails: the attempts are made of the system calls of Linux, on the
// architectures that the sandbox has a filter for.
func NewStage(string) (*Stage, error) { return nil, unsupported() }

// Close does nothing.
func (*Stage) Close() error { return nil }

// Widen returns the plan as it is.
func (*Stage) Widen(plan domain.SandboxPlan) domain.SandboxPlan { return plan }

// Plan returns no plan.
func (*Stage) Plan(string) domain.SandboxPlan { return domain.SandboxPlan{} }

// Rules returns none.
func (*Stage) Rules() []domain.PathRule { return nil }

// ConnectTCP returns none.
func (*Stage) ConnectTCP() []uint16 { return nil }

// Destinations returns none.
func (*Stage) Destinations() []netip.AddrPort { return nil }

// Workspace returns "".
func (*Stage) Workspace() string { return "" }

// Run fails.
func (*Stage) Run(context.Context, Target, []Attempt) (Report, error) {
	return Report{}, unsupported()
}

func attempts() []Attempt { return nil }

func unixDestinationAttempts() []Attempt { return nil }

// UnixDestination returns "".
func (*Stage) UnixDestination() string { return "" }

// Host does nothing.
func Host() {}

// RunUnconfined fails.
func RunUnconfined(context.Context, string, []string) (Ended, error) { return Ended{}, unsupported() }
