//go:build linux

package fakecli_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) {
	fakecli.Host()
	hostConfined()
	// Whatever started the tests may have left descriptors open to them.
	for fd := 3; fd < 1024; fd++ {
		syscall.CloseOnExec(fd)
	}
	testkit.DefaultSignals()
	os.Exit(m.Run())
}

const (
	patience = 20 * time.Second
	someID   = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
)

// place is where an agent lives in a test.
type place struct{ work, state, temp string }

func newPlace(t *testing.T) place {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	p := place{filepath.Join(root, "work"), filepath.Join(root, "state"), filepath.Join(root, "temp")}
	for _, d := range []string{p.work, p.state, p.temp} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	return p
}

func (p place) env(extra ...string) []string {
	return append([]string{
		"PATH=/usr/bin:/bin", "HOME=" + p.state, "TMPDIR=" + p.temp, "CLAUDE_CONFIG_DIR=" + p.state,
		"CODEX_HOME=" + p.state, "IS_SANDBOX=1", "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1",
		"GORACE=atexit_sleep_ms=0", // the race detector's pause at every exit
	}, extra...)
}

// proc is a running fake.
type proc struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout chan string // lines, newline included if there was one
	stderr locked
}

// locked is a buffer that is read while the process still writes to it.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func claudeArgs(more ...string) []string {
	return append([]string{
		"claude", "-p", "--output-format", "stream-json", "--verbose", "--input-format", "stream-json",
		"--permission-prompt-tool", "stdio", "--setting-sources", "user", "--strict-mcp-config",
		"--dangerously-skip-permissions",
	}, more...)
}

func codexArgs(more ...string) []string {
	args := []string{"codex", "exec", "--json", "--skip-git-repo-check", "--ignore-user-config", "--disable", "plugins", "-c", "analytics.enabled=false"}
	return append(append(args, more...), "-")
}

// start runs this test binary as the fake.
func start(t *testing.T, p place, args ...string) *proc {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return startCommand(t, p, self, append([]string{fakecli.Subcommand}, args...)...)
}

func startCommand(t *testing.T, p place, program string, args ...string) *proc {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = p.work, p.env()
	pr := &proc{t: t, cmd: cmd, stdout: make(chan string, 1<<16)}
	cmd.Stderr = &pr.stderr
	// A process that holds the pipes must not wedge the test.
	cmd.WaitDelay = time.Second
	var err error
	pr.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	go func() {
		defer close(pr.stdout)
		b := bufio.NewReader(r)
		for {
			line, err := b.ReadString('\n')
			if line != "" {
				pr.stdout <- line
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		_ = r.Close()
	})
	return pr
}

func (p *proc) prompt(text string) *proc {
	p.t.Helper()
	line, err := json.Marshal(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": text}})
	require.NoError(p.t, err)
	return p.write(string(line) + "\n")
}

func (p *proc) write(s string) *proc {
	p.t.Helper()
	_, err := io.WriteString(p.stdin, s)
	require.NoError(p.t, err)
	return p
}

func (p *proc) eof() *proc {
	_ = p.stdin.Close() // a second time is no matter
	return p
}

func (p *proc) signal(s os.Signal) *proc {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
	return p
}

// next returns the next line of stdout, false at its end.
func (p *proc) next() (string, bool) {
	p.t.Helper()
	select {
	case line, ok := <-p.stdout:
		return line, ok
	case <-time.After(patience):
		p.t.Fatalf("no output for %s; stderr: %s", patience, p.stderr.String())
		return "", false
	}
}

// event is a decoded line.
type event = map[string]any

func decode(t *testing.T, line string) event {
	t.Helper()
	var e event
	require.NoError(t, json.Unmarshal([]byte(line), &e), line)
	return e
}

// until reads events up to one that the condition holds for.
func (p *proc) until(cond func(event) bool) []event {
	p.t.Helper()
	var events []event
	for {
		line, ok := p.next()
		require.True(p.t, ok, "stdout ended; stderr: %s", p.stderr.String())
		events = append(events, decode(p.t, line))
		if cond(events[len(events)-1]) {
			return events
		}
	}
}

// rest reads events to the end of stdout.
func (p *proc) rest() []event {
	p.t.Helper()
	var events []event
	for {
		line, ok := p.next()
		if !ok {
			return events
		}
		events = append(events, decode(p.t, line))
	}
}

// wait waits for the process's end; -n is signal n.
func (p *proc) wait() int {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
			p.t.Fatal(err)
		}
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-done
		p.t.Fatalf("still running; stderr: %s", p.stderr.String())
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return -int(status.Signal())
	}
	return status.ExitStatus()
}

// claudeTurn runs one turn of Claude to the end of its process.
func claudeTurn(t *testing.T, p place, prompt string, args ...string) ([]event, int, string) {
	t.Helper()
	pr := start(t, p, claudeArgs(args...)...).prompt(prompt).eof()
	events := pr.rest()
	code := pr.wait()
	return events, code, pr.stderr.String()
}

func codexTurn(t *testing.T, p place, prompt string, args ...string) ([]event, int, string) {
	t.Helper()
	pr := start(t, p, codexArgs(args...)...).write(prompt).eof()
	events := pr.rest()
	code := pr.wait()
	return events, code, pr.stderr.String()
}

func is(kind, subtype string) func(event) bool {
	return func(e event) bool { return e["type"] == kind && (subtype == "" || e["subtype"] == subtype) }
}

func isIdle(e event) bool { return e["state"] == "idle" }

func one(t *testing.T, events []event, cond func(event) bool) event {
	t.Helper()
	found := all(events, cond)
	require.Len(t, found, 1)
	return found[0]
}

func all(events []event, cond func(event) bool) []event {
	var found []event
	for _, e := range events {
		if cond(e) {
			found = append(found, e)
		}
	}
	return found
}

// at returns what the path of keys and indexes leads to, nil if nothing.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			a, _ := v.([]any)
			if p >= len(a) {
				return nil
			}
			v = a[p]
		}
	}
	return v
}

// said returns the agent's texts, of either format.
func said(events []event) []string {
	var texts []string
	for _, e := range events {
		if s, ok := at(e, "item", "text").(string); ok && at(e, "item", "type") == "agent_message" {
			texts = append(texts, s)
		}
		if e["type"] == "assistant" {
			blocks, _ := at(e, "message", "content").([]any)
			for _, b := range blocks {
				if s, ok := at(b, "text").(string); ok {
					texts = append(texts, s)
				}
			}
		}
	}
	return texts
}

// results returns what the tools gave, of either format.
func results(events []event) []string {
	var texts []string
	for _, e := range events {
		if s, ok := at(e, "item", "aggregated_output").(string); ok && e["type"] == "item.completed" {
			texts = append(texts, strings.TrimSuffix(s, "\n"))
		}
		if e["type"] == "user" {
			blocks, _ := at(e, "message", "content").([]any)
			for _, b := range blocks {
				if s, ok := at(b, "content").(string); ok {
					texts = append(texts, s)
				}
			}
		}
	}
	return texts
}

// formats runs a test for both agents.
func formats(t *testing.T, test func(t *testing.T, run func(t *testing.T, p place, prompt string, args ...string) ([]event, int, string))) {
	t.Run("claude", func(t *testing.T) { test(t, claudeTurn) })
	t.Run("codex", func(t *testing.T) { test(t, codexTurn) })
}
