package application

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// The most that is looked at, and said, of what tools print: it is the agent's
// text.
const (
	maxDenialText  = 64 << 10 // bytes of one output
	maxDenialNotes = 8        // in a turn
	maxDenialTries = 32       // paths that are asked about in one output
)

// denials finds permission errors in what tools print and says which of them are
// the plan's doing. It is used by one turn.
type denials struct {
	plan      domain.SandboxPlan
	workspace string
	said      map[string]bool
}

// notes returns what there is to say about a tool's output: only of paths that
// stand in it, and only if the plan really denies what was tried. What a file's
// mode denies is none of its business.
func (d *denials) notes(output string) []domain.ReplyEvent {
	output = output[:min(len(output), maxDenialText)]
	if !d.plan.IsConfined() || len(d.said) >= maxDenialNotes || !deniedLine(output) {
		return nil
	}
	var notes []domain.ReplyEvent
	tries := maxDenialTries
	shared := 0 // for how many lines what was called before is what an error is about
	for line := range strings.Lines(output) {
		if callsShared(line) {
			shared = sharedLines
		}
		shared--
		if !deniedLine(line) {
			continue
		}
		line = withoutSpeaker(line)
		paths := pathsIn(line)
		if shared >= 0 && !slices.ContainsFunc(paths, func(path string) bool { return filepath.Dir(path) != "/" }) {
			if note, ok := d.explainShared(); ok && !d.said[sharedDir] {
				d.said[sharedDir] = true
				notes = append(notes, note)
			}
			continue
		}
		for _, path := range paths {
			if tries--; tries < 0 || len(d.said) >= maxDenialNotes {
				return notes
			}
			if !filepath.IsAbs(path) {
				path = filepath.Join(d.workspace, path)
			}
			if e, ok := d.explain(line, path); ok && !d.said[e.Question] {
				d.said[e.Question] = true
				notes = append(notes, domain.Notice{Class: domain.NoticeDenial, Message: e.Hint()})
			}
		}
	}
	return notes
}

// explained returns a notice with what the plan says of the connection that was
// refused, if it is about one.
func (d *denials) explained(n domain.Notice) domain.Notice {
	if n.Refused == (domain.Refusal{}) || !d.plan.IsConfined() {
		return n
	}
	switch n.Refused.Network {
	case domain.NetworkTCP:
		to, err := netip.ParseAddrPort(n.Refused.Address)
		if err != nil {
			return n
		}
		// A connect is refused for other reasons too: an address is not what was
		// in the call any more when it was looked at, for example.
		if e, err := ExplainTCP(d.plan, to.Addr().String(), to.Port()); err == nil && !e.Allowed {
			n.Message = n.Refused.String() + ": " + e.Hint()
		}
	case domain.NetworkUnix:
		if !filepath.IsAbs(n.Refused.Address) {
			return n
		}
		if e, err := ExplainUnix(d.plan, n.Refused.Address); err == nil && !e.Allowed {
			n.Message = n.Refused.String() + ": " + e.Hint()
		}
	case domain.NetworkUDP:
		if !d.plan.UDP() {
			n.Message = n.Refused.String() + ": the plan denies UDP, so a program that looks up a host's name finds nothing; " +
				"to allow it, allow the domain, which is resolved outside, or grant UDP, which reaches every host"
		}
	}
	return n
}

// sharedDir is where C libraries keep the semaphores and the shared memory of POSIX
// (shm_overview(7), sem_overview(7)).
const sharedDir = "/dev/shm"

// sharedLines is how many lines, from the one with the call, an error follows in:
// Python marks the call on a line of its own.
const sharedLines = 4

// callsShared reports whether a line, of a traceback for example, has a call that
// makes such a thing. Errors of these calls have no path, or the name alone, which
// looks like a path from the root.
func callsShared(line string) bool {
	return strings.Contains(line, "SemLock(") || strings.Contains(line, "sem_open") || strings.Contains(line, "shm_open")
}

// explainShared returns what there is to say if the plan denies such things.
func (d *denials) explainShared() (domain.Notice, bool) {
	e, err := ExplainFile(d.plan, domain.OpCreate, sharedDir+"/semaphore", "")
	if err != nil || e.Allowed {
		return domain.Notice{}, false
	}
	// To create them alone would not be enough.
	grant := domain.Change{Rules: []domain.PathRule{{Path: sharedDir, Access: domain.AccessReadWrite}}}
	return domain.Notice{Class: domain.NoticeDenial, Message: "the plan denies POSIX semaphores and shared memory, which Python's multiprocessing uses, " +
		"because they are files in " + sharedDir + ": " + e.Because + "; to allow them, grant " + grant.String() +
		", which all programs of this machine share"}, true
}

// deniedLine reports whether a line is of a permission error, as C libraries,
// Node and Rust print EACCES, which is what Landlock gives.
func deniedLine(line string) bool {
	return strings.Contains(line, "ermission denied") || strings.Contains(line, "EACCES")
}

// withoutSpeaker returns a line without the path of the program or script that
// says it, as in "/bin/bash: line 1: /etc/x: Permission denied": nothing was tried
// with that. A path that stands alone is what was tried.
func withoutSpeaker(line string) string {
	first, rest, found := strings.Cut(strings.TrimSpace(line), ": ")
	if found && strings.Contains(first, "/") && !strings.ContainsAny(first, " \t'\"`‘“") && len(pathsIn(rest)) > 0 {
		return rest
	}
	return line
}

// opWords lead from what a message says was tried to what is asked, the first that
// fits. Without one it may have been reading or writing.
var opWords = []struct {
	word string
	ops  []domain.FileOp
}{
	{"unlink", []domain.FileOp{domain.OpDelete}},
	{"remove", []domain.FileOp{domain.OpDelete}},
	{"rmdir", []domain.FileOp{domain.OpDelete}},
	{"create", []domain.FileOp{domain.OpCreate, domain.OpWrite}},
	{"mkdir", []domain.FileOp{domain.OpCreate}},
	{"touch", []domain.FileOp{domain.OpCreate, domain.OpWrite}},
	{"write", []domain.FileOp{domain.OpWrite, domain.OpCreate}},
	{"exec", []domain.FileOp{domain.OpExec}},
	{"spawn", []domain.FileOp{domain.OpExec}},
	{"", []domain.FileOp{domain.OpRead, domain.OpWrite, domain.OpCreate, domain.OpExec}},
}

// explain returns why the plan denies what the line tells of.
func (d *denials) explain(line, path string) (domain.Explanation, bool) {
	for _, w := range opWords {
		if !strings.Contains(line, w.word) {
			continue
		}
		info, missing := os.Lstat(path)
		if missing == nil && info.Mode()&os.ModeSocket != 0 {
			return domain.Explanation{}, false // which is not opened, but connected to
		}
		for _, op := range w.ops {
			if missing != nil && op != domain.OpCreate {
				continue // it would have been another error
			}
			e, err := ExplainFile(d.plan, op, path, "")
			if invalid := new(domain.InvalidError); errors.As(err, &invalid) {
				continue // it makes no sense for what is there
			}
			if err != nil {
				return domain.Explanation{}, false // there is no such place
			}
			if !e.Allowed {
				return e, true
			}
		}
		return domain.Explanation{}, false
	}
	return domain.Explanation{}, false
}

// pathsIn returns what looks like a path in a line: what stands in quotes, and
// words with a slash.
func pathsIn(line string) []string {
	var paths []string
	add := func(s string) {
		if s = strings.TrimRight(s, ".,:;)]"); strings.Contains(s, "/") && !strings.Contains(s, "\x00") && !strings.Contains(s, "://") {
			paths = append(paths, s)
		}
	}
	rest := line
	for {
		i := strings.IndexAny(rest, "'\"`‘“")
		if i < 0 {
			break
		}
		open, size := rune(0), 0
		for _, r := range rest[i:] {
			open, size = r, len(string(r))
			break
		}
		closing := map[rune]string{'‘': "’", '“': "”"}[open]
		if closing == "" {
			closing = string(open)
		}
		words := rest[:i]
		quoted, after, found := strings.Cut(rest[i+size:], closing)
		if !found {
			break
		}
		for _, w := range strings.Fields(words) {
			add(w)
		}
		add(quoted)
		rest = after
	}
	for _, w := range strings.Fields(rest) {
		add(w)
	}
	return paths
}
