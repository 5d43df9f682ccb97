package ports

import (
	"context"
	"io"

	"github.com/caisson-run/caisson/domain"
)

// CommandRunner runs one command under a plan, with its stdio passed through.
// It is safe for concurrent use.
type CommandRunner interface {
	// Run starts the line and waits for its end. The line's Sandbox is treated
	// as by StructuredSessionFactory. When ctx ends, the command gets
	// SIGTERM, and SIGKILL after a grace. The line's own Stdin is ignored.
	Run(ctx context.Context, line domain.SpawnLine, stdio Stdio) (CommandResult, error)
}

// Stdio is what a command reads and writes. A nil field is /dev/null. An
// *os.File is handed to the command itself, anything else is copied.
type Stdio struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
	// Signals are passed on to the command as they come; nil passes none.
	Signals <-chan Signal
	// Started is called once with the receipt: before a confined command runs its
	// first instruction, and right after the start of an unconfined one. Nil is
	// allowed.
	Started func(domain.Receipt)
}

// Signal is a signal to pass on to a command.
type Signal int

// The signals (POSIX numbers, the same on all systems that Caisson runs on).
const (
	SignalHangup    Signal = 1
	SignalInterrupt Signal = 2
	SignalQuit      Signal = 3
	SignalTerminate Signal = 15
)

// CommandResult is how a command ended.
type CommandResult struct {
	Receipt domain.Receipt
	Exit    domain.ExitStatus
	// Ended is why the command was made to end, the context's cause; nil if it
	// ended by itself.
	Ended error
	// CleanUp is what went wrong around the command, such as a writer that did
	// not take its output, or files that something left running keeps making; nil
	// if nothing did. The command's own end stands all the same.
	CleanUp error
}
