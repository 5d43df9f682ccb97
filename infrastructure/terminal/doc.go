// Package terminal starts programs on a pseudoterminal of their own, under the
// same enforcer, plan and process machinery as structured sessions: package
// process starts and ends them, and this package has the terminal's other side.
//
// The child is the leader of a session whose controlling terminal is the new
// one, so job control works in it, and neither /dev/tty nor TIOCSTI reaches any
// terminal of the host's. It may open that one terminal's device file and
// nothing else of /dev/pts: not /dev/ptmx, so a program that wants terminals of
// its own (tmux, script) needs a grant.
//
// Pseudoterminals are opened by github.com/creack/pty, which starts nothing
// here. The package may import domain, ports, package process, creack/pty and
// x/sys.
package terminal
