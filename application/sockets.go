package application

import (
	"io/fs"
	"maps"
	"os"

	"github.com/caisson-run/caisson/domain"
)

// resolveSockets makes the paths of a policy's unix destinations canonical. What is
// there must be a socket by now: it is a place that a person has looked at, and not
// one where something may come to stand. The paths must be valid.
func resolveSockets(policy Policy) (Policy, error) {
	paths := make([]string, 0, len(policy.UnixDestinations))
	for _, path := range policy.UnixDestinations {
		refused := func(reason string, err error) (Policy, error) {
			return Policy{}, &domain.InvalidError{
				What: "unix destination", Value: path, Reason: reason, Remedy: "start what listens there first, or leave the socket out", Err: err,
			}
		}
		if err := domain.NewSandboxPlan("").WithUnixDestinations(path).Validate(); err != nil {
			return Policy{}, err
		}
		canonical, exists, err := canonicalPath(path)
		switch {
		case err != nil:
			return refused("cannot be resolved", err)
		case !exists:
			return refused("does not exist", nil)
		}
		info, err := os.Lstat(canonical)
		switch {
		case err != nil:
			return refused("cannot be looked at", err)
		case info.Mode()&fs.ModeSocket == 0:
			return refused("no unix socket", nil)
		}
		if was, is := domain.UnixDestinationGrant(path), domain.UnixDestinationGrant(canonical); was != is {
			policy.Origins = maps.Clone(policy.Origins)
			if why := policy.Origins[was]; why != "" {
				policy.Origins[is] = why + " " + path // so that a person finds what was said
			}
			delete(policy.Origins, was)
		}
		paths = append(paths, canonical)
	}
	if len(paths) > 0 {
		policy.UnixDestinations = paths
	}
	return policy, nil
}
