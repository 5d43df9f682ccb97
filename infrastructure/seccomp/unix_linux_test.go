package seccomp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// unixStage has a granted socket and a secret one beside it, whose names have the
// same length.
type unixStage struct {
	dir, granted, secret string
	accepted, reached    *atomic.Int64
}

func newUnixStage(t *testing.T, network string) unixStage {
	t.Helper()
	dir, err := os.MkdirTemp("", "u") //nolint:usetesting // a path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	dir, err = filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	s := unixStage{dir: dir, granted: dir + "/g.sock", secret: dir + "/s.sock"}
	s.accepted, s.reached = listenUnix(t, network, s.granted), listenUnix(t, network, s.secret)
	return s
}

// listenUnix counts the connections to a unix socket.
func listenUnix(t *testing.T, network, name string) *atomic.Int64 {
	t.Helper()
	l, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: name})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	var accepted atomic.Int64
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		done.Wait()
	})
	return &accepted
}

func (s unixStage) plan() domain.SandboxPlan { return plan.WithUnixDestinations(s.granted) }

// withUnix gives a new unix socket to the function.
func withUnix(typ int, f func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func dialUnix(typ int, name string) error {
	return withUnix(typ, func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: name}) })
}

func TestAUnixDestinationIsConnectedToAndNothingElse(t *testing.T) {
	for network, typ := range map[string]int{"unix": unix.SOCK_STREAM, "unixpacket": unix.SOCK_SEQPACKET} {
		t.Run(network, func(t *testing.T) {
			testkit.NoLeaks(t)
			s := newUnixStage(t, network)
			abstract := "@caisson-" + filepath.Base(s.dir)
			hidden := listenUnix(t, network, abstract)
			require.NoError(t, os.Symlink(s.granted, s.dir+"/to-granted"))
			require.NoError(t, os.Symlink(s.secret, s.dir+"/to-secret"))
			wd, err := os.Getwd()
			require.NoError(t, err)
			relative, err := filepath.Rel(wd, s.granted)
			require.NoError(t, err)
			for _, companion := range []string{s.secret, s.dir + "/to-secret", "/proc/self/root" + s.secret, abstract} {
				require.NoError(t, dialUnix(typ, companion), "the companions work: %s", companion)
			}
			var got, denied map[string]error
			var refused []domain.Refusal
			require.NoError(t, supervisedUnder(t, s.plan(), func(sup *Supervisor) {
				got = map[string]error{
					"granted":           dialUnix(typ, s.granted),
					"without blocking":  dialUnix(typ|unix.SOCK_NONBLOCK, s.granted),
					"through a link":    dialUnix(typ, s.dir+"/to-granted"),
					"relative":          dialUnix(typ, relative),
					"in a roundabout w": dialUnix(typ, s.dir+"/../"+filepath.Base(s.dir)+"/./g.sock"),
				}
				denied = map[string]error{
					"secret":         dialUnix(typ, s.secret),
					"link to secret": dialUnix(typ, s.dir+"/to-secret"),
					"magic link":     dialUnix(typ, "/proc/self/root"+s.secret),
					"magic granted":  dialUnix(typ, "/proc/self/root"+s.granted),
					"abstract":       dialUnix(typ, abstract),
					"nothing there":  dialUnix(typ, s.dir+"/none"),
					"a directory":    dialUnix(typ, s.dir),
					"no name":        withUnix(typ, func(fd int) error { return connectAs(fd, []byte{unix.AF_UNIX, 0}) }),
				}
				refused = sup.Refused()
			}))
			for name, err := range got {
				require.NoError(t, err, name)
			}
			for name, err := range denied {
				require.ErrorIs(t, err, unix.EACCES, name)
			}
			require.Eventually(t, func() bool { return s.accepted.Load() == int64(len(got)) }, 5*time.Second, time.Millisecond)
			require.EqualValues(t, 3, s.reached.Load(), "the companions'")
			require.EqualValues(t, 1, hidden.Load(), "the companion's")
			require.Contains(t, refused, domain.Refusal{Network: domain.NetworkUnix, Address: s.secret, Count: 2}, "by its own path, whatever led there")
			require.Contains(t, refused, domain.Refusal{Network: domain.NetworkUnix, Address: abstract, Count: 1})
			for _, r := range refused {
				require.NotEqual(t, s.dir+"/none", r.Address, "libraries look for services that are not there")
			}
		})
	}
}

// A unix socket that sends to a path without a connect cannot be made, and the names
// that go with a message reach nothing.
func TestAUnixSocketHasNoOtherWay(t *testing.T) {
	testkit.NoLeaks(t)
	s := newUnixStage(t, "unix")
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: s.dir + "/d.sock"})
	require.NoError(t, err)
	defer datagrams.Close()
	to, secret := &unix.SockaddrUnix{Name: s.dir + "/d.sock"}, &unix.SockaddrUnix{Name: s.secret}
	require.NoError(t, withUnix(unix.SOCK_DGRAM, func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, to) }), "the companion")
	results := map[string]error{}
	require.NoError(t, supervisedUnder(t, s.plan(), func(*Supervisor) {
		for name, typ := range map[string]int{"datagram": unix.SOCK_DGRAM, "raw": unix.SOCK_RAW} {
			results[name] = withUnix(typ, func(int) error { return nil })
			_, results[name+" pair"] = unix.Socketpair(unix.AF_UNIX, typ, 0)
		}
		for name, typ := range map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET} {
			results[name+" sendto"] = withUnix(typ, func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, secret) })
			results[name+" sendmsg"] = withUnix(typ, func(fd int) error { return unix.Sendmsg(fd, []byte("x"), nil, secret, 0) })
			results[name+" sendmsg to datagrams"] = withUnix(typ, func(fd int) error { return unix.Sendmsg(fd, []byte("x"), nil, to, 0) })
		}
		// A socket that came from somewhere is a socket like any other.
		results["passed"] = passed(s.secret)
	}))
	for name, err := range results {
		require.Error(t, err, name)
	}
	require.Zero(t, s.reached.Load())
	require.NoError(t, datagrams.SetReadDeadline(time.Now().Add(time.Second)))
	buf := make([]byte, 8)
	_, _, err = datagrams.ReadFrom(buf)
	require.NoError(t, err, "the companion's")
	require.NoError(t, datagrams.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, _, err = datagrams.ReadFrom(buf)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// passed connects a socket that was sent through a pair.
func passed(name string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil // it must fail later
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if withUnix(unix.SOCK_STREAM, func(fd int) error { return unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fd), nil, 0) }) != nil {
		return nil
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), oob, 0)
	if err != nil {
		return nil // it must fail later
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil // it must fail later
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil // it must fail later
	}
	defer unix.Close(fds[0])
	return unix.Connect(fds[0], &unix.SockaddrUnix{Name: name})
}

// meanwhile does something again and again while f runs.
func meanwhile(change, f func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				change()
			}
		}
	}()
	f()
	close(stop)
	<-stopped
}

// What a child changes while its connect is being decided leads nowhere else: the
// address, its family, the links and the names in the path, and the descriptor.
func TestNothingThatChangesLeadsToAnotherUnixSocket(t *testing.T) {
	const tries = 10_000
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	// The address lies outside of what Go knows: a plain store is one of a thread of
	// another language.
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
	at := reflect.ValueOf(memory).Pointer()
	write := func(name string) uintptr {
		binary.NativeEndian.PutUint16(memory, unix.AF_UNIX)
		copy(memory[2:], name+"\x00")
		return uintptr(2 + len(name) + 1)
	}
	connectMemory := func(size uintptr) error {
		return withUnix(unix.SOCK_STREAM, func(fd int) error { return raw(unix.SYS_CONNECT, uintptr(fd), at, size)() })
	}
	swap := func(t *testing.T, a, b string) {
		if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
			panic(err)
		}
	}
	for name, attack := range map[string]func(t *testing.T, s unixStage, try func(func() error)){
		"the address": func(_ *testing.T, s unixStage, try func(func() error)) {
			size := write(s.granted)
			letter := 2 + len(s.dir) + 1
			meanwhile(func() { memory[letter] ^= 's' ^ 'g' }, func() {
				try(func() error { return connectMemory(size) })
			})
		},
		"its family": func(_ *testing.T, s unixStage, try func(func() error)) {
			// The beginning of a path is a port and an address too, and one that is no
			// destination: if the kernel looked again, it would find the secret.
			size := write(s.secret)
			first := true
			meanwhile(func() { memory[0] ^= unix.AF_INET ^ unix.AF_UNIX }, func() {
				try(func() error {
					if first {
						first = false
						return dialUnix(unix.SOCK_STREAM, s.granted)
					}
					return connectMemory(size)
				})
			})
		},
		"a link": func(t *testing.T, s unixStage, try func(func() error)) {
			require.NoError(t, os.Symlink(s.granted, s.dir+"/a"))
			require.NoError(t, os.Symlink(s.secret, s.dir+"/b"))
			meanwhile(func() { swap(t, s.dir+"/a", s.dir+"/b") }, func() {
				try(func() error { return dialUnix(unix.SOCK_STREAM, s.dir+"/a") })
			})
		},
		"the socket's place": func(t *testing.T, s unixStage, try func(func() error)) {
			meanwhile(func() { swap(t, s.granted, s.secret) }, func() {
				try(func() error { return dialUnix(unix.SOCK_STREAM, s.granted) })
			})
		},
		"the descriptor": func(t *testing.T, s unixStage, try func(func() error)) {
			// An address of IP that is a destination, on a number that is a TCP socket
			// and then a unix one.
			numbers := make([]int, 3)
			for i, family := range []int{unix.AF_INET, unix.AF_UNIX, unix.AF_UNIX} {
				fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				require.NoError(t, err)
				defer unix.Close(fd)
				numbers[i] = fd
			}
			size := write(s.secret)
			meanwhile(func() {
				_ = unix.Dup3(numbers[0], numbers[2], unix.O_CLOEXEC)
				memory[0] = unix.AF_INET
				_ = unix.Dup3(numbers[1], numbers[2], unix.O_CLOEXEC)
				memory[0] = unix.AF_UNIX
			}, func() {
				first := true
				try(func() error {
					if first {
						first = false
						return dialUnix(unix.SOCK_STREAM, s.granted)
					}
					return raw(unix.SYS_CONNECT, uintptr(numbers[2]), at, size)()
				})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			s := newUnixStage(t, "unix")
			require.NoError(t, dialUnix(unix.SOCK_STREAM, s.secret), "the companion")
			require.Eventually(t, func() bool { return s.reached.Load() == 1 }, 5*time.Second, time.Millisecond)
			var succeeded int
			require.NoError(t, supervisedUnder(t, s.plan().WithDestinations(granted), func(*Supervisor) {
				attack(t, s, func(connect func() error) {
					for range tries {
						if connect() == nil {
							succeeded++
						}
					}
				})
			}))
			require.NotZero(t, succeeded, "an attack on nothing")
			require.Less(t, succeeded, tries, "an attack on nothing")
			require.Eventually(t, func() bool { return s.accepted.Load() == int64(succeeded) }, 5*time.Second, time.Millisecond)
			require.EqualValues(t, 1, s.reached.Load(), "the companion's")
		})
	}
}

// Where the supervisor answers all, it connects what the plan allows beside.
func TestOtherConnectsAreMadeBesideAUnixDestination(t *testing.T) {
	testkit.NoLeaks(t)
	s := newUnixStage(t, "unix")
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	port, _ := listen(t, "tcp4", "127.0.0.1:0")
	other, unwanted := listen(t, "tcp4", "127.0.0.1:0")
	require.NoError(t, dial(other, 0), "the companion")
	require.Eventually(t, func() bool { return unwanted.Load() == 1 }, 5*time.Second, time.Millisecond)
	unspecified := make([]byte, 16)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	udp := func(again bool) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, sockaddr(other)); err != nil || !again {
			return err
		}
		return connectAs(fd, unspecified)
	}
	allowed, denied := map[string]error{}, map[string]error{}
	var refused []domain.Refusal
	plan := s.plan().WithDestinations(granted).WithConnectTCP(port.Port()).WithUDP(true)
	require.NoError(t, supervisedUnder(t, plan, func(sup *Supervisor) {
		allowed = map[string]error{
			"a destination": dial(granted, 0), "a port": dial(port, 0), "a port, without blocking": dial(port, unix.SOCK_NONBLOCK),
			"UDP": udp(false), "UDP, and off again": udp(true), "off": withTCP(func(fd int) error { return connectAs(fd, unspecified) }),
		}
		denied = map[string]error{
			"another port": dial(other, 0), "no descriptor": unix.Connect(-1, sockaddr(port)), "no socket": unix.Connect(int(file.Fd()), sockaddr(port)),
			"no address":     withTCP(func(fd int) error { return raw(unix.SYS_CONNECT, uintptr(fd), 0, 0)() }),
			"its own memory": withTCP(func(fd int) error { return raw(unix.SYS_CONNECT, uintptr(fd), 1, 16)() }),
			"a unix name":    withTCP(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: s.granted}) }),
			"an IP address":  withUnix(unix.SOCK_STREAM, func(fd int) error { return unix.Connect(fd, sockaddr(granted)) }),
		}
		refused = sup.Refused()
	}))
	for name, err := range allowed {
		require.NoError(t, err, name)
	}
	for name, err := range denied {
		require.Error(t, err, name)
	}
	require.ErrorIs(t, denied["another port"], unix.EACCES)
	require.ErrorIs(t, denied["no descriptor"], unix.EBADF)
	require.ErrorIs(t, denied["no socket"], unix.ENOTSOCK)
	require.EqualValues(t, 1, unwanted.Load(), "the companion's")
	require.Equal(t, []domain.Refusal{{Network: domain.NetworkTCP, Address: other.String(), Count: 1}}, refused)
}

// A connect waits for a server that takes no more, for as long as that takes; it does
// not keep the supervisor from ending.
func TestCloseEndsAConnectThatWaitsForAUnixSocket(t *testing.T) {
	testkit.NoLeaks(t)
	dir := t.TempDir()
	name := dir + "/s"
	server, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(server)
	require.NoError(t, unix.Bind(server, &unix.SockaddrUnix{Name: name}))
	require.NoError(t, unix.Listen(server, 0))
	for err == nil {
		var c int
		c, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		defer unix.Close(c)
		err = unix.Connect(c, &unix.SockaddrUnix{Name: name})
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	begun := time.Now()
	var got error
	require.NoError(t, supervisedUnder(t, plan.WithUnixDestinations(name), func(s *Supervisor) {
		timer := time.AfterFunc(200*time.Millisecond, func() { _ = s.Close() })
		defer timer.Stop()
		got = dialUnix(unix.SOCK_STREAM, name)
	}))
	require.Error(t, got)
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond, "an attack on nothing")
	require.Less(t, time.Since(begun), 10*time.Second)
}

// A grant is of a socket, and not of a path.
func TestOnlyASocketIsOpenedAsAUnixDestination(t *testing.T) {
	s := newUnixStage(t, "unix")
	require.NoError(t, os.Symlink(s.granted, s.dir+"/link"))
	require.NoError(t, os.Symlink(s.dir, s.dir+"/up"))
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"a directory": {s.dir, unix.ENOTSOCK}, "nothing": {s.dir + "/none", unix.ENOENT},
		"a link": {s.dir + "/link", unix.ELOOP}, "below a link": {s.dir + "/up/g.sock", unix.ELOOP},
	} {
		_, err := OpenSocket(c.path)
		require.ErrorIs(t, err, c.want, name)
	}
	socket, err := OpenSocket(s.granted)
	require.NoError(t, err)
	require.NoError(t, errors.Join(socket.Close(), socket.Close()))
}

// A server that was started again is another one.
func TestAUnixSocketThatWasReplacedIsAnotherOne(t *testing.T) {
	testkit.NoLeaks(t)
	s := newUnixStage(t, "unix")
	var before, after error
	var none error
	replace, tried, replaced := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { // on a thread that may
		defer close(replaced)
		<-replace
		if os.Remove(s.granted) != nil {
			return
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: s.granted})
		if err != nil {
			return
		}
		<-tried
		_ = l.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, none = l.Accept()
		_ = l.Close()
	}()
	require.NoError(t, supervisedUnder(t, s.plan(), func(*Supervisor) {
		before = dialUnix(unix.SOCK_STREAM, s.granted)
		close(replace)
		for begun := time.Now(); time.Since(begun) < 5*time.Second && !errors.Is(after, unix.EACCES); {
			after = dialUnix(unix.SOCK_STREAM, s.granted) // of the old one, until it is replaced
		}
		close(tried)
		<-replaced
	}))
	require.NoError(t, before)
	require.ErrorIs(t, after, unix.EACCES)
	require.ErrorIs(t, none, os.ErrDeadlineExceeded, "nothing came to the new one")
}

// The kernel takes an address of IPv6 without its last member too (SIN6_LEN_RFC2133),
// and whatever it takes is looked at before the supervisor connects to it.
func TestAShortAddressIsNoWayBesideAUnixDestination(t *testing.T) {
	testkit.NoLeaks(t)
	s := newUnixStage(t, "unix")
	granted, reached := listen(t, "tcp4", "127.0.0.1:0")
	port, onPort := listen(t, "tcp4", "127.0.0.1:0")
	other, unwanted := listen(t, "tcp4", "127.0.0.1:0")
	short := func(to netip.AddrPort, size int) error {
		address := make([]byte, unix.SizeofSockaddrInet6)
		binary.NativeEndian.PutUint16(address, unix.AF_INET6)
		binary.BigEndian.PutUint16(address[2:], to.Port())
		mapped := to.Addr().As16()
		copy(address[8:], mapped[:])
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return connectAs(fd, address[:size])
	}
	require.NoError(t, short(other, 24), "the companion")
	require.Eventually(t, func() bool { return unwanted.Load() == 1 }, 5*time.Second, time.Millisecond)
	var errs [29]error
	var allowed []error
	plan := s.plan().WithDestinations(granted).WithConnectTCP(port.Port())
	require.NoError(t, supervisedUnder(t, plan, func(*Supervisor) {
		for size := 2; size <= 28; size++ {
			errs[size] = short(other, size)
		}
		allowed = []error{short(granted, 24), short(granted, 27), short(port, 24), short(port, 28)}
	}))
	for size := 2; size <= 28; size++ {
		require.Error(t, errs[size], size)
	}
	require.EqualValues(t, 1, unwanted.Load(), "the companion's")
	for i, err := range allowed {
		require.NoError(t, err, i)
	}
	require.Eventually(t, func() bool { return reached.Load() == 2 && onPort.Load() == 2 }, 5*time.Second, time.Millisecond)
}

// What the supervisor does not understand it does not connect to either: it is outside
// of the child's Landlock domain.
func TestAnAddressThatIsNotUnderstoodIsNotConnectedTo(t *testing.T) {
	testkit.NoLeaks(t)
	s := newUnixStage(t, "unix")
	at, _ := listen(t, "tcp4", "127.0.0.1:0")
	address := make([]byte, unix.SizeofSockaddrInet6)
	binary.BigEndian.PutUint16(address[2:], at.Port())
	got := map[string]error{}
	connect := func(family uint16, size int) error {
		binary.NativeEndian.PutUint16(address, family)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return connectAs(fd, address[:size])
	}
	var end error
	require.NoError(t, supervisedUnder(t, s.plan(), func(*Supervisor) {
		got["too short"] = connect(unix.AF_INET, unix.SizeofSockaddrInet4-1)
		got["IPv6, too short"] = connect(unix.AF_INET6, shortInet6-1)
		got["of unix"] = connect(unix.AF_UNIX, len(address))
		got["of nothing known"] = connect(77, len(address))
		end = connect(unix.AF_UNSPEC, len(address))
	}))
	for name, err := range got {
		require.ErrorIs(t, err, unix.EACCES, name)
	}
	require.NoError(t, end, "the end of a connection")
}
