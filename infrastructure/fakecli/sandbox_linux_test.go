package fakecli_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// confineWord makes this test binary restrict itself and become the fake.
const confineWord = "__confine"

// hostConfined restricts the process as a plan would: the system's directories,
// the agent's own ones, its binary, one TCP port. The restriction is on the
// whole process, which is fine in one that execs right afterwards.
func hostConfined() {
	if len(os.Args) < 5 || os.Args[1] != confineWord {
		return
	}
	port, root, args := os.Args[2], os.Args[3], os.Args[4:]
	self, err := os.Executable()
	var n int
	if err == nil {
		n, err = strconv.Atoi(port)
	}
	if err == nil {
		err = landlock.V4.Restrict(
			landlock.RODirs("/usr", "/etc"), landlock.RODirs("/bin", "/lib", "/lib64").IgnoreIfMissing(),
			landlock.RWFiles("/dev/null"), landlock.ROFiles(self),
			landlock.RWDirs(filepath.Join(root, "work"), filepath.Join(root, "state"), filepath.Join(root, "temp")).WithRefer(),
			landlock.ConnectTCP(uint16(n)),
		)
	}
	if err == nil {
		err = syscall.Exec(self, append([]string{self, fakecli.Subcommand}, args...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "confine:", err)
	os.Exit(1)
}

func TestWorksInASandboxAndIsDenied(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)

	for _, args := range [][]string{claudeArgs("--session-id", someID), codexArgs()} {
		p := newPlace(t)
		outside := filepath.Join(filepath.Dir(p.work), "outside")
		pidfile := filepath.Join(p.work, "daemon.pid")
		pr := startCommand(t, p, self, append([]string{confineWord, port, filepath.Dir(p.work)}, args...)...)
		script := fakecli.Script(
			"sh echo shell works; touch made && mkdir d && mv made d/made", "write file inside", "read file",
			"write "+outside+" x", "read /proc/1/environ", "sh echo x > "+outside,
			"connect "+l.Addr().String(), "connect "+other.Addr().String(),
			"fork 1", "daemon "+pidfile, "printfd", "recall",
		)
		if args[0] == "claude" {
			pr.prompt(script).eof()
		} else {
			pr.write(script).eof()
		}
		events := pr.rest()
		defer killForked(t, events)
		require.Zero(t, pr.wait(), pr.stderr.String())
		require.FileExists(t, filepath.Join(p.work, "d", "made"))
		require.FileExists(t, filepath.Join(p.work, "file"))
		require.NoFileExists(t, outside)
		r := fmt.Sprint(results(events), pr.stderr.String())
		require.Contains(t, r, "shell works")
		require.Contains(t, r, "EACCES: permission denied, open '"+outside+"'")
		require.Contains(t, r, "EACCES: permission denied, open '/proc/1/environ'")
		require.Contains(t, r, "connected to "+l.Addr().String())
		require.Contains(t, r, "EACCES: permission denied, connect "+other.Addr().String())
		require.Equal(t, "sleep", testkit.Comm(pidOf(pidfile)))
		require.Equal(t, "fds 0 1 2", said(events)[0])
		require.Equal(t, "0 turns before", said(events)[1])
	}
}
