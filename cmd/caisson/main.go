// Command caisson runs coding agents, and any other command, under a kernel
// sandbox. See package cli for what it does.
//
// It also hosts the fake agent of package fakecli, under a subcommand that no
// help shows: the demonstration and the tests run it as a real child process.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/caisson-run/caisson/cmd/caisson/internal/cli"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/ports/portstest/escape"
)

func main() {
	fakecli.Host()
	escape.Host()
	os.Exit(run())
}

func run() int {
	// Without one, what needs none still works.
	dir, noDir := os.Getwd()
	executable, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "caisson: its own program:", err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		// What nohup, or a shell for a job in the background, set to be ignored
		// stays so.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	// With a handler, a write to a closed standard output is an error instead of
	// the end of this process. Children start with the default action.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return cli.Main(context.Background(), cli.Process{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		LookupEnv: os.LookupEnv, Signals: signals, Dir: dir, NoDir: noDir, Executable: executable,
	})
}
