//go:build amd64 || arm64

package escape

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// The protocols and families that package unix does not name.
const (
	protoDCCP    = 33
	protoSCTP    = 132
	protoUDPLite = 136
	protoMPTCP   = 262
	sockDCCP     = 6
	familySMC    = 43
	familyXDP    = 44
	familyKey    = 15
)

// socketTry makes a socket and lets it reach out.
func socketTry(family, kind, proto int, to func(*child) (unix.Sockaddr, error), reach func(c *child, fd int, to unix.Sockaddr) error) func(*child) error {
	return func(c *child) error {
		addr, err := to(c)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return err
		}
		return errors.Join(reach(c, fd, addr), unix.Close(fd))
	}
}

// The ways to reach out.

func connectAndWrite(c *child, fd int, to unix.Sockaddr) error {
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	_, err := unix.Write(fd, c.token())
	return err
}

// connectShort connects to an address of IPv6 that ends before its scope, which the
// kernel takes (SIN6_LEN_RFC2133).
func connectShort(c *child, fd int, to unix.Sockaddr) error {
	address := rawSockaddr(to)
	address = address[:len(address)-4]
	m, err := c.mem()
	if err != nil {
		return err
	}
	at, err := m.put(address)
	if err != nil {
		return err
	}
	if _, err := raw(unix.SYS_CONNECT, uintptr(fd), at, uintptr(len(address))); err != nil {
		return err
	}
	_, err = unix.Write(fd, c.token())
	return err
}

func sendto(flags int) func(c *child, fd int, to unix.Sockaddr) error {
	return func(c *child, fd int, to unix.Sockaddr) error { return unix.Sendto(fd, c.token(), flags, to) }
}

func sendmsg(flags int) func(c *child, fd int, to unix.Sockaddr) error {
	return func(c *child, fd int, to unix.Sockaddr) error {
		_, err := unix.SendmsgN(fd, c.token(), nil, to, flags)
		return err
	}
}

// sendmmsg has no function in package unix (struct mmsghdr, sendmmsg(2)).
func sendmmsg(flags int) func(c *child, fd int, to unix.Sockaddr) error {
	return func(c *child, fd int, to unix.Sockaddr) error {
		name := rawSockaddr(to)
		m, err := c.mem()
		if err != nil {
			return err
		}
		nameAt, err := m.put(name)
		if err != nil {
			return err
		}
		dataAt, err := m.put(c.token())
		if err != nil {
			return err
		}
		iov, err := m.put(words(uint64(dataAt), uint64(len(c.token()))))
		if err != nil {
			return err
		}
		// msg_name, msg_namelen, msg_iov, msg_iovlen, msg_control,
		// msg_controllen, msg_flags, and msg_len of mmsghdr.
		_, err = c.call(unix.SYS_SENDMMSG, fd, words(uint64(nameAt), uint64(len(name)), uint64(iov), 1, 0, 0, 0, 0), 1, flags)
		return err
	}
}

// words encodes numbers as the kernel has them in memory.
func words(values ...uint64) []byte {
	b := make([]byte, 0, 8*len(values))
	for _, v := range values {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

// rawSockaddr encodes an address as the kernel has it.
func rawSockaddr(to unix.Sockaddr) []byte {
	family := func(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }
	switch a := to.(type) {
	case *unix.SockaddrInet4:
		b := binary.BigEndian.AppendUint16(family(unix.AF_INET), uint16(a.Port))
		return append(append(b, a.Addr[:]...), make([]byte, 8)...)
	case *unix.SockaddrInet6:
		b := binary.BigEndian.AppendUint16(family(unix.AF_INET6), uint16(a.Port))
		b = append(append(b, make([]byte, 4)...), a.Addr[:]...)
		return binary.NativeEndian.AppendUint32(b, a.ZoneId)
	case *unix.SockaddrUnix:
		name := []byte(a.Name)
		if name[0] == '@' {
			name[0] = 0
		} else {
			name = append(name, 0)
		}
		return append(family(unix.AF_UNIX), name...)
	}
	return nil
}

func (c *child) inet4(key string, last byte) (unix.Sockaddr, error) {
	port, err := c.number(key)
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, last}}, err
}

func to4(key string) func(*child) (unix.Sockaddr, error) {
	return func(c *child) (unix.Sockaddr, error) { return c.inet4(key, 1) }
}

func to6(key string) func(*child) (unix.Sockaddr, error) {
	return func(c *child) (unix.Sockaddr, error) {
		port, err := c.number(key)
		return &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}, err
	}
}

// toMapped is an IPv4 address as an IPv6 one.
func toMapped(key string) func(*child) (unix.Sockaddr, error) {
	return func(c *child) (unix.Sockaddr, error) {
		port, err := c.number(key)
		return &unix.SockaddrInet6{Port: port, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}, err
	}
}

func toPath(name string) func(*child) (unix.Sockaddr, error) {
	return func(c *child) (unix.Sockaddr, error) {
		// The path of a unix socket is short, that of the stage may not be.
		return &unix.SockaddrUnix{Name: name}, unix.Chdir(c.values["run"])
	}
}

func toAbstract(name string) func(*child) (unix.Sockaddr, error) {
	return func(c *child) (unix.Sockaddr, error) {
		return &unix.SockaddrUnix{Name: "@" + c.values["abstract"] + "-" + name}, nil
	}
}

func sending(name string, p domain.Property, try func(*child) error, alone ...Layer) Attempt {
	return Attempt{Name: name, Class: ClassNetwork, Property: p, Alone: alone, try: try, sends: true}
}

func (a Attempt) ifGranted(granted func(domain.SandboxPlan, *Stage) bool) Attempt {
	a.granted = granted
	return a
}

func grantsPort(key string) func(domain.SandboxPlan, *Stage) bool {
	return func(p domain.SandboxPlan, s *Stage) bool {
		return slices.Contains(p.ConnectTCP(), uint16(s.port(key)))
	}
}

func grantsUDP(p domain.SandboxPlan, _ *Stage) bool { return p.UDP() }

func grantsUnix(p domain.SandboxPlan, s *Stage) bool {
	switch p.UnixSockets() {
	case domain.UnixSocketsAllow:
		return true
	case domain.UnixSocketsOwn:
		return covered(p, domain.AccessMakeSock, s.run)
	case domain.UnixSocketsDeny:
	}
	return false
}

func grantsListen(p domain.SandboxPlan, _ *Stage) bool {
	return len(p.BindTCP()) > 0 || p.UnixSockets() != domain.UnixSocketsDeny
}

func networkAttempts() []Attempt {
	const (
		stream, dgram = unix.SOCK_STREAM, unix.SOCK_DGRAM
		inet, inet6   = unix.AF_INET, unix.AF_INET6
		tcp, udp      = domain.PropertyTCP, domain.PropertyUDP
		others        = domain.PropertyOtherSockets
	)
	list := []Attempt{
		sending("tcp-connect", tcp, socketTry(inet, stream, 0, to4("tcp"), connectAndWrite), Landlock).ifGranted(grantsPort("tcp")),
		sending("tcp-connect-ipv6", tcp, socketTry(inet6, stream, 0, to6("tcp6"), connectAndWrite), Landlock).ifGranted(grantsPort("tcp6")),
		sending("tcp-connect-mapped", tcp, socketTry(inet6, stream, 0, toMapped("tcp"), connectAndWrite), Landlock).ifGranted(grantsPort("tcp")),
		sending("tcp-connect-short", tcp, socketTry(inet6, stream, 0, toMapped("tcp"), connectShort), Landlock).ifGranted(grantsPort("tcp")),
		sending("tcp-connect-short-ipv6", tcp, socketTry(inet6, stream, 0, to6("tcp6"), connectShort), Landlock).ifGranted(grantsPort("tcp6")),
		sending("tcp-granted-port-elsewhere", tcp, socketTry(inet, stream, 0, func(c *child) (unix.Sockaddr, error) {
			return c.inet4("other-address", 2)
		}, connectAndWrite)).limited("a TCP port rule is no address rule (SECURITY.md, A port is not a host)"),
		sending("mptcp-connect", others, socketTry(inet, stream, protoMPTCP, to4("tcp"), connectAndWrite), Seccomp),
		sending("mptcp-connect-ipv6", others, socketTry(inet6, stream, protoMPTCP, to6("tcp6"), connectAndWrite), Seccomp),
		sending("fast-open-sendto", others, socketTry(inet, stream, 0, to4("tcp"), sendto(unix.MSG_FASTOPEN)), Seccomp),
		sending("fast-open-sendmsg", others, socketTry(inet, stream, 0, to4("tcp"), sendmsg(unix.MSG_FASTOPEN)), Seccomp),
		sending("fast-open-sendmmsg", others, socketTry(inet, stream, 0, to4("tcp"), sendmmsg(unix.MSG_FASTOPEN)), Seccomp),
		sending("fast-open-ipv6", others, socketTry(inet6, stream, 0, to6("tcp6"), sendto(unix.MSG_FASTOPEN)), Seccomp),
		sending("fast-open-connect", others, socketTry(inet, stream, 0, to4("tcp"), func(c *child, fd int, to unix.Sockaddr) error {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
				return err
			}
			return connectAndWrite(c, fd, to)
		}), Landlock, Seccomp),
		sending("udp-sendto", udp, socketTry(inet, dgram, 0, to4("udp"), sendto(0)), Seccomp).ifGranted(grantsUDP),
		sending("udp-connect", udp, socketTry(inet, dgram, 0, to4("udp"), connectAndWrite), Seccomp).ifGranted(grantsUDP),
		sending("udp-sendmsg", udp, socketTry(inet, dgram, 0, to4("udp"), sendmsg(0)), Seccomp).ifGranted(grantsUDP),
		sending("udp-sendmmsg", udp, socketTry(inet, dgram, 0, to4("udp"), sendmmsg(0)), Seccomp).ifGranted(grantsUDP),
		sending("udp-ipv6", udp, socketTry(inet6, dgram, 0, to6("udp6"), sendto(0)), Seccomp).ifGranted(grantsUDP),
		{Name: "tcp-bind", Class: ClassNetwork, Property: tcp, Alone: []Layer{Landlock}, try: socketTry(inet, stream, 0, to4("free"), bind),
			granted: func(p domain.SandboxPlan, s *Stage) bool { return slices.Contains(p.BindTCP(), uint16(s.port("free"))) }},
		{Name: "tcp-bind-listen", Class: ClassNetwork, Property: tcp, Alone: []Layer{Landlock, Seccomp}, try: socketTry(inet, stream, 0, to4("free"), func(c *child, fd int, to unix.Sockaddr) error {
			if err := unix.Bind(fd, to); err != nil {
				return err
			}
			return unix.Listen(fd, 1)
		}), granted: func(p domain.SandboxPlan, s *Stage) bool { return slices.Contains(p.BindTCP(), uint16(s.port("free"))) }},
		{Name: "listen-without-bind", Class: ClassNetwork, Property: others, Alone: []Layer{Seccomp}, try: socketTry(inet, stream, 0, to4("free"), func(_ *child, fd int, _ unix.Sockaddr) error {
			return unix.Listen(fd, 1)
		}), granted: grantsListen},
		{Name: "udp-bind", Class: ClassNetwork, Property: udp, Alone: []Layer{Seccomp}, try: socketTry(inet, dgram, 0, to4("free"), bind), granted: grantsUDP},
		{Name: "tcp-upper-layer", Class: ClassNetwork, Property: others, Alone: []Layer{Seccomp}, try: socketTry(inet, stream, 0, to4("granted"), func(_ *child, fd int, to unix.Sockaddr) error {
			// "tls" is built into many kernels; "smc" is the one that matters.
			err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "smc")
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTCONN) {
				return nil // the kernel took the call
			}
			return err
		})},
	}
	for _, s := range []struct {
		name                string
		family, kind, proto int
		alone               []Layer
	}{
		{"socket-udplite", inet, dgram, protoUDPLite, []Layer{Seccomp}},
		{"socket-dccp", inet, sockDCCP, protoDCCP, []Layer{Seccomp}},
		{"socket-sctp-stream", inet, stream, protoSCTP, []Layer{Seccomp}},
		{"socket-sctp-seqpacket", inet, unix.SOCK_SEQPACKET, protoSCTP, []Layer{Seccomp}},
		{"socket-smc", familySMC, stream, 0, []Layer{Seccomp}},
		{"socket-smc-inet", inet, stream, 256, []Layer{Seccomp}},
		{"socket-ping", inet, dgram, unix.IPPROTO_ICMP, []Layer{Seccomp}},
		{"socket-raw", inet, unix.SOCK_RAW, unix.IPPROTO_ICMP, []Layer{Seccomp, Privileges}},
		{"socket-raw-ipv6", inet6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, []Layer{Seccomp, Privileges}},
		{"socket-packet", unix.AF_PACKET, unix.SOCK_RAW, 0, []Layer{Seccomp, Privileges}},
		{"socket-key", familyKey, unix.SOCK_RAW, 2, []Layer{Seccomp, Privileges}},
		{"socket-vsock", unix.AF_VSOCK, stream, 0, []Layer{Seccomp}},
		{"socket-alg", unix.AF_ALG, unix.SOCK_SEQPACKET, 0, []Layer{Seccomp}},
		{"socket-xdp", familyXDP, unix.SOCK_RAW, 0, []Layer{Seccomp, Privileges}},
		{"socket-bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 1, []Layer{Seccomp}},
		{"socket-can", unix.AF_CAN, unix.SOCK_RAW, 1, []Layer{Seccomp}},
		{"socket-rds", unix.AF_RDS, unix.SOCK_SEQPACKET, 0, []Layer{Seccomp}},
		{"socket-tipc", unix.AF_TIPC, unix.SOCK_SEQPACKET, 0, []Layer{Seccomp}},
		{"socket-netlink-uevent", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT, []Layer{Seccomp}},
		{"socket-netlink-diag", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG, []Layer{Seccomp}},
		{"socket-netlink-generic", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC, []Layer{Seccomp}},
		{"socket-netlink-netfilter", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER, []Layer{Seccomp}},
		{"socket-netlink-audit", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT, []Layer{Seccomp}},
	} {
		list = append(list, Attempt{Name: s.name, Class: ClassNetwork, Property: others, Alone: s.alone, try: func(*child) error {
			return opened(unix.Socket(s.family, s.kind|unix.SOCK_CLOEXEC, s.proto))
		}})
	}
	list = append(list, Attempt{
		Name: "netlink-change-link", Class: ClassNetwork, Property: domain.PropertyPrivileges, Alone: []Layer{Privileges}, try: netlinkChange,
	})
	list = append(list, destinationAttempts()...)
	return append(list, unixSocketAttempts()...)
}

func destinationAttempts() []Attempt {
	const p = domain.PropertyDestinations
	connect := func(name string, last byte, key string, reach func(*child, int, unix.Sockaddr) error) Attempt {
		return sending(name, p, socketTry(unix.AF_INET, unix.SOCK_STREAM, 0, func(c *child) (unix.Sockaddr, error) { return c.inet4(key, last) }, reach))
	}
	works := connect("connect-to-destination", 1, "destination", connectAndWrite)
	waits := connect("connect-to-destination-without-blocking", 1, "destination", func(c *child, fd int, to unix.Sockaddr) error {
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 5000); err != nil {
			return err
		}
		_, err := unix.Write(fd, c.token())
		return err
	})
	works.Class, works.Works, waits.Class, waits.Works = ClassWork, true, ClassWork, true
	race := sending("destination-race", p, destinationRace)
	// With another interface than this one, the packets are for the host that is
	// behind it.
	interfaces := connect("destination-by-an-interface", 1, "destination", func(c *child, fd int, to unix.Sockaddr) error {
		if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo"); err != nil {
			return err
		}
		return connectAndWrite(c, fd, to)
	})
	zones := sending("destination-by-a-zone", p, socketTry(unix.AF_INET6, unix.SOCK_STREAM, 0, toMapped("destination"), connectByZone))
	return []Attempt{
		works, waits, race, interfaces, zones,
		connect("destination-port-elsewhere", 2, "other-destination", connectAndWrite),
		connect("destination-fast-open-elsewhere", 2, "other-destination", sendto(unix.MSG_FASTOPEN)).about(domain.PropertyOtherSockets, Seccomp),
		sending("destination-mptcp-elsewhere", domain.PropertyOtherSockets, socketTry(unix.AF_INET, unix.SOCK_STREAM, protoMPTCP, func(c *child) (unix.Sockaddr, error) {
			return c.inet4("other-destination", 2)
		}, connectAndWrite), Seccomp),
	}
}

// connectByZone connects when the socket is bound to an interface by the zone of an
// address to which it has tried to connect before, at a port that is granted.
func connectByZone(c *child, fd int, to unix.Sockaddr) error {
	port, err := c.number("granted")
	if err != nil {
		return err
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	nobody := &unix.SockaddrInet6{Port: port, ZoneId: uint32(lo.Index), Addr: [16]byte{0: 0xfe, 1: 0x80, 15: 0x77}}
	_ = unix.Connect(fd, nobody) // what it leaves behind is looked for
	switch index, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); {
	case err != nil:
		return err
	case index == 0:
		return errors.New("the zone has not bound the socket")
	}
	return connectAndWrite(c, fd, to)
}

// destinationRace connects to an address that turns, all the time, from the
// destination into another host's.
func destinationRace(c *child) error {
	port, err := c.number("other-destination")
	if err != nil {
		return err
	}
	good := rawSockaddr(&unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	bad := rawSockaddr(&unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 2}})
	return connectRace(c, unix.AF_INET, good, bad, func(peer unix.Sockaddr) bool {
		to, ok := peer.(*unix.SockaddrInet4)
		return ok && to.Addr[3] == 2
	})
}

// connectRace connects to an address that turns, all the time, from a good one into
// one of the same length that is out of bounds: whoever looks at it more than once can
// be fooled. It writes to what is out of bounds.
func connectRace(c *child, family int, good, bad []byte, outOfBounds func(peer unix.Sockaddr) bool) error {
	m, err := c.mem()
	if err != nil {
		return err
	}
	at, err := m.put(good)
	if err != nil {
		return err
	}
	defer m.turn(at, bad, good)()
	denied, connected := 0, 0
	for range 500 {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = raw(unix.SYS_CONNECT, uintptr(fd), at, uintptr(len(good)))
		var peer unix.Sockaddr
		if err == nil {
			peer, err = unix.Getpeername(fd)
		}
		switch {
		case errors.Is(err, unix.EACCES):
			denied++
		case err != nil:
			return err
		case outOfBounds(peer):
			_, err := unix.Write(fd, c.token())
			return errors.Join(err, unix.Close(fd))
		default:
			connected++
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	if denied == 0 || connected == 0 {
		return unavailableError("the race was never on")
	}
	return unix.EACCES
}

func bind(_ *child, fd int, to unix.Sockaddr) error { return unix.Bind(fd, to) }

// netlinkChange asks to change nothing of the loopback interface, which takes
// the right to change something (rtnetlink(7): RTM_NEWLINK).
func netlinkChange(*child) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	message := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(message[0:], uint32(len(message)))
	binary.NativeEndian.PutUint16(message[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(message[unix.SizeofNlMsghdr+4:], 1) // ifi_index: lo
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("an answer that was not expected")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func unixSocketAttempts() []Attempt {
	const (
		stream, dgram, seqpacket = unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET

		byPath, byName = domain.PropertyUnixSockets, domain.PropertyAbstractSockets
	)
	local := func(kind int, to func(*child) (unix.Sockaddr, error), reach func(*child, int, unix.Sockaddr) error) func(*child) error {
		return socketTry(unix.AF_UNIX, kind, 0, to, reach)
	}
	// paired is a datagram socket that came as one of a connected pair, which
	// socket(2) is not asked for.
	paired := func(kind int, reach func(*child, int, unix.Sockaddr) error, to func(*child) (unix.Sockaddr, error)) func(*child) error {
		return func(c *child) error {
			addr, err := to(c)
			if err != nil {
				return err
			}
			fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return reach(c, fds[0], addr)
		}
	}
	bus := func(c *child, fd int, to unix.Sockaddr) error {
		if err := unix.Connect(fd, to); err != nil {
			return err
		}
		if _, err := unix.Write(fd, append([]byte("\x00AUTH EXTERNAL 30\r\n"), c.token()...)); err != nil {
			return err
		}
		answer := make([]byte, 64)
		n, err := unix.Read(fd, answer)
		if err == nil && string(answer[:n]) != "OK\r\n" {
			err = errors.New("the bus does not answer")
		}
		return err
	}
	docker := func(c *child, fd int, to unix.Sockaddr) error {
		if err := unix.Connect(fd, to); err != nil {
			return err
		}
		_, err := unix.Write(fd, append([]byte("POST /containers/create HTTP/1.1\r\nHost: docker\r\n\r\n"), c.token()...))
		return err
	}
	list := []Attempt{
		sending("unix-stream", byPath, local(stream, toPath("stream"), connectAndWrite), Seccomp),
		sending("unix-seqpacket", byPath, local(seqpacket, toPath("seqpacket"), connectAndWrite), Seccomp),
		sending("unix-dgram-connect", byPath, local(dgram, toPath("dgram"), connectAndWrite), Seccomp),
		sending("unix-dgram-sendto", byPath, local(dgram, toPath("dgram"), sendto(0)), Seccomp),
		sending("unix-dgram-sendmsg", byPath, local(dgram, toPath("dgram"), sendmsg(0)), Seccomp),
		sending("unix-dgram-sendmmsg", byPath, local(dgram, toPath("dgram"), sendmmsg(0)), Seccomp),
		sending("unix-pair-sendto", byPath, paired(dgram, sendto(0), toPath("dgram")), Seccomp),
		sending("unix-pair-sendmsg", byPath, paired(dgram, sendmsg(0), toPath("dgram")), Seccomp),
		sending("unix-pair-reconnect", byPath, paired(dgram, connectAndWrite, toPath("dgram")), Seccomp),
		sending("unix-raw-pair-sendto", byPath, paired(unix.SOCK_RAW, sendto(0), toPath("dgram")), Seccomp),
		sending("docker-socket", byPath, local(stream, toPath("docker.sock"), docker), Seccomp),
		sending("session-bus", byPath, local(stream, toPath("bus"), bus), Seccomp),
		sending("abstract-stream", byName, local(stream, toAbstract("stream"), connectAndWrite), Landlock, Seccomp),
		sending("abstract-seqpacket", byName, local(seqpacket, toAbstract("seqpacket"), connectAndWrite), Landlock, Seccomp),
		sending("abstract-dgram-connect", byName, local(dgram, toAbstract("dgram"), connectAndWrite), Landlock, Seccomp),
		sending("abstract-dgram-sendto", byName, local(dgram, toAbstract("dgram"), sendto(0)), Landlock, Seccomp),
		sending("abstract-dgram-sendmmsg", byName, local(dgram, toAbstract("dgram"), sendmmsg(0)), Landlock, Seccomp),
		sending("abstract-pair-sendto", byName, paired(dgram, sendto(0), toAbstract("dgram")), Landlock, Seccomp),
	}
	for i := range list {
		list[i].Class, list[i].granted = ClassUnixSockets, grantsUnix
	}
	return list
}

func unixDestinationAttempts() []Attempt {
	const p = domain.PropertyUnixSockets
	stream := func(to func(*child) (unix.Sockaddr, error), reach func(*child, int, unix.Sockaddr) error) func(*child) error {
		return socketTry(unix.AF_UNIX, unix.SOCK_STREAM, 0, to, reach)
	}
	// linked is a link to a socket, made by the child where it can write.
	linked := func(name string) func(*child) (unix.Sockaddr, error) {
		return func(c *child) (unix.Sockaddr, error) {
			if err := os.Symlink(filepath.Join(c.values["run"], name), c.in("link-to-"+name)); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
			return &unix.SockaddrUnix{Name: "link-to-" + name}, unix.Chdir(c.values["work"])
		}
	}
	// magic goes by way of what only the caller itself has.
	magic := func(name string) func(*child) (unix.Sockaddr, error) {
		return func(c *child) (unix.Sockaddr, error) {
			return &unix.SockaddrUnix{Name: "/proc/self/cwd/" + name}, unix.Chdir(c.values["run"])
		}
	}
	works := func(name string, to func(*child) (unix.Sockaddr, error)) Attempt {
		a := sending(name, domain.PropertyDestinations, stream(to, connectAndWrite))
		a.Class, a.Works = ClassWork, true
		return a
	}
	list := []Attempt{
		works("connect-to-unix-destination", toPath(unixDestination)),
		works("connect-to-unix-destination-by-a-link", linked(unixDestination)),
		sending("unix-link-to-another", p, stream(linked("stream"), connectAndWrite), Seccomp),
		sending("unix-magic-link-to-another", p, stream(magic("stream"), connectAndWrite), Seccomp),
		sending("unix-destination-race", p, unixDestinationRace, Seccomp),
	}
	for i := range list {
		if !list[i].Works {
			list[i].Class, list[i].granted = ClassUnixSockets, grantsUnix
		}
	}
	return list
}

// unixDestinationRace is destinationRace for unix sockets.
func unixDestinationRace(c *child) error {
	if err := unix.Chdir(c.values["run"]); err != nil {
		return err
	}
	good, bad := rawSockaddr(&unix.SockaddrUnix{Name: unixDestination}), rawSockaddr(&unix.SockaddrUnix{Name: "stream"})
	return connectRace(c, unix.AF_UNIX, good, bad, func(peer unix.Sockaddr) bool {
		to, ok := peer.(*unix.SockaddrUnix)
		return ok && strings.HasSuffix(to.Name, "/stream")
	})
}
