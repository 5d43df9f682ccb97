package domain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// FileOp is an operation on a file that one can ask a plan about. There is no
// zero value that means something.
type FileOp string

// The operations.
const (
	// OpRead opens a file for reading, or lists a directory.
	OpRead FileOp = "read"
	// OpWrite opens an existing file for writing.
	OpWrite FileOp = "write"
	// OpExec runs a program.
	OpExec FileOp = "exec"
	// OpCreate makes a regular file and opens it for writing.
	OpCreate FileOp = "create"
	// OpDelete removes a file or an empty directory.
	OpDelete FileOp = "delete"
	// OpRename moves a file or a directory.
	OpRename FileOp = "rename"
)

// FileOps returns all operations.
func FileOps() []FileOp {
	return []FileOp{OpRead, OpWrite, OpExec, OpCreate, OpDelete, OpRename}
}

// ParseFileOp returns the operation of that name, or a *[InvalidError].
func ParseFileOp(name string) (FileOp, error) {
	var names []string
	for _, op := range FileOps() {
		if string(op) == name {
			return op, nil
		}
		names = append(names, string(op))
	}
	return "", &InvalidError{What: "operation", Value: name, Reason: "unknown", Remedy: "one of " + strings.Join(names, ", ")}
}

// Need is a set of rights that an operation needs at one place.
type Need struct {
	// Place is the canonical path of the file or directory that must carry the
	// rights, itself or by one of the directories above it.
	Place  string
	Access Access
	// Missing is the part of Access that no rule grants there.
	Missing Access
	// Rules are the rules that reach the place, the nearest first, whatever they
	// grant.
	Rules []PathRule
	// Detail says why the rights are needed, where that is not obvious.
	Detail string
}

// Explanation says whether a plan allows something, and why. The zero value
// denies.
type Explanation struct {
	// Question is what was asked, in words: "write /srv/data".
	Question string
	Allowed  bool
	// Needs are the rights that a file operation takes; empty for another one.
	Needs []Need
	// Because says what decided, in a sentence.
	Because string
	// Change is the narrowest addition to the plan that would allow it; empty
	// where it is allowed, and where nothing that a policy can say would do.
	Change Change
	// Notes are what else matters: what the answer does not cover.
	Notes []string
}

// Change is an addition to a plan. The zero value adds nothing.
type Change struct {
	Rules      []PathRule
	ConnectTCP []uint16
	// Destinations are narrower than ConnectTCP.
	Destinations []netip.AddrPort
	// Domains are narrower still where a host has a name.
	Domains []EgressDomain
	// UnixDestinations are narrower than UnixSockets.
	UnixDestinations []string
	UnixSockets      UnixSockets
}

// IsZero reports whether the change adds nothing.
func (c Change) IsZero() bool {
	return len(c.Rules) == 0 && len(c.ConnectTCP) == 0 && len(c.Destinations) == 0 && len(c.Domains) == 0 && len(c.UnixDestinations) == 0 && c.UnixSockets == UnixSocketsDeny
}

// ExplainFile makes the explanation of a file operation out of what it needs:
// it is allowed if nothing is missing anywhere.
func ExplainFile(question string, needs []Need) Explanation {
	e := Explanation{Question: question, Allowed: true, Needs: needs}
	var why []string
	for _, n := range needs {
		if n.Missing == 0 {
			continue
		}
		e.Allowed = false
		what := fmt.Sprintf("nothing grants %s on %s", n.Missing, printable(n.Place))
		if n.Detail != "" {
			what += " (" + n.Detail + ")"
		}
		if len(n.Rules) > 0 {
			what += "; the nearest rule grants " + n.Rules[0].Access.String() + " on " + printable(n.Rules[0].Path)
		}
		why = append(why, what)
		e.Change = e.Change.Grant(n.Place, n.Missing)
	}
	for _, n := range needs {
		rest := n.Access
		for _, r := range n.Rules {
			if a := r.Access & rest; e.Allowed && a != 0 {
				why = append(why, fmt.Sprintf("%s (%s) grants %s on %s", printable(r.Path), printable(r.Why), a, printable(n.Place)))
				rest &^= a
			}
		}
	}
	e.Because = strings.Join(why, "; ")
	return e
}

// Grant returns the change with a rule for the place that has the rights, by the
// smallest usual set that holds them. Rights that are in no usual set, those on
// device nodes, are added by themselves.
func (c Change) Grant(place string, missing Access) Change {
	c.Rules = slices.Clone(c.Rules)
	for i, r := range c.Rules {
		if r.Path == place {
			c.Rules[i].Access = smallestSet(r.Access | missing)
			return c
		}
	}
	c.Rules = append(c.Rules, PathRule{Path: place, Access: smallestSet(missing)})
	return c
}

// smallestSet returns the smallest usual set that has the rights, or the rights
// themselves if none has.
func smallestSet(a Access) Access {
	for _, usual := range UsualAccesses() {
		if usual.Access.Has(a) {
			return usual.Access
		}
	}
	return a
}

// Hint is the explanation in one sentence, with the change that would allow what
// is denied.
func (e Explanation) Hint() string {
	if e.Allowed {
		return "the plan allows to " + e.Question + ": " + e.Because
	}
	hint := "the plan denies to " + e.Question + ": " + e.Because
	if !e.Change.IsZero() {
		hint += "; to allow it, grant " + e.Change.String()
	}
	return hint
}

// String lists what the change adds.
func (c Change) String() string {
	var parts []string
	for _, r := range c.Rules {
		parts = append(parts, r.Access.String()+" on "+word(r.Path))
	}
	for _, d := range c.Destinations {
		parts = append(parts, "TCP to "+d.String())
	}
	for _, d := range c.Domains {
		parts = append(parts, "the domain "+d.String())
	}
	for _, p := range c.ConnectTCP {
		parts = append(parts, fmt.Sprintf("TCP port %d on every host", p))
	}
	for _, path := range c.UnixDestinations {
		parts = append(parts, "the unix socket "+word(path))
	}
	if c.UnixSockets != UnixSocketsDeny {
		parts = append(parts, "unix sockets: "+c.UnixSockets.String())
	}
	return strings.Join(parts, ", ")
}
