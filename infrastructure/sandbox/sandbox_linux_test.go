package sandbox_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) { testkit.MainWithFake(m) }

func TestContract(t *testing.T) {
	abi := testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	limits := []domain.Property{domain.PropertyMemory, domain.PropertyPids, domain.PropertyCPU}
	for _, n := range []int{abi, 6, 5} {
		t.Run(fmt.Sprint("ABI ", n), func(t *testing.T) {
			var enforces []domain.Property
			for _, p := range domain.Properties() {
				if n >= 6 || p != domain.PropertySignals {
					enforces = append(enforces, p)
				}
			}
			enforces = enforces[:len(enforces)-len(limits)]
			program := testkit.FakeProgram()
			if n == 6 {
				program = "" // the newest and the one without a signal scope tell more
			}
			portstest.AssertEnforcerContract(t, func(testing.TB) ports.SandboxEnforcer { return sandbox.New(sandbox.WithABI(n)) },
				portstest.EnforcerFeatures{Enforces: enforces, Spawn: testkit.SpawnConfined, Program: program})
		})
	}
}

func TestAnOldKernelIsRefusedByName(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	_, err := sandbox.New(sandbox.WithABI(5)).Prepare(t.Context(), domain.NewSandboxPlan("test"), domain.SpawnLine{})
	require.ErrorContains(t, err, "signals: Landlock ABI 5 has no scope for signals; needs ABI 6")
	require.ErrorContains(t, err, "--waive signals")
	require.NotContains(t, err.Error(), "udp")
	_, err = sandbox.New(sandbox.WithABI(7)).Prepare(t.Context(), domain.NewSandboxPlan("test").WithUnixSockets(domain.UnixSocketsOwn), domain.SpawnLine{})
	require.ErrorContains(t, err, "needs ABI 9; a seccomp filter can only deny all unix sockets (do without it: --waive unix-sockets)")
}

func TestInvalidPlansAreRefused(t *testing.T) {
	for _, plan := range []domain.SandboxPlan{{}, domain.Unconfined("test"), domain.NewSandboxPlan("test").WithConnectTCP(0)} {
		c, err := sandbox.Default().Prepare(t.Context(), plan, domain.SpawnLine{})
		var failed *domain.EnforcementError
		require.ErrorAs(t, err, &failed)
		require.Nil(t, c)
	}
}

func TestReceipt(t *testing.T) {
	abi := testkit.RequireLandlock(t, 6)
	plan := domain.NewSandboxPlan("test").WithUDP(true).WithConnectTCP(443).WithWaivers(domain.PropertyIPC)
	c, err := sandbox.Default().Prepare(t.Context(), plan, domain.SpawnLine{})
	require.NoError(t, err)
	defer c.Close()
	r := c.Receipt()
	require.Equal(t, "landlock+seccomp", r.Enforcer)
	require.Equal(t, abi, r.ABI)
	require.Equal(t, []string{"no_new_privs", "capabilities", "landlock", "seccomp"}, r.Layers)
	require.Equal(t, plan.Digest(), r.PlanDigest)
	require.Equal(t, []domain.Property{domain.PropertyDestinations, domain.PropertyUDP, domain.PropertyMemory, domain.PropertyPids, domain.PropertyCPU}, r.InState(domain.StateNotRequested))
	require.Empty(t, r.InState(domain.StateWaived), "what can be enforced is, waived or not")
	require.Contains(t, strings.Join(r.Open, "\n"), "send to any host by UDP")
	require.Contains(t, strings.Join(r.Open, "\n"), "connect to a granted TCP port on any host")
}

// The layers shadow one another, so each has tests of its own. Here they are
// applied together, under a plan without a waiver, and every way out that one of
// them closes is tried; each has its companion outside.
func TestTheLayersTogether(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	inside, outside := filepath.Join(base, "in"), filepath.Join(base, "out")
	require.NoError(t, os.Mkdir(inside, 0o700))
	require.NoError(t, os.Mkdir(outside, 0o700))
	for _, dir := range []string{inside, outside} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600))
	}
	granted, other := listen(t), listen(t)
	path := filepath.Join(outside, "docker.sock")
	unixListener, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer unixListener.Close()
	victim := exec.Command("/bin/sleep", "60")
	require.NoError(t, victim.Start())
	defer func() { _, _ = victim.Process.Kill(), victim.Wait() }()
	pid := victim.Process.Pid

	open := func(path string, flags int) func() error {
		return func() error { return opened(unix.Open(path, flags|unix.O_CLOEXEC, 0o600)) }
	}
	connect := func(kind, protocol, port int) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		}
	}
	attempts := []struct {
		name string
		run  func() error
		want error
	}{
		{"read inside", open(inside+"/file", unix.O_RDONLY), nil},
		{"write inside", open(inside+"/file", unix.O_WRONLY), nil},
		{"read outside", open(outside+"/file", unix.O_RDONLY), unix.EACCES},
		{"write outside", open(outside+"/file", unix.O_WRONLY), unix.EACCES},
		{"create outside", open(outside+"/new", unix.O_WRONLY|unix.O_CREAT), unix.EACCES},
		{"truncate outside", func() error { return unix.Truncate(outside+"/file", 0) }, unix.EACCES},
		{"a granted port", connect(unix.SOCK_STREAM, 0, granted), nil},
		{"another port", connect(unix.SOCK_STREAM, 0, other), unix.EACCES},
		{"another port by UDP", connect(unix.SOCK_DGRAM, 0, other), unix.EPERM},
		{"another port by Fast Open", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Port: other, Addr: [4]byte{127, 0, 0, 1}})
		}, unix.EPERM},
		{"docker.sock", func() error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}, unix.EPERM},
		{"signal", func() error { return unix.Kill(pid, 0) }, unix.EPERM},
		{"limit", func() error {
			return unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
		}, unix.EPERM},
		{"environment", open("/proc/"+strconv.Itoa(pid)+"/environ", unix.O_RDONLY), unix.EACCES},
		{"setuid", func() error { return unix.Chmod(inside+"/file", 0o4700) }, unix.EPERM},
		{"shared memory", func() error {
			id, err := unix.SysvShmGet(0, 4096, 0o600|0o1000)
			if err == nil {
				_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
			}
			return err
		}, unix.EPERM},
		{"keyring", func() error {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
			return err
		}, unix.EPERM},
	}
	if os.Geteuid() == 0 {
		foreign := filepath.Join(inside, "foreign")
		require.NoError(t, os.WriteFile(foreign, nil, 0o600))
		require.NoError(t, os.Chown(foreign, 65534, 65534))
		attempts = append(attempts, struct {
			name string
			run  func() error
			want error
		}{"another user's file inside", open(foreign, unix.O_RDONLY), unix.EACCES})
	}
	for _, a := range attempts {
		require.NoError(t, a.run(), "%s, without a sandbox", a.name)
	}
	rules := []domain.PathRule{{Path: inside, Access: domain.AccessReadWrite}, {Path: "/proc", Access: domain.AccessRead}}
	plan := domain.NewSandboxPlan("test").WithRules(rules...).WithConnectTCP(uint16(granted))
	for _, group := range []bool{false, true} {
		c, err := sandbox.Default().Prepare(t.Context(), plan, domain.SpawnLine{})
		require.NoError(t, err)
		if group {
			ok, err := c.(ports.KillGroup).PrepareKillGroup()
			require.NoError(t, err)
			require.True(t, ok)
		}
		got := testkit.OnThrowawayThread(func() (errs []error) {
			if group {
				if err := c.(ports.KillGroup).EnterKillGroup(); err != nil {
					return []error{err}
				}
			}
			if err := c.Apply(); err != nil {
				return []error{err}
			}
			for _, a := range attempts {
				errs = append(errs, a.run())
			}
			return errs
		})
		require.NoError(t, c.Close())
		require.Len(t, got, len(attempts), "%v", got)
		for i, a := range attempts {
			require.Equal(t, a.want, got[i], "%s, kill group %v", a.name, group)
		}
	}
	for _, a := range attempts {
		require.NoError(t, a.run(), "%s: the host stays free", a.name)
	}
}

func opened(fd int, err error) error {
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func listen(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// A child, and not only the thread, has the layers: it reports its own state.
func TestTheChildHasTheLayers(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	plan := domain.NewSandboxPlan("test").WithRules(
		domain.PathRule{Path: "/proc", Access: domain.AccessRead},
		domain.PathRule{Path: "/usr", Access: domain.AccessReadExec},
		domain.PathRule{Path: "/bin", Access: domain.AccessReadExec},
		domain.PathRule{Path: "/lib", Access: domain.AccessReadExec, Presence: domain.Optional},
		domain.PathRule{Path: "/lib64", Access: domain.AccessReadExec, Presence: domain.Optional},
	)
	c, err := sandbox.Default().Prepare(t.Context(), plan, domain.SpawnLine{})
	require.NoError(t, err)
	defer c.Close()
	type started struct {
		p   *os.Process
		err error
	}
	s := testkit.OnThrowawayThread(func() (s started) {
		if s.err = c.Apply(); s.err == nil {
			s.p, s.err = os.StartProcess("/bin/cat", []string{"cat", "/proc/self/status"},
				&os.ProcAttr{Files: []*os.File{out, out, out}, Sys: &syscall.SysProcAttr{Setsid: true}})
		}
		return s
	})
	require.NoError(t, errors.Join(s.err, out.Close()))
	status := make([]byte, 1<<16)
	n := 0
	for err == nil {
		var m int
		m, err = in.Read(status[n:])
		n += m
	}
	state, err := s.p.Wait()
	require.NoError(t, err)
	require.True(t, state.Success(), "%s", status[:n])
	for _, line := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
		require.Contains(t, string(status[:n]), line)
	}
}
