//go:build !linux

package process

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

const nativeTree = domain.TreeNone

func warmUp() {}

func sessionLeader(startOptions) *syscall.SysProcAttr { return nil }

// startConfined refuses: there is no Landlock on this system. An enforcer that
// can do without would still be refused here, which is the safe side.
func (s *Spawner) startConfined(_ context.Context, line domain.SpawnLine, _ stdio, _ string, _ startOptions) (*child, error) {
	return nil, notConfined(line)
}

func notConfined(line domain.SpawnLine) error {
	return &domain.SpawnError{
		Step: "confine", Argv0: line.Path, Err: syscall.ENOSYS,
		Remedy: "sandboxed turns need Linux, this is " + runtime.GOOS,
	}
}

// Probe tries nothing: no confined child starts on this system.
func (s *Spawner) Probe(_ context.Context, spec ProbeSpec) (domain.Probe, error) {
	if !spec.Line.Sandbox.IsConfined() || s.cfg.Enforcer == nil {
		return domain.Probe{}, nil
	}
	return domain.Probe{}, notConfined(spec.Line)
}

// exitWatch holds what the wait for the end of a process found.
type exitWatch struct {
	state *os.ProcessState
}

func watchExit(int) (*exitWatch, error) { return &exitWatch{}, nil }

func (w *exitWatch) close() error { return nil }

// awaitExit returns when the child has ended.
func (c *child) awaitExit() (err error) {
	c.exit.state, err = c.proc.Wait()
	return err
}

// status returns how the child ended; after awaitExit.
func (c *child) status() (domain.ExitStatus, error) {
	if c.exit.state == nil {
		return domain.ExitStatus{}, fmt.Errorf("the end of process %d is not known", c.proc.Pid)
	}
	return domain.ExitStatus{Known: true, Code: c.exit.state.ExitCode()}, nil
}

func (c *child) resume() error { return nil }

func (c *child) reapThreads() {}

// signalMain signals the child. What the system does not know of fails, and the
// kill at the end of the ladder is left.
func (c *child) signalMain(sig ports.Signal) { _ = c.proc.Signal(syscall.Signal(sig)) }

func (c *child) signalGroup(sig ports.Signal) { c.signalMain(sig) }

func (c *child) continueGroup() {}

// killTree ends nothing but what kill ends: the child.
func (c *child) killTree() error { return nil }

// identity knows the pid alone, which is not enough to find the child again.
func (c *child) identity() domain.ProcessIdentity {
	return domain.ProcessIdentity{Pid: c.proc.Pid, Mark: c.mark}
}

// EndLeftover ends nothing: what is left of a turn cannot be told from others.
func (s *Spawner) EndLeftover(context.Context, domain.ProcessIdentity) error { return nil }

// killWithoutKeeper is for a group, which exists on Linux only.
func (c *child) killWithoutKeeper() error { return nil }

// keeper exists on Linux only.
type keeper struct{}

func (k *keeper) dismiss() error { return nil }
