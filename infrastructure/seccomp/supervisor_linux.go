package seccomp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor answers the connect(2) of a tree under a filter that asks. To a
// destination it connects the child's own socket itself, from outside of the
// child's sandbox, to an address that it has copied once: there is nothing left
// to race. Every other connect goes on in the kernel as if nobody had been asked,
// and the child's Landlock domain decides. So a supervisor only ever adds to what
// is allowed, and one that is gone adds nothing: the calls fail with ENOSYS.
//
// A socket's other ways to a destination stay what the filter and Landlock make
// of them.
//
// External facts: seccomp_unotify(2), pidfd_getfd(2).
type Supervisor struct {
	listener     *os.File
	destinations []netip.AddrPort

	connects sync.WaitGroup
	slots    chan struct{}

	mu     sync.Mutex
	closed bool
	open   map[int]struct{} // the child's sockets that are being connected
}

// maxConnects is how many connects of one tree are made at a time. More than that
// wait, and with them every other connect of the tree.
const maxConnects = 64

// NewSupervisor returns the supervisor for a listener, which becomes its own.
func NewSupervisor(listener int, destinations []netip.AddrPort) (*Supervisor, error) {
	// Only a descriptor that does not block is waited for without a thread.
	if err := unix.SetNonblock(listener, true); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(listener))
	}
	return &Supervisor{
		listener: os.NewFile(uintptr(listener), "seccomp listener"), destinations: slices.Clone(destinations),
		slots: make(chan struct{}, maxConnects), open: map[int]struct{}{},
	}, nil
}

// Run answers until nothing of the tree is left, or Close. It returns when no
// connect is being made any more.
func (s *Supervisor) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // whose error the caller's Close gives again
	defer stop()
	defer s.connects.Wait()
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return fmt.Errorf("answer the child's connects: %w", err)
}

// Close ends Run, and makes connects that are still being made fail. Closing
// twice is no error.
func (s *Supervisor) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.listener.Close()
	for len(s.open) > 0 {
		for fd := range s.open {
			// A socket that is not connected answers ENOTCONN, and its connect ends
			// all the same.
			_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		}
		s.mu.Unlock()
		time.Sleep(closePause) //nolint:forbidigo // a connect that has not begun yet does not mind the shutdown, and nothing tells when it has
		s.mu.Lock()
	}
	return err
}

// closePause is how long Close lets connects end before it looks again.
const closePause = time.Millisecond

// answer decides about one connect.
func (s *Supervisor) answer(n *notification) error {
	to, ok := s.destination(n)
	if !ok {
		return s.respond(n.goOn())
	}
	fd, err := s.socket(n)
	if err != nil {
		return s.respond(n.fail(err))
	}
	s.slots <- struct{}{}
	s.connects.Go(func() {
		defer func() { <-s.slots }()
		response := n.fail(unix.EACCES) // being closed
		if s.begin(fd) {
			response = n.fail(connect(fd, to))
		}
		s.end(fd)
		// Whoever asked may be gone, and then nobody waits.
		_ = s.respond(response)
	})
	return nil
}

// begin keeps a socket that is going to be connected, unless the supervisor is
// closed.
func (s *Supervisor) begin(fd int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.open[fd] = struct{}{}
	return true
}

func (s *Supervisor) end(fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, fd)
	_ = unix.Close(fd) // the child has its own
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

// maxAddress is the longest address that is looked at: that of IPv6.
const maxAddress = unix.SizeofSockaddrInet6

// destination copies the address that the child wants to connect to, and reports
// whether it is a destination.
func (s *Supervisor) destination(n *notification) (unix.Sockaddr, bool) {
	buf := make([]byte, maxAddress)
	size := int(uint32(n.args[2]))
	if size < unix.SizeofSockaddrInet4 || size > 128 { // struct sockaddr_storage
		return nil, false
	}
	buf = buf[:min(size, maxAddress)]
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	remote := []unix.RemoteIovec{{Base: uintptr(n.args[1]), Len: len(buf)}}
	if count, err := unix.ProcessVMReadv(int(n.tid), local, remote, 0); err != nil || count != len(buf) {
		return nil, false
	}
	to, at := addressOf(buf)
	return to, to != nil && slices.Contains(s.destinations, at)
}

// addressOf reads a struct sockaddr_in or sockaddr_in6; nil for another one.
func addressOf(buf []byte) (unix.Sockaddr, netip.AddrPort) {
	port := binary.BigEndian.Uint16(buf[2:])
	switch binary.NativeEndian.Uint16(buf) {
	case unix.AF_INET:
		to := &unix.SockaddrInet4{Port: int(port), Addr: [4]byte(buf[4:8])}
		return to, netip.AddrPortFrom(netip.AddrFrom4(to.Addr), port)
	case unix.AF_INET6:
		if len(buf) < maxAddress {
			break
		}
		to := &unix.SockaddrInet6{Port: int(port), Addr: [16]byte(buf[8:24]), ZoneId: binary.NativeEndian.Uint32(buf[24:])}
		// A mapped address leads to the one of IPv4 that it holds.
		return to, netip.AddrPortFrom(netip.AddrFrom16(to.Addr).Unmap(), port)
	}
	return nil, netip.AddrPort{}
}

// socket returns a duplicate of the child's socket.
func (s *Supervisor) socket(n *notification) (int, error) {
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
	fd, err := unix.PidfdGetfd(pidfd, int(int32(n.args[0])), 0)
	if err != nil {
		return -1, err
	}
	domain, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	protocol, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err := errors.Join(err1, err2); err != nil || domain != unix.AF_INET && domain != unix.AF_INET6 || protocol != unix.IPPROTO_TCP {
		return -1, errors.Join(unix.EACCES, unix.Close(fd))
	}
	return fd, nil
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

// connect connects the socket, and waits as long as the socket's own flags say.
func connect(fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
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
