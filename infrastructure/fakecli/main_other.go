//go:build !unix

package fakecli

import (
	"fmt"
	"io"
)

// run refuses: the fake needs sessions, signals and exec(2).
func run(_ string, _ []string, _ io.Reader, _, stderr io.Writer) int {
	fmt.Fprintln(stderr, "fakecli: the fake agent needs a Unix system")
	return exitMisuse
}
