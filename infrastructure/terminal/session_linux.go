package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
)

// terminalAccess is what a program does with its terminal: job control and the
// modes are set with ioctl(2), for which Landlock has a right since ABI 5.
const terminalAccess = domain.AccessReadFile | domain.AccessWriteFile | domain.AccessIoctlDev

// Start implements ports.TerminalSessionFactory.
func (f *Factory) Start(ctx context.Context, line domain.SpawnLine, size ports.TerminalSize) (_ ports.TerminalSession, err error) {
	if err := line.Validate(); err != nil {
		return nil, err
	}
	// Before there is anything to confine, as a structured session does it.
	probe, err := f.spawner.Probe(ctx, process.ProbeSpec{Line: line, Granted: variable(line.Env, "TMPDIR")})
	if err != nil {
		return nil, err
	}
	ours, theirs, err := open()
	if err != nil {
		return nil, &domain.SpawnError{
			Step: "terminal", Argv0: line.Path, Err: err,
			Remedy: "a pseudoterminal needs /dev/ptmx and a mounted /dev/pts, and one below the limit in /proc/sys/kernel/pty/max",
		}
	}
	defer func() {
		err = errors.Join(err, theirs.Close())
		if err != nil {
			err = errors.Join(err, ours.Close())
		}
	}()
	s := &session{pty: ours, probe: probe, released: make(chan struct{})}
	if err := s.Resize(size); err != nil {
		return nil, &domain.SpawnError{Step: "terminal", Argv0: line.Path, Err: err}
	}
	if line.Sandbox.IsConfined() {
		line.Sandbox = line.Sandbox.WithRules(domain.PathRule{Path: theirs.Name(), Access: terminalAccess, Why: "its own terminal", Resolved: true})
	}
	s.run, err = f.spawner.StartTerminal(ctx, process.TerminalSpec{Line: line, Terminal: theirs, Graces: f.graces})
	if err != nil {
		return nil, err
	}
	go s.endReading()
	return s, nil
}

// variable returns the value of a variable, "" without one.
func variable(env []string, name string) string {
	for _, s := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(s, name+"="); ok {
			return value
		}
	}
	return ""
}

// open makes a pseudoterminal: the side that is read and written here, and the
// terminal itself. (pty(7) calls them master and slave.)
func open() (ours, theirs *os.File, err error) {
	blocking, theirs, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		// The descriptor that was copied.
		err = errors.Join(err, blocking.Close())
		if err != nil {
			err = errors.Join(err, closeAll(ours, theirs))
			ours, theirs = nil, nil
		}
	}()
	// pty.Open leaves the file in blocking mode: a reader of it would keep a
	// thread, and not be woken up by Close.
	fd, err := unix.FcntlInt(blocking.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, theirs, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, theirs, errors.Join(os.NewSyscallError("fcntl(O_NONBLOCK)", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), blocking.Name()), theirs, nil
}

func closeAll(files ...*os.File) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// session implements ports.TerminalSession.
type session struct {
	pty      *os.File
	run      *process.TerminalRun
	probe    domain.Probe
	released chan struct{} // closed when endReading is done
	closing  sync.Once
	closed   error
}

// lastOutput is how long a reader waits for output when there should be none
// any more: all writers are gone, unless something outside of the tree holds the
// terminal open.
const lastOutput = 50 * time.Millisecond

// endReading gives the last reader a bound once the tree is gone, and a writer
// whose bytes nobody takes any more its end.
func (s *session) endReading() {
	defer close(s.released)
	<-s.run.Ended()
	// After Close there is no reader any more.
	_ = s.pty.SetReadDeadline(time.Now().Add(lastOutput))
	_ = s.pty.SetWriteDeadline(time.Now())
}

// Read implements ports.TerminalSession.
func (s *session) Read(p []byte) (int, error) {
	n, err := s.pty.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A read with a deadline in the past does not look into the terminal,
		// and a slow reader may come late.
		if err := s.pty.SetReadDeadline(time.Now().Add(lastOutput)); err != nil {
			return 0, readError(err)
		}
		n, err = s.pty.Read(p)
	}
	return n, readError(err)
}

// readError returns io.EOF for the ways in which a terminal's output ends: the
// last process that had it open is gone (EIO, see pty(7)), or Close came.
func readError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EIO), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF):
		return io.EOF
	}
	return fmt.Errorf("read the terminal: %w", err)
}

// Write implements ports.TerminalSession.
func (s *session) Write(p []byte) (int, error) {
	n, err := s.pty.Write(p)
	if err != nil {
		err = fmt.Errorf("write to the terminal: %w", err)
	}
	return n, err
}

// Receipt implements ports.TerminalSession.
func (s *session) Receipt() domain.Receipt {
	r := s.run.Receipt()
	r.Probe = s.probe
	return r
}

// Resize implements ports.TerminalSession.
func (s *session) Resize(size ports.TerminalSize) error {
	conn, err := s.pty.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	var set error
	err = conn.Control(func(fd uintptr) {
		set = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
	if err = errors.Join(err, os.NewSyscallError("ioctl(TIOCSWINSZ)", set)); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// Cancel implements ports.TerminalSession.
func (s *session) Cancel(cause error) { s.run.Cancel(cause) }

// Kill implements ports.TerminalSession.
func (s *session) Kill(cause error) { s.run.Kill(cause) }

// Wait implements ports.TerminalSession.
func (s *session) Wait(ctx context.Context) (ports.TerminalResult, error) {
	select {
	case <-s.released:
	case <-ctx.Done():
		return ports.TerminalResult{}, context.Cause(ctx)
	}
	exit, cause, fault := s.run.Result()
	return ports.TerminalResult{Exit: exit, Ended: cause}, fault
}

// Close implements ports.TerminalSession.
func (s *session) Close(ctx context.Context) error {
	s.Cancel(domain.ErrClosed)
	select {
	case <-s.released:
	case <-ctx.Done():
		return fmt.Errorf("close the terminal session: %w", context.Cause(ctx))
	}
	s.closing.Do(func() { s.closed = s.pty.Close() })
	return s.closed
}
