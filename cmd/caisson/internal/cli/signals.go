package cli

import (
	"context"
	"fmt"
	"sync/atomic"
)

// watch turns signals into the end of a run: the first cancels its context, the
// second ends the wait for what the first began.
type watch struct {
	ctx    context.Context
	second chan struct{}
	stop   func()
	// diesWithUs says that the turn's processes die when this one does, so that
	// it may go without waiting for them.
	diesWithUs atomic.Bool
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
				case w.diesWithUs.Load():
					close(w.second)
					return
				default:
					fmt.Fprintln(a.Stderr, "caisson: the turn is about to be killed; without a keeper its processes would outlive Caisson")
				}
			}
		}
	}()
	return w
}
