package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

var _ ports.CommandRunner = (*Spawner)(nil)

// Run implements ports.CommandRunner. There is no keeper, so processes that
// the command leaves behind live on, confined, unless the plan's limits put them
// into a group; the receipt says which. The command
// is a session leader without a terminal of its own: it reads and writes the
// terminal that it was given, but cannot push input into it.
//
// Run waits for In to be read only if it is an *os.File: another reader is read
// by a goroutine that ends at the reader's next return.
func (s *Spawner) Run(ctx context.Context, line domain.SpawnLine, std ports.Stdio) (_ ports.CommandResult, err error) {
	var (
		files   stdio
		ours    []*os.File // to close once the child has its copies
		copying sync.WaitGroup
		copies  []func()
	)
	ended := make(chan struct{}) // the command has
	var copyErrs [2]error
	closeOurs := func() error {
		var errs []error
		for _, f := range ours {
			errs = append(errs, f.Close())
		}
		ours = nil
		return errors.Join(errs...)
	}
	var readers []*os.File
	var feed *os.File
	defer func() {
		err = errors.Join(err, closeOurs())
		for _, f := range readers {
			_ = f.Close() // the copy may have closed it
		}
		if feed != nil {
			_ = feed.Close() // the same
		}
	}()
	stdioError := func(err error) error {
		return &domain.SpawnError{Step: "stdio", Argv0: line.Path, Err: err}
	}

	switch in := std.In.(type) {
	case nil:
		if files[0], err = os.Open(os.DevNull); err != nil {
			return ports.CommandResult{}, stdioError(err)
		}
		ours = append(ours, files[0])
	case *os.File:
		files[0] = in
	default:
		if files[0], feed, err = os.Pipe(); err != nil {
			return ports.CommandResult{}, stdioError(err)
		}
		ours = append(ours, files[0])
		copies = append(copies, func() {
			// The command may not want all of its input.
			_, _ = io.Copy(feed, in)
			_ = feed.Close()
		})
	}
	for i, w := range []io.Writer{std.Out, std.Err} {
		switch out := w.(type) {
		case nil:
			if files[i+1], err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
				return ports.CommandResult{}, stdioError(err)
			}
			ours = append(ours, files[i+1])
		case *os.File:
			files[i+1] = out
		default:
			var from *os.File
			if from, files[i+1], err = os.Pipe(); err != nil {
				return ports.CommandResult{}, stdioError(err)
			}
			ours = append(ours, files[i+1])
			readers = append(readers, from)
			copying.Add(1)
			copies = append(copies, func() {
				defer copying.Done()
				copyErrs[i] = copyOutput(out, from, ended)
			})
		}
	}

	c, err := s.start(ctx, line, files, startOptions{})
	if err != nil {
		return ports.CommandResult{}, err
	}
	if c.group == nil {
		c.receipt.Tree = domain.TreeNone
	}
	if std.Started != nil {
		std.Started(c.receipt)
	}
	if err := c.resume(); err != nil {
		return ports.CommandResult{}, errors.Join(err, c.destroy())
	}
	err = closeOurs()
	for _, run := range copies {
		go run()
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		// The only error is that the watch was closed.
		_ = c.awaitExit()
	}()
	result := ports.CommandResult{Receipt: c.receipt, Ended: s.followCommand(ctx, c, exited, std.Signals)}
	result.Exit, err = c.status()
	if c.group != nil {
		// What is limited as one ends as one: nothing keeps the limits of a group
		// that is gone.
		err = errors.Join(err, c.killWithoutKeeper())
	}
	close(ended)
	for _, f := range readers {
		// Something the command left behind may hold the output open.
		_ = f.SetReadDeadline(time.Now().Add(DefaultDrain))
	}
	copying.Wait()
	result.CleanUp = errors.Join(copyErrs[:]...)
	return result, errors.Join(err, c.release())
}

// copyOutput copies a command's output. It ends with the output; when the
// writer fails, and then the command's next write fails too; or once the command
// has ended and the deadline that was set then has passed with nothing left in
// the pipe, however slow the writer is.
func copyOutput(out io.Writer, from *os.File, ended <-chan struct{}) error {
	defer from.Close()
	buf := make([]byte, 32<<10)
	for again := false; ; {
		n, err := from.Read(buf)
		if n > 0 {
			again = false
			if _, err := out.Write(buf[:n]); err != nil {
				return fmt.Errorf("pass the command's output on: %w", err)
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && !again:
			// A read with a deadline in the past does not look into the pipe.
			<-ended
			again = true
			if err := from.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// followCommand passes signals on until the command has ended, and ends it when
// the context does; then it returns the context's cause.
func (s *Spawner) followCommand(ctx context.Context, c *child, exited <-chan struct{}, signals <-chan ports.Signal) (cause error) {
	graces := Graces{}.withDefaults()
	done := ctx.Done()
	kill := time.NewTimer(forever)
	defer kill.Stop()
	look := time.NewTicker(threadLook)
	defer look.Stop()
	for {
		select {
		case <-exited:
			return cause
		case sig, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			c.signalGroup(sig)
		case <-done:
			done, cause = nil, context.Cause(ctx)
			c.signalGroup(ports.SignalTerminate)
			kill.Reset(graces.Terminate)
		case <-look.C:
			c.reapThreads()
		case <-kill.C:
			// What the walk does not find is not the command any more.
			_ = c.kill()
		}
	}
}

// waitFor waits for the group, but not longer than d.
func waitFor(group *sync.WaitGroup, d time.Duration) bool {
	done := make(chan struct{})
	go func() { defer close(done); group.Wait() }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
