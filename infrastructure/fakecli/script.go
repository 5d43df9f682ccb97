package fakecli

import "strings"

// scriptMark is the first line of a prompt that is a script.
const scriptMark = "#caisson-script"

// Script returns the prompt that makes the fake carry out the commands, one
// per line, from first to last. A command is a verb and its arguments, with
// one space between; TEXT is the rest of the line as it is, and a PATH has no
// space in it. A script with an unknown verb or a missing argument is not
// started: the fake complains on stderr and exits with code 64.
//
// What the agent says:
//
//	say TEXT       a block of text
//	think TEXT     a block of reasoning
//	delta TEXT     a piece of text; a run of deltas, with sleeps between, is one
//	               block. Claude streams the pieces, Codex gives the whole block
//	               only, as the real one
//	todo A|B|C     the agent's plan; "+A" is done
//	bytes N        one text of N bytes
//	lines N        N texts "line 1", "line 2", …
//	recall         "N turns before; the last prompt: " and the first line of
//	               the previous prompt (of a script, its first command)
//	env NAME       "NAME=value", or "NAME unset"
//	cwd            the working directory
//	printfd        "fds 0 1 2": the open descriptors that are inherited by a
//	               program the fake would run; one above 2 is "N→target"
//	usage IN OUT   sets what the turn is reported to have used
//
// What it does, as tool calls. Each result has the output, or the name and
// text of the errno; nothing that fails ends the turn:
//
//	sh COMMAND         /bin/sh -c COMMAND in a session of its own, as the real
//	                   programs do; output of what it leaves running is lost
//	write PATH TEXT    the file with exactly that text; makes directories
//	read PATH
//	connect HOST:PORT  a TCP connection; "connected to HOST:PORT"
//	parallel A;;B      two shell commands at once; B's result comes first
//	multi              reasoning, text and two commands, and their results, as
//	                   several blocks on one line (Claude; Codex has no blocks)
//	fork N             N children that sleep an hour; the result lists the pids
//	daemon PIDFILE     a process in its own session, without parent, environment
//	                   and descriptors, that sleeps an hour
//	holdstdout D       a process in its own session that keeps stdout and
//	                   stderr open for the duration
//
// What goes to stdout and stderr as it is:
//
//	raw LINE       the line
//	rawfile PATH   the bytes of a file
//	stderr TEXT    a line to stderr
//	partial TEXT   the text without a newline, and the process exits
//
// How long it takes and how it ends. Without any of these the turn ends well
// with the last text:
//
//	sleep D               waits, as for the model
//	hang                  for ever
//	ignore SIGNAL         TERM, INT, HUP, …, or INTERRUPT for the protocol's own
//	                      (children inherit what is ignored)
//	trap                  ignores TERM, INT, HUP and INTERRUPT
//	error CLASS MESSAGE   the agent's final for an error of its model's API
//	noresult              the process exits without a final
//	exit N                the same, with exit code N
//	kill SIGNAL           the process dies of the signal
func Script(commands ...string) string {
	return scriptMark + "\n" + strings.Join(commands, "\n")
}

// firstLine returns what recall shows of a prompt.
func firstLine(prompt string) string {
	first, rest, _ := strings.Cut(prompt, "\n")
	if first == scriptMark {
		first, _, _ = strings.Cut(rest, "\n")
	}
	return first
}
