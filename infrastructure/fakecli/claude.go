//go:build unix

package fakecli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
)

const claudeVersion = "2.1.328"

// claude is one run of the fake Claude Code: one process, one conversation,
// as many turns as there are user lines on stdin.
type claude struct {
	claudeWriter
	stdout io.Writer
	stderr io.Writer
	conv   *conversation
	deaf   atomic.Bool
	// quit takes the exit code of a process that is stopped between turns.
	quit chan int

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the running turn, nil between turns
}

// interruption is why a turn was cut short.
type interruption struct {
	// exit is the exit code that follows, or stay.
	exit int
	// silent drops the rest of the turn, the result included.
	silent bool
}

// stay keeps the process for the next turn.
const stay = -1

func (interruption) Error() string { return "interrupted" }

var (
	byProtocol = interruption{exit: stay}
	bySIGINT   = interruption{exit: 0}
)

// claudeMain is Claude Code's command line and main loop.
func claudeMain(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	fail := func(format string, a ...any) int {
		fmt.Fprintf(stderr, format+"\n", a...)
		return 1
	}
	f, err := parseFlags(args, claudeFlags, nil)
	if err != nil {
		return fail("error: unknown option '%s'", err)
	}
	switch {
	case !f.has("-p") && !f.has("--print"), f.value("--output-format") != "stream-json", f.value("--input-format") != "stream-json":
		fmt.Fprintln(stderr, "fakecli: only -p with stream-json output and input")
		return exitMisuse
	case !f.has("--verbose"):
		return fail("Error: When using --print, --output-format=stream-json requires --verbose")
	case f.has("--dangerously-skip-permissions") && os.Geteuid() == 0 && os.Getenv("IS_SANDBOX") != "1":
		return fail("--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons")
	case f.has("--session-id") && f.has("--resume"):
		return fail("Error: --session-id can only be used with --continue or --resume if --fork-session is also specified.")
	}
	config := os.Getenv("CLAUDE_CONFIG_DIR")
	if config == "" {
		config = filepath.Join(os.Getenv("HOME"), ".claude")
	}
	dir := filepath.Join(config, "projects", "fakecli")
	id := uuid.NewString()
	if f.has("--session-id") {
		if id = f.value("--session-id"); !domain.IsUUID(id) {
			return fail("Error: Invalid session ID. Must be a valid UUID.")
		}
		if _, err := loadConversation(dir, id); err == nil {
			return fail("Error: Session ID %s is already in use.", id)
		}
	}
	conv := newConversation(dir, id)
	if f.has("--resume") {
		id = f.value("--resume")
		conv, err = loadConversation(dir, id)
		if !domain.IsUUID(id) || err != nil {
			conv = nil
		}
	}
	c := &claude{stdout: stdout, stderr: stderr, conv: conv, quit: make(chan int, 1)}
	c.claudeWriter = claudeWriter{
		out:     &lines{w: stdout, opts: jsontext.EscapeForJS(true)},
		session: id,
		model:   f.value("--model"),
		mode:    "default",
		states:  os.Getenv("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS") == "1",
		config:  config,
	}
	if c.model == "" {
		c.model = "claude-opus-5-5"
	}
	if f.has("--dangerously-skip-permissions") {
		c.mode = "bypassPermissions"
	}
	if conv == nil {
		message := "No conversation found with session ID: " + id
		c.startupFailure(message)
		return fail("%s", message)
	}
	return c.loop(stdin)
}

// loop runs the turns until stdin ends. The exit code is that of the last.
func (c *claude) loop(stdin io.Reader) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A reader that is gone does not disturb the real one: it runs to its end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		for s := range signals {
			switch s {
			case syscall.SIGINT:
				c.stop(bySIGINT)
			default:
				c.stop(interruption{exit: 128 + int(s.(syscall.Signal)), silent: true})
			}
		}
	}()
	prompts := make(chan string, 64)
	go func() {
		defer close(prompts)
		if err := c.readInput(stdin, prompts); err != nil {
			fmt.Fprintln(c.stderr, err)
			c.stop(interruption{exit: 1, silent: true})
		}
	}()
	code := 0
	for {
		select {
		case code := <-c.quit:
			return code
		case prompt, ok := <-prompts:
			if !ok {
				select {
				case code = <-c.quit: // a bad line closes the channel, too
				default:
				}
				return code
			}
			var goOn bool
			if code, goOn = c.turn(prompt); !goOn {
				return code
			}
		}
	}
}

// stop cuts the running turn short, or ends the process if there is none.
func (c *claude) stop(why interruption) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cancel != nil:
		c.cancel(why)
	case why.exit != stay:
		select {
		case c.quit <- why.exit:
		default: // it is ending already
		}
	}
}

// setCancel says which turn stop stops.
func (c *claude) setCancel(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
}

// claudeInput is one line of stdin.
type claudeInput struct {
	Type      string `json:"type"`
	RequestID string `json:"request_id"`
	Request   struct {
		Subtype string `json:"subtype"`
	} `json:"request"`
	Message struct {
		Role    string         `json:"role"`
		Content jsontext.Value `json:"content"`
	} `json:"message"`
}

// readInput reads stdin to its end. Unknown types are skipped; what is no JSON
// is fatal, as with the real one.
func (c *claude) readInput(stdin io.Reader, prompts chan<- string) error {
	r := bufio.NewReader(stdin)
	for {
		line, err := r.ReadBytes('\n')
		if strings.TrimSpace(string(line)) != "" {
			var in claudeInput
			if err := json.Unmarshal(line, &in, jsonInvalidUTF8, jsontext.AllowDuplicateNames(true)); err != nil {
				return fmt.Errorf("Error parsing streaming input line: %w", err)
			}
			switch in.Type {
			case "user":
				if in.Message.Role != "user" {
					role := in.Message.Role
					if role == "" {
						role = "undefined"
					}
					return fmt.Errorf("Error: Expected message role 'user', got '%s'", role)
				}
				prompts <- promptText(in.Message.Content)
			case "control_request":
				c.control(in.RequestID, in.Request.Subtype)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// promptText returns the text of a message's content, a string or blocks.
func promptText(content jsontext.Value) string {
	var s string
	if json.Unmarshal(content, &s, jsonInvalidUTF8) == nil {
		return s
	}
	var blocks []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &blocks, jsonInvalidUTF8) != nil {
		return ""
	}
	var texts []string
	for _, b := range blocks {
		texts = append(texts, b.Text)
	}
	return strings.Join(texts, "\n")
}

// control answers a control request.
func (c *claude) control(id, subtype string) {
	if subtype == "interrupt" && c.deaf.Load() {
		return
	}
	response := object{"subtype", "success", "request_id", id}
	switch subtype {
	case "interrupt":
		response = append(response, "response", object{"still_queued", list{}})
	case "initialize":
		response = append(response, "response", object{
			"commands", list{}, "output_style", "default", "available_output_styles", list{"default"},
			"models", list{}, "account", object{}, "pid", os.Getpid(), "claude_code_version", claudeVersion,
		}, "pending_permission_requests", list{}, "pending_user_dialog_requests", list{})
	default:
		response = object{
			"subtype", "error", "request_id", id,
			"error", "Unsupported control request subtype: " + subtype, "error_code", "unsupported_request",
		}
	}
	c.out.emit(object{"type", "control_response", "response", response})
	if subtype == "interrupt" {
		c.stop(byProtocol)
	}
}

// turn carries out one prompt. It returns the process's exit code, and false
// if the process is to exit with it at once.
func (c *claude) turn(prompt string) (code int, goOn bool) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	c.setCancel(cancel)

	c.began = time.Now()
	c.state("running")
	c.init()
	t := &turn{
		dialect: &c.claudeWriter, ctx: ctx, out: c.out, stdout: c.stdout, stderr: c.stderr, deaf: &c.deaf,
		before: c.conv.prompts,
		usage:  usage{Input: 11, CacheWrite: 100, CacheRead: 200, Output: 42},
	}
	// A transcript that cannot be written is lost silently, as the real one's.
	_ = c.conv.begin(prompt)
	end := t.play(prompt)
	c.setCancel(nil)
	why := byProtocol
	if errors.As(context.Cause(ctx), &why) && end.how != interrupted {
		c.stop(why) // it came too late for this turn
	}
	switch end.how {
	case completed:
		_ = c.conv.end(t.answer, t.usage)
		c.finish(t, c.conv.total, outcome{subtype: "success", result: t.answer, stop: "end_turn", reason: "completed"})
	case failed:
		_ = c.conv.end("", usage{})
		t.usage, t.calls = usage{}, 0
		c.finish(t, c.conv.total, c.apiError(end.class, end.message))
		code = 1
	case exited:
		return end.code, false
	case interrupted:
		if why.silent {
			for _, call := range end.stopped {
				c.result(call)
			}
			return why.exit, false
		}
		streaming := t.deltas != ""
		c.interrupted(end.stopped)
		_ = c.conv.end(t.answer, t.usage)
		// SIGINT while the model is being waited for leaves no result.
		if why == byProtocol || streaming || len(end.stopped) > 0 {
			c.finish(t, c.conv.total, abortOutcome(end.stopped))
		}
		if why.exit != stay {
			return why.exit, false
		}
		code = 1
	}
	c.state("idle")
	return code, true
}
