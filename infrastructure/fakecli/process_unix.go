//go:build unix

package fakecli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// anHour is how long the processes sleep that the fake leaves behind: longer
// than any test, so that one that is still there was not ended.
const anHour = "3600"

// childFormat is the format word of the fake's own helper process.
const childFormat = "child"

// runShell runs a command like the real programs: in a session of its own, so
// that the agent's process group does not reach it, with stdout and stderr in
// one stream. When ctx ends, its process group is killed. An exit code above
// 128 stands for a signal.
func runShell(ctx context.Context, line string) (output string, code int) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// What the command left running may hold the pipe for ever.
	cmd.WaitDelay = 100 * time.Millisecond
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return errnoText(err) + "\n", 127
	}
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return out.String(), 128 + int(status.Signal())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// signalByName takes "TERM" as well as "SIGTERM".
func signalByName(name string) (syscall.Signal, error) {
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("no such signal: %q", name)
}

func ignoreSignal(name string) error {
	s, err := signalByName(name)
	if err != nil {
		return err
	}
	signal.Ignore(s)
	return nil
}

// dieOf ends the process by the signal. The process becomes a shell first: the
// Go runtime turns some signals into an exit code. It only returns an error.
func dieOf(name string) error {
	s, err := signalByName(name)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("kill -%d $$", int(s))
	return fmt.Errorf("exec: %w", syscall.Exec("/bin/sh", []string{"sh", "-c", line}, os.Environ()))
}

// sleeper starts /bin/sleep with exactly these descriptors.
func sleeper(seconds string, env []string, files []*os.File, setsid bool) (*os.Process, error) {
	return os.StartProcess("/bin/sleep", []string{"sleep", seconds}, &os.ProcAttr{
		Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: setsid},
	})
}

func forkChildren(n int) (string, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer null.Close()
	var pids []string
	for range n {
		p, err := sleeper(anHour, nil, []*os.File{null, null, null}, false)
		if err != nil {
			return "", err
		}
		pids = append(pids, strconv.Itoa(p.Pid))
		go func() { _, _ = p.Wait() }() // reaps it, should it be killed first
	}
	return strings.Join(pids, "\n"), nil
}

func holdOutput(stdout, stderr io.Writer, d time.Duration) (string, error) {
	out, ok := stdout.(*os.File)
	errs, ok2 := stderr.(*os.File)
	if !ok || !ok2 {
		return "", errors.New("stdout and stderr are no files")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer null.Close()
	seconds := strconv.FormatFloat(d.Seconds(), 'f', 3, 64)
	p, err := sleeper(seconds, nil, []*os.File{null, out, errs}, true)
	if err != nil {
		return "", err
	}
	go func() { _, _ = p.Wait() }()
	return strconv.Itoa(p.Pid), nil
}

// startDaemon starts a process that nothing ties to the agent: the helper in
// between exits, so that the daemon is reparented.
func startDaemon(pidfile string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	pidfile, err = filepath.Abs(pidfile)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self, Subcommand, childFormat, pidfile)
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w", bytes.TrimSpace(out), err)
	}
	data, err := os.ReadFile(pidfile)
	return string(data), err
}

// childMain is the helper in between: it starts the daemon, writes down its
// pid and exits. The daemon has every descriptor closed: it is given no files,
// and what this process inherited is closed on exec.
func childMain(args []string, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "fakecli: child needs the name of a pid file")
		return exitMisuse
	}
	for _, fd := range inheritableFDs() {
		syscall.CloseOnExec(fd)
	}
	p, err := sleeper(anHour, []string{}, nil, true)
	if err == nil {
		if err = os.WriteFile(args[0], []byte(strconv.Itoa(p.Pid)), 0o644); err != nil {
			_ = p.Kill() // nobody would know of it
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, errnoText(err))
		return 1
	}
	return 0
}

// inheritableFDs lists the open descriptors that are not closed on exec: what
// the process was given, without those of the Go runtime.
func inheritableFDs() []int {
	limit := uint64(1 << 16)
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) == nil {
		limit = min(limit, uint64(r.Cur)) //nolint:unconvert // signed on FreeBSD
	}
	var fds []int
	for fd := range int(limit) {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}

// showFDs is what printfd says.
func showFDs() string {
	s := "fds"
	for _, fd := range inheritableFDs() {
		n := strconv.Itoa(fd)
		s += " " + n
		if fd > 2 {
			target, err := os.Readlink("/proc/self/fd/" + n)
			if err != nil {
				target = "?"
			}
			s += "→" + target
		}
	}
	return s
}

// errnoText renders an error like Node does, "EACCES: permission denied, open
// '/x'", so that a test finds the errno by its name whatever the agent.
func errnoText(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	s := unix.ErrnoName(errno) + ": " + errno.Error()
	var path *fs.PathError
	var op *net.OpError
	switch {
	case errors.As(err, &path):
		s += ", " + path.Op + " " + shellQuote(path.Path)
	case errors.As(err, &op) && op.Addr != nil:
		s += ", connect " + op.Addr.String()
	}
	return s
}
