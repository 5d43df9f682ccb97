package process

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// modes are the two ways to run, each with what it promises about the tree.
func modes(t *testing.T, dir string) map[string]domain.SandboxPlan {
	testkit.RequireLandlock(t, 6)
	return map[string]domain.SandboxPlan{"confined": testPlan(dir), "native": domain.Unconfined("test")}
}

var quick = Graces{Interrupt: 50 * time.Millisecond, Terminate: 50 * time.Millisecond, Result: 100 * time.Millisecond, Drain: 200 * time.Millisecond}

// patient waits longer than the busiest machine takes.
var patient = Graces{Interrupt: time.Minute, Terminate: time.Minute}

func TestOutputAndExit(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, plan, `echo one; echo two >&2; printf 'three\r\n\nfour'; exit 7`)})
			stdout, stderr, end := collect(t, run)
			require.Equal(t, []string{"one", "three\r", "", "four"}, stdout)
			require.Equal(t, []string{"two"}, stderr)
			require.Equal(t, domain.ExitStatus{Known: true, Code: 7}, end.Exit)
			require.Equal(t, domain.EndNatural, end.Cause)
			require.Equal(t, "two\n", end.StderrTail)
		})
	}
}

func TestDeathBySignal(t *testing.T) {
	testkit.NoLeaks(t)
	_, _, end := collect(t, startTurn(t, confinedSpawner(), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "kill -SEGV $$")}))
	require.Equal(t, domain.ExitStatus{Known: true, Code: -1, Signal: "SIGSEGV", SignalNumber: 11}, end.Exit)
}

func TestStdin(t *testing.T) {
	testkit.NoLeaks(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 5<<16) // 5 MiB, far more than a pipe holds
	line := shLine("/", domain.Unconfined("test"), "sha256sum; cat /proc/self/fd/0 | wc -c")
	line.Stdin = big
	stdout, _, _ := collect(t, startTurn(t, NewSpawner(Config{}), TurnSpec{Line: line}))
	sum := sha256.Sum256(big)
	require.Equal(t, []string{hex.EncodeToString(sum[:]) + "  -", "0"}, stdout)

	// No stdin is /dev/null, never an open pipe.
	stdout, _, _ = collect(t, startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "readlink /proc/self/fd/0")}))
	require.Equal(t, []string{"/dev/null"}, stdout)

	// A child that never reads does not hold anything up.
	line = shLine("/", domain.Unconfined("test"), "echo done")
	line.Stdin = big
	stdout, _, _ = collect(t, startTurn(t, NewSpawner(Config{}), TurnSpec{Line: line}))
	require.Equal(t, []string{"done"}, stdout)
}

func TestStdinConversation(t *testing.T) {
	testkit.NoLeaks(t)
	line := shLine("/", domain.Unconfined("test"), `while read -r l; do echo "got $l"; done; echo eof`)
	line.Stdin, line.KeepStdinOpen = []byte("first\n"), true
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: line})
	var got []string
	require.NoError(t, run.Lines(func(l Line) error {
		got = append(got, string(l.Text))
		switch string(l.Text) {
		case "got first":
			run.Write([]byte("second\n"))
		case "got second":
			run.CloseStdin()
		}
		return nil
	}))
	require.Equal(t, []string{"got first", "got second", "eof"}, got)
	require.NoError(t, run.Close())
}

func TestStopLadder(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		for _, tc := range []struct {
			name, script string
			exit         domain.ExitStatus
			graces       Graces
		}{
			{"interrupt is enough", `trap 'exit 3' INT; echo up; while :; do sleep 0.01; done`, domain.ExitStatus{Known: true, Code: 3}, patient},
			{"terminate is enough", `trap '' INT; trap 'exit 4' TERM; echo up; while :; do sleep 0.01; done`, domain.ExitStatus{Known: true, Code: 4}, Graces{Interrupt: 50 * time.Millisecond, Terminate: time.Minute}},
			{"kill", `trap '' INT TERM; echo up; while :; do sleep 0.01; done`, domain.ExitStatus{Known: true, Code: -1, Signal: "SIGKILL", SignalNumber: 9}, quick},
			{"stopped", `while ! grep -q "^State:.T" /proc/$$/status; do sleep 0.01; done && echo up & kill -STOP $$`, domain.ExitStatus{Known: true, Code: -1, Signal: "SIGKILL", SignalNumber: 9}, quick},
		} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				testkit.NoLeaks(t)
				run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, plan, tc.script), Graces: tc.graces})
				begun := time.Now()
				require.NoError(t, run.Lines(func(l Line) error {
					run.Cancel(errBroken)
					return nil
				}))
				end, err := run.Wait()
				require.NoError(t, err)
				require.Equal(t, domain.EndCancelled, end.Cause)
				require.Equal(t, errBroken.Error(), end.Detail)
				require.Equal(t, tc.exit, end.Exit)
				require.Less(t, time.Since(begun), 30*time.Second)
				require.NoError(t, run.Close())
			})
		}
	}
}

func TestProtocolInterruptComesFirst(t *testing.T) {
	testkit.NoLeaks(t)
	line := shLine("/", domain.Unconfined("test"), `trap 'exit 9' INT; echo up; read -r word; echo "$word"; exit 0`)
	line.KeepStdinOpen = true
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: line, Interrupt: []byte("please\n"), Graces: Graces{Interrupt: 10 * time.Second}})
	var got []string
	require.NoError(t, run.Lines(func(l Line) error {
		run.Cancel(nil)
		got = append(got, string(l.Text))
		return nil
	}))
	require.Equal(t, []string{"up", "please"}, got)
	end, err := run.Wait()
	require.NoError(t, err)
	require.True(t, end.Exit.Success())
	require.NoError(t, run.Close())
}

func TestWallClock(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			plan := plan.WithLimits(domain.Limits{WallClock: 100 * time.Millisecond})
			_, _, end := collect(t, startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, plan, "sleep 100 & sleep 100"), Graces: quick}))
			require.Equal(t, domain.EndWallClock, end.Cause)
			require.Contains(t, end.Detail, "100ms")
		})
	}
}

func TestContextDeadlineIsATimeout(t *testing.T) {
	testkit.NoLeaks(t)
	ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, errBroken)
	defer cancel()
	run, err := NewSpawner(Config{}).StartTurn(ctx, TurnSpec{Line: shLine("/", domain.Unconfined("test"), "sleep 100"), SpoolDir: t.TempDir(), Graces: quick})
	require.NoError(t, err)
	_, _, end := collect(t, run)
	require.Equal(t, domain.EndWallClock, end.Cause)
}

func TestIdle(t *testing.T) {
	const limit = 800 * time.Millisecond
	plan := domain.Unconfined("test").WithLimits(domain.Limits{Idle: limit})
	start := func(t *testing.T, script string) *Run {
		testkit.NoLeaks(t)
		return startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", plan, script), Graces: quick})
	}
	t.Run("output keeps it going", func(t *testing.T) {
		_, _, end := collect(t, start(t, "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done"))
		require.Equal(t, domain.EndNatural, end.Cause)
		require.Greater(t, end.Duration, limit)
	})
	t.Run("silence ends it", func(t *testing.T) {
		_, _, end := collect(t, start(t, "echo up; sleep 100"))
		require.Equal(t, domain.EndIdle, end.Cause)
		require.Contains(t, end.Detail, limit.String())
	})
	t.Run("a tool in flight makes it rest", func(t *testing.T) {
		run := start(t, "echo up; sleep 2; echo done; sleep 100")
		var seen []string
		require.NoError(t, run.Lines(func(l Line) error {
			seen = append(seen, string(l.Text))
			run.ToolsInFlight(map[string]int{"up": 1, "done": 0}[string(l.Text)])
			return nil
		}))
		end, err := run.Wait()
		require.NoError(t, err)
		require.Equal(t, []string{"up", "done"}, seen)
		require.Equal(t, domain.EndIdle, end.Cause)
		require.NoError(t, run.Close())
	})
	t.Run("a slow consumer is not the agent's silence", func(t *testing.T) {
		run := start(t, "echo up; sleep 2; echo done")
		time.Sleep(2 * limit)
		stdout, _, end := collect(t, run)
		require.Equal(t, []string{"up", "done"}, stdout)
		require.Equal(t, domain.EndNatural, end.Cause)
	})
}

func TestResultGrace(t *testing.T) {
	testkit.NoLeaks(t)
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "echo result; sleep 100"), Graces: quick})
	require.NoError(t, run.Lines(func(Line) error { run.ResultGiven(); return nil }))
	end, err := run.Wait()
	require.NoError(t, err)
	require.Equal(t, domain.EndResultGrace, end.Cause)
	require.NoError(t, run.Close())
}

// Whatever a turn leaves behind is gone when the turn is over.
func TestNothingOfTheTreeIsLeft(t *testing.T) {
	dir := tempDir(t)
	pids := filepath.Join(dir, "pids")
	leave := map[string]string{
		"plain":        `sleep 1000 & echo $! >> pids`,
		"setsid":       `setsid sh -c 'echo $$ >> pids; exec sleep 1000' &`,
		"double fork":  `(setsid sh -c 'echo $$ >> pids; exec sleep 1000' &)`,
		"nohup":        `nohup sleep 1000 > /dev/null 2>&1 & echo $! >> pids`,
		"holds stdout": `setsid sh -c 'echo $$ >> pids; exec sleep 1000' & `,
		"deaf":         `sh -c 'trap "" TERM INT HUP; echo $$ >> pids; sleep 1000; sleep 1000' &`,
		"stopped":      `sh -c 'echo $$ >> pids; kill -STOP $$' &`,
	}
	// What only the keeper finds: it has shed parent, session, group and mark.
	keeperOnly := map[string]string{
		"empty environment": `(env -i setsid sh -c '(sh -c "echo \$\$ >> pids; exec sleep 1000" <&- >&- 2>&- &)' &)`,
	}
	ends := map[string]func(*Run){
		"exit":   func(*Run) {},
		"cancel": func(r *Run) { r.Cancel(nil) },
	}
	for mode, plan := range modes(t, dir) {
		scripts := map[string]string{}
		for name, s := range leave {
			scripts[name] = s
		}
		if mode == "confined" {
			for name, s := range keeperOnly {
				scripts[name] = s
			}
		}
		for name, script := range scripts {
			for how, end := range ends {
				t.Run(mode+"/"+name+"/"+how, func(t *testing.T) {
					testkit.NoLeaks(t)
					require.NoError(t, os.WriteFile(pids, nil, 0o600))
					tail := "; while ! [ -s pids ]; do sleep 0.01; done; echo up"
					if how == "cancel" {
						tail += "; sleep 1000"
					}
					run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, plan, script+"\n:"+tail), Graces: quick})
					pid := readPid(t, pids)
					begun := time.Now()
					end(run)
					_, _, _ = collect(t, run)
					require.False(t, alive(pid), "process %d is left", pid)
					require.Less(t, time.Since(begun), 30*time.Second)
				})
			}
		}
	}
}

func TestBystandersAreNotHit(t *testing.T) {
	testkit.NoLeaks(t)
	dir := tempDir(t)
	bystander := exec.Command("sleep", "1000")
	bystander.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, bystander.Start())
	defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
	for _, plan := range modes(t, dir) {
		other := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, plan, "sleep 1000")})
		run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, plan, "sleep 1000 & sleep 1000"), Graces: quick})
		run.Cancel(nil)
		collect(t, run)
		require.True(t, alive(bystander.Process.Pid))
		require.True(t, alive(other.child.proc.Pid), "another session was hit")
		other.Cancel(nil)
		collect(t, other)
	}
}

// endWithATracedThread makes the orchestrator the tracer of a thread that ends:
// until the tracer has reaped it, nobody can wait for the process.
func endWithATracedThread([]string) int {
	go func() {
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0); errno != 0 {
			fmt.Println("traceme:", errno)
		}
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // this thread alone
	}()
	time.Sleep(200 * time.Millisecond)
	return 7
}

func TestADeadTracedThreadHoldsNothingUp(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			begun := time.Now()
			stdout, _, end := collect(t, startTurn(t, confinedSpawner(), TurnSpec{Line: helperLine(t, plan, "traced")}))
			require.Empty(t, stdout)
			require.Equal(t, domain.ExitStatus{Known: true, Code: 7}, end.Exit)
			res, err := confinedSpawner().Run(context.Background(), helperLine(t, plan, "traced"), ports.Stdio{})
			require.NoError(t, err)
			require.Equal(t, domain.ExitStatus{Known: true, Code: 7}, res.Exit)
			require.Less(t, time.Since(begun), 15*time.Second)
		})
	}
}

// dieWithATracedThread lives until it is killed, deaf, with a thread that the
// orchestrator traces.
func dieWithATracedThread([]string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	go func() {
		runtime.LockOSThread()
		unix.RawSyscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0)
		fmt.Println("up")
		for {
			unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0) // for ever; arm64 has no pause(2)
		}
	}()
	select {}
}

func TestAKilledTracedThreadHoldsNothingUp(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			begun := time.Now()
			run := startTurn(t, confinedSpawner(), TurnSpec{Line: helperLine(t, plan, "tracedlater"), Graces: quick})
			require.NoError(t, run.Lines(func(Line) error { run.Cancel(nil); return nil }))
			end, err := run.Wait()
			require.NoError(t, err)
			require.Equal(t, "SIGKILL", end.Exit.Signal)
			require.NoError(t, run.Close())

			ctx, cancel := context.WithTimeoutCause(context.Background(), 300*time.Millisecond, errBroken)
			defer cancel()
			res, err := confinedSpawner().Run(ctx, helperLine(t, plan, "tracedlater"), ports.Stdio{})
			require.NoError(t, err)
			require.Equal(t, "SIGKILL", res.Exit.Signal)
			require.ErrorIs(t, res.Ended, errBroken)
			require.Less(t, time.Since(begun), 20*time.Second)
		})
	}
}

// startSiblings starts processes that are children of the orchestrator, not of
// the agent: clone(2), CLONE_PARENT.
func startSiblings([]string) int {
	for range 5 {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_PARENT|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			fmt.Println("clone:", errno)
			return 1
		}
		if pid == 0 {
			for {
				unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0) // for ever; arm64 has no pause(2)
			}
		}
	}
	return 0
}

func TestSiblingsAreKilledAndReaped(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t) // zombies included
			// The filter of the default enforcer refuses it, so this is one that
			// an embedder may have.
			s := NewSpawner(Config{Enforcer: landlock.New()})
			if plan.IsConfined() {
				plan = plan.WithWaivers(domain.Properties()...)
			}
			stdout, _, end := collect(t, startTurn(t, s, TurnSpec{Line: helperLine(t, plan, "siblings")}))
			require.Empty(t, stdout)
			require.True(t, end.Exit.Success())
			require.Empty(t, testkit.Children())
		})
	}
}

func TestTheDefaultEnforcerAllowsNoSiblings(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	stdout, _, end := collect(t, startTurn(t, confinedSpawner(), TurnSpec{Line: helperLine(t, testPlan(tempDir(t)), "siblings")}))
	require.Equal(t, []string{"clone: operation not permitted"}, stdout)
	require.Equal(t, 1, end.Exit.Code)
}

func TestAChildThatDoesNotReadIsEnded(t *testing.T) {
	testkit.NoLeaks(t)
	line := shLine("/", domain.Unconfined("test"), "echo up; exec sleep 1000")
	line.KeepStdinOpen = true
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: line, Graces: quick})
	chunk := make([]byte, 1<<20)
	require.NoError(t, run.Lines(func(Line) error {
		for range stdinLimit>>20 + 1 {
			run.Write(chunk)
		}
		return nil
	}))
	end, err := run.Wait()
	require.NoError(t, err)
	require.Equal(t, domain.EndOutputLimit, end.Cause)
	require.Contains(t, end.Detail, "does not read its input")
	require.NoError(t, run.Close())
}

// orchestrate starts a confined turn in a directory and waits to be killed.
func orchestrate(args []string) int {
	dir := args[0]
	_, err := confinedSpawner().StartTurn(context.Background(), TurnSpec{
		Line:     shLine(dir, testPlan(dir), "setsid sleep 1000 & echo $! > grandchild; echo $$ > child; sleep 1000"),
		SpoolDir: args[1],
	})
	fmt.Println("started:", err)
	select {}
}

// The keeper ends the tree when the orchestrator dies, however it dies.
func TestTheTreeDiesWithTheOrchestrator(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	dir := tempDir(t)
	orchestrator := exec.Command(exe, "__helper", "orchestrate", dir, t.TempDir())
	require.NoError(t, orchestrator.Start())
	child, grandchild := readPid(t, filepath.Join(dir, "child")), readPid(t, filepath.Join(dir, "grandchild"))
	require.True(t, alive(child))
	require.True(t, alive(grandchild))
	require.NoError(t, orchestrator.Process.Kill())
	require.Error(t, orchestrator.Wait())
	await(t, "the end of the tree", func() bool { return !alive(child) && !alive(grandchild) })
}

// spawnForEver starts confined turns until it is killed.
func spawnForEver(args []string) int {
	s := confinedSpawner()
	for {
		line := shLine("/", testPlan(""), "sleep 1000")
		line.Env = append(line.Env, args[0])
		run, err := s.StartTurn(context.Background(), TurnSpec{Line: line, SpoolDir: args[1], Graces: quick})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("started")
		run.Cancel(nil)
		_ = run.Lines(func(Line) error { return nil })
	}
}

// Also when the orchestrator dies in the middle of a spawn.
func TestAnOrchestratorThatDiesWhileSpawningLeavesNothing(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	mark := fmt.Sprintf("CAISSON_TEST_MARK=%d.%d", os.Getpid(), time.Now().UnixNano())
	marked := func() (pids []int) {
		for _, pid := range allPids() {
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if st, ok := readStat(pid); err == nil && ok && st.alive() && bytes.Contains(env, []byte(mark)) {
				pids = append(pids, pid)
			}
		}
		return pids
	}
	for i := range 40 {
		orchestrator := exec.Command(exe, "__helper", "spawning", mark, t.TempDir())
		out, err := orchestrator.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, orchestrator.Start())
		_, err = out.Read(make([]byte, 1)) // it is in its loop
		require.NoError(t, err)
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		require.NoError(t, orchestrator.Process.Kill())
		require.Error(t, orchestrator.Wait())
	}
	await(t, "the end of every agent", func() bool { return len(marked()) == 0 })
}

func TestTheAgentCannotReachKeeperOrOrchestrator(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	dir := tempDir(t)
	run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, testPlan(dir),
		`for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p != $$ ] && kill -0 $p 2>/dev/null && [ -d /proc/$p ] && echo reached $p $(cat /proc/$p/comm); done; echo done`)})
	stdout, _, _ := collect(t, run)
	require.Equal(t, []string{"done"}, stdout)
}

// unscopedKeeper runs, as pid 1 of its own pid namespace, a keeper that is in
// no domain: if it armed itself, it would kill everything.
func unscopedKeeper([]string) int {
	bystander := exec.Command("/bin/sleep", "1000")
	if err := bystander.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	for _, said := range []string{"", "kill\n", "arm\n", "arm\nkill\n"} {
		k, err := prepareKeeper()
		if err == nil {
			err = k.start()
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if _, err := k.commands.WriteString(said); err != nil && !errors.Is(err, syscall.EPIPE) {
			fmt.Println(err)
			return 1
		}
		if said == "" {
			if err := k.arm(); err == nil || !strings.Contains(err.Error(), "exposed") {
				fmt.Println("armed outside of a domain:", err)
				return 1
			}
		}
		_ = k.commands.Close()
		_, _ = k.proc.Wait()
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil || !alive(bystander.Process.Pid) {
		fmt.Println("the bystander is gone")
		return 1
	}
	fmt.Println("unharmed")
	return 0
}

// The arming check, where its failure could do no harm but to the test.
func TestKeeperOutsideOfADomainNeverKills(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "__helper", "unscoped")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("needs root or unprivileged user namespaces for a pid namespace: %v", err)
	}
	require.NoError(t, err, string(out))
	require.Equal(t, "unharmed\n", string(out))
}

func TestAKilledKeeperIsReplacedByTheWalk(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	dir := tempDir(t)
	run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, testPlan(dir), "setsid sleep 1000 & echo $! > pid; sleep 1000"), Graces: quick})
	pid := readPid(t, filepath.Join(dir, "pid"))
	require.NoError(t, unix.Kill(run.child.keeper.proc.Pid, unix.SIGKILL))
	run.Cancel(nil)
	collect(t, run)
	require.False(t, alive(pid))
}

func TestASlowConsumerLosesNothing(t *testing.T) {
	testkit.NoLeaks(t)
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "seq 1 200000")})
	await(t, "the child's end", func() bool { return !alive(run.child.proc.Pid) })
	stdout, _, _ := collect(t, run)
	require.Len(t, stdout, 200000)
	for i, s := range stdout {
		if s != fmt.Sprint(i+1) {
			t.Fatalf("line %d is %q", i, s)
		}
	}
}

func TestOutputLimit(t *testing.T) {
	testkit.NoLeaks(t)
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "yes"), OutputLimit: 1 << 20, Graces: quick})
	stdout, _, end := collect(t, run)
	require.Equal(t, domain.EndOutputLimit, end.Cause)
	require.Contains(t, end.Detail, "1048576")
	require.LessOrEqual(t, len(stdout)*2, 1<<20)
	require.Greater(t, len(stdout)*2, 1<<19)
}

// A child that is gone before it can be ended for what it wrote.
func TestOutputLimitAtTheVeryEnd(t *testing.T) {
	testkit.NoLeaks(t)
	for range 30 {
		run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "head -c 4000 /dev/zero"), OutputLimit: 100, Graces: quick})
		_, _, end := collect(t, run)
		require.Equal(t, domain.EndOutputLimit, end.Cause)
	}
}

func TestOversizeLine(t *testing.T) {
	testkit.NoLeaks(t)
	script := `echo before; head -c 3000000 /dev/zero | tr '\0' x; echo; echo after; head -c 100000 /dev/zero | tr '\0' y`
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), script), LineLimit: 50000})
	var got []string
	require.NoError(t, run.Lines(func(l Line) error {
		if o := l.Oversize; o != nil {
			got = append(got, fmt.Sprintf("%d %s %d %v", o.Bytes, o.SHA256[:8], len(o.Head), l.Partial))
			return nil
		}
		got = append(got, string(l.Text))
		return nil
	}))
	require.NoError(t, run.Close())
	x, y := sha256.Sum256(bytes.Repeat([]byte("x"), 3000000)), sha256.Sum256(bytes.Repeat([]byte("y"), 100000))
	require.Equal(t, []string{"before", fmt.Sprintf("3000000 %x 4096 false", x[:4]), "after", fmt.Sprintf("100000 %x 4096 true", y[:4])}, got)
}

func TestLinesStopsOnError(t *testing.T) {
	testkit.NoLeaks(t)
	run := startTurn(t, NewSpawner(Config{}), TurnSpec{Line: shLine("/", domain.Unconfined("test"), "seq 1 100; sleep 100"), Graces: quick})
	n := 0
	err := run.Lines(func(Line) error {
		if n++; n == 3 {
			return errBroken
		}
		return nil
	})
	require.ErrorIs(t, err, errBroken)
	require.Equal(t, 3, n)
	run.Cancel(err)
	_, err = run.Wait()
	require.NoError(t, err)
	require.NoError(t, run.Close())
}

func TestRunCommand(t *testing.T) {
	dir := tempDir(t)
	for name, plan := range modes(t, dir) {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			var out, errs bytes.Buffer
			var receipt domain.Receipt
			res, err := confinedSpawner().Run(context.Background(), shLine(dir, plan, "cat; echo e >&2; exit 5"), ports.Stdio{
				In: strings.NewReader("hello"), Out: &out, Err: &errs, Started: func(r domain.Receipt) { receipt = r },
			})
			require.NoError(t, err)
			require.Equal(t, "hello", out.String())
			require.Equal(t, "e\n", errs.String())
			require.Equal(t, domain.ExitStatus{Known: true, Code: 5}, res.Exit)
			require.Equal(t, receipt, res.Receipt)
			require.Equal(t, domain.TreeNone, receipt.Tree)
		})
	}
}

// writer does with every write what a test wants.
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestRunCommandWithABadWriter(t *testing.T) {
	testkit.NoLeaks(t)
	res, err := NewSpawner(Config{}).Run(context.Background(), shLine("/", domain.Unconfined("test"), "head -c 1000000 /dev/zero; exit 3"), ports.Stdio{
		Out: writer(func([]byte) (int, error) { return 0, errBroken }),
	})
	require.NoError(t, err)
	require.True(t, res.Exit.Known)
	require.ErrorIs(t, res.CleanUp, errBroken)
}

func TestRunCommandWithASlowWriterLosesNothing(t *testing.T) {
	testkit.NoLeaks(t)
	n, first := 0, true
	res, err := NewSpawner(Config{}).Run(context.Background(), shLine("/", domain.Unconfined("test"), "head -c 60000 /dev/zero"), ports.Stdio{
		Out: writer(func(p []byte) (int, error) {
			if first {
				time.Sleep(DefaultDrain + 500*time.Millisecond)
			}
			first = false
			n += len(p)
			return len(p), nil
		}),
	})
	require.NoError(t, err)
	require.NoError(t, res.CleanUp)
	require.Equal(t, 60000, n)
}

// What the command leaves behind does not hold its end up.
func TestRunCommandWithAHeldOutput(t *testing.T) {
	testkit.NoLeaks(t)
	var out bytes.Buffer
	begun := time.Now()
	dir := tempDir(t)
	_, err := NewSpawner(Config{}).Run(context.Background(), shLine(dir, domain.Unconfined("test"), "setsid sleep 30 & echo $! > pid; echo done"), ports.Stdio{Out: &out})
	require.NoError(t, err)
	require.Equal(t, "done\n", out.String())
	require.Less(t, time.Since(begun), 15*time.Second)
	require.NoError(t, unix.Kill(readPid(t, filepath.Join(dir, "pid")), unix.SIGKILL))
}

func TestRunCommandSignalsAndCancel(t *testing.T) {
	testkit.NoLeaks(t)
	signals := make(chan ports.Signal, 1)
	res, err := NewSpawner(Config{}).Run(context.Background(), shLine("/", domain.Unconfined("test"), "trap 'exit 6' INT; while :; do sleep 0.01; done"), ports.Stdio{
		Signals: signals, Started: func(domain.Receipt) {
			time.AfterFunc(200*time.Millisecond, func() { signals <- ports.SignalInterrupt })
		},
	})
	require.NoError(t, err)
	require.Equal(t, 6, res.Exit.Code)

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	res, err = NewSpawner(Config{}).Run(ctx, shLine("/", domain.Unconfined("test"), "exec sleep 1000"), ports.Stdio{})
	require.NoError(t, err)
	require.Equal(t, "SIGTERM", res.Exit.Signal)
}
