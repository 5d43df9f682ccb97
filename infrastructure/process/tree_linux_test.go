package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// undumpable is a process that hides its environment and its descriptors from
// others of the same user, and sleeps.
func undumpable(args []string) int {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Println(err)
		return 1
	}
	if _, err := unix.Setsid(); err != nil && !errors.Is(err, unix.EPERM) { // it may lead a group already
		fmt.Println(err)
		return 1
	}
	if err := os.WriteFile(args[0], []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		fmt.Println(err)
		return 1
	}
	time.Sleep(time.Hour)
	return 0
}

// forest is a tree of processes that do what they can to outlive their turn,
// all at once. They run a copy of the shell under a name that is theirs alone,
// by which the test finds them, and no killer does: /proc/<pid>/comm can be read
// of every process.
type forest struct {
	t    *testing.T
	dir  string
	name string
}

func plant(t *testing.T) *forest {
	t.Helper()
	f := &forest{t: t, dir: tempDir(t), name: fmt.Sprintf("ev%d", time.Now().UnixNano()%1e12)}
	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, f.name), shell, 0o755))
	require.NoError(t, unix.Mkfifo(filepath.Join(f.dir, "never"), 0o600))
	t.Cleanup(func() {
		// A chain that the code under test missed must not outlive the test.
		require.NoError(t, os.WriteFile(filepath.Join(f.dir, "stop"), nil, 0o600))
		for _, pid := range f.alive() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return f
}

// alive returns the processes of the forest that are not dead.
func (f *forest) alive() (pids []int) {
	for _, pid := range allPids() {
		if st, ok := readStat(pid); ok && st.alive() && testkit.Comm(pid) == f.name {
			pids = append(pids, pid)
		}
	}
	return pids
}

// What every killer finds.
var common = map[string]string{
	"plain":    `E -c 'echo $$ > plain; read x < never' &`,
	"setsid":   `setsid E -c 'echo $$ > setsid; read x < never' &`,
	"daemon":   `(setsid E -c 'echo $$ > daemon; read x < never' &)`,
	"deaf":     `E -c 'trap "" TERM INT HUP; echo $$ > deaf; while :; do read x < never; done' &`,
	"stopped":  `E -c 'echo $$ > stopped; kill -STOP $$' &`,
	"chain":    `E ./chain &`,
	"forkloop": `E -c 'echo $$ > forkloop; while ! [ -e stop ]; do E -c : ; done' &`,
}

// What sheds everything that can be seen from outside.
var hidden = map[string]string{
	"empty":       `env -i setsid E -c '(E -c "echo \$\$ > empty; read x < never" <&- >&- 2>&- &)' &`,
	"lostchain":   `env -i setsid E ./lostchain &`,
	"undumpable":  `(env -i SELF __helper undumpable DIR/undumpable > /dev/null &)`,
	"deafanddumb": `env -i setsid E -c '(trap "" TERM INT HUP; E -c "echo \$\$ > deafanddumb; while :; do read x < never; done" <&- >&- 2>&- &)' &`,
}

// script is a shell script that starts the trees, and says "up" when they are.
func (f *forest) script(trees ...map[string]string) string {
	f.t.Helper()
	self, err := os.Executable()
	require.NoError(f.t, err)
	fill := strings.NewReplacer("SELF", self, "DIR", f.dir, "E ", filepath.Join(f.dir, f.name)+" ").Replace
	for _, name := range []string{"chain", "lostchain"} {
		again := "E ./" + name + " &"
		if name == "lostchain" {
			again = "setsid E ./" + name + " <&- >&- 2>&- &"
		}
		text := fill("[ -e stop ] && exit; echo $$ > " + name + ".pid; " + again + "\n")
		require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600))
	}
	var script strings.Builder
	for _, tree := range trees {
		for name, line := range tree {
			file := name
			if strings.HasSuffix(name, "chain") {
				file += ".pid"
			}
			script.WriteString(fill(line) + "\nwhile ! [ -s " + file + " ]; do sleep 0.01; done\n")
		}
	}
	return script.String() + "echo up\n"
}

// gone fails the test if anything of the forest is there.
func (f *forest) gone() {
	f.t.Helper()
	require.Empty(f.t, f.alive(), "left of the tree")
	if data, err := os.ReadFile(filepath.Join(f.dir, "undumpable")); err == nil {
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		require.NoError(f.t, err)
		require.False(f.t, alive(pid), "the process that cannot be looked into is left")
	}
}

// However a turn ends, its whole tree is gone when it has ended: what a keeper
// is for.
func TestEveryEndTakesTheWholeTree(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	self, err := os.Executable()
	require.NoError(t, err)
	ends := map[string]struct {
		limits domain.Limits
		output int64
		after  string // what the main process does then
		end    func(r *Run, cancel context.CancelFunc)
		cause  domain.EndCause
	}{
		"exit":    {after: "exit 0", cause: domain.EndNatural},
		"crash":   {after: "kill -SEGV $$", cause: domain.EndNatural},
		"cancel":  {after: "sleep 1000", end: func(r *Run, _ context.CancelFunc) { r.Cancel(nil) }, cause: domain.EndCancelled},
		"kill":    {after: "sleep 1000", end: func(r *Run, _ context.CancelFunc) { r.Kill(nil) }, cause: domain.EndCancelled},
		"context": {after: "sleep 1000", end: func(_ *Run, cancel context.CancelFunc) { cancel() }, cause: domain.EndCancelled},
		"wall":    {after: "sleep 1000", limits: domain.Limits{WallClock: 3 * time.Second}, cause: domain.EndWallClock},
		"idle":    {after: "sleep 1000", limits: domain.Limits{Idle: 2 * time.Second}, cause: domain.EndIdle},
		"output":  {after: "yes", output: 1 << 20, cause: domain.EndOutputLimit},
		"result":  {after: "sleep 1000", end: func(r *Run, _ context.CancelFunc) { r.ResultGiven() }, cause: domain.EndResultGrace},
	}
	for name, c := range ends {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			f := plant(t)
			plan := testPlan(f.dir).WithLimits(c.limits).WithRules(domain.PathRule{Path: self, Access: domain.AccessReadExec})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			run, err := confinedSpawner().StartTurn(ctx, TurnSpec{
				Line: shLine(f.dir, plan, f.script(common, hidden)+c.after), SpoolDir: t.TempDir(), Graces: quick, OutputLimit: c.output,
			})
			require.NoError(t, err)
			require.Equal(t, domain.TreeKeeper, run.Receipt().Tree)
			up := false
			require.NoError(t, run.Lines(func(l Line) error {
				if string(l.Text) == "up" && !l.Stderr {
					up = true
					if c.end != nil { // otherwise it may have ended by now
						require.GreaterOrEqual(t, len(f.alive()), 6)
						c.end(run, cancel)
					}
				}
				return nil
			}))
			end, err := run.Wait()
			require.NoError(t, err)
			f.gone()
			require.True(t, up)
			require.Equal(t, c.cause, end.Cause, end.Detail)
			require.NoError(t, run.Close())
		})
	}
}

// Without a keeper the walk finds what has not shed parent, session, group and
// mark together; a chain of forks in particular, which is gone from where it was
// seen by the time that it is killed.
func TestTheWalkTakesWhatItCanFind(t *testing.T) {
	for range 5 {
		testkit.NoLeaks(t)
		f := plant(t)
		run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine(f.dir, domain.Unconfined("test"), f.script(common)+"sleep 1000"), Graces: quick})
		require.NoError(t, run.Lines(func(l Line) error {
			if string(l.Text) == "up" {
				run.Cancel(nil)
			}
			return nil
		}))
		_, err := run.Wait()
		require.NoError(t, err)
		f.gone()
		require.NoError(t, run.Close())
	}
}

// A kill waits for no grace, whether it comes first or during the ladder.
func TestKill(t *testing.T) {
	dir := tempDir(t)
	for mode, plan := range modes(t, dir) {
		for _, cancelled := range []bool{false, true} {
			testkit.NoLeaks(t)
			run := startTurn(t, confinedSpawner(), TurnSpec{
				Line: shLine(dir, plan, `trap "" TERM INT HUP; echo up; while :; do sleep 1000; done`), Graces: patient,
			})
			begun := time.Now()
			require.NoError(t, run.Lines(func(Line) error {
				begun = time.Now()
				if cancelled {
					run.Cancel(errors.New("first"))
					time.Sleep(50 * time.Millisecond) // the ladder has begun
				}
				run.Kill(errors.New("second"))
				return nil
			}))
			end, err := run.Wait()
			require.NoError(t, err)
			require.Less(t, time.Since(begun), 10*time.Second, mode)
			require.Equal(t, "SIGKILL", end.Exit.Signal)
			require.Equal(t, domain.EndCancelled, end.Cause)
			require.Equal(t, map[bool]string{false: "second", true: "first"}[cancelled], end.Detail, mode)
			require.NoError(t, run.Close())
		}
	}
}
