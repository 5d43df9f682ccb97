//go:build amd64 || arm64

package escape

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// Stage is the host's side of a suite: a workspace that the plan grants, places
// that it does not, sockets that listen on loopback, and processes to attack.
// Make one with [NewStage]. It serves one suite at a time.
type Stage struct {
	dir      string
	work     string // granted
	readonly string // granted for reading
	outside  string // not granted
	run      string // not granted; has the unix sockets
	secret   string
	abstract string // prefix of the names of the abstract sockets
	leaked   int    // a descriptor of the secret that children inherit, -1 if there is none

	values  map[string]string // for the children
	closers []func() error
	serving sync.WaitGroup

	mu      sync.Mutex
	arrived map[string]bool // tokens
	serial  int

	victims map[string]*victim
}

// NewStage makes the stage below dir, an absolute path without symbolic links,
// which exists and which no plan grants. The caller closes it.
func NewStage(dir string) (_ *Stage, err error) {
	s := &Stage{
		dir: dir, work: filepath.Join(dir, "work"), readonly: filepath.Join(dir, "readonly"),
		outside: filepath.Join(dir, "outside"), run: filepath.Join(dir, "run"),
		secret: rand.Text(), abstract: "caisson-" + rand.Text(), leaked: -1,
		arrived: map[string]bool{}, victims: map[string]*victim{},
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("the stage of the escape suite: %w", errors.Join(err, s.Close()))
		}
	}()
	for _, d := range []string{s.work, s.readonly, s.outside, s.run} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	s.values = map[string]string{
		"work": s.work, "outside": s.outside, "readonly": s.readonly, "run": s.run,
		"abstract": s.abstract, "orchestrator": strconv.Itoa(os.Getpid()),
	}
	if err := s.reset(); err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		return nil, err
	}
	return s, nil
}

// secretSize is the length of a secret, as [rand.Text] makes it.
const secretSize = 26

// Workspace is the directory that children start in.
func (s *Stage) Workspace() string { return s.work }

// Rules are what the plan must grant beside the program and the system.
func (s *Stage) Rules() []domain.PathRule {
	const why = "escape suite"
	return []domain.PathRule{
		{Path: s.work, Access: domain.AccessReadWriteExec, Why: why},
		{Path: s.readonly, Access: domain.AccessRead, Why: why},
	}
}

// ConnectTCP is the port that the plan must grant, on which the stage listens.
func (s *Stage) ConnectTCP() []uint16 { return []uint16{uint16(s.port("granted"))} }

// Destinations is the destination that the plan must grant, at which the stage
// listens.
func (s *Stage) Destinations() []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.port("destination")))}
}

// UnixDestination is the path of a unix socket on which the stage listens, for a plan
// that grants one; see [UnixDestinationAttempts].
func (s *Stage) UnixDestination() string { return filepath.Join(s.run, unixDestination) }

// As long as the name of another one, for which it is exchanged.
const unixDestination = "wanted"

// Widen returns the plan with all that the suite needs of one: [Stage.Rules],
// [Stage.ConnectTCP] and [Stage.Destinations].
func (s *Stage) Widen(plan domain.SandboxPlan) domain.SandboxPlan {
	return plan.WithRules(append(plan.Rules(), s.Rules()...)...).
		WithConnectTCP(append(plan.ConnectTCP(), s.ConnectTCP()...)...).
		WithDestinations(s.Destinations()...)
}

// Plan returns a plan for the suite's children that grants no more than they
// need: the program, the system's programs and libraries, /proc, a few devices,
// and what [Stage.Widen] adds.
func (s *Stage) Plan(program string) domain.SandboxPlan {
	var rules []domain.PathRule
	add := func(access domain.Access, paths ...string) {
		for _, path := range paths {
			rules = append(rules, domain.PathRule{Path: path, Access: access, Presence: domain.Optional, Why: "escape suite"})
		}
	}
	add(domain.AccessReadExec, program, "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
	add(domain.AccessRead, "/etc/ld.so.cache", "/proc", "/dev/urandom")
	add(domain.AccessReadWrite, "/dev/null", "/dev/zero")
	return s.Widen(domain.NewSandboxPlan("escape suite").WithRules(rules...))
}

func (s *Stage) port(key string) int {
	n, err := strconv.Atoi(s.values[key])
	if err != nil {
		return 0
	}
	return n
}

// Close ends what the stage started and closes what it opened. The directory is
// the caller's.
func (s *Stage) Close() error {
	var errs []error
	for _, v := range s.victims {
		errs = append(errs, v.end())
	}
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c())
	}
	s.serving.Wait()
	if s.leaked >= 0 {
		errs = append(errs, unix.Close(s.leaked))
		s.leaked = -1
	}
	s.victims, s.closers = nil, nil
	return errors.Join(errs...)
}

// reset makes the files that every attempt finds.
func (s *Stage) reset() error {
	for _, dir := range []string{s.work, s.readonly, s.outside} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, f := range []struct{ dir, name, text string }{
		{s.work, "file", "original"}, {s.work, "other", "other"}, {s.readonly, "file", "original"},
		{s.outside, "file", "original"}, {s.outside, "secret", s.secret}, {s.outside, "removable", "original"},
	} {
		if err := os.WriteFile(filepath.Join(f.dir, f.name), []byte(f.text), 0o600); err != nil {
			return err
		}
	}
	for _, d := range []string{filepath.Join(s.outside, "empty"), filepath.Join(s.work, "a"), filepath.Join(s.work, "b")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(s.outside, "file"), filepath.Join(s.work, "way")); err != nil {
		return err
	}
	return os.Symlink(filepath.Join(s.outside, "planted"), filepath.Join(s.work, "nowhere"))
}

// arrive notes what a socket of the stage got. Several tokens may have run
// together.
func (s *Stage) arrive(data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, token := range strings.Fields(string(data)) {
		s.arrived[token] = true
	}
}

// got reports whether a token has arrived, or does within the time.
func (s *Stage) got(token string, patience time.Duration) bool {
	return within(patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.arrived[token]
	})
}

// How long an effect is waited for.
const (
	patient = 2 * time.Second        // when the child says that there is one
	silence = 200 * time.Millisecond // when the child cannot tell
	brief   = 5 * time.Millisecond   // when the child says that there is none
)

// within reports whether something holds, or does within the time.
func within(patience time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// listen makes the sockets. What a host cannot have, such as IPv6, is left out,
// and the attempts that want it are not provable.
func (s *Stage) listen() error {
	tcp, err := s.stream("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	granted, err := s.stream("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	destination, err := s.stream("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.values["tcp"], s.values["granted"], s.values["destination"] = portOf(tcp), portOf(granted), portOf(destination)
	// The granted ports on another address of this host.
	for key, of := range map[string]net.Addr{"other-address": granted, "other-destination": destination} {
		if _, err := s.stream("tcp4", "127.0.0.2:"+portOf(of)); err == nil {
			s.values[key] = portOf(of)
		}
	}
	if l, err := s.stream("tcp6", "[::1]:0"); err == nil {
		s.values["tcp6"] = portOf(l)
	}
	for key, address := range map[string][2]string{"udp": {"udp4", "127.0.0.1:0"}, "udp6": {"udp6", "[::1]:0"}} {
		if c, err := s.packet(address[0], address[1]); err == nil {
			s.values[key] = portOf(c)
		} else if key == "udp" {
			return err
		}
	}
	// A port that is free, and most likely stays so.
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.values["free"] = portOf(free.Addr())
	if err := free.Close(); err != nil {
		return err
	}
	// The path of a unix socket is short, that of the stage may not be.
	run, err := unix.Open(s.run, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, func() error { return unix.Close(run) })
	inRun := func(name string) string { return "/proc/self/fd/" + strconv.Itoa(run) + "/" + name }
	for _, name := range []string{"stream", "docker.sock", "bus", unixDestination} {
		if _, err := s.stream("unix", inRun(name)); err != nil {
			return err
		}
	}
	if _, err := s.stream("unix", "@"+s.abstract+"-stream"); err != nil {
		return err
	}
	for _, name := range []string{inRun("seqpacket"), "@" + s.abstract + "-seqpacket"} {
		if _, err := s.stream("unixpacket", name); err != nil {
			return err
		}
	}
	for _, name := range []string{inRun("dgram"), "@" + s.abstract + "-dgram"} {
		if _, err := s.packet("unixgram", name); err != nil {
			return err
		}
	}
	return nil
}

func portOf(a any) string {
	switch a := a.(type) {
	case *net.TCPAddr:
		return strconv.Itoa(a.Port)
	case *net.UDPAddr:
		return strconv.Itoa(a.Port)
	}
	return ""
}

// stream serves a listening socket until the stage is closed: it answers like
// what it stands for and notes what it gets.
func (s *Stage) stream(network, address string) (net.Addr, error) {
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, l.Close)
	s.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.serving.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				buf := make([]byte, 4096)
				for {
					n, err := conn.Read(buf)
					s.arrive(buf[:n])
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, "OK\r\n"); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr(), nil
}

// packet serves a datagram socket in the same way, without answers.
func (s *Stage) packet(network, address string) (net.Addr, error) {
	var config net.ListenConfig
	c, err := config.ListenPacket(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, c.Close)
	s.serving.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			s.arrive(buf[:n])
		}
	})
	return c.LocalAddr(), nil
}

// victim is a process to attack.
type victim struct {
	pid    int
	addr   string             // of its secret
	fd     string             // of its secret file
	cancel context.CancelFunc // asks whoever runs it to end it
	done   chan struct{}      // closed when it has ended
	err    error
}

func (v *victim) ended() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

func (v *victim) end() error {
	v.cancel()
	if v.pid > 1 && !v.ended() {
		// Whoever runs it may not look at its context.
		_ = unix.Kill(v.pid, unix.SIGKILL)
	}
	<-v.done
	if errors.Is(v.err, context.Canceled) {
		return nil
	}
	return v.err
}

// The victims: one that nothing confines, and one of a sibling session, under
// the same plan in a sandbox of its own.
const (
	bystander = "victim"
	sibling   = "sibling"
)

// victim returns a living victim of the kind.
func (s *Stage) victim(ctx context.Context, t Target, kind string) (*victim, error) {
	if v := s.victims[kind]; v != nil {
		if !v.ended() {
			return v, nil
		}
		delete(s.victims, kind)
		if err := v.end(); err != nil {
			return nil, err
		}
	}
	s.serial++
	// A confined victim can write in the workspace alone, and the files of the
	// attempts come and go there.
	dir := filepath.Join(s.work, "victim-"+strconv.Itoa(s.serial))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	file, tell := filepath.Join(s.outside, "secret"), filepath.Join(dir, "tell")
	if kind == sibling {
		file = filepath.Join(dir, "secret")
		if err := os.WriteFile(file, []byte(s.secret), 0o600); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	v := &victim{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		_, v.err = t.Run(ctx, kind == sibling, s.work, []string{t.Program, Subcommand, asVictim, "secret=" + s.secret, "file=" + file, "tell=" + tell})
	}()
	var data []byte
	told := within(startTimeout, func() bool {
		var err error
		data, err = os.ReadFile(tell)
		return err == nil || v.ended()
	})
	fields := strings.Fields(string(data))
	if !told || len(fields) != 3 {
		return nil, errors.Join(fmt.Errorf("no %s to attack could be started", kind), v.end())
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		return nil, errors.Join(err, v.end())
	}
	v.pid, v.addr, v.fd = pid, fields[1], fields[2]
	s.victims[kind] = v
	return v, nil
}

// Run makes the attempts, one after the other, and says what became of each.
// The error is about the suite itself; what does not hold is in the report.
func (s *Stage) Run(ctx context.Context, t Target, list []Attempt) (Report, error) {
	begun := time.Now()
	var report Report
	for _, a := range list {
		r, err := s.judge(ctx, t, a)
		if err != nil {
			return report, fmt.Errorf("attempt %s: %w", a.Name, err)
		}
		report.Results = append(report.Results, r)
	}
	// What was denied must not have arrived by now either.
	for i, r := range report.Results {
		if r.Attempt.sends && r.Verdict == Held && s.got(token(true, r.Attempt), brief) {
			report.Results[i].Verdict, report.Results[i].Detail = Leaked, "it was called denied, and arrived later"
		}
	}
	report.Took = time.Since(begun)
	return report, nil
}

// judge makes an attempt without a sandbox and under it.
func (s *Stage) judge(ctx context.Context, t Target, a Attempt) (Result, error) {
	free, err := s.attempt(ctx, t, a, false)
	if err != nil {
		return Result{}, err
	}
	if !free.through {
		return Result{a, NotProvable, free.detail}, nil
	}
	held, err := s.attempt(ctx, t, a, true)
	if err != nil {
		return Result{}, err
	}
	r := Result{Attempt: a, Detail: held.detail}
	switch {
	case a.Works && held.through:
		r.Verdict = Worked
	case a.Works:
		r.Verdict = Broken
	case !held.through && held.denied:
		r.Verdict = Held
	case !held.through:
		r.Verdict = Unclear
	case a.granted != nil && a.granted(t.Plan, s):
		r.Verdict = Granted
	case s.waived(t, a.Property):
		r.Verdict = Waived
	case a.Limit != "":
		r.Verdict, r.Detail = Limit, a.Limit
	default:
		r.Verdict = Leaked
	}
	return r, nil
}

func (s *Stage) waived(t Target, p domain.Property) bool {
	return slices.ContainsFunc(t.Properties, func(status domain.PropertyStatus) bool {
		return status.Property == p && status.State == domain.StateWaived
	})
}

// outcome is what one run of an attempt came to.
type outcome struct {
	through bool // it got through, and the host has seen it where it can
	denied  bool // the kernel said no
	detail  string
}

func token(confined bool, a Attempt) string {
	if confined {
		return "confined:" + a.Name
	}
	return "free:" + a.Name
}

// The limits are for what hangs; a busy host may be slow.
const (
	attemptTimeout = 20 * time.Second // of one run of an attempt
	startTimeout   = 20 * time.Second // until a victim tells of itself
)

func (s *Stage) attempt(ctx context.Context, t Target, a Attempt, confined bool) (outcome, error) {
	if err := s.reset(); err != nil {
		return outcome{}, err
	}
	if a.arrange != nil {
		if err := a.arrange(s); err != nil {
			var not unavailableError
			if errors.As(err, &not) {
				return outcome{detail: string(not)}, nil
			}
			return outcome{}, err
		}
	}
	argv := []string{t.Program, Subcommand, a.Name, "token=" + token(confined, a)}
	for key, value := range s.values {
		argv = append(argv, key+"="+value)
	}
	attacked := map[string]*victim{}
	if a.victim {
		for _, kind := range []string{bystander, sibling} {
			v, err := s.victim(ctx, t, kind)
			if err != nil {
				return outcome{}, err
			}
			attacked[kind] = v
			argv = append(argv, kind+"="+strconv.Itoa(v.pid), kind+"-addr="+v.addr, kind+"-fd="+v.fd)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	end, err := t.Run(ctx, confined, s.work, argv)
	if err != nil {
		return outcome{}, err
	}
	o := s.read(a, end)
	// What the child says does not hide what it did.
	patience := brief
	switch {
	case o.through && a.silent && confined:
		patience = silence
	case o.through:
		patience = patient
	}
	seen, looked := s.seen(a, attacked, token(confined, a), patience)
	switch {
	case !looked:
	case !seen && o.through && a.silent:
		o = outcome{denied: true, detail: "nothing happened"}
	case seen && !o.through:
		o = outcome{through: true, detail: "the host saw it happen, although the child says: " + o.detail}
	case !seen && o.through:
		o = outcome{detail: "the child says that it got through, but the host sees nothing of it"}
	}
	return o, nil
}

// seen looks for the effect of an attempt; looked is false where there is none
// to be seen.
func (s *Stage) seen(a Attempt, attacked map[string]*victim, token string, patience time.Duration) (seen, looked bool) {
	switch {
	case a.sends:
		return s.got(token, patience), true
	case a.kills:
		return within(patience, func() bool {
			for _, v := range attacked {
				if v.ended() {
					return true
				}
			}
			return false
		}), true
	case a.effect != nil:
		ok, err := a.effect(s)
		return ok && err == nil, true
	}
	return false, false
}

// read understands a child's report.
func (s *Stage) read(a Attempt, end Ended) outcome {
	lines := strings.Split(strings.TrimSpace(end.Stdout), "\n")
	word, rest, _ := strings.Cut(lines[len(lines)-1], " ")
	switch word {
	case saidEscaped:
		proof, err := strconv.Unquote(rest)
		if err != nil {
			return outcome{detail: "its report is cut off"}
		}
		if a.reads {
			if !strings.Contains(proof, s.secret) {
				return outcome{detail: "what it read is not the secret"}
			}
			return outcome{through: true, detail: "it read the secret"}
		}
		return outcome{through: true, detail: proof}
	case saidDenied:
		return outcome{denied: a.denial(rest), detail: rest}
	case saidUnavailable, saidFailed:
		return outcome{detail: rest}
	}
	// The filter ends a process that enters the kernel by another way.
	return outcome{denied: end.Exit.Signal == "SIGSYS", detail: "it ended without a report: " + end.Exit.String()}
}

// denial reports whether an errno is a sandbox's way to say no.
func (a Attempt) denial(errno string) bool {
	for _, e := range append([]unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS}, a.denials...) {
		if errnoName(e) == errno {
			return true
		}
	}
	return errno == "SIGSYS"
}

// changed returns an effect: the file does not have the text any more.
func changed(place func(*Stage) string, name, text string) func(*Stage) (bool, error) {
	return func(s *Stage) (bool, error) {
		data, err := os.ReadFile(filepath.Join(place(s), name))
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		return string(data) != text, err
	}
}

// made returns an effect: something is there now.
func made(place func(*Stage) string, name string) func(*Stage) (bool, error) {
	return func(s *Stage) (bool, error) {
		_, err := os.Lstat(filepath.Join(place(s), name))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
}

func atOutside(s *Stage) string  { return s.outside }
func atReadonly(s *Stage) string { return s.readonly }
func atWork(s *Stage) string     { return s.work }

func amd64Only() error {
	if runtime.GOARCH != "amd64" {
		return unavailableError("only amd64 has it")
	}
	return nil
}
