package seccomp

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

var update = flag.Bool("update", false, "write the golden files")

var variants = []variant{
	{},
	{udp: true},
	{listen: true},
	{unix: true, listen: true},
	{udp: true, listen: true},
	{udp: true, unix: true, listen: true},
	{asks: true},
	{asks: true, named: true},
	{udp: true, unix: true, listen: true, asks: true},
}

func (v variant) String() string {
	s := ""
	for _, o := range []struct {
		on   bool
		name string
	}{{v.udp, "udp"}, {v.unix, "unix"}, {v.listen, "listen"}, {v.asks, "asks"}, {v.named, "named"}} {
		if o.on {
			s += "-" + o.name
		}
	}
	if s == "" {
		return "strict"
	}
	return s[1:]
}

// call is what the kernel shows to a filter.
type call struct {
	arch, number uint32
	args         [6]uint64
}

// filter is a program in the virtual machine.
type filter struct {
	testing.TB
	vm *bpf.VM
}

func newVM(tb testing.TB, program []bpf.Instruction) filter {
	tb.Helper()
	vm, err := bpf.NewVM(program)
	require.NoError(tb, err)
	return filter{tb, vm}
}

// run returns the action. The machine reads words in network order, and the
// kernel in its own; so the words are laid out, and each of them turned round.
func (f filter) run(c call) action {
	f.Helper()
	data := binary.BigEndian.AppendUint32(nil, c.number)
	data = binary.BigEndian.AppendUint32(data, c.arch)
	data = binary.BigEndian.AppendUint64(data, 0x7fff_dead_beef) // the instruction pointer
	for _, a := range c.args {
		data = binary.BigEndian.AppendUint32(data, uint32(a))
		data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
	}
	n, err := f.vm.Run(data)
	require.NoError(f, err)
	return action(uint32(n))
}

func (a action) String() string {
	switch a {
	case allow:
		return "allow"
	case kill:
		return "kill"
	case eperm:
		return "EPERM"
	case nosys:
		return "ENOSYS"
	}
	return fmt.Sprintf("%#x", uint32(a))
}

// number returns the number of a call, none if the architecture lacks it.
func number(a architecture, name string) int {
	for _, r := range rules(variant{}) {
		if r.name == name {
			return a.number(r)
		}
	}
	return none
}

// expectations are written by hand, from the manual pages and not from the
// rules. The values of the arguments are those of the kernel's headers.
var expectations = []struct {
	what string
	call string
	args [6]uint64
	want map[string]action // by variant; "" is every other
}{
	{"a connect", "connect", args(3, 4096, 16), map[string]action{"asks": ask, "asks-named": ask, "udp-unix-listen-asks": ask, "": allow}},
	{"TCP", "socket", args(2, 1, 0), always(allow)},
	{"TCP by its number", "socket", args(2, 1, 6), always(allow)},
	{"TCP over IPv6", "socket", args(10, 1, 0), always(allow)},
	{"TCP, close-on-exec and non-blocking", "socket", args(2, 1|0x80000|0x800, 0), always(allow)},
	{"MPTCP", "socket", args(2, 1, 262), always(eperm)},
	{"MPTCP over IPv6", "socket", args(10, 1, 262), always(eperm)},
	{"SCTP as a stream", "socket", args(2, 1, 132), always(eperm)},
	{"SCTP as packets", "socket", args(2, 5, 132), always(eperm)},
	{"SMC as a protocol of TCP", "socket", args(2, 1, 256), always(eperm)},
	{"SMC", "socket", args(43, 1, 0), always(eperm)},
	{"DCCP", "socket", args(2, 6, 33), always(eperm)},
	{"UDP", "socket", args(2, 2, 0), map[string]action{"asks": ask, "asks-named": ask, "udp": allow, "udp-listen": allow, "udp-unix-listen": allow, "udp-unix-listen-asks": allow, "": eperm}},
	{"UDP over IPv6, non-blocking", "socket", args(10, 2|0x800, 17), map[string]action{"asks": ask, "asks-named": ask, "udp": allow, "udp-listen": allow, "udp-unix-listen": allow, "udp-unix-listen-asks": allow, "": eperm}},
	{"UDP-Lite", "socket", args(2, 2, 136), always(eperm)},
	{"ping", "socket", args(2, 2, 1), always(eperm)},
	{"ping over IPv6", "socket", args(10, 2, 58), always(eperm)},
	{"raw IP", "socket", args(2, 3, 255), always(eperm)},
	{"the old packet type", "socket", args(2, 10, 768), always(eperm)},
	{"packet", "socket", args(17, 3, 768), always(eperm)},
	{"vsock", "socket", args(40, 1, 0), always(eperm)},
	{"alg", "socket", args(38, 5, 0), always(eperm)},
	{"Bluetooth", "socket", args(31, 3, 0), always(eperm)},
	{"CAN", "socket", args(29, 3, 1), always(eperm)},
	{"TIPC", "socket", args(30, 1, 0), always(eperm)},
	{"RDS", "socket", args(21, 5, 0), always(eperm)},
	{"XDP", "socket", args(44, 3, 0), always(eperm)},
	{"no family", "socket", args(0, 1, 0), always(eperm)},
	{"a family that there is not", "socket", args(1000, 1, 0), always(eperm)},
	{"a type that there is not", "socket", args(2, 1|0x100, 0), always(eperm)},
	{"route netlink, raw", "socket", args(16, 3, 0), always(allow)},
	{"route netlink, datagram, close-on-exec", "socket", args(16, 2|0x80000, 0), always(allow)},
	{"netfilter netlink", "socket", args(16, 3, 12), always(eperm)},
	{"audit netlink", "socket", args(16, 3, 9), always(eperm)},
	{"uevent netlink", "socket", args(16, 2, 15), always(eperm)},
	{"unix stream", "socket", args(1, 1, 0), map[string]action{"asks-named": allow, "unix-listen": allow, "udp-unix-listen": allow, "udp-unix-listen-asks": allow, "": eperm}},
	{"unix datagram", "socket", args(1, 2|0x80000, 0), map[string]action{"unix-listen": allow, "udp-unix-listen": allow, "udp-unix-listen-asks": allow, "": eperm}},
	{"unix seqpacket", "socket", args(1, 5, 0), map[string]action{"asks-named": allow, "unix-listen": allow, "udp-unix-listen": allow, "udp-unix-listen-asks": allow, "": eperm}},
	{"unix raw", "socket", args(1, 3, 0), always(eperm)},
	{"a high bit in the family", "socket", args(1<<32|2, 1, 0), always(allow)},
	{"a high bit in MPTCP", "socket", args(2, 1, 1<<32|262), always(eperm)},
	{"a high bit in a family that looks like TCP with it", "socket", args(1<<32|17, 3, 0), always(eperm)},

	{"a pair of streams", "socketpair", args(1, 1, 0), always(allow)},
	{"a pair of streams as runtimes make it", "socketpair", args(1, 1|0x80000|0x800, 0), always(allow)},
	{"a pair of seqpackets", "socketpair", args(1, 5, 0), always(allow)},
	{"a pair of datagrams", "socketpair", args(1, 2, 0), map[string]action{"unix-listen": allow, "udp-unix-listen": allow, "udp-unix-listen-asks": allow, "": eperm}},
	{"a pair of raws", "socketpair", args(1, 3, 0), always(eperm)},
	{"a pair of TIPC", "socketpair", args(30, 1, 0), always(eperm)},

	{"listen", "listen", args(3, 128), map[string]action{"strict": eperm, "udp": eperm, "asks": eperm, "asks-named": eperm, "": allow}},

	{"send", "sendto", args(3, 0x1000, 10, 0x4000), always(allow)}, // MSG_NOSIGNAL
	{"Fast Open", "sendto", args(3, 0x1000, 10, 0x20000000), always(eperm)},
	{"Fast Open among other flags", "sendto", args(3, 0x1000, 10, 0x20004040), always(eperm)},
	{"Fast Open with a high bit", "sendto", args(3, 0x1000, 10, 1<<63|0x20000000), always(eperm)},
	{"the flag as a length", "sendto", args(3, 0x1000, 0x20000000, 0), always(allow)},
	{"send message", "sendmsg", args(3, 0x1000, 0), always(allow)},
	{"Fast Open by message", "sendmsg", args(3, 0x1000, 0x20000000), always(eperm)},
	{"send messages", "sendmmsg", args(3, 0x1000, 1, 0), always(allow)},
	{"Fast Open by messages", "sendmmsg", args(3, 0x1000, 1, 0x20000000), always(eperm)},
	{"TCP_NODELAY", "setsockopt", args(3, 6, 1), always(allow)},
	{"TCP_FASTOPEN_CONNECT", "setsockopt", args(3, 6, 30), always(eperm)},
	{"TCP_FASTOPEN_CONNECT with high bits", "setsockopt", args(3, 7<<32|6, 7<<32|30), always(eperm)},
	{"TCP_ULP", "setsockopt", args(3, 6, 31), always(eperm)},
	{"the number at another level", "setsockopt", args(3, 1, 30), always(allow)},
	{"SO_KEEPALIVE", "setsockopt", args(3, 1, 9), always(allow)},
	{"SO_LINGER", "setsockopt", args(3, 1, 13), always(allow)},
	{"IP_TOS", "setsockopt", args(3, 0, 1), always(allow)},
	{"IPV6_V6ONLY", "setsockopt", args(3, 41, 26), always(allow)},
	{"SO_DONTROUTE", "setsockopt", args(3, 1, 5), whereAsked(eperm)},
	{"SO_BINDTODEVICE", "setsockopt", args(3, 1, 25), whereAsked(eperm)},
	{"SO_BINDTODEVICE with high bits", "setsockopt", args(3, 7<<32|1, 7<<32|25), whereAsked(eperm)},
	{"SO_BINDTOIFINDEX", "setsockopt", args(3, 1, 62), whereAsked(eperm)},
	{"IP_OPTIONS, source routes", "setsockopt", args(3, 0, 4), whereAsked(eperm)},
	{"IP_UNICAST_IF", "setsockopt", args(3, 0, 50), whereAsked(eperm)},
	{"IPV6_RTHDR", "setsockopt", args(3, 41, 57), whereAsked(eperm)},
	{"IPV6_2292PKTOPTIONS, which has a routing header", "setsockopt", args(3, 41, 6), whereAsked(eperm)},
	{"IPV6_PKTINFO", "setsockopt", args(3, 41, 50), whereAsked(eperm)},
	{"IPV6_UNICAST_IF", "setsockopt", args(3, 41, 76), whereAsked(eperm)},

	{"PTRACE_TRACEME", "ptrace", args(0), always(allow)},
	{"PTRACE_DETACH", "ptrace", args(17, 99), always(eperm)},
	{"PTRACE_SETOPTIONS that suspends the filter", "ptrace", args(0x4200, 99, 0, 0x200000), always(eperm)},
	{"PTRACE_ATTACH", "ptrace", args(16, 99), always(eperm)},
	{"PTRACE_SEIZE", "ptrace", args(0x4206, 99), always(eperm)},
	{"PTRACE_PEEKDATA", "ptrace", args(2, 99), always(eperm)},
	{"PTRACE_TRACEME with a high bit", "ptrace", args(1<<32, 99), always(eperm)},
	{"process_vm_readv", "process_vm_readv", args(99), always(eperm)},
	{"process_vm_writev", "process_vm_writev", args(99), always(eperm)},
	{"process_madvise", "process_madvise", args(99), always(eperm)},
	{"pidfd_getfd", "pidfd_getfd", args(3), always(eperm)},
	{"kcmp", "kcmp", args(99, 98), always(eperm)},
	{"one's own limits", "prlimit64", args(0, 7, 0x1000), always(allow)},
	{"another's limits", "prlimit64", args(99, 0, 0x1000), always(eperm)},
	{"another's limits with a high bit", "prlimit64", args(1<<32|99, 0, 0x1000), always(eperm)},
	{"io_uring_setup", "io_uring_setup", args(8), always(nosys)},
	{"io_uring_enter", "io_uring_enter", args(3), always(nosys)},
	{"io_uring_register", "io_uring_register", args(3), always(nosys)},
	{"asking for the personality", "personality", args(0xffffffff), always(allow)},
	{"the default personality", "personality", args(0), always(allow)},
	{"no address randomization", "personality", args(0x40000), always(allow)},
	{"READ_IMPLIES_EXEC", "personality", args(0x400000), always(eperm)},
	{"a 32-bit personality", "personality", args(8), always(eperm)},

	{"fork", "clone", args(17), always(allow)},                                 // SIGCHLD
	{"Go's spawn", "clone", args(0x4000 | 0x100 | 0x1000 | 17), always(allow)}, // VFORK, VM, PIDFD
	{"a thread", "clone", args(0x3d0f00), always(allow)},
	{"a user namespace", "clone", args(0x10000000 | 17), always(eperm)},
	{"a mount namespace", "clone", args(0x20000 | 17), always(eperm)},
	{"a cgroup namespace", "clone", args(0x2000000 | 17), always(eperm)},
	{"a UTS namespace", "clone", args(0x4000000 | 17), always(eperm)},
	{"an IPC namespace", "clone", args(0x8000000 | 17), always(eperm)},
	{"a pid namespace", "clone", args(0x20000000 | 17), always(eperm)},
	{"a network namespace", "clone", args(0x40000000 | 17), always(eperm)},
	{"a network namespace with a high bit", "clone", args(1<<40 | 0x40000000 | 17), always(eperm)},
	{"a child for the orchestrator", "clone", args(0x8000 | 17), always(eperm)},
	{"clone3", "clone3", args(0x1000, 88), always(nosys)},
	{"unshare", "unshare", args(0x10000000), always(eperm)},
	{"setns", "setns", args(3, 0), always(eperm)},

	{"mode 755", "chmod", args(0x1000, 0o755), always(allow)},
	{"the sticky bit", "chmod", args(0x1000, 0o1777), always(allow)},
	{"a setuid mode", "chmod", args(0x1000, 0o4755), always(eperm)},
	{"a setgid mode", "chmod", args(0x1000, 0o2755), always(eperm)},
	{"a setuid mode with a high bit", "chmod", args(0x1000, 1<<32|0o4755), always(eperm)},
	{"mode 755 by descriptor", "fchmod", args(3, 0o755), always(allow)},
	{"a setuid mode by descriptor", "fchmod", args(3, 0o4755), always(eperm)},
	{"mode 755 by directory", "fchmodat", args(3, 0x1000, 0o755), always(allow)},
	{"a setgid mode by directory", "fchmodat", args(3, 0x1000, 0o2755), always(eperm)},
	{"a setgid mode by the newer call", "fchmodat2", args(3, 0x1000, 0o2755, 0), always(eperm)},
	{"a file", "mknod", args(0x1000, 0o100644), always(allow)},
	{"a setuid file", "mknod", args(0x1000, 0o104755), always(eperm)},
	{"a fifo", "mknodat", args(3, 0x1000, 0o10644), always(allow)},
	{"a setuid file by directory", "mknodat", args(3, 0x1000, 0o104755), always(eperm)},
	{"create", "creat", args(0x1000, 0o644), always(allow)},
	{"create setuid", "creat", args(0x1000, 0o4755), always(eperm)},
	{"open with a new file", "open", args(0x1000, 0o101, 0o644), always(allow)},
	{"open with a new setuid file", "open", args(0x1000, 0o101, 0o4755), always(eperm)},
	{"open, and garbage for a mode", "open", args(0x1000, 0, 0xdeadbeef_ffffffff), always(allow)},
	{"open by directory with a new file", "openat", args(3, 0x1000, 0o101, 0o644), always(allow)},
	{"open by directory with a new setgid file", "openat", args(3, 0x1000, 0o101, 0o2755), always(eperm)},
	{"a setuid file without a name", "openat", args(3, 0x1000, 0o20200002, 0o4755), always(eperm)},
	{"open a directory, and garbage for a mode", "openat", args(3, 0x1000, 0o200000, 0o7777), always(allow)},
	{"openat2", "openat2", args(3, 0x1000, 0x2000, 24), always(nosys)},

	{"run by path", "execveat", args(3, 0x1000, 0, 0, 0), always(allow)},
	{"run without following links", "execveat", args(3, 0x1000, 0, 0, 0x100), always(allow)},
	{"run a descriptor", "execveat", args(3, 0x1000, 0, 0, 0x1000), always(eperm)},
	{"terminal size", "ioctl", args(0, 0x5413), always(allow)},
	{"TIOCSTI", "ioctl", args(0, 0x5412), always(eperm)},
	{"TIOCSTI with a high bit", "ioctl", args(0, 1<<32|0x5412), always(eperm)},
	{"TIOCLINUX", "ioctl", args(0, 0x541c), always(eperm)},
	{"TIOCSETD", "ioctl", args(0, 0x5423), always(eperm)},
}

func args(a ...uint64) (out [6]uint64) { copy(out[:], a); return out }

func always(a action) map[string]action { return map[string]action{"": a} }

// whereAsked is an action of the variants that ask; the others allow.
func whereAsked(a action) map[string]action {
	return map[string]action{"asks": a, "asks-named": a, "udp-unix-listen-asks": a, "": allow}
}

// refused are the calls that no argument makes allowed.
var refused = strings.Fields(`
	process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp unshare setns
	mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr
	bpf perf_event_open userfaultfd syslog kexec_load kexec_file_load init_module finit_module delete_module
	swapon swapoff reboot sethostname setdomainname settimeofday acct quotactl quotactl_fd open_by_handle_at
	shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
	mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr add_key request_key keyctl`)

func TestDecisions(t *testing.T) {
	tried := map[string]bool{}
	for _, arch := range architectures {
		for _, v := range variants {
			f := newVM(t, arch.program(v))
			for _, e := range expectations {
				tried[e.call] = true
				n := number(arch, e.call)
				if n == none {
					continue
				}
				want, ok := e.want[v.String()]
				if !ok {
					want = e.want[""]
				}
				require.Equal(t, want, f.run(call{arch.audit, uint32(n), e.args}), "%s %s: %s", arch.name, v, e.what)
			}
			for _, name := range refused {
				tried[name] = true
				n := number(arch, name)
				require.NotEqual(t, none, n, "%s %s", arch.name, name)
				for _, a := range []uint64{0, 1, math.MaxUint64} {
					require.Equal(t, eperm, f.run(call{arch.audit, uint32(n), args(a, a, a, a, a, a)}), "%s %s: %s", arch.name, v, name)
				}
			}
		}
	}
	for _, r := range rules(variant{}) {
		if !strings.Contains("iopl ioperm create_module get_kernel_syms query_module", r.name) {
			require.True(t, tried[r.name], "nothing expects anything of %s", r.name)
		}
	}
}

func TestEveryOtherCallIsAllowed(t *testing.T) {
	for _, arch := range architectures {
		ruled := map[int]bool{}
		for _, r := range rules(variant{}) {
			ruled[arch.number(r)] = true
		}
		for _, v := range variants {
			f := newVM(t, arch.program(v))
			for n := range last + 1 {
				if !ruled[n] {
					require.Equal(t, allow, f.run(call{arch.audit, uint32(n), args(math.MaxUint64, 6, 31, 1<<29, 1<<12)}), "%s %d", arch.name, n)
				}
			}
		}
	}
}

// A call that was not looked at does not exist, and one of another calling
// convention ends the process, whatever its number means there.
func TestForeignAndUnknownCalls(t *testing.T) {
	for _, arch := range architectures {
		f := newVM(t, arch.program(variant{}))
		for _, n := range []uint32{last + 1, 600, 1023, 0x3fff_ffff} {
			require.Equal(t, nosys, f.run(call{arch: arch.audit, number: n}), "%s %#x", arch.name, n)
		}
		for _, other := range []uint32{
			0x4000_0003, // AUDIT_ARCH_I386: int 0x80
			0x4000_0028, // AUDIT_ARCH_ARM
			0xc000_003e, 0xc000_00b7, 0xc000_00f3, 0, math.MaxUint32,
		} {
			if other == arch.audit {
				continue
			}
			for _, n := range []uint32{0, 1, 20, 57, 172, 1023} {
				require.Equal(t, kill, f.run(call{arch: other, number: n}), "%s under %#x", arch.name, other)
			}
		}
	}
	f := newVM(t, architectures[0].program(variant{}))
	for _, n := range []uint32{x32, x32 | 39, x32 | 512, x32 | 545, 0x7fff_ffff, 0x8000_0000, math.MaxUint32} {
		require.Equal(t, kill, f.run(call{arch: 0xc000_003e, number: n}), "x32 %#x", n)
	}
}

// decide is the rules without the assembler: what a call should give.
func decide(a architecture, v variant, c call) action {
	switch {
	case c.arch != a.audit, a.foreign != 0 && c.number >= a.foreign:
		return kill
	case c.number > last:
		return nosys
	}
	for _, r := range rules(v) {
		if a.number(r) != int(c.number) {
			continue
		}
		d := r.then
		for {
			t, ok := d.(*test)
			if !ok {
				return d.(action)
			}
			word := uint32(c.args[t.arg])
			if t.high {
				word = uint32(c.args[t.arg] >> 32)
			}
			d = t.no
			for _, value := range t.values {
				if word&t.mask == value {
					d = t.yes
				}
			}
		}
	}
	return allow
}

func TestAssemblerKeepsTheRules(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	values := []uint64{0, 1, 2, 3, 5, 6, 10, 16, 17, 30, 31, 0o101, 0o4755, 0o2755, 262, 0x1000, 0x5412, 0x80001, 0x10000011, 1 << 29, 1 << 32, math.MaxUint64}
	for _, arch := range architectures {
		for _, v := range variants {
			f := newVM(t, arch.program(v))
			for range 20000 {
				c := call{arch: arch.audit, number: uint32(random.IntN(last + 40))}
				for i := range c.args {
					c.args[i] = values[random.IntN(len(values))]
				}
				require.Equal(t, decide(arch, v, c), f.run(c), "%s %s: %+v", arch.name, v, c)
			}
		}
	}
}

// The kernel takes 4,096 instructions, and a conditional jump reaches 255.
func TestAssemblerJumpsFar(t *testing.T) {
	var entries []entry
	for n := range uint32(1200) {
		// A test of its own for each, so that nothing is shared.
		entries = append(entries, entry{3 * n, 3*n + n%2, is(int(n%6), n)})
	}
	program := assemble(1, entries)
	_, err := bpf.Assemble(program)
	require.NoError(t, err)
	f := newVM(t, program)
	for n := range uint32(1200) {
		i := n % 6
		var hit, miss [6]uint64
		hit[i], miss[i] = uint64(n), uint64(n)+1
		require.Equal(t, allow, f.run(call{1, 3 * n, hit}))
		require.Equal(t, eperm, f.run(call{1, 3*n + n%2, miss}))
		require.Equal(t, allow, f.run(call{1, 3*n + 2, miss}))
	}
	require.Equal(t, kill, f.run(call{arch: 2}))
}

func TestMerged(t *testing.T) {
	one, same := is(0, 1), is(0, 1)
	require.Equal(t, []entry{{1, 3, eperm}, {4, 4, nosys}, {6, 6, nosys}, {7, 8, one}, {9, 9, same}}, merged([]entry{
		{1, 1, eperm}, {2, 3, eperm}, {4, 4, nosys}, {6, 6, nosys}, {7, 7, one}, {8, 8, one}, {9, 9, same},
	}))
}

func TestGolden(t *testing.T) {
	for _, arch := range architectures {
		for _, v := range variants {
			name := filepath.Join("testdata", arch.name+"-"+v.String()+".golden")
			var b strings.Builder
			for i, in := range arch.program(v) {
				fmt.Fprintf(&b, "%3d  %s\n", i, in)
			}
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o644))
			}
			want, err := os.ReadFile(name)
			require.NoError(t, err, "run the test with -update")
			require.Equal(t, string(want), b.String(), "%s: run the test with -update, and look at the change", name)
		}
	}
}

// Installing takes time by the size: see the comment on leaf.
func TestProgramsAreSmall(t *testing.T) {
	for _, arch := range architectures {
		for _, v := range variants {
			require.Less(t, len(arch.program(v)), 200, "%s %s", arch.name, v)
		}
	}
}

// x/sys has the kernel's tables, each in a file for its architecture.
func TestNumbersAreTheKernels(t *testing.T) {
	testkit.RequireCheckout(t, "../..")
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)$`)
	for _, arch := range architectures {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "zsysnum_linux_"+arch.name+".go"))
		require.NoError(t, err)
		known, newest := map[string]int{}, 0
		for _, m := range line.FindAllStringSubmatch(string(source), -1) {
			n, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			known[strings.ToLower(m[1])], newest = n, max(newest, n)
		}
		require.Equal(t, last, newest, "%s has calls that nobody has looked at", arch.name)
		seen := map[int]string{}
		for _, r := range rules(variant{}) {
			n, ok := known[r.name]
			if !ok {
				n = none
			}
			require.Equal(t, n, arch.number(r), "%s %s", arch.name, r.name)
			require.Empty(t, seen[n], "%s %s has the number of another rule", arch.name, r.name)
			if n != none {
				seen[n] = r.name
			}
		}
	}
}

func TestVariantOf(t *testing.T) {
	plan := domain.NewSandboxPlan("test")
	for _, c := range []struct {
		plan domain.SandboxPlan
		want variant
	}{
		{plan, variant{}},
		{plan.WithConnectTCP(443), variant{}},
		{plan.WithDestinations(netip.MustParseAddrPort("127.0.0.1:443")), variant{asks: true}},
		{plan.WithUnixDestinations("/run/a.sock"), variant{asks: true, named: true}},
		{plan.WithUnixDestinations("/run/a.sock").WithUnixSockets(domain.UnixSocketsOwn), variant{unix: true, listen: true, asks: true}},
		{plan.WithWaivers(domain.Properties()...), variant{}},
		{plan.WithUDP(true), variant{udp: true}},
		{plan.WithBindTCP(8080), variant{listen: true}},
		{plan.WithUnixSockets(domain.UnixSocketsOwn), variant{unix: true, listen: true}},
		{plan.WithUnixSockets(domain.UnixSocketsAllow), variant{unix: true, listen: true}},
	} {
		require.Equal(t, c.want, variantOf(c.plan))
		require.Equal(t, c.want.listen, Listens(c.plan))
	}
}

func TestArchitectureOf(t *testing.T) {
	_, err := architectureOf("riscv64")
	require.ErrorContains(t, err, "there is no seccomp filter for riscv64")
	for _, a := range architectures {
		got, err := architectureOf(a.name)
		require.NoError(t, err)
		require.Equal(t, a.audit, got.audit)
	}
}
