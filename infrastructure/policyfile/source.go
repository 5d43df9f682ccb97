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
	if place.Workspace != "" {
		path := filepath.Join(place.Workspace, Name)
		found, used, err := s.workspaces(path, config, place)
		if used || err != nil {
			return found, err
		}
		if exists(path) {
			unused := fmt.Sprintf("policy: %s is not used: you have not trusted it; %s", path, howToTrust(path))
			if config == "" {
				unused = fmt.Sprintf("policy: %s is not used: nothing can be trusted without a configuration directory; set HOME or XDG_CONFIG_HOME", path)
			}
			notes = append(notes, unused)
			if s.Notice != nil {
				s.Notice(unused)
			}
		}
	}
	found, err := s.users(config, place)
	found.Notes = append(notes, found.Notes...)
	return found, err
}

func howToTrust(path string) string {
	return fmt.Sprintf("look at it with \"caisson policy show %s\", and trust it with \"caisson policy trust %s\"", path, path)
}

// ChangedError refuses a launch because the policy of its workspace is not as it
// was when its user trusted it. To go on without it would be wider where the policy
// narrowed something, and the agent can change it.
type ChangedError struct {
	Path string // of the policy
	File string // what is not as it was: the policy, or what it extends
	Err  error  // why it cannot be read; nil if it can
}

func (e *ChangedError) Error() string {
	s := "policy: " + e.File + " is not as it was when you trusted " + e.Path
	if e.File == e.Path {
		s = "policy: " + e.Path + " is not as it was when you trusted it"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s; %s, forget it with \"caisson policy untrust %s\", or pass --policy none", s, howToTrust(e.Path), e.Path)
}

func (e *ChangedError) Unwrap() error { return e.Err }

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

// workspaces returns the policy in the workspace, if it was ever trusted.
func (s *Source) workspaces(path, config string, place ports.PolicyPlace) (found ports.FoundPolicy, used bool, err error) {
	if config == "" {
		return found, false, nil
	}
	trusted, err := NewTrust(config).Documents(path)
	if err != nil || trusted == nil {
		return found, false, err
	}
	changed := false
	found, documents, err := load(path, place, false, func(d Document) error {
		if changed = !slices.Contains(trusted, d); changed {
			return &ChangedError{Path: path, File: d.Path}
		}
		return nil
	}, s.Replaced)
	if err != nil && len(documents) == 0 && !changed {
		err = &ChangedError{Path: path, File: path, Err: errors.Unwrap(err)} // it could not be read
	}
	if err != nil {
		return ports.FoundPolicy{}, false, err
	}
	found.Notes = usedNotes(documents)
	return found, true, nil
}

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
