package domain

import (
	"fmt"
	"slices"
	"strings"
)

// SpawnLine is all that is needed to start one process: the program, its
// arguments and environment, its directory, what it reads, and the sandbox it
// is born into.
type SpawnLine struct {
	// Path is the absolute path of the program.
	Path string
	// Argv holds the arguments, the program's name first.
	Argv []string
	// Env is the whole environment, as NAME=VALUE.
	Env []string
	// Dir is the absolute working directory.
	Dir string
	// Stdin is what the child reads first. Nil and not KeepStdinOpen means
	// /dev/null, never an open pipe: some agents wait on one for ever.
	Stdin []byte
	// KeepStdinOpen leaves the pipe open behind Stdin, for a protocol that
	// writes more, until the stdin is closed by the parser or the turn's end.
	KeepStdinOpen bool
	// Sandbox is the plan. Its zero value is refused with [ErrNoSandbox].
	Sandbox SandboxPlan
}

// String has the program, the directory, the number of arguments and the names of
// the variables: arguments, values and input may hold secrets.
func (l SpawnLine) String() string {
	names := make([]string, 0, len(l.Env))
	for _, s := range l.Env {
		name, _, _ := strings.Cut(s, "=")
		names = append(names, word(name))
	}
	return fmt.Sprintf("%s (%d arguments) in %s with %s", word(l.Path), max(len(l.Argv)-1, 0), word(l.Dir), strings.Join(names, " "))
}

// GoString is String, for %#v.
func (l SpawnLine) GoString() string { return l.String() }

// MaxArg is the most bytes that Linux takes in one argument or environment
// string, its NUL included (execve(2), MAX_ARG_STRLEN: 32 pages of 4 KiB).
const MaxArg = 128 << 10

// Validate returns nil for a line that can be handed to the kernel.
func (l SpawnLine) Validate() error {
	if l.Sandbox.IsZero() {
		return ErrNoSandbox
	}
	bad := func(what, value, reason, remedy string) error {
		return &InvalidError{What: what, Value: value, Reason: reason, Remedy: remedy}
	}
	if !strings.HasPrefix(l.Path, "/") {
		return bad("program", l.Path, "not an absolute path", "resolve it first")
	}
	if !strings.HasPrefix(l.Dir, "/") {
		return bad("working directory", l.Dir, "not an absolute path", "resolve it first")
	}
	if len(l.Argv) == 0 {
		return bad("arguments", "", "empty", "the program's name comes first")
	}
	for _, s := range append([]string{l.Path, l.Dir}, l.Argv...) {
		if strings.ContainsRune(s, 0) {
			return bad("argument", s, "a NUL byte cannot be passed to a program", "remove it, or pass the text by standard input")
		}
		if len(s) >= MaxArg {
			return bad("argument", s, fmt.Sprintf("%d bytes, and Linux takes at most %d", len(s), MaxArg-1), "pass the text by standard input")
		}
	}
	for _, s := range l.Env {
		name, _, ok := strings.Cut(s, "=")
		switch {
		case !ok || name == "":
			return bad("environment variable", name, "not NAME=VALUE", "give it a name and a value")
		case strings.ContainsRune(s, 0):
			return bad("environment variable", name, "a NUL byte in it", "remove it")
		case len(s) >= MaxArg:
			return bad("environment variable", name, fmt.Sprintf("%d bytes, and Linux takes at most %d", len(s), MaxArg-1), "shorten it")
		}
	}
	return l.Sandbox.Validate()
}

// ExitStatus says how a process ended. The zero value means that it is not
// known (the process was never waited for).
type ExitStatus struct {
	Known  bool
	Code   int    // the exit code, -1 if a signal ended it
	Signal string // "SIGKILL", "" if it exited
	// SignalNumber is the number of Signal, 0 if it exited.
	SignalNumber int
}

// Success reports an exit code of 0.
func (s ExitStatus) Success() bool { return s.Known && s.Signal == "" && s.Code == 0 }

// String is "exit 0", "SIGKILL" or "unknown".
func (s ExitStatus) String() string {
	switch {
	case !s.Known:
		return "unknown"
	case s.Signal != "":
		return s.Signal
	}
	return fmt.Sprintf("exit %d", s.Code)
}

// MergeEnv returns an environment, as NAME=VALUE, of base with more added; of
// one name the last counts.
func MergeEnv(base, more []string) []string {
	all := append(slices.Clip(base), more...)
	last := make(map[string]int, len(all))
	for i, s := range all {
		name, _, _ := strings.Cut(s, "=")
		last[name] = i
	}
	env := make([]string, 0, len(last))
	for i, s := range all {
		if name, _, _ := strings.Cut(s, "="); last[name] == i {
			env = append(env, s)
		}
	}
	return env
}
