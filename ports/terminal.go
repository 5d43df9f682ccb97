package ports

import (
	"context"
	"io"

	"github.com/caisson-run/caisson/domain"
)

// TerminalSessionFactory starts programs on a terminal of their own: the twin of
// StructuredSessionFactory for what a person drives. It is safe for concurrent
// use.
type TerminalSessionFactory interface {
	// Start starts the line on a new terminal, as the leader of a session whose
	// controlling terminal that is. The line's Sandbox is treated as by
	// StructuredSessionFactory, the trial of it included, and widened by one
	// grant: the new terminal's own device file. The line's Stdin is ignored. ctx governs the whole session:
	// when it ends, the session is cancelled. An error means that no process was
	// left behind.
	Start(ctx context.Context, line domain.SpawnLine, size TerminalSize) (TerminalSession, error)
}

// TerminalSize is the size of a terminal in character cells. The zero value is
// what a terminal has that nobody told its size; programs then take 80 by 24.
type TerminalSize struct {
	Rows, Columns uint16
}

// TerminalSession is a program on a terminal of its own. Its methods are safe
// for concurrent use.
type TerminalSession interface {
	// Read reads what the program prints, raw: escape sequences included, which
	// do what they like to the terminal that shows them. It returns io.EOF once
	// the session is over and everything was read.
	//
	// Write writes what is typed: control characters have their meaning for the
	// terminal, so that a byte 3 interrupts its foreground job.
	io.ReadWriter
	// Receipt says what is enforced.
	Receipt() domain.Receipt
	// Resize changes the terminal's size, and tells the foreground job.
	Resize(size TerminalSize) error
	// Cancel hangs the program up, and kills its tree after a grace. It returns
	// at once. The first cause counts. Cancelling a session that is over does
	// nothing.
	Cancel(cause error)
	// Kill kills the tree without a grace. It returns at once.
	Kill(cause error)
	// Wait returns when the program has ended and its whole process tree is gone,
	// or when ctx ends, with its cause. An error besides is a failure of Caisson's
	// own; the result stands all the same. It may be called many times.
	Wait(ctx context.Context) (TerminalResult, error)
	// Close cancels a session that is not over, waits as Wait does, and frees the
	// terminal: what was not read by then is lost. Closing twice is no error.
	Close(ctx context.Context) error
}

// TerminalResult is how a program on a terminal ended.
type TerminalResult struct {
	Exit domain.ExitStatus
	// Ended is why the program was made to end, nil if it ended by itself.
	Ended error
}
