package process

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

var _ ports.CommandRunner = (*Spawner)(nil)

// Run implements ports.CommandRunner. There is no keeper, so processes that
// the command leaves behind live on, confined; the receipt says so. The command
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
	closeOurs := func() error {
		var errs []error
		for _, f := range ours {
			errs = append(errs, f.Close())
		}
		ours = nil
		return errors.Join(errs...)
	}
	var readers []*os.File
	defer func() {
		err = errors.Join(err, closeOurs())
		for _, f := range readers {
			err = errors.Join(err, f.Close())
		}
	}()
	stdioError := func(err error) error {
		return &domain.SpawnError{Step: "stdio", Argv0: line.Path, Err: err}
	}

	var feed *os.File
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
				_, _ = io.Copy(out, from)
			})
		}
	}

	c, err := s.start(ctx, line, files, false)
	if err != nil {
		if feed != nil {
			err = errors.Join(err, feed.Close())
		}
		return ports.CommandResult{}, err
	}
	c.receipt.Tree = domain.TreeNone
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
	s.followCommand(ctx, c, exited, std.Signals)
	result := ports.CommandResult{Receipt: c.receipt, Exit: c.status()}
	if !waitFor(&copying, DefaultDrain) {
		for _, f := range readers {
			// Something the command left behind holds the output open.
			_ = f.SetReadDeadline(time.Now())
		}
		copying.Wait()
	}
	if feed != nil {
		_ = feed.Close() // the copy may have closed it
	}
	return result, errors.Join(err, c.release())
}

// followCommand passes signals on until the command has ended, and ends it when
// the context does.
func (s *Spawner) followCommand(ctx context.Context, c *child, exited <-chan struct{}, signals <-chan ports.Signal) {
	graces := Graces{}.withDefaults()
	done := ctx.Done()
	kill := time.NewTimer(forever)
	defer kill.Stop()
	look := time.NewTicker(threadLook)
	defer look.Stop()
	for {
		select {
		case <-exited:
			return
		case sig, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			c.signalGroup(sig)
		case <-done:
			done = nil
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
