package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// denials are the answers by which a kernel denies: Landlock's EACCES, a
// filter's EPERM or ENOSYS, and those of an enforcer that takes the files or the
// network away instead of forbidding them. Any other error, such as a limit
// reached, says nothing about the confinement.
var denials = []error{
	unix.EACCES, unix.EPERM, unix.ENOSYS, unix.ENOENT, unix.EROFS,
	unix.ENETUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.ECONNREFUSED,
}

// connectLimit bounds the connect by which the orchestrator sees that it could.
const connectLimit = time.Second

// Probe tries the confinement of a line before anything runs under it: on a
// throwaway thread, after Apply, a write that the plan grants must succeed, and
// a read, a write and a connect that it denies must fail. What is denied would
// succeed without the confinement: the orchestrator has done it before. Nothing
// is started, and nothing is left.
//
// A kind of which the plan denies nothing is not asked, and a confinement that
// wraps the command cannot be tried in this way; the result says so. A
// confinement that does not hold gives a *domain.ProbeError.
//
// A line without a sandbox, or a spawner without an enforcer, gives the zero
// Probe.
func (s *Spawner) Probe(ctx context.Context, spec ProbeSpec) (_ domain.Probe, err error) {
	if !spec.Line.Sandbox.IsConfined() || s.cfg.Enforcer == nil {
		return domain.Probe{}, nil
	}
	end, err := s.begin(ctx, spec.Line)
	if err != nil {
		return domain.Probe{}, err
	}
	defer end()
	conf, err := s.cfg.Enforcer.Prepare(ctx, spec.Line.Sandbox, spec.Line)
	if err != nil {
		return domain.Probe{}, err
	}
	defer func() { err = errors.Join(err, conf.Close()) }()
	if by := wraps(spec.Line, conf.SpawnLine()); by != "" {
		return domain.Probe{Skipped: fmt.Sprintf("the enforcer runs the command through %q, so what it restricts cannot be tried from here", by)}, nil
	}

	receipt := conf.Receipt()
	p := &probe{spec: spec, statuses: s.cfg.Enforcer.Supports(spec.Line.Sandbox), receipt: receipt}
	defer func() { err = errors.Join(err, p.clear()) }()
	if err := p.prepare(); err != nil {
		// Nothing is restricted yet: no sandbox failed, and none is refused.
		return domain.Probe{}, fmt.Errorf("make the files that the sandbox is tried with: %w; "+
			"the session's private directories and TMPDIR must be writable and have space left, and a file descriptor must be free", err)
	}
	var answering *supervision
	err = onThrowawayThread(func(func()) error {
		if err := conf.Apply(); err != nil {
			return err
		}
		supervisor, err := supervisorOf(conf)
		if err != nil {
			return err
		}
		answering = supervise(supervisor) // the thread's own connect asks too
		// One that nobody has taken ends with the confinement, and what asks then
		// fails instead of waiting: an enforcer that wraps another one may hide that
		// it is a ports.Supervised.
		if err := conf.Close(); err != nil {
			return err
		}
		for i := range p.attempts {
			if a := &p.attempts[i]; a.notAsked == "" {
				a.err = a.do()
			}
		}
		return nil
	})
	if err := errors.Join(err, answering.end()); err != nil {
		return domain.Probe{}, err
	}
	return p.result()
}

// attempt is one of a probe's.
type attempt struct {
	name     domain.ProbeAttempt
	target   string
	notAsked string // why it is not made
	do       func() error
	err      error // what do returned
}

// probe holds the objects that are made for the attempts.
type probe struct {
	spec     ProbeSpec
	statuses []domain.PropertyStatus
	receipt  domain.Receipt
	attempts []attempt
	files    []probeFile
	sockets  []int
}

// probeFile is a file of a probe's, by the directory that it was made in: one of
// them is the agent's to write.
type probeFile struct {
	dir  *os.Root
	name string
}

// prepare makes the objects and the attempts on them, and does here, where
// nothing is restricted, what the confinement has to deny.
func (p *probe) prepare() error {
	grants := grantsOf(p.spec.Line.Sandbox)
	granted := attempt{name: domain.ProbeGrantedWrite}
	if filepath.IsAbs(p.spec.Granted) && grants.on(p.spec.Granted).Has(domain.AccessWriteFile) {
		file, err := p.makeFile(p.spec.Granted)
		if err != nil {
			return err
		}
		granted.target, granted.do = file, func() error { return writeTo(file) }
	} else {
		granted.notAsked = fmt.Sprintf("the plan does not let %q be written", p.spec.Granted)
	}

	read := attempt{name: domain.ProbeDeniedRead}
	write := attempt{name: domain.ProbeDeniedWrite}
	files := unenforced(p.statuses, domain.PropertyFilesystem)
	for a, of := range map[*attempt]struct {
		right domain.Access
		do    func(string) error
	}{
		&read: {domain.AccessReadFile, readFrom}, &write: {domain.AccessWriteFile, writeTo},
	} {
		if a.notAsked = files; files != "" {
			continue
		}
		places := []string{p.spec.Denied, os.TempDir()}
		i := slices.IndexFunc(places, func(dir string) bool { return dir != "" && grants.on(dir)&of.right == 0 })
		if i < 0 {
			a.notAsked = "the plan grants it in every place where a file can be made for it"
			continue
		}
		file, err := p.makeFile(places[i])
		if err != nil {
			return err
		}
		if err := of.do(file); err != nil {
			return err
		}
		a.target, a.do = file, func() error { return of.do(file) }
	}

	connect := attempt{name: domain.ProbeDeniedConnect, notAsked: unenforced(p.statuses, domain.PropertyTCP)}
	if connect.notAsked == "" {
		var addr unix.Sockaddr
		if addr, connect.target, connect.notAsked = p.listen(); connect.notAsked == "" {
			connect.do = func() error { return connectTo(addr, 0) }
		}
	}
	p.attempts = []attempt{granted, read, write, connect}
	return nil
}

// probePrefix begins the names of a probe's files; the pid of its process follows.
const probePrefix = ".caisson-probe-"

// makeFile makes a file with a byte in it.
func (p *probe) makeFile(in string) (string, error) {
	dir, err := os.OpenRoot(in)
	if err != nil {
		return "", err
	}
	sweepProbes(dir)
	name := fmt.Sprintf("%s%d-%s", probePrefix, os.Getpid(), rand.Text())
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", errors.Join(err, dir.Close())
	}
	p.files = append(p.files, probeFile{dir, name})
	_, err = f.WriteString("x")
	return f.Name(), errors.Join(err, f.Close())
}

// sweepProbes removes what a probe left that its process did not survive. An agent
// can make files of such names too, and then it is those that go; it can also make
// any number, so not all are looked at. What stays is in nobody's way.
func sweepProbes(dir *os.Root) {
	listing, err := dir.Open(".")
	if err != nil {
		return
	}
	defer listing.Close()
	entries, _ := listing.ReadDir(1000)
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), probePrefix)
		of, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(of)
		if ok && err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			_ = dir.Remove(e.Name())
		}
	}
}

// listen listens on a port of the loopback interface that the plan does not let
// be connected to. notAsked says why there is none.
func (p *probe) listen() (addr unix.Sockaddr, text, notAsked string) {
	granted := p.spec.Line.Sandbox.ConnectTCP()
	for _, d := range p.spec.Line.Sandbox.ReachableDestinations() {
		granted = append(granted, d.Port())
	}
	// The kernel chooses a port. The few that are granted are not likely to be
	// among them, and not every time.
	for range 8 {
		port, err := p.listenAnywhere()
		if err != nil {
			return nil, "", "the orchestrator cannot listen on 127.0.0.1: " + err.Error()
		}
		if slices.Contains(granted, port) {
			continue
		}
		to := &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}
		if err := connectTo(to, connectLimit); err != nil {
			return nil, "", fmt.Sprintf("the orchestrator cannot connect to 127.0.0.1:%d either: %s", port, err)
		}
		return to, fmt.Sprintf("127.0.0.1:%d", port), ""
	}
	return nil, "", "the plan grants every port that the kernel chose"
}

func (p *probe) listenAnywhere() (uint16, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	p.sockets = append(p.sockets, fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 4); err != nil {
		return 0, os.NewSyscallError("listen", err)
	}
	addr, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	return uint16(addr.(*unix.SockaddrInet4).Port), nil
}

// clear takes away what prepare made.
func (p *probe) clear() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.dir.Remove(f.name), f.dir.Close())
	}
	for _, fd := range p.sockets {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// result holds what the attempts returned against what they had to.
func (p *probe) result() (domain.Probe, error) {
	var probed domain.Probe
	for _, a := range p.attempts {
		check := domain.ProbeCheck{Attempt: a.name, Target: a.target, Result: domain.ProbeHeld}
		failed := &domain.ProbeError{
			Attempt: a.name, Target: a.target, Enforcer: p.receipt.Enforcer, ABI: p.receipt.ABI, Err: a.err,
		}
		switch {
		case a.notAsked != "":
			check.Result, check.Detail = domain.ProbeNotAsked, a.notAsked
		case a.name == domain.ProbeGrantedWrite:
			if failed.Err != nil {
				failed.Remedy = "something else than the plan denies it: look at the mode of the directory, its file system, and other security modules"
				return domain.Probe{}, failed
			}
		case a.err == nil:
			failed.Remedy = "this enforcer does not do here what it says: use another one, and report it with the output of caisson doctor --json"
			return domain.Probe{}, failed
		case !slices.ContainsFunc(denials, func(d error) bool { return errors.Is(a.err, d) }):
			failed.Remedy = "mend that and open the session again"
			return domain.Probe{}, failed
		default:
			check.Detail = a.err.Error()
		}
		probed.Checks = append(probed.Checks, check)
	}
	return probed, nil
}

// grants are the path rules of a plan, by what they lead to.
type grants []grantedInode

type grantedInode struct {
	info   os.FileInfo
	access domain.Access
}

func grantsOf(plan domain.SandboxPlan) grants {
	var g grants
	for _, r := range plan.Rules() {
		// What is not there, or cannot be reached, grants nothing.
		if info, err := os.Stat(r.Path); err == nil {
			g = append(g, grantedInode{info, r.Access})
		}
	}
	return g
}

// on returns the rights that the rules give on a directory, or on a file in it.
// It looks as the kernel does, at the inode of every directory above: a rule may
// lead to the same place by another path, through a bind mount.
func (g grants) on(dir string) domain.Access {
	if canonical, err := filepath.EvalSymlinks(dir); err == nil {
		dir = canonical // otherwise no file can be made there
	}
	var access domain.Access
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil {
			for _, rule := range g {
				if os.SameFile(rule.info, info) {
					access |= rule.access
				}
			}
		}
		if dir == filepath.Dir(dir) {
			return access
		}
	}
}

// The attempts: system calls on prepared objects, which the thread may make that
// is under the confinement.

func readFrom(file string) error {
	return onFile(file, unix.O_RDONLY, func(fd int) error {
		_, err := unix.Read(fd, make([]byte, 1))
		return os.NewSyscallError("read", err)
	})
}

func writeTo(file string) error {
	return onFile(file, unix.O_WRONLY, func(fd int) error {
		_, err := unix.Write(fd, []byte("x"))
		return os.NewSyscallError("write", err)
	})
}

func onFile(file string, flags int, do func(fd int) error) error {
	fd, err := unix.Open(file, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(file, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	return errors.Join(do(fd), unix.Close(fd))
}

// connectTo connects to an address and lets go of the connection. It waits for
// it no longer than the limit; without one, a connection that is under way counts
// as made, since nothing denied it.
func connectTo(addr unix.Sockaddr, limit time.Duration) (err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	err = unix.Connect(fd, addr)
	switch {
	case err != nil && !errors.Is(err, unix.EINPROGRESS):
		return os.NewSyscallError("connect", err)
	case err == nil || limit == 0:
		return nil
	}
	deadline := time.Now().Add(limit)
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(poll, int(max(time.Until(deadline), 0).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n == 0:
			return fmt.Errorf("no answer within %s", limit)
		default:
			code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && code != 0 {
				err = unix.Errno(code)
			}
			return os.NewSyscallError("connect", err)
		}
	}
}
