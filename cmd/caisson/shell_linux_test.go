package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tests/testkit"
)

// person is somebody at a terminal on which `caisson shell` runs.
type person struct {
	t        *testing.T
	cmd      *exec.Cmd
	terminal *os.File // the side of who looks at it
	name     string   // of the device
	before   unix.Termios

	mu   sync.Mutex
	seen strings.Builder
}

// shell starts `caisson shell` on a terminal of the test's.
func (p *place) shell(args ...string) *person {
	p.t.Helper()
	ours, tty, err := pty.Open()
	require.NoError(p.t, err)
	require.NoError(p.t, pty.Setsize(ours, &pty.Winsize{Rows: 30, Cols: 100}))
	h := &person{t: p.t, terminal: ours, name: tty.Name(), cmd: p.command(append([]string{"shell"}, args...)...)}
	h.before = h.mode()
	h.cmd.Env = append(h.cmd.Env, "TERM=xterm", "SHELL=/bin/bash")
	h.cmd.Stdin, h.cmd.Stdout, h.cmd.Stderr = tty, tty, tty
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(p.t, h.cmd.Start())
	looking := make(chan struct{})
	go func() {
		defer close(looking)
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			h.mu.Lock()
			h.seen.Write(buf[:n])
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	p.t.Cleanup(func() {
		_ = h.cmd.Process.Kill() // it has ended, unless the test failed
		_ = tty.Close()          // and with it the read
		<-looking
		_ = ours.Close()
	})
	return h
}

// mode is the mode of the terminal.
func (h *person) mode() unix.Termios {
	h.t.Helper()
	mode, err := unix.IoctlGetTermios(int(h.terminal.Fd()), unix.TCGETS)
	require.NoError(h.t, err)
	return *mode
}

// see waits until the text is on the screen, after what was seen before.
func (h *person) see(text string) string {
	h.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		h.mu.Lock()
		all := h.seen.String()
		before, after, ok := strings.Cut(all, text)
		if ok {
			h.seen.Reset()
			h.seen.WriteString(after)
		}
		h.mu.Unlock()
		if ok {
			return before
		}
		require.True(h.t, time.Now().Before(deadline), "%q is not on the screen, but %q", text, all)
	}
}

func (h *person) typ(text string) {
	h.t.Helper()
	_, err := io.WriteString(h.terminal, text)
	require.NoError(h.t, err)
}

// leave waits for the end, and returns the exit code. The terminal is as it was.
func (h *person) leave() int {
	h.t.Helper()
	stop := time.AfterFunc(30*time.Second, func() { _ = h.cmd.Process.Kill() })
	defer stop.Stop()
	got := code(h.t, h.cmd.Wait())
	require.Equal(h.t, h.before, h.mode(), "the terminal's mode was not put back")
	return got
}

// bash is a shell whose prompt can be told from everything else.
var bash = []string{"--", "/bin/bash", "--norc", "--noprofile", "-i"}

func (p *place) bash(flags ...string) *person {
	p.t.Helper()
	p.env = append(p.env, "PS1=unused")
	h := p.shell(append(append([]string{"--env", "PS1=ready> "}, flags...), bash...)...)
	h.see("ready> ")
	require.NotEqual(p.t, h.before, h.mode(), "the terminal is not raw meanwhile")
	return h
}

func TestShell(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	t.Run("job control and window size", func(t *testing.T) {
		h := newPlace(t).bash()
		h.typ("stty size\n")
		h.see("30 100")
		require.NoError(t, pty.Setsize(h.terminal, &pty.Winsize{Rows: 40, Cols: 120}))
		h.typ("sleep 0.2; stty size\n")
		h.see("40 120")
		h.typ("echo no''w; cat\n")
		h.see("now\r\n") // from here on it is cat that reads
		h.typ("echoed\n")
		h.see("echoed\r\nechoed")
		h.typ("\x1a")
		h.see("Stopped")
		h.typ("fg\n")
		h.see("\x1b[?2004l\rcat\r\n")
		h.typ("again\n")
		h.see("again\r\nagain")
		h.typ("\x03")
		h.see("ready> ")
		h.typ("echo code $?\n")
		h.see("code 130")
		h.typ("exit 7\n")
		require.Equal(t, 7, h.leave())
	})
	t.Run("the end of the input ends the shell", func(t *testing.T) {
		h := newPlace(t).bash()
		h.typ("\x04")
		require.Equal(t, 0, h.leave())
	})
	t.Run("programs that draw", func(t *testing.T) {
		if _, err := os.Stat("/usr/bin/vi"); err != nil {
			t.Skip("no vi")
		}
		p := newPlace(t)
		h := p.bash()
		h.typ("vi -u NONE text\n")
		h.see("\x1b[?1049h") // the alternate screen
		h.typ("ihello from vi\x1b:wq\n")
		h.see("ready> ")
		h.typ("cat text\n")
		h.see("hello from vi")
		h.typ("seq 1000 | less\n")
		h.see("\r\n20\r\n")
		h.typ("G")
		h.see("1000")
		h.typ("q")
		h.see("ready> ")
		h.typ("exit\n")
		require.Equal(t, 0, h.leave())
		data, err := os.ReadFile(filepath.Join(p.workspace, "text"))
		require.NoError(t, err)
		require.Equal(t, "hello from vi\n", string(data))
	})
	t.Run("killed", func(t *testing.T) {
		h := newPlace(t).bash()
		h.typ("stty raw -echo; kill -9 $$\n")
		require.Equal(t, 137, h.leave())
	})
	t.Run("codes", func(t *testing.T) {
		require.Equal(t, 127, newPlace(t).shell("--", "nonexistent-command").leave())
		require.Equal(t, 126, newPlace(t).shell("--", "/etc/passwd").leave())
		require.Equal(t, 125, newPlace(t).shell("--ro", "/nonexistent").leave())
		require.Equal(t, 124, newPlace(t).shell("--timeout", "300ms", "--", "/bin/sleep", "1000").leave())
		require.Equal(t, 4, newPlace(t).shell("--", "/bin/sh", "-c", "exit 4").leave())
	})
	t.Run("without a terminal", func(t *testing.T) {
		out, err := newPlace(t).command("shell", "--", "/bin/true").CombinedOutput()
		require.Equal(t, 125, code(t, err))
		require.Contains(t, string(out), "caisson exec")
	})
	t.Run("the default is the person's shell", func(t *testing.T) {
		h := newPlace(t).shell()
		h.see("\x1b[?2004h") // bash listens
		h.typ("echo shell $0 home $HOME; exit 3\n")
		h.see("shell /bin/bash home ")
		require.NotContains(t, h.see("\r\n"), os.Getenv("HOME")+"\r")
		require.Equal(t, 3, h.leave())
	})
}

// What ends caisson ends everything, and gives the terminal back.
func TestShellEndsWithCaisson(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	start := func(t *testing.T) (*person, int) {
		t.Helper()
		p := newPlace(t)
		h := p.bash()
		h.typ("trap '' HUP TERM; (trap '' HUP TERM; setsid sh -c 'echo $$ > pid; exec sleep 1000') &\n")
		h.typ("while ! [ -s pid ]; do sleep 0.01; done; echo u''p\n")
		h.see("up")
		pid := p.pid("pid")
		require.True(t, testkit.Alive(pid))
		return h, pid
	}
	t.Run("SIGTERM", func(t *testing.T) {
		h, pid := start(t)
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 137, h.leave(), "it ignores the hang-up, so it is killed")
		require.False(t, testkit.Alive(pid))
	})
	t.Run("two SIGTERMs", func(t *testing.T) {
		h, pid := start(t)
		begun := time.Now()
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGTERM))
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 137, h.leave())
		require.Less(t, time.Since(begun), 2*time.Second, "the second one waits for no grace")
		require.False(t, testkit.Alive(pid))
	})
	t.Run("the terminal is hung up", func(t *testing.T) {
		h, pid := start(t)
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGHUP))
		require.Equal(t, 137, h.leave())
		require.False(t, testkit.Alive(pid))
	})
	t.Run("SIGKILL", func(t *testing.T) {
		h, pid := start(t)
		require.NoError(t, h.cmd.Process.Kill())
		require.Error(t, h.cmd.Wait())
		for deadline := time.Now().Add(10 * time.Second); testkit.Alive(pid); time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "process %d is left", pid)
		}
	})
}

// Nothing that the program does reaches the terminal of the person, but for what
// it prints; and the workspace is all that it can write.
func TestShellReachesNothingOfTheHost(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip("no perl to call ioctl with")
	}
	const tiocsti = 0x5412
	push := `open(T, "+<", "/dev/tty") or print "cannot open\n"; for $c (split //, "echo pushed\n") { ioctl(T, ` + strconv.Itoa(tiocsti) + `, $c) or do { print "push: $!\n"; last } }`
	for name, c := range map[string]struct {
		flags   []string
		reaches bool
	}{
		"confined": {}, "unconfined": {[]string{"--sandbox", "off"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			outside := filepath.Join(t.TempDir(), "outside")
			h := p.bash(c.flags...)
			require.NoError(t, os.Chmod(h.name, 0o666), "it is Landlock that keeps it away")
			h.typ("tty\n")
			h.see("/dev/pts/")
			require.NotEqual(t, h.name, "/dev/pts/"+h.see("\r\n"))
			h.typ("perl -e '" + push + "'\n")
			if !c.reaches {
				h.see("push: Operation not permitted")
			}
			h.typ("(echo written > " + outside + ") 2>/dev/null; (echo > " + h.name + ") 2>/dev/null && echo rea''ched; echo do''ne\n")
			require.Equal(t, c.reaches, strings.Contains(h.see("done"), "reached"))
			_, err := os.Stat(outside)
			require.Equal(t, c.reaches, err == nil)
			h.typ("exit\n")
			require.Equal(t, 0, h.leave())
		})
	}
}

// A policy's file has its way on a terminal too: here the workspace read-only, and
// a cache in the private state.
func TestShellUnderAPolicy(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	p := newPlace(t)
	p.env = append(p.env, "XDG_CONFIG_HOME="+t.TempDir())
	require.NoError(t, os.WriteFile(filepath.Join(p.workspace, "p.toml"), []byte("version = 1\nworkspace = \"ro\"\ngroups = [\"go\"]\n"), 0o600))
	h := p.bash("--policy", "p.toml")
	h.typ("cat p.toml >/dev/null && echo re''ad; echo > new || echo de''nied; mkdir -p $GOCACHE && echo ma''de\n")
	h.see("read\r\n")
	h.see("denied\r\n")
	h.see("made\r\n")
	h.typ("exit 5\n")
	require.Equal(t, 5, h.leave())
	require.NoFileExists(t, filepath.Join(p.workspace, "new"))
}
