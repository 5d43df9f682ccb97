package landlock

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// firstABI is written down a second time, by hand, from the kernel's
// documentation: the table must not be its own proof. 99 means never.
var firstABI = map[domain.Property]int{
	"filesystem": 1, "truncate": 3, "ioctl": 5, "tcp": 4, "udp": 10,
	"unix-sockets": 9, "abstract-sockets": 6, "other-sockets": 99, "signals": 6,
	"other-processes": 99, "privileges": 99, "ipc": 99,
	"destinations": 99, "memory-limit": 99, "pids-limit": 99, "cpu-limit": 99,
}

// everything is a plan that requests every property and waives none.
func everything() domain.SandboxPlan {
	return domain.NewSandboxPlan("test").WithLimits(domain.Limits{MemoryBytes: 1, Pids: 1, CPUs: 1}).
		WithDestinations(netip.MustParseAddrPort("127.0.0.1:443"))
}

func waiveAll(p domain.SandboxPlan) domain.SandboxPlan { return p.WithWaivers(domain.Properties()...) }

func TestStatusesOverEveryABI(t *testing.T) {
	require.Len(t, needs, len(domain.Properties()), "a property without a line in the table")
	for abi := 0; abi <= newestABI; abi++ {
		k := kernel{abi: abi, note: map[bool]string{true: "no Landlock here"}[abi == 0]}
		plain, waived := statuses(everything(), k), statuses(waiveAll(everything()), k)
		require.Len(t, plain, len(domain.Properties()))
		for i, p := range domain.Properties() {
			name := fmt.Sprintf("ABI %d, %s", abi, p)
			require.Equal(t, p, plain[i].Property, name)
			require.Equal(t, p, waived[i].Property, name)
			if abi >= firstABI[p] {
				want := domain.PropertyStatus{Property: p, State: domain.StateEnforced, Mechanism: fmt.Sprintf("Landlock ABI %d", firstABI[p])}
				require.Equal(t, want, plain[i], name)
				require.Equal(t, want, waived[i], name+": a waiver must not weaken")
				continue
			}
			require.Equal(t, domain.StateUnenforceable, plain[i].State, name)
			require.Equal(t, domain.StateWaived, waived[i].State, name)
			for _, s := range []domain.PropertyStatus{plain[i], waived[i]} {
				require.Empty(t, s.Mechanism, name)
				require.NotEmpty(t, s.Detail, name)
			}
		}
	}
}

func TestStatusesSayWhatIsMissing(t *testing.T) {
	detail := func(k kernel, p domain.Property) string {
		for _, s := range statuses(everything(), k) {
			if s.Property == p {
				return s.Detail
			}
		}
		return "no such property"
	}
	require.Equal(t, "Landlock ABI 7 has no UDP rights; needs ABI 10", detail(kernel{abi: 7}, domain.PropertyUDP))
	require.Equal(t, "Landlock ABI 5 has no scope for signals; needs ABI 6 (erratum)", detail(kernel{abi: 5, note: "erratum"}, domain.PropertySignals))
	require.Equal(t, "nothing here", detail(kernel{note: "nothing here"}, domain.PropertyTCP))
	require.Contains(t, detail(kernel{abi: 11}, domain.PropertyIPC), "seccomp")
	require.Contains(t, detail(kernel{abi: 11}, domain.PropertyPids), "cgroup")
}

func TestStatusesOfWhatIsNotRequested(t *testing.T) {
	open := domain.NewSandboxPlan("test").WithUDP(true).WithUnixSockets(domain.UnixSocketsAllow)
	for abi := 0; abi <= newestABI; abi++ {
		for _, s := range statuses(open, kernel{abi: abi, note: "none"}) {
			switch s.Property {
			case domain.PropertyDestinations, domain.PropertyUDP, domain.PropertyUnixSockets, domain.PropertyMemory, domain.PropertyPids, domain.PropertyCPU:
				require.Equal(t, domain.PropertyStatus{Property: s.Property, State: domain.StateNotRequested}, s)
			default:
				require.NotEqual(t, domain.StateNotRequested, s.State, s.Property)
			}
		}
	}
}

// The library's own presets are the second source for what an ABI can handle.
func TestConfigHandlesAllThatTheABIKnows(t *testing.T) {
	presets := []landlock.Config{
		{}, landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6,
		landlock.V7, landlock.V8, landlock.V9, landlock.V10, landlock.V11,
	}
	require.Len(t, presets, newestABI+1)
	for abi, want := range presets {
		for _, plan := range []domain.SandboxPlan{everything(), waiveAll(everything())} {
			got := config(plan, abi)
			require.Equal(t, want.HandledAccessFS, got.HandledAccessFS, "ABI %d", abi)
			require.Equal(t, want.HandledAccessNet, got.HandledAccessNet, "ABI %d", abi)
			require.Equal(t, want.Scoped, got.Scoped, "ABI %d", abi)
		}
		// What the plan allows without a rule is not handled; all else is.
		got := config(everything().WithUDP(true).WithUnixSockets(domain.UnixSocketsAllow), abi)
		require.Equal(t, want.HandledAccessFS&^ll.AccessFSResolveUnix, got.HandledAccessFS, "ABI %d", abi)
		require.Equal(t, want.HandledAccessNet&(ll.AccessNetBindTCP|ll.AccessNetConnectTCP), got.HandledAccessNet, "ABI %d", abi)
		require.Equal(t, want.Scoped, got.Scoped, "ABI %d", abi)
	}
}

// domain numbers the rights as the kernel does, and the code relies on it.
func TestRightsAreTheKernelsBits(t *testing.T) {
	for domainRight, kernelBit := range map[domain.Access]uint64{
		domain.AccessExecute:     ll.AccessFSExecute,
		domain.AccessWriteFile:   ll.AccessFSWriteFile,
		domain.AccessReadFile:    ll.AccessFSReadFile,
		domain.AccessReadDir:     ll.AccessFSReadDir,
		domain.AccessRemoveDir:   ll.AccessFSRemoveDir,
		domain.AccessRemoveFile:  ll.AccessFSRemoveFile,
		domain.AccessMakeChar:    ll.AccessFSMakeChar,
		domain.AccessMakeDir:     ll.AccessFSMakeDir,
		domain.AccessMakeReg:     ll.AccessFSMakeReg,
		domain.AccessMakeSock:    ll.AccessFSMakeSock,
		domain.AccessMakeFifo:    ll.AccessFSMakeFifo,
		domain.AccessMakeBlock:   ll.AccessFSMakeBlock,
		domain.AccessMakeSym:     ll.AccessFSMakeSym,
		domain.AccessRefer:       ll.AccessFSRefer,
		domain.AccessTruncate:    ll.AccessFSTruncate,
		domain.AccessIoctlDev:    ll.AccessFSIoctlDev,
		domain.AccessResolveUnix: ll.AccessFSResolveUnix,
	} {
		require.Equal(t, landlock.AccessFSSet(kernelBit), fsSet(domainRight), domainRight.String())
	}
	require.Equal(t, landlock.V11.HandledAccessFS, fsSet(handledFS(everything(), newestABI)))
}

func TestGrant(t *testing.T) {
	const all = domain.AccessReadWriteExec
	for _, c := range []struct {
		name   string
		access domain.Access
		unix   domain.UnixSockets
		dir    bool
		abi    int
		want   domain.Access
	}{
		{"a read-write directory can rename across directories", domain.AccessReadWrite, domain.UnixSocketsDeny, true, 7, domain.AccessReadWrite},
		{"ABI 1 cannot grant renames across directories, nor truncation", all, domain.UnixSocketsDeny, true, 1, all &^ (domain.AccessRefer | domain.AccessTruncate)},
		{"ABI 2 does not know truncation", all, domain.UnixSocketsDeny, true, 2, all &^ domain.AccessTruncate},
		{"ABI 3 does", all, domain.UnixSocketsDeny, true, 3, all},
		{"ABI 4 does not know ioctl", all | domain.AccessIoctlDev, domain.UnixSocketsDeny, true, 4, all},
		{"ABI 5 does", all | domain.AccessIoctlDev, domain.UnixSocketsDeny, true, 5, all | domain.AccessIoctlDev},
		{"a file takes the rights of files only", all, domain.UnixSocketsDeny, false, 7, domain.AccessReadFile | domain.AccessWriteFile | domain.AccessTruncate | domain.AccessExecute},
		{"a file takes none of a directory's", domain.AccessReadDir | domain.AccessMakeReg, domain.UnixSocketsDeny, false, 7, 0},
		{"deny goes before a rule", domain.AccessRead | domain.AccessResolveUnix, domain.UnixSocketsDeny, true, 9, domain.AccessRead},
		{"own adds the right where sockets can be made", domain.AccessReadWrite, domain.UnixSocketsOwn, true, 9, domain.AccessReadWrite | domain.AccessResolveUnix},
		{"own adds nothing to a directory that is read", domain.AccessReadExec, domain.UnixSocketsOwn, true, 9, domain.AccessReadExec},
		{"own adds nothing to a file", domain.AccessReadWrite, domain.UnixSocketsOwn, false, 9, domain.AccessReadWrite.ForFile()},
		{"own keeps what a rule names", domain.AccessResolveUnix, domain.UnixSocketsOwn, false, 9, domain.AccessResolveUnix},
		{"ABI 8 does not know unix sockets", domain.AccessReadWrite, domain.UnixSocketsOwn, true, 8, domain.AccessReadWrite},
		{"allow needs no right, as none is taken away", domain.AccessRead | domain.AccessResolveUnix, domain.UnixSocketsAllow, true, 11, domain.AccessRead},
		{"no Landlock, no rights", all, domain.UnixSocketsDeny, true, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := everything().WithUnixSockets(c.unix)
			require.Equal(t, c.want.String(), grant(domain.PathRule{Access: c.access}, plan, c.dir, c.abi).String())
		})
	}
}

// A rule may only grant what is handled, or the kernel refuses it.
func TestGrantIsAlwaysHandled(t *testing.T) {
	everyRight := handledFS(everything(), newestABI)
	for abi := 0; abi <= newestABI; abi++ {
		for _, unix := range []domain.UnixSockets{domain.UnixSocketsDeny, domain.UnixSocketsOwn, domain.UnixSocketsAllow} {
			plan := everything().WithUnixSockets(unix)
			for _, right := range append(everyRight.Rights(), everyRight) {
				for _, dir := range []bool{true, false} {
					g := grant(domain.PathRule{Access: right}, plan, dir, abi)
					require.True(t, handledFS(plan, abi).Has(g), "ABI %d, %s: %s", abi, right, g)
				}
			}
		}
	}
}

func TestPortRules(t *testing.T) {
	plan := everything().WithConnectTCP(443, 8080).WithBindTCP(0)
	require.Empty(t, portRules(plan, 3))
	require.Equal(t, []landlock.Rule{landlock.ConnectTCP(443), landlock.ConnectTCP(8080), landlock.BindTCP(0)}, portRules(plan, 4))
}

func TestKernelOf(t *testing.T) {
	const allFixed = 0b111
	require.Equal(t, kernel{abi: 1, widening: true}, kernelOf(1, 0))
	require.Equal(t, kernel{abi: 5, widening: true}, kernelOf(5, 0), "erratum 2 came with ABI 6")
	require.Equal(t, kernel{abi: 5, note: "the kernel has ABI 7, but not the fix of Landlock erratum 2"}, kernelOf(7, allFixed&^fixedSignalScope))
	require.Equal(t, kernel{abi: 7, widening: true}, kernelOf(7, allFixed&^fixedDisconnected))
	require.Equal(t, kernel{abi: 7}, kernelOf(7, allFixed))
	require.Equal(t, kernel{abi: newestABI}, kernelOf(newestABI+1, allFixed), "what a newer kernel can do is not known")
}

func TestOpenLimitsFollowThePlan(t *testing.T) {
	plan := domain.NewSandboxPlan("test")
	few := openLimits(plan, kernel{abi: 7})
	require.Contains(t, few, "run a file that can be read, through the dynamic loader")
	require.Len(t, openLimits(plan.WithConnectTCP(443), kernel{abi: 7}), len(few)+1)
	require.Len(t, openLimits(everything(), kernel{abi: 7}), len(few)+1, "a destination is no more than its port here")
	require.Len(t, openLimits(plan, kernel{abi: 7, widening: true}), len(few)+1)
}
