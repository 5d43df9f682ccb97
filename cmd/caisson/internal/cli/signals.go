package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-run/caisson/application"
)

// watch turns signals into the end of a run: the first cancels its context, the
// second kills what the first asked to stop.
type watch struct {
	ctx    context.Context
	second chan struct{} // closed by the second signal
	stop   func()
}

func (a *app) watch(ctx context.Context) *watch {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{ctx: ctx, second: make(chan struct{})}
	stopped := make(chan struct{})
	done := make(chan struct{})
	w.stop = func() {
		close(stopped)
		<-done
		cancel(nil)
	}
	go func() {
		defer close(done)
		told := false
		for {
			select {
			case <-stopped:
				return
			case sig := <-a.Signals:
				switch {
				case !told:
					told = true
					cancel(interrupted{sig.String()})
					fmt.Fprintln(a.Stderr, "caisson: stopping the turn; once more to kill it")
				default:
					close(w.second)
					return
				}
			}
		}
	}()
	return w
}

// errKilled is why a turn is killed that was asked to stop before.
var errKilled = errors.New("interrupted twice")

// killOnSecond kills the turn at the second signal, until the function that it
// returns is called.
func (w *watch) killOnSecond(turn *application.Turn) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-w.second:
			turn.Kill(errKilled)
		case <-over:
		}
	}()
	return func() { close(over); <-done }
}

// killLimit is how long a run may take to end after the second signal. It takes
// milliseconds, unless nobody takes its output any more: then Caisson goes, and
// with it what is left.
const killLimit = 3 * time.Second

// watchPlain cancels the context at the first signal, of a command that runs no
// turn.
func (a *app) watchPlain(ctx context.Context) *watch {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case sig := <-a.Signals:
			cancel(interrupted{sig.String()})
		case <-stopped:
		}
	}()
	return &watch{ctx: ctx, stop: func() {
		close(stopped)
		<-done
		cancel(nil)
	}}
}
