package application

import (
	"context"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// findPolicy returns the policy of a launch: that of the source, which may be
// nil, with the request's on top. Without a sandbox nothing would keep what the
// source grants, so that is left out; what the request itself grants is not, and
// is refused later, since somebody asked for both.
func findPolicy(ctx context.Context, source ports.PolicySource, place ports.PolicyPlace, mode SandboxMode, requested Policy) (ports.FoundPolicy, error) {
	if source == nil {
		return ports.FoundPolicy{Policy: requested}, nil
	}
	found, err := source.FindPolicy(ctx, place)
	if err != nil {
		return ports.FoundPolicy{}, err
	}
	if mode.off {
		found.Policy = found.Policy.WithoutGrants()
	}
	found.Policy = found.Policy.With(requested)
	return found, nil
}

// findPolicy is the part of step 5a that takes the private directories: it asks
// for the policy of the session.
func (l *launch) findPolicy(ctx context.Context) error {
	found, err := findPolicy(ctx, l.req.PolicySource, ports.PolicyPlace{
		Agent: l.req.Agent, Agents: l.o.Agents(), Workspace: l.workspace, Access: domain.AccessReadWriteExec,
		Home: l.home, State: l.dirs.State, Temp: l.dirs.Temp,
	}, l.req.Sandbox, l.req.Policy)
	if err != nil {
		return err
	}
	l.req.Policy = found.Policy
	if l.req.Tripwires == TripwiresReport {
		l.req.Tripwires = found.Tripwires
	}
	l.req.DirectAPI = l.req.DirectAPI || found.DirectAPI
	l.notes = append(l.notes, found.Notes...)
	l.guarded = found.Guarded
	return nil
}

// guard returns what no plan may let be written because policies come from it:
// what the orchestrator was told of, and what a source names.
func (o *Orchestrator) guard(named []string) []program {
	var ps []program
	for _, paths := range [][]string{o.guarded, named} {
		for _, path := range paths {
			if canonical, _, err := canonicalPath(path); err == nil {
				path = canonical
			}
			ps = append(ps, program{path: path, what: "Caisson's policies and what they trust", remedy: "grant a directory that does not contain it"})
		}
	}
	return ps
}
