// Command fakehost is the fake agent as a program of its own. Tests build it
// without the race detector, under which every start of a process takes half a
// second. It may import infrastructure/fakecli.
package main

import (
	"fmt"
	"os"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/ports/portstest/escape"
)

func main() {
	fakecli.Host()
	escape.Host()
	fmt.Fprintln(os.Stderr, "fakehost: the first argument must be", fakecli.Subcommand)
	os.Exit(64)
}
