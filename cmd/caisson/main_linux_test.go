package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// asCaisson makes this test binary the program itself.
const asCaisson = "__caisson"

func TestMain(m *testing.M) {
	fakecli.Host()
	if len(os.Args) > 1 && os.Args[1] == asCaisson {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		main()
	}
	testkit.DefaultSignals()
	os.Exit(m.Run())
}

// place is where the program runs, with state of its own.
type place struct {
	t         *testing.T
	program   string
	workspace string
	env       []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	return &place{
		t: t, program: program, workspace: t.TempDir(),
		// A directory that the user may not search would make "not found" a
		// "permission denied", as in execvp(3).
		// The fake behind --agent-bin has the needs of the real agent, a credential
		// among them.
		env: append(os.Environ(), "XDG_STATE_HOME="+t.TempDir(), "PATH=/usr/bin:/bin", "ANTHROPIC_API_KEY=made-up"),
	}
}

func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.t.Context(), p.program, append([]string{asCaisson}, args...)...)
	cmd.Env, cmd.Dir = p.env, p.workspace
	return cmd
}

func code(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	return exit.ExitCode()
}

func TestExitCodesReachTheParent(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	p := newPlace(t)
	for want, args := range map[int][]string{
		0: {"version"}, 2: {"fly"}, 7: {"exec", "--", "/bin/sh", "-c", "exit 7"}, 127: {"exec", "--", "nonexistent-command"},
	} {
		require.Equal(t, want, code(t, p.command(args...).Run()), "%v", args)
	}
}

// The fake is behind a name that no help shows, and only as the first argument.
func TestTheFakeIsDispatchedByItsFirstArgument(t *testing.T) {
	p := newPlace(t)
	cmd := exec.CommandContext(t.Context(), p.program, fakecli.Subcommand, "claude", "--version")
	cmd.Env, cmd.Dir = append(p.env, "CLAUDE_CONFIG_DIR="+t.TempDir()), p.workspace
	out, err := cmd.CombinedOutput()
	require.NotContains(t, string(out), "unknown command", "%v", err)
	out, err = p.command("exec", fakecli.Subcommand, "claude").CombinedOutput()
	require.Equal(t, 127, code(t, err), "%s", out)
}

// start starts a command, and returns it with its stdout.
func (p *place) start(cmd *exec.Cmd) *bufio.Reader {
	p.t.Helper()
	out, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, cmd.Start())
	return bufio.NewReader(out)
}

// awaitLine reads up to a line that has the text.
func awaitLine(t *testing.T, out *bufio.Reader, text string) {
	t.Helper()
	for {
		line, err := out.ReadString('\n')
		require.NoError(t, err, "before %q", text)
		if strings.Contains(line, text) {
			return
		}
	}
}

func (p *place) pid(file string) int {
	p.t.Helper()
	data, err := os.ReadFile(filepath.Join(p.workspace, file))
	require.NoError(p.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	require.NoError(p.t, err)
	return pid
}

// fakeClaude makes a program that is the fake whatever its arguments.
func (p *place) fakeClaude() string {
	p.t.Helper()
	dir := p.t.TempDir()
	script := filepath.Join(dir, "claude")
	require.NoError(p.t, os.WriteFile(script, []byte("#!/bin/sh\nexec "+p.program+" "+fakecli.Subcommand+" claude \"$@\"\n"), 0o700))
	return script
}

// With and without a keeper: the tree is gone when Caisson returns, and the
// stream has its final.
func TestASecondInterruptKills(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for name, flags := range map[string][]string{"keeper": nil, "no keeper": {"--sandbox", "off"}} {
		for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(name+"/"+sig.String(), func(t *testing.T) {
				testkit.NoLeaks(t)
				p := newPlace(t)
				left := "daemon " + filepath.Join(p.workspace, "pid")
				if flags != nil {
					// What the walk finds; a daemon has shed everything.
					left = "sh sleep 1000 > /dev/null 2>&1 & echo $! > pid"
				}
				args := append([]string{"run", "--agent", "claude", "--agent-bin", p.fakeClaude(), "--rox", p.program, "--output", "json"}, flags...)
				if flags != nil {
					args = slices.DeleteFunc(args, func(s string) bool { return s == "--rox" || s == p.program })
				}
				cmd := p.command(append(args, fakecli.Script("trap", left, "say Working.", "hang"))...)
				stderr, err := cmd.StderrPipe()
				require.NoError(t, err)
				stdout := p.start(cmd)
				awaitLine(t, stdout, "Working.")
				pid := p.pid("pid")
				require.True(t, testkit.Alive(pid))
				require.NoError(t, cmd.Process.Signal(sig))
				awaitLine(t, bufio.NewReader(stderr), "once more to kill it")
				start := time.Now()
				require.NoError(t, cmd.Process.Signal(sig))
				awaitLine(t, stdout, `"type":"final"`)
				require.Equal(t, 130, code(t, cmd.Wait()))
				require.Less(t, time.Since(start), 2*time.Second, "the graces, 5 s together, are not waited for")
				require.False(t, testkit.Alive(pid), "Caisson returns when the tree is gone")
			})
		}
	}
}

// Two processes that run turns of one session would fork its conversation.
func TestASessionIsRunByOneProcessAtATime(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	p := newPlace(t)
	run := func(args ...string) []string {
		return append([]string{"run", "--agent", "claude", "--agent-bin", p.fakeClaude(), "--rox", p.program, "--output", "json"}, args...)
	}
	// Both need the same plan, and thus the same program.
	first := run(fakecli.Script("say Working.", "hang"))
	cmd := p.command(first...)
	out := p.start(cmd)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	id := regexp.MustCompile(`"session":"([0-9a-f-]{36})"`).FindStringSubmatch(line)[1]
	awaitLine(t, out, "Working.")

	second := append(slices.Clone(first[:len(first)-1]), "--resume", id, "say hello")
	refused, err := p.command(second...).CombinedOutput()
	require.Equal(t, 4, code(t, err), "%s", refused)
	require.Contains(t, string(refused), "session "+id+" is in use")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())

	resumed, err := p.command(second...).CombinedOutput()
	require.Equal(t, 0, code(t, err), "%s", resumed)
}

func TestAPipeThatIsClosedEndsTheTurn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	p := newPlace(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := p.command("run", "--agent", "claude", "--agent-bin", p.fakeClaude(), "--rox", p.program, fakecli.Script(
		"daemon "+filepath.Join(p.workspace, "pid"), "say Working.", "sleep 300ms", "say More.", "hang"))
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = write, &stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	awaitLine(t, bufio.NewReader(read), "Working.")
	require.NoError(t, read.Close())
	require.Equal(t, 130, code(t, cmd.Wait()), stderr.String())
	require.Contains(t, stderr.String(), "standard output was closed")
	require.False(t, testkit.Alive(p.pid("pid")), "Caisson returned when the tree was gone")
}

func TestARemovedWorkingDirectory(t *testing.T) {
	p := newPlace(t)
	for want, args := range map[string]string{"125": "exec -- true", "2": "run --agent claude x", "0": "version"} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c",
			`mkdir gone && cd gone && rmdir "$PWD" && "$0" `+asCaisson+` `+args+`; echo "code $?"`, p.program)
		cmd.Env, cmd.Dir = p.env, p.workspace
		out, err := cmd.CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(out), "code "+want+"\n")
		if want != "0" {
			require.Contains(t, string(out), "cd to a directory that exists")
		}
	}
}

// Root may enter every directory, so root becomes somebody else.
func TestAWorkspaceThatTheUserMayNotEnter(t *testing.T) {
	p := newPlace(t)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	barred := filepath.Join(dir, "barred")
	require.NoError(t, os.Mkdir(barred, 0o700))
	program := filepath.Join(dir, "caisson")
	data, err := os.ReadFile(p.program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, data, 0o755))
	state := filepath.Join(dir, "state")
	require.NoError(t, os.Mkdir(state, 0o700))

	cmd := exec.CommandContext(t.Context(), program, asCaisson, "run", "--agent", "claude", "--agent-bin", program, "--workspace", barred, "x")
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "XDG_STATE_HOME=" + state}, "/"
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(state, 65534, 65534))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	} else {
		require.NoError(t, os.Chmod(barred, 0))
	}
	out, err := cmd.CombinedOutput()
	require.Equal(t, 2, code(t, err), "%s", out)
	require.Contains(t, string(out), `workspace "`+barred+`": cannot be entered`)
	require.Contains(t, string(out), "list and search")
}

func TestExecGivesItsOwnInputAndOutputToTheCommand(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	p := newPlace(t)
	cmd := p.command("exec", "--", "/bin/sh", "-c", "readlink /proc/self/fd/0; head -c 3; readlink /proc/self/fd/1")
	in, err := os.Open(os.Args[0])
	require.NoError(t, err)
	defer in.Close()
	cmd.Stdin = in
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), filepath.Base(os.Args[0])+"\n\x7fEL", "the file itself, not a copy of its bytes")
	require.Contains(t, string(out), "pipe:[")
}

// A background job of a shell, and nohup, have signals ignored: they stay so.
func TestAnIgnoredHangupStaysIgnored(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	p := newPlace(t)
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `trap "" HUP; exec "$@"`, "sh",
		p.program, asCaisson, "exec", "--", "/bin/sh", "-c", "echo ready; read -r line; echo $line")
	cmd.Env, cmd.Dir = p.env, p.workspace
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out := p.start(cmd)
	awaitLine(t, out, "ready")
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	_, err = in.Write([]byte("alive\n"))
	require.NoError(t, err)
	awaitLine(t, out, "alive")
	require.NoError(t, cmd.Wait())
}

// Sandboxes do not nest: the filter of the outer one denies what the inner one
// needs, and the inner one says so.
func TestOneInsideOfAnother(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	p := newPlace(t)
	cmd := p.command("exec", "--rw", p.workspace, "--rox", p.program, "--",
		"/bin/sh", "-c", `XDG_STATE_HOME=$PWD/state exec "$0" "$@"`, p.program, asCaisson, "exec", "--", "true")
	out, err := cmd.CombinedOutput()
	require.NotEqual(t, 0, code(t, err), "%s", out)
	require.Contains(t, string(out), "another Caisson", "%s", out)
}
