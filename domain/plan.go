package domain

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Presence says what a path rule means when its path does not exist. The zero
// value is Required.
type Presence uint8

// The presences.
const (
	Required Presence = iota // a missing path refuses the turn
	Optional                 // a missing path is skipped, and the receipt says so
)

// String returns "required" or "optional".
func (p Presence) String() string {
	if p == Optional {
		return "optional"
	}
	return "required"
}

// PathRule grants access to a file, or to a directory and all below it.
type PathRule struct {
	Path     string // absolute and clean; any bytes but NUL
	Access   Access
	Presence Presence
	Why      string // which preset or flag put it there
	// Resolved says that Path had no symbolic link in it when the plan was made,
	// so that what was reviewed is the place itself. An enforcer then refuses the
	// turn if there is one by now, also for an optional rule: somebody put it
	// there since.
	Resolved bool
}

// String prints the rule as a plan shows it.
func (r PathRule) String() string { return r.text("%-16s %s") }

func (r PathRule) text(format string) string {
	s := fmt.Sprintf(format, r.Access, word(r.Path))
	if r.Presence == Optional {
		s += " (optional)"
	}
	if r.Why != "" {
		s += "  # " + printable(r.Why)
	}
	return s
}

// UnixSockets says which unix sockets a plan lets the child connect to. The
// zero value denies.
type UnixSockets uint8

// The choices.
const (
	UnixSocketsDeny  UnixSockets = iota // none by path
	UnixSocketsOwn                      // those made below the plan's writable directories
	UnixSocketsAllow                    // all
)

// String returns "deny", "own" or "allow".
func (u UnixSockets) String() string {
	switch u {
	case UnixSocketsOwn:
		return "own"
	case UnixSocketsAllow:
		return "allow"
	}
	return "deny"
}

// EnvRule lets one environment variable reach the child. The child's
// environment holds nothing else.
type EnvRule struct {
	Name string
	// Value is the literal value if Literal is true; otherwise the value is
	// taken from the orchestrator's environment when the child is spawned, and
	// a variable that is unset there is left out.
	Value   string
	Literal bool
	// Secret keeps the value out of everything printed or stored.
	Secret bool
	Why    string
}

// String is the name alone: a value may be a secret, and what is printed is
// stored.
func (r EnvRule) String() string { return word(r.Name) }

// GoString is String, for %#v.
func (r EnvRule) GoString() string { return r.String() }

// Limits bounds a turn. Zero means no limit, for every field.
type Limits struct {
	MemoryBytes uint64        // of the whole tree
	Pids        uint64        // processes and threads of the whole tree
	CPUs        float64       // processor time per time
	WallClock   time.Duration // from the spawn to the end of the turn
	Idle        time.Duration // without output, while no tool call is in flight
}

type planState uint8

const (
	planZero planState = iota
	planConfined
	planUnconfined
)

// SandboxPlan says what a turn may touch. It is an immutable value: every With
// method returns a changed copy. The zero value is no plan, and everything
// that takes a plan refuses it with [ErrNoSandbox]; absence of a sandbox is
// said with [Unconfined] alone. A new plan denies everything.
type SandboxPlan struct {
	state      planState
	preset     string
	why        string // of an unconfined plan
	rules      []PathRule
	connectTCP []uint16
	bindTCP    []uint16
	udp        bool
	unix       UnixSockets
	env        []EnvRule
	limits     Limits
	waivers    []Property
	origins    map[string]string

	destinations     []netip.AddrPort
	unixDestinations []string

	gateway     bool
	gatewayPort uint16
	gatewayEnv  []EnvRule

	domains    []EgressDomain
	egressPort uint16
	egressEnv  []EnvRule
}

// NewSandboxPlan returns a plan that grants nothing. The preset's name is
// shown wherever the plan is.
func NewSandboxPlan(preset string) SandboxPlan {
	return SandboxPlan{state: planConfined, preset: preset}
}

// Unconfined is the explicit absence of a sandbox, with the reason that every
// receipt repeats.
func Unconfined(why string) SandboxPlan {
	return SandboxPlan{state: planUnconfined, why: why}
}

// IsZero reports whether p is the zero value, which is no plan.
func (p SandboxPlan) IsZero() bool { return p.state == planZero }

// IsUnconfined reports whether p was made by [Unconfined].
func (p SandboxPlan) IsUnconfined() bool { return p.state == planUnconfined }

// IsConfined reports whether p asks for a sandbox.
func (p SandboxPlan) IsConfined() bool { return p.state == planConfined }

// Preset returns the name of the preset that the plan started from.
func (p SandboxPlan) Preset() string { return p.preset }

// Why returns the reason of an unconfined plan.
func (p SandboxPlan) Why() string { return p.why }

// Rules returns a copy of the path rules, in the order in which they were added.
func (p SandboxPlan) Rules() []PathRule { return slices.Clone(p.rules) }

// ConnectTCP returns the TCP ports that may be connected to, sorted.
func (p SandboxPlan) ConnectTCP() []uint16 { return slices.Clone(p.connectTCP) }

// Destinations returns the addresses with a port that may be connected to by TCP,
// sorted: each of them, unlike the ports of ConnectTCP, on no other host.
func (p SandboxPlan) Destinations() []netip.AddrPort { return slices.Clone(p.destinations) }

// ModelGateway reports whether the agent reaches its model API through the
// gateway of its session, and the gateway's TCP port on the loopback interface:
// 0 while it is not open.
func (p SandboxPlan) ModelGateway() (port uint16, ok bool) { return p.gatewayPort, p.gateway }

// GatewayEnv returns a copy of the variables that lead the agent to the model
// gateway. They are not among those of Env.
func (p SandboxPlan) GatewayEnv() []EnvRule { return slices.Clone(p.gatewayEnv) }

// EgressDomains returns what may be connected to by name, sorted. There is nothing
// but the session's egress proxy that does it.
func (p SandboxPlan) EgressDomains() []EgressDomain { return slices.Clone(p.domains) }

// EgressEnv returns a copy of the variables that lead programs to the egress
// proxy. They are not among those of Env.
func (p SandboxPlan) EgressEnv() []EnvRule { return slices.Clone(p.egressEnv) }

// EgressPort returns the TCP port of the egress proxy on the loopback interface, 0
// if there is none, or none that is open yet.
func (p SandboxPlan) EgressPort() uint16 { return p.egressPort }

// ReachableDestinations returns what an enforcer grants: the destinations, and the
// model gateway and the egress proxy if they are open, which listen on 127.0.0.1.
func (p SandboxPlan) ReachableDestinations() []netip.AddrPort {
	var own []netip.AddrPort
	for _, port := range []uint16{p.gatewayPort, p.egressPort} {
		if port != 0 {
			own = append(own, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
		}
	}
	return p.WithDestinations(own...).destinations
}

// BindTCP returns the TCP ports that may be bound, sorted.
func (p SandboxPlan) BindTCP() []uint16 { return slices.Clone(p.bindTCP) }

// UDP reports whether UDP is allowed.
func (p SandboxPlan) UDP() bool { return p.udp }

// UnixSockets returns the choice for unix sockets.
func (p SandboxPlan) UnixSockets() UnixSockets { return p.unix }

// Env returns a copy of the environment rules, in order; a later rule of the
// same name replaces an earlier one.
func (p SandboxPlan) Env() []EnvRule { return slices.Clone(p.env) }

// Environ returns the child's whole environment as NAME=VALUE, in the order of
// the rules: literal values as they stand, the others as lookup gives them now.
// A variable that lookup does not have is left out. Those of the egress proxy and
// of the model gateway come last, and replace others of their names. It is called
// when the child is spawned, so that no value waits anywhere.
func (p SandboxPlan) Environ(lookup func(name string) (string, bool)) []string {
	rules := p.allEnv()
	env := make([]string, 0, len(rules))
	for _, r := range rules {
		value, ok := r.Value, r.Literal
		if !ok && lookup != nil {
			value, ok = lookup(r.Name)
		}
		if ok {
			env = append(env, r.Name+"="+value)
		}
	}
	return env
}

// allEnv are the environment rules, with those of the gateway and the proxy.
func (p SandboxPlan) allEnv() []EnvRule {
	return p.WithEnv(p.egressEnv...).WithEnv(p.gatewayEnv...).env
}

// Limits returns the limits.
func (p SandboxPlan) Limits() Limits { return p.limits }

// Waivers returns the waived properties, sorted.
func (p SandboxPlan) Waivers() []Property { return slices.Clone(p.waivers) }

// WithRules returns the plan with path rules added.
func (p SandboxPlan) WithRules(rules ...PathRule) SandboxPlan {
	p.rules = slices.Concat(p.rules, rules)
	return p
}

// MapRules returns the plan with every path rule replaced by what f makes of
// it; the first error stops it. It is how an application canonicalizes paths.
func (p SandboxPlan) MapRules(f func(PathRule) (PathRule, error)) (SandboxPlan, error) {
	rules := make([]PathRule, 0, len(p.rules))
	for _, r := range p.rules {
		m, err := f(r)
		if err != nil {
			return SandboxPlan{}, err
		}
		rules = append(rules, m)
	}
	p.rules = rules
	return p, nil
}

// WithConnectTCP returns the plan with TCP ports added that may be connected
// to, on any host.
func (p SandboxPlan) WithConnectTCP(ports ...uint16) SandboxPlan {
	p.connectTCP = union(p.connectTCP, ports)
	return p
}

// WithDestinations returns the plan with addresses added that may be connected to
// by TCP. An IPv4 address that is mapped into IPv6 counts as itself.
func (p SandboxPlan) WithDestinations(ds ...netip.AddrPort) SandboxPlan {
	all := slices.Clone(p.destinations)
	for _, d := range ds {
		all = append(all, netip.AddrPortFrom(d.Addr().Unmap(), d.Port()))
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	p.destinations = slices.Compact(all)
	return p
}

// WithUnixDestinations returns the plan with unix sockets added, by their paths,
// that may be connected to whatever else the plan says of unix sockets: as streams
// or sequenced packets, for which the child may make unix sockets then. A path is
// that of the socket itself, with no symbolic link in it; it is looked at, and what
// is there then is what can be connected to, once for every spawn.
func (p SandboxPlan) WithUnixDestinations(paths ...string) SandboxPlan {
	p.unixDestinations = union(p.unixDestinations, paths)
	return p
}

// UnixDestinations returns the paths of the unix sockets that may be connected to,
// sorted.
func (p SandboxPlan) UnixDestinations() []string { return slices.Clone(p.unixDestinations) }

// WithoutDestinations returns the plan without any destination, without the model
// gateway, and without what is reached by name.
func (p SandboxPlan) WithoutDestinations() SandboxPlan {
	p.destinations, p.unixDestinations = nil, nil
	p.gateway, p.gatewayPort, p.gatewayEnv = false, 0, nil
	p.domains, p.egressPort, p.egressEnv = nil, 0, nil
	return p
}

// WithEgressDomains returns the plan with hosts added that may be connected to by
// name, through the session's egress proxy.
func (p SandboxPlan) WithEgressDomains(domains ...EgressDomain) SandboxPlan {
	all := slices.Concat(p.domains, domains)
	slices.SortFunc(all, func(a, b EgressDomain) int { return strings.Compare(a.String(), b.String()) })
	p.domains = slices.CompactFunc(all, func(a, b EgressDomain) bool { return a.String() == b.String() })
	return p
}

// WithEgressProxy returns the plan with the egress proxy that is open for it: its
// port on the loopback interface, and the variables that lead programs there. As
// those of the model gateway they are other ones each time, and not in the digest.
func (p SandboxPlan) WithEgressProxy(port uint16, env ...EnvRule) SandboxPlan {
	p.egressPort, p.egressEnv = port, slices.Clone(env)
	return p
}

// WithModelGateway returns the plan with the model gateway of the session as
// the agent's way to its API: a port on the loopback interface, 0 for one that
// is not open yet, and the variables that lead the agent there. The port and the
// token in the variables are other ones each time that a session is opened, so
// the digest and everything printed say "model gateway" and neither of them.
func (p SandboxPlan) WithModelGateway(port uint16, env ...EnvRule) SandboxPlan {
	p.gateway, p.gatewayPort, p.gatewayEnv = true, port, slices.Clone(env)
	return p
}

// WithBindTCP returns the plan with TCP ports added that may be bound.
func (p SandboxPlan) WithBindTCP(ports ...uint16) SandboxPlan {
	p.bindTCP = union(p.bindTCP, ports)
	return p
}

// WithUDP returns the plan with UDP allowed or not.
func (p SandboxPlan) WithUDP(allow bool) SandboxPlan {
	p.udp = allow
	return p
}

// WithUnixSockets returns the plan with another choice for unix sockets.
func (p SandboxPlan) WithUnixSockets(u UnixSockets) SandboxPlan {
	p.unix = u
	return p
}

// WithEnv returns the plan with environment rules added; a rule replaces an
// earlier one of the same name.
func (p SandboxPlan) WithEnv(rules ...EnvRule) SandboxPlan {
	env := slices.Clone(p.env)
	for _, r := range rules {
		env = slices.DeleteFunc(env, func(o EnvRule) bool { return o.Name == r.Name })
		env = append(env, r)
	}
	p.env = env
	return p
}

// WithLimits returns the plan with its limits replaced.
func (p SandboxPlan) WithLimits(l Limits) SandboxPlan {
	p.limits = l
	return p
}

// WithWaivers returns the plan with properties added that it does without
// where the enforcer cannot guarantee them. A waiver never weakens what the
// enforcer can do.
func (p SandboxPlan) WithWaivers(ps ...Property) SandboxPlan {
	p.waivers = union(p.waivers, ps)
	return p
}

// WithOrigins returns the plan with who put there what has no Why of its own, for
// people: by a line of [SandboxPlan.Grants], such as "tcp connect 443", "udp
// allow" or "waive cpu", and "limit memory", "limit pids", "limit cpus", "limit
// timeout" and "limit idle". It is not in the digest.
func (p SandboxPlan) WithOrigins(origins map[string]string) SandboxPlan {
	all := make(map[string]string, len(p.origins)+len(origins))
	maps.Copy(all, p.origins)
	maps.Copy(all, origins)
	p.origins = all
	return p
}

// Origins returns a copy of what WithOrigins added.
func (p SandboxPlan) Origins() map[string]string { return maps.Clone(p.origins) }

// from says where the things of a row come from: each by its name in the row and
// its line of Grants.
func (p SandboxPlan) from(names []string, grant func(name string) string) string {
	var parts []string
	for _, name := range names {
		why := p.origins[grant(name)]
		if why == "" {
			continue
		}
		if name != "" {
			name += ": "
		}
		parts = append(parts, name+printable(why))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  # " + strings.Join(parts, ", ")
}

func union[T interface{ ~uint16 | ~string }](a, b []T) []T {
	u := slices.Concat(a, b)
	slices.Sort(u)
	return slices.Compact(u)
}

// Waives reports whether the plan does without the property.
func (p SandboxPlan) Waives(prop Property) bool { return slices.Contains(p.waivers, prop) }

// Requests reports whether the plan asks for the property at all. Everything
// is asked for by default but the limits; a plan that allows UDP does not ask
// for its absence.
func (p SandboxPlan) Requests(prop Property) bool {
	if !p.IsConfined() {
		return false
	}
	switch prop {
	case PropertyUDP:
		return !p.udp
	case PropertyDestinations:
		return len(p.destinations)+len(p.unixDestinations)+len(p.domains) > 0 || p.gateway
	case PropertyUnixSockets:
		return p.unix != UnixSocketsAllow
	case PropertyMemory:
		return p.limits.MemoryBytes > 0
	case PropertyPids:
		return p.limits.Pids > 0
	case PropertyCPU:
		return p.limits.CPUs > 0
	}
	return true
}

// Validate returns nil for a plan that is well formed, and otherwise every
// problem, joined. The zero plan gives [ErrNoSandbox]. It does not look at the
// file system: whether a path exists is the enforcer's business.
func (p SandboxPlan) Validate() error {
	if p.IsZero() {
		return ErrNoSandbox
	}
	var errs []error
	bad := func(what, value, reason, remedy string) {
		errs = append(errs, &InvalidError{What: what, Value: value, Reason: reason, Remedy: remedy})
	}
	if p.IsUnconfined() && (len(p.rules)+len(p.connectTCP)+len(p.destinations)+len(p.domains)+len(p.unixDestinations)+len(p.bindTCP)+len(p.waivers) > 0 || p.gateway || p.udp || p.unix != UnixSocketsDeny) {
		bad("plan", "unconfined", "has rules, but nothing would enforce them", "leave the rules out, or confine the turn")
	}
	for _, r := range p.rules {
		switch {
		case r.Path == "":
			bad("path rule", r.Path, "empty path", "name a file or a directory")
		case strings.ContainsRune(r.Path, 0):
			bad("path rule", r.Path, "a NUL byte in a path", "name a file or a directory")
		case !path.IsAbs(r.Path) || path.Clean(r.Path) != r.Path:
			bad("path rule", r.Path, "not an absolute, clean path", "pass "+quote(path.Clean("/"+r.Path))+" or another absolute path")
		}
		if r.Access == 0 || r.Access&^allAccess != 0 {
			bad("path rule", r.Path, "access "+r.Access.String()+" is no set of access rights", "name at least one right")
		}
		if r.Presence > Optional {
			bad("path rule", r.Path, "unknown presence", "required or optional")
		}
	}
	for _, d := range p.destinations {
		if !isDestination(d) {
			errs = append(errs, notADestination(d.String()))
		}
	}
	for _, d := range p.domains {
		if d.host == "" {
			bad("domain", "", "the zero value", "make it with ParseEgressDomain")
		}
	}
	for _, path := range p.unixDestinations {
		if !isSocketPath(path) {
			errs = append(errs, notASocketPath(path))
		}
	}
	for _, port := range p.connectTCP {
		if port == 0 {
			bad("port", "0", "port 0 cannot be connected to", "1 to 65535")
		}
	}
	if p.unix > UnixSocketsAllow {
		bad("unix sockets", fmt.Sprint(uint8(p.unix)), "unknown choice", "deny, own or allow")
	}
	for _, e := range slices.Concat(p.env, p.egressEnv, p.gatewayEnv) {
		switch {
		case e.Name == "" || strings.ContainsAny(e.Name, "=\x00"):
			bad("environment variable", e.Name, "no name of a variable", "NAME or NAME=VALUE")
		case strings.ContainsRune(e.Value, 0):
			bad("environment variable", e.Name, "a NUL byte in the value", "remove it")
		case !e.Literal && e.Value != "":
			bad("environment variable", e.Name, "a value that is not literal", "set Literal")
		}
	}
	limit := func(what string, value any, ok bool) {
		if !ok {
			bad("limit on "+what, fmt.Sprint(value), "not zero or a positive, finite number", "zero means no limit")
		}
	}
	// Not CPUs < 0: a NaN must not pass as no limit.
	limit("cpus", p.limits.CPUs, p.limits.CPUs >= 0 && !math.IsInf(p.limits.CPUs, 0))
	limit("wall clock", p.limits.WallClock, p.limits.WallClock >= 0)
	limit("idle time", p.limits.Idle, p.limits.Idle >= 0)
	for _, w := range p.waivers {
		if _, err := ParseProperty(string(w)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Digest identifies what the plan confines: the rules, the network, the names
// of the environment variables, the limits on memory, pids and processors, and
// the waivers. The order of the rules, their reasons, the values of the
// environment and the time limits do not count; of the model gateway it counts
// that there is one, of the egress proxy the domains, and neither their ports nor
// their variables. Two turns of a conversation must have the same digest. It is only as canonical as the paths are.
func (p SandboxPlan) Digest() string {
	// It is made for every spawn, so it does without fmt.
	var text []byte
	field := func(name string, values ...string) {
		text = append(text, name...)
		text = strconv.AppendInt(append(text, ' '), int64(len(values)), 10)
		for _, v := range values {
			text = strconv.AppendInt(append(text, '\n'), int64(len(v)), 10)
			text = append(append(text, ':'), v...)
		}
		text = append(text, '\n')
	}
	num := func(n uint64) string { return strconv.FormatUint(n, 10) }
	ports := func(ports []uint16) string {
		s := ""
		for _, port := range ports {
			s += num(uint64(port)) + " "
		}
		return s
	}
	field("plan", "1", num(uint64(p.state)))
	rules, env, waivers := make([]string, 0, len(p.rules)), make([]string, 0, len(p.env)), make([]string, 0, len(p.waivers))
	for _, r := range p.rules {
		rules = append(rules, num(uint64(r.Access))+" "+num(uint64(r.Presence))+" "+r.Path)
	}
	for _, e := range p.env {
		env = append(env, e.Name)
	}
	for _, w := range p.waivers {
		waivers = append(waivers, string(w))
	}
	slices.Sort(rules)
	slices.Sort(env)
	field("rules", slices.Compact(rules)...)
	field("env", env...)
	field("waivers", waivers...)
	if len(p.destinations) > 0 {
		field("destinations", strings.Join(addresses(p.destinations), " "))
	}
	if len(p.unixDestinations) > 0 {
		field("unix destinations", p.unixDestinations...)
	}
	field("net", ports(p.connectTCP), ports(p.bindTCP), strconv.FormatBool(p.udp), p.unix.String())
	if p.gateway {
		field("model gateway")
	}
	if len(p.domains) > 0 {
		field("domains", p.EgressNames()...)
	}
	field("limits", num(p.limits.MemoryBytes), num(p.limits.Pids), strconv.FormatFloat(p.limits.CPUs, 'g', -1, 64))
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Grants returns what [SandboxPlan.Digest] counts as lines for people: one per
// rule, port, variable and waiver, and one for the limits. A record keeps them,
// so that it can be told later what has changed. The reason of a path rule
// stands behind "  # ".
func (p SandboxPlan) Grants() []string {
	var lines []string
	add := func(set bool, format string, args ...any) {
		if set {
			lines = append(lines, fmt.Sprintf(format, args...))
		}
	}
	add(p.IsUnconfined(), "unconfined")
	for _, r := range p.rules {
		lines = append(lines, r.text("%s %s"))
	}
	for _, port := range p.connectTCP {
		add(true, "tcp connect %d", port)
	}
	for _, d := range p.destinations {
		add(true, "tcp connect %s", d)
	}
	add(p.gateway, "tcp connect model gateway")
	for _, name := range p.EgressNames() {
		add(true, "domain %s", name)
	}
	for _, port := range p.bindTCP {
		add(true, "tcp bind %d", port)
	}
	add(p.udp, "udp allow")
	add(p.unix != UnixSocketsDeny, "unix sockets %s", p.unix)
	for _, path := range p.unixDestinations {
		lines = append(lines, UnixDestinationGrant(path))
	}
	for _, e := range p.env {
		add(true, "variable %s", word(e.Name))
	}
	limits := Limits{MemoryBytes: p.limits.MemoryBytes, Pids: p.limits.Pids, CPUs: p.limits.CPUs}
	add(limits != Limits{}, "limits %s", limits)
	for _, w := range p.waivers {
		add(true, "waive %s", printable(string(w)))
	}
	return lines
}

// DiffGrants compares two results of [SandboxPlan.Grants]. Reasons and order do
// not count.
func DiffGrants(was, is []string) (added, removed []string) {
	without := func(lines, others []string) (rest []string) {
		there := map[string]bool{}
		for _, o := range others {
			what, _, _ := strings.Cut(o, "  # ")
			there[what] = true
		}
		for _, l := range lines {
			if what, _, _ := strings.Cut(l, "  # "); !there[what] {
				rest = append(rest, l)
			}
		}
		return rest
	}
	return without(is, was), without(was, is)
}

// String prints the plan so that a person can review it. Secret values and
// values of the environment are not shown.
func (p SandboxPlan) String() string {
	switch p.state {
	case planZero:
		return "no sandbox plan (zero value)"
	case planUnconfined:
		return "unconfined: " + printable(p.why)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s\n", printable(p.preset))
	for _, r := range p.rules {
		fmt.Fprintf(&b, "  %s\n", r)
	}
	// A row must not promise what the plan does without.
	waived := func(prop Property) string {
		if p.Requests(prop) && p.Waives(prop) {
			return "  (waived: not enforced where the kernel cannot)"
		}
		return ""
	}
	prefixed := func(prefix string) func(string) string {
		return func(name string) string { return prefix + name }
	}
	portsFrom := func(list []uint16, prefix string) string {
		if len(list) == 0 {
			return ""
		}
		return p.from(strings.Fields(portList(list)), prefixed(prefix))
	}
	connect := portList(p.connectTCP)
	if p.gateway {
		connect = strings.TrimPrefix(connect+" and the model gateway", "none and ")
	}
	fmt.Fprintf(&b, "  tcp connect      %s%s%s\n", connect, waived(PropertyTCP), portsFrom(p.connectTCP, "tcp connect "))
	if len(p.destinations) > 0 {
		to := addresses(p.destinations)
		fmt.Fprintf(&b, "  tcp connect to   %s%s%s\n", strings.Join(to, " "), waived(PropertyDestinations), p.from(to, prefixed("tcp connect ")))
	}
	if len(p.domains) > 0 {
		names := p.EgressNames()
		fmt.Fprintf(&b, "  domains          %s%s%s\n", strings.Join(names, " "), waived(PropertyDestinations), p.from(names, prefixed("domain ")))
	}
	fmt.Fprintf(&b, "  tcp bind         %s%s%s\n", portList(p.bindTCP), waived(PropertyTCP), portsFrom(p.bindTCP, "tcp bind "))
	udp, udpFrom := "deny", ""
	if p.udp {
		udp, udpFrom = "allow", p.from([]string{""}, prefixed("udp allow"))
	}
	fmt.Fprintf(&b, "  udp              %s%s%s\n", udp, waived(PropertyUDP), udpFrom)
	fmt.Fprintf(&b, "  unix sockets     %s%s%s\n", p.unix, waived(PropertyUnixSockets), p.from([]string{""}, prefixed("unix sockets "+p.unix.String())))
	if len(p.unixDestinations) > 0 {
		to := make([]string, 0, len(p.unixDestinations))
		for _, path := range p.unixDestinations {
			to = append(to, word(path))
		}
		fmt.Fprintf(&b, "  unix connect to  %s%s%s\n", strings.Join(to, " "), waived(PropertyDestinations), p.from(to, prefixed("unix connect ")))
	}
	p.environmentRows(&b)
	if p.limits != (Limits{}) {
		fmt.Fprintf(&b, "  limits           %s%s\n", p.limits, p.from(p.limits.names(), prefixed("limit ")))
	}
	if len(p.waivers) > 0 {
		names := make([]string, 0, len(p.waivers))
		for _, w := range p.waivers {
			names = append(names, string(w))
		}
		fmt.Fprintf(&b, "  waived           %s%s\n", joinProperties(p.waivers), p.from(names, prefixed("waive ")))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// environmentRows prints the names of the variables, a row for each reason.
func (p SandboxPlan) environmentRows(b *strings.Builder) {
	var reasons []string
	names := map[string][]string{}
	for _, e := range p.allEnv() {
		if names[e.Why] == nil {
			reasons = append(reasons, e.Why)
		}
		names[e.Why] = append(names[e.Why], word(e.Name))
	}
	for _, why := range reasons {
		fmt.Fprintf(b, "  environment      %s", strings.Join(names[why], " "))
		if why != "" {
			fmt.Fprintf(b, "  # %s", printable(why))
		}
		b.WriteByte('\n')
	}
}

// GoString is String, for %#v.
func (p SandboxPlan) GoString() string { return p.String() }

// names lists the limits that are set, as their origins name them.
func (l Limits) names() []string {
	var names []string
	for _, n := range []struct {
		name string
		set  bool
	}{
		{"memory", l.MemoryBytes > 0}, {"pids", l.Pids > 0}, {"cpus", l.CPUs > 0}, {"timeout", l.WallClock > 0}, {"idle", l.Idle > 0},
	} {
		if n.set {
			names = append(names, n.name)
		}
	}
	return names
}

// String lists the limits that are set.
func (l Limits) String() string {
	var parts []string
	add := func(set bool, format string, v any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add(l.MemoryBytes > 0, "memory %d bytes", l.MemoryBytes)
	add(l.Pids > 0, "pids %d", l.Pids)
	add(l.CPUs > 0, "cpus %g", l.CPUs)
	add(l.WallClock > 0, "wall clock %s", l.WallClock)
	add(l.Idle > 0, "idle %s", l.Idle)
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// EgressNames are the domains of [SandboxPlan.EgressDomains] in their canonical form,
// nil for none.
func (p SandboxPlan) EgressNames() []string {
	var names []string
	for _, d := range p.domains {
		names = append(names, d.String())
	}
	return names
}

func addresses(list []netip.AddrPort) []string {
	words := make([]string, 0, len(list))
	for _, d := range list {
		words = append(words, d.String())
	}
	return words
}

func portList(ports []uint16) string {
	if len(ports) == 0 {
		return "none"
	}
	s := make([]string, len(ports))
	for i, p := range ports {
		s[i] = fmt.Sprint(p)
	}
	return strings.Join(s, " ")
}

// printable shows a path or a reason on one line: as it is when it is plain,
// quoted when it has control bytes or is not valid UTF-8.
func printable(s string) string {
	q := fmt.Sprintf("%q", s)
	if q == `"`+s+`"` {
		return s
	}
	return q
}

// word is printable for what stands among other words: quoted also when it is
// empty or has a space, so that a path cannot imitate what follows it.
func word(s string) string {
	if s == "" || strings.Contains(s, " ") {
		return strconv.Quote(s)
	}
	return printable(s)
}
