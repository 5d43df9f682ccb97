package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/cgroup"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// beforeSignals is the newest Landlock ABI without the signal scope, and so
// without a keeper.
const beforeSignals = 5

// groupEnforcer is the default enforcer of a kernel without keepers, with the
// groups that are delegated to this process, if any are.
func groupEnforcer() (ports.SandboxEnforcer, error) {
	groups, err := cgroup.Find()
	if err != nil {
		return nil, err
	}
	return cgroup.Limit(sandbox.New(sandbox.WithABI(beforeSignals)), groups), nil
}

// groupPlan is testPlan, without what that kernel cannot do.
func groupPlan(dir string) domain.SandboxPlan {
	return testPlan(dir).WithWaivers(domain.PropertySignals, domain.PropertyAbstractSockets)
}

// The real kernel, where it delegates a group to the tests: what the walk cannot
// find a group has.
func TestAGroupTakesTheWholeTree(t *testing.T) {
	testkit.RequireLandlock(t, beforeSignals)
	e, err := groupEnforcer()
	if err != nil {
		t.Skipf("no cgroup is delegated to this test (infrastructure/cgroup has a fake one): %v", err)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for name, end := range map[string]func(*Run){"cancel": func(r *Run) { r.Cancel(nil) }, "kill": func(r *Run) { r.Kill(nil) }, "exit": nil} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			before := groupsOfTests()
			f := plant(t)
			after := "sleep 1000"
			if end == nil {
				after = "exit 3"
			}
			plan := groupPlan(f.dir).WithRules(domain.PathRule{Path: self, Access: domain.AccessReadExec})
			run := startTurn(t, NewSpawner(Config{Enforcer: e}), TurnSpec{Line: shLine(f.dir, plan, f.script(common, hidden)+after), Graces: quick})
			require.Equal(t, domain.TreeCgroup, run.Receipt().Tree)
			require.NoError(t, run.Lines(func(l Line) error {
				if string(l.Text) == "up" && end != nil {
					end(run)
				}
				return nil
			}))
			_, err := run.Wait()
			require.NoError(t, err)
			f.gone()
			require.NoError(t, run.Close())
			require.Equal(t, before, groupsOfTests(), "the group is removed")
		})
	}
	t.Run("a failed start", func(t *testing.T) {
		testkit.NoLeaks(t)
		before := groupsOfTests()
		line := shLine("/", groupPlan(""), "")
		line.Path = "/nonexistent"
		_, err := NewSpawner(Config{Enforcer: e}).StartTurn(t.Context(), TurnSpec{Line: line, SpoolDir: t.TempDir()})
		require.ErrorIs(t, err, os.ErrNotExist)
		require.Equal(t, before, groupsOfTests())
	})
	t.Run("a limit without its controller is refused", func(t *testing.T) {
		testkit.NoLeaks(t)
		plan := groupPlan("").WithLimits(domain.Limits{Pids: 5, MemoryBytes: 1 << 30, CPUs: 1})
		if domain.CheckStrictness(plan, e.Supports(plan)) == nil {
			t.Skip("this host delegates all controllers")
		}
		_, err := NewSpawner(Config{Enforcer: e}).StartTurn(t.Context(), TurnSpec{Line: shLine("/", plan, "exit"), SpoolDir: t.TempDir()})
		var refused *domain.StrictnessError
		require.ErrorAs(t, err, &refused)
	})
}

// Where the host delegates the controller, the limit is kept; the kinds of
// limits are tested with a fake file system elsewhere.
func TestALimitIsKept(t *testing.T) {
	testkit.RequireLandlock(t, beforeSignals)
	e, err := groupEnforcer()
	plan := groupPlan("").WithLimits(domain.Limits{Pids: 5})
	if err != nil || domain.CheckStrictness(plan, e.Supports(plan)) != nil {
		t.Skipf("no pids controller is delegated to this test (infrastructure/cgroup has a fake one): %v", err)
	}
	testkit.NoLeaks(t)
	run := startTurn(t, NewSpawner(Config{Enforcer: e}), TurnSpec{Line: shLine("/", plan, "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; exit 0"), Graces: quick})
	_, stderr, _ := collect(t, run)
	require.Contains(t, strings.Join(stderr, "\n"), "fork")
}

// groupsOfTests lists the groups that this process made.
func groupsOfTests() []string {
	var all []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), fmt.Sprintf("caisson-%d-", os.Getpid())) {
			all = append(all, path)
		}
		return nil
	})
	slices.Sort(all)
	return all
}

// inGroup waits to be put into a delegated group, and then has it take a tree.
func inGroup(args []string) int {
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Println(err)
		return 1
	}
	e, err := groupEnforcer()
	if err != nil {
		fmt.Println("not delegated:", err)
		return 1
	}
	dir := args[0]
	files := stdio{}
	for i := range files {
		if files[i], err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	c, err := NewSpawner(Config{Enforcer: e}).start(context.Background(), shLine(dir, groupPlan(dir),
		`(env -i setsid /bin/sh -c '(/bin/sh -c "echo \$\$ > pid; exec sleep 1000" &)' &); sleep 1000`), files, startOptions{keeper: true})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("tree", c.receipt.Tree)
	if err := c.resume(); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ended", c.destroy())
	return 0
}

// An ordinary user, in a group that is theirs.
func TestADelegatedGroupOfAUser(t *testing.T) {
	testkit.RequireLandlock(t, beforeSignals)
	if os.Getuid() != 0 {
		t.Skip("only root can delegate a group")
	}
	place := ""
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err == nil {
			place = filepath.Join(mount, fmt.Sprintf("caisson-test.%d", os.Getpid()))
		}
	}
	if place == "" {
		t.Skip("no cgroup v2 file system")
	}
	require.NoError(t, os.Mkdir(place, 0o755))
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return unix.Rmdir(place) == nil }, 20*time.Second, treePause)
	})
	const user = 65534
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		require.NoError(t, os.Chown(filepath.Join(place, file), user, user))
	}
	// A program and a directory that the user reaches.
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	program := filepath.Join(dir, "program")
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, self, 0o755))
	work := filepath.Join(dir, "work")
	require.NoError(t, os.Mkdir(work, 0o700))
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chown(work, user, user))

	cmd := exec.Command(program, "__helper", "ingroup", work)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	next := func() string { require.True(t, lines.Scan()); return lines.Text() }
	require.Equal(t, "ready", next())
	require.NoError(t, os.WriteFile(filepath.Join(place, "cgroup.procs"), fmt.Appendf(nil, "%d", cmd.Process.Pid), 0))
	_, err = in.Write([]byte("go\n"))
	require.NoError(t, err)
	require.Equal(t, "tree cgroup", next())
	pid := readPid(t, filepath.Join(work, "pid"))
	require.True(t, alive(pid))
	_, err = in.Write([]byte("end\n"))
	require.NoError(t, err)
	require.Equal(t, "ended <nil>", next())
	require.False(t, alive(pid))
	require.NoError(t, cmd.Wait())
}
