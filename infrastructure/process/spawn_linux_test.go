package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestThrowawayThreadIsNeverTheMainThreadAndNeverSurvives(t *testing.T) {
	testkit.NoLeaks(t)
	for range 300 {
		var tid int
		err := onThrowawayThread(func(func()) error {
			tid = unix.Gettid()
			return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		})
		require.NoError(t, err)
		require.NotEqual(t, os.Getpid(), tid, "the main thread cannot be ended")
		require.ErrorIs(t, unix.Tgkill(os.Getpid(), tid, 0), unix.ESRCH)
	}
	require.Empty(t, testkit.RestrictedThreads())
}

func TestThrowawayThreadReturnsTheError(t *testing.T) {
	testkit.NoLeaks(t)
	require.ErrorIs(t, onThrowawayThread(func(func()) error { return errBroken }), errBroken)
}

// On one processor the goroutine lands on the main thread almost always.
func TestThrowawayThreadFromTheMainThread(t *testing.T) {
	testkit.NoLeaks(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 100 {
		require.NoError(t, onThrowawayThread(func(func()) error {
			if unix.Gettid() == unix.Getpid() {
				return fmt.Errorf("on the main thread")
			}
			return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		}))
	}
	require.Empty(t, testkit.RestrictedThreads())
}

func TestConfinedChildIsBornStopped(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	dir := tempDir(t)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	s := confinedSpawner()
	for range 50 {
		marker := filepath.Join(dir, "ran")
		c, err := s.start(context.Background(), shLine(dir, testPlan(dir), ": > ran"), stdio{null, null, null}, startOptions{keeper: true})
		require.NoError(t, err)
		// It stops on its way out of the kernel, before its first instruction.
		await(t, "the child's stop", func() bool { st, ok := readStat(c.proc.Pid); return ok && st.state == 'T' })
		require.NoFileExists(t, marker)
		require.Empty(t, testkit.RestrictedThreads(), "the spawning thread must be gone before the child runs")
		require.NoError(t, c.resume())
		require.NoError(t, c.awaitExit())
		require.NoError(t, c.kill())
		status, err := c.status()
		require.NoError(t, err)
		require.Equal(t, domain.ExitStatus{Known: true}, status)
		require.NoError(t, c.release())
		require.FileExists(t, marker)
		require.NoError(t, os.Remove(marker))
	}
}

// Trap 2: a child that shares a domain with a living thread of the orchestrator
// can signal it, trace it and read its memory.
func TestAChildNeverReachesAThreadOfItsSpawner(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	s := confinedSpawner()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 20 {
				run := startTurn(t, s, TurnSpec{Line: helperLine(t, testPlan(""), "attack", "20ms")})
				stdout, _, end := collect(t, run)
				if len(stdout) != 1 || stdout[0] != "reached nothing" || !end.Exit.Success() {
					t.Errorf("%v %v", stdout, end.Exit)
				}
			}
		})
	}
	wg.Wait()
}

// The companion: with a spawning thread that lives on, the same attack wins.
func TestTheAttackWinsAgainstAThreadThatLives(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	line := helperLine(t, testPlan(""), "attack", "5s")
	conf, err := sandbox.Default().Prepare(context.Background(), line.Sandbox, line)
	require.NoError(t, err)
	defer conf.Close()
	var out strings.Builder
	read, write, err := os.Pipe()
	require.NoError(t, err)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	release := make(chan struct{})
	started := make(chan *os.Process, 1)
	go func() {
		_ = onThrowawayThread(func(func()) error {
			defer close(started)
			if err := conf.Apply(); err != nil {
				return err
			}
			p, err := os.StartProcess(line.Path, line.Argv, &os.ProcAttr{Dir: "/", Files: []*os.File{null, write, write}})
			if err != nil {
				return err
			}
			started <- p
			<-release // the thread lives as long as the child: the mistake
			return nil
		})
	}()
	p := <-started
	require.NotNil(t, p)
	require.NoError(t, write.Close())
	buf := make([]byte, 4096)
	n, _ := read.Read(buf)
	out.Write(buf[:n])
	_, err = p.Wait()
	require.NoError(t, err)
	close(release)
	require.NoError(t, read.Close())
	require.Contains(t, out.String(), "reached thread")
}

func TestFailClosed(t *testing.T) {
	dir := tempDir(t)
	line := shLine(dir, testPlan(dir), ": > ran")
	cases := map[string]struct {
		enforcer ports.SandboxEnforcer
		native   bool
		line     domain.SpawnLine
		want     error
	}{
		"zero plan":     {enforcer: &fakeEnforcer{}, line: shLine(dir, domain.SandboxPlan{}, ": > ran"), want: domain.ErrNoSandbox},
		"no enforcer":   {line: line, want: domain.ErrNoEnforcer},
		"prepare fails": {enforcer: &fakeEnforcer{prepare: errBroken}, line: line, want: errBroken},
		"apply fails":   {enforcer: &fakeEnforcer{apply: errBroken}, line: line, want: errBroken},
		"no program": {enforcer: &fakeEnforcer{}, want: os.ErrNotExist, line: domain.SpawnLine{
			Path: "/no/such/program", Argv: []string{"x"}, Dir: dir, Sandbox: testPlan(dir)}},
		"no directory": {enforcer: &fakeEnforcer{}, want: os.ErrNotExist, line: shLine(filepath.Join(dir, "none"), testPlan(dir), ":")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			s := NewSpawner(Config{Enforcer: tc.enforcer, AllowNative: tc.native})
			run, err := s.StartTurn(context.Background(), TurnSpec{Line: tc.line, SpoolDir: t.TempDir()})
			require.ErrorIs(t, err, tc.want)
			require.Nil(t, run)
			_, err = s.Run(context.Background(), tc.line, ports.Stdio{})
			require.ErrorIs(t, err, tc.want)
			require.NoFileExists(t, filepath.Join(dir, "ran"))
			if f, ok := tc.enforcer.(*fakeEnforcer); ok && f.prepare == nil && !tc.line.Sandbox.IsZero() {
				require.GreaterOrEqual(t, f.closed, 2, "the confinement must be closed")
			}
		})
	}
}

func TestApplyFailureComesBeforeAnyChild(t *testing.T) {
	testkit.NoLeaks(t)
	var before, after []int
	e := &fakeEnforcer{apply: errBroken, onApply: func() { before = testkit.Children() }}
	_, err := NewSpawner(Config{Enforcer: e}).StartTurn(context.Background(), TurnSpec{Line: shLine("/", testPlan(""), ":"), SpoolDir: t.TempDir()})
	after = testkit.Children()
	require.ErrorIs(t, err, errBroken)
	require.Empty(t, before)
	require.Empty(t, after)
}

func TestCancelledContextStartsNothing(t *testing.T) {
	testkit.NoLeaks(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errBroken)
	_, err := NewSpawner(Config{}).StartTurn(ctx, TurnSpec{Line: shLine("/", domain.Unconfined("test"), ":"), SpoolDir: t.TempDir()})
	require.ErrorIs(t, err, errBroken)
}

func TestNativePathNeedsToBeAllowed(t *testing.T) {
	testkit.NoLeaks(t)
	run := startTurn(t, NewSpawner(Config{AllowNative: true}), TurnSpec{Line: shLine("/", testPlan(""), "grep NoNewPrivs /proc/self/status")})
	require.True(t, run.Receipt().Unconfined)
	stdout, _, _ := collect(t, run)
	require.Equal(t, []string{"NoNewPrivs:\t0"}, stdout)
}

func TestConfinedIsConfinedAndTheHostIsNot(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	dir, outside := tempDir(t), tempDir(t)
	run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine(dir, testPlan(dir),
		`grep NoNewPrivs /proc/self/status; echo > in; echo > `+outside+`/out || echo denied; mkdir a b; echo > a/f; mv a/f b/f && echo renamed`)})
	require.Equal(t, "landlock+seccomp", run.Receipt().Enforcer)
	stdout, stderr, end := collect(t, run)
	require.Equal(t, []string{"NoNewPrivs:\t1", "denied", "renamed"}, stdout)
	require.Contains(t, strings.Join(stderr, "\n"), "Permission denied")
	require.True(t, end.Exit.Success())
	require.FileExists(t, filepath.Join(dir, "in"))
	require.NoFileExists(t, filepath.Join(outside, "out"))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "host"), nil, 0o600), "the host must stay free")
	require.Empty(t, testkit.RestrictedThreads())
}

// Trap 3: many spawns beside many unrelated writes of the host.
func TestNoRestrictionLeaksIntoTheHost(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	dir, outside := tempDir(t), tempDir(t)
	s := confinedSpawner()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := filepath.Join(outside, fmt.Sprint(i))
				if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
					t.Errorf("write %d of the host failed: %v", n, err)
					return
				}
				if err := exec.Command("/bin/sh", "-c", ": > "+name).Run(); err != nil {
					t.Errorf("plain child %d of the host: %v", n, err)
					return
				}
			}
		})
	}
	var spawns sync.WaitGroup
	for range 4 {
		spawns.Go(func() {
			for range 25 {
				run := startTurn(t, s, TurnSpec{Line: shLine(dir, testPlan(dir), ": > "+outside+"/never")})
				_, _, end := collect(t, run)
				if end.Exit.Success() {
					t.Error("a confined child wrote outside")
				}
			}
		})
	}
	spawns.Wait()
	close(stop)
	wg.Wait()
	require.NoFileExists(t, filepath.Join(outside, "never"))
}

// Trap 11: a descriptor that the host left inheritable.
func TestInheritableDescriptorsDoNotReachTheChild(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	secret := filepath.Join(tempDir(t), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s"), 0o600))
	fd, err := unix.Open(secret, unix.O_RDONLY, 0) // no O_CLOEXEC
	require.NoError(t, err)
	defer unix.Close(fd)

	inheritable := func() {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		require.NoError(t, err)
	}
	inheritable()
	stdout, _, _ := collect(t, startTurn(t, confinedSpawner(), TurnSpec{Line: helperLine(t, testPlan(""), "fdlist")}))
	require.Empty(t, stdout)

	inheritable()
	s := NewSpawner(Config{Enforcer: sandbox.Default(), KeepInheritedFDs: true})
	run := startTurn(t, s, TurnSpec{Line: helperLine(t, testPlan(""), "fdlist")})
	require.True(t, run.Receipt().InheritedFDs)
	stdout, _, _ = collect(t, run)
	require.Equal(t, []string{fmt.Sprint("inherited ", fd)}, stdout, "the companion: without the sweep it gets through")
}

// Trap 16: no controlling terminal.
func TestChildrenAreSessionLeadersWithoutATerminal(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	for name, plan := range map[string]domain.SandboxPlan{"confined": testPlan(""), "native": domain.Unconfined("test")} {
		run := startTurn(t, confinedSpawner(), TurnSpec{Line: shLine("/", plan, `read -r stat < /proc/$$/stat; set -- $stat; echo $1 $6 $7`)})
		stdout, _, _ := collect(t, run)
		var pid, sid, tty int
		_, err := fmt.Sscan(stdout[0], &pid, &sid, &tty)
		require.NoError(t, err, name)
		require.Equal(t, pid, sid, name)
		require.Zero(t, tty, name)
	}
}

// setuidDuringSpawns is a host that changes its credentials while a thread of
// it is restricted.
func setuidDuringSpawns(args []string) int {
	hold := make(chan struct{})
	go func() {
		_ = onThrowawayThread(func(func()) error {
			// What Landlock, capabilities or seccomp can bring about: the call has
			// another result on this thread than on the others.
			var caps [2]unix.CapUserData
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			if err := unix.Capset(&head, &caps[0]); err != nil {
				return err
			}
			close(hold)
			time.Sleep(time.Minute)
			return nil
		})
	}()
	<-hold
	err := syscall.Setuid(65534)
	fmt.Println("survived:", err)
	return 0
}

// Trap 21, as documented in the package comment: it crashes, it does not
// corrupt. Drop privileges before the first session.
func TestSetuidWhileAThreadIsRestrictedCrashesTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can change its credentials")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "__helper", "setuid")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	// With cgo it is glibc that aborts, and the Go runtime may then hang in its
	// own crash report: so it is ended once it has said what happens.
	stop := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	said := bufio.NewScanner(out)
	crashed := false
	for !crashed && said.Scan() {
		require.NotContains(t, said.Text(), "survived")
		crashed = strings.Contains(said.Text(), "SIGABRT") || strings.Contains(said.Text(), "AllThreadsSyscall")
	}
	if crashed {
		_ = cmd.Process.Kill()
	}
	require.Error(t, cmd.Wait())
	// glibc's abort may also end it before the Go runtime says a word.
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.True(t, crashed || ws.Signal() == syscall.SIGABRT, "it did not crash: %v", cmd.ProcessState)
}

// setuidDuringTurn is a host that changes its credentials while a turn runs,
// but none is being started.
func setuidDuringTurn(args []string) int {
	run, err := confinedSpawner().StartTurn(context.Background(), TurnSpec{
		Line: shLine("/", testPlan(""), "echo up; sleep 1000"), SpoolDir: args[0], Graces: quick,
	})
	if err != nil {
		fmt.Println("start:", err)
		return 1
	}
	err = run.Lines(func(l Line) error {
		if string(l.Text) == "up" {
			fmt.Println("setuid:", syscall.Setuid(65534))
			run.Cancel(errBroken)
		}
		return nil
	})
	end, fault := run.Wait()
	fmt.Println("lines:", err, "fault:", fault, "exit:", end.Exit, "closed:", run.Close(), "uid:", os.Getuid())
	return 0
}

// Between spawns no thread is restricted, so the host survives it; and the turn
// still ends, because its keeper has the credentials that the agent has.
func TestSetuidWhileATurnRuns(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	if os.Getuid() != 0 {
		t.Skip("only root can change its credentials")
	}
	testkit.NoLeaks(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, exe, "__helper", "setuidturn", t.TempDir()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "setuid: <nil>\nlines: <nil> fault: <nil> exit: SIGKILL closed: <nil> uid: 65534\n", string(out))
}

// A child that is held up before its exec holds up whoever wants to start one. A
// lease on its program does that for as long as lease-break-time (fcntl(2)); so
// does a SIGSTOP from a process of the same user, or a file system that hangs.
func TestAStartThatIsHeldUpIsEnded(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	was := starts
	starts = &startWatch{limit: 100 * time.Millisecond}
	defer func() { starts = was }()
	dir := tempDir(t)
	program := filepath.Join(dir, "program")
	text, err := os.ReadFile("/bin/true")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, text, 0o700))
	held, err := os.Open(program)
	require.NoError(t, err)
	defer held.Close()
	_, err = unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	require.NoError(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()

	line := domain.SpawnLine{Path: program, Argv: []string{"program"}, Dir: "/", Sandbox: testPlan(dir)}
	begun := time.Now()
	_, err = confinedSpawner().start(context.Background(), line, stdio{null, null, null}, startOptions{keeper: true})
	require.ErrorIs(t, err, errStuck)
	require.Less(t, time.Since(begun), 10*time.Second)
	var spawn *domain.SpawnError
	require.ErrorAs(t, err, &spawn)
}
