package process

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// threadGoneLimit bounds the wait for the end of a throwaway thread, which
// takes microseconds. A thread that is still there by then refuses the spawn.
const threadGoneLimit = 10 * time.Second

// onThrowawayThread runs fn on an OS thread that nothing else ever runs on,
// and returns when that thread is gone. fn may restrict its thread for good.
func onThrowawayThread(fn func() error) error {
	type outcome struct {
		tid int
		err error
	}
	done := make(chan outcome, 1)
	work := func() { done <- outcome{unix.Gettid(), fn()} }

	go func() {
		runtime.LockOSThread() // never unlocked, see below
		if unix.Gettid() != unix.Getpid() {
			work()
			// "If the calling goroutine exits without unlocking the thread, the
			// thread will be terminated" (package runtime, LockOSThread).
			return
		}
		// The runtime cannot end the main thread, only park it for ever, and
		// /proc/<pid> would show its restrictions as those of the process. Keep
		// holding it, so that the work gets another one, and give it back
		// unharmed.
		released := make(chan struct{})
		go func() {
			defer close(released)
			runtime.LockOSThread()
			work()
		}()
		<-released
		runtime.UnlockOSThread()
	}()

	o := <-done
	if err := awaitThreadGone(o.tid); err != nil {
		return errors.Join(o.err, err)
	}
	return o.err
}

// awaitThreadGone returns when the process has no thread of that id.
func awaitThreadGone(tid int) error {
	pid := unix.Getpid()
	deadline := time.Now().Add(threadGoneLimit)
	for pause := 5 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		switch err := unix.Tgkill(pid, tid, 0); {
		case errors.Is(err, unix.ESRCH):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the spawning thread %d is still there after %s", tid, threadGoneLimit)
		}
		// Yield first: the thread is usually gone after one switch.
		runtime.Gosched()
		time.Sleep(pause)
	}
}
