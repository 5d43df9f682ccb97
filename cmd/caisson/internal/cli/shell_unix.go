//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/ports"
)

// terminalSize returns the size of a person's terminal.
func terminalSize(f *os.File) ports.TerminalSize {
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return ports.TerminalSize{}
	}
	return ports.TerminalSize{Rows: uint16(rows), Columns: uint16(columns)}
}

// lastPrint is how long the last output may take after a second signal.
const lastPrint = time.Second

// connect connects a person's terminal with the program's until the program's
// end. The person's terminal is raw meanwhile, so that every key reaches the
// program; its mode is put back however this ends, a panic included.
func (a *app) connect(ctx context.Context, t *application.Terminal, in, out *os.File) (_ ports.TerminalResult, err error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return ports.TerminalResult{}, fmt.Errorf("make the terminal raw: %w", err)
	}
	var once sync.Once
	restore := func() {
		once.Do(func() { err = errors.Join(err, term.Restore(int(in.Fd()), before)) })
	}
	defer restore()
	input, err := newInput(in)
	if err != nil {
		return ports.TerminalResult{}, err
	}
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	defer signal.Stop(sizes)
	// It may have changed before anybody listened.
	_ = t.Resize(terminalSize(in))

	var flows sync.WaitGroup
	flow := func(f func()) {
		flows.Go(func() {
			// A panic ends the process without the deferred calls of others.
			defer func() {
				if p := recover(); p != nil {
					restore()
					panic(p)
				}
			}()
			f()
		})
	}
	ended, second := make(chan struct{}), make(chan struct{})
	var printing error
	printed := make(chan struct{})
	flow(func() {
		defer close(printed)
		if _, printing = io.Copy(out, t); printing != nil {
			t.Cancel(fmt.Errorf("write to the terminal: %w", printing))
		}
	})
	flow(func() {
		// A program that is gone needs no input, and a terminal that is gone is
		// a hang-up.
		if _, err := io.Copy(t, input); err == nil {
			t.Cancel(errors.New("the terminal is gone"))
		}
	})
	flow(func() { a.tend(t, in, sizes, ended, second) })

	result, err := t.Wait(context.WithoutCancel(ctx))
	select {
	case <-printed:
	case <-second:
		// A terminal that takes nothing any more must not keep the process.
		select {
		case <-printed:
		case <-time.After(lastPrint):
			return result, err
		}
	}
	close(ended)
	err = errors.Join(err, input.stop())
	flows.Wait()
	return result, errors.Join(err, input.close())
}

// tend passes the size of the window on, and turns signals into the end of the
// program: the first hangs it up, the second, which it tells of, kills it.
func (a *app) tend(t *application.Terminal, in *os.File, sizes <-chan os.Signal, ended <-chan struct{}, second chan<- struct{}) {
	told := false
	for {
		select {
		case <-ended:
			return
		case <-sizes:
			// A terminal that is gone has no size.
			_ = t.Resize(terminalSize(in))
		case sig := <-a.Signals:
			switch {
			case !told:
				t.Cancel(interrupted{sig.String()})
			case second != nil:
				t.Kill(interrupted{sig.String()})
				close(second)
				second = nil
			}
			told = true
		}
	}
}

// input reads a terminal in a way that can be stopped, which a plain read of a
// file that blocks cannot. The mode of the file is not ours to change: others
// have it too.
type input struct {
	file       *os.File
	wake, woke *os.File
}

func newInput(file *os.File) (*input, error) {
	woke, wake, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &input{file: file, wake: wake, woke: woke}, nil
}

// errStopped ends a read that was stopped.
var errStopped = errors.New("stopped")

// Read reads what is there, and waits if nothing is. The end of the input is a
// terminal that was hung up.
func (i *input) Read(p []byte) (int, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(i.file.Fd()), Events: unix.POLLIN}, {Fd: int32(i.woke.Fd()), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return 0, errStopped
		}
		n, err := i.file.Read(p)
		if errors.Is(err, unix.EIO) { // hung up, or not in the foreground any more
			err = io.EOF
		}
		return n, err
	}
}

// stop ends a read that waits, and every later one.
func (i *input) stop() error { return i.wake.Close() }

// close frees it, once nobody reads any more.
func (i *input) close() error { return i.woke.Close() }
