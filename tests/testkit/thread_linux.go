package testkit

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThrowawayThread runs f on a thread that ends with it, so that f may restrict
// its thread for good. f must not end the test. The main thread cannot end, so
// it is held and another one used.
func OnThrowawayThread[T any](f func() T) T {
	result := make(chan T)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			result <- OnThrowawayThread(f)
			runtime.UnlockOSThread() //nolint:forbidigo // the main thread, on which nothing was restricted
			return
		}
		result <- f() // never unlocked: the runtime ends the thread
	}()
	return <-result
}
