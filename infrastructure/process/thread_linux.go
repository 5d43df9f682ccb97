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

// threadGoneSpin is how long to look again at once: the end usually takes less
// than the shortest sleep.
const threadGoneSpin = 100 * time.Microsecond

// onThrowawayThread runs fn on an OS thread that nothing else ever runs on,
// and returns when that thread is gone. fn may restrict its thread for good.
//
// The stages run in the caller's flow, one after the other: fn lets each begin
// by a call of next, and what is left begins when fn is done. It takes a good
// part of a spawn's time to wake the caller up and to end the thread, so what
// need not be done on the thread is done meanwhile.
func onThrowawayThread(fn func(next func()) error, stages ...func()) error {
	type outcome struct {
		tid int
		err error
	}
	done := make(chan outcome, 1)
	begin := make(chan struct{}, len(stages))
	work := func() {
		defer close(begin)
		done <- outcome{unix.Gettid(), fn(func() { begin <- struct{}{} })}
	}

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

	for _, stage := range stages {
		<-begin
		stage()
	}
	o := <-done
	if err := awaitThreadGone(o.tid); err != nil {
		return errors.Join(o.err, err)
	}
	return o.err
}

// haveThreadReady makes the runtime have a thread to spare. A throwaway thread uses
// one up, and the next spawn would wait until the kernel has made another; now
// there is a child to wait for anyway.
func haveThreadReady() {
	// The runtime needs a second thread while a goroutine waits that keeps its own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	woken := make(chan struct{})
	go close(woken)
	<-woken
}

// awaitThreadGone returns when the process has no thread of that id.
func awaitThreadGone(tid int) error {
	pid := unix.Getpid()
	begun := time.Now()
	for pause := 20 * time.Microsecond; ; {
		if err := unix.Tgkill(pid, tid, 0); errors.Is(err, unix.ESRCH) {
			return nil
		}
		switch waited := time.Since(begun); {
		case waited > threadGoneLimit:
			return fmt.Errorf("the spawning thread %d is still there after %s", tid, threadGoneLimit)
		case waited < threadGoneSpin:
			runtime.Gosched()
		default:
			time.Sleep(pause)
			pause = min(2*pause, time.Millisecond)
		}
	}
}
