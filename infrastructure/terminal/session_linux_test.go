package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) { testkit.MainWithFake(m) }

var quick = process.Graces{Terminate: 300 * time.Millisecond}

func newFactory() *Factory {
	return NewFactory(process.NewSpawner(process.Config{Enforcer: sandbox.Default()}), quick)
}

// workDir is a directory that the plan grants, canonical.
func workDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}

// plans are a plan for the directory and the explicit absence of one.
func plans(dir string) map[string]domain.SandboxPlan {
	return map[string]domain.SandboxPlan{"confined": confined(dir), "native": domain.Unconfined("test")}
}

func confined(dir string) domain.SandboxPlan {
	plan := domain.NewSandboxPlan("test").WithRules(domain.PathRule{Path: dir, Access: domain.AccessReadWriteExec})
	for _, path := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"} {
		plan = plan.WithRules(domain.PathRule{Path: path, Access: domain.AccessReadExec, Presence: domain.Optional})
	}
	return plan.WithRules(
		domain.PathRule{Path: "/dev/null", Access: domain.AccessReadWrite},
		domain.PathRule{Path: "/dev/tty", Access: terminalAccess},
	)
}

func shell(dir string, plan domain.SandboxPlan, argv ...string) domain.SpawnLine {
	return domain.SpawnLine{
		Path: argv[0], Argv: argv, Dir: dir, Sandbox: plan,
		Env: []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "TERM=xterm", "PS1=ready> ", "ENV=", "HISTFILE=/dev/null"},
	}
}

// screen is a running session and what it has printed.
type screen struct {
	t *testing.T
	ports.TerminalSession
	mu      sync.Mutex
	printed strings.Builder
	ended   chan error
}

func start(t *testing.T, line domain.SpawnLine) *screen {
	t.Helper()
	s, err := newFactory().Start(t.Context(), line, ports.TerminalSize{Rows: 24, Columns: 80})
	require.NoError(t, err)
	sc := &screen{t: t, TerminalSession: s, ended: make(chan error, 1)}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := s.Read(buf)
			sc.mu.Lock()
			sc.printed.Write(buf[:n])
			sc.mu.Unlock()
			if err != nil {
				sc.ended <- err
				return
			}
		}
	}()
	t.Cleanup(func() { require.NoError(t, s.Close(context.WithoutCancel(t.Context()))) })
	return sc
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.printed.String()
}

// see waits until the text was printed after what was seen before, and returns
// everything up to it.
func (s *screen) see(text string) string {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		all := s.printed.String()
		if before, after, ok := strings.Cut(all, text); ok {
			s.printed.Reset()
			s.printed.WriteString(after)
			s.mu.Unlock()
			return before + text
		}
		s.mu.Unlock()
		require.True(s.t, time.Now().Before(deadline), "%q was not printed, but %q", text, all)
	}
}

func (s *screen) typ(text string) {
	s.t.Helper()
	_, err := io.WriteString(s, text)
	require.NoError(s.t, err)
}

// end waits for the session's end and returns how it ended and all that was
// printed last.
func (s *screen) end() (ports.TerminalResult, string) {
	s.t.Helper()
	result, err := s.Wait(s.t.Context())
	require.NoError(s.t, err)
	require.ErrorIs(s.t, <-s.ended, io.EOF)
	return result, strings.ReplaceAll(s.text(), "\r\n", "\n")
}

func alive(pid int) bool { return testkit.Alive(pid) }

func TestAProgramRunsOnATerminalOfItsOwn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for name, plan := range plans(workDir(t)) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			dir := workDir(t)
			if plan.IsConfined() {
				plan = confined(dir)
			}
			s := start(t, shell(dir, plan, "/bin/sh", "-c",
				`tty; stty size; read -r stat < /proc/$$/stat; set -- $stat; echo leader $(($1 == $6)) tty $(($7 != 0)); echo through > /dev/tty; grep flags /proc/$$/fdinfo/0; exit 7`))
			result, out := s.end()
			require.Equal(t, domain.ExitStatus{Known: true, Code: 7}, result.Exit)
			require.NoError(t, result.Ended)
			require.Contains(t, out, "/dev/pts/")
			require.Contains(t, out, "\n24 80\nleader 1 tty 1\nthrough\n")
			// A terminal that does not block would break every program on it.
			_, flags, ok := strings.Cut(out, "flags:\t")
			require.True(t, ok, out)
			set, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 32)
			require.NoError(t, err)
			require.Zero(t, set&unix.O_NONBLOCK, out)
			require.Equal(t, plan.IsUnconfined(), s.Receipt().Unconfined)
			if plan.IsConfined() {
				require.Equal(t, domain.TreeKeeper, s.Receipt().Tree)
			}
		})
	}
}

// A shell's job control: what ^C and ^Z do, and fg.
func TestJobControl(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Skip("no bash")
	}
	for _, name := range []string{"confined", "native"} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			dir := workDir(t)
			s := start(t, shell(dir, plans(dir)[name], "/bin/bash", "--norc", "--noprofile", "-i"))
			require.NotContains(t, s.see("ready> "), "no job control")
			s.typ("sleep 1000\n")
			s.see("sleep 1000")
			awaitForeground(t, dir, s, "sleep")
			s.typ("\x1a") // ^Z
			s.see("Stopped")
			s.see("ready> ")
			s.typ("jobs\n")
			require.Contains(t, s.see("sleep 1000"), "Stopped")
			s.typ("fg\n")
			awaitForeground(t, dir, s, "sleep")
			s.typ("\x03") // ^C
			s.see("ready> ")
			s.typ("echo status $?\n")
			s.see("status 130")
			s.typ("sleep 1000 &\n")
			s.see("ready> ")
			s.typ("kill %1; wait %1; echo gone $?\n")
			s.see("gone 143")
			s.typ("exit 5\n")
			result, _ := s.end()
			require.Equal(t, 5, result.Exit.Code)
		})
	}
}

// awaitForeground waits until the terminal's foreground job runs that program,
// which the kernel tells the terminal's owner (TIOCGPGRP).
func awaitForeground(t *testing.T, _ string, s *screen, program string) {
	t.Helper()
	inner, ok := s.TerminalSession.(*session)
	require.True(t, ok)
	conn, err := inner.pty.SyscallConn()
	require.NoError(t, err)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var group int
		require.NoError(t, conn.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }))
		require.NoError(t, err)
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", group))
		// Not the moment between fork and exec, and not a stopped one.
		if testkit.Comm(group) == program && strings.Contains(string(data), ") S ") {
			return
		}
		require.True(t, time.Now().Before(deadline), "the foreground is %q", testkit.Comm(group))
	}
}

func TestResizeTellsTheForegroundJob(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	dir := workDir(t)
	s := start(t, shell(dir, confined(dir), "/bin/sh", "-c", `trap 'stty size' WINCH; echo up; while :; do sleep 0.05; done`))
	s.see("up")
	require.NoError(t, s.Resize(ports.TerminalSize{Rows: 50, Columns: 132}))
	s.see("50 132")
	s.Kill(errors.New("enough"))
	result, _ := s.end()
	require.Equal(t, "SIGKILL", result.Exit.Signal)
	require.EqualError(t, result.Ended, "enough")
}

// Of the devices of terminals a program reaches its own one.
func TestNoOtherTerminalIsReached(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	hosts, theirs, err := open()
	require.NoError(t, err)
	defer func() { require.NoError(t, closeAll(hosts, theirs)) }()
	// Landlock is what keeps it away, and not the mode of the device.
	require.NoError(t, os.Chmod(theirs.Name(), 0o666))
	script := `[ "$(tty)" != ` + theirs.Name() + ` ] && echo own
(echo x > $(tty)) && echo by name
(echo x > /dev/tty) && echo by tty
(echo pushed > ` + theirs.Name() + `) 2>/dev/null && echo reached host
(: < ` + theirs.Name() + `) 2>/dev/null && echo read host
(exec 3<>/dev/ptmx) 2>/dev/null && echo made one
exit 0`
	for name, want := range map[string]bool{"confined": false, "native": true} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			dir := workDir(t)
			_, out := start(t, shell(dir, plans(dir)[name], "/bin/sh", "-c", script)).end()
			require.Contains(t, out, "own\n")
			require.Contains(t, out, "by name\n")
			require.Contains(t, out, "by tty\n")
			for _, reached := range []string{"reached host", "read host", "made one"} {
				require.Equal(t, want, strings.Contains(out, reached+"\n"), "%s: %q", reached, out)
			}
		})
	}
}

// Whatever a session leaves behind is gone when it is over.
func TestNothingIsLeftOfASession(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	leave := map[string]string{
		"background": `sleep 1000 & echo $! > pid`,
		"setsid":     `setsid sh -c 'echo $$ > pid; exec sleep 1000' &`,
		"deaf":       `sh -c 'trap "" HUP TERM INT; echo $$ > pid; sleep 1000; sleep 1000' &`,
		"stopped":    `sh -c 'echo $$ > pid; kill -STOP $$' &`,
	}
	ends := map[string]func(*screen){
		"exit":   func(s *screen) { s.typ("\n") },
		"cancel": func(s *screen) { s.Cancel(nil) },
		"kill":   func(s *screen) { s.Kill(nil) },
		"close":  func(s *screen) { require.NoError(s.t, s.Close(s.t.Context())) },
	}
	for _, name := range []string{"confined", "native"} {
		for what, script := range leave {
			for how, end := range ends {
				t.Run(name+"/"+what+"/"+how, func(t *testing.T) {
					testkit.NoLeaks(t)
					dir := workDir(t)
					s := start(t, shell(dir, plans(dir)[name], "/bin/sh", "-c", script+"\nwhile ! [ -s pid ]; do sleep 0.01; done; echo up; read -r line"))
					s.see("up")
					data, err := os.ReadFile(filepath.Join(dir, "pid"))
					require.NoError(t, err)
					pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
					require.NoError(t, err)
					require.True(t, alive(pid))
					end(s)
					_, err = s.Wait(t.Context())
					require.NoError(t, err)
					require.False(t, alive(pid), "process %d is left", pid)
				})
			}
		}
	}
}

// The context governs the session, and the plan's limit on the wall clock too.
func TestASessionEndsWithItsTime(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	dir := workDir(t)
	plan := confined(dir).WithLimits(domain.Limits{WallClock: 200 * time.Millisecond})
	result, _ := start(t, shell(dir, plan, "/bin/sh", "-c", "trap '' HUP; sleep 1000; sleep 1000")).end()
	var timeout *domain.TimeoutError
	require.ErrorAs(t, result.Ended, &timeout)
	require.Equal(t, "SIGKILL", result.Exit.Signal)

	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := newFactory().Start(ctx, shell(dir, confined(dir), "/bin/sh", "-c", "sleep 1000"), ports.TerminalSize{})
	require.NoError(t, err)
	cancel(errors.New("over"))
	got, err := s.Wait(t.Context())
	require.NoError(t, err)
	require.EqualError(t, got.Ended, "over")
	require.Equal(t, "SIGHUP", got.Exit.Signal)
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
}

// All that was printed is read, however late and slowly.
func TestASlowReaderLosesNothing(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	dir := workDir(t)
	s, err := newFactory().Start(t.Context(), shell(dir, confined(dir), "/bin/sh", "-c", "stty -opost; seq 500; exit 3"), ports.TerminalSize{})
	require.NoError(t, err)
	_, err = s.Wait(t.Context())
	require.NoError(t, err)
	time.Sleep(3 * lastOutput)
	var out strings.Builder
	buf := make([]byte, 100)
	for err == nil {
		var n int
		n, err = s.Read(buf)
		out.Write(buf[:n])
		time.Sleep(time.Millisecond)
	}
	require.ErrorIs(t, err, io.EOF)
	require.True(t, strings.HasSuffix(out.String(), "\n499\n500\n"), "%q", out.String())
	require.NoError(t, s.Close(t.Context()))
}

func TestNothingStartsWithoutAPlanOrAnEnforcer(t *testing.T) {
	testkit.NoLeaks(t)
	dir := workDir(t)
	_, err := newFactory().Start(t.Context(), shell(dir, domain.SandboxPlan{}, "/bin/true"), ports.TerminalSize{})
	require.ErrorIs(t, err, domain.ErrNoSandbox)
	bare := NewFactory(process.NewSpawner(process.Config{}), quick)
	_, err = bare.Start(t.Context(), shell(dir, confined(dir), "/bin/true"), ports.TerminalSize{})
	require.ErrorIs(t, err, domain.ErrNoEnforcer)
	_, err = newFactory().Start(t.Context(), shell(dir, domain.Unconfined("test"), "/nonexistent"), ports.TerminalSize{})
	var spawn *domain.SpawnError
	require.ErrorAs(t, err, &spawn)
	require.ErrorIs(t, err, os.ErrNotExist)
}
