package process

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

const nativeTree = domain.TreeWalk

// warmUp makes package os find out now whether pidfds work: it starts a probe
// process for it once, which must not happen on a restricted thread.
func warmUp() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Release()
	}
}

// sessionLeader makes the child the leader of a session of its own: without a
// terminal, or with the one that its descriptor 0 is.
func sessionLeader(opts startOptions) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: opts.terminal}
}

// startConfined starts the line on a throwaway thread, under its plan. The
// child has not executed one instruction when it returns.
func (s *Spawner) startConfined(ctx context.Context, line domain.SpawnLine, files stdio, mark string, opts startOptions) (_ *child, err error) {
	conf, err := s.cfg.Enforcer.Prepare(ctx, line.Sandbox, line)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conf.Close()) }() // the second close of a started child's
	line = conf.SpawnLine()
	if err := line.Validate(); err != nil {
		return nil, err
	}

	var keep *keeper
	group, canGroup := conf.(ports.KillGroup)
	if opts.keeper && canGroup {
		ok, err := group.PrepareKillGroup()
		if err != nil {
			return nil, err
		}
		if ok {
			if keep, err = prepareKeeper(); err != nil {
				return nil, noKeeper(err)
			}
		}
	}
	var cgroup ports.ResourceGroup
	if grouped, ok := conf.(ports.ResourceGrouped); ok {
		if cgroup, err = grouped.ResourceGroup(opts.keeper && keep == nil); err != nil {
			if keep != nil {
				err = errors.Join(err, keep.abandon())
			}
			return nil, err
		}
	}
	var (
		proc *os.Process
		exit *exitWatch
		errC error

		supervisor ports.Supervisor
		receipt    domain.Receipt
	)
	err = onThrowawayThread(func(next func()) error {
		if keep != nil {
			if err := group.EnterKillGroup(); err != nil {
				return err
			}
			if err := keep.start(); err != nil {
				return noKeeper(err)
			}
			// Armed before there is a child: if the orchestrator dies from here
			// on, even in the middle of the spawn, the keeper ends what there is.
			if err := keep.arm(); err != nil {
				return noKeeper(err)
			}
		}
		if err := conf.Apply(); err != nil {
			return err
		}
		next()
		if !s.cfg.KeepInheritedFDs {
			if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
				return &domain.SpawnError{Step: "close_range", Argv0: line.Path, Err: err}
			}
		}
		attr := sessionLeader(opts)
		attr.Ptrace = true
		var earlier []*os.Process
		if keep != nil {
			earlier = append(earlier, keep.proc)
		}
		proc, err = starts.start(line.Path, line.Argv, &os.ProcAttr{
			Dir: line.Dir, Env: line.Env, Files: files[:], Sys: attr,
		}, earlier...)
		if err != nil {
			return startError(line, err)
		}
		if err := leaveStopped(proc.Pid, func() (err error) {
			exit, err = watchExit(proc.Pid)
			return err
		}); err != nil {
			// It would run once this thread, its tracer, is gone.
			_ = proc.Kill() // if that fails too, discard tries again
			return &domain.SpawnError{Step: "stop at birth", Argv0: line.Path, Err: err}
		}
		return nil
	}, func() {
		receipt = conf.Receipt()
		supervisor, errC = supervisorOf(conf)
		errC = errors.Join(errC, conf.Close())
	})
	// The child has not run one instruction, so what it starts is born in the
	// group.
	if err == nil && cgroup != nil {
		err = cgroup.Add(proc.Pid)
	}
	// From here on the thread is gone, or err says that it is not.
	fail := func(err error) (*child, error) {
		if supervisor != nil {
			err = errors.Join(err, supervisor.Close())
		}
		if exit != nil {
			err = errors.Join(err, exit.close())
		}
		if proc != nil {
			discard(proc)
		}
		if keep != nil {
			err = errors.Join(err, keep.abandon())
		}
		if cgroup != nil {
			err = errors.Join(err, cgroup.Close())
		}
		return nil, err
	}
	if err != nil {
		return fail(err)
	}
	if errC != nil {
		return fail(&domain.SpawnError{Step: "supervise", Argv0: line.Path, Err: errC})
	}
	receipt.InheritedFDs = s.cfg.KeepInheritedFDs
	receipt.Tree = domain.TreeWalk
	switch {
	case keep != nil:
		receipt.Tree = domain.TreeKeeper
	case cgroup != nil:
		receipt.Tree = domain.TreeCgroup
	}
	return &child{proc: proc, exit: exit, keeper: keep, group: cgroup, supervision: supervise(supervisor), mark: mark, receipt: receipt}, nil
}

// noKeeper is the error of a start that could not have its keeper.
func noKeeper(err error) error {
	e := &domain.EnforcementError{Step: "kill group", Err: err}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		e.Remedy = "raise the limit on open files (ulimit -n)"
	}
	return e
}

// leaveStopped awaits that a child, under trace by the calling thread, stopped at
// its exec, and sees to it that it stays stopped when that thread has ended. It has
// not executed one instruction of its program, and will not before a SIGCONT. What
// is done meanwhile costs no time.
func leaveStopped(pid int, meanwhile func() error) error {
	// The end of the tracer restarts its tracee (ptrace(2)), which then finds this
	// signal before it gets back to user mode. If the SIGCONT was faster, it has
	// taken the SIGSTOP away, and the child goes on without another stop.
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return os.NewSyscallError("kill(SIGSTOP)", err)
	}
	if err := meanwhile(); err != nil {
		return err
	}
	var status unix.WaitStatus
	for {
		// Having told of it, the kernel drops the SIGTRAP that the child stopped for:
		// it is taken first, being the thread's own. A child whose tracer dies before
		// that dies of it.
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("wait4", err)
		}
		break
	}
	if !status.Stopped() || status.StopSignal() != unix.SIGTRAP {
		return fmt.Errorf("the child ended or stopped before its first instruction (wait status %#x)", uint32(status))
	}
	return nil
}

// resume lets a child run that was born stopped.
func (c *child) resume() error {
	if c.receipt.Unconfined {
		return nil
	}
	if err := c.proc.Signal(unix.SIGCONT); err != nil {
		return &domain.SpawnError{Step: "resume", Argv0: c.receipt.Enforcer, Err: err}
	}
	c.ready.Go(haveThreadReady)
	return nil
}

// signalGroup signals the child's process group: it is a session leader, so
// the group has its pid.
func (c *child) signalGroup(sig ports.Signal) {
	// A group that is gone is the aim.
	_ = unix.Kill(-c.proc.Pid, unix.Signal(sig))
}

// continueGroup lets the child's process group go on, if something stopped it.
func (c *child) continueGroup() {
	// A group that is gone is the aim.
	_ = unix.Kill(-c.proc.Pid, unix.SIGCONT)
}

// signalMain signals the child alone, through its pidfd.
func (c *child) signalMain(sig ports.Signal) {
	// A child that is gone is the aim.
	_ = c.proc.Signal(unix.Signal(sig))
}

// exitWatch waits for the end of a process without keeping a thread: a pidfd
// becomes readable then (pidfd_open(2)).
type exitWatch struct {
	pidfd *os.File
}

func watchExit(pid int) (*exitWatch, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	w := &exitWatch{pidfd: os.NewFile(uintptr(fd), "pidfd")}
	// Otherwise nothing would tell of the end.
	if err := w.pidfd.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("the poller has not taken a pidfd: %w", err), w.close())
	}
	return w, nil
}

// awaitExit returns when the child has ended; it is not reaped yet.
func (c *child) awaitExit() error {
	conn, err := c.exit.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		// The poller tells of edges only, and one from before this call is
		// lost: ask for the level first.
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 && err == nil
	})
}

func (w *exitWatch) close() error { return w.pidfd.Close() }

// reapLimit is how long an ended child may take to become reapable.
const reapLimit = 100 * time.Millisecond

// reapable waits, but not longer than d, until the child can be reaped without
// waiting.
func (w *exitWatch) reapable(d time.Duration) bool {
	conn, err := w.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	for deadline := time.Now().Add(d); ; time.Sleep(treePause) { //nolint:forbidigo // the pidfd is readable already, nothing tells of the tracer's end
		ready := false
		err := conn.Control(func(fd uintptr) {
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PIDFD, int(fd), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
			ready = err != nil || info.Signo != 0 // an error is the reaper's to find
		})
		if err != nil || ready {
			return err == nil
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// reapThreads reaps dead threads of the child that the orchestrator traces
// without having asked for it: a thread makes its process's parent its tracer
// with PTRACE_TRACEME, and when it ends, the whole process cannot be waited for
// until the tracer has reaped it. It looks only at a child that has ended, or
// seems to have.
func (c *child) reapThreads() {
	st, ok := readStat(c.proc.Pid)
	if !ok || st.state != 'Z' {
		return
	}
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(c.proc.Pid) + "/task")
	if err != nil {
		return
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil && tid != c.proc.Pid {
			// Whatever it says: a thread that is no tracee is not ours to wait for.
			_, _ = unix.Wait4(tid, nil, unix.WALL|unix.WNOHANG, nil)
		}
	}
}

// status reaps a child that has ended. A process of its tree that traces it may
// keep it from being reaped: that tree is killed then.
func (c *child) status() (domain.ExitStatus, error) {
	if !c.exit.reapable(reapLimit) {
		_ = c.killTree()
		if !c.exit.reapable(treeGoneLimit) {
			return domain.ExitStatus{}, fmt.Errorf("process %d is dead but cannot be reaped: a process outside of its tree traces it", c.proc.Pid)
		}
	}
	state, err := c.proc.Wait()
	if err != nil {
		return domain.ExitStatus{}, fmt.Errorf("somebody else reaped process %d: %w", c.proc.Pid, err)
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return domain.ExitStatus{Known: true, Code: -1, Signal: unix.SignalName(ws.Signal()), SignalNumber: int(ws.Signal())}, nil
	}
	return domain.ExitStatus{Known: true, Code: state.ExitCode()}, nil
}
