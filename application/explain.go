package application

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// ExplainFile says whether a plan allows an operation on a path, and why, by
// the rules of the kernel (docs.kernel.org/userspace-api/landlock.html): rights
// belong to the files and directories that the rules lead to, whatever their
// names are by now, and count for all below them. Links are followed as the
// operation itself follows them, from the place of the caller. to is where
// domain.OpRename moves the path, and "" otherwise.
//
// It is about the sandbox alone, and about a kernel that can enforce every
// right; modes and owners may deny what the sandbox allows. Nothing is opened or
// changed.
//
// An operation that the file system refuses to everybody, such as writing a
// directory or making a file where there is no directory, gives a
// *domain.InvalidError; a path that the caller cannot look at, an error that is
// fs.ErrPermission; a zero plan domain.ErrNoSandbox.
func ExplainFile(plan domain.SandboxPlan, op domain.FileOp, path, to string) (domain.Explanation, error) {
	if _, err := domain.ParseFileOp(string(op)); err != nil {
		return domain.Explanation{}, err
	}
	question := string(op) + " " + strconv.Quote(path)
	if op == domain.OpRename {
		question += " to " + strconv.Quote(to)
	}
	if e, done, err := explainWithout(plan, question); done {
		return e, err
	}
	for _, p := range []string{path, to} {
		if !filepath.IsAbs(p) && (p == path || op == domain.OpRename) {
			return domain.Explanation{}, &domain.InvalidError{What: "path", Value: p, Reason: "not absolute", Remedy: "pass the path from / on"}
		}
	}
	x := explainer{}
	if err := x.place(plan.Rules()); err != nil {
		return domain.Explanation{}, err
	}
	needs, notes, err := x.needs(op, path, to)
	if err != nil {
		return domain.Explanation{}, err
	}
	e := domain.ExplainFile(question, needs)
	e.Notes = notes
	switch {
	case e.Allowed:
	case x.missing != "":
		// A rule can only be for what there is, and for a file in a directory that
		// is to come, that would be a home directory, or worse.
		e.Change = domain.Change{}
	default:
		e.Change, err = enough(plan, e.Change, op, path, to)
	}
	return e, err
}

// enough adds to a change until it allows the operation: the usual sets grant more
// than what is missing, and more on a destination can be too much for a move. The
// change is empty if no rule helps.
func enough(plan domain.SandboxPlan, change domain.Change, op domain.FileOp, path, to string) (domain.Change, error) {
	for {
		x := explainer{}
		if err := x.place(append(plan.Rules(), change.Rules...)); err != nil {
			return domain.Change{}, err
		}
		needs, _, err := x.needs(op, path, to)
		if err != nil {
			return domain.Change{}, err
		}
		more := change
		for _, n := range needs {
			if n.Missing != 0 {
				more = more.Grant(n.Place, n.Missing)
			}
		}
		// Sets only grow, and there are few of them.
		if slices.Equal(more.Rules, change.Rules) {
			if slices.ContainsFunc(needs, func(n domain.Need) bool { return n.Missing != 0 }) {
				return domain.Change{}, nil
			}
			return change, nil
		}
		change = more
	}
}

// ExplainTCP says whether a plan allows to connect to a TCP port, not 0, of a host:
// an address, localhost, which is 127.0.0.1 and ::1, or another name, which is not
// resolved.
func ExplainTCP(plan domain.SandboxPlan, host string, port uint16) (domain.Explanation, error) {
	question := fmt.Sprintf("connect to TCP port %d of %s", port, strconv.Quote(host))
	if e, done, err := explainWithout(plan, question); done {
		return e, err
	}
	e := domain.Explanation{Question: question, Allowed: true}
	everywhere := "a granted port is granted on every host"
	to, named := destinationsOf(host, port)
	var granted, denied []string
	for _, d := range to {
		if slices.Contains(plan.ReachableDestinations(), d) {
			granted = append(granted, d.String())
		} else {
			denied = append(denied, d.String())
		}
	}
	name, notName := domain.ParseHostName(host)
	byName, notByName := domain.EgressByName(plan.EgressDomains(), name, port)
	switch {
	case named && notName == "" && len(byName) > 0:
		e.Because = "the plan allows the domain " + byName[0].String() + ", through the session's egress proxy"
		e.Notes = []string{"the proxy resolves the name, and refuses it if it leads to other addresses than the policy allows; by default those are public ones"}
		return e, nil
	case slices.Contains(plan.ConnectTCP(), port):
		e.Because, e.Notes = fmt.Sprintf("the plan grants TCP connections to port %d", port), []string{everywhere}
	case len(granted) > 0:
		e.Because = "the plan grants TCP connections to " + strings.Join(granted, ", ")
		if len(denied) > 0 {
			e.Notes = []string{"not to " + strings.Join(denied, ", ") + ", where the name leads as well"}
		}
	default:
		e.Allowed, e.Because = false, "the plan grants TCP connections to "+reachable(plan)
		e.Change.Destinations = to
		if d, err := domain.EgressHost(name, port); named && notName == "" && err == nil {
			e.Change.Domains = []domain.EgressDomain{d}
			e.Notes = []string{"a domain is allowed through an egress proxy, for programs that use HTTPS_PROXY"}
			if len(plan.EgressDomains()) > 0 {
				e.Notes = append(e.Notes, "the session's egress proxy refuses it: "+notByName)
			}
		} else if named {
			e.Change.ConnectTCP, e.Notes = []uint16{port}, []string{everywhere}
		}
	}
	if named && len(plan.ReachableDestinations()) > 0 {
		e.Notes = append(e.Notes, "destinations are addresses: ask for the one that the name leads to")
	}
	if named && !plan.UDP() && len(e.Change.Domains) == 0 {
		e.Notes = append(e.Notes, "the plan denies UDP, so a host's name can only be resolved by what needs none, such as /etc/hosts")
	}
	return e, nil
}

// destinationsOf returns where a host is: an address, or localhost, which means
// what it means in a policy. Of other names it says that they are names.
func destinationsOf(host string, port uint16) (to []netip.AddrPort, named bool) {
	if strings.EqualFold(host, "localhost") {
		return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)}, false
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return nil, true
	}
	return []netip.AddrPort{netip.AddrPortFrom(address.Unmap(), port)}, false
}

// ExplainUnix says whether a plan allows to connect to the unix socket at a
// path.
func ExplainUnix(plan domain.SandboxPlan, path string) (domain.Explanation, error) {
	question := "connect to the unix socket " + strconv.Quote(path)
	if e, done, err := explainWithout(plan, question); done {
		return e, err
	}
	if !filepath.IsAbs(path) {
		return domain.Explanation{}, &domain.InvalidError{What: "path", Value: path, Reason: "not absolute", Remedy: "pass the path from / on"}
	}
	at, err := follow(path)
	if err != nil {
		return domain.Explanation{}, err
	}
	e := domain.Explanation{Question: question}
	if slices.Contains(plan.UnixDestinations(), at) {
		e.Allowed, e.Because = true, "the plan grants connections to the unix socket "+strconv.Quote(at)
		e.Notes = []string{"to what is there when a turn starts, as a stream or as sequenced packets"}
		return e, nil
	}
	switch plan.UnixSockets() {
	case domain.UnixSocketsAllow:
		e.Allowed, e.Because = true, "the plan allows every unix socket"
		return e, nil
	case domain.UnixSocketsDeny:
		e.Because = "the plan denies every unix socket that has a path"
		if granted := plan.UnixDestinations(); len(granted) > 0 {
			e.Because += " but " + strings.Join(granted, ", ")
		}
		e.Change.UnixSockets = domain.UnixSocketsAllow
	}
	x := explainer{}
	if err := x.place(plan.Rules()); err != nil {
		return domain.Explanation{}, err
	}
	need, err := x.need(filepath.Dir(at), domain.AccessMakeSock, "")
	if err != nil {
		return domain.Explanation{}, err
	}
	own := need.Missing == 0
	switch {
	case plan.UnixSockets() == domain.UnixSocketsDeny && own:
		e.Change.UnixSockets = domain.UnixSocketsOwn
	case plan.UnixSockets() == domain.UnixSocketsDeny:
	case own:
		e.Allowed, e.Because = true, "the plan allows the unix sockets below its writable directories"
	default:
		e.Because = "the plan allows the unix sockets below its writable directories, and this is none of them"
		e.Change.UnixSockets = domain.UnixSocketsAllow
	}
	if info, err := os.Lstat(at); !e.Allowed && err == nil && info.Mode()&fs.ModeSocket != 0 {
		e.Change = domain.Change{UnixDestinations: []string{at}} // narrower than any choice
	}
	return e, nil
}

// explainWithout answers where there is nothing to look at.
func explainWithout(plan domain.SandboxPlan, question string) (domain.Explanation, bool, error) {
	switch {
	case plan.IsZero():
		return domain.Explanation{}, true, domain.ErrNoSandbox
	case plan.IsUnconfined():
		return domain.Explanation{Question: question, Allowed: true, Because: "there is no sandbox: " + plan.Why()}, true, nil
	}
	return domain.Explanation{}, false, nil
}

// reachable says what a plan lets be connected to by TCP.
func reachable(plan domain.SandboxPlan) string {
	var words []string
	for _, p := range plan.ConnectTCP() {
		words = append(words, "port "+strconv.Itoa(int(p)))
	}
	for _, d := range plan.Destinations() {
		words = append(words, d.String())
	}
	for _, d := range plan.EgressDomains() {
		words = append(words, d.String())
	}
	if _, ok := plan.ModelGateway(); ok {
		words = append(words, "the session's model gateway")
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ") + " alone"
}

// explainer has the rules of a plan, each with what it leads to.
type explainer struct {
	rules []placedRule
	// missing is the directory of the path, if that does not exist.
	missing string
}

type placedRule struct {
	domain.PathRule
	info fs.FileInfo
}

// place finds what the rules lead to. A rule that leads nowhere grants nothing
// that one could ask about.
func (x *explainer) place(rules []domain.PathRule) error {
	for _, r := range rules {
		info, err := os.Lstat(r.Path)
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			if r.Resolved {
				return &domain.InvalidError{
					What: "path rule", Value: r.Path, Reason: "a symbolic link by now, so that a turn would be refused",
					Remedy: "find out who put it there, and open a new session",
				}
			}
			info, err = os.Stat(r.Path)
		}
		switch {
		case err == nil:
			if !info.IsDir() {
				r.Access = r.Access.ForFile()
			}
			x.rules = append(x.rules, placedRule{r, info})
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("look at what a rule leads to: %w", err)
		}
	}
	return nil
}

// at returns the rules for that very file or directory.
func (x *explainer) at(path string) ([]domain.PathRule, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var rules []domain.PathRule
	for _, r := range x.rules {
		if os.SameFile(r.info, info) {
			rules = append(rules, r.PathRule)
		}
	}
	return rules, nil
}

// reaching returns the rules for the place and for every directory above it, the
// nearest first.
func (x *explainer) reaching(place string) ([]domain.PathRule, error) {
	var rules []domain.PathRule
	for p := place; ; p = filepath.Dir(p) {
		here, err := x.at(p)
		if err != nil {
			return nil, fmt.Errorf("look at what is above the path: %w", err)
		}
		rules = append(rules, here...)
		if p == filepath.Dir(p) {
			return rules, nil
		}
	}
}

// need says what of the access the rules grant at a place.
func (x *explainer) need(place string, access domain.Access, detail string) (domain.Need, error) {
	rules, err := x.reaching(place)
	return domain.Need{Place: place, Access: access, Missing: access &^ granted(rules), Rules: rules, Detail: detail}, err
}

func granted(rules []domain.PathRule) domain.Access {
	var a domain.Access
	for _, r := range rules {
		a |= r.Access
	}
	return a
}

// needs returns what the operation needs, place by place.
func (x *explainer) needs(op domain.FileOp, path, to string) ([]domain.Need, []string, error) {
	if op == domain.OpDelete || op == domain.OpRename {
		needs, err := x.entryNeeds(op, path, to)
		return needs, nil, err
	}
	return x.contentNeeds(op, path)
}

// pointless says why a question has no answer.
func pointless(op domain.FileOp, path, reason, remedy string) error {
	return &domain.InvalidError{What: "question", Value: string(op) + " " + path, Reason: reason, Remedy: remedy}
}

// contentNeeds is needs for what is done to a file itself, to which links lead.
func (x *explainer) contentNeeds(op domain.FileOp, path string) ([]domain.Need, []string, error) {
	at, err := follow(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := os.Lstat(at)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	exists, isDir := info != nil, info != nil && info.IsDir()
	place, access, detail := at, domain.AccessReadFile, ""
	switch op {
	case domain.OpCreate:
		if exists {
			return nil, nil, pointless(op, path, "it exists", "ask for write")
		}
		access = domain.AccessMakeReg | domain.AccessWriteFile
	case domain.OpWrite:
		if isDir {
			return nil, nil, pointless(op, path, "a directory is not written itself", "ask for create, with a path in it")
		}
		access = domain.AccessWriteFile
	case domain.OpExec:
		if exists && !info.Mode().IsRegular() {
			return nil, nil, pointless(op, path, "only a regular file can be run, and to go through a directory needs no right", "name a program")
		}
		// Measured on Linux 6.18.
		access, detail = domain.AccessReadFile|domain.AccessExecute, "the kernel opens a program for reading as well"
	default:
		if isDir {
			access = domain.AccessReadDir
		}
	}
	if !exists {
		// A rule can only be for what there is.
		if place, err = nearest(filepath.Dir(at)); err != nil {
			return nil, nil, err
		}
		if place != filepath.Dir(at) {
			x.missing = filepath.Dir(at)
		}
	}
	if x.missing != "" && op == domain.OpCreate {
		return nil, nil, pointless(op, path, "its directory does not exist", "make it, or ask for one that exists")
	}
	need, err := x.need(place, access, detail)
	if err != nil {
		return nil, nil, err
	}
	var notes []string
	if !exists && op != domain.OpCreate {
		notes = append(notes, "the path does not exist; this is what the plan says of its place")
	}
	if x.missing != "" && need.Missing != 0 {
		notes = append(notes, "what would allow it can be said when its directory exists, "+strconv.Quote(x.missing))
	}
	if op == domain.OpExec && need.Missing == domain.AccessExecute {
		notes = append(notes, "a file that can be read can still be run through the dynamic loader or its interpreter")
	}
	if op == domain.OpCreate && need.Missing == domain.AccessWriteFile {
		notes = append(notes, "it would be made, and then not opened for writing: an empty file stays behind")
	}
	if op == domain.OpWrite && need.Missing != 0 && exists {
		notes = append(notes, "a grant on a file ends when the file is replaced, as many editors do: then its directory must be granted")
	}
	if op == domain.OpWrite && need.Missing == 0 && !granted(need.Rules).Has(domain.AccessTruncate) {
		notes = append(notes, "it may be written but not truncated")
	}
	return []domain.Need{need}, notes, nil
}

// entryNeeds is needs for what is done to the entry of a directory: a link in last
// place is not followed.
func (x *explainer) entryNeeds(op domain.FileOp, path, to string) ([]domain.Need, error) {
	from, info, err := entry(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case info == nil:
		return nil, pointless(op, path, "it does not exist", "name what is there")
	}
	source := filepath.Dir(from)
	if op == domain.OpDelete {
		need, err := x.need(source, removal(info), "")
		return []domain.Need{need}, err
	}
	target, replaced, err := entry(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, pointless(op, path, "there is no directory for "+to, "make it, or name another place")
	case err != nil:
		return nil, err
	case target != from && overlaps(target, from):
		return nil, pointless(op, path, "one of the two places is inside of the other", "name another place")
	}
	destination := filepath.Dir(target)
	leave, arrive, detail := removal(info), making(info), ""
	if replaced != nil {
		arrive |= removal(replaced)
	}
	if source != destination {
		leave, arrive = leave|domain.AccessRefer, arrive|domain.AccessRefer
		detail = "it moves between directories"
	}
	leaving, err1 := x.need(source, leave, detail)
	arriving, err2 := x.need(destination, arrive, detail)
	needs := []domain.Need{leaving, arriving}
	if err := errors.Join(err1, err2); err != nil || source == destination {
		return needs, err
	}
	gain, err := x.gain(from, info, source, destination)
	return append(needs, gain...), err
}

// gain returns what a file may be done to at its destination and not where it
// comes from: the kernel refuses a move that would add rights to it.
func (x *explainer) gain(from string, info fs.FileInfo, source, destination string) ([]domain.Need, error) {
	own, err1 := x.at(from)
	before, err2 := x.reaching(source)
	after, err3 := x.reaching(destination)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	gained := granted(after) &^ (granted(before) | granted(own))
	if !info.IsDir() {
		gained = gained.ForFile()
	}
	// Whether sockets may be connected to is not a matter of the rules alone.
	if gained &^= domain.AccessResolveUnix; gained == 0 {
		return nil, nil
	}
	return []domain.Need{{
		Place: source, Access: gained, Missing: gained, Rules: before,
		Detail: "its destination grants that, and a move must not add rights",
	}}, nil
}

// removal is the right to remove an entry.
func removal(info fs.FileInfo) domain.Access {
	if info.IsDir() {
		return domain.AccessRemoveDir
	}
	return domain.AccessRemoveFile
}

// making is the right to make an entry of that kind.
func making(info fs.FileInfo) domain.Access {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return domain.AccessMakeDir
	case mode&fs.ModeSymlink != 0:
		return domain.AccessMakeSym
	case mode&fs.ModeNamedPipe != 0:
		return domain.AccessMakeFifo
	case mode&fs.ModeSocket != 0:
		return domain.AccessMakeSock
	case mode&fs.ModeCharDevice != 0:
		return domain.AccessMakeChar
	case mode&fs.ModeDevice != 0:
		return domain.AccessMakeBlock
	}
	return domain.AccessMakeReg
}

// entry returns the canonical place of a directory's entry, and what is there,
// nil if nothing is. A link in last place is not followed.
func entry(path string) (string, fs.FileInfo, error) {
	base := filepath.Base(path)
	if trimmed := strings.TrimRight(path, "/"); trimmed == "" || base == "." || base == ".." {
		return "", nil, &domain.InvalidError{What: "path", Value: path, Reason: "names no entry of a directory", Remedy: "pass its name"}
	}
	dir, err := filepath.EvalSymlinks(strings.TrimRight(path, "/")[:len(strings.TrimRight(path, "/"))-len(base)])
	if err != nil {
		return "", nil, err
	}
	at := filepath.Join(dir, base)
	info, err := os.Lstat(at)
	if errors.Is(err, fs.ErrNotExist) {
		return at, nil, nil
	}
	return at, info, err
}

// maxLinks is how many links the kernel follows in one path (path_resolution(7)).
const maxLinks = 40

// nearest returns the directory, or the nearest one above it that exists.
func nearest(dir string) (string, error) {
	for {
		_, err := os.Lstat(dir)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir, err
		}
		dir = filepath.Dir(dir)
	}
}

// follow returns the canonical place that a path leads to through all its links.
// What stands last in it need not exist.
func follow(path string) (string, error) {
	for range maxLinks {
		canonical, err := filepath.EvalSymlinks(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return canonical, err
		}
		at, info, err := entry(path)
		if errors.Is(err, fs.ErrNotExist) {
			// Its directory does not exist either, or is a link to one that does not.
			path = strings.TrimRight(path, "/")
			base := filepath.Base(path)
			dir, err := follow(path[:len(path)-len(base)])
			return filepath.Join(dir, base), err
		}
		if err != nil || info == nil {
			return at, err
		}
		// A link that leads to nothing: what is made through it is made there.
		to, err := os.Readlink(at)
		if err != nil {
			return "", err
		}
		if path = to; !filepath.IsAbs(to) {
			path = filepath.Dir(at) + "/" + to
		}
	}
	return "", &domain.InvalidError{What: "path", Value: path, Reason: "too many symbolic links", Remedy: "name the place itself"}
}
