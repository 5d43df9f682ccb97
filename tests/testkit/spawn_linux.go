package testkit

import (
	"context"
	"errors"
	"os"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// SpawnConfined is the simplest spawner there is, for tests of enforcers: it starts
// the confinement's line from a throwaway thread, answers what the confinement
// leaves to be answered, and waits for the child. When ctx ends, the child is
// killed. It is no example: its child runs while the thread still exists.
func SpawnConfined(ctx context.Context, c ports.Confinement) (_ domain.ExitStatus, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return domain.ExitStatus{}, err
	}
	defer null.Close()
	type started struct {
		p   *os.Process
		err error
	}
	line := c.SpawnLine()
	s := OnThrowawayThread(func() (s started) {
		if s.err = c.Apply(); s.err == nil {
			s.p, s.err = os.StartProcess(line.Path, line.Argv, &os.ProcAttr{Dir: line.Dir, Env: line.Env, Files: []*os.File{null, null, null}})
		}
		return s
	})
	// Also after a failure: there may be a listener by then.
	if supervised, ok := c.(ports.Supervised); ok {
		supervisor, fault := supervised.Supervisor()
		s.err = errors.Join(s.err, fault)
		if supervisor != nil {
			ended := make(chan error, 1)
			go func() { ended <- supervisor.Run(context.WithoutCancel(ctx)) }()
			defer func() { err = errors.Join(err, supervisor.Close(), <-ended) }()
		}
	}
	if s.p == nil {
		return domain.ExitStatus{}, s.err
	}
	defer context.AfterFunc(ctx, func() { _ = s.p.Kill() })()
	state, err := s.p.Wait()
	if err := errors.Join(s.err, err); err != nil {
		return domain.ExitStatus{}, err
	}
	return domain.ExitStatus{Known: true, Code: state.ExitCode()}, nil
}
