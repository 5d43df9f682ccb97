package landlock

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

// confined runs f in the confinement's domain, inside a kill group if asked.
func confined[T any](tb testing.TB, c ports.Confinement, killGroup bool, f func() T) T {
	tb.Helper()
	type outcome struct {
		value T
		err   error
	}
	if killGroup {
		prepareGroup(tb, c)
	}
	o := testkit.OnThrowawayThread(func() (o outcome) {
		if killGroup {
			if err := c.(ports.KillGroup).EnterKillGroup(); err != nil {
				return outcome{err: err}
			}
		}
		if o.err = c.Apply(); o.err == nil {
			o.value = f()
		}
		return o
	})
	require.NoError(tb, o.err)
	return o.value
}

// prepareGroup makes a kill group ready.
func prepareGroup(tb testing.TB, c ports.Confinement) {
	tb.Helper()
	ok, err := c.(ports.KillGroup).PrepareKillGroup()
	require.NoError(tb, err)
	require.True(tb, ok)
}

// prepare prepares a plan that waives what Landlock cannot do here.
func prepare(tb testing.TB, e *Enforcer, plan domain.SandboxPlan) ports.Confinement {
	tb.Helper()
	c, err := e.Prepare(tb.Context(), waiveAll(plan), domain.SpawnLine{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}

func planOf(rules ...domain.PathRule) domain.SandboxPlan {
	return domain.NewSandboxPlan("test").WithRules(rules...)
}

func rw(path string) domain.PathRule {
	return domain.PathRule{Path: path, Access: domain.AccessReadWrite}
}

func ro(path string) domain.PathRule { return domain.PathRule{Path: path, Access: domain.AccessRead} }

// tempDir returns a canonical temporary directory.
func tempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)
	return dir
}

func writeFile(tb testing.TB, path, text string) string {
	tb.Helper()
	require.NoError(tb, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(tb, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// tryOpen opens and closes by system call, as it must not enter Go's poller.
func tryOpen(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func TestContract(t *testing.T) {
	abi := testkit.RequireLandlock(t, 3)
	testkit.NoLeaks(t)
	// Down to the lowest ABI that has nothing but files, so that the statuses
	// of old kernels go through the kit as well.
	for n := abi; n >= 1; n-- {
		t.Run(fmt.Sprint("ABI ", n), func(t *testing.T) {
			var enforces []domain.Property
			for p, first := range firstABI {
				if n >= first {
					enforces = append(enforces, p)
				}
			}
			features := portstest.EnforcerFeatures{Enforces: enforces, Spawn: testkit.SpawnConfined}
			if n == 1 {
				features.Spawn = nil // no links between directories: the kit asks for them
			}
			portstest.AssertEnforcerContract(t, func(testing.TB) ports.SandboxEnforcer { return New(WithABI(n)) }, features)
		})
	}
}

func TestContractThroughRecorder(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	var recorders []*portstest.RecordingEnforcer
	portstest.AssertEnforcerContract(t, func(testing.TB) ports.SandboxEnforcer {
		r := portstest.NewRecordingEnforcer(New())
		recorders = append(recorders, r)
		return r
	}, portstest.EnforcerFeatures{Enforces: []domain.Property{domain.PropertyFilesystem}, Spawn: testkit.SpawnConfined})
	applied := 0
	for _, r := range recorders {
		require.Empty(t, r.Unclosed())
		for _, p := range r.Preparations() {
			applied += p.Applied
		}
	}
	require.NotZero(t, applied)
}

// attempts are operations below a directory that fixture has filled. Each is
// tried unconfined first, so that a denial is known to be the sandbox's.
var attempts = []struct {
	name string
	run  func(dir string) error
}{
	{"read a file", func(d string) error { return tryOpen(d+"/file", unix.O_RDONLY) }},
	{"open for writing", func(d string) error { return tryOpen(d+"/file", unix.O_WRONLY) }},
	{"create a file", func(d string) error { return tryOpen(d+"/new", unix.O_WRONLY|unix.O_CREAT) }},
	{"list a directory", func(d string) error { return tryOpen(d, unix.O_RDONLY|unix.O_DIRECTORY) }},
	{"make a directory", func(d string) error { return unix.Mkdir(d+"/newdir", 0o700) }},
	{"remove a directory", func(d string) error { return unix.Rmdir(d + "/empty") }},
	{"make a link", func(d string) error { return unix.Symlink("x", d+"/newlink") }},
	{"make a pipe", func(d string) error { return unix.Mkfifo(d+"/newpipe", 0o600) }},
	{"make a socket", func(d string) error { return bindUnix(d + "/newsocket") }},
	{"hard link", func(d string) error { return unix.Link(d+"/file", d+"/newhard") }},
	{"rename", func(d string) error { return unix.Rename(d+"/rename", d+"/renamed") }},
	{"remove a file", func(d string) error { return unix.Unlink(d + "/unlink") }},
	{"truncate", func(d string) error { return unix.Truncate(d+"/truncate", 0) }},
}

func fixture(tb testing.TB, dir string) string {
	tb.Helper()
	for _, name := range []string{"file", "rename", "unlink", "truncate"} {
		writeFile(tb, filepath.Join(dir, name), "text")
	}
	require.NoError(tb, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	return dir
}

func bindUnix(path string) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Bind(s, &unix.SockaddrUnix{Name: path})
}

func TestFilesystem(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	testkit.NoLeaks(t)
	for _, killGroup := range []bool{false, true} {
		if killGroup {
			testkit.RequireLandlock(t, signalScopeABI)
		}
		t.Run(fmt.Sprint("kill group ", killGroup), func(t *testing.T) {
			dir := tempDir(t)
			free, inside, outside := fixture(t, dir+"/free"), fixture(t, dir+"/inside"), fixture(t, dir+"/outside")
			for _, a := range attempts {
				require.NoError(t, a.run(free), "unconfined: %s", a.name)
			}
			c := prepare(t, New(), planOf(rw(inside)))
			got := confined(t, c, killGroup, func() (errs [2][]error) {
				for _, a := range attempts {
					errs[0] = append(errs[0], a.run(inside))
					errs[1] = append(errs[1], a.run(outside))
				}
				return errs
			})
			for i, a := range attempts {
				require.NoError(t, got[0][i], "inside: %s", a.name)
				require.Equal(t, unix.EACCES, got[1][i], "outside: %s", a.name)
			}
		})
	}
}

func TestReadDoesNotWriteAndWriteDoesNotRead(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	dir := tempDir(t)
	readable, writable := fixture(t, dir+"/r"), fixture(t, dir+"/w")
	c := prepare(t, New(), planOf(ro(readable), domain.PathRule{Path: writable, Access: domain.AccessWrite}))
	got := confined(t, c, false, func() [4]error {
		return [4]error{
			tryOpen(readable+"/file", unix.O_RDONLY), tryOpen(readable+"/file", unix.O_WRONLY),
			tryOpen(writable+"/file", unix.O_RDONLY), tryOpen(writable+"/file", unix.O_WRONLY),
		}
	})
	require.Equal(t, [4]error{nil, unix.EACCES, unix.EACCES, nil}, got)
}

// Trap 8: without the right to rename between directories git, npm and cargo
// break; trap 7 and 25: an outer domain that does not handle it takes it away.
func TestRenameAcrossDirectories(t *testing.T) {
	abi := testkit.RequireLandlock(t, 2)
	attempt := func(t *testing.T, n int, killGroup bool) [2]error {
		dir := tempDir(t)
		a, b := fixture(t, dir+"/a"), fixture(t, dir+"/b")
		return confined(t, prepare(t, New(WithABI(n)), planOf(rw(a), rw(b))), killGroup, func() [2]error {
			return [2]error{unix.Rename(a+"/rename", b+"/moved"), unix.Link(a+"/file", b+"/linked")}
		})
	}
	require.Equal(t, [2]error{nil, nil}, attempt(t, abi, false))
	require.Equal(t, [2]error{unix.EXDEV, unix.EXDEV}, attempt(t, 1, false), "ABI 1 cannot grant it")
	if abi >= signalScopeABI {
		require.Equal(t, [2]error{nil, nil}, attempt(t, abi, true), "under the kill group's domain too")
	}
}

// Trap 9: rights of directories on a file rule are masked, not refused.
func TestFileRule(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	dir := tempDir(t)
	file, sibling := writeFile(t, dir+"/file", "text"), writeFile(t, dir+"/sibling", "text")
	c := prepare(t, New(), planOf(
		domain.PathRule{Path: file, Access: domain.AccessReadWriteExec},
		domain.PathRule{Path: sibling, Access: domain.AccessReadDir | domain.AccessMakeReg},
	))
	got := confined(t, c, false, func() [4]error {
		return [4]error{
			tryOpen(file, unix.O_RDWR|unix.O_TRUNC), tryOpen(sibling, unix.O_RDONLY),
			tryOpen(dir, unix.O_RDONLY|unix.O_DIRECTORY), unix.Unlink(file),
		}
	})
	require.Equal(t, [4]error{nil, unix.EACCES, unix.EACCES, unix.EACCES}, got)
	rules := c.Receipt().Rules
	require.Equal(t, domain.AccessReadWriteExec.ForFile(), rules[0].Access)
	require.Zero(t, rules[1].Access)
	require.Empty(t, rules[1].Canonical)
	require.Contains(t, rules[1].Skipped, "{read_dir,make_reg} grants nothing on a file")
}

func TestRulesOfOneObjectAddUp(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	dir := tempDir(t)
	target := fixture(t, dir+"/target")
	require.NoError(t, os.Symlink(target, dir+"/link"))
	for _, rules := range [][]domain.PathRule{
		{ro(target), {Path: dir + "/link", Access: domain.AccessWrite}},
		{{Path: dir + "/link", Access: domain.AccessWrite}, ro(target)},
	} {
		require.NoError(t, confined(t, prepare(t, New(), planOf(rules...)), false, func() error {
			return errors.Join(tryOpen(target+"/file", unix.O_RDWR), tryOpen(target+"/new", unix.O_RDWR|unix.O_CREAT))
		}))
	}
}

func TestExecute(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	program, err := filepath.EvalSymlinks("/bin/true")
	require.NoError(t, err)
	lib := []domain.PathRule{
		{Path: "/lib", Access: domain.AccessReadExec, Presence: domain.Optional},
		{Path: "/lib64", Access: domain.AccessReadExec, Presence: domain.Optional},
		{Path: "/usr/lib", Access: domain.AccessReadExec, Presence: domain.Optional},
	}
	run := func(access domain.Access) error {
		plan := waiveAll(planOf(append(lib, domain.PathRule{Path: program, Access: access})...))
		c, err := New().Prepare(t.Context(), plan, domain.SpawnLine{Path: program, Argv: []string{"true"}, Dir: "/"})
		require.NoError(t, err)
		defer c.Close()
		_, err = testkit.SpawnConfined(t.Context(), c)
		return err
	}
	require.NoError(t, run(domain.AccessReadExec))
	require.ErrorIs(t, run(domain.AccessReadWrite), unix.EACCES)
}

// Trap 10: a rule is bound to the directory that it was prepared with.
func TestRulesBindTheObjectNotTheName(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	dir := tempDir(t)
	granted := fixture(t, dir+"/granted")
	c := prepare(t, New(), planOf(rw(granted)))
	require.NoError(t, os.Rename(granted, dir+"/moved"))
	fixture(t, granted)
	got := confined(t, c, false, func() [2]error {
		return [2]error{tryOpen(dir+"/moved/file", unix.O_RDONLY), tryOpen(granted+"/file", unix.O_RDONLY)}
	})
	require.Equal(t, [2]error{nil, unix.EACCES}, got)
}

func TestTruncateNeedsABI3(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	outside := fixture(t, tempDir(t)+"/outside")
	for abi, want := range map[int]error{2: nil, 3: unix.EACCES} {
		c := prepare(t, New(WithABI(abi)), planOf())
		require.Equal(t, want, confined(t, c, false, func() error { return unix.Truncate(outside+"/truncate", 0) }), "ABI %d", abi)
	}
}

func TestIoctlNeedsABI5(t *testing.T) {
	testkit.RequireLandlock(t, 5)
	ioctl := func() error {
		fd, err := unix.Open("/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.IoctlGetInt(fd, unix.TCGETS)
		return err
	}
	// The device has no such ioctl, which shows that the call went through.
	require.Equal(t, unix.ENOTTY, ioctl())
	for _, c := range []struct {
		abi    int
		access domain.Access
		want   error
	}{
		{4, domain.AccessRead, unix.ENOTTY},
		{5, domain.AccessRead, unix.EACCES},
		{5, domain.AccessRead | domain.AccessIoctlDev, unix.ENOTTY},
	} {
		prepared := prepare(t, New(WithABI(c.abi)), planOf(domain.PathRule{Path: "/dev/zero", Access: c.access}))
		require.Equal(t, c.want, confined(t, prepared, false, ioctl), "ABI %d, %s", c.abi, c.access)
	}
}

func inet(typ, port int, call func(int, unix.Sockaddr) error) error {
	s, err := unix.Socket(unix.AF_INET, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return call(s, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

func connect(typ, port int) error { return inet(typ, port, unix.Connect) }
func bind(typ, port int) error    { return inet(typ, port, unix.Bind) }

func listenTCP(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func TestTCPNeedsABI4(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	granted, other := listenTCP(t), listenTCP(t)
	try := func() [3]error {
		return [3]error{connect(unix.SOCK_STREAM, granted), connect(unix.SOCK_STREAM, other), bind(unix.SOCK_STREAM, 0)}
	}
	require.Equal(t, [3]error{}, try(), "unconfined")
	port := domain.NewSandboxPlan("test").WithConnectTCP(uint16(granted))
	require.Equal(t, [3]error{nil, unix.EACCES, unix.EACCES}, confined(t, prepare(t, New(), port), false, try))
	require.Equal(t, [3]error{nil, unix.EACCES, nil}, confined(t, prepare(t, New(), port.WithBindTCP(0)), false, try))
	require.Equal(t, [3]error{}, confined(t, prepare(t, New(WithABI(3)), port), false, try), "ABI 3 has no TCP rights")
}

// Below ABI 10 the attempt must go through and the status must say so: it is a
// hole, and nothing may claim otherwise.
func TestUDPNeedsABI10(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	try := func() error { return connect(unix.SOCK_DGRAM, 9) }
	require.NoError(t, try(), "unconfined")
	want, state := error(nil), domain.StateUnenforceable
	if New().kernel.abi >= 10 {
		want, state = unix.EACCES, domain.StateEnforced
	}
	require.Equal(t, want, confined(t, prepare(t, New(), planOf()), false, try))
	require.Equal(t, state, stateOf(New(), domain.PropertyUDP))
	require.NoError(t, confined(t, prepare(t, New(), planOf().WithUDP(true)), false, try))
	require.NoError(t, confined(t, prepare(t, New(WithABI(9)), planOf()), false, try))
}

func stateOf(e *Enforcer, p domain.Property) domain.PropertyState {
	for _, s := range e.Supports(planOf()) {
		if s.Property == p {
			return s.State
		}
	}
	return ""
}

// A socket of a process outside the domain, in a directory that the plan lets
// the child write to. Below ABI 9 every choice lets it through, as for UDP.
func TestUnixSocketsNeedABI9(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	dir := tempDir(t)
	l, err := net.Listen("unix", dir+"/s")
	require.NoError(t, err)
	defer l.Close()
	denied, state := error(nil), domain.StateUnenforceable
	if New().kernel.abi >= 9 {
		denied, state = unix.EACCES, domain.StateEnforced
	}
	require.Equal(t, state, stateOf(New(), domain.PropertyUnixSockets))
	for choice, want := range map[domain.UnixSockets]error{
		domain.UnixSocketsDeny: denied, domain.UnixSocketsOwn: nil, domain.UnixSocketsAllow: nil,
	} {
		plan := planOf(rw(dir)).WithUnixSockets(choice)
		try := func() error { return connectUnix(dir + "/s") }
		require.Equal(t, want, confined(t, prepare(t, New(), plan), false, try), choice)
		require.NoError(t, confined(t, prepare(t, New(WithABI(8)), plan), false, try), choice)
	}
}

func connectUnix(name string) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Connect(s, &unix.SockaddrUnix{Name: name})
}

func TestScopesNeedABI6(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	name := "@caisson-test-" + strconv.Itoa(os.Getpid())
	l, err := net.Listen("unix", name)
	require.NoError(t, err)
	defer l.Close()
	bystander := startCat(t, nil)
	try := func() [2]error { return [2]error{connectUnix(name), unix.Kill(bystander.Pid, 0)} }
	require.Equal(t, [2]error{}, try(), "unconfined")
	require.Equal(t, [2]error{unix.EPERM, unix.EPERM}, confined(t, prepare(t, New(), planOf()), false, try))
	require.Equal(t, [2]error{}, confined(t, prepare(t, New(WithABI(5)), planOf()), false, try), "ABI 5 has no scopes")
}

// startCat starts a process that lives until the test ends. On a throwaway
// thread the files must be open already, so it takes them.
func startCat(tb testing.TB, start func(in *os.File) (*os.Process, error)) *os.Process {
	tb.Helper()
	r, w, err := os.Pipe()
	require.NoError(tb, err)
	defer r.Close()
	if start == nil {
		start = func(in *os.File) (*os.Process, error) {
			return os.StartProcess("/bin/cat", []string{"cat"}, &os.ProcAttr{Files: []*os.File{in}})
		}
	}
	p, err := start(r)
	tb.Cleanup(func() {
		w.Close()
		if p != nil {
			_, err := p.Wait()
			require.NoError(tb, err)
		}
	})
	require.NoError(tb, err)
	return p
}

// Trap 25: the domains nest. A keeper in the outer one can signal the agent in
// the inner one, and nothing outside; the agent cannot signal the keeper.
func TestKillGroupNests(t *testing.T) {
	testkit.RequireLandlock(t, signalScopeABI)
	testkit.NoLeaks(t)
	c := prepare(t, New(), planOf(append(systemRules(), ro("/proc"))...))
	keeperIn, command, err := os.Pipe()
	require.NoError(t, err)
	answer, keeperOut, err := os.Pipe()
	require.NoError(t, err)
	defer answer.Close()
	agentIn, agentEnd, err := os.Pipe()
	require.NoError(t, err)
	type outcome struct {
		keeper, agent *os.Process
		err           error
		agentToKeeper error
		threadToAgent error
	}
	prepareGroup(t, c)
	o := testkit.OnThrowawayThread(func() (o outcome) {
		if err := c.(ports.KillGroup).EnterKillGroup(); err != nil {
			return outcome{err: err}
		}
		const script = `read agent; kill -0 $PPID && echo orchestrator; kill -0 $agent && echo agent; echo end`
		if o.keeper, o.err = os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{Files: []*os.File{keeperIn, keeperOut}}); o.err != nil {
			return o
		}
		if o.err = c.Apply(); o.err != nil {
			return o
		}
		o.agent, o.err = os.StartProcess("/bin/cat", []string{"cat"}, &os.ProcAttr{Files: []*os.File{agentIn}})
		if o.err == nil {
			o.agentToKeeper = unix.Kill(o.keeper.Pid, 0)
			o.threadToAgent = unix.Kill(o.agent.Pid, 0)
		}
		return o
	})
	for _, f := range []*os.File{keeperIn, keeperOut, agentIn} {
		f.Close()
	}
	if o.err == nil {
		fmt.Fprintln(command, o.agent.Pid)
	}
	heard, err := io.ReadAll(answer)
	require.NoError(t, err)
	command.Close()
	for _, p := range []*os.Process{o.keeper, o.agent} {
		agentEnd.Close()
		if p != nil {
			_, err := p.Wait()
			require.NoError(t, err)
		}
	}
	require.NoError(t, o.err)
	require.Equal(t, "agent\nend\n", string(heard))
	require.Equal(t, unix.EPERM, o.agentToKeeper)
	require.NoError(t, o.threadToAgent)
}

func systemRules() []domain.PathRule {
	var rules []domain.PathRule
	for _, dir := range []string{"/bin", "/usr", "/lib", "/lib64"} {
		rules = append(rules, domain.PathRule{Path: dir, Access: domain.AccessReadExec, Presence: domain.Optional})
	}
	return rules
}

func TestKillGroupNeedsTheSignalScope(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	c := prepare(t, New(WithABI(5)), planOf())
	ok, err := c.(ports.KillGroup).PrepareKillGroup()
	require.NoError(t, err)
	require.False(t, ok)
	type outcome struct {
		noNewPrivs  int
		outsideOpen error
	}
	got := testkit.OnThrowawayThread(func() (o outcome) {
		var failed *domain.EnforcementError
		if err := c.(ports.KillGroup).EnterKillGroup(); !errors.As(err, &failed) {
			t.Errorf("a kill group that was not prepared was entered: %v", err)
		}
		o.noNewPrivs, _ = unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
		o.outsideOpen = tryOpen("/", unix.O_RDONLY)
		return o
	})
	before, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	require.NoError(t, err)
	require.Equal(t, outcome{noNewPrivs: before}, got, "nothing may have changed")
}

func TestApplyIsForOnce(t *testing.T) {
	testkit.RequireLandlock(t, signalScopeABI)
	enter := func(c ports.Confinement) error { return c.(ports.KillGroup).EnterKillGroup() }
	for name, calls := range map[string][]func(ports.Confinement) error{
		"apply twice":                  {ports.Confinement.Apply, ports.Confinement.Apply},
		"apply after close":            {ports.Confinement.Close, ports.Confinement.Apply},
		"enter twice":                  {enter, enter},
		"enter after apply":            {ports.Confinement.Apply, enter},
		"enter after close":            {ports.Confinement.Close, enter},
		"apply twice in a kill group":  {enter, ports.Confinement.Apply, ports.Confinement.Apply},
		"apply after close in a group": {enter, ports.Confinement.Close, ports.Confinement.Apply},
	} {
		t.Run(name, func(t *testing.T) {
			c := prepare(t, New(), planOf())
			prepareGroup(t, c)
			errs := testkit.OnThrowawayThread(func() (errs []error) {
				for _, call := range calls {
					errs = append(errs, call(c))
				}
				return errs
			})
			last := len(errs) - 1
			require.NoError(t, errors.Join(errs[:last]...))
			var failed *domain.EnforcementError
			require.ErrorAs(t, errs[last], &failed)
			require.NotZero(t, failed.ABI)
		})
	}
}

func TestApplySetsNoNewPrivs(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	c := prepare(t, New(), planOf())
	require.Equal(t, 1, confined(t, c, false, func() int {
		n, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
		return n
	}))
}

// A child must not get the ruleset: it could add nothing to its rights with
// it, but it is none of its business. No flag is set: none may restrict other
// threads (TSYNC), and none switches on the logging of the child's denials.
func TestRulesets(t *testing.T) {
	testkit.RequireLandlock(t, signalScopeABI)
	c, ok := prepare(t, New(), planOf()).(*confinement)
	require.True(t, ok)
	prepareGroup(t, c)
	for _, r := range []ruleset{c.plan, c.group} {
		flags, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
		require.Zero(t, r.flags)
	}
}

func TestRefusals(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	dir := tempDir(t)
	file := writeFile(t, dir+"/file", "")
	require.NoError(t, os.Symlink("loop", dir+"/loop"))
	require.NoError(t, os.Symlink("/usr", dir+"/link"))
	for _, c := range []struct {
		name   string
		rule   domain.PathRule
		err    error
		remedy string
	}{
		{"missing", ro(dir + "/missing"), os.ErrNotExist, "create it, mark the rule optional, or leave it out"},
		{"missing, to be written", rw(dir + "/missing"), os.ErrNotExist, "create it, grant its directory, mark the rule optional, or leave it out"},
		{"below a file", ro(file + "/below"), unix.ENOTDIR, "create it, mark the rule optional, or leave it out"},
		{"a link in a resolved path", domain.PathRule{Path: dir + "/link/bin", Access: domain.AccessRead, Resolved: true}, errSwapped, "grant nothing below a directory that somebody else changes links in"},
		{"a link in a resolved, optional path", domain.PathRule{Path: dir + "/link", Access: domain.AccessRead, Presence: domain.Optional, Resolved: true}, errSwapped, "grant nothing below a directory that somebody else changes links in"},
		{"the orchestrator itself", domain.PathRule{Path: "/proc/self", Access: domain.AccessRead, Presence: domain.Optional}, errSelf, "grant /proc, or leave the rule out: the child's own directory does not exist yet"},
		{"the orchestrator's files", domain.PathRule{Path: "/proc/thread-self/environ", Access: domain.AccessRead, Presence: domain.Optional}, errSelf, "grant /proc, or leave the rule out: the child's own directory does not exist yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			_, err := New().Prepare(t.Context(), waiveAll(planOf(ro(dir), c.rule)), domain.SpawnLine{})
			var failed *domain.EnforcementError
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.rule.Path, failed.Path)
			require.Equal(t, c.rule.Access, failed.Access)
			require.Equal(t, c.remedy, failed.Remedy)
			require.Equal(t, New().kernel.abi, failed.ABI)
		})
	}
	t.Run("a loop of links", func(t *testing.T) {
		_, err := New().Prepare(t.Context(), waiveAll(planOf(domain.PathRule{Path: dir + "/loop", Access: domain.AccessRead, Presence: domain.Optional})), domain.SpawnLine{})
		require.ErrorContains(t, err, "too many links")
	})
	t.Run("unconfined", func(t *testing.T) {
		_, err := New().Prepare(t.Context(), domain.Unconfined("test"), domain.SpawnLine{})
		var failed *domain.EnforcementError
		require.ErrorAs(t, err, &failed)
	})
	t.Run("no Landlock", func(t *testing.T) {
		e := New(WithABI(0))
		var strict *domain.StrictnessError
		_, err := e.Prepare(t.Context(), planOf(), domain.SpawnLine{})
		require.ErrorAs(t, err, &strict)
		var failed *domain.EnforcementError
		_, err = e.Prepare(t.Context(), waiveAll(planOf()), domain.SpawnLine{})
		require.ErrorAs(t, err, &failed, "a plan that waives everything is no sandbox")
	})
}

// What the orchestrator cannot reach is skipped if optional. Root reaches all.
func TestUnreachable(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	if os.Geteuid() == 0 {
		t.Skip("root: no directory is closed to it")
	}
	dir := tempDir(t)
	writeFile(t, dir+"/closed/file", "")
	require.NoError(t, os.Chmod(dir+"/closed", 0))
	t.Cleanup(func() { require.NoError(t, os.Chmod(dir+"/closed", 0o700)) })
	rule := ro(dir + "/closed/file")
	_, err := New().Prepare(t.Context(), waiveAll(planOf(rule)), domain.SpawnLine{})
	require.ErrorIs(t, err, os.ErrPermission)
	rule.Presence = domain.Optional
	c := prepare(t, New(), planOf(rule))
	require.Equal(t, "permission denied", c.Receipt().Rules[0].Skipped)
}

func TestUnavailableSaysWhatToDo(t *testing.T) {
	require.Contains(t, unavailable(unix.ENOSYS), "CONFIG_SECURITY_LANDLOCK")
	require.Contains(t, unavailable(unix.EOPNOTSUPP), "lsm=")
	require.Contains(t, unavailable(unix.EPERM), "seccomp")
}

func TestWithABINeverRaises(t *testing.T) {
	abi := testkit.RequireLandlock(t, 1)
	require.Equal(t, New().kernel, New(WithABI(abi+1)).kernel)
	require.Zero(t, New(WithABI(-1)).kernel.abi)
}

// Trap 22, step by step: a link that appears between the resolution and the
// opening is an error, and not a grant.
func TestLinkThatAppearsIsRefused(t *testing.T) {
	testkit.NoLeaks(t)
	dir := tempDir(t)
	secret, path := fixture(t, dir+"/secret"), fixture(t, dir+"/a/b")
	o, err := openCanonical(path)
	require.NoError(t, err)
	require.NoError(t, unix.Close(o.fd))
	require.NoError(t, os.Rename(dir+"/a", dir+"/old"))
	require.NoError(t, os.Symlink(secret, dir+"/a"))
	require.NoError(t, os.Mkdir(secret+"/b", 0o700))
	_, err = openCanonical(path)
	require.ErrorIs(t, err, errLink)
	_, err = openCanonical(dir + "/a")
	require.ErrorIs(t, err, errLink, "as the last component as well")
}

// Trap 22, as an attack: somebody exchanges a directory and a link to the
// secret as fast as he can. Whatever happens, what the receipt names is what
// the kernel was given. The companion shows that the attack is a real one: by
// name, the same race is lost.
func TestSwappedLinksNeverGrantTheSecret(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	testkit.NoLeaks(t)
	dir := tempDir(t)
	secret, path := fixture(t, dir+"/secret"), fixture(t, dir+"/path")
	require.NoError(t, os.Symlink(secret, dir+"/link"))

	var exchanges atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				// Atomic, so that the path always exists.
				if unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE) == nil {
					exchanges.Add(1)
				}
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	inode := func(path string) uint64 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(path, &st))
		return st.Ino
	}
	secretInode := inode(secret)

	var lost, granted, refused int
	for n := 0; n < 2000 || lost*granted*refused == 0; n++ {
		require.Less(t, n, 500_000, "by name %d lost; by descriptor %d granted, %d refused: the attack did not work", lost, granted, refused)
		// By name: resolve, then look what the name leads to by then.
		if canonical, err := filepath.EvalSymlinks(path); err == nil && canonical == path && inode(canonical) == secretInode {
			lost++
		}
		// As Prepare does it.
		o, err := locate(domain.PathRule{Path: path})
		if err != nil {
			require.ErrorIs(t, err, errSwapped)
			refused++
			continue
		}
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(o.fd, &st))
		require.NoError(t, unix.Close(o.fd))
		require.Equal(t, o.canonical == secret, st.Ino == secretInode, "%s was opened as %s", secret, o.canonical)
		granted++
	}
	// And down to the kernel: what the receipt does not name cannot be read.
	for range 200 {
		c, err := New().Prepare(t.Context(), waiveAll(planOf(ro(path))), domain.SpawnLine{})
		if err != nil {
			require.ErrorIs(t, err, errSwapped)
			continue
		}
		got := confined(t, c, false, func() error { return tryOpen(secret+"/file", unix.O_RDONLY) })
		if c.Receipt().Rules[0].Canonical == secret {
			require.NoError(t, got)
		} else {
			require.Equal(t, unix.EACCES, got)
		}
		require.NoError(t, c.Close())
	}
	t.Logf("%d exchanges; by name %d lost; by descriptor %d opened, %d refused", exchanges.Load(), lost, granted, refused)
}

func BenchmarkPrepare(b *testing.B) {
	testkit.RequireLandlock(b, 1)
	dir := tempDir(b)
	rules := systemRules()
	for i := range 8 {
		rules = append(rules, rw(fixture(b, fmt.Sprintf("%s/%d", dir, i))))
	}
	plan := waiveAll(planOf(rules...).WithConnectTCP(443))
	e := New()
	b.ReportAllocs()
	for b.Loop() {
		c, err := e.Prepare(b.Context(), plan, domain.SpawnLine{})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// What one caller fills into a receipt is not seen by another.
func TestReceiptsAreCopies(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	c := prepare(t, New(), planOf(ro(tempDir(t))).WithConnectTCP(1))
	want := c.Receipt()
	r := c.Receipt()
	r.Rules[0].Path, r.ConnectTCP[0], r.Layers[0], r.Properties[0].Mechanism, r.Open[0] = "x", 9, "x", "x", "x"
	require.Equal(t, want, c.Receipt())
}

func TestAFilterThatDeniesOpenat2IsNamed(t *testing.T) {
	r := ro("/usr")
	err := New().ruleFailed(r, &fs.PathError{Op: "openat2", Path: r.Path, Err: unix.ENOSYS})
	require.ErrorIs(t, err, unix.ENOSYS)
	require.ErrorContains(t, err, "a seccomp filter denies the call, often that of another Caisson")
	require.NotContains(t, err.Error(), "create it")
}
