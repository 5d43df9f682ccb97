//go:build unix

package fakecli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
)

// codexMain is one run of the fake Codex: one process, one turn.
func codexMain(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fail := func(format string, a ...any) int {
		fmt.Fprintf(stderr, format+"\n", a...)
		return 1
	}
	f, err := parseFlags(args, codexFlags, map[string]flagSet{"resume": codexResumeFlags})
	if err != nil {
		fmt.Fprintf(stderr, "error: unexpected argument '%s' found\n\nUsage: codex exec [OPTIONS] [PROMPT]\n", err)
		return 2
	}
	rest := f.rest
	if len(rest) == 0 || rest[0] != "exec" || rest[len(rest)-1] != "-" || !f.has("--json") {
		fmt.Fprintln(stderr, "fakecli: only exec --json with the prompt on stdin (-)")
		return exitMisuse
	}
	rest = rest[1 : len(rest)-1]
	if !f.has("--skip-git-repo-check") && !f.has("--dangerously-bypass-approvals-and-sandbox") && !inGitRepo() {
		return fail("Not inside a trusted directory and --skip-git-repo-check was not specified.")
	}
	prompt, err := io.ReadAll(stdin)
	if err != nil {
		return fail("Failed to read prompt from stdin: %v", err)
	}
	if len(prompt) == 0 {
		return fail("No prompt provided via stdin.")
	}
	home := os.Getenv("CODEX_HOME")
	if home == "" {
		home = filepath.Join(os.Getenv("HOME"), ".codex")
	}
	dir := filepath.Join(home, "sessions", "fakecli")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail("Error: failed to initialize in-process app-server client: %s", rustText(err))
	}
	conv := newConversation(dir, newThreadID())
	// A name that is no UUID and not known silently starts a new thread.
	if len(rest) == 2 && rest[0] == "resume" && domain.IsUUID(rest[1]) {
		if conv, err = loadConversation(dir, rest[1]); err != nil {
			return fail("Error: thread/resume: thread/resume failed: no rollout found for thread id %s (code -32600)", rest[1])
		}
	}
	return codexTurn(string(prompt), conv, stdout, stderr)
}

func codexTurn(prompt string, conv *conversation, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT)
	go func() { <-signals; cancel() }()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	out := &lines{w: stdout, failed: func() {
		fmt.Fprintln(stderr, "thread 'main' panicked: failed printing to stdout: Broken pipe (os error 32)")
		os.Exit(101)
	}}
	w := &codexWriter{out: out, stderr: stderr, plan: -1}
	t := &turn{
		dialect: w, ctx: ctx, out: out, stdout: stdout, stderr: stderr, deaf: new(atomic.Bool),
		before: conv.prompts, usage: usage{Input: 600, CacheRead: 400, Output: 50, Reasoning: 20},
	}
	if err := conv.begin(prompt); err != nil {
		fmt.Fprintf(stderr, "Error: failed to initialize in-process app-server client: %s\n", rustText(err))
		return 1
	}
	out.emit(object{"type", "thread.started", "thread_id", conv.id})
	out.emit(object{"type", "turn.started"})
	end := t.play(prompt)
	switch end.how {
	case completed:
		if err := conv.end(t.answer, t.usage); err != nil {
			w.log(fmt.Sprintf("codex_core::session: failed to record rollout items: %v", err))
		}
		w.endPlan()
		u := conv.total
		out.emit(object{"type", "turn.completed", "usage", object{
			"input_tokens", u.Input + u.CacheRead + u.CacheWrite, "cached_input_tokens", u.CacheRead,
			"cache_write_input_tokens", u.CacheWrite, "output_tokens", u.Output, "reasoning_output_tokens", u.Reasoning,
		}})
		return 0
	case failed:
		// The message of an HTTP 400 is the body of the response.
		body, err := json.Marshal(object{"error", object{
			"message", end.message, "type", end.class, "param", nil, "code", end.class,
		}}, jsonInvalidUTF8)
		if err != nil {
			panic(err) // see emit
		}
		out.emit(object{"type", "error", "message", string(body)})
		out.emit(object{"type", "turn.failed", "error", object{"message", string(body)}})
		return 1
	case interrupted:
		return 1 // SIGINT: nothing more is said
	default:
		return end.code
	}
}

// newThreadID returns a UUID of version 7, as Codex's.
func newThreadID() string {
	id, err := uuid.NewV7()
	if err != nil {
		panic(err) // the system has no randomness
	}
	return id.String()
}

// inGitRepo reports whether the working directory or one above it is the root
// of a git work tree.
func inGitRepo() bool {
	dir, err := os.Getwd()
	for err == nil {
		if _, serr := os.Lstat(filepath.Join(dir, ".git")); serr == nil {
			return true
		}
		if filepath.Dir(dir) == dir {
			return false
		}
		dir = filepath.Dir(dir)
	}
	return false
}

// rustText renders an error as Rust does.
func rustText(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	s := errno.Error()
	return fmt.Sprintf("%s (os error %d)", strings.ToUpper(s[:1])+s[1:], int(errno))
}

// codexWriter writes the JSONL of "codex exec --json". The members and their
// order are those of the recordings in testdata/codex.
type codexWriter struct {
	out    *lines
	stderr io.Writer
	items  int
	plan   int // the number of the todo list's item, -1 before there is one
	todos  list
}

// log writes a line of Codex's log: the only place where some failures show.
func (w *codexWriter) log(message string) {
	fmt.Fprintf(w.stderr, "%s ERROR %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), message)
}

func (w *codexWriter) nextItem() int {
	w.items++
	return w.items - 1
}

func (w *codexWriter) item(event string, number int, kind string, members ...any) {
	w.out.emit(object{"type", event, "item", append(object{"id", fmt.Sprintf("item_%d", number), "type", kind}, members...)})
}

func (w *codexWriter) text(text string) {
	w.item("item.completed", w.nextItem(), "agent_message", "text", text)
}

func (w *codexWriter) thinking(text string) {
	w.item("item.completed", w.nextItem(), "reasoning", "text", text)
}

// delta says nothing: exec --json has no pieces.
func (w *codexWriter) delta(string) {}

func (w *codexWriter) todo(items []todoItem) {
	w.todos = nil
	for _, i := range items {
		w.todos = append(w.todos, object{"text", i.text, "completed", i.done})
	}
	event := "item.updated"
	if w.plan < 0 {
		w.plan, event = w.nextItem(), "item.started"
	}
	w.item(event, w.plan, "todo_list", "items", w.todos)
}

func (w *codexWriter) endPlan() {
	if w.plan >= 0 {
		w.item("item.completed", w.plan, "todo_list", "items", w.todos)
	}
}

// shown is how Codex shows a command. A file is read by a command, too.
func shown(c *toolCall) string {
	command := c.command
	if c.kind == readTool {
		command = "cat " + c.path
	}
	return "/bin/bash -lc " + shellQuote(command)
}

func (w *codexWriter) call(c *toolCall) {
	number := w.nextItem()
	c.id = fmt.Sprintf("item_%d", number)
	w.toolItem("item.started", c, "in_progress", "", nil)
}

func (w *codexWriter) toolItem(event string, c *toolCall, status, output string, exitCode any) {
	item := object{"id", c.id}
	if c.kind == writeTool {
		kind := "add"
		if c.existed {
			kind = "update"
		}
		item = append(item, "type", "file_change",
			"changes", list{object{"path", c.path, "kind", kind}}, "status", status)
	} else {
		item = append(item, "type", "command_execution", "command", shown(c),
			"aggregated_output", output, "exit_code", exitCode, "status", status)
	}
	w.out.emit(object{"type", event, "item", item})
}

func (w *codexWriter) result(c *toolCall) {
	status, output, code := "completed", c.output, c.exitCode
	switch {
	case c.kind == readTool && c.failure == "":
		output = c.content
	case c.kind == readTool:
		output, code = c.failure+"\n", 1
	case c.kind == writeTool && c.failure != "":
		w.log(fmt.Sprintf("codex_core::tools::router: error=Exit code: 1\nWall time: 0 seconds\nOutput:\nFailed to write file %s: %s\n", c.path, c.failure))
		code = 1
	}
	if code != 0 {
		status = "failed"
	}
	w.toolItem("item.completed", c, status, output, code)
}

// together says it one by one: an item is all that Codex knows.
func (w *codexWriter) together(thought, text string, calls []*toolCall) {
	w.thinking(thought)
	w.text(text)
	for _, c := range calls {
		w.call(c)
	}
}

func (w *codexWriter) resultsTogether(calls []*toolCall) {
	for _, c := range calls {
		w.result(c)
	}
}
