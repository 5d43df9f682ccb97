package testkit

import (
	"os"
	"os/signal"
	"syscall"
)

// DefaultSignals makes the children of a test process have the default actions
// for SIGHUP and SIGINT, which a background job of a shell, or one under nohup,
// is started with ignored: children inherit that, and a shell cannot trap what
// was ignored when it started. Call it in TestMain.
func DefaultSignals() {
	for _, sig := range []os.Signal{syscall.SIGHUP, os.Interrupt} {
		if signal.Ignored(sig) {
			// What has a handler is reset by exec. Nobody reads the channel: the
			// test process itself goes on ignoring it.
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}
