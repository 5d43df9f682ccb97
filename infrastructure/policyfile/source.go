package policyfile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Name is the name of the policy in a workspace.
const Name = ".caisson.toml"

// UserName is the name of the user's own policy, in Caisson's configuration.
const UserName = "policy.toml"

// Source finds the policy of a launch. One file is used: File if it is set,
// otherwise the trusted one in the workspace, otherwise the user's own, otherwise
// none.
type Source struct {
	// File is an absolute path. It need not be trusted: whoever names it does.
	File string
	// LookupEnv returns a variable of the environment, which says where the
	// configuration is. Nil is for no configuration: nothing in a workspace is
	// trusted then.
	LookupEnv func(name string) (string, bool)
	// Replaced are keys, such as "limits.timeout", whose value does not count
	// because the request has its own.
	Replaced []string
	// Notice is called, if it is set, with what a person should be told at once.
	Notice func(text string)
}

var _ ports.PolicySource = (*Source)(nil)

// FindPolicy implements [ports.PolicySource]. Faults are *[Error] values, joined.
func (s *Source) FindPolicy(ctx context.Context, place ports.PolicyPlace) (ports.FoundPolicy, error) {
	if err := context.Cause(ctx); err != nil {
		return ports.FoundPolicy{}, err
	}
	if s.File != "" {
		return s.named(place)
	}
	config := ""
	if s.LookupEnv != nil {
		config = ConfigDir(s.LookupEnv)
	}
	var notes []string
	if path := filepath.Join(place.Workspace, Name); place.Workspace != "" && exists(path) {
		found, unused, err := s.workspaces(path, config, place)
		if err != nil || unused == "" {
			return found, err
		}
		notes = append(notes, unused)
		if s.Notice != nil {
			s.Notice(unused)
		}
	}
	found, err := s.users(config, place)
	found.Notes = append(notes, found.Notes...)
	return found, err
}

// named returns the policy in File.
func (s *Source) named(place ports.PolicyPlace) (ports.FoundPolicy, error) {
	found, documents, err := load(s.File, place, true, nil, s.Replaced)
	if err != nil {
		return ports.FoundPolicy{}, err
	}
	found.Notes = usedNotes(documents)
	for _, d := range documents {
		if writable(found.Policy, place, d.Path) {
			found.Notes = append(found.Notes, "policy: "+d.Path+" can be changed under the plan that it makes, and is used again next time")
		}
	}
	return found, nil
}

// workspaces returns the policy in the workspace, or why it is not used.
func (s *Source) workspaces(path, config string, place ports.PolicyPlace) (found ports.FoundPolicy, unused string, err error) {
	content, err := read(path, false)
	if err != nil {
		return found, fmt.Sprintf("policy: %s is not used: %v", path, cause(err)), nil
	}
	ask := func(what string) string {
		return fmt.Sprintf("policy: %s is not used: %s; look at it with \"caisson policy show %s\", and trust it with \"caisson policy trust %s\"", path, what, path, path)
	}
	if config == "" {
		return found, ask("nothing can be trusted without a configuration directory"), nil
	}
	trusted, err := NewTrust(config).Documents(path)
	switch {
	case err != nil:
		return found, "", err
	case trusted == nil:
		return found, ask("you have not trusted it"), nil
	case trusted[0].SHA256 != digest(content):
		return found, ask("it has changed since you trusted it"), nil
	}
	var changed *changedError
	found, documents, err := load(path, place, false, func(d Document) error {
		if !slices.Contains(trusted, d) {
			return &changedError{d.Path}
		}
		return nil
	}, s.Replaced)
	if errors.As(err, &changed) {
		return ports.FoundPolicy{}, ask(changed.Error()), nil
	}
	found.Notes = usedNotes(documents)
	return found, "", err
}

// changedError is a file that is not as it was when it was trusted.
type changedError struct{ path string }

func (e *changedError) Error() string { return e.path + " has changed since you trusted it" }

// users returns the user's own policy, if there is one.
func (s *Source) users(config string, place ports.PolicyPlace) (ports.FoundPolicy, error) {
	path := filepath.Join(config, UserName)
	if config == "" || !exists(path) {
		return ports.FoundPolicy{}, nil
	}
	found, documents, err := load(path, place, true, nil, s.Replaced)
	if err != nil {
		return ports.FoundPolicy{}, err
	}
	found.Notes = usedNotes(documents)
	for _, d := range documents {
		found.Guarded = append(found.Guarded, d.Path)
	}
	return found, nil
}

func usedNotes(documents []Document) []string {
	var notes []string
	for _, d := range documents {
		notes = append(notes, fmt.Sprintf("policy: %s (sha256 %.12s)", d.Path, d.SHA256))
	}
	return notes
}

// writable reports whether a policy lets a file be changed.
func writable(p domain.Policy, place ports.PolicyPlace, path string) bool {
	workspace := p.Workspace
	if workspace == 0 {
		workspace = place.Access
	}
	rules := append([]domain.PathRule{{Path: place.Workspace, Access: workspace}}, p.Rules...)
	return slices.ContainsFunc(rules, func(r domain.PathRule) bool {
		return r.Access&domain.AccessWrite != 0 && covers(r.Path, path)
	})
}
