package process

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// ProbeSpec is what a probe needs.
type ProbeSpec struct {
	// Line is as that of a turn. Nothing of it is started.
	Line domain.SpawnLine
	// Granted is a directory that the plan lets be written; "" if none is known.
	Granted string
	// Denied is a directory of the orchestrator's own, which no plan grants; ""
	// if there is none. Where the plan grants it all the same, the probe looks
	// for another place.
	Denied string
}

// wraps says by which program a confinement runs the command, "" if it runs it
// as it is: then it is Apply that restricts.
func wraps(asked, line domain.SpawnLine) string {
	if asked.Path == line.Path && slices.Equal(asked.Argv, line.Argv) {
		return ""
	}
	return line.Path
}

// unenforced says why a property need not hold, "" if it must. An enforcer that
// says nothing about it does not enforce it, and of two answers the weaker
// counts.
func unenforced(statuses []domain.PropertyStatus, p domain.Property) string {
	said := false
	for _, s := range statuses {
		switch {
		case s.Property != p:
		case s.State == domain.StateEnforced:
			said = true
		default:
			return strings.TrimSuffix(string(p)+" is "+string(s.State)+": "+s.Detail, ": ")
		}
	}
	if !said {
		return "the enforcer says nothing about " + string(p)
	}
	return ""
}
