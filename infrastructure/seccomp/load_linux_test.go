package seccomp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// filtered runs f under the filter of a plan, and under nothing else.
func filtered[T any](tb testing.TB, plan domain.SandboxPlan, f func() T) T {
	tb.Helper()
	if why := Missing(); why != "" {
		tb.Fatal(why)
	}
	filter, err := For(plan)
	require.NoError(tb, err)
	type outcome struct {
		value T
		err   error
	}
	o := testkit.OnThrowawayThread(func() (o outcome) {
		if o.err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); o.err != nil {
			return o
		}
		if _, o.err = filter.Load(); o.err == nil {
			o.value = f()
		}
		return o
	})
	require.NoError(tb, o.err)
	return o.value
}

var plan = domain.NewSandboxPlan("test")

func socket(family, kind, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
}

func pair(kind int) func() error {
	return func() error {
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Close(fds[0]), unix.Close(fds[1]))
		}
		return err
	}
}

// withTCP runs f on a new TCP socket.
func withTCP(f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(fd), unix.Close(fd))
}

// raw makes a system call that takes numbers.
func raw(number uintptr, a ...uintptr) func() error {
	return func() error {
		var args [6]uintptr
		copy(args[:], a)
		r, _, e := unix.Syscall6(number, args[0], args[1], args[2], args[3], args[4], args[5])
		if e != 0 {
			return e
		}
		_ = r
		return nil
	}
}

const bad = ^uintptr(0) // neither a descriptor nor an address

// Each attempt has its companion: what it gives without the filter, which is
// success or an errno of a call that was let through.
func TestTheKernelRefuses(t *testing.T) {
	testkit.NoLeaks(t)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	address := &unix.SockaddrInet4{Port: listener.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	opened, err := os.Open(file)
	require.NoError(t, err)
	defer opened.Close()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	created := 0
	create := func(mode uint32) func() error {
		return func() error {
			created++
			fd, err := unix.Open(filepath.Join(dir, strconv.Itoa(created)), unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}
	}

	type attempt struct {
		name      string
		run       func() error
		companion error
		want      error
	}
	attempts := []attempt{
		{"TCP", socket(unix.AF_INET, unix.SOCK_STREAM, 0), nil, nil},
		{"TCP, non-blocking", socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP), nil, nil},
		{"UDP", socket(unix.AF_INET, unix.SOCK_DGRAM, 0), nil, unix.EPERM},
		{"UDP with its number", socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP), nil, unix.EPERM},
		{"route netlink", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE), nil, nil},
		{"crypto netlink", socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT), nil, unix.EPERM},
		{"unix stream", socket(unix.AF_UNIX, unix.SOCK_STREAM, 0), nil, unix.EPERM},
		{"unix datagram", socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0), nil, unix.EPERM},
		{"pair of streams", pair(unix.SOCK_STREAM), nil, nil},
		{"pair of seqpackets", pair(unix.SOCK_SEQPACKET), nil, nil},
		{"pair of datagrams", pair(unix.SOCK_DGRAM), nil, unix.EPERM},
		{"pair of raws", pair(unix.SOCK_RAW), nil, unix.EPERM},
		{"no such family", socket(1000, unix.SOCK_STREAM, 0), unix.EAFNOSUPPORT, unix.EPERM},
		{"listen without a bind", func() error { return withTCP(func(fd int) error { return unix.Listen(fd, 1) }) }, nil, unix.EPERM},
		{"Fast Open", func() error {
			return withTCP(func(fd int) error { return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, address) })
		}, nil, unix.EPERM},
		{"Fast Open by message", func() error {
			return withTCP(func(fd int) error {
				_, err := unix.SendmsgN(fd, []byte("x"), nil, address, unix.MSG_FASTOPEN)
				return err
			})
		}, nil, unix.EPERM},
		{"Fast Open by messages", raw(unix.SYS_SENDMMSG, bad, 0, 1, unix.MSG_FASTOPEN), unix.EBADF, unix.EPERM},
		{"Fast Open by connect", func() error {
			return withTCP(func(fd int) error {
				return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
			})
		}, nil, unix.EPERM},
		{"upper layer protocol", func() error {
			return withTCP(func(fd int) error {
				return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "there is none")
			})
		}, unix.ENOENT, unix.EPERM},
		{"another socket option", func() error {
			return withTCP(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) })
		}, nil, nil},
		{"connect to TCP, and send", func() error {
			return withTCP(func(fd int) error {
				return errors.Join(unix.Connect(fd, address), unix.Sendto(fd, []byte("x"), unix.MSG_NOSIGNAL, nil))
			})
		}, nil, nil},

		{"own limits", func() error { var l unix.Rlimit; return unix.Prlimit(0, unix.RLIMIT_CPU, nil, &l) }, nil, nil},
		{"limits by process id", func() error { var l unix.Rlimit; return unix.Prlimit(os.Getpid(), unix.RLIMIT_CPU, nil, &l) }, nil, unix.EPERM},
		{"trace", raw(unix.SYS_PTRACE, 0x4206, 1<<30), unix.ESRCH, unix.EPERM},
		{"let go of a traced process", raw(unix.SYS_PTRACE, unix.PTRACE_DETACH, 1<<30), unix.ESRCH, unix.EPERM},
		{"read memory", raw(unix.SYS_PROCESS_VM_READV, 1<<30, 0, 0, 0, 0, 0), nil, unix.EPERM},
		{"write memory", raw(unix.SYS_PROCESS_VM_WRITEV, 1<<30, 0, 0, 0, 0, 0), nil, unix.EPERM},
		{"take a descriptor", raw(unix.SYS_PIDFD_GETFD, bad, 0, 0), unix.EBADF, unix.EPERM},
		{"compare", raw(unix.SYS_KCMP, 1<<30, 1<<30, 0), unix.ESRCH, unix.EPERM},
		{"advise", raw(unix.SYS_PROCESS_MADVISE, bad, 0, 0, 0, 0), unix.EBADF, unix.EPERM},
		{"clone3", raw(unix.SYS_CLONE3, 0, 0), unix.EINVAL, unix.ENOSYS},
		{"personality", raw(unix.SYS_PERSONALITY, addrNoRandomize|0x0800000), nil, unix.EPERM},
		{"shared memory", func() error {
			id, err := unix.SysvShmGet(0, 4096, 0o600|0o1000)
			if err == nil {
				_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
			}
			return err
		}, nil, unix.EPERM},
		{"semaphores", raw(unix.SYS_SEMCTL, bad, 0, 0), unix.EINVAL, unix.EPERM},
		{"messages", raw(unix.SYS_MSGCTL, bad, 0, 0), unix.EINVAL, unix.EPERM},
		{"POSIX messages", raw(unix.SYS_MQ_UNLINK, bad), unix.EFAULT, unix.EPERM},
		{"keys", func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); return err }, nil, unix.EPERM},
		{"mount", raw(unix.SYS_MOUNT, 0, 0, 0, 0, 0), unix.EFAULT, unix.EPERM},
		{"change the root", raw(unix.SYS_CHROOT, 0), unix.EFAULT, unix.EPERM},
		{"copy a mount", raw(unix.SYS_OPEN_TREE, bad, 0, 0), unix.EFAULT, unix.EPERM},
		{"enter a namespace", raw(unix.SYS_SETNS, bad, 0), unix.EBADF, unix.EPERM},
		{"leave a namespace", raw(unix.SYS_UNSHARE, 0), nil, unix.EPERM},
		{"count events", raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, bad, bad, 0), unix.EFAULT, unix.EPERM},
		{"page faults", func() error {
			fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1, 0, 0)
			if e != 0 {
				return e
			}
			return unix.Close(int(fd))
		}, nil, unix.EPERM},

		{"mode", func() error { return unix.Chmod(file, 0o700) }, nil, nil},
		{"setuid", func() error { return unix.Chmod(file, 0o4755) }, nil, unix.EPERM},
		{"setgid", func() error { return unix.Chmod(file, 0o2755) }, nil, unix.EPERM},
		{"setuid by descriptor", func() error { return unix.Fchmod(int(opened.Fd()), 0o4755) }, nil, unix.EPERM},
		{"setuid by directory", func() error { return unix.Fchmodat(unix.AT_FDCWD, file, 0o4755, 0) }, nil, unix.EPERM},
		{"setuid by the newer call", func() error { return unix.Fchmodat(unix.AT_FDCWD, file, 0o4755, unix.AT_SYMLINK_NOFOLLOW) }, nil, unix.EPERM},
		{"new file", create(0o600), nil, nil},
		{"new setuid file", create(0o4755), nil, unix.EPERM},
		{"new setuid node", func() error {
			created++
			return unix.Mknod(filepath.Join(dir, strconv.Itoa(created)), unix.S_IFREG|0o4755, 0)
		}, nil, unix.EPERM},
		{"fifo", func() error {
			created++
			return unix.Mkfifo(filepath.Join(dir, strconv.Itoa(created)), 0o600)
		}, nil, nil},
		{"openat2", func() error {
			fd, err := unix.Openat2(unix.AT_FDCWD, file, &unix.OpenHow{Flags: unix.O_CLOEXEC})
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}, nil, unix.ENOSYS},
		{"run a descriptor", raw(unix.SYS_EXECVEAT, bad, 0, 0, 0, unix.AT_EMPTY_PATH), unix.EFAULT, unix.EPERM},
		{"push input", raw(unix.SYS_IOCTL, null.Fd(), unix.TIOCSTI, 0), unix.ENOTTY, unix.EPERM},
		{"select on the console", raw(unix.SYS_IOCTL, null.Fd(), 0x541c, 0), unix.ENOTTY, unix.EPERM},
		{"line discipline", raw(unix.SYS_IOCTL, null.Fd(), unix.TIOCSETD, 0), unix.ENOTTY, unix.EPERM},
		{"terminal settings", raw(unix.SYS_IOCTL, null.Fd(), unix.TCGETS, 0), unix.ENOTTY, unix.ENOTTY},
		{"a call of the future", raw(900), unix.ENOSYS, unix.ENOSYS},
	}
	if os.Geteuid() == 0 {
		attempts = append(attempts, []attempt{
			{"raw socket", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), nil, unix.EPERM},
			{"packet socket", socket(unix.AF_PACKET, unix.SOCK_RAW, 0), nil, unix.EPERM},
			{"mount object", raw(unix.SYS_FSOPEN, 0, 0), unix.EFAULT, unix.EPERM},
			{"hostname", raw(unix.SYS_SETHOSTNAME, 0, bad), unix.EINVAL, unix.EPERM},
			{"clock", raw(unix.SYS_SETTIMEOFDAY, 0, 0), nil, unix.EPERM},
		}...)
	}
	for _, a := range attempts {
		require.ErrorIs(t, a.run(), a.companion, "%s, without the filter", a.name)
	}
	require.NoError(t, os.Chmod(file, 0o600))
	got := filtered(t, plan, func() (errs []error) {
		for _, a := range attempts {
			errs = append(errs, a.run())
		}
		return errs
	})
	for i, a := range attempts {
		if a.want == nil {
			require.NoError(t, got[i], a.name)
		} else {
			require.Equal(t, a.want, unjoined(got[i]), a.name)
		}
	}
	// Nothing of it stays on the threads of the process.
	for _, a := range attempts {
		if a.companion == nil && a.want != nil && a.name != "new setuid file" {
			require.NoError(t, a.run(), "%s, after the filter", a.name)
		}
	}
}

// unjoined returns the one error behind one that was joined with nothing else.
func unjoined(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) == 1 {
		return joined.Unwrap()[0]
	}
	return err
}

// Every call that no argument makes allowed, with arguments that would do no
// harm if it were.
func TestTheKernelRefusesEveryRule(t *testing.T) {
	arch, err := architectureOf(runtime.GOARCH)
	require.NoError(t, err)
	for _, r := range rules(variant{}) {
		a, ok := r.then.(action)
		if n := arch.number(r); ok && n != none && a != allow {
			got := filtered(t, plan, func() error { return raw(uintptr(n), bad, bad, bad, bad, bad, bad)() })
			require.Equal(t, unix.Errno(uint32(a)&0xffff), got, r.name)
		}
	}
}

func TestThePlanChangesTheFilter(t *testing.T) {
	udp, stream := socket(unix.AF_INET, unix.SOCK_DGRAM, 0), socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	listen := func() error { return withTCP(func(fd int) error { return unix.Listen(fd, 1) }) }
	for _, c := range []struct {
		plan              domain.SandboxPlan
		udp, unix, listen error
	}{
		{plan, unix.EPERM, unix.EPERM, unix.EPERM},
		{plan.WithWaivers(domain.Properties()...), unix.EPERM, unix.EPERM, unix.EPERM},
		{plan.WithUDP(true), nil, unix.EPERM, unix.EPERM},
		{plan.WithBindTCP(0), unix.EPERM, unix.EPERM, nil},
		{plan.WithUnixSockets(domain.UnixSocketsOwn), unix.EPERM, nil, nil},
		{plan.WithUnixSockets(domain.UnixSocketsAllow), unix.EPERM, nil, nil},
	} {
		got := filtered(t, c.plan, func() [3]error { return [3]error{unjoined(udp()), unjoined(stream()), unjoined(listen())} })
		require.Equal(t, [3]error{c.udp, c.unix, c.listen}, got, "%s", c.plan)
	}
}

// spawn starts a program under the filter, as the process machinery does, and
// returns how it ended.
func spawn(tb testing.TB, confined bool, attr *syscall.SysProcAttr, argv ...string) (*os.ProcessState, error) {
	tb.Helper()
	type started struct {
		p   *os.Process
		err error
	}
	start := func() (s started) {
		s.p, s.err = os.StartProcess(argv[0], argv, &os.ProcAttr{Sys: attr})
		return s
	}
	var s started
	if confined {
		s = filtered(tb, plan, start)
	} else {
		s = start()
	}
	if s.err != nil {
		return nil, s.err
	}
	return s.p.Wait()
}

func TestGoSpawnsUnderTheFilter(t *testing.T) {
	state, err := spawn(t, true, &syscall.SysProcAttr{Setsid: true}, "/bin/true")
	require.NoError(t, err)
	require.True(t, state.Success())
}

func TestNoNamespaces(t *testing.T) {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	if _, err := spawn(t, false, attr, "/bin/true"); err != nil {
		t.Skipf("the host itself makes no user namespaces for uid %d: %v", os.Getuid(), err)
	}
	_, err := spawn(t, true, attr, "/bin/true")
	require.ErrorIs(t, err, unix.EPERM)
}

// Calls by another convention cannot be made in Go: these are programs of a few
// instructions, in an ELF file with one segment.
func TestForeignCallsEndTheProcess(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the programs are for amd64")
	}
	exit := []byte{0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05} // mov eax, exit; xor edi, edi; syscall
	for name, code := range map[string][]byte{
		"int 0x80": {0xb8, 20, 0, 0, 0, 0xcd, 0x80},            // mov eax, getpid of i386; int 0x80
		"x32":      {0xb8, 39, 0, 0, 0x40, 0x0f, 0x05},         // mov eax, getpid of x32; syscall
		"minus 1":  {0xb8, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x05}, // mov eax, −1; syscall
	} {
		program := filepath.Join(t.TempDir(), "program")
		require.NoError(t, os.WriteFile(program, elf(append(code, exit...)), 0o700))
		state, err := spawn(t, false, nil, program)
		require.NoError(t, err)
		require.True(t, state.Success(), "%s without the filter: %s", name, state)

		state, err = spawn(t, true, nil, program)
		require.NoError(t, err)
		status := state.Sys().(syscall.WaitStatus)
		require.True(t, status.Signaled(), "%s: %s", name, state)
		require.Equal(t, unix.SIGSYS, status.Signal(), name)
	}
}

// elf returns a program of amd64 (elf(5)).
func elf(code []byte) []byte {
	const base, headers = 0x400000, 64 + 56
	var b bytes.Buffer
	write := func(fields ...any) {
		for _, f := range fields {
			_ = binary.Write(&b, binary.LittleEndian, f) // a buffer takes everything
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	write(uint16(2), uint16(62), uint32(1), uint64(base+headers), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0))
	size := uint64(headers + len(code))
	write(uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000))
	b.Write(code)
	return b.Bytes()
}

func TestLoadNeedsNoNewPrivs(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may load a filter without no_new_privs")
	}
	filter, err := For(plan)
	require.NoError(t, err)
	require.ErrorIs(t, testkit.OnThrowawayThread(func() error {
		_, err := filter.Load()
		return err
	}), unix.EACCES)
}

func TestAnEmptyFilterIsRefused(t *testing.T) {
	_, err := (&Filter{}).Load()
	require.Error(t, err)
}

// What a spawn pays for the filter.
func BenchmarkLoad(b *testing.B) {
	filter, err := For(plan)
	require.NoError(b, err)
	for b.Loop() {
		err := testkit.OnThrowawayThread(func() error {
			privs := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
			_, err := filter.Load()
			return errors.Join(privs, err)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
