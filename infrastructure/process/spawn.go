package process

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// markName is the environment variable that marks the processes of one spawn,
// for the tree walk.
const markName = "CAISSON_SPAWN"

// Config configures a Spawner. The zero value has no enforcer and allows no
// native spawn: it can start nothing but explicitly unconfined lines.
type Config struct {
	// Enforcer enforces the plans; nil for none.
	Enforcer ports.SandboxEnforcer
	// AllowNative runs a line with a plan natively when there is no enforcer.
	// The receipt then says unconfined. Without it that is ErrNoEnforcer.
	AllowNative bool
	// KeepInheritedFDs leaves the host's own inheritable descriptors open to
	// confined children. By default every descriptor above 2 is marked
	// close-on-exec before a spawn.
	KeepInheritedFDs bool
}

// Spawner starts children. It is safe for concurrent use.
type Spawner struct {
	cfg      Config
	starting chan struct{} // has an element for every start that is under way
}

// NewSpawner returns a spawner.
func NewSpawner(cfg Config) *Spawner {
	warmUp()
	return &Spawner{cfg: cfg, starting: make(chan struct{}, startsAtOnce())}
}

// startsAtOnce bounds the starts that are under way at the same time; the others
// wait. A start takes a thread and some forty descriptors, so a thousand at once
// exceed what a process may have, and are no faster: they are work for the
// processors, and a little waiting for a shell.
func startsAtOnce() int { return max(16, 4*runtime.GOMAXPROCS(0)) }

// begin waits for a start's turn; end gives it to the next one.
func (s *Spawner) begin(ctx context.Context, line domain.SpawnLine) (end func(), err error) {
	err = context.Cause(ctx)
	if err == nil {
		select {
		case s.starting <- struct{}{}:
			return func() { <-s.starting }, nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return nil, &domain.SpawnError{Step: "not started", Argv0: line.Path, Err: err}
}

// stdio holds the files that become the child's descriptors 0, 1 and 2. They
// are opened before the thread is restricted, and stay the caller's to close.
type stdio [3]*os.File

// child is a started process, with all that ends it.
type child struct {
	proc    *os.Process
	exit    *exitWatch
	keeper  *keeper // nil if there is none
	mark    string
	receipt domain.Receipt
	group   ports.ResourceGroup // of the whole tree; nil if there is none
	// supervision answers system calls of the child and of its tree; nil if none
	// are left to answer.
	supervision *supervision
	// ready is what is done for the next start while the child runs.
	ready sync.WaitGroup
}

// supervisorOf returns what answers the system calls that an applied confinement
// leaves to be answered, nil if it leaves none.
func supervisorOf(conf ports.Confinement) (ports.Supervisor, error) {
	supervised, ok := conf.(ports.Supervised)
	if !ok {
		return nil, nil //nolint:nilnil // as the port says
	}
	return supervised.Supervisor()
}

// supervision is a supervisor at work.
type supervision struct {
	supervisor ports.Supervisor
	ended      chan error
}

// supervise sets a supervisor to work; nil does nothing.
func supervise(s ports.Supervisor) *supervision {
	if s == nil {
		return nil
	}
	v := &supervision{s, make(chan error, 1)}
	go func() {
		// It ends with the tree, or when it is closed. One that fails is closed at
		// once, so that no call waits for an answer.
		err := s.Run(context.Background())
		v.ended <- errors.Join(err, s.Close())
	}()
	return v
}

// refused lists what the tree was refused so far.
func (v *supervision) refused() []domain.Refusal {
	if v == nil {
		return nil
	}
	return v.supervisor.Refused()
}

// end ends the supervision, and returns what went wrong with it.
func (v *supervision) end() error {
	if v == nil {
		return nil
	}
	err := v.supervisor.Close()
	return errors.Join(err, <-v.ended)
}

// startOptions says how a child differs from one without a terminal and without
// a keeper, which the zero value gives.
type startOptions struct {
	// keeper asks for a keeper where the confinement offers a kill group.
	keeper bool
	// terminal makes the file that becomes descriptor 0 the controlling terminal
	// of the child's session.
	terminal bool
	// mark is put into the environment; "" stands for a new one.
	mark string
}

// start starts the line. Confined children are still stopped when it returns:
// resume lets them run.
func (s *Spawner) start(ctx context.Context, line domain.SpawnLine, files stdio, opts startOptions) (*child, error) {
	if err := line.Validate(); err != nil {
		return nil, err
	}
	end, err := s.begin(ctx, line)
	if err != nil {
		return nil, err
	}
	defer end()
	mark := cmp.Or(opts.mark, newMark())
	line.Env = append(append([]string(nil), line.Env...), markName+"="+mark)

	switch {
	case line.Sandbox.IsUnconfined():
		return s.startNative(line, files, mark, opts, line.Sandbox.Why())
	case s.cfg.Enforcer != nil:
		return s.startConfined(ctx, line, files, mark, opts)
	case s.cfg.AllowNative:
		return s.startNative(line, files, mark, opts, "no enforcer is configured, and native turns are allowed")
	}
	return nil, domain.ErrNoEnforcer
}

func (s *Spawner) startNative(line domain.SpawnLine, files stdio, mark string, opts startOptions, why string) (*child, error) {
	proc, err := os.StartProcess(line.Path, line.Argv, &os.ProcAttr{
		Dir: line.Dir, Env: line.Env, Files: files[:], Sys: sessionLeader(opts),
	})
	if err != nil {
		return nil, startError(line, err)
	}
	exit, err := watchExit(proc.Pid)
	if err != nil {
		// It has been running, and may have children.
		_ = (&child{proc: proc, mark: mark}).killTree()
		discard(proc)
		return nil, &domain.SpawnError{Step: "watch", Argv0: line.Path, Err: err}
	}
	return &child{proc: proc, exit: exit, mark: mark, receipt: domain.Receipt{
		Unconfined: true, Why: why, Preset: line.Sandbox.Preset(),
		PlanDigest: line.Sandbox.Digest(), Tree: nativeTree,
	}}, nil
}

// startError explains a start that the system refused.
func startError(line domain.SpawnLine, err error) error {
	e := &domain.SpawnError{Step: "start", Argv0: line.Path, Err: err}
	switch {
	case errors.Is(err, syscall.EPERM) && line.Sandbox.IsConfined():
		e.Remedy = "ptrace, by which a child is born stopped, may be denied: by a container's seccomp filter, or by kernel.yama.ptrace_scope=3"
	case os.IsNotExist(err):
		e.Remedy = "the program, its interpreter or the working directory does not exist: check " + fmt.Sprintf("%q", line.Dir)
	case os.IsPermission(err):
		e.Remedy = "the program is not executable, or the plan does not grant read+exec on it and on what it loads"
	}
	return e
}

// discard ends a child that nobody will get, and reaps it.
func discard(proc *os.Process) {
	// A child that is gone already is as good.
	_ = proc.Kill()
	_, _ = proc.Wait()
}

func newMark() string {
	return rand.Text()
}
