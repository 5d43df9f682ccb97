package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// helpers are the commands that the test binary runs as when it is a child.
var helpers = map[string]func(args []string) int{
	"attack":      attackSpawner,
	"fdlist":      listFDs,
	"setuid":      setuidDuringSpawns,
	"setuidturn":  setuidDuringTurn,
	"unscoped":    unscopedKeeper,
	"orchestrate": orchestrate,
	"traced":      endWithATracedThread,
	"siblings":    startSiblings,
	"tracedlater": dieWithATracedThread,
	"spawning":    spawnForEver,
	"abandon":     abandon,
	"undumpable":  undumpable,
	"scarce":      scarce,
	"ingroup":     inGroup,
}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "__helper" {
		os.Exit(helpers[os.Args[2]](os.Args[3:]))
	}
	testkit.DefaultSignals()
	os.Exit(m.Run())
}

// helperLine is a spawn line that runs a helper of the test binary.
func helperLine(t testing.TB, plan domain.SandboxPlan, args ...string) domain.SpawnLine {
	exe, err := os.Executable()
	require.NoError(t, err)
	if plan.IsConfined() {
		plan = plan.WithRules(domain.PathRule{Path: exe, Access: domain.AccessReadExec})
	}
	return domain.SpawnLine{Path: exe, Argv: append([]string{exe, "__helper"}, args...), Dir: "/", Sandbox: plan}
}

// shLine is a spawn line that runs a shell command.
func shLine(dir string, plan domain.SandboxPlan, script string) domain.SpawnLine {
	return domain.SpawnLine{
		Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Dir: dir,
		Env: []string{"PATH=/usr/bin:/bin"}, Sandbox: plan,
	}
}

// testPlan grants the system, and dir for writing.
func testPlan(dir string) domain.SandboxPlan {
	plan := domain.NewSandboxPlan("test")
	for _, p := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"} {
		// As an application hands them over: canonical.
		if canonical, err := filepath.EvalSymlinks(p); err == nil {
			plan = plan.WithRules(domain.PathRule{Path: canonical, Access: domain.AccessReadExec})
		}
	}
	plan = plan.WithRules(domain.PathRule{Path: "/dev/null", Access: domain.AccessReadWrite.ForFile()})
	if dir != "" {
		plan = plan.WithRules(domain.PathRule{Path: dir, Access: domain.AccessReadWriteExec})
	}
	return plan
}

func confinedSpawner() *Spawner { return NewSpawner(Config{Enforcer: sandbox.Default()}) }

// tempDir is a directory that any user may pass through.
func tempDir(t testing.TB) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}

// startTurn starts a turn whose run is ended and closed by the test's end.
func startTurn(t testing.TB, s *Spawner, spec TurnSpec) *Run {
	t.Helper()
	if spec.SpoolDir == "" {
		spec.SpoolDir = t.TempDir()
	}
	run, err := s.StartTurn(context.Background(), spec)
	require.NoError(t, err)
	return run
}

// collect reads a turn to its end.
func collect(t testing.TB, run *Run) (stdout, stderr []string, end domain.TurnEnd) {
	t.Helper()
	require.NoError(t, run.Lines(func(l Line) error {
		if l.Stderr {
			stderr = append(stderr, string(l.Text))
		} else {
			stdout = append(stdout, string(l.Text))
		}
		return nil
	}))
	end, err := run.Wait()
	require.NoError(t, err)
	require.NoError(t, run.Close())
	return stdout, stderr, end
}

// await polls until the condition holds.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting for %s", what)
		}
	}
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	st, ok := readStat(pid)
	return ok && st.alive()
}

// readPid waits for a pid that a child writes to a file.
func readPid(t testing.TB, file string) int {
	t.Helper()
	pid := 0
	await(t, "a pid in "+file, func() bool {
		data, _ := os.ReadFile(file)
		if !strings.HasSuffix(string(data), "\n") {
			return false
		}
		pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return pid > 0
	})
	return pid
}

// attackSpawner tries to reach a thread of its parent: any that it may signal
// is in its own domain. It says what it reached, and goes on until the time is
// up. It starts within its first instructions, before anything else.
func attackSpawner(args []string) int {
	limit, _ := time.ParseDuration(args[0])
	ppid := os.Getppid()
	deadline := time.Now().Add(limit)
	for {
		// The ids of threads are guessable, so /proc is not needed for it.
		for tid := ppid; tid < ppid+4000; tid++ {
			if err := unix.Tgkill(ppid, tid, 0); err == nil {
				fmt.Println("reached thread", tid, "of", ppid)
				return 1
			}
		}
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", ppid))
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if err := unix.Tgkill(ppid, tid, 0); err == nil {
				fmt.Println("reached thread", tid, "of", ppid)
				return 1
			}
			mem := fmt.Sprintf("/proc/%d/task/%d/mem", ppid, tid)
			if f, err := os.Open(mem); err == nil {
				f.Close()
				fmt.Println("opened", mem)
				return 1
			}
		}
		if time.Now().After(deadline) {
			fmt.Println("reached nothing")
			return 0
		}
		runtime.Gosched()
	}
}

func listFDs([]string) int {
	for fd := range testkit.OpenFDs() {
		if fd > 2 {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
				fmt.Println("inherited", fd)
			}
		}
	}
	return 0
}

// fakeEnforcer is a SandboxEnforcer whose every step can be made to fail.
type fakeEnforcer struct {
	prepare, apply error
	inner          ports.SandboxEnforcer // nil: restrict nothing
	onApply        func()
	closed         int
}

var errBroken = errors.New("broken on purpose")

func (e *fakeEnforcer) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	var all []domain.PropertyStatus
	for _, p := range domain.Properties() {
		all = append(all, domain.PropertyStatus{Property: p, State: domain.StateEnforced})
	}
	return all
}

func (e *fakeEnforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if e.prepare != nil {
		return nil, e.prepare
	}
	c := &fakeConfinement{enforcer: e, line: line}
	if e.inner != nil {
		inner, err := e.inner.Prepare(ctx, plan, line)
		if err != nil {
			return nil, err
		}
		c.inner = inner
	}
	return c, nil
}

type fakeConfinement struct {
	enforcer *fakeEnforcer
	inner    ports.Confinement
	line     domain.SpawnLine
}

func (c *fakeConfinement) SpawnLine() domain.SpawnLine { return c.line }

func (c *fakeConfinement) Apply() error {
	if c.enforcer.onApply != nil {
		c.enforcer.onApply()
	}
	if c.enforcer.apply != nil {
		return c.enforcer.apply
	}
	if c.inner != nil {
		return c.inner.Apply()
	}
	return nil
}

func (c *fakeConfinement) Receipt() domain.Receipt {
	if c.inner != nil {
		return c.inner.Receipt()
	}
	return domain.Receipt{Enforcer: "fake"}
}

func (c *fakeConfinement) Close() error {
	c.enforcer.closed++
	if c.inner != nil {
		return c.inner.Close()
	}
	return nil
}
