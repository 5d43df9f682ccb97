package cli_test

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// terminal opens a pseudoterminal of that width, and returns its terminal and
// a function that closes it and returns what was printed (pty(7)).
func terminal(t *testing.T, width uint16) (*os.File, func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}))
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	printed := make(chan string)
	go func() {
		// The read ends with EIO when the terminal is closed.
		data, _ := io.ReadAll(master)
		printed <- string(data)
	}()
	return tty, func() string {
		require.NoError(t, tty.Close())
		out := <-printed
		require.NoError(t, master.Close())
		return strings.ReplaceAll(out, "\r\n", "\n")
	}
}

func TestATerminalGetsColoursAndBrokenLines(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	trick := strings.Repeat("x", 40) + "caisson: confined by nothing"
	for name, c := range map[string]struct {
		env    string
		colour bool
	}{
		"terminal": {colour: true}, "NO_COLOR": {env: "NO_COLOR"},
	} {
		tty, printed := terminal(t, 40)
		b := newBench(t)
		b.tty, b.env = tty, c.env
		got := b.run("run", "--agent", "claude", fakecli.Script("say "+trick))
		out := printed()
		require.Equal(t, 0, got.code, got.stderr)
		require.Equal(t, c.colour, strings.Contains(out, "\x1b["), "%s: %q", name, out)
		require.Contains(t, out, "\n  "+trick[:38]+"\n  "+trick[38:], "%s: the terminal does not break lines", name)
		require.NotContains(t, out, "\ncaisson: confined by nothing")
	}
}
