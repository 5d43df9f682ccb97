package application

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// changing are the rights with which a process can change what others read.
const changing = domain.AccessWrite | domain.AccessMakeChar | domain.AccessMakeBlock

// resolveRules makes paths canonical: the digest, the check of the grants and
// what a person reviews are then about the places that the kernel will see. A
// required path that does not exist is refused, unless made says that it is one
// of Caisson's own, which will exist. The rules must be valid.
func resolveRules(rules []domain.PathRule, made func(path string) bool) ([]domain.PathRule, error) {
	resolved := make([]domain.PathRule, 0, len(rules))
	for _, r := range rules {
		canonical, exists, err := canonicalPath(r.Path)
		switch {
		case err != nil && r.Presence == domain.Optional && errors.Is(err, fs.ErrPermission):
			// What the user may not look at is as good as missing.
		case err != nil:
			return nil, &domain.InvalidError{What: "path rule", Value: r.Path, Reason: "cannot be resolved", Remedy: "check the path", Err: err}
		case !exists && r.Presence == domain.Required && !made(canonical):
			remedy := "make it, or mark the rule as optional"
			if flag, ok := strings.CutPrefix(r.Why, "--"); ok {
				remedy = "make it, or say --optional-" + flag
			}
			return nil, &domain.InvalidError{
				What: "path rule", Value: r.Path, Reason: "does not exist (granted by: " + r.Why + ")", Remedy: remedy,
			}
		}
		if r.Path != canonical {
			// A person who reviews the plan should find what was said.
			r.Why += " " + r.Path
		}
		r.Path, r.Resolved = canonical, true
		resolved = append(resolved, r)
	}
	return withoutRedundant(resolved), nil
}

// withoutRedundant leaves out the optional rules that add nothing, because
// another rule grants as much for the same place or for one above it: on most
// systems /bin is /usr/bin by now.
func withoutRedundant(rules []domain.PathRule) []domain.PathRule {
	var kept []domain.PathRule
	for i, r := range rules {
		adds := true
		for j, other := range rules {
			if i == j || !covers(other.Path, r.Path) || !other.Access.Has(r.Access) {
				continue
			}
			// Of two that are the same, the first stays.
			same := other.Path == r.Path && other.Access == r.Access
			if !same || j < i {
				adds = false
				break
			}
		}
		if adds || r.Presence == domain.Required {
			kept = append(kept, r)
		}
	}
	return kept
}

// program is a program that no agent may be able to replace, or a directory
// that belongs to one.
type program struct {
	path   string
	what   string
	remedy string // what to do instead; "" for a program
}

// checkGrants refuses a plan that lets the confined process change what the
// unconfined side relies on: Caisson's state (of other sessions, or of this one
// beyond its own directories) and the programs. Landlock cannot take a part
// back out of a granted directory, so a grant above them is refused too.
func checkGrants(plan domain.SandboxPlan, root string, own []string, programs []program) error {
	var errs []error
	for _, r := range plan.Rules() {
		if r.Access&changing == 0 || slices.ContainsFunc(own, func(dir string) bool { return covers(dir, r.Path) }) {
			continue
		}
		refuse := func(reason, remedy string) {
			errs = append(errs, &domain.InvalidError{
				What: "writable path (" + r.Why + ")", Value: r.Path, Reason: reason, Remedy: remedy,
			})
		}
		if overlaps(r.Path, root) {
			refuse("would let it write to Caisson's state in "+root, "grant a directory that does not contain it, or move the state with XDG_STATE_HOME")
		}
		for _, p := range programs {
			if overlaps(r.Path, p.path) {
				refuse("would let it change "+p.what+" ("+p.path+")", cmp.Or(p.remedy, "grant another directory, or install the program elsewhere"))
			}
		}
	}
	return errors.Join(errs...)
}

// programsOf lists the programs behind an install.
func programsOf(kind domain.AgentKind, install ports.AgentInstall) []program {
	var ps []program
	for _, path := range slices.Concat([]string{install.Path}, install.Files, install.Dirs) {
		if canonical, _, err := canonicalPath(path); err == nil {
			path = canonical
		}
		p := program{path: path, what: "the program of " + string(kind)}
		if !slices.Contains(ps, p) {
			ps = append(ps, p)
		}
	}
	return ps
}
