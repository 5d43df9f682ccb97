package landlock

import (
	"fmt"
	"slices"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/caisson-run/caisson/domain"
)

// The ABIs that the table covers. A newer kernel is used as the newest known.
const (
	newestABI      = 11
	signalScopeABI = 6
)

// kernel is what the enforcer relies on.
type kernel struct {
	// abi is the Landlock ABI that is made use of, 0 for none.
	abi int
	// note says why there is none, or why fewer rights are used than the kernel
	// claims to have; "" otherwise.
	note string
	// widening is true while erratum 3 is unfixed: the rights on a directory
	// that was moved out of its bind mount can widen.
	widening bool
}

// Bits of the errata mask, set where the kernel has the fix
// (docs.kernel.org/userspace-api/landlock.html, "Landlock errata").
const (
	fixedSignalScope  = 1 << 1 // erratum 2
	fixedDisconnected = 1 << 2 // erratum 3
)

// kernelOf returns what to rely on under an ABI of 1 or more with those fixes.
func kernelOf(abi, errata int) kernel {
	k := kernel{abi: min(abi, newestABI), widening: errata&fixedDisconnected == 0}
	if abi >= signalScopeABI && errata&fixedSignalScope == 0 {
		// go-landlock refuses the scopes of such a kernel, because a thread could
		// not signal the other threads of its own process.
		k.abi = signalScopeABI - 1
		k.note = fmt.Sprintf("the kernel has ABI %d, but not the fix of Landlock erratum 2", abi)
	}
	return k
}

// lateRights are the file rights that came after ABI 1, with the first ABI
// that has them.
var lateRights = [...]struct {
	right domain.Access
	abi   int
}{
	{domain.AccessRefer, 2},
	{domain.AccessTruncate, 3},
	{domain.AccessIoctlDev, 5},
	{domain.AccessResolveUnix, 9},
}

// need says when Landlock can guarantee a property.
type need struct {
	abi    int    // the first ABI that can, 0 if none can
	lacks  string // what an older ABI has not got
	beyond string // what it takes instead, if no ABI can
}

var needs = map[domain.Property]need{
	domain.PropertyFilesystem:      {abi: 1, lacks: "file rights"},
	domain.PropertyTruncate:        {abi: 3, lacks: "right for truncating files"},
	domain.PropertyIoctl:           {abi: 5, lacks: "right for ioctl on devices"},
	domain.PropertyTCP:             {abi: 4, lacks: "TCP rights"},
	domain.PropertyDestinations:    {beyond: "Landlock's rule is a port on every host; needs a seccomp filter that asks"},
	domain.PropertyUDP:             {abi: 10, lacks: "UDP rights"},
	domain.PropertyUnixSockets:     {abi: 9, lacks: "right for unix sockets by path"},
	domain.PropertyAbstractSockets: {abi: 6, lacks: "scope for abstract unix sockets"},
	domain.PropertySignals:         {abi: signalScopeABI, lacks: "scope for signals"},
	domain.PropertyOtherSockets:    {beyond: "Landlock has no rights for other kinds of sockets; needs a seccomp filter"},
	domain.PropertyOtherProcesses:  {beyond: "Landlock does not cover prlimit and its kind; needs a seccomp filter"},
	domain.PropertyPrivileges:      {beyond: "no_new_privs stops setuid programs, but capabilities that the orchestrator holds are inherited; needs them dropped"},
	domain.PropertyIPC:             {beyond: "Landlock does not cover System V IPC and keyrings; needs a seccomp filter"},
	domain.PropertyMemory:          {beyond: "Landlock limits no resources; needs a cgroup v2 memory controller"},
	domain.PropertyPids:            {beyond: "Landlock limits no resources; needs a cgroup v2 pids controller"},
	domain.PropertyCPU:             {beyond: "Landlock limits no resources; needs a cgroup v2 cpu controller"},
}

// Statuses says what Supports would say on a kernel with that ABI that has the
// fixes of all errata, 0 for one without Landlock. It is pure: for tables over
// all kernels.
func Statuses(plan domain.SandboxPlan, abi int) []domain.PropertyStatus {
	if abi < 1 {
		return statuses(plan, kernel{note: "no Landlock"})
	}
	return statuses(plan, kernelOf(abi, fixedSignalScope|fixedDisconnected))
}

// NewestABI is the newest ABI that the layer makes use of.
const NewestABI = newestABI

// statuses says what becomes of each property of the plan under that kernel.
// What can be enforced is, whether or not it is waived.
func statuses(plan domain.SandboxPlan, k kernel) []domain.PropertyStatus {
	out := make([]domain.PropertyStatus, 0, len(needs))
	for _, p := range domain.Properties() {
		n := needs[p]
		s := domain.PropertyStatus{Property: p}
		switch {
		case !plan.Requests(p):
			s.State = domain.StateNotRequested
		case n.abi > 0 && k.abi >= n.abi:
			s.State = domain.StateEnforced
			s.Mechanism = fmt.Sprintf("Landlock ABI %d", n.abi)
		case plan.Waives(p):
			s.State, s.Detail = domain.StateWaived, n.missing(k)
		default:
			s.State, s.Detail = domain.StateUnenforceable, n.missing(k)
		}
		out = append(out, s)
	}
	return out
}

// missing says why the kernel cannot guarantee it.
func (n need) missing(k kernel) string {
	switch {
	case n.abi == 0:
		return n.beyond
	case k.abi == 0:
		return k.note
	}
	s := fmt.Sprintf("Landlock ABI %d has no %s; needs ABI %d", k.abi, n.lacks, n.abi)
	if k.note != "" {
		s += " (" + k.note + ")"
	}
	return s
}

// handledFS returns the file rights that are denied where no rule grants them.
func handledFS(plan domain.SandboxPlan, abi int) domain.Access {
	if abi < 1 {
		return 0
	}
	// ABI 1 has every right below AccessRefer. It denies renames and links
	// between directories as well, but cannot grant them.
	a := domain.AccessRefer - 1
	for _, late := range lateRights {
		if abi >= late.abi {
			a |= late.right
		}
	}
	if plan.UnixSockets() == domain.UnixSocketsAllow {
		a &^= domain.AccessResolveUnix
	}
	return a
}

// config returns what is denied by default. It does not depend on the
// waivers: what the ABI can deny is denied.
func config(plan domain.SandboxPlan, abi int) landlock.Config {
	c := landlock.Config{HandledAccessFS: fsSet(handledFS(plan, abi))}
	if abi >= 4 {
		c.HandledAccessNet |= ll.AccessNetBindTCP | ll.AccessNetConnectTCP
	}
	if abi >= 10 && !plan.UDP() {
		c.HandledAccessNet |= ll.AccessNetBindUDP | ll.AccessNetConnectSendUDP
	}
	if abi >= signalScopeABI {
		c.Scoped = ll.ScopeAbstractUnixSocket | ll.ScopeSignal
	}
	return c
}

// killGroupConfig returns the outer domain of a kill group. It has the signal
// scope alone, but it must handle and grant the right to rename between
// directories: a domain that does not denies it.
func killGroupConfig() (landlock.Config, landlock.Rule) {
	return landlock.Config{HandledAccessFS: ll.AccessFSRefer, Scoped: ll.ScopeSignal},
		landlock.PathAccess(ll.AccessFSRefer, "/")
}

// grant returns the rights that the rule really gives on a directory, or on
// anything else. Rights that the ABI does not know are left out, and on a file
// those that mean something on directories only. The plan's choice for unix
// sockets goes before the rule: "deny" takes the right to connect away, and
// "own" adds it where the child can make sockets.
func grant(rule domain.PathRule, plan domain.SandboxPlan, dir bool, abi int) domain.Access {
	a := rule.Access
	switch plan.UnixSockets() {
	case domain.UnixSocketsDeny:
		a &^= domain.AccessResolveUnix
	case domain.UnixSocketsOwn:
		if dir && a.Has(domain.AccessMakeSock) {
			a |= domain.AccessResolveUnix
		}
	}
	if !dir {
		a = a.ForFile()
	}
	return a & handledFS(plan, abi)
}

// fsSet converts: domain's rights are Landlock's, bit for bit.
func fsSet(a domain.Access) landlock.AccessFSSet { return landlock.AccessFSSet(a) }

// portRules returns the rules for the plan's ports, none if the ABI has no
// rights for them.
func portRules(plan domain.SandboxPlan, abi int) []landlock.Rule {
	if abi < 4 {
		return nil
	}
	var rules []landlock.Rule
	for _, p := range connectPorts(plan) {
		rules = append(rules, landlock.ConnectTCP(p))
	}
	for _, p := range plan.BindTCP() {
		rules = append(rules, landlock.BindTCP(p))
	}
	return rules
}

// connectPorts returns the ports that are granted on every host: also those of
// destinations, which a plan gets here only if it waives that they are no more
// than that.
func connectPorts(plan domain.SandboxPlan) []uint16 {
	all := plan.ConnectTCP()
	for _, d := range plan.ReachableDestinations() {
		all = append(all, d.Port())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// openLimits lists what stays possible under any plan, by Landlock's nature.
func openLimits(plan domain.SandboxPlan, k kernel) []string {
	open := []string{
		"change mode, owner, times and extended attributes of files that the user owns, also outside the plan",
		"learn whether a file exists, and its size, owner and times, also outside the plan",
		"run a file that can be read, through the dynamic loader",
		"change the priority and processor affinity of the user's other processes",
	}
	if len(connectPorts(plan)) > 0 {
		open = append(open, "connect to a granted TCP port on any host")
	}
	if k.widening {
		open = append(open, "gain rights in a directory that is moved out of its bind mount (Landlock erratum 3 is unfixed in this kernel)")
	}
	return open
}

// receiptOf returns the receipt of a prepared confinement.
func receiptOf(plan domain.SandboxPlan, k kernel, rules []domain.GrantedRule) domain.Receipt {
	return domain.Receipt{
		Preset:     plan.Preset(),
		Enforcer:   "landlock",
		ABI:        k.abi,
		Layers:     []string{"no_new_privs", "landlock"},
		Properties: statuses(plan, k),
		Rules:      rules,
		ConnectTCP: plan.ConnectTCP(), Destinations: plan.ReachableDestinations(),
		Domains:    plan.EgressNames(),
		BindTCP:    plan.BindTCP(),
		Open:       openLimits(plan, k),
		PlanDigest: plan.Digest(),
	}
}
