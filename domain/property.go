package domain

// Property names one thing that a plan asks the enforcer to guarantee. Each is
// either enforced by a named mechanism, or waived by name in the plan, or not
// requested by the plan; otherwise nothing is spawned.
type Property string

// The properties.
const (
	// PropertyFilesystem: files outside the rules cannot be opened, made,
	// removed or renamed.
	PropertyFilesystem Property = "filesystem"
	// PropertyTruncate: files outside the write rules cannot be truncated.
	PropertyTruncate Property = "truncate"
	// PropertyIoctl: ioctl(2) on device files opened by the child is denied.
	PropertyIoctl Property = "ioctl"
	// PropertyTCP: TCP connects and binds only to the listed ports.
	PropertyTCP Property = "tcp"
	// PropertyDestinations: a destination of the plan is reached at that address
	// and at no other.
	PropertyDestinations Property = "destinations"
	// PropertyUDP: no UDP.
	PropertyUDP Property = "udp"
	// PropertyUnixSockets: no connection to a unix socket by its path outside
	// the plan (docker.sock, D-Bus).
	PropertyUnixSockets Property = "unix-sockets"
	// PropertyAbstractSockets: no connection to an abstract unix socket that a
	// process outside the sandbox made.
	PropertyAbstractSockets Property = "abstract-sockets"
	// PropertyOtherSockets: no other way onto the network: MPTCP, TCP Fast
	// Open, listening without a bind (unless a port may be bound), SCTP, SMC,
	// raw, packet, vsock, and of netlink only asking for routes and addresses.
	PropertyOtherSockets Property = "other-sockets"
	// PropertySignals: no signal to a process outside the sandbox.
	PropertySignals Property = "signals"
	// PropertyOtherProcesses: no other way to reach a process outside:
	// prlimit, ptrace, process_vm_*, pidfd_getfd, kcmp.
	PropertyOtherProcesses Property = "other-processes"
	// PropertyPrivileges: no capabilities, and none gained by running a
	// setuid program.
	PropertyPrivileges Property = "privileges"
	// PropertyIPC: no System V IPC objects, POSIX message queues and kernel
	// keyrings of the host.
	PropertyIPC Property = "ipc"
	// PropertyMemory, PropertyPids and PropertyCPU: limits over the whole tree.
	PropertyMemory Property = "memory-limit"
	PropertyPids   Property = "pids-limit"
	PropertyCPU    Property = "cpu-limit"
)

// Properties returns every property, in the order in which receipts list them.
func Properties() []Property {
	return []Property{
		PropertyFilesystem, PropertyTruncate, PropertyIoctl,
		PropertyTCP, PropertyDestinations, PropertyUDP, PropertyUnixSockets, PropertyAbstractSockets, PropertyOtherSockets,
		PropertySignals, PropertyOtherProcesses, PropertyPrivileges, PropertyIPC,
		PropertyMemory, PropertyPids, PropertyCPU,
	}
}

// ParseProperty returns the property of that name.
func ParseProperty(name string) (Property, error) {
	for _, p := range Properties() {
		if string(p) == name {
			return p, nil
		}
	}
	return "", &InvalidError{
		What: "property", Value: name, Reason: "no such property",
		Remedy: "one of " + joinProperties(Properties()),
	}
}

func joinProperties(ps []Property) string {
	s := ""
	for i, p := range ps {
		if i > 0 {
			s += ", "
		}
		s += word(string(p))
	}
	return s
}

// PropertyState says what became of a property.
type PropertyState string

// The states of a property. StateUnenforceable never reaches a receipt of a
// spawned child: it is what [CheckStrictness] refuses.
const (
	StateEnforced      PropertyState = "enforced"
	StateWaived        PropertyState = "waived"
	StateNotRequested  PropertyState = "not requested"
	StateUnenforceable PropertyState = "unenforceable"
)

// PropertyStatus is one line of a receipt.
type PropertyStatus struct {
	Property Property
	State    PropertyState
	// Mechanism names what enforces it ("Landlock ABI 4"), empty otherwise.
	Mechanism string
	// Detail says, for a property that is not enforced, what is missing: what
	// the kernel has and what it needs.
	Detail string
}

// CheckStrictness returns nil if every status is acceptable for the plan, and
// otherwise a *StrictnessError that names every property that is neither
// enforced, nor waived, nor not requested. A property that the statuses do not
// mention counts as unenforceable: an enforcer that says nothing enforces
// nothing. Of several statuses of one property one that is not enforced counts.
// The zero plan gives [ErrNoSandbox].
func CheckStrictness(plan SandboxPlan, statuses []PropertyStatus) error {
	if plan.IsZero() {
		return ErrNoSandbox
	}
	said := make(map[Property]PropertyStatus, len(statuses))
	for _, s := range statuses {
		if old, twice := said[s.Property]; !twice || old.State == StateEnforced {
			said[s.Property] = s
		}
	}
	var missing []PropertyStatus
	for _, p := range Properties() {
		s, ok := said[p]
		switch {
		case !plan.Requests(p):
		case ok && s.State == StateEnforced:
		case plan.Waives(p):
		default:
			if !ok {
				s = PropertyStatus{Property: p, Detail: "the enforcer does not report it"}
			}
			s.Detail = orElse(s.Detail, "the enforcer does not say why")
			s.State = StateUnenforceable
			missing = append(missing, s)
		}
	}
	if len(missing) > 0 {
		return &StrictnessError{Missing: missing}
	}
	return nil
}
