package seccomp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// Supervisor answers the connect(2) of a tree under a filter that asks. To a
// destination it connects the child's own socket itself, from outside of the
// child's sandbox, to an address that it has copied once: there is nothing left
// to race. Every other connect goes on in the kernel as if nobody had been asked,
// and the child's Landlock domain decides. So a supervisor only ever adds to what
// is allowed, and one that is gone adds nothing: the calls fail with ENOSYS.
//
// Where unix sockets may be made for the sake of some that are named, no connect
// goes on in the kernel, see [Grants].
//
// It also counts what the child is refused, for [Supervisor.Refused].
//
// A socket's other ways to a destination stay what the filter and Landlock make
// of them.
//
// External facts: seccomp_unotify(2), pidfd_getfd(2).
type Supervisor struct {
	listener *os.File
	grants   Grants
	refusals refusals

	connects sync.WaitGroup
	slots    chan struct{}
	own      chan struct{} // see ownConnects

	closing  sync.Once
	closed   chan struct{}
	closeErr error

	mu      sync.Mutex
	running bool
	// What a connect may wait in for long: the child's socket, while it is being
	// connected, and the thread, while it closes its duplicate.
	open    map[int]struct{}
	letting map[int]struct{}
	waiting map[int]int // descriptors that wait for a unix socket, and their threads
}

// maxConnects is how many connects of one tree are made at a time. More than that
// wait, and with them every other connect of the tree.
const maxConnects = 64

// A connect may hold a thread for as long as the other side likes, and a process of Go
// dies of ten thousand threads. So all trees together share what they make at a time,
// and for each there are a few beside, which no other tree can take from it.
const ownConnects, sharedConnects = 4, 1024

var shared = make(chan struct{}, sharedConnects)

// Grants is what a supervisor knows of a plan.
type Grants struct {
	// Destinations are connected to by the supervisor.
	Destinations []netip.AddrPort
	// Sockets are connected to by the supervisor, which closes them in the end.
	Sockets []*Socket
	// All says that no connect may go on in the kernel, because the child can make
	// unix sockets that the kernel would let it connect: what is granted is connected
	// by the supervisor, and everything else refused. See [AnswersAll].
	All bool
	// Denied says whether the kernel refuses a connect of a TCP socket to that port
	// of what is no destination; nil for never. It is for telling of refusals.
	Denied func(port uint16) bool
}

// NewSupervisor returns the supervisor for a listener, which becomes its own.
func NewSupervisor(listener int, grants Grants) (*Supervisor, error) {
	// Only a descriptor that does not block is waited for without a thread.
	if err := unix.SetNonblock(listener, true); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(listener))
	}
	return &Supervisor{
		listener: os.NewFile(uintptr(listener), "seccomp listener"), grants: grants,
		slots: make(chan struct{}, maxConnects), own: make(chan struct{}, ownConnects), closed: make(chan struct{}), open: map[int]struct{}{}, letting: map[int]struct{}{}, waiting: map[int]int{},
	}, nil
}

// Socket is a unix socket that a plan grants, held open, so that it stays the same
// one whatever becomes of its path.
type Socket struct {
	file     *os.File
	dev, ino uint64
}

// OpenSocket opens the socket at a path, which must have no symbolic link in it. The
// caller closes it, unless a supervisor gets it.
func OpenSocket(path string) (*Socket, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	s := &Socket{file: os.NewFile(uintptr(fd), path)}
	var info unix.Stat_t
	err = unix.Fstat(fd, &info)
	if err == nil && info.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "look at", Path: path, Err: err}, s.Close())
	}
	s.dev, s.ino = info.Dev, info.Ino
	return s, nil
}

// Close closes the socket. Closing twice is no error.
func (s *Socket) Close() error {
	if err := s.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Run answers until nothing of the tree is left, or Close. Connects that are
// still being made then fail, and it returns when there is none any more.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // whose error the caller's Close gives again
	defer stop()
	defer s.letGoOfSockets()
	defer s.endConnects()
	conn, err := s.listener.SyscallConn()
	if err != nil {
		return s.unlessClosed(err)
	}
	for {
		var n notification
		var failed error
		gone := false
		err := conn.Read(func(fd uintptr) bool {
			// The poller tells of edges only: ask for the level first. And the
			// request for a notification waits for one whatever the flags.
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			switch count, err := unix.Poll(poll, 0); {
			case errors.Is(err, unix.EINTR):
				return true // with no notification: look again
			case err != nil:
				failed = os.NewSyscallError("poll", err)
				return true
			case count == 0:
				return false
			case poll[0].Revents&unix.POLLIN == 0: // POLLHUP
				gone = true
				return true
			}
			failed = n.receive(fd)
			return true
		})
		switch {
		case err != nil:
			return s.unlessClosed(err)
		case gone:
			return nil
		// The caller was killed, or interrupted.
		case errors.Is(failed, unix.ENOENT), errors.Is(failed, unix.EINTR):
		case failed != nil:
			return failed
		case n.id != 0:
			if err := s.answer(&n); err != nil {
				return s.unlessClosed(err)
			}
		}
	}
}

func (s *Supervisor) unlessClosed(err error) error {
	if s.isClosed() {
		return nil
	}
	return fmt.Errorf("answer the child's connects: %w", err)
}

func (s *Supervisor) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Close ends Run. Closing twice is no error.
func (s *Supervisor) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		s.closeErr = s.listener.Close()
		s.mu.Lock()
		running := s.running
		s.mu.Unlock()
		if !running {
			s.letGoOfSockets()
		}
	})
	return s.closeErr
}

func (s *Supervisor) letGoOfSockets() {
	for _, socket := range s.grants.Sockets {
		_ = socket.Close() // nothing was written
	}
}

// again is how often connects are told to end: what they are told may be lost, if
// the socket is not being connected yet, or its closing has not begun.
const again = 5 * time.Millisecond

// endConnects makes the connects fail, and returns when there is none any more.
// The child decides what they wait for, and for how long.
func (s *Supervisor) endConnects() {
	none := make(chan struct{})
	go func() {
		s.connects.Wait()
		close(none)
	}()
	ticks := time.NewTicker(again)
	defer ticks.Stop()
	for {
		s.interruptConnects()
		select {
		case <-none:
			return
		case <-ticks.C:
		}
	}
}

func (s *Supervisor) interruptConnects() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for fd := range s.open {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // ENOTCONN for one that is not connected
	}
	for fd, tid := range s.waiting {
		// See connectUnix. There is no connecting by a descriptor of this kind.
		if len(s.grants.Sockets) > 0 {
			_ = unix.Dup3(int(s.grants.Sockets[0].file.Fd()), fd, unix.O_CLOEXEC)
		}
		_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
	}
	for tid := range s.letting {
		// A signal that Go's runtime uses itself, and takes for nothing when it
		// has not sent it.
		_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
	}
}

// answer decides about one call. What the child can make wait is done aside.
func (s *Supervisor) answer(n *notification) error {
	if n.number == unix.SYS_SOCKET {
		s.refusals.add(domain.NetworkUDP, "")
		return s.respond(n.fail(unix.EPERM)) // as the filter refuses other sockets
	}
	address := s.address(n)
	to, at := addressOf(address)
	granted := slices.Contains(s.grants.Destinations, at)
	denied := to != nil && !granted && s.grants.Denied != nil && s.grants.Denied(at.Port())
	named := len(s.grants.Sockets) > 0 && familyOf(address) == unix.AF_UNIX
	if !s.grants.All && !granted && !denied && !named {
		return s.respond(n.goOn())
	}
	free, err := s.reserve()
	if err != nil {
		return err
	}
	asked := *n
	s.connects.Go(func() {
		defer free()
		// Whoever asked may be gone, and then nobody waits.
		_ = s.respond(s.decide(&asked, address))
	})
	return nil
}

// reserve waits until one more connect may be made.
func (s *Supervisor) reserve() (free func(), err error) {
	select {
	case s.slots <- struct{}{}:
	case <-s.closed:
		return nil, os.ErrClosed
	}
	fromOwn, fromShared := func() { <-s.own; <-s.slots }, func() { <-shared; <-s.slots }
	select {
	case s.own <- struct{}{}: // first, for the sake of the other trees
		return fromOwn, nil
	default:
	}
	select {
	case s.own <- struct{}{}:
		return fromOwn, nil
	case shared <- struct{}{}:
		return fromShared, nil
	case <-s.closed:
		return nil, os.ErrClosed
	}
}

// decide says what becomes of a connect to an address that was copied, and connects
// the child's socket if that is it.
func (s *Supervisor) decide(n *notification, address []byte) response {
	fd, err := s.duplicate(n)
	switch {
	case err != nil && s.grants.All:
		return n.fail(err)
	case err != nil:
		return n.goOn()
	}
	defer s.letGo(fd)
	otherwise := n.goOn
	if s.grants.All {
		// What the kernel looks at is not what was looked at here: another thread of
		// the child may have written another address since, or have put another
		// socket in the place of this one.
		otherwise = func() response { return n.fail(unix.EACCES) }
	}
	to, at := addressOf(address)
	switch k := kindOf(fd); {
	case k == tcp && slices.Contains(s.grants.Destinations, at):
		return n.fail(s.connecting(fd, func() error { return byRoutes(fd, func() error { return finished(fd, unix.Connect(fd, to)) }) }))
	case k == tcp && to != nil && s.grants.Denied != nil && s.grants.Denied(at.Port()):
		s.refusals.add(domain.NetworkTCP, at.String())
		return otherwise()
	case k == stream && familyOf(address) == unix.AF_UNIX:
		return s.decideUnix(n, fd, address, otherwise)
	case s.grants.All && (k == udp || k == tcp && (to != nil || familyOf(address) == unix.AF_UNSPEC)):
		// A port that is granted on every host, UDP, or the end of a connection. What
		// could not be read could lead anywhere.
		return n.fail(s.connecting(fd, func() error { return finished(fd, connectAs(fd, address)) }))
	case s.grants.All && k == noSocket:
		return n.fail(unix.ENOTSOCK)
	}
	return otherwise()
}

// decideUnix is decide for a unix socket that connects.
func (s *Supervisor) decideUnix(n *notification, fd int, address []byte, otherwise func() response) response {
	name, abstract := unixName(address)
	var info unix.Stat_t
	there := false
	if !abstract {
		name, there = s.look(n, name, &info)
	}
	for _, socket := range s.grants.Sockets {
		if there && info.Dev == socket.dev && info.Ino == socket.ino {
			return n.fail(s.connectUnix(fd, socket))
		}
	}
	// Of what is not there nobody is told: C libraries look for services like that.
	if s.grants.All && (abstract || there && info.Mode&unix.S_IFMT == unix.S_IFSOCK) {
		if abstract {
			name = "@" + name
		}
		s.refusals.add(domain.NetworkUnix, strings.ToValidUTF8(name, "\uFFFD"))
	}
	return otherwise()
}

// Refused lists what the child was refused so far, each destination once, in the
// order of the first time. What is more than it remembers is counted in a last
// element without a network. It never waits for a call to be answered, and may be
// called when the supervisor is closed, too.
func (s *Supervisor) Refused() []domain.Refusal { return s.refusals.list() }

// maxRefusals is how many destinations are told apart.
const maxRefusals = 32

// refusals counts what was refused.
type refusals struct {
	mu    sync.Mutex
	known []domain.Refusal
	other uint64
}

func (r *refusals) add(network domain.Network, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range r.known {
		if k.Network == network && k.Address == address {
			r.known[i].Count++
			return
		}
	}
	if len(r.known) == maxRefusals {
		r.other++
		return
	}
	r.known = append(r.known, domain.Refusal{Network: network, Address: address, Count: 1})
}

func (r *refusals) list() []domain.Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.Clone(r.known) // nil for none
	if r.other > 0 {
		list = append(list, domain.Refusal{Count: r.other})
	}
	return list
}

// connecting connects the child's socket, such that the end of the supervisor ends
// it.
func (s *Supervisor) connecting(fd int, connect func() error) error {
	s.mu.Lock()
	s.open[fd] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, fd)
	}()
	if s.isClosed() {
		return unix.EACCES
	}
	return connect()
}

// byRoutes connects the child's socket by the routes of the host, or not at all. An
// interface that it is bound to leads even 127.0.0.1 out to whoever is on that network,
// and the filter refuses the options for it only: the zone of a link-local address binds
// a socket of IPv6 too, in a connect and in a bind, also where these then fail, and
// nothing but the options takes that back. So what another thread of the child has done
// before the connect is still found after it. And a socket may come from where the
// options are not refused.
func byRoutes(fd int, connect func() error) error {
	if err := isNotLed(fd); err != nil {
		return err
	}
	err := connect()
	if led := isNotLed(fd); led != nil {
		// AF_UNSPEC ends the connection, or the attempt at one (connect(2)).
		return errors.Join(led, connectAs(fd, make([]byte, unix.SizeofSockaddrInet4)))
	}
	return err
}

// leading are the options that choose the way of a connection. As a number they are 0
// where nothing is set: of a route it is the beginning, which has its kind or length.
var leading = []struct{ level, option int }{
	{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX}, {unix.SOL_SOCKET, unix.SO_DONTROUTE},
	{unix.SOL_IP, unix.IP_OPTIONS}, {unix.SOL_IPV6, unix.IPV6_RTHDR},
}

// isNotLed returns EACCES for a socket that would not go by the routes of the host.
func isNotLed(fd int) error {
	for _, l := range leading {
		switch value, err := unix.GetsockoptInt(fd, l.level, l.option); {
		case l.level == unix.SOL_IPV6 && (errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.EOPNOTSUPP)): // a socket of IPv4
		case err != nil:
			return err
		case value != 0:
			return unix.EACCES
		}
	}
	return nil
}

// connectUnix connects the child's socket to a granted one: to that very file, that
// was opened for the plan, whatever stands in its place by now. So the path that led
// here decides nothing but which of them.
//
// It waits while the other side has as many connections as it takes. Nothing but the
// other side ends that: not what is done to the child's socket, and no signal, for
// after a handler the kernel begins the same call again. So whoever wants it to end
// puts something else in the place of the descriptor, and then sends a signal.
func (s *Supervisor) connectUnix(fd int, socket *Socket) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() //nolint:forbidigo // this thread is not restricted
	s.mu.Lock()
	s.waiting[fd] = unix.Gettid()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, fd)
	}()
	if s.isClosed() {
		return unix.EACCES
	}
	for {
		err := unix.Connect(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(int(socket.file.Fd()))})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// look looks at what the child's path leads to, as the child's own look would: from
// its working directory, and through links. It returns the path of that, and whether
// there is anything. It has the root of the supervisor: no child can change its own.
// Only a granted socket comes of it, so magic links, which lead to what the supervisor
// has open, are of no use, and refused.
func (s *Supervisor) look(n *notification, name string, info *unix.Stat_t) (path string, there bool) {
	from := unix.AT_FDCWD
	if !strings.HasPrefix(name, "/") {
		var err error
		from, err = unix.Open("/proc/"+strconv.Itoa(int(n.tid))+"/cwd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return name, false
		}
		defer unix.Close(from)
		if s.stillValid(n) != nil {
			return name, false
		}
	}
	fd, err := unix.Openat2(from, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return name, false
	}
	defer unix.Close(fd)
	if unix.Fstat(fd, info) != nil {
		return name, false
	}
	if path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err == nil {
		name = path
	}
	return name, true
}

// letGo closes a duplicate. If the child has closed its own meanwhile, this is
// what closes the file, and with SO_LINGER it waits until what the child has sent
// is taken, for as long as the child has said; a signal ends that (socket(7)).
func (s *Supervisor) letGo(fd int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() //nolint:forbidigo // this thread is not restricted
	tid := unix.Gettid()
	s.mu.Lock()
	s.letting[tid] = struct{}{}
	s.mu.Unlock()
	_ = unix.Close(fd)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.letting, tid)
}

// respond answers, unless the caller is gone.
func (s *Supervisor) respond(r response) error {
	conn, err := s.listener.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = r.send(fd) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ENOENT) {
		return nil
	}
	return sent
}

// maxAddress is the longest address that is looked at: that of a unix socket.
const maxAddress = unix.SizeofSockaddrUnix

// address copies the address that the child wants to connect to; nil if it is none
// that anything here could be.
func (s *Supervisor) address(n *notification) []byte {
	size := int(uint32(n.args[2]))
	if size < 2 || size > 128 { // struct sockaddr_storage
		return nil
	}
	buf := make([]byte, min(size, maxAddress))
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	remote := []unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: len(buf)}}
	if count, err := unix.ProcessVMReadv(int(n.tid), local, remote, 0); err != nil || count != len(buf) {
		return nil
	}
	return buf
}

func familyOf(address []byte) uint16 {
	if len(address) < 2 {
		return unix.AF_UNSPEC
	}
	return binary.NativeEndian.Uint16(address)
}

// unixName returns the path of a unix socket's address, or its abstract name
// (unix(7)): a path ends with the address, or with a NUL before.
func unixName(address []byte) (name string, abstract bool) {
	if len(address) == 2 {
		return "", true // no name at all
	}
	if name := address[2:]; name[0] == 0 {
		return string(name[1:]), true
	}
	name, _, _ = strings.Cut(string(address[2:]), "\x00")
	return name, false
}

// shortInet6 is the size of a struct sockaddr_in6 without its last member, which the
// kernel takes for one too (SIN6_LEN_RFC2133).
const shortInet6 = 24

// addressOf reads a struct sockaddr_in or sockaddr_in6; nil for another one.
func addressOf(buf []byte) (unix.Sockaddr, netip.AddrPort) {
	if len(buf) < unix.SizeofSockaddrInet4 {
		return nil, netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(buf[2:])
	switch familyOf(buf) {
	case unix.AF_INET:
		to := &unix.SockaddrInet4{Port: int(port), Addr: [4]byte(buf[4:8])}
		return to, netip.AddrPortFrom(netip.AddrFrom4(to.Addr), port)
	case unix.AF_INET6:
		if len(buf) < shortInet6 {
			break
		}
		// Without its zone: no destination has one.
		to := &unix.SockaddrInet6{Port: int(port), Addr: [16]byte(buf[8:24])}
		// A mapped address leads to the one of IPv4 that it holds.
		return to, netip.AddrPortFrom(netip.AddrFrom16(to.Addr).Unmap(), port)
	}
	return nil, netip.AddrPort{}
}

// duplicate returns a duplicate of the child's descriptor.
func (s *Supervisor) duplicate(n *notification) (int, error) {
	pidfd, err := openThread(int(n.tid))
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	// Until here the id may have been given to another thread: then the caller
	// that asked is gone, and nothing may be done in its name.
	if err := s.stillValid(n); err != nil {
		return -1, err
	}
	return unix.PidfdGetfd(pidfd, int(int32(n.args[0])), 0)
}

// kind is what connects differently.
type kind int

const (
	noSocket kind = iota
	other         // another socket
	tcp           // over IPv4 or IPv6
	udp           // the same
	stream        // a unix socket that connects: a stream, or sequenced packets
)

func kindOf(fd int) kind {
	domain, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	protocol, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	typ, err3 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	ip := domain == unix.AF_INET || domain == unix.AF_INET6
	switch {
	case errors.Join(err1, err2, err3) != nil:
		return noSocket
	case ip && protocol == unix.IPPROTO_TCP:
		return tcp
	case ip && protocol == unix.IPPROTO_UDP:
		return udp
	case domain == unix.AF_UNIX && (typ == unix.SOCK_STREAM || typ == unix.SOCK_SEQPACKET):
		return stream
	}
	return other
}

func (s *Supervisor) stillValid(n *notification) error {
	conn, err := s.listener.SyscallConn()
	if err != nil {
		return err
	}
	var valid error
	if err := conn.Control(func(fd uintptr) { valid = n.valid(fd) }); err != nil {
		return err
	}
	return valid
}

// openThread opens a thread, or before Linux 6.9 the process that it belongs to:
// the two share their descriptors, unless a program has gone out of its way.
func openThread(tid int) (int, error) {
	const pidfdThread = unix.O_EXCL // PIDFD_THREAD
	fd, err := unix.PidfdOpen(tid, pidfdThread)
	if !errors.Is(err, unix.EINVAL) {
		return fd, err
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return -1, unix.ESRCH
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "Tgid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				return -1, unix.ESRCH
			}
			return unix.PidfdOpen(pid, 0)
		}
	}
	return -1, unix.ESRCH
}

// finished returns what becomes of a connect that returned an error or nil, and waits
// as long as the socket's own flags say.
func finished(fd int, err error) error {
	if !errors.Is(err, unix.EINTR) {
		return err
	}
	// A signal of the orchestrator's. The connect goes on (connect(2)).
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		_, err := unix.Poll(poll, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || errno == 0 {
			return err
		}
		return unix.Errno(errno)
	}
}

// goOn lets the call go on as if nobody had been asked.
func (n *notification) goOn() response {
	return response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
}

// fail ends the call with an error, or with success for nil.
func (n *notification) fail(err error) response {
	if err == nil {
		return response{id: n.id}
	}
	errno := unix.EACCES
	_ = errors.As(err, &errno) // or EACCES
	return response{id: n.id, error: -int32(errno)}
}

// CloseListener closes a listener that has no supervisor. From then on every
// connect of the tree fails.
func CloseListener(listener int) error { return unix.Close(listener) }
