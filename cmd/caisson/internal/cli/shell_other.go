//go:build !unix

package cli

import (
	"context"
	"errors"
	"os"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/ports"
)

// terminalSize is not known: no session on a terminal gets as far as its size.
func terminalSize(*os.File) ports.TerminalSize { return ports.TerminalSize{} }

// connect is for a system without terminal sessions, where none was opened.
func (a *app) connect(context.Context, *application.Terminal, *os.File, *os.File) (ports.TerminalResult, error) {
	return ports.TerminalResult{}, errors.ErrUnsupported
}
