package cli_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/cmd/caisson/internal/cli"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) {
	fakecli.Host()
	testkit.MainWithFake(m)
}

// bench is a place to run the program in.
type bench struct {
	t         *testing.T
	workspace string
	state     string
	stdin     io.Reader
	signals   chan os.Signal
	noDir     error
	stdout    io.Writer // beside the buffer
	tty       *os.File  // instead of the buffer
	env       string    // a variable that is set, beside the process's
	compose   []composition.Option
	real      bool   // the real adapters, not the fakes
	program   string // what the command takes itself to be, "" for this test
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{t: t, workspace: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), stdin: strings.NewReader("")}
}

type result struct {
	code           int
	stdout, stderr string
}

func (b *bench) run(args ...string) result {
	b.t.Helper()
	program, err := os.Executable()
	require.NoError(b.t, err)
	opts := []composition.Option{composition.WithStateRoot(b.state)}
	if !b.real {
		opts = append(opts,
			composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), program)),
			composition.WithAgentAdapter(fakecli.NewAdapter(codex.New(), program)))
	}
	var stdout, stderr bytes.Buffer
	out := io.Writer(&stdout)
	if b.stdout != nil {
		out = io.MultiWriter(&stdout, b.stdout)
	}
	if b.tty != nil {
		out = b.tty
	}
	lookup := func(name string) (string, bool) {
		switch {
		case name == b.env:
			return "1", true
		case name == "TERM":
			return "xterm", true
		case name == "PATH":
			// A directory that the user may not search would make "not found" a
			// "permission denied", as in execvp(3).
			return "/usr/bin:/bin", true
		case name == "NO_COLOR":
			return "", false
		}
		return os.LookupEnv(name)
	}
	code := cli.Main(b.t.Context(), cli.Process{
		Args: args, Stdin: b.stdin, Stdout: out, Stderr: &stderr, LookupEnv: lookup,
		Signals: b.signals, Dir: b.workspace, NoDir: b.noDir, Executable: cmp.Or(b.program, program), Compose: append(opts, b.compose...),
	})
	return result{code, stdout.String(), stderr.String()}
}

// events decodes the events of a JSON output.
func (b *bench) events(stdout string) []domain.Event {
	b.t.Helper()
	var events []domain.Event
	for line := range strings.SplitSeq(strings.TrimSuffix(stdout, "\n"), "\n") {
		e, err := jsonl.Decode([]byte(line))
		require.NoError(b.t, err)
		events = append(events, e)
	}
	return events
}

// requireUntouched checks that no session was begun.
func (b *bench) requireUntouched() {
	b.t.Helper()
	sessions, err := os.ReadDir(filepath.Join(b.state, "sessions"))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(b.t, err)
	}
	require.Empty(b.t, sessions, "a session was begun")
	left, err := os.ReadDir(b.workspace)
	require.NoError(b.t, err)
	require.Empty(b.t, left)
}

// Every bad input is refused by a message that names it and says what to do,
// with the documented exit code, and leaves nothing behind.
func TestBadInput(t *testing.T) {
	testkit.NoLeaks(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	run := func(args ...string) []string { return append([]string{"run", "--agent", "claude"}, args...) }
	for name, c := range map[string]struct {
		args  []string
		stdin string
		real  bool // needs the real adapter
		code  int
		says  []string
	}{
		"no command":             {args: nil, code: 2, says: []string{"no command", "--help"}},
		"unknown command":        {args: []string{"fly"}, code: 2, says: []string{`"fly"`, `see "caisson --help"`}},
		"mistyped command":       {args: []string{"rnu"}, code: 2, says: []string{`no command "rnu"; did you mean run?`}},
		"mistyped below it":      {args: []string{"sessions", "lst"}, code: 2, says: []string{`no command "lst"; did you mean list?`}},
		"mistyped flag":          {args: run("--allow-domian", "example.org", "x"), code: 2, says: []string{"unknown flag: --allow-domian; did you mean --allow-domain?"}},
		"mistyped flag of exec":  {args: []string{"exec", "--conect", "127.0.0.1:1", "--", "true"}, code: 125, says: []string{"did you mean --connect?"}},
		"neither yes nor no":     {args: run("--udp=maybe", "x"), code: 2, says: []string{`invalid argument "maybe" for "--udp" flag: neither true nor false`}},
		"no number":              {args: run("--pids", "many", "x"), code: 2, says: []string{`invalid argument "many" for "--pids" flag: no such number`}},
		"login without terminal": {args: []string{"login", "claude"}, code: 2, says: []string{"terminal", "name the file with the login: --from FILE"}},
		"unknown flag":           {args: run("--frobnicate", "x"), code: 2, says: []string{"--frobnicate", `see "caisson run --help"`}},
		"flag of a later issue":  {args: run("--cpus", "x"), code: 2, says: []string{"--cpus"}},
		"no agent":               {args: []string{"run", "x"}, code: 2, says: []string{"--agent", "claude"}},
		"unknown agent":          {args: []string{"run", "--agent", "gemini", "x"}, code: 2, says: []string{`"gemini"`, "claude, codex"}},
		"no prompt":              {args: run(), code: 2, says: []string{"no prompt", "-"}},
		"two prompts":            {args: run("two", "words"), code: 2, says: []string{"one prompt", "quotes"}},
		"a login without =":      {args: run("--login", "work", "a prompt"), code: 2, says: []string{"one prompt", "--login=NAME"}},
		"empty prompt":           {args: run(""), code: 2, says: []string{"prompt", "empty"}},
		"blank prompt":           {args: run(" \n\t"), code: 2, says: []string{"prompt"}},
		"empty stdin":            {args: run("-"), code: 2, says: []string{"prompt", "empty"}},
		"prompt without bounds":  {args: run("-"), stdin: strings.Repeat("x", 33<<20), code: 2, says: []string{"prompt", "bytes"}},
		"missing program":        {args: run("--agent-bin", "/nonexistent/claude", "x"), real: true, code: 4, says: []string{"/nonexistent/claude"}},
		"program is a directory": {args: run("--agent-bin", "/usr", "x"), real: true, code: 4, says: []string{"/usr"}},
		"program is a text":      {args: run("--agent-bin", file, "x"), real: true, code: 4, says: []string{file}},
		"missing workspace":      {args: run("--workspace", "/nonexistent/ws", "x"), code: 2, says: []string{"workspace", "/nonexistent/ws"}},
		"workspace is a file":    {args: run("--workspace", file, "x"), code: 2, says: []string{"workspace", file}},
		"workspace is /":         {args: run("--workspace", "/", "x"), code: 2, says: []string{"workspace", `"/"`}},
		"NUL in workspace":       {args: run("--workspace", "/tmp/a\x00b", "x"), code: 2, says: []string{`"/tmp/a\x00b"`}},
		"NUL in path":            {args: run("--ro", "/a\x00b", "x"), code: 2, says: []string{`/a\x00b`}},
		"empty path":             {args: run("--ro", "", "x"), code: 2, says: []string{"--ro", "empty path"}},
		"missing path":           {args: run("--rw", "/nonexistent/dir", "x"), code: 2, says: []string{"/nonexistent/dir", "--rw", "say --optional-rw\n"}},
		"malformed session id":   {args: run("--resume", "../../etc", "x"), code: 2, says: []string{"--resume", "../../etc", "UUID", "continue with: --resume"}},
		"unknown session id":     {args: run("--resume", id, "x"), code: 2, says: []string{id, "continue with: --resume"}},
		"duration":               {args: run("--timeout", "soon", "x"), code: 2, says: []string{"--timeout", "soon", "90s"}},
		"duration without unit":  {args: run("--timeout", "3", "x"), code: 2, says: []string{"--timeout", "write 3s"}},
		"negative duration":      {args: run("--timeout", "-1s", "x"), code: 2, says: []string{"--timeout", "negative"}},
		"negative idle":          {args: run("--idle-timeout", "-1s", "x"), code: 2, says: []string{"--idle-timeout", "negative"}},
		"port 0":                 {args: run("--connect-tcp", "0", "x"), code: 2, says: []string{"--connect-tcp", `"0"`, "65535"}},
		"port":                   {args: run("--bind-tcp", "http", "x"), code: 2, says: []string{"--bind-tcp", "http", "65535"}},
		"variable":               {args: run("--env", "=x", "x"), code: 2, says: []string{"--env", "NAME=VALUE"}},
		"unknown property":       {args: run("--waive", "gravity", "x"), code: 2, says: []string{"--waive", "gravity", "filesystem", "udp"}},
		"unix sockets":           {args: run("--unix-sockets", "some", "x"), code: 2, says: []string{"--unix-sockets", "some", "own"}},
		"sandbox":                {args: run("--sandbox", "maybe", "x"), code: 2, says: []string{"--sandbox", "maybe", "off"}},
		"gateway":                {args: run("--gateway", "maybe", "x"), code: 2, says: []string{"--gateway", "maybe", "off"}},
		"a key for the agent":    {args: run("--env", "ANTHROPIC_API_KEY=x", "x"), code: 2, says: []string{"ANTHROPIC_API_KEY", "--gateway off"}},
		"credential file":        {args: run("--credential-file", "key", "x"), code: 2, says: []string{"--credential-file", "NAME=PATH"}},
		"no credential file":     {args: run("--credential-file", "ANTHROPIC_API_KEY=/nonexistent", "x"), code: 2, says: []string{"ANTHROPIC_API_KEY", "/nonexistent"}},
		"a file without gateway": {args: run("--gateway", "off", "--credential-file", "ANTHROPIC_API_KEY=/nonexistent", "x"), code: 2, says: []string{"only the model gateway"}},
		"rules without sandbox":  {args: run("--sandbox", "off", "--ro", "/usr", "x"), code: 2, says: []string{"unconfined"}},
		"output":                 {args: run("--output", "xml", "x"), code: 2, says: []string{"--output", "xml", "json"}},
		"plan with argument":     {args: []string{"plan", "--agent", "claude", "x"}, code: 2, says: []string{`"x"`}},
		"doctor with argument":   {args: []string{"doctor", "x"}, code: 2, says: []string{`"x"`}},
		"verify with argument":   {args: []string{"verify", "x"}, code: 2, says: []string{`"x"`}},
		"verify nothing":         {args: []string{"verify", "--sandbox", "off"}, code: 2, says: []string{"--sandbox", "nothing to verify"}},
		"verify unknown layer":   {args: []string{"verify", "--layers", "landlock,onion"}, code: 2, says: []string{"--layers", "onion", "seccomp"}},
		"verify layer twice":     {args: []string{"verify", "--layers", "landlock,landlock"}, code: 2, says: []string{"--layers", "twice"}},
		"verify report nowhere":  {args: []string{"verify", "--junit", "none/report.xml"}, code: 2, says: []string{"--junit", "none/report.xml", "no such file"}},
		"exec nothing":           {args: []string{"exec"}, code: 125, says: []string{"no command"}},
		"exec unknown flag":      {args: []string{"exec", "--frobnicate", "--", "true"}, code: 125, says: []string{"--frobnicate", `see "caisson exec --help"`}},
		"exec unknown property":  {args: []string{"exec", "--waive", "gravity", "--", "true"}, code: 125, says: []string{"gravity", "filesystem"}},
		"exec NUL":               {args: []string{"exec", "--", "/bin/echo", "a\x00b"}, code: 125, says: []string{`"a\x00b"`, "NUL"}},
		"exec missing path":      {args: []string{"exec", "--ro", "/nonexistent/dir", "--", "true"}, code: 125, says: []string{"/nonexistent/dir"}},
		"exec not found":         {args: []string{"exec", "--", "nonexistent-command"}, code: 127, says: []string{"nonexistent-command"}},
		"exec not found, path":   {args: []string{"exec", "--", "/nonexistent/cmd"}, code: 127, says: []string{"/nonexistent/cmd"}},
		"exec not executable":    {args: []string{"exec", "--", file}, code: 126, says: []string{file}},
		"exec a directory":       {args: []string{"exec", "--", "/usr"}, code: 126, says: []string{"/usr"}},
		"exec empty name":        {args: []string{"exec", "--", ""}, code: 125, says: []string{"command"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.stdin, b.real = strings.NewReader(c.stdin), c.real
			got := b.run(c.args...)
			require.Equal(t, c.code, got.code, "%s", got.stderr)
			require.True(t, strings.HasPrefix(got.stderr, "caisson: "), "%q", got.stderr)
			for _, s := range c.says {
				require.Contains(t, got.stderr, s)
			}
			require.NotContains(t, got.stderr, "\x00")
			require.Less(t, len(got.stderr), 1000, "the point must not be lost")
			require.Empty(t, got.stdout)
			b.requireUntouched()
		})
	}
}

func TestWithoutAWorkingDirectory(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"exec", "--", "true"}, 125},
		{[]string{"run", "--agent", "claude", "x"}, 2},
		{[]string{"plan", "--agent", "claude"}, 2},
		{[]string{"version"}, 0},
	} {
		b := newBench(t)
		b.noDir = syscall.ENOENT
		got := b.run(c.args...)
		require.Equal(t, c.code, got.code, got.stderr)
		if c.code != 0 {
			require.Contains(t, got.stderr, "working directory")
			require.Contains(t, got.stderr, "cd to a directory that exists")
		}
		b.requireUntouched()
	}
}

func TestAMissingAgentIsNamedWithWhereItWasLookedFor(t *testing.T) {
	b := newBench(t)
	b.real = true
	b.compose = []composition.Option{composition.WithEnviron(func(name string) (string, bool) {
		return map[string]string{"PATH": "/nonexistent/bin", "HOME": "/nonexistent"}[name], true
	})}
	got := b.run("run", "--agent", "codex", "hello")
	require.Equal(t, 4, got.code, got.stderr)
	require.Contains(t, got.stderr, "codex")
	require.Contains(t, got.stderr, "--agent-bin")
	b.requireUntouched()
}

func TestRunText(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for _, agent := range []string{"claude", "codex"} {
		b := newBench(t)
		got := b.run("run", "--agent", agent, fakecli.Script("say Look.", "write made.txt x", "say Done."))
		require.Equal(t, 0, got.code, got.stderr)
		require.Empty(t, got.stderr)
		require.FileExists(t, filepath.Join(b.workspace, "made.txt"), "the working directory is the workspace")
		lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
		require.True(t, strings.HasPrefix(lines[0], "caisson: confined by landlock+seccomp (ABI "), lines[0])
		require.Contains(t, lines, "  Look.")
		require.Contains(t, lines, "  Done.")
		require.Contains(t, got.stdout, "made.txt")
		require.Contains(t, lines[len(lines)-2], "caisson: completed in ")
		require.Contains(t, lines[len(lines)-1], "--resume ")
	}
}

func TestRunJSON(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	got := b.run("run", "--agent", "claude", "--output", "json", "Hello")
	require.Equal(t, 0, got.code, got.stderr)
	events := b.events(got.stdout)
	for i, e := range events {
		require.Equal(t, uint64(i+1), e.Seq)
		require.Equal(t, 1, e.Turn)
		require.Equal(t, domain.AgentClaude, e.Agent)
	}
	require.IsType(t, domain.SandboxApplied{}, events[0].Reply)
	require.Equal(t, "You said: Hello", events[len(events)-1].Reply.(domain.Final).Text)
}

func TestALongPromptFromStandardInput(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	prompt := "begin" + strings.Repeat("x", 5<<20)
	b.stdin = strings.NewReader(prompt)
	got := b.run("run", "--agent", "claude", "--output", "json", "-")
	require.Equal(t, 0, got.code, got.stderr)
	events := b.events(got.stdout)
	require.Equal(t, "You said: "+prompt[:200], events[len(events)-1].Reply.(domain.Final).Text)
}

func TestExitCodes(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for name, c := range map[string]struct {
		script  []string
		flags   []string
		code    int
		outcome domain.Outcome
	}{
		"completed": {script: []string{"say x"}, code: 0, outcome: domain.OutcomeCompleted},
		"failed":    {script: []string{"error rate_limit slow down"}, code: 1, outcome: domain.OutcomeFailed},
		"exited":    {script: []string{"exit 3"}, code: 1, outcome: domain.OutcomeExited},
		"killed":    {script: []string{"kill SEGV"}, code: 1, outcome: domain.OutcomeExited},
		"no final":  {script: []string{"noresult"}, code: 5, outcome: domain.OutcomeProtocolError},
		"cut":       {script: []string{`partial {"type":`}, code: 5, outcome: domain.OutcomeProtocolError},
		"timeout":   {script: []string{"hang"}, flags: []string{"--timeout", "300ms"}, code: 124, outcome: domain.OutcomeTimedOut},
		"idle":      {script: []string{"hang"}, flags: []string{"--idle-timeout", "300ms"}, code: 124, outcome: domain.OutcomeTimedOut},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			args := append([]string{"run", "--agent", "claude", "--output", "json"}, c.flags...)
			got := b.run(append(args, fakecli.Script(c.script...))...)
			events := b.events(got.stdout)
			require.Equal(t, c.outcome, events[len(events)-1].Reply.(domain.Final).Outcome)
			require.Equal(t, c.code, got.code, got.stderr)
		})
	}
}

// when calls a function once, when the output has a text.
type when struct {
	text string
	do   func()
	once sync.Once
	seen bytes.Buffer
}

func (w *when) Write(p []byte) (int, error) {
	w.seen.Write(p)
	if strings.Contains(w.seen.String(), w.text) {
		w.once.Do(w.do)
	}
	return len(p), nil
}

func TestAnInterruptCancelsTheTurn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		b := newBench(t)
		b.signals = make(chan os.Signal, 1)
		b.stdout = &when{text: "Working.", do: func() { b.signals <- sig }}
		got := b.run("run", "--agent", "claude", "--output", "json", fakecli.Script("say Working.", "hang"))
		require.Equal(t, 130, got.code, got.stderr)
		events := b.events(got.stdout)
		final := events[len(events)-1].Reply.(domain.Final)
		require.Equal(t, domain.OutcomeCancelled, final.Outcome, "the end is told as well")
		require.Contains(t, final.Error.Message, sig.String())
	}
}

func TestAnInterruptBeforeTheTurn(t *testing.T) {
	testkit.NoLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr bytes.Buffer
	code := cli.Main(ctx, cli.Process{
		Args: []string{"run", "--agent", "claude", "x"}, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr,
		LookupEnv: os.LookupEnv, Dir: t.TempDir(), Compose: []composition.Option{composition.WithStateRoot(filepath.Join(t.TempDir(), "s"))},
	})
	require.Equal(t, 130, code, stderr.String())
}

// full is a standard output on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestAFullDiskIsNotCalledAClosedOutput(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	b.stdout = full{}
	got := b.run("run", "--agent", "claude", fakecli.Script("say one", "hang"))
	require.Equal(t, 1, got.code, got.stderr)
	require.Contains(t, got.stderr, "standard output cannot be written")
	require.Contains(t, got.stderr, syscall.ENOSPC.Error())
	require.NotContains(t, got.stderr, "closed")
}

// What was not said must not look like an answer: explain's 1 is one.
func TestAnOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	b := newBench(t)
	b.stdout = full{}
	for args, code := range map[string]int{
		"--help": 1, "run --help": 1, "help exec": 1, "--version": 1, "version": 1, "sessions list": 1, "plan --agent claude": 1,
		"policy schema": 1, "explain /usr": 2, "explain /nonexistent": 2,
	} {
		got := b.run(strings.Fields(args)...)
		require.Equal(t, code, got.code, "%s: %s", args, got.stderr)
		require.Contains(t, got.stderr, "standard output cannot be written", args)
	}
}

func TestExplainHasNoAnswerWithoutAStateDirectory(t *testing.T) {
	b := newBench(t)
	b.state = "/proc/caisson"
	got := b.run("explain", "/usr")
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "state directory")
}

// closed is a standard output whose reader leaves after a while.
type closed struct{ after int }

func (c *closed) Write(p []byte) (int, error) {
	if c.after--; c.after < 0 {
		return 0, syscall.EPIPE
	}
	return len(p), nil
}

func TestAClosedOutputEndsTheTurn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for after := range 3 {
		for _, form := range []string{"text", "json"} {
			b := newBench(t)
			b.stdout = &closed{after: after}
			start := time.Now()
			got := b.run("run", "--agent", "claude", "--output", form, fakecli.Script("say one", "say two", "hang"))
			require.Equal(t, 130, got.code, got.stderr)
			require.Contains(t, got.stderr, "standard output was closed")
			require.Less(t, time.Since(start), 10*time.Second)
			require.Empty(t, testkit.Children())
		}
	}
}

func TestResume(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for _, agent := range []string{"claude", "codex"} {
		b := newBench(t)
		first := b.events(b.run("run", "--agent", agent, "--output", "json", "The word is caisson.").stdout)
		id := string(first[0].Session)

		got := b.run("run", "--resume", id, "--output", "json", fakecli.Script("recall"))
		require.Equal(t, 0, got.code, got.stderr)
		second := b.events(got.stdout)
		require.Equal(t, first[len(first)-1].Seq+1, second[0].Seq, "the numbers go on")
		require.Equal(t, 2, second[0].Turn)
		require.Contains(t, second[len(second)-1].Reply.(domain.Final).Text, "The word is caisson.")

		got = b.run("run", "--resume", id, "--rw", t.TempDir(), "x")
		require.Equal(t, 3, got.code, got.stderr)
		require.Contains(t, got.stderr, "another sandbox plan")
		require.Empty(t, got.stdout)
	}
}

func TestSandboxOffIsSaidInTheReceipt(t *testing.T) {
	testkit.NoLeaks(t)
	b := newBench(t)
	outside := filepath.Join(t.TempDir(), "file")
	got := b.run("run", "--agent", "claude", "--sandbox", "off", fakecli.Script("write "+outside+" x"))
	require.Equal(t, 0, got.code, got.stderr)
	require.True(t, strings.HasPrefix(got.stdout, "caisson: UNCONFINED: --sandbox off\n"), got.stdout)
	require.FileExists(t, outside)
}

func TestARefusedSandboxStartsNothing(t *testing.T) {
	testkit.NoLeaks(t)
	strict := &domain.StrictnessError{Missing: []domain.PropertyStatus{{Property: domain.PropertyTCP, Detail: "needs ABI 4"}}}
	for _, args := range [][]string{{"run", "--agent", "claude", "x"}, {"demo"}} {
		for name, e := range map[string]ports.SandboxEnforcer{
			"prepare": portstest.DenyingEnforcer{PrepareErr: strict},
			"apply":   portstest.DenyingEnforcer{ApplyErr: &domain.EnforcementError{Step: "apply", Err: syscall.EPERM}},
			"probe":   portstest.DenyingEnforcer{ApplyErr: &domain.ProbeError{Attempt: domain.ProbeDeniedRead, Target: "/x", Enforcer: "x"}},
		} {
			b := newBench(t)
			b.compose = []composition.Option{composition.WithSandboxEnforcer(e)}
			got := b.run(args...)
			require.Equal(t, 3, got.code, "%s: %s", name, got.stderr)
			require.Contains(t, got.stderr, "sandbox")
		}
	}
}

func TestPolicyFlags(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	dirs := map[string]string{}
	for _, flag := range []string{"ro", "rox", "rw", "rwx"} {
		dirs[flag] = t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dirs[flag], "tool"), []byte("#!/bin/sh\necho ran\n"), 0o700))
	}
	script := `cd "$1" && cat tool >/dev/null && printf r; ./tool >/dev/null 2>&1 && printf x; (echo >new) 2>/dev/null && printf w; exit 0`
	for flag, want := range map[string]string{"ro": "r", "rox": "rx", "rw": "rw", "rwx": "rxw"} {
		for _, prefix := range []string{"--", "--optional-"} {
			got := b.run("exec", prefix+flag, dirs[flag], "--", "/bin/sh", "-c", script, "sh", dirs[flag])
			require.Equal(t, 0, got.code, got.stderr)
			require.Equal(t, want, got.stdout, "%s%s", prefix, flag)
		}
	}
	got := b.run("exec", "--", "/bin/sh", "-c", script, "sh", dirs["rwx"])
	require.Empty(t, got.stdout, "nothing is granted without a flag")
	got = b.run("exec", "--optional-rw", "/nonexistent/dir", "--", "/bin/echo", "ok")
	require.Equal(t, result{stdout: "ok\n"}, got)
}

func TestADestinationIsOneHost(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	// The same port on two hosts.
	here, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer here.Close()
	_, port, err := net.SplitHostPort(here.Addr().String())
	require.NoError(t, err)
	there, err := net.Listen("tcp4", "127.0.0.2:"+port)
	require.NoError(t, err)
	defer there.Close()
	b := newBench(t)
	prompt := "#caisson-script\nconnect " + here.Addr().String() + "\nconnect " + there.Addr().String() + "\n"
	got := b.run("run", "--agent", "claude", "--connect", here.Addr().String(), prompt)
	require.Contains(t, got.stdout, "connected to "+here.Addr().String())
	require.NotContains(t, got.stdout, "connected to "+there.Addr().String())
	require.Contains(t, got.stdout, "EACCES: permission denied, connect "+there.Addr().String())
	got = b.run("run", "--agent", "claude", "--connect-tcp", port, prompt)
	require.Contains(t, got.stdout, "connected to "+there.Addr().String(), "the companion: a port is granted on every host")
}

func TestADenialIsExplained(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	got := b.run("run", "--agent", "claude", "#caisson-script\nsh cat "+outside+"\nsh cat nothing-there\n")
	require.Contains(t, got.stdout, "denial: the plan denies to read \""+outside+"\"")
	require.Equal(t, 1, strings.Count(got.stdout, "denial:"), got.stdout)
	got = b.run("run", "--agent", "claude", "--ro", outside, "#caisson-script\nsh cat "+outside+"\n")
	require.NotContains(t, got.stdout, "denial:")
}

func TestTripwires(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	require.NoError(t, os.MkdirAll(filepath.Join(b.workspace, ".git", "hooks"), 0o700))
	run := func(mode, text string) result {
		return b.run("run", "--agent", "claude", "--tripwires", mode, "#caisson-script\nwrite .git/hooks/pre-commit "+text+"\nwrite code.go "+text+"\n")
	}
	got := run("report", "one")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "look before you go on: made .git/hooks/pre-commit: git runs hooks")
	require.NotContains(t, got.stdout, "look before you go on: made code.go")
	got = run("fail", "two")
	require.Equal(t, 1, got.code, got.stderr)
	require.Contains(t, got.stdout, "changed .git/hooks/pre-commit")
	require.Contains(t, got.stdout, "the turn changed what could run code outside of the sandbox: .git/hooks/pre-commit")
	got = run("fail", "two")
	require.Equal(t, 0, got.code, "it is as it was: %s", got.stdout)
	got = run("off", "three")
	require.Equal(t, 0, got.code)
	require.NotContains(t, got.stdout, "look before")
	require.Equal(t, 2, run("some", "four").code)
}

func TestRelativePathsStartAtTheWorkingDirectory(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	require.NoError(t, os.Mkdir(filepath.Join(b.workspace, "sub"), 0o755))
	got := b.run("exec", "--rw", "sub", "--", "/bin/sh", "-c", "echo x >sub/file; echo x >file")
	require.NotEqual(t, 0, got.code)
	require.FileExists(t, filepath.Join(b.workspace, "sub", "file"))
	require.NoFileExists(t, filepath.Join(b.workspace, "file"))
}

func TestExec(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	sh := func(script string) []string { return []string{"exec", "--", "/bin/sh", "-c", script} }
	for name, c := range map[string]struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		"success":        {args: []string{"exec", "--", "true"}},
		"its own code":   {args: sh("exit 7"), code: 7},
		"signal":         {args: sh("kill -TERM $$"), code: 143},
		"output":         {args: sh("echo out; echo err >&2"), stdout: "out\n", stderr: "err\n"},
		"input":          {args: []string{"exec", "--", "cat"}, stdout: "input"},
		"without --":     {args: []string{"exec", "echo", "--flag"}, stdout: "--flag\n"},
		"variable":       {args: []string{"exec", "--env", "NAME=a=b", "--", "/bin/sh", "-c", "echo $NAME"}, stdout: "a=b\n"},
		"no variable":    {args: sh("echo ${CAISSON_TEST_SECRET-unset}"), stdout: "unset\n"},
		"passed on":      {args: []string{"exec", "--env", "CAISSON_TEST_SECRET", "--", "/bin/sh", "-c", "echo $CAISSON_TEST_SECRET"}, stdout: "hunter2\n"},
		"private tmpdir": {args: sh(`touch "$TMPDIR/x" && echo made`), stdout: "made\n"},
		"unconfined":     {args: []string{"exec", "--sandbox", "off", "--", "/bin/sh", "-c", "exit 5"}, code: 5, stderr: "caisson: UNCONFINED: --sandbox off\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("CAISSON_TEST_SECRET", "hunter2")
			b := newBench(t)
			b.stdin = strings.NewReader("input")
			require.Equal(t, result{c.code, c.stdout, c.stderr}, b.run(c.args...))
		})
	}
}

func TestExecPassesSignalsOn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	b.signals = make(chan os.Signal, 1)
	b.stdout = &when{text: "ready", do: func() { b.signals <- os.Interrupt }}
	got := b.run("exec", "--", "/bin/sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done")
	require.Equal(t, 9, got.code, got.stderr)
	require.Equal(t, "ready\ncaught\n", got.stdout)
}

// What the preset denies has a flag that grants it.
func TestExecGrantsOtherSockets(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("the host has no bash, which opens sockets by redirection")
	}
	b := newBench(t)
	send := []string{"--", bash, "-c", "echo x > /dev/udp/127.0.0.1/9"}
	got := b.run(append([]string{"exec"}, send...)...)
	require.NotZero(t, got.code)
	require.Contains(t, got.stderr, "Operation not permitted")
	got = b.run(append([]string{"exec", "--udp"}, send...)...)
	require.Zero(t, got.code, got.stderr)

	got = b.run("plan", "--agent", "claude", "--unix-sockets", "allow")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "unix sockets     allow")
}

func TestPlan(t *testing.T) {
	b := newBench(t)
	got := b.run("plan", "--agent", "claude", "--ro", "/usr/share", "--env", "TOKEN=hunter2", "--waive", "ipc", "--connect-tcp", "1234")
	require.Equal(t, 0, got.code, got.stderr)
	for _, s := range []string{"plan coding", b.workspace, "/usr/share", "--ro", "TOKEN", "1234", "ipc", "digest",
		"udp              deny", "1234 and the model gateway", "to https://api.anthropic.com and nowhere else", "unix sockets     deny"} {
		require.Contains(t, got.stdout, s)
	}
	require.NotContains(t, got.stdout, "hunter2")
	b.requireUntouched()

	got = b.run("plan", "--agent", "claude", "--gateway", "off")
	require.Equal(t, 0, got.code, got.stderr)
	for _, s := range []string{"tcp connect      443  # 443: claude: its model API\n", "udp              allow  # claude: the name api.anthropic.com", "UDP is allowed, to any host: the name api.anthropic.com", "holds the credential"} {
		require.Contains(t, got.stdout, s)
	}
	b.requireUntouched()

	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("hunter3\n"), 0o600))
	got = b.run("plan", "--agent", "claude", "--credential-file", "ANTHROPIC_API_KEY="+key)
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "the credential, ANTHROPIC_API_KEY from a file, stays with Caisson")
	require.NotContains(t, got.stdout, "hunter3")
	b.requireUntouched()

	got = b.run("plan", "--agent", "claude", "--output", "json")
	require.Equal(t, 0, got.code, got.stderr)
	var plan struct {
		Type   string
		Digest string
		Rules  []struct{ Path string }
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &plan))
	require.Equal(t, "plan", plan.Type)
	require.Len(t, plan.Digest, 64)
	require.NotEmpty(t, plan.Rules)
	b.requireUntouched()
}

func TestExplain(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(b.workspace, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	got := b.run("explain", "--agent", "claude", "--op", "write", "file")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, `allowed: write "`+file+`"`)
	require.Contains(t, got.stdout, "(workspace) grants {write_file}")

	got = b.run("explain", "--op", "rename", "--to", "other", "file")
	require.Equal(t, 1, got.code, "exec grants no working directory")
	require.Contains(t, got.stdout, `would allow it   --rw "`+b.workspace+`"`)
	got = b.run("explain", "--rw", ".", "--op", "rename", "--to", "other", "file", "--", "true")
	require.Equal(t, 0, got.code, got.stdout)

	got = b.run("explain", "--connect-tcp", "81", "--output", "json", "tcp:localhost:80")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stdout, `"allowed":false`)
	require.Contains(t, got.stdout, `"change":{"rules":[],"connect_tcp":[],"destinations":["127.0.0.1:80","[::1]:80"],"domains":[],"unix_destinations":[],"unix_sockets":"deny"}`)
	got = b.run("explain", "--connect-tcp", "81", "tcp:localhost:80")
	require.Contains(t, got.stdout, "  would allow it   --connect 127.0.0.1:80 --connect [::1]:80\n", "it takes both")
	got = b.run("explain", "--connect", "localhost:80", "tcp:localhost:80")
	require.Equal(t, 0, got.code, got.stdout)
	got = b.run("explain", "--rw", ".", "none/at/all")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "does not exist")
	got = b.run("explain", "none/at/all")
	require.Equal(t, 1, got.code, got.stderr)
	require.NotContains(t, got.stdout, "would allow it   --")
	got = b.run("explain", "unix:/run/docker.sock")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stdout, "would allow it   --unix-sockets allow")

	for name, args := range map[string][]string{
		"nothing to explain":         {"explain"},
		"two things":                 {"explain", "a", "b"},
		"an unknown operation":       {"explain", "--op", "chmod", "file"},
		"a destination too many":     {"explain", "--to", "x", "file"},
		"no destination":             {"explain", "--op", "rename", "file"},
		"a destination by name":      {"explain", "--connect", "example.org:80", "file"},
		"a destination without port": {"explain", "--connect", "127.0.0.1", "file"},
		"no port":                    {"explain", "tcp:localhost"},
		"port 0":                     {"explain", "tcp:localhost:0"},
		"an empty path":              {"explain", ""},
		"below a file":               {"explain", "file/below"},
		"an operation on a port":     {"explain", "--op", "write", "tcp:localhost:80"},
		"an operation on a socket":   {"explain", "--op", "delete", "unix:/run/docker.sock"},
		"an abstract socket":         {"explain", "unix:@bus"},
		"UDP":                        {"explain", "udp:127.0.0.1:53"},
		"a host for a path":          {"explain", "example.org:443"},
		"a URL for a path":           {"explain", "https://example.org/"},
		"no such place":              {"explain", "--op", "create", "none/at/all"},
		"what nobody can do":         {"explain", "--op", "write", "."},
		"an agent and a command":     {"explain", "--agent", "claude", "file", "--", "true"},
		"a flag that makes no sense": {"explain", "--unix-sockets", "some", "file"},
	} {
		got := b.run(args...)
		require.Equal(t, 2, got.code, "%s: %s", name, got.stderr)
		require.NotEmpty(t, got.stderr, name)
		require.Empty(t, got.stdout, name)
	}
}

func TestDoctor(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	t.Setenv("TMPDIR", t.TempDir())
	b := newBench(t)
	got := b.run("doctor")
	require.Equal(t, 0, got.code, got.stdout)
	for _, s := range []string{"landlock+seccomp, ABI ", "filesystem", "enforced", "udp", "claude", "codex", "denied the write: yes", "the sandbox holds"} {
		require.Contains(t, got.stdout, s)
	}
	require.Equal(t, os.Geteuid() == 0, strings.Contains(got.stdout, "root, which is advised against"), got.stdout)
	got = b.run("doctor", "--json")
	require.Equal(t, 0, got.code, got.stdout)
	var d struct {
		Type  string
		ABI   int
		Proof struct{ Allowed, Denied, Unconfined, Holds bool }
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
	require.Equal(t, "doctor", d.Type)
	require.GreaterOrEqual(t, d.ABI, 6)
	require.True(t, d.Proof.Allowed && d.Proof.Denied && d.Proof.Unconfined && d.Proof.Holds)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left, "the doctor leaves nothing")
}

func TestVerify(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	t.Setenv("TMPDIR", t.TempDir())
	b := newBench(t)
	b.program = testkit.FakeProgram()
	report := filepath.Join(b.workspace, "report.xml")
	got := b.run("verify", "--json", "--junit", "report.xml", "--udp")
	require.Equal(t, 0, got.code, "%s%s", got.stdout, got.stderr)
	require.Empty(t, got.stderr)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	verdicts, tests := map[string]int{}, 0
	for _, line := range lines[:len(lines)-1] {
		var item struct {
			Type, Suite, Name, Verdict string
			Holds                      bool
		}
		require.NoError(t, json.Unmarshal([]byte(line), &item))
		require.Equal(t, "verify_item", item.Type)
		require.True(t, item.Holds, line)
		if item.Suite == "escape" {
			verdicts[item.Verdict]++
		}
		tests++
	}
	var outcome struct {
		Type     string
		Holds    bool
		ABI      int
		Verdicts map[string]int
	}
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &outcome))
	require.Equal(t, "verify", outcome.Type)
	require.True(t, outcome.Holds)
	require.GreaterOrEqual(t, outcome.ABI, 6)
	require.GreaterOrEqual(t, verdicts["held"], 140)
	require.Positive(t, verdicts["granted by the plan"], "UDP")
	for verdict, n := range outcome.Verdicts {
		require.Equal(t, verdicts[verdict], n, verdict)
	}
	var junit struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
	}
	data, err := os.ReadFile(report)
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(data, &junit))
	require.Equal(t, tests, junit.Tests)
	require.Zero(t, junit.Failures)
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left")
}

// Without a layer it is red, and names what gets through.
func TestVerifyIsRedWithoutALayer(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	b.program = testkit.FakeProgram()
	got := b.run("verify", "--layers", "landlock,privileges", "--junit", "report.xml")
	require.Equal(t, 1, got.code, "%s%s", got.stdout, got.stderr)
	require.Contains(t, got.stdout, "does NOT hold")
	for _, name := range []string{"udp-sendto", "docker-socket", "mptcp-connect", "shared-memory"} {
		require.Regexp(t, `(?m)^LEAKED +`+name+` `, got.stdout)
	}
	require.NotRegexp(t, `(?m)^LEAKED +read-file `, got.stdout)
	data, err := os.ReadFile(filepath.Join(b.workspace, "report.xml"))
	require.NoError(t, err)
	require.Contains(t, string(data), `<failure message="LEAKED`)
}

// There is no turn to stop or to kill.
func TestVerifyIsInterrupted(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	b.program = testkit.FakeProgram()
	b.signals = make(chan os.Signal, 1)
	b.signals <- os.Interrupt
	got := b.run("verify")
	require.Equal(t, 130, got.code, got.stderr)
	require.Equal(t, "caisson: stopped by a signal: interrupt\n", got.stderr)
	require.Empty(t, got.stdout)
}

func TestVerifyWhereNothingCanBeEnforced(t *testing.T) {
	testkit.NoLeaks(t)
	for name, opt := range map[string]composition.Option{
		"no Landlock":         composition.WithSandboxEnforcer(sandbox.New(sandbox.WithABI(0))),
		"nothing is enforced": composition.WithAllowNative(),
	} {
		b := newBench(t)
		b.program, b.compose = testkit.FakeProgram(), []composition.Option{opt}
		got := b.run("verify")
		require.Equal(t, 3, got.code, "%s: %s", name, got.stderr)
		require.Empty(t, got.stdout)
	}
}

// A proof that can only succeed is none.
func TestTheDoctorFailsWhereNothingIsEnforced(t *testing.T) {
	testkit.NoLeaks(t)
	for name, opt := range map[string]composition.Option{
		"nothing is enforced": composition.WithAllowNative(),
		"nothing starts":      composition.WithSandboxEnforcer(portstest.DenyingEnforcer{}),
	} {
		b := newBench(t)
		b.compose = []composition.Option{opt}
		got := b.run("doctor")
		require.Equal(t, 3, got.code, "%s: %s", name, got.stdout)
		require.Contains(t, got.stdout, "does NOT hold")
	}
}

func TestTheDoctorNamesWhatIsMissingLineByLine(t *testing.T) {
	testkit.NoLeaks(t)
	b := newBench(t)
	b.compose = []composition.Option{composition.WithSandboxEnforcer(sandbox.New(sandbox.WithABI(0)))}
	got := b.run("doctor")
	require.Equal(t, 3, got.code, got.stdout)
	require.Regexp(t, `(?m)^  failed +the sandbox cannot be enforced here:$`, got.stdout)
	require.Regexp(t, `(?m)^ +filesystem: .*[^)]$`, got.stdout)
	require.NotContains(t, got.stdout, `\n`)
	require.NotContains(t, got.stdout, "--waive filesystem", "it has no such flag")
	require.Contains(t, got.stdout, "run, exec and shell do without what --waive names")
	got = b.run("demo")
	require.Equal(t, 3, got.code, got.stderr)
	require.Contains(t, got.stderr, "\n    filesystem: ")
	require.NotContains(t, got.stderr, "--waive filesystem", "it has no such flag")
}

func TestTheDoctorTriesTheStateDirectory(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	got := b.run("doctor")
	require.Equal(t, 0, got.code, got.stdout)
	require.Contains(t, got.stdout, b.state+", which can be written")
	left, err := os.ReadDir(b.state)
	require.NoError(t, err)
	require.Empty(t, left)

	b.state = "/proc/caisson"
	got = b.run("doctor")
	require.Equal(t, 1, got.code, got.stdout)
	require.Contains(t, got.stdout, "the sandbox holds, but no session can be kept")
	require.Contains(t, got.stdout, "XDG_STATE_HOME")
	got = b.run("doctor", "--json")
	require.Equal(t, 1, got.code, got.stdout)
	require.Contains(t, got.stdout, `"state":{"path":null,"error":"state directory`)
	// One that is there, but takes no file.
	b.state = "/proc/self/fdinfo"
	got = b.run("doctor")
	require.Equal(t, 1, got.code, got.stdout)
	require.Contains(t, got.stdout, "the sandbox holds, but no session can be kept")
}

func TestWithoutATemporaryDirectory(t *testing.T) {
	testkit.NoLeaks(t)
	b := newBench(t)
	t.Setenv("TMPDIR", "/nonexistent")
	for _, command := range []string{"doctor", "demo", "verify"} {
		got := b.run(command)
		require.Equal(t, 2, got.code, "%s: 1 and 3 are verdicts: %s", command, got.stderr)
		require.Contains(t, got.stderr, `TMPDIR "/nonexistent"`, command)
		require.Empty(t, got.stdout, command)
	}
}

func TestDemo(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	t.Setenv("TMPDIR", t.TempDir())
	b := newBench(t)
	start := time.Now()
	got := b.run("demo")
	require.Equal(t, 0, got.code, "%s%s", got.stdout, got.stderr)
	require.Less(t, time.Since(start), 15*time.Second)
	require.GreaterOrEqual(t, strings.Count(got.stdout, "caisson: PASS "), 12, got.stdout)
	require.NotContains(t, got.stdout, "FAIL")
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left, "the demonstration leaves nothing")
}

func TestDemoJSON(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	got := b.run("demo", "--output", "json")
	require.Equal(t, 0, got.code, got.stderr)
	var steps []string
	for line := range strings.SplitSeq(strings.TrimSpace(got.stdout), "\n") {
		var step struct {
			Type, Step string
			Pass       bool
		}
		require.NoError(t, json.Unmarshal([]byte(line), &step))
		if step.Type != "demo" {
			_, err := jsonl.Decode([]byte(line))
			require.NoError(t, err)
			continue
		}
		require.True(t, step.Pass, line)
		steps = append(steps, step.Step)
	}
	require.Equal(t, []string{"work", "blocked write", "no sandbox", "timeout", "resume"}, steps)
}

// The demonstration checks what it shows.
func TestTheDemoFailsWhereNothingIsEnforced(t *testing.T) {
	testkit.NoLeaks(t)
	b := newBench(t)
	b.compose = []composition.Option{composition.WithAllowNative()}
	got := b.run("demo")
	require.Equal(t, 1, got.code, got.stdout)
	require.Regexp(t, `FAIL the file escaped\.txt is not there: \S+ is there`, got.stdout)
	require.Contains(t, got.stdout, "FAIL the receipt says that it was confined")
	require.Contains(t, got.stdout, "FAIL the daemon is gone")
	pid, err := strconv.Atoi(regexp.MustCompile(`process (\d+) still lived`).FindStringSubmatch(got.stdout)[1])
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !testkit.Alive(pid) }, 5*time.Second, 10*time.Millisecond, "the demonstration ends what it left")
}

func TestVersionAndHelp(t *testing.T) {
	b := newBench(t)
	require.Contains(t, b.run("version").stdout, "caisson ")
	require.Equal(t, b.run("version"), b.run("--version"))
	help := b.run("exec", "--help").stdout
	for _, s := range []string{"$HOME", "working directory is granted", "no job control"} {
		require.Contains(t, strings.Join(strings.Fields(help), " "), s)
	}
	got := b.run("--help")
	require.Equal(t, 0, got.code)
	for _, command := range []string{"run", "exec", "plan", "doctor", "demo", "version"} {
		require.Contains(t, got.stdout, "\n  "+command+" ")
	}
	require.NotContains(t, got.stdout, "__")
}

// A prompt that never comes must not make it deaf.
func TestAnInterruptWhileThePromptIsRead(t *testing.T) {
	b := newBench(t)
	read, write := io.Pipe()
	defer write.Close()
	b.stdin = read
	b.signals = make(chan os.Signal, 1)
	b.signals <- os.Interrupt
	got := b.run("run", "--agent", "claude", "-")
	require.Equal(t, 130, got.code, got.stderr)
	require.Empty(t, got.stdout)
}

// Every request would be refused, so the turn does not begin.
func TestRunWithoutACredential(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	b.real = true
	b.compose = []composition.Option{composition.WithEnviron(func(name string) (string, bool) {
		return map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}[name], true
	})}
	got := b.run("run", "--agent", "claude", "--agent-bin", "/bin/true", "hello")
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "there is no credential for it")
	require.Contains(t, got.stderr, "ANTHROPIC_API_KEY")
	require.Contains(t, got.stderr, "--credential-file")
	b.requireUntouched()
}
