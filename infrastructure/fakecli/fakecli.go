// Package fakecli is a scriptable fake of the agents' command-line programs.
// It is a real child process: it reads and writes real pipes, runs real
// commands, forks real children and dies of real signals, so everything that
// Caisson does to an agent can be tried on it without tokens and without the
// agent. What it prints has the shape that the real programs were recorded
// with (Claude Code 2.1.328, Codex CLI 0.169.0).
//
// The code can be hosted by any binary: a program whose first argument is
// [Subcommand] hands the rest of its arguments to [Main]. The caisson binary
// does, and so does a test binary that calls [Host] first in TestMain. Nothing
// in the environment turns a program into the fake.
//
// The prompt is the script: see [Script] for the commands. A prompt that is no
// script is answered with "You said: " and its first 200 bytes.
//
// The package may import the domain, the ports and the standard library, the
// JSON codec and x/sys. It needs nothing but /bin/sh, /bin/sleep and its own
// binary, so it works in a sandbox that grants the system's directories, a
// workspace and the agent's private directories.
package fakecli

import (
	"io"
	"os"
)

// Subcommand is the argument that makes a binary that hosts the fake run it.
const Subcommand = "__fakecli"

// exitMisuse is the exit code for a fault of the test rather than of the
// agent: an unknown format, or a script that cannot be understood. It is
// EX_USAGE of sysexits.h, which neither real program uses.
const exitMisuse = 64

// Host runs the fake and exits, if this process was started as one; otherwise
// it returns at once. Call it first in TestMain.
func Host() {
	if len(os.Args) > 1 && os.Args[1] == Subcommand {
		os.Exit(Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
}

// Main runs the fake as a whole process and returns its exit code. The first
// argument is the format ("claude" or "codex"), the others are the agent's
// own. It takes over the process: it handles signals, may replace the process
// by another program, and leaves children behind if the script says so.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	format := ""
	if len(args) > 0 {
		format, args = args[0], args[1:]
	}
	return run(format, args, stdin, stdout, stderr)
}
