package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
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
		// Rules, the ruleset, the start itself and the pidfd, at least.
		require.GreaterOrEqual(t, n, 10, line)
	}
}
