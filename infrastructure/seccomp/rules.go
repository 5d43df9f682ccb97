package seccomp

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"golang.org/x/net/bpf"
)

// The actions. The numbers here and below are the kernel's, and the same on
// both architectures; they are written down because a program for either is
// assembled and tested on every system.
const (
	allow action = 0x7fff_0000 // SECCOMP_RET_ALLOW
	eperm action = errno | 1   // EPERM
	nosys action = errno | 38  // ENOSYS
	ask   action = 0x7fc0_0000 // SECCOMP_RET_USER_NOTIF
	kill  action = 0x8000_0000 // SECCOMP_RET_KILL_PROCESS
	errno        = 0x0005_0000 // SECCOMP_RET_ERRNO
	last         = 471         // the newest call that was looked at; the tests hold it against x/sys
	x32          = 0x4000_0000 // __X32_SYSCALL_BIT
	none         = -1          // a call that an architecture does not have
)

// Address families, socket types and protocols (linux/socket.h, linux/net.h,
// linux/in.h).
const (
	afUnix, afInet, afInet6, afNetlink = 1, 2, 10, 16

	sockStream, sockDgram, sockRaw, sockSeqpacket = 1, 2, 3, 5

	// typeBits leaves out SOCK_CLOEXEC and SOCK_NONBLOCK.
	typeBits = allBits &^ (0x80000 | 0x800)

	protoDefault, protoTCP, protoUDP, netlinkRoute = 0, 6, 17, 0
)

const (
	msgFastOpen = 0x2000_0000

	tcpFastOpenConnect, tcpULP = 30, 31

	// Levels of socket options, and the options that choose a socket's way.
	solIP, solSocket, solIPv6 = 0, 1, 41

	soDontRoute, soBindToDevice, soBindToIfindex = 5, 25, 62

	ipOptions, ipUnicastIf = 4, 50

	ipv6OldPktOptions, ipv6PktInfo, ipv6RtHdr, ipv6UnicastIf = 6, 50, 57, 76

	// namespaces are CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and
	// NEWNET. (CLONE_NEWTIME cannot be asked for with clone.)
	namespaces = 0x7e02_0000
	// cloneParent would make the new process a child of the orchestrator, which
	// does not know it and never reaps it.
	cloneParent = 0x8000

	setIDBits = 0o6000 // S_ISUID, S_ISGID
	// creates are O_CREAT and the bit of O_TMPFILE: without one of them open
	// does not look at its mode, which may then be anything.
	creates = 0o100 | 0o20000000

	ptraceTraceMe = 0

	personalityQuery, addrNoRandomize = 0xffff_ffff, 0x004_0000

	atEmptyPath = 0x1000

	tiocSTI, tiocLinux, tiocSetD = 0x5412, 0x541c, 0x5423
)

// variant is what of a plan changes the filter.
type variant struct {
	udp    bool // UDP is allowed
	unix   bool // unix sockets may be made; which may be connected to, is not for the filter
	listen bool // listen(2) is allowed
	// asks says that connect(2) asks the supervisor, see Supervisor, and so does
	// what asks for a UDP socket where UDP is denied.
	asks bool
	// named says that unix sockets may be made that only the supervisor connects:
	// streams and sequenced packets, which reach nothing but by connect(2). With it
	// comes asks.
	named bool
}

// rule is a system call with its number per architecture.
type rule struct {
	name         string
	amd64, arm64 int
	then         decision
}

func is(arg int, values ...uint32) *test {
	return &test{arg: arg, mask: allBits, values: values, yes: allow, no: eperm}
}

// lacks allows a call if none of the bits is set.
func lacks(arg int, bits uint32) *test {
	return &test{arg: arg, mask: bits, values: []uint32{0}, yes: allow, no: eperm}
}

// when returns the test with another decision where it holds, and otherwise
// where it does not.
func (t *test) when(yes decision) *test     { t.yes = yes; return t }
func (t *test) otherwise(no decision) *test { t.no = no; return t }

// onType tests the type of a socket.
func onType(values ...uint32) *test {
	t := is(1, values...)
	t.mask = typeBits
	return t
}

// sockets is the allow-list of socket(2). TCP is always on it, since its ports
// are Landlock's. A protocol of 0 is the type's own: with another one a stream
// would be MPTCP, SCTP or SMC, whose connects Landlock does not see, and a
// datagram UDP-Lite or ICMP. Netlink is for asking, which runtimes do at their
// start (which addresses there are); changing anything needs CAP_NET_ADMIN.
//
// A unix socket cannot be told by its path here: connect(2) has that behind a
// pointer. So where none may be connected to, none can be made; and where some may
// be, by name, none that sends to a path without connecting, as datagrams do.
func sockets(v variant) decision {
	inet := onType(sockStream).when(is(2, protoDefault, protoTCP))
	datagrams := is(2, protoDefault, protoUDP)
	switch {
	case v.udp:
		inet.otherwise(onType(sockDgram).when(datagrams))
	case v.asks: // so that it is told of: this is how names are resolved
		inet.otherwise(onType(sockDgram).when(datagrams.when(ask)))
	}
	other := is(0, afNetlink).when(onType(sockDgram, sockRaw).when(is(2, netlinkRoute)))
	switch {
	case v.unix:
		other.otherwise(is(0, afUnix).when(onType(sockStream, sockDgram, sockSeqpacket)))
	case v.named:
		other.otherwise(is(0, afUnix).when(onType(sockStream, sockSeqpacket)))
	}
	return is(0, afInet, afInet6).when(inet).otherwise(other)
}

// pairs is the allow-list of socketpair(2), which runtimes use as pipes. A pair
// of datagram sockets can send to any path.
func pairs(v variant) decision {
	types := onType(sockStream, sockSeqpacket)
	if v.unix {
		types = onType(sockStream, sockSeqpacket, sockDgram)
	}
	return is(0, afUnix).when(types)
}

// options refuses what turns a TCP socket into one that connects by other ways:
// Fast Open, and the upper layer protocols, one of which is SMC (the other,
// kernel TLS, has a fallback everywhere).
//
// Where only destinations are reached, it also refuses what leads a connect to an
// address past the host that has it: source routes and routing headers, whose
// next hop sees the packets first, and the choice of an interface, by which even
// 127.0.0.1 is looked for on the network.
func options(v variant) decision {
	tcp := is(2, tcpFastOpenConnect, tcpULP).when(eperm).otherwise(allow)
	if !v.asks {
		return is(1, protoTCP).when(tcp).otherwise(allow)
	}
	socket := is(2, soDontRoute, soBindToDevice, soBindToIfindex).when(eperm).otherwise(allow)
	ip := is(2, ipOptions, ipUnicastIf).when(eperm).otherwise(allow)
	ipv6 := is(2, ipv6OldPktOptions, ipv6PktInfo, ipv6RtHdr, ipv6UnicastIf).when(eperm).otherwise(allow)
	return is(1, protoTCP).when(tcp).
		otherwise(is(1, solSocket).when(socket).
			otherwise(is(1, solIP).when(ip).
				otherwise(is(1, solIPv6).when(ipv6).otherwise(allow))))
}

// tracing is what a spawn needs: a child is born stopped. Debuggers need more, and
// do not work. The request is a long, so its upper half counts.
func tracing() decision {
	whole := &test{high: true, mask: allBits, values: []uint32{0}, no: eperm}
	whole.yes = is(0, ptraceTraceMe)
	return whole
}

// rules is the filter: what is not always allowed.
func rules(v variant) []rule {
	listening := decision(eperm)
	if v.listen {
		listening = allow
	}
	connecting := decision(allow)
	if v.asks {
		connecting = ask
	}
	opens := func(flags, mode int) decision {
		return lacks(flags, creates).otherwise(lacks(mode, setIDBits))
	}
	// Calls that are tested alike share a test, so that the program has it once.
	mode1, mode2, fastOpen3 := lacks(1, setIDBits), lacks(2, setIDBits), lacks(3, msgFastOpen)
	return []rule{
		// The network.
		{"socket", 41, 198, sockets(v)},
		{"socketpair", 53, 199, pairs(v)},
		{"connect", 42, 203, connecting},
		{"listen", 50, 201, listening}, // binds by itself, to a port that Landlock is not asked about
		{"sendto", 44, 206, fastOpen3},
		{"sendmsg", 46, 211, lacks(2, msgFastOpen)},
		{"sendmmsg", 307, 269, fastOpen3},
		{"setsockopt", 54, 208, options(v)},

		// Other processes, and what reaches around every check.
		{"ptrace", 101, 117, tracing()},
		{"process_vm_readv", 310, 270, eperm},
		{"process_vm_writev", 311, 271, eperm},
		{"process_madvise", 440, 440, eperm},
		{"pidfd_getfd", 438, 438, eperm},
		{"kcmp", 312, 272, eperm},
		{"prlimit64", 302, 261, is(0, 0)}, // a limit on processor time makes the kernel end the process
		{"io_uring_setup", 425, 425, nosys},
		{"io_uring_enter", 426, 426, nosys},
		{"io_uring_register", 427, 427, nosys},
		{"personality", 135, 92, is(0, 0, personalityQuery, addrNoRandomize)}, // the last for race detectors

		// Namespaces, in which a process has capabilities again.
		{"clone", 56, 220, lacks(0, namespaces|cloneParent)},
		{"clone3", 435, 435, nosys},
		{"unshare", 272, 97, eperm},
		{"setns", 308, 268, eperm},

		// Mounts.
		{"mount", 165, 40, eperm},
		{"umount2", 166, 39, eperm},
		{"pivot_root", 155, 41, eperm},
		{"chroot", 161, 51, eperm},
		{"open_tree", 428, 428, eperm},
		{"move_mount", 429, 429, eperm},
		{"fsopen", 430, 430, eperm},
		{"fsconfig", 431, 431, eperm},
		{"fsmount", 432, 432, eperm},
		{"fspick", 433, 433, eperm},
		{"mount_setattr", 442, 442, eperm},
		{"open_tree_attr", 467, 467, eperm},

		// The kernel itself.
		{"bpf", 321, 280, eperm},
		{"perf_event_open", 298, 241, eperm},
		{"userfaultfd", 323, 282, eperm},
		{"syslog", 103, 116, eperm},
		{"kexec_load", 246, 104, eperm},
		{"kexec_file_load", 320, 294, eperm},
		{"init_module", 175, 105, eperm},
		{"finit_module", 313, 273, eperm},
		{"delete_module", 176, 106, eperm},
		{"swapon", 167, 224, eperm},
		{"swapoff", 168, 225, eperm},
		{"reboot", 169, 142, eperm},
		{"sethostname", 170, 161, eperm},
		{"setdomainname", 171, 162, eperm},
		{"iopl", 172, none, eperm},
		{"ioperm", 173, none, eperm},
		{"settimeofday", 164, 170, eperm},
		{"acct", 163, 89, eperm},
		{"quotactl", 179, 60, eperm},
		{"quotactl_fd", 443, 443, eperm},
		{"open_by_handle_at", 304, 265, eperm},
		// Without a table entry in today's kernels; between calls that are refused.
		{"create_module", 174, none, eperm},
		{"get_kernel_syms", 177, none, eperm},
		{"query_module", 178, none, eperm},

		// Objects of the host that have no path: System V, POSIX queues, keys.
		{"shmget", 29, 194, eperm},
		{"shmat", 30, 196, eperm},
		{"shmctl", 31, 195, eperm},
		{"shmdt", 67, 197, eperm},
		{"semget", 64, 190, eperm},
		{"semop", 65, 193, eperm},
		{"semctl", 66, 191, eperm},
		{"semtimedop", 220, 192, eperm},
		{"msgget", 68, 186, eperm},
		{"msgsnd", 69, 189, eperm},
		{"msgrcv", 70, 188, eperm},
		{"msgctl", 71, 187, eperm},
		{"mq_open", 240, 180, eperm},
		{"mq_unlink", 241, 181, eperm},
		{"mq_timedsend", 242, 182, eperm},
		{"mq_timedreceive", 243, 183, eperm},
		{"mq_notify", 244, 184, eperm},
		{"mq_getsetattr", 245, 185, eperm},
		{"add_key", 248, 217, eperm},
		{"request_key", 249, 218, eperm},
		{"keyctl", 250, 219, eperm},

		// Programs that would run with another user's rights.
		{"chmod", 90, none, mode1},
		{"fchmod", 91, 52, mode1},
		{"fchmodat", 268, 53, mode2},
		{"fchmodat2", 452, 452, mode2},
		{"creat", 85, none, mode1},
		{"mknod", 133, none, mode1},
		{"mknodat", 259, 33, mode2},
		{"open", 2, none, opens(1, 2)},
		{"openat", 257, 56, opens(2, 3)},
		{"openat2", 437, 437, nosys}, // its mode is behind a pointer

		// A program in memory, which no rule of Landlock is about. It can still be
		// run by its name in /proc.
		{"execveat", 322, 281, lacks(4, atEmptyPath)},

		// Input pushed into a terminal, for whoever reads it after the child.
		{"ioctl", 16, 29, is(1, tiocSTI, tiocLinux, tiocSetD).when(eperm).otherwise(allow)},
	}
}

// architecture is one that there is a program for.
type architecture struct {
	name   string // as Go calls it
	audit  uint32 // AUDIT_ARCH_… (linux/audit.h)
	number func(rule) int
	// foreign is the first number that belongs to another calling convention
	// with the same audit value, 0 if there is none.
	foreign uint32
}

var architectures = []architecture{
	{"amd64", 0xc000_003e, func(r rule) int { return r.amd64 }, x32},
	{"arm64", 0xc000_00b7, func(r rule) int { return r.arm64 }, 0},
}

// architectureOf returns the architecture of that name.
func architectureOf(name string) (architecture, error) {
	for _, a := range architectures {
		if a.name == name {
			return a, nil
		}
	}
	return architecture{}, fmt.Errorf("there is no seccomp filter for %s; there is for amd64 and arm64", name)
}

// program assembles the filter of a variant.
func (a architecture) program(v variant) []bpf.Instruction {
	var entries []entry
	for _, r := range rules(v) {
		if n := a.number(r); n != none && r.then != allow {
			entries = append(entries, entry{uint32(n), uint32(n), r.then})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.first, b.first) })
	unknown := entry{last + 1, math.MaxUint32, nosys}
	if a.foreign != 0 {
		unknown.last = a.foreign - 1
		entries = append(entries, unknown, entry{a.foreign, math.MaxUint32, kill})
	} else {
		entries = append(entries, unknown)
	}
	return assemble(a.audit, entries)
}
