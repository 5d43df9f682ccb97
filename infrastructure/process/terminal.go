package process

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// TerminalSpec is a process on a terminal.
type TerminalSpec struct {
	// Line is what to start. Of its sandbox's limits the one on the wall clock
	// bounds it. Its Stdin is ignored.
	Line domain.SpawnLine
	// Terminal becomes the child's stdin, stdout and stderr, and the controlling
	// terminal of its session. It stays the caller's to close.
	Terminal *os.File
	// Graces are the waits at the end.
	Graces Graces
}

// TerminalRun is a running process on a terminal, and its tree. Who has the
// other side of the terminal reads and writes.
type TerminalRun struct {
	child   *child
	graces  Graces
	exited  chan struct{} // the main process has ended
	ended   chan struct{} // everything has
	stop    chan error    // the first cause to end it
	kill    chan struct{} // closed to end it without a grace
	killing sync.Once
	detach  func() bool // from the context

	exit  domain.ExitStatus
	cause error
	fault error
}

// StartTerminal starts a process on a terminal: confined, with a keeper where
// the host allows one, or natively where the line says so. ctx governs the whole
// run: when it ends, the tree is hung up, and killed after a grace. After an
// error there is no process, no thread, no descriptor and no goroutine left.
func (s *Spawner) StartTerminal(ctx context.Context, spec TerminalSpec) (*TerminalRun, error) {
	tty := spec.Terminal
	c, err := s.start(ctx, spec.Line, stdio{tty, tty, tty}, startOptions{keeper: true, terminal: true})
	if err != nil {
		return nil, err
	}
	if err := c.resume(); err != nil {
		return nil, errors.Join(err, c.destroy())
	}
	r := &TerminalRun{
		child: c, graces: spec.Graces.withDefaults(), exited: make(chan struct{}), ended: make(chan struct{}),
		stop: make(chan error, 1), kill: make(chan struct{}),
	}
	go func() {
		defer close(r.exited)
		// The only error is that the watch was closed, at the end.
		_ = c.awaitExit()
	}()
	r.detach = context.AfterFunc(ctx, func() { r.Cancel(context.Cause(ctx)) })
	go r.supervise(spec.Line.Sandbox.Limits().WallClock)
	return r, nil
}

// Receipt says what is enforced.
func (r *TerminalRun) Receipt() domain.Receipt { return r.child.receipt }

// Cancel hangs the process up, and kills its tree after a grace. It returns at
// once. The first cause counts; nil is context.Canceled.
func (r *TerminalRun) Cancel(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	select {
	case r.stop <- cause:
	default:
	}
}

// Kill kills the tree without a grace. It returns at once.
func (r *TerminalRun) Kill(cause error) {
	// In this order, so that it is not hung up first.
	r.killing.Do(func() { close(r.kill) })
	r.Cancel(cause)
}

// Ended is closed when the tree is gone and everything but the terminal is
// released.
func (r *TerminalRun) Ended() <-chan struct{} { return r.ended }

// Result tells, after Ended, how the main process ended, why it was made to end
// (nil if it ended by itself), and what failed in the machinery.
func (r *TerminalRun) Result() (exit domain.ExitStatus, cause, fault error) {
	<-r.ended
	return r.exit, r.cause, r.fault
}

// supervise waits for the end or brings it about, and cleans up.
func (r *TerminalRun) supervise(limit time.Duration) {
	defer close(r.ended)
	wall, stopWall := after(limit)
	defer stopWall()
	grace := time.NewTimer(forever)
	defer grace.Stop()
	look := time.NewTicker(threadLook)
	defer look.Stop()
	stop := r.stop
	end := func(cause error) {
		r.cause, stop, wall = cause, nil, nil
		if isClosed(r.kill) {
			return
		}
		// What a terminal does when its line goes down. An interactive shell
		// ignores SIGTERM; what is stopped hears nothing before SIGCONT.
		r.child.signalGroup(ports.SignalHangup)
		r.child.continueGroup()
		grace.Reset(r.graces.Terminate)
	}
running:
	for {
		select {
		case <-r.exited:
			break running
		case cause := <-stop:
			end(cause)
		case <-wall:
			end(&domain.TimeoutError{Limit: limit})
		case <-look.C:
			r.child.reapThreads()
		case <-grace.C:
			break running
		case <-r.kill:
			if r.cause == nil {
				r.cause = <-r.stop
			}
			break running
		}
	}
	r.detach()
	errs := []error{r.child.kill()}
	if awaitOr(r.exited, nil, treeGoneLimit, r.child.reapThreads) {
		exit, err := r.child.status()
		r.exit = exit
		errs = append(errs, err)
	} else {
		errs = append(errs, &TreeLeftError{Pids: []int{r.child.proc.Pid}})
	}
	errs = append(errs, r.child.release())
	<-r.exited
	r.fault = errors.Join(errs...)
}
