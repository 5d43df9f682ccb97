//go:build unix

package fakecli

import (
	"fmt"
	"io"
)

func run(format string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	switch format {
	case "claude":
		return claudeMain(args, stdin, stdout, stderr)
	case "codex":
		return codexMain(args, stdin, stdout, stderr)
	case childFormat:
		return childMain(args, stderr)
	}
	fmt.Fprintf(stderr, "fakecli: unknown format %q: claude or codex\n", format)
	return exitMisuse
}
