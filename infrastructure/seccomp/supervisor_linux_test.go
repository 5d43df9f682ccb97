package seccomp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// supervised runs f on a thread that may not connect by itself, and whose filter
// asks a supervisor for the destinations. It returns what Run returned.
func supervised(t testing.TB, destinations []netip.AddrPort, f func(s *Supervisor)) error {
	t.Helper()
	return supervisedUnder(t, plan.WithDestinations(destinations...), f)
}

// supervisedUnder is supervised for any plan, but that no port is granted by Landlock.
func supervisedUnder(t testing.TB, plan domain.SandboxPlan, f func(s *Supervisor)) error {
	t.Helper()
	testkit.RequireLandlock(t, 4)
	filter, err := For(plan)
	require.NoError(t, err)
	grants := Grants{
		Destinations: plan.Destinations(), All: AnswersAll(plan),
		Denied: func(port uint16) bool { return !slices.Contains(plan.ConnectTCP(), port) },
	}
	for _, path := range plan.UnixDestinations() {
		socket, err := OpenSocket(path)
		require.NoError(t, err)
		grants.Sockets = append(grants.Sockets, socket)
	}
	ruleset, _, err := landlock.Config{HandledAccessNet: ll.AccessNetConnectTCP}.NewRulesetFD()
	require.NoError(t, err)
	defer unix.Close(ruleset)
	ready, ended := make(chan *Supervisor, 1), make(chan error, 1)
	failed := testkit.OnThrowawayThread(func() error {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		if err := ll.LandlockRestrictSelf(ruleset, 0); err != nil {
			return err
		}
		listener, err := filter.Load()
		if err != nil {
			return err
		}
		s, err := NewSupervisor(listener, grants)
		if err != nil {
			return err
		}
		ready <- s
		go func() { ended <- s.Run(context.Background()) }()
		f(s)
		return nil
	})
	require.NoError(t, failed)
	err = <-ended // the thread was the whole tree
	require.NoError(t, (<-ready).Close())
	return err
}

// listen returns the address of a listener that takes every connection.
func listen(t testing.TB, network, address string) (netip.AddrPort, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	var accepted atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).AddrPort(), &accepted
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

// dial connects a new socket and closes it.
func dial(to netip.AddrPort, flags int) error {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err = unix.Connect(fd, sockaddr(to)); !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if _, err := unix.Poll(poll, 5000); err != nil {
		return err
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

func TestADestinationIsConnectedToAndNothingElse(t *testing.T) {
	testkit.NoLeaks(t)
	granted, accepted := listen(t, "tcp4", "127.0.0.1:0")
	port := granted.Port()
	other, _ := listen(t, "tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port).String())
	unlisted, unwanted := listen(t, "tcp4", "127.0.0.1:0")
	mapped := netip.AddrPortFrom(netip.AddrFrom16(granted.Addr().As16()), port)
	refused := netip.AddrPortFrom(granted.Addr(), 1)
	require.NoError(t, dial(other, 0), "the companions work")
	require.NoError(t, dial(unlisted, 0))
	require.Eventually(t, func() bool { return unwanted.Load() == 1 }, 5*time.Second, time.Millisecond)
	var got [7]error
	require.NoError(t, supervised(t, []netip.AddrPort{granted, refused}, func(*Supervisor) {
		got = [...]error{
			dial(granted, 0), dial(granted, unix.SOCK_NONBLOCK), dial(mapped, 0),
			dial(other, 0), dial(unlisted, 0), dial(unlisted, unix.SOCK_NONBLOCK), dial(refused, 0),
		}
	}))
	require.Equal(t, [7]error{nil, nil, nil, unix.EACCES, unix.EACCES, unix.EACCES, unix.ECONNREFUSED}, got)
	require.Eventually(t, func() bool { return accepted.Load() == 3 }, 5*time.Second, time.Millisecond)
	require.EqualValues(t, 1, unwanted.Load(), "the companion's")
}

func TestADestinationOfIPv6(t *testing.T) {
	granted, _ := listen(t, "tcp6", "[::1]:0")
	four, _ := listen(t, "tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), granted.Port()).String())
	var got [2]error
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(*Supervisor) {
		got = [...]error{dial(granted, 0), dial(four, 0)}
	}))
	require.Equal(t, [2]error{nil, unix.EACCES}, got)
}

// What is no connect of a TCP socket to a destination goes on as it was.
func TestOtherConnectsGoOn(t *testing.T) {
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	to := sockaddr(granted)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	var got []error
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(*Supervisor) {
		got = append(
			got,
			unix.Connect(-1, to),
			unix.Connect(int(file.Fd()), to),
			raw(unix.SYS_CONNECT, bad, 0, 16)(),  // no address
			raw(unix.SYS_CONNECT, bad, 1, 16)(),  // not its own memory
			raw(unix.SYS_CONNECT, 0, 1, 1<<20)(), // longer than any
			withTCP(func(fd int) error { return raw(unix.SYS_CONNECT, uintptr(fd), 0, 0)() }),
		)
	}))
	for i, err := range got {
		require.Error(t, err, i)
		require.NotErrorIs(t, err, unix.ENOSYS, i)
	}
	require.ErrorIs(t, got[0], unix.EBADF)
}

// A thread rewrites the address while a connect is being decided: it never gets
// anywhere else.
func TestAnAddressThatChangesGetsNowhereElse(t *testing.T) {
	testkit.NoLeaks(t)
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	secret, reached := listen(t, "tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), granted.Port()).String())
	const tries = 10_000
	var succeeded int
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(*Supervisor) {
		address := sockaddr(granted).(*unix.SockaddrInet4)
		// What the kernel is shown is a field of it, which is written here behind
		// the compiler's back, as a thread of another language would.
		raw, _ := reflect.TypeOf(*address).FieldByName("raw")
		place := reflect.ValueOf(address).Pointer() + raw.Offset + 4 // sin_addr
		write := func(to netip.AddrPort) {
			b := to.Addr().As4()
			local := []unix.Iovec{{Base: &b[0]}}
			local[0].SetLen(len(b))
			_, err := unix.ProcessVMWritev(os.Getpid(), local, []unix.RemoteIovec{{Base: place, Len: len(b)}}, 0)
			if err != nil {
				panic(err)
			}
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					write(secret)
					write(granted)
				}
			}
		}()
		for range tries {
			if withTCP(func(fd int) error { return unix.Connect(fd, address) }) == nil {
				succeeded++
			}
		}
		close(stop)
		<-stopped
	}))
	require.Zero(t, reached.Load())
	require.NotZero(t, succeeded, "an attack on nothing")
	require.Less(t, succeeded, tries, "an attack on nothing")
}

// full returns the address of a listener whose queue is full: the next connect
// waits for a minute.
func full(t *testing.T) netip.AddrPort {
	t.Helper()
	to := quiet(t, 0)
	for range 2 {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Close(c) })
		require.ErrorIs(t, unix.Connect(c, sockaddr(to)), unix.EINPROGRESS)
	}
	return to
}

// quiet returns the address of a listener that takes no connection.
func quiet(t *testing.T, queue int) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(fd, queue))
	name, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*unix.SockaddrInet4).Port))
}

// A connect that waits does not keep the supervisor from ending.
func TestCloseEndsAConnectThatWaits(t *testing.T) {
	testkit.NoLeaks(t)
	to := full(t)
	begun := time.Now()
	var got error
	require.NoError(t, supervised(t, []netip.AddrPort{to}, func(s *Supervisor) {
		timer := time.AfterFunc(100*time.Millisecond, func() { _ = s.Close() })
		defer timer.Stop()
		got = dial(to, 0)
	}))
	require.Error(t, got)
	require.Less(t, time.Since(begun), 10*time.Second)
}

// idle returns a supervisor of nobody.
func idle(t *testing.T) *Supervisor {
	t.Helper()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	t.Cleanup(func() { _ = unix.Close(pipe[1]) })
	s, err := NewSupervisor(pipe[0], Grants{})
	require.NoError(t, err)
	return s
}

// endsSoon holds that the supervisor's connects end once they are told.
func endsSoon(t *testing.T, s *Supervisor) {
	t.Helper()
	begun := time.Now()
	require.NoError(t, s.Close())
	s.endConnects()
	require.Less(t, time.Since(begun), 10*time.Second)
}

// A shutdown before the connect does not end the connect: it takes another one.
func TestAConnectThatBeginsLateIsEnded(t *testing.T) {
	testkit.NoLeaks(t)
	to := full(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	s := idle(t)
	s.open[fd] = struct{}{}
	var got error
	s.connects.Go(func() {
		<-s.closed
		time.Sleep(50 * time.Millisecond)
		got = finished(fd, unix.Connect(fd, sockaddr(to)))
	})
	endsSoon(t, s)
	require.Error(t, got)
	require.NoError(t, unix.Close(fd))
}

// A child can make the last close of its socket wait for an hour, and let the
// supervisor be who makes it.
func TestALingeringCloseIsEnded(t *testing.T) {
	testkit.NoLeaks(t)
	to := quiet(t, 5)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Connect(fd, sockaddr(to)))
	require.NoError(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16)) // which nobody reads
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	require.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	s := idle(t)
	over := make(chan struct{})
	s.connects.Go(func() {
		defer close(over)
		s.letGo(fd)
	})
	select {
	case <-over:
		require.Fail(t, "an attack on nothing")
	case <-time.After(200 * time.Millisecond):
	}
	endsSoon(t, s)
}

// Without a supervisor nothing is connected.
func TestWithoutASupervisorConnectsFail(t *testing.T) {
	granted, accepted := listen(t, "tcp4", "127.0.0.1:0")
	var got error
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(s *Supervisor) {
		_ = s.Close()
		got = dial(granted, 0)
	}))
	require.ErrorIs(t, got, unix.ENOSYS)
	require.Zero(t, accepted.Load())
}

// What is refused is counted, each destination once, and what is not refused is not.
func TestRefusalsAreCounted(t *testing.T) {
	testkit.NoLeaks(t)
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	other := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), granted.Port())
	var got []domain.Refusal
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(s *Supervisor) {
		require.NoError(t, dial(granted, 0))
		require.Empty(t, s.Refused())
		for range 3 {
			require.ErrorIs(t, dial(other, 0), unix.EACCES)
		}
		require.ErrorIs(t, unix.Connect(-1, sockaddr(other)), unix.EBADF, "nothing was refused")
		_, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.ErrorIs(t, err, unix.EPERM)
		got = s.Refused()
	}))
	require.Equal(t, []domain.Refusal{
		{Network: domain.NetworkTCP, Address: other.String(), Count: 3},
		{Network: domain.NetworkUDP, Count: 1},
	}, got)
}

// A child that tries every port fills no memory.
func TestRefusalsAreBounded(t *testing.T) {
	testkit.NoLeaks(t)
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	var got []domain.Refusal
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(s *Supervisor) {
		for port := uint16(1); port <= 2000; port++ {
			require.ErrorIs(t, dial(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port), 0), unix.EACCES)
		}
		got = s.Refused()
	}))
	require.Len(t, got, maxRefusals+1)
	require.Equal(t, domain.Refusal{Network: domain.NetworkTCP, Address: "127.0.0.2:1", Count: 1}, got[0])
	require.Equal(t, domain.Refusal{Count: 2000 - maxRefusals}, got[maxRefusals])
}

// A link-local address binds a socket of IPv6 to an interface, as the options do that
// the filter refuses, and also if nothing is there. What is bound to one does not get
// to the host that the plan means.
func TestASocketThatIsBoundToAnInterfaceReachesNoDestination(t *testing.T) {
	testkit.NoLeaks(t)
	granted, accepted := listen(t, "tcp4", "127.0.0.1:0")
	port, _ := listen(t, "tcp6", "[::]:0")
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	nowhere := &unix.SockaddrInet6{ZoneId: uint32(lo.Index), Addr: netip.MustParseAddr("fe80::77").As16()}
	nobody := &unix.SockaddrInet6{Port: int(port.Port()), ZoneId: nowhere.ZoneId, Addr: nowhere.Addr}
	mapped := sockaddr(netip.AddrPortFrom(netip.AddrFrom16(granted.Addr().As16()), granted.Port()))
	end := func(fd int) error { return connectAs(fd, make([]byte, unix.SizeofSockaddrInet4)) }
	ways := map[string]func(fd int) error{
		"bind":           func(fd int) error { _ = unix.Bind(fd, nowhere); return nil },
		"connect":        func(fd int) error { _ = unix.Connect(fd, nobody); return nil },
		"bind and end":   func(fd int) error { _ = unix.Bind(fd, nowhere); return end(fd) },
		"connect and it": func(fd int) error { _ = unix.Connect(fd, nobody); return end(fd) },
		"freely": func(fd int) error {
			if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1); err != nil {
				return err
			}
			return unix.Bind(fd, nowhere)
		},
	}
	try := func(first func(fd int) error) (bound int, err error) {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		if err := first(fd); err != nil {
			return 0, err
		}
		if bound, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err != nil {
			return 0, err
		}
		return bound, unix.Connect(fd, mapped)
	}
	s := newUnixStage(t, "unix")
	for name, plan := range map[string]domain.SandboxPlan{"Landlock decides": plan, "all is answered": s.plan()} {
		t.Run(name, func(t *testing.T) {
			before := accepted.Load()
			bound, errs := map[string]int{}, map[string]error{}
			var free error
			plan := plan.WithDestinations(granted).WithConnectTCP(port.Port()).WithBindTCP(port.Port())
			require.NoError(t, supervisedUnder(t, plan, func(*Supervisor) {
				for way, first := range ways {
					bound[way], errs[way] = try(first)
				}
				_, free = try(func(int) error { return nil })
			}))
			require.NoError(t, free)
			reached := before + 1
			for way := range ways {
				if name == "Landlock decides" && strings.HasPrefix(way, "connect") {
					require.NoError(t, errs[way], "Landlock has refused that connect before it did anything")
					reached++
					continue
				}
				require.Equal(t, lo.Index, bound[way], way)
				require.ErrorIs(t, errs[way], unix.EACCES, way)
			}
			require.Eventually(t, func() bool { return accepted.Load() == reached }, 5*time.Second, time.Millisecond)
		})
	}
}

// It is looked at again behind the connect, for what another thread does between.
func TestAnInterfaceThatComesMeanwhileLeadsNowhere(t *testing.T) {
	testkit.NoLeaks(t)
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	mapped := sockaddr(netip.AddrPortFrom(netip.AddrFrom16(granted.Addr().As16()), granted.Port()))
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	for name, bind := range map[string]func(fd int){
		"nothing": func(int) {},
		"a bind": func(fd int) {
			_ = unix.Bind(fd, &unix.SockaddrInet6{ZoneId: uint32(lo.Index), Addr: netip.MustParseAddr("fe80::77").As16()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(fd)
			var connected error
			err = byRoutes(fd, func() error {
				bind(fd)
				connected = unix.Connect(fd, mapped)
				return connected
			})
			require.NoError(t, connected)
			_, peer := unix.Getpeername(fd)
			if name == "nothing" {
				require.NoError(t, err)
				require.NoError(t, peer)
				return
			}
			require.ErrorIs(t, err, unix.EACCES)
			require.ErrorIs(t, peer, unix.ENOTCONN, "the connection is ended")
		})
	}
}

// The trees of all sessions together cannot take more threads than a process may have,
// and none of them what another one needs.
func TestTheConnectsOfAllTreesAreBounded(t *testing.T) {
	testkit.NoLeaks(t)
	granted, _ := listen(t, "tcp4", "127.0.0.1:0")
	for range sharedConnects {
		shared <- struct{}{}
	}
	room := func() { <-shared }
	var own, waits, ended error
	var waited time.Duration
	require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(s *Supervisor) {
		own = dial(granted, 0)
		for range ownConnects {
			s.own <- struct{}{}
		}
		begun := time.Now()
		timer := time.AfterFunc(200*time.Millisecond, room)
		waits = dial(granted, 0)
		waited = time.Since(begun)
		timer.Stop()
		shared <- struct{}{}
		timer = time.AfterFunc(200*time.Millisecond, func() { _ = s.Close() })
		ended = dial(granted, 0)
		timer.Stop()
	}))
	for range sharedConnects {
		room()
	}
	require.NoError(t, own, "beside what the others have taken")
	require.NoError(t, waits)
	require.GreaterOrEqual(t, waited, 200*time.Millisecond)
	require.Error(t, ended, "it does not keep the supervisor from ending")
	require.Empty(t, shared)
}

// A socket may have got its options where no filter refuses them.
func TestASocketThatIsLedPastItsHostReachesNoDestination(t *testing.T) {
	testkit.NoLeaks(t)
	granted, accepted := listen(t, "tcp4", "127.0.0.1:0")
	mapped := sockaddr(netip.AddrPortFrom(netip.AddrFrom16(granted.Addr().As16()), granted.Port()))
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	ipOptions := string([]byte{7, 7, 4, 0, 0, 0, 0, 0})                            // to record the route: to choose it takes CAP_NET_RAW
	routing := string(append([]byte{0, 2, 4, 0, 0, 0, 0, 0}, make([]byte, 16)...)) // segments, one of them
	ways := map[string]func(fd int) error{
		"an interface":  func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, lo.Index) },
		"no gateway":    func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DONTROUTE, 1) },
		"options of IP": func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_IP, unix.IP_OPTIONS, ipOptions) },
		"a routing header": func(fd int) error {
			return unix.SetsockoptString(fd, unix.SOL_IPV6, unix.IPV6_RTHDR, routing)
		},
		"": func(int) error { return nil },
	}
	for family, to := range map[int]unix.Sockaddr{unix.AF_INET: sockaddr(granted), unix.AF_INET6: mapped} {
		for way, lead := range ways {
			if family == unix.AF_INET && way == "a routing header" {
				continue // which IPv4 has not
			}
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, lead(fd), way)
			var got error
			require.NoError(t, supervised(t, []netip.AddrPort{granted}, func(*Supervisor) { got = unix.Connect(fd, to) }))
			require.NoError(t, unix.Close(fd))
			if way == "" {
				require.NoError(t, got)
			} else {
				require.ErrorIs(t, got, unix.EACCES, way)
			}
		}
	}
	require.Eventually(t, func() bool { return accepted.Load() == 2 }, 5*time.Second, time.Millisecond)
}
