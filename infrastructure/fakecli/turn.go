//go:build unix

package fakecli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// dialect is how one agent tells on its stdout what happens in a turn.
type dialect interface {
	text(text string)
	thinking(text string)
	// delta is a piece of a text that text gives whole afterwards.
	delta(piece string)
	todo(items []todoItem)
	call(c *toolCall)
	result(c *toolCall)
	// together and resultsTogether say several things at once.
	together(thought, text string, calls []*toolCall)
	resultsTogether(calls []*toolCall)
}

type todoItem struct {
	text string
	done bool
}

// turn is one prompt being carried out.
type turn struct {
	dialect
	// ctx ends when the turn is interrupted.
	ctx    context.Context
	out    *lines
	stdout io.Writer
	stderr io.Writer
	// deaf is set when the protocol's own interruption is to be ignored.
	deaf   *atomic.Bool
	before []string // the prompts of the turns before
	usage  usage
	answer string // the last text
	deltas string // the text that is being streamed
	calls  int
}

// ending is how a turn ended; nil means that it goes on.
type ending struct {
	how  how
	code int // of exited and misused
	// class and message belong to failed.
	class, message string
	// stopped are the calls that were running when the turn was interrupted.
	stopped []*toolCall
}

type how uint8

const (
	completed   how = iota // with the last text
	failed                 // by an error of the model's API
	exited                 // without a final, at once
	interrupted            // the context of the turn has ended
)

// play carries out a prompt.
func (t *turn) play(prompt string) *ending {
	script, err := parseScript(prompt)
	if err != nil {
		return t.misuse(err)
	}
	if script == nil {
		t.say("You said: " + strings.ToValidUTF8(prompt[:min(len(prompt), 200)], ""))
	}
	for _, c := range script {
		if t.ctx.Err() != nil {
			return &ending{how: interrupted}
		}
		switch c.name {
		case "delta", "sleep", "hang": // the block is still being streamed
		default:
			t.endDeltas()
		}
		if end := c.run(t, c.arg); end != nil {
			return end
		}
	}
	t.endDeltas()
	return &ending{how: completed}
}

// misuse ends a turn whose script makes no sense: the test is wrong.
func (t *turn) misuse(err error) *ending {
	fmt.Fprintf(t.stderr, "fakecli: %v\n", err)
	return &ending{how: exited, code: exitMisuse}
}

func (t *turn) say(text string) {
	t.answer = text
	t.text(text)
}

func (t *turn) endDeltas() {
	if t.deltas != "" {
		t.say(t.deltas)
		t.deltas = ""
	}
}

// tools announces the calls, runs them at once, and gives the results in
// reverse order.
func (t *turn) tools(calls ...*toolCall) *ending {
	for _, c := range calls {
		t.call(c)
	}
	if end := t.runTools(calls); end != nil {
		return end
	}
	for _, c := range slices.Backward(calls) {
		t.result(c)
	}
	return nil
}

func (t *turn) runTools(calls []*toolCall) *ending {
	t.calls += len(calls)
	done := make(chan struct{})
	for _, c := range calls {
		go func() { c.run(t.ctx); done <- struct{}{} }()
	}
	for range calls {
		<-done
	}
	if t.ctx.Err() != nil {
		return &ending{how: interrupted, stopped: calls}
	}
	return nil
}

// wait is the time that a model takes; a negative duration is for ever.
func (t *turn) wait(d time.Duration) *ending {
	var over <-chan time.Time
	if d >= 0 {
		over = time.After(d)
	}
	select {
	case <-over:
		return nil
	case <-t.ctx.Done():
		return &ending{how: interrupted}
	}
}

// command is one line of a script.
type command struct {
	name, arg string
	run       func(*turn, string) *ending
}

// verb is what a command does, and how many fields its argument has at least.
type verb struct {
	fields int
	run    func(t *turn, arg string) *ending
}

// parseScript returns nil for a prompt that is no script.
func parseScript(prompt string) ([]command, error) {
	first, rest, _ := strings.Cut(prompt, "\n")
	if first != scriptMark {
		return nil, nil
	}
	script := []command{}
	for i, line := range strings.Split(rest, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		name, arg, _ := strings.Cut(line, " ")
		v, ok := verbs[name]
		if !ok {
			return nil, fmt.Errorf("script line %d: unknown command %q", i+1, name)
		}
		if n := len(strings.Fields(arg)); n < v.fields {
			return nil, fmt.Errorf("script line %d: %q needs %d arguments and has %d", i+1, name, v.fields, n)
		}
		script = append(script, command{name, arg, v.run})
	}
	return script, nil
}

var verbs = map[string]verb{
	"say": {0, func(t *turn, text string) *ending {
		t.say(text)
		return nil
	}},
	"think": {0, func(t *turn, text string) *ending {
		t.thinking(text)
		return nil
	}},
	"delta": {0, func(t *turn, text string) *ending {
		t.deltas += text
		t.delta(text)
		return nil
	}},
	"todo": {1, func(t *turn, arg string) *ending {
		var items []todoItem
		for s := range strings.SplitSeq(arg, "|") {
			text, done := strings.CutPrefix(s, "+")
			items = append(items, todoItem{text, done})
		}
		t.todo(items)
		return nil
	}},
	"bytes": {1, func(t *turn, arg string) *ending {
		n, err := strconv.Atoi(arg)
		if err != nil || n < 0 {
			return t.misuse(fmt.Errorf("bytes: bad number %q", arg))
		}
		const pattern = "0123456789abcdef"
		t.say(strings.Repeat(pattern, n/len(pattern)+1)[:n])
		return nil
	}},
	"lines": {1, func(t *turn, arg string) *ending {
		n, err := strconv.Atoi(arg)
		if err != nil {
			return t.misuse(fmt.Errorf("lines: %w", err))
		}
		for i := range n {
			if t.ctx.Err() != nil {
				return &ending{how: interrupted}
			}
			t.say(fmt.Sprintf("line %d", i+1))
		}
		return nil
	}},
	"recall": {0, func(t *turn, _ string) *ending {
		s := fmt.Sprintf("%d turns before", len(t.before))
		if len(t.before) > 0 {
			s += "; the last prompt: " + firstLine(t.before[len(t.before)-1])
		}
		t.say(s)
		return nil
	}},
	"env": {1, func(t *turn, name string) *ending {
		if value, ok := os.LookupEnv(name); ok {
			t.say(name + "=" + value)
		} else {
			t.say(name + " unset")
		}
		return nil
	}},
	"cwd": {0, func(t *turn, _ string) *ending {
		dir, err := os.Getwd()
		if err != nil {
			dir = errnoText(err)
		}
		t.say(dir)
		return nil
	}},
	"printfd": {0, func(t *turn, _ string) *ending {
		t.say(showFDs())
		return nil
	}},
	"usage": {2, func(t *turn, arg string) *ending {
		var u usage
		if _, err := fmt.Sscan(arg, &u.Input, &u.Output); err != nil {
			return t.misuse(fmt.Errorf("usage: %w", err))
		}
		t.usage = u
		return nil
	}},

	"sh": {1, func(t *turn, line string) *ending { return t.tools(shellCall(line)) }},
	"write": {1, func(t *turn, arg string) *ending {
		path, text, _ := strings.Cut(arg, " ")
		return t.tools(writeCall(path, text))
	}},
	"read":    {1, func(t *turn, path string) *ending { return t.tools(readCall(path)) }},
	"connect": {1, func(t *turn, addr string) *ending { return t.tools(connectCall(addr)) }},
	"parallel": {1, func(t *turn, arg string) *ending {
		a, b, ok := strings.Cut(arg, ";;")
		if !ok {
			return t.misuse(errors.New("parallel: no \";;\" between the two commands"))
		}
		return t.tools(shellCall(a), shellCall(b))
	}},
	"multi": {0, func(t *turn, _ string) *ending {
		calls := []*toolCall{shellCall("echo multi one"), shellCall("echo multi two")}
		t.answer = "Two commands at once."
		t.together("Both are independent.", t.answer, calls)
		if end := t.runTools(calls); end != nil {
			return end
		}
		slices.Reverse(calls)
		t.resultsTogether(calls)
		return nil
	}},
	"fork": {1, func(t *turn, arg string) *ending {
		n, err := strconv.Atoi(arg)
		if err != nil {
			return t.misuse(fmt.Errorf("fork: %w", err))
		}
		return t.tools(funcCall("fork "+arg, func() (string, error) { return forkChildren(n) }))
	}},
	"daemon": {1, func(t *turn, pidfile string) *ending {
		return t.tools(funcCall("daemon "+pidfile, func() (string, error) { return startDaemon(pidfile) }))
	}},
	"holdstdout": {1, func(t *turn, arg string) *ending {
		d, err := time.ParseDuration(arg)
		if err != nil {
			return t.misuse(fmt.Errorf("holdstdout: %w", err))
		}
		return t.tools(funcCall("holdstdout "+arg, func() (string, error) { return holdOutput(t.stdout, t.stderr, d) }))
	}},

	"raw": {0, func(t *turn, line string) *ending {
		t.out.write([]byte(line + "\n"))
		return nil
	}},
	"rawfile": {1, func(t *turn, path string) *ending {
		data, err := os.ReadFile(path)
		if err != nil {
			return t.misuse(fmt.Errorf("rawfile: %w", err))
		}
		t.out.write(data)
		return nil
	}},
	"stderr": {0, func(t *turn, text string) *ending {
		fmt.Fprintln(t.stderr, text)
		return nil
	}},
	"partial": {1, func(t *turn, text string) *ending {
		t.out.write([]byte(text))
		return &ending{how: exited}
	}},

	"sleep": {1, func(t *turn, arg string) *ending {
		d, err := time.ParseDuration(arg)
		if err != nil {
			return t.misuse(fmt.Errorf("sleep: %w", err))
		}
		return t.wait(max(d, 0))
	}},
	"hang": {0, func(t *turn, _ string) *ending { return t.wait(-1) }},
	"ignore": {1, func(t *turn, name string) *ending {
		if err := t.ignore(name); err != nil {
			return t.misuse(err)
		}
		return nil
	}},
	"trap": {0, func(t *turn, _ string) *ending {
		for _, name := range []string{"TERM", "INT", "HUP", protocolInterrupt} {
			if err := t.ignore(name); err != nil {
				return t.misuse(err)
			}
		}
		return nil
	}},
	"error": {2, func(_ *turn, arg string) *ending {
		class, message, _ := strings.Cut(arg, " ")
		return &ending{how: failed, class: class, message: message}
	}},
	"noresult": {0, func(*turn, string) *ending { return &ending{how: exited} }},
	"exit": {1, func(t *turn, arg string) *ending {
		code, err := strconv.Atoi(arg)
		if err != nil {
			return t.misuse(fmt.Errorf("exit: %w", err))
		}
		return &ending{how: exited, code: code}
	}},
	"kill": {1, func(t *turn, name string) *ending { return t.misuse(dieOf(name)) }},
}

// protocolInterrupt is what ignore calls the interruption that comes by stdin.
const protocolInterrupt = "INTERRUPT"

func (t *turn) ignore(name string) error {
	if name == protocolInterrupt {
		t.deaf.Store(true)
		return nil
	}
	return ignoreSignal(name)
}
