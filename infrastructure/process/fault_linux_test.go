package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/infrastructure/seccomp"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// scarce starts turns and programs on a terminal with one descriptor more to
// have each time, so that every call of the spawn path that makes one fails in
// turn: files, pipes, rulesets, the spool, the filter's listener, pidfds.
func scarce(args []string) int {
	s := confinedSpawner()
	spool := args[0]
	line := shLine("/", testPlan(""), "exit 0")
	tty, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	starts := map[string]func() (end func() error, err error){
		"turn": func() (func() error, error) {
			run, err := s.StartTurn(context.Background(), TurnSpec{Line: line, SpoolDir: spool, Graces: quick})
			if err != nil {
				return nil, err
			}
			return func() error {
				lines := run.Lines(func(Line) error { return nil })
				_, err := run.Wait()
				return errors.Join(lines, err, run.Close())
			}, nil
		},
		"command": func() (func() error, error) {
			c, err := s.start(context.Background(), line, stdio{tty, tty, tty}, startOptions{})
			if err != nil {
				return nil, err
			}
			return c.destroy, nil
		},
	}
	// What the runtime opens at first use is open from here on.
	for _, start := range starts {
		end, err := start()
		if err == nil {
			err = end()
		}
		if err != nil {
			fmt.Println("without a limit:", err)
			return 1
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		fmt.Println(err)
		return 1
	}
	for name, start := range starts {
		failed := 0
		for extra := 0; ; extra++ {
			before := testkit.OpenFDs()
			free := 0
			for before[free] != "" {
				free++
			}
			low := limit
			low.Cur = uint64(free + extra)
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
				fmt.Println(err)
				return 1
			}
			end, err := start()
			if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
				fmt.Println(err)
				return 1
			}
			if err == nil {
				if err := end(); err != nil {
					fmt.Println(name, extra, "the end:", err)
					return 1
				}
				fmt.Println(name, "failed", failed)
				break
			}
			failed++
			var (
				spawn   *domain.SpawnError
				enforce *domain.EnforcementError
			)
			switch {
			case !errors.Is(err, unix.EMFILE):
				fmt.Println(name, extra, "another error:", err)
			case !errors.As(err, &spawn) && !errors.As(err, &enforce):
				fmt.Println(name, extra, "no typed error:", err)
			}
			if left := scarceLeft(before); left != "" {
				fmt.Println(name, extra, "after", err, "left:", left)
			}
			if extra > 200 {
				fmt.Println(name, "never starts:", err)
				return 1
			}
		}
	}
	return 0
}

// scarceLeft says what a failed start left, given the descriptors before it.
func scarceLeft(before map[int]string) string {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := ""
		for fd, target := range testkit.OpenFDs() {
			if before[fd] != target {
				left += fmt.Sprintf(" fd %d → %s", fd, target)
			}
		}
		for _, pid := range testkit.Children() {
			left += fmt.Sprintf(" process %d (%s)", pid, testkit.Comm(pid))
		}
		for _, tid := range testkit.RestrictedThreads() {
			left += fmt.Sprintf(" thread %d", tid)
		}
		if left == "" || time.Now().After(deadline) {
			return left
		}
	}
}

// EMFILE at every descriptor of the spawn path: a typed error, and nothing left.
func TestNoDescriptorsLeft(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	exe, err := os.Executable()
	require.NoError(t, err)
	out, err := exec.Command(exe, "__helper", "scarce", t.TempDir()).CombinedOutput()
	require.NoError(t, err, string(out))
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 2, string(out))
	for _, line := range lines {
		_, count, ok := strings.Cut(line, " failed ")
		require.True(t, ok, string(out))
		n, err := strconv.Atoi(count)
		require.NoError(t, err, string(out))
		// The rules and the ruleset, at least, which are all open before the thread
		// is there. How many of them are closed again when the start makes its own
		// is a matter of time.
		require.GreaterOrEqual(t, n, len(testPlan("").Rules())+1, line)
	}
}

// refusing is an enforcer whose Apply has one system call of the spawning thread
// and its child fail from then on, before or after the plan is applied.
type refusing struct {
	ports.SandboxEnforcer
	filter *seccomp.Filter
	first  bool
}

func (e refusing) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := e.SandboxEnforcer.Prepare(ctx, plan, line)
	if err != nil {
		return nil, err
	}
	group, ok := c.(ports.KillGroup)
	if !ok {
		return nil, errors.New("the enforcer has no kill group")
	}
	return refusingConfinement{c, group, e}, nil
}

type refusingConfinement struct {
	ports.Confinement
	ports.KillGroup
	of refusing
}

func (c refusingConfinement) Apply() error {
	load := func() error {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		_, err := c.of.filter.Load()
		return err
	}
	if !c.of.first {
		return errors.Join(c.Confinement.Apply(), load())
	}
	if err := load(); err != nil {
		return err
	}
	return c.Confinement.Apply()
}

// Every system call of the spawning thread, and of its child before the exec,
// refused in turn: a typed error with the errno in it, and nothing left.
func TestEveryCallOfAStartIsRefusedInTurn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for name, c := range map[string]struct {
		call  int
		first bool // it belongs to the enforcer
		// harmless says that the start does without: it goes on another way, or
		// the kernel has the result all the same.
		harmless bool
		// instead is the error where the runtime keeps the errno for itself.
		instead error
		errnos  []unix.Errno
	}{
		"prctl":        {call: unix.SYS_PRCTL, first: true},
		"capset":       {call: unix.SYS_CAPSET, first: true},
		"landlock":     {call: unix.SYS_LANDLOCK_RESTRICT_SELF, first: true, errnos: []unix.Errno{unix.E2BIG}},
		"seccomp":      {call: unix.SYS_SECCOMP, first: true},
		"close_range":  {call: unix.SYS_CLOSE_RANGE, errnos: []unix.Errno{unix.ENOSYS}},
		"pipe2":        {call: unix.SYS_PIPE2, errnos: []unix.Errno{unix.EMFILE, unix.ENFILE}},
		"clone":        {call: unix.SYS_CLONE, errnos: []unix.Errno{unix.EINTR}},
		"setsid":       {call: unix.SYS_SETSID},
		"chdir":        {call: unix.SYS_CHDIR, errnos: []unix.Errno{unix.ENOENT, unix.EIO}},
		"dup3":         {call: unix.SYS_DUP3, errnos: []unix.Errno{unix.EBUSY}},
		"execve":       {call: unix.SYS_EXECVE, errnos: []unix.Errno{unix.ENOENT, unix.ENOEXEC, unix.ETXTBSY, unix.ELOOP}},
		"ptrace":       {call: unix.SYS_PTRACE},
		"wait4":        {call: unix.SYS_WAIT4, errnos: []unix.Errno{unix.ECHILD}},
		"pidfd_open":   {call: unix.SYS_PIDFD_OPEN, errnos: []unix.Errno{unix.EMFILE}},
		"pidfd_signal": {call: unix.SYS_PIDFD_SEND_SIGNAL, harmless: true},
		"kill":         {call: unix.SYS_KILL},
		"epoll_ctl":    {call: unix.SYS_EPOLL_CTL, instead: os.ErrNoDeadline},
	} {
		for _, errno := range append([]unix.Errno{unix.EPERM, unix.EAGAIN, unix.ENOMEM, unix.ENOSPC}, c.errnos...) {
			t.Run(name+"/"+unix.ErrnoName(errno), func(t *testing.T) {
				testkit.NoLeaks(t)
				filter, err := seccomp.Refusing(c.call, errno)
				require.NoError(t, err)
				s := NewSpawner(Config{Enforcer: refusing{sandbox.Default(), filter, c.first}})
				dir := tempDir(t)
				run, err := s.StartTurn(t.Context(), TurnSpec{Line: shLine(dir, testPlan(dir), "echo > ran"), SpoolDir: t.TempDir(), Graces: quick})
				if c.harmless {
					require.NoError(t, err)
					collect(t, run)
					return
				}
				want := c.instead
				if want == nil {
					want = errno
				}
				require.ErrorIs(t, err, want)
				var (
					spawn   *domain.SpawnError
					enforce *domain.EnforcementError
				)
				require.True(t, errors.As(err, &spawn) || errors.As(err, &enforce), "no typed error: %v", err)
				_, err = os.Stat(filepath.Join(dir, "ran"))
				require.ErrorIs(t, err, os.ErrNotExist, "the child has run")
			})
		}
	}
}
