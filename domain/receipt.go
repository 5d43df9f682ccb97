package domain

import (
	"fmt"
	"net/netip"
	"strings"
)

// TreeControl names how the end of a turn gets rid of every process that the
// turn left behind.
type TreeControl string

// The ways.
const (
	// TreeKeeper: a keeper process in an outer Landlock domain kills every
	// member of the domain at once, whatever they did, and also when the
	// orchestrator dies.
	TreeKeeper TreeControl = "keeper"
	// TreeCgroup: the kernel kills a control group that has every descendant.
	TreeCgroup TreeControl = "cgroup"
	// TreeWalk: /proc is searched for descendants by parent, session, process
	// group and an environment mark. A process that sheds all of them escapes.
	TreeWalk TreeControl = "walk"
	// TreeNone: only the process itself is ended.
	TreeNone TreeControl = "none"
)

// GrantedRule is a path rule as it was really given to the kernel.
type GrantedRule struct {
	Path      string // as planned
	Canonical string // as resolved, "" if skipped
	Access    Access // what was really granted
	Skipped   string // why it was not granted, for an optional rule
	Why       string
}

// Receipt says what was asked, what was enforced and what was not, for one
// spawned child. The zero value is no receipt.
type Receipt struct {
	Unconfined bool
	Why        string // of an unconfined child
	Preset     string
	Enforcer   string // "landlock", …
	ABI        int    // of Landlock, 0 if not used
	Layers     []string
	Properties []PropertyStatus
	Rules      []GrantedRule
	ConnectTCP []uint16
	// Destinations are reached by TCP at that address alone, unless the property
	// of that name is waived.
	Destinations []netip.AddrPort
	// Domains are reached by name, through the session's egress proxy, which is one
	// of the destinations. They are text, because a receipt stays readable whatever a
	// later Caisson takes for a domain.
	Domains []string
	// UnixDestinations are the unix sockets that can be connected to by their paths,
	// beside those that the plan allows altogether.
	UnixDestinations []string
	BindTCP          []uint16
	// Open lists what stays possible by the enforcer's nature.
	Open []string
	// Agent repeats what the agent's adapter switched off or on by itself,
	// such as the agent's inner sandbox.
	Agent      []string
	PlanDigest string
	Tree       TreeControl
	// InheritedFDs is true if descriptors of the host were left open to the
	// child at the embedder's wish.
	InheritedFDs bool
	// Probe says how the confinement was tried when the session was opened.
	Probe Probe
}

// InState returns the properties that are in that state.
func (r Receipt) InState(s PropertyState) []Property {
	var ps []Property
	for _, p := range r.Properties {
		if p.State == s {
			ps = append(ps, p.Property)
		}
	}
	return ps
}

// String is the one line that a person reads before a turn.
func (r Receipt) String() string {
	if r.Unconfined {
		return "UNCONFINED: " + printable(r.Why)
	}
	if r.Enforcer == "" {
		return "no receipt (zero value)"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "confined by %s", printable(r.Enforcer))
	if r.ABI > 0 {
		fmt.Fprintf(&b, " (ABI %d)", r.ABI)
	}
	granted := 0
	for _, g := range r.Rules {
		if g.Skipped == "" {
			granted++
		}
	}
	tcp := portList(r.ConnectTCP)
	if len(r.Destinations) > 0 {
		tcp = strings.Join(addresses(r.Destinations), " ")
		if len(r.ConnectTCP) > 0 {
			tcp = portList(r.ConnectTCP) + " " + tcp
		}
	}
	fmt.Fprintf(&b, "; %d paths granted; tcp %s", granted, tcp)
	if len(r.Domains) > 0 {
		fmt.Fprintf(&b, "; domains %s", printable(strings.Join(r.Domains, " ")))
	}
	for i, path := range r.UnixDestinations {
		b.WriteString([]string{"; unix ", " "}[min(i, 1)] + word(path))
	}
	if w := r.InState(StateWaived); len(w) > 0 {
		fmt.Fprintf(&b, "; waived: %s", joinProperties(w))
	}
	if probe := r.Probe.String(); probe != "" {
		b.WriteString("; " + probe)
	}
	return b.String()
}
