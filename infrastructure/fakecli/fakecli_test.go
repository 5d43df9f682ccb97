//go:build linux

package fakecli_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

const interrupt = `{"type":"control_request","request_id":"int-1","request":{"subtype":"interrupt"}}` + "\n"

type runner = func(t *testing.T, p place, prompt string, args ...string) ([]event, int, string)

// killForked ends what fork left behind, by the pids that it reported.
func killForked(t *testing.T, events []event) {
	t.Helper()
	for _, r := range results(events) {
		for _, s := range strings.Fields(r) {
			if pid, err := strconv.Atoi(s); err == nil && testkit.Comm(pid) == "sleep" {
				killAndWait(t, pid)
			}
		}
	}
}

// killAndWait ends a process that is no child of this one.
func killAndWait(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { return !testkit.Alive(pid) }, patience, time.Millisecond)
}

func TestPlainPrompt(t *testing.T) {
	formats(t, func(t *testing.T, run runner) {
		testkit.NoLeaks(t)
		events, code, stderr := run(t, newPlace(t), strings.Repeat("é", 150))
		require.Zero(t, code)
		require.Empty(t, stderr)
		require.Equal(t, []string{"You said: " + strings.Repeat("é", 100)}, said(events))
	})
}

func TestEveryEndHasItsEvents(t *testing.T) {
	t.Run("claude", func(t *testing.T) {
		events, code, _ := claudeTurn(t, newPlace(t), "hello")
		require.Zero(t, code)
		require.Equal(t, "running", events[0]["state"])
		require.Equal(t, "init", events[1]["subtype"])
		require.Equal(t, "result", events[len(events)-2]["type"])
		require.Equal(t, "You said: hello", events[len(events)-2]["result"])
		require.Equal(t, "idle", events[len(events)-1]["state"])
	})
	t.Run("codex", func(t *testing.T) {
		events, code, _ := codexTurn(t, newPlace(t), "hello")
		require.Zero(t, code)
		require.Equal(t, "thread.started", events[0]["type"])
		require.Equal(t, "turn.started", events[1]["type"])
		require.Equal(t, "turn.completed", events[len(events)-1]["type"])
	})
}

func TestClaudeWaitsForTheEndOfStdin(t *testing.T) {
	pr := start(t, newPlace(t), claudeArgs()...)
	pr.prompt("one").until(isIdle)
	// Still there: it takes another prompt, and gives it a result of its own.
	second := pr.prompt("two").until(isIdle)
	require.EqualValues(t, 1, one(t, second, is("result", ""))["result_index"])
	require.Empty(t, pr.eof().rest())
	require.Zero(t, pr.wait())
}

func TestClaudeStateEventsOnlyWhenAskedFor(t *testing.T) {
	p := newPlace(t)
	pr := start(t, p, claudeArgs()...)
	require.Contains(t, pr.cmd.Env, "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1")
	require.Len(t, all(pr.prompt("x").eof().rest(), is("system", "session_state_changed")), 2)
	require.Zero(t, pr.wait())

	self, err := os.Executable()
	require.NoError(t, err)
	quiet := startCommand(t, p, "/usr/bin/env", append([]string{"-u", "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", self, fakecli.Subcommand}, claudeArgs()...)...)
	require.Empty(t, all(quiet.prompt("x").eof().rest(), is("system", "session_state_changed")))
	require.Zero(t, quiet.wait())
}

func TestToolsReallyRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refused := closed.Addr().String()
	require.NoError(t, closed.Close())

	formats(t, func(t *testing.T, run runner) {
		testkit.NoLeaks(t)
		p := newPlace(t)
		events, code, _ := run(t, p, fakecli.Script(
			"sh echo one; echo two >&2",
			"sh exit 3",
			"sh kill -TERM $$",
			"write sub/file.txt some text",
			"write sub/file.txt/below x",
			"read sub/file.txt",
			"read missing",
			"connect "+l.Addr().String(),
			"connect "+refused,
			"say done",
		))
		require.Zero(t, code)
		data, err := os.ReadFile(filepath.Join(p.work, "sub", "file.txt"))
		require.NoError(t, err)
		require.Equal(t, "some text", string(data))

		got := strings.Join(results(events), "\n--\n")
		require.Contains(t, got, "one\ntwo")
		require.Contains(t, got, "some text")
		require.Contains(t, got, "ENOENT: no such file or directory, open '"+p.work+"/missing'")
		require.Contains(t, got, "connected to "+l.Addr().String())
		require.Contains(t, got, "ECONNREFUSED: connection refused, connect "+refused)
		require.Equal(t, []string{"done"}, said(events))
	})
}

func TestClaudeToolResults(t *testing.T) {
	p := newPlace(t)
	events, _, _ := claudeTurn(t, p, fakecli.Script("sh echo out; exit 3", "sh true", "write f x", "write f/g x", "write f y"))
	r := all(events, is("user", ""))
	require.Len(t, r, 5)
	block := func(i int) event { return at(r[i], "message", "content", 0).(event) }
	require.Equal(t, "Exit code 3\nout", block(0)["content"])
	require.Equal(t, true, block(0)["is_error"])
	require.Equal(t, "Error: Exit code 3\nout", r[0]["tool_use_result"])
	require.Equal(t, false, block(1)["is_error"])
	require.NotContains(t, block(2), "is_error")
	require.Equal(t, "create", at(r[2], "tool_use_result", "type"))
	require.Equal(t, "ENOTDIR: not a directory, mkdir '"+p.work+"/f'", block(3)["content"])
	require.Equal(t, true, block(3)["is_error"])
	require.Equal(t, "update", at(r[4], "tool_use_result", "type"))
	calls := all(events, func(e event) bool { return at(e, "message", "content", 0, "type") == "tool_use" })
	for i := range calls {
		require.Equal(t, at(calls[i], "message", "content", 0, "id"), block(i)["tool_use_id"])
	}
	require.EqualValues(t, 6, one(t, events, is("result", ""))["num_turns"])
}

func TestCodexToolResults(t *testing.T) {
	p := newPlace(t)
	events, code, stderr := codexTurn(t, p, fakecli.Script("sh echo out; exit 3", "sh kill -KILL $$", "write f x", "write f/g x", "write f y"))
	require.Zero(t, code)
	done := all(events, is("item.completed", ""))
	require.Len(t, done, 5)
	require.Equal(t, "/bin/bash -lc 'echo out; exit 3'", at(done[0], "item", "command"))
	require.Equal(t, "out\n", at(done[0], "item", "aggregated_output"))
	require.EqualValues(t, 3, at(done[0], "item", "exit_code"))
	require.Equal(t, "failed", at(done[0], "item", "status"))
	require.EqualValues(t, 137, at(done[1], "item", "exit_code"))
	require.Equal(t, []any{event{"path": p.work + "/f", "kind": "add"}}, at(done[2], "item", "changes"))
	require.Equal(t, "completed", at(done[2], "item", "status"))
	require.Equal(t, "failed", at(done[3], "item", "status"))
	require.Contains(t, stderr, "ERROR codex_core::tools::router: error=Exit code: 1")
	require.Contains(t, stderr, "ENOTDIR: not a directory")
	require.Equal(t, "update", at(done[4], "item", "changes", 0, "kind"))
}

func TestParallelResultsComeOutOfOrder(t *testing.T) {
	formats(t, func(t *testing.T, run runner) {
		p := newPlace(t)
		// They do run at once: each waits for the other.
		events, _, _ := run(t, p, fakecli.Script(
			"parallel touch a; while ! test -e b; do sleep 0.01; done; echo A;;touch b; while ! test -e a; do sleep 0.01; done; echo B"))
		require.Equal(t, []string{"B", "A"}, results(events))
	})
}

func TestMultiIsOneLineOfClaude(t *testing.T) {
	events, _, _ := claudeTurn(t, newPlace(t), fakecli.Script("multi"))
	a := one(t, events, is("assistant", ""))
	var kinds []any
	for i := range 4 {
		kinds = append(kinds, at(a, "message", "content", i, "type"))
	}
	require.Equal(t, []any{"thinking", "text", "tool_use", "tool_use"}, kinds)
	u := one(t, events, is("user", ""))
	require.Equal(t, []string{"multi two", "multi one"}, results([]event{u}))
	require.Equal(t, at(a, "message", "content", 2, "id"), at(u, "message", "content", 1, "tool_use_id"))
}

func TestWhatTheFakeSaysOfItself(t *testing.T) {
	formats(t, func(t *testing.T, run runner) {
		p := newPlace(t)
		events, _, _ := run(t, p, fakecli.Script("env HOME", "env NOT_THERE", "cwd", "printfd", "bytes 20", "lines 2", "delta ab", "delta cd", "say end"))
		require.Equal(t, []string{
			"HOME=" + p.state, "NOT_THERE unset", p.work, "fds 0 1 2", "0123456789abcdef0123", "line 1", "line 2", "abcd", "end",
		}, said(events))
	})
}

func TestPrintfdShowsAnInheritedDescriptor(t *testing.T) {
	p := newPlace(t)
	f, err := os.Create(filepath.Join(p.work, "secret"))
	require.NoError(t, err)
	defer f.Close()
	self, err := os.Executable()
	require.NoError(t, err)
	line := `exec "$@" 7<secret`
	pr := startCommand(t, p, "/bin/sh", append([]string{"-c", line, "sh", self, fakecli.Subcommand}, codexArgs()...)...)
	events := pr.write(fakecli.Script("printfd")).eof().rest()
	require.Zero(t, pr.wait())
	require.Equal(t, []string{"fds 0 1 2 7→" + p.work + "/secret"}, said(events))
}

func TestTodo(t *testing.T) {
	script := fakecli.Script("todo a|b", "todo +a|b")
	t.Run("claude", func(t *testing.T) {
		events, _, _ := claudeTurn(t, newPlace(t), script)
		calls := all(events, is("assistant", ""))
		require.Len(t, calls, 2)
		require.Equal(t, "TodoWrite", at(calls[1], "message", "content", 0, "name"))
		require.Equal(t, "completed", at(calls[1], "message", "content", 0, "input", "todos", 0, "status"))
		require.Equal(t, "pending", at(calls[1], "message", "content", 0, "input", "todos", 1, "status"))
	})
	t.Run("codex", func(t *testing.T) {
		events, _, _ := codexTurn(t, newPlace(t), script)
		for _, kind := range []string{"item.started", "item.updated", "item.completed"} {
			e := one(t, events, is(kind, ""))
			require.Equal(t, "item_0", at(e, "item", "id"))
			require.Equal(t, kind != "item.started", at(e, "item", "items", 0, "completed"))
		}
	})
}

func TestClaudeUsageAndCost(t *testing.T) {
	p := newPlace(t)
	_, code, _ := claudeTurn(t, p, "one", "--session-id", someID, "--model", "claude-test")
	require.Zero(t, code)
	events, _, _ := claudeTurn(t, p, fakecli.Script("usage 1000 10"), "--resume", someID, "--model", "claude-test")
	r := one(t, events, is("result", ""))
	require.EqualValues(t, 1000, at(r, "usage", "input_tokens"))
	require.EqualValues(t, 10, at(r, "usage", "output_tokens"))
	require.InDelta(t, 0.001424+0.0042, r["total_cost_usd"], 1e-9, "the cost is that of the conversation")
	require.EqualValues(t, 1011, at(r, "modelUsage", "claude-test", "inputTokens"))
	require.EqualValues(t, 1000, at(r, "model_usage_since_last_result", "claude-test", "inputTokens"))
}

func TestCodexUsageIsCumulative(t *testing.T) {
	p := newPlace(t)
	events, _, _ := codexTurn(t, p, fakecli.Script("usage 100 10"))
	id := events[0]["thread_id"].(string)
	for i, want := range []float64{100, 300} {
		if i > 0 {
			events, _, _ = codexTurn(t, p, fakecli.Script("usage 200 20"), "resume", id)
			require.Equal(t, id, events[0]["thread_id"])
		}
		require.Equal(t, want, at(one(t, events, is("turn.completed", "")), "usage", "input_tokens"))
	}
}

func TestResumeRemembers(t *testing.T) {
	t.Run("claude", func(t *testing.T) {
		p := newPlace(t)
		claudeTurn(t, p, "remember 42\nand more", "--session-id", someID)
		events, _, _ := claudeTurn(t, p, fakecli.Script("recall"), "--resume", someID)
		require.Equal(t, []string{"1 turns before; the last prompt: remember 42"}, said(events))
		require.Equal(t, someID, one(t, events, is("system", "init"))["session_id"])
		events, _, _ = claudeTurn(t, p, fakecli.Script("recall"), "--resume", someID)
		require.Equal(t, []string{"2 turns before; the last prompt: recall"}, said(events))
	})
	t.Run("codex", func(t *testing.T) {
		p := newPlace(t)
		events, _, _ := codexTurn(t, p, "remember 42")
		id := events[0]["thread_id"].(string)
		events, _, _ = codexTurn(t, p, fakecli.Script("recall"), "resume", id)
		require.Equal(t, []string{"1 turns before; the last prompt: remember 42"}, said(events))
	})
	t.Run("a turn that was killed", func(t *testing.T) {
		p := newPlace(t)
		pr := start(t, p, claudeArgs("--session-id", someID)...).prompt(fakecli.Script("say before", "hang"))
		pr.until(is("assistant", ""))
		pr.signal(os.Kill)
		require.Equal(t, -int(syscall.SIGKILL), pr.wait())
		events, _, _ := claudeTurn(t, p, fakecli.Script("recall"), "--resume", someID)
		require.Equal(t, []string{"1 turns before; the last prompt: say before"}, said(events))
	})
}

func TestUnknownConversation(t *testing.T) {
	t.Run("claude", func(t *testing.T) {
		events, code, stderr := claudeTurn(t, newPlace(t), "x", "--resume", someID)
		require.Equal(t, 1, code)
		require.Equal(t, "No conversation found with session ID: "+someID+"\n", stderr)
		require.Equal(t, someID, one(t, events, is("result", "error_during_execution"))["session_id"])
		require.Len(t, events, 1)
	})
	t.Run("claude: an id that is a path", func(t *testing.T) {
		p := newPlace(t)
		claudeTurn(t, p, "x", "--session-id", someID)
		_, code, _ := claudeTurn(t, p, "x", "--resume", "../fakecli/"+someID)
		require.Equal(t, 1, code)
	})
	t.Run("codex", func(t *testing.T) {
		events, code, stderr := codexTurn(t, newPlace(t), "x", "resume", someID)
		require.Equal(t, 1, code)
		require.Empty(t, events)
		require.Equal(t, "Error: thread/resume: thread/resume failed: no rollout found for thread id "+someID+" (code -32600)\n", stderr)
	})
	t.Run("codex: a name starts a new thread", func(t *testing.T) {
		events, code, _ := codexTurn(t, newPlace(t), "x", "resume", "some-name")
		require.Zero(t, code)
		require.NotEqual(t, "some-name", events[0]["thread_id"])
	})
}

func TestStartupRefusals(t *testing.T) {
	t.Run("claude", func(t *testing.T) {
		p := newPlace(t)
		claudeTurn(t, p, "x", "--session-id", someID)
		for want, args := range map[string][]string{
			"Error: Session ID " + someID + " is already in use.\n": claudeArgs("--session-id", someID),
			"Error: Invalid session ID. Must be a valid UUID.\n":    claudeArgs("--session-id", "x"),
			"error: unknown option '--no-such-flag'\n":              claudeArgs("--no-such-flag"),
			"Error: When using --print, --output-format=stream-json requires --verbose\n": {
				"claude", "-p", "--output-format", "stream-json", "--input-format", "stream-json"},
		} {
			pr := start(t, p, args...).eof()
			require.Empty(t, pr.rest())
			require.Equal(t, 1, pr.wait())
			require.Equal(t, want, pr.stderr.String())
		}
	})
	t.Run("claude: bypass as root needs IS_SANDBOX", func(t *testing.T) {
		self, err := os.Executable()
		require.NoError(t, err)
		pr := startCommand(t, newPlace(t), "/usr/bin/env", append([]string{"-u", "IS_SANDBOX", self, fakecli.Subcommand}, claudeArgs()...)...).eof()
		require.Empty(t, pr.rest())
		if os.Geteuid() == 0 {
			require.Equal(t, 1, pr.wait())
			require.Contains(t, pr.stderr.String(), "cannot be used with root/sudo privileges")
		} else {
			require.Zero(t, pr.wait())
		}
	})
	t.Run("codex", func(t *testing.T) {
		p := newPlace(t)
		for want, args := range map[string][]string{
			"No prompt provided via stdin.\n":                                               codexArgs(),
			"Not inside a trusted directory and --skip-git-repo-check was not specified.\n": {"codex", "exec", "--json", "-"},
		} {
			pr := start(t, p, args...).eof()
			require.Empty(t, pr.rest())
			require.Equal(t, 1, pr.wait())
			require.Equal(t, want, pr.stderr.String())
		}
		require.NoError(t, os.Mkdir(filepath.Join(p.work, ".git"), 0o700))
		pr := start(t, p, "codex", "exec", "--json", "-").write("x").eof()
		require.NotEmpty(t, pr.rest())
		require.Zero(t, pr.wait())
	})
	t.Run("codex: the sandbox flag comes before resume", func(t *testing.T) {
		pr := start(t, newPlace(t), codexArgs("resume", someID, "-s", "read-only")...).eof()
		require.Equal(t, 2, pr.wait())
		require.Contains(t, pr.stderr.String(), "unexpected argument '-s'")
	})
	t.Run("codex: state that cannot be written", func(t *testing.T) {
		p := newPlace(t)
		require.NoError(t, os.WriteFile(filepath.Join(p.state, "sessions"), nil, 0o600))
		_, code, stderr := codexTurn(t, p, "x")
		require.Equal(t, 1, code)
		require.Equal(t, "Error: failed to initialize in-process app-server client: Not a directory (os error 20)\n", stderr)
	})
	t.Run("claude: state that cannot be written is lost silently", func(t *testing.T) {
		p := newPlace(t)
		require.NoError(t, os.WriteFile(filepath.Join(p.state, "projects"), nil, 0o600))
		_, code, stderr := claudeTurn(t, p, "x", "--session-id", someID)
		require.Zero(t, code)
		require.Empty(t, stderr)
		_, code, _ = claudeTurn(t, p, "x", "--resume", someID)
		require.Equal(t, 1, code)
	})
	t.Run("no such format", func(t *testing.T) {
		pr := start(t, newPlace(t), "gemini").eof()
		require.Equal(t, 64, pr.wait())
	})
}

func TestBadScriptIsNotStarted(t *testing.T) {
	formats(t, func(t *testing.T, run runner) {
		for _, bad := range []string{"shout x", "sleep", "usage 5", "sleep soon", "bytes -1", "ignore SIGNOT", "parallel a", "rawfile missing"} {
			p := newPlace(t)
			events, code, stderr := run(t, p, fakecli.Script("say before", bad))
			require.Equal(t, 64, code, bad)
			require.Contains(t, stderr, "fakecli: ", bad)
			require.Empty(t, all(events, func(e event) bool { return e["type"] == "result" || e["type"] == "turn.completed" }))
		}
	})
}

func TestErrorFinal(t *testing.T) {
	script := fakecli.Script("say before", "error rate_limit too much of it")
	t.Run("claude", func(t *testing.T) {
		events, code, _ := claudeTurn(t, newPlace(t), script)
		require.Equal(t, 1, code)
		r := one(t, events, is("result", "success"))
		require.Equal(t, true, r["is_error"])
		require.EqualValues(t, 429, r["api_error_status"])
		require.Equal(t, "API Error: 429 too much of it", r["result"])
		require.Equal(t, "rate_limit", events[len(events)-3]["error"])
	})
	t.Run("codex", func(t *testing.T) {
		events, code, _ := codexTurn(t, newPlace(t), script)
		require.Equal(t, 1, code)
		last, before := events[len(events)-1], events[len(events)-2]
		require.Equal(t, "turn.failed", last["type"])
		require.Equal(t, "error", before["type"])
		require.Equal(t, before["message"], at(last, "error", "message"))
		body := decode(t, before["message"].(string))
		require.Equal(t, "too much of it", at(body, "error", "message"))
		require.Equal(t, "rate_limit", at(body, "error", "type"))
	})
}

func TestEndsWithoutAFinal(t *testing.T) {
	formats(t, func(t *testing.T, run runner) {
		for command, want := range map[string]int{
			"noresult": 0, "exit 7": 7, "kill TERM": -15, "kill SIGKILL": -9, "kill QUIT": -3, "kill SEGV": -11, "kill USR1": -10,
		} {
			events, code, _ := run(t, newPlace(t), fakecli.Script("say x", command, "say never"))
			require.Equal(t, want, code, command)
			require.Equal(t, []string{"x"}, said(events), command)
			require.Empty(t, all(events, func(e event) bool { return e["type"] == "result" || e["type"] == "turn.completed" }), command)
		}
	})
}

func TestRawOutput(t *testing.T) {
	for _, args := range [][]string{claudeArgs(), codexArgs()} {
		p := newPlace(t)
		verbatim := "{\"a\":1\x00\xff}\r\n\n no json"
		require.NoError(t, os.WriteFile(filepath.Join(p.work, "bytes"), []byte(verbatim+"\n"), 0o600))
		pr := start(t, p, args...)
		script := fakecli.Script("raw {\"type\":\"novel\"}", "rawfile bytes", "stderr some  noise", "partial {\"type\":\"resu")
		if args[0] == "claude" {
			pr.prompt(script)
		} else {
			pr.write(script).eof()
		}
		var lines []string
		for line, ok := pr.next(); ok; line, ok = pr.next() {
			lines = append(lines, line)
		}
		require.Zero(t, pr.wait())
		require.Equal(t, "{\"type\":\"novel\"}\n"+verbatim+"\n{\"type\":\"resu", strings.Join(lines[2:], ""))
		require.Equal(t, "some  noise\n", pr.stderr.String())
	}
}

func TestInterruptByProtocol(t *testing.T) {
	testkit.NoLeaks(t)
	for _, c := range []struct{ script, reason, said string }{
		{"sh echo $$ > pid; sleep 600", "aborted_tools", "[Request interrupted by user for tool use]"},
		{"hang", "aborted_streaming", "[Request interrupted by user]"},
		{"sleep 1h", "aborted_streaming", "[Request interrupted by user]"},
	} {
		p := newPlace(t)
		pr := start(t, p, claudeArgs()...).prompt(fakecli.Script("say x", c.script))
		pr.until(is("assistant", ""))
		if c.reason == "aborted_tools" {
			require.Eventually(t, func() bool { return pidOf(filepath.Join(p.work, "pid")) != 0 }, patience, time.Millisecond)
		}
		events := pr.write(interrupt).until(isIdle)
		require.Equal(t, "int-1", at(one(t, events, is("control_response", "")), "response", "request_id"))
		r := one(t, events, is("result", "error_during_execution"))
		require.Equal(t, true, r["is_error"])
		require.Equal(t, c.reason, r["terminal_reason"])
		users := all(events, is("user", ""))
		require.Equal(t, c.said, at(users[len(users)-1], "message", "content", 0, "text"))
		if c.reason == "aborted_tools" {
			require.Equal(t, "User rejected tool use", users[0]["tool_use_result"])
			require.False(t, testkit.Alive(pidOf(filepath.Join(p.work, "pid"))), "the command was ended")
		}
		// The process stays usable.
		again := pr.prompt("again").until(isIdle)
		require.Equal(t, "You said: again", one(t, again, is("result", "success"))["result"])
		require.Empty(t, pr.eof().rest())
		require.Zero(t, pr.wait())
	}
}

func pidOf(file string) int {
	data, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}

func TestControlRequests(t *testing.T) {
	pr := start(t, newPlace(t), claudeArgs()...)
	response := func(id, subtype string) event {
		pr.write(`{"type":"control_request","request_id":"` + id + `","request":{"subtype":"` + subtype + `"}}` + "\n")
		return at(pr.until(is("control_response", ""))[0], "response").(event)
	}
	require.Equal(t, "success", response("a", "interrupt")["subtype"], "an interruption between turns does nothing")
	require.NotNil(t, at(response("b", "initialize"), "response", "models"))
	bad := response("c", "dance")
	require.Equal(t, "c", bad["request_id"])
	require.Equal(t, "Unsupported control request subtype: dance", bad["error"])
	pr.write("\n").write(`{"type":"novelty"}` + "\n").prompt("x").until(isIdle)
	require.Empty(t, pr.eof().rest())
	require.Zero(t, pr.wait())
}

func TestBadInputKillsClaude(t *testing.T) {
	for line, want := range map[string]string{
		"no json\n": "Error parsing streaming input line: ",
		`{"type":"user","message":{"role":"assistant","content":"x"}}` + "\n": "Error: Expected message role 'user', got 'assistant'",
		`{"type":"user"}` + "\n": "Error: Expected message role 'user', got 'undefined'",
	} {
		pr := start(t, newPlace(t), claudeArgs()...).write(line)
		require.Empty(t, pr.rest())
		require.Equal(t, 1, pr.wait())
		require.Contains(t, pr.stderr.String(), want)

		pr = start(t, newPlace(t), claudeArgs()...).prompt(fakecli.Script("say x", "hang"))
		pr.until(is("assistant", ""))
		require.Empty(t, pr.write(line).rest(), "it dies in the middle of a turn, too")
		require.Equal(t, 1, pr.wait())
	}
}

func TestBlocksAsPrompt(t *testing.T) {
	pr := start(t, newPlace(t), claudeArgs()...)
	pr.write(`{"type":"user","message":{"role":"user","content":[{"type":"text","text":"in a block"}]}}` + "\n")
	require.Equal(t, []string{"You said: in a block"}, said(pr.eof().rest()))
	require.Zero(t, pr.wait())
}

func TestSignals(t *testing.T) {
	testkit.NoLeaks(t)
	for _, c := range []struct {
		script string
		signal syscall.Signal
		code   int
		last   string // the type of the last event
	}{
		{"hang", syscall.SIGTERM, 143, "assistant"},
		{"hang", syscall.SIGHUP, 129, "assistant"},
		{"hang", syscall.SIGINT, 0, "user"},
		{"sh touch up; sleep 600", syscall.SIGTERM, 143, "user"},
		{"sh touch up; sleep 600", syscall.SIGINT, 0, "result"},
		{"delta some", syscall.SIGINT, 0, "result"},
	} {
		p := newPlace(t)
		script := fakecli.Script("say x", c.script, "hang")
		pr := start(t, p, claudeArgs()...).prompt(script)
		events := pr.until(is("assistant", ""))
		if strings.HasPrefix(c.script, "delta") {
			pr.until(func(e event) bool { return at(e, "event", "delta", "text") == "some" })
		}
		if strings.HasPrefix(c.script, "sh") {
			require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(p.work, "up")); return err == nil }, patience, time.Millisecond)
		}
		events = append(events, pr.signal(c.signal).rest()...)
		require.Equal(t, c.code, pr.wait(), "%+v", c)
		require.Equal(t, c.last, events[len(events)-1]["type"], "%+v", c)
	}
	// Between turns.
	for s, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 0} {
		pr := start(t, newPlace(t), claudeArgs()...).prompt("x")
		pr.until(isIdle)
		require.Empty(t, pr.signal(s).rest())
		require.Equal(t, code, pr.wait())
	}
}

func TestCodexSignals(t *testing.T) {
	testkit.NoLeaks(t)
	for s, code := range map[syscall.Signal]int{syscall.SIGINT: 1, syscall.SIGTERM: -15, syscall.SIGHUP: -1} {
		p := newPlace(t)
		pr := start(t, p, codexArgs()...).write(fakecli.Script("say x", "hang")).eof()
		pr.until(is("item.completed", ""))
		require.Empty(t, pr.signal(s).rest())
		require.Equal(t, code, pr.wait())
	}
	// SIGINT ends the running command, too.
	p := newPlace(t)
	pr := start(t, p, codexArgs()...).write(fakecli.Script("sh echo $$ > pid; sleep 600")).eof()
	pr.until(is("item.started", ""))
	require.Eventually(t, func() bool { return pidOf(filepath.Join(p.work, "pid")) != 0 }, patience, time.Millisecond)
	require.Empty(t, pr.signal(syscall.SIGINT).rest())
	require.Equal(t, 1, pr.wait())
	require.False(t, testkit.Alive(pidOf(filepath.Join(p.work, "pid"))))
}

func TestTrapLeavesOnlySIGKILL(t *testing.T) {
	testkit.NoLeaks(t)
	pr := start(t, newPlace(t), claudeArgs()...).prompt(fakecli.Script("trap", "say up", "hang"))
	pr.until(is("assistant", ""))
	pr.write(interrupt)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		pr.signal(s)
	}
	select {
	case line := <-pr.stdout:
		t.Fatalf("it reacted: %s", line)
	case <-time.After(300 * time.Millisecond):
	}
	pr.signal(syscall.SIGKILL)
	require.Equal(t, -9, pr.wait())
}

func TestForkLeavesPlainChildren(t *testing.T) {
	formats(t, func(t *testing.T, run runner) {
		testkit.NoLeaks(t)
		events, code, _ := run(t, newPlace(t), fakecli.Script("fork 2"))
		require.Zero(t, code, "the children do not keep stdout")
		pids := strings.Fields(results(events)[0])
		require.Len(t, pids, 2)
		for _, s := range pids {
			pid, err := strconv.Atoi(s)
			require.NoError(t, err)
			require.Equal(t, "sleep", testkit.Comm(pid))
			killAndWait(t, pid)
		}
	})
}

func TestDaemonIsTiedToNothing(t *testing.T) {
	testkit.NoLeaks(t)
	p := newPlace(t)
	pidfile := filepath.Join(p.work, "daemon.pid")
	events, code, _ := codexTurn(t, p, fakecli.Script("daemon "+pidfile))
	require.Zero(t, code)
	pid := pidOf(pidfile)
	require.Equal(t, strconv.Itoa(pid), results(events)[0])
	defer killAndWait(t, pid)
	require.Equal(t, "sleep", testkit.Comm(pid))
	sid, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, sid, "leader of its own group")
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	require.NoError(t, err)
	require.Empty(t, environ)
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	require.NoError(t, err)
	require.Empty(t, fds)
}

func TestHoldstdoutKeepsThePipe(t *testing.T) {
	testkit.NoLeaks(t)
	pr := start(t, newPlace(t), codexArgs()...).write(fakecli.Script("holdstdout 1h")).eof()
	events := pr.until(is("turn.completed", ""))
	require.Zero(t, pr.wait())
	select {
	case _, ok := <-pr.stdout:
		require.True(t, ok, "end of file, although the grandchild has the pipe")
	case <-time.After(200 * time.Millisecond):
	}
	pid, err := strconv.Atoi(results(events)[0])
	require.NoError(t, err)
	killAndWait(t, pid)
	require.Empty(t, pr.rest())
}

func TestReaderThatIsGone(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{{claudeArgs(), 0}, {codexArgs(), 101}} {
		p := newPlace(t)
		self, err := os.Executable()
		require.NoError(t, err)
		// The pipe's reader exits at once; the shell passes the fake's exit code on.
		line := `{ "$@"; echo $? > code; } | true`
		pr := startCommand(t, p, "/bin/sh", append([]string{"-c", line, "sh", self, fakecli.Subcommand}, c.args...)...)
		script := fakecli.Script("sleep 300ms", "lines 5")
		if c.code == 0 {
			pr.prompt(script).eof()
		} else {
			pr.write(script).eof()
		}
		require.Zero(t, pr.wait())
		require.Equal(t, c.code, pidOf(filepath.Join(p.work, "code")))
	}
}
