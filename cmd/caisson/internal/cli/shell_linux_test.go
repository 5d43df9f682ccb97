package cli

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// faulty is a session with a fault in the middle of its connection.
type faulty struct {
	ports.TerminalSession
	resize func()
	wait   error
}

func (faulty) Receipt() domain.Receipt           { return domain.Receipt{} }
func (faulty) Read([]byte) (int, error)          { return 0, io.EOF }
func (faulty) Write(p []byte) (int, error)       { return len(p), nil }
func (faulty) Cancel(error)                      {}
func (f faulty) Resize(ports.TerminalSize) error { f.resize(); return nil }

func (f faulty) Wait(context.Context) (ports.TerminalResult, error) {
	return ports.TerminalResult{}, f.wait
}

// The person's terminal gets its mode back also after a panic and after an
// error of ours.
func TestTheTerminalsModeIsPutBack(t *testing.T) {
	testkit.NoLeaks(t)
	ours, tty, err := pty.Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(tty.Close(), ours.Close())) }()
	mode := func() unix.Termios {
		m, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		require.NoError(t, err)
		return *m
	}
	before := mode()
	raw := func() { require.NotEqual(t, before, mode(), "it is raw meanwhile") }
	fault := errors.New("broken on purpose")
	connect := func(f faulty) error {
		_, err := (&app{}).connect(t.Context(), &application.Terminal{TerminalSession: f}, tty, tty)
		return err
	}
	require.ErrorIs(t, connect(faulty{resize: raw, wait: fault}), fault)
	require.Equal(t, before, mode())
	require.PanicsWithValue(t, "broken", func() { _ = connect(faulty{resize: func() { raw(); panic("broken") }}) })
	require.Equal(t, before, mode())
}
