//go:build !linux

package terminal

import (
	"context"
	"errors"
	"runtime"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Start refuses: the child could not be given a controlling terminal and be
// ended with its whole tree.
func (f *Factory) Start(_ context.Context, line domain.SpawnLine, _ ports.TerminalSize) (ports.TerminalSession, error) {
	return nil, &domain.SpawnError{
		Step: "terminal", Argv0: line.Path, Err: errors.ErrUnsupported, Remedy: "terminal sessions need Linux, this is " + runtime.GOOS,
	}
}
