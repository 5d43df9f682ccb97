package privileges

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tests/testkit"
)

// dropped runs f on a thread without privileges.
func dropped(tb testing.TB, f func() error) error {
	tb.Helper()
	type outcome struct{ drop, err error }
	o := testkit.OnThrowawayThread(func() outcome {
		if err := Drop(); err != nil {
			return outcome{drop: err}
		}
		return outcome{err: f()}
	})
	require.NoError(tb, o.drop)
	return o.err
}

// field returns a line of a status file of proc.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

const noCaps = "0000000000000000"

func TestDropEmptiesTheThreadAndNoOther(t *testing.T) {
	testkit.NoLeaks(t)
	before, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	var status []byte
	require.NoError(t, dropped(t, func() (err error) {
		status, err = os.ReadFile("/proc/thread-self/status")
		return err
	}))
	require.Equal(t, "1", field(string(status), "NoNewPrivs"))
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		require.Equal(t, noCaps, field(string(status), set), set)
	}
	after, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for _, set := range []string{"NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapAmb"} {
		require.Equal(t, field(string(before), set), field(string(after), set), set)
	}
}

// A thread that has dropped may drop again: it is then one without CAP_SETPCAP.
func TestDropTwice(t *testing.T) {
	require.NoError(t, dropped(t, Drop))
}

// What execve gives to root, and to everybody who runs a file with capabilities,
// is what the sets would be refilled by.
func TestAProgramGainsNothing(t *testing.T) {
	testkit.NoLeaks(t)
	out := childStatus(t, func() error { return nil })
	if os.Geteuid() == 0 {
		require.NotEqual(t, noCaps, field(out, "CapEff"), "the companion: root's child has capabilities")
	}
	out = childStatus(t, Drop)
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		require.Equal(t, noCaps, field(out, set), set)
	}
	require.Equal(t, "1", field(out, "NoNewPrivs"))
}

// childStatus starts a child after f and returns its status file.
func childStatus(tb testing.TB, f func() error) string {
	tb.Helper()
	in, out, err := os.Pipe()
	require.NoError(tb, err)
	defer in.Close()
	type started struct {
		p   *os.Process
		err error
	}
	s := testkit.OnThrowawayThread(func() (s started) {
		if s.err = f(); s.err == nil {
			s.p, s.err = os.StartProcess("/bin/cat", []string{"cat", "/proc/self/status"}, &os.ProcAttr{Files: []*os.File{nil, out, nil}})
		}
		return s
	})
	require.NoError(tb, out.Close())
	require.NoError(tb, s.err)
	data := make([]byte, 1<<16)
	n := 0
	for {
		m, err := in.Read(data[n:])
		n += m
		if err != nil {
			break
		}
	}
	state, err := s.p.Wait()
	require.NoError(tb, err)
	require.True(tb, state.Success())
	return string(data[:n])
}

// What root may do by capabilities alone, each with its companion that shows
// that it works with them.
func TestRootCannotWithoutCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has capabilities to lose")
	}
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign")
	require.NoError(t, os.WriteFile(foreign, []byte("text"), 0o600))
	require.NoError(t, os.Chown(foreign, 65534, 65534))
	other := exec.Command("/bin/sleep", "60")
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	require.NoError(t, other.Start())
	defer func() { _, _ = other.Process.Kill(), other.Wait() }()
	open := func(flags int) error {
		fd, err := unix.Open(foreign, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
	for _, a := range []struct {
		name string
		run  func() error
		want error
	}{
		{"read another user's file", func() error { return open(unix.O_RDONLY) }, unix.EACCES},
		{"write another user's file", func() error { return open(unix.O_WRONLY) }, unix.EACCES},
		{"change its mode", func() error { return unix.Chmod(foreign, 0o640) }, unix.EPERM},
		{"change its owner", func() error { return unix.Chown(foreign, 65534, 65534) }, unix.EPERM},
		{"open a raw socket", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}, unix.EPERM},
		{"set the hostname", func() error {
			name := make([]byte, 64)
			var u unix.Utsname
			if err := unix.Uname(&u); err != nil {
				return err
			}
			return unix.Sethostname(append(name[:0], unix.ByteSliceToString(u.Nodename[:])...))
		}, unix.EPERM},
		{"read another user's environment", func() error { // CAP_SYS_PTRACE
			fd, err := unix.Open("/proc/"+strconv.Itoa(other.Process.Pid)+"/environ", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		}, unix.EACCES},
	} {
		t.Run(a.name, func(t *testing.T) {
			require.NoError(t, a.run(), "the companion, with capabilities")
			require.Equal(t, a.want, dropped(t, a.run))
		})
	}
}
